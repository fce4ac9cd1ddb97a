/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_answer.h - the answer to `ckptctl gc`: plan_answer.c.
 */
#ifndef CKPTD_PLAN_ANSWER_H
#define CKPTD_PLAN_ANSWER_H

#include "ckptd/session.h"

void plan_start(struct session *s, uint64_t request, struct job *j);

#endif
