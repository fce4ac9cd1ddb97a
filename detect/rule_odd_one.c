/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rule_odd_one.c - odd_one.h for nodes: those whose ranks are in the same jobs in the same roles;
 * shift.h for those of a job that has become slower.
 *
 * That a node is odd is a note: it may be so and do its work. In jobs that do not mark their
 * waiting, whose ranks all look alike, it is an alarm where something suffers: the clocks of its
 * GPUs are a tenth lower, or the job's steps take longer than before and nothing else that was
 * told explains it. In such jobs the one is named, too, that alone has changed when steps did.
 *
 * What is odd is named as closely as it can be: a network metric names the node's only port.
 */
#include <config.h>

#include <stdlib.h>

#include "base/alloc.h"
#include "detect/odd_one.h"
#include "detect/robust.h"
#include "detect/rules.h"
#include "detect/shift.h"

#define SLOWED     1.08 /* steps of the job over what is usual for it */
#define FAST_AGAIN 1.04
#define PACE_LEARN 32 /* steps until something is usual */
#define PACE_NEW   16 /* steps that are compared with it */

struct mine_node {
	bool born, accused;
	struct subject who;
	uint64_t kind_of_work; /* its group, of this judgement; 0: none */
	struct odd_node odd;
	struct shift_node shift;
	bool changed; /* it alone, when its job became slower */
};
struct mine_job {
	struct window newest; /* s of steps */
	struct ewma usual;    /* of the window's median */
	uint32_t suspects;    /* nodes that are candidates, at the last judgement */
	uint32_t pacer;       /* number of the rank whose steps are counted */
	uint64_t pace_ns;     /* its last one */
	uint64_t at_ns[PACE_NEW]; /* and those before: of step n at n % PACE_NEW */
	uint32_t n_at;
	uint64_t slow_ns;     /* its steps take longer since then; 0: they do not */
	bool marks_waiting;   /* its beats have BEAT_BUSY: stragglers are found by it */
};
struct place {
	uint64_t group;
	bool mixed;
	struct node *node;
};
struct mine {
	struct place *places;
	struct odd_node **group;
	struct shift_node **shifts;
	struct node **of_job; /* whose they are */
	float *scratch;
	uint32_t cap_places, cap_group, cap_shifts, cap_of_job, cap_scratch;
};

static struct mine_node *own(const struct detector *d, struct node *n)
{
	return NODE_OWN(d, n, odd_one, struct mine_node);
}

static void stop(struct detector *d)
{
	struct mine *m = DETECTOR_OWN(d, odd_one, struct mine);

	alloc_free(m->places);
	alloc_free(m->group);
	alloc_free(m->shifts);
	alloc_free(m->of_job);
	alloc_free(m->scratch);
}

static void memory(const struct detector *d, struct detector_size *size)
{
	const struct mine *m = DETECTOR_OWN(d, odd_one, struct mine);

	size->total += m->cap_places * sizeof(*m->places) +
		       m->cap_group * sizeof(struct odd_node *) +
		       m->cap_shifts * sizeof(struct shift_node *) +
		       m->cap_of_job * sizeof(struct node *) + m->cap_scratch * sizeof(*m->scratch);
}

/* For all nodes. false: no memory, they are judged when there is. */
static bool room_for(struct mine *m, size_t n)
{
	m->places = scratch(m->places, &m->cap_places, n, sizeof(*m->places));
	m->group = scratch(m->group, &m->cap_group, n, sizeof(struct odd_node *));
	m->shifts = scratch(m->shifts, &m->cap_shifts, n, sizeof(struct shift_node *));
	m->of_job = scratch(m->of_job, &m->cap_of_job, n, sizeof(struct node *));
	m->scratch = scratch(m->scratch, &m->cap_scratch, ODD_SCRATCH(n) + SHIFT_SCRATCH(n),
			     sizeof(*m->scratch));
	return m->places && m->group && m->shifts && m->of_job && m->scratch;
}

