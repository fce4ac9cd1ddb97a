/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trust.c - what a job's checkpoints are trusted with.
 *
 *   latest     from the commit record on
 *   complete   recheck.c has read every copy that there is, and it matched
 *   verified   complete, and the job went on from it for healthy_steps steps without an alarm; or
 *              somebody who knows said so
 *   doubted    it was committed between the beginning of a trouble and its end, or has itself set
 *              an alarm off (stale snapshot, replicas that differ): steps do not verify it any more
 *   bad        somebody who knows said so: as good as damaged, never offered, kept
 *
 * Invariants: (1) checkpoint->trust is what records in the log add up to, and nothing is offered by
 * anything else (I4); what is only said stands in checkpoint->said until its record is there;
 * (2) a step counts for a checkpoint only if the job's state of that step came from it: of its own
 * epoch, and of later ones as long as each began with it or with a later one of its line. What an
 * older life of ckptd cannot vouch for does not count.
 *
 * An alarm lives as long as the detector that raised it: what was doubted stays so, since that is a
 * record, but a trouble that stood when ckptd ended doubts nothing that is committed after its
 * restart until the detector has found it again. The events file would know of it, and is not
 * asked: it may miss events and may be lost, and nothing that is offered may depend on it (I4).
 * Instead steps are counted from the newest commit on when ckptd starts, so that a trouble has
 * healthy_steps to show itself again.
 *
 * A log that cannot be written delays records and nothing else. Thread: the loop.
 */
#include <config.h>

#include "ckptd/trust.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/fault.h"
#include "ckptd/goodput.h"
#include "ckptd/hook.h"
#include "ckptd/node_priv.h"
#include "detect/verdict.h"

#define AGAIN_NS 1000000000u /* after want of memory */

/* ---- Records ---- */

void trust_recorded(struct checkpoint *c)
{
	struct history_commit *h = history_find(&c->job->history, c->step, &c->attempt);

	if (!h)
		return;
	c->trust = h->trust;
	c->said = trust_add(c->said, h->trust);
}

/* There was no memory for a record: the trust stays as set, and its record is written later. */
static void say_later(struct job *j)
{
	j->say_later = true;
	timer_arm(j->node->env.loop, &j->room_timer, loop_now(j->node->env.loop) + AGAIN_NS);
}

static void record_done(void *arg, int status)
{
	struct checkpoint *c = arg;
	uint32_t before = c->trust;

	c->saying--;
	if (status == 0)
		trust_recorded(c);
	else if (status == -ENOMEM && !BUG(SAID_FORGOTTEN))
		say_later(c->job);
	else
		c->said = c->trust; /* refused: it was freed meanwhile, or another leads */
	/* As ordinary as the save itself, of which nothing is said either. */
	if (trust_level(c->trust) > trust_level(before))
		job_tell_step(c->job, c->step, 7, "step %llu is %s", (unsigned long long)c->step,
			      trust_word(trust_level(c->trust)));
	if (c->trust & ~before & TRUST_DOUBTED)
		job_tell_step(c->job, c->step, 4,
			      "step %llu is doubted: it was committed while something was wrong",
			      (unsigned long long)c->step);
	job_poke(c->job);
}

static int record(struct checkpoint *c)
{
	struct record r = {.type = RECORD_TRUST};

	int ret;

	r.mark.step = c->step;
	r.mark.attempt = c->attempt;
	r.mark.value = c->said;
	c->saying++;
	ret = job_append_for(c, &r, record_done, c);
	if (ret < 0)
		c->saying--;
	return ret;
}

void trust_pass_over_early(struct checkpoint *base)
{
	struct checkpoint *c;

	list_each(c, &base->job->checkpoints, link) {
		if (c->agreed != CP_COMMITTED || c->record_n <= base->record_n ||
		    c->durable == DUR_GONE)
			continue;
		c->said = trust_add(c->said, TRUST_PASSED);
		ignore_result(record(c) /* the epoch's record fails too */);
	}
}

