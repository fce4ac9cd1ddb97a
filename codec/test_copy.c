/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every copy variant that this CPU has, at every alignment, against what memcmp and a digest of the
 * source say; and what copy_digest() promises when the source changes under it.
 */
#include <config.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "codec/copy.h"
#include "codec/digest.h"
#include "tests/lib/test.h"

#define CANARY 0xa5
#define MARGIN 320 /* more than a block of the streaming loops */

static void assert_canaries(const uint8_t *area, size_t from, size_t to)
{
	size_t i;

	for (i = from; i < to; i++)
		if (area[i] != CANARY)
			fail_msg("byte %zu was written, outside the copy", i);
}

/* One copy into the middle of an area of canaries; with_digest: by copy_digest(). */
static void check_one(enum copy_variant v, uint8_t *area, size_t at, const uint8_t *src, size_t len,
		      bool with_digest)
{
	struct digest got, want;

	memset(area, CANARY, at + len + MARGIN);
	if (with_digest) {
		got = copy_digest_with(v, area + at, src, len);
		want = digest_of(src, len);
		assert_true(digest_equal(&got, &want));
	} else {
		copy_large_with(v, area + at, src, len);
	}
	if (memcmp(area + at, src, len) != 0)
		fail_msg("%s: %zu bytes to offset %zu differ", copy_variant_name(v), len, at);
	assert_canaries(area, 0, at);
	assert_canaries(area, at + len, at + len + MARGIN);
}

/* All alignments of the destination with some of the source and the other way round. */
static void check_alignments(enum copy_variant v, bool with_digest)
{
	enum { MAX = 4096 };
	static _Alignas(64) uint8_t src[MAX + 64], area[MAX + 64 + 2 * MARGIN];
	size_t a, len;

	test_fill(src, sizeof(src), 5);
	for (a = 0; a < 64; a++) {
		/* each alignment sees every residue of the block and of the step */
		for (len = 0; len <= MAX; len += len < 600 ? 1 : 61) {
			check_one(v, area, MARGIN + a, src + (a * 7 + len) % 64, len, with_digest);
			check_one(v, area, MARGIN + (a * 7 + len) % 64, src + a, len, with_digest);
		}
	}
	for (len = 0; len <= MAX; len++)
		check_one(v, area, MARGIN, src, len, with_digest);
}

/* Around the sizes at which something changes. */
static void check_sizes(enum copy_variant v, bool with_digest)
{
	static const size_t around[] = { 8u << 10, 16u << 10, 64u << 10, 1u << 20, 16u << 20 };
	const size_t max = (16u << 20) + 1000;
	CLEANUP_FREE uint8_t *src = alloc_zero(max + 64);
	CLEANUP_FREE uint8_t *area = alloc_zero(max + 64 + 2 * MARGIN);
	size_t i;
	int d;

	assert_non_null(src);
	assert_non_null(area);
	test_fill(src, max + 64, 6);
	for (i = 0; i < sizeof(around) / sizeof(around[0]); i++) {
		for (d = -65; d <= 300; d += around[i] > 100000 ? 73 : 1) {
			size_t len = around[i] + (size_t)(ptrdiff_t)d;

			check_one(v, area, MARGIN + (size_t)(d + 65) % 64, src + i, len,
				  with_digest);
		}
	}
}

static void for_each_variant(void (*check)(enum copy_variant v, bool with_digest))
{
	int v;

	for (v = COPY_AUTO; v < COPY_VARIANTS; v++) {
		if (!copy_variant_usable((enum copy_variant)v)) {
			printf("this CPU has no %s\n", copy_variant_name((enum copy_variant)v));
			continue;
		}
		check((enum copy_variant)v, false);
		check((enum copy_variant)v, true);
	}
}

static void test_alignments(void **state)
{
	(void)state;
	for_each_variant(check_alignments);
}

static void test_sizes(void **state)
{
	(void)state;
	for_each_variant(check_sizes);
}

