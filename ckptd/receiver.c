/* SPDX-License-Identifier: Apache-2.0 */
/*
 * receiver.c - see receiver.h.
 *
 *   NONE --ask--> BEGINS --> RUNS --limit, broken socket, close--> LEFT (killed) --pidfd--> gone
 *     ^                        |
 *     +--pidfd-- RESTING (its socket is closed: it ends by itself)
 *
 *   1. One request at a time is with the process, so that ckptd knows which one hangs it. The hang
 *      may be in the close of the previous request's descriptor: so a request is sent twice. If
 *      the first process ended between receiving the message and its answer, the second one finds
 *      the message behind it: without a descriptor (RECEIVER_NONE), or none.
 *   2. A process that was killed may not end (it waits in the kernel for what hung it). ckptd
 *      watches its pidfd and never blocks on its end; a uid has at most RECEIVER_LEFT_MAX
 *      processes, whatever they do. With as many LEFT, messages are refused, and connections that
 *      are to be closed wait until one of the processes has ended.
 *   3. Connections are closed by the end of a process, which is theirs alone: ckptd sends it up to
 *      RECEIVER_CLOSE_MAX of them, closes its own descriptors, and kills it. So its end has the
 *      last copies, whether it has received them or not, and a socket does not linger when the
 *      process that has it ends. There is no answer to wait for: its pidfd says that all is closed.
 *   4. BEGINS: a thread of its own executes the program: posix_spawn() returns when the program has
 *      been read from the disk.
 *
 * Thread: the loop, but begin_main().
 */
#include <config.h>

#include "ckptd/receiver.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/conn.h"
#include "ckptd/loop_epoll.h"

extern char **environ;

#define FULL_LOOK_NS  20000000u
#define CLOSE_EACH_NS 50000000u

struct receiver_process {
	struct list link; /* in receiver.processes */
	struct receiver *receiver;
	pid_t pid;
	pthread_t thread; /* BEGINS: this one has what follows, up to `begun` */
	int sockets[2];   /* ours, and the process's */
	int error;
	struct task begun;
	struct watch end;    /* its pidfd */
	struct watch socket; /* fd -1: closed, it is RESTING or LEFT */
};

struct receiver {
	struct loop *loop;
	struct receiver_options o;
	struct list waiting;       /* struct receiving */
	unsigned n_ends;           /* of these: to be closed */
	struct receiving *current; /* with the process; NULL: forgotten, or none */
	bool asked;                /* the process has a message to receive */
	bool lost;                 /* the last request found that the process had ended */
	uint32_t number;           /* of that */
	struct receiver_process *process;   /* RUNS */
	struct receiver_process *beginning; /* BEGINS; in no list */
	struct list processes;     /* all */
	unsigned n_processes;
	uint64_t next_close_ns; /* not before it another process is begun for a few connections */
	uint64_t full_since_ns; /* there are as many processes as there may be; 0: fewer */
	struct timer timer; /* the limit while it is asked; a try again while some wait; the rest */
	struct task task;   /* the next request, or the answer that is there */
	bool posted, readable;
	bool busy; /* a call runs: its callbacks must not free it */
};

static void post(struct receiver *r)
{
	if (r->posted)
		return;
	r->posted = true;
	loop_post(r->loop, &r->task);
}

/* ---- Processes ---- */

static void close_watch(struct loop *l, struct watch *w)
{
	if (w->fd < 0)
		return;
	watch_remove(l, w);
	close(w->fd);
	w->fd = -1;
}

/* The process has no request any more and gets none. */
static void part(struct receiver *r, bool by_force)
{
	struct receiver_process *p = r->process;

	if (!p)
		return;
	r->process = NULL;
	r->readable = false;
	close_watch(r->loop, &p->socket);
	if (by_force)
		kill(p->pid, SIGKILL);
}

static void process_free(struct receiver_process *p)
{
	struct receiver *r = p->receiver;

	close_watch(r->loop, &p->socket);
	close_watch(r->loop, &p->end);
	list_del(&p->link);
	r->n_processes--;
	r->full_since_ns = 0;
	alloc_free(p);
}

