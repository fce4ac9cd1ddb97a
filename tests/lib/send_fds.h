/* SPDX-License-Identifier: Apache-2.0 */
/*
 * send_fds.h - for tests: one message with descriptors (SCM_RIGHTS), built by hand.
 *
 * It shares no code with the senders of libckpt and ckptd, so that tests can send what these never
 * would. The descriptors stay the caller's.
 */
#ifndef TESTS_LIB_SEND_FDS_H
#define TESTS_LIB_SEND_FDS_H

#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>

#define SEND_FDS_MAX 253 /* the kernel takes no more in one message */

struct sockaddr_un;

struct fds_message {
	const void *bytes;
	size_t len;
	const int *fds;
	size_t n_fds; /* 0: the message has no control data */
	const struct sockaddr_un *name; /* NULL: the socket is connected */
	socklen_t name_len;
	int flags; /* MSG_NOSIGNAL is added */
};

/* As sendmsg(): the number of bytes, or -1 and errno. */
ssize_t send_fds_message(int to, const struct fds_message *m);
/* The same descriptor `copies` times, to a connected socket. */
ssize_t send_fd_copies(int to, const void *bytes, size_t len, int fd, size_t copies, int flags);

#endif
