/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compression: every kind of data comes back, what is kept pays, what is damaged is refused or
 * wrong but never written outside. The planes are checked against their definition.
 */
#include <config.h>

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "codec/compress.h"
#include "codec/planes.h"
#include "tests/lib/test.h"

#define CHUNK  (1u << 20)
#define CANARY 0x5a

/* ---- Data ---- */
enum kind { ZEROS, RANDOM, GAUSS_FP32, GAUSS_BF16, TEXT, HALF_ZEROS, KINDS };

static double uniform(struct rng_seeded *rng)
{
	return ((double)(rng_u64(&rng->rng) >> 11) + 0.5) * 0x1p-53;
}

static float gauss(struct rng_seeded *rng)
{
	return (float)(0.02 * sqrt(-2 * log(uniform(rng))) * cos(2 * 3.14159265 * uniform(rng)));
}

static void fill_floats(uint8_t *buf, size_t len, size_t element, struct rng_seeded *rng)
{
	size_t i;
	float f;

	for (i = 0; i + element <= len; i += element) {
		f = gauss(rng);
		/* bf16 is the upper half */
		memcpy(buf + i, (uint8_t *)&f + sizeof(f) - element, element);
	}
}

static void fill(uint8_t *buf, size_t len, enum kind kind, uint64_t seed)
{
	static const char *const words[] = { "layer", "weight", "bias", "norm", ".", "0", "\n" };
	struct rng_seeded rng;
	size_t i, n;

	rng_seed(&rng, seed);
	memset(buf, 0, len);
	if (kind == RANDOM)
		test_fill(buf, len, seed);
	if (kind == GAUSS_FP32 || kind == GAUSS_BF16)
		fill_floats(buf, len, kind == GAUSS_FP32 ? 4 : 2, &rng);
	if (kind == HALF_ZEROS)
		test_fill(buf, len / 2, seed);
	for (i = 0; kind == TEXT && i < len; i += n) {
		const char *word = words[rng_below(&rng.rng, 7)];

		n = strlen(word) < len - i ? strlen(word) : len - i;
		memcpy(buf + i, word, n);
	}
}

/* Three buffers of a chunk, the last two with room for canaries. */
struct fixture {
	struct compressor *c;
	uint8_t *raw, *stored, *back;
};

static int setup(void **state)
{
	struct fixture *f = alloc_zero(sizeof(*f));

	assert_non_null(f);
	assert_int_equal(compressor_new(CHUNK, 1, &f->c), 0);
	f->raw = alloc_zero(CHUNK);
	f->stored = alloc_zero(CHUNK + 64);
	f->back = alloc_zero(CHUNK + 64);
	assert_true(f->raw && f->stored && f->back);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	compressor_free(f->c);
	alloc_free(f->raw);
	alloc_free(f->stored);
	alloc_free(f->back);
	alloc_free(f);
	return 0;
}

/* Compresses f->raw and brings it back; the encoding and the stored length. */
static int round_trip(struct fixture *f, size_t len, uint32_t element, size_t *ret_stored)
{
	static const int expected[] = { [1] = ENCODING_ZSTD,
					[2] = ENCODING_ZSTD_P2,
					[4] = ENCODING_ZSTD_P4,
					[8] = ENCODING_ZSTD };
	const size_t bound = compressor_bound(len);
	const uint8_t *stored = f->stored;
	int encoding;
	size_t i;

	memset(f->stored, CANARY, CHUNK + 64);
	memset(f->back, CANARY, CHUNK + 64);
	encoding = compress_chunk(f->c, f->raw, len, element, f->stored, bound, ret_stored);
	for (i = bound; i < bound + 64; i++)
		assert_int_equal(f->stored[i], CANARY);
	if (encoding == ENCODING_RAW) {
		assert_int_equal(*ret_stored, len);
		stored = f->raw;
	} else {
		assert_int_equal(encoding, expected[element]);
		assert_true(*ret_stored * 16 <= len * 15);
	}
	assert_int_equal(decompress_chunk(f->c, encoding, stored, *ret_stored, f->back, len), 0);
	assert_memory_equal(f->back, f->raw, len);
	for (i = len; i < len + 64; i++)
		assert_int_equal(f->back[i], CANARY);
	return encoding;
}

/* ---- Tests ---- */
static void test_planes(void **state)
{
	enum { MAX = 301 };
	uint8_t in[MAX], planes[MAX + 1], back[MAX + 1];
	size_t len, i, n;
	uint32_t element;

	(void)state;
	test_fill(in, MAX, 4);
	for (element = 2; element <= 4; element += 2) {
		for (len = 0; len <= MAX; len++) {
			memset(planes, CANARY, sizeof(planes));
			memset(back, CANARY, sizeof(back));
			planes_split(planes, in, len, element);
			n = len / element;
			for (i = 0; i < n * element; i++)
				assert_int_equal(planes[i % element * n + i / element], in[i]);
			for (; i < len; i++)
				assert_int_equal(planes[i], in[i]);
			planes_join(back, planes, len, element);
			assert_memory_equal(back, in, len);
			assert_int_equal(planes[len], CANARY);
			assert_int_equal(back[len], CANARY);
		}
	}
}

