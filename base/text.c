/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text.c - see text.h. Pure; any thread.
 */
#include <config.h>

#include "base/text.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Bytes of the character that begins with this one; 0: none does. */
static size_t length_of(unsigned char first)
{
	if (first < 0x80)
		return 1;
	if (first < 0xc2) /* 0xc0, 0xc1: longer than need be */
		return 0;
	return first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
}

/* The second byte of what is too long, a surrogate or above U+10FFFF. */
static bool is_second(unsigned char first, unsigned char second)
{
	return second >= (first == 0xe0   ? 0xa0
			  : first == 0xf0 ? 0x90
					  : 0x80) &&
	       second <= (first == 0xed   ? 0x9f
			  : first == 0xf4 ? 0x8f
					  : 0xbf);
}

/* How many bytes at p, where some are left, begin one character; *ret_whole: all of it. */
static size_t valid(const unsigned char *p, size_t left, bool *ret_whole)
{
	size_t len = length_of(p[0]), n = len > 0;

	while (n < len && n < left && (n == 1 ? is_second(p[0], p[1]) : (p[n] & 0xc0) == 0x80))
		n++;
	*ret_whole = len > 0 && n == len;
	return n;
}

static bool is_control(const unsigned char *p)
{
	return p[0] < 0x20 || p[0] == 0x7f || (p[0] == 0xc2 && p[1] < 0xa0);
}

size_t text_utf8_len(const char *text, size_t len)
{
	size_t i = 0;
	bool whole = true;

	while (i < len) {
		size_t n = valid((const unsigned char *)text + i, len - i, &whole);

		if (!whole)
			break;
		i += n;
	}
	return i;
}

void text_clean(char *text)
{
	unsigned char *p = (unsigned char *)text, *end = p + strlen(text);

	while (*p) {
		bool whole;
		size_t n = valid(p, (size_t)(end - p), &whole);

		if (!whole && n > 0 && p[n] == '\0') {
			*p = '\0'; /* it was cut */
			return;
		}
		if (whole && !is_control(p)) {
			p += n;
			continue;
		}
		for (n = n > 0 ? n : 1; n > 0; n--)
			*p++ = '?';
	}
}

/* A word that is longer than this is cut within. */
#define WORD_MAX 40

void text_shorten(char *buf, size_t size)
{
	static const char mark[] = "...";
	size_t len = strlen(buf), end, from;

	if (size <= sizeof(mark))
		return;
	end = len < size - sizeof(mark) ? len : size - sizeof(mark);
	from = end > WORD_MAX ? end - WORD_MAX : 0;
	for (size_t i = end; i > from; i--) {
		if (buf[i] != ' ')
			continue;
		end = i;
		break;
	}
	end = text_utf8_len(buf, end);
	while (end > 0 && (buf[end - 1] == ' ' || buf[end - 1] == ';' || buf[end - 1] == ','))
		end--;
	memcpy(buf + end, mark, sizeof(mark));
}

void text_put(char *buf, size_t size, const char *text)
{
	if (snprintf(buf, size, "%s", text) >= (int)size)
		text_shorten(buf, size);
}

const char *text_size(char buf[TEXT_SIZE_MAX], uint64_t bytes)
{
	static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	double v = (double)bytes;
	int unit = -1;

	while (v >= 1024 && unit < 5) {
		v /= 1024;
		unit++;
	}
	if (unit < 0)
		snprintf(buf, TEXT_SIZE_MAX, "%" PRIu64 " B", bytes);
	else
		snprintf(buf, TEXT_SIZE_MAX, "%.1f %s", v, units[unit]);
	return buf;
}
