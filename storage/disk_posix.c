/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk_posix.c - the data folder on a real file system: names, syncs, locks, unqueued transfers.
 *
 * Every name is resolved by openat2(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS), so that nothing placed
 * in the folder leads out of it. Where a container forbids openat2 (probed once), openat() with
 * O_NOFOLLOW is used after the same checks of the text; CKPT_DISK_OPENAT2=off forces that.
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
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "storage/disk_backend.h"

/* Relative, no empty, "." or ".." part: what the callers promise, checked where it matters. */
static bool path_allowed(const char *path)
{
	size_t len = strlen(path);
	const char *part = path;

	if (len == 0 || len > DISK_PATH_MAX)
		return false;
	for (;;) {
		size_t n = strcspn(part, "/");

		if (n == 0 || (n == 1 && part[0] == '.') || (n == 2 && memcmp(part, "..", 2) == 0))
			return false;
		if (part[n] == '\0')
			return true;
		part += n + 1;
	}
}

static int open_beneath(const struct posix_disk *d, const char *path, int flags, mode_t mode)
{
	struct open_how how = {
		.flags = (uint64_t)(flags | O_CLOEXEC),
		.mode = flags & O_CREAT ? mode : 0,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
	};
	int fd;

	do {
		if (d->openat2)
			fd = (int)syscall(SYS_openat2, d->folder, path, &how, sizeof(how));
		else
			fd = openat(d->folder, path, flags | O_CLOEXEC | O_NOFOLLOW, mode);
	} while (fd < 0 && (errno == EINTR || (d->openat2 && errno == EAGAIN)));
	return fd < 0 ? -errno : fd;
}

/* A folder by its path; "" is the data folder. The caller closes. */
static int open_folder(const struct posix_disk *d, const char *path)
{
	if (path[0] && !path_allowed(path))
		return -EINVAL;
	return open_beneath(d, path[0] ? path : ".", O_RDONLY | O_DIRECTORY, 0);
}

/* The folder that holds path's last part, which is at *ret_leaf. The caller closes. */
static int open_parent(const struct posix_disk *d, const char *path, const char **ret_leaf)
{
	const char *slash = strrchr(path, '/');
	char parent[DISK_PATH_MAX + 1];
	int fd;

	if (!path_allowed(path))
		return -EINVAL;
	snprintf(parent, sizeof(parent), "%.*s", slash ? (int)(slash - path) : 0, path);
	fd = open_beneath(d, slash ? parent : ".", O_PATH | O_DIRECTORY, 0);
	if (fd >= 0)
		*ret_leaf = slash ? slash + 1 : path;
	return fd;
}

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

	if (!path_allowed(path))
		return -EINVAL;
	if (flags & DISK_CREATE)
		how |= flags & DISK_EXCL ? O_CREAT | O_EXCL : O_CREAT;
	if (!(flags & DISK_DIRECT))
		return open_beneath(d, path, how, 0600);
	fd = open_beneath(d, path, how | O_DIRECT, 0600);
	if (fd >= 0 && direct_usable(fd))
		return fd;
	if (fd < 0 && fd != -EINVAL)
		return fd;
	/* A refused O_DIRECT may have made the file already. */
	if (fd >= 0)
		close(fd);
	return open_beneath(d, path, how & ~O_EXCL, 0600);
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
	if (flags & DISK_EXACT)
		ignore_result(posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM) /* it is advice */);
	*ret = &f->base;
	return 0;
}

