/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank tables: built, checked, looked into; and the root over them (I2). Pure; any thread.
 *
 * 1. Nothing in a table is used before its own digest, which ends it, has matched.
 * 2. Offsets of shards and blobs are not facts of their own: both sides compute them by the same
 *    rule and a table that disagrees is refused. So no two names share a byte of the image and
 *    none lies past its end.
 * 3. The leaves cover the image exactly.
 */
#include <config.h>

#include "model/table.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "codec/digest.h"
#include "model/format.h"

#define TABLE_MAGIC "CKPTTABL"

/* Header, after the common part (model/format.h); doc/disk-format.md */
enum {
	TABLE_LEAF = FORMAT_HEAD_BYTES, /* u32 */
	TABLE_CHUNK = 52,               /* u32 */
	TABLE_RANK = 56,                /* u32 */
	TABLE_WORLD = 60,               /* u32 */
	TABLE_IMAGE = 64,               /* u64 */
	TABLE_DECLARATION = 72,         /* u64: bytes */
	TABLE_BLOBS_BYTES = 80,         /* u64 */
	TABLE_BLOBS = 88,               /* u32: count */
	TABLE_SAMPLES = 92,             /* u32: count */
	TABLE_LEAVES = 96,              /* u64: count */
	TABLE_RESERVED = 104,           /* u64, 0 */
};

/* Blob entry */
enum { BLOB_AT = 0, BLOB_BYTES = 8, BLOB_NAME_LEN = 16, BLOB_NAME = 18 };

#define DIGEST_BYTES 16u

int blobs_place(const struct declaration *d, struct blob_entry *blobs, uint32_t n,
		uint64_t *ret_image_len)
{
	uint64_t end = d->image_bytes;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t at = round_up(end, i ? IMAGE_ALIGN : IMAGE_ALIGN_LARGE);

		if (at > IMAGE_BYTES_MAX || blobs[i].bytes > IMAGE_BYTES_MAX - at)
			return -E2BIG;
		blobs[i].image_offset = at;
		end = at + blobs[i].bytes;
	}
	*ret_image_len = end;
	return 0;
}

static int compare_blob_names(const void *pa, const void *pb)
{
	const struct blob_entry *a = pa, *b = pb;

	return name_compare(a->name, a->name_len, b->name, b->name_len);
}

/* Names well-formed and distinct, places as blobs_place() says, in sum image_len bytes. */
static int check_blobs(const struct declaration *d, const struct blob_entry *blobs, uint32_t n,
		       uint64_t image_len, struct err *e)
{
	struct blob_entry *copy CLEANUP_FREE = alloc_array(n, sizeof(*copy));
	char name[NAME_TEXT_MAX];
	uint64_t end;

	if (!copy)
		return err_code(e, -ENOMEM, "check %u blobs", n);
	for (uint32_t i = 0; i < n; i++) {
		copy[i] = blobs[i];
		if (blobs[i].name_len == 0 || blobs[i].name_len > CKPT_NAME_MAX ||
		    memchr(blobs[i].name, '\0', blobs[i].name_len))
			return err_set(e, CKPT_EPROTO,
				       "blob %u has a bad name: 1 to %d bytes without NUL are "
				       "allowed",
				       i, CKPT_NAME_MAX);
	}
	if (blobs_place(d, copy, n, &end) != 0 || end != image_len)
		return err_set(e, CKPT_EPROTO,
			       "tensors and blobs do not make an image of %llu bytes",
			       (unsigned long long)image_len);
	for (uint32_t i = 0; i < n; i++)
		if (copy[i].image_offset != blobs[i].image_offset)
			return err_set(e, CKPT_EPROTO, "blob '%s' is not where its order puts it",
				       name_text(name, blobs[i].name, blobs[i].name_len));
	if (n > 1)
		qsort(copy, n, sizeof(*copy), compare_blob_names);
	for (uint32_t i = 1; i < n; i++)
		if (compare_blob_names(&copy[i - 1], &copy[i]) == 0)
			return err_set(e, CKPT_EPROTO, "two blobs have the name '%s'",
				       name_text(name, copy[i].name, copy[i].name_len));
	return 0;
}

/* ---- Building ---- */

