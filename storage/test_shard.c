/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_shard.c - checkpoints on a real file system: what was written comes back, damage is found,
 * files are recycled only when nobody can mind. Over both back-ends, raw and compressed.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "codec/digest.h"
#include "storage/disk_format.h"
#include "storage/disk_posix.h"
#include "storage/paths.h"
#include "storage/shard_file.h"
#include "storage/spare.h"
#include "storage/test_fixture.h"
#include "tests/lib/test.h"

static const struct geometry small = { .leaf = 4096, .chunk = 16384 };
static const struct geometry tiny = { .leaf = 64, .chunk = 256 };

static struct geometry geometry(void)
{
	return fixture_options.geometry.chunk ? fixture_options.geometry : GEOMETRY_DEFAULT;
}

/* ---- Round trips ---- */

static void test_round_trip(void **state)
{
	struct folder *f = *state;
	struct geometry g = geometry();
	const uint64_t sizes[] = { 0, 1, 63, g.leaf - 1, g.leaf, g.leaf + 1, g.chunk - 1, g.chunk,
				   g.chunk + 1, 3 * g.chunk, 3 * g.chunk + g.leaf + 17,
				   5 * (uint64_t)g.chunk - 1, 4095, 4096, 4097 };
	const size_t n = sizeof(sizes) / sizeof(sizes[0]);
	struct err e = { 0 };

	for (size_t i = 0; i < n; i++) {
		struct checkpoint_id id = test_id(i);
		struct image image = image_make(g, sizes[i], 0, 1, i, (int)(i % 3));

		must(write_checkpoint(f, &id, &image, 1, &e), &e);
		must(read_checkpoint(&f->store, &id, &image, &e), &e);
		assert_int_equal(verify_checkpoint(&f->store, &id, NULL, 0, &e), 0);
		image_free(&image);
	}
}

/* Files that lack leaves, in any pattern: the others come back, and only they take space. */
static void test_missing_leaves(void **state)
{
	struct folder *f = *state;
	struct geometry g = geometry();
	const uint64_t sizes[] = {1,
				  g.leaf,
				  g.leaf + 1,
				  g.chunk,
				  3 * g.chunk,
				  3 * g.chunk + g.leaf + 17,
				  9 * (uint64_t)g.chunk - 1};
	struct err e = {0};

	for (uint64_t i = 0; i < 28; i++) {
		struct checkpoint_id id = test_id(i);
		struct image image = image_make(g, sizes[i % 7], 0, 1, i, (int)(i % 3));
		struct commit_file c = {0};
		struct shard_reader r;

		image_lose_leaves(&image, 1 + i / 7, i); /* all, half, a third, ... */
		must(write_checkpoint(f, &id, &image, 1, &e), &e);
		must(read_checkpoint(&f->store, &id, &image, &e), &e);
		assert_int_equal(verify_checkpoint(&f->store, &id, NULL, 0, &e), 0);
		must(commit_read(&f->store, &id, &c, &e), &e);
		if (fixture_options.compression)
			assert_true(c.shards[0].stored <= image_bytes_present(&image));
		else
			assert_int_equal(c.shards[0].stored, image_bytes_present(&image));
		must(shard_open(&f->store, &id, &c.shards[0], &r, &e), &e);
		assert_int_equal(r.present == NULL, image_bytes_present(&image) == image.len);
		for (uint64_t k = 0; k * g.leaf < image.len; k++)
			assert_int_equal(leaves_has(r.present, k), leaves_has(image.present, k));
		shard_close(&r);
		commit_file_fini(&c);
		image_free(&image);
	}
}

/* An older program must not take such a file for a whole one: its header says that it is none. */
static void test_missing_leaves_in_the_header(void **state)
{
	struct shard_header h = {.geometry = geometry(),
				 .footer_offset = 8192,
				 .footer_len = 4096,
				 .partial = true},
			    back;
	uint8_t bytes[SHARD_HEADER_BYTES];
	struct err e = {0};

	(void)state;
	shard_header_encode(&h, bytes);
	assert_int_equal(get_le64(bytes + 16), SHARD_LEAVES_MISSING);
	must(shard_header_decode(bytes, "header", &back, &e), &e);
	assert_true(back.partial);
	format_set_incompat(bytes, SHARD_LEAVES_MISSING | 2);
	format_end(bytes, sizeof(bytes));
	assert_int_equal(shard_header_decode(bytes, "header", &back, &e), CKPT_EVERSION);
}