/* ---- what comes in ---- */

/* Since when it is slow: half of the newest steps are, when their median is. What lasts for longer
 * than can be looked back on is its pace. */
static void follow_pace(const struct detector *d, struct mine_job *m)
{
	double newest = (double)window_median(&m->newest);
	uint64_t half_ns = m->at_ns[(m->n_at - 1 - PACE_NEW / 2) % PACE_NEW];

	if (m->usual.n < PACE_LEARN)
		return;
	if (m->slow_ns && newest < FAST_AGAIN * m->usual.mean) {
		m->slow_ns = 0;
	} else if (m->slow_ns && detector_age(d, m->slow_ns) > SHIFT_AFTER * SHIFT_BLOCK_NS) {
		m->slow_ns = 0;
		m->usual = (struct ewma){0};
		ewma_add(&m->usual, newest, 1);
	} else if (!m->slow_ns && newest >= SLOWED * m->usual.mean) {
		m->slow_ns = half_ns;
	}
}

/* The pace of a job: one interval per step, of one rank for all, as they step together; of another
 * when that has made none for so long that it would have made several. */
static void on_beat(struct detector *d, struct job *j, const struct rank *r)
{
	struct mine_job *m = JOB_OWN(d, j, odd_one, struct mine_job);

	m->marks_waiting = r->beat.flags & BEAT_BUSY;
	if (!r->interval_ns ||
	    (m->pacer != r->number && d->now_ns - m->pace_ns < 4 * r->interval_ns))
		return;
	m->pacer = r->number;
	m->pace_ns = d->now_ns;
	m->at_ns[m->n_at++ % PACE_NEW] = d->now_ns;
	if (!m->newest.size)
		window_init(&m->newest, PACE_NEW);
	window_add(&m->newest, (float)((double)r->interval_ns / NS_PER_SEC));
	if (m->newest.n < PACE_NEW)
		return;
	follow_pace(d, m);
	if (!m->suspects && !m->slow_ns)
		ewma_add(&m->usual, (double)window_median(&m->newest), 1.0 / 128);
}

/* How long its steps usually take is kept; when they became slower is of a run. */
static void on_run(struct detector *d, struct job *j)
{
	struct mine_job *m = JOB_OWN(d, j, odd_one, struct mine_job);

	if (j->on && j->began_ns != d->now_ns)
		return;
	m->newest.n = m->newest.size = 0;
	m->slow_ns = 0;
	m->pace_ns = 0;
}

static void sample(struct detector *d, const struct sample *s, const struct who *w)
{
	struct mine_node *n;

	if (s->kind == SAMPLE_JOB) {
		on_run(d, w->job);
		return;
	}
	if (s->kind == SAMPLE_BEAT) {
		on_beat(d, w->job, w->rank);
		return;
	}
	n = own(d, w->node);
	if (!n->born) {
		odd_node_init(&n->odd);
		shift_node_init(&n->shift);
	}
	n->born = true;
	odd_add(&n->odd, s->metrics, d->now_ns);
	shift_add(&n->shift, s->metrics, d->now_ns);
}

/* ---- groups ---- */

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

/* A number that is the same for nodes that hold as many ranks of the same jobs and roles. */
static uint64_t kind_of_work(const struct detector *d, const struct node *n)
{
	uint64_t sum = 0;
	struct rank *r;

	list_each(r, &n->ranks, of_node) {
		if (r->expected && known_job(d, r->job)->on)
			sum += mix((uint64_t)r->job << 8 | (r->role + 1));
	}
	return sum;
}

static int by_group(const void *a, const void *b)
{
	const struct place *x = a, *y = b;

	if (x->group != y->group)
		return x->group < y->group ? -1 : 1;
	return (x->node->number > y->node->number) - (x->node->number < y->node->number);
}

/* ---- verdicts ---- */

static struct job *job_of(const struct detector *d, const struct node *n)
{
	struct rank *r;

