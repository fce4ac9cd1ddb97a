/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Problems of a job: each is found, said once however often it is found, shown, and over.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/fault.h"
#include "ckptd/events.h"
#include "ckptd/loop_epoll.h"
#include "ckptd/node_priv.h"
#include "ckptd/test_node_rig.h"
#include "proto/beat_page.h"
#include "proto/session.pb-c.h"
#include "proto/session_page.h"

static void turns(struct node_test *t)
{
	for (int i = 0; i < 50; i++)
		host_turn(&t->host);
}

/* Longer than it takes to look at the disk again; warn_after_ns says how often that is. */
static void looks(struct node_test *t)
{
	struct timespec pause = {.tv_nsec = 10000000};

	for (int i = 0; i < 10; i++) {
		nanosleep(&pause, NULL);
		turns(t);
	}
}

/* How many events of this kind name this problem, and the words of the last; NULL: any. */
static unsigned count_events(struct node_test *t, const char *kind, const char *problem,
			     char words[640])
{
	struct events_question q = {.sees_all = true};
	json_t *doc = events_answer(t->host.node->events, &q), *o;
	unsigned n = 0;
	size_t i;

	words[0] = '\0';
	json_array_foreach(json_object_get(doc, "events"), i, o)
	{
		const char *is = json_string_value(json_object_get(o, "kind"));
		const char *of = json_string_value(json_object_get(o, "problem"));

		if (strcmp(is, kind) != 0 || (problem && (!of || strcmp(of, problem) != 0)))
			continue;
		snprintf(words, 640, "%s", json_string_value(json_object_get(o, "words")));
		n++;
	}
	json_decref(doc);
	return n;
}

static void assert_raised(struct node_test *t, enum job_problem k, const char *words)
{
	char line[640];

	assert_true(problems_stand(the_job(t), k));
	assert_int_equal(count_events(t, "problem", problem_word(k), line), 1);
	if (!strstr(line, words))
		fail_msg("'%s' does not have '%s'", line, words);
	assert_int_equal(count_events(t, "problem-ended", problem_word(k), line), 0);
}

static void assert_over(struct node_test *t, enum job_problem k)
{
	char line[640];

	assert_false(problems_stand(the_job(t), k));
	assert_int_equal(count_events(t, "problem", problem_word(k), line), 1);
	assert_int_equal(count_events(t, "problem-ended", problem_word(k), line), 1);
}

static void skip_step(struct hand *k, uint64_t step, uint32_t kind, const char *why)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Skip skip = CKPT__SKIP__INIT;

	skip.step = step;
	skip.epoch = k->epoch;
	skip.kind = kind;
	skip.reason = (char *)why;
	q.body_case = CKPT__REQUEST__BODY_SKIP;
	q.skip = &skip;
	assert_int_equal(hand_ask_code(k, &q), 0);
}

static void say_bye(struct hand *k)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Bye bye = CKPT__BYE__INIT;

	q.body_case = CKPT__REQUEST__BODY_BYE;
	q.bye = &bye;
	assert_int_equal(hand_ask_code(k, &q), 0);
}

/* ---- Of ranks ---- */

static void test_prepare_is_refused(void **state)
{
	struct node_test *t = *state;

	begin_node(t);
	join(t, &t->a, 0, 1, "run1");
	declare_rank(&t->a, 0, 1);
	pretended_room = 1000;
	for (int i = 0; i < 5; i++)
		assert_true(hand_prepare(&t->a) < 0);
	assert_raised(t, PROBLEM_PREPARE, "no room on disk for the saves of rank 0: ");
	assert_non_null(strstr(the_job(t)->saves.problems[PROBLEM_PREPARE].text, t->a.text));
	assert_int_equal(the_job(t)->saves.problems[PROBLEM_PREPARE].times, 5);
	assert_int_equal(the_job(t)->saves.problems[PROBLEM_PREPARE].lacks, PREPARE_DISK);
	pretended_room = UINT64_MAX;
	prepare_rank(&t->a);
	assert_over(t, PROBLEM_PREPARE);
}

