/* SPDX-License-Identifier: Apache-2.0 */
/*
 * timeout.h - how long steps and declared phases of a job take, and from when on that is too long.
 *
 * What is learned belongs to the job, so that a new rank or run does not begin from nothing: one
 * history for steps, one for the time from a run's begin to a rank's first step, one for each
 * declared phase with the trainer's word for it. Longest: of the last two periods of
 * TIMEOUT_PERIOD_NS, and, from the runs before, their mean with half the weight on the newest (as
 * NVRx does). Median: from a histogram with eight steps to the octave that forgets. Phases have a
 * phi each as well, of all ranks of the job: they are too rare for one of each rank.
 */
#ifndef DETECT_TIMEOUT_H
#define DETECT_TIMEOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "detect/phi.h"

#define TIMEOUT_BUCKETS   192 /* 1 ms .. 4.6 h */
#define TIMEOUT_PHASES    16  /* of one job; the one not used for longest makes room */
#define TIMEOUT_PERIOD_NS (UINT64_C(3) * 86400 * 1000000000)

struct learned {
	uint64_t n;         /* of all runs */
	float longest[2];   /* s; of this period and of the one before */
	float kept;         /* s; longest of earlier runs; 0: none */
	float median;       /* s; 0: nothing learned */
	uint64_t turned_ns; /* the period began */
	uint32_t weight;    /* sum of the buckets */
	uint32_t since;     /* learned since the median was computed */
	uint16_t buckets[TIMEOUT_BUCKETS];
};

struct learned_phase {
	uint32_t phase;
	char what[32];
	uint64_t used_ns; /* 0: free */
	struct learned times;
	struct phi phi;        /* the same of those that ended no suspicion */
	uint8_t unlearned;     /* that did, one after the other in time, in a row */
	uint64_t unlearned_ns; /* the last of them ended */
};

struct timeouts {
	struct learned steps, starts;
	struct learned_phase phases[TIMEOUT_PHASES];
};

/* window: the histogram forgets so that about so many count. */
void learned_add(struct learned *l, double s, uint64_t now_ns, uint32_t window);
void learned_new_run(struct learned *l);
double learned_longest(const struct learned *l);

/* max(longest_x * longest, median_x * median, floor_s); where fewer than `few` are known, no less
 * than first_s. */
struct timeout_options {
	double longest_x, median_x, floor_s, first_s;
	uint32_t few;
};
double learned_timeout(const struct learned *l, const struct timeout_options *o);

/* The history of a phase, new where there is none. */
struct learned_phase *timeouts_phase(struct timeouts *t, uint32_t phase, const char *what,
				     uint64_t now_ns);
const struct learned_phase *timeouts_find(const struct timeouts *t, uint32_t phase,
					  const char *what);
void timeouts_new_run(struct timeouts *t);

#endif
