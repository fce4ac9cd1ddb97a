/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop_epoll.h - the loop of the control thread over epoll(7): timers, posts, descriptors.
 *
 * All calls are on the loop's thread (the one that made it), but loop_post().
 */
#ifndef CKPTD_LOOP_EPOLL_H
#define CKPTD_LOOP_EPOLL_H

#include "base/err.h"
#include "base/loop.h"

/* A caller's descriptor that the loop polls; level-triggered without EPOLLET. The loop calls
 * ready() before all tasks: it only notes the event and leaves the work to a task. */
struct watch {
	int fd;
	uint32_t events; /* EPOLLIN, EPOLLOUT, EPOLLET; 0 while it is not watched */
	void (*ready)(struct watch *, uint32_t events); /* may remove and free any watch */
};

MUST_CHECK int loop_epoll_new(struct loop **ret, struct err *e);
/* What is still watched, armed or posted is forgotten. */
void loop_epoll_free(struct loop *l);

/* Runs turns until loop_epoll_stop(), which takes effect at the end of the turn. */
void loop_epoll_run(struct loop *l);
void loop_epoll_stop(struct loop *l);
/* One turn that waits for news until a timer is due, and at most wait_ns. */
void loop_epoll_turn(struct loop *l, uint64_t wait_ns);
/* How many turns there were: an idle loop makes none. */
uint64_t loop_epoll_turns(const struct loop *l);
/* Restarts the counts of loop_calls(). */
void loop_epoll_forget_calls(struct loop *l);

static inline void watch_init(struct watch *w, int fd, void (*ready)(struct watch *, uint32_t))
{
	*w = (struct watch){ .fd = fd, .ready = ready };
}
/* Watches, or changes what is watched; -errno (-ENOSPC: the user's epoll limit). */
MUST_CHECK int watch_set(struct loop *l, struct watch *w, uint32_t events);
/* Idempotent; before the descriptor is closed. No call of ready follows. */
void watch_remove(struct loop *l, struct watch *w);

#endif
