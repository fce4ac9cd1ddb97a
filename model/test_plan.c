/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a plan must look like and say; test_plan_property.c shows that plans are right.
 */
#include <config.h>

#include <errno.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "model/plan.h"
#include "tests/lib/test.h"

static const struct geometry geometry = { .leaf = 64u << 10, .chunk = 1u << 20 };

/* A box [a, a + la) x [b, b + lb) of an 8 x 6 tensor of f32. */
static struct shard part(const char *name, uint64_t a, uint64_t la, uint64_t b, uint64_t lb)
{
	return (struct shard){
		.name = name,
		.name_len = (uint32_t)strlen(name),
		.dtype = CKPT_F32,
		.global = { .ndim = 2, .dim = { 8, 6 } },
		.box = { .ndim = 2, .offset = { a, b }, .length = { la, lb } },
	};
}

static struct shard flat(const char *name, uint64_t start, uint64_t stop)
{
	struct shard s = part(name, 0, 8, 0, 6);

	s.flat = true;
	s.start = start;
	s.stop = stop;
	return s;
}

static struct declaration declare(const struct shard *shards, uint32_t n)
{
	struct declaration_builder *b = NULL;
	struct declaration d;
	struct err e = { 0 };
	void *bytes;
	size_t len;

	assert_int_equal(declaration_builder_new(geometry, &b), 0);
	for (uint32_t i = 0; i < n; i++)
		if (declaration_add(b, &shards[i], &e) != (int)i)
			fail_msg("%s", e.text);
	if (declaration_finish(b, &bytes, &len, &e))
		fail_msg("%s", e.text);
	declaration_builder_free(b);
	assert_int_equal(declaration_open(bytes, len, &d, &e), 0);
	return d;
}

static void forget(struct declaration *d)
{
	alloc_free((void *)d->bytes);
}

#define DECLARE(...)                                                                               \
	declare((struct shard[]){ __VA_ARGS__ },                                                   \
		sizeof((struct shard[]){ __VA_ARGS__ }) / sizeof(struct shard))

static void test_same_layout_is_one_piece_each(void **state)
{
	struct declaration d = DECLARE(part("a", 2, 3, 0, 6), part("b", 0, 8, 2, 2),
				       flat("c", 5, 33), part("d", 1, 1, 3, 0));
	struct plan_source source = { .declaration = d };
	struct err e = { 0 };
	struct plan plan;

	(void)state;
	assert_int_equal(plan_make(&source, 1, &d, false, PLAN_ALONE, &plan, &e), 0);
	assert_int_equal(plan.n_pieces, 3);
	assert_int_equal(plan.bytes, 72 + 64 + 112);
	for (size_t i = 0; i < 3; i++) {
		struct plan_piece *p = &plan.pieces[i];

		assert_true(p->ndim == 0 && p->dst == 0 && p->target == i);
		assert_int_equal(p->run, i == 0 ? 72 : i == 1 ? 64 : 112);
	}
	plan_fini(&plan);
	forget(&d);
}

static void test_shape_of_a_cut(void **state)
{
	struct declaration have = DECLARE(part("w", 0, 8, 0, 6));
	struct declaration want = DECLARE(part("w", 2, 4, 3, 2));
	struct plan_source source = { .declaration = have };
	struct plan plan;

	(void)state;
	assert_int_equal(plan_make(&source, 1, &want, false, NULL, &plan, NULL), 0);
	assert_int_equal(plan.n_pieces, 1);
	assert_true(plan.pieces[0].ndim == 1 && plan.pieces[0].count[0] == 4);
	assert_true(plan.pieces[0].src == (2 * 6 + 3) * 4 && plan.pieces[0].run == 8);
	assert_true(plan.pieces[0].src_stride[0] == 24 && plan.pieces[0].dst_stride[0] == 8);
	plan_fini(&plan);
	forget(&have);
	forget(&want);
}

/* ZeRO from 4 to 3 ranks: one contiguous piece for each pair of ranges that meet. */
static void test_flat_to_flat_is_contiguous(void **state)
{
	struct declaration have[4], want = DECLARE(flat("m", 16, 32));
	struct plan_source sources[4];
	struct plan plan;

	(void)state;
	for (uint32_t i = 0; i < 4; i++) {
		have[i] = DECLARE(flat("m", 12 * i, 12 * (i + 1)));
		sources[i] = (struct plan_source){ .declaration = have[i], .cost = 0 };
	}
	assert_int_equal(plan_make(sources, 4, &want, false, NULL, &plan, NULL), 0);
	assert_int_equal(plan.n_pieces, 2);
	assert_true(plan.pieces[0].ndim == 0 && plan.pieces[0].source == 1);
	assert_true(plan.pieces[0].src == 16 && plan.pieces[0].run == 32 &&
		    plan.pieces[0].dst == 0);
	assert_true(plan.pieces[1].ndim == 0 && plan.pieces[1].source == 2);
	assert_true(plan.pieces[1].src == 0 && plan.pieces[1].run == 32 &&
		    plan.pieces[1].dst == 32);
	plan_fini(&plan);
	forget(&want);
	for (uint32_t i = 0; i < 4; i++)
		forget(&have[i]);
}

