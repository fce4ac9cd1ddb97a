/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rounds.h - visits each item of a list, some of them in each call of the loop.
 *
 * rounds_begin() begins a round, which visits each item once: the first of them at once, the rest
 * in tasks of the user's. To begin it again starts over; the items that the round before had not
 * come to are first, so none is left out however often that happens.
 *
 * Items are links in the owner's structs; list_del(&item->link) removes one, also inside visit().
 * Thread: the loop.
 */
#ifndef BASE_ROUNDS_H
#define BASE_ROUNDS_H

#include <stdint.h>

#include "base/loop.h"

struct round_item {
	struct list link;
	uint64_t round; /* the last one that has come to it */
};

struct rounds {
	struct loop *loop;
	const char *label;  /* of its calls: loop_label() */
	struct list items;  /* those that this round has not come to are first */
	uint64_t number;    /* of this round */
	struct task task;
	/* What one call may cost; 0: the round ends here. */
	uint64_t (*budget)(struct rounds *);
	/* Returns what it has cost, in units of the budget. It may free the item. */
	uint64_t (*visit)(struct rounds *, struct round_item *);
};

/* The caller has set loop, label, budget and visit. */
void rounds_init(struct rounds *r);
void rounds_begin(struct rounds *r, uint32_t uid);
void rounds_stop(struct rounds *r); /* the items stay */
/* The next round comes to it, this one does not. */
void rounds_add(struct rounds *r, struct round_item *item);

#endif