static void test_round_trips(void **state)
{
	static const size_t lens[] = { 0,     1,	 15,	    16,	   17,	 100,
				       65536, CHUNK - 1, CHUNK - 3, CHUNK, 4097, 300001 };
	static const uint32_t elements[] = { 1, 2, 4, 8 };
	struct fixture *f = *state;
	size_t i, e, stored;
	int kind;

	for (kind = 0; kind < KINDS; kind++) {
		for (i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
			fill(f->raw, lens[i], (enum kind)kind, i + 1);
			for (e = 0; e < 4; e++)
				round_trip(f, lens[i], elements[e], &stored);
		}
	}
}

static void test_random_round_trips(void **state)
{
	struct fixture *f = *state;
	uint64_t seed = test_seed(11);
	struct rng_seeded rng;
	size_t stored;
	int round;

	rng_seed(&rng, seed);
	for (round = 0; round < 300; round++) {
		size_t len = rng_below(&rng.rng, round % 10 ? 5000 : CHUNK + 1);

		fill(f->raw, len, (enum kind)rng_below(&rng.rng, KINDS), rng_u64(&rng.rng));
		round_trip(f, len, (uint32_t)1 << rng_below(&rng.rng, 4), &stored);
	}
}

/* What the planes are for: floats that zstd alone hardly compresses. */
static void test_what_pays(void **state)
{
	struct fixture *f = *state;
	size_t stored;

	fill(f->raw, CHUNK, GAUSS_FP32, 1);
	assert_int_equal(round_trip(f, CHUNK, 4, &stored), ENCODING_ZSTD_P4);
	assert_true(stored < CHUNK * 86 / 100);
	fill(f->raw, CHUNK, GAUSS_BF16, 1);
	assert_int_equal(round_trip(f, CHUNK, 2, &stored), ENCODING_ZSTD_P2);
	assert_true(stored < CHUNK * 70 / 100);
	fill(f->raw, CHUNK, RANDOM, 1);
	assert_int_equal(round_trip(f, CHUNK, 4, &stored), ENCODING_RAW);
	assert_int_equal(round_trip(f, CHUNK, 1, &stored), ENCODING_RAW);
	/* a chunk that did not fit leaves nothing behind in the context */
	fill(f->raw, CHUNK, ZEROS, 1);
	assert_int_equal(round_trip(f, CHUNK, 4, &stored), ENCODING_ZSTD_P4);
	assert_true(stored < 200);
	fill(f->raw, CHUNK, TEXT, 1);
	assert_int_equal(round_trip(f, CHUNK, 8, &stored), ENCODING_ZSTD);
	assert_true(stored < CHUNK / 2);
}

static void test_room_that_is_too_small(void **state)
{
	struct fixture *f = *state;
	size_t full, got, cap;

	fill(f->raw, 10000, TEXT, 2);
	assert_int_equal(round_trip(f, 10000, 1, &full), ENCODING_ZSTD);
	for (cap = 0; cap < full; cap += 1 + cap / 16) {
		memset(f->stored, CANARY, CHUNK + 64);
		assert_int_equal(compress_chunk(f->c, f->raw, 10000, 1, f->stored, cap, &got),
				 ENCODING_RAW);
		assert_int_equal(got, 10000);
		assert_int_equal(f->stored[cap], CANARY);
	}
	assert_int_equal(round_trip(f, 10000, 1, &got), ENCODING_ZSTD);
}

static void test_other_levels(void **state)
{
	static const int levels[] = { -5, 2, 3, 9 };
	struct fixture *f = *state;
	struct compressor *mine = f->c;
	size_t i, stored;

	fill(f->raw, 100000, GAUSS_BF16, 3);
	for (i = 0; i < 4; i++) {
		assert_int_equal(compressor_new(CHUNK, levels[i], &f->c), 0);
		round_trip(f, 100000, 2, &stored);
		compressor_free(f->c);
	}
	f->c = NULL;
	assert_int_equal(compressor_new(CHUNK, 1000, &f->c), -EINVAL);
	assert_null(f->c);
	f->c = mine;
}

static void assert_refused(struct fixture *f, int encoding, size_t len, size_t dst_len)
{
	assert_int_equal(decompress_chunk(f->c, encoding, f->stored, len, f->back, dst_len),
			 CKPT_ECORRUPT);
}

static void test_wrong_lengths_are_refused(void **state)
{
	enum { LEN = 50000 };
	struct fixture *f = *state;
	size_t stored, n;
	int e;

	fill(f->raw, LEN, GAUSS_BF16, 4);
	e = round_trip(f, LEN, 2, &stored);
	assert_refused(f, e, stored, LEN - 1);
	assert_refused(f, e, stored, LEN + 1);
	assert_refused(f, e, stored, 0);
	assert_refused(f, e, stored, CHUNK + 1);
	assert_refused(f, ENCODING_RAW, stored, LEN);
	assert_refused(f, -1, stored, LEN);
	assert_refused(f, ENCODING_ZSTD_P4 + 1, stored, LEN);
	for (n = 0; n < stored; n += n < 40 ? 1 : 371)
		assert_refused(f, e, n, LEN);
	assert_refused(f, e, stored + 1, LEN);
}

