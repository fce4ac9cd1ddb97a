/* SPDX-License-Identifier: Apache-2.0 */
/*
 * acting.c - see acting.h.
 *
 *   verdict -> queue -> (next turn) policy -> decision logged -> done: each with an event when it
 *   begins, and one when it has ended
 *
 * What was withheld (held down, or no budget) waits: the detector does not report a standing
 * verdict again, so acting.c decides it again when the reason has gone.
 *
 * Invariants: (1) inside the detector's callback a verdict is only queued: what follows from it may
 * feed the detector again; (2) the queue is bounded: beyond QUEUE_MAX (of jobs: QUEUE_JOBS) a
 * verdict is reported and not decided on, and an event says so; the list of those that wait is
 * bounded alike; (3) a verdict that waits stands: it leaves the list when it is cleared, and when
 * nothing is withheld any more; (4) a verdict that rests on jobs alone (verdict.of_jobs, not
 * decision.seconded) saves jobs of its uid only, and neither marks nor drains the node: findings of
 * a check that it starts are reported and do not reach the detector; a verdict on one uid's jobs is
 * visible to that uid and to operators.
 */
#include <config.h>

#include "ckptd/acting.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/text.h"
#include "ckptd/beats.h"
#include "ckptd/events.h"
#include "ckptd/log.h"
#include "ckptd/marks.h"
#include "ckptd/node_priv.h"
#include "ckptd/session.h"
#include "ckptd/watching.h"
#include "ckptd/watching_json.h"
#include "detect/verdicts.h"

#define QUEUE_MAX   64u
#define QUEUE_JOBS  48u /* of them, about jobs and their ranks: room is left for the node's */
#define WAITING_MAX 64u
#define TOLD_NS     1000000000u

#define CAN                                                                                        \
	(ACTION_BIT(ACTION_IGNORE) | ACTION_BIT(ACTION_RECORD) | ACTION_BIT(ACTION_CHECKPOINT) |   \
	 ACTION_BIT(ACTION_SUSPECT) | ACTION_BIT(ACTION_VALIDATE) | ACTION_BIT(ACTION_DRAIN))

/* A verdict of which something was withheld. */
struct withheld {
	struct verdict v;
	uint32_t actions;
	uint64_t again_ns;
};

struct acting {
	struct node *node;
	struct policy *policy;
	struct verdict queue[QUEUE_MAX];
	bool over[QUEUE_MAX]; /* it was cleared meanwhile */
	uint32_t n;
	uint64_t left_out;
	struct task task;
	bool posted;
	struct withheld waiting[WAITING_MAX];
	uint32_t n_waiting;
	struct timer timer; /* for the first of them */
	/* For whose sake the check runs, as it was called then: numbers of jobs come again. */
	json_t *checked; /* NULL: for the node itself */
	uint32_t checked_uid;
	char checked_words[SUBJECT_WORDS_MAX];
	bool checked_alone; /* one user's jobs asked for it, and nothing else did */
};

/* ---- Events ---- */

__attribute__((format(printf, 5, 6))) static void
post(struct node *n, enum event_kind kind, int level, const struct subject *s, const char *fmt, ...)
{
	char words[500];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(words, sizeof(words), fmt, ap);
	va_end(ap);
	events_post(n->events, kind, level, watching_uid(n, s), watching_subject_json(n, s), NULL,
		    "%s", words);
}

/* Posts an event about a step of a job. */
__attribute__((format(printf, 5, 6))) static void
post_step(struct job *j, enum event_kind kind, int level, uint64_t step, const char *fmt, ...)
{
	struct subject s = subject_job(watching_number(j));
	char words[500];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(words, sizeof(words), fmt, ap);
	va_end(ap);
	events_post(j->node->events, kind, level, watching_uid(j->node, &s),
		    watching_subject_json(j->node, &s),
		    json_pack("{s:I}", "step", (json_int_t)step), "job '%s': %s",
		    j->history.job.name, words);
}

/* Posts an event about a verdict, for the users that may see the verdict. */
__attribute__((format(printf, 5, 6))) static void post_of(struct node *n, enum event_kind kind,
							  int level, const struct verdict *v,
							  const char *fmt, ...)
{
	char words[500];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(words, sizeof(words), fmt, ap);
	va_end(ap);
	events_post(n->events, kind, level, watching_verdict_uid(n, v),
		    watching_subject_json(n, &v->subject), NULL, "%s", words);
}

