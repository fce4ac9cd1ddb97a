/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channel.c - SOCK_SEQPACKET to ckptd.
 *
 *   1. No signal: a broken connection is a result. Linux sends none for SOCK_SEQPACKET; sends
 *      carry MSG_NOSIGNAL so that nobody depends on that.
 *   2. No descriptor leaks into a child that executes something, nor out of a message that did not
 *      arrive whole: MSG_CTRUNC closes what came and is an error.
 *   3. The descriptor's number never changes: a foreign event loop keeps polling the same one over
 *      reconnects. While there is no connection an eventfd that nobody signals holds the number.
 */
#include <config.h>

#include "client/channel.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/clock.h"

void channel_init(struct channel *ch)
{
	*ch = (struct channel){ .fd = -1 };
}

void channel_fini(struct channel *ch)
{
	if (ch->fd >= 0)
		close(ch->fd);
	channel_init(ch);
}

/* Takes fd under the channel's number (3). */
static int adopt(struct channel *ch, int fd)
{
	int r = 0;

	if (ch->fd < 0) {
		ch->fd = fd;
		return 0;
	}
	if (dup3(fd, ch->fd, O_CLOEXEC) < 0)
		r = -errno;
	close(fd);
	return r;
}

int channel_connect(struct channel *ch, const char *path)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd, r;

	assert(!ch->up);
	if (strlen(path) >= sizeof(a.sun_path))
		return -ENAMETOOLONG;
	strcpy(a.sun_path, path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0) {
		r = -errno;
		close(fd);
		return r;
	}
	r = adopt(ch, fd);
	ch->up = r == 0;
	return r;
}

void channel_drop(struct channel *ch)
{
	int idle;

	if (!ch->up)
		return;
	ch->up = false;
	idle = eventfd(0, EFD_CLOEXEC);
	/* Without a spare descriptor the connection itself is shut: its number stays ours, and
	 * readable, which costs a foreign loop a turn and nothing else. */
	if (idle < 0 || adopt(ch, idle) < 0)
		shutdown(ch->fd, SHUT_RDWR);
}

int channel_send(struct channel *ch, const void *msg, size_t len, int fd, uint64_t deadline)
{
	struct iovec iov = { .iov_base = (void *)msg, .iov_len = len };
	union {
		char buf[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct pollfd p = { .fd = ch->fd, .events = POLLOUT };
	struct cmsghdr *cm;
	ssize_t n;
	int r;

	assert(ch->up && len > 0 && len <= CONN_MESSAGE_MAX);
	if (fd >= 0) {
		h.msg_control = control.buf;
		h.msg_controllen = sizeof(control.buf);
		cm = CMSG_FIRSTHDR(&h);
		cm->cmsg_level = SOL_SOCKET;
		cm->cmsg_type = SCM_RIGHTS;
		cm->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(cm), &fd, sizeof(int));
	}
	for (;;) {
		n = sendmsg(ch->fd, &h, MSG_NOSIGNAL | MSG_DONTWAIT); /* (1) */
		if (n >= 0) {
			assert((size_t)n == len); /* a packet goes whole or not at all */
			return 0;
		}
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN)
			return -errno;
		r = clock_poll(&p, 1, deadline, ch->interrupt);
		if (r <= 0)
			return r == 0 ? CKPT_ETIMEDOUT : r;
	}
}

static size_t take_fds(struct msghdr *h, int fds[CONN_FDS_MAX])
{
	size_t n = 0;

	for (struct cmsghdr *cm = CMSG_FIRSTHDR(h); cm; cm = CMSG_NXTHDR(h, cm)) {
		if (cm->cmsg_level != SOL_SOCKET || cm->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t at = 0; CMSG_LEN(at) < cm->cmsg_len; at += sizeof(int)) {
			assert(n < CONN_FDS_MAX); /* the control buffer holds no more */
			memcpy(&fds[n++], CMSG_DATA(cm) + at, sizeof(int));
		}
	}
	return n;
}

int channel_receive(struct channel *ch, void *buf, size_t *ret_len, int fds[CONN_FDS_MAX],
		    size_t *ret_n_fds)
{
	struct iovec iov = { .iov_base = buf, .iov_len = CONN_MESSAGE_MAX };
	union {
		char buf[CMSG_SPACE(CONN_FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf,
			    .msg_controllen = sizeof(control.buf) };
	size_t n_fds;
	ssize_t n;
	int r = 0;

	assert(ch->up);
	do
		n = recvmsg(ch->fd, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	n_fds = take_fds(&h, fds);
	if (h.msg_flags & MSG_CTRUNC)
		r = -EMFILE;
	else if (h.msg_flags & MSG_TRUNC)
		r = -EMSGSIZE;
	else if (n == 0)
		r = -EPIPE; /* nobody sends empty messages */
	if (r < 0) {
		for (size_t i = 0; i < n_fds; i++) /* (2) */
			close(fds[i]);
		return r;
	}
	*ret_len = (size_t)n;
	*ret_n_fds = n_fds;
	return 0;
}

int channel_wait(struct channel *ch, uint64_t deadline)
{
	struct pollfd p = { .fd = ch->fd, .events = POLLIN };
	int r = clock_poll(&p, 1, deadline, ch->interrupt);

	assert(ch->up);
	return r > 0 ? 0 : r == 0 ? CKPT_ETIMEDOUT : r;
}
