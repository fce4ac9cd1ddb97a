/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_format.c - keys and values of the catalog, and batches. See doc/index-format.md.
 *
 * Keys sort as bytes, so numbers in them are big-endian; values are little-endian. What comes out
 * of the index has passed its checksums, but may have been written by another version: it is
 * parsed like anything from outside.
 */
#include <config.h>

#include "storage/catalog_format.h"

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"

#define CHECKPOINT_FIXED (2 * 16 + 5 * 8 + 2 * 4 + 1)
#define SHARD_MAX (4 + 1 + 1 + 8 + 3 * 8 * CKPT_NDIM_MAX + 2 * 8)
_Static_assert(CHECKPOINT_FIXED + 1 + CKPT_JOB_MAX <= CATALOG_VALUE_MAX, "checkpoint fits");
_Static_assert(SHARD_MAX <= CATALOG_VALUE_MAX, "shard fits");
_Static_assert(4 * GROUP_RANKS <= CATALOG_VALUE_MAX, "groups fit");
_Static_assert(BATCH_BYTES >= CATALOG_KEY_MAX + CATALOG_VALUE_MAX, "a batch holds an entry");

enum { CHECKPOINT_PINNED = 1, CHECKPOINT_SUSPECT = 2, CHECKPOINT_FLAGS = 3 };
enum { SHARD_FLAT = 1, SHARD_TRAINED = 2, SHARD_FLAGS = 3 };

/* ---- Keys ---- */

static void key_begin(struct catalog_key *k, uint8_t kind)
{
	k->bytes[0] = kind;
	k->len = 1;
}

static void key_bytes(struct catalog_key *k, const void *p, size_t len)
{
	assert(len <= sizeof(k->bytes) - k->len);
	memcpy(k->bytes + k->len, p, len);
	k->len += len;
}

static void key_u32(struct catalog_key *k, uint32_t v)
{
	v = __builtin_bswap32(v);
	key_bytes(k, &v, sizeof(v));
}

static void key_u64(struct catalog_key *k, uint64_t v)
{
	v = __builtin_bswap64(v);
	key_bytes(k, &v, sizeof(v));
}

void key_job(struct catalog_key *k, const struct job_id *job)
{
	key_begin(k, CATALOG_CHECKPOINT);
	if (job)
		key_bytes(k, job->b, sizeof(job->b));
}

void key_checkpoint(struct catalog_key *k, const struct checkpoint_id *id)
{
	key_job(k, &id->job);
	key_u64(k, id->step);
	key_bytes(k, id->attempt.b, sizeof(id->attempt.b));
}

void key_digest(struct catalog_key *k, uint8_t kind, const struct digest *d)
{
	key_begin(k, kind);
	key_bytes(k, d->b, sizeof(d->b));
}

void key_declaration(struct catalog_key *k, const struct digest *layout,
		     const struct digest *declaration)
{
	key_digest(k, CATALOG_DECLARATION, layout);
	key_bytes(k, declaration->b, sizeof(declaration->b));
}

void key_groups(struct catalog_key *k, const struct digest *layout, uint32_t i)
{
	key_digest(k, CATALOG_GROUPS, layout);
	key_u32(k, i);
}

void key_tensor(struct catalog_key *k, const struct digest *layout, const char *name,
		size_t name_len)
{
	assert(name_len <= CKPT_NAME_MAX);
	key_digest(k, CATALOG_TENSOR, layout);
	key_bytes(k, name, name_len);
	key_bytes(k, "", 1);
}

void key_add_order(struct catalog_key *k, uint32_t rank, uint32_t order)
{
	assert(k->bytes[0] == CATALOG_TENSOR);
	key_u32(k, rank);
	key_u32(k, order);
}

/* ---- Values ---- */

struct cursor {
	uint8_t *begin, *p;
};

static void add_bytes(struct cursor *c, const void *p, size_t len)
{
	assert(c->p + len <= c->begin + CATALOG_VALUE_MAX);
	memcpy(c->p, p, len);
	c->p += len;
}

static void add_u8(struct cursor *c, uint8_t v)
{
	add_bytes(c, &v, 1);
}

