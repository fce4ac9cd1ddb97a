/* SPDX-License-Identifier: Apache-2.0 */
/*
 * start.h - what a starting ckptd finds: jobs and their logs and files, then memory.
 */
#ifndef CKPTD_START_H
#define CKPTD_START_H

#include "ckptd/node_priv.h"

/*
 * Blocking, on a META worker: opens the store, reads every job's log and COMMIT files, takes away
 * what is left of persists and expiries that did not end. The result is handed to the loop.
 */
struct found_commit {
	struct commit_file file;
	struct checkpoint_id id;
	bool rebuilt;  /* this start has made its COMMIT again */
	uint8_t *gone; /* of each rank of its world 1: its file is gone; NULL: none is */
};
/* Has no COMMIT that can be used. */
enum found_how {
	FOUND_UNREADABLE, /* it is there: damaged, or not to be read now */
	FOUND_NO_COMMIT,  /* it is gone, and its files do not suffice */
	FOUND_WHOLE,      /* it is gone, its files suffice, and it could not be written now */
	FOUND_UNFINISHED, /* there never was one, by all that is known */
};
struct found_unreadable {
	struct checkpoint_id id;
	enum found_how how;
	char why[REASON_MAX + 1];
};
struct found_job {
	struct list link;
	struct job_id id;
	struct history history;
	struct joblog *log;
	uint8_t token[32];
	struct goodput goodput;
	uint64_t goodput_wall_ns; /* when it was kept; 0: there is none */
	struct found_commit *commits;
	size_t n_commits, cap_commits;
	struct found_unreadable *unreadable;
	size_t n_unreadable;
	bool log_whole; /* it has records, and no damage */
	bool relogged; /* the log was lost or damaged and begun anew from the files */
};
struct found {
	struct list jobs;
	struct list refused; /* struct refused_job: those that could not be read */
	uint32_t discarded, expired, damaged;
	struct index *index;
	bool index_good, index_fresh;
};
/* -EXDEV: the memory that adopt_begin() took is of another data folder; nothing was touched. */
MUST_CHECK int start_scan(struct node *n, struct found *ret, struct err *e);
/* The same for one job of a node that runs, whose folder has just come to jobs/. */
MUST_CHECK int start_read_job(struct node *n, const struct job_id *id, struct found *ret,
			      struct err *e);
/* start_commit.c: what is made of a checkpoint's folder. commit NULL: why there is none. Negative:
 * what this process lacks. */
MUST_CHECK int start_checkpoint(struct node *n, struct found *found, struct found_job *f,
				const struct checkpoint_id *id, const struct commit_file *commit,
				const struct err *why);
/* What the index knows as durable, and the folders do not have. */
MUST_CHECK int start_indexed(struct node *n, struct found *found, struct found_job *f);
/* On the loop: all that was found of a job becomes j's. */
MUST_CHECK int start_take_job(struct job *j, struct found_job *f);
/* Events about its files, once the detector knows its number. */
void start_tell_files(struct job *j);
void found_job_free(struct found_job *f); /* what was not taken over */

/* relog.c: begins a job's log anew from its COMMIT files, incarnation + 1. */
MUST_CHECK int relog(struct node *n, struct found_job *f, struct err *e);
/* Before a job's log is opened: ends a relog() that had come to its renames. */
MUST_CHECK int relog_finish(struct node *n, const struct job_id *id, struct err *e);

/* adopt.c, on the loop, before start_scan(): takes what the fd store held. */
void adopt_begin(struct node *n);
/* adopt.c, on the loop: that memory becomes slots, members, checkpoints; that of a refused job
 * stays. A job whose memory another version has written is refused. -ENOMEM: it is in the fd store
 * as it was. */
MUST_CHECK int adopt_memory(struct node *n);
/* Whether another version wrote a refused job's memory; e describes it. */
bool adopt_is_foreign(const struct node *n, const struct job_id *job, struct err *e);
/* The same for a job that is read later than the others: refused.c. */
void adopt_late(struct job *j);
/* Ranks whose processes ended while no ckptd ran; once the detector knows the runs. */
void adopt_tell_ended(struct node *n);
/* Writes all that is true of a job's memory into a ledger. */
int adopt_rewrite(void *job, struct ledger *into);

#endif
