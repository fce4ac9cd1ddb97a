/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranges.h - in which order the threads of a load take the touched leaves of all its sources.
 */
#ifndef CLIENT_RANGES_H
#define CLIENT_RANGES_H

#include "client/touched.h"

struct ranges {
	const struct source *sources;
	const struct touched *touched;
	uint32_t n_sources;
	uint64_t range_bytes;
	uint64_t *base;   /* n_sources + 1: leaves before source i */
	uint32_t share;   /* where in a window it begins, of 2^32 */
	uint64_t window;  /* leaves */
	uint64_t lo, hi;  /* the window */
	uint64_t start;   /* in it */
	uint64_t at, end; /* what is left before the other part of the window, or the next */
	bool second;
	uint32_t source; /* of at, or one before */
};

struct ranges_options {
	uint64_t range_bytes;  /* of one range at most; a compressed chunk is never cut */
	uint64_t window_bytes; /* 0: the default */
	/* 0: ranges come in order of source and leaf. Else those of each window come from somewhere
	 * in its middle on, different for each place. */
	uint32_t place;
};

/* -ENOMEM. sources and touched must outlive it. */
MUST_CHECK int ranges_init(struct ranges *r, const struct source *sources, uint32_t n_sources,
			   const struct touched *touched, const struct ranges_options *o);
void ranges_fini(struct ranges *r);
/* The next one; false: there is none. */
bool ranges_next(struct ranges *r, uint32_t *ret_source, struct source_range *ret);

#endif
