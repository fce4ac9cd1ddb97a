/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_open.c - opens whose answers are lost, and processes that open again (I10).
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/lib/hand.h"
#include "tests/lib/small_node.h"
#include "tests/lib/test.h"

static void open_ok(struct small_node *w, struct hand *k, uint32_t rank, const char *run)
{
	assert_int_equal(hand_connect(k, &w->host), 0);
	if (hand_open(k, "job", rank, 2, run) < 0)
		fail_msg("%s", k->text);
}

/* The connection breaks before the answer is read: the open is repeated, and is the same open. */
static void test_lost_answer(void **state)
{
	const char *const runs[] = { "run1", "" };
	struct small_node *w = *state;
	struct hand k;

	for (int i = 0; i < 2; i++) {
		uint64_t epoch;

		open_ok(w, &k, 0, runs[i]);
		epoch = k.epoch;
		for (int again = 0; again < 3; again++) {
			hand_close(&k);
			open_ok(w, &k, 0, runs[i]);
			assert_int_equal(k.epoch, epoch);
		}
		assert_int_equal(hand_declare(&k, SMALL_GEOMETRY, &small_shard, 1), 0);
		assert_int_equal(hand_prepare(&k), 0);
		hand_close(&k);
		/* No goodbye: the next run's processes still have to be told apart from these. */
		open_ok(w, &k, 0, i == 0 ? "run2" : "run3");
		hand_close(&k);
	}
}

/* A second handle of a process whose first is connected is refused. */
static void test_two_handles(void **state)
{
	struct small_node *w = *state;
	struct hand a, b;

	open_ok(w, &a, 0, "run1");
	assert_int_equal(hand_connect(&b, &w->host), 0);
	assert_int_equal(hand_open(&b, "job", 0, 2, "run1"), -EAGAIN);
	hand_close(&b);
	hand_close(&a);
}

/* A handle that was dropped without a goodbye: the rank is replaced, in the next epoch. */
static void test_dropped_handle(void **state)
{
	struct small_node *w = *state;
	struct hand k;
	uint64_t epoch;

	open_ok(w, &k, 0, "run1");
	epoch = k.epoch;
	assert_int_equal(hand_declare(&k, SMALL_GEOMETRY, &small_shard, 1), 0);
	assert_int_equal(hand_prepare(&k), 0);
	hand_close(&k);
	open_ok(w, &k, 0, "run1");
	assert_int_equal(k.epoch, epoch + 1);
	assert_int_equal(hand_declare(&k, SMALL_GEOMETRY, &small_shard, 1), 0);
	assert_int_equal(hand_prepare(&k), 0);
	hand_close(&k);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, small_node_setup_started, small_node_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_lost_answer),
		TEST(test_two_handles),
		TEST(test_dropped_handle),
	};

	return cmocka_run_group_tests_name("open", tests, NULL, NULL);
}
