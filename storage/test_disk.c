/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_disk.c - the disk on a real file system: every test over threads and over each set of ring
 * flags that this kernel takes.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "storage/disk_backend.h"
#include "storage/disk_posix.h"
#include "tests/lib/test.h"

#define BLOCK DISK_ALIGN

struct fixture {
	char *dir;
	struct disk *disk;
};

static const char *backend_name; /* of the group that runs */
static const char *ring_rung;    /* NULL: the best */
static const char *openat2_mode; /* NULL: as the kernel can */

static void set_env(const char *name, const char *value)
{
	if (value)
		setenv(name, value, 1);
	else
		unsetenv(name);
}

static int set_up(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct err e = { 0 };

	set_env("CKPT_DISK_RING_FLAGS", ring_rung);
	set_env("CKPT_DISK_OPENAT2", openat2_mode);
	f->dir = test_dir_make(NULL);
	if (disk_posix_open(f->dir, backend_name, &f->disk, &e) < 0) {
		print_message("%s\n", e.text);
		return -1;
	}
	assert_string_equal(f->disk->backend, backend_name);
	*state = f;
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	disk_posix_close(f->disk);
	test_dir_remove(f->dir);
	free(f);
	return 0;
}

static void *blocks(size_t n)
{
	void *p = NULL;

	assert_int_equal(posix_memalign(&p, BLOCK, n * BLOCK), 0);
	memset(p, 0, n * BLOCK);
	return p;
}

static struct disk_file *open_ok(struct disk *d, const char *path, unsigned flags)
{
	struct disk_file *file = NULL;

	assert_int_equal(d->ops->open(d, path, flags, &file), 0);
	assert_ptr_equal(file->disk, d);
	return file;
}

/* ---- Names ---- */

static int count_name(void *arg, const char *name, bool is_dir)
{
	int *seen = arg;

	seen[is_dir]++;
	return strcmp(name, "stop") == 0 ? 7 : 0;
}

static void test_names(void **state)
{
	struct disk *d = ((struct fixture *)*state)->disk;
	struct disk_file *file, *other;
	uint64_t n, total;
	int seen[2] = { 0 };

	assert_int_equal(d->ops->mkdir(d, "a"), 0);
	assert_int_equal(d->ops->mkdir(d, "a"), 0);
	assert_int_equal(d->ops->mkdir(d, "a/b"), 0);
	assert_int_equal(d->ops->mkdir(d, "none/b"), -ENOENT);
	file = open_ok(d, "a/x", DISK_CREATE | DISK_EXCL);
	assert_int_equal(d->ops->open(d, "a/x", DISK_CREATE | DISK_EXCL, &other), -EEXIST);
	assert_int_equal(d->ops->open(d, "a/y", DISK_READ, &other), -ENOENT);
	assert_int_equal(d->ops->link(d, "a/x", "a/y"), 0);
	assert_int_equal(d->ops->link(d, "a/x", "a/y"), -EEXIST);
	assert_int_equal(d->ops->links(file, &n), 0);
	assert_int_equal(n, 2);
	assert_int_equal(d->ops->rename(d, "a/y", "a/b/z"), 0);
	assert_int_equal(d->ops->rename(d, "a/y", "a/b/z"), -ENOENT);
	assert_int_equal(d->ops->sync_dir(d, "a/b"), 0);
	assert_int_equal(d->ops->sync_dir(d, ""), 0);
	assert_int_equal(d->ops->sync_dir(d, "nowhere"), -ENOENT);
	assert_int_equal(d->ops->list(d, "a", count_name, seen), 0);
	assert_int_equal(seen[0], 1);
	assert_int_equal(seen[1], 1);
	assert_int_equal(d->ops->rmdir(d, "a/b"), -ENOTEMPTY);
	assert_int_equal(d->ops->unlink(d, "a/b/z"), 0);
	assert_int_equal(d->ops->unlink(d, "a/b/z"), -ENOENT);
	assert_int_equal(d->ops->rmdir(d, "a/b"), 0);
	assert_int_equal(d->ops->links(file, &n), 0);
	assert_int_equal(n, 1);
	d->ops->close(file);
	d->ops->close(open_ok(d, "a/stop", DISK_CREATE));
	assert_int_equal(d->ops->unlink(d, "a/x"), 0);
	assert_int_equal(d->ops->list(d, "a", count_name, seen), 7);
	assert_int_equal(d->ops->space(d, &n, &total), 0);
	assert_true(n <= total && total > 0);
}

