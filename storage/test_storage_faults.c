/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_storage_faults.c - a life of a data folder in which everything fails in turn: each call of
 * the disk, each allocation, each fault point by error and by SIGKILL; once and from then on,
 * until a run passes without a fault. After each: reopen; every checkpoint that was reported
 * durable, and every one whose COMMIT is there, is right bit for bit; then the same life succeeds.
 * And: the order of syncs, with the planted bugs that break it.
 */
#include <config.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "codec/digest.h"
#include "storage/disk_posix.h"
#include "storage/spare.h"
#include "storage/test_faulty_disk.h"
#include "storage/test_fixture.h"
#include "tests/lib/test.h"

#define STEPS 6
#define WORLD 2

static const struct geometry small = { .leaf = 4096, .chunk = 16384 };

/* What the caller was told; kept across processes by the pipe of run_life(). */
struct told {
	bool durable[STEPS]; /* publish returned 0 */
	bool leaving[STEPS]; /* expire was called */
	int failures;
};

struct life {
	struct image images[STEPS][WORLD];
	struct told told;
	int pipe; /* >= 0: told goes there at once, in a child that will be killed */
};

static void life_init(struct life *l)
{
	memset(l, 0, sizeof(*l));
	l->pipe = -1;
	for (int s = 0; s < STEPS; s++)
		for (uint32_t r = 0; r < WORLD; r++)
			l->images[s][r] = image_make(small, 40000 + 3000 * r, r, WORLD,
						     (uint64_t)(s * WORLD) + r, 2);
}

static void life_fini(struct life *l)
{
	for (int s = 0; s < STEPS; s++)
		for (int r = 0; r < WORLD; r++)
			image_free(&l->images[s][r]);
}

static void tell(struct life *l)
{
	if (l->pipe >= 0 && write(l->pipe, &l->told, sizeof(l->told)) != sizeof(l->told))
		_exit(99);
}

static void count(struct life *l, int r)
{
	if (r < 0)
		l->told.failures++;
}

static void save(struct folder *f, struct life *l, uint64_t step)
{
	struct checkpoint_id id = test_id(step);
	int r = write_checkpoint(f, &id, l->images[step], WORLD, NULL);

	count(l, r);
	l->told.durable[step] = r == 0;
	tell(l);
}

static void expire(struct folder *f, struct life *l, uint64_t step)
{
	struct checkpoint_id id = test_id(step);

	l->told.leaving[step] = true;
	tell(l);
	count(l, checkpoint_expire(&f->store, &id, UINT64_MAX, NULL));
}

/* Whatever fails, the rest is tried: as a daemon does. */
static void live(struct folder *f, struct life *l)
{
	struct digest name = digest_of("object", 6);
	struct checkpoint_id left = test_id(5);
	struct shard_footer line;
	int64_t bad;

	save(f, l, 0);
	save(f, l, 1);
	expire(f, l, 0);
	save(f, l, 2); /* from spare/ */
	count(l, store_put_object(&f->store, "layouts", &name, "object", 6, NULL));
	count(l, write_shard(f, &left, &l->images[5][0], &line, NULL));
	count(l, checkpoint_discard(&f->store, &left, NULL));
	expire(f, l, 1);
	save(f, l, 3);
	count(l, spare_clear(&f->store, NULL));
	for (uint64_t step = 0; step < STEPS; step++) {
		struct checkpoint_id id = test_id(step);

		bad = verify_checkpoint(&f->store, &id, NULL, 0, NULL);
		if (bad < 0 && bad != CKPT_ENOTFOUND)
			l->told.failures++;
	}
	save(f, l, 4);
}

/* Opens the store over d and lives; the folder's own store is closed. */
static void live_over(struct folder *f, struct disk *d, struct life *l)
{
	struct folder over = { .dir = f->dir, .real = d };

	if (store_open(d, &fixture_options, &over.store, NULL) < 0) {
		l->told.failures++;
		return;
	}
	if (d->ops->queue_open(d, QUEUE_DEPTH, &over.queue) == 0) {
		live(&over, l);
		d->ops->queue_close(over.queue);
	} else {
		l->told.failures++;
	}
	store_close(&over.store);
}

/* ---- What must hold afterwards ---- */

static int discard_leftover(void *arg, const struct checkpoint_id *id,
			    const struct commit_file *commit, const struct err *why)
{
	struct folder *f = arg;
	struct err e = { 0 };

	if (!commit) {
		assert_int_equal(why->code, CKPT_ENOTFOUND); /* never a damaged COMMIT */
		if (checkpoint_discard(&f->store, id, &e) < 0)
			fail_msg("%s", e.text);
	}
	return 0;
}

