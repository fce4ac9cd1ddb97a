/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "client/clock.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <time.h>

#include "ckpt.h"

#define INTERRUPT_LOOK_NS (200 * NS_PER_MS) /* between two looks of one call */

uint64_t clock_ns(void)
{
	struct timespec t;
	int r = clock_gettime(CLOCK_MONOTONIC, &t);

	assert(r == 0); /* fails only for a clock that does not exist */
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

uint64_t deadline_in(int64_t timeout_ms)
{
	uint64_t now = clock_ns(), ns;

	assert(timeout_ms != CKPT_DEFAULT_TIMEOUT);
	if (timeout_ms < 0)
		return NEVER;
	if (timeout_ms == 0)
		timeout_ms = ASK_MS;
	if (__builtin_mul_overflow((uint64_t)timeout_ms, NS_PER_MS, &ns) || ns > NEVER - 1 - now)
		return NEVER;
	return now + ns;
}

/* Rounded up, so that nobody spins through the last millisecond. */
static int poll_ms(uint64_t deadline)
{
	uint64_t now, ms;

	if (deadline == NEVER)
		return -1;
	now = clock_ns();
	if (deadline <= now)
		return 0;
	ms = (deadline - now + NS_PER_MS - 1) / NS_PER_MS;
	return ms > INT_MAX ? INT_MAX : (int)ms;
}

void interrupt_begin(struct interrupt *i)
{
	i->next_ns = 0;
	i->came = false;
}

uint64_t interrupt_until(struct interrupt *i, uint64_t deadline)
{
	if (!i || !i->hook)
		return deadline;
	if (i->came)
		return 0;
	if (i->next_ns == 0)
		i->next_ns = clock_ns() + INTERRUPT_LOOK_NS;
	return i->next_ns < deadline ? i->next_ns : deadline;
}

bool interrupt_look(struct interrupt *i, bool now)
{
	if (!i || !i->hook)
		return false;
	if (!i->came && (now || clock_ns() >= i->next_ns)) {
		i->came = i->hook(i->arg) != 0;
		i->next_ns = clock_ns() + INTERRUPT_LOOK_NS;
	}
	return i->came;
}

int clock_poll(struct pollfd *p, nfds_t n, uint64_t deadline, struct interrupt *i)
{
	int r;

	for (;;) {
		uint64_t until = interrupt_until(i, deadline);
		int ms = poll_ms(until);

		r = poll(p, n, ms);
		if (r > 0)
			return r;
		if (r < 0 && errno != EINTR)
			return -errno;
		if (until == 0)
			return 0;
		/* A signal handler has run on this thread: what it did may be what the hook waits
		 * for. What is ready by now still counts. */
		if (interrupt_look(i, r < 0))
			continue;
		if ((r == 0 || ms == 0) && poll_ms(deadline) == 0)
			return 0;
	}
}
