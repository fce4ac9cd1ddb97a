/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/test.h"
#include "tools/layout_file.h"

/* Quotes are written ' here. */
static int parse(const char *quoted, struct layout **ret, struct err *e)
{
	char text[4096];
	size_t i;

	for (i = 0; quoted[i]; i++)
		text[i] = quoted[i] == '\'' ? '"' : quoted[i];
	return layout_from_json(text, i, ret, e);
}

/* Both layouts cut a tensor of this shape the same way on every rank. */
static void expect_same(const char *json, const char *spec, const char *name, uint64_t rows,
			uint64_t columns)
{
	struct layout_tensor t = {name, (uint32_t)strlen(name), CKPT_F32, {2, {rows, columns}}};
	const struct layout_tensors one = layout_array(&t, 1);
	struct shard a[LAYOUT_SHARDS_MAX], b[LAYOUT_SHARDS_MAX];
	struct layout *x = NULL, *y = NULL;
	uint32_t n_a, n_b, seen = 0;
	struct err e = {0};

	if (parse(json, &x, &e) || layout_parse(spec, &y, &e) || layout_begin(x, &one, &e) ||
	    layout_begin(y, &one, &e))
		fail_msg("%s", e.text);
	assert_int_equal(layout_world(x), layout_world(y));
	for (uint32_t rank = 0; rank < layout_world(x); rank++) {
		if (layout_shards(x, &t, rank, a, &n_a, &e) ||
		    layout_shards(y, &t, rank, b, &n_b, &e))
			fail_msg("%s", e.text);
		assert_int_equal(n_a, n_b);
		for (uint32_t i = 0; i < n_a; i++)
			assert_memory_equal(&a[i], &b[i], sizeof(a[i]));
		seen += n_a;
	}
	assert_true(seen > 0);
	layout_free(x);
	layout_free(y);
}

static void test_same_as_named(void **state)
{
	(void)state;
	expect_same("{'layout': 1, 'mesh': [['dp', 2], ['tp', 3]], 'rules': ["
		    "{'match': '*up_proj*', 'cut': {'over': 'tp'}}]}",
		    "hf:tp=3,dp=2", "layers.0.mlp.up_proj.weight", 7, 2);
	expect_same("{'layout': 1, 'mesh': [['tp', 4]], 'rules': [{'match': '*qkv_proj.weight', "
		    "'cut': {'dim': 0, 'over': 'tp', 'parts': [{'weight': 4, 'units': 4}, "
		    "{'weight': 2, 'units': 2}, {'weight': 2, 'units': 2}]}}]}",
		    "hf:tp=4,heads=4,kv=2", "layers.0.self_attn.qkv_proj.weight", 16, 3);
	expect_same("{'layout': 1, 'mesh': [['pp', 2]], 'places': {'axis': 'pp', 'number': "
		    "'layers.#.*', 'sizes': [1, 2]}}",
		    "hf:pp=2,stages=1:2", "layers.1.x", 2, 2);
	expect_same("{'layout': 1, 'mesh': [['dp', 3]], 'flat': {'over': 'dp'}}", "zero3=3", "x", 5,
		    3);
	expect_same("{'layout': 1, 'mesh': [['dp', 2]], 'flat': {'over': 'dp', 'of': 'moments', "
		    "'unit': 'all', 'pad': 128, 'align': 64, 'reverse': true}}",
		    "megatron:dp=2,zero=1", "exp_avg.decoder.x", 50, 3);
	expect_same("{'layout': 1, 'mesh': [['dp', 2], ['tp', 2]], "
		    "'more_meshes': [[['ep', 2], ['etp', 2]]], 'rules': [{'match': 'l*.down_proj', "
		    "'cut': [{'dim': 0, 'over': 'ep'}, {'dim': 1, 'over': 'etp'}]}]}",
		    "hf:tp=2,ep=2", "layers.0.mlp.experts.down_proj", 2, 4);
	expect_same("{'layout': 1, 'mesh': [['tp', 2]], 'rules': [{'match': 'embed_tokens.weight', "
		    "'of': 'all', 'cut': [{'dim': 0, 'over': ['tp'], 'how': 'chunk', 'pad': 8}]}]}",
		    "hf:tp=2,vocab=4", "embed_tokens.weight", 10, 2);
}

static void refuse(const char *json, const char *sentence)
{
	struct layout *l = NULL;
	struct err e = {0};

	assert_int_equal(parse(json, &l, &e), -EINVAL);
	assert_null(l);
	test_says(e.text, sentence);
}

#define HEAD       "{'layout': 1, 'mesh': [['dp', 2], ['tp', 2]], "
#define RULE(rest) HEAD "'rules': [{'match': 'a'}, {'match': 'w', " rest "}]}"

