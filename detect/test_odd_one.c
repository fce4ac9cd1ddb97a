/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The odd one out: scores against every pair's distance, and simulated groups of nodes with and
 * without one that is not like the others.
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "detect/odd_one.h"
#include "detect/test_fixture.h"

#define NODES_MAX 128
#define NS        UINT64_C(1000000000)

struct world {
	struct rng_seeded rng;
	struct odd_node nodes[NODES_MAX], *all[NODES_MAX];
	double warmer[NODES_MAX], weaker[NODES_MAX]; /* always so */
	float scratch[ODD_SCRATCH(NODES_MAX)];
	unsigned n;
	bool mixed; /* every third node does other work */
	uint64_t now_ns;
	bool ever_odd[NODES_MAX];
};

static void begin(struct world *w, uint64_t seed, unsigned n)
{
	memset(w, 0, sizeof(*w));
	rng_seed(&w->rng, seed);
	w->n = n;
	w->now_ns = 50 * NS;
	for (unsigned i = 0; i < n; i++) {
		odd_node_init(&w->nodes[i]);
		w->all[i] = &w->nodes[i];
		w->warmer[i] = 6 * uniform(&w->rng);
		w->weaker[i] = i % 5 ? 1 : 0.94;
	}
}

static void measure(struct world *w, unsigned i, double load, float *m)
{
	for (int k = 0; k < METRIC_COUNT; k++)
		m[k] = NAN;
	m[METRIC_CPU] = (float)(0.2 + 0.02 * normal(&w->rng));
	m[METRIC_MEMORY] = (float)(0.5 + 0.005 * normal(&w->rng));
	m[METRIC_PSI_IO] = (float)(0.01 * uniform(&w->rng));
	m[METRIC_GPU_BUSY] = (float)(load * (0.95 + 0.02 * normal(&w->rng)));
	m[METRIC_GPU_POWER] = (float)(100 + load * w->weaker[i] * (500 + 15 * normal(&w->rng)));
	m[METRIC_GPU_CLOCK] = (float)(1755 * w->weaker[i] + 5 * normal(&w->rng));
	m[METRIC_GPU_TEMPERATURE] = (float)(58 + w->warmer[i] + normal(&w->rng));
	m[METRIC_NET_SEND] = (float)(load * 2e10 * exp(0.1 * normal(&w->rng)));
	m[METRIC_NET_RETRY] = rng_below(&w->rng.rng, 50) ? 0 : 200; /* a burst */
	m[METRIC_DISK_WRITE] = i ? 0 : 1e8f;
	if (w->mixed && i % 3 == 0) {
		m[METRIC_NET_SEND] *= 0.4f;
		m[METRIC_CPU] += 0.3f;
	}
}

/* All are measured and judged; fault, where not NULL, changes what `who` measures. */
static void round_of(struct world *w, double load, unsigned who,
		     void (*fault)(float *m, struct world *w))
{
	float m[METRIC_COUNT];

	w->now_ns += 10 * NS;
	for (unsigned i = 0; i < w->n; i++) {
		measure(w, i, load, m);
		if (fault && i == who)
			fault(m, w);
		odd_add(&w->nodes[i], m, w->now_ns);
	}
	odd_judge(w->all, w->n, 7, w->mixed, w->scratch, w->now_ns);
	for (unsigned i = 0; i < w->n; i++)
		w->ever_odd[i] |= odd_is_odd(&w->nodes[i], w->now_ns);
}

static unsigned ever_odd(const struct world *w)
{
	unsigned n = 0;

	for (unsigned i = 0; i < w->n; i++)
		n += w->ever_odd[i];
	return n;
}

static void throttled(float *m, struct world *w)
{
	m[METRIC_GPU_CLOCK] *= 0.85f;
	m[METRIC_GPU_POWER] *= 0.88f;
	(void)w;
}

static void hogged(float *m, struct world *w)
{
	m[METRIC_CPU] += 0.4f;
	m[METRIC_PSI_CPU] = 0.5f;
	(void)w;
}

static void hot(float *m, struct world *w)
{
	m[METRIC_GPU_TEMPERATURE] = (float)(88 + normal(&w->rng));
}

static void lossy(float *m, struct world *w)
{
	m[METRIC_NET_RETRY] = (float)(2000 + 500 * normal(&w->rng));
	m[METRIC_NET_SEND] *= 0.7f;
}

static void test_found(void **state)
{
	static void (*const faults[])(float *, struct world *) = {throttled, hogged, hot, lossy};
	static const unsigned sizes[] = {8, 25, 128};
	static struct world w;
	uint64_t seed = test_seed(21);
	unsigned found = 0, wrong = 0, rounds = 0;

	(void)state;
	for (unsigned round = 0; round < 36; round++) {
		unsigned n = sizes[round % 3], who, i;
		enum sample_metric worst[3];

		begin(&w, seed + round, n);
		for (i = 0; i < 60; i++)
			round_of(&w, 1, 0, NULL);
		who = (unsigned)rng_below(&w.rng.rng, n);
		for (i = 0; i < 23; i++) /* 220 s of being candidate at most */
			round_of(&w, 1, who, faults[round % 4]);
		assert_int_equal(ever_odd(&w), 0);
		for (i = 0; i < 12; i++)
			round_of(&w, 1, who, faults[round % 4]);
		rounds++;
		found += w.ever_odd[who];
		wrong += ever_odd(&w) - w.ever_odd[who];
		if (!w.ever_odd[who])
			print_message("missed: fault %u of %u nodes: score %.2f of %.2f\n",
				      round % 4, n, w.nodes[who].score, w.nodes[who].threshold);
		assert_true(odd_worst(&w.nodes[who], worst, 3) >= 1);
		assert_int_equal(odd_is_slowness(&w.nodes[who]), round % 4 == 0);
		for (i = 0; i < 30; i++)
			round_of(&w, 1, 0, NULL);
		assert_true(odd_is_well(&w.nodes[who]));
	}
	print_message("%u of %u found, %u wrong\n", found, rounds, wrong);
	assert_true(found * 100 >= 90 * rounds);
	assert_int_equal(wrong, 0);
}

