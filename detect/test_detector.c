/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is known and how much memory that takes, what is refused, time and blindness; exits and
 * not-a-number end to end.
 */
#include <config.h>

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "detect/options.h"
#include "detect/rules.h"
#include "detect/test_fixture.h"

#define SEC NS_PER_SEC
#define MS  NS_PER_MS

struct bench {
	struct detector *d;
	struct told told;
};

static void bench_begin(struct bench *b, uint32_t ranks_max)
{
	struct detector_options o;

	memset(b, 0, sizeof(*b));
	detector_options_default(&o);
	if (ranks_max)
		o.ranks_max = ranks_max;
	b->d = told_detector(&b->told, &o, NULL);
}

static void run(struct bench *b, uint64_t t, bool begins, uint64_t epoch, uint32_t world)
{
	struct sample s = sample_of(SAMPLE_JOB, t, SAMPLE_NONE, 0, SAMPLE_NONE);

	s.run.begins = begins;
	s.run.epoch = epoch;
	s.run.world = world;
	feed(b->d, &s);
}

static void member(struct bench *b, uint64_t t, uint32_t rank)
{
	struct sample s = sample_of(SAMPLE_MEMBER, t, rank / 8, 0, rank);

	snprintf(s.member.role, sizeof(s.member.role), "trainer");
	feed(b->d, &s);
}

static void begin(struct bench *b, uint64_t t, uint64_t epoch, uint32_t world)
{
	run(b, t, true, epoch, world);
	for (uint32_t r = 0; r < world; r++)
		member(b, t, r);
}

static void beat(struct bench *b, uint64_t t, uint32_t rank, uint64_t step, double loss)
{
	struct sample s = sample_of(SAMPLE_BEAT, t, rank / 8, 0, rank);

	s.beat = (struct sample_beat){
		.step = step, .flags = BEAT_LOSS, .loss = loss, .grad_norm = NAN};
	feed(b->d, &s);
}

static void ended(struct bench *b, uint64_t t, uint32_t rank, enum exit_how how, int value)
{
	struct sample s = sample_of(SAMPLE_EXIT, t, rank / 8, 0, rank);

	s.exit.how = how;
	s.exit.value = value;
	feed(b->d, &s);
}

static void name(struct bench *b, uint32_t node, uint32_t job, uint32_t device, const char *text)
{
	struct sample s = sample_of(SAMPLE_NAME, 0, node, job, SAMPLE_NONE);

	s.device = device;
	s.name.role = device == SAMPLE_NONE ? 0 : 'g';
	snprintf(s.name.text, sizeof(s.name.text), "%s", text);
	feed(b->d, &s);
}

static void test_first_death_is_told_the_rest_are_notes(void **state)
{
	struct subject who;
	struct bench b;

	(void)state;
	bench_begin(&b, 0);
	name(&b, SAMPLE_NONE, 0, SAMPLE_NONE, "lm");
	name(&b, 0, SAMPLE_NONE, SAMPLE_NONE, "n17");
	begin(&b, SEC, 1, 4);
	beat(&b, 2 * SEC, 3, 17, 1);
	ended(&b, 3 * SEC, 3, EXIT_SIGNAL, SIGSEGV);
	assert_int_equal(b.told.alarms, 1);
	assert_int_equal(b.told.alarm.subject.rank, 3);
	assert_int_equal(b.told.alarm.class, CLASS_DEAD);
	assert_int_equal(b.told.alarm.cause, CAUSE_PROCESS_ENDED);
	test_says(b.told.alarm.words, "rank 3 of job lm on node n17 ended by signal 11 (SIGSEGV)");
	test_says(b.told.alarm.words, "last step 17");
	ended(&b, 4 * SEC, 0, EXIT_SIGNAL, SIGTERM);
	ended(&b, 4 * SEC, 1, EXIT_SIGNAL, SIGKILL);
	assert_int_equal(b.told.alarms, 1);
	assert_int_equal(b.told.n, 3);
	assert_int_equal(b.told.last.level, LEVEL_NOTE);
	begin(&b, 60 * SEC, 2, 4);
	assert_int_equal(b.told.cleared, 3);
	ended(&b, 61 * SEC, 2, EXIT_CODE, 1);
	assert_int_equal(b.told.alarms, 2);
	/* Somebody says that all is well: what comes then is news. */
	who = subject_job(0);
	assert_int_equal(detector_clear(b.d, &who, 62 * SEC), 1);
	ended(&b, 90 * SEC, 1, EXIT_SIGNAL, SIGSEGV);
	assert_int_equal(b.told.alarms, 3);
	assert_int_equal(b.told.alarm.subject.rank, 1);
	detector_free(b.d);
}

/* Nobody says anything but that the node is there. */
static void time_goes_by(struct bench *b, uint64_t from, uint64_t to)
{
	for (uint64_t t = from; t <= to; t += 10 * SEC) {
		struct sample s = sample_of(SAMPLE_ALIVE, t, 0, SAMPLE_NONE, SAMPLE_NONE);

		feed(b->d, &s);
	}
}

/* The others say goodbye, and the run is over: who died stands until the job runs again, or for a
 * day. */
