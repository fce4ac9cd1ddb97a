/* SPDX-License-Identifier: Apache-2.0 */
/*
 * child.c - see child.h.
 *
 *   IDLE --start--> BEGUN --(thread: spawn)--> RUNS --(pidfd)--> IDLE, done
 *                     |                          |
 *              (limit, cancel)           (limit, cancel)
 *                     |                          |
 *                  LEFT, done <---(GRACE_NS)-- KILLED --(pidfd)--> IDLE, done
 *
 *   1. done runs once for each start; LEFT is as busy as the others, and ends as they do.
 *   2. struct spawning is the thread's while the reader is busy, but for `unwanted`; else the
 *      loop's.
 *   3. Whoever takes a child out of (2) ends it: the loop has a pidfd of it, or has the thread kill
 *      it and wait. Without an eye on it, it goes again.
 *
 * Failure modes: a thread that hangs in posix_spawn() is left behind with what it holds, and with
 * it a process that is none of ours yet. Thread: the loop, but begin_run() and what it calls.
 */
#include <config.h>

#include "ckptd/child.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "ckptd/loop_epoll.h"
#include "ckptd/reader.h"

extern char **environ;

#define GRACE_NS     5000000000u /* for what SIGKILL has ended to be gone */
#define FREE_WAIT_NS 1000000000u
#define READS_MAX    64
#define NOT_KNOWN    SIGKILL /* a status of no exit */

/* (2) */
struct spawning {
	struct child *child; /* the loop's alone */
	char *strings[CHILD_ARGS_MAX];
	size_t n_argv, n_strings;
	int out;     /* the end of the pipe that it writes to; -1: standard error */
	bool idle;   /* as child_options.idle */
	bool to_end; /* pid is there and cannot be followed: it is to be ended */
	atomic_bool unwanted;
	pid_t pid; /* 0: there is none */
	int pidfd; /* valid with pid */
	int status;
};

struct child {
	struct loop *loop;
	const char *name;
	struct reader *reader;     /* NULL: nothing was begun yet */
	struct spawning *spawning; /* the reader's */
	bool busy;                 /* from start until nothing is left of it */
	pid_t pid;                 /* of what the loop follows; 0: of nothing */
	struct watch output, end;
	struct timer limit;
	int ended; /* -ETIMEDOUT, -ECANCELED: by us; it is what is told */
	char *text;
	size_t len, size;
	child_done_fn *done; /* NULL: it was told */
	void *arg;
};

/* ---- On the thread ---- */

static void forget_strings(struct spawning *s)
{
	for (size_t i = 0; i < s->n_strings; i++)
		alloc_free(s->strings[i]);
	s->n_strings = s->n_argv = 0;
	if (s->out >= 0)
		close(s->out);
	s->out = -1;
}

static int set_up(const struct spawning *s, posix_spawnattr_t *attr,
		  posix_spawn_file_actions_t *files)
{
	sigset_t none, pipe;
	int r;

	sigemptyset(&none);
	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	r = posix_spawnattr_setflags(attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
						   POSIX_SPAWN_SETPGROUP);
	if (r == 0)
		r = posix_spawnattr_setsigmask(attr, &none);
	if (r == 0)
		r = posix_spawnattr_setsigdefault(attr, &pipe);
	if (r == 0)
		r = posix_spawn_file_actions_addopen(files, 0, "/dev/null", O_RDONLY, 0);
	if (r == 0)
		r = posix_spawn_file_actions_adddup2(files, s->out >= 0 ? s->out : 2, 1);
	return r;
}

/* May hang. */
static int spawn(struct spawning *s, char **environment)
{
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attr;
	char *argv[CHILD_ARGS_MAX + 1] = {0};
	int r;

	for (size_t i = 0; i < s->n_argv; i++)
		argv[i] = s->strings[i];
	if (posix_spawn_file_actions_init(&files))
		return -ENOMEM;
	if (posix_spawnattr_init(&attr)) {
		posix_spawn_file_actions_destroy(&files);
		return -ENOMEM;
	}
	r = set_up(s, &attr, &files);
	if (r == 0)
		r = posix_spawn(&s->pid, argv[0], &files, &attr, argv, environment);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&files);
	if (r)
		s->pid = 0;
	return -r;
}

/* Whether the child has a variable of this name of its own. */
static bool is_own(const struct spawning *s, const char *variable)
{
	size_t len = strcspn(variable, "=") + 1;

	for (size_t i = s->n_argv; i < s->n_strings; i++)
		if (strncmp(s->strings[i], variable, len) == 0)
			return true;
	return false;
}

/* Its own variables, and those of ckptd's that have other names: of two of a name some programs
 * take the first, some the last. */
