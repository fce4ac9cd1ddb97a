/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recover.c - what a data folder holds, from its files alone (I8). Names are collected before
 * anybody is told, so that the caller may remove what it is told of. What is not named as ours is
 * passed over. Threads: any.
 */
#include <config.h>

#include "storage/recover.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/bytes.h"

struct ids {
	struct checkpoint_id *at;
	size_t n, cap;
	struct checkpoint_id next; /* job of those in its folder */
	struct disk *disk;
	const char *dir;                /* being listed */
	char linked[DISK_PATH_MAX + 1]; /* a folder's name that is a link; "": none is */
};

/* A name of ours that is no folder. A link is not passed over, or the job would seem gone. */
static int check_stranger(struct ids *l, const char *name)
{
	char path[DISK_PATH_MAX + 1];
	struct disk_file *f = NULL;
	int r;

	if (snprintf(path, sizeof(path), "%s/%s", l->dir, name) >= (int)sizeof(path))
		return 0;
	r = l->disk->ops->open(l->disk, path, DISK_READ, &f);
	if (f)
		l->disk->ops->close(f);
	if (r != -ELOOP)
		return 0;
	snprintf(l->linked, sizeof(l->linked), "%s", path);
	return -ELOOP;
}

static int add_id(struct ids *l)
{
	if (l->n == l->cap) {
		size_t cap = l->cap ? 2 * l->cap : 16;
		void *p = alloc_resize(l->at, cap * sizeof(*l->at));

		if (!p)
			return -ENOMEM;
		l->at = p;
		l->cap = cap;
	}
	l->at[l->n++] = l->next;
	return 0;
}

static int add_job(void *arg, const char *name, bool is_dir)
{
	struct ids *l = arg;

	if (hex_parse(l->next.job.b, sizeof(l->next.job.b), name) < 0)
		return 0;
	return is_dir ? add_id(l) : check_stranger(l, name);
}

static int add_checkpoint(void *arg, const char *name, bool is_dir)
{
	struct ids *l = arg;

	if (checkpoint_name_parse(name, &l->next.step, &l->next.attempt) < 0)
		return 0;
	return is_dir ? add_id(l) : check_stranger(l, name);
}

static void say_linked(const struct ids *l, struct err *e)
{
	err_set(e, -ELOOP,
		"'%s' of the data folder is a symbolic link, and none is followed there: move the "
		"folder itself back, or remove the link",
		l->linked);
}

int store_each_job(struct store *s, store_job_fn *fn, void *arg, struct err *e)
{
	struct ids l = { .disk = s->disk, .dir = "jobs" };
	int r = s->disk->ops->list(s->disk, "jobs", add_job, &l);

	if (l.linked[0])
		say_linked(&l, e);
	else if (r < 0)
		err_code(e, r, "cannot list the jobs of the data folder");
	for (size_t i = 0; r == 0 && i < l.n; i++)
		r = fn(arg, &l.at[i].job);
	alloc_free(l.at);
	return r;
}

static int tell_checkpoint(struct store *s, const struct checkpoint_id *id,
			   store_checkpoint_fn *fn, void *arg)
{
	struct commit_file c = { 0 };
	struct err why = { 0 };
	int r = commit_read(s, id, &c, &why);

	if (r < 0)
		return fn(arg, id, NULL, &why);
	r = fn(arg, id, &c, NULL);
	commit_file_fini(&c);
	return r;
}

int store_each_checkpoint(struct store *s, const struct job_id *job, store_checkpoint_fn *fn,
			  void *arg, struct err *e)
{
	struct ids l = { .next.job = *job, .disk = s->disk };
	char path[DISK_PATH_MAX + 1];
	int r;

	path_job(path, job);
	l.dir = path;
	r = s->disk->ops->list(s->disk, path, add_checkpoint, &l);
	if (l.linked[0])
		say_linked(&l, e);
	else if (r < 0)
		err_code(e, r, "cannot list the checkpoints in '%s'", path);
	for (size_t i = 0; r == 0 && i < l.n; i++)
		r = tell_checkpoint(s, &l.at[i], fn, arg);
	alloc_free(l.at);
	return r;
}
