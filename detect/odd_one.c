/* SPDX-License-Identifier: Apache-2.0 */
/*
 * odd_one.c - scales of metrics, distances by sorting, and who stays odd.
 *
 * Invariants:
 * (1) since_ns != 0 only while the node was candidate within the last ODD_WELL judgements;
 * (2) who is candidate is not learned from, so that a fault does not become usual;
 * (3) more than a quarter of a group are never candidates: they are no exceptions.
 */
#include <config.h>

#include "detect/odd_one.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "detect/robust.h"

#define LEARN_BELOW 4   /* larger deviations do not become usual */
#define GOOD_SIDE   1.0 /* so much at most counts in the direction that is not bad */
#define CROWD       4   /* (3) */
#define SLOWER      0.1f
#define STEADY      6 /* times less than their floors do such metrics change by themselves */

/* bad: +1 high, -1 low, 0 both; log: on a logarithmic scale from log_from on; floor: of sigma, on
 * the scale. used: ranks of one role may write different shares of a checkpoint. */
struct scale {
	bool used, log, steady; /* steady: hardly moves where the work is the same */
	int8_t bad;
	float log_from, floor;
};
static const struct scale scales[METRIC_COUNT] = {
	[METRIC_CPU] = {true, false, false, 0, 0, 0.04f},
	[METRIC_MEMORY] = {true, false, false, 1, 0, 0.03f},
	[METRIC_PSI_CPU] = {true, false, false, 1, 0, 0.03f},
	[METRIC_PSI_MEMORY] = {true, false, false, 1, 0, 0.03f},
	[METRIC_PSI_IO] = {true, false, false, 1, 0, 0.03f},
	[METRIC_GPU_BUSY] = {true, false, true, 0, 0, 0.04f},
	[METRIC_GPU_POWER] = {true, true, true, 0, 20, 0.03f},
	[METRIC_GPU_CLOCK] = {true, true, true, -1, 50, 0.015f},
	[METRIC_GPU_TEMPERATURE] = {true, false, true, 1, 0, 2.5f},
	[METRIC_NET_SEND] = {true, true, true, -1, 1e6f, 0.08f},
	[METRIC_NET_RECEIVE] = {true, true, true, -1, 1e6f, 0.08f},
	[METRIC_NET_PAUSE] = {true, true, false, 1, 10, 0.5f},
	[METRIC_NET_RETRY] = {true, true, false, 1, 10, 0.5f},
	[METRIC_DISK_WRITE] = {false, true, false, 0, 1e6f, 0.5f},
	[METRIC_DISK_LATENCY] = {true, true, false, 1, 1e-3f, 0.3f},
	[METRIC_NVLINK] = {true, true, true, -1, 1e6f, 0.08f},
};

float odd_on_scale(enum sample_metric m, float x)
{
	if (!scales[m].used || !isfinite(x))
		return NAN;
	return scales[m].log ? logf(scales[m].log_from + (x > 0 ? x : 0)) : x;
}

float odd_floor_of_change(enum sample_metric m)
{
	return scales[m].steady ? scales[m].floor / STEADY : scales[m].floor;
}

float odd_bad_part(enum sample_metric m, float z)
{
	if (scales[m].bad > 0)
		return fmaxf(z, (float)-GOOD_SIDE);
	return scales[m].bad < 0 ? fminf(z, (float)GOOD_SIDE) : z;
}

void odd_node_init(struct odd_node *n)
{
	*n = (struct odd_node){0};
	for (int m = 0; m < METRIC_COUNT; m++)
		n->y[m] = n->raw[m] = n->z[m] = NAN;
}

void odd_add(struct odd_node *n, const float *metrics, uint64_t now_ns)
{
	double dt = n->sample_ns ? (double)(now_ns - n->sample_ns) / 1e9 : INFINITY;
	float alpha = (float)ewma_alpha(dt, ODD_SMOOTH_S);

	assert(now_ns >= n->sample_ns);
	for (int m = 0; m < METRIC_COUNT; m++) {
		float y = odd_on_scale((enum sample_metric)m, metrics[m]);

		n->raw[m] = metrics[m];
		if (isnan(y)) {
			n->y[m] = NAN;
			continue;
		}
		n->y[m] = isnan(n->y[m]) ? y : n->y[m] + alpha * (y - n->y[m]);
	}
	n->sample_ns = now_ns;
}

