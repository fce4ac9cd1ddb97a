/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pages.h - memory for what is about to be placed where nothing was ever written.
 */
#ifndef CLIENT_PAGES_H
#define CLIENT_PAGES_H

#include "base/huge.h"
#include "client/placer.h"
#include "client/touched.h"

/* What this range of the source fills, as far as it is huge pages of host memory that one piece
 * fills whole, gets them. */
void pages_take(struct huge_taker *taker, const struct placing *in, const struct source *s,
		const struct touched *t, struct source_range range);

#endif
