/* SPDX-License-Identifier: Apache-2.0 */
/*
 * supervise.c - a tiny parent: holds descriptors, starts the child again, passes signals on.
 *
 *   1. It never touches the memory behind the descriptors, allocates little and does nothing else,
 *      so that nothing but a kill ends it.
 *   2. Messages that the child sent before it died are taken in before the next child starts: what
 *      was acknowledged, or sent, is passed on. Each child has a socket of its own, which has no
 *      name: neither another user nor what an earlier child left behind can send to it.
 *   3. The first death is answered at once, further ones after a time that doubles up to a bound
 *      and is forgotten once a child has lived longer than that bound.
 *   4. A child that ends with an error before any child was ready is not started again: that is
 *      a mistake in its configuration, and the person who started it wants to read about it.
 *   5. The child gets SIGTERM when the supervisor dies: without a keeper a crash would lose memory,
 *      so it persists what is only there and ends; its own descriptors last until it has.
 *   6. A child that says nothing gets SIGABRT, for a core that shows where it hangs, and SIGKILL if
 *      it is there after another watchdog time: in the kernel it may wait where only that ends it.
 *      One that has said WATCHDOG_USEC=0 is not watched: it only ends, for as long as it takes.
 *   7. The child is in a process group of its own: a ^C comes to it once, through here.
 *   8. As the first process of a container it is the parent of every process there whose own has
 *      ended, such as the receivers of a ckptd that was killed: it reaps them too.
 *
 * One thread; blocks only in poll(2). Failure modes: the fork or exec that fails counts as a death.
 */
#include <config.h>

#include "ckptd/supervise.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "ckptd/store_socket.h"

enum { MESSAGES_MAX = 4096 /* more than a socket's queue holds */, REAP_MAX = 64 };
enum { EXIT_NO_EXEC = 127 };

struct supervisor {
	const struct supervise_options *o;
	struct notify *upward; /* our own service manager */
	struct keeper *passed; /* what it passed to us */
	struct fd_table fds;
	struct store_socket socket;
	int signals; /* signalfd */
	sigset_t mask_before;
	uint64_t watchdog_ns;
	uint64_t managers_ns; /* the watchdog time of our own service manager; 0: none */

	pid_t child; /* 0: none */
	bool child_ready, ever_ready, stopping, over;
	bool child_unwatched; /* it said so (6) */
	bool ended; /* some process may have ended: to be reaped */
	uint64_t started_ns, news_ns; /* of this child */
	uint64_t kill_ns;             /* it got SIGABRT: when SIGKILL follows; 0: it did not */
	uint64_t restart_ns, backoff_ns;
	int status; /* to exit with */
};

static uint64_t now_ns(void)
{
	struct timespec t;
	int r = clock_gettime(CLOCK_MONOTONIC, &t);

	assert(r == 0);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- Starting the child ---- */

/* The environment of a child: ours, with the protocol's variables anew. */
struct child_env {
	char **vars;
	char *fds, *names;
	char pid[32], notify_fd[48], notify_pid[48], watchdog_pid[32], watchdog[48], max[48];
};

static bool is_protocols(const char *var)
{
	static const char *const ours[] = {
		"LISTEN_PID=",	 "LISTEN_FDS=",	   "LISTEN_FDNAMES=", "NOTIFY_SOCKET=",
		"WATCHDOG_PID=", "WATCHDOG_USEC=", NOTIFY_FD_VAR "=", NOTIFY_PID_VAR "=",
		KEEPER_MAX_VAR "=",
	};

	for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
		if (strncmp(var, ours[i], strlen(ours[i])) == 0)
			return true;
	}
	return false;
}

static void child_env_fini(struct child_env *env)
{
	alloc_free(env->vars);
	alloc_free(env->fds);
	alloc_free(env->names);
}

