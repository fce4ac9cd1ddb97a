/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recording.c - an image under blockrec, and the record made into images again.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/rng.h"
#include "tests/fault/block_record.h"
#include "tests/fault/image.h"

#ifndef BLOCKREC
#define BLOCKREC "tests/fault/blockrec"
#endif
#define START_MS 10000

const char *const loss_names[LOSSES] = { "all", "none", "some", "torn" };

static int start_recorder(struct recording *r, struct err *e)
{
	const char *top = getenv("top_builddir");
	char program[512], image[64], log[64], disk[160];
	struct stat st;

	snprintf(program, sizeof(program), "%s/%s", top ? top : ".", BLOCKREC);
	image_path(r->image, image);
	image_path(r->log, log);
	snprintf(disk, sizeof(disk), "%s/disk", r->mount_fuse);
	r->recorder = fork();
	if (r->recorder == 0) {
		execl(program, program, r->mount_fuse, image, log, (char *)NULL);
		perror(program);
		_exit(127);
	}
	for (int i = 0; i < START_MS && r->recorder > 0; i++) {
		if (stat(disk, &st) == 0)
			return 0;
		if (waitpid(r->recorder, NULL, WNOHANG) != 0)
			break;
		usleep(1000);
	}
	return err_set(e, -EIO, "the recorder '%s' did not start", program);
}

int recording_start(struct recording *r, const struct file_system *fs, const char *dir,
		    struct err *e)
{
	char disk[160];
	int ret;

	memset(r, 0, sizeof(*r));
	r->fs = fs;
	r->image = image_new(fs, fs->bytes);
	r->base = image_new(NULL, fs->bytes);
	r->log = image_new(NULL, 0);
	image_copy(r->image, r->base, fs->bytes);
	snprintf(r->mount_fuse, sizeof(r->mount_fuse), "%s/fuse", dir);
	snprintf(r->mount_data, sizeof(r->mount_data), "%s/data", dir);
	snprintf(disk, sizeof(disk), "%s/disk", r->mount_fuse);
	/* There from the recording before, or the mounts below fail. */
	ignore_result(mkdir(r->mount_fuse, 0700));
	ignore_result(mkdir(r->mount_data, 0700));
	ret = start_recorder(r, e);
	return ret < 0 ? ret : image_mount(fs, disk, r->mount_data, e);
}

uint64_t recording_position(const struct recording *r)
{
	struct stat st;

	if (fstat(r->log, &st) < 0)
		abort();
	return (uint64_t)st.st_size;
}

/* ---- The record ---- */

static int parse(struct recording *r, struct err *e)
{
	uint64_t at = 0;

	r->blocks = alloc_array(r->len / sizeof(struct block_record) + 1, sizeof(*r->blocks));
	if (!r->blocks)
		return -ENOMEM;
	while (at < r->len) {
		struct block *b = &r->blocks[r->n_blocks++];
		struct block_record h;

		if (r->len - at < sizeof(h))
			return err_set(e, -EBADMSG, "the record ends within a record");
		memcpy(&h, r->bytes + at, sizeof(h));
		*b = (struct block){ .position = at, .flush = h.type == BLOCK_FLUSH,
				     .offset = h.offset, .length = h.length,
				     .bytes = r->bytes + at + sizeof(h) };
		at += sizeof(h) + h.length;
		if (at > r->len || h.offset + h.length > r->fs->bytes)
			return err_set(e, -EBADMSG, "a record is longer than what there is");
		r->n_flushes += b->flush;
	}
	return 0;
}

int recording_stop(struct recording *r, struct err *e)
{
	int ret = image_umount(r->mount_data, e), status;

	/* The loop device lets go of the file some time after the last mount did. */
	for (int i = 0; i < 500 && umount2(r->mount_fuse, 0) < 0 && errno == EBUSY; i++)
		usleep(10000);
	kill(r->recorder, SIGTERM);
	waitpid(r->recorder, &status, 0);
	r->len = recording_position(r);
	r->bytes = mmap(NULL, r->len + 1, PROT_READ, MAP_SHARED, r->log, 0);
	if (ret == 0 && r->bytes == MAP_FAILED)
		ret = err_code(e, -errno, "cannot map the record");
	return ret < 0 ? ret : parse(r, e);
}

void recording_free(struct recording *r)
{
	if (r->bytes && r->bytes != MAP_FAILED)
		munmap(r->bytes, r->len + 1);
	alloc_free(r->blocks);
	close(r->image);
	close(r->base);
	close(r->log);
	memset(r, 0, sizeof(*r));
}

/* ---- Replay ---- */

void replay_init(struct replay *p, const struct recording *r)
{
	uint64_t bytes = r->fs->bytes;

	*p = (struct replay){ .recording = r, .stable = image_new(NULL, bytes),
			      .scratch = image_new(NULL, bytes) };
	image_copy(r->base, p->stable, bytes);
	p->map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, p->stable, 0);
	if (p->map == MAP_FAILED)
		abort();
}

void replay_fini(struct replay *p)
{
	munmap(p->map, p->recording->fs->bytes);
	close(p->stable);
	close(p->scratch);
}

static void put(int fd, const struct block *b, uint32_t from, uint32_t to)
{
	ssize_t n = pwrite(fd, b->bytes + from, to - from, (off_t)(b->offset + from));

	if (n != (ssize_t)(to - from))
		abort();
}

/* Some of the atoms, in no order: a disk may write a long request from its end. */
static void put_torn(const struct file_system *fs, int fd, const struct block *b, struct rng *rng)
{
	uint32_t from = 0;

	if (b->offset < fs->whole) {
		put(fd, b, 0, b->length);
		return;
	}
	while (from < b->length) {
		uint32_t to = (uint32_t)min_u64(b->length,
						from + fs->atom - (b->offset + from) % fs->atom);

		if (rng_below(rng, 2))
			put(fd, b, from, to);
		from = to;
	}
}

static void put_unflushed(struct replay *p, const struct block *b, enum loss loss, struct rng *rng)
{
	uint64_t dice = rng_below(rng, 3);

	if (loss == LOSS_NONE || (loss == LOSS_SOME && rng_below(rng, 2)) ||
	    (loss == LOSS_TORN && dice == 0))
		put(p->scratch, b, 0, b->length);
	else if (loss == LOSS_TORN && dice == 1)
		put_torn(p->recording->fs, p->scratch, b, rng);
}

void replay_to(struct replay *p, size_t point, enum loss loss, uint64_t seed)
{
	const struct recording *r = p->recording;
	size_t flushed = point;
	struct rng_seeded rng;

	assert(point <= r->n_blocks);
	while (flushed > 0 && !r->blocks[flushed - 1].flush)
		flushed--;
	assert(flushed >= p->flushed);
	for (; p->flushed < flushed; p->flushed++) {
		const struct block *b = &r->blocks[p->flushed];

		if (!b->flush)
			memcpy(p->map + b->offset, b->bytes, b->length);
	}
	image_copy(p->stable, p->scratch, r->fs->bytes);
	rng_seed(&rng, seed);
	for (size_t i = flushed; i < point; i++)
		put_unflushed(p, &r->blocks[i], loss, &rng.rng);
}