	list_each(r, &n->ranks, of_node) {
		if (r->expected)
			return known_job(d, r->job);
	}
	return NULL;
}

/* How many times as long its steps take; 0: not known. */
static double slowed(const struct detector *d, struct job *j)
{
	struct mine_job *m = j ? JOB_OWN(d, j, odd_one, struct mine_job) : NULL;

	if (!m || m->usual.n < PACE_LEARN || m->newest.n < PACE_NEW)
		return 0;
	return (double)window_median(&m->newest) / m->usual.mean;
}

/* It is known what in its job is slow, and was told. */
static bool is_explained(const struct detector *d, const struct job *j)
{
	for (size_t i = 0; i < d->verdicts.n; i++) {
		const struct verdict *v = &d->verdicts.standing[i];
		const struct node *other = known_node(d, v->subject.node);

		if (v->class == CLASS_SLOW && v->level == LEVEL_ALARM &&
		    v->cause != CAUSE_ODD_ONE_OUT && other && job_of(d, other) == j)
			return true;
	}
	return false;
}

/* Whether its being odd is the trouble: an alarm. Where waiting is marked the stragglers say so. */
static bool is_trouble(const struct detector *d, const struct mine_node *m, struct job *j,
		       double times)
{
	if (!j || JOB_OWN(d, j, odd_one, struct mine_job)->marks_waiting || is_explained(d, j))
		return false;
	return times >= SLOWED || odd_is_slowness(&m->odd);
}

/* Its only device of that role; else the node. */
static struct subject narrow(const struct node *n, enum sample_metric m)
{
	const struct device *found = NULL;
	char role = 0;

	if (m >= METRIC_NET_SEND && m <= METRIC_NET_RETRY)
		role = 'n';
	for (const struct device *x = n->devices; role && x; x = x->next) {
		if (x->role == role && found)
			return subject_node(n->number);
		if (x->role == role)
			found = x;
	}
	return found ? subject_port(n->number, found->number) : subject_node(n->number);
}

/* Of whom it is said, and no more of whom it was said before. */
static void name_subject(struct detector *d, struct mine_node *m, struct subject who)
{
	if (m->accused && !subject_same(&m->who, &who))
		acquit(d, &m->who, CAUSE_ODD_ONE_OUT, "it is told of more closely");
	m->accused = true;
	m->who = who;
}

static void accuse_odd(struct detector *d, struct node *n, bool alarm, double times)
{
	struct mine_node *m = own(d, n);
	enum sample_metric worst[3] = {0};
	size_t found = odd_worst(&m->odd, worst, 3);
	struct subject who = narrow(n, worst[0]);
	struct verdict v =
		verdict_of(who, CLASS_SLOW, CAUSE_ODD_ONE_OUT, alarm ? LEVEL_ALARM : LEVEL_NOTE,
			   alarm ? ACTION_VALIDATE : ACTION_RECORD);

	name_subject(d, m, who);
	v.since_ns = m->odd.since_ns;
	v.confidence = alarm ? 0.9 : 0.6;
	verdict_evidence(&v, "distance from the others, as a score", m->odd.score, m->odd.threshold,
			 "", m->odd.since_ns);
	for (size_t i = 0; i < found && i < 3; i++)
		verdict_evidence(&v, sample_metric_word(worst[i]), m->odd.raw[worst[i]],
				 m->odd.z[worst[i]], "z", m->odd.since_ns);
	if (times > 0)
		verdict_evidence(&v, "steps of its job over their usual time", times, SLOWED, "x",
				 m->odd.since_ns);
	verdict_say(d, &v,
		    "is not like the other nodes that do the same work, for %.0f minutes: most in "
		    "%s (%g, %.1f deviations from theirs)%s%s.",
		    (double)(d->now_ns - m->odd.since_ns) / 60e9, sample_metric_word(worst[0]),
		    (double)m->odd.raw[worst[0]], (double)m->odd.z[worst[0]],
		    alarm ? times >= SLOWED ? ", and its job has become slower" : ", it runs slower"
			  : "",
		    alarm ? ": run the node check" : "");
	accuse(d, &v);
}

