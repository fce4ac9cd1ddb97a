/* SPDX-License-Identifier: Apache-2.0 */
/*
 * goodput.h - what happens to a job, told to detect/goodput.h; and what follows from it, as JSON.
 */
#ifndef CKPTD_GOODPUT_H
#define CKPTD_GOODPUT_H

#include <jansson.h>

#include "ckptd/job.h"

struct sample;
struct verdict;

/* Its newest epoch is in the log. */
void goodput_epoch_opened(struct job *j);
void goodput_was_committed(const struct checkpoint *c);
void goodput_was_durable(const struct checkpoint *c);
/* The beginning and end of rank 0's saves, as it says them: all ranks save alike. */
void goodput_sample(struct job *j, const struct sample *s); /* j NULL: nothing */
/* Of a job, or one of its ranks: hung and slow, where it is an alarm. */
void goodput_verdict(struct job *j, const struct verdict *v); /* j NULL: nothing */
/* doc/json.md: goodput. */
json_t *goodput_json(struct job *j);

#endif
