/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_index.c - the index in RocksDB: order, prefixes, errors, what is set aside and what is not.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "base/rng.h"
#include "storage/test_open_index.h"
#include "tests/lib/test.h"

static char *dir; /* of this test */

static int make_dir(void **state)
{
	(void)state;
	dir = test_dir_make(NULL);
	return 0;
}

static int remove_dir(void **state)
{
	(void)state;
	fault_disarm_all();
	test_dir_remove(dir);
	return 0;
}

static char *in_dir(const char *name)
{
	return test_path(dir, name);
}

static struct index *open_index(const char *path, bool want_fresh)
{
	struct index *ix = NULL;
	struct err e = { 0 };
	bool fresh = !want_fresh;

	if (test_index_open(path, &ix, &fresh, &e) != 0)
		fail_msg("%s", e.text);
	assert_int_equal(fresh, want_fresh);
	return ix;
}

static int put(struct index *ix, const char *key, const char *value, bool sync)
{
	struct index_entry t = { .key = key, .key_len = strlen(key) };

	t.value = value;
	t.value_len = value ? strlen(value) : 0;
	return ix->ops->write(ix, &t, 1, sync);
}

static int copy_value(void *arg, const void *key, size_t key_len, const void *value, size_t len)
{
	char *out = arg;

	(void)key;
	(void)key_len;
	assert_true(len < 100);
	memcpy(out, value, len);
	out[len] = '\0';
	return 0;
}

static int get(struct index *ix, const char *key, char out[100])
{
	return ix->ops->get(ix, key, strlen(key), copy_value, out);
}

static void test_round_trip(void **state)
{
	char *path = in_dir("index"), value[100];
	struct index *ix = open_index(path, true);
	struct index_entry both[2] = { { "a", 1, NULL, 0 }, { "c", 1, "", 0 } };
	void (*close_any)(struct index *);

	(void)state;
	assert_int_equal(get(ix, "a", value), CKPT_ENOTFOUND);
	assert_int_equal(put(ix, "a", "one", false), 0);
	assert_int_equal(put(ix, "b", "two", true), 0);
	assert_int_equal(get(ix, "a", value), 0);
	assert_string_equal(value, "one");
	assert_int_equal(ix->ops->write(ix, both, 2, false), 0);
	assert_int_equal(ix->ops->write(ix, NULL, 0, true), 0);
	ix->ops->close(ix);

	ix = open_index(path, false);
	assert_int_equal(get(ix, "a", value), CKPT_ENOTFOUND);
	assert_int_equal(get(ix, "b", value), 0);
	assert_string_equal(value, "two");
	assert_int_equal(get(ix, "c", value), 0);
	assert_string_equal(value, ""); /* an empty value is one */
	close_any = ix->ops->close;
	close_any(ix);
	close_any(NULL);
}

#define MANY 2000

struct keys {
	uint8_t key[MANY][5]; /* [0] is the length */
	size_t n, at;
	const uint8_t *prefix;
	size_t prefix_len;
	uint8_t from[4];
	size_t from_len, stop_after, called;
};

static int by_bytes(const void *a, const void *b)
{
	const uint8_t *x = a, *y = b;
	int r = memcmp(x + 1, y + 1, x[0] < y[0] ? x[0] : y[0]);

	return r ? r : x[0] - y[0];
}

/* Moves at to the next key that belongs to the walk. */
static void skip_others(struct keys *k)
{
	for (; k->at < k->n; k->at++) {
		uint8_t from[5] = { (uint8_t)k->from_len };
		const uint8_t *key = k->key[k->at];

		memcpy(from + 1, k->from, k->from_len);
		if (key[0] >= k->prefix_len && memcmp(key + 1, k->prefix, k->prefix_len) == 0 &&
		    by_bytes(key, from) >= 0)
			return;
	}
}

static int expect_key(void *arg, const void *key, size_t key_len, const void *value, size_t len)
{
	struct keys *k = arg;

	skip_others(k);
	assert_true(k->at < k->n);
	assert_int_equal(key_len, k->key[k->at][0]);
	assert_memory_equal(key, k->key[k->at] + 1, key_len);
	assert_int_equal(len, key_len); /* the value is the key */
	assert_memory_equal(value, key, len);
	k->at++;
	return ++k->called == k->stop_after ? 7 : 0;
}

