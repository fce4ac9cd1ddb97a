/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spare.c - expired shard files, kept for their space: a file that is overwritten takes writes
 * about 1.4 times as fast as a new one.
 *
 * 1. A file in spare/ has one link and, while it moves in or out, our exclusive lock: no reader
 *    sees its bytes change, no older file of a checkpoint shares them.
 * 2. Its header is zeroed, and that synced, before anybody takes it: bytes of an old checkpoint
 *    never stand behind a valid header under a new name. Files with a serial below
 *    store.spare_trusted, left by an earlier process, are not taken before spare_sweep() has
 *    looked at them.
 * 3. Names are <serial>.<bytes>, serials are never reused: a rename that succeeds took the file
 *    that was looked at. The true size is compared all the same.
 *
 * Any failure only costs the file. Threads: any; two takers are told apart by the lock.
 */
#include <config.h>

#include "storage/spare.h"

#include <assert.h>
#include <errno.h>

#include "base/fault.h"
#include "storage/disk_format.h"
#include "storage/paths.h"
#include "storage/recover.h"
#include "storage/shard_file.h"

/* A shard file to be changed: one link, nobody reads it, and it has a header. */
static int open_unshared(struct disk *d, const char *path, struct disk_file **ret,
			 uint64_t *ret_bytes)
{
	struct disk_file *f = NULL;
	uint64_t links = 0, bytes = 0;
	int r = d->ops->open(d, path, DISK_DIRECT, &f);

	if (r < 0)
		return r;
	r = d->ops->lock(f, true);
	if (r == -EAGAIN && BUG(SKIP_SPARE_LOCK))
		r = 0;
	if (r == 0)
		r = d->ops->links(f, &links);
	if (r == 0)
		r = d->ops->size(f, &bytes);
	if (r == 0 && (links != 1 || bytes < SHARD_HEADER_BYTES))
		r = -EMLINK;
	if (r < 0) {
		d->ops->close(f);
		return r;
	}
	*ret = f;
	*ret_bytes = bytes;
	return 0;
}

static int zero_header(struct disk_file *f)
{
	const struct disk_ops *ops = f->disk->ops;
	void *block = NULL;
	uint8_t *zero = alloc_aligned(SHARD_HEADER_BYTES, &block);
	int r;

	if (!zero)
		return -ENOMEM;
	r = ops->write(f, zero, SHARD_HEADER_BYTES, 0);
	alloc_free(block);
	return r < 0 ? r : ops->sync(f);
}

static int header_is_zero(struct disk_file *f, bool *ret)
{
	void *block = NULL;
	uint8_t *header = alloc_aligned(SHARD_HEADER_BYTES, &block);
	int r;

	if (!header)
		return -ENOMEM;
	r = f->disk->ops->read(f, header, SHARD_HEADER_BYTES, 0);
	if (r == 0)
		*ret = bytes_are_zero(header, SHARD_HEADER_BYTES);
	alloc_free(block);
	return r;
}

/* ---- Giving ---- */

static int add_bytes(void *arg, const char *name, bool is_dir)
{
	uint64_t *sum = arg, serial, bytes;

	if (!is_dir && spare_name_parse(name, &serial, &bytes) == 0 && !size_add(*sum, bytes, sum))
		*sum = UINT64_MAX;
	return 0;
}

int spare_bytes(struct store *s, uint64_t *ret)
{
	uint64_t sum = 0;
	int r = s->disk->ops->list(s->disk, "spare", add_bytes, &sum);

	*ret = sum;
	return r < 0 ? r : 0;
}

static int check_room(struct store *s, uint64_t bytes, uint64_t keep_spare)
{
	uint64_t sum = 0;
	int r;

	if (bytes > keep_spare)
		return -ENOSPC;
	r = spare_bytes(s, &sum);
	return r < 0 ? r : sum > keep_spare - bytes ? -ENOSPC : 0;
}

int spare_give(struct store *s, const char *path, uint64_t keep_spare)
{
	const struct disk_ops *ops = s->disk->ops;
	char spare[DISK_PATH_MAX + 1];
	struct disk_file *f = NULL;
	uint64_t bytes = 0, serial;
	int r;

	if (keep_spare == 0)
		return -ENOSPC;
	r = open_unshared(s->disk, path, &f, &bytes);
	if (r < 0)
		return r;
	r = check_room(s, bytes, keep_spare);
	if (r < 0) {
		ops->close(f);
		return r;
	}
	serial = atomic_fetch_add(&s->serial, 1);
	path_spare(spare, serial, bytes);
	r = ops->rename(s->disk, path, spare);
	if (r < 0) {
		s->spare_trusted = serial + 1; /* it may be there all the same */
		ops->close(f);
		return r;
	}
	r = FAULT(SPARE_MOVED) ? -EIO : 0;
	if (r == 0 && !BUG(SKIP_EXPIRE_SYNC))
		r = ops->sync_dir(s->disk, "spare");
	if (r == 0)
		r = zero_header(f);
	if (r == 0 && FAULT(SPARE_ZEROED))
		r = -EIO;
	if (r < 0 && ops->unlink(s->disk, spare) < 0)
		s->spare_trusted = serial + 1; /* (2) */
	ops->close(f);
	return 0; /* path is gone either way */
}

