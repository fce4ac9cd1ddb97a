/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CKPT_SHARDS: shards of the large declaration (100000; a million is fine).
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "codec/digest.h"
#include "model/declaration_format.h"
#include "tests/lib/test.h"

static const struct geometry geometry = { .leaf = 1024, .chunk = 4096 };
static struct rng_seeded rng;

static uint64_t below(uint64_t n)
{
	return rng_below(&rng.rng, n);
}

static struct shard make_shard(const char *name, uint32_t ndim, uint64_t offset, uint64_t length)
{
	struct shard s = { .name = name, .name_len = (uint32_t)strlen(name), .dtype = CKPT_F32 };

	s.global.ndim = s.box.ndim = ndim;
	for (uint32_t k = 0; k < ndim; k++) {
		s.global.dim[k] = k ? 3 : 1000000;
		s.box.offset[k] = k ? 0 : offset;
		s.box.length[k] = k ? 3 : length;
	}
	return s;
}

static struct declaration_builder *builder(void)
{
	struct declaration_builder *b = NULL;

	assert_int_equal(declaration_builder_new(geometry, &b), 0);
	return b;
}

static int add(struct declaration_builder *b, struct shard s)
{
	return declaration_add(b, &s, NULL);
}

static void *finish(struct declaration_builder *b, size_t *len)
{
	struct err e = { 0 };
	void *bytes = NULL;

	if (declaration_finish(b, &bytes, len, &e))
		fail_msg("%s", e.text);
	declaration_builder_free(b);
	return bytes;
}

/* Five shards that have everything: several boxes of a name, flat, scalar, empty, trained. */
static void *sample(size_t *len)
{
	struct declaration_builder *b = builder();
	struct shard s = make_shard("w", 2, 100, 50);

	s.trained = true;
	assert_int_equal(add(b, s), 0);
	assert_int_equal(add(b, make_shard("w", 2, 0, 100)), 1);
	assert_int_equal(add(b, make_shard("bias", 0, 0, 0)), 2);
	s = make_shard("adam", 2, 0, 1000);
	s.flat = true;
	s.start = 7;
	s.stop = 600;
	assert_int_equal(add(b, s), 3);
	assert_int_equal(add(b, make_shard("none", 1, 5, 0)), 4);
	return finish(b, len);
}

static void test_round_trip(void **state)
{
	struct declaration d;
	struct shard s;
	uint32_t first = 99;
	size_t len;
	void *bytes = sample(&len);

	(void)state;
	assert_int_equal(declaration_open(bytes, len, &d, NULL), 0);
	assert_int_equal(d.n_shards, 5);
	assert_int_equal(d.geometry.leaf, 1024);

	assert_int_equal(declaration_find(&d, "adam", 4, &first), 1);
	assert_int_equal(first, 0);
	declaration_get(&d, 0, &s);
	assert_true(s.flat && s.start == 7 && s.stop == 600 && s.bytes == 4 * 593);
	assert_int_equal(declaration_order(&d, 0), 3);
	/* w: 600 at 0, w: 1200 at 4096, bias: 4 at 5312, adam: 2372 at 8192, none: 0 at 10624 */
	assert_int_equal(s.image_offset, 8192);

	assert_int_equal(declaration_find(&d, "w", 1, &first), 2);
	assert_int_equal(first, 3);
	declaration_get(&d, 3, &s);
	assert_true(s.box.offset[0] == 0 && s.box.length[0] == 100 && s.image_offset == 4096);
	assert_false(s.trained);
	declaration_get(&d, 4, &s);
	assert_true(s.box.offset[0] == 100 && s.image_offset == 0 && s.trained && !s.flat);
	assert_true(s.name_len == 1 && s.name[0] == 'w' && s.bytes == 600);
	assert_int_equal(declaration_find(&d, "bias", 4, &first), 1);
	declaration_get(&d, first, &s);
	assert_int_equal(s.image_offset, 4096 + 1216);
	assert_int_equal(d.image_bytes, 10624);
	assert_int_equal(declaration_find(&d, "x", 1, &first), 0);
	assert_int_equal(declaration_find(&d, "", 0, &first), 0);
	alloc_free(bytes);
}

