/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stragglers among simulated ranks: who is made slow is found in time, and whatever is usual in
 * training - slower nodes, jitter, drift, longer sequences, wild steps, warm-up - is not.
 */
#include <config.h>

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "detect/straggler.h"
#include "detect/test_fixture.h"

#define RANKS_MAX 64
#define NS        UINT64_C(1000000000)

/* A role of a job, whose ranks wait for each other at every step. */
struct world {
	struct rng_seeded rng;
	struct straggler_role role;
	struct straggler_rank ranks[RANKS_MAX], *all[RANKS_MAX];
	double pace[RANKS_MAX]; /* of their nodes */
	double fault[RANKS_MAX];
	float scratch[2 * RANKS_MAX];
	unsigned n;
	double step_s, jitter;
	uint64_t step, now_ns;
	double beside; /* work of the rest of the job; 0: there is none */
	bool ever_slow[RANKS_MAX], well[RANKS_MAX]; /* well: since the flags were cleared */
};

static void begin(struct world *w, uint64_t seed, unsigned n, double step_s, double jitter)
{
	memset(w, 0, sizeof(*w));
	rng_seed(&w->rng, seed);
	w->n = n;
	w->step_s = step_s;
	w->jitter = jitter;
	w->now_ns = 1000 * NS;
	for (unsigned i = 0; i < n; i++) {
		w->all[i] = &w->ranks[i];
		w->ranks[i].node = i / 8;
		w->pace[i] = i / 8 % 3 == 1 ? 1.05 + 0.03 * uniform(&w->rng) : 1;
		w->fault[i] = 1;
	}
}

/* One step of all; factor: of all alike. */
static void step(struct world *w, double factor)
{
	double busy[RANKS_MAX], longest = 0;

	for (unsigned i = 0; i < w->n; i++) {
		busy[i] = w->step_s * factor * w->pace[i] * w->fault[i] *
			  exp(w->jitter * normal(&w->rng));
		if (rng_below(&w->rng.rng, 1000) == 0)
			busy[i] *= 10;
		longest = busy[i] > longest ? busy[i] : longest;
	}
	w->now_ns += (uint64_t)(1e9 * longest);
	for (unsigned i = 0; i < w->n; i++)
		straggler_add(&w->role, &w->ranks[i], w->step, busy[i], longest, w->now_ns);
	w->step++;
	w->role.beside_s = (float)(w->beside * 3);
	while (straggler_ready(&w->role, w->n, w->now_ns))
		straggler_judge(&w->role, w->all, w->n, w->scratch, w->now_ns);
	for (unsigned i = 0; i < w->n; i++) {
		w->ever_slow[i] |= straggler_is_slow(&w->ranks[i]);
		w->well[i] |= straggler_is_well(&w->ranks[i]);
	}
}

static void steps(struct world *w, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		step(w, 1);
}

static unsigned ever_slow(const struct world *w)
{
	unsigned n = 0;

	for (unsigned i = 0; i < w->n; i++)
		n += w->ever_slow[i];
	return n;
}

static void test_found_in_time(void **state)
{
	static const unsigned sizes[] = {2, 4, 16, 64};
	static const double paces[] = {15, 1, 0.1};
	static struct world w;
	unsigned rounds = 0, found = 0, in_time = 0, wrong = 0;
	uint64_t seed = test_seed(11);

	(void)state;
	for (unsigned round = 0; round < 240; round++) {
		unsigned n = sizes[round % 4], who, i = 0;
		double pace = paces[round / 4 % 3];
		uint64_t began;

		begin(&w, seed + round, n, pace, 0.02);
		steps(&w, pace < 1 ? 2000 + round : 200 + round % 9);
		assert_int_equal(ever_slow(&w), 0);
		who = (unsigned)rng_below(&w.rng.rng, n);
		w.fault[who] = 1.16 + 0.3 * uniform(&w.rng);
		began = w.now_ns;
		for (; i < 20 || w.now_ns - began < 60 * NS; i++)
			step(&w, 1);
		rounds++;
		in_time += w.ever_slow[who];
		steps(&w, pace < 1 ? 1000 : 40);
		found += w.ever_slow[who];
		wrong += ever_slow(&w) - w.ever_slow[who];
		w.fault[who] = 1;
		w.well[who] = false;
		steps(&w, pace < 1 ? 1500 : 100);
		assert_true(w.well[who]);
	}
	print_message("%u of %u found, %u in time, %u wrong\n", found, rounds, in_time, wrong);
	assert_true(found * 100 >= rounds * 98);
	assert_true(in_time * 100 >= rounds * 90);
	assert_true(wrong * 100 <= rounds);
}

