/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is done with a piece: copy the part of it that a window holds, say which units it touches.
 * Data path: no allocation, no failure; any thread.
 *
 * Rows in lexicographic order have rising, disjoint source ranges (plan.h: both sides are
 * row-major), so the rows of a window are one run of them, and its first one is found by division.
 */
#include <config.h>

#include "model/plan.h"

#include <assert.h>

#include "codec/copy.h"

static uint64_t span(const struct plan_piece *p, uint32_t from)
{
	uint64_t bytes = p->run;

	for (uint32_t k = from; k < p->ndim; k++)
		bytes += (p->count[k] - 1) * p->src_stride[k];
	return bytes;
}

void plan_piece_span(const struct plan_piece *p, uint64_t *ret_lo, uint64_t *ret_hi)
{
	*ret_lo = p->src;
	*ret_hi = p->src + span(p, 0);
}

/* n rows of run bytes. */
struct rows {
	uint64_t n, run;
	uint64_t src_stride, dst_stride;
};

static void copy_rows(const struct rows *rows, const uint8_t *src, uint8_t *dst)
{
	uint64_t n = rows->n, ss = rows->src_stride, ds = rows->dst_stride;

	/* Short rows are elements of a transposed or column-cut tensor: a call of memcpy for each
	 * would cost more than the copy. */
#define COPY_FIXED(bytes)                                                                          \
	case bytes:                                                                                \
		for (uint64_t i = 0; i < n; i++)                                                   \
			memcpy(dst + i * ds, src + i * ss, bytes);                                 \
		return
	switch (rows->run) {
		COPY_FIXED(1);
		COPY_FIXED(2);
		COPY_FIXED(4);
		COPY_FIXED(8);
		COPY_FIXED(16);
		COPY_FIXED(32);
	default:
		break;
	}
#undef COPY_FIXED
	for (uint64_t i = 0; i < n; i++)
		copy_row(dst + i * ds, src + i * ss, rows->run);
}

/* A place in the walk over rows. */
struct cursor {
	uint64_t at[CKPT_NDIM_MAX];
	uint64_t src, dst; /* of the row */
	bool end;
};

/* n rows on within the innermost dimension, which must not end before. */
static void advance(const struct plan_piece *p, struct cursor *c, uint64_t n)
{
	uint32_t k = p->ndim;

	if (k == 0) {
		c->end = true;
		return;
	}
	k--;
	assert(n <= p->count[k] - c->at[k]);
	c->at[k] += n;
	c->src += n * p->src_stride[k];
	c->dst += n * p->dst_stride[k];
	while (c->at[k] == p->count[k]) {
		c->src -= p->count[k] * p->src_stride[k];
		c->dst -= p->count[k] * p->dst_stride[k];
		c->at[k] = 0;
		if (k == 0) {
			c->end = true;
			return;
		}
		k--;
		c->at[k]++;
		c->src += p->src_stride[k];
		c->dst += p->dst_stride[k];
	}
}

/* The first row that ends after image byte lo. */
static struct cursor seek_row(const struct plan_piece *p, uint64_t lo)
{
	struct cursor c = { .src = p->src, .dst = p->dst };
	uint64_t rest = lo > p->src ? lo - p->src : 0;

	for (uint32_t k = 0; k < p->ndim; k++) {
		c.at[k] = min_u64(rest / p->src_stride[k], p->count[k] - 1);
		rest -= c.at[k] * p->src_stride[k];
		c.src += c.at[k] * p->src_stride[k];
		c.dst += c.at[k] * p->dst_stride[k];
	}
	if (rest >= p->run)
		advance(p, &c, 1);
	return c;
}

/* How many rows from c on, within the innermost dimension, end at or before hi. */
static uint64_t whole_rows(const struct plan_piece *p, const struct cursor *c, uint64_t hi)
{
	uint32_t k = p->ndim - 1;

	if (p->ndim == 0)
		return 1;
	return min_u64(p->count[k] - c->at[k], (hi - c->src - p->run) / p->src_stride[k] + 1);
}