static void refuse_and_leave(struct node_test *t)
{
	t->o.warn_after_ns = 100000000;
	begin_node(t);
	join(t, &t->a, 0, 1, "run1");
	declare_rank(&t->a, 0, 1);
	pretended_room = 1000;
	assert_true(hand_prepare(&t->a) < 0);
	say_bye(&t->a);
	leave(&t->a);
	looks(t);
	assert_true(list_empty(&the_job(t)->members));
	assert_raised(t, PROBLEM_PREPARE, "no room on disk for the saves of rank 0: ");
	pretended_room = UINT64_MAX;
}

/* The trainer that was refused has ended when the operator looks. */
static void test_a_refusal_outlives_its_rank(void **state)
{
	struct node_test *t = *state;

	refuse_and_leave(t);
	join(t, &t->a, 0, 1, "run2");
	declare_rank(&t->a, 0, 1);
	assert_true(problems_stand(the_job(t), PROBLEM_PREPARE));
	prepare_rank(&t->a);
	assert_over(t, PROBLEM_PREPARE);
}

static void test_a_refusal_is_forgotten_after_a_day(void **state)
{
	struct node_test *t = *state;

	refuse_and_leave(t);
	the_job(t)->saves.problems[PROBLEM_PREPARE].left_ns -= 86400ull * 1000000000u;
	looks(t);
	assert_over(t, PROBLEM_PREPARE);
}

/* A storm: every step of every rank. */
static void test_saves_fail(void **state)
{
	struct node_test *t = *state;
	struct problem *p;

	begin_two(t);
	p = &the_job(t)->saves.problems[PROBLEM_SAVES];
	for (uint64_t step = 1; step <= 100; step++) {
		skip_step(&t->a, step, CKPT_SKIP_REFUSED, "tensor 'w' is on no device");
		skip_step(&t->b, step, CKPT_SKIP_REFUSED, "tensor 'w' has moved");
	}
	assert_raised(t, PROBLEM_SAVES, "rank 0 could not save step 1: tensor 'w' is on no device");
	assert_int_equal(p->ranks, 2);
	assert_int_equal(p->times, 200);
	assert_int_equal(the_job(t)->saves.skips[CKPT_SKIP_REFUSED], 200);
	/* Rank 1 had the last word; when it saves, what rank 0 said is shown. */
	assert_int_equal(p->rank, 1);
	assert_int_equal(save_rank(&t->b, 1, 101), 0);
	assert_true(p->stands);
	assert_int_equal(p->rank, 0);
	assert_non_null(strstr(p->text, "is on no device"));
	assert_int_equal(save_rank(&t->a, 0, 101), 0);
	assert_over(t, PROBLEM_SAVES);
}

/* It comes and goes with every step: said once, and its end once. */
static void test_failures_that_come_and_go(void **state)
{
	struct node_test *t = *state;
	char line[640];

	begin_one(t);
	for (uint64_t step = 1; step <= 20; step += 2) {
		skip_step(&t->a, step, CKPT_SKIP_REFUSED, "no");
		assert_true(problems_stand(the_job(t), PROBLEM_SAVES));
		save_until(&t->a, 0, step + 1, CKPT_COMMITTED);
	}
	assert_int_equal(count_events(t, "problem", "saves-fail", line), 1);
	assert_int_equal(count_events(t, "problem-ended", "saves-fail", line), 1);
}

/* Of slots that its process has not: no step was skipped, and the rank goes on as it was. */
static void test_a_credit_alone_comes_back(void **state)
{
	struct node_test *t = *state;
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Skip m = CKPT__SKIP__INIT;
	uint64_t credit;

	begin_one(t);
	save_until(&t->a, 0, 5, CKPT_COMMITTED);
	turns(t);
	credit = t->a.page->credit;
	assert_true(credit > t->a.used_credit);
	m.only_credit = true;
	m.epoch = t->a.epoch;
	m.credit = credit;
	m.kind = CKPT_SKIP_FAILED;
	m.reason = (char *)"its slots were replaced";
	q.body_case = CKPT__REQUEST__BODY_SKIP;
	q.skip = &m;
	assert_int_equal(hand_ask_code(&t->a, &q), 0);
	assert_false(problems_stand(the_job(t), PROBLEM_SAVES));
	assert_int_equal(the_job(t)->saves.skips[CKPT_SKIP_FAILED], 0);
	assert_int_equal(member_of_rank(the_job(t), 0)->next_save, 6);
	t->a.used_credit = credit;
	save_until(&t->a, 0, 6, CKPT_COMMITTED);
	assert_true(t->a.page->credit > credit);
}

