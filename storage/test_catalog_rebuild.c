/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_catalog_rebuild.c - the index made anew from the files equals the one that was kept up to
 * date, and a check finds every difference between the two.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "base/rng.h"
#include "codec/digest.h"
#include "model/table.h"
#include "storage/catalog_format.h"
#include "storage/disk_posix.h"
#include "storage/test_open_index.h"
#include "storage/layout_file.h"
#include "tests/lib/test.h"

#define LAYOUTS 5
#define RANKS 6

static char *dir;
static struct disk *disk;
static struct store store;
static struct index *ix;
static struct rng_seeded rng;
static struct digest layouts[LAYOUTS];
static uint32_t worlds[LAYOUTS];
static struct digest a_declaration; /* of layouts[0] */

static uint32_t below(uint32_t n)
{
	return (uint32_t)rng_below(&rng.rng, n);
}

static void open_index(bool want_fresh)
{
	char path[300];
	struct err e;
	bool fresh = !want_fresh;

	snprintf(path, sizeof(path), "%s/index", dir);
	if (test_index_open(path, &ix, &fresh, &e) != 0)
		fail_msg("%s", e.text);
	assert_int_equal(fresh, want_fresh);
}

static int setup(void **state)
{
	struct store_options o = { .geometry = { 64, 256 }, .transfer = 4096 };
	struct err e;

	(void)state;
	dir = test_dir_make(NULL);
	rng_seed(&rng, test_seed(9));
	if (disk_posix_open(dir, "threads", &disk, &e) || store_open(disk, &o, &store, &e))
		fail_msg("%s", e.text);
	open_index(true);
	assert_int_equal(catalog_rebuild(ix, &store, NULL, &e), 0); /* of nothing */
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	fault_disarm_all();
	ix->ops->close(ix);
	store_close(&store);
	disk_posix_close(disk);
	test_dir_remove(dir);
	return 0;
}

/* ---- Content, put into the files and into the index as ckptd does it ---- */

static void *make_declaration(uint32_t salt, struct declaration *ret)
{
	struct declaration_builder *b;
	size_t len = 0;
	void *bytes = NULL;
	struct err e;

	assert_int_equal(declaration_builder_new(store.geometry, &b), 0);
	for (uint32_t i = 0; i < 1 + salt % 7; i++) {
		char name[40];
		struct shard s = { .name = name, .dtype = CKPT_F32 };

		s.name_len = (uint32_t)snprintf(name, sizeof(name), "tensor.%u", i);
		s.global = (struct shape){ 1, { 1000 + salt } };
		s.box = (struct box){ 1, { salt }, { 10 + i } };
		assert_int_equal(declaration_add(b, &s, &e), i);
	}
	assert_int_equal(declaration_finish(b, &bytes, &len, &e), 0);
	declaration_builder_free(b);
	assert_int_equal(declaration_open(bytes, len, ret, &e), 0);
	return bytes;
}

static void make_layout(int i)
{
	struct declaration d[RANKS];
	struct digest digests[RANKS], name;
	void *bytes[RANKS];
	struct err e;

	worlds[i] = 1 + (uint32_t)i;
	for (uint32_t rank = 0; rank < worlds[i]; rank++) {
		bytes[rank] = make_declaration(rank / 2 + 10 * (uint32_t)i, &d[rank]);
		digests[rank] = declaration_digest(d[rank].bytes, d[rank].len);
		if (store_put_object(&store, "declarations", &digests[rank], d[rank].bytes,
				     d[rank].len, &e) < 0)
			fail_msg("%s", e.text);
	}
	if (layout_file_put(&store, digests, worlds[i], &layouts[i], &e) < 0)
		fail_msg("%s", e.text);
	name = layout_digest(digests, worlds[i]);
	assert_true(digest_equal(&name, &layouts[i]));
	assert_int_equal(catalog_put_layout(ix, &layouts[i], d, worlds[i], NULL, &e), 0);
	if (i == 0)
		a_declaration = digests[0];
	for (uint32_t rank = 0; rank < worlds[i]; rank++)
		alloc_free(bytes[rank]);
}

static struct checkpoint_id make_id(uint8_t job, uint64_t step)
{
	struct checkpoint_id id = { .step = step };

	memset(id.job.b, job, sizeof(id.job.b));
	memset(id.attempt.b, (int)step + 7, sizeof(id.attempt.b));
	return id;
}

static void make_folder(const struct checkpoint_id *id)
{
	char path[DISK_PATH_MAX + 1];

	path_job(path, &id->job);
	assert_int_equal(disk->ops->mkdir(disk, path), 0);
	path_checkpoint(path, id);
	assert_int_equal(disk->ops->mkdir(disk, path), 0);
}