void trust_say(struct checkpoint *c, uint32_t what)
{
	if (!JOB_ASSERT(c->job, c->agreed == CP_COMMITTED))
		return;
	c->said = trust_add(c->said, what);
	if (BUG(TRUST_BEFORE_RECORD))
		c->trust = c->said;
	job_poke(c->job);
}

/* ---- What the job does ---- */

static const struct history_commit *base_of(const struct job *j)
{
	struct history *h = (struct history *)&j->history; /* only looked at */

	return h->epoch.has_base ? history_find(h, h->epoch.base_step, &h->epoch.base_attempt)
				 : NULL;
}

void trust_started(struct job *j)
{
	const struct history_commit *base = base_of(j);
	struct checkpoint *c;

	j->progress = base ? base->commit.step : 0;
	for (size_t i = 0; i < j->history.n_commits; i++)
		if (j->history.commits[i].epoch == j->history.epoch.number)
			j->progress = j->history.commits[i].commit.step;
	list_each(c, &j->checkpoints, link) {
		if (c->agreed != CP_COMMITTED)
			continue;
		c->said = c->trust;
		c->reread_disk = trust_level(c->trust) >= TRUST_COMPLETE;
		c->reread_memory = c->reread_disk;
		c->off_line = c->epoch != j->history.epoch.number &&
			      !(base && (base->n == c->record_n ||
					 (base->epoch == c->epoch && base->n > c->record_n)));
		c->healthy_from = max_u64(c->step, j->progress);
		for (size_t i = 0; i < j->history.n_commits; i++) {
			const struct history_commit *h = &j->history.commits[i];

			if (h->n > c->record_n && (h->trust & TRUST_DOUBTED))
				c->healthy_from = max_u64(c->healthy_from, h->commit.step);
		}
	}
}

void trust_epoch(struct job *j)
{
	const struct history_commit *base = base_of(j);
	struct checkpoint *c;

	j->n_troubles = 0;
	j->tight = false;
	j->progress = base ? base->commit.step : 0;
	list_each(c, &j->checkpoints, link) {
		if (c->agreed != CP_COMMITTED)
			continue;
		trust_recorded(c); /* the epoch may have passed it over */
		if (!base || c->record_n > base->n)
			c->off_line = true;
	}
}

void trust_committed(struct checkpoint *c)
{
	c->committed_ns = loop_now(c->job->node->env.loop);
	c->healthy_from = max_u64(c->step, c->job->progress);
	if (c->job->n_troubles)
		trust_say(c, TRUST_DOUBTED);
	trust_progress(c->job, c->step);
}

static void went_on(struct job *j, uint64_t step)
{
	if (step <= j->progress)
		return;
	j->progress = step;
	job_poke(j);
}

void trust_progress(struct job *j, uint64_t step)
{
	goodput_went_on(j, step);
	went_on(j, step);
}

void trust_beat(struct job *j, uint32_t rank, uint64_t step, uint64_t time_ns)
{
	struct member *m = j ? member_of_rank(j, rank) : NULL;

	if (!j)
		return;
	goodput_went_on(j, step);
	/* A beat is worth one step, whatever number it has: trainers may count tokens, or say
	 * nonsense, and what happened while no ckptd watched is not known to be healthy. */
	step = step > j->progress ? j->progress + 1 : 0;
	/* (2): what it had finished before it loaded the epoch's base does not count. */
	if (m && m->epoch == j->history.epoch.number && time_ns >= m->entered_ns)
		went_on(j, step);
}

static void count_anew(struct job *j)
{
	struct checkpoint *c;

	list_each(c, &j->checkpoints, link)
		c->healthy_from = max_u64(c->healthy_from, j->progress);
}

static void alarm_stands(struct job *j, const struct verdict *v)
{
	struct checkpoint *c;

	for (uint32_t i = 0; i < j->n_troubles; i++)
		if (j->troubles[i] == v->id)
			return;
	if (j->n_troubles < TROUBLES_MAX)
		j->troubles[j->n_troubles++] = v->id;
	list_each(c, &j->checkpoints, link)
		if (c->agreed == CP_COMMITTED && c->committed_ns > 0 &&
		    c->committed_ns >= v->since_ns)
			trust_say(c, TRUST_DOUBTED);
	count_anew(j);
}

