/* SPDX-License-Identifier: Apache-2.0 */
/*
 * score.h - verdicts held against labels. What counts as what stands in doc/trace-model.md.
 */
#ifndef DETECT_REPLAY_SCORE_H
#define DETECT_REPLAY_SCORE_H

#include <stdio.h>

#include "base/err.h"
#include "detect/replay/timely.h"
#include "detect/trace.h"

#define SCORE_GROUPS_MAX 16
#define SCORE_NAME_MAX   24
#define SCORE_FAULTS_MIN 60u /* fewer of a class say little of it */

struct tally { /* of one group of faults */
	char name[SCORE_NAME_MAX];
	uint32_t faults, found, right; /* found: in the right class; right: and the subject first */
	double *delays; /* s, of the `timed`: those found, until they were named if they were */
	uint32_t timed, cap;
	uint32_t asked;           /* for how many a bound of the delay is asked for */
	uint32_t judged, in_time; /* judged: whose delay is, of those that were named */
	double usual_s;           /* the shortest usual step when one of them began; 0: unknown */
};

/* Of jobs that declare their phases, or of those that do not. */
struct tallies {
	struct tally groups[SCORE_GROUPS_MAX];
	uint32_t n_groups, jobs;
	double node_days;
	uint32_t alarms, good, vague, wrong, spurious, echoes;
};

struct score {
	struct tallies declared, undeclared;
	bool any_class; /* for detectors that know but one */
	FILE *log;      /* what was false or not found, a line each; NULL: nowhere */
	/* of the trace that is being scored */
	struct label *labels; /* FAULT and ALSO */
	struct fate {
		uint64_t found_ns, right_ns;
		bool first_right;
		struct timely_fault begin;
		enum timely_verdict timely;
	} * fates;
	struct timely timely;
	size_t n, cap, from; /* labels before `from` are over */
	bool declares;       /* all its jobs do */
};

void score_init(struct score *s);
void score_fini(struct score *s);
/* Everything must come in order of time. -ENOMEM. */
MUST_CHECK int score_label(struct score *s, const struct label *l);
void score_sample(struct score *s, const struct sample *sample); /* what the detector is told */
void score_verdict(struct score *s, const struct verdict *v);
/* The trace is over: its counts go to the tallies. */
MUST_CHECK int score_end(struct score *s, double node_days);
MUST_CHECK int score_add(struct score *sum, const struct score *s);

/* For people, and one JSON object a line. */
void score_table(const struct score *s, const char *title, FILE *out);
void score_json(const struct score *s, const char *detector, const char *title, FILE *out);

/* 95 % confidence: of k in n (Wilson), of a rate of k events in `exposure` (exact Poisson). */
void interval_share(uint32_t k, uint32_t n, double *ret_low, double *ret_high);
void interval_rate(uint32_t k, double exposure, double *ret_low, double *ret_high);
/* Classes with a target: recall, and the share of those told in time. i from 0; NULL: no more. */
const char *score_target(unsigned i, double *ret_share);
const struct tally *score_group(const struct tallies *t, const char *name); /* NULL: none */
double tally_delay(const struct tally *t, double quantile);                 /* s; NaN: none */

#endif
