/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Differences of elements in calls of any size; test_ctl_diff.sh compares all dtypes with numpy.
 * Here is what safetensors files cannot hold, and what several calls have to give together.
 */
#include <config.h>

#include <math.h>
#include <string.h>

#include "ckpt.h"
#include "tests/lib/test.h"
#include "tools/diff_values.h"

static struct diff_values of(uint32_t dtype, const void *a, const void *b, size_t n)
{
	struct diff_values d = {0};

	diff_add(&d, (struct diff_part){dtype, a}, (struct diff_part){dtype, b}, n);
	return d;
}

static void test_complex(void **state)
{
	const double a[] = {1, 2, 3, 4, 5, 6}, b[] = {1, 2, 3, 4.5, NAN, 7};
	struct diff_values d = of(CKPT_C128, a, b, 3);

	(void)state;
	assert_int_equal(d.elements, 3);
	assert_int_equal(d.changed, 2);
	assert_int_equal(d.first, 1);
	assert_int_equal(d.nans, 1);
	assert_true(d.max_abs == 1 && d.max_rel == 1.0 / 7 && !d.exact);
	assert_true(diff_is_comparable(CKPT_C64, CKPT_C128));
	assert_false(diff_is_comparable(CKPT_C64, CKPT_F64));
	assert_true(diff_is_comparable(CKPT_BOOL, CKPT_F8_E8M0));
}

static void test_complex_of_two_widths(void **state)
{
	const double a[] = {1, 2, 3, 4};
	const float b[] = {1, 2, 3, 5};
	struct diff_values d = {0};

	(void)state;
	diff_add(&d, (struct diff_part){CKPT_C128, a}, (struct diff_part){CKPT_C64, b}, 2);
	assert_int_equal(d.changed, 1);
	assert_int_equal(d.first, 1);
	assert_true(d.max_abs == 1);
}

/* Whatever the calls are, the answer is that of one. */
static void test_any_cut(void **state)
{
	enum { N = 1500 };
	static int16_t a[N], b[N];
	struct diff_values whole;

	(void)state;
	test_fill(a, sizeof(a), 1);
	memcpy(b, a, sizeof(b));
	for (size_t i = 0; i < N; i += 97)
		b[i] = (int16_t)(b[i] ^ (int16_t)(i + 1));
	b[0] = a[0];
	whole = of(CKPT_I16, a, b, N);
	assert_int_equal(whole.first, 97);
	assert_int_equal(whole.changed, N / 97);
	for (size_t step = 1; step < 700; step += 50) {
		struct diff_values d = {0};

		for (size_t i = 0; i < N; i += step)
			diff_add(&d, (struct diff_part){CKPT_I16, a + i},
				 (struct diff_part){CKPT_I16, b + i}, N - i < step ? N - i : step);
		assert_int_equal(d.elements, whole.elements);
		assert_int_equal(d.changed, whole.changed);
		assert_int_equal(d.first, whole.first);
		assert_int_equal(d.max_abs_int, whole.max_abs_int);
		assert_true(d.exact && d.max_rel == whole.max_rel);
	}
}

/* No element is aligned. */
static void test_any_place(void **state)
{
	uint8_t a[8 * 9 + 1] = {0}, b[8 * 9 + 1] = {0};
	const uint32_t dtypes[] = {CKPT_F64, CKPT_U64, CKPT_C64, CKPT_F32, CKPT_F16};

	(void)state;
	for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
		b[1 + 3] = 1;
		assert_int_equal(of(dtypes[i], a + 1, b + 1, 9).changed, 1);
		assert_int_equal(of(dtypes[i], a + 1, a + 1, 9).changed, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_complex),
		cmocka_unit_test(test_complex_of_two_widths),
		cmocka_unit_test(test_any_cut),
		cmocka_unit_test(test_any_place),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
