/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_child.h - `ckptctl node-check` as a child process: the table checks of acting.h.
 *
 * It runs at idle priority, is killed when it has not ended after CHECK_LIMIT_NS, and what it
 * prints is bounded. On the loop's thread; nothing waits for it, and a stop of ckptd leaves it to
 * end by itself: it has nobody to write to then.
 */
#ifndef CKPTD_CHECK_CHILD_H
#define CKPTD_CHECK_CHILD_H

#include "base/err.h"
#include "base/loop.h"

struct checks;

#define CHECK_LIMIT_NS (300ull * 1000000000u)

/* program: ckptctl; data: whose disk is measured. Both borrowed. */
MUST_CHECK int check_child_new(struct loop *loop, const char *program, const char *data,
			       struct checks **ret);
void check_child_free(struct checks *c); /* NULL is allowed; done does not run any more */

#endif
