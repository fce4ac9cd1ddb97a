/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quota.h - how much of ckptd one user, and one session, may take.
 *
 * Each returns 0, or a code with a sentence that names the user, the limit and its key.
 */
#ifndef CKPTD_QUOTA_H
#define CKPTD_QUOTA_H

#include "ckptd/job.h"

/* One more rank in job j; new_run: the ranks that it has now will be out. -EAGAIN */
MUST_CHECK int quota_rank(struct job *j, const struct open_request *r, bool new_run, struct err *e);
/* One more job. -EMFILE, as for what follows. */
MUST_CHECK int quota_job(struct node *n, const struct open_request *r, struct err *e);
MUST_CHECK int quota_wait(struct session *s, struct err *e);
MUST_CHECK int quota_load(struct session *s, struct err *e);

#endif
