/* SPDX-License-Identifier: Apache-2.0 */
/* The sort that can be ended, against qsort() and against being ended at any poll. */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "model/sorting.h"
#include "tests/lib/test.h"

struct element {
	uint64_t key, number;
	char rest[100];
};

static int compare(const void *pa, const void *pb, void *arg)
{
	const struct element *a = pa, *b = pb;

	(void)arg;
	if (a->key != b->key)
		return a->key < b->key ? -1 : 1;
	return a->number < b->number ? -1 : a->number > b->number;
}

static void fill(struct rng_seeded *rng, struct element *x, size_t n, uint64_t keys)
{
	for (size_t i = 0; i < n; i++) {
		x[i] = (struct element){.key = rng_below(&rng->rng, keys), .number = i};
		memset(x[i].rest, (int)(i & 0xff), sizeof(x[i].rest));
	}
}

static void test_sorts(void **state)
{
	static const size_t sizes[] = {0, 1, 2, 3, 16383, 16384, 16385, 32768, 40000, 70001};
	struct rng_seeded rng;

	(void)state;
	rng_seed(&rng, test_seed(1));
	for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
		size_t n = sizes[k];
		struct element *x = calloc(n + 1, sizeof(*x)), *y = calloc(n + 1, sizeof(*y));
		struct effort effort = {0};

		fill(&rng, x, n, k % 2 ? 50 : UINT64_MAX);
		memcpy(y, x, n * sizeof(*x));
		assert_int_equal(sorting_sort(x, n, sizeof(*x), compare, NULL, &effort), 0);
		qsort_r(y, n, sizeof(*y), compare, NULL);
		assert_memory_equal(x, y, n * sizeof(*x));
		/* Sorted already, it is looked at once. */
		effort.steps = 0;
		assert_int_equal(sorting_sort(x, n, sizeof(*x), compare, NULL, &effort), 0);
		assert_int_equal(effort.steps, n ? n - 1 : 0);
		free(x);
		free(y);
	}
}

/* The comparison that cancels: at most so many more of them. */
struct ending {
	atomic_bool cancel;
	uint64_t at, calls;
};

static int compare_ending(const void *pa, const void *pb, void *arg)
{
	struct ending *e = arg;

	if (++e->calls == e->at)
		atomic_store(&e->cancel, true);
	return compare(pa, pb, NULL);
}

static void test_ends_when_told(void **state)
{
	enum { N = 60000 };
	struct element *x = calloc(N, sizeof(*x));
	bool *there = calloc(N, sizeof(*there));
	struct rng_seeded rng;
	int ended = 0;

	(void)state;
	rng_seed(&rng, test_seed(2));
	for (int round = 0; round < 100; round++) {
		struct ending e = {.at = 1 + rng_below(&rng.rng, 900000)};
		struct effort effort = {.cancel = &e.cancel};
		int r;

		fill(&rng, x, N, UINT64_MAX);
		r = sorting_sort(x, N, sizeof(*x), compare_ending, &e, &effort);
		assert_true(r == 0 || r == -ECANCELED);
		if (r < 0) {
			ended++;
			/* One short array, or so many places. */
			assert_true(e.calls - e.at <= 16384 * 14);
		}
		memset(there, 0, N * sizeof(*there));
		for (size_t i = 0; i < N; i++) {
			assert_true(x[i].number < N && !there[x[i].number]);
			there[x[i].number] = true;
		}
	}
	assert_true(ended > 25);
	free(x);
	free(there);
}

static void test_no_memory(void **state)
{
	enum { N = 20000 };
	struct element *x = calloc(N, sizeof(*x));
	struct effort effort = {0};
	struct rng_seeded rng;

	(void)state;
	rng_seed(&rng, test_seed(3));
	fill(&rng, x, N, UINT64_MAX);
	for (uint64_t n = 1; n <= 2; n++) {
		alloc_fail_at(n, false);
		assert_int_equal(sorting_sort(x, N, sizeof(*x), compare, NULL, &effort), -ENOMEM);
		alloc_fail_at(0, false);
	}
	free(x);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sorts),
		cmocka_unit_test(test_ends_when_told),
		cmocka_unit_test(test_no_memory),
	};

	return cmocka_run_group_tests_name("sorting", tests, NULL, NULL);
}
