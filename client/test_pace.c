/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a load finds the best way to read, with a clock of the test's own, and that what is read is
 * right whichever way it is read.
 */
#include <config.h>

#include "client/pace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "client/clock.h"
#include "client/placer.h"
#include "codec/compress.h"
#include "codec/digest.h"
#include "tests/lib/test.h"

#define MIB (1ull << 20)

/* A load of which each way takes so many ns a byte; returns what it ends with. */
static uint32_t load_at(const uint64_t ns[PACE_WAYS], const struct pace_options *o,
			struct pace_kept *kept, uint32_t *ret_ways)
{
	uint64_t now = 1000, done = 0;
	struct pace p;
	uint32_t seen = 0;

	pace_init(&p, o, now);
	while (done < o->bytes) {
		seen |= 1u << p.way;
		now += MIB * ns[p.way];
		done += MIB;
		pace_placed(&p, MIB, now);
	}
	if (p.kept.known)
		*kept = p.kept;
	*ret_ways = seen;
	return p.way;
}

static void test_the_fastest_way_is_kept(void **state)
{
	(void)state;
	for (uint32_t best = 0; best < PACE_WAYS; best++) {
		struct pace_kept kept = {0};
		struct pace_options o = {
			.threads = 16, .device = 7, .bytes = 8192 * MIB, .kept = &kept};
		uint64_t ns[PACE_WAYS] = {5, 6, 5, 7};
		uint32_t ways;

		ns[best] = 4;
		assert_int_equal(load_at(ns, &o, &kept, &ways), best);
		assert_int_equal(ways, (1u << PACE_WAYS) - 1);
		assert_true(kept.known);
		assert_int_equal(kept.way, best);
		/* The next load, however short, begins with it and tries nothing. */
		o.bytes = 10 * MIB;
		assert_int_equal(load_at(ns, &o, &kept, &ways), best);
		assert_int_equal(ways, 1u << best);
		/* Of another device nothing is known. */
		o.device = 8;
		assert_int_equal(load_at(ns, &o, &kept, &ways), 0);
		assert_int_equal(ways, 1);
	}
}

/* What is tried is a small part of what is loaded, or nothing is. */
static void test_trying_costs_little(void **state)
{
	static const uint64_t ns[PACE_WAYS] = {2, 100, 3, 5};

	(void)state;
	for (uint64_t bytes = 256 * MIB; bytes <= 16384 * MIB; bytes *= 2) {
		struct pace_kept kept = {0};
		struct pace_options o = {.threads = 8, .bytes = bytes, .kept = &kept};
		uint64_t now = 0, slow = 0, least = bytes * ns[0];
		struct pace p;

		pace_init(&p, &o, now);
		for (uint64_t done = 0; done < bytes; done += MIB) {
			slow += p.way ? MIB : 0;
			now += MIB * ns[p.way];
			pace_placed(&p, MIB, now);
		}
		assert_true(slow <= bytes / 16);
		/* And two reads of the slowest way: the second one's end is too late. */
		assert_true(now - least <= least / 30 + 2 * MIB * ns[1]);
		assert_int_equal(kept.known, 0);
		assert_int_equal(p.kept.known, bytes >= 4096 * MIB);
	}
}

static void test_depth(void **state)
{
	struct pace_options o = {.threads = 16};
	struct pace p;

	(void)state;
	pace_init(&p, &o, 0);
	assert_int_equal(pace_depth(&p), 8);
	p.way = 1;
	assert_int_equal(pace_depth(&p), 16);
	for (uint32_t threads = 1; threads <= 3; threads++) {
		o.threads = threads;
		pace_init(&p, &o, 0);
		assert_int_equal(pace_depth(&p), threads == 1 ? 1 : 2);
	}
}

/* ---- Real files ---- */

#define LEAF   (64u << 10)
#define CHUNK  (1u << 20)
#define CHUNKS 24u

struct file {
	char *dir, *path;
	uint8_t *bytes, *leaves, *places, *have;
	struct load_source in;
	struct source source;
};

