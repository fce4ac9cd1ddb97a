/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk_transfer.c - the rules by which one transfer goes on after a call that moved only part of
 * it, the same for pread()/pwrite() and for completions of io_uring.
 *
 * Short transfers are normal and are continued. EINTR and EAGAIN say nothing about what happened
 * and are repeated, TRANSFER_TRIES_MAX times in a row at most. On a DIRECT file the next call must
 * begin at a whole block: a write that ended inside one writes that block again; a read that did
 * has met the end of the file. A write that moves nothing is an error: it would never end.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <unistd.h>

#include "storage/disk_backend.h"

bool transfer_allowed(const struct posix_file *f, const void *buf, uint64_t len, uint64_t offset)
{
	uint64_t mask = DISK_ALIGN - 1;

	if (offset > INT64_MAX || len > INT64_MAX - offset)
		return false;
	return !f->direct || (((uintptr_t)buf | len | offset) & mask) == 0;
}

static int without_progress(struct transfer *t, int error)
{
	return ++t->tries < TRANSFER_TRIES_MAX ? 0 : error;
}

int transfer_step(struct transfer *t, int64_t res)
{
	uint32_t torn;

	assert(t->moved <= t->length);
	if (res == -EINTR || res == -EAGAIN)
		return without_progress(t, (int)res);
	if (res < 0)
		return (int)res;
	assert(res <= t->length - t->moved);
	t->moved += (uint32_t)res;
	if (t->moved == t->length)
		return 1;
	if (res == 0)
		return t->write ? -EIO : 1;
	torn = t->direct ? t->moved % DISK_ALIGN : 0;
	if (torn == 0) {
		t->tries = 0;
		return 0;
	}
	if (!t->write)
		return 1;
	t->moved -= torn;
	return without_progress(t, -EIO);
}

int transfer_blocking(const struct posix_file *f, void *buf, uint32_t len, uint64_t offset,
		      bool write)
{
	struct transfer t = { .length = len, .direct = f->direct, .write = write };
	int r = len == 0;

	assert(len <= DISK_TRANSFER_MAX);
	while (r == 0) {
		char *p = (char *)buf + t.moved;
		size_t left = len - t.moved;
		off_t at = (off_t)(offset + t.moved);
		ssize_t n = write ? pwrite(f->fd, p, left, at) : pread(f->fd, p, left, at);

		r = transfer_step(&t, n < 0 ? -errno : n);
	}
	return r < 0 ? r : (int)t.moved;
}
