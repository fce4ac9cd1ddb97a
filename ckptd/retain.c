/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retain.c - which durable checkpoints go (I9), one at a time: free record in the log, then COMMIT
 * unlinked, shards to spare/ or unlinked, then the index.
 *
 * A shard file is recycled only if no other process can have it open: a process that was given a
 * descriptor may keep it for ever, and would read what is written there later. What an earlier life
 * of ckptd gave away is not known: its files are unlinked.
 *
 * What is kept only while the disk has room (trust_hold()) goes when a Prepare or a write of the
 * job found none, and is not kept again before the job's next epoch: each write would find it in
 * its way.
 *
 * A crash between record and files leaves files that the log calls freed; the next start takes
 * them away. A failed expiry is tried again after a while: what it holds is room on the disk.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "ckptd/indexing.h"
#include "ckptd/job.h"
#include "ckptd/node_priv.h"
#include "ckptd/trust.h"
#include "storage/recover.h"

#define RETAIN_MAX HISTORY_COMMITS_MAX /* checkpoints of one job that are looked at */
#define AGAIN_NS   5000000000u

struct expiry {
	struct work work;
	struct checkpoint *checkpoint;
	uint64_t keep_spare;
	struct checkpoint_id id;
	bool given;             /* processes may have its files open */
	struct held_files held; /* those that they have */
	enum durable_state was; /* before it was to go */
	append_done_fn *done;
	void *arg;
	struct err err;
};

/* It has files that retention counts: whole ones, or what is left of a write. */
bool retain_has_files(const struct checkpoint *c)
{
	return c->durable == DUR_DONE || c->durable == DUR_UNFINISHED;
}

static int by_record(const void *a, const void *b)
{
	uint64_t x = (*(struct checkpoint *const *)a)->record_n;
	uint64_t y = (*(struct checkpoint *const *)b)->record_n;

	return (x > y) - (x < y);
}

/* Durable ones in log order, oldest first. */
size_t retain_plan(struct job *j, bool room, struct retention_item *items,
		   struct checkpoint **order, size_t cap)
{
	bool sorted = true;
	struct checkpoint *c;
	size_t n = 0;

	list_each(c, &j->checkpoints, link) {
		if (!retain_has_files(c) || n == cap)
			continue;
		sorted = sorted && (n == 0 || order[n - 1]->record_n <= c->record_n);
		order[n++] = c;
	}
	if (!sorted) /* as a start found their folders */
		qsort(order, n, sizeof(*order), by_record);
	for (size_t i = 0; i < n; i++) {
		c = order[i];
		items[i] = (struct retention_item){
			.step = c->step,
			/* One that was gone back behind is not offered either. */
			.clean = c->durable == DUR_DONE && !c->disk_suspect &&
				 !(c->trust & (TRUST_BAD | TRUST_PASSED)),
			.pinned = c->pinned,
			.base = checkpoint_is_base(c),
			.busy = c->readers > 0 || c->works > 0 || c->stuck,
		};
		if (BUG(RETAIN_IGNORES_READERS))
			items[i].busy = false;
	}
	trust_hold(j, room, order, items, n);
	/* No record can free what the log does not know: a person says so. */
	for (size_t i = 0; i < n; i++)
		if (order[i]->record_n == 0)
			items[i].held = "unknown to the log, which was lost";
	return retention_apply(&j->node->options.retention, items, n);
}

static void expiry_over(struct expiry *x, int status)
{
	struct job *j = x->checkpoint->job;

	j->retaining = false;
	j->expired_ns = max_u64(loop_now(j->node->env.loop), 1);
	x->checkpoint->expiring = false;
	preparing_has_room(j);
	if (status < 0 && j->removal == JOB_KEPT)
		job_tell_step(j, x->id.step, 4, "take step %llu away: %s; it is tried again",
			      (unsigned long long)x->id.step, x->err.text);
	if (x->done)
		x->done(x->arg, status);
	job_poke(j);
	alloc_free(x);
}

