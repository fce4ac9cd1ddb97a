/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_reader.c - one shard file opened for reading.
 *
 * 1. The shared lock is taken before the header is read: from then on the file is not recycled,
 *    and a header that names this checkpoint names what the file will hold until it is closed. What
 *    holds for a descriptor that is given away stands in spare.c.
 * 2. COMMIT's line fixes length and digest of footer and rank table; the table fixes every leaf:
 *    bytes that do not lead to the root are never returned (I2).
 * 3. No length of the file is believed before it was compared with the file's size.
 *
 * Thread: one per reader.
 */
#include <config.h>

#include "storage/shard_reader.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/fault.h"
#include "codec/compress.h"
#include "codec/digest.h"
#include "storage/disk_format.h"
#include "storage/paths.h"
#include "storage/shard_check.h"
#include "storage/shard_file.h"

static int read_header(struct disk_file *f, const char *path, struct shard_header *ret,
		       struct err *e)
{
	void *block = NULL;
	uint8_t *buf = alloc_aligned(SHARD_HEADER_BYTES, &block);
	int r;

	if (!buf)
		return err_code(e, -ENOMEM, "cannot read the header");
	r = f->disk->ops->read(f, buf, SHARD_HEADER_BYTES, 0);
	if (r == -ENODATA)
		r = err_set(e, CKPT_ECORRUPT, "header of '%s' is cut off", path);
	else if (r < 0)
		err_code(e, r, "cannot read the header of '%s'", path);
	else
		r = shard_header_decode(buf, "its header", ret, e);
	alloc_free(block);
	return r;
}

static bool header_matches(const struct shard_header *h, const struct checkpoint_id *id,
			   const struct shard_footer *f)
{
	return job_id_equal(&h->id.job, &id->job) && h->id.step == id->step &&
	       attempt_equal(&h->id.attempt, &id->attempt) && h->rank == f->rank &&
	       h->footer_offset == f->footer_offset && h->footer_len == f->footer_len &&
	       digest_equal(&h->footer, &f->footer);
}

/* The file under its shared lock, with its header. */
static int open_locked(struct store *s, const char *path, unsigned flags,
		       struct disk_file **ret, struct shard_header *ret_header, struct err *e)
{
	const struct disk_ops *ops = s->disk->ops;
	struct disk_file *f = NULL;
	int r = ops->open(s->disk, path, DISK_READ | flags, &f);

	if (r == -ENOENT)
		return err_set(e, CKPT_ENOTFOUND, "the file is missing");
	if (r < 0)
		return err_code(e, r, "cannot open it");
	r = ops->lock(f, false);
	if (r == -EAGAIN)
		r = err_set(e, CKPT_ENOTFOUND, "the file is being recycled: the checkpoint has "
					       "expired");
	else if (r < 0)
		err_code(e, r, "cannot lock it");
	else
		r = read_header(f, path, ret_header, e);
	if (r < 0) {
		ops->close(f);
		return r;
	}
	*ret = f;
	return 0;
}

/* Chunks that are no multiple of a block (the simulator's) cannot be read by O_DIRECT. */
static int open_file(struct store *s, const char *path, struct disk_file **ret,
		     struct shard_header *ret_header, struct err *e)
{
	struct disk_file *f = NULL;
	int r = open_locked(s, path, DISK_DIRECT, &f, ret_header, e);

	if (r == 0 && shard_block(ret_header->geometry, ret_header->partial) == 1) {
		s->disk->ops->close(f);
		r = open_locked(s, path, 0, &f, ret_header, e);
	}
	if (r == 0)
		*ret = f;
	return r;
}