static void test_quiet(void **state)
{
	static struct world w;
	uint64_t seed = test_seed(12);
	unsigned alarms = 0;

	(void)state;
	for (unsigned round = 0; round < 40; round++) {
		begin(&w, seed + round, round % 4 == 0 ? 4 : 64, round % 3 ? 12 : 0.3,
		      round % 5 ? 0.03 : 0.10);
		for (unsigned i = 0; i < 3000; i++) {
			double factor = 1 + 0.2 * sin(i / 300.0); /* a drift that all share */

			if (i > 1000 && i < 2011)
				factor *= 2; /* longer sequences, from the middle of a window on */
			step(&w, factor);
		}
		alarms += ever_slow(&w);
	}
	assert_int_equal(alarms, 0);
}

static void test_slow_from_the_first_step(void **state)
{
	static struct world w;

	(void)state;
	begin(&w, test_seed(13), 32, 10, 0.02);
	w.pace[9] = 1.2;
	steps(&w, 80);
	assert_true(w.ever_slow[9]);
	assert_int_equal(ever_slow(&w), 1);
}

static void test_never_slow_for_being_usual(void **state)
{
	static struct world w;

	(void)state;
	begin(&w, test_seed(14), 48, 10, 0.01);
	for (unsigned i = 0; i < 48; i++)
		w.pace[i] = i % 3 ? 1 : 1.4; /* another kind of work under the same name */
	steps(&w, 600);
	assert_int_equal(ever_slow(&w), 0);
	w.fault[30] = 1.4; /* still seen: its own past */
	steps(&w, 30);
	assert_true(w.ever_slow[30]);
	assert_int_equal(ever_slow(&w), 1);
}

static void test_a_whole_node(void **state)
{
	static struct world w;

	(void)state;
	begin(&w, test_seed(15), 16, 5, 0.02);
	steps(&w, 100);
	for (unsigned i = 8; i < 16; i++)
		w.fault[i] = 1.25;
	steps(&w, 40);
	for (unsigned i = 0; i < 16; i++)
		assert_int_equal(w.ever_slow[i], i >= 8);
}

/* A stage that is one node, or one rank, has only its past and the rest of the job. */
static void test_a_role_on_one_node(void **state)
{
	static const unsigned sizes[] = {1, 2, 8};
	static struct world w;

	(void)state;
	for (unsigned k = 0; k < 3; k++) {
		begin(&w, test_seed(19) + k, sizes[k], 5, 0.02);
		w.beside = 1;
		steps(&w, 100);
		w.beside = 1.5; /* all of the job does more */
		for (unsigned i = 0; i < 16; i++)
			step(&w, 1.5);
		assert_int_equal(ever_slow(&w), 0);
		for (unsigned i = 0; i < 8; i++)
			w.fault[i] = 1.25;
		for (unsigned i = 0; i < 24; i++)
			step(&w, 1.5);
		assert_int_equal(ever_slow(&w), w.n);
		assert_true(w.ranks[0].by_past);
		begin(&w, test_seed(20) + k, sizes[k], 5, 0.02);
		steps(&w, 100); /* nothing is known of the others */
		for (unsigned i = 0; i < 8; i++)
			w.fault[i] = 1.25;
		steps(&w, 40);
		assert_int_equal(ever_slow(&w), 0);
	}
}

