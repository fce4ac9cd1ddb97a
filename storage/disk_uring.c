/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk_uring.c - queued transfers over io_uring: each queue is a ring of its own.
 *
 * A ring is set up with the best flags that the kernel takes, from SINGLE_ISSUER | DEFER_TASKRUN
 * (6.1) down to none; CKPT_DISK_RING_FLAGS=<rung name> forces one, "off" says that there is no
 * io_uring. Registered buffers are an optimisation: where they are refused (memlock limit, old
 * kernel) the same transfers go without.
 *
 * 1. The completion ring is as large as the submission ring, and at most depth transfers are in
 *    flight: it cannot overflow.
 * 2. A buffer belongs to the kernel until its completion was seen: reap() never gives a transfer
 *    back before, whatever went wrong, and close waits.
 * 3. Nothing is linked: a link says nothing about short writes. Callers sync after all were reaped.
 *
 * Thread: the one that opened the queue, for all calls.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "storage/disk_backend.h"
#include "storage/disk_posix.h"

#define REGIONS_MAX 64u               /* entries in the ring's table of registered buffers */
#define REGION_BYTES_MAX (1ull << 30) /* the kernel's limit for one of them */
#define ENTER_TRIES_MAX 1000          /* io_uring_enter() refused for want of memory, in a row */

static const struct rung {
	const char *name;
	unsigned flags;
} ladder[] = {
	{ "defer", IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
			   IORING_SETUP_COOP_TASKRUN },
	{ "single", IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN },
	{ "coop", IORING_SETUP_COOP_TASKRUN },
	{ "none", 0 },
};
#define RUNGS (sizeof(ladder) / sizeof(ladder[0]))

struct slot {
	struct disk_io *io; /* NULL: free */
	struct transfer transfer;
};

struct region {
	uint8_t *base; /* NULL: free */
	uint64_t length;
	void *owner; /* base that was given to queue_register() */
};

struct disk_queue {
	struct io_uring ring;
	pthread_t thread;
	unsigned depth, in_flight;
	bool has_regions;
	struct region regions[REGIONS_MAX];
	struct slot slots[]; /* depth of them */
};

int uring_probe(unsigned *ret_flags, struct err *why)
{
	const char *forced = getenv("CKPT_DISK_RING_FLAGS");
	struct io_uring ring;
	int r = -EINVAL;

	if (forced && strcmp(forced, "off") == 0)
		return err_set(why, -ENOSYS, "io_uring is switched off by CKPT_DISK_RING_FLAGS");
	for (size_t i = 0; i < RUNGS; i++) {
		if (forced && strcmp(forced, ladder[i].name) != 0)
			continue;
		r = io_uring_queue_init(8, &ring, ladder[i].flags);
		if (r == 0) {
			io_uring_queue_exit(&ring);
			*ret_flags = ladder[i].flags;
			return 0;
		}
		if (r != -EINVAL)
			break;
	}
	if (r == -EPERM)
		return err_set(why, r,
			       "io_uring is forbidden here (seccomp of a container, or sysctl "
			       "kernel.io_uring_disabled)");
	if (r == -ENOSYS)
		return err_set(why, r, "this kernel has no io_uring");
	return err_code(why, r, "io_uring cannot be set up");
}

int uring_queue_open(struct disk *disk, unsigned depth, struct disk_queue **ret)
{
	struct disk_queue *q;
	int r;

	assert(depth >= 1 && depth <= 1024);
	q = alloc_zero(sizeof(*q) + depth * sizeof(q->slots[0]));
	if (!q)
		return -ENOMEM;
	q->depth = depth;
	q->thread = pthread_self();
	r = io_uring_queue_init(depth, &q->ring, posix_disk_of(disk)->ring_flags);
	if (r < 0) {
		alloc_free(q);
		return r;
	}
	q->has_regions = io_uring_register_buffers_sparse(&q->ring, REGIONS_MAX) == 0;
	*ret = q;
	return 0;
}

/* The registered buffer that holds all of [p, p + len), or -1. */
static int find_region(const struct disk_queue *q, const uint8_t *p, uint64_t len)
{
	for (unsigned i = 0; q->has_regions && i < REGIONS_MAX; i++) {
		const struct region *g = &q->regions[i];

		if (g->base && p >= g->base && len <= g->length &&
		    (uint64_t)(p - g->base) <= g->length - len)
			return (int)i;
	}
	return -1;
}

