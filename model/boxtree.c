/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A static tree of bounding boxes over sorted boxes. Pure; one thread per tree.
 *
 * 1. A node covers a contiguous run of the sorted boxes; its bounds are the smallest box around
 *    them and best is the most preferred of them.
 * 2. If the last of the boxes below a node begins before the region ends and the first of them ends
 *    behind where it begins, in each dimension, all of them meet the region, so best is the node's
 *    answer: this is what keeps a question about a large region cheap.
 * 3. A subtree whose best is not better than what was found is not entered.
 * 4. A node is divided along a dimension in which its boxes lie side by side: for a grid that is
 *    the order by offset, first dimension first; thin slabs that begin anywhere in a dimension in
 *    which they are long are divided along another one.
 */
#include <config.h>

#include "model/boxtree.h"

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "model/sorting.h"

#define LEAF_BOXES 4u
#define NO_BOX     UINT32_MAX

/* Of the boxes below a node, in one dimension. */
struct span {
	uint64_t lo_min, lo_max, hi_min, hi_max;
};

struct boxtree_node {
	struct span span[CKPT_NDIM_MAX];
	uint32_t best; /* index into boxes, or NO_BOX: covers none */
	uint32_t n_free;
};

void boxtree_reset(struct boxtree *t, uint32_t ndim)
{
	assert(ndim <= CKPT_NDIM_MAX);
	t->ndim = ndim;
	t->n = 0;
	t->n_nodes = 0;
}

void boxtree_fini(struct boxtree *t)
{
	alloc_free(t->boxes);
	alloc_free(t->nodes);
	*t = (struct boxtree){ 0 };
}

size_t boxtree_memory(const struct boxtree *t)
{
	return t->cap * sizeof(*t->boxes) + t->cap_nodes * sizeof(*t->nodes) + t->scratch;
}

/* Makes room for want elements of size bytes, at least doubling. */
static int grow(void **array, size_t *cap, size_t want, size_t size)
{
	size_t n = max_u64(want, *cap ? 2 * *cap : 16);
	uint64_t bytes;
	void *p;

	if (want <= *cap)
		return 0;
	if (!size_mul(n, size, &bytes))
		return -ENOMEM;
	p = alloc_resize(*array, bytes);
	if (!p)
		return -ENOMEM;
	*array = p;
	*cap = n;
	return 0;
}

int boxtree_add(struct boxtree *t, const struct box *box, uint32_t tag)
{
	int r;

	assert(box->ndim == t->ndim && t->n_nodes == 0);
	if (t->n >= NO_BOX / 2)
		return -E2BIG;
	r = grow((void **)&t->boxes, &t->cap, t->n + 1, sizeof(*t->boxes));
	if (r)
		return r;
	t->boxes[t->n] = (struct boxtree_box){ .box = *box, .rank = (uint32_t)t->n, .tag = tag };
	t->n++;
	return 0;
}

/* ---- Building ---- */

static const struct span no_span = {.lo_min = UINT64_MAX, .hi_min = UINT64_MAX};

static struct span span_of(const struct box *b, uint32_t k)
{
	uint64_t lo = b->offset[k], hi = lo + b->length[k];

	assert(b->length[k] > 0);
	return (struct span){lo, lo, hi, hi};
}

static void widen(struct span *s, const struct span *by)
{
	s->lo_min = min_u64(s->lo_min, by->lo_min);
	s->lo_max = max_u64(s->lo_max, by->lo_max);
	s->hi_min = min_u64(s->hi_min, by->hi_min);
	s->hi_max = max_u64(s->hi_max, by->hi_max);
}

/* For sorting_sort(): by the dimension that arg points to, then by all others in their order. */
static int compare_boxes(const void *pa, const void *pb, void *arg)
{
	const struct boxtree_box *a = pa, *b = pb;
	uint32_t first = *(const uint32_t *)arg;

	if (a->box.ndim && a->box.offset[first] != b->box.offset[first])
		return a->box.offset[first] < b->box.offset[first] ? -1 : 1;
	for (uint32_t i = 0; i < a->box.ndim; i++)
		if (a->box.offset[i] != b->box.offset[i])
			return a->box.offset[i] < b->box.offset[i] ? -1 : 1;
	return a->rank < b->rank ? -1 : a->rank > b->rank;
}

/* The space that boxes [first, end) lie in, and how many of them have at most half of it, in
 * dimension k. */
static int count_short(const struct boxtree *t, size_t first, size_t end, uint32_t k,
		       struct effort *effort, size_t *ret)
{
	struct span all = no_span;
	int r = 0;

