/* SPDX-License-Identifier: Apache-2.0 */
/* The order of service, counted by hand: shares, newcomers, debts, limits, lack of memory. */
#include <config.h>

#include "base/alloc.h"
#include "base/fair.h"
#include "base/rng.h"
#include "tests/lib/test.h"

enum { USERS = 64, EACH = 50 };

struct item {
	struct list link;
	uint32_t uid;
	int number;
};

static void push(struct fair_queue *q, struct item *i, uint32_t uid, int number)
{
	i->uid = uid;
	i->number = number;
	fair_push(q, uid, &i->link);
}

/* Takes one, and charges for it at once. */
static struct item *serve(struct fair_queue *q, uint64_t cost)
{
	uint32_t uid;
	struct list *l = fair_take(q, UINT32_MAX, &uid);

	if (!l)
		return NULL;
	fair_charge(q, uid, cost);
	return container_of(l, struct item, link);
}

static void test_one_user_is_first_in_first_out(void **state)
{
	struct item items[EACH];
	struct fair_queue q;

	(void)state;
	fair_init(&q);
	assert_true(fair_empty(&q));
	for (int i = 0; i < EACH; i++)
		push(&q, &items[i], 7, i);
	for (int i = 0; i < EACH; i++)
		assert_ptr_equal(serve(&q, 1000), &items[i]);
	assert_null(serve(&q, 1));
	assert_true(fair_empty(&q));
	fair_fini(&q);
}

/* Each user gets the same time, for any cost and number of its items. */
static void test_equal_shares_of_unequal_items(void **state)
{
	static struct item items[USERS][EACH];
	uint64_t had[USERS] = {0}, least = UINT64_MAX, most = 0, biggest = 0;
	struct rng_seeded rng;
	struct fair_queue q;

	(void)state;
	rng_seed(&rng, test_seed(11));
	fair_init(&q);
	for (int u = 0; u < USERS; u++)
		for (int i = 0; i < EACH; i++)
			push(&q, &items[u][i], (uint32_t)(1000 + u), i);
	/* Until the first has nothing left: from there on it may have less. */
	for (bool over = false; !over;) {
		uint64_t cost = 1 + rng_below(&rng.rng, 1000000);
		struct item *i = serve(&q, cost);

		had[i->uid - 1000] += cost;
		biggest = cost > biggest ? cost : biggest;
		over = i->number == EACH - 1;
	}
	for (int u = 0; u < USERS; u++) {
		least = had[u] < least ? had[u] : least;
		most = had[u] > most ? had[u] : most;
	}
	print_message("least %llu, most %llu, biggest item %llu\n", (unsigned long long)least,
		      (unsigned long long)most, (unsigned long long)biggest);
	assert_true(most - least <= 2 * biggest);
	while (serve(&q, 1))
		;
	fair_fini(&q);
}

static void test_a_newcomer_is_next(void **state)
{
	struct item many[EACH], one, again;
	struct fair_queue q;

	(void)state;
	fair_init(&q);
	for (int i = 0; i < EACH; i++)
		push(&q, &many[i], 1, i);
	for (int i = 0; i < 10; i++)
		assert_int_equal(serve(&q, 1000000)->uid, 1);
	push(&q, &one, 2, 0);
	assert_ptr_equal(serve(&q, 10), &one);
	assert_int_equal(serve(&q, 1000000)->uid, 1);
	push(&q, &again, 2, 1); /* it has had little: again */
	assert_ptr_equal(serve(&q, 10), &again);
	while (serve(&q, 1))
		;
	fair_fini(&q);
}

/* A user that rests does not collect turns, and one that leaves for a moment keeps its debt. */
static void test_rest_is_not_saved_and_debt_is_kept(void **state)
{
	struct item a[EACH], b[EACH], c;
	struct fair_queue q;
	int a_turns = 0;

	(void)state;
	fair_init(&q);
	push(&q, &c, 3, 0); /* so that the queue is never empty */
	push(&q, &b[0], 2, 0);
	assert_non_null(serve(&q, 1));
	assert_non_null(serve(&q, 1));
	for (int i = 0; i < EACH; i++)
		push(&q, &a[i], 1, i);
	for (int i = 0; i < EACH / 2; i++)
		assert_int_equal(serve(&q, 1000)->uid, 1);
	for (int i = 1; i < 11; i++)
		push(&q, &b[i], 2, i);
	for (int i = 0; i < 10; i++)
		a_turns += serve(&q, 1000)->uid == 1;
	assert_in_range(a_turns, 4, 6); /* not 0, as if 2 had waited all the time */
	while (serve(&q, 1000))
		;
	/* 1 takes an item of 5000 and asks again: 2 comes before it with all that it has. */
	push(&q, &a[0], 1, 0);
	push(&q, &b[0], 2, 0);
	assert_ptr_equal(serve(&q, 5000), &a[0]);
	push(&q, &a[1], 1, 1);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(serve(&q, 1000)->uid, 2);
		push(&q, &b[i + 1], 2, i + 1);
	}
	while (serve(&q, 1))
		;
	fair_fini(&q);
}

