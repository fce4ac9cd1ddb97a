/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_image.c - the chunks of one image into its file, as deep as the queue is.
 *
 * Raw: the image's pages go to the disk as they are, in transfers of store.transfer bytes; a last
 * piece that fills no block is kept and written with the footer, so that nothing behind the image
 * is read. Compressed: each chunk is packed here, on this thread, into one of a few buffers, while
 * those before it are being written; a chunk that does not pay stays raw.
 *
 * Of a file that lacks leaves the others are written one behind the other: from the image where
 * leaves are blocks, else through buffers.
 *
 * 1. A buffer, and the image, are the disk's until the transfer was reaped: every way out of here
 *    reaps all that is in flight.
 * 2. Every completion's length is checked; the first failure ends the image for good.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>

#include "base/fault.h"
#include "codec/compress.h"
#include "codec/digest.h"
#include "model/load_plan.h"
#include "storage/shard_image.h"

#define GATHERED_AT 64u
#define PACKED_IOS  4u /* compression is slower than any disk: a few buffers keep it busy */

/* Waits for one transfer; it is free again, also when it failed. */
static int reap_one(struct shard_writer *w, struct disk_queue *q)
{
	struct disk_io *io = NULL;
	int r = w->file->disk->ops->reap(q, &io);

	if (r < 0)
		return r;
	assert(io && io->owner == w && w->in_flight > 0);
	w->in_flight--;
	w->free[w->n_free++] = io;
	if (io->result < 0)
		return io->result;
	return (uint32_t)io->result == io->length ? 0 : -EIO;
}

static int reap_all(struct shard_writer *w, struct disk_queue *q)
{
	int first = 0;

	while (w->in_flight > 0) {
		unsigned before = w->in_flight;
		int r = reap_one(w, q);

		if (r < 0 && first == 0)
			first = r;
		if (w->in_flight == before)
			break; /* the queue itself is broken: see shard_abandon() */
	}
	return first;
}

/* Every io is free; the first n of them will be used. */
static void ios_reset(struct shard_writer *w, unsigned n)
{
	assert(w->in_flight == 0 && n <= IMAGE_IOS);
	for (w->n_free = 0; w->n_free < n; w->n_free++)
		w->free[w->n_free] = &w->ios[w->n_free];
}

static int io_get(struct shard_writer *w, struct disk_queue *q, struct disk_io **ret)
{
	int r = 0;

	if (w->n_free == 0)
		r = reap_one(w, q);
	if (r < 0)
		return r;
	*ret = w->free[--w->n_free];
	return 0;
}

/* Writes length bytes of buf to the file; io is in flight, or free again on failure. */
static int io_send(struct shard_writer *w, struct disk_queue *q, struct disk_io *io, void *buf,
		   uint64_t offset, uint32_t length)
{
	int r;

	*io = (struct disk_io){ .file = w->file, .buf = buf, .offset = offset, .length = length,
				.write = true, .owner = w };
	for (;;) {
		r = w->file->disk->ops->submit(q, io);
		if (r == 0) {
			w->in_flight++;
			return 0;
		}
		if (r == -EAGAIN && w->in_flight > 0)
			r = reap_one(w, q); /* the queue is not as deep as we are */
		if (r < 0) {
			w->free[w->n_free++] = io;
			return r;
		}
	}
}

static bool cancelled(const atomic_bool *cancel)
{
	return cancel && atomic_load_explicit(cancel, memory_order_relaxed);
}

/* ---- Raw ---- */

/* Which leaves of chunk i are not to be stored, as its place says it. */
static uint32_t missing_in(const struct shard_writer *w, uint64_t i)
{
	struct geometry g = w->store->geometry;
	uint64_t per_chunk = g.chunk / g.leaf, n = div_up(w->image_len, g.leaf);
	uint64_t end = min_u64((i + 1) * per_chunk, n);
	uint32_t missing = 0;

	for (uint64_t leaf = i * per_chunk; w->present && leaf < end; leaf++)
		if (!leaves_has(w->present, leaf))
			missing |= 1u << (leaf - i * per_chunk);
	return missing;
}

static void place_raw_chunks(struct shard_writer *w)
{
	struct geometry g = w->store->geometry;

	w->data_end = SHARD_HEADER_BYTES;
	for (uint64_t i = 0; i < w->n_chunks; i++) {
		struct chunk_place p = {
			.offset = w->data_end,
			.encoding = ENCODING_RAW,
			.missing = missing_in(w, i),
		};

		p.stored = chunk_bytes_stored(w->image_len, g, i, p.missing);
		chunk_place_put(w->places + i * CHUNK_PLACE_BYTES, &p);
		w->data_end += p.stored;
	}
	w->stored = w->raw_bytes;
	assert(w->data_end == SHARD_HEADER_BYTES + w->raw_bytes);
}

