/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk_posix.c - the data folder on a real file system: names, syncs, locks, unqueued transfers.
 *
 * Every name goes through storage/beneath.h, so that nothing placed in the folder leads out of it.
 *
 * O_DIRECT is dropped silently where the file system refuses it or wants more than DISK_ALIGN
 * (statx); the rule that transfers of such a file are aligned stays, so that a mistake does not
 * hide on tmpfs. Unqueued transfers go through the same descriptor: there is no second, buffered
 * one whose pages could disagree with it.
 *
 * Failure: -errno as the kernel says it. Nothing here is retried but EINTR; least of all a sync.
 * Threads: any; a file by one at a time.
 */
#include <config.h>

#include "storage/disk_posix.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "storage/disk_backend.h"

/* ---- Files ---- */

/* Whether the file takes O_DIRECT transfers that are aligned to DISK_ALIGN. */
static bool direct_usable(int fd)
{
	struct statx sx;

	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &sx) < 0 ||
	    !(sx.stx_mask & STATX_DIOALIGN))
		return true; /* the kernel cannot tell; open() with O_DIRECT was granted */
	return sx.stx_dio_mem_align != 0 && DISK_ALIGN % sx.stx_dio_mem_align == 0 &&
	       sx.stx_dio_offset_align != 0 && DISK_ALIGN % sx.stx_dio_offset_align == 0;
}

static int open_file(const struct posix_disk *d, const char *path, unsigned flags)
{
	int how = flags & DISK_READ ? O_RDONLY : O_RDWR;
	int fd;

	if (flags & DISK_CREATE)
		how |= flags & DISK_EXCL ? O_CREAT | O_EXCL : O_CREAT;
	if (!(flags & DISK_DIRECT))
		return beneath_file(&d->at, path, how);
	fd = beneath_file(&d->at, path, how | O_DIRECT);
	if (fd >= 0 && direct_usable(fd))
		return fd;
	if (fd < 0 && fd != -EINVAL)
		return fd;
	/* A refused O_DIRECT may have made the file already. */
	if (fd >= 0)
		close(fd);
	return beneath_file(&d->at, path, how & ~O_EXCL);
}

static int posix_open(struct disk *disk, const char *path, unsigned flags, struct disk_file **ret)
{
	struct posix_file *f = alloc_zero(sizeof(*f));
	int fd;

	assert(!(flags & DISK_EXCL) || (flags & DISK_CREATE));
	assert(!(flags & DISK_EXACT) || !(flags & DISK_DIRECT));
	if (!f)
		return -ENOMEM;
	fd = open_file(posix_disk_of(disk), path, flags);
	if (fd < 0) {
		alloc_free(f);
		return fd;
	}
	f->base.disk = disk;
	f->fd = fd;
	f->direct = flags & DISK_DIRECT;
	f->writing = !(flags & DISK_READ);
	f->exact = flags & DISK_EXACT;
	if (f->exact)
		ignore_result(posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM) /* it is advice */);
	*ret = &f->base;
	return 0;
}

static void posix_close(struct disk_file *file)
{
	struct posix_file *f = posix_file_of(file);
	struct flock unlock = { .l_type = F_UNLCK, .l_whence = SEEK_SET };

	/* io_uring may hold the file for a moment after its last transfer was reaped, and with it a
	 * writer's lock: who opens the file now would take it for one that is being recycled. */
	if (f->writing)
		ignore_result(fcntl(f->fd, F_OFD_SETLK, &unlock) /* close() is what counts */);
	/* Its result says nothing: what must be stable was synced, and checked, before. */
	close(f->fd);
	alloc_free(f);
}

static int posix_size(struct disk_file *file, uint64_t *ret)
{
	struct stat st;

	if (fstat(posix_file_of(file)->fd, &st) < 0)
		return -errno;
	*ret = (uint64_t)st.st_size;
	return 0;
}

static int posix_links(struct disk_file *file, uint64_t *ret)
{
	struct stat st;

	if (fstat(posix_file_of(file)->fd, &st) < 0)
		return -errno;
	*ret = st.st_nlink;
	return 0;
}

/* An access list shows in the bits of the group. */
static int posix_is_private(struct disk_file *file, bool *ret)
{
	struct stat st;

	if (fstat(posix_file_of(file)->fd, &st) < 0)
		return -errno;
	*ret = st.st_uid == geteuid() && (st.st_mode & (S_IRWXG | S_IRWXO)) == 0;
	return 0;
}

