/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_checkpoint.h - checkpoints for the tests of tools, whose every element follows from a
 * formula, so that any part of them is known without a reader.
 */
#ifndef TOOLS_TEST_CHECKPOINT_H
#define TOOLS_TEST_CHECKPOINT_H

#include "base/ids.h"
#include "model/tensor.h"

/* "a.weight", CKPT_F32, {1000, 64}. */
struct shard test_tensor(const char *name, uint32_t dtype, uint32_t ndim, const uint64_t *dims);
/* Part of it: from[k], length[k] of each dimension; and elements [start, stop) of what it is. */
struct shard test_box(struct shard t, const uint64_t *from, const uint64_t *length);
struct shard test_range(struct shard t, uint64_t start, uint64_t stop);
/* Rows [part * n / parts, (part + 1) * n / parts) of dimension k. */
struct shard test_cut(struct shard t, uint32_t k, uint64_t part, uint64_t parts);

/* The packed bytes of a shard, element by element; returns how many there are. */
uint64_t test_shard_bytes(const struct shard *s, uint8_t *out);
/* Bytes of the blob of a rank. */
uint64_t test_blob_bytes(uint32_t rank, uint8_t out[256]);

struct test_rank {
	const struct shard *shards;
	uint32_t n_shards;
	bool blob; /* it has one, "rng", of test_blob_bytes() */
};

struct test_checkpoint {
	const char *folder; /* made if it is not there */
	const char *job;
	uint32_t uid;
	uint64_t step;
	const struct test_rank *ranks;
	uint32_t world;
	struct geometry geometry; /* zero: the default */
	int compression;
};

/* Written by the functions that ckptd uses, without a log. Ends the process when it cannot. */
struct checkpoint_id test_checkpoint_write(const struct test_checkpoint *c);

#endif
