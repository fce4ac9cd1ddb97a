/* SPDX-License-Identifier: Apache-2.0 */
/*
 * indexing.c - what the index is to learn, handed to the one WORK_INDEX worker: it writes in the
 * order in which things became true, so that nothing that was removed comes back. A write that
 * fails is counted and said; the check at the next start finds what is missing. A stop that lasts
 * cancels what is long: layouts, and a rebuild. A checkpoint without its layout is not put either:
 * so this check finds it.
 */
#include <config.h>

#include "ckptd/indexing.h"

#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "ckptd/node_priv.h"
#include "storage/catalog.h"

enum indexing_what { INDEX_PUT, INDEX_ADD, INDEX_REMOVE, INDEX_REBUILD };

struct indexing {
	struct work work;
	struct list link; /* in node->indexing */
	struct node *node;
	enum indexing_what what;
	struct catalog_entry entry;
	struct declared **declared; /* references, for a layout that is new */
	struct declaration *views;
	uint32_t world;
	struct job *job;
	append_done_fn *done;
	void *arg;
	struct err err;
};

static void indexing_run(struct work *w)
{
	struct indexing *x = container_of(w, struct indexing, work);
	struct index *ix = x->node->index;

	switch (x->what) {
	case INDEX_PUT:
		w->status = 0;
		if (x->views)
			w->status = catalog_put_layout(ix, &x->entry.layout, x->views, x->world,
						       &w->cancel, &x->err);
		if (w->status == 0)
			w->status = catalog_put(ix, &x->entry, &x->err);
		break;
	case INDEX_ADD:
		w->status = catalog_add(ix, &x->node->store, &x->entry.id, &w->cancel, &x->err);
		break;
	case INDEX_REMOVE:
		w->status = catalog_remove(ix, &x->entry.id, &x->err);
		break;
	case INDEX_REBUILD:
		w->status = catalog_rebuild(ix, &x->node->store, &w->cancel, &x->err);
		break;
	}
}

/* What no file says: pins are in the log, suspicions were found by reading, and what was durable
 * and has no COMMIT any more is known here alone. */
static void put_marks(struct node *n)
{
	struct checkpoint *c;
	struct job *j;

	list_each(j, &n->jobs, link)
		list_each(c, &j->checkpoints, link)
			if (c->durable == DUR_DONE && c->record_n &&
			    ((c->commit && c->pinned) || c->disk_suspect))
				indexing_put(c);
}

static void indexing_done(struct work *w)
{
	struct indexing *x = container_of(w, struct indexing, work);
	struct node *n = x->node;
	char line[ERR_TEXT_MAX + 32];

	n->index_works--;
	list_del(&x->link);
	if (w->status < 0 && w->status != -ECANCELED) {
		n->index_errors++;
		snprintf(line, sizeof(line), "index: %s", x->err.text);
		n->env.log(n->env.log_arg, 4, NULL, line);
	}
	if (x->what == INDEX_REBUILD && w->status >= 0 && !n->stopping)
		put_marks(n);
	for (uint32_t i = 0; x->declared && i < x->world; i++)
		declared_unref(x->job, x->declared[i]);
	if (x->job)
		x->job->works--;
	if (x->done)
		x->done(x->arg, w->status);
	alloc_free(x->declared);
	alloc_free(x->views);
	alloc_free(x);
	node_stop_step(n);
}

static struct indexing *indexing_new(struct node *n, enum indexing_what what)
{
	struct indexing *x = n->index ? alloc_zero(sizeof(*x)) : NULL;

	if (!x)
		return NULL;
	x->node = n;
	x->what = what;
	x->work.run = indexing_run;
	x->work.done = indexing_done;
	return x;
}

static void indexing_submit(struct indexing *x)
{
	x->node->index_works++;
	list_add_tail(&x->node->indexing, &x->link);
	atomic_store_explicit(&x->work.cancel, x->node->hurry, memory_order_relaxed);
	work_submit(x->node->env.workers, WORK_INDEX, FAIR_NODE, &x->work);
}

void indexing_cancel(struct node *n)
{
	struct indexing *x;

	list_each(x, &n->indexing, link)
		atomic_store_explicit(&x->work.cancel, true, memory_order_relaxed);
}

void indexing_put(struct checkpoint *c)
{
	struct indexing *x = indexing_new(c->job->node, INDEX_PUT);
	struct catalog_entry *e;

	if (!x)
		return;
	e = &x->entry;
	x->job = c->job;
	x->job->works++;
	job_id_of(c->job, c->step, &c->attempt, &e->id);
	memcpy(e->job_name, c->job->history.job.name, sizeof(e->job_name));
	e->uid = c->job->history.job.uid;
	e->root = c->root;
	e->layout = c->layout;
	e->incarnation = c->job->history.incarnation;
	e->record_n = c->record_n;
	e->epoch = c->epoch;
	e->wall_ns = c->wall_ns;
	e->bytes = c->bytes;
	e->world = c->world;
	e->pinned = c->pinned;
	e->suspect = c->disk_suspect;
	x->declared = alloc_array(c->world, sizeof(*x->declared));
	x->views = alloc_array(c->world, sizeof(*x->views));
	for (uint32_t i = 0; x->declared && x->views && i < c->world; i++) {
		if (!c->shards[i].declared) {
			/* Not in memory: its layout was indexed when it was written. */
			alloc_free(x->views);
			x->views = NULL;
			break;
		}
		x->declared[i] = c->shards[i].declared;
		x->declared[i]->refs++;
		x->views[i] = x->declared[i]->view;
		x->world = i + 1;
	}
	indexing_submit(x);
}

void indexing_add(struct checkpoint *c)
{
	struct indexing *x = indexing_new(c->job->node, INDEX_ADD);

	if (!x)
		return;
	job_id_of(c->job, c->step, &c->attempt, &x->entry.id);
	indexing_submit(x);
}

void indexing_remove(struct node *n, const struct checkpoint_id *id)
{
	struct indexing *x = indexing_new(n, INDEX_REMOVE);

	if (!x)
		return;
	x->entry.id = *id;
	indexing_submit(x);
}

int indexing_rebuild(struct node *n, append_done_fn *done, void *arg)
{
	struct indexing *x = indexing_new(n, INDEX_REBUILD);

	if (!x)
		return n->index ? -ENOMEM : CKPT_ENOTFOUND;
	x->done = done;
	x->arg = arg;
	indexing_submit(x);
	return 0;
}
