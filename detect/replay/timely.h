/* SPDX-License-Identifier: Apache-2.0 */
/*
 * timely.h - how soon a fault has to be told, in what a trace can show: doc/trace-model.md.
 *
 * Seconds where the trace says it at once; the job's own usual steps where time shows it; of a NaN
 * the first beat that has it. For traces of one job that declares its phases: of several nobody
 * knows whose steps a node's fault is measured in, and without phases which time is a step.
 */
#ifndef DETECT_REPLAY_TIMELY_H
#define DETECT_REPLAY_TIMELY_H

#include "detect/trace.h"

#define TIMELY_STEPS 31u /* of which the usual one is the median */

struct timely { /* the job, so far */
	uint32_t job;
	bool several;
	uint64_t step, step_ns; /* the last that is finished, and when */
	uint64_t took_ns[TIMELY_STEPS], n_took;
	uint64_t nan_ns; /* the first beat with no finite number since a fault began */
	bool nan, paused;
	uint32_t rank;  /* of the newest fault */
	bool may_go_on; /* it was seen waiting for input, or perhaps its GPU, as the healthy do */
};

/* What it was when a fault began. */
struct timely_fault {
	uint64_t usual_ns, step; /* usual_ns 0: not learned yet */
	bool in_step;
};

enum timely_verdict { TIMELY_NOT_JUDGED, TIMELY_IN_TIME, TIMELY_LATE };

void timely_init(struct timely *t);
void timely_sample(struct timely *t, const struct sample *s);
struct timely_fault timely_begin(struct timely *t, const struct label *l);
/* There is a bound for faults of its kind, whether or not a trace lets it be judged. */
bool timely_asks(const struct label *l);
/* The fault is told at told_ns, the time of the last sample or later. */
enum timely_verdict timely_told(const struct timely *t, const struct label *l,
				const struct timely_fault *f, uint64_t told_ns);

#endif
