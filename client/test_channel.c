/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The channel, the requests over it, and memfds: whole messages or an error, no signal,
 * no descriptor lost.
 */
#include <config.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"
#include "client/clock.h"
#include "client/memfd.h"
#include "client/request.h"
#include "tests/lib/send_fds.h"
#include "tests/lib/test.h"

struct world {
	char *dir;
	char path[200];
	int listener, peer;
	struct requests rq;
};

static int open_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static void connect_pair(struct world *w)
{
	assert_int_equal(channel_connect(&w->rq.channel, w->path), 0);
	w->peer = accept(w->listener, NULL, NULL);
	assert_true(w->peer >= 0);
}

static int setup(void **state)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct world *w = calloc(1, sizeof(*w));

	w->dir = test_dir_make(NULL);
	snprintf(w->path, sizeof(w->path), "%s/s", w->dir);
	strcpy(a.sun_path, w->path);
	w->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(w->listener, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(listen(w->listener, 1), 0);
	assert_int_equal(requests_init(&w->rq), 0);
	connect_pair(w);
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	if (w->peer >= 0)
		close(w->peer);
	close(w->listener);
	requests_fini(&w->rq);
	test_dir_remove(w->dir);
	free(w);
	return 0;
}

static void send_fds(int fd, const void *msg, size_t len, int pass, int n)
{
	assert_int_equal(send_fd_copies(fd, msg, len, pass, (size_t)n, 0), len);
}

static void test_messages_and_fds(void **state)
{
	struct world *w = *state;
	int fds[CONN_FDS_MAX], before, null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	uint8_t buf[CONN_MESSAGE_MAX];
	size_t len, n;

	assert_int_equal(channel_receive(&w->rq.channel, buf, &len, fds, &n), -EAGAIN);
	assert_int_equal(channel_wait(&w->rq.channel, clock_ns() + NS_PER_MS), CKPT_ETIMEDOUT);
	assert_int_equal(channel_send(&w->rq.channel, "hello", 5, null, NEVER), 0);
	assert_int_equal(recv(w->peer, buf, sizeof(buf), 0), 5);
	before = open_fds();
	send_fds(w->peer, "abc", 3, null, 2);
	assert_int_equal(channel_wait(&w->rq.channel, NEVER), 0);
	assert_int_equal(channel_receive(&w->rq.channel, buf, &len, fds, &n), 0);
	assert_int_equal(len, 3);
	assert_int_equal(n, 2);
	for (size_t i = 0; i < n; i++) {
		assert_true(fcntl(fds[i], F_GETFD) & FD_CLOEXEC);
		close(fds[i]);
	}
	assert_int_equal(open_fds(), before);
	close(null);
}

static void test_no_message_in_part(void **state)
{
	struct world *w = *state;
	int fds[CONN_FDS_MAX], before, null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	uint8_t *buf = calloc(1, CONN_MESSAGE_MAX + 1);
	struct rlimit old, few;
	size_t len, n;

	assert_int_equal(send(w->peer, buf, CONN_MESSAGE_MAX + 1, 0), CONN_MESSAGE_MAX + 1);
	assert_int_equal(channel_receive(&w->rq.channel, buf, &len, fds, &n), -EMSGSIZE);
	/* No room for what comes: the kernel drops descriptors, and says so. */
	send_fds(w->peer, "abc", 3, null, 8);
	before = open_fds();
	getrlimit(RLIMIT_NOFILE, &old);
	few = old;
	few.rlim_cur = (rlim_t)null + 4;
	setrlimit(RLIMIT_NOFILE, &few);
	assert_int_equal(channel_receive(&w->rq.channel, buf, &len, fds, &n), -EMFILE);
	setrlimit(RLIMIT_NOFILE, &old);
	assert_int_equal(open_fds(), before);
	close(null);
	free(buf);
}

static void test_end_is_a_result(void **state)
{
	struct world *w = *state;
	struct pollfd p = { .events = POLLIN };
	int fds[CONN_FDS_MAX], number = w->rq.channel.fd;
	uint8_t buf[CONN_MESSAGE_MAX];
	size_t len, n;

	close(w->peer);
	signal(SIGPIPE, SIG_DFL); /* it would end this program */
	assert_true(channel_send(&w->rq.channel, "x", 1, -1, NEVER) < 0);
	assert_int_equal(channel_receive(&w->rq.channel, buf, &len, fds, &n), -EPIPE);
	channel_drop(&w->rq.channel);
	assert_false(w->rq.channel.up);
	/* A foreign loop keeps polling the same number: quiet until there is a connection. */
	p.fd = number;
	assert_int_equal(poll(&p, 1, 0), 0);
	connect_pair(w);
	assert_int_equal(w->rq.channel.fd, number);
	assert_int_equal(send(w->peer, "y", 1, 0), 1);
	assert_int_equal(poll(&p, 1, 1000), 1);
}

