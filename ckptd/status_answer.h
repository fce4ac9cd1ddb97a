/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status_answer.h - the answer to `ckptctl status` and `list`: status_answer.c.
 */
#ifndef CKPTD_STATUS_ANSWER_H
#define CKPTD_STATUS_ANSWER_H

#include "ckptd/session.h"

void status_start(struct session *s, uint64_t request, const Ckpt__Admin *m);

#endif
