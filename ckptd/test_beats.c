/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Beat pages of a node: given with an open, looked at, asked for saves, and taken away. That they
 * outlive ckptd is tested in tests/sim and tests/it.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/work.h"
#include "ckptd/beats.h"
#include "ckptd/node_priv.h"
#include "ckptd/test_node_rig.h"

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static struct member *rank(struct node_test *t, uint32_t r)
{
	struct member *m = member_of_rank(the_job(t), r);

	assert_non_null(m);
	return m;
}

/* As libckpt does it. */
static void beat(struct hand *k, uint64_t step)
{
	struct beat_page *p = k->beats;
	uint64_t now = now_ns();

	beat_page_put(p, atomic_load(&p->written) + 1,
		      &(struct beat_record){.kind = BEAT_KIND_STEP, .time_ns = now, .step = step});
	atomic_store(&p->next_step, step + 1);
	atomic_store(&p->place, BEAT_PLACE(PHASE_STEP, now));
}

static void turn_until_beats(struct node_test *t, uint64_t n)
{
	for (uint64_t end = 0; t->host.node->beats.told < n && turn_on(t, &end);)
		;
	assert_int_equal(t->host.node->beats.told, n);
}

static void test_looked_at(void **state)
{
	struct node_test *t = *state;
	char role[BEAT_TEXT_BYTES] = "stage 0";
	struct beat_now now;

	begin_node(t);
	join(t, &t->a, 0, 2, "run1"); /* before it declares or prepares anything */
	join(t, &t->b, 1, 2, "run1");
	assert_true(beats_now(rank(t, 0), &now));
	assert_false(now.stepped);
	assert_string_equal(beats_role(rank(t, 0)), "");
	beat(&t->a, 1);
	beat(&t->a, 2);
	beat(&t->b, 1);
	turn_until_beats(t, 3); /* by the timer */
	assert_true(beats_now(rank(t, 0), &now));
	assert_int_equal(now.step, 3);
	assert_int_equal(now.phase, PHASE_STEP);
	assert_true(now.since_ns > 0);
	beat_page_put_text(t->a.beats, &t->a.beats->role, role);
	turn_until_beats(t, 4);
	assert_string_equal(beats_role(rank(t, 0)), "stage 0");
}

/* A program that is older than beats: it is given what it knows, and lives beside those that beat.
 */
static void test_older_program(void **state)
{
	struct node_test *t = *state;
	struct err e = {0};
	struct beat_now now;
	uint64_t step;

	begin_node(t);
	assert_int_equal(hand_connect_as(&t->a, &t->host, 0), 0);
	assert_int_equal(open_rank(&t->a, 0, 2, "run1"), 0);
	assert_null(t->a.beats);
	assert_false(beats_now(rank(t, 0), &now));
	assert_string_equal(beats_role(rank(t, 0)), "");
	join(t, &t->b, 1, 2, "run1");
	assert_non_null(t->b.beats);
	beat(&t->b, 1);
	turn_until_beats(t, 1);
	assert_int_equal(beats_ask_save(the_job(t), &step, &e), -EAGAIN);
	test_says(e.text, "rank 0");
}

/* Who gives a sample of now has heard all that was before it. */
static void test_looked_at_before_other_samples(void **state)
{
	struct node_test *t = *state;
	struct sample s = {.kind = SAMPLE_ALIVE,
			   .job = SAMPLE_NONE,
			   .rank = SAMPLE_NONE,
			   .device = SAMPLE_NONE};

	begin_node(t);
	join(t, &t->a, 0, 1, "run1");
	turn_until_beats(t, 0);
	host_turn(&t->host); /* the loop reads its clock */
	beat(&t->a, 1);
	host_turn(&t->host);
	node_sample(t->host.node, &s);
	assert_int_equal(t->host.node->beats.told, 1);
}

