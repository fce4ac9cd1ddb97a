/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plain.c - the limit of loads from disk: threads take the next piece of a file, read it, and put
 * it where the load would. Threads and buffers are made inside the time, as a load makes its own.
 */
#include <config.h>

#include "bench/plain.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/huge.h"
#include "codec/copy.h"

#define THREADS_MAX 16

struct plain {
	struct plain_cell cell;
	int fd;
	uint8_t *to;
	uint64_t bytes;
	_Atomic uint64_t next;
	_Atomic int error;
};

void plain_name(const struct plain_cell *c, char *buf, size_t size)
{
	static const char *const ways[PLAIN_WAYS] = {"O_DIRECT, huge pages", "O_DIRECT",
						     "page cache"};

	snprintf(buf, size, "plain reader, %s, %d MiB x %d", ways[c->way], c->mib, c->threads);
}

int plain_forget(const char *path, struct err *e)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC), r;

	if (fd < 0)
		return err_code(e, -errno, "open '%s'", path);
	r = -posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd);
	return r < 0 ? err_code(e, r, "drop the page cache of '%s'", path) : 0;
}

/* Aligned to a huge page; NULL: no memory. *ret_room is what to unmap. */
static uint8_t *map_buffer(const struct plain *p, size_t piece, void **ret_room)
{
	size_t room = round_up(piece, HUGE_PAGE) + HUGE_PAGE;
	void *base = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint8_t *at;

	if (base == MAP_FAILED)
		return NULL;
	at = (uint8_t *)round_up((uintptr_t)base, HUGE_PAGE);
	ignore_result(madvise(at, room - HUGE_PAGE,
			      p->cell.way == PLAIN_HUGE ? MADV_HUGEPAGE : MADV_NOHUGEPAGE));
	*ret_room = base;
	return at;
}

static int read_piece(int fd, uint8_t *to, size_t len, uint64_t at)
{
	while (len > 0) {
		ssize_t n = pread(fd, to, len, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		to += n;
		at += (uint64_t)n;
		len -= (size_t)n;
	}
	return 0;
}

static void *work(void *arg)
{
	struct plain *p = arg;
	uint64_t piece = (uint64_t)p->cell.mib << 20, at;
	bool direct = p->cell.way != PLAIN_BUFFERED;
	uint8_t *buffer = NULL;
	void *room = NULL;
	int r = 0;

	if (direct)
		buffer = map_buffer(p, piece, &room);
	if (direct && !buffer)
		r = -ENOMEM;
	while (r == 0 && (at = atomic_fetch_add(&p->next, piece)) < p->bytes) {
		uint64_t len = min_u64(piece, p->bytes - at);

		r = read_piece(p->fd, direct ? buffer : p->to + at, len, at);
		if (r == 0 && direct)
			copy_large(p->to + at, buffer, len);
	}
	if (r < 0)
		atomic_store(&p->error, r);
	if (room)
		munmap(room, round_up(piece, HUGE_PAGE) + HUGE_PAGE);
	return NULL;
}

int plain_read(const struct plain_cell *c, const char *path, uint64_t bytes, uint8_t *to,
	       struct err *e)
{
	int how = O_RDONLY | O_CLOEXEC | (c->way == PLAIN_BUFFERED ? 0 : O_DIRECT);
	struct plain p = {.cell = *c, .to = to, .bytes = bytes, .fd = open(path, how)};
	pthread_t threads[THREADS_MAX];
	int n = 1, r = 0;

	assert(c->threads >= 1 && c->threads <= THREADS_MAX && bytes % (1u << 20) == 0);
	if (p.fd < 0)
		return err_code(e, -errno, "open '%s'", path);
	while (n < c->threads && r == 0) {
		r = -pthread_create(&threads[n], NULL, work, &p);
		n += r == 0;
	}
	work(&p);
	while (--n > 0)
		pthread_join(threads[n], NULL);
	close(p.fd);
	r = r < 0 ? r : atomic_load(&p.error);
	return r < 0 ? err_code(e, r, "read '%s'", path) : 0;
}