static int check_parts(const struct rank_table_parts *p, struct err *e)
{
	struct declaration d;
	int r = 0;

	if (!geometry_valid(p->geometry) || p->rank >= p->world || p->n_blobs > TABLE_BLOBS_MAX ||
	    p->n_samples > TABLE_SAMPLES_MAX)
		return err_set(e, -EINVAL,
			       "cannot make a table of rank %u of %u with %u blobs and %u samples",
			       p->rank, p->world, p->n_blobs, p->n_samples);
	if (p->view)
		d = *p->view;
	else
		r = declaration_open(p->declaration, p->declaration_len, &d, e);
	if (r)
		return r;
	if (d.geometry.leaf != p->geometry.leaf || d.geometry.chunk != p->geometry.chunk)
		return err_set(e, CKPT_EPROTO,
			       "the declaration of rank %u has other leaves or chunks than its "
			       "table",
			       p->rank);
	return check_blobs(&d, p->blobs, p->n_blobs, p->image_len, e);
}

static void write_blobs(const struct rank_table_parts *p, struct writer *w)
{
	uint32_t at = 4 * p->n_blobs;

	for (uint32_t i = 0; i < p->n_blobs; i++) {
		write_u32(w, at);
		at += BLOB_NAME + p->blobs[i].name_len;
	}
	for (uint32_t i = 0; i < p->n_blobs; i++) {
		write_u64(w, p->blobs[i].image_offset);
		write_u64(w, p->blobs[i].bytes);
		write_str(w, p->blobs[i].name, p->blobs[i].name_len);
	}
}

static void put_table_header(uint8_t *h, const struct rank_table_parts *p, uint64_t total,
			     uint64_t blobs_bytes)
{
	format_head_put(h, TABLE_MAGIC, total);
	put_le32(h + TABLE_LEAF, p->geometry.leaf);
	put_le32(h + TABLE_CHUNK, p->geometry.chunk);
	put_le32(h + TABLE_RANK, p->rank);
	put_le32(h + TABLE_WORLD, p->world);
	put_le64(h + TABLE_IMAGE, p->image_len);
	put_le64(h + TABLE_DECLARATION, p->declaration_len);
	put_le64(h + TABLE_BLOBS_BYTES, blobs_bytes);
	put_le32(h + TABLE_BLOBS, p->n_blobs);
	put_le32(h + TABLE_SAMPLES, p->n_samples);
	put_le64(h + TABLE_LEAVES, div_up(p->image_len, p->geometry.leaf));
	put_le64(h + TABLE_RESERVED, 0);
	format_head_seal(h);
}

uint64_t rank_table_bytes(uint64_t declaration_len, uint64_t image_len, uint32_t leaf,
			  uint64_t n_blobs, uint64_t names_len)
{
	uint64_t bytes = FORMAT_HEADER_BYTES + DIGEST_BYTES * (TABLE_SAMPLES_MAX + 1u);
	uint64_t blobs, leaves;

	if (!size_mul(n_blobs, sizeof(uint32_t) + BLOB_NAME, &blobs) ||
	    !size_mul(div_up(image_len, leaf), DIGEST_BYTES, &leaves) ||
	    !size_add(bytes, declaration_len, &bytes) || !size_add(bytes, blobs, &bytes) ||
	    !size_add(bytes, names_len, &bytes) || !size_add(bytes, leaves, &bytes))
		return UINT64_MAX;
	return bytes;
}

int rank_table_build(const struct rank_table_parts *p, void **ret, size_t *ret_len, struct err *e)
{
	uint64_t n_leaves = div_up(p->image_len, p->geometry.leaf);
	struct writer w = { 0 };
	struct digest d;
	uint64_t blobs;
	int r = check_parts(p, e);

	if (r)
		return r;
	write_zero(&w, FORMAT_HEADER_BYTES);
	write_bytes(&w, p->declaration, p->declaration_len);
	blobs = w.len;
	write_blobs(p, &w);
	blobs = w.len - blobs;
	write_bytes(&w, p->leaves, n_leaves * DIGEST_BYTES);
	write_bytes(&w, p->samples, (size_t)p->n_samples * DIGEST_BYTES);
	if (!w.bad) {
		put_table_header(w.buf, p, w.len + DIGEST_BYTES, blobs);
		d = digest_of(w.buf, w.len);
		write_bytes(&w, d.b, sizeof(d.b));
	}
	if (w.bad) {
		writer_free(&w);
		return err_code(e, -ENOMEM, "write the table of rank %u", p->rank);
	}
	*ret = w.buf;
	*ret_len = w.len;
	return 0;
}

/* ---- Opening ---- */