/* The footer's bytes, which COMMIT fixes, and the zeroes behind it. */
static int read_footer(struct disk_file *f, const struct shard_footer *want, void **ret_block,
		       const uint8_t **ret, struct err *e)
{
	uint64_t padded, end = 0, size = 0;
	struct digest got;
	void *block = NULL;
	uint8_t *buf;
	int r = f->disk->ops->size(f, &size);

	if (r < 0)
		return err_code(e, r, "cannot tell its size");
	padded = want->footer_len <= size ? round_up(want->footer_len, DISK_ALIGN) : 0;
	if (padded == 0 || !size_add(want->footer_offset, padded, &end) || end > size)
		return err_set(e, CKPT_ECORRUPT,
			       "its footer of %" PRIu64 " bytes at %" PRIu64
			       " is beyond its end at %" PRIu64,
			       want->footer_len, want->footer_offset, size);
	buf = alloc_aligned(padded, &block);
	if (!buf)
		return err_code(e, -ENOMEM, "cannot read its footer of %" PRIu64 " bytes",
				want->footer_len);
	r = f->disk->ops->read(f, buf, padded, want->footer_offset);
	if (r < 0) {
		err_code(e, r, "cannot read its footer");
	} else {
		got = digest_of(buf, want->footer_len);
		if (!digest_equal(&got, &want->footer) ||
		    !bytes_are_zero(buf + want->footer_len, padded - want->footer_len))
			r = err_set(e, CKPT_ECORRUPT, "its footer does not match COMMIT");
	}
	if (r < 0) {
		alloc_free(block);
		return r;
	}
	*ret_block = block;
	*ret = buf;
	return 0;
}

bool shard_is_bad(int code)
{
	return code == CKPT_ECORRUPT || code == CKPT_EPROTO || code == CKPT_EVERSION ||
	       code == CKPT_ENOTFOUND || code == -ENOENT || code == -EIO || code == -EISDIR;
}

/* What blobs hold is in no other rank's file. */
static int check_blobs(const struct shard_reader *r, struct err *e)
{
	for (uint32_t i = 0; r->present && i < r->table.n_blobs; i++) {
		uint32_t leaf = r->table.geometry.leaf;
		uint64_t first, last;
		struct blob_entry b;
		int rc = rank_table_blob(&r->table, i, &b);

		if (rc < 0)
			return err_code(e, rc, "its blob %" PRIu32, i);
		first = b.image_offset / leaf;
		last = b.bytes ? (b.image_offset + b.bytes - 1) / leaf : first;
		if (b.bytes && leaves_next(r->present, first, last + 1, false) <= last)
			return err_set(e, CKPT_EPROTO, "it lacks bytes of a blob");
	}
	return 0;
}

static int open_tables(const struct shard_header *h, const uint8_t *footer,
		       const struct shard_footer *f, struct shard_reader *r, struct err *e)
{
	struct shard_footer_view v;
	struct digest table;
	int rc = footer_decode(footer, f->footer_len, "its footer", &v, e);

	if (rc < 0)
		return rc;
	table = digest_of(v.table, v.table_len);
	if (v.rank != f->rank || v.table_len != f->table_len || v.stored != f->stored ||
	    !digest_equal(&table, &f->table))
		return err_set(e, CKPT_ECORRUPT, "its rank table does not match COMMIT");
	rc = rank_table_open(v.table, v.table_len, &r->table, e);
	if (rc < 0)
		return rc;
	if (r->table.rank != f->rank || r->table.image_len != v.image_len ||
	    h->image_len != v.image_len || r->table.geometry.leaf != h->geometry.leaf ||
	    r->table.geometry.chunk != h->geometry.chunk)
		return err_set(e, CKPT_EPROTO, "its rank table is not that of its header");
	rc = footer_check_places(&v, h, "its footer", e);
	if (rc < 0)
		return rc;
	rc = places_present(v.places, v.image_len, h->geometry, &r->present);
	if (rc < 0)
		return err_code(e, rc, "cannot take its placement table");
	rc = check_blobs(r, e);
	if (rc < 0)
		return rc;
	r->places = v.places;
	r->n_chunks = v.n_chunks;
	r->footer_offset = f->footer_offset;
	return 0;
}

static int open_path(struct store *s, const char *path, const struct checkpoint_id *id,
		     const struct shard_footer *f, struct shard_reader *ret, struct err *e)
{
	struct shard_reader reader = { .store = s };
	const uint8_t *footer = NULL;
	struct shard_header h;
	int r;

	r = open_file(s, path, &reader.file, &h, e);
	if (r < 0)
		return err_wrap(e, r, "open '%s'", path);
	if (!header_matches(&h, id, f))
		r = err_set(e, CKPT_ECORRUPT, "its header is not the one that COMMIT knows");
	if (r == 0)
		r = read_footer(reader.file, f, &reader.footer, &footer, e);
	if (r == 0)
		r = open_tables(&h, footer, f, &reader, e);
	if (r < 0) {
		shard_close(&reader);
		return err_wrap(e, r, "open '%s'", path);
	}
	*ret = reader;
	return 0;
}