static void test_empty(void **state)
{
	struct declaration d;
	uint32_t first;
	size_t len;
	void *bytes = finish(builder(), &len);

	(void)state;
	assert_int_equal(declaration_open(bytes, len, &d, NULL), 0);
	assert_true(d.n_shards == 0 && d.image_bytes == 0);
	assert_int_equal(declaration_find(&d, "w", 1, &first), 0);
	alloc_free(bytes);
}

static void test_same_shards_same_bytes(void **state)
{
	size_t len, other_len;
	void *bytes = sample(&len), *other = sample(&other_len);
	struct digest a = declaration_digest(bytes, len), b = declaration_digest(other, other_len);

	(void)state;
	assert_int_equal(len, other_len);
	assert_memory_equal(bytes, other, len);
	assert_true(digest_equal(&a, &b));
	alloc_free(bytes);
	alloc_free(other);
}

static void refuse_finish(struct declaration_builder *b, const char *words)
{
	struct err e = { 0 };
	void *bytes = NULL;
	size_t len;

	assert_int_equal(declaration_finish(b, &bytes, &len, &e), CKPT_EPROTO);
	assert_non_null(strstr(e.text, words));
	assert_null(bytes);
	declaration_builder_free(b);
}

static void test_overlap_is_refused(void **state)
{
	struct declaration_builder *b = builder();
	struct shard s;

	(void)state;
	assert_int_equal(add(b, make_shard("w", 2, 0, 10)), 0);
	assert_int_equal(add(b, make_shard("v", 2, 9, 10)), 1);
	assert_int_equal(add(b, make_shard("w", 2, 9, 10)), 2);
	refuse_finish(b, "tensor 'w' is declared twice in [9:10, 0:3]");

	b = builder();
	s = make_shard("w", 1, 0, 10);
	s.flat = true;
	s.start = 2;
	s.stop = 8;
	assert_int_equal(add(b, s), 0);
	s.start = 8; /* beside it */
	s.stop = 9;
	assert_int_equal(add(b, s), 1);
	s.start = 7;
	assert_int_equal(add(b, s), 2);
	refuse_finish(b, "tensor 'w' is declared twice");

	b = builder();
	assert_int_equal(add(b, make_shard("w", 2, 0, 10)), 0);
	s = make_shard("w", 2, 10, 10);
	s.dtype = CKPT_I32;
	assert_int_equal(add(b, s), 1);
	refuse_finish(b, "two dtypes");

	b = builder();
	assert_int_equal(add(b, make_shard("w", 2, 0, 10)), 0);
	assert_int_equal(add(b, make_shard("w", 1, 10, 10)), 1);
	refuse_finish(b, "two dtypes or global shapes");

	b = builder(); /* the same empty box twice shares no element */
	assert_int_equal(add(b, make_shard("w", 2, 5, 0)), 0);
	assert_int_equal(add(b, make_shard("w", 2, 5, 0)), 1);
	alloc_free(finish(b, &(size_t){ 0 }));
}

static void test_bad_arguments(void **state)
{
	struct declaration_builder *b = NULL;
	struct shard s = make_shard("w", 1, 0, 10);

	(void)state;
	assert_int_equal(declaration_builder_new((struct geometry){ 100, 1000 }, &b), -EINVAL);
	assert_null(b);
	b = builder();
	s.dtype = 0;
	assert_int_equal(add(b, s), CKPT_EPROTO);
	s.dtype = CKPT_F32;
	s.global.dim[0] = s.box.length[0] = (uint64_t)1 << 54;
	assert_int_equal(add(b, s), 0);
	assert_int_equal(add(b, make_shard("v", 1, 0, 1)), -E2BIG);
	declaration_builder_free(b);
	declaration_builder_free(NULL);
	declaration_lookup_free(NULL);
}