static void test_death_outlives_its_run(void **state)
{
	const uint64_t day = 86400 * SEC;
	struct subject s = subject_job(0);
	struct bench b;

	(void)state;
	for (int how = 0; how < 4; how++) {
		bench_begin(&b, 0);
		begin(&b, SEC, 1, 3);
		ended(&b, 2 * SEC, 1, EXIT_SIGNAL, SIGSEGV);
		ended(&b, 3 * SEC, 0, EXIT_SAID_BYE, 0);
		ended(&b, 3 * SEC, 2, how ? EXIT_SAID_BYE : EXIT_CODE, 1);
		if (how)
			run(&b, 4 * SEC, false, 1, 3); /* else: nobody has said so */
		time_goes_by(&b, 10 * SEC, day);
		assert_int_equal(b.told.alarms, 1);
		assert_int_equal(b.told.cleared, 0);
		assert_int_equal(detector_standing(b.d, &s, NULL, 0), how ? 1 : 2);
		if (how == 1)
			begin(&b, day + SEC, 2, 3);
		else if (how == 2)
			assert_int_equal(detector_clear(b.d, &s, day + SEC), 1);
		else
			time_goes_by(&b, day, day + 70 * SEC);
		assert_int_equal(detector_standing(b.d, NULL, NULL, 0), 0);
		test_says(b.told.last.words, how == 1   ? "a new run of its job has begun"
					     : how == 2 ? "somebody said that it is well"
							: "its job did not run again for a day");
		/* The next run is like the first. */
		begin(&b, day + 80 * SEC, 3, 3);
		ended(&b, day + 90 * SEC, 2, EXIT_SIGNAL, SIGSEGV);
		assert_int_equal(b.told.alarms, 2);
		time_goes_by(&b, day + 90 * SEC, 2 * day + 300 * SEC); /* others live on */
		assert_true(detector_standing(b.d, &s, NULL, 0) > 0);
		detector_free(b.d);
	}
}

/* A word for one rank is for that one, and for its node for all that are there: what stands of
 * others ends with the run, as ever. */
static void test_who_is_well(void **state)
{
	static const uint32_t stay[] = {2, 0, 3}; /* verdicts behind a word for ... */
	struct subject who[] = {subject_rank(0, 3, 0), subject_node(0), subject_rank(0, 1, 0)};
	struct bench b;

	(void)state;
	for (int i = 0; i < 3; i++) {
		bench_begin(&b, 0);
		begin(&b, SEC, 1, 6);
		for (uint32_t r = 0; r < 6; r++)
			beat(&b, 2 * SEC, r, 1, 1);
		ended(&b, 3 * SEC, 3, EXIT_SIGNAL, SIGSEGV);
		for (uint32_t r = 0; r < 3; r++)
			ended(&b, 4 * SEC, r, EXIT_CODE, 1);
		assert_int_equal(b.told.alarms, 1);
		assert_int_equal(b.told.n, 4);
		b.told.cleared = 0;
		(void)detector_clear(b.d, &who[i], 10 * SEC);
		assert_int_equal(b.told.cleared, 4 - (stay[i] ? 3 : 0));
		/* The first was it, or not: the next one is news, or a consequence. */
		ended(&b, 20 * SEC, 4, EXIT_SIGNAL, SIGABRT);
		assert_int_equal(b.told.alarms, i == 2 ? 1 : 2);
		begin(&b, 60 * SEC, 2, 6);
		assert_int_equal(detector_standing(b.d, NULL, NULL, 0), 0);
		detector_free(b.d);
	}
}

/* What broke a node may be repaired while the rest of the job still waits for it in a collective.
 */
static void test_who_gives_up_after_a_failure(void **state)
{
	struct subject node = subject_node(1);
	struct sample s;
	struct bench b;

	(void)state;
	for (int on = 0; on < 3; on++) { /* 1: it went on, 2: on the node itself, at once */
		uint64_t t = 100 * SEC, end;

		bench_begin(&b, 0);
		begin(&b, t, 1, 24);
		for (uint32_t r = 0; r < 24; r++)
			beat(&b, t + 5 * SEC, r, 1, 2.0);
		t += 10 * SEC;
		s = sample_of(SAMPLE_KERNEL, t, 1, SAMPLE_NONE, SAMPLE_NONE);
		snprintf(s.kernel.text, sizeof(s.kernel.text),
			 "nvme nvme0: controller is down; will reset: CSTS=0xffffffff");
		feed(b.d, &s);
		assert_int_equal(b.told.alarms, 1);
		detector_advance(b.d, t + SEC);
		if (on < 2)
			assert_int_equal(detector_clear(b.d, &node, t + 15 * SEC), 1);
		end = on == 2 ? t + 20 * SEC : t + 90 * SEC;
		for (t += 16 * SEC; t < end; t += SEC) {
			s = sample_of(SAMPLE_ALIVE, t, 0, SAMPLE_NONE, SAMPLE_NONE);
			feed(b.d, &s);
		}
		for (uint32_t r = 0; on == 1 && r < 24; r++)
			beat(&b, t, r, 2, 2.0);
		ended(&b, t, on == 2 ? 9 : 3, EXIT_SIGNAL, SIGABRT);
		assert_int_equal(b.told.last.cause, CAUSE_PROCESS_ENDED);
		assert_int_equal(b.told.last.level, on ? LEVEL_ALARM : LEVEL_NOTE);
		detector_free(b.d);
	}
}

static void test_restart_is_quiet(void **state)
{
	struct bench b;

	(void)state;
	bench_begin(&b, 0);
	for (uint64_t epoch = 1; epoch < 4; epoch++) {
		uint64_t t = epoch * 100 * SEC;

		begin(&b, t, epoch, 4);
		for (uint32_t r = 0; r < 4; r++)
			beat(&b, t + SEC, r, 1, 1);
		for (uint32_t r = 0; r < 4; r++)
			ended(&b, t + 10 * SEC + r * 100 * MS, r,
			      epoch == 2 ? EXIT_SAID_BYE : EXIT_SIGNAL, SIGTERM);
		detector_advance(b.d, t + 40 * SEC);
	}
	run(&b, 500 * SEC, false, 3, 4);
	ended(&b, 501 * SEC, 2, EXIT_SIGNAL, SIGKILL);
	assert_int_equal(b.told.n, 0);
	detector_free(b.d);
}

