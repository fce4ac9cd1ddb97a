/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_staging.c - a tool's life in incoming/ in which everything fails in turn: each call of the
 * disk and each allocation, once and from then on, until a run passes without a fault. It makes
 * three jobs: one is published, one published and withdrawn, one taken away.
 *
 * After each life: a job is in one place or in none; in jobs/ it is all there, bit for bit; what
 * the tool was told is so; whatever ended in the middle can be repeated; and once all is taken away
 * the same life succeeds. What a failure leaves when it comes once is made good by the tool itself,
 * which tries again.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "storage/disk_posix.h"
#include "storage/staging.h"
#include "storage/test_faulty_disk.h"
#include "storage/test_fixture.h"
#include "tests/lib/test.h"

#define WORLD             2
/* In a life; what fired less often has left something out. */
#define CALLS_LEAST       150 /* of the disk */
#define ALLOCATIONS_LEAST 60

enum { PUBLISHED, WITHDRAWN, REMOVED, JOBS };

static const struct geometry small = {.leaf = 4096, .chunk = 16384};

struct life {
	struct image images[JOBS][WORLD];
	bool whole[JOBS]; /* COMMIT was reported durable */
	bool done[JOBS];  /* so was what was to become of the job */
	int failures;     /* after a second try */
};

static struct checkpoint_id id_of(int job)
{
	struct checkpoint_id id = test_id(3);

	id.job.b[0] = (uint8_t)(1 + job);
	return id;
}

static void life_init(struct life *l)
{
	memset(l, 0, sizeof(*l));
	for (int j = 0; j < JOBS; j++)
		for (uint32_t r = 0; r < WORLD; r++)
			l->images[j][r] = image_make(small, 20000 + 3000 * r, r, WORLD,
						     (uint64_t)(j * WORLD) + r, 2);
}

static void life_fini(struct life *l)
{
	for (int j = 0; j < JOBS; j++)
		for (int r = 0; r < WORLD; r++)
			image_free(&l->images[j][r]);
}

static void forget(struct life *l)
{
	memset(l->whole, 0, sizeof(l->whole));
	memset(l->done, 0, sizeof(l->done));
	l->failures = 0;
}

/* The folder's own store, and the tool's, on which jobs/ is incoming/. */
struct stores {
	struct folder over;
	struct staging_disk disk;
	struct store staged;
};

static int stores_open(struct stores *s, struct folder *f, struct disk *d)
{
	int r;

	*s = (struct stores){.over = {.dir = f->dir, .real = d}};
	r = store_open(d, &fixture_options, &s->over.store, NULL);
	if (r < 0)
		return r;
	r = d->ops->queue_open(d, QUEUE_DEPTH, &s->over.queue);
	if (r < 0) {
		store_close(&s->over.store);
		return r;
	}
	staging_disk_init(&s->disk, d);
	s->staged = (struct store){.disk = &s->disk.base,
				   .geometry = fixture_options.geometry,
				   .transfer = fixture_options.transfer};
	return 0;
}

static void stores_close(struct stores *s)
{
	s->over.real->ops->queue_close(s->over.queue);
	store_close(&s->over.store);
}

/* ---- A life ---- */

/* Its .making, locked as long as it is open. */
static int begin(struct store *s, const struct job_id *job, struct disk_file **ret)
{
	const struct disk_ops *ops = s->disk->ops;
	char path[DISK_PATH_MAX + 1];
	int r;

	path_making(path, job);
	r = ops->open(s->disk, path, DISK_CREATE, ret);
	if (r < 0)
		return r;
	r = ops->lock(*ret, true);
	if (r < 0) {
		ops->close(*ret);
		*ret = NULL;
	}
	return r;
}

struct look {
	struct job_id job;
	unsigned busy;
};

static int find_busy(void *arg, const struct staged *found)
{
	struct look *look = arg;

	if (job_id_equal(&found->job, &look->job))
		look->busy += found->folder && found->making && found->busy;
	return 0;
}

