/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "storage/test_faulty_disk.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/test.h"

struct faulty_file {
	struct disk_file base;
	struct disk_file *inner;
	bool sync_failed;
	char path[DISK_PATH_MAX + 1];
};

#define IN_FLIGHT_MAX 64

struct disk_queue {
	struct faulty_disk *disk;
	struct disk_queue *inner;
	struct {
		struct disk_io *io;
		struct disk_file *file; /* as the caller knows it */
	} flight[IN_FLIGHT_MAX];
};

static struct faulty_disk *disk_of(struct disk *d)
{
	return container_of(d, struct faulty_disk, base);
}

static struct faulty_file *file_of(struct disk_file *f)
{
	return container_of(f, struct faulty_file, base);
}

static bool fails(struct faulty_disk *d)
{
	d->calls++;
	if (d->fail_at == 0 || d->calls < d->fail_at || (d->calls > d->fail_at && !d->persistent))
		return false;
	d->fired = true;
	return true;
}

static void record(struct faulty_disk *d, char what, const char *path)
{
	struct disk_event *e = &d->events[d->n_events];

	if (!d->events)
		return;
	assert_true(d->n_events < d->max_events);
	e->what = what;
	snprintf(e->path, sizeof(e->path), "%s", path);
	d->n_events++;
}

#define INNER(d) (disk_of(d)->inner)
#define OPS(d) (disk_of(d)->inner->ops)

/* ---- Files ---- */

static int faulty_open(struct disk *d, const char *path, unsigned flags, struct disk_file **ret)
{
	struct faulty_file *f;
	int r;

	if (fails(disk_of(d)))
		return -disk_of(d)->error;
	f = calloc(1, sizeof(*f));
	f->base.disk = d;
	snprintf(f->path, sizeof(f->path), "%s", path);
	r = OPS(d)->open(INNER(d), path, flags, &f->inner);
	if (r < 0) {
		free(f);
		return r;
	}
	record(disk_of(d), 'o', path);
	*ret = &f->base;
	return 0;
}

static void faulty_close(struct disk_file *file)
{
	struct faulty_file *f = file_of(file);

	OPS(file->disk)->close(f->inner);
	free(f);
}

static int faulty_size(struct disk_file *f, uint64_t *ret)
{
	return fails(disk_of(f->disk)) ? -disk_of(f->disk)->error
				       : OPS(f->disk)->size(file_of(f)->inner, ret);
}

static int faulty_links(struct disk_file *f, uint64_t *ret)
{
	return fails(disk_of(f->disk)) ? -disk_of(f->disk)->error
				       : OPS(f->disk)->links(file_of(f)->inner, ret);
}

static int faulty_is_private(struct disk_file *f, bool *ret)
{
	return fails(disk_of(f->disk)) ? -disk_of(f->disk)->error
				       : OPS(f->disk)->is_private(file_of(f)->inner, ret);
}

static int faulty_allocate(struct disk_file *f, uint64_t length)
{
	return fails(disk_of(f->disk)) ? -disk_of(f->disk)->error
				       : OPS(f->disk)->allocate(file_of(f)->inner, length);
}

static int faulty_truncate(struct disk_file *f, uint64_t length)
{
	record(disk_of(f->disk), 'w', file_of(f)->path);
	return fails(disk_of(f->disk)) ? -disk_of(f->disk)->error
				       : OPS(f->disk)->truncate(file_of(f)->inner, length);
}

static int faulty_sync(struct disk_file *file)
{
	struct faulty_file *f = file_of(file);
	struct faulty_disk *d = disk_of(file->disk);

	assert_false(f->sync_failed); /* an error of sync is final */
	if (!fails(d)) {
		record(d, 's', f->path);
		return 0;
	}
	f->sync_failed = true;
	assert_int_equal(d->inner->ops->truncate(f->inner, 0), 0);
	return -d->error;
}

static int faulty_read(struct disk_file *f, void *buf, size_t len, uint64_t offset)
{
	return fails(disk_of(f->disk)) ? -disk_of(f->disk)->error
				       : OPS(f->disk)->read(file_of(f)->inner, buf, len, offset);
}

static int faulty_write(struct disk_file *f, const void *buf, size_t len, uint64_t offset)
{
	struct faulty_disk *d = disk_of(f->disk);
	bool failed = fails(d);
	size_t half = len >= 2 * DISK_ALIGN ? len / 2 / DISK_ALIGN * DISK_ALIGN : 0;
	int r;

	record(d, 'w', file_of(f)->path);
	r = d->inner->ops->write(file_of(f)->inner, buf, failed ? half : len, offset);
	return failed ? -d->error : r;
}

static int faulty_lock(struct disk_file *f, bool exclusive)
{
	return fails(disk_of(f->disk)) ? -disk_of(f->disk)->error
				       : OPS(f->disk)->lock(file_of(f)->inner, exclusive);
}

static int faulty_export(struct disk_file *f)
{
	return OPS(f->disk)->export_fd(file_of(f)->inner);
}

static int faulty_in_use(struct disk_file *f, bool *ret)
{
	return OPS(f->disk)->in_use(file_of(f)->inner, ret);
}

static void faulty_forget(struct disk_file *f)
{
	OPS(f->disk)->forget(file_of(f)->inner);
}

/* ---- Names ---- */

