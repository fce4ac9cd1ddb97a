/* SPDX-License-Identifier: Apache-2.0 */
/*
 * numeric.c - training goes wrong: loss or gradient norm is no number.
 *
 * The ranks of a job report the same step within moments of each other. Where one rank alone has a
 * bad value and the others' are finite, it is named; a value that all of them share (it came out of
 * a reduction) is the job's. So the first bad value waits for the others' reports of the same step,
 * at most half a second, and for none where the step before had no more reporters.
 */
#include <config.h>

#include <math.h>

#include "detect/rules.h"

#define WAIT_NS (500 * NS_PER_MS)

/* How many ranks told of one value at one step. */
struct count {
	uint32_t n, bad, first_bad;
};

struct mine_job {
	uint64_t step; /* that is being reported */
	struct count loss, norm;
	uint32_t reports, usual; /* in this step, in the one before */
	uint64_t bad_ns;         /* the first bad value of a verdict not yet told; 0: none */
	uint64_t bad_step;
	bool accused;
	struct subject who; /* ... then */
	uint32_t finite;    /* steps without a bad value since */
};

struct mine {
	uint32_t waiting; /* jobs with bad_ns */
};

/* The rank that is bad alone; SAMPLE_NONE: nobody in particular. */
static uint32_t alone(const struct count *c)
{
	return c->bad > 0 && c->bad * 4 <= c->n ? c->first_bad : SAMPLE_NONE;
}

static void tell(struct detector *d, struct job *j, struct mine_job *m)
{
	const struct count *bad = m->loss.bad ? &m->loss : &m->norm;
	uint32_t one = alone(bad);
	struct rank *r = known_rank(d, j->number, bad->first_bad);
	struct verdict v;

	if (j->n_expected <= 1)
		one = bad->first_bad;
	m->who = one != SAMPLE_NONE && r ? subject_of_rank(r) : subject_job(j->number);
	m->accused = true;
	m->finite = 0;
	v = verdict_of(m->who, CLASS_DIVERGING, CAUSE_NOT_A_NUMBER, LEVEL_ALARM, ACTION_ROLL_BACK);
	v.since_ns = m->bad_ns;
	verdict_evidence(&v, m->loss.bad ? "ranks with a bad loss" : "ranks with a bad norm",
			 bad->bad, 0, "", m->bad_ns);
	verdict_evidence(&v, "ranks that reported it", bad->n, 0, "", m->bad_ns);
	verdict_evidence(&v, "step", (double)m->bad_step, 0, "", m->bad_ns);
	if (m->who.kind == SUBJECT_RANK && j->n_expected > 1)
		verdict_say(d, &v,
			    "alone has a %s that is no finite number, at step %llu: go back to the "
			    "checkpoint before it, and check this rank's node and its data.",
			    m->loss.bad ? "loss" : "gradient norm",
			    (unsigned long long)m->bad_step);
	else
		verdict_say(d, &v,
			    "has a %s that is no finite number since step %llu (first told by rank "
			    "%u): go back to the checkpoint before it.",
			    m->loss.bad ? "loss" : "gradient norm", (unsigned long long)m->bad_step,
			    bad->first_bad);
	accuse(d, &v);
}

static void decide(struct detector *d, struct job *j, struct mine_job *m)
{
	if (!m->bad_ns)
		return;
	if (!m->accused)
		tell(d, j, m);
	m->bad_ns = 0;
	DETECTOR_OWN(d, numeric, struct mine)->waiting--;
}

static void forgive(struct detector *d, struct mine_job *m, const char *why)
{
	if (m->accused)
		acquit(d, &m->who, CAUSE_NOT_A_NUMBER, why);
	m->accused = false;
}

static void next_step(struct detector *d, struct job *j, struct mine_job *m, uint64_t step)
{
	decide(d, j, m);
	if (m->reports && !m->loss.bad && !m->norm.bad && ++m->finite >= d->options.finite_steps)
		forgive(d, m, "loss and gradient norm are finite again");
	if (m->loss.bad || m->norm.bad)
		m->finite = 0;
	m->usual = m->reports;
	m->reports = 0;
	m->step = step;
	m->loss = m->norm = (struct count){0};
}

static bool enter(struct count *c, double value, uint32_t rank)
{
	c->n++;
	if (isfinite(value))
		return false;
	if (!c->bad++)
		c->first_bad = rank;
	return true;
}

static void on_beat(struct detector *d, const struct sample *s, const struct who *w)
{
	struct mine_job *m = JOB_OWN(d, w->job, numeric, struct mine_job);
	bool bad = false;

	if (!(s->beat.flags & (BEAT_LOSS | BEAT_GRAD_NORM)))
		return;
	if (s->beat.step > m->step)
		next_step(d, w->job, m, s->beat.step);
	if (s->beat.flags & BEAT_LOSS)
		bad |= enter(&m->loss, s->beat.loss, s->rank);
	if (s->beat.flags & BEAT_GRAD_NORM)
		bad |= enter(&m->norm, s->beat.grad_norm, s->rank);
	m->reports++;
	if (bad && !m->bad_ns) {
		m->bad_ns = d->now_ns;
		m->bad_step = s->beat.step;
		DETECTOR_OWN(d, numeric, struct mine)->waiting++;
	}
	if (m->bad_ns && m->usual && m->reports >= m->usual)
		decide(d, w->job, m);
}

static void on_run(struct detector *d, struct job *j)
{
	struct mine_job *m = JOB_OWN(d, j, numeric, struct mine_job);

	if (j->on && j->began_ns != d->now_ns)
		return;
	decide(d, j, m);
	forgive(d, m, j->on ? "a new run has begun" : "the run is over");
	*m = (struct mine_job){0};
}

static void on_sample(struct detector *d, const struct sample *s, const struct who *w)
{
	if (s->kind == SAMPLE_JOB)
		on_run(d, w->job);
	else
		on_beat(d, s, w);
}

static void on_tick(struct detector *d)
{
	struct mine *mine = DETECTOR_OWN(d, numeric, struct mine);

	for (uint32_t i = 0; mine->waiting && i < d->options.jobs_max; i++) {
		struct job *j = d->jobs[i];
		struct mine_job *m = j ? JOB_OWN(d, j, numeric, struct mine_job) : NULL;

		if (m && m->bad_ns && d->now_ns - m->bad_ns >= WAIT_NS)
			decide(d, j, m);
	}
}

const struct rule rule_numeric = {
	.name = "numeric",
	.kinds = 1u << SAMPLE_BEAT | 1u << SAMPLE_JOB,
	.job_bytes = sizeof(struct mine_job),
	.detector_bytes = sizeof(struct mine),
	.tick_ns = 250 * NS_PER_MS,
	.sample = on_sample,
	.tick = on_tick,
};
