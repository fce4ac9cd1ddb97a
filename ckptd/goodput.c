/* SPDX-License-Identifier: Apache-2.0 */
/*
 * goodput.c - what the time of each job went to since a ckptd began to see it, and how often it
 * should save (doc/goodput.md).
 *
 * Thread: the loop.
 */
#include <config.h>

#include "ckptd/goodput.h"

#include "base/alloc.h"
#include "ckptd/node_priv.h"
#include "ckptd/watching.h"
#include "detect/goodput_json.h"
#include "detect/sample.h"
#include "detect/verdict.h"

static uint64_t now(const struct job *j)
{
	return loop_now(j->node->env.loop);
}

static void set_alarm(struct job *j, int hung, uint64_t since_ns)
{
	goodput_alarm(&j->goodput, now(j), hung ? GOODPUT_HUNG : GOODPUT_SLOW,
		      j->held[hung].n || j->node->held[hung].n, since_ns);
}

void goodput_epoch_opened(struct job *j)
{
	const struct record_epoch *ep = &j->history.epoch;
	const struct checkpoint *base =
		ep->has_base ? checkpoint_find_attempt(j, ep->base_step, &ep->base_attempt) : NULL;

	goodput_epoch(&j->goodput, now(j), ep->has_base, ep->base_step, base && base->memory);
	for (int hung = 0; hung < 2; hung++) /* what holds its node up does so still */
		set_alarm(j, hung, now(j));
	goodput_keep(j);
}

void goodput_died(struct job *j)
{
	goodput_failed(&j->goodput, now(j));
	goodput_keep(j);
}

void goodput_ended(struct job *j)
{
	goodput_over(&j->goodput, now(j));
	goodput_keep(j);
}

void goodput_goes_on(struct job *j)
{
	goodput_back(&j->goodput, now(j));
	goodput_keep(j);
}

/* A ckptd that is killed before the minute is over would take it for one that restarts. */
static void keep_if_new(struct job *j, enum goodput_cause before)
{
	if (before != GOODPUT_TRAINING && j->goodput.state == GOODPUT_TRAINING)
		goodput_keep(j);
}

void goodput_went_on(struct job *j, uint64_t step)
{
	enum goodput_cause before = j->goodput.state;

	goodput_step(&j->goodput, now(j), step);
	keep_if_new(j, before);
}

void goodput_was_committed(const struct checkpoint *c)
{
	struct job *j = c->job;
	enum goodput_cause before = j->goodput.state;

	goodput_committed(&j->goodput, now(j), c->step, c->begun_ns ? now(j) - c->begun_ns : 0);
	keep_if_new(j, before);
	if (j->goodput.state == GOODPUT_AWAY || j->goodput.down)
		goodput_keep(j); /* no minute comes that does it */
}

void goodput_was_durable(const struct checkpoint *c)
{
	if (c->begun_ns)
		goodput_durable(&c->job->goodput, now(c->job) - c->begun_ns);
}

void goodput_sample(struct job *j, const struct sample *s)
{
	if (j && s->kind == SAMPLE_PHASE && s->phase.phase == PHASE_CHECKPOINT && s->rank == 0)
		goodput_save(&j->goodput, s->time_ns, s->phase.begins);
}

/* At most as many as verdicts stand. False: there is no memory for one more. */
static bool grow(struct held_up *h)
{
	uint32_t cap = h->cap ? 2 * h->cap : 16;
	uint64_t *ids = h->n < h->cap ? h->ids : alloc_resize(h->ids, cap * sizeof(*ids));

	if (!ids)
		return false;
	if (h->n == h->cap)
		h->cap = cap;
	h->ids = ids;
	return true;
}

/* One that there is no memory for is not waited for: a figure is wrong, and nothing else. */
static void hold(struct held_up *h, uint64_t id, bool stands)
{
	for (uint32_t i = 0; i < h->n; i++)
		if (h->ids[i] == id)
			h->ids[i--] = h->ids[--h->n];
	if (stands && grow(h))
		h->ids[h->n++] = id;
}

void goodput_forget_held(struct held_up held[2])
{
	for (int hung = 0; hung < 2; hung++) {
		alloc_free(held[hung].ids);
		held[hung] = (struct held_up){0};
	}
}

void goodput_verdict(struct node *n, const struct verdict *v)
{
	enum subject_kind kind = v->subject.kind;
	bool stands = v->state != VERDICT_CLEARED && v->level == LEVEL_ALARM;
	struct job *j = watching_job(n, v->subject.job);
	int hung = v->class == CLASS_HUNG;

	if (!hung && v->class != CLASS_SLOW)
		return;
	if (j && (kind == SUBJECT_JOB || kind == SUBJECT_RANK)) {
		hold(&j->held[hung], v->id, stands);
		set_alarm(j, hung, v->since_ns);
	} else if (!v->of_jobs && /* a verdict on jobs does not hold up other jobs */
		   (kind == SUBJECT_NODE || kind == SUBJECT_GPU || kind == SUBJECT_LINK)) {
		hold(&n->held[hung], v->id, stands);
		list_each(j, &n->jobs, link)
			set_alarm(j, hung, v->since_ns);
	}
}

json_t *goodput_json(struct job *j)
{
	goodput_advance(&j->goodput, now(j));
	return goodput_json_answer(&j->goodput);
}
