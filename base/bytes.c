/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "base/bytes.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>

#include "base/alloc.h"

const void *read_bytes(struct reader *r, uint64_t len)
{
	const void *p = r->p;

	if (r->bad || len > (uint64_t)(r->end - r->p)) {
		r->bad = true;
		return NULL;
	}
	r->p += len;
	return p;
}

uint8_t read_u8(struct reader *r)
{
	const uint8_t *p = read_bytes(r, 1);

	return p ? *p : 0;
}

uint16_t read_u16(struct reader *r)
{
	const void *p = read_bytes(r, 2);

	return p ? get_le16(p) : 0;
}

uint32_t read_u32(struct reader *r)
{
	const void *p = read_bytes(r, 4);

	return p ? get_le32(p) : 0;
}

uint64_t read_u64(struct reader *r)
{
	const void *p = read_bytes(r, 8);

	return p ? get_le64(p) : 0;
}

const char *read_str(struct reader *r, size_t max, size_t *ret_len)
{
	uint16_t len = read_u16(r);
	const char *s;

	if (len > max)
		r->bad = true;
	s = read_bytes(r, len);
	if (s)
		*ret_len = len;
	return s;
}

#define LARGE_BYTES ((size_t)1 << 20)

static bool writer_reserve(struct writer *w, size_t len)
{
	size_t want = w->len + len, cap = w->cap ? w->cap : 256;
	uint8_t *buf;

	if (w->bad || want < len) {
		w->bad = true;
		return false;
	}
	if (want <= w->cap)
		return true;
	while (cap < want) /* a large block grows by moving pages: half of it is not left unused */
		cap = cap < LARGE_BYTES ? 2 * cap : cap + cap / 4;
	buf = alloc_resize(w->buf, cap);
	if (!buf) {
		w->bad = true;
		return false;
	}
	w->buf = buf;
	w->cap = cap;
	return true;
}

void write_bytes(struct writer *w, const void *p, size_t len)
{
	if (len == 0 || !writer_reserve(w, len))
		return;
	memcpy(w->buf + w->len, p, len);
	w->len += len;
}

void write_zero(struct writer *w, size_t len)
{
	if (len == 0 || !writer_reserve(w, len))
		return;
	memset(w->buf + w->len, 0, len);
	w->len += len;
}

void write_u8(struct writer *w, uint8_t v)
{
	write_bytes(w, &v, 1);
}

void write_u16(struct writer *w, uint16_t v)
{
	uint8_t b[2];

	put_le16(b, v);
	write_bytes(w, b, sizeof(b));
}

void write_u32(struct writer *w, uint32_t v)
{
	uint8_t b[4];

	put_le32(b, v);
	write_bytes(w, b, sizeof(b));
}

void write_u64(struct writer *w, uint64_t v)
{
	uint8_t b[8];

	put_le64(b, v);
	write_bytes(w, b, sizeof(b));
}

void write_str(struct writer *w, const char *s, size_t len)
{
	assert(len <= UINT16_MAX);
	write_u16(w, (uint16_t)len);
	write_bytes(w, s, len);
}

void writer_free(struct writer *w)
{
	alloc_free(w->buf);
	*w = (struct writer){ 0 };
}

void hex_format(char *buf, const void *p, size_t len)
{
	static const char digits[] = "0123456789abcdef";
	const uint8_t *b = p;

	for (size_t i = 0; i < len; i++) {
		buf[2 * i] = digits[b[i] >> 4];
		buf[2 * i + 1] = digits[b[i] & 15];
	}
	buf[2 * len] = '\0';
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return -1;
}

int hex_parse(void *p, size_t len, const char *text)
{
	uint8_t *b = p;

	if (strlen(text) != 2 * len)
		return -EINVAL;
	for (size_t i = 0; i < len; i++) {
		int hi = hex_digit(text[2 * i]), lo = hex_digit(text[2 * i + 1]);

		if (hi < 0 || lo < 0)
			return -EINVAL;
		b[i] = (uint8_t)(hi << 4 | lo);
	}
	return 0;
}

bool name_is_safe(const char *name)
{
	size_t len = strlen(name);

	if (len == 0 || len > CKPT_JOB_MAX || name[0] == '.')
		return false;
	for (size_t i = 0; i < len; i++)
		if (!isalnum((unsigned char)name[i]) && !strchr("._-", name[i]))
			return false;
	return true;
}