static void add_u32(struct cursor *c, uint32_t v)
{
	uint8_t b[4];

	put_le32(b, v);
	add_bytes(c, b, sizeof(b));
}

static void add_u64(struct cursor *c, uint64_t v)
{
	uint8_t b[8];

	put_le64(b, v);
	add_bytes(c, b, sizeof(b));
}

size_t checkpoint_encode(uint8_t buf[CATALOG_VALUE_MAX], const struct catalog_entry *e)
{
	struct cursor c = { buf, buf };
	size_t name_len = strnlen(e->job_name, sizeof(e->job_name));

	assert(name_len <= CKPT_JOB_MAX);
	add_bytes(&c, e->root.b, sizeof(e->root.b));
	add_bytes(&c, e->layout.b, sizeof(e->layout.b));
	add_u64(&c, e->incarnation);
	add_u64(&c, e->record_n);
	add_u64(&c, e->epoch);
	add_u64(&c, e->wall_ns);
	add_u64(&c, e->bytes);
	add_u32(&c, e->uid);
	add_u32(&c, e->world);
	add_u8(&c, (e->pinned ? CHECKPOINT_PINNED : 0) | (e->suspect ? CHECKPOINT_SUSPECT : 0));
	assert(c.p - c.begin == CHECKPOINT_FIXED);
	add_u8(&c, (uint8_t)name_len);
	add_bytes(&c, e->job_name, name_len);
	return (size_t)(c.p - c.begin);
}

static void take(struct reader *r, void *to, size_t len)
{
	const void *p = read_bytes(r, len);

	if (p)
		memcpy(to, p, len);
}

int checkpoint_decode(const void *key, size_t key_len, const void *value, size_t value_len,
		      struct catalog_entry *ret)
{
	struct reader k = reader_of(key, key_len), r = reader_of(value, value_len);
	struct catalog_entry e = { 0 };
	uint8_t flags, name_len;

	if (read_u8(&k) != CATALOG_CHECKPOINT)
		return CKPT_ECORRUPT;
	take(&k, e.id.job.b, sizeof(e.id.job.b));
	e.id.step = __builtin_bswap64(read_u64(&k));
	take(&k, e.id.attempt.b, sizeof(e.id.attempt.b));
	take(&r, e.root.b, sizeof(e.root.b));
	take(&r, e.layout.b, sizeof(e.layout.b));
	e.incarnation = read_u64(&r);
	e.record_n = read_u64(&r);
	e.epoch = read_u64(&r);
	e.wall_ns = read_u64(&r);
	e.bytes = read_u64(&r);
	e.uid = read_u32(&r);
	e.world = read_u32(&r);
	flags = read_u8(&r);
	name_len = read_u8(&r);
	if (name_len > CKPT_JOB_MAX || flags & ~CHECKPOINT_FLAGS)
		return CKPT_ECORRUPT;
	e.pinned = flags & CHECKPOINT_PINNED;
	e.suspect = flags & CHECKPOINT_SUSPECT;
	take(&r, e.job_name, name_len);
	if (k.bad || r.bad || reader_left(&k) != 0 || reader_left(&r) != 0)
		return CKPT_ECORRUPT;
	*ret = e;
	return 0;
}

size_t shard_encode(uint8_t buf[CATALOG_VALUE_MAX], const struct shard *s)
{
	struct cursor c = { buf, buf };

	assert(s->global.ndim == s->box.ndim && s->box.ndim <= CKPT_NDIM_MAX);
	add_u32(&c, s->dtype);
	add_u8(&c, (uint8_t)s->box.ndim);
	add_u8(&c, (s->flat ? SHARD_FLAT : 0) | (s->trained ? SHARD_TRAINED : 0));
	add_u64(&c, s->image_offset);
	for (uint32_t i = 0; i < s->box.ndim; i++) {
		add_u64(&c, s->global.dim[i]);
		add_u64(&c, s->box.offset[i]);
		add_u64(&c, s->box.length[i]);
	}
	if (s->flat) {
		add_u64(&c, s->start);
		add_u64(&c, s->stop);
	}
	return (size_t)(c.p - c.begin);
}