	*ret = 0;
	for (size_t i = first; i < end && r == 0; i++) {
		struct span s = span_of(&t->boxes[i].box, k);

		if ((i - first) % EFFORT_POLL == 0)
			r = effort_spend(effort, min_u64(EFFORT_POLL, end - i));
		widen(&all, &s);
	}
	for (size_t i = first; i < end && r == 0; i++) {
		if ((i - first) % EFFORT_POLL == 0)
			r = effort_spend(effort, 0);
		*ret += t->boxes[i].box.length[k] <= (all.hi_max - all.lo_min) / 2;
	}
	return r;
}

/*
 * (4) The first dimension in which a quarter of the boxes find room beside others; where there is
 * none the one in which most do. A mean of lengths would not do: a few long boxes that begin at one
 * end of the space must be separated from the thin ones.
 */
static int choose(const struct boxtree *t, size_t first, size_t end, struct effort *effort,
		  uint32_t *ret)
{
	size_t most = 0;
	int r = 0;

	*ret = 0;
	for (uint32_t k = 0; k < t->ndim && r == 0 && most < (end - first) / 4; k++) {
		size_t n;

		r = count_short(t, first, end, k, effort, &n);
		if (n > most) {
			most = n;
			*ret = k;
		}
	}
	return r;
}

static void fill_leaf(struct boxtree *t, struct boxtree_node *node, size_t first, size_t end)
{
	for (size_t i = first; i < end; i++) {
		for (uint32_t k = 0; k < t->ndim; k++) {
			struct span s = span_of(&t->boxes[i].box, k);

			widen(&node->span[k], &s);
		}
		if (node->best == NO_BOX || t->boxes[i].rank < t->boxes[node->best].rank)
			node->best = (uint32_t)i;
	}
}

static void take_child(const struct boxtree *t, struct boxtree_node *node,
		       const struct boxtree_node *child)
{
	if (child->best == NO_BOX)
		return;
	for (uint32_t k = 0; k < t->ndim; k++)
		widen(&node->span[k], &child->span[k]);
	if (node->best == NO_BOX || t->boxes[child->best].rank < t->boxes[node->best].rank)
		node->best = child->best;
}

/* Node i and all below it, of boxes [first, first + room) as far as there are any. Depth: log2 of
 * the leaves. */
static int build(struct boxtree *t, size_t i, size_t first, size_t room, struct effort *effort)
{
	struct boxtree_node *node = &t->nodes[i];
	size_t end = min_u64(first + room, t->n);
	uint32_t k = 0;
	int r = 0;

	node->best = NO_BOX;
	node->n_free = 0;
	for (uint32_t d = 0; d < t->ndim; d++)
		node->span[d] = no_span;
	if (first >= end) /* no search descends below it */
		return 0;
	if (room == LEAF_BOXES) {
		fill_leaf(t, node, first, end);
		return 0;
	}
	if (first + room / 2 < end) { /* else all of them are below the first child */
		r = choose(t, first, end, effort, &k);
		if (r == 0)
			r = sorting_sort(t->boxes + first, end - first, sizeof(*t->boxes),
					 compare_boxes, &k, effort);
		t->scratch = max_u64(t->scratch, sorting_memory(end - first));
	}
	if (r == 0)
		r = build(t, 2 * i + 1, first, room / 2, effort);
	if (r == 0)
		r = build(t, 2 * i + 2, first + room / 2, room / 2, effort);
	if (r)
		return r;
	take_child(t, node, &t->nodes[2 * i + 1]);
	take_child(t, node, &t->nodes[2 * i + 2]);
	return 0;
}

int boxtree_build(struct boxtree *t, struct effort *effort)
{
	struct effort any = {0};
	size_t leaves = 1;
	int r;

	assert(t->n_nodes == 0);
	while (leaves * LEAF_BOXES < t->n)
		leaves *= 2;
	r = grow((void **)&t->nodes, &t->cap_nodes, 2 * leaves - 1, sizeof(*t->nodes));
	if (r)
		return r;
	t->n_nodes = 2 * leaves - 1;
	return build(t, 0, 0, leaves * LEAF_BOXES, effort ? effort : &any);
}

/* ---- Asking ---- */

struct question {
	const struct boxtree *tree;
	const struct box *region;
	struct effort *effort;
	uint32_t best;  /* index into boxes */
	uint64_t count; /* of free ones */
};

static bool worse(const struct question *q, uint32_t i)
{
	return i == NO_BOX ||
	       (q->best != NO_BOX && q->tree->boxes[i].rank >= q->tree->boxes[q->best].rank);
}

enum meeting { MEET_NONE, MEET_SOME, MEET_ALL };

/* (2) Which of the boxes below a node meet the region. */
static enum meeting meeting(const struct question *q, const struct boxtree_node *node)
{
	enum meeting ret = MEET_ALL;

