/* SPDX-License-Identifier: Apache-2.0 */
/*
 * connect.c - ckptctl's end of a session with ckptd.
 *
 * 1. One request is under way at a time; a reply with another id is not for it and is passed over.
 * 2. Every wait has a deadline, and after some seconds of it a line says for what ckptctl waits: a
 *    ckptd that hangs is reported, not waited for. Only the rebuild of an index takes as long as it
 *    takes.
 * 3. What came in a memfd is copied before it is parsed, and its size is bounded.
 *
 * Blocking; one thread.
 */
#include <config.h>

#include "tools/connect.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/conn.h"
#include "client/reach.h"
#include "proto/session_page.h"
#include "tools/silence.h"

enum { TIMEOUT_MS = 30000, ANSWER_MAX = 1 << 30 };
enum { SILENT_MS = 3000 }; /* a person is told by then what is waited for */
enum { TRY_AGAIN_MS = 100, TRIES_MAX = 100, REFUSED_TRIES = 10 };

struct connection {
	int fd;
	uint64_t next_id;
	bool heard; /* an answer has come */
	bool told;  /* that none comes */
	bool hangs; /* none came in time */
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
};

/* ---- Messages ---- */

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int lost(const struct connection *c, int error, struct err *e)
{
	if (!c->heard)
		return err_set(e, CKPT_EUNAVAILABLE,
			       "ckptd at '%s' refused the connection: it has "
			       "as many as it takes (quota.connections_per_uid), or it is just "
			       "starting or ending; its log says which",
			       c->path);
	return err_set(e, CKPT_EUNAVAILABLE, "ckptd at '%s' ended the connection (%s): look at its "
		       "log", c->path, error ? err_text(error) : "without a word");
}

static int send_request(struct connection *c, Ckpt__Request *q, struct err *e)
{
	uint8_t buf[CONN_MESSAGE_MAX];
	size_t len = ckpt__request__get_packed_size(q);

	if (len > sizeof(buf)) /* reasons and names come from the command line */
		return err_set(e, -E2BIG,
			       "the request to ckptd has %zu bytes, at most %zu fit: use shorter "
			       "words",
			       len, sizeof(buf));
	ckpt__request__pack(q, buf);
	if (send(c->fd, buf, len, MSG_NOSIGNAL) != (ssize_t)len)
		return lost(c, -errno, e);
	return 0;
}

/* The descriptors of a message: the first is handed out, -1 without one, the rest are closed. */
static int take_fd(struct msghdr *m)
{
	int first = -1, fd;

	for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h; h = CMSG_NXTHDR(m, h)) {
		if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t at = 0; CMSG_LEN(at + sizeof(fd)) <= h->cmsg_len; at += sizeof(fd)) {
			memcpy(&fd, CMSG_DATA(h) + at, sizeof(fd));
			if (first < 0)
				first = fd;
			else
				close(fd);
		}
	}
	return first;
}