static void test_cheapest_then_lowest(void **state)
{
	struct declaration d = DECLARE(part("w", 0, 8, 0, 6)), top = DECLARE(part("w", 0, 2, 0, 6));
	struct plan_source sources[4] = {{d, 5, NULL}, {d, 2, NULL}, {d, 2, NULL}, {top, 1, NULL}};
	struct plan plan;

	(void)state;
	assert_int_equal(plan_make(sources, 3, &d, false, NULL, &plan, NULL), 0);
	assert_true(plan.n_pieces == 1 && plan.pieces[0].source == 1);
	plan_fini(&plan);
	assert_int_equal(plan_make(sources, 4, &d, false, NULL, &plan, NULL), 0);
	assert_int_equal(plan.n_pieces, 2);
	assert_true(plan.pieces[0].source == 1 && plan.pieces[0].run == 6 * 24);
	assert_true(plan.pieces[1].source == 3 && plan.pieces[1].run == 2 * 24);
	plan_fini(&plan);
	forget(&d);
	forget(&top);
}

static void assert_problem(const struct plan *plan, size_t i, enum plan_problem_kind kind,
			   const char *text)
{
	assert_true(i < plan->n_problems);
	assert_int_equal(plan->problems[i].kind, kind);
	assert_string_equal(plan->problems[i].text, text);
}

static void test_problems_are_named(void **state)
{
	struct shard half = part("type", 0, 8, 0, 6), other = part("shape", 0, 8, 0, 6);
	struct declaration have, want;
	struct plan_source source;
	struct err e = { 0 };
	struct plan plan;

	(void)state;
	have = DECLARE(part("fine", 0, 8, 0, 6), part("hole", 0, 8, 0, 4), part("more", 0, 1, 0, 1),
		       part("shape", 0, 8, 0, 6), part("type", 0, 8, 0, 6));
	half.dtype = CKPT_F16;
	other.global.dim[0] = 9;
	want = DECLARE(part("fine", 0, 8, 0, 6), part("hole", 2, 2, 1, 5), part("gone", 0, 8, 0, 6),
		       half, other);
	source = (struct plan_source){ .declaration = have, .cost = 0 };
	assert_int_equal(plan_make(&source, 1, &want, false, PLAN_ALONE, &plan, &e),
			 CKPT_EMISMATCH);
	assert_int_equal(plan.n_problems, 5);
	assert_problem(&plan, 0, PLAN_MISSING, "tensor 'gone' is wanted but stored by no rank");
	assert_problem(&plan, 1, PLAN_HOLE,
		       "elements [2:4, 4:6] of tensor 'hole' are stored by no rank");
	assert_problem(&plan, 2, PLAN_MISMATCH,
		       "tensor 'shape' is wanted as f32 [9, 6] but stored as f32 [8, 6]");
	assert_problem(&plan, 3, PLAN_MISMATCH,
		       "tensor 'type' is wanted as f16 [8, 6] but stored as f32 [8, 6]");
	assert_problem(&plan, 4, PLAN_EXTRA, "tensor 'more' is stored but not wanted");
	assert_string_equal(e.text,
			    "5 problems, the first: tensor 'gone' is wanted but stored by no "
			    "rank");
	plan_fini(&plan);
	assert_int_equal(plan_make(&source, 1, &want, true, PLAN_ALONE, &plan, &e), 0);
	assert_int_equal(plan.n_problems, 5);
	assert_int_equal(plan.bytes, 8 * 6 * 4 + 2 * 3 * 4); /* the rest is planned */
	plan_fini(&plan);
	/* Who else wants 'more' is not known. */
	assert_int_equal(plan_make(&source, 1, &want, true, NULL, &plan, &e), 0);
	assert_int_equal(plan.n_problems, 4);
	plan_fini(&plan);
	assert_int_equal(plan_make(NULL, 0, &want, false, NULL, &plan, &e), CKPT_EMISMATCH);
	assert_int_equal(plan.n_problems, 5);
	plan_fini(&plan);
	forget(&have);
	forget(&want);
}

