/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - one data folder: its format, its lock, the names in it. See doc/disk-format.md.
 *
 *   jobs/<job-id>/log/<n>                            coord/single.c
 *   jobs/<job-id>/<step>.<attempt>/rank-<r>.shard    storage/shard_writer.c
 *   jobs/<job-id>/<step>.<attempt>/COMMIT            storage/commit_file.c
 *   declarations/<digest>  layouts/<digest>          storage/objects.c
 *   spare/<n>  index/  LOCK  FORMAT  ID
 *
 * All of storage/ blocks and runs on workers or in tools; nothing here knows the loop.
 */
#ifndef STORAGE_STORE_H
#define STORAGE_STORE_H

#include <stdatomic.h>

#include "base/disk.h"
#include "base/ids.h"
#include "base/rng.h"

struct object_uses; /* storage/object_uses.h */
struct spares; /* storage/spare.c */

struct store {
	struct disk *disk;
	struct geometry geometry; /* for new files; each file carries its own */
	uint32_t transfer;        /* bytes of one queued transfer, a multiple of the chunk */
	int compression;          /* zstd level; 0: off */
	uint64_t reserve;         /* bytes of the file system that new shard files leave free */
	struct disk_file *lock;   /* held while open for writing */
	uint64_t folder_id;       /* FOLDER_ID_NONE: not asked for */
	_Atomic uint64_t serial;  /* for names of temporaries and spare files: only rises */
	atomic_bool jobs_unsynced; /* the name of a job's new folder is not yet durable */
	struct spares *spares; /* files in spare/ that may be taken; NULL: read-only */
	struct object_uses *uses; /* NULL: read-only */
};

struct store_options {
	struct geometry geometry; /* all zero: the default */
	uint32_t transfer;        /* 0: 2 MiB; rounded up to DISK_ALIGN and cut at the maximum */
	int compression;
	uint64_t reserve;
	bool read_only; /* tools: no lock, nothing is created */
	const char *who; /* takes LOCK, as store_lock() has it; NULL: a ckptd */
	struct rng *rng; /* reads ID, and makes it where there is none; NULL: neither */
	uint64_t folder_id; /* which it gets then; FOLDER_ID_NONE: a random one */
};

/*
 * LOCK of the data folder, until it is closed. who: NULL, a ckptd; or a few words about a tool that
 * gives it back by itself: whoever comes meanwhile is told. -EBUSY: e says by which process the
 * folder is in use, and what to do.
 */
#define LOCK_WHO_MAX 150
MUST_CHECK int store_lock(struct disk *disk, const char *who, struct disk_file **ret,
			  struct err *e);

/* Makes the folders and FORMAT when they are missing, takes LOCK (-EBUSY, as above).
 * CKPT_EVERSION: a newer ckptd made it; CKPT_ENOTFOUND: read_only, and there is none. */
MUST_CHECK int store_open(struct disk *disk, const struct store_options *o, struct store *ret,
			  struct err *e);
void store_close(struct store *s);

/* Names; each fits DISK_PATH_MAX + 1. */
void path_job(char *buf, const struct job_id *job);
void path_log(char *buf, const struct job_id *job);
void path_log_new(char *buf, const struct job_id *job); /* one that is begun anew: relog.c */
void path_checkpoint(char *buf, const struct checkpoint_id *id);
void path_shard(char *buf, const struct checkpoint_id *id, uint32_t rank);
void path_commit(char *buf, const struct checkpoint_id *id);
/* "<step>.<attempt>" back to its parts; -EINVAL. */
MUST_CHECK int checkpoint_name_parse(const char *name, uint64_t *ret_step,
				     struct attempt_id *ret_attempt);

/* Whole small files. read: at most max bytes (-EFBIG), the caller frees. publish: temporary,
 * fdatasync, rename, fsync of the folder: afterwards path has these bytes or what it had. place:
 * the same without the last step. */
MUST_CHECK int store_read_file(struct store *s, const char *path, size_t max, void **ret,
			       size_t *ret_len);
MUST_CHECK int store_publish_file(struct store *s, const char *dir, const char *name,
				  const void *bytes, size_t len);
MUST_CHECK int store_place_file(struct store *s, const char *dir, const char *name,
				const void *bytes, size_t len);
/* Immutable objects under declarations/ and layouts/, named by the digest of their bytes: written
 * once, verified when they exist and anew when they are damaged. get: CKPT_ENOTFOUND,
 * CKPT_ECORRUPT. */
MUST_CHECK int store_put_object(struct store *s, const char *folder, const struct digest *digest,
				const void *bytes, size_t len, struct err *e);
MUST_CHECK int store_get_object(struct store *s, const char *folder, const struct digest *digest,
				size_t max, void **ret, size_t *ret_len, struct err *e);

#endif
