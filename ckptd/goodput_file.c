/* SPDX-License-Identifier: Apache-2.0 */
/*
 * goodput_file.c - what a job's time went to, over restarts of ckptd (goodput.h).
 *
 * One small JSON file in the job's folder, published when an epoch begins, when a rank has died or
 * all have said goodbye, each minute while any lives, and at an orderly stop. So a crash forgets
 * causes of a minute at most, and no time: the time of day of the file says how long ago it was.
 *
 * The file may be anybody's by now: numbers are taken only where sums cannot overflow and marks
 * rise. It is nobody's truth: without it the accounting begins anew.
 *
 * Thread: the loop, but goodput_file_read() and the write itself, which are on workers.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "ckptd/goodput.h"
#include "ckptd/log.h"
#include "ckptd/node_priv.h"
#include "ckptd/start.h"
#include "storage/store.h"

#define EVERY_NS  (60ull * 1000000000u)
#define BYTES_MAX (64u << 10)
#define NS_MAX    (1ull << 59) /* 18 years, so that sums of all causes fit */

/* ---- Bytes ---- */

static json_t *number(uint64_t v)
{
	return json_integer((json_int_t)(v < INT64_MAX ? v : INT64_MAX));
}

static json_t *mean_json(const struct goodput_mean *m)
{
	return json_pack("[o, o]", number(m->n), number(m->ns));
}

static json_t *kept_json(const struct goodput *g, uint64_t wall_ns)
{
	json_t *spent = json_object(), *marks = json_array();

	for (int i = 0; i < GOODPUT_COUNT; i++)
		json_object_set_new(spent, goodput_word((enum goodput_cause)i), number(g->ns[i]));
	for (uint32_t i = 0; i < g->n_marks; i++)
		json_array_append_new(marks, json_pack("[o, o]", number(g->marks[i].step),
						       number(g->marks[i].trained_ns)));
	return json_pack("{s:o, s:s, s:b, s:b, s:o, s:o, s:o, s:o, s:[o, o], s:o, s:[o, o]}",
			 "time_ns", number(wall_ns), "state", goodput_word(g->state), "down",
			 (int)g->down, "zeroth", (int)g->zeroth, "ns", spent, "steps",
			 number(g->steps), "newest_step", number(g->newest_step), "marks", marks,
			 "failures", number(g->failures[0]), number(g->failures[1]), "stall",
			 mean_json(&g->stall), "latency", mean_json(&g->latency[0]),
			 mean_json(&g->latency[1]));
}

static bool take(const json_t *o, uint64_t max, uint64_t *ret)
{
	json_int_t v = json_integer_value(o);

	*ret = (uint64_t)v;
	return json_is_integer(o) && v >= 0 && (uint64_t)v <= max;
}

static bool take_mean(const json_t *o, struct goodput_mean *m)
{
	return take(json_array_get(o, 0), NS_MAX, &m->n) &&
	       take(json_array_get(o, 1), NS_MAX, &m->ns);
}

static bool take_marks(const json_t *list, struct goodput *g)
{
	if (!json_is_array(list) || json_array_size(list) > GOODPUT_MARKS)
		return false;
	for (size_t i = 0; i < json_array_size(list); i++) {
		struct goodput_mark *m = &g->marks[i];
		const json_t *o = json_array_get(list, i);

		if (!take(json_array_get(o, 0), INT64_MAX, &m->step) ||
		    !take(json_array_get(o, 1), NS_MAX, &m->trained_ns) ||
		    (i && m->step < m[-1].step))
			return false;
	}
	g->n_marks = (uint32_t)json_array_size(list);
	return true;
}

static bool take_state(const json_t *doc, struct goodput *g)
{
	const char *word = json_string_value(json_object_get(doc, "state"));

	g->down = json_is_true(json_object_get(doc, "down"));
	g->zeroth = json_is_true(json_object_get(doc, "zeroth"));
	for (int i = 0; word && i < GOODPUT_COUNT; i++) {
		if (strcmp(word, goodput_word((enum goodput_cause)i)) != 0)
			continue;
		g->state = (enum goodput_cause)i;
		return i == GOODPUT_TRAINING || i == GOODPUT_RESTART || i == GOODPUT_AWAY;
	}
	return false;
}

static bool take_kept(const json_t *doc, struct goodput *g, uint64_t *ret_wall_ns)
{
	const json_t *spent = json_object_get(doc, "ns"), *o;

	*g = (struct goodput){.begun = true};
	for (int i = 0; i < GOODPUT_COUNT; i++)
		if (!take(json_object_get(spent, goodput_word((enum goodput_cause)i)), NS_MAX,
			  &g->ns[i]))
			return false;
	for (int i = 0; i < 2; i++) {
		o = json_object_get(doc, "failures");
		if (!take(json_array_get(o, (size_t)i), NS_MAX, &g->failures[i]))
			return false;
		o = json_object_get(doc, "latency");
		if (!take_mean(json_array_get(o, (size_t)i), &g->latency[i]))
			return false;
	}
	return take_state(doc, g) && take_marks(json_object_get(doc, "marks"), g) &&
	       take_mean(json_object_get(doc, "stall"), &g->stall) &&
	       take(json_object_get(doc, "steps"), INT64_MAX, &g->steps) &&
	       take(json_object_get(doc, "newest_step"), INT64_MAX, &g->newest_step) &&
	       take(json_object_get(doc, "time_ns"), INT64_MAX, ret_wall_ns) && *ret_wall_ns > 0;
}

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
	r = store_read_file(&n->store, path, BYTES_MAX, &bytes, &len);
	if (r == -ENOENT)
		return;
	if (r == 0)
		doc = json_loadb(bytes, len, JSON_REJECT_DUPLICATES, NULL);
	if (!doc || !take_kept(doc, &f->goodput, &f->goodput_wall_ns)) {
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

void goodput_adopted(struct node *n)
{
	uint64_t now = loop_now(n->env.loop), wall = loop_wall(n->env.loop);
	struct job *j;

	list_each(j, &n->jobs, link) {
		uint64_t then = j->goodput_file.wall_ns;
		uint64_t gap = wall > then ? wall - then : 0;

		/* A clock that was set says nothing about how long it was. */
		if (then)
			goodput_resume(&j->goodput, now, gap < NS_MAX ? gap : 0, any_alive(j));
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
	json_t *doc = kept_json(&j->goodput, loop_wall(j->node->env.loop));
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
