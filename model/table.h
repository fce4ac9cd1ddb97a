/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table.h - rank table: all that the root covers of one rank's snapshot, the same in every tier.
 *
 * Sections (doc/disk-format.md): header with magic, feature sets, geometry, rank, world, image
 * length; the declaration's bytes; blobs (name, image offset, length); leaf digests; samples.
 * A chunk's digest is the digest of its leaves' digests and is not stored. Ends with a digest of
 * everything before it, so that a torn table is known as such before the root is at hand.
 */
#ifndef MODEL_TABLE_H
#define MODEL_TABLE_H

#include "base/bytes.h"
#include "base/ids.h"
#include "model/declaration.h"

#define TABLE_SAMPLES_MAX 64
#define TABLE_BLOBS_MAX   65536

struct blob_entry {
	const char *name; /* not NUL-terminated */
	uint32_t name_len;
	uint64_t image_offset, bytes;
};

struct rank_table {
	const uint8_t *bytes;
	size_t len;
	uint32_t rank, world;
	struct geometry geometry;
	uint64_t image_len;   /* end of the last shard or blob */
	struct declaration declaration;
	uint32_t n_blobs;
	const uint8_t *blobs; /* the section; the table of offsets comes first */
	size_t blobs_len;
	uint64_t n_leaves;    /* div_up(image_len, leaf) */
	const uint8_t *leaves; /* n_leaves * 16 */
	uint32_t n_samples;
	const uint8_t *samples; /* n_samples * 16: digests of parts of trained shards (below) */
};

struct rank_table_parts {
	uint32_t rank, world;
	struct geometry geometry;
	uint64_t image_len;
	const void *declaration;
	size_t declaration_len;
	const struct declaration *view; /* of that, which has been checked; NULL: it has not */
	const struct blob_entry *blobs;
	uint32_t n_blobs;
	const struct digest *leaves; /* div_up(image_len, leaf) */
	const struct digest *samples;
	uint32_t n_samples;
};

/*
 * Sets image_offset of each blob, whose bytes are given, to where the image has it, and *ret to
 * the image's length. -E2BIG when that is more than IMAGE_BYTES_MAX.
 */
MUST_CHECK int blobs_place(const struct declaration *d, struct blob_entry *blobs, uint32_t n,
			   uint64_t *ret_image_len);

/* Refuses parts that do not fit together, two blobs of one name, and blobs that blobs_place() puts
 * elsewhere. */
MUST_CHECK int rank_table_build(const struct rank_table_parts *parts, void **ret, size_t *ret_len,
				struct err *e);
/*
 * Checks every field and the table's own digest. The bytes must outlive the view. CKPT_EPROTO: not
 * a rank table; CKPT_ECORRUPT: damaged; CKPT_EVERSION: made by a newer version.
 */
MUST_CHECK int rank_table_open(const void *bytes, size_t len, struct rank_table *ret,
			       struct err *e);
/* The same. A declaration takes long to check: one that has the same bytes as known, which has been
 * checked, is not checked again. */
MUST_CHECK int rank_table_open_known(const void *bytes, size_t len, const struct declaration *known,
				     struct rank_table *ret, struct err *e);
/* Bytes that a table has at most whose n_blobs names have so many together; UINT64_MAX: there is no
 * such number. */
uint64_t rank_table_bytes(uint64_t declaration_len, uint64_t image_len, uint32_t leaf,
			  uint64_t n_blobs, uint64_t names_len);
/* -EINVAL when there is no blob i. */
MUST_CHECK int rank_table_blob(const struct rank_table *t, uint32_t i, struct blob_entry *ret);
struct digest rank_table_leaf(const struct rank_table *t, uint64_t i);
struct digest rank_table_digest(const struct rank_table *t); /* over all its bytes */

/*
 * Which parts of the image are sampled for the stale-snapshot alarm: for up to TABLE_SAMPLES_MAX
 * trained shards spread over the declaration, up to 4 pieces of at most 16 KiB, spread over the
 * shard. fn is called with each piece of sample i in order; the sample's digest is over them all.
 * Returns how many samples there are; fn may be NULL.
 */
typedef void sample_piece_fn(void *arg, uint32_t sample, uint64_t image_offset, uint64_t len);
uint32_t rank_table_sample_pieces(const struct declaration *d, sample_piece_fn *fn, void *arg);

/* Root: digest over one line per rank (rank, length, digest of its table), ranks in order. */
struct rank_line {
	uint32_t rank;
	uint64_t table_len;
	struct digest table;
};
struct digest root_digest(const struct rank_line *lines, uint32_t world);

#endif
