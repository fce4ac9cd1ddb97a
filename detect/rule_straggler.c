/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rule_straggler.c - straggler.h for the ranks of jobs: what beats say of a rank's own work, and
 * whether a rank is slow or all of its node.
 *
 * A rank that is found while most of its node's are on their way there waits for them: so the node
 * is named, once, and not each of them. Where nobody marks waiting (no BEAT_BUSY) step times are
 * all alike and nothing is said here: odd_one then speaks.
 */
#include <config.h>

#include <math.h>

#include "base/alloc.h"
#include "detect/robust.h"
#include "detect/rules.h"
#include "detect/straggler.h"

#define NODE_SLOW  (STRAGGLER_SCORE / 2) /* a rank that speaks for its node being slow */
#define NODE_WARM  3.0                   /* ... on its way there */
#define NODE_SHARE 0.75                  /* of its ranks */

struct mine_rank {
	struct straggler_rank s;
	uint64_t beat_ns;
	bool accused;
};
struct mine_job {
	struct straggler_role roles[ROLES_MAX];
	bool noted; /* all of its ranks are slow */
};
struct mine_node {
	bool accused;
	uint32_t job;
};
struct mine {
	struct straggler_rank **ranks;
	float *scratch;
	uint32_t cap_ranks, cap_scratch, accused_nodes;
};

static struct mine_rank *own(const struct detector *d, struct rank *r)
{
	return RANK_OWN(d, r, straggler, struct mine_rank);
}

static void stop(struct detector *d)
{
	struct mine *m = DETECTOR_OWN(d, straggler, struct mine);

	alloc_free(m->ranks);
	alloc_free(m->scratch);
}

static void memory(const struct detector *d, struct detector_size *size)
{
	const struct mine *m = DETECTOR_OWN(d, straggler, struct mine);

	size->total += m->cap_ranks * sizeof(struct straggler_rank *) +
		       m->cap_scratch * sizeof(*m->scratch);
}

/* For all ranks of a job. false: no memory, its windows are judged when there is. */
static bool room_for(struct mine *m, const struct job *j)
{
	m->ranks = scratch(m->ranks, &m->cap_ranks, j->n_ranks, sizeof(struct straggler_rank *));
	m->scratch =
		scratch(m->scratch, &m->cap_scratch, 2 * (size_t)j->n_ranks, sizeof(*m->scratch));
	return m->ranks && m->scratch;
}

/* ---- verdicts ---- */

/* What speaks against a rank or, where ranks is more than one, its node. */
static void accuse_slow(struct detector *d, struct rank *r, struct subject who, uint32_t ranks)
{
	const struct straggler_rank *s = &own(d, r)->s;
	struct verdict v =
		verdict_of(who, CLASS_SLOW, CAUSE_STRAGGLER, LEVEL_ALARM, ACTION_VALIDATE);

	v.since_ns = s->since_ns;
	verdict_rests_on(&v, known_job(d, r->job));
	v.confidence = 1 - exp(-s->score / 5.0);
	verdict_evidence(&v,
			 s->by_past ? "work per step over its own before"
				    : "work per step over that of its peers",
			 s->ratio, 1 + STRAGGLER_ABSOLUTE, "x", s->since_ns);
	verdict_evidence(&v, "... over what is usual for it", s->excess, 1 + STRAGGLER_SLOW, "x",
			 s->since_ns);
	verdict_evidence(&v, "score of the windows in a row", s->score, STRAGGLER_SCORE, "",
			 s->since_ns);
	verdict_evidence(&v, "its work per step", s->value_s, s->peers_s, "s", s->since_ns);
	if (s->by_past)
		verdict_say(d, &v,
			    "holds others up: rank %u works %.3f s per step, %.2f times as long as "
			    "it used to beside the rest of its job (none of which does the same "
			    "work): run the node check, or move %s elsewhere.",
			    r->number, (double)s->value_s, (double)s->ratio,
			    ranks > 1 ? "its ranks" : "it");
	else if (ranks > 1)
		verdict_say(d, &v,
			    "holds others up: its ranks work %.2f times as long per step as their "
			    "peers (rank %u %.3f s, its peers %.3f s): run the node check, or move "
			    "them elsewhere.",
			    (double)s->ratio, r->number, (double)s->value_s, (double)s->peers_s);
	else
		verdict_say(d, &v,
			    "holds others up: it works %.3f s per step, its peers %.3f s (%.2f "
			    "times, %.2f times what is usual for it): run the node check, or move "
			    "it elsewhere.",
			    (double)s->value_s, (double)s->peers_s, (double)s->ratio,
			    (double)s->excess);
	accuse(d, &v);
}