static void ended(struct watch *w, uint32_t events)
{
	struct receiver_process *p = container_of(w, struct receiver_process, end);
	struct receiver *r = p->receiver;

	(void)events;
	loop_label(r->loop, "the end of a receiver");
	if (waitpid(p->pid, NULL, WNOHANG) == 0)
		return;
	if (r->process == p)
		part(r, false);
	process_free(p);
	post(r); /* sends its request to another process, or goes on with requests that wait */
}

static void socket_ready(struct watch *w, uint32_t events)
{
	struct receiver *r = container_of(w, struct receiver_process, socket)->receiver;

	(void)events;
	r->readable = true;
	watch_remove(r->loop, w); /* until it was read */
	post(r);
}

static int spawn(const struct receiver *r, int fd, pid_t *ret)
{
	char *argv[] = {(char *)"ckptd", (char *)"--receiver", NULL};
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attr;
	sigset_t none, pipe;
	int e;

	sigemptyset(&none);
	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	if (posix_spawn_file_actions_init(&files))
		return -ENOMEM;
	if (posix_spawnattr_init(&attr)) {
		posix_spawn_file_actions_destroy(&files);
		return -ENOMEM;
	}
	e = posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
						    POSIX_SPAWN_SETPGROUP);
	if (e == 0)
		e = posix_spawnattr_setsigmask(&attr, &none);
	if (e == 0)
		e = posix_spawnattr_setsigdefault(&attr, &pipe);
	if (e == 0)
		e = posix_spawn_file_actions_adddup2(&files, fd, RECEIVER_FD);
	if (e == 0)
		e = posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDWR, 0);
	if (e == 0)
		e = posix_spawn_file_actions_addclosefrom_np(&files, RECEIVER_FD + 1);
	if (e == 0)
		e = posix_spawn(ret, r->o.program, &files, &attr, argv, environ);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&files);
	return -e;
}

/* The process is followed, or ended again. */
static int follow(struct receiver *r, struct receiver_process *p, int socket)
{
	int fd = pidfd_open(p->pid, 0), e = fd < 0 ? -errno : 0;

	watch_init(&p->end, fd, ended);
	watch_init(&p->socket, socket, socket_ready);
	if (e == 0)
		e = watch_set(r->loop, &p->end, EPOLLIN);
	if (e == 0)
		e = watch_set(r->loop, &p->socket, EPOLLIN);
	if (e == 0)
		return 0;
	kill(p->pid, SIGKILL);
	close_watch(r->loop, &p->end);
	/* It has not got a descriptor yet, so nothing keeps it from ending. */
	while (waitpid(p->pid, NULL, 0) < 0 && errno == EINTR)
		;
	return e;
}

static void *begin_main(void *arg)
{
	struct receiver_process *p = arg;

	/* Both are this thread's alone, and then the process's: it works for a user, so it must not
	 * get more processor time than the user's own processes, nor must its execve(); and a
	 * program that is not root's has no capabilities then. */
	ignore_result(setpriority(PRIO_PROCESS, 0, RECEIVER_NICE));
	ignore_result(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0));
	p->error = spawn(p->receiver, p->sockets[1], &p->pid);
	loop_post(p->receiver->loop, &p->begun);
	return NULL;
}

static void refuse_all(struct receiver *r, int why);

/* Its thread has ended, or is about to. */
static void begun(struct task *t)
{
	struct receiver_process *p = container_of(t, struct receiver_process, begun);
	struct receiver *r = p->receiver;
	int e;

	loop_label(r->loop, "a receiver that has begun");
	ignore_result(pthread_join(p->thread, NULL));
	r->beginning = NULL;
	r->busy = true;
	close(p->sockets[1]);
	e = p->error ? p->error : follow(r, p, p->sockets[0]);
	if (e) {
		close(p->sockets[0]);
		alloc_free(p);
		refuse_all(r, e);
	} else {
		list_add_tail(&r->processes, &p->link);
		r->n_processes++;
		r->process = p;
		post(r);
	}
	r->busy = false;
}

