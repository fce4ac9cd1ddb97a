/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of a declaration's bytes: header, fence, blocks, entries. Pure; any thread.
 *
 * 1. Nothing behind a length or an offset is read before that length or offset was checked.
 * 2. Every byte is covered: the header's digest covers the fence's, the fence's the blocks'.
 */
#include <config.h>

#include "model/declaration_format.h"

#include <assert.h>

#include "codec/digest.h"

static bool digest_matches(const void *p, size_t len, const uint8_t *want)
{
	struct digest d = digest_of(p, len);

	return memcmp(d.b, want, sizeof(d.b)) == 0;
}

int declaration_header_check(const uint8_t *header, uint64_t len, struct declaration_header *ret,
			     struct err *e)
{
	struct declaration_header h;
	int r = format_head_check(header, len, DECLARATION_MAGIC, "declaration", &h.total, e);

	if (r)
		return r;
	h.geometry.leaf = get_le32(header + DECL_LEAF);
	h.geometry.chunk = get_le32(header + DECL_CHUNK);
	h.n_shards = get_le32(header + DECL_SHARDS);
	h.n_blocks = get_le32(header + DECL_BLOCKS);
	h.image_bytes = get_le64(header + DECL_IMAGE_BYTES);
	h.fence_offset = get_le64(header + DECL_FENCE_OFFSET);
	h.fence_bytes = get_le64(header + DECL_FENCE_BYTES);
	if (h.total != len || len > DECLARATION_BYTES_MAX)
		return err_set(e, CKPT_EPROTO,
			       "a declaration of %llu bytes says that it has %llu: it was cut or "
			       "is larger than %u",
			       (unsigned long long)len, (unsigned long long)h.total,
			       DECLARATION_BYTES_MAX);
	if (!geometry_valid(h.geometry) || h.image_bytes > IMAGE_BYTES_MAX ||
	    h.n_blocks != div_up(h.n_shards, BLOCK_SHARDS) ||
	    get_le64(header + DECL_RESERVED) != 0 || h.fence_offset < FORMAT_HEADER_BYTES ||
	    h.fence_offset > len || h.fence_bytes != len - h.fence_offset ||
	    h.fence_bytes / FENCE_RECORD < h.n_blocks)
		return err_set(e, CKPT_EPROTO,
			       "the header of a declaration has fields that do not fit together");
	*ret = h;
	return 0;
}

int declaration_fence_check(const uint8_t *header, const struct declaration_header *h,
			    const uint8_t *fence, struct err *e)
{
	uint64_t offset = FORMAT_HEADER_BYTES, name_at = 0;
	uint64_t names = h->fence_bytes - (uint64_t)h->n_blocks * FENCE_RECORD;

	if (!digest_matches(fence, h->fence_bytes, header + DECL_FENCE_DIGEST))
		return err_set(e, CKPT_ECORRUPT,
			       "the index of a declaration does not match its digest");
	for (uint32_t i = 0; i < h->n_blocks; i++) {
		const uint8_t *record = fence_record(fence, i);
		uint32_t bytes = get_le32(record + FENCE_BYTES);
		uint64_t shards = min_u64(BLOCK_SHARDS, h->n_shards - i * BLOCK_SHARDS);

		if (get_le64(record + FENCE_OFFSET) != offset || bytes > BLOCK_BYTES_MAX ||
		    bytes < shards * (2 + ENTRY_NAME) ||
		    get_le32(record + FENCE_FIRST) != i * BLOCK_SHARDS ||
		    get_le16(record + FENCE_SHARDS) != shards ||
		    get_le32(record + FENCE_NAME_AT) != name_at)
			return err_set(e, CKPT_EPROTO,
				       "record %u of the index of a declaration is malformed", i);
		offset += bytes;
		name_at += get_le16(record + FENCE_NAME_LEN);
	}
	/* Each begins where the one before ends: if the last one fits, all do. */
	if (offset != h->fence_offset || name_at != names)
		return err_set(e, CKPT_EPROTO,
			       "a declaration has bytes that its index does not account for");
	return 0;
}

int declaration_block_check(const uint8_t *fence, uint32_t i, const uint8_t *block, struct err *e)
{
	const uint8_t *record = fence_record(fence, i);
	uint32_t bytes = get_le32(record + FENCE_BYTES), n = get_le16(record + FENCE_SHARDS);
	uint64_t at = 2 * (uint64_t)n;

	if (!digest_matches(block, bytes, record + FENCE_DIGEST))
		return err_set(e, CKPT_ECORRUPT,
			       "block %u of a declaration does not match its digest", i);
	assert(n > 0 && at <= bytes);
	for (uint32_t k = 0; k < n; k++) {
		if (get_le16(block + 2 * k) != at || bytes - at < ENTRY_NAME ||
		    bytes - at < entry_bytes(block + at))
			return err_set(e, CKPT_EPROTO,
				       "entry %u of block %u of a declaration is malformed", k, i);
		at += entry_bytes(block + at);
	}
	if (at != bytes)
		return err_set(e, CKPT_EPROTO, "block %u of a declaration has bytes left over", i);
	return 0;
}

