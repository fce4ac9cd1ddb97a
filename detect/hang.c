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
 * Invariants: (1) at most one stall is told at a time per job, and cleared when nobody of those
 * that were told of is late any more; (2) who is late is asked, who is not is not.
 */
#include <config.h>

#include "detect/hang.h"

#include <math.h>
#include <stdio.h>

#include "detect/doing.h"
#include "detect/exits.h"
#include "detect/pace.h"
#include "detect/silence.h"

#define TOLD_MAX        4                 /* subjects of one stall */
#define ANSWER_NS       (10 * NS_PER_SEC) /* who was asked for so long is judged unseen */
#define MUTE_EVERY_NS   (60 * NS_PER_SEC) /* between looks at who tells of no steps */
#define MUTE_STOPPED_NS (60 * NS_PER_SEC) /* it stays stopped for so long */

struct mine_rank {
	struct looks looks;
	uint64_t busy_ns;    /* last seen at work since its last progress; 0: never */
	uint64_t later_ns;   /* ... asleep for a time, or waiting for a disk or input */
	uint64_t asked_ns;   /* what it does; 0: it is not */
	uint64_t look_ns;    /* mute: it is asked then */
	uint64_t stopped_ns; /* mute: all looks since then met it stopped; 0: not the last one */
	bool late, behind;   /* of the last tally */
	bool apart;          /* mute, and not stopped: nobody can say whether it goes on */
};

struct mine_node {
	float usual, now; /* what its metrics say of its work: see work_of() */
	uint64_t now_ns;
	bool gpus; /* it measures some */
};

struct mine_job {
	uint64_t check_ns;   /* nobody can be late before */
	uint64_t resting_ns; /* since then all nodes do less than usual; 0: not all of them */
	bool stopping;       /* of those who tell of no steps some are stopped: all are looked at */
	uint32_t n_told;
	struct subject told[TOLD_MAX];
	enum verdict_cause cause;
};

/* The job at one moment. */
struct stall {
	uint32_t lives, awaited, late, known, due, waiting, idle, asleep, busy, quiet, stopped,
		excused;
	uint32_t resting, working; /* of the late: on nodes that do less than usual, or as much */
	double resting_s;          /* so long all of them rest */
	uint32_t gpu_busy, gpu_idle;
	uint32_t stopping, stands; /* of those who tell of no steps: stopped; ... for long */
	bool declares;   /* the job does */
	bool asks;       /* exits_asks() */
	uint32_t lowest; /* number of a rank */
	double quiet_s;  /* so long none of the late was seen at work */
	uint64_t step_min, step_max;
	/* Of those who are behind: */
	uint32_t behind, behind_idle, over, unanswered;
	struct rank *first;      /* with the lowest number */
	struct lateness worst;   /* the one that waits longest for its own progress */
	uint32_t node;           /* of all of them; SAMPLE_NONE: of several */
	double least_s, usual_s; /* the shortest age without being seen at work */
};

static bool lives(const struct rank *r)
{
	return r->expected && !r->ended;
}

/* Something is to be said of it by what it does. */
static bool awaited(const struct detector *d, const struct rank *r)
{
	return lives(r) && !RANK_OWN(d, r, hang, struct mine_rank)->apart;
}

/* 1: the node of r does as much as usual since l began, -1: it does less, 0: it is not known. */
static int node_works(const struct detector *d, const struct rank *r, const struct lateness *l)
{
	const struct node *n = known_node(d, r->node);
	const struct mine_node *m = n ? NODE_OWN(d, n, hang, struct mine_node) : NULL;

	if (!m || !(m->usual > 0) || m->now_ns <= l->since_ns)
		return 0;
	return m->now >= m->usual * d->options.busy_share ? 1 : -1;
}

/* Its own process, else what the node's metrics show. */
static enum doing doing_of(const struct detector *d, const struct rank *r, const struct lateness *l)
{
	enum doing doing = looks_say(&RANK_OWN(d, r, hang, struct mine_rank)->looks, d->now_ns);

	return doing == DOING_UNKNOWN && node_works(d, r, l) > 0 ? DOING_BUSY : doing;
}

