/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which stalls of a small job are found, how fast, of whom, and which are none.
 */
#include <config.h>

#include <signal.h>
#include <stdio.h>

#include "detect/test_job.h"
#include "tests/lib/test.h"

static void test_stopped_is_found_in_time(void **state)
{
	static const double steps[] = {0.1, 0.5, 2, 10};
	struct job_of j;
	uint64_t from;

	(void)state;
	for (int i = 0; i < 4; i++) {
		job_begins(&j, 4, 4, (uint64_t)(steps[i] * SEC));
		goes_on(&j, 60 * steps[i]);
		j.does[2] = DOES_STOPPED;
		from = j.now;
		goes_on(&j, 4 * steps[i] + 5);
		assert_int_equal(j.alarms, 1);
		assert_int_equal(j.alarm.cause, CAUSE_STOPPED);
		assert_int_equal(j.alarm.class, CLASS_HUNG);
		assert_int_equal(j.alarm.subject.kind, SUBJECT_RANK);
		assert_int_equal(j.alarm.subject.rank, 2);
		test_says(j.alarm.words, "its process is stopped, 3 other ranks wait for it");
		assert_true(delay(&j, from) <= 3 * steps[i] + 2);
		j.does[2] = DOES_STEPS;
		goes_on(&j, 3 * steps[i] + 1);
		assert_int_equal(j.cleared, 1);
		test_says(j.over.words, "it goes on");
		assert_false(j.asked[0]);
		detector_free(j.d);
	}
}

/* A process that is killed because it hangs does not go on. */
static void test_hung_and_killed(void **state)
{
	static const uint32_t per_node[] = {2, 4, 8}; /* a rank, a node, all of the job */
	static const char *const why[] = {"its process has ended", "its processes have ended",
					  "its processes have ended"};
	struct job_of j;

	(void)state;
	for (int i = 0; i < 3; i++) {
		uint32_t n = i == 0 ? 1 : per_node[i];

		job_begins(&j, 8, per_node[i], SEC);
		goes_on(&j, 60);
		for (uint32_t r = 0; r < n; r++)
			j.does[r] = DOES_NOTHING;
		goes_on(&j, 10);
		assert_int_equal(j.alarms, 1);
		assert_int_equal(j.alarm.subject.kind, i == 0   ? SUBJECT_RANK
						       : i == 1 ? SUBJECT_NODE
								: SUBJECT_JOB);
		for (uint32_t r = 0; r < n; r++)
			ends(&j, r, EXIT_SIGNAL, SIGTERM);
		goes_on(&j, 2);
		assert_true(j.cleared >= 1);
		assert_int_equal(j.over.class, CLASS_HUNG);
		test_says(j.over.words, why[i]);
		detector_free(j.d);
	}
}

static void test_deadlock_is_found_in_time(void **state)
{
	static const double steps[] = {0.1, 0.5, 2, 10};
	struct job_of j;
	uint64_t from;

	(void)state;
	for (int sync = 0; sync < 2; sync++)
		for (int i = 0; i < 4; i++) {
			job_begins(&j, 4, 2, (uint64_t)(steps[i] * SEC));
			j.says_sync = sync;
			goes_on(&j, 60 * steps[i]);
			j.does[1] = DOES_NOTHING;
			from = j.now;
			goes_on(&j, 4 * steps[i] + 5);
			assert_int_equal(j.alarms, 1);
			assert_int_equal(j.alarm.cause, CAUSE_STOPPED);
			/* Where nobody says that he waits, all are equal. */
			assert_int_equal(j.alarm.subject.kind, sync ? SUBJECT_RANK : SUBJECT_JOB);
			assert_int_equal(j.alarm.subject.rank, sync ? 1 : SAMPLE_NONE);
			assert_true(delay(&j, from) <= 3 * steps[i] + 2);
			detector_free(j.d);
		}
}

static void test_whole_node(void **state)
{
	struct job_of j;

	(void)state;
	job_begins(&j, 32, 8, SEC);
	goes_on(&j, 100);
	for (uint32_t r = 8; r < 16; r++)
		j.does[r] = DOES_NOTHING;
	goes_on(&j, 10);
	assert_int_equal(j.alarms, 1);
	assert_int_equal(j.alarm.subject.kind, SUBJECT_NODE);
	assert_int_equal(j.alarm.subject.node, 1);
	detector_free(j.d);
}

