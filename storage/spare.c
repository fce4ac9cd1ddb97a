/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spare.c - expired shard files, kept for their space: a file that is overwritten takes writes
 * about 1.4 times as fast as a new one.
 *
 * The bytes of a recycled file change under everyone who has it open. No lock keeps a process from
 * reading a descriptor that it has, so that only a file that no other process can have is given:
 *
 * 1. The caller gives no file of which a descriptor ever left this process, and none that an
 *    earlier process wrote: what that one handed out, nothing tells. spare_clear() at start removes
 *    what an earlier process left in spare/.
 * 2. A file has one name, belongs to this process's user, and no one else may open it: else it is
 *    removed. What is left to open it by its name is that user's and root's tools: they hold a
 *    shared lock, and a file that has one is removed, too.
 * 3. A file goes to the job that it came from, so that bytes stay with their owner.
 * 4. A taken file is cut to what its new owner asked for, who overwrites all of that. Its header is
 *    zeroed, and that synced, before it can be taken: no old header stands under a new name.
 * 5. Which files may be taken is in memory alone: `list` has those that this process gave, oldest
 *    first. A file of spare/ that is not in it is used by no one and goes with the next
 *    spare_clear().
 *
 * Any failure only costs the file. Threads: any. `lock` guards the list and is held over no call
 * that can block; a file belongs to whoever took its entry out of the list.
 */
#include <config.h>

#include "storage/spare.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>

#include "base/bytes.h"
#include "base/fault.h"
#include "storage/disk_format.h"
#include "storage/paths.h"
#include "storage/recover.h"
#include "storage/shard_file.h"

#define SPARES_MAX 1024u

struct spare {
	struct job_id job;
	uint64_t serial, bytes;
};

struct spares {
	pthread_mutex_t lock;
	struct spare list[SPARES_MAX]; /* oldest first */
	unsigned n;
	uint64_t bytes; /* of all of them */
};

int spares_new(struct spares **ret)
{
	struct spares *all = alloc_zero(sizeof(*all));
	int r;

	if (!all)
		return -ENOMEM;
	r = pthread_mutex_init(&all->lock, NULL);
	assert(r == 0);
	*ret = all;
	return 0;
}

void spares_free(struct spares *all)
{
	if (!all)
		return;
	pthread_mutex_destroy(&all->lock);
	alloc_free(all);
}

uint64_t spare_bytes(const struct store *s)
{
	struct spares *all = s->spares;
	uint64_t bytes;

	pthread_mutex_lock(&all->lock);
	bytes = all->bytes;
	pthread_mutex_unlock(&all->lock);
	return bytes;
}

/* ---- The list; with the lock held ---- */

static struct spare list_out(struct spares *all, unsigned i)
{
	struct spare out = all->list[i];

	assert(i < all->n && all->bytes >= out.bytes);
	all->n--;
	memmove(&all->list[i], &all->list[i + 1], (all->n - i) * sizeof(out));
	all->bytes -= out.bytes;
	return out;
}

static bool has_room(const struct spares *all, uint64_t bytes, uint64_t keep)
{
	return all->n < SPARES_MAX && bytes <= keep && all->bytes <= keep - bytes;
}

/* A file that has the length, and at most twice that, serves for it. */
static bool serves(const struct spare *x, uint64_t length)
{
	return x->bytes >= length && x->bytes / 2 <= length;
}

/* The oldest that is not as good as the one that comes: another job's, or of another size. */
static bool oldest_other(const struct spares *all, const struct spare *comes, unsigned *ret)
{
	for (unsigned i = 0; i < all->n; i++) {
		const struct spare *x = &all->list[i];

		if (!job_id_equal(&x->job, &comes->job) || !serves(x, comes->bytes)) {
			*ret = i;
			return true;
		}
	}
	return false;
}

/* The smallest of the job's that serves. */
static bool best_fit(const struct spares *all, const struct job_id *job, uint64_t length,
		     unsigned *ret)
{
	bool found = false;

	for (unsigned i = 0; i < all->n; i++) {
		const struct spare *x = &all->list[i];

		if (!job_id_equal(&x->job, job) && !BUG(SPARE_OF_ANY_JOB))
			continue;
		if (!serves(x, length))
			continue;
		if (!found || x->bytes < all->list[*ret].bytes)
			*ret = i;
		found = true;
	}
	return found;
}

/* ---- One file ---- */

static int remove_spare(struct store *s, const struct spare *x)
{
	char path[DISK_PATH_MAX + 1];
	int r;

	path_spare(path, x->serial, x->bytes);
	r = s->disk->ops->unlink(s->disk, path);
	return r == -ENOENT ? 0 : r;
}

