/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Latency for load: the regression against normal equations solved at once, and simulated disks
 * that become slow, or only busy.
 */
#include <config.h>

#include <math.h>
#include <string.h>

#include "detect/degrade.h"
#include "detect/test_fixture.h"

#define NS UINT64_C(1000000000)

static struct rng_seeded seeded;

/* Latency of a disk: rises with load and with size. */
static double latency(double load, double size)
{
	return 80e-6 * pow(1 + load / 1e9, 1.5) * pow(size / 65536, 0.4);
}

/* ---- Weighted least squares, all at once ---- */

static void solve(double a[4][5])
{
	for (int i = 0; i < 4; i++) {
		for (int k = 4; k >= i; k--)
			a[i][k] /= a[i][i];
		for (int r = 0; r < 4; r++)
			for (int k = 4; r != i && k >= i; k--)
				a[r][k] -= a[r][i] * a[i][k];
	}
}

static void test_as_normal_equations(void **state)
{
	struct degrade d = {0};
	double a[4][5] = {{0}};

	(void)state;
	rng_seed(&seeded, test_seed(41));
	for (int i = 0; i < 4; i++)
		a[i][i] = 0.01;
	for (int n = 0; n < DEGRADE_LEARN; n++) {
		double load = 1e6 + 2e9 * uniform(&seeded), size = 4096 * exp(5 * uniform(&seeded));
		double l = log(1e6 + load) - 17, x[5] = {1, l, l * l, log(size) - 11, 0};

		/* Hardly any noise, and a plain beginning: nothing is cut off. */
		x[4] = 0.5 * x[1] - 0.1 * x[2] + 0.3 * x[3] + 0.02 * (2 * uniform(&seeded) - 1);
		degrade_add(&d, load, size, exp(x[4]), (uint64_t)n * 10 * NS);
		for (int i = 0; i < 4; i++)
			for (int k = 0; k < 5; k++)
				a[i][k] += x[i] * x[k] * pow(DEGRADE_FORGET, DEGRADE_LEARN - 1 - n);
	}
	solve(a);
	for (int i = 0; i < 4; i++)
		assert_true(fabs(d.w[i] - a[i][4]) < 1e-3 * (1 + fabs(a[i][4])));
}

/* Each 10 s; returns when it was first told, 0: never. */
static uint64_t run(struct degrade *d, uint64_t *now_ns, unsigned n, double times, double busier)
{
	uint64_t told = 0;

	for (unsigned i = 0; i < n; i++) {
		double load = (2e7 + 1e9 * pow(uniform(&seeded), 3)) * busier, size = 65536;
		double s = latency(load, size) * times * exp(0.15 * normal(&seeded));

		if (rng_below(&seeded.rng, 20) == 0)
			s *= 1 + 5 * uniform(&seeded); /* somebody flushes */
		*now_ns += 10 * NS;
		degrade_add(d, load, size, s, *now_ns);
		if (!told && degrade_is_slow(d, DEGRADE_NOTE, *now_ns))
			told = *now_ns;
	}
	return told;
}

static void test_slow_and_busy(void **state)
{
	unsigned found = 0;
	uint64_t seed = test_seed(42);

	(void)state;
	for (unsigned round = 0; round < 60; round++) {
		struct degrade d = {0};
		uint64_t now_ns = 5 * NS, began, told;

		rng_seed(&seeded, seed + round);
		assert_int_equal(run(&d, &now_ns, 3000, 1, 1), 0);
		assert_int_equal(run(&d, &now_ns, 3000, 1, 4), 0); /* more work than ever */
		began = now_ns;
		told = run(&d, &now_ns, 360, 2.5, round % 2 ? 1 : 4);
		found += told != 0;
		assert_true(!told || told - began >= 300 * NS);
		if (!told)
			continue;
		assert_true(degrade_times(&d) > 2 && degrade_times(&d) < 3.5);
		assert_true(degrade_is_slow(&d, DEGRADE_ALARM, now_ns));
		run(&d, &now_ns, 360, 1, 1);
		assert_true(degrade_is_well(&d));
	}
	print_message("%u of 60 found\n", found);
	assert_true(found >= 55);
}

static void test_pauses_and_constant_load(void **state)
{
	struct degrade d = {0};
	uint64_t now_ns = NS;

	(void)state;
	rng_seed(&seeded, test_seed(43));
	for (unsigned i = 0; i < 100000; i++) {
		now_ns += (i % 1000 == 0 ? 100000 : 10) * NS;
		degrade_add(&d, 5e8, 1 << 20, 1e-3 * exp(0.1 * normal(&seeded)), now_ns);
		assert_false(degrade_is_slow(&d, DEGRADE_NOTE, now_ns));
	}
	for (int i = 0; i < DEGRADE_TERMS; i++)
		assert_true(isfinite(d.w[i]) && isfinite(d.b[i]));
	assert_true(run(&d, &now_ns, 1, 1, 1) == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_as_normal_equations),
		cmocka_unit_test(test_slow_and_busy),
		cmocka_unit_test(test_pauses_and_constant_load),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