/* What COMMIT may say of shard files that are not there. */
static void made_up_shards(int layout, struct shard_footer *shards)
{
	for (uint32_t rank = 0; rank < worlds[layout]; rank++) {
		shards[rank] = (struct shard_footer){ .rank = rank, .footer_offset = 8192,
						      .footer_len = 200, .table_len = 100 };
		rng.rng.fill(&rng.rng, shards[rank].table.b, sizeof(shards[rank].table.b));
	}
}

static void publish(const struct checkpoint_id *id, int layout, struct shard_footer *shards,
		    struct catalog_entry *ret)
{
	struct rank_line lines[RANKS];
	struct commit_file c = { .id = *id, .uid = 1000 + id->job.b[0], .shards = shards };
	struct err e;

	c.world = worlds[layout];
	c.layout = layouts[layout];
	snprintf(c.job_name, sizeof(c.job_name), "run-%u", id->job.b[0]);
	c.incarnation = 1;
	c.record_n = id->step * 2;
	c.epoch = 1 + below(5);
	c.wall_ns = rng_u64(&rng.rng);
	c.bytes = rng_u64(&rng.rng) >> 20;
	c.job_record = "record";
	c.job_record_len = 6;
	for (uint32_t rank = 0; rank < c.world; rank++)
		lines[rank] = (struct rank_line){ rank, shards[rank].table_len,
						  shards[rank].table };
	c.root = root_digest(lines, c.world);
	if (commit_publish(&store, &c, &e) < 0)
		fail_msg("%s", e.text);
	*ret = (struct catalog_entry){
		.id = *id, .uid = c.uid, .root = c.root, .layout = c.layout, .incarnation = 1,
		.record_n = c.record_n, .epoch = c.epoch, .wall_ns = c.wall_ns, .bytes = c.bytes,
		.world = c.world,
	};
	memcpy(ret->job_name, c.job_name, sizeof(ret->job_name));
}

/* The shard files of a checkpoint, with the declarations that the layout's objects have. */
static void write_shards(const struct checkpoint_id *id, int layout, struct shard_footer *shards)
{
	static uint8_t image[8192] __attribute__((aligned(DISK_ALIGN)));
	struct digest *ranks = NULL, leaves[sizeof(image) / 64];
	struct disk_queue *q;
	uint32_t world = 0;
	struct err e;

	assert_int_equal(disk->ops->queue_open(disk, 4, &q), 0);
	assert_int_equal(layout_file_get(&store, &layouts[layout], &ranks, &world, &e), 0);
	for (size_t i = 0; i < sizeof(image) / 64; i++)
		leaves[i] = digest_of(image + 64 * i, 64);
	for (uint32_t rank = 0; rank < world; rank++) {
		struct rank_table_parts parts = { .rank = rank, .world = world, .leaves = leaves,
						  .geometry = store.geometry };
		struct shard_writer *w;
		struct declaration d;
		void *bytes, *table;
		size_t table_len;

		assert_int_equal(store_get_object(&store, "declarations", &ranks[rank], 1 << 20,
						  &bytes, &parts.declaration_len, &e), 0);
		parts.declaration = bytes;
		assert_int_equal(declaration_open(bytes, parts.declaration_len, &d, &e), 0);
		parts.image_len = d.image_bytes;
		leaves[d.image_bytes / 64] =
			digest_of(image, d.image_bytes % 64); /* the last one is shorter */
		if (rank_table_build(&parts, &table, &table_len, &e) ||
		    shard_begin(&store, id, rank, d.image_bytes, table_len, &w, &e) ||
		    shard_write_image(w, q, image, 0, NULL, &e) ||
		    shard_finish(w, table, table_len, &shards[rank], &e))
			fail_msg("%s", e.text);
		leaves[d.image_bytes / 64] = leaves[0];
		alloc_free(table);
		alloc_free(bytes);
	}
	alloc_free(ranks);
	disk->ops->queue_close(q);
}

/* Three jobs with some checkpoints each, all layouts, and leftovers that are no checkpoints. */
static int fill(struct catalog_entry *last)
{
	struct shard_footer shards[RANKS];
	struct checkpoint_id left = make_id(9, 1);
	int n = 0;
	struct err e;

	for (int i = 0; i < LAYOUTS; i++)
		make_layout(i);
	for (uint8_t job = 1; job <= 3; job++)
		for (uint64_t step = 1; step <= 4u + job; step++, n++) {
			struct checkpoint_id id = make_id(job, step * 100);

			make_folder(&id);
			made_up_shards(n % LAYOUTS, shards);
			publish(&id, n % LAYOUTS, shards, last);
			assert_int_equal(catalog_put(ix, last, &e), 0);
		}
	make_folder(&left);
	return n;
}

