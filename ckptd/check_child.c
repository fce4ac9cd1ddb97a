/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_child.c - see check_child.h. The loop's thread.
 */
#include <config.h>

#include "ckptd/check_child.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "ckptd/acting.h"
#include "ckptd/child.h"

#define OUTPUT_MAX (256u << 10)

struct check_child {
	struct checks checks;
	struct check_child_options options;
	struct child *child;
	void (*done)(void *arg, int status, const char *json, size_t len);
	void *arg;
};

/* 2 and above: it could not find out. */
static void child_done(void *arg, int status, const char *text, size_t len)
{
	struct check_child *c = arg;

	c->done(c->arg, status > 1 ? -ENODATA : status, text, len);
}

static int start(struct checks *checks, bool idle,
		 void (*done)(void *arg, int status, const char *json, size_t len), void *arg)
{
	struct check_child *c = container_of(checks, struct check_child, checks);
	char seconds[24];
	const char *const argv[] = {c->options.program, "node-check", "--json",
				    "--time",           seconds,      "--data",
				    c->options.data,    NULL};
	const struct child_options o = {
		.argv = argv,
		.limit_ns = c->options.limit_ns,
		.output_max = OUTPUT_MAX,
		.idle = idle,
	};
	int r;

	snprintf(seconds, sizeof(seconds), "%llu",
		 (unsigned long long)(c->options.time_ns / 1000000000u));
	r = child_start(c->child, &o, child_done, c);
	if (r < 0)
		return r;
	c->done = done;
	c->arg = arg;
	return 0;
}

static void cancel(struct checks *checks)
{
	child_cancel(container_of(checks, struct check_child, checks)->child);
}

static const struct checks_ops ops = {.start = start, .cancel = cancel};

int check_child_new(struct loop *loop, const struct check_child_options *o, struct checks **ret)
{
	struct check_child *c = alloc_zero(sizeof(*c));
	int r;

	assert(o->time_ns >= 1000000000u && o->limit_ns > 0);
	if (!c)
		return -ENOMEM;
	r = child_new(loop, "ckptd-check", &c->child);
	if (r < 0) {
		alloc_free(c);
		return r;
	}
	c->checks.ops = &ops;
	c->options = *o;
	*ret = &c->checks;
	return 0;
}

void check_child_free(struct checks *checks)
{
	struct check_child *c = checks ? container_of(checks, struct check_child, checks) : NULL;

	if (!c)
		return;
	child_free(c->child);
	alloc_free(c);
}
