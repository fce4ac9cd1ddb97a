/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_child.h - `ckptctl node-check` as a child process: the table checks of acting.h.
 *
 * It may run at idle priority, is killed with what it began when it has not ended in time or ckptd
 * stops, and what it prints is bounded (child.h). On the loop's thread; nothing waits for it.
 */
#ifndef CKPTD_CHECK_CHILD_H
#define CKPTD_CHECK_CHILD_H

#include "base/err.h"
#include "base/loop.h"

struct checks;

struct check_child_options {
	const char *program, *data; /* ckptctl; whose disk is measured. Borrowed */
	uint64_t time_ns;  /* that it is told to take, about; whole seconds, at least one */
	uint64_t limit_ns; /* after which it is killed */
};
/* A check may take twice what it was told, and say so; after this it cannot. */
#define CHECK_LIMIT_NS(time_ns) (2 * (time_ns) + 30ull * 1000000000u)

MUST_CHECK int check_child_new(struct loop *loop, const struct check_child_options *o,
			       struct checks **ret);
void check_child_free(struct checks *c); /* NULL is allowed; done does not run any more */

#endif
