/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_probing.c - questions about ranks: passed on some in a call of the loop, and answered while
 * the rank is the process that it was. The collectors are a table that only counts.
 */
#include <config.h>

#include "base/loop.h"
#include "ckptd/collect.h"
#include "ckptd/job.h"
#include "ckptd/node_priv.h"
#include "ckptd/probing.h"
#include "ckptd/test_node_rig.h"
#include "ckptd/watching.h"
#include "ckptd/watching_priv.h"

#define RANKS 80u
#define SOME  20 /* turns in which what waits is passed on */

static struct counting {
	struct collectors collectors;
	struct collect_sink sink;
	struct loop *loop;
	uint64_t call; /* in which the last question came */
	unsigned on, off, in_call, most;
} counting;

static void start(struct collectors *c, const struct collect_sink *sink)
{
	(void)c;
	counting.sink = *sink;
}

static void stop(struct collectors *c)
{
	(void)c;
}

static void probe(struct collectors *c, const struct process_id *p, bool on)
{
	uint64_t call = loop_calls(counting.loop)->n;

	(void)c;
	(void)p;
	counting.on += on;
	counting.off += !on;
	counting.in_call = call == counting.call ? counting.in_call + 1 : 1;
	counting.call = call;
	if (counting.in_call > counting.most)
		counting.most = counting.in_call;
}

static void describe(struct collectors *c, collector_line_fn *line, void *arg)
{
	(void)c;
	(void)line;
	(void)arg;
}

static const struct collectors_ops ops = {start, stop, probe, describe};

static struct hand hands[RANKS];

static void turn_some(struct node_test *t)
{
	uint64_t end = 0;

	for (int i = 0; i < SOME; i++)
		assert_true(turn_on(t, &end));
}

static uint32_t begin_asking(struct node_test *t)
{
	struct node *n;

	begin_node(t);
	for (uint32_t i = 0; i < RANKS; i++)
		join(t, &hands[i], i, RANKS, "run1");
	turn_some(t); /* the detector hears of them */
	n = t->host.node;
	assert_null(n->probing);
	timer_disarm(n->env.loop, &n->watching->timer); /* it asks nothing itself */
	counting = (struct counting){.collectors = {&ops}, .loop = n->env.loop};
	n->env.collectors = &counting.collectors;
	assert_int_equal(probing_new(n, &n->probing), 0);
	for (uint32_t i = 0; i < RANKS; i++)
		probing_wanted(n, watching_number(the_job(t)), i, true);
	assert_int_equal(counting.on, 0);
	return watching_number(the_job(t));
}

static void test_passed_on_in_slices(void **state)
{
	struct node_test *t = *state;
	uint32_t job = begin_asking(t);

	turn_some(t);
	assert_int_equal(counting.on, RANKS);
	assert_in_range(counting.most, 1, 32);
	/* They are one process: it is looked at until nobody asks. */
	for (uint32_t i = 0; i < RANKS; i++)
		probing_wanted(t->host.node, job, i, false);
	assert_int_equal(counting.off, 1);
	for (uint32_t i = 0; i < RANKS; i++)
		leave(&hands[i]);
}

/* A question that is taken back before it was passed on is none, nor is one of a rank that is not
 * there. */
static void test_taken_back(void **state)
{
	struct node_test *t = *state;
	uint32_t job = begin_asking(t);

	for (uint32_t i = 0; i < RANKS / 2; i++)
		probing_wanted(t->host.node, job, i, false);
	probing_wanted(t->host.node, job, RANKS, true);
	turn_some(t);
	assert_int_equal(counting.on, RANKS / 2);
	assert_int_equal(counting.off, 0);
	for (uint32_t i = 0; i < RANKS; i++)
		leave(&hands[i]);
}

/* The node ends while some wait. */
/* The only question is taken back, or asked anew, before it is passed on. */
static void test_asked_again(void **state)
{
	struct node_test *t = *state;
	uint32_t job = begin_asking(t);

	turn_some(t);
	for (uint32_t i = 0; i < RANKS; i++)
		probing_wanted(t->host.node, job, i, false);
	assert_int_equal(counting.off, 1);
	counting.on = 0;
	probing_wanted(t->host.node, job, 0, true);
	probing_wanted(t->host.node, job, 0, true);
	probing_wanted(t->host.node, job, 0, false);
	probing_wanted(t->host.node, job, 1, true);
	turn_some(t);
	assert_int_equal(counting.on, 1);
	for (uint32_t i = 0; i < RANKS; i++)
		leave(&hands[i]);
}

static void test_ends_while_some_wait(void **state)
{
	struct node_test *t = *state;

	begin_asking(t);
	for (uint32_t i = 0; i < RANKS; i++)
		leave(&hands[i]);
	end_node(t);
	assert_int_equal(counting.on, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		NODE_TEST(test_passed_on_in_slices),
		NODE_TEST(test_taken_back),
		NODE_TEST(test_asked_again),
		NODE_TEST(test_ends_while_some_wait),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
