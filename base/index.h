/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.h - an ordered map of byte strings that may be lost: ckptd's index over its files.
 *
 * Nothing in it is the only copy. A failed write may appear later (I10: "unknown"), so every
 * batch can be repeated. Writes become durable in the order in which they returned: a sync covers
 * all that went before it. CKPT_ECORRUPT means that the index is damaged: close it, open it again
 * (it comes back empty) and rebuild it. Blocking; runs on WORK_INDEX workers.
 * Implementations: storage/index_rocksdb.c, tests/sim/index.c.
 */
#ifndef BASE_INDEX_H
#define BASE_INDEX_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct index;

struct index_entry {
	const void *key;
	size_t key_len;
	const void *value; /* NULL: delete */
	size_t value_len;
};

/* Called with memory that is valid during the call; non-zero ends the walk and is returned. */
typedef int index_fn(void *arg, const void *key, size_t key_len, const void *value,
		     size_t value_len);

struct index_ops {
	/* All entries or none; sync: survives power loss once it returned 0. */
	int (*write)(struct index *, const struct index_entry *entries, size_t n, bool sync);
	/* CKPT_ENOTFOUND when there is no such key. */
	int (*get)(struct index *, const void *key, size_t key_len, index_fn *fn, void *arg);
	/* Walks keys that start with prefix, in order; from the first one at or after `from`, which
	 * starts with prefix too, or NULL: all of them. */
	int (*scan)(struct index *, const void *prefix, size_t prefix_len, const void *from,
		    size_t from_len, index_fn *fn, void *arg);
	void (*close)(struct index *);
};

struct index {
	const struct index_ops *ops;
};

#endif
