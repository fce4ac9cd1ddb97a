/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranges.c - a cursor over the touched leaves of all sources.
 *
 * Where several ranks of a node read the same files through the page cache, each begins at another
 * place, so that they divide the work of the disk instead of waiting for the same bytes one behind
 * the other. They do so in windows: of what one has read the others are at most about a window
 * away, which is what must stay in the page cache, whatever the checkpoint's size.
 *
 *   window    [lo ............ start ............ hi)
 *                              1st part: on to hi     2nd part: from lo to start
 *
 * 1. Windows and starts are at boundaries of chunks: a compressed chunk is read once.
 * 2. Every touched leaf comes in one range and none twice.
 *
 * Pure; one thread at a time.
 */
#include <config.h>

#include "client/ranges.h"

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"

#define WINDOW (256ull << 20)

/* 0, 1/2, 1/4, 3/4, 1/8, ...: neighbours, who want the same, are far from each other. */
static uint32_t share_of(uint32_t place)
{
	uint32_t share = 0;

	for (int i = 0; i < 32; i++)
		share |= (place >> i & 1u) << (31 - i);
	return share;
}

/* The source in which leaf g of all is; g is one of them. */
static uint32_t source_of(const struct ranges *r, uint64_t g)
{
	uint32_t lo = 0, hi = r->n_sources;

	assert(g < r->base[r->n_sources]);
	while (hi - lo > 1) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (r->base[mid] <= g)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

/* Where the chunk begins that leaf g is in, and where it ends. */
static void chunk_around(const struct ranges *r, uint64_t g, uint64_t *ret_lo, uint64_t *ret_hi)
{
	uint32_t s = source_of(r, g);
	struct geometry geometry = r->sources[s].in->geometry;
	uint64_t per_chunk = geometry.chunk / geometry.leaf, local = g - r->base[s];

	*ret_lo = g - local % per_chunk;
	*ret_hi = min_u64(*ret_lo + per_chunk, r->base[s + 1]);
}

static void open_window(struct ranges *r, uint64_t lo)
{
	uint64_t total = r->base[r->n_sources], begin, end;

	r->lo = lo;
	r->hi = total;
	if (total - lo > r->window) {
		chunk_around(r, lo + r->window, &begin, &end);
		r->hi = begin > lo ? begin : end;
	}
	r->start = lo;
	if (lo < r->hi && r->share) {
		chunk_around(r, lo + ((r->hi - lo) * r->share >> 32), &begin, &end);
		r->start = max_u64(begin, lo);
	}
	r->at = r->start;
	r->end = r->hi;
	r->second = false;
	r->source = lo < total ? source_of(r, r->at) : 0;
}

int ranges_init(struct ranges *r, const struct source *sources, uint32_t n_sources,
		const struct touched *touched, const struct ranges_options *o)
{
	uint32_t leaf = n_sources ? sources[0].in->geometry.leaf : 1;
	uint64_t window = o->window_bytes ? o->window_bytes : WINDOW;

	*r = (struct ranges){
		.sources = sources,
		.touched = touched,
		.n_sources = n_sources,
		.range_bytes = o->range_bytes,
		.share = share_of(o->place),
		.window = max_u64(window / leaf, 1),
	};
	r->base = alloc_array((size_t)n_sources + 1, sizeof(*r->base));
	if (!r->base)
		return -ENOMEM;
	for (uint32_t i = 0; i < n_sources; i++)
		r->base[i + 1] = r->base[i] + touched[i].n_leaves;
	open_window(r, 0);
	return 0;
}

void ranges_fini(struct ranges *r)
{
	alloc_free(r->base);
}

/* The next part of the window, or the next window; false: there is none. */
static bool next_part(struct ranges *r)
{
	if (!r->second && r->start > r->lo) {
		r->second = true;
		r->at = r->lo;
		r->end = r->start;
		r->source = source_of(r, r->at);
		return true;
	}
	if (r->hi == r->base[r->n_sources])
		return false;
	open_window(r, r->hi);
	return true;
}

bool ranges_next(struct ranges *r, uint32_t *ret_source, struct source_range *ret)
{
	for (;;) {
		const struct touched *t;
		uint64_t leaf, max;

		if (r->at >= r->end) {
			if (!next_part(r))
				return false;
			continue;
		}
		while (r->at >= r->base[r->source + 1])
			r->source++;
		t = &r->touched[r->source];
		leaf = touched_next(t, r->at - r->base[r->source]);
		r->at = r->base[r->source] + leaf;
		if (leaf == t->n_leaves || r->at >= r->end)
			continue;
		max = source_range_max(&r->sources[r->source], r->range_bytes);
		max = touched_run(t, leaf, min_u64(max, r->end - r->at));
		*ret = source_range_at(&r->sources[r->source], leaf, max);
		*ret_source = r->source;
		r->at += ret->n;
		assert(r->at <= r->end); /* (1) */
		return true;
	}
}
