/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pace.c - learns how long steps, starts and declared phases take.
 *
 * Per rank the window of phi accrual over its steps, per job one over each declared phase, without
 * intervals that ended a suspicion, but UNLEARNED_MAX such in a row are a new pace (a longer
 * sequence, a slower input) and begin a new window. Per job: the learned timeouts, which do take
 * what ended a suspicion, so that a long step that was nothing will be nothing again; they leave
 * out what was found to be a fault.
 *
 * Many trainers never tell of a step. So who has told of none in this run is late only if somebody
 * of its job once did, and while others are not FEW_STEPS beyond it: else nobody waits for it.
 */
#include <config.h>

#include "detect/pace.h"

#include <math.h>

#include "detect/phi.h"
#include "detect/timeout.h"

#define UNLEARNED_MAX 5
#define FEW_STEPS     8 /* of the job, before its pace is known */

struct mine_rank {
	struct phi steps;
	uint64_t most;     /* its job's, when it came */
	uint8_t unlearned; /* suspicions in a row */
	bool suspected, broken;
};

struct mine_job {
	struct timeouts learned;
	uint64_t most; /* beats of one rank in this run */
	bool beats;    /* somebody ever did, in any run */
	bool declares;
};

static uint32_t window_of(const struct job *j)
{
	uint64_t n = UINT64_C(64) * (j->n_expected ? j->n_expected : 1);

	return n < 128 ? 128 : n > 16384 ? 16384 : (uint32_t)n;
}

static void learn_phi(struct mine_rank *m, double s)
{
	if (m->suspected && ++m->unlearned < UNLEARNED_MAX)
		return;
	if (!m->steps.n || m->unlearned >= UNLEARNED_MAX)
		phi_bootstrap(&m->steps, s);
	else
		phi_learn(&m->steps, s);
	m->unlearned = 0;
}

static void on_beat(struct detector *d, const struct sample *s, const struct who *w)
{
	struct mine_rank *m = RANK_OWN(d, w->rank, pace, struct mine_rank);
	struct mine_job *mj = JOB_OWN(d, w->job, pace, struct mine_job);
	const struct rank *r = w->rank;
	double age;

	mj->beats = true;
	if (r->n_beats > mj->most)
		mj->most = r->n_beats;
	if (r->n_beats == 1) {
		if (r->began_ns >= d->lit_ns && !m->broken)
			learned_add(&mj->learned.starts, seconds_of(d->now_ns - r->began_ns),
				    d->now_ns, window_of(w->job));
	} else if (r->interval_ns) {
		/* As it is waited for: from beat to beat, however many steps one tells of. */
		age = seconds_of(r->interval_ns) * ((double)s->beat.missed + 1);
		if (!m->broken)
			learned_add(&mj->learned.steps, age, d->now_ns, window_of(w->job));
		learn_phi(m, age);
	}
	m->suspected = m->broken = false;
}

/* All ranks end one long phase: that is one suspicion, not as many as there are ranks. */
static void learn_phase_phi(struct learned_phase *l, bool suspected, uint64_t since_ns,
			    uint64_t now_ns, double s)
{
	if (suspected) {
		if (since_ns >= l->unlearned_ns) {
			l->unlearned++;
			l->unlearned_ns = now_ns;
		}
		if (l->unlearned < UNLEARNED_MAX)
			return;
	}
	if (!l->phi.n || l->unlearned >= UNLEARNED_MAX)
		phi_bootstrap(&l->phi, s);
	else
		phi_learn(&l->phi, s);
	l->unlearned = 0;
}

static void on_phase(struct detector *d, const struct sample *s, const struct who *w)
{
	struct mine_rank *m = RANK_OWN(d, w->rank, pace, struct mine_rank);
	struct mine_job *mj = JOB_OWN(d, w->job, pace, struct mine_job);
	const struct rank *r = w->rank;
	/* The one that ended is still where it stood. */
	const struct in_phase *p = r->depth < PHASE_DEPTH ? &r->phases[r->depth] : NULL;

	if (s->phase.phase != PHASE_CHECKPOINT && s->phase.phase != PHASE_LOAD)
		mj->declares = true;
	if (s->phase.begins || !p || p->phase != s->phase.phase || !p->since_ns)
		return;
	if (p->since_ns >= d->lit_ns && !m->broken) {
		struct learned_phase *l =
			timeouts_phase(&mj->learned, p->phase, p->what, d->now_ns);
		double lasted = seconds_of(d->now_ns - p->since_ns);

		learned_add(&l->times, lasted, d->now_ns, window_of(w->job));
		learn_phase_phi(l, m->suspected, p->since_ns, d->now_ns, lasted);
	}
	m->suspected = m->broken = false;
}

