/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replicas.h - what several ranks hold alike is written to the file of one of them.
 *
 * Which shards these are is found once per layout, when its ranks have declared it. Before a
 * checkpoint is written the bytes of their holders are compared.
 */
#ifndef CKPTD_REPLICAS_H
#define CKPTD_REPLICAS_H

#include "ckptd/job.h"

struct dedup;
struct replicas;

/* Looks at a layout that all ranks of the job have declared, before it is needed. */
void replicas_step(struct job *j);
/* This process's memory; no worker has it any more. */
void replicas_fini(struct job *j);

/* Whether ckptd looks for what ranks of a job of that size hold alike. */
bool replicas_wanted(const struct node *n, uint32_t world);
/*
 * What is alike in a layout, which may still have to be found. NULL: out of memory. To be given
 * back on the loop. That a job's ranks declare something else by now is no matter.
 */
struct replicas *replicas_hold(struct job *j, struct declared *const *declared, uint32_t world);
void replicas_give_back(struct replicas *r);
/* Ends searches soon: what they look for is not known then. Those that a file waits for go on, and
 * those of jobs for which spare() returns true; spare NULL: none does. */
void replicas_cancel(struct node *n, bool (*spare)(struct job *j));
/* It is still looked for: known() is called once, on the loop, when it is known. false: it is. */
struct replicas_wait {
	struct list link;
	void (*known)(struct replicas_wait *w);
};
bool replicas_wait(struct replicas *r, struct replicas_wait *w);
/* Anywhere, while it is held and known. NULL: nothing is alike, or it cannot be known (memory, a
 * quota, too many shards): files are whole. */
const struct dedup *replicas_dedup(const struct replicas *r);

/* Of one try to write a checkpoint. */
struct dividing;

/* NULL: nothing is shared, or that cannot be known: every file is to be whole. */
struct dividing *dividing_start(struct checkpoint *c);
/* Moves on; true: dividing_present() can be asked. Not while the checkpoint has no tables yet. */
bool dividing_step(struct dividing *s);
/* What is compared need not go on: nothing will be written of it. Works end soon. */
void dividing_cancel(struct dividing *s);
/* Works of it are under way: their end pokes the job. */
bool dividing_busy(const struct dividing *s);
/* Leaves that the rank's file has to hold; NULL: all. Valid until it is freed. */
const uint64_t *dividing_present(const struct dividing *s, uint32_t rank);
/* NULL is allowed. */
void dividing_free(struct dividing *s);

#endif
