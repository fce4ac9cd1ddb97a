/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena.h - which blocks of base/alloc.h one simulated process holds.
 *
 * A killed process is gone with all its memory: arena_drop() frees what it had. After an orderly
 * end there must be nothing left: arena_live() is its leak check.
 */
#ifndef TESTS_SIM_ARENA_H
#define TESTS_SIM_ARENA_H

#include <stddef.h>

#include "base/alloc.h"

struct arena {
	struct alloc_watch watch;
	void **slots; /* open addressing by address; NULL: free, GIVEN: was used */
	size_t cap, used, live;
};

void arena_init(struct arena *a);
/* Blocks taken and not given back. */
size_t arena_live(const struct arena *a);
/* Frees them all. The arena may be used again. */
void arena_drop(struct arena *a);

#endif
