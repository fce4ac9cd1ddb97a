/* SPDX-License-Identifier: Apache-2.0 */
/* world.h - what the files of the model share. */
#ifndef DETECT_REPLAY_WORLD_H
#define DETECT_REPLAY_WORLD_H

#include "detect/replay/model.h"
#include "detect/replay/rand.h"

#define S(x) ((uint64_t)((double)(x)*1e9))

enum event_kind {
	EVENT_BEGIN, /* the job starts: members, load, first steps */
	EVENT_READY, /* it has loaded */
	EVENT_STEP,  /* a step begins */
	EVENT_STEP_END,
	EVENT_PAUSE_END,
	EVENT_PHASE_ENDS, /* of all but who is stuck */
	EVENT_LATE,       /* a look at all ranks that are late */
	EVENT_PROBE,
	EVENT_FAULT,
	EVENT_FAULT_NEXT, /* another stage of it */
	EVENT_FAULT_END,
	EVENT_ALL_EXIT, /* every rank that is left ends */
	EVENT_EXIT,
	EVENT_JOB_END,
	EVENT_NODE_BACK,
	EVENT_BENIGN, /* a harmless kernel message somewhere */
	EVENT_LONGER, /* another sequence length */
	EVENT_CASE,   /* what a quiet case asks for: `arg` says which */
};

struct event {
	uint64_t time_ns, order; /* order: first come, first served */
	enum event_kind kind;
	uint32_t arg, token;
	int32_t value;
	uint8_t how;
};

enum job_state { JOB_DOWN, JOB_LOADING, JOB_STEPPING, JOB_PAUSED, JOB_STUCK };
enum stall { STALL_NONE, STALL_HOST, STALL_DATA_TIMED, STALL_DATA, STALL_IO, STALL_ALL };

struct wnode {
	enum { NODE_SPARE, NODE_USED, NODE_REPAIR, NODE_DEAD } state;
	float speed;                /* persistent: more is slower */
	float drift;                /* slow, of its own */
	float metric[METRIC_COUNT]; /* persistent deviation, in sigmas */
	uint64_t sent, received, errors, retries, disk_errors, corrected, uncorrected;
	uint32_t downs;
	bool link_up;
	uint64_t gpu_corrected;
	uint64_t last_tick_ns;
	uint32_t slot; /* of the job, while USED */
};

struct fault {
	enum fault_kind kind;
	bool active;
	uint32_t id, rank, node, peer, stage;
	uint64_t since_ns, until_ns, ramp_ns;
	float factor;
	uint32_t code;
	int signature;  /* straggler: 0 none, 1 GPU throttles, 2 host is busy; link: 1 rate, 2
			   retries */
	bool blocks;    /* the job stands still */
	uint32_t phase; /* in which it is stuck */
	bool replace;   /* its node goes to repair when the job is restarted */
};

struct probe {
	uint32_t token, n;
	bool wanted;
};

struct world {
	struct world_config c;
	struct job_style style;
	struct rand rand, node_rand, fault_rand, activity_rand;
	uint64_t now, end_ns;

	/* what is to come */
	struct event *events;
	size_t n_events, cap_events;
	uint64_t n_pushed;
	/* what is to be told, at `now` */
	struct trace_record *out;
	size_t out_at, n_out, cap_out;
	bool failed; /* -ENOMEM */

	/* nodes */
	struct wnode *nodes;
	uint32_t n_nodes, tick;
	uint64_t tick_ns, round;
	float common[METRIC_COUNT];

	/* the job */
	uint32_t world, epoch, token;
	enum job_state state;
	uint32_t *slot; /* node of ranks 8 i .. 8 i + 7 */
	float *factor;  /* persistent, of the rank */
	float *work;    /* s, of the step that runs */
	uint8_t *missed;
	bool *gone; /* has exited */
	struct probe *probes;
	uint64_t step, checkpoint_step, steps_here;
	uint64_t begun_ns, ends_ns; /* of step or pause */
	uint32_t pause;             /* its phase */
	uint64_t checkpoint_ns, evaluate_ns, restart_ns;
	double length, trend, took_s; /* took_s: the last step */
	enum stall stall;
	uint32_t stalled, looks, lap; /* lap: the step, pause or hang that is looked at */
	double spike;
	float grad;
	double loss;

	/* beats that are being told */
	uint32_t beat_at, beat_first;
	uint64_t beat_ns, beat_gap_ns;
	uint64_t beat_step;
	bool beat_nan, beat_all_nan;
	struct trace_record beat;
	float *told_work;

	/* faults */
	struct fault fault;
	uint32_t n_faults;
	uint32_t replace; /* slot that gets another node at the next start; SAMPLE_NONE */
	uint8_t deck[64];
	uint32_t deck_n, deck_at;
};

/* world.c */
struct trace_record *world_put(struct world *w);                     /* a label, at now */
struct sample *world_sample(struct world *w, enum sample_kind kind); /* at now */
struct sample *world_node_sample(struct world *w, enum sample_kind kind, uint32_t node);
struct sample *world_rank_sample(struct world *w, enum sample_kind kind, uint32_t rank);
void world_kernel(struct world *w, uint32_t node, uint8_t facility, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
struct event *world_at(struct world *w, uint64_t time_ns, enum event_kind kind, uint32_t arg);
uint32_t world_node(const struct world *w, uint32_t rank); /* index of its node here */
void world_pci(uint32_t gpu, char *buf, size_t size);

/* job.c */
void job_begin(struct world *w);
void job_ready(struct world *w);
void job_step(struct world *w);
void job_step_end(struct world *w);
void job_pause_end(struct world *w);
void job_phase_ends(struct world *w, uint32_t phase);
void job_longer(struct world *w, double length);
void job_stop(struct world *w);  /* it is told to end: every rank exits, and it starts again */
void job_stuck(struct world *w); /* by w->fault */
void job_all_exit(struct world *w, enum exit_how how, int value, double spread_s);
void job_exit(struct world *w, uint32_t rank, enum exit_how how, int value);
void job_end(struct world *w);
bool job_next_beat(struct world *w);

/* activity.c */
void activity_late(struct world *w);
void activity_probe(struct world *w, uint32_t rank, uint32_t token);
void activity_put(struct world *w, uint32_t rank);

/* nodes.c */
int nodes_new(struct world *w);
void nodes_names(struct world *w);
void nodes_tick(struct world *w);
void nodes_benign(struct world *w);
void nodes_replace(struct world *w, uint32_t slot);
void nodes_after_crash(struct world *w);

/* faults.c */
void faults_begin(struct world *w);
void faults_strike(struct world *w);
void faults_next(struct world *w);
void faults_end(struct world *w);
float faults_slowness(const struct world *w, uint32_t node, uint32_t rank);
bool faults_slow_path(const struct world *w, uint32_t from, uint32_t to);

/* cases.c */
void cases_begin(struct world *w);
void cases_event(struct world *w, uint32_t which);

#endif
