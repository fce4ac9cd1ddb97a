/* SPDX-License-Identifier: Apache-2.0 */
/*
 * commit_file.h - COMMIT: what makes a checkpoint's files a checkpoint.
 *
 * Published last: fsync of the checkpoint's folder (its shard files' names), then COMMIT by
 * temporary, fdatasync, rename, fsync of the folder and of its parent. When publish returned 0 the
 * checkpoint is DURABLE (I7). It holds all that a rebuild needs without log or index (I8).
 */
#ifndef STORAGE_COMMIT_FILE_H
#define STORAGE_COMMIT_FILE_H

#include "storage/shard_writer.h"

#define COMMIT_FILE_MAX (64u << 20)

struct commit_file {
	struct checkpoint_id id;
	char job_name[CKPT_JOB_MAX + 1];
	uint32_t uid;
	uint64_t incarnation, record_n; /* position of the commit record in the log */
	uint64_t epoch;
	uint64_t wall_ns;
	struct digest root, layout;
	uint32_t world;
	uint64_t bytes;                 /* of all images */
	struct shard_footer *shards;    /* world of them, by rank */
	void *job_record;               /* record 0, verbatim */
	uint32_t job_record_len;
};

void commit_file_fini(struct commit_file *c);
/* What the shard files hold on disk: less than `bytes` where ranks share or chunks are compressed.
 */
uint64_t commit_disk_bytes(const struct commit_file *c);
MUST_CHECK int commit_file_encode(const struct commit_file *c, void **ret, size_t *ret_len);
/* Checks digest, sizes, and that the root is that of its lines. */
MUST_CHECK int commit_file_decode(const void *bytes, size_t len, struct commit_file *ret,
				  struct err *e);
MUST_CHECK int commit_publish(struct store *s, const struct commit_file *c, struct err *e);
/* Of one that commit_publish() may not have ended for: after 0 it has. */
MUST_CHECK int commit_make_durable(struct store *s, const struct checkpoint_id *id, struct err *e);
/* CKPT_ENOTFOUND when there is none; CKPT_ECORRUPT when it is damaged. */
MUST_CHECK int commit_read(struct store *s, const struct checkpoint_id *id,
			   struct commit_file *ret, struct err *e);

#endif