static void test_quiet(void **state)
{
	static struct world w;
	uint64_t seed = test_seed(22);
	unsigned alarms = 0;

	(void)state;
	for (unsigned round = 0; round < 12; round++) {
		begin(&w, seed + round, round % 3 ? 64 : 5);
		/* A day's worth, with evaluations that all take part in. */
		for (unsigned i = 0; i < 2000; i++)
			round_of(&w, i % 500 > 450 ? 0.2 : 1, 0, NULL);
		alarms += ever_odd(&w);
	}
	assert_int_equal(alarms, 0);
}

static void test_other_work_in_a_group(void **state)
{
	static struct world w;

	(void)state;
	begin(&w, test_seed(26), 9);
	w.mixed = true;
	for (unsigned i = 0; i < 300; i++)
		round_of(&w, 1, 0, NULL);
	assert_int_equal(ever_odd(&w), 0);
	for (unsigned i = 0; i < 40; i++)
		round_of(&w, 1, 3, throttled);
	assert_true(w.ever_odd[3]);
	assert_int_equal(ever_odd(&w), 1);
}

static void test_too_few_are_silent(void **state)
{
	static struct world w;

	(void)state;
	begin(&w, test_seed(23), 3);
	for (unsigned i = 0; i < 200; i++)
		round_of(&w, 1, 1, hogged);
	assert_int_equal(ever_odd(&w), 0);
}

static void test_not_for_being_many(void **state)
{
	static struct world w;
	float m[METRIC_COUNT];

	(void)state;
	begin(&w, test_seed(24), 20);
	for (unsigned i = 0; i < 100; i++) {
		w.now_ns += 10 * NS;
		for (unsigned k = 0; k < w.n; k++) {
			measure(&w, k, 1, m);
			if (k % 3 == 0)
				hogged(m, &w);
			odd_add(&w.nodes[k], m, w.now_ns);
		}
		odd_judge(w.all, w.n, 7, false, w.scratch, w.now_ns);
		for (unsigned k = 0; k < w.n; k++)
			w.ever_odd[k] |= odd_is_odd(&w.nodes[k], w.now_ns);
	}
	assert_int_equal(ever_odd(&w), 0);
}

/* ---- The same from every pair, by sorting, in double ---- */

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double sorted_median(double *a, unsigned n)
{
	qsort(a, n, sizeof(*a), by_value);
	return (a[(n - 1) / 2] + a[n / 2]) / 2;
}

static double deviation(const double *a, unsigned n, double center)
{
	double d[NODES_MAX];

	for (unsigned i = 0; i < n; i++)
		d[i] = fabs(a[i] - center);
	return 1.4826 * sorted_median(d, n);
}

static void oracle_z(const double *y, unsigned n, double floor, double *ret_z)
{
	double a[NODES_MAX], center, sigma;

	memcpy(a, y, n * sizeof(*a));
	center = sorted_median(a, n);
	sigma = fmax(deviation(y, n, center), floor);
	for (unsigned i = 0; i < n; i++)
		ret_z[i] = fmax(-20, fmin(20, (y[i] - center) / sigma));
}

static void test_as_every_pair(void **state)
{
	static struct world w;
	uint64_t seed = test_seed(25);

	(void)state;
	for (unsigned round = 0; round < 100; round++) {
		double z[2][NODES_MAX], y[NODES_MAX], score[NODES_MAX] = {0}, a[NODES_MAX], center;
		float m[METRIC_COUNT];

		begin(&w, seed + round, 4 + round);
		for (int k = 0; k < METRIC_COUNT; k++)
			m[k] = NAN;
		for (unsigned i = 0; i < w.n; i++) {
			m[METRIC_CPU] = (float)uniform(&w.rng);
			m[METRIC_GPU_BUSY] = (float)(0.9 + 0.01 * normal(&w.rng));
			y[i] = m[METRIC_CPU];
			a[i] = m[METRIC_GPU_BUSY];
			odd_add(&w.nodes[i], m, w.now_ns);
		}
		oracle_z(y, w.n, 0.04, z[0]);
		oracle_z(a, w.n, 0.04, z[1]);
		for (unsigned i = 0; i < w.n; i++)
			for (unsigned j = 0; j < w.n; j++)
				score[i] += (fabs(z[0][i] - z[0][j]) + fabs(z[1][i] - z[1][j])) /
					    (w.n - 1);
		odd_judge(w.all, w.n, 1, false, w.scratch, w.now_ns);
		memcpy(a, score, sizeof(a));
		center = sorted_median(a, w.n);
		for (unsigned i = 0; i < w.n; i++) {
			double want = (score[i] - center) /
				      fmax(deviation(score, w.n, center), 0.25 * sqrt(2));

			assert_true(fabs(w.nodes[i].score - want) < 1e-3 * (1 + fabs(want)));
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_found),
		cmocka_unit_test(test_quiet),
		cmocka_unit_test(test_other_work_in_a_group),
		cmocka_unit_test(test_too_few_are_silent),
		cmocka_unit_test(test_not_for_being_many),
		cmocka_unit_test(test_as_every_pair),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
