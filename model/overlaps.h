/* SPDX-License-Identifier: Apache-2.0 */
/*
 * overlaps.h - elements that several ranks store in shards that are not the same, and whether they
 * store them alike; and names that ranks declare as tensors that are not the same.
 *
 * Replicas, shards with the same box and range, are no overlap. A load takes each element from one
 * of the ranks that store it: where they disagree nobody would notice.
 */
#ifndef MODEL_OVERLAPS_H
#define MODEL_OVERLAPS_H

#include <stdatomic.h>

#include "model/declaration.h"

struct overlap {
	const char *name;
	uint32_t name_len;
	uint32_t rank[2];
	struct shard shard[2];
	bool unlike;       /* the tensors differ in type or global shape: no load gives both */
	struct box region; /* elements that both have; of unlike ones none are counted */
};

/*
 * Calls fn with each, ordered by name; of a name whose tensors are unlike only with one pair of
 * them. 0, -ENOMEM, -ECANCELED soon after *cancel was set (NULL: it cannot be), or what fn returned
 * that was not 0. Of replicas the first counts. At most OVERLAP_PAIRS_MAX pairs of shards are
 * looked at. ret_looks, or NULL: how often a rank's next name was read, a few times for each of its
 * shards at most.
 */
#define OVERLAP_PAIRS_MAX (4u << 20)
typedef int overlap_fn(void *arg, const struct overlap *o);
MUST_CHECK int overlaps_walk(const struct declaration *ranks, uint32_t n, const atomic_bool *cancel,
			     overlap_fn *fn, void *arg, uint64_t *ret_looks);

/* The first element on which the images of o->rank[0] and o->rank[1] differ; false: on none, or on
 * none before *cancel was set (or NULL). */
bool overlap_differs(const struct overlap *o, const uint8_t *const image[2],
		     const atomic_bool *cancel, struct box *ret_at);

#endif
