/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expire.c - a checkpoint's files are taken away, after the decision is in the job's log.
 *
 *   step                                    a crash after it leaves
 *   1 unlink COMMIT                         either; the log says expired
 *   2 fsync of the folder                   a folder without COMMIT: discarded at the next start
 *   3 each file: to spare/, or unlink       fewer files, perhaps a spare one with its old header
 *   4 rmdir, fsync of the job's folder      nothing
 *
 * 1. No file changes or goes before (2) has returned 0: a COMMIT that is there after a crash has
 *    all of its files (I8).
 * 2. Every step may be repeated (I10): what is gone already is success.
 * 3. A file that a reader may hold is unlinked, not recycled: the reader keeps its bytes (I9).
 *
 * Threads: any, one per checkpoint.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "storage/paths.h"
#include "storage/recover.h"
#include "storage/spare.h"

struct names {
	char (*at)[DISK_PATH_MAX + 1];
	size_t n, cap;
};

/* Names are collected first: a folder is not changed while it is being walked. */
static int add_name(void *arg, const char *name, bool is_dir)
{
	struct names *l = arg;

	if (is_dir || strlen(name) > DISK_PATH_MAX)
		return -ENOTEMPTY; /* not made by us */
	if (l->n == l->cap) {
		size_t cap = l->cap ? 2 * l->cap : 8;
		void *p = alloc_resize(l->at, cap * sizeof(*l->at));

		if (!p)
			return -ENOMEM;
		l->at = p;
		l->cap = cap;
	}
	strcpy(l->at[l->n++], name);
	return 0;
}

static int remove_file(struct store *s, const struct job_id *job, const char *folder,
		       const char *name, uint64_t keep_spare)
{
	char path[DISK_PATH_MAX + 1];
	int r;

	if (snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path))
		return -ENAMETOOLONG;
	r = shard_name_is(name) ? spare_give(s, job, path, keep_spare) : -EINVAL;
	if (r < 0)
		r = s->disk->ops->unlink(s->disk, path);
	return r == -ENOENT ? 0 : r;
}

static int remove_folder(struct store *s, const struct checkpoint_id *id, const char *folder,
			 uint64_t keep_spare)
{
	struct disk *d = s->disk;
	char job[DISK_PATH_MAX + 1];
	struct names names = { 0 };
	int r = d->ops->list(d, folder, add_name, &names);

	for (size_t i = 0; r == 0 && i < names.n; i++) {
		r = remove_file(s, &id->job, folder, names.at[i], keep_spare);
		if (r == 0 && FAULT(EXPIRE_SHARD))
			r = -EIO;
	}
	alloc_free(names.at);
	if (r == 0)
		r = d->ops->rmdir(d, folder);
	if (r == 0 && FAULT(EXPIRE_FOLDER))
		r = -EIO;
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	path_job(job, &id->job);
	return d->ops->sync_dir(d, job);
}

int checkpoint_expire(struct store *s, const struct checkpoint_id *id, uint64_t keep_spare,
		      struct err *e)
{
	char folder[DISK_PATH_MAX + 1], commit[DISK_PATH_MAX + 1];
	struct disk *d = s->disk;
	int r;

	path_checkpoint(folder, id);
	path_commit(commit, id);
	r = d->ops->unlink(d, commit);
	if (r == -ENOENT)
		r = 0;
	if (r == 0 && FAULT(EXPIRE_COMMIT_GONE))
		r = -EIO;
	if (r == 0 && !BUG(SKIP_EXPIRE_SYNC))
		r = d->ops->sync_dir(d, folder);
	if (r == -ENOENT)
		return 0; /* the folder is gone already */
	if (r == 0 && FAULT(EXPIRE_DECIDED))
		r = -EIO;
	if (r == 0)
		r = remove_folder(s, id, folder, keep_spare);
	return r < 0 ? err_code(e, r, "cannot remove the expired checkpoint '%s'", folder) : 0;
}

int checkpoint_discard(struct store *s, const struct checkpoint_id *id, struct err *e)
{
	char folder[DISK_PATH_MAX + 1], commit[DISK_PATH_MAX + 1];
	struct disk *d = s->disk;
	struct disk_file *f = NULL;
	int r;

	path_checkpoint(folder, id);
	path_commit(commit, id);
	r = d->ops->open(d, commit, DISK_READ, &f);
	if (r == 0) {
		d->ops->close(f);
		return err_set(e, CKPT_ESTATE,
			       "'%s' has a COMMIT: it is expired, not discarded", folder);
	}
	/* What a crash may have left of an expiry is made final before files change. */
	if (r == -ENOENT)
		r = d->ops->sync_dir(d, folder);
	if (r == -ENOENT)
		return 0;
	if (r == 0)
		r = remove_folder(s, id, folder, 0);
	return r < 0 ? err_code(e, r, "cannot remove the leftover '%s'", folder) : 0;
}
