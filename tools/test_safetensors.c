/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Headers and indices of safetensors: what is good is read and written back byte for byte but for
 * the padding, and each kind of damage has its sentence. test_ctl_exchange.sh reads and writes
 * whole files against an oracle in Python.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "tests/lib/test.h"
#include "tools/safetensors.h"

static int parse(const char *json, uint64_t data_len, struct safetensors_header *h, struct err *e)
{
	*e = (struct err){0};
	return safetensors_parse(json, strlen(json), data_len, h, e);
}

static void refused(const char *json, uint64_t data_len, int code, const char *sentence)
{
	struct safetensors_header h;
	struct err e;
	int r = parse(json, data_len, &h, &e);

	for (const unsigned char *p = (const unsigned char *)e.text; *p; p++)
		assert_true(*p >= 0x20 && *p != 0x7f); /* names reach a terminal */
	if (r != code || !strstr(e.text, sentence))
		fail_msg("%s: %d '%s', not %d '%s'", json, r, e.text, code, sentence);
}

#define T(dtype, shape, offsets)                                                                   \
	"{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void test_good(void **state)
{
	const char *json = "{\"__metadata__\":{\"format\":\"pt\"},\"a\":" T(
		"F64", "[2]",
		"[0,16]") ",\"\u00e9\":" T("BF16", "[]",
					   "[16,18]") ",\"empty\":" T("F32", "[0,5]",
								      "[18,18]") ",\"last\""
										 ":" T("U8",
										       "[1,"
										       "2]",
										       "[18,"
										       "20]") "}";
	struct safetensors_header h;
	json_t *metadata;
	struct err e;
	void *built = NULL;
	size_t len = 0;

	(void)state;
	assert_int_equal(parse(json, 20, &h, &e), 0);
	assert_int_equal(h.n, 4);
	assert_int_equal(h.entries[0].name_len, 1);
	assert_memory_equal(h.entries[0].name, "a", 1);
	assert_int_equal(h.entries[0].dtype, CKPT_F64);
	assert_int_equal(h.entries[1].shape.ndim, 0);
	assert_int_equal(h.entries[1].begin, 16);
	assert_int_equal(h.entries[2].name_len, 5);
	assert_memory_equal(h.entries[2].name, "empty", 5);
	assert_int_equal(h.entries[2].shape.dim[1], 5);
	assert_int_equal(h.entries[3].end, 20);
	assert_int_equal(h.metadata_len, strlen("{\"format\":\"pt\"}"));
	assert_memory_equal(h.metadata, "{\"format\":\"pt\"}", h.metadata_len);
	metadata = json_loadb(h.metadata, h.metadata_len, 0, NULL);
	assert_int_equal(safetensors_build(h.entries, h.n, metadata, &built, &len, &e), 0);
	json_decref(metadata);
	assert_int_equal(len % SAFETENSORS_ALIGN, 0);
	assert_int_equal(get_le64(built), len - 8);
	assert_memory_equal((char *)built + 8, json, strlen(json));
	for (size_t i = 8 + strlen(json); i < len; i++)
		assert_int_equal(((char *)built)[i], ' ');
	alloc_free(built);
	safetensors_header_fini(&h);
	assert_int_equal(parse("  {} ", 0, &h, &e), 0); /* blanks on both sides */
	assert_int_equal(h.n, 0);
	assert_null(h.metadata);
	safetensors_header_fini(&h);
}

static void test_every_dtype(void **state)
{
	(void)state;
	for (uint32_t dtype = 1; dtype <= CKPT_C128; dtype++) {
		const char *name = safetensors_dtype(dtype);
		struct safetensors_entry t = {.name = "x", .name_len = 1, .dtype = dtype};
		struct safetensors_header h;
		struct err e = {0};
		void *built = NULL;
		size_t len = 0;
		int r;

		t.end = dtype_bytes(dtype);
		r = safetensors_build(&t, 1, NULL, &built, &len, &e);
		assert_int_equal(r, name ? 0 : -EINVAL);
		assert_true(name || (dtype == CKPT_C128 && strstr(e.text, "'x' is c128")));
		if (!name)
			continue;
		assert_int_equal(safetensors_parse((char *)built + 8, len - 8, t.end, &h, &e), 0);
		assert_int_equal(h.entries[0].dtype, dtype);
		safetensors_header_fini(&h);
		alloc_free(built);
	}
	refused("{\"x\":" T("F4", "[2]", "[0,1]") "}", 1, CKPT_EVERSION,
		"'x' has the dtype F4, which");
	refused("{\"x\":" T("F6_E2M3", "[4]", "[0,3]") "}", 3, CKPT_EVERSION, "dtype F6_E2M3");
	refused("{\"x\":" T("f32", "[1]", "[0,4]") "}", 4, CKPT_EVERSION, "dtype f32");
}

