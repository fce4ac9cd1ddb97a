/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_child.c - see check_child.h.
 *
 *   IDLE -> start: pipe, spawn -> RUNNING: output is kept -> its end of the pipe is closed, or the
 *   time is over (then SIGKILL) -> pidfd says that it has ended -> reaped, done, IDLE
 */
#include <config.h>

#include "ckptd/check_child.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "ckptd/acting.h"
#include "ckptd/loop_epoll.h"

#define OUTPUT_MAX (256u << 10)

extern char **environ;

#define READS_MAX 64
#define NOT_KNOWN SIGKILL /* a status of no exit */

struct check_child {
	struct checks checks;
	struct loop *loop;
	struct check_child_options options;
	pid_t pid; /* 0: none runs */
	struct watch output, end;
	struct timer limit;
	char *text;
	size_t len;
	void (*done)(void *arg, int status, const char *json, size_t len);
	void *arg;
	bool late;
};

static void unwatch(struct check_child *c, struct watch *w)
{
	if (w->fd < 0)
		return;
	watch_remove(c->loop, w);
	close(w->fd);
	w->fd = -1;
}

/* What is there; the rest of one that writes too much is thrown away. */
static void read_output(struct check_child *c)
{
	char rest[4096];
	ssize_t n;
	int turns = 0;

	/* Bounded: one that writes without end is stopped by its timer, which needs the loop. */
	do {
		bool room = c->len < OUTPUT_MAX;

		n = read(c->output.fd, room ? c->text + c->len : rest,
			 room ? OUTPUT_MAX - c->len : sizeof(rest));
		if (n > 0 && room)
			c->len += (size_t)n;
	} while ((n > 0 && ++turns < READS_MAX) || (n < 0 && errno == EINTR));
	if (n == 0)
		unwatch(c, &c->output);
}

static void output_came(struct watch *w, uint32_t events)
{
	(void)events;
	read_output(container_of(w, struct check_child, output));
}

static int status_of(const struct check_child *c, int status)
{
	if (c->late)
		return -ETIMEDOUT;
	if (!WIFEXITED(status))
		return -ECHILD;
	return WEXITSTATUS(status) > 1 ? -ENODATA : WEXITSTATUS(status);
}

static void end_came(struct watch *w, uint32_t events)
{
	struct check_child *c = container_of(w, struct check_child, end);
	int status = 0;
	pid_t r;

	(void)events;
	r = waitpid(c->pid, &status, WNOHANG);
	if (r == 0)
		return;
	if (r < 0)
		status = NOT_KNOWN; /* somebody else took it: SIGCHLD was ignored */
	if (c->output.fd >= 0)
		read_output(c);
	timer_disarm(c->loop, &c->limit);
	unwatch(c, &c->output);
	unwatch(c, &c->end);
	c->pid = 0;
	c->done(c->arg, status_of(c, status), c->text, c->len);
	alloc_free(c->text);
	c->text = NULL;
	c->len = 0;
}

static void limit_came(struct timer *t)
{
	struct check_child *c = container_of(t, struct check_child, limit);

	c->late = true;
	kill(-c->pid, SIGKILL); /* its group: a script has children */
}

static int spawn(struct check_child *c, bool idle, int out)
{
	char seconds[24];
	char *argv[] = {(char *)c->options.program,
			(char *)"node-check",
			(char *)"--json",
			(char *)"--time",
			seconds,
			(char *)"--data",
			(char *)c->options.data,
			NULL};
	const struct sched_param param = {0};
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attr;
	sigset_t none, pipe;
	int r;

	snprintf(seconds, sizeof(seconds), "%llu",
		 (unsigned long long)(c->options.time_ns / 1000000000u));
	sigemptyset(&none);
	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	if (posix_spawn_file_actions_init(&files))
		return -ENOMEM;
	if (posix_spawnattr_init(&attr)) {
		posix_spawn_file_actions_destroy(&files);
		return -ENOMEM;
	}
	r = posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
						    POSIX_SPAWN_SETPGROUP);
	if (r == 0)
		r = posix_spawnattr_setsigmask(&attr, &none);
	if (r == 0)
		r = posix_spawnattr_setsigdefault(&attr, &pipe);
	if (r == 0)
		r = posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
	if (r == 0)
		r = posix_spawn_file_actions_adddup2(&files, out, 1);
	if (r == 0)
		r = posix_spawn(&c->pid, c->options.program, &files, &attr, argv, environ);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&files);
	if (r)
		c->pid = 0;
	else if (idle)
		ignore_result(sched_setscheduler(c->pid, SCHED_IDLE, &param) /* trainers first */);
	return -r;
}

/* The child is there: without an eye on it, it goes again. */
static int follow(struct check_child *c, int in)
{
	int r;

	watch_init(&c->output, in, output_came);
	watch_init(&c->end, pidfd_open(c->pid, 0), end_came);
	r = c->end.fd < 0 ? -errno : watch_set(c->loop, &c->end, EPOLLIN);
	if (r == 0)
		r = watch_set(c->loop, &c->output, EPOLLIN);
	if (r == 0) {
		timer_arm(c->loop, &c->limit, loop_now(c->loop) + c->options.limit_ns);
		return 0;
	}
	kill(-c->pid, SIGKILL);
	waitpid(c->pid, NULL, 0);
	unwatch(c, &c->end);
	c->pid = 0;
	return r;
}

static int start(struct checks *checks, bool idle,
		 void (*done)(void *arg, int status, const char *json, size_t len), void *arg)
{
	struct check_child *c = container_of(checks, struct check_child, checks);
	int fds[2], r;

	if (c->pid)
		return -EBUSY;
	c->text = alloc_zero(OUTPUT_MAX);
	if (!c->text)
		return -ENOMEM;
	r = pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0 ? -errno : 0;
	if (r == 0) {
		/* The child writes as programs do. */
		fcntl(fds[1], F_SETFL, O_WRONLY);
		r = spawn(c, idle, fds[1]);
		close(fds[1]);
		if (r == 0)
			r = follow(c, fds[0]);
		if (r < 0)
			close(fds[0]);
	}
	if (r < 0) {
		c->output.fd = -1;
		alloc_free(c->text);
		c->text = NULL;
		return r;
	}
	c->done = done;
	c->arg = arg;
	c->late = false;
	return 0;
}

static const struct checks_ops ops = {.start = start};

int check_child_new(struct loop *loop, const struct check_child_options *o, struct checks **ret)
{
	struct check_child *c = alloc_zero(sizeof(*c));

	assert(o->time_ns >= 1000000000u && o->limit_ns > 0);
	if (!c)
		return -ENOMEM;
	c->checks.ops = &ops;
	c->loop = loop;
	c->options = *o;
	c->output.fd = c->end.fd = -1;
	timer_init(&c->limit, limit_came);
	*ret = &c->checks;
	return 0;
}

void check_child_free(struct checks *checks)
{
	struct check_child *c = checks ? container_of(checks, struct check_child, checks) : NULL;

	if (!c)
		return;
	timer_disarm(c->loop, &c->limit);
	unwatch(c, &c->output);
	unwatch(c, &c->end);
	alloc_free(c->text);
	alloc_free(c);
}
