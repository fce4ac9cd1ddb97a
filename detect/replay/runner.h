/* SPDX-License-Identifier: Apache-2.0 */
/* runner.h - a detector is led through a trace in virtual time, and what it says is scored. */
#ifndef DETECT_REPLAY_RUNNER_H
#define DETECT_REPLAY_RUNNER_H

#include "detect/replay/model.h"
#include "detect/replay/score.h"
#include "detect/replay/watcher.h"

/* One world, one detector. */
struct run {
	struct world_config world;
	enum watcher_kind kind;
	struct watcher_settings settings;
	FILE *log;
	struct score score; /* out: initialized by run_all(), the caller's to free */
	uint64_t samples, refused;
	int result;
};

/* So many at a time. Returns the first error. */
MUST_CHECK int run_all(struct run *runs, unsigned n, unsigned threads);
/* A file; "-": standard input. */
MUST_CHECK int run_file(const char *path, enum watcher_kind kind,
			const struct watcher_settings *settings, bool verbose, struct score *score,
			uint64_t *ret_samples, struct err *e);
/* The trace of several worlds, merged, into a file; "-": standard output; "*.zst": compressed. */
MUST_CHECK int run_generate(const struct world_config *worlds, unsigned n, const char *path,
			    struct err *e);

#endif
