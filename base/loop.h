/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop.h - time, timers and "later": what the control thread's machines know of the world's flow.
 *
 * Implementations: ckptd/loop_epoll.c (daemon), tests/sim/life.c (virtual time).
 * Everything here is called on the loop's own thread, but loop_post(), which any thread may call.
 * A callback never runs inside the call that arranged it.
 */
#ifndef BASE_LOOP_H
#define BASE_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"

struct loop;

struct timer {
	struct list link;     /* in the loop's list, sorted by deadline */
	uint64_t deadline_ns; /* valid while armed */
	bool armed;
	void (*fire)(struct timer *);
};

/* Something to be run by the loop in its next turn; owned by the poster until run is called. */
struct task {
	struct list link;
	void (*run)(struct task *);
};

struct loop_ops {
	uint64_t (*now_ns)(struct loop *);  /* monotonic, read once per turn */
	uint64_t (*wall_ns)(struct loop *); /* since 1970; for labels, never for decisions */
	/* Arming again moves the timer. */
	void (*timer_arm)(struct loop *, struct timer *, uint64_t deadline_ns);
	void (*timer_disarm)(struct loop *, struct timer *);                     /* idempotent */
	void (*post)(struct loop *, struct task *);
	bool (*is_current)(struct loop *); /* for asserts: is this the loop's thread? */
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
static inline bool loop_is_current(struct loop *l)
{
	return l->ops->is_current(l);
}
static inline void timer_init(struct timer *t, void (*fire)(struct timer *))
{
	list_init(&t->link);
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

/* A sorted list of timers, shared by the implementations. */
void timers_insert(struct list *timers, struct timer *t, uint64_t deadline_ns);
void timers_remove(struct timer *t);
/* The earliest deadline, or UINT64_MAX. */
uint64_t timers_next(const struct list *timers);
/* Fires what is due, at most `bound` of them; returns how many. */
int timers_fire(struct list *timers, uint64_t now_ns, int bound);

#endif
