/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_index_crash.c - the index in RocksDB under kill -9 and flipped bytes.
 *
 * What dies or may abort runs in a process of its own: this program again, with a verb. There the
 * content of the database is a function of one number: batch i of a seed puts some slots, adds one
 * key, deletes an old one and sets "n" to i. Whatever is found must be the state after some batch.
 */
#include <config.h>

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/fault.h"
#include "base/rng.h"
#include "storage/test_open_index.h"
#include "tests/lib/test.h"

#define SLOTS 53
#define KEPT 40 /* keys "b<i>" that are there at a time */
#define VALUE_MAX 2000
#define ACK_FD 3

/* How a probe ends. */
enum { PROBE_WHOLE = 20, PROBE_FRESH, PROBE_READ_ERROR, PROBE_TAIL_LOST, PROBE_WRONG };

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
	test_dir_remove(dir);
	return 0;
}

static char *in_dir(const char *name)
{
	return test_path(dir, name);
}

/* ---- Content that depends on one number ---- */

static size_t slots_of(uint64_t i)
{
	return 1 + i % 5;
}

static unsigned slot_of(uint64_t i, size_t j)
{
	return (unsigned)((i * 7 + j * 11) % SLOTS);
}

static size_t value_of(uint64_t seed, uint64_t i, unsigned slot, uint8_t buf[VALUE_MAX])
{
	size_t len = 8 + (size_t)((i * 131 + slot * 17 + seed) % (VALUE_MAX - 8));

	test_fill(buf, len, seed ^ (i << 8) ^ slot);
	memcpy(buf, &i, 8);
	return len;
}

static int write_batch(struct index *ix, uint64_t seed, uint64_t i, bool sync)
{
	static uint8_t values[5][VALUE_MAX];
	char keys[5][16], add[24], gone[24];
	struct index_entry t[8];
	size_t n = 0;

	for (size_t j = 0; j < slots_of(i); j++) {
		size_t len = value_of(seed, i, slot_of(i, j), values[j]);

		snprintf(keys[j], sizeof(keys[j]), "k%02u", slot_of(i, j));
		t[n++] = (struct index_entry){ keys[j], 3, values[j], len };
	}
	t[n++] = (struct index_entry){ "n", 1, &i, 8 };
	snprintf(add, sizeof(add), "b%08llu", (unsigned long long)i);
	t[n++] = (struct index_entry){ add, 9, &i, 8 };
	snprintf(gone, sizeof(gone), "b%08llu", (unsigned long long)(i > KEPT ? i - KEPT : 0));
	t[n++] = (struct index_entry){ gone, 9, NULL, 0 };
	return ix->ops->write(ix, t, n, sync);
}

struct seen {
	uint64_t seed, n;           /* the state that is expected: after batch n */
	uint64_t last[SLOTS];       /* batch that wrote the slot last, 0: none */
	unsigned slots, kept, wrong;
};

static int check_entry(void *arg, const void *key, size_t key_len, const void *value, size_t len)
{
	struct seen *s = arg;
	uint8_t want[VALUE_MAX];
	char text[16] = { 0 };
	size_t want_len = 8;
	uint64_t i = s->n;

	memcpy(text, key, key_len < 15 ? key_len : 15);
	memcpy(want, &i, 8);
	if (text[0] == 'k' && key_len == 3) {
		unsigned slot = (unsigned)atoi(text + 1);

		i = slot < SLOTS ? s->last[slot] : 0;
		want_len = value_of(s->seed, i, slot, want);
		s->slots++;
		s->wrong += i == 0;
	} else if (text[0] == 'b' && key_len == 9) {
		i = strtoull(text + 1, NULL, 10);
		memcpy(want, &i, 8);
		s->kept++;
		s->wrong += i > s->n || i + KEPT <= s->n || i == 0;
	} else if (strcmp(text, "n") != 0) {
		s->wrong++;
	}
	s->wrong += len != want_len || memcmp(value, want, len) != 0;
	return 0;
}

static int take_n(void *arg, const void *key, size_t key_len, const void *value, size_t len)
{
	(void)key;
	(void)key_len;
	if (len != 8)
		return -EINVAL;
	memcpy(arg, value, 8);
	return 0;
}

