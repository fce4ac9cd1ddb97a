/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meta_model.h - what a large training run stores, as declarations alone: 256 ranks, tensor
 * parallel over 8, 4 pipeline stages, 8 data-parallel replicas; layers with attention, a shared
 * expert and 64 experts, of which each replica holds 8; Adam's two moments beside each parameter.
 *
 *   parameters   cut by row or column over tp, on a grid of 2 x 4 (the shared expert), or not at
 *                all (norms, router); dense ones are replicated over dp
 *   moments      of dense parameters: flat ranges over dp of the tp part (ZeRO-1); of experts: as
 *                their parameter
 *   embedding    one tensor on all ranks, on a grid of 16 x 16
 *
 * Each rank has a quota of shards; where it ends, the last layer of the stage ends. Pure.
 */
#ifndef BENCH_META_MODEL_H
#define BENCH_META_MODEL_H

#include "model/declaration.h"

#define META_RANKS      256u
#define META_SHARDS_MAX 16000000u
#define META_SHARDS_MIN 40000u /* a whole layer in each stage, and what is not of a layer */

/*
 * The declaration of one rank of a run that stores so many shards; freed with alloc_free().
 * replicated: another run, of 256 data-parallel replicas that each have every tensor whole.
 */
MUST_CHECK int meta_stored(uint32_t shards, bool replicated, uint32_t rank, void **ret,
			   size_t *ret_len, struct err *e);

/* The same of the first run with its layers dealt to the stages in turn: all that is stored. */
MUST_CHECK int meta_dealt(uint32_t shards, uint32_t rank, void **ret, size_t *ret_len,
			  struct err *e);

/* What is wanted: META_BOXES boxes each, fewer only where fewer tensors are stored. */
#define META_BOXES 1000u
enum meta_wanted {
	META_TENSORS, /* of as many tensors, over all stages: rows cut over 4 instead of over 8 */
	META_ONE,     /* slabs of the embedding, each across a row of its grid */
	META_ACROSS,  /* slabs of 4 moments by column, each across the flat ranges of 64 ranks */
	META_FLAT,    /* flat ranges of moments over 6 replicas of 4 tp parts instead of 8 of 8 */
	META_WHOLE,   /* whole tensors */
	META_REPLICA, /* whole tensors of the run that is replicated */
};
MUST_CHECK int meta_wanted(uint32_t shards, enum meta_wanted kind, void **ret, size_t *ret_len,
			   struct err *e);

#endif
