/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sleepers.h - who of many that are walked side by side, name by name, is not asked until its next
 * name comes: so that a walk costs what they have, not names times those who have none of them.
 */
#ifndef MODEL_SLEEPERS_H
#define MODEL_SLEEPERS_H

#include <stdint.h>

/* The next name of one; it does not change while he sleeps. */
typedef const char *sleepers_name_fn(const void *arg, uint32_t who, uint32_t *ret_len);

struct sleepers {
	uint32_t *who; /* a heap by next names, the earliest first. The caller's room */
	uint32_t n;
	sleepers_name_fn *name;
	const void *arg;
};

/* O(log n) names are compared by both. There is room for one more; there is one. */
void sleepers_put(struct sleepers *s, uint32_t who);
uint32_t sleepers_take(struct sleepers *s); /* the first */

#endif
