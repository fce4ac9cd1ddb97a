/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What follows from a verdict, end to end in a node: the table that is built in, a drain by it, and
 * who may still open on a node that is drained.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/loop.h"
#include "ckptd/acting.h"
#include "ckptd/events.h"
#include "ckptd/node_priv.h"
#include "ckptd/test_node_rig.h"
#include "ckptd/watching.h"
#include "detect/verdicts.h"
#include "detect/xid_policy.h"
#include "proto/session.pb-c.h"

static void turns(struct node_test *t)
{
	for (int i = 0; i < 50; i++)
		host_turn(&t->host);
}

/* A check of the node, not begun by it, has found something, or nothing. */
static void tell_check(struct node_test *t, const char *what, bool passed)
{
	struct sample s = {.kind = SAMPLE_CHECK,
			   .node = WATCHING_NODE,
			   .job = SAMPLE_NONE,
			   .rank = SAMPLE_NONE,
			   .device = SAMPLE_NONE,
			   .check = {.value = 1, .low = 5, .high = 9, .passed = passed}};

	snprintf(s.check.what, sizeof(s.check.what), "%s", what);
	node_sample(t->host.node, &s);
	turns(t);
}

static void fail_check(struct node_test *t)
{
	tell_check(t, "memory-copy", false);
}

/* Nobody has given a policy, and nothing is tried out: a node that fails its check is drained. */
static void test_drained_by_the_built_in_table(void **state)
{
	struct node_test *t = *state;
	struct marks *m;

	begin_one(t);
	assert_string_equal(policy_name(acting_policy(t->host.node)), "the table of ckptd");
	save_until(&t->a, 0, 1, CKPT_COMMITTED);
	m = &t->host.node->marks;
	assert_false(m->drained);
	fail_check(t);
	assert_true(m->drained);
	assert_string_equal(m->drain.reason, "by the policy");
	assert_non_null(marks_find(m, "node 'node'", EVENT_FOR_ALL));
	assert_true(was_told("is drained (by the policy): what runs goes on"));
	/* What was newest in memory goes to disk. */
	for (uint64_t end = 0; !was_told("job 'job': step 1 is on disk") && turn_on(t, &end);)
		;
	assert_true(was_told("job 'job': step 1 is on disk"));
	connect_rank(t, &t->b);
	assert_int_equal(hand_open(&t->b, "other", 0, 1, "run1"), CKPT_ESTATE);
	test_says(t->b.text, "is drained (by the policy)");
	acting_undrain(t->host.node, "a test");
	assert_int_equal(hand_open(&t->b, "other", 0, 1, "run1"), 0);
}

static void test_dry_run_drains_nothing(void **state)
{
	struct node_test *t = *state;

	t->o.dry_run = true;
	begin_one(t);
	fail_check(t);
	assert_false(t->host.node->marks.drained);
	assert_int_equal(t->host.node->marks.n, 0);
	assert_true(was_told("detect.dry_run is on"));
}

/* ---- A check that the policy began ---- */

static void (*answer)(void *arg, int status, const char *json, size_t len);
static void *answer_arg;

static int fake_start(struct checks *c, bool idle,
		      void (*done)(void *arg, int status, const char *json, size_t len), void *arg)
{
	(void)c;
	assert_true(idle);
	assert_null(answer);
	answer = done;
	answer_arg = arg;
	return 0;
}

static void fake_cancel(struct checks *c)
{
	(void)c;
}

static const char failed_check[] = "{\"results\": [{\"name\": \"memory-copy\", \"state\": "
				   "\"failed\", \"value\": 1, \"low\": 5, \"high\": 9}]}";

static void use_fake_checks(struct node_test *t)
{
	static const struct checks_ops ops = {.start = fake_start, .cancel = fake_cancel};
	static struct checks fake = {.ops = &ops};

	answer = NULL;
	t->checks = &fake;
}

/* A message of the kernel that is an alarm of the machine. */
static void pcie_error(struct node_test *t)
{
	struct sample s = {.kind = SAMPLE_KERNEL,
			   .node = WATCHING_NODE,
			   .job = SAMPLE_NONE,
			   .rank = SAMPLE_NONE,
			   .device = SAMPLE_NONE,
			   .kernel = {.level = 3}};

	snprintf(s.kernel.text, sizeof(s.kernel.text),
		 "nvidia 0000:83:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Data");
	node_sample(t->host.node, &s);
	turns(t);
}

