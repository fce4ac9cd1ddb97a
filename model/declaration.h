/* SPDX-License-Identifier: Apache-2.0 */
/*
 * declaration.h - one rank's shards as canonical bytes, and their place in the rank's image.
 *
 * The image is the rank's state as one linear array: shards in declared order, each at a multiple
 * of 64 bytes, of 4096 when it has a leaf or more (so that large shards can be read in place and
 * by O_DIRECT), then, at a multiple of 4096, the blobs of one save in their order, each at a
 * multiple of 64. Gaps are zero. Chunk i is image bytes [i * chunk, (i + 1) * chunk), leaf j
 * [j * leaf, (j + 1) * leaf), the last ones shorter.
 *
 * The bytes (version 1, doc/disk-format.md) hold a header, the shards sorted by (name, box offset,
 * start) in blocks, and a fence index (first name of each block): one lookup reads the fence and
 * one block, so that a million shards are looked up without reading them all. The declared order
 * is kept as a number in each entry. Equal declarations have equal bytes; their digest names them.
 */
#ifndef MODEL_DECLARATION_H
#define MODEL_DECLARATION_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/ids.h"
#include "model/tensor.h"

#define DECLARATION_BYTES_MAX (1u << 28)
#define IMAGE_BYTES_MAX       ((uint64_t)1 << 56)
#define IMAGE_ALIGN           64u   /* of every shard and blob */
#define IMAGE_ALIGN_LARGE     4096u /* of a shard of a leaf or more, and of the first blob */

struct declaration_builder; /* shards in declared order */

MUST_CHECK int declaration_builder_new(struct geometry g, struct declaration_builder **ret);
void declaration_builder_free(struct declaration_builder *b);
/* Checks and copies (image_offset and bytes of s are ours to say); returns the index. */
MUST_CHECK int declaration_add(struct declaration_builder *b, const struct shard *s, struct err *e);
/*
 * Canonical bytes into *ret (the caller frees them with alloc_free()). Refuses shards of the same
 * name that share an element or differ in dtype or global shape: it takes all of them to find
 * that out in O(n log n).
 */
MUST_CHECK int declaration_finish(struct declaration_builder *b, void **ret, size_t *ret_len,
				  struct err *e);

/* A view of checked bytes, which must outlive it. Cheap to copy. */
struct declaration {
	const uint8_t *bytes;
	size_t len;
	uint32_t n_shards, n_blocks;
	uint64_t image_bytes; /* end of the last shard: where blobs may begin, not rounded */
	struct geometry geometry;
	struct digest names; /* equal where two have the same names, however cut; else not */
	uint32_t n_names;    /* different ones */
};

/*
 * Checks everything: digests, that the bytes are the canonical ones of their shards, that no
 * element is declared twice. CKPT_EPROTO: not a declaration; CKPT_ECORRUPT: damaged; CKPT_EVERSION:
 * made by a newer version.
 */
MUST_CHECK int declaration_open(const void *bytes, size_t len, struct declaration *ret,
				struct err *e);
/* The same for what is being declared, and not stored yet. CKPT_EPROTO also for shards of a tensor
 * that lie so that it takes too long to find whether two overlap, which no cut of a framework does.
 * -ECANCELED soon after *cancel was set; NULL: it cannot be cancelled. */
MUST_CHECK int declaration_open_until(const void *bytes, size_t len, const atomic_bool *cancel,
				      struct declaration *ret, struct err *e);
/* i in sorted order; the shard's name points into the bytes. */
void declaration_get(const struct declaration *d, uint32_t i, struct shard *ret);
uint32_t declaration_order(const struct declaration *d, uint32_t i); /* declared index of i */
/* The bytes of an element of the dtype that has most of the shards' bytes, for byte planes; 0: no
 * shard has any. It looks at every shard. */
uint32_t declaration_element(const struct declaration *d);
/* First sorted index with this name and how many there are; 0 when there is none. */
uint32_t declaration_find(const struct declaration *d, const char *name, uint32_t name_len,
			  uint32_t *ret_first);
/* First sorted index >= from whose name is not before this one; n_shards when there is none. Cheap
 * when that is near: for walking two declarations side by side. */
uint32_t declaration_seek(const struct declaration *d, uint32_t from, const char *name,
			  uint32_t name_len);
/* The name alone of i in sorted order, not NUL-terminated. */
const char *declaration_name(const struct declaration *d, uint32_t i, uint32_t *ret_len);
/* Whether two are the same, told by their headers, which fix all the rest; and a number that is
 * then equal. */
bool declaration_same(const struct declaration *a, const struct declaration *b);
uint64_t declaration_hash(const struct declaration *d, uint64_t key);
/*
 * Whether shards of one name, here and there, are of the same dtype, global shape and elements of
 * the same box; and a number that is then equal, by a key (codec/digest.h).
 * They are read where they lie.
 */
bool declaration_same_place(const struct declaration *a, uint32_t i, const struct declaration *b,
			    uint32_t k);
uint64_t declaration_place_hash(const struct declaration *d, uint32_t i, uint64_t key);
struct digest declaration_digest(const void *bytes, size_t len);

/*
 * The same lookup over bytes that are not in memory: read() fills len bytes from offset. Reads the
 * header, the fence (once: keep the struct) and one or a few blocks per lookup.
 */
typedef int declaration_read_fn(void *arg, uint64_t offset, void *buf, size_t len);
struct declaration_lookup;
MUST_CHECK int declaration_lookup_open(declaration_read_fn *read, void *arg, uint64_t len,
				       struct declaration_lookup **ret, struct err *e);
/*
 * Calls fn for each shard of that name, in sorted order; the struct is valid during the call. What
 * fn returns other than 0 ends the walk and is returned, else how many shards there were. Every
 * block that is read is checked against its digest: CKPT_ECORRUPT.
 */
typedef int declaration_shard_fn(void *arg, const struct shard *s);
MUST_CHECK int declaration_lookup(struct declaration_lookup *l, const char *name,
				  uint32_t name_len, declaration_shard_fn *fn, void *arg);
void declaration_lookup_free(struct declaration_lookup *l);

/* Layout: digest over one line per rank (rank, declaration digest), ranks in order. */
struct digest layout_digest(const struct digest *declarations, uint32_t world);

#endif
