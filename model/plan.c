/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The read planner. Cold; one thread per call.
 *
 * Wanted names are looked for in every source, many at a time (model/plan_gather.h). For one name:
 *
 *   gather   its stored shards that meet what is wanted, as boxes, in order of preference, into a
 *            boxtree
 *   cover    for each wanted box: the region left to cover starts as the whole box; the most
 *            preferred stored box that meets it gives one piece, and what is left of the region
 *            around it, at most two slabs per dimension, is covered in turn
 *
 * 1. Coverage is proven, not assumed: a region leaves the list of what is to be covered only as a
 *    piece, as a hole that is reported, or as disjoint regions that make it up. The sums are
 *    asserted.
 * 2. An element comes from the most preferred of all stored boxes that hold it: where regions are
 *    cut around the best box that meets them, no better one meets what was cut out.
 * 3. What cannot fit is refused by counting it, not by making it.
 * 4. Where boxes and preferences are such that the tree does not help, the plan ends with an error:
 *    its time is bounded by what is stored, wanted and planned, whatever their shapes.
 * 5. Each loop over untrusted input spends steps, so it ends soon after it is cancelled.
 */
#include <config.h>

#include "model/plan.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "model/boxtree.h"
#include "model/leaves.h"
#include "model/plan_extra.h"
#include "model/plan_gather.h"
#include "model/sorting.h"

/* (4) The nodes and boxes of the tree that a plan may visit: a fixed number, some 0.5 s, and
 * STEPS_EACH for each stored box, wanted box and region that is covered. 20 are usual; cases that
 * take more, such as a region across a grid of ranks that is preferred across it, are small. */
#define STEPS_FREE (1ull << 26)
#define STEPS_EACH 64u
/* And for each box when pieces are only counted (3). */
#define STEPS_COUNT 32u

/* A stored shard of the name at hand. */
struct stored {
	uint32_t source;
	struct shard shard;
};

struct planner {
	const struct plan_source *sources;
	uint32_t n_sources;
	const struct declaration *wanted;
	struct gather gather;
	struct stored *stored;
	size_t n_stored, cap_stored;
	struct boxtree tree; /* tags are indices into stored */
	struct box *todo;    /* regions to cover */
	size_t n_todo, cap_todo;
	struct plan *out;
	size_t cap_pieces, cap_problems;
	const struct plan_limits *limits;
	struct effort effort; /* its limit grows with the plan's input and output */
	const struct found_name *name; /* at hand */
};

/* Everything that is allocated. Nothing here shrinks before the end. */
static size_t own_memory(const struct planner *p)
{
	return p->cap_stored * sizeof(*p->stored) + p->cap_todo * sizeof(*p->todo) +
	       p->cap_pieces * sizeof(*p->out->pieces) +
	       p->cap_problems * sizeof(*p->out->problems) + gather_memory(&p->gather) +
	       boxtree_memory(&p->tree);
}

/* With more bytes than that on top it must fit. */
static int count_memory(struct planner *p, size_t more)
{
	size_t all = own_memory(p) + more;

	p->out->memory = max_u64(p->out->memory, all);
	p->out->steps = p->effort.steps;
	return all > p->limits->memory_max ? -E2BIG : 0;
}

/* Room for one more element of size bytes. */
static int reserve(struct planner *p, void **array, size_t *cap, size_t n, size_t size)
{
	size_t want = *cap ? 2 * *cap : 16;
	uint64_t bytes;
	void *q;
	int r;

	if (n < *cap)
		return 0;
	if (!size_mul(want, size, &bytes))
		return -ENOMEM;
	r = count_memory(p, bytes); /* with the old array, until it is copied */
	if (r)
		return r;
	q = alloc_resize(*array, bytes);
	if (!q)
		return -ENOMEM;
	*array = q;
	*cap = want;
	return 0;
}

/* ---- Problems ---- */