/* So many ranks with a row each of so many tensors, that names are found in several batches; and
 * one of them has one tensor less. */
static void test_names_in_batches(void **state)
{
	enum { RANKS = 2048, TENSORS = 200 };
	static struct declaration have[RANKS];
	static struct plan_source sources[RANKS];
	struct shard own[TENSORS];
	char names[TENSORS][8];
	struct declaration want;
	struct plan plan;
	uint64_t at = 0;

	(void)state;
	for (uint32_t r = 0; r <= RANKS; r++) {
		for (uint32_t t = 0; t < TENSORS; t++) {
			snprintf(names[t], sizeof(names[t]), "t%03u", t);
			own[t] = r < RANKS ? part(names[t], r, 1, 0, 6) :
					     part(names[t], 0, RANKS, 0, 6);
			own[t].global.dim[0] = RANKS;
		}
		if (r == RANKS)
			want = declare(own, TENSORS);
		else
			have[r] = declare(own, TENSORS - (r == 7));
	}
	for (uint32_t r = 0; r < RANKS; r++)
		sources[r] = (struct plan_source){.declaration = have[r]};
	assert_int_equal(plan_make(sources, RANKS, &want, true, PLAN_ALONE, &plan, NULL), 0);
	assert_int_equal(plan.n_pieces, RANKS * TENSORS - 1);
	assert_int_equal(plan.n_problems, 1);
	assert_non_null(strstr(plan.problems[0].text, "[7:8, 0:6] of tensor 't199'"));
	for (uint32_t r = 0; r < RANKS; r++)
		for (uint32_t t = 0; t < TENSORS - (r == 7); t++, at++) {
			assert_int_equal(plan.pieces[at].source, r);
			assert_int_equal(plan.pieces[at].target, t);
		}
	plan_fini(&plan);
	for (uint32_t r = 0; r < RANKS; r++)
		forget(&have[r]);
	forget(&want);
}

static size_t count_extra(const struct plan_source *sources, const struct declaration *want,
			  const struct plan_peers *peers, struct plan *plan)
{
	size_t n = 0;
	int r = plan_make(sources, 2, want, false, peers, plan, NULL);

	for (size_t i = 0; i < plan->n_problems; i++)
		n += plan->problems[i].kind == PLAN_EXTRA;
	assert_int_equal(n, plan->n_problems);
	assert_int_equal(r, n ? CKPT_EMISMATCH : 0);
	return n;
}

/* Tensors dealt to other ranks are extra to nobody; what no rank wants is, to every one. */
static void test_extra_is_what_no_peer_wants(void **state)
{
	struct declaration stored[2] = {
		DECLARE(part("a", 0, 8, 0, 6), part("b", 0, 4, 0, 6), part("b", 4, 4, 0, 6)),
		DECLARE(part("c", 0, 8, 0, 6), part("d", 0, 8, 0, 6))};
	struct declaration want[3] = {DECLARE(part("a", 0, 8, 0, 6), part("d", 0, 1, 0, 6)),
				      DECLARE(part("c", 0, 8, 0, 3)),
				      DECLARE(flat("b", 0, 17), part("c", 0, 2, 0, 6))};
	struct declaration as_stored[2] = {stored[1], stored[0]};
	struct plan_source sources[2] = {{stored[0], 0, NULL}, {stored[1], 0, NULL}};
	struct plan_peers peers = {want, 3};
	struct plan plan;

	(void)state;
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(count_extra(sources, &want[i], &peers, &plan), 0);
		plan_fini(&plan);
		assert_int_equal(count_extra(sources, &want[i], NULL, &plan), 0);
		plan_fini(&plan);
	}
	/* It is wanted itself, whether it is among them or not. */
	assert_int_equal(count_extra(sources, &want[2], &(struct plan_peers){want, 2}, &plan), 0);
	plan_fini(&plan);
	/* The same ones, exchanged. */
	assert_int_equal(count_extra(sources, &want[0], &(struct plan_peers){as_stored, 2}, &plan),
			 0);
	plan_fini(&plan);
	/* Without the last one. */
	peers.n = 2;
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(count_extra(sources, &want[i], &peers, &plan), 1);
		assert_problem(&plan, 0, PLAN_EXTRA, "tensor 'b' is stored but not wanted");
		plan_fini(&plan);
	}
	assert_int_equal(count_extra(sources, &want[1], PLAN_ALONE, &plan), 3);
	assert_problem(&plan, 0, PLAN_EXTRA, "tensor 'a' is stored but not wanted");
	assert_problem(&plan, 1, PLAN_EXTRA, "tensor 'b' is stored but not wanted");
	assert_problem(&plan, 2, PLAN_EXTRA, "tensor 'd' is stored but not wanted");
	plan_fini(&plan);
	for (uint32_t i = 0; i < 2; i++)
		forget(&stored[i]);
	for (uint32_t i = 0; i < 3; i++)
		forget(&want[i]);
}

