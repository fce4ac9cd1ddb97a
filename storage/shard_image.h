/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_image.h - the writer of one shard file as its two halves see it: shard_writer.c (begin,
 * finish) and shard_image.c (the chunks).
 */
#ifndef STORAGE_SHARD_IMAGE_H
#define STORAGE_SHARD_IMAGE_H

#include "storage/shard_file.h"
#include "storage/shard_writer.h"

#define IMAGE_IOS 32u

struct shard_writer {
	struct store *store;
	struct disk_file *file;
	struct checkpoint_id id;
	uint32_t rank;
	uint64_t image_len, n_chunks;
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

#endif
