/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process_ends.h - the end of a process, handled rank by rank, each in a call of its own.
 */
#ifndef CKPTD_PROCESS_ENDS_H
#define CKPTD_PROCESS_ENDS_H

#include "ckptd/job.h"

void process_ends_init(struct node *n);
/* Drops what was not handled. */
void process_ends_fini(struct node *n);
/* The process has ended; then its exit status, which may come in the same call or much later. */
void process_ends_ended(struct node *n, const struct process_id *p);
void process_ends_exit(struct node *n, const struct process_id *p, const struct process_exit *x);

#endif
