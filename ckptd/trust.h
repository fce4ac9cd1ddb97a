/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trust.h - how a job's checkpoints rise from latest to complete and verified (model/trust.h).
 *
 * trust.c decides and has it recorded; recheck.c reads copies again. Both are background: nothing
 * that a trainer waits for ever waits for them.
 */
#ifndef CKPTD_TRUST_H
#define CKPTD_TRUST_H

#include "ckptd/job.h"
#include "model/trust.h"

struct retention_item;
struct verdict;

/* ---- trust.c ---- */

/* Said of a committed checkpoint: recorded soon, and true from then on (I4). */
void trust_say(struct checkpoint *c, uint32_t what);
/* A trust record of it is in the log. */
void trust_recorded(struct checkpoint *c);
/* Only the planted bug PASSED_BEFORE_EPOCH: what is newer than base is passed over by records of
 * its own, whatever becomes of the epoch. */
void trust_pass_over_early(struct checkpoint *base);
/* It was committed just now. */
void trust_committed(struct checkpoint *c);
/* The job's log was read, or its next epoch is in the log: which checkpoints it goes on from. */
void trust_started(struct job *j);
void trust_epoch(struct job *j);
/* The job has finished this step; a higher one was finished already: nothing. */
void trust_progress(struct job *j, uint64_t step);
/* A beat: the rank's newest step, if it made it in the job's newest epoch. */
void trust_beat(struct job *j, uint32_t rank, uint64_t step, uint64_t time_ns);
/*
 * An alarm that makes a job's state worthless (of class corrupting or diverging; of a node: all its
 * jobs' state) began at v->since_ns of the loop's clock and is told now: what was committed since
 * then, and until it is cleared or the next epoch, is doubted; healthy steps are counted anew.
 * Other verdicts change nothing. j: of a subject that is a job or a rank; NULL: it is gone.
 */
void trust_verdict(struct node *n, struct job *j, const struct verdict *v);
/* Healthy steps behind it, of those that count; 0 too where none can verify it any more. */
uint64_t trust_healthy_steps(const struct checkpoint *c);
void trust_step(struct job *j);
/* Queues a record of what is said and has none yet, so that a decision can wait for it. */
void trust_queue(struct job *j);
/* Which of the durable ones, oldest first, stay for their trust: retention_item.held. room: the
 * disk has some. */
void trust_hold(struct job *j, bool room, struct checkpoint *const *order,
		struct retention_item *items, size_t n);

/* ---- recheck.c ---- */

struct recheck;
/* With its node; may fail. */
MUST_CHECK int recheck_new(struct node *n, struct recheck **ret);
void recheck_free(struct recheck *r);
/* Something of the job may be there to be read. */
void recheck_step(struct job *j);
/* Somebody saves or loads: what is being read now is read later. */
void recheck_give_way(struct node *n);
/* The checkpoint is being freed. */
void recheck_forget(struct checkpoint *c);
/* A worker reads a file of a checkpoint of it just now, which therefore stays. */
bool recheck_reads_files_of(const struct job *j);
/* Its files are about to go: an open one would hold its bytes. */
void recheck_let_go(struct checkpoint *c);
bool recheck_is_reading(const struct checkpoint *c); /* it is its files' turn */
bool recheck_is_busy(const struct checkpoint *c); /* a worker reads a copy of it just now */

#endif