static void footer_refused(struct shard_footer_view *v, const struct shard_header *h,
			   const struct chunk_place *p, bool refused)
{
	uint8_t place[CHUNK_PLACE_BYTES];

	chunk_place_put(place, p);
	v->places = place;
	v->stored = p->stored;
	assert_int_equal(footer_check_places(v, h, "footer", NULL), refused ? CKPT_EPROTO : 0);
}

static void test_impossible_missing_leaves(void **state)
{
	struct shard_header h = {.geometry = {.leaf = 4096, .chunk = 16384},
				 .image_len = 10000,
				 .footer_offset = 12288,
				 .partial = true};
	struct shard_footer_view v = {.image_len = 10000, .n_chunks = 1};
	struct chunk_place p = {.offset = 4096, .stored = 5904, .missing = 1};

	(void)state;
	footer_refused(&v, &h, &p, false);
	p.missing = 2;
	footer_refused(&v, &h, &p, false); /* of the same size */
	p.missing = 4;
	footer_refused(&v, &h, &p, true);
	p.missing = 8; /* there are three */
	footer_refused(&v, &h, &p, true);
	p.missing = 1;
	h.partial = false; /* the header does not say so */
	footer_refused(&v, &h, &p, true);
	p.missing = 0;
	p.stored = 10000;
	h.footer_offset = 16384;
	footer_refused(&v, &h, &p, false);
	h.partial = true; /* the header says so, and nothing is missing */
	footer_refused(&v, &h, &p, true);
	h.geometry.leaf = 64; /* 256 of them: there is no room to say which */
	p.missing = 1;
	p.stored = 9936;
	footer_refused(&v, &h, &p, true);
}

static void test_many_ranks_and_reopen(void **state)
{
	struct folder *f = *state;
	struct checkpoint_id id = test_id(1000000007);
	struct commit_file c = { 0 };
	struct image images[5];
	struct err e = { 0 };

	for (uint32_t i = 0; i < 5; i++)
		images[i] = image_make(geometry(), 7 * (uint64_t)geometry().chunk + i, i, 5, i, 2);
	must(write_checkpoint(f, &id, images, 5, &e), &e);
	folder_close_store(f);
	folder_open_store(f);
	must(read_checkpoint(&f->store, &id, images, &e), &e);
	must(commit_read(&f->store, &id, &c, &e), &e);
	assert_int_equal(c.world, 5);
	assert_string_equal(c.job_name, "job-1");
	assert_int_equal(c.record_n, 42);
	assert_int_equal(c.wall_ns, 12345);
	assert_string_equal((char *)c.job_record, "record 0, verbatim");
	commit_file_fini(&c);
	for (int i = 0; i < 5; i++)
		image_free(&images[i]);
}

static void test_compression_saves_space(void **state)
{
	struct folder *f = *state;
	struct image image = image_make(geometry(), 6 * (uint64_t)geometry().chunk, 0, 1, 3, 2);
	struct checkpoint_id id = test_id(1);
	struct shard_footer line;
	struct err e = { 0 };

	must(write_shard(f, &id, &image, &line, &e), &e);
	if (fixture_options.compression)
		assert_true(line.stored < image.len * 3 / 4);
	else
		assert_int_equal(line.stored, image.len);
	image_free(&image);
}

static void test_cancel(void **state)
{
	struct folder *f = *state;
	struct image image = image_make(geometry(), 6 * (uint64_t)geometry().chunk, 0, 1, 3, 0);
	struct checkpoint_id id = test_id(1);
	struct shard_writer *w = NULL;
	atomic_bool cancel = true;
	struct err e = { 0 };
	char path[DISK_PATH_MAX + 1];

	must(shard_begin(&f->store, &id, 0, image.len, 100, &w, &e), &e);
	assert_int_equal(shard_write_image(w, f->queue, image.bytes, 1, &cancel, &e), -ECANCELED);
	shard_abandon(w);
	path_checkpoint(path, &id);
	assert_int_equal(count_in(f, path), 0);
	image_free(&image);
}

static void test_begin_refuses(void **state)
{
	struct folder *f = *state;
	struct image image = image_make(geometry(), 100, 0, 1, 3, 0);
	struct checkpoint_id id = test_id(1);
	struct shard_writer *w = NULL;
	struct shard_footer line;
	struct err e = { 0 };

	/* A second try before COMMIT replaces the file, after it nothing does. */
	must(write_shard(f, &id, &image, &line, &e), &e);
	must(write_checkpoint(f, &id, &image, 1, &e), &e);
	assert_int_equal(shard_begin(&f->store, &id, 0, 100, 100, &w, &e), -EEXIST);
	must(read_checkpoint(&f->store, &id, &image, &e), &e);
	id = test_id(2);
	assert_int_equal(shard_begin(&f->store, &id, 0, UINT64_MAX - 5000, 1, &w, &e), -EFBIG);
	/* A table that is larger than was said has no room. */
	must(shard_begin(&f->store, &id, 0, image.len, image.table_len - 1, &w, &e), &e);
	must(shard_write_image(w, f->queue, image.bytes, 1, NULL, &e), &e);
	assert_int_equal(shard_finish(w, image.table, image.table_len, &line, &e), -EINVAL);
	image_free(&image);
}