/* A copy with another dtype does not hide one that fits. */
static void test_mismatch_of_one_copy(void **state)
{
	struct shard wrong = part("w", 0, 8, 0, 6);
	struct declaration good = DECLARE(part("w", 0, 8, 0, 6)), bad;
	struct plan_source sources[2];
	struct plan plan;

	(void)state;
	wrong.dtype = CKPT_F64;
	bad = DECLARE(wrong);
	sources[0] = (struct plan_source){ .declaration = bad, .cost = 0 };
	sources[1] = (struct plan_source){ .declaration = good, .cost = 1 };
	assert_int_equal(plan_make(sources, 2, &good, false, NULL, &plan, NULL), CKPT_EMISMATCH);
	plan_fini(&plan);
	assert_int_equal(plan_make(sources, 2, &good, true, NULL, &plan, NULL), 0);
	assert_true(plan.n_problems == 1 && plan.n_pieces == 1 && plan.pieces[0].source == 1);
	plan_fini(&plan);
	forget(&good);
	forget(&bad);
}

static void test_problems_are_bounded(void **state)
{
	struct shard *shards = calloc(3000, sizeof(*shards));
	char(*names)[8] = calloc(3000, 8);
	struct declaration none = declare(NULL, 0), many, middle, late;
	struct plan_source sources[2];
	struct plan_peers peers;
	struct err e = { 0 };
	struct plan plan;

	(void)state;
	for (uint32_t i = 0; i < 3000; i++) {
		snprintf(names[i], 8, "t%04u", i);
		shards[i] = part(names[i], 0, 8, 0, 6);
	}
	many = declare(shards, 3000);
	sources[0] = (struct plan_source){ .declaration = none, .cost = 0 };
	assert_int_equal(plan_make(sources, 1, &many, false, NULL, &plan, &e), CKPT_EMISMATCH);
	assert_int_equal(plan.n_problems, PLAN_PROBLEMS_MAX);
	assert_non_null(strstr(e.text, "1000 or more problems"));
	plan_fini(&plan);
	/* The first names, each once, though two sources have them. */
	sources[0] = sources[1] = (struct plan_source){ .declaration = many, .cost = 0 };
	assert_int_equal(plan_make(sources, 2, &none, true, PLAN_ALONE, &plan, &e), 0);
	assert_int_equal(plan.n_problems, PLAN_PROBLEMS_MAX);
	assert_problem(&plan, 0, PLAN_EXTRA, "tensor 't0000' is stored but not wanted");
	assert_problem(&plan, 999, PLAN_EXTRA, "tensor 't0999' is stored but not wanted");
	plan_fini(&plan);
	/* Behind those that somebody else wants; the second source has names before the first's. */
	middle = declare(shards + 500, 400);
	late = declare(shards + 1000, 2000);
	sources[0] = (struct plan_source){.declaration = late};
	peers = (struct plan_peers){&middle, 1};
	assert_int_equal(plan_make(sources, 2, &none, true, &peers, &plan, &e), 0);
	assert_int_equal(plan.n_problems, PLAN_PROBLEMS_MAX);
	assert_problem(&plan, 499, PLAN_EXTRA, "tensor 't0499' is stored but not wanted");
	assert_problem(&plan, 500, PLAN_EXTRA, "tensor 't0900' is stored but not wanted");
	assert_problem(&plan, 999, PLAN_EXTRA, "tensor 't1399' is stored but not wanted");
	plan_fini(&plan);
	forget(&middle);
	forget(&late);
	forget(&many);
	forget(&none);
	free(shards);
	free(names);
}