static int child_env_init(const struct supervisor *s, struct child_env *env)
{
	size_t n = 0, k = 0;
	int r;

	*env = (struct child_env){ 0 };
	for (char **v = environ; *v; v++)
		n++;
	env->vars = alloc_array(n + 9, sizeof(*env->vars));
	r = env->vars ? fd_table_environment(&s->fds, &env->fds, &env->names) : -ENOMEM;
	if (r) {
		child_env_fini(env);
		return r;
	}
	for (char **v = environ; *v; v++) {
		if (!is_protocols(*v))
			env->vars[k++] = *v;
	}
	env->vars[k++] = env->notify_fd;
	env->vars[k++] = env->notify_pid;
	env->vars[k++] = env->fds;
	env->vars[k++] = env->names;
	env->vars[k++] = env->pid;
	/* The size of the supervisor's own table; a service manager's store, which may be larger,
	 * is not used. */
	snprintf(env->max, sizeof(env->max), KEEPER_MAX_VAR "=%zu", s->fds.max);
	env->vars[k++] = env->max;
	if (s->watchdog_ns) {
		snprintf(env->watchdog, sizeof(env->watchdog), "WATCHDOG_USEC=%llu",
			 (unsigned long long)(s->watchdog_ns / 1000));
		env->vars[k++] = env->watchdog;
		env->vars[k++] = env->watchdog_pid;
	}
	return 0;
}

static _Noreturn void child_main(struct supervisor *s, struct child_env *env, pid_t parent)
{
	/* The descriptors of the store go to 3, 4, ...: out of their way; not close-on-exec. */
	int fd = fcntl(s->socket.child_fd, F_DUPFD, fd_table_end(&s->fds));

	/* Filled in here: only the child knows its pid. */
	snprintf(env->pid, sizeof(env->pid), "LISTEN_PID=%d", (int)getpid());
	snprintf(env->watchdog_pid, sizeof(env->watchdog_pid), "WATCHDOG_PID=%d", (int)getpid());
	snprintf(env->notify_pid, sizeof(env->notify_pid), NOTIFY_PID_VAR "=%d", (int)getpid());
	snprintf(env->notify_fd, sizeof(env->notify_fd), NOTIFY_FD_VAR "=%d", fd);
	if (fd < 0)
		_exit(EXIT_NO_EXEC);
	if (setpgid(0, 0) != 0 || prctl(PR_SET_PDEATHSIG, SIGTERM) != 0 || getppid() != parent)
		_exit(EXIT_NO_EXEC); /* (5), (7) */
	signal(SIGPIPE, SIG_DFL);
	if (fd_table_install(&s->fds) != 0 ||
	    sigprocmask(SIG_SETMASK, &s->mask_before, NULL) != 0)
		_exit(EXIT_NO_EXEC);
	execve(s->o->program, s->o->argv, env->vars);
	_exit(EXIT_NO_EXEC);
}

static void plan_restart(struct supervisor *s)
{
	uint64_t now = now_ns();

	if (now - s->started_ns > s->o->backoff_max_ns)
		s->backoff_ns = 0; /* (3) */
	s->restart_ns = now + s->backoff_ns;
	s->backoff_ns = s->backoff_ns ? min_u64(2 * s->backoff_ns, s->o->backoff_max_ns)
				      : s->o->backoff_min_ns;
}

static void start_child(struct supervisor *s)
{
	pid_t parent = getpid(), pid;
	struct child_env env;
	int r;

	assert(s->child == 0 && s->socket.fd < 0 && !s->over);
	s->started_ns = now_ns();
	r = store_socket_open(&s->socket, &s->fds, s->o->log, NULL);
	if (r == 0)
		r = child_env_init(s, &env);
	if (r == 0) {
		pid = fork();
		if (pid == 0)
			child_main(s, &env, parent);
		r = pid < 0 ? -errno : 0;
		child_env_fini(&env);
	}
	if (r) {
		log_print(s->o->log, LOG_ERR, "could not start ckptd: %s", err_text(r));
		store_socket_close(&s->socket);
		plan_restart(s);
		return;
	}
	store_socket_passed(&s->socket);
	s->child = pid;
	s->child_ready = s->child_unwatched = false;
	s->kill_ns = 0;
}

