/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node check as a child: what it ends with, its bounds in time and in bytes, and ckptctl itself.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckptd/acting.h"
#include "ckptd/check_child.h"
#include "ckptd/loop_epoll.h"
#include "tests/lib/test.h"

#define S 1000000000ull

struct fixture {
	struct loop *loop;
	char *dir;
	struct checks *checks;
	bool ended;
	int status;
	char text[300000];
	size_t len;
};

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	if (!f || loop_epoll_new(&f->loop, NULL) != 0)
		return -1;
	f->dir = test_dir_make(NULL);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	check_child_free(f->checks);
	loop_epoll_free(f->loop);
	test_dir_remove(f->dir);
	free(f);
	return 0;
}

static void done(void *arg, int status, const char *json, size_t len)
{
	struct fixture *f = arg;

	f->ended = true;
	f->status = status;
	f->len = len;
	assert_true(len <= sizeof(f->text));
	memcpy(f->text, json, len);
	loop_epoll_stop(f->loop);
}

static void check_with(struct fixture *f, const char *program, uint64_t time_ns, uint64_t limit_ns)
{
	struct check_child_options o = {
		.program = program, .data = f->dir, .time_ns = time_ns, .limit_ns = limit_ns};

	check_child_free(f->checks);
	assert_int_equal(check_child_new(f->loop, &o, &f->checks), 0);
}

/* The program is a script of these lines, below DIR, which is its folder. */
static void script(struct fixture *f, const char *lines, uint64_t limit_ns)
{
	const char *path = test_path(f->dir, "check");
	FILE *file = fopen(path, "we");

	assert_non_null(file);
	fprintf(file, "#!/bin/sh\nDIR=%s\n%s\n", f->dir, lines);
	fclose(file);
	assert_int_equal(chmod(path, 0700), 0);
	check_with(f, path, 7 * S, limit_ns);
}

static int start(struct fixture *f)
{
	f->ended = false;
	return f->checks->ops->start(f->checks, false, done, f);
}

static int run(struct fixture *f)
{
	int r = start(f);

	assert_int_equal(r, 0);
	assert_false(f->ended);
	loop_epoll_run(f->loop);
	assert_true(f->ended);
	return f->status;
}

static void test_statuses(void **state)
{
	struct fixture *f = *state;

	script(f, "echo \"$*\"; exit 0", 60 * S);
	assert_int_equal(run(f), 0);
	f->text[f->len] = '\0';
	assert_non_null(strstr(f->text, "node-check --json --time 7 --data "));
	script(f, "exit 1", 60 * S);
	assert_int_equal(run(f), 1);
	assert_int_equal(f->len, 0);
	assert_int_equal(run(f), 1); /* and again */
	script(f, "exit 2", 60 * S);
	assert_int_equal(run(f), -ENODATA);
	script(f, "kill -TERM $$", 60 * S);
	assert_int_equal(run(f), -ECHILD);
}

static void test_one_at_a_time_and_none(void **state)
{
	struct fixture *f = *state;

	check_with(f, "/nonexistent/ckptctl", S, S);
	assert_int_equal(run(f), -ENOENT);
	assert_int_equal(run(f), -ENOENT);
	script(f, "exit 0", 60 * S);
	assert_int_equal(start(f), 0);
	assert_int_equal(start(f), -EBUSY);
	loop_epoll_run(f->loop);
	assert_true(f->ended);
	assert_int_equal(f->status, 0);
}

static void test_output_is_bounded(void **state)
{
	struct fixture *f = *state;

	script(f, "head -c 1000000 /dev/zero | tr '\\0' a; exit 1", 60 * S);
	assert_int_equal(run(f), 1);
	assert_int_equal(f->len, 256u << 10);
	assert_int_equal(f->text[f->len - 1], 'a');
}

/* What hangs is killed, and so is what it began; what it had said is there. */
static void test_killed_when_late(void **state)
{
	struct fixture *f = *state;
	struct pollfd p = {.events = POLLIN};

	assert_int_equal(mkfifo(test_path(f->dir, "fifo"), 0600), 0);
	p.fd = open(test_path(f->dir, "fifo"), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	assert_true(p.fd >= 0);
	/* The limit leaves a busy machine time to come so far. */
	script(f, "exec 3>$DIR/fifo; sleep 1000 & echo begun; wait", 5 * S);
	assert_int_equal(run(f), -ETIMEDOUT);
	assert_int_equal(f->len, 6);
	assert_memory_equal(f->text, "begun\n", 6);
	/* Its last writer, which is the sleep, is gone. */
	assert_int_equal(poll(&p, 1, 60000), 1);
	assert_int_equal(p.revents & POLLHUP, POLLHUP);
	close(p.fd);
	script(f, "exit 0", 60 * S);
	assert_int_equal(run(f), 0);
}

/* What the machine is worth is not asked here: the answer is whole, and goes with the status. */
static void test_ckptctl(void **state)
{
	struct fixture *f = *state;
	const char *top = getenv("top_builddir");
	char program[600], history[600];
	bool measured = false;
	struct stat st;
	json_t *doc, *o;
	size_t i;

	snprintf(program, sizeof(program), "%s/ckptctl", top ? top : ".");
	if (access(program, X_OK) < 0)
		fail_msg("'%s' is not built", program);
	check_with(f, program, 20 * S, CHECK_LIMIT_NS(20 * S));
	assert_in_range(run(f), 0, 1);
	doc = json_loadb(f->text, f->len, JSON_REJECT_DUPLICATES, NULL);
	assert_non_null(doc);
	assert_int_equal(f->status == 0, json_is_true(json_object_get(doc, "passed")));
	json_array_foreach(json_object_get(doc, "results"), i, o)
	{
		assert_non_null(json_string_value(json_object_get(o, "name")));
		assert_non_null(json_string_value(json_object_get(o, "state")));
		measured |=
			strncmp(json_string_value(json_object_get(o, "name")), "memory", 6) == 0;
	}
	assert_true(measured);
	json_decref(doc);
	snprintf(history, sizeof(history), "%s/checks/history", f->dir);
	assert_int_equal(stat(history, &st), 0);
	assert_true(st.st_size > 0);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_statuses),          T(test_one_at_a_time_and_none),
		T(test_output_is_bounded), T(test_killed_when_late),
		T(test_ckptctl),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
