/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hook_child.c - trust.hook as a child process (child.h), at idle priority: CKPT_JOB, CKPT_JOB_ID,
 * CKPT_STEP, CKPT_ATTEMPT and CKPT_DATA are in its environment, its output is ckptd's standard
 * error. The loop's thread.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "ckptd/child.h"
#include "ckptd/hook.h"

#define OWN_VARIABLES 5
#define VARIABLE_MAX  512

struct hook_child {
	struct hooks hooks;
	struct child *child;
	void (*done)(void *arg, int status);
	void *arg;
};

static void set_variables(const struct hook_question *q, char own[OWN_VARIABLES][VARIABLE_MAX])
{
	char job[ID_TEXT_MAX], attempt[ID_TEXT_MAX];

	hex_format(job, q->id.job.b, sizeof(q->id.job.b));
	hex_format(attempt, q->id.attempt.b, sizeof(q->id.attempt.b));
	snprintf(own[0], VARIABLE_MAX, "CKPT_JOB=%s", q->job);
	snprintf(own[1], VARIABLE_MAX, "CKPT_JOB_ID=%s", job);
	snprintf(own[2], VARIABLE_MAX, "CKPT_STEP=%llu", (unsigned long long)q->id.step);
	snprintf(own[3], VARIABLE_MAX, "CKPT_ATTEMPT=%s", attempt);
	snprintf(own[4], VARIABLE_MAX, "CKPT_DATA=%s", q->data);
}

static void child_done(void *arg, int status, const char *text, size_t len)
{
	struct hook_child *h = arg;

	(void)text;
	(void)len;
	h->done(h->arg, status);
}

static int start(struct hooks *hooks, const struct hook_question *q,
		 void (*done)(void *arg, int status), void *arg)
{
	struct hook_child *h = container_of(hooks, struct hook_child, hooks);
	char own[OWN_VARIABLES][VARIABLE_MAX];
	const char *const argv[] = {q->program, NULL};
	const char *variables[OWN_VARIABLES + 1] = {NULL};
	const struct child_options o = {
		.argv = argv,
		.variables = variables,
		.limit_ns = q->timeout_ns,
		.idle = true,
	};
	int r;

	set_variables(q, own);
	for (int i = 0; i < OWN_VARIABLES; i++)
		variables[i] = own[i];
	r = child_start(h->child, &o, child_done, h);
	if (r < 0)
		return r;
	h->done = done;
	h->arg = arg;
	return 0;
}

static const struct hooks_ops child_ops = {.start = start};

int hook_child_new(struct loop *loop, struct hooks **ret)
{
	struct hook_child *h = alloc_zero(sizeof(*h));
	int r;

	if (!h)
		return -ENOMEM;
	r = child_new(loop, "ckptd-hook", &h->child);
	if (r < 0) {
		alloc_free(h);
		return r;
	}
	h->hooks.ops = &child_ops;
	*ret = &h->hooks;
	return 0;
}

void hook_child_free(struct hooks *hooks)
{
	struct hook_child *h = hooks ? container_of(hooks, struct hook_child, hooks) : NULL;

	if (!h)
		return;
	child_free(h->child);
	alloc_free(h);
}