/* ---- Damage ---- */

/* What may be called on an opened declaration must be safe whatever its bytes say. */
static void use(const struct declaration *d)
{
	uint64_t end = 0;

	for (uint32_t i = 0; i < d->n_shards; i++) {
		uint32_t first = 0, len;
		const char *name = declaration_name(d, i, &len);
		struct shard s;

		declaration_get(d, i, &s);
		assert_true(s.name == name && s.name_len == len);
		assert_true(declaration_find(d, name, len, &first) > 0 && first <= i);
		assert_true(declaration_order(d, i) < d->n_shards);
		end = s.image_offset + s.bytes > end ? s.image_offset + s.bytes : end;
	}
	assert_int_equal(end, d->image_bytes);
}

/* Writes digests that match whatever the bytes say; where the parts lie is taken from `good`. */
static void reseal(uint8_t *bytes, const uint8_t *good)
{
	uint64_t fence_at = get_le64(good + DECL_FENCE_OFFSET);
	uint64_t fence_bytes = get_le64(good + DECL_FENCE_BYTES);
	struct digest d;

	for (uint32_t i = 0; i < get_le32(good + DECL_BLOCKS); i++) {
		const uint8_t *record = good + fence_at + (uint64_t)i * FENCE_RECORD;

		d = digest_of(bytes + get_le64(record + FENCE_OFFSET),
			      get_le32(record + FENCE_BYTES));
		memcpy(bytes + (record - good) + FENCE_DIGEST, d.b, sizeof(d.b));
	}
	d = digest_of(bytes + fence_at, fence_bytes);
	memcpy(bytes + DECL_FENCE_DIGEST, d.b, sizeof(d.b));
	format_head_seal(bytes);
}

static void test_damage_is_refused(void **state)
{
	size_t len;
	uint8_t *good = sample(&len), *bad = malloc(len + 1);
	struct declaration d;

	(void)state;
	for (size_t i = 0; i < len; i++)
		for (int bit = 0; bit < 8; bit++) {
			int r;

			memcpy(bad, good, len);
			bad[i] ^= (uint8_t)(1 << bit);
			r = declaration_open(bad, len, &d, NULL);
			assert_true(r == CKPT_ECORRUPT || r == CKPT_EPROTO);
		}
	for (size_t cut = 0; cut < len; cut++) {
		uint8_t *exact = malloc(cut ? cut : 1);

		memcpy(exact, good, cut);
		assert_int_equal(declaration_open(exact, cut, &d, NULL), CKPT_EPROTO);
		free(exact);
	}
	memcpy(bad, good, len);
	bad[len] = 0;
	assert_int_equal(declaration_open(bad, len + 1, &d, NULL), CKPT_EPROTO);
	free(bad);
	alloc_free(good);
}

/* Behind matching digests: a peer that lies, or a bug. */
static void test_lies_are_refused_or_harmless(void **state)
{
	static const uint8_t values[] = { 0, 1, 2, 3, 0x7f, 0x80, 0xff };
	size_t len, accepted = 0;
	uint8_t *good = sample(&len), *bad = malloc(len);
	struct declaration d;

	(void)state;
	for (size_t i = 0; i < len; i++)
		for (size_t k = 0; k < sizeof(values); k++) {
			memcpy(bad, good, len);
			bad[i] = k ? (uint8_t)(bad[i] + values[k]) : 0;
			reseal(bad, good);
			if (declaration_open(bad, len, &d, NULL) == 0) {
				use(&d);
				accepted++;
			}
		}
	rng_seed(&rng, test_seed(6));
	for (int round = 0; round < 20000; round++) {
		memcpy(bad, good, len);
		for (uint64_t n = 1 + below(4); n; n--)
			bad[below(len)] = values[below(sizeof(values))];
		reseal(bad, good);
		if (declaration_open(bad, len, &d, NULL) == 0)
			use(&d);
	}
	/* A letter of a name, a dtype of the same size, a compat feature make other declarations;
	 * where a digest lies nothing changed. The rest must be refused. */
	assert_in_range(accepted, 1, len * sizeof(values) / 2);
	free(bad);
	alloc_free(good);
}

