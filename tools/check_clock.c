/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_clock.c - whether time goes forward, at one rate, on all processors.
 *
 *   clock-forward   no reading is earlier than one before it, while hopping over the processors
 *   clock-rate      how far NTP bends the clock, parts per million: beyond 500 the kernel gives up
 *   clock-error     what NTP thinks that it is off by, ms; leases and logs read wall clocks
 */
#include <config.h>

#include <math.h>
#include <sched.h>
#include <sys/timex.h>
#include <time.h>

#include "tools/node_check.h"

enum { READINGS = 2000, RATE_MAX_PPM = 500 };

static int64_t read_clock(clockid_t id)
{
	struct timespec t;

	clock_gettime(id, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* On each processor that we may use, as far as there is time. */
static void forward(double seconds, struct check_report *r)
{
	double start = check_now();
	int64_t last = read_clock(CLOCK_MONOTONIC);
	cpu_set_t all;

	if (sched_getaffinity(0, sizeof(all), &all) != 0)
		CPU_ZERO(&all);
	for (int cpu = 0; cpu < CPU_SETSIZE && check_now() - start < seconds; cpu++) {
		cpu_set_t one;

		if (!CPU_ISSET(cpu, &all))
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		if (sched_setaffinity(0, sizeof(one), &one) != 0)
			continue;
		for (int i = 0; i < READINGS; i++) {
			int64_t now = read_clock(CLOCK_MONOTONIC);

			if (now < last) {
				check_say(
					r, "clock-forward", CHECK_FAILED,
					"the monotonic clock of processor %d is %lld ns behind the "
					"others; every timeout on this node is wrong",
					cpu, (long long)(last - now));
				return;
			}
			last = now;
		}
	}
	check_say(r, "clock-forward", CHECK_PASSED, "%s", "");
}

void check_clock(const struct check_options *o, struct check_report *r)
{
	struct timex t = {0};
	double ppm;

	forward(o->seconds / 2, r);
	if (adjtimex(&t) < 0) {
		check_say(r, "clock-rate", CHECK_SKIPPED, "the kernel does not say here");
		return;
	}
	ppm = fabs((double)t.freq / 65536);
	check_value(r, "clock-rate", ppm, "ppm", false);
	if (ppm >= RATE_MAX_PPM)
		check_say(r, "clock-rate", CHECK_FAILED,
			  "the clock runs %.0f parts per million wrong, more than NTP can mend",
			  ppm);
	if (t.status & STA_UNSYNC)
		check_say(r, "clock-error", CHECK_SKIPPED,
			  "nobody sets this node's clock: is chrony or systemd-timesyncd running?");
	else
		check_value(r, "clock-error", (double)t.maxerror / 1e3, "ms", false);
}
