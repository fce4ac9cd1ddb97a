/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Real sockets and processes; the client side is plain system calls. Nothing waits for a time: the
 * loop runs until the expected event is in the log.
 */
#include <config.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <linux/capability.h>

#include "ckptd/conn_socket.h"
#include "ckptd/listener.h"
#include "ckptd/loop_epoll.h"
#include "ckptd/predecessor.h"
#include "ckptd/processes.h"
#include "tests/lib/send_fds.h"
#include "tests/lib/test.h"

struct world {
	struct loop *loop;
	struct listener *listener;
	char *dir, path[100];
	char log[4096]; /* one letter an event: o, m, c, p(rocess ended) */
	struct conn *conn;
	struct process_id ended;
	struct process_exit exit;
	unsigned exits;
	bool follow, replying, closing, in_call;
	size_t len, n_fds, unsent;
	uint8_t last[16];
};

static bool old_kernel; /* the whole program runs twice */

static void note(struct world *w, char what)
{
	size_t n = strlen(w->log);

	assert_false(w->in_call);
	assert_true(n + 1 < sizeof(w->log));
	w->log[n] = what;
}

static void on_opened(void *arg, struct conn *c)
{
	struct world *w = arg;

	note(w, 'o');
	w->conn = c;
	c->session = w;
	if (w->follow)
		assert_true(c->ops->process_alive(c));
}

static void on_message(void *arg, struct conn *c, const void *msg, size_t len, int *fds, size_t n)
{
	struct world *w = arg;

	note(w, 'm');
	assert_ptr_equal(c->session, w);
	w->conn = c;
	w->len = len;
	w->n_fds = n;
	memcpy(w->last, msg, len < sizeof(w->last) ? len : sizeof(w->last));
	w->in_call = true;
	(void)fds;
	if (w->replying)
		c->ops->send(c, "last words", 10, NULL, 0);
	if (w->closing) {
		c->ops->close(c);
		c->ops->close(c);
		c->ops->send(c, "after", 5, NULL, 0); /* goes nowhere, and harms nobody */
	}
	w->in_call = false;
}

static void on_closed(void *arg, struct conn *c)
{
	(void)c;
	note(arg, 'c');
}

static void on_unsent(void *arg, uint32_t uid, const int *fds, size_t n)
{
	struct world *w = arg;

	assert_int_equal(uid, getuid());
	for (size_t i = 0; i < n; i++)
		assert_int_equal(close(fds[i]), 0);
	w->unsent += n;
}

static void on_room(void *arg, struct conn *c)
{
	(void)c;
	note(arg, 'r');
}

static void on_ended(void *arg, const struct process_id *id)
{
	note(arg, 'p');
	((struct world *)arg)->ended = *id;
}

static void on_exit_known(void *arg, const struct process_id *id, const struct process_exit *x)
{
	struct world *w = arg;

	assert_int_equal(w->ended.pid, id->pid); /* after its end */
	w->exit = *x;
	w->exits++;
}

static const struct conn_events events = {
	.opened = on_opened,
	.message = on_message,
	.closed = on_closed,
	.unsent = on_unsent,
	.room = on_room,
	.process_ended = on_ended,
	.process_exit = on_exit_known,
};

static void until(struct world *w, const char *log)
{
	while (strlen(w->log) < strlen(log))
		loop_epoll_turn(w->loop, UINT64_MAX);
	assert_string_equal(w->log, log);
}

/* Whatever could still come has come: several turns without waiting. */
static void settle(struct world *w)
{
	for (int i = 0; i < 5; i++)
		loop_epoll_turn(w->loop, 1000000);
}

static void start(struct world *w, struct listener_options o)
{
	o.path = w->path;
	o.fd = -1;
	o.mode = o.mode ? o.mode : 0600;
	o.conns_max = o.conns_max ? o.conns_max : 100;
	o.conns_per_uid = o.conns_per_uid ? o.conns_per_uid : 100;
	o.handshake_ns = o.handshake_ns ? o.handshake_ns : 3600ull * 1000000000u;
	o.no_peerpidfd = o.no_passrights = old_kernel;
	assert_int_equal(listener_new(w->loop, &o, &w->listener, NULL), 0);
	assert_int_equal(listener_start(w->listener, &events, w, NULL), 0);
}

static int setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));

	w->dir = test_dir_make(NULL);
	snprintf(w->path, sizeof(w->path), "%s/s", w->dir);
	assert_int_equal(loop_epoll_new(&w->loop, NULL), 0);
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	listener_free(w->listener);
	assert_int_equal(access(w->path, F_OK), -1);
	loop_epoll_free(w->loop);
	test_dir_remove(w->dir);
	free(w);
	return 0;
}

/* ---- The client's side ---- */

static int client_try(const char *path)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	strcpy(a.sun_path, path);
	if (connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0)
		return fd;
	close(fd);
	return -1;
}

static int client(struct world *w)
{
	int fd = client_try(w->path);

	assert_true(fd >= 0);
	return fd;
}

static void client_send(int fd, const void *buf, size_t len, int what, int n_fds)
{
	assert_int_equal(send_fd_copies(fd, buf, len, what, (size_t)n_fds, 0), len);
}

static int open_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* ---- Messages ---- */

static void test_message_and_identity(void **state)
{
	struct world *w = *state;
	int before, fd;

	start(w, (struct listener_options){ 0 });
	before = open_fds();
	fd = client(w);
	client_send(fd, "hello", 5, 0, 0);
	until(w, "om");
	assert_int_equal(w->len, 5);
	assert_int_equal(w->n_fds, 0);
	assert_memory_equal(w->last, "hello", 5);
	assert_int_equal(w->conn->process.pid, getpid());
	assert_int_equal(w->conn->process.uid, getuid());
	assert_true(process_lives(&w->conn->process));
	close(fd);
	until(w, "omc");
	assert_int_equal(open_fds(), before);
}

