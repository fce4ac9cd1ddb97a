/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks the rows of strided memory. Pure; any thread.
 */
#include <config.h>

#include "model/strided.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/bytes.h"

int strided_init(struct strided *ret, const struct shard *s, const int64_t *strides)
{
	struct strided out = { .run = dtype_bytes(s->dtype) };
	struct strided inner_first = { 0 };
	uint32_t n = 0;

	assert(out.run > 0 && s->box.ndim <= CKPT_NDIM_MAX);
	if (s->flat)
		return -EINVAL;
	for (uint32_t k = s->box.ndim; k-- > 0 && s->bytes;) {
		uint64_t length = s->box.length[k];

		if (length == 1)
			continue;
		if (n == 0 && strides[k] == (int64_t)out.run) {
			out.run *= length;
		} else if (n > 0 && (uint64_t)strides[k] == (uint64_t)inner_first.stride[n - 1] *
								    inner_first.count[n - 1]) {
			inner_first.count[n - 1] *= length;
		} else {
			inner_first.stride[n] = strides[k];
			inner_first.count[n++] = length;
		}
	}
	out.ndim = n;
	for (uint32_t k = 0; k < n; k++) {
		out.count[k] = inner_first.count[n - 1 - k];
		out.stride[k] = inner_first.stride[n - 1 - k];
	}
	*ret = out;
	return 0;
}

/* Where a row lies and how many rows follow it in the innermost dimension. */
static int64_t row_offset(const struct strided *s, uint64_t row, uint64_t *ret_more)
{
	int64_t offset = 0;

	*ret_more = 0;
	for (uint32_t k = s->ndim; k-- > 0;) {
		uint64_t i = row % s->count[k];

		row /= s->count[k];
		offset += (int64_t)i * s->stride[k];
		if (k == s->ndim - 1)
			*ret_more = s->count[k] - 1 - i;
	}
	assert(row == 0);
	return offset;
}

/* One direction or the other, a row or a part of one at a time. */
static void walk(const struct strided *s, uint8_t *base, uint64_t at, uint8_t *packed, uint64_t len,
		 bool scatter)
{
	uint64_t row = at / s->run, skip = at % s->run, more = 0;
	int64_t offset = 0;

	if (len == 0)
		return;
	offset = row_offset(s, row, &more);
	for (;;) {
		uint64_t n = min_u64(len, s->run - skip);
		uint8_t *p = base + offset + skip;

		if (scatter)
			memcpy(p, packed, n);
		else
			memcpy(packed, p, n);
		packed += n;
		len -= n;
		skip = 0;
		if (len == 0)
			return;
		row++;
		if (more > 0) {
			offset += s->stride[s->ndim - 1];
			more--;
		} else {
			offset = row_offset(s, row, &more);
		}
	}
}

void strided_scatter(const struct strided *s, uint8_t *base, uint64_t at, const uint8_t *packed,
		     uint64_t len)
{
	walk(s, base, at, (uint8_t *)packed, len, true);
}

void strided_gather(const struct strided *s, const uint8_t *base, uint64_t at, uint8_t *packed,
		    uint64_t len)
{
	walk(s, (uint8_t *)base, at, packed, len, false);
}