static void test_walks_are_ordered(void **state)
{
	static struct keys k;
	static const uint8_t bytes[5] = { 0x00, 0x01, 'a', 0xfe, 0xff };
	struct index *ix = open_index(in_dir("index"), true);
	struct rng_seeded rng;

	(void)state;
	rng_seed(&rng, test_seed(1));
	for (size_t i = 0; i < MANY; i++) { /* 5 + 25 + 125 + 625 keys are possible: many twice */
		uint8_t *key = k.key[k.n];
		bool there = false;
		struct index_entry t = { .key = key + 1, .value = key + 1 };

		key[0] = (uint8_t)(1 + rng_below(&rng.rng, 4));
		for (size_t j = 0; j < key[0]; j++)
			key[1 + j] = bytes[rng_below(&rng.rng, 5)];
		t.key_len = t.value_len = key[0];
		assert_int_equal(ix->ops->write(ix, &t, 1, false), 0);
		for (size_t j = 0; j < k.n; j++)
			there |= by_bytes(k.key[j], key) == 0;
		k.n += !there;
	}
	qsort(k.key, k.n, sizeof(k.key[0]), by_bytes);
	for (int round = 0; round < 500; round++) {
		uint8_t prefix[4];
		int r;

		k.prefix = prefix;
		k.prefix_len = rng_below(&rng.rng, 4);
		k.from_len = k.prefix_len + rng_below(&rng.rng, 5 - k.prefix_len);
		for (size_t j = 0; j < 4; j++)
			k.from[j] = bytes[rng_below(&rng.rng, 5)];
		memcpy(prefix, k.from, 4);
		k.at = k.called = 0;
		k.stop_after = round % 3 ? 0 : 1 + rng_below(&rng.rng, 3);
		r = ix->ops->scan(ix, prefix, k.prefix_len,
				  k.from_len > k.prefix_len ? k.from : NULL, k.from_len, expect_key,
				  &k);
		if (k.stop_after && k.called == k.stop_after) {
			assert_int_equal(r, 7);
			continue;
		}
		assert_int_equal(r, 0);
		skip_others(&k);
		assert_int_equal(k.at, k.n); /* none was left out */
	}
	ix->ops->close(ix);
}

static void limit_files(rlim_t bytes)
{
	struct rlimit l;

	assert_int_equal(getrlimit(RLIMIT_FSIZE, &l), 0);
	l.rlim_cur = bytes;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &l), 0);
}

static int write_inside(void *arg, const void *key, size_t key_len, const void *value, size_t len)
{
	struct index *ix = arg;

	(void)key;
	(void)key_len;
	(void)value;
	(void)len;
	return put(ix, "d", "inside", true) < 0 ? 1 : 2;
}

/* A failed write is unknown; reads go on; writes work again once the cause is gone. */
static void test_write_error(void **state)
{
	struct index *ix = open_index(in_dir("index"), true);
	char value[100];

	(void)state;
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(put(ix, "a", "one", true), 0);
	limit_files(10);
	assert_true(put(ix, "b", "two", true) < 0);
	assert_int_equal(get(ix, "a", value), 0);
	assert_string_equal(value, "one");
	limit_files(RLIM_INFINITY);
	/* A write inside a walk cannot open it again, nor may it wait for the walk: it fails. */
	assert_int_equal(ix->ops->scan(ix, "a", 1, NULL, 0, write_inside, ix), 1);
	assert_int_equal(put(ix, "c", "three", true), 0);

	limit_files(10);
	assert_true(put(ix, "b", "two", true) < 0);
	assert_true(put(ix, "b", "two", true) < 0); /* cannot be opened again */
	assert_true(get(ix, "a", value) < 0);
	limit_files(RLIM_INFINITY);
	assert_int_equal(get(ix, "a", value), 0);
	assert_int_equal(put(ix, "b", "again", true), 0);
	ix->ops->close(ix);

	ix = open_index(in_dir("index"), false);
	assert_int_equal(get(ix, "a", value), 0);
	assert_string_equal(value, "one");
	assert_int_equal(get(ix, "b", value), 0);
	assert_string_equal(value, "again");
	assert_int_equal(get(ix, "c", value), 0);
	assert_string_equal(value, "three");
	ix->ops->close(ix);
}

/* Puts a file that cannot be written in place of the log, from inside a walk: we open and close
 * nothing meanwhile. No /dev/full: RocksDB recovers from a full disk by itself, in a thread of its
 * own, and asserts that it can ask a log it has just opened what it supports. */
