/* SPDX-License-Identifier: Apache-2.0 */
/*
 * texts.c - see texts.h: blocks that are filled one after the other and never move.
 */
#include <config.h>

#include "tools/texts.h"

#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"

#define BLOCK_BYTES (64u << 10)

struct texts_block {
	struct texts_block *before;
	size_t used, room;
	char bytes[];
};

char *texts_keep(struct texts *t, const char *text, size_t len)
{
	struct texts_block *b = t->last;
	uint64_t all = 0;
	char *to;

	if (!b || len >= b->room - b->used) {
		size_t room = max_u64(BLOCK_BYTES, len) + 1;

		if (!size_add(room, sizeof(*b), &all))
			return NULL;
		b = alloc_zero(all);
		if (!b)
			return NULL;
		*b = (struct texts_block){.before = t->last, .room = room};
		t->last = b;
	}
	to = b->bytes + b->used;
	if (len > 0)
		memcpy(to, text, len);
	to[len] = '\0';
	b->used += len + 1;
	return to;
}

void texts_fini(struct texts *t)
{
	while (t->last) {
		struct texts_block *before = t->last->before;

		alloc_free(t->last);
		t->last = before;
	}
}
