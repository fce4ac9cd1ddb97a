/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog.c - checkpoints, layouts and tensors in the index.
 *
 *   (1) A checkpoint is one entry and changes in one synced write.
 *   (2) A layout or declaration is seen whole or not at all: its mark is written after all of it,
 *       and writes become durable in order (base/index.h).
 *   (3) Everything here can be written again with the same effect (I10); nothing is the only copy
 *       (I8).
 *
 * Memory: one batch (catalog_format.h), whatever the number of shards. Blocking; any WORK_INDEX
 * worker; no state but the index's.
 */
#include <config.h>

#include "storage/catalog.h"

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"
#include "storage/catalog_format.h"

/* ---- Errors: what of, then the index's own ---- */

int checkpoint_error(struct err *e, int code, const char *what, const struct checkpoint_id *id)
{
	char job[ID_TEXT_MAX], attempt[ID_TEXT_MAX];

	hex_format(job, id->job.b, sizeof(id->job.b));
	hex_format(attempt, id->attempt.b, sizeof(id->attempt.b));
	return err_code(e, code, "%s step %llu (attempt %s) of job %s in the index", what,
			(unsigned long long)id->step, attempt, job);
}

int layout_error(struct err *e, int code, const char *what, const struct digest *layout)
{
	char hex[ID_TEXT_MAX];

	hex_format(hex, layout->b, sizeof(layout->b));
	return err_code(e, code, "%s layout %s in the index", what, hex);
}

/* ---- Numbers ---- */

static int take_u32(void *arg, const void *key, size_t key_len, const void *value, size_t len)
{
	(void)key;
	(void)key_len;
	if (len != 4)
		return CKPT_ECORRUPT;
	*(uint32_t *)arg = get_le32(value);
	return 0;
}

int index_get_u32(struct index *ix, const struct catalog_key *k, uint32_t *ret)
{
	return ix->ops->get(ix, k->bytes, k->len, take_u32, ret);
}

/* ---- Checkpoints ---- */

int catalog_put(struct index *ix, const struct catalog_entry *c, struct err *e)
{
	struct catalog_key k;
	uint8_t value[CATALOG_VALUE_MAX];
	struct index_entry t;
	int r;

	key_checkpoint(&k, &c->id);
	t = (struct index_entry){ k.bytes, k.len, value, checkpoint_encode(value, c) };
	r = ix->ops->write(ix, &t, 1, true);
	return r < 0 ? checkpoint_error(e, r, "put", &c->id) : 0;
}

static int take_checkpoint(void *arg, const void *key, size_t key_len, const void *value,
			   size_t len)
{
	return checkpoint_decode(key, key_len, value, len, arg);
}

int catalog_get(struct index *ix, const struct checkpoint_id *id, struct catalog_entry *ret,
		struct err *e)
{
	struct catalog_key k;
	int r;

	key_checkpoint(&k, id);
	r = ix->ops->get(ix, k.bytes, k.len, take_checkpoint, ret);
	return r < 0 ? checkpoint_error(e, r, "find", id) : 0;
}

struct each {
	catalog_fn *fn;
	void *arg;
	bool stopped; /* by fn */
};

static int each_checkpoint(void *arg, const void *key, size_t key_len, const void *value,
			   size_t len)
{
	struct each *each = arg;
	struct catalog_entry c;
	int r = checkpoint_decode(key, key_len, value, len, &c);

	if (r < 0)
		return r;
	r = each->fn(each->arg, &c);
	each->stopped = r != 0;
	return r;
}

int catalog_each(struct index *ix, const struct job_id *job, catalog_fn *fn, void *arg,
		 struct err *e)
{
	struct each each = { .fn = fn, .arg = arg };
	struct catalog_key k;
	int r;

	assert(fn);
	key_job(&k, job);
	r = ix->ops->scan(ix, k.bytes, k.len, NULL, 0, each_checkpoint, &each);
	if (r < 0 && !each.stopped)
		return err_code(e, r, "list the checkpoints in the index");
	return r;
}

/* ---- Layouts ---- */

static int add_shards(struct catalog_batch *b, const struct digest *name,
		      const struct declaration *d)
{
	uint8_t value[CATALOG_VALUE_MAX];
	struct catalog_key k;
	struct shard s;
	int r = 0;

	for (uint32_t i = 0; i < d->n_shards && r == 0; i++) {
		declaration_get(d, i, &s);
		key_tensor(&k, name, s.name, s.name_len);
		key_add_order(&k, declaration_order(d, i));
		r = batch_add(b, k.bytes, k.len, value, shard_encode(value, &s));
	}
	return r;
}

static int add_declaration(struct catalog_batch *b, const struct digest *name,
			   const struct declaration *d)
{
	struct catalog_key k;
	uint8_t value[4];
	uint32_t n;
	int r;

	key_digest(&k, CATALOG_DECLARATION, name);
	r = index_get_u32(b->ix, &k, &n);
	if (r != CKPT_ENOTFOUND)
		return r; /* immutable: it is there, whole */
	r = add_shards(b, name, d);
	if (r < 0)
		return r;
	put_le32(value, d->n_shards);
	r = batch_add(b, k.bytes, k.len, value, sizeof(value)); /* (2) */
	return r < 0 ? r : batch_flush(b, false);
}

int layout_add_rank(struct catalog_batch *b, const struct digest *layout, uint32_t rank,
		    const struct declaration *d)
{
	struct digest name = declaration_digest(d->bytes, d->len);
	struct catalog_key k;
	int r = add_declaration(b, &name, d);

	if (r < 0)
		return r;
	key_layout_rank(&k, layout, rank);
	return batch_add(b, k.bytes, k.len, name.b, sizeof(name.b));
}

