/* SPDX-License-Identifier: Apache-2.0 */
/*
 * straggler.c - windows of steps, ratios to peers, and what is usual.
 *
 * Invariants:
 * (1) a rank's sums are of steps of r->window alone, in generation r->generation;
 * (2) role->n_done is how many ranks of this generation are fresh and have done >= role->window;
 * (3) what a rank did in a window is judged once.
 *
 * A rank that lags by windows is left out of those that are judged meanwhile; one that is ahead
 * counts with its newest window.
 */
#include <config.h>

#include "detect/straggler.h"

#include <assert.h>
#include <math.h>

#include "detect/robust.h"
#include "detect/sample.h"

#define WINDOW_S      6  /* at least; a window is at most twice as long, or 4 steps */
#define INTERVALS_MIN 16 /* before the length of windows is chosen */
#define PEERS_APART   64 /* up to so many each is compared with those on other nodes */
#define ELSEWHERE_MIN 2
#define PEERS_POOLED  5    /* from so many on their spread says something */
#define FEW_PEERS     4    /* below: who of them has changed is told by its own past as well */
#define RATIO_HOLDS   1.04 /* below nobody is held up, whatever is usual */
#define EXCESS_CALM   1.05
#define USUAL_MIN     0.85
#define SPREAD_BORN   0.02f
#define SPREAD_MAX    0.3
#define LEARN_FROM    8 /* windows after which usual_s says something */
#define SHARE_STEP    0.075f
#define BUSY_MIN_S    2e-3
#define BACK          2 /* windows before the one that is judged next: who lags is not further */
#define CROWD         4 /* one in so many, on several nodes: it is their work, not their fault */

static void begin_windows(struct straggler_role *role)
{
	role->generation++;
	role->open = false;
	role->n_done = role->n_back = 0;
}

/* What its steps used to take is of all runs, that they take longer of one. */
void straggler_role_restart(struct straggler_role *role)
{
	begin_windows(role);
	role->pace_score = 0;
	role->n_slower = 0;
}

void straggler_rank_forget(struct straggler_rank *r, uint32_t node)
{
	*r = (struct straggler_rank){.node = node};
}

/* ---- Gathering ---- */

static uint32_t steps_for(double interval_s)
{
	uint32_t steps = STRAGGLER_PARTS;

	while (steps * interval_s < WINDOW_S && steps < 1u << 20)
		steps *= 2;
	return steps;
}

static void learn_interval(struct straggler_role *role, double interval_s)
{
	double weight = role->n_intervals < 100 ? 1.0 / (role->n_intervals + 1) : 0.01;

	/* One long wait must not lengthen windows. */
	if (role->n_intervals >= INTERVALS_MIN && interval_s > 3 * role->interval_s)
		interval_s = 3 * role->interval_s;
	role->interval_s += (float)(weight * (interval_s - role->interval_s));
	role->n_intervals += role->n_intervals < UINT32_MAX;
	if (!role->steps && role->n_intervals >= INTERVALS_MIN)
		role->steps = steps_for(role->interval_s);
}

static void begin_window(struct straggler_rank *r, uint64_t window)
{
	r->window = window;
	for (int i = 0; i < STRAGGLER_PARTS; i++) {
		r->sum_s[i] = 0;
		r->n[i] = 0;
	}
}

static void finish_window(struct straggler_role *role, struct straggler_rank *r, uint64_t now_ns)
{
	float means[STRAGGLER_PARTS];
	bool counted = role->open && r->fresh && r->done >= role->window;
	size_t n = 0;

	for (int i = 0; i < STRAGGLER_PARTS; i++)
		if (r->n[i])
			means[n++] = r->sum_s[i] / (float)r->n[i];
	if (n < STRAGGLER_PARTS / 2)
		return;
	r->value_s = median_of(means, n);
	r->done = r->window;
	r->fresh = r->value_s > 0;
	if (!role->open) {
		role->open = true;
		role->window = r->window;
		role->n_done = 0;
	}
	if (counted || !r->fresh || r->done < role->window)
		return;
	if (role->n_done++ == 0)
		role->first_ns = now_ns;
}

/* A step from long before the window that is judged next; a window of them without a judgement: the
 * run went back in place, or one told of a wild step where all others are now waited for. */
static bool went_back(struct straggler_role *role)
{
	uint32_t ranks = role->n_last ? role->n_last : 1;

	return role->open && ++role->n_back > role->steps * ranks;
}

