/* SPDX-License-Identifier: Apache-2.0 */
/*
 * oracle.h - what was promised to whom, from outside: the records that reached a job's log (seen
 * through a log that wraps ckptd's own), and what ranks sent and were told.
 *
 * What it holds against ckptd (sim_accuse() ends the run):
 *   log    record n never changes or vanishes, terms and epochs rise, a log is never begun anew
 * (its files are never damaged here); commits rise within an epoch (I5), are of attempts that every
 * rank sealed (I1, I3) and that were not aborted; no abort of a committed one; a free record only
 * for one that K newer durable ones cover, or that is lost with reason (I9, I4) epoch  its base is
 * the newest commit that the log does not call freed (I15, I6, I7, I5) lost   a commit is called
 * lost only if memory or its files were hit since (I6, I7) files  what was acknowledged as DURABLE
 * lies there until its free record (I4, I7) loads  every byte is that of one save of one attempt
 * (I1, I2); latest is the base (I15), and trusted as much as was asked for by records alone (I4);
 * leaves a leaf that ckptd handed out does not match only where the disk was damaged (I9, I11)
 * ranks  a save of an epoch that is over is refused (I11); a repeated seal keeps its attempt (I10)
 */
#ifndef TESTS_SIM_ORACLE_H
#define TESTS_SIM_ORACLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/ids.h"
#include "base/joblog.h"
#include "proto/origin.h"

struct sim;
struct rank;

/* Which bytes a rank wrote: every byte is a function of this, the job and its place. */
struct save_key {
	uint64_t epoch, step;
	uint32_t try;
};

struct seal_seen { /* one rank's, from the moment it was sent */
	struct save_key key;
	uint32_t rank, world;
	unsigned layout;
	enum origin_kind origin; /* UNSAID: its load may or may not have been heard of */
	bool acknowledged;
	struct attempt_id attempt; /* once acknowledged */
	uint64_t memory;           /* in which its slot was when it was sent */
};

struct commit_seen {
	uint64_t n, epoch, step;
	struct attempt_id attempt;
	uint32_t world;
	struct digest layout;
	uint64_t memory; /* oracle.memory when it was first seen */
	bool freed, lost, pinned;
	uint32_t trust; /* what records say of it */
	uint64_t bad_ns; /* when one first said bad; 0: none does */
	bool passed;    /* an epoch went back behind it, for want of trust */
	bool asked; /* to be removed, by a person */
	bool said_committed, said_durable;
	bool known; /* key is */
	bool commit_lost;       /* its COMMIT was removed, and no start has made it again */
	uint64_t files_lost;    /* ranks whose file was removed, a bit each */
	uint64_t lost_at_fault; /* of all that the disk had injected by then */
	struct save_key key;
};

/* Bytes of a copy in memory changed. What is written to disk from it then has them too, unless all
 * files were there before. */
struct memory_hit {
	struct attempt_id attempt;
	uint32_t rank;
	bool was_durable;
};

struct abort_seen {
	uint64_t n, epoch, step;
	struct attempt_id attempt;
};

struct oracle_job {
	struct job_id id;
	bool made;  /* by a tool: its log is begun anew from its COMMIT, maybe again (sim_made.c) */
	bool begun; /* record 0 was seen */
	char name[65];
	uint32_t uid;
	uint64_t incarnation, term;
	uint64_t n_records, n_sure; /* seen; of which appended or read durably */
	uint64_t memory_tried;      /* life of memory when the newest record was appended, or not */
	uint64_t *digests;
	size_t cap_digests;
	uint64_t epoch, base_step, epoch_n;
	bool has_base;
	struct attempt_id base_attempt;
	char run_id[129];
	uint32_t asked;      /* level of trust: asked_of() */
	uint32_t asked_ever; /* the highest that a load of it has asked for */
	struct seal_seen *seals;
	size_t n_seals, cap_seals;
	struct commit_seen *commits;
	size_t n_commits, cap_commits;
	struct abort_seen *aborts;
	size_t n_aborts, cap_aborts;
	struct memory_hit *hits;
	size_t n_hits, cap_hits;
	bool removing, removed; /* a person wants it to go; was told that it is gone */
};