static void test_one_told_to_end_is_missed(void **state)
{
	struct bench b;

	(void)state;
	bench_begin(&b, 0);
	begin(&b, SEC, 1, 8);
	ended(&b, 5 * SEC, 2, EXIT_SIGNAL, SIGTERM);
	assert_int_equal(b.told.n, 0);
	detector_advance(b.d, 6 * SEC);
	assert_int_equal(b.told.alarms, 1);
	assert_int_equal(b.told.alarm.since_ns, 5 * SEC);
	assert_int_equal(b.told.alarm.subject.rank, 2);
	beat(&b, 20 * SEC, 2, 1, 1);
	assert_int_equal(b.told.cleared, 1);
	assert_null(strstr(b.told.alarm.words, "last step")); /* it told of none */
	detector_free(b.d);
}

static void test_not_a_number_of_one_and_of_all(void **state)
{
	struct bench b;

	(void)state;
	bench_begin(&b, 0);
	begin(&b, SEC, 1, 8);
	for (uint64_t step = 1; step < 40; step++)
		for (uint32_t r = 0; r < 8; r++)
			beat(&b, step * SEC + r * MS, r, step, step == 10 && r == 5 ? NAN : 2);
	assert_int_equal(b.told.alarms, 1);
	assert_int_equal(b.told.alarm.subject.kind, SUBJECT_RANK);
	assert_int_equal(b.told.alarm.subject.rank, 5);
	assert_int_equal(b.told.alarm.raised_ns, 10 * SEC + 7 * MS);
	assert_int_equal(b.told.cleared, 1);
	for (uint64_t step = 40; step < 50; step++)
		for (uint32_t r = 0; r < 8; r++)
			beat(&b, step * SEC + r * MS, r, step, INFINITY);
	assert_int_equal(b.told.alarms, 2);
	assert_int_equal(b.told.alarm.subject.kind, SUBJECT_JOB);
	assert_int_equal(b.told.alarm.raised_ns, 40 * SEC + 7 * MS);
	/* A step that is not told of by all: decided by time. */
	begin(&b, 60 * SEC, 2, 8);
	beat(&b, 61 * SEC, 0, 1, NAN);
	assert_int_equal(b.told.alarms, 2);
	detector_advance(b.d, 62 * SEC);
	assert_int_equal(b.told.alarms, 3);
	detector_free(b.d);
}

static void test_refused(void **state)
{
	struct bench b;
	struct sample s;

	(void)state;
	bench_begin(&b, 0);
	beat(&b, 10 * SEC, 0, 1, 1);
	s = sample_of(SAMPLE_BEAT, 9 * SEC, 0, 0, 0);
	assert_int_equal(detector_feed(b.d, &s), -EINVAL);
	s = sample_of(SAMPLE_PHASE, 11 * SEC, 0, 0, 0);
	s.phase.phase = PHASE_SYNC;
	assert_int_equal(detector_feed(b.d, &s), -EINVAL);
	s.phase.phase = PHASE_EVALUATE;
	memset(s.phase.what, 'x', sizeof(s.phase.what));
	assert_int_equal(detector_feed(b.d, &s), -EINVAL);
	s = sample_of(SAMPLE_LINK, 11 * SEC, 0, SAMPLE_NONE, SAMPLE_NONE);
	assert_int_equal(detector_feed(b.d, &s), -EINVAL);
	s = sample_of(SAMPLE_PAIR, 11 * SEC, 0, SAMPLE_NONE, SAMPLE_NONE);
	assert_int_equal(detector_feed(b.d, &s), -EINVAL);
	s = sample_of(SAMPLE_KIND_COUNT, 11 * SEC, 0, 0, 0);
	assert_int_equal(detector_feed(b.d, &s), -EINVAL);
	s = sample_of(SAMPLE_ALIVE, 11 * SEC, 4096, SAMPLE_NONE, SAMPLE_NONE);
	assert_int_equal(detector_feed(b.d, &s), -ENOMEM);
	detector_free(b.d);
}

/* Ranks of a job that ended give their places to new ones; else there is no place. */
static void test_memory_is_bounded(void **state)
{
	struct detector_size before, after;
	struct bench b;
	struct sample s;

	(void)state;
	bench_begin(&b, 64);
	for (uint32_t job = 0; job < 8; job++) {
		for (uint32_t r = 0; r < 32; r++) {
			s = sample_of(SAMPLE_BEAT, (job + 1) * SEC, r, job, r);
			s.beat.step = 1;
			feed(b.d, &s);
		}
		s = sample_of(SAMPLE_JOB, (job + 1) * SEC, SAMPLE_NONE, job, SAMPLE_NONE);
		feed(b.d, &s);
		if (job == 2)
			detector_memory(b.d, &before);
	}
	detector_memory(b.d, &after);
	assert_true(after.total <= before.total + 5 * (after.rank + 32768));
	assert_true(after.rank <= 65536);
	for (uint32_t r = 0; r <= 64; r++) {
		s = sample_of(SAMPLE_BEAT, 20 * SEC, 0, 9, r);
		assert_int_equal(detector_feed(b.d, &s), r < 64 ? 0 : -ENOMEM);
	}
	detector_free(b.d);
}

static int comes(struct bench *b, uint32_t job, uint32_t rank, bool leaves)
{
	struct sample s = sample_of(SAMPLE_MEMBER, 2 * SEC, 0, job, rank);

	s.member.leaves = leaves;
	return detector_feed(b->d, &s);
}

static void owned_job(struct bench *b, uint32_t job, uint32_t owner)
{
	struct sample s = sample_of(SAMPLE_NAME, 2 * SEC, SAMPLE_NONE, job, SAMPLE_NONE);

	snprintf(s.name.text, sizeof(s.name.text), "job%u", job);
	s.name.owned = true;
	s.name.owner = owner;
	feed(b->d, &s);
	s = sample_of(SAMPLE_JOB, 2 * SEC, SAMPLE_NONE, job, SAMPLE_NONE);
	s.run.begins = true;
	s.run.epoch = 1;
	feed(b->d, &s);
}

