/* SPDX-License-Identifier: Apache-2.0 */
/*
 * degrade.c - regression of latency on load, one sample at a time.
 *
 * Invariants:
 * (1) a is positive semidefinite, a + ridge definite: w exists, also where load never varies;
 * (2) samples above the bound, and any while the mean is a third up to it, are not learned from.
 */
#include <config.h>

#include "detect/degrade.h"

#include <assert.h>
#include <math.h>

#include "detect/robust.h"

#define RIDGE    0.01
#define BEYOND   0.25f /* loads may lie so much beyond those met, in logarithms */
#define WELL     0.3   /* share below which it is over */
#define FADE_MAX 0.5   /* one sample after a long pause does not decide alone */
#define OUTLIER  2.5   /* so many deviations are learned from at most */

static void terms_of(double load, double size, float *x)
{
	x[0] = 1;
	x[1] = (float)log(1e6 + load) - 17; /* around zero for what disks and links do */
	x[2] = x[1] * x[1];
	x[3] = size > 0 ? (float)log(size) - 11 : 0;
}

static bool was_met(const struct degrade *d, const float *x)
{
	for (int i = 1; i < DEGRADE_TERMS; i += 2) /* the square goes with its root */
		if (x[i] < d->low[i] - BEYOND || x[i] > d->high[i] + BEYOND)
			return false;
	return true;
}

static void meet(struct degrade *d, const float *x)
{
	for (int i = 1; i < DEGRADE_TERMS; i++) {
		if (d->n == 0 || x[i] < d->low[i])
			d->low[i] = x[i];
		if (d->n == 0 || x[i] > d->high[i])
			d->high[i] = x[i];
	}
}

/* (a + ridge) w = b, by Cholesky: what never varied gets no weight instead of any. */
static void solve(struct degrade *d)
{
	double l[DEGRADE_TERMS][DEGRADE_TERMS], v[DEGRADE_TERMS];

	for (int i = 0; i < DEGRADE_TERMS; i++) {
		for (int k = 0; k <= i; k++) {
			double sum = d->a[i][k] + (i == k ? RIDGE : 0);

			for (int m = 0; m < k; m++)
				sum -= l[i][m] * l[k][m];
			l[i][k] = i == k ? sqrt(fmax(sum, RIDGE)) : sum / l[k][k];
		}
		v[i] = d->b[i];
		for (int m = 0; m < i; m++)
			v[i] -= l[i][m] * v[m];
		v[i] /= l[i][i];
	}
	for (int i = DEGRADE_TERMS; i-- > 0;) {
		for (int m = i + 1; m < DEGRADE_TERMS; m++)
			v[i] -= l[m][i] * d->w[m];
		d->w[i] = v[i] / l[i][i];
	}
}

static void regress(struct degrade *d, const float *x, double y)
{
	for (int i = 0; i < DEGRADE_TERMS; i++) {
		for (int k = 0; k < DEGRADE_TERMS; k++)
			d->a[i][k] = DEGRADE_FORGET * d->a[i][k] + (double)x[i] * x[k];
		d->b[i] = DEGRADE_FORGET * d->b[i] + x[i] * y;
	}
	solve(d);
}

/* predicted: y without e. */
static void learn(struct degrade *d, const float *x, double predicted, double e)
{
	double sigma = sqrt(d->variance), weight = d->n < 200 ? 1.0 / (d->n + 1) : 1.0 / 200;

	if (d->n >= DEGRADE_TERMS * 4 && fabs(e) > OUTLIER * fmax(sigma, DEGRADE_SIGMA_MIN))
		e = copysign(OUTLIER * fmax(sigma, DEGRADE_SIGMA_MIN), e);
	regress(d, x, predicted + e);
	if (d->n >= DEGRADE_TERMS) /* before it fits whatever comes */
		d->variance += (float)(weight * (e * e - d->variance));
	meet(d, x);
	d->n++;
}

void degrade_add(struct degrade *d, double load, double size, double latency_s, uint64_t now_ns)
{
	float x[DEGRADE_TERMS];
	double e = log(latency_s), predicted = 0, weight, bound;
	bool slow;

	assert(load > 0 && size >= 0 && latency_s > 0 && now_ns >= d->last_ns);
	terms_of(load, size, x);
	for (int i = 0; i < DEGRADE_TERMS; i++)
		predicted += d->w[i] * x[i];
	e -= predicted;
	weight = fmin(FADE_MAX, ewma_alpha((double)(now_ns - d->last_ns) / 1e9, DEGRADE_MEMORY_S));
	d->last_ns = now_ns;
	if (d->n < DEGRADE_LEARN || !was_met(d, x)) {
		learn(d, x, predicted, e);
		return;
	}
	bound = DEGRADE_BOUND * fmax(sqrt(d->variance), DEGRADE_SIGMA_MIN);
	slow = e > bound;
	d->share += (float)(weight * (slow - d->share));
	d->slowdown += (float)(weight * (e - d->slowdown));
	if (d->share >= DEGRADE_SHARE && !d->since_ns)
		d->since_ns = now_ns;
	else if (d->share < WELL)
		d->since_ns = 0;
	if (!slow && d->slowdown < bound / 3)
		learn(d, x, predicted, e);
}

double degrade_times(const struct degrade *d)
{
	return exp(d->slowdown);
}

bool degrade_is_slow(const struct degrade *d, double times, uint64_t now_ns)
{
	return d->since_ns && now_ns - d->since_ns >= DEGRADE_PERSIST_NS &&
	       d->share >= DEGRADE_SHARE && degrade_times(d) >= times;
}
