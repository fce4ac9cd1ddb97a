/* SPDX-License-Identifier: Apache-2.0 */
/*
 * problems.c - problems.h: what stands, since when, and what is said about it.
 *
 *   problem   none -> stands (log line, event) -> none (log line, event)
 *
 * Invariants: (1) a problem of ranks stands exactly while some member has its bit, but that of a
 * refused prepare: a trainer that was refused ends, and the operator comes later. It stands until a
 * prepare of the job succeeds, for REFUSED_KEPT_NS after the last such rank left at most; (2) the
 * end of a problem is said if its beginning was; (3) a problem of a kind that trainers can cause
 * with each step (SAID_SELDOM) is said once in SAID_EVERY_NS and epoch, so that no number of ranks
 * and steps fills the log; (4) nothing here decides what a job may do.
 *
 * Nothing is kept over a restart of ckptd: what still is wrong is found again, and since when
 * nothing was committed is in the log (problems_restart.c). What a start finds lost is found once
 * for each job, by one walk over the newest of its commits.
 */
#include <config.h>

#include "ckptd/problems_priv.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/text.h"
#include "ckptd/events.h"
#include "ckptd/node_priv.h"
#include "ckptd/watching.h"
#include "ckptd/watching_json.h"
#include "detect/goodput_json.h"
#include "detect/verdicts.h"
#include "proto/session_page.h"

#define SECOND_NS     1000000000ull
#define SAID_EVERY_NS (600 * SECOND_NS)
#define SAID_SELDOM                                                                                \
	(1u << PROBLEM_PREPARE | 1u << PROBLEM_SAVES | 1u << PROBLEM_SKIPS | 1u << PROBLEM_AHEAD | \
	 1u << PROBLEM_NO_COMMIT)
/* Looked at also when the job has no ranks any more. */
#define WATCHED                                                                                    \
	(1u << PROBLEM_DISK | 1u << PROBLEM_DISK_LOW | 1u << PROBLEM_FOLDER | 1u << PROBLEM_PREPARE)
#define SKIPS_IN_A_ROW 3u
#define OVERDUE        3 /* times the interval that is usual, or advised */
#define OVERDUE_NS     (600 * SECOND_NS)
#define HANGS_NS       (30 * SECOND_NS)
#define LOOK_NS        (10 * SECOND_NS)
#define REFUSED_KEPT_NS (86400 * SECOND_NS)

static const char *const words[] = {
#define X(name, word, was) word,
	JOB_PROBLEMS(X)
#undef X
};
static const char *const past[] = {
#define X(name, word, was) was,
	JOB_PROBLEMS(X)
#undef X
};

const char *problem_word(enum job_problem k)
{
	assert(k < JOB_PROBLEM_COUNT);
	return words[k];
}

const char *skip_word(uint32_t kind)
{
	static const char *const kinds[CKPT_SKIP_REASONS_MAX] = {
#define X(name, value, word) [value] = word,
		CKPT_SKIP_REASONS(X)
#undef X
	};
	return kind < CKPT_SKIP_REASONS_MAX && kinds[kind] ? kinds[kind] : kinds[CKPT_SKIP_NONE];
}

static uint64_t now_of(const struct job *j)
{
	return loop_now(j->node->env.loop);
}

bool problems_stand(const struct job *j, enum job_problem k)
{
	return j->saves.problems[k].stands;
}

/* ---- When it is looked for ---- */

static uint64_t period(const struct node *n)
{
	uint64_t after = n->options.warn_after_ns;

	return after ? min_u64(LOOK_NS, after / 4 + 1) : LOOK_NS;
}

static void watch(struct node *n)
{
	if (n->problems_watched)
		return;
	n->problems_watched = true;
	timer_arm(n->env.loop, &n->problems_timer, loop_now(n->env.loop) + period(n));
}

static bool watched(const struct job *j)
{
	for (unsigned k = 0; k < JOB_PROBLEM_COUNT; k++)
		if (WATCHED & 1u << k && problems_stand(j, (enum job_problem)k))
			return true;
	return !list_empty(&j->members);
}

