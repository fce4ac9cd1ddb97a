/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena.h - memory for many small blocks that live equally long: taken in chunks, freed at once.
 *
 * The first bytes are the owner's (on the stack, say), so that what needs few takes no chunk.
 * A limit on all chunks together bounds what input from outside can make it take.
 */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stddef.h>
#include <stdint.h>

#define ARENA_ALIGN 16u
#define ARENA_CHUNK (64u << 10)

struct arena_chunk;

struct arena {
	uint8_t *at; /* of what is not taken of the newest chunk, aligned */
	size_t left;
	size_t may_take; /* bytes of chunks */
	struct arena_chunk *chunks;
};

/* first is aligned to ARENA_ALIGN. limit: bytes of all chunks together. */
void arena_init(struct arena *a, void *first, size_t size, size_t limit);
/* Not zeroed, aligned to ARENA_ALIGN; NULL: no memory, or above the limit. */
void *arena_take(struct arena *a, size_t size);
void arena_fini(struct arena *a);

/* The same as a library's allocator has them (ProtobufCAllocator); given back is nothing. */
void *arena_lib_take(void *arena, size_t size);
void arena_lib_give(void *arena, void *block);

#endif
