/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena.c - arena.h. What is left of a chunk when the next is begun is not used.
 *
 * Failure modes: no memory, or the limit is reached: the block is refused, the others stay.
 */
#include <config.h>

#include "base/arena.h"

#include <assert.h>

#include "base/alloc.h"
#include "base/bytes.h"

struct arena_chunk {
	struct arena_chunk *next;
	uint8_t bytes[] __attribute__((aligned(ARENA_ALIGN)));
};

void arena_init(struct arena *a, void *first, size_t size, size_t limit)
{
	assert((uintptr_t)first % ARENA_ALIGN == 0);
	*a = (struct arena){.at = first, .left = size, .may_take = limit};
}

/* One in which a block of this size fits. */
static bool take_chunk(struct arena *a, size_t block)
{
	size_t size = block > ARENA_CHUNK ? block : ARENA_CHUNK;
	struct arena_chunk *c = size <= a->may_take ? alloc_zero(sizeof(*c) + size) : NULL;

	if (!c)
		return false;
	c->next = a->chunks;
	a->chunks = c;
	a->may_take -= size;
	a->at = c->bytes;
	a->left = size;
	return true;
}

void *arena_take(struct arena *a, size_t size)
{
	void *block;

	if (size > SIZE_MAX / 2)
		return NULL;
	size = (size_t)round_up(size, ARENA_ALIGN);
	if (size > a->left && !take_chunk(a, size))
		return NULL;
	block = a->at;
	a->at += size;
	a->left -= size;
	return block;
}

void arena_fini(struct arena *a)
{
	while (a->chunks) {
		struct arena_chunk *c = a->chunks;

		a->chunks = c->next;
		alloc_free(c);
	}
}

void *arena_lib_take(void *arena, size_t size)
{
	return arena_take(arena, size);
}

void arena_lib_give(void *arena, void *block)
{
	(void)arena; /* it goes with the arena */
	(void)block;
}
