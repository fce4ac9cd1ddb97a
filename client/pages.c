/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pages.c - takes the pages of a load's targets.
 *
 * A process that starts again loads into memory that it has just allocated: nothing is there, and
 * the kernel gives it page by page, at a fault for each, which took longer than reading and
 * verifying what goes there. So the thread that is about to fill a huge page's worth takes it at
 * once. Only memory that one contiguous piece fills whole is taken so: nothing gets larger by it.
 *
 * Where nothing can be had so, the faults come as ever. Any thread.
 */
#include <config.h>

#include "client/pages.h"

static void take(struct huge_taker *taker, uintptr_t begin, uint64_t run, uint64_t lo, uint64_t hi)
{
	uintptr_t end = begin + run, stop = begin + hi;

	for (uintptr_t at = (begin + lo) / HUGE_PAGE * HUGE_PAGE; at < stop; at += HUGE_PAGE)
		if (at >= begin && end - at >= HUGE_PAGE)
			huge_take(taker, (void *)at);
}

void pages_take(struct huge_taker *taker, const struct placing *in, const struct source *s,
		const struct touched *t, struct source_range range)
{
	struct geometry g = s->in->geometry;
	uint64_t end = min_u64((range.first + range.n) * g.leaf, s->in->image_len);

	for (uint64_t lo = range.first * g.leaf, hi; lo < end; lo = hi) {
		uint64_t chunk = lo / g.chunk;

		hi = min_u64((chunk + 1) * g.chunk, end);
		for (uint64_t k = t->first[chunk]; k < t->first[chunk + 1]; k++) {
			const struct plan_piece *p = &in->pieces[t->piece[k]];
			const struct place_target *to = &in->targets[p->target];
			uint64_t from = max_u64(lo, p->src), till = min_u64(hi, p->src + p->run);

			if (p->ndim == 0 && p->run >= HUGE_PAGE && !to->strided && !to->device &&
			    from < till)
				take(taker, (uintptr_t)to->ptr + p->dst, p->run, from - p->src,
				     till - p->src);
		}
	}
}