static void test_damage_is_named(void **state)
{
	(void)state;
	refused("", 0, CKPT_EPROTO, "does not begin with '{'");
	refused("   ", 0, CKPT_EPROTO, "does not begin with '{'");
	refused("[]", 0, CKPT_EPROTO, "does not begin with '{'");
	refused("\t{}", 0, CKPT_EPROTO, "does not begin with '{'");
	refused("{", 0, CKPT_EPROTO, "not JSON");
	refused("{}x", 0, CKPT_EPROTO, "not JSON");
	refused("{} \"m", 0, CKPT_EPROTO, "something behind its end (byte 3)");
	refused("{\"\xff\":1}", 0, CKPT_EPROTO, "it is not UTF-8 (byte 2)");
	refused("{\"__metadata__\":{\"a\":\"\xc0\x80\"}}", 0, CKPT_EPROTO, "not UTF-8 (byte 22)");
	refused("{\"__metadata__\":{\"a\":\"\xed\xa0\x80\"}}", 0, CKPT_EPROTO,
		"not UTF-8 (byte 22)");
	refused("{\"__metadata__\":{\"a\":\"\xf4\x90\x80\x80\"}}", 0, CKPT_EPROTO,
		"not UTF-8 (byte 22)");
	refused("{\"__metadata__\":{\"a\":\"\xc3\"}}", 0, CKPT_EPROTO, "not UTF-8 (byte 22)");
	refused("{\"a\\u0000\":1}", 0, CKPT_EPROTO, "not JSON");
	refused("{\"__metadata__\":{\"a\":\"\"\v}}", 0, CKPT_EPROTO, "control character (byte 23)");
	refused("{\f\"__metadata__\":{}\v}", 0, CKPT_EPROTO, "control character (byte 1)");
	refused("{\"__metadata__\":{\"a\":\"\f\"}}", 0, CKPT_EPROTO, "control character (byte 22)");
	refused("{\"\\ud800x\":1}", 0, CKPT_EPROTO, "half of a surrogate pair (byte 2)");
	refused("{\"\\udc00\\ud800\":1}", 0, CKPT_EPROTO, "half of a surrogate pair (byte 2)");
	refused("{\"\\\\ud800\":1}", 0, CKPT_EPROTO, "tensor '\\ud800': it is not described");
	refused("{\"__metadata__\":{\"a\":\"\",\"\\u0061\":\"\"}}", 0, CKPT_EPROTO,
		"duplicate object key 'a'");
	refused("{\"__metadata__\":{},\"__metadata__\":{}}", 0, CKPT_EPROTO,
		"duplicate object key '__metadata__'");
	refused("{\"a\":" T("U8", "[[[]]]", "[0,1]") "}", 1, CKPT_EPROTO, "no count");
	refused("{\"a\":" T("U8", "[1]", "[0,1]") ",\"a\":" T("U8", "[1]", "[1,2]") "}", 2,
		CKPT_EPROTO, "duplicate object key");
	refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"dtype\":\"I8\"}}", 1, CKPT_EPROTO,
		"duplicate object key");
	refused("{\"a\":3}", 0, CKPT_EPROTO, "tensor 'a': it is not described by");
	refused("{\"\\u001b]0;x\\u0007\":3}", 0, CKPT_EPROTO, "tensor '?]0;x?': it is not");
	refused("{\"a\":" T("\\u001b[2J", "[0]", "[0,0]") "}", 0, CKPT_EVERSION,
		"'a' has the dtype ?[2J, which");
	refused("{\"__metadata__\":{\"\\u001b[2J\":1}}", 0, CKPT_EPROTO, "has '?[2J', which is no");
	refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[0]}}", 0, CKPT_EPROTO, "it is not described");
	refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],\"x\":1}}", 0,
		CKPT_EPROTO, "it is not described");
	refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"offsets\":[0,0]}}", 0, CKPT_EPROTO,
		"it is not described");
	refused("{\"a\":{\"dtype\":3,\"shape\":[0],\"data_offsets\":[0,0]}}", 0, CKPT_EPROTO,
		"its dtype is no text");
	refused("{\"a\":" T("U8", "3", "[0,3]") "}", 3, CKPT_EPROTO, "its shape is no list");
	refused("{\"a\":" T("U8", "[3.0]", "[0,3]") "}", 3, CKPT_EPROTO, "no count");
	refused("{\"a\":" T("U8", "[-3]", "[0,3]") "}", 3, CKPT_EPROTO, "no count");
	refused("{\"a\":" T("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, CKPT_EPROTO,
		"it has 9 dimensions, and at most 8");
	refused("{\"a\":" T("U8", "[18446744073709551615]", "[0,3]") "}", 3, CKPT_EPROTO,
		"not JSON that can be used: parse error: integer overflow");
	refused("{\"a\":" T("F64", "[4611686018427387904,2]", "[0,0]") "}", 0, CKPT_EPROTO,
		"more than 2^64 bytes");
	refused("{\"a\":" T("F64", "[4611686018427387904,4]", "[0,0]") "}", 0, CKPT_EPROTO,
		"more than 2^64 bytes");
	refused("{\"a\":" T("U8", "[3]", "[0,4]") "}", 4, CKPT_EPROTO,
		"tensor 'a': shape [3] of u8 has 3 bytes, its data_offsets have 4");
	refused("{\"a\":" T("U8", "[3]", "[0]") "}", 3, CKPT_EPROTO, "not two counts");
	refused("{\"a\":" T("U8", "[3]", "[0,3,6]") "}", 3, CKPT_EPROTO, "not two counts");
	refused("{\"a\":" T("U8", "[3]", "[-3,0]") "}", 3, CKPT_EPROTO, "not two counts");
	refused("{\"a\":" T("U8", "[3]", "[3,0]") "}", 3, CKPT_EPROTO, "end before they begin");
	refused("{\"\":" T("U8", "[3]", "[0,3]") "}", 3, CKPT_EPROTO, "names have 1 to 1023");
	refused("{\"__metadata__\":3}", 0, CKPT_EPROTO, "__metadata__ is no object");
	refused("{\"__metadata__\":{\"a\":1}}", 0, CKPT_EPROTO, "__metadata__ has 'a', which");
}

