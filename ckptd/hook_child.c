/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hook_child.c - trust.hook as a child process: CKPT_JOB, CKPT_JOB_ID, CKPT_STEP, CKPT_ATTEMPT and
 * CKPT_DATA are in its environment, its output is ckptd's standard error. It is ckptd's user, in a
 * process group of its own, at idle priority, and is killed with its group when its time is over.
 *
 * The loop's thread; nothing waits for it.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "ckptd/hook.h"
#include "ckptd/loop_epoll.h"

#define OWN_VARIABLES 5
#define VARIABLE_MAX  512

extern char **environ;

#define NOT_KNOWN SIGKILL /* a status of no exit */

struct hook_child {
	struct hooks hooks;
	struct loop *loop;
	pid_t pid; /* 0: none runs */
	struct watch end;
	struct timer limit;
	bool late;
	void (*done)(void *arg, int status);
	void *arg;
};

static void end_came(struct watch *w, uint32_t events)
{
	struct hook_child *h = container_of(w, struct hook_child, end);
	int status = 0;
	pid_t r;

	(void)events;
	r = waitpid(h->pid, &status, WNOHANG);
	if (r == 0)
		return;
	if (r < 0)
		status = NOT_KNOWN; /* somebody else took it: SIGCHLD was ignored */
	timer_disarm(h->loop, &h->limit);
	watch_remove(h->loop, &h->end);
	close(h->end.fd);
	h->pid = 0;
	h->done(h->arg, h->late ? -ETIMEDOUT : WIFEXITED(status) ? WEXITSTATUS(status) : -ECHILD);
}

static void limit_came(struct timer *t)
{
	struct hook_child *h = container_of(t, struct hook_child, limit);

	h->late = true;
	kill(-h->pid, SIGKILL);
}

static void set_variables(const struct hook_question *q, char own[OWN_VARIABLES][VARIABLE_MAX])
{
	char job[ID_TEXT_MAX], attempt[ID_TEXT_MAX];

	hex_format(job, q->id.job.b, sizeof(q->id.job.b));
	hex_format(attempt, q->id.attempt.b, sizeof(q->id.attempt.b));
	snprintf(own[0], VARIABLE_MAX, "CKPT_JOB=%s", q->job);
	snprintf(own[1], VARIABLE_MAX, "CKPT_JOB_ID=%s", job);
	snprintf(own[2], VARIABLE_MAX, "CKPT_STEP=%llu", (unsigned long long)q->id.step);
	snprintf(own[3], VARIABLE_MAX, "CKPT_ATTEMPT=%s", attempt);
	snprintf(own[4], VARIABLE_MAX, "CKPT_DATA=%s", q->data);
}

/* ckptd's environment with these in front: the first one of a name counts. */
static char **make_environment(char own[OWN_VARIABLES][VARIABLE_MAX])
{
	size_t n = 0;
	char **all;

	while (environ[n])
		n++;
	all = alloc_array(n + OWN_VARIABLES + 1, sizeof(*all));
	for (size_t i = 0; all && i < n + OWN_VARIABLES; i++)
		all[i] = i < OWN_VARIABLES ? own[i] : environ[i - OWN_VARIABLES];
	return all;
}

static int spawn(struct hook_child *h, const char *program, char **environment)
{
	char *argv[] = {(char *)program, NULL};
	const struct sched_param param = {0};
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attr;
	sigset_t none, pipe;
	int r;

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
		r = posix_spawn_file_actions_adddup2(&files, 2, 1);
	if (r == 0)
		r = posix_spawn(&h->pid, program, &files, &attr, argv, environment);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&files);
	if (r)
		h->pid = 0;
	else
		ignore_result(sched_setscheduler(h->pid, SCHED_IDLE, &param) /* trainers first */);
	return -r;
}

static int start(struct hooks *hooks, const struct hook_question *q,
		 void (*done)(void *arg, int status), void *arg)
{
	struct hook_child *h = container_of(hooks, struct hook_child, hooks);
	char own[OWN_VARIABLES][VARIABLE_MAX];
	CLEANUP_FREE char **environment = NULL;
	int r;

	if (h->pid)
		return -EBUSY;
	set_variables(q, own);
	environment = make_environment(own);
	r = environment ? spawn(h, q->program, environment) : -ENOMEM;
	if (r < 0)
		return r;
	h->done = done;
	h->arg = arg;
	h->late = false;
	watch_init(&h->end, pidfd_open(h->pid, 0), end_came);
	r = h->end.fd < 0 ? -errno : watch_set(h->loop, &h->end, EPOLLIN);
	if (r == 0) {
		timer_arm(h->loop, &h->limit, loop_now(h->loop) + q->timeout_ns);
		return 0;
	}
	/* Without an eye on it, it goes again. */
	kill(-h->pid, SIGKILL);
	waitpid(h->pid, NULL, 0);
	if (h->end.fd >= 0)
		close(h->end.fd);
	h->pid = 0;
	return r;
}

static const struct hooks_ops child_ops = {.start = start};

int hook_child_new(struct loop *loop, struct hooks **ret)
{
	struct hook_child *h = alloc_zero(sizeof(*h));

	if (!h)
		return -ENOMEM;
	h->hooks.ops = &child_ops;
	h->loop = loop;
	timer_init(&h->limit, limit_came);
	*ret = &h->hooks;
	return 0;
}

void hook_child_free(struct hooks *hooks)
{
	struct hook_child *h = hooks ? container_of(hooks, struct hook_child, hooks) : NULL;

	if (h && h->pid) {
		timer_disarm(h->loop, &h->limit);
		kill(-h->pid, SIGKILL);
		waitpid(h->pid, NULL, 0);
		watch_remove(h->loop, &h->end);
		close(h->end.fd);
	}
	alloc_free(h);
}
