/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stored.c - what a checkpoint holds and what a read wants, as bytes and back.
 *
 * Ranks of a data-parallel job often have equal declarations: they are found by their digests,
 * O(n log n) for n ranks, and written once.
 */
#include <config.h>

#include "model/stored.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/alloc.h"

#define STORED_MAGIC   "CKPTHELD"
#define BLOB_BYTES_MIN 6u

/* ---- What is stored ---- */

struct ranked {
	struct digest digest;
	uint32_t rank;
};

static int by_digest(const void *a, const void *b)
{
	const struct ranked *x = a, *y = b;
	int r = memcmp(x->digest.b, y->digest.b, sizeof(x->digest.b));

	return r ? r : (x->rank > y->rank) - (x->rank < y->rank);
}

static int write_blobs(const struct rank_table *t, struct writer *w)
{
	write_u32(w, t->n_blobs);
	for (uint32_t i = 0; i < t->n_blobs; i++) {
		struct blob_entry b;
		int r = rank_table_blob(t, i, &b);

		if (r < 0)
			return r;
		write_u64(w, b.bytes);
		write_str(w, b.name, b.name_len);
	}
	return 0;
}

int stored_encode(const struct rank_table *const *tables, uint32_t world, struct writer *w)
{
	CLEANUP_FREE struct ranked *order = alloc_array(world, sizeof(*order));
	CLEANUP_FREE uint32_t *of = alloc_array(world, sizeof(*of));
	uint32_t n = 0;
	int r = 0;

	assert(world > 0 && world <= WORLD_MAX);
	if (!order || !of)
		return -ENOMEM;
	for (uint32_t i = 0; i < world; i++) {
		const struct declaration *d = &tables[i]->declaration;

		order[i] = (struct ranked){declaration_digest(d->bytes, d->len), i};
	}
	qsort(order, world, sizeof(*order), by_digest);
	for (uint32_t i = 0; i < world; i++) {
		n += i == 0 || !digest_equal(&order[i].digest, &order[i - 1].digest);
		of[order[i].rank] = n - 1;
	}
	write_bytes(w, STORED_MAGIC, 8);
	write_u32(w, world);
	write_u32(w, n);
	for (uint32_t i = 0; i < world; i++) {
		const struct declaration *d = &tables[order[i].rank]->declaration;

		if (i && of[order[i].rank] == of[order[i - 1].rank])
			continue;
		write_u32(w, (uint32_t)d->len);
		write_bytes(w, d->bytes, d->len);
	}
	for (uint32_t i = 0; i < world && r == 0; i++) {
		write_u32(w, of[i]);
		r = write_blobs(tables[i], w);
	}
	return r < 0 ? r : w->bad ? -ENOMEM : 0;
}

static int read_declarations(struct reader *r, struct stored *s, uint32_t n, struct err *e)
{
	s->declarations = alloc_array(n, sizeof(*s->declarations));
	if (!s->declarations)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t len = read_u32(r);
		const void *bytes = read_bytes(r, len);
		int code =
			bytes ? declaration_open(bytes, len, &s->declarations[i], e) : CKPT_EPROTO;

		if (code < 0)
			return code;
		s->n_declarations = i + 1;
	}
	return 0;
}

static int add_blobs(struct reader *r, struct stored *s, uint32_t rank, uint32_t n, uint32_t *cap)
{
	if (n > reader_left(r) / BLOB_BYTES_MIN || n > UINT32_MAX - s->n_blobs)
		return CKPT_EPROTO;
	if (s->n_blobs + n > *cap) {
		uint64_t more = min_u64(2ull * (s->n_blobs + n), UINT32_MAX);
		void *p = alloc_resize(s->blobs, more * sizeof(*s->blobs));

		if (!p)
			return -ENOMEM;
		s->blobs = p;
		*cap = (uint32_t)more;
	}
	for (uint32_t i = 0; i < n; i++) {
		struct stored_blob *b = &s->blobs[s->n_blobs];
		size_t len = 0;

		b->rank = rank;
		b->bytes = read_u64(r);
		b->name = read_str(r, CKPT_NAME_MAX, &len);
		b->name_len = (uint32_t)len;
		if (!b->name || len == 0 || memchr(b->name, '\0', len))
			return CKPT_EPROTO;
		s->n_blobs++;
	}
	return 0;
}

