/* SPDX-License-Identifier: Apache-2.0 */
/*
 * service_detect.c - see service_detect.h. The control thread, before it turns and at SIGHUP.
 */
#include <config.h>

#include "ckptd/service_detect.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "ckptd/check_child.h"
#include "ckptd/hook.h"
#include "ckptd/recorder.h"
#include "ckptd/text_file.h"
#include "detect/policy.h"

#define OFF "/dev/null"

/* ---- The policy ---- */

static int take_policy(const char *path, struct node *n, struct err *e)
{
	CLEANUP_FREE char *text = NULL;
	size_t len = 0;
	int r = text_file_read("policy", path, POLICY_BYTES_MAX, &text, &len, e);

	return r < 0 ? r : node_set_policy(n, path, text, len, e);
}

void service_detect_policy(const struct config *c, struct log *log, struct node *n)
{
	struct err e = {0};
	int r = take_policy(c->policy, n, &e);

	if (r == -ENOENT && strcmp(c->policy, POLICY_FILE) == 0) {
		err_clear(&e);
		r = node_default_policy(n);
		if (r < 0)
			err_code(&e, r, "take the policy that is built in");
	}
	if (r < 0)
		log_print(log, LOG_ERR,
			  "%s: what was in force stays so, and at the start that is the table that "
			  "is built in",
			  e.text);
}

/* ---- Life ---- */

/* What cannot be recorded keeps nobody from saving. */
static void begin_record(struct service_detect *d, const struct config *c, struct log *log,
			 struct env *env)
{
	struct err e = {0};

	if (strcmp(c->record, OFF) == 0)
		return;
	if (recorder_new(env->workers, log, c->record, &d->recorder, &e) < 0) {
		log_print(log, LOG_ERR, "%s: nothing is recorded until ckptd starts again", e.text);
		return;
	}
	env->record = recorder_put;
	env->record_arg = d->recorder;
}

int service_detect_open(struct service_detect *d, const struct config *c, struct log *log,
			struct env *env, struct err *e)
{
	const struct check_child_options o = {
		.program = strcmp(c->check, OFF) == 0 ? BINDIR "/ckptctl" : c->check,
		.data = c->data,
		.time_ns = c->check_time_ns,
		.limit_ns = CHECK_LIMIT_NS(c->check_time_ns),
	};
	int r = check_child_new(env->loop, &o, &d->checks);

	if (r < 0)
		return err_code(e, r, "node checks");
	env->checks = d->checks;
	r = hook_child_new(env->loop, &d->hooks);
	if (r < 0)
		return err_code(e, r, "trust.hook");
	env->hooks = d->hooks;
	begin_record(d, c, log, env);
	return 0;
}

int service_detect_start(struct service_detect *d, const struct config *c, struct log *log,
			 struct loop *loop, struct node *n, struct err *e)
{
	const char *inject = NULL;

	service_detect_policy(c, log, n);
#ifdef CKPT_FAULTS
	inject = getenv("CKPTD_INJECT");
#endif
	return inject ? injector_new(loop, log, inject, n, &d->injector, e) : 0;
}

void service_detect_close(struct service_detect *d)
{
	injector_free(d->injector);
	check_child_free(d->checks);
	hook_child_free(d->hooks);
	recorder_free(d->recorder);
	*d = (struct service_detect){0};
}