/* 0: the state is exactly that after batch *ret_n; 1: it is not; negative: the index's error. */
static int check_state(struct index *ix, uint64_t seed, uint64_t *ret_n)
{
	struct seen s = { .seed = seed };
	unsigned slots = 0;
	int r = ix->ops->get(ix, "n", 1, take_n, &s.n);

	if (r < 0 && r != CKPT_ENOTFOUND)
		return r;
	for (uint64_t i = 1; i <= s.n; i++)
		for (size_t j = 0; j < slots_of(i); j++) {
			slots += s.last[slot_of(i, j)] == 0;
			s.last[slot_of(i, j)] = i;
		}
	r = ix->ops->scan(ix, "", 0, NULL, 0, check_entry, &s);
	if (r < 0)
		return r;
	*ret_n = s.n;
	return s.wrong || s.slots != slots || s.kept != (s.n < KEPT ? s.n : KEPT);
}

/* ---- Verbs: what runs in a process of its own ---- */

/* Writes batches, acknowledging each, until it is killed or has written `count`. */
static int verb_write(const char *path, uint64_t seed, uint64_t count, bool sync)
{
	struct index *ix = NULL;
	uint64_t n = 0;
	bool fresh;

	if (fault_from_env(NULL) != 0 || test_index_open(path, &ix, &fresh, NULL) != 0)
		return 1;
	if (check_state(ix, seed, &n) != 0)
		return 2;
	for (uint64_t end = n + count; n < end;) {
		n++;
		if (write_batch(ix, seed, n, sync) != 0)
			return 3;
		if (write(ACK_FD, &n, sizeof(n)) != (ssize_t)sizeof(n))
			return 4;
	}
	ix->ops->close(ix);
	return 0;
}

static int probe_fresh(struct index *ix, uint64_t seed)
{
	uint64_t n = 0;

	if (check_state(ix, seed, &n) != 0 || n != 0)
		return PROBE_WRONG; /* made anew, but not empty */
	if (write_batch(ix, seed, 1, true) != 0 || check_state(ix, seed, &n) != 0 || n != 1)
		return PROBE_WRONG;
	return PROBE_FRESH;
}

static int verb_probe(const char *path, uint64_t seed, uint64_t want)
{
	struct index *ix = NULL;
	uint64_t n = 0;
	bool fresh;
	int r;

	if (test_index_open(path, &ix, &fresh, NULL) != 0)
		return 1;
	if (fresh) {
		r = probe_fresh(ix, seed);
		ix->ops->close(ix);
		return r;
	}
	r = check_state(ix, seed, &n);
	ix->ops->close(ix);
	if (r == 0)
		return n == want ? PROBE_WHOLE : n < want ? PROBE_TAIL_LOST : PROBE_WRONG;
	if (r > 0)
		return PROBE_WRONG;
	/* A read found damage: the next open must not trust the folder. */
	if (r != CKPT_ECORRUPT)
		return PROBE_READ_ERROR;
	if (test_index_open(path, &ix, &fresh, NULL) != 0 || !fresh)
		return 2;
	r = probe_fresh(ix, seed);
	ix->ops->close(ix);
	return r == PROBE_FRESH ? PROBE_READ_ERROR : r;
}

static pid_t start(const char *verb, const char *path, uint64_t seed, uint64_t n, int *ret_ack)
{
	char a[24], b[24];
	int fd[2];
	pid_t pid;

	snprintf(a, sizeof(a), "%llu", (unsigned long long)seed);
	snprintf(b, sizeof(b), "%llu", (unsigned long long)n);
	assert_int_equal(pipe(fd), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		if (fd[1] != ACK_FD)
			dup2(fd[1], ACK_FD);
		if (fd[0] != ACK_FD)
			close(fd[0]);
		execl("/proc/self/exe", "test_index", verb, path, a, b, (char *)NULL);
		_exit(99);
	}
	close(fd[1]);
	*ret_ack = fd[0];
	return pid;
}