static void test_full_socket_keeps_the_deadline(void **state)
{
	struct world *w = *state;
	uint8_t *buf = calloc(1, CONN_MESSAGE_MAX);
	int r = 0;

	for (int i = 0; i < 1000 && r == 0; i++)
		r = channel_send(&w->rq.channel, buf, CONN_MESSAGE_MAX, -1, clock_ns() + NS_PER_MS);
	assert_int_equal(r, CKPT_ETIMEDOUT);
	free(buf);
}

static void test_connect_errors(void **state)
{
	struct world *w = *state;
	struct channel ch;
	char path[300];

	channel_init(&ch);
	snprintf(path, sizeof(path), "%s/none", w->dir);
	assert_int_equal(channel_connect(&ch, path), -ENOENT);
	memset(path, 'a', 200);
	path[200] = '\0';
	assert_int_equal(channel_connect(&ch, path), -ENAMETOOLONG);
	close(w->listener);
	assert_int_equal(channel_connect(&ch, w->path), -ECONNREFUSED);
	assert_int_equal(ch.fd, -1);
	channel_fini(&ch);
}

/* ---- Requests ---- */

struct probe {
	struct request q;
	int calls, parts;
	uint64_t newer;
};

static int probe_reply(struct request *q, const Ckpt__Reply *reply, int *fds, size_t n_fds)
{
	struct probe *p = (struct probe *)q;

	(void)fds;
	(void)n_fds;
	p->calls++;
	p->newer = reply->wait->newer_step;
	return p->calls < p->parts ? REPLY_MORE : 0;
}

static void answer(struct world *w, uint64_t id, int code, const char *text, uint64_t newer)
{
	Ckpt__Reply m = CKPT__REPLY__INIT;
	Ckpt__WaitReply body = CKPT__WAIT_REPLY__INIT;
	uint8_t buf[1000];
	size_t len;

	m.id = id;
	m.code = code;
	m.text = (char *)text;
	m.status = CKPT_FELL_BACK;
	body.newer_step = newer;
	m.body_case = CKPT__REPLY__BODY_WAIT;
	m.wait = &body;
	len = ckpt__reply__pack(&m, buf);
	assert_int_equal(send(w->peer, buf, len, 0), (ssize_t)len);
}

static void start(struct world *w, struct probe *p, struct err *e)
{
	static Ckpt__List list = CKPT__LIST__INIT;

	*p = (struct probe){ .parts = 1 };
	request_init(&p->q, e);
	p->q.message.body_case = CKPT__REQUEST__BODY_LIST;
	p->q.message.list = &list;
	p->q.reply = probe_reply;
	assert_int_equal(request_start(&w->rq, &p->q, NEVER), 0);
}

static void test_replies_find_their_request(void **state)
{
	struct world *w = *state;
	struct probe a, b;
	struct err e = { 0 };

	start(w, &a, &e);
	start(w, &b, &e);
	assert_true(a.q.message.id < b.q.message.id);
	answer(w, 12345, 0, "", 1); /* of nobody */
	answer(w, b.q.message.id, CKPT_EABORTED, "because", 2);
	b.parts = 2; /* an error ends it, whatever is still announced */
	assert_int_equal(requests_pump(&w->rq, NEVER), 0);
	assert_false(a.q.done || b.q.done);
	assert_int_equal(requests_pump(&w->rq, NEVER), 0);
	assert_true(b.q.done && !a.q.done);
	assert_int_equal(b.q.status, CKPT_EABORTED);
	assert_int_equal(b.newer, 2);
	assert_string_equal(e.text, "because");
	a.parts = 2;
	answer(w, a.q.message.id, 0, "", 3);
	assert_int_equal(requests_pump(&w->rq, NEVER), 0);
	assert_false(a.q.done);
	answer(w, a.q.message.id, 0, "", 4);
	assert_int_equal(requests_pump(&w->rq, NEVER), 0);
	assert_true(a.q.done && a.q.status == 0 && a.newer == 4);
	assert_int_equal(a.q.bits, CKPT_FELL_BACK);
	assert_int_equal(requests_pump(&w->rq, 0), CKPT_ETIMEDOUT);
}

static void test_what_does_not_parse_ends_it(void **state)
{
	struct world *w = *state;
	struct probe a;
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC), before;

	start(w, &a, NULL);
	before = open_fds();
	send_fds(w->peer, "\xff\xff\xff", 3, null, 3);
	assert_int_equal(requests_pump(&w->rq, NEVER), -EBADMSG);
	assert_false(w->rq.channel.up);
	assert_false(a.q.done); /* it may be sent again */
	assert_int_equal(open_fds(), before);
	assert_int_equal(request_start(&w->rq, &a.q, NEVER), -EPIPE);
	request_forget(&a.q);
	close(null);
}

/* ---- memfds ---- */

