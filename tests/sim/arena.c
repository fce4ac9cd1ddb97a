/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena.c - a set of block addresses, kept beside the heap so that blocks have no header and
 * memory from elsewhere may be freed while a watch is on.
 *
 * A block may be given back while another arena (or none) is watching; then the set keeps its
 * address. So whoever frees memory of a life runs as that life (life_enter() in life.h).
 */
#include <config.h>

#include "tests/sim/arena.h"

#include <assert.h>
#include <stdint.h>

#include "base/list.h"
#include "tests/sim/heap.h"

#define GIVEN ((void *)1)

static size_t slot_of(const struct arena *a, const void *p)
{
	uint64_t h = (uint64_t)(uintptr_t)p * 0x9e3779b97f4a7c15u;

	return (size_t)(h >> 20) & (a->cap - 1);
}

static void insert(struct arena *a, void *p)
{
	size_t i = slot_of(a, p);

	while (a->slots[i] && a->slots[i] != GIVEN)
		i = (i + 1) & (a->cap - 1);
	if (!a->slots[i])
		a->used++;
	a->slots[i] = p;
	a->live++;
}

static void make_room(struct arena *a)
{
	void **old = a->slots;
	size_t old_cap = a->cap;

	if (2 * a->used < a->cap)
		return;
	a->cap = 4 * a->live > 256 ? 4 * a->live : 256;
	while (a->cap & (a->cap - 1))
		a->cap += a->cap & -a->cap;
	a->slots = sim_zero(a->cap * sizeof(*a->slots));
	a->used = a->live = 0;
	for (size_t i = 0; i < old_cap; i++) {
		if (old[i] && old[i] != GIVEN)
			insert(a, old[i]);
	}
	free(old);
}

static void arena_taken(struct alloc_watch *w, void *p)
{
	struct arena *a = container_of(w, struct arena, watch);

	make_room(a);
	insert(a, p);
}

static void arena_given(struct alloc_watch *w, void *p)
{
	struct arena *a = container_of(w, struct arena, watch);
	size_t i;

	if (a->cap == 0)
		return;
	for (i = slot_of(a, p); a->slots[i]; i = (i + 1) & (a->cap - 1)) {
		if (a->slots[i] != p)
			continue;
		a->slots[i] = GIVEN;
		assert(a->live > 0);
		a->live--;
		return;
	}
}

void arena_init(struct arena *a)
{
	*a = (struct arena){ .watch = { arena_taken, arena_given } };
}

size_t arena_live(const struct arena *a)
{
	return a->live;
}

void arena_drop(struct arena *a)
{
	struct alloc_watch *before = alloc_set_watch(NULL);

	for (size_t i = 0; i < a->cap; i++) {
		if (a->slots[i] && a->slots[i] != GIVEN)
			alloc_free(a->slots[i]);
	}
	alloc_set_watch(before);
	free(a->slots);
	arena_init(a);
}
