/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_interval.c - the formulas against closed forms, and against a simulation of a job that fails
 * at random.
 */
#include <config.h>

#include "detect/interval.h"

#include <math.h>

#include "base/rng.h"
#include "tests/lib/test.h"

static void assert_close(double a, double b, double relative)
{
	if (fabs(a - b) > relative * fabs(b))
		print_error("%g, expected %g within %g\n", a, b, relative);
	assert_true(fabs(a - b) <= relative * fabs(b));
}

static void test_closed_forms(void **state)
{
	(void)state;
	assert_close(interval_young(5, 1000), 100, 1e-12);
	assert_close(interval_daly(5, 1000), 100 * (1 + 0.05 / 3 + 0.0025 / 9) - 5, 1e-12);
	assert_close(interval_daly(3000, 1000), 1000, 0);
	assert_close(interval_daly(2000, 1000), 1000, 0);
	assert_true(interval_daly(0, 1000) == 0);
	/* Without failures it takes as long as it takes. */
	assert_close(interval_wall(100, 10, 50, 1e12), 110, 1e-6);
	assert_close(interval_wall(1, 0, 0, 1), exp(1) - 1, 1e-12);
	assert_close(interval_wall(1, 1, 2, 1), exp(2) * (exp(2) - 1), 1e-12);
}

/* Where E(t)/t is least, by looking; and Daly's series is near it as long as C is small. */
static void test_the_exact_one_is_least(void **state)
{
	static const double costs[] = {0.001, 0.1, 1, 10, 100, 1000, 5000};
	const double mtbf = 3600;

	(void)state;
	for (size_t i = 0; i < sizeof(costs) / sizeof(costs[0]); i++) {
		double t = interval_exact(costs[i], mtbf);
		double here = interval_wall(t, costs[i], 60, mtbf) / t;
		double daly = interval_daly(costs[i], mtbf);

		for (double f = 0.5; f < 2; f *= 1.01)
			assert_true(interval_wall(t * f, costs[i], 60, mtbf) / (t * f) >=
				    here * (1 - 1e-12));
		assert_close(interval_wall(daly, costs[i], 60, mtbf) / daly, here,
			     costs[i] < 100 ? 1e-6 : 5e-2);
		if (costs[i] < 100)
			assert_close(daly, t, 1e-3);
	}
}

static void test_rates(void **state)
{
	const struct interval_prior prior = {.mtbf = 86400, .weight = 1};
	struct interval_rate r;

	(void)state;
	interval_rate_of(&prior, 0, 0, &r);
	assert_close(r.per_s, 1.0 / 86400, 1e-12); /* nothing but the prior */
	assert_true(r.trusted == 0);
	/* With shape 1 it is exponential: 0.1054 and 2.3026. */
	assert_close(r.low * 86400, 0.1054, 0.08);
	assert_close(r.high * 86400, 2.3026, 0.02);
	interval_rate_of(&prior, 0, 30 * 86400.0, &r);
	assert_close(r.per_s, 1.0 / (31 * 86400.0), 1e-12); /* none in a month: rarer */
	interval_rate_of(&prior, 400, 400 * 3600.0, &r);
	assert_close(r.per_s, 401 / (400 * 3600.0 + 86400), 1e-12);
	assert_close(r.per_s, 1.0 / 3600, 0.07); /* the prior hardly matters */
	assert_true(r.trusted > 0.94);
	/* 400 failures: the rate is known to 1.28 / 20. */
	assert_close(r.high / r.per_s, 1 + 1.2816 / 20, 0.01);
	assert_close(r.low / r.per_s, 1 - 1.2816 / 20, 0.01);
	assert_true(r.low < r.per_s && r.per_s < r.high);
}

/* Of draws from a Poisson process the interval holds the rate about as often as it says. */
static void test_coverage(void **state)
{
	const struct interval_prior prior = {.mtbf = 1000, .weight = 1};
	struct interval_rate r;
	unsigned holds = 0;
	struct rng_seeded rng;

	(void)state;
	rng_seed(&rng, 7);
	for (int i = 0; i < 2000; i++) {
		double rate = -log(1 - (double)rng_below(&rng.rng, 1u << 30) / (1u << 30)) / 1000;
		double at = 0;
		uint64_t n = 0;

		while ((at += -log(1 - (double)rng_below(&rng.rng, 1u << 30) / (1u << 30)) /
			      fmax(rate, 1e-9)) < 20000)
			n++;
		interval_rate_of(&prior, n, 20000, &r);
		holds += r.low <= rate && rate <= r.high;
	}
	assert_in_range(holds, 1540, 1660); /* 1600 of 2000, sd 18 */
}

static double exponential(struct rng *rng, double mean)
{
	return -log(1 - (double)rng_below(rng, 1u << 30) / (1u << 30)) * mean;
}

/* The share of time lost by a job that saves every t, over n failures. */
static double simulate(struct rng *rng, const struct interval_cost *c, double mtbf, double t,
		       unsigned n)
{
	double wall = 0, done = 0;

	for (unsigned i = 0; i < n; i++) {
		double until = exponential(rng, mtbf);
		/* Whole segments before the failure; the one that it hit is done again. */
		double segments = floor(until / (t + c->stall));

		done += segments * t;
		wall += until;
		/* A failure while it restarts begins the restart anew. */
		for (double again = exponential(rng, mtbf); again < c->restart;
		     again = exponential(rng, mtbf))
			wall += again;
		wall += c->restart;
	}
	return 1 - done / wall;
}

