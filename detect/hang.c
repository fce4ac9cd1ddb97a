/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hang.c - a job makes no progress: is that a fault, and whose?
 *
 * Lateness (pace.c) is only a suspicion: it makes the detector ask what the process does. Judgement
 * is of a job, not of a rank, as ranks that wait for each other in collectives stop together:
 *
 *   1 a stopped process is to blame after 3 usual steps;
 *   2 else those to blame are who is behind: fewer steps done than others, or not in a collective
 *     while the others wait in one, or late while others go on. One rank: it; all ranks of one
 *     node: the node; else the job;
 *   3 they are told after 3 usual steps if they do nothing (and nothing will wake them), else after
 *     the learned timeout, and while they can be seen to work not before options.busy_s.
 *
 * Who tells of no steps is left out of all this (pace_mute()), but for that it is stopped: it is
 * looked at once a minute.
 *
 * Nothing is said while somebody is in a declared phase that is not late (the others wait for it),
 * after a process of the job ended or a node of it fell silent: that is told by its own rule, and
 * explains why the others stand still.
 *
 * What each rank does is known by hang_looks.c; who is behind, and whether that is proven, by
 * hang_stall.c.
 *
 * Invariant: (1) at most one stall is told at a time per job, and cleared when nobody of those that
 * were told of is late any more.
 */
#include <config.h>

#include "detect/hang_priv.h"

#include <math.h>
#include <stdio.h>

#include "detect/exits.h"
#include "detect/silence.h"

static void say(const struct detector *d, const struct job *j, const struct stall *s,
		enum mark mark, struct verdict *v)
{
	const struct lateness *l = &s->worst;
	char where[128], others[128] = "";
	uint64_t step = v->subject.kind == SUBJECT_JOB ? j->step : s->first->step;

	if (l->mute)
		snprintf(where, sizeof(where), "tells of no steps, and has stood still for %.0f s",
			 l->age_s);
	else if (l->phase)
		snprintf(where, sizeof(where),
			 "has been in phase %s%s%s for %.0f s after step %llu",
			 sample_phase_word(l->phase->phase), l->phase->what[0] ? " " : "",
			 l->phase->what, l->age_s, (unsigned long long)step);
	else if (l->starting)
		snprintf(where, sizeof(where),
			 "has finished no step in %.0f s since its start after step %llu", l->age_s,
			 (unsigned long long)step);
	else
		snprintf(where, sizeof(where),
			 "has finished no step for %.1f s (usual: %.2f s) after step %llu",
			 l->age_s, l->usual_s, (unsigned long long)step);
	if (v->subject.kind == SUBJECT_JOB)
		snprintf(others, sizeof(others), ", nobody alone is behind (%u of %u ranks late)",
			 s->late, s->awaited);
	else if (s->awaited > s->behind && !l->mute)
		snprintf(others, sizeof(others), ", %u other ranks %s", s->awaited - s->behind,
			 mark == MARK_LATE ? "go on" : "wait for it");
	verdict_say(
		d, v, "%s: %s%s. %s", where,
		v->subject.kind == SUBJECT_JOB
			? (s->stopped == s->lives      ? "all of its processes are stopped"
			   : v->cause == CAUSE_STOPPED ? "all of its processes wait or do nothing"
						       : "that is longer than was ever usual")
			: doing_words(hang_doing_of(d, s->first, l)),
		others,
		mark == MARK_STOPPED
			? "Let it go on (SIGCONT) or restart the job from its newest checkpoint."
			: "Take its stacks, then restart the job from its newest checkpoint.");
}

static void accuse_one(struct detector *d, struct job *j, const struct stall *s, enum mark mark,
		       enum verdict_cause cause, struct subject subject)
{
	struct mine_job *m = JOB_OWN(d, j, hang, struct mine_job);
	const struct lateness *l = &s->worst;
	struct verdict v = verdict_of(subject, CLASS_HUNG, cause, LEVEL_ALARM, ACTION_RESTORE);

