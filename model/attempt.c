/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "model/attempt.h"

#include "base/bytes.h"
#include "codec/digest.h"

struct attempt_id attempt_id_make(const struct job_id *job, uint64_t incarnation, uint64_t epoch,
				  uint64_t step, uint32_t try_number)
{
	uint8_t bytes[sizeof(job->b) + 8 + 8 + 8 + 4];
	struct attempt_id id;
	struct digest d;

	memcpy(bytes, job->b, sizeof(job->b));
	put_le64(bytes + 16, incarnation);
	put_le64(bytes + 24, epoch);
	put_le64(bytes + 32, step);
	put_le32(bytes + 40, try_number);
	d = digest_of(bytes, sizeof(bytes));
	memcpy(id.b, d.b, sizeof(id.b));
	return id;
}

bool attempt_is_of(const struct attempt_id *a, const struct job_id *job, uint64_t incarnation,
		   uint64_t last_epoch, uint64_t step)
{
	uint64_t first = last_epoch > ATTEMPT_EPOCHS_MAX ? last_epoch - ATTEMPT_EPOCHS_MAX : 0;

	for (uint64_t epoch = last_epoch; epoch > first; epoch--) {
		for (uint32_t try = 0; try < ATTEMPT_TRIES_MAX; try++) {
			struct attempt_id made =
				attempt_id_make(job, incarnation, epoch, step, try);

			if (attempt_equal(&made, a))
				return true;
		}
	}
	return false;
}
