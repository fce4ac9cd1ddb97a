/* SPDX-License-Identifier: Apache-2.0 */
/*
 * commit_rebuild.h - COMMIT made again from shard files and from what the log says (I8), where it
 * is gone or damaged.
 */
#ifndef STORAGE_COMMIT_REBUILD_H
#define STORAGE_COMMIT_REBUILD_H

#include "storage/commit_file.h"

/* What the shard files of a checkpoint without a good COMMIT are. */
enum shards_state {
	SHARDS_NONE,       /* none is there */
	SHARDS_UNFINISHED, /* some are not there or have no header, the others are good: as a write
			      leaves them that did not come to its end */
	SHARDS_DAMAGED,    /* some are what no write leaves, or cannot be read */
	SHARDS_WHOLE,      /* all lead to the root */
};

/*
 * c has all that the log says: id, job, position, epoch, time, root, layout, world, bytes. With
 * SHARDS_WHOLE it gets its lines; else why says what is missing. Headers, footers and tables are
 * read, no chunk. An error is one of this process (memory, descriptors), not of the files.
 */
MUST_CHECK int commit_shards(struct store *s, struct commit_file *c, enum shards_state *ret,
			     struct err *why);
/*
 * The same with every byte read again and compared with the root, and every file synced before;
 * then objects and COMMIT are published, in the order of doc/disk-format.md. 0 with SHARDS_WHOLE:
 * the checkpoint is DURABLE. An error besides those above: publishing failed, COMMIT may be there
 * or not, and this may be repeated.
 */
MUST_CHECK int commit_rebuild(struct store *s, struct commit_file *c, enum shards_state *ret,
			      struct err *why);
/* Which files have no name in the checkpoint's folder: *ret has 1 or 0 for each of c->world ranks,
 * and is the caller's; NULL: all have one. */
MUST_CHECK int commit_missing_files(struct store *s, const struct commit_file *c, uint8_t **ret);
/* What of a COMMIT is not as the log says, in words; NULL: nothing. want: as above. Where COMMIT is
 * of an older incarnation of the log, position, epoch and time are not compared: beginning a log
 * anew gives others. */
const char *commit_differs(const struct commit_file *c, const struct commit_file *want);

#endif