/* Frames written by hand from the format's description. */
static void test_odd_frames_are_refused(void **state)
{
	static const char one[] = "\x28\xb5\x2f\xfd\x20\x01\x09\x00\x00!";
	static const char empty[] = "\x28\xb5\x2f\xfd\x20\x00\x01\x00\x00";
	static const char skippable[] = "\x50\x2a\x4d\x18\x00\x00\x00\x00";
	static const char unsized[] = "\x28\xb5\x2f\xfd\x00\x00\x09\x00\x00!";
	const size_t one_len = sizeof(one) - 1;
	struct fixture *f = *state;

	memcpy(f->stored, one, one_len);
	assert_int_equal(decompress_chunk(f->c, ENCODING_ZSTD, f->stored, one_len, f->back, 1), 0);
	assert_int_equal(f->back[0], '!');
	/* more frames behind it */
	memcpy(f->stored + one_len, one, one_len);
	assert_refused(f, ENCODING_ZSTD, 2 * one_len, 1);
	assert_refused(f, ENCODING_ZSTD, 2 * one_len, 2);
	memcpy(f->stored + one_len, empty, sizeof(empty) - 1);
	assert_refused(f, ENCODING_ZSTD, one_len + sizeof(empty) - 1, 1);
	memcpy(f->stored + one_len, skippable, sizeof(skippable) - 1);
	assert_refused(f, ENCODING_ZSTD, one_len + sizeof(skippable) - 1, 1);
	/* a frame that does not say how long its content is */
	memcpy(f->stored, unsized, sizeof(unsized) - 1);
	assert_refused(f, ENCODING_ZSTD, sizeof(unsized) - 1, 1);
}

/* Bits and bytes turned over: an error or other bytes, never a write outside. */
static void test_damage(void **state)
{
	struct fixture *f = *state;
	struct rng_seeded rng;
	size_t stored, i, len;
	uint64_t refused = 0;
	int round, e, r, flips;

	rng_seed(&rng, test_seed(12));
	for (round = 0; round < 3000; round++) {
		len = 1000 + rng_below(&rng.rng, 20000);
		if (round % 50 == 0)
			fill(f->raw, CHUNK, (enum kind)rng_below(&rng.rng, KINDS), (uint64_t)round);
		e = compress_chunk(f->c, f->raw, len, (uint32_t)1 << rng_below(&rng.rng, 3),
				   f->stored, compressor_bound(len), &stored);
		if (e == ENCODING_RAW)
			continue;
		for (flips = 1 + (int)rng_below(&rng.rng, 8); flips > 0; flips--) {
			/* half of them in the headers, which have the most to get wrong */
			i = rng_below(&rng.rng, flips % 2 && stored > 32 ? 32 : stored);
			f->stored[i] ^= (uint8_t)(1 + rng_below(&rng.rng, 255));
		}
		memset(f->back, CANARY, len + 64);
		r = decompress_chunk(f->c, e, f->stored, stored, f->back, len);
		assert_true(r == 0 || r == CKPT_ECORRUPT);
		refused += r != 0;
		for (i = len; i < len + 64; i++)
			assert_int_equal(f->back[i], CANARY);
	}
	assert_true(refused > 500);
	/* and nothing of it stays in the context */
	fill(f->raw, CHUNK, GAUSS_FP32, 5);
	assert_int_equal(round_trip(f, CHUNK, 4, &stored), ENCODING_ZSTD_P4);
}

#ifdef CKPT_FAULTS
static void test_no_memory(void **state)
{
	struct compressor *c = NULL;
	uint64_t n;

	(void)state;
	for (n = 1;; n++) {
		alloc_fail_at(n, false);
		if (compressor_new(4096, 1, &c) == 0)
			break;
		assert_true(alloc_fired());
		assert_null(c);
	}
	alloc_fail_at(0, false);
	assert_int_equal(n, 3); /* two allocations of ours */
	compressor_free(c);
	compressor_free(NULL);
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_planes),
		cmocka_unit_test_setup_teardown(test_round_trips, setup, teardown),
		cmocka_unit_test_setup_teardown(test_random_round_trips, setup, teardown),
		cmocka_unit_test_setup_teardown(test_what_pays, setup, teardown),
		cmocka_unit_test_setup_teardown(test_room_that_is_too_small, setup, teardown),
		cmocka_unit_test_setup_teardown(test_other_levels, setup, teardown),
		cmocka_unit_test_setup_teardown(test_wrong_lengths_are_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(test_odd_frames_are_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(test_damage, setup, teardown),
#ifdef CKPT_FAULTS
		cmocka_unit_test(test_no_memory),
#endif
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
