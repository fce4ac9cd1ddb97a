/* SPDX-License-Identifier: Apache-2.0 */
/* The file that overrides the table of Xids: there, not there, and not to be used. */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckptd/xid_table.h"
#include "detect/xid_policy.h"
#include "tests/lib/test.h"

static enum verdict_action action_of(const struct xid_policy *p, uint32_t code)
{
	return xid_policy_find(p, code, XID_SUB_ANY, false)->action;
}

static void put(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

static void test_overrides(void **state)
{
	char *dir = test_dir_make(NULL), *path = test_path(dir, "xid.tsv");
	struct xid_policy *p;
	struct err e = {0};

	(void)state;
	assert_int_equal(xid_table_read(path, &p, &e), 0); /* none */
	assert_int_equal(action_of(p, 94), ACTION_RESTART);
	xid_policy_free(p);
	put(path, "94\t*\tdrain\tcritical\n");
	assert_int_equal(xid_table_read(path, &p, &e), 0);
	assert_int_equal(action_of(p, 94), ACTION_DRAIN);
	assert_int_equal(action_of(p, 79), ACTION_REBOOT);
	xid_policy_free(p);
	test_dir_remove(dir);
}

static void test_of_no_use(void **state)
{
	char *dir = test_dir_make(NULL), *path = test_path(dir, "xid.tsv");
	struct xid_policy *p;
	struct err e = {0};

	(void)state;
	put(path, "94\t*\tdrain\n79\t*\tdo-it\n");
	assert_int_equal(xid_table_read(path, &p, &e), -EINVAL);
	test_says(e.text, "xid.tsv', line 2: action is 'do-it'");
	assert_int_equal(action_of(p, 94), ACTION_RESTART); /* the one that is built in */
	xid_policy_free(p);
	assert_int_equal(remove(path), 0);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(xid_table_read(path, &p, &e), -EINVAL);
	test_says(e.text, "is not a file");
	xid_policy_free(p);
	assert_int_equal(xid_table_read("/dev/zero", &p, &e), -EINVAL);
	assert_int_equal(action_of(p, 94), ACTION_RESTART);
	xid_policy_free(p);
	test_dir_remove(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_overrides),
		cmocka_unit_test(test_of_no_use),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
