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
#include "ckptd/events_priv.h"
#include "ckptd/node_priv.h"
#include "ckptd/watching.h"
#include "ckptd/watching_json.h"
#include "detect/policy.h"
#include "detect/verdicts.h"

#define STANDING_MAX 64u
#define EVENTS_SHOWN 20u
#define TEXT_MAX     200u /* of a subject or a reason */

/* What parts of an answer cost, in points (answer.h). */
enum { COST_WHY_HEAD = 128, COST_VERDICT = 30, COST_PASSED = 1 };

/* ---- The subject ---- */

struct asked {
	bool all;
	struct subject subject;
	struct job *job; /* of a job or rank; for the call in which it was found */
	bool of_job;     /* there was one, of this user: */
	uint32_t uid;    /* EVENT_FOR_ALL: it is the node's */
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
	struct job *j, *found = NULL;

	list_each(j, &session_node(s)->jobs, link) {
		if (list_empty(&j->members) || !admin_may_see(s, j))
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

/* Several users have a job of that name: an answer for one of them would pass for all. */
static bool refuse_ambiguous(struct session *s, uint64_t request, const char *text,
			     const struct job *j)
{
	size_t len = strcspn(text, ":");
	char name[TEXT_MAX], names[TEXT_MAX], line[ERR_TEXT_MAX];

	snprintf(name, sizeof(name), "%.*s", (int)len, text);
	if (!admin_is_ambiguous(s, j, name, names, sizeof(names)))
		return false;
	snprintf(line, sizeof(line),
		 "several users have a job '%.64s': name one as UID/NAME (%s), or by its id", name,
		 names);
	session_reply_error(s, request, -EINVAL, line);
	return true;
}

static bool find_or_refuse(struct session *s, uint64_t request, const char *text, struct asked *a)
{
	char line[ERR_TEXT_MAX], hint[NEAR_TEXT_MAX];

	if (strlen(text) < TEXT_MAX && find(s, text, a)) {
		if (a->job && refuse_ambiguous(s, request, text, a->job))
			return false;
		watching_words(session_node(s), &a->subject, a->words);
		a->of_job = a->job != NULL;
		a->uid = watching_uid(session_node(s), &a->subject);
		return true;
	}
	snprintf(line, sizeof(line),
		 "nothing here is called '%.60s'%s: name this node ('%.40s'), a job of yours, a "
		 "rank as JOB:RANK, or a GPU, network port or disk of this node",
		 text, admin_near_job(s, text, hint), session_node(s)->options.name);
	session_reply_error(s, request, CKPT_ENOTFOUND, line);
	return false;
}

/* As subject_contains() has it: a node its devices and ranks, and no job; a job its ranks. words
 * and uid are of a mark or an event. */
static bool holds(const struct asked *a, const char *words, uint32_t uid)
{
	size_t len = strlen(a->words), at = strlen(words);

	if (a->all)
		return true;
	if (a->subject.kind == SUBJECT_NODE)
		return strncmp(words, "job '", 5) != 0;
	/* Another user's job may have the same name. */
	if (a->of_job && uid != EVENT_FOR_ALL && uid != a->uid)
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

/* A standing verdict, as a candidate for the answer. */
struct standing {
	json_t *json;
	bool note;
	char words[SUBJECT_WORDS_MAX];
};

/*
 * HEAD: the fixed part, all of one moment; VERDICTS: the newest STANDING_MAX standing alarms and
 * notes that the user may see; EVENTS: all events that the user may see. A worker chooses from
 * both.
 */
struct why {
	struct answer answer;
	enum { WHY_HEAD, WHY_VERDICTS, WHY_EVENTS } stage;
	struct asked asked;
	bool sees_all, suspect;
	uint32_t uid;
	char job[SUBJECT_WORDS_MAX]; /* the name of a rank's job; else "" */
	char job_name[CKPT_JOB_MAX + 1];
	uint32_t world;
	json_t *doc;
	uint64_t verdict; /* those of lower numbers come next */
	struct standing *standing; /* newest first */
	size_t n, alarms, notes;   /* notes: of the candidates */
	size_t seen;
	size_t own; /* events that are about the subject itself */
	struct events_taken events;
};

/* What led to an alarm that stands is shown besides what came lately. */
static enum events_share concerns(void *arg, const char *words, uint32_t uid)
{
	struct why *x = arg;

	if (!words)
		return x->asked.all ? EVENTS_OTHER : EVENTS_NONE;
	/* What is done for a rank is done to its job, and told of that: a checkpoint. */
	if (x->job[0] && strcmp(words, x->job) == 0)
		return uid == x->asked.uid ? EVENTS_OTHER : EVENTS_NONE;
	if (!holds(&x->asked, words, uid))
		return EVENTS_NONE;
	x->own++;
	for (size_t i = 0; i < x->n; i++)
		if (x->standing[i].json && strcmp(words, x->standing[i].words) == 0)
			return EVENTS_FIRST;
	return EVENTS_OTHER;
}

/* How the saves of its job get on. */
static void add_saves(struct node *n, const struct asked *a, json_t *doc)
{
	const struct job *j = a->all || !a->of_job ? NULL : watching_job(n, a->subject.job);

	if (!j || job_stopped(j))
		return;
	json_object_set_new(doc, "saves", saves_json(j));
	json_object_set_new(doc, "problems", problems_json(j));
}

static bool why_head(struct why *x)
{
	const struct asked *a = &x->asked;
	struct node *n = x->answer.node;
	json_t *known = json_array();
	const struct mark *mark = marks_find(&n->marks, a->words, a->uid);

	x->suspect = mark != NULL;
	x->standing = alloc_array(2 * STANDING_MAX, sizeof(*x->standing));
	watching_explain(n, &a->subject, add_line, known);
	x->doc = json_pack("{s:i, s:s, s:o, s:[], s:o, s:o, s:[], s:i, s:i}", "schema", 2, "node",
			   n->options.name, "subject",
			   a->all ? json_null() : watching_subject_json(n, &a->subject), "verdicts",
			   "known", known, "suspect",
			   mark ? json_string(mark->reason) : json_null(), "events",
			   "verdicts_more", 0, "events_more", 0);
	add_saves(n, a, x->doc);
	json_object_set_new(x->doc, "drained", marks_drain_json(&n->marks));
	json_object_set_new(x->doc, "admission", admission_json(n));
	json_object_set_new(x->doc, "not_kept", watching_dropped_json(n, x->uid, x->sees_all));
	return x->doc && x->standing;
}

static void take_verdict(struct why *x, const struct verdict *v, unsigned *left)
{
	bool note = v->level != LEVEL_ALARM;
	struct node *n = x->answer.node;
	struct standing *s;

	if ((!x->asked.all && !subject_contains(&x->asked.subject, &v->subject)) ||
	    !watching_is_seen(n, v, x->uid, x->sees_all))
		return;
	x->seen++;
	if ((note ? x->notes : x->alarms) == STANDING_MAX)
		return;
	answer_cost(left, COST_VERDICT);
	x->alarms += !note;
	x->notes += note;
	s = &x->standing[x->n++];
	s->note = note;
	s->json = watching_verdict_json(n, v);
	json_object_set_new(s->json, "subject", watching_subject_json(n, &v->subject));
	watching_words(n, &v->subject, s->words);
}

static bool why_verdicts(struct why *x, unsigned *left)
{
	struct verdict v;

	while (*left > 0) {
		if (!watching_older(x->answer.node, x->verdict, &v))
			return true;
		answer_cost(left, COST_PASSED);
		x->verdict = v.id;
		take_verdict(x, &v, left);
	}
	return false;
}

static bool why_gather(struct answer *a, unsigned *left)
{
	struct why *x = container_of(a, struct why, answer);
	int r = 1;

	if (x->stage == WHY_HEAD) {
		answer_cost(left, COST_WHY_HEAD);
		r = why_head(x) ? 1 : -ENOMEM;
		x->stage = WHY_VERDICTS;
	}
	if (r > 0 && x->stage == WHY_VERDICTS && why_verdicts(x, left))
		x->stage = WHY_EVENTS;
	if (r > 0)
		r = x->stage == WHY_EVENTS ? events_take(a->node->events, &x->events, left) : 0;
	if (r < 0)
		answer_fail(a, r, "why: out of memory");
	return r != 0;
}

/* Drops notes for which there is no room beside the alarms; returns how many candidates stay. */
static size_t choose_verdicts(struct why *x)
{
	size_t notes = STANDING_MAX - x->alarms, found = 0;
	json_t *list = json_array();

	for (size_t i = 0; i < x->n; i++) {
		struct standing *s = &x->standing[i];

		if (s->note && notes == 0) {
			json_decref(s->json);
			s->json = NULL;
			continue;
		}
		notes -= s->note;
		found++;
		json_array_append(list, s->json); /* it has one, too, for concerns() */
	}
	json_object_set_new(x->doc, "verdicts", list);
	json_object_set_new(x->doc, "verdicts_more", json_integer((json_int_t)(x->seen - found)));
	return found;
}

/* Whether the subject is a rank beyond its job's world, without verdicts or events of an earlier
 * one. */
static bool is_nobody(const struct why *x, size_t verdicts)
{
	return x->asked.of_job && x->asked.subject.kind == SUBJECT_RANK &&
	       x->asked.subject.rank >= x->world && verdicts + x->own == 0 && !x->suspect;
}

static void why_text(struct why *x)
{
	size_t verdicts = choose_verdicts(x), more = 0;
	json_t *events = events_about(&x->events, concerns, x, EVENTS_SHOWN, &more);

	if (is_nobody(x, verdicts)) {
		json_decref(events);
		answer_fail(&x->answer, CKPT_ENOTFOUND,
			    "job '%s' has %u rank%s: there is no rank %u", x->job_name, x->world,
			    x->world == 1 ? "" : "s", x->asked.subject.rank);
		return;
	}
	if (!events) {
		answer_fail(&x->answer, -ENOMEM, "why: out of memory");
		return;
	}
	json_object_set_new(x->doc, "events", events);
	json_object_set_new(x->doc, "events_more", json_integer((json_int_t)more));
	answer_put_json(&x->answer, json_incref(x->doc));
}

static void why_make(struct answer *a)
{
	struct why *x = container_of(a, struct why, answer);

	if (a->code == 0 && !answer_dropped(a))
		why_text(x);
	for (size_t i = 0; i < x->n; i++)
		json_decref(x->standing[i].json);
	json_decref(x->doc);
}

static void why_free(struct answer *a)
{
	struct why *x = container_of(a, struct why, answer);

	events_let_go(&x->events);
	alloc_free(x->standing);
	alloc_free(x);
}

static const struct answer_kind why_kind = {
	.verb = "why",
	.gather = why_gather,
	.make = why_make,
	.free = why_free,
};

static void why(struct session *s, uint64_t request, const Ckpt__Admin *m)
{
	struct node *n = session_node(s);
	struct asked a;
	struct why *x;

	if (answer_refused(s, request, &why_kind) || !find_or_refuse(s, request, m->text, &a))
		return;
	x = alloc_zero(sizeof(*x));
	if (!x) {
		session_reply_error(s, request, -ENOMEM, "why: out of memory");
		return;
	}
	x->events.q = asks(s);
	x->uid = x->events.q.uid;
	x->sees_all = x->events.q.sees_all;
	x->verdict = UINT64_MAX;
	if (a.job) {
		x->world = a.job->history.epoch.world;
		memcpy(x->job_name, a.job->history.job.name, sizeof(x->job_name));
	}
	if (!a.all && a.subject.kind == SUBJECT_RANK) {
		struct subject job = subject_job(a.subject.job);

		watching_words(n, &job, x->job);
	}
	a.job = NULL; /* it may go */
	x->asked = a;
	answer_start(&x->answer, &why_kind, s, request);
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
		if (holds(a, words, uid))
			removed += marks_remove(&n->marks, words, uid);
	}
	return removed;
}

static void clear(struct session *s, uint64_t request, const Ckpt__Admin *m)
{
	struct node *n = session_node(s);
	unsigned marks, verdicts;
	bool overruled = false;
	char by[32];
	struct asked a;

	if (!find_or_refuse(s, request, m->text, &a) || !may(s, request, a.job && !a.all))
		return;
	marks = remove_marks(n, &a);
	verdicts = (unsigned)watching_clear(n, a.all ? NULL : &a.subject);
	snprintf(by, sizeof(by), "cleared by uid %u", session_process(s)->uid);
	if (a.subject.kind == SUBJECT_NODE)
		overruled = admission_overrule(n, by);
	policy_forget(acting_policy(n), a.all ? NULL : &a.subject);
	/* All users share the places of the ring: a clear that changes nothing takes none. */
	if (marks || verdicts || overruled)
		events_post(n->events, EVENT_CLEARED, 5, watching_uid(n, &a.subject),
			    watching_subject_json(n, &a.subject), NULL,
			    "%s is well again, says uid %u: %u verdict%s and %u mark%s taken back",
			    a.words, session_process(s)->uid, verdicts, verdicts == 1 ? "" : "s",
			    marks, marks == 1 ? "" : "s");
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
			       "'dead process-ended' (the installed policy.tsv has all of them), "
			       "and whom",
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
