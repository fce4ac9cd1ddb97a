/* SPDX-License-Identifier: Apache-2.0 */
/*
 * near.h - "did you mean": which of some words a misspelt one may stand for.
 */
#ifndef BASE_NEAR_H
#define BASE_NEAR_H

#include <stddef.h>

#define NEAR_WORD_MAX 80 /* longer words are never near */

struct near {
	const char *word;
	char best[NEAR_WORD_MAX + 1]; /* the first of the nearest; "": none is near */
	size_t distance;
};

/* word outlives it. */
void near_begin(struct near *n, const char *word);
void near_try(struct near *n, const char *candidate);

/* " (did you mean 'WORD'?)", or "". */
#define NEAR_TEXT_MAX (NEAR_WORD_MAX + 32)
const char *near_text(const struct near *n, char buf[NEAR_TEXT_MAX]);

#endif
