/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_simstaging.c - a new job made in incoming/ by the real code of storage/ on the simulated
 * disk, with a loss of power at every step: afterwards jobs/ has nothing of it or all of it, and
 * all of it if its maker was told so. Then publishing goes on and succeeds, if it had come to
 * COMMIT. And a published job is removed: afterwards jobs/ has all of it, or nothing for good.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "codec/digest.h"
#include "model/table.h"
#include "storage/recover.h"
#include "storage/shard_reader.h"
#include "storage/shard_stream.h"
#include "storage/staging.h"
#include "tests/lib/test.h"
#include "tests/sim/byte_table.h"
#include "tests/sim/disk.h"
#include "tests/sim/life.h"

#define WORLD 2
#define LEAF  1024
#define CHUNK DISK_ALIGN

static const struct checkpoint_id id = {.job = {{7, 7, 7}}, .step = 3, .attempt = {{1, 2, 3}}};

struct maker {
	struct world *w;
	struct disk *disk;
	bool told;      /* publishing returned 0 */
	bool committed; /* COMMIT is where it was made */
	const char *wrong;
	bool seen;
};

static size_t image_bytes(uint32_t rank)
{
	return 9000 + 5000 * rank;
}

/* ---- Making ---- */

static int make_table(uint32_t rank, const struct digest *leaves, void **ret, size_t *ret_len)
{
	return byte_table((struct rank_table_parts){.rank = rank,
						    .world = WORLD,
						    .geometry = {LEAF, CHUNK},
						    .image_len = image_bytes(rank),
						    .leaves = leaves},
			  ret, ret_len);
}

static int make_rank(struct stream_pool *p, uint32_t rank, struct shard_footer *ret)
{
	const struct stream_file f = {.id = id,
				      .rank = rank,
				      .image_len = image_bytes(rank),
				      .table_max = 4096,
				      .element = 1};
	const struct digest *leaves = NULL;
	struct shard_stream *s = NULL;
	uint8_t image[16384];
	void *table = NULL;
	size_t len = 0;
	int r = shard_stream_begin(p, &f, &s, NULL);

	if (r < 0)
		return r;
	test_fill(image, f.image_len, rank + 1);
	for (size_t at = 0; at < f.image_len && r == 0; at += 3000)
		r = shard_stream_put(s, at, image + at,
				     f.image_len - at < 3000 ? f.image_len - at : 3000, NULL);
	if (r == 0)
		r = shard_stream_flush(s, &leaves, NULL);
	if (r == 0)
		r = make_table(rank, leaves, &table, &len);
	if (r == 0)
		r = shard_stream_finish(s, table, len, ret, NULL);
	else
		shard_stream_close(s, false);
	alloc_free(table);
	return r;
}

static int make(struct maker *x, struct store *staged)
{
	struct shard_footer shards[WORLD];
	struct rank_line lines[WORLD];
	struct commit_file c = {.id = id,
				.job_name = "made",
				.uid = 1000,
				.world = WORLD,
				.record_n = 3,
				.incarnation = 1,
				.epoch = 1,
				.shards = shards,
				.job_record = (void *)"record 0",
				.job_record_len = 8};
	struct stream_pool *p = NULL;
	int r = stream_pool_new(staged, 4 * CHUNK, &p, NULL);

	for (uint32_t i = 0; i < WORLD && r == 0; i++) {
		r = make_rank(p, i, &shards[i]);
		lines[i] = (struct rank_line){i, shards[i].table_len, shards[i].table};
		c.bytes += image_bytes(i);
	}
	if (r == 0) {
		c.root = root_digest(lines, WORLD);
		r = commit_publish(staged, &c, NULL);
		x->committed = r == 0;
	}
	stream_pool_free(p);
	return r;
}

static int open_stores(struct maker *x, struct staging_disk *d, struct store *real,
		       struct store *staged)
{
	const struct store_options o = {.geometry = {LEAF, CHUNK}, .transfer = CHUNK};
	int r = store_open(x->disk, &o, real, NULL);

