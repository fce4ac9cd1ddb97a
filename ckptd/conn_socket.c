/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn_socket.c - one connected process: messages with descriptors, in order, or the end.
 *
 *   OPEN --close(), an error, the other end's end, too slow--> CLOSING --next turn--> closed --+
 *                                                                                             |
 *              gone <--a process has it, to close it-- DRAINING <--it may hold descriptors------+
 *
 *   1. events->closed() is called exactly once, in a turn of its own; after close() no message is
 *      delivered.
 *   2. Descriptors that are to be sent belong to this file until the kernel has them: none leaks,
 *      whatever fails.
 *   3. This process receives no descriptor from a user. It peeks at each message first (MSG_PEEK,
 *      with room for credentials and nothing else: MSG_CTRUNC says that there are descriptors); the
 *      uid's receiver (ckptd/receiver.h) receives one with descriptors, and until then nothing else
 *      of the connection is read. One that is longer than CONN_MESSAGE_MAX (MSG_TRUNC) ends it.
 *   4. Messages that wait to be sent are bounded; a peer that does not read loses its connection.
 *      So are the descriptors that were sent and not taken, of a connection and of a uid: SIOCOUTQ
 *      says whether the other end has read all. Messages above the bound wait, and so do those that
 *      the kernel refuses because ckptd's user has too many descriptors in flight (ETOOMANYREFS).
 *   5. A message is a task of its uid, so that users take turns whatever each of them sends.
 *   6. Closing a socket closes the descriptors of messages that are queued in it. ckptd shuts it
 *      down first, and closes it only after it has seen the queue empty; else a process of the uid
 *      closes it (ckptd/receiver.h), or the end of this process, which is as quick. From Linux 6.16
 *      on (SO_PASSRIGHTS) the peer of a connection cannot send descriptors before it is let in, so
 *      one that is not let in is closed at once; before that, it is closed as the others are.
 *   7. Descriptors in flight to a process that has ended stay in flight while a child that it
 *      forked has the socket; ckptd cannot take them back. It closes such a connection and counts
 *      its descriptors for their uid apart (fds_lost), so that messages to the uid's other
 *      processes do not wait for them; up to the same bound, above which they wait after all, and
 *      the log says for what. So a uid that forks and exits gets twice the bound and no more.
 */
#include <config.h>

#include "ckptd/conn_socket.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <linux/sockios.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "ckptd/loop_epoll.h"

enum { WAITING_MAX = 1024, WAITING_BYTES_MAX = 4 << 20, WAITING_FDS_MAX = 256, DRAIN_MAX = 16 };
#define LINGER_LOOK_NS 500000000ull

struct socket_conn {
	struct conn conn;
	struct list link; /* in hub->conns */
	struct conn_hub *hub;
	struct conn_user *user;
	struct process *process;
	int fd;
	struct watch watch;
	struct timer handshake; /* armed until the first message */
	struct task reading;    /* posted when there may be something to read */
	bool posted;
	struct task sending;    /* posted when what waits may be sent */
	bool to_send;
	struct receiving receiving; /* of a message with a descriptor, or of the end */
	bool held;              /* the receiver has the connection */
	struct task ending;     /* posted when CLOSING, or to close the socket */
	bool closing;
	bool refused;           /* was never let in: counts apart, and has no process */
	struct list waiting; /* struct outgoing */
	unsigned n_waiting, waiting_fds;
	size_t waiting_bytes;
	unsigned fds_sent; /* since the other end was seen to have read all */
	unsigned fds_lost; /* lingering, and its process has ended: of those that were sent (7) */
	bool wants_room;   /* events->room() is to be called */
	bool over;         /* nothing but its socket is left: lingering or DRAINING */
	bool lingering;    /* closed, and the other end has not read all */
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

/* Hands over or closes descriptors that the other end will not get. */
static void unsent(struct socket_conn *c, const int *fds, size_t n)
{
	struct conn_hub *hub = c->hub;

	if (n > 0 && hub->events->unsent && !hub->dropping)
		hub->events->unsent(hub->events_arg, c->user->uid, fds, n);
	else
		close_fds(fds, n);
}

static void outgoing_free(struct socket_conn *c, struct outgoing *o, bool sent)
{
	list_del(&o->link);
	c->n_waiting--;
	c->waiting_bytes -= o->len;
	c->waiting_fds -= (unsigned)o->n_fds;
	c->user->fds_waiting -= (unsigned)o->n_fds;
	c->user->bytes_waiting -= o->len;
	if (sent)
		close_fds(o->fds, o->n_fds);
	else
		unsent(c, o->fds, o->n_fds);
	alloc_free(o);
}

/* ---- Users ---- */

static struct conn_user *user_find(const struct conn_hub *hub, uint32_t uid)
{
	struct conn_user *u;

