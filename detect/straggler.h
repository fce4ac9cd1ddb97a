/* SPDX-License-Identifier: Apache-2.0 */
/*
 * straggler.h - whose own work takes longer than that of its peers, and than it used to.
 *
 * Ranks of one role do the same work. What each of them worked in a step (without waiting) is
 * gathered over windows of the same steps for all, so that what all share - longer sequences, a
 * shared drift - is in every one of them alike. Per window:
 *
 *   value    median of the means of the window's four parts: one wild step does not show
 *   ratio    value / median of the values of ranks on other nodes, or of all others; where there
 * are none on other nodes (a stage that is one node) also value / its usual value, over the same of
 * the job's ranks on other nodes, if that is more excess   ratio / the ratio that is usual for this
 * rank (some nodes are always slower) sigma    the noise of excess: of all peers now, of this rank
 * so far; at least 1 % z        the larger of (excess - 1 - 0.075) / sigma and (ratio - 1 - 0.115)
 * / sigma, in +-4 score    max(0, score + z): a CUSUM whose drift is half of what must be found
 *
 * score >= 10 is slow: at least three windows, more where it is noisy. Who is suspected is not
 * learned from. Pure; the state of a rank and of a role belongs to the caller, zeroed at first.
 */
#ifndef DETECT_STRAGGLER_H
#define DETECT_STRAGGLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STRAGGLER_PARTS     4
#define STRAGGLER_WARM_UP   10    /* first steps of a run that say nothing */
#define STRAGGLER_SLOW      0.075 /* beyond its usual ratio: half of the 15 % to be found */
#define STRAGGLER_ABSOLUTE  0.115 /* beyond its peers, usual or not */
#define STRAGGLER_USUAL_MAX 1.10  /* what a rank may be slower and be left alone */
#define STRAGGLER_SCORE     10.0
#define STRAGGLER_Z_MAX     4.0
#define STRAGGLER_SIGMA_MIN 0.01
#define STRAGGLER_NEW_PACE  64 /* windows after which longer steps are the usual ones */
#define STRAGGLER_CALM      3 /* windows without excess until it is well again */

struct straggler_role {
	uint32_t generation; /* of windows; they begin anew when their length changes */
	uint32_t steps; /* of a window: 4 * 2^n, so that it lasts 6 s to 12 s; 0: not known yet */
	uint32_t n_intervals;
	float interval_s;  /* of steps, fading */
	bool open;         /* window is valid */
	uint64_t window;   /* that is judged next: step / steps */
	uint32_t n_done;   /* ranks that are through with it */
	uint64_t first_ns; /* since then the first of them is */
	float sigma;       /* of the peers' excess, fading; 0: none yet */
	uint32_t n_judged, n_last; /* windows; ranks of the last one */
	uint32_t n_back;           /* steps from long before it since then */
	/* All of its ranks against what they used to work: the median of their values. */
	float usual_s, pace, pace_spread, pace_score;
	uint32_t n_usual, n_slower; /* windows learned from; with a score, in a row */
	/* Median of the values of the job's ranks on other nodes, whatever their role is, for who
	 * has no peers there. The caller keeps it; 0: not known. */
	float beside_s;
};

struct straggler_rank {
	uint32_t generation, node;
	uint64_t window; /* that is gathered */
	float sum_s[STRAGGLER_PARTS];
	uint32_t n[STRAGGLER_PARTS];
	uint64_t done;                /* the newest window with a value */
	float value_s;                /* of it */
	bool fresh;                   /* it was not judged yet */
	float usual, usual_s, spread; /* learned: ratio, value, noise of excess */
	float peers_s;                /* what it was compared with */
	float ratio, excess, score;   /* of the window judged last */
	bool alone;                   /* without peers on other nodes */
	bool by_past;                 /* ratio is not to peers but to its usual share */
	float share;                  /* usual value / role.beside_s */
	uint32_t n_shares;            /* learned from */
	uint32_t n_windows;           /* learned from */
	uint32_t calm;                /* windows without excess, in a row */
	uint32_t slow;                /* windows with some, in a row */
	uint64_t since_ns;            /* score > 0 since then */
};

/* The job runs anew: steps may go back. */
void straggler_role_restart(struct straggler_role *role);
/* Nothing of it is true any longer: it moved to another node. */
void straggler_rank_forget(struct straggler_rank *r, uint32_t node);

/* A step is done. interval_s: since the step before, 0: not known. */
void straggler_add(struct straggler_role *role, struct straggler_rank *r, uint64_t step,
		   double busy_s, double interval_s, uint64_t now_ns);
/* Whether a window can be judged: all n_ranks are through, or enough time has gone by. */
bool straggler_ready(const struct straggler_role *role, uint32_t n_ranks, uint64_t now_ns);
/* Judges it. ranks: all of the role; scratch: 2 * n floats. */
void straggler_judge(struct straggler_role *role, struct straggler_rank *const *ranks, size_t n,
		     float *scratch, uint64_t now_ns);

static inline bool straggler_is_slow(const struct straggler_rank *r)
{
	return r->score >= STRAGGLER_SCORE && r->calm == 0;
}
/* All ranks of the role work longer than they used to, alike. */
static inline bool straggler_all_slow(const struct straggler_role *role)
{
	return role->pace_score >= STRAGGLER_SCORE;
}
static inline bool straggler_is_well(const struct straggler_rank *r)
{
	return r->score < STRAGGLER_SCORE && r->calm >= STRAGGLER_CALM;
}

#endif
