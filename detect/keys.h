/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keys.h - numbers to places in an array: a hash table of the simplest kind.
 *
 * A key is 64 bits and not UINT64_MAX, a value 32. It grows by doubling; what fails to grow stays
 * as it was. Pure memory, one thread.
 */
#ifndef DETECT_KEYS_H
#define DETECT_KEYS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define KEY_NONE UINT32_MAX

struct key_place {
	uint64_t key; /* plus 1; 0: free */
	uint32_t value;
};
struct keys {
	struct key_place *places; /* NULL: nothing yet */
	uint32_t n, cap;          /* cap: 0 or a power of two */
};

static inline uint64_t key_pair(uint32_t a, uint32_t b)
{
	return (uint64_t)a << 32 | b;
}
/* KEY_NONE: it is not in there. */
uint32_t keys_find(const struct keys *k, uint64_t key);
/* The key is not in there yet. -ENOMEM: nothing has changed. */
MUST_CHECK int keys_add(struct keys *k, uint64_t key, uint32_t value);
/* Another value for a key that is in there. */
void keys_set(struct keys *k, uint64_t key, uint32_t value);
void keys_remove(struct keys *k, uint64_t key); /* nothing happens where it is not */
void keys_fini(struct keys *k);

#endif
