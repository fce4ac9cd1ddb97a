/* SPDX-License-Identifier: Apache-2.0 */
/*
 * incoming.c - adoption of a job that a tool has made.
 *
 *   LOOKING  a worker reads its COMMIT, which says whose it is and what it is called
 *   MOVING   the name is taken by a job that is being created: opens of it wait; a worker renames
 *            the folder into jobs/ and does what start does for one job, whose log is begun anew
 *            from the COMMIT
 *   done     the job has its log, its checkpoint is offered; the index learns of it
 *
 * Invariants: a name is one job's of a user: it is looked for after LOOKING and held through
 * MOVING, on the loop. What fails leaves all in incoming/, or puts it back there; after a crash
 * behind the rename the next start goes on in jobs/: asking again is always right (I10).
 *
 * Loop's thread, but for the two run functions, on META workers.
 */
#include <config.h>

#include "ckptd/incoming.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "ckptd/indexing.h"
#include "ckptd/node_priv.h"
#include "ckptd/refused.h"
#include "ckptd/start.h"
#include "ckptd/trust.h"
#include "storage/object_uses.h"
#include "storage/recover.h"
#include "storage/staging.h"

struct adoption {
	struct work work;
	struct node *node;
	struct session *session; /* a reference */
	uint64_t request;
	struct job_id id;
	char name[CKPT_JOB_MAX + 1]; /* known after LOOKING */
	uint32_t uid, commits;
	struct job *job; /* while MOVING */
	bool uses;       /* it is a writer in object_uses */
	struct found found;
	struct err err;
};

static void end(struct adoption *x, int code)
{
	Ckpt__Reply reply = CKPT__REPLY__INIT;
	struct node *n = x->node;

	reply.id = x->request;
	if (code < 0)
		session_reply_error(x->session, x->request, code, x->err.text);
	else
		session_reply(x->session, &reply, NULL, 0);
	session_unref(x->session);
	if (x->uses)
		objects_end(n->store.uses);
	alloc_free(x);
	n->works--;
	node_stop_step(n);
}

/* ---- Looking ---- */

static int on_checkpoint(void *arg, const struct checkpoint_id *id,
			 const struct commit_file *commit, const struct err *why)
{
	struct adoption *x = arg;

	if (!commit)
		return err_set(&x->err, why->code, "step %llu of it: %s",
			       (unsigned long long)id->step, why->text);
	memcpy(x->name, commit->job_name, sizeof(x->name));
	x->uid = commit->uid;
	x->commits++;
	return 0;
}

/* In incoming/, or where an adoption that did not end has put it. */
static int look(struct adoption *x)
{
	struct staging_disk d;
	struct store s = {.geometry = x->node->store.geometry};
	struct err why = {0};
	int r;

	staging_disk_init(&d, x->node->env.disk);
	s.disk = &d.base;
	r = store_each_checkpoint(&s, &x->id, on_checkpoint, x, &why);
	if (r == -ENOENT)
		r = store_each_checkpoint(&x->node->store, &x->id, on_checkpoint, x, &why);
	if (r == -ENOENT)
		return err_set(&x->err, CKPT_ENOTFOUND, "there is no such job in incoming/");
	if (r == 0 && (x->commits == 0 || !name_is_safe(x->name)))
		return err_set(&x->err, CKPT_ENOTFOUND, "it has no checkpoint that was finished");
	if (r < 0 && x->err.code == 0)
		x->err = why;
	return r;
}

static void look_run(struct work *w)
{
	struct adoption *x = container_of(w, struct adoption, work);

	w->status = look(x);
}

/* ---- Moving ---- */

static void move_run(struct work *w)
{
	struct adoption *x = container_of(w, struct adoption, work);

	w->status = staging_publish(&x->node->store, &x->id, &x->err);
	if (w->status < 0)
		return;
	w->status = start_read_job(x->node, &x->id, &x->found, &x->err);
	/* Where it cannot be begun it must not be found by a start either: its name is free again,
	 * and may be another job's by then. */
	if (w->status < 0)
		ignore_result(staging_withdraw(&x->node->store, &x->id));
}