static char **make_environment(const struct spawning *s)
{
	size_t n = s->n_strings - s->n_argv, used = 0;
	char **all;

	for (char **p = environ; *p; p++)
		n++;
	all = alloc_array(n + 1, sizeof(*all));
	for (size_t i = s->n_argv; all && i < s->n_strings; i++)
		all[used++] = s->strings[i];
	for (char **p = environ; all && *p; p++)
		if (!is_own(s, *p))
			all[used++] = *p;
	return all;
}

static void kill_group(pid_t pid)
{
	assert(pid > 0);
	kill(-pid, SIGKILL); /* a script has children */
}

/* (3): waits for as long as it takes. */
static void end_child(struct spawning *s)
{
	kill_group(s->pid);
	while (waitpid(s->pid, NULL, 0) < 0 && errno == EINTR)
		;
	if (s->pidfd >= 0)
		close(s->pidfd);
	s->pidfd = -1;
	s->pid = 0;
}

static int begin_child(struct spawning *s)
{
	const struct sched_param param = {0};
	CLEANUP_FREE char **environment = make_environment(s);
	int r = environment ? spawn(s, environment) : -ENOMEM;

	if (r < 0)
		return r;
	if (s->idle)
		ignore_result(sched_setscheduler(s->pid, SCHED_IDLE, &param)
			      /* where that is forbidden it runs as others do */);
	s->pidfd = pidfd_open(s->pid, 0);
	if (s->pidfd >= 0 && !atomic_load(&s->unwanted))
		return 0;
	r = s->pidfd < 0 ? -errno : -ECANCELED;
	end_child(s);
	return r;
}

static void begin_run(void *arg)
{
	struct spawning *s = arg;

	if (s->to_end)
		end_child(s);
	else
		s->status = begin_child(s);
	s->to_end = false;
	forget_strings(s);
}

static void spawning_free(void *arg)
{
	struct spawning *s = arg;

	if (s->pid) { /* it was begun, and nobody took it */
		kill_group(s->pid);
		close(s->pidfd);
	}
	forget_strings(s);
	alloc_free(s);
}

/* ---- On the loop ---- */

static void unwatch(struct child *c, struct watch *w)
{
	if (w->fd < 0)
		return;
	watch_remove(c->loop, w);
	close(w->fd);
	w->fd = -1;
}

/* What is there; the rest of one that writes too much is thrown away. */
static void read_output(struct child *c)
{
	char rest[4096];
	ssize_t n;
	int turns = 0;

	/* Bounded: one that writes without end is stopped by its timer, which needs the loop. */
	do {
		bool room = c->len < c->size;

		n = read(c->output.fd, room ? c->text + c->len : rest,
			 room ? c->size - c->len : sizeof(rest));
		if (n > 0 && room)
			c->len += (size_t)n;
	} while ((n > 0 && ++turns < READS_MAX) || (n < 0 && errno == EINTR));
	if (n == 0)
		unwatch(c, &c->output);
}

static void output_came(struct watch *w, uint32_t events)
{
	(void)events;
	read_output(container_of(w, struct child, output));
}

/* (1) Whoever is told may begin the next one if nothing is left of this one. */
static void tell(struct child *c, int status)
{
	child_done_fn *done = c->done;
	char *text = c->text;
	size_t len;

	if (c->output.fd >= 0)
		read_output(c);
	unwatch(c, &c->output);
	len = c->len;
	c->text = NULL;
	c->len = c->size = 0;
	c->done = NULL;
	if (done)
		done(c->arg, status, text, len);
	alloc_free(text);
}

static void over(struct child *c, int status)
{
	assert(c->busy && c->pid == 0);
	timer_disarm(c->loop, &c->limit);
	unwatch(c, &c->end);
	c->busy = false;
	tell(c, c->ended ? c->ended : status);
}

static void end_came(struct watch *w, uint32_t events)
{
	struct child *c = container_of(w, struct child, end);
	int status = 0;
	pid_t r = waitpid(c->pid, &status, WNOHANG);

	(void)events;
	if (r == 0)
		return;
	if (r < 0)
		status = NOT_KNOWN; /* somebody else took it: SIGCHLD was ignored */
	c->pid = 0;
	over(c, WIFEXITED(status) ? WEXITSTATUS(status) : -ECHILD);
}

static void end_it(struct child *c, int why)
{
	c->ended = why;
	if (c->pid)
		kill_group(c->pid);
	else
		atomic_store(&c->spawning->unwanted, true);
	timer_arm(c->loop, &c->limit, loop_now(c->loop) + (c->pid ? GRACE_NS : 0));
}