/* If the job has no ranks on another node, a faulty node looks like idle ranks, whichever of them
 * reports no steps. */
static void test_whole_node_without_others(void **state)
{
	struct job_of j;

	(void)state;
	job_begins(&j, 8, 8, SEC);
	j.mute_from = 6;
	goes_on(&j, 100);
	for (uint32_t r = 0; r < 6; r++)
		j.does[r] = DOES_STOPPED;
	goes_on(&j, 10);
	assert_true(j.alarms > 0);
	assert_int_equal(j.alarm.class, CLASS_HUNG);
	assert_int_not_equal(j.alarm.subject.kind, SUBJECT_NODE);
	detector_free(j.d);
}

/* A node verdict that one job alone supports belongs to that job's owner. */
static void test_whole_node_of_an_owner(void **state)
{
	struct job_of j;
	struct sample s;

	(void)state;
	job_begins(&j, 32, 8, SEC);
	s = sample_of(&j, SAMPLE_NAME, SAMPLE_NONE);
	snprintf(s.name.text, sizeof(s.name.text), "lm");
	s.name.owned = true;
	s.name.owner = 1000;
	feed(&j, &s);
	goes_on(&j, 100);
	for (uint32_t r = 8; r < 16; r++)
		j.does[r] = DOES_NOTHING;
	goes_on(&j, 10);
	assert_int_equal(j.alarms, 1);
	assert_int_equal(j.alarm.subject.kind, SUBJECT_NODE);
	assert_true(j.alarm.of_one_owner);
	assert_int_equal(j.alarm.owner, 1000);
	detector_free(j.d);
}

static void test_nobody_answers(void **state)
{
	struct job_of j;
	uint64_t from;

	(void)state;
	job_begins(&j, 8, 8, SEC);
	j.answers = false;
	goes_on(&j, 300);
	j.does[3] = DOES_NOTHING;
	from = j.now;
	goes_on(&j, 60);
	assert_int_equal(j.alarms, 1);
	assert_int_equal(j.alarm.cause, CAUSE_STALLED);
	assert_int_equal(j.alarm.subject.kind, SUBJECT_JOB);
	assert_true(delay(&j, from) >= 11 && delay(&j, from) <= 30);
	detector_free(j.d);
}

/* Who is behind is known, then nothing is heard of what they do for a while: no other is named. */
static void test_answers_are_late(void **state)
{
	struct job_of j;

	(void)state;
	job_begins(&j, 8, 8, SEC);
	goes_on(&j, 300);
	j.does[3] = DOES_SLEEP;
	goes_on(&j, 15);
	j.answers = false;
	goes_on(&j, 60);
	j.answers = true;
	goes_on(&j, 15);
	assert_int_equal(j.alarms, 0);
	j.answers = false;
	goes_on(&j, 150);
	assert_int_equal(j.alarms, 1);
	assert_int_equal(j.alarm.subject.kind, SUBJECT_JOB);
	detector_free(j.d);
}

static void test_one_step_in_many_takes_ten_times_as_long(void **state)
{
	static const enum does how[] = {DOES_WORK, DOES_SLEEP, DOES_INPUT};
	struct job_of j;

	(void)state;
	for (int answers = 0; answers < 2; answers++) {
		job_begins(&j, 4, 4, 2 * SEC);
		j.answers = answers;
		goes_on(&j, 100);
		for (int i = 0; i < 30; i++) {
			uint32_t r = (uint32_t)rng_below(&j.g.rng, 4);

			j.does[r] = how[i % 3];
			goes_on(&j, 18);
			j.does[r] = DOES_STEPS;
			goes_on(&j, 2 * (20 + (double)rng_below(&j.g.rng, 100)));
		}
		assert_int_equal(j.alarms, 0);
		assert_true(j.asks > 0);
		detector_free(j.d);
	}
}

