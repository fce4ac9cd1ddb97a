/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "model/attempt.h"
#include "model/boxtree.h"
#include "model/strided.h"
#include "tests/lib/test.h"

static struct rng_seeded rng;

static uint64_t below(uint64_t n)
{
	return rng_below(&rng.rng, n);
}

static void test_dtypes(void **state)
{
	(void)state;
	assert_int_equal(dtype_bytes(CKPT_BOOL), 1);
	assert_int_equal(dtype_bytes(CKPT_BF16), 2);
	assert_int_equal(dtype_bytes(CKPT_F32), 4);
	assert_int_equal(dtype_bytes(CKPT_C128), 16);
	assert_int_equal(dtype_bytes(0), 0);
	assert_int_equal(dtype_bytes(21), 0);
	assert_string_equal(dtype_name(CKPT_F8_E8M0), "f8_e8m0");
	assert_null(dtype_name(999));
}

static void test_products(void **state)
{
	struct shape s = { .ndim = 3, .dim = { UINT64_MAX, UINT64_MAX, 0 } };
	uint64_t n = 77;

	(void)state;
	assert_true(shape_elements(&s, &n));
	assert_int_equal(n, 0);
	s.dim[2] = 1;
	n = 77;
	assert_false(shape_elements(&s, &n));
	assert_int_equal(n, 77);
	s = (struct shape){ 0 };
	assert_true(shape_elements(&s, &n));
	assert_int_equal(n, 1);
}

static void test_boxes(void **state)
{
	struct shape s = { .ndim = 2, .dim = { 4, 6 } };
	struct box a = { .ndim = 2, .offset = { 1, 2 }, .length = { 3, 4 } };
	struct box b = { .ndim = 2, .offset = { 0, 5 }, .length = { 2, 1 } }, x;

	(void)state;
	assert_true(box_inside(&a, &s));
	assert_true(box_intersect(&a, &b, &x));
	assert_true(x.offset[0] == 1 && x.length[0] == 1 && x.offset[1] == 5 && x.length[1] == 1);
	b.length[1] = 0;
	assert_false(box_intersect(&a, &b, &x));
	a.length[0] = 4;
	assert_false(box_inside(&a, &s));
	a.length[0] = UINT64_MAX; /* offset + length wraps */
	assert_false(box_inside(&a, &s));
	a.offset[0] = 4;
	a.length[0] = 0;
	assert_true(box_inside(&a, &s));
}

/* Enumerates the elements of the range and of the boxes and compares the two lists. */
static int check_flat(const struct box *box, uint64_t start, uint64_t stop)
{
	struct box boxes[FLAT_BOXES_MAX];
	int n = flat_to_boxes(box, start, stop, boxes);
	uint64_t next = start;

	for (int i = 0; i < n; i++) {
		uint64_t elements;

		assert_true(box_elements(&boxes[i], &elements));
		assert_true(elements > 0);
		for (uint64_t k = 0; k < elements; k++) {
			uint64_t number = 0, rest = k, at[CKPT_NDIM_MAX];

			for (uint32_t d = box->ndim; d-- > 0; rest /= boxes[i].length[d])
				at[d] = boxes[i].offset[d] + rest % boxes[i].length[d];
			for (uint32_t d = 0; d < box->ndim; d++) {
				assert_true(at[d] >= box->offset[d] &&
					    at[d] < box->offset[d] + box->length[d]);
				number = number * box->length[d] + at[d] - box->offset[d];
			}
			assert_int_equal(number, next); /* row-major, disjoint, no gap */
			next++;
		}
	}
	assert_int_equal(next, stop);
	return n;
}

