/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_spare.c - recycled shard files: which ones are, for whom, and that nothing of what they held
 * is left in them. Which files ckptd gives is tested in ckptd/test_recycling.c.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "storage/disk_format.h"
#include "storage/disk_posix.h"
#include "storage/paths.h"
#include "storage/shard_file.h"
#include "storage/spare.h"
#include "storage/test_fixture.h"
#include "tests/lib/test.h"

static const struct geometry small = {.leaf = 4096, .chunk = 16384};

static struct checkpoint_id id_of(unsigned job, uint64_t step)
{
	struct checkpoint_id id = test_id(step);

	id.job.b[0] = (uint8_t)job;
	return id;
}

static struct image image_of(uint64_t len, uint64_t seed)
{
	return image_make(small, len, 0, 1, seed, 0);
}

static void save(struct folder *f, const struct checkpoint_id *id, const struct image *image)
{
	struct err e = {0};

	must(write_checkpoint(f, id, image, 1, &e), &e);
}

static void save_and_expire(struct folder *f, const struct checkpoint_id *id,
			    const struct image *image, uint64_t keep)
{
	struct err e = {0};

	save(f, id, image);
	must(checkpoint_expire(&f->store, id, keep, &e), &e);
}

static void path_of(struct folder *f, const char *path, char ret[PATH_MAX])
{
	snprintf(ret, PATH_MAX, "%s/%s", f->dir, path);
}

/* As somebody who has it open for ever. */
static int hold(struct folder *f, const struct checkpoint_id *id)
{
	char path[DISK_PATH_MAX + 1], full[PATH_MAX];
	int fd;

	path_shard(path, id, 0);
	path_of(f, path, full);
	fd = open(full, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	return fd;
}

static uint64_t inode_of(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return st.st_ino;
}

static bool has_inode(struct folder *f, const struct checkpoint_id *id, int held)
{
	int fd = hold(f, id);
	bool same = inode_of(fd) == inode_of(held);

	close(fd);
	return same;
}

static bool is_packed(void)
{
	return fixture_options.compression > 0;
}

/* ---- Round trip ---- */

static void test_expired_files_are_recycled(void **state)
{
	struct folder *f = *state;
	struct checkpoint_id one = id_of(1, 1), two = id_of(1, 2);
	struct image a = image_of(5 * small.chunk + 1, 1), b = image_of(5 * small.chunk + 1, 2);
	struct err e = {0};
	int held;

	save(f, &one, &a);
	held = hold(f, &one);
	must(checkpoint_expire(&f->store, &one, UINT64_MAX, &e), &e);
	must(checkpoint_expire(&f->store, &one, UINT64_MAX, &e), &e); /* again: nothing to do */
	assert_int_equal(count_in(f, "spare"), 1);
	assert_int_equal(verify_checkpoint(&f->store, &one, NULL, 0, &e), CKPT_ENOTFOUND);
	save(f, &two, &b);
	if (!is_packed()) { /* a compressed file gave its space back */
		assert_int_equal(count_in(f, "spare"), 0);
		assert_true(has_inode(f, &two, held));
	}
	must(read_checkpoint(&f->store, &two, &b, &e), &e);
	assert_int_equal(verify_checkpoint(&f->store, &two, NULL, 0, &e), 0);
	close(held);
	image_free(&a);
	image_free(&b);
}

/* The header is gone before anybody takes the file. */
static void test_header_is_zeroed(void **state)
{
	struct folder *f = *state;
	struct checkpoint_id id = id_of(1, 1);
	struct image a = image_of(5 * small.chunk, 1);
	struct disk_file *file = NULL;
	struct err e = {0};
	void *block = NULL;
	uint8_t *header = alloc_aligned(SHARD_HEADER_BYTES, &block);

	save_and_expire(f, &id, &a, UINT64_MAX);
	assert_int_equal(spare_take(&f->store, &id.job, "spare/taken", a.len, &file), 0);
	assert_int_equal(f->real->ops->read(file, header, SHARD_HEADER_BYTES, 0), 0);
	assert_true(bytes_are_zero(header, SHARD_HEADER_BYTES));
	f->real->ops->close(file);
	alloc_free(block);
	must(spare_clear(&f->store, &e), &e);
	assert_int_equal(count_in(f, "spare"), 0);
	image_free(&a);
}

/* ---- What is left in it ---- */

/* Behind the footer there is nothing but zeros, up to what was reserved. */
static void expect_nothing_behind(struct folder *f, const struct checkpoint_id *id,
				  const struct shard_footer *line, uint64_t reserved)
{
	uint64_t end = line->footer_offset + line->footer_len;
	struct stat st;
	uint8_t byte;
	int fd = hold(f, id);

	assert_int_equal(fstat(fd, &st), 0);
	assert_in_range(st.st_size, end, reserved);
	for (uint64_t at = end; at < (uint64_t)st.st_size; at++) {
		assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
		if (byte)
			fail_msg("byte %llu of %llu is %#x", (unsigned long long)at,
				 (unsigned long long)st.st_size, byte);
	}
	close(fd);
}

static uint64_t reserved_for(const struct folder *f, uint64_t len, uint64_t table_max)
{
	uint64_t reserved = 0;

	assert_true(shard_file_max(&f->store, len, len, table_max, &reserved));
	return reserved;
}

static void write_with(struct folder *f, const struct checkpoint_id *id, const struct image *image,
		       uint64_t table_max, struct shard_footer *ret)
{
	struct shard_writer *w = NULL;
	struct err e = {0};

	must(shard_begin(&f->store, id, 0, image->len, table_max, &w, &e), &e);
	must(shard_write_image(w, f->queue, image->bytes, 1, NULL, &e), &e);
	must(shard_finish(w, image->table, image->table_len, ret, &e), &e);
}

/* A spare file of any length that is taken for one of any other. */
static void test_nothing_is_left_of_it(void **state)
{
	struct folder *f = *state;
	uint64_t chunk = small.chunk, most = 0;
	const uint64_t lengths[] = {20 * chunk,     10 * chunk, 10 * chunk + 1, 19 * chunk - 1,
				    13 * chunk + 7, 16 * chunk};
	const uint64_t more[] = {0, 1, 5000, 70000, 100000};
	uint64_t step = 0;

	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		for (size_t k = 0; k < sizeof(more) / sizeof(more[0]); k++) {
			struct checkpoint_id old = id_of(1, step++), id = id_of(1, step++);
			struct image a = image_of(lengths[0], step), b = image_of(lengths[i], 99);
			uint64_t table_max = b.table_len + more[k];
			struct shard_footer line;
			int held;

			save(f, &old, &a);
			held = hold(f, &old);
			must(checkpoint_expire(&f->store, &old, UINT64_MAX, NULL), NULL);
			write_with(f, &id, &b, table_max, &line);
			most += has_inode(f, &id, held);
			expect_nothing_behind(f, &id, &line,
					      reserved_for(f, b.len, table_max));
			close(held);
			must(checkpoint_discard(&f->store, &id, NULL), NULL);
			must(spare_clear(&f->store, NULL), NULL);
			image_free(&a);
			image_free(&b);
		}
	}
	if (!is_packed())
		assert_true(most > 15);
}

