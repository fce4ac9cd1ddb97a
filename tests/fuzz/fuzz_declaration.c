/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that claim to be a declaration. Two goes at each input: as it is, and with digests made to
 * match, so that the checks behind them are reached too. What is accepted is read in full, both
 * from memory and through declaration_lookup().
 */
#include <config.h>

#include <assert.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "codec/digest.h"
#include "model/declaration_format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct file {
	const uint8_t *bytes;
	size_t len;
};

static int file_read(void *arg, uint64_t offset, void *buf, size_t len)
{
	struct file *f = arg;

	assert(offset <= f->len && len <= f->len - offset);
	memcpy(buf, f->bytes + offset, len);
	return 0;
}

static int count(void *arg, const struct shard *s)
{
	assert(s->bytes <= IMAGE_BYTES_MAX);
	++*(uint32_t *)arg;
	return 0;
}

static void use(const struct declaration *d)
{
	struct file f = { d->bytes, d->len };
	struct declaration_lookup *l;

	if (declaration_lookup_open(file_read, &f, f.len, &l, NULL) != 0)
		abort(); /* the bytes are good */
	for (uint32_t i = 0; i < d->n_shards; i++) {
		uint32_t seen = 0, first, n, len;
		const char *name = declaration_name(d, i, &len);
		struct shard s;

		declaration_get(d, i, &s);
		assert(s.image_offset + s.bytes <= d->image_bytes);
		n = declaration_find(d, name, len, &first);
		assert(n > 0 && first <= i && i < first + n);
		if (declaration_lookup(l, name, len, count, &seen) != (int)n || seen != n)
			abort();
	}
	declaration_lookup_free(l);
}

/* Digests that match, where the parts are in bounds. */
static void seal(uint8_t *bytes, size_t len)
{
	uint64_t fence_at = get_le64(bytes + DECL_FENCE_OFFSET);
	uint32_t n = get_le32(bytes + DECL_BLOCKS);
	struct digest d;

	if (fence_at <= len) {
		for (uint32_t i = 0; i < n && (len - fence_at) / FENCE_RECORD > i; i++) {
			uint8_t *record = bytes + fence_at + (uint64_t)i * FENCE_RECORD;
			uint64_t at = get_le64(record + FENCE_OFFSET);
			uint32_t bytes_in = get_le32(record + FENCE_BYTES);

			if (at > len || bytes_in > len - at)
				continue;
			d = digest_of(bytes + at, bytes_in);
			memcpy(record + FENCE_DIGEST, d.b, sizeof(d.b));
		}
		d = digest_of(bytes + fence_at, len - fence_at);
		memcpy(bytes + DECL_FENCE_DIGEST, d.b, sizeof(d.b));
	}
	format_head_seal(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct declaration d;
	uint8_t *copy;

	if (declaration_open_until(data, size, NULL, &d, NULL) == 0)
		use(&d);
	if (size < FORMAT_HEADER_BYTES)
		return 0;
	copy = alloc_copy(data, size);
	if (!copy)
		return 0;
	memcpy(copy, DECLARATION_MAGIC, 8);
	seal(copy, size);
	if (declaration_open_until(copy, size, NULL, &d, NULL) == 0)
		use(&d);
	alloc_free(copy);
	return 0;
}
