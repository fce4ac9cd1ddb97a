/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A child: calls of the system that fail or hang when it is begun, followed and ended. They are
 * put in front of libc's here.
 */
#include <config.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckptd/child.h"
#include "ckptd/hook.h"
#include "ckptd/loop_epoll.h"
#include "tests/lib/test.h"

#define S 1000000000ull

/* ---- The calls ---- */

static struct { /* atomic: also of a thread that a test has left behind */
	atomic_int spawn, pidfd, sched, watch; /* errno to fail with; 0: do it */
	atomic_bool hang, no_kill;
	sem_t entered, go;
	atomic_int pid;    /* of the newest child */
	atomic_int policy; /* that it was given last, or -1 */
	atomic_int pidfd_made;
} calls;

int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *files,
		const posix_spawnattr_t *attr, char *const argv[], char *const envp[])
{
	int (*real)(pid_t *, const char *, const posix_spawn_file_actions_t *,
		    const posix_spawnattr_t *, char *const[], char *const[]) =
		dlsym(RTLD_NEXT, "posix_spawn");
	int r;

	if (calls.hang) {
		sem_post(&calls.entered);
		while (sem_wait(&calls.go) < 0)
			;
	}
	if (calls.spawn)
		return calls.spawn;
	r = real(pid, path, files, attr, argv, envp);
	if (r == 0)
		atomic_store(&calls.pid, *pid);
	return r;
}

int pidfd_open(pid_t pid, unsigned flags)
{
	int (*real)(pid_t, unsigned) = dlsym(RTLD_NEXT, "pidfd_open");

	errno = calls.pidfd;
	return calls.pidfd ? -1 : (calls.pidfd_made = real(pid, flags));
}

int sched_setscheduler(pid_t pid, int policy, const struct sched_param *param)
{
	int (*real)(pid_t, int, const struct sched_param *) =
		dlsym(RTLD_NEXT, "sched_setscheduler");

	atomic_store(&calls.policy, policy);
	errno = calls.sched;
	return calls.sched ? -1 : real(pid, policy, param);
}

int epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
	int (*real)(int, int, int, struct epoll_event *) = dlsym(RTLD_NEXT, "epoll_ctl");

	if (calls.watch && op == EPOLL_CTL_ADD && fd == calls.pidfd_made) {
		errno = calls.watch;
		return -1;
	}
	return real(epoll, op, fd, event);
}

int kill(pid_t pid, int sig)
{
	int (*real)(pid_t, int) = dlsym(RTLD_NEXT, "kill");

	return calls.no_kill && sig == SIGKILL ? 0 : real(pid, sig);
}

/* ---- The rig ---- */

struct fixture {
	struct loop *loop;
	char *dir;
	struct child *child;
	struct timer tick;
	int ended; /* how often it was told */
	int status;
	char text[64];
};

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	calls.spawn = calls.pidfd = calls.sched = calls.watch = 0;
	calls.hang = calls.no_kill = false;
	calls.pid = 0;
	calls.policy = -1;
	calls.pidfd_made = -1;
	if (!f || loop_epoll_new(&f->loop, NULL) != 0 || child_new(f->loop, "test", &f->child) != 0)
		return -1;
	f->dir = test_dir_make(NULL);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	child_free(f->child);
	loop_epoll_free(f->loop);
	test_dir_remove(f->dir);
	free(f);
	return 0;
}

static void done(void *arg, int status, const char *text, size_t len)
{
	struct fixture *f = arg;

	f->ended++;
	f->status = status;
	assert_true(len < sizeof(f->text));
	if (len)
		memcpy(f->text, text, len);
	f->text[len] = '\0';
	loop_epoll_stop(f->loop);
}

static int start(struct fixture *f, const char *script, uint64_t limit_ns)
{
	const char *const argv[] = {"/bin/sh", "-c", script, NULL};
	const char *const variables[] = {"HOME=of the test", NULL};
	const struct child_options o = {.argv = argv,
					.variables = variables,
					.limit_ns = limit_ns,
					.output_max = sizeof(f->text) - 1,
					.idle = true};

	return child_start(f->child, &o, done, f);
}

