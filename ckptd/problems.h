/* SPDX-License-Identifier: Apache-2.0 */
/*
 * problems.h - what keeps a job from being saved: one small table of each job.
 *
 * Whoever finds that something is wrong, or is not any more, calls the function here that says so.
 * A problem stands from its first finding to its end; both are an event and a line of the log, and
 * in between it is a PROBLEM of `ckptctl status`. On the loop's thread.
 */
#ifndef CKPTD_PROBLEMS_H
#define CKPTD_PROBLEMS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/work.h"
#include "ckpt.h"

struct checkpoint;
struct job;
struct member;
struct node;
struct session_page;
struct skip_request;
struct timer;

/* X(name, word, what was so) */
#define JOB_PROBLEMS(X)                                                                            \
	X(PROBLEM_PREPARE, "prepare-refused", "memory or disk for saves was refused")              \
	X(PROBLEM_SAVES, "saves-fail", "saves failed")                                             \
	X(PROBLEM_SKIPS, "saves-skipped", "saves were skipped")                                    \
	X(PROBLEM_AHEAD, "rank-ahead", "a rank was far ahead of the others")                       \
	X(PROBLEM_DAMAGE, "damage", "a checkpoint on disk was damaged")                            \
	X(PROBLEM_DISK, "disk-full", "a checkpoint had no room on disk")                           \
	X(PROBLEM_FOLDER, "folder-away", "the data folder was away")                               \
	X(PROBLEM_LOG, "log-unwritable", "the log could not be written")                           \
	X(PROBLEM_NO_COMMIT, "no-commit", "nothing was committed")                                 \
	X(PROBLEM_NOT_LOADED, "not-loaded", "some ranks had loaded and others had not")            \
	X(PROBLEM_GOES_BACK, "goes-back", "steps were saved that an earlier run had passed")       \
	X(PROBLEM_LOST, "lost", "committed checkpoints were lost")                                 \
	X(PROBLEM_DISK_LOW, "disk-low", "the disk had no room for the next launch or save")

enum job_problem {
#define X(name, word, was) name,
	JOB_PROBLEMS(X)
#undef X
		JOB_PROBLEM_COUNT
};

#define PROBLEM_TEXT_MAX (ERR_TEXT_MAX + 200) /* a sentence of a trainer, and of which save it is */
#define PROBLEM_NO_RANK UINT32_MAX
#define PROBLEM_NO_STEP UINT64_MAX

/* X(name, word of the JSON): what a Prepare was refused for. */
#define PREPARE_LACKS(X)                                                                           \
	X(PREPARE_BUDGET, "budget") /* memory.budget */                                            \
	X(PREPARE_MEMORY, "memory") /* of the cgroup or the machine, with budget left */           \
	X(PREPARE_DISK, "disk")                                                                    \
	X(PREPARE_OTHER, "other") /* a quota, places in the fd store, or what no option gives */

enum prepare_lacks {
#define X(name, word) name,
	PREPARE_LACKS(X)
#undef X
};

struct problem {
	bool stands;
	bool said;         /* its beginning is in the log, and so will be its end */
	uint32_t ranks;    /* that have it: PREPARE (0: they have left), SAVES and NOT_LOADED */
	uint32_t rank;     /* whose sentence it is */
	uint64_t step;     /* that it is about */
	uint64_t times;    /* found since it stands */
	uint64_t since_ns; /* loop's clock, like the next */
	uint64_t said_ns;
	uint64_t left_ns; /* PREPARE: when the last rank that had it left */
	enum prepare_lacks lacks; /* PREPARE: the newest */
	char text[PROBLEM_TEXT_MAX];
};

struct last_skip {
	uint64_t step, wall_ns; /* wall_ns 0: there is none */
	uint32_t rank, kind;    /* enum ckpt_skip_reason */
	char reason[ERR_TEXT_MAX];
};

