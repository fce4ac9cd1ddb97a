/* SPDX-License-Identifier: Apache-2.0 */
/*
 * robust.h - medians and what is made of them: statistics that a few wild values do not move.
 *
 * Values are finite; who has none leaves it out. Medians of an even number are the mean of the two
 * in the middle. Pure, no allocation.
 */
#ifndef DETECT_ROBUST_H
#define DETECT_ROBUST_H

#include <stddef.h>
#include <stdint.h>

/* Of a normal distribution the median absolute deviation times this is the standard deviation. */
#define MAD_SIGMA 1.4826

/* The k-th smallest of n (k < n); reorders a so that a[0..k) <= a[k] <= a(k..n). Linear. */
float select_nth(float *a, size_t n, size_t k);
/* n > 0; reorder a. */
float median_of(float *a, size_t n);
/* The median of |a[i] - center|; a holds these distances afterwards. */
float mad_of(float *a, size_t n, float center);
/* (x - median) in standard deviations, of which there are at least floor (> 0). */
double robust_z(double x, double median, double mad, double floor);

/* Of sorted values: the median of all but the i-th; n > 1. */
float median_without(const float *sorted, size_t n, size_t i);

/* ---- The newest values of a stream ---- */

#define WINDOW_MAX 32
struct window {
	uint16_t size, n, at; /* at: where the next one goes */
	float ring[WINDOW_MAX], sorted[WINDOW_MAX];
};
void window_init(struct window *w, unsigned size); /* 1 .. WINDOW_MAX */
void window_add(struct window *w, float x);
float window_median(const struct window *w); /* n > 0 */
float window_mad(const struct window *w);    /* n > 0; linear in size, sorts nothing */

/* ---- Exponentially weighted ---- */

struct ewma {
	double mean, var;
	uint32_t n;
};
/* The first 1 / alpha values count alike, so that the first of all does not stick. */
void ewma_add(struct ewma *e, double x, double alpha);
/* A weight per value for a memory of tau, values being dt apart. */
double ewma_alpha(double dt, double tau);

#endif