/* ---- A checkpoint now ---- */

static bool concerns(const struct job *j, const struct subject *s)
{
	if (s->kind == SUBJECT_JOB || s->kind == SUBJECT_RANK)
		return j->number == s->job && j->number;
	return !list_empty(&j->members);
}

static void checkpoint_job(struct job *j)
{
	struct subject s = subject_job(watching_number(j));
	struct checkpoint *c = persist_now(j);
	uint64_t step = 0;
	struct err e = {0};
	int r = beats_ask_save(j, &step, &e);

	j->now_attempt = c ? c->attempt : (struct attempt_id){{0}};
	j->now_step = c ? c->step : 0;
	j->now = c != NULL;
	if (c)
		post_step(j, EVENT_ACTION_STARTED, 5, c->step,
			  "step %llu, the newest in memory, goes to disk now",
			  (unsigned long long)c->step);
	if (r == 0)
		post_step(j, EVENT_ACTION_STARTED, 5, step,
			  "its ranks are asked to save at step %llu", (unsigned long long)step);
	else if (!c)
		post(j->node, EVENT_ACTION_ENDED, 5, &s,
		     "job '%s': no checkpoint now: nothing committed is only in memory, and its "
		     "ranks cannot be asked (%s)",
		     j->history.job.name, e.text);
	job_poke(j);
}

/* owner: saves only this uid's jobs; EVENT_FOR_ALL: those of all users. */
static void checkpoint_now(struct node *n, const struct subject *s, uint32_t owner)
{
	struct job *j;

	list_each(j, &n->jobs, link)
		if (concerns(j, s) && !j->failed && !j->creating &&
		    (owner == EVENT_FOR_ALL || j->history.job.uid == owner))
			checkpoint_job(j);
}

void acting_step(struct job *j)
{
	struct checkpoint *c;

	if (!j->now)
		return;
	c = checkpoint_find_attempt(j, j->now_step, &j->now_attempt);
	if (c && (c->durable == DUR_NONE || c->durable == DUR_WANTED || c->durable == DUR_WRITING))
		return;
	j->now = false;
	if (c && c->durable == DUR_DONE)
		post_step(j, EVENT_ACTION_ENDED, 5, j->now_step, "step %llu is on disk",
			  (unsigned long long)j->now_step);
	else
		post_step(j, EVENT_ACTION_ENDED, 4, j->now_step,
			  "step %llu did not come to disk%s%s", (unsigned long long)j->now_step,
			  c && c->reason[0] ? ": " : "", c ? c->reason : "");
}

/* ---- Marks and drains ---- */

static void mark_suspect(struct node *n, const struct verdict *v)
{
	char words[SUBJECT_WORDS_MAX], reason[MARK_REASON_MAX];

	watching_words(n, &v->subject, words);
	snprintf(reason, sizeof(reason), "%s (%s)", verdict_class_word(v->class),
		 verdict_cause_word(v->cause));
	if (marks_add(&n->marks, words, reason, watching_uid(n, &v->subject)))
		post_of(n, EVENT_MARKED, 5, v,
		     "%s is suspect from now on: %s; 'ckptctl clear' takes it back", words, reason);
}

void acting_drain(struct node *n, const char *reason)
{
	struct subject s = subject_node(WATCHING_NODE);

	if (!marks_drain(&n->marks, true, reason))
		return;
	post(n, EVENT_DRAINED, 4, &s,
	     "node '%s' is drained (%s): what runs goes on, new runs are refused until 'ckptctl "
	     "undrain'",
	     n->options.name, reason);
	checkpoint_now(n, &s, EVENT_FOR_ALL);
}

void acting_undrain(struct node *n, const char *reason)
{
	struct subject s = subject_node(WATCHING_NODE);

	if (marks_drain(&n->marks, false, ""))
		post(n, EVENT_UNDRAINED, 5, &s, "node '%s' takes new runs again (%s)",
		     n->options.name, reason);
}

