/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_file.c - header, footer and placement table of a shard file to bytes and back. Pure.
 *
 * Nothing that is decoded is believed before its digest was right, nor after that without a check
 * of its bounds: the digest finds accidents, not forgers.
 */
#include <config.h>

#include "storage/shard_file.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "codec/compress.h"
#include "model/load_plan.h"
#include "storage/disk_format.h"

/* ---- Header ---- */

#define HEADER_FIXED (SHARD_HEADER_BYTES - DISK_FORMAT_DIGEST)
#define HEADER_USED 144u

void shard_header_encode(const struct shard_header *h, uint8_t out[SHARD_HEADER_BYTES])
{
	assert(geometry_valid(h->geometry));
	assert(h->footer_offset % DISK_ALIGN == 0 && h->footer_offset >= SHARD_HEADER_BYTES);
	memset(out, 0, SHARD_HEADER_BYTES);
	format_begin(out, FORMAT_SHARD, HEADER_FIXED, SHARD_HEADER_BYTES);
	memcpy(out + 48, h->id.job.b, 16);
	put_le64(out + 64, h->id.step);
	memcpy(out + 72, h->id.attempt.b, 16);
	put_le32(out + 88, h->rank);
	put_le32(out + 92, h->geometry.leaf);
	put_le32(out + 96, h->geometry.chunk);
	put_le64(out + 104, h->image_len);
	put_le64(out + 112, h->footer_offset);
	put_le64(out + 120, h->footer_len);
	memcpy(out + 128, h->footer.b, 16);
	format_set_incompat(out, h->partial ? SHARD_LEAVES_MISSING : 0);
	format_end(out, SHARD_HEADER_BYTES);
}

int shard_header_decode(const uint8_t in[SHARD_HEADER_BYTES], const char *what,
			struct shard_header *ret, struct err *e)
{
	struct shard_header h = { 0 };
	bool read_only;
	int r = format_check(in, SHARD_HEADER_BYTES, FORMAT_SHARD, HEADER_FIXED, what, &read_only,
			     e);

	if (r < 0)
		return r;
	memcpy(h.id.job.b, in + 48, 16);
	h.id.step = get_le64(in + 64);
	memcpy(h.id.attempt.b, in + 72, 16);
	h.rank = get_le32(in + 88);
	h.geometry.leaf = get_le32(in + 92);
	h.geometry.chunk = get_le32(in + 96);
	h.image_len = get_le64(in + 104);
	h.footer_offset = get_le64(in + 112);
	h.footer_len = get_le64(in + 120);
	memcpy(h.footer.b, in + 128, 16);
	h.partial = format_incompat(in) & SHARD_LEAVES_MISSING;
	if (!geometry_valid(h.geometry) || h.geometry.chunk > SHARD_CHUNK_MAX ||
	    h.footer_offset % DISK_ALIGN != 0 ||
	    h.footer_offset < SHARD_HEADER_BYTES ||
	    h.footer_len < FOOTER_FIXED_BYTES + DISK_FORMAT_DIGEST || get_le32(in + 100) != 0 ||
	    !bytes_are_zero(in + HEADER_USED, HEADER_FIXED - HEADER_USED))
		return err_set(e, CKPT_EPROTO, "%s has fields that cannot be", what);
	*ret = h;
	return 0;
}

/* ---- Footer ---- */

uint32_t shard_block(struct geometry g, bool partial)
{
	return (partial ? g.leaf : g.chunk) % DISK_ALIGN == 0 ? DISK_ALIGN : 1;
}

uint32_t chunk_length(uint64_t image_len, struct geometry g, uint64_t i)
{
	uint64_t begin = i * g.chunk;

	assert(begin < image_len);
	return (uint32_t)min_u64(g.chunk, image_len - begin);
}

bool footer_size(uint64_t table_len, uint64_t n_chunks, uint64_t *ret)
{
	uint64_t places, size;

	if (table_len > INT64_MAX || !size_mul(n_chunks, CHUNK_PLACE_BYTES, &places))
		return false;
	if (!size_add(FOOTER_FIXED_BYTES + DISK_FORMAT_DIGEST, round_up(table_len, 8), &size))
		return false;
	return size_add(size, places, ret);
}