/* Until it is told. */
static int run(struct fixture *f, const char *script, uint64_t limit_ns)
{
	int before = f->ended;

	assert_int_equal(start(f, script, limit_ns), 0);
	assert_int_equal(f->ended, before);
	loop_epoll_run(f->loop);
	assert_int_equal(f->ended, before + 1);
	return f->status;
}

/* Turns until the next one may begin; it then ends well. */
static void run_once_free(struct fixture *f)
{
	int r, before = f->ended;

	while ((r = start(f, "exit 0", 60 * S)) == -EBUSY)
		loop_epoll_turn(f->loop, S / 100);
	assert_int_equal(r, 0);
	loop_epoll_run(f->loop);
	assert_int_equal(f->ended, before + 1);
	assert_int_equal(f->status, 0);
}

/* It was waited for by whom it belongs to: not even a zombie is left. */
static void is_gone(pid_t pid)
{
	assert_true(pid > 0);
	while (kill(pid, 0) == 0)
		poll(NULL, 0, 1);
	assert_int_equal(errno, ESRCH);
}

/* ---- Tests ---- */

static void test_runs(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(run(f, "echo \"$HOME\"; exit 3", 60 * S), 3);
	assert_string_equal(f->text, "of the test\n");
	assert_int_equal(calls.policy, SCHED_IDLE);
	is_gone(calls.pid);
}

static void test_cannot_be_begun(void **state)
{
	struct fixture *f = *state;

	calls.spawn = EAGAIN;
	assert_int_equal(run(f, "exit 0", 60 * S), -EAGAIN);
	assert_int_equal(calls.pid, 0);
	calls.spawn = 0;
	run_once_free(f);
}

static void test_cannot_be_followed(void **state)
{
	struct fixture *f = *state;

	calls.pidfd = EMFILE;
	assert_int_equal(run(f, "sleep 1000", 60 * S), -EMFILE);
	is_gone(calls.pid);
	calls.pidfd = 0;
	calls.watch = ENOSPC;
	assert_int_equal(run(f, "sleep 1000", 60 * S), -ENOSPC);
	is_gone(calls.pid);
	calls.watch = 0;
	run_once_free(f);
}

/* Where it is forbidden to be idle, it runs all the same. */
static void test_not_idle(void **state)
{
	struct fixture *f = *state;

	calls.sched = EPERM;
	assert_int_equal(run(f, "exit 4", 60 * S), 4);
	assert_int_equal(calls.policy, SCHED_IDLE);
}

/* A program on a file system that hangs: the loop turns on, and is told in time. */
static void test_hanging_start(void **state)
{
	struct fixture *f = *state;

	calls.hang = true;
	assert_int_equal(run(f, "sleep 1000", S / 100), -ETIMEDOUT);
	assert_int_equal(sem_wait(&calls.entered), 0);
	assert_int_equal(start(f, "exit 0", 60 * S), -EBUSY);
	/* It comes back: what it had begun ends. */
	calls.hang = false;
	sem_post(&calls.go);
	run_once_free(f);
	assert_int_equal(f->ended, 2);
}

static void test_hanging_start_is_left(void **state)
{
	struct fixture *f = *state;

	calls.hang = true;
	assert_int_equal(start(f, "sleep 1000", 60 * S), 0);
	assert_int_equal(sem_wait(&calls.entered), 0);
	child_free(f->child);
	f->child = NULL;
	sem_post(&calls.go);
	while (atomic_load(&calls.pid) == 0)
		poll(NULL, 0, 1);
	is_gone(calls.pid);
	assert_int_equal(f->ended, 0);
}

