/* SPDX-License-Identifier: Apache-2.0 */
/*
 * start.c - reads what the data folder holds (I8): truth is the files and the logs.
 *
 *   folder with COMMIT or without    start_commit.c: kept, made whole, or discarded
 *   COMMIT, freed in the log         an expiry that did not end: ended now
 *   COMMIT, unknown to the log       the log was lost or is damaged: begun anew from the files
 */
#include <config.h>

#include "ckptd/start.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "ckptd/goodput.h"
#include "ckptd/log.h"
#include "ckptd/refused.h"
#include "codec/digest.h"
#include "storage/catalog.h"
#include "storage/folder_id.h"
#include "storage/recover.h"
#include "storage/spare.h"
#include "storage/staging.h"

struct scan {
	struct node *node;
	struct found *found;
	struct found_job *job; /* being read */
	struct err *err;
};

static void found_commit_fini(struct found_commit *c)
{
	commit_file_fini(&c->file);
	alloc_free(c->gone);
}

void found_job_free(struct found_job *f)
{
	list_del(&f->link);
	for (size_t i = 0; i < f->n_commits; i++)
		found_commit_fini(&f->commits[i]);
	alloc_free(f->commits);
	alloc_free(f->unreadable);
	history_fini(&f->history);
	if (f->log)
		f->log->ops->close(f->log);
	alloc_free(f);
}

static void tell(struct node *n, int level, const char *job, const char *text)
{
	n->env.log(n->env.log_arg, level, &(struct log_about){.job = job}, text);
}

static int on_checkpoint(void *arg, const struct checkpoint_id *id,
			 const struct commit_file *commit, const struct err *why)
{
	struct scan *x = arg;
	int r = start_checkpoint(x->node, x->found, x->job, id, commit, why);

	return r < 0 ? err_code(x->err, r, "step %llu on disk", (unsigned long long)id->step) : 0;
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
			ignore_result(checkpoint_expire(&n->store, &c->id, 0, NULL)
				      /* the next start tries again */);
			found_commit_fini(c);
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
			ignore_result(checkpoint_expire(&n->store, &c->id, 0, NULL));
			found_commit_fini(c);
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

static int read_job(struct scan *x, const struct job_id *id)
{
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
	f->log_whole = loaded == 0 && f->history.next_n > 0;
	r = store_each_checkpoint(&n->store, id, on_checkpoint, x, x->err);
	if (r == 0)
		r = start_indexed(n, x->found, f);
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
				tell(n, 3, f->history.job.name, line);
			r = relog(n, f, x->err);
			f->relogged = !made;
		} else {
			found_job_free(f); /* a job that never got its record 0 */
		}
	}
	return r;
}

/* One that cannot be read keeps no other one from starting. */
static int on_job(void *arg, const struct job_id *id)
{
	struct scan *x = arg;
	struct found_job *f;
	int r = read_job(x, id);

	if (r == 0 || err_is_shortage(r) || list_empty(&x->found->jobs))
		return r;
	f = container_of(x->found->jobs.prev, struct found_job, link);
	assert(job_id_equal(&f->id, id));
	r = refused_note(x->node, x->found, f, x->err);
	found_job_free(f);
	if (r == 0)
		err_clear(x->err);
	return r;
}

/* A removal of a job did not end: the job is gone, its files take room. */
static void finish_removal(struct scan *x, const struct job_id *job)
{
	char line[ERR_TEXT_MAX + 64];
	struct err e = {0};

	if (staging_remove_gone(&x->node->store, job, &e) == 0)
		return;
	snprintf(line, sizeof(line), "files of a removed job stay until the next start: %s",
		 e.text);
	tell(x->node, 4, NULL, line);
}

static int on_staged(void *arg, const struct staged *s)
{
	struct scan *x = arg;
	char line[ERR_TEXT_MAX], path[DISK_PATH_MAX + 1];

	if (s->busy)
		return 0;
	if (s->gone)
		finish_removal(x, &s->job);
	if (!s->folder && !s->making)
		return 0;
	path_staged(path, &s->job);
	snprintf(line, sizeof(line),
		 "%s: a checkpoint that a tool began and did not end; the same command may go on "
		 "with it, 'ckptctl gc --incoming' takes it away",
		 path);
	tell(x->node, 4, NULL, line);
	return 0;
}

int start_read_job(struct node *n, const struct job_id *id, struct found *ret, struct err *e)
{
	struct scan x = {.node = n, .found = ret, .err = e};

	list_init(&ret->jobs);
	return read_job(&x, id);
}

