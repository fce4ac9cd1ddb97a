/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fair.h - a queue in which users take turns: start-time fair queueing by uid.
 *
 * Each uid with items has a flow, first in first out. fair_take() takes an item of the flow that
 * was charged least; fair_charge() adds what the item has cost. A uid that comes back after a rest
 * begins at the level of the others: rest earns nothing. What a uid was charged beyond the others
 * counts until they have caught up or the queue runs empty, and at most FAIR_DEBT_MAX of it.
 *
 * Source: Goyal, Vin, Cheng: Start-time Fair Queueing, SIGCOMM 1996; here the cost of an item is
 * known only after it was served, so its flow is charged then.
 *
 * Items are links that their owner gives; list_del() takes one out. No locks: the owner's. Cost of
 * a call: O(uids that have items). Out of memory for a flow, uids share one: never refused.
 */
#ifndef BASE_FAIR_H
#define BASE_FAIR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"

/* What is done for the node itself, in nobody's name; no uid has this number. */
#define FAIR_NODE UINT32_MAX
#define FAIR_DEBT_MAX 1000000000ull

struct fair_flow {
	struct list link; /* in fair_queue.flows */
	uint32_t uid;
	uint32_t taken; /* items that were taken and not charged yet */
	uint64_t used;  /* virtual time */
	struct list items;
};

struct fair_queue {
	struct list flows;
	uint64_t now;            /* virtual time of the flow that was served last */
	struct fair_flow shared; /* of all for which there was no memory */
};

void fair_init(struct fair_queue *q);
/* Nothing may be in it. */
void fair_fini(struct fair_queue *q);
/* The same without looking at what may be in it: the owner of the items has ended. */
void fair_forget(struct fair_queue *q);
void fair_push(struct fair_queue *q, uint32_t uid, struct list *item);
/*
 * The next item, out of the queue; NULL: none. most: flows of which so many items are taken and
 * not charged are passed over. ret_uid: whom to charge, by fair_charge(), once for each item.
 */
struct list *fair_take(struct fair_queue *q, uint32_t most, uint32_t *ret_uid);
void fair_charge(struct fair_queue *q, uint32_t uid, uint64_t cost);
bool fair_empty(const struct fair_queue *q);

#endif
