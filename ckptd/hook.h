/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hook.h - trust.hook: a program of the site that says what a checkpoint is worth, as a table of
 * the outside world; ckptd/hook_child.c runs it as a child.
 */
#ifndef CKPTD_HOOK_H
#define CKPTD_HOOK_H

#include "base/err.h"
#include "base/ids.h"
#include "base/loop.h"

struct hook_question {
	const char *program, *job, *data; /* data: the folder with its files */
	struct checkpoint_id id;
	uint64_t timeout_ns;
};

struct hooks;
struct hooks_ops {
	/* One at a time: -EBUSY. done runs later, on the loop: the exit status, or -ETIMEDOUT, or
	 * -ECHILD where a signal ended it, or another -errno where it could not be begun. */
	int (*start)(struct hooks *, const struct hook_question *q,
		     void (*done)(void *arg, int status), void *arg);
};
struct hooks {
	const struct hooks_ops *ops;
};

MUST_CHECK int hook_child_new(struct loop *loop, struct hooks **ret);
void hook_child_free(struct hooks *h); /* NULL is allowed; what runs is killed, done does not run */

#endif