/* ---- What is said ---- */

static json_t *event_json(enum job_problem k, const struct problem *p)
{
	json_t *o = json_pack("{s:s, s:I}", "problem", words[k], "times", (json_int_t)p->times);

	if (o && p->rank != PROBLEM_NO_RANK)
		json_object_set_new(o, "rank", json_integer(p->rank));
	if (o && p->step != PROBLEM_NO_STEP)
		json_object_set_new(o, "step", json_integer((json_int_t)p->step));
	return o;
}

static void post(struct job *j, enum event_kind kind, int level, json_t *more, const char *text)
{
	struct subject s = subject_job(watching_number(j));

	events_post(j->node->events, kind, level, j->history.job.uid,
		    watching_subject_json(j->node, &s), more, "job '%s': %s", j->history.job.name,
		    text);
}

static bool says(const struct job *j, enum job_problem k, const struct problem *p)
{
	bool seldom = SAID_SELDOM & 1u << k;

	return j->node->ready && /* what a start finds it has said itself */
	       (!seldom || p->said_ns == 0 || now_of(j) - p->said_ns >= SAID_EVERY_NS);
}

void problem_found(struct job *j, const struct problem_found *f, const char *fmt, ...)
{
	struct problem *p = &j->saves.problems[f->problem];
	va_list ap;

	p->times++;
	p->rank = f->rank;
	p->step = f->step;
	va_start(ap, fmt);
	if (vsnprintf(p->text, sizeof(p->text), fmt, ap) >= (int)sizeof(p->text))
		text_shorten(p->text, sizeof(p->text));
	va_end(ap);
	if (p->stands)
		return;
	p->stands = true;
	if (WATCHED & 1u << f->problem)
		watch(j->node);
	p->times = max_u64(f->times, 1);
	p->since_ns = f->since_ns ? f->since_ns : now_of(j);
	p->said = says(j, f->problem, p);
	if (!p->said)
		return;
	p->said_ns = max_u64(now_of(j), 1);
	post(j, EVENT_PROBLEM, f->level, event_json(f->problem, p), p->text);
}

void problem_over(struct job *j, enum job_problem k, const char *fmt, ...)
{
	struct problem *p = &j->saves.problems[k];
	char text[ERR_TEXT_MAX], why[128];
	va_list ap;

	if (!p->stands)
		return;
	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	snprintf(text, sizeof(text), "%s for %llu s, %llu time%s; that is over: %s", past[k],
		 (unsigned long long)((now_of(j) - p->since_ns) / SECOND_NS),
		 (unsigned long long)p->times, p->times == 1 ? "" : "s", why);
	if (p->said) /* (2) */
		post(j, EVENT_PROBLEM_ENDED, 5, event_json(k, p), text);
	p->stands = p->said = false;
	p->ranks = 0;
	p->times = 0;
}

/* ---- Of ranks ---- */

__attribute__((format(printf, 4, 5))) static void rank_found(struct member *m, enum job_problem k,
							     uint64_t step, const char *fmt, ...)
{
	struct problem *p = &m->job->saves.problems[k];
	bool again = m->saves.problems & 1u << k;
	char text[PROBLEM_TEXT_MAX];
	va_list ap;

	/* What follows from a failure says less than what was said first. */
	if (again && p->rank == m->rank && p->step == step && step != PROBLEM_NO_STEP)
		return;
	va_start(ap, fmt);
	if (vsnprintf(text, sizeof(text), fmt, ap) >= (int)sizeof(text))
		text_shorten(text, sizeof(text));
	va_end(ap);
	p->ranks += !again;
	m->saves.problems |= 1u << k;
	problem_found(
		m->job,
		&(struct problem_found){.problem = k, .level = 4, .rank = m->rank, .step = step},
		"%s", text);
	assert(p->ranks > 0 && p->stands); /* (1) */
}

