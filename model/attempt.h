/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attempt.h - the identity of one try to checkpoint one step: nobody has to agree on it.
 */
#ifndef MODEL_ATTEMPT_H
#define MODEL_ATTEMPT_H

#include "base/ids.h"

/* digest(job, incarnation, epoch, step, try); try is 0 unless an abort record said the next. */
struct attempt_id attempt_id_make(const struct job_id *job, uint64_t incarnation, uint64_t epoch,
				  uint64_t step, uint32_t try_number);

#endif