/* It alone has changed when its job became slower. */
static void accuse_changed(struct detector *d, struct node *n, struct job *j, double times)
{
	struct mine_node *m = own(d, n);
	uint64_t slow_ns = JOB_OWN(d, j, odd_one, struct mine_job)->slow_ns;
	struct verdict v = verdict_of(narrow(n, m->shift.worst), CLASS_SLOW, CAUSE_ODD_ONE_OUT,
				      LEVEL_ALARM, ACTION_VALIDATE);

	name_subject(d, m, v.subject);
	v.since_ns = slow_ns;
	v.confidence = 0.85;
	verdict_evidence(&v, "its change against the others'", m->shift.z, m->shift.threshold, "z",
			 slow_ns);
	verdict_evidence(&v, sample_metric_word(m->shift.worst), m->odd.raw[m->shift.worst], 0, "",
			 slow_ns);
	verdict_evidence(&v, "steps of its job over their usual time", times, SLOWED, "x", slow_ns);
	verdict_say(d, &v,
		    "has changed otherwise than the other nodes when its job became %.2f times as "
		    "slow, %.0f minutes ago: most in %s (%.1f deviations); it or one of its ranks "
		    "holds the others up: run the node check.",
		    times, (double)(d->now_ns - slow_ns) / 60e9, sample_metric_word(m->shift.worst),
		    (double)m->shift.z);
	accuse(d, &v);
}

static void forgive(struct detector *d, struct node *n, const char *why)
{
	if (own(d, n)->accused)
		acquit(d, &own(d, n)->who, CAUSE_ODD_ONE_OUT, why);
	own(d, n)->accused = false;
}

static void look_at(struct detector *d, struct node *n)
{
	struct mine_node *m = own(d, n);
	struct job *j = job_of(d, n);
	double times = slowed(d, j);

	if (j)
		JOB_OWN(d, j, odd_one, struct mine_job)->suspects += m->odd.since_ns != 0;
	m->changed &= j && JOB_OWN(d, j, odd_one, struct mine_job)->slow_ns;
	if (m->changed)
		accuse_changed(d, n, j, times);
	else if (odd_is_odd(&m->odd, d->now_ns))
		accuse_odd(d, n, is_trouble(d, m, j, times), times);
	else if (odd_is_well(&m->odd))
		forgive(d, n, "it is like the others again");
}

static size_t gather(struct detector *d, struct place *places)
{
	size_t n = 0;

	for (uint32_t i = 0; i < d->nodes_end; i++) {
		struct node *node = d->nodes[i];
		uint64_t group;

		if (!node || !own(d, node)->born)
			continue;
		group = kind_of_work(d, node);
		if (group)
			places[n++] = (struct place){.group = group, .node = node};
		else if (own(d, node)->accused || own(d, node)->odd.since_ns) {
			forgive(d, node, "it does no work now");
			own(d, node)->odd.since_ns = 0;
			own(d, node)->changed = false;
		}
	}
	qsort(places, n, sizeof(*places), by_group);
	return n;
}

static size_t end_of_group(const struct place *places, size_t n, size_t i)
{
	size_t end = i;

	while (end < n && places[end].group == places[i].group)
		end++;
	return end;
}

/* Nodes with too few of their like are compared with other such nodes of the same job. */
static void mix_small_groups(const struct detector *d, struct place *places, size_t n)
{
	size_t end;

	for (size_t i = 0; i < n; i = end) {
		end = end_of_group(places, n, i);
		for (size_t k = i; k < end && end - i < ODD_PEERS_MIN; k++) {
			places[k].mixed = true;
			places[k].group = mix(~(uint64_t)job_of(d, places[k].node)->number);
		}
	}
	qsort(places, n, sizeof(*places), by_group);
}

