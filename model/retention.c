/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which durable checkpoints may go. Pure; any thread.
 *
 * 1. I9: an item may go only if keep_last newer ones are clean, so the newest clean ones stay, and
 *    so does everything while there are fewer clean ones than that: a damaged copy is better than
 *    none.
 * 2. Newer is later in the log, not a higher step: after going back to an older step the higher
 *    steps of the dead epoch are the old ones.
 * 3. The highest of them stays until a clean one as high is newer: a training that began again by
 *    mistake has not taken the one before with it.
 */
#include <config.h>

#include "model/retention.h"

#include <assert.h>

static const char *why_kept(const struct retention_policy *p, const struct retention_item *item,
			    uint64_t clean_newer, bool highest)
{
	if (item->busy)
		return "being read or written";
	if (item->pinned)
		return "pinned";
	if (item->base)
		return "the base of the newest epoch";
	if (clean_newer < p->keep_last)
		return item->clean ? "one of the newest" : "too few clean ones are newer";
	if (highest)
		return "the highest step";
	if (p->keep_every && item->step % p->keep_every == 0)
		return "kept every so many steps";
	if (item->held)
		return item->held;
	return NULL;
}

size_t retention_apply(const struct retention_policy *p, struct retention_item *items, size_t n)
{
	uint64_t clean_newer = 0;
	const struct retention_item *highest = NULL, *newest = NULL;
	size_t expired = 0;

	assert(p->keep_last >= 1);
	for (size_t i = 0; i < n; i++) {
		if (!items[i].clean)
			continue;
		newest = &items[i];
		if (!highest || items[i].step >= highest->step)
			highest = &items[i];
	}
	for (size_t i = n; i-- > 0;) {
		struct retention_item *item = &items[i];

		item->highest = item == highest && item != newest;
		item->kept_because = why_kept(p, item, clean_newer, item == highest);
		item->expire = item->kept_because == NULL;
		assert(!item->expire || clean_newer >= p->keep_last); /* I9 */
		expired += item->expire;
		clean_newer += item->clean;
	}
	return expired;
}