	if (m->n_told == TOLD_MAX)
		return;
	v.since_ns = l->since_ns;
	verdict_rests_on(&v, j);
	v.confidence = cause == CAUSE_STOPPED ? 0.98 : 0.8;
	verdict_evidence(&v,
			 l->mute    ? "time that it was seen stopped"
			 : l->phase ? "time in its phase"
				    : "time since the last step",
			 l->age_s,
			 l->mute                  ? seconds_of(MUTE_STOPPED_NS)
			 : cause == CAUSE_STOPPED ? d->options.hang_steps * l->usual_s
						  : l->timeout_s,
			 "s", l->since_ns);
	verdict_evidence(&v, "usual time", l->usual_s, 0, "s", l->since_ns);
	if (l->phi > 0)
		verdict_evidence(&v, "phi", l->phi, d->options.phi, "", l->since_ns);
	verdict_evidence(&v, "ranks late", s->late, 0, "", l->since_ns);
	verdict_evidence(&v, "ranks waiting in a collective", s->waiting, 0, "", l->since_ns);
	verdict_evidence(&v, "ranks idle", s->idle + s->asleep + s->stopped, 0, "", l->since_ns);
	say(d, j, s, mark, &v);
	m->cause = cause;
	m->told[m->n_told++] = subject;
	accuse(d, &v);
}

static void accuse_all(struct detector *d, struct job *j, struct stall *s, enum mark mark,
		       enum verdict_cause cause)
{
	struct rank *r;

	if (cause == CAUSE_STOPPED)
		each_rank(r, j) pace_broken(d, r);
	if (mark == MARK_ALL || s->stopped == s->lives) {
		accuse_one(d, j, s, mark, cause,
			   s->awaited == 1 ? subject_of_rank(s->first) : subject_job(j->number));
	} else if (hang_whole_node(d, j, s)) {
		accuse_one(d, j, s, mark, cause, subject_node(s->node));
	} else if (s->behind <= (mark == MARK_STOPPED ? TOLD_MAX : 1)) {
		each_rank(r, j) if (awaited(d, r) && RANK_OWN(d, r, hang, struct mine_rank)->behind)
			accuse_one(d, j, s, mark, cause, subject_of_rank(r));
	} else {
		accuse_one(d, j, s, MARK_ALL, cause, subject_job(j->number));
	}
}

/* (1) */
static bool still_late(const struct detector *d, const struct job *j, const struct subject *s)
{
	uint32_t late = 0, n = 0;
	const struct rank *r;

	each_rank(r, j)
	{
		if (!awaited(d, r) || (s->kind == SUBJECT_RANK && r->number != s->rank) ||
		    (s->kind == SUBJECT_NODE && r->node != s->node))
			continue;
		n++;
		late += RANK_OWN(d, r, hang, struct mine_rank)->late;
	}
	return s->kind == SUBJECT_JOB ? late * 2 > n : late > 0;
}

/* Why it is late no more: was it heard of, or did it end? */
static const char *why_over(const struct job *j, const struct subject *s)
{
	const struct rank *r;

	each_rank(r, j)
	{
		if (lives(r) && (s->kind != SUBJECT_RANK || r->number == s->rank) &&
		    (s->kind != SUBJECT_NODE || r->node == s->node))
			return "it goes on";
	}
	return s->kind == SUBJECT_RANK ? "its process has ended" : "its processes have ended";
}

/* why: NULL: of those that are late no more. */
static void forgive(struct detector *d, struct job *j, const char *why)
{
	struct mine_job *m = JOB_OWN(d, j, hang, struct mine_job);

	for (uint32_t i = m->n_told; i-- > 0;) {
		if (!why && still_late(d, j, &m->told[i]))
			continue;
		acquit(d, &m->told[i], m->cause, why ? why : why_over(j, &m->told[i]));
		m->told[i] = m->told[--m->n_told];
	}
}

/* A process ended or a node is silent: told already, and the reason why others wait. */
static bool explained(const struct detector *d, const struct job *j)
{
	const struct rank *r;

	if (exits_told(d, j))
		return true;
	each_rank(r, j) if (r->expected && silence_suspects(d, r->node)) return true;
	return false;
}

static void judge(struct detector *d, struct job *j)
{
	struct mine_job *m = JOB_OWN(d, j, hang, struct mine_job);
	struct stall s = {.step_min = UINT64_MAX,
			  .quiet_s = INFINITY,
			  .node = SAMPLE_NONE,
			  .declares = pace_declares(d, j),
			  .asks = exits_asks(d, j)};
	enum verdict_cause cause;
	enum mark mark;
	uint64_t oldest_ns = UINT64_MAX;
	struct rank *r;

	each_rank(r, j)
	{
		if (!lives(r))
			continue;
		hang_tally(d, j, r, &s);
		if (r->depth || !r->beat_ns)
			oldest_ns = 0; /* no simple bound */
		else if (r->beat_ns < oldest_ns)
			oldest_ns = r->beat_ns;
	}
	m->stopping = s.stopping > 0;
	forgive(d, j, NULL);
	if (!s.late || s.resting < s.late)
		m->resting_ns = 0;
	else if (!m->resting_ns)
		m->resting_ns = d->now_ns;
	s.resting_s = m->resting_ns ? seconds_of(detector_age(d, m->resting_ns)) : 0;
	if (!s.late) {
		double wait = 2 * pace_step(d, j);

		/* Beats only come later than the oldest of now. */
		m->check_ns = oldest_ns == UINT64_MAX || !oldest_ns
				      ? d->now_ns + NS_PER_SEC
				      : oldest_ns + (uint64_t)(wait * NS_PER_SEC);
		return;
	}
	if (m->n_told || (s.excused && !s.stopped) || explained(d, j))
		return;
	mark = hang_choose_mark(d, j, &s);
	hang_find_behind(d, j, &s, mark);
	if (s.behind && hang_proven(d, &s, mark, &cause))
		accuse_all(d, j, &s, mark, cause);
}

