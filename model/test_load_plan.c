/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "codec/compress.h"
#include "model/load_plan.h"
#include "tests/lib/test.h"

/* A memory source of 10 leaves and a file of 3 chunks, two pieces, a blob. */
struct sample {
	struct digest leaves[10];
	uint8_t places[3 * CHUNK_PLACE_BYTES];
	struct load_source sources[2];
	struct load_blob blobs[2];
	struct plan_piece pieces[2];
	struct plan_problem problem;
	struct load_plan plan;
	uint64_t target;
};

static void sample_init(struct sample *s)
{
	static const struct geometry g = { .leaf = 64, .chunk = 256 };
	struct chunk_place place = { .offset = 4096, .stored = 256 };

	memset(s, 0, sizeof(*s));
	test_fill(s->leaves, sizeof(s->leaves), 1);
	chunk_place_put(s->places, &place);
	place.offset = 8192;
	place.stored = 100;
	place.encoding = ENCODING_ZSTD_P2;
	memset(place.digest.b, 7, sizeof(place.digest.b));
	chunk_place_put(s->places + CHUNK_PLACE_BYTES, &place);
	place = (struct chunk_place){ .offset = 12288, .stored = 88 };
	chunk_place_put(s->places + 2 * CHUNK_PLACE_BYTES, &place);
	s->sources[0] = (struct load_source){ LOAD_MEMORY, 4, 620, g, s->leaves[0].b, NULL };
	s->sources[1] = (struct load_source){ LOAD_FILE, 5, 600, g, s->leaves[0].b, s->places };
	s->blobs[0] = (struct load_blob){ (char *)"rng", 0, 512, 108 };
	s->blobs[1] = (struct load_blob){ (char *)"empty", 1, 600, 0 };
	s->pieces[0] = (struct plan_piece){ .source = 0, .run = 300 };
	s->pieces[1] = (struct plan_piece){ .source = 1, .src = 40, .dst = 300, .run = 10 };
	s->problem.kind = PLAN_EXTRA;
	strcpy(s->problem.text, "tensor 'x' is stored but not wanted");
	s->plan.sources = s->sources;
	s->plan.n_sources = 2;
	s->plan.blobs = s->blobs;
	s->plan.n_blobs = 2;
	s->plan.plan.pieces = s->pieces;
	s->plan.plan.n_pieces = 2;
	s->plan.plan.problems = &s->problem;
	s->plan.plan.n_problems = 1;
	s->target = 310;
}

static void test_round_trip(void **state)
{
	struct chunk_place place;
	struct writer w = { 0 };
	struct load_plan back;
	struct sample s;

	(void)state;
	sample_init(&s);
	assert_int_equal(load_plan_encode(&s.plan, &w), 0);
	assert_int_equal(load_plan_decode(w.buf, w.len, &s.target, 1, &back, NULL), 0);
	assert_true(back.n_sources == 2 && back.n_blobs == 2);
	assert_true(back.sources[0].kind == LOAD_MEMORY && back.sources[0].rank == 4);
	assert_true(back.sources[0].image_len == 620 && back.sources[0].geometry.leaf == 64);
	assert_memory_equal(back.sources[0].leaves, s.leaves, 160);
	assert_true(back.sources[1].kind == LOAD_FILE && back.sources[1].rank == 5);
	assert_memory_equal(back.sources[1].places, s.places, sizeof(s.places));
	place = chunk_place_get(back.sources[1].places, 1);
	assert_true(place.offset == 8192 && place.stored == 100 && place.file == 0);
	assert_true(place.encoding == ENCODING_ZSTD_P2 && place.digest.b[15] == 7);
	assert_string_equal(back.blobs[0].name, "rng");
	assert_true(back.blobs[0].source == 0 && back.blobs[0].image_offset == 512 &&
		    back.blobs[0].bytes == 108);
	assert_true(back.plan.n_pieces == 2 && back.plan.pieces[1].dst == 300);
	assert_true(back.plan.bytes == 310 && back.plan.n_problems == 1);
	assert_string_equal(back.plan.problems[0].text, s.problem.text);
	load_plan_fini(&back);
	writer_free(&w);
}

