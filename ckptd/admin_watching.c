/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admin_watching.c - what operators ask about events and verdicts, and tell about them.
 *
 * Everybody sees what is said of the node and its devices, and of their own jobs; root and ckptd's
 * own user see all. A job's owner may clear it and its ranks; what is the node's is for root and
 * ckptd's own user.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "ckptd/acting.h"
#include "ckptd/admin.h"
#include "ckptd/admission.h"
#include "ckptd/events.h"
#include "ckptd/node_priv.h"
#include "ckptd/watching.h"
#include "ckptd/watching_json.h"
#include "detect/policy.h"
#include "detect/verdicts.h"

#define STANDING_MAX 64u
#define EVENTS_SHOWN 20u
#define TEXT_MAX     200u /* of a subject or a reason */

/* ---- Of whom ---- */

struct asked {
	bool all;
	struct subject subject;
	struct job *job; /* of a job or rank */
	char words[SUBJECT_WORDS_MAX];
};

/* "7": of how many digits; a rank. */
static bool rank_of(const char *text, uint32_t *ret)
{
	char *end;
	unsigned long v;

	if (text[0] < '0' || text[0] > '9' || strlen(text) > 6)
		return false;
	v = strtoul(text, &end, 10);
	*ret = (uint32_t)v;
	return !*end && v < WORLD_MAX;
}

/* The only job of those that may be seen which has ranks here. */
static struct job *only_job(struct session *s)
{
	Ckpt__Admin m = CKPT__ADMIN__INIT;
	struct job *j, *found = NULL;
	char id[ID_TEXT_MAX];

	list_each(j, &session_node(s)->jobs, link) {
		hex_format(id, j->history.job.id.b, sizeof(j->history.job.id.b));
		m.job = id;
		if (list_empty(&j->members) || admin_job(s, &m) != j)
			continue;
		if (found)
			return NULL;
		found = j;
	}
	return found;
}

static struct job *job_called(struct session *s, const char *name, size_t len)
{
	Ckpt__Admin m = CKPT__ADMIN__INIT;
	char text[TEXT_MAX];

	if (len >= sizeof(text))
		return NULL;
	memcpy(text, name, len);
	text[len] = '\0';
	m.job = text;
	return admin_job(s, &m);
}

/* NODE, JOB, JOB:RANK, RANK where one job is here, or a device's name. */
static bool find(struct session *s, const char *text, struct asked *a)
{
	struct node *n = session_node(s);
	const char *colon = strrchr(text, ':');
	uint32_t rank;

	*a = (struct asked){.all = !text[0]};
	a->subject = subject_node(WATCHING_NODE);
	if (a->all || strcmp(text, "node") == 0 || strcmp(text, n->options.name) == 0)
		return true;
	if (watching_device(n, text, &a->subject))
		return true;
	if (colon && rank_of(colon + 1, &rank))
		a->job = job_called(s, text, (size_t)(colon - text));
	else if (rank_of(text, &rank))
		a->job = only_job(s);
	if (a->job) {
		a->subject = subject_rank(watching_number(a->job), rank, WATCHING_NODE);
		return true;
	}
	a->job = job_called(s, text, strlen(text));
	if (a->job)
		a->subject = subject_job(watching_number(a->job));
	return a->job != NULL;
}

static bool find_or_refuse(struct session *s, uint64_t request, const char *text, struct asked *a)
{
	char line[ERR_TEXT_MAX];

	if (strlen(text) < TEXT_MAX && find(s, text, a)) {
		watching_words(session_node(s), &a->subject, a->words);
		return true;
	}
	snprintf(line, sizeof(line),
		 "nothing here is called '%.60s': name this node ('%.40s'), a job of yours, a rank "
		 "as JOB:RANK, or a GPU, network port or disk of this node",
		 text, session_node(s)->options.name);
	session_reply_error(s, request, CKPT_ENOTFOUND, line);
	return false;
}

