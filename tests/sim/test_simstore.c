/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_simstore.c - the real files of storage/ on the simulated disk: written, published, read,
 * expired and recycled through spare/, with a kill or a power loss at any step.
 *
 * The oracle knows which checkpoints were published and which it began to expire:
 *   - a published one is there, with the right bytes, unless one of its files was damaged (I7, I8);
 *   - bytes that are handed out are right, damaged or not (I2);
 *   - what a reader has open keeps its bytes while the checkpoint is expired (I9).
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "codec/digest.h"
#include "model/table.h"
#include "storage/recover.h"
#include "storage/shard_reader.h"
#include "storage/spare.h"
#include "tests/lib/test.h"
#include "tests/sim/byte_table.h"
#include "tests/sim/disk.h"
#include "tests/sim/life.h"

#define WORLD 2
#define STEPS_MAX 64
#define KEEP 2
#define IMAGE_MAX 8192
#define SPARE_BYTES (256u << 10)
#define LEAF 64
#define CHUNK 256

static const struct job_id job = { { 1, 2, 3 } };
static _Alignas(DISK_ALIGN) uint8_t scratch[2 * IMAGE_MAX];

enum fate { NOTHING, TRIED, PUBLISHED, EXPIRED };

struct saver {
	struct world *w;
	struct disk *disk;
	struct store store;
	struct disk_queue *queue;
	bool good_disk; /* no faults from here on: everything must succeed */
	enum fate fate[STEPS_MAX];
	bool seen[STEPS_MAX];
	unsigned next;
	uint64_t published, expired, read_back, recycled;
	const char *wrong;
	unsigned wrong_step;
};

static void accuse(struct saver *x, unsigned step, const char *what)
{
	if (x->wrong)
		return;
	x->wrong = what;
	x->wrong_step = step;
	world_note(x->w, what, step, 0, 0);
}

static struct checkpoint_id id_of(unsigned step)
{
	return (struct checkpoint_id){ job, step, { { (uint8_t)step, 9 } } };
}

static size_t image_bytes(unsigned step, uint32_t rank)
{
	return 2500 + 700 * rank + 37 * step % 1000;
}

static void fill_image(unsigned step, uint32_t rank, uint8_t *ret)
{
	test_fill(ret, image_bytes(step, rank), 1000 * step + rank + 1);
}

/* ---- Saving ---- */

static int make_table(unsigned step, uint32_t rank, const uint8_t *image, void **ret,
		      size_t *ret_len)
{
	struct digest leaves[IMAGE_MAX / LEAF];
	uint64_t len = image_bytes(step, rank);

	digest_leaves(image, len, LEAF, 0, (len - 1) / LEAF, leaves);
	return byte_table((struct rank_table_parts){.rank = rank,
						    .world = WORLD,
						    .geometry = {LEAF, CHUNK},
						    .image_len = len,
						    .leaves = leaves},
			  ret, ret_len);
}

static int save_shard(struct saver *x, unsigned step, uint32_t rank, struct shard_footer *ret)
{
	struct checkpoint_id id = id_of(step);
	struct shard_writer *sw;
	uint8_t *block = alloc_zero(IMAGE_MAX + DISK_ALIGN), *image;
	uint64_t len = image_bytes(step, rank);
	void *table = NULL;
	size_t table_len = 0;
	atomic_bool cancel = false;
	int r = block ? 0 : -ENOMEM;

	image = block + (DISK_ALIGN - (uintptr_t)block % DISK_ALIGN) % DISK_ALIGN;
	if (r == 0) {
		fill_image(step, rank, image);
		r = make_table(step, rank, image, &table, &table_len);
	}
	if (r == 0)
		r = shard_begin(&x->store, &id, rank, len, table_len, &sw, NULL);
	if (r == 0) {
		r = shard_write_image(sw, x->queue, image, 1, &cancel, NULL);
		if (r == 0)
			r = shard_finish(sw, table, table_len, ret, NULL);
		else
			shard_abandon(sw);
	}
	alloc_free(table);
	alloc_free(block);
	return r;
}