	staging_disk_init(d, x->disk);
	*staged = (struct store){.disk = &d->base, .geometry = o.geometry, .transfer = CHUNK};
	return r;
}

static void maker_main(void *arg)
{
	struct maker *x = arg;
	struct staging_disk d;
	struct store real, staged;
	int r = open_stores(x, &d, &real, &staged);

	assert_int_equal(r, 0);
	r = staging_make_folder(&staged, NULL);
	if (r == 0)
		r = make(x, &staged);
	if (r == 0)
		r = staging_publish(&real, &id.job, NULL);
	x->told = r == 0;
	store_close(&real);
}

/* ---- Looking ---- */

static void accuse(struct maker *x, const char *what)
{
	if (!x->wrong)
		x->wrong = what;
}

static void look_at_rank(struct maker *x, struct store *s, const struct shard_footer *f)
{
	static _Alignas(DISK_ALIGN) uint8_t scratch[2 * CHUNK];
	uint8_t want[16384];
	struct shard_reader reader;

	if (shard_open(s, &id, f, &reader, NULL) < 0) {
		accuse(x, "a shard of it cannot be opened");
		return;
	}
	test_fill(want, image_bytes(f->rank), f->rank + 1);
	for (uint64_t i = 0; i < reader.n_chunks; i++) {
		const void *got = NULL;
		size_t len = 0;

		if (shard_read_chunk(&reader, i, NULL, scratch, &got, &len, NULL) < 0 ||
		    memcmp(got, want + i * CHUNK, len) != 0)
			accuse(x, "a chunk of it is wrong");
	}
	shard_close(&reader);
}

/* What any start sees. */
static void look(struct maker *x, struct store *real)
{
	struct commit_file c = {0};
	char path[DISK_PATH_MAX + 1];
	struct disk_file *f = NULL;
	int r = commit_read(real, &id, &c, NULL);

	path_shard(path, &id, 0);
	if (r < 0) {
		if (x->told)
			accuse(x, "it is not there, and its maker was told that it is");
		if (real->disk->ops->open(real->disk, path, DISK_READ, &f) == 0) {
			accuse(x, "part of it is there");
			real->disk->ops->close(f);
		}
		return;
	}
	x->seen = true;
	for (uint32_t i = 0; i < WORLD; i++)
		look_at_rank(x, real, &c.shards[i]);
	commit_file_fini(&c);
}

/* Looks, goes on with publishing where there is a COMMIT, and looks again. */
static void looker_main(void *arg)
{
	struct maker *x = arg;
	struct staging_disk d;
	struct store real, staged;
	struct commit_file c = {0};
	int r = open_stores(x, &d, &real, &staged);

	assert_int_equal(r, 0);
	look(x, &real);
	r = commit_read(&staged, &id, &c, NULL);
	commit_file_fini(&c);
	if (r == 0 || x->seen) {
		if (staging_publish(&real, &id.job, NULL) < 0)
			accuse(x, "it cannot be published");
		x->told = true;
		look(x, &real);
	} else if (x->committed) {
		accuse(x, "COMMIT was durable and is gone");
	} else {
		if (staging_remove(&real, &id.job, NULL) < 0)
			accuse(x, "what is left cannot be taken away");
	}
	store_close(&real);
}

/* ---- Lives ---- */

static void live(struct maker *x, uint64_t crash_in, void (*life_main)(void *))
{
	struct life_options o = {.name = "maker"};
	struct life *l;

	x->w->crash_at_op = crash_in ? x->w->ops + crash_in : 0;
	l = life_start(x->w, &o, life_main, x);
	world_run(x->w, UINT64_MAX, NULL, NULL);
	if (l->alive)
		assert_int_equal(life_end(l), 0);
	life_free(l);
	disk_power_loss(x->disk);
}

