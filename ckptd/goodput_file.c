/* SPDX-License-Identifier: Apache-2.0 */
/*
 * goodput_file.c - what a job's time went to, over restarts of ckptd (goodput.h).
 *
 * One small JSON file in the job's folder, published when an epoch begins, when its first step is
 * finished, when a rank has died or all have said goodbye, each minute while any lives, and at an
 * orderly stop. So a crash forgets causes of a minute at most, and no time: the time of day of the
 * file says how long ago it was.
 *
 * No decision depends on the file (detect/goodput_json.h): without it the accounting begins again.
 *
 * Thread: the loop, but goodput_file_read() and the write itself, which are on workers.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "ckptd/beats.h"
#include "ckptd/goodput.h"
#include "ckptd/log.h"
#include "ckptd/node_priv.h"
#include "ckptd/start.h"
#include "detect/goodput_json.h"
#include "proto/beat_page.h"
#include "storage/store.h"

#define EVERY_NS (60ull * 1000000000u)

/* ---- Reading ---- */

void goodput_file_read(struct node *n, struct found_job *f)
{
	char dir[DISK_PATH_MAX + 1], path[DISK_PATH_MAX + 16], line[DISK_PATH_MAX + 400];
	CLEANUP_FREE void *bytes = NULL;
	json_t *doc = NULL;
	size_t len = 0;
	int r;

	path_job(dir, &f->id);
	snprintf(path, sizeof(path), "%s/" GOODPUT_FILE, dir);
	r = store_read_file(&n->store, path, GOODPUT_FILE_BYTES, &bytes, &len);
	if (r == -ENOENT)
		return;
	if (r == 0)
		doc = json_loadb(bytes, len, JSON_REJECT_DUPLICATES, NULL);
	if (!doc || !goodput_json_take(doc, &f->goodput, &f->goodput_wall_ns)) {
		f->goodput = (struct goodput){0};
		f->goodput_wall_ns = 0;
		snprintf(line, sizeof(line),
			 "%s: %s: what the time of job '%s' went to is counted anew", path,
			 r < 0 ? err_text(r) : "it is damaged", f->history.job.name);
		n->env.log(n->env.log_arg, 4, &(struct log_about){.job = f->history.job.name},
			   line);
	}
	json_decref(doc);
}

static bool any_alive(const struct job *j)
{
	struct member *m;

	list_each(m, &j->members, link)
		if (m->alive)
			return true;
	return false;
}

/* A rank of its epoch has begun a save in it: it trains, whatever the file says. */
static bool any_trains(const struct job *j)
{
	struct member *m;
	uint64_t step;

	list_each(m, &j->members, link) {
		const struct beat_page *p = beats_page(m);

		if (m->alive && p && m->epoch == j->history.epoch.number &&
		    beat_page_next_save(p, m->epoch, true, &step))
			return true;
	}
	return false;
}

void goodput_adopted(struct node *n)
{
	uint64_t now = loop_now(n->env.loop), wall = loop_wall(n->env.loop);
	struct job *j;

	list_each(j, &n->jobs, link) {
		uint64_t then = j->goodput_file.wall_ns;
		uint64_t gap = wall > then ? wall - then : 0;

		/* A clock that was set says nothing about how long it was. */
		if (then)
			goodput_resume(&j->goodput, now, gap < GOODPUT_NS_MAX ? gap : 0,
				       any_alive(j), any_trains(j));
	}
	timer_arm(n->env.loop, &n->goodput_timer, now + EVERY_NS);
}

/* ---- Writing ---- */

/* On a worker. */
static void write_run(struct work *w)
{
	struct job *j = container_of(w, struct job, goodput_file.work);
	char dir[DISK_PATH_MAX + 1];

	path_job(dir, &j->goodput_file.job);
	w->status = store_publish_file(&j->node->store, dir, GOODPUT_FILE, j->goodput_file.bytes,
				       j->goodput_file.len);
}

static void write_done(struct work *w)
{
	struct job *j = container_of(w, struct job, goodput_file.work);
	struct goodput_file *k = &j->goodput_file;

	k->busy = false;
	j->node->works--;
	alloc_free(k->bytes);
	k->bytes = NULL;
	if (w->status < 0 && !k->told)
		job_tell(j, 4,
			 "what its time went to could not be written (%s): a restart of ckptd "
			 "forgets it",
			 err_text(w->status));
	k->told = w->status < 0;
	if (k->again)
		goodput_keep(j);
	node_stop_step(j->node);
}

static char *dump(const struct job *j, size_t *ret_len)
{
	json_t *doc = goodput_json_kept(&j->goodput, loop_wall(j->node->env.loop));
	char *bytes = NULL;

	*ret_len = doc ? json_dumpb(doc, NULL, 0, JSON_COMPACT) : 0;
	if (*ret_len)
		bytes = alloc_zero(*ret_len);
	if (bytes)
		json_dumpb(doc, bytes, *ret_len, JSON_COMPACT);
	json_decref(doc);
	return bytes;
}

void goodput_keep(struct job *j)
{
	struct goodput_file *k = &j->goodput_file;
	struct node *n = j->node;

	k->again = k->busy;
	if (k->busy || !j->goodput.begun || j->creating || j->failed)
		return;
	goodput_advance(&j->goodput, loop_now(n->env.loop));
	k->bytes = dump(j, &k->len);
	if (!k->bytes)
		return;
	k->busy = true;
	k->job = j->history.job.id; /* the loop folds the log meanwhile */
	n->works++;
	list_init(&k->work.link);
	k->work.run = write_run;
	k->work.done = write_done;
	job_submit(j, WORK_META, &k->work);
}

void goodput_keep_all(struct node *n)
{
	struct job *j;

	list_each(j, &n->jobs, link)
		if (any_alive(j))
			goodput_keep(j);
}

void goodput_time_came(struct timer *t)
{
	struct node *n = container_of(t, struct node, goodput_timer);

	goodput_keep_all(n);
	timer_arm(n->env.loop, t, loop_now(n->env.loop) + EVERY_NS);
}
