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

#include "base/alloc.h"
#include "base/bytes.h"

struct ids {
	struct checkpoint_id *at;
	size_t n, cap;
	struct checkpoint_id next; /* job of those in its folder */
};

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

	if (!is_dir || hex_parse(l->next.job.b, sizeof(l->next.job.b), name) < 0)
		return 0;
	return add_id(l);
}

static int add_checkpoint(void *arg, const char *name, bool is_dir)
{
	struct ids *l = arg;

	if (!is_dir || checkpoint_name_parse(name, &l->next.step, &l->next.attempt) < 0)
		return 0;
	return add_id(l);
}

int store_each_job(struct store *s, store_job_fn *fn, void *arg, struct err *e)
{
	struct ids l = { 0 };
	int r = s->disk->ops->list(s->disk, "jobs", add_job, &l);

	if (r < 0)
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
	struct ids l = { .next.job = *job };
	char path[DISK_PATH_MAX + 1];
	int r;

	path_job(path, job);
	r = s->disk->ops->list(s->disk, path, add_checkpoint, &l);
	if (r < 0)
		err_code(e, r, "cannot list the checkpoints in '%s'", path);
	for (size_t i = 0; r == 0 && i < l.n; i++)
		r = tell_checkpoint(s, &l.at[i], fn, arg);
	alloc_free(l.at);
	return r;
}
