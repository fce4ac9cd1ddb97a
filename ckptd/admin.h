/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admin.h - what ckptctl asks of a running ckptd; answers are JSON (doc/json.md).
 */
#ifndef CKPTD_ADMIN_H
#define CKPTD_ADMIN_H

#include "ckptd/job.h"
#include "ckptd/session.h"

void admin_request(struct session *s, uint64_t request, const Ckpt__Admin *m);
/* The List request of a member: the same facts as a message. */
/* A checkpoint in the words of the protocol; points into it. */
void admin_fill_info(Ckpt__CheckpointInfo *i, struct checkpoint *c);
void admin_list(struct session *s, uint64_t request);

#endif