/* A byte more than the shards need, with every length and digest made to fit. */
static void test_no_byte_is_left_over(void **state)
{
	size_t len;
	uint8_t *good = sample(&len), *more = malloc(len + 1);
	uint64_t fence_at = get_le64(good + DECL_FENCE_OFFSET);
	uint8_t *record = more + fence_at + 1; /* of the only block */
	struct declaration d;
	struct err e = { 0 };

	(void)state;
	memcpy(more, good, fence_at); /* at the end of the block */
	more[fence_at] = 0;
	memcpy(more + fence_at + 1, good + fence_at, len - fence_at);
	put_le64(more + 40, len + 1);
	put_le64(more + DECL_FENCE_OFFSET, fence_at + 1);
	put_le32(record + FENCE_BYTES, get_le32(record + FENCE_BYTES) + 1);
	reseal(more, more);
	assert_int_equal(declaration_open(more, len + 1, &d, &e), CKPT_EPROTO);
	assert_non_null(strstr(e.text, "left over"));
	put_le32(record + FENCE_BYTES, get_le32(record + FENCE_BYTES) - 1); /* between the two */
	reseal(more, more);
	assert_int_equal(declaration_open(more, len + 1, &d, &e), CKPT_EPROTO);
	assert_non_null(strstr(e.text, "account"));

	memcpy(more, good, len); /* at the end of the names */
	more[len] = 'x';
	put_le64(more + 40, len + 1);
	put_le64(more + DECL_FENCE_BYTES, len + 1 - fence_at);
	reseal(more, more);
	assert_int_equal(declaration_open(more, len + 1, &d, &e), CKPT_EPROTO);
	assert_non_null(strstr(e.text, "account"));
	free(more);
	alloc_free(good);
}

static void test_features(void **state)
{
	size_t len;
	uint8_t *bytes = sample(&len);
	struct declaration d;
	struct err e = { 0 };

	(void)state;
	bytes[16] = 4; /* incompat */
	format_head_seal(bytes);
	assert_int_equal(declaration_open(bytes, len, &d, &e), CKPT_EVERSION);
	assert_non_null(strstr(e.text, "0x4"));
	bytes[16] = 0;
	bytes[24] = 1; /* ro */
	bytes[32] = 1; /* compat */
	format_head_seal(bytes);
	assert_int_equal(declaration_open(bytes, len, &d, NULL), 0);
	bytes[8] = 2; /* version */
	format_head_seal(bytes);
	assert_int_equal(declaration_open(bytes, len, &d, NULL), CKPT_EVERSION);
	alloc_free(bytes);
}

static int build_all(void **ret, size_t *len)
{
	struct declaration_builder *b = NULL;
	int r = declaration_builder_new(geometry, &b);
	char name[16];

	for (uint32_t i = 0; i < 100 && r >= 0; i++) {
		struct shard s;

		snprintf(name, sizeof(name), "t%u", i / 10);
		s = make_shard(name, 2, 10 * i, 10);
		r = declaration_add(b, &s, NULL);
	}
	if (r >= 0)
		r = declaration_finish(b, ret, len, NULL);
	declaration_builder_free(b);
	return r;
}

static void test_every_allocation_may_fail(void **state)
{
	(void)state;
	for (int persistent = 0; persistent < 2; persistent++)
		for (uint64_t n = 1;; n++) {
			void *bytes = NULL;
			size_t len = 0;
			int r;

			alloc_fail_at(n, persistent);
			r = build_all(&bytes, &len);
			if (!alloc_fired()) {
				alloc_fail_at(0, false);
				assert_int_equal(r, 0);
				alloc_free(bytes);
				break;
			}
			alloc_fail_at(0, false);
			assert_int_equal(r, -ENOMEM);
			assert_null(bytes);
		}
}

