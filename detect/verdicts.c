/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "detect/verdicts.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"

void verdicts_init(struct verdicts *v, const struct detector_events *events)
{
	*v = (struct verdicts){.next_id = 1, .events = *events};
}

void verdicts_fini(struct verdicts *v)
{
	alloc_free(v->standing);
	v->standing = NULL;
	v->n = v->cap = 0;
}

_Static_assert((VERDICTS_MAX & (VERDICTS_MAX - 1)) == 0 && VERDICTS_MAX >= 4, "grows by doubling");

static void tell(struct verdicts *vs, const struct verdict *v)
{
	vs->told++;
	if (vs->events.verdict)
		vs->events.verdict(vs->events.arg, v);
}

static struct verdict *find(const struct verdicts *vs, const struct verdict *v)
{
	for (size_t i = 0; i < vs->n; i++) {
		struct verdict *s = &vs->standing[i];

		if (s->cause == v->cause && s->code == v->code && s->subcode == v->subcode &&
		    subject_same(&s->subject, &v->subject))
			return s;
	}
	return NULL;
}

static void drop(struct verdicts *vs, size_t i)
{
	assert(i < vs->n);
	vs->n--;
	memmove(&vs->standing[i], &vs->standing[i + 1], (vs->n - i) * sizeof(vs->standing[0]));
}

static bool grow(struct verdicts *vs)
{
	size_t cap = vs->cap ? 2 * vs->cap : 4;
	struct verdict *standing;

	if (vs->n < vs->cap)
		return true;
	if (vs->cap == VERDICTS_MAX)
		return false;
	standing = alloc_resize(vs->standing, cap * sizeof(*standing));
	if (!standing)
		return false;
	vs->standing = standing;
	vs->cap = cap;
	return true;
}

/* Whose alarms are counted together, as jobs are anybody's; SAMPLE_NONE: it is the node's own. */
static uint32_t job_of(const struct verdict *v)
{
	return v->subject.kind == SUBJECT_JOB || v->subject.kind == SUBJECT_RANK ? v->subject.job
										 : SAMPLE_NONE;
}

/* The newest alarm of the job that has the most, where that is fair to it; else vs->n. */
static size_t one_of_many(const struct verdicts *vs, const struct verdict *v)
{
	uint16_t count[VERDICTS_MAX] = {0}; /* jobs that are as many apart are taken for one */
	uint32_t most = 0, own, job = job_of(v);

	for (size_t i = 0; i < vs->n; i++)
		if (job_of(&vs->standing[i]) != SAMPLE_NONE)
			count[job_of(&vs->standing[i]) % VERDICTS_MAX]++;
	for (size_t i = 0; i < VERDICTS_MAX; i++)
		most = count[i] > most ? count[i] : most;
	own = job == SAMPLE_NONE ? 0 : count[job % VERDICTS_MAX] + 1u;
	for (size_t i = vs->n; most > own && i-- > 0;)
		if (job_of(&vs->standing[i]) != SAMPLE_NONE &&
		    count[job_of(&vs->standing[i]) % VERDICTS_MAX] == most)
			return i;
	return vs->n;
}

/* (3) Who gives its place is told as cleared, so that nobody waits for its end. */
static bool make_room(struct verdicts *vs, const struct verdict *v, uint64_t now_ns)
{
	struct verdict old;
	size_t i = vs->n;

	if (grow(vs))
		return true;
	if (v->level == LEVEL_ALARM)
		for (i = 0; i < vs->n && vs->standing[i].level != LEVEL_NOTE;)
			i++;
	if (v->level == LEVEL_ALARM && i == vs->n)
		i = one_of_many(vs, v);
	if (i == vs->n) {
		if (vs->events.dropped)
			vs->events.dropped(vs->events.arg, v);
		return false;
	}
	old = vs->standing[i];
	drop(vs, i);
	if (old.level == LEVEL_ALARM && vs->events.dropped)
		vs->events.dropped(vs->events.arg, &old);
	old.state = VERDICT_CLEARED;
	old.changed_ns = now_ns;
	snprintf(old.words, sizeof(old.words),
		 "that is not known, but too many alarms stand for this one to be kept");
	tell(vs, &old);
	return true;
}

bool verdicts_raise(struct verdicts *vs, const struct verdict *v, uint64_t now_ns)
{
	struct verdict *s = find(vs, v), new = *v;

	assert(v->n_evidence <= EVIDENCE_MAX && v->class < CLASS_COUNT);
	new.changed_ns = now_ns;
	if (s) {
		/* A verdict of two owners' jobs no longer rests on one owner, but still on jobs;
		 * one that the machine supports too does not. */
		bool joint = (s->of_one_owner && (!v->of_one_owner || v->owner != s->owner)) ||
			     (s->of_jobs && !v->of_jobs);
		bool louder = s->level != v->level || s->advice != v->advice || joint;
		bool risen = s->level < v->level || joint;

		new.of_one_owner = s->of_one_owner && !joint;
		new.of_jobs = s->of_jobs && v->of_jobs;

		new.id = s->id;
		new.raised_ns = s->raised_ns;
		if (new.since_ns > s->since_ns)
			new.since_ns = s->since_ns;
		new.state = VERDICT_UPDATED;
		if (!louder)
			new.changed_ns = s->changed_ns;
		*s = new;
		new.risen = risen;
		if (louder)
			tell(vs, &new);
		return louder;
	}
	if (!make_room(vs, v, now_ns))
		return false;
	new.id = vs->next_id++;
	new.raised_ns = now_ns;
	new.state = VERDICT_RAISED;
	vs->standing[vs->n++] = new;
	tell(vs, &new);
	return true;
}