void straggler_add(struct straggler_role *role, struct straggler_rank *r, uint64_t step,
		   double busy_s, double interval_s, uint64_t now_ns)
{
	uint64_t window;
	uint32_t part;

	assert(busy_s >= 0 && interval_s >= 0);
	if (interval_s > 0)
		learn_interval(role, interval_s);
	if (!role->steps)
		return;
	window = step / role->steps;
	if (window + BACK < role->window && went_back(role))
		begin_windows(role);
	part = (uint32_t)(step % role->steps * STRAGGLER_PARTS / role->steps);
	if (r->generation != role->generation || window < r->window) {
		r->generation = role->generation;
		r->fresh = false;
		begin_window(r, window);
	} else if (window > r->window) {
		finish_window(role, r, now_ns);
		begin_window(r, window);
	}
	r->sum_s[part] += (float)busy_s;
	r->n[part]++;
	if (step % role->steps == role->steps - 1) {
		finish_window(role, r, now_ns);
		begin_window(r, window + 1);
	}
}

bool straggler_ready(const struct straggler_role *role, uint32_t n_ranks, uint64_t now_ns)
{
	double late_s = role->interval_s * (float)role->steps;

	if (!role->open || role->n_done == 0)
		return false;
	return role->n_done >= n_ranks ||
	       (double)(now_ns - role->first_ns) > 1e9 * (late_s > WINDOW_S ? late_s : WINDOW_S);
}

/* ---- Judging ---- */

static bool takes_part(const struct straggler_role *role, const struct straggler_rank *r)
{
	return r->fresh && r->generation == role->generation && r->done >= role->window;
}

/* The median of those on other nodes than `node` (SAMPLE_NONE: any) and of others than `one`; 0:
 * there are too few. */
static float median_of_others(const struct straggler_role *role,
			      struct straggler_rank *const *ranks, size_t n_ranks, uint32_t node,
			      const struct straggler_rank *one)
{
	float values[PEERS_APART];
	size_t n = 0;

	for (size_t i = 0; i < n_ranks; i++) {
		if (!takes_part(role, ranks[i]) || ranks[i]->node == node || ranks[i] == one)
			continue;
		assert(n < PEERS_APART);
		values[n++] = ranks[i]->value_s;
	}
	return n >= (one ? 1 : ELSEWHERE_MIN) ? median_of(values, n) : 0;
}

/* A role that is on one node cannot tell whether all of that is slow: then what its work usually is
 * of that of others in the job does. */
static void compare_with_past(const struct straggler_role *role, struct straggler_rank *r)
{
	float change;

	r->alone = role->beside_s > 0;
	if (!r->alone || r->n_shares < LEARN_FROM)
		return;
	change = r->value_s / role->beside_s / r->share;
	r->by_past = change > r->ratio;
	if (!r->by_past)
		return;
	r->ratio = change;
	r->peers_s = r->value_s / change;
}

/* Each is compared with the ranks on other nodes: so half of a role, or more, may be slow if it is
 * one node. Where there are none, with all but itself. */
static void find_peers(const struct straggler_role *role, struct straggler_rank *const *ranks,
		       size_t n_ranks)
{
	for (size_t i = 0; i < n_ranks; i++) {
		struct straggler_rank *r = ranks[i];
		size_t k = 0;

		if (!takes_part(role, r))
			continue;
		while (k < i && !(takes_part(role, ranks[k]) && ranks[k]->node == r->node))
			k++;
		r->peers_s = k < i ? ranks[k]->peers_s
				   : median_of_others(role, ranks, n_ranks, r->node, NULL);
		r->ratio = r->peers_s > 0 ? r->value_s / r->peers_s : 0;
	}
	for (size_t i = 0; i < n_ranks; i++) {
		struct straggler_rank *r = ranks[i];

		r->by_past = r->alone = false;
		if (!takes_part(role, r) || r->peers_s > 0)
			continue;
		r->peers_s = median_of_others(role, ranks, n_ranks, SAMPLE_NONE, r);
		if (r->peers_s <= 0)
			r->peers_s = r->value_s; /* the only one */
		r->ratio = r->value_s / r->peers_s;
		compare_with_past(role, r);
	}
}

static double usual_of(const struct straggler_rank *r)
{
	return r->n_windows ? r->usual : 1;
}

/* The noise of all; a window may be wild, or a node slow: it rises slowly. */
static void pool(struct straggler_role *role, float *excesses, size_t n)
{
	double sigma;

	if (n < PEERS_POOLED)
		return;
	sigma = MAD_SIGMA * mad_of(excesses, n, 1);
	if (sigma > 2 * role->sigma && sigma > SPREAD_BORN)
		sigma = fmax(2 * role->sigma, SPREAD_BORN);
	role->sigma += (float)((sigma - role->sigma) * (role->sigma > 0 ? 0.125 : 1));
}

