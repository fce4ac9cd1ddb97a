/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks for two boxes that share an element by dividing space, one dimension after the other.
 * Pure; one thread per struct.
 *
 * A slab is an interval of one dimension. Of the boxes that lie in it some span it and the others
 * have an end inside it. Whether one that spans it meets another one is a question about the other
 * dimensions only. The others are divided at a value v between the ends that lie inside: into
 * those that begin before v and those that end behind it, and the two slabs are searched alike.
 *
 * 1. Two boxes that share an element share it in one of two neighbouring slabs, and all boxes of a
 *    slab overlap it: so no pair is passed over. Each reported pair is compared once more, as whole
 *    boxes, so that none is reported wrongly.
 * 2. v halves the interval in which the ends lie. So a dimension of length N has at most log2(N)
 *    levels of slabs; on each level a box has an end in at most two slabs, and spans at most two
 *    of those whose parent it does not span. Each dimension costs a factor of O(log N).
 * 3. A dimension in which all boxes at hand share a point, because they span a slab or because of
 *    how the tensor is cut, is not looked at again. When none is left, any two of them meet.
 * 4. The dimension in which boxes are shortest, compared with the space they lie in, goes first.
 *    That is what keeps ordinary cuts cheap; the bound does not rest on it.
 *
 * All of it happens in one array of box numbers, in place: a set is a run of that array, and a
 * call may reorder the run that it is given, nothing else.
 */
#include <config.h>

#include "model/disjoint.h"

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"
#include "base/bytes.h"

#define FEW 8u /* so many are compared with each other */

/* Where the boxes of a set lie in one dimension. */
struct extent {
	uint64_t lo_min, lo_max, hi_min, hi_max;
	double lengths; /* of all: only to choose a dimension */
};

struct overlap_search {
	const uint64_t *at;
	uint32_t ndim;
	struct effort *effort;
	uint32_t pair[2]; /* that was found */
};

struct set {
	uint32_t *box;
	size_t n;
};

/* Dimension k is what is searched, in [lo, hi); rest has a bit for each of the others. */
struct slab {
	uint32_t k, rest;
	uint64_t lo, hi;
};

static uint64_t lo_of(const struct overlap_search *s, uint32_t box, uint32_t k)
{
	return s->at[((size_t)box * s->ndim + k) * 2];
}

static uint64_t hi_of(const struct overlap_search *s, uint32_t box, uint32_t k)
{
	return s->at[((size_t)box * s->ndim + k) * 2 + 1];
}

/* Counts what is about to be looked at; an error ends the search. */
static int count(struct overlap_search *s, size_t n)
{
	return effort_spend_bounded(s->effort, n);
}

static bool meet(const struct overlap_search *s, uint32_t a, uint32_t b)
{
	for (uint32_t k = 0; k < s->ndim; k++)
		if (lo_of(s, a, k) >= hi_of(s, b, k) || lo_of(s, b, k) >= hi_of(s, a, k))
			return false;
	return true;
}

static int found(struct overlap_search *s, uint32_t a, uint32_t b)
{
	assert(a != b && meet(s, a, b)); /* (1) */
	s->pair[0] = a;
	s->pair[1] = b;
	return 1;
}

/* ---- Small sets ---- */

static int compare_all(struct overlap_search *s, struct set x)
{
	int r = count(s, x.n * x.n / 2);

	for (size_t i = 0; i < x.n && r == 0; i++)
		for (size_t j = i + 1; j < x.n && r == 0; j++)
			if (meet(s, x.box[i], x.box[j]))
				r = found(s, x.box[i], x.box[j]);
	return r;
}

static int compare_both(struct overlap_search *s, struct set a, struct set b)
{
	int r = count(s, a.n * b.n);

	for (size_t i = 0; i < a.n && r == 0; i++)
		for (size_t j = 0; j < b.n && r == 0; j++)
			if (meet(s, a.box[i], b.box[j]))
				r = found(s, a.box[i], b.box[j]);
	return r;
}

/* ---- Sets ---- */

static struct set first_of(struct set x, size_t n)
{
	assert(n <= x.n);
	x.n = n;
	return x;
}

static struct set after(struct set x, size_t n)
{
	assert(n <= x.n);
	x.box += n;
	x.n -= n;
	return x;
}

