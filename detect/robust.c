/* SPDX-License-Identifier: Apache-2.0 */
/*
 * robust.c - selection without sorting, windows whose order is kept, weights that fade.
 *
 * Invariant of struct window: sorted[0..n) are the values of ring[0..n) in ascending order.
 */
#include <config.h>

#include "detect/robust.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static void swap(float *a, float *b)
{
	float t = *a;

	*a = *b;
	*b = t;
}

/* The middle one of first, middle and last goes to the middle: sorted input stays linear. */
static float pivot_of(float *a, size_t n)
{
	float *first = &a[0], *middle = &a[n / 2], *last = &a[n - 1];

	if (*middle < *first)
		swap(middle, first);
	if (*last < *middle)
		swap(last, middle);
	if (*middle < *first)
		swap(middle, first);
	return *middle;
}

float select_nth(float *a, size_t n, size_t k)
{
	assert(k < n);
	while (n > 1) {
		float pivot = pivot_of(a, n);
		size_t i = 0, j = n - 1;

		for (;;) { /* Hoare: equal values are spread over both sides */
			while (a[i] < pivot)
				i++;
			while (a[j] > pivot)
				j--;
			if (i >= j)
				break;
			swap(&a[i++], &a[j--]);
		}
		j = i + (i == j && a[i] <= pivot); /* a[0..j) <= pivot <= a[j..n) */
		assert(j > 0 && j <= n);
		if (j == n)
			j--;
		if (k < j) {
			n = j;
		} else {
			a += j;
			n -= j;
			k -= j;
		}
	}
	return a[0];
}

float median_of(float *a, size_t n)
{
	float high, low;

	assert(n > 0);
	high = select_nth(a, n, n / 2);
	if (n % 2)
		return high;
	low = a[0];
	for (size_t i = 1; i < n / 2; i++)
		if (a[i] > low)
			low = a[i];
	return low + (high - low) / 2;
}

float mad_of(float *a, size_t n, float center)
{
	for (size_t i = 0; i < n; i++)
		a[i] = fabsf(a[i] - center);
	return median_of(a, n);
}

double robust_z(double x, double median, double mad, double floor)
{
	double sigma = MAD_SIGMA * mad;

	assert(floor > 0);
	return (x - median) / (sigma > floor ? sigma : floor);
}

float median_without(const float *sorted, size_t n, size_t i)
{
	size_t m = n - 1, high = m / 2, low = (m - 1) / 2; /* of the others */

	assert(n > 1 && i < n);
	low += low >= i;
	high += high >= i;
	return sorted[low] + (sorted[high] - sorted[low]) / 2;
}

/* ---- Windows ---- */

void window_init(struct window *w, unsigned size)
{
	assert(size > 0 && size <= WINDOW_MAX);
	memset(w, 0, sizeof(*w));
	w->size = (uint16_t)size;
}

/* The first place whose value is not less than x. */
static unsigned place_of(const struct window *w, float x)
{
	unsigned low = 0, high = w->n;

	while (low < high) {
		unsigned middle = (low + high) / 2;

		if (w->sorted[middle] < x)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

void window_add(struct window *w, float x)
{
	unsigned i;

	assert(w->size > 0 && isfinite(x));
	if (w->n == w->size) {
		i = place_of(w, w->ring[w->at]);
		w->n--;
		memmove(&w->sorted[i], &w->sorted[i + 1], (w->n - i) * sizeof(float));
	}
	i = place_of(w, x);
	memmove(&w->sorted[i + 1], &w->sorted[i], (w->n - i) * sizeof(float));
	w->sorted[i] = x;
	w->n++;
	w->ring[w->at] = x;
	w->at = (uint16_t)((w->at + 1u) % w->size);
}

float window_median(const struct window *w)
{
	unsigned low = (w->n - 1u) / 2;

	assert(w->n > 0);
	return w->sorted[low] + (w->sorted[w->n / 2] - w->sorted[low]) / 2;
}

/* Distances from the median rise to both sides of it: the nearer side's next one, again and again,
 * until half of them have been met. */
float window_mad(const struct window *w)
{
	float center = window_median(w), low = 0, high = 0;
	unsigned right = place_of(w, center), left = right, half = w->n / 2u;

	for (unsigned met = 0; met <= half; met++) {
		low = high;
		if (left > 0 &&
		    (right == w->n || center - w->sorted[left - 1] <= w->sorted[right] - center))
			high = center - w->sorted[--left];
		else
			high = w->sorted[right++] - center;
	}
	return w->n % 2 ? high : low + (high - low) / 2;
}

/* ---- Weights that fade ---- */

void ewma_add(struct ewma *e, double x, double alpha)
{
	double d = x - e->mean;

	assert(alpha > 0 && alpha <= 1);
	if (e->n < UINT32_MAX)
		e->n++;
	if (alpha * e->n < 1)
		alpha = 1.0 / e->n;
	e->mean += alpha * d;
	e->var = (1 - alpha) * (e->var + alpha * d * d);
}

double ewma_alpha(double dt, double tau)
{
	assert(dt >= 0 && tau > 0);
	return dt > 0 ? 1 - exp(-dt / tau) : 1e-9;
}
