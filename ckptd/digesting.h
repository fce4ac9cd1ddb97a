/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digesting.h - digests of one sealed shard, off the trainer's path, and its rank table.
 */
#ifndef CKPTD_DIGESTING_H
#define CKPTD_DIGESTING_H

#include "ckptd/job.h"

/* Ends in checkpoint_digested(), never inside this call unless memory runs out. */
void digesting_start(struct checkpoint *c, uint32_t rank);

/* A rank table that was opened and is valid. */
struct made_table {
	void *bytes; /* of alloc, unless in_region: the slot's for tables */
	size_t len;
	bool in_region;
	struct digest digest;
	const struct digest *samples; /* in it */
	uint32_t n_samples;
};
/* Any thread; takes as long as opening and digesting the table. The caller keeps the bytes;
 * *ret_view is a view of them. */
struct rank_table;
MUST_CHECK int made_table_open(void *bytes, size_t len, const struct declaration *known,
			       struct made_table *ret,
			       struct rank_table *ret_view);

/* checkpoint.c: takes the table, and fresh: a new region for the slot's tables, or NULL. */
void checkpoint_digested(struct checkpoint *c, uint32_t rank, int status, struct made_table *t,
			 struct region *fresh);
/* Takes the table. */
void checkpoint_table(struct checkpoint *c, uint32_t rank, const struct made_table *t);
/* A sealed slot becomes a shard; takes blobs and one reference of d. */
void checkpoint_attach(struct checkpoint *c, uint32_t rank, struct slot *s, struct declared *d,
		       uint64_t image_len, struct blobs *blobs, struct origin origin);
/* Frees the shard's blobs. */
void shard_drop_blobs(struct shard_state *sh);

#endif