bool acting_refuses(struct node *n, const struct open_request *r, struct err *e)
{
	struct marks *m = &n->marks;
	const struct mark *first;
	uint32_t found;
	char line[700];

	if (r->looks)
		return false;
	if (m->drained) {
		err_set(e, CKPT_ESTATE,
			"open: node '%s' is drained (%.60s): start this rank on another node, or "
			"have the operator say 'ckptctl undrain'",
			n->options.name, m->drain.reason);
		return true;
	}
	found = marks_of(m, session_process(r->session)->uid, &first);
	if (found && loop_now(n->env.loop) >= m->told_ns + TOLD_NS) {
		m->told_ns = loop_now(n->env.loop);
		snprintf(line, sizeof(line),
			 "job '%s': rank %u opens here, where %s is suspect: %s%s", r->job, r->rank,
			 first->words, first->reason,
			 found > 1 ? "; and more, see 'ckptctl status'" : "");
		n->env.log(n->env.log_arg, 4, &(struct log_about){.job = r->job}, line);
	}
	return false;
}

/* ---- Node checks ---- */

/* NAN: it is not said. */
static double number_of(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	return json_is_number(v) ? json_number_value(v) : NAN;
}

/* One sample for each value that was measured; the first that failed is named. */
static void tell_results(struct node *n, const json_t *doc, bool sample,
			 char failed[ACTING_FAILED_MAX])
{
	const json_t *o;
	size_t i;

	failed[0] = '\0';
	json_array_foreach(json_object_get(doc, "results"), i, o)
	{
		struct sample s = {.kind = SAMPLE_CHECK,
				   .node = WATCHING_NODE,
				   .job = SAMPLE_NONE,
				   .rank = SAMPLE_NONE,
				   .device = SAMPLE_NONE};
		const char *name = json_string_value(json_object_get(o, "name"));
		const char *state = json_string_value(json_object_get(o, "state"));
		const char *words = json_string_value(json_object_get(o, "words"));

		if (!name || !state || strcmp(state, "skipped") == 0)
			continue;
		snprintf(s.check.what, sizeof(s.check.what), "%.31s", name);
		s.check.value = number_of(o, "value");
		s.check.low = number_of(o, "low");
		s.check.high = number_of(o, "high");
		s.check.passed = strcmp(state, "failed") != 0;
		if (!s.check.passed && !failed[0]) {
			snprintf(failed, ACTING_FAILED_MAX, "%.40s%s%.120s", name,
				 words ? ": " : "", words ? words : "");
			text_clean(failed); /* it may be cut, and goes into sentences */
		}
		if (sample)
			node_sample(n, &s);
	}
}

#define NOT_BEGUN "its program (detect.check, else the installed ckptctl) does not start: "

#define OUTCOME_MAX 400

static const char *outcome(char buf[OUTCOME_MAX], int status, const char *failed)
{
	bool begun = status == -ETIMEDOUT || status == -ECHILD || status == -ENODATA;

	if (status < 0)
		snprintf(buf, OUTCOME_MAX, "could not be done: %s%s", begun ? "" : NOT_BEGUN,
			 err_text(status));
	else if (status > 0 || failed[0])
		snprintf(buf, OUTCOME_MAX, "failed%s%s", failed[0] ? ": " : "", failed);
	else
		snprintf(buf, OUTCOME_MAX, "found nothing wrong");
	return buf;
}

int acting_tell_check(struct node *n, int status, const char *text, size_t len, bool sample,
		      char failed[ACTING_FAILED_MAX])
{
	json_t *doc = len ? json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL) : NULL;
	struct subject s = subject_node(WATCHING_NODE);
	char text_of[OUTCOME_MAX];

	tell_results(n, doc, sample, failed);
	json_decref(doc);
	post(n, EVENT_CHECK_ENDED, status || failed[0] ? 4 : 5, &s, "the check of node '%s' %s",
	     n->options.name, outcome(text_of, status, failed));
	return status == 0 && failed[0] ? 1 : status;
}