	list_each(u, &hub->users, link)
		if (u->uid == uid)
			return u;
	return NULL;
}

static struct conn_user *user_get(struct conn_hub *hub, uint32_t uid)
{
	struct conn_user *u = user_find(hub, uid);

	if (u)
		return u;
	u = alloc_zero(sizeof(*u));
	if (u) {
		u->uid = uid;
		list_add_tail(&hub->users, &u->link);
	}
	return u;
}

static void user_free(struct conn_user *u)
{
	receiver_free(u->receiver);
	receiver_free(u->closer);
	list_del(&u->link);
	alloc_free(u);
}

static bool is_idle(const struct receiver *r)
{
	return !r || receiver_is_idle(r);
}

/* Frees the users that hold nothing any more; a receiver's process may have ended after the last
 * connection. */
static void users_tidy(struct conn_hub *hub)
{
	struct conn_user *u, *next;

	list_each_safe(u, next, &hub->users, link) {
		if (u->n_conns + u->n_refused > 0 || !is_idle(u->receiver) || !is_idle(u->closer))
			continue;
		user_free(u);
	}
}

/* Makes it if need be. *at: the user's receiver or closer. */
static struct receiver *receiver_of(struct socket_conn *c, struct receiver **at)
{
	struct receiver_options o = {.program = c->hub->program,
				     .uid = c->user->uid,
				     .limit_ns = RECEIVER_LIMIT_NS,
				     .rest_ns = RECEIVER_REST_NS,
				     .log = c->hub->log};