static void test_memfd(void **state)
{
	uint8_t bytes[5000], *copy;
	size_t len;
	int fd;

	(void)state;
	test_fill(bytes, sizeof(bytes), 1);
	fd = memfd_from_bytes(bytes, sizeof(bytes));
	assert_true(fd >= 0);
	assert_true(write(fd, "x", 1) < 0);
	assert_true(ftruncate(fd, 0) < 0);
	assert_int_equal(memfd_read(fd, 4999, (void **)&copy, &len), -EMSGSIZE);
	assert_int_equal(memfd_read(fd, 5000, (void **)&copy, &len), 0);
	assert_int_equal(len, sizeof(bytes));
	assert_memory_equal(copy, bytes, sizeof(bytes));
	alloc_free(copy);
	close(fd);
}

static void test_deadlines(void **state)
{
	uint64_t now = clock_ns();

	(void)state;
	assert_true(deadline_in(CKPT_FOREVER) == NEVER);
	assert_true(deadline_in(INT64_MAX) == NEVER);
	assert_true(deadline_in(0) >= now + ASK_MS * NS_PER_MS);
	assert_true(deadline_in(5) >= now + 5 * NS_PER_MS);
	assert_int_equal(clock_poll(NULL, 0, now, NULL), 0);
	assert_int_equal(clock_poll(NULL, 0, now + 2 * NS_PER_MS, NULL), 0);
	assert_true(clock_ns() >= now + 2 * NS_PER_MS);
}

struct asked {
	int n, end_at; /* the look that ends the call; 0: none */
};

static int count_looks(void *arg)
{
	struct asked *a = arg;

	return ++a->n == a->end_at;
}

static void on_signal(int number)
{
	(void)number;
}

static void *signal_it(void *arg)
{
	poll(NULL, 0, 20);
	return pthread_kill(*(pthread_t *)arg, SIGUSR1) == 0 ? NULL : arg;
}

/* It ends a wait without a deadline, and all that follow in the call; a short wait does not ask. */
static void test_interrupt(void **state)
{
	struct asked a = {.end_at = 2};
	struct interrupt i = {.hook = count_looks, .arg = &a};
	int ready[2];
	struct pollfd p = {.events = POLLIN};

	(void)state;
	assert_true(pipe2(ready, O_CLOEXEC) == 0);
	p.fd = ready[0];
	assert_int_equal(clock_poll(&p, 1, clock_ns() + NS_PER_MS, &i), 0);
	assert_int_equal(clock_poll(&p, 1, 0, &i), 0);
	assert_int_equal(a.n, 0);
	assert_int_equal(clock_poll(&p, 1, NEVER, &i), 0);
	assert_int_equal(a.n, 2);
	assert_true(i.came);
	assert_int_equal(clock_poll(&p, 1, NEVER, &i), 0);
	assert_true(write(ready[1], "x", 1) == 1);
	assert_int_equal(clock_poll(&p, 1, NEVER, &i), 1); /* what is there counts */
	assert_int_equal(a.n, 2);
	interrupt_begin(&i);
	assert_false(i.came);
	close(ready[0]);
	close(ready[1]);
}

/* It is asked at once when a handler has run on its thread; without it a signal ends nothing. */
static void test_signal_asks_at_once(void **state)
{
	struct sigaction act = {.sa_handler = on_signal}, before;
	struct asked a = {.end_at = 1};
	struct interrupt i = {.hook = count_looks, .arg = &a, .next_ns = NEVER - 1};
	pthread_t self = pthread_self(), t;
	uint64_t start;
	void *failed;

	(void)state;
	assert_true(sigaction(SIGUSR1, &act, &before) == 0);
	assert_true(pthread_create(&t, NULL, signal_it, &self) == 0);
	assert_int_equal(clock_poll(NULL, 0, NEVER, &i), 0);
	assert_int_equal(a.n, 1);
	assert_true(pthread_join(t, &failed) == 0 && !failed);
	assert_true(pthread_create(&t, NULL, signal_it, &self) == 0);
	start = clock_ns();
	assert_int_equal(clock_poll(NULL, 0, start + 60 * NS_PER_MS, NULL), 0);
	assert_true(clock_ns() >= start + 60 * NS_PER_MS);
	assert_true(pthread_join(t, &failed) == 0 && !failed);
	assert_true(sigaction(SIGUSR1, &before, NULL) == 0);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_messages_and_fds),
		T(test_no_message_in_part),
		T(test_end_is_a_result),
		T(test_full_socket_keeps_the_deadline),
		T(test_connect_errors),
		T(test_replies_find_their_request),
		T(test_what_does_not_parse_ends_it),
		cmocka_unit_test(test_memfd),
		cmocka_unit_test(test_deadlines),
		cmocka_unit_test(test_interrupt),
		cmocka_unit_test(test_signal_asks_at_once),
	};

	return cmocka_run_group_tests_name("channel", tests, NULL, NULL);
}
