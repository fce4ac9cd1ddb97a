/* SPDX-License-Identifier: Apache-2.0 */
/*
 * diff_values.h - how the elements of two tensors of one shape differ. Pure.
 *
 * Of one dtype an element is changed when its bits are: -0 is not 0, and a NaN equals only a NaN of
 * the same bits. Of two dtypes it is changed when the numbers differ, any two NaNs being equal.
 * Integers are subtracted exactly; floats, and a float and an integer, as f64; complex numbers by
 * their parts, the larger difference counting.
 *
 * The relative error is |a - b| / max(|a|, |b|). Where one is a NaN and the other is not, or the
 * difference is infinite, there is no error: such parts are counted by themselves.
 */
#ifndef TOOLS_DIFF_VALUES_H
#define TOOLS_DIFF_VALUES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct diff_values {
	uint64_t elements, changed;
	uint64_t first;    /* row-major index of the first changed one, if there is one */
	uint64_t nans;     /* parts that are a NaN on one side alone */
	uint64_t infinite; /* parts whose difference is infinite */
	double max_abs, max_rel;
	bool exact;           /* both are integers: max_abs_int instead of max_abs */
	uint64_t max_abs_int; /* UINT64_MAX: that much or more */
};

/* Whether there is something to compute: both real, or both complex. */
bool diff_is_comparable(uint32_t dtype_a, uint32_t dtype_b);

struct diff_part {
	uint32_t dtype;
	const void *bytes; /* packed; no alignment is needed */
};
/* Adds n elements, the first of which has the index d->elements. */
void diff_add(struct diff_values *d, struct diff_part a, struct diff_part b, size_t n);

#endif