static void test_write_error_ends_the_file(void **state)
{
	struct folder *f = *state;
	struct checkpoint_id id = test_id(1);
	struct image image = image_make(geometry(), 5 * (uint64_t)geometry().chunk + 3, 0, 1, 3, 0);
	const enum fault_point points[] = { FAULT_SHARD_NAMED,  FAULT_SHARD_ALLOCATED,
					    FAULT_SHARD_DATA,   FAULT_SHARD_FOOTER,
					    FAULT_SHARD_HEADER, FAULT_SHARD_SYNC };
	struct shard_footer line;
	struct err e = { 0 };
	char path[DISK_PATH_MAX + 1];

#ifndef CKPT_FAULTS
	skip();
#endif
	path_checkpoint(path, &id);
	for (size_t i = 0; i < sizeof(points) / sizeof(points[0]); i++) {
		fault_disarm_all(); /* and forget earlier hits */
		fault_arm(points[i], FAULT_ERROR, 1, false);
		assert_int_equal(write_shard(f, &id, &image, &line, &e), -EIO);
		assert_int_equal(count_in(f, path), 0);
		fault_disarm_all();
	}
	must(write_checkpoint(f, &id, &image, 1, &e), &e);
	must(read_checkpoint(&f->store, &id, &image, &e), &e);
	image_free(&image);
}

/* ---- Damage ---- */

/* Flips one bit in each 512 bytes of path in turn; each must be found, in [0, end). */
static void damage_everywhere(struct folder *f, const char *path, uint64_t end,
			      const struct checkpoint_id *id, const struct image *images)
{
	char full[PATH_MAX], said[ERR_TEXT_MAX];
	uint64_t found = 0, places = 0;
	int fd;

	snprintf(full, sizeof(full), "%s/%s", f->dir, path);
	fd = open(full, O_RDWR);
	assert_true(fd >= 0);
	for (uint64_t at = 0; at < end; at += 512, places++) {
		uint64_t where = min_u64(at + (at * 2654435761u >> 7) % 512, end - 1);
		struct err e = { 0 };
		uint8_t byte, wrong;
		int64_t bad;

		assert_int_equal(pread(fd, &byte, 1, (off_t)where), 1);
		wrong = byte ^ (uint8_t)(1u << (at / 512 % 8));
		assert_int_equal(pwrite(fd, &wrong, 1, (off_t)where), 1);
		bad = verify_checkpoint(&f->store, id, said, sizeof(said), &e);
		if (bad != 0)
			found++;
		else
			print_message("not found: byte %llu of %s\n", (unsigned long long)where,
				      path);
		/* A read gives an error or the right bytes (asserted inside), never others. */
		ignore_result(read_checkpoint(&f->store, id, images, &e));
		assert_int_equal(pwrite(fd, &byte, 1, (off_t)where), 1);
	}
	close(fd);
	print_message("%s: %llu of %llu damaged places found\n", path, (unsigned long long)found,
		      (unsigned long long)places);
	assert_int_equal(found, places);
	assert_int_equal(verify_checkpoint(&f->store, id, NULL, 0, NULL), 0);
}

static uint64_t size_of_file(struct folder *f, const char *path)
{
	struct disk_file *file = NULL;
	uint64_t size = 0;

	assert_int_equal(f->real->ops->open(f->real, path, DISK_READ, &file), 0);
	assert_int_equal(f->real->ops->size(file, &size), 0);
	f->real->ops->close(file);
	return size;
}

static void test_every_damage_is_found(void **state)
{
	struct folder *f = *state;
	struct geometry g = geometry();
	struct checkpoint_id id = test_id(3);
	struct image images[3] = {image_make(g, 9 * (uint64_t)g.chunk + 700, 0, 3, 11, 2),
				  image_make(g, 700, 1, 3, 12, 0),
				  image_make(g, 5 * (uint64_t)g.chunk + 60, 2, 3, 13, 2)};
	char path[DISK_PATH_MAX + 1];
	struct err e = { 0 };

	image_lose_leaves(&images[2], 3, 1);
	must(write_checkpoint(f, &id, images, 3, &e), &e);
	path_commit(path, &id);
	damage_everywhere(f, path, size_of_file(f, path), &id, images);
	for (uint32_t rank = 0; rank < 3; rank++) {
		path_shard(path, &id, rank);
		damage_everywhere(f, path, size_of_file(f, path), &id, images);
	}
	for (uint32_t rank = 0; rank < 3; rank++)
		image_free(&images[rank]);
}