static void check_afterwards(struct folder *real, struct life *l)
{
	struct job_id job = test_id(0).job;
	struct folder over, *f = &over;
	struct faulty_disk quiet; /* only for its syncs that cost nothing */
	struct err e = { 0 };
	int r;

	faulty_disk_init(&quiet, real->real);
	over = (struct folder){ .dir = real->dir, .real = &quiet.base };
	folder_open_store(f);
	r = store_each_checkpoint(&f->store, &job, discard_leftover, f, &e);
	if (r < 0 && r != -ENOENT) /* no job's folder yet */
		fail_msg("%s", e.text);
	for (uint64_t step = 0; step < STEPS; step++) {
		struct checkpoint_id id = test_id(step);
		struct commit_file c = { 0 };

		r = commit_read(&f->store, &id, &c, &e);
		commit_file_fini(&c);
		if (r == CKPT_ENOTFOUND && (!l->told.durable[step] || l->told.leaving[step]))
			continue;
		if (r < 0 || read_checkpoint(&f->store, &id, l->images[step], &e) < 0)
			fail_msg("step %llu was%s durable: %s", (unsigned long long)step,
				 l->told.durable[step] ? "" : " not", e.text);
		assert_int_equal(verify_checkpoint(&f->store, &id, NULL, 0, &e), 0);
		/* Room for the second life. */
		if (checkpoint_expire(&f->store, &id, UINT64_MAX, &e) < 0)
			fail_msg("%s", e.text);
	}
	if (spare_clear(&f->store, &e) < 0)
		fail_msg("%s", e.text);
	folder_close_store(f);
}

static void check_second_life(struct folder *f, struct life *l)
{
	struct faulty_disk quiet;

	memset(&l->told, 0, sizeof(l->told));
	faulty_disk_init(&quiet, f->real);
	live_over(f, &quiet.base, l);
	assert_int_equal(l->told.failures, 0);
	check_afterwards(f, l);
	memset(&l->told, 0, sizeof(l->told));
}

/* ---- Sweeps ---- */

/* From one site to the next: all of them, unless fewer of each thousand are asked for. */
static uint64_t stride(void)
{
	uint64_t of_thousand = test_cap("CKPT_SWEEP_SITES", 1000);

	assert_in_range(of_thousand, 1, 1000);
	return 1000 / of_thousand;
}

/* Where the next sweep begins: each one of the program at another site, so that together they come
 * to all of them. */
static uint64_t first_site(void)
{
	static uint64_t sweeps;

	return 1 + sweeps++ % stride();
}

/* Each call of the disk. */
static void sweep_calls(struct folder *f, struct life *l, int error, bool persistent)
{
	uint64_t n, sites = 0;

	for (n = first_site();; n += stride(), sites++) {
		struct faulty_disk faulty;

		faulty_disk_init(&faulty, f->real);
		faulty.fail_at = n;
		faulty.persistent = persistent;
		faulty.error = error;
		live_over(f, &faulty.base, l);
		check_afterwards(f, l);
		if (sites % 8 == 0 || !faulty.fired)
			check_second_life(f, l);
		memset(&l->told, 0, sizeof(l->told));
		if (!faulty.fired)
			break;
	}
	assert_true(n > 100);
	print_message("%s, %s, %s: %llu calls of the disk failed in turn\n", fixture_backend,
		      strerrorname_np(error), persistent ? "from then on" : "once",
		      (unsigned long long)sites);
}

static void test_every_call_fails(void **state)
{
	struct folder *f = *state;
	struct life l;

	life_init(&l);
	folder_close_store(f);
	sweep_calls(f, &l, EIO, false);
	if (!fixture_options.compression) {
		sweep_calls(f, &l, EIO, true);
		sweep_calls(f, &l, ENOSPC, false); /* completions are short instead */
	}
	folder_open_store(f);
	life_fini(&l);
}

static void test_every_allocation_fails(void **state)
{
	struct folder *f = *state;
	uint64_t n, sites;
	struct life l;

#ifndef CKPT_FAULTS
	skip();
#endif
	life_init(&l);
	folder_close_store(f);
	for (int persistent = 0; persistent < 2; persistent++) {
		for (n = first_site(), sites = 0;; n += stride(), sites++) {
			struct faulty_disk quiet;
			bool fired;

			faulty_disk_init(&quiet, f->real);
			alloc_fail_at(n, persistent);
			live_over(f, &quiet.base, &l);
			fired = alloc_fired();
			alloc_fail_at(0, false);
			check_afterwards(f, &l);
			if (sites % 8 == 0 || !fired)
				check_second_life(f, &l);
			memset(&l.told, 0, sizeof(l.told));
			if (!fired)
				break;
		}
		assert_true(n > 50);
		print_message("%s, %s: %llu allocations failed in turn\n", fixture_backend,
			      persistent ? "from then on" : "once", (unsigned long long)sites);
	}
	folder_open_store(f);
	life_fini(&l);
}

