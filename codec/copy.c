/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.c - plain and digesting copies at the speed of memory.
 *
 * A state is far larger than any cache and nobody reads the copy soon, so stores that bypass the
 * cache pay: they save reading every destination line before it is overwritten. How much depends
 * on the processor; choose() has the rule and the measurements behind it.
 *
 * copy_digest() reads each byte of the source once: a step goes to the destination and, from the
 * same registers, into a small buffer that stays in the first-level cache and is digested there.
 *
 * Invariants:
 * (1) The digest is that of the bytes that were written, even if somebody changes the source
 *     meanwhile: a torn snapshot can be wrong, but it is never taken for silent corruption (I11).
 * (2) Streaming stores are ordered before whatever the caller does next, each loop ends in a store
 *     fence: a message "sealed" cannot overtake the bytes.
 * (3) Nothing outside [dst, dst + len) is written and nothing outside [src, src + len) is read;
 *     prefetches reach behind src, and they cannot fault.
 *
 * Failure modes: none. Any thread, no state: the CPU's features are constants of libgcc.
 */
#include <config.h>

#include "codec/copy.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "codec/digest.h"

#define LINE  64u
#define BLOCK 256u /* what one turn of a streaming loop moves */
/* Of the copy-and-digest loop: the buffer and what is read ahead fit any first-level cache. */
#define STEP (8u << 10)
/* Below: the cache. The copy of a small tensor is then still there when its digest is taken. */
#define STREAM_MIN (16u << 10)
/*
 * Of a row, whose neighbours go beside it: the whole is large. Measured on Zen 5, one thread, every
 * second row of 256 MiB: rows of 8 KiB 3.5 GB/s by memcpy and 5.4 streamed, of 2 KiB 2.3 and 3.5.
 */
#define ROW_STREAM_MIN 1024u
#define LIBC_MIN (16u << 20) /* from here on glibc streams too, by any of its thresholds */

_Static_assert(STEP % BLOCK == 0 && BLOCK % LINE == 0 && STREAM_MIN > BLOCK, "steps nest");

/* ---- Streaming loops: dst is aligned to LINE, len is a multiple of BLOCK ---- */
#ifdef __x86_64__
#include <immintrin.h>

__attribute__((target("avx2"))) static void stream_avx2(uint8_t *dst, const uint8_t *src,
							size_t len)
{
	const __m256i *s = (const void *)src;
	__m256i *d = (void *)dst;
	__m256i a, b, c, e;
	size_t i;

	for (i = 0; i < len / 32; i += 4) {
		a = _mm256_loadu_si256(s + i);
		b = _mm256_loadu_si256(s + i + 1);
		c = _mm256_loadu_si256(s + i + 2);
		e = _mm256_loadu_si256(s + i + 3);
		_mm256_stream_si256(d + i, a);
		_mm256_stream_si256(d + i + 1, b);
		_mm256_stream_si256(d + i + 2, c);
		_mm256_stream_si256(d + i + 3, e);
	}
	_mm_sfence();
}

__attribute__((target("avx512f"))) static void stream_avx512(uint8_t *dst, const uint8_t *src,
							     size_t len)
{
	__m512i a, b, c, e;
	size_t i;

	for (i = 0; i < len; i += 256) {
		a = _mm512_loadu_si512(src + i);
		b = _mm512_loadu_si512(src + i + 64);
		c = _mm512_loadu_si512(src + i + 128);
		e = _mm512_loadu_si512(src + i + 192);
		_mm512_stream_si512((void *)(dst + i), a);
		_mm512_stream_si512((void *)(dst + i + 64), b);
		_mm512_stream_si512((void *)(dst + i + 128), c);
		_mm512_stream_si512((void *)(dst + i + 192), e);
	}
	_mm_sfence();
}

/* The same, and to buf as well; meanwhile the next step is fetched. */
__attribute__((target("avx2"))) static void tee_avx2(uint8_t *dst, uint8_t *buf, const uint8_t *src,
						     size_t len)
{
	const __m256i *s = (const void *)src;
	__m256i *d = (void *)dst, *t = (void *)buf;
	__m256i a, b;
	size_t i;

	for (i = 0; i < len / 32; i += 2) {
		_mm_prefetch(s + i + STEP / 32, _MM_HINT_T0);
		a = _mm256_loadu_si256(s + i);
		b = _mm256_loadu_si256(s + i + 1);
		_mm256_stream_si256(d + i, a);
		_mm256_stream_si256(d + i + 1, b);
		_mm256_store_si256(t + i, a);
		_mm256_store_si256(t + i + 1, b);
	}
	_mm_sfence();
}

__attribute__((target("avx512f"))) static void tee_avx512(uint8_t *dst, uint8_t *buf,
							  const uint8_t *src, size_t len)
{
	__m512i a;
	size_t i;

	for (i = 0; i < len; i += 64) {
		_mm_prefetch(src + i + STEP, _MM_HINT_T0);
		a = _mm512_loadu_si512(src + i);
		_mm512_stream_si512((void *)(dst + i), a);
		_mm512_store_si512(buf + i, a);
	}
	_mm_sfence();
}

#endif

/* ---- Variants ---- */
static void tee_libc(uint8_t *dst, uint8_t *buf, const uint8_t *src, size_t len)
{
	memcpy(buf, src, len);
	memcpy(dst, buf, len);
}