static int add_problem(struct planner *p, enum plan_problem_kind kind, const char *text)
{
	struct plan *out = p->out;
	struct plan_problem *problem;
	int r;

	if (out->n_problems == PLAN_PROBLEMS_MAX)
		return 0;
	r = reserve(p, (void **)&out->problems, &p->cap_problems, out->n_problems,
		    sizeof(*problem));
	if (r)
		return r;
	problem = &out->problems[out->n_problems++];
	*problem = (struct plan_problem){ .kind = kind };
	snprintf(problem->text, sizeof(problem->text), "%s", text);
	return 0;
}

static int add_missing(struct planner *p, const struct shard *want)
{
	char name[NAME_TEXT_MAX], text[ERR_TEXT_MAX];

	snprintf(text, sizeof(text), "tensor '%s' is wanted but stored by no rank",
		 name_text(name, want->name, want->name_len));
	return add_problem(p, PLAN_MISSING, text);
}

static int add_mismatch(struct planner *p, const struct shard *want, const struct shard *have)
{
	char name[NAME_TEXT_MAX], a[BOX_TEXT_MAX], b[BOX_TEXT_MAX], text[2 * ERR_TEXT_MAX];

	snprintf(text, sizeof(text), "tensor '%s' is wanted as %s %s but stored as %s %s",
		 name_text(name, want->name, want->name_len), dtype_name(want->dtype),
		 shape_text(a, &want->global), dtype_name(have->dtype),
		 shape_text(b, &have->global));
	return add_problem(p, PLAN_MISMATCH, text);
}

static int add_hole(struct planner *p, const struct shard *want, const struct box *region)
{
	char name[NAME_TEXT_MAX], box[BOX_TEXT_MAX], text[ERR_TEXT_MAX];

	snprintf(text, sizeof(text), "elements %s of tensor '%s' are stored by no rank",
		 box_text(box, region), name_text(name, want->name, want->name_len));
	return add_problem(p, PLAN_HOLE, text);
}

static int add_extra(struct planner *p, const char *extra, uint32_t len)
{
	char name[NAME_TEXT_MAX], text[ERR_TEXT_MAX];

	snprintf(text, sizeof(text), "tensor '%s' is stored but not wanted",
		 name_text(name, extra, len));
	return add_problem(p, PLAN_EXTRA, text);
}

/* ---- Pieces ---- */

/* Strides in bytes of the dimensions of a box, row-major. */
static void box_strides(const struct box *box, uint64_t element, uint64_t stride[CKPT_NDIM_MAX])
{
	for (uint32_t k = box->ndim; k-- > 0;) {
		stride[k] = element;
		element *= box->length[k];
	}
}

/* Elements x, which both shards hold, as one piece: dimensions are folded from the inside. */
static void make_piece(const struct shard *have, const struct shard *want, const struct box *x,
		       struct plan_piece *piece)
{
	uint64_t element = dtype_bytes(want->dtype), src[CKPT_NDIM_MAX], dst[CKPT_NDIM_MAX];
	struct plan_piece in = { 0 }; /* inner dimensions first */
	uint32_t n = 0;

	box_strides(&have->box, element, src);
	box_strides(&want->box, element, dst);
	piece->run = element;
	for (uint32_t k = x->ndim; k-- > 0;) {
		uint64_t length = x->length[k];

		if (length == 1)
			continue;
		if (n == 0 && src[k] == piece->run && dst[k] == piece->run) {
			piece->run *= length;
		} else if (n > 0 && src[k] == in.src_stride[n - 1] * in.count[n - 1] &&
			   dst[k] == in.dst_stride[n - 1] * in.count[n - 1]) {
			in.count[n - 1] *= length;
		} else {
			in.count[n] = length;
			in.src_stride[n] = src[k];
			in.dst_stride[n++] = dst[k];
		}
	}
	piece->ndim = n;
	for (uint32_t k = 0; k < n; k++) {
		piece->count[k] = in.count[n - 1 - k];
		piece->src_stride[k] = in.src_stride[n - 1 - k];
		piece->dst_stride[k] = in.dst_stride[n - 1 - k];
	}
	piece->src =
		have->image_offset + (box_index(&have->box, x->offset) - have->start) * element;
	piece->dst = (box_index(&want->box, x->offset) - want->start) * element;
	assert(piece->src + piece->run <= have->image_offset + have->bytes);
	assert(piece->dst + piece->run <= want->bytes);
}