/* ---- Judging ---- */

static bool is_fresh(const struct odd_node *n, uint64_t now_ns)
{
	return n->sample_ns && now_ns - n->sample_ns <= ODD_STALE_NS;
}

/* z of one metric for all; NaN where it is not known. Returns how many have one. */
static size_t score_metric(struct odd_node *const *nodes, size_t n, int m, float *values,
			   uint64_t now_ns)
{
	float median, sigma;
	size_t known = 0;

	for (size_t i = 0; i < n; i++) {
		nodes[i]->z[m] = NAN;
		if (is_fresh(nodes[i], now_ns) && !isnan(nodes[i]->y[m]))
			values[known++] = nodes[i]->y[m];
	}
	if (known < ODD_PEERS_MIN)
		return 0;
	median = median_of(values, known);
	sigma = (float)MAD_SIGMA * mad_of(values, known, median);
	if (sigma < scales[m].floor)
		sigma = scales[m].floor;
	for (size_t i = 0; i < n; i++) {
		struct odd_node *o = nodes[i];

		if (!is_fresh(o, now_ns) || isnan(o->y[m]))
			continue;
		o->z[m] = fmaxf(-ODD_Z_MAX, fminf((o->y[m] - median) / sigma, ODD_Z_MAX));
	}
	return known;
}

/* What of a deviation counts: what is both unlike the others and unlike what is usual for it. */
static float counts(const struct odd_node *o, int m)
{
	float z = o->z[m] - o->usual[m];

	if (z * o->z[m] <= 0)
		z = 0;
	else if (fabsf(o->z[m]) < fabsf(z))
		z = o->z[m];
	return odd_bad_part((enum sample_metric)m, z);
}

struct at {
	float z;
	uint32_t i;
};

static int by_z(const void *a, const void *b)
{
	float x = ((const struct at *)a)->z, y = ((const struct at *)b)->z;

	return (x > y) - (x < y);
}

/* Adds to each node's score its mean distance from the others. The sum of |z_i - z_j| over sorted
 * z is what lies below, i * z_i - sum_below, and above, sum_above - (n - 1 - i) * z_i. */
static void add_distances(struct odd_node *const *nodes, size_t n, int m, struct at *order)
{
	double below = 0, all = 0;
	size_t known = 0;

	for (size_t i = 0; i < n; i++) {
		if (isnan(nodes[i]->z[m]))
			continue;
		order[known].z = counts(nodes[i], m);
		order[known].i = (uint32_t)i;
		all += order[known++].z;
	}
	qsort(order, known, sizeof(*order), by_z);
	for (size_t k = 0; k < known; k++) {
		double z = order[k].z, above = all - below - z;
		double sum = (double)k * z - below + above - (double)(known - 1 - k) * z;

		nodes[order[k].i]->score += (float)(sum / (double)(known - 1));
		below += z;
	}
}

static bool is_new(const struct odd_node *o, bool mixed)
{
	return mixed && o->n_learned < ODD_MIXED_LEARN;
}

/* In a mixed group deviations are from what is usual; else from the others, so that nothing large
 * is ever usual. */
static bool may_learn(const struct odd_node *o, int m, bool mixed)
{
	if (is_new(o, mixed))
		return true;
	return fabsf(mixed ? o->z[m] - o->usual[m] : o->z[m]) < LEARN_BELOW;
}

static void learn(struct odd_node *o, bool mixed)
{
	float weight =
		o->n_learned < 60 ? 1.0f / (float)(o->n_learned + (mixed ? 1 : 4)) : 1.0f / 64;

	for (int m = 0; m < METRIC_COUNT; m++)
		if (!isnan(o->z[m]) && may_learn(o, m, mixed))
			o->usual[m] += weight * (o->z[m] - o->usual[m]);
	o->n_learned++;
}