/* Into memory with strides of its own: transposed and padded. */
static void test_strided_target(void **state)
{
	struct declaration have = DECLARE(part("w", 0, 8, 0, 6));
	struct declaration want = DECLARE(part("w", 2, 5, 1, 4));
	struct plan_source source = { .declaration = have };
	int64_t strides[2] = { 4, 6 * 4 }; /* column-major, a row of padding */
	uint32_t image[48], memory[4 * 6];
	struct strided layout;
	struct shard s;
	struct plan plan;

	(void)state;
	for (uint32_t i = 0; i < 48; i++)
		image[i] = 1000 + i;
	memset(memory, 0, sizeof(memory));
	declaration_get(&want, 0, &s);
	assert_int_equal(strided_init(&layout, &s, strides), 0);
	assert_int_equal(plan_make(&source, 1, &want, false, NULL, &plan, NULL), 0);
	for (uint64_t lo = 0; lo < sizeof(image); lo += 7) { /* windows cut inside elements */
		uint64_t hi = lo + 7 < sizeof(image) ? lo + 7 : sizeof(image);

		for (size_t i = 0; i < plan.n_pieces; i++)
			plan_piece_copy_strided(&plan.pieces[i], (uint8_t *)image + lo, lo, hi,
						&layout, (uint8_t *)memory);
	}
	for (uint32_t col = 0; col < 4; col++)
		for (uint32_t row = 0; row < 6; row++)
			assert_int_equal(memory[col * 6 + row],
					 row < 5 ? 1000 + (row + 2) * 6 + col + 1 : 0);
	plan_fini(&plan);
	forget(&have);
	forget(&want);
}

struct count {
	uint64_t calls, units;
};

static void count_units(void *arg, uint64_t first, uint64_t last)
{
	struct count *c = arg;

	c->calls++;
	c->units += last - first + 1;
}

/* Half of each of 2^40 rows of 8 bytes: every leaf is touched, and nobody walks the rows. */
static void test_units_of_many_rows(void **state)
{
	struct plan_piece p = { .src = 4096, .run = 4, .ndim = 2 };
	struct count c = { 0 };

	(void)state;
	p.count[0] = 1u << 20;
	p.count[1] = 1u << 20;
	p.src_stride[0] = 16u << 20;
	p.src_stride[1] = 8;
	plan_piece_units(&p, 64 << 10, count_units, &c);
	/* 128 leaves of each outer row and a bit of the next; 128 are between them. */
	assert_int_equal(c.calls, 1u << 20);
	assert_int_equal(c.units, (uint64_t)129 << 20);
}

/* One tensor cut in 10^5 along one dimension, wanted in 10^3: pairs that meet, no more. */
static void test_many_boxes_of_one_tensor(void **state)
{
	enum { STORED = 100000, SOURCES = 100, WANTED = 1000, ROWS = 1000003 };
	struct shard *shards = calloc(STORED / SOURCES, sizeof(*shards));
	struct declaration have[SOURCES], want;
	struct plan_source sources[SOURCES];
	struct plan plan;
	uint64_t meet = 0;

	(void)state;
	for (uint32_t k = 0; k < SOURCES; k++) { /* round robin over sources: worst order */
		for (uint32_t i = 0; i < STORED / SOURCES; i++) {
			uint64_t n = (uint64_t)i * SOURCES + k, lo = n * ROWS / STORED;

			shards[i] = part("w", 0, 0, 0, 6);
			shards[i].global.dim[0] = ROWS;
			shards[i].box.offset[0] = lo;
			shards[i].box.length[0] = (n + 1) * ROWS / STORED - lo;
		}
		have[k] = declare(shards, STORED / SOURCES);
		sources[k] = (struct plan_source){ .declaration = have[k], .cost = (k * 37) % 10 };
	}
	for (uint32_t i = 0; i < WANTED; i++) {
		uint64_t lo = (uint64_t)i * ROWS / WANTED, hi = (uint64_t)(i + 1) * ROWS / WANTED;

		shards[i] = part("w", 0, 0, 0, 6);
		shards[i].global.dim[0] = ROWS;
		shards[i].box.offset[0] = lo;
		shards[i].box.length[0] = hi - lo;
		for (uint64_t n = lo * STORED / ROWS; n * ROWS / STORED < hi; n++)
			meet += (n + 1) * ROWS / STORED > lo && n < STORED;
	}
	want = declare(shards, WANTED);
	assert_int_equal(plan_make(sources, SOURCES, &want, false, NULL, &plan, NULL), 0);
	assert_int_equal(plan.n_pieces, meet);
	assert_int_equal(plan.bytes, (uint64_t)ROWS * 24);
	plan_fini(&plan);
	for (uint32_t k = 0; k < SOURCES; k++)
		forget(&have[k]);
	forget(&want);
	free(shards);
}

/* ---- The message ---- */