/* ---- What the child says ---- */

static bool has_line(const char *text, const char *line)
{
	size_t len = strlen(line);

	for (const char *p = text; (p = strstr(p, line)); p += len) {
		if ((p == text || p[-1] == '\n') && (p[len] == '\n' || p[len] == '\0'))
			return true;
	}
	return false;
}

static void take_messages(struct supervisor *s)
{
	char text[NOTIFY_MESSAGE_MAX + 1];

	if (s->socket.fd < 0)
		return; /* no child */
	for (int n = 0; n < MESSAGES_MAX; n++) {
		if (!store_socket_receive(&s->socket, text))
			return;
		if (!text[0])
			continue;
		if (has_line(text, "READY=1"))
			s->child_ready = s->ever_ready = true;
		if (has_line(text, "WATCHDOG_USEC=0"))
			s->child_unwatched = true;
		s->news_ns = now_ns();
		/* A service manager that does not answer is its own problem. */
		ignore_result(notify_send(s->upward, text, NULL, 0));
	}
}

/* ---- Its end ---- */

/* A child that was not watched any longer has died: our own service manager heard that, too. */
static void watch_again(struct supervisor *s)
{
	char text[48];

	if (!s->child_unwatched || !s->managers_ns)
		return;
	snprintf(text, sizeof(text), "WATCHDOG_USEC=%llu",
		 (unsigned long long)(s->managers_ns / 1000));
	ignore_result(notify_send(s->upward, text, NULL, 0)); /* as in take_messages() */
}

static void child_ended(struct supervisor *s, int wait_status)
{
	bool by_itself = WIFEXITED(wait_status);
	int status = by_itself ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
	pid_t pid = s->child;

	s->child = 0;
	store_socket_close(&s->socket);
	s->status = status;
	if (s->stopping ||
	    (by_itself && (status == 0 || status == s->o->end_status || !s->ever_ready))) {
		s->over = true; /* (4) */
		if (by_itself && status == EXIT_NO_EXEC)
			log_print(s->o->log, LOG_ERR, "cannot execute '%s'", s->o->program);
		return;
	}
	watch_again(s);
	plan_restart(s);
	log_print(s->o->log, LOG_ERR,
		  "ckptd (pid %d) %s %d: starting it again with the %zu descriptors it left",
		  (int)pid, by_itself ? "ended with status" : "was killed by signal",
		  by_itself ? status : WTERMSIG(wait_status), s->fds.n);
}

/*
 * Also what is not its own (8). One signal stands for several ends, so all that have ended are
 * reaped, in turns: those who fork faster do not keep it from its child.
 */
static void reap(struct supervisor *s)
{
	for (int n = 0; n < REAP_MAX; n++) {
		siginfo_t info = { 0 };
		int wait_status;

		if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) {
			s->ended = false;
			return;
		}
		if (info.si_pid == s->child)
			take_messages(s); /* (2): all it ever sent is there */
		if (waitpid(info.si_pid, &wait_status, 0) == info.si_pid && info.si_pid == s->child)
			child_ended(s, wait_status);
	}
}