/* The advice loses as little as the best interval that the simulation finds, within 2 %. */
static void test_against_a_simulation(void **state)
{
	static const struct {
		struct interval_cost cost;
		double mtbf;
	} cases[] = {
		{{.stall = 1, .restart = 60}, 3600},    /* memory, a bad day */
		{{.stall = 30, .restart = 600}, 10800}, /* 16,384 GPUs, a disk that stalls */
		{{.stall = 120, .restart = 300}, 1800}, /* hardly worth training */
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct interval_cost *c = &cases[i].cost;
		struct interval_rate rate = {.per_s = 1 / cases[i].mtbf,
					     .low = 0.5 / cases[i].mtbf,
					     .high = 2 / cases[i].mtbf};
		struct interval_advice advice;
		double least = 1, advised;
		struct rng_seeded rng;

		interval_advise(c, &rate, &advice);
		assert_int_equal(advice.why, INTERVAL_BALANCE);
		assert_true(advice.often < advice.seconds && advice.seconds < advice.rarely);
		/* The same failures for every interval: what differs is the interval. */
		for (double f = 0.3; f < 3; f *= 1.1) {
			rng_seed(&rng, 11 + i);
			least = fmin(least, simulate(&rng.rng, c, cases[i].mtbf, advice.seconds * f,
						     200000));
		}
		rng_seed(&rng, 11 + i);
		advised = simulate(&rng.rng, c, cases[i].mtbf, advice.seconds, 200000);
		print_message("every %.0f s: %.2f %% lost, least %.2f %%, by formula %.2f %%\n",
			      advice.seconds, 100 * advised, 100 * least, 100 * advice.loss);
		assert_close(advised, least, 0.02);
		assert_close(advice.loss, advised, 0.02);
	}
}

static void test_bounds_and_steps(void **state)
{
	struct interval_cost c = {.stall = 0, .latency = 40, .restart = 100, .step = 15};
	struct interval_rate rate = {.per_s = 1e-4, .low = 5e-5, .high = 2e-4};
	struct interval_advice a;

	(void)state;
	interval_advise(&c, &rate, &a);
	assert_int_equal(a.why, INTERVAL_BOUND); /* GEMINI: as often as can be */
	assert_close(a.seconds, 40, 0);
	assert_int_equal(a.steps, 3); /* 45 s: one at a time */
	assert_close(a.per_failure, 40 + 20 + 100, 1e-12);
	c.latency = 0;
	interval_advise(&c, &rate, &a);
	assert_int_equal(a.steps, 1); /* every iteration */
	c = (struct interval_cost){.stall = 2, .step = 30};
	interval_advise(&c, &rate, &a);
	assert_int_equal(a.why, INTERVAL_BALANCE);
	assert_close(a.seconds, interval_daly(2, 1e4), 1e-12);
	assert_in_range(a.steps, 6, 7); /* of 199 s */
	assert_true(interval_loss(&c, 1e-4, (double)a.steps * 30) <=
		    interval_loss(&c, 1e-4, a.steps == 6 ? 210 : 180));
	c = (struct interval_cost){0};
	interval_advise(&c, &rate, &a);
	assert_true(a.seconds > 0); /* nothing is known: it does not divide by it */
}

/* Who counts steps by wild numbers thinks that they take no time. */
static void test_wild_steps(void **state)
{
	struct interval_prior prior = {.mtbf = 3600, .weight = 1};
	struct interval_rate r;
	struct interval_advice a;

	(void)state;
	interval_rate_of(&prior, 3, 86400, &r);
	for (double step = 1; step > 1e-320; step /= 1000) {
		struct interval_cost c = {.stall = 1, .latency = 2, .restart = 60, .step = step};

		interval_advise(&c, &r, &a);
		assert_true(a.steps >= 1 && a.steps <= UINT64_C(1000000000000));
		assert_true(a.seconds > 0 && a.seconds < 86400);
	}
}

static void test_two_tiers(void **state)
{
	struct interval_cost c[2] = {{.stall = 1, .restart = 30}, {.stall = 20, .restart = 600}};
	struct interval_rate r[2] = {{.per_s = 1e-3, .low = 5e-4, .high = 2e-3},
				     {.per_s = 1e-5, .low = 5e-6, .high = 2e-5}};
	struct interval_advice a[2];

	(void)state;
	interval_advise_tiers(c, r, a);
	assert_close(a[0].seconds, interval_daly(1, 1e3), 1e-12);
	assert_close(a[1].seconds, interval_daly(20, 1e5), 1e-12);
	/* Nodes die more often than processes: every checkpoint goes to disk. */
	r[0].per_s = 1e-6;
	r[1].per_s = 1e-3;
	interval_advise_tiers(c, r, a);
	assert_int_equal(a[0].why, INTERVAL_JOINT);
	assert_close(a[0].seconds, a[1].seconds, 0);
	assert_close(a[1].seconds, interval_daly(21, 1 / (1e-3 + 1e-6)), 1e-9);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_closed_forms),
		cmocka_unit_test(test_the_exact_one_is_least),
		cmocka_unit_test(test_rates),
		cmocka_unit_test(test_coverage),
		cmocka_unit_test(test_against_a_simulation),
		cmocka_unit_test(test_bounds_and_steps),
		cmocka_unit_test(test_wild_steps),
		cmocka_unit_test(test_two_tiers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
