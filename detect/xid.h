/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xid.h - what the rule `xid` keeps of each GPU and NVSwitch. For files in detect/ only.
 *
 * Terms: a *message* is one line of the kernel, or one event of NVML. Messages of one Xid that come
 * less than XID_ONE_INCIDENT apart are one *incident*: a driver repeats itself. Incidents are what
 * the table counts; a reset of the GPU ends one too.
 */
#ifndef DETECT_XID_H
#define DETECT_XID_H

#include "detect/kernel_line.h"
#include "detect/rules.h"
#include "detect/xid_policy.h"

#define XID_KEPT         8 /* of one GPU: different Xids; the oldest that stands least goes */
#define XID_TIMES        4 /* of the last incidents; rows that count more count in halves of it */
#define XID_JOBS         4
#define XID_OWNERS       4 /* users whose programs met it last */
#define XID_ONE_INCIDENT (60 * NS_PER_SEC)
#define XID_TOGETHER     (60 * NS_PER_SEC) /* two Xids that have to do with each other */
#define XID_SETTLE       (500 * NS_PER_MS) /* so long a row waits for those it goes `with` */
#define XID_SAID_TWICE   (5 * NS_PER_SEC)  /* the same one by kernel and NVML */
#define XID_NVML_LAGS    (2 * NS_PER_SEC)  /* its "none" may be older than the kernel's word */
#define XID_LINES_APART  (5 * NS_PER_SEC)  /* of what is said in three lines */
#define XID_LOST         79u               /* "fallen off the bus", also without an Xid */
#define XID_RECOVERY     154u

enum xid_source { XID_BY_KERNEL = 1, XID_BY_NVML };

struct xid_event {
	uint32_t code, subcode;
	bool fatal;
	enum xid_source source;
	uint32_t pid, job;
	int32_t link;
	const char *process, *unit;
};

/* A user whose programs met it. */
struct xid_owner {
	uint32_t uid;
	uint32_t jobs[XID_TIMES];
	uint64_t times_ns[XID_TIMES]; /* of its incidents, or jobs; newest first; 0: none */
};

struct xid_seen {
	const struct xid_row *row;
	uint32_t code, subcode;
	uint64_t first_ns, last_ns;   /* of this incident's messages */
	uint64_t times_ns[XID_TIMES]; /* of incidents, newest first; 0: none */
	uint64_t half_ns;             /* of rows that count more: this half of the window began, */
	uint32_t halves[2];           /* incidents in it and in the one before */
	uint32_t jobs[XID_JOBS];      /* that met it; SAMPLE_NONE: none */
	uint64_t job_ns[XID_JOBS];
	struct xid_owner owners[XID_OWNERS];
	uint32_t messages; /* of this incident */
	uint32_t n_with;   /* 0: nothing came with it; else the row's place + 1 */
	uint32_t with_code;
	uint32_t pid;
	int32_t link;
	uint8_t source;     /* of the last message */
	bool incident;      /* one goes on: not ended by a reset */
	bool standing;      /* a verdict was raised */
	bool dirty;         /* messages have come since it was said last */
	uint64_t said_ns;   /* ... then */
	uint64_t decide_ns; /* waits for others until then; 0: does not */
	char process[16], unit[16];
};

struct xid_gpu {
	struct list active;    /* in struct xid_mine: something stands or waits */
	struct device *device; /* NULL: nothing was ever seen */
	uint64_t recovery_ns;  /* the driver asks for something since then; 0: it does not */
	enum gpu_recovery recovery;
	bool unavailable, quiet_recovery;
	uint32_t n_seen, forgotten;
	struct xid_seen seen[XID_KEPT];
};

/* xid_judge.c: says what stands now against one, or that nothing does. */
void xid_judge(struct detector *d, struct xid_gpu *g, struct xid_seen *x);
void xid_clear(struct detector *d, struct xid_gpu *g, struct xid_seen *x, const char *why);
/* How often it came within the row's window. */
uint32_t xid_incidents(const struct xid_seen *x, uint64_t now_ns);
void xid_explain(const struct detector *d, const struct xid_gpu *g, struct explain *e);

#endif
