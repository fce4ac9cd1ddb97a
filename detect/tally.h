/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tally.h - how much of something came within the last while: two halves of the window are counted,
 * so that between the last half and the whole of it counts. Counters of devices, which rise and
 * begin anew at 0 when the device does, become differences here.
 */
#ifndef DETECT_TALLY_H
#define DETECT_TALLY_H

#include <stdbool.h>
#include <stdint.h>

struct tally {
	uint64_t half_ns; /* this half began */
	uint64_t now, before;
};

static inline uint64_t tally_add(struct tally *t, uint64_t n, uint64_t now_ns, uint64_t window_ns)
{
	uint64_t half = window_ns / 2;

	if (now_ns - t->half_ns >= 2 * half) {
		*t = (struct tally){.half_ns = now_ns};
	} else if (now_ns - t->half_ns >= half) {
		t->before = t->now;
		t->now = 0;
		t->half_ns += half;
	}
	t->now += n;
	return t->now + t->before;
}

struct counter {
	bool known;
	uint64_t value;
};

/* What it rose by since the last time; 0 the first time. */
static inline uint64_t counter_rise(struct counter *c, uint64_t value)
{
	uint64_t rise = !c->known ? 0 : value >= c->value ? value - c->value : value;

	c->known = true;
	c->value = value;
	return rise;
}

#endif