/* Another rank's takes the place of the one that was shown. */
static void show_other(struct job *j, enum job_problem k)
{
	struct problem *p = &j->saves.problems[k];
	struct member *m;

	list_each(m, &j->members, link) {
		if (!(m->saves.problems & 1u << k))
			continue;
		p->rank = m->rank;
		p->step = k == PROBLEM_SAVES ? m->saves.last_skip.step : PROBLEM_NO_STEP;
		snprintf(p->text, sizeof(p->text), "rank %u: %s", m->rank,
			 m->saves.last_skip.reason[0] ? m->saves.last_skip.reason : past[k]);
		return;
	}
}

static void rank_over(struct member *m, enum job_problem k, const char *why)
{
	struct problem *p = &m->job->saves.problems[k];

	if (!(m->saves.problems & 1u << k))
		return;
	m->saves.problems &= ~(1u << k);
	assert(p->ranks > 0); /* (1) */
	if (--p->ranks == 0)
		problem_over(m->job, k, "rank %u %s", m->rank, why);
	else if (p->rank == m->rank)
		show_other(m->job, k);
}

void problems_asked(struct member *m)
{
	m->job->saves.tried = true;
}

const char *prepare_lacks_word(enum prepare_lacks what)
{
	static const char *const kinds[] = {
#define X(name, word) word,
		PREPARE_LACKS(X)
#undef X
	};

	assert(what < sizeof(kinds) / sizeof(kinds[0]));
	return kinds[what];
}

void problems_prepare_refused(struct member *m, enum prepare_lacks what, const char *why)
{
	m->job->saves.problems[PROBLEM_PREPARE].lacks = what;
	rank_found(m, PROBLEM_PREPARE, PROBLEM_NO_STEP, "no %s for the saves of rank %u: %s",
		   what == PREPARE_DISK ? "room on disk" : "memory", m->rank, why);
}

void problems_prepared(struct member *m)
{
	struct job *j = m->job;

	if (m->saves.problems & 1u << PROBLEM_PREPARE)
		rank_over(m, PROBLEM_PREPARE, "has it now");
	else if (j->saves.problems[PROBLEM_PREPARE].ranks == 0)
		problem_over(j, PROBLEM_PREPARE, "rank %u was prepared", m->rank);
}

/* (1) */
static void refused_left(struct member *m)
{
	struct problem *p = &m->job->saves.problems[PROBLEM_PREPARE];

	if (!(m->saves.problems & 1u << PROBLEM_PREPARE))
		return;
	assert(p->ranks > 0 && p->stands);
	m->saves.problems &= ~(1u << PROBLEM_PREPARE);
	p->left_ns = now_of(m->job);
	if (--p->ranks > 0 && p->rank == m->rank)
		show_other(m->job, PROBLEM_PREPARE);
}

static void look_at_refused(struct job *j)
{
	const struct problem *p = &j->saves.problems[PROBLEM_PREPARE];

	if (p->stands && p->ranks == 0 && now_of(j) - p->left_ns >= REFUSED_KEPT_NS)
		problem_over(j, PROBLEM_PREPARE, "no rank has prepared for a day");
}

static void was_called(struct job *j, uint64_t step)
{
	j->saves.tried = true;
	j->saves.newest = j->saves.called ? max_u64(j->saves.newest, step) : step;
	j->saves.called = true;
}

void problems_save_failed(struct member *m, uint64_t step, const char *why)
{
	was_called(m->job, step);
	rank_found(m, PROBLEM_SAVES, step, "rank %u could not save step %llu: %s", m->rank,
		   (unsigned long long)step, why);
}

void problems_not_loaded(struct member *m, uint64_t step, const char *why)
{
	rank_found(m, PROBLEM_NOT_LOADED, step, "%s", why);
}

void problems_loaded(struct member *m)
{
	rank_over(m, PROBLEM_NOT_LOADED, "has loaded");
}