static void test_paths_stay_inside(void **state)
{
	static const char *const bad[] = { "/etc/passwd", "../x", "a/../x", "a//x", "a/", "", ".",
					   "./x", "a/.", "a/.." };
	struct fixture *f = *state;
	struct disk *d = f->disk;
	struct disk_file *file = NULL;
	char path[600];

	assert_int_equal(d->ops->mkdir(d, "a"), 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(d->ops->open(d, bad[i], DISK_CREATE, &file), -EINVAL);
		assert_int_equal(d->ops->unlink(d, bad[i]), -EINVAL);
		assert_int_equal(d->ops->rename(d, "a/x", bad[i]), -EINVAL);
	}
	memset(path, 'p', DISK_PATH_MAX + 1);
	path[DISK_PATH_MAX + 1] = '\0';
	assert_int_equal(d->ops->open(d, path, DISK_CREATE, &file), -EINVAL);

	/* A link that somebody placed in the folder leads nowhere. */
	snprintf(path, sizeof(path), "%s/out", f->dir);
	assert_int_equal(symlink("/etc", path), 0);
	snprintf(path, sizeof(path), "%s/passwd", f->dir);
	assert_int_equal(symlink("/etc/passwd", path), 0);
	assert_int_equal(d->ops->open(d, "passwd", DISK_READ, &file), -ELOOP);
	if (!openat2_mode)
		assert_int_equal(d->ops->open(d, "out/passwd", DISK_READ, &file), -ELOOP);
	assert_null(file);
}

static void test_locks(void **state)
{
	struct disk *d = ((struct fixture *)*state)->disk;
	struct disk_file *writer = open_ok(d, "x", DISK_CREATE);
	struct disk_file *a = open_ok(d, "x", DISK_READ), *b = open_ok(d, "x", DISK_READ);

	assert_int_equal(d->ops->lock(a, false), 0);
	assert_int_equal(d->ops->lock(b, false), 0);
	assert_int_equal(d->ops->lock(writer, true), -EAGAIN);
	d->ops->close(a);
	d->ops->close(b);
	assert_int_equal(d->ops->lock(writer, true), 0);
	a = open_ok(d, "x", DISK_READ);
	assert_int_equal(d->ops->lock(a, false), -EAGAIN);
	d->ops->close(writer);
	assert_int_equal(d->ops->lock(a, false), 0);
	d->ops->close(a);
}

/*
 * io_uring may hold a file for a moment after it was closed. A second descriptor of the same open
 * file description does so until it is closed.
 */
static void test_lock_goes_with_close(void **state)
{
	struct disk *d = ((struct fixture *)*state)->disk;
	struct disk_file *writer = open_ok(d, "x", DISK_CREATE), *reader;
	int held;

	assert_int_equal(d->ops->lock(writer, true), 0);
	held = dup(container_of(writer, struct posix_file, base)->fd);
	assert_true(held >= 0);
	d->ops->close(writer);
	reader = open_ok(d, "x", DISK_READ);
	assert_int_equal(d->ops->lock(reader, false), 0);
	d->ops->close(reader);
	close(held);
}

/* What a client does to its descriptor changes nothing here. */
static void test_exported_descriptor(void **state)
{
	struct flock unlock = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
	struct disk *d = ((struct fixture *)*state)->disk;
	struct disk_file *writer = open_ok(d, "x", DISK_CREATE), *file;
	int flags, fd;

	assert_int_equal(d->ops->export_fd(writer), -EPERM);
	file = open_ok(d, "x", DISK_READ | DISK_DIRECT);
	flags = fcntl(container_of(file, struct posix_file, base)->fd, F_GETFL);
	assert_int_equal(d->ops->lock(file, false), 0);
	fd = d->ops->export_fd(file);
	assert_true(fd >= 0);
	assert_int_equal(fcntl(fd, F_GETFL) & O_DIRECT, flags & O_DIRECT);
	assert_int_equal(write(fd, "x", 1), -1);

	assert_int_equal(fcntl(fd, F_OFD_SETLK, &unlock), 0);
	assert_int_equal(d->ops->lock(writer, true), -EAGAIN);
	assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK | (~flags & O_DIRECT)), 0);
	assert_int_equal(fcntl(container_of(file, struct posix_file, base)->fd, F_GETFL), flags);
	d->ops->close(file);
	assert_int_equal(d->ops->lock(writer, true), 0);
	assert_int_equal(d->ops->lock(writer, false), 0);
	close(fd);

	/* One that leaves it alone has a lock of its own. */
	file = open_ok(d, "x", DISK_READ);
	assert_int_equal(d->ops->lock(file, false), 0);
	fd = d->ops->export_fd(file);
	assert_true(fd >= 0);
	d->ops->close(file);
	assert_int_equal(d->ops->lock(writer, true), -EAGAIN);
	close(fd);
	assert_int_equal(d->ops->lock(writer, true), 0);
	d->ops->close(writer);
}

