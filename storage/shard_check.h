/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_check.h - chunks compared with what the rank table says of them; shared by reading one
 * (shard_reader.c) and reading all (verify.c).
 */
#ifndef STORAGE_SHARD_CHECK_H
#define STORAGE_SHARD_CHECK_H

#include "storage/shard_reader.h"

/* Which leaves of a chunk are bad: fn gets a sentence for each; returns how many. */
typedef void bad_leaf_fn(void *arg, const char *sentence);
uint64_t chunk_check_leaves(const struct rank_table *t, uint64_t chunk, uint32_t missing,
			    const uint8_t *raw, bad_leaf_fn *fn, void *arg);
/*
 * Stored bytes of a chunk to raw ones, of the leaves that it has: *ret points to them, in stored or
 * in out (chunk bytes).
 * CKPT_ECORRUPT when the stored bytes do not match their digest or cannot be unpacked.
 */
MUST_CHECK int chunk_unpack(const struct rank_table *t, uint64_t chunk,
			    const struct chunk_place *p, struct compressor *c,
			    const uint8_t *stored, uint8_t *out, const uint8_t **ret,
			    struct err *e);
/* "tensor 'w' and 2 more": what lies in [lo, hi) of the image. */
void image_describe(const struct rank_table *t, uint64_t lo, uint64_t hi, char *buf, size_t size);

#endif