static int add_piece(struct planner *p, const struct stored *have, const struct shard *want,
		     uint32_t target, const struct box *x, uint64_t elements)
{
	struct plan *out = p->out;
	struct plan_piece *piece;
	int r;

	if (out->n_pieces == PLAN_PIECES_MAX)
		return -E2BIG;
	r = reserve(p, (void **)&out->pieces, &p->cap_pieces, out->n_pieces, sizeof(*piece));
	if (r)
		return r;
	piece = &out->pieces[out->n_pieces++];
	*piece = (struct plan_piece){ .source = have->source, .target = target };
	make_piece(&have->shard, want, x, piece);
	out->bytes += elements * dtype_bytes(want->dtype);
	return 0;
}

/* ---- Cover ---- */

static int push(struct planner *p, const struct box *region)
{
	int r = reserve(p, (void **)&p->todo, &p->cap_todo, p->n_todo, sizeof(*p->todo));

	if (!r)
		p->todo[p->n_todo++] = *region;
	return r;
}

/* What is left of region around x, outer dimensions first, so that slabs stay wide. */
static int push_around(struct planner *p, struct box region, const struct box *x)
{
	for (uint32_t k = 0; k < region.ndim; k++) {
		uint64_t lo = region.offset[k], hi = lo + region.length[k];
		uint64_t x_hi = x->offset[k] + x->length[k];
		int r = 0;

		assert(lo <= x->offset[k] && x_hi <= hi);
		if (x_hi < hi) {
			region.offset[k] = x_hi;
			region.length[k] = hi - x_hi;
			r = push(p, &region);
		}
		if (!r && lo < x->offset[k]) {
			region.offset[k] = lo;
			region.length[k] = x->offset[k] - lo;
			r = push(p, &region);
		}
		if (r)
			return r;
		region.offset[k] = x->offset[k];
		region.length[k] = x->length[k];
	}
	return 0;
}

/* What becomes of one region; adds the elements that are then settled. */
static int cover_region(struct planner *p, const struct shard *want, uint32_t target,
			const struct box *region, uint64_t *settled)
{
	const struct boxtree_box *best;
	struct box x = *region;
	uint64_t elements = 0;
	bool ok;
	int r;

	p->effort.most += STEPS_EACH;
	r = boxtree_ask(&p->tree, region, &p->effort, &best);
	if (r)
		return r;
	if (best) {
		ok = box_intersect(&best->box, region, &x);
		assert(ok);
	}
	ok = box_elements(&x, &elements);
	assert(ok && elements > 0);
	*settled += elements;
	if (!best)
		return add_hole(p, want, region);
	r = add_piece(p, &p->stored[best->tag], want, target, &x, elements);
	return r ? r : push_around(p, *region, &x);
}

static int cover_shard(struct planner *p, const struct shard *want, uint32_t target)
{
	struct box boxes[FLAT_BOXES_MAX];
	int n = shard_boxes(want, boxes), r = 0;
	uint64_t settled = 0;

	assert(p->n_todo == 0);
	for (int i = n; i-- > 0 && !r;)
		r = push(p, &boxes[i]);
	while (!r && p->n_todo) {
		struct box region = p->todo[--p->n_todo];

		r = cover_region(p, want, target, &region, &settled);
	}
	assert(r || settled == want->stop - want->start); /* (1) */
	return r;
}

/* ---- Gather ---- */

static bool same_tensor(const struct shard *a, const struct shard *b)
{
	return a->dtype == b->dtype && a->global.ndim == b->global.ndim &&
	       memcmp(a->global.dim, b->global.dim, 8 * (size_t)a->global.ndim) == 0;
}

/* The smallest box around the wanted shards [first, end); false when they have no elements. */
static bool hull(const struct declaration *wanted, uint32_t first, uint32_t end, struct box *ret)
{
	bool any = false;

	for (uint32_t i = first; i < end; i++) {
		struct shard s;

		declaration_get(wanted, i, &s);
		if (s.bytes == 0)
			continue;
		if (!any) {
			*ret = s.box;
			any = true;
			continue;
		}
		for (uint32_t k = 0; k < ret->ndim; k++) {
			uint64_t lo = min_u64(ret->offset[k], s.box.offset[k]);
			uint64_t hi = max_u64(ret->offset[k] + ret->length[k],
					      s.box.offset[k] + s.box.length[k]);

			ret->offset[k] = lo;
			ret->length[k] = hi - lo;
		}
	}
	return any;
}

