/* SPDX-License-Identifier: Apache-2.0 */
/* test_fixture.h - what tests of the detector share: noise. */
#ifndef DETECT_TEST_FIXTURE_H
#define DETECT_TEST_FIXTURE_H

#include "base/rng.h"
#include "tests/lib/test.h"

/* In [0, 1). */
static inline double uniform(struct rng_seeded *g)
{
	return (double)(rng_u64(&g->rng) >> 11) / (double)(1ull << 53);
}

/* Of the normal law, by the sum of twelve. */
static inline double normal(struct rng_seeded *g)
{
	double sum = -6;

	for (int i = 0; i < 12; i++)
		sum += uniform(g);
	return sum;
}

#endif