/* Fills ratio and excess of those who take part, n of them, and role->sigma. */
static void compare(struct straggler_role *role, struct straggler_rank *const *ranks,
		    size_t n_ranks, float *values, size_t n, float *excesses)
{
	float median = n > PEERS_APART ? median_of(values, n) : 0;
	size_t m = 0;

	if (n <= PEERS_APART)
		find_peers(role, ranks, n_ranks);
	for (size_t i = 0; i < n_ranks; i++) {
		struct straggler_rank *r = ranks[i];

		if (!takes_part(role, r))
			continue;
		if (n > PEERS_APART) {
			r->peers_s = median;
			r->ratio = r->value_s / median;
			r->by_past = r->alone = false;
		}
		r->excess = (float)(r->ratio / usual_of(r));
		excesses[m++] = r->excess;
	}
	assert(m == n);
	pool(role, excesses, n);
}

/* By little where it is far off: others may have changed instead, and do so again. */
static void learn_share(struct straggler_rank *r, float share)
{
	float weight = r->n_shares < 60 ? 1.0f / (float)(r->n_shares + 1) : 1.0f / 64, off;

	if (!r->n_shares)
		r->share = share;
	off = share / r->share - 1;
	if (r->n_shares >= LEARN_FROM)
		off = fmaxf(-SHARE_STEP, fminf(off, SHARE_STEP));
	r->share *= 1 + weight * off;
	r->n_shares += r->n_shares < UINT32_MAX;
}

static void learn(const struct straggler_role *role, struct straggler_rank *r, bool anyhow)
{
	double weight, ratio = r->ratio, spread = fabs(r->excess - 1.0) * 1.2533;
	bool usual = anyhow || r->ratio < STRAGGLER_USUAL_MAX;

	if (!r->n_windows) {
		r->usual = 1;
		r->usual_s = r->value_s;
		r->spread = SPREAD_BORN;
	}
	weight = r->n_windows < 60 ? 1.0 / (r->n_windows + 4) : 1.0 / 64;
	if (ratio < USUAL_MIN)
		ratio = USUAL_MIN;
	if (spread > SPREAD_MAX)
		spread = SPREAD_MAX;
	if (usual && (anyhow || r->score < STRAGGLER_SCORE / 2)) {
		r->usual += (float)(weight * (ratio - r->usual));
		r->usual_s += (float)(weight * (r->value_s - r->usual_s));
	}
	if (!r->alone)
		r->n_shares = 0;
	else if (r->score < STRAGGLER_SCORE / 2 || anyhow)
		learn_share(r, r->value_s / role->beside_s);
	if (r->score < STRAGGLER_SCORE / 2 || anyhow)
		r->spread +=
			(float)((spread - r->spread) / (r->n_windows < 24 ? r->n_windows + 8 : 32));
	r->n_windows++;
}

static double z_of(const struct straggler_role *role, const struct straggler_rank *r, size_t n)
{
	double sigma = r->n_windows ? r->spread : SPREAD_BORN, own, absolute, z;

	if (sigma < role->sigma)
		sigma = role->sigma;
	if (sigma < STRAGGLER_SIGMA_MIN)
		sigma = STRAGGLER_SIGMA_MIN;
	own = (r->excess - 1 - STRAGGLER_SLOW) / sigma;
	absolute = (r->ratio - 1 - STRAGGLER_ABSOLUTE) / sigma;
	z = absolute > own && usual_of(r) <= STRAGGLER_USUAL_MAX ? absolute : own;
	if (r->ratio < RATIO_HOLDS || r->value_s < BUSY_MIN_S)
		z = fmin(z, -0.5);
	if (n < FEW_PEERS && r->n_windows >= LEARN_FROM && r->value_s < RATIO_HOLDS * r->usual_s)
		z = fmin(z, -0.5);
	return fmax(-STRAGGLER_Z_MAX, fmin(z, STRAGGLER_Z_MAX));
}