void footer_encode(const struct shard_footer_view *f, uint8_t *out)
{
	uint64_t places = FOOTER_FIXED_BYTES + round_up(f->table_len, 8);
	uint64_t len = 0;
	bool fits = footer_size(f->table_len, f->n_chunks, &len);

	assert(fits);
	assert(f->table_len == 0 || f->table);
	format_begin(out, FORMAT_FOOTER, FOOTER_FIXED_BYTES, len);
	put_le32(out + 48, f->rank);
	put_le32(out + 52, 0); /* older files that places point into */
	put_le64(out + 56, f->image_len);
	put_le64(out + 64, f->stored);
	put_le64(out + 72, f->table_len);
	put_le64(out + 80, f->n_chunks);
	memcpy(out + FOOTER_FIXED_BYTES, f->table, f->table_len);
	if (f->n_chunks)
		memcpy(out + places, f->places, f->n_chunks * CHUNK_PLACE_BYTES);
	format_end(out, len);
}

int footer_decode(const uint8_t *bytes, size_t len, const char *what,
		  struct shard_footer_view *ret, struct err *e)
{
	struct shard_footer_view f = { 0 };
	uint64_t want = 0, pad;
	bool read_only;
	int r = format_check(bytes, len, FORMAT_FOOTER, FOOTER_FIXED_BYTES, what, &read_only, e);

	if (r < 0)
		return r;
	f.rank = get_le32(bytes + 48);
	f.image_len = get_le64(bytes + 56);
	f.stored = get_le64(bytes + 64);
	f.table_len = get_le64(bytes + 72);
	f.n_chunks = get_le64(bytes + 80);
	if (get_le32(bytes + 52) != 0)
		return err_set(e, CKPT_EVERSION, "%s points into older files: this version cannot",
			       what);
	if (!footer_size(f.table_len, f.n_chunks, &want) || want != len)
		return err_set(e, CKPT_EPROTO, "%s has tables that do not fill its %zu bytes", what,
			       len);
	pad = round_up(f.table_len, 8) - f.table_len;
	f.table = bytes + FOOTER_FIXED_BYTES;
	f.places = f.table + f.table_len + pad;
	if (!bytes_are_zero(bytes + 88, FOOTER_FIXED_BYTES - 88) ||
	    !bytes_are_zero(f.table + f.table_len, pad))
		return err_set(e, CKPT_EPROTO, "%s has fields that cannot be", what);
	*ret = f;
	return 0;
}

static bool place_possible(const struct shard_footer_view *f, const struct shard_header *h,
			   uint64_t i, const struct chunk_place *p)
{
	const uint8_t *zero = f->places + (i + 1) * CHUNK_PLACE_BYTES - 4;
	static const struct digest none;
	uint32_t raw;

	if (p->file != 0 || !bytes_are_zero(zero, 4) || (p->missing && !h->partial) ||
	    !chunk_missing_possible(f->image_len, h->geometry, i, p->missing))
		return false;
	raw = chunk_bytes_stored(f->image_len, h->geometry, i, p->missing);
	if (p->encoding == ENCODING_RAW)
		return p->stored == raw && digest_equal(&p->digest, &none);
	return p->encoding <= ENCODING_ZSTD_P4 && p->stored > 0 && p->stored < raw;
}

int footer_check_places(const struct shard_footer_view *f, const struct shard_header *h,
			const char *what, struct err *e)
{
	uint64_t end = SHARD_HEADER_BYTES, stored = 0, footer_offset = h->footer_offset;
	bool missing = false;

	if (f->n_chunks != div_up(f->image_len, h->geometry.chunk))
		return err_set(e, CKPT_EPROTO,
			       "%s has places for %" PRIu64 " chunks in an image of %" PRIu64
			       " bytes",
			       what, f->n_chunks, f->image_len);
	for (uint64_t i = 0; i < f->n_chunks; i++) {
		struct chunk_place p = chunk_place_get(f->places, i);

		if (!place_possible(f, h, i, &p) || p.offset < end ||
		    p.offset - end >= (i ? DISK_ALIGN : 1) || p.offset > footer_offset ||
		    p.stored > footer_offset - p.offset)
			return err_set(e, CKPT_EPROTO,
				       "%s has an impossible place for chunk %" PRIu64, what, i);
		end = p.offset + p.stored;
		stored += p.stored;
		missing = missing || p.missing;
	}
	if (stored != f->stored || missing != h->partial || footer_offset - end >= DISK_ALIGN)
		return err_set(e, CKPT_EPROTO, "%s has places that do not add up", what);
	return 0;
}