/* So long it has been where it is without being seen at work. */
static double quiet_of(const struct detector *d, const struct rank *r, const struct lateness *l)
{
	uint64_t busy_ns = RANK_OWN(d, r, hang, struct mine_rank)->busy_ns;

	return busy_ns ? fmin(l->age_s, seconds_of(detector_age(d, busy_ns))) : l->age_s;
}

static void ask(struct detector *d, struct rank *r, bool wanted)
{
	struct mine_rank *m = RANK_OWN(d, r, hang, struct mine_rank);

	probe(d, r, wanted);
	if (!wanted)
		m->asked_ns = 0;
	else if (!m->asked_ns)
		m->asked_ns = d->now_ns;
}

/* What it does is known, or will not be told. */
static bool answered(const struct detector *d, const struct rank *r)
{
	const struct mine_rank *m = RANK_OWN(d, r, hang, struct mine_rank);

	return looks_say(&m->looks, d->now_ns) != DOING_UNKNOWN ||
	       (m->asked_ns && detector_age(d, m->asked_ns) >= ANSWER_NS);
}

/* Who tells of no steps is looked at once a minute, as nothing else shows that it is stopped. */
static void look_at_mute(struct detector *d, const struct job *j, struct rank *r)
{
	bool at_once = JOB_OWN(d, j, hang, struct mine_job)->stopping;
	struct mine_rank *m = RANK_OWN(d, r, hang, struct mine_rank);
	bool fresh = m->asked_ns && looks_fresh(&m->looks, d->now_ns);

	if (fresh && m->looks.doing == DOING_STOPPED) {
		if (!m->stopped_ns)
			m->stopped_ns = m->looks.at_ns;
	} else if (fresh || (m->asked_ns && answered(d, r) && !looks_due(&m->looks, d->now_ns))) {
		ask(d, r, false);
		m->stopped_ns = 0;
		m->look_ns = d->now_ns + MUTE_EVERY_NS;
	} else if (!m->asked_ns && (at_once || d->now_ns >= m->look_ns)) {
		m->looks.n = 0;
		ask(d, r, true);
	}
}

