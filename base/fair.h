/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fair.h - a queue in which users take turns: start-time fair queueing by uid.
 *
 * Each uid with items has a flow, first in first out. fair_take() takes an item of the flow that
 * was charged least; fair_charge() adds what the item has cost. A uid that comes back after a rest
 * begins at the level of the others: rest earns no credit. What a uid was charged beyond the others
 * stays its debt until they have caught up or the queue is empty; a debt is at most FAIR_DEBT_MAX.
 *
 * Source: Goyal, Vin, Cheng: Start-time Fair Queueing, SIGCOMM 1996; here the cost of an item is
 * known only after it was served, so its flow is charged then.
 *
 * Items are links in the owner's structs; list_del() removes one. The owner locks. A call costs
 * O(uids that have items). Uids for which a flow cannot be allocated share one: a push never fails.
 */
#ifndef BASE_FAIR_H
#define BASE_FAIR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"

/* Work for the node itself, charged to no user; no uid has this number. */
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
	struct fair_flow shared; /* of all uids for which there was no memory */
};

void fair_init(struct fair_queue *q);
/* The queue must be empty. */
void fair_fini(struct fair_queue *q);
/* The same for a queue that may hold items, which are not accessed: their owner has ended. */
void fair_forget(struct fair_queue *q);
void fair_push(struct fair_queue *q, uint32_t uid, struct list *item);
/*
 * Removes and returns the next item; NULL: none. Flows with `most` items taken and not yet charged
 * are skipped. ret_uid: the uid to charge by fair_charge(), once for each item.
 */
struct list *fair_take(struct fair_queue *q, uint32_t most, uint32_t *ret_uid);
void fair_charge(struct fair_queue *q, uint32_t uid, uint64_t cost);
bool fair_empty(const struct fair_queue *q);

#endif