static int break_log(void *arg, const void *key, size_t key_len, const void *value, size_t len)
{
	char link[64], target[700];
	int other = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), broken = 0;

	(void)key;
	(void)key_len;
	(void)value;
	(void)len;
	assert_true(other >= 0);
	for (int fd = 3; fd < 200; fd++) {
		ssize_t n;

		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		n = readlink(link, target, sizeof(target) - 1);
		if (n < 4 || memcmp(target, arg, strlen(arg)) != 0 ||
		    memcmp(target + n - 4, ".log", 4) != 0)
			continue;
		assert_int_equal(dup2(other, fd), fd);
		broken++;
	}
	close(other);
	return broken;
}

struct worker {
	struct index *ix;
	char name;
	int failed;
};

static void *work(void *arg)
{
	struct worker *w = arg;
	char key[8], value[100];

	for (int i = 0; i < 200; i++) {
		snprintf(key, sizeof(key), "%c%d", w->name, i);
		while (put(w->ix, key, key, i % 8 == 0) != 0) {
			w->failed++;
			sched_yield();
		}
		if (get(w->ix, key, value) != 0 || strcmp(value, key) != 0)
			return "wrong value";
	}
	return NULL;
}

/* What a worker was told is there is there, however often the other one met an error. */
static void test_two_workers(void **state)
{
	struct index *ix = open_index(in_dir("index"), true);
	struct worker w[2] = { { ix, 'a', 0 }, { ix, 'b', 0 } };
	pthread_t t[2];
	char value[100];
	int broken = 0;
	void *wrong;

	(void)state;
	assert_int_equal(put(ix, "c", "c", true), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&t[i], NULL, work, &w[i]), 0);
	for (int i = 0; i < 20; i++) {
		struct timespec moment = { .tv_nsec = 500000 };

		broken += ix->ops->scan(ix, "c", 1, NULL, 0, break_log, dir) > 0;
		nanosleep(&moment, NULL);
	}
	for (int i = 0; i < 2; i++) {
		assert_int_equal(pthread_join(t[i], &wrong), 0);
		assert_null(wrong);
	}
	broken += ix->ops->scan(ix, "c", 1, NULL, 0, break_log, dir) > 0;
	assert_int_equal(put(ix, "c", "c", true), -EIO);
	printf("the log was broken %d times, %d writes failed\n", broken,
	       w[0].failed + w[1].failed);
	for (int i = 0; i < 400; i++) {
		char key[8];

		snprintf(key, sizeof(key), "%c%d", i % 2 ? 'a' : 'b', i / 2);
		assert_int_equal(get(ix, key, value), 0);
		assert_string_equal(value, key);
	}
	ix->ops->close(ix);
}

static void write_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	assert_non_null(f);
	fputs(text, f);
	assert_int_equal(fclose(f), 0);
}

static void open_and_close(const char *path, bool want_fresh)
{
	struct index *ix = open_index(path, want_fresh);

	ix->ops->close(ix);
}

/* Makes an index with one key. */
static void make_one(const char *path)
{
	struct index *ix = open_index(path, true);

	assert_int_equal(put(ix, "a", "one", true), 0);
	ix->ops->close(ix);
}

static void expect_set_aside(const char *why)
{
	struct index *ix = NULL;
	struct err e = { 0 };
	char value[100];
	bool fresh = false;

	assert_int_equal(test_index_open(in_dir("index"), &ix, &fresh, &e), 0);
	assert_true(fresh);
	if (!strstr(e.text, why) || !strstr(e.text, "index.bad'"))
		fail_msg("expected '%s' in: %s", why, e.text);
	assert_int_equal(access(in_dir("index.bad"), F_OK), 0);
	assert_int_equal(get(ix, "a", value), CKPT_ENOTFOUND);
	assert_int_equal(put(ix, "a", "one", true), 0);
	ix->ops->close(ix);
}