static int faulty_mkdir(struct disk *d, const char *path)
{
	return fails(disk_of(d)) ? -disk_of(d)->error : OPS(d)->mkdir(INNER(d), path);
}

static int faulty_rmdir(struct disk *d, const char *path)
{
	return fails(disk_of(d)) ? -disk_of(d)->error : OPS(d)->rmdir(INNER(d), path);
}

static int faulty_rename(struct disk *d, const char *from, const char *to)
{
	if (fails(disk_of(d)))
		return -disk_of(d)->error;
	record(disk_of(d), 'r', to);
	return OPS(d)->rename(INNER(d), from, to);
}

static int faulty_link(struct disk *d, const char *from, const char *to)
{
	return fails(disk_of(d)) ? -disk_of(d)->error : OPS(d)->link(INNER(d), from, to);
}

static int faulty_unlink(struct disk *d, const char *path)
{
	if (fails(disk_of(d)))
		return -disk_of(d)->error;
	record(disk_of(d), 'u', path);
	return OPS(d)->unlink(INNER(d), path);
}

static int end_walk(void *arg, const char *name, bool is_dir)
{
	(void)arg;
	(void)name;
	(void)is_dir;
	return 1;
}

static int faulty_sync_dir(struct disk *d, const char *path)
{
	if (fails(disk_of(d)))
		return -disk_of(d)->error;
	record(disk_of(d), 'd', path);
	return OPS(d)->list(INNER(d), path, end_walk, NULL) == -ENOENT ? -ENOENT : 0;
}

static int faulty_list(struct disk *d, const char *path, disk_name_fn *fn, void *arg)
{
	return fails(disk_of(d)) ? -disk_of(d)->error : OPS(d)->list(INNER(d), path, fn, arg);
}

static int faulty_space(struct disk *d, uint64_t *ret_free, uint64_t *ret_total)
{
	return OPS(d)->space(INNER(d), ret_free, ret_total);
}

/* ---- Queues ---- */

static int faulty_queue_open(struct disk *d, unsigned depth, struct disk_queue **ret)
{
	struct disk_queue *q;
	int r;

	if (fails(disk_of(d)))
		return -disk_of(d)->error;
	assert_true(depth <= IN_FLIGHT_MAX);
	q = calloc(1, sizeof(*q));
	q->disk = disk_of(d);
	r = OPS(d)->queue_open(INNER(d), depth, &q->inner);
	if (r < 0)
		free(q);
	else
		*ret = q;
	return r;
}

static void faulty_queue_close(struct disk_queue *q)
{
	q->disk->inner->ops->queue_close(q->inner);
	free(q);
}

static int faulty_submit(struct disk_queue *q, struct disk_io *io)
{
	struct disk_file *file = io->file;
	int i = 0, r;

	if (fails(q->disk))
		return -q->disk->error;
	if (io->write)
		record(q->disk, 'w', file_of(file)->path);
	while (q->flight[i].io)
		assert_true(++i < IN_FLIGHT_MAX);
	io->file = file_of(file)->inner;
	r = q->disk->inner->ops->submit(q->inner, io);
	if (r < 0) {
		io->file = file;
		return r;
	}
	q->flight[i].io = io;
	q->flight[i].file = file;
	return 0;
}

static int faulty_reap(struct disk_queue *q, struct disk_io **ret)
{
	bool failed = fails(q->disk);
	int i = 0, r = q->disk->inner->ops->reap(q->inner, ret);

	if (r < 0 || !*ret)
		return r;
	while (q->flight[i].io != *ret)
		assert_true(++i < IN_FLIGHT_MAX);
	(*ret)->file = q->flight[i].file;
	q->flight[i].io = NULL;
	if (failed)
		(*ret)->result = q->disk->error == EIO ? -EIO : (int)(*ret)->length / 2;
	return 0;
}

static int faulty_register(struct disk_queue *q, void *base, uint64_t length)
{
	return q->disk->inner->ops->queue_register(q->inner, base, length);
}

static void faulty_unregister(struct disk_queue *q, void *base)
{
	q->disk->inner->ops->queue_unregister(q->inner, base);
}

void faulty_disk_init(struct faulty_disk *f, struct disk *inner)
{
	static const struct disk_ops ops = {
		.open = faulty_open,
		.close = faulty_close,
		.size = faulty_size,
		.links = faulty_links,
		.is_private = faulty_is_private,
		.allocate = faulty_allocate,
		.truncate = faulty_truncate,
		.sync = faulty_sync,
		.read = faulty_read,
		.write = faulty_write,
		.lock = faulty_lock,
		.export_fd = faulty_export,
		.in_use = faulty_in_use,
		.forget = faulty_forget,
		.mkdir = faulty_mkdir,
		.rmdir = faulty_rmdir,
		.rename = faulty_rename,
		.link = faulty_link,
		.unlink = faulty_unlink,
		.sync_dir = faulty_sync_dir,
		.list = faulty_list,
		.space = faulty_space,
		.queue_open = faulty_queue_open,
		.queue_close = faulty_queue_close,
		.submit = faulty_submit,
		.reap = faulty_reap,
		.queue_register = faulty_register,
		.queue_unregister = faulty_unregister,
	};

	*f = (struct faulty_disk){ .base = { .ops = &ops, .backend = "faulty" }, .inner = inner,
				   .error = EIO };
}