/* More pages than one turn looks at: each of them is heard, however much the others say. */
static void test_many_pages(void **state)
{
	struct node_test *t = *state;
	struct beats_node *bn;
	uint64_t step_a = 0, step_b = 0;

	begin_node(t);
	join(t, &t->a, 0, 2, "run1");
	join(t, &t->b, 1, 2, "run1");
	bn = &t->host.node->beats;
	assert_int_equal(bn->n, 2);
	host_turn(&t->host);
	bn->per_turn = 1;
	for (int i = 0; i < TURNS_MAX && !(step_a >= 3 && step_b >= 3); i++) {
		uint64_t told = bn->told;

		beat(&t->a, (uint64_t)i);
		beat(&t->b, (uint64_t)i);
		host_turn(&t->host);
		beats_scan(t->host.node);
		told = bn->told;
		beats_scan(t->host.node); /* this turn has looked at one */
		assert_int_equal(bn->told, told);
		ignore_result(beats_told(rank(t, 0), &step_a) /* 0 */);
		ignore_result(beats_told(rank(t, 1), &step_b) /* 0 */);
		assert_in_range(step_a + 3, step_b, step_b + 6);
	}
	assert_true(step_a >= 3 && step_b >= 3);
	member_left(rank(t, 0), MEMBER_BYE);
	assert_int_equal(bn->n, 1);
	assert_true(bn->to_look <= 1);
}

/* All pages fit into a turn, but not twice: asked again within it there is nothing to wait for. */
static void test_asked_again_in_a_turn(void **state)
{
	struct node_test *t = *state;
	struct beats_node *bn;

	begin_node(t);
	join(t, &t->a, 0, 2, "run1");
	join(t, &t->b, 1, 2, "run1");
	bn = &t->host.node->beats;
	bn->per_turn = 3;
	for (int i = 0; i < 20; i++) {
		host_turn(&t->host);
		beat(&t->a, (uint64_t)i);
		for (int k = 0; k < 4; k++) {
			assert_true(beats_scan(t->host.node));
			assert_int_equal(bn->to_look, 0);
		}
	}
	/* Where there is room for all again, all are looked at again. */
	bn->per_turn = 4;
	host_turn(&t->host);
	assert_true(beats_scan(t->host.node));
	beat(&t->a, 100);
	bn->left = 2;
	assert_true(beats_scan(t->host.node));
	assert_int_equal(bn->left, 0);
}

static uint64_t wanted(const struct hand *k)
{
	return atomic_load(&k->beats->wanted_step);
}

static void test_ask_save(void **state)
{
	struct node_test *t = *state;
	struct err e = {0};
	uint64_t step = 0;

	begin_node(t);
	join(t, &t->a, 0, 2, "run1");
	beat(&t->a, 100);
	assert_int_equal(beats_ask_save(the_job(t), &step, &e), -EAGAIN);
	test_says(e.text, "1 of 2 ranks");
	join(t, &t->b, 1, 2, "run1");
	assert_int_equal(beats_ask_save(the_job(t), &step, &e), -EAGAIN);
	test_says(e.text, "rank 1");
	assert_int_equal(wanted(&t->a), 0);
	beat(&t->b, 107); /* ahead */
	assert_int_equal(beats_ask_save(the_job(t), &step, &e), 0);
	assert_true(step > 108);
	assert_int_equal(wanted(&t->a), step);
	assert_int_equal(wanted(&t->b), step);
	/* The job goes on from an older checkpoint: nobody waits for that step any more. */
	leave(&t->a);
	leave(&t->b);
	join(t, &t->a, 0, 2, "run2");
	assert_int_equal(wanted(&t->a), 0);
}

/* Steps that take no time: what is wanted lies further ahead than they can come in a second. */
static void test_ask_save_of_fast_steps(void **state)
{
	struct node_test *t = *state;
	struct err e = {0};
	uint64_t step = 0, before = now_ns(), each;

	begin_node(t);
	join(t, &t->a, 0, 1, "run1");
	for (uint64_t s = 0; s < 8; s++)
		beat(&t->a, s);
	each = (now_ns() - before) / 7 + 1;
	for (int i = 0; i < 3; i++)
		host_turn(&t->host);
	assert_int_equal(beats_ask_save(the_job(t), &step, &e), 0);
	assert_true(step >= 8 + 1000000000 / max_u64(each, 100000));
}

