/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy.c - what is done about a verdict: the first row that fits, what it escalates to, and what
 * speaks against it now.
 *
 * Invariants: (1) now, advised and withheld are disjoint, and together what is wanted; (2) in any
 * hour at most actions_per_hour decisions have something else in `now` than POLICY_FREE, and at
 * most half of that many, rounded up, are for one user's jobs and their ranks: one that crashes
 * again and again leaves something for the others; (3) what is remembered of subjects is bounded:
 * the one that was quiet longest is forgotten, jobs and ranks before what is the node's; (4) `now`
 * does nothing to the node for a verdict that rests on jobs alone, as their users can fake it, one
 * or several: see is_seconded().
 *
 * The budget counts decisions, not actions: a checkpoint, a mark and a check that one verdict asks
 * for are one disturbance. The hold-down is of each action by itself: that a node was checked a
 * minute ago says nothing against draining it for what the check has found.
 */
#include <config.h>

#include "detect/policy.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "detect/policy_table.h"
#include "detect/sample.h"
#include "detect/verdicts.h"

#define HOUR_NS    (3600ull * 1000000000u)
#define BUDGET_MAX 256u

/* What is remembered of a subject. */
struct remembered {
	struct subject subject;
	uint64_t times[POLICY_TIMES_MAX]; /* of its last verdicts that wanted something; a ring */
	uint32_t n;                       /* ever */
	uint64_t last_ns;                 /* heard of */
	uint64_t done_ns[ACTION_COUNT];   /* this was, for its sake; 0: never */
};

/* The job and user that an action was taken for. */
struct whose {
	uint32_t job; /* SAMPLE_NONE: the node's own */
	bool owned;   /* owner is known */
	uint32_t owner;
};

struct policy {
	struct policy_options options;
	struct policy_row *rows;
	size_t n_rows;
	char name[256];
	struct remembered known[POLICY_SUBJECTS_MAX];
	size_t n_known;
	struct {
		uint64_t ns;
		struct whose whose;
	} acted[BUDGET_MAX]; /* when there were actions; a ring */
	uint64_t n_acted;    /* ever */
	uint64_t machine_ns; /* the last alarm that no job can make; 0: there was none */
};

int policy_new(const struct policy_options *o, struct policy **ret)
{
	struct policy *p = alloc_zero(sizeof(*p));

	if (!p)
		return -ENOMEM;
	policy_set_options(p, o);
	snprintf(p->name, sizeof(p->name), "none");
	*ret = p;
	return 0;
}

void policy_free(struct policy *p)
{
	if (!p)
		return;
	alloc_free(p->rows);
	alloc_free(p);
}

void policy_set_options(struct policy *p, const struct policy_options *o)
{
	p->options = *o;
	if (p->options.actions_per_hour > BUDGET_MAX)
		p->options.actions_per_hour = BUDGET_MAX;
}

int policy_parse(struct policy *p, const char *name, const char *text, size_t len, struct err *e)
{
	struct policy_row *rows = NULL;
	size_t n = 0;
	int r = policy_table_parse(name, text, len, &rows, &n, e);

	if (r < 0)
		return r;
	alloc_free(p->rows);
	p->rows = rows;
	p->n_rows = n;
	snprintf(p->name, sizeof(p->name), "%s", name);
	return 0;
}

int policy_take_builtin(struct policy *p)
{
	int r = policy_parse(p, "the table of ckptd", (const char *)policy_builtin,
			     policy_builtin_len, NULL);

	assert(r == 0 || r == -ENOMEM); /* a test reads it too */
	return r;
}

size_t policy_size(const struct policy *p)
{
	return p->n_rows;
}

const struct policy_row *policy_at(const struct policy *p, size_t i)
{
	assert(i < p->n_rows);
	return &p->rows[i];
}

const char *policy_name(const struct policy *p)
{
	return p->name;
}

/* ---- Words ---- */