static void test_format_and_object_damage(void **state)
{
	struct folder *f = *state;
	uint8_t object[3000];
	struct digest name;
	char path[DISK_PATH_MAX + 1], hex[ID_TEXT_MAX];
	struct err e = { 0 };
	struct store s;
	void *got = NULL;
	size_t len = 0;

	test_fill(object, sizeof(object), 5);
	name = digest_of(object, sizeof(object));
	must(store_put_object(&f->store, "layouts", &name, object, sizeof(object), &e), &e);
	hex_format(hex, name.b, sizeof(name.b));
	snprintf(path, sizeof(path), "layouts/%s", hex);
	for (int i = 0; i < 2; i++) {
		const char *which = i ? path : "FORMAT";
		uint64_t size = size_of_file(f, which);
		char full[PATH_MAX];
		int fd;

		snprintf(full, sizeof(full), "%s/%s", f->dir, which);
		fd = open(full, O_RDWR);
		for (uint64_t at = 0; at < size; at += i ? 512 : 1) {
			uint8_t byte, wrong;
			int r;

			assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
			wrong = byte ^ 0x10;
			assert_int_equal(pwrite(fd, &wrong, 1, (off_t)at), 1);
			if (i)
				r = store_get_object(&f->store, "layouts", &name, 1 << 20, &got,
						     &len, &e);
			else
				r = store_open(f->real, &(struct store_options){.read_only = true},
					       &s, &e);
			assert_int_equal(r, CKPT_ECORRUPT);
			assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
		}
		close(fd);
	}
}

static void test_cut_files(void **state)
{
	struct folder *f = *state;
	struct geometry g = geometry();
	struct checkpoint_id id = test_id(3);
	struct image image = image_make(g, 9 * (uint64_t)g.chunk + 700, 0, 1, 11, 2);
	char path[DISK_PATH_MAX + 1], full[PATH_MAX];
	struct err e = { 0 };
	uint64_t size;

	must(write_checkpoint(f, &id, &image, 1, &e), &e);
	path_shard(path, &id, 0);
	size = size_of_file(f, path);
	snprintf(full, sizeof(full), "%s/%s", f->dir, path);
	for (uint64_t len = size - 4096; len > 0; len = len > 8192 ? len * 2 / 3 : len - 97) {
		assert_int_equal(truncate(full, (off_t)len), 0);
		assert_true(verify_checkpoint(&f->store, &id, NULL, 0, &e) != 0);
		assert_true(read_checkpoint(&f->store, &id, &image, &e) < 0);
		if (len < 4000)
			break;
	}
	assert_int_equal(unlink(full), 0);
	assert_int_equal(verify_checkpoint(&f->store, &id, NULL, 0, &e), CKPT_ENOTFOUND);
	assert_non_null(strstr(e.text, path));
	path_commit(path, &id);
	snprintf(full, sizeof(full), "%s/%s", f->dir, path);
	for (off_t len = (off_t)size_of_file(f, path) - 1; len >= 0; len -= 13) {
		assert_int_equal(truncate(full, len), 0);
		assert_int_equal(verify_checkpoint(&f->store, &id, NULL, 0, &e), CKPT_ECORRUPT);
	}
	assert_int_equal(unlink(full), 0);
	assert_int_equal(verify_checkpoint(&f->store, &id, NULL, 0, &e), CKPT_ENOTFOUND);
	image_free(&image);
}

/* Damages one byte of rank 0's image on disk (raw files only). */
static void damage_image(struct folder *f, const struct checkpoint_id *id, uint64_t at)
{
	char path[DISK_PATH_MAX + 1], full[PATH_MAX];
	uint8_t byte;
	int fd;

	path_shard(path, id, 0);
	snprintf(full, sizeof(full), "%s/%s", f->dir, path);
	fd = open(full, O_RDWR);
	assert_int_equal(pread(fd, &byte, 1, (off_t)(SHARD_HEADER_BYTES + at)), 1);
	byte ^= 1;
	assert_int_equal(pwrite(fd, &byte, 1, (off_t)(SHARD_HEADER_BYTES + at)), 1);
	close(fd);
}

