/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store.c - the data folder as a whole: FORMAT, LOCK, names, small files, objects, and what
 * recovery tells of it.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/fault.h"
#include "codec/digest.h"
#include "storage/disk_format.h"
#include "storage/disk_posix.h"
#include "storage/folder_id.h"
#include "storage/paths.h"
#include "storage/test_fixture.h"
#include "tests/lib/test.h"

static void write_raw_file(struct folder *f, const char *path, const void *bytes, size_t len)
{
	char full[PATH_MAX];
	int fd;

	snprintf(full, sizeof(full), "%s/%s", f->dir, path);
	fd = open(full, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, len), len);
	close(fd);
}

static bool exists(struct folder *f, const char *path)
{
	struct disk_file *file = NULL;

	if (f->real->ops->open(f->real, path, DISK_READ, &file) < 0)
		return false;
	f->real->ops->close(file);
	return true;
}

/* ---- Opening ---- */

static void test_lock_names_its_holder(void **state)
{
	struct folder *f = *state;
	struct store s;
	struct err e = { 0 };
	char pid[32];

	assert_int_equal(store_open(f->real, &fixture_options, &s, &e), -EBUSY);
	snprintf(pid, sizeof(pid), "process %d: stop that ckptd", (int)getpid());
	assert_non_null(strstr(e.text, pid));
	/* Who only reads needs no lock. */
	must(store_open(f->real, &(struct store_options){ .read_only = true }, &s, &e), &e);
	assert_null(s.lock);
	store_close(&s);
	folder_close_store(f);
	must(store_open(f->real, &fixture_options, &s, &e), &e);
	store_close(&s);
}

static void put_lock(struct disk_file *lock, const char *text)
{
	must(lock->disk->ops->truncate(lock, 0), NULL);
	must(lock->disk->ops->write(lock, text, strlen(text), 0), NULL);
}

static void expect_busy(struct folder *f, const char *words)
{
	struct err e = {0};
	struct store s;

	assert_int_equal(store_open(f->real, &fixture_options, &s, &e), -EBUSY);
	if (!strstr(e.text, words))
		fail_msg("'%s', not '%s'", e.text, words);
}

/* A ckptd that is started meanwhile says what has the folder, and whether to wait for it. */
static void test_lock_of_a_tool(void **state)
{
	struct folder *f = *state;
	struct disk_file *lock = NULL;
	struct err e = {0};
	char words[128];

	folder_close_store(f);
	must(store_lock(f->real, "ckptctl, which puts job 'x' into its place", &lock, &e), &e);
	snprintf(words, sizeof(words),
		 "in use by process %d, ckptctl, which puts job 'x' into its place: it gives it "
		 "back when it has ended, then start this one again",
		 (int)getpid());
	expect_busy(f, words);
	put_lock(lock, "4711\n");
	expect_busy(f, "in use by process 4711: stop that ckptd, or give this one another folder");
	put_lock(lock, ""); /* the disk was full */
	expect_busy(f, "in use by a process that has not said which it is");
	put_lock(lock, "12 \033[31mred\nmore");
	expect_busy(f, "process 12, ?[31mred: it");
	for (int i = 0; i < 40; i++)
		must(lock->disk->ops->write(lock, "1234567890", 10, 10 * i), NULL);
	expect_busy(f, "has not said which it is");
	lock->disk->ops->close(lock);
	folder_open_store(f);
}

static int write_nothing(struct disk_file *f, const void *buf, size_t len, uint64_t offset)
{
	(void)f;
	(void)buf;
	(void)len;
	(void)offset;
	return -ENOSPC;
}

/* Whoever cannot start on a full disk cannot free any of it. */
static void test_a_full_disk_can_be_opened(void **state)
{
	struct folder *f = *state;
	const struct disk_ops *real = f->real->ops;
	struct disk_ops full = *real;
	struct err e = {0};

	full.write = write_nothing;
	folder_close_store(f);
	f->real->ops = &full;
	must(store_open(f->real, &fixture_options, &f->store, &e), &e);
	f->real->ops = real;
}

static const struct disk_ops *plain_ops;
static unsigned calls_left; /* before the disk takes no change */

static int some_mkdirs(struct disk *d, const char *path)
{
	return calls_left == 0 ? -EIO : (calls_left--, plain_ops->mkdir(d, path));
}

static int some_syncs(struct disk *d, const char *path)
{
	return calls_left == 0 ? -EIO : (calls_left--, plain_ops->sync_dir(d, path));
}