/* Of another user's process the kernel does not tell what it sleeps for. */
static void test_sleep_of_unknown_kind(void **state)
{
	struct job_of j;
	uint64_t from;

	(void)state;
	for (int sync = 0; sync < 2; sync++) {
		job_begins(&j, 4, 2, 2 * SEC);
		j.unknown_sleep = true;
		j.says_sync = sync;
		goes_on(&j, 100);
		j.does[1] = DOES_SLEEP;
		from = j.now;
		goes_on(&j, sync ? 20 : 100);
		if (sync) { /* others say that they wait for it */
			assert_int_equal(j.alarms, 1);
			assert_int_equal(j.alarm.subject.rank, 1);
			assert_true(delay(&j, from) <= 3 * 2 + 2);
		} else { /* it may wake */
			assert_int_equal(j.alarms, 0);
			goes_on(&j, 40);
			assert_int_equal(j.alarms, 1);
			assert_int_equal(j.alarm.cause, CAUSE_STALLED);
		}
		detector_free(j.d);
	}
	/* A process alone, which nobody waits for, sleeps for a minute. */
	job_begins(&j, 1, 1, 2 * SEC);
	j.unknown_sleep = true;
	goes_on(&j, 100);
	j.does[0] = DOES_SLEEP;
	goes_on(&j, 60);
	assert_int_equal(j.alarms, 0);
	j.does[0] = DOES_STEPS;
	goes_on(&j, 60);
	assert_int_equal(j.alarms, 0);
	j.does[0] = DOES_STOPPED;
	goes_on(&j, 8);
	assert_int_equal(j.alarms, 1);
	detector_free(j.d);
}

/* Nobody tells what its GPU does: who sleeps may wait for that, whether others wait for it or all
 * of them sleep, and one step in many takes ten times as long. */
static void test_gpus_that_nobody_sees(void **state)
{
	struct job_of j;
	uint64_t from;

	(void)state;
	for (int all = 0; all < 2; all++)
		for (int sync = 0; sync < 2; sync++) {
			job_begins(&j, 4, 2, 2 * SEC);
			j.unseen_gpus = true;
			j.says_sync = sync;
			goes_on(&j, 100);
			for (int i = 0; i < 5; i++) {
				for (int r = 0; r < (all ? 4 : 1); r++)
					j.does[r] = DOES_NOTHING;
				goes_on(&j, 18);
				for (int r = 0; r < 4; r++)
					j.does[r] = DOES_STEPS;
				goes_on(&j, 60);
			}
			assert_int_equal(j.alarms, 0);
			for (int r = 0; r < (all ? 4 : 1); r++)
				j.does[r] = DOES_NOTHING;
			from = j.now;
			goes_on(&j, 130);
			assert_int_equal(j.alarms, 1);
			assert_true(delay(&j, from) >= 115);
			j.does[0] = DOES_STEPS;
			detector_free(j.d);
		}
	/* Stopped is stopped. */
	job_begins(&j, 4, 2, 2 * SEC);
	j.unseen_gpus = true;
	goes_on(&j, 100);
	j.does[1] = DOES_STOPPED;
	goes_on(&j, 8);
	assert_int_equal(j.alarms, 1);
	detector_free(j.d);
}

static void test_undeclared_evaluation_of_half_an_hour(void **state)
{
	struct job_of j;

	(void)state;
	for (uint32_t busy = 1; busy <= 8; busy += 7) {
		job_begins(&j, 8, 8, 5 * SEC);
		goes_on(&j, 500);
		for (int i = 0; i < 2; i++) {
			for (uint32_t r = 0; r < busy; r++)
				j.does[r] = DOES_WORK;
			goes_on(&j, 1800);
			for (uint32_t r = 0; r < busy; r++)
				j.does[r] = DOES_STEPS;
			goes_on(&j, 200);
		}
		assert_int_equal(j.alarms, 0);
		detector_free(j.d);
	}
}

/* All others say that they wait for it, and no long phase was ever declared: it may be one. */
static void test_busy_alone_while_others_wait(void **state)
{
	struct job_of j;
	uint64_t from;

	(void)state;
	job_begins(&j, 8, 8, 2 * SEC);
	goes_on(&j, 100);
	j.does[0] = DOES_WORK; /* something for all of them, perhaps */
	goes_on(&j, 1200);
	assert_int_equal(j.alarms, 0);
	j.does[0] = DOES_STEPS;
	goes_on(&j, 100);
	j.does[5] = DOES_WORK;
	from = j.now;
	goes_on(&j, 610);
	assert_int_equal(j.alarms, 1);
	assert_int_equal(j.alarm.subject.rank, 5);
	assert_int_equal(j.alarm.cause, CAUSE_STALLED);
	assert_true(delay(&j, from) >= 595);
	detector_free(j.d);
}

