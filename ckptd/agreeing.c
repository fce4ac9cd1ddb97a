/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agreeing.c - elements that two ranks store in shards that overlap and are not the same, and names
 * that two ranks declare as tensors of another type or global shape.
 *
 * No digest of one shard can be compared with that of another, so their bytes are, once per
 * checkpoint, on a CHECK worker, while it is in memory: at most COMPARE_BYTES_MAX of them. A load
 * takes each element from one of the ranks, and nobody would notice. Layouts without such overlaps,
 * which are nearly all, are known by their digest after the first checkpoint and cost nothing.
 *
 * What differs is told, with tensor, region and ranks; nothing is judged and nothing is lost.
 * Tensors that are unlike, which no load can give to all ranks, are told once for a layout, and
 * nothing of that layout is compared any more. A checkpoint whose memory went before (adopted, or
 * given up) is not looked at, nor is any during an orderly stop, nor are layouts of more than
 * SHARDS_MAX shards. Replicas are none of its business (model/overlaps.h).
 *
 * Threads: the loop's, but run(): tables and images stay for as long as checkpoint->works counts
 * it.
 */
#include <config.h>

#include "ckptd/agreeing.h"

#include <assert.h>
#include <stdio.h>

#include "base/alloc.h"
#include "ckptd/node_priv.h"
#include "model/overlaps.h"

#define SHARDS_MAX        (1u << 20)
#define COMPARE_BYTES_MAX (1ull << 30)

struct agreeing {
	struct work work;
	struct list link; /* in node->agreeing */
	struct checkpoint *checkpoint;
	struct digest layout;
	struct declaration *ranks;
	const uint8_t **images;
	uint32_t world;
	uint64_t bytes; /* compared */
	bool any;       /* there are overlaps */
	bool differ, unlike;
	struct overlap found;
	struct box at; /* the first element */
};

/* ---- On the worker ---- */

static int compare(void *arg, const struct overlap *o)
{
	struct agreeing *a = arg;
	const uint8_t *images[2] = {a->images[o->rank[0]], a->images[o->rank[1]]};
	uint64_t elements = 0;

	a->unlike = o->unlike;
	if (o->unlike) {
		a->found = *o;
		return 1;
	}
	a->any = true;
	if (!box_elements(&o->region, &elements))
		return 0;
	a->bytes += elements * dtype_bytes(o->shard[0].dtype);
	if (a->bytes > COMPARE_BYTES_MAX)
		return 1;
	a->differ = overlap_differs(o, images, &a->work.cancel, &a->at);
	if (a->differ)
		a->found = *o;
	return a->differ;
}

static void agreeing_run(struct work *w)
{
	struct agreeing *a = container_of(w, struct agreeing, work);

	w->status = overlaps_walk(a->ranks, a->world, &w->cancel, compare, a, NULL);
}

/* ---- On the loop ---- */

static void tell(const struct agreeing *a)
{
	struct job *j = a->checkpoint->job;
	char name[NAME_TEXT_MAX], region[BOX_TEXT_MAX], at[BOX_TEXT_MAX];

	j->overlap_alarms++;
	j->overlap_step = a->checkpoint->step;
	snprintf(j->overlap_text, sizeof(j->overlap_text),
		 "elements %.60s of tensor '%.80s' are stored by ranks %u and %u and are not the "
		 "same, the first at %.60s",
		 box_text(region, &a->found.region),
		 name_text(name, a->found.name, a->found.name_len), a->found.rank[0],
		 a->found.rank[1], box_text(at, &a->at));
	job_tell_step(j, j->overlap_step, 2, "step %llu: %s: a load takes those of one of them",
		      (unsigned long long)j->overlap_step, j->overlap_text);
}

static void tell_unlike(const struct agreeing *a)
{
	const struct overlap *o = &a->found;
	struct job *j = a->checkpoint->job;
	char name[NAME_TEXT_MAX], shape[2][BOX_TEXT_MAX];

	j->overlap_alarms++;
	j->overlap_step = a->checkpoint->step;
	snprintf(j->overlap_text, sizeof(j->overlap_text),
		 "rank %u stores tensor '%.80s' as %s %.60s and rank %u as %s %.60s: no load gives "
		 "both, so declare it alike on all ranks, or under two names",
		 o->rank[0], name_text(name, o->name, o->name_len), dtype_name(o->shard[0].dtype),
		 shape_text(shape[0], &o->shard[0].global), o->rank[1],
		 dtype_name(o->shard[1].dtype), shape_text(shape[1], &o->shard[1].global));
	job_tell_step(j, j->overlap_step, 2, "step %llu: %s", (unsigned long long)j->overlap_step,
		      j->overlap_text);
}

static void agreeing_free(struct agreeing *a)
{
	alloc_free(a->ranks);
	alloc_free(a->images);
	alloc_free(a);
}

static void agreeing_done(struct work *w)
{
	struct agreeing *a = container_of(w, struct agreeing, work);
	struct job *j = a->checkpoint->job;

	if ((w->status == 0 && !a->any) || a->unlike) {
		j->apart_layout = a->layout;
		j->apart_known = true;
	}
	if (a->differ)
		tell(a);
	if (a->unlike)
		tell_unlike(a);
	a->checkpoint->works--;
	list_del(&a->link);
	agreeing_free(a);
	job_poke(j);
}

static bool take_ranks(struct agreeing *a, const struct checkpoint *c)
{
	uint64_t shards = 0;

	for (uint32_t r = 0; r < c->world; r++) {
		const struct shard_state *sh = &c->shards[r];

		if (!sh->slot || sh->slot->state != SLOT_DIGESTED)
			return false;
		a->ranks[r] = sh->declared->view;
		a->images[r] = sh->slot->region->base;
		shards += sh->declared->view.n_shards;
	}
	return shards <= SHARDS_MAX;
}

void agreeing_start(struct checkpoint *c)
{
	struct job *j = c->job;
	struct digest layout;
	struct agreeing *a;

	if (!JOB_ASSERT(j, c->digested) || j->node->stopping)
		return;
	layout = checkpoint_layout(c);
	if (c->world < 2 || (j->apart_known && digest_equal(&layout, &j->apart_layout)))
		return;
	a = alloc_zero(sizeof(*a));
	if (!a)
		return; /* the next one will be looked at */
	a->ranks = alloc_array(c->world, sizeof(*a->ranks));
	a->images = alloc_array(c->world, sizeof(*a->images));
	if (!a->ranks || !a->images || !take_ranks(a, c)) {
		agreeing_free(a);
		return;
	}
	a->checkpoint = c;
	a->world = c->world;
	a->layout = layout;
	a->work.run = agreeing_run;
	a->work.done = agreeing_done;
	c->works++;
	list_add_tail(&j->node->agreeing, &a->link);
	job_submit(j, WORK_CHECK, &a->work);
}

void agreeing_cancel(struct node *n)
{
	struct agreeing *a;

	list_each(a, &n->agreeing, link)
		atomic_store_explicit(&a->work.cancel, true, memory_order_relaxed);
}
