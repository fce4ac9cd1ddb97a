/* SPDX-License-Identifier: Apache-2.0 */
/*
 * targets.c - finds targets of a load that overlap.
 *
 * What lies there afterwards would be one of the two, by chance. Targets are sorted by where they
 * begin; only those whose spans overlap are looked at in pairs, and of these the strides decide:
 * columns of one array are apart. Two contiguous ones whose spans overlap do overlap.
 *
 * Twins are no error: tied weights are in one place under two names.
 *
 * The check is exact up to PAIRS_MAX pairs of overlapping spans (some 0.1 s), of those beyond it
 * nothing is said: they would be more than a thousand slices of one array. Caller's thread.
 */
#include <config.h>

#include "client/targets.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "model/strided.h"

#define PAIRS_MAX (1u << 20)

struct target {
	uint64_t lo, hi; /* addresses: [lo, hi) has all of it */
	uint64_t ptr;
	int device;
	uint32_t shard; /* n_shards and more: a blob */
	bool dense;     /* all bytes of [lo, hi) are its own */
	struct strided layout;
};

struct checking {
	const struct wanted *w;
	const struct ckpt_binding *b;
	const struct ckpt_stored_blob *blobs;
	uint32_t *twin;
	struct target *targets;
	uint32_t n, pairs;
};

static int by_place(const void *a, const void *b)
{
	const struct target *x = a, *y = b;

	if (x->device != y->device)
		return x->device < y->device ? -1 : 1;
	if (x->lo != y->lo)
		return x->lo < y->lo ? -1 : 1;
	return x->shard < y->shard ? -1 : 1;
}

static const char *name_of(const struct checking *k, const struct target *t,
			   char buf[NAME_TEXT_MAX])
{
	struct shard s;

	if (t->shard >= k->w->n_shards)
		return k->blobs[t->shard - k->w->n_shards].name;
	declared_shard(k->w, t->shard, &s);
	return name_text(buf, s.name, s.name_len);
}

static bool same_layout(const struct strided *a, const struct strided *b)
{
	return a->run == b->run && a->ndim == b->ndim &&
	       memcmp(a->count, b->count, a->ndim * sizeof(a->count[0])) == 0 &&
	       memcmp(a->stride, b->stride, a->ndim * sizeof(a->stride[0])) == 0;
}

/* Two whose spans overlap. */
static int pair_check(struct checking *k, const struct target *a, const struct target *b,
		      struct err *e)
{
	char na[NAME_TEXT_MAX], nb[NAME_TEXT_MAX];
	uint32_t first = a->shard < b->shard ? a->shard : b->shard;
	uint32_t second = a->shard < b->shard ? b->shard : a->shard;

	if (a->ptr == b->ptr && second < k->w->n_shards && same_layout(&a->layout, &b->layout)) {
		if (k->twin[second] > first)
			k->twin[second] = first;
		return 0;
	}
	if (!(a->dense && b->dense) &&
	    !strided_meet(&a->layout, &b->layout, (int64_t)(b->ptr - a->ptr)))
		return 0;
	return err_set(e, -EINVAL,
		       "'%.90s' and '%.90s' are to be loaded into memory that overlaps; bind them "
		       "to memory of their own",
		       name_of(k, a, na), name_of(k, b, nb));
}

static int pairs_check(struct checking *k, struct err *e)
{
	int r = 0;

	qsort(k->targets, k->n, sizeof(*k->targets), by_place);
	for (uint32_t i = 0; i < k->n && r == 0; i++) {
		const struct target *a = &k->targets[i];

		for (uint32_t j = i + 1; j < k->n && r == 0; j++) {
			const struct target *b = &k->targets[j];

			if (b->device != a->device || b->lo >= a->hi || k->pairs++ >= PAIRS_MAX)
				break;
			r = pair_check(k, a, b, e);
		}
	}
	return r;
}

static int add_shard(struct checking *k, uint32_t i, struct err *e)
{
	const struct ckpt_binding *b = &k->b[i];
	struct target *t = &k->targets[k->n];
	int64_t lo = 0, hi = (int64_t)b->bytes;
	char name[NAME_TEXT_MAX];
	struct shard s;

	if (b->bytes == 0)
		return 0;
	k->n++;
	*t = (struct target){.ptr = (uintptr_t)b->ptr,
			     .device = b->device,
			     .shard = i,
			     .layout.run = b->bytes};
	if (b->strides) {
		bool fits;
		int r;

		declared_shard(k->w, i, &s);
		fits = strided_reach(&s, b->strides, &lo, &hi);
		r = strided_init(&t->layout, &s, b->strides);
		assert(fits && r == 0); /* bindings_check() */
	}
	t->dense = (uint64_t)(hi - lo) == b->bytes;
	t->lo = t->ptr + (uint64_t)lo;
	t->hi = t->ptr + (uint64_t)hi;
	if (!strided_meets_itself(&t->layout))
		return 0;
	return err_set(e, -EINVAL,
		       "tensor '%s' (binding %u): by its strides several of its elements are in "
		       "one place, so it cannot be loaded; bind it to memory of its own",
		       name_text(name, s.name, s.name_len), i);
}

int targets_check(const struct wanted *w, const struct ckpt_binding *b,
		  const struct ckpt_stored_blob *blobs, uint32_t n_blobs, uint32_t *twin,
		  struct err *e)
{
	struct checking k = {.w = w, .b = b, .blobs = blobs, .twin = twin};
	int r = 0;

	k.targets = alloc_array((size_t)w->n_shards + n_blobs, sizeof(*k.targets));
	if (!k.targets)
		return err_code(e, -ENOMEM, "look at %u tensors", w->n_shards);
	for (uint32_t i = 0; i < w->n_shards && r == 0; i++) {
		twin[i] = i;
		r = add_shard(&k, i, e);
	}
	for (uint32_t i = 0; i < n_blobs && r == 0; i++) {
		uint64_t at = (uintptr_t)blobs[i].data;

		if (blobs[i].bytes > UINT64_MAX - at)
			r = err_set(e, -EINVAL, "blob '%.100s': its %llu bytes from %p on are not "
				    "in memory", blobs[i].name, (unsigned long long)blobs[i].bytes,
				    blobs[i].data);
		else if (blobs[i].bytes)
			k.targets[k.n++] = (struct target){.lo = at,
							   .hi = at + blobs[i].bytes,
							   .ptr = at,
							   .device = CKPT_HOST,
							   .shard = w->n_shards + i,
							   .dense = true,
							   .layout.run = blobs[i].bytes};
	}
	if (r == 0)
		r = pairs_check(&k, e);
	alloc_free(k.targets);
	return r;
}
