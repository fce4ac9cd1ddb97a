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
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "model/format.h"
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

static int compare_declarations(const void *pa, const void *pb, void *arg)
{
	const struct plan_source *ranks = arg;
	uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;
	const struct declaration *x = &ranks[a].declaration, *y = &ranks[b].declaration;
	int c = memcmp(x->bytes, y->bytes, FORMAT_HEADER_BYTES);

	return c ? c : a < b ? -1 : a > b;
}

/* Ranks whose files lack leaves; of ranks with equal declarations only the first. Returns how
 * many. */
static uint32_t to_look_at(const struct plan_source *ranks, uint32_t world, uint32_t *ret)
{
	uint32_t n = 0, kept = 0;

	for (uint32_t i = 0; i < world; i++)
		if (ranks[i].present)
			ret[n++] = i;
	if (n > 1)
		qsort_r(ret, n, sizeof(*ret), compare_declarations, (void *)(uintptr_t)ranks);
	for (uint32_t i = 0; i < n; i++)
		if (kept == 0 || !declaration_same(&ranks[ret[kept - 1]].declaration,
						   &ranks[ret[i]].declaration))
			ret[kept++] = ret[i];
	return kept;
}

static int compare_u32(const void *pa, const void *pb)
{
	uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;

	return a < b ? -1 : a > b;
}

int holes_in(const struct plan_limits *limits, const struct plan_source *ranks, uint32_t world,
	     hole_fn *fn, void *arg, struct err *e)
{
	CLEANUP_FREE uint32_t *look = alloc_array(world, sizeof(*look));
	uint32_t n;
	int r = 0;

	if (!look)
		return err_code(e, -ENOMEM, "look for holes in the files of %u ranks", world);
	n = to_look_at(ranks, world, look);
	if (n > 1) /* the first hole reported is of the lowest rank */
		qsort(look, n, sizeof(*look), compare_u32);
	for (uint32_t i = 0; i < n && r == 0; i++) {
		const struct declaration *own = &ranks[look[i]].declaration;
		struct plan plan = {0};

		r = plan_make_within(limits, ranks, world, own, true, NULL, &plan, e);
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
		r = holes_in(PLAN_LIMITS, h.sources, h.world, fn, arg, e);
	holes_fini(&h);
	return r;
}
