/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every bit pattern of every 8- and 16-bit float against ldexp(), and every rounding of them: since
 * rounding is monotone, it is right everywhere if it is right at each value, at each middle of two
 * neighbours and next to it. The f32 is checked against the machine's own rounding.
 */
#include <config.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "codec/floats.h"
#include "tests/lib/test.h"

struct narrow {
	uint32_t dtype;
	int bytes, exponent, mantissa, bias;
	bool infinities; /* exponent of all ones: infinity and NaN */
	int nan;         /* the only NaN but for the sign, or -1; with its sign: unsigned_zero */
	bool unsigned_zero;
};

static const struct narrow narrows[] = {
	{CKPT_F16, 2, 5, 10, 15, true, -1, false},
	{CKPT_BF16, 2, 8, 7, 127, true, -1, false},
	{CKPT_F8_E4M3, 1, 4, 3, 7, false, 0x7f, false},
	{CKPT_F8_E5M2, 1, 5, 2, 15, true, -1, false},
	{CKPT_F8_E4M3FNUZ, 1, 4, 3, 8, false, 0x80, true},
	{CKPT_F8_E5M2FNUZ, 1, 5, 2, 16, false, 0x80, true},
};

static double expected(const struct narrow *f, unsigned bits)
{
	unsigned sign = bits >> (f->exponent + f->mantissa);
	unsigned rest = bits & ((1u << (f->exponent + f->mantissa)) - 1);
	int exponent = (int)(rest >> f->mantissa), last = (1 << f->exponent) - 1;
	double mantissa = rest & ((1u << f->mantissa) - 1), v;

	if (f->unsigned_zero ? bits == (unsigned)f->nan : rest == (unsigned)f->nan)
		return NAN;
	if (f->infinities && exponent == last)
		v = mantissa == 0 ? INFINITY : NAN;
	else if (exponent == 0)
		v = ldexp(mantissa, 1 - f->bias - f->mantissa);
	else
		v = ldexp(mantissa + (1 << f->mantissa), exponent - f->bias - f->mantissa);
	return sign ? -v : v;
}

static bool same(double a, double b)
{
	return isnan(a) ? isnan(b) : a == b && signbit(a) == signbit(b);
}

static void test_every_value(void **state)
{
	(void)state;
	for (size_t k = 0; k < sizeof(narrows) / sizeof(narrows[0]); k++) {
		const struct narrow *f = &narrows[k];

		for (uint32_t bits = 0; bits < 1u << (8 * f->bytes); bits++) {
			double got;

			floats_widen(f->dtype, &bits, 1, &got);
			if (!same(got, expected(f, bits)))
				fail_msg("dtype %u: %#x is %a, not %a", f->dtype, bits, got,
					 expected(f, bits));
		}
	}
	for (uint32_t bits = 0; bits < 256; bits++) {
		double got;

		floats_widen(CKPT_F8_E8M0, &bits, 1, &got);
		assert_true(bits == 255 ? isnan(got) : got == ldexp(1, (int)bits - 127));
	}
}

static uint16_t narrow_of(uint32_t dtype, double v, uint64_t *overflows)
{
	uint16_t bits = 0xdead;
	uint64_t n = floats_cast((struct cast){CKPT_F64, dtype}, &v, 1, &bits);

	if (overflows)
		*overflows += n;
	return bits;
}

static void expect(uint32_t dtype, double v, unsigned want)
{
	uint16_t got = narrow_of(dtype, v, NULL), minus = narrow_of(dtype, -v, NULL);

	if (got != want || minus != (want | 0x8000u))
		fail_msg("dtype %u: %a became %#x and %#x, not %#x", dtype, v, got, minus, want);
}

/* Each value, the middles to the next one and what lies beside the middle; both signs. */
static void test_every_rounding(void **state)
{
	(void)state;
	for (size_t k = 0; k < 2; k++) {
		const struct narrow *f = &narrows[k];
		unsigned infinity = ((1u << f->exponent) - 1) << f->mantissa;
		uint64_t overflows = 0;

		for (unsigned bits = 0; bits < infinity; bits++) {
			double v = expected(f, bits), next = expected(f, bits + 1), middle;

			if (bits + 1 == infinity) /* where the next value would be */
				next = v + (v - expected(f, bits - 1));
			middle = v + (next - v) / 2;
			assert_true(middle - v == next - middle);
			expect(f->dtype, v, bits);
			expect(f->dtype, middle, bits & 1 ? bits + 1 : bits);
			expect(f->dtype, nextafter(middle, 0), bits);
			expect(f->dtype, nextafter(middle, INFINITY), bits + 1);
		}
		expect(f->dtype, INFINITY, infinity);
		expect(f->dtype, 1e300, infinity);
		expect(f->dtype, ldexp(1, -1074), 0);
		expect(f->dtype, ldexp(1, -1022), 0);
		narrow_of(f->dtype, INFINITY, &overflows);
		narrow_of(f->dtype, NAN, &overflows);
		narrow_of(f->dtype, expected(f, infinity - 1), &overflows);
		assert_int_equal(overflows, 0);
		narrow_of(f->dtype, 1e300, &overflows);
		narrow_of(f->dtype, -1e300, &overflows);
		assert_int_equal(overflows, 2);
	}
}