/* The node has met something, is checked for it, and the check fails: it is drained at once, though
 * something was done for it just before. */
static void test_a_check_that_fails_drains(void **state)
{
	struct node_test *t = *state;

	use_fake_checks(t);
	begin_one(t);
	pcie_error(t);
	assert_true(was_told("ckptd does checkpoint+mark-suspect+validate"));
	assert_non_null(answer);
	assert_false(t->host.node->marks.drained);
	answer(answer_arg, 1, failed_check, strlen(failed_check));
	turns(t);
	assert_true(t->host.node->marks.drained);
	assert_false(was_told("not done: "));
}

/* ---- What users can fake ---- */

static void take_table(struct node *n, const char *table)
{
	struct err e = {0};

	if (node_set_policy(n, "a test's", table, strlen(table), &e) < 0)
		fail_msg("%s", e.text);
}

/* A verdict that a rank hangs; its job need not exist any more. */
static void hangs(struct node_test *t, uint32_t uid, uint32_t job, uint32_t rank)
{
	struct verdict v = {.id = job * 100u + rank + 1,
			    .subject = subject_rank(job, rank, WATCHING_NODE),
			    .class = CLASS_HUNG,
			    .cause = CAUSE_STOPPED,
			    .level = LEVEL_ALARM,
			    .advice = ACTION_RESTORE,
			    .of_jobs = true,
			    .of_one_owner = true,
			    .owner = uid};

	acting_verdict(t->host.node, &v);
	host_turn(&t->host);
	host_turn(&t->host);
	if (!answer)
		return;
	answer(answer_arg, 1, failed_check, strlen(failed_check));
	answer = NULL;
	host_turn(&t->host);
	host_turn(&t->host);
}

static void begin_with_checks(struct node_test *t)
{
	use_fake_checks(t);
	t->o.actions_per_hour = 100;
	begin_one(t);
}

/* An alarm of the machine. */
static void pcie_fails(struct node_test *t)
{
	pcie_error(t);
	if (answer) /* what the message itself asks for passes */
		answer(answer_arg, 0, "", 0);
	answer = NULL;
	turns(t);
}

/* However many jobs of however many users hang, and whatever a check finds beside them: the node is
 * neither marked nor drained. An alarm of the machine is needed for that. */
static void drains_nothing(struct node_test *t, unsigned times_more)
{
	struct marks *m = &t->host.node->marks;

	for (uint32_t i = 0; i < 40; i++)
		hangs(t, 1000, 50 + i % 10, i % 3);
	assert_false(m->drained);
	assert_null(marks_find(m, "node 'node'", EVENT_FOR_ALL));
	assert_true(was_told("only jobs asked for it"));
	for (uint32_t i = 0; i < 10; i++)
		hangs(t, 1001 + i % 2, 80 + i % 10, i % 3);
	assert_false(m->drained);
	assert_null(marks_find(m, "node 'node'", EVENT_FOR_ALL));
	pcie_fails(t);
	for (unsigned i = 0; i < times_more; i++) {
		assert_false(m->drained);
		hangs(t, 1001, 80, 4);
	}
	assert_true(m->drained);
}

/* By the built-in table, which asks for a check the second time. */
static void test_jobs_drain_nothing(void **state)
{
	struct node_test *t = *state;

	begin_with_checks(t);
	drains_nothing(t, 2);
	assert_non_null(marks_find(&t->host.node->marks, "node 'node'", EVENT_FOR_ALL));
}

/* By a table that drains the node for any hang. */
static void test_jobs_and_a_harsh_table(void **state)
{
	struct node_test *t = *state;

	begin_with_checks(t);
	take_table(t->host.node, "hung * alarm * * * * mark-suspect+validate+drain - -\n");
	drains_nothing(t, 1);
}

/* The same with an alarm of the machine beside the verdicts on one user's jobs. */
static void test_one_user_and_the_machine(void **state)
{
	struct node_test *t = *state;

	begin_with_checks(t);
	hangs(t, 1000, 50, 0);
	hangs(t, 1000, 50, 0);
	assert_false(t->host.node->marks.drained);
	pcie_fails(t);
	hangs(t, 1000, 51, 0);
	hangs(t, 1000, 51, 0);
	assert_true(t->host.node->marks.drained);
}

