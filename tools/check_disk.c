/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_disk.c - the disk below the data folder: what is written comes back, how fast, and how
 * long a sync takes.
 *
 *   disk-write, disk-read   MB/s past the page cache, through the same back-end as ckptd's
 *   disk-sync               ms that fdatasync of 4 KiB takes, the median
 *   io-uring                whether it can be used; that it cannot is no fault
 *
 * The file has no name for longer than its first moment: what is killed leaves nothing behind.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "storage/disk_posix.h"
#include "tools/node_check.h"

#define FILE_BYTES (64ull << 20)
#define PIECE      (1u << 20)
enum { PIECES = FILE_BYTES / PIECE, DEPTH = 8, SYNCS = 15 };

struct target {
	struct disk *disk;
	struct disk_file *file;
	struct disk_queue *queue;
	uint8_t *buf; /* DEPTH pieces */
	struct disk_io ios[DEPTH];
};

static uint64_t word_of(unsigned piece, unsigned at)
{
	return ((uint64_t)piece << 32 | at) * 0x9e3779b97f4a7c15u;
}

static void fill(uint8_t *p, unsigned piece)
{
	for (unsigned i = 0; i < PIECE / 8; i++) {
		uint64_t w = word_of(piece, i);

		memcpy(p + i * 8, &w, 8);
	}
}

static bool same(const uint8_t *p, unsigned piece)
{
	for (unsigned i = 0; i < PIECE / 8; i++) {
		uint64_t w = word_of(piece, i);

		if (memcmp(p + i * 8, &w, 8) != 0)
			return false;
	}
	return true;
}

/* All pieces once, DEPTH in flight; *ret_bad: the first that does not read as written. */
static int move(struct target *t, bool write, unsigned *ret_bad)
{
	unsigned next = 0, done = 0;
	struct disk_io *io;
	int r;

	*ret_bad = PIECES;
	while (done < PIECES) {
		for (; next < PIECES && next < done + DEPTH; next++) {
			io = &t->ios[next % DEPTH];
			*io = (struct disk_io){.file = t->file,
					       .buf = t->buf + (size_t)(next % DEPTH) * PIECE,
					       .offset = (uint64_t)next * PIECE,
					       .length = PIECE,
					       .write = write};
			if (write)
				fill(io->buf, next);
			r = t->disk->ops->submit(t->queue, io);
			if (r < 0)
				return r;
		}
		/* In order: a ring of DEPTH buffers needs the oldest free first. */
		for (unsigned got = done; got < next; got++) {
			r = t->disk->ops->reap(t->queue, &io);
			if (r < 0 || !io || io->result != (int)PIECE)
				return r < 0 ? r : io && io->result < 0 ? io->result : -EIO;
			if (!write && *ret_bad == PIECES &&
			    !same(io->buf, (unsigned)(io->offset / PIECE)))
				*ret_bad = (unsigned)(io->offset / PIECE);
		}
		done = next;
	}
	return 0;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static int time_syncs(struct target *t, struct check_report *r)
{
	double took[SYNCS];

	for (int i = 0; i < SYNCS; i++) {
		double start = check_now();
		int err =
			t->disk->ops->write(t->file, t->buf, DISK_ALIGN, (uint64_t)i * DISK_ALIGN);

		if (err == 0)
			err = t->disk->ops->sync(t->file);
		if (err < 0)
			return err;
		took[i] = (check_now() - start) * 1e3;
	}
	qsort(took, SYNCS, sizeof(took[0]), by_value);
	check_value(r, "disk-sync", took[SYNCS / 2], "ms", false);
	return 0;
}

static int measure(struct target *t, struct check_report *r)
{
	double start = check_now(), took;
	unsigned bad;
	int err = move(t, true, &bad);

	if (err == 0)
		err = t->disk->ops->sync(t->file);
	if (err < 0)
		return err;
	took = check_now() - start;
	check_value(r, "disk-write", FILE_BYTES / took / 1e6, "MB/s", true);
	start = check_now();
	err = move(t, false, &bad);
	if (err < 0)
		return err;
	took = check_now() - start;
	if (bad < PIECES) {
		check_say(r, "disk-read", CHECK_FAILED,
			  "what was written does not come back: MiB %u of the test file differs; "
			  "take the disk out of use",
			  bad);
		return 0;
	}
	check_value(r, "disk-read", FILE_BYTES / took / 1e6, "MB/s", true);
	return time_syncs(t, r);
}

static int open_target(const struct check_options *o, struct target *t, struct err *e)
{
	char name[64];
	int r = disk_posix_open(o->data, "auto", &t->disk, e);

	if (r < 0)
		return r;
	snprintf(name, sizeof(name), "node-check.%ld", (long)getpid());
	r = t->disk->ops->open(t->disk, name, DISK_CREATE | DISK_EXCL | DISK_DIRECT, &t->file);
	if (r < 0)
		return err_code(e, r, "make a test file in '%s'", o->data);
	r = t->disk->ops->unlink(t->disk, name);
	if (r == 0)
		r = t->disk->ops->allocate(t->file, FILE_BYTES);
	if (r == 0)
		r = t->disk->ops->queue_open(t->disk, DEPTH, &t->queue);
	return r < 0 ? err_code(e, r, "prepare a test file in '%s'", o->data) : 0;
}

void check_disk(const struct check_options *o, struct check_report *r)
{
	struct target t = {0};
	struct err e = {0};
	int err;

	if (disk_uring_usable(&e))
		check_say(r, "io-uring", CHECK_PASSED, "%s", "");
	else
		check_say(r, "io-uring", CHECK_SKIPPED, "%s", e.text);
	if (!o->data) {
		check_say(r, "disk-write", CHECK_SKIPPED, "%s", o->no_data);
		return;
	}
	t.buf = mmap(NULL, (size_t)DEPTH * PIECE, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (t.buf == MAP_FAILED) {
		check_say(r, "disk-write", CHECK_SKIPPED, "no memory for its buffers");
		return;
	}
	err = open_target(o, &t, &e);
	if (err == -EACCES || err == -EPERM || err == -ENOENT || err == -ENOSPC) {
		check_say(r, "disk-write", CHECK_SKIPPED, "%s", e.text);
	} else if (err < 0) {
		check_say(r, "disk-write", CHECK_FAILED, "%s", e.text);
	} else {
		err = measure(&t, r);
		if (err < 0)
			check_say(r, "disk-write", CHECK_FAILED,
				  "the disk below '%s' fails: %s; look at the kernel's log",
				  o->data, err_text(err));
	}
	if (t.queue)
		t.disk->ops->queue_close(t.queue);
	if (t.file)
		t.disk->ops->close(t.file);
	if (t.disk)
		disk_posix_close(t.disk);
	munmap(t.buf, (size_t)DEPTH * PIECE);
}
