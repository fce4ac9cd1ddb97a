/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phi.h - how unlikely a silence is (phi accrual, Hayashibara 2004, as Akka computes it).
 *
 * phi = -log10 of the chance that the next arrival comes later than now, under a normal law with
 * the mean and deviation of the last intervals. Who learns must leave out intervals that ended a
 * suspicion: one outage would raise the tolerance for good.
 */
#ifndef DETECT_PHI_H
#define DETECT_PHI_H

#include <stdbool.h>
#include <stdint.h>

#define PHI_WINDOW 100

struct phi {
	uint32_t n, next;
	float interval[PHI_WINDOW]; /* s */
	double sum, squares;        /* of those */
};

void phi_learn(struct phi *p, double interval_s);
/* Two intervals, mean -+ mean/4: something to begin with. */
void phi_bootstrap(struct phi *p, double mean_s);
double phi_mean(const struct phi *p); /* 0 where nothing was learned */
double phi_sigma(const struct phi *p);
/* After age_s of silence; pause_s: added to the mean, sigma_min_s: the deviation is no less. */
double phi_now(const struct phi *p, double age_s, double pause_s, double sigma_min_s);

#endif
