/* SPDX-License-Identifier: Apache-2.0 */
/*
 * work.h - a function that may block, run elsewhere, and its answer on the loop.
 *
 * All blocking code (files, digests, index, job log) is straight-line code in a run() on a worker;
 * protocol machines live on the loop and only see done(). Workers share nothing with the loop but
 * the struct work, which belongs to the worker from submit until done() runs, except `cancel`.
 *
 * Users take turns (base/fair.h): a work waits for works of its own uid, and for its turn.
 *
 * Implementations: ckptd/workers.c (threads), tests/sim/life.c (fibers on one thread that change
 * over at every disk call, in virtual time), and work_inline() for tools: run, then done, at once.
 */
#ifndef BASE_WORK_H
#define BASE_WORK_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/fair.h"
#include "base/list.h"
#include "base/loop.h"

enum work_class {
	WORK_DATA,  /* bulk file data; each worker owns a disk queue */
	WORK_META,  /* durable steps and other short file work */
	WORK_PLAN,  /* all files of a checkpoint, for seconds: plans of loads, expiry */
	WORK_CPU,   /* digests, compression: no I/O */
	WORK_INDEX, /* calls into the index */
	WORK_LOG,   /* appends to job logs alone: what is committed waits for nothing slow */
	WORK_MEMORY, /* taking, sealing and letting go of slots: a second per GiB */
	WORK_CHECK, /* what ranks declare, hold alike or at odds: no I/O, for seconds */
	WORK_CLASSES
};

struct work {
	struct list link;
	void (*run)(struct work *);  /* on a worker; may block */
	void (*done)(struct work *); /* on the loop, exactly once; the caller owns the work again */
	int status;                  /* set by run(), read by done() */
	uint32_t uid;                /* set by work_submit(): the user to be charged */
	void *workers;               /* these two are the implementation's */
	struct task task;
	atomic_bool cancel;          /* set by the loop, polled by run(); done() still comes */
};

struct disk_queue;
struct workers;
struct workers_ops {
	void (*submit)(struct workers *, enum work_class, struct work *);
	/* How many works of one uid run at a time (>= 1): how far to split work of one class. */
	int (*width)(struct workers *, enum work_class);
	/* The queue of the calling worker; only inside a run() of WORK_DATA. */
	struct disk_queue *(*queue)(struct workers *);
};
struct workers {
	const struct workers_ops *ops;
};

/* uid: the user for which the work is done, or FAIR_NODE. */
static inline void work_submit(struct workers *w, enum work_class c, uint32_t uid,
			       struct work *work)
{
	work->uid = uid;
	w->ops->submit(w, c, work);
}
static inline int work_width(struct workers *w, enum work_class c)
{
	return w->ops->width(w, c);
}
static inline bool work_cancelled(struct work *work)
{
	return atomic_load_explicit(&work->cancel, memory_order_relaxed);
}

#endif
