/* SPDX-License-Identifier: Apache-2.0 */
/*
 * held_files.h - shard files whose names are gone and that other processes still have open: their
 * bytes stay on the disk until these close them.
 */
#ifndef STORAGE_HELD_FILES_H
#define STORAGE_HELD_FILES_H

#include "storage/store.h"

struct held_files {
	struct disk_file **files;
	uint32_t n;
	uint64_t bytes; /* of all of them */
};

/* All files of a checkpoint that are there, before it expires. Best effort: one that cannot be
 * opened is left out. */
MUST_CHECK int held_files_open(struct store *s, const struct checkpoint_id *id, uint32_t world,
			       struct held_files *ret);
/* Closes the files that still have a name, those that no other process has open, and those for
 * which that is not known. */
void held_files_sift(struct held_files *h);
void held_files_close(struct held_files *h);

#endif