static void swap_boxes(uint32_t *a, uint32_t *b)
{
	uint32_t x = *a;

	*a = *b;
	*b = x;
}

static void measure(const struct overlap_search *s, struct set x, uint32_t dims,
		    struct extent ret[CKPT_NDIM_MAX])
{
	for (uint32_t k = 0; k < s->ndim; k++)
		ret[k] = (struct extent){ .lo_min = UINT64_MAX, .hi_min = UINT64_MAX };
	for (size_t i = 0; i < x.n; i++) {
		for (uint32_t left = dims; left; left &= left - 1) {
			uint32_t k = (uint32_t)__builtin_ctz(left);
			uint64_t lo = lo_of(s, x.box[i], k), hi = hi_of(s, x.box[i], k);
			struct extent *e = &ret[k];

			e->lo_min = min_u64(e->lo_min, lo);
			e->lo_max = max_u64(e->lo_max, lo);
			e->hi_min = min_u64(e->hi_min, hi);
			e->hi_max = max_u64(e->hi_max, hi);
			e->lengths += (double)(hi - lo);
		}
	}
}

/* Those that overlap the extents come first; returns how many they are. */
static size_t near_first(const struct overlap_search *s, struct set x, uint32_t dims,
			 const struct extent e[CKPT_NDIM_MAX])
{
	size_t n = 0;

	for (size_t i = 0; i < x.n; i++) {
		uint32_t left = dims;

		while (left) {
			uint32_t k = (uint32_t)__builtin_ctz(left);

			if (lo_of(s, x.box[i], k) >= e[k].hi_max ||
			    hi_of(s, x.box[i], k) <= e[k].lo_min)
				break;
			left &= left - 1;
		}
		if (left == 0)
			swap_boxes(&x.box[n++], &x.box[i]);
	}
	return n;
}

/* ---- Slabs ---- */

static size_t spanning_first(const struct overlap_search *s, struct set x, const struct slab *b)
{
	size_t n = 0;

	for (size_t i = 0; i < x.n; i++)
		if (lo_of(s, x.box[i], b->k) <= b->lo && hi_of(s, x.box[i], b->k) >= b->hi)
			swap_boxes(&x.box[n++], &x.box[i]);
	return n;
}

static size_t beginning_before(const struct overlap_search *s, struct set x, uint32_t k, uint64_t v)
{
	size_t n = 0;

	for (size_t i = 0; i < x.n; i++)
		if (lo_of(s, x.box[i], k) < v)
			swap_boxes(&x.box[n++], &x.box[i]);
	return n;
}

static size_t ending_until(const struct overlap_search *s, struct set x, uint32_t k, uint64_t v)
{
	size_t n = 0;

	for (size_t i = 0; i < x.n; i++)
		if (hi_of(s, x.box[i], k) <= v)
			swap_boxes(&x.box[n++], &x.box[i]);
	return n;
}

/* The ends that lie inside of the slab: the least and the greatest into e[0] and e[1]. */
static void inner_ends(const struct overlap_search *s, struct set x, const struct slab *b,
		       uint64_t e[2])
{
	for (size_t i = 0; i < x.n; i++) {
		uint64_t lo = lo_of(s, x.box[i], b->k), hi = hi_of(s, x.box[i], b->k);

		assert(lo > b->lo || hi < b->hi);
		if (lo > b->lo) {
			e[0] = min_u64(e[0], lo);
			e[1] = max_u64(e[1], lo);
		}
		if (hi < b->hi) {
			e[0] = min_u64(e[0], hi);
			e[1] = max_u64(e[1], hi);
		}
	}
}

/* Where the slab is divided (2). */
static uint64_t middle(const uint64_t e[2])
{
	assert(e[0] <= e[1]);
	return e[0] + (e[1] - e[0]) / 2;
}

/* (3): of dims those that are not common to all pairs of a and b. */
static uint32_t open_dims(uint32_t dims, const struct extent a[CKPT_NDIM_MAX],
			  const struct extent b[CKPT_NDIM_MAX])
{
	uint32_t open = 0;

	for (uint32_t left = dims; left; left &= left - 1) {
		uint32_t k = (uint32_t)__builtin_ctz(left);

		if (a[k].lo_max >= b[k].hi_min || b[k].lo_max >= a[k].hi_min)
			open |= 1u << k;
	}
	return open;
}