static void forgive(struct detector *d, struct rank *r, const char *why)
{
	struct subject s = subject_of_rank(r);

	if (own(d, r)->accused)
		acquit(d, &s, CAUSE_STRAGGLER, why);
	own(d, r)->accused = false;
}

static void forgive_node(struct detector *d, struct node *n, const char *why)
{
	struct mine_node *m = NODE_OWN(d, n, straggler, struct mine_node);
	struct subject s = subject_node(n->number);

	acquit(d, &s, CAUSE_STRAGGLER, why);
	m->accused = false;
	DETECTOR_OWN(d, straggler, struct mine)->accused_nodes--;
}

/* The ranks of the same job on its node; how many are slow, and nearly so. */
struct company {
	uint32_t n, slow, warm;
};

static struct company company_of(const struct detector *d, const struct node *n, uint32_t job)
{
	struct company c = {0};
	struct rank *r;

	list_each(r, &n->ranks, of_node) {
		if (r->job != job || !r->expected)
			continue;
		c.n++;
		c.slow += own(d, r)->s.score >= NODE_SLOW;
		c.warm += own(d, r)->s.score >= NODE_WARM;
	}
	return c;
}

static void forgive_all(struct detector *d, struct job *j, const char *why)
{
	struct mine_job *m = JOB_OWN(d, j, straggler, struct mine_job);
	struct subject s = subject_job(j->number);

	if (m->noted)
		acquit(d, &s, CAUSE_STRAGGLER, why);
	m->noted = false;
}

/* Who is slowed as all others are has no peers to be seen by, but a past. Longer sequences look the
 * same: so this is a note. The role that works longest counts, as all wait for it. */
static void look_at_all(struct detector *d, struct job *j)
{
	struct mine_job *m = JOB_OWN(d, j, straggler, struct mine_job);
	const struct straggler_role *longest = &m->roles[0];
	struct verdict v = verdict_of(subject_job(j->number), CLASS_SLOW, CAUSE_STRAGGLER,
				      LEVEL_NOTE, ACTION_RECORD);

	for (uint32_t i = 1; i < ROLES_MAX; i++)
		if (m->roles[i].usual_s * m->roles[i].pace > longest->usual_s * longest->pace)
			longest = &m->roles[i];
	if (!straggler_all_slow(longest)) {
		if (longest->pace_score <= 0)
			forgive_all(d, j, "its ranks work as long as they used to, or that is new");
		return;
	}
	if (m->noted)
		return;
	m->noted = true;
	v.confidence = 0.5;
	verdict_evidence(&v, "work per step over what it used to be", longest->pace,
			 1 + STRAGGLER_SLOW, "x", 0);
	verdict_say(d, &v,
		    "works %.2f times as long per step as it used to, all of its ranks alike: "
		    "longer sequences, or something that slows all of its nodes.",
		    (double)longest->pace);
	accuse(d, &v);
}

