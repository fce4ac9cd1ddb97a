/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.h - a training job on its nodes, as samples and labels: doc/trace-model.md says what it is
 * made of and why. It shares nothing with the detector but the samples' form.
 *
 * A world is one synchronous job, the nodes it runs on, and spare ones. One configuration and seed
 * give one trace; what a detector asks for (world_probe()) adds answers and changes nothing else.
 */
#ifndef DETECT_REPLAY_MODEL_H
#define DETECT_REPLAY_MODEL_H

#include "base/err.h"
#include "detect/trace.h"

#define RANKS_PER_NODE 8u

/* X(name, group of the report, what, weight in the deck) */
#define FAULTS(X)                                                                                  \
	X(FAULT_PROCESS, "dead", "process-killed", 3)                                              \
	X(FAULT_NODE, "dead", "node-dead", 2)                                                      \
	X(FAULT_BUS, "dead", "gpu-off-bus", 2)                                                     \
	X(FAULT_STOPPED, "hung", "process-stopped", 2)                                             \
	X(FAULT_DEADLOCK, "hung", "deadlock", 3)                                                   \
	X(FAULT_SPINNING, "hung", "spinning", 2)                                                   \
	X(FAULT_XID, "xid", "xid-fatal", 7)                                                        \
	X(FAULT_NAN, "nan", "nan", 7)                                                              \
	X(FAULT_SLOW_RANK, "straggler", "straggler-rank", 2)                                       \
	X(FAULT_SLOW_RANK_LATE, "straggler", "straggler-rank-gradual", 2)                          \
	X(FAULT_SLOW_NODE, "straggler", "straggler-node", 2)                                       \
	X(FAULT_SLOW_NODE_LATE, "straggler", "straggler-node-gradual", 1)                          \
	X(FAULT_PATH, "link", "link-path", 3)                                                      \
	X(FAULT_SENDER, "link", "link-sender", 2)                                                  \
	X(FAULT_RECEIVER, "link", "link-receiver", 2)                                              \
	X(FAULT_JUMP, "jump", "loss-jump", 1)                                                      \
	X(FAULT_DISK, "disk", "disk-slow", 1)                                                      \
	X(FAULT_MEMORY, "memory", "memory-errors", 1)                                              \
	X(FAULT_FLAPS, "flaps", "link-flaps", 1)                                                   \
	X(FAULT_REPLICAS, "replicas", "replicas-differ", 1)

enum fault_kind {
#define X(name, group, what, weight) name,
	FAULTS(X)
#undef X
		FAULT_COUNT
};
const char *fault_group(const char *what); /* of the report; "?": not one of the model's */

/* What a job does of its own accord; times in s, 0: never. Means, unless it says "at". */
struct job_style {
	bool declares;
	double step_s, jitter, comm_share;
	double checkpoint_every_s, checkpoint_s, checkpoint_slow; /* slow: share of them */
	double evaluate_every_s, evaluate_s;
	double compile_s, compile_most_s; /* the first step; most: 0: as it falls */
	double restart_every_s;
	double longer_every_s;   /* another sequence length */
	double tenfold_share;    /* steps that take ten times as long */
	double data_stall_share; /* steps in which a rank waits for data */
	double longer_at_s, gap_at_s, gap_s, suspend_at_s, clock_at_s, restart_at_s;
	bool mute;     /* tells of no steps */
	bool resuming; /* nobody looked before: it is found in the middle of an evaluation */
	uint32_t stages;
	bool local_loss, gives_loss, gives_grad_norm, blocking_wait, gpu_known;
};

struct world_config {
	uint64_t seed;
	uint32_t job, node_base;
	uint32_t nodes, spares; /* nodes of the job, and beside it */
	uint32_t ranks;         /* 0: RANKS_PER_NODE on each node of the job */
	double days;
	double fault_every_s; /* 0: none */
	bool declares;
	const struct job_style *style; /* NULL: drawn from the seed */
};

struct world;
MUST_CHECK int world_new(const struct world_config *c, struct world **ret);
void world_free(struct world *w);
/* The next record, in order of time; false: the end. Valid until the next call. */
bool world_next(struct world *w, const struct trace_record **ret);
/* As probe_fn: from now on the rank's activity is told, every second at first, then less often. */
void world_probe(struct world *w, uint32_t rank, bool wanted);

/* Worlds that hold nothing but what must not be taken for a fault. */
struct quiet_case {
	const char *name, *text;
	struct world_config config;
	struct job_style style;
};
#define QUIET_CASES_MAX 32
unsigned quiet_cases(struct quiet_case *ret); /* how many */

/* A cluster of `nodes` split into jobs, every sixth of which declares nothing. */
#define JOBS_MAX 64
unsigned cluster_worlds(uint64_t seed, uint32_t nodes, double days, uint32_t job_nodes,
			struct world_config *ret);

#endif
