/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leaves.h - a set of leaves of an image: bit i % 64 of word i / 64 is leaf i.
 *
 * Where a pointer to one says which leaves a source has, NULL stands for all of them.
 */
#ifndef MODEL_LEAVES_H
#define MODEL_LEAVES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/alloc.h"
#include "base/bytes.h"

/* The empty set of n leaves; NULL: no memory. */
static inline uint64_t *leaves_new(uint64_t n)
{
	return alloc_array(n / 64 + 1, sizeof(uint64_t));
}

static inline void leaves_add(uint64_t *set, uint64_t i)
{
	set[i / 64] |= 1ull << (i % 64);
}

static inline bool leaves_has(const uint64_t *set, uint64_t i)
{
	return !set || (set[i / 64] >> (i % 64) & 1);
}

/* The first leaf from i on that is in the set (or, if !in, is not); end when there is none. */
static inline uint64_t leaves_next(const uint64_t *set, uint64_t i, uint64_t end, bool in)
{
	if (!set)
		return in ? min_u64(i, end) : end;
	while (i < end) {
		uint64_t word = (in ? set[i / 64] : ~set[i / 64]) >> (i % 64);

		if (word)
			return min_u64(i + (uint64_t)__builtin_ctzll(word), end);
		i = (i / 64 + 1) * 64;
	}
	return end;
}

/* Bytes of an image in leaves of the set. */
static inline uint64_t leaves_bytes(const uint64_t *set, uint64_t image_len, uint32_t leaf)
{
	uint64_t n = div_up(image_len, leaf), bytes = 0;

	for (uint64_t i = leaves_next(set, 0, n, true), stop; i < n;
	     i = leaves_next(set, stop, n, true)) {
		stop = leaves_next(set, i, n, false);
		bytes += (stop < n ? stop * leaf : image_len) - i * leaf;
	}
	return bytes;
}

#endif