static void alarm_is_over(struct job *j, const struct verdict *v)
{
	for (uint32_t i = 0; i < j->n_troubles; i++) {
		if (j->troubles[i] != v->id)
			continue;
		j->troubles[i] = j->troubles[--j->n_troubles];
		count_anew(j);
		return;
	}
}

void trust_verdict(struct node *n, struct job *j, const struct verdict *v)
{
	bool of_job = v->subject.kind == SUBJECT_JOB || v->subject.kind == SUBJECT_RANK;
	bool over = v->state == VERDICT_CLEARED;
	struct job *each;

	if ((v->class != CLASS_CORRUPTING && v->class != CLASS_DIVERGING) ||
	    (v->level != LEVEL_ALARM && !over))
		return;
	list_each(each, &n->jobs, link) {
		if (of_job && each != j)
			continue;
		if (over)
			alarm_is_over(each, v);
		else
			alarm_stands(each, v);
	}
}

uint64_t trust_healthy_steps(const struct checkpoint *c)
{
	const struct job *j = c->job;

	if (c->agreed != CP_COMMITTED || c->off_line || j->n_troubles ||
	    ((c->trust | c->said) & (TRUST_DOUBTED | TRUST_BAD)) || j->progress <= c->healthy_from)
		return 0;
	return j->progress - c->healthy_from;
}

static void hook_step(struct job *j);

void trust_queue(struct job *j)
{
	struct checkpoint *c;

	if (j->log_error || j->node->stopping || job_log_down(j))
		return;
	list_each(c, &j->checkpoints, link)
		if (c->agreed == CP_COMMITTED && c->durable != DUR_GONE && !c->saying &&
		    !j->say_later && trust_add(c->trust, c->said) != c->trust && record(c) < 0)
			say_later(j);
}

void trust_step(struct job *j)
{
	uint64_t enough = j->node->options.healthy_steps;
	struct checkpoint *c;

	if (j->log_error || j->node->stopping)
		return;
	list_each(c, &j->checkpoints, link)
		if (c->agreed == CP_COMMITTED && c->durable != DUR_GONE && enough > 0 &&
		    trust_level(c->trust) == TRUST_COMPLETE &&
		    trust_level(c->said) == TRUST_COMPLETE && trust_healthy_steps(c) >= enough)
			trust_say(c, TRUST_VERIFIED);
	trust_queue(j);
	hook_step(j);
}

/* ---- trust.hook ---- */

static void hook_done(void *arg, int status)
{
	struct node *n = arg;
	struct job *j = job_find_id(n, &n->hook_asks.job);
	struct checkpoint *c =
		j ? checkpoint_find_attempt(j, n->hook_asks.step, &n->hook_asks.attempt) : NULL;

	n->hook_runs = false;
	list_each(j, &n->jobs, link)
		job_poke(j); /* the next one may be asked about */
	if (!c || c->agreed != CP_COMMITTED)
		return;
	if (status == 0) {
		trust_say(c, TRUST_VERIFIED);
	} else if (status == 1) {
		job_tell_step(c->job, c->step, 3,
			      "step %llu: trust.hook says that it is bad: it is not offered "
			      "any more",
			      (unsigned long long)c->step);
		trust_say(c, TRUST_BAD);
	} else if (status < 0 && status != -ETIMEDOUT && status != -ECHILD) {
		job_tell(c->job, 4, "trust.hook '%s' cannot be run: %s", n->options.hook,
			 err_text(status));
	} else {
		job_tell_step(c->job, c->step, 4, "step %llu: trust.hook does not know: %s",
			      (unsigned long long)c->step,
			      status == -ETIMEDOUT ? "it took too long and was ended"
			      : status < 0         ? "it was ended by a signal"
						   : "it ended with a status above 1");
	}
}

