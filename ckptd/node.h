/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node.h - ckptd without an operating system: jobs, sessions, snapshots, persistence, retention.
 *
 * Everything here and in the machines behind it (job, attempt, persist, retain, load, ledger) sees
 * the world only through struct env; ckptd/main.c fills it with the real one, tests/sim with
 * virtual time. All calls and callbacks are on the loop's thread.
 */
#ifndef CKPTD_NODE_H
#define CKPTD_NODE_H

#include "base/conn.h"
#include "base/disk.h"
#include "base/ids.h"
#include "base/index.h"
#include "base/joblog.h"
#include "base/loop.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/work.h"
#include "detect/sample.h"
#include "model/retention.h"

/* Opens the log of a job, or the one that is begun anew to take its place (path_log_new()); a
 * table entry so that other back-ends can be chosen. */
typedef int joblog_open_fn(void *arg, const struct job_id *job, bool anew, struct joblog **ret,
			   struct err *e);

/* Opens the index, on a worker, once the data folder is locked. NULL: it is lost; then everything
 * works from the files. *ret_fresh: it was made anew, and is to be rebuilt. Whoever gave the
 * function closes it, after the node is freed. */
typedef struct index *index_open_fn(void *arg, bool *ret_fresh);

/* What ckptd says to people: one line an event; level as syslog's. about (log.h): NULL, or what the
 * line is about, for programs that look for it. */
struct log_about;
typedef void node_log_fn(void *arg, int level, const struct log_about *about, const char *line);

/* Whether the data folder's name still leads to it: -errno and a sentence where it was taken away,
 * or its file system is not mounted there any more. On a worker. */
typedef int folder_check_fn(void *arg, struct err *e);

struct env {
	struct loop *loop;
	struct workers *workers;
	struct disk *disk;
	index_open_fn *index_open; /* NULL: there is no index */
	void *index_arg;
	struct memory *memory;
	struct processes *processes;
	struct hooks *hooks;           /* ckptd/hook.h; may be NULL */
	struct checks *checks;         /* ckptd/acting.h; may be NULL */
	struct collectors *collectors; /* ckptd/collect.h; may be NULL */
	struct rng *rng;
	folder_check_fn *folder_check; /* may be NULL */
	void *folder_arg;
	joblog_open_fn *joblog_open;
	void *joblog_arg;
	/* Each sample as the detector gets it; may be NULL. */
	void (*record)(void *arg, const struct sample *s);
	void *record_arg;
	node_log_fn *log;
	void *log_arg;
};