/* Others may open it as soon as one bit says so. */
static void test_private(void **state)
{
	static const mode_t open_to[] = {0640, 0620, 0604, 0602, 0660};
	struct disk *d = ((struct fixture *)*state)->disk;
	struct disk_file *file = open_ok(d, "x", DISK_CREATE);
	int fd = container_of(file, struct posix_file, base)->fd;
	bool private = false;

	assert_int_equal(d->ops->is_private(file, &private), 0);
	assert_true(private);
	for (size_t i = 0; i < sizeof(open_to) / sizeof(open_to[0]); i++) {
		assert_int_equal(fchmod(fd, open_to[i]), 0);
		assert_int_equal(d->ops->is_private(file, &private), 0);
		assert_false(private);
	}
	assert_int_equal(fchmod(fd, 0600), 0);
	if (geteuid() == 0 && fchown(fd, 12345, (gid_t)-1) == 0) {
		assert_int_equal(d->ops->is_private(file, &private), 0);
		assert_false(private);
	}
	d->ops->close(file);
}

/* Pages of the file that are in the page cache. */
static size_t cached_pages(int fd, size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	uint8_t in[64];
	size_t n = 0;

	assert_ptr_not_equal(at, MAP_FAILED);
	assert_true(bytes / 4096 <= sizeof(in));
	assert_int_equal(mincore(at, bytes, in), 0);
	for (size_t i = 0; i < bytes / 4096; i++)
		n += in[i] & 1;
	munmap(at, bytes);
	return n;
}

/* The page cache reads what is asked for, no more, and gives it back. */
static void test_exact_and_forget(void **state)
{
	struct disk *d = ((struct fixture *)*state)->disk;
	struct disk_file *file = open_ok(d, "x", DISK_CREATE);
	static char bytes[64 * 4096], got[8192];
	struct statfs fs;
	int fd;

	memset(bytes, 7, sizeof(bytes));
	assert_int_equal(d->ops->write(file, bytes, sizeof(bytes), 0), 0);
	assert_int_equal(d->ops->sync(file), 0);
	d->ops->close(file);
	file = open_ok(d, "x", DISK_READ | DISK_EXACT);
	fd = d->ops->export_fd(file);
	assert_true(fd >= 0);
	assert_int_equal(fcntl(fd, F_GETFL) & O_DIRECT, 0);
	d->ops->forget(file);
	assert_int_equal(pread(fd, got, sizeof(got), 4096), sizeof(got));
	assert_memory_equal(got, bytes, sizeof(got));
	assert_int_equal(fstatfs(fd, &fs), 0);
	if (fs.f_type != TMPFS_MAGIC) { /* there the page cache is all that there is */
		assert_in_range(cached_pages(fd, sizeof(bytes)), 2, 16);
		d->ops->forget(file);
		assert_int_equal(cached_pages(fd, sizeof(bytes)), 0);
	}
	close(fd);
	d->ops->close(file);
}

/* ---- Transfers ---- */

