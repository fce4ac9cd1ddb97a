/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From shards in declared order to canonical bytes. Cold; one thread per builder.
 *
 * Shards are kept as entries of the format, back to back: a million of them take little more
 * memory than the declaration they become. declaration_finish() does not change the builder. What
 * was written is opened again before it is handed out: one set of checks, for what is made and
 * for what is read.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/text.h"
#include "codec/digest.h"
#include "model/declaration_format.h"

struct declaration_builder {
	struct geometry geometry;
	struct writer entries; /* in declared order */
	uint64_t *at;          /* where entry i begins */
	uint32_t n, cap;
	uint64_t image_end;
};

int declaration_builder_new(struct geometry g, struct declaration_builder **ret)
{
	struct declaration_builder *b;

	if (!geometry_valid(g))
		return -EINVAL;
	b = alloc_zero(sizeof(*b));
	if (!b)
		return -ENOMEM;
	b->geometry = g;
	*ret = b;
	return 0;
}

void declaration_builder_free(struct declaration_builder *b)
{
	if (!b)
		return;
	writer_free(&b->entries);
	alloc_free(b->at);
	alloc_free(b);
}

static int builder_reserve(struct declaration_builder *b)
{
	uint32_t cap = b->cap ? 2 * b->cap : 64;
	uint64_t *at;

	if (b->n < b->cap)
		return 0;
	at = alloc_resize(b->at, cap * sizeof(*at));
	if (!at)
		return -ENOMEM;
	b->at = at;
	b->cap = cap;
	return 0;
}

int declaration_add(struct declaration_builder *b, const struct shard *shard, struct err *e)
{
	struct shard s = *shard;
	size_t before = b->entries.len;
	int r = shard_check(&s, e);

	if (r)
		return r;
	s.image_offset = image_place(b->image_end, s.bytes, b->geometry);
	if (before > DECLARATION_BYTES_MAX || s.bytes > IMAGE_BYTES_MAX - s.image_offset)
		return err_set(e, -E2BIG,
			       "the state of a rank has more than 2^56 bytes or its declaration "
			       "more than %u: use more ranks",
			       DECLARATION_BYTES_MAX);
	r = builder_reserve(b);
	if (!r) {
		entry_write(&b->entries, &s, b->n);
		if (b->entries.bad) { /* leave no half entry: the builder stays good */
			b->entries.bad = false;
			b->entries.len = before;
			r = -ENOMEM;
		}
	}
	if (r)
		return err_code(e, r, "remember a tensor of %u bytes of name", s.name_len);
	b->at[b->n] = before;
	b->image_end = s.image_offset + s.bytes;
	assert(b->image_end <= IMAGE_BYTES_MAX && b->n < INT32_MAX);
	return (int)b->n++;
}

static int compare_at(const void *pa, const void *pb, void *arg)
{
	const uint8_t *entries = arg;

	return entry_compare(entries + *(const uint64_t *)pa, entries + *(const uint64_t *)pb);
}

/* Block i of the sorted entries, and its record in the fence, its name in the names. */
static void write_block(const struct declaration_builder *b, const uint64_t *sorted, uint32_t i,
			struct writer *w, struct writer *fence, struct writer *names)
{
	uint32_t first = i * BLOCK_SHARDS;
	uint32_t n = (uint32_t)min_u64(BLOCK_SHARDS, b->n - first);
	const uint8_t *entry = b->entries.buf + sorted[first];
	uint16_t name_len = get_le16(entry + ENTRY_NAME_LEN);
	size_t start = w->len, at = 2 * (size_t)n;
	struct digest d;

