/* SPDX-License-Identifier: Apache-2.0 */
/*
 * strided.h - memory of a box that is not contiguous: packed bytes into it and out of it.
 *
 * Plans and images know only packed bytes (row-major within the box). Where a caller's tensor has
 * strides of its own, any of them, zero and negative ones too, its packed bytes [at, at + len) are
 * found here. The range may begin and end inside an element. What is written to must not have two
 * elements in one place; that is found here too.
 */
#ifndef MODEL_STRIDED_H
#define MODEL_STRIDED_H

#include "model/tensor.h"

/* Rows of run contiguous bytes; outer dimensions first, folded where memory is contiguous. */
struct strided {
	uint64_t run;
	uint32_t ndim;
	uint64_t count[CKPT_NDIM_MAX];
	int64_t stride[CKPT_NDIM_MAX]; /* bytes */
};

/* strides: of the shard's box, in bytes. The shard must be checked. -EINVAL for a flat range,
 * which has none. */
MUST_CHECK int strided_init(struct strided *ret, const struct shard *s, const int64_t *strides);

/*
 * Where the box lies around its first element: the lowest byte at *ret_lo <= 0, the highest one
 * before *ret_hi. False: beyond STRIDED_REACH_MAX bytes. The shard must be checked, and no range.
 */
#define STRIDED_REACH_MAX ((int64_t)1 << 60)
MUST_CHECK bool strided_reach(const struct shard *s, const int64_t *strides, int64_t *ret_lo,
			      int64_t *ret_hi);

/*
 * Whether two elements share a byte: of one box, or of two, b's first element `distance` bytes
 * behind a's. Both within STRIDED_REACH_MAX. Exact, but for strides that no array has: where the
 * answer would take too long it is false.
 */
bool strided_meets_itself(const struct strided *s);
bool strided_meet(const struct strided *a, const struct strided *b, int64_t distance);

/* Where a row lies, from the first one, and how many follow it in the innermost dimension. */
int64_t strided_row(const struct strided *s, uint64_t row, uint64_t *ret_more);
/* base points at the first element (the one with all coordinates 0). */
void strided_scatter(const struct strided *s, uint8_t *base, uint64_t at, const uint8_t *packed,
		     uint64_t len);
void strided_gather(const struct strided *s, const uint8_t *base, uint64_t at, uint8_t *packed,
		    uint64_t len);

#endif
