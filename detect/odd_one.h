/* SPDX-License-Identifier: Apache-2.0 */
/*
 * odd_one.h - which of many machines that do the same work is not like the others.
 *
 * After Minder, without its neural network. Each measurement is brought to a scale on which equal
 * deviations mean alike (logarithms for rates), smoothed (30 s), and compared across the nodes of
 * a group: z = (y - median) / max(1.4826 MAD, floor); of z and z less what is usual for this node
 * the smaller one counts. Where only one direction is bad the other one hardly does. The score of a
 * node is the sum over metrics of its mean distance from all others (L1: so sorting and running
 * sums do in n log n what pairs would do in n^2); the candidates are those whose score stands out
 * of all scores. Only who stays candidate for four minutes is odd.
 *
 * NaN metrics are left out; fewer than four nodes are not compared. Pure; state of the caller's.
 */
#ifndef DETECT_ODD_ONE_H
#define DETECT_ODD_ONE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "detect/sample.h"

#define ODD_PEERS_MIN 4
#define ODD_SMOOTH_S  30                           /* memory of the smoothing */
#define ODD_HOLD_NS   (UINT64_C(240) * 1000000000) /* candidate for so long: odd */
#define ODD_Z_MAX     20                           /* one metric speaks no louder */
#define ODD_Z         5                            /* at least one metric deviates so much */
#define ODD_SCORE     5.0 /* ... and its score among scores; more among few nodes */
#define ODD_STALE_NS  (UINT64_C(60) * 1000000000) /* measurements are too old */
#define ODD_WELL      6 /* judgements without, until it is like the others again */

#define ODD_MIXED_LEARN 30

struct odd_node {
	float y[METRIC_COUNT];     /* smoothed, on the metric's scale; NaN: not known */
	float raw[METRIC_COUNT];   /* the last ones as they were measured */
	float usual[METRIC_COUNT]; /* learned z */
	float z[METRIC_COUNT];     /* of the judgement before, less what is usual; NaN */
	uint64_t sample_ns;        /* of the last measurements; 0: none */
	uint64_t group;            /* what it was last compared in */
	uint32_t n_learned;
	uint32_t missed;   /* judgements since it was candidate */
	uint64_t since_ns; /* candidate since then; 0: not */
	float score, threshold;
};

/* A measurement on the scale on which deviations are compared; NaN: it does not count. */
float odd_on_scale(enum sample_metric m, float x);
/* What a node's mean over minutes may change by, against the others', without any meaning. */
float odd_floor_of_change(enum sample_metric m);
/* What of a deviation counts: of those to the good side hardly anything. */
float odd_bad_part(enum sample_metric m, float z);

/* Once, before anything else. */
void odd_node_init(struct odd_node *n);
void odd_add(struct odd_node *n, const float *metrics, uint64_t now_ns);

/* Room for odd_judge() over n nodes, in floats. */
#define ODD_SCRATCH(n) (4 * (size_t)(n))
/* One judgement, every 10 s or so, of the nodes of one group; group: a number that changes when
 * the kind of work does, then what is usual is learned anew. mixed: they do not quite do the same
 * work: what they are in the first ODD_MIXED_LEARN judgements is usual, whatever it is. */
void odd_judge(struct odd_node *const *nodes, size_t n, uint64_t group, bool mixed, float *scratch,
	       uint64_t now_ns);

static inline bool odd_is_odd(const struct odd_node *n, uint64_t now_ns)
{
	return n->since_ns && n->missed == 0 && now_ns - n->since_ns >= ODD_HOLD_NS;
}
static inline bool odd_is_well(const struct odd_node *n)
{
	return n->since_ns == 0;
}
/* The metrics that deviate most, up to n; returns how many deviate at all (|z| >= 3). */
size_t odd_worst(const struct odd_node *node, enum sample_metric *ret, size_t n);
/* Whether what deviates is itself slowness: clocks are a tenth lower than the others'. */
bool odd_is_slowness(const struct odd_node *node);

#endif