static uint32_t on_tick_job(struct detector *d, struct job *j)
{
	struct mine_job *m = JOB_OWN(d, j, hang, struct mine_job);

	if (exits_asks(d, j) && m->check_ns > d->now_ns + NS_PER_SEC)
		m->check_ns = d->now_ns;
	if (!j->on || d->now_ns < m->check_ns)
		return 0;
	judge(d, j);
	return j->n_ranks;
}

/* ---- what is told ---- */

static void on_run(struct detector *d, struct job *j)
{
	struct mine_job *m = JOB_OWN(d, j, hang, struct mine_job);
	struct rank *r;

	if (j->on && j->began_ns != d->now_ns)
		return;
	forgive(d, j, j->on ? "a new run of its job has begun" : "the run is over");
	*m = (struct mine_job){0};
	each_rank(r, j)
	{
		probe(d, r, false);
		*RANK_OWN(d, r, hang, struct mine_rank) = (struct mine_rank){0};
	}
}

static void on_sample(struct detector *d, const struct sample *s, const struct who *w)
{
	struct mine_rank *m = w->rank ? RANK_OWN(d, w->rank, hang, struct mine_rank) : NULL;

	switch ((unsigned)s->kind) {
	case SAMPLE_BEAT:
	case SAMPLE_PHASE:
		m->looks.n = 0;
		m->busy_ns = m->later_ns = m->stopped_ns = 0;
		break;
	case SAMPLE_ACTIVITY:
		looks_add(&m->looks, &s->activity, hang_has_gpu(d, w->rank), d->now_ns);
		break;
	case SAMPLE_METRICS:
		hang_on_metrics(d, s, w->node);
		break;
	case SAMPLE_EXIT:
		probe(d, w->rank, false);
		*m = (struct mine_rank){0};
		break;
	default:
		on_run(d, w->job);
		break;
	}
}

static void on_well(struct detector *d, const struct subject *s)
{
	for (uint32_t i = 0; i < d->jobs_end; i++) {
		struct mine_job *m =
			d->jobs[i] ? JOB_OWN(d, d->jobs[i], hang, struct mine_job) : NULL;

		for (uint32_t k = m ? m->n_told : 0; k-- > 0;)
			if (subject_contains(s, &m->told[k]))
				m->told[k] = m->told[--m->n_told];
	}
}

static void on_gone(struct detector *d, struct rank *r)
{
	probe(d, r, false);
}

static void on_explain(const struct detector *d, const struct subject *s, struct explain *e)
{
	const struct rank *r = s->kind == SUBJECT_RANK ? known_rank(d, s->job, s->rank) : NULL;
	const struct mine_rank *m = r ? RANK_OWN(d, r, hang, struct mine_rank) : NULL;

	if (m && m->looks.n)
		explain_line(e, "%.1f s ago: %s (seen %u times)",
			     seconds_of(d->now_ns - m->looks.at_ns), doing_words(m->looks.doing),
			     m->looks.n);
}

bool hang_told(const struct detector *d, const struct job *j)
{
	return JOB_OWN(d, j, hang, struct mine_job)->n_told > 0;
}

const struct rule rule_hang = {
	.name = "hang",
	.kinds = 1u << SAMPLE_BEAT | 1u << SAMPLE_PHASE | 1u << SAMPLE_ACTIVITY |
		 1u << SAMPLE_METRICS | 1u << SAMPLE_EXIT | 1u << SAMPLE_JOB,
	.rank_bytes = sizeof(struct mine_rank),
	.node_bytes = sizeof(struct mine_node),
	.job_bytes = sizeof(struct mine_job),
	.tick_ns = 250 * NS_PER_MS,
	.sample = on_sample,
	.tick_job = on_tick_job,
	.gone = on_gone,
	.well = on_well,
	.explain = on_explain,
};
