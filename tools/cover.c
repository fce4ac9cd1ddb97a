/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cover.c - see cover.h. Distinct shards without an overlap cover a tensor when they have as many
 * elements as it has: counted first. Where that does not prove it, the planner is asked for the
 * whole tensor, and its sentence says what is missing. One thread.
 */
#include <config.h>

#include "tools/cover.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "model/boxtree.h"
#include "model/plan.h"
#include "tools/plural.h"

struct region {
	struct box box;
	uint64_t start, stop;
};

struct regions {
	struct region *at;
	size_t n, cap;
};

static int compare(const void *a, const void *b)
{
	const struct region *x = a, *y = b;

	for (uint32_t i = 0; i < x->box.ndim; i++) {
		if (x->box.offset[i] != y->box.offset[i])
			return x->box.offset[i] < y->box.offset[i] ? -1 : 1;
		if (x->box.length[i] != y->box.length[i])
			return x->box.length[i] < y->box.length[i] ? -1 : 1;
	}
	if (x->start != y->start)
		return x->start < y->start ? -1 : 1;
	return x->stop < y->stop ? -1 : x->stop > y->stop;
}

static int add(struct regions *l, const struct shard *s)
{
	if (l->n == l->cap) {
		size_t cap = l->cap ? 2 * l->cap : 64;
		void *p = alloc_resize(l->at, cap * sizeof(*l->at));

		if (!p)
			return -ENOMEM;
		l->at = p;
		l->cap = cap;
	}
	l->at[l->n++] = (struct region){s->box, s->start, s->stop};
	return 0;
}

/* Of all ranks, each once, empty ones left out. */
static int collect(const struct layout_tensor *t, const struct declaration *ranks, uint32_t world,
		   struct regions *ret)
{
	size_t kept = 0;
	struct shard s;

	for (uint32_t rank = 0; rank < world; rank++) {
		uint32_t first = 0, n;

		n = declaration_find(&ranks[rank], t->name, t->name_len, &first);
		for (uint32_t i = 0; i < n; i++) {
			declaration_get(&ranks[rank], first + i, &s);
			if (s.stop > s.start && add(ret, &s) < 0)
				return -ENOMEM;
		}
	}
	if (ret->n > 1)
		qsort(ret->at, ret->n, sizeof(*ret->at), compare);
	for (size_t i = 0; i < ret->n; i++)
		if (i == 0 || compare(&ret->at[kept - 1], &ret->at[i]) != 0)
			ret->at[kept++] = ret->at[i];
	ret->n = kept;
	return 0;
}

static int fill_tree(struct boxtree *tree, const struct regions *l, const struct layout_tensor *t)
{
	struct box boxes[FLAT_BOXES_MAX];
	int r = 0;

	boxtree_reset(tree, t->global.ndim);
	for (size_t i = 0; i < l->n && r == 0; i++) {
		const struct shard s = {.global = t->global,
					.box = l->at[i].box,
					.start = l->at[i].start,
					.stop = l->at[i].stop};
		int n = shard_boxes(&s, boxes);

		for (int k = 0; k < n && r == 0; k++)
			r = boxtree_add(tree, &boxes[k], 0);
	}
	return r == 0 ? boxtree_build(tree, NULL) : r;
}

/* 1: it is whole by its numbers; 0: they do not say. */
static int count(const struct regions *l, const struct layout_tensor *t, uint64_t elements)
{
	struct boxtree tree = {0};
	uint64_t sum = 0;
	int r;

	for (size_t i = 0; i < l->n; i++)
		sum += l->at[i].stop - l->at[i].start;
	if (sum != elements)
		return 0;
	r = fill_tree(&tree, l, t);
	for (size_t i = 0; r == 0 && i < tree.n; i++)
		if (boxtree_first(&tree, &tree.boxes[i].box) != &tree.boxes[i])
			r = 1;
	boxtree_fini(&tree);
	return r < 0 ? r : r == 0;
}

static int ask_planner(const char *layout, const struct layout_tensor *t,
		       const struct declaration *ranks, uint32_t world, struct err *e)
{
	CLEANUP_FREE struct plan_source *sources = alloc_array(world, sizeof(*sources));
	struct shard whole = {
		.name = t->name, .name_len = t->name_len, .dtype = t->dtype, .global = t->global};
	struct declaration_builder *b = NULL;
	CLEANUP_FREE void *bytes = NULL;
	struct declaration wanted;
	struct plan plan = {0};
	size_t len = 0;
	int r = declaration_builder_new(GEOMETRY_DEFAULT, &b);

	if (r < 0 || !sources) {
		declaration_builder_free(b);
		return err_code(e, -ENOMEM, "look for holes in %u rank%s", world, plural(world));
	}
	whole.box.ndim = t->global.ndim;
	memcpy(whole.box.length, t->global.dim, sizeof(whole.box.length));
	r = declaration_add(b, &whole, e);
	if (r >= 0)
		r = declaration_finish(b, &bytes, &len, e);
	declaration_builder_free(b);
	if (r >= 0)
		r = declaration_open(bytes, len, &wanted, e);
	for (uint32_t i = 0; i < world; i++)
		sources[i].declaration = ranks[i];
	if (r >= 0)
		r = plan_make(sources, world, &wanted, false, NULL, &plan, e);
	if (r == CKPT_EMISMATCH && plan.n_problems > 0)
		r = err_set(e, -EINVAL, "layout '%.100s' leaves a hole: %s", layout,
			    plan.problems[0].text);
	plan_fini(&plan);
	return r;
}

int cover_check(const char *layout, const struct layout_tensor *t, const struct declaration *ranks,
		uint32_t world, struct err *e)
{
	struct regions all = {0};
	uint64_t elements = 0;
	int r;

	assert(world > 0);
	if (!shape_elements(&t->global, &elements))
		return err_set(e, -EINVAL, "a tensor has more than 2^64 elements");
	r = collect(t, ranks, world, &all);
	if (r == 0 && elements > 0) /* that nobody names an empty one, the planner says */
		r = count(&all, t, elements);
	alloc_free(all.at);
	if (r < 0)
		return err_code(e, r, "look for holes of layout '%.100s'", layout);
	return r == 0 ? ask_planner(layout, t, ranks, world, e) : 0;
}
