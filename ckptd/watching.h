/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watching.h - the node's failure detector: what it is told of jobs and ranks, and by what names.
 *
 * The detector knows small numbers (detect/sample.h): this node is 0, a job has its number for as
 * long as it has ranks and longer, a rank is a rank. Collectors number their devices themselves and
 * name them with SAMPLE_NAME. On the loop's thread alone.
 */
#ifndef CKPTD_WATCHING_H
#define CKPTD_WATCHING_H

#include "ckptd/node.h"
#include "detect/detector.h"

struct checkpoint;
struct job;
struct member;
struct watching;

#define WATCHING_NODE 0u /* this one, in samples and subjects */

/* NULL where options.detect is false. */
MUST_CHECK int watching_new(struct node *n, struct watching **ret);
void watching_free(struct watching *w); /* NULL is allowed */

/* A job's number, given at the first question. */
uint32_t watching_number(struct job *j);
/* Nothing is heard of it any more: its number is another's from here on. */
void watching_stopped(struct job *j);
/* NULL: there is no such job any more. */
struct job *watching_job(struct node *n, uint32_t number);
/* To be called before it leaves the node's list of jobs, or its number is reused: it is no longer
 * found. */
void watching_job_leaves(struct job *j);

/* ---- What ckptd's own machines tell ---- */

/* The jobs and ranks that were adopted. */
void watching_adopted(struct node *n);
/* An epoch was opened: each of its ranks begins, or begins again. The detector hears of the ranks
 * in rounds. */
void watching_epoch(struct job *j);
void watching_init_job(struct job *j);
void watching_joined(const struct member *m);
/* A rank ended, and how is known. */
void watching_exit(struct job *j, uint32_t rank, enum exit_how how, int32_t value);
enum exit_how watching_how(const struct process_exit *exit);
/* It fails, and its process is about to end: no step is expected of it. */
void watching_leaves(const struct member *m);
/* Its process ended: the detector is told when it is known how. */
void watching_ended(const struct member *m);
/* Handles one of its ranks; false: there is none left. */
bool watching_process_exit(struct node *n, const struct process_id *p,
			   const struct process_exit *exit);
/* Another process takes its rank, or its run is over. */
void watching_left(const struct member *m);
/* Nobody is left of it, and those who left said so. */
void watching_over(struct job *j);
/* A rank has joined; if all others had said goodbye the run is not over after all. */
void watching_goes_on(struct job *j);
/* The bytes of a committed checkpoint are gone. */
void watching_lost(struct job *j, uint64_t step);
void watching_stale(const struct checkpoint *c);
/* What rank has of a tensor at c differs from what other has. */
void watching_differ(const struct checkpoint *c, uint32_t rank, uint32_t other, const char *tensor);

/* ---- What is known ---- */

/* The detector's clock is now. Returns how many stand, and fills up to n; NULL: of everybody. */
size_t watching_standing(struct node *n, const struct subject *s, struct verdict *ret, size_t most);
/* The newest standing verdict with a lower number; false: there is none. */
MUST_CHECK bool watching_older(struct node *n, uint64_t id, struct verdict *ret);
void watching_explain(struct node *n, const struct subject *s,
		      void (*line)(void *arg, const char *text), void *arg);
/* A person says that it is well. Returns how many verdicts that ended. */
size_t watching_clear(struct node *n, const struct subject *s);
/* A device of this node by its name. */
bool watching_device(struct node *n, const char *name, struct subject *ret);

/* ---- Names ---- */

#define SUBJECT_WORDS_MAX 160
/* "rank 3 of job 'lm'", "GPU 0000:9b:00", "node 'n17'" */
void watching_words(struct node *n, const struct subject *s, char buf[SUBJECT_WORDS_MAX]);

#endif