static int end_as(int job, struct store *s)
{
	struct checkpoint_id id = id_of(job);
	int r;

	if (job == REMOVED)
		return staging_remove(s, &id.job, NULL);
	r = staging_publish(s, &id.job, NULL);
	return r == 0 && job == WITHDRAWN ? staging_withdraw(s, &id.job) : r;
}

/* (I10) What failed for once is asked for again. */
static void make_one(struct stores *s, struct life *l, int job)
{
	struct checkpoint_id id = id_of(job);
	struct disk_file *making = NULL;
	struct store *real = &s->over.store;
	struct look look = {.job = id.job};
	int r = staging_make_folder(real, NULL);

	if (r == 0)
		r = begin(real, &id.job, &making);
	if (r == 0)
		r = write_checkpoint_of(&s->over, &s->staged, &id, l->images[job], WORLD, NULL);
	l->whole[job] = r == 0;
	if (r == 0) {
		r = staging_each(real, find_busy, &look, NULL);
		assert_int_equal(look.busy, r == 0);
		l->failures += r < 0;
		r = end_as(job, real);
		if (r < 0)
			r = end_as(job, real);
		l->done[job] = r == 0;
	} else if (staging_remove(real, &id.job, NULL) < 0 &&
		   staging_remove(real, &id.job, NULL) < 0) {
		l->failures++;
	}
	if (making)
		making->disk->ops->close(making);
	l->failures += r < 0;
}

static void live_over(struct folder *f, struct disk *d, struct life *l)
{
	struct stores s;

	if (stores_open(&s, f, d) < 0) {
		l->failures++;
		return;
	}
	for (int job = 0; job < JOBS; job++)
		make_one(&s, l, job);
	stores_close(&s);
}

/* ---- What must hold afterwards ---- */

static bool is_there(struct folder *f, const char *path)
{
	char whole[512];

	snprintf(whole, sizeof(whole), "%s/%s", f->dir, path);
	return access(whole, F_OK) == 0;
}

static void expect_whole(struct store *s, struct life *l, int job)
{
	struct checkpoint_id id = id_of(job);
	struct err e = {0};

	if (read_checkpoint(s, &id, l->images[job], &e) < 0)
		fail_msg("job %d: %s", job, e.text);
}

static void check_one(struct stores *s, struct life *l, int job)
{
	struct checkpoint_id id = id_of(job);
	struct store *real = &s->over.store;
	char staged[DISK_PATH_MAX + 1], published[DISK_PATH_MAX + 1], making[DISK_PATH_MAX + 1];
	struct commit_file c = {0};
	struct err e = {0};
	bool in, out;
	int r;

	path_staged(staged, &id.job);
	path_job(published, &id.job);
	path_making(making, &id.job);
	in = is_there(&s->over, staged);
	out = is_there(&s->over, published);
	assert_false(in && out);
	if (l->done[job]) {
		assert_int_equal(out, job == PUBLISHED);
		assert_int_equal(in, job == WITHDRAWN);
		assert_int_equal(is_there(&s->over, making), job != REMOVED);
	} else if (l->whole[job] && job != REMOVED) {
		assert_true(in || out);
	}
	if (out)
		expect_whole(real, l, job);
	/* One that has its COMMIT gets into jobs/, and comes back from there. */
	r = commit_read(in ? &s->staged : real, &id, &c, &e);
	commit_file_fini(&c);
	assert_true(r == 0 || !l->whole[job] || !(in || out)); /* all of it or nothing */
	if (r != CKPT_ENOTFOUND) {
		assert_int_equal(r, 0);
		assert_int_equal(staging_publish(real, &id.job, &e), 0);
		expect_whole(real, l, job);
		assert_int_equal(staging_withdraw(real, &id.job), 0);
		expect_whole(&s->staged, l, job);
	}
	if (staging_remove(real, &id.job, &e) < 0)
		fail_msg("%s", e.text);
	assert_false(is_there(&s->over, staged) || is_there(&s->over, published) ||
		     is_there(&s->over, making));
}

