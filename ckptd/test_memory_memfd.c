/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What another process can and cannot do with a region is tried in another process. That the fd
 * store has a region is tested in test_supervise.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "ckptd/memory_memfd.h"
#include "ckptd/system_memory.h"
#include "tests/lib/silent_store.h"
#include "tests/lib/test.h"

enum { MIB = 1 << 20 };

struct fixture {
	struct notify *notify;
	struct keeper *keeper;
	struct memory *memory;
};

static bool no_noexec; /* the tests of memory run twice */

static int setup(void **state)
{
	struct memory_options o = { .budget = 64 * MIB, .huge_pages = true, .root = "",
				    .no_noexec = no_noexec };
	struct fixture *f = calloc(1, sizeof(*f));

	unsetenv("NOTIFY_SOCKET");
	assert_int_equal(notify_open(&f->notify, NULL), 0);
	assert_int_equal(keeper_open(f->notify, &f->keeper, NULL), 0);
	assert_false(keeper_keeps(f->keeper));
	assert_int_equal(memory_memfd_new(f->keeper, &o, &f->memory, NULL), 0);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	memory_memfd_free(f->memory);
	keeper_free(f->keeper);
	notify_free(f->notify);
	free(f);
	return 0;
}

static struct region *make(struct fixture *f, uint64_t size)
{
	struct region *r = NULL;

	assert_int_equal(f->memory->ops->create(f->memory, "slot.0-1", size, &r), 0);
	assert_non_null(r);
	return r;
}

/* Runs body in another process; its exit status, or 128 + the signal. */
static int in_child(int (*body)(int fd), int fd)
{
	pid_t pid = fork();
	int status;

	if (pid == 0)
		_exit(body(fd));
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* ---- A region ---- */

static void test_region_is_zeroed_whole_and_counted(void **state)
{
	struct fixture *f = *state;
	uint64_t budget = 0, size = 3 * MIB + 5;
	struct region *r = make(f, size);
	struct stat st;
	int fd;

	assert_int_equal(r->size, size);
	assert_string_equal(r->name, "slot.0-1");
	for (uint64_t i = 0; i < size; i++)
		assert_int_equal(((uint8_t *)r->base)[i], 0);
	memset(r->base, 7, size);
	assert_int_equal(f->memory->ops->available(f->memory, &budget),
			 64 * MIB - (3 * MIB + 4096));
	assert_int_equal(budget, 64 * MIB);
	fd = f->memory->ops->export_fd(f->memory, r, true);
	assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_int_equal(st.st_size, size);
	assert_true((uint64_t)st.st_blocks * 512 >= size);
	assert_int_equal(ftruncate(fd, 4096), -1); /* or ckptd would die of SIGBUS */
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(fd, 4 * MIB), -1);
	f->memory->ops->close_fd(f->memory, fd);
	f->memory->ops->destroy(f->memory, r);
	assert_int_equal(f->memory->ops->available(f->memory, NULL), 64 * MIB);
}

static int child_write(int fd)
{
	char *p = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		return 1;
	memset(p, 0x5a, MIB);
	return 0;
}

static int child_punch(int fd)
{
	return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, MIB) == 0 ? 0 : errno;
}

static int child_map_for_writing(int fd)
{
	return mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED ? errno : 0;
}

static int child_raise_protection(int fd)
{
	char *p = mmap(NULL, MIB, PROT_READ, MAP_SHARED, fd, 0);

	return mprotect(p, MIB, PROT_READ | PROT_WRITE) == 0 ? 0 : errno;
}

static int child_truncate(int fd)
{
	return ftruncate(fd, 0) == 0 ? 0 : errno;
}

static int child_write_call(int fd)
{
	return write(fd, "x", 1) == 1 ? 0 : errno;
}

static int child_undo_seals(int fd)
{
	return fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0 ? 0 : errno;
}

static void *daemons_map;

static int child_touch_daemons_map(int fd)
{
	(void)fd;
	signal(SIGSEGV, SIG_DFL); /* not the sanitizer's */
	*(volatile char *)daemons_map = 1;
	return 0;
}