/* Where the data lies as a whole. */
static void test_cover(void **state)
{
	(void)state;
	refused("{\"a\":" T("U8", "[3]", "[0,3]") "}", 4, CKPT_EPROTO,
		"its tensors have 3 bytes, and 4 follow");
	refused("{\"a\":" T("U8", "[3]", "[0,3]") "}", 2, CKPT_EPROTO,
		"its tensors have 3 bytes, and 2 follow");
	refused("{}", 1, CKPT_EPROTO, "its tensors have 0 bytes, and 1 follow");
	refused("{\"a\":" T("U8", "[3]", "[1,4]") "}", 4, CKPT_EPROTO,
		"tensor 'a': its data begins at 1, behind a hole that begins at 0");
	refused("{\"a\":" T("U8", "[3]", "[0,3]") ",\"b\":" T("U8", "[2]", "[2,4]") "}", 4,
		CKPT_EPROTO, "tensor 'b': its data begins at 2, inside another's, which ends at 3");
	refused("{\"a\":" T("U8", "[3]", "[0,3]") ",\"b\":" T("U8", "[3]", "[0,3]") "}", 3,
		CKPT_EPROTO, "tensor 'b': its data begins at 0, inside another's");
	refused("{\"a\":" T("U8", "[3]", "[0,3]") ",\"b\":" T("U8", "[0]", "[1,1]") "}", 3,
		CKPT_EPROTO, "tensor 'b': its data begins at 1, inside another's");
	refused("{\"a\":" T("U8", "[0]", "[9223372036854775807,9223372036854775807]") "}", 0,
		CKPT_EPROTO, "behind a hole");
}

static void test_names_to_write(void **state)
{
	const struct {
		const char *name;
		uint32_t len;
	} names[] = {{"a\xff", 2}, {"a\0b", 3}};
	struct safetensors_entry t = {.dtype = CKPT_U8};
	const char *wild = "a\"\\\n\x01/\u20ac";
	struct safetensors_header h;
	struct err e = {0};
	void *built = NULL;
	size_t len;

	(void)state;
	t.shape = (struct shape){.ndim = 1};
	for (size_t i = 0; i < 2; i++) {
		t.name = names[i].name;
		t.name_len = names[i].len;
		assert_int_equal(safetensors_build(&t, 1, NULL, &built, &len, &e), -EINVAL);
		assert_non_null(strstr(e.text, "is not UTF-8"));
	}
	t.name = wild;
	t.name_len = (uint32_t)strlen(wild);
	assert_int_equal(safetensors_build(&t, 1, NULL, &built, &len, &e), 0);
	assert_int_equal(safetensors_parse((char *)built + 8, len - 8, 0, &h, &e), 0);
	assert_string_equal(h.entries[0].name, wild); /* was decoded: a NUL is behind it */
	safetensors_header_fini(&h);
	alloc_free(built);
}

