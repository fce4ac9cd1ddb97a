/* SPDX-License-Identifier: Apache-2.0 */
/*
 * list_answer.h - the answer to a rank's List: list_answer.c.
 */
#ifndef CKPTD_LIST_ANSWER_H
#define CKPTD_LIST_ANSWER_H

#include "ckptd/session.h"

void list_start(struct session *s, uint64_t request);

#endif