static void test_reply_carries_descriptors(void **state)
{
	struct world *w = *state;
	int fd, p[2], got = -1;
	char buf[8], control[CMSG_SPACE(sizeof(int))], c;
	struct iovec iov = { buf, sizeof(buf) };
	struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
			    .msg_controllen = sizeof(control) };

	start(w, (struct listener_options){ 0 });
	fd = client(w);
	client_send(fd, "x", 1, 0, 0);
	until(w, "om");
	assert_int_equal(pipe(p), 0);
	w->conn->ops->send(w->conn, "take", 4, &p[1], 1); /* p[1] is closed now */
	assert_int_equal(fcntl(p[1], F_GETFD), -1);
	assert_int_equal(recvmsg(fd, &h, 0), 4);
	memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&h)), sizeof(int));
	assert_int_equal(write(got, "y", 1), 1);
	close(got);
	assert_int_equal(read(p[0], &c, 1), 1);
	assert_int_equal(read(p[0], &c, 1), 0);
	close(p[0]);
	close(fd);
}

static void test_longest_message_passes_and_longer_closes(void **state)
{
	struct world *w = *state;
	static uint8_t big[CONN_MESSAGE_MAX + 1];
	int fd;

	start(w, (struct listener_options){ 0 });
	fd = client(w);
	client_send(fd, big, CONN_MESSAGE_MAX, 0, 0);
	until(w, "om");
	assert_int_equal(w->len, CONN_MESSAGE_MAX);
	client_send(fd, big, CONN_MESSAGE_MAX + 1, 0, 0);
	client_send(fd, big, 1, 0, 0); /* is never seen */
	until(w, "omc");
	settle(w);
	assert_string_equal(w->log, "omc");
	close(fd);
}

/* An empty message is not the other end's end, and no client sends one. */
static void test_empty_message_closes(void **state)
{
	struct world *w = *state;
	int fd;

	start(w, (struct listener_options){ 0 });
	fd = client(w);
	client_send(fd, "m", 1, 0, 0);
	client_send(fd, "", 0, 0, 0);
	until(w, "omc");
	close(fd);
}

static rlim_t limit_files(rlim_t soft)
{
	struct rlimit r;
	rlim_t was;

	getrlimit(RLIMIT_NOFILE, &r);
	was = r.rlim_cur;
	r.rlim_cur = soft;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &r), 0);
	return was;
}

static void test_accept_at_our_limit_goes_on_later(void **state)
{
	struct world *w = *state;
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), top;
	rlim_t was;

	start(w, (struct listener_options){ 0 });
	top = dup(fd);
	close(top);
	was = limit_files((rlim_t)top);
	strcpy(a.sun_path, w->path);
	assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	loop_epoll_turn(w->loop, UINT64_MAX);
	assert_string_equal(w->log, "");
	limit_files(was);
	until(w, "o");
	close(fd);
}

/* ---- Ends ---- */

static void test_close_sends_last_words_and_is_told_later(void **state)
{
	struct world *w = *state;
	char buf[16];
	int fd;

	start(w, (struct listener_options){ 0 });
	w->closing = w->replying = true;
	fd = client(w);
	client_send(fd, "1", 1, 0, 0);
	client_send(fd, "2", 1, 0, 0); /* after close() in the first: not delivered */
	until(w, "omc");
	settle(w);
	assert_string_equal(w->log, "omc");
	assert_int_equal(recv(fd, buf, sizeof(buf), 0), 10);
	assert_memory_equal(buf, "last words", 10);
	assert_true(recv(fd, buf, sizeof(buf), 0) <= 0);
	close(fd);
}

static void test_reader_that_does_not_read_is_closed(void **state)
{
	struct world *w = *state;
	static uint8_t big[CONN_MESSAGE_MAX];
	int fd, before, p[2];
	char c;

	start(w, (struct listener_options){ 0 });
	fd = client(w);
	client_send(fd, "x", 1, 0, 0);
	until(w, "om");
	before = open_fds();
	assert_int_equal(pipe(p), 0);
	for (int i = 0; i < 2000; i++) {
		int out = dup(p[1]);

		w->conn->ops->send(w->conn, big, sizeof(big), &out, 1);
	}
	assert_string_equal(w->log, "om"); /* not inside send */
	until(w, "omc");
	close(fd); /* with what the kernel still held */
	close(p[1]);
	assert_int_equal(read(p[0], &c, 1), 0); /* no writer anywhere */
	close(p[0]);
	while (open_fds() > before - 3) /* both ends and the pidfd */
		loop_epoll_turn(w->loop, UINT64_MAX);
}

static void test_waiting_messages_arrive_in_order(void **state)
{
	struct world *w = *state;
	uint32_t got, big[5000] = { 0 };
	int fd;

	start(w, (struct listener_options){ 0 });
	fd = client(w);
	client_send(fd, "x", 1, 0, 0);
	until(w, "om");
	for (uint32_t i = 0; i < 100; i++) {
		big[0] = i;
		w->conn->ops->send(w->conn, big, sizeof(big), NULL, 0);
	}
	for (uint32_t i = 0; i < 100; i++) {
		while (recv(fd, &got, sizeof(got), MSG_DONTWAIT) < 0)
			loop_epoll_turn(w->loop, UINT64_MAX);
		assert_int_equal(got, i);
	}
	assert_string_equal(w->log, "om");
	close(fd);
}