static int receive(struct connection *c, uint8_t *buf, size_t size, size_t *ret_len, int *ret_fd,
		   struct err *e)
{
	union {
		char bytes[CMSG_SPACE(CONN_FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = { buf, size };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes,
			    .msg_controllen = sizeof(control.bytes) };
	ssize_t n;
	int fd;

	do
		n = recvmsg(c->fd, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	if (n <= 0)
		return lost(c, n < 0 ? -errno : 0, e);
	fd = take_fd(&m);
	if (m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
		if (fd >= 0)
			close(fd);
		return err_set(e, CKPT_EPROTO, "ckptd at '%s' sent a message that is too long",
			       c->path);
	}
	*ret_len = (size_t)n;
	*ret_fd = fd;
	return 0;
}

static int does_not_answer(const char *path, struct err *e)
{
	return err_set(e, CKPT_EUNAVAILABLE,
		       "ckptd at '%s' does not answer: look at its log, "
		       "or at its files with --data FOLDER",
		       path);
}

/* Until there is something to be received, or that time: whether there is, or -errno. */
static int poll_until(const struct connection *c, int64_t until_ms)
{
	struct pollfd p = { .fd = c->fd, .events = POLLIN };
	int r;

	do {
		int64_t left = until_ms - now_ms();

		r = poll(&p, 1, until_ms < 0 ? -1 : left < 0 ? 0 : (int)left);
	} while (r < 0 && errno == EINTR);
	return r < 0 ? -errno : r;
}

/* Until there is something to be received. quiet: the answer may well take longer. */
static int wait_for(struct connection *c, int64_t deadline_ms, bool quiet, struct err *e)
{
	int64_t tell_ms = now_ms() + SILENT_MS;
	int r;

	if (!quiet && !c->told && tell_ms < deadline_ms) {
		r = poll_until(c, tell_ms);
		if (r == 0)
			silence_tell(c->path, c->fd, SILENT_MS / 1000);
		c->told = r == 0;
		if (r > 0)
			return 0;
	}
	r = poll_until(c, deadline_ms);
	if (r < 0)
		return err_code(e, r, "wait for ckptd at '%s'", c->path);
	c->hangs = r == 0;
	return c->hangs ? does_not_answer(c->path, e) : 0;
}

/* The reply to the request sent last; *ret_fd is the caller's to close, or -1. */
static int receive_reply(struct connection *c, int timeout_ms, bool quiet, Ckpt__Reply **ret,
			 int *ret_fd, struct err *e)
{
	int64_t deadline = timeout_ms < 0 ? -1 : now_ms() + (timeout_ms ? timeout_ms : TIMEOUT_MS);
	uint8_t buf[CONN_MESSAGE_MAX];
	Ckpt__Reply *reply;
	size_t len = 0;
	int fd = -1, r;

	for (;;) {
		r = wait_for(c, deadline, quiet, e);
		if (r == 0)
			r = receive(c, buf, sizeof(buf), &len, &fd, e);
		if (r < 0)
			return r;
		reply = ckpt__reply__unpack(NULL, len, buf);
		if (reply && reply->id == c->next_id) /* (1) */
			break;
		if (fd >= 0)
			close(fd);
		if (!reply)
			return err_set(e, CKPT_EPROTO, "ckptd at '%s' sent what is no reply: are "
				       "ckptd and ckptctl of one version?", c->path);
		ckpt__reply__free_unpacked(reply, NULL);
	}
	c->heard = true;
	*ret = reply;
	*ret_fd = fd;
	return 0;
}

static int ask(struct connection *c, Ckpt__Request *q, int timeout_ms, bool quiet,
	       Ckpt__Reply **ret, int *ret_fd, struct err *e)
{
	Ckpt__Reply *reply = NULL;
	int fd = -1, r;

	q->id = ++c->next_id;
	r = send_request(c, q, e);
	if (r == 0)
		r = receive_reply(c, timeout_ms, quiet, &reply, &fd, e);
	if (r < 0)
		return r;
	if (reply->code < 0) {
		r = err_set(e, reply->code, "%s",
			    reply->text[0] ? reply->text : err_text(reply->code));
		if (fd >= 0)
			close(fd);
		ckpt__reply__free_unpacked(reply, NULL);
		return r;
	}
	*ret = reply;
	*ret_fd = fd;
	return 0;
}

/* ---- Open ---- */

/* -EAGAIN: a ckptd that hangs has let connections come up to the last that its socket takes. */
static int connect_until(int fd, const struct sockaddr_un *addr)
{
	const struct timespec pause = {.tv_nsec = TRY_AGAIN_MS * 1000000};
	int64_t began_ms = now_ms();
	bool told = false;

	for (;;) {
		int64_t waited_ms = now_ms() - began_ms;

		if (connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) == 0)
			return 0;
		if (errno != EAGAIN || waited_ms >= TIMEOUT_MS)
			return -errno;
		if (!told && waited_ms >= SILENT_MS) {
			silence_tell(addr->sun_path, -1, SILENT_MS / 1000);
			told = true;
		}
		nanosleep(&pause, NULL);
	}
}

static int try_path(const char *path, int *ret_fd)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int fd, r = 0;