/* However far the first start came: where FORMAT is, readers find the folders that they list. */
static void test_format_comes_last(void **state)
{
	static const char *const folders[] = {"jobs", "declarations", "layouts", "spare"};
	struct folder *f = *state;
	struct disk_ops some = *f->real->ops;
	unsigned n = 0;
	int r = -EIO;

	plain_ops = f->real->ops;
	some.mkdir = some_mkdirs;
	some.sync_dir = some_syncs;
	folder_close_store(f);
	for (n = 0; r < 0; n++) {
		assert_true(n < 20);
		if (exists(f, "FORMAT"))
			must(plain_ops->unlink(f->real, "FORMAT"), NULL);
		for (size_t i = 0; i < 4; i++) {
			char path[PATH_MAX];

			snprintf(path, sizeof(path), "%s/%s", f->dir, folders[i]);
			if (rmdir(path) < 0)
				assert_int_equal(errno, ENOENT);
		}
		calls_left = n;
		f->real->ops = &some;
		r = store_open(f->real, &fixture_options, &f->store, NULL);
		f->real->ops = plain_ops;
		for (size_t i = 0; i < 4 && exists(f, "FORMAT"); i++)
			assert_int_equal(count_in(f, folders[i]), 0);
	}
	assert_int_equal(n, 4 + 3 + 1); /* folders, their two folders and that of FORMAT, none */
}

