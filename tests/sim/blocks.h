/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blocks.h - which blocks of base/alloc.h one simulated process holds.
 *
 * A killed process is gone with all its memory: blocks_drop() frees what it had. After an orderly
 * end there must be nothing left: blocks_live() is its leak check.
 */
#ifndef TESTS_SIM_BLOCKS_H
#define TESTS_SIM_BLOCKS_H

#include <stddef.h>

#include "base/alloc.h"

struct blocks {
	struct alloc_watch watch;
	void **slots; /* open addressing by address; NULL: free, GIVEN: was used */
	size_t cap, used, live;
};

void blocks_init(struct blocks *b);
/* Blocks taken and not given back. */
size_t blocks_live(const struct blocks *b);
/* Frees them all. It may be used again. */
void blocks_drop(struct blocks *b);

#endif