static int begin(struct receiver *r)
{
	struct receiver_process *p;
	int e;

	if (r->n_processes >= RECEIVER_LEFT_MAX) /* (2) */
		return -EBUSY;
	p = alloc_zero(sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->receiver = r;
	list_init(&p->link);
	task_init(&p->begun, r->o.uid, begun);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, p->sockets) != 0) {
		e = -errno;
		alloc_free(p);
		return e;
	}
	e = -pthread_create(&p->thread, NULL, begin_main, p);
	if (e) {
		close(p->sockets[0]);
		close(p->sockets[1]);
		alloc_free(p);
		return e;
	}
	r->beginning = p;
	return 0;
}

/* Ends a process that is still BEGINS: no request needs it. */
static void end_beginning(struct receiver *r)
{
	struct receiver_process *p = r->beginning;

	if (!p)
		return;
	ignore_result(pthread_join(p->thread, NULL));
	loop_unpost(r->loop, &p->begun);
	close(p->sockets[0]);
	close(p->sockets[1]);
	if (p->error == 0) {
		kill(p->pid, SIGKILL);
		while (waitpid(p->pid, NULL, 0) < 0 && errno == EINTR)
			;
	}
	r->beginning = NULL;
	alloc_free(p);
}

/* ---- Requests ---- */

