/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that leave without a goodbye: what is told of them, and who may come in their place.
 */
#include <config.h>

#include <stdio.h>
#include <string.h>

#include "base/loop.h"
#include "ckptd/job.h"
#include "ckptd/leaving.h"
#include "ckptd/node_priv.h"
#include "ckptd/process_ends.h"
#include "ckptd/test_node_rig.h"
#include "ckptd/watching.h"
#include "detect/verdicts.h"
#include "proto/session.pb-c.h"

/* Returns the process that is waited for. */
static struct process_id goes(struct node_test *t, struct hand *k, uint32_t rank, bool failed)
{
	struct process_id p = member_of_rank(the_job(t), rank)->process;
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Bye bye = CKPT__BYE__INIT;
	uint64_t id;

	bye.failed = failed;
	q.body_case = CKPT__REQUEST__BODY_BYE;
	q.bye = &bye;
	assert_int_equal(hand_send(k, &q), 0);
	assert_int_equal(hand_receive(k, &id), 0);
	leave(k);
	assert_null(member_of_rank(the_job(t), rank));
	return p;
}

static void ends(struct node_test *t, const struct process_id *p, enum process_end how, int value)
{
	while (leaving_process_exit(t->host.node, p, &(struct process_exit){how, value}))
		;
}

/* How many alarms stand against the job's ranks; *ret: the newest verdict. */
static unsigned alarms(struct node_test *t, struct verdict *ret)
{
	struct subject s = subject_job(the_job(t)->number);
	struct verdict v[8];
	size_t n = watching_standing(t->host.node, &s, v, 8);
	unsigned found = 0;

	for (size_t i = 0; i < n; i++)
		found += v[i].level == LEVEL_ALARM && v[i].class == CLASS_DEAD;
	if (n && ret)
		*ret = v[0];
	return found;
}

static void begin_three(struct node_test *t)
{
	begin_node(t);
	join(t, &t->a, 0, 3, "run1");
	join(t, &t->b, 1, 3, "run1");
}

/* The end of its process is the failure that it is; the first one is the alarm. */
static void test_failure_is_told(void **state)
{
	struct node_test *t = *state;
	struct process_id p;
	struct verdict v;

	begin_three(t);
	p = goes(t, &t->b, 1, true);
	assert_int_equal(alarms(t, NULL), 0);
	assert_int_equal(the_job(t)->goodput.state, GOODPUT_RESTART);
	ends(t, &(struct process_id){.pid = p.pid + 1, .start = p.start}, PROCESS_END_STATUS, 1);
	assert_int_equal(alarms(t, NULL), 0);
	ends(t, &p, PROCESS_END_STATUS, 1);
	assert_int_equal(alarms(t, &v), 1);
	assert_int_equal(v.subject.rank, 1);
	test_says(v.words, "ended with status 1 while its run was on");
	p = goes(t, &t->a, 0, true);
	ends(t, &p, PROCESS_END_SIGNAL, 6);
	assert_int_equal(alarms(t, &v), 1);
	assert_int_equal(v.level, LEVEL_NOTE);
	test_says(v.words, "after rank 1 had");
	assert_false(was_told("has said goodbye"));
	assert_int_equal(the_job(t)->goodput.state, GOODPUT_RESTART);
	assert_false(the_job(t)->run_over);
}

/* What failed was caught: status 0. The run is over when the last one is seen to be well. */
static void test_caught(void **state)
{
	struct node_test *t = *state;
	struct process_id p;

	begin_three(t);
	p = goes(t, &t->b, 1, true);
	goes(t, &t->a, 0, false);
	assert_false(the_job(t)->run_over);
	ends(t, &p, PROCESS_END_STATUS, 0);
	assert_true(the_job(t)->run_over);
	assert_int_equal(the_job(t)->goodput.state, GOODPUT_AWAY);
	assert_int_equal(alarms(t, NULL), 0);
}

