/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "detect/goodput.h"

#include "tests/lib/test.h"

#define S 1000000000ull

static void assert_sums(const struct goodput *g, uint64_t all_s)
{
	uint64_t sum = 0;

	for (int i = 0; i < GOODPUT_COUNT; i++)
		sum += g->ns[i];
	assert_int_equal(sum, all_s * S); /* every second went somewhere, once */
}

/* A run that saves twice, dies, goes back to the second, and ends. */
static void test_a_failure(void **state)
{
	struct goodput g = {0};

	(void)state;
	goodput_epoch(&g, 100 * S, false, 0, false);
	goodput_step(&g, 110 * S, 1);
	goodput_save(&g, 200 * S, true);
	goodput_save(&g, 202 * S, false);
	goodput_committed(&g, 203 * S, 10, 3 * S);
	goodput_committed(&g, 303 * S, 20, 3 * S);
	goodput_durable(&g, 40 * S);
	goodput_step(&g, 340 * S, 24);
	goodput_failed(&g, 350 * S); /* 47 s behind the commit */
	goodput_epoch(&g, 370 * S, true, 20, true);
	goodput_epoch(&g, 380 * S, true, 20, true); /* another rank came late */
	goodput_step(&g, 400 * S, 21);
	goodput_over(&g, 500 * S);
	goodput_epoch(&g, 900 * S, true, 20, false);
	assert_int_equal(g.ns[GOODPUT_RESTART], (10 + 30 + 20) * S);
	assert_int_equal(g.ns[GOODPUT_STALL], 2 * S);
	assert_int_equal(g.ns[GOODPUT_AWAY], 400 * S);
	/* The second launch began at 20 too: what came behind it was lost as well. */
	assert_int_equal(g.ns[GOODPUT_REWORK], (47 + 100) * S);
	assert_int_equal(g.ns[GOODPUT_TRAINING], (90 + 1 + 100) * S);
	assert_sums(&g, 800);
	assert_int_equal(g.failures[0], 1);
	assert_int_equal(g.failures[1], 0); /* it had ended on purpose */
	assert_int_equal(g.steps, 20);
	assert_int_equal(g.stall.n, 1);
	assert_int_equal(g.latency[0].n, 2);
	assert_true(goodput_share(&g) > 0.47 && goodput_share(&g) < 0.48); /* 191 of 400 */
}

/* What was saved last is committed when nobody trains any more: that is no training. */
static void test_late_commits(void **state)
{
	struct goodput g = {0};

	(void)state;
	goodput_epoch(&g, 0, false, 0, false);
	goodput_step(&g, 10 * S, 1);
	goodput_committed(&g, 20 * S, 2, S);
	goodput_failed(&g, 30 * S);
	goodput_committed(&g, 32 * S, 4, S); /* all had sealed it */
	goodput_advance(&g, 50 * S);
	assert_int_equal(g.state, GOODPUT_RESTART);
	assert_int_equal(g.ns[GOODPUT_TRAINING], 20 * S);
	goodput_epoch(&g, 50 * S, true, 4, true);
	assert_int_equal(g.ns[GOODPUT_REWORK], 0);
	goodput_committed(&g, 60 * S, 5, S); /* without beats this is the first that is heard */
	assert_int_equal(g.state, GOODPUT_TRAINING);
	goodput_over(&g, 70 * S);
	goodput_committed(&g, 71 * S, 8, S);
	goodput_advance(&g, 100 * S);
	assert_int_equal(g.state, GOODPUT_AWAY);
	assert_int_equal(g.steps, 8);
	assert_int_equal(g.ns[GOODPUT_TRAINING], 30 * S);
	assert_int_equal(g.ns[GOODPUT_AWAY], 30 * S);
	goodput_epoch(&g, 100 * S, true, 8, false);
	assert_int_equal(g.ns[GOODPUT_REWORK], 0);
	assert_int_equal(g.failures[0] + g.failures[1], 1);
	assert_int_equal(g.steps, 8);
	assert_sums(&g, 100);
}

/* A run that loads nothing saves lower steps than its base: marks stay in order, which is what the
 * file that keeps them is checked for. */