static void refused(struct sample *s)
{
	struct writer w = { 0 };
	struct load_plan back;

	assert_int_equal(load_plan_encode(&s->plan, &w), 0);
	assert_int_equal(load_plan_decode(w.buf, w.len, &s->target, 1, &back, NULL), CKPT_EPROTO);
	writer_free(&w);
	sample_init(s);
}

static void set_place(struct sample *s, uint64_t i, struct chunk_place place)
{
	chunk_place_put(s->places + i * CHUNK_PLACE_BYTES, &place);
}

static void test_lies_are_refused(void **state)
{
	struct chunk_place raw = { .offset = 4096, .stored = 256 }, p;
	struct sample s;

	(void)state;
	sample_init(&s);
	s.blobs[0].bytes++;
	refused(&s);
	s.blobs[0].image_offset = UINT64_MAX;
	refused(&s);
	s.blobs[1].name = (char *)"";
	refused(&s);
	s.pieces[1].src = 591;
	refused(&s);
	s.target = 309;
	refused(&s);
	s.pieces[0].run = 0;
	refused(&s);
	s.pieces[0].src = 50; /* not sorted */
	s.pieces[1].source = 0;
	refused(&s);
	p = raw, p.stored = 255, set_place(&s, 0, p), refused(&s);
	p = raw, p.file = 1, set_place(&s, 0, p), refused(&s);
	p = raw, p.digest.b[0] = 1, set_place(&s, 0, p), refused(&s);
	p = raw, p.offset = UINT64_MAX, set_place(&s, 0, p), refused(&s);
	p = raw, p.encoding = ENCODING_ZSTD, set_place(&s, 0, p), refused(&s);
	p = raw, p.encoding = 4, p.stored = 9, set_place(&s, 0, p), refused(&s);
	p = raw, p.encoding = ENCODING_ZSTD, p.stored = 0, set_place(&s, 0, p), refused(&s);
}

static void accepted(struct sample *s)
{
	struct writer w = {0};
	struct load_plan back;
	struct err e = {0};

	assert_int_equal(load_plan_encode(&s->plan, &w), 0);
	if (load_plan_decode(w.buf, w.len, &s->target, 1, &back, &e) < 0)
		fail_msg("%s", e.text);
	assert_memory_equal(back.sources[1].places, s->places, sizeof(s->places));
	load_plan_fini(&back);
	writer_free(&w);
	sample_init(s);
}

/* The file has 600 bytes in leaves of 64: four each in chunks 0 and 1, 64 and 24 bytes in chunk
 * 2. A piece touches leaf 0. */
static void test_missing_leaves(void **state)
{
	struct chunk_place raw = {.offset = 4096, .stored = 192}, p;
	struct sample s;

	(void)state;
	sample_init(&s);
	p = raw, p.missing = 1 << 3, set_place(&s, 0, p), accepted(&s);
	p = raw, p.missing = 14, p.stored = 64, set_place(&s, 0, p), accepted(&s);
	p = raw, p.missing = 1, set_place(&s, 0, p), refused(&s); /* it is read */
	p = raw, p.missing = 8, p.stored = 256, set_place(&s, 0, p), refused(&s);
	p = raw, p.missing = 16, set_place(&s, 0, p), refused(&s); /* there is no such leaf */
	p = raw, p.missing = 14, p.stored = 64, p.encoding = ENCODING_ZSTD;
	set_place(&s, 0, p), refused(&s); /* it saved nothing */
	p.stored = 63, set_place(&s, 0, p), accepted(&s);
	p = raw, p.missing = 15, p.stored = 0, set_place(&s, 1, p), accepted(&s);
	p = raw, p.missing = 2, p.stored = 64, set_place(&s, 2, p), accepted(&s);
	p = raw, p.missing = 1, p.stored = 24, set_place(&s, 2, p), accepted(&s);
	p = raw, p.missing = 4, p.stored = 88, set_place(&s, 2, p), refused(&s);
	s.blobs[1].image_offset = 590;
	s.blobs[1].bytes = 10;
	p = raw, p.missing = 1, p.stored = 24, set_place(&s, 2, p), accepted(&s);
	s.blobs[1].image_offset = 590;
	s.blobs[1].bytes = 10;
	p = raw, p.missing = 2, p.stored = 64, set_place(&s, 2, p), refused(&s);
	put_le32(s.places + CHUNK_PLACE_BYTES - 4, 1);
	refused(&s);
}