/* Its seal's answer was lost with the ckptd that committed it. */
static void test_what_is_committed_has_not_failed(void **state)
{
	struct node_test *t = *state;
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Skip m = CKPT__SKIP__INIT;

	begin_one(t);
	save_until(&t->a, 0, 5, CKPT_COMMITTED);
	m.step = 5;
	m.epoch = t->a.epoch;
	m.kind = CKPT_SKIP_FAILED;
	m.reason = (char *)"its slots were replaced";
	q.body_case = CKPT__REQUEST__BODY_SKIP;
	q.skip = &m;
	assert_int_equal(hand_ask_code(&t->a, &q), 0);
	assert_false(problems_stand(the_job(t), PROBLEM_SAVES));
	assert_int_equal(the_job(t)->saves.skips[CKPT_SKIP_FAILED], 0);
	m.step = 6;
	assert_int_equal(hand_ask_code(&t->a, &q), 0);
	assert_true(problems_stand(the_job(t), PROBLEM_SAVES));
}

/* A rank that has not loaded in the new epoch yet still has saves of the old one. */
static void test_failures_of_an_older_epoch(void **state)
{
	struct node_test *t = *state;

	begin_one(t);
	save_until(&t->a, 0, 1, CKPT_COMMITTED);
	assert_true(t->a.epoch > 0);
	t->a.epoch += 7;
	skip_step(&t->a, 2, CKPT_SKIP_REFUSED, "no");
	t->a.epoch -= 7;
	assert_false(problems_stand(the_job(t), PROBLEM_SAVES));
	assert_int_equal(the_job(t)->saves.skips[CKPT_SKIP_REFUSED], 0);
	skip_step(&t->a, 2, CKPT_SKIP_REFUSED, "no");
	assert_raised(t, PROBLEM_SAVES, "rank 0 could not save step 2: no");
}

static void test_a_rank_with_a_problem_leaves(void **state)
{
	struct node_test *t = *state;

	begin_one(t);
	skip_step(&t->a, 1, CKPT_SKIP_REFUSED, "no");
	say_bye(&t->a);
	assert_over(t, PROBLEM_SAVES);
	assert_true(was_told("rank 0 has ended and its last save, of step 1, failed: no; nothing "
			     "was committed"));
}

/* ---- Skips ---- */

static void test_saves_are_skipped(void **state)
{
	struct node_test *t = *state;
	char line[640];

	t->o.skips_ns = 0;
	begin_one(t);
	save_until(&t->a, 0, 1, CKPT_COMMITTED);
	skip_step(&t->a, 2, CKPT_SKIP_FULL, "rank 0 has no free slot");
	skip_step(&t->a, 2, CKPT_SKIP_FULL, "rank 0 has no free slot"); /* of another rank, say */
	skip_step(&t->a, 3, CKPT_SKIP_CALLER, "the trainer skipped it");
	skip_step(&t->a, 4, CKPT_SKIP_FULL, "rank 0 has no free slot");
	assert_false(problems_stand(the_job(t), PROBLEM_SKIPS));
	skip_step(&t->a, 5, CKPT_SKIP_FULL, "rank 0 has no free slot");
	skip_step(&t->a, 6, CKPT_SKIP_FULL, "rank 0 has no free slot");
	assert_raised(t, PROBLEM_SKIPS,
		      "all saves since step 2 were skipped; the last one, of step "
		      "5: rank 0 has no free slot ('ckptctl why job'");
	assert_int_equal(the_job(t)->saves.problems[PROBLEM_SKIPS].times, 4); /* steps */
	assert_int_equal(the_job(t)->saves.skips[CKPT_SKIP_FULL], 5);
	assert_int_equal(the_job(t)->saves.skips[CKPT_SKIP_CALLER], 1);
	save_until(&t->a, 0, 7, CKPT_COMMITTED);
	assert_over(t, PROBLEM_SKIPS);
	assert_int_equal(count_events(t, "last-save-lost", NULL, line), 0);
}

