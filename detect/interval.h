/* SPDX-License-Identifier: Apache-2.0 */
/*
 * interval.h - how often to take a checkpoint: formulas, and what follows from what was measured.
 * Pure arithmetic; seconds throughout. doc/goodput.md says the same to people.
 *
 *   C  what a checkpoint costs training: it stands still for so long
 *   L  latency: from its beginning until it counts (is committed, or durable)
 *   R  from a failure until training goes on: finding out, restarting, loading
 *   M  mean time between failures of which this kind of checkpoint is the answer
 *   t  training between two checkpoints: what is sought
 *
 *   Young   t = sqrt(2 C M)                                    [Young 1974, CACM 17(9)]
 *   Daly    t = sqrt(2 C M) (1 + x/3 + x^2/9) - C, x = sqrt(C / 2M), for C < 2M; else t = M
 *                                                              [Daly 2006, FGCS 22(3), eq. 37]
 *   wall    E(t) = M e^(R/M) (e^((t + C)/M) - 1): until t of training is done and saved, where
 *           failures come at random (exponential) and may come while restarting too
 *                                                              [Daly 2006, eq. 20]
 *   GEMINI  lost with each failure: L + t/2 + R, with t >= max(L, one step): one checkpoint is made
 *           at a time; where C is next to nothing that bound is the answer   [SOSP 2023, eq. 1, 2]
 *
 * Two tiers, each with failures of its own kind (a process dies: memory; a node dies: disk): to
 * first order what is lost is a sum, so each tier has its own t [Vaidya 1995]. Where that would
 * have the slow tier more often than the fast one both are one, with both costs and both rates.
 */
#ifndef DETECT_INTERVAL_H
#define DETECT_INTERVAL_H

#include <stdbool.h>
#include <stdint.h>

double interval_young(double cost, double mtbf);
double interval_daly(double cost, double mtbf);
/* E(t). */
double interval_wall(double t, double cost, double restart, double mtbf);
/* The t for which E(t) / t is least: the zero of (1 - t/M) e^((t + C)/M) = 1. */
double interval_exact(double cost, double mtbf);

/*
 * How often something fails, from few failures: a gamma distribution, the conjugate of a Poisson
 * process. A prior of `weight` failures at a mean time of `mtbf` counts like that many that were
 * seen; behind some tens of failures it does not matter. low and high enclose the rate with
 * probability 0.8 (Wilson and Hilferty 1931).
 */
struct interval_prior {
	double mtbf;   /* > 0 */
	double weight; /* > 0; 1: as good as one failure */
};
struct interval_rate {
	uint64_t failures; /* seen */
	double watched;    /* for so long */
	double per_s, low, high;
	double trusted; /* 0 .. 1: the share of what was seen, not the prior */
};
void interval_rate_of(const struct interval_prior *prior, uint64_t failures, double watched,
		      struct interval_rate *ret);

struct interval_cost {
	double stall, latency, restart; /* C, L, R */
	double step;                    /* one training step; 0: not known */
};

enum interval_why {
	INTERVAL_BALANCE, /* Daly's: cost and rework are in balance */
	INTERVAL_BOUND,   /* GEMINI's: as often as can be */
	INTERVAL_JOINT,   /* of both tiers together */
};
struct interval_advice {
	double seconds;
	uint64_t steps;       /* whole ones, at least 1; 0: the length of a step is not known */
	double often, rarely; /* seconds at rate.high and rate.low: how sure it is */
	double loss;          /* share of all time that is lost, at this interval */
	double per_failure;   /* seconds lost with one: L + t/2 + R */
	enum interval_why why;
};
/* The share of time that is lost if training saves every t. */
double interval_loss(const struct interval_cost *c, double per_s, double t);
void interval_advise(const struct interval_cost *c, const struct interval_rate *r,
		     struct interval_advice *ret);
/* [0] the fast tier, [1] the slow one, whose stall comes on top of the fast one's. */
void interval_advise_tiers(const struct interval_cost c[2], const struct interval_rate r[2],
			   struct interval_advice ret[2]);

#endif