static void index_refused(const char *json, const char *sentence)
{
	struct safetensors_index x;
	struct err e = {0};

	assert_int_equal(safetensors_index_parse(json, strlen(json), &x, &e), CKPT_EPROTO);
	if (!strstr(e.text, sentence))
		fail_msg("%s: '%s', not '%s'", json, e.text, sentence);
}

static void test_index(void **state)
{
	const char *good = "{\"metadata\":{\"total_size\":7},\"weight_map\":"
			   "{\"a\":\"m-1.safetensors\",\"b\":\"..m\"}}";
	const struct safetensors_indexed *t;
	struct safetensors_index x;
	struct err e;

	(void)state;
	assert_int_equal(safetensors_index_parse(good, strlen(good), &x, &e), 0);
	assert_int_equal(x.n, 2);
	t = safetensors_index_find(&x, "b", 1);
	assert_non_null(t);
	assert_int_equal(t->file_len, 3);
	assert_memory_equal(t->file, "..m", 3);
	assert_null(safetensors_index_find(&x, "c", 1));
	safetensors_index_fini(&x);
	index_refused("", "not JSON");
	index_refused("[]", "not a JSON object");
	index_refused("{}", "no object 'weight_map'");
	index_refused("{\"weight_map\":[]}", "no object 'weight_map'");
	index_refused("{\"weight_map\":{\"a\":\"x\",\"a\":\"y\"}}", "duplicate object key");
	index_refused("{\"weight_map\":{},\"weight_map\":{}}", "duplicate object key");
	index_refused("{\"x\":{\"weight_map\":{}}}", "no object 'weight_map'");
	index_refused("{\"weight_map\":{\"\\ud800\":\"x\"}}", "half of a surrogate pair (byte 16)");
	index_refused("{\"weight_map\":{\"a\":[]}}", "tensor 'a' is in '?'");
	index_refused("{\"weight_map\":{\"a\":1}}", "tensor 'a' is in '?', which is not the name");
	index_refused("{\"weight_map\":{\"a\":\"../x\"}}", "is in '../x', which is not the name");
	index_refused("{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "is not the name of a file");
	index_refused("{\"weight_map\":{\"a\":\"..\"}}", "is not the name of a file");
	index_refused("{\"weight_map\":{\"a\":\"\"}}", "is not the name of a file");
}

/* libyajl takes no missing memory: each allocation fails in turn, and nothing is left behind. */
static void test_memory(void **state)
{
	const char *header = "{\"__metadata__\":{\"\\u0061\":\"\\n\\n\"},\"\\u00e9\":" T(
		"U8", "[1]", "[0,1]") "}";
	const char *index = "{\"weight_map\":{\"\\u00e9\":\"\\u00e9\",\"b\":\"c\"}}";
	struct alloc_budget b = {.limit = 1 << 20};
	struct safetensors_header h;
	struct safetensors_index x;
	bool fired = true;
	struct err e;
	int r;

	(void)state;
	alloc_set_budget(&b);
	for (uint64_t n = 1; fired; n++) {
		alloc_fail_at(n, false);
		r = parse(header, 1, &h, &e);
		fired = alloc_fired();
		assert_int_equal(r, fired ? -ENOMEM : 0);
		if (r == 0)
			safetensors_header_fini(&h);
		assert_int_equal(b.used, 0);
	}
	fired = true;
	for (uint64_t n = 1; fired; n++) {
		alloc_fail_at(n, false);
		r = safetensors_index_parse(index, strlen(index), &x, &e);
		fired = alloc_fired();
		assert_int_equal(r, fired ? -ENOMEM : 0);
		if (r == 0)
			safetensors_index_fini(&x);
		assert_int_equal(b.used, 0);
	}
	alloc_fail_at(0, false);
	b.limit = 1000; /* as a budget refuses it */
	assert_int_equal(parse(header, 1, &h, &e), -ENOMEM);
	assert_true(b.wanted > 1000 && b.used == 0);
	alloc_set_budget(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good),
		cmocka_unit_test(test_every_dtype),
		cmocka_unit_test(test_damage_is_named),
		cmocka_unit_test(test_cover),
		cmocka_unit_test(test_names_to_write),
		cmocka_unit_test(test_index),
		cmocka_unit_test(test_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
