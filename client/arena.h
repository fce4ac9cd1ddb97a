/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena.h - memory for one unpacked message: taken at open, used again for each message, so that
 * the replies a save waits for touch no fresh page.
 */
#ifndef CLIENT_ARENA_H
#define CLIENT_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define ARENA_BYTES (64u << 10)
/* Larger messages (a list, a load) take more; a message of 64 KiB cannot ask for more than this. */
#define ARENA_BYTES_MAX (16u << 20)

struct arena_block;

struct arena {
	uint8_t *base;
	size_t used;             /* of ARENA_BYTES */
	struct arena_block *more;
	size_t more_bytes;       /* in all blocks of more */
};

MUST_CHECK int arena_init(struct arena *a);
void arena_fini(struct arena *a);
/* Everything handed out is gone after this. */
void arena_reset(struct arena *a);
/* Aligned for any type; NULL when there is no memory or the message asks for too much. */
void *arena_alloc(struct arena *a, size_t size);

#endif
