/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock.h - the only clock of the client: monotonic time, deadlines, and waiting by poll(2).
 *
 * A deadline is a time of clock_ns(), or NEVER. A wait ends before it where the caller's hook says
 * so (ckpt_options.interrupted): from then on, until the call ends, every wait is over at once, as
 * if the call's deadline had passed.
 */
#ifndef CLIENT_CLOCK_H
#define CLIENT_CLOCK_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

#define NEVER	  UINT64_MAX
#define NS_PER_MS 1000000ull
/* A call that only asks (timeout 0) still waits this long for the answer to its question. */
#define ASK_MS 1000

uint64_t clock_ns(void);
/* From a timeout of the interface that is not CKPT_DEFAULT_TIMEOUT. */
uint64_t deadline_in(int64_t timeout_ms);

/* Of a handle. Only the thread that is in a call looks at it, and never with a lock held: the hook
 * may wait for locks of its own. */
struct interrupt {
	int (*hook)(void *arg); /* NULL: none, and then nothing is looked at */
	void *arg;
	uint64_t next_ns; /* of the next look; 0: this call has not waited yet */
	bool came;        /* the hook has ended the call */
};

/* A call begins. */
void interrupt_begin(struct interrupt *i);
/* Until when to wait before the next look; 0: it came. i may be NULL, here and below. */
uint64_t interrupt_until(struct interrupt *i, uint64_t deadline);
/* Whether it came; asks the hook where that is due, or `now`. */
bool interrupt_look(struct interrupt *i, bool now);

/* poll(2) until the deadline: > 0 something is ready, 0 the deadline passed or the hook ended the
 * call, or -errno. Goes on after a signal. p may be NULL with n 0: then it only waits. */
int clock_poll(struct pollfd *p, nfds_t n, uint64_t deadline, struct interrupt *i);

#endif
