/* SPDX-License-Identifier: Apache-2.0 */
/* The hash table against an array that is searched from end to end. */
#include <config.h>

#include <errno.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "detect/keys.h"
#include "tests/lib/test.h"

#define KEYS 300

static void test_as_an_array(void **state)
{
	uint32_t value[KEYS];
	struct rng_seeded r;
	struct keys k = {0};
	uint32_t n = 0;

	(void)state;
	rng_seed(&r, test_seed(1));
	for (unsigned i = 0; i < KEYS; i++)
		value[i] = KEY_NONE;
	for (unsigned round = 0; round < 50000; round++) {
		/* Fuller and emptier by turns. */
		bool fill = rng_below(&r.rng, 10) < (round / 5000 % 2 ? 3 : 7);
		unsigned i = (unsigned)rng_below(&r.rng, KEYS);
		uint64_t key = i % 3 ? key_pair(i, i * 16) : i;

		assert_int_equal(keys_find(&k, key), value[i]);
		if (fill && value[i] == KEY_NONE) {
			value[i] = round;
			n++;
			assert_int_equal(keys_add(&k, key, round), 0);
		} else if (fill) {
			value[i] = round;
			keys_set(&k, key, round);
		} else {
			n -= value[i] != KEY_NONE;
			value[i] = KEY_NONE;
			keys_remove(&k, key);
		}
		assert_int_equal(k.n, n);
	}
	for (unsigned i = 0; i < KEYS; i++)
		assert_int_equal(keys_find(&k, i % 3 ? key_pair(i, i * 16) : i), value[i]);
	keys_fini(&k);
	assert_int_equal(keys_find(&k, 5), KEY_NONE);
}

static void test_no_memory_changes_nothing(void **state)
{
	struct keys k = {0};
	uint32_t n = 0;

	(void)state;
	while (n < 100) {
		int r;

		alloc_fail_at(1, false);
		r = keys_add(&k, n, n + 7);
		alloc_fail_at(0, false);
		if (r == -ENOMEM)
			assert_int_equal(keys_add(&k, n, n + 7), 0);
		n++;
	}
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(keys_find(&k, i), i + 7);
	keys_fini(&k);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_as_an_array),
		cmocka_unit_test(test_no_memory_changes_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