static int keep_stored(struct planner *p, uint32_t source, const struct shard *have)
{
	int r = reserve(p, (void **)&p->stored, &p->cap_stored, p->n_stored, sizeof(*p->stored));

	if (!r)
		p->stored[p->n_stored++] = (struct stored){source, *have};
	return r;
}

/* Elements [part->start, part->stop) of a stored shard; *added: some of them are wanted. */
static int gather_part(struct planner *p, const struct shard *part, const struct box *around,
		       bool *added)
{
	struct box boxes[FLAT_BOXES_MAX], x;
	int n = shard_boxes(part, boxes), r;

	for (int i = 0; i < n; i++) {
		if (!box_intersect(&boxes[i], around, &x))
			continue;
		if (p->n_stored == UINT32_MAX)
			return -E2BIG;
		p->effort.most += STEPS_EACH;
		r = boxtree_add(&p->tree, &boxes[i], (uint32_t)p->n_stored);
		if (r)
			return r;
		*added = true;
	}
	return 0;
}

/* What of a shard lies in leaves that the source has, run by run. No element lies in two leaves:
 * shards and leaves begin at multiples of 64, which every element's size divides. */
static int gather_present(struct planner *p, const struct plan_source *source,
			  const struct shard *have, const struct box *around, bool *added)
{
	uint64_t leaf = source->declaration.geometry.leaf, element = dtype_bytes(have->dtype);
	uint64_t end = have->image_offset + have->bytes, last = div_up(end, leaf);
	uint64_t i = leaves_next(source->present, have->image_offset / leaf, last, true);
	int r = 0;

	while (i < last && r == 0) {
		uint64_t stop = leaves_next(source->present, i, last, false);
		uint64_t lo = max_u64(i * leaf, have->image_offset) - have->image_offset;
		uint64_t hi = min_u64(stop * leaf, end) - have->image_offset;
		struct shard part = *have;

		assert(lo % element == 0 && hi % element == 0 && lo < hi);
		part.flat = true;
		part.start = have->start + lo / element;
		part.stop = have->start + hi / element;
		r = gather_part(p, &part, around, added);
		i = leaves_next(source->present, stop, last, true);
	}
	return r;
}

/* One stored shard of the wanted name. */
static int gather_shard(struct planner *p, uint32_t source, const struct shard *have,
			const struct box *around)
{
	bool added = false;
	struct box x;
	int r;

	if (have->bytes == 0 || !box_intersect(&have->box, around, &x))
		return 0;
	if (p->sources[source].present)
		r = gather_present(p, &p->sources[source], have, around, &added);
	else
		r = gather_part(p, have, around, &added);
	return r || !added ? r : keep_stored(p, source, have);
}

/* The stored shards of a name, most preferred first, into the tree; around is NULL when no element
 * is wanted. *ret_mismatch: one of them is of another dtype or shape. */
static int gather_name(struct planner *p, const struct found_name *name, const struct shard *want,
		       const struct box *around, bool *ret_mismatch)
{
	const struct gather *g = &p->gather;
	int r = 0;

	*ret_mismatch = false;
	for (uint32_t i = name->head; i != GATHER_END && !r; i = g->found[i].next) {
		uint32_t source = g->found[i].source;
		struct shard have;

		declaration_get(&p->sources[source].declaration, g->found[i].index, &have);
		r = effort_spend(&p->effort, 1);
		if (r)
			return r;
		if (same_tensor(&have, want)) {
			r = around ? gather_shard(p, source, &have, around) : 0;
		} else if (!*ret_mismatch) {
			*ret_mismatch = true;
			r = add_mismatch(p, want, &have);
		}
	}
	return r;
}

