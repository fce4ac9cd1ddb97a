/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "tests/lib/clocks.h"

#include <assert.h>
#include <time.h>

int __real_clock_gettime(clockid_t id, struct timespec *t);
int __wrap_clock_gettime(clockid_t id, struct timespec *t);

int __wrap_clock_gettime(clockid_t id, struct timespec *t)
{
	int r = __real_clock_gettime(id, t);

	if (r == 0 && id != CLOCK_MONOTONIC)
		t->tv_sec += 3600;
	return r;
}

uint64_t clocks_monotonic_ns(void)
{
	struct timespec t;
	int r = __real_clock_gettime(CLOCK_MONOTONIC, &t);

	assert(r == 0);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
