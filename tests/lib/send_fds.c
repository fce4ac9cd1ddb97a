/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "tests/lib/send_fds.h"

#include <assert.h>
#include <string.h>
#include <sys/un.h>

ssize_t send_fds_message(int to, const struct fds_message *m)
{
	struct iovec iov = {(void *)m->bytes, m->len};
	union {
		char buf[CMSG_SPACE(SEND_FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} control = {0};
	struct msghdr h = {.msg_name = (void *)m->name,
			   .msg_namelen = m->name_len,
			   .msg_iov = &iov,
			   .msg_iovlen = 1};
	struct cmsghdr *cm;

	assert(m->n_fds <= SEND_FDS_MAX);
	if (m->n_fds > 0) {
		h.msg_control = control.buf;
		h.msg_controllen = CMSG_SPACE(m->n_fds * sizeof(int));
		cm = CMSG_FIRSTHDR(&h);
		cm->cmsg_level = SOL_SOCKET;
		cm->cmsg_type = SCM_RIGHTS;
		cm->cmsg_len = CMSG_LEN(m->n_fds * sizeof(int));
		memcpy(CMSG_DATA(cm), m->fds, m->n_fds * sizeof(int));
	}
	return sendmsg(to, &h, MSG_NOSIGNAL | m->flags);
}

ssize_t send_fd_copies(int to, const void *bytes, size_t len, int fd, size_t copies, int flags)
{
	int fds[SEND_FDS_MAX];
	struct fds_message m = {
		.bytes = bytes, .len = len, .fds = fds, .n_fds = copies, .flags = flags};

	assert(copies <= SEND_FDS_MAX);
	for (size_t i = 0; i < copies; i++)
		fds[i] = fd;
	return send_fds_message(to, &m);
}