/* n 0: it ends by itself. */
static const char *power_loss_at(uint64_t seed, uint64_t n, struct maker *ret)
{
	struct maker x = {.w = world_new(seed)};
	struct disk_options o;

	disk_options_default(&o);
	x.disk = disk_sim_new(x.w, &o);
	live(&x, n, maker_main);
	*ret = x;
	ret->w = NULL;
	live(&x, 0, looker_main);
	ret->seen = x.seen;
	disk_sim_free(x.disk);
	world_free(x.w);
	return x.wrong;
}

static void test_power_loss_at_every_step(void **state)
{
	uint64_t seeds = test_cap("CKPT_SIM_SEEDS", 600) / 60, n, nothing = 0, all = 0;
	struct maker x;

	(void)state;
	for (uint64_t seed = test_seed(1), k = 0; k < seeds; k++) {
		for (n = 1;; n++) {
			const char *wrong = power_loss_at(seed + k, n, &x);

			if (wrong)
				fail_msg("seed %llu step %llu: %s", (unsigned long long)(seed + k),
					 (unsigned long long)n, wrong);
			nothing += !x.seen;
			all += x.seen;
			if (x.told)
				break;
		}
		assert_true(n > 30);
	}
	printf("%llu times nothing, %llu times all of it\n", (unsigned long long)nothing,
	       (unsigned long long)all);
	assert_true(nothing > 20 * seeds && all >= seeds);
}

/* ---- Removing a published job ---- */

static void remover_main(void *arg)
{
	struct maker *x = arg;
	struct staging_disk d;
	struct store real, staged;
	int r = open_stores(x, &d, &real, &staged);

	assert_int_equal(r, 0);
	r = staging_discard(&real, &id.job, NULL);
	x->told = r == 0;
	if (r == 0)
		r = staging_remove_gone(&real, &id.job, NULL);
	store_close(&real);
}

/* What a start sees and does. told: the removal was decided before the loss of power. */
static void starter_main(void *arg)
{
	struct maker *x = arg;
	struct staging_disk d;
	struct store real, staged;
	bool told = x->told;
	int r = open_stores(x, &d, &real, &staged);

	assert_int_equal(r, 0);
	x->told = false;
	look(x, &real);
	if (x->seen && told)
		accuse(x, "it was removed, and is back");
	if (staging_remove_gone(&real, &id.job, NULL) < 0)
		accuse(x, "what is left of it cannot be removed");
	if (x->seen && (staging_discard(&real, &id.job, NULL) < 0 ||
			staging_remove_gone(&real, &id.job, NULL) < 0))
		accuse(x, "it cannot be removed again");
	x->seen = false;
	look(x, &real);
	if (x->seen)
		accuse(x, "it is there after its removal");
	store_close(&real);
}

/* Removes it with a loss of power after n steps. *ret_told: it was removed before. */
static const char *removal_at(uint64_t seed, uint64_t n, bool *ret_told)
{
	struct maker x = {.w = world_new(seed)};
	struct disk_options o;

	disk_options_default(&o);
	x.disk = disk_sim_new(x.w, &o);
	live(&x, 0, maker_main);
	assert_true(x.told);
	x.told = false;
	live(&x, n, remover_main);
	*ret_told = x.told;
	live(&x, 0, starter_main);
	disk_sim_free(x.disk);
	world_free(x.w);
	return x.wrong;
}

static void test_removal(void **state)
{
	uint64_t seeds = test_cap("CKPT_SIM_SEEDS", 600) / 20;
	bool told;

	(void)state;
	for (uint64_t seed = test_seed(1), k = 0; k < seeds; k++) {
		uint64_t n = 1, decided = 0;

		do {
			const char *wrong = removal_at(seed + k, n, &told);

			if (wrong)
				fail_msg("seed %llu step %llu: %s", (unsigned long long)(seed + k),
					 (unsigned long long)n, wrong);
			decided += told;
			n++;
		} while (decided < 12); /* steps behind it remove the files */
		assert_true(n > 12 + 3);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_removal),
		cmocka_unit_test(test_power_loss_at_every_step),
	};
	int r = cmocka_run_group_tests_name("sim staging", tests, NULL, NULL);

	fiber_pool_free();
	return r;
}
