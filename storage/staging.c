/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staging.c - incoming/, and the way from there into jobs/.
 *
 *   step of publishing                     a crash after it leaves
 *   1 (the maker) COMMIT, synced           incoming/<id>, whole; nobody sees it
 *   2 rename to jobs/<id>                  either name: nothing, or the whole checkpoint
 *   3 fsync of jobs/, then of incoming/    the checkpoint
 *
 * jobs/ is synced first: in between the name may be in both folders after a crash, never in none.
 * Where a sync fails the folder goes back: whoever asks again renames again, and that is what is
 * then synced. A second sync of the same change would say that it is there, true or not.
 *
 *   step of discarding a job                   a crash after it leaves
 *   1 rename of jobs/<id> to incoming/<id>.gone, synced   either name, and all of its files
 *   2 (staging_remove_gone()) files go         incoming/<id>.gone, which a start removes
 *
 * A .gone folder is never published: a log that has lost records cannot come back.
 *
 * Threads: any, one per job.
 */
#include <config.h>

#include "storage/staging.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/fault.h"

#define INCOMING "incoming"
#define MAKING   ".making"
#define GONE     ".gone"

void path_staged(char *buf, const struct job_id *job)
{
	char hex[ID_TEXT_MAX];

	hex_format(hex, job->b, sizeof(job->b));
	snprintf(buf, DISK_PATH_MAX + 1, INCOMING "/%s", hex);
}

void path_making(char *buf, const struct job_id *job)
{
	char hex[ID_TEXT_MAX];

	hex_format(hex, job->b, sizeof(job->b));
	snprintf(buf, DISK_PATH_MAX + 1, INCOMING "/%s" MAKING, hex);
}

/* ---- The maker's disk ---- */

static struct staging_disk *staging_of(struct disk *d)
{
	return container_of(d, struct staging_disk, base);
}

/* jobs/... becomes incoming/...; buf has room for DISK_PATH_MAX + 1. NULL: too long. */
static const char *inner_path(const char *path, char *buf)
{
	if (strncmp(path, "jobs", 4) != 0 || (path[4] && path[4] != '/'))
		return path;
	return snprintf(buf, DISK_PATH_MAX + 1, INCOMING "%s", path + 4) > DISK_PATH_MAX ? NULL
											 : buf;
}

static int staging_open(struct disk *d, const char *path, unsigned flags, struct disk_file **ret)
{
	struct disk *inner = staging_of(d)->inner;
	char buf[DISK_PATH_MAX + 1];

	path = inner_path(path, buf);
	return path ? inner->ops->open(inner, path, flags, ret) : -ENAMETOOLONG;
}

#define ONE_PATH(name)                                                                             \
	static int staging_##name(struct disk *d, const char *path)                                \
	{                                                                                          \
		struct disk *inner = staging_of(d)->inner;                                         \
		char buf[DISK_PATH_MAX + 1];                                                       \
		path = inner_path(path, buf);                                                      \
		return path ? inner->ops->name(inner, path) : -ENAMETOOLONG;                       \
	}
#define TWO_PATHS(name)                                                                            \
	static int staging_##name(struct disk *d, const char *from, const char *to)                \
	{                                                                                          \
		struct disk *inner = staging_of(d)->inner;                                         \
		char a[DISK_PATH_MAX + 1], b[DISK_PATH_MAX + 1];                                   \
		from = inner_path(from, a);                                                        \
		to = inner_path(to, b);                                                            \
		return from && to ? inner->ops->name(inner, from, to) : -ENAMETOOLONG;             \
	}

ONE_PATH(mkdir)
ONE_PATH(rmdir)
ONE_PATH(unlink)
ONE_PATH(sync_dir)
TWO_PATHS(rename)
TWO_PATHS(link)

