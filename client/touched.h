/* SPDX-License-Identifier: Apache-2.0 */
/*
 * touched.h - which leaves of each source a load needs, and which pieces need each chunk.
 */
#ifndef CLIENT_TOUCHED_H
#define CLIENT_TOUCHED_H

#include "client/source.h"

struct touched {
	uint64_t n_leaves, n_chunks;
	uint64_t *bits;  /* one per leaf: it is touched */
	uint64_t *over;  /* one per leaf: it is not, and is read with its neighbours; NULL: none */
	uint64_t *first; /* n_chunks + 1: chunk i is needed by piece[first[i]..first[i + 1]) */
	uint32_t *piece; /* indices */
};

/* One for each source; pieces of 0 bytes are ignored. -ENOMEM. Free with touched_free(). */
MUST_CHECK int touched_make(const struct source *sources, uint32_t n_sources,
			    const struct plan_piece *pieces, size_t n_pieces,
			    struct touched **ret);
void touched_free(struct touched *t, uint32_t n_sources);

static inline bool touched_leaf(const struct touched *t, uint64_t leaf)
{
	return t->bits[leaf / 64] >> (leaf % 64) & 1;
}
/* The first touched leaf at or after this one; n_leaves when there is none. */
uint64_t touched_next(const struct touched *t, uint64_t leaf);
/* How many from leaf on, which is touched, are read in one go, at most max: the last is touched. */
uint64_t touched_run(const struct touched *t, uint64_t leaf, uint64_t max);

#endif