/* A builder that could not remember one shard goes on with the next. */
static void test_builder_survives_failed_add(void **state)
{
	struct declaration_builder *b = builder();
	struct declaration d;
	uint32_t n = 0;
	size_t len;
	void *bytes;
	char name[16];

	(void)state;
	for (uint32_t i = 0; i < 500; i++) {
		snprintf(name, sizeof(name), "t%u", i);
		alloc_fail_at(i % 2, false);
		if (add(b, make_shard(name, 1, 0, 5)) >= 0)
			n++;
	}
	alloc_fail_at(0, false);
	bytes = finish(b, &len);
	assert_int_equal(declaration_open(bytes, len, &d, NULL), 0);
	assert_int_equal(d.n_shards, n);
	alloc_free(bytes);
}

/* ---- Lookup ---- */

struct file {
	const uint8_t *bytes;
	size_t len;
	uint64_t reads, read_bytes;
	int fail; /* returned instead of reading */
};

static int file_read(void *arg, uint64_t offset, void *buf, size_t len)
{
	struct file *f = arg;

	assert_true(offset <= f->len && len <= f->len - offset);
	if (f->fail)
		return f->fail;
	memcpy(buf, f->bytes + offset, len);
	f->reads++;
	f->read_bytes += len;
	return 0;
}

struct seen {
	uint32_t n;
	uint64_t offset_sum;
	int stop_after;
};

static int see(void *arg, const struct shard *s)
{
	struct seen *seen = arg;

	seen->n++;
	seen->offset_sum += s->box.offset[0];
	return seen->stop_after && (int)seen->n == seen->stop_after ? 42 : 0;
}

static void test_lookup_equals_find(void **state)
{
	struct declaration_builder *b = builder();
	struct declaration_lookup *l = NULL;
	struct file f = { 0 };
	struct declaration d;
	char name[16];

	(void)state;
	rng_seed(&rng, test_seed(7));
	for (uint32_t i = 0; i < 3000; i++) {
		snprintf(name, sizeof(name), "t%u", (uint32_t)below(60) * (i % 3));
		assert_int_equal(add(b, make_shard(name, 2, 10 * i, 10)), i);
	}
	f.bytes = finish(b, &f.len);
	assert_int_equal(declaration_open(f.bytes, f.len, &d, NULL), 0);
	assert_int_equal(declaration_lookup_open(file_read, &f, f.len, &l, NULL), 0);
	for (uint32_t i = 0; i < 200; i++) {
		struct seen seen = { 0 };
		uint32_t first = 0, n;
		uint64_t sum = 0;

		snprintf(name, sizeof(name), "t%u", i);
		n = declaration_find(&d, name, (uint32_t)strlen(name), &first);
		for (uint32_t k = first; k < first + n; k++) {
			struct shard s;

			declaration_get(&d, k, &s);
			sum += s.box.offset[0];
		}
		assert_int_equal(declaration_lookup(l, name, (uint32_t)strlen(name), see, &seen),
				 n);
		assert_true(seen.n == n && seen.offset_sum == sum);
	}
	assert_int_equal(declaration_lookup(l, "t0", 2, see, &(struct seen){ .stop_after = 5 }),
			 42);
	f.fail = -EIO;
	assert_int_equal(declaration_lookup(l, "t0", 2, see, &(struct seen){ 0 }), -EIO);
	declaration_lookup_free(l);
	alloc_free((void *)f.bytes);
}

