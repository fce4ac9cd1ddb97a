/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heap.h - the simulator's own memory: never fails, is never swept, belongs to no daemon.
 *
 * base/alloc.h is for the code under test: its allocations fail on purpose and are dropped with
 * the life that made them. The world must outlive both, so it takes memory here.
 */
#ifndef TESTS_SIM_HEAP_H
#define TESTS_SIM_HEAP_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline void *sim_check(void *p)
{
	if (!p) {
		fprintf(stderr, "the simulator is out of memory\n");
		abort();
	}
	return p;
}
static inline void *sim_zero(size_t size)
{
	return sim_check(calloc(1, size ? size : 1));
}
static inline void *sim_resize(void *p, size_t size)
{
	return sim_check(realloc(p, size ? size : 1));
}
static inline void *sim_copy(const void *p, size_t size)
{
	void *q = sim_zero(size);

	if (size)
		memcpy(q, p, size);
	return q;
}
static inline char *sim_str(const char *s)
{
	return sim_copy(s, strlen(s) + 1);
}
/* Room for one more element in an array that doubles. */
#define sim_grow(array, n, cap)                                                                    \
	do {                                                                                       \
		if ((n) == (cap)) {                                                                \
			(cap) = (cap) ? 2 * (cap) : 16;                                            \
			(array) = sim_resize((array), (cap) * sizeof(*(array)));                   \
		}                                                                                  \
	} while (0)

#endif
