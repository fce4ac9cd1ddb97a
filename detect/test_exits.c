/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that end on purpose, as it seems: when that is the end of the work, and when the others
 * wait for them in vain. (What ends otherwise: test_detector.c.)
 */
#include <config.h>

#include "detect/test_job.h"

#include <signal.h>

#include "tests/lib/test.h"

static const struct {
	enum exit_how how;
	int value;
} orderly[] = {{EXIT_SIGNAL, SIGTERM}, {EXIT_CODE, 0}};

static unsigned standing_alarms(const struct job_of *j)
{
	struct verdict v[8];
	size_t n = detector_standing(j->d, NULL, v, 8);
	unsigned alarms = 0;

	assert_true(n <= 8);
	for (size_t i = 0; i < n; i++)
		alarms += v[i].level == LEVEL_ALARM;
	return alarms;
}

/* Half of the ranks end in order, and the other half stays where it is. */
static void test_the_rest_waits_in_vain(void **state)
{
	static const struct {
		enum does does; /* of the rest */
		double least_s;
		const char *words;
	} cases[] = {
		{DOES_STEPS, 60, "rank 1: it waits in a collective"},
		{DOES_NOTHING, 60, "rank 1: its process does nothing"},
		{DOES_STOPPED, 60, "rank 1: its process is stopped"},
		{DOES_SLEEP, 600, "rank 1: it sleeps, or waits for input or a disk"},
		{DOES_WORK, 2400, "rank 1: its process is busy"},
	};
	struct job_of j;
	uint64_t from;

	(void)state;
	for (int how = 0; how < 2; how++)
		for (int i = 0; i < 5; i++)
			for (int mute = 0; mute < 2; mute++) {
				job_begins(&j, 2, 1, 2 * SEC);
				j.mute = mute;
				goes_on(&j, 300);
				from = j.now;
				ends(&j, 0, orderly[how].how, orderly[how].value);
				j.does[1] = cases[i].does;
				goes_on(&j, cases[i].least_s - 1);
				assert_int_equal(j.alarms, 0);
				goes_on(&j, 10);
				if (mute) { /* it may work all the same, unless it is stopped */
					assert_int_equal(j.told > 0, cases[i].least_s < 100);
					if (cases[i].does != DOES_STOPPED)
						assert_int_equal(j.alarms, 0);
					detector_free(j.d);
					continue;
				}
				assert_int_equal(j.alarms, 1);
				assert_int_equal(j.alarm.cause, CAUSE_PROCESS_ENDED);
				assert_int_equal(j.alarm.class, CLASS_DEAD);
				assert_int_equal(j.alarm.subject.rank, 0);
				assert_true(j.alarm.since_ns == from);
				test_says(j.alarm.words, cases[i].words);
				test_says(j.alarm.words, "as half of its run's ranks did");
				/* Once. */
				goes_on(&j, 3 * 3600);
				assert_int_equal(j.alarms, 1);
				run_begins(&j, 2);
				assert_int_equal(j.cleared, 1);
				detector_free(j.d);
			}
}

/* Nobody sees what the rest does. */
static void test_the_rest_is_not_seen(void **state)
{
	struct job_of j;

	(void)state;
	job_begins(&j, 4, 1, 2 * SEC);
	goes_on(&j, 300);
	j.answers = false;
	ends(&j, 0, EXIT_SIGNAL, SIGTERM);
	ends(&j, 1, EXIT_SIGNAL, SIGTERM);
	goes_on(&j, 590);
	assert_int_equal(j.alarms, 0);
	goes_on(&j, 20);
	assert_int_equal(j.alarms, 1);
	detector_free(j.d);
}

/* Nobody is missed by the others: they make steps, and are watched as any. */
static void test_the_rest_goes_on(void **state)
{
	struct job_of j;
	uint64_t from;

	(void)state;
	job_begins(&j, 4, 2, 2 * SEC);
	goes_on(&j, 300);
	for (uint32_t r = 2; r < 4; r++) {
		ends(&j, r, EXIT_CODE, 0);
		j.does[r] = DOES_STEPS;
	}
	goes_on(&j, 300);
	assert_int_equal(j.alarms, 0);
	assert_false(j.asked[0] || j.asked[1]);
	j.does[1] = DOES_STOPPED;
	from = j.now;
	goes_on(&j, 10);
	assert_int_equal(j.alarms, 1);
	assert_int_equal(j.alarm.cause, CAUSE_STOPPED);
	assert_int_equal(j.alarm.subject.rank, 1);
	assert_true(delay(&j, from) <= 3 * 2 + 2);
	detector_free(j.d);
}

/* What was told turns out to be none: the others find a way to go on. */
static void test_the_rest_goes_on_late(void **state)
{
	struct job_of j;

	(void)state;
	job_begins(&j, 4, 2, 2 * SEC);
	goes_on(&j, 300);
	for (uint32_t r = 2; r < 4; r++)
		ends(&j, r, EXIT_SIGNAL, SIGTERM);
	goes_on(&j, 100);
	assert_int_equal(j.alarms, 1);
	assert_int_equal(j.alarm.cause, CAUSE_PROCESS_ENDED);
	for (uint32_t r = 2; r < 4; r++)
		j.does[r] = DOES_STEPS;
	goes_on(&j, 10);
	assert_int_equal(j.cleared, 1);
	j.alarms = 0;
	ends(&j, 0, EXIT_SIGNAL, SIGSEGV);
	assert_int_equal(j.alarms, 1);
	assert_int_equal(j.alarm.subject.rank, 0);
	detector_free(j.d);
}