static int publish(struct saver *x, unsigned step, struct shard_footer *shards)
{
	struct rank_line lines[WORLD];
	struct commit_file c = { .id = id_of(step), .job_name = "sim", .uid = 1000, .world = WORLD,
				 .record_n = step, .epoch = 1, .shards = shards,
				 .job_record = (void *)"record 0", .job_record_len = 8 };
	int r = -EIO;

	for (uint32_t i = 0; i < WORLD; i++) {
		lines[i] = (struct rank_line){ i, shards[i].table_len, shards[i].table };
		c.bytes += image_bytes(step, i);
	}
	c.root = root_digest(lines, WORLD);
	/* An error says "unknown" (I10): once more. */
	for (int i = 0; i < 2 && r < 0; i++)
		r = commit_publish(&x->store, &c, NULL);
	return r;
}

static void save(struct saver *x)
{
	unsigned step = x->next++;
	struct shard_footer shards[WORLD];
	int r = 0;

	x->fate[step] = TRIED;
	for (uint32_t i = 0; i < WORLD && r == 0; i++) {
		r = save_shard(x, step, i, &shards[i]);
		if (r < 0) /* the file is lost: anew, elsewhere (design 7) */
			r = save_shard(x, step, i, &shards[i]);
	}
	if (r == 0)
		r = publish(x, step, shards);
	if (r == 0) {
		x->fate[step] = PUBLISHED;
		x->published++;
	} else if (x->good_disk && r != CKPT_ENOSPACE) {
		accuse(x, step, "a save failed on a good disk");
	}
}

/* ---- Reading ---- */

static bool is_damaged(struct saver *x, unsigned step)
{
	struct checkpoint_id id = id_of(step);
	char path[DISK_PATH_MAX + 1];
	bool bad;

	path_commit(path, &id);
	bad = disk_is_damaged(x->disk, path);
	for (uint32_t i = 0; i < WORLD; i++) {
		path_shard(path, &id, i);
		bad |= disk_is_damaged(x->disk, path);
	}
	return bad;
}

/* All chunks of an open shard: 0 when all could be read. What is read must be right. */
static int read_shard(struct saver *x, unsigned step, struct shard_reader *sr)
{
	uint8_t want[IMAGE_MAX];
	uint64_t at = 0;

	fill_image(step, sr->table.rank, want);
	for (uint64_t i = 0; i < sr->n_chunks; i++) {
		const void *bytes;
		size_t len;
		int r = shard_read_chunk(sr, i, NULL, scratch, &bytes, &len, NULL);

		if (r < 0)
			return r;
		if (at + len > image_bytes(step, sr->table.rank) ||
		    memcmp(bytes, want + at, len) != 0)
			accuse(x, step, "wrong bytes were handed out (I2)");
		at += len;
	}
	if (at != image_bytes(step, sr->table.rank))
		accuse(x, step, "a shard is too short (I2)");
	return 0;
}

static int read_checkpoint(struct saver *x, unsigned step, const struct commit_file *c)
{
	int r = 0;

	for (uint32_t i = 0; i < c->world && r == 0; i++) {
		struct shard_reader sr;

		r = shard_open(&x->store, &c->id, &c->shards[i], &sr, NULL);
		if (r < 0)
			break;
		r = read_shard(x, step, &sr);
		shard_close(&sr);
	}
	x->read_back += r == 0;
	return r;
}

static int see_checkpoint(void *arg, const struct checkpoint_id *id, const struct commit_file *c,
			  const struct err *why)
{
	struct saver *x = arg;
	unsigned step = (unsigned)id->step;
	struct checkpoint_id want = id_of(step);
	int r;

	if (step >= STEPS_MAX || memcmp(&want, id, sizeof(want)) != 0 || x->fate[step] == NOTHING) {
		accuse(x, step, "a checkpoint that nobody saved");
		return 1;
	}
	x->seen[step] = c != NULL;
	if (!c) {
		if (why->code == CKPT_ECORRUPT && x->good_disk && !is_damaged(x, step))
			accuse(x, step, "an undamaged COMMIT is called damaged");
		if (why->code == CKPT_ENOTFOUND && x->fate[step] != PUBLISHED)
			ignore_result(checkpoint_discard(&x->store, id, NULL));
		return 0;
	}
	r = read_checkpoint(x, step, c);
	if (r < 0 && x->good_disk && !is_damaged(x, step))
		accuse(x, step, "a COMMIT whose bytes are not there (I8)");
	return x->wrong != NULL;
}

/* ---- Expiring, with a reader that has it open ---- */