/*
 * (3) A tensor of which each rank stores a part and wants a little of every part has more pieces
 * than there is room for: refuse it before they are made. A stored box that no preferred box meets
 * gives at least one piece to each wanted box that meets it. Nothing is counted if all pairs have
 * room.
 */
static int count_pieces(struct planner *p, const struct found_name *name, uint64_t room,
			struct effort *effort)
{
	uint64_t pieces = p->out->n_pieces;
	struct box boxes[FLAT_BOXES_MAX];
	struct shard want;
	int r = boxtree_mark_free(&p->tree, effort);

	for (uint32_t i = name->first; i < name->end && r == 0; i++) {
		int n;

		declaration_get(p->wanted, i, &want);
		n = shard_boxes(&want, boxes);
		for (int k = 0; k < n && r == 0; k++) {
			uint64_t more = 0;

			r = boxtree_count_free(&p->tree, &boxes[k], effort, &more);
			pieces += more;
		}
		if (pieces > room)
			return -E2BIG;
	}
	return r;
}

/* Counting prunes less than planning. It stops where it would cost more than it can save; planning
 * then meets the limits itself. */
static int refuse_early(struct planner *p, const struct found_name *name)
{
	uint64_t room = min_u64(p->limits->memory_max / sizeof(struct plan_piece), PLAN_PIECES_MAX);
	uint64_t wanted = name->end - name->first;
	struct effort effort = {.cancel = p->limits->cancel};
	int r;

	if (p->tree.n <= room / FLAT_BOXES_MAX / wanted)
		return 0;
	effort.most = STEPS_COUNT * (p->tree.n + wanted);
	r = count_pieces(p, name, room, &effort);
	p->effort.steps += effort.steps;
	return r == -EOVERFLOW ? 0 : r;
}

static int plan_name(struct planner *p, const struct found_name *name)
{
	struct shard want;
	struct box around;
	bool any, mismatch;
	int r;

	declaration_get(p->wanted, name->first, &want);
	if (name->head == GATHER_END)
		return add_missing(p, &want);
	any = hull(p->wanted, name->first, name->end, &around);
	p->n_stored = 0;
	boxtree_reset(&p->tree, want.global.ndim);
	r = gather_name(p, name, &want, any ? &around : NULL, &mismatch);
	if (r || (mismatch && p->n_stored == 0))
		return r; /* a mismatch is said already; holes would say it again */
	p->name = name;
	r = boxtree_build(&p->tree, &p->effort);
	if (!r)
		r = count_memory(p, 0);
	if (!r)
		r = refuse_early(p, name);
	for (uint32_t i = name->first; i < name->end && !r; i++) {
		declaration_get(p->wanted, i, &want);
		r = cover_shard(p, &want, declaration_order(p->wanted, i));
	}
	return r;
}

static int list_extra(struct planner *p, const struct plan_peers *peers)
{
	struct extra *extra CLEANUP_FREE = NULL;
	size_t memory;
	int r;

	assert(own_memory(p) <= p->limits->memory_max); /* it was counted */
	memory = p->limits->memory_max - own_memory(p);
	r = extra_list(p->sources, p->n_sources, p->wanted, peers, p->limits->key, &p->effort,
		       &memory, &extra);
	if (!r)
		r = count_memory(p, memory);
	for (size_t i = 0; !r && i < extra->n; i++)
		r = add_extra(p, extra->names[i].text, extra->names[i].len);
	return r;
}

/* ---- All of it ---- */

static int compare_pieces(const void *pa, const void *pb, void *arg)
{
	const struct plan_piece *a = pa, *b = pb;

	(void)arg;
	if (a->source != b->source)
		return a->source < b->source ? -1 : 1;
	if (a->src != b->src)
		return a->src < b->src ? -1 : 1;
	if (a->target != b->target)
		return a->target < b->target ? -1 : 1;
	return a->dst < b->dst ? -1 : a->dst > b->dst;
}

