/* SPDX-License-Identifier: Apache-2.0 */
/*
 * touched.c - the index of a load: built in two passes over the pieces, read by all workers.
 *
 * Memory: two bits per leaf, 8 bytes per chunk, 4 per piece and chunk that it touches. Pure.
 *
 * Gaps: leaves of a file that nobody wants are read over where that costs less than asking twice.
 * bench/gaps measures it. On a virtual NVMe disk of 1 GB/s, ext4, O_DIRECT, two cores in use by
 * others, asking for each piece of 16 to 256 KiB took this many times as long as reading over:
 *
 *   gap of KiB                  4          8         16         32         64        128
 *   1 request in flight    1.3-4.1    1.2-3.3    1.1-2.0    1.1-1.4    0.8-1.1    0.5-0.8
 *   4                      0.9-1.4    0.9-1.2    0.9-1.2    0.7-0.8    0.4-0.8    0.3-0.8
 *   16, as a load has      0.9-1.0    0.9-1.0    0.7-0.9    0.5-0.9    0.3-0.8    0.2-0.7
 *
 * So with requests in flight the disk's bandwidth is what counts, and 8 KiB is where it is even:
 * leaves of 64 KiB are never read over. All gaps of a source together are at most a twentieth of
 * what is wanted of it, so that what is read stays within 1.05 x wanted + two leaves per piece.
 */
#include <config.h>

#include "client/touched.h"

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"

#define GAP_BYTES 8192u

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

/* ---- Gaps ---- */

static void add_wanted(const struct plan_piece *p, uint64_t *bytes)
{
	uint64_t n = p->run;

	for (uint32_t k = 0; k < p->ndim; k++)
		n *= p->count[k];
	*bytes += n;
}

static void mark_gaps(struct touched *t, uint64_t leaf_bytes, uint64_t left)
{
	uint64_t leaf = touched_next(t, 0), max = GAP_BYTES / leaf_bytes, next;

	for (; leaf < t->n_leaves; leaf = next) {
		next = touched_next(t, leaf + 1);
		if (next == t->n_leaves || next - leaf - 1 > max ||
		    (next - leaf - 1) * leaf_bytes > left)
			continue;
		left -= (next - leaf - 1) * leaf_bytes;
		for (uint64_t i = leaf + 1; i < next; i++)
			t->over[i / 64] |= 1ull << (i % 64);
	}
}

/* Of files whose leaves are small enough. */
static int make_gaps(const struct source *sources, struct touched *t, uint32_t n_sources,
		     const struct plan_piece *pieces, size_t n_pieces)
{
	uint64_t *wanted CLEANUP_FREE = alloc_array(n_sources, sizeof(*wanted));

	if (!wanted)
		return -ENOMEM;
	for (size_t i = 0; i < n_pieces; i++)
		add_wanted(&pieces[i], &wanted[pieces[i].source]);
	for (uint32_t s = 0; s < n_sources; s++) {
		uint64_t leaf = sources[s].in->geometry.leaf;

		if (sources[s].in->kind != LOAD_FILE || leaf > GAP_BYTES)
			continue;
		t[s].over = alloc_array(t[s].n_leaves / 64 + 1, sizeof(*t[s].over));
		if (!t[s].over)
			return -ENOMEM;
		mark_gaps(&t[s], leaf, wanted[s] / 20);
	}
	return 0;
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
	if (r == 0)
		r = make_gaps(sources, t, n_sources, pieces, n_pieces);
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
		alloc_free(t[s].over);
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
	uint64_t n = 0, end = min_u64(t->n_leaves - leaf, max);

	assert(touched_leaf(t, leaf));
	for (uint64_t i = 0; i < end; i++) {
		if (touched_leaf(t, leaf + i))
			n = i + 1;
		else if (!t->over || !(t->over[(leaf + i) / 64] >> ((leaf + i) % 64) & 1))
			break;
	}
	return n;
}
