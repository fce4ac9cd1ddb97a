/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digesting.c - leaves on CPU workers, split when the image is large, then the rank table.
 *
 * The slot is pinned by checkpoint->works. A small image is one work that does both, because a
 * change of threads costs more than its digest.
 */
#include <config.h>

#include "ckptd/digesting.h"

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"
#include "ckptd/node_priv.h"
#include "codec/digest.h"
#include "model/table.h"

#define SPLIT_BYTES (8u << 20)
#define PARTS_MAX 16

struct digesting;
struct part {
	struct work work;
	struct digesting *of;
	uint64_t first, last; /* leaves */
};

struct digesting {
	struct checkpoint *checkpoint;
	uint32_t rank, world;
	const uint8_t *image;
	uint64_t image_len, n_leaves;
	struct geometry geometry;
	struct declared *declared;
	struct blob_entry *blobs;
	uint32_t n_blobs;
	struct digest *leaves;
	struct part parts[PARTS_MAX];
	uint32_t n_parts, left;
	struct work table_work;
	void *table;
	size_t table_len;
};

/* ---- On the worker ---- */

struct sampling {
	const uint8_t *image;
	struct digest_stream stream;
	struct digest digests[TABLE_SAMPLES_MAX];
	uint32_t current;
	bool any;
};

static void sample_close(struct sampling *s)
{
	if (s->any)
		s->digests[s->current] = digest_end(&s->stream);
}

static void sample_piece(void *arg, uint32_t sample, uint64_t image_offset, uint64_t len)
{
	struct sampling *s = arg;

	assert(sample < TABLE_SAMPLES_MAX);
	if (!s->any || sample != s->current) {
		sample_close(s);
		digest_begin(&s->stream);
		s->current = sample;
		s->any = true;
	}
	digest_update(&s->stream, s->image + image_offset, len);
}

static int build_table(struct digesting *d)
{
	struct sampling s = { .image = d->image }; /* on the stack: the stream is aligned */
	struct rank_table_parts p = {
		.rank = d->rank,
		.world = d->world,
		.geometry = d->geometry,
		.image_len = d->image_len,
		.declaration = d->declared->bytes,
		.declaration_len = d->declared->len,
		.blobs = d->blobs,
		.n_blobs = d->n_blobs,
		.leaves = d->leaves,
	};

	p.n_samples = rank_table_sample_pieces(&d->declared->view, sample_piece, &s);
	sample_close(&s);
	p.samples = s.digests;
	return rank_table_build(&p, &d->table, &d->table_len, NULL);
}

static void part_run(struct work *w)
{
	struct part *p = container_of(w, struct part, work);
	struct digesting *d = p->of;

	if (p->first <= p->last && d->n_leaves > 0)
		digest_leaves(d->image, d->image_len, d->geometry.leaf, p->first, p->last,
			      d->leaves + p->first);
	w->status = d->n_parts == 1 ? build_table(d) : 0;
}

static void table_run(struct work *w)
{
	w->status = build_table(container_of(w, struct digesting, table_work));
}

/* ---- On the loop ---- */

static void digesting_end(struct digesting *d, int status)
{
	struct checkpoint *c = d->checkpoint;
	uint32_t rank = d->rank;
	void *table = d->table;
	size_t len = d->table_len;

	alloc_free(d->leaves);
	alloc_free(d->blobs);
	alloc_free(d);
	c->works--;
	checkpoint_digested(c, rank, status, table, len);
}

static void table_done(struct work *w)
{
	digesting_end(container_of(w, struct digesting, table_work), w->status);
}

static void part_done(struct work *w)
{
	struct digesting *d = container_of(w, struct part, work)->of;

	if (--d->left > 0)
		return;
	if (d->n_parts == 1) {
		digesting_end(d, w->status);
		return;
	}
	d->table_work.run = table_run;
	d->table_work.done = table_done;
	work_submit(d->checkpoint->job->node->env.workers, WORK_CPU, &d->table_work);
}

static int copy_blobs(struct digesting *d, const struct shard_state *sh)
{
	d->n_blobs = sh->n_blobs;
	d->blobs = alloc_array(sh->n_blobs, sizeof(*d->blobs));
	if (!d->blobs)
		return -ENOMEM;
	for (uint32_t i = 0; i < sh->n_blobs; i++) {
		d->blobs[i].name = sh->blobs[i].name;
		d->blobs[i].name_len = (uint32_t)strlen(sh->blobs[i].name);
		d->blobs[i].image_offset = sh->blobs[i].image_offset;
		d->blobs[i].bytes = sh->blobs[i].bytes;
	}
	return 0;
}

static void submit_parts(struct digesting *d)
{
	struct workers *w = d->checkpoint->job->node->env.workers;
	uint64_t each;

	d->n_parts = 1;
	if (d->image_len >= SPLIT_BYTES)
		d->n_parts = (uint32_t)min_u64((uint64_t)work_width(w, WORK_CPU), PARTS_MAX);
	each = div_up(d->n_leaves, d->n_parts);
	d->left = d->n_parts;
	for (uint32_t i = 0; i < d->n_parts; i++) {
		struct part *p = &d->parts[i];

		p->of = d;
		p->first = i * each;
		p->last = min_u64(p->first + each, d->n_leaves) - 1;
		if (p->first >= d->n_leaves) {
			p->first = 1;
			p->last = 0; /* nothing left for this one */
		}
		p->work.run = part_run;
		p->work.done = part_done;
		work_submit(w, WORK_CPU, &p->work);
	}
}

void digesting_start(struct checkpoint *c, uint32_t rank)
{
	struct shard_state *sh = &c->shards[rank];
	struct digesting *d;

	if (!JOB_ASSERT(c->job, sh->sealed && !sh->table && sh->slot))
		return;
	d = alloc_zero(sizeof(*d));
	if (!d) {
		checkpoint_digested(c, rank, -ENOMEM, NULL, 0);
		return;
	}
	d->checkpoint = c;
	d->rank = rank;
	d->world = c->world;
	d->image = sh->slot->region->base;
	d->image_len = sh->image_len;
	d->geometry = c->job->node->options.geometry;
	d->declared = sh->declared;
	d->n_leaves = div_up(sh->image_len, d->geometry.leaf);
	d->leaves = alloc_array(d->n_leaves, sizeof(*d->leaves));
	if (!d->leaves || copy_blobs(d, sh) < 0) {
		alloc_free(d->leaves);
		alloc_free(d->blobs);
		alloc_free(d);
		checkpoint_digested(c, rank, -ENOMEM, NULL, 0);
		return;
	}
	c->works++;
	submit_parts(d);
}