/* The work is done: ranks end one after the other, the last one has something to do for longer. */
static void test_the_end_of_the_work(void **state)
{
	/* DOES_STEPS: it declares that it saves. */
	static const enum does last[] = {DOES_WORK, DOES_SLEEP, DOES_STEPS};
	struct job_of j;

	(void)state;
	for (int how = 0; how < 2; how++)
		for (int i = 0; i < 3; i++) {
			job_begins(&j, 8, 4, 2 * SEC);
			goes_on(&j, 300);
			if (last[i] == DOES_STEPS)
				phase(&j, 7, PHASE_CHECKPOINT, true, 0);
			for (uint32_t r = 0; r < 7; r++) {
				ends(&j, r, orderly[how].how, orderly[how].value);
				j.does[7] = last[i];
				/* Who is told to end does it at once, or a few do. */
				goes_on(&j, how == 0 && r == 0 ? 0.3 : 7);
			}
			goes_on(&j, last[i] == DOES_SLEEP ? 500 : 2000);
			if (last[i] == DOES_STEPS)
				phase(&j, 7, PHASE_CHECKPOINT, false, 0);
			j.does[7] = DOES_NOTHING; /* on its way out */
			goes_on(&j, 50);
			ends(&j, 7, orderly[how].how, orderly[how].value);
			goes_on(&j, 3600);
			assert_int_equal(j.alarms, 0);
			detector_free(j.d);
		}
}

/* Some of the ranks, and no more of them. */
static void test_a_few_are_missed(void **state)
{
	struct job_of j;
	uint64_t from;

	(void)state;
	for (int how = 0; how < 2; how++) {
		job_begins(&j, 16, 4, 2 * SEC);
		goes_on(&j, 300);
		from = j.now;
		ends(&j, 3, orderly[how].how, orderly[how].value);
		goes_on(&j, 0.3);
		for (uint32_t r = 4; r < 7; r++) {
			ends(&j, r, orderly[how].how, orderly[how].value);
			goes_on(&j, 8);
		}
		assert_int_equal(j.alarms, 0);
		goes_on(&j, 5);
		assert_int_equal(j.alarms, 1);
		assert_int_equal(j.alarm.subject.rank, 3);
		assert_true(j.alarm.since_ns == from);
		detector_free(j.d);
	}
	/* One now and then is not an end either. */
	job_begins(&j, 32, 4, 2 * SEC);
	goes_on(&j, 300);
	from = j.now;
	for (uint32_t r = 0; r < 10; r++) {
		ends(&j, r, EXIT_CODE, 0);
		goes_on(&j, 9);
	}
	assert_int_equal(j.alarms, 1);
	assert_true(delay(&j, from) >= 60 && delay(&j, from) < 62);
	detector_free(j.d);
}

/* Half of the ranks end and come back to the same run, one by one. */
static void test_they_come_back(void **state)
{
	struct job_of j;

	(void)state;
	job_begins(&j, 4, 2, 2 * SEC);
	goes_on(&j, 300);
	for (uint32_t r = 0; r < 2; r++)
		ends(&j, r, EXIT_SIGNAL, SIGTERM);
	for (uint32_t r = 0; r < 2; r++) {
		struct sample s;

		goes_on(&j, 40);
		s = sample_of(&j, SAMPLE_MEMBER, r);
		feed(&j, &s);
		j.gone[r] = false;
	}
	goes_on(&j, 40);
	all_do(&j, DOES_STEPS);
	goes_on(&j, 300);
	assert_int_equal(j.alarms, 0);
	j.does[3] = DOES_STOPPED;
	goes_on(&j, 10);
	assert_int_equal(j.alarms, 1);
	detector_free(j.d);
}

/* Who died is not missed: the others make steps for long. What comes then is no consequence. */
static void test_the_others_go_on_without_the_dead(void **state)
{
	struct job_of j;
	uint64_t from;

	(void)state;
	job_begins(&j, 8, 2, 2 * SEC);
	goes_on(&j, 300);
	ends(&j, 3, EXIT_SIGNAL, SIGSEGV);
	assert_int_equal(j.alarms, 1);
	j.does[3] = DOES_STEPS;
	/* The step that was under way, and what a launcher ends. */
	goes_on(&j, 30);
	ends(&j, 4, EXIT_SIGNAL, SIGKILL);
	assert_int_equal(j.alarms, 1);
	j.does[4] = DOES_STEPS;
	goes_on(&j, 120);
	assert_int_equal(j.cleared, 0);

	j.alarms = 0;
	j.does[1] = DOES_STOPPED;
	from = j.now;
	goes_on(&j, 10);
	assert_int_equal(j.alarms, 1);
	assert_int_equal(j.alarm.cause, CAUSE_STOPPED);
	assert_int_equal(j.alarm.subject.rank, 1);
	assert_true(delay(&j, from) <= 3 * 2 + 2);
	j.does[1] = DOES_STEPS;
	goes_on(&j, 10);

	j.alarms = 0;
	ends(&j, 6, EXIT_SIGNAL, SIGSEGV);
	assert_int_equal(j.alarms, 1);
	assert_int_equal(j.alarm.subject.rank, 6);
	ends(&j, 7, EXIT_SIGNAL, SIGSEGV);
	assert_int_equal(j.alarms, 1);
	/* They stand, as any that died, until the job runs again. */
	j.cleared = 0;
	run_begins(&j, 2);
	assert_int_equal(j.cleared, 4);
	detector_free(j.d);
}