/* Owners share the places: whoever has most of them leaves some to the next, who leaves some. */
static void test_owners_share_the_places(void **state)
{
	uint32_t n[3] = {0};
	struct bench b;

	(void)state;
	bench_begin(&b, 60);
	for (uint32_t job = 0; job < 4; job++)
		owned_job(&b, job, job / 2); /* the first owner has two */
	for (uint32_t i = 0; i < 60; i++)
		n[0] += comes(&b, i % 2, i, false) == 0;
	assert_int_equal(n[0], 40);
	for (uint32_t i = 0; i < 60; i++)
		n[1] += comes(&b, 2, i, false) == 0;
	assert_in_range(n[1], 13, 14);
	owned_job(&b, 4, 9);
	for (uint32_t i = 0; i < 60; i++)
		n[2] += comes(&b, 4, i, false) == 0;
	assert_in_range(n[2], 4, 5);
	assert_int_equal(comes(&b, 0, 59, false), -ENOMEM);
	/* Those that leave give their places to others. */
	for (uint32_t i = 0; i < 40; i += 2)
		assert_int_equal(comes(&b, 0, i, true), 0);
	assert_int_equal(comes(&b, 1, 59, false), 0);
	detector_free(b.d);
}

/* While the run goes on its ranks leave and others come, many more than there are places. What
 * stands against one that left stays. */
static void test_who_left_gives_place(void **state)
{
	struct sample s = sample_of(SAMPLE_EXIT, 2 * SEC, 0, 1, 5);
	struct subject accused = subject_rank(1, 5, 0);
	struct bench b;

	(void)state;
	bench_begin(&b, 60);
	owned_job(&b, 1, 7);
	owned_job(&b, 2, 8);
	assert_int_equal(comes(&b, 1, 5, false), 0);
	s.exit.how = EXIT_LEFT;
	feed(b.d, &s);
	assert_int_equal(comes(&b, 1, 5, true), 0);
	assert_int_equal(detector_standing(b.d, &accused, NULL, 0), 1);
	for (uint32_t i = 6; i < 60; i++) {
		for (uint32_t k = 0; k < 10; k++) {
			assert_int_equal(comes(&b, 1, i, false), 0);
			assert_int_equal(comes(&b, 1, i, true), 0);
		}
	}
	assert_true(b.d->n_ranks <= 41);
	assert_non_null(known_rank(b.d, 1, 5));
	assert_int_equal(detector_standing(b.d, &accused, NULL, 0), 1);
	assert_int_equal(comes(&b, 2, 0, false), 0);
	assert_non_null(known_rank(b.d, 2, 0));
	/* How the process of one that was forgotten ended comes later. */
	assert_null(known_rank(b.d, 1, 6));
	s.rank = 6;
	s.exit.how = EXIT_CODE;
	s.exit.value = 1;
	feed(b.d, &s);
	assert_int_equal(b.told.n, 1); /* of rank 5 */
	detector_free(b.d);
}

/* The rank says goodbye. */
static void leaves(struct bench *b, uint32_t job, uint32_t rank)
{
	struct sample s = sample_of(SAMPLE_EXIT, 2 * SEC, 0, job, rank);

	s.exit.how = EXIT_SAID_BYE;
	feed(b->d, &s);
}

/* While one rank stays in the run others come and say goodbye, many more than there are places.
 * Each gives its place to the next. */
static void test_goodbye_gives_place(void **state)
{
	struct sample s = sample_of(SAMPLE_EXIT, 2 * SEC, 0, 1, 7);
	struct subject accused = subject_rank(1, 5, 0);
	struct bench b;

	(void)state;
	bench_begin(&b, 60);
	owned_job(&b, 1, 7);
	owned_job(&b, 2, 8);
	assert_int_equal(comes(&b, 1, 0, false), 0);
	assert_int_equal(comes(&b, 1, 5, false), 0);
	s.rank = 5;
	s.exit.how = EXIT_LEFT;
	feed(b.d, &s);
	leaves(&b, 1, 5);
	for (uint32_t i = 6; i < 60; i++) {
		assert_int_equal(comes(&b, 1, i, false), 0);
		leaves(&b, 1, i);
	}
	assert_true(b.d->n_ranks <= 41);
	assert_non_null(known_rank(b.d, 1, 0));
	assert_non_null(known_rank(b.d, 1, 5)); /* an alarm stands against it */
	assert_int_equal(detector_standing(b.d, &accused, NULL, 0), 1);
	/* The detector forgot rank 7. How its process ended is reported late: this is no alarm. */
	assert_null(known_rank(b.d, 1, 7));
	s.rank = 7;
	s.exit.how = EXIT_CODE;
	s.exit.value = 1;
	feed(b.d, &s);
	assert_int_equal(b.told.n, 1);
	/* Ranks that came back and stay keep their places. */
	assert_int_equal(known_job(b.d, 1)->n_staying, 1);
	for (uint32_t i = 20; i < 58; i++)
		assert_int_equal(comes(&b, 1, i, false), 0);
	assert_int_equal(comes(&b, 1, 58, false), -ENOMEM);
	assert_int_equal(known_job(b.d, 1)->n_staying, 39);
	for (uint32_t i = 20; i < 58; i++)
		assert_non_null(known_rank(b.d, 1, i));
	s.rank = 20;
	feed(b.d, &s);
	assert_int_equal(b.told.n, 2);
	assert_int_equal(b.told.last.subject.rank, 20);
	detector_free(b.d);
}

/* One owner had many ranks, of which one stays: the others take no places from another owner. */
static void test_past_of_others_gives_place(void **state)
{
	struct bench b;
	uint32_t n = 0;

	(void)state;
	bench_begin(&b, 60);
	owned_job(&b, 1, 7);
	owned_job(&b, 2, 8);
	assert_int_equal(comes(&b, 1, 0, false), 0);
	for (uint32_t i = 1; i < 60; i++) {
		assert_int_equal(comes(&b, 1, i, false), 0);
		leaves(&b, 1, i);
	}
	for (uint32_t i = 0; i < 60; i++)
		n += comes(&b, 2, i, false) == 0;
	assert_in_range(n, 39, 40);
	assert_non_null(known_rank(b.d, 1, 0));
	detector_free(b.d);
}