static void test_a_run_from_the_beginning(void **state)
{
	struct goodput g = {0};

	(void)state;
	goodput_epoch(&g, 0, false, 0, false);
	for (uint64_t step = 1; step <= 17; step++)
		goodput_committed(&g, step * S, step, 0);
	goodput_over(&g, 20 * S);
	goodput_epoch(&g, 30 * S, true, 17, false);
	goodput_committed(&g, 31 * S, 3, 0);
	goodput_committed(&g, 32 * S, 4, 0);
	assert_int_equal(g.n_marks, 4);
	for (uint32_t i = 0; i < g.n_marks; i++)
		assert_int_equal(g.marks[i].step, i + 1);
}

/* Steps may be numbered from 0 or from 1 on. */
static void test_numbers(void **state)
{
	struct goodput g = {0};

	(void)state;
	goodput_epoch(&g, 0, false, 0, false);
	for (uint64_t i = 0; i < 500; i++) {
		goodput_step(&g, (1 + i) * S, i);
		goodput_step(&g, (1 + i) * S, i);
	}
	assert_int_equal(g.steps, 500);
	goodput_epoch(&g, 501 * S, true, 0, true);
	goodput_step(&g, 502 * S, 0); /* of before */
	assert_int_equal(g.steps, 1);
	goodput_step(&g, 503 * S, 1);
	assert_int_equal(g.steps, 2);
	goodput_epoch(&g, 504 * S, false, 0, false);
	assert_int_equal(g.steps, 0);
	for (uint64_t i = 1; i <= 500; i++)
		goodput_step(&g, (504 + i) * S, i);
	assert_int_equal(g.steps, 500);
}

/* Over a restart of who counts: training goes on, or the restart is another failure. */
static void test_resumed(void **state)
{
	struct goodput kept = {0}, g;

	(void)state;
	goodput_epoch(&kept, 100 * S, false, 0, false);
	goodput_step(&kept, 110 * S, 1);
	goodput_committed(&kept, 200 * S, 10, 3 * S);
	goodput_save(&kept, 210 * S, true); /* under way when it ended */
	g = kept;
	goodput_resume(&g, 7 * S, 60 * S, true, false);
	goodput_step(&g, 17 * S, 20);
	assert_int_equal(g.ns[GOODPUT_TRAINING], (90 + 10 + 60 + 10) * S);
	assert_int_equal(g.ns[GOODPUT_STALL], 0);
	assert_int_equal(g.steps, 20);
	assert_sums(&g, 110 + 60 + 10);
	g = kept;
	goodput_resume(&g, 7 * S, 60 * S, false, false);
	goodput_epoch(&g, 17 * S, true, 10, false);
	goodput_step(&g, 27 * S, 11);
	assert_int_equal(g.ns[GOODPUT_TRAINING], 90 * S);
	assert_int_equal(g.ns[GOODPUT_REWORK], 10 * S);
	assert_int_equal(g.ns[GOODPUT_RESTART], (10 + 60 + 20) * S);
	assert_int_equal(g.failures[1], 1);
	assert_sums(&g, 110 + 60 + 20);
	g = kept;
	goodput_over(&g, 211 * S);
	goodput_resume(&g, 7 * S, 60 * S, false, false);
	goodput_epoch(&g, 17 * S, true, 10, false);
	assert_int_equal(g.ns[GOODPUT_AWAY], 70 * S);
	assert_int_equal(g.failures[1], 0);
	/* It was launched behind what was kept: it is not away for good. */
	g = kept;
	goodput_over(&g, 211 * S);
	goodput_resume(&g, 7 * S, 60 * S, true, false);
	goodput_step(&g, 17 * S, 11);
	assert_int_equal(g.state, GOODPUT_TRAINING);
	/* What was kept is of before its first step, and it has gone on since. */
	g = (struct goodput){0};
	goodput_epoch(&g, 100 * S, false, 0, false);
	goodput_advance(&g, 110 * S);
	kept = g;
	goodput_resume(&g, 7 * S, 60 * S, true, true);
	assert_int_equal(g.ns[GOODPUT_RESTART], 10 * S);
	assert_int_equal(g.ns[GOODPUT_TRAINING], 60 * S);
	/* Not where one of its processes had died: it goes on with the next epoch. */
	g = kept;
	goodput_failed(&g, 110 * S);
	goodput_resume(&g, 7 * S, 60 * S, true, true);
	assert_int_equal(g.ns[GOODPUT_RESTART], 70 * S);
}

