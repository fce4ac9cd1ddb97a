/* SPDX-License-Identifier: Apache-2.0 */
/*
 * degrade.h - whether latency for its load has risen for good: a disk or link that is failing slow.
 *
 * After Perseus: latency is regressed on load, above an upper bound (99.9 %) a sample is slow, and
 * only slowness that persists is told. Streaming: least squares over sums that fade, of
 *
 *   log latency = w0 + w1 l + w2 l^2 + w3 log(size of an operation), l = log(load)
 *
 * One device is compared with its own past alone. What is slow is not learned from; loads and
 * sizes that were never met are learned before they are judged. Pure, fixed memory.
 */
#ifndef DETECT_DEGRADE_H
#define DETECT_DEGRADE_H

#include <stdbool.h>
#include <stdint.h>

#define DEGRADE_LEARN      60    /* samples before anything is judged */
#define DEGRADE_FORGET     0.998 /* weight of a sample, a sample later */
#define DEGRADE_BOUND      3.09  /* standard deviations: 99.9 % */
#define DEGRADE_SIGMA_MIN  0.05  /* in log latency */
#define DEGRADE_MEMORY_S   600   /* of share and slowdown */
#define DEGRADE_PERSIST_NS (UINT64_C(450) * 1000000000)
#define DEGRADE_SHARE      0.7 /* of samples are slow */
#define DEGRADE_NOTE       1.3 /* times the latency that its load explains */
#define DEGRADE_ALARM      2.0

#define DEGRADE_TERMS 4
struct degrade {                                                  /* zeroed at first */
	double a[DEGRADE_TERMS][DEGRADE_TERMS], b[DEGRADE_TERMS]; /* sums of x x' and x y, fading */
	double w[DEGRADE_TERMS];
	float low[DEGRADE_TERMS], high[DEGRADE_TERMS]; /* of terms met */
	float variance;                                /* of what remains */
	uint32_t n;                                    /* learned from */
	float share, slowdown;                         /* fading; slowdown is a logarithm */
	uint64_t last_ns;
	uint64_t since_ns; /* share is high since then; 0: it is not */
};

/* load in bytes/s, size in bytes per operation (0: does not matter), latency in s; all > 0. */
void degrade_add(struct degrade *d, double load, double size, double latency_s, uint64_t now_ns);
/* How many times as long as its load explains, of late. */
double degrade_times(const struct degrade *d);
/* Slow for long enough, and so many times. */
bool degrade_is_slow(const struct degrade *d, double times, uint64_t now_ns);
static inline bool degrade_is_well(const struct degrade *d)
{
	return d->since_ns == 0;
}

#endif