/* Reads up to the last byte of a page that has nothing behind it, writes likewise (3). */
static void check_page_ends(enum copy_variant v, bool with_digest)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE), size = 5 * page;
	uint8_t *map[2];
	struct digest d, want;
	size_t len, i;

	for (i = 0; i < 2; i++) {
		map[i] = mmap(NULL, size + page, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		assert_ptr_not_equal(map[i], MAP_FAILED);
		assert_int_equal(mprotect(map[i] + size, page, PROT_NONE), 0);
	}
	test_fill(map[0], size, 8);
	for (len = 0; len <= size; len += len < 700 ? 1 : 997) {
		uint8_t *src = map[0] + size - len, *dst = map[1] + size - len;

		memset(map[1], 0, size);
		if (with_digest) {
			d = copy_digest_with(v, dst, src, len);
			want = digest_of(src, len);
			assert_true(digest_equal(&d, &want));
		} else {
			copy_large_with(v, dst, src, len);
		}
		assert_memory_equal(dst, src, len);
	}
	for (i = 0; i < 2; i++)
		assert_int_equal(munmap(map[i], size + page), 0);
}

static void test_page_ends(void **state)
{
	(void)state;
	for_each_variant(check_page_ends);
}

static void test_auto_equals_plain_calls(void **state)
{
	static uint8_t src[100000], a[100000], b[100000];
	struct digest d, want;

	(void)state;
	test_fill(src, sizeof(src), 9);
	copy_large(a, src, sizeof(src));
	d = copy_digest(b, src, sizeof(src));
	want = digest_of(src, sizeof(src));
	assert_true(digest_equal(&d, &want));
	assert_memory_equal(a, src, sizeof(src));
	assert_memory_equal(b, src, sizeof(src));
	for (size_t len = 0; len < 5000; len += 1 + len / 7) { /* rows beside each other */
		memset(a, 0, sizeof(a));
		for (size_t at = 0; len && at + len <= sizeof(a); at += len)
			copy_row(a + at, src + at, len);
		if (len)
			assert_memory_equal(a, src, sizeof(a) / len * len);
	}
	assert_string_equal(copy_variant_name(COPY_LIBC), "libc");
	assert_false(copy_variant_usable(COPY_VARIANTS));
}

/* ---- (1): the digest is that of the bytes written, whatever happens to the source ---- */
struct scribbler {
	volatile uint64_t *words;
	size_t n;
	atomic_bool running, stop;
};

static void *scribble(void *arg)
{
	struct scribbler *s = arg;
	uint64_t value = 1;
	size_t i;

	while (!atomic_load(&s->stop)) {
		for (i = 0; i < s->n; i++)
			s->words[i] = value;
		value++;
		atomic_store(&s->running, true);
	}
	return NULL;
}

static void test_digest_is_of_what_was_written(void **state)
{
	enum { LEN = 64 << 10, ROUNDS = 300 };
	static _Alignas(64) uint64_t src[LEN / 8];
	static _Alignas(64) uint8_t dst[LEN];
	struct scribbler s = { .words = src, .n = LEN / 8 };
	pthread_t thread;
	struct digest d, want;
	int v, round;

#ifdef __SANITIZE_THREAD__
	skip(); /* the race is what is tested */
#endif
	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, scribble, &s), 0);
	while (!atomic_load(&s.running))
		sched_yield();
	for (v = COPY_AUTO; v < COPY_VARIANTS; v++) {
		if (!copy_variant_usable((enum copy_variant)v))
			continue;
		for (round = 0; round < ROUNDS; round++) {
			d = copy_digest_with((enum copy_variant)v, dst, src, LEN);
			want = digest_of(dst, LEN);
			assert_true(digest_equal(&d, &want));
		}
	}
	atomic_store(&s.stop, true);
	assert_int_equal(pthread_join(thread, NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_alignments),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_page_ends),
		cmocka_unit_test(test_auto_equals_plain_calls),
		cmocka_unit_test(test_digest_is_of_what_was_written),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