static void test_unqueued(void **state)
{
	struct disk *d = ((struct fixture *)*state)->disk;
	struct disk_file *file = open_ok(d, "x", DISK_CREATE);
	char text[16] = { 0 };
	uint64_t n;

	assert_int_equal(d->ops->write(file, "hello", 5, 3), 0);
	assert_int_equal(d->ops->size(file, &n), 0);
	assert_int_equal(n, 8);
	assert_int_equal(d->ops->read(file, text, 5, 3), 0);
	assert_string_equal(text, "hello");
	assert_int_equal(d->ops->read(file, text, 6, 3), -ENODATA);
	assert_int_equal(d->ops->read(file, text, 1, 100), -ENODATA);
	assert_int_equal(d->ops->allocate(file, 2 * BLOCK), 0);
	assert_int_equal(d->ops->read(file, text, 5, 3), 0);
	assert_string_equal(text, "hello");
	assert_int_equal(d->ops->size(file, &n), 0);
	assert_int_equal(n, 2 * BLOCK);
	assert_int_equal(d->ops->truncate(file, 4), 0);
	assert_int_equal(d->ops->read(file, text, 2, 3), -ENODATA);
	assert_int_equal(d->ops->sync(file), 0);
	d->ops->close(file);
}

static void test_direct_wants_alignment(void **state)
{
	struct disk *d = ((struct fixture *)*state)->disk;
	struct disk_file *file = open_ok(d, "x", DISK_CREATE | DISK_DIRECT);
	uint8_t *p = blocks(3), *back = blocks(3);
	struct disk_queue *q = NULL;
	struct disk_io io = { .file = file, .buf = p, .length = BLOCK, .write = true };

	test_fill(p, 3 * BLOCK, 1);
	assert_int_equal(d->ops->queue_open(d, 1, &q), 0);
	assert_int_equal(d->ops->write(file, p, 100, 0), -EINVAL);
	assert_int_equal(d->ops->write(file, p + 1, BLOCK, 0), -EINVAL);
	assert_int_equal(d->ops->write(file, p, BLOCK, 512), -EINVAL);
	assert_int_equal(d->ops->write(file, p, BLOCK, UINT64_MAX - BLOCK + 1), -EINVAL);
	io.offset = 1;
	assert_int_equal(d->ops->submit(q, &io), -EINVAL);
	assert_int_equal(d->ops->write(file, p, 3 * BLOCK, BLOCK), 0);
	assert_int_equal(d->ops->read(file, back, 3 * BLOCK, BLOCK), 0);
	assert_memory_equal(p, back, 3 * BLOCK);
	d->ops->queue_close(q);
	d->ops->close(file);
	free(p);
	free(back);
}

#define IOS 24
#define IO_BLOCKS 7

/* Writes and reads of many sizes, a few deep, against a copy in memory. */
static void run_queue(struct disk *d, unsigned flags, unsigned depth, bool registered,
		      uint64_t seed)
{
	struct disk_file *file = open_ok(d, "q", DISK_CREATE | flags);
	const size_t len = (size_t)IOS * IO_BLOCKS * BLOCK;
	uint8_t *image = blocks(IOS * IO_BLOCKS), *back = blocks(IOS * IO_BLOCKS);
	struct disk_io ios[IOS], *io = NULL;
	struct disk_queue *q = NULL;

	test_fill(image, len, seed);
	assert_int_equal(d->ops->queue_open(d, depth, &q), 0);
	if (registered) {
		assert_int_equal(d->ops->queue_register(q, image, len), 0);
		assert_int_equal(d->ops->queue_register(q, back, len / 2), 0);
	}
	for (int pass = 0; pass < 2; pass++) {
		unsigned sent = 0, got = 0, flight = 0;

		while (got < IOS) {
			struct disk_io *next = &ios[sent];

			if (sent < IOS) {
				*next = (struct disk_io){
					.file = file,
					.buf = (pass ? back : image) + sent * IO_BLOCKS * BLOCK,
					.offset = (uint64_t)sent * IO_BLOCKS * BLOCK,
					.length = IO_BLOCKS * BLOCK,
					.write = pass == 0,
					.owner = next,
				};
				if (d->ops->submit(q, next) == 0) {
					sent++;
					flight++;
					continue;
				}
				assert_int_equal(flight, depth);
			}
			assert_int_equal(d->ops->reap(q, &io), 0);
			assert_non_null(io);
			assert_ptr_equal(io->owner, io);
			assert_int_equal(io->result, IO_BLOCKS * BLOCK);
			got++;
			flight--;
		}
		assert_int_equal(d->ops->reap(q, &io), 0);
		assert_null(io);
	}
	assert_memory_equal(image, back, len);
	d->ops->queue_unregister(q, image);
	d->ops->queue_unregister(q, image);
	d->ops->queue_close(q);
	d->ops->close(file);
	free(image);
	free(back);
}