/* Nobody says that he waits: only their GPUs tell who does not. */
static void test_waiting_that_spins(void **state)
{
	static const struct {
		enum does does;
		uint32_t rank;
		double from_s, to_s; /* 0, 0: not within 1200 s */
	} cases[] = {
		{DOES_NOTHING, 3, 24, 30}, /* 12 steps */
		{DOES_STOPPED, 3, 6, 9},
		{DOES_WORK, 3, 300, 310},
		{DOES_WORK, 0, 0, 0}, /* does something for all of them, perhaps */
	};
	struct job_of j;
	uint64_t from;

	(void)state;
	for (int i = 0; i < 4; i++) {
		job_begins(&j, 16, 8, 2 * SEC);
		j.gpus = true;
		j.says_sync = false;
		goes_on(&j, 200);
		for (int k = 0; k < 5; k++) { /* waits for input, and does not say so */
			j.does[k] = DOES_NOTHING;
			goes_on(&j, 18);
			j.does[k] = DOES_STEPS;
			goes_on(&j, 60);
		}
		assert_int_equal(j.alarms, 0);
		from = j.now;
		j.does[cases[i].rank] = cases[i].does;
		goes_on(&j, cases[i].to_s > 0 ? cases[i].to_s : 1200);
		assert_int_equal(j.alarms, cases[i].to_s > 0);
		if (!j.alarms) {
			detector_free(j.d);
			continue;
		}
		assert_int_equal(j.alarm.subject.kind, SUBJECT_RANK);
		assert_int_equal(j.alarm.subject.rank, cases[i].rank);
		assert_true(delay(&j, from) >= cases[i].from_s - 2);
		detector_free(j.d);
	}
}

/* One GPU does nothing, but the nodes do as much as ever: nobody waits for it. */
static void test_nobody_waits(void **state)
{
	struct job_of j;

	(void)state;
	for (int wait = 0; wait < 2; wait++) {
		job_begins(&j, 16, 8, 2 * SEC);
		j.gpus = true;
		j.says_sync = false;
		j.power = 500;
		goes_on(&j, 200);
		j.does[3] = DOES_WORK;
		if (wait)
			j.power = 200;
		goes_on(&j, 330);
		assert_int_equal(j.alarms, wait);
		detector_free(j.d);
	}
}

/* A measurement of GPUs that comes too late is missing in a sample: what little cores do is no rest
 * of a node whose work is measured in watts. */
static void test_a_measurement_is_late(void **state)
{
	struct job_of j;

	(void)state;
	job_begins(&j, 16, 8, 2 * SEC);
	j.gpus = true;
	j.says_sync = false;
	j.power = 500;
	j.cpu = 0.4f;
	goes_on(&j, 200);
	j.does[3] = DOES_WORK;
	goes_on(&j, 330);
	j.power = 0;
	goes_on(&j, 20);
	assert_int_equal(j.alarms, 0);
	j.power = 500;
	goes_on(&j, 20);
	j.power = 200;
	goes_on(&j, 20);
	assert_int_equal(j.alarms, 1);
	detector_free(j.d);
}

/* All of them wait, and spin: for the network, which may come back. Where nobody sees GPUs, all
 * nodes must have rested for as long as collectives wait, without a break. */
static void test_all_wait(void **state)
{
	struct job_of j;

	(void)state;
	for (int seen = 0; seen < 2; seen++) { /* asleep until its GPU is done: it may spin */
		job_begins(&j, 16, 8, 2 * SEC);
		j.gpus = seen;
		j.unseen_gpus = !seen;
		goes_on(&j, 200);
		for (int r = 0; r < 16; r++)
			j.does[r] = DOES_WAIT;
		goes_on(&j, 580);
		assert_int_equal(j.alarms, 0);
		goes_on(&j, 40);
		assert_int_equal(j.alarms, 1);
		assert_int_equal(j.alarm.subject.kind, SUBJECT_JOB);
		detector_free(j.d);
	}
	for (int rests = 0; rests < 2; rests++) {
		job_begins(&j, 16, 8, 2 * SEC);
		j.power = 500;
		goes_on(&j, 200);
		for (int r = 0; r < 16; r++)
			j.does[r] = DOES_WORK;
		j.power = 200;
		goes_on(&j, 500);
		j.power = rests ? 200 : 400;
		goes_on(&j, 20);
		j.power = 200;
		goes_on(&j, 400);
		assert_int_equal(j.alarms, rests);
		detector_free(j.d);
	}
}

