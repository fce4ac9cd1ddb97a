/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages with descriptors over a real socket: what is passed on, and that whatever else a user
 * sends is neither opened nor closed by this process. The receiver is the ckptd that was built.
 */
#include <config.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "ckptd/conn_socket.h"
#include "ckptd/listener.h"
#include "ckptd/loop_epoll.h"
#include "ckptd/receiver.h"
#include "tests/lib/send_fds.h"
#include "tests/lib/silent_fuse.h"
#include "tests/lib/test.h"

#define FROZEN  (F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_WRITE)
#define SLOW_MS 4000 /* what closes slowly here takes 5 seconds, or half a minute */

enum { CONNS = 100 }; /* of all, and of a uid */

struct world {
	char *dir, path[256], program[512];
	struct loop *loop;
	struct log log;
	struct listener *listener;
	char said[64]; /* first bytes of messages, in order; 'C': closed */
	char bytes[16]; /* of the memfd that came last */
	bool take;      /* keeps the next descriptor */
	int taken;
	struct conn *conn;
	unsigned opened;
	int other_end; /* 'E' closes it, and then the connection */
};

static void note(struct world *w, char what)
{
	size_t n = strlen(w->said);

	assert_true(n + 1 < sizeof(w->said));
	w->said[n] = what;
}

static void on_opened(void *arg, struct conn *c)
{
	struct world *w = arg;

	w->conn = c;
	w->opened++;
	c->session = arg;
}

static void on_message(void *arg, struct conn *c, const void *msg, size_t len, int *fds, size_t n)
{
	struct world *w = arg;

	assert_true(len > 0 && n <= 1);
	note(w, *(const char *)msg);
	memset(w->bytes, 0, sizeof(w->bytes));
	if (n) {
		assert_int_equal(fcntl(fds[0], F_GETFD), FD_CLOEXEC);
		assert_int_equal(fcntl(fds[0], F_GET_SEALS) & FROZEN, FROZEN);
		assert_true(pread(fds[0], w->bytes, sizeof(w->bytes) - 1, 0) >= 0);
	}
	if (n && w->take) {
		w->taken = fds[0];
		fds[0] = -1;
	}
	if (*(const char *)msg == 'E')
		close(w->other_end);
	if (*(const char *)msg == 'e' || *(const char *)msg == 'E')
		c->ops->close(c);
}

static void on_closed(void *arg, struct conn *c)
{
	(void)c;
	note(arg, 'C');
}

static void on_ended(void *arg, const struct process_id *id)
{
	(void)arg;
	(void)id;
}

static const struct conn_events events = {
	.opened = on_opened,
	.message = on_message,
	.closed = on_closed,
	.process_ended = on_ended,
};

static uint64_t now_ms(void)
{
	struct timespec t;

	assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &t), 0);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* The longest turn of the loop, in milliseconds: a turn that waits for news has a bound. */
static uint64_t until(struct world *w, const char *said)
{
	uint64_t begun = now_ms(), longest = 0;

	while (strlen(w->said) < strlen(said)) {
		uint64_t from = now_ms();

		loop_epoll_turn(w->loop, 50 * 1000000);
		longest = now_ms() - from > longest ? now_ms() - from : longest;
		assert_true(now_ms() - begun < 60000);
	}
	assert_string_equal(w->said, said);
	return longest;
}

static int begin(void **state, bool no_passrights)
{
	struct world *w = calloc(1, sizeof(*w));
	const char *top = getenv("top_builddir");
	struct listener_options o = {.path = w->path,
				     .fd = -1,
				     .mode = 0600,
				     .conns_max = CONNS,
				     .conns_per_uid = CONNS,
				     .handshake_ns = 3600ull * 1000000000u,
				     .no_passrights = no_passrights,
				     .program = w->program,
				     .log = &w->log};

	log_init(&w->log);
	w->dir = test_dir_make(NULL);
	snprintf(w->path, sizeof(w->path), "%s/s", w->dir);
	snprintf(w->program, sizeof(w->program), "%s/ckptd/ckptd", top ? top : ".");
	assert_int_equal(access(w->program, X_OK), 0);
	assert_int_equal(loop_epoll_new(&w->loop, NULL), 0);
	assert_int_equal(listener_new(w->loop, &o, &w->listener, NULL), 0);
	assert_int_equal(listener_start(w->listener, &events, w, NULL), 0);
	*state = w;
	return 0;
}

static int setup(void **state)
{
	return begin(state, false);
}

static int setup_old(void **state)
{
	return begin(state, true);
}

static int teardown(void **state)
{
	struct world *w = *state;

	listener_free(w->listener);
	loop_epoll_free(w->loop);
	while (waitpid(-1, NULL, 0) > 0)
		; /* receivers that were killed can end now */
	test_dir_remove(w->dir);
	free(w);
	return 0;
}

/* ---- The client's side ---- */

static int client(struct world *w)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	strcpy(a.sun_path, w->path);
	assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	return fd;
}

/* Comes back when it has been let in: only then may it send descriptors. */
static int enter(struct world *w)
{
	unsigned before = w->opened;
	int fd = client(w);

	while (w->opened == before)
		loop_epoll_turn(w->loop, 50 * 1000000);
	return fd;
}

/* A message of one byte, or of none: '\0'; with n times the descriptor. */
static void say(int to, char what, int fd, int n)
{
	size_t len = what != '\0';

	assert_int_equal(send_fd_copies(to, &what, len, fd, (size_t)n, 0), len);
}

static int memfd(const char *bytes, int seals)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, strlen(bytes)), strlen(bytes));
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
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

/* ---- What is passed on ---- */

static void test_frozen_memfds_arrive_in_order(void **state)
{
	struct world *w = *state;
	int fd = enter(w), before, m;

	say(fd, '0', 0, 0);
	until(w, "0");
	before = open_fds();
	for (int i = 0; i < 3; i++) {
		m = memfd(i == 1 ? "second" : "first", FROZEN);
		say(fd, (char)('1' + 2 * i), m, 1);
		say(fd, (char)('2' + 2 * i), 0, 0);
		close(m);
	}
	until(w, "0123");
	assert_string_equal(w->bytes, "second");
	until(w, "0123456");
	assert_in_range(open_fds(), before, before + 2); /* the receiver's socket and pidfd */
	w->take = true;
	m = memfd("kept", FROZEN);
	say(fd, '7', m, 1);
	close(m);
	until(w, "01234567");
	memset(w->bytes, 0, sizeof(w->bytes));
	assert_int_equal(pread(w->taken, w->bytes, 4, 0), 4);
	assert_string_equal(w->bytes, "kept");
	close(w->taken);
	close(fd);
	until(w, "01234567C");
}

