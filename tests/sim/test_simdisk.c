/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_simdisk.c - the simulated disk keeps what it promises and breaks what it does not.
 *
 * A small publish protocol is crashed at random steps: the right one must never lose or garble
 * anything that it reported, and each way of getting it wrong must be found. Without the second
 * half the first would prove nothing.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/lib/test.h"
#include "tests/sim/disk.h"
#include "tests/sim/life.h"

static struct world *w;
static struct disk *d;
static struct disk_options options;

static int set_up(void **state)
{
	(void)state;
	w = world_new(11);
	disk_options_default(&options);
	d = disk_sim_new(w, &options);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	disk_sim_free(d);
	world_free(w);
	return 0;
}

static struct disk_file *must_open(const char *path, unsigned flags)
{
	struct disk_file *f = NULL;

	assert_int_equal(d->ops->open(d, path, flags, &f), 0);
	return f;
}

static bool exists(const char *path)
{
	struct disk_file *f;

	if (d->ops->open(d, path, DISK_READ, &f) < 0)
		return false;
	d->ops->close(f);
	return true;
}

/* Makes a file of len bytes of one value, synced, its name too. */
static void make_file(const char *path, uint8_t value, size_t len)
{
	struct disk_file *f = must_open(path, DISK_CREATE);
	uint8_t buf[8192];

	memset(buf, value, sizeof(buf));
	assert_int_equal(d->ops->write(f, buf, len, 0), 0);
	assert_int_equal(d->ops->sync(f), 0);
	d->ops->close(f);
	assert_int_equal(d->ops->sync_dir(d, ""), 0);
}

/* ---- Contents ---- */

static void test_unsynced_sectors_are_lost_one_by_one(void **state)
{
	int seen_old = 0, seen_new = 0, seen_torn = 0;

	(void)state;
	for (int run = 0; run < 60; run++) {
		uint8_t buf[4096], back[4096];
		struct disk_file *f;
		int fresh = 0;

		make_file("a", 1, 4096);
		f = must_open("a", 0);
		memset(buf, 2, sizeof(buf));
		assert_int_equal(d->ops->write(f, buf, 4096, 0), 0);
		assert_int_equal(d->ops->read(f, back, 4096, 0), 0);
		assert_memory_equal(back, buf, 4096); /* the page cache has it */
		d->ops->close(f);
		disk_power_loss(d);
		f = must_open("a", DISK_READ);
		assert_int_equal(d->ops->read(f, back, 4096, 0), 0);
		d->ops->close(f);
		for (int s = 0; s < 8; s++) {
			/* Within a sector all is old or all is new. */
			for (int i = 1; i < 512; i++)
				assert_int_equal(back[512 * s], back[512 * s + i]);
			fresh += back[512 * s] == 2;
		}
		seen_old += fresh == 0;
		seen_new += fresh == 8;
		seen_torn += fresh > 0 && fresh < 8;
	}
	assert_true(seen_old > 3 && seen_new > 3 && seen_torn > 3);
}

static void test_synced_bytes_stay(void **state)
{
	uint8_t back[5000];
	struct disk_file *f;
	uint64_t size;

	(void)state;
	make_file("a", 3, 5000);
	f = must_open("a", 0);
	assert_int_equal(d->ops->truncate(f, 100), 0);
	assert_int_equal(d->ops->truncate(f, 300), 0);
	assert_int_equal(d->ops->sync(f), 0);
	d->ops->close(f);
	disk_power_loss(d);
	f = must_open("a", DISK_READ);
	assert_int_equal(d->ops->size(f, &size), 0);
	assert_int_equal(size, 300);
	assert_int_equal(d->ops->read(f, back, 300, 0), 0);
	for (int i = 0; i < 300; i++)
		assert_int_equal(back[i], i < 100 ? 3 : 0);
	assert_int_equal(d->ops->read(f, back, 2, 299), -ENODATA);
	d->ops->close(f);
}

