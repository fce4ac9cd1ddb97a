/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job_removal.h - a person removes a whole job: its log, files, memory and index rows.
 */
#ifndef CKPTD_JOB_REMOVAL_H
#define CKPTD_JOB_REMOVAL_H

#include "ckptd/session.h"

/* The caller has checked that the session may change the job. The answer comes later: done, or
 * -EBUSY or -EAGAIN with what has to end before, and nothing has changed. */
void job_removal_start(struct session *s, uint64_t request, struct job *j);

#endif
