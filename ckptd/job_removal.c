/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job_removal.c - see job_removal.h.
 *
 *   KEPT     no rank lives, and nothing of the job is being read or written: else it is refused. A
 *            record that only waits, as the log cannot be written, keeps no job: a full disk would
 *            have this refused for ever. job_free() ends it
 *   LEAVES   a worker renames jobs/<id> to incoming/<id>.gone, durably; then it removes the files.
 *            The job takes no step, no record and no open, so nothing writes to its folder
 *   REMOVED  its regions in the fd store, index rows and verdicts go, then the job itself
 *
 *   a kill of ckptd or a loss of power   leaves
 *   before the rename is durable         the job with all that it has
 *   before the files are gone            no job; the next start removes the .gone folder
 *   before its memory is given back      no job; an adoption destroys regions of no job
 *   before the index is written          rows of no job, which the next start finds and rebuilds
 *
 * Invariants: (1) the rename alone decides, so the log is there whole or not at all (I4); (2) the
 * name is the job's until its folder has left jobs/: no two jobs of a user have one name; (3) files
 * that a process was given are charged to its user until it closes them, as after an expiry.
 *
 * The loop's thread, but removal_run(), on a META worker.
 */
#include <config.h>

#include "ckptd/job_removal.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "ckptd/admin.h"
#include "ckptd/events.h"
#include "ckptd/indexing.h"
#include "ckptd/node_priv.h"
#include "ckptd/trust.h"
#include "ckptd/watching.h"
#include "ckptd/watching_json.h"
#include "detect/verdicts.h"
#include "storage/staging.h"

/* A checkpoint whose files processes may have open. */
struct given {
	struct checkpoint *checkpoint;
	struct checkpoint_id id;
	uint32_t world;
	struct held_files held;
};

struct removal {
	struct work work;
	struct job *job;
	struct session *session; /* a reference */
	uint64_t request;
	struct job_id id;
	struct store *store;
	struct given *given;
	size_t n_given;
	int files; /* 0, or why files of it are left */
	struct err err;
};

/* ---- Whether it may go ---- */

/* No worker has one of its records, and none will before the log can be written. */
static bool records_only_wait(const struct job *j)
{
	return job_log_down(j) && !j->appending;
}

static bool is_being_written(const struct job *j, const struct checkpoint *c)
{
	uint32_t waiting = records_only_wait(j) ? c->recording + epoch_is_opening_from(c) : 0;

	if (c->agreed == CP_COMMITTING && waiting == 0)
		return true;
	return c->works > waiting || c->persist || c->agreed == CP_OPEN;
}

/* label: of admin_label(). */
static int refuse_checkpoint(const struct job *j, const char *label, const struct checkpoint *c,
			     struct err *e)
{
	const char *name = j->history.job.name;
	unsigned long long step = c->step;

	if (c->pinned)
		return err_set(e, -EBUSY,
			       "step %llu of job '%s' is pinned: 'ckptctl unpin %s %llu' first",
			       step, name, label, step);
	if (c->readers)
		return err_set(e, -EBUSY,
			       "step %llu of job '%s' is being loaded: ask again when that has "
			       "ended",
			       step, name);
	if (is_being_written(j, c))
		return err_set(e, -EAGAIN,
			       "step %llu of job '%s' is being written: ask again when that has "
			       "ended",
			       step, name);
	return 0;
}

/* Files that are written, and wait for a commit record which cannot be: the next request finds them
 * given up. */
static void stop_waiting_files(struct job *j)
{
	struct checkpoint *c;

	list_each(c, &j->checkpoints, link) {
		if (!c->persist || c->agreed != CP_COMMITTING || !job_log_down(j))
			continue;
		persist_cancel(c);
		job_poke(j);
	}
}

static int refuse_rank(const struct job *j, struct err *e)
{
	const struct member *m = list_first(&j->members, struct member, link);

	return err_set(e, -EBUSY,
		       "job '%s' has ranks that run, such as rank %" PRIu32
		       ", process %d: end them first",
		       j->history.job.name, m->rank, (int)m->process.pid);
}

/* 0: nothing of it is under way, and no worker has a pointer to it. */
static int may_go(const struct job *j, const char *label, struct err *e)
{
	const char *name = j->history.job.name;
	const struct checkpoint *c;
	int r = 0;

	assert(j->removal == JOB_KEPT);
	if (!list_empty(&j->members))
		return refuse_rank(j, e);
	if (j->creating || (epoch_opens(j) && !(records_only_wait(j) && epoch_opens_for_none(j))))
		return err_set(e, -EBUSY, "a rank is opening job '%s': end it first", name);
	if (!list_empty(&j->leaving))
		return err_set(e, -EAGAIN,
			       "processes of job '%s' are still ending: ask again when they have",
			       name);
	list_each(c, &j->checkpoints, link) {
		r = refuse_checkpoint(j, label, c, e);
		if (r < 0)
			return r;
	}
	/* An expiry that has begun is a work of its checkpoint. */
	if (j->works || j->persist || j->rewrite || j->appending || j->ledger_making ||
	    j->goodput_file.busy || !list_empty(&j->declaring) || !list_empty(&j->loads.items) ||
	    !list_empty(&j->checking))
		return err_set(e, -EAGAIN, "ckptd still writes for job '%s': ask again soon", name);
	return 0;
}

/* ---- On a worker ---- */