static void test_size_is_one_of_those_it_had(void **state)
{
	bool seen[4] = { false };

	(void)state;
	for (int run = 0; run < 60; run++) {
		struct disk_file *f;
		uint8_t buf[200] = { 0 };
		uint64_t size;

		make_file("a", 3, 100);
		f = must_open("a", 0);
		assert_int_equal(d->ops->truncate(f, 100), 0);
		assert_int_equal(d->ops->sync(f), 0);
		assert_int_equal(d->ops->write(f, buf, 200, 0), 0);
		assert_int_equal(d->ops->allocate(f, 300), 0);
		d->ops->close(f);
		disk_power_loss(d);
		f = must_open("a", DISK_READ);
		assert_int_equal(d->ops->size(f, &size), 0);
		d->ops->close(f);
		assert_true(size == 100 || size == 200 || size == 300);
		seen[size / 100] = true;
	}
	assert_true(seen[1] && seen[2] && seen[3]);
}

/* A failed sync: a later one says 0, and the bytes are not there nevertheless. */
static void test_failed_sync_loses_for_good(void **state)
{
	int lost = 0, read_old = 0;

	(void)state;
	for (int run = 0; run < 60; run++) {
		uint8_t buf[4096], back[4096];
		struct disk_file *f;

		make_file("a", 1, 4096);
		f = must_open("a", 0);
		memset(buf, 2, sizeof(buf));
		assert_int_equal(d->ops->write(f, buf, 4096, 0), 0);
		options.one_in[CLASS_OTHER][FAULT_SYNC_EIO] = 1;
		options.budget[FAULT_SYNC_EIO] = 1000;
		*disk_sim_options(d) = options;
		assert_int_equal(d->ops->sync(f), -EIO);
		options.one_in[CLASS_OTHER][FAULT_SYNC_EIO] = 0;
		*disk_sim_options(d) = options;
		assert_int_equal(d->ops->read(f, back, 4096, 0), 0);
		read_old += memcmp(back, buf, 4096) != 0;
		d->ops->close(f);
		f = must_open("a", 0); /* a caller that knows nothing of it */
		assert_int_equal(d->ops->sync(f), 0);
		d->ops->close(f);
		disk_power_loss(d);
		f = must_open("a", DISK_READ);
		assert_int_equal(d->ops->read(f, back, 4096, 0), 0);
		lost += memcmp(back, buf, 4096) != 0;
		d->ops->close(f);
	}
	assert_true(lost > 10 && read_old > 10);
	assert_int_equal(disk_fault_count(d, FAULT_SYNC_EIO), 60);
}

/* ---- Names ---- */

static void test_names_need_their_folder_synced(void **state)
{
	int kept = 0;

	(void)state;
	for (int run = 0; run < 60; run++) {
		char path[16];
		struct disk_file *f;

		snprintf(path, sizeof(path), "n%d", run);
		f = must_open(path, DISK_CREATE | DISK_EXCL);
		assert_int_equal(d->ops->write(f, "x", 1, 0), 0);
		assert_int_equal(d->ops->sync(f), 0);
		d->ops->close(f);
		disk_power_loss(d);
		kept += exists(path);
	}
	assert_true(kept > 5 && kept < 55);
	make_file("sure", 1, 1);
	disk_power_loss(d);
	assert_true(exists("sure"));
}

static void test_folder_changes_keep_their_order(void **state)
{
	int both = 0, first = 0, none = 0;

	(void)state;
	for (int run = 0; run < 100; run++) {
		char a[16], b[16];

		snprintf(a, sizeof(a), "a%d", run);
		snprintf(b, sizeof(b), "b%d", run);
		d->ops->close(must_open(a, DISK_CREATE));
		d->ops->close(must_open(b, DISK_CREATE));
		disk_power_loss(d);
		assert_false(exists(b) && !exists(a));
		both += exists(b);
		first += exists(a) && !exists(b);
		none += !exists(a);
	}
	assert_true(both > 5 && first > 5 && none > 5);
}