static void limit_came(struct timer *t)
{
	struct child *c = container_of(t, struct child, limit);

	if (!c->ended)
		end_it(c, -ETIMEDOUT);
	else
		tell(c, c->ended); /* and it stays busy */
}

void child_cancel(struct child *c)
{
	if (c->busy && !c->ended)
		end_it(c, -ECANCELED);
}

static int follow(struct child *c, pid_t pid, int pidfd)
{
	int r;

	c->pid = pid;
	watch_init(&c->end, pidfd, end_came);
	r = watch_set(c->loop, &c->end, EPOLLIN);
	if (r == 0 && c->output.fd >= 0)
		r = watch_set(c->loop, &c->output, EPOLLIN);
	if (r < 0) {
		watch_remove(c->loop, &c->end);
		c->end.fd = -1;
		c->pid = 0;
	}
	return r;
}

/* The thread has done what it was asked for. */
static void begin_done(void *arg)
{
	struct spawning *s = arg;
	struct child *c = s->child;
	int r;

	assert(c->busy && c->pid == 0);
	if (s->pid == 0) {
		over(c, s->status);
		return;
	}
	r = follow(c, s->pid, s->pidfd);
	if (r < 0) { /* (3) */
		s->status = r;
		s->to_end = true;
		reader_ask(c->reader);
		return;
	}
	s->pid = 0;
	if (c->ended)
		kill_group(c->pid);
}

static const struct reader_ops begin_ops = {begin_run, begin_done, spawning_free};

/* The first time: a thread. */
static int make_reader(struct child *c)
{
	struct spawning *s;
	int r;

	if (c->reader)
		return 0;
	s = alloc_zero(sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->child = c;
	s->out = -1;
	r = reader_new(c->loop, c->name, &begin_ops, s, &c->reader);
	if (r == 0)
		c->spawning = s;
	return r;
}

static int copy_strings(struct spawning *s, const struct child_options *o)
{
	const char *const *lists[] = {o->argv, o->variables};

	for (int i = 0; i < 2; i++) {
		for (const char *const *p = lists[i]; p && *p; p++) {
			assert(s->n_strings < CHILD_ARGS_MAX);
			s->strings[s->n_strings] = alloc_str(*p);
			if (!s->strings[s->n_strings])
				return -ENOMEM;
			s->n_strings++;
		}
		if (i == 0)
			s->n_argv = s->n_strings;
	}
	return 0;
}

static int make_output(struct child *c, size_t size)
{
	int fds[2];

	c->text = alloc_zero(size);
	if (!c->text)
		return -ENOMEM;
	if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0) {
		alloc_free(c->text);
		c->text = NULL;
		return -errno;
	}
	c->size = size;
	fcntl(fds[1], F_SETFL, O_WRONLY); /* the child writes as programs do */
	c->spawning->out = fds[1];
	watch_init(&c->output, fds[0], output_came);
	return 0;
}

int child_start(struct child *c, const struct child_options *o, child_done_fn *done, void *arg)
{
	struct spawning *s;
	int r;

	assert(loop_is_current(c->loop));
	assert(o->argv[0] && o->limit_ns > 0 && done);
	if (c->busy)
		return -EBUSY;
	r = make_reader(c);
	if (r < 0)
		return r;
	s = c->spawning;
	r = copy_strings(s, o);
	if (r == 0 && o->output_max)
		r = make_output(c, o->output_max);
	if (r < 0) {
		forget_strings(s);
		return r;
	}
	s->idle = o->idle;
	atomic_store(&s->unwanted, false);
	c->ended = 0;
	c->done = done;
	c->arg = arg;
	c->busy = true;
	timer_arm(c->loop, &c->limit, loop_now(c->loop) + o->limit_ns);
	reader_ask(c->reader);
	return 0;
}

int child_new(struct loop *loop, const char *name, struct child **ret)
{
	struct child *c = alloc_zero(sizeof(*c));

	if (!c)
		return -ENOMEM;
	c->loop = loop;
	c->name = name;
	c->output.fd = c->end.fd = -1;
	timer_init(&c->limit, limit_came);
	*ret = c;
	return 0;
}

void child_free(struct child *c)
{
	if (!c)
		return;
	timer_disarm(c->loop, &c->limit);
	if (c->pid)
		kill_group(c->pid);
	unwatch(c, &c->output);
	unwatch(c, &c->end);
	if (c->spawning)
		atomic_store(&c->spawning->unwanted, true);
	/* One that was begun just now is ended by the thread; one that hangs is left. */
	ignore_result(reader_free(c->reader, FREE_WAIT_NS) /* it has nothing to tell */);
	alloc_free(c->text);
	alloc_free(c);
}
