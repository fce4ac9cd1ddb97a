/* SPDX-License-Identifier: Apache-2.0 */
/*
 * acting.h - what follows from a verdict: the policy is asked, what it decides is said, and done
 * where ckptd can.
 *
 * Done here: record, a checkpoint now, a mark of what is suspect, a drain, a node check. Everything
 * else is advice, for people and schedulers. Nothing here waits, ends a process, or stands in the
 * way of a save or load. On the loop's thread.
 */
#ifndef CKPTD_ACTING_H
#define CKPTD_ACTING_H

#include <jansson.h>

#include "ckptd/job.h"
#include "detect/policy.h"

struct acting;

/* A check of this node that runs beside ckptd; one at a time. NULL in env: there is none. */
struct checks;
struct checks_ops {
	/* done once, not inside this call: 0 passed, 1 failed, negative: it could not be found out;
	 * json: what it printed, len bytes, perhaps none. -EBUSY: one is running. idle: beside
	 * trainers, who come first; then how fast something is says nothing. */
	int (*start)(struct checks *, bool idle,
		     void (*done)(void *arg, int status, const char *json, size_t len), void *arg);
	/* What runs is ended; its done says -ECANCELED. Nothing runs: nothing happens. */
	void (*cancel)(struct checks *);
};
struct checks {
	const struct checks_ops *ops;
};

MUST_CHECK int acting_new(struct node *n, struct acting **ret);
void acting_free(struct acting *a); /* NULL is allowed */
struct policy *acting_policy(struct node *n);

/* Options have changed. */
void acting_reload(struct node *n);

/* The detector has raised it, or updated it. Decided in the next turn of the loop. */
void acting_verdict(struct node *n, const struct verdict *v);
/* Whether a checkpoint that was wanted has come to disk. */
void acting_step(struct job *j);

/* How things stand for a verdict of this subject. */
void acting_facts(struct node *n, const struct subject *s, struct policy_facts *ret);
json_t *acting_decision_json(const struct decision *d);

/* What a check has found, told as an event; sample: to the detector too. failed: the first that
 * did, in words, or "". Returns status, or 1 where that was 0 and something failed. */
#define ACTING_FAILED_MAX 200
int acting_tell_check(struct node *n, int status, const char *text, size_t len, bool sample,
		      char failed[ACTING_FAILED_MAX]);

/* By a person or the policy: what is newest in memory goes to disk, no new runs. */
void acting_drain(struct node *n, const char *reason);
void acting_undrain(struct node *n, const char *reason);
/* An open that would begin a run; true: it is refused, for the node is drained. Else what is
 * suspect here is said in the log. */
bool acting_refuses(struct node *n, const struct open_request *r, struct err *e);

#endif