/* As subject_contains() has it: a node its devices and ranks, and no job; a job its ranks. words
 * and uid are of a mark or an event. */
static bool holds(struct node *n, const struct asked *a, const char *words, uint32_t uid)
{
	size_t len = strlen(a->words), at = strlen(words);

	if (a->all)
		return true;
	if (a->subject.kind == SUBJECT_NODE)
		return strncmp(words, "job '", 5) != 0;
	/* Another user's job may have the same name. */
	if (a->job && uid != EVENT_FOR_ALL && uid != watching_uid(n, &a->subject))
		return false;
	/* "rank 3 of job 'lm'" is of "job 'lm'" */
	return strcmp(words, a->words) == 0 || (a->subject.kind == SUBJECT_JOB && at > len &&
						strcmp(words + at - len, a->words) == 0);
}

static struct events_question asks(struct session *s)
{
	return (struct events_question){.uid = session_process(s)->uid,
					.sees_all = admin_sees_all(s)};
}

/* ---- why ---- */

static void add_line(void *arg, const char *text)
{
	json_array_append_new(arg, json_string(text));
}

/* Those that s may see, and how they are called. */
static json_t *standing(struct session *s, const struct asked *a, struct verdict *v,
			char (*words)[SUBJECT_WORDS_MAX], size_t *ret_n, size_t *ret_more)
{
	struct node *n = session_node(s);
	size_t found = watching_shown(n, a->all ? NULL : &a->subject, session_process(s)->uid,
				      admin_sees_all(s), v, STANDING_MAX, ret_more);
	json_t *list = json_array();

	*ret_n = 0;
	for (size_t i = 0; i < found; i++) {
		json_t *o = watching_verdict_json(n, &v[i]);

		if (o)
			json_object_set_new(o, "subject", watching_subject_json(n, &v[i].subject));
		json_array_append_new(list, o);
		watching_words(n, &v[i].subject, words[(*ret_n)++]);
	}
	return list;
}

struct concern {
	struct node *node;
	const struct asked *asked;
	char (*standing)[SUBJECT_WORDS_MAX]; /* how those are called that stand accused */
	size_t n, own;                       /* own: events that are about the subject itself */
	char job[SUBJECT_WORDS_MAX];         /* of a rank; else "" */
};

/* What led to an alarm that stands is shown besides what came lately. */
static enum events_share concerns(void *arg, const char *words, uint32_t uid)
{
	struct concern *x = arg;

	if (!words)
		return x->asked->all ? EVENTS_OTHER : EVENTS_NONE;
	/* What is done for a rank is done to its job, and told of that: a checkpoint. */
	if (x->job[0] && strcmp(words, x->job) == 0)
		return uid == watching_uid(x->node, &x->asked->subject) ? EVENTS_OTHER
									: EVENTS_NONE;
	if (!holds(x->node, x->asked, words, uid))
		return EVENTS_NONE;
	x->own++;
	for (size_t i = 0; i < x->n; i++)
		if (strcmp(words, x->standing[i]) == 0)
			return EVENTS_FIRST;
	return EVENTS_OTHER;
}

/* How its job is called, of a rank. */
static void name_job(struct concern *x)
{
	const struct asked *a = x->asked;
	struct subject s;

	if (a->all || a->subject.kind != SUBJECT_RANK)
		return;
	s = subject_job(a->subject.job);
	watching_words(x->node, &s, x->job);
}

/* A rank that its job has not; there may have been one. */
static bool is_nobody(const struct asked *a)
{
	return a->job && a->subject.kind == SUBJECT_RANK &&
	       a->subject.rank >= a->job->history.epoch.world;
}

static void refuse_rank(struct session *s, uint64_t request, const struct asked *a)
{
	uint32_t world = a->job->history.epoch.world;
	char line[ERR_TEXT_MAX];

	snprintf(line, sizeof(line), "job '%s' has %u rank%s: there is no rank %u",
		 a->job->history.job.name, world, world == 1 ? "" : "s", a->subject.rank);
	session_reply_error(s, request, CKPT_ENOTFOUND, line);
}

