/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "model/trust.h"

#include "tests/lib/test.h"

static void test_a_level_never_falls(void **state)
{
	uint32_t trust = TRUST_LATEST;

	(void)state;
	trust = trust_add(trust, TRUST_VERIFIED);
	assert_int_equal(trust, TRUST_VERIFIED);
	trust = trust_add(trust, TRUST_COMPLETE);
	assert_int_equal(trust, TRUST_VERIFIED);
	trust = trust_add(trust, TRUST_DOUBTED);
	assert_int_equal(trust_level(trust), TRUST_VERIFIED);
	assert_true(trust & TRUST_DOUBTED);
	trust = trust_add(trust, TRUST_BAD);
	trust = trust_add(trust, TRUST_VERIFIED);
	assert_true(trust & TRUST_BAD);
	assert_true(trust & TRUST_DOUBTED);
}

static void test_what_is_offered(void **state)
{
	(void)state;
	assert_true(trust_reaches(TRUST_LATEST, TRUST_LATEST));
	assert_false(trust_reaches(TRUST_LATEST, TRUST_COMPLETE));
	assert_true(trust_reaches(TRUST_VERIFIED, TRUST_COMPLETE));
	assert_true(trust_reaches(TRUST_DOUBTED | TRUST_COMPLETE, TRUST_COMPLETE));
	assert_false(trust_reaches(TRUST_DOUBTED | TRUST_COMPLETE, TRUST_VERIFIED));
	assert_false(trust_reaches(TRUST_BAD | TRUST_VERIFIED, TRUST_LATEST));
	assert_true(trust_reaches(7, TRUST_VERIFIED)); /* a newer program's level */
}

static void test_words(void **state)
{
	static const char *const none[] = {"", "Verified", "verified ", "bad", "doubted", "2"};
	enum trust_level level = TRUST_LATEST;

	(void)state;
	for (uint32_t i = TRUST_LATEST; i <= TRUST_VERIFIED; i++) {
		assert_true(trust_parse(trust_word(i), &level));
		assert_int_equal(level, i);
	}
	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
		assert_false(trust_parse(none[i], &level));
	assert_int_equal(level, TRUST_VERIFIED); /* untouched */
	assert_string_equal(trust_word(TRUST_DOUBTED | TRUST_COMPLETE), "complete");
	assert_string_equal(trust_word(TRUST_BAD | TRUST_COMPLETE), "bad");
	assert_string_equal(trust_word(200), "verified");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_level_never_falls),
		cmocka_unit_test(test_what_is_offered),
		cmocka_unit_test(test_words),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