/* More of an owner's past than goes in one call: ranks that are refused get in with later beats. */
static void test_long_past_gives_place(void **state)
{
	struct sample over = sample_of(SAMPLE_JOB, 2 * SEC, SAMPLE_NONE, 1, SAMPLE_NONE);
	struct bench b;

	(void)state;
	bench_begin(&b, 2048);
	owned_job(&b, 1, 7);
	owned_job(&b, 2, 8);
	owned_job(&b, 3, 7);
	for (uint32_t i = 0; i < 1300; i++)
		assert_int_equal(comes(&b, 1, i, false), 0);
	feed(b.d, &over);
	for (uint32_t i = 0; i < 450; i++)
		assert_int_equal(comes(&b, 2, i, false), 0);
	for (uint32_t i = 0; i < 900; i++)
		ignore_result(comes(&b, 3, i, false));
	for (uint32_t i = 0; i < 900; i++)
		assert_int_equal(comes(&b, 3, i, false), 0);
	detector_free(b.d);
}

/* Ranks of a job that ended give their places to another job of its owner, but first those that no
 * alarm stands against. */
static void test_alarms_of_ended_jobs_go_last(void **state)
{
	struct sample s = sample_of(SAMPLE_EXIT, 2 * SEC, 0, 1, 5);
	struct subject accused = subject_rank(1, 5, 0);
	struct bench b;

	(void)state;
	bench_begin(&b, 60);
	owned_job(&b, 1, 7);
	owned_job(&b, 2, 7);
	for (uint32_t i = 0; i < 20; i++)
		assert_int_equal(comes(&b, 1, i, false), 0);
	s.exit.how = EXIT_LEFT;
	feed(b.d, &s);
	s = sample_of(SAMPLE_JOB, 2 * SEC, SAMPLE_NONE, 1, SAMPLE_NONE);
	feed(b.d, &s);
	for (uint32_t i = 0; i < 39; i++)
		assert_int_equal(comes(&b, 2, i, false), 0);
	assert_null(known_rank(b.d, 1, 6));
	assert_int_equal(detector_standing(b.d, &accused, NULL, 0), 1);
	assert_int_equal(b.told.cleared, 0);
	/* Nothing else fits. */
	assert_int_equal(comes(&b, 2, 39, false), 0);
	assert_null(known_rank(b.d, 1, 5));
	assert_int_equal(b.told.cleared, 1);
	assert_non_null(strstr(b.told.last.words, "needed its place for another rank"));
	assert_int_equal(comes(&b, 2, 40, false), -ENOMEM);
	detector_free(b.d);
}

/* A rank that gets no place asks with each of its beats. The detector looks for a place once, and
 * again only when there may be one; then the rank gets it. */
static void test_refusals_are_cheap(void **state)
{
	struct sample s = sample_of(SAMPLE_EXIT, 2 * SEC, 0, 1, 4);
	struct sample asks = sample_of(SAMPLE_BEAT, 2 * SEC, 0, 1, 50);
	struct subject accused = subject_rank(1, 4, 0);
	struct bench b;
	uint64_t looks;

	(void)state;
	bench_begin(&b, 60);
	owned_job(&b, 1, 7);
	for (uint32_t i = 0; i < 40; i++)
		assert_int_equal(comes(&b, 1, i, false), 0);
	assert_int_equal(detector_feed(b.d, &asks), -ENOMEM);
	looks = b.d->room_looks;
	for (uint32_t i = 0; i < 1000; i++) {
		asks.rank = 50 + i % 8;
		assert_int_equal(detector_feed(b.d, &asks), -ENOMEM);
	}
	assert_int_equal(b.d->room_looks, looks);
	/* One says goodbye. */
	leaves(&b, 1, 3);
	assert_int_equal(comes(&b, 1, 50, false), 0);
	assert_int_equal(comes(&b, 1, 51, false), -ENOMEM);
	/* One is replaced. */
	assert_int_equal(comes(&b, 1, 6, true), 0);
	assert_int_equal(comes(&b, 1, 51, false), 0);
	/* One goes, but an alarm stands against it; then a person clears that. */
	s.exit.how = EXIT_LEFT;
	feed(b.d, &s);
	assert_int_equal(comes(&b, 1, 4, true), 0);
	assert_int_equal(comes(&b, 1, 52, false), -ENOMEM);
	assert_int_equal(detector_clear(b.d, &accused, 2 * SEC), 1);
	assert_int_equal(comes(&b, 1, 52, false), 0);
	/* The run ends. */
	assert_int_equal(comes(&b, 1, 53, false), -ENOMEM);
	s = sample_of(SAMPLE_JOB, 2 * SEC, SAMPLE_NONE, 1, SAMPLE_NONE);
	feed(b.d, &s);
	assert_int_equal(comes(&b, 1, 53, false), 0);
	detector_free(b.d);
}

/* Something is to be told of each of many jobs at once: no call tells more than a few, and all are
 * told at once all the same, by one caller who calls as often as it is asked to. */