	for (uint32_t k = 0; k < n; k++) {
		write_u16(w, (uint16_t)at);
		at += entry_bytes(b->entries.buf + sorted[first + k]);
	}
	for (uint32_t k = 0; k < n; k++)
		write_bytes(w, b->entries.buf + sorted[first + k],
			    entry_bytes(b->entries.buf + sorted[first + k]));
	if (w->bad)
		return;
	assert(w->len - start == at && at <= BLOCK_BYTES_MAX);
	d = digest_of(w->buf + start, at);
	write_u64(fence, start);
	write_u32(fence, (uint32_t)at);
	write_u32(fence, first);
	write_u32(fence, (uint32_t)names->len);
	write_u16(fence, name_len);
	write_u16(fence, (uint16_t)n);
	write_bytes(fence, d.b, sizeof(d.b));
	write_bytes(names, entry + ENTRY_NAME, name_len);
}

static void write_header(const struct declaration_builder *b, uint32_t n_blocks,
			 uint64_t fence_offset, struct writer *w)
{
	uint8_t *h = w->buf;
	struct digest d = digest_of(h + fence_offset, w->len - fence_offset);

	format_head_put(h, DECLARATION_MAGIC, w->len);
	put_le32(h + DECL_LEAF, b->geometry.leaf);
	put_le32(h + DECL_CHUNK, b->geometry.chunk);
	put_le32(h + DECL_SHARDS, b->n);
	put_le32(h + DECL_BLOCKS, n_blocks);
	put_le64(h + DECL_IMAGE_BYTES, b->image_end);
	put_le64(h + DECL_FENCE_OFFSET, fence_offset);
	put_le64(h + DECL_FENCE_BYTES, w->len - fence_offset);
	put_le64(h + DECL_RESERVED, 0);
	memcpy(h + DECL_FENCE_DIGEST, d.b, sizeof(d.b));
	format_head_seal(h);
}

/* The bytes into w, which is bad when memory ran out. */
static void write_all(const struct declaration_builder *b, const uint64_t *sorted, struct writer *w)
{
	uint32_t n_blocks = (uint32_t)div_up(b->n, BLOCK_SHARDS);
	struct writer fence = { 0 }, names = { 0 };
	uint64_t fence_offset;

	write_zero(w, FORMAT_HEADER_BYTES);
	for (uint32_t i = 0; i < n_blocks && !w->bad; i++)
		write_block(b, sorted, i, w, &fence, &names);
	fence_offset = w->len;
	write_bytes(w, fence.buf, fence.len);
	write_bytes(w, names.buf, names.len);
	w->bad = w->bad || fence.bad || names.bad;
	if (!w->bad)
		write_header(b, n_blocks, fence_offset, w);
	writer_free(&fence);
	writer_free(&names);
}

int declaration_finish(struct declaration_builder *b, void **ret, size_t *ret_len, struct err *e)
{
	uint64_t *sorted = alloc_array(b->n, sizeof(*sorted));
	char size[TEXT_SIZE_MAX], most[TEXT_SIZE_MAX];
	struct declaration check;
	struct writer w = { 0 };
	int r;

	if (!sorted)
		return err_code(e, -ENOMEM, "sort the %u tensors of a declaration", b->n);
	if (b->n) {
		memcpy(sorted, b->at, b->n * sizeof(*sorted));
		qsort_r(sorted, b->n, sizeof(*sorted), compare_at, b->entries.buf);
	}
	write_all(b, sorted, &w);
	alloc_free(sorted);
	if (w.bad) {
		writer_free(&w);
		return err_code(e, -ENOMEM, "write a declaration of %u tensors", b->n);
	}
	if (w.len > DECLARATION_BYTES_MAX)
		r = err_set(e, -E2BIG,
			    "the declaration of a rank has %s, more than %s: use more ranks",
			    text_size(size, w.len), text_size(most, DECLARATION_BYTES_MAX));
	else
		r = declaration_open_until(w.buf, w.len, NULL, &check, e);
	if (r) {
		writer_free(&w);
		return r;
	}
	assert(check.n_shards == b->n && check.image_bytes == b->image_end);
	*ret = w.buf;
	*ret_len = w.len;
	return 0;
}