static void test_set_aside(void **state)
{
	char *path = in_dir("index");

	(void)state;
	make_one(path);
	write_file(in_dir("index/CURRENT"), "nonsense");
	expect_set_aside("CURRENT");
	write_file(in_dir("index/CURRENT"),
		   "MANIFEST-999999\n"); /* and index.bad is there already */
	expect_set_aside("MANIFEST");
	assert_int_equal(unlink(in_dir("index/CURRENT")), 0);
	expect_set_aside("no CURRENT");
	write_file(in_dir("index/DAMAGED"), "");
	expect_set_aside("found damaged in use");
	write_file(in_dir("index/TRIES"), "12");
	expect_set_aside("the last 2 processes to open it died of it");
	write_file(in_dir("index/TRIES"), "1"); /* once is nothing: it is tried again */
	open_and_close(path, false);
	assert_int_equal(access(in_dir("index/TRIES"), F_OK), -1);

	test_dir_remove(strdup(in_dir("index"))); /* deleting the folder is no disaster */
	make_one(path);
}

static void test_surroundings_are_no_reason(void **state)
{
	struct index *ix, *other = NULL;
	struct err e = { 0 };
	char *path = in_dir("index");
	bool fresh;

	(void)state;
	make_one(path);
	ix = open_index(path, false);
	assert_int_equal(test_index_open(path, &other, &fresh, &e), -EBUSY);
	assert_non_null(strstr(e.text, "open index '"));
	ix->ops->close(ix);
	signal(SIGXFSZ, SIG_IGN);
	limit_files(10);
	assert_true(test_index_open(path, &other, &fresh, &e) < 0);
	limit_files(RLIM_INFINITY);
	assert_null(other);
	open_and_close(path, false); /* it is still there */
	assert_int_equal(access(in_dir("index.bad"), F_OK), -1);
	assert_int_equal(test_index_open(in_dir("no/such/folder"), &other, &fresh, &e), -ENOENT);
}

static void test_allocation_failures(void **state)
{
	struct index *ix = NULL;
	char *path = in_dir("index");
	bool fresh = false;
	int r = -ENOMEM;

	(void)state;
	for (uint64_t n = 1; r == -ENOMEM; n++) {
		alloc_fail_at(n, false);
		r = test_index_open(path, &ix, &fresh, NULL);
		assert_true(r == 0 || r == -ENOMEM);
		assert_int_equal(r == -ENOMEM, alloc_fired());
		alloc_fail_at(0, false);
	}
	assert_true(fresh);
	assert_int_equal(put(ix, "a", "one", false), 0);
#ifdef CKPT_FAULTS
	alloc_fail_at(1, false);
	assert_int_equal(ix->ops->scan(ix, "a", 1, NULL, 0, write_inside, ix), -ENOMEM);
	alloc_fail_at(0, false);
#endif
	assert_int_equal(ix->ops->scan(ix, "a", 1, NULL, 0, write_inside, ix), 2);
	ix->ops->close(ix);
}

#ifdef CKPT_FAULTS
static void test_fault_points(void **state)
{
	struct index *ix = open_index(in_dir("index"), true);
	char value[100];

	(void)state;
	fault_arm(FAULT_INDEX_WRITE, FAULT_ERROR, 1, false);
	assert_int_equal(put(ix, "a", "one", true), -EIO);
	assert_int_equal(get(ix, "a", value), CKPT_ENOTFOUND);
	fault_arm(FAULT_INDEX_WRITTEN, FAULT_ERROR, 1, false);
	assert_int_equal(put(ix, "a", "one", true), -EIO); /* unknown: it is there */
	assert_int_equal(get(ix, "a", value), 0);
	assert_int_equal(put(ix, "a", "one", true), 0); /* repeated (I10) */
	assert_int_equal(fault_hits(FAULT_INDEX_WRITE), 3);
	ix->ops->close(ix);
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_round_trip, make_dir, remove_dir),
		cmocka_unit_test_setup_teardown(test_walks_are_ordered, make_dir, remove_dir),
		cmocka_unit_test_setup_teardown(test_write_error, make_dir, remove_dir),
		cmocka_unit_test_setup_teardown(test_two_workers, make_dir, remove_dir),
		cmocka_unit_test_setup_teardown(test_set_aside, make_dir, remove_dir),
		cmocka_unit_test_setup_teardown(test_surroundings_are_no_reason, make_dir,
						remove_dir),
		cmocka_unit_test_setup_teardown(test_allocation_failures, make_dir, remove_dir),
#ifdef CKPT_FAULTS
		cmocka_unit_test_setup_teardown(test_fault_points, make_dir, remove_dir),
#endif
	};

	return cmocka_run_group_tests_name("index", tests, NULL, NULL);
}
