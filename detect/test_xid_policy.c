/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of Xids that is installed: that every code is in it, with the action and the sources
 * that the lists below say, and each disagreement between sources; how overrides are read; what is
 * refused.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "detect/kernel_line.h"
#include "detect/xid_policy.h"
#include "tests/lib/test.h"

#define MINUTE (60 * 1000000000ull)
#define DAY    (1440 * MINUTE)

static char table_text[1 << 20];

static struct xid_policy *installed(void)
{
	const char *top = getenv("top_srcdir");
	struct xid_policy *p;
	struct err e = {0};
	char path[512];
	size_t len;
	FILE *f;

	snprintf(path, sizeof(path), "%s/share/xid.tsv", top ? top : ".");
	f = fopen(path, "r");
	assert_non_null(f);
	len = fread(table_text, 1, sizeof(table_text) - 1, f);
	fclose(f);
	table_text[len] = '\0';
	assert_int_equal(xid_policy_new(&p), 0);
	if (xid_policy_add(p, "xid.tsv", table_text, len, &e) < 0)
		fail_msg("%s", e.text);
	return p;
}

/* "1-7 10": calls with each of them. */
static void each(const char *list, void (*with)(uint32_t code, void *arg), void *arg)
{
	char *end;

	while (*list) {
		unsigned long from = strtoul(list, &end, 10), to = from;

		if (*end == '-')
			to = strtoul(end + 1, &end, 10);
		for (; from <= to; from++)
			with((uint32_t)from, arg);
		list = end + strspn(end, " ");
	}
}

struct expected {
	const struct xid_policy *p;
	const char *action, *then, *source, *says;
	unsigned *seen; /* per code */
};

static const struct xid_row *row_of(const struct xid_policy *p, uint32_t code)
{
	const struct xid_row *r = xid_policy_find(p, code, XID_SUB_ANY, false);

	if (r->code != code)
		fail_msg("Xid %u has no row", code);
	return r;
}

static void has_action(uint32_t code, void *arg)
{
	struct expected *x = arg;
	const struct xid_row *r = row_of(x->p, code);

	if (strcmp(verdict_action_word(r->action), x->action) != 0)
		fail_msg("Xid %u: %s, not %s", code, verdict_action_word(r->action), x->action);
	if (x->then && (!r->count || strcmp(verdict_action_word(r->then), x->then) != 0))
		fail_msg("Xid %u: does not become %s", code, x->then);
	x->seen[code]++;
}

