/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disjoint.h - whether boxes of one tensor share an element, at a cost that no shape can drive up.
 *
 * The boxes come from outside, so the cost must not depend on how well they can be sorted. In a
 * tensor of one dimension it is O(n log N), where N is its length; each further dimension in which
 * boxes lie side by side multiplies that by O(log N) of its own length at most. As a tensor has
 * fewer than 2^64 elements, the logarithms of all its dimensions add up to less than 64.
 *
 * The memory is kept over disjoint_reset(): one struct serves tensor after tensor. It takes 16
 * bytes a dimension and box.
 */
#ifndef MODEL_DISJOINT_H
#define MODEL_DISJOINT_H

#include <stddef.h>

#include "model/effort.h"
#include "model/tensor.h"

struct disjoint {
	uint32_t ndim;
	uint64_t *at; /* of each box: where it begins and ends, dimension by dimension */
	size_t n, cap_at;
	uint32_t *order; /* the boxes that are looked at, in any order */
	size_t cap_order;
	uint64_t steps; /* boxes that were looked at, each time counted: what the check cost */
};

/* A zeroed struct is a valid empty one. */
void disjoint_reset(struct disjoint *d, uint32_t ndim);
/* box must not be empty. */
MUST_CHECK int disjoint_add(struct disjoint *d, const struct box *box);
/*
 * 0: no two share an element; 1: two do, and *ret is what they share (any pair of those that do).
 * -ECANCELED, -EOVERFLOW: effort.h, a step for each box that is looked at; -ENOMEM.
 */
MUST_CHECK int disjoint_check(struct disjoint *d, struct effort *effort, struct box *ret);
void disjoint_fini(struct disjoint *d);

#endif
