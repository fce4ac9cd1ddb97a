/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_format.h - the bytes of the catalog's keys and values (doc/index-format.md), and batches
 * of them. For the files catalog*.c and their tests only.
 */
#ifndef STORAGE_CATALOG_FORMAT_H
#define STORAGE_CATALOG_FORMAT_H

#include "storage/catalog.h"

#define CATALOG_VERSION 1u

#define CATALOG_KEY_MAX (1 + 16 + CKPT_NAME_MAX + 1 + 4)
#define CATALOG_VALUE_MAX 256 /* static asserts in catalog_format.c */

enum {
	CATALOG_CHECKPOINT = 'C',  /* job step attempt -> summary */
	CATALOG_DECLARATION = 'D', /* declaration -> number of shards: all of them are there */
	CATALOG_LAYOUT = 'L',      /* layout -> world: all of it is there, or 0: it is damaged */
				   /* layout rank -> declaration */
	CATALOG_TENSOR = 'T',      /* declaration name 0 order -> shard */
	CATALOG_SCHEMA = 'V',      /* -> version of all this */
};

struct catalog_key {
	uint8_t bytes[CATALOG_KEY_MAX];
	size_t len;
};

void key_checkpoint(struct catalog_key *k, const struct checkpoint_id *id);
void key_job(struct catalog_key *k, const struct job_id *job); /* NULL: of all jobs */
void key_digest(struct catalog_key *k, uint8_t kind, const struct digest *d);
void key_layout_rank(struct catalog_key *k, const struct digest *layout, uint32_t rank);
/* Without the order: the prefix of all shards of a tensor. */
void key_tensor(struct catalog_key *k, const struct digest *declaration, const char *name,
		size_t name_len);
void key_add_order(struct catalog_key *k, uint32_t order);

/* Values: the length that was written; get: CKPT_ECORRUPT. */
size_t checkpoint_encode(uint8_t buf[CATALOG_VALUE_MAX], const struct catalog_entry *c);
MUST_CHECK int checkpoint_decode(const void *key, size_t key_len, const void *value,
				 size_t value_len, struct catalog_entry *ret);
size_t shard_encode(uint8_t buf[CATALOG_VALUE_MAX], const struct shard *s);
/* The name is that of the key; s is checked. */
MUST_CHECK int shard_decode(const char *name, size_t name_len, const void *value, size_t value_len,
			    struct shard *ret);

/* Entries on their way into the index: written whenever it is full, so memory is bounded. */
#define BATCH_ENTRIES 1024
#define BATCH_BYTES (256u << 10)
struct catalog_batch {
	struct index *ix;
	size_t n, used;
	struct index_entry entries[BATCH_ENTRIES];
	uint8_t bytes[BATCH_BYTES];
};
struct catalog_batch *batch_new(struct index *ix); /* alloc_free() it; NULL: no memory */
/* Copies; value NULL deletes. An error is of the index: what was added is unknown. */
MUST_CHECK int batch_add(struct catalog_batch *b, const void *key, size_t key_len,
			 const void *value, size_t value_len);
MUST_CHECK int batch_flush(struct catalog_batch *b, bool sync);
bool batch_is_full(const struct catalog_batch *b); /* the next one may cause a write */
/* Deletes all that begins with prefix; b is empty before and after. */
MUST_CHECK int batch_delete(struct catalog_batch *b, const void *prefix, size_t len);

/* Sentences: what of, then the index's own. */
int checkpoint_error(struct err *e, int code, const char *what, const struct checkpoint_id *id);
int layout_error(struct err *e, int code, const char *what, const struct digest *layout);

/* A get whose value must be a number; CKPT_ENOTFOUND. */
MUST_CHECK int index_get_u32(struct index *ix, const struct catalog_key *k, uint32_t *ret);

/* A layout rank by rank, ranks in order; then end, which makes it visible. */
MUST_CHECK int layout_add_rank(struct catalog_batch *b, const struct digest *layout, uint32_t rank,
			       const struct declaration *d);
MUST_CHECK int layout_end(struct catalog_batch *b, const struct digest *layout, uint32_t world);

#endif