static int none(void *arg, const struct staged *found)
{
	(void)arg;
	fail_msg("something is left in incoming/: folder %d, making %d", found->folder,
		 found->making);
	return 0;
}

static void check_afterwards(struct folder *f, struct life *l)
{
	struct faulty_disk quiet; /* only for its syncs that cost nothing */
	struct err e = {0};
	struct stores s;

	faulty_disk_init(&quiet, f->real);
	assert_int_equal(stores_open(&s, f, &quiet.base), 0);
	for (int job = 0; job < JOBS; job++)
		check_one(&s, l, job);
	if (staging_each(&s.over.store, none, NULL, &e) < 0)
		fail_msg("%s", e.text);
	stores_close(&s);
	forget(l);
}

static void check_second_life(struct folder *f, struct life *l)
{
	struct faulty_disk quiet;

	faulty_disk_init(&quiet, f->real);
	live_over(f, &quiet.base, l);
	assert_int_equal(l->failures, 0);
	for (int job = 0; job < JOBS; job++)
		assert_true(l->whole[job] && l->done[job]);
	check_afterwards(f, l);
}

/* ---- Sweeps ---- */

/* A fault that came once may cost the job that was being made, and nothing that is asked twice. */
static void expect_made_good(const struct life *l)
{
	for (int job = 0; job < JOBS; job++)
		assert_true(l->done[job] || !l->whole[job]);
}

static void sweep_calls(struct folder *f, struct life *l, int error, bool persistent)
{
	uint64_t n;

	for (n = 1;; n++) {
		struct faulty_disk faulty;

		faulty_disk_init(&faulty, f->real);
		faulty.fail_at = n;
		faulty.persistent = persistent;
		faulty.error = error;
		live_over(f, &faulty.base, l);
		if (!persistent)
			expect_made_good(l);
		assert_true(faulty.fired || l->failures == 0);
		check_afterwards(f, l);
		if (n % 8 == 0 || !faulty.fired)
			check_second_life(f, l);
		if (!faulty.fired)
			break;
	}
	print_message("%s, %s, %s: %llu calls of the disk failed in turn\n", fixture_backend,
		      strerrorname_np(error), persistent ? "from then on" : "once",
		      (unsigned long long)n - 1);
	assert_true(n - 1 >= CALLS_LEAST);
}

static void test_every_call_fails(void **state)
{
	struct folder *f = *state;
	struct life l;

	life_init(&l);
	folder_close_store(f);
	sweep_calls(f, &l, EIO, false);
	sweep_calls(f, &l, EIO, true);
	sweep_calls(f, &l, ENOSPC, false);
	folder_open_store(f);
	life_fini(&l);
}

/* What could not be published is where it was, and asking again moves it again. */
static void test_failed_publishing_is_taken_back(void **state)
{
	struct folder *f = *state;
	struct checkpoint_id id = id_of(WITHDRAWN);
	char staged[DISK_PATH_MAX + 1], published[DISK_PATH_MAX + 1];
	uint64_t failed = 0;
	struct stores s;

	path_staged(staged, &id.job);
	path_job(published, &id.job);
	folder_close_store(f);
	for (uint64_t n = 0; n == failed; n++) {
		struct faulty_disk faulty;
		struct life l;

		life_init(&l);
		faulty_disk_init(&faulty, f->real);
		assert_int_equal(stores_open(&s, f, &faulty.base), 0);
		make_one(&s, &l, WITHDRAWN); /* published, and back */
		assert_int_equal(l.failures, 0);
		faulty.error = EIO;
		faulty.fail_at = faulty.calls + 1 + n;
		if (staging_publish(&s.over.store, &id.job, NULL) < 0) {
			failed++;
			assert_true(is_there(&s.over, staged) && !is_there(&s.over, published));
			assert_int_equal(staging_publish(&s.over.store, &id.job, NULL), 0);
		}
		faulty.fail_at = 0;
		assert_true(is_there(&s.over, published) && !is_there(&s.over, staged));
		expect_whole(&s.over.store, &l, WITHDRAWN);
		stores_close(&s);
		l.done[WITHDRAWN] = false; /* it is published again */
		check_afterwards(f, &l);
		life_fini(&l);
	}
	assert_true(failed >= 5); /* two looks, a rename, two syncs */
	folder_open_store(f);
}

