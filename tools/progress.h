/* SPDX-License-Identifier: Apache-2.0 */
/*
 * progress.h - a progress bar with rate and time left, on stderr and only if that is a terminal.
 */
#ifndef TOOLS_PROGRESS_H
#define TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
	bool shown;        /* stderr is a terminal, and wanted */
	uint64_t total;    /* bytes */
	uint64_t start_ns; /* monotonic */
};

void progress_start(struct progress *p, uint64_t total, bool wanted);
void progress_draw(const struct progress *p, uint64_t done, uint64_t problems);
void progress_clear(const struct progress *p); /* before anything else is printed */
double progress_seconds(const struct progress *p);

/* The bar's text, at most width characters; for progress_draw() and its test. */
void progress_text(char *buf, unsigned width, uint64_t done, uint64_t total, double seconds,
		   uint64_t problems);

#endif