static void removal_run(struct work *w)
{
	struct removal *x = container_of(w, struct removal, work);

	for (size_t i = 0; i < x->n_given; i++) {
		struct given *g = &x->given[i];

		/* Out of memory: held files are not charged. */
		ignore_result(held_files_open(x->store, &g->id, g->world, &g->held));
	}
	w->status = staging_discard(x->store, &x->id, &x->err);
	if (w->status == 0)
		x->files = FAULT(REMOVE_DECIDED) ? err_code(&x->err, -EIO, "remove its files")
						 : staging_remove_gone(x->store, &x->id, &x->err);
	for (size_t i = 0; i < x->n_given; i++)
		held_files_sift(&x->given[i].held);
}

/* ---- It is gone, or stays ---- */

static void removal_end(struct removal *x, int code, const char *text)
{
	Ckpt__Reply reply = CKPT__REPLY__INIT;
	struct node *n = session_node(x->session);

	reply.id = x->request;
	if (code == 0 && x->files < 0)
		reply.text = x->err.text;
	if (code < 0)
		session_reply_error(x->session, x->request, code, text);
	else
		session_reply(x->session, &reply, NULL, 0);
	session_unref(x->session);
	alloc_free(x->given);
	alloc_free(x);
	n->works--;
	node_stop_step(n);
}

static void removal_failed(struct removal *x, int code)
{
	struct job *j = x->job;

	for (size_t i = 0; i < x->n_given; i++)
		held_files_close(&x->given[i].held);
	j->removal = JOB_KEPT;
	if (job_has_appends(j)) /* they wait for room on the disk */
		timer_arm(j->node->env.loop, &j->append_retry, loop_now(j->node->env.loop));
	job_tell(j, 3, "it could not be removed: %s", x->err.text);
	job_poke(j);
	removal_end(x, code, x->err.text);
}

static void tell_removed(const struct removal *x)
{
	struct job *j = x->job;
	struct node *n = j->node;
	struct subject s = subject_job(watching_number(j));
	uint32_t uid = session_process(x->session)->uid;

	events_post(n->events, EVENT_JOB_REMOVED, 5, j->history.job.uid,
		    watching_subject_json(n, &s), NULL,
		    "job '%s' was removed with its log and all its checkpoints, by uid %" PRIu32,
		    j->history.job.name, uid);
	if (x->files < 0)
		job_tell(j, 4, "it is removed, and files of it stay until the next start: %s",
			 x->err.text);
}

static void removal_done(struct work *w)
{
	struct removal *x = container_of(w, struct removal, work);
	struct job *j = x->job;
	struct node *n = j->node;
	struct checkpoint_id id;
	struct checkpoint *c;
	char text[ERR_TEXT_MAX];

	assert(j->removal == JOB_LEAVES && list_empty(&j->members));
	if (w->status < 0) {
		removal_failed(x, w->status);
		return;
	}
	ignore_result(FAULT(REMOVE_FILES_GONE) /* a kill: it is removed all the same */);
	tell_removed(x);
	j->removal = JOB_REMOVED;
	for (size_t i = 0; i < x->n_given; i++)
		holding_keep(x->given[i].checkpoint, &x->given[i].held); /* (3) */
	list_each(c, &j->checkpoints, link) {
		assert(c->readers == 0); /* reply_looks() lets none begin */
		job_id_of(j, c->step, &c->attempt, &id);
		indexing_remove(n, &id);
	}
	assert(list_empty(&j->loads.items) && list_empty(&j->checking));
	watching_stopped(j);
	snprintf(text, sizeof(text), "wait: job '%s' was removed with all its checkpoints",
		 j->history.job.name);
	waiters_stop(j, CKPT_ENOTFOUND, text);
	job_free(j);
	persist_room(n);
	tidy_want(n);
	removal_end(x, 0, NULL);
}

/* ---- It begins ---- */

static int note_given(struct removal *x)
{
	struct checkpoint *c;
	size_t n = 0;

	list_each(c, &x->job->checkpoints, link)
		n += holding_may(c);
	x->given = alloc_array(n ? n : 1, sizeof(*x->given));
	if (!x->given)
		return -ENOMEM;
	list_each(c, &x->job->checkpoints, link) {
		struct given *g = &x->given[x->n_given];

		if (!holding_may(c))
			continue;
		g->checkpoint = c;
		g->world = c->world;
		job_id_of(x->job, c->step, &c->attempt, &g->id);
		x->n_given++;
	}
	return 0;
}

static void removal_begin(struct removal *x)
{
	struct job *j = x->job;
	struct node *n = j->node;
	struct checkpoint *c;

	assert(j->removal == JOB_KEPT && !job_stopped(j));
	j->removal = JOB_LEAVES;
	/* One of them may be the next to be read again; may_go(): none is being read. */
	list_each(c, &j->checkpoints, link)
		recheck_forget(c);
	timer_disarm(n->env.loop, &j->append_retry);
	x->work.run = removal_run;
	x->work.done = removal_done;
	n->works++;
	job_submit(j, WORK_META, &x->work);
}

void job_removal_start(struct session *s, uint64_t request, struct job *j)
{
	struct removal *x;
	char label[ADMIN_LABEL_MAX];
	struct err e = {0};

	if (may_go(j, admin_label(s, j, label), &e) < 0) {
		recheck_give_way(j->node); /* it may be what reads one of its checkpoints */
		if (e.code == -EAGAIN)
			stop_waiting_files(j);
		session_reply_error(s, request, e.code, e.text);
		return;
	}
	x = alloc_zero(sizeof(*x));
	if (x) {
		x->job = j;
		x->id = j->history.job.id;
		x->store = &j->node->store;
		x->request = request;
	}
	if (!x || note_given(x) < 0) {
		alloc_free(x);
		session_reply_error(s, request, -ENOMEM, "remove the job: out of memory");
		return;
	}
	x->session = session_ref(s);
	removal_begin(x);
}
