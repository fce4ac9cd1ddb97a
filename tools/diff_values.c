/* SPDX-License-Identifier: Apache-2.0 */
/*
 * diff_values.c - see diff_values.h. Any thread.
 *
 * Most of what is compared is equal: that is told by memcmp(), a block at a time, and only blocks
 * that differ are looked at by elements.
 */
#include <config.h>

#include "tools/diff_values.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/bytes.h"
#include "codec/floats.h"
#include "model/tensor.h"

enum { BLOCK = 256 }; /* elements */

__extension__ typedef __int128 wide;

enum kind { INTEGER, FLOAT, COMPLEX };

static enum kind kind_of(uint32_t dtype)
{
	if (dtype == CKPT_C64 || dtype == CKPT_C128)
		return COMPLEX;
	return float_is_known(dtype) ? FLOAT : INTEGER;
}

bool diff_is_comparable(uint32_t dtype_a, uint32_t dtype_b)
{
	return (kind_of(dtype_a) == COMPLEX) == (kind_of(dtype_b) == COMPLEX);
}

/* ---- Elements ---- */

static wide integer_at(uint32_t dtype, const uint8_t *p, size_t i)
{
	uint32_t size = dtype_bytes(dtype), shift = 64 - 8 * size;
	uint64_t v = 0;

	memcpy(&v, p + i * size, size);
	if (dtype == CKPT_I8 || dtype == CKPT_I16 || dtype == CKPT_I32 || dtype == CKPT_I64)
		return (int64_t)(v << shift) >> shift;
	return v;
}

static void as_f64(struct diff_part p, size_t n, double *to)
{
	if (kind_of(p.dtype) == FLOAT) {
		floats_widen(p.dtype, p.bytes, n, to);
		return;
	}
	for (size_t i = 0; i < n; i++)
		to[i] = (double)integer_at(p.dtype, p.bytes, i);
}

static void note_changed(struct diff_values *d, uint64_t at)
{
	if (d->changed == 0)
		d->first = at;
	d->changed++;
}

static double larger(double a, double b)
{
	return a > b ? a : b;
}

/* The error between two parts. */
static void note_error(struct diff_values *d, double a, double b)
{
	double error = fabs(a - b);

	if (isnan(a) || isnan(b)) {
		d->nans += isnan(a) != isnan(b);
		return;
	}
	if (a == b)
		return;
	if (isinf(error)) {
		d->infinite++;
		return;
	}
	d->max_abs = larger(d->max_abs, error);
	d->max_rel = larger(d->max_rel, error / larger(fabs(a), fabs(b)));
}

static void note_exact_error(struct diff_values *d, wide a, wide b)
{
	wide error = a > b ? a - b : b - a, x = a < 0 ? -a : a, y = b < 0 ? -b : b;
	uint64_t capped = error > (wide)UINT64_MAX ? UINT64_MAX : (uint64_t)error;

	d->max_abs_int = max_u64(d->max_abs_int, capped);
	d->max_rel = larger(d->max_rel, (double)error / (double)(x > y ? x : y));
}

/* ---- Blocks ---- */

static void add_integers(struct diff_values *d, struct diff_part a, struct diff_part b, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		wide x = integer_at(a.dtype, a.bytes, i), y = integer_at(b.dtype, b.bytes, i);

		if (x == y)
			continue;
		note_changed(d, d->elements + i);
		note_exact_error(d, x, y);
	}
}

static bool differ(const struct diff_part *a, const struct diff_part *b, size_t i, double x,
		   double y)
{
	uint32_t size = dtype_bytes(a->dtype);

	if (a->dtype != b->dtype)
		return isnan(x) || isnan(y) ? isnan(x) != isnan(y) : x != y;
	return memcmp((const uint8_t *)a->bytes + i * size, (const uint8_t *)b->bytes + i * size,
		      size) != 0;
}

static void add_reals(struct diff_values *d, struct diff_part a, struct diff_part b, size_t n)
{
	double x[BLOCK], y[BLOCK];

	assert(n <= BLOCK);
	as_f64(a, n, x);
	as_f64(b, n, y);
	for (size_t i = 0; i < n; i++)
		if (differ(&a, &b, i, x[i], y[i])) {
			note_changed(d, d->elements + i);
			note_error(d, x[i], y[i]);
		}
}

static struct diff_part parts_of(struct diff_part p)
{
	p.dtype = p.dtype == CKPT_C64 ? CKPT_F32 : CKPT_F64;
	return p;
}

static void add_complex(struct diff_values *d, struct diff_part a, struct diff_part b, size_t n)
{
	double x[2 * BLOCK], y[2 * BLOCK];

	assert(n <= BLOCK);
	a = parts_of(a);
	b = parts_of(b);
	as_f64(a, 2 * n, x);
	as_f64(b, 2 * n, y);
	for (size_t i = 0; i < n; i++) {
		bool re = differ(&a, &b, 2 * i, x[2 * i], y[2 * i]);
		bool im = differ(&a, &b, 2 * i + 1, x[2 * i + 1], y[2 * i + 1]);

		if (!re && !im)
			continue;
		note_changed(d, d->elements + i);
		if (re)
			note_error(d, x[2 * i], y[2 * i]);
		if (im)
			note_error(d, x[2 * i + 1], y[2 * i + 1]);
	}
}

static void add_block(struct diff_values *d, struct diff_part a, struct diff_part b, size_t n)
{
	if (a.dtype == b.dtype && memcmp(a.bytes, b.bytes, n * dtype_bytes(a.dtype)) == 0)
		return;
	if (d->exact)
		add_integers(d, a, b, n);
	else if (kind_of(a.dtype) == COMPLEX)
		add_complex(d, a, b, n);
	else
		add_reals(d, a, b, n);
}

void diff_add(struct diff_values *d, struct diff_part a, struct diff_part b, size_t n)
{
	uint32_t size_a = dtype_bytes(a.dtype), size_b = dtype_bytes(b.dtype);

	assert(diff_is_comparable(a.dtype, b.dtype));
	d->exact = kind_of(a.dtype) == INTEGER && kind_of(b.dtype) == INTEGER;
	while (n > 0) {
		size_t block = min_u64(n, BLOCK);

		add_block(d, a, b, block);
		d->elements += block;
		a.bytes = (const uint8_t *)a.bytes + block * size_a;
		b.bytes = (const uint8_t *)b.bytes + block * size_b;
		n -= block;
	}
}
