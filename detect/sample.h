/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sample.h - what the detector is told: one observation, made at one time by one node.
 *
 * Everything that decides who is dead, hung, slow or failing sees the world through these and
 * nothing else: ckptd's collectors make them, a sketch from another node is unpacked into them, a
 * trace file holds them as text, and the simulator invents them. Pure data: no pointer outlives the
 * call that a sample is given to.
 *
 * Nodes, jobs and devices are small numbers here; their names come once, with SAMPLE_NAME. A rank
 * is (job, rank). Times are of one monotonic clock that does not run while the machine is
 * suspended; the times of samples never go back within one detector.
 */
#ifndef DETECT_SAMPLE_H
#define DETECT_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#define SAMPLE_NONE     UINT32_MAX /* no such node, rank, device, ... */
#define SAMPLE_NAME_MAX 64
#define SAMPLE_TEXT_MAX 256

/* X(name, word in traces, what it says) */
#define SAMPLE_KINDS(X)                                                                            \
	X(SAMPLE_NAME, "name", "what a node, job or device is called")                             \
	X(SAMPLE_JOB, "job", "a run of a job begins or ends")                                      \
	X(SAMPLE_MEMBER, "member", "a rank is on a node, in a role")                               \
	X(SAMPLE_BEAT, "beat", "a rank has finished a step")                                       \
	X(SAMPLE_PHASE, "phase", "a rank begins or ends a declared long phase")                    \
	X(SAMPLE_ACTIVITY, "activity", "what a rank's process is doing now")                       \
	X(SAMPLE_EXIT, "exit", "a rank's process has ended")                                       \
	X(SAMPLE_ALIVE, "alive", "a node was heard of")                                            \
	X(SAMPLE_METRICS, "metrics", "a node's measurements")                                      \
	X(SAMPLE_LINK, "link", "counters and state of a network port")                             \
	X(SAMPLE_PAIR, "pair", "a transfer between two nodes took so long")                        \
	X(SAMPLE_DISK, "disk", "load, latency and errors of a disk")                               \
	X(SAMPLE_MEMORY, "memory", "memory errors that the machine has counted")                   \
	X(SAMPLE_KERNEL, "kernel", "a kernel message")                                             \
	X(SAMPLE_NVML, "nvml", "what NVML says of a GPU")                                          \
	X(SAMPLE_DIGESTS, "digests", "replicas of a shard differ")                                 \
	X(SAMPLE_STALE, "stale", "a checkpoint repeats the one before")                            \
	X(SAMPLE_CHECK, "check", "a node check has ended")

enum sample_kind {
#define X(name, word, text) name,
	SAMPLE_KINDS(X)
#undef X
		SAMPLE_KIND_COUNT
};

/*
 * Where in a step or between steps a rank is. The first four are parts of a step: they only tell
 * who waits for whom. The others are long phases with histories of their own: no step is expected
 * while one lasts. The same numbers as enum ckpt_phase of ckpt.h.
 */
#define SAMPLE_PHASES(X)                                                                           \
	X(PHASE_STEP, "step") /* computing; also where nobody declares anything */                 \
	X(PHASE_DATA, "data") /* waits for input */                                                \
	X(PHASE_SYNC, "sync") /* in a collective: waits for other ranks */                         \
	X(PHASE_OPTIMIZE, "optimize")                                                              \
	X(PHASE_CHECKPOINT, "checkpoint") /* also begun by every ckpt_save() itself */             \
	X(PHASE_LOAD, "load")             /* also begun by every ckpt_load() itself */             \
	X(PHASE_EVALUATE, "evaluate")                                                              \
	X(PHASE_COMPILE, "compile") /* warm-up, autotuning, first steps */                         \
	X(PHASE_IDLE, "idle")       /* on purpose */                                               \
	X(PHASE_OTHER, "other")

enum sample_phase {
#define X(name, word) name,
	SAMPLE_PHASES(X)
#undef X
		PHASE_COUNT
};
#define PHASE_FIRST_LONG PHASE_CHECKPOINT

/* The step is done. Values that the trainer did not give are NaN with their bit not set. */
#define BEAT_LOSS      1u
#define BEAT_GRAD_NORM 2u
#define BEAT_TOKENS    4u
#define BEAT_BUSY      8u /* the trainer marks its waiting: busy_ns is its own work alone */
struct sample_beat {
	uint64_t step;
	uint32_t flags;
	uint32_t missed;  /* steps since the last beat told of that have none of their own */
	uint64_t busy_ns; /* of the step, without waiting for other ranks */
	uint64_t tokens;  /* of this rank in this step */
	double loss, grad_norm;
};

/* Whether who sleeps will wake by himself at some time, as far as the kernel tells us of him. */
enum timed { TIMED_NO, TIMED_YES, TIMED_NOT_KNOWN };

/* Of one process, between two looks at it, or at the moment where nothing else is said. */
struct sample_activity {
	uint64_t step;     /* that it is in: the last finished one + 1 */
	uint64_t since_ns; /* the phase began */
	uint32_t phase;    /* enum sample_phase */
	char state;        /* R S D T Z as in /proc/PID/stat; '?' not known */
	uint8_t threads_running;
	uint16_t cpu_permille; /* of one core, since the look before; UINT16_MAX: not known */
	uint16_t gpu_permille; /* share of time in which its GPU worked; UINT16_MAX: not known */
	enum timed timed;      /* its main thread sleeps until a time, not until an event */
};

/* How a process ended. EXIT_AWAY: while nobody looked; now it is gone. EXIT_LEFT: its trainer
 * failed and left, and the process has not ended since. */