/* From one 16-bit format to the other and through f32 there is one rounding, not two. */
static void test_between_narrow_ones(void **state)
{
	const uint32_t dtypes[] = {CKPT_F16, CKPT_BF16};

	(void)state;
	for (uint32_t bits = 0; bits < 65536; bits++)
		for (int k = 0; k < 2; k++) {
			uint16_t in = (uint16_t)bits, direct, back, through;
			float wide;
			double v = expected(&narrows[k], bits);

			floats_cast((struct cast){dtypes[k], dtypes[1 - k]}, &in, 1, &direct);
			floats_cast((struct cast){dtypes[k], CKPT_F32}, &in, 1, &wide);
			floats_cast((struct cast){CKPT_F32, dtypes[k]}, &wide, 1, &back);
			floats_cast((struct cast){CKPT_F32, dtypes[1 - k]}, &wide, 1, &through);
			assert_true(same(wide, v));
			assert_int_equal(through, direct);
			if (!isnan(v)) {
				assert_int_equal(back, in);
				assert_int_equal(direct, narrow_of(dtypes[1 - k], v, NULL));
				continue;
			}
			assert_true(isnan(expected(&narrows[1 - k], direct)));
			assert_int_equal(direct >> 15, in >> 15);
			assert_true(isnan(expected(&narrows[k], back)));
		}
}

/* f64 to f32 as the machine does it, over random bits, which are mostly extreme, and near ties. */
static void test_f32_is_the_machines(void **state)
{
	uint64_t seed = test_seed(1), n = 200000;
	double v;

	(void)state;
	for (uint64_t i = 0; i < n; i++) {
		float want, got;
		uint64_t overflows;

		test_fill(&v, sizeof(v), seed * n + i);
		if (i & 1) { /* exponents that f32 has, and its subnormals */
			uint64_t bits;

			memcpy(&bits, &v, sizeof(bits));
			bits = (bits & 0x800fffffffffffffu) | (862 + bits % 290) << 52;
			if (i & 2) /* a tie */
				bits = (bits & ~0x1fffffffull) | 0x10000000u;
			memcpy(&v, &bits, sizeof(v));
		}
		want = (float)v;
		overflows = floats_cast((struct cast){CKPT_F64, CKPT_F32}, &v, 1, &got);
		if (!same(want, got))
			fail_msg("%a became %a, not %a", v, got, want);
		assert_int_equal(overflows, isinf(want) && !isinf(v));
	}
}

/* Any place, any number; what lies behind stays. */
static void test_arrays(void **state)
{
	const uint32_t dtypes[] = {CKPT_F16, CKPT_BF16, CKPT_F32, CKPT_F64};
	const size_t bytes[] = {2, 2, 4, 8};
	uint8_t from[1 + 8 * 37], to[1 + 8 * 38], one[8];

	(void)state;
	for (size_t a = 0; a < 4; a++)
		for (size_t b = 0; b < 4; b++) {
			struct cast c = {dtypes[a], dtypes[b]};

			assert_true(float_can_cast(c.from, c.to));
			test_fill(from, sizeof(from), a * 4 + b);
			memset(to, 0xa5, sizeof(to));
			floats_cast(c, from + 1, 37, to + 1);
			for (size_t i = 0; i < 37; i++) {
				floats_cast(c, from + 1 + i * bytes[a], 1, one);
				assert_memory_equal(to + 1 + i * bytes[b], one, bytes[b]);
			}
			assert_int_equal(to[1 + 37 * bytes[b]], 0xa5);
		}
	assert_false(float_can_cast(CKPT_F8_E4M3, CKPT_F32));
	assert_false(float_can_cast(CKPT_F32, CKPT_I32));
	assert_false(float_is_known(CKPT_C64) || float_is_known(CKPT_I8) || float_is_known(0));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_value),
		cmocka_unit_test(test_every_rounding),
		cmocka_unit_test(test_between_narrow_ones),
		cmocka_unit_test(test_f32_is_the_machines),
		cmocka_unit_test(test_arrays),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
