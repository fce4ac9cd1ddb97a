/* SPDX-License-Identifier: Apache-2.0 */
/*
 * integrity.c - bytes that should be equal and are not, or should differ and do not.
 *
 * Replicas of a shard that differ: whoever differs from more of the others than anybody else is the
 * odd one; with two replicas nobody can tell, and the job is named. Samples about one step come one
 * after the other, so the first waits a moment for the rest. A checkpoint that repeats the one
 * before was not taken of what the job trains; where training went wrong (not-a-number) it repeats
 * what is no number, which is told already. All stand until the job's next run.
 */
#include <config.h>

#include <stdio.h>

#include "detect/rules.h"

#define WAIT_NS (500 * NS_PER_MS)

struct mine_rank {
	uint64_t step; /* of which .differs says */
	uint32_t differs;
};

struct mine_job {
	uint64_t step, first_ns; /* first_ns 0: nothing waits */
	uint32_t one, other;     /* the first pair */
	char tensor[SAMPLE_NAME_MAX];
	bool told; /* anything, in this run */
};

static uint32_t differs_of(const struct detector *d, const struct rank *r, uint64_t step)
{
	const struct mine_rank *m = RANK_OWN(d, r, integrity, struct mine_rank);

	return m->step == step ? m->differs : 0;
}

static void add(struct detector *d, struct rank *r, uint64_t step)
{
	struct mine_rank *m = RANK_OWN(d, r, integrity, struct mine_rank);

	if (m->step != step)
		*m = (struct mine_rank){.step = step};
	m->differs++;
}

/* The one that differs most, alone; NULL: there is none. */
static struct rank *odd_one(const struct detector *d, const struct job *j, uint64_t step)
{
	struct rank *r, *most = NULL;
	uint32_t n = 1; /* of one other: either may be right */

	each_rank(r, j)
	{
		uint32_t k = differs_of(d, r, step);

		if (k > n) {
			n = k;
			most = r;
		} else if (k == n) {
			most = NULL;
		}
	}
	return most;
}

static void decide(struct detector *d, struct job *j, struct mine_job *m)
{
	struct rank *odd = odd_one(d, j, m->step);
	struct verdict v = verdict_of(odd ? subject_of_rank(odd) : subject_job(j->number),
				      CLASS_CORRUPTING, CAUSE_REPLICAS_DIFFER, LEVEL_ALARM,
				      odd ? ACTION_VALIDATE : ACTION_RESTORE);

	v.since_ns = m->first_ns;
	v.confidence = odd ? 0.95 : 0.8;
	verdict_evidence(&v, "replicas that differ from it", odd ? differs_of(d, odd, m->step) : 1,
			 0, "", m->first_ns);
	verdict_evidence(&v, "step", (double)m->step, 0, "", m->first_ns);
	if (odd)
		verdict_say(d, &v,
			    "holds other bytes of %s than its replicas at step %llu: its memory or "
			    "GPU corrupts data; go back before that step, and check its node.",
			    m->tensor, (unsigned long long)m->step);
	else
		verdict_say(d, &v,
			    "has replicas of %s that differ at step %llu (ranks %u and %u): one of "
			    "them corrupts data; check both nodes.",
			    m->tensor, (unsigned long long)m->step, m->one, m->other);
	m->told = true;
	m->first_ns = 0;
	accuse(d, &v);
}

static void on_digests(struct detector *d, const struct sample *s, const struct who *w)
{
	struct mine_job *m = JOB_OWN(d, w->job, integrity, struct mine_job);
	struct rank *other = known_rank(d, s->job, s->digests.other);

	if (m->first_ns && m->step != s->digests.step)
		decide(d, w->job, m);
	if (!m->first_ns) {
		m->first_ns = d->now_ns;
		m->step = s->digests.step;
		m->one = s->rank;
		m->other = s->digests.other;
		snprintf(m->tensor, sizeof(m->tensor), "%s", s->digests.tensor);
	}
	add(d, w->rank, s->digests.step);
	if (other)
		add(d, other, s->digests.step);
}

/* The first that stands for the cause against the job or a rank of it, wherever that was then. */
static const struct verdict *standing(const struct detector *d, const struct job *j,
				      enum verdict_cause cause)
{
	for (size_t i = 0; i < d->verdicts.n; i++) {
		const struct verdict *v = &d->verdicts.standing[i];

		if (v->cause == cause && v->subject.job == j->number)
			return v;
	}
	return NULL;
}

static void on_stale(struct detector *d, const struct sample *s, struct job *j)
{
	bool known = standing(d, j, CAUSE_NOT_A_NUMBER);
	struct verdict v = verdict_of(subject_job(j->number), CLASS_CORRUPTING, CAUSE_STALE,
				      known ? LEVEL_NOTE : LEVEL_ALARM, ACTION_RECORD);

	JOB_OWN(d, j, integrity, struct mine_job)->told = true;
	verdict_evidence(&v, "step", (double)s->step, 0, "", d->now_ns);
	verdict_say(d, &v,
		    "saved the same trained tensors at step %llu as in the checkpoint before: %s",
		    (unsigned long long)s->step,
		    known ? "what is no finite number stays what it is."
			  : "it may not be saving what it trains; look at what it binds.");
	accuse(d, &v);
}

static void all_over(struct detector *d, const struct job *j, enum verdict_cause cause)
{
	const struct verdict *v;
	struct subject who;

	while ((v = standing(d, j, cause))) {
		who = v->subject;
		acquit(d, &who, cause, "a new run of the job has begun");
	}
}

static void on_run(struct detector *d, struct job *j)
{
	struct mine_job *m = JOB_OWN(d, j, integrity, struct mine_job);

	if (j->on && j->began_ns != d->now_ns)
		return;
	if (m->first_ns)
		decide(d, j, m);
	if (!j->on)
		return; /* bytes that were wrong stay so */
	if (m->told) {
		all_over(d, j, CAUSE_REPLICAS_DIFFER);
		all_over(d, j, CAUSE_STALE);
	}
	*m = (struct mine_job){0};
}

static void on_sample(struct detector *d, const struct sample *s, const struct who *w)
{
	if (s->kind == SAMPLE_DIGESTS)
		on_digests(d, s, w);
	else if (s->kind == SAMPLE_STALE)
		on_stale(d, s, w->job);
	else
		on_run(d, w->job);
}

static uint32_t on_tick_job(struct detector *d, struct job *j)
{
	struct mine_job *m = JOB_OWN(d, j, integrity, struct mine_job);

	if (!m->first_ns || d->now_ns - m->first_ns < WAIT_NS)
		return 0;
	decide(d, j, m);
	return j->n_ranks;
}

const struct rule rule_integrity = {
	.name = "integrity",
	.kinds = 1u << SAMPLE_DIGESTS | 1u << SAMPLE_STALE | 1u << SAMPLE_JOB,
	.rank_bytes = sizeof(struct mine_rank),
	.job_bytes = sizeof(struct mine_job),
	.tick_ns = 250 * NS_PER_MS,
	.sample = on_sample,
	.tick_job = on_tick_job,
};