/* A trainer that declares its long phases: whoever works alone outside of them is stuck. */
static void test_busy_alone_where_phases_are_declared(void **state)
{
	struct job_of j;
	uint64_t from;

	(void)state;
	job_begins(&j, 8, 8, 2 * SEC);
	goes_on(&j, 100);
	phase(&j, 0, PHASE_EVALUATE, true, 0);
	j.does[0] = DOES_WORK;
	goes_on(&j, 700);
	phase(&j, 0, PHASE_EVALUATE, false, 0);
	j.does[0] = DOES_STEPS;
	goes_on(&j, 100);
	assert_int_equal(j.alarms, 0);
	j.does[0] = DOES_WORK;
	from = j.now;
	goes_on(&j, 320);
	assert_int_equal(j.alarms, 1);
	assert_int_equal(j.alarm.subject.rank, 0);
	assert_int_equal(j.alarm.cause, CAUSE_STALLED);
	assert_true(delay(&j, from) >= 295);
	detector_free(j.d);
}

static void test_declared_phases(void **state)
{
	struct job_of j;
	uint64_t from;

	(void)state;
	job_begins(&j, 4, 4, SEC);
	goes_on(&j, 60);
	/* Half an hour of one rank while the others wait for it; nobody knows how long it takes. */
	for (int i = 0; i < 3; i++) {
		phase(&j, 0, PHASE_EVALUATE, true, 0);
		j.does[0] = DOES_SLEEP;
		goes_on(&j, 1800);
		phase(&j, 0, PHASE_EVALUATE, false, 0);
		j.does[0] = DOES_STEPS;
		goes_on(&j, 60);
	}
	assert_int_equal(j.alarms, 0);
	/* Stopped in the middle of a checkpoint that was said to take 10 s. */
	phase(&j, 0, PHASE_CHECKPOINT, true, 10);
	j.does[0] = DOES_SLEEP;
	from = j.now;
	goes_on(&j, 400);
	assert_int_equal(j.alarms, 1);
	assert_int_equal(j.alarm.subject.rank, 0);
	assert_true(delay(&j, from) >= 60 && delay(&j, from) < 120);
	test_says(j.alarm.words, "has been in phase checkpoint for");
	detector_free(j.d);
}

/* One long checkpoint of many does not hide for good who is stopped in one; five are the new pace.
 */
static void test_stopped_in_a_phase_after_a_long_one(void **state)
{
	for (int longer = 1; longer < 7; longer += 5) {
		struct job_of j;
		uint64_t from;

		(void)state;
		job_begins(&j, 4, 4, SEC);
		goes_on(&j, 60);
		for (int i = 0; i < 30; i++) {
			for (uint32_t r = 0; r < 4; r++)
				phase(&j, r, PHASE_CHECKPOINT, true, 0);
			j.does[0] = DOES_WORK;
			goes_on(&j, i >= 24 && i < 24 + longer ? 100 : 5);
			j.does[0] = DOES_STEPS;
			for (uint32_t r = 0; r < 4; r++)
				phase(&j, r, PHASE_CHECKPOINT, false, 0);
			goes_on(&j, 20);
		}
		assert_int_equal(j.alarms, 0);
		for (uint32_t r = 0; r < 4; r++)
			phase(&j, r, PHASE_CHECKPOINT, true, 0);
		j.does[2] = DOES_STOPPED;
		from = j.now;
		goes_on(&j, 40);
		assert_int_equal(j.alarms, longer == 1);
		if (longer == 1)
			assert_true(delay(&j, from) <= 3 * 5 + 2);
		goes_on(&j, 400);
		assert_int_equal(j.alarms, 1);
		assert_int_equal(j.alarm.subject.rank, 2);
		detector_free(j.d);
	}
}

static void test_longer_steps_are_the_new_pace(void **state)
{
	struct job_of j;

	(void)state;
	job_begins(&j, 4, 4, 2 * SEC);
	goes_on(&j, 400);
	j.usual_ns = 4 * SEC;
	goes_on(&j, 800);
	j.usual_ns = 14 * SEC;
	goes_on(&j, 1400);
	assert_int_equal(j.alarms, 0);
	j.does[0] = DOES_STOPPED;
	goes_on(&j, 60);
	assert_int_equal(j.alarms, 1);
	detector_free(j.d);
}

