/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fleet.h - what a measurement of one node is compared with: the same one of the others. Pure.
 *
 * A healthy fleet is a narrow heap with a few sick ones beside it, so the heap is described by
 * median and MAD, which the sick ones hardly move, and not by mean and deviation:
 *
 *   worse than   median -/+ max(FLEET_MADS * 1.4826 * MAD, floor * median)
 *
 * on the worse side only. floor is what two runs on one healthy machine may differ by; infinite:
 * nobody is judged by it. Below
 * FLEET_MIN values nobody is judged. Source: robust z (detection.md), limits as SuperBench uses
 * them.
 */
#ifndef DETECT_FLEET_H
#define DETECT_FLEET_H

#include <stdbool.h>
#include <stddef.h>

#define FLEET_MIN  5
#define FLEET_MADS 5.0

struct fleet_bounds {
	size_t n; /* values behind it */
	double median;
	double low, high; /* beyond them is worse; -/+ infinity on the good side, and with n <
			     FLEET_MIN */
};

/* Sorts values. What is not finite is left out. */
void fleet_bounds(double *values, size_t n, bool more_is_better, double floor,
		  struct fleet_bounds *ret);
bool fleet_within(const struct fleet_bounds *b, double value);

#endif