static void test_bad_leaf_is_named(void **state)
{
	struct folder *f = *state;
	struct geometry g = geometry();
	struct checkpoint_id id = test_id(3);
	struct image image = image_make(g, 8 * (uint64_t)g.chunk, 0, 1, 11, 1);
	uint64_t leaf = 4 * (g.chunk / g.leaf) + 1; /* in the second tensor */
	char said[ERR_TEXT_MAX] = "", want[64];
	struct err e = { 0 };

	must(write_checkpoint(f, &id, &image, 1, &e), &e);
	if (fixture_options.compression) {
		damage_image(f, &id, 100); /* in chunk 0 */
		assert_int_equal(verify_checkpoint(&f->store, &id, said, sizeof(said), &e),
				 g.chunk / g.leaf);
		assert_non_null(strstr(said, "chunk 0 of rank 0"));
		assert_non_null(strstr(said, "layer.0.weight"));
		image_free(&image);
		return;
	}
	damage_image(f, &id, leaf * g.leaf + 7);
	assert_int_equal(verify_checkpoint(&f->store, &id, said, sizeof(said), &e), 1);
	snprintf(want, sizeof(want), "leaf %llu of rank 0", (unsigned long long)leaf);
	assert_non_null(strstr(said, want));
	assert_non_null(strstr(said, "layer.1.weight"));
	e.text[0] = '\0';
	assert_int_equal(read_checkpoint(&f->store, &id, &image, &e), CKPT_ECORRUPT);
	damage_image(f, &id, 7);
	assert_int_equal(verify_checkpoint(&f->store, &id, said, sizeof(said), &e), 2);
	image_free(&image);
}

/* The planted bug is seen: with it a damaged chunk comes back (I2). */
static void test_bug_skip_leaf_check(void **state)
{
	struct folder *f = *state;
	struct checkpoint_id id = test_id(3);
	struct image image = image_make(geometry(), 4096, 0, 1, 11, 0);
	struct shard_reader r;
	struct commit_file c;
	struct err e = { 0 };
	const void *bytes = NULL;
	void *scratch = NULL;
	size_t len = 0;

#ifndef CKPT_FAULTS
	skip();
#endif
	must(write_checkpoint(f, &id, &image, 1, &e), &e);
	damage_image(f, &id, 0);
	assert_int_equal(posix_memalign(&scratch, DISK_ALIGN, 2 * (size_t)geometry().chunk), 0);
	must(commit_read(&f->store, &id, &c, &e), &e);
	must(shard_open(&f->store, &id, &c.shards[0], &r, &e), &e);
	bug_set(BUG_SKIP_LEAF_CHECK, true);
	assert_int_equal(shard_read_chunk(&r, 0, NULL, scratch, &bytes, &len, &e), 0);
	assert_true(memcmp(bytes, image.bytes, len) != 0);
	bug_set(BUG_SKIP_LEAF_CHECK, false);
	assert_int_equal(shard_read_chunk(&r, 0, NULL, scratch, &bytes, &len, &e), CKPT_ECORRUPT);
	shard_close(&r);
	commit_file_fini(&c);
	free(scratch);
	image_free(&image);
}

static int stop_soon(void *arg, uint64_t bytes)
{
	*(uint64_t *)arg = bytes;
	return 1;
}

static void test_verify_can_be_stopped(void **state)
{
	struct folder *f = *state;
	struct checkpoint_id id = test_id(3);
	struct image image = image_make(geometry(), 20 * (uint64_t)geometry().chunk, 0, 1, 11, 0);
	uint64_t seen = 0, bad = 99;
	struct verify_hooks hooks = { .progress = stop_soon, .arg = &seen };
	struct shard_reader r;
	struct commit_file c;
	struct err e = { 0 };

	must(write_checkpoint(f, &id, &image, 1, &e), &e);
	must(commit_read(&f->store, &id, &c, &e), &e);
	must(shard_open(&f->store, &id, &c.shards[0], &r, &e), &e);
	assert_int_equal(shard_verify(&r, &hooks, &bad, &e), -ECANCELED);
	assert_int_equal(bad, 99);
	assert_true(seen > 0 && seen < image.len);
	shard_close(&r);
	commit_file_fini(&c);
	image_free(&image);
}

/* ---- Expiry; what is recycled is in test_spare.c ---- */