static void expire(struct saver *x, unsigned step)
{
	struct checkpoint_id id = id_of(step);
	struct commit_file c = { 0 };
	struct shard_reader sr;
	bool reading = false, damaged = is_damaged(x, step); /* asked while it has its names */

	if (world_one_in(x->w, 3) && commit_read(&x->store, &id, &c, NULL) == 0) {
		reading = shard_open(&x->store, &id, &c.shards[0], &sr, NULL) == 0;
		commit_file_fini(&c);
	}
	x->fate[step] = EXPIRED;
	if (checkpoint_expire(&x->store, &id, SPARE_BYTES, NULL) == 0)
		x->expired++;
	else if (x->good_disk)
		accuse(x, step, "expiry failed on a good disk");
	if (reading) {
		save(x); /* it may take what was given to spare/ */
		if (read_shard(x, step, &sr) < 0 && x->good_disk && !damaged)
			accuse(x, step, "a reader lost its bytes (I9)");
		shard_close(&sr);
	}
}

static void expire_old(struct saver *x)
{
	unsigned newer = 0;

	for (unsigned step = x->next; step-- > 0;) {
		if (x->fate[step] != PUBLISHED)
			continue;
		if (newer++ >= KEEP)
			expire(x, step);
	}
}

/* ---- One life ---- */

static void look(struct saver *x)
{
	memset(x->seen, 0, sizeof(x->seen));
	if (store_each_checkpoint(&x->store, &job, see_checkpoint, x, NULL) < 0)
		return; /* nothing was ever saved, or the disk does not answer */
	for (unsigned step = 0; step < x->next; step++) {
		if (x->fate[step] == PUBLISHED && !x->seen[step] && x->good_disk &&
		    !is_damaged(x, step))
			accuse(x, step, "a published checkpoint is lost (I7)");
	}
}

static void saver_main(void *arg)
{
	struct saver *x = arg;
	struct store_options o = { .geometry = { LEAF, CHUNK }, .transfer = 4096 };
	struct err e = { 0 };

	if (store_open(x->disk, &o, &x->store, &e) < 0) {
		if (x->good_disk)
			accuse(x, 0, "the data folder does not open on a good disk");
		return;
	}
	if (x->disk->ops->queue_open(x->disk, 4, &x->queue) == 0) {
		ignore_result(spare_clear(&x->store, NULL)); /* it costs only files */
		look(x);
		for (int i = 0; i < 4 && x->next < STEPS_MAX - 8 && !x->wrong; i++) {
			save(x);
			expire_old(x);
		}
		if (x->good_disk && !x->wrong)
			look(x);
		x->disk->ops->queue_close(x->queue);
	}
	store_close(&x->store);
}

enum after { STAY_UP, MAYBE_POWER_LOSS, POWER_LOSS };

/* crash_in: the step from now at which it dies; 0: it ends by itself. */
static void live_once(struct saver *x, uint64_t crash_in, enum after after)
{
	struct life_options o = { .name = "saver" };
	struct life *l;

	x->w->crash_at_op = crash_in ? x->w->ops + crash_in : 0;
	l = life_start(x->w, &o, saver_main, x);
	world_run(x->w, UINT64_MAX, NULL, NULL);
	assert_int_equal(disk_open_files(x->disk), 0);
	if (l->alive)
		assert_int_equal(life_end(l), 0);
	life_free(l);
	if (after == POWER_LOSS || (after == MAYBE_POWER_LOSS && world_one_in(x->w, 2)))
		disk_power_loss(x->disk);
}

static struct saver *saver_new(uint64_t seed)
{
	struct saver *x = alloc_zero(sizeof(*x));

	assert_non_null(x);
	x->w = world_new(seed);
	return x;
}

static void saver_free(struct saver *x)
{
	if (x->wrong && x->w->trace)
		disk_dump(x->disk);
	disk_sim_free(x->disk);
	world_free(x->w);
	alloc_free(x);
}

struct totals {
	uint64_t published, expired, read_back, faults;
};

