/* SPDX-License-Identifier: Apache-2.0 */
/*
 * interval.c - see interval.h. Pure; any thread.
 */
#include <config.h>

#include "detect/interval.h"

#include <assert.h>
#include <math.h>

#define Z_80       1.2815515655446004 /* of the normal distribution: 0.1 lie beyond it */
#define BISECTIONS 200
#define STEPS_MAX  UINT64_C(1000000000000) /* more than any run has */

double interval_young(double cost, double mtbf)
{
	assert(cost >= 0 && mtbf > 0);
	return sqrt(2 * cost * mtbf);
}

double interval_daly(double cost, double mtbf)
{
	double x;

	assert(cost >= 0 && mtbf > 0);
	if (cost >= 2 * mtbf)
		return mtbf;
	x = sqrt(cost / (2 * mtbf));
	return interval_young(cost, mtbf) * (1 + x / 3 + x * x / 9) - cost;
}

double interval_wall(double t, double cost, double restart, double mtbf)
{
	assert(t > 0 && cost >= 0 && restart >= 0 && mtbf > 0);
	return mtbf * exp(restart / mtbf) * expm1((t + cost) / mtbf);
}

double interval_exact(double cost, double mtbf)
{
	double low = 0, high = mtbf;

	assert(cost >= 0 && mtbf > 0);
	/* (1 - t/M) e^((t + C)/M) falls from e^(C/M) >= 1 at t = 0 to 0 at t = M. */
	for (int i = 0; i < BISECTIONS && high - low > 1e-12 * mtbf; i++) {
		double t = (low + high) / 2;

		if (log1p(-t / mtbf) + (t + cost) / mtbf > 0)
			low = t;
		else
			high = t;
	}
	return (low + high) / 2;
}

/* The z-quantile of a gamma distribution of shape a and rate 1. */
static double gamma_quantile(double a, double z)
{
	double root = 1 - 1 / (9 * a) + z / (3 * sqrt(a));

	return root > 0 ? a * root * root * root : 0;
}

void interval_rate_of(const struct interval_prior *prior, uint64_t failures, double watched,
		      struct interval_rate *ret)
{
	double shape = prior->weight + (double)failures;
	double time = prior->weight * prior->mtbf + watched;

	assert(prior->mtbf > 0 && prior->weight > 0 && watched >= 0);
	*ret = (struct interval_rate){
		.failures = failures,
		.watched = watched,
		.per_s = shape / time,
		.low = gamma_quantile(shape, -Z_80) / time,
		.high = gamma_quantile(shape, Z_80) / time,
		.trusted = watched / time,
	};
}

double interval_loss(const struct interval_cost *c, double per_s, double t)
{
	double mtbf = 1 / per_s;

	assert(per_s > 0 && t > 0);
	/* What was saved and did not count yet is done again: L more with each failure. */
	return 1 - t / (interval_wall(t, c->stall, c->restart, mtbf) * (1 + c->latency / mtbf));
}

/* Between two whole numbers of steps the one that loses less. */
static uint64_t whole_steps(const struct interval_cost *c, double per_s, double t, double least)
{
	double n = floor(t / c->step);

	if (n < 1)
		return 1;
	if (n >= STEPS_MAX) /* whoever counted steps was told a wild number */
		return STEPS_MAX;
	if (n * c->step < least)
		return (uint64_t)n + 1;
	return interval_loss(c, per_s, n * c->step) <= interval_loss(c, per_s, (n + 1) * c->step)
		       ? (uint64_t)n
		       : (uint64_t)n + 1;
}

static double bounded(const struct interval_cost *c, double per_s)
{
	return fmax(interval_daly(c->stall, 1 / per_s), fmax(c->latency, c->step));
}

void interval_advise(const struct interval_cost *c, const struct interval_rate *r,
		     struct interval_advice *ret)
{
	double best = interval_daly(c->stall, 1 / r->per_s);
	double least = fmax(c->latency, c->step);
	double t = fmax(best, least);

	assert(c->stall >= 0 && c->latency >= 0 && c->restart >= 0 && c->step >= 0);
	if (t <= 0)
		t = 1; /* it costs nothing, and nothing else is known */
	*ret = (struct interval_advice){
		.seconds = t,
		.steps = c->step > 0 ? whole_steps(c, r->per_s, t, c->latency) : 0,
		.often = r->high > 0 ? bounded(c, r->high) : t,
		.rarely = r->low > 0 ? bounded(c, r->low) : INFINITY,
		.loss = interval_loss(c, r->per_s, t),
		.per_failure = c->latency + t / 2 + c->restart,
		.why = best >= least && best > 0 ? INTERVAL_BALANCE : INTERVAL_BOUND,
	};
}

void interval_advise_tiers(const struct interval_cost c[2], const struct interval_rate r[2],
			   struct interval_advice ret[2])
{
	struct interval_cost both = c[1];
	struct interval_rate rate = r[1];

	interval_advise(&c[0], &r[0], &ret[0]);
	interval_advise(&c[1], &r[1], &ret[1]);
	if (ret[1].seconds >= ret[0].seconds)
		return;
	both.stall += c[0].stall;
	rate.failures += r[0].failures;
	rate.per_s += r[0].per_s;
	rate.low += r[0].low;
	rate.high += r[0].high;
	/* A failure of one kind or the other: what each takes, weighted by how often it comes. */
	both.restart = (c[0].restart * r[0].per_s + c[1].restart * r[1].per_s) / rate.per_s;
	interval_advise(&both, &rate, &ret[1]);
	ret[1].why = INTERVAL_JOINT;
	ret[0] = ret[1];
}