static void score(struct straggler_role *role, struct straggler_rank *r, double z, uint64_t now_ns)
{
	bool was_none = r->score <= 0;

	r->score = (float)fmax(0, fmin(r->score + z, 1.5 * STRAGGLER_SCORE));
	r->slow = z > 0 ? r->slow + 1 : 0;
	r->calm = r->excess < EXCESS_CALM || z < -1 ? r->calm + 1 : 0;
	if (r->score > 0 && was_none) {
		uint64_t lasted_ns = (uint64_t)(1e9 * role->interval_s * (float)role->steps);

		r->since_ns = now_ns - (now_ns < lasted_ns ? now_ns : lasted_ns);
	}
}

/* Whether those that would be slow are too many, on too many nodes: another kind of work under
 * the same name. */
static bool is_crowd(const struct straggler_role *role, struct straggler_rank *const *ranks,
		     size_t n_ranks, size_t n)
{
	uint32_t node = 0;
	size_t slow = 0;
	bool many_nodes = false;

	for (size_t i = 0; i < n_ranks; i++) {
		if (!takes_part(role, ranks[i]) || ranks[i]->ratio < 1 + STRAGGLER_ABSOLUTE ||
		    ranks[i]->excess < 1 + STRAGGLER_SLOW)
			continue;
		many_nodes |= slow++ > 0 && ranks[i]->node != node;
		node = ranks[i]->node;
	}
	return many_nodes && slow * CROWD > n;
}

/* Windows of another length if steps have become longer or much shorter: a fault that stretches
 * steps must not stretch the time in which it is found. */
static void fit_window(struct straggler_role *role)
{
	double lasts_s = role->interval_s * (float)role->steps;

	if (lasts_s < WINDOW_S / 2.0 || (lasts_s > 2 * WINDOW_S && role->steps > STRAGGLER_PARTS)) {
		role->steps = steps_for(role->interval_s);
		begin_windows(role);
	}
}

/* All of it against its own past, which is the only thing that what slows all alike can be told by;
 * after a while that is the new pace. */
static void judge_pace(struct straggler_role *role, float *values, size_t n)
{
	float median = median_of(values, n);
	double off, sigma;

	if (!role->n_usual)
		role->usual_s = median;
	role->pace = median / role->usual_s;
	off = fabs(role->pace - 1.0);
	sigma = fmax(role->pace_spread, STRAGGLER_SIGMA_MIN);
	if (role->n_usual >= LEARN_FROM)
		role->pace_score = (float)fmax(
			0,
			fmin(role->pace_score + fmax(-STRAGGLER_Z_MAX,
						     fmin((role->pace - 1 - STRAGGLER_SLOW) / sigma,
							  STRAGGLER_Z_MAX)),
			     1.5 * STRAGGLER_SCORE));
	role->n_slower = role->pace_score > 0 ? role->n_slower + 1 : 0;
	if (role->n_slower > STRAGGLER_NEW_PACE) {
		role->n_usual = role->n_slower = 0;
		role->pace_score = 0;
	} else if (role->pace_score < STRAGGLER_SCORE / 2) {
		float weight = role->n_usual < 60 ? 1.0f / (float)(role->n_usual + 1) : 1.0f / 64;

		role->usual_s += weight * (median - role->usual_s);
		role->pace_spread += weight * ((float)(off * 1.2533) - role->pace_spread);
		role->n_usual++;
	}
}

void straggler_judge(struct straggler_role *role, struct straggler_rank *const *ranks,
		     size_t n_ranks, float *scratch, uint64_t now_ns)
{
	uint64_t next = UINT64_MAX;
	size_t n = 0;
	bool crowd;

	assert(role->open);
	for (size_t i = 0; i < n_ranks; i++) {
		if (!takes_part(role, ranks[i]))
			continue;
		scratch[n++] = ranks[i]->value_s;
		next = ranks[i]->done < next ? ranks[i]->done : next;
	}
	if (n && 2 * n >= n_ranks) {
		judge_pace(role, scratch, n);
		compare(role, ranks, n_ranks, scratch, n, scratch + n_ranks);
		crowd = is_crowd(role, ranks, n_ranks, n);
		for (size_t i = 0; i < n_ranks; i++) {
			if (!takes_part(role, ranks[i]))
				continue;
			score(role, ranks[i], crowd ? -1 : z_of(role, ranks[i], n), now_ns);
			learn(role, ranks[i], crowd);
		}
		role->n_judged++;
		role->n_last = (uint32_t)n;
		role->n_back = 0;
	}
	for (size_t i = 0; i < n_ranks; i++)
		if (takes_part(role, ranks[i]))
			ranks[i]->fresh = false;
	role->window = n ? next + 1 : role->window + 1;
	role->n_done = 0; /* who is ahead of it was judged as well */
	fit_window(role);
}