static void test_sealed_region_cannot_be_written_anew(void **state)
{
	struct fixture *f = *state;
	struct region *r = make(f, MIB);
	int fd = f->memory->ops->export_fd(f->memory, r, true);
	char *old = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	assert_int_equal(in_child(child_write, fd), 0);
	assert_int_equal(((uint8_t *)r->base)[MIB - 1], 0x5a);
	assert_int_equal(f->memory->ops->seal(f->memory, r), 0);
	assert_int_equal(f->memory->ops->seal(f->memory, r), 0); /* again */
	assert_int_equal(in_child(child_map_for_writing, fd), EPERM);
	assert_int_equal(in_child(child_raise_protection, fd), EACCES);
	assert_int_equal(in_child(child_truncate, fd), EPERM);
	assert_int_equal(in_child(child_punch, fd), EPERM);
	assert_int_equal(in_child(child_write_call, fd), EPERM);
	assert_int_equal(in_child(child_undo_seals, fd), EPERM);
	assert_int_equal(madvise(old, MIB, MADV_REMOVE), -1); /* a hole by way of an old mapping */
	old[0] = 1; /* the trainer it belongs to goes on writing */
	assert_int_equal(((uint8_t *)r->base)[0], 1);
	daemons_map = r->base;
	assert_int_equal(in_child(child_touch_daemons_map, fd), 128 + SIGSEGV);
	munmap(old, MIB);
	close(fd);
	f->memory->ops->destroy(f->memory, r);
}

static int child_forbid_maps(int fd)
{
	return fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0 ? 0 : errno;
}

/* Some pages that another process writes to as well: it can neither shorten them nor keep the next
 * ckptd from mapping them. */
/* Taken at once, with pages only from fill() on; destroyed before that it leaves nothing. */
static void test_reserved_region(void **state)
{
	struct fixture *f = *state;
	const struct memory_ops *ops = f->memory->ops;
	uint64_t budget, size = 5 * MIB;
	struct region *r = NULL, *other = NULL;
	struct stat st;
	int fd;

	for (int filled = 0; filled < 2; filled++) {
		assert_int_equal(ops->reserve(f->memory, "slot.0-1", size, &r), 0);
		assert_int_equal(ops->available(f->memory, &budget), 64 * MIB - size);
		assert_int_equal(ops->reserve(f->memory, "b", 60 * MIB, &other), -ENOSPC);
		fd = ops->export_fd(f->memory, r, true);
		assert_int_equal(fstat(fd, &st), 0);
		assert_int_equal(st.st_size, size);
		assert_int_equal(st.st_blocks, 0);
		assert_int_equal(ftruncate(fd, 1), -1); /* its size is fixed all the same */
		if (filled) {
			assert_int_equal(ops->fill(f->memory, r), 0);
			assert_int_equal(ops->fill(f->memory, r), 0); /* again */
			assert_int_equal(fstat(fd, &st), 0);
			assert_true((uint64_t)st.st_blocks * 512 >= size);
			assert_int_equal(ops->seal(f->memory, r), 0);
		}
		close(fd);
		ops->destroy(f->memory, r);
		assert_int_equal(ops->available(f->memory, &budget), 64 * MIB);
	}
}

static void test_small_region(void **state)
{
	struct fixture *f = *state;
	uint64_t before = f->memory->ops->available(f->memory, NULL);
	struct region *r = NULL;
	int fd;

	assert_int_equal(f->memory->ops->create_small(f->memory, "beat.1", 3 * 4096, &r), 0);
	assert_int_equal(r->size, 3 * 4096);
	assert_int_equal(f->memory->ops->available(f->memory, NULL), before - 3 * 4096);
	fd = f->memory->ops->export_fd(f->memory, r, true);
	assert_int_equal(in_child(child_truncate, fd), EPERM);
	assert_int_equal(in_child(child_forbid_maps, fd), EPERM);
	assert_int_equal(f->memory->ops->keep(f->memory, r), 0);
	((uint8_t *)r->base)[3 * 4096 - 1] = 7;
	close(fd);
	f->memory->ops->destroy(f->memory, r);
	assert_int_equal(f->memory->ops->available(f->memory, NULL), before);
}

static void test_seal_fills_holes(void **state)
{
	struct fixture *f = *state;
	struct region *r = make(f, MIB);
	int fd = f->memory->ops->export_fd(f->memory, r, true);
	struct stat st;

	assert_int_equal(in_child(child_punch, fd), 0);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_blocks, 0);
	assert_int_equal(f->memory->ops->seal(f->memory, r), 0);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_blocks * 512, MIB);
	close(fd);
	f->memory->ops->destroy(f->memory, r);
}