const char *policy_actions_text(uint32_t actions, char buf[POLICY_ACTIONS_TEXT_MAX])
{
	size_t used = 0;

	buf[0] = '\0';
	for (unsigned a = 0; a <= ACTION_COUNT; a++)
		if (actions & ACTION_BIT(a))
			used += (size_t)snprintf(
				buf + used, POLICY_ACTIONS_TEXT_MAX - used, "%s%s", used ? "+" : "",
				a == ACTION_COUNT ? "advice"
						  : verdict_action_word((enum verdict_action)a));
	assert(used < POLICY_ACTIONS_TEXT_MAX);
	return buf;
}

static void time_text(uint64_t ns, char buf[24])
{
	static const struct {
		uint64_t s;
		char unit;
	} units[] = {{86400, 'd'}, {3600, 'h'}, {60, 'm'}, {1, 's'}};
	uint64_t s = ns / 1000000000u;

	for (size_t i = 0; i < 4; i++) {
		if (i == 3 || (s >= units[i].s && s % units[i].s == 0)) {
			snprintf(buf, 24, "%" PRIu64 "%c", s / units[i].s, units[i].unit);
			return;
		}
	}
}

const char *policy_limit_text(const struct policy_limit *l, bool is_time, char buf[32])
{
	char number[24];

	if (is_time)
		time_text(l->value, number);
	else
		snprintf(number, sizeof(number), "%" PRIu64, l->value);
	if (l->test == TEST_ANY || l->test == TEST_NONE)
		snprintf(buf, 32, "%s", l->test == TEST_ANY ? "*" : "none");
	else
		snprintf(buf, 32, "%s%s", l->test == TEST_BELOW ? "<" : ">=", number);
	return buf;
}

/* ---- Which row ---- */

/* none: the value that says that there is none, which as an age is neither small nor large. */
static bool fits_limit(const struct policy_limit *l, uint64_t v, uint64_t none)
{
	switch (l->test) {
	case TEST_BELOW:
		return v < l->value;
	case TEST_FROM:
		return v != UINT64_MAX && v >= l->value;
	case TEST_NONE:
		return v == none;
	case TEST_ANY:
		break;
	}
	return true;
}

static bool fits(const struct policy_row *r, const struct verdict *v, const struct policy_facts *f)
{
	return (r->class == CLASS_COUNT || r->class == v->class) &&
	       (r->cause == CAUSE_COUNT || r->cause == v->cause) &&
	       (r->level > LEVEL_ALARM || r->level == v->level) &&
	       (r->subject & 1u << v->subject.kind) && fits_limit(&r->copies, f->copies, 0) &&
	       fits_limit(&r->durable, f->durable_age_ns, UINT64_MAX) &&
	       fits_limit(&r->spares, f->spares, 0);
}

static const struct policy_row *row_of(const struct policy *p, const struct verdict *v,
				       const struct policy_facts *f)
{
	for (size_t i = 0; i < p->n_rows; i++)
		if (fits(&p->rows[i], v, f))
			return &p->rows[i];
	return NULL;
}

/* ---- What is remembered ---- */

static const struct remembered *recall(const struct policy *p, const struct subject *s)
{
	for (size_t i = 0; i < p->n_known; i++)
		if (subject_same(&p->known[i].subject, s))
			return &p->known[i];
	return NULL;
}

static bool is_job_or_rank(const struct subject *s)
{
	return s->kind == SUBJECT_JOB || s->kind == SUBJECT_RANK;
}

static struct remembered *remember(struct policy *p, const struct subject *s)
{
	struct remembered *m = (struct remembered *)recall(p, s);

	if (m)
		return m;
	if (p->n_known < POLICY_SUBJECTS_MAX) {
		m = &p->known[p->n_known++];
	} else { /* (3) */
		m = &p->known[0];
		for (size_t i = 1; i < p->n_known; i++) {
			struct remembered *k = &p->known[i];
			bool job = is_job_or_rank(&k->subject);

			if (job != is_job_or_rank(&m->subject) ? job : k->last_ns < m->last_ns)
				m = k;
		}
	}
	*m = (struct remembered){.subject = *s};
	return m;
}