/* One seed; NULL or what was wrong. */
static const char *store_breaks(uint64_t seed, struct totals *t, uint64_t *ret_hash)
{
	struct saver *x = saver_new(seed);
	struct disk_options o;
	const char *wrong;

	disk_options_default(&o);
	if (world_one_in(x->w, 2))
		disk_options_atlas(&o, x->w);
	if (world_one_in(x->w, 4))
		o.bytes = 96u << 10; /* it will run full */
	x->disk = disk_sim_new(x->w, &o);
	for (int life = 0; life < 3 && !x->wrong; life++)
		live_once(x, 1 + world_random(x->w, 400), MAYBE_POWER_LOSS);
	memset(disk_sim_options(x->disk)->one_in, 0, sizeof(o.one_in));
	x->good_disk = true;
	if (!x->wrong)
		live_once(x, 0, STAY_UP);
	t->published += x->published;
	t->expired += x->expired;
	t->read_back += x->read_back;
	for (int f = 0; f < DISK_FAULTS; f++)
		t->faults += disk_fault_count(x->disk, (enum disk_fault)f);
	world_note(x->w, "disk", disk_digest(x->disk), 0, 0);
	*ret_hash = world_hash(x->w);
	wrong = x->wrong;
	saver_free(x);
	return wrong;
}

/* One life without faults, the power lost at its step n (0: never), then one that looks. */
static const char *power_loss_at(uint64_t seed, uint64_t n, uint64_t *ret_ops)
{
	struct saver *x = saver_new(seed);
	struct disk_options o;
	const char *wrong;

	disk_options_default(&o);
	x->disk = disk_sim_new(x->w, &o);
	x->good_disk = true;
	live_once(x, n, POWER_LOSS);
	*ret_ops = x->w->ops;
	if (!x->wrong)
		live_once(x, 0, POWER_LOSS);
	wrong = x->wrong;
	saver_free(x);
	return wrong;
}

static void test_power_loss_at_every_step(void **state)
{
	uint64_t seeds = test_cap("CKPT_SIM_SEEDS", 600) / 150, points = 0;

	(void)state;
	for (uint64_t seed = 1; seed <= seeds; seed++) {
		uint64_t ops, at;

		assert_null(power_loss_at(seed, 0, &ops));
		for (uint64_t n = 1; n <= ops; n++, points++) {
			const char *wrong = power_loss_at(seed, n, &at);

			assert_int_equal(at, n);
			if (wrong)
				fail_msg("seed %llu step %llu: %s", (unsigned long long)seed,
					 (unsigned long long)n, wrong);
		}
	}
	printf("%llu points\n", (unsigned long long)points);
	assert_true(points > 200 * seeds);
}

static void test_published_is_durable(void **state)
{
	uint64_t first = test_seed(1), n = test_cap("CKPT_SIM_SEEDS", 600), hash, again;
	struct totals t = { 0 }, other = { 0 };

	(void)state;
	for (uint64_t seed = first; seed < first + n; seed++) {
		const char *wrong = store_breaks(seed, &t, &hash);

		if (wrong)
			fail_msg("seed %llu: %s", (unsigned long long)seed, wrong);
		if (seed % 16)
			continue;
		store_breaks(seed, &other, &again);
		assert_int_equal(hash, again);
	}
	printf("%llu seeds: %llu published, %llu expired, %llu read back, %llu faults\n",
	       (unsigned long long)n, (unsigned long long)t.published,
	       (unsigned long long)t.expired, (unsigned long long)t.read_back,
	       (unsigned long long)t.faults);
	assert_true(t.published > 4 * n && t.expired > n);
	assert_true(t.read_back > 3 * n && t.faults > n / 2);
}

static void test_planted_bugs_are_found(void **state)
{
#ifdef CKPT_FAULTS
	static const enum planted_bug bugs[] = { BUG_SKIP_SHARD_SYNC, BUG_SKIP_COMMIT_DIR_SYNC,
						 BUG_SKIP_EXPIRE_SYNC, BUG_SKIP_SPARE_LOCK,
						 BUG_SKIP_LEAF_CHECK };

	for (size_t i = 0; i < sizeof(bugs) / sizeof(bugs[0]); i++) {
		uint64_t seed = 1, hash;
		struct totals t = { 0 };
		const char *wrong = NULL;

		bug_set(bugs[i], true);
		while (seed <= 3000 && !(wrong = store_breaks(seed, &t, &hash)))
			seed++;
		bug_set(bugs[i], false);
		printf("%s: seed %llu: %s\n", bug_name(bugs[i]), (unsigned long long)seed,
		       wrong ? wrong : "not found");
		assert_non_null(wrong);
	}
#else
	skip();
#endif
	(void)state;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_published_is_durable),
		cmocka_unit_test(test_power_loss_at_every_step),
		cmocka_unit_test(test_planted_bugs_are_found),
	};
	int r = cmocka_run_group_tests_name("sim store", tests, NULL, NULL);

	fiber_pool_free();
	return r;
}