/* What a table may need and does not keeps no file from fitting the next checkpoint. */
static void test_files_fit_again(void **state)
{
	struct folder *f = *state;
	struct shard_footer line;
	struct image a;
	int held = -1;

	if (is_packed())
		return;
	a = image_of(7 * small.chunk, 1);
	for (uint64_t step = 1; step < 5; step++) {
		struct checkpoint_id id = id_of(1, step);

		write_with(f, &id, &a, a.table_len + 9000, &line);
		if (held >= 0) {
			assert_true(has_inode(f, &id, held));
			close(held);
		}
		held = hold(f, &id);
		must(checkpoint_expire(&f->store, &id, UINT64_MAX, NULL), NULL);
	}
	close(held);
	image_free(&a);
}

/* ---- Whose it is ---- */

static void test_another_job_gets_none(void **state)
{
	struct folder *f = *state;
	struct checkpoint_id old = id_of(1, 1), other = id_of(2, 2), own = id_of(1, 3);
	struct image a = image_of(5 * small.chunk, 1), b = image_of(5 * small.chunk, 2);
	int held;

	save(f, &old, &a);
	held = hold(f, &old);
	must(checkpoint_expire(&f->store, &old, UINT64_MAX, NULL), NULL);
	save(f, &other, &b);
	assert_int_equal(count_in(f, "spare"), 1);
	assert_false(has_inode(f, &other, held));
#ifdef CKPT_FAULTS
	must(checkpoint_expire(&f->store, &other, 0, NULL), NULL);
	bug_set(BUG_SPARE_OF_ANY_JOB, true);
	save(f, &other, &b);
	bug_set(BUG_SPARE_OF_ANY_JOB, false);
	assert_true(has_inode(f, &other, held) || is_packed());
	must(checkpoint_expire(&f->store, &other, 0, NULL), NULL);
	close(held);
	save(f, &old, &a);
	held = hold(f, &old);
	must(checkpoint_expire(&f->store, &old, UINT64_MAX, NULL), NULL);
#endif
	save(f, &own, &b);
	if (!is_packed())
		assert_true(has_inode(f, &own, held));
	close(held);
	image_free(&a);
	image_free(&b);
}

