/* SPDX-License-Identifier: Apache-2.0 */
/*
 * overlaps.c - all declarations of a layout side by side, name by name.
 *
 * The shards of a name are sorted by where they begin; one that begins behind another's end in the
 * first dimension in which they do not all begin alike cannot meet it. So a tensor that is cut
 * along one dimension costs its sorting, one that is cut on a grid what lies in a band of it.
 *
 * A rank that does not have the current name sleeps until its own next name comes: so ranks with
 * different names cost no more than ranks that share them.
 *
 * Pure; one thread per call. Memory: the shards of one name.
 */
#include <config.h>

#include "model/overlaps.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "model/effort.h"
#include "model/sleepers.h"

struct held {
	uint32_t rank;
	struct shard shard;
};

struct walk {
	const struct declaration *ranks;
	uint32_t n;
	uint32_t *cursor; /* of each rank */
	uint32_t *awake;  /* ranks that had the name before */
	uint32_t n_awake;
	struct sleepers asleep; /* the others that have names left */
	uint64_t looks;         /* at ranks */
	struct held *held;
	size_t n_held, cap_held;
	uint64_t pairs;
	struct effort effort;
	overlap_fn *fn;
	void *arg;
};

static int compare_u64(uint64_t a, uint64_t b)
{
	return a < b ? -1 : a > b;
}

/* 0: the same shard. */
static int compare_shards(const struct shard *a, const struct shard *b)
{
	int r = compare_u64(a->box.ndim, b->box.ndim);

	for (uint32_t k = 0; k < a->box.ndim && r == 0; k++)
		r = compare_u64(a->box.offset[k], b->box.offset[k]);
	for (uint32_t k = 0; k < a->box.ndim && r == 0; k++)
		r = compare_u64(a->box.length[k], b->box.length[k]);
	if (r == 0)
		r = compare_u64(a->start, b->start);
	return r ? r : compare_u64(a->stop, b->stop);
}

static int compare_held(const void *pa, const void *pb)
{
	const struct held *a = pa, *b = pb;
	int r = compare_shards(&a->shard, &b->shard);

	return r ? r : compare_u64(a->rank, b->rank);
}

static bool same_tensor(const struct shard *a, const struct shard *b)
{
	return a->dtype == b->dtype && a->global.ndim == b->global.ndim &&
	       memcmp(a->global.dim, b->global.dim, 8 * (size_t)a->global.ndim) == 0;
}

/* ---- One name ---- */

static int hold(struct walk *w, uint32_t rank, const struct shard *s)
{
	if (s->bytes == 0)
		return 0;
	if (w->n_held == w->cap_held) {
		size_t cap = w->cap_held ? 2 * w->cap_held : 64;
		struct held *more = alloc_resize(w->held, cap * sizeof(*more));

		if (!more)
			return -ENOMEM;
		w->held = more;
		w->cap_held = cap;
	}
	w->held[w->n_held++] = (struct held){.rank = rank, .shard = *s};
	return 0;
}

static struct overlap pair_of(const struct held *a, const struct held *b)
{
	bool swap = a->rank > b->rank;

	return (struct overlap){
		.name = a->shard.name,
		.name_len = a->shard.name_len,
		.rank = {swap ? b->rank : a->rank, swap ? a->rank : b->rank},
		.shard = {swap ? b->shard : a->shard, swap ? a->shard : b->shard},
	};
}

static int meet(struct walk *w, const struct held *a, const struct held *b)
{
	struct box boxes_a[FLAT_BOXES_MAX], boxes_b[FLAT_BOXES_MAX];
	int n_a = shard_boxes(&a->shard, boxes_a), n_b = shard_boxes(&b->shard, boxes_b), r = 0;
	struct overlap o = pair_of(a, b);

	for (int i = 0; i < n_a && r == 0; i++)
		for (int k = 0; k < n_b && r == 0; k++)
			if (box_intersect(&boxes_a[i], &boxes_b[k], &o.region))
				r = w->fn(w->arg, &o);
	return r;
}