/* A node by what its only user's jobs show: for that user's eyes, and that user's jobs alone. */
static void test_a_node_by_one_users_word(void **state)
{
	struct node_test *t = *state;
	struct verdict v = {.id = 7,
			    .subject = subject_node(WATCHING_NODE),
			    .class = CLASS_SLOW,
			    .cause = CAUSE_STRAGGLER,
			    .level = LEVEL_ALARM,
			    .advice = ACTION_DRAIN,
			    .of_jobs = true,
			    .of_one_owner = true,
			    .owner = 4242};
	struct events_question q = {.uid = 4243};
	json_t *doc;

	begin_with_checks(t);
	acting_verdict(t->host.node, &v);
	turns(t);
	assert_int_equal(t->host.node->marks.n, 0);
	assert_true(was_told("only jobs say so"));
	doc = events_answer(t->host.node->events, &q);
	for (size_t i = 0; i < json_array_size(json_object_get(doc, "events")); i++) {
		const json_t *e = json_array_get(json_object_get(doc, "events"), i);

		assert_string_not_equal(json_string_value(json_object_get(e, "kind")),
					event_kind_word(EVENT_DECISION));
	}
	json_decref(doc);
}

/* A burst of one user's verdicts leaves room for one on the node in the same turn. */
static void test_a_burst_of_jobs(void **state)
{
	struct node_test *t = *state;

	begin_with_checks(t);
	for (uint32_t i = 0; i < 200; i++) {
		struct verdict v = {.id = i + 1,
				    .subject = subject_rank(50, i, WATCHING_NODE),
				    .class = CLASS_HUNG,
				    .cause = CAUSE_STOPPED,
				    .level = LEVEL_ALARM,
				    .advice = ACTION_RESTORE,
				    .of_jobs = true,
			    .of_one_owner = true,
				    .owner = 1000};

		acting_verdict(t->host.node, &v);
	}
	fail_check(t);
	assert_true(t->host.node->marks.drained);
}

/* Marks of one user's jobs leave room for another's, and no other user's open shows them. */
static void test_marks_of_one_user(void **state)
{
	struct node_test *t = *state;
	const struct mark *first;
	struct marks *m;
	char words[40];

	begin_one(t);
	m = &t->host.node->marks;
	for (int i = 0; i < 100; i++) {
		snprintf(words, sizeof(words), "rank %d of job 'x'", i);
		assert_int_equal(marks_add(m, words, "hung", 1000), i < (int)MARKS_UID_MAX);
	}
	assert_true(marks_add(m, "rank 1 of job 'y'", "hung", 1001));
	assert_int_equal(marks_of(m, 1002, &first), 0);
	assert_null(first);
	assert_int_equal(marks_of(m, 1001, &first), 1);
	assert_string_equal(first->words, "rank 1 of job 'y'");
	assert_true(marks_add(m, "node 'node'", "failing", EVENT_FOR_ALL));
	assert_int_equal(marks_of(m, 1002, &first), 1);
}

/* ---- What was withheld ---- */

#define DRAINS "* check-failed alarm * * * * mark-suspect+drain - "

/* Drained for one check, and undrained by a person: so the next one comes too soon. */
static struct node *begin_drained(struct node_test *t, const char *table)
{
	begin_one(t);
	take_table(t->host.node, table);
	tell_check(t, "memory-copy", false);
	assert_true(t->host.node->marks.drained);
	acting_undrain(t->host.node, "a test");
	return t->host.node;
}

/* Its verdict stands, so nothing more is told of it: it is drained when the hold is over. */
static void test_withheld_is_done_later(void **state)
{
	struct node_test *t = *state;
	struct node *n = begin_drained(t, DRAINS "4s\n");

	tell_check(t, "disk-read", false);
	for (uint64_t end = 0; !n->marks.drained && turn_on(t, &end);)
		;
	assert_true(n->marks.drained);
}

/* Another table, or another budget: what waits is decided on again, but who is well asks for
 * nothing. */
static void test_withheld_and_reloaded(void **state)
{
	struct node_test *t = *state;
	struct node *n = begin_drained(t, DRAINS "1h\n");

	tell_check(t, "disk-read", false);
	assert_false(n->marks.drained);
	assert_true(was_told("not done: drain was done for it before: held down for "));
	take_table(n, DRAINS "-\n");
	turns(t);
	assert_true(n->marks.drained);
	assert_true(was_told("says drain, which was withheld before"));
	take_table(n, DRAINS "1h\n");
	acting_undrain(n, "a test");
	tell_check(t, "disk-write", false);
	tell_check(t, "disk-write", true);
	take_table(n, DRAINS "-\n");
	turns(t);
	assert_false(n->marks.drained);
}

