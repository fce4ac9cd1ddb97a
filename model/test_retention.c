/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "model/retention.h"
#include "tests/lib/test.h"

static void test_keeps_the_last_clean_ones(void **state)
{
	struct retention_policy p = { .keep_last = 2 };
	struct retention_item items[5];

	(void)state;
	memset(items, 0, sizeof(items));
	for (size_t i = 0; i < 5; i++) {
		items[i].step = 10 * i;
		items[i].clean = true;
	}
	assert_int_equal(retention_apply(&p, items, 5), 3);
	assert_true(items[0].expire && items[1].expire && items[2].expire);
	assert_false(items[3].expire || items[4].expire);
	assert_null(items[0].kept_because);
	assert_string_equal(items[4].kept_because, "one of the newest");

	items[4].clean = false; /* the newest does not count, and stays */
	assert_int_equal(retention_apply(&p, items, 5), 2);
	assert_false(items[2].expire || items[3].expire || items[4].expire);
	assert_string_equal(items[4].kept_because, "too few clean ones are newer");
}

static void test_nothing_goes_while_nothing_is_clean(void **state)
{
	struct retention_policy p = { .keep_last = 1 };
	struct retention_item items[4];

	(void)state;
	memset(items, 0, sizeof(items));
	assert_int_equal(retention_apply(&p, items, 4), 0);
	assert_int_equal(retention_apply(&p, items, 0), 0);
	items[1].clean = true;
	assert_int_equal(retention_apply(&p, items, 4), 1);
	assert_true(items[0].expire);
}

static void test_pins_readers_and_steps(void **state)
{
	struct retention_policy p = { .keep_last = 1, .keep_every = 100 };
	struct retention_item items[5];

	(void)state;
	memset(items, 0, sizeof(items));
	for (size_t i = 0; i < 5; i++) {
		items[i].step = 50 * (i + 1);
		items[i].clean = true;
	}
	items[0].busy = true;
	items[2].pinned = true;
	assert_int_equal(retention_apply(&p, items, 5), 0);
	assert_string_equal(items[0].kept_because, "being read or written");
	assert_string_equal(items[1].kept_because, "kept every so many steps");
	assert_string_equal(items[2].kept_because, "pinned");
	items[0].busy = items[2].pinned = false;
	items[2].base = true;
	assert_int_equal(retention_apply(&p, items, 5), 1);
	assert_string_equal(items[2].kept_because, "the base of the newest epoch");
	items[2].base = false;
	assert_int_equal(retention_apply(&p, items, 5), 2);
	assert_true(items[0].expire && items[2].expire);
}

/* It takes room beside what the policy counts, which who counts the room has to know. */
static void test_highest_is_named_once_it_was_left(void **state)
{
	struct retention_policy p = {.keep_last = 1};
	struct retention_item items[4];

	(void)state;
	memset(items, 0, sizeof(items));
	for (size_t i = 0; i < 4; i++) {
		items[i].step = 10 * (i + 1);
		items[i].clean = true;
	}
	assert_int_equal(retention_apply(&p, items, 4), 3);
	for (size_t i = 0; i < 4; i++)
		assert_false(items[i].highest); /* it is the newest */
	items[1].step = 100;
	assert_int_equal(retention_apply(&p, items, 4), 2);
	for (size_t i = 0; i < 4; i++)
		assert_int_equal(items[i].highest, i == 1);
	items[2].clean = items[3].clean = false; /* nothing was saved behind it */
	assert_int_equal(retention_apply(&p, items, 4), 1);
	assert_false(items[1].highest);
}

/* Newer is later in the log: after going back the higher steps are the old ones. */
static void test_log_order_not_steps(void **state)
{
	struct retention_policy p = { .keep_last = 1 };
	struct retention_item items[3];

	(void)state;
	memset(items, 0, sizeof(items));
	items[0].step = 800;
	items[1].step = 900;
	items[2].step = 100;
	items[0].clean = items[1].clean = items[2].clean = true;
	assert_int_equal(retention_apply(&p, items, 3), 1);
	assert_true(items[0].expire && !items[1].expire && !items[2].expire);
}

/* A training that begins again in the same job does not take the one before with it. */
static void test_the_highest_step_stays(void **state)
{
	struct retention_policy p = {.keep_last = 3};
	struct retention_item items[6];

	(void)state;
	memset(items, 0, sizeof(items));
	for (size_t i = 0; i < 6; i++)
		items[i].clean = true;
	items[0].step = 118;
	items[1].step = 119;
	for (size_t i = 2; i < 6; i++)
		items[i].step = i;
	assert_int_equal(retention_apply(&p, items, 6), 2);
	assert_true(items[0].expire && items[2].expire);
	assert_string_equal(items[1].kept_because, "the highest step");
	items[5].step = 119; /* as high, and newer */
	assert_int_equal(retention_apply(&p, items, 6), 3);
	assert_true(items[1].expire);
	items[5].clean = false;
	assert_int_equal(retention_apply(&p, items, 6), 1);
	assert_false(items[1].expire);
	items[5].clean = true;
	items[5].step = 5;
	items[1].clean = false; /* what is bad, or was gone back behind, is no training to find */
	assert_int_equal(retention_apply(&p, items, 6), 2);
	assert_true(items[1].expire && !items[0].expire);
}

/* I9 said once more, by counting, over random histories. */
static void test_random(void **state)
{
	struct rng_seeded rng;

	(void)state;
	rng_seed(&rng, test_seed(5));
	for (int round = 0; round < 20000; round++) {
		struct retention_item items[12];
		struct retention_policy p = { .keep_last = 1 + (uint32_t)rng_below(&rng.rng, 4),
					      .keep_every = rng_below(&rng.rng, 4) };
		size_t n = rng_below(&rng.rng, 13), clean = 0, left = 0, gone, counted = 0;
		size_t highest = SIZE_MAX;

		memset(items, 0, sizeof(items));
		for (size_t i = 0; i < n; i++) {
			items[i].step = rng_below(&rng.rng, 20);
			items[i].clean = rng_below(&rng.rng, 4) != 0;
			items[i].pinned = rng_below(&rng.rng, 8) == 0;
			items[i].busy = rng_below(&rng.rng, 8) == 0;
			clean += items[i].clean;
			if (items[i].clean &&
			    (highest == SIZE_MAX || items[i].step >= items[highest].step))
				highest = i;
		}
		gone = retention_apply(&p, items, n);
		for (size_t i = 0; i < n; i++) {
			size_t newer = 0;

			for (size_t k = i + 1; k < n; k++)
				newer += items[k].clean;
			counted += items[i].expire;
			left += items[i].clean && !items[i].expire;
			assert_true(items[i].expire == (items[i].kept_because == NULL));
			assert_true(items[i].expire ==
				    (newer >= p.keep_last && !items[i].pinned && !items[i].busy &&
				     i != highest &&
				     !(p.keep_every && items[i].step % p.keep_every == 0)));
		}
		assert_int_equal(gone, counted);
		assert_true(left >= (clean < p.keep_last ? clean : p.keep_last));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_keeps_the_last_clean_ones),
		cmocka_unit_test(test_nothing_goes_while_nothing_is_clean),
		cmocka_unit_test(test_pins_readers_and_steps),
		cmocka_unit_test(test_highest_is_named_once_it_was_left),
		cmocka_unit_test(test_log_order_not_steps),
		cmocka_unit_test(test_the_highest_step_stays),
		cmocka_unit_test(test_random),
	};

	return cmocka_run_group_tests_name("retention", tests, NULL, NULL);
}