static void test_many_verdicts_are_no_long_call(void **state)
{
	enum { JOBS = 300, MANY = 8 };
	struct sample s = sample_of(SAMPLE_EXIT, 3 * SEC, 0, 0, 0);
	uint64_t t = 0;
	struct bench b;

	(void)state;
	bench_begin(&b, 0);
	for (s.job = 0; s.job < JOBS; s.job++) {
		owned_job(&b, s.job, 7);
		for (uint32_t i = 0; i < 3; i++)
			assert_int_equal(comes(&b, s.job, i, false), 0);
	}
	s.exit.how = EXIT_SIGNAL;
	s.exit.value = SIGTERM; /* the others may follow */
	for (s.job = 0; s.job < JOBS; s.job++)
		feed(b.d, &s);
	assert_int_equal(b.told.n, 0);
	while (t < 4 * SEC) {
		unsigned before = b.told.n;

		t = detector_next(b.d);
		detector_advance(b.d, t);
		assert_true(b.told.n - before <= MANY);
		if (b.told.n == JOBS)
			break;
	}
	assert_int_equal(b.told.n, JOBS);
	assert_true(t >= 3600 * MS && t < 3601 * MS);
	detector_free(b.d);
}

/* What is walked over is as long as there are ranks, however high their numbers are. */
static void test_high_numbers_cost_no_more(void **state)
{
	static const uint32_t order[] = {16383, 0, 9000, 16382, 1, 77};
	struct detector_size low, high;
	struct bench b;
	struct rank *r;
	uint32_t last = 0, n = 0;

	(void)state;
	bench_begin(&b, 0);
	member(&b, SEC, 0);
	detector_memory(b.d, &low);
	detector_free(b.d);
	bench_begin(&b, 0);
	begin(&b, SEC, 1, 0);
	member(&b, SEC, order[0]);
	detector_memory(b.d, &high);
	assert_int_equal(high.total, low.total);
	assert_int_equal(known_job(b.d, 0)->n_ranks, 1);
	for (size_t i = 0; i < 6; i++)
		member(&b, SEC, order[i]);
	each_rank(r, known_job(b.d, 0))
	{
		assert_true(n++ == 0 || r->number > last);
		last = r->number;
	}
	assert_int_equal(n, 6);
	for (size_t i = 0; i < 6; i++)
		assert_int_equal(known_rank(b.d, 0, order[i])->number, order[i]);
	assert_null(known_rank(b.d, 0, 2));
	assert_null(known_rank(b.d, 0, 16384));
	detector_free(b.d);
}

/* A tick goes over the jobs that are known, not over all that there may be. */
static void test_bounds_cost_no_time(void **state)
{
	struct sample gone = sample_of(SAMPLE_NAME, 3 * SEC, SAMPLE_NONE, 0, SAMPLE_NONE);
	static const uint32_t end[] = {41, 41, 1, 0}; /* after so many were forgotten */
	static const uint32_t order[] = {0, 5, 40};
	struct bench b;

	(void)state;
	bench_begin(&b, 0);
	assert_int_equal(b.d->jobs_end, 0);
	for (uint32_t i = 3; i-- > 0;) {
		owned_job(&b, order[i], 7);
		assert_int_equal(b.d->jobs_end, 41);
	}
	time_goes_by(&b, 2 * SEC, 3 * SEC);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(b.d->jobs_end, end[i]);
		gone.job = order[(i + 1) % 3];
		feed(b.d, &gone);
	}
	assert_int_equal(b.d->jobs_end, end[3]);
	assert_false(detector_goes_on(b.d));
	detector_free(b.d);
}

/* Bounds cost next to nothing: memory is taken for who is there. */
static void test_memory_of_one_node(void **state)
{
	struct detector_size empty, size;
	struct bench b;
	struct sample s;

	(void)state;
	bench_begin(&b, 0);
	detector_memory(b.d, &empty);
	assert_true(empty.total <= 65536);
	begin(&b, SEC, 1, 8);
	for (uint64_t t = 2; t < 200; t++) {
		for (uint32_t r = 0; r < 8; r++) {
			s = sample_of(SAMPLE_BEAT, t * SEC, 0, 0, r);
			s.beat.step = t;
			s.beat.flags = BEAT_BUSY;
			s.beat.busy_ns = SEC / 2;
			feed(b.d, &s);
		}
		s = sample_of(SAMPLE_METRICS, t * SEC, 0, SAMPLE_NONE, SAMPLE_NONE);
		for (int m = 0; m < METRIC_COUNT; m++)
			s.metrics[m] = 1;
		feed(b.d, &s);
	}
	for (uint32_t r = 0; r < 8; r++)
		ended(&b, 200 * SEC, r, EXIT_SIGNAL, SIGABRT);
	assert_true(b.told.n >= 8); /* and it says something */
	detector_memory(b.d, &size);
	assert_true(size.total > empty.total + 8 * size.rank + size.node);
	assert_true(size.total <= UINT64_C(8) * 65536);
	detector_free(b.d);
}

static void test_no_memory(void **state)
{
	struct detector_options o;
	struct detector_events events = {0};
	struct detector *d = NULL;
	struct sample s;
	int rc;

	(void)state;
	detector_options_default(&o);
	for (uint64_t n = 1;; n++) {
		alloc_fail_at(n, false);
		rc = detector_new(&o, NULL, &events, &d);
		for (uint32_t i = 0; rc == 0 && i < 20; i++) {
			s = sample_of(SAMPLE_BEAT, i * SEC, i, 0, i);
			rc = detector_feed(d, &s);
			if (rc == -ENOMEM)
				feed(d, &s);
			s = sample_of(SAMPLE_METRICS, i * SEC, i, SAMPLE_NONE, SAMPLE_NONE);
			feed(d, &s);
			s = sample_of(SAMPLE_PAIR, i * SEC, i, SAMPLE_NONE, SAMPLE_NONE);
			s.pair.peer = i ? 0 : 1;
			s.pair.bytes = s.pair.ns = 1 << 20;
			if (detector_feed(d, &s) < 0)
				feed(d, &s);
		}
		detector_free(d);
		d = NULL;
		if (!alloc_fired())
			break;
		assert_int_equal(rc == 0 ? -ENOMEM : rc, -ENOMEM);
	}
	alloc_fail_at(0, false);
}

