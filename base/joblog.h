/* SPDX-License-Identifier: Apache-2.0 */
/*
 * joblog.h - the log of one job: append record n if record n does not exist. Nothing else.
 *
 * Blocking; runs on WORK_LOG workers, one call at a time per log.
 * Implementations: coord/single.c; later a shared folder and etcd.
 */
#ifndef BASE_JOBLOG_H
#define BASE_JOBLOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* A summing record over all that it may carry is the longest: a static assert in coord/sum.c. */
#define JOBLOG_RECORD_MAX (512 << 10)

struct joblog;

/* bytes are valid during the call; non-zero ends the walk and is returned. */
typedef int joblog_fn(void *arg, uint64_t n, const void *bytes, size_t len);

struct joblog_ops {
	/* Record n becomes these bytes, durably, or nothing changes. -EEXIST: another record n is
	 * there. After an unclear answer it reads n back and compares: equal is success. */
	int (*append)(struct joblog *, uint64_t n, const void *bytes, size_t len, struct err *e);
	/* After append has failed: that record may be there all the same, now or after a loss of
	 * power. Only the same append, repeated, settles it; no other record n may be tried. */
	bool (*unclear)(struct joblog *);
	/* Walks the records in order of n, from 0 or from where it was trimmed. A missing or
	 * unreadable one ends the walk with CKPT_ECORRUPT or -errno after those before it;
	 * -EAGAIN: it was trimmed meanwhile, read it again. What was walked is durable. */
	int (*scan)(struct joblog *, joblog_fn *fn, void *arg, struct err *e);
	/* Removes records below n (a summing record n is there). Failure is harmless. */
	int (*trim)(struct joblog *, uint64_t n);
	void (*close)(struct joblog *);
};

struct joblog {
	const struct joblog_ops *ops;
};

#endif
