/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reshard_batch.c - a checkpoint cut into batches that fit into memory.
 *
 * Each tensor is cut in slabs, ranges of its row-major order. The elements of any box that lie in
 * such a range are a range of the box's own row-major order: so a slab is one contiguous window in
 * every image that stores a box of it, on both sides, and slab after slab both are passed from
 * their beginning to their end.
 *
 * 1. Puts of one rank ascend, over all batches of a group. A rank that holds several boxes of a
 *    tensor which interleave in row-major order (parts of a fused tensor, cut behind the first
 *    dimension) would not: then the tensor goes into one batch, or, if it is too large, once over
 *    it for each of a rank's boxes ("pass").
 * 2. Small tensors share a batch. What several targets hold alike is in it once.
 *
 * Pure but for memory.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/text.h"
#include "tools/plural.h"
#include "tools/reshard.h"

#define WANTS_MAX  4096u        /* of one batch: what is planned for them is memory too */
#define SLAB_LEAST (256u << 10) /* bytes: less is not put into what is left of a batch */
#define SLOT_ALIGN 64u

int batch_init(struct reshard_batch *b, uint64_t bytes)
{
	*b = (struct reshard_batch){.cap = bytes};
	b->buffer = alloc_zero(bytes);
	return b->buffer ? 0 : -ENOMEM;
}

void batch_fini(struct reshard_batch *b)
{
	alloc_free(b->buffer);
	alloc_free(b->wants);
	alloc_free(b->puts);
}

void cursor_init(struct reshard_cursor *c, const struct reshard *x, uint32_t first, uint32_t end)
{
	*c = (struct reshard_cursor){.x = x, .first = first, .end = end};
}

void cursor_fini(struct reshard_cursor *c)
{
	alloc_free(c->parts);
}

static int grow(void **array, size_t n, size_t *cap, size_t size)
{
	size_t more = *cap ? 2 * *cap : 64;
	void *p;

	if (n < *cap)
		return 0;
	p = alloc_resize(*array, more * size);
	if (!p)
		return -ENOMEM;
	*array = p;
	*cap = more;
	return 0;
}

/* ---- Row-major arithmetic ---- */

/* How many elements of the box come before element `flat` of the tensor. */
static uint64_t below(const struct shape *global, const struct box *box, uint64_t flat)
{
	uint64_t inner[CKPT_NDIM_MAX + 1], whole[CKPT_NDIM_MAX + 1], sum = 0;
	uint32_t d = box->ndim;

	inner[d] = whole[d] = 1;
	for (uint32_t k = d; k-- > 0;) {
		inner[k] = inner[k + 1] * box->length[k];
		whole[k] = whole[k + 1] * global->dim[k];
	}
	if (flat >= whole[0])
		return inner[0];
	for (uint32_t k = 0; k < d; k++) {
		uint64_t at = flat / whole[k + 1];

		flat %= whole[k + 1];
		if (at < box->offset[k])
			return sum;
		at -= box->offset[k];
		if (at >= box->length[k])
			return sum + inner[k];
		sum += at * inner[k + 1];
	}
	return sum;
}

/* Which element of the tensor is element i of the box. */
static uint64_t flat_of(const struct shape *global, const struct box *box, uint64_t i)
{
	uint64_t at[CKPT_NDIM_MAX], flat = 0;

	for (uint32_t k = box->ndim; k-- > 0; i /= box->length[k])
		at[k] = box->offset[k] + i % box->length[k];
	for (uint32_t k = 0; k < box->ndim; k++)
		flat = flat * global->dim[k] + at[k];
	return flat;
}

static uint64_t first_flat(const struct shard *s)
{
	return flat_of(&s->global, &s->box, s->start);
}

static uint64_t end_flat(const struct shard *s)
{
	return flat_of(&s->global, &s->box, s->stop - 1) + 1;
}

/* ---- One tensor ---- */

