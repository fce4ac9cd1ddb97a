/* SPDX-License-Identifier: Apache-2.0 */
/*
 * creating.h - see creating.c.
 */
#ifndef CKPTD_CREATING_H
#define CKPTD_CREATING_H

#include "ckptd/job.h"

/* The job that this open asks for; epoch_created() or epoch_creation_failed() follows, not inside
 * this call. NULL: no memory. */
struct job *creating_begin(struct node *n, const struct open_request *r);

#endif
