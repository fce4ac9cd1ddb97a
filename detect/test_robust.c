/* SPDX-License-Identifier: Apache-2.0 */
/* Selection, windows and weights against sorting and counting. */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "detect/robust.h"
#include "tests/lib/test.h"

static struct rng_seeded seeded;

static int by_value(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

/* Few different values, so that many are equal; or many. */
static float some_value(unsigned kinds)
{
	return (float)rng_below(&seeded.rng, kinds) / 7 - 3;
}

static float oracle_median(const float *a, size_t n)
{
	float s[600];

	memcpy(s, a, n * sizeof(*s));
	qsort(s, n, sizeof(*s), by_value);
	return n % 2 ? s[n / 2] : s[n / 2 - 1] + (s[n / 2] - s[n / 2 - 1]) / 2;
}

static float oracle_mad(const float *a, size_t n)
{
	float d[600], m = oracle_median(a, n);

	for (size_t i = 0; i < n; i++)
		d[i] = fabsf(a[i] - m);
	return oracle_median(d, n);
}

static void test_select_is_sorting(void **state)
{
	float a[600], b[600], s[600];

	(void)state;
	rng_seed(&seeded, test_seed(1));
	for (unsigned round = 0; round < 4000; round++) {
		size_t n = 1 + rng_below(&seeded.rng, round % 8 ? 40 : 600);
		size_t k = rng_below(&seeded.rng, n);
		unsigned kinds = round % 3 ? 1000000 : 3;

		for (size_t i = 0; i < n; i++)
			a[i] = round % 5 ? some_value(kinds) : (float)(round % 10 ? i : n - i);
		memcpy(s, a, sizeof(s));
		memcpy(b, a, sizeof(s));
		qsort(s, n, sizeof(*s), by_value);
		assert_true(select_nth(b, n, k) == s[k]);
		for (size_t i = 0; i < n; i++)
			assert_true(i < k ? b[i] <= b[k] : b[i] >= b[k]);
		qsort(b, n, sizeof(*b), by_value);
		assert_memory_equal(b, s, n * sizeof(*s)); /* nothing lost */
		memcpy(b, a, sizeof(s));
		assert_true(median_of(b, n) == oracle_median(a, n));
		memcpy(b, a, sizeof(s));
		assert_true(mad_of(b, n, oracle_median(a, n)) == oracle_mad(a, n));
	}
}

static void test_median_without_one(void **state)
{
	float a[20], others[20];

	(void)state;
	rng_seed(&seeded, test_seed(2));
	for (unsigned round = 0; round < 500; round++) {
		size_t n = 2 + rng_below(&seeded.rng, 18);

		for (size_t i = 0; i < n; i++)
			a[i] = some_value(round % 2 ? 5 : 5000);
		qsort(a, n, sizeof(*a), by_value);
		for (size_t i = 0; i < n; i++) {
			memcpy(others, a, sizeof(a));
			memmove(&others[i], &others[i + 1], (n - 1 - i) * sizeof(*a));
			assert_true(median_without(a, n, i) == oracle_median(others, n - 1));
		}
	}
}

static void test_window_is_the_newest(void **state)
{
	(void)state;
	rng_seed(&seeded, test_seed(3));
	for (unsigned size = 1; size <= WINDOW_MAX; size++) {
		struct window w;
		float all[200];

		window_init(&w, size);
		for (unsigned i = 0; i < 200; i++) {
			unsigned n = i + 1 < size ? i + 1 : size;

			all[i] = some_value(size % 2 ? 4 : 100000);
			window_add(&w, all[i]);
			assert_int_equal(w.n, n);
			assert_true(window_median(&w) == oracle_median(&all[i + 1 - n], n));
			assert_true(window_mad(&w) == oracle_mad(&all[i + 1 - n], n));
		}
	}
}

static void test_z_has_a_floor(void **state)
{
	(void)state;
	assert_true(robust_z(12, 10, 0, 0.5) == 4);
	assert_true(fabs(robust_z(10 + MAD_SIGMA, 10, 1, 0.5) - 1) < 1e-12);
	assert_true(robust_z(8, 10, 1e-9, 2) == -1);
}

static void test_ewma_begins_as_a_mean(void **state)
{
	struct ewma e = {0};
	double sum = 0;

	(void)state;
	for (int i = 0; i < 10; i++) {
		ewma_add(&e, i * i, 0.1);
		sum += i * i;
		assert_true(fabs(e.mean - sum / (i + 1)) < 1e-9);
	}
	assert_true(fabs(e.var - (15333 / 10.0 - 28.5 * 28.5)) < 1e-6);
	for (int i = 0; i < 200; i++)
		ewma_add(&e, 5, 0.1);
	assert_true(fabs(e.mean - 5) < 1e-6 && e.var < 1e-6);
	/* Two weights of half the distance are one of the whole. */
	assert_true(fabs((1 - ewma_alpha(5, 30)) * (1 - ewma_alpha(5, 30)) -
			 (1 - ewma_alpha(10, 30))) < 1e-12);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_select_is_sorting),
		cmocka_unit_test(test_median_without_one),
		cmocka_unit_test(test_window_is_the_newest),
		cmocka_unit_test(test_z_has_a_floor),
		cmocka_unit_test(test_ewma_begins_as_a_mean),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