static int header_check(const uint8_t *bytes, size_t len, struct rank_table *t,
			uint64_t *ret_declaration_len, struct err *e)
{
	uint64_t total;
	int r = format_head_check(bytes, len, TABLE_MAGIC, "rank table", &total, e);

	if (r)
		return r;
	if (total != len || len < FORMAT_HEADER_BYTES + DIGEST_BYTES)
		return err_set(e, CKPT_EPROTO,
			       "a rank table of %llu bytes says that it has %llu: it was cut",
			       (unsigned long long)len, (unsigned long long)total);
	t->bytes = bytes;
	t->len = len;
	t->geometry.leaf = get_le32(bytes + TABLE_LEAF);
	t->geometry.chunk = get_le32(bytes + TABLE_CHUNK);
	t->rank = get_le32(bytes + TABLE_RANK);
	t->world = get_le32(bytes + TABLE_WORLD);
	t->image_len = get_le64(bytes + TABLE_IMAGE);
	t->n_blobs = get_le32(bytes + TABLE_BLOBS);
	t->blobs_len = get_le64(bytes + TABLE_BLOBS_BYTES);
	t->n_leaves = get_le64(bytes + TABLE_LEAVES);
	t->n_samples = get_le32(bytes + TABLE_SAMPLES);
	if (!geometry_valid(t->geometry) || t->rank >= t->world || t->image_len > IMAGE_BYTES_MAX ||
	    t->n_blobs > TABLE_BLOBS_MAX || t->n_samples > TABLE_SAMPLES_MAX ||
	    get_le64(bytes + TABLE_RESERVED) != 0 ||
	    t->n_leaves != div_up(t->image_len, t->geometry.leaf))
		return err_set(e, CKPT_EPROTO,
			       "the header of a rank table has fields that do not fit together");
	*ret_declaration_len = get_le64(bytes + TABLE_DECLARATION);
	return 0;
}

/* The sections must fill what lies between header and digest. */
static int sections_check(struct rank_table *t, uint64_t declaration_len,
			  const void **ret_declaration, struct err *e)
{
	struct reader r = reader_of(t->bytes + FORMAT_HEADER_BYTES,
				    t->len - FORMAT_HEADER_BYTES - DIGEST_BYTES);
	struct digest d = digest_of(t->bytes, t->len - DIGEST_BYTES);

	if (memcmp(d.b, t->bytes + t->len - DIGEST_BYTES, DIGEST_BYTES) != 0) /* (1) */
		return err_set(e, CKPT_ECORRUPT, "the table of rank %u does not match its digest",
			       t->rank);
	*ret_declaration = read_bytes(&r, declaration_len);
	t->blobs = read_bytes(&r, t->blobs_len);
	t->leaves = read_bytes(&r, t->n_leaves * DIGEST_BYTES); /* at most 2^54 */
	t->samples = read_bytes(&r, (uint64_t)t->n_samples * DIGEST_BYTES);
	if (r.bad || reader_left(&r) != 0)
		return err_set(e, CKPT_EPROTO,
			       "the sections of the table of rank %u do not fill it", t->rank);
	return 0;
}

static int blobs_check(const struct rank_table *t, struct err *e)
{
	struct blob_entry *blobs CLEANUP_FREE = alloc_array(t->n_blobs, sizeof(*blobs));
	struct reader offsets = reader_of(t->blobs, t->blobs_len), r = offsets;

	if (!blobs)
		return err_code(e, -ENOMEM, "check %u blobs", t->n_blobs);
	(void)read_bytes(&r, 4 * (uint64_t)t->n_blobs);
	for (uint32_t i = 0; i < t->n_blobs; i++) {
		uint64_t at = t->blobs_len - reader_left(&r);
		size_t len = 0;

		if (read_u32(&offsets) != at)
			r.bad = true;
		blobs[i].image_offset = read_u64(&r);
		blobs[i].bytes = read_u64(&r);
		blobs[i].name = read_str(&r, CKPT_NAME_MAX, &len);
		blobs[i].name_len = (uint32_t)len;
	}
	if (r.bad || reader_left(&r) != 0)
		return err_set(e, CKPT_EPROTO, "the blobs of the table of rank %u are malformed",
			       t->rank);
	return check_blobs(&t->declaration, blobs, t->n_blobs, t->image_len, e);
}

static int open_declaration(const void *bytes, uint64_t len, const struct declaration *known,
			    struct declaration *ret, struct err *e)
{
	if (!known || known->len != len || memcmp(known->bytes, bytes, len) != 0)
		return declaration_open(bytes, len, ret, e);
	*ret = *known;
	ret->bytes = bytes;
	return 0;
}

