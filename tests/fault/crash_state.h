/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crash_state.h - the training state of the crash-point run: bytes that follow from (epoch, step)
 * alone, so that whoever reads them back needs no copy.
 */
#ifndef TESTS_FAULT_CRASH_STATE_H
#define TESTS_FAULT_CRASH_STATE_H

#include "ckptd/node.h"
#include "tests/lib/hand.h"

#define CRASH_JOB "crash"
#define CRASH_SHARDS 2u
#define CRASH_BLOB_BYTES 100u

struct crash_step {
	uint64_t epoch, step;
};

void crash_node_options(struct node_options *o);
/* "w": f32, a box along its one dimension; "m": bf16, a flat range of two. Split over the ranks
 * as the epoch says. */
void crash_shards(uint64_t epoch, uint32_t rank, uint32_t world, struct shard ret[CRASH_SHARDS]);
uint64_t crash_shard_bytes(const struct shard *s);
/* A hand_fill_fn; arg is a struct crash_step. */
void crash_fill(void *arg, const struct shard *s, uint8_t *out);
void crash_blob(const struct crash_step *s, uint8_t out[CRASH_BLOB_BYTES]);

#endif
