/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "detect/phi.h"

#include <assert.h>
#include <math.h>

/* Sums that only ever take and give back drift: once per round of the window they are made anew. */
static void sum_anew(struct phi *p)
{
	p->sum = p->squares = 0;
	for (uint32_t i = 0; i < p->n; i++) {
		p->sum += p->interval[i];
		p->squares += (double)p->interval[i] * p->interval[i];
	}
}

void phi_learn(struct phi *p, double interval_s)
{
	double old;

	assert(interval_s >= 0 && p->next < PHI_WINDOW);
	if (p->n == PHI_WINDOW) {
		old = p->interval[p->next];
		p->sum -= old;
		p->squares -= old * old;
	} else {
		p->n++;
	}
	p->interval[p->next] = (float)interval_s;
	old = p->interval[p->next];
	p->sum += old;
	p->squares += old * old;
	if (++p->next == PHI_WINDOW) {
		p->next = 0;
		sum_anew(p);
	}
}

void phi_bootstrap(struct phi *p, double mean_s)
{
	*p = (struct phi){0};
	phi_learn(p, mean_s - mean_s / 4);
	phi_learn(p, mean_s + mean_s / 4);
}

double phi_mean(const struct phi *p)
{
	return p->n ? p->sum / p->n : 0;
}

double phi_sigma(const struct phi *p)
{
	double mean = phi_mean(p), variance = p->n ? p->squares / p->n - mean * mean : 0;

	return variance > 0 ? sqrt(variance) : 0;
}

double phi_now(const struct phi *p, double age_s, double pause_s, double sigma_min_s)
{
	double mean = phi_mean(p) + pause_s, sigma = phi_sigma(p), y, e;

	if (!p->n)
		return 0;
	if (sigma < sigma_min_s)
		sigma = sigma_min_s;
	assert(sigma > 0);
	y = (age_s - mean) / sigma;
	if (y > 15) /* e is next to nothing: the same without it, before exp() becomes 0 */
		return (y * (1.5976 + 0.070566 * y * y)) / M_LN10;
	e = exp(-y * (1.5976 + 0.070566 * y * y));
	if (age_s > mean)
		return -log10(e / (1 + e));
	return -log10(1 - 1 / (1 + e));
}