#define A_JOB    (SAMPLE_NONE - 1) /* one that was forgotten; where it is asked for: any */
#define OF_OWNER (SAMPLE_NONE - 2) /* of the node, by what jobs show */

void policy_forget(struct policy *p, const struct subject *s)
{
	for (size_t i = p->n_known; i-- > 0;)
		if (!s || subject_contains(s, &p->known[i].subject))
			p->known[i] = p->known[--p->n_known];
	for (size_t i = 0; i < BUDGET_MAX; i++) {
		struct whose *w = &p->acted[i].whose;

		if (w->job != SAMPLE_NONE && (!s || (s->kind == SUBJECT_JOB && w->job == s->job)))
			w->job = A_JOB;
		if (!s) /* a user that clears its own job keeps the share that it has used */
			w->owned = false;
	}
	if (!s || s->kind == SUBJECT_NODE)
		p->machine_ns = 0;
}

/* Of its last verdicts, those in the window before now. */
static uint32_t times_within(const struct remembered *m, uint64_t now_ns, uint64_t window_ns)
{
	uint32_t n = m ? (m->n < POLICY_TIMES_MAX ? m->n : POLICY_TIMES_MAX) : 0, found = 0;

	for (uint32_t i = 0; i < n; i++)
		found += now_ns - m->times[i] < window_ns;
	return found;
}

/* Whether the action was for w's user, or for w's job if the users are not known; A_JOB: for any
 * job; SAMPLE_NONE: for anything. */
static bool is_of(const struct whose *acted, const struct whose *w)
{
	if (w->job == SAMPLE_NONE)
		return true;
	if (acted->job == SAMPLE_NONE || w->job == A_JOB)
		return acted->job != SAMPLE_NONE;
	return acted->owned && w->owned ? acted->owner == w->owner : acted->job == w->job;
}

static uint32_t acted_within_hour(const struct policy *p, const struct whose *w, uint64_t now_ns)
{
	uint64_t n = p->n_acted < BUDGET_MAX ? p->n_acted : BUDGET_MAX;
	uint32_t found = 0;

	for (uint64_t i = 0; i < n; i++)
		found += now_ns - p->acted[i].ns < HOUR_NS && is_of(&p->acted[i].whose, w);
	return found;
}

static const struct whose anybody = {.job = SAMPLE_NONE}, any_job = {.job = A_JOB};

static struct whose whose_is(const struct verdict *v)
{
	return (struct whose){.job = is_job_or_rank(&v->subject) ? v->subject.job
				     : v->of_jobs		 ? OF_OWNER
								 : SAMPLE_NONE,
			      .owned = v->of_jobs,
			      .owner = v->owner};
}

/* ---- What a verdict rests on ---- */

/* Users can cause pressure and load at will; check-failed stands for what was checked. */
static bool no_job_can_make(enum verdict_cause c)
{
	return c == CAUSE_XID || c == CAUSE_KERNEL || c == CAUSE_LINK_DOWN ||
	       c == CAUSE_LINK_FLAPS || c == CAUSE_LINK_ERRORS || c == CAUSE_DISK_ERRORS ||
	       c == CAUSE_MEMORY_ERRORS || c == CAUSE_CHECK_FAILED;
}

/* The user controls what a job's ranks do and report. Such a verdict counts against the node only
 * together with an alarm of the machine itself within the row's window. Jobs of another user do not
 * second it: two users can agree, and one user's hang may be real and have nothing to do with the
 * node. */
static bool is_seconded(const struct policy *p, const struct verdict *v, uint64_t now_ns,
			uint64_t window_ns)
{
	return !v->of_jobs || (p->machine_ns && now_ns - p->machine_ns < window_ns);
}

static void note_machine(struct policy *p, const struct verdict *v, uint64_t now_ns)
{
	if (v->level == LEVEL_ALARM && !v->of_jobs && !is_job_or_rank(&v->subject) &&
	    no_job_can_make(v->cause))
		p->machine_ns = now_ns;
}

/* Actions on the node, not on the subject of the verdict. */
static uint32_t to_the_node(const struct verdict *v)
{
	return ACTION_BIT(ACTION_DRAIN) |
	       (is_job_or_rank(&v->subject) ? 0 : ACTION_BIT(ACTION_SUSPECT));
}

