/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_socket.c - the receiving end of the fd store's protocol.
 *
 *   FDSTORE=1 FDNAME=x with descriptors    keeps them
 *   FDSTOREREMOVE=1 FDNAME=x               closes all of that name
 *   BARRIER=1 with one descriptor          closes it; everything sent before has been done
 *
 *   1. The kernel says who sent a message (SCM_CREDENTIALS); only the child is listened to. The
 *      name is abstract, so it needs no folder and leaves none behind, and 128 random bits long.
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
#include <sys/un.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/rng.h"

struct message {
	char text[NOTIFY_MESSAGE_MAX + 1];
	int fds[NOTIFY_FDS_MAX];
	size_t n_fds;
	pid_t from;
	bool cut; /* text or descriptors did not all arrive */
};

int store_socket_open(struct store_socket *s, struct fd_table *fds, struct log *log, struct err *e)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	char random[16], hex[2 * sizeof(random) + 1];
	struct rng rng;
	socklen_t len;
	int on = 1;

	rng_system(&rng);
	rng.fill(&rng, random, sizeof(random));
	hex_format(hex, random, sizeof(random));
	*s = (struct store_socket){ .fds = fds, .log = log };
	snprintf(s->address, sizeof(s->address), "@ckptd-%s", hex);
	memcpy(addr.sun_path + 1, s->address + 1, strlen(s->address) - 1);
	len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(s->address));
	s->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (s->fd < 0)
		return err_code(e, -errno, "make the fd store's socket");
	if (setsockopt(s->fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0 ||
	    bind(s->fd, (struct sockaddr *)&addr, len) != 0) {
		int r = err_code(e, -errno, "bind the fd store's socket");

		close(s->fd);
		return r;
	}
	return 0;
}

void store_socket_close(struct store_socket *s)
{
	close(s->fd);
}

static void take_control(struct msghdr *h, struct message *m)
{
	for (struct cmsghdr *cm = CMSG_FIRSTHDR(h); cm; cm = CMSG_NXTHDR(h, cm)) {
		if (cm->cmsg_level != SOL_SOCKET)
			continue;
		if (cm->cmsg_type == SCM_CREDENTIALS) {
			struct ucred cred;

			memcpy(&cred, CMSG_DATA(cm), sizeof(cred));
			/* A pid alone may be that of a message whose sender has ended. */
			m->from = cred.uid == geteuid() ? cred.pid : 0;
		}
		if (cm->cmsg_type != SCM_RIGHTS)
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
		char buf[CMSG_SPACE(NOTIFY_FDS_MAX * sizeof(int)) +
			 CMSG_SPACE(sizeof(struct ucred))];
		struct cmsghdr align;
	} control;
	struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf,
			    .msg_controllen = sizeof(control.buf) };
	ssize_t n = recvmsg(fd, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	if (n < 0)
		return false;
	m->text[n] = '\0';
	m->n_fds = 0;
	m->from = 0;
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

bool store_socket_receive(struct store_socket *s, pid_t from, char ret_text[NOTIFY_MESSAGE_MAX + 1])
{
	struct message m;

	ret_text[0] = '\0';
	if (!receive(s->fd, &m))
		return false;
	if (from > 0 && m.from == from) /* (1) */
		handle(s, &m, ret_text);
	for (size_t i = 0; i < m.n_fds; i++) { /* (3) */
		if (m.fds[i] >= 0)
			close(m.fds[i]);
	}
	return true;
}