static int child_reopen_as_another_uid(int fd)
{
	char path[40];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (setuid(65533) != 0)
		return 0;
	return open(path, O_RDWR) >= 0 ? 0 : errno;
}

static void test_read_only_descriptor(void **state)
{
	struct fixture *f = *state;
	struct region *r = make(f, MIB);
	int fd = f->memory->ops->export_fd(f->memory, r, false);

	assert_int_equal(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
	assert_int_equal(in_child(child_map_for_writing, fd), EACCES);
	assert_int_equal(in_child(child_write_call, fd), EBADF);
	if (getuid() == 0)
		assert_int_equal(in_child(child_reopen_as_another_uid, fd), EACCES);
	close(fd);
	f->memory->ops->destroy(f->memory, r);
}

/* ---- What may be taken ---- */

static void test_budget(void **state)
{
	struct fixture *f = *state;
	struct region *a = make(f, 60 * MIB), *b = NULL;

	assert_int_equal(f->memory->ops->create(f->memory, "b", 4 * MIB + 1, &b), -ENOSPC);
	assert_int_equal(f->memory->ops->create(f->memory, "b", UINT64_MAX, &b), -ENOSPC);
	assert_int_equal(f->memory->ops->create(f->memory, "b", INT64_MAX, &b), -ENOSPC);
	assert_null(b);
	assert_int_equal(f->memory->ops->create(f->memory, "b", 4 * MIB, &b), 0);
	assert_int_equal(f->memory->ops->available(f->memory, NULL), 0);
	f->memory->ops->destroy(f->memory, a);
	assert_int_equal(f->memory->ops->available(f->memory, NULL), 60 * MIB);
	f->memory->ops->destroy(f->memory, b);
}

/* ---- The fd store's limit ---- */

static void assert_room(struct memory *m, uint64_t used, uint64_t max, uint64_t left)
{
	struct memory_room room;

	m->ops->room(m, &room);
	assert_int_equal(room.used, used);
	assert_int_equal(room.max, max);
	assert_int_equal(room.left, left);
}

static void test_without_a_store_nothing_is_counted(void **state)
{
	struct fixture *f = *state;
	struct region *r = make(f, MIB);

	keeper_set_max(f->keeper, 0);
	f->memory->ops->destroy(f->memory, make(f, MIB));
	assert_room(f->memory, 0, UINT64_MAX, UINT64_MAX);
	f->memory->ops->destroy(f->memory, r);
}

enum { PLACES = 4 };

static void fill_the_store(struct memory *m, struct region *r[PLACES])
{
	char name[32];

	for (unsigned i = 0; i < PLACES; i++) {
		snprintf(name, sizeof(name), "slot.%u", i);
		assert_room(m, i, PLACES, PLACES - i);
		if (i < PLACES - 1) {
			assert_int_equal(m->ops->create(m, name, MIB, &r[i]), 0);
		} else {
			assert_int_equal(m->ops->create_small(m, name, 4096, &r[i]), 0);
			assert_int_equal(m->ops->keep(m, r[i]), 0);
		}
	}
	assert_room(m, PLACES, PLACES, 0);
}

/* At the limit and one over: systemd would drop that one, and say nothing. */
static void test_no_more_than_the_store_takes(void **state)
{
	struct memory_options o = { .budget = 64 * MIB, .root = "", .no_noexec = no_noexec };
	struct region *r[PLACES], *over = NULL;
	struct silent_store store;
	struct notify *notify;
	struct keeper *keeper;
	struct memory *m;

	(void)state;
	for (int tells = 0; tells < 2; tells++) {
		silent_store_start(&store, PLACES, tells);
		assert_int_equal(notify_open(&notify, NULL), 0);
		assert_int_equal(keeper_open(notify, &keeper, NULL), 0);
		assert_null(getenv(KEEPER_MAX_VAR));
		keeper_set_max(keeper, tells ? 1000 : PLACES);
		assert_int_equal(memory_memfd_new(keeper, &o, &m, NULL), 0);
		fill_the_store(m, r);
		assert_int_equal(m->ops->create(m, "over", MIB, &over), CKPT_ENOSPACE);
		assert_int_equal(m->ops->available(m, NULL), (64 - 3) * MIB - 4096);
		assert_int_equal(m->ops->create_small(m, "page", 4096, &over), 0);
		assert_int_equal(m->ops->keep(m, over), CKPT_ENOSPACE);
		m->ops->destroy(m, over); /* the store is not asked: it does not have it */
		assert_room(m, PLACES, PLACES, 0);
		m->ops->destroy(m, r[1]);
		assert_room(m, PLACES - 1, PLACES, 1);
		assert_int_equal(m->ops->create(m, "again", MIB, &r[1]), 0);
		assert_room(m, PLACES, PLACES, 0);
		assert_int_equal(store.kept, PLACES);
		assert_int_equal(store.dropped, 0);
		memory_memfd_free(m);
		keeper_free(keeper);
		notify_free(notify);
		silent_store_stop(&store);
	}
}

/* What is kept comes back by names in one string of the environment, and execve() refuses one that
 * is too long. */
static void test_names_that_a_start_can_pass(void **state)
{
	struct silent_store store;
	struct memory_room room;
	struct notify *notify;
	struct keeper *keeper;
	int r = 0, fd = memfd_create("kept", MFD_CLOEXEC);
	unsigned stored = 0;
	char name[200];

	(void)state;
	silent_store_start(&store, 65536, true);
	assert_int_equal(notify_open(&notify, NULL), 0);
	assert_int_equal(keeper_open(notify, &keeper, NULL), 0);
	while (r == 0) {
		snprintf(name, sizeof(name), "%0199u", stored);
		r = keeper_store(keeper, name, fd);
		stored += r == 0;
	}
	assert_int_equal(r, CKPT_ENOSPACE);
	assert_int_equal(stored, KEEPER_NAMES_MAX / 200);
	assert_int_equal(store.kept, stored);
	keeper_room(keeper, &room);
	assert_int_equal(room.used, stored);
	assert_int_equal(room.left, KEEPER_NAMES_MAX % 200 / KEEPER_NAME_USUAL);
	snprintf(name, sizeof(name), "%0199u", 0);
	assert_int_equal(keeper_remove(keeper, name), 0);
	assert_int_equal(keeper_store(keeper, name, fd), 0);
	close(fd);
	keeper_free(keeper);
	notify_free(notify);
	silent_store_stop(&store);
}

static void test_failures_leave_nothing_behind(void **state)
{
	struct fixture *f = *state;
	struct region *r = NULL;
	struct rlimit was, low;
	int error, top = dup(0);

	for (uint64_t n = 1;; n++) {
		alloc_fail_at(n, false);
		error = f->memory->ops->create(f->memory, "r", MIB, &r);
		alloc_fail_at(0, false);
		if (error == 0)
			break;
		assert_int_equal(error, -ENOMEM);
		assert_int_equal(f->memory->ops->available(f->memory, NULL), 64 * MIB);
	}
	f->memory->ops->destroy(f->memory, r);
	close(top);
	getrlimit(RLIMIT_NOFILE, &was);
	low = was;
	low.rlim_cur = (rlim_t)top;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	error = f->memory->ops->create(f->memory, "r", MIB, &r);
	setrlimit(RLIMIT_NOFILE, &was);
	assert_int_equal(error, -EMFILE);
	assert_int_equal(f->memory->ops->available(f->memory, NULL), 64 * MIB);
}

/* ---- Messages ---- */

static void test_bytes_travel_in_a_frozen_memfd(void **state)
{
	struct fixture *f = *state;
	const struct memory_ops *ops = f->memory->ops;
	uint64_t len = 0, sizes[] = { 0, 1, 4096, MIB + 3 };
	void *back = NULL;
	char *bytes = alloc_zero(MIB + 3);

	test_fill(bytes, MIB + 3, 5);
	for (int i = 0; i < 4; i++) {
		int fd = ops->bytes_to_fd(f->memory, bytes, sizes[i]);

		assert_true(fd >= 0);
		assert_int_equal(in_child(child_map_for_writing, fd), EACCES);
		assert_true(in_child(child_truncate, fd) != 0);
		assert_true(in_child(child_punch, fd) != 0);
		assert_int_equal(ops->fd_to_bytes(f->memory, fd, MIB + 3, &back, &len), 0);
		assert_int_equal(len, sizes[i]);
		assert_memory_equal(back, bytes, len);
		alloc_free(back);
		if (len)
			assert_int_equal(ops->fd_to_bytes(f->memory, fd, len - 1, &back, &len),
					 -E2BIG);
		ops->close_fd(f->memory, fd);
	}
	alloc_free(bytes);
}

static void test_descriptors_that_are_not_frozen_are_refused(void **state)
{
	struct fixture *f = *state;
	uint64_t len = 0;
	void *back = NULL;
	int fd = memfd_create("x", MFD_ALLOW_SEALING), p[2];

	assert_int_equal(write(fd, "hello", 5), 5);
	assert_int_equal(f->memory->ops->fd_to_bytes(f->memory, fd, 99, &back, &len), CKPT_EPROTO);
	fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE);
	assert_int_equal(f->memory->ops->fd_to_bytes(f->memory, fd, 99, &back, &len), CKPT_EPROTO);
	fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE);
	assert_int_equal(f->memory->ops->fd_to_bytes(f->memory, fd, 99, &back, &len), 0);
	assert_int_equal(len, 5);
	alloc_free(back);
	back = NULL;
	close(fd);
	assert_int_equal(pipe(p), 0);
	assert_int_equal(f->memory->ops->fd_to_bytes(f->memory, p[0], 99, &back, &len),
			 CKPT_EPROTO);
	close(p[0]);
	close(p[1]);
	fd = open("/etc/passwd", O_RDONLY);
	assert_int_equal(f->memory->ops->fd_to_bytes(f->memory, fd, 99, &back, &len), CKPT_EPROTO);
	close(fd);
	assert_null(back);
}