/* ---- Deciding ---- */

/* Whether it is another time, or more of what was counted when it came. */
static bool counts(const struct verdict *v)
{
	return v->state == VERDICT_RAISED || v->risen;
}

static void choose_step(const struct policy_row *r, const struct remembered *m,
			const struct verdict *v, const struct policy_facts *f, struct decision *d)
{
	uint32_t step;

	d->times = times_within(m, f->now_ns, r->times ? r->window_ns : HOUR_NS);
	if (counts(v) || d->times == 0)
		d->times++;
	step = r->times ? d->times / r->times : 0;
	d->step = step < r->n_steps ? step : r->n_steps - 1;
}

/* Which row it is, and whose turn. */
static size_t say_row(const struct policy *p, const struct decision *d, char *buf, size_t size)
{
	char actions[POLICY_ACTIONS_TEXT_MAX], window[24];
	int n;

	policy_actions_text(d->wanted, actions);
	if (!d->row)
		return (size_t)snprintf(buf, size, "no row of %s fits: it is recorded", p->name);
	time_text(d->row->times ? d->row->window_ns : HOUR_NS, window);
	n = snprintf(buf, size, "row %u of the policy says %s%s", d->row->line,
		     actions[0] ? actions : "nothing of it any more",
		     d->again ? ", which was withheld before" : "");
	if (d->times > 1 && n > 0 && (size_t)n < size)
		n += snprintf(buf + n, size - (size_t)n,
			      d->asked ? " (it would be alarm %u of this subject within %s)"
				       : " (it came %u times within %s)",
			      d->times, window);
	return (size_t)n < size ? (size_t)n : size - 1;
}

/* Of the actions those that were done for it within the row's hold. ret_until: of the first of them
 * no more. */
static uint32_t held_of(const struct remembered *m, const struct policy_row *r, uint32_t actions,
			uint64_t now_ns, uint64_t *ret_until)
{
	uint32_t held = 0;

	*ret_until = UINT64_MAX;
	for (unsigned i = 0; m && i < ACTION_COUNT; i++) {
		if (!(actions & ACTION_BIT(i)) || !m->done_ns[i] ||
		    now_ns - m->done_ns[i] >= r->hold_ns)
			continue;
		held |= ACTION_BIT(i);
		if (m->done_ns[i] + r->hold_ns < *ret_until)
			*ret_until = m->done_ns[i] + r->hold_ns;
	}
	return held;
}

/* When fewer than `most` will have been within an hour, counted as above; 0: never. */
static uint64_t budget_until(const struct policy *p, const struct whose *w, uint32_t most)
{
	uint32_t found = 0;

	for (uint64_t i = 0; most && i < BUDGET_MAX && i < p->n_acted; i++) {
		uint64_t at = (p->n_acted - 1 - i) % BUDGET_MAX;

		found += is_of(&p->acted[at].whose, w);
		if (found == most)
			return p->acted[at].ns + HOUR_NS;
	}
	return 0;
}

/* Any user can have jobs: those of one user get half of the budget, and all jobs three quarters.
 * The rest is for verdicts about the node. */
static bool is_used_up(const struct policy *p, const struct whose *w, uint64_t now_ns,
		       uint64_t *ret_until, char *buf, size_t size)
{
	uint32_t all = p->options.actions_per_hour, half = (all + 1) / 2, share = (3 * all + 3) / 4;

	if (acted_within_hour(p, &anybody, now_ns) >= all) {
		*ret_until = budget_until(p, &anybody, all);
		snprintf(buf, size, "detect.actions_per_hour (%u) are used up: somebody must look",
			 all);
		return true;
	}
	if (w->job == SAMPLE_NONE)
		return false;
	if (acted_within_hour(p, w, now_ns) >= half) {
		*ret_until = budget_until(p, w, half);
		snprintf(buf, size,
			 "%s had %s half of detect.actions_per_hour (%u): somebody must look at it",
			 w->owned ? "this user's jobs have" : "this job has",
			 w->owned ? "their" : "its", all);
		return true;
	}
	if (acted_within_hour(p, &any_job, now_ns) < share)
		return false;
	*ret_until = budget_until(p, &any_job, share);
	snprintf(buf, size,
		 "jobs have had their share (%u) of detect.actions_per_hour (%u): somebody must "
		 "look",
		 share, all);
	return true;
}