static bool deviates(const struct odd_node *o)
{
	for (int m = 0; m < METRIC_COUNT; m++)
		if (!isnan(o->z[m]) && fabsf(counts(o, m)) >= ODD_Z)
			return true;
	return false;
}

/* Scores become scores among scores: in deviations from their median. */
static void compare_scores(struct odd_node *const *nodes, size_t n, size_t metrics, float *values,
			   uint64_t now_ns)
{
	double floor = 0.25 * sqrt((double)metrics);
	float median, mad;
	size_t fresh = 0;

	for (size_t i = 0; i < n; i++)
		if (is_fresh(nodes[i], now_ns))
			values[fresh++] = nodes[i]->score;
	median = median_of(values, fresh);
	mad = mad_of(values, fresh, median);
	for (size_t i = 0; i < n; i++) {
		nodes[i]->score = (float)robust_z(nodes[i]->score, median, mad, floor);
		nodes[i]->threshold = (float)(ODD_SCORE * (1 + 4.0 / (double)fresh));
	}
}

/* part: of the threshold. */
static bool stands_out(const struct odd_node *o, float part, uint64_t now_ns)
{
	return is_fresh(o, now_ns) && o->score >= part * o->threshold && deviates(o);
}

static void judge_one(struct odd_node *o, bool candidate, bool mixed, uint64_t now_ns)
{
	if (candidate) {
		o->missed = 0;
		if (!o->since_ns)
			o->since_ns = now_ns;
	} else if (o->since_ns && ++o->missed >= ODD_WELL) {
		o->since_ns = 0;
		o->missed = 0;
	}
	if (!candidate && !o->since_ns)
		learn(o, mixed);
}

void odd_judge(struct odd_node *const *nodes, size_t n, uint64_t group, bool mixed, float *scratch,
	       uint64_t now_ns)
{
	struct at *order = (struct at *)(void *)scratch;
	size_t metrics = 0, nearly = 0;

	_Static_assert(sizeof(struct at) <= 4 * sizeof(float), "ODD_SCRATCH() holds them");
	for (size_t i = 0; i < n; i++) {
		nodes[i]->score = nodes[i]->threshold = 0;
		if (nodes[i]->group == group)
			continue;
		nodes[i]->group = group;
		nodes[i]->n_learned = 0;
		for (int m = 0; m < METRIC_COUNT; m++)
			nodes[i]->usual[m] = 0;
	}
	for (int m = 0; m < METRIC_COUNT; m++) {
		if (!scales[m].used || !score_metric(nodes, n, m, scratch, now_ns))
			continue;
		add_distances(nodes, n, m, order);
		metrics++;
	}
	if (metrics) {
		compare_scores(nodes, n, metrics, scratch, now_ns);
		for (size_t i = 0; i < n; i++)
			nearly += stands_out(nodes[i], 0.25f, now_ns);
	}
	for (size_t i = 0; i < n; i++)
		judge_one(nodes[i],
			  nearly * CROWD <= n && !is_new(nodes[i], mixed) &&
				  stands_out(nodes[i], 1, now_ns),
			  mixed, now_ns);
}

/* ---- What to say of it ---- */

size_t odd_worst(const struct odd_node *node, enum sample_metric *ret, size_t n)
{
	size_t found = 0;

	for (int m = 0; m < METRIC_COUNT; m++) {
		size_t at = found < n ? found : n;

		if (isnan(node->z[m]) || fabsf(counts(node, m)) < 3)
			continue;
		while (at > 0 && fabsf(counts(node, ret[at - 1])) < fabsf(counts(node, m)))
			at--;
		for (size_t i = found < n ? found : n - 1; n > 0 && i > at; i--)
			ret[i] = ret[i - 1];
		if (at < n)
			ret[at] = (enum sample_metric)m;
		found++;
	}
	return found;
}

bool odd_is_slowness(const struct odd_node *node)
{
	float z = node->z[METRIC_GPU_CLOCK];

	/* On this scale a tenth is seven floors; a wider spread of all asks for more. */
	return !isnan(z) && z <= -SLOWER / scales[METRIC_GPU_CLOCK].floor;
}