/* ---- All of an index as bytes ---- */

static int dump_entry(void *arg, const void *key, size_t key_len, const void *value, size_t len)
{
	struct writer *w = arg;

	write_u32(w, (uint32_t)key_len);
	write_bytes(w, key, key_len);
	write_u32(w, (uint32_t)len);
	write_bytes(w, value, len);
	return 0;
}

static struct writer dump(void)
{
	struct writer w = { 0 };

	assert_int_equal(ix->ops->scan(ix, "", 0, NULL, 0, dump_entry, &w), 0);
	assert_false(w.bad);
	return w;
}

static void expect_dump(const struct writer *want)
{
	struct writer have = dump();

	assert_int_equal(have.len, want->len);
	assert_memory_equal(have.buf, want->buf, want->len);
	writer_free(&have);
}

static bool is_good(void)
{
	bool good = false;
	struct err e;

	if (catalog_check(ix, &store, &good, &e) < 0)
		fail_msg("%s", e.text);
	return good;
}

static void expect_rebuilt(const struct writer *want, int n)
{
	struct err e;
	int r = catalog_rebuild(ix, &store, NULL, &e);

	if (r < 0)
		fail_msg("%s", e.text);
	assert_int_equal(r, n);
	expect_dump(want);
	assert_true(is_good());
}

/* ---- Tests ---- */

static void test_equals_the_incremental_one(void **state)
{
	struct catalog_entry last;
	struct writer kept;
	char path[300];
	int n;

	(void)state;
	assert_true(is_good());
	n = fill(&last);
	kept = dump();
	assert_true(is_good());
	expect_rebuilt(&kept, n); /* over itself */

	ix->ops->close(ix);
	snprintf(path, sizeof(path), "%s/index", dir);
	test_dir_remove(strdup(path)); /* deleting it is no disaster */
	open_index(true);
	assert_false(is_good());
	expect_rebuilt(&kept, n);
	ix->ops->close(ix);
	open_index(false);
	expect_dump(&kept);
	assert_true(is_good());
	writer_free(&kept);
}

static void put_raw(const struct catalog_key *k, const void *value, size_t len)
{
	struct index_entry t = { k->bytes, k->len, value, len };

	assert_int_equal(ix->ops->write(ix, &t, 1, true), 0);
}

static void test_check_finds_differences(void **state)
{
	struct catalog_entry last, c;
	struct catalog_key k;
	struct writer kept;
	struct err e;
	int n;

	(void)state;
	n = fill(&last);
	kept = dump();

	assert_int_equal(catalog_remove(ix, &last.id, &e), 0); /* a lost write */
	assert_false(is_good());
	expect_rebuilt(&kept, n);

	c = last;
	c.id.step++; /* a lost removal */
	assert_int_equal(catalog_put(ix, &c, &e), 0);
	assert_false(is_good());
	expect_rebuilt(&kept, n);

	c = last;
	c.root.b[5] ^= 1;
	assert_int_equal(catalog_put(ix, &c, &e), 0);
	assert_false(is_good());
	expect_rebuilt(&kept, n);

	c = last;
	c.pinned = c.suspect = true; /* are not in the files */
	assert_int_equal(catalog_put(ix, &c, &e), 0);
	assert_true(is_good());
	expect_rebuilt(&kept, n);

	key_digest(&k, CATALOG_LAYOUT, &last.layout); /* a layout that came half */
	put_raw(&k, NULL, 0);
	assert_false(is_good());
	expect_rebuilt(&kept, n);

	k = (struct catalog_key){ .bytes = { CATALOG_SCHEMA }, .len = 1 };
	put_raw(&k, "\1\0\0\0", 4); /* of another version */
	assert_false(is_good());
	k = (struct catalog_key){ .bytes = { 'Z', 1 }, .len = 2 };
	put_raw(&k, "?", 1); /* with things in it that we do not know */
	expect_rebuilt(&kept, n);
	writer_free(&kept);
}

static void flip_file(const char *path)
{
	char full[600];
	char byte;
	int fd;

	snprintf(full, sizeof(full), "%s/%s", dir, path);
	fd = open(full, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &byte, 1, 20), 1);
	byte ^= 4;
	assert_int_equal(pwrite(fd, &byte, 1, 20), 1);
	close(fd);
}