static void clear_at(struct verdicts *vs, size_t i, const char *why, uint64_t now_ns)
{
	struct verdict v = vs->standing[i];

	drop(vs, i);
	v.state = VERDICT_CLEARED;
	v.changed_ns = now_ns;
	if (why)
		snprintf(v.words, sizeof(v.words), "%s", why);
	tell(vs, &v);
}

void verdicts_clear(struct verdicts *vs, const struct subject *s, enum verdict_cause cause,
		    const char *why, uint64_t now_ns)
{
	for (size_t i = vs->n; i-- > 0;)
		if (vs->standing[i].cause == cause && subject_same(&vs->standing[i].subject, s))
			clear_at(vs, i, why, now_ns);
}

void verdicts_clear_code(struct verdicts *vs, const struct subject *s, enum verdict_cause cause,
			 uint32_t code, uint32_t subcode, const char *why, uint64_t now_ns)
{
	const struct verdict wanted = {
		.subject = *s, .cause = cause, .code = code, .subcode = subcode};
	const struct verdict *v = find(vs, &wanted);

	if (v)
		clear_at(vs, (size_t)(v - vs->standing), why, now_ns);
}

size_t verdicts_clear_all(struct verdicts *vs, const struct subject *s, const char *why,
			  uint64_t now_ns)
{
	size_t n = 0;

	for (size_t i = vs->n; i-- > 0;) {
		if (s && !subject_contains(s, &vs->standing[i].subject))
			continue;
		clear_at(vs, i, why, now_ns);
		n++;
	}
	return n;
}

const struct verdict *verdicts_find(const struct verdicts *vs, const struct subject *s,
				    enum verdict_cause cause)
{
	for (size_t i = 0; i < vs->n; i++)
		if (vs->standing[i].cause == cause && subject_same(&vs->standing[i].subject, s))
			return &vs->standing[i];
	return NULL;
}

bool subject_contains(const struct subject *outer, const struct subject *inner)
{
	if (subject_same(outer, inner))
		return true;
	if (outer->kind == SUBJECT_NODE)
		return inner->kind != SUBJECT_JOB && inner->node == outer->node;
	return outer->kind == SUBJECT_JOB && inner->kind == SUBJECT_RANK &&
	       inner->job == outer->job;
}

static struct subject nobody(enum subject_kind kind)
{
	return (struct subject){.kind = kind,
				.node = SAMPLE_NONE,
				.job = SAMPLE_NONE,
				.rank = SAMPLE_NONE,
				.device = SAMPLE_NONE,
				.peer = SAMPLE_NONE};
}

struct subject subject_job(uint32_t job)
{
	struct subject s = nobody(SUBJECT_JOB);

	s.job = job;
	return s;
}

struct subject subject_rank(uint32_t job, uint32_t rank, uint32_t node)
{
	struct subject s = nobody(SUBJECT_RANK);

	s.job = job;
	s.rank = rank;
	s.node = node;
	return s;
}

static struct subject on_node(enum subject_kind kind, uint32_t node, uint32_t device)
{
	struct subject s = nobody(kind);

	s.node = node;
	s.device = device;
	return s;
}

struct subject subject_node(uint32_t node)
{
	return on_node(SUBJECT_NODE, node, SAMPLE_NONE);
}

struct subject subject_gpu(uint32_t node, uint32_t device)
{
	return on_node(SUBJECT_GPU, node, device);
}

struct subject subject_port(uint32_t node, uint32_t device)
{
	return on_node(SUBJECT_LINK, node, device);
}

struct subject subject_path(uint32_t node, uint32_t peer)
{
	struct subject s = on_node(SUBJECT_LINK, node, SAMPLE_NONE);

	s.peer = peer;
	return s;
}

struct subject subject_disk(uint32_t node, uint32_t device)
{
	return on_node(SUBJECT_DISK, node, device);
}

void verdict_evidence(struct verdict *v, const char *signal, double value, double threshold,
		      const char *unit, uint64_t since_ns)
{
	struct evidence *e;

	if (v->n_evidence >= EVIDENCE_MAX)
		return;
	e = &v->evidence[v->n_evidence++];
	snprintf(e->signal, sizeof(e->signal), "%s", signal);
	snprintf(e->unit, sizeof(e->unit), "%s", unit);
	text_clean(e->signal);
	text_clean(e->unit);
	e->value = value;
	e->threshold = threshold;
	e->since_ns = since_ns;
}