/* Reads one message with its descriptors, which are closed; how many. */
static size_t take_message(int fd)
{
	union {
		char buf[CMSG_SPACE(CONN_FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} control;
	char buf[16];
	struct iovec iov = {buf, sizeof(buf)};
	struct msghdr h = {.msg_iov = &iov,
			   .msg_iovlen = 1,
			   .msg_control = control.buf,
			   .msg_controllen = sizeof(control.buf)};
	struct cmsghdr *cm;
	size_t n;
	int got;

	assert_true(recvmsg(fd, &h, MSG_DONTWAIT) > 0);
	cm = CMSG_FIRSTHDR(&h);
	n = cm ? (cm->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0;
	for (size_t i = 0; i < n; i++) {
		memcpy(&got, CMSG_DATA(cm) + i * sizeof(int), sizeof(int));
		close(got);
	}
	return n;
}

static void send_fds(struct conn *c, size_t n)
{
	int fds[CONN_FDS_MAX];

	for (size_t i = 0; i < n; i++) {
		fds[i] = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
		assert_true(fds[i] >= 0);
	}
	c->ops->send(c, "m", 1, fds, n);
}

/* A listener, and a client that has sent a message. */
static int begin_with_one(struct world *w)
{
	int fd;

	start(w, (struct listener_options){0});
	fd = client(w);
	client_send(fd, "x", 1, 0, 0);
	until(w, "om");
	return fd;
}

/* The listener does not close descriptors that waited for a process that ends, or that it can no
 * longer send. */
static void test_what_is_not_sent_is_handed_back(void **state)
{
	enum { PER = 32, SENT = CONN_FDS_SENT / PER, WAITING = 3 };
	struct world *w = *state;
	int fd;

	fd = begin_with_one(w);
	for (int i = 0; i < SENT + WAITING; i++)
		send_fds(w->conn, PER);
	assert_int_equal(w->unsent, 0);
	close(fd);
	until(w, "omc");
	assert_int_equal(w->unsent, WAITING * PER);
}

static bool no_changes; /* of what epoll watches */

/* Instead of libc's. */
int epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
	if (op == EPOLL_CTL_MOD && no_changes) {
		errno = ENOMEM;
		return -1;
	}
	return (int)syscall(SYS_epoll_ctl, epoll, op, fd, event);
}

/* A message that cannot wait ends its connection, and its descriptors are handed back once. */
static void test_message_that_cannot_wait(void **state)
{
	enum { PER = 32, SENT = CONN_FDS_SENT / PER };
	struct world *w = *state;
	int fd;

	fd = begin_with_one(w);
	for (int i = 0; i < SENT; i++)
		send_fds(w->conn, PER);
	no_changes = true;
	send_fds(w->conn, PER);
	no_changes = false;
	assert_int_equal(w->unsent, PER);
	until(w, "omc");
	assert_int_equal(w->unsent, PER);
	close(fd);
}

/* Starts a listener under a limit of so many open files; returns the old limit. */
static rlim_t start_with_files(struct world *w, rlim_t files)
{
	struct rlimit r;
	rlim_t was;

	getrlimit(RLIMIT_NOFILE, &r);
	if (r.rlim_max < files)
		skip();
	was = limit_files(files);
	start(w, (struct listener_options){0});
	return was;
}

/* A process that does not take its descriptors gets a bounded number, and so does its user: an
 * eighth of the files that ckptd may have open. */
static void test_descriptors_under_way_are_bounded(void **state)
{
	enum { PER = 32, FILES = 4096, CONNS = FILES / UID_FDS_PART / CONN_FDS_SENT + 1 };
	struct world *w = *state;
	struct conn *conns[CONNS];
	int fds[CONNS], before;
	char log[16] = "";
	rlim_t was = start_with_files(w, FILES);

	for (int i = 0; i < CONNS; i++) {
		fds[i] = client(w);
		client_send(fds[i], "x", 1, 0, 0);
		strcat(log, "om");
		until(w, log);
		conns[i] = w->conn;
	}
	before = open_fds();
	for (unsigned i = 0; i < CONN_FDS_SENT / PER; i++)
		send_fds(conns[0], PER);
	assert_int_equal(open_fds(), before);
	assert_false(conn_room(conns[0]));
	send_fds(conns[0], PER); /* waits here */
	assert_int_equal(open_fds(), before + PER);
	settle(w);
	assert_string_equal(w->log, log);
	for (unsigned i = 0; i < CONN_FDS_SENT / PER; i++)
		assert_int_equal(take_message(fds[0]), PER);
	strcat(log, "r");
	until(w, log); /* and what waited was sent */
	assert_int_equal(open_fds(), before);
	assert_int_equal(take_message(fds[0]), PER);
	assert_true(conn_room(conns[0]));
	/* Each within its own bound, and all together at that of their user. */
	for (int i = 0; i + 1 < CONNS; i++)
		for (unsigned k = i == 0; k < CONN_FDS_SENT / PER; k++) /* one counts still */
			send_fds(conns[i], PER);
	assert_int_equal(open_fds(), before);
	assert_false(conn_room(conns[CONNS - 1]));
	/* Closing a connection does not take its descriptors back: they count until the process has
	 * read them, or ends. */
	conns[1]->ops->close(conns[1]);
	strcat(log, "c");
	until(w, log);
	settle(w);
	assert_string_equal(w->log, log);
	close(fds[1]);
	strcat(log, "r");
	until(w, log);
	for (int i = 0; i < CONNS; i++)
		if (i != 1)
			close(fds[i]);
	limit_files(was);
}

/* Drops the capabilities that lift limits; returns the old ones. */
static struct __user_cap_data_struct drop_effective(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct had[_LINUX_CAPABILITY_U32S_3], less[_LINUX_CAPABILITY_U32S_3];

	assert_int_equal(syscall(SYS_capget, &head, had), 0);
	memcpy(less, had, sizeof(less));
	less[0].effective &= ~(1u << CAP_SYS_RESOURCE | 1u << CAP_SYS_ADMIN);
	assert_int_equal(syscall(SYS_capset, &head, less), 0);
	return had[0];
}

static void restore_effective(struct __user_cap_data_struct had)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct now[_LINUX_CAPABILITY_U32S_3];

	assert_int_equal(syscall(SYS_capget, &head, now), 0);
	now[0].effective = had.effective;
	assert_int_equal(syscall(SYS_capset, &head, now), 0);
}

/* The kernel limits the descriptors in flight from all processes of ckptd's user. */
static void test_message_waits_at_the_kernels_limit(void **state)
{
	enum { FILES = 128 };
	struct world *w = *state;
	struct __user_cap_data_struct had;
	int fd, pair[2];
	rlim_t was;

	start(w, (struct listener_options){0});
	fd = client(w);
	client_send(fd, "x", 1, 0, 0);
	until(w, "om");
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	for (int i = 0; i < 2 * FILES / CONN_FDS_MAX; i++)
		client_send(pair[0], "f", 1, STDERR_FILENO, CONN_FDS_MAX);
	had = drop_effective();
	was = limit_files(FILES);
	send_fds(w->conn, 1);
	settle(w);
	assert_string_equal(w->log, "om"); /* neither sent nor closed */
	assert_int_equal(recv(fd, &(char){0}, 1, MSG_DONTWAIT | MSG_PEEK), -1);
	limit_files(was); /* other processes of the user may have as many in flight */
	restore_effective(had);
	while (recv(fd, &(char){0}, 1, MSG_DONTWAIT | MSG_PEEK) < 0)
		loop_epoll_turn(w->loop, UINT64_MAX); /* its timer wakes it */
	assert_int_equal(take_message(fd), 1);
	close(pair[0]);
	close(pair[1]);
	close(fd);
	until(w, "omc");
}

static void test_silent_connection_is_closed(void **state)
{
	struct world *w = *state;
	int speaks, silent;
	char c;

	start(w, (struct listener_options){ .handshake_ns = 20000000 });
	speaks = client(w);
	client_send(speaks, "x", 1, 0, 0);
	until(w, "om");
	silent = client(w);
	until(w, "omoc");
	assert_int_equal(recv(silent, &c, 1, 0), 0);
	client_send(speaks, "x", 1, 0, 0);
	until(w, "omocm");
	close(speaks);
	close(silent);
}

/* ---- Processes ---- */

static pid_t start_child(struct world *w, void (*body)(int fd, int hold), int hold)
{
	pid_t pid = fork();

	if (pid == 0) {
		body(client_try(w->path), hold);
		_exit(0);
	}
	assert_true(pid > 0);
	return pid;
}

static int hold_fork[2];

/* The child ends at its byte in hold; its fork speaks and ends at its own, in hold_fork. */
static void leave_a_fork_behind(int fd, int hold)
{
	char c;

	client_send(fd, "1", 1, 0, 0);
	if (fork() == 0) {
		if (read(hold_fork[0], &c, 1) == 1)
			client_send(fd, "2", 1, 0, 0);
		_exit(0);
	}
	if (read(hold, &c, 1) != 1)
		_exit(1);
}

/* The end of a process is its pidfd, never the end of its socket, which a fork may hold open. */
static void test_process_ends_while_a_fork_holds_the_socket(void **state)
{
	struct world *w = *state;
	int hold[2];
	pid_t pid;

	start(w, (struct listener_options){ 0 });
	assert_int_equal(pipe(hold) | pipe(hold_fork), 0);
	w->follow = true;
	pid = start_child(w, leave_a_fork_behind, hold[0]);
	until(w, "om");
	assert_int_equal(write(hold[1], "a", 1), 1);
	until(w, "omp");
	assert_int_equal(w->ended.pid, pid);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_false(w->conn->ops->process_alive(w->conn));
	settle(w);
	assert_string_equal(w->log, "omp"); /* once, and the connection is open */
	assert_int_equal(write(hold_fork[1], "a", 1), 1);
	until(w, "ompmc");
	assert_memory_equal(w->last, "2", 1);
	close(hold[0]);
	close(hold[1]);
	close(hold_fork[0]);
	close(hold_fork[1]);
}

static void leave_a_silent_fork(int fd, int hold)
{
	char c;

	client_send(fd, "1", 1, 0, 0);
	if (fork() == 0)
		_exit(read(hold_fork[0], &c, 1) != 1);
	_exit(read(hold, &c, 1) != 1);
}

/* Sends a process as many descriptors as may be in flight; then it ends. Its fork keeps the socket
 * until a byte comes in hold_fork. */
static void lose_descriptors(struct world *w, char *log)
{
	enum { PER = 32 };
	size_t closed = w->unsent;
	int hold[2];
	pid_t pid;

	assert_int_equal(pipe(hold), 0);
	pid = start_child(w, leave_a_silent_fork, hold[0]);
	strcat(log, "om");
	until(w, log);
	for (unsigned i = 0; i < CONN_FDS_SENT / PER; i++)
		send_fds(w->conn, PER);
	assert_int_equal(w->unsent, closed);
	assert_false(conn_room(w->conn));
	assert_int_equal(write(hold[1], "a", 1), 1);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	close(hold[0]);
	close(hold[1]);
}

/* How often c is in the log. */
static int count(const struct world *w, char c)
{
	int n = 0;

	for (const char *p = w->log; *p; p++)
		n += *p == c;
	return n;
}

static void turn_for(struct world *w, unsigned ms, char what, int want)
{
	for (unsigned i = 0; i < ms && count(w, what) < want; i++)
		loop_epoll_turn(w->loop, 1000000);
}

/* ckptd cannot take them back, and the user's other processes do not wait for them; but a user that
 * has lost as many again waits for those. */
static void test_descriptors_of_ended_processes_hold_nobody_up(void **state)
{
	enum { FILES = CONN_FDS_SENT * UID_FDS_PART };
	struct world *w = *state;
	rlim_t was = start_with_files(w, FILES);
	struct conn *mine;
	char log[16] = "om";
	int fd = client(w), before;

	client_send(fd, "x", 1, 0, 0);
	until(w, log);
	mine = w->conn;
	assert_int_equal(pipe(hold_fork), 0);
	before = open_fds();
	lose_descriptors(w, log);
	assert_false(conn_room(mine));
	turn_for(w, 5000, 'r', 1);
	assert_int_equal(count(w, 'r'), 1);
	assert_int_equal(count(w, 'c'), 1);
	assert_int_equal(count(w, 'p'), 1);
	assert_true(conn_room(mine));
	memset(w->log, 0, sizeof(w->log));
	log[0] = '\0';
	lose_descriptors(w, log);
	assert_false(conn_room(mine));
	turn_for(w, 1500, 'r', 1);
	assert_int_equal(count(w, 'r'), 0);
	assert_int_equal(write(hold_fork[1], "aa", 2), 2); /* the forks end */
	turn_for(w, 5000, 'r', 1);
	assert_int_equal(count(w, 'r'), 1);
	for (int i = 0; i < 5000 && open_fds() > before; i++)
		loop_epoll_turn(w->loop, 1000000);
	assert_int_equal(open_fds(), before);
	close(hold_fork[0]);
	close(hold_fork[1]);
	close(fd);
	limit_files(was);
}

/* However many connections can be closed at once, each is closed in a call of its user. */
static void test_lingering_connections_are_closed_in_calls_of_their_own(void **state)
{
	enum { N = 60 };
	struct world *w = *state;
	char log[3 * N + 1] = "";
	int fds[N], before;
	uint64_t calls;

	start(w, (struct listener_options){0});
	before = open_fds();
	for (int i = 0; i < N; i++) {
		fds[i] = client(w);
		client_send(fds[i], "x", 1, 0, 0);
		strcat(log, "om");
		until(w, log);
		send_fds(w->conn, 1);
		w->conn->ops->close(w->conn);
		strcat(log, "c");
		until(w, log);
	}
	assert_in_range(open_fds(), before + 2 * N, before + 2 * N + 1); /* they linger; a pidfd */
	for (int i = 0; i < N; i++)
		assert_int_equal(take_message(fds[i]), 1);
	calls = loop_calls(w->loop)->n;
	while (open_fds() > before + N)
		loop_epoll_turn(w->loop, UINT64_MAX);
	assert_true(loop_calls(w->loop)->n - calls >= N);
	for (int i = 0; i < N; i++)
		close(fds[i]);
}

static void close_then_wait(int fd, int hold)
{
	char c;

	client_send(fd, "1", 1, 0, 0);
	close(fd);
	if (read(hold, &c, 1) != 1)
		_exit(1);
}

static void end_after_close(struct world *w, bool follow, const char *log)
{
	int hold[2];
	pid_t pid;

	assert_int_equal(pipe(hold), 0);
	w->follow = follow;
	pid = start_child(w, close_then_wait, hold[0]);
	until(w, "omc");
	assert_int_equal(write(hold[1], "a", 1), 1);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	if (follow)
		until(w, log);
	settle(w);
	assert_string_equal(w->log, log);
	close(hold[0]);
	close(hold[1]);
}

static void test_followed_process_ends_after_its_connection(void **state)
{
	start(*state, (struct listener_options){ 0 });
	end_after_close(*state, true, "omcp");
}

static void test_process_nobody_follows_is_forgotten(void **state)
{
	start(*state, (struct listener_options){ 0 });
	end_after_close(*state, false, "omc");
}

static void test_processes_without_a_connection(void **state)
{
	struct world *w = *state;
	struct processes *ps;
	struct process_id id = { 0 }, other;
	pid_t pid[2];

	start(w, (struct listener_options){ 0 });
	ps = listener_processes(w->listener);
	for (int i = 0; i < 2; i++) {
		pid[i] = fork();
		if (pid[i] == 0) {
			pause();
			_exit(0);
		}
		id = (struct process_id){ .pid = pid[i] };
		/* As an older ckptd, or an older kernel, names it. */
		assert_int_equal(process_start_time(pid[i], &id.start), 0);
		other = id;
		other.start++;
		assert_int_equal(ps->ops->watch(ps, &other), -ESRCH); /* the pid was used again */
		other = id;
		assert_int_equal(ps->ops->watch(ps, &id), 0);
		assert_int_equal(ps->ops->watch(ps, &other), 0);
		assert_int_equal(other.start, id.start);
		assert_int_equal(ps->ops->watch(ps, &id), 0);
		assert_true(process_lives(&id));
		other.start++;
		assert_int_equal(ps->ops->watch(ps, &other), -ESRCH);
		assert_false(process_lives(&other));
	}
	ps->ops->unwatch(ps, &id);
	ps->ops->unwatch(ps, &id);
	kill(pid[0], SIGKILL);
	kill(pid[1], SIGKILL);
	until(w, "p");
	assert_int_equal(w->ended.pid, pid[0]);
	settle(w);
	assert_string_equal(w->log, "p");
	id.pid = pid[0]; /* a zombie has ended */
	assert_int_equal(process_start_time(pid[0], &id.start), 0);
	assert_int_equal(ps->ops->watch(ps, &id), -ESRCH);
	assert_int_equal(waitpid(pid[0], NULL, 0) | waitpid(pid[1], NULL, 0), pid[0] | pid[1]);
	assert_int_equal(ps->ops->watch(ps, &id), -ESRCH);
	assert_int_equal(ps->ops->watch(ps, &(struct process_id){ .pid = -1 }), -ESRCH);
}

/* A child of ours that waits at a pipe, then ends with status 3, or by a signal. */
static pid_t start_watched(struct world *w, int *ret_go)
{
	struct process_id id = {.uid = geteuid()};
	int go[2];
	char c;

	assert_int_equal(pipe(go), 0);
	id.pid = fork();
	if (id.pid == 0) {
		close(go[1]);
		_exit(read(go[0], &c, 1) == 1 ? 3 : 4);
	}
	close(go[0]);
	assert_int_equal(process_start_time(id.pid, &id.start), 0);
	assert_int_equal(
		listener_processes(w->listener)->ops->watch(listener_processes(w->listener), &id),
		0);
	*ret_go = go[1];
	return id.pid;
}

static void until_exits(struct world *w, unsigned n)
{
	while (w->exits < n)
		loop_epoll_turn(w->loop, UINT64_MAX);
	settle(w);
	assert_int_equal(w->exits, n);
}

static void test_how_a_process_ended(void **state)
{
	struct world *w = *state;
	int go;
	pid_t pid;

	start(w, (struct listener_options){0});
	pid = start_watched(w, &go);
	assert_int_equal(write(go, "a", 1), 1);
	until_exits(w, 1); /* a zombie of our own uid: it is seen before it is reaped */
	assert_int_equal(w->exit.how, PROCESS_END_STATUS);
	assert_int_equal(w->exit.value, 3);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	close(go);
	pid = start_watched(w, &go);
	kill(pid, SIGUSR2);
	until_exits(w, 2);
	assert_int_equal(w->exit.how, PROCESS_END_SIGNAL);
	assert_int_equal(w->exit.value, SIGUSR2);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	close(go);
	assert_string_equal(w->log, "pp");
}

struct other_task {
	struct task task;
	struct world *w;
	unsigned told; /* ends, before its turn */
	bool ran;
};

static void other_turn(struct task *t)
{
	struct other_task *x = container_of(t, struct other_task, task);

	x->told = x->w->exits;
	x->ran = true;
}

/* They end together, and another user waits for few of them. */
static void test_many_ends_are_their_users(void **state)
{
	enum { MANY = 40, FEW = 4 };
	struct world *w = *state;
	struct other_task other = {.w = w};
	siginfo_t info;
	pid_t pids[MANY];
	int go[MANY];

	start(w, (struct listener_options){0});
	for (int i = 0; i < MANY; i++)
		pids[i] = start_watched(w, &go[i]);
	for (int i = 0; i < MANY; i++)
		kill(pids[i], SIGKILL);
	for (int i = 0; i < MANY; i++)
		assert_int_equal(waitid(P_PID, (id_t)pids[i], &info, WEXITED | WNOWAIT), 0);
	task_init(&other.task, geteuid() + 1, other_turn);
	loop_post(w->loop, &other.task);
	while (!other.ran)
		loop_epoll_turn(w->loop, 0);
	assert_in_range(other.told, 0, FEW);
	until_exits(w, MANY);
	for (int i = 0; i < MANY; i++) {
		assert_int_equal(waitpid(pids[i], NULL, 0), pids[i]);
		close(go[i]);
	}
}

/* The pidfd of a reaped process tells how it ended, where the kernel can (6.15). */
static void test_exit_of_a_reaped_process(void **state)
{
	struct process_id id = {.pid = fork()};
	struct process_exit x = {0};
	int pidfd, r;

	(void)state;
	if (id.pid == 0) {
		pause();
		_exit(0);
	}
	pidfd = pidfd_open(id.pid, 0);
	assert_true(pidfd >= 0);
	assert_int_equal(process_start_time(id.pid, &id.start), 0);
	assert_int_equal(process_exit_read(pidfd, &id, &x), -EAGAIN); /* it lives */
	kill(id.pid, SIGKILL);
	assert_int_equal(waitpid(id.pid, NULL, 0), id.pid);
	r = process_exit_read(pidfd, &id, &x);
	if (r == -EAGAIN) {
		print_message("this kernel does not tell how a reaped process ended\n");
	} else {
		assert_int_equal(r, 0);
		assert_int_equal(x.how, PROCESS_END_SIGNAL);
		assert_int_equal(x.value, SIGKILL);
	}
	close(pidfd);
}

/* What others do not let us see is unknown, and said so after a while. */
static void test_exit_that_is_not_ours_to_see(void **state)
{
	struct process_id id = {.uid = geteuid() + 1, .pid = fork()};
	struct process_exit x = {0};
	siginfo_t info;
	int pidfd;

	(void)state;
	if (id.pid == 0)
		_exit(0);
	pidfd = pidfd_open(id.pid, 0);
	assert_int_equal(process_start_time(id.pid, &id.start), 0);
	assert_int_equal(waitid(P_PID, (id_t)id.pid, &info, WEXITED | WNOWAIT), 0);
	assert_int_equal(process_exit_read(pidfd, &id, &x), -EAGAIN); /* 0 may mean "hidden" */
	id.uid--;
	assert_int_equal(process_exit_read(pidfd, &id, &x), 0);
	assert_int_equal(x.how, PROCESS_END_STATUS);
	assert_int_equal(x.value, 0);
	assert_int_equal(waitpid(id.pid, NULL, 0), id.pid);
	close(pidfd);
}

static void test_stat_with_a_nasty_name(void **state)
{
	uint64_t plain = 0, nasty = 0;
	char name[16] = { 0 };

	(void)state;
	FILE *f = fopen("/proc/self/comm", "r+");

	assert_int_equal(process_start_time(getpid(), &plain), 0);
	assert_non_null(fgets(name, sizeof(name), f));
	rewind(f);
	fputs("a) R 1 (b) 9 9", f);
	fflush(f);
	assert_int_equal(process_start_time(getpid(), &nasty), 0);
	assert_int_equal(nasty, plain);
	rewind(f);
	fputs(name, f);
	fclose(f);
	assert_int_equal(process_start_time(INT32_MAX, &nasty), -ESRCH);
}

/* ---- What waits for a user ---- */

/* A client of another user, which only root can make. */
static int client_as(struct world *w, uid_t uid)
{
	int fd;

	assert_int_equal(seteuid(uid), 0);
	fd = client(w);
	assert_int_equal(seteuid(0), 0);
	return fd;
}

/* The listener's end of it. */
static struct conn *greeted(struct world *w, int fd)
{
	int before = count(w, 'm');

	client_send(fd, "x", 1, 0, 0);
	while (count(w, 'm') == before)
		loop_epoll_turn(w->loop, UINT64_MAX);
	return w->conn;
}

static void send_big(struct conn *c, unsigned n)
{
	static uint8_t big[CONN_MESSAGE_MAX];

	for (unsigned i = 0; i < n; i++)
		c->ops->send(c, big, sizeof(big), NULL, 0);
}

/* Sends until one message waits; how many the kernel has taken. */
static unsigned send_until_one_waits(struct conn *c)
{
	unsigned n = 0;

	for (; conn_room(c); n++) {
		assert_true(n < 1000);
		send_big(c, 1);
	}
	return n - 1;
}

static void read_big(struct world *w, int fd, unsigned n)
{
	static uint8_t big[CONN_MESSAGE_MAX];

	while (n > 0) {
		ssize_t len = recv(fd, big, sizeof(big), MSG_DONTWAIT);

		assert_true(len == sizeof(big) || (len == -1 && errno == EAGAIN));
		n -= len > 0;
		if (len < 0)
			loop_epoll_turn(w->loop, UINT64_MAX);
	}
}

static void assert_closed(struct world *w, int want)
{
	settle(w);
	assert_int_equal(count(w, 'c'), want);
}

/* All connections of a user together: the message that exceeds it closes its own, and no other. Not
 * another user's, for which as much waits then; and what was read makes room. */
static void test_bytes_that_wait_for_a_user_are_bounded(void **state)
{
	enum { PER = 32, CONNS = UID_BYTES_WAITING / CONN_MESSAGE_MAX / PER };
	struct world *w = *state;
	bool root = geteuid() == 0;
	struct conn *conns[CONNS + 2], *other = NULL;
	int fds[CONNS + 2], other_fd = -1;
	unsigned in_kernel = 0;
	char byte;

	assert_int_equal(chmod(w->dir, 0755), 0);
	start(w, (struct listener_options){.mode = 0666});
	for (int i = 0; i < CONNS + 2; i++) {
		fds[i] = client(w);
		conns[i] = greeted(w, fds[i]);
	}
	if (root) {
		other_fd = client_as(w, 65533);
		other = greeted(w, other_fd);
	}
	for (int i = 0; i < CONNS; i++) {
		in_kernel = send_until_one_waits(conns[i]);
		send_big(conns[i], PER - 1);
	}
	assert_closed(w, 0); /* 64 MiB wait, and no byte more may */
	send_big(conns[CONNS], in_kernel);
	assert_closed(w, 0);
	send_big(conns[CONNS], 1);
	assert_closed(w, 1);
	read_big(w, fds[CONNS], in_kernel);
	assert_int_equal(recv(fds[CONNS], &byte, 1, 0), 0); /* it was this one */
	if (root) {
		in_kernel = send_until_one_waits(other);
		send_big(other, PER - 1);
		assert_closed(w, 1);
		read_big(w, other_fd, in_kernel + PER);
		close(other_fd);
	}
	read_big(w, fds[0], in_kernel + PER);
	send_until_one_waits(conns[CONNS + 1]);
	send_big(conns[CONNS + 1], PER - 1);
	assert_closed(w, root ? 2 : 1);
	send_big(conns[CONNS + 1], 1);
	assert_closed(w, root ? 3 : 2);
	for (int i = 0; i < CONNS + 2; i++)
		close(fds[i]);
}

/* ---- Who may come in ---- */

static void test_quotas(void **state)
{
	struct world *w = *state;
	int fd[3];
	char c;

	start(w, (struct listener_options){ .conns_max = 5, .conns_per_uid = 2 });
	for (int i = 0; i < 3; i++)
		fd[i] = client(w);
	until(w, "oo");
	settle(w);
	assert_string_equal(w->log, "oo");
	assert_int_equal(recv(fd[2], &c, 1, 0), 0);
	close(fd[0]);
	until(w, "ooc");
	fd[0] = client(w);
	until(w, "ooco");
	for (int i = 0; i < 3; i++)
		close(fd[i]);
}

static void test_quota_of_all(void **state)
{
	struct world *w = *state;
	int fd[2];
	char c;

	start(w, (struct listener_options){ .conns_max = 1 });
	fd[0] = client(w);
	fd[1] = client(w);
	until(w, "o");
	settle(w);
	assert_string_equal(w->log, "o");
	assert_int_equal(recv(fd[1], &c, 1, 0), 0);
	close(fd[0]);
	close(fd[1]);
}

static void test_uid_without_a_number_is_refused(void **state)
{
	struct world *w = *state;
	int status, fd;
	pid_t pid;
	char c;

	if (getuid() != 0)
		skip();
	chmod(w->dir, 0755);
	start(w, (struct listener_options){ .mode = 0666 });
	pid = fork();
	if (pid == 0) {
		if (setuid(65534) != 0)
			_exit(2);
		fd = client_try(w->path);
		_exit(fd >= 0 && recv(fd, &c, 1, 0) == 0 ? 0 : 1);
	}
	while (waitpid(pid, &status, WNOHANG) == 0)
		loop_epoll_turn(w->loop, 1000000);
	assert_int_equal(status, 0);
	assert_string_equal(w->log, "");
}

/* ---- The path ---- */

static int bind_there(const char *path, bool listening)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	strcpy(a.sun_path, path);
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	if (listening)
		assert_int_equal(listen(fd, 1), 0);
	return fd;
}