static void test_flat_to_boxes_every_range(void **state)
{
	static const struct box boxes[] = {
		{ .ndim = 0 },
		{ .ndim = 1, .offset = { 3 }, .length = { 7 } },
		{ .ndim = 2, .offset = { 1, 2 }, .length = { 4, 5 } },
		{ .ndim = 3, .offset = { 0, 9, 1 }, .length = { 3, 4, 3 } },
		{ .ndim = 4, .offset = { 5 }, .length = { 3, 3, 1, 3 } },
		{ .ndim = 4, .length = { 1, 4, 1, 5 } },
		{ .ndim = 5, .length = { 3, 2, 3, 2, 2 } },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(boxes) / sizeof(boxes[0]); i++) {
		const struct box *b = &boxes[i];
		int most = 0, bound = b->ndim ? 2 * (int)b->ndim - 1 : 1;
		uint64_t elements;

		assert_true(box_elements(b, &elements));
		for (uint64_t start = 0; start <= elements; start++)
			for (uint64_t stop = start; stop <= elements; stop++) {
				int n = check_flat(b, start, stop);

				most = n > most ? n : most;
				assert_int_equal(n == 0, start == stop);
			}
		assert_true(most <= bound);
		assert_int_equal(check_flat(b, 0, elements), 1);
	}
	/* The bound is met. */
	assert_int_equal(check_flat(&boxes[3], 1, 35), 5);
}

static void test_flat_of_nothing(void **state)
{
	struct box empty = { .ndim = 3, .length = { UINT64_MAX, 0, UINT64_MAX } };
	struct box ret[FLAT_BOXES_MAX];

	(void)state;
	assert_int_equal(flat_to_boxes(&empty, 0, 0, ret), 0);
}

static struct shard shard_2d(void)
{
	return (struct shard){
		.name = "w",
		.name_len = 1,
		.dtype = CKPT_F32,
		.global = { .ndim = 2, .dim = { 8, 4 } },
		.box = { .ndim = 2, .offset = { 2, 0 }, .length = { 3, 4 } },
	};
}

static void refused(struct shard s, const char *words)
{
	struct err e = { 0 };

	assert_int_equal(shard_check(&s, &e), CKPT_EPROTO);
	assert_non_null(strstr(e.text, words));
}

static void test_shard_check(void **state)
{
	struct shard s = shard_2d(), bad;
	char long_name[CKPT_NAME_MAX + 2];

	(void)state;
	assert_int_equal(shard_check(&s, NULL), 0);
	assert_int_equal(s.bytes, 48);
	assert_true(s.start == 0 && s.stop == 12);
	s.flat = true;
	s.start = 5;
	assert_int_equal(shard_check(&s, NULL), 0);
	assert_int_equal(s.bytes, 28);
	bad = s, bad.stop = 13, refused(bad, "flat range [5, 13)");
	bad = s, bad.start = 13, refused(bad, "flat range");
	bad = s, bad.dtype = 0, refused(bad, "dtype 0");
	bad = s, bad.box.offset[0] = 6, refused(bad, "box [6:9, 0:4] of tensor 'w' is not inside");
	bad = s, bad.box.ndim = 1, refused(bad, "dimensions");
	bad = s, bad.box.ndim = bad.global.ndim = 9, refused(bad, "dimensions");
	bad = s, bad.global.dim[0] = UINT64_MAX / 8, refused(bad, "2^64");
	bad = s, bad.name_len = 0, refused(bad, "empty name");
	bad = s, bad.name = "a\0b", bad.name_len = 3, refused(bad, "NUL");
	memset(long_name, 'x', sizeof(long_name));
	bad = s, bad.name = long_name, bad.name_len = CKPT_NAME_MAX + 1, refused(bad, "1024 bytes");
	bad.name_len = CKPT_NAME_MAX;
	assert_int_equal(shard_check(&bad, NULL), 0);
}