/* The rank for which no window is opened. */
static void look_who_blocks(struct job *j, uint64_t step)
{
	struct member *m = j->window.block == BLOCK_NOT_LOADED
				   ? member_of_rank(j, j->window.blocked_rank)
				   : NULL;
	char text[ERR_TEXT_MAX];

	if (!m || !member_must_load(m))
		return;
	snprintf(text, sizeof(text), NOT_LOADED, m->rank, (unsigned long long)j->origins.step,
		 j->origins.resumed_rank);
	problems_not_loaded(m, step, text);
}

bool problems_goes_back(struct member *m, uint64_t step, char ret[ERR_TEXT_MAX])
{
	struct job *j = m->job;
	const struct record_epoch *ep = &j->history.epoch;
	char text[ERR_TEXT_MAX];

	if (!ep->has_base || m->saves.noted == ep->number || !m->declared ||
	    m->declared->view.n_shards == 0)
		return false;
	if (m->origin.kind == ORIGIN_FRESH)
		snprintf(text, sizeof(text),
			 "rank %u has not loaded step %llu, which the job has: it begins a new "
			 "training, whose steps become the newest; call load before the "
			 "first save, or use another job name",
			 m->rank, (unsigned long long)ep->base_step);
	else if (m->origin.kind == ORIGIN_RESUMED && step <= m->origin.step)
		snprintf(text, sizeof(text),
			 "rank %u saves step %llu, which becomes the newest, and has loaded step "
			 "%llu: save the steps above the one that load returns",
			 m->rank, (unsigned long long)step, (unsigned long long)m->origin.step);
	else
		return false;
	m->saves.noted = ep->number;
	problem_found(
		j,
		&(struct problem_found){
			.problem = PROBLEM_GOES_BACK, .level = 4, .rank = m->rank, .step = step},
		"%s", text);
	snprintf(ret, ERR_TEXT_MAX, "job '%s': %.320s", j->history.job.name, text);
	return true;
}

/* One step that several ranks skip is one. */
static void count_row(struct job *j, const struct skip_request *r)
{
	struct saves *s = &j->saves;

	if (s->row > 0 && r->step <= s->row_to)
		return;
	if (s->row++ == 0) {
		s->row_from = r->step;
		s->row_ns = now_of(j);
	}
	s->row_to = r->step;
	if (s->row < SKIPS_IN_A_ROW || now_of(j) - s->row_ns < j->node->options.skips_ns)
		return;
	problem_found(
		j,
		&(struct problem_found){.problem = PROBLEM_SKIPS,
					.level = 4,
					.rank = PROBLEM_NO_RANK,
					.step = r->step,
					.since_ns = s->row_ns,
					.times = s->row},
		"all saves since step %llu were skipped; the last one, of step %llu: %s ('ckptctl "
		"why %s' says more)",
		(unsigned long long)s->row_from, (unsigned long long)r->step, r->reason,
		j->history.job.name);
}

void problems_ahead(struct member *m, uint64_t step)
{
	struct job *j = m->job;
	const struct credit_window *w = &j->window;

	assert(w->from > step && w->ahead != m->rank);
	problem_found(
		j,
		&(struct problem_found){.problem = PROBLEM_AHEAD,
					.level = 4,
					.rank = w->ahead,
					.step = w->from - 1},
		"rank %u has called save for step %llu and rank %u is at step %llu: nothing is "
		"saved "
		"before all ranks save the same step, the first of them %llu; look at the step "
		"counter of rank %u",
		w->ahead, (unsigned long long)(w->from - 1), m->rank, (unsigned long long)step,
		(unsigned long long)w->from, w->ahead);
	j->saves.problems[PROBLEM_AHEAD].ranks = 1;
}

void problems_together(struct job *j)
{
	problem_over(j, PROBLEM_AHEAD, "all ranks save the same steps");
}

static bool is_failure(uint32_t kind)
{
	return kind == CKPT_SKIP_FAILED || kind == CKPT_SKIP_REFUSED;
}