static void gather(void *arg, const char *text)
{
	strcat(arg, text);
	strcat(arg, "\n");
}

static void test_words(void **state)
{
	struct subject s = subject_gpu(1, 0);
	char text[4096] = "";
	struct bench b;

	(void)state;
	bench_begin(&b, 0);
	detector_subject_words(b.d, &s, text, sizeof(text));
	assert_string_equal(text, "GPU 0 of node 1");
	name(&b, 1, SAMPLE_NONE, SAMPLE_NONE, "n1");
	name(&b, 1, SAMPLE_NONE, 0, "0000:9b:00");
	detector_subject_words(b.d, &s, text, sizeof(text));
	assert_string_equal(text, "GPU 0000:9b:00 of node n1");
	s = subject_path(1, 2);
	detector_subject_words(b.d, &s, text, sizeof(text));
	assert_string_equal(text, "the path from node n1 to node 2");
	begin(&b, SEC, 1, 2);
	beat(&b, 4 * SEC, 1, 9, 1);
	detector_advance(b.d, 5 * SEC);
	s = subject_rank(0, 1, 0);
	text[0] = 0;
	detector_explain(b.d, &s, gather, text);
	test_says(text, "last finished step: 9, 1.0 s ago");
	s = subject_job(0);
	for (uint32_t there = 2; there-- > 0;) { /* who is dead takes no part */
		ended(&b, 5 * SEC, there, EXIT_SIGNAL, SIGKILL);
		text[0] = 0;
		detector_explain(b.d, &s, gather, text);
		test_says(text, there ? "epoch 1 is on, 1 of 2 ranks take part"
				      : "epoch 1 is on, 0 of 2 ranks take part");
		test_says(text, there ? "missing: rank 1 has ended\n"
				      : "missing: rank 0 has ended, rank 1 has ended\n");
	}
	run(&b, 6 * SEC, true, 2, 12);
	member(&b, 6 * SEC, 3);
	text[0] = 0;
	detector_explain(b.d, &s, gather, text);
	test_says(text, "missing: rank 2 has not come, rank 4 has not come, ");
	test_says(text, ", rank 10 has not come, and 1 more\n");
	detector_free(b.d);
}

/* One after another, many more than there are numbers: each is watched like the first. */
static void test_numbers_of_jobs_come_again(void **state)
{
	struct detector_size before, after;
	struct bench b;
	struct sample s;
	uint64_t t = SEC;

	(void)state;
	bench_begin(&b, 4);
	name(&b, 0, SAMPLE_NONE, SAMPLE_NONE, "n17");
	detector_memory(b.d, &before);
	for (unsigned i = 0; i < 3000; i++, t += 10 * SEC) {
		begin(&b, t, 1, 4);
		beat(&b, t + SEC, 1, 3, NAN);
		s = sample_of(SAMPLE_DIGESTS, t + SEC, 0, 0, 2); /* is still being thought about */
		s.digests.step = 3;
		feed(b.d, &s);
		ended(&b, t + SEC, 3, EXIT_SIGNAL, SIGSEGV);
		detector_advance(b.d, t + 2 * SEC);
		assert_int_equal(b.told.alarms, 3 * i + 3);
		s = sample_of(SAMPLE_NAME, t + 2 * SEC, SAMPLE_NONE, 0, SAMPLE_NONE);
		feed(b.d, &s);
		assert_null(known_job(b.d, 0));
		assert_int_equal(detector_standing(b.d, NULL, NULL, 0), 0);
		assert_int_equal(b.told.cleared, b.told.alarms);
		feed(b.d, &s); /* nobody of that number */
	}
	detector_memory(b.d, &after);
	assert_true(after.total < before.total + (64u << 10)); /* the node's own, once */
	detector_free(b.d);
}

static void test_interval_leaves_phases_out(void **state)
{
	struct bench b;
	struct sample s;
	struct rank *r;

	(void)state;
	bench_begin(&b, 0);
	begin(&b, SEC, 1, 1);
	beat(&b, 2 * SEC, 0, 1, 1);
	r = known_rank(b.d, 0, 0);
	assert_int_equal(r->interval_ns, 0);
	s = sample_of(SAMPLE_PHASE, 3 * SEC, 0, 0, 0);
	s.phase.phase = PHASE_EVALUATE;
	s.phase.begins = true;
	feed(b.d, &s);
	s.phase.phase = PHASE_CHECKPOINT;
	s.time_ns = 4 * SEC;
	feed(b.d, &s);
	s.phase.begins = false;
	s.time_ns = 5 * SEC;
	feed(b.d, &s);
	s.time_ns = 9 * SEC;
	feed(b.d, &s);
	beat(&b, 10 * SEC, 0, 2, 1);
	assert_int_equal(r->interval_ns, 2 * SEC);
	detector_free(b.d);
}

static void test_blind(void **state)
{
	struct bench b;

	(void)state;
	bench_begin(&b, 0);
	for (uint64_t i = 1; i < 100; i++)
		beat(&b, i * SEC, 0, i, 1);
	assert_false(detector_blind(b.d));
	detector_advance(b.d, 110 * SEC);
	assert_false(detector_blind(b.d));
	assert_int_equal(detector_age(b.d, 99 * SEC), 11 * SEC);
	for (uint64_t t = 110; t < 3600; t++) /* its own timer goes on */
		detector_advance(b.d, t * SEC);
	assert_true(detector_blind(b.d));
	beat(&b, 3600 * SEC, 0, 100, 1);
	assert_false(detector_blind(b.d));
	assert_int_equal(known_rank(b.d, 0, 0)->interval_ns, 0);
	assert_int_equal(detector_age(b.d, 99 * SEC), 0);
	detector_free(b.d);
}

