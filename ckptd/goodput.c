/* SPDX-License-Identifier: Apache-2.0 */
/*
 * goodput.c - what the time of each job went to since a ckptd began to see it, and how often it
 * should save (doc/goodput.md).
 *
 * Which failures a tier answers is told by what an epoch began with: from memory, if the base was
 * in memory when the epoch was opened, else from disk. Priors are assumed: a process of a job dies
 * about once a day, a node under a job about once a week; each counts like one failure.
 *
 * Thread: the loop.
 */
#include <config.h>

#include "ckptd/goodput.h"

#include <math.h>

#include "base/alloc.h"
#include "ckptd/node_priv.h"
#include "ckptd/watching.h"
#include "detect/goodput.h"
#include "detect/interval.h"
#include "detect/sample.h"
#include "detect/verdict.h"

#define DAY 86400.0

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

void goodput_was_committed(const struct checkpoint *c)
{
	struct job *j = c->job;

	goodput_committed(&j->goodput, now(j), c->step, c->begun_ns ? now(j) - c->begun_ns : 0);
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

/* ---- JSON ---- */

static double mean(const struct goodput_mean *m)
{
	return m->n ? seconds_of(m->ns) / (double)m->n : 0;
}

static json_t *real(double v)
{
	return isfinite(v) ? json_real(v) : json_null();
}

static json_t *tier_json(const char *tier, const struct interval_cost *c,
			 const struct interval_rate *r, const struct interval_advice *a)
{
	static const char *const why[] = {"balance", "bound", "joint"};

	return json_pack("{s:s, s:o, s:I, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:o, s:o, s:o}",
			 "tier", tier, "interval_s", real(a->seconds), "interval_steps",
			 (json_int_t)a->steps, "why", why[a->why], "often_s", real(a->often),
			 "rarely_s", real(a->rarely), "loss", real(a->loss), "stall_s",
			 real(c->stall), "latency_s", real(c->latency), "restart_s",
			 real(c->restart), "failures", (json_int_t)r->failures, "watched_s",
			 real(r->watched), "mtbf_s", real(1 / r->per_s), "seen", real(r->trusted));
}

static json_t *advice_json(const struct goodput *g)
{
	static const struct interval_prior priors[2] = {{.mtbf = DAY, .weight = 1},
							{.mtbf = 7 * DAY, .weight = 1}};
	uint64_t failures = g->failures[0] + g->failures[1], run = 0;
	double restart = seconds_of(g->ns[GOODPUT_RESTART]) / (double)(failures + 1);
	struct interval_cost c[2];
	struct interval_rate r[2];
	struct interval_advice a[2];
	json_t *list = json_array();

	for (int i = 0; i < GOODPUT_COUNT; i++)
		run += i == GOODPUT_AWAY ? 0 : g->ns[i];
	for (int i = 0; i < 2; i++) {
		c[i] = (struct interval_cost){
			.stall = i == 0 ? mean(&g->stall) : 0,
			.latency = mean(&g->latency[i]),
			.restart = restart,
			.step = g->steps ? seconds_of(g->ns[GOODPUT_TRAINING]) / (double)g->steps
					 : 0,
		};
		interval_rate_of(&priors[i], g->failures[i], seconds_of(run), &r[i]);
	}
	interval_advise_tiers(c, r, a);
	json_array_append_new(list, tier_json("memory", &c[0], &r[0], &a[0]));
	json_array_append_new(list, tier_json("disk", &c[1], &r[1], &a[1]));
	return list;
}

json_t *goodput_json(struct job *j)
{
	struct goodput *g = &j->goodput;
	json_t *spent = json_object();

	goodput_advance(g, now(j));
	for (int i = 0; i < GOODPUT_COUNT; i++)
		json_object_set_new(spent, goodput_word((enum goodput_cause)i),
				    real(seconds_of(g->ns[i])));
	return json_pack("{s:o, s:I, s:o, s:o}", "share", real(goodput_share(g)), "steps",
			 (json_int_t)g->steps, "seconds", spent, "advice", advice_json(g));
}