static const struct variant {
	const char *name;
	void (*stream)(uint8_t *dst, const uint8_t *src, size_t len);
	void (*tee)(uint8_t *dst, uint8_t *buf, const uint8_t *src, size_t len);
} variants[COPY_VARIANTS] = {
	[COPY_AUTO] = { .name = "auto" },
	[COPY_LIBC] = { .name = "libc", .tee = tee_libc },
#ifdef __x86_64__
	[COPY_AVX2] = { "avx2", stream_avx2, tee_avx2 },
	[COPY_AVX512] = { "avx512", stream_avx512, tee_avx512 },
#else
	[COPY_AVX2] = { .name = "avx2" },
	[COPY_AVX512] = { .name = "avx512" },
#endif
};

const char *copy_variant_name(enum copy_variant v)
{
	assert(v >= COPY_AUTO && v < COPY_VARIANTS);
	return variants[v].name;
}

int copy_variant_usable(enum copy_variant v)
{
	switch (v) {
	case COPY_AUTO:
	case COPY_LIBC:
		return 1;
#ifdef __x86_64__
	case COPY_AVX2:
		return __builtin_cpu_supports("avx2") != 0;
	case COPY_AVX512:
		return __builtin_cpu_supports("avx512f") != 0;
#else
	case COPY_AVX2:
	case COPY_AVX512:
#endif
	case COPY_VARIANTS:
		break;
	}
	return 0;
}

/*
 * The rule for plain copies, from 512 MiB into a populated memfd, GB/s of one thread:
 *
 *                             memcpy, one call   in pieces   AVX2   AVX-512
 *   AMD Zen 5, glibc 2.36             15.7          15.9      23.6     22.8
 *   Intel Sapphire Rapids             10.1           7.2       9.1      7.1
 *
 * So AVX2 streams wherever it is, but for large copies on Intel; AVX-512 is there to be measured
 * on what comes next. Small copies stay in the cache (STREAM_MIN).
 */
static enum copy_variant choose(size_t len)
{
	if (len < STREAM_MIN || !copy_variant_usable(COPY_AVX2))
		return COPY_LIBC;
#ifdef __x86_64__
	if (len >= LIBC_MIN && __builtin_cpu_is("intel"))
		return COPY_LIBC;
#endif
	return COPY_AVX2;
}

/* Bytes before p is aligned to a cache line. */
static size_t to_line(const void *p)
{
	return -(uintptr_t)p % LINE;
}

static void check(enum copy_variant v, const void *dst, const void *src, size_t len)
{
	uintptr_t d = (uintptr_t)dst, s = (uintptr_t)src;

	assert(copy_variant_usable(v));
	assert(len == 0 || (dst && src));
	assert(d >= s ? d - s >= len : s - d >= len); /* they do not overlap */
}

void copy_large_with(enum copy_variant v, void *dst, const void *src, size_t len)
{
	uint8_t *d = dst;
	const uint8_t *s = src;
	size_t head, body;

	check(v, dst, src, len);
	if (v == COPY_AUTO)
		v = choose(len);
	head = to_line(d);
	if (v == COPY_LIBC || len < head + BLOCK) {
		if (len > 0)
			memcpy(d, s, len);
		return;
	}
	memcpy(d, s, head);
	body = (len - head) & ~(size_t)(BLOCK - 1);
	variants[v].stream(d + head, s + head, body);
	head += body;
	memcpy(d + head, s + head, len - head);
}

void copy_large(void *dst, const void *src, size_t len)
{
	copy_large_with(COPY_AUTO, dst, src, len);
}

void copy_row(void *dst, const void *src, size_t len)
{
	bool stream = len >= ROW_STREAM_MIN && copy_variant_usable(COPY_AVX2);

	copy_large_with(stream ? COPY_AVX2 : COPY_LIBC, dst, src, len);
}

/* At most a step: to dst and to buf, each byte of src read once (1). */
static void tee(enum copy_variant v, uint8_t *dst, uint8_t *buf, const uint8_t *src, size_t len)
{
	size_t body = to_line(dst) == 0 ? len & ~(size_t)(BLOCK - 1) : 0;

	assert(len <= STEP);
	variants[v].tee(dst, buf, src, body);
	tee_libc(dst + body, buf + body, src + body, len - body);
}

struct digest copy_digest_with(enum copy_variant v, void *dst, const void *src, size_t len)
{
	_Alignas(LINE) uint8_t buf[STEP];
	uint8_t *d = dst;
	const uint8_t *s = src;
	struct digest_stream stream;
	size_t n;

	check(v, dst, src, len);
	if (v == COPY_AUTO)
		v = len >= STREAM_MIN && copy_variant_usable(COPY_AVX2) ? COPY_AVX2 : COPY_LIBC;
	digest_begin(&stream);
	for (; len > 0; len -= n, d += n, s += n) {
		n = to_line(d) ? to_line(d) : STEP; /* the first step may align the others */
		n = n < len ? n : len;
		tee(v, d, buf, s, n);
		digest_update(&stream, buf, n);
	}
	return digest_end(&stream);
}

struct digest copy_digest(void *dst, const void *src, size_t len)
{
	return copy_digest_with(COPY_AUTO, dst, src, len);
}
