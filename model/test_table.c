/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "codec/digest.h"
#include "model/format.h"
#include "model/table.h"
#include "tests/lib/test.h"

static const struct geometry geometry = { .leaf = 1024, .chunk = 4096 };
#define LEAVES 15 /* of the sample */

struct sample {
	void *declaration;
	struct declaration view;
	struct blob_entry blobs[3];
	struct digest leaves[LEAVES], samples[2];
	struct rank_table_parts parts;
};

static void *declaration_make(uint32_t n, uint64_t elements, bool trained, size_t *len)
{
	struct declaration_builder *b = NULL;
	struct err e = { 0 };
	void *bytes = NULL;
	char name[16];

	assert_int_equal(declaration_builder_new(geometry, &b), 0);
	for (uint32_t i = 0; i < n; i++) {
		struct shard s = { .name = name, .dtype = CKPT_F32, .trained = trained };

		s.name_len = (uint32_t)snprintf(name, sizeof(name), "t%03u", i);
		s.global.ndim = s.box.ndim = 1;
		s.global.dim[0] = s.box.length[0] = elements;
		if (declaration_add(b, &s, &e) != (int)i)
			fail_msg("%s", e.text);
	}
	if (declaration_finish(b, &bytes, len, &e))
		fail_msg("%s", e.text);
	declaration_builder_free(b);
	return bytes;
}

/* Three tensors of 12 bytes (64 apart), then blobs at 4096, 4352 and 15296. */
static void sample_init(struct sample *s)
{
	memset(s, 0, sizeof(*s));
	s->declaration = declaration_make(3, 3, true, &s->parts.declaration_len);
	assert_int_equal(declaration_open(s->declaration, s->parts.declaration_len, &s->view, NULL),
			 0);
	s->blobs[0] = (struct blob_entry){ .name = "rng", .name_len = 3, .bytes = 200 };
	s->blobs[1] = (struct blob_entry){ .name = "cursor", .name_len = 6, .bytes = 10900 };
	s->blobs[2] = (struct blob_entry){ .name = "a", .name_len = 1, .bytes = 0 };
	s->parts.rank = 3;
	s->parts.world = 8;
	s->parts.geometry = geometry;
	s->parts.declaration = s->declaration;
	s->parts.blobs = s->blobs;
	s->parts.n_blobs = 3;
	s->parts.leaves = s->leaves;
	s->parts.samples = s->samples;
	s->parts.n_samples = 2;
	assert_int_equal(blobs_place(&s->view, s->blobs, 3, &s->parts.image_len), 0);
	test_fill(s->leaves, sizeof(s->leaves), 1);
	test_fill(s->samples, sizeof(s->samples), 2);
	assert_int_equal((s->parts.image_len + 1023) / 1024, LEAVES);
}

static void *build(const struct sample *s, size_t *len)
{
	struct err e = { 0 };
	void *bytes = NULL;

	if (rank_table_build(&s->parts, &bytes, len, &e))
		fail_msg("%s", e.text);
	return bytes;
}

static void test_round_trip(void **state)
{
	struct blob_entry blob;
	struct rank_table t;
	struct sample s;
	struct digest d;
	size_t len;
	void *bytes;

	(void)state;
	sample_init(&s);
	assert_int_equal(s.view.image_bytes, 140);
	assert_int_equal(s.blobs[0].image_offset, 4096);
	assert_int_equal(s.blobs[1].image_offset, 4096 + 256);
	assert_int_equal(s.blobs[2].image_offset, 4352 + 10944);
	assert_int_equal(s.parts.image_len, 15296);
	bytes = build(&s, &len);
	assert_int_equal(rank_table_open(bytes, len, &t, NULL), 0);
	assert_true(t.rank == 3 && t.world == 8 && t.image_len == 15296 && t.n_leaves == 15);
	assert_true(t.n_blobs == 3 && t.n_samples == 2 && t.declaration.n_shards == 3);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(rank_table_blob(&t, i, &blob), 0);
		assert_int_equal(blob.name_len, s.blobs[i].name_len);
		assert_memory_equal(blob.name, s.blobs[i].name, blob.name_len);
		assert_int_equal(blob.image_offset, s.blobs[i].image_offset);
		assert_int_equal(blob.bytes, s.blobs[i].bytes);
	}
	assert_int_equal(rank_table_blob(&t, 3, &blob), -EINVAL);
	for (uint64_t i = 0; i < t.n_leaves; i++) {
		d = rank_table_leaf(&t, i);
		assert_true(digest_equal(&d, &s.leaves[i]));
	}
	assert_memory_equal(t.samples, s.samples, 32);
	d = rank_table_digest(&t);
	assert_memory_equal(d.b, digest_of(bytes, len).b, 16);
	alloc_free(bytes);
	alloc_free(s.declaration);
}

