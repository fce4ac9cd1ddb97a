/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the state comes from that ranks save: those that have loaded and those that have not save
 * no checkpoint together (I15), and a job that goes back is said to.
 */
#include <config.h>

#include <stdio.h>
#include <string.h>

#include "ckptd/job.h"
#include "ckptd/node_priv.h"
#include "ckptd/test_node_rig.h"
#include "proto/session.pb-c.h"
#include "proto/session_page.h"

static void turns(struct node_test *t)
{
	for (int i = 0; i < 50; i++)
		host_turn(&t->host);
}

/* Step 12 of an earlier launch. */
static void begin_with_a_base(struct node_test *t, uint32_t world)
{
	begin_node(t);
	join(t, &t->a, 0, world, "run1");
	declare_rank(&t->a, 0, world);
	if (world > 1) {
		join(t, &t->b, 1, world, "run1");
		declare_rank(&t->b, 1, world);
		prepare_rank(&t->b);
	}
	prepare_rank(&t->a);
	if (world > 1)
		assert_int_equal(save_rank(&t->b, 1, 12), 0);
	save_until(&t->a, 0, 12, CKPT_DURABLE);
	leave(&t->a);
	leave(&t->b);
}

/* The next launch, which has loaded nothing yet. */
static void launch(struct node_test *t, uint32_t world, const char *run)
{
	assert_int_equal(join(t, &t->a, 0, world, run), 12);
	declare_rank(&t->a, 0, world);
	if (world == 1)
		return;
	assert_int_equal(join(t, &t->b, 1, world, run), 12);
	declare_rank(&t->b, 1, world);
}

static void assert_problem(struct node_test *t, enum job_problem k, const char *words)
{
	const struct problem *p = &the_job(t)->saves.problems[k];

	assert_true(p->stands);
	if (!strstr(p->text, words))
		fail_msg("'%s' does not have '%s'", p->text, words);
	assert_true(was_told(words));
}

static void skip_step(struct hand *k, uint64_t step)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Skip skip = CKPT__SKIP__INIT;

	skip.step = step;
	skip.epoch = k->epoch;
	skip.kind = k->page->blocked;
	skip.reason = (char *)"as the page says";
	q.body_case = CKPT__REQUEST__BODY_SKIP;
	q.skip = &skip;
	assert_int_equal(hand_ask_code(k, &q), 0);
}

/* Slots were prepared before the loads: both ranks have a credit already. */
static void refuse_one(struct node_test *t, struct hand *loads, struct hand *first,
		       struct hand *second)
{
	begin_with_a_base(t, 2);
	launch(t, 2, "run2");
	prepare_rank(&t->a);
	prepare_rank(&t->b);
	load_rank(loads, loads == &t->b, 12, CKPT_TIER_MEMORY);
	assert_int_equal(save_rank(first, first == &t->b, 13), 0);
	assert_int_equal(save_rank(second, second == &t->b, 13), CKPT_EABORTED);
}

static void test_one_forgets(void **state)
{
	struct node_test *t = *state;

	refuse_one(t, &t->a, &t->a, &t->b);
	assert_non_null(strstr(t->b.text, "step 13 was aborted: rank 1 has not loaded step 12, "
					  "which rank 0 has: call load on each rank"));
	assert_problem(t, PROBLEM_NOT_LOADED, "rank 1 has not loaded step 12, which rank 0 has");
	turns(t);
	assert_int_equal(the_job(t)->history.n_commits, 1);
	/* From now on there is no credit. */
	skip_step(&t->b, 13);
	turns(t);
	assert_int_equal(t->a.page->blocked, BLOCK_NOT_LOADED);
	assert_int_equal(t->a.page->blocked_rank, 1);
	load_rank(&t->b, 1, 12, CKPT_TIER_MEMORY);
	assert_false(problems_stand(the_job(t), PROBLEM_NOT_LOADED));
	t->a.used_credit = t->a.page->credit;
	assert_int_equal(save_rank(&t->a, 0, 14), 0);
	save_until(&t->b, 1, 14, CKPT_COMMITTED);
	assert_false(problems_stand(the_job(t), PROBLEM_GOES_BACK));
}

static void test_the_one_that_forgets_is_named(void **state)
{
	struct node_test *t = *state;

	refuse_one(t, &t->a, &t->b, &t->a); /* though it sealed first */
	assert_non_null(strstr(t->a.text, "rank 1 has not loaded step 12, which rank 0 has"));
	assert_problem(t, PROBLEM_NOT_LOADED, "rank 1 has not loaded step 12");
	leave(&t->b); /* of the same process: its next open says that it left */
	assert_int_equal(join(t, &t->b, 1, 2, "run3"), 12);
	assert_false(problems_stand(the_job(t), PROBLEM_NOT_LOADED));
}

/* Slots were prepared after the load. */
static void test_no_credit_before_all_have_loaded(void **state)
{
	struct node_test *t = *state;

	begin_with_a_base(t, 2);
	launch(t, 2, "run2");
	load_rank(&t->a, 0, 12, CKPT_TIER_MEMORY);
	prepare_rank(&t->a);
	prepare_rank(&t->b);
	turns(t);
	assert_int_equal(t->a.page->credit, 0);
	assert_int_equal(t->b.page->blocked, BLOCK_NOT_LOADED);
	assert_int_equal(t->b.page->blocked_rank, 1);
	assert_false(problems_stand(the_job(t), PROBLEM_NOT_LOADED)); /* it may be loading */
	skip_step(&t->a, 13);
	assert_problem(t, PROBLEM_NOT_LOADED, "rank 1 has not loaded step 12, which rank 0 has");
	load_rank(&t->b, 1, 12, CKPT_TIER_MEMORY);
	assert_false(problems_stand(the_job(t), PROBLEM_NOT_LOADED));
	assert_int_equal(save_rank(&t->a, 0, 14), 0);
	save_until(&t->b, 1, 14, CKPT_COMMITTED);
}

