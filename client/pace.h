/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pace.h - how a load reads files: how many reads at once, how long ones, past the page cache or
 * through it.
 */
#ifndef CLIENT_PACE_H
#define CLIENT_PACE_H

#include <stdbool.h>
#include <stdint.h>

struct pace_way {
	uint32_t share; /* of the threads that may read at once: 1 / share */
	uint64_t range; /* bytes of one read at most */
	bool through_cache;
};

#define PACE_WAYS 4
extern const struct pace_way pace_ways[PACE_WAYS]; /* the first where nothing is known */

/* What a process has found out, for its next load from the same device. */
struct pace_kept {
	bool known;
	uint64_t device;
	uint32_t way;
};

struct pace {
	uint32_t threads;
	uint32_t way;
	uint64_t trial;       /* bytes that each way is tried with; 0: nothing is tried any more */
	uint64_t begin, done; /* of the way at hand: ns, and bytes since */
	double best_rate;     /* bytes per ns */
	uint32_t best;
	struct pace_kept kept;
};

struct pace_options {
	uint32_t threads;
	uint64_t device;
	uint64_t bytes;               /* that will be read from files past the page cache */
	uint64_t trial;               /* bytes; 0: the default */
	const struct pace_kept *kept; /* NULL: nothing is known, and nothing is tried */
};

void pace_init(struct pace *p, const struct pace_options *o, uint64_t now);
/* So many may read at once. */
uint32_t pace_depth(const struct pace *p);
/* So many bytes more have been placed; true: the way is another one now. */
bool pace_placed(struct pace *p, uint64_t bytes, uint64_t now);

#endif
