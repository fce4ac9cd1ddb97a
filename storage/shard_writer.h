/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_writer.h - one rank's image into one file.
 *
 *   begin    a file from spare/ or a new one gets its final name and its space (only COMMIT makes
 *            it visible): running out of space is known before a byte is written
 *   image    chunks, by queued O_DIRECT transfers, compressed if that is on and pays
 *   finish   footer (rank table, placement table), then header, then one fdatasync, then close
 *   abandon  instead of finish: closes and unlinks; what was written is worth nothing
 *
 * A failed or short write or a failed sync is final for the file: abandon it.
 */
#ifndef STORAGE_SHARD_WRITER_H
#define STORAGE_SHARD_WRITER_H

#include <stdatomic.h>

#include "storage/store.h"

struct shard_writer;

/* What COMMIT says of one file. */
struct shard_footer {
	uint32_t rank;
	uint64_t footer_offset, footer_len; /* bytes */
	struct digest footer;               /* of the footer's bytes */
	uint64_t table_len;
	struct digest table;                /* of the rank table: the root's line */
	uint64_t stored;                    /* bytes of chunks in the file */
};

/*
 * Space that begin reserves for a file whose leaves have present_len of the image's bytes
 * (image_len: all); false: no file can have as much.
 */
MUST_CHECK bool shard_file_max(const struct store *s, uint64_t image_len, uint64_t present_len,
			       uint64_t table_max, uint64_t *ret);
/* table_max: an upper bound of the rank table's length, to reserve space for. The checkpoint's
 * folder is made if it is missing. */
MUST_CHECK int shard_begin(struct store *s, const struct checkpoint_id *id, uint32_t rank,
			   uint64_t image_len, uint64_t table_max, struct shard_writer **ret,
			   struct err *e);
/*
 * The same for a file that lacks leaves: present says which it has (model/leaves.h; NULL: all) and
 * stays valid until finish. The others must be in other files of the checkpoint. -EINVAL where the
 * geometry has no room to say so (CHUNK_LEAVES_MAX).
 */
MUST_CHECK int shard_begin_partial(struct store *s, const struct checkpoint_id *id, uint32_t rank,
				   uint64_t image_len, uint64_t table_max, const uint64_t *present,
				   struct shard_writer **ret, struct err *e);
/*
 * A file in place of one that is damaged: a temporary beside it, until shard_replace() has read it
 * again from the disk, compared every leaf, and given it the name. The damaged file stays until
 * then. present: as in shard_begin_partial(). Where its footer is not that of the damaged file
 * COMMIT is published anew after that.
 */
MUST_CHECK int shard_begin_again(struct store *s, const struct checkpoint_id *id, uint32_t rank,
				 uint64_t image_len, uint64_t table_max, const uint64_t *present,
				 struct shard_writer **ret, struct err *e);
MUST_CHECK int shard_replace(struct store *s, const struct checkpoint_id *id,
			     const struct shard_footer *f, struct err *e);
/* Removes the temporary of a rank that was not put in place; there need be none. */
void shard_forget_again(struct store *s, const struct checkpoint_id *id, uint32_t rank);
/* Writes the image, or the leaves of it that are to be stored (must stay valid and unchanged until
 * return). The image may be read up to the next multiple of DISK_ALIGN. element: bytes per element
 * for compression planes, 0 unknown. -ECANCELED when *cancel became true. */
MUST_CHECK int shard_write_image(struct shard_writer *w, struct disk_queue *q, const void *image,
				 uint32_t element, const atomic_bool *cancel, struct err *e);
MUST_CHECK int shard_finish(struct shard_writer *w, const void *table, size_t table_len,
			    struct shard_footer *ret, struct err *e); /* frees w in every case */
/* Frees it and unlinks its file. */
void shard_abandon(struct shard_writer *w);
/* Frees it and leaves the file, which the next start takes away. */
void shard_forget(struct shard_writer *w);

#endif
