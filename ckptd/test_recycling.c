/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_recycling.c - which files of expired checkpoints are written over, and what a process reads
 * through a descriptor that it was given, whatever it does to its lock.
 */
#include <config.h>

#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckptd/test_node_rig.h"
#include "proto/session.pb-c.h"

#define FILE_MAX (1u << 20) /* more than a shard file of ELEMENTS has */

static void turn_until(struct node_test *t, const char *pattern, size_t n)
{
	for (uint64_t end = 0; count_files(t, pattern) != n && turn_on(t, &end);)
		;
	assert_int_equal(count_files(t, pattern), n);
}

/* The checkpoint that this step takes the place of is gone when this returns. */
static void wait_for_expiry(struct node_test *t, uint64_t step)
{
	char gone[64];

	snprintf(gone, sizeof(gone), "jobs/*/%llu.*",
		 (unsigned long long)(step - 10 * t->o.retention.keep_last));
	turn_until(t, gone, 0);
}

static void save_and_expire(struct node_test *t, uint64_t step)
{
	save_until(&t->a, 0, step, CKPT_DURABLE);
	wait_for_expiry(t, step);
}

static int open_one(const struct node_test *t, const char *pattern)
{
	char path[512];
	glob_t g;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", t->dir, pattern);
	assert_int_equal(glob(path, 0, NULL, &g), 0);
	assert_int_equal(g.gl_pathc, 1);
	fd = open(g.gl_pathv[0], O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	globfree(&g);
	return fd;
}

static uint64_t links_of(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return st.st_nlink;
}

/* All of the file, through whatever kind of descriptor; the caller frees it. */
static void *read_all(int fd, size_t *ret_len)
{
	void *p = NULL;
	ssize_t n;

	assert_int_equal(posix_memalign(&p, 4096, FILE_MAX), 0);
	n = pread(fd, p, FILE_MAX, 0);
	assert_in_range(n, 4 * ELEMENTS, FILE_MAX - 1);
	*ret_len = (size_t)n;
	return p;
}

static void expect_same(int fd, const void *want, size_t len)
{
	size_t n = 0;
	void *got = read_all(fd, &n);

	assert_int_equal(n, len);
	assert_memory_equal(got, want, len);
	free(got);
}

/* The descriptor of the file of a step, as a process has it that drops the lock and keeps it. */
static int take_file(struct node_test *t, uint64_t step)
{
	struct flock unlock = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Load l = CKPT__LOAD__INIT;
	Ckpt__LoadEnd end = CKPT__LOAD_END__INIT;
	struct hand_answer a;
	int fd;

	l.step = step;
	q.body_case = CKPT__REQUEST__BODY_LOAD;
	q.load = &l;
	assert_int_equal(hand_ask(&t->a, &q, &a), 0);
	assert_int_equal(a.reply->load->tier, CKPT_TIER_DISK);
	assert_int_equal(a.n_fds, 2); /* the plan, the file */
	fd = fcntl(a.fds[1], F_DUPFD_CLOEXEC, 3);
	assert_true(fd >= 0);
	assert_int_equal(fcntl(fd, F_OFD_SETLK, &unlock), 0);
	end.load = a.reply->load->load;
	end.complete = true;
	hand_answer_free(&a);
	q.body_case = CKPT__REQUEST__BODY_LOAD_END;
	q.load_end = &end;
	assert_int_equal(hand_ask_code(&t->a, &q), 0);
	return fd;
}

static void begin_keeping(struct node_test *t, uint32_t n)
{
	t->o.retention.keep_last = n;
	begin_one(t);
}

/* Steps 10, 20, ...: the first of them is on disk alone. */
static uint64_t save_until_on_disk_alone(struct node_test *t)
{
	uint64_t step;

	for (step = 10; step <= 60; step += 10)
		save_until(&t->a, 0, step, CKPT_DURABLE);
	return step;
}

/* What a process was given once: a file of a checkpoint that is on disk alone. */
struct given {
	int fd;
	void *bytes;
	size_t len;
	uint64_t next; /* step */
};

static struct given given_file(struct node_test *t)
{
	struct given g = {0};

	begin_keeping(t, 6);
	g.next = save_until_on_disk_alone(t);
	g.fd = take_file(t, 10);
	g.bytes = read_all(g.fd, &g.len);
	return g;
}

static void given_free(struct given *g)
{
	free(g->bytes);
	close(g->fd);
}

static void test_saves_write_over_their_files(void **state)
{
	struct node_test *t = *state;
	int fd;

	begin_keeping(t, 1);
	save_until(&t->a, 0, 10, CKPT_DURABLE);
	save_and_expire(t, 20);
	for (uint64_t step = 30; step <= 60; step += 10) {
		fd = open_one(t, "spare/*");
		save_until(&t->a, 0, step, CKPT_DURABLE);
		/* It is not gone: the new checkpoint has it. */
		assert_int_equal(links_of(fd), 1);
		close(fd);
		wait_for_expiry(t, step);
	}
}

static void test_given_file_is_never_written(void **state)
{
	struct node_test *t = *state;
	struct given g = given_file(t);

	for (int i = 0; i < 4; i++, g.next += 10) {
		save_and_expire(t, g.next);
		expect_same(g.fd, g.bytes, g.len);
	}
	assert_int_equal(links_of(g.fd), 0);
	given_free(&g);
}

/* What an earlier life of ckptd gave away, nothing tells. */
static void test_files_of_an_earlier_life_are_never_written(void **state)
{
	struct node_test *t = *state;
	struct given g = given_file(t);

	end_node(t);
	begin_node(t);
	assert_int_equal(join(t, &t->a, 0, 1, "run2"), g.next - 10);
	declare_and_prepare(&t->a, 0, 1);
	load_rank(&t->a, 0, g.next - 10, CKPT_TIER_DISK);
	for (int i = 0; i < 5; i++, g.next += 10) {
		save_and_expire(t, g.next);
		assert_int_equal(count_files(t, "spare/*"), 0);
		expect_same(g.fd, g.bytes, g.len);
	}
	given_free(&g);
}

/* Spare files too are not known to be nobody's after a start. */
static void test_start_empties_spare(void **state)
{
	struct node_test *t = *state;
	int fd;

	begin_keeping(t, 1);
	save_until(&t->a, 0, 10, CKPT_DURABLE);
	save_and_expire(t, 20);
	turn_until(t, "spare/*", 1);
	fd = open_one(t, "spare/*");
	end_node(t);
	begin_node(t);
	assert_int_equal(join(t, &t->a, 0, 1, "run2"), 20);
	assert_int_equal(count_files(t, "spare/*"), 0);
	assert_int_equal(links_of(fd), 0);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		NODE_TEST(test_saves_write_over_their_files),
		NODE_TEST(test_given_file_is_never_written),
		NODE_TEST(test_files_of_an_earlier_life_are_never_written),
		NODE_TEST(test_start_empties_spare),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