static void test_queue(void **state)
{
	struct disk *d = ((struct fixture *)*state)->disk;

	for (unsigned depth = 1; depth <= 16; depth *= 4) {
		run_queue(d, 0, depth, false, depth);
		run_queue(d, DISK_DIRECT, depth, false, depth + 100);
		run_queue(d, DISK_DIRECT, depth, true, depth + 200);
	}
}

static void test_queue_end_of_file(void **state)
{
	struct disk *d = ((struct fixture *)*state)->disk;

	for (int direct = 0; direct < 2; direct++) {
		struct disk_file *file = open_ok(d, "short", DISK_CREATE);
		uint8_t *p = blocks(4);
		struct disk_queue *q = NULL;
		struct disk_io io = { .buf = p, .length = 4 * BLOCK }, *got = NULL;

		memset(p, 0x55, BLOCK);
		assert_int_equal(d->ops->write(file, p, BLOCK + 10, 0), 0);
		d->ops->close(file);
		file = open_ok(d, "short", DISK_READ | (direct ? DISK_DIRECT : 0));
		io.file = file;
		assert_int_equal(d->ops->queue_open(d, 2, &q), 0);
		assert_int_equal(d->ops->submit(q, &io), 0);
		assert_int_equal(d->ops->reap(q, &got), 0);
		assert_ptr_equal(got, &io);
		assert_int_equal(io.result, BLOCK + 10);
		io.offset = 16 * BLOCK;
		assert_int_equal(d->ops->submit(q, &io), 0);
		assert_int_equal(d->ops->reap(q, &got), 0);
		assert_int_equal(io.result, 0);
		d->ops->queue_close(q);
		d->ops->close(file);
		free(p);
	}
}

static void test_queue_error_and_close(void **state)
{
	struct fixture *f = *state;
	struct disk *d = f->disk;
	struct disk_file *file = open_ok(d, "x", DISK_CREATE);
	uint8_t *p = blocks(IOS);
	struct disk_io ios[IOS], *got = NULL;
	struct disk_queue *q = NULL;

	assert_int_equal(d->ops->queue_open(d, IOS, &q), 0);
	/* From nowhere: the transfer itself fails, and is told so when it is reaped. */
	ios[0] = (struct disk_io){ .file = file, .buf = (void *)(uintptr_t)BLOCK,
				   .length = BLOCK, .write = true };
	assert_int_equal(d->ops->submit(q, &ios[0]), 0);
	assert_int_equal(d->ops->reap(q, &got), 0);
	assert_ptr_equal(got, &ios[0]);
	assert_int_equal(ios[0].result, -EFAULT);
	for (int i = 0; i < IOS; i++) {
		ios[i] = (struct disk_io){ .file = file, .buf = p + i * BLOCK, .length = BLOCK,
					   .offset = (uint64_t)i * BLOCK, .write = true };
		assert_int_equal(d->ops->submit(q, &ios[i]), 0);
	}
	/* Close waits for them: the buffers are ours again. */
	d->ops->queue_close(q);
	free(p);
	d->ops->close(file);
}

static const struct CMUnitTest over_disks[] = {
	cmocka_unit_test_setup_teardown(test_names, set_up, tear_down),
	cmocka_unit_test_setup_teardown(test_paths_stay_inside, set_up, tear_down),
	cmocka_unit_test_setup_teardown(test_locks, set_up, tear_down),
	cmocka_unit_test_setup_teardown(test_lock_goes_with_close, set_up, tear_down),
	cmocka_unit_test_setup_teardown(test_exported_descriptor, set_up, tear_down),
	cmocka_unit_test_setup_teardown(test_private, set_up, tear_down),
	cmocka_unit_test_setup_teardown(test_exact_and_forget, set_up, tear_down),
	cmocka_unit_test_setup_teardown(test_unqueued, set_up, tear_down),
	cmocka_unit_test_setup_teardown(test_direct_wants_alignment, set_up, tear_down),
	cmocka_unit_test_setup_teardown(test_queue, set_up, tear_down),
	cmocka_unit_test_setup_teardown(test_queue_end_of_file, set_up, tear_down),
	cmocka_unit_test_setup_teardown(test_queue_error_and_close, set_up, tear_down),
};

