/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leaving.h - ranks that left without a goodbye, until their processes have ended.
 */
#ifndef CKPTD_LEAVING_H
#define CKPTD_LEAVING_H

#include "ckptd/job.h"

struct process_exit;

/* Its trainer fails, and says so: m is about to be freed. */
void leaving_add(const struct member *m);
/* p opens the job again, or another process this rank of it: a goodbye after all. */
void leaving_goes_on(struct job *j, const struct process_id *p, uint32_t rank);
/* Handles one rank of the process; false: there is none left. */
bool leaving_process_exit(struct node *n, const struct process_id *p,
			  const struct process_exit *exit);
/* A new launch of the job begins, or the job goes: nobody waits for these any more. */
void leaving_forget(struct job *j);

#endif
