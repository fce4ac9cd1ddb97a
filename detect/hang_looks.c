/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hang_looks.c - what each rank of a job does, by the looks at its process and by its node's
 * metrics; and who rests, also where nobody is late.
 *
 * Who is late is asked, once a second. Who tells of no steps (pace_mute()) is asked once a minute,
 * and on until he is seen to be stopped or not. A node's usual work is learned while nobody there
 * is late.
 *
 * Invariants: (1) nobody is taken to do something for want of an answer: who is seen neither by
 * looks nor by metrics is DOING_UNKNOWN, and his answer is waited for no longer than ANSWER_NS; (2)
 * nothing here says anything.
 */
#include <config.h>

#include "detect/hang_priv.h"

#include <math.h>
#include <stdio.h>

#define ANSWER_NS     (10 * NS_PER_SEC) /* who was asked for so long is judged unseen */
#define MUTE_EVERY_NS (60 * NS_PER_SEC) /* between looks at who tells of no steps */
#define BETTER_NS     (60 * NS_PER_SEC) /* a measure better than those that came is awaited */

int hang_node_works(const struct detector *d, const struct rank *r, const struct lateness *l)
{
	const struct node *n = known_node(d, r->node);
	const struct mine_node *m = n ? NODE_OWN(d, n, hang, struct mine_node) : NULL;

	if (!m || !(m->usual > 0) || m->now_ns <= l->since_ns)
		return 0;
	return m->now >= m->usual * d->options.busy_share ? 1 : -1;
}

enum doing hang_doing_of(const struct detector *d, const struct rank *r, const struct lateness *l)
{
	enum doing doing = looks_say(&RANK_OWN(d, r, hang, struct mine_rank)->looks, d->now_ns);

	return doing == DOING_UNKNOWN && hang_node_works(d, r, l) > 0 ? DOING_BUSY : doing;
}

double hang_quiet_of(const struct detector *d, const struct rank *r, const struct lateness *l)
{
	uint64_t busy_ns = RANK_OWN(d, r, hang, struct mine_rank)->busy_ns;

	return busy_ns ? fmin(l->age_s, seconds_of(detector_age(d, busy_ns))) : l->age_s;
}

void hang_ask(struct detector *d, struct rank *r, bool wanted)
{
	struct mine_rank *m = RANK_OWN(d, r, hang, struct mine_rank);

	probe(d, r, wanted);
	if (!wanted)
		m->asked_ns = 0;
	else if (!m->asked_ns)
		m->asked_ns = d->now_ns;
}

bool hang_answered(const struct detector *d, const struct rank *r)
{
	const struct mine_rank *m = RANK_OWN(d, r, hang, struct mine_rank);

	return looks_say(&m->looks, d->now_ns) != DOING_UNKNOWN ||
	       (m->asked_ns && detector_age(d, m->asked_ns) >= ANSWER_NS);
}

void hang_look_at_mute(struct detector *d, const struct job *j, struct rank *r)
{
	bool at_once = JOB_OWN(d, j, hang, struct mine_job)->stopping;
	struct mine_rank *m = RANK_OWN(d, r, hang, struct mine_rank);
	bool fresh = m->asked_ns && looks_fresh(&m->looks, d->now_ns);

	if (fresh && m->looks.doing == DOING_STOPPED) {
		if (!m->stopped_ns)
			m->stopped_ns = m->looks.at_ns;
	} else if (fresh ||
		   (m->asked_ns && hang_answered(d, r) && !looks_due(&m->looks, d->now_ns))) {
		hang_ask(d, r, false);
		m->stopped_ns = 0;
		m->look_ns = d->now_ns + MUTE_EVERY_NS;
	} else if (!m->asked_ns && (at_once || d->now_ns >= m->look_ns)) {
		m->looks.n = 0;
		hang_ask(d, r, true);
	}
}

bool hang_late_of(const struct detector *d, const struct job *j, const struct rank *r,
		  struct lateness *ret)
{
	const struct mine_rank *m = RANK_OWN(d, r, hang, struct mine_rank);
	bool late = pace_late(d, j, r, ret);

	if (!ret->mute || !m->stopped_ns)
		return late;
	ret->since_ns = m->stopped_ns;
	ret->age_s = seconds_of(detector_age(d, m->stopped_ns));
	return ret->age_s >= seconds_of(MUTE_STOPPED_NS);
}

void hang_note_rest(struct detector *d, struct rank *r, const struct lateness *l)
{
	struct mine_rank *m = RANK_OWN(d, r, hang, struct mine_rank);
	enum doing doing = hang_doing_of(d, r, l);

	if (doing == DOING_BUSY)
		m->busy_ns = d->now_ns;
	if (doing == DOING_LATER)
		m->later_ns = d->now_ns;
}

