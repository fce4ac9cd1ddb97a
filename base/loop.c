/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop.c - the timers of a loop: a pairing heap whose nodes are the timers.
 *
 *   1. No child is earlier than its parent. Of equal deadlines the one armed first is earlier, so
 *      that they fire in the order in which they were armed (the simulator replays it).
 *   2. `prev` is the left sibling, of a first child the parent, of the root NULL.
 *
 * Arming is O(1); taking one out is O(log n) amortized, and at worst one look at each timer that
 * was armed since the last was taken out. Nothing is allocated, so nothing fails.
 *
 * Source: Fredman, Sedgewick, Sleator, Tarjan: The pairing heap, Algorithmica 1986.
 */
#include <config.h>

#include "base/loop.h"

#include <assert.h>

static bool earlier(const struct timer *a, const struct timer *b)
{
	if (a->deadline_ns != b->deadline_ns)
		return a->deadline_ns < b->deadline_ns;
	return a->number < b->number; /* (1) */
}

/* Of two heaps one. NULL: empty. */
static struct timer *merge(struct timer *a, struct timer *b)
{
	struct timer *top, *below;

	if (!a || !b)
		return a ? a : b;
	assert(!a->prev && !a->next && !b->prev && !b->next);
	top = earlier(b, a) ? b : a;
	below = top == a ? b : a;
	below->next = top->child;
	if (top->child)
		top->child->prev = below;
	below->prev = top;
	top->child = below;
	return top;
}

/* The heaps of a list of siblings as one: in pairs from the left, then these from the right. */
static struct timer *merge_siblings(struct timer *first)
{
	struct timer *pairs = NULL, *all = NULL;

	while (first) {
		struct timer *a = first, *b = a->next, *pair;

		first = b ? b->next : NULL;
		a->prev = a->next = NULL;
		if (b)
			b->prev = b->next = NULL;
		pair = merge(a, b);
		pair->next = pairs;
		pairs = pair;
	}
	while (pairs) {
		struct timer *pair = pairs;

		pairs = pair->next;
		pair->next = NULL;
		all = merge(all, pair);
	}
	return all;
}

void timers_remove(struct timers *all, struct timer *t)
{
	struct timer *rest;

	if (!t->armed)
		return;
	rest = merge_siblings(t->child);
	if (t == all->first) {
		all->first = rest;
	} else {
		assert(t->prev); /* (2) */
		if (t->prev->child == t)
			t->prev->child = t->next;
		else
			t->prev->next = t->next;
		if (t->next)
			t->next->prev = t->prev;
		all->first = merge(all->first, rest);
	}
	t->child = t->next = t->prev = NULL;
	t->armed = false;
}

void timers_insert(struct timers *all, struct timer *t, uint64_t deadline_ns)
{
	timers_remove(all, t);
	t->child = t->next = t->prev = NULL;
	t->deadline_ns = deadline_ns;
	t->number = all->armed++;
	t->armed = true;
	all->first = merge(all->first, t);
}

uint64_t timers_next(const struct timers *all)
{
	return all->first ? all->first->deadline_ns : UINT64_MAX;
}

int timers_fire(struct timers *all, uint64_t now_ns, int bound)
{
	int n = 0;

	while (n < bound && timers_next(all) <= now_ns) {
		struct timer *t = all->first;

		timers_remove(all, t);
		t->fire(t);
		n++;
	}
	return n;
}
