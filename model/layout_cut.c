/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One cut of one dimension, and what it leaves to a rank. Pure; any thread.
 *
 * 1. The parts of a cut, in order, are rising ranges that together are [0, length).
 * 2. Segments rise and do not touch; only an empty dimension has an empty one.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>

#include "base/bytes.h"
#include "model/layout_rules.h"

typedef unsigned long long llu;

uint32_t layout_over_size(const struct layout *l, const struct layout_over *o)
{
	uint64_t n = 1;

	for (uint32_t i = 0; i < o->n; i++)
		n *= l->axes[o->axis[i]].size;
	assert(n <= l->world);
	return (uint32_t)n;
}

uint32_t layout_over_at(const struct layout *l, const struct layout_over *o, uint32_t rank)
{
	uint32_t at = 0;

	for (uint32_t i = 0; i < o->n; i++) {
		const struct layout_axis *a = &l->axes[o->axis[i]];

		at = at * a->size + rank / a->stride % a->size;
	}
	return at;
}

/* Whole units, the first ones one more each; where there are fewer than parts, n / units parts in a
 * row have the same one (grouped-query attention). */
static int even_range(uint64_t units, uint64_t length, uint32_t n, uint32_t i, uint64_t ret[2],
		      struct err *e)
{
	uint64_t unit = 1;

	if (units) {
		if (length % units)
			return err_set(e, -EINVAL, "%llu elements are no multiple of %llu units",
				       (llu)length, (llu)units);
		unit = length / units;
		length = units;
		if (units < n) {
			if (n % units)
				return err_set(e, -EINVAL,
					       "%llu units can be neither cut in %u parts nor "
					       "shared by as many ranks each",
					       (llu)units, n);
			i /= n / (uint32_t)units;
			n = (uint32_t)units;
		}
	}
	ret[0] = unit * (length / n * i + min_u64(i, length % n));
	ret[1] = unit * (length / n * (i + 1) + min_u64(i + 1, length % n));
	return 0;
}

static int chunk_range(uint64_t pad, uint64_t length, uint32_t n, uint32_t i, uint64_t ret[2],
		       struct err *e)
{
	uint64_t each = div_up(length, n), padded;

	if (pad) {
		if (pad % n)
			return err_set(e, -EINVAL,
				       "a length padded to a multiple of %llu cannot be cut in %u "
				       "equal parts",
				       (llu)pad, n);
		if (!size_mul(div_up(length, pad), pad, &padded))
			return err_set(e, -EINVAL,
				       "%llu elements cannot be padded to a multiple "
				       "of %llu",
				       (llu)length, (llu)pad);
		each = padded / n;
	}
	/* each * n may be more than fits: what counts is where it passes the end. */
	ret[0] = each && i > length / each ? length : min_u64(each * i, length);
	ret[1] = length - ret[0] < each ? length : ret[0] + each;
	return 0;
}

int layout_part_range(const struct layout_cut *c, uint64_t units, uint64_t length, uint32_t n,
		      uint32_t i, uint64_t ret[2], struct err *e)
{
	assert(i < n && n <= LAYOUT_WORLD_MAX);
	switch (c->how) {
	case LAYOUT_EVEN:
		return even_range(units, length, n, i, ret, e);
	case LAYOUT_CHUNK:
		return chunk_range(c->pad, length, n, i, ret, e);
	case LAYOUT_FLOOR:
		break;
	}
	ret[0] = length / n * i + length % n * i / n;
	ret[1] = length / n * (i + 1) + length % n * (i + 1) / n;
	return 0;
}

/* Appends what [from, to) of s is. Ranges come in rising order. */
static bool append_range(struct layout_segments *out, const struct layout_segments *s,
			 uint64_t from, uint64_t to)
{
	uint64_t at = 0;

	for (uint32_t i = 0; i < s->n; at += s->length[i++]) {
		uint64_t lo = max_u64(from, at), hi = min_u64(to, at + s->length[i]);
		uint64_t offset = s->offset[i] + (lo - at);

		if (lo >= hi)
			continue;
		if (out->n && out->offset[out->n - 1] + out->length[out->n - 1] == offset) {
			out->length[out->n - 1] += hi - lo;
		} else if (out->n == LAYOUT_SEGMENTS_MAX) {
			return false;
		} else {
			out->offset[out->n] = offset;
			out->length[out->n++] = hi - lo;
		}
		out->total += hi - lo;
	}
	return true;
}

static uint64_t weight_of(const struct layout_cut *c)
{
	uint64_t all = 0;

	for (uint32_t i = 0; i < c->n_parts; i++)
		all += c->parts[i].weight;
	return all;
}

int layout_cut_segments(const struct layout *l, const struct layout_cut *c, uint32_t rank,
			struct layout_segments *s, struct err *e)
{
	uint32_t n = layout_over_size(l, &c->over), at = layout_over_at(l, &c->over, rank);
	struct layout_part one = { .weight = 1, .units = c->units };
	const struct layout_part *parts = c->n_parts ? c->parts : &one;
	uint64_t weight = c->n_parts ? weight_of(c) : 1, begin = 0, range[2];
	struct layout_segments out = { 0 };

	if (s->total % weight)
		return err_set(e, -EINVAL, "%llu elements cannot be %u parts of %llu weights",
			       (llu)s->total, c->n_parts, (llu)weight);
	for (uint32_t i = 0; i < max_u64(c->n_parts, 1); i++) {
		uint64_t length = s->total / weight * parts[i].weight;
		int r = layout_part_range(c, parts[i].units, length, n, at, range, e);

		if (r)
			return r;
		if (!append_range(&out, s, begin + range[0], begin + range[1]))
			return err_set(e, -EINVAL, "it comes in more than %u pieces",
				       LAYOUT_SEGMENTS_MAX);
		begin += length;
	}
	if (!out.n) {
		out.n = 1;
		out.offset[0] = s->offset[0];
	}
	*s = out;
	return 0;
}