/* Of a job without ranks nobody can say which rank blocks: it is over however they left. */
static void test_skips_end_with_the_last_rank(void **state)
{
	struct node_test *t = *state;

	t->o.skips_ns = 0;
	begin_two(t);
	for (uint64_t step = 2; step <= 4; step++)
		skip_step(&t->a, step, CKPT_SKIP_BEHIND, "rank 1 is behind");
	assert_raised(t, PROBLEM_SKIPS, "all saves since step 2 were skipped");
	member_left(member_of_rank(the_job(t), 0), MEMBER_ENDED);
	assert_true(problems_stand(the_job(t), PROBLEM_SKIPS));
	member_left(member_of_rank(the_job(t), 1), MEMBER_FAILED);
	assert_over(t, PROBLEM_SKIPS);
	assert_true(was_told("that is over: its last rank has left"));
}

/* Those of a job that skips more than it saves are nothing to be told of. */
static void test_some_skips_are_no_problem(void **state)
{
	struct node_test *t = *state;

	begin_one(t);
	for (uint64_t step = 1; step <= 50; step++)
		if (step % 10)
			skip_step(&t->a, step, CKPT_SKIP_FULL, "rank 0 has no free slot");
		else
			save_until(&t->a, 0, step, CKPT_COMMITTED);
	assert_false(problems_stand(the_job(t), PROBLEM_SKIPS));
	assert_false(was_told("were skipped"));
}

static void test_the_last_save_is_skipped(void **state)
{
	struct node_test *t = *state;
	char line[640];

	begin_two(t);
	assert_int_equal(save_rank(&t->a, 0, 10), 0);
	save_until(&t->b, 1, 10, CKPT_COMMITTED);
	skip_step(&t->a, 20, CKPT_SKIP_BEHIND, "rank 1 has not saved the step before yet");
	skip_step(&t->b, 20, CKPT_SKIP_BEHIND, "rank 1 has not saved the step before yet");
	say_bye(&t->a);
	say_bye(&t->b);
	turns(t);
	assert_int_equal(count_events(t, "last-save-lost", NULL, line), 1);
	assert_non_null(strstr(line, "rank 0 has ended and its last save, of step 20, was skipped: "
				     "rank 1 has not saved the step before yet; the newest "
				     "committed step is 10 ('ckptctl why job' says more)"));
	assert_true(was_told("4 job 'job': rank 0 has ended and its last save, of step 20"));
}

/* The remedy stands at the end of a sentence: it is not what goes. */
static void test_long_reasons_stay_whole(void **state)
{
	static const char why[] =
		"rank 0: 3 slots of 30 MiB each need 90 MiB of memory, 62 MiB of the budget of 64 "
		"MiB are left; raise memory.budget, end what else uses the memory of this node, or "
		"set memory.slots lower, and then prepare the rank once more (the end)";
	struct node_test *t = *state;
	char line[640], reason[1001];

	begin_one(t);
	skip_step(&t->a, 20, CKPT_SKIP_REFUSED, why);
	assert_raised(t, PROBLEM_SAVES, why);
	assert_string_equal(the_job(t)->saves.last_skip.reason, why);
	for (int i = 0; i < 1000; i++)
		reason[i] = i % 10 == 9 ? ' ' : 'x';
	reason[1000] = '\0';
	skip_step(&t->a, 21, CKPT_SKIP_REFUSED, reason);
	test_says(the_job(t)->saves.last_skip.reason, "xxxxxxxxx xxxxxxxxx...");
	skip_step(&t->a, 22, CKPT_SKIP_REFUSED, why);
	say_bye(&t->a);
	turns(t);
	assert_int_equal(count_events(t, "last-save-lost", NULL, line), 1);
	test_says(line, "(the end); nothing was committed ('ckptctl why job' says more)");
}