int rank_table_open(const void *bytes, size_t len, struct rank_table *ret, struct err *e)
{
	return rank_table_open_known(bytes, len, NULL, ret, e);
}

int rank_table_open_known(const void *bytes, size_t len, const struct declaration *known,
			  struct rank_table *ret, struct err *e)
{
	struct rank_table t = { 0 };
	const void *declaration = NULL;
	uint64_t declaration_len = 0;
	int r = header_check(bytes, len, &t, &declaration_len, e);

	if (r)
		return r;
	r = sections_check(&t, declaration_len, &declaration, e);
	if (r)
		return r;
	r = open_declaration(declaration, declaration_len, known, &t.declaration, e);
	if (r)
		return err_wrap(e, r, "table of rank %u", t.rank);
	if (t.declaration.geometry.leaf != t.geometry.leaf ||
	    t.declaration.geometry.chunk != t.geometry.chunk)
		return err_set(e, CKPT_EPROTO,
			       "the declaration of rank %u has other leaves or chunks than its "
			       "table",
			       t.rank);
	r = blobs_check(&t, e);
	if (!r)
		*ret = t;
	return r;
}

int rank_table_blob(const struct rank_table *t, uint32_t i, struct blob_entry *ret)
{
	const uint8_t *entry;

	if (i >= t->n_blobs)
		return -EINVAL;
	entry = t->blobs + get_le32(t->blobs + 4 * (size_t)i);
	ret->image_offset = get_le64(entry + BLOB_AT);
	ret->bytes = get_le64(entry + BLOB_BYTES);
	ret->name_len = get_le16(entry + BLOB_NAME_LEN);
	ret->name = (const char *)entry + BLOB_NAME;
	return 0;
}

struct digest rank_table_leaf(const struct rank_table *t, uint64_t i)
{
	struct digest d;

	assert(i < t->n_leaves);
	memcpy(d.b, t->leaves + i * DIGEST_BYTES, sizeof(d.b));
	return d;
}

struct digest rank_table_digest(const struct rank_table *t)
{
	return digest_of(t->bytes, t->len);
}

struct digest root_digest(const struct rank_line *lines, uint32_t world)
{
	struct digest_stream s;
	uint8_t line[12];

	memcpy(line, "CKPTROOT", 8);
	put_le32(line + 8, world);
	digest_begin(&s);
	digest_update(&s, line, sizeof(line));
	for (uint32_t rank = 0; rank < world; rank++) {
		assert(lines[rank].rank == rank);
		put_le32(line, rank);
		put_le64(line + 4, lines[rank].table_len);
		digest_update(&s, line, sizeof(line));
		digest_update(&s, lines[rank].table.b, sizeof(lines[rank].table.b));
	}
	return digest_end(&s);
}

/* ---- Samples ---- */

#define SAMPLE_PIECES      4u
#define SAMPLE_PIECE_BYTES ((uint64_t)16 << 10)

static void sample_shard(const struct shard *s, uint32_t sample, sample_piece_fn *fn, void *arg)
{
	uint64_t len = min_u64(s->bytes, SAMPLE_PIECE_BYTES);
	uint64_t n = min_u64(SAMPLE_PIECES, div_up(s->bytes, SAMPLE_PIECE_BYTES));

	assert(n > 0);
	for (uint64_t i = 0; i < n; i++) {
		/* The first piece begins the shard, the last one ends it; two may overlap. */
		uint64_t at = n == 1 ? 0 : (s->bytes - len) / (n - 1) * i;

		if (i > 0 && i == n - 1)
			at = s->bytes - len;
		fn(arg, sample, s->image_offset + at, len);
	}
}

static bool sampled(const struct shard *s)
{
	return s->trained && s->bytes > 0;
}

uint32_t rank_table_sample_pieces(const struct declaration *d, sample_piece_fn *fn, void *arg)
{
	uint64_t trained = 0, seen = 0, n;
	uint32_t sample = 0;
	struct shard s;

	for (uint32_t i = 0; i < d->n_shards; i++) {
		declaration_get(d, i, &s);
		trained += sampled(&s);
	}
	n = min_u64(trained, TABLE_SAMPLES_MAX);
	for (uint32_t i = 0; fn && sample < n; i++) {
		assert(i < d->n_shards);
		declaration_get(d, i, &s);
		if (!sampled(&s))
			continue;
		if (seen++ == sample * trained / n)
			sample_shard(&s, sample++, fn, arg);
	}
	return (uint32_t)n;
}
