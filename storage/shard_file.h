/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_file.h - bytes of a shard file: header, chunks, footer. Pure; see doc/disk-format.md.
 *
 *   0                header, DISK_ALIGN bytes
 *   DISK_ALIGN       chunks in order, each at or after the end of the one before, gaps zero
 *   footer_offset    footer, DISK_ALIGN aligned: fixed part, rank table, placement table, list of
 *                    older files (empty so far), digest; zero up to the next DISK_ALIGN
 *   after that       zeros, up to what was reserved
 */
#ifndef STORAGE_SHARD_FILE_H
#define STORAGE_SHARD_FILE_H

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/disk.h"
#include "base/ids.h"

#define SHARD_HEADER_BYTES DISK_ALIGN
#define FOOTER_FIXED_BYTES 96u
#define SHARD_CHUNK_MAX (DISK_TRANSFER_MAX / 2) /* a chunk is read in one transfer */

struct shard_header {
	struct checkpoint_id id;
	uint32_t rank;
	struct geometry geometry;
	uint64_t image_len;
	uint64_t footer_offset, footer_len;
	struct digest footer;
	bool partial; /* some leaves are missing: other files have them (SHARD_LEAVES_MISSING) */
};

void shard_header_encode(const struct shard_header *h, uint8_t out[SHARD_HEADER_BYTES]);
MUST_CHECK int shard_header_decode(const uint8_t in[SHARD_HEADER_BYTES], const char *what,
				   struct shard_header *ret, struct err *e);

/* The footer's parts, in its bytes. */
struct shard_footer_view {
	uint32_t rank;
	uint64_t image_len, stored;
	const uint8_t *table;
	uint64_t table_len;
	const uint8_t *places; /* n_chunks of CHUNK_PLACE_BYTES */
	uint64_t n_chunks;
};

/* Bytes of the footer, not padded; false on overflow. */
MUST_CHECK bool footer_size(uint64_t table_len, uint64_t n_chunks, uint64_t *ret);
/* out: footer_size() zeroed bytes. */
void footer_encode(const struct shard_footer_view *f, uint8_t *out);
MUST_CHECK int footer_decode(const uint8_t *bytes, size_t len, const char *what,
			     struct shard_footer_view *ret, struct err *e);
/* Every place is inside the file, in order, of a known encoding and of a possible size; leaves are
 * missing if and only if the header says so. */
MUST_CHECK int footer_check_places(const struct shard_footer_view *f, const struct shard_header *h,
				   const char *what, struct err *e);
/* What O_DIRECT needs where chunks of a file begin and end: DISK_ALIGN, or 1: it cannot be used. */
uint32_t shard_block(struct geometry g, bool partial);
/* Raw bytes of chunk i. */
uint32_t chunk_length(uint64_t image_len, struct geometry g, uint64_t i);

/* Memory for O_DIRECT: *ret_block is to be freed, the result (len zeroed bytes) is inside it. */
static inline uint8_t *alloc_aligned(uint64_t len, void **ret_block)
{
	uint64_t size;
	void *p;

	if (!size_add(len, DISK_ALIGN, &size) || !(p = alloc_zero(size)))
		return NULL;
	*ret_block = p;
	return (uint8_t *)(uintptr_t)round_up((uintptr_t)p, DISK_ALIGN);
}

#endif
