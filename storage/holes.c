/* SPDX-License-Identifier: Apache-2.0 */
/*
 * holes.c - elements of a checkpoint that none of its files stores.
 *
 * A file may lack leaves that other ranks have for it. Each one can be as it was written and some
 * element be in none of them: the planner is asked for all that each such rank declared, and what
 * it misses is said. Nothing is read but headers and footers. Threads: any.
 */
#include <config.h>

#include "storage/holes.h"

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"
#include "storage/shard_reader.h"

struct holes {
	struct shard_reader *ranks;
	struct plan_source *sources;
	uint32_t world, n_open;
};

static void holes_fini(struct holes *h)
{
	for (uint32_t i = 0; i < h->n_open; i++)
		shard_close(&h->ranks[i]);
	alloc_free(h->ranks);
	alloc_free(h->sources);
}

/* Their tables stay; not so many descriptors as there may be ranks. */
static int open_ranks(struct holes *h, struct store *s, const struct checkpoint_id *id,
		      const struct commit_file *c, struct err *e)
{
	h->ranks = alloc_array(c->world, sizeof(*h->ranks));
	h->sources = alloc_array(c->world, sizeof(*h->sources));
	h->world = c->world;
	if (!h->ranks || !h->sources)
		return err_code(e, -ENOMEM, "look for holes in the files of %u ranks", c->world);
	for (; h->n_open < c->world; h->n_open++) {
		struct shard_reader *r = &h->ranks[h->n_open];
		int rc = shard_open(s, id, &c->shards[h->n_open], r, e);

		if (rc < 0)
			return rc;
		r->file->disk->ops->close(r->file);
		r->file = NULL;
		h->sources[h->n_open] = (struct plan_source){.declaration = r->table.declaration,
							     .present = r->present};
	}
	return 0;
}

/* The same declaration was looked at for a rank before. */
static bool is_again(const struct plan_source *ranks, uint32_t rank)
{
	const struct declaration *d = &ranks[rank].declaration;

	for (uint32_t i = 0; i < rank; i++) {
		const struct declaration *o = &ranks[i].declaration;

		if (ranks[i].present && o->len == d->len && memcmp(o->bytes, d->bytes, d->len) == 0)
			return true;
	}
	return false;
}

int holes_in(const struct plan_source *ranks, uint32_t world, hole_fn *fn, void *arg,
	     struct err *e)
{
	int r = 0;

	for (uint32_t i = 0; i < world && r == 0; i++) {
		struct plan plan = {0};

		if (!ranks[i].present || is_again(ranks, i))
			continue;
		r = plan_make(ranks, world, &ranks[i].declaration, true, NULL, &plan, e);
		for (size_t k = 0; k < plan.n_problems && r == 0; k++)
			fn(arg, plan.problems[k].text);
		plan_fini(&plan);
	}
	return r;
}

int holes_find(struct store *s, const struct checkpoint_id *id, const struct commit_file *c,
	       hole_fn *fn, void *arg, struct err *e)
{
	struct holes h = {0};
	int r = open_ranks(&h, s, id, c, e);

	if (r == 0)
		r = holes_in(h.sources, h.world, fn, arg, e);
	holes_fini(&h);
	return r;
}
