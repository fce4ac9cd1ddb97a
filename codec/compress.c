/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compress.c - one zstd frame per chunk, over byte planes where the elements have 2 or 4 bytes.
 *
 * Floats of a model hardly repeat: what compresses is the skewed distribution of their exponents,
 * and that the entropy coder gets without the search for matches. So at level 1 planes are searched
 * with long strides (LIGHT_SEARCH) and literals are always entropy-coded, which on Gaussian weights
 * is 2.3 times as fast and also a little denser. Bytes that are not floats get zstd as it comes.
 *
 * Invariants:
 * (1) What is kept is at most 15/16 of the raw chunk; otherwise the chunk stays raw.
 * (2) A stored chunk is exactly one frame that says its own raw length, and decompression demands
 *     both: the length is the table's before a byte is decoded, and nothing follows the frame.
 * (3) Nothing is written outside [dst, dst + dst_len), whatever the input.
 *
 * Failure modes: a chunk that cannot be compressed, for whatever reason, is stored raw, so saving
 * cannot fail here; a chunk that cannot be decompressed is CKPT_ECORRUPT, and dst holds rubbish.
 * Thread: a compressor belongs to one thread at a time. zstd keeps memory of its own beside ours.
 */
#include <config.h>

#include "codec/compress.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#define ZSTD_STATIC_LINKING_ONLY /* for ZSTD_c_literalCompressionMode alone */
#include <zstd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "codec/planes.h"

#define LIGHT_SEARCH 64 /* bytes that the search for matches steps over */

struct compressor {
	ZSTD_CCtx *cctx;
	ZSTD_DCtx *dctx;
	uint8_t *planes; /* chunk_max bytes: a chunk sorted into planes, on either way */
	size_t chunk_max;
	bool light; /* planes are searched with long strides */
};

/* The most that is worth keeping of raw bytes (1). */
static size_t worth(size_t raw)
{
	return raw - raw / 16 - (raw % 16 != 0);
}

size_t compressor_bound(size_t raw)
{
	return worth(raw);
}

static bool set(ZSTD_CCtx *cctx, ZSTD_cParameter what, int value)
{
	return !ZSTD_isError(ZSTD_CCtx_setParameter(cctx, what, value));
}

/* Before each frame: a context whose last frame did not fit refuses parameters until its reset. */
static bool set_search(struct compressor *c, bool light)
{
	return !ZSTD_isError(ZSTD_CCtx_reset(c->cctx, ZSTD_reset_session_only)) &&
	       set(c->cctx, ZSTD_c_literalCompressionMode, light ? ZSTD_ps_enable : ZSTD_ps_auto) &&
	       set(c->cctx, ZSTD_c_targetLength, light ? LIGHT_SEARCH : 0);
}

int compressor_new(size_t chunk_max, int level, struct compressor **ret)
{
	struct compressor *c;
	int r = -ENOMEM;

	assert(chunk_max > 0 && ret);
	if (level < ZSTD_minCLevel() || level > ZSTD_maxCLevel())
		return -EINVAL;
	c = alloc_zero(sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->chunk_max = chunk_max;
	c->planes = alloc_zero(chunk_max);
	c->cctx = ZSTD_createCCtx();
	c->dctx = ZSTD_createDCtx();
	if (!c->planes || !c->cctx || !c->dctx)
		goto fail;
	r = -EINVAL;
	if (!set(c->cctx, ZSTD_c_compressionLevel, level))
		goto fail;
	/* a library that refuses this one parameter compresses as well, only slower */
	c->light = level == 1 && set_search(c, true);
	*ret = c;
	return 0;
fail:
	compressor_free(c);
	return r;
}

void compressor_free(struct compressor *c)
{
	if (!c)
		return;
	ZSTD_freeCCtx(c->cctx); /* takes NULL */
	ZSTD_freeDCtx(c->dctx);
	alloc_free(c->planes);
	alloc_free(c);
}

static enum encoding encoding_for(uint32_t element)
{
	if (element == 2)
		return ENCODING_ZSTD_P2;
	return element == 4 ? ENCODING_ZSTD_P4 : ENCODING_ZSTD;
}

int compress_chunk(struct compressor *c, const void *src, size_t len, uint32_t element, void *dst,
		   size_t dst_cap, size_t *ret_len)
{
	enum encoding encoding = encoding_for(element);
	size_t cap = worth(len) < dst_cap ? worth(len) : dst_cap, n;

	assert(c && ret_len && len <= c->chunk_max);
	assert(len == 0 || (src && dst));
	*ret_len = len;
	if (cap == 0)
		return ENCODING_RAW;
	if (encoding != ENCODING_ZSTD) {
		planes_split(c->planes, src, len, element);
		src = c->planes;
	}
	if (c->light && !set_search(c, encoding != ENCODING_ZSTD))
		return ENCODING_RAW;
	n = ZSTD_compress2(c->cctx, dst, cap, src, len);
	if (ZSTD_isError(n))
		return ENCODING_RAW; /* mostly: more than cap; also: no memory */
	assert(n > 0 && n <= worth(len));
	*ret_len = n;
	return (int)encoding;
}

/* Decodes one frame of exactly dst_len bytes that fills src (2). Older formats of zstd and its
 * skippable frames have other magic numbers. */
static int decode(struct compressor *c, const void *src, size_t len, void *dst, size_t dst_len)
{
	size_t frame;

	if (len < sizeof(uint32_t) || get_le32(src) != ZSTD_MAGICNUMBER)
		return CKPT_ECORRUPT;
	frame = ZSTD_findFrameCompressedSize(src, len);
	if (ZSTD_isError(frame) || frame != len || ZSTD_getFrameContentSize(src, len) != dst_len)
		return CKPT_ECORRUPT;
	if (ZSTD_decompressDCtx(c->dctx, dst, dst_len, src, len) != dst_len)
		return CKPT_ECORRUPT;
	return 0;
}

int decompress_chunk(struct compressor *c, int encoding, const void *src, size_t len, void *dst,
		     size_t dst_len)
{
	int r;

	assert(c && (len == 0 || src) && (dst_len == 0 || dst));
	if (encoding == ENCODING_RAW) {
		if (len != dst_len)
			return CKPT_ECORRUPT;
		if (len > 0)
			memcpy(dst, src, len);
		return 0;
	}
	/* lengths come from a table, a table from a disk: they are refused, not asserted */
	if (encoding < ENCODING_RAW || encoding > ENCODING_ZSTD_P4 || dst_len == 0 ||
	    dst_len > c->chunk_max)
		return CKPT_ECORRUPT;
	if (encoding == ENCODING_ZSTD)
		return decode(c, src, len, dst, dst_len);
	r = decode(c, src, len, c->planes, dst_len);
	if (r == 0)
		planes_join(dst, c->planes, dst_len, encoding == ENCODING_ZSTD_P2 ? 2 : 4);
	return r;
}
