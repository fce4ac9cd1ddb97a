/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spare.h - files in spare/: given by a job when they expire, taken for its next ones. What may be
 * given stands in spare.c.
 */
#ifndef STORAGE_SPARE_H
#define STORAGE_SPARE_H

#include "storage/store.h"

/* What store_open() makes for a store that is written to, and store_close() frees; NULL is fine. */
MUST_CHECK int spares_new(struct spares **ret);
void spares_free(struct spares *all);

/*
 * Moves a shard file to spare/ and zeroes its header: 0, and path is gone. Files of other jobs and
 * of other sizes give way where spare/ would have more than keep_spare bytes. A negative error: it
 * is not for recycling (a reader, a second link, no room, a failure): the caller unlinks path.
 */
MUST_CHECK int spare_give(struct store *s, const struct job_id *job, const char *path,
			  uint64_t keep_spare);
/*
 * A file that the job gave, of at least length bytes (and at most twice), renamed to path and cut
 * to length. Its header is zero, the rest is what the job had there: all of it is to be written
 * over. CKPT_ENOTFOUND when there is none.
 */
MUST_CHECK int spare_take(struct store *s, const struct job_id *job, const char *path,
			  uint64_t length, struct disk_file **ret);
/* What the files that can be taken hold. */
uint64_t spare_bytes(const struct store *s);
/* Removes every file of spare/: at start what an earlier process left, later for the room. */
MUST_CHECK int spare_clear(struct store *s, struct err *e);

#endif
