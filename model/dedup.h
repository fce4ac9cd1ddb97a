/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedup.h - shards that several ranks declare alike, and who of them writes which to its file.
 *
 * Alike: same name, dtype, global shape, box and flat range. The answer depends on the declarations
 * alone: every node that knows the layout finds the same one, and nobody has to agree on it.
 *
 * Parts of shards are handed out in units: what lies in one window of the image of the lowest
 * holder and has the same holders. Windows are a power of two of bytes, a thirty-second of what a
 * rank writes on average, so that writers can be balanced and few leaves are cut by a border
 * between two writers. A unit goes to the holder with the highest hash of (unit, rank) that has
 * not yet more than its share (rendezvous hashing with bounded loads): where one rank changes, the
 * units of others stay where they are, but for those that its share pushes away.
 *
 * Pure; O(n log n) for n shards of all ranks; what it takes of memory is known before.
 */
#ifndef MODEL_DEDUP_H
#define MODEL_DEDUP_H

#include <stdatomic.h>

#include "model/declaration.h"

/* Of all ranks together: 16 of a million tensors each. */
#define DEDUP_SHARDS_MAX (1u << 24)

struct dedup_rank {
	uint32_t rank;
	struct declaration declaration;
};

struct dedup_holder {
	uint32_t rank;
	uint64_t at; /* where the shard begins in its image */
};

/* Bytes [from, from + bytes) of a shard that several hold; whole elements. */
struct dedup_part {
	uint32_t unit;
	uint32_t shard; /* sorted index in the declaration of the first holder */
	uint32_t n_holders;
	size_t first_holder; /* in holders; their ranks rise */
	uint64_t from, bytes;
};

struct dedup_unit {
	uint64_t bytes;
	uint32_t writer; /* one of its holders */
	uint32_t n_parts;
	size_t first_part;
};

struct dedup {
	uint32_t world;
	struct dedup_holder *holders;
	struct dedup_part *parts; /* unit by unit */
	struct dedup_unit *units;
	size_t n_holders;
	size_t n_parts, n_units; /* 0: no shard is replicated */
	size_t cap_units;
	uint64_t *load;          /* for each rank: the bytes of shards that it writes */
	uint64_t total;          /* of all ranks: each shard counts once */
};

/* The bytes that dedup_make() takes at most, with what it returns; false: they are more shards than
 * it looks through. */
bool dedup_memory(uint64_t n_shards, uint32_t world, uint64_t *ret);
/*
 * ranks: all of 0 .. world - 1, in any order. -E2BIG: more than DEDUP_SHARDS_MAX shards;
 * -ECANCELED: soon after *cancel was set (NULL: it cannot be); -ENOMEM.
 */
MUST_CHECK int dedup_make(const struct dedup_rank *ranks, uint32_t world, const atomic_bool *cancel,
			  struct dedup **ret, struct err *e);
uint64_t dedup_bytes(const struct dedup *d); /* that it holds */
void dedup_free(struct dedup *d); /* NULL is allowed */

/* A rank's image, for which a file is to be made. */
struct dedup_image {
	const struct declaration *declaration;
	uint64_t image_len; /* with blobs */
};

/*
 * Which leaves each rank's file must hold: those with a byte of a shard that it alone holds, of a
 * part that it writes, of a blob. ret[rank]: a bit for each leaf, to be freed; NULL: all of them.
 * apart: one for each part: its holders do not agree on its bytes, each writes its own; NULL: all
 * agree. On failure nothing is to be freed.
 */
MUST_CHECK int dedup_present(const struct dedup *d, const struct dedup_image *images,
			     const bool *apart, uint64_t **ret);

#endif
