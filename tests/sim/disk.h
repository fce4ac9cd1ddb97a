/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk.h - a simulated disk that keeps to the letter of what a file system promises.
 *
 * What it models
 *   - Each file has live contents (what reads see: the page cache) and stable contents (what a
 *     power loss leaves). A write is live at once; sync() makes the file's writes stable.
 *   - Power loss: of each sector's writes since the last sync a random prefix has reached the
 *     disk, sector by sector independently: writes are lost, reordered and torn. The size is one
 *     of those it had since the last sync.
 *   - Names: each change belongs to its folders. sync_dir() makes a folder's changes stable and
 *     what they depend on. Power loss keeps a random prefix of each folder's changes; a rename
 *     between folders is kept whole or not at all. sync() of a file does not make its name stable.
 *   - Death of a process: the page cache stays. Locks and handles go; of transfers in flight a
 *     random subset was done, before its successor starts.
 *   - A failed sync(): each sector is stable or lost; reads see old or new bytes; the lost writes
 *     are clean for the system, and a later sync() returns 0 without them.
 *   - A queue ends transfers in any order and reads or writes the buffer at its end.
 *
 * Fault atlas: what may be done to which files, so that what is promised must survive. One node
 * has one copy of everything; so
 *   file            | I/O errors, | flips, misdirected writes
 *                   | no space    |
 *   log/<n>         | yes         | no: the only copy of what was decided
 *   COMMIT          | yes         | yes: that checkpoint is lost, and reported; never wrong bytes
 *   rank-*.shard    | yes         | yes: the same
 *   declarations/,  | yes         | yes: they can be made again from the shard files
 *   layouts/        |             |
 *   spare/          | yes         | yes: nothing in it is trusted
 *   FORMAT, LOCK    | yes         | no: they are checked by hand, not repaired
 * disk_leak() tells it of bytes that may come into wrong hands: a write to a file of which a
 * descriptor was ever exported, or a shard file that goes from one job to another.
 * disk_is_damaged() tells the oracle which files were hit and not overwritten since: a checkpoint
 * none of whose files is damaged must be there, bit for bit. Each kind has a budget.
 */
#ifndef TESTS_SIM_DISK_H
#define TESTS_SIM_DISK_H

#include "base/disk.h"
#include "tests/sim/world.h"

enum disk_class {
	CLASS_LOG,
	CLASS_COMMIT,
	CLASS_SHARD,
	CLASS_OBJECT,
	CLASS_SPARE,
	CLASS_LOCK, /* holds a pid of the real world: stays out of hashes */
	CLASS_OTHER,
	DISK_CLASSES
};

enum disk_fault {
	FAULT_READ_EIO,
	FAULT_WRITE_EIO, /* part of it may have been written */
	FAULT_SYNC_EIO,  /* of a file or of a folder */
	FAULT_NO_SPACE,  /* allocate, create or grow */
	FAULT_NAME_EIO,  /* open, rename, link, ...: done or not, the answer is an error */
	FAULT_FLIP,      /* a bit of what lies there, before a read or at power loss */
	FAULT_MISDIRECT, /* a write goes elsewhere, in the same file or another */
	FAULT_STALE,     /* what the page cache gives a process is not what is there */
	DISK_FAULTS
};

struct disk_options {
	uint64_t bytes;      /* its size */
	uint32_t sector;     /* unit of tearing; a power of two */
	uint64_t op_ns_max;  /* time of one call */
	uint64_t sync_ns_max;
	/* One in n calls on such a file has the fault; 0: never. */
	uint32_t one_in[DISK_CLASSES][DISK_FAULTS];
	uint32_t budget[DISK_FAULTS];
};

/* A quick disk without faults. */
void disk_options_default(struct disk_options *o);
/* Faults as the atlas above allows, each kind on or off and its rate drawn from the seed. */
void disk_options_atlas(struct disk_options *o, struct world *w);

struct disk *disk_sim_new(struct world *w, const struct disk_options *o);
void disk_sim_free(struct disk *d);
struct disk_options *disk_sim_options(struct disk *d); /* may be changed at any time */
/* All lives that use it must have ended. */
void disk_power_loss(struct disk *d);
enum disk_class disk_class_of(const char *path);

/* What a process reads through a descriptor that export_fd() gave: bytes or -errno. */
int disk_fd_read(struct world *w, int fd, void *buf, size_t len, uint64_t offset);
/* Which file it is, whatever its name is now. */
uint64_t disk_fd_number(struct world *w, int fd);
/* Damaged or made to fail, whatever its name is now. */
bool disk_fd_hit(struct world *w, int fd);
/* Something was read through it that is not there. */
bool disk_fd_stale(struct world *w, int fd);

/* ---- For the oracle and for planted damage ---- */
/* NULL, or which bytes became readable where they must not be. */
const char *disk_leak(struct disk *d);
bool disk_is_damaged(struct disk *d, const char *path);
/* A read or an open of it, or the sync of a folder, was made to fail since it got its name; or it
 * took the name of one that was damaged: what else names that one may not fit it. */
bool disk_was_unreadable(struct disk *d, const char *path);
bool disk_exists(struct disk *d, const char *path);
/* What lies in the file now, up to max bytes of it; how many, or -1: there is none. */
int64_t disk_peek(struct disk *d, const char *path, void *buf, uint64_t max);
/* One bit of [offset, offset + len) of the file, live and stable; UINT64_MAX: to its end. */
int disk_flip(struct disk *d, const char *path, uint64_t offset, uint64_t len);
/* The file's name is gone, for good: as if a person had removed it. */
int disk_remove(struct disk *d, const char *path);
uint64_t disk_used_by(struct disk *d, enum disk_class c);     /* bytes, reserved ones too */
uint32_t disk_fault_count(struct disk *d, enum disk_fault f); /* injected so far */
size_t disk_open_files(struct disk *d);
/* Digest of all names and live contents. */
uint64_t disk_digest(struct disk *d);
/* Every path with its size, to stderr. */
void disk_dump(struct disk *d);

#endif