enum exit_how { EXIT_UNKNOWN, EXIT_CODE, EXIT_SIGNAL, EXIT_SAID_BYE, EXIT_AWAY, EXIT_LEFT };
#define EXIT_HOWS (EXIT_LEFT + 1)

/* What a node measures of itself; NaN: cannot be had here. Order is part of the formats. */
#define SAMPLE_METRICS_LIST(X)                                                                     \
	X(METRIC_CPU, "cpu", "share of all cores")                                                 \
	X(METRIC_MEMORY, "memory", "share in use")                                                 \
	X(METRIC_PSI_CPU, "psi_cpu", "share of time in which something waited for it")             \
	X(METRIC_PSI_MEMORY, "psi_memory", "share of time in which something waited for it")       \
	X(METRIC_PSI_IO, "psi_io", "share of time in which something waited for it")               \
	X(METRIC_GPU_BUSY, "gpu_busy", "share, mean of the node's GPUs")                           \
	X(METRIC_GPU_POWER, "gpu_power", "W, mean")                                                \
	X(METRIC_GPU_CLOCK, "gpu_clock", "MHz, mean")                                              \
	X(METRIC_GPU_TEMPERATURE, "gpu_temperature", "degrees C, highest")                         \
	X(METRIC_NET_SEND, "net_send", "bytes/s")                                                  \
	X(METRIC_NET_RECEIVE, "net_receive", "bytes/s")                                            \
	X(METRIC_NET_PAUSE, "net_pause", "PFC pause frames/s")                                     \
	X(METRIC_NET_RETRY, "net_retry", "retransmissions/s")                                      \
	X(METRIC_DISK_WRITE, "disk_write", "bytes/s")                                              \
	X(METRIC_DISK_LATENCY, "disk_latency", "s, mean")                                          \
	X(METRIC_NVLINK, "nvlink", "bytes/s")

enum sample_metric {
#define X(name, word, text) name,
	SAMPLE_METRICS_LIST(X)
#undef X
		METRIC_COUNT
};

/* NVML's recovery action, the words of Xid 154 too. */
enum gpu_recovery {
	RECOVERY_NONE,
	RECOVERY_RESET,
	RECOVERY_REBOOT,
	RECOVERY_DRAIN_P2P,
	RECOVERY_DRAIN_RESET,
	RECOVERY_UNKNOWN
};

struct sample {
	enum sample_kind kind;
	uint64_t time_ns;
	uint32_t node;   /* of which it is said; SAMPLE_NONE where it does not matter */
	uint32_t job;    /* with a rank: whose */
	uint32_t rank;   /* MEMBER, BEAT, PHASE, ACTIVITY, EXIT, DIGESTS */
	uint32_t device; /* LINK: port; DISK: disk; NVML: GPU */
	union {
		struct {
			/* Of a device if device is set, else of a job if job is, else of the node.
			 * A GPU's name is its PCI address, 0000:9b:00. A job whose name is empty is
			 * gone for good: it is forgotten, and its number may be another's. */
			char text[SAMPLE_NAME_MAX];
			char role; /* of a device: 'g' GPU, 'n' network port, 'd' disk */
			bool owned;     /* of a job: owner is known */
			uint32_t owner; /* the uid of its user */
		} name;
		struct {
			bool begins; /* false: it ended, or was told to end: no rank is expected */
			uint32_t world;
			uint64_t epoch; /* rises with every restart of the same job */
		} run;
		struct {
			char role[32]; /* ranks of a job with the same role do the same work */
			bool leaves;
		} member;
		struct sample_beat beat;
		struct {
			uint32_t phase; /* enum sample_phase, a long one */
			bool begins;
			uint64_t expected_ns; /* how long the trainer thinks; 0: it does not say */
			char what[32]; /* the trainer's word for it: histories are kept apart */
		} phase;
		struct sample_activity activity;
		struct {
			enum exit_how how;
			int32_t value; /* status or signal */
		} exit;
		float metrics[METRIC_COUNT];
		struct {
			bool up;
			float rate_gbps;         /* 0: not known */
			uint64_t sent, received; /* bytes, since some time in the past */
			uint64_t errors;         /* symbol, CRC, discards, ...: summed */
			uint64_t retries;
			uint32_t downs; /* how often it went down */
		} link;
		struct {
			uint32_t peer; /* node -> peer */
			uint64_t bytes;
			uint64_t ns;
		} pair;
		struct {
			uint64_t ops, bytes; /* done since the sample before */
			uint64_t busy_ns;    /* sum over them of the time each took */
			uint64_t errors;     /* since some time in the past */
		} disk;
		struct {
			uint64_t corrected, uncorrected; /* since some time in the past */
		} memory;
		struct {
			uint8_t facility; /* 0: the kernel itself */
			uint8_t level;    /* as syslog's */
			char text[SAMPLE_TEXT_MAX];
		} kernel;
		struct {
			uint32_t xid; /* 0: none, 999: unknown */
			enum gpu_recovery recovery;
			bool unavailable;
			uint64_t corrected, uncorrected;
		} nvml;
		struct {
			uint64_t step;
			uint32_t other; /* rank that differs from .rank */
			char tensor[SAMPLE_NAME_MAX];
		} digests;
		uint64_t step; /* STALE */
		struct {
			char what[32];           /* "memory-bandwidth" */
			double value, low, high; /* what the fleet has */
			bool passed;
		} check;
	};
};

static inline double seconds_of(uint64_t ns)
{
	return (double)ns / 1e9;
}

const char *sample_kind_word(enum sample_kind k);
const char *sample_phase_word(uint32_t phase);
const char *sample_metric_word(enum sample_metric m);

#endif