	for (uint32_t k = 0; k < q->tree->ndim; k++) {
		uint64_t lo = q->region->offset[k], hi = lo + q->region->length[k];
		const struct span *s = &node->span[k];

		if (s->lo_min >= hi || s->hi_max <= lo)
			return MEET_NONE;
		if (s->lo_max >= hi || s->hi_min <= lo)
			ret = MEET_SOME;
	}
	return ret;
}

static void ask_leaf(struct question *q, size_t first)
{
	const struct boxtree *t = q->tree;

	for (size_t j = first; j < t->n && j < first + LEAF_BOXES; j++) {
		struct box x;

		if (!worse(q, (uint32_t)j) && box_intersect(&t->boxes[j].box, q->region, &x))
			q->best = (uint32_t)j;
	}
}

/* Depth: log2 of the leaves. */
static int ask(struct question *q, size_t i)
{
	const struct boxtree *t = q->tree;
	const struct boxtree_node *node = &t->nodes[i];
	size_t inner = t->n_nodes / 2, near = 2 * i + 1, far = 2 * i + 2;
	enum meeting all;
	int r;

	if (worse(q, node->best)) /* (3) */
		return 0;
	r = effort_spend_bounded(q->effort, 1);
	all = meeting(q, node);
	if (r || all == MEET_NONE)
		return r;
	if (all == MEET_ALL) {
		q->best = node->best;
		return 0;
	}
	if (i >= inner) {
		ask_leaf(q, (i - inner) * LEAF_BOXES);
		return 0;
	}
	if (t->nodes[far].best == node->best) {
		near = far;
		far = 2 * i + 1;
	}
	r = ask(q, near);
	return r ? r : ask(q, far);
}

int boxtree_ask(const struct boxtree *t, const struct box *region, struct effort *effort,
		const struct boxtree_box **ret)
{
	struct question q = {.tree = t, .region = region, .effort = effort, .best = NO_BOX};
	int r;

	assert(t->n_nodes > 0 && region->ndim == t->ndim);
	r = ask(&q, 0);
	*ret = q.best == NO_BOX ? NULL : &t->boxes[q.best];
	return r;
}

const struct boxtree_box *boxtree_first(const struct boxtree *t, const struct box *region)
{
	struct effort free_of_charge = {.most = UINT64_MAX};
	const struct boxtree_box *ret;
	int r = boxtree_ask(t, region, &free_of_charge, &ret);

	assert(r == 0);
	(void)r;
	return ret;
}

/* ---- Counting ---- */

int boxtree_mark_free(struct boxtree *t, struct effort *effort)
{
	size_t inner = t->n_nodes / 2;
	int r = 0;

	for (size_t i = 0; i < t->n && r == 0; i++) {
		const struct boxtree_box *first;

		r = boxtree_ask(t, &t->boxes[i].box, effort, &first);
		t->boxes[i].free = first == &t->boxes[i];
	}
	for (size_t i = t->n_nodes; i-- > 0;) {
		struct boxtree_node *node = &t->nodes[i];
		size_t first = (i - inner) * LEAF_BOXES;

		node->n_free = 0;
		if (i < inner) {
			node->n_free = t->nodes[2 * i + 1].n_free + t->nodes[2 * i + 2].n_free;
			continue;
		}
		for (size_t j = first; j < t->n && j < first + LEAF_BOXES; j++)
			node->n_free += t->boxes[j].free;
	}
	return r;
}

static int count_free(struct question *q, size_t i)
{
	const struct boxtree *t = q->tree;
	const struct boxtree_node *node = &t->nodes[i];
	size_t inner = t->n_nodes / 2, first = (i - inner) * LEAF_BOXES;
	enum meeting all;
	struct box x;
	int r;

	if (node->n_free == 0)
		return 0;
	r = effort_spend_bounded(q->effort, 1);
	all = meeting(q, node);
	if (r || all == MEET_NONE)
		return r;
	if (all == MEET_ALL) {
		q->count += node->n_free;
		return 0;
	}
	if (i < inner) {
		r = count_free(q, 2 * i + 1);
		return r ? r : count_free(q, 2 * i + 2);
	}
	for (size_t j = first; j < t->n && j < first + LEAF_BOXES; j++)
		q->count += t->boxes[j].free &&
			    box_intersect(&t->boxes[j].box, q->region, &x);
	return 0;
}

int boxtree_count_free(const struct boxtree *t, const struct box *region, struct effort *effort,
		       uint64_t *ret)
{
	struct question q = {.tree = t, .region = region, .effort = effort, .best = NO_BOX};
	int r = count_free(&q, 0);

	*ret = q.count;
	return r;
}
