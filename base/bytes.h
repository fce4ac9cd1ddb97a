/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bytes.h - little-endian fields, checked sizes, and cursors over buffers from outside.
 *
 * Every size that comes from outside goes through size_add() or size_mul(), or through a reader,
 * which turns any overrun into one sticky `bad` that is checked once at the end.
 */
#ifndef BASE_BYTES_H
#define BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/err.h"

static inline void put_le16(void *p, uint16_t v)
{
	memcpy(p, &v, sizeof(v));
}
static inline void put_le32(void *p, uint32_t v)
{
	memcpy(p, &v, sizeof(v));
}
static inline void put_le64(void *p, uint64_t v)
{
	memcpy(p, &v, sizeof(v));
}
static inline uint16_t get_le16(const void *p)
{
	uint16_t v;

	memcpy(&v, p, sizeof(v));
	return v;
}
static inline uint32_t get_le32(const void *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return v;
}
static inline uint64_t get_le64(const void *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
	return v;
}
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "formats are little-endian in memory");

/* *ret = a + b or a * b; false, and *ret untouched, on overflow. */
MUST_CHECK static inline bool size_add(uint64_t a, uint64_t b, uint64_t *ret)
{
	uint64_t r;

	if (__builtin_add_overflow(a, b, &r))
		return false;
	*ret = r;
	return true;
}
MUST_CHECK static inline bool size_mul(uint64_t a, uint64_t b, uint64_t *ret)
{
	uint64_t r;

	if (__builtin_mul_overflow(a, b, &r))
		return false;
	*ret = r;
	return true;
}
/* Rounds up to a multiple of a power of two; v must be at least `to` below the maximum. */
static inline uint64_t round_up(uint64_t v, uint64_t to)
{
	return (v + to - 1) & ~(to - 1);
}
static inline uint64_t div_up(uint64_t v, uint64_t by)
{
	return v / by + (v % by != 0);
}
static inline uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}
static inline uint64_t max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* ---- Reading: bad is sticky; after it every get returns 0 or NULL ---- */
struct reader {
	const uint8_t *p, *end;
	bool bad;
};
static inline struct reader reader_of(const void *buf, size_t len)
{
	return (struct reader){ .p = buf, .end = (const uint8_t *)buf + len };
}
static inline size_t reader_left(const struct reader *r)
{
	return r->bad ? 0 : (size_t)(r->end - r->p);
}
/* len bytes in place, or NULL. */
const void *read_bytes(struct reader *r, uint64_t len);
uint8_t read_u8(struct reader *r);
uint16_t read_u16(struct reader *r);
uint32_t read_u32(struct reader *r);
uint64_t read_u64(struct reader *r);
/* A u16 length and that many bytes, without NUL; NULL when longer than max. */
const char *read_str(struct reader *r, size_t max, size_t *ret_len);

/* ---- Writing: grows; a failed allocation makes bad sticky ---- */
struct writer {
	uint8_t *buf;
	size_t len, cap;
	bool bad;
};
void write_bytes(struct writer *w, const void *p, size_t len);
void write_zero(struct writer *w, size_t len);
void write_u8(struct writer *w, uint8_t v);
void write_u16(struct writer *w, uint16_t v);
void write_u32(struct writer *w, uint32_t v);
void write_u64(struct writer *w, uint64_t v);
void write_str(struct writer *w, const char *s, size_t len); /* u16 length, bytes */
void writer_free(struct writer *w);

/* Lower-case hex with NUL: buf holds 2 * len + 1. hex_parse(): exactly len bytes, or -EINVAL. */
void hex_format(char *buf, const void *p, size_t len);
MUST_CHECK int hex_parse(void *p, size_t len, const char *text);

/* Job names, and whatever else reaches a path: [A-Za-z0-9._-]{1,64}, no leading dot. */
bool name_is_safe(const char *name);

#endif
