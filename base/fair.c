/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fair.c - see fair.h.
 *
 * 1. `now` never goes back, and no flow with items is behind it.
 * 2. A flow without items is kept while it is ahead of `now` or something of it is being served:
 *    a user that leaves the queue for a moment keeps its debt.
 * 3. Only find() frees flows: callers hold uids, never flows.
 */
#include <config.h>

#include "base/fair.h"

#include <assert.h>

#include "base/alloc.h"
#include "base/bytes.h"

static void flow_init(struct fair_flow *f, uint32_t uid)
{
	list_init(&f->link);
	list_init(&f->items);
	f->uid = uid;
	f->taken = 0;
	f->used = 0;
}

void fair_init(struct fair_queue *q)
{
	list_init(&q->flows);
	q->now = 0;
	flow_init(&q->shared, FAIR_NODE);
	list_add_tail(&q->flows, &q->shared.link);
}

static void flow_free(struct fair_queue *q, struct fair_flow *f)
{
	assert(list_empty(&f->items) && f->taken == 0);
	if (f == &q->shared)
		return;
	list_del(&f->link);
	alloc_free(f);
}

void fair_fini(struct fair_queue *q)
{
	struct fair_flow *f, *next;

	list_each_safe(f, next, &q->flows, link)
		flow_free(q, f);
}

void fair_forget(struct fair_queue *q)
{
	struct fair_flow *f, *next;

	list_each_safe(f, next, &q->flows, link) {
		list_init(&f->items);
		f->taken = 0;
		flow_free(q, f);
	}
}

static bool idle(const struct fair_flow *f)
{
	return list_empty(&f->items) && f->taken == 0;
}

bool fair_empty(const struct fair_queue *q)
{
	const struct fair_flow *f;

	list_each(f, &q->flows, link)
		if (!list_empty(&f->items))
			return false;
	return true;
}

/* The flow of uid, or the shared one if it has none. Frees the flows that need not be kept (2). */
static struct fair_flow *find(struct fair_queue *q, uint32_t uid)
{
	struct fair_flow *f, *next, *found = &q->shared;
	bool all_idle = true;

	list_each(f, &q->flows, link)
		all_idle = all_idle && idle(f);
	list_each_safe(f, next, &q->flows, link) {
		if (f->uid == uid)
			found = f;
		else if (idle(f) && (all_idle || f->used <= q->now))
			flow_free(q, f);
	}
	if (all_idle)
		found->used = q->now; /* no other user waited meanwhile */
	return found;
}

void fair_push(struct fair_queue *q, uint32_t uid, struct list *item)
{
	struct fair_flow *f = find(q, uid);

	if (f->uid != uid) {
		struct fair_flow *own = alloc_zero(sizeof(*own));

		if (own) {
			flow_init(own, uid);
			list_add_tail(&q->flows, &own->link);
			f = own;
		}
	}
	if (list_empty(&f->items)) /* (1) */
		f->used = min_u64(max_u64(f->used, q->now), q->now + FAIR_DEBT_MAX);
	list_add_tail(&f->items, item);
}

struct list *fair_take(struct fair_queue *q, uint32_t most, uint32_t *ret_uid)
{
	struct fair_flow *f, *best = NULL;
	struct list *item;

	list_each(f, &q->flows, link)
		if (!list_empty(&f->items) && f->taken < most && (!best || f->used < best->used))
			best = f;
	if (!best)
		return NULL;
	item = best->items.next;
	list_del(item);
	q->now = max_u64(q->now, best->used);
	best->used++; /* so that equal flows alternate before any cost is charged */
	best->taken++;
	*ret_uid = best->uid;
	return item;
}

void fair_charge(struct fair_queue *q, uint32_t uid, uint64_t cost)
{
	struct fair_flow *f;

	list_each(f, &q->flows, link) {
		if (f->uid != uid)
			continue;
		assert(f->taken > 0);
		f->taken--;
		f->used += min_u64(cost, UINT64_MAX / 4 - min_u64(f->used, UINT64_MAX / 4));
		return;
	}
	assert(false); /* a flow with taken items is kept (2) */
}