/* The lock goes with the process, however it ends. */
static void test_lock_of_a_killed_process(void **state)
{
	struct folder *f = *state;
	int ready[2], status;
	char byte;
	pid_t pid;

	folder_close_store(f);
	assert_int_equal(pipe(ready), 0);
	pid = fork();
	if (pid == 0) {
		struct store s;

		if (store_open(f->real, &fixture_options, &s, NULL) < 0 ||
		    write(ready[1], "x", 1) != 1)
			_exit(1);
		pause();
		_exit(0);
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	assert_int_equal(store_open(f->real, &fixture_options, &f->store, NULL), -EBUSY);
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	close(ready[0]);
	close(ready[1]);
	folder_open_store(f);
}

static void test_options(void **state)
{
	struct folder *f = *state;
	struct store_options o = { .geometry = { .leaf = 100, .chunk = 4096 } };
	struct store s;
	struct err e = { 0 };

	folder_close_store(f);
	assert_int_equal(store_open(f->real, &o, &s, &e), -EINVAL);
	o.geometry = (struct geometry){ .leaf = 4096, .chunk = 16u << 20 };
	assert_int_equal(store_open(f->real, &o, &s, &e), -EINVAL);
	o = (struct store_options){ .transfer = 1 };
	must(store_open(f->real, &o, &s, &e), &e);
	assert_int_equal(s.transfer, DISK_ALIGN);
	assert_int_equal(s.geometry.chunk, 1u << 20);
	store_close(&s);
	o.transfer = UINT32_MAX;
	must(store_open(f->real, &o, &s, &e), &e);
	assert_int_equal(s.transfer, DISK_TRANSFER_MAX);
	store_close(&s);
}

static void seal_format(uint8_t *buf, size_t field, uint64_t value)
{
	format_begin(buf, FORMAT_FOLDER, DISK_FORMAT_HEAD, 64);
	put_le64(buf + field, value);
	format_end(buf, 64);
}

static void test_features(void **state)
{
	struct folder *f = *state;
	uint8_t buf[64] = { 0 };
	struct store s;
	struct err e = { 0 };
	const struct store_options reading = { .read_only = true };

	folder_close_store(f);
	seal_format(buf, 16, 4); /* incompat: must not be touched */
	write_raw_file(f, "FORMAT", buf, sizeof(buf));
	assert_int_equal(store_open(f->real, &fixture_options, &s, &e), CKPT_EVERSION);
	assert_int_equal(store_open(f->real, &reading, &s, &e), CKPT_EVERSION);
	seal_format(buf, 24, 4); /* ro: may be read */
	write_raw_file(f, "FORMAT", buf, sizeof(buf));
	assert_int_equal(store_open(f->real, &fixture_options, &s, &e), CKPT_EVERSION);
	must(store_open(f->real, &reading, &s, &e), &e);
	seal_format(buf, 32, 4); /* compat: does not matter */
	write_raw_file(f, "FORMAT", buf, sizeof(buf));
	must(store_open(f->real, &fixture_options, &s, &e), &e);
	store_close(&s);
	/* The attempt that was refused left no lock behind. */
	write_raw_file(f, "FORMAT", "rubbish", 7);
	assert_int_equal(store_open(f->real, &fixture_options, &s, &e), CKPT_ECORRUPT);
	assert_int_equal(store_open(f->real, &fixture_options, &s, &e), CKPT_ECORRUPT);
	/* What the sentence says helps. */
	assert_non_null(strstr(e.text, "remove the file FORMAT"));
	assert_int_equal(f->real->ops->unlink(f->real, "FORMAT"), 0);
	must(store_open(f->real, &fixture_options, &s, &e), &e);
	store_close(&s);
}

/* The folder is given an id once, and a new one where the file has something else in it. */
static void test_a_folder_has_an_id(void **state)
{
	struct folder *f = *state;
	struct store_options o = fixture_options;
	struct rng_seeded seeded;
	struct store s;
	struct err e = {0};
	uint64_t id = 0, again;

	folder_close_store(f);
	assert_int_equal(folder_id_read(f->real, &id), -ENOENT);
	rng_seed(&seeded, 7);
	o.rng = &seeded.rng;
	must(store_open(f->real, &o, &s, &e), &e);
	store_close(&s);
	must(folder_id_read(f->real, &id), NULL);
	assert_true(id != FOLDER_ID_NONE && id == s.folder_id);
	o.folder_id = 5; /* for one that has none */
	must(store_open(f->real, &o, &s, &e), &e);
	store_close(&s);
	assert_true(s.folder_id == id);

	for (size_t i = 0; i < 5; i++) {
		static const char *const damaged[] = {"", "0000000000000005", "000000000000000g\n",
						      "0000000000000000\n", "00000000000000055\n"};

		write_raw_file(f, "ID", damaged[i], strlen(damaged[i]));
		assert_int_equal(folder_id_read(f->real, &again), CKPT_ECORRUPT);
		o.folder_id = i % 2 ? 5 : FOLDER_ID_NONE;
		must(store_open(f->real, &o, &s, &e), &e);
		store_close(&s);
		must(folder_id_read(f->real, &again), NULL);
		assert_true(again == s.folder_id && (i % 2 ? again == 5 : again != id));
	}
}

static int refuses_to_write(struct disk *d, const char *path, unsigned flags,
			    struct disk_file **ret)
{
	(void)d;
	(void)path;
	(void)flags;
	(void)ret;
	return -EROFS;
}

/* As under a unit of systemd's without ReadWritePaths=: the message names it. */
static void test_folder_that_is_read_only(void **state)
{
	struct folder *f = *state;
	struct disk_ops ops = *f->real->ops;
	struct disk d = {.ops = &ops, .backend = f->real->backend};
	struct store s;
	struct err e = {0};

	ops.open = refuses_to_write;
	assert_int_equal(store_open(&d, &fixture_options, &s, &e), -EROFS);
	assert_non_null(strstr(e.text, "ReadWritePaths="));
	assert_non_null(strstr(e.text, "daemon-reload"));
}

static void test_reading_makes_nothing(void **state)
{
	struct folder *f = *state;
	char *dir = test_dir_make(NULL), path[PATH_MAX];
	struct disk *d = NULL;
	struct store s;
	struct err e = { 0 };

	(void)f;
	must(disk_posix_open(dir, fixture_backend, &d, &e), &e);
	assert_int_equal(store_open(d, &(struct store_options){ .read_only = true }, &s, &e),
			 CKPT_ENOTFOUND);
	snprintf(path, sizeof(path), "%s/LOCK", dir);
	assert_int_equal(access(path, F_OK), -1);
	disk_posix_close(d);
	test_dir_remove(dir);
}

/* ---- Names ---- */

static void test_names(void **state)
{
	static const char *const bad[] = { "", "7", "7.", ".3a", "07.x", "-1.x", "+1.x", " 1.x",
					   "18446744073709551616.x", "7.3A", "log" };
	struct checkpoint_id id = { .step = UINT64_MAX };
	char path[DISK_PATH_MAX + 1], name[100];
	struct attempt_id attempt;
	uint64_t step, serial, bytes;

	(void)state;
	memset(&id.job, 0xab, 16);
	memset(&id.attempt, 0xcd, 16);
	path_shard(path, &id, UINT32_MAX);
	assert_string_equal(path, "jobs/abababababababababababababababab/18446744073709551615."
				  "cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd/rank-4294967295.shard");
	path_log(path, &id.job);
	assert_string_equal(path, "jobs/abababababababababababababababab/log");
	assert_int_equal(checkpoint_name_parse("18446744073709551615."
					       "cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd",
					       &step, &attempt),
			 0);
	assert_true(step == id.step && attempt_equal(&attempt, &id.attempt));
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		const char *x = strchr(bad[i], 'x');

		snprintf(name, sizeof(name), "%.*s%s", x ? (int)(x - bad[i]) : 99, bad[i],
			 x ? "cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd" : "");
		assert_int_equal(checkpoint_name_parse(name, &step, &attempt), -EINVAL);
	}
	assert_true(shard_name_is("rank-0.shard") && shard_name_is("rank-12.shard"));
	assert_false(shard_name_is("rank-01.shard") || shard_name_is("rank-1.shard.") ||
		     shard_name_is("rank-4294967296.shard") || shard_name_is("COMMIT"));
	assert_int_equal(spare_name_parse("3.4096", &serial, &bytes), 0);
	assert_true(serial == 3 && bytes == 4096);
	assert_int_equal(spare_name_parse("3.4096x", &serial, &bytes), -EINVAL);
}