/* The first dimension in which not all begin alike; they are sorted. */
static uint32_t sweep_dimension(const struct walk *w)
{
	const struct box *first = &w->held[0].shard.box, *last = &w->held[w->n_held - 1].shard.box;
	uint32_t k = 0;

	while (k + 1 < first->ndim && first->offset[k] == last->offset[k])
		k++;
	return k;
}

static int meet_all(struct walk *w)
{
	size_t n = 0;
	uint32_t dim;
	int r = 0;

	if (w->n_held < 2)
		return 0;
	/* Those of one rank are alike: declaration_open() has seen to it. */
	for (size_t i = 1; i < w->n_held; i++) {
		struct overlap o = pair_of(&w->held[0], &w->held[i]);

		if (same_tensor(&w->held[0].shard, &w->held[i].shard))
			continue;
		o.unlike = true;
		return w->fn(w->arg, &o);
	}
	qsort(w->held, w->n_held, sizeof(*w->held), compare_held);
	for (size_t i = 0; i < w->n_held; i++)
		if (n == 0 || compare_shards(&w->held[n - 1].shard, &w->held[i].shard) != 0)
			w->held[n++] = w->held[i];
	w->n_held = n;
	dim = sweep_dimension(w);
	for (size_t i = 0; i < n && r == 0; i++) {
		const struct held *a = &w->held[i];

		for (size_t k = i + 1; k < n && r == 0; k++) {
			const struct held *b = &w->held[k];

			if (a->shard.box.ndim &&
			    b->shard.box.offset[dim] >=
				    a->shard.box.offset[dim] + a->shard.box.length[dim])
				break;
			if (++w->pairs > OVERLAP_PAIRS_MAX)
				return 0;
			/* Within a rank there is none: declaration_open() has seen to it. */
			r = effort_spend(&w->effort, 1);
			if (r == 0 && a->rank != b->rank)
				r = meet(w, a, b);
		}
	}
	return r;
}

/* ---- All names ---- */

static const char *own_name(const void *arg, uint32_t rank, uint32_t *ret_len)
{
	const struct walk *w = arg;

	return declaration_name(&w->ranks[rank], w->cursor[rank], ret_len);
}

/* The first name that is left; false: there is none. */
static bool next_name(struct walk *w, const char **ret, uint32_t *ret_len)
{
	bool any = w->asleep.n > 0;

	if (any)
		*ret = own_name(w, w->asleep.who[0], ret_len);
	for (uint32_t i = 0; i < w->n_awake; i++) {
		uint32_t len;
		const char *name = own_name(w, w->awake[i], &len);

		w->looks++;
		if (any && name_compare(name, len, *ret, *ret_len) >= 0)
			continue;
		*ret = name;
		*ret_len = len;
		any = true;
	}
	return any;
}

/* Wakes sleeping ranks that have this name, and puts the ranks that do not have it to sleep. */
static void wake(struct walk *w, const char *name, uint32_t len)
{
	uint32_t before = w->n_awake, n = 0, own_len;

	while (w->asleep.n > 0) {
		const char *own = own_name(w, w->asleep.who[0], &own_len);

		if (name_compare(own, own_len, name, len) != 0)
			break;
		w->awake[w->n_awake++] = sleepers_take(&w->asleep);
		w->looks++;
	}
	for (uint32_t i = 0; i < w->n_awake; i++) {
		const char *own = own_name(w, w->awake[i], &own_len);

		if (i >= before || name_compare(own, own_len, name, len) == 0)
			w->awake[n++] = w->awake[i];
		else
			sleepers_put(&w->asleep, w->awake[i]);
	}
	w->n_awake = n;
}

static int hold_rank(struct walk *w, uint32_t rank, const char *name, uint32_t len)
{
	int r = 0;

	for (; w->cursor[rank] < w->ranks[rank].n_shards && r == 0; w->cursor[rank]++) {
		struct shard s;

		r = effort_spend(&w->effort, 1);
		if (r < 0)
			break;
		declaration_get(&w->ranks[rank], w->cursor[rank], &s);
		if (name_compare(s.name, s.name_len, name, len) != 0)
			break;
		r = hold(w, rank, &s);
	}
	return r;
}

