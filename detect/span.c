/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "detect/span.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static bool starts(struct span s, const char *word, size_t len)
{
	return s.len >= len && memcmp(s.at, word, len) == 0;
}

/* Where it is; s.len: nowhere. */
static size_t place_of(struct span s, const char *word)
{
	const char *found = memmem(s.at, s.len, word, strlen(word));

	return found ? (size_t)(found - s.at) : s.len;
}

static void drop(struct span *s, size_t n)
{
	assert(n <= s->len);
	s->at += n;
	s->len -= n;
}

bool span_skip(struct span *s, const char *word)
{
	size_t len = strlen(word);

	if (!starts(*s, word, len))
		return false;
	drop(s, len);
	return true;
}

bool span_skip_past(struct span *s, const char *word)
{
	size_t at = place_of(*s, word);

	if (at == s->len)
		return false;
	drop(s, at + strlen(word));
	return true;
}

bool span_find(struct span s, const char *word)
{
	return place_of(s, word) < s.len;
}

bool span_ends(struct span s, const char *word)
{
	size_t len = strlen(word);

	return s.len >= len && memcmp(s.at + s.len - len, word, len) == 0;
}

struct span span_until(struct span *s, const char *word)
{
	struct span before = {s->at, place_of(*s, word)};

	drop(s, before.len);
	return before;
}

struct span span_word(struct span *s)
{
	return span_until(s, " ");
}

struct span span_after_last(struct span *s, const char *word)
{
	size_t len = strlen(word);
	struct span after = *s;

	for (size_t at = s->len < len ? 0 : s->len - len + 1; at-- > 0;) {
		if (memcmp(s->at + at, word, len) != 0)
			continue;
		drop(&after, at + len);
		s->len = at;
		break;
	}
	return after;
}

struct span span_before(struct span s, const char *word)
{
	return span_until(&s, word);
}

bool span_decimal(struct span *s, uint64_t max, uint64_t *ret)
{
	uint64_t n = 0;
	size_t i;

	for (i = 0; i < s->len && s->at[i] >= '0' && s->at[i] <= '9'; i++)
		if (i >= 20 || __builtin_mul_overflow(n, 10, &n) ||
		    __builtin_add_overflow(n, (uint64_t)(s->at[i] - '0'), &n))
			return false;
	if (i == 0 || n > max)
		return false;
	drop(s, i);
	*ret = n;
	return true;
}

bool span_hex(struct span *s, unsigned digits_max, uint64_t *ret)
{
	uint64_t n = 0;
	size_t i;

	assert(digits_max <= 16);
	for (i = 0; i < s->len; i++) {
		char c = s->at[i];
		unsigned v;

		if (c >= '0' && c <= '9')
			v = (unsigned)(c - '0');
		else if (c >= 'a' && c <= 'f')
			v = (unsigned)(c - 'a') + 10;
		else if (c >= 'A' && c <= 'F')
			v = (unsigned)(c - 'A') + 10;
		else
			break;
		if (i >= digits_max)
			return false;
		n = n << 4 | v;
	}
	if (i == 0)
		return false;
	drop(s, i);
	*ret = n;
	return true;
}

bool span_is(struct span s, const char *word)
{
	return s.len == strlen(word) && memcmp(s.at, word, s.len) == 0;
}

bool span_is_name(struct span s)
{
	if (s.len == 0 || s.len > 31)
		return false;
	for (size_t i = 0; i < s.len; i++) {
		char c = s.at[i];

		if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
		      memchr("_-.@!/", c, 6)))
			return false;
	}
	return true;
}

void span_copy(struct span s, char *ret, size_t size)
{
	size_t n = s.len < size ? s.len : size - 1;

	assert(size > 0);
	for (size_t i = 0; i < n; i++)
		ret[i] = (unsigned char)s.at[i] < ' ' || s.at[i] == 127 ? '?' : s.at[i];
	ret[n] = '\0';
}

void span_number(const char *prefix, uint64_t n, char *ret, size_t size)
{
	snprintf(ret, size, "%s%" PRIu64, prefix, n);
}
