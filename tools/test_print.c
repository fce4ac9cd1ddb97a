/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_print.c - words, bars and documents of ckptctl that its scripts cannot reach.
 */
#include <config.h>

#include <string.h>
#include <time.h>

#include "tests/lib/test.h"
#include "tools/document.h"
#include "tools/print.h"
#include "tools/progress.h"

static void sizes(void **state)
{
	char b[TEXT_MAX];

	(void)state;
	assert_string_equal(text_bytes(b, 0), "0 B");
	assert_string_equal(text_bytes(b, 1023), "1023 B");
	assert_string_equal(text_bytes(b, 1024), "1.0 KiB");
	assert_string_equal(text_bytes(b, 3u << 29), "1.5 GiB");
	assert_string_equal(text_bytes(b, UINT64_MAX), "16.0 EiB");
}

static const char *ago(char b[TEXT_MAX], int64_t seconds)
{
	return text_age(b, (uint64_t)(time(NULL) - seconds) * 1000000000u);
}

static void ages(void **state)
{
	char b[TEXT_MAX];

	(void)state;
	assert_string_equal(text_age(b, 0), "-");
	assert_string_equal(ago(b, -100000), "0s"); /* a clock that is ahead */
	assert_string_equal(ago(b, 10 * 60 + 20), "10m");
	assert_string_equal(ago(b, 47 * 3600 + 60), "47h");
	assert_string_equal(ago(b, 10 * 86400 + 60), "10d");
}

/* The whole line, and nothing behind it. */
static void bar(void **state)
{
	char b[200];

	(void)state;
	progress_text(b, 79, 0, 1 << 20, 0, 0);
	assert_int_equal(strlen(b), 79);
	assert_non_null(strstr(b, " ]   0%  0 B of 1.0 MiB  0 B/s  ETA -"));
	assert_null(strchr(b, '#'));
	progress_text(b, 79, 1 << 19, 1 << 20, 2, 0);
	assert_int_equal(strlen(b), 79);
	assert_non_null(strstr(b, " ]  50%  512.0 KiB of 1.0 MiB  256.0 KiB/s  ETA 0:02"));
	assert_int_equal(strspn(b + 1, "#"), (strchr(b, ']') - b - 1) / 2);
	progress_text(b, 79, 1 << 20, 1 << 20, 2, 7);
	assert_non_null(strstr(b, "#] 100%  1.0 MiB of 1.0 MiB  512.0 KiB/s  ETA 0:00  7 bad"));
	progress_text(b, 30, 1 << 20, 1 << 20, 2, 7);
	assert_string_equal(b, "100%  1.0 MiB of 1.0 MiB  512.");
	progress_text(b, 79, 1, (uint64_t)1 << 50, 100, 0); /* for ever */
	assert_non_null(strstr(b, "ETA 99:59:59"));
}

static void every_width(void **state)
{
	char b[200];

	(void)state;
	for (unsigned width = 0; width < 159; width++) {
		memset(b, 'x', sizeof(b));
		progress_text(b, width, 12345, 99999, 3, 1);
		assert_true(strlen(b) <= width);
		assert_int_equal(b[strlen(b) + 1], 'x');
	}
}

static void names(void **state)
{
	static const struct {
		const char *name, *text;
	} cases[] = {
		{ "layer.0", "layer.0" },
		{ "gewicht.\xc3\xa4", "gewicht.\xc3\xa4" },
		{ "bad\xff\\x", "bad\\xff\\x" },
		{ "", "" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		json_t *o = doc_name(cases[i].name, strlen(cases[i].name));

		assert_string_equal(json_string_value(o), cases[i].text);
		json_decref(o);
	}
}

static json_t *parse(const char *text)
{
	json_error_t why;
	json_t *o = json_loads(text, 0, &why);

	assert_non_null(o);
	return o;
}

/* What an older or newer ckptd leaves out reads as nothing. */
static void missing_fields(void **state)
{
	json_t *o = parse("{\"a\": 1, \"b\": \"x\", \"id\": \"00\"}");
	uint8_t id[16];

	(void)state;
	assert_int_equal(doc_number(o, "b"), 0);
	assert_int_equal(doc_number(o, "none"), 0);
	assert_string_equal(doc_text(o, "a"), "");
	assert_false(doc_flag(o, "a"));
	assert_false(doc_id(o, "id", id));
	assert_string_equal(doc_text(NULL, "a"), "");
	json_decref(o);
}

static json_t *two_of_a_step(void)
{
	json_t *doc = parse(
		"{\"jobs\": [{\"job\": \"j\", \"checkpoints\": ["
		"{\"step\": 5, \"epoch\": 1, \"attempt\": \"aa11\", \"state\": \"committed\"},"
		"{\"step\": 5, \"epoch\": 2, \"attempt\": \"aa22\", \"state\": \"committed\"},"
		"{\"step\": 6, \"epoch\": 1, \"attempt\": \"bb\", \"state\": \"open\"}]}]}");

	assert_int_equal(doc_sort(doc), 0);
	return doc;
}

static int find(json_t *doc, const char *spec, bool for_deed, const char **ret)
{
	json_t *job = json_array_get(json_object_get(doc, "jobs"), 0), *c = NULL;
	struct err e = { 0 };
	int r = doc_find_checkpoint(job, spec, for_deed, &c, &e);

	assert_true((r < 0) == (e.text[0] != '\0'));
	*ret = r == 0 ? doc_text(c, "attempt") : NULL;
	return r;
}

/* To look at, the newest of a step will do; to remove, exactly one must be meant. */
static void which_is_meant(void **state)
{
	json_t *doc = two_of_a_step();
	const char *attempt = NULL;

	(void)state;
	assert_int_equal(find(doc, "5", false, &attempt), 0);
	assert_string_equal(attempt, "aa22");
	assert_int_equal(find(doc, "5", true, &attempt), -22);
	assert_int_equal(find(doc, "5.aa1", true, &attempt), 0);
	assert_string_equal(attempt, "aa11");
	assert_int_equal(find(doc, "5.aa", false, &attempt), -22);
	assert_int_equal(find(doc, "6", false, &attempt), 0);
	assert_int_equal(find(doc, "6", true, &attempt), CKPT_ENOTFOUND);
	assert_int_equal(find(doc, "7", false, &attempt), CKPT_ENOTFOUND);
	assert_int_equal(find(doc, NULL, false, &attempt), CKPT_ENOTFOUND); /* none is "latest" */
	json_decref(doc);
}

static void specs(void **state)
{
	static const char *const bad[] = { "", "x", "-1", "5.", "5.g", "5.AA", "5 ", ".aa", "+5",
					   "99999999999999999999",
					   "5.000000000000000000000000000000000" };
	const char *hex;
	uint64_t step;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(spec_parse(bad[i], &step, &hex, NULL), -22);
	assert_int_equal(spec_parse("18446744073709551614.0f", &step, &hex, NULL), 0);
	assert_true(step == UINT64_MAX - 1);
	assert_string_equal(hex, "0f");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes),         cmocka_unit_test(ages),
		cmocka_unit_test(bar),           cmocka_unit_test(every_width),
		cmocka_unit_test(names),         cmocka_unit_test(missing_fields),
		cmocka_unit_test(which_is_meant), cmocka_unit_test(specs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
