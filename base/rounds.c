/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rounds.c - rounds.h: items that a round has come to go to the end of the list.
 *
 * Failure modes: none, nothing is allocated.
 */
#include <config.h>

#include "base/rounds.h"

#include <assert.h>

#include "base/bytes.h"

static void slice(struct rounds *r)
{
	uint64_t left = list_empty(&r->items) ? 0 : r->budget(r);
	struct round_item *item;

	if (left == 0)
		return;
	while (left > 0) {
		item = list_first(&r->items, struct round_item, link);
		if (!item || item->round == r->number)
			return;
		list_del(&item->link);
		rounds_add(r, item);
		left -= min_u64(left, r->visit(r, item));
	}
	loop_post(r->loop, &r->task);
}

static void go_on(struct task *t)
{
	struct rounds *r = container_of(t, struct rounds, task);

	loop_label(r->loop, r->label);
	slice(r);
}

void rounds_init(struct rounds *r)
{
	assert(r->loop && r->label && r->budget && r->visit);
	list_init(&r->items);
	task_init(&r->task, FAIR_NODE, go_on);
	r->number = 0;
}

void rounds_begin(struct rounds *r, uint32_t uid)
{
	rounds_stop(r);
	r->number++;
	r->task.uid = uid;
	slice(r);
}

void rounds_stop(struct rounds *r)
{
	loop_unpost(r->loop, &r->task);
}

void rounds_add(struct rounds *r, struct round_item *item)
{
	item->round = r->number;
	list_add_tail(&r->items, &item->link);
}