static void test_every_code_and_its_action(void **state)
{
	static const struct {
		const char *codes, *action, *then;
	} list[] = {
		{"8 11 25 43 80", "restart-process", NULL},
		{"13 31", "restart-process", "drain"},
		{"32", "restart-process", "reboot"},
		{"37", "record", NULL},
		{"38", "record", "reboot"},
		{"39-41 70-72 75-77 85 126-135", "restart-process", "drain"},
		{"44 46 61 62 64 74 95 109 110 136 140 155 158 166 169 172 173", "reset-gpu",
		 "drain"},
		{"45", "record", NULL},
		{"48", "drain", NULL},
		{"54 78 81 143", "drain", NULL},
		{"60 68 82-84 86 88 89 96-105 139 137", "restart-process", NULL},
		{"63 156", "reset-gpu", NULL},
		{"66 67 92 93 141 152 153 157 159-165 168 170 171", "record", NULL},
		{"69 94", "restart-process", "reset-gpu"},
		{"79", "reboot", "drain"},
		{"106 107", "ignore", NULL},
		{"119 120", "reset-gpu", "reboot"},
		{"121", "record", "drain"},
		{"123 151 167", "reboot", NULL},
		{"144-150 154", "record", NULL},
		{"9 12 16 18 19 26-30 33-36 42 47 59", "reboot", NULL},
		{"1-7 10 14 15 17 20-24 49-53 55-58 65 73 87 90 91 108 111-118 122 124 125 138 142",
		 "record", NULL},
	};
	struct xid_policy *p = installed();
	unsigned seen[256] = {0};

	(void)state;
	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
		each(list[i].codes, has_action,
		     &(struct expected){p, list[i].action, list[i].then, NULL, NULL, seen});
	for (uint32_t code = 1; code <= 173; code++)
		if (seen[code] != 1)
			fail_msg("Xid %u is %u times in this test", code, seen[code]);
	/* fatal ones of NVLink 5, and what 154 names */
	for (uint32_t code = 144; code <= 150; code++)
		assert_int_equal(xid_policy_find(p, code, 0, true)->action, ACTION_RESET);
	assert_int_equal(xid_policy_find(p, 149, 4, true)->subcode, 4);
	assert_int_equal(xid_policy_find(p, 149, 40, true)->action, ACTION_RECORD);
	assert_int_equal(xid_policy_find(p, 154, RECOVERY_NONE, false)->action, ACTION_IGNORE);
	assert_int_equal(xid_policy_find(p, 154, RECOVERY_RESET, false)->action, ACTION_RESET);
	assert_int_equal(xid_policy_find(p, 154, RECOVERY_REBOOT, false)->action, ACTION_REBOOT);
	assert_int_equal(xid_policy_find(p, 154, RECOVERY_DRAIN_P2P, false)->action, ACTION_DRAIN);
	assert_int_equal(xid_policy_find(p, 154, RECOVERY_DRAIN_RESET, false)->action,
			 ACTION_DRAIN);
	/* and what is in no list */
	assert_int_equal(xid_policy_find(p, 999, XID_SUB_ANY, false)->code, XID_CODE_OTHER);
	assert_int_equal(xid_policy_find(p, 20034, XID_SUB_ANY, true)->action, ACTION_REBOOT);
	assert_int_equal(xid_policy_find(p, 12028, XID_SUB_ANY, false)->action, ACTION_RECORD);
	xid_policy_free(p);
}

static void test_correlation_rows(void **state)
{
	struct xid_policy *p = installed();
	const struct xid_row *r = row_of(p, 48);

	(void)state;
	assert_int_equal(r->n_with, 4);
	assert_int_equal(r->with[2].code, 94);
	assert_int_equal(r->with[2].action, ACTION_RESTART);
	r = row_of(p, 45);
	assert_int_equal(r->with[0].code, XID_WITH_ANY);
	assert_int_equal(r->with[0].action, ACTION_IGNORE);
	r = row_of(p, 13);
	assert_true(r->jobs && r->count == 3 && r->window_ns == 7 * DAY);
	xid_policy_free(p);
}

/* ---- Sources ---- */

static bool says(const struct xid_row *r, const char *source, const char *what)
{
	const char *at = NULL, *name, *words;
	size_t name_len, words_len;

	while ((at = xid_source_next(r, at, &name, &name_len, &words, &words_len)))
		if (name_len == strlen(source) && memcmp(name, source, name_len) == 0)
			return !what || memmem(words, words_len, what, strlen(what));
	return false;
}

static void has_source(uint32_t code, void *arg)
{
	struct expected *x = arg;
	const struct xid_row *r = row_of(x->p, code);

	if (!says(r, x->source, x->says))
		fail_msg("Xid %u: %s does not say %s, but: %s", code, x->source, x->says,
			 r->sources);
}

/* Each has a name that we know, and says something. */
static void sources_are_known(const struct xid_row *r)
{
	static const char known[] = " nvidia gpud k8s-device-plugin gke google azure aws "
				    "fire-flyer imbue tencent lm-resiliency nvrx ";
	const char *at = NULL, *source, *words;
	size_t len, words_len;
	char name[40];

	while ((at = xid_source_next(r, at, &source, &len, &words, &words_len))) {
		assert_in_range(len, 1, sizeof(name) - 3);
		snprintf(name, sizeof(name), " %.*s ", (int)len, source);
		if (!strstr(known, name) || words_len == 0)
			fail_msg("a source of code %u: '%s'", r->code, name);
	}
}

