/* SPDX-License-Identifier: Apache-2.0 */
/*
 * goodput.h - what happens to a job, told to detect/goodput.h; and what follows from it, as JSON.
 */
#ifndef CKPTD_GOODPUT_H
#define CKPTD_GOODPUT_H

#include <jansson.h>

#include "ckptd/job.h"
#include "storage/node_files.h"

struct sample;
struct verdict;

/* Its newest epoch is in the log. */
void goodput_epoch_opened(struct job *j);
/* A step is finished. */
void goodput_went_on(struct job *j, uint64_t step);
void goodput_was_committed(const struct checkpoint *c);
void goodput_was_durable(const struct checkpoint *c);
void goodput_died(struct job *j);  /* a process of it */
void goodput_ended(struct job *j); /* all said goodbye */
void goodput_goes_on(struct job *j); /* ... and another rank of that run came */
/* The beginning and end of rank 0's saves, as it says them: all ranks save alike. */
void goodput_sample(struct job *j, const struct sample *s); /* j NULL: nothing */
/* Hung and slow, where it is an alarm: of a job or one of its ranks for that job, of the node, a
 * GPU or a link for all that run here. Disks are written beside training. */
void goodput_verdict(struct node *n, const struct verdict *v);
/* Of a job or node that goes. */
void goodput_forget_held(struct held_up held[2]);
/* doc/json.md: goodput. */
json_t *goodput_json(struct job *j);

/* ---- goodput_file.c: over restarts of ckptd, in GOODPUT_FILE of the job's folder ---- */

struct found_job;
/* Blocking, on a worker: what is damaged is told, and as if it were not there. */
void goodput_file_read(struct node *n, struct found_job *f);
/* Jobs and their ranks are there. */
void goodput_adopted(struct node *n);
/* Written on a worker, soon; what cannot be written is told and kept in memory. */
void goodput_keep(struct job *j);
void goodput_keep_all(struct node *n);
void goodput_time_came(struct timer *t); /* node's: each minute, of jobs that somebody runs */

#endif