/* Two connections of a uid have one receiver; each message comes to its own. */
static void test_connections_share_a_receiver(void **state)
{
	struct world *w = *state;
	int fds[2] = {enter(w), enter(w)}, m = memfd("x", FROZEN), before = -1;

	for (int i = 0; i < 20; i++) {
		say(fds[i % 2], 'm', m, 1);
		if (i == 1) {
			until(w, "mm");
			before = open_fds();
		}
	}
	until(w, "mmmmmmmmmmmmmmmmmmmm");
	assert_int_equal(open_fds(), before);
	close(m);
	close(fds[0]);
	close(fds[1]);
}

/* ---- What is not ---- */

static void refused(struct world *w, int what, int n)
{
	int fd = enter(w), before;

	memset(w->said, 0, sizeof(w->said));
	say(fd, 'a', 0, 0);
	until(w, "a");
	before = open_fds();
	say(fd, 'b', what, n);
	say(fd, 'c', 0, 0);
	until(w, "aC");
	assert_in_range(open_fds(), before - 2, before + 2); /* the connection's; the receiver's */
	close(fd);
}

static void test_other_descriptors_close_the_connection(void **state)
{
	struct world *w = *state;
	char name[300];
	int p[2], m;
	char c;

	assert_int_equal(pipe(p), 0);
	refused(w, p[1], 1);
	close(p[1]);
	assert_int_equal(read(p[0], &c, 1), 0); /* it is closed everywhere */
	close(p[0]);
	m = memfd("x", FROZEN);
	refused(w, m, 2);
	refused(w, m, 40);
	close(m);
	m = memfd("x", F_SEAL_GROW | F_SEAL_SHRINK);
	refused(w, m, 1);
	close(m);
	m = memfd("x", F_SEAL_WRITE);
	refused(w, m, 1);
	close(m);
	snprintf(name, sizeof(name), "%s/file", w->dir);
	m = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_true(m >= 0);
	refused(w, m, 1);
	close(m);
}

static void test_large_memfds_close_the_connection(void **state)
{
	struct world *w = *state;
	int m = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	const off_t pages = (off_t)RECEIVER_BYTES_MAX + (64 << 20);

	assert_int_equal(ftruncate(m, (off_t)RECEIVER_BYTES_MAX + 1), 0);
	assert_int_equal(fcntl(m, F_ADD_SEALS, FROZEN), 0);
	refused(w, m, 1);
	close(m);
	m = memfd("x", 0); /* one byte, and pages beyond its end */
	assert_int_equal(fallocate(m, FALLOC_FL_KEEP_SIZE, 0, pages), 0);
	assert_int_equal(fcntl(m, F_ADD_SEALS, FROZEN), 0);
	refused(w, m, 1);
	close(m);
}

static void test_descriptor_lost_at_our_limit_closes(void **state)
{
	struct world *w = *state;
	struct rlimit was, low;
	int fd = enter(w), m = memfd("x", FROZEN), top;

	say(fd, 'a', m, 1);
	until(w, "a"); /* the receiver is there */
	top = dup(fd);
	close(top);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
	low = was;
	low.rlim_cur = (rlim_t)top;
	say(fd, 'b', m, 1);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	until(w, "aC");
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
	close(m);
	close(fd);
}

/* ---- What closes slowly ---- */

/* A socket whose close lingers for five seconds: its peer does not read what is queued. */
static int lingering(int *ret_peer)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	const struct linger linger = {1, 5};
	socklen_t len = sizeof(a);
	int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd;
	static char buf[1 << 16];

	assert_int_equal(bind(l, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(listen(l, 1), 0);
	assert_int_equal(getsockname(l, (struct sockaddr *)&a, &len), 0);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	*ret_peer = accept(l, NULL, NULL);
	assert_true(*ret_peer >= 0);
	close(l);
	while (send(fd, buf, sizeof(buf), MSG_DONTWAIT) > 0)
		;
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)), 0);
	return fd;
}

static void test_queued_descriptors_are_closed_elsewhere(void **state)
{
	struct world *w = *state;
	int fd = enter(w), slow, peer;

	say(fd, 'e', 0, 0); /* is answered by the end of the connection */
	for (int i = 0; i < 3; i++)
		say(fd, 'x', 0, 0);
	slow = lingering(&peer);
	say(fd, '\0', slow, 1); /* empty, so that it looks like the end */
	assert_int_equal(fcntl(slow, F_GETFD), 0 | FD_CLOEXEC);
	/* The last reference to it is in the queue: a close of that blocks. */
	close(slow);
	assert_true(until(w, "eC") < SLOW_MS);
	/* Another connection is served meanwhile. */
	close(fd);
	memset(w->said, 0, sizeof(w->said));
	fd = enter(w);
	say(fd, 'a', 0, 0);
	assert_true(until(w, "a") < SLOW_MS);
	close(peer);
	close(fd);
}

/* Sends a socket that lingers and keeps no copy of it; its peer. */
static int send_lingering(int to)
{
	int peer, slow = lingering(&peer);

	say(to, 'x', slow, 1);
	close(slow);
	return peer;
}

/* What is received and not passed on, too: further messages of its user wait for its close. */
static void test_received_descriptors_do_not_linger(void **state)
{
	struct world *w = *state;
	int fd = enter(w), other = enter(w), m = memfd("x", FROZEN), peer;
	uint64_t from;

	peer = send_lingering(fd);
	until(w, "C"); /* it is refused */
	from = now_ms();
	say(other, 'a', m, 1);
	until(w, "Ca");
	assert_true(now_ms() - from < SLOW_MS);
	close(m);
	close(peer);
	close(fd);
	close(other);
}

