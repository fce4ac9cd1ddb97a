/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sum.h - what a summing record carries of a history, and whether it agrees with one. Private to
 * coord/.
 */
#ifndef COORD_SUM_H
#define COORD_SUM_H

#include "coord/record.h"

/* Whether it must stay in a sum: not freed, and pinned, the newest, or the base of the epoch. */
bool sum_keeps(const struct history *h, const struct history_commit *c);
/* How many commits that are not freed a sum of h written here has. */
size_t sum_count(const struct history *h);
/* The body of a summing record; r is its header. -ENOMEM, or rd->bad when it is not one. */
void sum_put(struct writer *w, const struct history *h);
MUST_CHECK int sum_get(struct reader *rd, const struct record *r, struct history *ret);
/* Whether sum says what h says, but for commits that a sum may leave out. */
bool sum_agrees(const struct history *h, const struct history *sum);

#endif