/* Sorts, and joins pieces that continue each other on both sides: the boxes of a flat range. */
static int tidy_pieces(struct planner *p)
{
	struct plan *out = p->out;
	size_t n = 0;
	int r = count_memory(p, sorting_memory(out->n_pieces));

	if (r == 0)
		r = sorting_sort(out->pieces, out->n_pieces, sizeof(*out->pieces), compare_pieces,
				 NULL, &p->effort);
	for (size_t i = 0; i < out->n_pieces && r == 0; i++) {
		struct plan_piece *next = &out->pieces[i], *last = n ? &out->pieces[n - 1] : NULL;

		if (last && last->ndim == 0 && next->ndim == 0 && last->source == next->source &&
		    last->target == next->target && last->src + last->run == next->src &&
		    last->dst + last->run == next->dst)
			last->run += next->run;
		else
			out->pieces[n++] = *next;
		if (i % EFFORT_POLL == 0)
			r = effort_spend(&p->effort, EFFORT_POLL);
	}
	if (r == 0)
		out->n_pieces = n;
	return r;
}

static int plan_all(struct planner *p, const struct plan_peers *peers)
{
	int r = gather_init(&p->gather, p->sources, p->n_sources, p->wanted, p->limits->key,
			    &p->effort);
	int n = 1;

	while (!r && n > 0) {
		n = gather_batch(&p->gather);
		r = n < 0 ? n : count_memory(p, 0);
		for (int i = 0; i < n && !r; i++)
			r = plan_name(p, &p->gather.names[i]);
	}
	if (!r && peers)
		r = list_extra(p, peers);
	return r ? r : tidy_pieces(p);
}

static int refuse_shapes(const struct planner *p, struct err *e)
{
	char name[NAME_TEXT_MAX];
	struct shard want;

	declaration_get(p->wanted, p->name->first, &want);
	return err_set(e, -E2BIG,
		       "the %zu stored parts of tensor '%s' lie so that planning what is wanted of "
		       "it takes too long: load fewer or larger parts at a time",
		       p->tree.n, name_text(name, want.name, want.name_len));
}

static int refuse_size(const struct planner *p, struct err *e)
{
	return err_set(e, -E2BIG,
		       "the plan of %u tensors from %u ranks takes more than %zu MiB of memory: "
		       "load fewer tensors at a time",
		       p->wanted->n_shards, p->n_sources, p->limits->memory_max >> 20);
}

int plan_make_within(const struct plan_limits *limits, const struct plan_source *sources,
		     uint32_t n_sources, const struct declaration *wanted, bool lenient,
		     const struct plan_peers *peers, struct plan *ret, struct err *e)
{
	struct planner p = {
		.sources = sources,
		.n_sources = n_sources,
		.wanted = wanted,
		.out = ret,
		.limits = limits,
		.effort = {.cancel = limits->cancel, .most = STEPS_FREE},
	};
	int r;

	*ret = (struct plan){ 0 };
	r = plan_all(&p, peers);
	ret->steps = p.effort.steps;
	if (r == -EOVERFLOW)
		r = refuse_shapes(&p, e);
	else if (r == -E2BIG)
		r = refuse_size(&p, e);
	else if (r)
		r = err_code(e, r, "plan the load of %u tensors from %u ranks", wanted->n_shards,
			     n_sources);
	boxtree_fini(&p.tree);
	gather_fini(&p.gather);
	alloc_free(p.stored);
	alloc_free(p.todo);
	if (r)
		return r;
	if (ret->n_problems == 0 || lenient)
		return 0;
	if (ret->n_problems == 1)
		return err_set(e, CKPT_EMISMATCH, "%s", ret->problems[0].text);
	return err_set(e, CKPT_EMISMATCH, "%zu%s problems, the first: %s", ret->n_problems,
		       ret->n_problems == PLAN_PROBLEMS_MAX ? " or more" : "",
		       ret->problems[0].text);
}

int plan_make(const struct plan_source *sources, uint32_t n_sources,
	      const struct declaration *wanted, bool lenient, const struct plan_peers *peers,
	      struct plan *ret, struct err *e)
{
	return plan_make_within(PLAN_LIMITS, sources, n_sources, wanted, lenient, peers, ret, e);
}

void plan_fini(struct plan *p)
{
	alloc_free(p->pieces);
	alloc_free(p->problems);
	*p = (struct plan){ 0 };
}
