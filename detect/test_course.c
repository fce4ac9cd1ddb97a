/* SPDX-License-Identifier: Apache-2.0 */
/* Jumps and drifts of a value, and that the ordinary life of a loss is neither. */
#include <config.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "detect/course.h"
#include "detect/options.h"
#include "detect/rules.h"
#include "detect/test_fixture.h"

#define SEC NS_PER_SEC

static const struct course_options options = {
	.odd_x = 1.5, .jump_x = 5, .cusum_k = 1, .cusum_h = 10};

static void test_one_odd_value_and_a_jump(void **state)
{
	struct course c = {0};
	struct rng_seeded g;

	(void)state;
	rng_seed(&g, test_seed(1));
	for (uint64_t i = 0; i < 200; i++) {
		course_add(&c, 2 + 0.05 * normal(&g), i, &options);
		assert_false(course_is_odd(&c));
	}
	course_add(&c, 30, 200, &options);
	assert_true(course_is_odd(&c) && !c.jumped);
	for (uint64_t i = 201; i < 240; i++)
		course_add(&c, 2, i, &options);
	assert_false(c.odd || c.jumped);
	for (uint64_t i = 240; i < 240 + COURSE_WILD_LASTS; i++) {
		assert_false(c.jumped);
		course_add(&c, 11, i, &options);
	}
	assert_true(c.jumped);
	assert_int_equal(c.odd_ns, 240);
	assert_true(course_level(&c) > 1.9 && course_level(&c) < 2.1);
	for (uint64_t i = 250; i < 250 + COURSE_ANEW * 4; i++) /* that is what it is now */
		course_add(&c, 11, i, &options);
	assert_false(c.odd || c.jumped);
	for (uint64_t i = 600; i < 640; i++)
		course_add(&c, 11, i, &options);
	/* A burst that passes, and twice as much that stays. */
	for (uint64_t i = 640; i < 655; i++)
		course_add(&c, 22, i, &options);
	for (uint64_t i = 655; i < 700; i++)
		course_add(&c, 11, i, &options);
	assert_false(c.jumped || c.drifts);
	for (uint64_t i = 700; i < 700 + COURSE_ODD_LASTS; i++) {
		assert_false(c.jumped);
		course_add(&c, 22, i, &options);
	}
	assert_true(c.jumped);
}

/* A loss that falls as losses do, with noise that neighbours share. */
static double loss_of(uint64_t step, double *shared, struct rng_seeded *g)
{
	*shared = 0.8 * *shared + 0.6 * normal(g);
	return 2 + 6 * pow((double)step + 10, -0.3) + 0.03 * *shared;
}

static void test_ordinary_life_is_quiet(void **state)
{
	struct course c = {0};
	struct rng_seeded g;
	double shared = 0;
	unsigned odd = 0, drifts = 0;

	(void)state;
	rng_seed(&g, test_seed(1));
	for (uint64_t i = 0; i < 200000; i++) {
		course_add(&c, loss_of(i, &shared, &g), i, &options);
		odd += course_is_odd(&c);
		drifts += c.drifts;
	}
	assert_int_equal(odd, 0);
	assert_int_equal(drifts, 0);
}

static void test_slow_drift_is_found(void **state)
{
	struct course c;
	struct rng_seeded g;
	double shared = 0;
	uint64_t i;

	(void)state;
	rng_seed(&g, test_seed(1));
	for (double per_step = 0.0005; per_step < 0.01; per_step *= 2) {
		memset(&c, 0, sizeof(c));
		for (i = 1; i < 2000; i++)
			course_add(&c, loss_of(i + 5000, &shared, &g), i, &options);
		assert_false(c.drifts);
		for (; !c.drifts && i < 6000; i++)
			course_add(&c,
				   loss_of(i + 5000, &shared, &g) + per_step * (double)(i - 2000),
				   i, &options);
		assert_true(c.drifts);
		/* Before it has risen by half. */
		assert_true(per_step * (double)(i - 2000) < 2);
		assert_true(c.drift_ns >= 2000 - 20 * COURSE_BLOCK && c.drift_ns <= i);
	}
}

static void steps(struct detector *d, uint64_t from, uint64_t to, double loss, double norm)
{
	for (uint64_t i = from; i < to; i++)
		for (uint32_t r = 0; r < 4; r++) {
			struct sample s = {.kind = SAMPLE_BEAT,
					   .time_ns = i * SEC,
					   .rank = r,
					   .device = SAMPLE_NONE};

			/* One rank's own data is always odd: the median does not see it. */
			s.beat = (struct sample_beat){
				.step = i,
				.flags = BEAT_LOSS | BEAT_GRAD_NORM,
				.loss = r == 3 ? 1e200 : loss + 0.01 * (double)(i % 7),
				.grad_norm = norm};
			feed(d, &s);
		}
}