void problems_skipped(struct member *m, const struct skip_request *r)
{
	struct job *j = m->job;
	uint32_t kind = r->kind < CKPT_SKIP_REASONS_MAX ? r->kind : CKPT_SKIP_NONE;
	struct last_skip *last = &m->saves.last_skip;

	*last = (struct last_skip){.step = r->step,
				   .wall_ns = loop_wall(j->node->env.loop),
				   .rank = m->rank,
				   .kind = kind};
	text_put(last->reason, sizeof(last->reason), r->reason);
	j->saves.last_skip = *last;
	j->saves.skips[kind]++;
	m->saves.skips++;
	m->saves.skipped_last = kind != CKPT_SKIP_CALLER;
	if (is_failure(kind)) {
		problems_save_failed(m, r->step, r->reason);
	} else if (kind != CKPT_SKIP_CALLER) {
		was_called(j, r->step);
		look_who_blocks(j, r->step);
		count_row(j, r);
	}
}

/* What cannot be committed as the log cannot be written: the trainers' own counter. */
static void show_uncommitted(struct job *j)
{
	struct member *m;

	list_each(m, &j->members, link)
		if (m->page)
			problems_fill_page(m, m->page->base);
}

void problems_fill_page(const struct member *m, struct session_page *page)
{
	const struct saves *s = &m->job->saves;

	atomic_store_explicit(&page->uncommitted_from, s->uncommitted_from, memory_order_relaxed);
	atomic_store_explicit(&page->uncommitted, s->uncommitted, memory_order_release);
}

static uint64_t count_waiting(struct job *j, uint64_t *ret_first)
{
	const struct checkpoint *c;
	uint64_t n = 0;

	*ret_first = UINT64_MAX;
	list_each(c, &j->checkpoints, link) {
		if (!checkpoint_waits_for_commit(c))
			continue;
		*ret_first = min_u64(*ret_first, c->step);
		n++;
	}
	return n;
}

/* What the log keeps from being committed: not what was aborted for another reason. */
static void count_uncommitted(struct job *j)
{
	struct saves *s = &j->saves;
	uint64_t first;

	s->uncommitted = s->given_up + count_waiting(j, &first);
	s->uncommitted_from = s->given_up ? min_u64(first, s->given_up_from) : first;
	if (s->uncommitted == 0)
		s->uncommitted_from = 0;
	show_uncommitted(j);
}

void problems_sealed(struct member *m, const struct checkpoint *c)
{
	was_called(m->job, c->step);
	m->saves.skipped_last = false;
	rank_over(m, PROBLEM_SAVES, "saves again");
	if (c->sealed && job_log_down(m->job))
		count_uncommitted(m->job);
}

void problems_aborted(const struct checkpoint *c)
{
	assert(c->agreed == CP_ABORTED);
	if (c->sealed && problems_stand(c->job, PROBLEM_LOG))
		count_uncommitted(c->job);
}

bool problems_given_up(const struct checkpoint *c)
{
	struct saves *s = &c->job->saves;

	assert(checkpoint_waits_for_commit(c));
	s->given_up_from = s->given_up ? min_u64(s->given_up_from, c->step) : c->step;
	return s->given_up++ == 0;
}

void problems_left(struct member *m, bool bye)
{
	struct job *j = m->job;
	const struct last_skip *last = &m->saves.last_skip;
	size_t n = j->history.n_commits;
	char text[PROBLEM_TEXT_MAX + CKPT_JOB_MAX], newest[64] = "nothing was committed";

	refused_left(m);
	rank_over(m, PROBLEM_SAVES, "has left");
	rank_over(m, PROBLEM_NOT_LOADED, "has left");
	if (!bye || !m->saves.skipped_last || j->saves.end_said)
		return;
	j->saves.end_said = true; /* other ranks skipped it too */
	if (n > 0)
		snprintf(newest, sizeof(newest), "the newest committed step is %llu",
			 (unsigned long long)j->history.commits[n - 1].commit.step);
	snprintf(text, sizeof(text),
		 "rank %u has ended and its last save, of step %llu, %s: %s; %s "
		 "('ckptctl why %s' says more)",
		 m->rank, (unsigned long long)last->step,
		 is_failure(last->kind) ? "failed" : "was skipped", last->reason, newest,
		 j->history.job.name);
	post(j, EVENT_LAST_SAVE_LOST, 4,
	     json_pack("{s:I, s:I, s:s}", "rank", (json_int_t)m->rank, "step",
		       (json_int_t)last->step, "skip", skip_word(last->kind)),
	     text);
}