static int count_shard(void *arg, uint32_t rank, const struct shard *s)
{
	(void)rank;
	(void)s;
	++*(int *)arg;
	return 0;
}

static void test_damaged_files(void **state)
{
	char path[DISK_PATH_MAX + 1], hex[ID_TEXT_MAX];
	struct catalog_entry last, got;
	int n, found = 0;
	struct err e;

	(void)state;
	n = fill(&last);
	path_commit(path, &last.id);
	flip_file(path);
	assert_false(is_good()); /* the index lists what no file proves */
	assert_int_equal(catalog_rebuild(ix, &store, NULL, &e), n - 1);
	assert_int_equal(catalog_get(ix, &last.id, &got, &e), CKPT_ENOTFOUND);
	assert_true(is_good());

	hex_format(hex, a_declaration.b, sizeof(a_declaration.b));
	snprintf(path, sizeof(path), "declarations/%s", hex);
	flip_file(path);
	hex_format(hex, layouts[1].b, sizeof(layouts[1].b));
	snprintf(path, sizeof(path), "layouts/%s", hex);
	flip_file(path);
	assert_int_equal(catalog_rebuild(ix, &store, NULL, &e), n - 1); /* they are there */
	assert_true(is_good());
	for (int i = 0; i < LAYOUTS; i++) {
		int r = catalog_tensor(ix, &layouts[i], "tensor.0", 8, count_shard, &found, &e);

		assert_int_equal(r, i < 2 ? CKPT_ENOTFOUND : 0);
		assert_int_equal(i < 2, strstr(e.text, "damaged") != NULL);
		err_clear(&e);
	}
	assert_int_equal(found, worlds[2] + worlds[3] + worlds[4]);
}

static void unlink_object(const char *folder, const struct digest *d)
{
	char path[DISK_PATH_MAX + 1], hex[ID_TEXT_MAX];

	hex_format(hex, d->b, sizeof(d->b));
	snprintf(path, sizeof(path), "%s/%s", folder, hex);
	assert_int_equal(disk->ops->unlink(disk, path), 0);
}

/* What the shard files hold is enough (I8), and the objects are there again afterwards. */
static void test_lost_objects(void **state)
{
	struct checkpoint_id id = make_id(5, 3);
	struct shard_footer shards[RANKS];
	struct catalog_entry last;
	struct digest *ranks = NULL;
	struct writer kept;
	uint32_t world;
	struct err e;
	int n;

	(void)state;
	n = fill(&last) + 1;
	make_folder(&id);
	write_shards(&id, LAYOUTS - 1, shards);
	publish(&id, LAYOUTS - 1, shards, &last);
	assert_int_equal(catalog_put(ix, &last, &e), 0);
	kept = dump();
	assert_int_equal(layout_file_get(&store, &last.layout, &ranks, &world, &e), 0);
	unlink_object("declarations", &ranks[0]);
	expect_rebuilt(&kept, n);
	unlink_object("declarations", &ranks[0]); /* is there again */
	unlink_object("layouts", &last.layout);
	expect_rebuilt(&kept, n);
	unlink_object("layouts", &last.layout);
	alloc_free(ranks);
	writer_free(&kept);
}

#ifdef CKPT_FAULTS
/* Ends a rebuild at each write: what is left is known to be no good, and is rebuilt. */
static void test_rebuild_cut_short(void **state)
{
	struct catalog_entry last;
	struct writer kept;
	int n, r = -EIO;
	struct err e;

	(void)state;
	n = fill(&last);
	kept = dump();
	for (uint64_t at = 1; r < 0; at++) {
		fault_disarm_all();
		fault_arm(FAULT_INDEX_WRITE, FAULT_ERROR, at, true);
		r = catalog_rebuild(ix, &store, NULL, &e);
		fault_disarm_all();
		assert_true(r == n || r == -EIO);
		if (at == 1)
			expect_dump(&kept); /* nothing was done yet */
		else if (r < 0)
			assert_false(is_good());
		assert_true(at < 1000);
		if (at % 5 == 0)
			expect_rebuilt(&kept, n);
	}
	expect_dump(&kept);
	writer_free(&kept);
}

static const struct index_ops *real_ops;
static atomic_bool cancel;
static uint64_t writes_left;

static int write_and_cancel(struct index *index, const struct index_entry *entries, size_t n,
			    bool sync)
{
	if (--writes_left == 0)
		cancel = true;
	return real_ops->write(index, entries, n, sync);
}