static void assert_same(const struct declaration *a, const struct declaration *b)
{
	assert_ptr_equal(a->bytes, b->bytes);
	assert_int_equal(a->len, b->len);
	assert_true(a->n_shards == b->n_shards && a->n_blocks == b->n_blocks &&
		    a->image_bytes == b->image_bytes && a->n_names == b->n_names);
	assert_true(digest_equal(&a->names, &b->names));
}

/* A declaration that is known is not checked again, but only if it is the same. */
static void test_known_declaration(void **state)
{
	struct rank_table known, t;
	struct declaration other;
	struct sample s;
	size_t len, other_len;
	void *bytes, *other_bytes = declaration_make(3, 4, true, &other_len);

	(void)state;
	sample_init(&s);
	s.parts.view = &s.view;
	bytes = build(&s, &len);
	assert_int_equal(rank_table_open(bytes, len, &t, NULL), 0);
	assert_int_equal(rank_table_open_known(bytes, len, &s.view, &known, NULL), 0);
	assert_same(&known.declaration, &t.declaration);
	assert_int_equal(declaration_open(other_bytes, other_len, &other, NULL), 0);
	assert_int_equal(rank_table_open_known(bytes, len, &other, &known, NULL), 0);
	assert_same(&known.declaration, &t.declaration);
	alloc_free(bytes);
	alloc_free(other_bytes);
	alloc_free(s.declaration);
}

static void test_nothing_but_the_rank(void **state)
{
	struct rank_table_parts p = { .rank = 0, .world = 1, .geometry = geometry };
	void *declaration = declaration_make(0, 0, false, &p.declaration_len), *bytes = NULL;
	struct rank_table t;
	size_t len;

	(void)state;
	p.declaration = declaration;
	assert_int_equal(rank_table_build(&p, &bytes, &len, NULL), 0);
	assert_int_equal(rank_table_open(bytes, len, &t, NULL), 0);
	assert_true(t.image_len == 0 && t.n_leaves == 0 && t.n_blobs == 0);
	alloc_free(bytes);
	alloc_free(declaration);
}

static void refused(struct sample *s, int code, const char *words)
{
	struct err e = { 0 };
	void *bytes = NULL;
	size_t len;

	assert_int_equal(rank_table_build(&s->parts, &bytes, &len, &e), code);
	assert_non_null(strstr(e.text, words));
	assert_null(bytes);
	alloc_free(s->declaration);
	sample_init(s);
}

static void test_bad_parts(void **state)
{
	struct sample s;

	(void)state;
	sample_init(&s);
	s.parts.rank = 8;
	refused(&s, -EINVAL, "rank 8 of 8");
	s.parts.image_len++;
	refused(&s, CKPT_EPROTO, "image of 15297 bytes");
	s.blobs[1].image_offset += 64;
	refused(&s, CKPT_EPROTO, "'cursor' is not where");
	s.blobs[2].name = "rng";
	s.blobs[2].name_len = 3;
	refused(&s, CKPT_EPROTO, "two blobs have the name 'rng'");
	s.blobs[2].name_len = 0;
	refused(&s, CKPT_EPROTO, "bad name");
	s.parts.geometry.chunk = 8192;
	refused(&s, CKPT_EPROTO, "other leaves or chunks");
	s.parts.declaration_len--;
	refused(&s, CKPT_EPROTO, "cut");
	s.parts.n_samples = TABLE_SAMPLES_MAX + 1;
	refused(&s, -EINVAL, "samples");
	s.blobs[0].bytes = UINT64_MAX - 10;
	assert_int_equal(blobs_place(&s.view, s.blobs, 3, &s.parts.image_len), -E2BIG);
	refused(&s, CKPT_EPROTO, "image");
	alloc_free(s.declaration);
}