static int try_new(struct world *w, const char *path, struct err *e)
{
	struct listener_options o = { .path = path, .fd = -1, .mode = 0600 };
	struct listener *l = NULL;
	int r = listener_new(w->loop, &o, &l, e);

	assert_true((r == 0) == (l != NULL));
	listener_free(l);
	return r;
}

static void test_stale_socket_is_replaced_and_others_are_not(void **state)
{
	struct world *w = *state;
	char longer[200];
	struct err e = { 0 };
	int fd;

	close(bind_there(w->path, true)); /* stale: nobody answers */
	assert_int_equal(try_new(w, w->path, &e), 0);
	fd = bind_there(w->path, true);
	assert_int_equal(try_new(w, w->path, &e), -EADDRINUSE);
	assert_non_null(strstr(e.text, w->path));
	snprintf(longer, sizeof(longer), "process %d listens on it", (int)getpid());
	assert_non_null(strstr(e.text, longer));
	assert_int_equal(access(w->path, F_OK), 0);
	close(fd);
	unlink(w->path);
	close(open(w->path, O_CREAT | O_WRONLY, 0600));
	assert_int_equal(try_new(w, w->path, &e), -EEXIST);
	assert_int_equal(unlink(w->path), 0); /* it was left alone */
	memset(longer, 'a', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = '\0';
	assert_int_equal(try_new(w, longer, &e), -ENAMETOOLONG);
	assert_int_equal(try_new(w, "/nonexistent/s", &e), -ENOENT);
	w->listener = NULL;
}

/*
 * Holds something, and is killed: what it held is given back a moment later, as by a process whose
 * memory takes time to free. A child of it plays that part. Returns when it is dead.
 */
static void hold_and_die(void (*hold)(const char *path), const char *path)
{
	const struct timespec moment = {.tv_nsec = 300000000};
	int held[2], alive[2];
	pid_t pid;
	char c;

	assert_true(pipe(held) == 0 && pipe(alive) == 0);
	pid = fork();
	if (pid == 0) {
		hold(path);
		if (fork() == 0) {
			close(alive[1]);
			ignore_result((int)read(alive[0], &c, 1)); /* its end */
			nanosleep(&moment, NULL);
			_exit(0);
		}
		close(alive[0]);
		ignore_result((int)write(held[1], "h", 1));
		pause();
		_exit(1);
	}
	close(alive[0]);
	close(alive[1]);
	assert_int_equal(read(held[0], &c, 1), 1);
	close(held[0]);
	close(held[1]);
	assert_false(process_is_ending(pid));
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_true(process_is_ending(pid));
}

static void hold_socket(const char *path)
{
	bind_there(path, true);
}

static void test_killed_predecessor_is_waited_for(void **state)
{
	struct world *w = *state;
	struct err e = { 0 };

	hold_and_die(hold_socket, w->path);
	assert_int_equal(try_new(w, w->path, &e), 0);
	w->listener = NULL;
}

static int lock_file(const char *path)
{
	struct flock l = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	int fd = open(path, O_CREAT | O_RDWR, 0600);

	return fcntl(fd, F_OFD_SETLK, &l) == 0 ? fd : -1;
}

static void hold_lock(const char *path)
{
	int fd = lock_file(path);

	if (fd < 0 || dprintf(fd, "%d\n", (int)getpid()) < 0)
		_exit(1);
}

static void test_lock_of_a_killed_predecessor_is_waited_for(void **state)
{
	struct world *w = *state;
	char path[200];
	int fd;

	snprintf(path, sizeof(path), "%s/LOCK", w->dir);
	predecessor_wait_lock(w->dir, NULL); /* there is none */
	hold_and_die(hold_lock, path);
	predecessor_wait_lock(w->dir, NULL);
	fd = lock_file(path);
	assert_true(fd >= 0);
	close(fd);
	unlink(path);
	w->listener = NULL;
}

static void test_mode_of_the_path(void **state)
{
	struct world *w = *state;
	mode_t mask = umask(077);
	struct stat st;

	start(w, (struct listener_options){ .mode = 0660 });
	umask(mask);
	assert_int_equal(stat(w->path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0660);
}

/* As root gives it to the group whose users are to use it. */
static void test_group(void **state)
{
	struct world *w = *state;
	struct group *daemon = getgrnam("daemon");
	struct stat st;

	if (geteuid() != 0 || !daemon)
		skip(); /* only root gives what it makes away */
	start(w, (struct listener_options){.mode = 0660, .group = "daemon"});
	assert_int_equal(stat(w->path, &st), 0);
	assert_int_equal(st.st_gid, daemon->gr_gid);
	assert_int_equal(st.st_mode & 0777, 0660);
	listener_free(w->listener);
	start(w, (struct listener_options){.mode = 0660, .group = "no such group"});
	assert_int_equal(stat(w->path, &st), 0);
	assert_int_equal(st.st_gid, getegid());
}

static void test_path_of_somebody_else_is_not_removed(void **state)
{
	struct world *w = *state;

	start(w, (struct listener_options){ 0 });
	unlink(w->path);
	close(bind_there(w->path, false));
	listener_free(w->listener);
	w->listener = NULL;
	assert_int_equal(unlink(w->path), 0);
}

static void test_socket_activation(void **state)
{
	struct world *w = *state;
	struct listener_options o = { .fd = bind_there(w->path, true), .conns_max = 9,
				      .conns_per_uid = 9, .handshake_ns = 1ull << 60,
				      .no_peerpidfd = old_kernel,
				      .no_passrights = old_kernel };
	struct err e = { 0 };
	int fd, on;
	socklen_t len = sizeof(on);

	assert_int_equal(listener_new(w->loop, &o, &w->listener, NULL), 0);
	assert_int_equal(listener_start(w->listener, &events, w, NULL), 0);
	fd = client(w);
	if (!old_kernel && getsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &on, &len) == 0) {
		assert_int_equal(send_fd_copies(fd, "m", 1, STDERR_FILENO, 1, 0), -1);
		assert_int_equal(errno, EPERM);
	} else {
		client_send(fd, "m", 1, STDERR_FILENO, 1);
	}
	until(w, "o");
	close(fd);
	until(w, "oc");
	listener_free(w->listener);
	if (getsockopt(o.fd, SOL_SOCKET, SO_PASSRIGHTS, &on, &len) == 0)
		assert_int_equal(on, 1); /* as it was: an older ckptd may get it next */
	assert_int_equal(unlink(w->path), 0); /* the path is the service manager's */
	o.fd = bind_there(w->path, false);
	assert_int_equal(listener_new(w->loop, &o, &w->listener, &e), -EINVAL);
	w->listener = NULL;
	unlink(w->path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
		T(test_message_and_identity),
		T(test_reply_carries_descriptors),
		T(test_longest_message_passes_and_longer_closes),
		T(test_empty_message_closes),
		T(test_accept_at_our_limit_goes_on_later),
		T(test_close_sends_last_words_and_is_told_later),
		T(test_reader_that_does_not_read_is_closed),
		T(test_waiting_messages_arrive_in_order),
		T(test_what_is_not_sent_is_handed_back),
		T(test_message_that_cannot_wait),
		T(test_descriptors_under_way_are_bounded),
		T(test_message_waits_at_the_kernels_limit),
		T(test_silent_connection_is_closed),
		T(test_process_ends_while_a_fork_holds_the_socket),
		T(test_descriptors_of_ended_processes_hold_nobody_up),
		T(test_lingering_connections_are_closed_in_calls_of_their_own),
		T(test_followed_process_ends_after_its_connection),
		T(test_process_nobody_follows_is_forgotten),
		T(test_processes_without_a_connection),
		T(test_how_a_process_ended),
		T(test_many_ends_are_their_users),
		T(test_exit_of_a_reaped_process),
		T(test_exit_that_is_not_ours_to_see),
		T(test_stat_with_a_nasty_name),
		T(test_bytes_that_wait_for_a_user_are_bounded),
		T(test_quotas),
		T(test_quota_of_all),
		T(test_uid_without_a_number_is_refused),
		T(test_stale_socket_is_replaced_and_others_are_not),
		T(test_killed_predecessor_is_waited_for),
		T(test_lock_of_a_killed_predecessor_is_waited_for),
		T(test_mode_of_the_path),
		T(test_group),
		T(test_path_of_somebody_else_is_not_removed),
		T(test_socket_activation),
#undef T
	};
	int failed = cmocka_run_group_tests_name("on a new kernel", tests, NULL, NULL);

	old_kernel = true;
	return failed + cmocka_run_group_tests_name("on an old kernel", tests, NULL, NULL);
}