static void test_rename_is_whole_or_not(void **state)
{
	int moved = 0;

	(void)state;
	for (int run = 0; run < 60; run++) {
		assert_int_equal(d->ops->mkdir(d, "from"), 0);
		assert_int_equal(d->ops->mkdir(d, "to"), 0);
		make_file("from/x", 1, 10);
		assert_int_equal(d->ops->sync_dir(d, "from"), 0);
		assert_int_equal(d->ops->rename(d, "from/x", "to/x"), 0);
		assert_false(exists("from/x"));
		/* In half of the runs the syncing of one folder makes it stable in both. */
		if (run % 2)
			assert_int_equal(d->ops->sync_dir(d, run % 4 == 1 ? "to" : "from"), 0);
		disk_power_loss(d);
		assert_int_equal(exists("from/x") + exists("to/x"), 1);
		if (run % 2)
			assert_true(exists("to/x"));
		else
			moved += exists("to/x");
		if (exists("to/x"))
			assert_int_equal(d->ops->unlink(d, "to/x"), 0);
		assert_int_equal(d->ops->sync_dir(d, "to"), 0);
	}
	assert_true(moved > 3 && moved < 27);
}

static void test_a_folder_goes_with_its_parent(void **state)
{
	int gone = 0;

	(void)state;
	for (int run = 0; run < 40; run++) {
		char dir[16], path[32];

		snprintf(dir, sizeof(dir), "d%d", run);
		snprintf(path, sizeof(path), "%s/f", dir);
		assert_int_equal(d->ops->mkdir(d, dir), 0);
		assert_int_equal(d->ops->mkdir(d, dir), 0); /* there already: fine */
		d->ops->close(must_open(path, DISK_CREATE));
		assert_int_equal(d->ops->sync_dir(d, dir), 0);
		disk_power_loss(d);
		gone += !exists(path); /* its own folder was synced, the one above was not */
	}
	assert_true(gone > 5);
	assert_int_equal(d->ops->mkdir(d, "e/f"), -ENOENT);
	assert_int_equal(d->ops->mkdir(d, "e"), 0);
	d->ops->close(must_open("e/f", DISK_CREATE));
	assert_int_equal(d->ops->rmdir(d, "e"), -ENOTEMPTY);
	assert_int_equal(d->ops->unlink(d, "e/f"), 0);
	assert_int_equal(d->ops->rmdir(d, "e"), 0);
	assert_int_equal(d->ops->rmdir(d, "e"), -ENOENT);
}

static int count_names(void *arg, const char *name, bool is_dir)
{
	int *n = arg;

	assert_true(is_dir == (strcmp(name, "sub") == 0));
	return ++*n == 10 ? 77 : 0;
}

static void test_links_and_lists(void **state)
{
	struct disk_file *f, *g;
	uint64_t links;
	int n = 0;

	(void)state;
	make_file("x", 1, 10);
	assert_int_equal(d->ops->link(d, "x", "y"), 0);
	assert_int_equal(d->ops->link(d, "x", "y"), -EEXIST);
	assert_int_equal(d->ops->link(d, "z", "v"), -ENOENT);
	assert_int_equal(d->ops->mkdir(d, "sub"), 0);
	f = must_open("x", DISK_READ);
	assert_int_equal(d->ops->links(f, &links), 0);
	assert_int_equal(links, 2);
	assert_int_equal(d->ops->list(d, "", count_names, &n), 0);
	assert_int_equal(n, 3);
	n = 9;
	assert_int_equal(d->ops->list(d, "", count_names, &n), 77);
	assert_int_equal(d->ops->list(d, "x", count_names, &n), -ENOTDIR);
	assert_int_equal(d->ops->unlink(d, "x"), 0);
	assert_int_equal(d->ops->unlink(d, "y"), 0);
	assert_int_equal(d->ops->links(f, &links), 0);
	assert_int_equal(links, 0);
	assert_int_equal(d->ops->open(d, "x", DISK_READ, &g), -ENOENT);
	d->ops->close(f);
}