int shard_open(struct store *s, const struct checkpoint_id *id, const struct shard_footer *f,
	       struct shard_reader *ret, struct err *e)
{
	char path[DISK_PATH_MAX + 1];

	path_shard(path, id, f->rank);
	return open_path(s, path, id, f, ret, e);
}

int shard_open_again(struct store *s, const struct checkpoint_id *id, const struct shard_footer *f,
		     struct shard_reader *ret, struct err *e)
{
	char path[DISK_PATH_MAX + 1];

	path_shard_again(path, id, f->rank);
	return open_path(s, path, id, f, ret, e);
}

/* Of a file without a good header: whether its place is empty, as until shard_finish(). */
static bool header_is_blank(struct store *s, const char *path)
{
	struct disk_file *f = NULL;
	void *block = NULL;
	uint8_t *buf = alloc_aligned(SHARD_HEADER_BYTES, &block);
	uint64_t size = 0;
	bool blank = false;

	if (buf && s->disk->ops->open(s->disk, path, DISK_READ, &f) == 0) {
		blank = s->disk->ops->size(f, &size) == 0 && size == 0;
		if (!blank && s->disk->ops->read(f, buf, SHARD_HEADER_BYTES, 0) >= 0)
			blank = bytes_are_zero(buf, SHARD_HEADER_BYTES);
		s->disk->ops->close(f);
	}
	alloc_free(block);
	return blank;
}

static int find_footer(struct disk_file *f, const struct shard_header *h,
		       struct shard_footer *ret, struct err *e)
{
	struct shard_footer_view v;
	void *block = NULL;
	const uint8_t *footer = NULL;
	int r = read_footer(f, ret, &block, &footer, e);

	if (r == CKPT_ECORRUPT)
		err_set(e, r, "its footer is not the one that its header names");
	if (r == 0)
		r = footer_decode(footer, ret->footer_len, "its footer", &v, e);
	if (r == 0 && (v.rank != ret->rank || v.image_len != h->image_len))
		r = err_set(e, CKPT_EPROTO, "its footer is not that of its header");
	if (r == 0) {
		ret->table_len = v.table_len;
		ret->table = digest_of(v.table, v.table_len);
		ret->stored = v.stored;
	}
	alloc_free(block);
	return r;
}

int shard_find(struct store *s, const struct checkpoint_id *id, uint32_t rank,
	       struct shard_footer *ret, struct err *e)
{
	char path[DISK_PATH_MAX + 1];
	struct shard_footer found = {.rank = rank};
	struct shard_reader reader;
	struct disk_file *f = NULL;
	struct shard_header h;
	int r;

	path_shard(path, id, rank);
	r = open_file(s, path, &f, &h, e);
	if (r == CKPT_ECORRUPT && header_is_blank(s, path))
		r = err_set(e, CKPT_ESTATE, "it has no header: it was being written");
	if (r < 0)
		return err_wrap(e, r, "rank %u", rank);
	found.footer_offset = h.footer_offset;
	found.footer_len = h.footer_len;
	found.footer = h.footer;
	if (!header_matches(&h, id, &found))
		r = err_set(e, CKPT_ECORRUPT, "its header is of another checkpoint or rank");
	if (r == 0)
		r = find_footer(f, &h, &found, e);
	s->disk->ops->close(f);
	if (r < 0)
		return err_wrap(e, r, "rank %u", rank);
	/* Places and rank table, as every reader checks them. */
	r = shard_open(s, id, &found, &reader, e);
	if (r < 0)
		return r;
	shard_close(&reader);
	*ret = found;
	return 0;
}

void shard_close(struct shard_reader *r)
{
	if (r->file)
		r->file->disk->ops->close(r->file);
	if (r->cached)
		r->cached->disk->ops->close(r->cached);
	alloc_free(r->footer);
	alloc_free(r->present);
	*r = (struct shard_reader){ 0 };
}

/* ---- Through the page cache ---- */

