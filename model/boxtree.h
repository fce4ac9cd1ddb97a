/* SPDX-License-Identifier: Apache-2.0 */
/*
 * boxtree.h - many boxes of one tensor, asked again and again which of them meets a region.
 *
 * Boxes are added in order of preference, then sorted by offset (first differing dimension first)
 * with a tree of bounding boxes above them. boxtree_first() answers "the most preferred box that
 * shares an element with this region": what the planner needs to take each element from its
 * cheapest source, and what shows that two boxes overlap. Building costs O(n log n), a question
 * O(log n) for boxes cut along one dimension or on a grid.
 *
 * The memory is kept over boxtree_reset(): one tree serves tensor after tensor.
 */
#ifndef MODEL_BOXTREE_H
#define MODEL_BOXTREE_H

#include <stddef.h>

#include "model/tensor.h"

struct boxtree_box {
	struct box box;
	uint32_t rank; /* in order of addition: lower is preferred */
	uint32_t tag;  /* the caller's */
};

struct boxtree {
	uint32_t ndim;
	struct boxtree_box *boxes; /* sorted after boxtree_build() */
	size_t n, cap;
	struct boxtree_node *nodes; /* a heap: the children of i are 2i + 1 and 2i + 2 */
	size_t n_nodes, cap_nodes;
};

/* A zeroed struct is a valid empty tree. */
void boxtree_reset(struct boxtree *t, uint32_t ndim);
/* box must not be empty. */
MUST_CHECK int boxtree_add(struct boxtree *t, const struct box *box, uint32_t tag);
MUST_CHECK int boxtree_build(struct boxtree *t);
/* NULL when no box meets the region, which must not be empty. */
const struct boxtree_box *boxtree_first(const struct boxtree *t, const struct box *region);
size_t boxtree_memory(const struct boxtree *t); /* bytes allocated */
void boxtree_fini(struct boxtree *t);

#endif
