/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_stream.h - shard files whose images come piece by piece, many of them side by side, in
 * bounded memory: for who makes a checkpoint without having any rank's image.
 *
 *   begin   as shard_begin()
 *   put     bytes from ascending offsets; a chunk that is whole is digested, compressed if the
 *           store says so, and written by queued transfers while the next ones are filled
 *   sync    all chunks that are whole are durable: what state() says of them may be written down
 *   resume  instead of begin, from such a state, by another process
 *   flush   the last chunk too: then all leaf digests are there, for the rank table
 *   finish  as shard_finish()
 *
 * Buffers are the pool's, a chunk each. Where there are more streams with part of a chunk than
 * buffers, such parts are put to the disk and read back: slow, and never wrong.
 *
 * Thread: one for the pool and all of its streams.
 */
#ifndef STORAGE_SHARD_STREAM_H
#define STORAGE_SHARD_STREAM_H

#include "storage/shard_writer.h"

struct stream_pool;
struct shard_stream;

/* memory: bytes of buffers. -EINVAL names the least. The store's chunk is a multiple of DISK_ALIGN.
 */
MUST_CHECK int stream_pool_new(struct store *s, uint64_t memory, struct stream_pool **ret,
			       struct err *e);
void stream_pool_free(struct stream_pool *p); /* after its streams; NULL is allowed */
/* Bytes that stream_pool_new() needs at least. */
uint64_t stream_pool_least(const struct store *s);

struct stream_file {
	struct checkpoint_id id;
	uint32_t rank;
	uint64_t image_len, table_max; /* as for shard_begin() */
	uint32_t element;              /* as for shard_write_image() */
};

/* What is durable of a stream. The arrays are the stream's. */
struct stream_state {
	uint64_t n_chunks;           /* [0, n_chunks) */
	uint64_t data_end, stored;   /* bytes: end of the last chunk in the file; of all chunks */
	const uint8_t *places;       /* n_chunks of CHUNK_PLACE_BYTES */
	const struct digest *leaves; /* of those chunks */
};

MUST_CHECK int shard_stream_begin(struct stream_pool *p, const struct stream_file *f,
				  struct shard_stream **ret, struct err *e);
/* CKPT_ENOTFOUND: the file is gone; CKPT_ECORRUPT: the state cannot be that of such a file. */
MUST_CHECK int shard_stream_resume(struct stream_pool *p, const struct stream_file *f,
				   const struct stream_state *state, struct shard_stream **ret,
				   struct err *e);
/* Up to where the image has been put. */
uint64_t shard_stream_position(const struct shard_stream *s);
/* offset is not before the position; what lies between is zero. The first error is final. */
MUST_CHECK int shard_stream_put(struct shard_stream *s, uint64_t offset, const void *bytes,
				uint64_t len, struct err *e);
MUST_CHECK int shard_stream_sync(struct shard_stream *s, struct stream_state *ret, struct err *e);
MUST_CHECK int shard_stream_flush(struct shard_stream *s, const struct digest **ret_leaves,
				  struct err *e);
/* Frees it in every case. */
MUST_CHECK int shard_stream_finish(struct shard_stream *s, const void *table, size_t table_len,
				   struct shard_footer *ret, struct err *e);
/* Frees it; the file stays if keep, for shard_stream_resume(). NULL is allowed. */
void shard_stream_close(struct shard_stream *s, bool keep);

#endif