static void test_sources(void **state)
{
	static const struct {
		const char *codes, *source, *says;
	} list[] = {
		{"8 11 13 25 31 32 39-41 60 68-72 75-77 80 82-86 88 89 94 96-105 126-135 139",
		 "nvidia", "RESTART_APP"},
		{"37 38 43 44 63 66 67 92 93 106 107 121 137 141 152 153 157 160 161", "nvidia",
		 "IGNORE"},
		{"46 62 64 95 109 110 119 120 136 140 143 155 156 158", "nvidia", "RESET_GPU"},
		{"79", "nvidia", "RESTART_BM"},
		{"142 1-7 9 12", "nvidia", "CONTACT_SUPPORT"},
		{"54", "nvidia", "CHECK_MECHANICALS"},
		{"45 48 74 144-150", "nvidia", "WORKFLOW"},
		{"151", "nvidia", "RESTART_VM"},
		{"78", "nvidia", "UPDATE_SWFW"},
		{"159", "nvidia", "CHECK_UVM"},
		{"32 38 44 48 62-64 69 74 79 95 110 119-121 123 140", "gpud",
		 "reboot, then inspect"},
		{"9 12 16 18 19 26-30 33-36 42 47 59 61", "gpud", "fatal: reboot"},
		{"46 60 68 78 144-151 155 156 158 163 166 167 169 172 173", "gpud", "reboot"},
		{"94", "gpud", "1000"},
		{"81 143", "gpud", "inspect"},
		{"45 92", "gpud", "ignore"},
		{"13 31 43 137 170", "gpud", "check the application"},
		{"109 136 159", "gpud", "no action"},
		{"13 31 43 45 68 109", "k8s-device-plugin", "ignored"},
		{"48", "gke", "critical"},
		{"48 79 119 120", "google", "reboot"},
		{"74 94 95", "google", "reset"},
		{"48 79", "azure", "reboot"},
		{"62-64 69 74 92", "azure", NULL},
		{"48 79", "aws", "reboot"},
		{"119 120", "aws", "GSP"},
		{"79 94 95", "tencent", "reboot"},
		{"119 120", "tencent", "GSP"},
		{"44 61 63 64 69", "fire-flyer", "reset"},
		{"13 31 43 74", "fire-flyer", NULL},
		{"48 56-58 62-64 68-77 79-86 88-89 92 94-105 110-120 122-125", "imbue", "hardware"},
		{"48 63 64 74 79 94 95", "lm-resiliency", "fatal"},
	};
	struct xid_policy *p = installed();

	(void)state;
	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
		each(list[i].codes, has_source,
		     &(struct expected){.p = p, .source = list[i].source, .says = list[i].says});
	for (size_t i = 0; i < xid_policy_size(p); i++) {
		assert_true(says(xid_policy_at(p, i), "nvidia", NULL) &&
			    xid_policy_at(p, i)->meaning[0]);
		sources_are_known(xid_policy_at(p, i));
	}
	assert_false(says(row_of(p, 8), "k8s-device-plugin", NULL));
	xid_policy_free(p);
}

static void mark(uint32_t code, void *arg)
{
	((bool *)arg)[code] = true;
}

static void test_conflicts_are_listed(void **state)
{
	struct xid_policy *p = installed();
	bool expected[256] = {false};

	(void)state;
	each("63 69 94 109 136 32 38 44 121", mark, expected);
	for (size_t i = 0; i < xid_policy_size(p); i++) {
		const struct xid_row *r = xid_policy_at(p, i);
		bool here = r->code < 256 && expected[r->code];

		if (here != (r->conflict[0] != '\0'))
			fail_msg("Xid %u: conflict '%s'", r->code, r->conflict);
		if (here) /* what is chosen is said too, and more than one source is there */
			assert_true(strstr(r->conflict, "Here: ") && strstr(r->sources, "; "));
	}
	xid_policy_free(p);
}

/* ---- Overrides ---- */

static int add(struct xid_policy *p, const char *file, const char *text, struct err *e)
{
	return xid_policy_add(p, file, text, strlen(text), e);
}

