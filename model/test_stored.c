/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a checkpoint holds and what a read wants: there and back, equal declarations once, and every
 * cut and every flipped byte refused or harmless.
 */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "model/stored.h"
#include "tests/lib/test.h"

#define WORLD 5
static const struct geometry geometry = {4096, 16384};

static void *declare(uint64_t first_row, size_t *ret_len)
{
	struct declaration_builder *b;
	struct err e = {0};
	struct shard s = {.name = "w",
			  .name_len = 1,
			  .dtype = CKPT_F32,
			  .global = {2, {64, 8}},
			  .box = {2, {first_row, 0}, {16, 8}}};
	void *bytes;

	assert_int_equal(declaration_builder_new(geometry, &b), 0);
	assert_int_equal(declaration_add(b, &s, &e), 0);
	assert_int_equal(declaration_finish(b, &bytes, ret_len, &e), 0);
	declaration_builder_free(b);
	return bytes;
}

static void *table(uint32_t rank, const void *declaration, size_t len, size_t *ret_len)
{
	struct blob_entry blobs[2] = {{.name = "rng", .name_len = 3, .bytes = 100 + rank},
				      {.name = "empty", .name_len = 5}};
	struct rank_table_parts p = {.rank = rank,
				     .world = WORLD,
				     .geometry = geometry,
				     .declaration = declaration,
				     .declaration_len = len,
				     .blobs = blobs,
				     .n_blobs = rank == 1 ? 0 : 2};
	struct declaration d;
	struct digest leaves[4] = {0};
	struct err e = {0};
	void *bytes;

	assert_int_equal(declaration_open(declaration, len, &d, &e), 0);
	assert_int_equal(blobs_place(&d, blobs, p.n_blobs, &p.image_len), 0);
	p.leaves = leaves;
	assert_int_equal(rank_table_build(&p, &bytes, ret_len, &e), 0);
	return bytes;
}

/* Ranks 0, 2 and 4 have one declaration, 1 and 3 another. */
static void encode(struct writer *w, void *bytes[WORLD])
{
	struct rank_table tables[WORLD];
	const struct rank_table *ptrs[WORLD];
	struct err e = {0};

	for (uint32_t i = 0; i < WORLD; i++) {
		size_t len, table_len;
		void *d = declare(i % 2 * 16, &len);

		bytes[i] = table(i, d, len, &table_len);
		assert_int_equal(rank_table_open(bytes[i], table_len, &tables[i], &e), 0);
		ptrs[i] = &tables[i];
		alloc_free(d);
	}
	assert_int_equal(stored_encode(ptrs, WORLD, w), 0);
	for (uint32_t i = 0; i < WORLD; i++)
		alloc_free(bytes[i]);
}

static void test_stored(void **state)
{
	struct writer w = {0};
	void *bytes[WORLD];
	struct stored s;
	struct shard h;
	struct err e = {0};

	(void)state;
	encode(&w, bytes);
	assert_int_equal(stored_decode(w.buf, w.len, &s, &e), 0);
	assert_int_equal(s.world, WORLD);
	assert_int_equal(s.n_declarations, 2);
	assert_int_equal(s.n_blobs, 8);
	for (uint32_t i = 0; i < WORLD; i++) {
		declaration_get(&s.declarations[s.declaration_of[i]], 0, &h);
		assert_int_equal(h.box.offset[0], i % 2 * 16);
	}
	assert_int_equal(s.blobs[2].rank, 2);
	assert_int_equal(s.blobs[2].bytes, 102);
	assert_memory_equal(s.blobs[2].name, "rng", 3);
	assert_int_equal(s.blobs[3].bytes, 0);
	assert_int_equal(s.blobs[7].rank, 4);
	stored_fini(&s);
	for (size_t n = 0; n < w.len; n++) {
		void *cut = alloc_copy(w.buf, n);

		assert_true(stored_decode(cut, n, &s, &e) < 0);
		alloc_free(cut);
	}
	writer_free(&w);
}

static void test_stored_damaged(void **state)
{
	struct writer w = {0};
	void *bytes[WORLD];
	struct stored s;
	struct err e = {0};
	int refused = 0;

	(void)state;
	encode(&w, bytes);
	for (size_t i = 0; i < w.len; i++) {
		w.buf[i] ^= 0x81;
		if (stored_decode(w.buf, w.len, &s, &e) == 0)
			stored_fini(&s);
		else
			refused++;
		w.buf[i] ^= 0x81;
	}
	assert_true(refused > 100); /* the declarations have digests of their own */
	writer_free(&w);
}

static void test_wants(void **state)
{
	struct stored_blob blobs[2] = {{.rank = 7, .name = "rng", .name_len = 3},
				       {.rank = 0, .name = "x", .name_len = 1}};
	struct writer w = {0}, none = {0};
	struct read_wants r;
	struct err e = {0};
	size_t len;
	void *d = declare(16, &len);

	(void)state;
	assert_int_equal(read_wants_encode(d, len, blobs, 2, &w), 0);
	assert_int_equal(read_wants_decode(w.buf, w.len, &r, &e), 0);
	assert_true(r.tensors);
	assert_int_equal(r.declaration.n_shards, 1);
	assert_int_equal(r.n_blobs, 2);
	assert_int_equal(r.blobs[0].rank, 7);
	assert_memory_equal(r.blobs[1].name, "x", 1);
	read_wants_fini(&r);
	for (size_t n = 0; n < w.len; n++) {
		void *cut = alloc_copy(w.buf, n);

		assert_true(read_wants_decode(cut, n, &r, &e) < 0);
		alloc_free(cut);
	}
	assert_int_equal(read_wants_encode(NULL, 0, NULL, 0, &none), 0);
	assert_int_equal(read_wants_decode(none.buf, none.len, &r, &e), 0);
	assert_true(!r.tensors && r.n_blobs == 0);
	read_wants_fini(&r);
	alloc_free(d);
	writer_free(&w);
	writer_free(&none);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_stored),
		cmocka_unit_test(test_stored_damaged),
		cmocka_unit_test(test_wants),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
