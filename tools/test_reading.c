/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a checkpoint by parts: every element against the formula of test_checkpoint.h, the cost
 * against what is read, damage, tables that are dropped, memory that cannot be had.
 */
#include <config.h>

#include "tests/lib/test.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "storage/store.h"
#include "tools/reading.h"
#include "tools/test_checkpoint.h"

#define WORLD 3

struct fixture {
	char *folder;
	struct checkpoint_id id;
	struct reading *r;
};

static const uint64_t rows[] = {301, 64}, cols[] = {40, 303}, cube[] = {7, 5, 6},
		      flat[] = {100, 70}, one[] = {1000}, none[] = {0, 9};

/* TP by rows and by columns, ZeRO, replicated, on one rank, in parts, scalar, empty. */
static uint32_t shards_of(uint32_t rank, struct shard *s)
{
	uint32_t n = 0;

	s[n++] = test_cut(test_tensor("rows", CKPT_F32, 2, rows), 0, rank, WORLD);
	s[n++] = test_cut(test_tensor("cols", CKPT_BF16, 2, cols), 1, rank, WORLD);
	s[n++] = test_range(test_tensor("flat", CKPT_F64, 2, flat), rank * 7000 / WORLD,
			    (rank + 1) * 7000 / WORLD);
	s[n++] = test_tensor("norm", CKPT_U8, 1, one);
	if (rank == 1)
		s[n++] = test_tensor("cube", CKPT_C128, 3, cube);
	s[n++] = test_cut(test_tensor("fused", CKPT_I64, 2, flat), 0, rank, 2 * WORLD);
	s[n++] = test_cut(test_tensor("fused", CKPT_I64, 2, flat), 0, rank + WORLD, 2 * WORLD);
	s[n++] = test_tensor("scalar", CKPT_I32, 0, NULL);
	s[n++] = test_tensor("none", CKPT_F16, 2, none);
	return n;
}

static struct shard whole(size_t i)
{
	const struct shard all[] = {
		test_tensor("rows", CKPT_F32, 2, rows),  test_tensor("cols", CKPT_BF16, 2, cols),
		test_tensor("flat", CKPT_F64, 2, flat),  test_tensor("norm", CKPT_U8, 1, one),
		test_tensor("fused", CKPT_I64, 2, flat), test_tensor("scalar", CKPT_I32, 0, NULL),
		test_tensor("none", CKPT_F16, 2, none),  test_tensor("cube", CKPT_C128, 3, cube),
	};

	assert_true(i < sizeof(all) / sizeof(all[0]));
	return all[i];
}
#define N_TENSORS 8

static void open_it(struct fixture *f, const char *step, uint64_t tables)
{
	struct reading_options o = {
		.data = f->folder, .job = "alpha", .step = step, .tables = tables};
	struct err e = {0};
	int r = reading_open(&o, &f->r, &e);

	if (r < 0)
		fprintf(stderr, "%s\n", e.text);
	assert_int_equal(r, 0);
}

static int set_up(void **state, int compression)
{
	struct fixture *f = alloc_zero(sizeof(*f));
	struct shard shards[WORLD][16];
	struct test_rank ranks[WORLD];

	f->folder = test_dir_make(NULL);
	for (uint32_t i = 0; i < WORLD; i++)
		ranks[i] = (struct test_rank){shards[i], shards_of(i, shards[i]), i != 2};
	f->id = test_checkpoint_write(&(struct test_checkpoint){.folder = f->folder,
								.job = "alpha",
								.uid = getuid(),
								.step = 12,
								.ranks = ranks,
								.world = WORLD,
								.geometry = {4096, 16384},
								.compression = compression});
	open_it(f, NULL, 0);
	*state = f;
	return 0;
}

static int set_up_raw(void **state)
{
	return set_up(state, 0);
}

static int set_up_packed(void **state)
{
	return set_up(state, 3);
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	reading_close(f->r);
	test_dir_remove(f->folder);
	alloc_free(f);
	return 0;
}

/* ---- What there is ---- */

