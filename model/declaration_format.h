/* SPDX-License-Identifier: Apache-2.0 */
/*
 * declaration_format.h - where the fields of a declaration's bytes lie (doc/disk-format.md).
 * For the files declaration*.c only.
 */
#ifndef MODEL_DECLARATION_FORMAT_H
#define MODEL_DECLARATION_FORMAT_H

#include "model/declaration.h"
#include "model/format.h"

#define DECLARATION_MAGIC "CKPTDECL"

/* Header, after the common part (model/format.h) */
enum {
	DECL_LEAF = FORMAT_HEAD_BYTES, /* u32 */
	DECL_CHUNK = 52,               /* u32 */
	DECL_SHARDS = 56,              /* u32 */
	DECL_BLOCKS = 60,              /* u32 */
	DECL_IMAGE_BYTES = 64,         /* u64 */
	DECL_FENCE_OFFSET = 72,        /* u64 */
	DECL_FENCE_BYTES = 80,         /* u64 */
	DECL_RESERVED = 88,            /* u64, 0 */
	DECL_FENCE_DIGEST = 96,
};

/* Block: u16 offsets of its entries from its first byte, then the entries. */
#define BLOCK_SHARDS 32u

/* Entry: fixed part, name, global extents, box offsets, box lengths, and if flat start and stop */
enum {
	ENTRY_ORDER = 0,     /* u32 */
	ENTRY_NAME_LEN = 4,  /* u16 */
	ENTRY_DTYPE = 6,     /* u8 */
	ENTRY_NDIM = 7,      /* u8 */
	ENTRY_FLAGS = 8,     /* u32 */
	ENTRY_IMAGE_AT = 12, /* u64 */
	ENTRY_NAME = 20,
};
#define ENTRY_FLAT        1u
#define ENTRY_TRAINED     2u
#define ENTRY_FLAGS_KNOWN 3u
#define ENTRY_BYTES_MAX   (ENTRY_NAME + CKPT_NAME_MAX + CKPT_NDIM_MAX * 24 + 16)
#define BLOCK_BYTES_MAX   (BLOCK_SHARDS * (2 + ENTRY_BYTES_MAX))
_Static_assert(BLOCK_BYTES_MAX <= UINT16_MAX, "entry offsets are u16");

/* Fence: one record per block, then the names, back to back */
enum {
	FENCE_OFFSET = 0,    /* u64: of the block in the declaration */
	FENCE_BYTES = 8,     /* u32: of the block */
	FENCE_FIRST = 12,    /* u32: sorted index of its first shard */
	FENCE_NAME_AT = 16,  /* u32: in the names */
	FENCE_NAME_LEN = 20, /* u16: name of its first shard */
	FENCE_SHARDS = 22,   /* u16 */
	FENCE_DIGEST = 24,   /* of the block's bytes */
	FENCE_RECORD = 40,
};

/* What a checked header says. */
struct declaration_header {
	uint64_t total, image_bytes, fence_offset, fence_bytes;
	uint32_t n_shards, n_blocks;
	struct geometry geometry;
};
MUST_CHECK int declaration_header_check(const uint8_t *header, uint64_t len,
					struct declaration_header *ret, struct err *e);
/* Digest, and that every record lies where it must; the names are in bounds then. */
MUST_CHECK int declaration_fence_check(const uint8_t *header, const struct declaration_header *h,
				       const uint8_t *fence, struct err *e);
/* Digest of block i and where its entries must lie; entries are still unchecked. */
MUST_CHECK int declaration_block_check(const uint8_t *fence, uint32_t i, const uint8_t *block,
				       struct err *e);

/* Where a shard of that many bytes begins when the one before ends at `end`. */
static inline uint64_t image_place(uint64_t end, uint64_t bytes, struct geometry g)
{
	return round_up(end, bytes >= g.leaf ? IMAGE_ALIGN_LARGE : IMAGE_ALIGN);
}

/* s must be checked. */
void entry_write(struct writer *w, const struct shard *s, uint32_t order);
/* Bytes of the entry at p, of which at least ENTRY_NAME are there. */
size_t entry_bytes(const uint8_t *p);
/* p must be a checked entry. */
void entry_get(const uint8_t *p, struct shard *ret);
/* Checks and reads an entry that must be len bytes long. */
MUST_CHECK int entry_check(const uint8_t *p, size_t len, struct shard *ret, struct err *e);
/* Canonical order: name, box offset, start, declared order. Both checked. */
int entry_compare(const uint8_t *a, const uint8_t *b);

static inline const uint8_t *fence_record(const uint8_t *fence, uint32_t i)
{
	return fence + (uint64_t)i * FENCE_RECORD;
}
static inline const char *fence_name(const uint8_t *fence, uint32_t n_blocks, uint32_t i,
				     uint32_t *ret_len)
{
	const uint8_t *record = fence_record(fence, i);

	*ret_len = get_le16(record + FENCE_NAME_LEN);
	return (const char *)fence_record(fence, n_blocks) + get_le32(record + FENCE_NAME_AT);
}
/* Entry k of a checked block of n. */
static inline const uint8_t *block_entry(const uint8_t *block, uint32_t k)
{
	return block + get_le16(block + 2 * k);
}

#endif