#define MANY 40u

/* One decode of a plan from many files, of which the odd ones lack their leaf 3; the source that it
 * is refused for, -1: none. */
static int blame(struct load_plan *p, uint64_t target)
{
	struct writer w = {0};
	struct load_plan back;
	struct err e = {0};
	int r, source = -1;

	assert_int_equal(load_plan_encode(p, &w), 0);
	r = load_plan_decode(w.buf, w.len, &target, 1, &back, &e);
	if (r == 0) {
		load_plan_fini(&back);
	} else {
		assert_int_equal(r, CKPT_EPROTO);
		assert_int_equal(sscanf(e.text, "a load plan reads from source %d what", &source),
				 1);
	}
	writer_free(&w);
	return source;
}

/* Pieces by source, blobs in any order: each is held against its own source. */
static void test_missing_leaves_of_many(void **state)
{
	static const struct geometry g = {.leaf = 64, .chunk = 256};
	static struct load_source sources[MANY];
	static struct plan_piece pieces[2 * MANY];
	static struct load_blob blobs[MANY];
	static uint8_t places[2][CHUNK_PLACE_BYTES];
	static struct digest leaves[4];
	struct chunk_place place = {.offset = 4096, .stored = 256};
	struct load_plan p = {
		.sources = sources, .n_sources = MANY, .blobs = blobs, .n_blobs = MANY};

	(void)state;
	chunk_place_put(places[0], &place);
	place.stored = 192;
	place.missing = 8;
	chunk_place_put(places[1], &place);
	for (uint32_t i = 0; i < MANY; i++) {
		sources[i] = (struct load_source){LOAD_FILE, i, 256, g, leaves[0].b, places[i % 2]};
		pieces[2 * i] = (struct plan_piece){.source = i, .dst = i * 128ull, .run = 64};
		pieces[2 * i + 1] = (struct plan_piece){
			.source = i, .src = 64, .dst = i * 128ull + 64, .run = 64};
		blobs[i] = (struct load_blob){(char *)"rng", MANY - 1 - i, 128, 64};
	}
	p.plan = (struct plan){.pieces = pieces, .n_pieces = 2ull * MANY};
	assert_int_equal(blame(&p, MANY * 128ull), -1);
	for (uint32_t i = 0; i < MANY; i++) {
		pieces[2 * i + 1].src = 130;
		assert_int_equal(blame(&p, MANY * 128ull), i % 2 ? (int)i : -1);
		pieces[2 * i + 1].src = 64;
		blobs[MANY - 1 - i].bytes = 65;
		assert_int_equal(blame(&p, MANY * 128ull), i % 2 ? (int)i : -1);
		blobs[MANY - 1 - i].bytes = 64;
	}
}

