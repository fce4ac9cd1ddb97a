/* SPDX-License-Identifier: Apache-2.0 */
/*
 * start.c - reads what the data folder holds (I8): truth is the files and the logs.
 *
 *   folder without COMMIT            a persist that did not end: discarded
 *   COMMIT, freed in the log         an expiry that did not end: ended now
 *   COMMIT, known to the log         durable
 *   COMMIT, unknown to the log       the log was lost or is damaged: begun anew from the files
 *   COMMIT that cannot be read       kept and reported; never offered
 *
 * A COMMIT that is seen may be one whose name an earlier life never made durable: it counts once
 * its folder and the folder above it are synced here (I7).
 */
#include <config.h>

#include "ckptd/start.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "ckptd/goodput.h"
#include "codec/digest.h"
#include "storage/catalog.h"
#include "storage/recover.h"
#include "storage/staging.h"

struct scan {
	struct node *node;
	struct found *found;
	struct found_job *job; /* being read */
	struct err *err;
};

void found_job_free(struct found_job *f)
{
	list_del(&f->link);
	for (size_t i = 0; i < f->n_commits; i++)
		commit_file_fini(&f->commits[i].file);
	alloc_free(f->commits);
	alloc_free(f->unreadable);
	history_fini(&f->history);
	if (f->log)
		f->log->ops->close(f->log);
	alloc_free(f);
}

static void tell(struct node *n, int level, const char *text)
{
	n->env.log(n->env.log_arg, level, text);
}

static int keep_commit(struct found_job *f, const struct checkpoint_id *id, struct store *s,
		       struct err *e)
{
	struct found_commit *c;
	int r;

	if (f->n_commits == f->cap_commits) {
		size_t cap = f->cap_commits ? 2 * f->cap_commits : 16;

		c = alloc_resize(f->commits, cap * sizeof(*c));
		if (!c)
			return -ENOMEM;
		f->commits = c;
		f->cap_commits = cap;
	}
	c = &f->commits[f->n_commits];
	memset(c, 0, sizeof(*c));
	c->id = *id;
	r = commit_read(s, id, &c->file, e);
	if (r == 0)
		f->n_commits++;
	return r;
}