static void look_at(struct detector *d, struct job *j, struct rank *r)
{
	struct mine_rank *m = own(d, r);
	struct node *n = known_node(d, r->node);
	struct mine_node *mn = n ? NODE_OWN(d, n, straggler, struct mine_node) : NULL;
	struct company c = {0};

	if (m->accused && straggler_is_well(&m->s))
		forgive(d, r, "it is as fast as its peers again");
	if (!straggler_is_slow(&m->s))
		return;
	if (n)
		c = company_of(d, n, j->number);
	if (c.n > 1 && c.n < j->n_expected && c.warm >= NODE_SHARE * c.n) {
		if (c.slow < NODE_SHARE * c.n && !m->accused)
			return; /* the next window tells */
		forgive(d, r, "all of its node is slow");
		DETECTOR_OWN(d, straggler, struct mine)->accused_nodes += !mn->accused;
		mn->accused = true;
		mn->job = j->number;
		accuse_slow(d, r, subject_node(n->number), c.n);
	} else if (!mn || !mn->accused || mn->job != j->number) {
		m->accused = true;
		accuse_slow(d, r, subject_of_rank(r), 1);
	}
}

/* ---- what comes in ---- */

static void on_beat(struct detector *d, const struct sample *s, const struct who *w)
{
	struct mine_job *j = JOB_OWN(d, w->job, straggler, struct mine_job);
	struct mine_rank *m = own(d, w->rank);
	bool phased = w->rank->left_ns && w->rank->left_ns >= m->beat_ns;

	m->beat_ns = d->now_ns;
	if (!(s->beat.flags & BEAT_BUSY) || w->rank->n_beats <= STRAGGLER_WARM_UP ||
	    w->rank->depth || phased)
		return;
	if (m->s.node != w->rank->node)
		straggler_rank_forget(&m->s, w->rank->node);
	straggler_add(&j->roles[w->rank->role], &m->s, s->beat.step,
		      (double)s->beat.busy_ns / NS_PER_SEC,
		      (double)w->rank->interval_ns / NS_PER_SEC, d->now_ns);
}

static void on_member(struct detector *d, const struct sample *s, const struct who *w)
{
	struct mine_rank *m = own(d, w->rank);

	if (!s->member.leaves && m->s.node == w->rank->node)
		return;
	if (m->accused) { /* where it was then */
		struct subject was = subject_rank(w->rank->job, w->rank->number, m->s.node);

		acquit(d, &was, CAUSE_STRAGGLER, "it is not there any more");
		m->accused = false;
	}
	straggler_rank_forget(&m->s, w->rank->node);
}

static void on_run(struct detector *d, struct job *j)
{
	struct mine_job *m = JOB_OWN(d, j, straggler, struct mine_job);
	struct rank *r;

	if (j->on && j->began_ns != d->now_ns)
		return;
	for (int i = 0; i < ROLES_MAX; i++)
		straggler_role_restart(&m->roles[i]);
	forgive_all(d, j, "the run is over");
	each_rank(r, j)
	{
		forgive(d, r, "the run is over");
		own(d, r)->s.score = 0;
		own(d, r)->beat_ns = 0;
	}
}

static void sample(struct detector *d, const struct sample *s, const struct who *w)
{
	if (s->kind == SAMPLE_BEAT)
		on_beat(d, s, w);
	else if (s->kind == SAMPLE_MEMBER)
		on_member(d, s, w);
	else
		on_run(d, w->job);
}

/* The node of most of the role's ranks. */
static uint32_t home_of(struct straggler_rank *const *ranks, uint32_t n)
{
	uint32_t node = ranks[0]->node, votes = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (!votes)
			node = ranks[i]->node;
		votes += ranks[i]->node == node ? 1 : UINT32_MAX;
	}
	return node;
}

/* How long the job's ranks on other nodes than `home` work, whatever their role is. */
static float beside(const struct detector *d, const struct job *j, uint32_t home, float *scratch)
{
	struct rank *r;
	size_t n = 0;

	each_rank(r, j)
	{
		const struct straggler_rank *s = &own(d, r)->s;

		if (r->expected && s->node != home && s->value_s > 0)
			scratch[n++] = s->value_s;
	}
	return n >= 2 ? median_of(scratch, n) : 0;
}