/* Of a job. */
struct saves {
	struct problem problems[JOB_PROBLEM_COUNT];
	uint64_t skips[CKPT_SKIP_REASONS_MAX]; /* of all ranks, in this life of ckptd */
	struct last_skip last_skip;
	bool tried;      /* a rank wants to save in this epoch */
	bool called;     /* a rank has called save in it: */
	uint64_t newest; /* the newest step that one called it for */
	uint32_t row;    /* steps that were skipped since the last commit: */
	uint64_t row_from, row_to, row_ns;
	uint64_t commit_ns;     /* loop's clock: the last commit, or the epoch began */
	uint64_t commit_gap_ns; /* between the last two; 0: not known */
	/* Steps that every rank sealed and that wait for a log that cannot be written, or were
	 * given up for it; the first of them, or 0. */
	uint64_t uncommitted, uncommitted_from;
	uint64_t given_up, given_up_from; /* of these: their slots were needed */
	uint64_t lost_at;          /* the log's next record when lost commits were counted last */
	bool end_said, ended;      /* of the run: see problems_all_left() */
};

/* Of a rank. */
struct rank_saves {
	uint32_t problems; /* bits of enum job_problem */
	uint64_t skips;
	bool skipped_last; /* its last save was */
	uint64_t noted;    /* in this epoch its trainer was told that the job goes back */
	struct last_skip last_skip;
};

/* ---- What ckptd's machines find ---- */

void problems_epoch(struct job *j); /* a new one began */
void problems_joined(struct member *m);
void problems_adopted(struct job *j); /* problems_restart.c: with its members and their pages */
/* A rank asked for the memory of its saves. */
void problems_asked(struct member *m);
void problems_prepare_refused(struct member *m, enum prepare_lacks what, const char *why);
void problems_prepared(struct member *m);
void problems_save_failed(struct member *m, uint64_t step, const char *why);
void problems_skipped(struct member *m, const struct skip_request *r);
/* It skips steps for another rank's sake, which is ahead; and the job's ranks are together again.
 */
void problems_ahead(struct member *m, uint64_t step);
void problems_together(struct job *j);
void problems_sealed(struct member *m, const struct checkpoint *c);
void problems_aborted(const struct checkpoint *c);
/* It is about to be aborted as the log cannot be written: it stays in `uncommitted`. Whether it is
 * the first since the log can not. */
bool problems_given_up(const struct checkpoint *c);
/* What it saves cannot be committed, as others have loaded and it has not. */
#define NOT_LOADED                                                                                 \
	"rank %u has not loaded step %llu, which rank %u has: call load on each rank "             \
	"before the first save"
void problems_not_loaded(struct member *m, uint64_t step, const char *why);
void problems_loaded(struct member *m);
/* It has sealed this step: whether the job goes back to below what an earlier run has reached. Then
 * ret is a sentence for its trainer, once in an epoch. */
bool problems_goes_back(struct member *m, uint64_t step, char ret[ERR_TEXT_MAX]);
void problems_committed(const struct checkpoint *c);
void problems_damaged(const struct checkpoint *c);
void problems_log_failed(struct job *j, int level, const char *why);
void problems_log_works(struct job *j);
/* It is about to be freed. bye: it said so. */
void problems_left(struct member *m, bool bye);
/* It has no member any more, however the last one left; and each of them said so. */
void problems_no_rank(struct job *j);
void problems_all_left(struct job *j);
/* What memory and files hold is known, of a job that a start has taken up. */
void problems_started(struct job *j);
/* After all other machines of the job have taken their steps. */
void problems_step(struct job *j);
void problems_time_came(struct timer *t); /* node's: of jobs with ranks */

bool problems_stand(const struct job *j, enum job_problem k);
const char *problem_word(enum job_problem k);
const char *prepare_lacks_word(enum prepare_lacks what);
const char *skip_word(uint32_t kind);
void problems_fill_page(const struct member *m, struct session_page *page);

/* ---- problems_disk.c ---- */

/* What a look at the disk found. */
struct disk_look {
	struct work work;
	struct node *node;
	bool runs;
	int status;
	uint64_t free; /* bytes */
};
void problems_disk_full(struct job *j, uint64_t step, const char *why);
/* As that, where the data folder is away. */
void problems_folder_away(struct job *j, uint64_t step, const char *why);
void problems_disk_written(const struct checkpoint *c);
/* Asks for the free space, on a worker, and then looks at every job. */
void problems_disk_look(struct node *n);

/* ---- problems_json.c: doc/json.md ---- */

json_t *problems_json(const struct job *j);
json_t *saves_json(const struct job *j);
json_t *last_skip_json(const struct last_skip *s); /* null: there is none */

#endif