/* Processes of the user whose jobs asked for the check run beside it and may have made it fail. */
static void check_done_alone(struct acting *a, int status, const char *text, size_t len)
{
	json_t *doc = len ? json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL) : NULL;
	char failed[ACTING_FAILED_MAX], text_of[OUTCOME_MAX];
	struct node *n = a->node;

	tell_results(n, doc, false, failed);
	json_decref(doc);
	events_post(n->events, EVENT_ACTION_ENDED, status || failed[0] ? 4 : 5, a->checked_uid,
		    a->checked, NULL, "the check of node '%s' for the sake of %s %s%s",
		    n->options.name, a->checked_words, outcome(text_of, status, failed),
		    status > 0 || failed[0] ? "; only jobs asked for it and they ran "
					      "beside it, so nothing follows: say 'ckptctl "
					      "node-check' when the node is idle"
					    : "");
	a->checked = NULL;
}

static void check_done(void *arg, int status, const char *text, size_t len)
{
	struct acting *a = arg;
	struct node *n = a->node;
	char failed[ACTING_FAILED_MAX], text_of[OUTCOME_MAX];

	if (a->checked_alone) { /* (4) */
		check_done_alone(a, status, text, len);
		return;
	}
	status = acting_tell_check(n, status, text, len, true, failed);
	if (a->checked)
		events_post(n->events, EVENT_ACTION_ENDED, 5 | EVENT_UNLOGGED, a->checked_uid,
			    a->checked, NULL, "the check of node '%s' for the sake of %s %s",
			    n->options.name, a->checked_words, outcome(text_of, status, failed));
	a->checked = NULL;
}

/* The node's own outcome is told anyhow. */
static void remember_checked(struct acting *a, const struct verdict *v, bool alone,
			     const char *words)
{
	const struct subject *s = &v->subject;
	struct node *n = a->node;

	json_decref(a->checked);
	a->checked = s->kind == SUBJECT_NODE && !alone ? NULL : watching_subject_json(n, s);
	a->checked_uid = watching_verdict_uid(n, v);
	a->checked_alone = alone;
	snprintf(a->checked_words, sizeof(a->checked_words), "%s", words);
}

static void validate(struct acting *a, const struct verdict *v, bool alone)
{
	const struct subject *s = &v->subject;
	struct node *n = a->node;
	struct checks *c = n->env.checks;
	char words[SUBJECT_WORDS_MAX];
	int r = c ? c->ops->start(c, true, check_done, a) : -ENOSYS;

	watching_words(n, s, words);
	if (r == 0) {
		remember_checked(a, v, alone, words);
		post_of(n, EVENT_ACTION_STARTED, 5, v,
		     "node '%s' is being checked, at idle priority, for the sake of %s",
		     n->options.name, words);
	} else {
		if (r == -EBUSY && !alone) /* the running check now serves another verdict too */
			a->checked_alone = false;
		post_of(n, EVENT_ACTION_ENDED, r == -EBUSY ? 6 : 4, v,
		     "node '%s' was not checked for the sake of %s: %s%s", n->options.name, words,
		     r == -EBUSY ? "a check is running"
				 : NOT_BEGUN,
		     r == -EBUSY ? "" : err_text(r));
	}
}

/* ---- Deciding ---- */

void acting_facts(struct node *n, const struct subject *s, struct policy_facts *ret)
{
	uint64_t wall = loop_wall(n->env.loop);
	struct checkpoint *c, *newest;
	bool any = false;
	struct job *j;

	*ret = (struct policy_facts){.now_ns = loop_now(n->env.loop), .copies = 0};
	list_each(j, &n->jobs, link) {
		uint64_t age = UINT64_MAX;
		uint32_t copies;

		if (!concerns(j, s))
			continue;
		newest = epoch_newest_restorable(j);
		copies = newest && newest->memory;
		list_each(c, &j->checkpoints, link)
			if (c->durable == DUR_DONE && !c->disk_suspect)
				age = min_u64(age, wall > c->wall_ns ? wall - c->wall_ns : 0);
		ret->copies = any ? (uint32_t)min_u64(ret->copies, copies) : copies;
		ret->durable_age_ns = any ? max_u64(ret->durable_age_ns, age) : age;
		any = true;
	}
	if (!any)
		ret->durable_age_ns = UINT64_MAX;
}

