/* SPDX-License-Identifier: Apache-2.0 */
/* Bounds of a fleet, against medians that are found by counting and not by sorting. */
#include <config.h>

#include <math.h>
#include <stdio.h>

#include "base/rng.h"
#include "detect/fleet.h"
#include "tests/lib/test.h"

/* The k-th smallest (from 0): the value with at most k below it and more than k not above it. */
static double kth(const double *v, size_t n, size_t k)
{
	for (size_t i = 0; i < n; i++) {
		size_t below = 0, upto = 0;

		for (size_t j = 0; j < n; j++) {
			below += v[j] < v[i];
			upto += v[j] <= v[i];
		}
		if (below <= k && upto > k)
			return v[i];
	}
	return NAN;
}

static double median_by_counting(const double *v, size_t n)
{
	return (kth(v, n, (n - 1) / 2) + kth(v, n, n / 2)) / 2;
}

static void test_random_fleets(void **state)
{
	uint64_t seed = test_seed(11);
	struct rng_seeded r;

	(void)state;
	rng_seed(&r, seed);
	for (int round = 0; round < 2000; round++) {
		size_t n = 1 + rng_below(&r.rng, 30);
		double v[30], sorted[30], away[30], m, mad, floor = 0.01;
		bool more = rng_below(&r.rng, 2);
		struct fleet_bounds b;

		for (size_t i = 0; i < n; i++)
			sorted[i] = v[i] = 100 + (double)rng_below(&r.rng, round % 3 ? 1000 : 4);
		fleet_bounds(sorted, n, more, floor, &b);
		m = median_by_counting(v, n);
		for (size_t i = 0; i < n; i++)
			away[i] = fabs(v[i] - m);
		mad = median_by_counting(away, n);
		assert_int_equal(b.n, n);
		assert_true(fabs(b.median - m) < 1e-9);
		if (n < FLEET_MIN) {
			assert_true(isinf(b.low) && isinf(b.high));
			continue;
		}
		mad = fmax(5.0 * 1.4826 * mad, floor * m);
		assert_true(more ? fabs(b.low - (m - mad)) < 1e-9 && isinf(b.high)
				 : fabs(b.high - (m + mad)) < 1e-9 && isinf(b.low));
	}
}

static void test_sick_ones_do_not_move_it(void **state)
{
	double v[] = {100, 101, 99, 100, 102, 98, 55, 60, NAN, INFINITY};
	struct fleet_bounds b;

	(void)state;
	fleet_bounds(v, sizeof(v) / sizeof(v[0]), true, 0.05, &b);
	assert_int_equal(b.n, 8);
	assert_false(fleet_within(&b, 60));
	assert_true(fleet_within(&b, 98));
	assert_true(fleet_within(&b, 1000));
	fleet_bounds(v, 0, true, 0.05, &b);
	assert_true(isnan(b.median));
	assert_true(fleet_within(&b, 0));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random_fleets),
		cmocka_unit_test(test_sick_ones_do_not_move_it),
	};

	return cmocka_run_group_tests_name("fleet", tests, NULL, NULL);
}