/* ---- The machine ---- */

static void put(const char *root, const char *path, const char *text)
{
	char name[300];

	snprintf(name, sizeof(name), "%s%s", root, path);
	for (char *p = name + strlen(root) + 1; (p = strchr(p, '/')); p++) {
		*p = '\0';
		mkdir(name, 0700);
		*p = '/';
	}
	FILE *f = fopen(name, "w");

	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static const char meminfo[] = "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    800 kB\n";

static void test_limits_of_cgroup_v2_and_those_above(void **state)
{
	char *root = test_dir_make(NULL);
	struct system_memory m = { 0 };

	(void)state;
	put(root, "/proc/meminfo", meminfo);
	assert_int_equal(system_memory_read(root, &m, NULL), 0); /* no cgroups at all */
	assert_int_equal(m.total, 1000 << 10);
	assert_int_equal(m.available, 800 << 10);
	put(root, "/proc/self/cgroup", "0::/a/b\n");
	put(root, "/sys/fs/cgroup/a/b/memory.max", "max\n");
	put(root, "/sys/fs/cgroup/a/b/memory.current", "5000\n");
	put(root, "/sys/fs/cgroup/a/memory.max", "600000\n");
	put(root, "/sys/fs/cgroup/a/memory.current", "500000\n");
	put(root, "/sys/fs/cgroup/a/memory.stat",
	    "anon 1\nfile 300000\ninactive_file 100000\nactive_file 50000\n");
	assert_int_equal(system_memory_read(root, &m, NULL), 0);
	assert_int_equal(m.total, 600000);
	assert_int_equal(m.available, 600000 - (500000 - 150000));
	put(root, "/sys/fs/cgroup/a/memory.current", "900000\n");
	assert_int_equal(system_memory_read(root, &m, NULL), 0);
	assert_int_equal(m.available, 0);
	test_dir_remove(root);
}

static void test_limits_of_cgroup_v1(void **state)
{
	char *root = test_dir_make(NULL);
	struct system_memory m = { 0 };
	struct err e = { 0 };

	(void)state;
	assert_int_equal(system_memory_read(root, &m, &e), -ENOENT);
	put(root, "/proc/meminfo", meminfo);
	put(root, "/proc/self/cgroup",
	    "12:cpu,cpuacct:/x\n4:hugetlb,memory:/docker/abc\n1:name=systemd:/\n0::/\n");
	/* In a container the path is the host's, but what is mounted is our own group. */
	put(root, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "300000\n");
	put(root, "/sys/fs/cgroup/memory/memory.usage_in_bytes", "100000\n");
	put(root, "/sys/fs/cgroup/memory/memory.stat",
	    "inactive_file 7\ntotal_inactive_file 20000\ntotal_active_file 10000\n");
	assert_int_equal(system_memory_read(root, &m, NULL), 0);
	assert_int_equal(m.total, 300000);
	assert_int_equal(m.available, 230000);
	put(root, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
	assert_int_equal(system_memory_read(root, &m, NULL), 0);
	assert_int_equal(m.total, 1000 << 10);
	assert_int_equal(m.available, 800 << 10);
	test_dir_remove(root);
}

static void test_memory_the_machine_does_not_have_is_refused(void **state)
{
	struct fixture *f = *state;
	char *root = test_dir_make(NULL);
	struct memory_options o = { .root = root };
	struct memory *m = NULL;
	struct region *r = NULL, *s = NULL;
	uint64_t budget = 0;

	put(root, "/proc/meminfo", "MemTotal: 64000 kB\nMemAvailable: 11000 kB\n");
	assert_int_equal(memory_memfd_new(f->keeper, &o, &m, NULL), 0);
	assert_int_equal(m->ops->available(m, &budget), 32000 << 10);
	assert_int_equal(budget, 32000 << 10);
	assert_int_equal(m->ops->create(m, "r", 10001 << 10, &r), -ENOMEM);
	assert_int_equal(m->ops->create(m, "r", 10000 << 10, &r), 0);
	m->ops->destroy(m, r);
	/* What is reserved is as good as taken until its pages show. */
	assert_int_equal(m->ops->reserve(m, "r", 6000 << 10, &r), 0);
	assert_int_equal(m->ops->create(m, "s", 6000 << 10, &s), -ENOMEM);
	assert_int_equal(m->ops->fill(m, r), 0);
	assert_int_equal(m->ops->create(m, "s", 6000 << 10, &s), 0);
	m->ops->destroy(m, s);
	m->ops->destroy(m, r);
	memory_memfd_free(m);
	test_dir_remove(root);
}

/* ---- After a restart ---- */

static struct region *adopted;

static void take_adopted(void *arg, struct region *r)
{
	(void)arg;
	adopted = r;
}

/* Exits with the line of what is not so. */
#define NEEDS(condition)                                                                           \
	do {                                                                                       \
		if (!(condition))                                                                  \
			_exit(__LINE__ % 255 + 1);                                                 \
	} while (0)

static char *machine_root;

/* The next ckptd, to which the fd store passes a region that was reserved and has no pages yet: it
 * counts beside what the machine calls free, until its pages show. */
static int child_adopts_reserved(int fd)
{
	struct memory_options o = {.root = machine_root};
	struct region *r = NULL;
	struct notify *notify;
	struct keeper *keeper;
	struct memory *m;
	char pid[16];

	snprintf(pid, sizeof(pid), "%d", (int)getpid());
	NEEDS(dup2(fd, 3) == 3);
	NEEDS(setenv("LISTEN_PID", pid, 1) == 0 && setenv("LISTEN_FDS", "1", 1) == 0 &&
	      setenv("LISTEN_FDNAMES", "slot.0-1", 1) == 0);
	NEEDS(notify_open(&notify, NULL) == 0 && keeper_open(notify, &keeper, NULL) == 0);
	NEEDS(memory_memfd_new(keeper, &o, &m, NULL) == 0);
	m->ops->adopt(m, take_adopted, NULL);
	NEEDS(adopted && adopted->size == 6000 << 10);
	NEEDS(m->ops->available(m, NULL) == (32000 - 6000) << 10);
	NEEDS(m->ops->create(m, "s", 4001 << 10, &r) == -ENOMEM);
	NEEDS(m->ops->create(m, "s", 4000 << 10, &r) == 0);
	m->ops->destroy(m, r);
	/* Once it has them the machine counts them, and nothing else does. */
	NEEDS(m->ops->fill(m, adopted) == 0 && m->ops->fill(m, adopted) == 0);
	NEEDS(m->ops->create(m, "s", 10001 << 10, &r) == -ENOMEM);
	NEEDS(m->ops->create(m, "s", 10000 << 10, &r) == 0);
	m->ops->destroy(m, r);
	m->ops->destroy(m, adopted);
	NEEDS(m->ops->available(m, NULL) == 32000 << 10);
	memory_memfd_free(m);
	keeper_free(keeper);
	notify_free(notify);
	return 0;
}

static void test_reserved_memory_counts_after_a_restart(void **state)
{
	struct fixture *f = *state;
	struct region *r = NULL;
	int fd;

	machine_root = test_dir_make(NULL);
	put(machine_root, "/proc/meminfo", "MemTotal: 64000 kB\nMemAvailable: 11000 kB\n");
	assert_int_equal(f->memory->ops->reserve(f->memory, "slot.0-1", 6000 << 10, &r), 0);
	fd = f->memory->ops->export_fd(f->memory, r, true);
	assert_int_equal(in_child(child_adopts_reserved, fd), 0);
	close(fd);
	f->memory->ops->destroy(f->memory, r);
	test_dir_remove(machine_root);
}

static void *create_6000(void *arg)
{
	struct memory *m = arg;
	struct region *r = NULL;

	return m->ops->create(m, "a", 6000 << 10, &r) == 0 ? r : NULL;
}

/* What another thread is making counts before the machine knows of its pages. */
static void test_two_at_once_do_not_exceed_it(void **state)
{
	char *root = test_dir_make(NULL), path[300], buf[100];
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct memory_options o = { .root = root };
	struct region *b = NULL;
	struct notify *notify;
	struct keeper *keeper;
	struct memory *m;
	pthread_t thread;
	void *first;
	int s;

	(void)state;
	put(root, "/proc/meminfo", "MemTotal: 64000 kB\nMemAvailable: 11000 kB\n");
	snprintf(path, sizeof(path), "%s/notify", root);
	strcpy(a.sun_path, path);
	s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(s, (struct sockaddr *)&a, sizeof(a)), 0);
	setenv("NOTIFY_SOCKET", path, 1);
	assert_int_equal(notify_open(&notify, NULL), 0);
	unsetenv("NOTIFY_SOCKET");
	assert_int_equal(keeper_open(notify, &keeper, NULL), 0);
	assert_int_equal(memory_memfd_new(keeper, &o, &m, NULL), 0);
	assert_int_equal(pthread_create(&thread, NULL, create_6000, m), 0);
	assert_true(recv(s, buf, sizeof(buf), 0) > 0); /* it is being made, and waits for us */
	assert_int_equal(m->ops->create(m, "b", 6000 << 10, &b), -ENOMEM);
	assert_true(recv(s, buf, sizeof(buf), 0) > 0); /* its barrier: we do not take the pipe */
	assert_int_equal(pthread_join(thread, &first), 0);
	assert_non_null(first);
	memory_memfd_free(m);
	keeper_free(keeper);
	notify_free(notify);
	close(s);
	test_dir_remove(root);
}

/* Asked for where the kernel may not give them: everything works, in small pages. */
static void test_huge_pages_that_are_not_given(void **state)
{
	struct fixture *f = *state;
	char *root = test_dir_make(NULL);
	struct memory_options o = { .root = root, .huge_pages = true, .budget = 64 * MIB };
	struct memory *m = NULL;
	struct region *r = NULL;

	put(root, "/proc/meminfo", "MemTotal: 640000 kB\nMemAvailable: 640000 kB\n");
	assert_int_equal(memory_memfd_new(f->keeper, &o, &m, NULL), 0);
	assert_int_equal(m->ops->create(m, "r", 8 * MIB, &r), 0);
	memset(r->base, 1, r->size);
	assert_true(huge_pages_mapped(r->base) <= r->size);
	assert_int_equal(m->ops->seal(m, r), 0);
	memory_memfd_free(m); /* with a region that nobody destroyed */
	test_dir_remove(root);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
		T(test_region_is_zeroed_whole_and_counted),
		T(test_sealed_region_cannot_be_written_anew),
		T(test_reserved_region),
		T(test_small_region),
		T(test_seal_fills_holes),
		T(test_read_only_descriptor),
		T(test_budget),
		T(test_without_a_store_nothing_is_counted),
		T(test_no_more_than_the_store_takes),
		T(test_names_that_a_start_can_pass),
		T(test_failures_leave_nothing_behind),
		T(test_bytes_travel_in_a_frozen_memfd),
		T(test_descriptors_that_are_not_frozen_are_refused),
		T(test_memory_the_machine_does_not_have_is_refused),
		T(test_reserved_memory_counts_after_a_restart),
		T(test_two_at_once_do_not_exceed_it),
		T(test_huge_pages_that_are_not_given),
#undef T
	};
	const struct CMUnitTest machine[] = {
		cmocka_unit_test(test_limits_of_cgroup_v2_and_those_above),
		cmocka_unit_test(test_limits_of_cgroup_v1),
	};
	int failed = cmocka_run_group_tests_name("memory", tests, NULL, NULL);

	no_noexec = true;
	failed += cmocka_run_group_tests_name("memory, older kernel", tests, NULL, NULL);
	return failed + cmocka_run_group_tests_name("machine", machine, NULL, NULL);
}