static bool wants_hook(const struct checkpoint *c)
{
	const char *hook = c->job->node->options.hook;

	return c->job->node->env.hooks && hook[0] && strcmp(hook, "/dev/null") != 0 &&
	       !c->asked_hook && c->durable == DUR_DONE && !c->disk_suspect &&
	       trust_level(c->trust) == TRUST_COMPLETE && trust_level(c->said) == TRUST_COMPLETE &&
	       !((c->trust | c->said) & TRUST_BAD);
}

static void ask_hook(struct checkpoint *c)
{
	struct node *n = c->job->node;
	struct hook_question q = {.program = n->options.hook,
				  .job = c->job->history.job.name,
				  .data = n->options.data,
				  .timeout_ns = n->options.hook_timeout_ns};
	int r;

	job_id_of(c->job, c->step, &c->attempt, &q.id);
	r = n->env.hooks->ops->start(n->env.hooks, &q, hook_done, n);
	if (r == -EBUSY)
		return;
	c->asked_hook = true;
	n->hook_runs = r == 0;
	n->hook_asks = q.id;
	if (r < 0)
		job_tell(c->job, 4, "trust.hook '%s' cannot be run: %s", q.program, err_text(r));
}

static void hook_step(struct job *j)
{
	struct checkpoint *c, *newest = NULL;

	list_each(c, &j->checkpoints, link)
		if (c->agreed == CP_COMMITTED && wants_hook(c) &&
		    (!newest || c->record_n > newest->record_n))
			newest = c;
	if (newest && !j->node->hook_runs)
		ask_hook(newest);
}

static bool is_at_hook(const struct checkpoint *c)
{
	const struct node *n = c->job->node;

	return n->hook_runs && n->hook_asks.step == c->step &&
	       attempt_equal(&n->hook_asks.attempt, &c->attempt);
}

/* ---- Retention ---- */

/* It may still be verified by what the job does. */
static bool may_rise(const struct checkpoint *c)
{
	return trust_level(c->trust) == TRUST_COMPLETE && !c->off_line && !c->disk_suspect &&
	       !((c->trust | c->said) & (TRUST_DOUBTED | TRUST_BAD));
}

/* Something is known, or said, against its bytes, or the job went back behind it. */
static bool in_doubt(const struct checkpoint *c)
{
	return ((c->trust | c->said) & (TRUST_DOUBTED | TRUST_BAD | TRUST_PASSED)) != 0;
}

/* While newer ones are in doubt these must not push it off the disk: it is what a job that has gone
 * wrong goes back to, and what was verified may be much older. */
static void hold_undoubted(struct checkpoint *const *order, struct retention_item *items, size_t n)
{
	size_t newest = n;

	while (newest > 0 && (in_doubt(order[newest - 1]) || order[newest - 1]->disk_suspect))
		newest--;
	if (newest > 0 && newest < n)
		items[newest - 1].held = "the newest that nobody doubts";
}

void trust_hold(struct job *j, bool room, struct checkpoint *const *order,
		struct retention_item *items, size_t n)
{
	size_t newest = n;

	for (size_t i = 0; i < n && j->node->options.keep_verified; i++)
		if (trust_reaches(order[i]->trust, TRUST_VERIFIED) && !order[i]->disk_suspect)
			newest = i;
	if (newest < n)
		items[newest].held = "the newest verified one";
	if (j->node->options.keep_verified)
		hold_undoubted(order, items, n);
	for (size_t i = newest < n ? newest + 1 : 0;
	     i < n && room && j->node->options.keep_verified && j->node->options.healthy_steps;
	     i++) {
		if (!may_rise(order[i]))
			continue;
		items[i].held = "the next one to be verified";
		break;
	}
	for (size_t i = 0; i < n && room; i++)
		if (recheck_is_reading(order[i]))
			items[i].held = "being read again";
		else if (is_at_hook(order[i]))
			items[i].held = "trust.hook looks at it";
}