static int compare_u64(uint64_t a, uint64_t b)
{
	return a < b ? -1 : a > b;
}

static int by_region(const void *pa, const void *pb)
{
	const struct reshard_part *a = pa, *b = pb;
	const struct shard *x = &a->shard, *y = &b->shard;
	int c = 0;

	for (uint32_t k = 0; k < x->box.ndim && c == 0; k++) {
		c = compare_u64(x->box.offset[k], y->box.offset[k]);
		if (c == 0)
			c = compare_u64(x->box.length[k], y->box.length[k]);
	}
	if (c == 0)
		c = compare_u64(x->start, y->start);
	if (c == 0)
		c = compare_u64(x->stop, y->stop);
	return c ? c : compare_u64(a->rank, b->rank);
}

static bool same_region(const struct shard *x, const struct shard *y)
{
	for (uint32_t k = 0; k < x->box.ndim; k++)
		if (x->box.offset[k] != y->box.offset[k] || x->box.length[k] != y->box.length[k])
			return false;
	return x->start == y->start && x->stop == y->stop;
}

/* The shards of one target, in the order of its image; *interleave: (1). */
static int add_parts(struct reshard_cursor *c, uint32_t rank, const struct reading_tensor *t,
		     bool *interleave)
{
	const struct declaration *d = &c->x->targets[rank].declaration;
	uint32_t first = 0, n = declaration_find(d, t->name, t->name_len, &first);
	size_t from = c->n_parts;
	void *list;
	int r;

	for (uint32_t i = 0; i < n; i++) {
		struct reshard_part part = {.rank = rank};
		size_t at;

		declaration_get(d, first + i, &part.shard);
		if (part.shard.bytes == 0)
			continue;
		list = c->parts;
		r = grow(&list, c->n_parts, &c->cap_parts, sizeof(*c->parts));
		c->parts = list;
		if (r < 0)
			return r;
		for (at = c->n_parts++; at > from; at--) {
			if (c->parts[at - 1].shard.image_offset < part.shard.image_offset)
				break;
			c->parts[at] = c->parts[at - 1];
		}
		c->parts[at] = part;
	}
	for (size_t i = from; i < c->n_parts; i++) {
		c->parts[i].pass = (uint32_t)(i - from);
		if (i > from && end_flat(&c->parts[i - 1].shard) > first_flat(&c->parts[i].shard))
			*interleave = true;
	}
	return 0;
}

static uint64_t slot_bytes(uint64_t bytes)
{
	return round_up(bytes, SLOT_ALIGN);
}

/* The elements that the pass has to go over; false: it has none. */
static bool begin_pass(struct reshard_cursor *c)
{
	bool any = false;

	for (size_t i = 0; i < c->n_parts; i++) {
		const struct shard *s = &c->parts[i].shard;

		if (c->n_passes > 1 && c->parts[i].pass != c->pass)
			continue;
		c->at = any ? min_u64(c->at, first_flat(s)) : first_flat(s);
		c->stop = any ? max_u64(c->stop, end_flat(s)) : end_flat(s);
		any = true;
	}
	return any;
}

static int enter_tensor(struct reshard_cursor *c, const struct reshard_batch *b, struct err *e)
{
	const struct reading_tensor *t = reading_tensor(c->x->reading, c->tensor);
	bool interleave = false;
	uint64_t distinct = 0;
	uint32_t passes = 1;
	int r = 0;

	c->n_parts = 0;
	for (uint32_t rank = c->first; rank < c->end && r == 0; rank++)
		r = add_parts(c, rank, t, &interleave);
	if (r < 0)
		return err_code(e, r, "divide a tensor over %u rank%s", c->end - c->first,
				plural(c->end - c->first));
	if (c->n_parts > 1)
		qsort(c->parts, c->n_parts, sizeof(*c->parts), by_region);
	for (size_t i = 0; i < c->n_parts; i++) {
		passes = (uint32_t)max_u64(passes, c->parts[i].pass + 1);
		if (i == 0 || !same_region(&c->parts[i - 1].shard, &c->parts[i].shard))
			distinct += slot_bytes(c->parts[i].shard.bytes);
	}
	c->whole = interleave && distinct <= b->cap && c->n_parts <= WANTS_MAX;
	c->n_passes = interleave && !c->whole ? passes : 1;
	c->pass = 0;
	c->entered = true;
	if (!begin_pass(c))
		c->at = c->stop = 0;
	return 0;
}