static void test_lookup_finds_damage(void **state)
{
	struct declaration_lookup *l = NULL;
	struct file f = { 0 };
	uint8_t *bytes;

	(void)state;
	bytes = sample(&f.len);
	f.bytes = bytes;
	assert_int_equal(declaration_lookup_open(file_read, &f, f.len, &l, NULL), 0);
	bytes[FORMAT_HEADER_BYTES + 40] ^= 1;
	assert_int_equal(declaration_lookup(l, "w", 1, see, &(struct seen){ 0 }), CKPT_ECORRUPT);
	declaration_lookup_free(l);
	l = NULL;
	bytes[f.len - 1] ^= 1; /* a name of the fence */
	assert_int_equal(declaration_lookup_open(file_read, &f, f.len, &l, NULL), CKPT_ECORRUPT);
	assert_int_equal(declaration_lookup_open(file_read, &f, 100, &l, NULL), CKPT_EPROTO);
	f.fail = -EIO;
	assert_int_equal(declaration_lookup_open(file_read, &f, f.len, &l, NULL), -EIO);
	assert_null(l);
	alloc_free(bytes);
}

/* Two declarations of the same name in which shards differ in one thing or in none. */
static void test_same_place(void **state)
{
	struct shard kinds[7];
	struct declaration d[7];

	(void)state;
	for (int i = 0; i < 7; i++)
		kinds[i] = make_shard("t", 2, 3, 10);
	kinds[1].box.offset[0]++;
	kinds[2].box.length[0]--;
	kinds[3].global.dim[0]++;
	kinds[4].flat = true;
	kinds[4].stop = 1;
	kinds[5] = kinds[4];
	kinds[5].stop = 2;
	kinds[6].dtype = kinds[0].dtype == CKPT_U8 ? CKPT_I8 : CKPT_U8;
	for (int i = 0; i < 7; i++) {
		struct declaration_builder *b = builder();
		size_t len;
		void *bytes;

		for (int k = 0; k < i; k++) { /* so that neither order nor image are the same */
			char name[8];

			snprintf(name, sizeof(name), "a%d", k);
			assert_int_equal(add(b, make_shard(name, 1, 0, 1)), k);
		}
		assert_int_equal(add(b, kinds[i]), i);
		bytes = finish(b, &len);
		assert_int_equal(declaration_open(bytes, len, &d[i], NULL), 0);
	}
	for (uint32_t i = 0; i < 7; i++)
		for (uint32_t k = 0; k < 7; k++)
			assert_true(declaration_same_place(&d[i], i, &d[k], k) == (i == k));
	for (uint32_t i = 0; i < 7; i++) {
		struct declaration_builder *b = builder();
		struct declaration again;
		size_t len;
		void *bytes;

		assert_int_equal(add(b, kinds[i]), 0);
		bytes = finish(b, &len);
		assert_int_equal(declaration_open(bytes, len, &again, NULL), 0);
		assert_true(declaration_same_place(&d[i], i, &again, 0));
		assert_true(declaration_place_hash(&d[i], i, 7) ==
			    declaration_place_hash(&again, 0, 7));
		alloc_free(bytes);
		alloc_free((void *)d[i].bytes);
	}
}

static void test_seek_equals_walk(void **state)
{
	struct declaration_builder *b = builder();
	struct declaration d;
	char name[16];
	size_t len;
	void *bytes;

	(void)state;
	rng_seed(&rng, test_seed(8));
	for (uint32_t i = 0; i < 300; i++) {
		snprintf(name, sizeof(name), "t%03u", (uint32_t)below(400));
		assert_int_equal(add(b, make_shard(name, 1, 10 * i, 10)), i);
	}
	bytes = finish(b, &len);
	assert_int_equal(declaration_open(bytes, len, &d, NULL), 0);
	for (int round = 0; round < 20000; round++) {
		uint32_t from = (uint32_t)below(301), want = from, own_len;

		snprintf(name, sizeof(name), "t%03u", (uint32_t)below(420));
		for (; want < 300; want++) {
			const char *own = declaration_name(&d, want, &own_len);

			assert_int_equal(own_len, 4);
			if (memcmp(own, name, 4) >= 0)
				break;
		}
		assert_int_equal(declaration_seek(&d, from, name, 4), want);
	}
	alloc_free(bytes);
}