static void test_locks(void **state)
{
	struct disk_file *a, *b, *c;
	int fd;

	(void)state;
	make_file("x", 1, 10);
	a = must_open("x", 0);
	b = must_open("x", DISK_READ);
	c = must_open("x", DISK_READ);
	assert_int_equal(d->ops->lock(b, false), 0);
	assert_int_equal(d->ops->lock(c, false), 0);
	assert_int_equal(d->ops->lock(a, true), -EAGAIN);
	d->ops->close(b);
	fd = d->ops->export_fd(c);
	assert_true(fd >= 0);
	assert_int_equal(d->ops->lock(a, true), -EAGAIN);
	d->ops->close(c);
	assert_int_equal(d->ops->lock(a, true), 0); /* who has the descriptor dropped its lock */
	sim_fd_close(w, fd);
	assert_int_equal(d->ops->lock(a, true), 0);
	b = must_open("x", DISK_READ);
	assert_int_equal(d->ops->lock(b, false), -EAGAIN);
	assert_int_equal(d->ops->lock(a, false), 0); /* a weaker one in its place */
	assert_int_equal(d->ops->lock(b, false), 0);
	d->ops->close(a);
	d->ops->close(b);
	assert_int_equal(disk_open_files(d), 0);
}

static void test_leaks_are_seen(void **state)
{
	static const char *const a = "jobs/00000000000000000000000000000000/rank-0.shard";
	static const char *const b = "jobs/11111111111111111111111111111111/rank-0.shard";
	struct disk_file *f, *g;
	int fd;

	(void)state;
	assert_int_equal(d->ops->mkdir(d, "jobs"), 0);
	assert_int_equal(d->ops->mkdir(d, "spare"), 0);
	assert_int_equal(d->ops->mkdir(d, "jobs/00000000000000000000000000000000"), 0);
	assert_int_equal(d->ops->mkdir(d, "jobs/11111111111111111111111111111111"), 0);
	f = must_open(a, DISK_CREATE);
	assert_int_equal(d->ops->write(f, "x", 1, 0), 0);
	assert_int_equal(d->ops->rename(d, a, "spare/1"), 0);
	assert_int_equal(d->ops->rename(d, "spare/1", a), 0);
	g = must_open(a, DISK_READ);
	assert_null(disk_leak(d));
	fd = d->ops->export_fd(g);
	sim_fd_close(w, fd);
	assert_null(disk_leak(d));
	assert_int_equal(d->ops->write(f, "x", 1, 0), 0);
	assert_non_null(disk_leak(d));
	d->ops->close(g);
	d->ops->close(f);
	assert_int_equal(d->ops->rename(d, a, "spare/1"), 0);
	assert_int_equal(d->ops->rename(d, "spare/1", b), 0);
	assert_non_null(strstr(disk_leak(d), "another job"));
}

/* ---- Space and errors ---- */

static void test_space_runs_out_but_not_where_reserved(void **state)
{
	struct disk_file *f, *g;
	uint8_t buf[1000] = { 0 };
	uint64_t left, total;

	(void)state;
	disk_sim_options(d)->bytes = 8192;
	f = must_open("f", DISK_CREATE);
	g = must_open("g", DISK_CREATE);
	assert_int_equal(d->ops->allocate(f, 6000), 0);
	assert_int_equal(d->ops->allocate(g, 3000), -ENOSPC);
	assert_int_equal(d->ops->space(d, &left, &total), 0);
	assert_int_equal(total, 8192);
	assert_true(left < 8192 - 6000);
	assert_int_equal(d->ops->write(g, buf, 1000, 0), 0);
	assert_int_equal(d->ops->write(g, buf, 1000, 1000), -ENOSPC);
	for (int i = 0; i < 6; i++)
		assert_int_equal(d->ops->write(f, buf, 1000, 1000 * (uint64_t)i), 0);
	d->ops->close(f);
	assert_int_equal(d->ops->unlink(d, "f"), 0);
	assert_int_equal(d->ops->sync_dir(d, ""), 0);
	assert_int_equal(d->ops->write(g, buf, 1000, 1000), 0);
	d->ops->close(g);
}