int layout_end(struct catalog_batch *b, const struct digest *layout, uint32_t world)
{
	struct catalog_key k;
	uint8_t value[4];
	int r;

	put_le32(value, world);
	key_digest(&k, CATALOG_LAYOUT, layout);
	r = batch_add(b, k.bytes, k.len, value, sizeof(value)); /* (2) */
	return r < 0 ? r : batch_flush(b, true);
}

int catalog_put_layout(struct index *ix, const struct digest *layout,
		       const struct declaration *ranks, uint32_t world, struct err *e)
{
	CLEANUP_FREE struct catalog_batch *b = NULL;
	struct catalog_key k;
	uint32_t there = 0;
	int r;

	assert(ranks && world > 0);
	key_digest(&k, CATALOG_LAYOUT, layout);
	r = index_get_u32(ix, &k, &there);
	if (r == 0 && there > 0)
		return 0;
	if (r < 0 && r != CKPT_ENOTFOUND)
		return layout_error(e, r, "find", layout);
	b = batch_new(ix);
	r = b ? 0 : -ENOMEM;
	for (uint32_t rank = 0; rank < world && r == 0; rank++)
		r = layout_add_rank(b, layout, rank, &ranks[rank]);
	if (r == 0)
		r = layout_end(b, layout, world);
	return r < 0 ? layout_error(e, r, "put", layout) : 0;
}

/* ---- Tensors ---- */

#define WINDOW 256 /* ranks whose declarations are read at a time */

struct window {
	uint32_t first, n; /* ranks first.. */
	struct digest declaration[WINDOW];
};

static int take_rank(void *arg, const void *key, size_t key_len, const void *value, size_t len)
{
	struct window *w = arg;
	const uint8_t *k = key;

	if (key_len != 1 + 16 + 4 || len != 16 ||
	    __builtin_bswap32(get_le32(k + 17)) != w->first + w->n)
		return CKPT_ECORRUPT;
	memcpy(w->declaration[w->n++].b, value, 16);
	return w->n == WINDOW;
}

static int read_window(struct index *ix, const struct digest *layout, uint32_t first,
		       uint32_t world, struct window *w)
{
	struct catalog_key prefix, from;
	int r;

	w->first = first;
	w->n = 0;
	key_digest(&prefix, CATALOG_LAYOUT, layout);
	key_layout_rank(&from, layout, first);
	r = ix->ops->scan(ix, prefix.bytes, prefix.len, from.bytes, from.len, take_rank, w);
	if (r < 0)
		return r;
	/* (2): there are as many as the mark says. */
	return w->n == min_u64(WINDOW, world - first) ? 0 : CKPT_ECORRUPT;
}

struct tensor_walk {
	catalog_shard_fn *fn;
	void *arg;
	uint32_t rank;
	size_t name_len, found;
	bool stopped; /* by fn */
};

static int take_shard(void *arg, const void *key, size_t key_len, const void *value, size_t len)
{
	struct tensor_walk *w = arg;
	struct shard s;
	int r;

	/* No tensor's name has a NUL in it, but the one that is asked for may. */
	if (key_len != 1 + 16 + w->name_len + 1 + 4)
		return 0;
	r = shard_decode((const char *)key + 1 + 16, w->name_len, value, len, &s);
	if (r < 0)
		return r;
	w->found++;
	r = w->fn(w->arg, w->rank, &s);
	w->stopped = r != 0;
	return r;
}

static int walk_tensor(struct index *ix, const struct digest *layout, uint32_t world,
		       const char *name, struct tensor_walk *t)
{
	CLEANUP_FREE struct window *w = alloc_zero(sizeof(*w));
	struct catalog_key k;
	int r = w ? 0 : -ENOMEM;

	for (uint32_t rank = 0; rank < world && r == 0; rank++) {
		if (rank % WINDOW == 0)
			r = read_window(ix, layout, rank, world, w);
		if (r < 0)
			break;
		t->rank = rank;
		key_tensor(&k, &w->declaration[rank % WINDOW], name, t->name_len);
		r = ix->ops->scan(ix, k.bytes, k.len, NULL, 0, take_shard, t);
	}
	return r;
}

int catalog_tensor(struct index *ix, const struct digest *layout, const char *name,
		   size_t name_len, catalog_shard_fn *fn, void *arg, struct err *e)
{
	struct tensor_walk t = { .fn = fn, .arg = arg, .name_len = name_len };
	char text[NAME_TEXT_MAX];
	struct catalog_key k;
	uint32_t world = 0;
	int r;

	assert(fn && name);
	if (name_len > CKPT_NAME_MAX)
		return err_set(e, -EINVAL, "a tensor's name has at most %d bytes", CKPT_NAME_MAX);
	key_digest(&k, CATALOG_LAYOUT, layout);
	r = index_get_u32(ix, &k, &world);
	if (r < 0)
		return layout_error(e, r, "find", layout);
	if (world == 0)
		return layout_error(e, CKPT_ENOTFOUND, "its files are damaged: find", layout);
	r = walk_tensor(ix, layout, world, name, &t);
	if (t.stopped)
		return r;
	if (r < 0)
		return layout_error(e, r, "find a tensor of", layout);
	if (t.found == 0)
		return err_set(e, CKPT_ENOTFOUND, "no rank has a tensor '%s'",
			       name_text(text, name, (uint32_t)name_len));
	return 0;
}