static void test_alarms(void **state)
{
	struct goodput g = {0};

	(void)state;
	goodput_epoch(&g, 0, false, 0, false);
	goodput_step(&g, 10 * S, 1);
	goodput_alarm(&g, 100 * S, GOODPUT_HUNG, true, 80 * S);
	goodput_alarm(&g, 110 * S, GOODPUT_HUNG, true, 80 * S); /* told again */
	goodput_alarm(&g, 150 * S, GOODPUT_HUNG, false, 0);
	goodput_alarm(&g, 160 * S, GOODPUT_SLOW, true, 160 * S);
	goodput_advance(&g, 200 * S);
	goodput_advance(&g, 190 * S); /* late news changes nothing */
	assert_int_equal(g.ns[GOODPUT_HUNG], 70 * S);
	assert_int_equal(g.ns[GOODPUT_SLOW], 40 * S);
	assert_int_equal(g.ns[GOODPUT_TRAINING], 80 * S);
	assert_sums(&g, 200);
	assert_string_equal(goodput_word(GOODPUT_HUNG), "hung");
}

/* Nothing was told: nothing is known, and nothing is lost. */
static void test_before_it_begins(void **state)
{
	struct goodput g = {0};

	(void)state;
	goodput_step(&g, 5 * S, 7);
	goodput_committed(&g, 6 * S, 8, S);
	goodput_failed(&g, 9 * S);
	assert_sums(&g, 0);
	assert_true(goodput_share(&g) == 1);
	goodput_epoch(&g, 20 * S, true, 1000, true); /* of before */
	assert_int_equal(g.failures[0], 0);
	for (uint64_t i = 0; i < 3 * GOODPUT_MARKS; i++)
		goodput_committed(&g, (21 + i) * S, 1001 + i, S);
	goodput_epoch(&g, 300 * S, true, 1000, false); /* its mark is forgotten */
	assert_int_equal(g.ns[GOODPUT_REWORK], 0);
	assert_int_equal(g.failures[1], 1);
	assert_int_equal(g.steps, 0);
	assert_sums(&g, 280);
}

/* The trouble is older than the run: what the job did before, it did well. */
static void test_older_alarms(void **state)
{
	struct goodput g = {0};

	(void)state;
	goodput_epoch(&g, 0, false, 0, false);
	goodput_step(&g, 10 * S, 1);
	goodput_committed(&g, 110 * S, 5, S);
	goodput_over(&g, 110 * S);
	goodput_epoch(&g, 200 * S, true, 5, false);
	goodput_step(&g, 210 * S, 6);
	goodput_step(&g, 215 * S, 7);
	goodput_alarm(&g, 220 * S, GOODPUT_SLOW, true, 50 * S);
	assert_int_equal(g.ns[GOODPUT_SLOW], 10 * S);
	assert_int_equal(g.ns[GOODPUT_TRAINING], 100 * S);
	goodput_alarm(&g, 230 * S, GOODPUT_SLOW, false, 0);
	/* Nor what was counted before ckptd started again. */
	goodput_advance(&g, 290 * S);
	goodput_resume(&g, 300 * S, 10 * S, true, false);
	goodput_alarm(&g, 305 * S, GOODPUT_HUNG, true, 100 * S);
	assert_int_equal(g.ns[GOODPUT_HUNG], 5 * S);
	assert_int_equal(g.ns[GOODPUT_TRAINING], 170 * S);
	assert_sums(&g, 305);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_failure),        cmocka_unit_test(test_resumed),
		cmocka_unit_test(test_alarms),           cmocka_unit_test(test_older_alarms),
		cmocka_unit_test(test_before_it_begins), cmocka_unit_test(test_late_commits),
		cmocka_unit_test(test_numbers),
		cmocka_unit_test(test_a_run_from_the_beginning),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
