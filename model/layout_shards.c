/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a tensor and a rank to shards: what is the name's rule, is the tensor placed here, what do
 * the cuts leave, which range of that is the rank's own. Pure; one thread at a time.
 *
 * 1. All axes that a tensor is cut or placed by are digits of the rank number that do not overlap:
 *    so that every combination of their coordinates is on some rank, on equally many each, and the
 *    shards of all ranks cover the tensor equally often.
 * 2. What a rank has is the product of its segments of each dimension; its order, row-major, keeps
 *    the order within each of its boxes: a range of it is one range of each.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "model/layout_rules.h"

typedef unsigned long long llu;

/* ---- Name ---- */

void layout_strip(const struct layout *l, const struct layout_tensor *t, struct layout_local *ret)
{
	ret->base = t->name;
	ret->base_len = t->name_len;
	ret->moment = -1;
	for (uint32_t i = 0; i < l->moments.n; i++) {
		const char *glob = l->moments.glob[i], *star = strchr(glob, '*');
		size_t before = (size_t)(star - glob), after = strlen(star + 1);

		if (t->name_len > before + after && !memcmp(t->name, glob, before) &&
		    !memcmp(t->name + t->name_len - after, star + 1, after)) {
			ret->base += before;
			ret->base_len -= (uint32_t)(before + after);
			ret->moment = (int)i;
			return;
		}
	}
}

static bool find_rule(const struct layout *l, struct layout_local *ret)
{
	struct layout_number number;

	for (uint32_t i = 0; i < l->n_rules; i++) {
		const struct layout_rule *rule = &l->rules[i];

		if (ret->moment < 0 ? !rule->params : !rule->moments)
			continue;
		if (layout_globs_match(&rule->globs, ret->base, ret->base_len, &number)) {
			ret->rule = rule;
			return !rule->fallback;
		}
	}
	return false;
}

/* ---- Place ---- */

/* Which of the axis's coordinates has number `value`. */
static uint32_t place_of(const struct layout *l, const struct layout_place *p, uint32_t count,
			 uint32_t value)
{
	uint32_t size = l->axes[p->axis].size, pieces = size * p->rounds, end = 0, piece = 0;

	assert(value < count);
	for (;; piece++) {
		assert(piece < pieces);
		end += p->sizes ? p->sizes[piece] : count / pieces + (piece < count % pieces);
		if (value < end)
			return piece % size;
	}
}

/* Whether the tensor is on this rank as far as this place goes; *used: the place says something. */
static int placed(const struct layout *l, uint32_t place, const struct layout_local *at,
		  uint32_t rank, bool *ret, bool *ret_used, struct err *e)
{
	const struct layout_place *p = &l->places[place];
	const struct layout_axis *a = &l->axes[p->axis];
	uint32_t here = rank / a->stride % a->size, count;
	struct layout_number number;

	*ret = *ret_used = true;
	if (layout_globs_match(&p->numbers, at->base, at->base_len, &number)) {
		count = layout_place_count(l, place);
		if (!count)
			return err_set(e, -EINVAL,
				       "how many numbers there are over axis '%s' is not known: "
				       "say it, or name all tensors first",
				       a->name);
		if (number.value >= count)
			return err_set(e, -EINVAL, "its number %u over axis '%s' is not below %u",
				       number.value, a->name, count);
		*ret = place_of(l, p, count, number.value) == here;
	} else if (layout_globs_match(&p->first, at->base, at->base_len, &number)) {
		*ret = here == 0;
	} else if (layout_globs_match(&p->last, at->base, at->base_len, &number)) {
		*ret = here == a->size - 1;
	} else if (layout_globs_match(&p->both, at->base, at->base_len, &number)) {
		*ret = here == 0 || here == a->size - 1;
	} else {
		*ret_used = false;
	}
	return 0;
}

/* ---- Axes ---- */

struct used {
	uint32_t n;
	uint8_t axis[LAYOUT_AXES_MAX];
};

/* Puts an axis in, by rising stride; an axis that is there already is there once. Sizes of 1 take
 * no part. */
static void use_axis(const struct layout *l, struct used *u, uint8_t axis, bool *ret_twice)
{
	uint32_t at = u->n;

	if (l->axes[axis].size == 1)
		return;
	for (uint32_t i = 0; i < u->n; i++)
		if (u->axis[i] == axis) {
			*ret_twice = true;
			return;
		}
	assert(u->n < LAYOUT_AXES_MAX);
	for (; at > 0 && l->axes[u->axis[at - 1]].stride > l->axes[axis].stride; at--)
		u->axis[at] = u->axis[at - 1];
	u->axis[at] = axis;
	u->n++;
}

static void use_over(const struct layout *l, struct used *u, const struct layout_over *o,
		     bool *ret_twice)
{
	for (uint32_t i = 0; i < o->n; i++)
		use_axis(l, u, o->axis[i], ret_twice);
}

/* (1). places: a bit for each that said something. */
static int check_axes(const struct layout *l, const struct layout_local *at, uint32_t places,
		      struct err *e)
{
	struct used u = { 0 };
	bool twice = false;