static void on_run(struct detector *d, struct job *j)
{
	struct mine_job *mj = JOB_OWN(d, j, pace, struct mine_job);
	struct rank *r;

	if (!j->on || j->began_ns != d->now_ns)
		return;
	timeouts_new_run(&mj->learned);
	mj->most = 0;
	each_rank(r, j) * RANK_OWN(d, r, pace, struct mine_rank) = (struct mine_rank){0};
}

/* Others may have done many steps before it came. */
static void on_member(struct detector *d, const struct who *w)
{
	if (w->rank->began_ns == d->now_ns)
		RANK_OWN(d, w->rank, pace, struct mine_rank)->most =
			JOB_OWN(d, w->job, pace, struct mine_job)->most;
}

static void on_sample(struct detector *d, const struct sample *s, const struct who *w)
{
	if (s->kind == SAMPLE_BEAT)
		on_beat(d, s, w);
	else if (s->kind == SAMPLE_PHASE)
		on_phase(d, s, w);
	else if (s->kind == SAMPLE_MEMBER)
		on_member(d, w);
	else
		on_run(d, w->job);
}

double pace_step(const struct detector *d, const struct job *j)
{
	const struct learned *l = &JOB_OWN(d, j, pace, struct mine_job)->learned.steps;

	return l->n < FEW_STEPS ? 0 : l->median;
}

bool pace_declares(const struct detector *d, const struct job *j)
{
	return JOB_OWN(d, j, pace, struct mine_job)->declares;
}

bool pace_mute(const struct detector *d, const struct job *j, const struct rank *r)
{
	const struct mine_job *mj = JOB_OWN(d, j, pace, struct mine_job);

	if (r->n_beats)
		return false;
	return !mj->beats || mj->most >= RANK_OWN(d, r, pace, struct mine_rank)->most + FEW_STEPS;
}

void pace_suspect(struct detector *d, struct rank *r)
{
	RANK_OWN(d, r, pace, struct mine_rank)->suspected = true;
}

void pace_broken(struct detector *d, struct rank *r)
{
	RANK_OWN(d, r, pace, struct mine_rank)->broken = true;
}

static double sigma_min(const struct detector *d, const struct phi *p)
{
	return fmax(d->options.phi_sigma_s, d->options.phi_sigma_share * phi_mean(p));
}

/* In a declared phase: late beyond twice the usual time and what the trainer expects of it, where
 * phi says so too. */
static bool phase_late(const struct detector *d, const struct mine_job *mj,
		       const struct in_phase *p, struct lateness *l)
{
	static const struct learned_phase nothing;
	const struct learned_phase *known = timeouts_find(&mj->learned, p->phase, p->what);
	struct timeout_options o = {.longest_x = d->options.phase_longest_x,
				    .median_x = d->options.phase_median_x,
				    .floor_s = d->options.phase_floor_s,
				    .first_s = d->options.phase_first_s,
				    .few = 2};
	double expected = seconds_of(p->expected_ns);

	if (!known)
		known = &nothing;
	if (expected > 0) {
		o.floor_s = fmax(d->options.phase_said_s, expected * d->options.phase_expected_x);
		o.first_s = o.floor_s;
	}
	if (p->phase == PHASE_IDLE)
		o.floor_s = fmax(o.floor_s, d->options.phase_idle_s);
	l->phase = p;
	l->since_ns = p->since_ns;
	l->age_s = seconds_of(detector_age(d, p->since_ns));
	l->usual_s = known->times.median > 0 ? known->times.median : expected;
	l->timeout_s = learned_timeout(&known->times, &o);
	l->phi = phi_now(&known->phi, l->age_s, 0, sigma_min(d, &known->phi));
	return l->age_s > l->timeout_s ||
	       (l->usual_s > 0 && l->age_s > fmax(2 * l->usual_s, expected) &&
		(l->phi >= d->options.phi || !known->phi.n));
}

