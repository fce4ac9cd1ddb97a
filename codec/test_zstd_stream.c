/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: what was written is read, in pieces of any size, and what is damaged is refused. */
#include <config.h>

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "codec/zstd_stream.h"
#include "tests/lib/test.h"

#define RAW_LEN (700u << 10)

struct heap {
	uint8_t *buf;
	size_t len, cap, read, step;
};

static int heap_sink(void *arg, const void *buf, size_t len)
{
	struct heap *h = arg;

	if (h->len + len > h->cap)
		return -ENOSPC;
	memcpy(h->buf + h->len, buf, len);
	h->len += len;
	return 0;
}

static long heap_source(void *arg, void *buf, size_t size)
{
	struct heap *h = arg;
	size_t n = h->len - h->read;

	n = n < size ? n : size;
	n = n < h->step ? n : h->step;
	memcpy(buf, h->buf + h->read, n);
	h->read += n;
	return (long)n;
}

/* Half of it compresses well, half does not. */
static uint8_t *raw_new(void)
{
	uint8_t *raw = alloc_zero(RAW_LEN);

	assert_non_null(raw);
	test_fill(raw + RAW_LEN / 2, RAW_LEN / 2, 7);
	return raw;
}

static void compress(struct heap *h, const uint8_t *raw, size_t len, bool end)
{
	struct zstd_out *z = NULL;

	assert_int_equal(zstd_out_new(1, heap_sink, h, &z), 0);
	for (size_t at = 0; at < len; at += 1000)
		assert_int_equal(zstd_out_write(z, raw + at, len - at < 1000 ? len - at : 1000), 0);
	assert_int_equal(zstd_out_flush(z, end), 0);
	zstd_out_free(z);
}

/* Reads all, which is raw (NULL: it may be anything), and returns how much; the last result goes to
 * *ret. */
static size_t read_all(struct heap *h, const uint8_t *raw, size_t raw_len, size_t piece, long *ret)
{
	CLEANUP_FREE uint8_t *buf = alloc_zero(piece);
	struct zstd_in *z = NULL;
	uint8_t head[8];
	size_t at = 0;
	long n;

	assert_non_null(buf);
	h->read = 0;
	n = heap_source(h, head, sizeof(head));
	assert_true(zstd_is_frame(head, (size_t)n));
	assert_int_equal(zstd_in_new(head, (size_t)n, heap_source, h, &z), 0);
	while ((n = zstd_in_read(z, buf, piece)) > 0) {
		assert_true(at + (size_t)n <= raw_len);
		if (raw)
			assert_memory_equal(buf, raw + at, (size_t)n);
		at += (size_t)n;
	}
	zstd_in_free(z);
	*ret = n;
	return at;
}

static void test_round_trip(void **state)
{
	CLEANUP_FREE uint8_t *raw = raw_new();
	CLEANUP_FREE uint8_t *buf = alloc_zero(2 * RAW_LEN);
	struct heap h = {.buf = buf, .cap = 2 * RAW_LEN, .step = 8};
	long r;

	(void)state;
	compress(&h, raw, RAW_LEN / 3, true);
	compress(&h, raw + RAW_LEN / 3, RAW_LEN - RAW_LEN / 3, true);
	assert_true(h.len < RAW_LEN * 2 / 3);
	assert_int_equal(read_all(&h, raw, RAW_LEN, 4099, &r), RAW_LEN);
	assert_int_equal(r, 0);
	h.step = SIZE_MAX;
	assert_int_equal(read_all(&h, raw, RAW_LEN, RAW_LEN, &r), RAW_LEN);
	assert_int_equal(r, 0);
}

static void test_cut_off(void **state)
{
	CLEANUP_FREE uint8_t *raw = raw_new();
	CLEANUP_FREE uint8_t *buf = alloc_zero(2 * RAW_LEN);
	struct heap h = {.buf = buf, .cap = 2 * RAW_LEN, .step = 4096};
	long r;

	(void)state;
	/* Flushed but not ended: all of it can be read, and that it was cut is said. */
	compress(&h, raw, RAW_LEN, false);
	assert_int_equal(read_all(&h, raw, RAW_LEN, 5000, &r), RAW_LEN);
	assert_int_equal(r, CKPT_ECORRUPT);
	h.len = 0;
	compress(&h, raw, RAW_LEN, true);
	h.buf[h.len / 2] ^= 0x40;
	assert_true(read_all(&h, NULL, RAW_LEN, 5000, &r) <= RAW_LEN);
	assert_int_equal(r, CKPT_ECORRUPT);
	h.len = 0;
	assert_int_equal(heap_sink(&h, "no such thing", 13), 0);
	assert_false(zstd_is_frame(h.buf, h.len));
}

static void test_sink_fails(void **state)
{
	CLEANUP_FREE uint8_t *raw = raw_new();
	uint8_t small[64];
	struct heap h = {.buf = small, .cap = sizeof(small)};
	struct zstd_out *z = NULL;

	(void)state;
	assert_int_equal(zstd_out_new(1, heap_sink, &h, &z), 0);
	assert_int_equal(zstd_out_write(z, raw, RAW_LEN), -ENOSPC);
	zstd_out_free(z);
	zstd_out_free(NULL);
	zstd_in_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_cut_off),
		cmocka_unit_test(test_sink_fails),
	};

	return cmocka_run_group_tests_name("zstd_stream", tests, NULL, NULL);
}