static void test_texts(void **state)
{
	struct box b = { .ndim = 2, .offset = { 0, 16 }, .length = { 4, 16 } };
	char name[NAME_TEXT_MAX], box[BOX_TEXT_MAX], big[400];

	(void)state;
	assert_string_equal(box_text(box, &b), "[0:4, 16:32]");
	b.ndim = 0;
	assert_string_equal(box_text(box, &b), "[]");
	b.ndim = 8;
	for (int i = 0; i < 8; i++)
		b.offset[i] = UINT64_MAX;
	assert_true(strlen(box_text(box, &b)) < BOX_TEXT_MAX);
	assert_string_equal(name_text(name, "a\nb", 3), "a?b");
	assert_string_equal(name_text(name, "a\xc2\x9b", 3), "a??");
	memset(big, 'a', sizeof(big));
	memcpy(big + sizeof(big) - 4, "tail", 4);
	name_text(name, big, sizeof(big));
	assert_string_equal(name + strlen(name) - 4, "tail");
	assert_non_null(strstr(name, "..."));
	assert_true(name_compare("ab", 2, "abc", 3) < 0);
	assert_true(name_compare("b", 1, "abc", 3) > 0);
	assert_true(name_compare("\xff", 1, "a", 1) > 0); /* bytes are unsigned */
	assert_int_equal(name_compare("x", 1, "x", 1), 0);
}

/* The tree against a walk over all boxes in order of preference. */
static void test_boxtree(void **state)
{
	struct boxtree t = { 0 };
	struct box boxes[70];

	(void)state;
	rng_seed(&rng, test_seed(3));
	for (int round = 0; round < 3000; round++) {
		uint32_t ndim = (uint32_t)below(4), n = (uint32_t)below(70);

		boxtree_reset(&t, ndim);
		for (uint32_t i = 0; i < n; i++) {
			boxes[i] = (struct box){ .ndim = ndim };
			for (uint32_t k = 0; k < ndim; k++) {
				boxes[i].offset[k] = below(40);
				boxes[i].length[k] = 1 + below(12);
			}
			assert_int_equal(boxtree_add(&t, &boxes[i], i), 0);
		}
		assert_int_equal(boxtree_build(&t, NULL), 0);
		for (int ask = 0; ask < 10; ask++) {
			struct box region = { .ndim = ndim }, x;
			const struct boxtree_box *got;
			uint32_t want = 0;

			for (uint32_t k = 0; k < ndim; k++) {
				region.offset[k] = below(40);
				region.length[k] = 1 + below(30);
			}
			while (want < n && !box_intersect(&boxes[want], &region, &x))
				want++;
			got = boxtree_first(&t, &region);
			assert_int_equal(got ? got->tag : n, want);
		}
	}
	boxtree_fini(&t);
}

/* Marks the bytes of a box; false: one was marked before. */
static bool mark(uint8_t *memory, const struct shard *s, const int64_t *strides, int64_t at)
{
	uint32_t ndim = s->box.ndim, es = dtype_bytes(s->dtype);
	uint64_t n = s->bytes / es;
	bool alone = true;

	for (uint64_t i = 0; i < n; i++) {
		uint64_t rest = i;
		int64_t to = at;

		for (uint32_t k = ndim; k-- > 0; rest /= s->box.length[k])
			to += (int64_t)(rest % s->box.length[k]) * strides[k];
		for (uint32_t b = 0; b < es; b++)
			alone = memory[to + b]++ == 0 && alone;
	}
	return alone;
}

struct any {
	struct shard s;
	int64_t strides[3], lo, hi;
	struct strided l;
};

static void any_box(struct any *a)
{
	int64_t coarse = below(3) ? 4 : 1;
	struct shard *s = &a->s;

	*s = (struct shard){.name = "s", .name_len = 1, .dtype = below(2) ? CKPT_F32 : CKPT_U8};
	s->global.ndim = s->box.ndim = (uint32_t)below(4);
	for (uint32_t k = 0; k < s->box.ndim; k++) {
		s->global.dim[k] = s->box.length[k] = 1 + below(5);
		a->strides[k] = coarse * ((int64_t)below(61) - 30);
	}
	assert_int_equal(shard_check(s, NULL), 0);
	assert_int_equal(strided_init(&a->l, s, a->strides), 0);
	assert_true(strided_reach(s, a->strides, &a->lo, &a->hi));
}