static void expire_run(struct work *w)
{
	struct expiry *x = container_of(w, struct expiry, work);
	struct node *n = x->checkpoint->job->node;

	/* Out of memory: held files are not charged. */
	if (x->given)
		ignore_result(held_files_open(&n->store, &x->id, x->checkpoint->world, &x->held));
	w->status = checkpoint_expire(&n->store, &x->id, x->keep_spare, &x->err);
	held_files_sift(&x->held);
}

static void expire_done(struct work *w)
{
	struct expiry *x = container_of(w, struct expiry, work);

	struct checkpoint *c = x->checkpoint;
	struct job *j = c->job;

	holding_keep(c, &x->held);
	indexing_remove(j->node, &x->id);
	c->files_left = w->status < 0;
	if (c->files_left) {
		j->sweep = false; /* until the timer has run */
		timer_arm(j->node->env.loop, &j->room_timer,
			  loop_now(j->node->env.loop) + AGAIN_NS);
	} else {
		persist_room(j->node);
		tidy_expired(c);
	}
	c->works--;
	expiry_over(x, w->status);
}

static void expire_start(struct expiry *x)
{
	struct checkpoint *c = x->checkpoint;

	c->works++;
	if (c->recyclable || BUG(RECYCLE_GIVEN))
		x->keep_spare = c->job->node->options.spare_bytes;
	x->given = holding_may(c) && !c->recyclable;
	x->work.run = expire_run;
	x->work.done = expire_done;
	job_submit(c->job, WORK_PLAN, &x->work);
}

/* One whose files could not be taken away. */
static void expire_again(struct job *j)
{
	struct checkpoint *c;
	struct expiry *x;

	list_each(c, &j->checkpoints, link) {
		if (!c->files_left)
			continue;
		x = alloc_zero(sizeof(*x));
		if (!x)
			return; /* the next one that fails, or the next start */
		x->checkpoint = c;
		job_id_of(j, c->step, &c->attempt, &x->id);
		c->files_left = false;
		c->expiring = true;
		j->retaining = true;
		expire_start(x);
		return;
	}
	j->sweep = false;
}

void retain_lost(void *arg, int status)
{
	struct checkpoint *c = arg;

	if (status == 0 && c->durable == DUR_UNFINISHED) {
		c->durable = DUR_GONE;
		c->files_left = true;
		c->job->sweep = true;
	}
	job_poke(c->job);
}

static void free_recorded(void *arg, int status)
{
	struct expiry *x = arg;
	struct checkpoint *c = x->checkpoint;

	if (status < 0) {
		c->durable = x->was;
		c->stuck = true;
		err_code(&x->err, status, "append its free record");
		expiry_over(x, status);
		return;
	}
	expire_start(x);
}

/* It was recorded as lost; a sum may have left it out since. Its files go without another record.
 */
static bool log_let_go(const struct checkpoint *c)
{
	struct history_commit *h = history_find(&c->job->history, c->step, &c->attempt);

	return !h || h->freed;
}

int retain_remove(struct checkpoint *c, append_done_fn *done, void *arg, struct err *e)
{
	struct job *j = c->job;
	struct record r = { .type = RECORD_FREE };
	struct expiry *x;
	int err;

	if (!JOB_ASSERT(j, retain_has_files(c)))
		return err_set(e, CKPT_ESTOPPED, "%s", j->defect_text);
	if (j->retaining)
		return err_set(e, -EAGAIN,
			       "another checkpoint of job '%s' is just being taken away",
			       j->history.job.name);
	x = alloc_zero(sizeof(*x));
	if (!x)
		return err_code(e, -ENOMEM, "take step %llu away", (unsigned long long)c->step);
	x->checkpoint = c;
	x->done = done;
	x->arg = arg;
	job_id_of(j, c->step, &c->attempt, &x->id);
	r.mark.step = c->step;
	r.mark.attempt = c->attempt;
	r.mark.value = 1;
	j->retaining = true;
	c->expiring = true;
	x->was = c->durable;
	recheck_let_go(c);
	c->durable = DUR_GONE; /* nobody starts to read its files from here on */
	if (log_let_go(c) || BUG(EXPIRE_BEFORE_RECORD)) {
		free_recorded(x, 0);
		return 0;
	}
	err = job_append_for(c, &r, free_recorded, x);
	if (err < 0) {
		j->retaining = false;
		c->expiring = false;
		c->durable = x->was;
		alloc_free(x);
		return err_code(e, err, "append free record of step %llu",
				(unsigned long long)c->step);
	}
	return 0;
}