/* What others could open, now or since then, is not written over. */
static void test_open_to_others(void **state)
{
	struct folder *f = *state;
	struct checkpoint_id id = id_of(1, 1);
	struct image a = image_of(5 * small.chunk, 1);
	struct disk_file *file = NULL;
	char path[DISK_PATH_MAX + 1], full[PATH_MAX];

	save(f, &id, &a);
	path_shard(path, &id, 0);
	path_of(f, path, full);
	assert_int_equal(chmod(full, 0640), 0);
	must(checkpoint_expire(&f->store, &id, UINT64_MAX, NULL), NULL);
	assert_int_equal(count_in(f, "spare"), 0);

	save(f, &id, &a);
	must(checkpoint_expire(&f->store, &id, UINT64_MAX, NULL), NULL);
	assert_int_equal(count_in(f, "spare"), 1);
	snprintf(full, sizeof(full), "chmod g+r '%s'/spare/*", f->dir);
	assert_int_equal(system(full), 0);
	assert_int_equal(spare_take(&f->store, &id.job, "x", 4 * small.chunk, &file),
			 CKPT_ENOTFOUND);
	assert_int_equal(count_in(f, "spare"), 0);
	image_free(&a);
}

static void test_second_link(void **state)
{
	struct folder *f = *state;
	struct checkpoint_id id = id_of(1, 1);
	struct image a = image_of(3 * small.chunk, 1);
	struct disk_file *file = NULL;
	char path[DISK_PATH_MAX + 1], full[PATH_MAX];

	save(f, &id, &a);
	path_shard(path, &id, 0);
	assert_int_equal(f->real->ops->link(f->real, path, "linked"), 0);
	must(checkpoint_expire(&f->store, &id, UINT64_MAX, NULL), NULL);
	assert_int_equal(count_in(f, "spare"), 0);
	/* Nor is one that gets its second link in spare/. */
	assert_int_equal(f->real->ops->unlink(f->real, "linked"), 0);
	save_and_expire(f, &id, &a, UINT64_MAX);
	assert_int_equal(count_in(f, "spare"), 1);
	snprintf(full, sizeof(full), "ln '%s'/spare/* '%s'/linked", f->dir, f->dir);
	assert_int_equal(system(full), 0);
	assert_int_equal(spare_take(&f->store, &id.job, "x", 2 * small.chunk, &file),
			 CKPT_ENOTFOUND);
	assert_int_equal(count_in(f, "spare"), 0);
	image_free(&a);
}

/* ---- Room ---- */

static void test_fit(void **state)
{
	struct folder *f = *state;
	struct checkpoint_id id = id_of(1, 1);
	struct image a = image_of(10 * small.chunk, 1);
	struct disk_file *file = NULL;
	uint64_t size = 0;

	save_and_expire(f, &id, &a, UINT64_MAX);
	assert_true(spare_bytes(&f->store) >= a.len);
	/* Neither one that is too small nor one that is more than twice too large. */
	assert_int_equal(spare_take(&f->store, &id.job, "x", 3 * a.len, &file), CKPT_ENOTFOUND);
	assert_int_equal(spare_take(&f->store, &id.job, "x", a.len / 3, &file), CKPT_ENOTFOUND);
	assert_int_equal(spare_take(&f->store, &id.job, "x", a.len / 4 * 3, &file), 0);
	assert_int_equal(f->real->ops->size(file, &size), 0);
	assert_int_equal(size, a.len / 4 * 3); /* nothing of the old is behind it */
	assert_int_equal(spare_bytes(&f->store), 0);
	f->real->ops->close(file);
	image_free(&a);
}

static void test_limit(void **state)
{
	struct folder *f = *state;
	struct checkpoint_id one = id_of(1, 1), two = id_of(1, 2);
	struct image a = image_of(10 * small.chunk, 1);
	uint64_t one_file;

	save_and_expire(f, &one, &a, a.len); /* header and footer are too much */
	assert_int_equal(count_in(f, "spare"), 0);
	save(f, &one, &a);
	save(f, &two, &a);
	must(checkpoint_expire(&f->store, &one, UINT64_MAX, NULL), NULL);
	one_file = spare_bytes(&f->store);
	assert_true(one_file > a.len);
	/* The job's own are as good as the one that comes. */
	must(checkpoint_expire(&f->store, &two, 2 * one_file - 1, NULL), NULL);
	assert_int_equal(count_in(f, "spare"), 1);
	assert_int_equal(spare_bytes(&f->store), one_file);
	image_free(&a);
}