/* Failed and passed in one turn: decided on when it is over already, it does not wait. */
static void test_over_before_it_was_decided(void **state)
{
	struct sample s = {.kind = SAMPLE_CHECK,
			   .node = WATCHING_NODE,
			   .job = SAMPLE_NONE,
			   .rank = SAMPLE_NONE,
			   .device = SAMPLE_NONE,
			   .check = {.what = "disk-read", .value = 1, .low = 5, .high = 9}};
	struct node_test *t = *state;
	struct node *n = begin_drained(t, DRAINS "1h\n");

	node_sample(n, &s);
	s.check.passed = true;
	node_sample(n, &s);
	turns(t);
	assert_true(was_told("not done: drain was done for it before"));
	take_table(n, DRAINS "-\n");
	turns(t);
	assert_false(n->marks.drained);
}

static void say_goodbye(struct node_test *t, struct hand *k)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Bye bye = CKPT__BYE__INIT;
	uint64_t id;

	q.body_case = CKPT__REQUEST__BODY_BYE;
	q.bye = &bye;
	assert_int_equal(hand_send(k, &q), 0);
	assert_int_equal(hand_receive(k, &id), 0);
	leave(k);
	turns(t);
}

/* What runs goes on: the ranks of its run that come later are let in, those of another are not. */
static void test_drained_amid_a_run(void **state)
{
	struct node_test *t = *state;

	begin_node(t);
	join(t, &t->a, 0, 2, "run1");
	acting_drain(t->host.node, "a test");
	connect_rank(t, &t->b);
	assert_int_equal(open_rank(&t->b, 1, 2, "run2"), CKPT_ESTATE);
	test_says(t->b.text, "is drained (a test)");
	assert_int_equal(open_rank(&t->b, 1, 2, "run1"), 0);
	/* One of them fails and comes again. */
	member_left(member_of_rank(list_first(&t->host.node->jobs, struct job, link), 1),
		    MEMBER_ENDED);
	leave(&t->b);
	turns(t);
	connect_rank(t, &t->b);
	assert_int_equal(open_rank(&t->b, 1, 2, "run1"), 0);
	/* All have said goodbye: it is over, and begins no more. */
	say_goodbye(t, &t->a);
	say_goodbye(t, &t->b);
	connect_rank(t, &t->a);
	assert_int_equal(open_rank(&t->a, 0, 2, "run1"), CKPT_ESTATE);
	/* Nor does one that gives no run id. */
	assert_int_equal(open_rank(&t->a, 0, 2, ""), CKPT_ESTATE);
}

static int refuse(struct checks *c, bool idle,
		  void (*done)(void *arg, int status, const char *text, size_t len), void *arg)
{
	(void)c;
	(void)idle;
	(void)done;
	(void)arg;
	return -ENOENT;
}

/* The policy asks for a check, and there is no program for it: which option names it is said. */
static void test_check_that_does_not_start(void **state)
{
	static const struct checks_ops ops = {.start = refuse};
	struct checks none = {.ops = &ops};
	struct sample s = {.kind = SAMPLE_MEMORY,
			   .node = WATCHING_NODE,
			   .job = SAMPLE_NONE,
			   .rank = SAMPLE_NONE,
			   .device = SAMPLE_NONE};
	struct node_test *t = *state;

	t->checks = &none;
	begin_one(t);
	for (int i = 0; i < 2; i++) {
		s.memory.uncorrected = (uint64_t)i;
		node_sample(t->host.node, &s);
		turns(t);
	}
	assert_true(was_told("was not checked for the sake of node 'node': its program "
			     "(detect.check, else the installed ckptctl) does not start"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		NODE_TEST(test_drained_by_the_built_in_table),
		NODE_TEST(test_dry_run_drains_nothing),
		NODE_TEST(test_a_check_that_fails_drains),
		NODE_TEST(test_jobs_drain_nothing),
		NODE_TEST(test_jobs_and_a_harsh_table),
		NODE_TEST(test_one_user_and_the_machine),
		NODE_TEST(test_a_node_by_one_users_word),
		NODE_TEST(test_a_burst_of_jobs),
		NODE_TEST(test_marks_of_one_user),
		NODE_TEST(test_withheld_is_done_later),
		NODE_TEST(test_withheld_and_reloaded),
		NODE_TEST(test_over_before_it_was_decided),
		NODE_TEST(test_drained_amid_a_run),
		NODE_TEST(test_check_that_does_not_start),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
