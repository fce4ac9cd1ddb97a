/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admission.h - whether this node is fit, asked before the first open of this life of ckptd
 * (detect.admission).
 *
 * While the check runs, opens that bring new work wait; those of ranks that were here before, and
 * of tools that only read, do not. Not fit: they are refused until a person overrules it, or the
 * next start finds it well. Nothing is checked beside ranks that train: they would be held up, and
 * the measures wrong. On the loop's thread.
 */
#ifndef CKPTD_ADMISSION_H
#define CKPTD_ADMISSION_H

#include <jansson.h>

#include "ckptd/job.h"

/* The node has taken what it found, and none of the opens that wait. */
void admission_begin(struct node *n);
/* That open has to wait; admission_begin()'s check ends that with epoch_ready(). */
bool admission_waits(const struct node *n, const struct open_request *r);
/* True: it was refused, in a sentence. */
bool admission_refuses(const struct node *n, const struct open_request *r, struct err *e);
/* A person says that the node takes opens whatever the check found, or will. False: it does. */
bool admission_overrule(struct node *n, const char *reason);
/* {"state", "reason", "since_ns"}; null: nothing was asked. */
json_t *admission_json(const struct node *n);

#endif
