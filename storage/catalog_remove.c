/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_remove.c - a checkpoint leaves the index, and with the last that uses them its layout
 * and those declarations that no other layout has.
 *
 * A mark goes before what it vouches for (catalog.c (2)): a removal that was cut short leaves parts
 * that nobody reads, until the layout is put again or the index is made anew.
 *
 * Memory: one batch, and 17 bytes for each rank of the layout.
 */
#include <config.h>

#include <errno.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "storage/catalog_format.h"

struct user {
	const struct digest *layout;
	bool found;
};

static int uses(void *arg, const struct catalog_entry *c)
{
	struct user *u = arg;

	u->found = digest_equal(&c->layout, u->layout);
	return u->found;
}

/* ---- The declarations of a layout that is going ---- */

struct ranks {
	struct digest *declaration; /* sorted, each once */
	bool *used;                 /* by another layout */
	uint32_t n, cap;
};

static int compare(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(struct digest));
}

static int take_rank(void *arg, const void *key, size_t key_len, const void *value, size_t len)
{
	struct ranks *r = arg;

	(void)key;
	if (key_len == 1 + 16)
		return 0; /* the mark */
	if (len != 16 || r->n == r->cap)
		return CKPT_ECORRUPT;
	memcpy(r->declaration[r->n++].b, value, 16);
	return 0;
}

static int mark_used(void *arg, const void *key, size_t key_len, const void *value, size_t len)
{
	struct ranks *r = arg;
	struct digest *d;

	(void)key;
	if (key_len == 1 + 16)
		return 0;
	if (len != 16)
		return CKPT_ECORRUPT;
	d = bsearch(value, r->declaration, r->n, sizeof(*d), compare);
	if (d)
		r->used[d - r->declaration] = true;
	return 0;
}

static int find_ranks(struct index *ix, const struct digest *layout, struct ranks *r)
{
	struct catalog_key k;
	uint32_t n = 0;
	int ret;

	key_digest(&k, CATALOG_LAYOUT, layout);
	ret = ix->ops->scan(ix, k.bytes, k.len, NULL, 0, take_rank, r);
	if (ret < 0 || r->n == 0)
		return ret;
	qsort(r->declaration, r->n, sizeof(*r->declaration), compare);
	for (uint32_t i = 0; i < r->n; i++)
		if (i == 0 || compare(&r->declaration[i], &r->declaration[n - 1]) != 0)
			r->declaration[n++] = r->declaration[i];
	r->n = n;
	return 0;
}

static int drop_declaration(struct catalog_batch *b, const struct digest *d)
{
	struct catalog_key k;
	int r;

	key_digest(&k, CATALOG_DECLARATION, d);
	r = batch_add(b, k.bytes, k.len, NULL, 0);
	if (r == 0)
		r = batch_flush(b, false);
	if (r == 0) {
		key_digest(&k, CATALOG_TENSOR, d);
		r = batch_delete(b, k.bytes, k.len);
	}
	return r;
}

static int drop_layout(struct catalog_batch *b, const struct digest *layout, struct ranks *ranks)
{
	static const uint8_t all = CATALOG_LAYOUT;
	struct catalog_key k;
	int r = find_ranks(b->ix, layout, ranks);

	key_digest(&k, CATALOG_LAYOUT, layout);
	if (r == 0)
		r = batch_add(b, k.bytes, k.len, NULL, 0); /* the mark */
	if (r == 0)
		r = batch_flush(b, false);
	if (r == 0)
		r = batch_delete(b, k.bytes, k.len);
	if (r == 0)
		r = b->ix->ops->scan(b->ix, &all, 1, NULL, 0, mark_used, ranks);
	for (uint32_t i = 0; i < ranks->n && r == 0; i++)
		if (!ranks->used[i])
			r = drop_declaration(b, &ranks->declaration[i]);
	return r;
}

static int remove_layout(struct index *ix, const struct digest *layout)
{
	CLEANUP_FREE struct catalog_batch *b = batch_new(ix);
	CLEANUP_FREE struct digest *declarations = NULL;
	CLEANUP_FREE bool *used = NULL;
	struct ranks ranks = {0};
	struct catalog_key k;
	int r;

	key_digest(&k, CATALOG_LAYOUT, layout);
	r = index_get_u32(ix, &k, &ranks.cap);
	if (r == CKPT_ENOTFOUND)
		return 0;
	if (r < 0)
		return r;
	declarations = alloc_array(ranks.cap, sizeof(*declarations));
	used = alloc_array(ranks.cap, sizeof(*used));
	ranks.declaration = declarations;
	ranks.used = used;
	if (!b || (ranks.cap && (!declarations || !used)))
		return -ENOMEM;
	return drop_layout(b, layout, &ranks);
}

int catalog_remove(struct index *ix, const struct checkpoint_id *id, struct err *e)
{
	struct catalog_key k;
	struct catalog_entry c;
	struct user user = {.layout = &c.layout};
	struct index_entry t;
	int r = catalog_get(ix, id, &c, e), gone;

	if (r == CKPT_ENOTFOUND) {
		err_clear(e);
		return 0;
	}
	key_checkpoint(&k, id);
	t = (struct index_entry){.key = k.bytes, .key_len = k.len};
	gone = ix->ops->write(ix, &t, 1, true);
	if (gone < 0)
		return checkpoint_error(e, gone, "remove", id);
	if (r < 0)
		return r; /* its layout is not known */
	r = catalog_each(ix, NULL, uses, &user, e);
	if (r < 0 || user.found)
		return r < 0 ? r : 0;
	r = remove_layout(ix, &c.layout);
	return r < 0 ? layout_error(e, r, "remove", &c.layout) : 0;
}