/* ---- Small files and objects ---- */

static void test_publish(void **state)
{
	struct folder *f = *state;
	void *bytes = NULL;
	size_t len = 0;

	assert_int_equal(store_publish_file(&f->store, "layouts", "x", "one", 3), 0);
	assert_int_equal(store_publish_file(&f->store, "layouts", "x", "", 0), 0);
	assert_int_equal(store_read_file(&f->store, "layouts/x", 10, &bytes, &len), 0);
	assert_int_equal(len, 0);
	alloc_free(bytes);
	assert_int_equal(store_publish_file(&f->store, "layouts", "x", "three", 5), 0);
	assert_int_equal(store_read_file(&f->store, "layouts/x", 4, &bytes, &len), -EFBIG);
	assert_int_equal(store_read_file(&f->store, "layouts/x", 5, &bytes, &len), 0);
	assert_memory_equal(bytes, "three", 5);
	alloc_free(bytes);
	assert_int_equal(store_read_file(&f->store, "layouts/y", 5, &bytes, &len), -ENOENT);
	assert_int_equal(store_publish_file(&f->store, "nowhere", "x", "one", 3), -ENOENT);
}

static void test_publish_leaves_old_or_new(void **state)
{
	static const enum fault_point points[] = { FAULT_PUBLISH_TEMP, FAULT_PUBLISH_SYNC,
						   FAULT_PUBLISH_RENAME };
	struct folder *f = *state;
	void *bytes = NULL;
	size_t len = 0;

#ifndef CKPT_FAULTS
	skip();
#endif
	assert_int_equal(store_publish_file(&f->store, "layouts", "x", "old", 3), 0);
	for (int i = 0; i < 3; i++) {
		fault_disarm_all(); /* and forget earlier hits */
		fault_arm(points[i], FAULT_ERROR, 1, false);
		assert_int_equal(store_publish_file(&f->store, "layouts", "x", "new", 3), -EIO);
		fault_disarm_all();
		assert_int_equal(store_read_file(&f->store, "layouts/x", 9, &bytes, &len), 0);
		assert_memory_equal(bytes, i < 2 ? "old" : "new", 3);
		alloc_free(bytes);
	}
}

static void test_temporaries_are_swept(void **state)
{
	struct folder *f = *state;

	write_raw_file(f, "layouts/tmp-0", "half", 4);
	write_raw_file(f, "declarations/tmp-77", "half", 4);
	write_raw_file(f, "layouts/keep", "whole", 5);
	/* One with the serial that is next does not stop the next publish either. */
	assert_int_equal(store_publish_file(&f->store, "layouts", "x", "one", 3), 0);
	folder_close_store(f);
	folder_open_store(f);
	assert_false(exists(f, "layouts/tmp-0") || exists(f, "declarations/tmp-77"));
	assert_true(exists(f, "layouts/keep") && exists(f, "layouts/x"));
}

