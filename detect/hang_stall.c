/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hang_stall.c - the job at one moment: who is late, what tells those who are behind from the
 * others, and whether they are to blame. hang.c says what follows from it, and says it.
 *
 * Invariants: (1) who is late is asked, who is not is not, but for whom exits.c asks and who tells
 * of no steps; (2) whoever is behind is late; (3) nothing here says anything, or remembers anything
 * but of ranks.
 */
#include <config.h>

#include "detect/hang_priv.h"

#include <math.h>

#include "detect/exits.h"

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

void hang_tally(struct detector *d, const struct job *j, struct rank *r, struct stall *s)
{
	struct mine_rank *m = RANK_OWN(d, r, hang, struct mine_rank);
	struct lateness l;
	enum doing doing;
	bool fresh;

	s->lives++;
	m->behind = false;
	m->late = pace_late(d, j, r, &l);
	if (s->asks)
		hang_note_rest(d, r, &l);
	if (l.mute && s->asks)
		hang_ask(d, r, true);
	else if (l.mute)
		hang_look_at_mute(d, j, r);
	if (l.mute) {
		m->late = hang_late_of(d, j, r, &l);
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
	hang_ask(d, r, m->late || s->asks);
	if (!m->late)
		return;
	pace_suspect(d, r);
	s->late++;
	fresh = looks_fresh(&m->looks, d->now_ns);
	s->known += fresh;
	s->due += looks_due(&m->looks, d->now_ns);
	s->quiet += fresh && m->looks.quiet;
	s->resting += hang_node_works(d, r, &l) < 0;
	s->working += hang_node_works(d, r, &l) > 0;
	s->gpu_busy += fresh && m->looks.gpu == 1;
	s->gpu_idle += fresh && m->looks.gpu == 0;
	doing = hang_doing_of(d, r, &l);
	if (doing == DOING_BUSY)
		m->busy_ns = d->now_ns;
	s->quiet_s = fmin(s->quiet_s, hang_quiet_of(d, r, &l));
	count_doing(s, doing);
}

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
	enum doing doing = hang_doing_of(d, r, l);
	double quiet = hang_quiet_of(d, r, l), busy = lone_s(d, s, r, mark);

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
	enum doing doing = hang_doing_of(d, r, l);

	if (l->phase || l->starting)
		return false;
	return doing == DOING_IDLE || (doing == DOING_ASLEEP && s->waiting && !m->looks.unseen);
}

/* Marks one as to blame, with what counts for all of them. */
static void blame(struct detector *d, const struct job *j, struct rank *r, struct stall *s,
		  enum mark mark)
{
	struct lateness l;

	hang_late_of(d, j, r, &l);
	RANK_OWN(d, r, hang, struct mine_rank)->behind = true;
	if (!s->behind) {
		s->first = r;
		s->node = r->node;
		s->least_s = hang_quiet_of(d, r, &l);
	}
	if (r->node != s->node)
		s->node = SAMPLE_NONE;
	if (!s->behind || l.age_s > s->worst.age_s)
		s->worst = l;
	s->least_s = fmin(s->least_s, hang_quiet_of(d, r, &l));
	s->usual_s = fmax(s->usual_s, l.usual_s);
	s->behind++;
	s->behind_idle += does_nothing(d, s, r, &l);
	s->over += over(d, s, r, &l, mark);
	s->unanswered += !hang_answered(d, r);
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

enum mark hang_choose_mark(const struct detector *d, const struct job *j, const struct stall *s)
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

void hang_find_behind(struct detector *d, const struct job *j, struct stall *s, enum mark mark)
{
	struct rank *r;

	each_rank(r, j) if (awaited(d, r) && has_mark(d, r, s, mark)) blame(d, j, r, s, mark);
}

bool hang_whole_node(const struct detector *d, const struct job *j, const struct stall *s)
{
	const struct node *n = known_node(d, s->node);
	const struct rank *r;
	uint32_t there = 0, all = 0;

	if (!n || s->behind < 2)
		return false;
	list_each(r, &n->ranks, of_node) {
		there += r->job == j->number && awaited(d, r);
		all += r->job == j->number && lives(r);
	}
	return s->behind == there && all < s->lives;
}

bool hang_proven(const struct detector *d, const struct stall *s, enum mark mark,
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