/* Rank 1 ends before it saves the step that rank 0 has saved. */
static void test_the_last_step_is_not_committed(void **state)
{
	struct node_test *t = *state;
	char line[640];

	begin_two(t);
	assert_int_equal(save_rank(&t->a, 0, 10), 0);
	save_until(&t->b, 1, 10, CKPT_COMMITTED);
	assert_int_equal(save_rank(&t->a, 0, 20), 0);
	say_bye(&t->b);
	say_bye(&t->a);
	turns(t);
	assert_int_equal(count_events(t, "last-save-lost", NULL, line), 1);
	assert_non_null(strstr(line, "their last save, of step 20, is not committed; the newest "
				     "committed step is 10 ('ckptctl why job' says more)"));
}

static void test_the_last_step_is_committed(void **state)
{
	struct node_test *t = *state;
	char line[640];

	begin_one(t);
	assert_int_equal(save_rank(&t->a, 0, 10), 0);
	say_bye(&t->a); /* before it is committed */
	turns(t);
	assert_int_equal(the_job(t)->history.n_commits, 1);
	assert_int_equal(count_events(t, "last-save-lost", NULL, line), 0);
}

/* ---- Of the job ---- */

static void test_log_cannot_be_written(void **state)
{
	struct node_test *t = *state;
	uint64_t end = 0;

	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_COMMITTED);
	assert_int_equal(t->a.page->uncommitted, 0);
	log_error = -EIO;
	for (uint64_t step = 20; step <= 50; step += 10) {
		assert_int_equal(save_rank(&t->a, 0, step), 0);
		while (!problems_stand(the_job(t), PROBLEM_LOG) && turn_on(t, &end))
			;
	}
	assert_raised(t, PROBLEM_LOG, "append record ");
	assert_int_equal(t->a.page->uncommitted, 4);
	assert_int_equal(t->a.page->uncommitted_from, 20);
	log_error = 0;
	for (end = 0; problems_stand(the_job(t), PROBLEM_LOG) && turn_on(t, &end);)
		;
	assert_over(t, PROBLEM_LOG);
	assert_int_equal(t->a.page->uncommitted, 0);
}

/* Its fsync does not come back: there is no error, and it is said all the same. */
static void test_log_hangs(void **state)
{
	struct node_test *t = *state;
	uint64_t end = 0;

	t->o.warn_after_ns = 400000000;
	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_COMMITTED);
	atomic_store(&log_sync_waits, true);
	assert_int_equal(save_rank(&t->a, 0, 20), 0);
	while (!problems_stand(the_job(t), PROBLEM_LOG) && turn_on(t, &end))
		;
	assert_raised(t, PROBLEM_LOG, "record ");
	assert_non_null(strstr(the_job(t)->saves.problems[PROBLEM_LOG].text, "does not answer"));
	assert_int_equal(t->a.page->uncommitted, 1);
	atomic_store(&log_sync_waits, false);
	for (end = 0; problems_stand(the_job(t), PROBLEM_LOG) && turn_on(t, &end);)
		;
	assert_over(t, PROBLEM_LOG);
	assert_int_equal(hand_wait(&t->a, 20, CKPT_COMMITTED), 0);
	assert_int_equal(t->a.page->uncommitted, 0);
}

/* A step that every rank has sealed and that is aborted for another reason than the log. */
static void test_aborted_is_not_uncommitted(void **state)
{
	struct node_test *t = *state;
	uint64_t end = 0;

#ifndef CKPT_FAULTS
	skip();
#endif
	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_COMMITTED);
	log_error = -EIO;
	assert_int_equal(save_rank(&t->a, 0, 20), 0);
	while (!problems_stand(the_job(t), PROBLEM_LOG) && turn_on(t, &end))
		;
	fault_arm(FAULT_DIGESTED, FAULT_ERROR, fault_hits(FAULT_DIGESTED) + 1, false);
	assert_int_equal(save_rank(&t->a, 0, 30), 0);
	turn_until_told(t, "step 30 aborted: digest rank 0");
	fault_disarm_all();
	assert_int_equal(t->a.page->uncommitted, 1);
	assert_int_equal(t->a.page->uncommitted_from, 20);
	assert_int_equal(save_rank(&t->a, 0, 40), 0);
	assert_int_equal(t->a.page->uncommitted, 2);
}