static void lists_tensors(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(reading_n_tensors(f->r), N_TENSORS);
	for (size_t i = 0; i < N_TENSORS; i++) {
		const struct reading_tensor *t = reading_tensor(f->r, i);
		struct shard w = whole(i);

		assert_int_equal(t->name_len, w.name_len);
		assert_memory_equal(t->name, w.name, w.name_len);
		assert_int_equal(t->dtype, w.dtype);
		assert_int_equal(t->bytes, w.bytes);
		assert_int_equal(reading_find(f->r, w.name, w.name_len), i);
	}
	assert_true(reading_find(f->r, "row", 3) == SIZE_MAX);
	assert_int_equal(reading_commit(f->r)->world, WORLD);
	assert_int_equal(reading_commit(f->r)->id.step, 12);
	assert_string_equal(reading_path(f->r), f->folder);
	assert_int_equal(reading_uid(f->r), getuid());
	assert_int_equal(reading_table(f->r, 1)->rank, 1);
}

static void refuses_what_is_not_there(void **state)
{
	struct fixture *f = *state;
	struct reading_options o = {.data = f->folder, .job = "alpha", .step = "13"};
	struct reading *r = NULL;
	struct err e = {0};

	assert_int_equal(reading_open(&o, &r, &e), CKPT_ENOTFOUND);
	assert_non_null(strstr(e.text, "13"));
	o.job = "beta";
	assert_int_equal(reading_open(&o, &r, &e), CKPT_ENOTFOUND);
	o.job = "alpha";
	o.step = "x";
	assert_true(reading_open(&o, &r, &e) < 0);
	assert_null(r);
}

/* ---- Parts of tensors ---- */

static struct reading_want want_of(struct fixture *f, const struct shard *s)
{
	return (struct reading_want){.tensor = reading_find(f->r, s->name, s->name_len),
				     .box = s->box,
				     .start = s->start,
				     .stop = s->stop,
				     .to = test_malloc(s->bytes + 1)};
}

/* Fetches them, compares, and compares the bytes read with the cost told before. */
static uint64_t check(struct fixture *f, const struct shard *shards, size_t n)
{
	struct reading_want *wants = alloc_array(n, sizeof(*wants));
	uint64_t read = 0, cost = 0;
	struct err e = {0};
	int r;

	for (size_t i = 0; i < n; i++) {
		wants[i] = want_of(f, &shards[i]);
		((uint8_t *)wants[i].to)[shards[i].bytes] = 0xa5;
	}
	assert_int_equal(reading_cost(f->r, wants, n, &cost, &e), 0);
	r = reading_fetch(f->r, wants, n, &read, &e);
	if (r < 0)
		fprintf(stderr, "%s\n", e.text);
	assert_int_equal(r, 0);
	for (size_t i = 0; i < n; i++) {
		uint8_t *expected = test_malloc(shards[i].bytes + 1);

		test_shard_bytes(&shards[i], expected);
		expected[shards[i].bytes] = 0xa5;
		assert_memory_equal(wants[i].to, expected, shards[i].bytes + 1);
		test_free(expected);
		test_free(wants[i].to);
	}
	alloc_free(wants);
	assert_int_equal(read, cost);
	return read;
}

static void reads_whole_tensors(void **state)
{
	struct shard all[N_TENSORS];

	for (size_t i = 0; i < N_TENSORS; i++)
		all[i] = whole(i);
	check(*state, all, N_TENSORS);
	assert_int_equal(check(*state, all, 0), 0);
}

static struct shard random_part(struct rng *g)
{
	struct shard s = whole(rng_below(g, N_TENSORS));
	uint64_t elements = 0, a, b;

	for (uint32_t k = 0; k < s.box.ndim; k++) {
		a = rng_below(g, s.global.dim[k] + 1);
		b = rng_below(g, s.global.dim[k] - a + 1);
		if (rng_below(g, 3) == 0) {
			a = 0;
			b = s.global.dim[k];
		}
		s.box.offset[k] = a;
		s.box.length[k] = b;
	}
	assert_true(box_elements(&s.box, &elements));
	a = rng_below(g, elements + 1);
	return test_range(s, a, a + rng_below(g, elements - a + 1));
}