static void test_damage_is_refused(void **state)
{
	struct rank_table t;
	struct sample s;
	size_t len;
	uint8_t *good, *bad;

	(void)state;
	sample_init(&s);
	good = build(&s, &len);
	bad = malloc(len + 1);
	for (size_t i = 0; i < len; i++)
		for (int bit = 0; bit < 8; bit++) {
			int r;

			memcpy(bad, good, len);
			bad[i] ^= (uint8_t)(1 << bit);
			r = rank_table_open(bad, len, &t, NULL);
			assert_true(r == CKPT_ECORRUPT || r == CKPT_EPROTO);
		}
	for (size_t cut = 0; cut < len; cut++) {
		uint8_t *exact = malloc(cut ? cut : 1);

		memcpy(exact, good, cut);
		assert_int_equal(rank_table_open(exact, cut, &t, NULL), CKPT_EPROTO);
		free(exact);
	}
	memcpy(bad, good, len);
	bad[len] = 0;
	assert_int_equal(rank_table_open(bad, len + 1, &t, NULL), CKPT_EPROTO);
	free(bad);
	alloc_free(good);
	alloc_free(s.declaration);
}

static void reseal(uint8_t *bytes, size_t len)
{
	struct digest d;

	format_head_seal(bytes);
	d = digest_of(bytes, len - 16);
	memcpy(bytes + len - 16, d.b, 16);
}

/* What a reader does with a table that was accepted. */
static void use(const struct rank_table *t)
{
	uint64_t end = t->declaration.image_bytes;
	struct blob_entry blob;

	for (uint32_t i = 0; i < t->n_blobs; i++) {
		assert_int_equal(rank_table_blob(t, i, &blob), 0);
		assert_true(blob.image_offset >= end);
		assert_true(blob.name_len > 0 && blob.name + blob.name_len <= (char *)t->leaves);
		end = blob.image_offset + blob.bytes;
	}
	assert_int_equal(end, t->image_len);
	for (uint64_t i = 0; i < t->n_leaves; i++)
		(void)rank_table_leaf(t, i);
}

static void test_lies_are_refused_or_harmless(void **state)
{
	struct rng_seeded rng;
	struct rank_table t;
	struct sample s;
	size_t len, accepted = 0;
	uint8_t *good, *bad;

	(void)state;
	sample_init(&s);
	good = build(&s, &len);
	bad = malloc(len + 1);
	rng_seed(&rng, test_seed(9));
	for (size_t i = 0; i < len; i++)
		for (unsigned add = 1; add < 256; add = add * 5 + 2) {
			memcpy(bad, good, len);
			bad[i] = (uint8_t)(bad[i] + add);
			reseal(bad, len);
			if (rank_table_open(bad, len, &t, NULL) == 0) {
				use(&t);
				accepted++;
			}
		}
	assert_true(accepted > 0 && accepted < 4 * len);
	for (int round = 0; round < 20000; round++) {
		memcpy(bad, good, len);
		for (uint64_t n = 1 + rng_below(&rng.rng, 4); n; n--)
			bad[rng_below(&rng.rng, len)] = (uint8_t)rng_u64(&rng.rng);
		reseal(bad, len);
		if (rank_table_open(bad, len, &t, NULL) == 0)
			use(&t);
	}
	memcpy(bad, good, len - 16); /* a byte more than the sections need */
	bad[len - 16] = 0;
	put_le64(bad + 40, len + 1);
	reseal(bad, len + 1);
	assert_int_equal(rank_table_open(bad, len + 1, &t, NULL), CKPT_EPROTO);
	memcpy(bad, good, len);
	bad[16] = 1; /* an incompatible feature */
	reseal(bad, len);
	assert_int_equal(rank_table_open(bad, len, &t, NULL), CKPT_EVERSION);
	free(bad);
	alloc_free(good);
	alloc_free(s.declaration);
}