/* ---- Of the job ---- */

void problems_damaged(const struct checkpoint *c)
{
	struct job *j = c->job;

	/* What has found it has written so. */
	problem_found(j,
		      &(struct problem_found){.problem = PROBLEM_DAMAGE,
					      .level = 3 | EVENT_UNLOGGED,
					      .rank = PROBLEM_NO_RANK,
					      .step = c->step},
		      "step %llu on disk is damaged: %s", (unsigned long long)c->step, c->reason);
}

void problems_log_failed(struct job *j, int level, const char *why)
{
	bool new = !problems_stand(j, PROBLEM_LOG);

	problem_found(j,
		      &(struct problem_found){.problem = PROBLEM_LOG,
					      .level = level,
					      .rank = PROBLEM_NO_RANK,
					      .step = PROBLEM_NO_STEP},
		      "%s", why);
	if (new)
		count_uncommitted(j);
}

void problems_log_works(struct job *j)
{
	if (!problems_stand(j, PROBLEM_LOG))
		return;
	if (j->saves.given_up)
		problem_over(j, PROBLEM_LOG,
			     "record %llu is in it; from step %llu on %llu step%s given up "
			     "meanwhile",
			     (unsigned long long)(j->history.next_n - 1),
			     (unsigned long long)j->saves.given_up_from,
			     (unsigned long long)j->saves.given_up,
			     j->saves.given_up == 1 ? " was" : "s were");
	else
		problem_over(j, PROBLEM_LOG, "record %llu is in it",
			     (unsigned long long)(j->history.next_n - 1));
	j->saves.uncommitted = j->saves.uncommitted_from = j->saves.given_up = 0;
	show_uncommitted(j);
}

void problems_committed(const struct checkpoint *c)
{
	struct saves *s = &c->job->saves;
	uint64_t now = now_of(c->job);

	problem_over(c->job, PROBLEM_SKIPS, "step %llu is committed", (unsigned long long)c->step);
	problem_over(c->job, PROBLEM_NO_COMMIT, "step %llu is committed",
		     (unsigned long long)c->step);
	if (c->step > c->job->history.epoch.base_step)
		problem_over(c->job, PROBLEM_GOES_BACK, "step %llu is committed",
			     (unsigned long long)c->step);
	problem_over(c->job, PROBLEM_LOST, "step %llu is committed", (unsigned long long)c->step);
	s->row = 0;
	s->commit_gap_ns = s->commit_ns ? now - s->commit_ns : 0;
	s->commit_ns = now;
}

void problems_epoch(struct job *j)
{
	struct saves *s = &j->saves;
	struct member *m;

	s->tried = s->called = s->end_said = s->ended = false;
	s->row = 0;
	s->commit_ns = now_of(j);
	s->commit_gap_ns = 0;
	problem_over(j, PROBLEM_SKIPS, "a new epoch has begun");
	problem_over(j, PROBLEM_NO_COMMIT, "a new epoch has begun");
	problem_over(j, PROBLEM_AHEAD, "a new epoch has begun");
	problem_over(j, PROBLEM_GOES_BACK, "a new epoch has begun");
	list_each(m, &j->members, link)
		rank_over(m, PROBLEM_NOT_LOADED, "is in a new epoch");
	for (unsigned k = 0; k < JOB_PROBLEM_COUNT; k++)
		s->problems[k].said_ns = 0; /* it is another run's: said again */
}