static void test_damage_is_known_until_overwritten(void **state)
{
	struct disk_file *f;
	uint8_t buf[64], back[64];

	(void)state;
	memset(buf, 5, sizeof(buf));
	assert_int_equal(d->ops->mkdir(d, "c"), 0);
	make_file("c/rank-0.shard", 5, 64);
	make_file("c/rank-1.shard", 6, 64);
	assert_int_equal(disk_flip(d, "c/rank-0.shard", 8, 8), 0);
	assert_int_equal(disk_flip(d, "c/rank-9.shard", 8, 8), -ENOENT);
	assert_true(disk_is_damaged(d, "c/rank-0.shard"));
	f = must_open("c/rank-0.shard", 0);
	assert_int_equal(d->ops->read(f, back, 64, 0), 0);
	assert_memory_not_equal(back, buf, 64);
	assert_int_equal(d->ops->write(f, buf, 64, 0), 0);
	assert_false(disk_is_damaged(d, "c/rank-0.shard"));

	/* A write that loses its way: both places know it. */
	disk_sim_options(d)->one_in[CLASS_SHARD][FAULT_MISDIRECT] = 1;
	disk_sim_options(d)->budget[FAULT_MISDIRECT] = 1;
	memset(buf, 7, sizeof(buf));
	for (int i = 0; i < 2; i++)
		assert_int_equal(d->ops->write(f, buf, 64, 0), 0);
	assert_int_equal(disk_fault_count(d, FAULT_MISDIRECT), 1);
	assert_false(disk_is_damaged(d, "c/rank-0.shard")); /* the second write came through */
	d->ops->close(f);

	/* The atlas has no damage for a log, whatever is asked for. */
	disk_sim_options(d)->one_in[CLASS_LOG][FAULT_FLIP] = 1;
	disk_sim_options(d)->budget[FAULT_FLIP] = 100;
	assert_int_equal(d->ops->mkdir(d, "j"), 0);
	assert_int_equal(d->ops->mkdir(d, "j/log"), 0);
	make_file("j/log/0", 5, 64);
	f = must_open("j/log/0", DISK_READ);
	assert_int_equal(d->ops->read(f, back, 64, 0), 0);
	assert_int_equal(back[0], 5);
	d->ops->close(f);
	assert_int_equal(disk_fault_count(d, FAULT_FLIP), 0);
}

/* ---- The queue ---- */

#define IOS 6
static _Alignas(DISK_ALIGN) uint8_t pages[IOS][DISK_ALIGN];

static void test_queue_ends_in_any_order(void **state)
{
	int out_of_order = 0;

	(void)state;
	for (int run = 0; run < 20; run++) {
		struct disk_file *f = must_open("q", DISK_CREATE | DISK_DIRECT);
		struct disk_queue *q;
		struct disk_io ios[IOS + 1] = { 0 }, *io;
		unsigned next = 0;

		assert_int_equal(d->ops->queue_open(d, IOS, &q), 0);
		for (unsigned i = 0; i < IOS + 1; i++) {
			ios[i] = (struct disk_io){ .file = f, .buf = pages[i % IOS],
						   .length = DISK_ALIGN, .write = true,
						   .offset = i * DISK_ALIGN };
			memset(pages[i % IOS], (int)(i + 1), DISK_ALIGN);
			assert_int_equal(d->ops->submit(q, &ios[i]), i < IOS ? 0 : -EAGAIN);
		}
		for (unsigned i = 0; i < IOS; i++) {
			assert_int_equal(d->ops->reap(q, &io), 0);
			assert_int_equal(io->result, DISK_ALIGN);
			out_of_order += io != &ios[next++];
		}
		assert_int_equal(d->ops->reap(q, &io), 0);
		assert_null(io);
		ios[0].write = false;
		ios[0].offset = (IOS - 1) * DISK_ALIGN;
		assert_int_equal(d->ops->submit(q, &ios[0]), 0);
		assert_int_equal(d->ops->reap(q, &io), 0);
		assert_int_equal(io->result, DISK_ALIGN);
		assert_int_equal(pages[0][5], IOS);
		d->ops->queue_close(q);
		d->ops->close(f);
	}
	assert_true(out_of_order > 20);
}

/* ---- Publish, right and wrong ---- */

enum {
	SKIP_DATA_SYNC = 1,   /* COMMIT may name bytes that are not there */
	SKIP_COMMIT_SYNC = 2, /* COMMIT may be empty */
	SKIP_SHARD_DIR = 4,   /* COMMIT may stand alone */
	SKIP_COMMIT_DIR = 8,  /* reported before the rename is stable */
	SKIP_PARENT_DIR = 16, /* the whole folder may go */
	COMMIT_FIRST = 32,    /* the commit is written before what it commits */
	IGNORE_EIO = 64,      /* a failed sync is taken for success */
};

