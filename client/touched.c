/* SPDX-License-Identifier: Apache-2.0 */
/*
 * touched.c - the index of a load: built in two passes over the pieces, read by all workers.
 *
 * Memory: a bit per leaf, 8 bytes per chunk, 4 per piece and chunk that it touches. Pure.
 */
#include <config.h>

#include "client/touched.h"

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"

/* ---- What each piece touches ---- */

static void mark_leaves(void *arg, uint64_t first, uint64_t last)
{
	struct touched *t = arg;

	assert(last < t->n_leaves);
	for (uint64_t i = first; i <= last; i++) {
		if (i % 64 == 0 && last - i >= 63) {
			t->bits[i / 64] = UINT64_MAX;
			i += 63;
		} else {
			t->bits[i / 64] |= 1ull << (i % 64);
		}
	}
}

/* First pass: first[i + 1] counts the pieces of chunk i. */
static void count_chunks(void *arg, uint64_t first, uint64_t last)
{
	struct touched *t = arg;

	assert(last < t->n_chunks);
	for (uint64_t i = first; i <= last; i++)
		t->first[i + 1]++;
}

struct filling {
	struct touched *t;
	uint32_t piece;
};

/* Second pass: first[i] is where chunk i's next piece goes; it ends up where chunk i + 1 begins. */
static void fill_chunks(void *arg, uint64_t first, uint64_t last)
{
	struct filling *f = arg;

	for (uint64_t i = first; i <= last; i++)
		f->t->piece[f->t->first[i]++] = f->piece;
}

/* ---- The index ---- */

static int make_counts(const struct source *sources, struct touched *t, uint32_t n_sources,
		       const struct plan_piece *pieces, size_t n_pieces)
{
	for (uint32_t s = 0; s < n_sources; s++) {
		t[s].n_leaves = div_up(sources[s].in->image_len, sources[s].in->geometry.leaf);
		t[s].n_chunks = div_up(sources[s].in->image_len, sources[s].in->geometry.chunk);
		t[s].bits = alloc_array(t[s].n_leaves / 64 + 1, sizeof(*t[s].bits));
		t[s].first = alloc_array(t[s].n_chunks + 2, sizeof(*t[s].first));
		if (!t[s].bits || !t[s].first)
			return -ENOMEM;
	}
	for (size_t i = 0; i < n_pieces; i++) {
		const struct plan_piece *p = &pieces[i];
		struct geometry g;

		assert(p->source < n_sources);
		if (p->run == 0)
			continue;
		g = sources[p->source].in->geometry;
		plan_piece_units(p, g.leaf, mark_leaves, &t[p->source]);
		plan_piece_units(p, g.chunk, count_chunks, &t[p->source]);
	}
	return 0;
}

static int make_lists(const struct source *sources, struct touched *t, uint32_t n_sources,
		      const struct plan_piece *pieces, size_t n_pieces)
{
	for (uint32_t s = 0; s < n_sources; s++) {
		uint64_t total = 0;

		for (uint64_t i = 0; i <= t[s].n_chunks; i++) {
			total += t[s].first[i];
			t[s].first[i] = total;
		}
		t[s].piece = alloc_array(total, sizeof(*t[s].piece));
		if (!t[s].piece)
			return -ENOMEM;
	}
	for (size_t i = 0; i < n_pieces; i++) {
		const struct plan_piece *p = &pieces[i];
		struct filling f = { .t = &t[p->source], .piece = (uint32_t)i };

		if (p->run)
			plan_piece_units(p, sources[p->source].in->geometry.chunk, fill_chunks, &f);
	}
	for (uint32_t s = 0; s < n_sources; s++) {
		for (uint64_t i = t[s].n_chunks; i > 0; i--)
			t[s].first[i] = t[s].first[i - 1];
		t[s].first[0] = 0;
	}
	return 0;
}

int touched_make(const struct source *sources, uint32_t n_sources,
		 const struct plan_piece *pieces, size_t n_pieces, struct touched **ret)
{
	struct touched *t = alloc_array(n_sources, sizeof(*t));
	int r;

	assert(n_pieces <= UINT32_MAX);
	if (!t)
		return -ENOMEM;
	r = make_counts(sources, t, n_sources, pieces, n_pieces);
	if (r == 0)
		r = make_lists(sources, t, n_sources, pieces, n_pieces);
	if (r < 0) {
		touched_free(t, n_sources);
		return r;
	}
	*ret = t;
	return 0;
}

void touched_free(struct touched *t, uint32_t n_sources)
{
	for (uint32_t s = 0; t && s < n_sources; s++) {
		alloc_free(t[s].bits);
		alloc_free(t[s].first);
		alloc_free(t[s].piece);
	}
	alloc_free(t);
}

uint64_t touched_next(const struct touched *t, uint64_t leaf)
{
	while (leaf < t->n_leaves) {
		uint64_t word = t->bits[leaf / 64] >> (leaf % 64);

		if (word)
			return leaf + (uint64_t)__builtin_ctzll(word);
		leaf = (leaf / 64 + 1) * 64;
	}
	return t->n_leaves;
}

uint64_t touched_run(const struct touched *t, uint64_t leaf, uint64_t max)
{
	uint64_t n = 0;

	while (n < max && leaf + n < t->n_leaves && touched_leaf(t, leaf + n))
		n++;
	return n;
}