/* The other end sees the end. */
static void await_refusal(struct world *w, int fd)
{
	uint64_t from = now_ms();
	char c;

	while (recv(fd, &c, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN) {
		loop_epoll_turn(w->loop, 50 * 1000000);
		assert_true(now_ms() - from < 60000);
	}
}

/* Linux 6.16: the kernel refuses them, so a connection that is refused has none. */
static void test_only_who_is_let_in_sends_descriptors(void **state)
{
	struct world *w = *state;
	int fds[CONNS], fd, m = memfd("x", FROZEN), before, on;
	socklen_t len = sizeof(on);

	for (int i = 0; i < CONNS; i++)
		fds[i] = enter(w);
	if (getsockopt(fds[0], SOL_SOCKET, SO_PASSRIGHTS, &on, &len) != 0)
		skip();
	before = open_fds();
	fd = client(w);
	assert_int_equal(send_fd_copies(fd, "x", 1, m, 1, 0), -1);
	assert_int_equal(errno, EPERM);
	for (int i = 0; i < 40; i++) /* more than are looked at */
		say(fd, 'x', 0, 0);
	await_refusal(w, fd);
	assert_int_equal(send_fd_copies(fd, "x", 1, m, 1, 0), -1);
	close(fd);
	assert_int_equal(open_fds(), before); /* it is closed, without a process */
	say(fds[0], 'a', m, 1);
	until(w, "a");
	assert_string_equal(w->bytes, "x");
	for (int i = 0; i < CONNS; i++)
		close(fds[i]);
	close(m);
}

static void test_refused_connections_are_closed_elsewhere(void **state)
{
	struct world *w = *state;
	int fds[CONNS], more[3], peers[3], before;

	for (int i = 0; i < CONNS; i++)
		fds[i] = enter(w);
	say(fds[CONNS - 1], 'a', 0, 0);
	until(w, "a"); /* all are let in */
	before = open_fds();
	for (int i = 0; i < 3; i++) {
		more[i] = client(w);
		peers[i] = send_lingering(more[i]);
	}
	say(fds[CONNS - 1], 'b', 0, 0);
	assert_true(until(w, "ab") < SLOW_MS);
	for (int i = 0; i < 3; i++)
		await_refusal(w, more[i]);
	say(fds[0], 'c', 0, 0);
	assert_true(until(w, "abc") < SLOW_MS);
	for (int i = 0; i < 3; i++)
		close(more[i]);
	/* Their peers, and a receiver; nothing waits for the time limit of an answer. */
	for (uint64_t from = now_ms(); open_fds() > before + 3 + 2;) {
		loop_epoll_turn(w->loop, 50 * 1000000);
		assert_true(now_ms() - from < SLOW_MS);
	}
	for (int i = 0; i < 3; i++)
		close(peers[i]);
	for (int i = 0; i < CONNS; i++)
		close(fds[i]);
}

static void open_log(struct world *w)
{
	char path[300];

	snprintf(path, sizeof(path), "%s/log", w->dir);
	w->log.fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_true(w->log.fd >= 0);
}

#ifdef CKPT_FAULTS
/* Without memory even for that. */
static void test_a_connection_is_refused_without_memory(void **state)
{
	struct world *w = *state;
	int before = open_fds(), fd = client(w), on;
	socklen_t len = sizeof(on);

	if (getsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &on, &len) != 0)
		skip();
	say(fd, 'x', 0, 0);
	alloc_fail_at(1, true);
	await_refusal(w, fd);
	alloc_fail_at(0, false);
	close(fd);
	assert_int_equal(open_fds(), before);
	close(enter(w)); /* memory is there again */
}

/* It may hold descriptors, and there is nobody to close it: it stays open. */
static void test_what_cannot_be_closed_elsewhere_stays_open(void **state)
{
	struct world *w = *state;
	int fd = client(w), peer = send_lingering(fd), other;
	char text[1000] = "";
	uint64_t from = now_ms();

	open_log(w);
	alloc_fail_at(1, true);
	await_refusal(w, fd);
	alloc_fail_at(0, false);
	assert_true(now_ms() - from < SLOW_MS);
	assert_true(pread(w->log.fd, text, sizeof(text) - 1, 0) > 0);
	assert_non_null(strstr(text, "was refused stays open: no memory"));
	other = enter(w);
	say(other, 'a', 0, 0);
	until(w, "a");
	close(w->log.fd);
	close(peer);
	close(other);
	close(fd);
}
#endif