static int read_ranks(struct reader *r, struct stored *s)
{
	uint32_t cap = 0;

	s->declaration_of = alloc_array(s->world, sizeof(*s->declaration_of));
	if (!s->declaration_of)
		return -ENOMEM;
	for (uint32_t i = 0; i < s->world; i++) {
		uint32_t n_blobs;
		int code;

		s->declaration_of[i] = read_u32(r);
		n_blobs = read_u32(r);
		if (r->bad || s->declaration_of[i] >= s->n_declarations)
			return CKPT_EPROTO;
		code = add_blobs(r, s, i, n_blobs, &cap);
		if (code < 0)
			return code;
	}
	return 0;
}

int stored_decode(const void *bytes, size_t len, struct stored *ret, struct err *e)
{
	struct reader r = reader_of(bytes, len);
	const uint8_t *magic = read_bytes(&r, 8);
	uint32_t world = read_u32(&r), n = read_u32(&r);
	struct stored s = {.world = world};
	int code = 0;

	if (r.bad || memcmp(magic, STORED_MAGIC, 8) != 0 || world == 0 || world > WORLD_MAX ||
	    n == 0 || n > world)
		code = CKPT_EPROTO;
	if (code == 0)
		code = read_declarations(&r, &s, n, e);
	if (code == 0)
		code = read_ranks(&r, &s);
	if (code == 0 && (r.bad || reader_left(&r) != 0))
		code = CKPT_EPROTO;
	if (code < 0) {
		stored_fini(&s);
		return e && e->code ? code : err_code(e, code, "take what a checkpoint holds");
	}
	*ret = s;
	return 0;
}

void stored_fini(struct stored *s)
{
	alloc_free(s->declaration_of);
	alloc_free(s->declarations);
	alloc_free(s->blobs);
	*s = (struct stored){0};
}

/* ---- What a read wants ---- */

int read_wants_encode(const void *declaration, size_t len, const struct stored_blob *blobs,
		      uint32_t n, struct writer *w)
{
	assert(len <= DECLARATION_BYTES_MAX && n <= READ_BLOBS_MAX);
	write_u32(w, (uint32_t)len);
	write_bytes(w, declaration, len);
	write_u32(w, n);
	for (uint32_t i = 0; i < n; i++) {
		write_u32(w, blobs[i].rank);
		write_str(w, blobs[i].name, blobs[i].name_len);
	}
	return w->bad ? -ENOMEM : 0;
}

static int wants_blobs(struct reader *r, struct read_wants *w)
{
	uint32_t n = read_u32(r);

	if (r->bad || n > READ_BLOBS_MAX || n > reader_left(r) / BLOB_BYTES_MIN)
		return CKPT_EPROTO;
	w->blobs = alloc_array(n, sizeof(*w->blobs));
	if (!w->blobs)
		return -ENOMEM;
	for (; w->n_blobs < n; w->n_blobs++) {
		struct stored_blob *b = &w->blobs[w->n_blobs];
		size_t len = 0;

		b->rank = read_u32(r);
		b->name = read_str(r, CKPT_NAME_MAX, &len);
		b->name_len = (uint32_t)len;
		if (!b->name || len == 0)
			return CKPT_EPROTO;
	}
	return reader_left(r) == 0 ? 0 : CKPT_EPROTO;
}

int read_wants_decode(const void *bytes, size_t len, struct read_wants *ret, struct err *e)
{
	struct reader r = reader_of(bytes, len);
	uint32_t declared = read_u32(&r);
	const void *declaration = read_bytes(&r, declared);
	struct read_wants w = {.tensors = declared > 0};
	int code = r.bad ? CKPT_EPROTO : 0;

	if (code == 0 && w.tensors)
		code = declaration_open(declaration, declared, &w.declaration, e);
	if (code == 0)
		code = wants_blobs(&r, &w);
	if (code < 0) {
		read_wants_fini(&w);
		return e && e->code ? code : err_code(e, code, "take what a read wants");
	}
	*ret = w;
	return 0;
}

void read_wants_fini(struct read_wants *w)
{
	alloc_free(w->blobs);
	*w = (struct read_wants){0};
}
