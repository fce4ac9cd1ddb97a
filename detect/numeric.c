/* SPDX-License-Identifier: Apache-2.0 */
/*
 * numeric.c - training goes wrong: loss or gradient norm is no number, jumps, or drifts up.
 *
 * The ranks of a job report the same step within moments of each other. Where one rank alone has a
 * bad value and the others' are finite, it is named; a value that all of them share (it came out of
 * a reduction) is the job's. So the first bad value waits for the others' reports of the same step,
 * at most half a second, and for none where the step before had no more reporters.
 *
 * Which step is reported is what most ranks say: one wild number, or a run that goes back in place,
 * must not make the rest of the run late reports of a step that is over.
 *
 * Jump and drift are of the job: of the median over the ranks of each step (course.h). One odd
 * value is a note; an alarm is what lasts.
 */
#include <config.h>

#include <math.h>

#include "detect/course.h"
#include "detect/rules.h"

#define WAIT_NS    (500 * NS_PER_MS)
#define VALUES_MAX 33 /* of one step: more ranks add nothing to the median */
#define LEAP       1000000 /* steps from one to the next: that is no step number */

/* How many ranks told of one value at one step. */
struct count {
	uint32_t n, bad, first_bad;
	uint32_t n_values;
	float values[VALUES_MAX];
};

/* What stands for jump or drift: of both values, as there is one verdict for a job. */
struct standing {
	bool told;
	enum verdict_level level;
};

struct mine_job {
	uint64_t step; /* that is being reported */
	struct count loss, norm;
	uint32_t reports, usual; /* in this step, in the one before */
	uint32_t elsewhere; /* reports of steps before or far beyond it, less those of others */
	uint64_t bad_ns;         /* the first bad value of a verdict not yet told; 0: none */
	uint64_t bad_step;
	bool accused;
	struct subject who; /* ... then */
	uint32_t finite;    /* steps without a bad value since */
	struct course loss_course, norm_course;
	struct standing jump, drift;
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
}

static void forgive(struct detector *d, struct mine_job *m, const char *why)
{
	if (m->accused)
		acquit(d, &m->who, CAUSE_NOT_A_NUMBER, why);
	m->accused = false;
}

static void say_course(struct detector *d, struct job *j, const struct course *c, const char *name,
		       enum verdict_cause cause, enum verdict_level level)
{
	bool jump = cause == CAUSE_JUMP;
	double from = jump ? course_level(c) : course_drift_from(c),
	       to = jump ? c->value : c->block;
	struct verdict v = verdict_of(subject_job(j->number), CLASS_DIVERGING, cause, level,
				      level == LEVEL_ALARM ? ACTION_ROLL_BACK : ACTION_RECORD);

	v.since_ns = jump ? c->odd_ns : c->drift_ns;
	v.confidence = level == LEVEL_ALARM ? 0.9 : 0.5;
	verdict_evidence(&v, name, to, from, "", v.since_ns);
	if (jump)
		verdict_evidence(&v, "deviations above the median", c->z, COURSE_JUMP_Z, "",
				 v.since_ns);
	else
		verdict_evidence(&v, "cumulated deviations", c->cusum, d->options.cusum_h, "",
				 v.since_ns);
	verdict_say(d, &v, "has a %s of %.4g, %s %.4g%s", name, to,
		    jump ? "far above the usual" : "which has risen for long, from", from,
		    level == LEVEL_ALARM ? ": look at data and learning rate; if it stays, go back "
					   "to a checkpoint before it."
					 : ": nothing to do yet.");
	accuse(d, &v);
}

static void tell_course(struct detector *d, struct job *j, const struct course *c, const char *name,
			enum verdict_cause cause, enum verdict_level level)
{
	struct mine_job *m = JOB_OWN(d, j, numeric, struct mine_job);
	struct standing *s = cause == CAUSE_JUMP ? &m->jump : &m->drift;

	if (s->told && level <= s->level)
		return;
	s->told = true;
	s->level = level;
	say_course(d, j, c, name, cause, level);
}

static void forgive_course(struct detector *d, struct job *j, struct standing *s,
			   enum verdict_cause cause, const char *why)
{
	struct subject job = subject_job(j->number);

	if (s->told)
		acquit(d, &job, cause, why);
	s->told = false;
}

/* A step is over: what it was, as the median of its ranks. */
static void follow(struct detector *d, struct job *j, struct course *c, struct count *of,
		   const char *name, double odd_x, double share)
{
	const struct course_options o = {.odd_x = odd_x,
					 .jump_x = d->options.jump_x,
					 .cusum_k = d->options.cusum_k,
					 .cusum_h = d->options.cusum_h};
	double from;

	if (!of->n_values)
		return;
	course_add(c, median_of(of->values, of->n_values), d->now_ns, &o);
	from = course_drift_from(c);
	if (course_is_odd(c))
		tell_course(d, j, c, name, CAUSE_JUMP, c->jumped ? LEVEL_ALARM : LEVEL_NOTE);
	if (c->drifts)
		tell_course(d, j, c, name, CAUSE_DRIFT,
			    c->block - from >= share * fabs(from) ? LEVEL_ALARM : LEVEL_NOTE);
}

