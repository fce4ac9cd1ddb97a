/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blocks.c - a set of block addresses, kept beside the heap so that blocks have no header and
 * memory from elsewhere may be freed while a watch is on.
 *
 * A block may be given back while another set (or none) is watching; then the set keeps its
 * address. So whoever frees memory of a life runs as that life (life_enter() in life.h).
 */
#include <config.h>

#include "tests/sim/blocks.h"

#include <assert.h>
#include <stdint.h>

#include "base/list.h"
#include "tests/sim/heap.h"

#define GIVEN ((void *)1)

static size_t slot_of(const struct blocks *b, const void *p)
{
	uint64_t h = (uint64_t)(uintptr_t)p * 0x9e3779b97f4a7c15u;

	return (size_t)(h >> 20) & (b->cap - 1);
}

static void insert(struct blocks *b, void *p)
{
	size_t i = slot_of(b, p);

	while (b->slots[i] && b->slots[i] != GIVEN)
		i = (i + 1) & (b->cap - 1);
	if (!b->slots[i])
		b->used++;
	b->slots[i] = p;
	b->live++;
}

static void make_room(struct blocks *b)
{
	void **old = b->slots;
	size_t old_cap = b->cap;

	if (2 * b->used < b->cap)
		return;
	b->cap = 4 * b->live > 256 ? 4 * b->live : 256;
	while (b->cap & (b->cap - 1))
		b->cap += b->cap & -b->cap;
	b->slots = sim_zero(b->cap * sizeof(*b->slots));
	b->used = b->live = 0;
	for (size_t i = 0; i < old_cap; i++) {
		if (old[i] && old[i] != GIVEN)
			insert(b, old[i]);
	}
	free(old);
}

static void blocks_taken(struct alloc_watch *w, void *p)
{
	struct blocks *b = container_of(w, struct blocks, watch);

	make_room(b);
	insert(b, p);
}

static void blocks_given(struct alloc_watch *w, void *p)
{
	struct blocks *b = container_of(w, struct blocks, watch);
	size_t i;

	if (b->cap == 0)
		return;
	for (i = slot_of(b, p); b->slots[i]; i = (i + 1) & (b->cap - 1)) {
		if (b->slots[i] != p)
			continue;
		b->slots[i] = GIVEN;
		assert(b->live > 0);
		b->live--;
		return;
	}
}

void blocks_init(struct blocks *b)
{
	*b = (struct blocks){ .watch = { blocks_taken, blocks_given } };
}

size_t blocks_live(const struct blocks *b)
{
	return b->live;
}

void blocks_drop(struct blocks *b)
{
	struct alloc_watch *before = alloc_set_watch(NULL);

	for (size_t i = 0; i < b->cap; i++) {
		if (b->slots[i] && b->slots[i] != GIVEN)
			alloc_free(b->slots[i]);
	}
	alloc_set_watch(before);
	free(b->slots);
	blocks_init(b);
}