static uint64_t later_of(uint64_t a_ns, uint64_t b_ns)
{
	return a_ns > b_ns ? a_ns : b_ns;
}

static bool rests(const struct detector *d, const struct job *j, const struct rank *r,
		  uint64_t since_ns, uint64_t quiet_ns)
{
	const struct mine_rank *m = RANK_OWN(d, r, hang, struct mine_rank);
	double least_s = seconds_of(quiet_ns);
	struct lateness l;

	pace_late(d, j, r, &l);
	if (l.phase && l.age_s <= l.timeout_s)
		return false;
	since_ns = later_of(since_ns, r->heard_ns);
	switch (hang_doing_of(d, r, &l)) {
	case DOING_BUSY:
		return !l.mute && seconds_of(detector_age(d, since_ns)) > d->options.busy_s;
	case DOING_LATER:
	case DOING_UNKNOWN:
		if (l.mute)
			return false;
		since_ns = later_of(since_ns, m->busy_ns);
		return seconds_of(detector_age(d, since_ns)) > d->options.later_s;
	case DOING_ASLEEP:
		least_s = fmax(least_s, d->options.asleep_s);
		break;
	case DOING_STOPPED:
	case DOING_WAITING:
	case DOING_IDLE:
		break;
	}
	since_ns = later_of(since_ns, later_of(m->busy_ns, m->later_ns));
	return seconds_of(detector_age(d, since_ns)) > least_s;
}

bool hang_rests(const struct detector *d, const struct job *j, uint64_t since_ns, uint64_t quiet_ns,
		struct hang_rest *ret)
{
	const struct rank *r, *one = NULL;
	struct lateness l;

	ret->mute = false;
	each_rank(r, j)
	{
		if (!lives(r))
			continue;
		if (!rests(d, j, r, since_ns, quiet_ns))
			return false;
		ret->mute |= pace_mute(d, j, r);
		if (!one)
			one = r;
	}
	if (!one)
		return false;
	pace_late(d, j, one, &l);
	snprintf(ret->words, sizeof(ret->words), "rank %u: %s", one->number,
		 doing_words(hang_doing_of(d, one, &l)));
	return true;
}

/* What tells how much a node works, best last: power where it is known, as a spinning GPU takes
 * less of it. */
static const enum sample_metric measures[] = {METRIC_CPU, METRIC_GPU_BUSY, METRIC_GPU_POWER};

/* A sample may lack what others have: GPUs are asked by a thread of their own, which can be late.
 * It says nothing then, as watts are no share of a core; unless nothing better comes any more. NAN:
 * it says nothing. */
static float work_of(struct mine_node *m, const float *metrics, uint64_t now_ns)
{
	uint32_t best = sizeof(measures) / sizeof(measures[0]);

	while (best > 0 && isnan(metrics[measures[best - 1]]))
		best--;
	if (best == 0 || (best < m->measure && now_ns - m->now_ns < BETTER_NS))
		return NAN;
	if (best != m->measure)
		m->usual = 0;
	m->measure = best;
	return metrics[measures[best - 1]];
}

void hang_on_metrics(struct detector *d, const struct sample *s, struct node *n)
{
	struct mine_node *m = NODE_OWN(d, n, hang, struct mine_node);
	float work = work_of(m, s->metrics, d->now_ns);
	const struct rank *r;
	bool steps = false;

	m->gpus |= isfinite(s->metrics[METRIC_GPU_BUSY]) ||
		   isfinite(s->metrics[METRIC_GPU_POWER]) || isfinite(s->metrics[METRIC_GPU_CLOCK]);
	if (!isfinite(work))
		return;
	m->now = work;
	m->now_ns = d->now_ns;
	list_each(r, &n->ranks, of_node) {
		if (!awaited(d, r))
			continue;
		if (RANK_OWN(d, r, hang, struct mine_rank)->late)
			return; /* not usual */
		steps |= r->n_beats > 1 && !r->depth;
	}
	if (steps)
		m->usual = m->usual > 0 ? m->usual * 0.95f + work * 0.05f : work;
}

bool hang_has_gpu(const struct detector *d, const struct rank *r)
{
	const struct node *n = known_node(d, r->node);

	if (n && NODE_OWN(d, n, hang, struct mine_node)->gpus)
		return true;
	for (const struct device *x = n ? n->devices : NULL; x; x = x->next)
		if (x->role == 'g')
			return true;
	return false;
}