/* A plan whose pieces have every number of dimensions that two can have, and a problem. */
static void wire_sample(struct plan *plan, uint64_t *source_len, uint64_t *target_len)
{
	struct declaration have = DECLARE(part("a", 0, 8, 0, 5), part("b", 0, 8, 0, 6));
	struct declaration want = DECLARE(part("a", 1, 6, 1, 5), part("b", 0, 8, 0, 6));
	struct plan_source source = { .declaration = have };

	assert_int_equal(plan_make(&source, 1, &want, true, NULL, plan, NULL), 0);
	assert_true(plan->n_pieces == 2 && plan->n_problems == 1);
	*source_len = have.image_bytes;
	target_len[0] = 120;
	target_len[1] = 192;
	forget(&have);
	forget(&want);
}

/* Every piece that was accepted is executed on memory of exactly the promised size. */
static void run_pieces(const struct plan *plan, uint64_t source_len, const uint64_t *target_len)
{
	uint8_t *image = calloc(1, source_len), *memory[2];
	struct count c = { 0 };

	memory[0] = malloc(target_len[0]);
	memory[1] = malloc(target_len[1]);
	for (size_t i = 0; i < plan->n_pieces; i++) {
		plan_piece_copy(&plan->pieces[i], image, 0, source_len,
				memory[plan->pieces[i].target]);
		plan_piece_units(&plan->pieces[i], 64, count_units, &c);
	}
	free(memory[0]);
	free(memory[1]);
	free(image);
}

static void test_wire_refuses_lies(void **state)
{
	uint64_t source_len, target_len[2];
	struct rng_seeded rng;
	struct writer w = { 0 };
	struct plan plan, back;
	uint64_t accepted = 0;

	(void)state;
	wire_sample(&plan, &source_len, target_len);
	assert_int_equal(plan_encode(&plan, &w), 0);
	plan_fini(&plan);
	for (size_t cut = 0; cut < w.len; cut++) {
		struct reader r = reader_of(w.buf, cut);

		assert_int_equal(plan_decode(&r, &source_len, 1, target_len, 2, &back, NULL),
				 CKPT_EPROTO);
	}
	rng_seed(&rng, test_seed(10));
	for (int round = 0; round < 50000; round++) {
		uint8_t *bad = malloc(w.len);
		struct reader r = reader_of(bad, w.len);

		memcpy(bad, w.buf, w.len);
		for (uint64_t n = 1 + rng_below(&rng.rng, 3); n; n--)
			bad[rng_below(&rng.rng, w.len)] ^= (uint8_t)(1 << rng_below(&rng.rng, 8));
		if (plan_decode(&r, &source_len, 1, target_len, 2, &back, NULL) == 0) {
			run_pieces(&back, source_len, target_len);
			plan_fini(&back);
			accepted++;
		}
		free(bad);
	}
	assert_true(accepted > 0 && accepted < 40000);
	writer_free(&w);
}

static int decode_one(struct plan_piece piece)
{
	uint64_t source_len = 1000, target_len = 500;
	struct plan plan = { .pieces = &piece, .n_pieces = 1 }, back;
	struct writer w = { 0 };
	struct reader r;
	int code;

	assert_int_equal(plan_encode(&plan, &w), 0);
	r = reader_of(w.buf, w.len);
	code = plan_decode(&r, &source_len, 1, &target_len, 1, &back, NULL);
	if (!code)
		plan_fini(&back);
	writer_free(&w);
	return code;
}

static void test_wire_bounds(void **state)
{
	const struct plan_piece good = { .src = 100,
					 .dst = 20,
					 .run = 10,
					 .ndim = 2,
					 .count = { 3, 4 },
					 .src_stride = { 301, 97 },
					 .dst_stride = { 160, 50 } };
	struct plan_piece p; /* spans 301 * 2 + 97 * 3 + 10 = 903 and 160 * 2 + 50 * 3 + 10 = 480 */

	(void)state;
	p = good, p.src = 98, assert_int_equal(decode_one(p), CKPT_EPROTO);
	p = good, p.src = 97, p.dst = 20, assert_int_equal(decode_one(p), 0);
	p = good, p.src = 97, p.dst = 21, assert_int_equal(decode_one(p), CKPT_EPROTO);
	p = good, p.src = 97, p.count[0] = 0, assert_int_equal(decode_one(p), CKPT_EPROTO);
	p = good, p.src = 97, p.count[1] = 0, assert_int_equal(decode_one(p), CKPT_EPROTO);
	p = good, p.src = 97, p.src_stride[0] = 300, assert_int_equal(decode_one(p), CKPT_EPROTO);
	p = good, p.src = 97, p.dst_stride[0] = 159, assert_int_equal(decode_one(p), CKPT_EPROTO);
	p = good, p.src = 97, p.dst_stride[1] = 0, assert_int_equal(decode_one(p), CKPT_EPROTO);
	p = good, p.src = 97, p.run = UINT64_MAX, assert_int_equal(decode_one(p), CKPT_EPROTO);
	p = good, p.src = 97, p.count[0] = UINT64_MAX, assert_int_equal(decode_one(p), CKPT_EPROTO);
	p = good, p.src = 97, p.source = 1, assert_int_equal(decode_one(p), CKPT_EPROTO);
	p = good, p.src = 97, p.target = 1, assert_int_equal(decode_one(p), CKPT_EPROTO);
}