/* Large: cut along one dimension by one rank (10^5 shards of one name) and many names. */
static void test_large(void **state)
{
	uint64_t n = test_cap("CKPT_SHARDS", 100000);
	struct declaration_builder *b = builder();
	struct declaration_lookup *l = NULL;
	struct seen seen = { 0 };
	struct file f = { 0 };
	struct declaration d;
	char name[64];

	(void)state;
	for (uint64_t i = 0; i < 100000; i++)
		assert_int_equal(add(b, make_shard("one", 2, 10 * i, 10)), i);
	assert_int_equal(add(b, make_shard("one", 2, 500004, 2)), 100000);
	refuse_finish(b, "declared twice in [500004:500006, 0:3]");

	b = builder();
	for (uint64_t i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "model.layers.%llu.weight",
			 (unsigned long long)(i * 7919 % n));
		assert_true(add(b, make_shard(name, 2, 0, 4)) >= 0);
	}
	f.bytes = finish(b, &f.len);
	assert_int_equal(declaration_open(f.bytes, f.len, &d, NULL), 0);
	assert_int_equal(d.n_shards, n);
	assert_int_equal(declaration_lookup_open(file_read, &f, f.len, &l, NULL), 0);
	f.reads = f.read_bytes = 0;
	snprintf(name, sizeof(name), "model.layers.%llu.weight", (unsigned long long)(n / 3));
	assert_int_equal(declaration_lookup(l, name, (uint32_t)strlen(name), see, &seen), 1);
	assert_in_range(f.reads, 1, 2); /* and no more than two blocks of all */
	assert_in_range(f.read_bytes, 1, 2 * 32 * 150);
	declaration_lookup_free(l);
	alloc_free((void *)f.bytes);
}

/* A file that is made to be slow: slabs that begin anywhere in one dimension, are long there and
 * side by side in the other one. What that costs is counted in model/test_disjoint.c. */
static void test_hostile_shapes(void **state)
{
	const uint32_t n = 60000;
	struct declaration_builder *b = builder();
	struct shard s = make_shard("w", 2, 0, 0);
	atomic_bool cancel = true;
	struct declaration d;
	struct err e = { 0 };
	void *bytes;
	size_t len;

	(void)state;
	s.global.dim[1] = n + 1;
	s.box.length[0] = 500000;
	s.box.length[1] = 1;
	for (uint32_t i = 0; i < n; i++) {
		s.box.offset[0] = below(500001);
		s.box.offset[1] = i;
		assert_int_equal(add(b, s), i);
	}
	bytes = finish(b, &len);
	assert_int_equal(declaration_open_until(bytes, len, &cancel, &d, &e), -ECANCELED);
	atomic_store(&cancel, false);
	assert_int_equal(declaration_open_until(bytes, len, &cancel, &d, &e), 0);
	alloc_free(bytes);

	b = builder();
	for (uint32_t i = 0; i < n; i++) {
		s.box.offset[0] = i;
		s.box.offset[1] = i;
		s.box.length[1] = 1 + (i == n / 2); /* and so one element of each row of the next */
		assert_int_equal(add(b, s), i);
	}
	refuse_finish(b, "tensor 'w' is declared twice in [30001:530000, 30001:30002]");
}

/* Cuts a box again and again, along any dimension and anywhere. */
static void add_cuts(struct declaration_builder *b, struct shard s, uint32_t n)
{
	uint64_t elements;

	while (n > 1) {
		uint32_t k = (uint32_t)below(s.box.ndim), part = 1 + (uint32_t)below(n - 1);
		struct shard piece = s;
		uint64_t cut;

		if (s.box.length[k] < 2) {
			n--;
			continue;
		}
		cut = 1 + below(s.box.length[k] - 1);
		piece.box.length[k] = cut;
		s.box.offset[k] += cut;
		s.box.length[k] -= cut;
		add_cuts(b, piece, part);
		n -= part;
	}
	if (box_elements(&s.box, &elements) && elements < 1u << 30) /* else it is no image */
		assert_true(add(b, s) >= 0);
}

