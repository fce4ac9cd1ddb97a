/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recover.h - what a data folder holds, from its files alone (I8), and how it is taken away.
 */
#ifndef STORAGE_RECOVER_H
#define STORAGE_RECOVER_H

#include "storage/commit_file.h"

/* Jobs that have a folder. */
typedef int store_job_fn(void *arg, const struct job_id *job);
MUST_CHECK int store_each_job(struct store *s, store_job_fn *fn, void *arg, struct err *e);

/* Checkpoints of a job, in no order. commit is NULL when there is no readable COMMIT: then why
 * says so, and the folder is a leftover (-> checkpoint_discard) or damaged (kept, reported). */
typedef int store_checkpoint_fn(void *arg, const struct checkpoint_id *id,
				const struct commit_file *commit, const struct err *why);
MUST_CHECK int store_each_checkpoint(struct store *s, const struct job_id *job,
				     store_checkpoint_fn *fn, void *arg, struct err *e);

/*
 * Expiry, after its record is in the log: unlink COMMIT, fsync; then each shard: to spare/ if it
 * may be recycled (storage/spare.h), else unlink; then the folder. Repeatable at any point after a
 * crash. keep_spare: bytes that spare/ may hold; 0 unless this process wrote all of its files and
 * gave no descriptor of them to another one.
 */
MUST_CHECK int checkpoint_expire(struct store *s, const struct checkpoint_id *id,
				 uint64_t keep_spare, struct err *e);
/* A folder that never got a COMMIT (aborted or crashed persist). */
MUST_CHECK int checkpoint_discard(struct store *s, const struct checkpoint_id *id, struct err *e);

#endif