/* They overlap, and some are equal. */
static void reads_random_parts(void **state)
{
	struct rng_seeded seeded;
	struct rng *g = &seeded.rng;

	rng_seed(&seeded, test_seed(20261122));
	for (int round = 0; round < 60; round++) {
		struct shard s[40];
		size_t n = 1 + rng_below(g, 40);

		for (size_t i = 0; i < n; i++)
			s[i] = i > 0 && rng_below(g, 4) == 0 ? s[rng_below(g, i)] : random_part(g);
		check(*state, s, n);
	}
}

/* However many want them. */
static void reads_each_leaf_once(void **state)
{
	const uint64_t from[] = {10, 0}, length[] = {40, 64};
	struct shard s[6];
	uint64_t one_time;

	for (int i = 0; i < 6; i++)
		s[i] = test_box(whole(0), from, length);
	one_time = check(*state, s, 1);
	assert_int_equal(check(*state, s, 6), one_time);
	s[3] = test_range(s[3], 5, 900);
	s[4] = test_range(s[4], 600, 40 * 64);
	assert_int_equal(check(*state, s, 6), one_time);
	assert_true(one_time <= 40 * 64 * 4 + 2 * 16384);
}

static void reads_with_few_tables(void **state)
{
	struct fixture *f = *state;
	struct shard all[N_TENSORS];

	reading_close(f->r);
	open_it(f, "12", 1);
	for (int round = 0; round < 2; round++)
		for (size_t i = 0; i < N_TENSORS; i++) {
			all[i] = whole(i);
			check(f, &all[i], 1);
			assert_int_equal(reading_table(f->r, (uint32_t)i % WORLD)->rank, i % WORLD);
		}
}

static void reads_blobs(void **state)
{
	struct fixture *f = *state;
	uint8_t expected[256];
	struct err e = {0};
	uint64_t len = 0;
	void *bytes = NULL;

	for (uint32_t i = 0; i < 2; i++) {
		uint64_t n = test_blob_bytes(i, expected);

		assert_int_equal(reading_blob(f->r, i, "rng", 3, &bytes, &len, &e), 0);
		assert_int_equal(len, n);
		assert_memory_equal(bytes, expected, n);
		alloc_free(bytes);
	}
	assert_int_equal(reading_blob(f->r, 2, "rng", 3, &bytes, &len, &e), CKPT_ENOTFOUND);
	assert_int_equal(reading_blob(f->r, 0, "rnh", 3, &bytes, &len, &e), CKPT_ENOTFOUND);
}

/* ---- What goes wrong ---- */

static void flip(struct fixture *f, uint32_t rank, uint64_t offset)
{
	char path[4096], name[DISK_PATH_MAX + 1];
	uint8_t b;
	int fd;

	path_shard(name, &f->id, rank);
	snprintf(path, sizeof(path), "%s/%s", f->folder, name);
	fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &b, 1, (off_t)offset), 1);
	b ^= 0x10;
	assert_int_equal(pwrite(fd, &b, 1, (off_t)offset), 1);
	close(fd);
}

static void names_a_damaged_leaf(void **state)
{
	struct fixture *f = *state;
	struct shard s = whole(0);
	struct reading_want w = want_of(f, &s);
	struct err e = {0};

	flip(f, 2, DISK_ALIGN + 4096 + 7); /* its first tensor, "rows" */
	assert_int_equal(reading_fetch(f->r, &w, 1, NULL, &e), CKPT_ECORRUPT);
	assert_non_null(strstr(e.text, "leaf 1 of rank 2"));
	assert_non_null(strstr(e.text, "'rows'"));
	test_free(w.to);
	s = test_cut(s, 0, 0, WORLD); /* rank 0's part is good */
	check(f, &s, 1);
	s = whole(1);
	check(f, &s, 1);
}

static void reads_on_when_the_source_is_removed(void **state)
{
	struct fixture *f = *state;
	struct shard all[N_TENSORS];
	char command[4200];

	snprintf(command, sizeof(command), "rm -rf %s/jobs", f->folder);
	assert_int_equal(system(command), 0);
	for (size_t i = 0; i < N_TENSORS; i++)
		all[i] = whole(i);
	check(f, all, N_TENSORS);
}