/* Refused, as the kernel does not name its process any more. */
static void test_a_connection_of_an_ended_process_is_closed_elsewhere(void **state)
{
	struct world *w = *state;
	int fd = enter(w), peer, slow = lingering(&peer);
	pid_t pid;

	say(fd, 'a', 0, 0);
	until(w, "a");
	pid = fork();
	if (pid == 0) {
		say(client(w), 'x', slow, 1);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	close(slow);
	say(fd, 'b', 0, 0);
	assert_true(until(w, "ab") < SLOW_MS);
	say(fd, 'c', 0, 0);
	assert_true(until(w, "abc") < SLOW_MS);
	close(peer);
	close(fd);
}

/* A close with answers that were not read makes an error, which hides what is queued. */
static void test_queued_descriptors_behind_an_error_are_closed_elsewhere(void **state)
{
	struct world *w = *state;
	int peer;

	w->other_end = enter(w);
	say(w->other_end, 'a', 0, 0);
	until(w, "a");
	w->conn->ops->send(w->conn, "unread", 6, NULL, 0);
	say(w->other_end, 'E', 0, 0);
	peer = send_lingering(w->other_end);
	assert_true(until(w, "aEC") < SLOW_MS);
	close(peer);
}

static pid_t only_child(void)
{
	char path[64], *at = NULL;
	size_t size = 0;
	pid_t pid;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
	f = fopen(path, "re");
	assert_true(f && getline(&at, &size, f) > 0);
	pid = (pid_t)strtol(at, NULL, 10);
	free(at);
	fclose(f);
	return pid;
}

/* Else a user whose receivers hang would keep its refused connections, and others would wait. */
static void test_connections_are_closed_while_a_receiver_hangs(void **state)
{
	struct world *w = *state;
	int fds[2] = {enter(w), enter(w)}, m = memfd("x", FROZEN), before, peer;
	pid_t pid;

	say(fds[0], 'a', m, 1);
	until(w, "a");
	pid = only_child();
	assert_int_equal(kill(pid, SIGSTOP), 0);
	say(fds[0], 'b', m, 1);
	say(fds[1], '1', 0, 0);
	until(w, "a1");
	before = open_fds();
	say(fds[1], 'e', 0, 0);
	peer = send_lingering(fds[1]);
	until(w, "a1eC");
	/* It is gone, and so is the process that closed it; the peer came. */
	for (uint64_t from = now_ms(); open_fds() != before - 1 + 1;) {
		loop_epoll_turn(w->loop, 50 * 1000000);
		assert_true(now_ms() - from < SLOW_MS);
	}
	assert_int_equal(kill(pid, SIGCONT), 0);
	until(w, "a1eCb");
	close(peer);
	close(fds[0]);
	close(fds[1]);
	close(m);
}

static unsigned slow_ms; /* a close of this process takes as long */

/* Instead of libc's. */
int close(int fd)
{
	const struct timespec t = {.tv_nsec = (long)slow_ms * 1000000};

	if (slow_ms)
		nanosleep(&t, NULL);
	return (int)syscall(SYS_close, fd);
}

/* The process that closes has the last copy also if it is quicker than ckptd. */
static void test_the_last_close_is_elsewhere(void **state)
{
	struct world *w = *state;
	int fds[2] = {enter(w), enter(w)}, peers[2], before;

	say(fds[0], '1', 0, 0);
	say(fds[1], '2', 0, 0);
	until(w, "12");
	before = open_fds();
	for (int i = 0; i < 2; i++) { /* each has a process of its own */
		uint64_t begun = now_ms(), from, longest = 0;

		say(fds[i], 'e', 0, 0);
		peers[i] = send_lingering(fds[i]);
		slow_ms = 300;
		while (now_ms() - begun < SLOW_MS / 2) {
			from = now_ms();
			loop_epoll_turn(w->loop, 50 * 1000000);
			longest = now_ms() - from > longest ? now_ms() - from : longest;
		}
		slow_ms = 0;
		assert_true(longest < SLOW_MS);
	}
	/* 2 peers came, 2 connections and the pidfd of their process went; nothing of closers. */
	assert_int_equal(open_fds(), before + 2 - 2 - 1);
	for (int i = 0; i < 2; i++) {
		close(peers[i]);
		close(fds[i]);
	}
}

/* Neither those of connections nor those of connections that were never accepted. */
static void test_the_end_does_not_wait_for_queued_descriptors(void **state)
{
	struct world *w = *state;
	int fds[2] = {enter(w), -1}, peers[2];
	uint64_t from;
	char c;

	say(fds[0], 'a', 0, 0);
	until(w, "a");
	fds[1] = client(w);
	for (int i = 0; i < 2; i++)
		peers[i] = send_lingering(fds[i]);
	from = now_ms();
	listener_free(w->listener);
	w->listener = NULL;
	assert_true(now_ms() - from < SLOW_MS);
	for (int i = 0; i < 2; i++) {
		assert_true(recv(fds[i], &c, 1, MSG_DONTWAIT) == 0);
		close(fds[i]);
		close(peers[i]);
	}
}

static void test_a_slow_descriptor_is_closed_elsewhere(void **state)
{
	struct world *w = *state;
	int fd = enter(w), slow, peer;

	say(fd, 'a', 0, 0);
	slow = lingering(&peer);
	say(fd, 'b', slow, 1);
	close(slow);
	assert_true(until(w, "aC") < SLOW_MS);
	close(peer);
	close(fd);
}

/* Sends a file whose close never ends, and ends itself: its own close would hang. */
static _Noreturn void send_silent(const char *folder, int to, int tell)
{
	char path[300];
	pid_t server = 0;
	int said = silent_fuse_mount(folder, &server), fd;

	if (said == 0) {
		snprintf(path, sizeof(path), "%s/f", folder);
		fd = open(path, O_RDONLY);
		say(to, 'b', fd, 1);
		said = server;
	}
	ignore_result((int)write(tell, &said, sizeof(said)));
	pause(); /* until it is killed; then it hangs in the close until its server ends */
	_exit(0);
}

static void test_a_silent_file_harms_its_user_alone(void **state)
{
	struct world *w = *state;
	int fd = enter(w), other, tell[2], said = 0, m = memfd("x", FROZEN);
	char folder[280];
	uint64_t from;
	pid_t pid;

	if (geteuid() != 0)
		skip();
	snprintf(folder, sizeof(folder), "%s/mnt", w->dir);
	assert_int_equal(mkdir(folder, 0755), 0);
	assert_int_equal(pipe(tell), 0);
	say(fd, 'a', 0, 0);
	until(w, "a");
	pid = fork();
	if (pid == 0)
		send_silent(folder, fd, tell[1]);
	assert_int_equal(read(tell[0], &said, sizeof(said)), sizeof(said));
	if (said < 0) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		skip(); /* there is no FUSE here */
	}
	assert_true(until(w, "aC") < SLOW_MS); /* it is no memfd; and its close hangs there */
	other = enter(w);
	memset(w->said, 0, sizeof(w->said));
	say(other, '1', 0, 0);
	assert_true(until(w, "1") < SLOW_MS);
	/* Another process receives a message of the same uid with a memfd. */
	from = now_ms();
	say(other, '2', m, 1);
	assert_true(until(w, "12") < SLOW_MS);
	print_message("the next memfd came after %llu ms\n", (unsigned long long)(now_ms() - from));
	assert_string_equal(w->bytes, "x");
	kill(said, SIGKILL); /* the server: hanging processes go on */
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	close(m);
	close(other);
	close(fd);
	close(tell[0]);
	close(tell[1]);
}

/* ---- The process ---- */

struct asking {
	struct receiving receiving;
	struct receiver *receiver;
	int status, told;
	bool idle; /* the receiver said so during the call: its owner may have freed it */
};

static void asked(struct receiving *x, int status, const void *msg, size_t len, int *fd)
{
	struct asking *a = container_of(x, struct asking, receiving);

	(void)msg;
	(void)len;
	(void)fd;
	a->status = status;
	a->idle = receiver_is_idle(a->receiver);
	a->told++;
}

static struct receiver *make(struct world *w, const char *program, uint64_t limit_ms,
			     uint64_t rest_ns)
{
	struct receiver_options o = {.program = program,
				     .uid = 1000,
				     .limit_ns = limit_ms * 1000000,
				     .rest_ns = rest_ns,
				     .log = &w->log};

	log_init(&w->log);
	return receiver_new(w->loop, &o);
}

static void begin_to_ask(struct receiver *r, int fd, bool end, struct asking *a)
{
	*a = (struct asking){.receiving = {.fd = fd, .end = end, .done = asked}, .receiver = r};
	receiver_ask(r, &a->receiving);
	assert_int_equal(a->told, 0);
}

static int answer_of(struct world *w, const struct asking *a)
{
	uint64_t begun = now_ms();

	while (a->told == 0) {
		loop_epoll_turn(w->loop, 50 * 1000000);
		assert_true(now_ms() - begun < 60000);
	}
	assert_int_equal(a->told, 1);
	assert_false(a->idle);
	return a->status;
}

static int ask(struct world *w, struct receiver *r, int fd, struct asking *a)
{
	begin_to_ask(r, fd, false, a);
	return answer_of(w, a);
}

static void test_it_ends_after_a_rest_and_begins_again(void **state)
{
	struct world *w = *state;
	struct receiver *r = make(w, w->program, 20000, 20000000);
	int s[2], m = memfd("x", FROZEN), before = open_fds();
	struct asking a;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, s), 0);
	for (int i = 0; i < 3; i++) {
		say(s[1], 'a', m, 1);
		assert_int_equal(ask(w, r, s[0], &a), RECEIVER_OK);
		assert_false(receiver_is_idle(r));
		while (!receiver_is_idle(r))
			loop_epoll_turn(w->loop, 50 * 1000000);
		assert_int_equal(open_fds(), before + 2);
	}
	assert_int_equal(ask(w, r, s[0], &a), RECEIVER_NOTHING);
	receiver_free(r);
	close(s[0]);
	close(s[1]);
	close(m);
}

