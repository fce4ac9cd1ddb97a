/* SPDX-License-Identifier: Apache-2.0 */
/*
 * span.h - bytes that are being read: words are taken off the front, or split off from behind.
 *
 * Nothing reads beyond len, whatever the bytes are; no terminator is needed. A function that
 * returns false has taken nothing.
 */
#ifndef DETECT_SPAN_H
#define DETECT_SPAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct span {
	const char *at;
	size_t len;
};

bool span_skip(struct span *s, const char *word);      /* off the front */
bool span_skip_past(struct span *s, const char *word); /* all up to it, and it */
bool span_find(struct span s, const char *word);
bool span_ends(struct span s, const char *word);
/* What is before the first of it, which becomes the front; all where there is none. */
struct span span_until(struct span *s, const char *word);
struct span span_word(struct span *s); /* up to a space */
/* What is behind the last of it, and s ends before it; there is none: all, and s stays. */
struct span span_after_last(struct span *s, const char *word);
struct span span_before(struct span s, const char *word); /* the first; all: none */
/* Digits: at least one; false where they are more than max, or 20 and more. */
bool span_decimal(struct span *s, uint64_t max, uint64_t *ret);
bool span_hex(struct span *s, unsigned digits_max, uint64_t *ret);
bool span_is(struct span s, const char *word);
/* 1 to 31 letters, digits, and of "_-.@!/" : what devices and units are called. */
bool span_is_name(struct span s);
/* Terminated, cut to size, without control characters. */
void span_copy(struct span s, char *ret, size_t size);
void span_number(const char *prefix, uint64_t n, char *ret, size_t size);

#endif
