/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks the rows of strided memory, and finds rows that overlap. Pure; any thread.
 *
 * Rows overlap where a sum of strides, each times a number from 0 to its count, falls into a short
 * interval. The largest stride is tried first: for the strides of an array, where a row is longer
 * than all that is inside it, one or two numbers are left for each. Strides that nest in no such
 * way take longer, and STEPS_MAX bounds it.
 */
#include <config.h>

#include "model/strided.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/bytes.h"

int strided_init(struct strided *ret, const struct shard *s, const int64_t *strides)
{
	struct strided out = { .run = dtype_bytes(s->dtype) };
	struct strided inner_first = { 0 };
	uint32_t n = 0;

	assert(out.run > 0 && s->box.ndim <= CKPT_NDIM_MAX);
	if (s->flat)
		return -EINVAL;
	for (uint32_t k = s->box.ndim; k-- > 0 && s->bytes;) {
		uint64_t length = s->box.length[k];

		if (length == 1)
			continue;
		if (n == 0 && strides[k] == (int64_t)out.run) {
			out.run *= length;
		} else if (n > 0 && (uint64_t)strides[k] == (uint64_t)inner_first.stride[n - 1] *
								    inner_first.count[n - 1]) {
			inner_first.count[n - 1] *= length;
		} else {
			inner_first.stride[n] = strides[k];
			inner_first.count[n++] = length;
		}
	}
	out.ndim = n;
	for (uint32_t k = 0; k < n; k++) {
		out.count[k] = inner_first.count[n - 1 - k];
		out.stride[k] = inner_first.stride[n - 1 - k];
	}
	*ret = out;
	return 0;
}

int64_t strided_row(const struct strided *s, uint64_t row, uint64_t *ret_more)
{
	int64_t offset = 0;

	*ret_more = 0;
	for (uint32_t k = s->ndim; k-- > 0;) {
		uint64_t i = row % s->count[k];

		row /= s->count[k];
		offset += (int64_t)i * s->stride[k];
		if (k == s->ndim - 1)
			*ret_more = s->count[k] - 1 - i;
	}
	assert(row == 0);
	return offset;
}

/* One direction or the other, a row or a part of one at a time. */
static void walk(const struct strided *s, uint8_t *base, uint64_t at, uint8_t *packed, uint64_t len,
		 bool scatter)
{
	uint64_t row = at / s->run, skip = at % s->run, more = 0;
	int64_t offset = 0;

	if (len == 0)
		return;
	offset = strided_row(s, row, &more);
	for (;;) {
		uint64_t n = min_u64(len, s->run - skip);
		uint8_t *p = base + offset + skip;

		if (scatter)
			memcpy(p, packed, n);
		else
			memcpy(packed, p, n);
		packed += n;
		len -= n;
		skip = 0;
		if (len == 0)
			return;
		row++;
		if (more > 0) {
			offset += s->stride[s->ndim - 1];
			more--;
		} else {
			offset = strided_row(s, row, &more);
		}
	}
}

void strided_scatter(const struct strided *s, uint8_t *base, uint64_t at, const uint8_t *packed,
		     uint64_t len)
{
	walk(s, base, at, (uint8_t *)packed, len, true);
}

void strided_gather(const struct strided *s, const uint8_t *base, uint64_t at, uint8_t *packed,
		    uint64_t len)
{
	walk(s, (uint8_t *)base, at, packed, len, false);
}

/* ---- What overlaps ---- */

#define TERMS_MAX (2 * CKPT_NDIM_MAX)
#define STEPS_MAX 200000u

/* by * x, x from 0 to n; and the greatest sum of this term and all behind it, and their divisor. */
struct term {
	int64_t by, n;
	int64_t greatest, divisor;
};

struct sums {
	struct term terms[TERMS_MAX];
	uint32_t n, steps;
};

