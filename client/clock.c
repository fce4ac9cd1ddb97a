/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "client/clock.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <time.h>

#include "ckpt.h"

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

int clock_poll(struct pollfd *p, nfds_t n, uint64_t deadline)
{
	int r;

	for (;;) {
		int ms = poll_ms(deadline);

		r = poll(p, n, ms);
		if (r > 0)
			return r;
		if (r < 0 && errno != EINTR)
			return -errno;
		if (ms == 0 || (r == 0 && poll_ms(deadline) == 0))
			return 0;
	}
}
