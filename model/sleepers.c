/* SPDX-License-Identifier: Apache-2.0 */
/* sleepers.c - a heap by names. Pure; one thread per struct. No failure modes. */
#include <config.h>

#include "model/sleepers.h"

#include <assert.h>
#include <stdbool.h>

#include "model/tensor.h"

static bool sooner(const struct sleepers *s, uint32_t a, uint32_t b)
{
	uint32_t a_len, b_len;
	const char *a_name = s->name(s->arg, a, &a_len), *b_name = s->name(s->arg, b, &b_len);

	return name_compare(a_name, a_len, b_name, b_len) < 0;
}

void sleepers_put(struct sleepers *s, uint32_t who)
{
	uint32_t at = s->n++;

	for (; at > 0 && sooner(s, who, s->who[(at - 1) / 2]); at = (at - 1) / 2)
		s->who[at] = s->who[(at - 1) / 2];
	s->who[at] = who;
}

uint32_t sleepers_take(struct sleepers *s)
{
	uint32_t first, last, at = 0, child;

	assert(s->n > 0);
	first = s->who[0];
	last = s->who[--s->n];
	while ((child = 2 * at + 1) < s->n) {
		if (child + 1 < s->n && sooner(s, s->who[child + 1], s->who[child]))
			child++;
		if (!sooner(s, s->who[child], last))
			break;
		s->who[at] = s->who[child];
		at = child;
	}
	s->who[at] = last;
	return first;
}
