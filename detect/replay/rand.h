/* SPDX-License-Identifier: Apache-2.0 */
/* rand.h - random numbers of the model: fast, and the same everywhere for one seed. */
#ifndef DETECT_REPLAY_RAND_H
#define DETECT_REPLAY_RAND_H

#include <stdbool.h>
#include <stdint.h>

/* splitmix64, as base/rng.h; inline, for it is called for every sample. */
struct rand {
	uint64_t state;
};

static inline uint64_t rand_u64(struct rand *r)
{
	uint64_t z = r->state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

/* Streams of one seed that share nothing. */
static inline struct rand rand_stream(uint64_t seed, uint64_t stream)
{
	struct rand r = {seed * UINT64_C(0xd1342543de82ef95) + stream};

	return (struct rand){rand_u64(&r) ^ stream << 32};
}

static inline uint32_t rand_below(struct rand *r, uint32_t bound)
{
	return (uint32_t)(((rand_u64(r) >> 32) * bound) >> 32);
}

/* In [0, 1). */
static inline double rand_unit(struct rand *r)
{
	return (double)(rand_u64(r) >> 11) * 0x1p-53;
}

static inline double rand_between(struct rand *r, double low, double high)
{
	return low + (high - low) * rand_unit(r);
}

static inline bool rand_chance(struct rand *r, double p)
{
	return rand_unit(r) < p;
}

#define NORMAL_BITS 12
extern float normal_quantiles[1 << NORMAL_BITS];
void rand_init(void); /* once, before any thread */

/* Standard normal, out to 5.2 sigma: two quantiles. */
static inline float rand_normal(struct rand *r)
{
	uint64_t v = rand_u64(r);

	return (normal_quantiles[v >> (64 - NORMAL_BITS)] +
		normal_quantiles[v & ((1 << NORMAL_BITS) - 1)]) *
	       0.70710678f;
}

double rand_exponential(struct rand *r, double mean);
double rand_lognormal(struct rand *r, double median, double sigma);
/* Median and sigma, but within [low, high]. */
double rand_lognormal_in(struct rand *r, double median, double sigma, double low, double high);

#endif
