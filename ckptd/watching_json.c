/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watching_json.c - see watching_json.h. On the loop's thread.
 */
#include <config.h>

#include "ckptd/watching_json.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "ckptd/events.h"
#include "ckptd/node_priv.h"
#include "ckptd/watching_priv.h"
#include "detect/verdicts.h"


static const char *subject_kind_word(enum subject_kind k)
{
	static const char *const words[] = {"job", "rank", "node", "gpu", "link", "disk"};

	return (unsigned)k < sizeof(words) / sizeof(words[0]) ? words[k] : "?";
}

/* A name stays what it is over restarts, a collector's number need not. */
static void device_json(struct node *n, const struct subject *s, json_t *o)
{
	const char *name = NULL;
	char role;

	if (n->watching)
		name = detector_device_name(n->watching->detector, s, &role);
	if (name)
		json_object_set_new(o, "name", json_string(name));
	if (s->device < DEVICE_UNNUMBERED)
		json_object_set_new(o, "device", json_integer(s->device));
}

json_t *watching_subject_json(struct node *n, const struct subject *s)
{
	struct job *j = watching_job(n, s->job);
	char words[SUBJECT_WORDS_MAX];
	json_t *o;

	watching_words(n, s, words);
	o = json_pack("{s:s, s:s}", "kind", subject_kind_word(s->kind), "words", words);
	if (!o)
		return NULL;
	if (s->kind == SUBJECT_JOB || s->kind == SUBJECT_RANK)
		json_object_set_new(o, "job", j ? json_string(j->history.job.name) : json_null());
	if (s->kind == SUBJECT_RANK)
		json_object_set_new(o, "rank", json_integer(s->rank));
	if (s->kind >= SUBJECT_GPU && s->device != UINT32_MAX)
		device_json(n, s, o);
	return o;
}

/* What JSON cannot say is null. */
static json_t *real(double v)
{
	return isfinite(v) ? json_real(v) : json_null();
}

static json_t *evidence_json(struct node *n, const struct verdict *v)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < v->n_evidence; i++) {
		const struct evidence *e = &v->evidence[i];

		json_array_append_new(
			list,
			json_pack("{s:s, s:o, s:o, s:s, s:I}", "signal", e->signal, "value",
				  real(e->value), "threshold",
				  e->threshold != 0 ? real(e->threshold) : json_null(), "unit",
				  e->unit, "since_ns", (json_int_t)watching_wall(n, e->since_ns)));
	}
	return list;
}

json_t *watching_verdict_json(struct node *n, const struct verdict *v)
{
	static const char *const states[] = {"raised", "updated", "cleared"};
	json_t *o = json_pack("{s:I, s:s, s:s, s:s, s:s, s:s, s:o, s:I, s:I, s:I, s:o, s:s}",
			      "verdict", (json_int_t)v->id, "state", states[v->state], "class",
			      verdict_class_word(v->class), "cause", verdict_cause_word(v->cause),
			      "level", v->level == LEVEL_ALARM ? "alarm" : "note", "advice",
			      verdict_action_word(v->advice), "confidence", real(v->confidence),
			      "since_ns", (json_int_t)watching_wall(n, v->since_ns), "raised_ns",
			      (json_int_t)watching_wall(n, v->raised_ns), "changed_ns",
			      (json_int_t)watching_wall(n, v->changed_ns), "evidence",
			      evidence_json(n, v), "why", v->words);

	if (o && v->cause == CAUSE_XID) {
		json_object_set_new(o, "code", json_integer(v->code));
		json_object_set_new(o, "subcode", json_integer(v->subcode));
	}
	return o;
}

/* What `ckptctl why` knows it by. */
static json_t *ask_json(struct node *n, const struct subject *s)
{
	struct job *j = watching_job(n, s->job);
	const char *name = NULL;
	char role;

	if (s->kind == SUBJECT_RANK && j)
		return json_sprintf("%s:%u", j->history.job.name, s->rank);
	if (s->kind == SUBJECT_JOB && j)
		return json_string(j->history.job.name);
	if (n->watching)
		name = detector_device_name(n->watching->detector, s, &role);
	return json_string(name ? name : n->options.name);
}

static json_t *alarm_json(struct node *n, const struct verdict *v)
{
	char words[SUBJECT_WORDS_MAX];

	watching_words(n, &v->subject, words);
	return json_pack("{s:s, s:s, s:s, s:I, s:o, s:s}", "words", words, "class",
			 verdict_class_word(v->class), "cause", verdict_cause_word(v->cause),
			 "since_ns", (json_int_t)watching_wall(n, v->since_ns), "ask",
			 ask_json(n, &v->subject), "why", v->words);
}

bool watching_is_seen(struct node *n, const struct verdict *v, uint32_t uid, bool sees_all)
{
	uint32_t of = sees_all ? EVENT_FOR_ALL : watching_verdict_uid(n, v);

	return of == EVENT_FOR_ALL || of == uid;
}

void watching_alarm_json(struct node *n, const struct verdict *v, const char *job, uint32_t uid,
			 bool sees_all, json_t *alarms)
{
	struct job *j = watching_job(n, v->subject.job);

	if (v->level != LEVEL_ALARM || !watching_is_seen(n, v, uid, sees_all))
		return;
	if (!j || !job[0] || strcmp(job, j->history.job.name) == 0)
		json_array_append_new(alarms, alarm_json(n, v));
}

uint32_t watching_uid(struct node *n, const struct subject *s)
{
	struct job *j =
		s->kind == SUBJECT_JOB || s->kind == SUBJECT_RANK ? watching_job(n, s->job) : NULL;

	return j ? j->history.job.uid : EVENT_FOR_ALL;
}

uint32_t watching_verdict_uid(struct node *n, const struct verdict *v)
{
	uint32_t uid = watching_uid(n, &v->subject);

	return uid == EVENT_FOR_ALL && v->of_one_owner ? v->owner : uid;
}

uint64_t watching_wall(struct node *n, uint64_t time_ns)
{
	uint64_t now = loop_now(n->env.loop), wall = loop_wall(n->env.loop);

	if (time_ns > now)
		return wall;
	return now - time_ns < wall ? wall - (now - time_ns) : 0;
}
