/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admission.c - see admission.h.
 *
 *   NONE -> CHECKING -> ADMITTED | REFUSED
 *              |                      |
 *              +---> OVERRULED <------+   by a person, until ckptd ends
 *
 * A check that hangs says that the node is sick. One that cannot be had, or does not know, says
 * nothing: the node is admitted, which is told as a warning; a misspelt path should not empty a
 * cluster.
 *
 * What is found is not kept: the next start asks again. Nor is it a verdict, which could outlast
 * the repair: nothing runs here that it could be about.
 */
#include <config.h>

#include "ckptd/admission.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "ckptd/acting.h"
#include "ckptd/events.h"
#include "ckptd/node_priv.h"
#include "ckptd/watching.h"
#include "ckptd/watching_json.h"
#include "detect/verdicts.h"

static const char *const words[] = {
	[ADMISSION_NONE] = "none",           [ADMISSION_CHECKING] = "checking",
	[ADMISSION_ADMITTED] = "admitted",   [ADMISSION_REFUSED] = "refused",
	[ADMISSION_OVERRULED] = "overruled",
};

__attribute__((format(printf, 4, 5))) static void tell(struct node *n, enum event_kind kind,
						       int level, const char *fmt, ...)
{
	struct subject s = subject_node(WATCHING_NODE);
	char text[500];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	events_post(n->events, kind, level, EVENT_FOR_ALL, watching_subject_json(n, &s), NULL, "%s",
		    text);
}

static void become(struct node *n, enum admission_state state, const char *reason)
{
	struct admission *a = &n->admission;

	a->state = state;
	a->since_ns = loop_wall(n->env.loop);
	snprintf(a->reason, sizeof(a->reason), "%s", reason);
}

static void check_done(void *arg, int status, const char *text, size_t len)
{
	struct node *n = arg;
	struct admission *a = &n->admission;
	char failed[ACTING_FAILED_MAX];
	int r = acting_tell_check(n, status, text, len, false, failed);

	if (a->state != ADMISSION_CHECKING)
		return; /* overruled: it is only told */
	if (r > 0 || r == -ETIMEDOUT) {
		become(n, ADMISSION_REFUSED,
		       r < 0       ? "the check did not end in time"
		       : failed[0] ? failed
				   : "the check failed");
		tell(n, EVENT_DRAINED, 4,
		     "node '%s' is not admitted (%s): new opens are refused until 'ckptctl "
		     "undrain', or until ckptd starts again and finds it well",
		     n->options.name, a->reason);
	} else {
		become(n, ADMISSION_ADMITTED,
		       r < 0 ? "it could not be found out" : "the check found nothing wrong");
	}
	epoch_ready(n);
}

static bool ranks_live(const struct node *n)
{
	struct member *m;
	struct job *j;

	list_each(j, &n->jobs, link)
		list_each(m, &j->members, link)
			if (m->alive)
				return true;
	return false;
}

void admission_begin(struct node *n)
{
	struct checks *c = n->env.checks;
	int r;

	assert(n->ready && n->admission.state == ADMISSION_NONE);
	if (!n->options.admission)
		return;
	if (ranks_live(n)) {
		become(n, ADMISSION_ADMITTED, "ranks were training here already");
		tell(n, EVENT_CHECK_ENDED, 5,
		     "node '%s' is not checked before its first open: ranks train here",
		     n->options.name);
		return;
	}
	r = c ? c->ops->start(c, false, check_done, n) : -ENOSYS;
	if (r < 0) {
		become(n, ADMISSION_ADMITTED, "it could not be found out");
		tell(n, EVENT_CHECK_ENDED, 4,
		     "node '%s' could not be checked before its first open, and takes it all the "
		     "same: %s",
		     n->options.name, err_text(r));
		return;
	}
	become(n, ADMISSION_CHECKING, "");
	tell(n, EVENT_ACTION_STARTED, 5,
	     "node '%s' is being checked before its first open: what opens now waits for it",
	     n->options.name);
}

/* Of a rank that was here before, or of a tool that reads. */
static bool is_no_work(const struct open_request *r)
{
	return r->reconnect || r->existing;
}

bool admission_waits(const struct node *n, const struct open_request *r)
{
	return n->admission.state == ADMISSION_CHECKING && !is_no_work(r);
}

bool admission_refuses(const struct node *n, const struct open_request *r, struct err *e)
{
	if (n->admission.state != ADMISSION_REFUSED || is_no_work(r))
		return false;
	err_set(e, CKPT_ESTATE,
		"open: node '%s' is not admitted (%.80s): start this rank on another node, or "
		"have the operator say 'ckptctl undrain'",
		n->options.name, n->admission.reason);
	return true;
}

bool admission_overrule(struct node *n, const char *reason)
{
	struct admission *a = &n->admission;
	bool waited = a->state == ADMISSION_CHECKING;

	if (!waited && a->state != ADMISSION_REFUSED)
		return false;
	become(n, ADMISSION_OVERRULED, reason);
	tell(n, EVENT_UNDRAINED, 5, "node '%s' is admitted, whatever the check %s (%s)",
	     n->options.name, waited ? "will find" : "found", reason);
	if (waited)
		epoch_ready(n);
	return true;
}

json_t *admission_json(const struct node *n)
{
	const struct admission *a = &n->admission;

	assert(a->state < sizeof(words) / sizeof(words[0]));
	if (a->state == ADMISSION_NONE)
		return json_null();
	return json_pack("{s:s, s:s, s:I}", "state", words[a->state], "reason", a->reason,
			 "since_ns", (json_int_t)a->since_ns);
}