static bool start_late(const struct detector *d, const struct mine_job *mj, const struct rank *r,
		       struct lateness *l)
{
	const struct timeout_options o = {.longest_x = 3, .floor_s = d->options.start_floor_s};

	l->starting = true;
	l->since_ns = r->left_ns > r->began_ns ? r->left_ns : r->began_ns;
	l->age_s = seconds_of(detector_age(d, l->since_ns));
	l->timeout_s = learned_timeout(&mj->learned.starts, &o);
	return l->age_s > l->timeout_s;
}

bool pace_late(const struct detector *d, const struct job *j, const struct rank *r,
	       struct lateness *ret)
{
	const struct mine_rank *m = RANK_OWN(d, r, pace, struct mine_rank);
	const struct mine_job *mj = JOB_OWN(d, j, pace, struct mine_job);
	const struct timeout_options o = {.longest_x = d->options.step_longest_x,
					  .median_x = d->options.step_median_x,
					  .floor_s = d->options.step_floor_s,
					  .first_s = d->options.step_first_s,
					  .few = FEW_STEPS};
	struct lateness *l = ret;

	*l = (struct lateness){.mute = !r->depth && pace_mute(d, j, r)};
	if (r->depth)
		return phase_late(d, mj,
				  &r->phases[(r->depth < PHASE_DEPTH ? r->depth : PHASE_DEPTH) - 1],
				  l);
	if (!r->beat_ns)
		return start_late(d, mj, r, l) && !l->mute;
	l->since_ns = r->left_ns > r->beat_ns ? r->left_ns : r->beat_ns;
	l->age_s = seconds_of(detector_age(d, l->since_ns));
	l->usual_s = pace_step(d, j);
	if (l->usual_s > 0 && l->age_s <= 2 * l->usual_s)
		return false;
	l->timeout_s = learned_timeout(&mj->learned.steps, &o);
	if (l->usual_s <= 0)
		return l->age_s > l->timeout_s;
	l->phi = phi_now(&m->steps, l->age_s, 0, sigma_min(d, &m->steps));
	return l->phi >= d->options.phi || !m->steps.n || l->age_s > l->timeout_s;
}

static void on_explain(const struct detector *d, const struct subject *s, struct explain *e)
{
	const struct job *j = known_job(d, s->job);
	const struct rank *r = s->kind == SUBJECT_RANK ? known_rank(d, s->job, s->rank) : NULL;
	double usual = s->kind == SUBJECT_JOB && j ? pace_step(d, j) : 0;
	struct lateness l;

	if (usual > 0)
		explain_line(e, "a step usually takes %.3g s", usual);
	if (!r || !j->on || !r->expected || r->ended)
		return;
	pace_late(d, j, r, &l);
	if (l.mute)
		explain_line(e,
			     "it has told of no step in %.1f s: none is waited for, as %s; whether "
			     "its process is stopped is looked at once a minute",
			     l.age_s,
			     JOB_OWN(d, j, pace, struct mine_job)->beats
				     ? "others go on without its"
				     : "nobody of its job ever did (ckpt_beat(3))");
	else if (l.timeout_s > 0)
		explain_line(e, "%s for %.1f s; usual %.2f s, too long after %.0f s; phi %.1f",
			     l.phase      ? "in its phase"
			     : l.starting ? "starting"
					  : "in its step",
			     l.age_s, l.usual_s, l.timeout_s, l.phi);
}

const struct rule rule_pace = {
	.name = "pace",
	.kinds = 1u << SAMPLE_BEAT | 1u << SAMPLE_PHASE | 1u << SAMPLE_JOB | 1u << SAMPLE_MEMBER,
	.rank_bytes = sizeof(struct mine_rank),
	.job_bytes = sizeof(struct mine_job),
	.sample = on_sample,
	.explain = on_explain,
};