static int send_request(struct receiver *r, enum receiver_op op, const int *fds, size_t n_fds)
{
	struct receiver_request q = {.op = op, .number = r->number};
	struct iovec iov = {.iov_base = &q, .iov_len = sizeof(q)};
	union {
		char buf[CMSG_SPACE(RECEIVER_CLOSE_MAX * sizeof(int))];
		struct cmsghdr align;
	} control = {0};
	struct msghdr h = {.msg_iov = &iov,
			   .msg_iovlen = 1,
			   .msg_control = n_fds ? control.buf : NULL,
			   .msg_controllen = n_fds ? CMSG_SPACE(n_fds * sizeof(int)) : 0};
	struct cmsghdr *cm = CMSG_FIRSTHDR(&h);
	ssize_t n;

	if (n_fds) {
		cm->cmsg_level = SOL_SOCKET;
		cm->cmsg_type = SCM_RIGHTS;
		cm->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(cm), fds, n_fds * sizeof(int));
	}
	do
		n = sendmsg(r->process->socket.fd, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

static int ask_take(struct receiver *r, struct receiving *x)
{
	int e;

	r->number++;
	e = send_request(r, RECEIVER_TAKE, &x->fd, 1);
	if (e)
		return e;
	list_del(&x->link);
	r->current = x;
	r->asked = true;
	r->lost = false;
	timer_arm(r->loop, &r->timer, loop_now(r->loop) + r->o.limit_ns);
	return 0;
}

/* The connections that wait to be closed, up to the limit (3). */
static int ask_close(struct receiver *r)
{
	struct receiving *x, *next;
	int fds[RECEIVER_CLOSE_MAX], none = -1, e;
	size_t n = 0;

	list_each(x, &r->waiting, link)
		if (x->end && n < RECEIVER_CLOSE_MAX)
			fds[n++] = x->fd;
	assert(n > 0);
	e = send_request(r, RECEIVER_CLOSE, fds, n);
	if (e)
		return e;
	r->lost = false;
	timer_disarm(r->loop, &r->timer);
	list_each_safe(x, next, &r->waiting, link) {
		if (!x->end || n == 0)
			continue;
		n--;
		r->n_ends--;
		list_del(&x->link);
		close(x->fd);
		x->fd = -1;
		x->done(x, RECEIVER_NOTHING, NULL, 0, &none);
	}
	part(r, true);
	return 0;
}

static void tell(struct receiver *r, struct receiving *x, int status, const void *msg, size_t len,
		 int *fd)
{
	timer_disarm(r->loop, &r->timer);
	x->done(x, status, msg, len, fd);
}

/* The request got no answer: send it again (1), or fail it. */
static void unanswered(struct receiver *r, int why)
{
	struct receiving *x = r->current;
	int none = -1;

	r->current = NULL;
	r->asked = false;
	timer_disarm(r->loop, &r->timer); /* it was of what the process had */
	if (x && !x->again) {
		x->again = true;
		list_add_head(&r->waiting, &x->link);
	} else if (x) {
		tell(r, x, why, NULL, 0, &none);
	}
}

static void limit_came(struct timer *t)
{
	struct receiver *r = container_of(t, struct receiver, timer);

	if (!r->asked && list_empty(&r->waiting))
		part(r, false); /* it has rested long enough */
	else if (!r->asked)
		post(r); /* a process could not be begun, or not be asked: once more */
	if (!r->asked)
		return;
	log_print(r->o.log, LOG_WARNING,
		  "the process that takes in descriptors of uid %u did not answer within %llu ms: "
		  "killed; a descriptor that was sent hangs when it is closed",
		  r->o.uid, (unsigned long long)(r->o.limit_ns / 1000000));
	r->busy = true;
	part(r, true);
	unanswered(r, -ETIMEDOUT);
	post(r);
	r->busy = false;
}

static void try_at(struct receiver *r, uint64_t ns)
{
	if (!r->timer.armed || r->timer.deadline_ns > ns)
		timer_arm(r->loop, &r->timer, ns);
}

/* Connections wait to be closed, as all the processes are LEFT (2). */
static void note_full(struct receiver *r)
{
	uint64_t now = loop_now(r->loop);

	if (r->full_since_ns && now - r->full_since_ns < r->o.limit_ns)
		return;
	if (r->full_since_ns)
		log_print(r->o.log, LOG_WARNING,
			  "%u connections of uid %u wait to be closed: the %u processes that close "
			  "others do not end; a descriptor that was sent hangs when it is closed",
			  r->n_ends, r->o.uid, r->n_processes);
	r->full_since_ns = now;
}

/* There is no process, and none can be begun: refuses messages; connections to be closed wait until
 * a process has ended, or for a while. */
static void refuse_all(struct receiver *r, int why)
{
	struct receiving *x, *next;
	int none = -1;

	list_each_safe(x, next, &r->waiting, link) {
		if (x->end)
			continue;
		list_del(&x->link);
		tell(r, x, why, NULL, 0, &none);
	}
	if (list_empty(&r->waiting))
		return;
	try_at(r, loop_now(r->loop) + r->o.limit_ns);
	if (why == -EBUSY)
		note_full(r);
}

/* A process for connections is begun only once in CLOSE_EACH_NS, so that one closes many, unless it
 * will have as many as it can. */
static bool is_early(const struct receiver *r, const struct receiving *x)
{
	return !r->process && x->end && r->n_ends < RECEIVER_CLOSE_MAX &&
	       loop_now(r->loop) < r->next_close_ns;
}

static int begin_for(struct receiver *r, const struct receiving *x)
{
	if (x->end)
		r->next_close_ns = loop_now(r->loop) + CLOSE_EACH_NS;
	return begin(r);
}

static void ask_next(struct receiver *r)
{
	struct receiving *x = list_first(&r->waiting, struct receiving, link);
	int e;

	if (is_early(r, x)) {
		try_at(r, r->next_close_ns);
		return;
	}
	e = !r->process ? begin_for(r, x) : x->end ? ask_close(r) : ask_take(r, x);
	if (e == 0 && r->beginning)
		return; /* begun() */
	if (r->process && !r->lost && (e == -EPIPE || e == -ECONNRESET)) {
		r->lost = true; /* it was killed, and its pidfd has not said so: another one */
		part(r, true);
		return;
	}
	if (e == -ETOOMANYREFS) { /* of other connections: no event ends that */
		try_at(r, loop_now(r->loop) + FULL_LOOK_NS);
		return;
	}
	if (e) {
		part(r, true);
		refuse_all(r, e);
	}
}

/* ---- Answers ---- */

static int take_fd(struct msghdr *h)
{
	struct cmsghdr *cm = CMSG_FIRSTHDR(h);
	int fd = -1;

	if (cm && cm->cmsg_level == SOL_SOCKET && cm->cmsg_type == SCM_RIGHTS &&
	    cm->cmsg_len >= CMSG_LEN(sizeof(int)))
		memcpy(&fd, CMSG_DATA(cm), sizeof(int));
	return fd;
}

static void take_answer(struct receiver *r)
{
	static uint8_t buf[CONN_MESSAGE_MAX]; /* the loop's alone */
	struct receiver_answer a;
	struct iovec iov[2] = {{.iov_base = &a, .iov_len = sizeof(a)},
			       {.iov_base = buf, .iov_len = sizeof(buf)}};
	union {
		char buf[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct msghdr h = {.msg_iov = iov,
			   .msg_iovlen = 2,
			   .msg_control = control.buf,
			   .msg_controllen = sizeof(control.buf)};
	struct receiving *x = r->current;
	ssize_t n = recvmsg(r->process->socket.fd, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	int fd = n >= 0 ? take_fd(&h) : -1;

	if (n < (ssize_t)sizeof(a) || a.number != r->number || !r->asked ||
	    watch_set(r->loop, &r->process->socket, EPOLLIN) != 0) {
		part(r, true);
		unanswered(r, -EPIPE);
	} else {
		r->asked = false;
		r->current = NULL;
		timer_disarm(r->loop, &r->timer);
		if (x && a.status == RECEIVER_OK && fd < 0)
			tell(r, x, -EMFILE, NULL, 0, &fd); /* our own limit of open files */
		else if (x)
			tell(r, x, (int)a.status, buf, (size_t)n - sizeof(a), &fd);
	}
	if (fd >= 0)
		close(fd);
}

static void next_or_answer(struct receiver *r)
{
	if (r->readable && r->process) {
		r->readable = false;
		take_answer(r);
	} else if (r->asked && !r->process) {
		unanswered(r, -EPIPE);
	} else if (!r->asked && !r->beginning && !list_empty(&r->waiting)) {
		ask_next(r);
	}
	if (r->beginning)
		return;
	if (!r->asked && !list_empty(&r->waiting) && !r->timer.armed)
		post(r);
	else if (!r->asked && r->process && !r->timer.armed)
		timer_arm(r->loop, &r->timer, loop_now(r->loop) + r->o.rest_ns);
}

static void go_on(struct task *t)
{
	struct receiver *r = container_of(t, struct receiver, task);

	r->posted = false;
	r->busy = true;
	loop_label(r->loop, "a message with a descriptor");
	next_or_answer(r);
	r->busy = false;
}

void receiver_ask(struct receiver *r, struct receiving *x)
{
	assert(loop_is_current(r->loop));
	assert(x->done && x->fd >= 0);
	x->again = false;
	if (!r->asked && list_empty(&r->waiting)) /* else it is no rest that it is armed for */
		timer_disarm(r->loop, &r->timer);
	list_add_tail(&r->waiting, &x->link);
	r->n_ends += x->end;
	post(r);
}

void receiver_forget(struct receiver *r, struct receiving *x)
{
	list_del(&x->link);
	if (r->current == x)
		r->current = NULL;
}

bool receiver_is_idle(const struct receiver *r)
{
	return !r->asked && list_empty(&r->waiting) && r->n_processes == 0 && !r->beginning &&
	       !r->posted && !r->busy;
}

struct receiver *receiver_new(struct loop *loop, const struct receiver_options *o)
{
	struct receiver *r = alloc_zero(sizeof(*r));

	if (!r)
		return NULL;
	r->loop = loop;
	r->o = *o;
	list_init(&r->waiting);
	list_init(&r->processes);
	timer_init(&r->timer, limit_came);
	task_init(&r->task, o->uid, go_on);
	return r;
}

void receiver_free(struct receiver *r)
{
	struct receiver_process *p, *next;

	if (!r)
		return;
	timer_disarm(r->loop, &r->timer);
	loop_unpost(r->loop, &r->task);
	end_beginning(r);
	list_each_safe(p, next, &r->processes, link) {
		kill(p->pid, SIGKILL);
		process_free(p);
	}
	alloc_free(r);
}