/* Not even when ckptd has them all, as here. */
static void test_it_has_no_capabilities_and_is_nice(void **state)
{
	struct world *w = *state;
	struct receiver *r = make(w, w->program, 20000, 3600ull * 1000000000u);
	int s[2], m = memfd("x", FROZEN);
	char path[64], line[128];
	struct asking a;
	unsigned sets = 0;
	int nice = getpriority(PRIO_PROCESS, 0);
	FILE *f;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, s), 0);
	say(s[1], 'a', m, 1);
	assert_int_equal(ask(w, r, s[0], &a), RECEIVER_OK);
	snprintf(path, sizeof(path), "/proc/%d/status", (int)only_child());
	assert_int_equal(getpriority(PRIO_PROCESS, (id_t)only_child()), RECEIVER_NICE);
	assert_int_equal(getpriority(PRIO_PROCESS, 0), nice);
	f = fopen(path, "re");
	assert_non_null(f);
	while (fgets(line, sizeof(line), f)) {
		unsigned long long set;

		if (sscanf(line, "CapInh: %llx", &set) != 1 &&
		    sscanf(line, "CapPrm: %llx", &set) != 1 &&
		    sscanf(line, "CapEff: %llx", &set) != 1 &&
		    sscanf(line, "CapAmb: %llx", &set) != 1)
			continue;
		assert_int_equal(set, 0);
		sets++;
	}
	fclose(f);
	assert_int_equal(sets, 4);
	receiver_free(r);
	close(s[0]);
	close(s[1]);
	close(m);
}

/* As under the unit: another user's, and its filter of system calls does not allow capset. */
static _Noreturn void be_under_a_filter(const char *program, int socket)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_capset, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = {sizeof(code) / sizeof(code[0]), code};
	char *argv[] = {(char *)"ckptd", (char *)"--receiver", NULL}, *envp[] = {NULL};
	int fd = open(program, O_RDONLY | O_CLOEXEC);

	if (getuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
		_exit(3);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0 ||
	    dup2(socket, RECEIVER_FD) != RECEIVER_FD)
		_exit(4);
	fexecve(fd, argv, envp);
	_exit(5);
}

static void test_it_begins_where_capset_is_forbidden(void **state)
{
	struct world *w = *state;
	struct receiver_request q = {.op = RECEIVER_TAKE, .number = 1};
	struct receiver_answer a = {0};
	int own[2], conn[2], m = memfd("x", FROZEN), high;
	struct pollfd p;
	pid_t pid;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, own), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, conn), 0);
	high = fcntl(own[1], F_DUPFD_CLOEXEC, 50); /* not RECEIVER_FD itself */
	assert_true(high >= 50);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		be_under_a_filter(w->program, high);
	close(own[1]);
	close(high);
	say(conn[1], 'm', m, 1);
	assert_int_equal(send_fd_copies(own[0], &q, sizeof(q), conn[0], 1, 0), sizeof(q));
	p = (struct pollfd){.fd = own[0], .events = POLLIN};
	assert_int_equal(poll(&p, 1, 20000), 1);
	assert_true(recv(own[0], &a, sizeof(a), 0) >= (ssize_t)sizeof(a));
	assert_int_equal(a.number, 1);
	assert_int_equal(a.status, RECEIVER_OK);
	close(own[0]); /* which ends it */
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	close(conn[0]);
	close(conn[1]);
	close(m);
}

/* The kernel bounds what all processes of a user have in flight by the sender's limit of open
 * files, and ckptd has much in flight to clients that do not read. */
static void test_it_answers_beside_descriptors_in_flight(void **state)
{
	struct world *w = *state;
	int fd = enter(w), unread[2], m = memfd("first", FROZEN);

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, unread), 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(send_fd_copies(unread[0], "x", 1, unread[0], SEND_FDS_MAX, 0), 1);
	say(fd, '1', m, 1);
	until(w, "1");
	assert_string_equal(w->bytes, "first");
	close(unread[0]);
	close(unread[1]);
	close(fd);
	close(m);
	until(w, "1C");
}

/* If the receiver is killed between two messages, or with one, ckptd asks another one. */
static void test_a_killed_process_is_replaced(void **state)
{
	struct world *w = *state;
	struct receiver *r = make(w, w->program, 20000, 3600ull * 1000000000u);
	int s[2], m = memfd("x", FROZEN);
	struct asking a;
	pid_t pid;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, s), 0);
	for (int i = 0; i < 3; i++) {
		siginfo_t info = {0};

		say(s[1], 'a', m, 1);
		assert_int_equal(ask(w, r, s[0], &a), RECEIVER_OK);
		pid = only_child();
		assert_int_equal(kill(pid, SIGKILL), 0);
		if (i < 2) /* it has ended, or is just ending, when the next is asked */
			waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT);
	}
	receiver_free(r);
	close(s[0]);
	close(s[1]);
	close(m);
}

/* The end of the last connection: during the callback the receiver is not idle, as its owner frees
 * receivers that are. It is when the process that closes it has ended. */
static void test_it_is_not_idle_in_its_callback(void **state)
{
	struct world *w = *state;
	struct receiver *r = make(w, w->program, 20000, 3600ull * 1000000000u);
	int s[2], m = memfd("x", FROZEN);
	struct asking a;
	char byte;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, s), 0);
	say(s[1], 'a', m, 1);
	assert_int_equal(ask(w, r, s[0], &a), RECEIVER_OK);
	assert_int_equal(kill(only_child(), SIGSTOP), 0); /* it takes no part in it but its end */
	begin_to_ask(r, s[0], true, &a);
	assert_int_equal(answer_of(w, &a), RECEIVER_NOTHING);
	assert_int_equal(a.receiving.fd, -1);
	for (int i = 0; i < 1000 && !receiver_is_idle(r); i++)
		loop_epoll_turn(w->loop, 50 * 1000000);
	assert_true(receiver_is_idle(r));
	assert_int_equal(recv(s[1], &byte, 1, MSG_DONTWAIT), 0); /* it is closed */
	receiver_free(r);
	close(s[1]);
	close(m);
}

/* ---- Closes that hang ---- */

enum { HANGING = RECEIVER_LEFT_MAX + 2 };

/* What it hangs in, and what is to hang. */
struct hanging {
	int s[HANGING][2];
	struct asking a[HANGING];
	struct receiver *r;
	pid_t sender, server;
	int before; /* open descriptors */
};

/* Queues in each socket a file of its own, of which the queue then has the only reference, and
 * then writes into their inode: whoever drops such a reference waits for the server. */