static void test_objects(void **state)
{
	struct folder *f = *state;
	const char text[] = "a declaration";
	struct digest name = digest_of(text, sizeof(text)), other = digest_of("x", 1);
	char path[DISK_PATH_MAX + 1], hex[ID_TEXT_MAX];
	void *bytes = NULL;
	size_t len = 0;
	struct err e = { 0 };

	assert_int_equal(store_put_object(&f->store, "layouts", &other, text, sizeof(text), &e),
			 -EINVAL);
	assert_int_equal(store_get_object(&f->store, "layouts", &name, 100, &bytes, &len, &e),
			 CKPT_ENOTFOUND);
	must(store_put_object(&f->store, "layouts", &name, text, sizeof(text), &e), &e);
	must(store_put_object(&f->store, "layouts", &name, text, sizeof(text), &e), &e);
	must(store_get_object(&f->store, "layouts", &name, 100, &bytes, &len, &e), &e);
	assert_int_equal(len, sizeof(text));
	assert_memory_equal(bytes, text, len);
	alloc_free(bytes);
	/* One that was damaged is written anew. */
	hex_format(hex, name.b, sizeof(name.b));
	snprintf(path, sizeof(path), "layouts/%s", hex);
	write_raw_file(f, path, "a declaratiom", sizeof(text));
	assert_int_equal(store_get_object(&f->store, "layouts", &name, 100, &bytes, &len, &e),
			 CKPT_ECORRUPT);
	must(store_put_object(&f->store, "layouts", &name, text, sizeof(text), &e), &e);
	must(store_get_object(&f->store, "layouts", &name, 100, &bytes, &len, &e), &e);
	alloc_free(bytes);
}

/* ---- Recovery ---- */

struct found {
	int jobs, committed, leftover, damaged;
	uint64_t steps;
};

static int on_checkpoint(void *arg, const struct checkpoint_id *id,
			 const struct commit_file *commit, const struct err *why)
{
	struct found *f = arg;

	f->steps += id->step;
	if (commit) {
		assert_int_equal(commit->id.step, id->step);
		assert_null(why);
		f->committed++;
	} else if (why->code == CKPT_ENOTFOUND) {
		f->leftover++;
	} else {
		assert_int_equal(why->code, CKPT_ECORRUPT);
		f->damaged++;
	}
	return 0;
}

static int on_job(void *arg, const struct job_id *job)
{
	struct found *f = arg;

	assert_int_equal(job->b[0], 0x3a);
	f->jobs++;
	return 0;
}

static int end_the_walk(void *arg, const struct job_id *job)
{
	(void)arg;
	(void)job;
	return -ECANCELED;
}

static void test_recovery_tells_all(void **state)
{
	struct folder *f = *state;
	struct image image = image_make(GEOMETRY_DEFAULT, 5000, 0, 1, 1, 0);
	struct checkpoint_id ids[4] = { test_id(1), test_id(2), test_id(3), test_id(4) };
	struct found found = { 0 };
	struct shard_footer line;
	char path[DISK_PATH_MAX + 1];
	struct err e = { 0 };

	must(store_each_job(&f->store, on_job, &found, &e), &e);
	assert_int_equal(found.jobs, 0);
	must(write_checkpoint(f, &ids[0], &image, 1, &e), &e);
	must(write_checkpoint(f, &ids[1], &image, 1, &e), &e);
	must(write_shard(f, &ids[2], &image, &line, &e), &e);
	must(write_checkpoint(f, &ids[3], &image, 1, &e), &e);
	path_commit(path, &ids[3]);
	write_raw_file(f, path, "not a COMMIT", 12);
	/* What is not ours is passed over. */
	write_raw_file(f, "jobs/readme", "x", 1);
	path_log(path, &ids[0].job);
	assert_int_equal(f->real->ops->mkdir(f->real, path), 0);
	assert_int_equal(f->real->ops->mkdir(f->real, "jobs/somebody"), 0);
	must(store_each_job(&f->store, on_job, &found, &e), &e);
	assert_int_equal(found.jobs, 1);
	assert_int_equal(store_each_job(&f->store, end_the_walk, NULL, &e), -ECANCELED);
	must(store_each_checkpoint(&f->store, &ids[0].job, on_checkpoint, &found, &e), &e);
	assert_int_equal(found.committed, 2);
	assert_int_equal(found.leftover, 1);
	assert_int_equal(found.damaged, 1);
	assert_int_equal(found.steps, 10);
	/* A COMMIT in another checkpoint's folder is not that checkpoint's (I1). */
	{
		char from[DISK_PATH_MAX + 1], to[DISK_PATH_MAX + 1];
		struct commit_file c = { 0 };

		path_commit(from, &ids[0]);
		path_commit(to, &ids[2]);
		assert_int_equal(f->real->ops->rename(f->real, from, to), 0);
		assert_int_equal(commit_read(&f->store, &ids[2], &c, &e), CKPT_ECORRUPT);
	}
	image_free(&image);
}