	if (strlen(path) >= sizeof(addr.sun_path))
		return -ENAMETOOLONG;
	strcpy(addr.sun_path, path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	r = connect_until(fd, &addr);
	if (r == 0 && fcntl(fd, F_SETFL, 0) < 0)
		r = -errno;
	if (r < 0) {
		close(fd);
		return r;
	}
	*ret_fd = fd;
	return 0;
}

/* Where ckptd is looked for: what was named, or else the usual places in turn. */
struct places {
	char path[2][PATH_MAX];
	int why[2];
	int n;
};

static void find_places(const char *given, struct places *p)
{
	const char *run = getenv("XDG_RUNTIME_DIR");

	p->n = 0;
	if (!given || !given[0])
		given = getenv("CKPT_SOCKET");
	if (given && given[0]) {
		snprintf(p->path[p->n++], PATH_MAX, "%s", given);
		return;
	}
	if (run && run[0])
		snprintf(p->path[p->n++], PATH_MAX, "%s/ckptd.sock", run);
	snprintf(p->path[p->n++], PATH_MAX, "/run/ckptd/ckptd.sock");
}

static int cannot_reach(const struct places *p, int tried, struct err *e)
{
	char first[PATH_MAX + ERR_TEXT_MAX] = "", refused[REACH_TEXT_MAX], remedy[ERR_TEXT_MAX];

	if (p->why[tried] == -EAGAIN)
		return does_not_answer(p->path[tried], e);
	if (p->why[tried] == -EACCES || p->why[tried] == -EPERM)
		snprintf(remedy, sizeof(remedy), "%s; or name another one with --socket PATH",
			 reach_refused(p->path[tried], '\'', refused));
	else
		snprintf(remedy, sizeof(remedy),
			 "%sstart it, name its socket with --socket PATH, or look at its files "
			 "with --data FOLDER",
			 reach_hint(p->path[tried]));
	if (tried > 0)
		snprintf(first, sizeof(first), "'%.100s' (%s) nor at ", p->path[0],
			 err_text(p->why[0]));
	return err_set(e, CKPT_EUNAVAILABLE, "cannot reach ckptd at %s'%.100s' (%s): %s", first,
		       p->path[tried], err_text(p->why[tried]), remedy);
}

/* Opens the socket named, or else the first usual one that answers. */
static int find_socket(const char *given, char path[PATH_MAX], int *ret_fd, struct err *e)
{
	struct places p;
	int i = 0;

	find_places(given, &p);
	for (;; i++) {
		p.why[i] = try_path(p.path[i], ret_fd);
		if (p.why[i] == 0) {
			snprintf(path, PATH_MAX, "%s", p.path[i]);
			return 0;
		}
		if (i + 1 == p.n || (p.why[i] != -ENOENT && p.why[i] != -ECONNREFUSED))
			return cannot_reach(&p, i, e);
	}
}

static int say_hello(struct connection *c, struct err *e)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Hello hello = CKPT__HELLO__INIT;
	Ckpt__Reply *reply = NULL;
	int fd = -1, r;

	hello.version_min = SESSION_VERSION;
	hello.version_max = SESSION_VERSION;
	hello.program = (char *)"ckptctl " PACKAGE_VERSION;
	q.body_case = CKPT__REQUEST__BODY_HELLO;
	q.hello = &hello;
	r = ask(c, &q, 0, false, &reply, &fd, e);
	if (r < 0)
		return r;
	if (fd >= 0)
		close(fd);
	ckpt__reply__free_unpacked(reply, NULL);
	return 0;
}

/* *ret_refused: it took the connection, and ended it before it had said anything. */
static int connect_once(const char *socket, struct connection **ret, bool *ret_refused,
			struct err *e)
{
	struct connection *c = alloc_zero(sizeof(*c));
	char path[PATH_MAX];
	int r;