static int keep_unreadable(struct found_job *f, const struct checkpoint_id *id,
			   const struct err *why)
{
	struct found_unreadable *more;

	more = alloc_resize(f->unreadable, (f->n_unreadable + 1) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	f->unreadable = more;
	more = &f->unreadable[f->n_unreadable++];
	more->id = *id;
	snprintf(more->why, sizeof(more->why), "%.*s", REASON_MAX, why->text);
	return 0;
}

static int sync_checkpoint(struct store *s, const struct checkpoint_id *id)
{
	char path[DISK_PATH_MAX + 1];

	path_checkpoint(path, id);
	return s->disk->ops->sync_dir(s->disk, path);
}

/* Its id where the log does not say. */
static const char *name_of(const struct found_job *f, char hex[ID_TEXT_MAX])
{
	hex_format(hex, f->id.b, sizeof(f->id.b));
	return f->history.job.name[0] ? f->history.job.name : hex;
}

static int on_checkpoint(void *arg, const struct checkpoint_id *id,
			 const struct commit_file *commit, const struct err *why)
{
	struct scan *x = arg;
	struct node *n = x->node;
	char line[ERR_TEXT_MAX + CKPT_JOB_MAX + 64];
	char hex[ID_TEXT_MAX];
	struct err unsynced = { 0 };
	int r = commit ? sync_checkpoint(&n->store, id) : 0;

	if (commit && r == 0)
		return keep_commit(x->job, id, &n->store, x->err);
	if (commit) {
		err_code(&unsynced, r, "sync its folder");
		why = &unsynced;
	}
	if (why && why->code != CKPT_ENOTFOUND) {
		x->found->damaged++;
		snprintf(line, sizeof(line), "job '%s': step %llu on disk cannot be used: %s",
			 name_of(x->job, hex), (unsigned long long)id->step, why->text);
		tell(n, 3, line);
		return keep_unreadable(x->job, id, why);
	}
	x->found->discarded++;
	/* If it cannot go now it goes at the next start; it is never taken for a checkpoint. */
	ignore_result(checkpoint_discard(&n->store, id, n->options.spare_bytes, NULL));
	return 0;
}

static int sync_job(struct node *n, const struct job_id *id, struct err *e)
{
	char path[DISK_PATH_MAX + 1];
	int r;

	path_job(path, id);
	r = n->env.disk->ops->sync_dir(n->env.disk, path);
	return r < 0 ? err_code(e, r, "sync '%s'", path) : 0;
}

static void read_token(struct node *n, struct found_job *f)
{
	char dir[DISK_PATH_MAX + 1], path[DISK_PATH_MAX + 8];
	void *bytes;
	size_t len;

	path_job(dir, &f->id);
	snprintf(path, sizeof(path), "%s/token", dir);
	if (store_read_file(&n->store, path, 64, &bytes, &len) < 0)
		return; /* only another uid needs it; then it says that it is not allowed */
	if (len == sizeof(f->token))
		memcpy(f->token, bytes, len);
	alloc_free(bytes);
}

/* Ends expiries, and says whether the log knows every COMMIT that is there. */
static bool settle_files(struct node *n, struct found *found, struct found_job *f)
{
	size_t kept = 0;
	bool known = true;

	for (size_t i = 0; i < f->n_commits; i++) {
		struct found_commit *c = &f->commits[i];
		struct history_commit *h = history_find(&f->history, c->id.step, &c->id.attempt);

		if (h && h->freed) {
			found->expired++;
			ignore_result(checkpoint_expire(&n->store, &c->id, n->options.spare_bytes,
							NULL) /* the next start tries again */);
			commit_file_fini(&c->file);
			continue;
		}
		/*
		 * Only this incarnation's own records say that it was freed and they trimmed since.
		 * A COMMIT of an older one that the log does not name is one that beginning the log
		 * anew had not come to: never taken away, at worst an expired one comes back.
		 */
		if (!h && (c->file.incarnation != f->history.incarnation ||
			   c->file.record_n >= f->history.first_n)) {
			known = false;
		} else if (!h) {
			found->expired++;
			ignore_result(checkpoint_expire(&n->store, &c->id, n->options.spare_bytes,
							NULL));
			commit_file_fini(&c->file);
			continue;
		}
		f->commits[kept++] = *c;
	}
	f->n_commits = kept;
	return known;
}

/* By a tool (storage/staging.h): it never had a log, nor a token. */
static bool was_made(const struct found_job *f)
{
	static const struct digest none;
	const struct commit_file *c = f->n_commits == 1 ? &f->commits[0].file : NULL;
	struct record r;

	return c && f->history.next_n == 0 &&
	       record_decode(c->job_record, c->job_record_len, &r, NULL, NULL) == 0 &&
	       r.type == RECORD_JOB && digest_equal(&r.job.token, &none);
}

static int on_job(void *arg, const struct job_id *id)
{
	struct scan *x = arg;
	struct node *n = x->node;
	struct found_job *f = alloc_zero(sizeof(*f));
	struct err damage = { 0 };
	char line[ERR_TEXT_MAX + 160];
	int r, loaded;
	bool made;

	if (!f)
		return -ENOMEM;
	list_init(&f->link);
	f->id = *id;
	history_init(&f->history);
	list_add_tail(&x->found->jobs, &f->link);
	r = relog_finish(n, id, x->err);
	if (r < 0)
		return r;
	r = n->env.joblog_open(n->env.joblog_arg, id, false, &f->log, x->err);
	if (r < 0)
		return r;
	loaded = history_load(&f->history, f->log, &damage);
	/* Only damage begins a log anew. What cannot be read now, or was written by a newer
	 * program, is nobody's to set aside. */
	if (loaded < 0 && loaded != CKPT_ECORRUPT && loaded != CKPT_ESTALE)
		return err_set(x->err, loaded, "log of a job: %s", damage.text);
	x->job = f;
	r = store_each_checkpoint(&n->store, id, on_checkpoint, x, x->err);
	if (r == 0 && f->n_commits)
		r = sync_job(n, id, x->err);
	if (r < 0)
		return r;
	read_token(n, f);
	goodput_file_read(n, f);
	if (loaded < 0 || f->history.next_n == 0 || !settle_files(n, x->found, f)) {
		snprintf(line, sizeof(line),
			 "log of job '%s': %s; beginning it anew from %zu COMMIT "
			 "files",
			 f->history.job.name, loaded < 0 ? damage.text : "records are missing",
			 f->n_commits);
		if (f->n_commits || f->history.next_n) {
			made = was_made(f);
			if (!made)
				tell(n, 3, line);
			r = relog(n, f, x->err);
			f->relogged = !made;
		} else {
			found_job_free(f); /* a job that never got its record 0 */
		}
	}
	return r;
}

static int on_staged(void *arg, const struct staged *s)
{
	struct scan *x = arg;
	char line[ERR_TEXT_MAX], path[DISK_PATH_MAX + 1];

	if (s->busy)
		return 0;
	path_staged(path, &s->job);
	snprintf(line, sizeof(line),
		 "%s: a checkpoint that a tool began and did not end; the same command may go on "
		 "with it, 'ckptctl gc --incoming' takes it away",
		 path);
	tell(x->node, 4, line);
	return 0;
}

int start_read_job(struct node *n, const struct job_id *id, struct found *ret, struct err *e)
{
	struct scan x = {.node = n, .found = ret, .err = e};

	list_init(&ret->jobs);
	return on_job(&x, id);
}

/* Only now: without LOCK it may be another ckptd's. */
static void open_index(struct node *n, struct found *ret)
{
	bool fresh = false;

	if (n->env.index_open)
		ret->index = n->env.index_open(n->env.index_arg, &fresh);
	if (ret->index && !fresh &&
	    catalog_check(ret->index, &n->store, &ret->index_good, NULL) < 0)
		ret->index_good = false; /* damaged: rebuilt */
}

int start_scan(struct node *n, struct found *ret, struct err *e)
{
	struct store_options o = {
		.geometry = n->options.geometry,
		.transfer = n->options.transfer,
		.compression = n->options.compression,
		.reserve = n->options.disk_reserve,
	};
	struct scan x = { .node = n, .found = ret, .err = e };
	int r;

	list_init(&ret->jobs);
	r = store_open(n->env.disk, &o, &n->store, e);
	if (r < 0)
		return r;
	n->store_open = true;
	r = spare_sweep(&n->store, n->options.spare_bytes, e);
	if (r == 0)
		r = store_each_job(&n->store, on_job, &x, e);
	if (r == 0)
		r = staging_each(&n->store, on_staged, &x, e);
	if (r == 0)
		open_index(n, ret);
	return r;
}