static void test_freed_while_it_runs(void **state)
{
	struct fixture *f = *state;
	struct pollfd p = {.events = POLLIN};
	char text[512];

	assert_int_equal(mkfifo(test_path(f->dir, "fifo"), 0600), 0);
	p.fd = open(test_path(f->dir, "fifo"), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	assert_true(p.fd >= 0);
	snprintf(text, sizeof(text), "exec 3>%s/fifo; sleep 1000 & echo x >&3; wait", f->dir);
	assert_int_equal(start(f, text, 60 * S), 0);
	while (poll(&p, 1, 10) == 0)
		loop_epoll_turn(f->loop, S / 100);
	assert_int_equal(read(p.fd, text, sizeof(text)), 2);
	child_free(f->child);
	f->child = NULL;
	/* Its last writer, which is the sleep, is gone too. */
	assert_int_equal(poll(&p, 1, 60000), 1);
	assert_int_equal(p.revents & POLLHUP, POLLHUP);
	close(p.fd);
	assert_int_equal(f->ended, 0);
}

/* In an uninterruptible wait not even SIGKILL ends it: it is told of as late, and left. */
static void test_does_not_die(void **state)
{
	struct fixture *f = *state;

	calls.no_kill = true;
	assert_int_equal(run(f, "echo begun; exec sleep 1000", S / 2), -ETIMEDOUT);
	assert_int_equal(start(f, "exit 0", 60 * S), -EBUSY);
	calls.no_kill = false;
	assert_int_equal(kill(calls.pid, SIGKILL), 0);
	run_once_free(f);
	assert_int_equal(f->ended, 2);
}

/* At any time, and as often as one likes: it is told once. */
static void test_cancel(void **state)
{
	struct fixture *f = *state;

	child_cancel(f->child); /* nothing runs */
	for (int turns = 0; turns < 3; turns++) {
		int before = f->ended;

		assert_int_equal(start(f, "sleep 1000", 60 * S), 0);
		for (int i = 0; i < 20 * turns; i++)
			loop_epoll_turn(f->loop, S / 100);
		child_cancel(f->child);
		child_cancel(f->child);
		assert_int_equal(f->ended, before);
		loop_epoll_run(f->loop);
		assert_int_equal(f->ended, before + 1);
		assert_int_equal(f->status, -ECANCELED);
		while (start(f, "exit 0", 60 * S) == -EBUSY)
			loop_epoll_turn(f->loop, S / 100);
		loop_epoll_run(f->loop);
		assert_int_equal(f->status, 0);
	}
}

/* ---- trust.hook ---- */

static void hook_done(void *arg, int status)
{
	done(arg, status, NULL, 0);
}

static void test_hook(void **state)
{
	struct fixture *f = *state;
	const char *path = test_path(f->dir, "hook");
	struct hook_question q = {.program = path,
				  .job = "train",
				  .data = f->dir,
				  .id = {.step = 70},
				  .timeout_ns = 60 * S};
	FILE *file = fopen(path, "we");
	struct hooks *hooks;

	assert_non_null(file);
	fprintf(file, "#!/bin/sh\ncd $CKPT_DATA || exit 9\n[ $CKPT_JOB = train ] || exit 8\n"
		      "[ ${#CKPT_JOB_ID} = 32 ] || exit 7\n[ ${#CKPT_ATTEMPT} = 32 ] || exit 6\n"
		      "[ $CKPT_STEP = 70 ] || exit 5\nexit 1\n");
	fclose(file);
	assert_int_equal(chmod(path, 0700), 0);
	assert_int_equal(hook_child_new(f->loop, &hooks), 0);
	assert_int_equal(hooks->ops->start(hooks, &q, hook_done, f), 0);
	assert_int_equal(hooks->ops->start(hooks, &q, hook_done, f), -EBUSY);
	loop_epoll_run(f->loop);
	assert_int_equal(f->ended, 1);
	assert_int_equal(f->status, 1);
	assert_int_equal(calls.policy, SCHED_IDLE);
	q.program = "/nonexistent/hook";
	assert_int_equal(hooks->ops->start(hooks, &q, hook_done, f), 0);
	loop_epoll_run(f->loop);
	assert_int_equal(f->status, -ENOENT);
	hook_child_free(hooks);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(test_runs),
		T(test_cannot_be_begun),
		T(test_cannot_be_followed),
		T(test_not_idle),
		T(test_hanging_start),
		T(test_hanging_start_is_left),
		T(test_freed_while_it_runs),
		T(test_does_not_die),
		T(test_cancel),
		T(test_hook),
	};

	sem_init(&calls.entered, 0, 0);
	sem_init(&calls.go, 0, 0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