/* ---- Memory ---- */

struct peak {
	struct alloc_watch watch;
	size_t now, most;
};

static void peak_taken(struct alloc_watch *w, void *p)
{
	struct peak *c = (struct peak *)w;

	c->now += malloc_usable_size(p);
	c->most = c->now > c->most ? c->now : c->most;
}

static void peak_given(struct alloc_watch *w, void *p)
{
	((struct peak *)w)->now -= malloc_usable_size(p);
}

#define MANY 40u

/* As many copies of one declaration, planned with so much memory; what that took. */
static int plan_copies(const struct declaration *have, uint32_t copies, size_t memory_max,
		       const struct declaration *want, const struct plan_peers *peers,
		       struct plan *plan)
{
	struct plan_source sources[MANY] = {0};
	struct peak peak = {.watch = {peak_taken, peak_given}};
	struct err e = {0};
	int r;

	for (uint32_t i = 0; i < copies; i++)
		sources[i] = (struct plan_source){.declaration = *have, .cost = copies - i};
	alloc_set_watch(&peak.watch);
	r = plan_make_within(&(struct plan_limits){.memory_max = memory_max}, sources, copies, want,
			     true, peers, plan, &e);
	alloc_set_watch(NULL);
	assert_true(r == 0 || (r == -E2BIG && strstr(e.text, "memory")));
	/* malloc rounds each of some 12 arrays up. */
	assert_true(r || peak.most <= plan->memory + 512);
	return r;
}

/* n shards of one row of "m", and as many tensors that nobody wants. */
static struct declaration rows_and_others(uint32_t rows, uint32_t others)
{
	struct shard *s = calloc(rows + others, sizeof(*s));
	char(*names)[16] = calloc(others + 1, sizeof(*names));
	struct declaration d;

	for (uint32_t i = 0; i < rows; i++) {
		s[i] = part("m", 0, 1, 0, 6);
		s[i].global.dim[0] = 1000;
		s[i].box.offset[0] = i;
	}
	for (uint32_t i = 0; i < others; i++) {
		snprintf(names[i], sizeof(names[i]), "%s%u", i % 2 ? "a" : "z", i);
		s[rows + i] = part(names[i], 0, 8, 0, 6);
	}
	d = declare(s, rows + others);
	free(names);
	free(s);
	return d;
}

/* What a plan takes is what it says, grows with pieces, and with nothing that is not wanted. */
static void test_memory_is_bounded(void **state)
{
	struct declaration rows = rows_and_others(1000, 0), more = rows_and_others(1000, 3000);
	struct declaration few = rows_and_others(10, 0);
	struct shard all = part("m", 0, 8, 0, 6);
	struct plan one, copies, others, small;
	struct declaration want;

	(void)state;
	all.global.dim[0] = all.box.length[0] = 1000;
	all.box.length[1] = 5;
	want = declare(&all, 1);
	assert_int_equal(plan_copies(&rows, 1, PLAN_MEMORY_MAX, &want, NULL, &one), 0);
	assert_int_equal(plan_copies(&rows, MANY, PLAN_MEMORY_MAX, &want, NULL, &copies), 0);
	assert_int_equal(plan_copies(&more, 1, PLAN_MEMORY_MAX, &want, NULL, &others), 0);
	assert_int_equal(plan_copies(&few, 1, PLAN_MEMORY_MAX, &want, NULL, &small), 0);
	assert_true(one.n_pieces == 1000 && copies.n_pieces == 1000 && small.n_pieces == 10);
	for (size_t i = 0; i < copies.n_pieces; i++)
		assert_int_equal(copies.pieces[i].source, MANY - 1); /* the cheapest */
	assert_true(copies.memory <= one.memory + 8 * MANY);
	assert_int_equal(others.memory, one.memory);
	/* Per piece itself, and per stored box what a tree and a list of them take. */
	assert_true(one.memory <= 4096 + one.n_pieces * (3 * sizeof(struct plan_piece) + 2048));
	assert_true(small.memory < 64u << 10);
	plan_fini(&one);
	assert_int_equal(plan_copies(&rows, 1, copies.memory / 2, &want, NULL, &one), -E2BIG);
	plan_fini(&one);
	plan_fini(&copies);
	plan_fini(&others);
	plan_fini(&small);
	forget(&rows);
	forget(&more);
	forget(&few);
	forget(&want);
}

