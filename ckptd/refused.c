/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refused.c - jobs whose folder could not be read at the start: a bad sector, a lost mount, a log
 * of a newer program. All other jobs start.
 *
 *   REFUSED  its opens are answered with why, and asked to try again; its memory waits in
 *            node->kept_regions; a worker reads it again each RETRY_NS
 *   read     it becomes a job like any other, with its memory
 *
 * A job whose memory another version of ckptd has written (LEDGER_FOREIGN) is refused too: that
 * memory may hold the only copy of a committed checkpoint. It is not tried again; the version that
 * wrote it takes it over.
 *
 * 1. Nothing of it is deleted, here or on disk.
 * 2. No job of its name is made meanwhile: it would start without its history (I11). Where nothing
 *    that can be read says its name, no job at all is made.
 *
 * Loop's thread, but refused_note() and retry_run(), on META workers.
 */
#include <config.h>

#include "ckptd/refused.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "ckptd/events.h"
#include "ckptd/indexing.h"
#include "ckptd/trust.h"
#include "storage/catalog.h"
#include "storage/recover.h"

#define RETRY_NS 5000000000u

struct retry {
	struct work work;
	struct node *node;
	struct refused_job *of;
	struct found found;
	struct err err;
};

/* ---- On a worker ---- */

static int name_from_index(void *arg, const struct catalog_entry *entry)
{
	struct refused_job *r = arg;

	memcpy(r->name, entry->job_name, sizeof(r->name));
	r->uid = entry->uid;
	return 0;
}

static int name_from_commit(void *arg, const struct checkpoint_id *id,
			    const struct commit_file *commit, const struct err *why)
{
	struct refused_job *r = arg;

	(void)id;
	(void)why;
	if (commit) {
		memcpy(r->name, commit->job_name, sizeof(r->name));
		r->uid = commit->uid;
	}
	return 0;
}

int refused_note(struct node *n, struct found *found, struct found_job *f, const struct err *why)
{
	struct refused_job *r = alloc_zero(sizeof(*r));

	if (!r)
		return -ENOMEM;
	r->id = f->id;
	snprintf(r->why, sizeof(r->why), "%s", why->text);
	if (f->history.job.name[0]) {
		memcpy(r->name, f->history.job.name, sizeof(r->name));
		r->uid = f->history.job.uid;
	} else {
		/* What cannot be read says nothing. */
		ignore_result(store_each_checkpoint(&n->store, &f->id, name_from_commit, r, NULL));
		if (!r->name[0] && found->index)
			ignore_result(catalog_each(found->index, &f->id, name_from_index, r, NULL));
	}
	list_add_tail(&found->refused, &r->link);
	return 0;
}

static void retry_run(struct work *w)
{
	struct retry *x = container_of(w, struct retry, work);

	w->status = start_read_job(x->node, &x->of->id, &x->found, &x->err);
}

/* ---- On the loop ---- */

static struct refused_job *first_to_retry(const struct node *n)
{
	struct refused_job *r;

	list_each(r, &n->refused, link)
		if (!r->memory)
			return r;
	return NULL;
}

static void retry_later(struct node *n)
{
	if (first_to_retry(n) && !n->stopping)
		timer_arm(n->env.loop, &n->refused_timer, loop_now(n->env.loop) + RETRY_NS);
}

static void let_go(struct refused_job *r)
{
	if (r->holders-- == 0)
		alloc_free(r);
}

static void forget(struct refused_job *r)
{
	list_del(&r->link);
	let_go(r);
}

/* It is the node's, like those that the start found. */
static int take_back(struct node *n, struct found_job *f)
{
	struct checkpoint *c;
	struct job *j;
	int r = job_new(n, &j);

	if (r < 0)
		return r;
	list_add_tail(&n->jobs, &j->link);
	r = start_take_job(j, f);
	if (r < 0) {
		job_free(j);
		return r;
	}
	adopt_late(j);
	trust_started(j);
	start_tell_files(j);
	list_each(c, &j->checkpoints, link)
		if (c->commit)
			indexing_add(c);
	job_tell(j, 5, "its folder can be read again: the job is taken up");
	tidy_want(n); /* the sweep waits while another job is refused */
	return 0;
}

static void retry_done(struct work *w)
{
	struct retry *x = container_of(w, struct retry, work);
	struct node *n = x->node;
	struct found_job *f, *next;
	int r = w->status;

	n->works--;
	if (r == 0 && adopt_is_foreign(n, &x->of->id, &x->err)) {
		x->of->memory = true;
		r = CKPT_EVERSION;
	}
	if (r == 0 && !list_empty(&x->found.jobs))
		r = take_back(n, list_first(&x->found.jobs, struct found_job, link));
	list_each_safe(f, next, &x->found.jobs, link)
		found_job_free(f);
	if (r == 0) {
		forget(x->of);
	} else if (x->err.code) {
		snprintf(x->of->why, sizeof(x->of->why), "%s", x->err.text);
		/* Others first. */
		list_del(&x->of->link);
		list_add_tail(&n->refused, &x->of->link);
	}
	alloc_free(x);
	retry_later(n);
	node_stop_step(n);
}