static void follow_both(struct detector *d, struct job *j, struct mine_job *m)
{
	follow(d, j, &m->loss_course, &m->loss, "loss", d->options.odd_loss_x,
	       d->options.drift_loss);
	follow(d, j, &m->norm_course, &m->norm, "gradient norm", d->options.odd_norm_x,
	       d->options.drift_norm);
	if (!m->loss_course.odd && !m->norm_course.odd)
		forgive_course(d, j, &m->jump, CAUSE_JUMP,
			       "it is back at its usual level, or that is a new one");
	if (!m->loss_course.drifts && !m->norm_course.drifts)
		forgive_course(d, j, &m->drift, CAUSE_DRIFT, "it rises no more");
}

static void next_step(struct detector *d, struct job *j, struct mine_job *m, uint64_t step)
{
	decide(d, j, m);
	if (m->reports && !m->loss.bad && !m->norm.bad && ++m->finite >= d->options.finite_steps)
		forgive(d, m, "loss and gradient norm are finite again");
	if (m->loss.bad || m->norm.bad)
		m->finite = 0;
	follow_both(d, j, m);
	m->usual = m->reports;
	m->reports = m->elsewhere = 0;
	m->step = step;
	m->loss.n = m->loss.bad = m->loss.n_values = 0;
	m->norm.n = m->norm.bad = m->norm.n_values = 0;
}

static bool enter(struct count *c, double value, uint32_t rank)
{
	c->n++;
	if (isfinite(value)) {
		if (c->n_values < VALUES_MAX)
			c->values[c->n_values++] = (float)fmax(-1e30, fmin(value, 1e30));
		return false;
	}
	if (!c->bad++)
		c->first_bad = rank;
	return true;
}

/* Whether a report is of another step than the one that is being reported: of one soon after it; of
 * one before or far beyond it only where two rounds more said such than did not. */
static bool goes_on(const struct job *j, struct mine_job *m, uint64_t step)
{
	uint32_t ranks = j->n_expected ? j->n_expected : 1;

	if (step >= m->step && (step - m->step < LEAP || !m->usual)) {
		m->elsewhere -= m->elsewhere > 0;
		return step > m->step;
	}
	return ++m->elsewhere > 2 * ranks;
}

static void on_beat(struct detector *d, const struct sample *s, const struct who *w)
{
	struct mine_job *m = JOB_OWN(d, w->job, numeric, struct mine_job);
	bool bad = false;

	if (!(s->beat.flags & (BEAT_LOSS | BEAT_GRAD_NORM)))
		return;
	if (goes_on(w->job, m, s->beat.step))
		next_step(d, w->job, m, s->beat.step);
	if (s->beat.flags & BEAT_LOSS)
		bad |= enter(&m->loss, s->beat.loss, s->rank);
	if (s->beat.flags & BEAT_GRAD_NORM)
		bad |= enter(&m->norm, s->beat.grad_norm, s->rank);
	m->reports++;
	if (bad && !m->bad_ns) {
		m->bad_ns = d->now_ns;
		m->bad_step = s->beat.step;
	}
	if (m->bad_ns && m->usual && m->reports >= m->usual)
		decide(d, w->job, m);
}

static void on_run(struct detector *d, struct job *j)
{
	struct mine_job *m = JOB_OWN(d, j, numeric, struct mine_job);
	const char *why = j->on ? "a new run has begun" : "the run is over";

	if (j->on && j->began_ns != d->now_ns)
		return;
	decide(d, j, m);
	forgive(d, m, why);
	forgive_course(d, j, &m->jump, CAUSE_JUMP, why);
	forgive_course(d, j, &m->drift, CAUSE_DRIFT, why);
	*m = (struct mine_job){0};
}

static void on_sample(struct detector *d, const struct sample *s, const struct who *w)
{
	if (s->kind == SAMPLE_JOB)
		on_run(d, w->job);
	else
		on_beat(d, s, w);
}

static uint32_t on_tick_job(struct detector *d, struct job *j)
{
	struct mine_job *m = JOB_OWN(d, j, numeric, struct mine_job);

	if (!m->bad_ns || d->now_ns - m->bad_ns < WAIT_NS)
		return 0;
	decide(d, j, m);
	return 1;
}

/* It is told again if it goes on. */
static void on_well(struct detector *d, const struct subject *s)
{
	for (uint32_t i = 0; i < d->jobs_end; i++) {
		struct job *j = d->jobs[i];
		struct mine_job *m = j ? JOB_OWN(d, j, numeric, struct mine_job) : NULL;

		if (m && m->accused && subject_contains(s, &m->who))
			m->accused = false;
		if (m && s->kind == SUBJECT_JOB && s->job == i)
			m->jump.told = m->drift.told = false;
	}
}

const struct rule rule_numeric = {
	.name = "numeric",
	.kinds = 1u << SAMPLE_BEAT | 1u << SAMPLE_JOB,
	.job_bytes = sizeof(struct mine_job),
	.tick_ns = 250 * NS_PER_MS,
	.sample = on_sample,
	.tick_job = on_tick_job,
	.well = on_well,
};