/* What is remembered to find what nobody wants goes with the names that are wanted, not with how
 * many want them, and is counted. */
static void test_memory_of_peers(void **state)
{
	struct declaration have = rows_and_others(10, 2000), few = rows_and_others(10, 0);
	struct declaration want[MANY], other = rows_and_others(9, 1900);
	struct plan one, all, none;

	(void)state;
	for (uint32_t i = 0; i < MANY; i++)
		want[i] = other;
	assert_int_equal(plan_copies(&have, 2, PLAN_MEMORY_MAX, &few, NULL, &none), 0);
	assert_int_equal(
		plan_copies(&have, 2, PLAN_MEMORY_MAX, &few, &(struct plan_peers){want, 1}, &one),
		0);
	assert_int_equal(plan_copies(&have, 2, PLAN_MEMORY_MAX, &few,
				     &(struct plan_peers){want, MANY}, &all),
			 0);
	assert_int_equal(none.n_problems, 0);
	assert_int_equal(one.n_problems, 100);
	assert_int_equal(all.n_problems, 100);
	assert_true(all.memory <= one.memory + 64 * MANY);
	assert_true(one.memory <= none.memory + (512u << 10));
	plan_fini(&all);
	assert_int_equal(
		plan_copies(&have, 2, one.memory / 2, &few, &(struct plan_peers){want, MANY}, &all),
		-E2BIG);
	plan_fini(&all);
	plan_fini(&one);
	plan_fini(&none);
	forget(&have);
	forget(&few);
	forget(&other);
}

static int make_and_send(const struct plan_source *sources, const struct declaration *want,
			 const struct plan_peers *peers)
{
	uint64_t image[2] = { sources[0].declaration.image_bytes,
			      sources[1].declaration.image_bytes };
	uint64_t target[3] = { 192, 192, 192 };
	struct writer w = { 0 };
	struct plan plan, back;
	struct reader in;
	int r = plan_make(sources, 2, want, true, peers, &plan, NULL);

	if (!r)
		r = plan_encode(&plan, &w);
	plan_fini(&plan);
	if (!r) {
		in = reader_of(w.buf, w.len);
		r = plan_decode(&in, image, 2, target, 3, &back, NULL);
		if (!r)
			plan_fini(&back);
	}
	writer_free(&w);
	return r;
}

static void test_every_allocation_may_fail(void **state)
{
	struct declaration a = DECLARE(part("x", 0, 8, 0, 3), flat("y", 3, 40));
	struct declaration b =
		DECLARE(part("x", 0, 8, 2, 4), flat("y", 0, 17), part("z", 0, 1, 0, 1));
	struct declaration want =
		DECLARE(part("x", 1, 6, 1, 5), part("y", 0, 8, 0, 6), part("none", 0, 1, 0, 1));
	struct plan_source sources[2] = {{a, 1, NULL}, {b, 0, NULL}};
	struct plan_peers peers = {&a, 1};

	(void)state;
	for (int persistent = 0; persistent < 2; persistent++)
		for (uint64_t n = 1;; n++) {
			bool fired;
			int r;

			alloc_fail_at(n, persistent);
			r = make_and_send(sources, &want, &peers);
			fired = alloc_fired();
			alloc_fail_at(0, false);
			assert_int_equal(r, fired ? -ENOMEM : 0);
			if (!fired)
				break;
		}
	forget(&a);
	forget(&b);
	forget(&want);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same_layout_is_one_piece_each),
		cmocka_unit_test(test_shape_of_a_cut),
		cmocka_unit_test(test_flat_to_flat_is_contiguous),
		cmocka_unit_test(test_cheapest_then_lowest),
		cmocka_unit_test(test_problems_are_named),
		cmocka_unit_test(test_extra_is_what_no_peer_wants),
		cmocka_unit_test(test_mismatch_of_one_copy),
		cmocka_unit_test(test_problems_are_bounded),
		cmocka_unit_test(test_strided_target),
		cmocka_unit_test(test_units_of_many_rows),
		cmocka_unit_test(test_many_boxes_of_one_tensor),
		cmocka_unit_test(test_names_in_batches),
		cmocka_unit_test(test_wire_bounds),
		cmocka_unit_test(test_wire_refuses_lies),
		cmocka_unit_test(test_memory_is_bounded),
		cmocka_unit_test(test_memory_of_peers),
		cmocka_unit_test(test_every_allocation_may_fail),
	};

	return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
