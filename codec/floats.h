/* SPDX-License-Identifier: Apache-2.0 */
/*
 * floats.h - the numbers that floats of any format stand for, and floats of one format as another.
 *
 * Every value of every format is one of f64, so widening is exact. Narrowing rounds once, from the
 * exact value, to nearest, ties to even; what is beyond the largest finite value by half a step or
 * more becomes infinite, subnormal results are kept. A NaN stays a NaN (quiet, with its sign and
 * the payload bits that fit).
 */
#ifndef CODEC_FLOATS_H
#define CODEC_FLOATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The real floats among enum ckpt_dtype, F8 included. */
bool float_is_known(uint32_t dtype);
/* n elements, packed, as f64. dtype must be known. `from` needs no alignment. */
void floats_widen(uint32_t dtype, const void *from, size_t n, double *to);

/* Whether floats_cast() does it: both are one of f16, bf16, f32, f64. */
bool float_can_cast(uint32_t from_dtype, uint32_t to_dtype);
struct cast {
	uint32_t from, to; /* enum ckpt_dtype */
};
/* n packed elements; the two arrays do not overlap. Returns how many finite ones became infinite.
 */
uint64_t floats_cast(struct cast c, const void *from, size_t n, void *to);

#endif