	for (uint32_t i = 0; i < l->n_places; i++)
		if (places & 1u << i)
			use_axis(l, &u, l->places[i].axis, &twice);
	for (uint32_t i = 0; at->rule && i < at->rule->n_cuts; i++)
		use_over(l, &u, &at->rule->cuts[i].over, &twice);
	if (at->flat >= 0)
		use_over(l, &u, &l->flats[at->flat].over, &twice);
	if (twice)
		return err_set(e, -EINVAL, "it is cut or placed twice over one axis");
	for (uint32_t i = 1; i < u.n; i++) {
		const struct layout_axis *a = &l->axes[u.axis[i - 1]], *b = &l->axes[u.axis[i]];

		if (b->stride % (a->stride * a->size))
			return err_set(e, -EINVAL,
				       "it is cut or placed over axes '%s' and '%s', which are of "
				       "different meshes and overlap",
				       a->name, b->name);
	}
	return 0;
}

/* ---- What a rank has ---- */

static int cut_all(const struct layout *l, const struct layout_tensor *t, uint32_t rank,
		   struct layout_local *ret, struct err *e)
{
	for (uint32_t i = 0; i < t->global.ndim; i++)
		ret->dim[i] = (struct layout_segments){
			.n = 1,
			.length[0] = t->global.dim[i],
			.total = t->global.dim[i],
		};
	for (uint32_t i = 0; ret->rule && t->global.ndim && i < ret->rule->n_cuts; i++) {
		const struct layout_cut *c = &ret->rule->cuts[i];
		int r;

		if (c->dim >= t->global.ndim)
			return err_set(e, -EINVAL, "there is no dimension %u to cut", c->dim);
		r = layout_cut_segments(l, c, rank, &ret->dim[c->dim], e);
		if (r)
			return err_wrap(e, r, "dimension %u, cut in %u over axis '%s'", c->dim,
					layout_over_size(l, &c->over),
					l->axes[c->over.axis[0]].name);
	}
	return 0;
}

static uint64_t elements_of(const struct layout_local *at, uint32_t ndim)
{
	struct shape s = { .ndim = ndim };
	uint64_t n = 0;
	bool fits;

	for (uint32_t i = 0; i < ndim; i++)
		s.dim[i] = at->dim[i].total;
	fits = shape_elements(&s, &n);
	assert(fits); /* the whole tensor's fit */
	return n;
}

static int find_flat(const struct layout *l, const struct layout_local *at, uint32_t ndim)
{
	int flat = at->rule && at->rule->flat != LAYOUT_FLAT_DEFAULT ? at->rule->flat : l->flat;

	if (flat < 0 || ndim == 0)
		return LAYOUT_FLAT_OFF;
	if (at->moment < 0 ? !l->flats[flat].params : !l->flats[flat].moments)
		return LAYOUT_FLAT_OFF;
	return flat;
}

int layout_local(const struct layout *l, const struct layout_tensor *t, uint32_t rank,
		 struct layout_local *ret, struct err *e)
{
	uint32_t places = 0;
	int r;

	assert(rank < l->world && t->global.ndim <= CKPT_NDIM_MAX);
	ret->rule = NULL;
	ret->here = true;
	layout_strip(l, t, ret);
	if (!find_rule(l, ret) && l->strict)
		return err_set(e, -EINVAL,
			       "no rule of the layout knows this name, and it is strict");
	ret->flat = find_flat(l, ret, t->global.ndim);
	for (uint32_t i = 0; i < l->n_places; i++) {
		bool here, used;

		r = placed(l, i, ret, rank, &here, &used, e);
		if (r)
			return r;
		places |= (uint32_t)used << i;
		ret->here = ret->here && here;
	}
	r = check_axes(l, ret, places, e);
	if (!r)
		r = cut_all(l, t, rank, ret, e);
	if (r)
		return r;
	ret->elements = ret->here ? elements_of(ret, t->global.ndim) : 0;
	return 0;
}

static bool cuts_any(const struct layout *l)
{
	for (uint32_t i = 0; i < l->n_places; i++)
		if (l->axes[l->places[i].axis].size > 1)
			return true;
	for (uint32_t i = 0; i < l->n_rules; i++)
		for (uint32_t k = 0; k < l->rules[i].n_cuts; k++)
			if (layout_over_size(l, &l->rules[i].cuts[k].over) > 1)
				return true;
	return false;
}

bool layout_passes_over(const struct layout *l, const struct layout_tensor *t)
{
	struct layout_local at = {0};

	if (!cuts_any(l) || t->global.ndim == 0)
		return false;
	layout_strip(l, t, &at);
	if (find_rule(l, &at) || (at.rule && at.rule->n_cuts > 0) ||
	    find_flat(l, &at, t->global.ndim) != LAYOUT_FLAT_OFF)
		return false;
	for (uint32_t rank = 0; rank < l->world; rank++)
		if (layout_local(l, t, rank, &at, NULL) < 0 || !at.here)
			return false;
	return true;
}

/* ---- Shards ---- */

/* One box of the product: a segment of each dimension, and where it begins in what the rank has. */
struct pick {
	uint32_t segment[CKPT_NDIM_MAX];
	uint64_t begin[CKPT_NDIM_MAX];
};