/* As pace_late(), which knows of nobody's looks. */
static bool late_of(const struct detector *d, const struct job *j, const struct rank *r,
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

/* What it does outlasts the look that met it. */
static void note_rest(struct detector *d, struct rank *r, const struct lateness *l)
{
	struct mine_rank *m = RANK_OWN(d, r, hang, struct mine_rank);
	enum doing doing = doing_of(d, r, l);

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
	switch (doing_of(d, r, &l)) {
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
		 doing_words(doing_of(d, one, &l)));
	return true;
}

static void count_doing(struct stall *s, enum doing doing)
{
	switch (doing) {
	case DOING_STOPPED:
		s->stopped++;
		break;
	case DOING_WAITING:
		s->waiting++;
		break;
	case DOING_IDLE:
		s->idle++;
		break;
	case DOING_ASLEEP:
		s->asleep++;
		break;
	case DOING_BUSY:
		s->busy++;
		break;
	case DOING_LATER:
	case DOING_UNKNOWN:
		break;
	}
}

static void tally_one(struct detector *d, const struct job *j, struct rank *r, struct stall *s)
{
	struct mine_rank *m = RANK_OWN(d, r, hang, struct mine_rank);
	struct lateness l;
	enum doing doing;
	bool fresh;

	s->lives++;
	m->behind = false;
	m->late = pace_late(d, j, r, &l);
	if (s->asks)
		note_rest(d, r, &l);
	if (l.mute && s->asks)
		ask(d, r, true);
	else if (l.mute)
		look_at_mute(d, j, r);
	if (l.mute) {
		m->late = late_of(d, j, r, &l);
		s->stands += m->late;
		s->stopping += m->stopped_ns != 0;
	}
	m->apart = l.mute && !m->late;
	if (m->apart)
		return;
	if (!s->awaited++)
		s->lowest = r->number;
	if (r->step < s->step_min)
		s->step_min = r->step;
	if (r->step > s->step_max)
		s->step_max = r->step;
	if ((l.phase || l.starting) && l.age_s <= l.timeout_s)
		s->excused++;
	ask(d, r, m->late || s->asks);
	if (!m->late)
		return;
	pace_suspect(d, r);
	s->late++;
	fresh = looks_fresh(&m->looks, d->now_ns);
	s->known += fresh;
	s->due += looks_due(&m->looks, d->now_ns);
	s->quiet += fresh && m->looks.quiet;
	s->resting += node_works(d, r, &l) < 0;
	s->working += node_works(d, r, &l) > 0;
	s->gpu_busy += fresh && m->looks.gpu == 1;
	s->gpu_idle += fresh && m->looks.gpu == 0;
	doing = doing_of(d, r, &l);
	if (doing == DOING_BUSY)
		m->busy_ns = d->now_ns;
	s->quiet_s = fmin(s->quiet_s, quiet_of(d, r, &l));
	count_doing(s, doing);
}

/* What tells those who are behind from the others. */
enum mark {
	MARK_STOPPED,
	MARK_STEP,
	MARK_NOT_WAITING,
	MARK_GPU_IDLE,
	MARK_BUSY,
	MARK_LATE,
	MARK_ALL,
	MARK_NOBODY
};

/* How long one may work while all others wait for it. Collectives give up after ten minutes by
 * default, and it is of use to be told before. Where nobody says that he waits it must be seen: who
 * waits spins, and nodes that do as much as ever do not wait. Where long phases are not declared,
 * what the lowest rank does alone for all of them, as many programs do, may take as long as
 * anything that works. */
static double lone_s(const struct detector *d, const struct stall *s, const struct rank *r,
		     enum mark mark)
{
	bool seen = (mark == MARK_GPU_IDLE || mark == MARK_BUSY) && s->working * 2 <= s->awaited;

	if (s->waiting * 2 < s->awaited && !seen)
		return d->options.busy_s;
	if (s->declares)
		return d->options.lone_busy_s;
	if (r->number == s->lowest)
		return d->options.busy_s;
	return mark == MARK_GPU_IDLE ? d->options.lone_busy_s : 2 * d->options.lone_busy_s;
}

/* It is beyond what was learned, and beyond what is allowed to what it is seen to do. */
static bool over(const struct detector *d, const struct stall *s, const struct rank *r,
		 const struct lateness *l, enum mark mark)
{
	enum doing doing = doing_of(d, r, l);
	double quiet = quiet_of(d, r, l), busy = lone_s(d, s, r, mark);

	if (doing == DOING_BUSY && !l->phase && busy < d->options.busy_s)
		return l->age_s > fmax(busy, d->options.step_median_x * l->usual_s);
	if (doing == DOING_BUSY)
		return l->age_s > fmax(l->timeout_s, d->options.busy_s);
	/* All of them wait for each other: for the network, which may come back. */
	if ((doing == DOING_LATER || (doing == DOING_WAITING && mark == MARK_ALL)) && !l->phase)
		return quiet > fmax(l->timeout_s, d->options.later_s);
	if (doing == DOING_ASLEEP && !l->phase)
		return quiet > fmax(l->timeout_s, d->options.asleep_s);
	return quiet > l->timeout_s;
}

/* Nothing will wake it: it is seen to do nothing, or it sleeps, until when nobody knows, and
 * another says that he waits for it. Whoever may wait for his GPU is waited for as well. */
static bool does_nothing(const struct detector *d, const struct stall *s, const struct rank *r,
			 const struct lateness *l)
{
	const struct mine_rank *m = RANK_OWN(d, r, hang, struct mine_rank);
	enum doing doing = doing_of(d, r, l);

	if (l->phase || l->starting)
		return false;
	return doing == DOING_IDLE || (doing == DOING_ASLEEP && s->waiting && !m->looks.unseen);
}

/* Marks one as to blame, with what counts for all of them. */
static void blame(struct detector *d, const struct job *j, struct rank *r, struct stall *s,
		  enum mark mark)
{
	struct lateness l;

	late_of(d, j, r, &l);
	RANK_OWN(d, r, hang, struct mine_rank)->behind = true;
	if (!s->behind) {
		s->first = r;
		s->node = r->node;
		s->least_s = quiet_of(d, r, &l);
	}
	if (r->node != s->node)
		s->node = SAMPLE_NONE;
	if (!s->behind || l.age_s > s->worst.age_s)
		s->worst = l;
	s->least_s = fmin(s->least_s, quiet_of(d, r, &l));
	s->usual_s = fmax(s->usual_s, l.usual_s);
	s->behind++;
	s->behind_idle += does_nothing(d, s, r, &l);
	s->over += over(d, s, r, &l, mark);
	s->unanswered += !answered(d, r);
}

static bool has_mark(const struct detector *d, const struct rank *r, const struct stall *s,
		     enum mark mark)
{
	const struct mine_rank *m = RANK_OWN(d, r, hang, struct mine_rank);
	enum doing doing = looks_say(&m->looks, d->now_ns);

	if (!m->late)
		return false;
	switch (mark) {
	case MARK_STOPPED:
		return doing == DOING_STOPPED;
	case MARK_STEP:
		return r->step == s->step_min && doing != DOING_WAITING;
	case MARK_NOT_WAITING:
		return looks_fresh(&m->looks, d->now_ns) && doing != DOING_WAITING;
	case MARK_GPU_IDLE:
		return looks_fresh(&m->looks, d->now_ns) && m->looks.gpu == 0;
	case MARK_BUSY:
		return doing == DOING_BUSY;
	case MARK_LATE:
	case MARK_ALL:
		return true;
	case MARK_NOBODY:
		break;
	}
	return false;
}

static uint32_t count_marked(const struct detector *d, const struct job *j, const struct stall *s,
			     enum mark mark)
{
	const struct rank *r;
	uint32_t n = 0;

	each_rank(r, j) n += awaited(d, r) && has_mark(d, r, s, mark);
	return n;
}

static enum mark choose_mark(const struct detector *d, const struct job *j, const struct stall *s)
{
	uint32_t n;

	if (s->stopped && s->stopped < s->lives)
		return MARK_STOPPED;
	if (s->step_min < s->step_max) {
		n = count_marked(d, j, s, MARK_STEP);
		if (n && n * 2 <= s->awaited)
			return MARK_STEP;
	}
	n = s->known - s->waiting;
	if (s->waiting * 2 >= s->known && s->known * 2 >= s->awaited && n && n * 2 <= s->awaited)
		return MARK_NOT_WAITING;
	if (s->gpu_idle && s->gpu_idle * 4 <= s->awaited && s->gpu_busy * 4 >= s->awaited * 3)
		return MARK_GPU_IDLE;
	if (s->busy && s->busy * 4 <= s->awaited &&
	    (s->idle + s->asleep + s->waiting) * 4 >= s->awaited * 3)
		return MARK_BUSY;
	if (s->late * 4 <= s->awaited || s->awaited == 1)
		return MARK_LATE;
	return s->late == s->awaited ? MARK_ALL : MARK_NOBODY;
}

static void find_behind(struct detector *d, const struct job *j, struct stall *s, enum mark mark)
{
	struct rank *r;

	each_rank(r, j) if (awaited(d, r) && has_mark(d, r, s, mark)) blame(d, j, r, s, mark);
}

/* All ranks that the job has on the node, and not all that it has. */
static bool whole_node(const struct detector *d, const struct job *j, const struct stall *s)
{
	const struct node *n = known_node(d, s->node);
	const struct rank *r;
	uint32_t there = 0;

	if (!n || s->behind < 2 || s->behind >= s->lives)
		return false;
	list_each(r, &n->ranks, of_node)
		there += r->job == j->number && awaited(d, r);
	return s->behind == there;
}

/* Time alone is not enough: who is to blame does nothing, or the learned timeout is over. */
static bool proven(const struct detector *d, const struct stall *s, enum mark mark,
		   enum verdict_cause *ret)
{
	/* Where nobody says that he waits for input, an idle one may well do that. */
	double steps = mark == MARK_GPU_IDLE ? d->options.step_median_x : d->options.hang_steps;
	double soon = fmax(steps * s->usual_s, d->options.hang_floor_s);
	bool early = s->usual_s > 0 && s->least_s >= soon;
	/* Others may be stopped since the same moment, and have been looked at a moment later. */
	bool stands = s->stands && (s->stands == s->stopping ||
				    s->worst.age_s > 2 * seconds_of(MUTE_STOPPED_NS));

	*ret = CAUSE_STOPPED;
	if ((early || stands) && (mark == MARK_STOPPED || s->stopped == s->lives))
		return true;
	if (early && mark != MARK_ALL && s->behind_idle == s->behind)
		return true;
	/* Nobody is behind: all of them stand still, with nobody in sight who could wake them. */
	if (early && mark == MARK_ALL && s->late == s->awaited && s->idle + s->waiting == s->late &&
	    s->quiet == s->late)
		return true;
	*ret = CAUSE_STALLED;
	/* Who is late only now, by nothing but time, was never looked at. */
	if (s->unanswered)
		return false;
	/* Who is behind was known a moment ago, and will be again. */
	if (mark == MARK_ALL && s->due * 2 > s->late)
		return false;
	/* One that works may be what all the others wait for; but a collective that waits spins,
	 * and then no node does as much as usual, all the time. Where GPUs can be seen that one's
	 * would be idle alone, or it is something that all do. */
	if (mark == MARK_ALL && s->busy && s->resting == s->late &&
	    (s->gpu_busy + s->gpu_idle) * 2 <= s->late)
		return s->resting_s > 2 * d->options.lone_busy_s;
	if (mark == MARK_ALL && s->busy)
		return s->worst.age_s > fmax(s->worst.timeout_s, d->options.busy_s);
	return s->over * 2 > s->behind && (mark != MARK_ALL || s->quiet_s > s->worst.timeout_s);
}

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
			: doing_words(doing_of(d, s->first, l)),
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
	} else if (whole_node(d, j, s)) {
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
		tally_one(d, j, r, &s);
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
	mark = choose_mark(d, j, &s);
	find_behind(d, j, &s, mark);
	if (s.behind && proven(d, &s, mark, &cause))
		accuse_all(d, j, &s, mark, cause);
}