	if (!*at && o.program)
		*at = receiver_new(c->hub->loop, &o);
	return *at;
}

/* ---- The end ---- */

static void conn_free(struct socket_conn *c)
{
	unsigned *n = c->refused ? &c->hub->n_refused : &c->hub->n_conns;
	unsigned *of_user = c->refused ? &c->user->n_refused : &c->user->n_conns;

	if (c->process)
		process_put(c->process);
	list_del(&c->link);
	(*n)--;
	(*of_user)--;
	alloc_free(c);
}

/* The socket is closed, or a process of the closer's closes it. */
static void conn_gone(struct socket_conn *c)
{
	struct conn_hub *hub = c->hub;

	conn_free(c);
	users_tidy(hub);
}

static void drained(struct receiving *x, int status, const void *msg, size_t len, int *fd)
{
	(void)status; /* a process has it, whose end closes it */
	(void)msg;
	(void)len;
	(void)fd;
	conn_gone(container_of(x, struct socket_conn, receiving));
}

/* Nothing of the connection is left but its socket. */
static void conn_fini(struct socket_conn *c)
{
	struct conn_hub *hub = c->hub;

	timer_disarm(hub->loop, &c->handshake);
	loop_unpost(hub->loop, &c->ending);
	loop_unpost(hub->loop, &c->reading);
	loop_unpost(hub->loop, &c->sending);
	if (c->held)
		receiver_forget(c->user->receiver, &c->receiving);
	c->held = false;
	watch_remove(hub->loop, &c->watch);
	while (!list_empty(&c->waiting))
		outgoing_free(c, list_first(&c->waiting, struct outgoing, link), false);
	assert(c->n_waiting == 0 && c->waiting_fds == 0 && c->waiting_bytes == 0);
	c->over = true;
}

static void look_whether_taken(struct socket_conn *c);
static void look_again(struct conn_hub *hub, uint64_t in_ns);

/* The other end has read all: closes the socket. */
static void conn_drain(struct socket_conn *c)
{
	struct receiver *r;

	assert(c->fds_sent == 0 && c->fds_lost == 0);
	c->lingering = false;
	if (conn_close_if_empty(c->fd)) {
		conn_gone(c);
		return;
	}
	if (!c->hub->program) { /* nothing else can close it */
		close(c->fd);
		conn_gone(c);
		return;
	}
	r = receiver_of(c, &c->user->closer);
	if (!r) { /* no memory: once more */
		c->lingering = true;
		look_again(c->hub, LINGER_LOOK_NS);
		return;
	}
	c->receiving = (struct receiving){.fd = c->fd, .end = true, .done = drained};
	c->fd = -1;
	receiver_ask(r, &c->receiving);
}

static void draining_run(struct task *t)
{
	struct socket_conn *c = container_of(t, struct socket_conn, ending);

	loop_label(c->hub->loop, "the close of a connection");
	conn_drain(c);
}

/* In a call of its user's. */
static void drain_soon(struct socket_conn *c)
{
	c->lingering = false;
	task_init(&c->ending, c->user->uid, draining_run);
	loop_post(c->hub->loop, &c->ending);
}

static void conn_end(struct socket_conn *c)
{
	conn_fini(c);
	shutdown(c->fd, SHUT_RDWR); /* (6) */
	look_whether_taken(c);
	c->lingering = c->fds_sent > 0;
	if (c->lingering) /* in flight, and counted, until the other end reads them or ends (4) */
		look_again(c->hub, LINGER_LOOK_NS);
	else
		conn_drain(c);
}

static void ending_run(struct task *t)
{
	struct socket_conn *c = container_of(t, struct socket_conn, ending);

	assert(c->closing);
	loop_label(c->hub->loop, "the end of a connection");
	c->hub->events->closed(c->hub->events_arg, &c->conn); /* (1) */
	conn_end(c);
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

/* Clears its counts of descriptors in flight if the other end has read all. */
static void look_whether_taken(struct socket_conn *c)
{
	int unread = 1;

	if (c->fds_sent + c->fds_lost == 0 ||
	    (c->fd >= 0 && (ioctl(c->fd, SIOCOUTQ, &unread) != 0 || unread)))
		return;
	c->user->fds_sent -= c->fds_sent;
	c->user->fds_lost -= c->fds_lost;
	c->fds_sent = c->fds_lost = 0;
}

/* Its process has ended, and has not read all (7). */
static void count_as_lost(struct socket_conn *c)
{
	struct conn_hub *hub = c->hub;
	struct conn_user *u = c->user;

	assert(c->lingering && c->fds_lost == 0);
	if (u->fds_lost + c->fds_sent > hub->uid_fds_sent) {
		log_limited(hub->log, &hub->limit, loop_now(hub->loop), LOG_WARNING,
			    "%u descriptors are under way to processes of uid %u that have ended, "
			    "process %d the last, and whose sockets others have that they forked: "
			    "loads of uid %u wait until these end",
			    u->fds_lost + u->fds_sent, u->uid, (int)c->conn.process.pid, u->uid);
		return;
	}
	u->fds_sent -= c->fds_sent;
	u->fds_lost += c->fds_sent;
	c->fds_lost = c->fds_sent;
	c->fds_sent = 0;
}

static void look_again(struct conn_hub *hub, uint64_t in_ns)
{
	uint64_t at = loop_now(hub->loop) + in_ns;

	if (!hub->look.armed || hub->look.deadline_ns > at)
		timer_arm(hub->loop, &hub->look, at);
}

static bool within(const struct socket_conn *c, size_t n_fds)
{
	return c->fds_sent + n_fds <= CONN_FDS_SENT &&
	       c->user->fds_sent + n_fds <= c->hub->uid_fds_sent;
}

/* Whether so many descriptors may be sent; else the hub looks again soon (4). */
static bool may_send(struct socket_conn *c, size_t n_fds)
{
	if (n_fds == 0 || within(c, n_fds))
		return true;
	look_whether_taken(c);
	if (within(c, n_fds))
		return true;
	look_again(c->hub, CONN_ROOM_LOOK_NS);
	return false;
}

static int send_message(struct socket_conn *c, const void *msg, size_t len, const int *fds,
			size_t n_fds)
{
	int r = may_send(c, n_fds) ? send_now(c->fd, msg, len, fds, n_fds) : -EAGAIN;

	if (r == 0) {
		c->fds_sent += (unsigned)n_fds;
		c->user->fds_sent += (unsigned)n_fds;
	}
	if (r == -ETOOMANYREFS) { /* no event says when others have read theirs */
		look_again(c->hub, CONN_ROOM_LOOK_NS);
		r = -EAGAIN;
	}
	return r;
}

/* Sends what waits; -EAGAIN while something is left. */
static int flush(struct socket_conn *c)
{
	int r = 0;

	while (r == 0 && !list_empty(&c->waiting)) {
		struct outgoing *o = list_first(&c->waiting, struct outgoing, link);

		r = send_message(c, o->bytes, o->len, o->fds, o->n_fds);
		if (r == 0)
			outgoing_free(c, o, true);
	}
	return r;
}

static bool conn_has_room(struct conn *conn)
{
	struct socket_conn *c = of(conn);

	assert(loop_is_current(c->hub->loop));
	if (c->closing || (list_empty(&c->waiting) && may_send(c, CONN_FDS_MAX)))
		return true;
	c->wants_room = true;
	/* The other end's reading is seen at once where that can be had; else by looking. */
	ignore_result(watch_set(c->hub->loop, &c->watch, EPOLLIN | EPOLLOUT | EPOLLET));
	look_again(c->hub, CONN_ROOM_LOOK_NS);
	return false;
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
	loop_unpost(c->hub->loop, &c->reading);
	loop_unpost(c->hub->loop, &c->sending);
	c->posted = c->to_send = false;
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
	int r;

	if (c->n_waiting >= WAITING_MAX || c->waiting_bytes + len > WAITING_BYTES_MAX ||
	    c->waiting_fds + n > WAITING_FDS_MAX || c->user->fds_waiting + n > UID_FDS_WAITING ||
	    c->user->bytes_waiting + len > UID_BYTES_WAITING)
		return -ENOBUFS; /* (4) */
	o = alloc_zero(sizeof(*o) + len);
	if (!o)
		return -ENOMEM;
	o->len = len;
	o->n_fds = n;
	memcpy(o->bytes, msg, len);
	if (n)
		memcpy(o->fds, fds, n * sizeof(int));
	r = watch_set(c->hub->loop, &c->watch, EPOLLIN | EPOLLOUT | EPOLLET);
	if (r) { /* the descriptors are the caller's */
		alloc_free(o);
		return r;
	}
	list_add_tail(&c->waiting, &o->link);
	c->n_waiting++;
	c->waiting_bytes += len;
	c->waiting_fds += (unsigned)n;
	c->user->fds_waiting += (unsigned)n;
	c->user->bytes_waiting += len;
	return 0;
}

static void conn_send(struct conn *conn, const void *msg, size_t len, const int *fds, size_t n_fds)
{
	struct socket_conn *c = of(conn);
	bool queued = false;
	int r = 0;

	assert(loop_is_current(c->hub->loop));
	assert(len > 0 && len <= CONN_MESSAGE_MAX && n_fds <= CONN_FDS_MAX);
	if (!c->closing) {
		r = list_empty(&c->waiting) ? send_message(c, msg, len, fds, n_fds) : -EAGAIN;
		if (r == -EAGAIN) {
			r = enqueue(c, msg, len, fds, n_fds);
			queued = r == 0;
		}
	}
	if (r == 0 && !queued && !c->closing) /* (2) */
		close_fds(fds, n_fds);
	else if (!queued)
		unsent(c, fds, n_fds);
	if (r == -EPIPE || r == -ECONNRESET)
		conn_close(conn); /* the other end is gone: nothing to say */
	else if (r)
		complain(c, "send a message", r);
}

/* ---- Receiving ---- */

enum found { FOUND_MESSAGE, FOUND_WITH_FDS, FOUND_EMPTY, FOUND_END, FOUND_NOTHING, FOUND_ERROR };

/*
 * What the next recvmsg() would find (3). Only a message has credentials, so they distinguish an
 * empty one from the other end's end; the buffer has no room behind them, so no descriptor comes.
 */
static enum found look(int fd)
{
	uint8_t byte;
	struct iovec iov = {.iov_base = &byte, .iov_len = sizeof(byte)};
	union {
		char buf[CMSG_SPACE(sizeof(struct ucred))];
		struct cmsghdr align;
	} control;
	struct msghdr h = {.msg_iov = &iov,
			   .msg_iovlen = 1,
			   .msg_control = control.buf,
			   .msg_controllen = sizeof(control.buf)};
	ssize_t n = recvmsg(fd, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_PEEK);

	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? FOUND_NOTHING : FOUND_ERROR;
	if (h.msg_flags & MSG_CTRUNC)
		return FOUND_WITH_FDS;
	if (n > 0)
		return FOUND_MESSAGE;
	return CMSG_FIRSTHDR(&h) ? FOUND_EMPTY : FOUND_END;
}

/* False: the kernel refuses descriptors that its peer sends (EPERM), and always has (6). */
static bool passes_descriptors(int fd)
{
	int on = 1;
	socklen_t len = sizeof(on);

	return getsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &on, &len) != 0 || on;
}

static int pass_descriptors(int fd)
{
	int on = 1;

	if (setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &on, sizeof(on)) == 0 || errno == ENOPROTOOPT)
		return 0;
	return -errno;
}

