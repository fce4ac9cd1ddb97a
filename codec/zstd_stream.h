/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zstd_stream.h - a stream of bytes of unknown length, compressed while it is made and read while
 * it comes; what is in between is what zstd(1) reads and writes.
 *
 * No files here: bytes come from a source and go to a sink. One thread per stream.
 */
#ifndef CODEC_ZSTD_STREAM_H
#define CODEC_ZSTD_STREAM_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* Takes all len bytes; 0 or a negative error. */
typedef int zstd_sink_fn(void *arg, const void *buf, size_t len);
/* Up to size bytes into buf: how many, 0 at the end, or a negative error. */
typedef long zstd_source_fn(void *arg, void *buf, size_t size);

struct zstd_out;
MUST_CHECK int zstd_out_new(int level, zstd_sink_fn *sink, void *arg, struct zstd_out **ret);
MUST_CHECK int zstd_out_write(struct zstd_out *z, const void *buf, size_t len);
/* All written so far goes to the sink in a form that can be read; end: the frame ends, and the
 * next write begins another. After an error only zstd_out_free() is allowed. */
MUST_CHECK int zstd_out_flush(struct zstd_out *z, bool end);
void zstd_out_free(struct zstd_out *z); /* writes nothing; NULL is allowed */

struct zstd_in;
/* head: bytes that the caller took from the source already, head_len <= ZSTD_HEAD_MAX. */
#define ZSTD_HEAD_MAX 4096
MUST_CHECK int zstd_in_new(const void *head, size_t head_len, zstd_source_fn *source, void *arg,
			   struct zstd_in **ret);
/* As zstd_source_fn. Frames may follow each other. CKPT_ECORRUPT: not zstd, or it ends within a
 * frame (what came before has been given), or the checksum at a frame's end does not match. Its
 * window, and so its memory, is at most 128 MiB. */
MUST_CHECK long zstd_in_read(struct zstd_in *z, void *buf, size_t size);
void zstd_in_free(struct zstd_in *z);
bool zstd_is_frame(const void *head, size_t len);

#endif