static int64_t divisor_of(int64_t a, int64_t b)
{
	while (b) {
		int64_t rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

static int64_t floor_div(int64_t a, int64_t by)
{
	return a / by - (a % by < 0);
}

/* Sorted by `by`, the largest first; terms of one stride become one. */
static void sums_add(struct sums *s, int64_t by, int64_t n)
{
	uint32_t at = 0;

	assert(by > 0 && n >= 0 && s->n < TERMS_MAX);
	if (n == 0)
		return;
	while (at < s->n && s->terms[at].by > by)
		at++;
	if (at < s->n && s->terms[at].by == by) {
		s->terms[at].n += n;
		return;
	}
	memmove(&s->terms[at + 1], &s->terms[at], (s->n - at) * sizeof(s->terms[0]));
	s->terms[at] = (struct term){.by = by, .n = n};
	s->n++;
}

static void sums_finish(struct sums *s)
{
	int64_t greatest = 0, divisor = 0;

	for (uint32_t i = s->n; i-- > 0;) {
		greatest += s->terms[i].by * s->terms[i].n;
		divisor = divisor_of(s->terms[i].by, divisor);
		s->terms[i].greatest = greatest;
		s->terms[i].divisor = divisor;
	}
}

/* Whether a sum of the terms from the i-th on is in [lo, hi]. */
static bool sums_reach(struct sums *s, uint32_t i, int64_t lo, int64_t hi)
{
	const struct term *t = &s->terms[i];
	int64_t inner, x, last;

	if (lo <= 0 && hi >= 0)
		return true;
	if (i == s->n || hi < 0 || lo > t->greatest)
		return false;
	if (floor_div(hi, t->divisor) * t->divisor < lo)
		return false;
	inner = t->greatest - t->by * t->n;
	x = lo > inner ? -floor_div(inner - lo, t->by) : 0;
	last = hi / t->by < t->n ? hi / t->by : t->n;
	for (; x <= last && s->steps < STEPS_MAX; x++) {
		s->steps++;
		if (sums_reach(s, i + 1, lo - x * t->by, hi - x * t->by))
			return true;
	}
	return false;
}

bool strided_reach(const struct shard *s, const int64_t *strides, int64_t *ret_lo, int64_t *ret_hi)
{
	int64_t lo = 0, hi = (int64_t)dtype_bytes(s->dtype), reach;

	assert(!s->flat && s->box.ndim <= CKPT_NDIM_MAX);
	for (uint32_t k = 0; k < s->box.ndim && s->bytes; k++) {
		if (s->box.length[k] == 1 || strides[k] == 0)
			continue;
		if (s->box.length[k] > (uint64_t)STRIDED_REACH_MAX ||
		    __builtin_mul_overflow((int64_t)s->box.length[k] - 1, strides[k], &reach))
			return false;
		if (__builtin_add_overflow(reach < 0 ? lo : hi, reach, reach < 0 ? &lo : &hi))
			return false;
		if (lo < -STRIDED_REACH_MAX || hi > STRIDED_REACH_MAX)
			return false;
	}
	*ret_lo = lo;
	*ret_hi = hi;
	return true;
}

static int64_t magnitude(int64_t stride)
{
	return stride < 0 ? -stride : stride;
}

/* The first dimension in which two rows differ is k, and they differ by at least 1: of those before
 * it nothing is left, of those behind it all differences are possible. */
static bool meets_from(const struct strided *s, const uint32_t *order, uint32_t k)
{
	struct sums sums = {.n = 0};
	int64_t by = magnitude(s->stride[order[k]]), middle = -by;

	sums_add(&sums, by, (int64_t)s->count[order[k]] - 2);
	for (uint32_t i = k + 1; i < s->ndim; i++) {
		int64_t n = (int64_t)s->count[order[i]] - 1;
		int64_t inner = magnitude(s->stride[order[i]]);

		sums_add(&sums, inner, 2 * n);
		middle += inner * n;
	}
	sums_finish(&sums);
	return sums_reach(&sums, 0, middle - ((int64_t)s->run - 1), middle + ((int64_t)s->run - 1));
}

bool strided_meets_itself(const struct strided *s)
{
	uint32_t order[CKPT_NDIM_MAX]; /* the largest stride first */
	int64_t inside = (int64_t)s->run;
	bool nested = true;

	for (uint32_t k = 0; k < s->ndim; k++) {
		uint32_t at = k;

		if (s->stride[k] == 0)
			return true;
		while (at > 0 && magnitude(s->stride[order[at - 1]]) < magnitude(s->stride[k])) {
			order[at] = order[at - 1];
			at--;
		}
		order[at] = k;
	}
	for (uint32_t i = s->ndim; i-- > 0 && nested;) {
		nested = magnitude(s->stride[order[i]]) >= inside;
		inside += magnitude(s->stride[order[i]]) * ((int64_t)s->count[order[i]] - 1);
	}
	for (uint32_t i = 0; i < s->ndim && !nested; i++)
		if (meets_from(s, order, i))
			return true;
	return false;
}

/* Adds the strides of one box as positive ones; returns the least of what they add up to. */
static int64_t sums_box(struct sums *sums, const struct strided *s, bool minus)
{
	int64_t shift = 0;

	for (uint32_t k = 0; k < s->ndim; k++) {
		int64_t n = (int64_t)s->count[k] - 1;

		if (s->stride[k] == 0)
			continue;
		sums_add(sums, magnitude(s->stride[k]), n);
		/* Where the rows of a box count with a minus its positive strides go down. */
		if ((s->stride[k] < 0) != minus)
			shift -= magnitude(s->stride[k]) * n;
	}
	return shift;
}

bool strided_meet(const struct strided *a, const struct strided *b, int64_t distance)
{
	struct sums sums = {.n = 0};
	/* A row of a less one of b: from `least` on, by the sums. They overlap near 0. */
	int64_t least = sums_box(&sums, a, false) + sums_box(&sums, b, true) - distance;

	sums_finish(&sums);
	return sums_reach(&sums, 0, -least - ((int64_t)a->run - 1),
			  -least + ((int64_t)b->run - 1));
}
