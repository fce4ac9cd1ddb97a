/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "base/rng.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/list.h"

/* splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014. */
static uint64_t next(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static void seeded_fill(struct rng *rng, void *buf, size_t len)
{
	struct rng_seeded *r = container_of(rng, struct rng_seeded, rng);
	uint8_t *p = buf;

	while (len) {
		uint64_t v = next(&r->state);
		size_t n = len < sizeof(v) ? len : sizeof(v);

		memcpy(p, &v, n);
		p += n;
		len -= n;
	}
}

void rng_seed(struct rng_seeded *r, uint64_t seed)
{
	r->rng.fill = seeded_fill;
	r->state = seed;
}

static void system_fill(struct rng *rng, void *buf, size_t len)
{
	uint8_t *p = buf;

	(void)rng;
	while (len) {
		ssize_t n = getrandom(p, len, 0);

		if (n < 0) {
			/* Not on the kernels we support; a guessable id would be worse. */
			if (errno != EINTR)
				abort();
			continue;
		}
		p += n;
		len -= (size_t)n;
	}
}

void rng_system(struct rng *r)
{
	r->fill = system_fill;
}

uint64_t rng_u64(struct rng *r)
{
	uint64_t v;

	r->fill(r, &v, sizeof(v));
	return v;
}

uint64_t rng_below(struct rng *r, uint64_t bound)
{
	uint64_t v, limit = UINT64_MAX - UINT64_MAX % bound;

	assert(bound > 0);
	do
		v = rng_u64(r);
	while (v >= limit);
	return v % bound;
}