static _Noreturn void send_dirty(const char *folder, const struct hanging *h, int tell)
{
	char path[300], page[SILENT_FUSE_PAGE] = "x";
	pid_t server = 0;
	int said, fd = -1;

	alarm(60); /* also where the test has failed */
	for (int i = 0; i < HANGING; i++)
		close(h->s[i][0]); /* the queue is the other's alone */
	said = silent_fuse_mount_cached(folder, &server);
	snprintf(path, sizeof(path), "%s/f", folder);
	for (int i = 0; said >= 0 && i < HANGING; i++) {
		fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd < 0 || send_fd_copies(h->s[i][1], "x", 1, fd, 1, 0) != 1)
			said = -errno;
		close(fd);
	}
	fd = said >= 0 ? open(path, O_RDWR | O_CLOEXEC) : -1;
	if (said >= 0)
		said = pwrite(fd, page, sizeof(page), 0) == sizeof(page) ? server : -EIO;
	ignore_result((int)write(tell, &said, sizeof(said)));
	pause();
	_exit(0);
}

static void hang_begin(struct world *w, struct hanging *h)
{
	char folder[280];
	int tell[2], said = 0;

	if (geteuid() != 0)
		skip();
	snprintf(folder, sizeof(folder), "%s/mnt", w->dir);
	assert_int_equal(mkdir(folder, 0755), 0);
	h->r = make(w, w->program, 200, 20000000);
	open_log(w);
	for (int i = 0; i < HANGING; i++)
		assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, h->s[i]), 0);
	h->before = open_fds();
	assert_int_equal(pipe(tell), 0);
	h->sender = fork();
	if (h->sender == 0)
		send_dirty(folder, h, tell[1]);
	assert_int_equal(read(tell[0], &said, sizeof(said)), sizeof(said));
	close(tell[0]);
	close(tell[1]);
	if (said >= 0) {
		h->server = said;
		return;
	}
	kill(h->sender, SIGKILL);
	waitpid(h->sender, NULL, 0);
	skip(); /* there is no FUSE here */
}

/* The longest turn of the loop. */
static uint64_t turns(struct world *w, unsigned ms)
{
	uint64_t begun = now_ms(), longest = 0;

	while (now_ms() - begun < ms) {
		uint64_t from = now_ms();

		loop_epoll_turn(w->loop, 10 * 1000000);
		longest = now_ms() - from > longest ? now_ms() - from : longest;
	}
	return longest;
}

static void ask_to_close_all(struct world *w, struct hanging *h)
{
	for (int i = 0; i < HANGING; i++) {
		begin_to_ask(h->r, h->s[i][0], true, &h->a[i]);
		if (i < RECEIVER_LEFT_MAX) /* a process of its own for each */
			assert_int_equal(answer_of(w, &h->a[i]), RECEIVER_NOTHING);
		assert_true(turns(w, 200) < SLOW_MS);
		assert_int_equal(h->a[i].told, i < RECEIVER_LEFT_MAX);
	}
}

static void hang_end(struct hanging *h)
{
	kill(h->server, SIGKILL); /* whoever waits for it goes on */
	kill(h->sender, SIGKILL);
	assert_int_equal(waitpid(h->sender, NULL, 0), h->sender);
	for (int i = 0; i < HANGING; i++)
		close(h->s[i][1]);
}

/* No more processes than may be hang for a user; what waits goes on when they have ended. */
static void test_closes_that_hang_are_counted(void **state)
{
	struct world *w = *state;
	struct hanging h = {.server = 0};
	char text[2000] = "";
	uint64_t from;

	hang_begin(w, &h);
	ask_to_close_all(w, &h);
	assert_true(turns(w, 1000) < SLOW_MS);
	for (int i = 0; i < HANGING; i++)
		assert_int_equal(h.a[i].told, i < RECEIVER_LEFT_MAX);
	/* Those that are with a process are closed here, and each process has a pidfd. */
	assert_int_equal(open_fds(), h.before);
	assert_false(receiver_is_idle(h.r));
	hang_end(&h);
	for (from = now_ms(); !receiver_is_idle(h.r);) {
		loop_epoll_turn(w->loop, 50 * 1000000);
		assert_true(now_ms() - from < SLOW_MS);
	}
	for (int i = 0; i < HANGING; i++)
		assert_int_equal(h.a[i].told, 1);
	assert_int_equal(open_fds(), h.before - 2 * HANGING);
	assert_true(pread(w->log.fd, text, sizeof(text) - 1, 0) > 0);
	assert_non_null(strstr(text, "2 connections of uid 1000 wait to be closed: the 4 "));
	receiver_free(h.r);
	close(w->log.fd);
}

static void test_the_end_does_not_wait_for_closes_that_hang(void **state)
{
	struct world *w = *state;
	struct hanging h = {.server = 0};
	uint64_t from;

	hang_begin(w, &h);
	ask_to_close_all(w, &h);
	from = now_ms();
	receiver_free(h.r);
	assert_true(now_ms() - from < SLOW_MS);
	assert_int_equal(open_fds(), h.before - RECEIVER_LEFT_MAX);
	hang_end(&h); /* and the processes, for which the teardown waits */
	for (int i = RECEIVER_LEFT_MAX; i < HANGING; i++)
		close(h.s[i][0]); /* the caller's again */
	close(w->log.fd);
}

/* Socket activation: they came before anybody could make the kernel refuse descriptors. */
static void test_connections_from_before_ckptd_are_closed_elsewhere(void **state)
{
	struct world *w = *state;
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	struct listener_options o = {.program = w->program, .log = &w->log}; /* lets nobody in */
	int fd, peer, before;

	listener_free(w->listener);
	w->listener = NULL;
	strcpy(a.sun_path, w->path);
	o.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(o.fd, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(listen(o.fd, 1), 0);
	fd = client(w);
	peer = send_lingering(fd);
	assert_int_equal(listener_new(w->loop, &o, &w->listener, NULL), 0);
	assert_int_equal(listener_start(w->listener, &events, w, NULL), 0);
	before = open_fds();
	await_refusal(w, fd);
	assert_true(turns(w, 1000) < SLOW_MS);
	assert_int_equal(open_fds(), before); /* it is closed, and so is what closed it */
	close(peer);
	close(fd);
	listener_free(w->listener);
	w->listener = NULL;
	close(o.fd);
	assert_int_equal(unlink(w->path), 0);
}

/* Threads that are created by default attributes fail while this is on: no stack is that large. */
static void forbid_threads(bool on)
{
	static pthread_attr_t usual;
	pthread_attr_t a;

	if (on) {
		assert_int_equal(pthread_getattr_default_np(&usual), 0);
		assert_int_equal(pthread_attr_init(&a), 0);
		assert_int_equal(pthread_attr_setstacksize(&a, (size_t)1 << 48), 0);
		assert_int_equal(pthread_setattr_default_np(&a), 0);
		pthread_attr_destroy(&a);
	} else {
		assert_int_equal(pthread_setattr_default_np(&usual), 0);
		pthread_attr_destroy(&usual);
	}
}

/* Without the thread that would execute it, and without the program: the request is refused, and
 * the next one begins a process. */
static void test_after_a_failed_begin_the_next_request_begins_one(void **state)
{
	struct world *w = *state;
	char program[300], real[PATH_MAX];
	int s[2], m = memfd("x", FROZEN), before;
	struct receiver *r;
	struct asking a;

	snprintf(program, sizeof(program), "%s/program", w->dir);
	r = make(w, program, 20000, 3600ull * 1000000000u);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, s), 0);
	say(s[1], 'a', m, 1);
	before = open_fds();
	for (int i = 0; i < 2; i++) {
		forbid_threads(true);
		assert_int_equal(ask(w, r, s[0], &a), -EAGAIN);
		forbid_threads(false);
		assert_int_equal(ask(w, r, s[0], &a), -ENOENT);
		assert_true(receiver_is_idle(r));
	}
	assert_int_equal(open_fds(), before);
	assert_non_null(realpath(w->program, real));
	assert_int_equal(symlink(real, program), 0);
	assert_int_equal(ask(w, r, s[0], &a), RECEIVER_OK);
	receiver_free(r);
	close(s[0]);
	close(s[1]);
	close(m);
}

