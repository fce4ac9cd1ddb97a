/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Digests against the published test vectors of XXH3-128 (xxHash's own sanity check, seed 0): they
 * cover each of its code paths by length, and a machine with another instruction set runs the same.
 */
#include <config.h>

#include <string.h>

#include "base/bytes.h"
#include "base/rng.h"
#include "codec/digest.h"
#include "tests/lib/test.h"

#define BUF_LEN 2367

/* The buffer over which xxHash publishes its vectors. */
static void sanity_fill(uint8_t *buf, size_t len)
{
	uint64_t gen = 2654435761u;
	size_t i;

	for (i = 0; i < len; i++) {
		buf[i] = (uint8_t)(gen >> 56);
		gen *= 11400714785074694797u;
	}
}

static void test_digest_vectors(void **state)
{
	static const struct {
		size_t len;
		const char *hex;
	} want[] = {
		{ 0, "99aa06d3014798d86001c324468d497f" },
		{ 1, "a6cd5e9392000f6ac44bdff4074eecdb" },
		{ 6, "082afe0b8162d12a3e7039bdda43cfc6" },
		{ 12, "6e3efd8fc7802b18061a192713f69ad9" },
		{ 24, "0ce966e4678d37611e7044d28b1b901d" },
		{ 48, "a002ac4e5478227ef942219aed80f67b" },
		{ 81, "4952f58181ab00425e8bafb9f95fb803" },
		{ 222, "337e09641b948717f1aebd597cec6b3a" },
		{ 403, "1b6de21e332dd73dcdeb804d65c6dea4" },
		{ 512, "18d2d110dcc9bca1617e49599013cb6b" },
		{ 2048, "f736557fd47073a5dd59e2c3a5f038e0" },
		{ 2240, "ccb134fbfa7ce49d6e73a90539cf2948" },
		{ 2367, "e89c0f6ff369b427cb37aeb9e5d361ed" },
	};
	uint8_t buf[BUF_LEN];
	struct digest d;
	char hex[ID_TEXT_MAX];
	size_t i;

	(void)state;
	sanity_fill(buf, sizeof(buf));
	for (i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
		d = digest_of(buf, want[i].len);
		hex_format(hex, d.b, sizeof(d.b));
		assert_string_equal(hex, want[i].hex);
	}
}

/* However a buffer is cut, the stream says what the one call says. */
static void test_stream_equals_whole(void **state)
{
	static uint8_t buf[200000];
	uint64_t seed = test_seed(1);
	struct rng_seeded rng;
	int round;

	(void)state;
	rng_seed(&rng, seed);
	test_fill(buf, sizeof(buf), seed);
	for (round = 0; round < 500; round++) {
		size_t len = rng_below(&rng.rng, sizeof(buf) + 1);
		size_t step = 1 + rng_below(&rng.rng, round % 2 ? 300 : 70000);
		size_t at = 0, n;
		struct digest_stream s;
		struct digest whole = digest_of(buf, len), parts;

		digest_begin(&s);
		while (at < len) {
			n = rng_below(&rng.rng, step + 1);
			n = n < len - at ? n : len - at;
			digest_update(&s, buf + at, n);
			at += n;
		}
		parts = digest_end(&s);
		assert_true(digest_equal(&whole, &parts));
	}
}

static void test_leaves(void **state)
{
	enum { LEAF = 256, LEN = 10 * LEAF + 7 };
	static uint8_t image[LEN];
	struct digest got[11], want;
	uint64_t first, last, i;

	(void)state;
	test_fill(image, LEN, 7);
	for (first = 0; first < 11; first++) {
		for (last = first; last < 11; last++) {
			memset(got, 0xee, sizeof(got));
			digest_leaves(image, LEN, LEAF, first, last, got);
			for (i = first; i <= last; i++) {
				want = digest_of(image + i * LEAF, i == 10 ? 7 : LEAF);
				assert_true(digest_equal(&got[i - first], &want));
			}
			/* nothing is written behind the last */
			for (; i - first < 11; i++)
				assert_int_equal(got[i - first].b[0], 0xee);
		}
	}
	/* a length that leaves fill exactly has no empty last one */
	digest_leaves(image, 2 * LEAF, LEAF, 1, 1, got);
	want = digest_of(image + LEAF, LEAF);
	assert_true(digest_equal(&got[0], &want));
}

static void test_every_bit_counts(void **state)
{
	uint8_t buf[300];
	struct digest was, is;
	size_t i;

	(void)state;
	test_fill(buf, sizeof(buf), 3);
	was = digest_of(buf, sizeof(buf));
	for (i = 0; i < sizeof(buf) * 8; i++) {
		buf[i / 8] ^= (uint8_t)(1u << i % 8);
		is = digest_of(buf, sizeof(buf));
		assert_false(digest_equal(&was, &is));
		buf[i / 8] ^= (uint8_t)(1u << i % 8);
	}
	is = digest_of(buf, sizeof(buf));
	assert_true(digest_equal(&was, &is));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_digest_vectors),
		cmocka_unit_test(test_stream_equals_whole),
		cmocka_unit_test(test_leaves),
		cmocka_unit_test(test_every_bit_counts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
