/* SPDX-License-Identifier: Apache-2.0 */
/*
 * floats.c - see floats.h. Everything goes through the bits of an f64; formats are a few numbers,
 * which the compiler folds into a loop of its own for each of them. Pure functions; any thread.
 *
 *   ieee       f16, bf16, f8_e5m2: exponent all ones is infinity (mantissa 0) or NaN
 *   fn         f8_e4m3: no infinity; all ones but the sign is NaN
 *   fnuz       f8_e4m3fnuz, f8_e5m2fnuz: no infinity, no -0; the bits of -0 are NaN
 */
#include <config.h>

#include "codec/floats.h"

#include <assert.h>
#include <string.h>

#include "base/err.h"

enum { F64_MANTISSA = 52, F64_BIAS = 1023, F64_EXPONENT_MAX = 0x7ff };
enum specials { IEEE, FN, FNUZ };

struct form {
	int exponent, mantissa, bias; /* bits, bits, - */
	enum specials specials;
};

#define F64_QUIET_NAN 0x7ff8000000000000u
#define F64_INFINITY  0x7ff0000000000000u
#define SIGN          ((uint64_t)1 << 63)

static const struct form f16 = {5, 10, 15, IEEE}, bf16 = {8, 7, 127, IEEE}, e4m3 = {4, 3, 7, FN},
			 e5m2 = {5, 2, 15, IEEE}, e4m3fnuz = {4, 3, 8, FNUZ},
			 e5m2fnuz = {5, 2, 16, FNUZ};

static double of_bits(uint64_t bits)
{
	double v;

	memcpy(&v, &bits, sizeof(v));
	return v;
}

static uint64_t bits_of(double v)
{
	uint64_t bits;

	memcpy(&bits, &v, sizeof(bits));
	return bits;
}

/* ---- Widening ---- */

static inline bool is_nan(const struct form *f, uint64_t bits, uint64_t exponent, uint64_t mantissa)
{
	switch (f->specials) {
	case IEEE:
		return exponent == (1u << f->exponent) - 1 && mantissa != 0;
	case FN:
		return exponent == (1u << f->exponent) - 1 && mantissa == (1u << f->mantissa) - 1;
	case FNUZ:
		return bits == 1u << (f->exponent + f->mantissa);
	}
	return false;
}

/* The bits of the f64 with this value; of a NaN the payload's upper bits. */
static inline uint64_t widen_one(const struct form *f, uint64_t bits)
{
	uint64_t sign = (bits >> (f->exponent + f->mantissa)) << 63;
	uint64_t exponent = (bits >> f->mantissa) & ((1u << f->exponent) - 1);
	uint64_t mantissa = bits & ((1u << f->mantissa) - 1);
	uint64_t upper = mantissa << (F64_MANTISSA - f->mantissa);

	if (is_nan(f, bits, exponent, mantissa))
		return sign | F64_QUIET_NAN | upper;
	if (f->specials == IEEE && exponent == (1u << f->exponent) - 1)
		return sign | F64_INFINITY;
	if (exponent == 0) { /* mantissa steps of 2^(1 - bias - bits of mantissa): exact */
		uint64_t step = (uint64_t)(1 - f->bias - f->mantissa + F64_BIAS) << F64_MANTISSA;

		return sign | bits_of((double)mantissa * of_bits(step));
	}
	return sign | (uint64_t)((int)exponent - f->bias + F64_BIAS) << F64_MANTISSA | upper;
}

static inline void widen8(const struct form *f, const uint8_t *from, size_t n, double *to)
{
	for (size_t i = 0; i < n; i++)
		to[i] = of_bits(widen_one(f, from[i]));
}

static inline void widen16(const struct form *f, const uint8_t *from, size_t n, double *to)
{
	uint16_t bits;

	for (size_t i = 0; i < n; i++) {
		memcpy(&bits, from + 2 * i, sizeof(bits));
		to[i] = of_bits(widen_one(f, bits));
	}
}

static void widen_f32(const uint8_t *from, size_t n, double *to)
{
	float v;

	for (size_t i = 0; i < n; i++) {
		memcpy(&v, from + 4 * i, sizeof(v));
		to[i] = v;
	}
}

/* A power of two without a sign: 2^(bits - 127). */
static void widen_e8m0(const uint8_t *from, size_t n, double *to)
{
	for (size_t i = 0; i < n; i++)
		to[i] = of_bits(from[i] == 0xff
					? F64_QUIET_NAN
					: (uint64_t)(from[i] - 127 + F64_BIAS) << F64_MANTISSA);
}

bool float_is_known(uint32_t dtype)
{
	switch (dtype) {
	case CKPT_F16:
	case CKPT_BF16:
	case CKPT_F32:
	case CKPT_F64:
	case CKPT_F8_E4M3:
	case CKPT_F8_E5M2:
	case CKPT_F8_E4M3FNUZ:
	case CKPT_F8_E5M2FNUZ:
	case CKPT_F8_E8M0:
		return true;
	default:
		return false;
	}
}

void floats_widen(uint32_t dtype, const void *from, size_t n, double *to)
{
	assert(float_is_known(dtype));
	switch (dtype) {
	case CKPT_F16:
		widen16(&f16, from, n, to);
		break;
	case CKPT_BF16:
		widen16(&bf16, from, n, to);
		break;
	case CKPT_F32:
		widen_f32(from, n, to);
		break;
	case CKPT_F64:
		memcpy(to, from, n * sizeof(*to));
		break;
	case CKPT_F8_E4M3:
		widen8(&e4m3, from, n, to);
		break;
	case CKPT_F8_E5M2:
		widen8(&e5m2, from, n, to);
		break;
	case CKPT_F8_E4M3FNUZ:
		widen8(&e4m3fnuz, from, n, to);
		break;
	case CKPT_F8_E5M2FNUZ:
		widen8(&e5m2fnuz, from, n, to);
		break;
	default:
		widen_e8m0(from, n, to);
	}
}