static int finish(pid_t pid, int ack)
{
	int status = 0;
	uint64_t n;

	while (read(ack, &n, sizeof(n)) > 0) /* until it ended: so that it never writes in vain */
		;
	close(ack);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

/* ---- Killed ---- */

/* Kills the writer after some acknowledgements and some microseconds; what it had acknowledged. */
static uint64_t write_and_kill(const char *path, uint64_t seed, struct rng *rng, uint64_t before)
{
	struct timespec moment = { .tv_nsec = (long)rng_below(rng, 400000) };
	uint64_t acked = before, n, acks = rng_below(rng, 120);
	int ack, status;
	pid_t pid = start("write", path, seed, 1u << 30, &ack);

	while (acked < before + acks && read(ack, &n, sizeof(n)) == (ssize_t)sizeof(n))
		acked = n;
	nanosleep(&moment, NULL); /* only to choose the moment */
	kill(pid, SIGKILL);
	while (read(ack, &n, sizeof(n)) == (ssize_t)sizeof(n))
		acked = n;
	status = finish(pid, ack);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	return acked;
}

static void test_kill_9(void **state)
{
	uint64_t rounds = test_cap("CKPT_INDEX_KILLS", 20), seed = test_seed(2), found = 0,
		 more = 0;
	char *path = in_dir("index");
	struct rng_seeded rng;

	(void)state;
	rng_seed(&rng, seed);
	for (uint64_t i = 0; i < rounds; i++) {
		uint64_t acked = write_and_kill(path, seed, &rng.rng, found);
		struct index *ix = NULL;
		bool fresh = true;

		assert_int_equal(test_index_open(path, &ix, &fresh, NULL), 0);
		assert_int_equal(check_state(ix, seed, &found), 0); /* none is half there */
		assert_true(found == acked || found == acked + 1);  /* all acknowledged are there */
		more += found > acked;
		ix->ops->close(ix);
	}
	printf("%llu kills, %llu batches, %llu times one more than acknowledged\n",
	       (unsigned long long)rounds, (unsigned long long)found, (unsigned long long)more);
}

/* Dies before or after a batch: in the next process it is there, or not, but never in part. */
static void test_killed_at_fault_points(void **state)
{
	static const char *const points[2] = { "INDEX_WRITE=kill@10", "INDEX_WRITTEN=kill@10" };
	uint64_t seed = test_seed(5), n;

	(void)state;
#ifndef CKPT_FAULTS
	skip();
#endif
	for (int i = 0; i < 2; i++) {
		const char *path = in_dir(i ? "written" : "write");
		struct index *ix = NULL;
		int ack, status;
		bool fresh;
		pid_t pid;

		setenv("CKPT_FAULT", points[i], 1);
		pid = start("write", path, seed, 100, &ack);
		unsetenv("CKPT_FAULT");
		status = finish(pid, ack);
		assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		assert_int_equal(test_index_open(path, &ix, &fresh, NULL), 0);
		assert_false(fresh);
		assert_int_equal(check_state(ix, seed, &n), 0);
		assert_int_equal(n, i ? 10 : 9);
		ix->ops->close(ix);
	}
}

/* ---- Flipped bytes ---- */

struct template {
	char name[32][64];
	uint64_t size[32];
	size_t n;
};

static void list_template(const char *path, struct template *t)
{
	struct dirent **d;
	int n = scandir(path, &d, NULL, alphasort);

	assert_true(n > 0);
	for (int i = 0; i < n; i++) {
		struct stat st;
		char file[900];

		snprintf(file, sizeof(file), "%s/%s", path, d[i]->d_name);
		if (stat(file, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0) {
			assert_true(t->n < 32);
			snprintf(t->name[t->n], sizeof(t->name[0]), "%.60s", d[i]->d_name);
			t->size[t->n++] = (uint64_t)st.st_size;
		}
		free(d[i]);
	}
	free(d);
}

#define BATCHES 360

/* Table files from the first part, a log with the second. */
static void make_template(const char *path, uint64_t seed)
{
	static const uint64_t parts[2] = { 300, BATCHES - 300 };
	uint64_t n = 0;

	for (int i = 0; i < 2; i++) {
		int ack;
		pid_t pid = start("fill", path, seed, parts[i], &ack);

		while (read(ack, &n, sizeof(n)) == (ssize_t)sizeof(n))
			;
		assert_int_equal(finish(pid, ack), 0);
	}
	assert_int_equal(n, BATCHES);
}

/* A copy of the template with one byte flipped in one file. */
static void copy_template(const struct template *t, size_t file, uint64_t at, uint8_t flip)
{
	if (access(in_dir("index"), F_OK) == 0)
		test_dir_remove(strdup(in_dir("index")));
	assert_int_equal(mkdir(in_dir("index"), 0700), 0);
	for (size_t i = 0; i < t->n; i++) {
		char from[700], to[700], *bytes = malloc(t->size[i]);
		FILE *in, *out;

		snprintf(from, sizeof(from), "%s/good/%s", dir, t->name[i]);
		snprintf(to, sizeof(to), "%s/index/%s", dir, t->name[i]);
		in = fopen(from, "rb");
		out = fopen(to, "wb");
		assert_true(in && out && bytes);
		assert_int_equal(fread(bytes, 1, t->size[i], in), t->size[i]);
		if (i == file)
			bytes[at] = (char)(bytes[at] ^ flip);
		assert_int_equal(fwrite(bytes, 1, t->size[i], out), t->size[i]);
		fclose(in);
		assert_int_equal(fclose(out), 0);
		free(bytes);
	}
}

/* Flips bits of one byte in a copy; how a process that opens it ends. */
static int probe_flip(const struct template *t, size_t file, uint64_t at, uint8_t flip,
		      uint64_t seed)
{
	int ack, status;
	pid_t pid;

	copy_template(t, file, at, flip);
	pid = start("probe", in_dir("index"), seed, BATCHES, &ack);
	status = finish(pid, ack);
	if (!WIFEXITED(status) || WEXITSTATUS(status) < PROBE_WHOLE ||
	    WEXITSTATUS(status) >= PROBE_WRONG)
		fail_msg("byte %llu of %s (%llu) ^ %u: status %#x", (unsigned long long)at,
			 t->name[file], (unsigned long long)t->size[file], flip, status);
	return WEXITSTATUS(status);
}

static void test_flipped_bytes(void **state)
{
	uint64_t rounds = test_cap("CKPT_INDEX_FLIPS", 100), seed = test_seed(3), ends[8] = { 0 };
	struct template t = { .n = 0 };
	struct rng_seeded rng;

	(void)state;
	rng_seed(&rng, seed);
	make_template(in_dir("good"), seed);
	list_template(in_dir("good"), &t);
	for (uint64_t i = 0; i < rounds; i++) {
		/* Every second one in the log, where most can go wrong; the others anywhere. */
		size_t file = rng_below(&rng.rng, t.n);
		uint8_t flip = (uint8_t)(1 + rng_below(&rng.rng, 255));
		uint64_t at;

		while (i % 2 == 0 && !strstr(t.name[file], ".log"))
			file = rng_below(&rng.rng, t.n);
		at = rng_below(&rng.rng, t.size[file]);
		ends[probe_flip(&t, file, at, flip, seed) - PROBE_WHOLE]++;
	}
	printf("%llu flips: %llu without effect, %llu found at open, %llu found by a read, "
	       "%llu lost the log's tail\n",
	       (unsigned long long)rounds, (unsigned long long)ends[0], (unsigned long long)ends[1],
	       (unsigned long long)ends[2], (unsigned long long)ends[3]);
	assert_true(ends[1] > 0);
}

/*
 * A record of the log whose length reaches past the end looks like a torn tail: RocksDB drops it
 * and what follows. The index may be behind then, but it must be a state that once was.
 */
static void test_flipped_lengths(void **state)
{
	uint64_t seed = test_seed(4), ends[8] = { 0 }, at;
	struct template t = { .n = 0 };
	size_t log = 0;
	uint8_t *bytes;
	char name[80];
	FILE *f;

	(void)state;
	make_template(in_dir("good"), seed);
	list_template(in_dir("good"), &t);
	while (!strstr(t.name[log], ".log"))
		log++;
	bytes = malloc(t.size[log]);
	snprintf(name, sizeof(name), "good/%s", t.name[log]);
	f = fopen(in_dir(name), "rb");
	assert_true(f && bytes);
	assert_int_equal(fread(bytes, 1, t.size[log], f), t.size[log]);
	fclose(f);
	/* Records of the last 32 KiB block: checksum (4), length (2), type (1), payload. */
	at = (t.size[log] - 1) / 32768 * 32768;
	for (; at + 7 <= t.size[log]; at += 7 + get_le16(bytes + at + 4)) {
		int end = probe_flip(&t, log, at + 5, 0x80, seed);

		ends[end - PROBE_WHOLE]++;
	}
	free(bytes);
	printf("%llu lengths: %llu found at open, %llu lost the log's tail\n",
	       (unsigned long long)(ends[0] + ends[1] + ends[2] + ends[3]),
	       (unsigned long long)ends[1], (unsigned long long)ends[3]);
	assert_int_equal(ends[0] + ends[2], 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_kill_9, make_dir, remove_dir),
		cmocka_unit_test_setup_teardown(test_killed_at_fault_points, make_dir, remove_dir),
		cmocka_unit_test_setup_teardown(test_flipped_bytes, make_dir, remove_dir),
		cmocka_unit_test_setup_teardown(test_flipped_lengths, make_dir, remove_dir),
	};

	if (argc == 5) {
		uint64_t seed = strtoull(argv[3], NULL, 10), n = strtoull(argv[4], NULL, 10);

		if (strcmp(argv[1], "write") == 0)
			return verb_write(argv[2], seed, n, true);
		if (strcmp(argv[1], "fill") == 0)
			return verb_write(argv[2], seed, n, false);
		if (strcmp(argv[1], "probe") == 0)
			return verb_probe(argv[2], seed, n);
		return 99;
	}
	return cmocka_run_group_tests_name("index crash", tests, NULL, NULL);
}