#define VERSIONS 3
#define FILE_BYTES 2048

struct publish {
	unsigned wrong;
	uint64_t reported; /* newest version whose publish returned */
	bool faults;
};

static int write_all(const char *path, const void *bytes, size_t len, bool sync)
{
	struct disk_file *f;
	int r = d->ops->open(d, path, DISK_CREATE, &f);

	if (r < 0)
		return r;
	for (size_t at = 0; at < len && r == 0; at += 1024)
		r = d->ops->write(f, (const uint8_t *)bytes + at, len - at < 1024 ? len - at : 1024,
				  at);
	if (r == 0 && sync)
		r = d->ops->sync(f);
	d->ops->close(f);
	return r;
}

static int publish_commit(const struct publish *p, unsigned v, const uint8_t *data)
{
	char dir[16], temporary[32], final[32];
	uint64_t digest[2] = { v, world_digest(data, FILE_BYTES) };
	int r;

	snprintf(dir, sizeof(dir), "v%u", v);
	snprintf(temporary, sizeof(temporary), "v%u/COMMIT.new", v);
	snprintf(final, sizeof(final), "v%u/COMMIT", v);
	r = write_all(temporary, digest, sizeof(digest), !(p->wrong & SKIP_COMMIT_SYNC));
	if (r == 0)
		r = d->ops->rename(d, temporary, final);
	if (r == 0 && !(p->wrong & SKIP_COMMIT_DIR))
		r = d->ops->sync_dir(d, dir);
	return r;
}

static int publish_data(const struct publish *p, unsigned v, const uint8_t *data)
{
	char dir[16], path[32];
	int r;

	snprintf(dir, sizeof(dir), "v%u", v);
	snprintf(path, sizeof(path), "v%u/rank-0.shard", v);
	r = write_all(path, data, FILE_BYTES, !(p->wrong & SKIP_DATA_SYNC));
	if (r == -EIO && (p->wrong & IGNORE_EIO))
		r = 0;
	if (r == 0 && !(p->wrong & SKIP_SHARD_DIR))
		r = d->ops->sync_dir(d, dir);
	return r;
}

static int publish_one(const struct publish *p, unsigned v)
{
	uint8_t data[FILE_BYTES];
	char dir[16];
	int r;

	test_fill(data, sizeof(data), v);
	snprintf(dir, sizeof(dir), "v%u", v);
	r = d->ops->mkdir(d, dir);
	if (r == 0 && (p->wrong & COMMIT_FIRST))
		r = publish_commit(p, v, data);
	if (r == 0)
		r = publish_data(p, v, data);
	if (r == 0 && !(p->wrong & COMMIT_FIRST))
		r = publish_commit(p, v, data);
	if (r == 0 && !(p->wrong & SKIP_PARENT_DIR))
		r = d->ops->sync_dir(d, "");
	return r;
}

static void publish_main(void *arg)
{
	struct publish *p = arg;

	for (unsigned v = 1; v <= VERSIONS; v++) {
		if (publish_one(p, v) == 0)
			p->reported = v;
	}
}

static bool read_all(const char *path, void *buf, size_t len)
{
	struct disk_file *f;
	bool good;

	if (d->ops->open(d, path, DISK_READ, &f) < 0)
		return false;
	good = d->ops->read(f, buf, len, 0) == 0;
	d->ops->close(f);
	return good;
}

/* What a version is after the crash: -1 wrong, 0 not there, 1 there. */
static int judge(unsigned v)
{
	char path[32];
	uint64_t digest[2];
	uint8_t data[FILE_BYTES], want[FILE_BYTES];

	snprintf(path, sizeof(path), "v%u/COMMIT", v);
	if (!exists(path))
		return 0;
	if (!read_all(path, digest, sizeof(digest)))
		return -1;
	snprintf(path, sizeof(path), "v%u/rank-0.shard", v);
	test_fill(want, sizeof(want), v);
	if (!read_all(path, data, sizeof(data)) || memcmp(data, want, sizeof(data)) != 0)
		return -1;
	return digest[1] == world_digest(want, sizeof(want)) ? 1 : -1;
}