static void make_file(struct file *f)
{
	uint64_t len = (uint64_t)CHUNKS * CHUNK;
	int fd;

	*f = (struct file){.dir = test_dir_make(NULL),
			   .bytes = malloc(len),
			   .have = calloc(1, len),
			   .leaves = calloc(len / LEAF, 16),
			   .places = calloc(CHUNKS, CHUNK_PLACE_BYTES)};
	assert_true(asprintf(&f->path, "%s/file", f->dir) > 0);
	for (uint64_t i = 0; i < len / 8; i++)
		put_le64(f->bytes + i * 8, (i + 1) * 0x9e3779b97f4a7c15u);
	digest_leaves(f->bytes, len, LEAF, 0, len / LEAF - 1, (void *)f->leaves);
	fd = open(f->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_int_equal(pwrite(fd, f->bytes, len, 4096), (ssize_t)len);
	assert_int_equal(fdatasync(fd), 0);
	close(fd);
	for (uint32_t i = 0; i < CHUNKS; i++) {
		struct chunk_place p = {.offset = 4096 + (uint64_t)i * CHUNK,
					.stored = CHUNK,
					.encoding = ENCODING_RAW};

		chunk_place_put(f->places + i * CHUNK_PLACE_BYTES, &p);
	}
	f->in = (struct load_source){.kind = LOAD_FILE,
				     .image_len = len,
				     .geometry = {.leaf = LEAF, .chunk = CHUNK},
				     .leaves = f->leaves,
				     .places = f->places};
	f->source =
		(struct source){.in = &f->in, .fd = open(f->path, O_RDONLY | O_CLOEXEC | O_DIRECT)};
}

static void drop_file(struct file *f)
{
	close(f->source.fd);
	free(f->bytes);
	free(f->leaves);
	free(f->places);
	free(f->have);
	free(f->path);
	test_dir_remove(f->dir);
}

static int run(struct file *f, uint64_t trial, struct pace_kept *kept, struct placed *ret)
{
	struct plan_piece piece = {.run = f->in.image_len};
	struct place_target target = {.ptr = f->have};
	struct placing p = {.sources = &f->source,
			    .n_sources = 1,
			    .pieces = &piece,
			    .n_pieces = 1,
			    .targets = &target,
			    .threads = 8,
			    .memory = 64u << 20,
			    .trial = trial,
			    .pace = kept,
			    .deadline = NEVER};
	struct err e = {0};

	*ret = (struct placed){0};
	memset(f->have, 0, f->in.image_len);
	return placer_run(&p, ret, &e);
}

static void test_every_way_reads_the_same(void **state)
{
	struct pace_kept kept = {0};
	struct placed placed;
	struct file f;

	(void)state;
	make_file(&f);
	if (f.source.fd < 0) {
		drop_file(&f);
		skip(); /* no O_DIRECT here */
	}
	assert_int_equal(run(&f, CHUNK / 4, &kept, &placed), 0);
	assert_memory_equal(f.have, f.bytes, f.in.image_len);
	assert_true(kept.known);
	assert_true(source_through_cache(&f.source, false));
	for (uint32_t way = 0; way < PACE_WAYS; way++) {
		kept.way = way;
		assert_int_equal(run(&f, 0, &kept, &placed), 0);
		assert_memory_equal(f.have, f.bytes, f.in.image_len);
		assert_int_equal(kept.way, way);
		/* The description is as it came, or as this way left it. */
		assert_int_equal(!(fcntl(f.source.fd, F_GETFL) & O_DIRECT),
				 pace_ways[way].through_cache);
		assert_true(source_through_cache(&f.source, false));
	}
	drop_file(&f);
}

/* Damage is found whichever way it is read, and ends the wait of all threads (I2). */
static void test_every_way_finds_damage(void **state)
{
	struct placed placed;
	struct file f;
	int fd;

	(void)state;
	make_file(&f);
	if (f.source.fd < 0) {
		drop_file(&f);
		skip();
	}
	fd = open(f.path, O_WRONLY | O_CLOEXEC);
	assert_int_equal(pwrite(fd, "\xa5\x5a", 2, 4096 + 13 * (off_t)CHUNK + 70000), 2);
	assert_int_equal(fdatasync(fd), 0);
	close(fd);
	for (uint32_t way = 0; way < PACE_WAYS; way++) {
		struct pace_kept kept = {.known = true, .way = way};
		struct stat st;

		assert_int_equal(fstat(f.source.fd, &st), 0);
		kept.device = st.st_dev;
		assert_int_equal(run(&f, 0, &kept, &placed), CKPT_ECORRUPT);
		assert_true(placed.bad);
		assert_int_equal(placed.bad_leaf, 13 * (CHUNK / LEAF) + 1);
		assert_true(source_through_cache(&f.source, false));
	}
	drop_file(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_fastest_way_is_kept),
		cmocka_unit_test(test_trying_costs_little),
		cmocka_unit_test(test_depth),
		cmocka_unit_test(test_every_way_reads_the_same),
		cmocka_unit_test(test_every_way_finds_damage),
	};

	return cmocka_run_group_tests_name("pace", tests, NULL, NULL);
}
