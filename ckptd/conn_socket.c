/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn_socket.c - one connected process: messages with descriptors, in order, or the end.
 *
 *   OPEN --close(), an error, the other end's end, too slow--> CLOSING --next turn--> closed, gone
 *
 *   1. closed is told exactly once, in a turn of its own; after close() no message is delivered.
 *   2. Descriptors that were received or are to be sent belong to this file until the receiver
 *      took them (set them to -1) or the kernel has them: none leaks, whatever fails.
 *   3. A message whose descriptors did not all arrive (MSG_CTRUNC: our descriptor limit) or that
 *      is longer than CONN_MESSAGE_MAX (MSG_TRUNC) is never delivered in part: the connection ends.
 *   4. What waits to be sent is bounded; a peer that does not read loses its connection, not ours.
 *   5. At most READS_MAX messages of one connection are read in one turn.
 */
#include <config.h>

#include "ckptd/conn_socket.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "ckptd/loop_epoll.h"

enum { READS_MAX = 16, WAITING_MAX = 1024, WAITING_BYTES_MAX = 4 << 20, WAITING_FDS_MAX = 256 };

struct socket_conn {
	struct conn conn;
	struct list link; /* in hub->conns */
	struct conn_hub *hub;
	struct process *process;
	int fd;
	struct watch watch;
	struct timer handshake; /* armed until the first message */
	struct task ending;     /* posted when CLOSING */
	bool closing;
	struct list waiting; /* struct outgoing */
	unsigned n_waiting, waiting_fds;
	size_t waiting_bytes;
};

struct outgoing {
	struct list link;
	size_t len, n_fds;
	int fds[CONN_FDS_MAX];
	uint8_t bytes[];
};

static struct socket_conn *of(struct conn *c)
{
	return container_of(c, struct socket_conn, conn);
}

static void close_fds(const int *fds, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (fds[i] >= 0)
			close(fds[i]);
	}
}

static void outgoing_free(struct socket_conn *c, struct outgoing *o)
{
	list_del(&o->link);
	c->n_waiting--;
	c->waiting_bytes -= o->len;
	c->waiting_fds -= (unsigned)o->n_fds;
	close_fds(o->fds, o->n_fds);
	alloc_free(o);
}

static void conn_free(struct socket_conn *c)
{
	struct conn_hub *hub = c->hub;

	timer_disarm(hub->loop, &c->handshake);
	loop_epoll_unpost(hub->loop, &c->ending);
	watch_remove(hub->loop, &c->watch);
	close(c->fd);
	while (!list_empty(&c->waiting))
		outgoing_free(c, list_first(&c->waiting, struct outgoing, link));
	assert(c->n_waiting == 0 && c->waiting_fds == 0 && c->waiting_bytes == 0);
	process_put(c->process);
	list_del(&c->link);
	hub->n_conns--;
	alloc_free(c);
}

static void ending_run(struct task *t)
{
	struct socket_conn *c = container_of(t, struct socket_conn, ending);

	assert(c->closing);
	c->hub->events->closed(c->hub->events_arg, &c->conn); /* (1) */
	conn_free(c);
}

/* ---- Sending ---- */

