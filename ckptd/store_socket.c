/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_socket.c - the receiving end of the fd store's protocol.
 *
 *   FDSTORE=1 FDNAME=x with descriptors    keeps them
 *   FDSTOREREMOVE=1 FDNAME=x               closes all of that name
 *   BARRIER=1 with one descriptor          closes it; everything sent before has been done
 *
 *   1. The socket is one end of a pair, made for one child and without a name: only processes that
 *      have the other end can send. The child has it, and what it forks until that executes another
 *      program; no other user can fill the queue, and no message of an earlier child is in it.
 *   2. What could not be stored is remembered and said at the next barrier by one byte, so that
 *      "stored" is never believed falsely.
 *   3. Descriptors that are not kept are closed.
 */
#include <config.h>

#include "ckptd/store_socket.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct message {
	char text[NOTIFY_MESSAGE_MAX + 1];
	int fds[NOTIFY_FDS_MAX];
	size_t n_fds;
	bool cut; /* text or descriptors did not all arrive */
};

int store_socket_open(struct store_socket *s, struct fd_table *fds, struct log *log, struct err *e)
{
	int pair[2];

	*s = (struct store_socket){ .fd = -1, .child_fd = -1, .fds = fds, .log = log };
	if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair) != 0)
		return err_code(e, -errno, "make the fd store's sockets");
	s->fd = pair[0];
	s->child_fd = pair[1];
	return 0;
}

void store_socket_passed(struct store_socket *s)
{
	assert(s->child_fd >= 0);
	close(s->child_fd);
	s->child_fd = -1;
}

void store_socket_close(struct store_socket *s)
{
	if (s->child_fd >= 0)
		close(s->child_fd);
	if (s->fd >= 0)
		close(s->fd);
	s->fd = s->child_fd = -1;
}

static void take_control(struct msghdr *h, struct message *m)
{
	for (struct cmsghdr *cm = CMSG_FIRSTHDR(h); cm; cm = CMSG_NXTHDR(h, cm)) {
		if (cm->cmsg_level != SOL_SOCKET || cm->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t off = 0; CMSG_LEN(off) < cm->cmsg_len; off += sizeof(int)) {
			assert(m->n_fds < NOTIFY_FDS_MAX);
			memcpy(&m->fds[m->n_fds++], CMSG_DATA(cm) + off, sizeof(int));
		}
	}
}

static bool receive(int fd, struct message *m)
{
	struct iovec iov = { .iov_base = m->text, .iov_len = NOTIFY_MESSAGE_MAX };
	union {
		char buf[CMSG_SPACE(NOTIFY_FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf,
			    .msg_controllen = sizeof(control.buf) };
	ssize_t n = recvmsg(fd, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	if (n < 0)
		return false;
	m->text[n] = '\0';
	m->n_fds = 0;
	m->cut = h.msg_flags & (MSG_TRUNC | MSG_CTRUNC);
	take_control(&h, m);
	return true;
}

static void keep(struct store_socket *s, struct message *m, const char *name)
{
	for (size_t i = 0; i < m->n_fds; i++) {
		int r = fd_table_add(s->fds, name, m->fds[i]);

		m->fds[i] = -1;
		if (r) {
			s->failed = true; /* (2) */
			log_print(s->log, LOG_ERR, "could not keep descriptor '%s': %s", name,
				  err_text(r));
		}
	}
}

static void answer_barrier(struct store_socket *s, struct message *m)
{
	if (s->failed && m->n_fds)
		ignore_result((int)write(m->fds[0], "!", 1)); /* (2); the pipe is empty */
	s->failed = false;
}

/* Does what the lines ask for; copies the lines of others to ret_text. */
static void handle(struct store_socket *s, struct message *m, char *ret_text)
{
	char *at = m->text, *line, *name = NULL;
	bool store = false, remove = false, barrier = false;
	size_t len = 0;

	while ((line = strsep(&at, "\n"))) {
		if (strncmp(line, "FDNAME=", 7) == 0)
			name = line + 7;
		else if (strcmp(line, "FDSTORE=1") == 0)
			store = true;
		else if (strcmp(line, "FDSTOREREMOVE=1") == 0)
			remove = true;
		else if (strcmp(line, "BARRIER=1") == 0)
			barrier = true;
		else if (line[0])
			len += (size_t)sprintf(ret_text + len, "%s%s", len ? "\n" : "", line);
	}
	assert(len <= NOTIFY_MESSAGE_MAX);
	if (m->cut && (store || m->n_fds))
		s->failed = true;
	else if (store)
		keep(s, m, name ? name : "stored");
	if (remove && name)
		fd_table_remove(s->fds, name);
	if (barrier)
		answer_barrier(s, m);
}

bool store_socket_receive(struct store_socket *s, char ret_text[NOTIFY_MESSAGE_MAX + 1])
{
	struct message m;

	ret_text[0] = '\0';
	if (!receive(s->fd, &m))
		return false;
	handle(s, &m, ret_text);
	for (size_t i = 0; i < m.n_fds; i++) { /* (3) */
		if (m.fds[i] >= 0)
			close(m.fds[i]);
	}
	return true;
}