static int none_gone(void *arg, const struct staged *found)
{
	(void)arg;
	assert_false(found->gone);
	return 0;
}

/* A tool makes the job again whose removal has not ended: that is the tool's to take away. */
static void test_removal_leaves_what_is_made(void **state)
{
	struct folder *f = *state;
	struct checkpoint_id id = id_of(PUBLISHED);
	struct disk_file *making = NULL;
	struct faulty_disk quiet;
	struct store *real;
	struct stores s;
	struct life l;

	life_init(&l);
	folder_close_store(f);
	faulty_disk_init(&quiet, f->real);
	assert_int_equal(stores_open(&s, f, &quiet.base), 0);
	real = &s.over.store;
	make_one(&s, &l, PUBLISHED);
	assert_int_equal(staging_discard(real, &id.job, NULL), 0);
	assert_int_equal(begin(real, &id.job, &making), 0);
	assert_int_equal(
		write_checkpoint_of(&s.over, &s.staged, &id, l.images[PUBLISHED], WORLD, NULL), 0);
	assert_int_equal(staging_remove_gone(real, &id.job, NULL), 0);
	assert_int_equal(staging_each(real, none_gone, NULL, NULL), 0);
	expect_whole(&s.staged, &l, PUBLISHED);
	assert_int_equal(staging_remove_gone(real, &id.job, NULL), 0); /* may be repeated */
	making->disk->ops->close(making);
	assert_int_equal(staging_publish(real, &id.job, NULL), 0);
	expect_whole(real, &l, PUBLISHED);
	stores_close(&s);
	check_afterwards(f, &l);
	folder_open_store(f);
	life_fini(&l);
}

static void test_every_allocation_fails(void **state)
{
	struct folder *f = *state;
	struct life l;
	uint64_t n;

#ifndef CKPT_FAULTS
	skip();
#endif
	life_init(&l);
	folder_close_store(f);
	for (int persistent = 0; persistent < 2; persistent++) {
		for (n = 1;; n++) {
			struct faulty_disk quiet;
			bool fired;

			faulty_disk_init(&quiet, f->real);
			alloc_fail_at(n, persistent);
			live_over(f, &quiet.base, &l);
			fired = alloc_fired();
			alloc_fail_at(0, false);
			if (!persistent)
				expect_made_good(&l);
			check_afterwards(f, &l);
			if (n % 8 == 0 || !fired)
				check_second_life(f, &l);
			if (!fired)
				break;
		}
		print_message("%s, %s: %llu allocations failed in turn\n", fixture_backend,
			      persistent ? "from then on" : "once", (unsigned long long)n - 1);
		assert_true(n - 1 >= ALLOCATIONS_LEAST);
	}
	folder_open_store(f);
	life_fini(&l);
}

#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_set_up, folder_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_FOLDER(test_every_call_fails),
		WITH_FOLDER(test_failed_publishing_is_taken_back),
		WITH_FOLDER(test_removal_leaves_what_is_made),
		WITH_FOLDER(test_every_allocation_fails),
	};

	/* Thousands of lives, and none of them needs a disk that outlives the power. */
	if (!getenv("TMPDIR") && access("/dev/shm", W_OK) == 0)
		fixture_parent = "/dev/shm";
	fixture_options = (struct store_options){.geometry = small, .transfer = 8192};
	fixture_backend = "threads";
	return cmocka_run_group_tests_name("staging", tests, NULL, NULL);
}
