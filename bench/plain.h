/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plain.h - a reader without ckptd: what a program does that reads a file into its memory with
 * threads and pread(), and verifies nothing.
 */
#ifndef BENCH_PLAIN_H
#define BENCH_PLAIN_H

#include "base/err.h"

enum plain_way {
	PLAIN_HUGE,     /* O_DIRECT into buffers of huge pages, copied to their place */
	PLAIN_DIRECT,   /* the same with small pages */
	PLAIN_BUFFERED, /* through the page cache, straight to their place */
	PLAIN_WAYS
};

struct plain_cell {
	enum plain_way way;
	int threads, mib; /* mib: of one read */
};

void plain_name(const struct plain_cell *c, char *buf, size_t size);
/* Drops what the page cache holds of the file. */
MUST_CHECK int plain_forget(const char *path, struct err *e);
/* The file's first bytes into `to`, a multiple of MiB. */
MUST_CHECK int plain_read(const struct plain_cell *c, const char *path, uint64_t bytes, uint8_t *to,
			  struct err *e);

#endif
