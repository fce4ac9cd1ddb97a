/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A static tree of bounding boxes over sorted boxes. Pure; one thread per tree.
 *
 * 1. A node covers a contiguous run of the sorted boxes; its bounds are the smallest box around
 *    them and best is the most preferred of them.
 * 2. If a node's bounds lie inside the region, every box below it meets the region, so best is the
 *    node's answer: this is what keeps a question about a large region cheap.
 * 3. A subtree whose best is not better than what was found is not entered.
 */
#include <config.h>

#include "model/boxtree.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/bytes.h"

#define LEAF_BOXES 4u
#define NO_BOX     UINT32_MAX

struct boxtree_node {
	uint64_t lo[CKPT_NDIM_MAX], hi[CKPT_NDIM_MAX];
	uint32_t best; /* index into boxes, or NO_BOX: covers none */
};

void boxtree_reset(struct boxtree *t, uint32_t ndim)
{
	assert(ndim <= CKPT_NDIM_MAX);
	t->ndim = ndim;
	t->n = 0;
	t->n_nodes = 0;
}

void boxtree_fini(struct boxtree *t)
{
	alloc_free(t->boxes);
	alloc_free(t->nodes);
	*t = (struct boxtree){ 0 };
}

size_t boxtree_memory(const struct boxtree *t)
{
	return t->cap * sizeof(*t->boxes) + t->cap_nodes * sizeof(*t->nodes);
}

/* Makes room for want elements of size bytes, at least doubling. */
static int grow(void **array, size_t *cap, size_t want, size_t size)
{
	size_t n = max_u64(want, *cap ? 2 * *cap : 16);
	uint64_t bytes;
	void *p;

	if (want <= *cap)
		return 0;
	if (!size_mul(n, size, &bytes))
		return -ENOMEM;
	p = alloc_resize(*array, bytes);
	if (!p)
		return -ENOMEM;
	*array = p;
	*cap = n;
	return 0;
}

int boxtree_add(struct boxtree *t, const struct box *box, uint32_t tag)
{
	int r;

	assert(box->ndim == t->ndim && t->n_nodes == 0);
	if (t->n >= NO_BOX / 2)
		return -E2BIG;
	r = grow((void **)&t->boxes, &t->cap, t->n + 1, sizeof(*t->boxes));
	if (r)
		return r;
	t->boxes[t->n] = (struct boxtree_box){ .box = *box, .rank = (uint32_t)t->n, .tag = tag };
	t->n++;
	return 0;
}

static int compare_boxes(const void *pa, const void *pb)
{
	const struct boxtree_box *a = pa, *b = pb;

	for (uint32_t i = 0; i < a->box.ndim; i++)
		if (a->box.offset[i] != b->box.offset[i])
			return a->box.offset[i] < b->box.offset[i] ? -1 : 1;
	return a->rank < b->rank ? -1 : a->rank > b->rank;
}

static void node_take_box(const struct boxtree *t, struct boxtree_node *node, uint32_t i)
{
	const struct box *b = &t->boxes[i].box;

	for (uint32_t k = 0; k < t->ndim; k++) {
		assert(b->length[k] > 0);
		node->lo[k] = min_u64(node->lo[k], b->offset[k]);
		node->hi[k] = max_u64(node->hi[k], b->offset[k] + b->length[k]);
	}
	if (node->best == NO_BOX || t->boxes[i].rank < t->boxes[node->best].rank)
		node->best = i;
}

static void node_take_child(const struct boxtree *t, struct boxtree_node *node,
			    const struct boxtree_node *child)
{
	if (child->best == NO_BOX)
		return;
	for (uint32_t k = 0; k < t->ndim; k++) {
		node->lo[k] = min_u64(node->lo[k], child->lo[k]);
		node->hi[k] = max_u64(node->hi[k], child->hi[k]);
	}
	if (node->best == NO_BOX || t->boxes[child->best].rank < t->boxes[node->best].rank)
		node->best = child->best;
}

int boxtree_build(struct boxtree *t)
{
	size_t leaves = 1, inner;
	int r;

	assert(t->n_nodes == 0);
	while (leaves * LEAF_BOXES < t->n)
		leaves *= 2;
	inner = leaves - 1;
	r = grow((void **)&t->nodes, &t->cap_nodes, inner + leaves, sizeof(*t->nodes));
	if (r)
		return r;
	if (t->n > 1)
		qsort(t->boxes, t->n, sizeof(*t->boxes), compare_boxes);
	t->n_nodes = inner + leaves;
	for (size_t i = t->n_nodes; i-- > 0;) {
		struct boxtree_node *node = &t->nodes[i];

		node->best = NO_BOX;
		for (uint32_t k = 0; k < t->ndim; k++) {
			node->lo[k] = UINT64_MAX;
			node->hi[k] = 0;
		}
		if (i < inner) {
			node_take_child(t, node, &t->nodes[2 * i + 1]);
			node_take_child(t, node, &t->nodes[2 * i + 2]);
			continue;
		}
		for (size_t j = (i - inner) * LEAF_BOXES;
		     j < t->n && j < (i - inner + 1) * LEAF_BOXES; j++)
			node_take_box(t, node, (uint32_t)j);
	}
	return 0;
}

struct question {
	const struct boxtree *tree;
	const struct box *region;
	uint32_t best; /* index into boxes */
};

static bool worse(const struct question *q, uint32_t i)
{
	return i == NO_BOX ||
	       (q->best != NO_BOX && q->tree->boxes[i].rank >= q->tree->boxes[q->best].rank);
}

static void ask_leaf(struct question *q, size_t first)
{
	const struct boxtree *t = q->tree;

	for (size_t j = first; j < t->n && j < first + LEAF_BOXES; j++) {
		struct box x;

		if (!worse(q, (uint32_t)j) && box_intersect(&t->boxes[j].box, q->region, &x))
			q->best = (uint32_t)j;
	}
}

/* Depth: log2 of the leaves. */
static void ask(struct question *q, size_t i)
{
	const struct boxtree *t = q->tree;
	const struct boxtree_node *node = &t->nodes[i];
	size_t inner = t->n_nodes / 2, near = 2 * i + 1, far = 2 * i + 2;
	bool inside = true;

	if (worse(q, node->best))
		return;
	for (uint32_t k = 0; k < t->ndim; k++) {
		uint64_t lo = q->region->offset[k], hi = lo + q->region->length[k];

		if (node->lo[k] >= hi || node->hi[k] <= lo)
			return;
		inside = inside && node->lo[k] >= lo && node->hi[k] <= hi;
	}
	if (inside) { /* (2) */
		q->best = node->best;
		return;
	}
	if (i >= inner) {
		ask_leaf(q, (i - inner) * LEAF_BOXES);
		return;
	}
	if (t->nodes[far].best == node->best) {
		near = far;
		far = 2 * i + 1;
	}
	ask(q, near);
	ask(q, far);
}

const struct boxtree_box *boxtree_first(const struct boxtree *t, const struct box *region)
{
	struct question q = { .tree = t, .region = region, .best = NO_BOX };

	assert(t->n_nodes > 0 && region->ndim == t->ndim);
	ask(&q, 0);
	return q.best == NO_BOX ? NULL : &t->boxes[q.best];
}