/* Bytes [at, end) of the image, blocks, to the file's next place. */
static int write_run(struct shard_writer *w, struct disk_queue *q, const uint8_t *image,
		     uint64_t at, uint64_t end, const atomic_bool *cancel)
{
	int r = 0;

	while (r == 0 && at < end) {
		uint32_t len = (uint32_t)min_u64(end - at, w->store->transfer);
		struct disk_io *io = NULL;

		r = cancelled(cancel) ? -ECANCELED : io_get(w, q, &io);
		if (r == 0)
			r = io_send(w, q, io, (void *)(uintptr_t)(image + at), w->data_end, len);
		at += len;
		w->data_end += len;
	}
	return r;
}

/* The end of the image fills no block: it goes with the footer. */
static void keep_tail(struct shard_writer *w, const uint8_t *bytes, uint64_t len)
{
	assert(len < DISK_ALIGN);
	w->tail_len = (uint32_t)len;
	if (len)
		memcpy(w->tail, bytes, len);
}

/* Straight from the image: all of it, or leaves that are blocks, run by run. */
static int write_straight(struct shard_writer *w, struct disk_queue *q, const uint8_t *image,
			  const atomic_bool *cancel)
{
	uint64_t leaf = w->store->geometry.leaf, n = div_up(w->image_len, leaf), stop;
	int r = 0;

	assert(!w->present || leaf % DISK_ALIGN == 0);
	ios_reset(w, IMAGE_IOS);
	for (uint64_t i = leaves_next(w->present, 0, n, true); r == 0 && i < n;
	     i = leaves_next(w->present, stop, n, true)) {
		uint64_t end, whole;

		stop = leaves_next(w->present, i, n, false);
		end = min_u64(stop * leaf, w->image_len);
		whole = end & ~(uint64_t)(DISK_ALIGN - 1);
		r = write_run(w, q, image, i * leaf, whole, cancel);
		keep_tail(w, image + whole, end - whole);
	}
	return r;
}

/* Leaves that are no blocks are put together in a buffer. */
static int write_gathered(struct shard_writer *w, struct disk_queue *q, const uint8_t *image,
			  const atomic_bool *cancel)
{
	uint64_t leaf = w->store->geometry.leaf, n = div_up(w->image_len, leaf), fill = 0, whole;
	uint32_t size = (uint32_t)round_up(max_u64(w->store->transfer, leaf), DISK_ALIGN);
	void *block = NULL;
	uint8_t *buffer = alloc_aligned(2 * (uint64_t)size, &block);
	int r = buffer ? 0 : -ENOMEM;

	ios_reset(w, 1); /* there is one buffer */
	for (uint64_t i = leaves_next(w->present, 0, n, true); r == 0 && i < n;
	     i = leaves_next(w->present, i + 1, n, true)) {
		uint64_t len = min_u64(leaf, w->image_len - i * leaf);

		memcpy(buffer + fill, image + i * leaf, len);
		fill += len;
		if (fill < size)
			continue;
		r = write_run(w, q, buffer, 0, size, cancel);
		r = r < 0 ? r : reap_all(w, q);
		fill -= size;
		if (r == 0)
			memcpy(buffer, buffer + size, fill);
	}
	whole = fill & ~(uint64_t)(DISK_ALIGN - 1);
	if (r == 0)
		r = write_run(w, q, buffer, 0, whole, cancel);
	if (r == 0) {
		keep_tail(w, buffer + whole, fill - whole);
		r = reap_all(w, q);
	} else {
		ignore_result(reap_all(w, q)); /* the first failure is the one to tell */
	}
	if (w->in_flight == 0) /* else it is the broken queue's for good */
		alloc_free(block);
	return r;
}

static int write_raw(struct shard_writer *w, struct disk_queue *q, const uint8_t *image,
		     const atomic_bool *cancel)
{
	int r;

	w->data_end = SHARD_HEADER_BYTES;
	if (w->present && w->store->geometry.leaf % DISK_ALIGN != 0)
		r = write_gathered(w, q, image, cancel);
	else
		r = write_straight(w, q, image, cancel);
	if (r < 0) {
		ignore_result(reap_all(w, q));
		return r;
	}
	assert(w->data_end + w->tail_len == SHARD_HEADER_BYTES + w->raw_bytes);
	place_raw_chunks(w);
	return reap_all(w, q);
}

/* ---- Compressed ---- */

struct packer {
	struct compressor *compressor;
	uint32_t element;
	uint32_t buffer_len; /* of each of PACKED_IOS, aligned */
	uint8_t *buffers;
	uint8_t *gathered; /* one chunk without its missing leaves */
	void *block;
};

static void packer_fini(struct packer *p)
{
	compressor_free(p->compressor);
	alloc_free(p->block);
}

static int packer_init(struct packer *p, const struct store *s, uint32_t element)
{
	*p = (struct packer){ .element = element };
	p->buffer_len = (uint32_t)round_up(max_u64(compressor_bound(s->geometry.chunk),
						   s->geometry.chunk),
					   DISK_ALIGN);
	p->buffers = alloc_aligned((uint64_t)(PACKED_IOS + 1) * p->buffer_len + DISK_ALIGN,
				   &p->block);
	if (!p->buffers)
		return -ENOMEM;
	p->gathered = p->buffers + (size_t)PACKED_IOS * p->buffer_len + GATHERED_AT;
	assert(GATHERED_AT + s->geometry.chunk <= p->buffer_len + DISK_ALIGN);
	return compressor_new(s->geometry.chunk, s->compression, &p->compressor);
}

