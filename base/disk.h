/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk.h - files as ckptd sees them: blocking names and syncs, queued bulk data.
 *
 * Paths are relative to the data folder, '/'-separated, without ".." or a leading '/'.
 * All calls may block and run on workers; a queue belongs to the thread that opened it, files and
 * the disk may be used from any thread, one file by one thread at a time.
 *
 * Errors are -errno. Rules that callers keep:
 *   - an error of sync() is final: the file's contents are unknown, it is never synced again;
 *   - a failed or short transfer leaves its range unknown, and its buffer is the disk's until the
 *     transfer has been reaped;
 *   - a name is durable only after sync_dir() of its folder, data only after sync();
 *   - every transfer of a DIRECT file, queued or not, has address, offset and length at multiples
 *     of DISK_ALIGN: -EINVAL otherwise, also where the file system would not mind. A read past the
 *     end of the file may ask for a whole block and gives what there is.
 *
 * Implementations: storage/disk_uring.c, storage/disk_threads.c (names and syncs shared in
 * storage/disk_posix.c), tests/sim/disk.c.
 */
#ifndef BASE_DISK_H
#define BASE_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/list.h"

#define DISK_ALIGN 4096u              /* offset, length and address of O_DIRECT transfers */
#define DISK_PATH_MAX 255             /* bytes of a relative path, without NUL */
#define DISK_TRANSFER_MAX (16u << 20) /* bytes of one queued transfer */

enum {
	DISK_READ = 1,   /* else read and write */
	DISK_CREATE = 2, /* make it if it is not there */
	DISK_EXCL = 4,   /* with CREATE: -EEXIST if it is */
	DISK_DIRECT = 8, /* O_DIRECT where the file system can; falls back silently */
	DISK_EXACT = 16, /* through the page cache, which reads what is asked for, no more */
};

struct disk;
struct disk_ops;
struct disk_queue;

struct disk_file {
	struct disk *disk;
};

/* One queued transfer; the caller's until submitted and again after it was reaped. */
struct disk_io {
	struct disk_file *file;
	void *buf;
	uint64_t offset;
	uint32_t length; /* at most DISK_TRANSFER_MAX */
	bool write;
	int result;      /* length, or -errno; short transfers are continued by the back-end, a read
			    past the end of the file gives what there was */
	void *owner;     /* free for the caller */
	struct list link; /* the back-end's while submitted */
	uint32_t moved;   /* the back-end's */
};

typedef int disk_name_fn(void *arg, const char *name, bool is_dir); /* non-zero ends the walk */

struct disk_ops {
	int (*open)(struct disk *, const char *path, unsigned flags, struct disk_file **ret);
	void (*close)(struct disk_file *);
	int (*size)(struct disk_file *, uint64_t *ret);
	int (*links)(struct disk_file *, uint64_t *ret);
	/* Whether it belongs to this process's user, and no other user but root may open it. */
	int (*is_private)(struct disk_file *, bool *ret);
	/* Reserves [0, length): later writes there cannot run out of space. Keeps what is there. */
	int (*allocate)(struct disk_file *, uint64_t length);
	int (*truncate)(struct disk_file *, uint64_t length);
	int (*sync)(struct disk_file *); /* fdatasync */
	/* Unqueued transfers, whole or an error; reading past the end is -ENODATA. */
	int (*read)(struct disk_file *, void *buf, size_t len, uint64_t offset);
	int (*write)(struct disk_file *, const void *buf, size_t len, uint64_t offset);
	/* Open-file-description lock, shared or exclusive, not waiting: -EAGAIN when taken. */
	int (*lock)(struct disk_file *, bool exclusive);
	/*
	 * A new descriptor for a client to read from, with O_DIRECT where that is in use and a
	 * shared lock where this file has one. It is an open file description of its own: what the
	 * client does to its offset, flags and lock changes nothing here. Nothing ever takes it
	 * back. -EPERM unless the file was opened with DISK_READ; -ENOTSUP in part.
	 */
	int (*export_fd)(struct disk_file *);
	/* Whether the file is open elsewhere too, independent of locks: a duplicate of this
	 * descriptor does not count, a second open() does. On an error it is not known. */
	int (*in_use)(struct disk_file *, bool *ret);
	/* What the page cache holds of it is not needed any more: advice. */
	void (*forget)(struct disk_file *);

	int (*mkdir)(struct disk *, const char *path); /* -EEXIST is success */
	int (*rmdir)(struct disk *, const char *path);
	int (*rename)(struct disk *, const char *from, const char *to); /* replaces */
	int (*link)(struct disk *, const char *from, const char *to);   /* -EEXIST if there */
	int (*unlink)(struct disk *, const char *path);
	int (*sync_dir)(struct disk *, const char *path); /* "" is the data folder */
	int (*list)(struct disk *, const char *path, disk_name_fn *fn, void *arg);
	int (*space)(struct disk *, uint64_t *ret_free, uint64_t *ret_total); /* bytes */

	int (*queue_open)(struct disk *, unsigned depth, struct disk_queue **ret);
	void (*queue_close)(struct disk_queue *); /* reaps what is in flight */
	/* At most depth in flight; -EAGAIN beyond that. It may start at once or at reap. */
	int (*submit)(struct disk_queue *, struct disk_io *);
	/* Waits for one transfer to end and returns it; *ret = NULL when none is in flight. */
	int (*reap)(struct disk_queue *, struct disk_io **ret);
	/* Memory that many transfers will use (registered buffers); advice, may be refused. */
	int (*queue_register)(struct disk_queue *, void *base, uint64_t length);
	void (*queue_unregister)(struct disk_queue *, void *base);
};

struct disk {
	const struct disk_ops *ops;
	const char *backend; /* "uring", "threads", "sim" */
};

#endif