/* What ranks do that live: of none nothing stands. */
void problems_no_rank(struct job *j)
{
	assert(list_empty(&j->members));
	problem_over(j, PROBLEM_SKIPS, "its last rank has left");
	problem_over(j, PROBLEM_NO_COMMIT, "its last rank has left");
	problem_over(j, PROBLEM_AHEAD, "its last rank has left");
	problem_over(j, PROBLEM_GOES_BACK, "its last rank has left");
}

void problems_all_left(struct job *j)
{
	j->saves.ended = j->saves.called && !j->saves.end_said;
	job_poke(j);
}

/* Of the run that has ended nothing may be committed any more: whether its newest step was. */
static void look_at_end(struct job *j)
{
	const struct saves *s = &j->saves;
	const struct history_commit *h =
		j->history.n_commits ? &j->history.commits[j->history.n_commits - 1] : NULL;
	const struct checkpoint *c;
	char text[ERR_TEXT_MAX];

	list_each(c, &j->checkpoints, link)
		if (c->agreed == CP_COMMITTING || (c->agreed == CP_OPEN && c->sealed))
			return;
	j->saves.ended = false;
	if (s->end_said ||
	    (h && h->epoch == j->history.epoch.number && h->commit.step >= s->newest))
		return;
	j->saves.end_said = true;
	if (h)
		snprintf(
			text, sizeof(text),
			"its ranks have ended and their last save, of step %llu, is not committed; "
			"the newest committed step is %llu ('ckptctl why %s' says more)",
			(unsigned long long)s->newest, (unsigned long long)h->commit.step,
			j->history.job.name);
	else
		snprintf(text, sizeof(text),
			 "its ranks have ended and nothing was committed: their last save was of "
			 "step %llu ('ckptctl why %s' says more)",
			 (unsigned long long)s->newest, j->history.job.name);
	post(j, EVENT_LAST_SAVE_LOST, 4, json_pack("{s:I}", "step", (json_int_t)s->newest), text);
}

/* ---- Lost commits ---- */

struct lost {
	uint64_t n, first, last; /* steps */
};

/* Those that are newer than the newest that can be restored, which no later one makes up for. */
static struct lost count_lost(struct job *j, const struct checkpoint *left)
{
	struct lost l = {0};

	for (size_t i = j->history.n_commits; i-- > 0;) {
		const struct history_commit *h = &j->history.commits[i];

		if (left && h->n <= left->record_n)
			break;
		if (!epoch_bytes_are_lost(j, h))
			continue;
		l.first = l.n ? min_u64(l.first, h->commit.step) : h->commit.step;
		l.last = max_u64(l.last, h->commit.step);
		l.n++;
	}
	return l;
}

void problems_started(struct job *j)
{
	const struct checkpoint *left = epoch_newest_restorable(j);
	struct lost l = count_lost(j, left);
	char steps[96], newest[96] = "no checkpoint of the job is left";

	j->saves.lost_at = j->history.next_n;
	if (l.n == 0 || job_stopped(j))
		return;
	if (left)
		snprintf(newest, sizeof(newest), "the newest that is left is step %llu",
			 (unsigned long long)left->step);
	if (l.n == 1)
		snprintf(steps, sizeof(steps), "step %llu was committed and is lost",
			 (unsigned long long)l.last);
	else
		snprintf(steps, sizeof(steps),
			 "steps %llu to %llu, %llu in all, were committed and are lost",
			 (unsigned long long)l.first, (unsigned long long)l.last,
			 (unsigned long long)l.n);
	problem_found(j,
		      &(struct problem_found){.problem = PROBLEM_LOST,
					      .level = 3,
					      .rank = PROBLEM_NO_RANK,
					      .step = l.last,
					      .times = l.n},
		      "%s: neither memory nor files have %s; %s", steps, l.n == 1 ? "it" : "them",
		      newest);
}