static const enum fault_point points[] = {
	FAULT_PUBLISH_TEMP,    FAULT_PUBLISH_SYNC,   FAULT_PUBLISH_RENAME,
	FAULT_SHARD_NAMED,     FAULT_SHARD_ALLOCATED, FAULT_SHARD_DATA,
	FAULT_SHARD_FOOTER,    FAULT_SHARD_HEADER,   FAULT_SHARD_SYNC,
	FAULT_COMMIT_FOLDER,   FAULT_COMMIT_NAMED,   FAULT_COMMIT_DIR,
	FAULT_COMMIT_PARENT,   FAULT_EXPIRE_COMMIT_GONE, FAULT_EXPIRE_DECIDED,
	FAULT_EXPIRE_SHARD,    FAULT_EXPIRE_FOLDER,  FAULT_SPARE_MOVED,
	FAULT_SPARE_ZEROED,    FAULT_SPARE_TAKEN,
};
#define POINTS (sizeof(points) / sizeof(points[0]))

/* A compressed file gives its space back and is too small for the next one's reservation. */
static bool is_passed(enum fault_point p)
{
	return p != FAULT_SPARE_TAKEN || !fixture_options.compression;
}

/* In a child that is killed at the n-th hit of the point; false when it lived to its end. */
static bool live_and_die(struct folder *f, struct life *l, enum fault_point point, uint64_t n)
{
	struct faulty_disk quiet;
	int fds[2], status = 0;
	struct told told;
	pid_t pid;

	assert_int_equal(pipe(fds), 0);
	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		l->pipe = fds[1];
		fault_disarm_all();
		fault_arm(point, FAULT_KILL, n, false);
		faulty_disk_init(&quiet, f->real);
		live_over(f, &quiet.base, l);
		_exit(0);
	}
	close(fds[1]);
	while (read(fds[0], &told, sizeof(told)) == sizeof(told))
		l->told = told;
	close(fds[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status)) {
		assert_int_equal(WEXITSTATUS(status), 0);
		return false;
	}
	assert_int_equal(WTERMSIG(status), SIGKILL);
	return true;
}

static void test_killed_at_every_point(void **state)
{
	struct folder *f = *state;
	unsigned kills = 0;
	struct life l;

#ifndef CKPT_FAULTS
	skip();
#endif
	life_init(&l);
	folder_close_store(f);
	for (size_t i = 0; i < POINTS; i++) {
		uint64_t n = 1;

		while (live_and_die(f, &l, points[i], n)) {
			check_afterwards(f, &l);
			if (n == 1)
				check_second_life(f, &l);
			memset(&l.told, 0, sizeof(l.told));
			kills++;
			n++;
		}
		check_afterwards(f, &l);
		memset(&l.told, 0, sizeof(l.told));
		if (n == 1 && is_passed(points[i]))
			fail_msg("%s was never passed", fault_name(points[i]));
	}
	print_message("%s: killed %u times at %zu points\n", fixture_backend, kills, POINTS);
	folder_open_store(f);
	life_fini(&l);
}

static void test_error_at_every_point(void **state)
{
	struct folder *f = *state;
	struct life l;

#ifndef CKPT_FAULTS
	skip();
#endif
	life_init(&l);
	folder_close_store(f);
	for (size_t i = 0; i < 2 * POINTS; i++) {
		struct faulty_disk quiet;

		faulty_disk_init(&quiet, f->real);
		fault_disarm_all();
		fault_arm(points[i / 2], FAULT_ERROR, 1, i % 2);
		live_over(f, &quiet.base, &l);
		assert_int_equal(fault_hits(points[i / 2]) > 0, is_passed(points[i / 2]));
		fault_disarm_all();
		check_afterwards(f, &l);
		check_second_life(f, &l);
	}
	folder_open_store(f);
	life_fini(&l);
}

/* ---- The order of syncs ---- */

static bool ends_with(const char *text, const char *end)
{
	size_t n = strlen(text), m = strlen(end);

	return n >= m && strcmp(text + n - m, end) == 0;
}

/* Index of the last event before `before` of that kind and path, or -1. */
static long last(const struct faulty_disk *d, size_t before, char what, const char *path)
{
	for (size_t i = before; i-- > 0;)
		if (d->events[i].what == what && strcmp(d->events[i].path, path) == 0)
			return (long)i;
	return -1;
}