static int open_own_state(struct node_test *t, struct hand *k, uint32_t rank)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Open o = CKPT__OPEN__INIT;

	connect_rank(t, k);
	o.job = (char *)"job";
	o.rank = rank;
	o.world = 2;
	o.run_id = (char *)"run2";
	o.own_state = true;
	q.body_case = CKPT__REQUEST__BODY_OPEN;
	q.open = &o;
	return hand_ask_code(k, &q);
}

/* It says that its state comes from elsewhere, or it has no tensors: nothing is demanded of it. */
static void test_ranks_that_need_not_load(void **state)
{
	struct node_test *t = *state;
	struct member *m;

	begin_with_a_base(t, 2);
	assert_int_equal(join(t, &t->a, 0, 2, "run2"), 12);
	declare_rank(&t->a, 0, 2);
	load_rank(&t->a, 0, 12, CKPT_TIER_MEMORY);
	assert_int_equal(open_own_state(t, &t->b, 1), 0);
	declare_rank(&t->b, 1, 2);
	m = member_of_rank(the_job(t), 1);
	assert_int_equal(m->origin.kind, ORIGIN_UNSAID);
	assert_false(member_must_load(m));
	leave(&t->b);
	assert_int_equal(join(t, &t->b, 1, 2, "run2"), 12);
	m = member_of_rank(the_job(t), 1);
	assert_false(member_must_load(m)); /* it has declared nothing */
}

static bool step_is_gone(struct node_test *t, uint64_t step)
{
	const struct checkpoint *c;

	list_each(c, &the_job(t)->checkpoints, link)
		if (c->step == step && c->durable != DUR_GONE)
			return false;
	return true;
}

/* None of the ranks loads: that is a new training under the same name. */
static void test_all_forget(void **state)
{
	struct node_test *t = *state;

	t->o.retention.keep_last = 1;
	begin_with_a_base(t, 1);
	launch(t, 1, "run2");
	prepare_rank(&t->a);
	for (uint64_t step = 1; step <= 3; step++)
		save_until(&t->a, 0, step, CKPT_DURABLE);
	assert_problem(t, PROBLEM_GOES_BACK, "rank 0 has not loaded step 12, which the job has");
	assert_problem(t, PROBLEM_GOES_BACK, "call load before the first save");
	assert_int_equal(the_job(t)->saves.problems[PROBLEM_GOES_BACK].step, 1);
	assert_int_equal(the_job(t)->saves.problems[PROBLEM_GOES_BACK].times, 1);
	leave(&t->a);
	/* Its newest step is what the next launch begins with, and step 12 is still there. */
	assert_int_equal(join(t, &t->a, 0, 1, "run3"), 3);
	assert_false(problems_stand(the_job(t), PROBLEM_GOES_BACK));
	declare_rank(&t->a, 0, 1);
	load_rank(&t->a, 0, 3, CKPT_TIER_MEMORY);
	prepare_rank(&t->a);
	for (uint64_t step = 4; step <= 6; step++)
		save_until(&t->a, 0, step, CKPT_DURABLE);
	turns(t);
	load_rank_at(&t->a, 0, 12, CKPT_TIER_DISK, 12);
	save_until(&t->a, 0, 13, CKPT_DURABLE);
	save_until(&t->a, 0, 14, CKPT_DURABLE);
	for (int i = 0; i < 100 && !step_is_gone(t, 12); i++)
		turns(t);
	assert_true(step_is_gone(t, 12));
}

/* An older step was loaded, and what is saved is older still. */
static void test_saves_below_what_was_loaded(void **state)
{
	struct node_test *t = *state;

	begin_with_a_base(t, 1);
	launch(t, 1, "run2");
	load_rank(&t->a, 0, 12, CKPT_TIER_MEMORY);
	prepare_rank(&t->a);
	assert_int_equal(save_rank(&t->a, 0, 5), 0);
	assert_problem(t, PROBLEM_GOES_BACK,
		       "rank 0 saves step 5, which becomes the newest, and has loaded step 12: "
		       "save the steps above the one that load returns");
	save_until(&t->a, 0, 12, CKPT_COMMITTED);
	assert_true(problems_stand(the_job(t), PROBLEM_GOES_BACK));
	save_until(&t->a, 0, 13, CKPT_COMMITTED);
	assert_false(problems_stand(the_job(t), PROBLEM_GOES_BACK));
}

/* Loads of what this epoch has saved are no resumption: who checks its saves need not load first.
 */
static void test_loads_of_the_own_epoch(void **state)
{
	struct node_test *t = *state;

	begin_two(t);
	assert_int_equal(save_rank(&t->a, 0, 1), 0);
	save_until(&t->b, 1, 1, CKPT_COMMITTED);
	load_rank_at(&t->a, 0, 1, CKPT_TIER_MEMORY, 1);
	assert_int_equal(member_of_rank(the_job(t), 0)->origin.kind, ORIGIN_FRESH);
	assert_int_equal(save_rank(&t->a, 0, 2), 0);
	save_until(&t->b, 1, 2, CKPT_COMMITTED);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		NODE_TEST(test_one_forgets),
		NODE_TEST(test_the_one_that_forgets_is_named),
		NODE_TEST(test_no_credit_before_all_have_loaded),
		NODE_TEST(test_ranks_that_need_not_load),
		NODE_TEST(test_all_forget),
		NODE_TEST(test_saves_below_what_was_loaded),
		NODE_TEST(test_loads_of_the_own_epoch),
	};

	return cmocka_run_group_tests_name("ckptd/test_origin", tests, NULL, NULL);
}