/* One step that was under way when it died is none of those, however long it takes. */
static void test_a_long_step_ends_without_the_dead(void **state)
{
	struct job_of j;

	(void)state;
	job_begins(&j, 4, 1, 200 * SEC);
	goes_on(&j, 4000);
	ends(&j, 3, EXIT_SIGNAL, SIGSEGV);
	assert_int_equal(j.alarms, 1);
	j.does[3] = DOES_STEPS;
	goes_on(&j, 219); /* one more beat, or two */
	all_do(&j, DOES_NOTHING);
	goes_on(&j, 3600);
	assert_int_equal(j.alarms, 1);
	detector_free(j.d);
}

/* Who died is there again, in the same run, and dies again. */
static void test_the_dead_comes_back(void **state)
{
	struct job_of j;

	(void)state;
	job_begins(&j, 4, 2, 2 * SEC);
	goes_on(&j, 300);
	for (unsigned i = 1; i <= 3; i++) {
		struct sample s;

		ends(&j, 3, EXIT_SIGNAL, SIGSEGV);
		assert_int_equal(j.alarms, i);
		/* Told again it is the same death. */
		ends(&j, 3, EXIT_SIGNAL, SIGSEGV);
		assert_int_equal(j.alarms, i);
		assert_int_equal(j.told, i);
		assert_int_equal(standing_alarms(&j), 1);
		goes_on(&j, 5);
		s = sample_of(&j, SAMPLE_MEMBER, 3);
		feed(&j, &s);
		assert_int_equal(j.cleared, i);
		j.gone[3] = false;
		j.does[3] = DOES_STEPS;
		goes_on(&j, 20);
	}
	j.alarms = 0;
	j.does[0] = DOES_STOPPED;
	goes_on(&j, 10);
	assert_int_equal(j.alarms, 1);
	assert_int_equal(j.alarm.cause, CAUSE_STOPPED);
	detector_free(j.d);
}

/* Most say goodbye, and who does not ends in order: that is the end of the work. */
static void test_others_said_goodbye(void **state)
{
	struct job_of j;

	(void)state;
	for (int how = 0; how < 2; how++)
		for (uint32_t byes = 4; byes < 8; byes++) {
			job_begins(&j, 8, 4, 2 * SEC);
			goes_on(&j, 300);
			for (uint32_t r = 0; r < 8; r++) {
				if (r < byes)
					ends(&j, r, EXIT_SAID_BYE, 0);
				else
					ends(&j, r, orderly[how].how, orderly[how].value);
				goes_on(&j, 0.3);
			}
			goes_on(&j, 3600);
			assert_int_equal(j.told, 0);
			detector_free(j.d);
		}
	/* One that did not end in order is told all the same; */
	job_begins(&j, 8, 4, 2 * SEC);
	goes_on(&j, 300);
	for (uint32_t r = 0; r < 7; r++)
		ends(&j, r, EXIT_SAID_BYE, 0);
	ends(&j, 7, EXIT_SIGNAL, SIGSEGV);
	assert_int_equal(j.alarms, 1);
	detector_free(j.d);
	/* and one that is missed, as those who wait for it say. */
	job_begins(&j, 8, 4, 2 * SEC);
	goes_on(&j, 300);
	for (uint32_t r = 0; r < 4; r++)
		ends(&j, r, EXIT_SAID_BYE, 0);
	ends(&j, 5, EXIT_SIGNAL, SIGTERM);
	goes_on(&j, 100);
	assert_int_equal(j.alarms, 1);
	assert_int_equal(j.alarm.subject.rank, 5);
	detector_free(j.d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_rest_waits_in_vain),
		cmocka_unit_test(test_the_rest_is_not_seen),
		cmocka_unit_test(test_the_rest_goes_on),
		cmocka_unit_test(test_the_rest_goes_on_late),
		cmocka_unit_test(test_the_end_of_the_work),
		cmocka_unit_test(test_a_few_are_missed),
		cmocka_unit_test(test_they_come_back),
		cmocka_unit_test(test_the_others_go_on_without_the_dead),
		cmocka_unit_test(test_a_long_step_ends_without_the_dead),
		cmocka_unit_test(test_the_dead_comes_back),
		cmocka_unit_test(test_others_said_goodbye),
	};

	return cmocka_run_group_tests_name("exits", tests, NULL, NULL);
}