	*ret_refused = false;
	if (!c)
		return err_code(e, -ENOMEM, "connect to ckptd");
	c->fd = -1;
	r = find_socket(socket, path, &c->fd, e);
	if (r == 0) {
		strcpy(c->path, path); /* it fitted an address */
		r = say_hello(c, e);
	}
	*ret_refused = r == CKPT_EUNAVAILABLE && c->fd >= 0 && !c->heard && !c->hangs;
	if (r < 0) {
		connection_close(c);
		return r;
	}
	*ret = c;
	return 0;
}

/* A ckptd that is restarted ends the connections that its socket took meanwhile. */
int connection_open(const char *socket, struct connection **ret, struct err *e)
{
	const struct timespec pause = {.tv_nsec = TRY_AGAIN_MS * 1000000};
	bool refused = false;
	int r = connect_once(socket, ret, &refused, e);

	for (int i = 0; i < REFUSED_TRIES && refused; i++) {
		nanosleep(&pause, NULL);
		err_clear(e);
		r = connect_once(socket, ret, &refused, e);
	}
	return r;
}

void connection_close(struct connection *c)
{
	if (!c)
		return;
	if (c->fd >= 0)
		close(c->fd);
	alloc_free(c);
}

/* ---- Admin ---- */

static int copy_memfd(int fd, void **ret, size_t *ret_len, struct err *e)
{
	struct stat st;
	size_t done = 0;
	char *p;

	if (fd < 0 || fstat(fd, &st) < 0 || st.st_size < 0 || st.st_size > ANSWER_MAX)
		return err_set(e, CKPT_EPROTO, "ckptd's long answer did not come: try again");
	p = alloc_zero((size_t)st.st_size);
	if (!p)
		return err_code(e, -ENOMEM, "read ckptd's answer");
	while (done < (size_t)st.st_size) {
		ssize_t n = pread(fd, p + done, (size_t)st.st_size - done, (off_t)done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			alloc_free(p);
			return err_code(e, n < 0 ? -errno : CKPT_EPROTO, "read ckptd's answer");
		}
		done += (size_t)n;
	}
	*ret = p;
	*ret_len = done;
	return 0;
}

static int read_answer(const Ckpt__Reply *reply, int fd, json_t **ret, struct err *e)
{
	CLEANUP_FREE void *copy = NULL;
	const void *text;
	json_error_t why;
	size_t len;
	int r;

	if (reply->body_case != CKPT__REPLY__BODY_ADMIN) {
		*ret = NULL;
		return 0;
	}
	text = reply->admin->json.data;
	len = reply->admin->json.len;
	if (reply->admin->in_fd) {
		r = copy_memfd(fd, &copy, &len, e); /* (3) */
		if (r < 0)
			return r;
		text = copy;
	}
	*ret = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
	if (!*ret)
		return err_set(e, CKPT_EPROTO, "ckptd's answer is no JSON document: %s", why.text);
	return 0;
}

int connection_ask(struct connection *c, const struct admin_question *q, json_t **ret,
		   struct err *e)
{
	Ckpt__Request request = CKPT__REQUEST__INIT;
	Ckpt__Admin admin = CKPT__ADMIN__INIT;
	Ckpt__Reply *reply = NULL;
	json_t *doc = NULL;
	int fd = -1, r;

	if (q->job && strlen(q->job) > CKPT_JOB_MAX)
		return err_set(e, CKPT_ENOTFOUND,
			       "there is no job '%.80s...': names have at most %d "
			       "characters",
			       q->job, CKPT_JOB_MAX);
	admin.verb = q->verb;
	admin.job = (char *)(q->job ? q->job : "");
	admin.step = q->step;
	admin.any_step = !q->has_step;
	admin.dry_run = q->dry_run;
	admin.since = q->since;
	admin.text = (char *)(q->text ? q->text : "");
	admin.since_ns = q->since_ns;
	admin.wait = q->wait;
	admin.trust = q->trust;
	if (q->attempt)
		admin.attempt = (ProtobufCBinaryData){ sizeof(q->attempt->b),
						       (uint8_t *)(uintptr_t)q->attempt->b };
	request.body_case = CKPT__REQUEST__BODY_ADMIN;
	request.admin = &admin;
	r = ask(c, &request, q->timeout_ms, q->wait || q->timeout_ms < 0, &reply, &fd, e);
	if (r < 0)
		return r;
	r = read_answer(reply, fd, &doc, e);
	if (r == 0 && e && reply->text[0])
		snprintf(e->text, sizeof(e->text), "%s", reply->text);
	if (fd >= 0)
		close(fd);
	ckpt__reply__free_unpacked(reply, NULL);
	if (ret && r == 0)
		*ret = doc;
	else
		json_decref(doc);
	return r;
}

int connection_ask_again(struct connection *c, const struct admin_question *q, json_t **ret,
			 struct err *e)
{
	const struct timespec pause = {.tv_nsec = TRY_AGAIN_MS * 1000000};
	int r = connection_ask(c, q, ret, e);

	for (int i = 0; i < TRIES_MAX && r == -EAGAIN; i++) {
		nanosleep(&pause, NULL);
		err_clear(e);
		r = connection_ask(c, q, ret, e);
	}
	return r;
}