static void test_every_allocation_may_fail(void **state)
{
	struct rank_table t;
	struct sample s;

	(void)state;
	sample_init(&s);
	for (int persistent = 0; persistent < 2; persistent++)
		for (uint64_t n = 1;; n++) {
			void *bytes = NULL;
			bool fired;
			size_t len;
			int r;

			alloc_fail_at(n, persistent);
			r = rank_table_build(&s.parts, &bytes, &len, NULL);
			if (r == 0)
				r = rank_table_open(bytes, len, &t, NULL);
			fired = alloc_fired();
			alloc_fail_at(0, false);
			assert_int_equal(r, fired ? -ENOMEM : 0);
			alloc_free(bytes);
			if (!fired)
				break;
		}
	alloc_free(s.declaration);
}

static void test_root(void **state)
{
	struct rank_line lines[2] = { { 0, 100, { { 1 } } }, { 1, 200, { { 2 } } } };
	struct digest a = root_digest(lines, 2), b = root_digest(lines, 2);

	(void)state;
	assert_true(digest_equal(&a, &b));
	lines[1].table_len++;
	b = root_digest(lines, 2);
	assert_false(digest_equal(&a, &b));
	lines[1].table_len--;
	lines[1].table.b[15] = 1;
	b = root_digest(lines, 2);
	assert_false(digest_equal(&a, &b));
	b = root_digest(lines, 1);
	assert_false(digest_equal(&a, &b));
}

struct pieces {
	const struct declaration *d;
	uint32_t last, n_in_sample, shards;
	uint64_t lo, hi; /* image bytes seen in this sample */
};

static void see_piece(void *arg, uint32_t sample, uint64_t offset, uint64_t len)
{
	struct pieces *p = arg;
	struct shard s;

	assert_true(len > 0 && len <= 16 << 10);
	if (sample != p->last) {
		assert_int_equal(sample, p->last + 1);
		p->last = sample;
		p->n_in_sample = 0;
		p->lo = offset;
		/* All shards are alike: the i-th of s samples is shard i * shards / s. */
		declaration_get(p->d, p->shards > 64 ? sample * p->shards / 64 : sample, &s);
		assert_int_equal(offset, s.image_offset);
	}
	assert_true(++p->n_in_sample <= 4);
	assert_true(p->n_in_sample == 1 || offset + len > p->hi);
	p->hi = offset + len;
	assert_true(p->hi <= p->d->image_bytes);
}

static void check_samples(uint32_t shards, uint64_t elements, uint32_t want, uint32_t want_pieces)
{
	struct pieces p = { .last = UINT32_MAX, .shards = shards };
	struct declaration d;
	size_t len;
	void *bytes = declaration_make(shards, elements, true, &len);

	assert_int_equal(declaration_open(bytes, len, &d, NULL), 0);
	p.d = &d;
	assert_int_equal(rank_table_sample_pieces(&d, see_piece, &p), want);
	assert_int_equal(rank_table_sample_pieces(&d, NULL, NULL), want);
	assert_int_equal(p.last + 1, want);
	if (want) {
		assert_int_equal(p.n_in_sample, want_pieces);
		assert_int_equal(p.hi - p.lo, 4 * elements); /* from first to last byte */
	}
	alloc_free(bytes);
}

static void test_samples(void **state)
{
	struct declaration d;
	size_t len;
	void *bytes = declaration_make(5, 100, false, &len);

	(void)state;
	assert_int_equal(declaration_open(bytes, len, &d, NULL), 0);
	assert_int_equal(rank_table_sample_pieces(&d, NULL, NULL), 0); /* none is trained */
	alloc_free(bytes);
	check_samples(5, 0, 0, 0);
	check_samples(5, 1, 5, 1);
	check_samples(64, 4096, 64, 1);
	check_samples(65, 4097, 64, 2);
	check_samples(500, 12289, 64, 4);
	check_samples(3, 1000001, 3, 4); /* pieces are not evenly spread: the last one ends it */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_known_declaration),
		cmocka_unit_test(test_nothing_but_the_rank),
		cmocka_unit_test(test_bad_parts),
		cmocka_unit_test(test_damage_is_refused),
		cmocka_unit_test(test_lies_are_refused_or_harmless),
		cmocka_unit_test(test_every_allocation_may_fail),
		cmocka_unit_test(test_root),
		cmocka_unit_test(test_samples),
	};

	return cmocka_run_group_tests_name("table", tests, NULL, NULL);
}