/* A job that is over does not keep spare/ from those that go on. */
static void test_others_give_way(void **state)
{
	struct folder *f = *state;
	struct image a = image_of(10 * small.chunk, 1);
	struct disk_file *file = NULL;
	struct checkpoint_id id;
	uint64_t one_file;

	for (uint64_t step = 1; step <= 3; step++) {
		id = id_of(1, step);
		save(f, &id, &a);
	}
	id = id_of(2, 9);
	save(f, &id, &a);
	for (uint64_t step = 1; step <= 3; step++) {
		id = id_of(1, step);
		must(checkpoint_expire(&f->store, &id, UINT64_MAX, NULL), NULL);
	}
	assert_int_equal(count_in(f, "spare"), 3);
	one_file = spare_bytes(&f->store) / 3;
	id = id_of(2, 9);
	must(checkpoint_expire(&f->store, &id, 2 * one_file, NULL), NULL);
	assert_int_equal(count_in(f, "spare"), 2);
	assert_int_equal(spare_take(&f->store, &id.job, "x", a.len, &file), 0);
	f->real->ops->close(file);
	image_free(&a);
}

/* Nor do files of a size that the job has no more. */
static void test_other_sizes_give_way(void **state)
{
	struct folder *f = *state;
	struct image a = image_of(10 * small.chunk, 1), b = image_of(30 * small.chunk, 2);
	struct checkpoint_id one = id_of(1, 1), two = id_of(1, 2), three = id_of(1, 3);
	uint64_t old;

	save(f, &one, &a);
	save(f, &two, &b);
	save(f, &three, &b);
	must(checkpoint_expire(&f->store, &one, UINT64_MAX, NULL), NULL);
	old = spare_bytes(&f->store);
	must(checkpoint_expire(&f->store, &two, old + b.len, NULL), NULL);
	assert_int_equal(count_in(f, "spare"), 1);
	assert_true(spare_bytes(&f->store) > b.len);
	must(checkpoint_expire(&f->store, &three, old + b.len, NULL), NULL);
	assert_int_equal(count_in(f, "spare"), 1);
	image_free(&a);
	image_free(&b);
}

/* What is in spare/ without having been given by this process is not taken. */
static void test_another_life(void **state)
{
	struct folder *f = *state;
	struct checkpoint_id id = id_of(1, 1);
	struct image a = image_of(10 * small.chunk, 1);
	struct disk_file *file = NULL;
	struct err e = {0};

	save_and_expire(f, &id, &a, UINT64_MAX);
	folder_close_store(f);
	folder_open_store(f);
	assert_int_equal(count_in(f, "spare"), 1);
	assert_int_equal(spare_bytes(&f->store), 0);
	assert_int_equal(spare_take(&f->store, &id.job, "x", a.len, &file), CKPT_ENOTFOUND);
	assert_int_equal(f->real->ops->open(f->real, "spare/any name", DISK_CREATE, &file), 0);
	f->real->ops->close(file);
	must(spare_clear(&f->store, &e), &e);
	assert_int_equal(count_in(f, "spare"), 0);
	image_free(&a);
}

#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_set_up, folder_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_FOLDER(test_expired_files_are_recycled),
		WITH_FOLDER(test_header_is_zeroed),
		WITH_FOLDER(test_nothing_is_left_of_it),
		WITH_FOLDER(test_files_fit_again),
		WITH_FOLDER(test_another_job_gets_none),
		WITH_FOLDER(test_open_to_others),
		WITH_FOLDER(test_second_link),
		WITH_FOLDER(test_fit),
		WITH_FOLDER(test_limit),
		WITH_FOLDER(test_others_give_way),
		WITH_FOLDER(test_other_sizes_give_way),
		WITH_FOLDER(test_another_life),
	};
	int failed = 0;

	for (int packed = 0; packed < 2; packed++) {
		for (int uring = 0; uring < 2; uring++) {
			if (uring && !disk_uring_usable(NULL))
				continue;
			fixture_backend = uring ? "uring" : "threads";
			fixture_options = (struct store_options){.geometry = small,
								 .compression = packed};
			printf("== %s%s\n", fixture_backend, packed ? ", packed" : "");
			failed += cmocka_run_group_tests_name("spare", tests, NULL, NULL);
		}
	}
	return failed != 0;
}