static bool judge_role(struct detector *d, struct job *j, uint32_t i)
{
	struct straggler_role *role = &JOB_OWN(d, j, straggler, struct mine_job)->roles[i];
	struct mine *m = DETECTOR_OWN(d, straggler, struct mine);
	struct rank *r;
	uint32_t n = 0;

	if (!role->open || !role->n_done || !room_for(m, j))
		return false;
	each_rank(r, j)
	{
		if (r->role == i && r->expected && own(d, r)->s.generation == role->generation)
			m->ranks[n++] = &own(d, r)->s;
	}
	if (n == 0 || !straggler_ready(role, n, d->now_ns))
		return false;
	role->beside_s = beside(d, j, home_of(m->ranks, n), m->scratch);
	straggler_judge(role, m->ranks, n, m->scratch, d->now_ns);
	return true;
}

static uint32_t tick_job(struct detector *d, struct job *j)
{
	bool judged = false;
	struct rank *r;

	if (!j->on)
		return 0;
	for (uint32_t k = 0; k < ROLES_MAX; k++)
		judged |= judge_role(d, j, k);
	if (!judged)
		return 0;
	each_rank(r, j)
	{
		if (r->expected)
			look_at(d, j, r);
	}
	look_at_all(d, j);
	return 4 * j->n_ranks;
}

static void tick(struct detector *d)
{
	struct mine *m = DETECTOR_OWN(d, straggler, struct mine);

	for (uint32_t i = 0; m->accused_nodes && i < d->nodes_end; i++) {
		struct node *n = d->nodes[i];
		struct mine_node *mn = n ? NODE_OWN(d, n, straggler, struct mine_node) : NULL;

		if (mn && mn->accused && company_of(d, n, mn->job).warm == 0)
			forgive_node(d, n, "its ranks are as fast as their peers again, or left");
	}
}

static void gone(struct detector *d, struct rank *r)
{
	forgive(d, r, "the detector needed its place for another rank");
}

static void well(struct detector *d, const struct subject *s)
{
	struct rank *r = known_rank(d, s->job, s->rank);
	struct node *n = known_node(d, s->node);

	if (s->kind == SUBJECT_RANK && r) {
		own(d, r)->s.score = 0;
		own(d, r)->accused = false;
	}
	if (s->kind == SUBJECT_JOB && known_job(d, s->job)) {
		struct mine_job *m = JOB_OWN(d, known_job(d, s->job), straggler, struct mine_job);

		m->noted = false;
		for (int i = 0; i < ROLES_MAX; i++)
			m->roles[i].pace_score = 0;
	}
	if (s->kind == SUBJECT_JOB && known_job(d, s->job))
		each_rank(r, known_job(d, s->job))
		{
			own(d, r)->s.score = 0;
			own(d, r)->accused = false;
		}
	if (s->kind != SUBJECT_NODE || !n)
		return;
	if (NODE_OWN(d, n, straggler, struct mine_node)->accused)
		forgive_node(d, n, "somebody said that it is well again");
	list_each(r, &n->ranks, of_node) {
		own(d, r)->s.score = 0;
		own(d, r)->accused = false;
	}
}

static void explain(const struct detector *d, const struct subject *s, struct explain *e)
{
	struct rank *r = s->kind == SUBJECT_RANK ? known_rank(d, s->job, s->rank) : NULL;
	const struct straggler_rank *m = r ? &own(d, r)->s : NULL;

	if (m && m->n_windows)
		explain_line(e,
			     "its own work per step: %.3f s, %.2f times that of its peers (usual: "
			     "%.2f); score %.1f, an alarm from %.0f on",
			     (double)m->value_s, (double)m->ratio, (double)m->usual,
			     (double)m->score, STRAGGLER_SCORE);
}

const struct rule rule_straggler = {
	.name = "straggler",
	.kinds = 1u << SAMPLE_BEAT | 1u << SAMPLE_MEMBER | 1u << SAMPLE_JOB,
	.rank_bytes = sizeof(struct mine_rank),
	.node_bytes = sizeof(struct mine_node),
	.job_bytes = sizeof(struct mine_job),
	.detector_bytes = sizeof(struct mine),
	.tick_ns = NS_PER_SEC,
	.stop = stop,
	.sample = sample,
	.tick = tick,
	.tick_job = tick_job,
	.gone = gone,
	.well = well,
	.explain = explain,
	.memory = memory,
};