static void await_end(pid_t pid)
{
	siginfo_t info = {0};

	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
}

/* A process that is killed while it has the message of a connection that has ended: the next
 * message does not wait for that one's time limit. */
static void test_what_waits_goes_on_when_the_process_was_killed(void **state)
{
	struct world *w = *state;
	struct receiver *r = make(w, w->program, 20000, 3600ull * 1000000000u);
	struct asking a[2] = {{.told = 0}};
	int s[2], m = memfd("x", FROZEN);
	uint64_t from;
	pid_t pid;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, s), 0);
	say(s[1], 'a', m, 1);
	assert_int_equal(ask(w, r, s[0], &a[0]), RECEIVER_OK);
	pid = only_child();
	assert_int_equal(kill(pid, SIGSTOP), 0);
	for (int i = 0; i < 2; i++) {
		a[i] = (struct asking){.receiving = {.fd = s[0], .done = asked}, .receiver = r};
		say(s[1], 'b', m, 1);
		receiver_ask(r, &a[i].receiving);
	}
	for (int i = 0; i < 5; i++)
		loop_epoll_turn(w->loop, 1000000); /* it has the first one */
	receiver_forget(r, &a[0].receiving);
	await_end(pid);
	for (from = now_ms(); a[1].told == 0;)
		loop_epoll_turn(w->loop, 50 * 1000000);
	from = now_ms() - from;
	receiver_free(r);
	assert_true(from < SLOW_MS);
	assert_int_equal(a[1].status, RECEIVER_OK);
	assert_int_equal(a[0].told, 0);
	close(s[0]);
	close(s[1]);
	close(m);
}

/* A process that receives a message and is killed before it answers: another one cannot receive
 * that message, and the client did nothing wrong. */
static void test_a_message_that_its_process_took_along_is_lost(void **state)
{
	struct world *w = *state;
	struct receiver *r = make(w, w->program, 20000, 3600ull * 1000000000u);
	struct asking a[3];
	int s[2], m = memfd("x", FROZEN);
	char byte;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, s), 0);
	for (int i = 0; i < 3; i++) {
		pid_t pid = i > 0 ? only_child() : 0;

		say(s[1], 'a', m, 1);
		if (i > 0)
			assert_int_equal(kill(pid, SIGSTOP), 0);
		a[i] = (struct asking){.receiving = {.fd = s[0], .done = asked}, .receiver = r};
		receiver_ask(r, &a[i].receiving);
		for (int k = 0; k < 5; k++)
			loop_epoll_turn(w->loop, 1000000);
		if (i > 0) {
			assert_int_equal(recv(s[0], &byte, 1, 0), 1); /* as if it did */
			await_end(pid);
		}
		if (i == 2)
			say(s[1], 'b', 0, 0);
		while (a[i].told == 0)
			loop_epoll_turn(w->loop, 50 * 1000000);
	}
	receiver_free(r);
	assert_int_equal(a[0].status, RECEIVER_OK);
	assert_int_equal(a[1].status, RECEIVER_NOTHING);
	assert_true(a[1].receiving.again);
	assert_int_equal(a[2].status, RECEIVER_NONE);
	close(s[0]);
	close(s[1]);
	close(m);
}

/* ckptd's end of the connection that was accepted last. */
static int accepted_end(const struct world *w)
{
	int found = -1;

	for (int fd = 3; fd < 1000; fd++) {
		struct sockaddr_un a = {.sun_family = AF_UNSPEC};
		socklen_t len = sizeof(a), size = sizeof(int);
		int listens = 1;

		if (getsockname(fd, (struct sockaddr *)&a, &len) == 0 && a.sun_family == AF_UNIX &&
		    strcmp(a.sun_path, w->path) == 0 &&
		    getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && !listens)
			found = fd;
	}
	assert_true(found >= 0);
	return found;
}

static void test_the_log_says_that_a_message_was_lost(void **state)
{
	struct world *w = *state;
	int fd = enter(w), m = memfd("x", FROZEN);
	char text[1000] = "", byte;
	pid_t pid;

	open_log(w);
	say(fd, 'a', m, 1);
	until(w, "a");
	pid = only_child();
	assert_int_equal(kill(pid, SIGSTOP), 0);
	say(fd, 'b', m, 1);
	for (int k = 0; k < 5; k++)
		loop_epoll_turn(w->loop, 1000000);
	assert_int_equal(recv(accepted_end(w), &byte, 1, 0), 1); /* as if the receiver did */
	await_end(pid);
	until(w, "aC");
	assert_true(pread(w->log.fd, text, sizeof(text) - 1, 0) > 0);
	assert_non_null(strstr(text, "took in its descriptor ended: the message is lost"));
	close(w->log.fd);
	close(m);
	close(fd);
}

struct killing {
	struct task task;
	pid_t pid;
};

static void kill_it(struct task *t)
{
	await_end(container_of(t, struct killing, task)->pid);
}

