/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_stream.c - shard files whose images come piece by piece.
 *
 *   buffer:  FREE -> FILLING (one stream's current chunk) -> WRITING -> FREE
 *            FILLING -> FREE when it is spilled: its stream reads it back when it goes on
 *
 * 1. A buffer is the disk's until its transfer was reaped. All transfers are reaped before a
 *    stream syncs, ends, or is closed.
 * 2. Every completion's length is checked; the first failure of a stream is final for it.
 * 3. A chunk's place and digests are fixed when it is handed to the disk, and told to others only
 *    after shard_stream_sync() returned 0.
 * 4. What is spilled lies where the chunk will lie, inside the file's own space, and is written
 *    over by it.
 */
#include <config.h>

#include "storage/shard_stream.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>

#include "base/alloc.h"
#include "base/text.h"
#include "codec/compress.h"
#include "codec/copy.h"
#include "codec/digest.h"
#include "storage/shard_image.h"

#define BUFFERS_LEAST 4u
#define BUFFERS_MAX   64u
#define NO_BUFFER     UINT32_MAX

enum buffer_state { BUFFER_FREE, BUFFER_FILLING, BUFFER_WRITING };

struct buffer {
	struct disk_io io;
	uint8_t *bytes;
	enum buffer_state state;
	struct shard_stream *owner; /* while it is not free */
	uint64_t used;              /* pool.now when it was filled last */
};

struct stream_pool {
	struct store *store;
	struct disk_queue *queue;
	struct compressor *compressor; /* NULL: nothing is compressed */
	uint32_t buffer_len;
	struct buffer *buffers;
	uint32_t n_buffers, in_flight;
	uint64_t now;
	void *block;
};

struct shard_stream {
	struct stream_pool *pool;
	struct shard_writer *writer;
	uint32_t element;
	struct digest *leaves;
	uint64_t chunk;  /* being filled */
	uint32_t filled; /* bytes of it */
	uint32_t buffer; /* its bytes, or NO_BUFFER: filled is 0, or it was spilled */
	uint32_t in_flight;
	int error; /* the first; final */
};

/* ---- Pool ---- */

static uint32_t buffer_bytes(const struct store *s)
{
	uint64_t chunk = s->geometry.chunk;

	if (s->compression)
		chunk = max_u64(chunk, compressor_bound(chunk));
	return (uint32_t)round_up(chunk, DISK_ALIGN);
}

uint64_t stream_pool_least(const struct store *s)
{
	return (uint64_t)BUFFERS_LEAST * buffer_bytes(s);
}

static int make_pool(struct stream_pool *p)
{
	const struct store *s = p->store;
	uint8_t *bytes = alloc_aligned((uint64_t)p->n_buffers * p->buffer_len, &p->block);
	int r;

	p->buffers = alloc_array(p->n_buffers, sizeof(*p->buffers));
	if (!bytes || !p->buffers)
		return -ENOMEM;
	for (uint32_t i = 0; i < p->n_buffers; i++)
		p->buffers[i].bytes = bytes + (uint64_t)i * p->buffer_len;
	r = s->disk->ops->queue_open(s->disk, p->n_buffers, &p->queue);
	if (r == 0 && s->compression)
		r = compressor_new(s->geometry.chunk, s->compression, &p->compressor);
	return r;
}

int stream_pool_new(struct store *s, uint64_t memory, struct stream_pool **ret, struct err *e)
{
	struct stream_pool *p = alloc_zero(sizeof(*p));
	char least[TEXT_SIZE_MAX], given[TEXT_SIZE_MAX];
	int r;

	assert(s->geometry.chunk % DISK_ALIGN == 0);
	if (!p)
		return err_code(e, -ENOMEM, "make buffers for shard files");
	p->store = s;
	p->buffer_len = buffer_bytes(s);
	p->n_buffers = (uint32_t)min_u64(memory / p->buffer_len, BUFFERS_MAX);
	if (p->n_buffers < BUFFERS_LEAST)
		r = err_set(e, -EINVAL,
			    "shard files are written with %s of buffers at least, not %s",
			    text_size(least, stream_pool_least(s)), text_size(given, memory));
	else if ((r = make_pool(p)) < 0)
		err_code(e, r, "make %s of buffers for shard files", text_size(given, memory));
	if (r < 0) {
		stream_pool_free(p);
		return r;
	}
	*ret = p;
	return 0;
}

void stream_pool_free(struct stream_pool *p)
{
	if (!p)
		return;
	if (p->queue)
		p->store->disk->ops->queue_close(p->queue);
	compressor_free(p->compressor);
	alloc_free(p->buffers);
	alloc_free(p->block);
	alloc_free(p);
}

static struct buffer *buffer_of(const struct shard_stream *s)
{
	return s->buffer == NO_BUFFER ? NULL : &s->pool->buffers[s->buffer];
}

static void give_back(struct buffer *b)
{
	b->state = BUFFER_FREE;
	b->owner = NULL;
}

/* (2) */
static int reap_one(struct stream_pool *p)
{
	struct disk_io *io = NULL;
	int r = p->store->disk->ops->reap(p->queue, &io);
	struct shard_stream *s;
	struct buffer *b;

	if (r < 0)
		return r;
	assert(io && p->in_flight > 0);
	b = io->owner;
	s = b->owner;
	assert(b->state == BUFFER_WRITING && s->in_flight > 0);
	p->in_flight--;
	s->in_flight--;
	give_back(b);
	if (s->error == 0 && io->result < 0)
		s->error = io->result;
	else if (s->error == 0 && (uint32_t)io->result != io->length)
		s->error = -EIO;
	return 0;
}

static int reap_stream(struct shard_stream *s)
{
	int r = 0;

	while (s->in_flight > 0 && r == 0)
		r = reap_one(s->pool);
	if (r < 0 && s->error == 0)
		s->error = r;
	return s->error;
}

/* Where the chunk that is being filled will lie. */
static uint64_t chunk_offset(const struct shard_stream *s)
{
	if (s->pool->compressor)
		return round_up(s->writer->data_end, DISK_ALIGN);
	return SHARD_HEADER_BYTES + s->chunk * s->pool->store->geometry.chunk;
}

/* (4); its own chunks that are in flight lie before it. */
static int spill(struct stream_pool *p)
{
	struct buffer *oldest = NULL;
	struct shard_stream *s;
	size_t len;
	int r;

	for (uint32_t i = 0; i < p->n_buffers; i++)
		if (p->buffers[i].state == BUFFER_FILLING &&
		    (!oldest || p->buffers[i].used < oldest->used))
			oldest = &p->buffers[i];
	assert(oldest);
	s = oldest->owner;
	len = round_up(s->filled, DISK_ALIGN);
	memset(oldest->bytes + s->filled, 0, len - s->filled);
	r = p->store->disk->ops->write(s->writer->file, oldest->bytes, len, chunk_offset(s));
	if (r < 0 && s->error == 0)
		s->error = r;
	s->buffer = NO_BUFFER;
	give_back(oldest);
	return 0; /* whoever asked for the buffer has it */
}

static int take_buffer(struct stream_pool *p, struct shard_stream *s, uint32_t *ret)
{
	int r = 0;

	for (;;) {
		for (uint32_t i = 0; i < p->n_buffers; i++) {
			struct buffer *b = &p->buffers[i];

			if (b->state != BUFFER_FREE)
				continue;
			b->state = BUFFER_FILLING;
			b->owner = s;
			b->used = ++p->now;
			*ret = i;
			return 0;
		}
		r = p->in_flight > 0 ? reap_one(p) : spill(p);
		if (r < 0)
			return r;
	}
}

/* ---- One stream: begin ---- */

static int stream_new(struct stream_pool *p, const struct stream_file *f, struct shard_stream **ret,
		      struct err *e)
{
	struct shard_stream *s = alloc_zero(sizeof(*s));

	if (s)
		s->leaves = alloc_array(div_up(f->image_len, p->store->geometry.leaf),
					sizeof(*s->leaves));
	if (!s || !s->leaves) {
		alloc_free(s);
		return err_code(e, -ENOMEM, "write the file of rank %u", f->rank);
	}
	s->pool = p;
	s->element = f->element;
	s->buffer = NO_BUFFER;
	*ret = s;
	return 0;
}

int shard_stream_begin(struct stream_pool *p, const struct stream_file *f,
		       struct shard_stream **ret, struct err *e)
{
	struct shard_stream *s = NULL;
	int r = stream_new(p, f, &s, e);

	if (r == 0)
		r = shard_begin(p->store, &f->id, f->rank, f->image_len, f->table_max, &s->writer,
				e);
	if (r < 0) {
		shard_stream_close(s, true);
		return r;
	}
	s->writer->data_end = SHARD_HEADER_BYTES;
	*ret = s;
	return 0;
}

static int take_state(struct shard_stream *s, const struct stream_state *state, struct err *e)
{
	struct shard_writer *w = s->writer;
	struct geometry g = s->pool->store->geometry;
	uint64_t bytes = w->image_len;

	if (state->n_chunks < w->n_chunks)
		bytes = state->n_chunks * g.chunk;
	/* No chunk takes more than it has raw: what follows fits into what is reserved only so. */
	if (state->n_chunks > w->n_chunks || state->data_end < SHARD_HEADER_BYTES ||
	    state->data_end > SHARD_HEADER_BYTES + bytes)
		return err_set(e, CKPT_ECORRUPT, "what was written down of '%s' cannot be",
			       w->path);
	if (state->n_chunks) {
		memcpy(w->places, state->places, state->n_chunks * CHUNK_PLACE_BYTES);
		memcpy(s->leaves, state->leaves, div_up(bytes, g.leaf) * sizeof(*s->leaves));
	}
	w->data_end = state->data_end;
	w->stored = state->stored;
	s->chunk = state->n_chunks;
	return 0;
}

int shard_stream_resume(struct stream_pool *p, const struct stream_file *f,
			const struct stream_state *state, struct shard_stream **ret, struct err *e)
{
	struct shard_stream *s = NULL;
	int r = stream_new(p, f, &s, e);

	if (r == 0)
		r = shard_resume(p->store, &f->id, f->rank, f->image_len, f->table_max, &s->writer,
				 e);
	if (r == 0)
		r = take_state(s, state, e);
	if (r < 0) {
		shard_stream_close(s, true);
		return r;
	}
	*ret = s;
	return 0;
}

uint64_t shard_stream_position(const struct shard_stream *s)
{
	return min_u64(s->chunk * s->pool->store->geometry.chunk + s->filled, s->writer->image_len);
}

/* ---- Put ---- */

static void digest_chunk(struct shard_stream *s, const uint8_t *bytes, uint32_t len)
{
	struct geometry g = s->pool->store->geometry;
	uint64_t leaf = s->chunk * (g.chunk / g.leaf);

	for (uint32_t at = 0; at < len; at += g.leaf, leaf++)
		s->leaves[leaf] = digest_of(bytes + at, min_u64(g.leaf, len - at));
}

static int send(struct shard_stream *s, struct buffer *b, uint64_t offset, uint32_t length)
{
	struct stream_pool *p = s->pool;
	const struct disk_ops *ops = p->store->disk->ops;
	int r;

	b->io = (struct disk_io){.file = s->writer->file,
				 .buf = b->bytes,
				 .offset = offset,
				 .length = length,
				 .write = true,
				 .owner = b};
	while ((r = ops->submit(p->queue, &b->io)) == -EAGAIN && p->in_flight > 0) {
		r = reap_one(p); /* the queue is not as deep as we are */
		if (r < 0)
			break;
	}
	if (r < 0) {
		give_back(b);
		return r;
	}
	b->state = BUFFER_WRITING;
	p->in_flight++;
	s->in_flight++;
	return 0;
}

/* Which buffer has the bytes to write: packed, or as they are. */
static int pack(struct shard_stream *s, struct buffer **b, uint32_t len, struct chunk_place *place)
{
	struct stream_pool *p = s->pool;
	struct buffer *packed;
	uint32_t i;
	int r;

	if (!p->compressor) {
		*place = (struct chunk_place){.encoding = ENCODING_RAW, .stored = len};
		return 0;
	}
	(*b)->used = ++p->now; /* the last to be spilled */
	r = take_buffer(p, s, &i);
	if (r < 0)
		return r;
	packed = &p->buffers[i];
	if (chunk_pack(p->compressor, (*b)->bytes, len, s->element, packed->bytes, p->buffer_len,
		       place) == packed->bytes) {
		give_back(*b);
		*b = packed;
	} else {
		give_back(packed);
	}
	return 0;
}

/* The chunk is whole: (3). */
static int end_chunk(struct shard_stream *s)
{
	struct shard_writer *w = s->writer;
	uint32_t len = s->filled, padded = (uint32_t)round_up(len, DISK_ALIGN);
	struct buffer *b = buffer_of(s);
	struct chunk_place place;
	int r;

	assert(b && b->state == BUFFER_FILLING && len > 0);
	assert(len == chunk_length(w->image_len, s->pool->store->geometry, s->chunk));
	digest_chunk(s, b->bytes, len);
	memset(b->bytes + len, 0, padded - len);
	r = pack(s, &b, len, &place);
	if (r < 0)
		return r;
	place.offset = chunk_offset(s);
	s->buffer = NO_BUFFER;
	s->filled = 0;
	chunk_place_put(w->places + s->chunk++ * CHUNK_PLACE_BYTES, &place);
	w->stored += place.stored;
	w->data_end = place.offset + place.stored;
	return send(s, b, place.offset, (uint32_t)round_up(place.stored, DISK_ALIGN));
}

/* Has a buffer with what the chunk has so far. */
static int go_on(struct shard_stream *s)
{
	struct stream_pool *p = s->pool;
	struct buffer *b;
	int r;

	if (s->buffer != NO_BUFFER)
		return 0;
	r = take_buffer(p, s, &s->buffer);
	if (r < 0 || s->filled == 0)
		return r;
	b = buffer_of(s);
	return p->store->disk->ops->read(s->writer->file, b->bytes, round_up(s->filled, DISK_ALIGN),
					 chunk_offset(s));
}

/* bytes NULL: zeros. */
static int put(struct shard_stream *s, const uint8_t *bytes, uint64_t len)
{
	struct geometry g = s->pool->store->geometry;
	int r = s->error;

	while (len > 0 && r == 0) {
		uint32_t whole = chunk_length(s->writer->image_len, g, s->chunk);
		uint32_t n = (uint32_t)min_u64(len, whole - s->filled);

		r = go_on(s);
		if (r < 0)
			break;
		if (bytes)
			copy_large(buffer_of(s)->bytes + s->filled, bytes, n);
		else
			memset(buffer_of(s)->bytes + s->filled, 0, n);
		buffer_of(s)->used = ++s->pool->now;
		s->filled += n;
		len -= n;
		bytes = bytes ? bytes + n : NULL;
		if (s->filled == whole)
			r = end_chunk(s);
		if (r == 0)
			r = s->error;
	}
	if (r < 0 && s->error == 0)
		s->error = r;
	return r;
}

static int say_write(const struct shard_stream *s, int r, struct err *e)
{
	return r < 0 ? err_code(e, r, "cannot write '%s'", s->writer->path) : 0;
}

int shard_stream_put(struct shard_stream *s, uint64_t offset, const void *bytes, uint64_t len,
		     struct err *e)
{
	uint64_t position = shard_stream_position(s), end;
	int r;

	if (offset < position || !size_add(offset, len, &end) || end > s->writer->image_len)
		return err_set(e, -EINVAL,
			       "bytes %" PRIu64 " to %" PRIu64 " come after %" PRIu64
			       " or lie beyond the end of '%s' at %" PRIu64,
			       offset, offset + len, position, s->writer->path,
			       s->writer->image_len);
	r = put(s, NULL, offset - position);
	if (r == 0)
		r = put(s, bytes, len);
	return say_write(s, r, e);
}

/* ---- End ---- */

int shard_stream_sync(struct shard_stream *s, struct stream_state *ret, struct err *e)
{
	struct shard_writer *w = s->writer;
	int r = reap_stream(s);

	if (r == 0)
		r = s->error = s->pool->store->disk->ops->sync(w->file);
	if (r < 0)
		return err_code(e, r, "cannot make '%s' durable", w->path);
	*ret = (struct stream_state){.n_chunks = s->chunk,
				     .data_end = w->data_end,
				     .stored = w->stored,
				     .places = w->places,
				     .leaves = s->leaves};
	return 0;
}

int shard_stream_flush(struct shard_stream *s, const struct digest **ret_leaves, struct err *e)
{
	int r = put(s, NULL, s->writer->image_len - shard_stream_position(s));

	if (r == 0)
		r = reap_stream(s);
	if (r == 0)
		*ret_leaves = s->leaves;
	return say_write(s, r, e);
}

static void stream_free(struct shard_stream *s)
{
	struct buffer *b = buffer_of(s);

	assert(s->in_flight == 0);
	if (b)
		give_back(b);
	alloc_free(s->leaves);
	alloc_free(s);
}

int shard_stream_finish(struct shard_stream *s, const void *table, size_t table_len,
			struct shard_footer *ret, struct err *e)
{
	struct shard_writer *w = s->writer;
	int r = s->error;

	assert(r < 0 || (s->chunk == w->n_chunks && s->in_flight == 0));
	if (r < 0) {
		err_code(e, r, "cannot write '%s'", w->path);
		shard_stream_close(s, false);
		return r;
	}
	stream_free(s);
	w->written = true;
	return shard_finish(w, table, table_len, ret, e);
}

void shard_stream_close(struct shard_stream *s, bool keep)
{
	if (!s)
		return;
	ignore_result(reap_stream(s)); /* it is not wanted any more */
	if (s->in_flight > 0)
		return; /* the queue is broken: its buffers, and this, stay the disk's */
	if (s->writer && keep)
		shard_forget(s->writer);
	else
		shard_abandon(s->writer);
	stream_free(s);
}
