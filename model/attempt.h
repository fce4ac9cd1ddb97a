/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attempt.h - the identity of one try to checkpoint one step: nobody has to agree on it.
 */
#ifndef MODEL_ATTEMPT_H
#define MODEL_ATTEMPT_H

#include <stdbool.h>

#include "base/ids.h"

/* digest(job, incarnation, epoch, step, try); try is 0 unless an abort record said the next. */
struct attempt_id attempt_id_make(const struct job_id *job, uint64_t incarnation, uint64_t epoch,
				  uint64_t step, uint32_t try_number);
/*
 * Whether an attempt at this step is of this incarnation of the log, in epochs up to the last one:
 * no record says which one an attempt is of, so those that can be are made. One that was tried more
 * than ATTEMPT_TRIES_MAX times, or more than ATTEMPT_EPOCHS_MAX epochs ago, is taken for another's:
 * it stays. The number of the last epoch is whatever a log says, so the search needs a bound.
 */
#define ATTEMPT_TRIES_MAX  64
#define ATTEMPT_EPOCHS_MAX 4096
bool attempt_is_of(const struct attempt_id *a, const struct job_id *job, uint64_t incarnation,
		   uint64_t last_epoch, uint64_t step);

#endif
