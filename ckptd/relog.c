/* SPDX-License-Identifier: Apache-2.0 */
/*
 * relog.c - a job's log, lost or damaged, begun anew from its COMMIT files with incarnation + 1
 * (design section 10): job, lead, then each epoch that a COMMIT names and its commits, in the
 * order of their old log positions, with what the records before the damage said of each: whether
 * it is pinned, and what its bytes are worth. What is left of the old log is set aside, never
 * deleted; the empty folder of one that never had a record, as that of a job of a tool, goes.
 *
 *   step                                    a crash after it leaves
 *   1 log.new, if it is there, set aside    the old log: begun anew by the next start
 *   2 all records to log.new, each synced   the same, and a log.new that may be whole or not
 *   3 fsync of the job's folder             the same
 *   4 log set aside                         log.new alone, whole: the next start goes on with 5
 *   5 log.new becomes log, fsync            the new log
 *
 * log.new alone is whole: its records and its name are durable before (4). Until (4) the old log is
 * what it was. Blocking, on a META worker at start.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "ckptd/start.h"
#include "codec/digest.h"

static int by_position(const void *a, const void *b)
{
	const struct commit_file *x = &((const struct found_commit *)a)->file;
	const struct commit_file *y = &((const struct found_commit *)b)->file;

	if (x->incarnation != y->incarnation)
		return x->incarnation < y->incarnation ? -1 : 1;
	return x->record_n < y->record_n ? -1 : x->record_n > y->record_n;
}

static int put(struct node *n, struct found_job *f, struct history *h, struct record *r,
	       struct err *e)
{
	void *bytes;
	size_t len;
	int ret;

	r->wall_ns = loop_wall(n->env.loop);
	ret = record_encode(r, &bytes, &len);
	if (ret < 0)
		return err_code(e, ret, "encode record %llu", (unsigned long long)r->n);
	ret = f->log->ops->append(f->log, r->n, bytes, len, e);
	if (ret == 0)
		ret = history_apply(h, r->n, bytes, len, e);
	alloc_free(bytes);
	return ret;
}

static int put_commit(struct node *n, struct found_job *f, struct history *h,
		      struct commit_file *c, struct err *e)
{
	struct record r = { .type = RECORD_EPOCH };
	uint64_t last = 0;
	bool any = false;
	int ret = 0;

	for (size_t i = 0; i < h->n_commits; i++) {
		if (h->commits[i].epoch == h->epoch.number) {
			last = h->commits[i].commit.step;
			any = true;
		}
	}
	if (h->epoch.number == 0 || c->epoch > h->epoch.number || (any && c->id.step <= last)) {
		history_next(h, &r);
		r.opened.number = max_u64(c->epoch, h->epoch.number + 1);
		r.opened.parent = h->epoch.number;
		r.opened.world = c->world;
		snprintf(r.opened.run_id, sizeof(r.opened.run_id), "relog-%llu",
			 (unsigned long long)r.opened.number);
		snprintf(r.opened.reason, sizeof(r.opened.reason), "log begun anew from files");
		ret = put(n, f, h, &r, e);
	}
	if (ret < 0)
		return ret;
	r = (struct record){ .type = RECORD_COMMIT };
	history_next(h, &r);
	r.commit.step = c->id.step;
	r.commit.attempt = c->id.attempt;
	r.commit.root = c->root;
	r.commit.layout = c->layout;
	r.commit.world = c->world;
	r.commit.bytes = c->bytes;
	ret = put(n, f, h, &r, e);
	if (ret == 0) {
		c->incarnation = r.incarnation;
		c->record_n = r.n;
	}
	return ret;
}

/* What the old log's good records say of it: it may be pinned, or said to be bad. */
static int put_marks(struct node *n, struct found_job *f, struct history *h,
		     const struct commit_file *c, struct err *e)
{
	const struct history *was = &f->history;
	struct record r = {.mark = {.step = c->id.step, .attempt = c->id.attempt}};
	int ret = 0;

	for (size_t i = 0; i < was->n_commits; i++) {
		const struct history_commit *old = &was->commits[i];

		if (old->freed || old->commit.step != c->id.step ||
		    !attempt_equal(&old->commit.attempt, &c->id.attempt))
			continue;
		if (old->pinned) {
			r.type = RECORD_PIN;
			r.mark.value = 1;
			history_next(h, &r);
			ret = put(n, f, h, &r, e);
		}
		if (old->trust && ret == 0) {
			r.type = RECORD_TRUST;
			r.mark.value = old->trust;
			history_next(h, &r);
			ret = put(n, f, h, &r, e);
		}
		break;
	}
	return ret;
}

/* Under a name that is free; it may not be there. An empty one is no log: it would be told of as
 * damage for ever. The job's folder is not synced. */
static int set_aside(struct node *n, const struct job_id *id, const char *from)
{
	char to[DISK_PATH_MAX + 32], dir[DISK_PATH_MAX + 1];
	int r;

	r = n->env.disk->ops->rmdir(n->env.disk, from);
	if (r != -ENOTEMPTY && r != -EEXIST)
		return r == -ENOENT ? 0 : r;
	path_job(dir, id);
	snprintf(to, sizeof(to), "%s/log.old-%016llx", dir,
		 (unsigned long long)rng_u64(n->env.rng));
	r = n->env.disk->ops->rename(n->env.disk, from, to);
	return r == -ENOENT ? 0 : r;
}