static int take(struct adoption *x)
{
	struct found_job *f = list_empty(&x->found.jobs)
				      ? NULL
				      : list_first(&x->found.jobs, struct found_job, link);
	int r;

	if (!f || f->n_commits == 0)
		return err_set(&x->err, CKPT_ENOTFOUND, "nothing of it is left");
	r = start_take_job(x->job, f);
	trust_started(x->job);
	return r < 0 ? err_code(&x->err, r, "take job '%s' over", x->name) : 0;
}

static void move_done(struct work *w)
{
	struct adoption *x = container_of(w, struct adoption, work);
	struct found_job *f, *next;
	struct checkpoint *c;
	struct job *j = x->job;
	int r = w->status;

	if (r == 0)
		r = take(x);
	list_each_safe(f, next, &x->found.jobs, link)
		found_job_free(f);
	if (r < 0) {
		epoch_creation_failed(j, r, x->err.text);
		end(x, r);
		return;
	}
	list_each(c, &j->checkpoints, link)
		indexing_add(c);
	start_tell_files(j);
	job_tell(j, 5, "adopted, made by a tool");
	epoch_created(j);
	end(x, 0);
}

static void move(struct adoption *x)
{
	struct job *j = NULL;
	int r = job_new(x->node, &j);

	if (r < 0) {
		end(x, err_code(&x->err, r, "adopt job '%s'", x->name));
		return;
	}
	j->history.job.id = x->id;
	j->history.job.uid = x->uid;
	memcpy(j->history.job.name, x->name, sizeof(x->name));
	j->creating = true;
	list_add_tail(&x->node->jobs, &j->link);
	x->job = j;
	/* Not before it is known that there is something to move: anybody may ask. */
	x->uses = true;
	objects_begin(x->node->store.uses);
	objects_disturb(x->node->store.uses);
	x->work = (struct work){.run = move_run, .done = move_done};
	job_submit(j, WORK_META, &x->work);
}

static int may_adopt(struct adoption *x)
{
	uint32_t uid = session_process(x->session)->uid;

	if (uid != 0 && uid != x->uid && uid != (uint32_t)geteuid())
		return err_set(&x->err, CKPT_EDENIED,
			       "adopt: job '%s' is another user's: only they, root and ckptd's own "
			       "user may",
			       x->name);
	if (job_find(x->node, x->name, x->uid))
		return err_set(&x->err, -EEXIST, "user %u has a job '%s' already", x->uid, x->name);
	if (refused_open(x->node, x->name, x->uid, false, &x->err))
		return x->err.code;
	return x->node->stopping ? err_set(&x->err, -EAGAIN, "ckptd is stopping") : 0;
}

static void look_done(struct work *w)
{
	struct adoption *x = container_of(w, struct adoption, work);
	struct job *j = job_find_id(x->node, &x->id);
	int r = w->status;

	/* Another one of it may have ended meanwhile, whose answer was lost; or is still at it, and
	 * may yet fail (I7). */
	if (j && j->creating && !BUG(ADOPT_TOLD_EARLY)) {
		end(x, err_set(&x->err, -EAGAIN, "job '%s' is being adopted already: ask again",
			       j->history.job.name));
		return;
	}
	if (j) {
		end(x, 0);
		return;
	}
	if (r == 0)
		r = may_adopt(x);
	if (r < 0)
		end(x, r);
	else
		move(x);
}

void incoming_adopt(struct session *s, uint64_t request, const char *hex)
{
	struct node *n = session_node(s);
	struct adoption *x;
	struct job_id id;

	if (hex_parse(id.b, sizeof(id.b), hex) < 0) {
		session_reply_error(s, request, -EINVAL, "adopt: it takes the id of a job");
		return;
	}
	if (!n->ready || n->stopping) {
		session_reply_error(s, request, -EAGAIN, "adopt: ckptd is starting or stopping");
		return;
	}
	x = alloc_zero(sizeof(*x));
	if (!x) {
		session_reply_error(s, request, -ENOMEM, "adopt: out of memory");
		return;
	}
	x->node = n;
	x->session = session_ref(s);
	x->request = request;
	x->id = id;
	list_init(&x->found.jobs);
	x->work = (struct work){.run = look_run, .done = look_done};
	n->works++;
	work_submit(n->env.workers, WORK_META, session_process(s)->uid, &x->work);
}