static void names_holes_and_disagreement(void **state)
{
	struct shard s[2] = {test_cut(whole(0), 0, 0, 2), test_tensor("t", CKPT_F32, 1, one)};
	struct shard other[1] = {test_tensor("t", CKPT_F16, 1, one)};
	struct test_rank ranks[2] = {{s, 2, false}, {other, 1, false}};
	struct fixture *f = *state;
	struct test_checkpoint c = {.folder = f->folder,
				    .job = "alpha",
				    .uid = getuid(),
				    .step = 20,
				    .ranks = ranks,
				    .world = 2};
	struct reading_options o = {.data = f->folder, .job = "alpha"};
	struct shard w = whole(0);
	struct reading *r = NULL;
	struct reading_want want;
	struct err e = {0};

	test_checkpoint_write(&c);
	assert_int_equal(reading_open(&o, &r, &e), CKPT_EMISMATCH);
	assert_non_null(strstr(e.text, "rank 0 stores tensor 't' as f32"));
	c.world = 1;
	c.step = 21;
	test_checkpoint_write(&c);
	reading_close(f->r);
	open_it(f, "21", 0);
	want = want_of(f, &w);
	assert_int_equal(reading_fetch(f->r, &want, 1, NULL, &e), CKPT_EMISMATCH);
	assert_non_null(strstr(e.text, "elements [150:301, 0:64] of tensor 'rows'"));
	test_free(want.to);
}

/* diff has two open, and each has a file of each rank: more than the soft limit allows. */
static void opens_several_beside_each_other(void **state)
{
	enum { READINGS = 30 };
	struct fixture *f = *state;
	struct reading_options o = {.data = f->folder, .job = "alpha"};
	struct reading *r[READINGS] = {NULL};
	struct rlimit before, small;
	struct err e = {0};

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	small = before;
	small.rlim_cur = 64 + WORLD;
	if (before.rlim_max < 4 * READINGS * WORLD)
		skip();
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &small), 0);
	for (int i = 0; i < READINGS; i++)
		assert_int_equal(reading_open(&o, &r[i], &e), 0);
	for (int i = 0; i < READINGS; i++)
		reading_close(r[i]);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* Every allocation fails in turn; then all is as if nothing had been. */
static void survives_lack_of_memory(void **state)
{
	struct fixture *f = *state;
	struct reading_options o = {.data = f->folder, .job = "alpha", .threads = 1};
	struct shard s = whole(2);
	struct reading_want w[2] = {want_of(f, &s), want_of(f, &s)};
	uint64_t n = 0;
	bool fired = true;

	w[1].start = 3;
	for (n = 1; fired; n++) {
		struct reading *r = NULL;
		struct err e = {0};
		int rc;

		alloc_fail_at(n, false);
		rc = reading_open(&o, &r, &e);
		if (rc == 0)
			rc = reading_fetch(r, w, 2, NULL, &e);
		fired = alloc_fired();
		alloc_fail_at(0, false);
		assert_true(rc == 0 || (e.code == rc && e.text[0]));
		reading_close(r);
	}
	assert_true(n > 20);
	test_free(w[0].to);
	test_free(w[1].to);
}

int main(void)
{
#define RAW(f)    cmocka_unit_test_setup_teardown(f, set_up_raw, tear_down)
#define PACKED(f) cmocka_unit_test_setup_teardown(f, set_up_packed, tear_down)
	const struct CMUnitTest tests[] = {
		RAW(lists_tensors),
		RAW(refuses_what_is_not_there),
		RAW(reads_whole_tensors),
		PACKED(reads_whole_tensors),
		RAW(reads_random_parts),
		PACKED(reads_random_parts),
		RAW(reads_each_leaf_once),
		RAW(reads_with_few_tables),
		PACKED(reads_with_few_tables),
		RAW(reads_blobs),
		PACKED(reads_blobs),
		RAW(names_a_damaged_leaf),
		RAW(reads_on_when_the_source_is_removed),
		RAW(names_holes_and_disagreement),
		RAW(opens_several_beside_each_other),
		RAW(survives_lack_of_memory),
	};

	unsetenv("CKPT_DATA");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