/* Under LOCK: without it, it may be another ckptd's. Before the jobs: it knows what was durable. */
static void open_index(struct node *n, struct found *ret)
{
	if (n->env.index_open)
		ret->index = n->env.index_open(n->env.index_arg, &ret->index_fresh);
}

static void check_index(struct node *n, struct found *ret)
{
	/* What a job has that cannot be read, no check can tell; the next start looks. */
	ret->index_good = !list_empty(&ret->refused);
	if (ret->index && !ret->index_fresh && !ret->index_good &&
	    catalog_check(ret->index, &n->store, &ret->index_good, NULL) < 0)
		ret->index_good = false; /* damaged: rebuilt */
}

static bool is_there(struct disk *d, const char *path)
{
	struct disk_file *f;
	int r = d->ops->open(d, path, DISK_READ, &f);

	if (r == 0)
		d->ops->close(f);
	return r != -ENOENT;
}

static int note_name(void *arg, const char *name, bool is_dir)
{
	(void)name;
	(void)is_dir;
	*(bool *)arg = true;
	return 0;
}

static bool has_job(struct disk *d, const struct job_id *job)
{
	char path[DISK_PATH_MAX + 1];
	bool any = false;

	path_job(path, job);
	return d->ops->list(d, path, note_name, &any) == 0 && any;
}

/*
 * Whether the folder has the job of a ledger, by their ids. An older ckptd wrote no id: then a
 * folder with FORMAT, which comes before any job. If only ID was lost or damaged, the folder that
 * has the job is the ledger's: *ret_id, which it gets again.
 */
static bool is_of_folder(struct disk *d, uint64_t of, const struct job_id *job, uint64_t *ret_id)
{
	if (of == FOLDER_ID_NONE)
		return is_there(d, "FORMAT");
	if (*ret_id == FOLDER_ID_NONE && has_job(d, job))
		*ret_id = of;
	return *ret_id == of;
}

/*
 * Memory belongs to the data folder that has its jobs: in any other one, as the empty mount point
 * of a disk that is not mounted, adoption would destroy it as nobody's. Before anything is made in
 * the folder. *ret_id: the folder's, if it has one.
 */
static int check_memory_is_ours(struct node *n, uint64_t *ret_id, struct err *e)
{
	struct disk *d = n->env.disk;
	uint64_t id = FOLDER_ID_NONE, of;
	char here[FOLDER_ID_TEXT], there[FOLDER_ID_TEXT];
	struct job_id job;
	struct region *r;
	int found = folder_id_read(d, &id);

	if (found < 0 && found != -ENOENT && found != CKPT_ECORRUPT)
		return err_code(e, found, "cannot read ID of the data folder");
	list_each(r, &n->kept_regions, link) {
		if (!ledger_folder_id(r, &of, &job) || is_of_folder(d, of, &job, &id))
			continue;
		folder_id_text(here, id);
		folder_id_text(there, of);
		return err_set(
			e, -EXDEV,
			"ckptd keeps memory of jobs of the data folder whose id is %s, and "
			"this folder has %s%s: mount or put back that folder, and ckptd goes "
			"on by itself; to lose what only that memory holds, stop ckptd "
			"(systemctl stop, or end its supervisor), then start it",
			of ? there : "not known", id ? "id " : "no id", id ? here : "");
	}
	*ret_id = id;
	return 0;
}

int start_scan(struct node *n, struct found *ret, struct err *e)
{
	struct store_options o = {
		.geometry = n->options.geometry,
		.transfer = n->options.transfer,
		.compression = n->options.compression,
		.reserve = n->options.disk_reserve,
		.rng = n->env.rng,
	};
	struct scan x = { .node = n, .found = ret, .err = e };
	int r;

	list_init(&ret->jobs);
	r = list_empty(&n->kept_regions) ? 0 : check_memory_is_ours(n, &o.folder_id, e);
	if (r == 0)
		r = store_open(n->env.disk, &o, &n->store, e);
	if (r < 0)
		return r;
	n->store_open = true;
	open_index(n, ret);
	r = spare_clear(&n->store, e);
	if (r == 0)
		r = store_each_job(&n->store, on_job, &x, e);
	if (r == 0)
		r = staging_each(&n->store, on_staged, &x, e);
	if (r == 0)
		check_index(n, ret);
	return r;
}