/* A person gives lost ones up by records: then they are missed no more. */
static void look_at_lost(struct job *j)
{
	if (j->saves.lost_at == j->history.next_n)
		return;
	j->saves.lost_at = j->history.next_n;
	if (count_lost(j, epoch_newest_restorable(j)).n == 0)
		problem_over(j, PROBLEM_LOST, "they were given up");
}

void problems_step(struct job *j)
{
	const struct checkpoint *c;
	bool damaged = false;

	if (j->saves.ended)
		look_at_end(j);
	if (problems_stand(j, PROBLEM_LOST))
		look_at_lost(j);
	if (!problems_stand(j, PROBLEM_DAMAGE))
		return;
	list_each(c, &j->checkpoints, link)
		damaged = damaged || (c->disk_suspect && c->durable != DUR_GONE);
	if (!damaged)
		problem_over(j, PROBLEM_DAMAGE, "it was written again, or taken away");
}

/* ---- No commit for long ---- */

/* Without an option: far beyond what is usual for this job, and what is advised. */
static uint64_t overdue_ns(struct job *j)
{
	double advised = goodput_json_interval(&j->goodput) * OVERDUE * (double)SECOND_NS;
	uint64_t ns = max_u64(OVERDUE_NS, OVERDUE * j->saves.commit_gap_ns);

	if (j->node->options.warn_after_ns)
		return j->node->options.warn_after_ns;
	return advised > 0 && advised < 1e18 ? max_u64(ns, (uint64_t)advised) : ns;
}

/* A disk that hangs gives no error: only the time says it. */
static void look_at_append(struct job *j)
{
	uint64_t after = j->node->options.warn_after_ns, ns = now_of(j) - j->append_since_ns;
	char text[ERR_TEXT_MAX];

	if (!j->appending || ns < (after ? min_u64(after, HANGS_NS) : HANGS_NS) ||
	    problems_stand(j, PROBLEM_LOG))
		return;
	snprintf(text, sizeof(text),
		 "record %llu of the log has not been written for %llu s: the disk or file system "
		 "of '%.120s' does not answer; look at it (dmesg), and do not end the ranks",
		 (unsigned long long)j->history.next_n, (unsigned long long)(ns / SECOND_NS),
		 j->node->options.data);
	problems_log_failed(j, 3, text);
}

static void look(struct job *j)
{
	uint64_t since = now_of(j) - j->saves.commit_ns, limit;
	char last[64] = "since its epoch began";
	size_t n = j->history.n_commits;

	if (!j->saves.tried || j->saves.commit_ns == 0 || problems_stand(j, PROBLEM_NO_COMMIT))
		return;
	limit = overdue_ns(j);
	if (since < limit)
		return;
	if (n > 0)
		snprintf(last, sizeof(last), "since step %llu",
			 (unsigned long long)j->history.commits[n - 1].commit.step);
	problem_found(
		j,
		&(struct problem_found){.problem = PROBLEM_NO_COMMIT,
					.level = 4,
					.rank = PROBLEM_NO_RANK,
					.step = PROBLEM_NO_STEP},
		"nothing was committed %s, for %llu s, which is longer than the %llu s that are "
		"expected: 'ckptctl why %s' says more",
		last, (unsigned long long)(since / SECOND_NS),
		(unsigned long long)(limit / SECOND_NS), j->history.job.name);
}

void problems_time_came(struct timer *t)
{
	struct node *n = container_of(t, struct node, problems_timer);
	bool any = false;
	struct job *j;

	loop_label(n->env.loop, "a look at what is not committed");
	list_each(j, &n->jobs, link) {
		look_at_refused(j);
		look_at_append(j);
		any = any || watched(j);
		if (!list_empty(&j->members))
			look(j);
	}
	n->problems_watched = any;
	if (!any)
		return;
	problems_disk_look(n);
	timer_arm(n->env.loop, t, loop_now(n->env.loop) + period(n));
}

void problems_joined(struct member *m)
{
	struct node *n = m->job->node;

	if (m->job->saves.commit_ns == 0) /* adopted */
		m->job->saves.commit_ns = now_of(m->job);
	watch(n);
}