/* For a socket that was shut down: nothing more can come. */
static bool may_hold_descriptors(int fd)
{
	char byte;

	for (int n = 0; n < DRAIN_MAX; n++) {
		enum found f = look(fd);

		if (f == FOUND_END || f == FOUND_NOTHING)
			return false;
		if (f == FOUND_WITH_FDS)
			return true;
		/* A message without descriptors: discard it. An error (the other end has closed and
		 * not read all) comes once, before the messages that are queued. */
		if (f != FOUND_ERROR)
			ignore_result((int)recv(fd, &byte, 1, MSG_DONTWAIT));
	}
	return passes_descriptors(fd); /* too many messages to look at: assume so */
}

bool conn_close_if_empty(int fd)
{
	int on = 1;

	shutdown(fd, SHUT_RDWR); /* (6) */
	if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0 /* look() needs it */ ||
	    may_hold_descriptors(fd))
		return false;
	close(fd);
	return true;
}

/* What is queued is discarded before: else the other end would see an error, not the end. */
static void close_without_descriptors(int fd)
{
	char byte;

	shutdown(fd, SHUT_RDWR);
	for (int n = 0; n < DRAIN_MAX && recv(fd, &byte, 1, MSG_DONTWAIT) > 0; n++)
		;
	close(fd);
}

