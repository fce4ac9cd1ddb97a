/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tidy.c - see tidy.h.
 *
 *   wanted -> (PAUSE_NS after the last one) -> gathering -> slices, each a work of META -> over
 *
 * The loop gathers what is in use, some jobs in a call: of each the layouts of its log, of its
 * checkpoints and those that are known to be stored, which persist.c does not write again, and what
 * its ranks have declared. Writers note the objects that they write after the sweep has begun
 * (storage/object_uses.h), and the sweep reads the rest from COMMIT files.
 *
 * Invariants: (1) while a job could not be read nothing is removed: what it uses is not known; (2)
 * a node that stops waits for the slice under way, and for no other.
 *
 * Failure modes: an error is logged, and the sweep tried again after the next expiry or start.
 */
#include <config.h>

#include "ckptd/tidy.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "ckptd/node_priv.h"
#include "storage/object_sweep.h"

#define PAUSE_NS (60ull * 1000000000u)
#define GATHERED 1000u /* in a call, and what the last job of it has */

static void begin(struct tidy *t);

static int keep_layout(struct tidy *t, const struct digest *d)
{
	static const struct digest none;

	return digest_equal(d, &none) ? 0 : object_sweep_keep_layout(t->sweep, d);
}

static int keep_job(struct tidy *t, struct job *j, unsigned *n)
{
	struct checkpoint *c;
	struct declared *d;
	int r = 0;

	j->kept_round = t->round;
	*n += (unsigned)(j->history.n_commits + j->layouts_stored) + 1;

	for (size_t i = 0; r == 0 && i < j->history.n_commits; i++)
		r = keep_layout(t, &j->history.commits[i].commit.layout);
	for (uint64_t i = 0; r == 0 && i < j->layouts_stored; i++)
		r = keep_layout(t, &j->stored_layouts[i]);
	list_each(c, &j->checkpoints, link) {
		if (r == 0)
			r = keep_layout(t, &c->layout);
		(*n)++;
	}
	list_each(d, &j->declared, link) {
		if (r == 0)
			r = object_sweep_keep_declaration(t->sweep, &d->digest);
		(*n)++;
	}
	return r;
}

/* 1: there are more. A job that comes later uses nothing but what it notes. */
static int keep_some(struct tidy *t)
{
	struct node *n = t->node;
	struct list *const lists[] = {&n->jobs, &n->failed_jobs, &n->stopped_jobs};
	unsigned had = 0;
	struct job *j;
	int r;

	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
		list_each(j, lists[i], link) {
			if (j->kept_round == t->round)
				continue;
			if (had >= GATHERED)
				return 1;
			r = keep_job(t, j, &had);
			if (r < 0)
				return r;
		}
	}
	return 0;
}

static void slice_run(struct work *w)
{
	struct tidy *t = container_of(w, struct tidy, work);

	w->status = object_sweep_slice(t->sweep, &w->cancel, &t->err);
}

static void submit(struct tidy *t)
{
	t->node->works++;
	work_submit(t->node->env.workers, WORK_META, FAIR_NODE, &t->work);
}

static void over(struct tidy *t, int status)
{
	struct node *n = t->node;
	uint64_t removed = object_sweep_removed(t->sweep);
	char line[ERR_TEXT_MAX + 120];

	object_sweep_end(t->sweep);
	t->sweep = NULL;
	t->next_ns = loop_now(n->env.loop) + PAUSE_NS;
	if (removed) {
		snprintf(line, sizeof(line),
			 "%" PRIu64 " declarations and layouts that nothing uses were removed",
			 removed);
		n->env.log(n->env.log_arg, 6, NULL, line);
	}
	if (status < 0) {
		snprintf(line, sizeof(line),
			 "declarations and layouts that nothing uses stay for now: %s",
			 t->err.code ? t->err.text : err_text(status));
		n->env.log(n->env.log_arg, status == CKPT_ESTATE ? 6 : 4, NULL, line);
	}
	if (t->wanted)
		begin(t);
}

static void slice_done(struct work *w)
{
	struct tidy *t = container_of(w, struct tidy, work);
	struct node *n = t->node;

	n->works--;
	if (w->status > 0 && !n->stopping)
		submit(t);
	else
		over(t, w->status);
	node_stop_step(n);
}

static void gather(struct task *task)
{
	struct tidy *t = container_of(task, struct tidy, gather);
	int r = keep_some(t);

	loop_label(t->node->env.loop, "what jobs use of declarations and layouts");
	t->gathering = r > 0;
	if (r > 0)
		loop_post(t->node->env.loop, &t->gather);
	else if (r < 0)
		over(t, r);
	else
		submit(t);
}

static void begin(struct tidy *t)
{
	struct node *n = t->node;
	int r;

	if (t->sweep || !n->ready || n->stopping)
		return;
	if (!list_empty(&n->refused)) /* (1) */
		t->next_ns = loop_now(n->env.loop) + PAUSE_NS;
	if (loop_now(n->env.loop) < t->next_ns) {
		timer_arm(n->env.loop, &t->timer, t->next_ns);
		return;
	}
	r = object_sweep_begin(&n->store, &t->sweep);
	if (r < 0) {
		timer_arm(n->env.loop, &t->timer, loop_now(n->env.loop) + 1000000000u);
		return;
	}
	t->wanted = false;
	t->err = (struct err){0};
	t->work = (struct work){.run = slice_run, .done = slice_done};
	t->round++;
	t->gathering = true;
	loop_post(n->env.loop, &t->gather);
}

static void time_came(struct timer *timer)
{
	struct tidy *t = container_of(timer, struct tidy, timer);

	if (t->wanted)
		begin(t);
}

void tidy_want(struct node *n)
{
	n->tidy.wanted = true;
	begin(&n->tidy);
}

void tidy_expired(const struct checkpoint *gone)
{
	struct job *j = gone->job;
	struct checkpoint *c;

	/* The common case; of other jobs' the sweep finds out. */
	list_each(c, &j->checkpoints, link)
		if (c != gone && c->durable != DUR_GONE && digest_equal(&c->layout, &gone->layout))
			return;
	tidy_want(j->node);
}

void tidy_stop(struct node *n)
{
	timer_disarm(n->env.loop, &n->tidy.timer);
	if (n->tidy.sweep)
		atomic_store(&n->tidy.work.cancel, true);
	loop_unpost(n->env.loop, &n->tidy.gather);
	if (n->tidy.gathering) {
		n->tidy.gathering = false;
		object_sweep_end(n->tidy.sweep);
		n->tidy.sweep = NULL;
	}
}

void tidy_init(struct tidy *t, struct node *n)
{
	*t = (struct tidy){.node = n};
	timer_init(&t->timer, time_came);
	task_init(&t->gather, FAIR_NODE, gather);
	list_init(&t->work.link);
}

void tidy_fini(struct tidy *t)
{
	timer_disarm(t->node->env.loop, &t->timer);
	loop_unpost(t->node->env.loop, &t->gather);
	object_sweep_end(t->sweep);
	t->sweep = NULL;
}
