/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_remove.c - a checkpoint leaves the index, and with the last that uses it its layout.
 *
 * A mark goes before what it vouches for (catalog.c (2)): a removal that was cut short leaves parts
 * that nobody reads, until the layout is put again or the index is made anew.
 *
 * Memory: one batch.
 */
#include <config.h>

#include <errno.h>

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

static int remove_layout(struct index *ix, const struct digest *layout)
{
	CLEANUP_FREE struct catalog_batch *b = batch_new(ix, NULL);
	struct layout_mark there;
	struct catalog_key k;
	int r = layout_find(ix, layout, &there);

	key_digest(&k, CATALOG_LAYOUT, layout);
	if (r == CKPT_ENOTFOUND)
		return 0;
	if (r == 0 && !b)
		r = -ENOMEM;
	if (r == 0)
		r = batch_add(b, k.bytes, k.len, NULL, 0); /* the mark */
	return r < 0 ? r : layout_clear(b, layout);
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
