/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stored chunk from a damaged or hostile file: decompressed into exactly as many bytes as the
 * table promised. And the same bytes as a chunk to store: they must come back.
 *
 * Input: encoding (1 byte), raw length (2 bytes, little-endian), the stored chunk.
 */
#include <config.h>

#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "codec/compress.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_decompress(struct compressor *c, struct reader r)
{
	int encoding = (int8_t)read_u8(&r), status;
	size_t raw_len = read_u16(&r), len = reader_left(&r);
	CLEANUP_FREE uint8_t *src = alloc_copy(read_bytes(&r, len), len);
	/* not a byte more: the sanitizer watches */
	CLEANUP_FREE uint8_t *dst = alloc_zero(raw_len);

	if (r.bad || !src || !dst)
		return;
	status = decompress_chunk(c, encoding, src, len, dst, raw_len);
	assert(status == 0 || status == CKPT_ECORRUPT);
}

static void try_round_trip(struct compressor *c, const uint8_t *data, size_t size)
{
	uint32_t element = size > 0 ? 1u << data[0] % 4 : 1;
	size_t bound = compressor_bound(size), stored;
	CLEANUP_FREE uint8_t *dst = alloc_zero(bound);
	CLEANUP_FREE uint8_t *back = alloc_zero(size);
	int encoding, status;

	if (!dst || !back)
		return;
	encoding = compress_chunk(c, data, size, element, dst, bound, &stored);
	assert(encoding >= 0 && (encoding == ENCODING_RAW ? stored == size : stored <= bound));
	status = decompress_chunk(c, encoding, encoding == ENCODING_RAW ? data : dst, stored, back,
				  size);
	assert(status == 0 && (size == 0 || memcmp(back, data, size) == 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct compressor *c;

	if (!c && compressor_new(1u << 16, 1, &c) != 0)
		return 0;
	if (size > 1u << 16)
		return 0;
	try_decompress(c, reader_of(data, size));
	try_round_trip(c, data, size);
	return 0;
}
