/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digesting.c - leaves on CPU workers, split when the image is large, then the rank table.
 *
 * The slot is pinned by checkpoint->works. A small image is one work that does both, because a
 * change of threads costs more than its digest.
 *
 * A worker puts a table that is too long for a record of the ledger into the slot's region for
 * tables. A slot of an older ckptd has none, and the worker makes it; if that fails, the loop
 * writes the table into a record all the same.
 */
#include <config.h>

#include "ckptd/digesting.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

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
	const struct blobs *blobs; /* the shard's */
	struct digest *leaves;
	struct part parts[PARTS_MAX];
	uint32_t n_parts, left;
	struct work table_work;
	struct made_table table;
	size_t inline_max;
	struct memory *memory;
	struct region *region; /* the slot's for tables; NULL: it has none, and: */
	uint64_t region_bytes; /* this one is made, unless 0 */
	struct region *fresh;
	char name[REGION_NAME_MAX + 1];
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

int made_table_open(void *bytes, size_t len, const struct declaration *known,
		    struct made_table *ret, struct rank_table *t)
{
	int r = rank_table_open_known(bytes, len, known, t, NULL);

	if (r < 0)
		return r;
	*ret = (struct made_table){
		.bytes = bytes,
		.len = len,
		.digest = rank_table_digest(t),
		.samples = (const struct digest *)t->samples,
		.n_samples = t->n_samples,
	};
	return 0;
}

/* Moves a long table into the slot's region for tables, and frees the bytes given. */
static void *table_place(struct digesting *d, void *bytes, size_t len)
{
	struct region *to = d->region;

	if (len <= d->inline_max)
		return bytes;
	if (!to && d->region_bytes >= len &&
	    d->memory->ops->create(d->memory, d->name, d->region_bytes, &d->fresh) == 0)
		to = d->fresh;
	if (!to || to->size < len)
		return bytes;
	memcpy(to->base, bytes, len);
	alloc_free(bytes);
	return to->base;
}

static int open_table(struct digesting *d, void *bytes, size_t len)
{
	void *place = table_place(d, bytes, len);
	struct rank_table view;
	int r = made_table_open(place, len, &d->declared->view, &d->table, &view);

	d->table.in_region = place != bytes;
	if (r < 0 && place == bytes)
		alloc_free(bytes);
	return r;
}

static int build_table(struct digesting *d)
{
	struct sampling s = { .image = d->image }; /* on the stack: the stream is aligned */
	void *bytes;
	size_t len;
	int r;
	struct rank_table_parts p = {
		.rank = d->rank,
		.world = d->world,
		.geometry = d->geometry,
		.image_len = d->image_len,
		.declaration = d->declared->bytes,
		.declaration_len = d->declared->len,
		.view = &d->declared->view,
		.blobs = d->blobs->at,
		.n_blobs = d->blobs->n,
		.leaves = d->leaves,
	};

	p.n_samples = rank_table_sample_pieces(&d->declared->view, sample_piece, &s);
	sample_close(&s);
	p.samples = s.digests;
	r = rank_table_build(&p, &bytes, &len, NULL);
	return r < 0 ? r : open_table(d, bytes, len);
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
	struct made_table table = d->table;
	struct region *fresh = d->fresh;
	uint32_t rank = d->rank;

	alloc_free(d->leaves);
	alloc_free(d);
	c->works--;
	checkpoint_digested(c, rank, status, &table, fresh);
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
	job_submit(d->checkpoint->job, WORK_CPU, &d->table_work);
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
		job_submit(d->checkpoint->job, WORK_CPU, &p->work);
	}
}

static void place_for_table(struct digesting *d, const struct slot *s)
{
	struct job *j = s->job;

	d->inline_max = j->node->options.ledger_inline;
	d->memory = j->node->env.memory;
	d->region = s->table;
	if (s->table)
		return;
	d->region_bytes = ledgering_table_region(j, d->declared->len, s->region->size);
	ledgering_table_name(j, s->number, d->name, sizeof(d->name));
	if (d->region_bytes)
		j->ledger.annexes_wanted = true;
}

void digesting_start(struct checkpoint *c, uint32_t rank)
{
	struct made_table none = {0};
	struct shard_state *sh = &c->shards[rank];
	struct digesting *d;

	if (!JOB_ASSERT(c->job, sh->sealed && !sh->table && sh->slot))
		return;
	d = alloc_zero(sizeof(*d));
	if (!d) {
		checkpoint_digested(c, rank, -ENOMEM, &none, NULL);
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
	d->blobs = sh->blobs;
	if (!d->leaves) {
		alloc_free(d);
		checkpoint_digested(c, rank, -ENOMEM, &none, NULL);
		return;
	}
	place_for_table(d, sh->slot);
	c->works++;
	submit_parts(d);
}