static void test_commit_round_trip(void **state)
{
	struct shard_footer shards[3];
	struct rank_line lines[3];
	struct commit_file c = { .id = test_id(9), .job_name = "a-job_1.x", .uid = 1000,
				 .incarnation = 1, .record_n = 2, .epoch = 3, .wall_ns = 4,
				 .world = 3, .bytes = 5, .shards = shards,
				 .job_record = (void *)(uintptr_t)"r", .job_record_len = 1 };
	struct commit_file back = { 0 };
	struct err e = { 0 };
	void *bytes = NULL;
	size_t len = 0;

	(void)state;
	for (uint32_t i = 0; i < 3; i++) {
		shards[i] = (struct shard_footer){ .rank = i, .footer_offset = 4096 * (i + 1),
						   .footer_len = 1000 + i, .table_len = 100 + i,
						   .stored = 7 * i };
		memset(shards[i].footer.b, (int)i + 1, 16);
		memset(shards[i].table.b, (int)i + 101, 16);
		lines[i] = (struct rank_line){ .rank = i, .table_len = 100 + i,
					       .table = shards[i].table };
	}
	c.root = root_digest(lines, 3);
	memset(c.layout.b, 0x77, 16);
	assert_int_equal(commit_file_encode(&c, &bytes, &len), 0);
	assert_int_equal(len, 256 + 3 * 72 + 8 + 16);
	must(commit_file_decode(bytes, len, &back, &e), &e);
	assert_memory_equal(&back.id, &c.id, sizeof(c.id));
	assert_string_equal(back.job_name, c.job_name);
	assert_true(back.uid == 1000 && back.incarnation == 1 && back.record_n == 2 &&
		    back.epoch == 3 && back.wall_ns == 4 && back.bytes == 5 && back.world == 3);
	assert_true(digest_equal(&back.root, &c.root) && digest_equal(&back.layout, &c.layout));
	assert_memory_equal(back.job_record, "r", 1);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(back.shards[i].footer_offset, shards[i].footer_offset);
		assert_int_equal(back.shards[i].footer_len, shards[i].footer_len);
		assert_int_equal(back.shards[i].stored, shards[i].stored);
		assert_true(digest_equal(&back.shards[i].footer, &shards[i].footer));
	}
	commit_file_fini(&back);
	/* Every length but the right one, and a root that is not that of its lines, is refused. */
	for (size_t cut = 0; cut < len; cut++)
		assert_true(commit_file_decode(bytes, cut, &back, &e) < 0);
	alloc_free(bytes);
	c.root.b[3] ^= 1;
	assert_int_equal(commit_file_encode(&c, &bytes, &len), 0);
	assert_int_equal(commit_file_decode(bytes, len, &back, &e), CKPT_ECORRUPT);
	alloc_free(bytes);
	/* No ranks: no log could name it. */
	c.world = 0;
	c.root = root_digest(lines, 0);
	assert_int_equal(commit_file_encode(&c, &bytes, &len), 0);
	assert_true(commit_file_decode(bytes, len, &back, &e) < 0);
	alloc_free(bytes);
}

#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_set_up, folder_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_FOLDER(test_lock_names_its_holder),
		WITH_FOLDER(test_lock_of_a_tool),
		WITH_FOLDER(test_lock_of_a_killed_process),
		WITH_FOLDER(test_a_full_disk_can_be_opened),
		WITH_FOLDER(test_format_comes_last),
		WITH_FOLDER(test_options),
		WITH_FOLDER(test_features),
		WITH_FOLDER(test_a_folder_has_an_id),
		WITH_FOLDER(test_folder_that_is_read_only),
		WITH_FOLDER(test_reading_makes_nothing),
		cmocka_unit_test(test_names),
		WITH_FOLDER(test_publish),
		WITH_FOLDER(test_publish_leaves_old_or_new),
		WITH_FOLDER(test_temporaries_are_swept),
		WITH_FOLDER(test_objects),
		WITH_FOLDER(test_recovery_tells_all),
		cmocka_unit_test(test_commit_round_trip),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
