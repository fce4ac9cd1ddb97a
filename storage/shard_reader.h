/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_reader.h - one shard file, opened for reading under a shared lock (so that it cannot be
 * recycled), its footer checked against COMMIT, its rank table against the root's line.
 */
#ifndef STORAGE_SHARD_READER_H
#define STORAGE_SHARD_READER_H

#include "model/load_plan.h"
#include "storage/commit_file.h"

struct shard_reader {
	struct store *store;
	struct disk_file *file;
	struct disk_file *cached; /* the same through the page cache; NULL: not opened */
	void *footer;            /* owns the bytes that table and places point into */
	struct rank_table table;
	const uint8_t *places;   /* as in struct load_source */
	uint64_t n_chunks;
	uint64_t *present;       /* the leaves that it has, for plan_source.present; NULL: all */
	uint64_t footer_offset;  /* end of the chunks and of the gap behind them */
};

/* Whether an error of one of these functions says that the file is not what was written, or cannot
 * be read: the copy is bad. Any other one is of this process, and of this moment. */
bool shard_is_bad(int code);
/* CKPT_ENOTFOUND: the file is gone, or is being recycled; CKPT_ECORRUPT, CKPT_EPROTO: damaged;
 * CKPT_EVERSION: it says that a newer program wrote it. */
MUST_CHECK int shard_open(struct store *s, const struct checkpoint_id *id,
			  const struct shard_footer *f, struct shard_reader *ret, struct err *e);
/* The same of the file that shard_begin_again() and shard_finish() have made. */
MUST_CHECK int shard_open_again(struct store *s, const struct checkpoint_id *id,
				const struct shard_footer *f, struct shard_reader *ret,
				struct err *e);
/* What COMMIT would say of a rank's file, by the file alone: header, footer and rank table fit each
 * other and this checkpoint; the chunks are not read. CKPT_ENOTFOUND: it is not there; CKPT_ESTATE:
 * it has no header yet, as one that was being written; else as above. */
MUST_CHECK int shard_find(struct store *s, const struct checkpoint_id *id, uint32_t rank,
			  struct shard_footer *ret, struct err *e);
void shard_close(struct shard_reader *r);

/*
 * Opens it a second time, under a lock of its own, to be read through the page cache: several
 * processes that want the same bytes read them from the disk once. r->file stays what tells
 * whether what they read is what is stored.
 */
MUST_CHECK int shard_open_cached(struct shard_reader *r, const struct checkpoint_id *id,
				 struct err *e);
/* The page cache gives back what it holds of a checkpoint's file. */
void shard_uncache(struct store *s, const struct checkpoint_id *id, uint32_t rank);

/* One chunk, raw (of a file that lacks leaves: those that it has, one behind the other), digests of
 * its leaves checked: CKPT_ECORRUPT names leaf and tensor. scratch: at least 2 * chunk bytes,
 * DISK_ALIGN aligned; the raw bytes are at *ret inside it. */
struct compressor;
MUST_CHECK int shard_read_chunk(struct shard_reader *r, uint64_t chunk, struct compressor *c,
				void *scratch, const void **ret, size_t *ret_len, struct err *e);
/* The same for the chunk of one leaf, whose bytes nobody wants. */
MUST_CHECK int shard_check_leaf(struct shard_reader *r, uint64_t leaf, struct err *e);
/* The tensor (or blob) that holds an image offset, as words for a message. */
void shard_describe(const struct rank_table *t, uint64_t image_offset, char *buf, size_t size);

/* Reads everything of one rank again, bounded memory, q deep; progress (may be NULL) is told
 * bytes done and may return non-zero to end with -ECANCELED. Goes on after a bad leaf: *ret_bad
 * counts them and report (may be NULL) gets a sentence each. */
struct verify_hooks {
	int (*progress)(void *arg, uint64_t bytes);
	void (*report)(void *arg, const char *sentence);
	void *arg;
};
MUST_CHECK int shard_verify(struct shard_reader *r, const struct verify_hooks *h,
			    uint64_t *ret_bad, struct err *e);
/* The same for n chunks from the first on. */
MUST_CHECK int shard_verify_some(struct shard_reader *r, uint64_t first, uint64_t n,
				 const struct verify_hooks *h, uint64_t *ret_bad, struct err *e);

#endif