/* All of the job does more, for good; then the stage is well again, or moves to another node. */
static void test_a_role_on_one_node_gets_well(void **state)
{
	static struct world w;

	(void)state;
	begin(&w, test_seed(21), 8, 5, 0.02);
	w.beside = 1;
	steps(&w, 100);
	for (unsigned i = 0; i < 8; i++)
		w.fault[i] = 1.3;
	steps(&w, 40);
	assert_int_equal(ever_slow(&w), 8);
	w.beside = 1.5;
	for (unsigned i = 0; i < 400; i++)
		step(&w, 1.5);
	for (unsigned i = 0; i < 8; i++) {
		w.fault[i] = 1;
		w.well[i] = false;
	}
	for (unsigned i = 0; i < 100; i++)
		step(&w, 1.5);
	for (unsigned i = 0; i < 8; i++) {
		assert_true(w.well[i] && !straggler_is_slow(&w.ranks[i]));
		straggler_rank_forget(&w.ranks[i], 1);
		w.ever_slow[i] = false;
	}
	for (unsigned i = 0; i < 400; i++) {
		if (i == 100) /* a node elsewhere is slow for a while */
			w.beside = 2;
		if (i == 250)
			w.beside = 1.5;
		step(&w, 1.5);
	}
	assert_int_equal(ever_slow(&w), 0);
}

/* The slow node has most of the role. */
static void test_most_of_a_role(void **state)
{
	static struct world w;

	(void)state;
	begin(&w, test_seed(18), 12, 5, 0.02);
	steps(&w, 100);
	for (unsigned i = 0; i < 8; i++)
		w.fault[i] = 1.25;
	steps(&w, 40);
	for (unsigned i = 0; i < 12; i++)
		assert_int_equal(w.ever_slow[i], i < 8);
}

static void test_restart_and_those_who_lag(void **state)
{
	static struct world w;

	(void)state;
	begin(&w, test_seed(16), 8, 10, 0.02);
	steps(&w, 60);
	w.step = 12; /* from an older checkpoint */
	straggler_role_restart(&w.role);
	steps(&w, 60);
	assert_int_equal(ever_slow(&w), 0);
	/* Rank 7 is not heard of any more: the others are judged without it, a little later. */
	w.n = 7;
	for (unsigned i = 0; i < 30; i++) {
		step(&w, 1);
		while (straggler_ready(&w.role, 8, w.now_ns))
			straggler_judge(&w.role, w.all, 8, w.scratch, w.now_ns);
	}
	w.fault[3] = 1.3;
	steps(&w, 30);
	assert_true(w.ever_slow[3]);
	assert_int_equal(ever_slow(&w), 1);
}

/* A machine that is short of cores: all are slowed by far, one more than the others. Windows are of
 * steps, and must not last longer for it. */
static void test_found_in_time_where_all_are_slowed(void **state)
{
	static struct world w;
	unsigned found = 0;

	(void)state;
	for (unsigned round = 0; round < 40; round++) {
		begin(&w, test_seed(600) + round, 4, 0.26, 0.02);
		steps(&w, 400);
		for (unsigned i = 0; i < 4; i++)
			w.fault[i] = i == 2 ? 2.4 * 1.35 : 2.4;
		for (uint64_t began = w.now_ns; w.now_ns - began < 60 * NS;)
			step(&w, 1);
		found += w.ever_slow[2];
		assert_int_equal(ever_slow(&w), w.ever_slow[2]);
	}
	assert_true(found >= 38);
}