/* Nothing is left of a rank that has gone, however far its page had come. */
static void test_leave(void **state)
{
	struct node_test *t = *state;
	struct memory *m;
	uint64_t before, budget;

	begin_node(t);
	m = t->host.memory;
	join(t, &t->b, 1, 2, "run1"); /* the ledger's memory is taken, and stays */
	for (int i = 0; i < 50; i++)
		host_turn(&t->host);
	before = m->ops->available(m, &budget);
	for (int i = 0; i < 5; i++) {
		join(t, &t->a, 0, 2, "run1");
		for (int k = 0; k < 10 * i; k++)
			host_turn(&t->host);
		assert_true(m->ops->available(m, &budget) < before);
		beat(&t->a, (uint64_t)i);
		member_left(rank(t, 0), MEMBER_BYE);
		assert_int_equal(t->host.node->beats.told, i + 1); /* its last words */
		leave(&t->a);
		for (uint64_t end = 0; m->ops->available(m, &budget) != before && turn_on(t, &end);)
			;
		assert_int_equal(m->ops->available(m, &budget), before);
	}
}

/* Pages are freed in their user's turn: where all that may work for it is busy, they wait. */
static void test_page_is_freed_for_its_user(void **state)
{
	struct node_test *t = *state;
	struct memory *m;
	uint64_t before, during, budget, end = 0;

	begin_node(t);
	m = t->host.memory;
	join(t, &t->b, 1, 2, "run1"); /* the ledger stays where it is */
	for (int i = 0; i < 50; i++)
		host_turn(&t->host);
	before = m->ops->available(m, &budget);
	join(t, &t->a, 0, 2, "run1");
	while (!beats_kept(rank(t, 0)) && turn_on(t, &end))
		;
	block(t, WORK_MEMORY, (uint32_t)geteuid());
	member_left(rank(t, 0), MEMBER_BYE);
	leave(&t->a);
	for (int i = 0; i < 50; i++)
		host_turn(&t->host);
	during = m->ops->available(m, &budget);
	unblock(t);
	assert_true(during < before);
	for (end = 0; m->ops->available(m, &budget) != before && turn_on(t, &end);)
		;
	assert_int_equal(m->ops->available(m, &budget), before);
}

static void keep_last(void *arg, const struct sample *s)
{
	*(struct sample *)arg = *s;
}

/* All were looked at just now, and then it says one thing more, and goes. The detector hears its
 * last step before its goodbye: a beat after that would be one of a new process. */
static void test_last_words_behind_a_look(void **state)
{
	struct node_test *t = *state;
	struct beats_node *bn;
	struct sample last = {0};
	uint64_t told;

	begin_node(t);
	join(t, &t->a, 0, 2, "run1");
	join(t, &t->b, 1, 2, "run1");
	bn = &t->host.node->beats;
	bn->per_turn = 3;
	t->host.node->env.record = keep_last;
	t->host.node->env.record_arg = &last;
	host_turn(&t->host);
	assert_true(beats_scan(t->host.node));
	assert_true(bn->left < bn->n); /* there is no time for all again */
	told = bn->told;
	beat(&t->a, 5);
	member_left(rank(t, 0), MEMBER_BYE);
	assert_int_equal(bn->told, told + 1);
	assert_int_equal(last.kind, SAMPLE_EXIT);
	assert_int_equal(last.exit.how, EXIT_SAID_BYE);
	t->host.node->env.record = NULL;
	leave(&t->a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		NODE_TEST(test_looked_at),
		NODE_TEST(test_older_program),
		NODE_TEST(test_looked_at_before_other_samples),
		NODE_TEST(test_many_pages),
		NODE_TEST(test_asked_again_in_a_turn),
		NODE_TEST(test_ask_save),
		NODE_TEST(test_ask_save_of_fast_steps),
		NODE_TEST(test_leave),
		NODE_TEST(test_page_is_freed_for_its_user),
		NODE_TEST(test_last_words_behind_a_look),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
