/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_check.c - chunks compared with their digests, and what is wrong with them in words.
 *
 * Stored bytes of a packed chunk have a digest of their own, compared before they are unpacked;
 * raw bytes are compared leaf by leaf with the rank table, which the root covers (I2). Pure.
 */
#include <config.h>

#include "storage/shard_check.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "codec/compress.h"
#include "codec/digest.h"
#include "storage/shard_file.h"

struct found {
	uint64_t lo, hi, first_at; /* first_at: where the named one begins */
	const char *kind, *name;
	uint32_t name_len;
	uint64_t n;
};

static void look_at(struct found *f, const char *kind, const char *name, uint32_t name_len,
		    uint64_t at, uint64_t bytes)
{
	if (at >= f->hi || bytes <= f->lo - min_u64(at, f->lo) || bytes == 0)
		return;
	if (f->n++ > 0 && at >= f->first_at)
		return;
	f->kind = kind;
	f->name = name;
	f->name_len = name_len;
	f->first_at = at;
}

void image_describe(const struct rank_table *t, uint64_t lo, uint64_t hi, char *buf, size_t size)
{
	struct found f = { .lo = lo, .hi = hi };
	char name[NAME_TEXT_MAX];

	for (uint32_t i = 0; i < t->declaration.n_shards; i++) {
		struct shard s;

		declaration_get(&t->declaration, i, &s);
		look_at(&f, "tensor", s.name, s.name_len, s.image_offset, s.bytes);
	}
	for (uint32_t i = 0; i < t->n_blobs; i++) {
		struct blob_entry b;

		if (rank_table_blob(t, i, &b) == 0)
			look_at(&f, "blob", b.name, b.name_len, b.image_offset, b.bytes);
	}
	if (f.n == 0)
		snprintf(buf, size, "no tensor");
	else if (f.n == 1)
		snprintf(buf, size, "%s '%s'", f.kind, name_text(name, f.name, f.name_len));
	else
		snprintf(buf, size, "%s '%s' and %" PRIu64 " more", f.kind,
			 name_text(name, f.name, f.name_len), f.n - 1);
}

void shard_describe(const struct rank_table *t, uint64_t image_offset, char *buf, size_t size)
{
	image_describe(t, image_offset, image_offset + 1, buf, size);
}

static void say_bad_leaf(const struct rank_table *t, uint64_t leaf, bad_leaf_fn *fn, void *arg)
{
	uint64_t lo = leaf * t->geometry.leaf, hi = min_u64(lo + t->geometry.leaf, t->image_len);
	char sentence[ERR_TEXT_MAX], what[ERR_TEXT_MAX / 2];

	image_describe(t, lo, hi, what, sizeof(what));
	snprintf(sentence, sizeof(sentence),
		 "leaf %" PRIu64 " of rank %u (%s, image bytes %" PRIu64 " to %" PRIu64
		 ") does not match its digest",
		 leaf, t->rank, what, lo, hi);
	fn(arg, sentence);
}

uint64_t chunk_check_leaves(const struct rank_table *t, uint64_t chunk, uint32_t missing,
			    const uint8_t *raw, bad_leaf_fn *fn, void *arg)
{
	uint32_t size = t->geometry.leaf, len = chunk_length(t->image_len, t->geometry, chunk);
	uint64_t first = chunk * (t->geometry.chunk / size), bad = 0;

	for (uint32_t i = 0; i * (uint64_t)size < len; i++) {
		uint64_t leaf = first + i, here = min_u64(size, len - i * (uint64_t)size);
		struct digest want = rank_table_leaf(t, leaf), got;

		if (missing && missing >> i & 1)
			continue;
		got = digest_of(raw, here);
		raw += here;
		if (digest_equal(&want, &got))
			continue;
		bad++;
		say_bad_leaf(t, leaf, fn, arg);
	}
	return bad;
}

int chunk_unpack(const struct rank_table *t, uint64_t chunk, const struct chunk_place *p,
		 struct compressor *c, const uint8_t *stored, uint8_t *out, const uint8_t **ret,
		 struct err *e)
{
	uint32_t len = chunk_bytes_stored(t->image_len, t->geometry, chunk, p->missing);
	uint64_t lo = chunk * t->geometry.chunk;
	uint64_t hi = lo + chunk_length(t->image_len, t->geometry, chunk);
	char what[ERR_TEXT_MAX / 2];
	struct digest got;

	if (p->encoding == ENCODING_RAW) {
		*ret = stored;
		return 0;
	}
	got = digest_of(stored, p->stored);
	if (digest_equal(&got, &p->digest) &&
	    decompress_chunk(c, p->encoding, stored, p->stored, out, len) == 0) {
		*ret = out;
		return 0;
	}
	image_describe(t, lo, hi, what, sizeof(what));
	return err_set(e, CKPT_ECORRUPT,
		       "chunk %" PRIu64 " of rank %u (%s, image bytes %" PRIu64 " to %" PRIu64
		       ") does not match the digest of its compressed bytes",
		       chunk, t->rank, what, lo, hi);
}
