/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_plan.h - all that a loading process needs: sources, the digests of their leaves, where
 * chunks lie in files, pieces to place, blobs. Made by ckptd, executed by libckpt and tools.
 *
 * Travels as bytes in a sealed memfd; the receiver parses a private copy and trusts no length.
 * Source i's descriptor is the i-th that came with the message: a memory region (the image starts
 * at byte 0) or a shard file.
 */
#ifndef MODEL_LOAD_PLAN_H
#define MODEL_LOAD_PLAN_H

#include "model/leaves.h"
#include "model/plan.h"

enum load_source_kind { LOAD_MEMORY = 1, LOAD_FILE = 2 };

/*
 * Where one chunk of a file lies. 40 bytes in the formats (placement table and load plan). Leaves
 * that other files have for this one (model/dedup.h) may be missing: what is stored, compressed or
 * not, are the others, one behind the other.
 */
#define CHUNK_LEAVES_MAX 32u /* in geometries in which leaves may be missing */
struct chunk_place {
	uint64_t offset;        /* in the file */
	uint32_t stored;        /* bytes there */
	uint16_t encoding;      /* enum encoding of codec/compress.h */
	uint16_t file;          /* 0: this file; else an older one, by its place in the file list */
	struct digest digest;   /* of the stored bytes; zero when encoding is raw */
	uint32_t missing;       /* bit i: leaf i of the chunk is not stored */
};
#define CHUNK_PLACE_BYTES 40u

struct load_source {
	enum load_source_kind kind;
	uint32_t rank;           /* whose snapshot */
	uint64_t image_len;
	struct geometry geometry;
	const uint8_t *leaves;   /* div_up(image_len, leaf) digests of 16 bytes */
	const uint8_t *places; /* LOAD_FILE: div_up(image_len, chunk) of CHUNK_PLACE_BYTES; no piece
				  and no blob touches a leaf that is missing */
};

struct load_blob {
	char *name; /* NUL-terminated, owned by the plan */
	uint32_t source;
	uint64_t image_offset, bytes;
};

struct load_plan {
	struct load_source *sources;
	uint32_t n_sources;
	struct plan plan;
	struct load_blob *blobs;
	uint32_t n_blobs;
};

struct chunk_place chunk_place_get(const uint8_t *places, uint64_t i);
void chunk_place_put(uint8_t *out, const struct chunk_place *p);
/* Bytes of the leaves of chunk i that are stored, before compression. */
uint32_t chunk_bytes_stored(uint64_t image_len, struct geometry g, uint64_t i, uint32_t missing);
/* Where a leaf of the image begins in them. */
uint32_t chunk_leaf_offset(struct geometry g, uint64_t leaf, uint32_t missing);
/* Whether leaves can be missing at all, and these are leaves of chunk i. */
bool chunk_missing_possible(uint64_t image_len, struct geometry g, uint64_t i, uint32_t missing);
/* Which leaves of an image are stored by its chunks' places: what plan_source.present wants. NULL:
 * all of them. */
MUST_CHECK int places_present(const uint8_t *places, uint64_t image_len, struct geometry g,
			      uint64_t **ret);

MUST_CHECK int load_plan_encode(const struct load_plan *p, struct writer *w);
/* bytes must outlive *ret (leaves and places point into them). target_bytes: of the wanted shards
 * in declared order. Free with load_plan_fini(). */
MUST_CHECK int load_plan_decode(const void *bytes, size_t len, const uint64_t *target_bytes,
				uint32_t n_targets, struct load_plan *ret, struct err *e);
void load_plan_fini(struct load_plan *p);

#endif
