/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "tests/lib/silent_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ckptd/keeper.h"
#include "tests/lib/test.h"

/* All descriptors of a message: to a barrier that is the answer. */
static void close_all(struct msghdr *h)
{
	int fd;

	for (struct cmsghdr *cm = CMSG_FIRSTHDR(h); cm; cm = CMSG_NXTHDR(h, cm)) {
		for (size_t off = 0; CMSG_LEN(off) < cm->cmsg_len; off += sizeof(int)) {
			memcpy(&fd, CMSG_DATA(cm) + off, sizeof(fd));
			close(fd);
		}
	}
}

static void *serve(void *arg)
{
	struct silent_store *s = arg;
	char text[NOTIFY_MESSAGE_MAX + 1];
	union {
		char buf[CMSG_SPACE(NOTIFY_FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} control;
	ssize_t len;

	for (;;) {
		struct iovec iov = {.iov_base = text, .iov_len = NOTIFY_MESSAGE_MAX};
		struct msghdr h = {.msg_iov = &iov,
				   .msg_iovlen = 1,
				   .msg_control = control.buf,
				   .msg_controllen = sizeof(control.buf)};

		len = recvmsg(s->fd, &h, MSG_CMSG_CLOEXEC);
		if (len <= 0)
			return NULL;
		text[len] = '\0';
		if (strncmp(text, "FDSTOREREMOVE=1\n", 16) == 0)
			s->kept--;
		if (strncmp(text, "FDSTORE=1\n", 10) == 0)
			++*(s->kept < s->max ? &s->kept : &s->dropped);
		close_all(&h);
	}
}

void silent_store_start(struct silent_store *s, unsigned max, bool tells)
{
	char text[32];
	int pair[2];

	*s = (struct silent_store){.max = max};
	assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair), 0);
	s->fd = pair[0];
	snprintf(text, sizeof(text), "%d", pair[1]);
	setenv(NOTIFY_FD_VAR, text, 1); /* notify_open() takes it over */
	snprintf(text, sizeof(text), "%d", (int)getpid());
	setenv(NOTIFY_PID_VAR, text, 1);
	snprintf(text, sizeof(text), "%u", max);
	if (tells)
		setenv(KEEPER_MAX_VAR, text, 1);
	assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
}

void silent_store_stop(struct silent_store *s)
{
	assert_int_equal(shutdown(s->fd, SHUT_RD), 0);
	assert_int_equal(pthread_join(s->thread, NULL), 0);
	close(s->fd);
}
