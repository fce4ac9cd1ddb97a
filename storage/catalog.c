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

static int take_mark(void *arg, const void *key, size_t key_len, const void *value, size_t len)
{
	struct layout_mark *mark = arg;
	const uint8_t *v = value;

	(void)key;
	(void)key_len;
	if (len != 5 || v[4] > 1)
		return CKPT_ECORRUPT;
	*mark = (struct layout_mark){.world = get_le32(v), .shared = v[4]};
	return 0;
}

int layout_find(struct index *ix, const struct digest *layout, struct layout_mark *ret)
{
	struct catalog_key k;

	key_digest(&k, CATALOG_LAYOUT, layout);
	return ix->ops->get(ix, k.bytes, k.len, take_mark, ret);
}

int layout_clear(struct catalog_batch *b, const struct digest *layout)
{
	static const uint8_t kinds[] = {CATALOG_DECLARATION, CATALOG_GROUPS, CATALOG_TENSOR};
	int r = batch_flush(b, false);

	for (size_t i = 0; i < sizeof(kinds) && r == 0; i++) {
		struct catalog_key k;

		key_digest(&k, kinds[i], layout);
		r = batch_delete(b, k.bytes, k.len);
	}
	return r;
}

static int add_shards(struct catalog_batch *b, const struct digest *layout, uint32_t rank,
		      const struct declaration *d)
{
	uint8_t value[CATALOG_VALUE_MAX];
	struct catalog_key k;
	struct shard s;
	int r = 0;

	for (uint32_t i = 0; i < d->n_shards && r == 0; i++) {
		declaration_get(d, i, &s);
		key_tensor(&k, layout, s.name, s.name_len);
		key_add_order(&k, rank, declaration_order(d, i));
		r = batch_add(b, k.bytes, k.len, value, shard_encode(value, &s));
	}
	return r;
}

/* *ret: the first rank that has this declaration, whose shards are in the index. */
static int add_declaration(struct catalog_batch *b, const struct digest *layout, uint32_t rank,
			   const struct declaration *d, uint32_t *ret)
{
	struct digest name = declaration_digest(d->bytes, d->len);
	struct catalog_key k;
	uint8_t value[4];
	int r;

	key_declaration(&k, layout, &name);
	r = index_get_u32(b->ix, &k, ret);
	if (r == 0 && *ret > rank)
		return CKPT_ECORRUPT;
	if (r != CKPT_ENOTFOUND)
		return r;
	r = add_shards(b, layout, rank, d);
	if (r < 0)
		return r;
	*ret = rank;
	put_le32(value, rank);
	r = batch_add(b, k.bytes, k.len, value, sizeof(value)); /* (2) */
	return r < 0 ? r : batch_flush(b, false);
}

/* The groups of ranks up to this one; nothing where each has shards of its own. */
static int add_groups(struct catalog_batch *b, const struct digest *layout, uint32_t first)
{
	uint8_t value[4 * GROUP_RANKS];
	struct catalog_key k;
	bool shared = false;
	uint32_t n = b->n_groups;

	b->n_groups = 0;
	for (uint32_t i = 0; i < n; i++) {
		put_le32(value + 4 * (size_t)i, b->groups[i]);
		shared = shared || b->groups[i] != first + i;
	}
	if (!shared)
		return 0;
	b->shared = true;
	key_groups(&k, layout, first / GROUP_RANKS);
	return batch_add(b, k.bytes, k.len, value, 4 * (size_t)n);
}

int layout_add_rank(struct catalog_batch *b, const struct digest *layout, uint32_t rank,
		    const struct declaration *d)
{
	int r = 0;

	if (rank == 0) {
		b->n_groups = 0;
		b->shared = false;
		r = layout_clear(b, layout); /* what a layout that came half has left */
	}
	assert(b->n_groups == rank % GROUP_RANKS);
	if (r == 0)
		r = add_declaration(b, layout, rank, d, &b->groups[b->n_groups]);
	if (r < 0)
		return r;
	b->n_groups++;
	return b->n_groups == GROUP_RANKS ? add_groups(b, layout, rank - rank % GROUP_RANKS) : 0;
}

int layout_end(struct catalog_batch *b, const struct digest *layout, uint32_t world)
{
	struct catalog_key k;
	uint8_t value[5];
	int r = world ? add_groups(b, layout, world - world % GROUP_RANKS) : 0;

	if (r < 0)
		return r;
	put_le32(value, world);
	value[4] = b->shared;
	key_digest(&k, CATALOG_LAYOUT, layout);
	r = batch_add(b, k.bytes, k.len, value, sizeof(value)); /* (2) */
	return r < 0 ? r : batch_flush(b, true);
}

int catalog_put_layout(struct index *ix, const struct digest *layout,
		       const struct declaration *ranks, uint32_t world, const atomic_bool *cancel,
		       struct err *e)
{
	CLEANUP_FREE struct catalog_batch *b = NULL;
	struct layout_mark there;
	int r;

	assert(ranks && world > 0);
	r = layout_find(ix, layout, &there);
	if (r == 0 && there.world > 0)
		return 0;
	if (r < 0 && r != CKPT_ENOTFOUND)
		return layout_error(e, r, "find", layout);
	b = batch_new(ix, cancel);
	r = b ? 0 : -ENOMEM;
	for (uint32_t rank = 0; rank < world && r == 0; rank++)
		r = layout_add_rank(b, layout, rank, &ranks[rank]);
	if (r == 0)
		r = layout_end(b, layout, world);
	return r < 0 ? layout_error(e, r, "put", layout) : 0;
}

