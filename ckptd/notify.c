/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notify.c - the sd_notify(3) protocol, written by hand: one AF_UNIX datagram a message.
 *
 * systemd names its socket by a path or an abstract name. ckptd --supervise passes one end of a
 * pair instead, which no other process can send to; from there on both are the same.
 *
 * The barrier is systemd's: "BARRIER=1" carries the write end of a pipe, which the receiver closes
 * once it has come to that message; messages are taken in order. Our own supervisor writes one
 * byte before it closes when something since the last barrier could not be done, which systemd
 * has no way to say.
 */
#include <config.h>

#include "ckptd/notify.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"

enum { SEND_TIMEOUT_S = 10 };

struct notify {
	int fd; /* -1: there is no listener */
	struct sockaddr_un addr;
	socklen_t addr_len; /* 0: fd is connected */
};

static int set_address(struct notify *n, const char *path, struct err *e)
{
	size_t len = strlen(path);

	if ((path[0] != '/' && path[0] != '@') || len < 2)
		return err_set(e, -EPROTO, "NOTIFY_SOCKET='%s' is neither a path nor an abstract "
			       "name", path);
	if (len >= sizeof(n->addr.sun_path))
		return err_set(e, -ENAMETOOLONG, "NOTIFY_SOCKET='%s' is too long", path);
	n->addr.sun_family = AF_UNIX;
	memcpy(n->addr.sun_path, path, len + 1);
	n->addr_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
	if (path[0] == '@')
		n->addr.sun_path[0] = '\0';
	else
		n->addr_len++;
	return 0;
}

/* Returns the descriptor that the supervisor passed to this process, -ENOENT if there is none. */
static int passed_fd(struct err *e)
{
	const char *number = getenv(NOTIFY_FD_VAR), *pid = getenv(NOTIFY_PID_VAR);
	int type = 0, flags;
	socklen_t len = sizeof(type);
	char *end;
	long fd;

	if (!number || !pid || strtoll(pid, NULL, 10) != getpid())
		return -ENOENT;
	errno = 0;
	fd = strtol(number, &end, 10);
	if (errno || end == number || *end || fd < 3 || fd > INT_MAX)
		return err_set(e, -EPROTO, NOTIFY_FD_VAR "='%s' is not the number of a descriptor",
			       number);
	flags = fcntl((int)fd, F_GETFD);
	if (flags < 0 || getsockopt((int)fd, SOL_SOCKET, SO_TYPE, &type, &len) != 0 ||
	    type != SOCK_DGRAM)
		return err_set(e, -EPROTO, NOTIFY_FD_VAR "=%ld is not a datagram socket", fd);
	if (fcntl((int)fd, F_SETFD, flags | FD_CLOEXEC) != 0)
		return err_code(e, -errno, "make the notification socket close-on-exec");
	return (int)fd;
}

static int named_fd(struct notify *n, struct err *e)
{
	const char *path = getenv("NOTIFY_SOCKET");
	int r, fd;

	if (!path || !path[0])
		return -ENOENT;
	r = set_address(n, path, e);
	if (r)
		return r;
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	return fd < 0 ? err_code(e, -errno, "open the notification socket") : fd;
}

int notify_open(struct notify **ret, struct err *e)
{
	struct timeval timeout = { .tv_sec = SEND_TIMEOUT_S };
	struct notify *n = alloc_zero(sizeof(*n));
	int r = 0;

	if (!n)
		return err_code(e, -ENOMEM, "open the notification socket");
	n->fd = passed_fd(e);
	unsetenv(NOTIFY_FD_VAR);
	unsetenv(NOTIFY_PID_VAR);
	if (n->fd == -ENOENT)
		n->fd = named_fd(n, e);
	if (n->fd < 0 && n->fd != -ENOENT)
		r = n->fd;
	else if (n->fd >= 0 &&
		 setsockopt(n->fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) != 0)
		r = err_code(e, -errno, "open the notification socket");
	if (r) {
		notify_free(n);
		return r;
	}
	*ret = n;
	return 0;
}

void notify_free(struct notify *n)
{
	if (!n)
		return;
	if (n->fd >= 0)
		close(n->fd);
	alloc_free(n);
}

bool notify_listened(const struct notify *n)
{
	return n->fd >= 0;
}

int notify_send(struct notify *n, const char *text, const int *fds, size_t n_fds)
{
	struct iovec iov = { .iov_base = (void *)text, .iov_len = strlen(text) };
	union {
		char buf[CMSG_SPACE(NOTIFY_FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct msghdr h = { .msg_name = n->addr_len ? &n->addr : NULL, .msg_namelen = n->addr_len,
			    .msg_iov = &iov, .msg_iovlen = 1 };
	struct cmsghdr *cm;
	ssize_t sent;

	assert(iov.iov_len > 0 && iov.iov_len <= NOTIFY_MESSAGE_MAX);
	assert(n_fds <= NOTIFY_FDS_MAX);
	if (n->fd < 0)
		return 0;
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
		sent = sendmsg(n->fd, &h, MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	if (sent >= 0)
		return 0;
	if (errno == ENOTCONN)
		return -ECONNREFUSED; /* the kernel says so once, then ENOTCONN */
	return errno == EAGAIN ? -ETIMEDOUT : -errno;
}

int notify_barrier(struct notify *n, int timeout_ms)
{
	struct pollfd poll_in = { .events = POLLIN };
	int p[2], r;
	char byte;

	if (n->fd < 0)
		return 0;
	if (pipe2(p, O_CLOEXEC) != 0)
		return -errno;
	r = notify_send(n, "BARRIER=1", &p[1], 1);
	close(p[1]);
	poll_in.fd = p[0];
	if (r == 0) {
		/* Workers and the loop block signals or take them by signalfd: no EINTR to count.
		 */
		do
			r = poll(&poll_in, 1, timeout_ms);
		while (r < 0 && errno == EINTR);
		if (r <= 0)
			r = r == 0 ? -ETIMEDOUT : -errno;
		else
			r = read(p[0], &byte, 1) == 0 ? 0 : -EIO;
	}
	close(p[0]);
	return r;
}

uint64_t notify_watchdog_ns(void)
{
	const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
	unsigned long long us;
	char *end;

	if (!usec || (pid && strtoll(pid, NULL, 10) != getpid()))
		return 0;
	errno = 0;
	us = strtoull(usec, &end, 10);
	if (errno || end == usec || *end || us == 0 || us > UINT64_MAX / 1000)
		return 0;
	return us * 1000;
}