static void test_jump_is_a_note_and_then_an_alarm(void **state)
{
	struct told told = {0};
	struct detector *d;
	struct sample s = {.kind = SAMPLE_JOB,
			   .node = SAMPLE_NONE,
			   .rank = SAMPLE_NONE,
			   .device = SAMPLE_NONE};

	(void)state;
	d = told_detector(&told, NULL, NULL);
	steps(d, 1, 100, 2, 1);
	assert_int_equal(told.alarms + told.notes, 0);
	steps(d, 100, 101, 20, 1);
	steps(d, 101, 140, 2, 1);
	assert_int_equal(told.notes, 1);
	assert_int_equal(told.cleared, 1);
	steps(d, 140, 150, 20, 50);
	assert_int_equal(told.alarms, 1);
	assert_int_equal(told.last.cause, CAUSE_JUMP);
	assert_int_equal(told.last.class, CLASS_DIVERGING);
	assert_int_equal(told.last.subject.kind, SUBJECT_JOB);
	test_says(told.last.words, "job 0 has a loss of 20");
	s.time_ns = 200 * SEC;
	s.run.begins = true;
	s.run.epoch = 2;
	feed(d, &s);
	assert_int_equal(told.cleared, 2);
	steps(d, 201, 400, 2, 1);
	for (uint64_t i = 0; i < 400; i += 4) /* 40 % up within 400 steps */
		steps(d, 400 + i, 404 + i, 2 + (double)i * 0.002, 1);
	assert_int_equal(told.alarms, 2);
	assert_int_equal(told.last.cause, CAUSE_DRIFT);
	detector_free(d);
}

static void one(struct detector *d, uint64_t at, uint32_t rank, uint64_t step, double loss)
{
	struct sample s = {
		.kind = SAMPLE_BEAT, .time_ns = at * SEC, .rank = rank, .device = SAMPLE_NONE};

	s.beat = (struct sample_beat){.step = step, .flags = BEAT_LOSS, .loss = loss};
	feed(d, &s);
}

/* A wild step number, now and then or first of all, and a run that goes back in place. */
static void test_wild_steps(void **state)
{
	for (int how = 0; how < 4; how++) {
		struct told told = {0};
		struct detector *d;

		(void)state;
		d = told_detector(&told, NULL, NULL);
		if (how == 0)
			one(d, 1, 2, UINT64_C(1) << 62, 2);
		for (uint64_t i = 0; i < 100; i++)
			for (uint32_t r = 0; r < 4; r++)
				one(d, 2 + i, r, 5000 + i, 2 + 0.01 * (double)(i % 7));
		for (uint64_t i = 100; i < 160; i++)
			for (uint32_t r = 0; r < 4; r++) {
				uint64_t step = how == 1 && r == 3 ? (UINT64_C(1) << 62) + i
						: how == 2         ? i
						: how == 3         ? (UINT64_C(1) << 50) + i
								   : 5000 + i;

				one(d, 2 + i, r, step, i < 140 ? 2 + 0.01 * (double)(i % 7) : 20);
			}
		assert_int_equal(told.alarms, 1); /* the jump at the end */
		assert_int_equal(told.last.cause, CAUSE_JUMP);
		/* A not-a-number that somebody cleared is told again, and is over when it is. */
		told = (struct told){0};
		one(d, 200, 1, 6000, NAN);
		detector_advance(d, 201 * SEC);
		assert_int_equal(told.alarms, 1);
		assert_true(detector_clear(d, &told.last.subject, 201 * SEC) > 0);
		one(d, 202, 1, 6001, NAN);
		detector_advance(d, 203 * SEC);
		assert_int_equal(told.alarms, 2);
		assert_int_equal(told.last.cause, CAUSE_NOT_A_NUMBER);
		detector_free(d);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_odd_value_and_a_jump),
		cmocka_unit_test(test_ordinary_life_is_quiet),
		cmocka_unit_test(test_slow_drift_is_found),
		cmocka_unit_test(test_jump_is_a_note_and_then_an_alarm),
		cmocka_unit_test(test_wild_steps),
	};

	return cmocka_run_group_tests_name("course", tests, NULL, NULL);
}