static void test_reserve(void **state)
{
	struct folder *f = *state;
	uint64_t len = 10 * (uint64_t)geometry().chunk;
	struct image a = image_make(geometry(), len, 0, 1, 1, 0);
	struct checkpoint_id one = test_id(1), two = test_id(2), three = test_id(3);
	struct shard_writer *w = NULL;
	char path[DISK_PATH_MAX + 1];
	struct err e = {0};

	must(write_checkpoint(f, &one, &a, 1, &e), &e);
	must(checkpoint_expire(&f->store, &one, UINT64_MAX, &e), &e);
	assert_int_equal(count_in(f, "spare"), 1);
	f->store.reserve = UINT64_MAX;
	/* What is there already may be written over: it takes nothing from the disk. */
	if (!fixture_options.compression)
		must(write_checkpoint(f, &two, &a, 1, &e), &e);
	/* A new file is refused before a byte is written; what could give way has. */
	assert_int_equal(shard_begin(&f->store, &three, 0, 3 * len, 4096, &w, &e), CKPT_ENOSPACE);
	assert_non_null(strstr(e.text, "storage.disk_reserve"));
	path_checkpoint(path, &three);
	assert_int_equal(count_in(f, path), 0);
	assert_int_equal(count_in(f, "spare"), 0);
	f->store.reserve = 1;
	must(shard_begin(&f->store, &three, 0, 3 * len, 4096, &w, &e), &e);
	shard_abandon(w);
	image_free(&a);
}

static void test_reader_keeps_its_bytes(void **state)
{
	struct folder *f = *state;
	uint64_t len = 3 * (uint64_t)geometry().chunk;
	struct image a = image_make(geometry(), len, 0, 1, 1, 0);
	struct image b = image_make(geometry(), len, 0, 1, 2, 0);
	struct checkpoint_id one = test_id(1), two = test_id(2);
	struct commit_file c = { 0 };
	struct shard_reader r;
	uint64_t bad = 99;
	struct err e = { 0 };

	must(write_checkpoint(f, &one, &a, 1, &e), &e);
	must(commit_read(&f->store, &one, &c, &e), &e);
	must(shard_open(&f->store, &one, &c.shards[0], &r, &e), &e);
	must(checkpoint_expire(&f->store, &one, UINT64_MAX, &e), &e);
	assert_int_equal(count_in(f, "spare"), 0);
	must(write_checkpoint(f, &two, &b, 1, &e), &e);
	must(shard_verify(&r, NULL, &bad, &e), &e);
	assert_int_equal(bad, 0);
	shard_close(&r);
#ifdef CKPT_FAULTS
	/* The planted bug takes the file from under the reader (I9), and the reader sees it. */
	must(write_checkpoint(f, &one, &a, 1, &e), &e);
	must(shard_open(&f->store, &one, &c.shards[0], &r, &e), &e);
	bug_set(BUG_SKIP_SPARE_LOCK, true);
	must(checkpoint_expire(&f->store, &one, UINT64_MAX, &e), &e);
	assert_int_equal(count_in(f, "spare"), 1);
	must(checkpoint_expire(&f->store, &two, 0, &e), &e);
	must(write_checkpoint(f, &two, &b, 1, &e), &e);
	bug_set(BUG_SKIP_SPARE_LOCK, false);
	must(shard_verify(&r, NULL, &bad, &e), &e);
	if (!fixture_options.compression)
		assert_true(bad > 0);
	shard_close(&r);
#endif
	commit_file_fini(&c);
	image_free(&a);
	image_free(&b);
}

/* What was given away of a file that several read keeps it from being recycled, too. */
static void test_shared_file_is_not_recycled(void **state)
{
	struct folder *f = *state;
	struct image a = image_make(geometry(), 3 * (uint64_t)geometry().chunk, 0, 1, 1, 0);
	struct checkpoint_id id = test_id(1), other = test_id(2);
	struct commit_file c = {0};
	struct shard_reader r;
	struct err e = {0};
	int fd;

	must(write_checkpoint(f, &id, &a, 1, &e), &e);
	must(commit_read(&f->store, &id, &c, &e), &e);
	must(shard_open(&f->store, &id, &c.shards[0], &r, &e), &e);
	must(shard_open_cached(&r, &id, &e), &e);
	shard_uncache(&f->store, &id, 0);
	shard_uncache(&f->store, &other, 0); /* there is none */
	fd = r.cached->disk->ops->export_fd(r.cached);
	assert_true(fd >= 0 && !(fcntl(fd, F_GETFL) & O_DIRECT));
	shard_close(&r);
	must(checkpoint_expire(&f->store, &id, UINT64_MAX, &e), &e);
	assert_int_equal(count_in(f, "spare"), 0);
	close(fd);
	must(write_checkpoint(f, &id, &a, 1, &e), &e);
	commit_file_fini(&c);
	must(commit_read(&f->store, &id, &c, &e), &e);
	must(shard_open(&f->store, &id, &c.shards[0], &r, &e), &e);
	must(checkpoint_expire(&f->store, &id, UINT64_MAX, &e), &e);
	assert_int_equal(shard_open_cached(&r, &id, &e), CKPT_ENOTFOUND);
	shard_close(&r);
	commit_file_fini(&c);
	image_free(&a);
}