/* All alike: nobody of them is slow, but all are for a while, until that is the pace. */
static void test_all_slow_alike(void **state)
{
	static struct world w;
	unsigned slow = 0;

	(void)state;
	begin(&w, test_seed(31), 8, 10, 0.02);
	for (unsigned i = 0; i < 800; i++) {
		step(&w, 1);
		assert_false(straggler_all_slow(&w.role));
	}
	for (unsigned i = 0; i < 600; i++) {
		step(&w, 1.3);
		slow += straggler_all_slow(&w.role);
		assert_true(i < 30 || i > 250 || straggler_all_slow(&w.role));
		assert_true(i < 300 || !straggler_all_slow(&w.role));
	}
	assert_true(slow > 200);
	assert_int_equal(ever_slow(&w), 0);
}

/* Steps so much longer that windows get fewer of them: as long as they are, they are. A new run is
 * another matter. */
static void test_all_slow_and_shorter_windows(void **state)
{
	static struct world w;
	uint32_t before;
	unsigned i = 0;

	(void)state;
	begin(&w, test_seed(33), 2, 0.5, 0.002);
	steps(&w, 600);
	before = w.role.steps;
	for (; i < 600 && !straggler_all_slow(&w.role); i++)
		step(&w, 1.8);
	assert_true(straggler_all_slow(&w.role));
	assert_int_equal(w.role.steps, before);
	for (; i < 600 && w.role.steps == before; i++)
		step(&w, 1.8);
	assert_true(w.role.steps < before);
	for (i = 0; i < 200; i++) {
		assert_true(straggler_all_slow(&w.role));
		step(&w, 1.8);
	}
	straggler_role_restart(&w.role);
	assert_false(straggler_all_slow(&w.role));
	assert_int_equal(ever_slow(&w), 0);
}

/* Back without a new run, and a wild number: neither makes it blind for the rest of the run. */
static void test_steps_that_go_back(void **state)
{
	static struct world w;

	(void)state;
	for (int wild = 0; wild < 2; wild++) {
		begin(&w, test_seed(18), 8, 10, 0.02);
		steps(&w, 1000);
		if (wild) {
			straggler_role_restart(&w.role);
			straggler_add(&w.role, &w.ranks[2], (UINT64_C(1) << 62) - 1, 10, 0,
				      w.now_ns);
			straggler_add(&w.role, &w.ranks[2], (UINT64_C(1) << 62), 10, 0, w.now_ns);
		} else {
			w.step = 12;
		}
		steps(&w, 30);
		assert_int_equal(ever_slow(&w), 0);
		w.fault[3] = 1.3;
		steps(&w, 30);
		assert_true(w.ever_slow[3]);
		assert_int_equal(ever_slow(&w), 1);
	}
}

static void test_what_was_done_is_judged_once(void **state)
{
	static struct world w;
	unsigned judged = 0;

	(void)state;
	begin(&w, test_seed(17), 4, 10, 0.02);
	steps(&w, 100);
	w.step += 400; /* nothing was seen for long */
	for (unsigned i = 0; i < 4; i++)
		judged += w.ranks[i].n_windows;
	steps(&w, 16);
	for (unsigned i = 0; i < 4; i++)
		judged -= w.ranks[i].n_windows;
	assert_true(-judged <= 4 * 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_found_in_time),
		cmocka_unit_test(test_quiet),
		cmocka_unit_test(test_slow_from_the_first_step),
		cmocka_unit_test(test_never_slow_for_being_usual),
		cmocka_unit_test(test_a_whole_node),
		cmocka_unit_test(test_a_role_on_one_node),
		cmocka_unit_test(test_a_role_on_one_node_gets_well),
		cmocka_unit_test(test_most_of_a_role),
		cmocka_unit_test(test_restart_and_those_who_lag),
		cmocka_unit_test(test_found_in_time_where_all_are_slowed),
		cmocka_unit_test(test_all_slow_alike),
		cmocka_unit_test(test_all_slow_and_shorter_windows),
		cmocka_unit_test(test_steps_that_go_back),
		cmocka_unit_test(test_what_was_done_is_judged_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
