/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sleepers.h - cursors of a walk by names that sleep until their next name comes, so that the walk
 * costs as much as the cursors have names, not names times cursors.
 */
#ifndef MODEL_SLEEPERS_H
#define MODEL_SLEEPERS_H

#include <stdint.h>

/* The next name of a cursor; it does not change while the cursor sleeps. */
typedef const char *sleepers_name_fn(const void *arg, uint32_t who, uint32_t *ret_len);

struct sleepers {
	uint32_t *who; /* a heap by next names, the earliest first; the caller allocates it */
	uint32_t n;
	sleepers_name_fn *name;
	const void *arg;
};

/* Both compare O(log n) names. put: the heap must have room; take: it must not be empty. */
void sleepers_put(struct sleepers *s, uint32_t who);
uint32_t sleepers_take(struct sleepers *s); /* the first */

#endif