/* ---- Slabs ---- */

/* What of the part lies in elements [from, to) of the tensor and is not written yet. */
static bool window(const struct reshard_cursor *c, const struct reshard_part *p, uint64_t from,
		   uint64_t to, uint64_t *ret_start, uint64_t *ret_stop)
{
	const struct shard *s = &p->shard;
	uint64_t start, stop, element = s->bytes / (s->stop - s->start);

	if (c->n_passes > 1 && p->pass != c->pass)
		return false;
	start = max_u64(below(&s->global, &s->box, from), s->start);
	stop = min_u64(below(&s->global, &s->box, to), s->stop);
	if (start >= stop ||
	    s->image_offset + (stop - s->start) * element <= c->x->targets[p->rank].position)
		return false;
	*ret_start = start;
	*ret_stop = stop;
	return true;
}

/* Bytes of the buffer and wants that a slab takes. */
static uint64_t slab_bytes(const struct reshard_cursor *c, uint64_t from, uint64_t to,
			   size_t *ret_wants)
{
	uint64_t sum = 0, start, stop, last_start = 0, last_stop = 0;
	const struct shard *last = NULL;

	*ret_wants = 0;
	for (size_t i = 0; i < c->n_parts; i++) {
		const struct shard *s = &c->parts[i].shard;

		if (!window(c, &c->parts[i], from, to, &start, &stop))
			continue;
		if (last && same_region(last, s) && start == last_start && stop == last_stop)
			continue;
		sum += slot_bytes((stop - start) * (s->bytes / (s->stop - s->start)));
		*ret_wants += 1;
		last = s;
		last_start = start;
		last_stop = stop;
	}
	return sum;
}

static int by_place(const void *pa, const void *pb)
{
	const struct reshard_put *a = pa, *b = pb;
	int c = compare_u64(a->rank, b->rank);

	return c ? c : compare_u64(a->image_offset, b->image_offset);
}

static int add_put(struct reshard_batch *b, const struct reshard_part *p, uint64_t start,
		   uint64_t stop, const uint8_t *from)
{
	uint64_t element = p->shard.bytes / (p->shard.stop - p->shard.start);
	void *list = b->puts;
	int r = grow(&list, b->n_puts, &b->cap_puts, sizeof(*b->puts));

	b->puts = list;
	if (r == 0)
		b->puts[b->n_puts++] = (struct reshard_put){
			.rank = p->rank,
			.image_offset = p->shard.image_offset + (start - p->shard.start) * element,
			.len = (stop - start) * element,
			.from = from,
		};
	return r;
}

static int add_want(struct reshard_batch *b, size_t tensor, const struct shard *s, uint64_t start,
		    uint64_t stop)
{
	uint64_t bytes = (stop - start) * (s->bytes / (s->stop - s->start));
	void *list = b->wants;
	int r = grow(&list, b->n_wants, &b->cap_wants, sizeof(*b->wants));

	b->wants = list;
	if (r < 0)
		return r;
	assert(b->used + slot_bytes(bytes) <= b->cap);
	b->wants[b->n_wants++] = (struct reading_want){.tensor = tensor,
						       .box = s->box,
						       .start = start,
						       .stop = stop,
						       .to = b->buffer + b->used};
	b->used += slot_bytes(bytes);
	return 0;
}

