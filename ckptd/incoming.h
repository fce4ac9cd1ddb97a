/* SPDX-License-Identifier: Apache-2.0 */
/*
 * incoming.h - a job that a tool has made in incoming/ becomes one of this ckptd's (I12).
 */
#ifndef CKPTD_INCOMING_H
#define CKPTD_INCOMING_H

#include "ckptd/session.h"

/* The answer comes later. hex: the job's id. For the job's owner, root and ckptd's own user. */
void incoming_adopt(struct session *s, uint64_t request, const char *hex);

#endif