struct node_options {
	char name[64];               /* of this node, for records */
	char data[256];              /* its folder, for tools that read beside it */
	struct geometry geometry;
	uint32_t transfer;           /* bytes of one queued transfer */
	uint32_t slots;              /* per rank; 3 */
	uint32_t ledger_slice;       /* of a ledger's move, for tests; 0: as is usual */
	uint32_t release_slice;      /* ranks whose memory goes in a call, the same */
	uint32_t ledger_inline;      /* bytes of a record; longer ones get a region of their own */
	int compression;             /* zstd level of durable files; 0: off */
	struct retention_policy retention;
	uint32_t persist_every;      /* persist every N-th commit; 1: whenever the disk is free */
	bool dedup;                  /* write what ranks hold alike once */
	bool keep_verified;          /* the newest verified one stays, and the next to be */
	uint64_t healthy_steps;      /* that verify a checkpoint; 0: steps do not */
	char hook[256];              /* trust.hook; empty or "/dev/null": none */
	uint64_t hook_timeout_ns;
	uint64_t recheck_rate;       /* bytes a second; 0: copies are not read again */
	uint64_t spare_bytes;        /* what spare/ may hold */
	uint64_t disk_reserve;       /* bytes of the file system that stay free */
	uint64_t attempt_timeout_ns; /* an attempt not sealed by all ranks by then is aborted */
	uint64_t warn_after_ns;      /* without a commit: a problem; 0: as is usual for the job */
	uint64_t skips_ns;           /* saves that are skipped for longer are one */
	uint64_t settle_timeout_ns;  /* bound on settling the old epoch at an open */
	uint64_t leaving_ns;         /* a failed trainer's process has so long to end: leaving.c */
	uint64_t log_trim;           /* records kept before a summing record replaces them */
	uint64_t session_idle_ns;    /* closes idle connections without a rank; 0: never */
	uint32_t sessions_per_uid;   /* ranks of one user */
	uint32_t jobs_per_uid;
	uint32_t waits_per_session, loads_per_session; /* under way */
	uint32_t waits_per_uid, loads_per_uid, load_files_per_uid; /* the same; user.h */
	uint64_t declaration_bytes_per_uid, plan_bytes_per_uid, held_bytes_per_uid;
	uint64_t descriptors; /* that this process may have open; 0: without a limit */
	uint64_t memory_per_uid;     /* 0: all of the budget */
	bool detect;                                   /* watch for what fails */
	uint32_t watched_jobs;                         /* with ranks, at a time */
	bool admission; /* env.checks is asked before the first open */
	uint64_t admission_hold_ns; /* how long an open may wait for that; 0: as is usual */
	uint32_t actions_per_hour;                     /* that the policy may decide on */
	bool dry_run;                                  /* of the policy */
	bool abort_broken; /* a job whose state contradicts itself ends the process: job_state.h */
	const struct xid_policy *xid; /* of GPUs' errors; NULL: they are not judged */
};
void node_options_default(struct node_options *o);

struct node;

MUST_CHECK int node_new(const struct env *env, const struct node_options *o, struct node **ret,
			struct err *e);
/*
 * Adopts what the fd store held, reads jobs and their logs, cleans up leftovers, then calls ready
 * (0, or an error with its sentence). Opens that come earlier wait.
 */
void node_start(struct node *n, void (*ready)(void *arg, int status, const char *text), void *arg);
/* The receiver of what the listener and the process watcher tell; arg is the node. */
extern const struct conn_events node_conn_events;
/*
 * Orderly stop: takes no new opens and gives no credits, lets what every rank has sealed be
 * committed, persists the newest COMMITTED of each job that is only in memory, also one that was
 * given up (all bounded by timeout_ns), then calls stopped. Memory stays in the fd store.
 */
void node_stop(struct node *n, uint64_t timeout_ns, void (*stopped)(void *arg), void *arg);
/* Nothing is waited for any more: works that can be cut short end soon. After node_stop(). */
void node_stop_now(struct node *n);
/* After a stop, in time or not: one line for each checkpoint that is committed and only in memory,
 * and needed, or that every rank has saved and the log does not have; when: "within ...". Returns
 * how many. */
MUST_CHECK unsigned node_stop_lost(struct node *n, const char *when);
/* Takes over what may change while it runs: retention, persist_every, quotas. */
void node_reload(struct node *n, const struct node_options *o);
/* The configuration was read again and cannot be used: a problem until the next node_reload(). */
void node_reload_failed(struct node *n, const char *why);
/* Frees everything of this process; touches neither memory regions nor files. */
void node_free(struct node *n);

/*
 * An observation for the failure detector, from a collector or a rank's beats: of node 0, this one,
 * and of jobs and ranks by the numbers of watching.h. time_ns 0: now; of two samples the later one
 * has the later time, or is given it. Without a detector nothing happens.
 */
void node_sample(struct node *n, const struct sample *s);

/* Another table of what to do about verdicts (share/policy.tsv); where it is refused, in a sentence
 * with name and line, the one before stays. Before the first it is the one that is built in, which
 * comes back with node_default_policy(). */
MUST_CHECK int node_set_policy(struct node *n, const char *name, const char *text, size_t len,
			       struct err *e);
MUST_CHECK int node_default_policy(struct node *n);

/* One line for sd_notify's STATUS=. */
void node_summary(const struct node *n, char *buf, size_t size);

#endif
