/* SPDX-License-Identifier: Apache-2.0 */
/*
 * turns.c - the cursor that the threads of a load share.
 *
 * Of files that only this process reads as many ranges are read at once, and as long ones, as
 * pace.c says; the other threads wait for their turn. A thread that has placed a range takes the
 * next one itself: nothing is handed over, and threads that wait wake when more may read, or none.
 *
 * One mutex over all; the deadline is looked at between ranges.
 */
#include <config.h>

#include "client/turns.h"

#include <assert.h>
#include <sys/stat.h>

#include "client/clock.h"

/* Sources that cannot be read so are read as before: nothing but time depends on it. */
static void follow_pace(struct turns *t)
{
	const struct pace_way *way = &pace_ways[t->pace.way];

	if (!t->paced)
		return;
	t->ranges.range_bytes = min_u64(way->range, t->range_bytes);
	if (way->through_cache == t->through_cache)
		return;
	t->through_cache = way->through_cache;
	for (uint32_t i = 0; i < t->in->n_sources; i++)
		if (source_is_direct(&t->in->sources[i]))
			ignore_result(source_through_cache(&t->in->sources[i], t->through_cache));
}

/* Bytes that are wanted of files that are read past the page cache, and a device of theirs. */
static uint64_t direct_bytes(const struct turns *t, const struct touched *touched,
			     uint64_t *ret_device)
{
	uint64_t bytes = 0;
	struct stat st;

	for (uint32_t i = 0; i < t->in->n_sources; i++) {
		const struct source *s = &t->in->sources[i];
		uint64_t leaves = 0;

		if (!source_is_direct(s))
			continue;
		for (uint64_t k = 0; k < div_up(touched[i].n_leaves, 64); k++)
			leaves += (uint64_t)__builtin_popcountll(touched[i].bits[k]);
		if (leaves && bytes == 0 && fstat(s->fd, &st) == 0)
			*ret_device = st.st_dev;
		bytes += leaves * s->in->geometry.leaf;
	}
	return bytes;
}

int turns_init(struct turns *t, const struct placing *in, const struct touched *touched,
	       uint64_t range_bytes, uint32_t threads)
{
	struct ranges_options ranges = {
		.window_bytes = in->window, .place = in->place, .range_bytes = range_bytes};
	struct pace_options o = {.threads = threads, .trial = in->trial, .kept = in->pace};
	int r;

	*t = (struct turns){.in = in, .range_bytes = range_bytes};
	r = ranges_init(&t->ranges, in->sources, in->n_sources, touched, &ranges);
	if (r < 0)
		return r;
	pthread_mutex_init(&t->mutex, NULL);
	pthread_cond_init(&t->turn, NULL);
	o.bytes = direct_bytes(t, touched, &o.device);
	t->paced = o.kept && o.bytes > 0;
	pace_init(&t->pace, &o, clock_ns());
	follow_pace(t);
	return 0;
}

void turns_fini(struct turns *t)
{
	if (t->paced && t->pace.kept.known)
		*t->in->pace = t->pace.kept;
	pthread_cond_destroy(&t->turn);
	pthread_mutex_destroy(&t->mutex);
	ranges_fini(&t->ranges);
}

bool turns_next(struct turns *t, uint64_t placed, struct taken *ret)
{
	bool more;

	pthread_mutex_lock(&t->mutex);
	if (placed) {
		assert(t->reading > 0);
		t->reading--;
		if (t->result == 0 && pace_placed(&t->pace, placed, clock_ns())) {
			follow_pace(t);
			pthread_cond_broadcast(&t->turn); /* there may be more turns now */
		}
	}
	while (t->result == 0 && t->paced && t->reading >= pace_depth(&t->pace))
		pthread_cond_wait(&t->turn, &t->mutex);
	if (t->result == 0 && clock_ns() >= t->in->deadline)
		t->result = CKPT_ETIMEDOUT;
	more = t->result == 0 && ranges_next(&t->ranges, &ret->source, &ret->range);
	ret->through_cache = t->through_cache;
	t->reading += more;
	if (!more)
		pthread_cond_broadcast(&t->turn); /* nor for those who wait */
	pthread_mutex_unlock(&t->mutex);
	return more;
}

bool turns_fail(struct turns *t, int code)
{
	bool first;

	assert(code < 0);
	pthread_mutex_lock(&t->mutex);
	first = t->result == 0;
	if (first)
		t->result = code;
	pthread_cond_broadcast(&t->turn);
	pthread_mutex_unlock(&t->mutex);
	return first;
}