/* One seed: runs, crashes at a random step, looks. True: something that must not be. */
static bool publish_breaks(uint64_t seed, unsigned wrong, bool faults)
{
	struct publish p = { .wrong = wrong };
	struct life_options o = { .name = "publisher" };
	struct life *l;
	bool bad = false;

	w = world_new(seed);
	disk_options_default(&options);
	options.sector = 64u << world_random(w, 4);
	for (int c = 0; faults && c < DISK_CLASSES; c++) {
		options.one_in[c][FAULT_SYNC_EIO] = options.one_in[c][FAULT_WRITE_EIO] = 20;
		options.one_in[c][FAULT_NAME_EIO] = options.one_in[c][FAULT_NO_SPACE] = 40;
	}
	for (int f = 0; f < DISK_FAULTS; f++)
		options.budget[f] = 2;
	d = disk_sim_new(w, &options);
	w->crash_at_op = 1 + world_random(w, 16 * VERSIONS);
	l = life_start(w, &o, publish_main, &p);
	world_run(w, UINT64_MAX, NULL, NULL);
	life_free(l);
	disk_power_loss(d);
	memset(disk_sim_options(d)->one_in, 0, sizeof(options.one_in));
	for (unsigned v = 1; v <= VERSIONS; v++)
		bad |= judge(v) < 0 && (v <= p.reported || !faults);
	/* With faults a version in the middle may have failed: only the newest counts. */
	bad |= p.reported && judge((unsigned)p.reported) != 1;
	disk_sim_free(d);
	world_free(w);
	return bad;
}

static void test_right_publish_never_breaks(void **state)
{
	uint64_t first = test_seed(1), n = test_cap("CKPT_SIM_SEEDS", 4000);

	(void)state;
	for (uint64_t seed = first; seed < first + n; seed++) {
		if (publish_breaks(seed, 0, false) || publish_breaks(seed, 0, true))
			fail_msg("seed %llu breaks the right protocol", (unsigned long long)seed);
	}
}

static void test_wrong_publish_is_found(void **state)
{
	static const struct {
		unsigned wrong;
		bool faults;
		const char *what;
	} all[] = {
		{ SKIP_DATA_SYNC, false, "no sync of the data" },
		{ SKIP_COMMIT_SYNC, false, "no sync of COMMIT" },
		{ SKIP_SHARD_DIR | SKIP_COMMIT_DIR, false, "no sync of the folder" },
		{ SKIP_COMMIT_DIR, false, "no sync of the folder after the rename" },
		{ SKIP_PARENT_DIR, false, "no sync of the parent" },
		{ COMMIT_FIRST, false, "commit before data" },
		{ IGNORE_EIO, true, "a failed sync ignored" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		uint64_t seed = 1;

		while (seed <= 500 && !publish_breaks(seed, all[i].wrong, all[i].faults))
			seed++;
		printf("%s: found by seed %llu\n", all[i].what, (unsigned long long)seed);
		assert_true(seed <= 500);
	}
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		T(test_unsynced_sectors_are_lost_one_by_one),
		T(test_synced_bytes_stay),
		T(test_size_is_one_of_those_it_had),
		T(test_failed_sync_loses_for_good),
		T(test_names_need_their_folder_synced),
		T(test_folder_changes_keep_their_order),
		T(test_rename_is_whole_or_not),
		T(test_a_folder_goes_with_its_parent),
		T(test_links_and_lists),
		T(test_leaks_are_seen),
		T(test_locks),
		T(test_space_runs_out_but_not_where_reserved),
		T(test_damage_is_known_until_overwritten),
		T(test_queue_ends_in_any_order),
		cmocka_unit_test(test_right_publish_never_breaks),
		cmocka_unit_test(test_wrong_publish_is_found),
	};
#undef T
	int r = cmocka_run_group_tests_name("sim disk", tests, NULL, NULL);

	fiber_pool_free();
	return r;
}
