/* SPDX-License-Identifier: Apache-2.0 */
/* Who has changed when all became slower: nodes with levels of their own, noise and common pauses.
 */
#include <config.h>

#include <math.h>
#include <string.h>

#include "detect/shift.h"
#include "detect/test_fixture.h"

#define SEC   UINT64_C(1000000000)
#define NODES 16

struct fleet {
	struct rng_seeded g;
	struct shift_node nodes[NODES], *all[NODES];
	float scratch[SHIFT_SCRATCH(NODES)];
	double level[NODES], factor[NODES]; /* factor: of its power */
	double psi[NODES];
	double common;
	uint64_t began, now;
};

static void begin(struct fleet *f, uint64_t seed)
{
	memset(f, 0, sizeof(*f));
	rng_seed(&f->g, seed);
	f->began = f->now = 1000 * SEC;
	f->common = 1;
	for (int i = 0; i < NODES; i++) {
		f->all[i] = &f->nodes[i];
		shift_node_init(f->all[i]);
		f->level[i] = 500 * (1 + 0.04 * normal(&f->g));
		f->factor[i] = 1;
	}
}

static void goes_on(struct fleet *f, unsigned minutes)
{
	for (unsigned k = 0; k < 6 * minutes; k++) {
		double pause = k % 37 == 5 ? 0.3 : 1; /* an evaluation */

		f->now += 10 * SEC;
		for (int i = 0; i < NODES; i++) {
			float metrics[METRIC_COUNT];

			for (int m = 0; m < METRIC_COUNT; m++)
				metrics[m] = NAN;
			metrics[METRIC_GPU_POWER] = (float)(f->level[i] * f->factor[i] * f->common *
							    pause * (1 + 0.02 * normal(&f->g)));
			metrics[METRIC_GPU_CLOCK] = (float)(1700 * (1 + 0.01 * normal(&f->g)));
			metrics[METRIC_PSI_CPU] = (float)(f->psi[i] + 0.01 * fabs(normal(&f->g)));
			shift_add(f->all[i], metrics, f->now);
		}
	}
}

static size_t judge(struct fleet *f, uint64_t since)
{
	return shift_judge(f->all, NODES, f->began, since, f->scratch, f->now);
}

/* All wait more from then on, and take less power; one takes less of that. */
static void test_one_works_on(void **state)
{
	static struct fleet f;
	unsigned found = 0;
	uint64_t since;
	size_t who;

	(void)state;
	for (uint64_t seed = 1; seed <= 50; seed++) {
		begin(&f, test_seed(seed));
		goes_on(&f, 30);
		since = f.now;
		f.common = 0.92;
		f.factor[5] = 1.05;
		goes_on(&f, 3);
		assert_int_equal(judge(&f, since), NODES); /* too early */
		goes_on(&f, 9);
		who = judge(&f, since);
		assert_true(who == 5 || who == NODES);
		found += who == 5;
		assert_int_equal(f.nodes[5].worst, METRIC_GPU_POWER);
		goes_on(&f, 40);
		assert_int_equal(judge(&f, since), NODES); /* too long ago */
	}
	assert_true(found >= 47);
}

/* Longer sequences: all change alike. */
static void test_all_change_alike(void **state)
{
	static struct fleet f;
	unsigned wrong = 0;

	(void)state;
	for (uint64_t seed = 1; seed <= 200; seed++) {
		size_t who = NODES;
		uint64_t since;

		begin(&f, test_seed(seed));
		goes_on(&f, 30);
		since = f.now;
		f.common = 0.8;

		for (int i = 0; i < 12 && who == NODES; i++) {
			goes_on(&f, 2);
			who = judge(&f, since);
		}
		wrong += who < NODES;
	}
	assert_true(wrong <= 6); /* 2 are expected; more than 6 once in 200 */
}

/* Who has changed some minutes before, two that have, and too little that is known. */
static void test_not_the_one(void **state)
{
	static struct fleet f;
	uint64_t since;

	(void)state;
	begin(&f, test_seed(7));
	goes_on(&f, 30);
	f.psi[3] = 0.3;
	goes_on(&f, 8);
	since = f.now;
	f.common = 0.8;
	goes_on(&f, 12);
	assert_int_equal(judge(&f, since), NODES);
	f.factor[3] = f.factor[4] = 1.1;
	goes_on(&f, 20);
	assert_int_equal(judge(&f, since), NODES);
	begin(&f, test_seed(8));
	goes_on(&f, 4);
	since = f.now;
	f.common = 0.8;
	f.factor[3] = 1.2;
	goes_on(&f, 20);
	assert_int_equal(judge(&f, since), NODES);
	/* What they did before is another work: one of them did none. */
	begin(&f, test_seed(9));
	f.factor[3] = 0.2;
	goes_on(&f, 30);
	f.factor[3] = 1;
	f.began = f.now;
	goes_on(&f, 3);
	since = f.now;
	f.common = 0.8;
	goes_on(&f, 20);
	assert_int_equal(judge(&f, since), NODES);
	assert_int_equal(shift_judge(f.all, 3, 1, since, f.scratch, f.now), 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_works_on),
		cmocka_unit_test(test_all_change_alike),
		cmocka_unit_test(test_not_the_one),
	};

	return cmocka_run_group_tests_name("shift", tests, NULL, NULL);
}
