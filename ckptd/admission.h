/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admission.h - whether this node is fit, asked before the first open of this life of ckptd
 * (detect.admission).
 *
 * While the check runs, opens that begin a run wait, not for ever; those of tools that only read do
 * not (one that then saves all the same is not kept from it). Not fit: they are refused until a
 * person overrules it, or the next start finds it well. Ranks of a run that stands come and go on,
 * whatever is found; nothing is checked beside them, for they would be held up, and the measures
 * wrong. On the loop's thread.
 */
#ifndef CKPTD_ADMISSION_H
#define CKPTD_ADMISSION_H

#include <jansson.h>

#include "ckptd/job.h"

/* The node has taken what it found, and none of the opens that wait. */
void admission_begin(struct node *n);
void admission_init(struct node *n);
void admission_fini(struct node *n);
/* An open that would begin a run, and came then: true: it has to wait among the early ones, until
 * epoch_ready() or epoch_tire(). */
bool admission_holds(struct node *n, const struct open_request *r, uint64_t came_ns);
/* The same; true: it is refused, in a sentence. */
bool admission_refuses(const struct node *n, const struct open_request *r, struct err *e);
/* A rank has joined a run that stands. */
void admission_rank_came(struct node *n, const struct open_request *r);
/* A person says that the node takes opens whatever the check found, or will. False: it does. */
bool admission_overrule(struct node *n, const char *reason);
/* {"state", "reason", "since_ns"}; null: nothing was asked. */
json_t *admission_json(const struct node *n);

#endif