int shard_decode(const char *name, size_t name_len, const void *value, size_t value_len,
		 struct shard *ret)
{
	struct reader r = reader_of(value, value_len);
	struct shard s = { .name = name, .name_len = (uint32_t)name_len };
	uint8_t ndim, flags;

	s.dtype = read_u32(&r);
	ndim = read_u8(&r);
	flags = read_u8(&r);
	if (ndim > CKPT_NDIM_MAX || flags & ~SHARD_FLAGS)
		return CKPT_ECORRUPT;
	s.global.ndim = s.box.ndim = ndim;
	s.flat = flags & SHARD_FLAT;
	s.trained = flags & SHARD_TRAINED;
	s.image_offset = read_u64(&r);
	for (uint32_t i = 0; i < ndim; i++) {
		s.global.dim[i] = read_u64(&r);
		s.box.offset[i] = read_u64(&r);
		s.box.length[i] = read_u64(&r);
	}
	if (s.flat) {
		s.start = read_u64(&r);
		s.stop = read_u64(&r);
	}
	if (r.bad || reader_left(&r) != 0 || shard_check(&s, NULL) != 0)
		return CKPT_ECORRUPT;
	*ret = s;
	return 0;
}

/* ---- Batches ---- */

struct catalog_batch *batch_new(struct index *ix, const atomic_bool *cancel)
{
	struct catalog_batch *b = alloc_zero(sizeof(*b));

	assert(ix && ix->ops);
	if (!b)
		return NULL;
	b->ix = ix;
	b->cancel = cancel;
	return b;
}

bool batch_cancelled(const struct catalog_batch *b)
{
	return b->cancel && atomic_load_explicit(b->cancel, memory_order_relaxed);
}

bool batch_is_full(const struct catalog_batch *b)
{
	return b->n == BATCH_ENTRIES || BATCH_BYTES - b->used < CATALOG_KEY_MAX + CATALOG_VALUE_MAX;
}

int batch_flush(struct catalog_batch *b, bool sync)
{
	int r = b->n || sync ? b->ix->ops->write(b->ix, b->entries, b->n, sync) : 0;

	b->n = b->used = 0;
	return r;
}

int batch_add(struct catalog_batch *b, const void *key, size_t key_len, const void *value,
	      size_t value_len)
{
	struct index_entry *t;

	assert(key_len > 0 && key_len <= CATALOG_KEY_MAX && value_len <= CATALOG_VALUE_MAX);
	if (batch_cancelled(b))
		return -ECANCELED;
	if (batch_is_full(b)) {
		int r = batch_flush(b, false);

		if (r < 0)
			return r;
	}
	t = &b->entries[b->n++];
	*t = (struct index_entry){ .key = b->bytes + b->used, .key_len = key_len };
	memcpy(b->bytes + b->used, key, key_len);
	b->used += key_len;
	if (!value)
		return 0;
	t->value = b->bytes + b->used;
	t->value_len = value_len;
	memcpy(b->bytes + b->used, value, value_len);
	b->used += value_len;
	return 0;
}

/* Keys of one walk, to be deleted after it. */
static int collect(void *arg, const void *key, size_t key_len, const void *value, size_t len)
{
	(void)value;
	(void)len;
	if (key_len > CATALOG_KEY_MAX)
		return CKPT_ECORRUPT;
	if (batch_is_full(arg))
		return 1;
	return batch_add(arg, key, key_len, NULL, 0);
}

int batch_delete(struct catalog_batch *b, const void *prefix, size_t len)
{
	struct catalog_key last = {.len = 0};
	int r, flushed;

	assert(b->n == 0);
	do {
		r = b->ix->ops->scan(b->ix, prefix, len, last.len ? last.bytes : NULL, last.len,
				     collect, b);
		if (r < 0)
			return r;
		if (b->n > 0) { /* what was deleted is not walked over again */
			const struct index_entry *t = &b->entries[b->n - 1];

			memcpy(last.bytes, t->key, t->key_len);
			last.len = t->key_len;
		}
		flushed = batch_flush(b, false);
		if (flushed < 0)
			return flushed;
	} while (r > 0);
	return 0;
}
