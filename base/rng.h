/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rng.h - random bytes from the outside world: getrandom(2) in programs, a seed in the simulator.
 */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

struct rng {
	void (*fill)(struct rng *, void *buf, size_t len); /* never fails */
};

/* A seeded generator (splitmix64) for tests and the simulator. */
struct rng_seeded {
	struct rng rng;
	uint64_t state;
};
void rng_seed(struct rng_seeded *r, uint64_t seed);
void rng_system(struct rng *r);

uint64_t rng_u64(struct rng *r);
uint64_t rng_below(struct rng *r, uint64_t bound); /* uniform in [0, bound); bound > 0 */

#endif
