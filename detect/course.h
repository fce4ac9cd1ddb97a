/* SPDX-License-Identifier: Apache-2.0 */
/*
 * course.h - the course of one value over the steps of a run: does it jump, does it drift up?
 *
 * Jump: odd is what is `odd_x` times the median of the last 32 ordinary values and, robustly,
 * COURSE_JUMP_Z deviations above it; wild is what is `jump_x` times the median too. Some odd values
 * in a row are what data does; COURSE_WILD_LASTS wild ones of the last eight are a jump, and
 * COURSE_ODD_LASTS odd ones of the last 32. Odd values are not learned.
 *
 * Drift: a CUSUM over the means of COURSE_BLOCK steps, which neighbours in time hardly share any
 * noise of: S = max(0, S + min(z, 3) - k), z in robust deviations from the median of the last 32
 * ordinary blocks; no single block is enough. Blocks are not learned while S > h / 2. Pure; the
 * state belongs to the caller, zeroed for a new run, whose first COURSE_WARM_UP values say nothing.
 */
#ifndef DETECT_COURSE_H
#define DETECT_COURSE_H

#include <stdbool.h>
#include <stdint.h>

#include "detect/robust.h"

#define COURSE_WARM_UP    20
#define COURSE_LEAST      16 /* values, before anything is judged by them */
#define COURSE_BLOCKS     8  /* the same of blocks */
#define COURSE_JUMP_Z     8.0
#define COURSE_WILD_LASTS 5
#define COURSE_ODD_LASTS  24
#define COURSE_DRIFT_Z    3.0
#define COURSE_BLOCK      16
#define COURSE_FLOOR      0.01 /* the least deviation, as a share of the median */
#define COURSE_ANEW       64   /* blocks of drift or odd values that are the new ordinary */

struct course_options {
	double odd_x, jump_x, cusum_k, cusum_h;
};

struct course {
	struct window values, blocks;
	uint64_t seen;
	uint32_t odd, wild; /* the last 32, newest in bit 0 */
	uint32_t odd_row, drift_row;
	uint64_t odd_ns, drift_ns; /* began */
	double value, z;           /* the last one */
	double block_sum;
	uint32_t block_n;
	double block, cusum; /* the last full one, S after it */
	bool jumped, drifts;
};

/* What is so after this value; jumped and drifts of c say whether it lasts. */
void course_add(struct course *c, double x, uint64_t now_ns, const struct course_options *o);
bool course_is_odd(const struct course *c);       /* the last value */
double course_level(const struct course *c);      /* the median it is compared with; 0: none */
double course_drift_from(const struct course *c); /* the same of blocks */

#endif