/* Whatever comes in whatever order: nothing breaks, what is counted adds up. */
static void test_random_samples(void **state)
{
	struct rng_seeded g;
	struct bench b;
	uint64_t t = 1, samples = test_cap("CKPT_SAMPLES", 200000);

	(void)state;
	rng_seed(&g, test_seed(1));
	bench_begin(&b, 48);
	for (uint64_t i = 0; i < samples; i++) {
		struct sample s =
			sample_of((enum sample_kind)rng_below(&g.rng, SAMPLE_KIND_COUNT), t,
				  (uint32_t)rng_below(&g.rng, 6), (uint32_t)rng_below(&g.rng, 3),
				  (uint32_t)rng_below(&g.rng, 24));
		unsigned char *bytes = (unsigned char *)&s.beat;

		for (size_t k = 0; k < 64; k++) /* the union's first bytes */
			bytes[k] = (unsigned char)(rng_below(&g.rng, 4) ? rng_below(&g.rng, 3)
									: rng_u64(&g.rng));
		s.device = (uint32_t)rng_below(&g.rng, 4);
		if (s.kind == SAMPLE_NAME && !rng_below(&g.rng, 20))
			s.device = SAMPLE_NONE; /* of a job, and sometimes that it is gone */
		if (s.kind == SAMPLE_JOB)
			s.run.begins = rng_below(&g.rng, 2);
		else if (s.kind == SAMPLE_MEMBER)
			s.member.leaves = rng_below(&g.rng, 2);
		else if (s.kind == SAMPLE_PHASE)
			s.phase.begins = rng_below(&g.rng, 2);
		else if (s.kind == SAMPLE_ACTIVITY)
			s.activity.timed = (enum timed)rng_below(&g.rng, TIMED_NOT_KNOWN + 1);
		else if (s.kind == SAMPLE_LINK)
			s.link.up = rng_below(&g.rng, 2);
		else if (s.kind == SAMPLE_NVML)
			s.nvml.unavailable = rng_below(&g.rng, 2);
		else if (s.kind == SAMPLE_CHECK)
			s.check.passed = rng_below(&g.rng, 2);
		t += rng_below(&g.rng, 1000) ? rng_below(&g.rng, 100 * MS) : 100 * SEC;
		ignore_result(detector_feed(b.d, &s)); /* many are refused */
		for (uint32_t j = 0; j < 3; j++) {
			const struct job *job = known_job(b.d, j);
			uint32_t n = 0;
			struct rank *r;

			if (!job || i % 100)
				continue;
			each_rank(r, job) n += r->expected;
			assert_int_equal(n, job->n_expected);
			n = 0;
			each_rank(r, job) n += r->expected && !r->said_bye;
			assert_int_equal(n, job->n_staying);
		}
	}
	assert_true(b.d->n_ranks <= 48);
	detector_free(b.d);
}

/* All ranks of many jobs fall silent together: no call asks for the activity of all. */
static void test_many_questions_are_no_long_call(void **state)
{
	enum { JOBS = 30, RANKS = 40, MOST = 200 };
	struct sample s = sample_of(SAMPLE_BEAT, 2 * SEC, 0, 0, 0);
	struct sample alive = sample_of(SAMPLE_ALIVE, 0, 1, SAMPLE_NONE, SAMPLE_NONE);
	uint64_t t = 0, before;
	struct bench b;

	(void)state;
	bench_begin(&b, 0);
	for (s.job = 0; s.job < JOBS; s.job++) {
		owned_job(&b, s.job, 7);
		for (uint32_t i = 0; i < RANKS; i++)
			assert_int_equal(comes(&b, s.job, i, false), 0);
	}
	for (; s.beat.step < 10; s.beat.step++, s.time_ns += SEC)
		for (s.job = 0; s.job < JOBS; s.job++)
			for (s.rank = 0; s.rank < RANKS; s.rank++)
				feed(b.d, &s);
	assert_int_equal(b.d->asked, 0);
	while (b.d->asked < JOBS * RANKS && t < 300 * SEC) {
		before = b.d->asked;
		t = detector_next(b.d);
		detector_advance(b.d, t);
		assert_true(b.d->asked - before <= MOST);
		if (!detector_goes_on(b.d) && t > alive.time_ns + SEC) {
			alive.time_ns = t;
			feed(b.d, &alive);
		}
	}
	assert_int_equal(b.d->asked, JOBS * RANKS);
	detector_free(b.d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_first_death_is_told_the_rest_are_notes),
		cmocka_unit_test(test_death_outlives_its_run),
		cmocka_unit_test(test_who_is_well),
		cmocka_unit_test(test_who_gives_up_after_a_failure),
		cmocka_unit_test(test_restart_is_quiet),
		cmocka_unit_test(test_one_told_to_end_is_missed),
		cmocka_unit_test(test_not_a_number_of_one_and_of_all),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_memory_is_bounded),
		cmocka_unit_test(test_owners_share_the_places),
		cmocka_unit_test(test_who_left_gives_place),
		cmocka_unit_test(test_goodbye_gives_place),
		cmocka_unit_test(test_alarms_of_ended_jobs_go_last),
		cmocka_unit_test(test_past_of_others_gives_place),
		cmocka_unit_test(test_long_past_gives_place),
		cmocka_unit_test(test_refusals_are_cheap),
		cmocka_unit_test(test_many_verdicts_are_no_long_call),
		cmocka_unit_test(test_many_questions_are_no_long_call),
		cmocka_unit_test(test_high_numbers_cost_no_more),
		cmocka_unit_test(test_bounds_cost_no_time),
		cmocka_unit_test(test_memory_of_one_node),
		cmocka_unit_test(test_no_memory),
		cmocka_unit_test(test_words),
		cmocka_unit_test(test_numbers_of_jobs_come_again),
		cmocka_unit_test(test_interval_leaves_phases_out),
		cmocka_unit_test(test_blind),
		cmocka_unit_test(test_random_samples),
	};

	return cmocka_run_group_tests_name("detector", tests, NULL, NULL);
}
