/* SPDX-License-Identifier: Apache-2.0 */
/*
 * diff.c - see diff.h. One thread; the sources read with more.
 *
 * Two checkpoints of one layout have the same bytes at the same places of their images: where the
 * digests of the leaves that hold a tensor are equal on every rank, the tensor is, and is not
 * read. That a stored leaf matches its digest is what `verify` is for.
 */
#include <config.h>

#include "tools/diff.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "tools/plural.h"

/* ---- Which tensors ---- */

struct named {
	const struct reading_tensor *t;
	size_t index;
};

static int by_name(const void *a, const void *b)
{
	const struct named *x = a, *y = b;

	return name_compare(x->t->name, x->t->name_len, y->t->name, y->t->name_len);
}

static struct named *sorted(const struct source *s, const struct words *globs, size_t *ret_n)
{
	struct named *list = alloc_array(s->n, sizeof(*list));
	size_t n = 0;

	for (size_t i = 0; list && i < s->n; i++)
		if (name_is_chosen(globs, s->tensors[i].name, s->tensors[i].name_len))
			list[n++] = (struct named){&s->tensors[i], i};
	if (list && n)
		qsort(list, n, sizeof(*list), by_name);
	*ret_n = n;
	return list;
}

static int pair(struct diff *d, const struct words *globs, struct err *e)
{
	size_t n_a, n_b, i = 0, k = 0;
	CLEANUP_FREE struct named *a = sorted(d->a, globs, &n_a);
	CLEANUP_FREE struct named *b = sorted(d->b, globs, &n_b);

	d->tensors = alloc_array(n_a + n_b, sizeof(*d->tensors));
	if (!a || !b || !d->tensors)
		return err_code(e, -ENOMEM, "list the tensors");
	while (i < n_a || k < n_b) {
		int c = i == n_a ? 1 : k == n_b ? -1 : by_name(&a[i], &b[k]);

		d->tensors[d->n++] = (struct diff_tensor){.a = c <= 0 ? a[i].index : SIZE_MAX,
							  .b = c >= 0 ? b[k].index : SIZE_MAX};
		i += c <= 0;
		k += c >= 0;
	}
	return 0;
}

static bool same_shape(const struct shape *a, const struct shape *b)
{
	return a->ndim == b->ndim && memcmp(a->dim, b->dim, a->ndim * sizeof(a->dim[0])) == 0;
}

static bool is_pair(const struct diff_tensor *t)
{
	return t->a != SIZE_MAX && t->b != SIZE_MAX;
}

static bool is_comparable(const struct diff *d, const struct diff_tensor *t)
{
	const struct reading_tensor *a, *b;

	if (!is_pair(t))
		return false;
	a = &d->a->tensors[t->a];
	b = &d->b->tensors[t->b];
	return same_shape(&a->global, &b->global) && diff_is_comparable(a->dtype, b->dtype);
}

bool diff_is_equal(const struct diff *d, const struct diff_tensor *t)
{
	return t->compared && t->values.changed == 0 &&
	       d->a->tensors[t->a].dtype == d->b->tensors[t->b].dtype;
}

/* ---- By digests ---- */

static bool same_leaves(const struct rank_table *a, const struct rank_table *b,
			const struct shard *s)
{
	uint64_t leaf = a->geometry.leaf;

	for (uint64_t i = s->image_offset / leaf; i * leaf < s->image_offset + s->bytes; i++) {
		struct digest x = rank_table_leaf(a, i), y = rank_table_leaf(b, i);

		/* the last leaf of the images may have another length */
		if (!digest_equal(&x, &y) ||
		    min_u64(a->image_len, (i + 1) * leaf) != min_u64(b->image_len, (i + 1) * leaf))
			return false;
	}
	return true;
}

/* Marks tensors of A that one rank's leaves do not show to be equal. false: the rank's images are
 * not of one layout. */
static bool mark_rank(struct diff *d, uint32_t rank, bool *differs)
{
	const struct rank_table *a = reading_table(d->a->reading, rank),
				*b = reading_table(d->b->reading, rank);
	struct shard s;

	if (!a || !b || a->geometry.leaf != b->geometry.leaf ||
	    a->declaration.len != b->declaration.len ||
	    memcmp(a->declaration.bytes, b->declaration.bytes, a->declaration.len) != 0)
		return false;
	for (uint32_t i = 0; i < a->declaration.n_shards; i++) {
		size_t tensor;

		declaration_get(&a->declaration, i, &s);
		if (s.bytes == 0 || same_leaves(a, b, &s))
			continue;
		tensor = reading_find(d->a->reading, s.name, s.name_len);
		if (tensor == SIZE_MAX)
			return false;
		differs[tensor] = true;
	}
	return true;
}

/* Which tensors of A have to be read; NULL: all. */
static bool *compare_digests(struct diff *d)
{
	bool *differs;
	uint32_t world;

	if (!d->a->reading || !d->b->reading)
		return NULL;
	world = reading_commit(d->a->reading)->world;
	if (world != reading_commit(d->b->reading)->world)
		return NULL;
	differs = alloc_array(d->a->n, sizeof(*differs));
	for (uint32_t i = 0; differs && i < world; i++)
		if (!mark_rank(d, i, differs)) {
			alloc_free(differs);
			differs = NULL;
		}
	return differs;
}

/* ---- By bytes ---- */

