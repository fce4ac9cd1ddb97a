/* SPDX-License-Identifier: Apache-2.0 */
/*
 * planes.c - see planes.h. SSE2 belongs to every x86-64 and does 16 elements at a time; the plain
 * loops do what is left, and everything on other machines. Pure functions; they cannot fail.
 */
#include <config.h>

#include "codec/planes.h"

#include <assert.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

static __m128i load(const uint8_t *p)
{
	return _mm_loadu_si128((const void *)p);
}

static void store(uint8_t *p, __m128i v)
{
	_mm_storeu_si128((void *)p, v);
}

/* The low and the high bytes of sixteen 16-bit words. */
static __m128i low_bytes(__m128i a, __m128i b)
{
	const __m128i mask = _mm_set1_epi16(0xff);

	return _mm_packus_epi16(_mm_and_si128(a, mask), _mm_and_si128(b, mask));
}

static __m128i high_bytes(__m128i a, __m128i b)
{
	return _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8));
}

/* Each returns how many elements it did. */
static size_t split2_fast(uint8_t *to, const uint8_t *from, size_t n)
{
	__m128i a, b;
	size_t i;

	for (i = 0; i + 16 <= n; i += 16) {
		a = load(from + 2 * i);
		b = load(from + 2 * i + 16);
		store(to + i, low_bytes(a, b));
		store(to + n + i, high_bytes(a, b));
	}
	return i;
}

static size_t join2_fast(uint8_t *to, const uint8_t *from, size_t n)
{
	__m128i low, high;
	size_t i;

	for (i = 0; i + 16 <= n; i += 16) {
		low = load(from + i);
		high = load(from + n + i);
		store(to + 2 * i, _mm_unpacklo_epi8(low, high));
		store(to + 2 * i + 16, _mm_unpackhi_epi8(low, high));
	}
	return i;
}

static size_t split4_fast(uint8_t *to, const uint8_t *from, size_t n)
{
	__m128i a, b, c, d, even_ab, even_cd, odd_ab, odd_cd;
	size_t i;

	for (i = 0; i + 16 <= n; i += 16) {
		a = load(from + 4 * i);
		b = load(from + 4 * i + 16);
		c = load(from + 4 * i + 32);
		d = load(from + 4 * i + 48);
		even_ab = low_bytes(a, b); /* bytes 0 and 2 of eight elements, by turns */
		even_cd = low_bytes(c, d);
		odd_ab = high_bytes(a, b); /* bytes 1 and 3 */
		odd_cd = high_bytes(c, d);
		store(to + i, low_bytes(even_ab, even_cd));
		store(to + n + i, low_bytes(odd_ab, odd_cd));
		store(to + 2 * n + i, high_bytes(even_ab, even_cd));
		store(to + 3 * n + i, high_bytes(odd_ab, odd_cd));
	}
	return i;
}

static size_t join4_fast(uint8_t *to, const uint8_t *from, size_t n)
{
	__m128i p0, p1, p2, p3, low, high;
	size_t i;

	for (i = 0; i + 16 <= n; i += 16) {
		p0 = load(from + i);
		p1 = load(from + n + i);
		p2 = load(from + 2 * n + i);
		p3 = load(from + 3 * n + i);
		low = _mm_unpacklo_epi8(p0, p1);
		high = _mm_unpacklo_epi8(p2, p3);
		store(to + 4 * i, _mm_unpacklo_epi16(low, high));
		store(to + 4 * i + 16, _mm_unpackhi_epi16(low, high));
		low = _mm_unpackhi_epi8(p0, p1);
		high = _mm_unpackhi_epi8(p2, p3);
		store(to + 4 * i + 32, _mm_unpacklo_epi16(low, high));
		store(to + 4 * i + 48, _mm_unpackhi_epi16(low, high));
	}
	return i;
}
#else
static size_t none_fast(uint8_t *to, const uint8_t *from, size_t n)
{
	(void)to;
	(void)from;
	(void)n;
	return 0;
}
#define split2_fast none_fast
#define join2_fast  none_fast
#define split4_fast none_fast
#define join4_fast  none_fast
#endif

void planes_split(void *planes, const void *elements, size_t len, uint32_t element)
{
	uint8_t *to = planes;
	const uint8_t *from = elements;
	size_t n, i;
	uint32_t p;

	assert(element == 2 || element == 4);
	assert(len == 0 || (planes && elements && planes != elements));
	if (len == 0)
		return;
	n = len / element;
	i = element == 2 ? split2_fast(to, from, n) : split4_fast(to, from, n);
	for (; i < n; i++)
		for (p = 0; p < element; p++)
			to[p * n + i] = from[i * element + p];
	memcpy(to + n * element, from + n * element, len % element);
}

void planes_join(void *elements, const void *planes, size_t len, uint32_t element)
{
	uint8_t *to = elements;
	const uint8_t *from = planes;
	size_t n, i;
	uint32_t p;

	assert(element == 2 || element == 4);
	assert(len == 0 || (planes && elements && planes != elements));
	if (len == 0)
		return;
	n = len / element;
	i = element == 2 ? join2_fast(to, from, n) : join4_fast(to, from, n);
	for (; i < n; i++)
		for (p = 0; p < element; p++)
			to[i * element + p] = from[p * n + i];
	memcpy(to + n * element, from + n * element, len % element);
}