/* Writes one checkpoint; whether the durable order of design 7 was kept. */
static bool order_is_kept(struct folder *f, struct life *l, uint64_t step)
{
	struct checkpoint_id id = test_id(step);
	char folder[DISK_PATH_MAX + 1], commit[DISK_PATH_MAX + 1], job[DISK_PATH_MAX + 1];
	struct faulty_disk d;
	long named = -1, dir, parent;
	bool kept = true;

	faulty_disk_init(&d, f->real);
	d.max_events = 10000;
	d.events = calloc(d.max_events, sizeof(*d.events));
	{
		struct folder over = { .dir = f->dir, .real = &d.base };

		assert_int_equal(store_open(&d.base, &fixture_options, &over.store, NULL), 0);
		assert_int_equal(d.base.ops->queue_open(&d.base, QUEUE_DEPTH, &over.queue), 0);
		d.n_events = 0;
		assert_int_equal(write_checkpoint(&over, &id, l->images[step], WORLD, NULL), 0);
		d.base.ops->queue_close(over.queue);
		store_close(&over.store);
	}
	path_checkpoint(folder, &id);
	path_commit(commit, &id);
	path_job(job, &id.job);
	named = last(&d, d.n_events, 'r', commit);
	assert_true(named > 0);
	for (size_t i = 0; i < (size_t)named; i++) {
		const char *path = d.events[i].path;

		if (d.events[i].what == 'w' && last(&d, (size_t)named, 's', path) < (long)i)
			kept = false; /* bytes that COMMIT names are not synced */
		if (d.events[i].what == 'o' && ends_with(path, ".shard") &&
		    last(&d, (size_t)named, 'd', folder) < (long)i)
			kept = false; /* nor is the file's name */
	}
	dir = last(&d, d.n_events, 'd', folder);
	parent = last(&d, d.n_events, 'd', job);
	if (dir < named || parent < named)
		kept = false;
	free(d.events);
	return kept;
}

static void test_order_of_syncs(void **state)
{
	struct folder *f = *state;
	struct life l;

	life_init(&l);
	folder_close_store(f);
	assert_true(order_is_kept(f, &l, 0));
#ifdef CKPT_FAULTS
	bug_set(BUG_SKIP_SHARD_SYNC, true);
	assert_false(order_is_kept(f, &l, 1));
	bug_set(BUG_SKIP_SHARD_SYNC, false);
	bug_set(BUG_SKIP_COMMIT_DIR_SYNC, true);
	assert_false(order_is_kept(f, &l, 2));
	bug_set(BUG_SKIP_COMMIT_DIR_SYNC, false);
	assert_true(order_is_kept(f, &l, 3));
#endif
	folder_open_store(f);
	life_fini(&l);
}

/* Files change only after the end of COMMIT is durable. */
static void test_order_of_expiry(void **state)
{
	struct folder *f = *state;
	struct checkpoint_id id = test_id(0);
	char folder[DISK_PATH_MAX + 1];
	struct life l;

	life_init(&l);
	path_checkpoint(folder, &id);
	for (int bug = 0; bug < 2; bug++) {
		struct faulty_disk d;
		bool kept;

#ifndef CKPT_FAULTS
		if (bug)
			break;
#endif
		assert_int_equal(write_checkpoint(f, &id, l.images[0], WORLD, NULL), 0);
		faulty_disk_init(&d, f->real);
		d.max_events = 1000;
		d.events = calloc(d.max_events, sizeof(*d.events));
		f->store.disk = &d.base;
		bug_set(BUG_SKIP_EXPIRE_SYNC, bug);
		assert_int_equal(checkpoint_expire(&f->store, &id, UINT64_MAX, NULL), 0);
		bug_set(BUG_SKIP_EXPIRE_SYNC, false);
		f->store.disk = f->real;
		assert_int_equal(d.events[0].what, 'u');
		kept = d.events[1].what == 'd' && strcmp(d.events[1].path, folder) == 0;
		assert_int_equal(kept, !bug);
		free(d.events);
	}
	life_fini(&l);
}

#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_set_up, folder_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_FOLDER(test_order_of_syncs),
		WITH_FOLDER(test_order_of_expiry),
		WITH_FOLDER(test_every_call_fails),
		WITH_FOLDER(test_every_allocation_fails),
		WITH_FOLDER(test_error_at_every_point),
		WITH_FOLDER(test_killed_at_every_point),
	};
	const char *const backends[] = { "threads", "uring" };
	int failed = 0;

	/* Thousands of lives, and none of them needs a disk that outlives the power. */
	if (!getenv("TMPDIR") && access("/dev/shm", W_OK) == 0)
		fixture_parent = "/dev/shm";
	fixture_options = (struct store_options){ .geometry = small, .transfer = 8192 };
	for (int b = 0; b < 2; b++) {
		struct err why = { 0 };

		fixture_backend = backends[b];
		if (b == 1 && !disk_uring_usable(&why)) {
			printf("skip uring %s\n", why.text);
			break;
		}
		failed += cmocka_run_group_tests_name(backends[b], tests, NULL, NULL);
	}
	fixture_options.compression = 1;
	failed += cmocka_run_group_tests_name("compressed", tests, NULL, NULL);
	return failed != 0;
}
