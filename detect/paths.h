/* SPDX-License-Identifier: Apache-2.0 */
/*
 * paths.h - which path between two nodes is slow, and whose fault it is: the delay matrix.
 *
 * A transfer's time over the time that is usual in the fleet for its size is a cell's value. Hot
 * (1.5 times or more) along a row: the sender; along a column: the receiver; one cell alone: the
 * path between the two. The matrix is sparse: each node measures a few peers, or random ones. So a
 * row or a column is the newest samples that a node had any part in, and hot rows and columns are
 * explained greedily, those with most hot peers first: what one explains speaks for no other.
 *
 * Silent about bursts (a side must stay hot for three minutes and six samples: incast comes and
 * goes), and when much of the fabric is hot. Bounded: a node has two sides, a fleet
 * PATH_CELLS_MAX cells, of which those not measured for ten minutes are forgotten. Pure.
 */
#ifndef DETECT_PATHS_H
#define DETECT_PATHS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "detect/keys.h"

#define PATH_HOT        1.5
#define PATH_SHARE      0.7 /* of a side's samples are hot */
#define PATH_SAMPLES    6   /* since it is hot */
#define PATH_HOLD_NS    (UINT64_C(180) * 1000000000)
#define PATH_WELL_NS    (UINT64_C(180) * 1000000000)
#define PATH_STALE_NS   (UINT64_C(600) * 1000000000)
#define PATH_CELLS_MAX  (1u << 18)
#define PATH_RECENT     8
#define PATH_CLASSES    48 /* of sizes, by powers of two */
#define PATH_CLASS_RING 32

/* What is hot, for how long: of a row, a column or a cell. */
struct path_heat {
	float recent[PATH_RECENT]; /* log of time over usual time; newest at n - 1, in a ring */
	uint64_t n;
	uint64_t last_ns;
	uint64_t since_ns; /* hot in every judgement since; 0: not hot */
	uint64_t n_since;  /* n when it began */
	uint64_t hot_ns;   /* last judged hot */
	bool found;
};
/* Zeroed at first. */
struct path_side {
	struct path_heat heat;
	uint32_t peers[PATH_RECENT];
	bool explained; /* hot for its own fault, in the judgement that runs */
};
enum { PATH_SENDS, PATH_RECEIVES };
struct path_node {
	struct path_side side[2];
};

struct path_cell {
	uint32_t from, to;
	struct path_heat heat;
};
struct path_class {
	float ring[PATH_CLASS_RING];
	uint32_t n;
	float usual; /* log of ns for the class's size */
	bool known;
};

enum path_fault { PATH_SENDER, PATH_RECEIVER, PATH_PAIR };
struct path_finding {
	enum path_fault fault;
	uint32_t from, to; /* SENDER: from; RECEIVER: to */
	bool over;         /* it is well again */
	double times;      /* as long as usual */
	uint32_t n_peers;  /* that see it */
	uint64_t since_ns;
};
typedef void path_fn(void *arg, const struct path_finding *f);

struct paths {
	struct keys index; /* from, to -> cells */
	struct path_cell *cells;
	uint32_t n_cells, cap_cells;
	struct path_class classes[PATH_CLASSES];
	uint32_t *hot;               /* node << 1 | side, for a judgement: 2 * cap_nodes */
	uint32_t n_nodes, nodes_max; /* beyond the highest number that was met; that may be met */
	uint32_t cap_nodes;
	uint64_t crowd_ns; /* much of the fabric was hot, last; 0: never */
	uint64_t dropped;  /* samples of cells that did not fit */
};

void paths_init(struct paths *p, uint32_t nodes_max);
void paths_fini(struct paths *p);
size_t paths_bytes(const struct paths *p);

/* A transfer took so long. -ENOMEM: the cell does not fit; the rows know of it all the same, if
 * the node is not new. */
MUST_CHECK int paths_add(struct paths *p, struct path_node *from_node, struct path_node *to_node,
			 uint32_t from, uint32_t to, uint64_t bytes, uint64_t ns, uint64_t now_ns);
/* Every 10 s or so. nodes: by number, n_nodes of them, some NULL. */
void paths_judge(struct paths *p, struct path_node *const *nodes, uint64_t now_ns, path_fn *on,
		 void *arg);

#endif