/* 0, -EAGAIN, or an error that ends the connection. The descriptors stay the caller's. */
static int send_now(int fd, const void *msg, size_t len, const int *fds, size_t n_fds)
{
	struct iovec iov = { .iov_base = (void *)msg, .iov_len = len };
	union {
		char buf[CMSG_SPACE(CONN_FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct cmsghdr *cm;
	ssize_t n;

	if (n_fds) {
		h.msg_control = control.buf;
		h.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		cm = CMSG_FIRSTHDR(&h);
		cm->cmsg_level = SOL_SOCKET;
		cm->cmsg_type = SCM_RIGHTS;
		cm->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(cm), fds, n_fds * sizeof(int));
	}
	do
		n = sendmsg(fd, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	assert((size_t)n == len); /* a packet goes whole or not at all */
	return 0;
}

/* Sends what waits; -EAGAIN while something is left. */
static int flush(struct socket_conn *c)
{
	int r = 0;

	while (r == 0 && !list_empty(&c->waiting)) {
		struct outgoing *o = list_first(&c->waiting, struct outgoing, link);

		r = send_now(c->fd, o->bytes, o->len, o->fds, o->n_fds);
		if (r == 0)
			outgoing_free(c, o);
	}
	return r;
}

static void conn_close(struct conn *conn)
{
	struct socket_conn *c = of(conn);

	assert(loop_is_current(c->hub->loop));
	if (c->closing)
		return;
	c->closing = true;
	ignore_result(flush(c)); /* the last words, if the other end has room for them */
	timer_disarm(c->hub->loop, &c->handshake);
	watch_remove(c->hub->loop, &c->watch);
	loop_post(c->hub->loop, &c->ending);
}

/* Ends a connection that broke a rule, and says so. */
static void complain(struct socket_conn *c, const char *what, int error)
{
	log_limited(c->hub->log, &c->hub->limit, loop_now(c->hub->loop), LOG_WARNING,
		    "connection of process %d (uid %u) closed: %s%s%s", (int)c->conn.process.pid,
		    c->conn.process.uid, what, error ? ": " : "", error ? err_text(error) : "");
	conn_close(&c->conn);
}

static int enqueue(struct socket_conn *c, const void *msg, size_t len, const int *fds, size_t n)
{
	struct outgoing *o;

	if (c->n_waiting >= WAITING_MAX || c->waiting_bytes + len > WAITING_BYTES_MAX ||
	    c->waiting_fds + n > WAITING_FDS_MAX)
		return -ENOBUFS; /* (4) */
	o = alloc_zero(sizeof(*o) + len);
	if (!o)
		return -ENOMEM;
	o->len = len;
	o->n_fds = n;
	memcpy(o->bytes, msg, len);
	if (n)
		memcpy(o->fds, fds, n * sizeof(int));
	list_add_tail(&c->waiting, &o->link);
	c->n_waiting++;
	c->waiting_bytes += len;
	c->waiting_fds += (unsigned)n;
	return watch_set(c->hub->loop, &c->watch, EPOLLIN | EPOLLOUT);
}

static void conn_send(struct conn *conn, const void *msg, size_t len, const int *fds, size_t n_fds)
{
	struct socket_conn *c = of(conn);
	bool queued = false;
	int r = 0;

	assert(loop_is_current(c->hub->loop));
	assert(len > 0 && len <= CONN_MESSAGE_MAX && n_fds <= CONN_FDS_MAX);
	if (!c->closing) {
		r = list_empty(&c->waiting) ? send_now(c->fd, msg, len, fds, n_fds) : -EAGAIN;
		if (r == -EAGAIN) {
			r = enqueue(c, msg, len, fds, n_fds);
			queued = r == 0;
		}
	}
	if (!queued)
		close_fds(fds, n_fds); /* (2) */
	if (r == -EPIPE || r == -ECONNRESET)
		conn_close(conn); /* the other end is gone: nothing to say */
	else if (r)
		complain(c, "send a message", r);
}

/* ---- Receiving ---- */

/* Collects the descriptors of a message; how many. */
static size_t take_fds(struct msghdr *h, int fds[CONN_FDS_MAX])
{
	size_t n = 0;

	for (struct cmsghdr *cm = CMSG_FIRSTHDR(h); cm; cm = CMSG_NXTHDR(h, cm)) {
		if (cm->cmsg_level != SOL_SOCKET || cm->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t off = 0; CMSG_LEN(off) < cm->cmsg_len; off += sizeof(int)) {
			assert(n < CONN_FDS_MAX); /* the control buffer holds no more */
			memcpy(&fds[n++], CMSG_DATA(cm) + off, sizeof(int));
		}
	}
	return n;
}

/* Delivers one message; false: nothing more to read now. */
static bool receive_one(struct socket_conn *c)
{
	struct conn_hub *hub = c->hub;
	struct iovec iov = { .iov_base = hub->buf, .iov_len = sizeof(hub->buf) };
	union {
		char buf[CMSG_SPACE(CONN_FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf,
			    .msg_controllen = sizeof(control.buf) };
	int fds[CONN_FDS_MAX];
	size_t n_fds;
	ssize_t n;

	n = recvmsg(c->fd, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0) {
		if (errno != EAGAIN && errno != EINTR)
			conn_close(&c->conn);
		return false;
	}
	n_fds = take_fds(&h, fds);
	if (h.msg_flags & MSG_CTRUNC) /* (3) */
		complain(c, "descriptors were lost: more than 64 in a message, or ckptd is at its "
			    "limit of open files", 0);
	else if (h.msg_flags & MSG_TRUNC)
		complain(c, "a message was longer than 64 KiB", 0);
	else if (n == 0)
		conn_close(&c->conn); /* the other end closed; nobody sends empty messages */
	if (!c->closing) {
		timer_disarm(hub->loop, &c->handshake);
		hub->events->message(hub->events_arg, &c->conn, hub->buf, (size_t)n, fds, n_fds);
	}
	close_fds(fds, n_fds); /* (2) */
	return !c->closing;
}

static void socket_ready(struct watch *w, uint32_t events)
{
	struct socket_conn *c = container_of(w, struct socket_conn, watch);
	int r;

	if (events & EPOLLOUT) {
		r = flush(c);
		if (r == 0)
			r = watch_set(c->hub->loop, w, EPOLLIN);
		if (r && r != -EAGAIN) {
			conn_close(&c->conn);
			return;
		}
	}
	if (!(events & ~(uint32_t)EPOLLOUT))
		return;
	for (int n = 0; n < READS_MAX; n++) { /* (5) */
		if (!receive_one(c))
			return;
	}
}

static void handshake_fire(struct timer *t)
{
	complain(container_of(t, struct socket_conn, handshake), "it said nothing in time", 0);
}

static bool conn_process_alive(struct conn *conn)
{
	assert(loop_is_current(of(conn)->hub->loop));
	return process_follow(of(conn)->process);
}

static const struct conn_ops socket_ops = {
	.send = conn_send,
	.close = conn_close,
	.process_alive = conn_process_alive,
};

/* ---- All of them ---- */

int conn_socket_open(struct conn_hub *hub, int fd, struct process *p, const struct process_id *id)
{
	struct socket_conn *c = alloc_zero(sizeof(*c));
	int r = -ENOMEM;

	if (c) {
		watch_init(&c->watch, fd, socket_ready);
		r = watch_set(hub->loop, &c->watch, EPOLLIN);
	}
	if (r) {
		alloc_free(c);
		close(fd);
		process_put(p);
		return r;
	}
	c->conn.ops = &socket_ops;
	c->conn.process = *id;
	c->hub = hub;
	c->process = p;
	c->fd = fd;
	list_init(&c->waiting);
	list_init(&c->ending.link);
	c->ending.run = ending_run;
	timer_init(&c->handshake, handshake_fire);
	timer_arm(hub->loop, &c->handshake, loop_now(hub->loop) + hub->handshake_ns);
	list_add_tail(&hub->conns, &c->link);
	hub->n_conns++;
	hub->events->opened(hub->events_arg, &c->conn);
	return 0;
}

unsigned conn_hub_count(const struct conn_hub *hub, uint32_t uid)
{
	const struct socket_conn *c;
	unsigned n = 0;

	list_each(c, &hub->conns, link)
		n += c->conn.process.uid == uid;
	return n;
}

void conn_hub_drop_all(struct conn_hub *hub)
{
	struct socket_conn *c, *tmp;

	list_each_safe(c, tmp, &hub->conns, link)
		conn_free(c);
	assert(hub->n_conns == 0);
}
