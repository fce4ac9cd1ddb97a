/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compress.h - zstd per chunk, after a split into byte planes for 2- and 4-byte elements. See
 * zstd_stream.h for streams.
 *
 * Kept only if it pays (stored <= 15/16 of raw). The raw size is known from the table before
 * anything is decompressed; the window is bounded by the chunk; a stored digest is checked before.
 */
#ifndef CODEC_COMPRESS_H
#define CODEC_COMPRESS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum encoding { ENCODING_RAW = 0, ENCODING_ZSTD = 1, ENCODING_ZSTD_P2 = 2, ENCODING_ZSTD_P4 = 3 };

struct compressor; /* one thread's contexts and scratch for chunks up to chunk_max bytes */
MUST_CHECK int compressor_new(size_t chunk_max, int level, struct compressor **ret);
void compressor_free(struct compressor *c);
/* The longest result of compress_chunk() that is not raw: what dst needs. */
size_t compressor_bound(size_t raw);

/* element: bytes per element of most of the chunk (1, 2, 4, 8...). Returns the encoding used and
 * sets *ret_len; ENCODING_RAW: dst holds nothing of use, store src itself. */
int compress_chunk(struct compressor *c, const void *src, size_t len, uint32_t element, void *dst,
		   size_t dst_cap, size_t *ret_len);
/* dst_len is the raw length from the table; anything else is CKPT_ECORRUPT, and dst is rubbish. */
MUST_CHECK int decompress_chunk(struct compressor *c, int encoding, const void *src, size_t len,
				void *dst, size_t dst_len);

#endif
