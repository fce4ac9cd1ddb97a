/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk_posix.h - the data folder on a real file system; one of two ways to queue transfers.
 *
 * "uring": each queue is a ring of its own, set up with a ladder of flags down to none. "threads":
 * each queue has a few threads with pread and pwrite. "auto": uring if the kernel and the
 * container allow it, else threads: its absence is normal. Names, syncs and locks are shared.
 */
#ifndef STORAGE_DISK_POSIX_H
#define STORAGE_DISK_POSIX_H

#include "storage/beneath.h"

/* folder must exist. backend: "auto", "uring" or "threads". */
MUST_CHECK int disk_posix_open(const char *folder, const char *backend, struct disk **ret,
			       struct err *e);
/* Of a folder that is open, which is then the disk's, in any case. */
MUST_CHECK int disk_posix_take(struct beneath *folder, const char *backend, struct disk **ret,
			       struct err *e);
/* The same folder, not resolved again: the path may lead elsewhere by now. */
MUST_CHECK int disk_posix_again(struct disk *d, const char *backend, struct disk **ret,
				struct err *e);
void disk_posix_close(struct disk *d);
struct beneath *disk_posix_folder(struct disk *d);
/* Whether io_uring can be used here; if not, why, in one sentence. */
bool disk_uring_usable(struct err *why);

#endif