/* Cancels it at each write, as above. */
static void test_rebuild_cancelled(void **state)
{
	struct catalog_entry last;
	struct index_ops ops;
	struct writer kept;
	int n, r = -ECANCELED;
	struct err e;

	(void)state;
	n = fill(&last);
	kept = dump();
	real_ops = ix->ops;
	ops = *real_ops;
	ops.write = write_and_cancel;
	for (uint64_t at = 1; r < 0; at++) {
		cancel = false;
		writes_left = at;
		ix->ops = &ops;
		r = catalog_rebuild(ix, &store, &cancel, &e);
		ix->ops = real_ops;
		assert_true(r == n || r == -ECANCELED);
		if (r < 0)
			assert_false(is_good());
		assert_true(at < 1000);
		if (at % 5 == 0)
			expect_rebuilt(&kept, n);
	}
	expect_dump(&kept);
	writer_free(&kept);
}

static void test_allocation_failures(void **state)
{
	struct catalog_entry last;
	struct writer kept;
	int n, r = -ENOMEM;
	struct err e;
	bool good;

	(void)state;
	n = fill(&last);
	kept = dump();
	for (uint64_t at = 1; r == -ENOMEM; at += 1 + at / 16) {
		alloc_fail_at(at, false);
		r = catalog_rebuild(ix, &store, NULL, &e);
		if (r == -ENOMEM)
			assert_non_null(strstr(e.text, "memory"));
		else
			assert_int_equal(alloc_fired(), false);
		alloc_fail_at(0, false);
	}
	assert_int_equal(r, n);
	r = -ENOMEM;
	for (uint64_t at = 1; r == -ENOMEM; at++) {
		alloc_fail_at(at, false);
		r = catalog_check(ix, &store, &good, &e);
		assert_true(r == -ENOMEM || !alloc_fired());
		alloc_fail_at(0, false);
	}
	assert_true(r == 0 && good);
	expect_dump(&kept);
	writer_free(&kept);
}
#endif

static void test_layout_files(void **state)
{
	struct digest in[3] = { { { 1 } }, { { 2 } }, { { 3 } } }, *out = NULL, name, other;
	uint32_t world = 0;
	struct err e;

	(void)state;
	assert_int_equal(layout_file_put(&store, in, 3, &name, &e), 0);
	assert_int_equal(layout_file_put(&store, in, 3, &name, &e), 0);
	assert_int_equal(layout_file_put(&store, in, 2, &other, &e), 0);
	assert_false(digest_equal(&name, &other));
	assert_int_equal(layout_file_get(&store, &name, &out, &world, &e), 0);
	assert_int_equal(world, 3);
	assert_memory_equal(out, in, sizeof(in));
	alloc_free(out);
	name.b[0] ^= 1;
	assert_int_equal(layout_file_get(&store, &name, &out, &world, &e), CKPT_ENOTFOUND);
}

/* What goes takes with it what nobody else uses: the index stays what a rebuild would make. */
static void test_removal_leaves_nothing_behind(void **state)
{
	struct catalog_entry last;
	struct err e;
	int n = fill(&last);

	(void)state;
	for (uint8_t job = 3; job >= 1; job--) {
		for (uint64_t step = 1; step <= 4u + job; step++) {
			struct checkpoint_id id = make_id(job, step * 100);
			char path[2 * DISK_PATH_MAX];
			struct writer kept;

			path_checkpoint(path, &id);
			strcat(path, "/COMMIT");
			assert_int_equal(disk->ops->unlink(disk, path), 0);
			assert_int_equal(catalog_remove(ix, &id, &e), 0);
			assert_int_equal(catalog_remove(ix, &id, &e), 0);
			assert_true(is_good());
			kept = dump();
			expect_rebuilt(&kept, --n);
			writer_free(&kept);
		}
	}
	assert_int_equal(n, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_equals_the_incremental_one, setup, teardown),
		cmocka_unit_test_setup_teardown(test_removal_leaves_nothing_behind, setup,
						teardown),
		cmocka_unit_test_setup_teardown(test_check_finds_differences, setup, teardown),
		cmocka_unit_test_setup_teardown(test_damaged_files, setup, teardown),
		cmocka_unit_test_setup_teardown(test_lost_objects, setup, teardown),
#ifdef CKPT_FAULTS
		cmocka_unit_test_setup_teardown(test_rebuild_cut_short, setup, teardown),
		cmocka_unit_test_setup_teardown(test_rebuild_cancelled, setup, teardown),
		cmocka_unit_test_setup_teardown(test_allocation_failures, setup, teardown),
#endif
		cmocka_unit_test_setup_teardown(test_layout_files, setup, teardown),
	};

	return cmocka_run_group_tests_name("catalog rebuild", tests, NULL, NULL);
}