json_t *acting_decision_json(const struct decision *d)
{
	char wanted[POLICY_ACTIONS_TEXT_MAX], now[POLICY_ACTIONS_TEXT_MAX],
		advised[POLICY_ACTIONS_TEXT_MAX], withheld[POLICY_ACTIONS_TEXT_MAX];

	return json_pack("{s:i, s:i, s:s, s:s, s:s, s:s, s:s}", "row",
			 d->row ? (int)d->row->line : 0, "times", (int)d->times, "wanted",
			 policy_actions_text(d->wanted, wanted), "now",
			 policy_actions_text(d->now, now), "advised",
			 policy_actions_text(d->advised, advised), "withheld",
			 policy_actions_text(d->withheld, withheld), "why", d->why);
}

static void tell_decision(struct node *n, const struct verdict *v, const struct decision *d)
{
	char subject[SUBJECT_WORDS_MAX], now[POLICY_ACTIONS_TEXT_MAX];
	json_t *more = acting_decision_json(d);

	if (more)
		json_object_set_new(more, "verdict", json_integer((json_int_t)v->id));
	watching_words(n, &v->subject, subject);
	policy_actions_text(d->now, now);
	events_post(n->events, EVENT_DECISION, d->withheld ? 4 : 5, watching_verdict_uid(n, v),
		    watching_subject_json(n, &v->subject), more, "%s is %s: ckptd does %s: %s",
		    subject, verdict_class_word(v->class), now[0] ? now : "nothing by itself",
		    d->why);
}

/* ---- What was withheld ---- */

static struct withheld *waiting_of(struct acting *a, uint64_t id)
{
	for (uint32_t i = 0; i < a->n_waiting; i++)
		if (a->waiting[i].v.id == id)
			return &a->waiting[i];
	return NULL;
}

static void wait_no_more(struct acting *a, uint64_t id)
{
	struct withheld *w = waiting_of(a, id);

	if (w)
		*w = a->waiting[--a->n_waiting];
}

static void set_timer(struct acting *a)
{
	uint64_t first = UINT64_MAX;

	for (uint32_t i = 0; i < a->n_waiting; i++)
		first = min_u64(first, a->waiting[i].again_ns);
	if (a->n_waiting)
		timer_arm(a->node->env.loop, &a->timer, first);
	else
		timer_disarm(a->node->env.loop, &a->timer);
}

static void wait_for(struct acting *a, const struct verdict *v, const struct decision *d)
{
	struct withheld *w = waiting_of(a, v->id);

	if (!d->withheld || !d->again_ns) {
		wait_no_more(a, v->id);
		return;
	}
	if (!w && a->n_waiting == WAITING_MAX) { /* (2) */
		a->node->env.log(a->node->env.log_arg, 4, NULL,
				 "too many verdicts wait for an action that was withheld: one is "
				 "not decided on again");
		return;
	}
	w = w ? w : &a->waiting[a->n_waiting++];
	*w = (struct withheld){.v = *v, .actions = d->withheld, .again_ns = d->again_ns};
}

/* ---- All of it ---- */

/* withheld: 0, or what was, of one that stands. */
static void act(struct acting *a, const struct verdict *v, uint32_t withheld)
{
	struct node *n = a->node;
	struct policy_facts f;
	struct decision d;

	acting_facts(n, &v->subject, &f);
	if (withheld)
		policy_decide_again(a->policy, v, &f, withheld, &d);
	else
		policy_decide(a->policy, v, &f, &d);
	wait_for(a, v, &d);
	if (!(d.wanted & ~(ACTION_BIT(ACTION_IGNORE) | ACTION_BIT(ACTION_RECORD))) &&
	    (v->level != LEVEL_ALARM || withheld))
		return; /* it is kept, as everything is */
	tell_decision(n, v, &d);
	if (d.now & ACTION_BIT(ACTION_SUSPECT))
		mark_suspect(n, v);
	if (d.now & ACTION_BIT(ACTION_CHECKPOINT))
		checkpoint_now(n, &v->subject, v->of_jobs ? v->owner : EVENT_FOR_ALL);
	if (d.now & ACTION_BIT(ACTION_VALIDATE))
		validate(a, v, !d.seconded);
	if (d.now & ACTION_BIT(ACTION_DRAIN))
		acting_drain(n, "by the policy");
}

