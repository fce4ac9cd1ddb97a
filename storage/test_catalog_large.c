/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_catalog_large.c - a layout of a million shards (CKPT_SHARDS): one tensor is found by reading
 * a few blocks, in the index and in the declarations' files, and building it takes little memory.
 *
 * What is counted is calls and bytes of read(2) and its kin by this thread; times are printed.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "storage/catalog.h"
#include "storage/test_open_index.h"
#include "tests/lib/test.h"

#define RANKS   64u
#define LOOKUPS 2000
#ifdef __SANITIZE_ADDRESS__
#define SHARDS 100000
#else
#define SHARDS 1000000
#endif

static char *dir;
static uint32_t tensors; /* each has a shard on each rank */

static struct index *open_index(void)
{
	struct index *ix = NULL;
	char path[300];
	struct err e;
	bool fresh;

	snprintf(path, sizeof(path), "%s/index", dir);
	if (test_index_open(path, &ix, &fresh, &e) != 0)
		fail_msg("%s", e.text);
	return ix;
}

/* A kB figure of /proc/self/status; 0 when there is none. */
static uint64_t status_kb(const char *what)
{
	FILE *f = fopen("/proc/self/status", "r");
	char line[200];
	uint64_t kb = 0;

	while (f && fgets(line, sizeof(line), f))
		if (strncmp(line, what, strlen(what)) == 0)
			kb = strtoull(line + strlen(what) + 1, NULL, 10);
	if (f)
		fclose(f);
	return kb;
}

