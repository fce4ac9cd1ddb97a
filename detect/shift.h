/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shift.h - a job has become slower at some time: which of its nodes has changed then, and has not
 * changed as the others have?
 *
 * Who is slow works on while all others wait for it, so what all nodes measure of themselves
 * changes with the pace of the job, and of one it changes by another amount. Levels do not tell
 * that (no two nodes are alike, and one slow rank of eight moves its node's mean by little), but
 * differences do: of each node the median of its minutes after that time less the median of those
 * before. Compared is this change, with the median of all and in robust deviations; the noise is
 * that of the changes of all nodes, and of what they changed by within the time before. Who had
 * changed already in the last minutes before is not the one.
 *
 * NaN is left out. Pure; state of the caller's.
 */
#ifndef DETECT_SHIFT_H
#define DETECT_SHIFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "detect/sample.h"

#define SHIFT_BLOCK_NS  (UINT64_C(60) * 1000000000)
#define SHIFT_BLOCKS    64
#define SHIFT_BEFORE    20  /* minutes before that count, at most */
#define SHIFT_AFTER     40  /* minutes after which what has changed then cannot be told any more */
#define SHIFT_KNOWN_MIN 6   /* minutes before that must be known */
#define SHIFT_LASTS_MIN 4   /* ... and after: what lasts shorter is none */
#define SHIFT_Z         5.0 /* what one of 16 reaches by chance in one slow-down of 100 */

struct shift_node {
	uint64_t block; /* that is gathered: its time / SHIFT_BLOCK_NS; 0: none yet */
	float sum[METRIC_COUNT], n[METRIC_COUNT];
	float means[METRIC_COUNT][SHIFT_BLOCKS]; /* of block b at b % SHIFT_BLOCKS; NaN */
	/* Of the last judgement. */
	float z, threshold;
	enum sample_metric worst;
};

void shift_node_init(struct shift_node *n);
void shift_add(struct shift_node *n, const float *metrics, uint64_t now_ns);

/* Room for shift_judge() over n nodes, in floats. */
#define SHIFT_SCRATCH(n) (4 * (size_t)(n) + SHIFT_BLOCKS)
/* The one of n that has changed otherwise than the others at since_ns; n: none, or it cannot be
 * told. begin_ns: since then they do this work. */
size_t shift_judge(struct shift_node *const *nodes, size_t n, uint64_t begin_ns, uint64_t since_ns,
		   float *scratch, uint64_t now_ns);

#endif
