/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking a name up in a declaration that is not in memory. Cold; one thread per struct.
 *
 * The header and the fence are read once; a lookup then reads the block in which the name can
 * begin and those that follow while it goes on. Each is checked against its digest before it is
 * used, so damage is an error and never a missing tensor.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"
#include "model/declaration_format.h"

struct declaration_lookup {
	declaration_read_fn *read;
	void *arg;
	struct declaration_header header;
	uint8_t *fence, *block; /* block: room for the largest */
};

void declaration_lookup_free(struct declaration_lookup *l)
{
	if (!l)
		return;
	alloc_free(l->fence);
	alloc_free(l->block);
	alloc_free(l);
}

static int open_parts(struct declaration_lookup *l, uint64_t len, struct err *e)
{
	uint8_t header[FORMAT_HEADER_BYTES];
	int r;

	if (len < sizeof(header))
		return err_set(e, CKPT_EPROTO, "these bytes are not a declaration");
	r = l->read(l->arg, 0, header, sizeof(header));
	if (r < 0)
		return err_code(e, r, "read the header of a declaration");
	r = declaration_header_check(header, len, &l->header, e);
	if (r)
		return r;
	l->fence = alloc_array(1, l->header.fence_bytes);
	l->block = alloc_zero(BLOCK_BYTES_MAX);
	if (!l->fence || !l->block)
		return err_code(e, -ENOMEM, "read the index of a declaration");
	r = l->read(l->arg, l->header.fence_offset, l->fence, l->header.fence_bytes);
	if (r < 0)
		return err_code(e, r, "read the index of a declaration");
	return declaration_fence_check(header, &l->header, l->fence, e);
}

int declaration_lookup_open(declaration_read_fn *read, void *arg, uint64_t len,
			    struct declaration_lookup **ret, struct err *e)
{
	struct declaration_lookup *l = alloc_zero(sizeof(*l));
	int r;

	if (!l)
		return err_code(e, -ENOMEM, "read a declaration");
	l->read = read;
	l->arg = arg;
	r = open_parts(l, len, e);
	if (r) {
		declaration_lookup_free(l);
		return r;
	}
	*ret = l;
	return 0;
}

/* The last block whose first name is before this one: shards of this name may begin in it, or in
 * the next. */
static uint32_t first_block(const struct declaration_lookup *l, const char *name, uint32_t name_len)
{
	uint32_t lo = 0, hi = l->header.n_blocks;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2, len;
		const char *own = fence_name(l->fence, l->header.n_blocks, mid, &len);

		if (name_compare(own, len, name, name_len) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo ? lo - 1 : 0;
}

/* Shards of that name in block i; *past: one with a later name was seen. */
static int lookup_in_block(struct declaration_lookup *l, uint32_t i, const char *name,
			   uint32_t name_len, declaration_shard_fn *fn, void *arg, int *count,
			   bool *past)
{
	const uint8_t *record = fence_record(l->fence, i);
	uint32_t bytes = get_le32(record + FENCE_BYTES);
	int r = l->read(l->arg, get_le64(record + FENCE_OFFSET), l->block, bytes);

	if (r >= 0)
		r = declaration_block_check(l->fence, i, l->block, NULL);
	if (r)
		return r;
	for (uint32_t k = 0; k < get_le16(record + FENCE_SHARDS); k++) {
		const uint8_t *entry = block_entry(l->block, k);
		struct shard s;
		int order;

		r = entry_check(entry, entry_bytes(entry), &s, NULL);
		if (r)
			return r;
		order = name_compare(s.name, s.name_len, name, name_len);
		*past = order > 0;
		if (*past)
			return 0;
		if (order < 0)
			continue;
		(*count)++;
		r = fn(arg, &s);
		if (r)
			return r;
	}
	return 0;
}

int declaration_lookup(struct declaration_lookup *l, const char *name, uint32_t name_len,
		       declaration_shard_fn *fn, void *arg)
{
	uint32_t i = first_block(l, name, name_len);
	bool past = false;
	int count = 0;

	assert(i == 0 || i < l->header.n_blocks);
	for (; i < l->header.n_blocks && !past; i++) {
		uint32_t len;
		const char *first = fence_name(l->fence, l->header.n_blocks, i, &len);
		int r;

		if (name_compare(first, len, name, name_len) > 0)
			break;
		r = lookup_in_block(l, i, name, name_len, fn, arg, &count, &past);
		if (r)
			return r;
	}
	return count;
}