static void on_tick(struct detector *d)
{
	for (uint32_t i = 0; i < d->options.jobs_max; i++) {
		struct job *j = d->jobs[i];
		struct mine_job *m = j ? JOB_OWN(d, j, hang, struct mine_job) : NULL;

		if (m && exits_asks(d, j) && m->check_ns > d->now_ns + NS_PER_SEC)
			m->check_ns = d->now_ns;
		if (m && j->on && d->now_ns >= m->check_ns)
			judge(d, j);
	}
}

/* ---- what is told ---- */

/* How much a node works: power where it is known, as a spinning GPU takes less of it. */
static float work_of(const float *metrics)
{
	if (!isnan(metrics[METRIC_GPU_POWER]))
		return metrics[METRIC_GPU_POWER];
	if (!isnan(metrics[METRIC_GPU_BUSY]))
		return metrics[METRIC_GPU_BUSY];
	return metrics[METRIC_CPU];
}

static void on_metrics(struct detector *d, const struct sample *s, struct node *n)
{
	struct mine_node *m = NODE_OWN(d, n, hang, struct mine_node);
	float work = work_of(s->metrics);
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

static bool has_gpu(const struct detector *d, const struct rank *r)
{
	const struct node *n = known_node(d, r->node);

	if (n && NODE_OWN(d, n, hang, struct mine_node)->gpus)
		return true;
	for (const struct device *x = n ? n->devices : NULL; x; x = x->next)
		if (x->role == 'g')
			return true;
	return false;
}

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
		looks_add(&m->looks, &s->activity, has_gpu(d, w->rank), d->now_ns);
		break;
	case SAMPLE_METRICS:
		on_metrics(d, s, w->node);
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
	for (uint32_t i = 0; i < d->options.jobs_max; i++) {
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
	.tick = on_tick,
	.gone = on_gone,
	.well = on_well,
	.explain = on_explain,
};