static int posix_allocate(struct disk_file *file, uint64_t length)
{
	int r;

	if (length == 0)
		return 0;
	if (length > INT64_MAX)
		return -EFBIG;
	do
		r = fallocate(posix_file_of(file)->fd, 0, 0, (off_t)length);
	while (r < 0 && errno == EINTR);
	return r < 0 ? -errno : 0;
}

static int posix_truncate(struct disk_file *file, uint64_t length)
{
	int r;

	if (length > INT64_MAX)
		return -EFBIG;
	do
		r = ftruncate(posix_file_of(file)->fd, (off_t)length);
	while (r < 0 && errno == EINTR);
	return r < 0 ? -errno : 0;
}

static int posix_sync(struct disk_file *file)
{
	return fdatasync(posix_file_of(file)->fd) < 0 ? -errno : 0;
}

static int transfer_all(struct disk_file *file, void *buf, size_t len, uint64_t offset, bool write)
{
	const struct posix_file *f = posix_file_of(file);

	if (!transfer_allowed(f, buf, len, offset))
		return -EINVAL;
	for (size_t done = 0; done < len;) {
		uint32_t want = (uint32_t)min_u64(len - done, DISK_TRANSFER_MAX);
		int n = transfer_blocking(f, (char *)buf + done, want, offset + done, write);

		if (n < 0)
			return n;
		if ((uint32_t)n < want)
			return -ENODATA;
		done += want;
	}
	return 0;
}

static int posix_read(struct disk_file *file, void *buf, size_t len, uint64_t offset)
{
	return transfer_all(file, buf, len, offset, false);
}

static int posix_write(struct disk_file *file, const void *buf, size_t len, uint64_t offset)
{
	assert(posix_file_of(file)->writing);
	return transfer_all(file, (void *)(uintptr_t)buf, len, offset, true);
}

static int lock_fd(int fd, bool exclusive)
{
	struct flock l = { .l_type = exclusive ? F_WRLCK : F_RDLCK, .l_whence = SEEK_SET };
	int r;

	do
		r = fcntl(fd, F_OFD_SETLK, &l);
	while (r < 0 && errno == EINTR);
	if (r == 0)
		return 0;
	return errno == EACCES ? -EAGAIN : -errno;
}

static int posix_lock(struct disk_file *file, bool exclusive)
{
	struct posix_file *f = posix_file_of(file);
	int r = lock_fd(f->fd, exclusive);

	if (r == 0)
		f->shared = !exclusive;
	return r;
}

static int posix_export_fd(struct disk_file *file)
{
	const struct posix_file *f = posix_file_of(file);
	int flags = fcntl(f->fd, F_GETFL), fd, r = 0;
	char path[40];

	if (f->writing)
		return -EPERM; /* the receiver could write */
	if (flags < 0)
		return -errno;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", f->fd);
	do
		fd = open(path, O_RDONLY | O_CLOEXEC | (flags & O_DIRECT));
	while (fd < 0 && errno == EINTR);
	if (fd < 0)
		return -errno;
	if (f->exact)
		ignore_result(posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM) /* it is advice */);
	/* For an older ckptd, which recycles what nothing has locked. */
	if (f->shared)
		r = lock_fd(fd, false);
	if (r < 0) {
		close(fd);
		return r;
	}
	return fd;
}

static void posix_forget(struct disk_file *file)
{
	ignore_result(posix_fadvise(posix_file_of(file)->fd, 0, 0, POSIX_FADV_DONTNEED));
}

/* ---- Names ---- */

static const struct beneath *at(struct disk *disk)
{
	return &posix_disk_of(disk)->at;
}

static int posix_mkdir(struct disk *disk, const char *path)
{
	int r = beneath_mkdir(at(disk), path);

	return r == -EEXIST ? 0 : r;
}

static int posix_rmdir(struct disk *disk, const char *path)
{
	return beneath_remove(at(disk), path, true);
}

static int posix_unlink(struct disk *disk, const char *path)
{
	return beneath_remove(at(disk), path, false);
}

static int posix_rename(struct disk *disk, const char *from, const char *to)
{
	return beneath_rename(at(disk), from, to);
}

static int posix_link(struct disk *disk, const char *from, const char *to)
{
	return beneath_link(at(disk), from, to);
}

static int posix_sync_dir(struct disk *disk, const char *path)
{
	int fd = beneath_folder(at(disk), path), r;

	if (fd < 0)
		return fd;
	r = fsync(fd) < 0 ? -errno : 0;
	close(fd);
	return r;
}

static int posix_list(struct disk *disk, const char *path, disk_name_fn *fn, void *arg)
{
	return beneath_list(at(disk), path, fn, arg);
}

