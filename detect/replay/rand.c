/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "detect/replay/rand.h"

#include <math.h>

float normal_quantiles[1 << NORMAL_BITS];

void rand_init(void)
{
	const unsigned n = 1 << NORMAL_BITS;

	for (unsigned i = 0; i < n; i++) {
		double p = (i + 0.5) / n, low = -5, high = 5;

		while (high - low > 1e-9) {
			double mid = (low + high) / 2;

			if (0.5 * erfc(-mid / sqrt(2)) < p)
				low = mid;
			else
				high = mid;
		}
		normal_quantiles[i] = (float)low;
	}
}

double rand_exponential(struct rand *r, double mean)
{
	return -mean * log(1 - rand_unit(r));
}

double rand_lognormal(struct rand *r, double median, double sigma)
{
	return median * exp(sigma * (double)rand_normal(r));
}

double rand_lognormal_in(struct rand *r, double median, double sigma, double low, double high)
{
	return fmin(fmax(rand_lognormal(r, median, sigma), low), high);
}