static void test_disk_is_full(void **state)
{
	struct node_test *t = *state;
	uint64_t end = 0;

	begin_one(t);
	pretended_room = 1000;
	save_until(&t->a, 0, 10, CKPT_COMMITTED);
	turn_until_told(t, "step 10 stays in memory until there is room");
	assert_raised(t, PROBLEM_DISK, "step 10 stays in memory until there is room: ");
	pretended_room = UINT64_MAX;
	while (problems_stand(the_job(t), PROBLEM_DISK) && turn_on(t, &end))
		;
	assert_over(t, PROBLEM_DISK);
}

/* One of them is why the newest is only in memory. */
static void test_folder_is_away_or_full(void **state)
{
	struct node_test *t = *state;

	begin_one(t);
	problems_folder_away(the_job(t), 10, "it is gone");
	assert_raised(t, PROBLEM_FOLDER, "step 10 stays in memory until its data folder is back: ");
	problems_disk_full(the_job(t), 10, "no room");
	assert_over(t, PROBLEM_FOLDER);
	assert_raised(t, PROBLEM_DISK, "step 10 stays in memory until there is room: no room");
	problems_folder_away(the_job(t), 10, "it is gone");
	assert_over(t, PROBLEM_DISK);
	assert_true(problems_stand(the_job(t), PROBLEM_FOLDER));
}

static void turn_until_over(struct node_test *t, enum job_problem k)
{
	uint64_t end = 0;

	while (problems_stand(the_job(t), k) && turn_on(t, &end))
		;
	assert_over(t, k);
}

static void turn_until_raised(struct node_test *t, enum job_problem k, const char *words)
{
	uint64_t end = 0;

	while (!problems_stand(the_job(t), k) && turn_on(t, &end))
		;
	assert_raised(t, k, words);
}

/* Where the log has no room either, no step is wanted on disk: that makes no room. */
static void test_a_full_disk_stays_full(void **state)
{
	struct node_test *t = *state;

	t->o.warn_after_ns = 100000000;
	begin_one(t);
	pretended_room = 1000;
	log_error = -ENOSPC;
	assert_int_equal(save_rank(&t->a, 0, 10), 0);
	turn_until_told(t, "step 10 stays in memory until there is room");
	turn_until_raised(t, PROBLEM_LOG, "append record ");
	for (uint64_t step = 20; step <= 60; step += 10)
		assert_int_equal(save_rank(&t->a, 0, step), 0);
	persist_room(t->host.node); /* as a timer does */
	turn_until_raised(t, PROBLEM_DISK_LOW, "its next save needs ");
	looks(t);
	assert_raised(t, PROBLEM_DISK, "step 10 stays in memory until there is room: ");
	say_bye(&t->a); /* nor does it make room that the job ends */
	looks(t);
	assert_true(problems_stand(the_job(t), PROBLEM_DISK));
	pretended_room = UINT64_MAX;
	turn_until_over(t, PROBLEM_DISK);
	turn_until_over(t, PROBLEM_DISK_LOW);
}

#define RESERVE (64ull << 20)

static void begin_low(struct node_test *t)
{
	t->o.warn_after_ns = 100000000;
	t->o.disk_reserve = RESERVE;
	t->o.retention.keep_last = 1;
	t->o.keep_verified = false;
	t->o.spare_bytes = 0;
	begin_one(t);
}