/* Marks the checkpoints that only loads keep. Busy ones do not affect the plan for the others. */
static void note_overdue(struct job *j, struct checkpoint *const *order,
			 const struct retention_item *items, size_t n)
{
	CLEANUP_FREE struct retention_item *unread = NULL;
	bool any = false;

	for (size_t i = 0; i < n; i++)
		any = any || order[i]->readers > 0 || order[i]->overdue;
	if (!any)
		return;
	unread = alloc_array(n, sizeof(*unread));
	if (!unread)
		return; /* next step */
	for (size_t i = 0; i < n; i++) {
		unread[i] = items[i];
		unread[i].busy = order[i]->works > 0 || order[i]->stuck;
	}
	ignore_result(retention_apply(&j->node->options.retention, unread, n) /* items say it */);
	for (size_t i = 0; i < n; i++)
		holding_overdue(order[i], order[i]->readers > 0 && unread[i].expire);
}

/* Those that retention looks at, in ret_order and ret_items; 0: there are none, or -ENOMEM. */
static int plan_new(struct job *j, bool room, struct retention_item **ret_items,
		    struct checkpoint ***ret_order, size_t *ret_n)
{
	struct checkpoint *c;
	size_t n = 0;

	list_each(c, &j->checkpoints, link)
		n += retain_has_files(c);
	n = min_u64(n, RETAIN_MAX);
	*ret_n = n;
	if (n == 0)
		return 0;
	*ret_items = alloc_array(n, sizeof(**ret_items));
	*ret_order = alloc_array(n, sizeof(struct checkpoint *));
	if (!*ret_items || !*ret_order)
		return -ENOMEM;
	ignore_result(retain_plan(j, room, *ret_items, *ret_order, n) /* items say it */);
	return 0;
}

int retain_count(struct job *j, struct retain_sum *ret)
{
	CLEANUP_FREE struct retention_item *items = NULL;
	CLEANUP_FREE struct checkpoint **order = NULL;
	uint64_t clean = 0;
	size_t n = 0;
	int r = plan_new(j, false, &items, &order, &n);

	*ret = (struct retain_sum){0};
	while (r == 0 && n-- > 0) {
		const struct retention_item *item = &items[n];

		if (item->expire)
			ret->going += order[n]->disk_bytes;
		/* A pinned one is there beside what retention keeps of itself, and so is a damaged
		 * one. */
		else if (item->clean && !item->pinned &&
			 (clean < j->node->options.retention.keep_last || item->base ||
			  item->held || item->highest))
			ret->kept += order[n]->disk_bytes;
		ret->went_back = ret->went_back || item->highest;
		clean += item->clean;
	}
	return r;
}

bool retain_make_room(struct job *j)
{
	j->tight = true;
	retain_step(j);
	if (j->retaining)
		return true;
	if (!recheck_reads_files_of(j))
		return false;
	recheck_give_way(j->node);
	return true;
}

void retain_step(struct job *j)
{
	CLEANUP_FREE struct retention_item *items = NULL;
	CLEANUP_FREE struct checkpoint **order = NULL;
	size_t n = 0;

	/* The epoch that is being opened may begin with any of them. */
	if (j->retaining || j->log_error || j->node->stopping || j->opening)
		return;
	if (j->sweep)
		expire_again(j);
	if (j->retaining)
		return;
	if (plan_new(j, !j->tight, &items, &order, &n) < 0)
		return;
	note_overdue(j, order, items, n);
	for (size_t i = 0; i < n; i++) {
		if (items[i].expire) {
			ignore_result(retain_remove(order[i], NULL, NULL, NULL) /* next step */);
			return;
		}
	}
}