static void why(struct session *s, uint64_t request, const Ckpt__Admin *m)
{
	CLEANUP_FREE struct verdict *v = alloc_array(STANDING_MAX, sizeof(*v));
	CLEANUP_FREE char(*words)[SUBJECT_WORDS_MAX] = alloc_array(STANDING_MAX, sizeof(*words));
	struct events_question q = asks(s);
	struct node *n = session_node(s);
	const struct mark *mark;
	json_t *list, *events, *known, *doc;
	size_t verdicts_more, events_more;
	struct concern x;
	struct asked a;

	if (!v || !words) {
		session_reply_error(s, request, -ENOMEM, "why: out of memory");
		return;
	}
	if (!find_or_refuse(s, request, m->text, &a))
		return;
	x = (struct concern){.node = n, .asked = &a, .standing = words};
	name_job(&x);
	list = standing(s, &a, v, words, &x.n, &verdicts_more);
	mark = marks_find(&n->marks, a.words, watching_uid(n, &a.subject));
	events = events_about(n->events, concerns, &x, EVENTS_SHOWN, &q, &events_more);
	if (is_nobody(&a) && x.n + x.own == 0 && !mark) {
		json_decref(list);
		json_decref(events);
		refuse_rank(s, request, &a);
		return;
	}
	known = json_array();
	watching_explain(n, &a.subject, add_line, known);
	doc = json_pack("{s:i, s:s, s:o, s:o, s:o, s:o, s:o}", "schema", 2, "node", n->options.name,
			"subject", a.all ? json_null() : watching_subject_json(n, &a.subject),
			"verdicts", list, "known", known, "suspect",
			mark ? json_string(mark->reason) : json_null(), "events", events);
	if (doc) {
		json_object_set_new(doc, "verdicts_more", json_integer((json_int_t)verdicts_more));
		json_object_set_new(doc, "events_more", json_integer((json_int_t)events_more));
		json_object_set_new(doc, "drained", marks_drain_json(&n->marks));
		json_object_set_new(doc, "admission", admission_json(n));
		json_object_set_new(
			doc, "not_kept",
			watching_dropped_json(n, session_process(s)->uid, admin_sees_all(s)));
	}
	admin_reply_json(s, request, doc);
}

/* ---- clear, drain ---- */

static bool may(struct session *s, uint64_t request, bool owner)
{
	if (owner || admin_sees_all(s))
		return true;
	session_reply_error(s, request, CKPT_EDENIED,
			    "only root and ckptd's own user may do that to this node");
	return false;
}

static unsigned remove_marks(struct node *n, const struct asked *a)
{
	unsigned removed = 0;

	for (uint32_t i = n->marks.n; i-- > 0;) {
		uint32_t uid = n->marks.suspects[i].uid;
		char words[MARK_WORDS_MAX];

		memcpy(words, n->marks.suspects[i].words, sizeof(words));
		if (holds(n, a, words, uid))
			removed += marks_remove(&n->marks, words, uid);
	}
	return removed;
}

static void clear(struct session *s, uint64_t request, const Ckpt__Admin *m)
{
	struct node *n = session_node(s);
	unsigned marks, verdicts;
	char by[32];
	struct asked a;

	if (!find_or_refuse(s, request, m->text, &a) || !may(s, request, a.job && !a.all))
		return;
	marks = remove_marks(n, &a);
	verdicts = (unsigned)watching_clear(n, a.all ? NULL : &a.subject);
	snprintf(by, sizeof(by), "cleared by uid %u", session_process(s)->uid);
	if (a.subject.kind == SUBJECT_NODE)
		ignore_result(admission_overrule(n, by) /* it may have been admitted */);
	policy_forget(acting_policy(n), a.all ? NULL : &a.subject);
	events_post(n->events, EVENT_CLEARED, 5, watching_uid(n, &a.subject),
		    watching_subject_json(n, &a.subject), NULL,
		    "%s is well again, says uid %u: %u verdict%s and %u mark%s taken back", a.words,
		    session_process(s)->uid, verdicts, verdicts == 1 ? "" : "s", marks,
		    marks == 1 ? "" : "s");
	admin_reply_json(s, request,
			 json_pack("{s:i, s:o, s:i, s:i}", "schema", 2, "subject",
				   watching_subject_json(n, &a.subject), "verdicts_cleared",
				   (int)verdicts, "marks_cleared", (int)marks));
}