static void test_overrides(void **state)
{
	struct xid_policy *p = installed();
	size_t n = xid_policy_size(p);
	const struct xid_row *r;
	struct err e = {0};

	(void)state;
	assert_int_equal(
		add(p, "/etc/ckptd/xid.tsv",
		    "# ours\r\n"
		    "94\t*\tdrain\tcritical\t-\t-\tnone\r\n"
		    "\n"
		    "145\t8\treset-gpu\tfatal\tgpu\tfailing\t-\t-\t-\t2h\t-\tours\t-\tus=so\n"
		    "79\t*\t-\t-\t-\t-\t-\t-\t-\t1h",
		    &e),
		0);
	assert_int_equal(xid_policy_size(p), n + 1);
	r = row_of(p, 94);
	assert_int_equal(r->action, ACTION_DRAIN);
	assert_int_equal(r->severity, XID_CRITICAL);
	assert_int_equal(r->count, 0);
	assert_int_equal(r->class, CLASS_CORRUPTING); /* kept */
	assert_true(says(r, "tencent", NULL));
	assert_string_equal(xid_policy_file(p, r->file), "/etc/ckptd/xid.tsv");
	assert_int_equal(r->line, 2);
	r = xid_policy_find(p, 145, 8, true);
	assert_true(r->subcode == 8 && r->hold_ns == 120 * MINUTE);
	assert_true(says(r, "us", "so"));
	r = row_of(p, 79);
	assert_int_equal(r->hold_ns, 60 * MINUTE);
	assert_int_equal(r->action, ACTION_REBOOT);
	assert_string_equal(xid_policy_file(p, row_of(p, 80)->file), "xid.tsv");
	/* a third one over the second */
	assert_int_equal(add(p, "more", "94\t*\trecord", &e), 0);
	assert_int_equal(row_of(p, 94)->action, ACTION_RECORD);
	assert_int_equal(row_of(p, 94)->severity, XID_CRITICAL);
	xid_policy_free(p);
}

static void test_refused(void **state)
{
	static const struct {
		const char *text, *words;
	} cases[] = {
		{"x\t*\trecord", "line 1: code is 'x', not a number"},
		{"\n\n94\t*\tdo-it", "line 3: action is 'do-it'"},
		{"94", "line 1: '94': a row is fields with one tab"},
		{"94 * drain", "a row is fields with one tab"},
		{"94\t64\tdrain", "subcode is '64'"},
		{"94\t*\tdrain\tloud", "severity is 'loud', not info, warning, critical or fatal"},
		{"94\t*\tdrain\t-\track", "scope is 'rack'"},
		{"94\t*\tdrain\t-\t-\tsad", "class is 'sad'"},
		{"94\t*\tdrain\t-\t-\t-\t0", "count is '0'"},
		{"94\t*\tdrain\t-\t-\t-\t2x", "count is '2x'"},
		{"94\t*\tdrain\t-\t-\t-\t2\t3w", "window is '3w'"},
		{"94\t*\tdrain\t-\t-\t-\t2\tnone", "it counts 2 and has no window"},
		{"94\t*\tdrain\t-\t-\t-\t2\t400d", "window is '400d'"},
		{"94\t*\tdrain\t-\t-\t-\t-\t-\toften", "then is 'often'"},
		{"94\t*\tdrain\t-\t-\t-\t-\t-\t-\tforever", "hold is 'forever'"},
		{"94\t*\tdrain\t-\t-\t-\t-\t-\t-\t-\t63", "with is '63'"},
		{"94\t*\tdrain\t-\t-\t-\t-\t-\t-\t-\t1:drain,2:drain,3:drain,4:drain,5:drain,6:"
		 "drain,"
		 "7:drain",
		 "of at most 6"},
		{"94\t*\tdrain\n94\t*\tdrain", "line 2: it has a row already, in line 1"},
		{"500\t*\tdrain", "severity is not given"},
		{"94\t*\tdrain\t-\t-\t-\t-\t-\t-\t-\t-\ta\x1b[31m", "control character"},
		{"94\t*\tdrain\t-\t-\t-\t-\t-\t-\t-\t-\t-\t-\t-\t-", "more than 14 fields"},
		{"10000\t*\tdrain", "code is '10000'"},
		{"0\t*\tdrain", "code is '0'"},
		{"other\tfatal\tdrain\tinfo\tgpu\tfailing\t-\t-\t-\t1h\t-\tx", "no subcodes"},
	};
	struct xid_policy *p = installed();
	struct err e = {0};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(add(p, "/etc/x", cases[i].text, &e), -EINVAL);
		test_says(e.text, "table of Xids '/etc/x'");
		test_says(e.text, cases[i].words);
		assert_int_equal(row_of(p, 94)->action, ACTION_RESTART);
	}
	assert_int_equal(xid_policy_add(p, "x", "94\0", 3, &e), -EINVAL);
	xid_policy_free(p);
	assert_int_equal(xid_policy_new(&p), 0);
	assert_null(xid_policy_find(p, 1, XID_SUB_ANY, false));
	assert_int_equal(add(p, "x", "# nothing\n", &e), -EINVAL);
	test_says(e.text, "it has no rows");
	assert_int_equal(add(p, "x", "9\t*\tdrain\tinfo\tgpu\tfailing\t-\t-\t-\t1h\t-\tx", &e),
			 -EINVAL);
	test_says(e.text, "no row \"other\"");
	xid_policy_free(p);
}

