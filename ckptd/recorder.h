/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recorder.h - every sample that the detector was fed, as a trace (doc/trace-format.md); and, in
 * builds with fault injection, samples from a FIFO.
 *
 * What is recorded waits in memory, at most RECORDER_WAITS_MAX, for a worker that appends it to the
 * file; what does not fit there, or after RECORDER_FILE_MAX on the disk, is left out, and said. On
 * the loop's thread.
 */
#ifndef CKPTD_RECORDER_H
#define CKPTD_RECORDER_H

#include "base/err.h"
#include "base/loop.h"
#include "base/work.h"
#include "detect/sample.h"

struct log;
struct node;
struct recorder;

#define RECORDER_WAITS_MAX (4u << 20)
#define RECORDER_FILE_MAX  (1ull << 30)

/* path: made, mode 0600, or added to. */
MUST_CHECK int recorder_new(struct workers *workers, struct log *log, const char *path,
			    struct recorder **ret, struct err *e);
/* For env.record. */
void recorder_put(void *recorder, const struct sample *s);
/* No work of it is under way any more; what waits is written. NULL is allowed. */
void recorder_free(struct recorder *r);

/* Lines of a trace from a FIFO go into the detector at the time that they come. */
struct injector;
MUST_CHECK int injector_new(struct loop *loop, struct log *log, const char *path, struct node *n,
			    struct injector **ret, struct err *e);
void injector_free(struct injector *i);

#endif