static void posix_close(struct disk_file *file)
{
	struct posix_file *f = posix_file_of(file);
	struct flock unlock = { .l_type = F_UNLCK, .l_whence = SEEK_SET };

	/* io_uring may hold the file for a moment after its last transfer was reaped, and with it a
	 * writer's lock: whoever opens the file now would take it for one that is being recycled. A
	 * reader's lock stays with the descriptors that were exported. */
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

static int posix_lock(struct disk_file *file, bool exclusive)
{
	struct flock l = { .l_type = exclusive ? F_WRLCK : F_RDLCK, .l_whence = SEEK_SET };
	int r;

	do
		r = fcntl(posix_file_of(file)->fd, F_OFD_SETLK, &l);
	while (r < 0 && errno == EINTR);
	if (r == 0)
		return 0;
	return errno == EACCES ? -EAGAIN : -errno;
}

static int posix_export_fd(struct disk_file *file)
{
	const struct posix_file *f = posix_file_of(file);
	int fd;

	if (f->writing)
		return -EPERM; /* the receiver could write */
	fd = fcntl(f->fd, F_DUPFD_CLOEXEC, 3);
	return fd < 0 ? -errno : fd;
}

static void posix_forget(struct disk_file *file)
{
	ignore_result(posix_fadvise(posix_file_of(file)->fd, 0, 0, POSIX_FADV_DONTNEED));
}

/* ---- Names ---- */

static int posix_mkdir(struct disk *disk, const char *path)
{
	const char *leaf;
	int fd = open_parent(posix_disk_of(disk), path, &leaf), r;

	if (fd < 0)
		return fd;
	r = mkdirat(fd, leaf, 0700) < 0 && errno != EEXIST ? -errno : 0;
	close(fd);
	return r;
}

static int remove_name(struct disk *disk, const char *path, int flags)
{
	const char *leaf;
	int fd = open_parent(posix_disk_of(disk), path, &leaf), r;

	if (fd < 0)
		return fd;
	r = unlinkat(fd, leaf, flags) < 0 ? -errno : 0;
	close(fd);
	return r;
}

static int posix_rmdir(struct disk *disk, const char *path)
{
	return remove_name(disk, path, AT_REMOVEDIR);
}

static int posix_unlink(struct disk *disk, const char *path)
{
	return remove_name(disk, path, 0);
}

static int second_name(struct disk *disk, const char *from, const char *to, bool keep)
{
	const char *leaf_from, *leaf_to;
	int a = open_parent(posix_disk_of(disk), from, &leaf_from), b, r;

	if (a < 0)
		return a;
	b = open_parent(posix_disk_of(disk), to, &leaf_to);
	if (b < 0) {
		close(a);
		return b;
	}
	r = keep ? linkat(a, leaf_from, b, leaf_to, 0) : renameat(a, leaf_from, b, leaf_to);
	r = r < 0 ? -errno : 0;
	close(a);
	close(b);
	return r;
}

static int posix_rename(struct disk *disk, const char *from, const char *to)
{
	return second_name(disk, from, to, false);
}

static int posix_link(struct disk *disk, const char *from, const char *to)
{
	return second_name(disk, from, to, true);
}

static int posix_sync_dir(struct disk *disk, const char *path)
{
	int fd = open_folder(posix_disk_of(disk), path), r;

	if (fd < 0)
		return fd;
	r = fsync(fd) < 0 ? -errno : 0;
	close(fd);
	return r;
}

static bool entry_is_dir(int fd, const struct dirent *entry)
{
	struct stat st;

	if (entry->d_type != DT_UNKNOWN)
		return entry->d_type == DT_DIR;
	return fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

static int posix_list(struct disk *disk, const char *path, disk_name_fn *fn, void *arg)
{
	int fd = open_folder(posix_disk_of(disk), path), r = 0;
	struct dirent *entry;
	DIR *dir;

	if (fd < 0)
		return fd;
	dir = fdopendir(fd);
	if (!dir) {
		r = -errno;
		close(fd);
		return r;
	}
	while (r == 0) {
		errno = 0;
		entry = readdir(dir);
		if (!entry) {
			r = -errno;
			break;
		}
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			r = fn(arg, entry->d_name, entry_is_dir(fd, entry));
	}
	closedir(dir);
	return r;
}

static int posix_space(struct disk *disk, uint64_t *ret_free, uint64_t *ret_total)
{
	struct statvfs v;

	if (fstatvfs(posix_disk_of(disk)->folder, &v) < 0)
		return -errno;
	*ret_free = (uint64_t)v.f_bavail * v.f_frsize;
	*ret_total = (uint64_t)v.f_blocks * v.f_frsize;
	return 0;
}

/* ---- The disk ---- */

#define OPS_OF_NAMES_AND_FILES                                                                     \
	.open = posix_open, .close = posix_close, .size = posix_size, .links = posix_links,        \
	.allocate = posix_allocate, .truncate = posix_truncate, .sync = posix_sync,                \
	.read = posix_read, .write = posix_write, .lock = posix_lock,                              \
	.export_fd = posix_export_fd, .forget = posix_forget, .mkdir = posix_mkdir,                \
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

static bool openat2_usable(struct posix_disk *d)
{
	const char *forced = getenv("CKPT_DISK_OPENAT2");
	int fd;

	if (forced && strcmp(forced, "off") == 0)
		return false;
	d->openat2 = true;
	fd = open_beneath(d, ".", O_PATH | O_DIRECTORY, 0);
	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

int disk_posix_open(const char *folder, const char *backend, struct disk **ret, struct err *e)
{
	struct posix_disk *d = alloc_zero(sizeof(*d));
	int r;

	if (!d)
		return err_code(e, -ENOMEM, "cannot open data folder '%s'", folder);
	d->folder = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (d->folder < 0) {
		r = err_code(e, -errno, "cannot open data folder '%s'", folder);
		alloc_free(d);
		return r;
	}
	d->openat2 = openat2_usable(d);
	r = choose_backend(d, backend, e);
	if (r < 0) {
		disk_posix_close(&d->base);
		return r;
	}
	*ret = &d->base;
	return 0;
}

void disk_posix_close(struct disk *disk)
{
	struct posix_disk *d;

	if (!disk)
		return;
	d = posix_disk_of(disk);
	close(d->folder);
	alloc_free(d);
}

bool disk_uring_usable(struct err *why)
{
	unsigned flags;

	return uring_probe(&flags, why) == 0;
}
