/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop.h - time, timers and deferred tasks for the control thread.
 *
 * Tasks of one uid run in the order in which they were posted; uids take turns (base/fair.h), each
 * charged with the processor time of its tasks. No call may take more than LOOP_CALL_NS of it.
 *
 * Implementations: ckptd/loop_epoll.c (daemon), tests/sim/life.c (virtual time).
 * Everything here is called on the loop's own thread, but loop_post(), which any thread may call.
 * A callback never runs inside the call that arranged it.
 */
#ifndef BASE_LOOP_H
#define BASE_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/fair.h"
#include "base/list.h"

#define LOOP_CALL_NS 1000000ull

struct loop;

struct timer {
	struct timer *child, *next, *prev; /* in the loop's heap: base/loop.c */
	uint64_t deadline_ns;              /* this and the next one: valid while armed */
	uint64_t number;                   /* of equal deadlines the lower one fires first */
	bool armed;
	void (*fire)(struct timer *);
};

/* Something to be run by the loop in its next turn; owned by the poster until run is called. */
struct task {
	struct list link;
	uint32_t uid; /* charged for its run; FAIR_NODE: no user. May change between posts */
	void (*run)(struct task *);
};

/* Processor time of the thread in calls of the loop (of a descriptor, a task, a timer). */
struct loop_calls {
	uint64_t n, over; /* over: longer than LOOP_CALL_NS */
	uint64_t total_ns, longest_ns;
	const char *longest; /* what it was: the label, or the kind of call */
};

struct loop_ops {
	uint64_t (*now_ns)(struct loop *);  /* monotonic, read once per turn */
	uint64_t (*wall_ns)(struct loop *); /* since 1970; for labels, never for decisions */
	/* Arming again moves the timer. */
	void (*timer_arm)(struct loop *, struct timer *, uint64_t deadline_ns);
	void (*timer_disarm)(struct loop *, struct timer *); /* idempotent */
	/* After task_init(). One that is posted is not posted again. */
	void (*post)(struct loop *, struct task *);
	/* Removes a posted task that has not run; idempotent after task_init(). The owner unposts a
	 * task before freeing it: its neighbours in the list point to it. */
	void (*unpost)(struct loop *, struct task *);
	bool (*is_current)(struct loop *); /* for asserts: is this the loop's thread? */
	/* Names the running call, by a literal, for the report of long calls. May be NULL. */
	void (*label)(struct loop *, const char *what);
	/* Since ckptd was ready. May be NULL. */
	const struct loop_calls *(*calls)(struct loop *);
};

struct loop {
	const struct loop_ops *ops;
};

static inline uint64_t loop_now(struct loop *l)
{
	return l->ops->now_ns(l);
}
static inline uint64_t loop_wall(struct loop *l)
{
	return l->ops->wall_ns(l);
}
static inline void loop_post(struct loop *l, struct task *t)
{
	l->ops->post(l, t);
}
static inline void loop_unpost(struct loop *l, struct task *t)
{
	l->ops->unpost(l, t);
}
static inline bool loop_is_current(struct loop *l)
{
	return l->ops->is_current(l);
}
static inline void loop_label(struct loop *l, const char *what)
{
	if (l->ops->label)
		l->ops->label(l, what);
}
/* NULL: they are not measured. */
static inline const struct loop_calls *loop_calls(struct loop *l)
{
	return l->ops->calls ? l->ops->calls(l) : NULL;
}
static inline void task_init(struct task *t, uint32_t uid, void (*run)(struct task *))
{
	list_init(&t->link);
	t->uid = uid;
	t->run = run;
}
static inline void timer_init(struct timer *t, void (*fire)(struct timer *))
{
	t->child = t->next = t->prev = NULL;
	t->armed = false;
	t->fire = fire;
}
static inline void timer_arm(struct loop *l, struct timer *t, uint64_t deadline_ns)
{
	l->ops->timer_arm(l, t, deadline_ns);
}
static inline void timer_disarm(struct loop *l, struct timer *t)
{
	l->ops->timer_disarm(l, t);
}

/* Timers by deadline, shared by the implementations; all zero: none. */
struct timers {
	struct timer *first;
	uint64_t armed; /* how often one was */
};

void timers_insert(struct timers *all, struct timer *t, uint64_t deadline_ns);
void timers_remove(struct timers *all, struct timer *t); /* idempotent */
/* The earliest deadline, or UINT64_MAX. */
uint64_t timers_next(const struct timers *all);
/* Fires what is due, at most `bound` of them; returns how many. */
int timers_fire(struct timers *all, uint64_t now_ns, int bound);

#endif
