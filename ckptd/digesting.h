/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digesting.h - digests of one sealed shard, off the trainer's path, and its rank table.
 */
#ifndef CKPTD_DIGESTING_H
#define CKPTD_DIGESTING_H

#include "ckptd/job.h"

/* Ends in checkpoint_digested(), never inside this call unless memory runs out. */
void digesting_start(struct checkpoint *c, uint32_t rank);

/* A rank table that was opened: it is good. */
struct made_table {
	void *bytes; /* of alloc, unless in_region: the slot's for tables */
	size_t len;
	bool in_region;
	struct digest digest;
	const struct digest *samples; /* in it */
	uint32_t n_samples;
};
/* On any thread, as long as opening and digesting take. The bytes stay the caller's; a view of them
 * is in *ret_view. */
struct rank_table;
MUST_CHECK int made_table_open(void *bytes, size_t len, struct made_table *ret,
			       struct rank_table *ret_view);

/* checkpoint.c: takes the table, and fresh, a region for tables that the slot had not, or NULL. */
void checkpoint_digested(struct checkpoint *c, uint32_t rank, int status, struct made_table *t,
			 struct region *fresh);
/* Takes the table. */
void checkpoint_table(struct checkpoint *c, uint32_t rank, const struct made_table *t);
/* A sealed slot becomes a shard; takes blobs and one reference of d. */
void checkpoint_attach(struct checkpoint *c, uint32_t rank, struct slot *s, struct declared *d,
		       uint64_t image_len, struct ledger_blob *blobs, uint32_t n_blobs);

#endif
