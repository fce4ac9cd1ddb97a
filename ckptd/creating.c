/* SPDX-License-Identifier: Apache-2.0 */
/*
 * creating.c - a job that was not there: its folder, its token, and record 0 of its log.
 *
 * Nothing of it counts before record 0 is in the log. What fails before is undone as far as it can
 * be, and at worst leaves an empty folder; every open that waits for the job is told. The folder is
 * made on a worker, the rest is the loop's.
 */
#include <config.h>

#include "ckptd/creating.h"

#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "ckptd/node_priv.h"
#include "ckptd/session.h"
#include "codec/digest.h"
#include "storage/store.h"

struct creation {
	struct work work;
	struct job *job;
	struct joblog *log;
	struct err err;
};

/* The trainer's open fails with this sentence, and only ckptd's log has it where the trainer's is
 * lost. */
static void failed(struct job *j, int code, const struct err *why)
{
	job_tell(j, 3, "the job cannot be made: %s", why->text);
	epoch_creation_failed(j, code, why->text);
}

static void describe(const struct job *j, const char *what, int code, struct err *ret)
{
	char hex[ID_TEXT_MAX];
	bool full = code == -ENOSPC || code == CKPT_ENOSPACE || code == -EDQUOT;

	hex_format(hex, j->history.job.id.b, sizeof(j->history.job.id.b));
	ignore_result(err_set(ret, code, "cannot write '%.140s/jobs/%s/%s' of job '%.80s': %s%s",
			      j->node->options.data, hex, what, j->history.job.name,
			      err_text(code),
			      full ? "; free space there ('ckptctl gc --dry-run' says what can "
				     "go), then open the job again"
				   : ""));
}

static void created(void *arg, int status)
{
	struct job *j = arg;
	struct err e = {0};

	if (status < 0) {
		describe(j, "log", status, &e);
		failed(j, status, &e);
		return;
	}
	epoch_created(j);
}

/* Nothing of it counts, for there is no record 0; and the next open of it draws another id. */
static void creation_undo(struct creation *x)
{
	const struct job_id *id = &x->job->history.job.id;
	struct disk *d = x->job->node->env.disk;
	char path[DISK_PATH_MAX + 1], token[DISK_PATH_MAX + 8];

	if (x->log)
		x->log->ops->close(x->log);
	x->log = NULL;
	path_log(path, id);
	ignore_result(d->ops->rmdir(d, path)); /* an empty folder at worst, here and below */
	path_job(path, id);
	snprintf(token, sizeof(token), "%s/token", path);
	ignore_result(d->ops->unlink(d, token));
	ignore_result(d->ops->rmdir(d, path));
}

static int creation_write(struct creation *x)
{
	struct job *j = x->job;
	struct node *n = j->node;
	char dir[DISK_PATH_MAX + 1];
	int r;

	r = n->env.joblog_open(n->env.joblog_arg, &j->history.job.id, false, &x->log, &x->err);
	if (r < 0) {
		describe(j, "log", r, &x->err);
		return r;
	}
	path_job(dir, &j->history.job.id);
	r = store_publish_file(&n->store, dir, "token", j->token, sizeof(j->token));
	if (r < 0)
		describe(j, "token", r, &x->err);
	return r;
}

static void creation_run(struct work *w)
{
	struct creation *x = container_of(w, struct creation, work);

	w->status = creation_write(x);
	if (w->status < 0)
		creation_undo(x);
}

static void creation_done(struct work *w)
{
	struct creation *x = container_of(w, struct creation, work);
	struct job *j = x->job;
	struct record r = { .type = RECORD_JOB };
	int ret = w->status;

	j->log = x->log;
	if (ret == 0) {
		r.job = j->history.job;
		ret = job_append(j, &r, created, j);
		if (ret < 0)
			describe(j, "log", ret, &x->err);
	}
	if (ret < 0)
		failed(j, ret, &x->err);
	alloc_free(x);
}

struct job *creating_begin(struct node *n, const struct open_request *r)
{
	struct job *j;
	struct creation *x = alloc_zero(sizeof(*x));

	if (!x || job_new(n, &j) < 0) {
		alloc_free(x);
		return NULL;
	}
	n->env.rng->fill(n->env.rng, j->history.job.id.b, 16);
	n->env.rng->fill(n->env.rng, j->token, sizeof(j->token));
	snprintf(j->history.job.name, sizeof(j->history.job.name), "%s", r->job);
	j->history.job.uid = session_process(r->session)->uid;
	job_count(j);
	j->history.job.token = digest_of(j->token, sizeof(j->token));
	j->creating = true;
	list_add_tail(&n->jobs, &j->link);
	x->job = j;
	x->work.run = creation_run;
	x->work.done = creation_done;
	job_submit(j, WORK_META, &x->work);
	return j;
}
