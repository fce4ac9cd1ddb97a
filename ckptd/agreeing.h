/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agreeing.h - whether ranks that store the same elements in different shards store them alike.
 */
#ifndef CKPTD_AGREEING_H
#define CKPTD_AGREEING_H

#include "ckptd/job.h"

/* The checkpoint is in memory, DIGESTED. Nothing waits for it; what differs is told. */
void agreeing_start(struct checkpoint *c);
/* What is being compared ends soon. */
void agreeing_cancel(struct node *n);

#endif