/* Takes out of d->now what is not to be done now, and says why. */
static void withhold(const struct policy *p, const struct verdict *v, const struct remembered *m,
		     const struct policy_facts *f, struct decision *d, char *buf, size_t size)
{
	struct whose whose = whose_is(v);
	uint32_t lone = d->seconded ? 0 : d->now & to_the_node(v), held = 0;
	uint32_t costs = d->now & ~POLICY_FREE & ~lone;
	char left[24], words[POLICY_ACTIONS_TEXT_MAX];

	if (p->options.dry_run) {
		d->withheld = d->now & ~(ACTION_BIT(ACTION_IGNORE) | ACTION_BIT(ACTION_RECORD));
		snprintf(buf, size, "detect.dry_run is on: nothing is done");
		return;
	}
	if (costs)
		held = held_of(m, d->row, costs, f->now_ns, &d->again_ns);
	if (costs != held && is_used_up(p, &whose, f->now_ns, &d->again_ns, buf, size)) {
		d->withheld = costs | lone;
		return;
	}
	d->withheld = held | lone;
	if (!held) {
		d->again_ns = 0;
		if (lone)
			snprintf(buf, size,
				 "only jobs say so, whose users can make it up: it takes an alarm "
				 "of the node itself");
		return;
	}
	time_text(d->again_ns - f->now_ns + 999999999u, left);
	snprintf(buf, size, "%s was done for it before: held down for %s more",
		 policy_actions_text(held, words), left);
}

enum verdict_action policy_usual_advice(enum verdict_cause cause, enum subject_kind kind)
{
	switch (cause) {
	case CAUSE_PROCESS_ENDED:
	case CAUSE_NODE_SILENT:
	case CAUSE_STALLED:
	case CAUSE_STOPPED:
		return ACTION_RESTORE;
	case CAUSE_STRAGGLER:
	case CAUSE_ODD_ONE_OUT:
	case CAUSE_PATH_SLOW:
		return ACTION_VALIDATE;
	case CAUSE_LINK_DOWN:
	case CAUSE_LINK_FLAPS:
	case CAUSE_LINK_ERRORS:
	case CAUSE_MEMORY_ERRORS:
	case CAUSE_CHECK_FAILED:
		return ACTION_DRAIN;
	case CAUSE_NOT_A_NUMBER:
	case CAUSE_JUMP:
	case CAUSE_DRIFT:
		return ACTION_ROLL_BACK;
	case CAUSE_REPLICAS_DIFFER:
		return kind == SUBJECT_JOB ? ACTION_RESTORE : ACTION_VALIDATE;
	case CAUSE_STALE:
		return ACTION_RECORD;
	case CAUSE_DISK_ERRORS:
		return ACTION_MIGRATE;
	case CAUSE_DEGRADED:
		return ACTION_SUSPECT;
	case CAUSE_PRESSURE:
		return ACTION_CHECKPOINT;
	case CAUSE_XID:
	case CAUSE_KERNEL:
	case CAUSE_COUNT:
		break;
	}
	return ACTION_COUNT;
}

/* What the row says at its step; again: of these actions what it may say at any, since its window
 * may be over while they wait. */
static uint32_t wanted_by_row(const struct policy_row *r, uint32_t step, const struct verdict *v,
			      uint32_t again)
{
	uint32_t wanted = 0;

	for (uint32_t i = 0; i < r->n_steps; i++)
		if (again || i == step)
			wanted |= r->steps[i];
	if (wanted & POLICY_ADVICE && v->advice != ACTION_COUNT)
		wanted = (wanted & ~POLICY_ADVICE) | ACTION_BIT(v->advice);
	return again ? wanted & again : wanted;
}

