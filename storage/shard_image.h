/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_image.h - the writer of one shard file as its two halves see it: shard_writer.c (begin,
 * finish) and shard_image.c (the chunks) or shard_stream.c (chunks that come one by one).
 */
#ifndef STORAGE_SHARD_IMAGE_H
#define STORAGE_SHARD_IMAGE_H

#include "model/load_plan.h"
#include "storage/shard_file.h"
#include "storage/shard_writer.h"

#define IMAGE_IOS 32u

struct shard_writer {
	struct store *store;
	struct disk_file *file;
	struct checkpoint_id id;
	uint32_t rank;
	uint64_t image_len, n_chunks;
	const uint64_t *present; /* leaves to be stored; NULL: all */
	uint64_t raw_bytes;      /* of these */
	uint64_t table_max,
		reserved; /* bytes of the table and of the file that space is kept for */
	uint8_t *places;              /* n_chunks of CHUNK_PLACE_BYTES, filled by the image */
	uint64_t data_end;            /* end of the last chunk in the file */
	uint64_t stored;              /* bytes of all chunks in the file */
	uint8_t tail[DISK_ALIGN]; /* end of a raw image that fills no block: goes before the footer
				   */
	uint32_t tail_len;
	bool written;
	unsigned in_flight;
	unsigned n_free;
	struct disk_io *free[IMAGE_IOS];
	struct disk_io ios[IMAGE_IOS];
	char path[DISK_PATH_MAX + 1];
};

/* Packs one chunk into buffer, or leaves it raw, and sets what its place says but for the offset
 * and missing leaves. Returns the bytes to write, aligned and padded with zeros: buffer, or raw
 * itself. */
struct compressor;
void *chunk_pack(struct compressor *c, const uint8_t *raw, uint32_t raw_len, uint32_t element,
		 uint8_t *buffer, uint32_t buffer_len, struct chunk_place *place);
/* Like shard_begin(), with the file that an earlier process began: CKPT_ENOTFOUND if it is gone. */
MUST_CHECK int shard_resume(struct store *s, const struct checkpoint_id *id, uint32_t rank,
			    uint64_t image_len, uint64_t table_max, struct shard_writer **ret,
			    struct err *e);

#endif
