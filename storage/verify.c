/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verify.c - reads every byte of one shard file again and compares it with what the root fixes.
 *
 * Header, footer and tables were checked by shard_open(). Here: each chunk with the gap behind it,
 * a few reads deep, digests of stored and of raw bytes, gaps zero. So every byte up to the end of
 * the footer is covered. A chunk that cannot be read counts as bad and the rest goes on.
 *
 * Thread: one; the queue is its own. Memory: VERIFY_DEPTH * (chunk + a block) + one chunk.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "codec/compress.h"
#include "storage/disk_format.h"
#include "storage/shard_check.h"
#include "storage/shard_file.h"

#define VERIFY_DEPTH 8u

struct verify {
	struct shard_reader *reader;
	const struct verify_hooks *hooks;
	struct compressor *compressor; /* made for the first packed chunk */
	struct disk_queue *queue;
	uint8_t *unpacked;             /* chunk bytes */
	uint64_t buffer_len;
	uint64_t next, end, bad; /* next: chunk to be read; end: the first that is not */
	unsigned in_flight;
	struct disk_io ios[VERIFY_DEPTH];
	uint64_t chunks[VERIFY_DEPTH]; /* what each io reads */
};

static void report(void *arg, const char *sentence)
{
	const struct verify_hooks *h = ((struct verify *)arg)->hooks;

	if (h && h->report)
		h->report(h->arg, sentence);
}

static uint64_t leaves_of(const struct shard_reader *r, uint64_t chunk)
{
	const struct rank_table *t = &r->table;
	uint32_t missing = chunk_place_get(r->places, chunk).missing;

	return div_up(chunk_bytes_stored(t->image_len, t->geometry, chunk, missing),
		      t->geometry.leaf);
}

/* All leaves of a chunk are lost for the same reason. */
static void chunk_is_bad(struct verify *v, uint64_t chunk, const char *sentence)
{
	v->bad += max_u64(leaves_of(v->reader, chunk), 1);
	report(v, sentence);
}

/* Where the chunk and the gap behind it end. */
static uint64_t end_of(const struct shard_reader *r, uint64_t chunk)
{
	return chunk + 1 < r->n_chunks ? chunk_place_get(r->places, chunk + 1).offset
				       : r->footer_offset;
}

/* The next chunk of which anything is stored here; false: there is none. */
static bool more_chunks(struct verify *v)
{
	const struct shard_reader *r = v->reader;

	while (v->next < v->end && chunk_place_get(r->places, v->next).offset == end_of(r, v->next))
		v->next++;
	return v->next < v->end;
}

static int start_read(struct verify *v, unsigned i)
{
	struct shard_reader *r = v->reader;
	struct chunk_place p = chunk_place_get(r->places, v->next);
	uint64_t end = end_of(r, v->next);
	int rc;

	assert(end - p.offset <= v->buffer_len);
	v->ios[i].file = r->file;
	v->ios[i].offset = p.offset;
	v->ios[i].length = (uint32_t)(end - p.offset);
	v->chunks[i] = v->next++;
	rc = r->file->disk->ops->submit(v->queue, &v->ios[i]);
	if (rc == 0)
		v->in_flight++;
	return rc;
}

static int check_chunk(struct verify *v, const struct disk_io *io, uint64_t chunk)
{
	const struct rank_table *t = &v->reader->table;
	struct chunk_place p = chunk_place_get(v->reader->places, chunk);
	const uint8_t *raw = NULL;
	struct err e = { 0 };
	int r;

	if (io->result != (int)io->length) {
		err_code(&e, io->result < 0 ? io->result : CKPT_ECORRUPT,
			 "cannot read chunk %" PRIu64 " of rank %u", chunk, t->rank);
		chunk_is_bad(v, chunk, e.text);
		return 0;
	}
	if (p.encoding != ENCODING_RAW && !v->compressor) {
		r = compressor_new(t->geometry.chunk, 1, &v->compressor);
		if (r < 0)
			return r;
	}
	if (!bytes_are_zero((const uint8_t *)io->buf + p.stored, io->length - p.stored)) {
		err_set(&e, CKPT_ECORRUPT,
			"the gap behind chunk %" PRIu64 " of rank %u is not zero", chunk, t->rank);
		report(v, e.text);
		v->bad++;
	}
	r = chunk_unpack(t, chunk, &p, v->compressor, io->buf, v->unpacked, &raw, &e);
	if (r == CKPT_ECORRUPT)
		chunk_is_bad(v, chunk, e.text);
	else if (r == 0)
		v->bad += chunk_check_leaves(t, chunk, p.missing, raw, report, v);
	return r == CKPT_ECORRUPT ? 0 : r;
}

static int end_read(struct verify *v, uint64_t *bytes, unsigned *ret_i)
{
	const struct verify_hooks *h = v->hooks;
	struct disk_io *io = NULL;
	unsigned i;
	int r = v->reader->file->disk->ops->reap(v->queue, &io);

	if (r < 0)
		return r;
	assert(io >= v->ios && io < v->ios + VERIFY_DEPTH && v->in_flight > 0);
	v->in_flight--;
	i = (unsigned)(io - v->ios);
	r = check_chunk(v, io, v->chunks[i]);
	*bytes += io->length;
	if (r == 0 && h && h->progress && h->progress(h->arg, *bytes) != 0)
		r = -ECANCELED;
	*ret_i = i;
	return r;
}

static int read_all(struct verify *v)
{
	uint64_t bytes = 0;
	unsigned i;
	int r = 0;

	for (i = 0; r == 0 && i < VERIFY_DEPTH && more_chunks(v); i++)
		r = start_read(v, i);
	while (r == 0 && v->in_flight > 0) {
		r = end_read(v, &bytes, &i);
		if (r == 0 && more_chunks(v))
			r = start_read(v, i);
	}
	return r;
}

int shard_verify(struct shard_reader *r, const struct verify_hooks *h, uint64_t *ret_bad,
		 struct err *e)
{
	return shard_verify_some(r, 0, r->n_chunks, h, ret_bad, e);
}

int shard_verify_some(struct shard_reader *r, uint64_t first, uint64_t n,
		      const struct verify_hooks *h, uint64_t *ret_bad, struct err *e)
{
	struct verify v = {.reader = r, .hooks = h, .next = min_u64(first, r->n_chunks)};
	struct disk *d = r->file->disk;
	void *block = NULL;
	uint8_t *buffers;
	int rc = -ENOMEM;

	v.end = v.next + min_u64(n, r->n_chunks - v.next);
	v.buffer_len = round_up(r->table.geometry.chunk, DISK_ALIGN) + DISK_ALIGN;
	buffers = alloc_aligned(VERIFY_DEPTH * v.buffer_len + r->table.geometry.chunk, &block);
	if (buffers) {
		for (unsigned i = 0; i < VERIFY_DEPTH; i++)
			v.ios[i].buf = buffers + i * v.buffer_len;
		v.unpacked = buffers + VERIFY_DEPTH * v.buffer_len;
		rc = d->ops->queue_open(d, VERIFY_DEPTH, &v.queue);
	}
	if (rc == 0) {
		rc = read_all(&v);
		d->ops->queue_close(v.queue); /* reaps what is left: the buffers are ours again */
	}
	compressor_free(v.compressor);
	alloc_free(block);
	if (rc < 0)
		return err_code(e, rc, "verification of rank %u ended early", r->table.rank);
	*ret_bad = v.bad;
	return 0;
}