/* A process that was killed a moment before it is asked: the pidfd has not said so. */
static void test_a_process_killed_before_a_request_is_replaced(void **state)
{
	struct world *w = *state;
	struct receiver *r = make(w, w->program, 20000, 3600ull * 1000000000u);
	int s[2], m = memfd("x", FROZEN);
	struct killing k;
	struct asking a = {.status = RECEIVER_OK};

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, s), 0);
	for (int i = 0; i < 3 && a.status == RECEIVER_OK; i++) {
		say(s[1], 'a', m, 1);
		if (ask(w, r, s[0], &a) != RECEIVER_OK)
			break;
		k.pid = only_child();
		task_init(&k.task, 1000, kill_it);
		loop_post(w->loop, &k.task); /* in the turn of the next request, before it */
	}
	receiver_free(r);
	loop_unpost(w->loop, &k.task);
	assert_int_equal(a.status, RECEIVER_OK);
	close(s[0]);
	close(s[1]);
	close(m);
}

static void test_programs_that_do_not_serve(void **state)
{
	static const char *const programs[] = {"/bin/true", "/nonexistent", "/bin/sleep", NULL};
	struct world *w = *state;
	char script[300];
	int s[2], m = memfd("x", FROZEN);
	struct asking a;
	FILE *f;

	/* Begun, and silent. */
	snprintf(script, sizeof(script), "%s/silent", w->dir);
	f = fopen(script, "we");
	assert_non_null(f);
	fprintf(f, "#!/bin/sh\nexec sleep 60\n");
	assert_int_equal(fclose(f), 0);
	assert_int_equal(chmod(script, 0700), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, s), 0);
	say(s[1], 'a', m, 1);
	for (int i = 0; i < 4; i++) {
		struct receiver *r =
			make(w, programs[i] ? programs[i] : script, i == 3 ? 200 : 20000, 1000000);
		int want = i == 1 ? -ENOENT : i == 3 ? -ETIMEDOUT : -EPIPE;

		assert_int_equal(ask(w, r, s[0], &a), want);
		receiver_free(r);
	}
	close(s[0]);
	close(s[1]);
	close(m);
}

/* Until it is called with false, no process can be begun, nor a thread: of a user who has more than
 * one, or, for root, of one who has two at most. */
static void forbid_processes(bool on)
{
	static struct rlimit usual;
	struct rlimit few;

	if (on) {
		assert_int_equal(getrlimit(RLIMIT_NPROC, &usual), 0);
		if (geteuid() == 0) /* a limit is none for root */
			assert_int_equal(setresuid(65533, 65533, 0), 0);
		few = (struct rlimit){2, usual.rlim_max};
		assert_int_equal(setrlimit(RLIMIT_NPROC, &few), 0);
	} else {
		assert_int_equal(setrlimit(RLIMIT_NPROC, &usual), 0);
		if (geteuid() == 65533)
			assert_int_equal(setresuid(0, 0, 0), 0);
	}
}

static void assert_log_ends(const struct world *w, const char *want)
{
	char text[2000] = "";
	size_t len = strlen(want);
	ssize_t n = pread(w->log.fd, text, sizeof(text) - 1, 0);

	assert_true(n > (ssize_t)len);
	assert_string_equal(text + n - len, want);
}

/* The connection is closed, and the log says why; what has no descriptor is served all the while,
 * and what has one as soon as a process can be begun. */
static void test_without_a_process_ckptd_goes_on(void **state)
{
	struct world *w = *state;
	int fds[3] = {enter(w), enter(w), enter(w)}, other = enter(w);
	int m = memfd("x", FROZEN);
	char path[300], program[sizeof(w->program)];

	snprintf(path, sizeof(path), "%s/log", w->dir);
	w->log.fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	strcpy(program, w->program);
	strcpy(w->program, "/nonexistent/ckptd");
	say(fds[0], '0', m, 1);
	until(w, "C");
	assert_log_ends(w, "a descriptor could not be taken in: No such file or directory\n");
	strcpy(w->program, program);
	say(other, 'a', 0, 0);
	until(w, "Ca");
	for (uint64_t from = now_ms(); now_ms() - from < 1000;) /* the log has a line a second */
		loop_epoll_turn(w->loop, 50 * 1000000);
	say(fds[1], '1', m, 1);
	forbid_processes(true);
	until(w, "CaC");
	forbid_processes(false);
	assert_log_ends(w, "a descriptor could not be taken in: Resource temporarily "
			   "unavailable\n");
	say(other, 'b', 0, 0);
	until(w, "CaCb");
	say(fds[2], '2', m, 1);
	until(w, "CaCb2");
	assert_string_equal(w->bytes, "x");
	close(w->log.fd);
	for (int i = 0; i < 3; i++)
		close(fds[i]);
	close(other);
	close(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(f)   cmocka_unit_test_setup_teardown(f, setup, teardown)
#define OLD(f) cmocka_unit_test_setup_teardown(f, setup_old, teardown) /* before Linux 6.16 */
		T(test_frozen_memfds_arrive_in_order),
		T(test_connections_share_a_receiver),
		T(test_other_descriptors_close_the_connection),
		T(test_large_memfds_close_the_connection),
		T(test_descriptor_lost_at_our_limit_closes),
		T(test_queued_descriptors_are_closed_elsewhere),
		T(test_received_descriptors_do_not_linger),
		T(test_only_who_is_let_in_sends_descriptors),
#ifdef CKPT_FAULTS
		T(test_a_connection_is_refused_without_memory),
		OLD(test_what_cannot_be_closed_elsewhere_stays_open),
#endif
		OLD(test_refused_connections_are_closed_elsewhere),
		OLD(test_a_connection_of_an_ended_process_is_closed_elsewhere),
		T(test_queued_descriptors_behind_an_error_are_closed_elsewhere),
		T(test_connections_are_closed_while_a_receiver_hangs),
		T(test_the_last_close_is_elsewhere),
		OLD(test_the_end_does_not_wait_for_queued_descriptors),
		T(test_a_slow_descriptor_is_closed_elsewhere),
		T(test_a_silent_file_harms_its_user_alone),
		T(test_it_ends_after_a_rest_and_begins_again),
		T(test_it_has_no_capabilities_and_is_nice),
		T(test_it_begins_where_capset_is_forbidden),
		T(test_it_answers_beside_descriptors_in_flight),
		T(test_a_killed_process_is_replaced),
		T(test_it_is_not_idle_in_its_callback),
		T(test_closes_that_hang_are_counted),
		T(test_the_end_does_not_wait_for_closes_that_hang),
		T(test_connections_from_before_ckptd_are_closed_elsewhere),
		T(test_after_a_failed_begin_the_next_request_begins_one),
		T(test_what_waits_goes_on_when_the_process_was_killed),
		T(test_a_process_killed_before_a_request_is_replaced),
		T(test_a_message_that_its_process_took_along_is_lost),
		T(test_the_log_says_that_a_message_was_lost),
		T(test_programs_that_do_not_serve),
		T(test_without_a_process_ckptd_goes_on),
#undef T
#undef OLD
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