static void test_discard(void **state)
{
	struct folder *f = *state;
	struct image a = image_make(geometry(), 3 * (uint64_t)geometry().chunk, 0, 1, 1, 0);
	struct checkpoint_id id = test_id(1);
	struct shard_footer line;
	char path[DISK_PATH_MAX + 1];
	struct err e = { 0 };

	must(write_shard(f, &id, &a, &line, &e), &e);
	must(checkpoint_discard(&f->store, &id, &e), &e);
	must(checkpoint_discard(&f->store, &id, &e), &e);
	path_checkpoint(path, &id);
	assert_int_equal(count_in(f, path), -ENOENT);
	must(write_checkpoint(f, &id, &a, 1, &e), &e);
	assert_int_equal(checkpoint_discard(&f->store, &id, &e), CKPT_ESTATE);
	must(read_checkpoint(&f->store, &id, &a, &e), &e);
	image_free(&a);
}

/* ---- Workers at once ---- */

struct worker {
	pthread_t thread;
	struct folder folder; /* the same disk and store, its own queue */
	struct store *store;
	unsigned number;
	int status;
};

#define WORKERS 4
#define ROUNDS 6

/* Saves, reads and expires checkpoints of its own: they meet in spare/ and in the folders. */
static void *work(void *arg)
{
	struct worker *w = arg;
	struct folder *f = &w->folder;
	const struct disk_ops *ops = f->real->ops;
	int r = ops->queue_open(f->real, QUEUE_DEPTH, &f->queue);

	for (unsigned i = 0; r == 0 && i < ROUNDS; i++) {
		struct checkpoint_id id = test_id(w->number * ROUNDS + i);
		struct image image = image_make(geometry(), 3 * (uint64_t)geometry().chunk + i, 0,
						1, id.step, 2);

		r = write_checkpoint_of(f, w->store, &id, &image, 1, NULL);
		if (r == 0)
			r = read_checkpoint(w->store, &id, &image, NULL);
		if (r == 0 && i + 1 < ROUNDS)
			r = checkpoint_expire(w->store, &id, UINT64_MAX, NULL);
		image_free(&image);
	}
	if (f->queue)
		ops->queue_close(f->queue);
	w->status = r;
	return NULL;
}

static void test_workers_at_once(void **state)
{
	struct folder *f = *state;
	struct worker workers[WORKERS] = { 0 };
	struct err e = { 0 };

	for (unsigned i = 0; i < WORKERS; i++) {
		workers[i].folder = (struct folder){ .dir = f->dir, .real = f->real };
		workers[i].store = &f->store;
		workers[i].number = i;
		assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
	}
	for (unsigned i = 0; i < WORKERS; i++) {
		pthread_join(workers[i].thread, NULL);
		assert_int_equal(workers[i].status, 0);
	}
	for (unsigned i = 0; i < WORKERS; i++) {
		struct checkpoint_id id = test_id(i * ROUNDS + ROUNDS - 1);

		assert_int_equal(verify_checkpoint(&f->store, &id, NULL, 0, &e), 0);
	}
}

/* ---- A full disk ---- */

/* A ring lets go of its files some time after it was closed. */
static void unmount(const char *dir)
{
	struct timespec moment = {.tv_nsec = 10000000};
	int r = umount(dir);

	for (int i = 0; i < 1000 && r != 0 && errno == EBUSY; i++) {
		nanosleep(&moment, NULL);
		r = umount(dir);
	}
	assert_int_equal(r, 0);
}

