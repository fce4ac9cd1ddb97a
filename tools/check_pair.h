/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_pair.h - what the way between two nodes can do: both sides of one measurement; and who is
 * to blame, from many of them. No sockets in the second half.
 */
#ifndef TOOLS_CHECK_PAIR_H
#define TOOLS_CHECK_PAIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* bytes/s in each direction and the median round trip. */
struct pair_rates {
	double there, back; /* from the first node of the pair to the second, and back */
	double round_trip;  /* s */
};

/* first: this side begins. seconds: of each direction. CKPT_ECORRUPT: other bytes arrived. */
MUST_CHECK int pair_measure(int fd, bool first, double seconds, double deadline,
			    struct pair_rates *ret);

/* ---- Who meets whom, who is to blame: pure ---- */

#define PAIR_NODES_MAX  1024
#define PAIR_ROUNDS_MAX 3
/* A pair below so much of what the better half of all pairs reaches is bad. */
#define PAIR_SLOW 0.6

struct pair {
	uint32_t a, b;
	bool measured, failed;
	bool bad;     /* pairs_judge(): failed, or far below the others */
	double rate;  /* of its slower direction, bytes/s */
	char why[80]; /* failed */
};

enum node_blame {
	BLAME_NONE,    /* it has a good pair */
	BLAME_NODE,    /* at least two pairs, all bad, one of them with somebody who is well */
	BLAME_UNKNOWN, /* its pairs are bad, and nobody can tell whose fault it is */
	BLAME_ABSENT,  /* it did not come */
};

/* Sets bad in all: what failed, or is below PAIR_SLOW of the upper median of what was measured. */
MUST_CHECK int pairs_judge(struct pair *all, size_t n);
/* Pairs of the next round among the nodes present, given the judged rounds before; returns how
 * many. Round 0: neighbours. Later: nodes of bad pairs meet nodes of good ones, whoever was idle
 * comes first, and nobody meets the same one twice if it can be helped. */
size_t pair_round(const bool *present, uint32_t n, const struct pair *before, size_t n_before,
		  struct pair *ret);
void pair_blame(const bool *present, uint32_t n, const struct pair *all, size_t n_all,
		enum node_blame *ret);
/* A bad pair of two nodes that are both good with others: the way between them. */
bool pair_blames_path(const struct pair *p, const enum node_blame *blame);

#endif