/* ---- Narrowing ---- */

/* v >> shift, to nearest, ties to even; 1 <= shift <= 63. */
static inline uint64_t shift_even(uint64_t v, int shift)
{
	return (v + ((uint64_t)1 << (shift - 1)) - 1 + ((v >> shift) & 1)) >> shift;
}

/* The bits of an IEEE format, at most 32 of them, for those of an f64. */
static inline uint64_t narrow_one(const struct form *f, uint64_t bits)
{
	uint64_t sign = (bits >> 63) << (f->exponent + f->mantissa), number = bits & ~SIGN;
	uint64_t top = (((uint64_t)1 << f->exponent) - 1) << f->mantissa; /* infinity */
	int drop = F64_MANTISSA - f->mantissa;
	int exponent = (int)(number >> F64_MANTISSA) - F64_BIAS;
	uint64_t rounded;

	if (number > F64_INFINITY)
		return sign | top | (uint64_t)1 << (f->mantissa - 1) |
		       ((number & (((uint64_t)1 << F64_MANTISSA) - 1)) >> drop);
	if (exponent >= 1 - f->bias) {
		rounded = shift_even(number - ((uint64_t)(F64_BIAS - f->bias) << F64_MANTISSA),
				     drop); /* a carry goes into the exponent, as it should */
		return sign | (rounded > top ? top : rounded);
	}
	drop += 1 - f->bias - exponent;
	if (drop > F64_MANTISSA + 2) /* less than half of the smallest */
		return sign;
	number = (number & (((uint64_t)1 << F64_MANTISSA) - 1)) | (uint64_t)1 << F64_MANTISSA;
	return sign | shift_even(number, drop);
}

static const struct form f32 = {8, 23, 127, IEEE};

static inline uint64_t widen_any(uint32_t dtype, const uint8_t *from, size_t i)
{
	uint64_t b64;
	uint32_t b32;
	uint16_t b16;

	switch (dtype) {
	case CKPT_F16:
		memcpy(&b16, from + 2 * i, sizeof(b16));
		return widen_one(&f16, b16);
	case CKPT_BF16:
		memcpy(&b16, from + 2 * i, sizeof(b16));
		return widen_one(&bf16, b16);
	case CKPT_F32:
		memcpy(&b32, from + 4 * i, sizeof(b32));
		return widen_one(&f32, b32);
	default:
		memcpy(&b64, from + 8 * i, sizeof(b64));
		return b64;
	}
}

/* Returns whether the result is infinite. */
static inline bool narrow_any(uint32_t dtype, uint64_t bits, uint8_t *to, size_t i)
{
	uint64_t r = bits;
	uint32_t b32;
	uint16_t b16;

	switch (dtype) {
	case CKPT_F16:
		r = narrow_one(&f16, bits);
		b16 = (uint16_t)r;
		memcpy(to + 2 * i, &b16, sizeof(b16));
		return (b16 & 0x7fffu) == 0x7c00u;
	case CKPT_BF16:
		r = narrow_one(&bf16, bits);
		b16 = (uint16_t)r;
		memcpy(to + 2 * i, &b16, sizeof(b16));
		return (b16 & 0x7fffu) == 0x7f80u;
	case CKPT_F32:
		r = narrow_one(&f32, bits);
		b32 = (uint32_t)r;
		memcpy(to + 4 * i, &b32, sizeof(b32));
		return (b32 & 0x7fffffffu) == 0x7f800000u;
	default:
		memcpy(to + 8 * i, &r, sizeof(r));
		return (r & ~SIGN) == F64_INFINITY;
	}
}

bool float_can_cast(uint32_t from_dtype, uint32_t to_dtype)
{
	const uint32_t known[] = {CKPT_F16, CKPT_BF16, CKPT_F32, CKPT_F64};
	bool from = false, to = false;

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		from |= from_dtype == known[i];
		to |= to_dtype == known[i];
	}
	return from && to;
}

static inline uint64_t cast_all(struct cast c, const uint8_t *from, size_t n, uint8_t *to)
{
	uint64_t overflows = 0;

	for (size_t i = 0; i < n; i++) {
		uint64_t bits = widen_any(c.from, from, i);
		bool infinite = narrow_any(c.to, bits, to, i);

		overflows += infinite && (bits & ~SIGN) != F64_INFINITY;
	}
	return overflows;
}

uint64_t floats_cast(struct cast c, const void *from, size_t n, void *to)
{
	assert(float_can_cast(c.from, c.to));
	/* The compiler makes a loop of each of these. */
	if (c.from == CKPT_F32 && c.to == CKPT_BF16)
		return cast_all((struct cast){CKPT_F32, CKPT_BF16}, from, n, to);
	if (c.from == CKPT_F32 && c.to == CKPT_F16)
		return cast_all((struct cast){CKPT_F32, CKPT_F16}, from, n, to);
	if (c.from == CKPT_BF16 && c.to == CKPT_F32)
		return cast_all((struct cast){CKPT_BF16, CKPT_F32}, from, n, to);
	return cast_all(c, from, n, to);
}