static void test_full_disk(void **state)
{
	struct folder f = { 0 };
	struct geometry g = geometry();
	struct image a = image_make(g, 2u << 20, 0, 1, 1, 0);
	struct checkpoint_id one = test_id(1), two = test_id(2), three = test_id(3);
	struct shard_writer *w = NULL;
	char path[DISK_PATH_MAX + 1];
	struct err e = { 0 };

	(void)state;
	f.dir = test_dir_make(NULL);
	if (mount("none", f.dir, "tmpfs", 0, "size=5m") < 0) {
		print_message("a small tmpfs cannot be mounted: %s\n", strerror(errno));
		test_dir_remove(f.dir);
		image_free(&a);
		skip();
	}
	must(disk_posix_open(f.dir, fixture_backend, &f.real, &e), &e);
	folder_open_store(&f);
	assert_int_equal(f.real->ops->queue_open(f.real, QUEUE_DEPTH, &f.queue), 0);
	must(write_checkpoint(&f, &one, &a, 1, &e), &e);
	/* Known before a byte is written, and nothing is left behind. */
	assert_int_equal(shard_begin(&f.store, &two, 0, 4u << 20, 4096, &w, &e), CKPT_ENOSPACE);
	assert_non_null(strstr(e.text, "no room"));
	path_checkpoint(path, &two);
	assert_int_equal(count_in(&f, path), 0);
	must(read_checkpoint(&f.store, &one, &a, &e), &e);
	/* Spare files give way. */
	must(write_checkpoint(&f, &two, &a, 1, &e), &e);
	must(checkpoint_expire(&f.store, &one, UINT64_MAX, &e), &e);
	assert_int_equal(count_in(&f, "spare"), 1);
	must(shard_begin(&f.store, &three, 0, (2u << 20) + 65536, 4096, &w, &e), &e);
	shard_abandon(w);
	must(read_checkpoint(&f.store, &two, &a, &e), &e);
	f.real->ops->queue_close(f.queue);
	folder_close_store(&f);
	disk_posix_close(f.real);
	unmount(f.dir);
	test_dir_remove(f.dir);
	image_free(&a);
}

#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_set_up, folder_tear_down)

static const struct CMUnitTest for_every_kind[] = {
	WITH_FOLDER(test_round_trip),
	WITH_FOLDER(test_missing_leaves),
	WITH_FOLDER(test_many_ranks_and_reopen),
	WITH_FOLDER(test_cancel),
	WITH_FOLDER(test_begin_refuses),
	WITH_FOLDER(test_write_error_ends_the_file),
	WITH_FOLDER(test_discard),
	WITH_FOLDER(test_reader_keeps_its_bytes),
	WITH_FOLDER(test_workers_at_once),
};

/* Each place is a whole verification: small files only. */
static const struct CMUnitTest for_formats[] = {
	cmocka_unit_test(test_missing_leaves_in_the_header),
	cmocka_unit_test(test_impossible_missing_leaves),
};

static const struct CMUnitTest for_small[] = {
	WITH_FOLDER(test_every_damage_is_found),
	WITH_FOLDER(test_cut_files),
};

static const struct CMUnitTest for_blocks[] = {
	WITH_FOLDER(test_compression_saves_space),
	WITH_FOLDER(test_format_and_object_damage),
	WITH_FOLDER(test_bad_leaf_is_named),
	WITH_FOLDER(test_verify_can_be_stopped),
	WITH_FOLDER(test_reserve),
	WITH_FOLDER(test_shared_file_is_not_recycled),
	cmocka_unit_test(test_full_disk),
};

static const struct CMUnitTest for_raw[] = {
	WITH_FOLDER(test_bug_skip_leaf_check),
};

int main(void)
{
	const struct {
		const char *name;
		struct store_options options;
	} kinds[] = {
		{ "default", { .transfer = 1u << 20 } },
		{ "small", { .geometry = small, .transfer = 8192 } },
		{ "tiny", { .geometry = tiny, .transfer = 4096 } },
		{ "packed", { .geometry = small, .compression = 1 } },
		{ "packed tiny", { .geometry = tiny, .compression = 1 } },
	};
	const char *const backends[] = { "threads", "uring" };
	int failed = cmocka_run_group_tests_name("formats", for_formats, NULL, NULL);

	for (int b = 0; b < 2; b++) {
		struct err why = { 0 };

		if (b == 1 && !disk_uring_usable(&why)) {
			printf("skip uring %s\n", why.text);
			break;
		}
		fixture_backend = backends[b];
		for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
			printf("== %s, %s\n", backends[b], kinds[k].name);
			fixture_options = kinds[k].options;
			failed += cmocka_run_group_tests_name("every", for_every_kind, NULL, NULL);
			if (geometry().chunk <= small.chunk)
				failed += cmocka_run_group_tests_name("small", for_small, NULL,
								      NULL);
			if (geometry().chunk >= DISK_ALIGN)
				failed += cmocka_run_group_tests_name("blocks", for_blocks, NULL,
								      NULL);
			if (!fixture_options.compression)
				failed += cmocka_run_group_tests_name("raw", for_raw, NULL, NULL);
		}
	}
	return failed != 0;
}