/* It opens the job again, in whatever way: nothing is told when it ends later. */
static void test_goes_on(void **state)
{
	struct node_test *t = *state;
	struct process_id p;

	begin_three(t);
	p = goes(t, &t->b, 1, true);
	join(t, &t->b, 2, 3, "run1"); /* as another rank */
	assert_true(list_empty(&the_job(t)->leaving));
	ends(t, &p, PROCESS_END_STATUS, 1);
	assert_int_equal(alarms(t, NULL), 0);
	goes(t, &t->b, 2, true);
	join(t, &t->b, 2, 3, "run1"); /* as the same */
	assert_true(list_empty(&the_job(t)->leaving));
	assert_int_equal(the_job(t)->history.epoch.number, 2);
	goes(t, &t->b, 2, true);
	join(t, &t->b, 0, 1, "run2"); /* in another launch */
	assert_true(list_empty(&the_job(t)->leaving));
	ends(t, &p, PROCESS_END_STATUS, 1);
	assert_int_equal(alarms(t, NULL), 0);
	/* Without a run id, and with another world. */
	leave(&t->a);
	goes(t, &t->b, 0, true);
	connect_rank(t, &t->b);
	assert_int_equal(open_rank(&t->b, 1, 2, ""), 0);
	assert_true(list_empty(&the_job(t)->leaving));
}

/* It lives on, without the job: that is told as what it is, and its end later is nothing more. */
static void test_lives_on(void **state)
{
	struct node_test *t = *state;
	struct process_id p;
	struct verdict v;

	t->o.leaving_ns = 1;
	begin_three(t);
	p = goes(t, &t->b, 1, true);
	for (uint64_t end = 0; !alarms(t, NULL) && turn_on(t, &end);)
		;
	assert_int_equal(alarms(t, &v), 1);
	test_says(v.words, "by an error of its trainer, whose process lives on,");
	assert_true(list_empty(&the_job(t)->leaving));
	ends(t, &p, PROCESS_END_STATUS, 1);
	assert_int_equal(alarms(t, NULL), 1);
}

/* Its memory is given back at once, not only when its process ends. */
static void test_slots_are_given_back(void **state)
{
	struct node_test *t = *state;

	begin_one(t);
	save_until(&t->a, 0, 1, CKPT_DURABLE);
	assert_false(list_empty(&the_job(t)->slots));
	goes(t, &t->a, 0, true);
	for (uint64_t end = 0; the_job(t)->slots.next->next != &the_job(t)->slots &&
			       turn_on(t, &end);)
		;
	/* One holds the checkpoint. */
	assert_ptr_equal(the_job(t)->slots.next->next, &the_job(t)->slots);
	end_node(t); /* while it is waited for */
}

static unsigned members(struct node_test *t)
{
	struct member *m;
	unsigned n = 0;

	list_each(m, &the_job(t)->members, link)
		n++;
	return n;
}

/* One process is many ranks: the loop handles the end of each in a call of its own. */
static void test_ranks_of_a_process_end_one_by_one(void **state)
{
	static const struct process_exit killed = {PROCESS_END_SIGNAL, 9};
	struct node_test *t = *state;
	const struct loop_calls *calls;
	struct process_id p;
	uint64_t before;

	begin_three(t);
	calls = loop_calls(t->host.node->env.loop);
	p = member_of_rank(the_job(t), 0)->process;
	before = calls->n;
	process_ends_ended(t->host.node, &p);
	process_ends_exit(t->host.node, &p, &killed);
	assert_int_equal(members(t), 2);
	for (uint64_t end = 0; !list_empty(&t->host.node->process_ends) && turn_on(t, &end);)
		;
	assert_true(list_empty(&t->host.node->process_ends));
	assert_int_equal(members(t), 0);
	assert_true(calls->n >= before + 4); /* two leave, two exits are reported */
	assert_int_equal(alarms(t, NULL), 1);
	/* What is not handled yet is freed with the node. */
	join(t, &t->a, 0, 1, "run2");
	process_ends_ended(t->host.node, &p);
	end_node(t);
}

/* A rank whose process has ended is free, also where its turn has not come. */
static void test_a_rank_is_free_at_once(void **state)
{
	struct node_test *t = *state;
	struct process_id p;

	begin_three(t);
	p = member_of_rank(the_job(t), 0)->process;
	connect_rank(t, &t->a);
	process_ends_ended(t->host.node, &p);
	assert_int_equal(open_rank(&t->a, 1, 3, "run1"), 0);
	assert_non_null(member_of_rank(the_job(t), 1));
}

