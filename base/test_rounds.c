/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds over items: each once, within the budget of a call, whatever is added, freed or begun. */
#include <config.h>

#include "base/rounds.h"
#include "tests/lib/test.h"

enum { ITEMS = 10 };

struct item {
	struct round_item of;
	unsigned visits;
};

/* A loop that has tasks alone. */
struct fixture {
	struct loop loop;
	struct list posted;
	struct rounds rounds;
	struct item items[ITEMS];
	uint64_t budget, cost;
	bool remove; /* each item that is visited */
	unsigned calls, order[8 * ITEMS], n_order;
};

static struct fixture *of_loop(struct loop *l)
{
	return container_of(l, struct fixture, loop);
}

static void post(struct loop *l, struct task *t)
{
	list_add_tail(&of_loop(l)->posted, &t->link);
}

static void unpost(struct loop *l, struct task *t)
{
	(void)l;
	list_del(&t->link);
}

static const struct loop_ops ops = {.post = post, .unpost = unpost};

static uint64_t budget(struct rounds *r)
{
	return container_of(r, struct fixture, rounds)->budget;
}

static uint64_t visit(struct rounds *r, struct round_item *of)
{
	struct fixture *f = container_of(r, struct fixture, rounds);
	struct item *i = container_of(of, struct item, of);

	i->visits++;
	f->order[f->n_order++] = (unsigned)(i - f->items);
	if (f->remove)
		list_del(&of->link);
	return f->cost;
}

static void start(struct fixture *f, uint64_t budget_of_call)
{
	*f = (struct fixture){.loop.ops = &ops, .budget = budget_of_call, .cost = 1};
	list_init(&f->posted);
	f->rounds = (struct rounds){
		.loop = &f->loop, .label = "items", .budget = budget, .visit = visit};
	rounds_init(&f->rounds);
	for (int i = 0; i < ITEMS; i++)
		rounds_add(&f->rounds, &f->items[i].of);
}

/* One posted task; false: there is none. */
static bool turn(struct fixture *f)
{
	struct task *t = list_first(&f->posted, struct task, link);

	if (!t)
		return false;
	list_del(&t->link);
	t->run(t);
	f->calls++;
	return true;
}

static void all_visited(const struct fixture *f, unsigned times)
{
	for (int i = 0; i < ITEMS; i++)
		assert_int_equal(f->items[i].visits, times);
}

static void test_each_once_within_the_budget(void **state)
{
	struct fixture f;

	(void)state;
	start(&f, 4);
	rounds_begin(&f.rounds, 7);
	assert_int_equal(f.n_order, 4); /* at once */
	assert_int_equal(f.rounds.task.uid, 7);
	assert_true(turn(&f));
	assert_int_equal(f.n_order, 8);
	while (turn(&f))
		;
	assert_int_equal(f.calls, 2);
	all_visited(&f, 1);
	for (unsigned i = 0; i < ITEMS; i++)
		assert_int_equal(f.order[i], i);
}

static void test_costs_are_charged(void **state)
{
	struct fixture f;

	(void)state;
	start(&f, 4);
	f.cost = UINT64_MAX; /* one visit ends a call */
	rounds_begin(&f.rounds, 7);
	assert_int_equal(f.n_order, 1);
	while (turn(&f))
		;
	all_visited(&f, 1);
	assert_int_equal(f.calls, ITEMS); /* the last one finds all visited */
}

/* A round that is begun again before its end comes first to what it had not come to. */
static void test_begun_again_leaves_none_out(void **state)
{
	struct fixture f;

	(void)state;
	start(&f, 3);
	for (int i = 0; i < ITEMS; i++)
		rounds_begin(&f.rounds, 7);
	all_visited(&f, 3); /* 10 times 3 visits, of 10 items */
	while (turn(&f)) /* the last round goes on, with the seven that are left */
		;
	assert_int_equal(f.n_order, 3 * ITEMS + 7);
}

static void test_visited_items_may_go(void **state)
{
	struct fixture f;

	(void)state;
	start(&f, 4);
	f.remove = true;
	rounds_begin(&f.rounds, 7);
	while (turn(&f))
		;
	all_visited(&f, 1);
	assert_true(list_empty(&f.rounds.items));
	rounds_begin(&f.rounds, 7);
	assert_false(turn(&f)); /* nothing to visit: no task */
}

static void test_added_ones_wait_for_the_next_round(void **state)
{
	struct fixture f;

	(void)state;
	start(&f, 4);
	rounds_begin(&f.rounds, 7);
	list_del(&f.items[ITEMS - 1].of.link);
	rounds_add(&f.rounds, &f.items[ITEMS - 1].of);
	while (turn(&f))
		;
	assert_int_equal(f.items[ITEMS - 1].visits, 0);
	rounds_begin(&f.rounds, 7);
	while (turn(&f))
		;
	assert_int_equal(f.items[ITEMS - 1].visits, 1);
}

static void test_a_round_ends_without_a_budget(void **state)
{
	struct fixture f;

	(void)state;
	start(&f, 4);
	rounds_begin(&f.rounds, 7);
	f.budget = 0;
	assert_true(turn(&f));
	assert_false(turn(&f));
	assert_int_equal(f.n_order, 4);
	f.budget = ITEMS + 1;
	rounds_begin(&f.rounds, 7);
	assert_int_equal(f.n_order, 4 + ITEMS);
	assert_int_equal(f.order[4], 4); /* the first that it had not come to */
}

static void test_a_stopped_round_calls_nothing(void **state)
{
	struct fixture f;

	(void)state;
	start(&f, 4);
	rounds_begin(&f.rounds, 7);
	rounds_stop(&f.rounds);
	rounds_stop(&f.rounds);
	assert_false(turn(&f));
	assert_false(list_empty(&f.rounds.items));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_once_within_the_budget),
		cmocka_unit_test(test_costs_are_charged),
		cmocka_unit_test(test_begun_again_leaves_none_out),
		cmocka_unit_test(test_visited_items_may_go),
		cmocka_unit_test(test_added_ones_wait_for_the_next_round),
		cmocka_unit_test(test_a_round_ends_without_a_budget),
		cmocka_unit_test(test_a_stopped_round_calls_nothing),
	};

	return cmocka_run_group_tests_name("rounds", tests, NULL, NULL);
}