/* Said while the job still runs, and true: the launch is refused. */
static void test_a_launch_would_find_no_room(void **state)
{
	struct node_test *t = *state;
	uint64_t one;

	begin_low(t);
	save_until(&t->a, 0, 10, CKPT_DURABLE);
	one = the_job(t)->next_bytes;
	assert_in_range(one, ELEMENTS * 4, ELEMENTS * 4 + 65536);
	pretended_room = RESERVE + 2 * one + one / 2;
	looks(t);
	assert_false(problems_stand(the_job(t), PROBLEM_DISK_LOW));
	pretended_room = RESERVE + one + one / 2;
	turn_until_raised(t, PROBLEM_DISK_LOW,
			  "a launch of it would be refused: its checkpoints need ");
	save_until(&t->a, 0, 20, CKPT_DURABLE); /* saves go on */
	assert_true(problems_stand(the_job(t), PROBLEM_DISK_LOW));
	say_bye(&t->a);
	leave(&t->a);
	join(t, &t->a, 0, 1, "run2");
	declare_rank(&t->a, 0, 1);
	assert_int_equal(hand_prepare(&t->a), CKPT_ENOSPACE);
	assert_raised(t, PROBLEM_PREPARE, "no room on disk for the saves of rank 0: ");
	pretended_room = UINT64_MAX;
	turn_until_over(t, PROBLEM_DISK_LOW);
	prepare_rank(&t->a);
}

static void next_run(struct node_test *t, const char *run)
{
	say_bye(&t->a);
	leave(&t->a);
	join(t, &t->a, 0, 1, run);
	declare_and_prepare(&t->a, 0, 1);
}

/* The highest step stays beside what the next launch keeps: its room is counted. */
static void test_a_job_that_went_back_needs_more(void **state)
{
	struct node_test *t = *state;
	uint64_t room;

	begin_low(t);
	save_until(&t->a, 0, 100, CKPT_DURABLE);
	next_run(t, "run2");
	room = RESERVE + the_job(t)->next_bytes * 3 / 2;
	load_rank(&t->a, 0, 100, CKPT_TIER_MEMORY);
	save_until(&t->a, 0, 110, CKPT_DURABLE);
	pretended_room = room;
	looks(t);
	assert_false(problems_stand(the_job(t), PROBLEM_DISK_LOW));
	pretended_room = UINT64_MAX;
	next_run(t, "run3");
	assert_int_equal(save_rank(&t->a, 0, 10), 0);
	assert_int_equal(hand_wait(&t->a, 10, CKPT_DURABLE), 0);
	pretended_room = room;
	turn_until_raised(t, PROBLEM_DISK_LOW, "a launch of it would be refused");
}

static void test_damage(void **state)
{
	struct node_test *t = *state;
	uint64_t end = 0;

	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_DURABLE);
	checkpoint_suspect(list_first(&the_job(t)->checkpoints, struct checkpoint, link), 0,
			   "rank 0: for a test");
	assert_raised(t, PROBLEM_DAMAGE, "step 10 on disk is damaged: rank 0: for a test");
	job_poke(the_job(t)); /* it is written again from memory */
	while (problems_stand(the_job(t), PROBLEM_DAMAGE) && turn_on(t, &end))
		;
	assert_over(t, PROBLEM_DAMAGE);
}

static void test_nothing_is_committed_for_long(void **state)
{
	struct node_test *t = *state;
	uint64_t end = 0;

	t->o.warn_after_ns = 100000000;
	begin_two(t);
	assert_int_equal(save_rank(&t->a, 0, 10), 0); /* and rank 1 does not */
	while (!problems_stand(the_job(t), PROBLEM_NO_COMMIT) && turn_on(t, &end))
		;
	assert_raised(t, PROBLEM_NO_COMMIT, "nothing was committed since its epoch began");
	save_until(&t->b, 1, 10, CKPT_COMMITTED);
	assert_over(t, PROBLEM_NO_COMMIT);
}

static void test_nothing_is_committed_while_the_log_is_down(void **state)
{
	struct node_test *t = *state;
	uint64_t end = 0;

	t->o.warn_after_ns = 100000000;
	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_COMMITTED);
	log_error = -EROFS;
	assert_int_equal(save_rank(&t->a, 0, 20), 0);
	while (!problems_stand(the_job(t), PROBLEM_NO_COMMIT) && turn_on(t, &end))
		;
	assert_true(problems_stand(the_job(t), PROBLEM_LOG));
	assert_raised(t, PROBLEM_NO_COMMIT, "nothing was committed since step 10");
	log_error = 0;
	while (problems_stand(the_job(t), PROBLEM_LOG) && turn_on(t, &end))
		;
	assert_over(t, PROBLEM_NO_COMMIT);
}