static int sync_job(struct node *n, const struct job_id *id)
{
	char dir[DISK_PATH_MAX + 1];

	path_job(dir, id);
	return n->env.disk->ops->sync_dir(n->env.disk, dir);
}

/* (1), and from here on appends go to the new log. */
static int begin_new(struct node *n, struct found_job *f, struct err *e)
{
	char path[DISK_PATH_MAX + 1];
	int r;

	f->log->ops->close(f->log);
	f->log = NULL;
	path_log_new(path, &f->id);
	r = set_aside(n, &f->id, path);
	if (r < 0)
		return err_code(e, r, "set an unfinished log of a job aside");
	return n->env.joblog_open(n->env.joblog_arg, &f->id, true, &f->log, e);
}

/* (5) */
static int rename_new(struct node *n, const struct job_id *id)
{
	char from[DISK_PATH_MAX + 1], to[DISK_PATH_MAX + 1];
	int r;

	path_log_new(from, id);
	path_log(to, id);
	r = n->env.disk->ops->rename(n->env.disk, from, to);
	return r < 0 ? r : sync_job(n, id);
}

/* (3) to (5) */
static int take_place(struct node *n, struct found_job *f, struct err *e)
{
	char path[DISK_PATH_MAX + 1];
	int r;

	f->log->ops->close(f->log);
	f->log = NULL;
	path_log(path, &f->id);
	r = sync_job(n, &f->id);
	if (r == 0)
		r = set_aside(n, &f->id, path);
	if (r == 0 && FAULT(RELOG_ASIDE))
		r = -EIO;
	if (r == 0)
		r = rename_new(n, &f->id);
	if (r < 0)
		return err_code(e, r, "put the new log of a job in the place of the old one");
	return n->env.joblog_open(n->env.joblog_arg, &f->id, false, &f->log, e);
}

struct logs {
	bool log, anew;
};

static int note_log(void *arg, const char *name, bool is_dir)
{
	struct logs *l = arg;

	l->log = l->log || (is_dir && strcmp(name, "log") == 0);
	l->anew = l->anew || (is_dir && strcmp(name, "log.new") == 0);
	return 0;
}

int relog_finish(struct node *n, const struct job_id *id, struct err *e)
{
	char dir[DISK_PATH_MAX + 1];
	struct logs l = {0};
	int r;

	path_job(dir, id);
	r = n->env.disk->ops->list(n->env.disk, dir, note_log, &l);
	if (r == 0 && l.anew && !l.log)
		r = rename_new(n, id);
	return r < 0 ? err_code(e, r, "look for the log of a job") : 0;
}

/* A token that nobody knows is better than one that everybody does. */
static int new_token(struct node *n, struct found_job *f)
{
	static const uint8_t none[sizeof(f->token)];
	char dir[DISK_PATH_MAX + 1];

	if (memcmp(f->token, none, sizeof(none)) != 0)
		return 0;
	n->env.rng->fill(n->env.rng, f->token, sizeof(f->token));
	path_job(dir, &f->id);
	return store_publish_file(&n->store, dir, "token", f->token, sizeof(f->token));
}

static void job_of(struct found_job *f, struct record_job *ret)
{
	*ret = f->history.job;
	if (ret->name[0] || f->n_commits == 0)
		return;
	memcpy(ret->name, f->commits[0].file.job_name, sizeof(ret->name));
	ret->uid = f->commits[0].file.uid;
	ret->token = digest_of(f->token, sizeof(f->token));
}

int relog(struct node *n, struct found_job *f, struct err *e)
{
	struct history h;
	struct record r = { .type = RECORD_JOB };
	uint64_t incarnation = f->history.incarnation;
	int ret;

	history_init(&h);
	ret = new_token(n, f);
	if (ret < 0)
		return err_code(e, ret, "write a new token of a job");
	job_of(f, &r.job);
	r.job.id = f->id;
	for (size_t i = 0; i < f->n_commits; i++)
		incarnation = max_u64(incarnation, f->commits[i].file.incarnation);
	qsort(f->commits, f->n_commits, sizeof(*f->commits), by_position);
	ret = begin_new(n, f, e);
	if (ret == 0) {
		r.incarnation = incarnation + 1;
		history_next(&h, &r);
		ret = put(n, f, &h, &r, e);
	}
	if (ret == 0) {
		r = (struct record){ .type = RECORD_LEAD };
		history_next(&h, &r);
		snprintf(r.lead.node, sizeof(r.lead.node), "%s", n->options.name);
		ret = put(n, f, &h, &r, e);
	}
	for (size_t i = 0; i < f->n_commits && ret == 0; i++) {
		ret = put_commit(n, f, &h, &f->commits[i].file, e);
		if (ret == 0)
			ret = put_marks(n, f, &h, &f->commits[i].file, e);
	}
	if (ret == 0)
		ret = take_place(n, f, e);
	if (ret < 0) {
		history_fini(&h);
		return err_wrap(e, ret, "begin the log of job '%s' anew", f->history.job.name);
	}
	history_fini(&f->history);
	f->history = h;
	f->relogged = true;
	return 0;
}