static void test_debt_is_bounded(void **state)
{
	struct item a[2], b[2];
	struct fair_queue q;

	(void)state;
	fair_init(&q);
	push(&q, &a[0], 1, 0);
	push(&q, &b[0], 2, 0);
	assert_ptr_equal(serve(&q, 3600 * 1000000000ull), &a[0]);
	push(&q, &a[1], 1, 1);
	assert_ptr_equal(serve(&q, FAIR_DEBT_MAX + 2), &b[0]);
	push(&q, &b[1], 2, 1);
	assert_ptr_equal(serve(&q, 1), &a[1]);
	assert_ptr_equal(serve(&q, 1), &b[1]);
	fair_fini(&q);
}

static void test_no_user_has_more_than_most(void **state)
{
	struct item a[3], b;
	struct fair_queue q;
	uint32_t uid;

	(void)state;
	fair_init(&q);
	for (int i = 0; i < 3; i++)
		push(&q, &a[i], 1, i);
	assert_ptr_equal(fair_take(&q, 2, &uid), &a[0].link);
	assert_ptr_equal(fair_take(&q, 2, &uid), &a[1].link);
	assert_null(fair_take(&q, 2, &uid));
	assert_false(fair_empty(&q));
	push(&q, &b, 2, 0);
	assert_ptr_equal(fair_take(&q, 2, &uid), &b.link);
	assert_int_equal(uid, 2);
	fair_charge(&q, 1, 1);
	assert_ptr_equal(fair_take(&q, 2, &uid), &a[2].link);
	fair_charge(&q, 1, 1);
	fair_charge(&q, 1, 1);
	fair_charge(&q, 2, 1);
	fair_fini(&q);
}

static void test_an_item_can_be_taken_out(void **state)
{
	struct item a[2];
	struct fair_queue q;

	(void)state;
	fair_init(&q);
	push(&q, &a[0], 1, 0);
	push(&q, &a[1], 1, 1);
	list_del(&a[0].link);
	assert_ptr_equal(serve(&q, 1), &a[1]);
	push(&q, &a[0], 1, 0);
	list_del(&a[0].link);
	assert_true(fair_empty(&q));
	assert_null(serve(&q, 1));
	fair_fini(&q);
}

/* Without memory users share a flow: all are served, in the order in which they came. */
static void test_out_of_memory_for_a_flow(void **state)
{
	struct item a, b, c, node;
	struct fair_queue q;
	uint32_t uid;

	(void)state;
	fair_init(&q);
	alloc_fail_at(1, true);
	push(&q, &a, 1, 0);
	push(&q, &b, 2, 0);
	alloc_fail_at(0, false);
	push(&q, &c, 1, 1);
	push(&q, &node, FAIR_NODE, 0);
	assert_ptr_equal(fair_take(&q, 4, &uid), &a.link);
	fair_charge(&q, uid, 1000);
	assert_ptr_equal(serve(&q, 1000), &c);
	assert_ptr_equal(serve(&q, 1000), &b);
	assert_ptr_equal(serve(&q, 1000), &node);
	fair_fini(&q);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_user_is_first_in_first_out),
		cmocka_unit_test(test_equal_shares_of_unequal_items),
		cmocka_unit_test(test_a_newcomer_is_next),
		cmocka_unit_test(test_rest_is_not_saved_and_debt_is_kept),
		cmocka_unit_test(test_debt_is_bounded),
		cmocka_unit_test(test_no_user_has_more_than_most),
		cmocka_unit_test(test_an_item_can_be_taken_out),
		cmocka_unit_test(test_out_of_memory_for_a_flow),
	};

	return cmocka_run_group_tests_name("fair", tests, NULL, NULL);
}
