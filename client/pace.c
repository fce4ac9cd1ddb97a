/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pace.c - tries the ways to read files with the first parts of a load, and goes on with the best.
 *
 *   TRYING   each way in turn, with `trial` bytes of the load itself; its rate is that of all that
 *            is read, verified and placed meanwhile
 *   CHOSEN   the one with the highest rate, and the handle keeps it for this device
 *
 * 1. All trials together have at most a sixteenth of a load's bytes; a shorter load takes what is
 *    known of the device, or the first way. A trial ends early when it has taken one and a half
 *    times what the best way takes: it costs no more than half of that.
 * 2. A trial is several times as long as what is in flight when it begins: that was begun in the
 *    way before.
 *
 * Pure: the clock is the caller's.
 */
#include <config.h>

#include "client/pace.h"

#include <assert.h>

#include "base/bytes.h"

#define TRIAL  (64ull << 20)
#define PART   16u /* (1) */
#define SLOWER 1.5

/*
 * Threads are more than a disk needs, for those that verify and place. On the virtual disk of the
 * measurements half of 16 with 2 MiB each was best by a tenth; a disk that answers late wants all,
 * and a file system that reads ahead over a network, or makes no use of O_DIRECT, its cache.
 */
const struct pace_way pace_ways[PACE_WAYS] = {
	{.share = 2, .range = 2u << 20},
	{.share = 1, .range = 1u << 20},
	{.share = 1, .range = 2u << 20},
	{.share = 2, .range = 2u << 20, .through_cache = true},
};

static void begin_way(struct pace *p, uint32_t way, uint64_t now)
{
	p->way = way;
	p->begin = now;
	p->done = 0;
}

void pace_init(struct pace *p, const struct pace_options *o, uint64_t now)
{
	bool known = o->kept && o->kept->known && o->kept->device == o->device;
	uint64_t trial = o->trial ? o->trial : TRIAL;

	*p = (struct pace){.threads = o->threads, .kept.device = o->device};
	if (known)
		p->kept = *o->kept;
	else if (o->kept && o->bytes / PART / PACE_WAYS >= trial)
		p->trial = trial;
	begin_way(p, known ? o->kept->way : 0, now);
}

uint32_t pace_depth(const struct pace *p)
{
	return (uint32_t)max_u64(p->threads / pace_ways[p->way].share, min_u64(p->threads, 2));
}

bool pace_placed(struct pace *p, uint64_t bytes, uint64_t now)
{
	uint32_t before = p->way;
	double rate, took = (double)max_u64(now - p->begin, 1);

	assert(p->way < PACE_WAYS && now >= p->begin);
	p->done += bytes;
	if (p->trial == 0 ||
	    (p->done < p->trial && took * p->best_rate < SLOWER * (double)p->trial))
		return false;
	rate = (double)p->done / took;
	if (rate > p->best_rate) {
		p->best_rate = rate;
		p->best = p->way;
	}
	if (p->way + 1 < PACE_WAYS) {
		begin_way(p, p->way + 1, now);
	} else {
		begin_way(p, p->best, now);
		p->kept.way = p->best;
		p->kept.known = true;
		p->trial = 0;
	}
	return p->way != before;
}
