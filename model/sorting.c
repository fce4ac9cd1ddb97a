/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Merge-sorts indices, then moves each element once. Pure; any thread.
 *
 * O(n log n) comparisons for any input, as it comes from outside. Short arrays, nearly all, go to
 * qsort_r(), which is fast enough without a poll. Merging indices moves no element, so a sort that
 * is cancelled then leaves the array as it was.
 */
#include <config.h>

#include "model/sorting.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"

#define SHORT 16384u /* elements: some 3 ms */

struct sorting {
	uint8_t *array;
	size_t n, size;
	sorting_compare_fn *compare;
	void *arg;
	struct effort *effort;
	uint32_t *from, *to; /* places in the array; to is scratch */
};

size_t sorting_memory(size_t n)
{
	return n <= SHORT ? 0 : 2 * n * sizeof(uint32_t);
}

static int compare_places(const void *pa, const void *pb, void *arg)
{
	const struct sorting *s = arg;

	return s->compare(s->array + *(const uint32_t *)pa * s->size,
			  s->array + *(const uint32_t *)pb * s->size, s->arg);
}

/* The sorted runs [lo, mid) and [mid, hi) into one. */
static int merge(struct sorting *s, size_t lo, size_t mid, size_t hi)
{
	size_t a = lo, b = mid;
	int r = 0;

	for (size_t i = lo; i < hi && r == 0; i++) {
		if (i % EFFORT_POLL == 0)
			r = effort_spend(s->effort, EFFORT_POLL);
		if (b == hi || (a < mid && compare_places(&s->from[a], &s->from[b], s) < 0))
			s->to[i] = s->from[a++];
		else
			s->to[i] = s->from[b++];
	}
	return r;
}

static int sort_places(struct sorting *s)
{
	int r = 0;

	for (size_t i = 0; i < s->n; i++)
		s->from[i] = (uint32_t)i;
	for (size_t i = 0; i < s->n && r == 0; i += SHORT) {
		size_t n = min_u64(SHORT, s->n - i);

		r = effort_spend(s->effort, n);
		if (r == 0)
			qsort_r(s->from + i, n, sizeof(*s->from), compare_places, s);
	}
	for (size_t run = SHORT; run < s->n && r == 0; run *= 2) {
		uint32_t *merged = s->to;

		for (size_t i = 0; i < s->n && r == 0; i += 2 * run)
			r = merge(s, i, min_u64(i + run, s->n), min_u64(i + 2 * run, s->n));
		s->to = s->from;
		s->from = merged;
	}
	return r;
}

/* Cycle by cycle: from[i] is where what belongs to i lies; UINT32_MAX: it is there. */
static int move_elements(struct sorting *s)
{
	uint8_t kept[SORTING_ELEMENT_MAX];
	size_t moved = 0;

	for (size_t i = 0; i < s->n; i++) {
		size_t at = i;

		if (s->from[i] == UINT32_MAX)
			continue;
		memcpy(kept, s->array + i * s->size, s->size);
		while (s->from[at] != i) {
			size_t next = s->from[at];

			memcpy(s->array + at * s->size, s->array + next * s->size, s->size);
			s->from[at] = UINT32_MAX;
			at = next;
			if (++moved % EFFORT_POLL == 0 && effort_spend(s->effort, EFFORT_POLL)) {
				memcpy(s->array + at * s->size, kept, s->size);
				return -ECANCELED;
			}
		}
		memcpy(s->array + at * s->size, kept, s->size);
		s->from[at] = UINT32_MAX;
	}
	return 0;
}

/* 1: it is. */
static int in_order(const struct sorting *s)
{
	int r = 0;

	for (size_t i = 1; i < s->n && r == 0; i++) {
		if (i % EFFORT_POLL == 1)
			r = effort_spend(s->effort, min_u64(EFFORT_POLL, s->n - i));
		if (s->compare(s->array + (i - 1) * s->size, s->array + i * s->size, s->arg) > 0)
			return r;
	}
	return r ? r : 1;
}

int sorting_sort(void *array, size_t n, size_t size, sorting_compare_fn *compare, void *arg,
		 struct effort *effort)
{
	struct sorting s = {array, n, size, compare, arg, effort, NULL, NULL};
	uint32_t *a, *b;
	int r;

	assert(size <= SORTING_ELEMENT_MAX && n < UINT32_MAX);
	r = in_order(&s);
	if (r)
		return r < 0 ? r : 0;
	if (n <= SHORT) {
		qsort_r(array, n, size, compare, arg);
		return 0;
	}
	a = s.from = alloc_array(n, sizeof(*a));
	b = s.to = alloc_array(n, sizeof(*b));
	r = a && b ? sort_places(&s) : -ENOMEM;
	if (r == 0)
		r = move_elements(&s);
	alloc_free(a);
	alloc_free(b);
	return r;
}