static void read_on(struct socket_conn *c)
{
	if (c->posted || c->closing || c->held)
		return;
	c->posted = true;
	loop_post(c->hub->loop, &c->reading);
}

static void deliver(struct socket_conn *c, const void *msg, size_t len, int *fds, size_t n_fds)
{
	timer_disarm(c->hub->loop, &c->handshake);
	c->hub->events->message(c->hub->events_arg, &c->conn, msg, len, fds, n_fds);
	close_fds(fds, n_fds); /* frozen memfds that the receiver has open too */
	read_on(c);
}

static void received(struct receiving *x, int status, const void *msg, size_t len, int *fd)
{
	struct socket_conn *c = container_of(x, struct socket_conn, receiving);
	static const char *const wrong[] = {
		[RECEIVER_LONG] = "a message was longer than 64 KiB",
		[RECEIVER_MANY] = "a message had more than one descriptor",
		[RECEIVER_FOREIGN] = "a message had a descriptor that is none of a memfd that is "
				     "sealed against writing and changes of its size",
		[RECEIVER_LARGE] = "a message had a memfd of more than 512 MiB",
		[RECEIVER_NONE] = "the process that took in its descriptor ended: the message is "
				  "lost",
	};

	c->held = false;
	if (c->closing)
		return; /* (1) */
	if (status == RECEIVER_NOTHING && x->again)
		status = RECEIVER_NONE;
	if (status == RECEIVER_OK && len > 0) {
		int fds[1] = {*fd};

		*fd = -1;
		deliver(c, msg, len, fds, 1);
	} else if (status == RECEIVER_OK || status == RECEIVER_NOTHING) {
		conn_close(&c->conn); /* no client sends empty messages */
	} else if (status > 0 && (size_t)status < sizeof(wrong) / sizeof(wrong[0])) {
		complain(c, wrong[status], 0);
	} else {
		complain(c, "a descriptor could not be taken in", status);
	}
}

