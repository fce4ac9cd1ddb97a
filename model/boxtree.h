/* SPDX-License-Identifier: Apache-2.0 */
/*
 * boxtree.h - many boxes of one tensor, for repeated queries which of them meets a region.
 *
 * Boxes are added in order of preference, then sorted by where they lie, with a tree of bounding
 * boxes above them. boxtree_first() answers "the most preferred box that
 * shares an element with this region": what the planner needs to take each element from its
 * cheapest source. Building costs O(n log^2 n) at most, a question O(log n) for boxes cut along one
 * dimension or on a grid, but up to O(n) for shapes and orders of preference that are made for it:
 * callers count the steps over boxes that come from outside (model/effort.h). model/disjoint.h
 * checks whether such boxes are disjoint.
 *
 * The memory is kept over boxtree_reset(): one tree serves tensor after tensor.
 */
#ifndef MODEL_BOXTREE_H
#define MODEL_BOXTREE_H

#include <stddef.h>

#include "model/effort.h"
#include "model/tensor.h"

struct boxtree_box {
	struct box box;
	uint32_t rank; /* in order of addition: lower is preferred */
	uint32_t tag;  /* the caller's */
	bool free;     /* see boxtree_mark_free() */
};

struct boxtree {
	uint32_t ndim;
	struct boxtree_box *boxes; /* sorted after boxtree_build() */
	size_t n, cap;
	struct boxtree_node *nodes; /* a heap: the children of i are 2i + 1 and 2i + 2 */
	size_t n_nodes, cap_nodes;
	size_t scratch; /* the most bytes that sorting them took */
};

/* A zeroed struct is a valid empty tree. */
void boxtree_reset(struct boxtree *t, uint32_t ndim);
/* box must not be empty. */
MUST_CHECK int boxtree_add(struct boxtree *t, const struct box *box, uint32_t tag);
/* effort NULL: no limit. */
MUST_CHECK int boxtree_build(struct boxtree *t, struct effort *effort);
/* NULL when no box meets the region, which must not be empty. */
const struct boxtree_box *boxtree_first(const struct boxtree *t, const struct box *region);
/* The same into *ret, each node and box counted against effort->most: -ECANCELED or -EOVERFLOW. */
MUST_CHECK int boxtree_ask(const struct boxtree *t, const struct box *region,
			   struct effort *effort, const struct boxtree_box **ret);
/*
 * How many boxes there are that meet the region and no box that is preferred to them: all such are
 * known after boxtree_mark_free(). It ends as boxtree_ask() does.
 */
MUST_CHECK int boxtree_mark_free(struct boxtree *t, struct effort *effort);
MUST_CHECK int boxtree_count_free(const struct boxtree *t, const struct box *region,
				  struct effort *effort, uint64_t *ret);
size_t boxtree_memory(const struct boxtree *t); /* bytes allocated */
void boxtree_fini(struct boxtree *t);

#endif
