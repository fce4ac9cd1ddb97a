/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "codec/zstd_stream.h"

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include <zstd.h>

#include "base/alloc.h"
#include "base/bytes.h"

#define PIECE_BYTES    (128u << 10)
#define WINDOW_LOG_MAX 27

struct zstd_out {
	ZSTD_CCtx *ctx;
	zstd_sink_fn *sink;
	void *arg;
	uint8_t piece[PIECE_BYTES];
};

int zstd_out_new(int level, zstd_sink_fn *sink, void *arg, struct zstd_out **ret)
{
	struct zstd_out *z = alloc_zero(sizeof(*z));

	if (!z)
		return -ENOMEM;
	z->ctx = ZSTD_createCCtx();
	if (!z->ctx ||
	    ZSTD_isError(ZSTD_CCtx_setParameter(z->ctx, ZSTD_c_compressionLevel, level)) ||
	    ZSTD_isError(ZSTD_CCtx_setParameter(z->ctx, ZSTD_c_checksumFlag, 1))) {
		zstd_out_free(z);
		return -ENOMEM;
	}
	z->sink = sink;
	z->arg = arg;
	*ret = z;
	return 0;
}

static int push(struct zstd_out *z, const void *buf, size_t len, ZSTD_EndDirective how)
{
	ZSTD_inBuffer in = {buf, len, 0};
	size_t left;
	int r;

	do {
		ZSTD_outBuffer out = {z->piece, sizeof(z->piece), 0};

		left = ZSTD_compressStream2(z->ctx, &out, &in, how);
		if (ZSTD_isError(left))
			return -ENOMEM; /* what else: the parameters are fixed */
		r = out.pos ? z->sink(z->arg, z->piece, out.pos) : 0;
		if (r < 0)
			return r;
	} while (how == ZSTD_e_continue ? in.pos < in.size : left > 0);
	assert(in.pos == in.size);
	return 0;
}

int zstd_out_write(struct zstd_out *z, const void *buf, size_t len)
{
	return push(z, buf, len, ZSTD_e_continue);
}

int zstd_out_flush(struct zstd_out *z, bool end)
{
	return push(z, NULL, 0, end ? ZSTD_e_end : ZSTD_e_flush);
}

void zstd_out_free(struct zstd_out *z)
{
	if (!z)
		return;
	ZSTD_freeCCtx(z->ctx);
	alloc_free(z);
}

struct zstd_in {
	ZSTD_DCtx *ctx;
	zstd_source_fn *source;
	void *arg;
	ZSTD_inBuffer in; /* what is left of piece */
	bool in_frame;
	bool full; /* the last read was filled: more may wait inside ctx */
	uint8_t piece[PIECE_BYTES];
};

int zstd_in_new(const void *head, size_t head_len, zstd_source_fn *source, void *arg,
		struct zstd_in **ret)
{
	struct zstd_in *z = alloc_zero(sizeof(*z));

	assert(head_len <= ZSTD_HEAD_MAX);
	if (!z)
		return -ENOMEM;
	z->ctx = ZSTD_createDCtx();
	if (!z->ctx ||
	    ZSTD_isError(ZSTD_DCtx_setParameter(z->ctx, ZSTD_d_windowLogMax, WINDOW_LOG_MAX))) {
		zstd_in_free(z);
		return -ENOMEM;
	}
	if (head_len)
		memcpy(z->piece, head, head_len);
	z->in = (ZSTD_inBuffer){z->piece, head_len, 0};
	z->source = source;
	z->arg = arg;
	*ret = z;
	return 0;
}

long zstd_in_read(struct zstd_in *z, void *buf, size_t size)
{
	ZSTD_outBuffer out = {buf, size, 0};

	while (out.pos == 0 && size > 0) {
		size_t left;

		if (z->in.pos == z->in.size && !z->full) {
			long n = z->source(z->arg, z->piece, sizeof(z->piece));

			if (n <= 0)
				return n == 0 && z->in_frame ? CKPT_ECORRUPT : n;
			assert((size_t)n <= sizeof(z->piece));
			z->in = (ZSTD_inBuffer){z->piece, (size_t)n, 0};
		}
		left = ZSTD_decompressStream(z->ctx, &out, &z->in);
		if (ZSTD_isError(left))
			return CKPT_ECORRUPT;
		z->in_frame = left != 0;
		z->full = left != 0 && out.pos == out.size;
	}
	return (long)out.pos;
}

void zstd_in_free(struct zstd_in *z)
{
	if (!z)
		return;
	ZSTD_freeDCtx(z->ctx);
	alloc_free(z);
}

bool zstd_is_frame(const void *head, size_t len)
{
	return len >= 4 && get_le32(head) == ZSTD_MAGICNUMBER;
}