/* The receiver takes the message, and answers in another turn. */
static void hand_over(struct socket_conn *c)
{
	struct receiver *r = receiver_of(c, &c->user->receiver);

	if (!r) {
		complain(c, "a descriptor could not be taken in", -ENOMEM);
		return;
	}
	c->held = true;
	c->receiving = (struct receiving){.fd = c->fd, .done = received};
	list_init(&c->receiving.link);
	receiver_ask(r, &c->receiving);
}

static void reading_run(struct task *t)
{
	struct socket_conn *c = container_of(t, struct socket_conn, reading);
	struct conn_hub *hub = c->hub;
	struct iovec iov = {.iov_base = hub->buf, .iov_len = sizeof(hub->buf)};
	struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n;

	c->posted = false;
	loop_label(hub->loop, "a message");
	switch (look(c->fd)) {
	case FOUND_NOTHING:
		return;
	case FOUND_WITH_FDS:
		hand_over(c);
		return;
	case FOUND_EMPTY: /* no client sends empty messages */
	case FOUND_END:
	case FOUND_ERROR:
		conn_close(&c->conn);
		return;
	case FOUND_MESSAGE:
		break;
	}
	/* The same message: only this file reads from the socket. */
	n = recvmsg(c->fd, &h, MSG_DONTWAIT);
	if (n > 0 && h.msg_flags & MSG_TRUNC)
		complain(c, "a message was longer than 64 KiB", 0);
	else if (n > 0)
		deliver(c, hub->buf, (size_t)n, NULL, 0);
	else
		conn_close(&c->conn);
}

/* The other end has read something, or it is time to look. */
static void send_on(struct socket_conn *c)
{
	int r = c->closing ? -EAGAIN : flush(c);
	bool tell = r == 0 && c->wants_room && may_send(c, CONN_FDS_MAX);

	if (tell)
		c->wants_room = false;
	if (r == 0 && !c->wants_room)
		r = watch_set(c->hub->loop, &c->watch, EPOLLIN | EPOLLET);
	if (r && r != -EAGAIN)
		conn_close(&c->conn);
	else if (tell && c->hub->events->room)
		c->hub->events->room(c->hub->events_arg, &c->conn);
}

static void sending_run(struct task *t)
{
	struct socket_conn *c = container_of(t, struct socket_conn, sending);

	c->to_send = false;
	loop_label(c->hub->loop, "what waited to be sent");
	send_on(c);
}

/* In a call of its user's. */
static void send_soon(struct socket_conn *c)
{
	if (c->to_send || c->closing)
		return;
	c->to_send = true;
	loop_post(c->hub->loop, &c->sending);
}

/* The other ends may have taken descriptors: check all connections, as a uid has one bound. */
static void look_came(struct timer *t)
{
	struct conn_hub *hub = container_of(t, struct conn_hub, look);
	struct socket_conn *c;

	loop_label(hub->loop, "descriptors that may have been taken");
	list_each(c, &hub->conns, link) {
		look_whether_taken(c);
		if (c->fds_sent == 0 || !process_has_ended(c->process))
			continue;
		if (c->lingering)
			count_as_lost(c);
		else if (!c->over)
			conn_close(&c->conn); /* it lingers, and then as above */
	}
	list_each(c, &hub->conns, link) {
		if (c->lingering && c->fds_sent + c->fds_lost == 0)
			drain_soon(c);
		else if (c->lingering)
			look_again(hub, LINGER_LOOK_NS);
		else if (!c->closing && (c->wants_room || c->waiting_fds > 0))
			send_soon(c);
	}
	list_each(c, &hub->conns, link)
		if (!c->closing && (c->wants_room || c->waiting_fds > 0))
			look_again(hub, CONN_ROOM_LOOK_NS);
}

static void socket_ready(struct watch *w, uint32_t events)
{
	struct socket_conn *c = container_of(w, struct socket_conn, watch);

	if (c->closing)
		return;
	if (events & EPOLLOUT)
		send_soon(c);
	if (events & ~(uint32_t)EPOLLOUT)
		read_on(c);
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
	.room = conn_has_room,
	.close = conn_close,
	.process_alive = conn_process_alive,
};

