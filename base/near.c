/* SPDX-License-Identifier: Apache-2.0 */
/*
 * near.c - see near.h. Distance is that of optimal string alignment: letters that are missing, too
 * many, wrong, or two neighbours that are exchanged count one each. A word of up to three letters
 * may have one such mistake, a longer one two. Pure; any thread.
 */
#include <config.h>

#include "base/near.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static size_t min_of(size_t a, size_t b)
{
	return a < b ? a : b;
}

static size_t distance_of(const char *a, size_t n, const char *b, size_t m)
{
	size_t rows[3][NEAR_WORD_MAX + 1];

	assert(n <= NEAR_WORD_MAX && m <= NEAR_WORD_MAX);
	for (size_t k = 0; k <= m; k++)
		rows[0][k] = k;
	for (size_t i = 1; i <= n; i++) {
		size_t *at = rows[i % 3], *above = rows[(i + 2) % 3], *two = rows[(i + 1) % 3];

		at[0] = i;
		for (size_t k = 1; k <= m; k++) {
			at[k] = min_of(min_of(at[k - 1], above[k]) + 1,
				       above[k - 1] + (a[i - 1] != b[k - 1]));
			if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1])
				at[k] = min_of(at[k], two[k - 2] + 1);
		}
	}
	return rows[n % 3][m];
}

void near_begin(struct near *n, const char *word)
{
	*n = (struct near){.word = word, .distance = strlen(word) <= 3 ? 2 : 3};
}

void near_try(struct near *n, const char *candidate)
{
	size_t len = strlen(n->word), other = strlen(candidate), d;

	if (len > NEAR_WORD_MAX || other > NEAR_WORD_MAX || other == 0)
		return;
	d = distance_of(n->word, len, candidate, other);
	if (d == 0 || d >= n->distance || d >= other)
		return;
	n->distance = d;
	memcpy(n->best, candidate, other + 1);
}

const char *near_text(const struct near *n, char buf[NEAR_TEXT_MAX])
{
	snprintf(buf, NEAR_TEXT_MAX, n->best[0] ? " (did you mean '%s'?)" : "%s", n->best);
	return buf;
}