/* All awake ranks have the name; one without a further name leaves the walk. */
static int hold_name(struct walk *w, const char *name, uint32_t len)
{
	uint32_t n = 0;
	int r = 0;

	w->n_held = 0;
	for (uint32_t i = 0; i < w->n_awake && r == 0; i++) {
		uint32_t rank = w->awake[i];

		r = hold_rank(w, rank, name, len);
		w->looks++;
		if (w->cursor[rank] < w->ranks[rank].n_shards)
			w->awake[n++] = rank;
	}
	w->n_awake = n;
	return r;
}

static int begin(struct walk *w)
{
	w->cursor = alloc_array(w->n, sizeof(*w->cursor));
	w->awake = alloc_array(w->n, sizeof(*w->awake));
	w->asleep = (struct sleepers){alloc_array(w->n, sizeof(*w->asleep.who)), 0, own_name, w};
	if (!w->cursor || !w->awake || !w->asleep.who)
		return -ENOMEM;
	for (uint32_t i = 0; i < w->n; i++)
		if (w->ranks[i].n_shards > 0)
			w->awake[w->n_awake++] = i;
	return 0;
}

int overlaps_walk(const struct declaration *ranks, uint32_t n, const atomic_bool *cancel,
		  overlap_fn *fn, void *arg, uint64_t *ret_looks)
{
	struct walk w = {
		.ranks = ranks, .n = n, .effort = {.cancel = cancel}, .fn = fn, .arg = arg};
	const char *name = NULL;
	uint32_t len = 0;
	int r = begin(&w);

	while (r == 0 && w.pairs <= OVERLAP_PAIRS_MAX && next_name(&w, &name, &len)) {
		wake(&w, name, len);
		r = hold_name(&w, name, len);
		if (r == 0)
			r = meet_all(&w);
	}
	if (ret_looks)
		*ret_looks = w.looks;
	alloc_free(w.cursor);
	alloc_free(w.awake);
	alloc_free(w.asleep.who);
	alloc_free(w.held);
	return r;
}

/* ---- Their bytes ---- */

static const uint8_t *bytes_at(const struct shard *s, const uint8_t *image, const uint64_t *at)
{
	uint64_t index = box_index(&s->box, at);

	assert(index >= s->start && index < s->stop);
	return image + s->image_offset + (index - s->start) * dtype_bytes(s->dtype);
}

bool overlap_differs(const struct overlap *o, const uint8_t *const image[2],
		     const atomic_bool *cancel, struct box *ret_at)
{
	struct effort effort = {.cancel = cancel};
	uint32_t ndim = o->region.ndim;
	uint64_t element = dtype_bytes(o->shard[0].dtype);
	uint64_t row = ndim ? o->region.length[ndim - 1] : 1;
	struct box at = o->region;

	for (uint32_t k = 0; k < ndim; k++)
		at.length[k] = 1;
	for (;;) {
		const uint8_t *a = bytes_at(&o->shard[0], image[0], at.offset);
		const uint8_t *b = bytes_at(&o->shard[1], image[1], at.offset);
		uint32_t k = ndim ? ndim - 1 : 0;

		if (memcmp(a, b, row * element) != 0) {
			uint64_t i = 0, bytes = row * element;

			/* Who has the images may write to them: then all may be alike by now. */
			while (i < bytes - 1 && a[i] == b[i])
				i++;
			if (ndim)
				at.offset[ndim - 1] += i / element;
			*ret_at = at;
			return true;
		}
		/* The next row. */
		while (k > 0 &&
		       ++at.offset[k - 1] == o->region.offset[k - 1] + o->region.length[k - 1]) {
			at.offset[k - 1] = o->region.offset[k - 1];
			k--;
		}
		if (k == 0 || effort_spend(&effort, 1) < 0)
			return false;
	}
}