/* ---- Tensors ---- */

struct found {
	uint32_t group; /* the first rank that has it */
	struct shard shard;
};

struct tensor_walk {
	catalog_shard_fn *fn;
	void *arg;
	const char *name;
	size_t name_len, told;
	struct layout_mark layout;
	uint32_t next;       /* rank to be told about, where ranks share shards */
	bool stopped;        /* by fn */
	struct found *found; /* where they do; by group and order */
	size_t n, cap;
};

static int tell(struct tensor_walk *w, uint32_t rank, const struct shard *s)
{
	int r = w->fn(w->arg, rank, s);

	w->told++;
	w->stopped = r != 0;
	return r;
}

static int keep(struct tensor_walk *w, uint32_t group, const struct shard *s)
{
	size_t cap = w->cap ? 2 * w->cap : 64;
	struct found *more;

	if (w->n == w->cap) {
		more = alloc_resize(w->found, cap * sizeof(*more));
		if (!more)
			return -ENOMEM;
		w->found = more;
		w->cap = cap;
	}
	w->found[w->n++] = (struct found){group, *s};
	return 0;
}

static int take_shard(void *arg, const void *key, size_t key_len, const void *value, size_t len)
{
	struct tensor_walk *w = arg;
	size_t at = 1 + 16 + w->name_len + 1;
	struct shard s;
	uint32_t group;
	int r;

	/* No tensor's name has a NUL in it, but the one that is asked for may. */
	if (key_len != at + 4 + 4)
		return 0;
	group = __builtin_bswap32(get_le32((const uint8_t *)key + at));
	r = shard_decode(w->name, w->name_len, value, len, &s);
	if (r < 0)
		return r;
	return w->layout.shared ? keep(w, group, &s) : tell(w, group, &s);
}

/* All that is kept of a group, as the shards of a rank. */
static int tell_group(struct tensor_walk *w, uint32_t rank, uint32_t group)
{
	size_t lo = 0, hi = w->n;
	int r = 0;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (w->found[mid].group < group)
			lo = mid + 1;
		else
			hi = mid;
	}
	for (; lo < w->n && w->found[lo].group == group && r == 0; lo++)
		r = tell(w, rank, &w->found[lo].shard);
	return r;
}

/* Ranks before `end` of which nothing is said have shards of their own. */
static int tell_until(struct tensor_walk *w, uint32_t end)
{
	int r = 0;

	for (; w->next < end && r == 0; w->next++)
		r = tell_group(w, w->next, w->next);
	return r;
}

static int take_groups(void *arg, const void *key, size_t key_len, const void *value, size_t len)
{
	struct tensor_walk *w = arg;
	uint64_t first;
	int r;

	if (key_len != 1 + 16 + 4 || len == 0 || len % 4 != 0 || len > 4 * GROUP_RANKS)
		return CKPT_ECORRUPT;
	first = (uint64_t)__builtin_bswap32(get_le32((const uint8_t *)key + 17)) * GROUP_RANKS;
	if (first + len / 4 > w->layout.world || first < w->next)
		return CKPT_ECORRUPT;
	r = tell_until(w, (uint32_t)first);
	for (size_t i = 0; i < len / 4 && r == 0; i++, w->next++) {
		uint32_t group = get_le32((const uint8_t *)value + 4 * i);

		r = group > w->next ? CKPT_ECORRUPT : tell_group(w, w->next, group);
	}
	return r;
}

/*
 * One scan of the name's shards gives all ranks', in order, where no two ranks have the same
 * declaration. Where some have, their shards are there once, and which ranks they stand for is read
 * beside them.
 */
static int walk_tensor(struct index *ix, const struct digest *layout, struct tensor_walk *w)
{
	struct catalog_key groups, k;
	int r;

	key_digest(&groups, CATALOG_GROUPS, layout);
	key_tensor(&k, layout, w->name, w->name_len);
	r = ix->ops->scan(ix, k.bytes, k.len, NULL, 0, take_shard, w);
	if (r == 0 && w->n)
		r = ix->ops->scan(ix, groups.bytes, groups.len, NULL, 0, take_groups, w);
	if (r == 0 && w->n)
		r = tell_until(w, w->layout.world);
	return r;
}

int catalog_tensor(struct index *ix, const struct digest *layout, const char *name,
		   size_t name_len, catalog_shard_fn *fn, void *arg, struct err *e)
{
	struct tensor_walk t = {.fn = fn, .arg = arg, .name = name, .name_len = name_len};
	char text[NAME_TEXT_MAX];
	int r;

	assert(fn && name);
	if (name_len > CKPT_NAME_MAX)
		return err_set(e, -EINVAL, "a tensor's name has at most %d bytes", CKPT_NAME_MAX);
	r = layout_find(ix, layout, &t.layout);
	if (r < 0)
		return layout_error(e, r, "find", layout);
	if (t.layout.world == 0)
		return layout_error(e, CKPT_ENOTFOUND, "its files are damaged: find", layout);
	r = walk_tensor(ix, layout, &t);
	alloc_free(t.found);
	if (t.stopped)
		return r;
	if (r < 0)
		return layout_error(e, r, "find a tensor of", layout);
	if (t.told == 0)
		return err_set(e, CKPT_ENOTFOUND, "no rank has a tensor '%s'",
			       name_text(text, name, (uint32_t)name_len));
	return 0;
}