/* (2): parts that are alike stand side by side. */
static int add_slab(struct reshard_batch *b, const struct reshard_cursor *c, uint64_t from,
		    uint64_t to)
{
	const struct shard *last = NULL;
	size_t first_put = b->n_puts;
	uint64_t start, stop;
	int r = 0;

	for (size_t i = 0; i < c->n_parts && r == 0; i++) {
		const struct reshard_part *p = &c->parts[i];
		const struct reading_want *w = b->n_wants ? &b->wants[b->n_wants - 1] : NULL;

		if (!window(c, p, from, to, &start, &stop))
			continue;
		if (!last || !same_region(last, &p->shard) || w->start != start || w->stop != stop)
			r = add_want(b, c->tensor, &p->shard, start, stop);
		last = &p->shard;
		if (r == 0)
			r = add_put(b, p, start, stop, b->wants[b->n_wants - 1].to);
	}
	if (b->n_puts > first_put + 1)
		qsort(b->puts + first_put, b->n_puts - first_put, sizeof(*b->puts), by_place);
	return r;
}

static bool fits(const struct reshard_batch *b, const struct reshard_cursor *c, uint64_t to)
{
	size_t wants = 0;
	uint64_t bytes = slab_bytes(c, c->at, to, &wants);

	return bytes <= b->cap - b->used && (b->n_wants + wants <= WANTS_MAX || b->n_wants == 0);
}

/* The end of the longest slab, within a factor of two, that the batch has room for; c->at: none. */
static uint64_t slab_end(const struct reshard_batch *b, const struct reshard_cursor *c,
			 uint32_t element)
{
	uint64_t lost = c->n_parts * SLOT_ALIGN, left = b->cap - b->used;
	uint64_t room = (left > lost ? left - lost : left) / element, n = c->stop - c->at;
	uint64_t least = min_u64(n, max_u64(SLAB_LEAST / element, 1));

	if (c->whole)
		return fits(b, c, c->stop) ? c->stop : c->at;
	/* What nobody of this group wants costs nothing: the first try is all of it. */
	if (fits(b, c, c->stop))
		return c->stop;
	n = min_u64(n, room);
	while (n > 0 && !fits(b, c, c->at + n))
		n /= 2;
	/* The last crumbs of a batch are not worth their leaves; an empty one takes anything. */
	if (n < least && b->n_wants > 0)
		return c->at;
	return c->at + n;
}

static int fill_from_tensor(struct reshard_batch *b, struct reshard_cursor *c, bool *ret_full,
			    struct err *e)
{
	const struct reading_tensor *t = reading_tensor(c->x->reading, c->tensor);
	uint64_t to;
	char size[TEXT_SIZE_MAX];
	int r;

	while (c->at < c->stop) {
		to = slab_end(b, c, dtype_bytes(t->dtype));
		if (to == c->at && b->n_wants == 0)
			return err_set(e, -EINVAL,
				       "%s are too few for an element of each of %zu part%s: give "
				       "more with --memory",
				       text_size(size, b->cap), c->n_parts, plural(c->n_parts));
		*ret_full = to == c->at;
		if (*ret_full)
			return 0;
		r = add_slab(b, c, c->at, to);
		if (r < 0)
			return err_code(e, r, "divide a tensor over %zu part%s", c->n_parts,
					plural(c->n_parts));
		c->at = to;
	}
	return 0;
}

int batch_fill(struct reshard_batch *b, struct reshard_cursor *c, struct err *e)
{
	size_t n = reading_n_tensors(c->x->reading);
	bool full = false;
	int r = 0;

	b->used = 0;
	b->n_wants = b->n_puts = 0;
	while (c->tensor < n && !full) {
		if (!c->entered)
			r = enter_tensor(c, b, e);
		if (r == 0)
			r = fill_from_tensor(b, c, &full, e);
		if (r < 0)
			return r;
		if (full)
			break;
		if (++c->pass < c->n_passes) {
			if (!begin_pass(c))
				c->at = c->stop;
		} else {
			c->entered = false;
			c->tensor++;
		}
	}
	return b->n_wants > 0;
}
