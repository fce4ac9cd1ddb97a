/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include <string.h>

#include "base/near.h"
#include "tests/lib/test.h"

static const char *const verbs[] = {"status", "list", "show", "verify", "rm", "rm-job", "pin"};

static const char *nearest(const char *word)
{
	static char buf[NEAR_TEXT_MAX];
	struct near n;

	near_begin(&n, word);
	for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
		near_try(&n, verbs[i]);
	return near_text(&n, buf);
}

static void test_mistakes(void **state)
{
	(void)state;
	assert_string_equal(nearest("staus"), " (did you mean 'status'?)");
	assert_string_equal(nearest("statuus"), " (did you mean 'status'?)");
	assert_string_equal(nearest("sattus"), " (did you mean 'status'?)"); /* exchanged */
	assert_string_equal(nearest("verfiy"), " (did you mean 'verify'?)");
	assert_string_equal(nearest("lsit"), " (did you mean 'list'?)");
	assert_string_equal(nearest("rmjob"), " (did you mean 'rm-job'?)");
	assert_string_equal(nearest("pni"), " (did you mean 'pin'?)");
}

static void test_others(void **state)
{
	char word[4 * NEAR_WORD_MAX];

	(void)state;
	assert_string_equal(nearest("frobnicate"), "");
	assert_string_equal(nearest("frob"), "");
	assert_string_equal(nearest("status"), ""); /* it is one: nothing is misspelt */
	assert_string_equal(nearest(""), "");
	memset(word, 's', sizeof(word) - 1);
	word[sizeof(word) - 1] = '\0';
	assert_string_equal(nearest(word), "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_mistakes),
		cmocka_unit_test(test_others),
	};

	return cmocka_run_group_tests_name("near", tests, NULL, NULL);
}
