/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digesting.h - digests of one sealed shard, off the trainer's path, and its rank table.
 */
#ifndef CKPTD_DIGESTING_H
#define CKPTD_DIGESTING_H

#include "ckptd/job.h"

/* Ends in checkpoint_digested(), never inside this call unless memory runs out. */
void digesting_start(struct checkpoint *c, uint32_t rank);

/* checkpoint.c: takes table (alloc_free()). */
void checkpoint_digested(struct checkpoint *c, uint32_t rank, int status, void *table, size_t len);
/* Takes table unless it fails (-ENOMEM). */
MUST_CHECK int checkpoint_table(struct checkpoint *c, uint32_t rank, void *table, size_t len);
/* A sealed slot becomes a shard; takes blobs and one reference of d. */
void checkpoint_attach(struct checkpoint *c, uint32_t rank, struct slot *s, struct declared *d,
		       uint64_t image_len, struct ledger_blob *blobs, uint32_t n_blobs);

#endif
