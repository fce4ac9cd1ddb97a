/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "detect/fleet.h"

#include <math.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Of sorted values, n > 0. */
static double middle(const double *v, size_t n)
{
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* The median distance from m: the n/2 nearest values lie around it in sorted order, so two
 * fingers that move outwards find it without a second array. */
static double mad(const double *v, size_t n, double m)
{
	size_t right = 0, left, steps = n / 2 + 1;
	double before = 0, last = 0;

	while (right < n && v[right] < m)
		right++;
	left = right;
	for (size_t i = 0; i < steps; i++) {
		double up = right < n ? v[right] - m : INFINITY;
		double down = left > 0 ? m - v[left - 1] : INFINITY;

		before = last;
		if (up <= down) {
			last = up;
			right++;
		} else {
			last = down;
			left--;
		}
	}
	return n % 2 ? last : (before + last) / 2;
}

void fleet_bounds(double *values, size_t n, bool more_is_better, double floor,
		  struct fleet_bounds *ret)
{
	size_t kept = 0;
	double away, m;

	for (size_t i = 0; i < n; i++)
		if (isfinite(values[i]))
			values[kept++] = values[i];
	qsort(values, kept, sizeof(values[0]), by_value);
	*ret = (struct fleet_bounds){.n = kept, .median = NAN, .low = -INFINITY, .high = INFINITY};
	if (kept == 0)
		return;
	m = middle(values, kept);
	ret->median = m;
	if (kept < FLEET_MIN)
		return;
	away = isinf(floor) ? INFINITY
			    : fmax(FLEET_MADS * 1.4826 * mad(values, kept, m), floor * fabs(m));
	if (more_is_better)
		ret->low = m - away;
	else
		ret->high = m + away;
}

bool fleet_within(const struct fleet_bounds *b, double value)
{
	return value >= b->low && value <= b->high;
}