/* Of three dimensions they are many steps, and are allowed; of eight it is given up in time. */
static void test_effort_is_bounded(void **state)
{
	struct declaration_builder *b = builder();
	struct shard s = make_shard("w", 3, 0, 1000);
	size_t len;

	(void)state;
	rng_seed(&rng, test_seed(16));
	s.dtype = CKPT_U8;
	for (uint32_t k = 0; k < 3; k++)
		s.global.dim[k] = s.box.length[k] = 1u << 14;
	add_cuts(b, s, 60000);
	alloc_free(finish(b, &len));
	b = builder();
	s = make_shard("w", 7, 0, 1000);
	s.dtype = CKPT_U8;
	for (uint32_t k = 0; k < 7; k++)
		s.global.dim[k] = s.box.length[k] = 1u << 8;
	add_cuts(b, s, 250000);
	refuse_finish(b, "takes too long to find whether two overlap");
}

/* Of most bytes, whatever the number of shards; of as many, the smaller. */
static void test_element(void **state)
{
	struct declaration_builder *b = builder();
	struct shard s = make_shard("a", 1, 0, 10);
	struct declaration d;
	uint8_t *bytes;
	size_t len;

	(void)state;
	bytes = finish(b, &len);
	assert_int_equal(declaration_open(bytes, len, &d, NULL), 0);
	assert_int_equal(declaration_element(&d), 0);
	alloc_free(bytes);
	b = builder();
	for (uint32_t i = 0; i < 4; i++) {
		char name[8];

		snprintf(name, sizeof(name), "t%u", i);
		s = make_shard(name, 1, 0, i == 3 ? 10 : 1);
		s.dtype = i == 3 ? CKPT_U8 : CKPT_F16;
		assert_int_equal(add(b, s), i);
	}
	bytes = finish(b, &len);
	assert_int_equal(declaration_open(bytes, len, &d, NULL), 0);
	assert_int_equal(declaration_element(&d), 1);
	alloc_free(bytes);
}

static void test_layout_digest(void **state)
{
	struct digest ranks[2] = { { { 1 } }, { { 2 } } }, a, b;

	(void)state;
	a = layout_digest(ranks, 2);
	b = layout_digest(ranks, 1);
	assert_false(digest_equal(&a, &b));
	b = layout_digest((struct digest[]){ ranks[1], ranks[0] }, 2);
	assert_false(digest_equal(&a, &b));
	b = layout_digest(ranks, 2);
	assert_true(digest_equal(&a, &b));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_empty),
		cmocka_unit_test(test_same_shards_same_bytes),
		cmocka_unit_test(test_overlap_is_refused),
		cmocka_unit_test(test_bad_arguments),
		cmocka_unit_test(test_damage_is_refused),
		cmocka_unit_test(test_lies_are_refused_or_harmless),
		cmocka_unit_test(test_no_byte_is_left_over),
		cmocka_unit_test(test_features),
		cmocka_unit_test(test_every_allocation_may_fail),
		cmocka_unit_test(test_builder_survives_failed_add),
		cmocka_unit_test(test_lookup_equals_find),
		cmocka_unit_test(test_lookup_finds_damage),
		cmocka_unit_test(test_same_place),
		cmocka_unit_test(test_seek_equals_walk),
		cmocka_unit_test(test_large),
		cmocka_unit_test(test_hostile_shapes),
		cmocka_unit_test(test_effort_is_bounded),
		cmocka_unit_test(test_element),
		cmocka_unit_test(test_layout_digest),
	};

	return cmocka_run_group_tests_name("declaration", tests, NULL, NULL);
}