#define OLD_RANKS 40u

/* Ranks of run1, and an open of run2 that is sent: its epoch is in the log, and ranks of the old
 * run are left, for some leave in a call. */
static void begin_replacing(struct node_test *t, struct hand *old, struct hand *new)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Open open = CKPT__OPEN__INIT;

	begin_node(t);
	for (uint32_t i = 0; i < OLD_RANKS; i++)
		join(t, &old[i], i, OLD_RANKS, "run1");
	connect_rank(t, new);
	open.job = "job";
	open.world = OLD_RANKS;
	open.run_id = "run2";
	q.body_case = CKPT__REQUEST__BODY_OPEN;
	q.open = &open;
	assert_int_equal(hand_send(new, &q), 0);
	for (uint64_t end = 0; the_job(t)->history.epoch.number < 2 && turn_on(t, &end);)
		;
	assert_int_equal(the_job(t)->history.epoch.number, 2);
	assert_true(members(t) > 8);
	assert_non_null(the_job(t)->opening);
}

static void end_replacing(struct node_test *t, struct hand *old, struct hand *new)
{
	struct job *j = the_job(t);

	for (uint64_t end = 0; epoch_opens(j) && turn_on(t, &end);)
		;
	assert_int_equal(members(t), 1);
	assert_non_null(member_of_rank(the_job(t), 0));
	/* The new run's time counts, whatever became of the old one meanwhile. */
	assert_int_equal(the_job(t)->goodput.state, GOODPUT_RESTART);
	assert_false(the_job(t)->goodput.down);
	assert_false(the_job(t)->run_over);
	for (uint32_t i = 0; i < OLD_RANKS; i++)
		leave(&old[i]);
	leave(new);
}

static void test_old_ranks_end_while_they_are_replaced(void **state)
{
	static struct hand old[OLD_RANKS], new;
	struct node_test *t = *state;
	struct process_id p;
	uint32_t last;
	char line[64];

	begin_replacing(t, old, &new);
	p = list_last(&the_job(t)->members, struct member, link)->process;
	last = list_last(&the_job(t)->members, struct member, link)->rank;
	process_ends_ended(t->host.node, &p);
	end_replacing(t, old, &new);
	snprintf(line, sizeof(line), "process of rank %u ended", last);
	assert_true(was_told(line));
	assert_int_equal(the_job(t)->goodput.failures[0] + the_job(t)->goodput.failures[1], 1);
}

static void test_old_ranks_say_goodbye_while_they_are_replaced(void **state)
{
	static struct hand old[OLD_RANKS], new;
	struct node_test *t = *state;

	begin_replacing(t, old, &new);
	while (!list_empty(&the_job(t)->members))
		member_left(list_first(&the_job(t)->members, struct member, link), MEMBER_BYE);
	end_replacing(t, old, &new);
}

/* The connection that opened the new run ends before the old run has left: no rank joins, and all
 * leave. */
static void test_the_new_run_goes_while_it_replaces(void **state)
{
	static struct hand old[OLD_RANKS], new;
	struct node_test *t = *state;

	begin_replacing(t, old, &new);
	leave(&new);
	for (uint64_t end = 0; epoch_opens(the_job(t)) && turn_on(t, &end);)
		;
	assert_int_equal(members(t), 0);
	join(t, &t->a, 1, OLD_RANKS, "run2");
	assert_int_equal(the_job(t)->history.epoch.number, 2);
	for (uint32_t i = 0; i < OLD_RANKS; i++)
		leave(&old[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		NODE_TEST(test_failure_is_told),
		NODE_TEST(test_caught),
		NODE_TEST(test_goes_on),
		NODE_TEST(test_lives_on),
		NODE_TEST(test_slots_are_given_back),
		NODE_TEST(test_ranks_of_a_process_end_one_by_one),
		NODE_TEST(test_a_rank_is_free_at_once),
		NODE_TEST(test_old_ranks_end_while_they_are_replaced),
		NODE_TEST(test_old_ranks_say_goodbye_while_they_are_replaced),
		NODE_TEST(test_the_new_run_goes_while_it_replaces),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