static void prepare(struct disk_queue *q, struct slot *s)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&q->ring);
	const struct disk_io *io = s->io;
	uint8_t *p = (uint8_t *)io->buf + s->transfer.moved;
	unsigned left = io->length - s->transfer.moved;
	uint64_t at = io->offset + s->transfer.moved;
	int fd = posix_file_of(io->file)->fd, region = find_region(q, p, left);

	assert(sqe); /* each slot has one entry at most, and there are depth of either */
	if (io->write && region >= 0)
		io_uring_prep_write_fixed(sqe, fd, p, left, at, region);
	else if (io->write)
		io_uring_prep_write(sqe, fd, p, left, at);
	else if (region >= 0)
		io_uring_prep_read_fixed(sqe, fd, p, left, at, region);
	else
		io_uring_prep_read(sqe, fd, p, left, at);
	io_uring_sqe_set_data64(sqe, (uint64_t)(s - q->slots));
}

int uring_submit(struct disk_queue *q, struct disk_io *io)
{
	const struct posix_file *f = posix_file_of(io->file);
	struct slot *s = q->slots;

	assert(pthread_equal(q->thread, pthread_self()));
	assert(io->length <= DISK_TRANSFER_MAX && (f->writing || !io->write));
	if (!transfer_allowed(f, io->buf, io->length, io->offset))
		return -EINVAL;
	if (q->in_flight == q->depth)
		return -EAGAIN;
	while (s->io)
		s++;
	s->io = io;
	s->transfer = (struct transfer){ .length = io->length, .direct = f->direct,
					 .write = io->write };
	q->in_flight++;
	prepare(q, s);
	return 0;
}

/* Hands over what was prepared and waits until a completion is there. */
static int enter(struct disk_queue *q)
{
	for (int tries = 0;;) {
		bool there = io_uring_cq_ready(&q->ring) > 0;
		int r = 0;

		if (there && io_uring_sq_ready(&q->ring) == 0)
			return 0;
		r = io_uring_submit_and_wait(&q->ring, there ? 0 : 1);
		if (r >= 0 || r == -EINTR)
			continue;
		if ((r != -EAGAIN && r != -EBUSY) || ++tries == ENTER_TRIES_MAX)
			return r;
		if (there)
			return 0; /* reaping it gives the kernel its memory back */
		sched_yield();
	}
}

int uring_reap(struct disk_queue *q, struct disk_io **ret)
{
	assert(pthread_equal(q->thread, pthread_self()));
	while (q->in_flight > 0) {
		struct io_uring_cqe *cqe;
		struct slot *s;
		int r = enter(q), res;

		if (r < 0)
			return r;
		if (io_uring_peek_cqe(&q->ring, &cqe) < 0)
			continue;
		assert(io_uring_cqe_get_data64(cqe) < q->depth);
		s = &q->slots[io_uring_cqe_get_data64(cqe)];
		res = cqe->res;
		io_uring_cqe_seen(&q->ring, cqe);
		assert(s->io);
		r = transfer_step(&s->transfer, res);
		if (r == 0) {
			prepare(q, s);
			continue;
		}
		s->io->result = r < 0 ? r : (int)s->transfer.moved;
		*ret = s->io;
		s->io = NULL;
		q->in_flight--;
		return 0;
	}
	*ret = NULL;
	return 0;
}

void uring_queue_close(struct disk_queue *q)
{
	struct disk_io *io;

	if (!q)
		return;
	do
		io = NULL;
	while (uring_reap(q, &io) == 0 && io);
	io_uring_queue_exit(&q->ring);
	alloc_free(q);
}

static int set_region(struct disk_queue *q, unsigned i, void *p, uint64_t len)
{
	struct iovec iov = { .iov_base = p, .iov_len = len };
	__u64 tag = 0;
	int r = io_uring_register_buffers_update_tag(&q->ring, i, &iov, &tag, 1);

	return r < 0 ? r : 0;
}

static int add_region(struct disk_queue *q, uint8_t *p, uint64_t len, void *owner)
{
	for (unsigned i = 0; i < REGIONS_MAX; i++) {
		int r;

		if (q->regions[i].base)
			continue;
		r = set_region(q, i, p, len);
		if (r == 0)
			q->regions[i] = (struct region){ .base = p, .length = len, .owner = owner };
		return r;
	}
	return -ENOSPC;
}

int uring_queue_register(struct disk_queue *q, void *base, uint64_t length)
{
	assert(pthread_equal(q->thread, pthread_self()));
	for (uint64_t at = 0; q->has_regions && at < length; at += REGION_BYTES_MAX) {
		uint64_t len = min_u64(length - at, REGION_BYTES_MAX);

		/* Advice: the rest goes unregistered. */
		if (add_region(q, (uint8_t *)base + at, len, base) < 0)
			break;
	}
	return 0;
}

void uring_queue_unregister(struct disk_queue *q, void *base)
{
	assert(pthread_equal(q->thread, pthread_self()));
	assert(q->in_flight == 0);
	for (unsigned i = 0; i < REGIONS_MAX; i++) {
		if (!q->regions[i].base || q->regions[i].owner != base)
			continue;
		ignore_result(set_region(q, i, NULL, 0)); /* it ends with the ring at the latest */
		q->regions[i] = (struct region){ 0 };
	}
}
