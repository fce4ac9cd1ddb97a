/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collect.h - what a node observes of itself: kernel messages, network ports, disks, memory
 * errors, pressure, GPUs, and what the processes of suspected ranks are doing.
 *
 * The machines of ckptd see the table alone; collectors_new() makes the real one (ckptd/collect.c).
 * The simulator has none. All calls and all that is told are on the loop's thread, and nothing is
 * told inside a call.
 */
#ifndef CKPTD_COLLECT_H
#define CKPTD_COLLECT_H

#include "base/conn.h"
#include "base/err.h"
#include "base/loop.h"
#include "detect/sample.h"

struct log;

struct collect_sink {
	void *arg;
	/* Of node 0. A device has a number from 0 on that no other device has, whatever its kind,
	 * and keeps it; its SAMPLE_NAME comes before anything else is said of it. */
	void (*sample)(void *arg, const struct sample *s);
	/* What a probed process is doing; step, phase and since are the receiver's to fill in. */
	void (*activity)(void *arg, const struct process_id *p, const struct sample_activity *a);
};

/* One collector, for status: its name and one sentence. */
typedef void collector_line_fn(void *arg, const char *name, bool works, const char *text);

struct collectors;
struct collectors_ops {
	void (*start)(struct collectors *, const struct collect_sink *sink);
	void (*stop)(struct collectors *); /* nothing is told after it */
	/* Looks at a process now, a moment later (to see what it uses) and every second, until off
	 * or until stop. Idempotent. */
	void (*probe)(struct collectors *, const struct process_id *, bool on);
	void (*describe)(struct collectors *, collector_line_fn *line, void *arg);
};
struct collectors {
	const struct collectors_ops *ops;
};

/* X(name, field, what it reads); each has its option detect.<name>. */
#define COLLECTORS_LIST(X)                                                                         \
	X(COLLECT_KERNEL, kernel, "kernel messages")                                               \
	X(COLLECT_NET, net, "network ports")                                                       \
	X(COLLECT_DISK, disk, "disks")                                                             \
	X(COLLECT_MEMORY, memory, "memory errors")                                                 \
	X(COLLECT_PRESSURE, pressure, "pressure")                                                  \
	X(COLLECT_NVML, nvml, "GPUs")

enum collector {
#define X(name, field, text) name,
	COLLECTORS_LIST(X)
#undef X
		COLLECTOR_COUNT
};

struct collect_options {
	const char *root;     /* what stands before /proc and /sys: "" but in containers, tests */
	const char *kmsg;     /* a device, FIFO or file of kernel messages */
	const char *data;     /* ckptd's folder: its disk comes first */
	uint64_t interval_ns; /* between two looks */
	uint64_t late_ns;     /* a read that takes longer is told of; 0: as is good */
	bool on[COLLECTOR_COUNT];
	struct log *log;
};

/* loop: of loop_epoll.h. Strings are copied. */
MUST_CHECK int collectors_new(struct loop *loop, const struct collect_options *o,
			      struct collectors **ret, struct err *e);
/* Stops it too. What hangs is left behind; returns within two seconds. */
void collectors_free(struct collectors *c);

#endif