/*
 * The leaves of a chunk that are stored, one behind the other. That buffer is no block, so that
 * chunk_pack() copies what stays raw: it is used again while that is being written.
 */
static const uint8_t *gather_chunk(const struct shard_writer *w, struct packer *p,
				   const uint8_t *image, uint64_t i, uint32_t missing)
{
	struct geometry g = w->store->geometry;
	uint64_t at = i * g.chunk, end = min_u64(at + g.chunk, w->image_len);
	uint8_t *to = p->gathered;

	if (missing == 0)
		return image + at;
	for (uint32_t bit = 0; at < end; at += g.leaf, bit++) {
		uint64_t len = min_u64(g.leaf, end - at);

		if (missing >> bit & 1)
			continue;
		memcpy(to, image + at, len);
		to += len;
	}
	return p->gathered;
}

void *chunk_pack(struct compressor *c, const uint8_t *raw, uint32_t raw_len, uint32_t element,
		 uint8_t *buffer, uint32_t buffer_len, struct chunk_place *place)
{
	size_t len = 0, padded;
	int encoding = compress_chunk(c, raw, raw_len, element, buffer, buffer_len, &len);

	*place = (struct chunk_place){ .encoding = (uint16_t)encoding, .stored = raw_len };
	if (encoding == ENCODING_RAW) {
		if (((uintptr_t)raw | raw_len) % DISK_ALIGN == 0)
			return (void *)(uintptr_t)raw;
		memcpy(buffer, raw, raw_len);
		len = raw_len;
	} else {
		place->stored = (uint32_t)len;
		place->digest = digest_of(buffer, len);
	}
	padded = round_up(len, DISK_ALIGN);
	assert(padded <= buffer_len);
	memset(buffer + len, 0, padded - len);
	return buffer;
}

static int write_chunk(struct shard_writer *w, struct disk_queue *q, struct packer *p,
		       const uint8_t *image, uint64_t i)
{
	uint32_t missing = missing_in(w, i), padded, raw;
	struct chunk_place place = {.missing = missing};
	struct disk_io *io = NULL;
	void *bytes;
	int r;

	raw = chunk_bytes_stored(w->image_len, w->store->geometry, i, missing);
	w->data_end = round_up(w->data_end, DISK_ALIGN);
	if (raw == 0) {
		place.offset = w->data_end;
		chunk_place_put(w->places + i * CHUNK_PLACE_BYTES, &place);
		return 0;
	}
	r = io_get(w, q, &io);
	if (r < 0)
		return r;
	bytes = chunk_pack(p->compressor, gather_chunk(w, p, image, i, missing), raw, p->element,
			   p->buffers + (size_t)(io - w->ios) * p->buffer_len, p->buffer_len,
			   &place);
	place.offset = w->data_end;
	place.missing = missing;
	padded = (uint32_t)round_up(place.stored, DISK_ALIGN);
	chunk_place_put(w->places + i * CHUNK_PLACE_BYTES, &place);
	w->stored += place.stored;
	w->data_end = place.offset + place.stored;
	return io_send(w, q, io, bytes, place.offset, padded);
}

static int write_packed(struct shard_writer *w, struct disk_queue *q, const uint8_t *image,
			uint32_t element, const atomic_bool *cancel)
{
	struct packer p;
	int r = packer_init(&p, w->store, element), last;

	ios_reset(w, PACKED_IOS);
	w->data_end = SHARD_HEADER_BYTES;
	for (uint64_t i = 0; r == 0 && i < w->n_chunks; i++)
		r = cancelled(cancel) ? -ECANCELED : write_chunk(w, q, &p, image, i);
	last = reap_all(w, q);
	if (w->in_flight == 0) /* else they are the broken queue's for good */
		packer_fini(&p);
	return r < 0 ? r : last;
}

int shard_write_image(struct shard_writer *w, struct disk_queue *q, const void *image,
		      uint32_t element, const atomic_bool *cancel, struct err *e)
{
	int r;

	assert(!w->written && w->in_flight == 0);
	assert((uintptr_t)image % DISK_ALIGN == 0);
	if (cancelled(cancel))
		r = -ECANCELED;
	else if (w->store->compression)
		r = write_packed(w, q, image, element, cancel);
	else
		r = write_raw(w, q, image, cancel);
	if (r == 0 && FAULT(SHARD_DATA))
		r = -EIO;
	if (r == -ECANCELED)
		return err_set(e, r, "writing of '%s' was cancelled", w->path);
	if (r < 0)
		return err_code(e, r, "cannot write %" PRIu64 " bytes of chunks to '%s'",
				w->raw_bytes, w->path);
	w->written = true;
	return 0;
}
