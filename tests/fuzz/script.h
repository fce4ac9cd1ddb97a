/* SPDX-License-Identifier: Apache-2.0 */
/*
 * script.h - inputs that are lines of text, so that a seed can be read and written by hand:
 *
 *   WORD NUMBER...[^PATCH]
 *
 * A target makes something valid of word and numbers, then damages it by the patch: the rest of
 * the line in threes, of which two bytes choose a place and the third changes it by exclusive or.
 */
#ifndef TESTS_FUZZ_SCRIPT_H
#define TESTS_FUZZ_SCRIPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SCRIPT_NUMBERS 8

struct script {
	const uint8_t *at, *end;
};

struct script_line {
	char word[12];
	uint64_t number[SCRIPT_NUMBERS];
	unsigned n; /* numbers that were given */
	const uint8_t *patch;
	size_t patch_len;
};

/* The next line; false: there is none. */
bool script_next(struct script *s, struct script_line *ret);
/* The i-th number, or what it is where it is not given. */
uint64_t script_number(const struct script_line *l, unsigned i, uint64_t otherwise);
void script_patch(const struct script_line *l, uint8_t *bytes, size_t len);

#endif