/* Spare files are ckptd's. */
static int staging_list(struct disk *d, const char *path, disk_name_fn *fn, void *arg)
{
	struct disk *inner = staging_of(d)->inner;
	char buf[DISK_PATH_MAX + 1];

	if (strcmp(path, "spare") == 0)
		return 0;
	path = inner_path(path, buf);
	return path ? inner->ops->list(inner, path, fn, arg) : -ENAMETOOLONG;
}

static int staging_space(struct disk *d, uint64_t *ret_free, uint64_t *ret_total)
{
	struct disk *inner = staging_of(d)->inner;

	return inner->ops->space(inner, ret_free, ret_total);
}

static int staging_queue_open(struct disk *d, unsigned depth, struct disk_queue **ret)
{
	struct disk *inner = staging_of(d)->inner;

	return inner->ops->queue_open(inner, depth, ret);
}

void staging_disk_init(struct staging_disk *d, struct disk *inner)
{
	*d = (struct staging_disk){.ops = *inner->ops, .inner = inner};
	d->base = (struct disk){.ops = &d->ops, .backend = inner->backend};
	d->ops.open = staging_open;
	d->ops.mkdir = staging_mkdir;
	d->ops.rmdir = staging_rmdir;
	d->ops.rename = staging_rename;
	d->ops.link = staging_link;
	d->ops.unlink = staging_unlink;
	d->ops.sync_dir = staging_sync_dir;
	d->ops.list = staging_list;
	d->ops.space = staging_space;
	d->ops.queue_open = staging_queue_open;
}

int staging_make_folder(struct store *s, struct err *e)
{
	int r = s->disk->ops->mkdir(s->disk, INCOMING);

	if (r == 0)
		r = s->disk->ops->sync_dir(s->disk, "");
	return r < 0 ? err_code(e, r, "cannot make folder '" INCOMING "' in the data folder") : 0;
}

/* ---- What is there ---- */

struct found {
	struct staged *at;
	size_t n, cap;
};

enum staged_name { STAGED_FOLDER, STAGED_GONE, STAGED_MAKING };

static int add_found(struct found *l, const struct job_id *job, enum staged_name what)
{
	size_t i = 0;

	while (i < l->n && !job_id_equal(&l->at[i].job, job))
		i++;
	if (i == l->cap) {
		size_t cap = l->cap ? 2 * l->cap : 16;
		void *p = alloc_resize(l->at, cap * sizeof(*l->at));

		if (!p)
			return -ENOMEM;
		l->at = p;
		l->cap = cap;
	}
	if (i == l->n)
		l->at[l->n++] = (struct staged){.job = *job};
	l->at[i].folder = l->at[i].folder || what == STAGED_FOLDER;
	l->at[i].gone = l->at[i].gone || what == STAGED_GONE;
	l->at[i].making = l->at[i].making || what == STAGED_MAKING;
	return 0;
}

static int parse_name(const char *name, bool is_dir, struct job_id *ret)
{
	const char *suffix = is_dir ? GONE : MAKING, *dot = strchr(name, '.');
	size_t end = dot ? (size_t)(dot - name) : strlen(name);
	char hex[ID_TEXT_MAX];

	if (end >= sizeof(hex) || (dot ? strcmp(dot, suffix) != 0 : !is_dir))
		return -EINVAL;
	memcpy(hex, name, end);
	hex[end] = '\0';
	return hex_parse(ret->b, sizeof(ret->b), hex);
}

bool staging_name_is(const char *name, bool is_dir)
{
	struct job_id job;

	return parse_name(name, is_dir, &job) == 0;
}

static int note_name(void *arg, const char *name, bool is_dir)
{
	struct job_id job;

	if (parse_name(name, is_dir, &job) < 0)
		return 0;
	return add_found(arg, &job,
			 !is_dir             ? STAGED_MAKING
			 : strchr(name, '.') ? STAGED_GONE
					     : STAGED_FOLDER);
}