/* ---- Without a disk ---- */

static void test_transfer_steps(void **state)
{
	struct transfer t = { .length = 3 * BLOCK, .write = true, .direct = true };
	int r = 0;

	(void)state;
	assert_int_equal(transfer_step(&t, BLOCK), 0);
	assert_int_equal(t.moved, BLOCK);
	/* A torn block is written again from its begin. */
	assert_int_equal(transfer_step(&t, BLOCK + 100), 0);
	assert_int_equal(t.moved, 2 * BLOCK);
	assert_int_equal(transfer_step(&t, BLOCK), 1);
	assert_int_equal(t.moved, 3 * BLOCK);

	t = (struct transfer){ .length = 10, .write = true };
	assert_int_equal(transfer_step(&t, 3), 0);
	assert_int_equal(transfer_step(&t, 0), -EIO);
	t = (struct transfer){ .length = 10 };
	assert_int_equal(transfer_step(&t, 3), 0);
	assert_int_equal(transfer_step(&t, 0), 1);
	assert_int_equal(t.moved, 3);
	t = (struct transfer){ .length = 2 * BLOCK, .direct = true };
	assert_int_equal(transfer_step(&t, BLOCK + 3), 1);
	assert_int_equal(t.moved, BLOCK + 3);
	assert_int_equal(transfer_step(&t, -EIO), -EIO);

	/* What says nothing is repeated, but not for ever. */
	for (int error = 0; error < 3; error++) {
		static const int64_t says_nothing[] = { -EINTR, -EAGAIN, 100 };
		int calls = 0;

		t = (struct transfer){ .length = BLOCK, .write = true, .direct = true };
		for (r = 0; r == 0; calls++)
			r = transfer_step(&t, says_nothing[error]);
		assert_int_equal(calls, TRANSFER_TRIES_MAX);
		assert_true(r < 0);
	}
}

static void test_open_says_why(void **state)
{
	struct disk *d = NULL;
	struct err e = { 0 };

	(void)state;
	assert_int_equal(disk_posix_open("/nonexistent/x", "auto", &d, &e), -ENOENT);
	assert_non_null(strstr(e.text, "/nonexistent/x"));
	assert_int_equal(disk_posix_open("/tmp", "floppy", &d, &e), -EINVAL);
	assert_non_null(strstr(e.text, "floppy"));
	setenv("CKPT_DISK_RING_FLAGS", "off", 1);
	assert_int_equal(disk_posix_open("/tmp", "uring", &d, &e), -ENOSYS);
	assert_non_null(strstr(e.text, "io_uring"));
	assert_false(disk_uring_usable(&e));
	assert_int_equal(disk_posix_open("/tmp", "auto", &d, &e), 0);
	assert_string_equal(d->backend, "threads");
	disk_posix_close(d);
	unsetenv("CKPT_DISK_RING_FLAGS");
}

int main(void)
{
	static const char *const rungs[] = { NULL, "defer", "single", "coop", "none" };
	const struct CMUnitTest alone[] = {
		cmocka_unit_test(test_transfer_steps),
		cmocka_unit_test(test_open_says_why),
	};
	int failed = cmocka_run_group_tests_name("without a disk", alone, NULL, NULL);

	backend_name = "threads";
	failed += cmocka_run_group_tests_name("threads", over_disks, NULL, NULL);
	openat2_mode = "off";
	failed += cmocka_run_group_tests_name("threads, openat", over_disks, NULL, NULL);
	openat2_mode = NULL;
	backend_name = "uring";
	for (size_t i = 0; i < sizeof(rungs) / sizeof(rungs[0]); i++) {
		struct err why = { 0 };

		ring_rung = rungs[i];
		set_env("CKPT_DISK_RING_FLAGS", ring_rung);
		if (!disk_uring_usable(&why)) {
			printf("skip uring%s%s %s\n", ring_rung ? "-" : "",
			       ring_rung ? ring_rung : "", why.text);
			continue;
		}
		failed += cmocka_run_group_tests_name(ring_rung ? ring_rung : "uring", over_disks,
						      NULL, NULL);
	}
	return failed != 0;
}