/* Each that is due once, whatever becomes of it. */
static void act_again(struct timer *t)
{
	struct acting *a = container_of(t, struct acting, timer);
	uint64_t now = loop_now(a->node->env.loop);

	for (uint32_t i = a->n_waiting; i-- > 0;) {
		struct withheld w = a->waiting[i];

		if (i < a->n_waiting && now >= w.again_ns) /* fewer: some were cleared */
			act(a, &w.v, w.actions);
	}
	set_timer(a);
}

static void act_on_all(struct task *t)
{
	struct acting *a = container_of(t, struct acting, task);
	struct node *n = a->node;
	char line[120];

	a->posted = false;
	loop_label(n->env.loop, "what the policy decides");
	/* What follows may queue more. */
	for (uint32_t i = 0; i < a->n; i++) {
		struct verdict v = a->queue[i];

		act(a, &v, 0);
		if (a->over[i])
			wait_no_more(a, v.id);
	}
	a->n = 0;
	set_timer(a);
	if (!a->left_out)
		return;
	snprintf(line, sizeof(line), "%llu verdicts came at once and nothing was decided on them",
		 (unsigned long long)a->left_out);
	n->env.log(n->env.log_arg, 4, NULL, line);
	a->left_out = 0;
}

/* (3) */
static void cleared(struct acting *a, uint64_t id)
{
	for (uint32_t i = 0; i < a->n; i++)
		a->over[i] |= a->queue[i].id == id;
	wait_no_more(a, id);
}

void acting_verdict(struct node *n, const struct verdict *v)
{
	struct acting *a = n->acting;
	bool of_job;

	if (!a)
		return;
	if (v->state == VERDICT_CLEARED) {
		cleared(a, v->id);
		return;
	}
	of_job = v->subject.kind == SUBJECT_JOB || v->subject.kind == SUBJECT_RANK;
	if (a->n >= (of_job ? QUEUE_JOBS : QUEUE_MAX)) { /* (2) */
		a->left_out++;
		return;
	}
	a->over[a->n] = false;
	a->queue[a->n++] = *v;
	if (a->posted)
		return;
	a->posted = true;
	loop_post(n->env.loop, &a->task);
}

/* ---- Life ---- */

struct policy *acting_policy(struct node *n)
{
	return n->acting->policy;
}

int acting_new(struct node *n, struct acting **ret)
{
	struct policy_options o = {.actions_per_hour = n->options.actions_per_hour,
				   .dry_run = n->options.dry_run,
				   .can = CAN};
	struct acting *a = alloc_zero(sizeof(*a));
	int r;

	*ret = NULL;
	if (!a)
		return -ENOMEM;
	a->node = n;
	task_init(&a->task, FAIR_NODE, act_on_all);
	timer_init(&a->timer, act_again);
	r = policy_new(&o, &a->policy);
	if (r == 0)
		r = policy_take_builtin(a->policy);
	if (r < 0) {
		policy_free(a->policy);
		alloc_free(a);
		return r;
	}
	*ret = a;
	return 0;
}

/* By another table, or with another budget: all that waits. */
static void decide_anew(struct acting *a)
{
	for (uint32_t i = 0; i < a->n_waiting; i++)
		a->waiting[i].again_ns = loop_now(a->node->env.loop);
	set_timer(a);
}

int node_set_policy(struct node *n, const char *name, const char *text, size_t len, struct err *e)
{
	int r = policy_parse(n->acting->policy, name, text, len, e);

	if (r == 0)
		decide_anew(n->acting);
	return r;
}

int node_default_policy(struct node *n)
{
	int r = policy_take_builtin(n->acting->policy);

	if (r == 0)
		decide_anew(n->acting);
	return r;
}

void acting_reload(struct node *n)
{
	struct policy_options o = {.actions_per_hour = n->options.actions_per_hour,
				   .dry_run = n->options.dry_run,
				   .can = CAN};

	policy_set_options(n->acting->policy, &o);
	decide_anew(n->acting);
}

void acting_free(struct acting *a)
{
	if (!a)
		return;
	timer_disarm(a->node->env.loop, &a->timer);
	loop_unpost(a->node->env.loop, &a->task);
	policy_free(a->policy);
	json_decref(a->checked);
	alloc_free(a);
}
