/* SPDX-License-Identifier: Apache-2.0 */
/*
 * holding.h - expired checkpoints that loads, or processes behind them, still hold: see holding.c.
 */
#ifndef CKPTD_HOLDING_H
#define CKPTD_HOLDING_H

#include "ckptd/job.h"
#include "storage/held_files.h"

struct holding {
	struct list all; /* expired checkpoints whose files are held */
	uint32_t n;
	struct timer timer; /* until they are looked at again */
	bool looking;
};

void holding_init(struct node *n);
/* The node ends: no work is under way. */
void holding_fini(struct node *n);

/* A load of that user begins to read the checkpoint (c->readers), and ends. -ENOMEM */
MUST_CHECK int holding_begin(struct checkpoint *c, struct user *u);
void holding_end(struct checkpoint *c, struct user *u);
/* Whether only these loads keep retention from removing it. */
void holding_overdue(struct checkpoint *c, bool overdue);
/* Whether a process may have its files open, as far as this ckptd knows. */
bool holding_may(const struct checkpoint *c);
/* Takes the held files of a removed checkpoint, and charges its holders for them. */
void holding_keep(struct checkpoint *c, struct held_files *files);
void holding_forget(struct checkpoint *c); /* it is freed */
/* To be called when a process has ended or a client asks: looks at the held files soon. */
void holding_look(struct node *n);
/* The user holds more than it may: a load that reads files is refused with this. -EDQUOT */
MUST_CHECK int holding_refuses(struct user *u, struct err *e);

#endif