/* ---- Taking ---- */

#define CANDIDATES_MAX 32u

struct candidates {
	uint64_t length, trusted;
	unsigned n;
	struct {
		uint64_t serial, bytes;
	} at[CANDIDATES_MAX]; /* the smallest that are large enough, smallest first */
};

static int add_candidate(void *arg, const char *name, bool is_dir)
{
	struct candidates *c = arg;
	uint64_t serial, bytes;
	unsigned i;

	if (is_dir || spare_name_parse(name, &serial, &bytes) < 0 || serial < c->trusted ||
	    bytes < c->length || bytes / 2 > c->length)
		return 0;
	if (c->n == CANDIDATES_MAX && bytes >= c->at[c->n - 1].bytes)
		return 0;
	if (c->n < CANDIDATES_MAX)
		c->n++;
	for (i = c->n - 1; i > 0 && c->at[i - 1].bytes > bytes; i--)
		c->at[i] = c->at[i - 1];
	c->at[i].serial = serial;
	c->at[i].bytes = bytes;
	return 0;
}

static int take_one(struct store *s, const char *spare, uint64_t bytes, const char *path,
		    struct disk_file **ret)
{
	const struct disk_ops *ops = s->disk->ops;
	struct disk_file *f = NULL;
	uint64_t size = 0;
	int r = open_unshared(s->disk, spare, &f, &size);

	if (r < 0)
		return r;
	r = size == bytes ? ops->rename(s->disk, spare, path) : -EINVAL;
	if (r == 0 && FAULT(SPARE_TAKEN))
		r = -EIO;
	if (r < 0) {
		if (r == -EIO) /* it may be there all the same, and is in the way */
			ignore_result(ops->unlink(s->disk, path));
		ops->close(f);
		return r;
	}
	*ret = f;
	return 0;
}

int spare_take(struct store *s, const char *path, uint64_t length, struct disk_file **ret)
{
	struct candidates c = { .length = length, .trusted = s->spare_trusted };
	int r = s->disk->ops->list(s->disk, "spare", add_candidate, &c);

	assert(length >= SHARD_HEADER_BYTES);
	if (r < 0)
		return r;
	for (unsigned i = 0; i < c.n; i++) {
		char spare[DISK_PATH_MAX + 1];

		path_spare(spare, c.at[i].serial, c.at[i].bytes);
		r = take_one(s, spare, c.at[i].bytes, path, ret);
		/* Another worker was faster, or somebody has it open: the next one may do. */
		if (r != -EAGAIN && r != -ENOENT && r != -EMLINK && r != -EINVAL)
			return r;
	}
	return CKPT_ENOTFOUND;
}

/* ---- Sweeping ---- */

/* Decides about one file that a process before this one may have left at any point. */
static int sweep_one(struct store *s, const char *spare, uint64_t bytes)
{
	struct disk_file *f = NULL;
	bool zero = false;
	uint64_t size = 0;
	int r = open_unshared(s->disk, spare, &f, &size);

	if (r < 0)
		return r;
	r = size == bytes ? header_is_zero(f, &zero) : -EINVAL;
	if (r == 0 && !zero)
		r = zero_header(f);
	s->disk->ops->close(f);
	return r;
}

struct sweep {
	struct store *store;
	uint64_t keep, kept;
};

static int sweep_name(void *arg, const char *name, bool is_dir)
{
	struct sweep *w = arg;
	struct disk *d = w->store->disk;
	char path[DISK_PATH_MAX + 1];
	uint64_t serial, bytes = 0;
	int r = -EINVAL;

	if (is_dir || strlen(name) > DISK_PATH_MAX - strlen("spare/"))
		return 0;
	strcpy(path, "spare/");
	strcat(path, name);
	if (spare_name_parse(name, &serial, &bytes) == 0 && bytes <= w->keep - w->kept)
		r = sweep_one(w->store, path, bytes);
	if (r == -EAGAIN)
		return 0; /* a worker is taking it */
	if (r == 0) {
		w->kept += bytes;
		return 0;
	}
	r = d->ops->unlink(d, path);
	return r == -ENOENT ? 0 : r;
}

int spare_sweep(struct store *s, uint64_t keep_spare, struct err *e)
{
	struct sweep w = { .store = s, .keep = keep_spare };
	int r = s->disk->ops->list(s->disk, "spare", sweep_name, &w);

	if (r < 0)
		return err_code(e, r, "cannot sweep the spare files");
	s->spare_trusted = 0;
	return 0;
}