struct comparing {
	struct diff *d;
	size_t *which; /* of d->tensors, in A's order */
	struct slab_item *items;
	size_t n;
	uint64_t total;
	uint8_t *buffer;
	struct reading_want a[SLABS_MAX], b[SLABS_MAX];
};

static int in_order_of_a(const void *x, const void *y)
{
	const struct diff_tensor *a = *(const struct diff_tensor *const *)x,
				 *b = *(const struct diff_tensor *const *)y;

	return a->a < b->a ? -1 : a->a > b->a;
}

/* What is to be read. The rest is equal, or has no bytes. */
static int choose(struct comparing *c, struct err *e)
{
	struct diff *d = c->d;
	CLEANUP_FREE struct diff_tensor **list = alloc_array(d->n, sizeof(struct diff_tensor *));
	CLEANUP_FREE bool *differs = compare_digests(d);
	size_t n = 0;

	c->which = alloc_array(d->n, sizeof(*c->which));
	c->items = alloc_array(d->n, sizeof(*c->items));
	if (!list || !c->which || !c->items)
		return err_code(e, -ENOMEM, "compare %zu tensor%s", d->n, plural(d->n));
	for (size_t i = 0; i < d->n; i++)
		if (is_comparable(d, &d->tensors[i]))
			list[n++] = &d->tensors[i];
	if (n)
		qsort(list, n, sizeof(*list), in_order_of_a);
	for (size_t i = 0; i < n; i++) {
		const struct reading_tensor *a = &d->a->tensors[list[i]->a],
					    *b = &d->b->tensors[list[i]->b];
		uint64_t elements = a->bytes / dtype_bytes(a->dtype);

		list[i]->compared = true;
		if (differs && !differs[list[i]->a]) {
			d->bytes_digest += a->bytes + b->bytes;
			list[i]->values.elements = elements;
			continue;
		}
		c->which[c->n] = (size_t)(list[i] - d->tensors);
		c->items[c->n++] = (struct slab_item){
			.elements = elements,
			.cost = dtype_bytes(a->dtype) + dtype_bytes(b->dtype),
		};
		c->total += a->bytes + b->bytes;
	}
	return 0;
}

static struct reading_want want(const struct source *s, size_t tensor, const struct slab *slab,
				uint8_t **to)
{
	const struct reading_tensor *t = &s->tensors[tensor];
	struct reading_want w = {
		.tensor = tensor, .start = slab->start, .stop = slab->stop, .to = *to};

	w.box.ndim = t->global.ndim;
	memcpy(w.box.length, t->global.dim, sizeof(w.box.length));
	*to += (slab->stop - slab->start) * dtype_bytes(t->dtype);
	return w;
}

static int compare_turn(struct comparing *c, const struct slab *slabs, size_t n, struct err *e)
{
	struct diff *d = c->d;
	uint8_t *to = c->buffer;
	int r;

	for (size_t i = 0; i < n; i++) {
		const struct diff_tensor *t = &d->tensors[c->which[slabs[i].which]];

		c->a[i] = want(d->a, t->a, &slabs[i], &to);
		c->b[i] = want(d->b, t->b, &slabs[i], &to);
	}
	r = source_pull(d->a, c->a, n, e);
	if (r == 0)
		r = source_pull(d->b, c->b, n, e);
	if (r < 0)
		return r;
	for (size_t i = 0; i < n; i++) {
		struct diff_tensor *t = &d->tensors[c->which[slabs[i].which]];

		assert(t->values.elements == slabs[i].start);
		diff_add(&t->values, (struct diff_part){d->a->tensors[t->a].dtype, c->a[i].to},
			 (struct diff_part){d->b->tensors[t->b].dtype, c->b[i].to},
			 slabs[i].stop - slabs[i].start);
	}
	d->bytes_read += (uint64_t)(to - c->buffer);
	return 0;
}

static int compare(struct comparing *c, uint64_t memory, struct progress *progress, struct err *e)
{
	struct slabs slabs;
	struct slab turn[SLABS_MAX];
	size_t n;
	int r = choose(c, e);

	c->buffer = alloc_zero(max_u64(memory, 32)); /* two elements of 16 bytes */
	if (r == 0 && !c->buffer)
		r = err_set(e, -ENOMEM, "there is no memory for buffers: give less with --memory");
	if (progress)
		progress_start(progress, c->total, progress->shown);
	slabs = (struct slabs){.items = c->items, .n = c->n, .memory = memory};
	while (r == 0 && (n = slabs_next(&slabs, turn)) > 0) {
		r = compare_turn(c, turn, n, e);
		if (progress)
			progress_draw(progress, c->d->bytes_read, 0);
	}
	if (progress)
		progress_clear(progress);
	return r;
}

int diff_run(struct diff *d, const struct words *globs, uint64_t memory, struct progress *progress,
	     struct err *e)
{
	struct comparing *c = alloc_zero(sizeof(*c));
	int r;

	if (!c)
		return err_code(e, -ENOMEM, "compare");
	c->d = d;
	r = pair(d, globs, e);
	if (r == 0)
		r = compare(c, memory, progress, e);
	alloc_free(c->which);
	alloc_free(c->items);
	alloc_free(c->buffer);
	alloc_free(c);
	return r;
}

void diff_fini(struct diff *d)
{
	alloc_free(d->tensors);
	d->tensors = NULL;
	d->n = 0;
}
