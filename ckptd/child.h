/* SPDX-License-Identifier: Apache-2.0 */
/*
 * child.h - a program that ckptd runs beside itself: begun, followed, bounded in time, told of.
 *
 * It is ckptd's user, in a process group of its own, with no signal blocked or ignored and nothing
 * on its standard input; it may run at idle priority. Nothing of it is waited for: it is begun on a
 * thread of its own (a program may lie on a file system that hangs), and one that does not die of
 * SIGKILL is told of as late and left.
 */
#ifndef CKPTD_CHILD_H
#define CKPTD_CHILD_H

#include "base/err.h"
#include "base/loop.h"

struct child;

struct child_options {
	const char *const *argv;      /* [0]: the program; NULL ends them */
	const char *const *variables; /* "NAME=value", over ckptd's environment; NULL: none */
	uint64_t limit_ns;            /* after which it is killed, with its group */
	size_t output_max; /* what it prints is read, so much of it; 0: it is ckptd's standard error
			    */
	bool idle;         /* trainers first */
};
#define CHILD_ARGS_MAX 16 /* argv and variables together */

/*
 * status: what it exited with, or -ETIMEDOUT or -ECANCELED, or -ECHILD where a signal ended it or
 * somebody else took its status, or another -errno: it could not be begun. text: what it printed,
 * until done returns; len 0 without output_max.
 */
typedef void child_done_fn(void *arg, int status, const char *text, size_t len);

/* name: of its thread, at most 15 bytes. */
MUST_CHECK int child_new(struct loop *loop, const char *name, struct child **ret);
/* Copies o. done once, not inside this call. -EBUSY: one runs, or would not die. */
MUST_CHECK int child_start(struct child *c, const struct child_options *o, child_done_fn *done,
			   void *arg);
/* What runs is killed, and told of as -ECANCELED, not inside this call. */
void child_cancel(struct child *c);
/* NULL is allowed; what runs is killed, done does not run any more. */
void child_free(struct child *c);

#endif