/* (4): the slab of the whole space of both in the dimension that divides them best. */
static struct slab choose(uint32_t dims, const struct extent a[CKPT_NDIM_MAX],
			  const struct extent b[CKPT_NDIM_MAX])
{
	struct slab ret = { 0 };
	double best = 0;
	bool any = false;

	assert(dims);
	for (uint32_t left = dims; left; left &= left - 1) {
		uint32_t k = (uint32_t)__builtin_ctz(left);
		uint64_t lo = min_u64(a[k].lo_min, b[k].lo_min);
		uint64_t hi = max_u64(a[k].hi_max, b[k].hi_max);
		double part = (a[k].lengths + b[k].lengths) / (double)(hi - lo);

		if (any && part >= best)
			continue;
		ret = (struct slab){ .k = k, .rest = dims & ~(1u << k), .lo = lo, .hi = hi };
		best = part;
		any = true;
	}
	return ret;
}

/* ---- One of a with one of b ---- */

static int search_both(struct overlap_search *s, struct set a, struct set b, uint32_t dims);

/* Depth: at most 64, by (2), over all dimensions. */
static int slab_both(struct overlap_search *s, struct set a, struct set b, struct slab at)
{
	size_t a_spans, b_spans;
	uint64_t ends[2] = { UINT64_MAX, 0 };
	struct slab left = at, right = at;
	int r;

	if (a.n <= FEW || b.n <= FEW)
		return compare_both(s, a, b);
	r = count(s, a.n + b.n);
	a_spans = spanning_first(s, a, &at);
	b_spans = spanning_first(s, b, &at);
	if (r == 0)
		r = search_both(s, first_of(a, a_spans), first_of(b, b_spans), at.rest);
	if (r == 0)
		r = search_both(s, first_of(a, a_spans), after(b, b_spans), at.rest);
	if (r == 0)
		r = search_both(s, after(a, a_spans), first_of(b, b_spans), at.rest);
	a = after(a, a_spans);
	b = after(b, b_spans);
	if (r || a.n == 0 || b.n == 0)
		return r;
	inner_ends(s, a, &at, ends);
	inner_ends(s, b, &at, ends);
	left.hi = right.lo = middle(ends);
	r = slab_both(s, first_of(a, beginning_before(s, a, at.k, left.hi)),
		      first_of(b, beginning_before(s, b, at.k, left.hi)), left);
	return r ? r
		 : slab_both(s, after(a, ending_until(s, a, at.k, left.hi)),
			     after(b, ending_until(s, b, at.k, left.hi)), right);
}

/* In the dimensions that are not in dims all of them share a point. */
static int search_both(struct overlap_search *s, struct set a, struct set b, uint32_t dims)
{
	struct extent of_a[CKPT_NDIM_MAX], of_b[CKPT_NDIM_MAX];
	int r;

	if (a.n == 0 || b.n == 0)
		return 0;
	if (dims == 0)
		return found(s, a.box[0], b.box[0]);
	if (a.n <= FEW || b.n <= FEW)
		return compare_both(s, a, b);
	r = count(s, a.n + b.n);
	if (r)
		return r;
	measure(s, a, dims, of_a);
	b = first_of(b, near_first(s, b, dims, of_a));
	if (b.n == 0)
		return 0;
	measure(s, b, dims, of_b);
	a = first_of(a, near_first(s, a, dims, of_b));
	if (a.n == 0)
		return 0;
	dims = open_dims(dims, of_a, of_b);
	if (dims == 0)
		return found(s, a.box[0], b.box[0]);
	return slab_both(s, a, b, choose(dims, of_a, of_b));
}

/* ---- Two of one set ---- */

static int search_one(struct overlap_search *s, struct set x, uint32_t dims);