static void retry_time(struct timer *t)
{
	struct node *n = container_of(t, struct node, refused_timer);
	struct retry *x;

	if (!first_to_retry(n) || n->stopping)
		return;
	x = alloc_zero(sizeof(*x));
	if (!x) {
		retry_later(n);
		return;
	}
	x->node = n;
	x->of = first_to_retry(n);
	list_init(&x->found.jobs);
	x->found.index = n->index;
	x->work = (struct work){.run = retry_run, .done = retry_done};
	n->works++;
	work_submit(n->env.workers, WORK_META, FAIR_NODE, &x->work);
}

static void describe(const struct refused_job *r, char *buf, size_t size)
{
	char hex[ID_TEXT_MAX];

	hex_format(hex, r->id.b, sizeof(r->id.b));
	if (r->memory)
		snprintf(buf, size,
			 "job '%s' is refused: its memory cannot be read: %.120s; start the ckptd "
			 "that wrote it, or stop this one (systemctl stop) to give its memory up",
			 r->name, r->why);
	else
		snprintf(buf, size,
			 "job '%s' is refused: its folder jobs/%s cannot be read: %.120s; nothing "
			 "of it is deleted, and it is tried again each few seconds",
			 r->name[0] ? r->name : "(its name is not known)", hex, r->why);
}

static void add(struct node *n, struct refused_job *r)
{
	char text[ERR_TEXT_MAX];

	list_add_tail(&n->refused, &r->link);
	describe(r, text, sizeof(text));
	events_post(n->events, EVENT_JOB_REFUSED, 3, r->name[0] ? r->uid : EVENT_FOR_ALL, NULL,
		    json_pack("{s:s}", "job", r->name), "%s", text);
}

void refused_take(struct node *n, struct found *found)
{
	struct refused_job *r, *next;

	list_each_safe(r, next, &found->refused, link) {
		list_del(&r->link);
		add(n, r);
	}
	retry_later(n);
}

int refused_for_memory(struct node *n, const struct record_job *job, const char *why)
{
	struct refused_job *r = alloc_zero(sizeof(*r));

	if (!r)
		return -ENOMEM;
	r->id = job->id;
	r->uid = job->uid;
	r->memory = true;
	snprintf(r->name, sizeof(r->name), "%s", job->name);
	snprintf(r->why, sizeof(r->why), "%s", why);
	add(n, r);
	return 0;
}

bool refused_open(struct node *n, const char *name, uint32_t uid, bool has_token, struct err *e)
{
	char text[ERR_TEXT_MAX];
	struct refused_job *r;

	list_each(r, &n->refused, link) {
		if (r->name[0] && (strcmp(r->name, name) != 0 || (r->uid != uid && !has_token)))
			continue;
		describe(r, text, sizeof(text));
		err_set(e, -EAGAIN, "open: %s", text);
		return true;
	}
	return false;
}

void refused_json(const struct refused_job *r, uint32_t uid, bool all, const char *job,
		  json_t *jobs)
{
	bool named = r->name[0] != '\0';
	char hex[ID_TEXT_MAX], why[ERR_TEXT_MAX];
	json_t *o;

	hex_format(hex, r->id.b, sizeof(r->id.b));
	if ((!all && !(named && r->uid == uid)) ||
	    (job[0] && strcmp(job, named ? r->name : hex) != 0))
		return;
	if (r->memory)
		snprintf(why, sizeof(why), "its memory cannot be read: %.200s", r->why);
	else
		snprintf(why, sizeof(why),
			 "its folder jobs/%s cannot be read, and is tried again each few seconds: "
			 "%.200s",
			 hex, r->why);
	o = json_pack("{s:s, s:s, s:s, s:[], s:[], s:[], s:[]}", "job", named ? r->name : hex, "id",
		      hex, "unread", why, "ranks", "slots", "checkpoints", "aborted");
	json_object_set_new(o, "uid", named ? json_integer(r->uid) : json_null());
	json_array_append_new(jobs, o);
}

int refused_take_all(struct node *n, struct refused_job ***ret, size_t *ret_n)
{
	struct refused_job *r, **all;
	size_t there = 0;

	list_each(r, &n->refused, link)
		there++;
	all = there ? alloc_array(there, sizeof(struct refused_job *)) : NULL;
	if (there && !all)
		return -ENOMEM;
	*ret = all;
	list_each(r, &n->refused, link) {
		r->holders++;
		*all++ = r;
	}
	*ret_n = there;
	return 0;
}

void refused_let_go(struct refused_job **all, size_t n)
{
	for (size_t i = 0; i < n; i++)
		let_go(all[i]);
	alloc_free(all);
}

bool refused_has_region(const struct node *n, const char *region)
{
	struct refused_job *r;
	char hex[ID_TEXT_MAX];

	list_each(r, &n->refused, link) {
		hex_format(hex, r->id.b, sizeof(r->id.b));
		if (strstr(region, hex))
			return true;
	}
	return false;
}

void refused_free(struct found *found)
{
	while (!list_empty(&found->refused))
		forget(list_first(&found->refused, struct refused_job, link));
}

void refused_init(struct node *n)
{
	list_init(&n->refused);
	list_init(&n->kept_regions);
	timer_init(&n->refused_timer, retry_time);
}

void refused_fini(struct node *n)
{
	timer_disarm(n->env.loop, &n->refused_timer);
	while (!list_empty(&n->refused))
		forget(list_first(&n->refused, struct refused_job, link));
}