typedef void rows_fn(void *arg, const struct rows *rows, const uint8_t *src, uint64_t dst);

/* Calls fn with the rows, or parts of rows, that lie in [lo, hi). */
static void walk(const struct plan_piece *p, const uint8_t *window, uint64_t lo, uint64_t hi,
		 rows_fn *fn, void *arg)
{
	struct rows rows = { 0 };
	struct cursor c;

	assert(lo <= hi && p->run > 0);
	if (lo == hi)
		return;
	if (p->ndim) {
		rows.src_stride = p->src_stride[p->ndim - 1];
		rows.dst_stride = p->dst_stride[p->ndim - 1];
	}
	for (c = seek_row(p, lo); !c.end && c.src < hi; advance(p, &c, rows.n)) {
		uint64_t from = max_u64(c.src, lo), to = min_u64(c.src + p->run, hi);

		rows.run = to - from;
		rows.n = rows.run == p->run ? whole_rows(p, &c, hi) : 1;
		assert(from < to && rows.n > 0);
		fn(arg, &rows, window + (from - lo), c.dst + (from - c.src));
	}
}

static void rows_packed(void *arg, const struct rows *rows, const uint8_t *src, uint64_t dst)
{
	copy_rows(rows, src, (uint8_t *)arg + dst);
}

void plan_piece_copy(const struct plan_piece *p, const uint8_t *window, uint64_t lo, uint64_t hi,
		     uint8_t *dst)
{
	walk(p, window, lo, hi, rows_packed, dst);
}

struct strided_target {
	const struct strided *layout;
	uint8_t *base;
};

static void rows_strided(void *arg, const struct rows *rows, const uint8_t *src, uint64_t dst)
{
	const struct strided_target *t = arg;

	for (uint64_t i = 0; i < rows->n; i++)
		strided_scatter(t->layout, t->base, dst + i * rows->dst_stride,
				src + i * rows->src_stride, rows->run);
}

void plan_piece_copy_strided(const struct plan_piece *p, const uint8_t *window, uint64_t lo,
			     uint64_t hi, const struct strided *layout, uint8_t *dst)
{
	struct strided_target t = { layout, dst };

	walk(p, window, lo, hi, rows_strided, &t);
}

/* ---- Units ---- */

struct units {
	const struct plan_piece *piece;
	uint64_t unit;
	plan_units_fn *fn;
	void *arg;
	bool any;
	uint64_t first, last; /* not yet told */
};

static void add_units(struct units *u, uint64_t lo, uint64_t hi)
{
	uint64_t first = lo / u->unit, last = (hi - 1) / u->unit;

	assert(lo < hi && (!u->any || first >= u->last));
	if (u->any && first <= u->last + 1) {
		u->last = last;
		return;
	}
	if (u->any)
		u->fn(u->arg, u->first, u->last);
	u->any = true;
	u->first = first;
	u->last = last;
}

/*
 * The part of the piece at image byte `at` with dimensions [k, ndim). Where no gap between its
 * rows holds a whole unit all units of its span are touched and nothing is walked: the work is
 * bounded by the units told, not by the rows.
 */
static void find_units(struct units *u, uint32_t k, uint64_t at)
{
	const struct plan_piece *p = u->piece;
	bool dense = true;

	for (uint32_t i = k; i < p->ndim; i++)
		dense = dense && p->src_stride[i] - span(p, i + 1) < u->unit;
	if (dense) {
		add_units(u, at, at + span(p, k));
		return;
	}
	for (uint64_t i = 0; i < p->count[k]; i++)
		find_units(u, k + 1, at + i * p->src_stride[k]);
}

void plan_piece_units(const struct plan_piece *p, uint64_t unit, plan_units_fn *fn, void *arg)
{
	struct units u = { .piece = p, .unit = unit, .fn = fn, .arg = arg };

	assert(unit > 0 && p->run > 0);
	find_units(&u, 0, p->src);
	fn(arg, u.first, u.last);
}