static int posix_space(struct disk *disk, uint64_t *ret_free, uint64_t *ret_total)
{
	struct statvfs v;

	if (fstatvfs(at(disk)->folder, &v) < 0)
		return -errno;
	*ret_free = (uint64_t)v.f_bavail * v.f_frsize;
	*ret_total = (uint64_t)v.f_blocks * v.f_frsize;
	return 0;
}

/*
 * The kernel grants a write lease only for a file that no other open file description refers to.
 * The lease is released at once; an open() in between breaks it, and the kernel sends SIGIO, which
 * ckptd ignores.
 */
static int posix_in_use(struct disk_file *file, bool *ret)
{
	int fd = posix_file_of(file)->fd, r;

	do
		r = fcntl(fd, F_SETLEASE, F_WRLCK);
	while (r < 0 && errno == EINTR);
	if (r < 0 && errno != EAGAIN)
		return -errno;
	*ret = r < 0;
	if (r == 0)
		ignore_result(fcntl(fd, F_SETLEASE, F_UNLCK) /* it goes with the descriptor */);
	return 0;
}

/* ---- The disk ---- */

#define OPS_OF_NAMES_AND_FILES                                                                     \
	.open = posix_open, .close = posix_close, .size = posix_size, .links = posix_links,        \
	.is_private = posix_is_private,                                                            \
	.allocate = posix_allocate, .truncate = posix_truncate, .sync = posix_sync,                \
	.read = posix_read, .write = posix_write, .lock = posix_lock,                              \
	.export_fd = posix_export_fd, .in_use = posix_in_use,                                      \
	.forget = posix_forget, .mkdir = posix_mkdir,                                              \
	.rmdir = posix_rmdir, .rename = posix_rename, .link = posix_link, .unlink = posix_unlink,  \
	.sync_dir = posix_sync_dir, .list = posix_list, .space = posix_space

static const struct disk_ops uring_ops = {
	OPS_OF_NAMES_AND_FILES,
	.queue_open = uring_queue_open,
	.queue_close = uring_queue_close,
	.submit = uring_submit,
	.reap = uring_reap,
	.queue_register = uring_queue_register,
	.queue_unregister = uring_queue_unregister,
};

static const struct disk_ops threads_ops = {
	OPS_OF_NAMES_AND_FILES,
	.queue_open = threads_queue_open,
	.queue_close = threads_queue_close,
	.submit = threads_submit,
	.reap = threads_reap,
	.queue_register = threads_queue_register,
	.queue_unregister = threads_queue_unregister,
};

static int choose_backend(struct posix_disk *d, const char *backend, struct err *e)
{
	bool automatic = strcmp(backend, "auto") == 0;
	int r;

	if (!automatic && strcmp(backend, "uring") != 0 && strcmp(backend, "threads") != 0)
		return err_set(e, -EINVAL,
			       "there is no disk back-end '%s': use auto, uring or threads",
			       backend);
	d->base.ops = &threads_ops;
	d->base.backend = "threads";
	if (strcmp(backend, "threads") == 0)
		return 0;
	r = uring_probe(&d->ring_flags, automatic ? NULL : e);
	if (r < 0)
		return automatic ? 0 : r;
	d->base.ops = &uring_ops;
	d->base.backend = "uring";
	return 0;
}

int disk_posix_take(struct beneath *folder, const char *backend, struct disk **ret, struct err *e)
{
	struct posix_disk *d = alloc_zero(sizeof(*d));
	int r;

	if (!d) {
		beneath_close(folder);
		return err_code(e, -ENOMEM, "cannot open the data folder");
	}
	d->at = *folder;
	r = choose_backend(d, backend, e);
	if (r < 0) {
		disk_posix_close(&d->base);
		return r;
	}
	*ret = &d->base;
	return 0;
}

int disk_posix_open(const char *folder, const char *backend, struct disk **ret, struct err *e)
{
	struct beneath b;
	int r = beneath_open(folder, &b, e);

	return r < 0 ? r : disk_posix_take(&b, backend, ret, e);
}

int disk_posix_again(struct disk *disk, const char *backend, struct disk **ret, struct err *e)
{
	struct beneath b;
	int r = beneath_again(at(disk), &b);

	return r < 0 ? err_code(e, r, "open the data folder once more")
		     : disk_posix_take(&b, backend, ret, e);
}

void disk_posix_close(struct disk *disk)
{
	struct posix_disk *d;

	if (!disk)
		return;
	d = posix_disk_of(disk);
	beneath_close(&d->at);
	alloc_free(d);
}

struct beneath *disk_posix_folder(struct disk *disk)
{
	return &posix_disk_of(disk)->at;
}

bool disk_uring_usable(struct err *why)
{
	unsigned flags;

	return uring_probe(&flags, why) == 0;
}