/* The next box in row-major order; false after the last. */
static bool next_pick(const struct layout_local *at, uint32_t ndim, struct pick *p)
{
	for (uint32_t i = ndim; i-- > 0;) {
		p->begin[i] += at->dim[i].length[p->segment[i]];
		if (++p->segment[i] < at->dim[i].n)
			return true;
		p->segment[i] = 0;
		p->begin[i] = 0;
	}
	return false;
}

/* How many of the box's elements are among the first `index` of what the rank has (2). */
static uint64_t box_before(const struct layout_local *at, const struct pick *p, uint32_t ndim,
			   uint64_t index)
{
	uint64_t local = at->elements, box = 1, n = 0;

	if (index >= local)
		index = local;
	for (uint32_t i = 0; i < ndim; i++)
		box *= at->dim[i].length[p->segment[i]];
	for (uint32_t i = 0; i < ndim; i++) {
		uint64_t length = at->dim[i].length[p->segment[i]], coordinate;

		local /= at->dim[i].total;
		box /= length;
		coordinate = index / local;
		index %= local;
		if (coordinate < p->begin[i])
			return n;
		if (coordinate - p->begin[i] >= length)
			return n + length * box;
		n += (coordinate - p->begin[i]) * box;
	}
	return ndim ? n : index;
}

static int add_shard(const struct layout_tensor *t, const struct layout_local *at,
		     const struct pick *p, const uint64_t range[2], struct shard *ret,
		     uint32_t *ret_n, struct err *e)
{
	struct shard s = layout_whole(t);
	uint64_t elements;
	bool fits;

	for (uint32_t i = 0; i < t->global.ndim; i++) {
		s.box.offset[i] = at->dim[i].offset[p->segment[i]];
		s.box.length[i] = at->dim[i].length[p->segment[i]];
	}
	fits = box_elements(&s.box, &elements);
	assert(fits);
	if (elements) {
		s.start = box_before(at, p, t->global.ndim, range[0]);
		s.stop = box_before(at, p, t->global.ndim, range[1]);
		if (s.start == s.stop)
			return 0;
		s.flat = s.stop - s.start < elements;
	}
	if (*ret_n == LAYOUT_SHARDS_MAX)
		return err_set(e, -EINVAL, "it comes in more than %u boxes", LAYOUT_SHARDS_MAX);
	ret[(*ret_n)++] = s;
	return shard_check(&ret[*ret_n - 1], e);
}

/* The rank's own range of what it has. */
static int own_range(struct layout *l, const struct layout_tensor *t, const struct layout_local *at,
		     uint32_t rank, uint64_t ret[2], struct err *e)
{
	uint64_t offset = 0, total = at->elements;
	const struct layout_flat *f;
	struct layout_cut cut;
	int r;

	ret[0] = 0;
	ret[1] = at->elements;
	if (at->flat < 0)
		return 0;
	f = &l->flats[at->flat];
	cut = (struct layout_cut){ .how = f->how, .pad = f->pad };
	if (f->unit != LAYOUT_UNIT_TENSOR) {
		r = layout_unit_at(l, t, at, rank, &offset, &total, e);
		if (r)
			return r;
	}
	r = layout_part_range(&cut, 0, total, layout_over_size(l, &f->over),
			      layout_over_at(l, &f->over, rank), ret, e);
	for (int i = 0; i < 2 && !r; i++)
		ret[i] = ret[i] < offset ? 0 : min_u64(ret[i] - offset, at->elements);
	return r;
}

static int tensor_shards(struct layout *l, const struct layout_tensor *t, uint32_t rank,
			 struct shard *ret, uint32_t *ret_n, struct err *e)
{
	struct shard whole = layout_whole(t);
	struct pick p = { 0 };
	struct layout_local at;
	uint64_t range[2] = { 0 };
	int r;

	r = shard_check(&whole, e); /* from here on no product overflows */
	if (!r)
		r = layout_local(l, t, rank, &at, e);
	if (r || !at.here)
		return r;
	/* A part without elements is nobody's; a tensor without elements is everybody's, once. */
	if (!whole.bytes)
		return add_shard(t, &at, &p, range, ret, ret_n, e);
	r = at.elements ? own_range(l, t, &at, rank, range, e) : 0;
	if (r || !at.elements)
		return r;
	do {
		r = add_shard(t, &at, &p, range, ret, ret_n, e);
	} while (!r && next_pick(&at, t->global.ndim, &p));
	return r;
}

int layout_shards(struct layout *l, const struct layout_tensor *t, uint32_t rank,
		  struct shard ret[LAYOUT_SHARDS_MAX], uint32_t *ret_n, struct err *e)
{
	char name[NAME_TEXT_MAX], shape[BOX_TEXT_MAX];
	uint32_t n = 0;
	int r = tensor_shards(l, t, rank, ret, &n, e);

	if (r)
		return err_wrap(e, r, "tensor '%s' of shape %s",
				name_text(name, t->name, t->name_len),
				shape_text(shape, &t->global));
	*ret_n = n;
	return 0;
}