static bool is_busy(struct store *s, const struct job_id *job)
{
	const struct disk_ops *ops = s->disk->ops;
	char path[DISK_PATH_MAX + 1];
	struct disk_file *f = NULL;
	int r;

	path_making(path, job);
	r = ops->open(s->disk, path, DISK_READ, &f);
	if (r < 0)
		return r != -ENOENT;
	/* A shared lock is enough to find an exclusive one, and can be had for reading. */
	r = ops->lock(f, false);
	ops->close(f);
	return r < 0;
}

int staging_each(struct store *s, staging_fn *fn, void *arg, struct err *e)
{
	struct found l = {0};
	int r = s->disk->ops->list(s->disk, INCOMING, note_name, &l);

	if (r == -ENOENT)
		r = 0;
	if (r < 0)
		err_code(e, r, "cannot list '" INCOMING "' of the data folder");
	for (size_t i = 0; i < l.n && r == 0; i++) {
		l.at[i].busy = l.at[i].making && is_busy(s, &l.at[i].job);
		r = fn(arg, &l.at[i]);
	}
	alloc_free(l.at);
	return r;
}

/* ---- Publishing ---- */

static int nothing(void *arg, const char *name, bool is_dir)
{
	(void)arg;
	(void)name;
	(void)is_dir;
	return 1;
}

static int is_there(struct disk *d, const char *folder)
{
	int r = d->ops->list(d, folder, nothing, NULL);

	return r == -ENOENT ? 0 : r < 0 ? r : 1;
}

static int publish(struct disk *d, const char *from, const char *to)
{
	int there = is_there(d, to), staged = is_there(d, from), r = 0;

	if (there < 0 || staged < 0)
		return there < 0 ? there : staged;
	if (there && staged)
		return -EEXIST;
	if (!there && !staged)
		return CKPT_ENOTFOUND;
	if (staged)
		r = d->ops->rename(d, from, to);
	if (r == 0)
		r = d->ops->sync_dir(d, "jobs");
	if (r == 0)
		r = d->ops->sync_dir(d, INCOMING);
	if (r < 0)
		ignore_result(d->ops->rename(d, to, from)); /* not renamed, not found */
	return r;
}

int staging_publish(struct store *s, const struct job_id *job, struct err *e)
{
	char from[DISK_PATH_MAX + 1], to[DISK_PATH_MAX + 1];
	int r;

	path_staged(from, job);
	path_job(to, job);
	r = publish(s->disk, from, to);
	if (r == CKPT_ENOTFOUND)
		return err_set(e, r, "there is no '%s'", from);
	if (r == -EEXIST)
		return err_set(e, r, "there is a '%s' already", to);
	return r < 0 ? err_code(e, r, "cannot move '%s' to '%s'", from, to) : 0;
}

int staging_withdraw(struct store *s, const struct job_id *job)
{
	char from[DISK_PATH_MAX + 1], to[DISK_PATH_MAX + 1];
	struct disk *d = s->disk;
	int r;

	path_job(from, job);
	path_staged(to, job);
	r = d->ops->rename(d, from, to);
	if (r == 0)
		r = d->ops->sync_dir(d, INCOMING);
	return r == 0 ? d->ops->sync_dir(d, "jobs") : r;
}

/* ---- Removing ---- */

struct names {
	char (*at)[DISK_PATH_MAX + 1];
	bool *is_dir;
	size_t n;
	struct err *err;
};

static int add_name(void *arg, const char *name, bool is_dir)
{
	struct names *l = arg;
	void *p = alloc_resize(l->at, (l->n + 1) * sizeof(*l->at));
	void *q;

	if (!p)
		return -ENOMEM;
	l->at = p;
	q = alloc_resize(l->is_dir, l->n + 1);
	if (!q)
		return -ENOMEM;
	l->is_dir = q;
	snprintf(l->at[l->n], sizeof(l->at[0]), "%s", name);
	l->is_dir[l->n++] = is_dir;
	return 0;
}