static void drain(struct session *s, uint64_t request, const Ckpt__Admin *m)
{
	struct node *n = session_node(s);
	bool on = m->verb == CKPT__ADMIN__VERB__DRAIN, was = n->marks.drained, overruled;
	char reason[MARK_REASON_MAX];

	if (!may(s, request, false))
		return;
	snprintf(reason, sizeof(reason), "%.*s%sby uid %u", (int)TEXT_MAX / 2, m->text,
		 m->text[0] ? ", " : "", session_process(s)->uid);
	for (char *p = reason; *p; p++)
		if ((unsigned char)*p < 0x20 || (unsigned char)*p > 0x7e)
			*p = '?'; /* it goes into the log and into JSON */
	overruled = !on && admission_overrule(n, reason);
	if (on)
		acting_drain(n, reason);
	else
		acting_undrain(n, reason);
	admin_reply_json(s, request,
			 json_pack("{s:i, s:s, s:o, s:b}", "schema", 2, "node", n->options.name,
				   "drained", marks_drain_json(&n->marks), "changed",
				   (int)(was != on || overruled)));
}

/* ---- policy ---- */

static const char *or_any(uint32_t value, uint32_t any, const char *word)
{
	return value == any ? "*" : word;
}

static json_t *row_json(const struct policy_row *r)
{
	static const char *const kinds[] = {"job", "rank", "node", "gpu", "link", "disk"};
	char copies[32], durable[32], spares[32], text[POLICY_ACTIONS_TEXT_MAX];
	const char *kind = "*";
	json_t *steps = json_array();

	for (unsigned i = 0; i < 6; i++)
		if (r->subject == 1u << i)
			kind = kinds[i];
	for (uint32_t i = 0; i < r->n_steps; i++)
		json_array_append_new(steps, json_string(policy_actions_text(r->steps[i], text)));
	return json_pack(
		"{s:i, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:o, s:i, s:I, s:I}", "row", (int)r->line,
		"class",
		or_any(r->class, CLASS_COUNT, verdict_class_word((enum verdict_class)r->class)),
		"cause",
		or_any(r->cause, CAUSE_COUNT, verdict_cause_word((enum verdict_cause)r->cause)),
		"level",
		r->level > LEVEL_ALARM    ? "*"
		: r->level == LEVEL_ALARM ? "alarm"
					  : "note",
		"kind", kind, "copies", policy_limit_text(&r->copies, false, copies), "durable",
		policy_limit_text(&r->durable, true, durable), "spares",
		policy_limit_text(&r->spares, false, spares), "actions", steps, "times",
		(int)r->times, "window_ns", (json_int_t)r->window_ns, "hold_ns",
		(json_int_t)r->hold_ns);
}

static bool find_words(const char *class, const char *cause, struct verdict *v)
{
	bool found = false;

	for (unsigned i = 0; i < CLASS_COUNT; i++)
		if (strcmp(class, verdict_class_word((enum verdict_class)i)) == 0) {
			v->class = (enum verdict_class)i;
			found = true;
		}
	for (unsigned i = 0; found && i < CAUSE_COUNT; i++)
		if (strcmp(cause, verdict_cause_word((enum verdict_cause)i)) == 0) {
			v->cause = (enum verdict_cause)i;
			return true;
		}
	return false;
}

