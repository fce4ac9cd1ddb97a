/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shift.c - see shift.h. Invariant: means[m][b % SHIFT_BLOCKS] is of block b for the last
 * SHIFT_BLOCKS blocks before the one that is gathered.
 */
#include <config.h>

#include "detect/shift.h"

#include <assert.h>
#include <math.h>

#include "detect/odd_one.h"
#include "detect/robust.h"

#define Z_MAX  20.0f
#define LATELY 5 /* the last minutes before */

void shift_node_init(struct shift_node *n)
{
	*n = (struct shift_node){0};
	for (int m = 0; m < METRIC_COUNT; m++)
		for (int b = 0; b < SHIFT_BLOCKS; b++)
			n->means[m][b] = NAN;
}

static void next_block(struct shift_node *n)
{
	for (int m = 0; m < METRIC_COUNT; m++) {
		n->means[m][n->block % SHIFT_BLOCKS] = n->n[m] > 0 ? n->sum[m] / n->n[m] : NAN;
		n->sum[m] = n->n[m] = 0;
	}
	n->block++;
}

void shift_add(struct shift_node *n, const float *metrics, uint64_t now_ns)
{
	uint64_t block = now_ns / SHIFT_BLOCK_NS;

	if (!n->block || block > n->block + SHIFT_BLOCKS) {
		shift_node_init(n);
		n->block = block;
	}
	while (n->block < block)
		next_block(n);
	for (int m = 0; m < METRIC_COUNT; m++) {
		float y = odd_on_scale((enum sample_metric)m, metrics[m]);

		if (!isfinite(y))
			continue;
		n->sum[m] += y;
		n->n[m]++;
	}
}

/* The median of its blocks from..to - 1; NaN: fewer than `least` are known. */
static float median_between(const struct shift_node *n, int m, uint64_t from, uint64_t to,
			    size_t least, float *values)
{
	size_t known = 0;

	for (uint64_t b = from; b < to; b++) {
		if (b >= n->block || b + SHIFT_BLOCKS < n->block)
			continue;
		if (!isnan(n->means[m][b % SHIFT_BLOCKS]))
			values[known++] = n->means[m][b % SHIFT_BLOCKS];
	}
	return known && known >= least ? median_of(values, known) : NAN;
}

/* Of all that have one: changes become distances from their median. Returns sigma. */
static float spread_of(float *changes, size_t n, float *values)
{
	float median, sigma;
	size_t known = 0;

	for (size_t i = 0; i < n; i++)
		if (!isnan(changes[i]))
			values[known++] = changes[i];
	if (known < ODD_PEERS_MIN)
		return NAN;
	median = median_of(values, known);
	sigma = (float)MAD_SIGMA * mad_of(values, known, median);
	for (size_t i = 0; i < n; i++)
		changes[i] -= median;
	return sigma;
}

static void judge_metric(struct shift_node *const *nodes, size_t n, int m, uint64_t begin,
			 uint64_t since, float *scratch)
{
	float *changes = scratch, *lately = scratch + n, *before = scratch + 2 * n;
	float *values = scratch + 3 * n;
	uint64_t to = since - 1;
	uint64_t from = begin + SHIFT_BEFORE < since ? since - SHIFT_BEFORE : begin;
	uint64_t middle = to - (to - from) / 2;
	float sigma, usual;

	for (size_t i = 0; i < n; i++) {
		float after = median_between(nodes[i], m, since + 1, since + SHIFT_AFTER,
					     SHIFT_LASTS_MIN, values);
		float was = median_between(nodes[i], m, from, to, SHIFT_KNOWN_MIN, values);
		float late = median_between(nodes[i], m, middle, to, SHIFT_KNOWN_MIN / 2, values);

		changes[i] = after - was;
		lately[i] = after -
			    median_between(nodes[i], m, to - LATELY, to, LATELY / 2 + 1, values);
		before[i] = late -
			    median_between(nodes[i], m, from, middle, SHIFT_KNOWN_MIN / 2, values);
	}
	sigma = spread_of(changes, n, values);
	if (isnan(sigma))
		return;
	spread_of(lately, n, values);
	usual = spread_of(before, n, values);
	sigma = fmaxf(fmaxf(sigma, usual), odd_floor_of_change((enum sample_metric)m));
	for (size_t i = 0; i < n; i++) {
		float z = fminf(fabsf(odd_bad_part((enum sample_metric)m, changes[i] / sigma)),
				Z_MAX);

		/* Who had changed before is not the one. */
		if (isnan(z) || z <= nodes[i]->z || !(lately[i] / changes[i] >= 0.5f))
			continue;
		nodes[i]->z = z;
		nodes[i]->worst = (enum sample_metric)m;
	}
}

size_t shift_judge(struct shift_node *const *nodes, size_t n, uint64_t begin_ns, uint64_t since_ns,
		   float *scratch, uint64_t now_ns)
{
	uint64_t begin = begin_ns / SHIFT_BLOCK_NS + 1;
	uint64_t since = since_ns / SHIFT_BLOCK_NS, now = now_ns / SHIFT_BLOCK_NS;
	size_t first = 0, nearly = 0;

	if (n < ODD_PEERS_MIN || since <= begin + SHIFT_KNOWN_MIN ||
	    now < since + 1 + SHIFT_LASTS_MIN || now > since + SHIFT_AFTER)
		return n;
	for (size_t i = 0; i < n; i++) {
		nodes[i]->z = 0;
		nodes[i]->threshold = (float)fmax(SHIFT_Z, 0.8 * SHIFT_Z * (1 + 4.0 / (double)n));
	}
	for (int m = 0; m < METRIC_COUNT; m++)
		judge_metric(nodes, n, m, begin, since, scratch);
	for (size_t i = 1; i < n; i++)
		if (nodes[i]->z > nodes[first]->z)
			first = i;
	/* Two at once that stand out are not told apart: which of them holds the others up? */
	for (size_t i = 0; i < n; i++)
		nearly +=
			nodes[i]->z * 2 > nodes[first]->z && nodes[i]->z * 2 > nodes[i]->threshold;
	return nodes[first]->z >= nodes[first]->threshold && nearly == 1 ? first : n;
}