/* Two levels: the job's folder, and those of its checkpoints. */
static int remove_folder(struct disk *d, const char *folder, int depth)
{
	char path[DISK_PATH_MAX + 1];
	struct names l = {0};
	int r = d->ops->list(d, folder, add_name, &l);

	for (size_t i = 0; i < l.n && r == 0; i++) {
		if (snprintf(path, sizeof(path), "%s/%s", folder, l.at[i]) >= (int)sizeof(path))
			r = -ENAMETOOLONG;
		else if (!l.is_dir[i])
			r = d->ops->unlink(d, path);
		else
			r = depth > 0 ? remove_folder(d, path, depth - 1) : -ENOTEMPTY;
	}
	alloc_free(l.at);
	alloc_free(l.is_dir);
	if (r == 0)
		r = d->ops->rmdir(d, folder);
	return r == -ENOENT ? 0 : r;
}

/*
 * Under another name, durably, before the first file of it goes: who may be publishing it, or goes
 * on with it after we are killed, finds all of it or nothing.
 */
static int remove_staged(struct disk *d, const char *folder)
{
	char gone[DISK_PATH_MAX + sizeof(GONE)];
	int r;

	snprintf(gone, sizeof(gone), "%s" GONE, folder);
	r = remove_folder(d, gone, 1); /* of a removal that did not end */
	if (r == 0)
		r = d->ops->rename(d, folder, gone);
	if (r == 0)
		r = d->ops->sync_dir(d, INCOMING);
	if (r == 0)
		r = remove_folder(d, gone, 1);
	return r == -ENOENT ? 0 : r;
}

static void path_gone(char *buf, const struct job_id *job)
{
	path_staged(buf, job);
	strncat(buf, GONE, DISK_PATH_MAX - strlen(buf));
}

int staging_discard(struct store *s, const struct job_id *job, struct err *e)
{
	char from[DISK_PATH_MAX + 1], to[DISK_PATH_MAX + 1];
	struct disk *d = s->disk;
	int r = staging_make_folder(s, e);

	if (r < 0)
		return r;
	path_job(from, job);
	path_gone(to, job);
	r = remove_folder(d, to, 1); /* of a removal that did not end */
	if (r == 0)
		r = d->ops->rename(d, from, to);
	if (r < 0)
		return err_code(e, r == -ENOENT ? CKPT_ENOTFOUND : r, "cannot move '%s' to '%s'",
				from, to);
	if (BUG(SKIP_REMOVE_SYNC))
		return 0;
	r = FAULT(REMOVE_RENAMED) ? -EIO : d->ops->sync_dir(d, INCOMING);
	if (r == 0)
		r = d->ops->sync_dir(d, "jobs");
	if (r < 0)
		ignore_result(d->ops->rename(d, to, from)); /* not removed: all of it is there */
	return r < 0 ? err_code(e, r, "cannot sync the move of '%s' to '%s'", from, to) : 0;
}

int staging_remove_gone(struct store *s, const struct job_id *job, struct err *e)
{
	char gone[DISK_PATH_MAX + 1];
	struct disk *d = s->disk;
	int r;

	path_gone(gone, job);
	r = remove_folder(d, gone, 1);
	if (r == 0)
		r = d->ops->sync_dir(d, INCOMING);
	return r < 0 ? err_code(e, r, "cannot remove '%s'", gone) : 0;
}

int staging_remove(struct store *s, const struct job_id *job, struct err *e)
{
	char folder[DISK_PATH_MAX + 1], making[DISK_PATH_MAX + 1];
	struct disk *d = s->disk;
	int r;

	path_staged(folder, job);
	path_making(making, job);
	r = remove_staged(d, folder);
	if (r == 0)
		r = d->ops->unlink(d, making); /* last: with it goes the lock */
	if (r == -ENOENT)
		r = 0;
	if (r == 0)
		r = d->ops->sync_dir(d, INCOMING);
	if (r == -ENOENT)
		r = 0;
	return r < 0 ? err_code(e, r, "cannot remove '%s'", folder) : 0;
}