static void test_restart_keeps_what_was_learned(void **state)
{
	struct job_of j;

	(void)state;
	job_begins(&j, 4, 4, SEC);
	goes_on(&j, 100);
	for (uint64_t epoch = 2; epoch < 6; epoch++) {
		for (uint32_t r = 0; r < 4; r++) {
			struct sample s = sample_of(&j, SAMPLE_EXIT, r);

			s.exit.how = EXIT_SAID_BYE;
			feed(&j, &s);
			j.does[r] = DOES_NOTHING;
		}
		goes_on(&j, 300);
		run_begins(&j, epoch);
		j.this_ns = 200 * SEC; /* reads its data, compiles */
		goes_on(&j, 230);
	}
	assert_int_equal(j.alarms, 0);
	j.does[3] = DOES_NOTHING;
	goes_on(&j, 6);
	assert_int_equal(j.alarms, 1);
	assert_int_equal(j.alarm.subject.rank, 3);
	detector_free(j.d);
}

/* The machine sleeps for an hour, with and without the detector's own timer in between. */
static void test_everything_sleeps(void **state)
{
	struct job_of j;

	(void)state;
	for (int timer = 0; timer < 2; timer++) {
		job_begins(&j, 4, 2, 5 * SEC);
		goes_on(&j, 300);
		for (int i = 0; i < 4; i++) {
			uint64_t wakes = j.now + 3600 * SEC;

			while (timer && detector_next(j.d) < wakes)
				detector_advance(j.d, detector_next(j.d));
			j.now = wakes;
			j.step_begins = j.now - SEC; /* goes on where it was */
			goes_on(&j, 100);
		}
		if (j.alarms)
			print_message("%d %s %f\n", timer, j.alarm.words, (double)j.alarm_ns / 1e9);
		assert_int_equal(j.alarms, 0);
		j.does[1] = DOES_STOPPED;
		goes_on(&j, 20);
		assert_int_equal(j.alarms, 1);
		detector_free(j.d);
	}
}

static void test_never_starts(void **state)
{
	struct job_of j;

	(void)state;
	for (int told = 0; told < 2; told++) {
		job_begins(&j, 4, 4, SEC);
		if (told)
			goes_on(&j, 10);
		run_begins(&j, 2);
		j.does[2] = DOES_SLEEP;
		goes_on(&j, 1700);
		assert_int_equal(j.alarms, 0);
		goes_on(&j, 200);
		assert_int_equal(j.alarms, told); /* else it may never tell of steps */
		if (told)
			test_says(j.alarm.words, "has finished no step in");
		detector_free(j.d);
	}
}

/* The first rank has said goodbye before the second one comes, which ckptd takes for the end of the
 * run, for a moment: who has gone is not waited for. */
static void test_run_goes_on(void **state)
{
	struct job_of j;
	struct sample s;

	(void)state;
	job_begins(&j, 2, 2, SEC);
	s = sample_of(&j, SAMPLE_EXIT, 0);
	s.exit.how = EXIT_SAID_BYE;
	feed(&j, &s);
	s = sample_of(&j, SAMPLE_JOB, SAMPLE_NONE);
	s.run.epoch = 1;
	s.run.world = 2;
	feed(&j, &s); /* ends */
	j.now += SEC;
	s.time_ns = j.now;
	s.run.begins = true;
	feed(&j, &s);
	s = sample_of(&j, SAMPLE_MEMBER, 1);
	feed(&j, &s);
	for (uint64_t i = 1; i < 4000; i++) {
		j.now += SEC;
		s = sample_of(&j, SAMPLE_BEAT, 1);
		s.beat.step = i;
		feed(&j, &s);
	}
	assert_int_equal(j.alarms, 0);
	assert_false(j.asked[0]);
	/* It is watched: nothing is left of the moment. */
	j.does[0] = j.does[1] = DOES_STOPPED;
	goes_on(&j, 20);
	assert_int_equal(j.alarms, 1);
	assert_int_equal(j.alarm.subject.rank, 1);
	detector_free(j.d);
}

