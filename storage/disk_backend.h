/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk_backend.h - what the files of the disk on a real file system share: disk_posix.c (names,
 * syncs, locks, unqueued transfers) and the two ways to queue, disk_uring.c and disk_threads.c.
 */
#ifndef STORAGE_DISK_BACKEND_H
#define STORAGE_DISK_BACKEND_H

#include "storage/beneath.h"

#define TRANSFER_TRIES_MAX 64 /* calls in a row that moved nothing (EINTR, EAGAIN, torn block) */

struct posix_disk {
	struct disk base;
	struct beneath at;   /* the data folder */
	unsigned ring_flags; /* of io_uring_setup(), as probed */
};

struct posix_file {
	struct disk_file base;
	int fd;
	bool direct;  /* opened as DISK_DIRECT, even if the file system refused O_DIRECT */
	bool writing; /* opened for reading and writing */
	bool exact;   /* opened as DISK_EXACT */
	bool shared;  /* has a shared lock */
};

static inline struct posix_disk *posix_disk_of(struct disk *d)
{
	return container_of(d, struct posix_disk, base);
}
static inline struct posix_file *posix_file_of(struct disk_file *f)
{
	return container_of(f, struct posix_file, base);
}

/* Whether the transfer may be handed to the file (disk.h, rules that callers keep). */
bool transfer_allowed(const struct posix_file *f, const void *buf, uint64_t len, uint64_t offset);

/*
 * One transfer in steps: a call for [moved, length) returned res (bytes or -errno). Returns 1 when
 * the transfer has ended with moved bytes, 0 when another call is needed, or -errno for good.
 */
struct transfer {
	uint32_t length, moved;
	unsigned tries; /* calls in a row without progress */
	bool direct, write;
};
MUST_CHECK int transfer_step(struct transfer *t, int64_t res);
/* All steps with pread() and pwrite(): bytes moved or -errno. */
int transfer_blocking(const struct posix_file *f, void *buf, uint32_t len, uint64_t offset,
		      bool write);

/* The queues of struct disk_ops. uring_probe: the best flags that the kernel takes. */
MUST_CHECK int uring_probe(unsigned *ret_flags, struct err *why);
int uring_queue_open(struct disk *d, unsigned depth, struct disk_queue **ret);
void uring_queue_close(struct disk_queue *q);
int uring_submit(struct disk_queue *q, struct disk_io *io);
int uring_reap(struct disk_queue *q, struct disk_io **ret);
int uring_queue_register(struct disk_queue *q, void *base, uint64_t length);
void uring_queue_unregister(struct disk_queue *q, void *base);

int threads_queue_open(struct disk *d, unsigned depth, struct disk_queue **ret);
void threads_queue_close(struct disk_queue *q);
int threads_submit(struct disk_queue *q, struct disk_io *io);
int threads_reap(struct disk_queue *q, struct disk_io **ret);
int threads_queue_register(struct disk_queue *q, void *base, uint64_t length);
void threads_queue_unregister(struct disk_queue *q, void *base);

#endif