/* What a restart knows of the job: its log, and its ranks with their pages. */
static void test_a_restart_does_not_hide_it(void **state)
{
	struct node_test *t = *state;
	uint64_t end = 0;
	struct job *j;

	begin_two(t);
	j = the_job(t);
	beat_page_put_saving(t->a.beats, t->a.epoch, 10, false);
	j->history.epoch_wall_ns -= 3600000000000u;
	j->saves = (struct saves){0};
	problems_adopted(j);
	while (!problems_stand(j, PROBLEM_NO_COMMIT) && turn_on(t, &end))
		;
	assert_raised(t, PROBLEM_NO_COMMIT, "nothing was committed since its epoch began, for 36");
	beat_page_put_saving(t->b.beats, t->b.epoch, 10, false);
	assert_int_equal(save_rank(&t->a, 0, 10), 0);
	save_until(&t->b, 1, 10, CKPT_COMMITTED);
	assert_over(t, PROBLEM_NO_COMMIT);
	j->saves = (struct saves){0};
	problems_adopted(j); /* it was committed just now */
	for (int i = 0; i < 50; i++)
		host_turn(&t->host);
	assert_false(problems_stand(j, PROBLEM_NO_COMMIT));
	j->saves = (struct saves){0};
	j->history.commits[j->history.n_commits - 1].wall_ns -= 3600000000000u;
	problems_adopted(j);
	while (!problems_stand(j, PROBLEM_NO_COMMIT) && turn_on(t, &end))
		;
	assert_true(was_told("nothing was committed since step 10, for 36"));
}

/* A job that only loads. */
static void test_who_never_saves_is_not_late(void **state)
{
	struct node_test *t = *state;
	struct timespec pause = {.tv_nsec = 200000000};

	t->o.warn_after_ns = 1000000;
	begin_node(t);
	join(t, &t->a, 0, 1, "run1");
	declare_rank(&t->a, 0, 1);
	nanosleep(&pause, NULL);
	turns(t);
	assert_false(problems_stand(the_job(t), PROBLEM_NO_COMMIT));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		NODE_TEST(test_prepare_is_refused),
		NODE_TEST(test_a_refusal_outlives_its_rank),
		NODE_TEST(test_a_refusal_is_forgotten_after_a_day),
		NODE_TEST(test_saves_fail),
		NODE_TEST(test_failures_that_come_and_go),
		NODE_TEST(test_a_credit_alone_comes_back),
		NODE_TEST(test_what_is_committed_has_not_failed),
		NODE_TEST(test_failures_of_an_older_epoch),
		NODE_TEST(test_a_rank_with_a_problem_leaves),
		NODE_TEST(test_saves_are_skipped),
		NODE_TEST(test_skips_end_with_the_last_rank),
		NODE_TEST(test_some_skips_are_no_problem),
		NODE_TEST(test_the_last_save_is_skipped),
		NODE_TEST(test_long_reasons_stay_whole),
		NODE_TEST(test_the_last_step_is_not_committed),
		NODE_TEST(test_the_last_step_is_committed),
		NODE_TEST(test_log_cannot_be_written),
		NODE_TEST(test_log_hangs),
		NODE_TEST(test_aborted_is_not_uncommitted),
		NODE_TEST(test_disk_is_full),
		NODE_TEST(test_folder_is_away_or_full),
		NODE_TEST(test_a_full_disk_stays_full),
		NODE_TEST(test_a_launch_would_find_no_room),
		NODE_TEST(test_a_job_that_went_back_needs_more),
		NODE_TEST(test_damage),
		NODE_TEST(test_nothing_is_committed_for_long),
		NODE_TEST(test_nothing_is_committed_while_the_log_is_down),
		NODE_TEST(test_a_restart_does_not_hide_it),
		NODE_TEST(test_who_never_saves_is_not_late),
	};

	return cmocka_run_group_tests_name("ckptd/test_problems", tests, NULL, NULL);
}