/* Thousands of steps with all that is ordinary: no alarm, whatever the seed. */
static void test_random_quiet_life(void **state)
{
	struct job_of j;
	uint64_t epoch = 1;

	(void)state;
	job_begins(&j, 8, 4, 3 * SEC);
	goes_on(&j, 120);
	for (int i = 0; i < 300; i++) {
		uint32_t r = (uint32_t)rng_below(&j.g.rng, 8);

		switch (rng_below(&j.g.rng, 8)) {
		case 0:
			j.does[r] = DOES_WORK;
			goes_on(&j, 5 + (double)rng_below(&j.g.rng, 590));
			break;
		case 1:
			j.does[r] = DOES_SLEEP;
			goes_on(&j, (double)rng_below(&j.g.rng, 18)); /* under the least timeout */
			break;
		case 2:
			for (uint32_t k = 0; k < 8; k++)
				phase(&j, k, PHASE_CHECKPOINT, true, 0);
			j.does[r] = DOES_INPUT;
			goes_on(&j, 1 + (double)rng_below(&j.g.rng, 100));
			for (uint32_t k = 0; k < 8; k++)
				phase(&j, k, PHASE_CHECKPOINT, false, 0);
			break;
		case 3:
			run_begins(&j, ++epoch);
			j.this_ns = (10 + rng_below(&j.g.rng, 100)) * SEC;
			goes_on(&j, 100);
			break;
		case 4:
			j.now += rng_below(&j.g.rng, 4000) * SEC;
			break;
		default:
			j.usual_ns = SEC + rng_below(&j.g.rng, 5 * SEC);
			break;
		}
		j.does[r] = DOES_STEPS;
		goes_on(&j, (double)rng_below(&j.g.rng, 200));
	}
	if (j.alarms)
		print_message("%s\n", j.alarm.words);
	assert_int_equal(j.alarms, 0);
	detector_free(j.d);
}

static void all_evaluate(struct job_of *j, bool begin)
{
	for (uint32_t r = 0; r < j->world; r++)
		phase(j, r, PHASE_EVALUATE, begin, 0);
	all_do(j, begin ? DOES_NOTHING : DOES_STEPS);
}

/* The end of a phase whose begin was lost, or is of a run before, says nothing of how long it was.
 */
static void test_an_end_without_begin(void **state)
{
	struct job_of j;
	uint64_t from;

	(void)state;
	job_begins(&j, 4, 1, 2 * SEC);
	for (int i = 0; i < 3; i++) {
		goes_on(&j, 300);
		all_evaluate(&j, true);
		goes_on(&j, 60);
		all_evaluate(&j, false);
	}
	goes_on(&j, 3 * 3600);
	all_evaluate(&j, false);
	goes_on(&j, 300);
	assert_int_equal(j.alarms, 0);
	all_evaluate(&j, true);
	from = j.now;
	goes_on(&j, 1200);
	assert_int_equal(j.alarms, 1);
	assert_int_equal(j.alarm.class, CLASS_HUNG);
	assert_true(delay(&j, from) >= 600);
	detector_free(j.d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_stopped_is_found_in_time),
		cmocka_unit_test(test_hung_and_killed),
		cmocka_unit_test(test_deadlock_is_found_in_time),
		cmocka_unit_test(test_whole_node),
		cmocka_unit_test(test_whole_node_without_others),
		cmocka_unit_test(test_whole_node_of_an_owner),
		cmocka_unit_test(test_nobody_answers),
		cmocka_unit_test(test_answers_are_late),
		cmocka_unit_test(test_one_step_in_many_takes_ten_times_as_long),
		cmocka_unit_test(test_sleep_of_unknown_kind),
		cmocka_unit_test(test_gpus_that_nobody_sees),
		cmocka_unit_test(test_undeclared_evaluation_of_half_an_hour),
		cmocka_unit_test(test_waiting_that_spins),
		cmocka_unit_test(test_nobody_waits),
		cmocka_unit_test(test_a_measurement_is_late),
		cmocka_unit_test(test_all_wait),
		cmocka_unit_test(test_busy_alone_while_others_wait),
		cmocka_unit_test(test_busy_alone_where_phases_are_declared),
		cmocka_unit_test(test_declared_phases),
		cmocka_unit_test(test_stopped_in_a_phase_after_a_long_one),
		cmocka_unit_test(test_longer_steps_are_the_new_pace),
		cmocka_unit_test(test_restart_keeps_what_was_learned),
		cmocka_unit_test(test_everything_sleeps),
		cmocka_unit_test(test_never_starts),
		cmocka_unit_test(test_run_goes_on),
		cmocka_unit_test(test_random_quiet_life),
		cmocka_unit_test(test_an_end_without_begin),
	};

	return cmocka_run_group_tests_name("hang", tests, NULL, NULL);
}
