/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admission.c - see admission.h.
 *
 *   NONE -> CHECKING -> ADMITTED | REFUSED
 *              |                      |
 *              +---> OVERRULED <------+   by a person, until ckptd ends
 *
 * A rank that comes while it is CHECKING, for its run stands, ends the check: ADMITTED. An open
 * that has waited for HOLD_NS, less than what clients wait for an answer, is told to come again.
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

#define HOLD_NS 45000000000u /* CKPT_TIMEOUT is 60 s where it is not set */

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
	int r;

	if (status == -ECANCELED)
		return;
	r = acting_tell_check(n, status, text, len, false, failed);
	if (a->state != ADMISSION_CHECKING)
		return; /* overruled: it is only told */
	if (r > 0 || r == -ETIMEDOUT) {
		become(n, ADMISSION_REFUSED,
		       r < 0       ? "the check did not end in time"
		       : failed[0] ? failed
				   : "the check failed");
		tell(n, EVENT_DRAINED, 4,
		     "node '%s' is not admitted (%s): new runs are refused until 'ckptctl "
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

static uint64_t hold_ns(const struct node *n)
{
	return n->options.admission_hold_ns ? n->options.admission_hold_ns : HOLD_NS;
}

bool admission_holds(struct node *n, const struct open_request *r, uint64_t came_ns)
{
	struct admission *a = &n->admission;

	if (a->state != ADMISSION_CHECKING || r->looks)
		return false;
	if (!a->held)
		timer_arm(n->env.loop, &a->hold, came_ns + hold_ns(n));
	a->held = true;
	return true;
}

static void hold_over(struct timer *t)
{
	struct node *n = container_of(t, struct node, admission.hold);
	struct admission *a = &n->admission;
	struct err e = {0};
	uint64_t oldest_ns;

	a->held = false;
	if (a->state != ADMISSION_CHECKING) {
		epoch_ready(n);
		return;
	}
	err_set(&e, -EAGAIN,
		"open: node '%s' is being checked before its first open, which may take minutes: "
		"try again, or have CKPT_CONNECT_TIMEOUT say how long to",
		n->options.name);
	oldest_ns = epoch_tire(n, loop_now(n->env.loop) - hold_ns(n), e.code, e.text);
	if (oldest_ns) {
		timer_arm(n->env.loop, &a->hold, oldest_ns + hold_ns(n));
		a->held = true;
	}
}

void admission_rank_came(struct node *n, const struct open_request *r)
{
	struct admission *a = &n->admission;

	if (a->state != ADMISSION_CHECKING || r->looks)
		return;
	become(n, ADMISSION_ADMITTED, "ranks are training here");
	tell(n, EVENT_CHECK_ENDED, 5,
	     "the check of node '%s' before its first open is ended: ranks train here",
	     n->options.name);
	n->env.checks->ops->cancel(n->env.checks);
	timer_arm(n->env.loop, &a->hold, loop_now(n->env.loop)); /* not inside an open's own turn */
}

bool admission_refuses(const struct node *n, const struct open_request *r, struct err *e)
{
	if (n->admission.state != ADMISSION_REFUSED || r->looks)
		return false;
	err_set(e, CKPT_ESTATE,
		"open: node '%s' is not admitted (%.80s): start this rank on another node, or "
		"have the operator say 'ckptctl undrain'",
		n->options.name, n->admission.reason);
	return true;
}

void admission_init(struct node *n)
{
	timer_init(&n->admission.hold, hold_over);
}

void admission_fini(struct node *n)
{
	timer_disarm(n->env.loop, &n->admission.hold);
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
