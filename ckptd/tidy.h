/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tidy.h - removes declarations and layouts that nothing uses any more (storage/object_sweep.h),
 * after a start and after the last checkpoint of a layout was taken away. On the loop's thread.
 */
#ifndef CKPTD_TIDY_H
#define CKPTD_TIDY_H

#include "base/err.h"
#include "base/loop.h"
#include "base/work.h"

struct checkpoint;
struct node;
struct object_sweep;

struct tidy {
	struct node *node;
	struct work work;
	struct timer timer;
	struct object_sweep *sweep; /* NULL: none goes on */
	bool gathering;
	struct task gather;         /* what the next jobs use */
	uint64_t round;             /* job->kept_round of those that have been asked */
	bool wanted;
	uint64_t next_ns; /* none begins before */
	struct err err;
};

void tidy_init(struct tidy *t, struct node *n);
void tidy_fini(struct tidy *t);
/* Objects may be unused: begins a sweep, now or some time after the last one. */
void tidy_want(struct node *n);
/* The files of c are gone: if no other checkpoint has its layout that is unused now. */
void tidy_expired(const struct checkpoint *c);
/* The node stops: a sweep ends after the slice that runs. */
void tidy_stop(struct node *n);

#endif