static void test_refused(void **state)
{
	(void)state;
	refuse("", "line 1");
	refuse("[]", "no object");
	refuse("{'mesh': [['tp', 2]]}", "no \"layout\": 1");
	refuse("{'layout': 2, 'mesh': [['tp', 2]]}", "it is of version 2");
	refuse("{'layout': 1}", "\"mesh\" is not a list of axes");
	refuse("{'layout': 1, 'mesh': [['tp']]}", "each axis is");
	refuse("{'layout': 1, 'mesh': [['tp', 0]]}", "each axis is");
	refuse("{'layout': 1, 'mesh': [['tp', 65536], ['dp', 65536]]}", "1 to 65536 ranks");
	refuse("{'layout': 1, 'mesh': [[5, 2]]}", "an axis is");
	refuse(HEAD "'more_meshes': [[['ep', 2]]]}", "mesh 1 of \"more_meshes\": it is over other");
	refuse(HEAD "'more_meshes': [[['tp', 2], ['ep', 2]]]}", "'tp' is in two places");
	refuse(HEAD "'rule': []}", "no key 'rule'");
	refuse(HEAD "'rules': {}}", "\"rules\" is no list");
	refuse(HEAD "'rules': [{}]}", "rule 1 (''): it has no \"match\"");
	refuse(HEAD "'rules': [5]}", "rule 1 (''): it is no object");
	refuse(RULE("'cut': [{'over': 'tp'}, {'over': 'pp'}]"),
	       "rule 2 ('w'): cut 2: \"over\": 'pp' is no axis of the mesh");
	refuse(RULE("'cut': {'dim': 8, 'over': 'tp'}"), "rule 2 ('w'): cut 1: \"dim\"");
	refuse(RULE("'cut': {'dims': 0, 'over': 'tp'}"), "no key 'dims'");
	refuse(RULE("'cut': {'dim': 0}"), "\"over\" is not the name");
	refuse(RULE("'cut': {'over': ['tp', 'tp']}"), "over axis 'tp' twice");
	refuse(RULE("'cut': {'over': 'tp', 'how': 'odd'}"), "\"how\" is none of \"even\"");
	refuse(RULE("'cut': {'over': 'tp', 'pad': 4}"), "\"pad\" goes with");
	refuse(RULE("'cut': {'over': 'tp', 'how': 'chunk', 'units': 4}"), "\"units\" goes with");
	refuse(RULE("'cut': {'over': 'tp', 'parts': [1, 0]}"), "part 2: a weight");
	refuse(RULE("'cut': {'over': 'tp', 'parts': [{}]}"), "part 1: it has no \"weight\"");
	refuse(RULE("'cut': {'over': 'tp', 'parts': [], 'units': 2}"), "\"parts\" is no list");
	refuse(RULE("'cut': {'over': 'tp', 'parts': [1], 'units': 2}"), "goes into each");
	refuse(RULE("'flat': {'over': 'tp', 'unit': 'number'}"), "\"flat\": \"unit\"");
	refuse(RULE("'flat': true"), "\"flat\": it is no object");
	refuse(RULE("'of': 'some'"), "\"of\" is none of");
	refuse(HEAD "'places': {'axis': 'tp', 'number': 'x'}}", "place 1: \"number\": pattern 'x'");
	refuse(HEAD "'places': {'axis': 'tp', 'number': 'x#', 'sizes': [1]}}", "list of 2 numbers");
	refuse(HEAD "'places': {'axis': 'tp', 'sizes': [1, 2], 'count': 4}}", "are 3 together");
	refuse(HEAD "'moments': ['adam.m.#']}", "exactly one '*'");
	refuse(HEAD "'strict': 1}", "neither true nor false");
	refuse("{'layout': 1, 'layout': 1, 'mesh': [['tp', 2]]}", "duplicate");
}

/* A list of sizes that places no number at all is not the same as none: names do not fill it. */
static void no_number_placed(const char *spec, bool json)
{
	struct layout_tensor t = {"layers.0.x", 10, CKPT_F32, {1, {4}}};
	const struct layout_tensors one = layout_array(&t, 1);
	struct shard shards[LAYOUT_SHARDS_MAX];
	struct layout *l = NULL;
	struct err e = {0};
	uint32_t n;
	int r = json ? parse(spec, &l, &e) : layout_parse(spec, &l, &e);

	if (r == 0)
		r = layout_begin(l, &one, &e);
	if (r == 0)
		r = layout_shards(l, &t, 0, shards, &n, &e);
	layout_free(l);
	assert_int_equal(r, -EINVAL);
	test_says(e.text, "the pieces over axis 'pp' have no number");
}

static void test_no_number_placed(void **state)
{
	(void)state;
	no_number_placed("{'layout': 1, 'mesh': [['pp', 2]], 'places': {'axis': 'pp', 'number': "
			 "'layers.#.*', 'sizes': [0, 0]}}",
			 true);
	no_number_placed("hf:pp=2,stages=0:0", false);
}

static void test_files(void **state)
{
	char path[] = "/tmp/ckpt-layout.XXXXXX.json";
	struct layout *l = NULL;
	struct err e = {0};
	int fd = mkstemps(path, 5);

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(layout_get(path, &l, &e), -EINVAL); /* empty */
	assert_non_null(strstr(e.text, path));
	assert_true(dprintf(fd, "{\"layout\": 1, \"mesh\": [[\"dp\", 5]]}") > 0);
	assert_int_equal(layout_get(path, &l, &e), 0);
	assert_int_equal(layout_world(l), 5);
	layout_free(l);
	close(fd);
	unlink(path);
	assert_int_equal(layout_get(path, &l, &e), -ENOENT);
	assert_non_null(strstr(e.text, "open it"));
	assert_int_equal(layout_get("ddp=3", &l, &e), 0);
	assert_int_equal(layout_world(l), 3);
	layout_free(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same_as_named),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_no_number_placed),
		cmocka_unit_test(test_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
