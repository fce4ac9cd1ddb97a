/* SPDX-License-Identifier: Apache-2.0 */
/*
 * single.h - a job's log on this node's own disk: jobs/<job-id>/log/<n>.
 *
 * Append: write a temporary, fdatasync, link(2) to log/<n> (which fails if n is there), unlink the
 * temporary, fsync the folder. After an unclear answer n is read back and compared.
 * doc/log-format.md has the names.
 */
#ifndef COORD_SINGLE_H
#define COORD_SINGLE_H

#include "base/disk.h"
#include "base/joblog.h"

/* dir: the log's folder, relative to the disk; made (with its parents synced) if it is missing. */
MUST_CHECK int joblog_single_open(struct disk *disk, const char *dir, struct joblog **ret,
				  struct err *e);

#endif