/* A shard file to be changed: (2), and it has a header. */
static int open_unshared(struct disk *d, const char *path, struct disk_file **ret,
			 uint64_t *ret_bytes)
{
	struct disk_file *f = NULL;
	bool private = false;
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
		r = d->ops->is_private(f, &private);
	if (r == 0)
		r = d->ops->size(f, &bytes);
	if (r == 0 && (links != 1 || !private || bytes < SHARD_HEADER_BYTES))
		r = -EPERM;
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

/* ---- Giving ---- */

/* -ENOSPC: there is no room, and none can be made. */
static int make_room(struct store *s, const struct spare *comes, uint64_t keep)
{
	struct spares *all = s->spares;
	struct spare old;
	unsigned i = 0;
	bool room, out;

	for (;;) {
		pthread_mutex_lock(&all->lock);
		room = has_room(all, comes->bytes, keep);
		out = !room && comes->bytes <= keep && oldest_other(all, comes, &i);
		if (out)
			old = list_out(all, i);
		pthread_mutex_unlock(&all->lock);
		if (!out)
			return room ? 0 : -ENOSPC;
		ignore_result(remove_spare(s, &old)); /* the next start does it otherwise */
	}
}

static int list_in(struct spares *all, const struct spare *x, uint64_t keep)
{
	int r = -ENOSPC;

	pthread_mutex_lock(&all->lock);
	if (has_room(all, x->bytes, keep)) {
		all->list[all->n++] = *x;
		all->bytes += x->bytes;
		r = 0;
	}
	pthread_mutex_unlock(&all->lock);
	return r;
}

/*
 * f is at path, and locked: to spare/, without its header. Negative: it is still at path; 1: it is
 * gone from there, and no spare file.
 */
static int move_in(struct store *s, const char *path, const struct spare *x, struct disk_file *f)
{
	const struct disk_ops *ops = s->disk->ops;
	char spare[DISK_PATH_MAX + 1];
	int r;

	path_spare(spare, x->serial, x->bytes);
	r = ops->rename(s->disk, path, spare);
	if (r < 0)
		return r;
	r = FAULT(SPARE_MOVED) ? -EIO : 0;
	if (r == 0 && !BUG(SKIP_EXPIRE_SYNC))
		r = ops->sync_dir(s->disk, "spare");
	if (r == 0)
		r = zero_header(f);
	if (r == 0 && FAULT(SPARE_ZEROED))
		r = -EIO;
	if (r == 0)
		return 0;
	ignore_result(remove_spare(s, x)); /* (5) */
	return 1;
}

int spare_give(struct store *s, const struct job_id *job, const char *path, uint64_t keep_spare)
{
	struct spare x = {.job = *job};
	struct disk_file *f = NULL;
	int r;

	assert(s->spares);
	if (keep_spare == 0)
		return -ENOSPC;
	r = open_unshared(s->disk, path, &f, &x.bytes);
	if (r < 0)
		return r;
	r = make_room(s, &x, keep_spare);
	if (r == 0) {
		x.serial = atomic_fetch_add(&s->serial, 1);
		r = move_in(s, path, &x, f);
	}
	s->disk->ops->close(f); /* and its lock: it may be taken */
	if (r == 0 && list_in(s->spares, &x, keep_spare) < 0)
		ignore_result(remove_spare(s, &x)); /* other workers were faster */
	return r < 0 ? r : 0;
}

/* ---- Taking ---- */

/* x is in the list no more. On failure it is nowhere, or still in spare/. */
static int take_one(struct store *s, const struct spare *x, const char *path, uint64_t length,
		    struct disk_file **ret)
{
	const struct disk_ops *ops = s->disk->ops;
	char spare[DISK_PATH_MAX + 1];
	struct disk_file *f = NULL;
	uint64_t bytes = 0;
	int r;

	path_spare(spare, x->serial, x->bytes);
	r = open_unshared(s->disk, spare, &f, &bytes);
	if (r < 0)
		return r;
	r = bytes == x->bytes ? ops->rename(s->disk, spare, path) : -EINVAL;
	if (r == 0 && FAULT(SPARE_TAKEN))
		r = -EIO;
	if (r == 0 && bytes > length)
		r = ops->truncate(f, length); /* (4) */
	if (r < 0) {
		ignore_result(ops->unlink(s->disk, path)); /* it may be there, and is in the way */
		ops->close(f);
		return r;
	}
	*ret = f;
	return 0;
}

int spare_take(struct store *s, const struct job_id *job, const char *path, uint64_t length,
	       struct disk_file **ret)
{
	struct spares *all = s->spares;
	struct spare x;
	unsigned i = 0;
	bool found;
	int r;

	assert(length >= SHARD_HEADER_BYTES);
	while (all) {
		pthread_mutex_lock(&all->lock);
		found = best_fit(all, job, length, &i);
		if (found)
			x = list_out(all, i);
		pthread_mutex_unlock(&all->lock);
		if (!found)
			break;
		r = take_one(s, &x, path, length, ret);
		if (r == 0)
			return 0;
		ignore_result(remove_spare(s, &x)); /* (5) */
		/* Somebody has it open, or touched it: the next one may do. */
		if (r != -EAGAIN && r != -ENOENT && r != -EPERM && r != -EINVAL)
			return r;
	}
	return CKPT_ENOTFOUND;
}

/* ---- Clearing ---- */

static int remove_name(void *arg, const char *name, bool is_dir)
{
	struct disk *d = arg;
	char path[DISK_PATH_MAX + 1];
	int r;

	if (is_dir || snprintf(path, sizeof(path), "spare/%s", name) >= (int)sizeof(path))
		return 0;
	r = d->ops->unlink(d, path);
	return r == -ENOENT ? 0 : r;
}

int spare_clear(struct store *s, struct err *e)
{
	int r;

	if (s->spares) {
		pthread_mutex_lock(&s->spares->lock);
		s->spares->n = 0;
		s->spares->bytes = 0;
		pthread_mutex_unlock(&s->spares->lock);
	}
	r = s->disk->ops->list(s->disk, "spare", remove_name, s->disk);
	return r < 0 ? err_code(e, r, "cannot remove the spare files") : 0;
}