/* What is built in is the file. */
static void test_builtin(void **state)
{
	struct xid_policy *p = installed(), *builtin;

	(void)state;
	assert_int_equal(xid_policy_default(&builtin), 0);
	assert_int_equal(xid_builtin_len, strlen(table_text));
	assert_memory_equal(xid_builtin, table_text, xid_builtin_len);
	assert_int_equal(xid_policy_size(builtin), xid_policy_size(p));
	xid_policy_free(builtin);
	xid_policy_free(p);
}

static void test_bounds(void **state)
{
	char *text = alloc_zero(XID_TEXT_BYTES_MAX + 1);
	struct xid_policy *p = installed();
	struct err e = {0};
	size_t len = 0;

	(void)state;
	assert_non_null(text);
	memset(text, '#', XID_TEXT_BYTES_MAX + 1);
	assert_int_equal(xid_policy_add(p, "x", text, XID_TEXT_BYTES_MAX + 1, &e), -E2BIG);
	for (uint32_t code = 20000; code < 20000 + XID_ROWS_MAX; code++)
		len += (size_t)sprintf(
			text + len, "%u\t*\tdrain\tinfo\tnode\tfailing\t-\t-\t-\t1h\t-\tx\n", code);
	assert_int_equal(xid_policy_add(p, "x", text, len, &e), -E2BIG);
	test_says(e.text, "more than 2048 rows");
	for (int i = 1; i < XID_FILES_MAX; i++)
		assert_int_equal(add(p, "x", "", &e), 0);
	assert_int_equal(add(p, "x", "", &e), -E2BIG);
	alloc_free(text);
	xid_policy_free(p);
}

static void test_names(void **state)
{
	static const char *const good[] = {"79",         "149.4", "145.fatal",
					   "sxid.fatal", "other", "20034"};
	static const char *const bad[] = {"",       "x",     "79.",
					  ".4",     "79.x",  "79.64",
					  "123456", "1.2.3", "99999999999999999999999",
					  "-1"};
	struct xid_row r = {0};
	uint32_t code, subcode;
	char name[32];

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_int_equal(xid_name_parse(good[i], &r.code, &r.subcode), 0);
		xid_row_name(&r, name, sizeof(name));
		assert_string_equal(name, good[i]);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(xid_name_parse(bad[i], &code, &subcode), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_code_and_its_action),
		cmocka_unit_test(test_correlation_rows),
		cmocka_unit_test(test_sources),
		cmocka_unit_test(test_conflicts_are_listed),
		cmocka_unit_test(test_overrides),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_builtin),
		cmocka_unit_test(test_bounds),
		cmocka_unit_test(test_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
