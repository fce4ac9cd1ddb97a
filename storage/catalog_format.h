/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_format.h - the bytes of the catalog's keys and values (doc/index-format.md), and batches
 * of them. For the files catalog*.c and their tests only.
 */
#ifndef STORAGE_CATALOG_FORMAT_H
#define STORAGE_CATALOG_FORMAT_H

#include "storage/catalog.h"

#define CATALOG_VERSION 2u

#define CATALOG_KEY_MAX   (1 + 16 + CKPT_NAME_MAX + 1 + 4 + 4)
#define CATALOG_VALUE_MAX 256 /* static asserts in catalog_format.c */

enum {
	CATALOG_CHECKPOINT = 'C',  /* job step attempt -> summary */
	CATALOG_DECLARATION = 'D', /* layout declaration -> first rank: all its shards are there */
	CATALOG_GROUPS = 'G',      /* layout ranks/64 -> which rank's shards each of them has */
	CATALOG_LAYOUT = 'L',      /* layout -> mark: all of it is there, or it is damaged */
	CATALOG_TENSOR = 'T',      /* layout name 0 rank order -> shard */
	CATALOG_SCHEMA = 'V',      /* -> version of all this */
};

struct catalog_key {
	uint8_t bytes[CATALOG_KEY_MAX];
	size_t len;
};

void key_checkpoint(struct catalog_key *k, const struct checkpoint_id *id);
void key_job(struct catalog_key *k, const struct job_id *job); /* NULL: of all jobs */
void key_digest(struct catalog_key *k, uint8_t kind, const struct digest *d);
void key_declaration(struct catalog_key *k, const struct digest *layout,
		     const struct digest *declaration);
/* Ranks [GROUP_RANKS * i, ...). */
#define GROUP_RANKS 64u
void key_groups(struct catalog_key *k, const struct digest *layout, uint32_t i);
/* Without rank and order: the prefix of all shards of a tensor. */
void key_tensor(struct catalog_key *k, const struct digest *layout, const char *name,
		size_t name_len);
void key_add_order(struct catalog_key *k, uint32_t rank, uint32_t order);

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
	const atomic_bool *cancel; /* or NULL: batch_add() fails soon after it was set */
	uint32_t groups[GROUP_RANKS], n_groups; /* of the ranks that were added last */
	bool shared;                            /* some rank has another's shards */
	size_t n, used;
	struct index_entry entries[BATCH_ENTRIES];
	uint8_t bytes[BATCH_BYTES];
};
/* alloc_free() it; NULL: no memory. cancel may be NULL. */
struct catalog_batch *batch_new(struct index *ix, const atomic_bool *cancel);
/* Copies; value NULL deletes. -ECANCELED, else an error is of the index: what was added is unknown.
 */
MUST_CHECK int batch_add(struct catalog_batch *b, const void *key, size_t key_len,
			 const void *value, size_t value_len);
MUST_CHECK int batch_flush(struct catalog_batch *b, bool sync);
bool batch_cancelled(const struct catalog_batch *b);
bool batch_is_full(const struct catalog_batch *b); /* the next one may cause a write */
/* Deletes all that begins with prefix; b is empty before and after. */
MUST_CHECK int batch_delete(struct catalog_batch *b, const void *prefix, size_t len);

/* Sentences: what of, then the index's own. */
int checkpoint_error(struct err *e, int code, const char *what, const struct checkpoint_id *id);
int layout_error(struct err *e, int code, const char *what, const struct digest *layout);

/* A get whose value must be a number; CKPT_ENOTFOUND. */
MUST_CHECK int index_get_u32(struct index *ix, const struct catalog_key *k, uint32_t *ret);

struct layout_mark {
	uint32_t world; /* 0: its files are damaged */
	bool shared;    /* there are groups */
};
/* CKPT_ENOTFOUND */
MUST_CHECK int layout_find(struct index *ix, const struct digest *layout, struct layout_mark *ret);
/* A layout rank by rank, ranks in order from 0; then end, which makes it visible. */
MUST_CHECK int layout_add_rank(struct catalog_batch *b, const struct digest *layout, uint32_t rank,
			       const struct declaration *d);
MUST_CHECK int layout_end(struct catalog_batch *b, const struct digest *layout, uint32_t world);
/* Everything that is below the mark. */
MUST_CHECK int layout_clear(struct catalog_batch *b, const struct digest *layout);

#endif