/* again: 0, or the actions that were withheld; asked: it has not come. */
static void decide(const struct policy *p, const struct verdict *v, const struct policy_facts *f,
		   uint32_t again, bool asked, struct decision *d)
{
	const struct remembered *m = recall(p, &v->subject);
	char against[POLICY_ACTIONS_TEXT_MAX + 80] = "", words[POLICY_ACTIONS_TEXT_MAX];
	size_t used;

	*d = (struct decision){
		.row = row_of(p, v, f), .times = 1, .again = again != 0, .asked = asked};
	if (d->row)
		choose_step(d->row, m, v, f, d);
	d->wanted = d->row  ? wanted_by_row(d->row, d->step, v, again)
		    : again ? 0
			    : ACTION_BIT(ACTION_RECORD);
	if (v->level != LEVEL_ALARM && (d->wanted & ~POLICY_FREE))
		d->wanted = (d->wanted & POLICY_FREE) | ACTION_BIT(ACTION_RECORD);
	d->advised = d->wanted & ~p->options.can & ~POLICY_FREE & ~POLICY_ADVICE;
	d->now = d->wanted & ~d->advised & ~POLICY_ADVICE;
	d->seconded = is_seconded(p, v, f->now_ns,
				  d->row && d->row->times ? d->row->window_ns : HOUR_NS);
	withhold(p, v, m, f, d, against, sizeof(against));
	d->now &= ~d->withheld;
	used = say_row(p, d, d->why, sizeof(d->why));
	if (d->withheld)
		used += (size_t)snprintf(d->why + used, sizeof(d->why) - used, "; not done: %s",
					 against);
	if (d->advised && used < sizeof(d->why))
		used += (size_t)snprintf(d->why + used, sizeof(d->why) - used,
					 "; %s is yours or your scheduler's to do",
					 policy_actions_text(d->advised, words));
	if (d->wanted & POLICY_ADVICE && used < sizeof(d->why))
		snprintf(d->why + used, sizeof(d->why) - used,
			 "; what such an alarm advises differs from one to the next");
	assert(!(d->now & d->advised) && !(d->now & d->withheld)); /* (1) */
	assert(d->seconded || !(d->now & to_the_node(v)));	   /* (4) */
}

void policy_ask(const struct policy *p, const struct verdict *v, const struct policy_facts *f,
		struct decision *ret)
{
	decide(p, v, f, 0, true, ret);
}

static void keep(struct policy *p, const struct verdict *v, uint64_t now_ns, bool counted,
		 const struct decision *d)
{
	struct whose whose = whose_is(v);
	struct remembered *m;

	note_machine(p, v, now_ns);
	if (!(d->wanted & ~(ACTION_BIT(ACTION_IGNORE) | ACTION_BIT(ACTION_RECORD))))
		return;
	m = remember(p, &v->subject);
	if (counted)
		m->times[m->n++ % POLICY_TIMES_MAX] = now_ns;
	m->last_ns = now_ns;
	if (!(d->now & ~POLICY_FREE))
		return;
	for (unsigned i = 0; i < ACTION_COUNT; i++)
		if (d->now & ~POLICY_FREE & ACTION_BIT(i))
			m->done_ns[i] = now_ns;
	p->acted[p->n_acted % BUDGET_MAX].ns = now_ns; /* (2) */
	p->acted[p->n_acted++ % BUDGET_MAX].whose = whose;
}

void policy_decide(struct policy *p, const struct verdict *v, const struct policy_facts *f,
		   struct decision *ret)
{
	decide(p, v, f, 0, false, ret);
	keep(p, v, f->now_ns, counts(v), ret);
}

void policy_decide_again(struct policy *p, const struct verdict *v, const struct policy_facts *f,
			 uint32_t withheld, struct decision *ret)
{
	struct verdict stands = *v;

	assert(withheld);
	stands.state = VERDICT_UPDATED; /* that it stands is not another time */
	stands.risen = false;
	decide(p, &stands, f, withheld, false, ret);
	keep(p, &stands, f->now_ns, false, ret);
}