static void test_places_present(void **state)
{
	static const struct geometry g = {.leaf = 64, .chunk = 256};
	struct chunk_place p = {.stored = 192, .missing = 4};
	uint64_t *present = NULL;
	struct sample s;

	(void)state;
	sample_init(&s);
	assert_int_equal(places_present(s.places, 600, g, &present), 0);
	assert_null(present);
	set_place(&s, 1, p);
	assert_int_equal(places_present(s.places, 600, g, &present), 0);
	for (uint64_t i = 0; i < 10; i++)
		assert_int_equal(leaves_has(present, i), i != 6);
	assert_int_equal(leaves_next(present, 0, 10, true), 0);
	assert_int_equal(leaves_next(present, 0, 10, false), 6);
	assert_int_equal(leaves_next(present, 6, 10, true), 7);
	assert_int_equal(leaves_next(present, 7, 10, false), 10);
	assert_int_equal(leaves_next(NULL, 3, 10, true), 3);
	assert_int_equal(leaves_next(NULL, 3, 10, false), 10);
	assert_int_equal(leaves_bytes(present, 600, 64), 600 - 64);
	assert_int_equal(leaves_bytes(present, 6 * 64 + 10, 64), 6 * 64);
	assert_int_equal(leaves_bytes(NULL, 600, 64), 600);
	assert_int_equal(chunk_leaf_offset(g, 4, 4), 0);
	assert_int_equal(chunk_leaf_offset(g, 5, 4), 64);
	assert_int_equal(chunk_leaf_offset(g, 7, 4), 128);
	alloc_free(present);
}

/* Any damage is refused or gives a plan that keeps its promises; any cut is refused. */
static void test_damage(void **state)
{
	struct load_plan back;
	struct rng_seeded rng;
	struct writer w = { 0 };
	struct sample s;
	uint8_t *bad;

	(void)state;
	sample_init(&s);
	assert_int_equal(load_plan_encode(&s.plan, &w), 0);
	write_u8(&w, 0);
	assert_int_equal(load_plan_decode(w.buf, w.len, &s.target, 1, &back, NULL), CKPT_EPROTO);
	w.len--;
	for (size_t cut = 0; cut < w.len; cut++) {
		bad = malloc(cut ? cut : 1);
		memcpy(bad, w.buf, cut);
		assert_int_equal(load_plan_decode(bad, cut, &s.target, 1, &back, NULL),
				 CKPT_EPROTO);
		free(bad);
	}
	rng_seed(&rng, test_seed(11));
	bad = malloc(w.len);
	for (int round = 0; round < 50000; round++) {
		memcpy(bad, w.buf, w.len);
		for (uint64_t n = 1 + rng_below(&rng.rng, 3); n; n--)
			bad[rng_below(&rng.rng, w.len)] ^= (uint8_t)(1 << rng_below(&rng.rng, 8));
		if (load_plan_decode(bad, w.len, &s.target, 1, &back, NULL) != 0)
			continue;
		for (uint32_t i = 0; i < back.n_blobs; i++)
			assert_true(back.blobs[i].image_offset + back.blobs[i].bytes <=
				    back.sources[back.blobs[i].source].image_len);
		for (uint32_t i = 0; i < back.n_sources; i++) {
			const struct load_source *source = &back.sources[i];
			uint64_t last = (source->image_len + source->geometry.leaf - 1) /
					source->geometry.leaf;

			assert_true(source->leaves >= bad &&
				    source->leaves + 16 * last <= bad + w.len);
		}
		load_plan_fini(&back);
	}
	free(bad);
	writer_free(&w);
}

static void test_every_allocation_may_fail(void **state)
{
	struct sample s;

	(void)state;
	sample_init(&s);
	for (uint64_t n = 1;; n++) {
		struct writer w = { 0 };
		struct load_plan back;
		bool fired;
		int r;

		alloc_fail_at(n, false);
		r = load_plan_encode(&s.plan, &w);
		if (!r)
			r = load_plan_decode(w.buf, w.len, &s.target, 1, &back, NULL);
		fired = alloc_fired();
		alloc_fail_at(0, false);
		assert_int_equal(r, fired ? -ENOMEM : 0);
		if (!r)
			load_plan_fini(&back);
		writer_free(&w);
		if (!fired)
			break;
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_lies_are_refused),
		cmocka_unit_test(test_missing_leaves),
		cmocka_unit_test(test_missing_leaves_of_many),
		cmocka_unit_test(test_places_present),
		cmocka_unit_test(test_damage),
		cmocka_unit_test(test_every_allocation_may_fail),
	};

	return cmocka_run_group_tests_name("load plan", tests, NULL, NULL);
}