/* A job that has become slower, and nobody has said why. */
static void find_changed(struct detector *d, struct job *j, const struct place *places, size_t n)
{
	struct mine *m = DETECTOR_OWN(d, odd_one, struct mine);
	const struct mine_job *mj = JOB_OWN(d, j, odd_one, struct mine_job);
	size_t n_of_job = 0, found;

	/* What the nodes do while no steps are made is no work. */
	if (!j->on || !mj->slow_ns || mj->marks_waiting || is_explained(d, j) ||
	    (double)(d->now_ns - mj->pace_ns) > 4e9 * (double)window_median(&mj->newest))
		return;
	for (size_t i = 0; i < n; i++) {
		if (job_of(d, places[i].node) != j)
			continue;
		if (own(d, places[i].node)->changed)
			return;
		m->of_job[n_of_job] = places[i].node;
		m->shifts[n_of_job++] = &own(d, places[i].node)->shift;
	}
	found = shift_judge(m->shifts, n_of_job, j->began_ns, mj->slow_ns, m->scratch, d->now_ns);
	if (found < n_of_job)
		own(d, m->of_job[found])->changed = true;
}

static void tick(struct detector *d)
{
	struct mine *m = DETECTOR_OWN(d, odd_one, struct mine);
	size_t n, end;

	if (!room_for(m, d->nodes_end))
		return;
	n = gather(d, m->places);
	for (uint32_t i = 0; i < d->jobs_end; i++)
		if (d->jobs[i])
			JOB_OWN(d, d->jobs[i], odd_one, struct mine_job)->suspects = 0;
	mix_small_groups(d, m->places, n);
	for (size_t i = 0; i < n; i = end) {
		end = end_of_group(m->places, n, i);
		for (size_t k = i; k < end; k++)
			m->group[k - i] = &own(d, m->places[k].node)->odd;
		odd_judge(m->group, end - i, m->places[i].group, m->places[i].mixed, m->scratch,
			  d->now_ns);
	}
	for (uint32_t i = 0; i < d->jobs_end; i++)
		if (d->jobs[i])
			find_changed(d, d->jobs[i], m->places, n);
	for (size_t i = 0; i < n; i++)
		look_at(d, m->places[i].node);
}

static void well(struct detector *d, const struct subject *s)
{
	struct node *n = s->kind == SUBJECT_NODE ? known_node(d, s->node) : NULL;

	if (!n || !own(d, n)->born)
		return;
	own(d, n)->odd.since_ns = 0;
	own(d, n)->odd.n_learned = 0;
	own(d, n)->accused = own(d, n)->changed = false;
	shift_node_init(&own(d, n)->shift);
}

static void explain(const struct detector *d, const struct subject *s, struct explain *e)
{
	struct node *n = s->kind == SUBJECT_NODE ? known_node(d, s->node) : NULL;
	const struct mine_node *m = n ? own(d, n) : NULL;
	enum sample_metric worst[1];

	if (!m || !m->born || m->odd.threshold <= 0)
		return;
	explain_line(e, "distance from nodes with the same work: %.1f, it stands out from %.1f on",
		     (double)m->odd.score, (double)m->odd.threshold);
	if (odd_worst(&m->odd, worst, 1) > 0)
		explain_line(e, "most in %s: %g, %.1f deviations from theirs",
			     sample_metric_word(worst[0]), (double)m->odd.raw[worst[0]],
			     (double)m->odd.z[worst[0]]);
}

const struct rule rule_odd_one = {
	.name = "odd-one-out",
	.kinds = 1u << SAMPLE_METRICS | 1u << SAMPLE_BEAT | 1u << SAMPLE_JOB,
	.node_bytes = sizeof(struct mine_node),
	.job_bytes = sizeof(struct mine_job),
	.detector_bytes = sizeof(struct mine),
	.tick_ns = 10 * NS_PER_SEC,
	.stop = stop,
	.sample = sample,
	.tick = tick,
	.well = well,
	.explain = explain,
	.memory = memory,
};