/* What overlaps, against bytes that are marked one by one. */
static void test_strided_overlaps(void **state)
{
	static uint8_t memory[8192];
	const int64_t at = sizeof(memory) / 2;
	int alone = 0, apart = 0;

	(void)state;
	rng_seed(&rng, test_seed(5));
	for (int i = 0; i < 50000; i++) {
		int64_t distance = (int64_t)below(200) - 100;
		struct any a, b;
		bool ok;

		any_box(&a);
		any_box(&b);
		memset(memory, 0, sizeof(memory));
		ok = mark(memory, &a.s, a.strides, at);
		for (int64_t m = 0; m < (int64_t)sizeof(memory); m++)
			assert_true(memory[m] == 0 || (m - at >= a.lo && m - at < a.hi));
		assert_true(memory[at + a.lo] && memory[at + a.hi - 1]);
		assert_int_equal(strided_meets_itself(&a.l), !ok);
		alone += ok && a.l.ndim > 1;
		if (!ok || strided_meets_itself(&b.l))
			continue;
		ok = mark(memory, &b.s, b.strides, at + distance);
		assert_int_equal(strided_meet(&a.l, &b.l, distance), !ok);
		assert_int_equal(strided_meet(&b.l, &a.l, -distance), !ok);
		apart += ok && a.lo < b.hi + distance && b.lo + distance < a.hi;
	}
	assert_true(alone > 1000 && apart > 1000); /* both were tried */
}

static void test_strided_reach(void **state)
{
	struct shard s = shard_2d();
	int64_t strides[2] = {INT64_MIN, 4}, lo = 7, hi = 7;

	(void)state;
	assert_int_equal(shard_check(&s, NULL), 0);
	assert_false(strided_reach(&s, strides, &lo, &hi));
	strides[0] = INT64_MAX;
	assert_false(strided_reach(&s, strides, &lo, &hi));
	strides[0] = STRIDED_REACH_MAX;
	assert_false(strided_reach(&s, strides, &lo, &hi));
	assert_true(lo == 7 && hi == 7);
	strides[0] = -(STRIDED_REACH_MAX / 4);
	assert_true(strided_reach(&s, strides, &lo, &hi));
	assert_true(lo == strides[0] * (int64_t)(s.box.length[0] - 1) &&
		    hi == 4 * (int64_t)s.box.length[1]);
}

/* Strided memory against addresses computed element by element. */
static void check_strided(void)
{
	struct shard s = { .name = "s", .name_len = 1, .dtype = below(2) ? CKPT_F32 : CKPT_U8 };
	uint32_t ndim = (uint32_t)below(4), es = dtype_bytes(s.dtype), order[3] = { 0, 1, 2 };
	int64_t strides[3], step = es, base = 0;
	uint8_t memory[4096], seen[4096], packed[2048], back[2048];
	struct strided st;
	uint64_t n = 1, lo, hi;

	s.global.ndim = s.box.ndim = ndim;
	for (uint32_t k = 0; k < ndim; k++) {
		uint32_t other = k + (uint32_t)below(ndim - k), x = order[k];

		order[k] = order[other];
		order[other] = x;
	}
	for (uint32_t i = 0; i < ndim; i++) {
		uint32_t k = order[i];

		s.global.dim[k] = s.box.length[k] = 1 + below(6);
		n *= s.box.length[k];
		step += es * (int64_t)below(2); /* padding */
		strides[k] = below(4) ? step : -step;
		if (strides[k] < 0)
			base += step * (int64_t)(s.box.length[k] - 1);
		step *= (int64_t)s.box.length[k];
	}
	assert_true(base + step < (int64_t)sizeof(memory));
	assert_int_equal(shard_check(&s, NULL), 0);
	assert_int_equal(strided_init(&st, &s, strides), 0);
	test_fill(packed, n * es, below(1000));
	memset(memory, 0, sizeof(memory));
	memset(seen, 0, sizeof(seen));
	memset(back, 0, sizeof(back));
	lo = below(n * es + 1);
	hi = lo + below(n * es + 1 - lo);
	strided_scatter(&st, memory + base, 0, packed, lo);
	strided_scatter(&st, memory + base, lo, packed + lo, hi - lo);
	strided_scatter(&st, memory + base, hi, packed + hi, n * es - hi);
	for (uint64_t i = 0; i < n; i++) {
		int64_t at = base;
		uint64_t rest = i;

		for (uint32_t k = ndim; k-- > 0; rest /= s.box.length[k])
			at += (int64_t)(rest % s.box.length[k]) * strides[k];
		assert_memory_equal(memory + at, packed + i * es, es);
		memset(seen + at, 1, es);
	}
	for (size_t i = 0; i < sizeof(memory); i++)
		assert_true(seen[i] || memory[i] == 0);
	strided_gather(&st, memory + base, lo, back, hi - lo);
	assert_memory_equal(back, packed + lo, hi - lo);
}