static void take_signals(struct supervisor *s)
{
	struct signalfd_siginfo info;

	while (read(s->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
		int sig = (int)info.ssi_signo;

		if (sig == SIGCHLD) {
			s->ended = true;
			continue;
		}
		if (sig != SIGHUP)
			s->stopping = true;
		if (s->child)
			kill(s->child, sig);
		else if (s->stopping)
			s->over = true;
	}
}

/* Kills a child that says nothing; returns when to look again. */
static uint64_t look_after(struct supervisor *s, uint64_t now)
{
	uint64_t silent = now - s->news_ns;

	if (s->kill_ns && now >= s->kill_ns) { /* (6) */
		kill(s->child, SIGKILL);
		s->kill_ns = 0;
	}
	if (s->kill_ns)
		return s->kill_ns;
	if (!s->watchdog_ns || !s->child_ready || s->child_unwatched)
		return UINT64_MAX;
	if (silent < s->watchdog_ns)
		return s->news_ns + s->watchdog_ns;
	log_print(s->o->log, LOG_ERR, "ckptd (pid %d) has been silent for %llu s: killing it",
		  (int)s->child, (unsigned long long)(silent / 1000000000u));
	kill(s->child, SIGABRT); /* a core dump shows where it hangs */
	kill(s->child, SIGCONT);
	s->child_ready = false;
	s->kill_ns = now + s->watchdog_ns;
	return s->kill_ns;
}

static void wait_for_news(struct supervisor *s)
{
	struct pollfd fds[2] = { { .fd = s->signals, .events = POLLIN },
				 { .fd = s->socket.fd, .events = POLLIN } };
	uint64_t now = now_ns(), until, ms;

	until = s->child ? look_after(s, now) : s->restart_ns;
	if (s->ended) /* reap() has more to do */
		until = now;
	ms = until == UINT64_MAX ? UINT64_MAX : div_up(until > now ? until - now : 0, 1000000);
	if (poll(fds, 2, ms == UINT64_MAX ? -1 : (int)min_u64(ms, INT_MAX)) < 0)
		assert(errno == EINTR || errno == ENOMEM);
}

/* ---- Life ---- */

static int adopt_passed(struct supervisor *s, struct err *e)
{
	char name[KEEPER_NAME_MAX + 1];
	int fd, r;

	while ((fd = keeper_take(s->passed, NULL, name)) >= 0) {
		r = fd_table_add(&s->fds, name[0] ? name : "stored", fd);
		if (r)
			return err_code(e, r, "take over descriptor '%s'", name);
	}
	return 0;
}

static int open_signals(struct supervisor *s, struct err *e)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	if (sigprocmask(SIG_BLOCK, &set, &s->mask_before) != 0)
		return err_code(e, -errno, "block signals");
	signal(SIGCHLD, SIG_DFL); /* ignored, it would not come, and there would be no status */
	signal(SIGPIPE, SIG_IGN); /* a barrier's pipe may have lost its reader */
	s->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return s->signals < 0 ? err_code(e, -errno, "make a signal descriptor") : 0;
}

static int prepare(struct supervisor *s, struct err *e)
{
	int r;

	r = notify_open(&s->upward, e);
	if (r == 0)
		r = keeper_open(s->upward, &s->passed, e);
	if (r == 0)
		r = adopt_passed(s, e);
	if (r == 0)
		r = open_signals(s, e);
	s->managers_ns = notify_watchdog_ns();
	s->watchdog_ns = s->o->watchdog_ns;
	if (s->managers_ns && (!s->watchdog_ns || s->managers_ns < s->watchdog_ns))
		s->watchdog_ns = s->managers_ns;
	return r;
}

int supervise_run(const struct supervise_options *o, int *ret_status, struct err *e)
{
	struct supervisor s = { .o = o, .signals = -1, .socket = { .fd = -1, .child_fd = -1 } };
	int r;

	assert(o->program && o->argv && o->argv[0]);
	assert(o->backoff_min_ns > 0 && o->backoff_min_ns <= o->backoff_max_ns);
	fd_table_init(&s.fds);
	r = prepare(&s, e);
	while (r == 0 && !s.over) {
		if (!s.child && now_ns() >= s.restart_ns)
			start_child(&s);
		wait_for_news(&s);
		take_messages(&s);
		take_signals(&s);
		if (s.ended)
			reap(&s);
	}
	if (s.signals >= 0) {
		close(s.signals);
		ignore_result(sigprocmask(SIG_SETMASK, &s.mask_before, NULL)); /* was valid */
		signal(SIGPIPE, SIG_DFL);
	}
	store_socket_close(&s.socket);
	fd_table_fini(&s.fds);
	keeper_free(s.passed);
	notify_free(s.upward);
	if (r)
		return r;
	*ret_status = s.status;
	return 0;
}