/* Of the newest alarm of that kind that stands against the subject, else what they usually say. */
static enum verdict_action advice_of(struct node *n, const struct verdict *like)
{
	size_t most = watching_standing(n, &like->subject, NULL, 0);
	CLEANUP_FREE struct verdict *all = alloc_array(most, sizeof(*all));
	size_t there = all ? watching_standing(n, &like->subject, all, most) : 0;

	for (size_t i = 0; i < there && i < most; i++) {
		const struct verdict *v = &all[i];

		if (v->class == like->class && v->cause == like->cause && v->level == LEVEL_ALARM &&
		    subject_same(&v->subject, &like->subject))
			return v->advice;
	}
	return policy_usual_advice(like->cause, like->subject.kind);
}

/* "CLASS CAUSE [SUBJECT]": what would be done about that alarm now. */
static int would(struct session *s, const char *text, json_t **ret, struct err *e)
{
	struct node *n = session_node(s);
	struct verdict v = {.level = LEVEL_ALARM};
	char class[32] = "", cause[32] = "", who[TEXT_MAX] = "";
	struct policy_facts f;
	struct decision d;
	struct asked a;

	if (sscanf(text, "%31s %31s %199s", class, cause, who) < 2 || !find_words(class, cause, &v))
		return err_set(e, -EINVAL,
			       "policy: '%.60s' is no verdict: give its class and cause, such as "
			       "'dead process-ended' (share/policy.tsv has all of them), and whom",
			       text);
	if (!find(s, who, &a))
		return err_set(e, CKPT_ENOTFOUND, "policy: nothing here is called '%.60s'", who);
	v.subject = a.subject;
	v.advice = advice_of(n, &v);
	acting_facts(n, &v.subject, &f);
	policy_ask(acting_policy(n), &v, &f, &d);
	*ret = acting_decision_json(&d);
	return *ret ? 0 : err_code(e, -ENOMEM, "policy");
}

static void policy(struct session *s, uint64_t request, const Ckpt__Admin *m)
{
	struct node *n = session_node(s);
	const struct policy *p = acting_policy(n);
	json_t *rows, *doc, *decision = NULL;
	struct err e = {0};
	int r = m->text[0] ? would(s, m->text, &decision, &e) : 0;

	if (r < 0) {
		session_reply_error(s, request, r, e.text);
		return;
	}
	rows = json_array();
	for (size_t i = 0; i < policy_size(p); i++)
		json_array_append_new(rows, row_json(policy_at(p, i)));
	doc = json_pack("{s:i, s:s, s:b, s:i, s:o}", "schema", 2, "path", policy_name(p), "dry_run",
			(int)n->options.dry_run, "actions_per_hour",
			(int)n->options.actions_per_hour, "rows", rows);
	if (doc && decision)
		json_object_set_new(doc, "decision", decision);
	else
		json_decref(decision);
	admin_reply_json(s, request, doc);
}

/* ---- Verbs ---- */

static void events(struct session *s, uint64_t request, const Ckpt__Admin *m)
{
	struct events_question q = asks(s);

	q.since = m->since;
	q.since_ns = m->since_ns;
	q.wait = m->wait;
	events_ask(session_node(s)->events, s, request, &q);
}

void admin_watching(struct session *s, uint64_t request, const Ckpt__Admin *m)
{
	if (!session_node(s)->ready && m->verb != CKPT__ADMIN__VERB__EVENTS) {
		session_reply_error(s, request, -EAGAIN, "ckptd is starting: try again");
		return;
	}
	switch ((int)m->verb) {
	case CKPT__ADMIN__VERB__EVENTS:
		events(s, request, m);
		break;
	case CKPT__ADMIN__VERB__WHY:
		why(s, request, m);
		break;
	case CKPT__ADMIN__VERB__CLEAR:
		clear(s, request, m);
		break;
	case CKPT__ADMIN__VERB__DRAIN:
	case CKPT__ADMIN__VERB__UNDRAIN:
		drain(s, request, m);
		break;
	default:
		policy(s, request, m);
		break;
	}
}