/* It is the same file: while r->file is locked nobody recycles it, and no other gets its name. */
int shard_open_cached(struct shard_reader *r, const struct checkpoint_id *id, struct err *e)
{
	const struct disk_ops *ops = r->store->disk->ops;
	char path[DISK_PATH_MAX + 1];
	struct disk_file *f = NULL;
	int rc;

	assert(r->file && !r->cached);
	path_shard(path, id, r->table.rank);
	rc = ops->open(r->store->disk, path, DISK_READ | DISK_EXACT, &f);
	if (rc == 0) {
		rc = ops->lock(f, false);
		if (rc < 0)
			ops->close(f);
	}
	if (rc == -ENOENT || rc == -EAGAIN)
		return err_set(e, CKPT_ENOTFOUND, "'%s' went while it was opened", path);
	if (rc < 0)
		return err_code(e, rc, "cannot open '%s' again", path);
	r->cached = f;
	return 0;
}

void shard_uncache(struct store *s, const struct checkpoint_id *id, uint32_t rank)
{
	char path[DISK_PATH_MAX + 1];
	struct disk_file *f = NULL;

	path_shard(path, id, rank);
	if (s->disk->ops->open(s->disk, path, DISK_READ, &f) < 0)
		return; /* it is gone, and its pages with it */
	s->disk->ops->forget(f);
	s->disk->ops->close(f);
}

/* ---- One chunk ---- */

static void first_sentence(void *arg, const char *sentence)
{
	struct err *e = arg;

	if (e && e->code == 0)
		err_set(e, CKPT_ECORRUPT, "%s", sentence);
}

int shard_read_chunk(struct shard_reader *r, uint64_t chunk, struct compressor *c, void *scratch,
		     const void **ret, size_t *ret_len, struct err *e)
{
	const struct rank_table *t = &r->table;
	struct chunk_place p;
	const uint8_t *raw = NULL;
	uint32_t len, stored;
	int rc;

	assert(chunk < r->n_chunks);
	assert((uintptr_t)scratch % DISK_ALIGN == 0);
	p = chunk_place_get(r->places, chunk);
	assert(c || p.encoding == ENCODING_RAW);
	len = chunk_bytes_stored(t->image_len, t->geometry, chunk, p.missing);
	/* The gap behind a last piece is read too: O_DIRECT moves blocks. */
	stored = (uint32_t)round_up(p.stored, shard_block(t->geometry, r->present));
	assert(stored <= t->geometry.chunk);
	rc = stored == 0 ? 0 : r->file->disk->ops->read(r->file, scratch, stored, p.offset);
	if (rc == -ENODATA)
		return err_set(e, CKPT_ECORRUPT, "chunk %" PRIu64 " of rank %u is beyond the end "
						 "of its file", chunk, t->rank);
	if (rc < 0)
		return err_code(e, rc, "cannot read chunk %" PRIu64 " of rank %u", chunk, t->rank);
	rc = chunk_unpack(t, chunk, &p, c, scratch, (uint8_t *)scratch + t->geometry.chunk, &raw,
			  e);
	if (rc < 0)
		return rc;
	err_clear(e);
	if (!BUG(SKIP_LEAF_CHECK) &&
	    chunk_check_leaves(t, chunk, p.missing, raw, first_sentence, e) > 0)
		return CKPT_ECORRUPT;
	*ret = raw;
	*ret_len = len;
	return 0;
}

int shard_check_leaf(struct shard_reader *r, uint64_t leaf, struct err *e)
{
	struct geometry g = r->table.geometry;
	struct compressor *c = NULL;
	const void *bytes;
	void *block = NULL;
	uint8_t *scratch;
	size_t len;
	int rc;

	assert(leaf < r->table.n_leaves);
	if (BUG(CHECK_IN_CACHE) && r->cached)
		return err_set(e, CKPT_ECORRUPT, "leaf %" PRIu64 " is bad in the cache", leaf);
	scratch = alloc_aligned(2u * (size_t)g.chunk + DISK_ALIGN, &block);
	if (!scratch)
		return err_code(e, -ENOMEM, "cannot read leaf %" PRIu64, leaf);
	rc = compressor_new(g.chunk, 1, &c);
	if (rc == 0)
		rc = shard_read_chunk(r, leaf * g.leaf / g.chunk, c, scratch, &bytes, &len, e);
	compressor_free(c);
	alloc_free(block);
	return rc;
}