/* Depth: as that of slab_both(). */
static int slab_one(struct overlap_search *s, struct set x, struct slab at)
{
	uint64_t ends[2] = { UINT64_MAX, 0 };
	struct slab left = at, right = at;
	size_t spans;
	int r;

	if (x.n <= FEW)
		return compare_all(s, x);
	r = count(s, x.n);
	spans = spanning_first(s, x, &at);
	if (r == 0)
		r = search_one(s, first_of(x, spans), at.rest);
	if (r == 0)
		r = search_both(s, first_of(x, spans), after(x, spans), at.rest);
	x = after(x, spans);
	if (r || x.n == 0)
		return r;
	inner_ends(s, x, &at, ends);
	left.hi = right.lo = middle(ends);
	r = slab_one(s, first_of(x, beginning_before(s, x, at.k, left.hi)), left);
	return r ? r : slab_one(s, after(x, ending_until(s, x, at.k, left.hi)), right);
}

/* The usual case, a tensor that is cut along one dimension and declared in its order: each begins
 * where the one before it ends, or later. */
static bool in_order(const struct overlap_search *s, struct set x, uint32_t k)
{
	for (size_t i = 1; i < x.n; i++)
		if (lo_of(s, x.box[i], k) < hi_of(s, x.box[i - 1], k))
			return false;
	return true;
}

/* In the dimensions that are not in dims all of them share a point. */
static int search_one(struct overlap_search *s, struct set x, uint32_t dims)
{
	struct extent e[CKPT_NDIM_MAX];
	struct slab all;
	int r;

	if (x.n < 2)
		return 0;
	if (x.n <= FEW)
		return compare_all(s, x);
	r = count(s, x.n);
	if (r)
		return r;
	measure(s, x, dims, e);
	dims = open_dims(dims, e, e);
	if (dims == 0)
		return found(s, x.box[0], x.box[1]);
	all = choose(dims, e, e);
	return in_order(s, x, all.k) ? 0 : slab_one(s, x, all);
}

/* ---- The boxes ---- */

void disjoint_reset(struct disjoint *d, uint32_t ndim)
{
	assert(ndim <= CKPT_NDIM_MAX);
	d->ndim = ndim;
	d->n = 0;
	d->steps = 0;
}

void disjoint_fini(struct disjoint *d)
{
	alloc_free(d->at);
	alloc_free(d->order);
	*d = (struct disjoint){ 0 };
}

int disjoint_add(struct disjoint *d, const struct box *box)
{
	assert(box->ndim == d->ndim);
	if (d->n == UINT32_MAX)
		return -E2BIG;
	if ((d->n + 1) * 2 * d->ndim > d->cap_at) {
		size_t cap = max_u64(2 * d->cap_at, 16 * CKPT_NDIM_MAX);
		void *more = alloc_resize(d->at, cap * sizeof(*d->at));

		if (!more)
			return -ENOMEM;
		d->at = more;
		d->cap_at = cap;
	}
	for (uint32_t k = 0; k < d->ndim; k++) {
		uint64_t *at = &d->at[(d->n * d->ndim + k) * 2];

		assert(box->length[k] > 0);
		at[0] = box->offset[k];
		at[1] = box->offset[k] + box->length[k];
	}
	d->n++;
	return 0;
}

/* What the two that were found share. */
static void shared_box(const struct overlap_search *s, struct box *ret)
{
	*ret = (struct box){ .ndim = s->ndim };
	for (uint32_t k = 0; k < s->ndim; k++) {
		uint32_t a = s->pair[0], b = s->pair[1];

		ret->offset[k] = max_u64(lo_of(s, a, k), lo_of(s, b, k));
		ret->length[k] = min_u64(hi_of(s, a, k), hi_of(s, b, k)) - ret->offset[k];
	}
}

int disjoint_check(struct disjoint *d, struct effort *effort, struct box *ret)
{
	struct overlap_search s = { .at = d->at, .ndim = d->ndim, .effort = effort };
	uint64_t before = effort->steps;
	int r;

	if (d->n > d->cap_order) {
		void *more = alloc_resize(d->order, d->n * sizeof(*d->order));

		if (!more)
			return -ENOMEM;
		d->order = more;
		d->cap_order = d->n;
	}
	for (size_t i = 0; i < d->n; i++)
		d->order[i] = (uint32_t)i;
	r = search_one(&s, (struct set){ d->order, d->n }, (1u << d->ndim) - 1);
	d->steps = effort->steps - before;
	if (r == 1)
		shared_box(&s, ret);
	return r;
}