static void test_strided(void **state)
{
	struct shard s = shard_2d();
	int64_t strides[2] = { 16, 4 };
	struct strided st;

	(void)state;
	rng_seed(&rng, test_seed(4));
	for (int i = 0; i < 20000; i++)
		check_strided();
	assert_int_equal(shard_check(&s, NULL), 0);
	assert_int_equal(strided_init(&st, &s, strides), 0);
	assert_true(st.ndim == 0 && st.run == 48);
	strides[0] = 20;
	assert_int_equal(strided_init(&st, &s, strides), 0);
	assert_true(st.ndim == 1 && st.run == 16);
	s.flat = true;
	assert_int_equal(strided_init(&st, &s, strides), -EINVAL);
}

static void test_attempt_ids_differ(void **state)
{
	struct job_id job = { { 1 } }, other = { { 2 } };
	struct attempt_id a = attempt_id_make(&job, 1, 2, 3, 4), b;

	(void)state;
	b = attempt_id_make(&job, 1, 2, 3, 4);
	assert_true(attempt_equal(&a, &b));
	b = attempt_id_make(&other, 1, 2, 3, 4);
	assert_false(attempt_equal(&a, &b));
	b = attempt_id_make(&job, 2, 2, 3, 4);
	assert_false(attempt_equal(&a, &b));
	b = attempt_id_make(&job, 1, 3, 3, 4);
	assert_false(attempt_equal(&a, &b));
	b = attempt_id_make(&job, 1, 2, 4, 4);
	assert_false(attempt_equal(&a, &b));
	b = attempt_id_make(&job, 1, 2, 3, 5);
	assert_false(attempt_equal(&a, &b));
	assert_true(attempt_is_of(&a, &job, 1, 2, 3));
	assert_true(attempt_is_of(&a, &job, 1, 1 + ATTEMPT_EPOCHS_MAX, 3));
	assert_false(attempt_is_of(&a, &job, 1, 2 + ATTEMPT_EPOCHS_MAX, 3));
	/* A log may say any number. */
	assert_false(attempt_is_of(&a, &job, 1, UINT64_MAX, 3));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_dtypes),
		cmocka_unit_test(test_products),
		cmocka_unit_test(test_boxes),
		cmocka_unit_test(test_flat_to_boxes_every_range),
		cmocka_unit_test(test_flat_of_nothing),
		cmocka_unit_test(test_shard_check),
		cmocka_unit_test(test_texts),
		cmocka_unit_test(test_boxtree),
		cmocka_unit_test(test_strided),
		cmocka_unit_test(test_strided_overlaps),
		cmocka_unit_test(test_strided_reach),
		cmocka_unit_test(test_attempt_ids_differ),
	};

	return cmocka_run_group_tests_name("tensor", tests, NULL, NULL);
}
