/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "client/arena.h"

#include <assert.h>
#include <errno.h>
#include <stdalign.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"

#define ALIGN alignof(max_align_t)

struct arena_block {
	struct arena_block *next;
	alignas(max_align_t) uint8_t bytes[];
};

int arena_init(struct arena *a)
{
	uint8_t *base = alloc_zero(ARENA_BYTES);

	if (!base)
		return -ENOMEM;
	memset(base, 0xa5, ARENA_BYTES); /* the first save must not be the one that touches it */
	*a = (struct arena){ .base = base };
	return 0;
}

void arena_reset(struct arena *a)
{
	while (a->more) {
		struct arena_block *b = a->more;

		a->more = b->next;
		alloc_free(b);
	}
	a->more_bytes = 0;
	a->used = 0;
}

void arena_fini(struct arena *a)
{
	arena_reset(a);
	alloc_free(a->base);
	*a = (struct arena){ 0 };
}

static void *alloc_more(struct arena *a, size_t size)
{
	struct arena_block *b;

	if (size > ARENA_BYTES_MAX - a->more_bytes)
		return NULL;
	b = alloc_zero(sizeof(*b) + size);
	if (!b)
		return NULL;
	b->next = a->more;
	a->more = b;
	a->more_bytes += size;
	return b->bytes;
}

void *arena_alloc(struct arena *a, size_t size)
{
	uint8_t *p;

	assert(a->base && a->used <= ARENA_BYTES);
	if (size > ARENA_BYTES_MAX)
		return NULL;
	size = round_up(size, ALIGN);
	if (size > ARENA_BYTES - a->used)
		return alloc_more(a, size);
	p = a->base + a->used;
	a->used += size;
	return p;
}