void entry_write(struct writer *w, const struct shard *s, uint32_t order)
{
	uint32_t ndim = s->global.ndim;

	assert(ndim <= CKPT_NDIM_MAX && s->box.ndim == ndim);
	assert(s->name_len > 0 && s->name_len <= CKPT_NAME_MAX && s->dtype <= UINT8_MAX);
	write_u32(w, order);
	write_u16(w, (uint16_t)s->name_len);
	write_u8(w, (uint8_t)s->dtype);
	write_u8(w, (uint8_t)ndim);
	write_u32(w, (s->flat ? ENTRY_FLAT : 0) | (s->trained ? ENTRY_TRAINED : 0));
	write_u64(w, s->image_offset);
	write_bytes(w, s->name, s->name_len);
	write_bytes(w, s->global.dim, 8 * (size_t)ndim);
	write_bytes(w, s->box.offset, 8 * (size_t)ndim);
	write_bytes(w, s->box.length, 8 * (size_t)ndim);
	if (s->flat) {
		write_u64(w, s->start);
		write_u64(w, s->stop);
	}
}

size_t entry_bytes(const uint8_t *p)
{
	bool flat = get_le32(p + ENTRY_FLAGS) & ENTRY_FLAT;

	return ENTRY_NAME + get_le16(p + ENTRY_NAME_LEN) + 24 * (size_t)p[ENTRY_NDIM] +
	       (flat ? 16 : 0);
}

/* All but start, stop and bytes of a shard that is not flat. */
static void entry_fields(const uint8_t *p, struct shard *s)
{
	uint32_t flags = get_le32(p + ENTRY_FLAGS), ndim = p[ENTRY_NDIM];
	const uint8_t *at;

	assert(ndim <= CKPT_NDIM_MAX);
	s->name_len = get_le16(p + ENTRY_NAME_LEN);
	s->name = (const char *)p + ENTRY_NAME;
	s->dtype = p[ENTRY_DTYPE];
	s->flat = flags & ENTRY_FLAT;
	s->trained = flags & ENTRY_TRAINED;
	s->image_offset = get_le64(p + ENTRY_IMAGE_AT);
	s->global.ndim = s->box.ndim = ndim;
	at = p + ENTRY_NAME + s->name_len;
	memcpy(s->global.dim, at, 8 * (size_t)ndim);
	memcpy(s->box.offset, at + 8 * (size_t)ndim, 8 * (size_t)ndim);
	memcpy(s->box.length, at + 16 * (size_t)ndim, 8 * (size_t)ndim);
	at += 24 * (size_t)ndim;
	s->start = s->flat ? get_le64(at) : 0;
	s->stop = s->flat ? get_le64(at + 8) : 0;
	s->bytes = 0;
}

void entry_get(const uint8_t *p, struct shard *ret)
{
	bool fits = true;

	entry_fields(p, ret);
	if (!ret->flat)
		fits = box_elements(&ret->box, &ret->stop);
	assert(fits && ret->start <= ret->stop);
	ret->bytes = (ret->stop - ret->start) * dtype_bytes(ret->dtype);
}

int entry_check(const uint8_t *p, size_t len, struct shard *ret, struct err *e)
{
	struct shard s = { 0 };
	int r;

	if (len < ENTRY_NAME || p[ENTRY_NDIM] > CKPT_NDIM_MAX || len != entry_bytes(p) ||
	    (get_le32(p + ENTRY_FLAGS) & ~ENTRY_FLAGS_KNOWN) != 0)
		return err_set(e, CKPT_EPROTO, "an entry of a declaration is malformed");
	entry_fields(p, &s);
	r = shard_check(&s, e);
	if (r)
		return r;
	*ret = s;
	return 0;
}

int entry_compare(const uint8_t *a, const uint8_t *b)
{
	uint32_t a_len = get_le16(a + ENTRY_NAME_LEN), b_len = get_le16(b + ENTRY_NAME_LEN);
	uint32_t ndim = (uint32_t)min_u64(a[ENTRY_NDIM], b[ENTRY_NDIM]);
	struct shard x, y;
	int c = name_compare((const char *)a + ENTRY_NAME, a_len, (const char *)b + ENTRY_NAME,
			     b_len);

	if (c)
		return c;
	entry_fields(a, &x);
	entry_fields(b, &y);
	for (uint32_t i = 0; i < ndim; i++)
		if (x.box.offset[i] != y.box.offset[i])
			return x.box.offset[i] < y.box.offset[i] ? -1 : 1;
	if (x.start != y.start)
		return x.start < y.start ? -1 : 1;
	x.stop = get_le32(a + ENTRY_ORDER);
	y.stop = get_le32(b + ENTRY_ORDER);
	return x.stop < y.stop ? -1 : x.stop > y.stop;
}
