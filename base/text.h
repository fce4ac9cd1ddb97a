/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text.h - text that came from outside: is it UTF-8, and what quotes it made fit for terminals and
 * JSON. The latter once, where a sentence is made: after that nobody need ask again. And numbers of
 * bytes for sentences.
 */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* How many bytes at the beginning are UTF-8 (RFC 3629: nothing longer than need be, no surrogates,
 * nothing above U+10FFFF): len if all are. */
size_t text_utf8_len(const char *text, size_t len);

/* In place. What is no UTF-8, and control characters (those from U+0080 to U+009F too), become '?',
 * a byte each; a last character that was cut goes. */
void text_clean(char *text);

/* buf of size bytes has a sentence that did not fit in it: its end becomes "..." behind a word. */
void text_shorten(char *buf, size_t size);
/* A sentence into buf of size bytes, shortened if it does not fit. */
void text_put(char *buf, size_t size, const char *text);

/* Bytes for people: "17 B", "1.5 GiB". */
#define TEXT_SIZE_MAX 32
const char *text_size(char buf[TEXT_SIZE_MAX], uint64_t bytes);

#endif
