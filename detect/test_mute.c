/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs of which nobody knows how long a step takes, or that tell of no steps at all: what is said
 * of them, and what is not.
 */
#include <config.h>

#include "detect/test_job.h"
#include "tests/lib/test.h"

/* Nobody knows yet how long a step takes, so nobody was looked at before the timeout: whoever works
 * has the time of one who works, whoever does not is told then. */
static void test_before_a_step_is_known(void **state)
{
	/* Steps that were seen: in the run before this one, in this one. A ckptd that begins anew
	 * is told of one. */
	static const struct {
		double before_s, here_s, timeout_s;
	} cases[] = {{20, 0, 1800}, {0, 2, 900}, {0, 1, 900}};
	struct job_of j;
	uint64_t from;

	(void)state;
	for (int i = 0; i < 3; i++)
		for (int works = 0; works < 2; works++) {
			job_begins(&j, 4, 4, SEC);
			if (cases[i].before_s > 0) {
				goes_on(&j, cases[i].before_s);
				run_begins(&j, 2);
			}
			while (j.step < (uint64_t)cases[i].here_s)
				goes_on(&j, 0.05);
			from = j.now;
			all_do(&j, works ? DOES_WORK : DOES_NOTHING);
			goes_on(&j, works ? 2395 : cases[i].timeout_s - 5);
			assert_int_equal(j.alarms, 0);
			goes_on(&j, 30);
			assert_int_equal(j.alarms, 1);
			assert_int_equal(j.alarm.subject.kind, SUBJECT_JOB);
			assert_true(delay(&j, from) > (works ? 2395 : cases[i].timeout_s));
			detector_free(j.d);
		}
}

static void save(struct job_of *j, double s)
{
	for (uint32_t r = 0; r < j->world; r++)
		phase(j, r, PHASE_CHECKPOINT, true, 0);
	goes_on(j, s);
	for (uint32_t r = 0; r < j->world; r++)
		phase(j, r, PHASE_CHECKPOINT, false, 0);
}

/* A trainer that never calls ckpt_beat(), and saves every hour or does not. */
static void test_never_beats(void **state)
{
	struct job_of j;
	uint64_t from;

	(void)state;
	for (int saves = 0; saves < 2; saves++) {
		job_begins(&j, 4, 2, 5 * SEC);
		j.mute = true;
		for (int hour = 0; hour < 6; hour++) {
			goes_on(&j, 1800);
			all_do(&j, hour % 2 ? DOES_WORK : DOES_SLEEP);
			goes_on(&j, 3 * 1800);
			all_do(&j, DOES_STEPS);
			if (saves)
				save(&j, 10);
			run_begins(&j, (uint64_t)hour / 2 + 1);
		}
		assert_int_equal(j.alarms, 0);
		assert_in_range(j.asks, 1, 4 * 6 * 121); /* once a minute */
		/* That it is stopped can be seen all the same, ... */
		j.does[2] = DOES_STOPPED;
		from = j.now;
		goes_on(&j, 130);
		assert_int_equal(j.alarms, 1);
		assert_int_equal(j.alarm.cause, CAUSE_STOPPED);
		assert_int_equal(j.alarm.subject.kind, SUBJECT_RANK);
		assert_int_equal(j.alarm.subject.rank, 2);
		test_says(j.alarm.words, "tells of no steps, and has stood still for 60 s: its "
					 "process is stopped. Let it go on");
		assert_true(delay(&j, from) >= 60);
		j.does[2] = DOES_STEPS;
		goes_on(&j, 5);
		assert_int_equal(j.cleared, 1);
		/* ... of all of them, ... */
		j.alarms = 0;
		all_do(&j, DOES_STOPPED);
		goes_on(&j, 130);
		assert_int_equal(j.alarms, 1);
		assert_int_equal(j.alarm.subject.kind, SUBJECT_JOB);
		all_do(&j, DOES_STEPS);
		goes_on(&j, 5);
		assert_int_equal(j.cleared, 2);
		/* ... and that what it declares does not end. */
		j.alarms = 0;
		phase(&j, 1, PHASE_CHECKPOINT, true, 10);
		j.does[1] = DOES_NOTHING;
		goes_on(&j, 700);
		assert_int_equal(j.alarms, 1);
		assert_int_equal(j.alarm.subject.rank, 1);
		detector_free(j.d);
	}
}

/* Stopped for a moment, now and then: nothing. */
static void test_never_beats_and_is_stopped_for_a_moment(void **state)
{
	struct job_of j;

	(void)state;
	job_begins(&j, 2, 2, 5 * SEC);
	j.mute = true;
	for (int i = 0; i < 200; i++) {
		j.does[1] = DOES_STOPPED;
		goes_on(&j, 50);
		j.does[1] = DOES_STEPS;
		goes_on(&j, 1 + (double)rng_below(&j.g.rng, 60));
	}
	assert_int_equal(j.alarms, 0);
	j.does[1] = DOES_STOPPED;
	j.answers = false; /* nobody sees it */
	goes_on(&j, 3600);
	assert_int_equal(j.alarms, 0);
	detector_free(j.d);
}

/* Only the first rank tells of steps: it is waited for, the others are not. */
static void test_one_tells_for_all(void **state)
{
	static const enum does how[] = {DOES_STOPPED, DOES_NOTHING};
	struct job_of j;
	uint64_t from;

	(void)state;
	for (int i = 0; i < 2; i++) {
		job_begins(&j, 4, 4, 5 * SEC);
		j.mute_from = 1;
		goes_on(&j, 3 * 3600);
		assert_int_equal(j.alarms, 0);
		j.does[0] = how[i];
		from = j.now;
		goes_on(&j, 30);
		assert_int_equal(j.alarms, 1);
		assert_int_equal(j.alarm.subject.rank, 0);
		assert_int_equal(j.alarm.cause, CAUSE_STOPPED);
		assert_true(delay(&j, from) <= 3 * 5 + 2);
		j.does[0] = DOES_STEPS;
		goes_on(&j, 30);
		assert_int_equal(j.cleared, 1);
		j.alarms = 0;
		j.does[3] = DOES_STOPPED;
		goes_on(&j, 130);
		assert_true(j.alarms > 0);
		detector_free(j.d);
	}
}

/* One comes to a run that has gone on for long, in the place of another: the others wait for its
 * first step. */
static void test_comes_late_and_never_starts(void **state)
{
	struct job_of j;
	struct sample s;

	(void)state;
	job_begins(&j, 4, 4, SEC);
	goes_on(&j, 100);
	s = sample_of(&j, SAMPLE_EXIT, 2);
	s.exit.how = EXIT_SAID_BYE;
	feed(&j, &s);
	j.does[2] = DOES_SLEEP;
	s = sample_of(&j, SAMPLE_MEMBER, 2);
	feed(&j, &s);
	goes_on(&j, 1700);
	assert_int_equal(j.alarms, 0); /* they wait for it, as a start may take long */
	goes_on(&j, 800);
	assert_int_equal(j.alarms, 1);
	assert_int_equal(j.alarm.subject.rank, 2);
	detector_free(j.d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_before_a_step_is_known),
		cmocka_unit_test(test_never_beats),
		cmocka_unit_test(test_never_beats_and_is_stopped_for_a_moment),
		cmocka_unit_test(test_one_tells_for_all),
		cmocka_unit_test(test_comes_late_and_never_starts),
	};

	return cmocka_run_group_tests_name("mute", tests, NULL, NULL);
}