static void reset_peak(void)
{
	int fd = open("/proc/self/clear_refs", O_WRONLY);

	assert_true(fd >= 0 && write(fd, "5", 1) == 1);
	close(fd);
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

struct reads {
	uint64_t calls, bytes;
};

/* Of this thread so far; false where the kernel does not count. */
static bool reads_now(struct reads *ret)
{
	char text[400] = { 0 };
	int fd = open("/proc/thread-self/io", O_RDONLY);
	const char *calls;

	if (fd < 0)
		return false;
	if (read(fd, text, sizeof(text) - 1) <= 0)
		text[0] = '\0';
	close(fd);
	calls = strstr(text, "syscr: ");
	if (!calls)
		return false;
	ret->bytes = strtoull(text + strlen("rchar: "), NULL, 10);
	ret->calls = strtoull(calls + strlen("syscr: "), NULL, 10);
	return true;
}

static uint32_t name_of(char buf[100], uint32_t t)
{
	return (uint32_t)snprintf(buf, 100, "decoder.layers.%u.mlp.experts.%u.down_proj.weight",
				  t / 64, t % 64);
}

/* Rank r of a tensor holds rows [16 r, 16 r + 16) of 64. */
static void *make_declaration(uint32_t rank, struct declaration *ret)
{
	struct declaration_builder *b;
	struct shard s = { .dtype = CKPT_BF16 };
	void *bytes = NULL;
	size_t len = 0;
	char name[100];
	struct err e;

	assert_int_equal(declaration_builder_new(GEOMETRY_DEFAULT, &b), 0);
	s.global = (struct shape){ 2, { 16 * RANKS, 64 } };
	s.box = (struct box){ 2, { 16 * rank, 0 }, { 16, 64 } };
	s.name = name;
	for (uint32_t t = 0; t < tensors; t++) {
		s.name_len = name_of(name, t);
		assert_int_equal(declaration_add(b, &s, &e), t);
	}
	assert_int_equal(declaration_finish(b, &bytes, &len, &e), 0);
	declaration_builder_free(b);
	assert_int_equal(declaration_open(bytes, len, ret, &e), 0);
	return bytes;
}

static void write_declaration(uint32_t rank, const struct declaration *d)
{
	char path[300];
	FILE *f;

	snprintf(path, sizeof(path), "%s/declaration-%u", dir, rank);
	f = fopen(path, "wb");
	assert_non_null(f);
	assert_int_equal(fwrite(d->bytes, 1, d->len, f), d->len);
	assert_int_equal(fclose(f), 0);
}

static struct digest build(struct index *ix)
{
	struct declaration d[RANKS];
	struct digest digests[RANKS], layout;
	void *bytes[RANKS];
	uint64_t before, start;
	struct err e;

	for (uint32_t rank = 0; rank < RANKS; rank++) {
		bytes[rank] = make_declaration(rank, &d[rank]);
		write_declaration(rank, &d[rank]);
		digests[rank] = declaration_digest(d[rank].bytes, d[rank].len);
	}
	layout = layout_digest(digests, RANKS);
	before = status_kb("VmRSS:");
	reset_peak();
	start = now_ns();
	if (catalog_put_layout(ix, &layout, d, RANKS, NULL, &e) != 0)
		fail_msg("%s", e.text);
	printf("%u shards put in %.2f s, peak memory for it %.1f MiB\n", tensors * RANKS,
	       (double)(now_ns() - start) / 1e9, (double)(status_kb("VmHWM:") - before) / 1024);
#ifndef __SANITIZE_ADDRESS__
	assert_true(status_kb("VmHWM:") - before < 48 << 10);
#endif
	for (uint32_t rank = 0; rank < RANKS; rank++)
		alloc_free(bytes[rank]);
	return layout;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

struct figures {
	uint64_t ns[LOOKUPS], calls[LOOKUPS], bytes[LOOKUPS];
};

static void report(const char *what, struct figures *f)
{
	qsort(f->ns, LOOKUPS, sizeof(f->ns[0]), by_value);
	qsort(f->calls, LOOKUPS, sizeof(f->calls[0]), by_value);
	qsort(f->bytes, LOOKUPS, sizeof(f->bytes[0]), by_value);
	printf("%s: p50 %.1f us, p99 %.1f us; reads p50 %llu max %llu; bytes p50 %llu max %llu\n",
	       what, (double)f->ns[LOOKUPS / 2] / 1e3, (double)f->ns[LOOKUPS * 99 / 100] / 1e3,
	       (unsigned long long)f->calls[LOOKUPS / 2],
	       (unsigned long long)f->calls[LOOKUPS - 1],
	       (unsigned long long)f->bytes[LOOKUPS / 2],
	       (unsigned long long)f->bytes[LOOKUPS - 1]);
}

struct found {
	const char *name;
	uint32_t name_len, n;
};

static int take(void *arg, uint32_t rank, const struct shard *s)
{
	struct found *f = arg;

	assert_int_equal(rank, f->n++);
	assert_int_equal(s->name_len, f->name_len);
	assert_memory_equal(s->name, f->name, f->name_len);
	assert_int_equal(s->box.offset[0], 16 * rank);
	assert_int_equal(s->box.length[0], 16);
	assert_int_equal(s->bytes, 16 * 64 * 2);
	return 0;
}

static void lookup_in_index(struct index *ix, const struct digest *layout)
{
	static struct figures f;
	struct rng_seeded rng;
	struct reads idle[2];
	bool counted;

	rng_seed(&rng, test_seed(7));
	counted = reads_now(&idle[0]) && reads_now(&idle[1]); /* what asking adds */
	for (int i = 0; i < LOOKUPS; i++) {
		char name[100];
		struct found found = { .name = name };
		struct reads before = { 0 }, after = { 0 };
		uint64_t start;
		struct err e;

		found.name_len = name_of(name, (uint32_t)rng_below(&rng.rng, tensors));
		reads_now(&before);
		start = now_ns();
		if (catalog_tensor(ix, layout, name, found.name_len, take, &found, &e) != 0)
			fail_msg("%s", e.text);
		f.ns[i] = now_ns() - start;
		assert_int_equal(found.n, RANKS);
		if (!counted || !reads_now(&after))
			continue;
		f.calls[i] = after.calls - before.calls - (idle[1].calls - idle[0].calls);
		f.bytes[i] = after.bytes - before.bytes - (idle[1].bytes - idle[0].bytes);
	}
	report("catalog_tensor()", &f);
	if (!counted) {
		printf("reads are not counted by this kernel\n");
		return;
	}
	/* Fewer than ranks: an index block and a data block or two of each table file that has the
	 * name. What was just put lies in some files of the first level and one of each other. */
	assert_true(f.calls[LOOKUPS / 2] < RANKS);
	assert_true(f.bytes[LOOKUPS / 2] <= 64u << 10);
	assert_true(f.bytes[LOOKUPS - 1] <= 2u << 20);
}

struct file {
	int fd;
	struct reads reads;
};

static int read_file(void *arg, uint64_t offset, void *buf, size_t len)
{
	struct file *f = arg;

	f->reads.calls++;
	f->reads.bytes += len;
	return pread(f->fd, buf, len, (off_t)offset) == (ssize_t)len ? 0 : -EIO;
}

static int take_one(void *arg, const struct shard *s)
{
	struct found *f = arg;

	return take(f, f->n, s);
}

static void lookup_in_files(void)
{
	static struct figures f;
	struct declaration_lookup *l[RANKS];
	struct file file[RANKS];
	struct rng_seeded rng;
	struct err e;

	for (uint32_t rank = 0; rank < RANKS; rank++) {
		char path[300];
		off_t len;

		snprintf(path, sizeof(path), "%s/declaration-%u", dir, rank);
		file[rank] = (struct file){ .fd = open(path, O_RDONLY) };
		len = lseek(file[rank].fd, 0, SEEK_END);
		assert_true(len > 0);
		if (declaration_lookup_open(read_file, &file[rank], (uint64_t)len, &l[rank], &e))
			fail_msg("%s", e.text);
	}
	rng_seed(&rng, test_seed(8));
	for (int i = 0; i < LOOKUPS; i++) {
		char name[100];
		struct found found = { .name = name };
		uint64_t start;

		found.name_len = name_of(name, (uint32_t)rng_below(&rng.rng, tensors));
		start = now_ns();
		for (uint32_t rank = 0; rank < RANKS; rank++) {
			file[rank].reads = (struct reads){ 0 };
			assert_int_equal(declaration_lookup(l[rank], name, found.name_len, take_one,
							    &found), 1);
			f.calls[i] += file[rank].reads.calls;
			f.bytes[i] += file[rank].reads.bytes;
		}
		f.ns[i] = now_ns() - start;
		assert_int_equal(found.n, RANKS);
	}
	report("declaration_lookup()", &f);
	assert_true(f.calls[LOOKUPS - 1] <= 2 * RANKS);
	assert_true(f.bytes[LOOKUPS - 1] <= 2 * RANKS * (8u << 10));
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		declaration_lookup_free(l[rank]);
		close(file[rank].fd);
	}
}

static void test_a_million_shards(void **state)
{
	struct index *ix;
	struct digest layout;
	uint64_t before;

	(void)state;
	dir = test_dir_make(NULL);
	tensors = (uint32_t)(test_cap("CKPT_SHARDS", SHARDS) / RANKS);
	ix = open_index();
	layout = build(ix);
	ix->ops->close(ix);
	before = status_kb("VmRSS:");
	ix = open_index(); /* nothing in memory */
	lookup_in_index(ix, &layout);
	printf("open and read, the index adds %.1f MiB of resident memory\n",
	       ((double)status_kb("VmRSS:") - (double)before) / 1024);
	ix->ops->close(ix);
	lookup_in_files();
	test_dir_remove(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_million_shards),
	};

	return cmocka_run_group_tests_name("large catalog", tests, NULL, NULL);
}