/* ---- All of them ---- */

int conn_socket_open(struct conn_hub *hub, int fd, struct process *p, const struct process_id *id)
{
	struct socket_conn *c = alloc_zero(sizeof(*c));
	struct conn_user *u = c ? user_get(hub, id->uid) : NULL;
	int r = -ENOMEM, on = 1;

	if (u) {
		watch_init(&c->watch, fd, socket_ready);
		r = setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) == 0 ? 0 : -errno;
		if (r == 0) /* look() */
			r = watch_set(hub->loop, &c->watch, EPOLLIN | EPOLLET);
		if (r == 0) { /* the last, or conn_refuse() would take it for an old one */
			r = pass_descriptors(fd);
			if (r)
				watch_remove(hub->loop, &c->watch);
		}
	}
	if (r) {
		alloc_free(c);
		users_tidy(hub);
		process_put(p);
		conn_refuse(hub, fd, id->uid);
		return r;
	}
	c->conn.ops = &socket_ops;
	c->conn.process = *id;
	c->hub = hub;
	c->user = u;
	c->process = p;
	c->fd = fd;
	list_init(&c->waiting);
	task_init(&c->ending, id->uid, ending_run);
	task_init(&c->reading, id->uid, reading_run);
	task_init(&c->sending, id->uid, sending_run);
	timer_init(&c->handshake, handshake_fire);
	timer_arm(hub->loop, &c->handshake, loop_now(hub->loop) + hub->handshake_ns);
	list_add_tail(&hub->conns, &c->link);
	hub->n_conns++;
	u->n_conns++;
	hub->events->opened(hub->events_arg, &c->conn);
	return 0;
}

void conn_refuse(struct conn_hub *hub, int fd, uint32_t uid)
{
	struct socket_conn *c;
	struct conn_user *u;

	if (!passes_descriptors(fd)) { /* (6) */
		close_without_descriptors(fd);
		return;
	}
	c = alloc_zero(sizeof(*c));
	u = c ? user_get(hub, uid) : NULL;
	if (!u) {
		alloc_free(c);
		if (!conn_close_if_empty(fd))
			log_limited(hub->log, &hub->limit, loop_now(hub->loop), LOG_ERR,
				    "a connection of uid %u that was refused stays open: no memory",
				    uid);
		return;
	}
	shutdown(fd, SHUT_RDWR); /* the other end sees it now */
	c->hub = hub;
	c->user = u;
	c->fd = fd;
	c->conn.process.uid = uid;
	c->refused = c->over = true;
	list_init(&c->waiting);
	list_add_tail(&hub->conns, &c->link);
	hub->n_refused++;
	u->n_refused++;
	drain_soon(c);
}

static unsigned uid_fds_sent(void)
{
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) != 0)
		return CONN_FDS_MAX;
	/* A message of the largest size must always fit, or no connection could be sent one. */
	return (unsigned)max_u64(CONN_FDS_MAX,
				 min_u64(UID_FDS_SENT, files.rlim_cur / UID_FDS_PART));
}

void conn_hub_init(struct conn_hub *hub, struct loop *loop, struct log *log)
{
	hub->loop = loop;
	hub->log = log;
	hub->uid_fds_sent = uid_fds_sent();
	list_init(&hub->conns);
	list_init(&hub->users);
	timer_init(&hub->look, look_came);
}

unsigned conn_hub_count(const struct conn_hub *hub, uint32_t uid)
{
	const struct conn_user *u = user_find(hub, uid);

	return u ? u->n_conns : 0;
}

/* Without the receivers: this process ends, and what its sockets hold ends with it (6). */
void conn_hub_drop_all(struct conn_hub *hub)
{
	struct socket_conn *c, *tmp;
	struct conn_user *u, *next;

	hub->dropping = true;
	timer_disarm(hub->loop, &hub->look);
	list_each_safe(c, tmp, &hub->conns, link) {
		if (!c->over)
			conn_fini(c);
		loop_unpost(hub->loop, &c->ending);
		if (c->fd >= 0)
			ignore_result(conn_close_if_empty(c->fd));
		conn_free(c);
	}
	assert(hub->n_conns + hub->n_refused == 0);
	list_each_safe(u, next, &hub->users, link)
		user_free(u);
}