#define ORACLE_JOBS 64 /* while the disk is full each open of a new one draws another id */
struct oracle {
	struct sim *sim;
	struct oracle_job jobs[ORACLE_JOBS];
	unsigned n_jobs;
	uint64_t memory;       /* which life of memory: another after each loss of it */
	bool replaying;
};

void oracle_init(struct oracle *o, struct sim *s);
void oracle_fini(struct oracle *o);

/* ---- The log ---- */
/* For joblog_open of struct env; arg is the sim. */
int oracle_open_log(void *sim, const struct job_id *job, bool anew, struct joblog **ret,
		    struct err *e);
struct oracle_job *oracle_find(struct oracle *o, const struct job_id *id);
/* It was removed: its log is there whole, or not at all. */
bool oracle_is_gone(struct oracle *o, const struct oracle_job *j);
/* Everything promised to be on disk is: after a start, and at the end. */
void oracle_check_files(struct oracle *o);
/* ckptd is ready: what was removed is there again, or the disk would not have it. */
void oracle_started(struct oracle *o);
/* After an orderly stop within its time: all that ranks know to be SEALED is in the log; on_disk:
 * and the newest commit is on disk. */
void oracle_stopped(struct oracle *o, bool on_disk);
void oracle_memory_lost(struct oracle *o);
/* Removes COMMIT, or a shard's file, of one of its checkpoints that was said to be DURABLE, while
 * no ckptd runs. Without COMMIT its files have to suffice to make it again, or to stay (I8);
 * without a file memory that has the rank has to do (I6). */
void oracle_lose_name(struct oracle *o, struct oracle_job *j, bool shard);
/* Damages a file of one of its checkpoints. */
void oracle_flip(struct oracle *o, struct oracle_job *j);

void oracle_memory_hit(struct oracle *o, const struct job_id *id, uint64_t step,
		       const struct attempt_id *a, uint32_t rank);
/* Its memory, or what a file may have been written from, was hit. */
bool oracle_memory_was_hit(const struct oracle_job *j, const struct attempt_id *a, uint32_t rank,
			   bool file);

/* ---- What ranks do and hear ---- */
/* A person's rm-job is sent; it was answered that the job is gone. */
void oracle_removes(struct rank *r);
void oracle_removed(struct rank *r);
void oracle_opened(struct rank *r, const struct job_id *id, uint64_t epoch, bool has_base,
		   uint64_t base_step, const struct attempt_id *base);
void oracle_seal_sent(struct rank *r, const struct save_key *k);
/* Whether that was committed before this epoch. */
bool oracle_is_of_older(struct rank *r, uint64_t epoch, uint64_t step, const struct attempt_id *a);
void oracle_sealed(struct rank *r, const struct save_key *k, const struct attempt_id *a,
		   uint64_t log_epoch_when_sent);
void oracle_waited(struct rank *r, uint64_t epoch, uint64_t step, uint32_t what);
/* Which key the bytes of this checkpoint must have; candidates one after the other: i from 0. */
bool oracle_key(struct oracle_job *j, uint64_t step, const struct attempt_id *a, unsigned i,
		struct save_key *ret, uint32_t *ret_world);
/* The layout that ranks saved with under this key. */
unsigned oracle_layout(const struct oracle_job *j, const struct save_key *k);
void oracle_loaded(struct rank *r, uint64_t step, const struct attempt_id *a,
		   const struct save_key *k);
void oracle_latest(struct rank *r, uint64_t epoch, bool nothing, uint64_t step,
		   const struct attempt_id *a);
/* A load of latest that is answered with no checkpoint: lost says which way. */
void oracle_none(struct rank *r, uint64_t epoch, bool lost);
/* What was given to be read. fell_back: the answer says so. */
void oracle_given(struct rank *r, uint64_t epoch, bool latest, uint64_t step,
		  const struct attempt_id *a, bool fell_back);
/* It asks for a level of trust. */
void oracle_asks(struct rank *r, uint32_t least);
/* It asked for a level of trust, at this time, and was given this. */
void oracle_trusted(struct rank *r, uint64_t step, const struct attempt_id *a, uint32_t least,
		    uint64_t asked_ns);
void oracle_bad_leaf(struct rank *r, uint64_t step, uint32_t rank, bool file);
struct commit_seen *oracle_commit(struct oracle_job *j, uint64_t step, const struct attempt_id *a);

#endif
