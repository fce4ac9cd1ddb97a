/* SPDX-License-Identifier: Apache-2.0 */
/*
 * receiver_child.c - takes in the messages of one uid that carry descriptors.
 *
 * A user's descriptor can block its holder: close() may wait for a FUSE server that never answers
 * or for a socket's peer, or free gigabytes; fstat() may wait as well. So ckptd receives none. This
 * process does; it holds nothing that other processes need, and ckptd kills it when it does not
 * answer.
 *
 *   1. It passes on only a memfd of a bounded size that is sealed against writing and resizing
 *      (F_GET_SEALS, which calls no file system, says so); one for each message.
 *   2. It keeps a memfd that it passed on open until the next request: so ckptd's close of it, or
 *      of its message, is not the last one and frees nothing.
 *   3. It sends the answer before it closes the descriptors that it does not pass on.
 *   4. It closes connections by its own end: a socket does not linger when the process that has it
 *      ends.
 *
 * One thread; blocking calls. Failure modes: it hangs or dies; ckptd/receiver.c begins another.
 */
#include <config.h>

#include "ckptd/receiver_child.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/conn.h"

enum { FDS_MAX = 253 /* SCM_MAX_FD of Linux */, FULL_WAIT_MS = 5 };
_Static_assert((int)RECEIVER_CLOSE_MAX <= (int)FDS_MAX, "one message has them");
#define FROZEN (F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_WRITE)

struct received {
	uint8_t bytes[CONN_MESSAGE_MAX];
	size_t len;
	int fds[FDS_MAX];
	size_t n_fds;
	int flags;
};

union control {
	char buf[CMSG_SPACE(FDS_MAX * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
	struct cmsghdr align;
};

static void take_fds(struct msghdr *h, struct received *m)
{
	m->n_fds = 0;
	for (struct cmsghdr *cm = CMSG_FIRSTHDR(h); cm; cm = CMSG_NXTHDR(h, cm)) {
		if (cm->cmsg_level != SOL_SOCKET || cm->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t off = 0; CMSG_LEN(off) < cm->cmsg_len; off += sizeof(int)) {
			assert(m->n_fds < FDS_MAX); /* the control buffer holds no more */
			memcpy(&m->fds[m->n_fds++], CMSG_DATA(cm) + off, sizeof(int));
		}
	}
}

/* Length, 0, or -errno. */
static ssize_t receive(int fd, void *to, size_t size, int flags, struct received *m)
{
	struct iovec iov = {.iov_base = to, .iov_len = size};
	union control control;
	struct msghdr h = {.msg_iov = &iov,
			   .msg_iovlen = 1,
			   .msg_control = control.buf,
			   .msg_controllen = sizeof(control.buf)};
	ssize_t n;

	do
		n = recvmsg(fd, &h, flags | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	m->n_fds = 0;
	if (n < 0)
		return -errno;
	take_fds(&h, m);
	m->flags = h.msg_flags;
	return n;
}

/* (1) */
static enum receiver_status examine(int fd)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;

	if (seals < 0 || (seals & FROZEN) != FROZEN || fstat(fd, &st) != 0 || st.st_size < 0)
		return RECEIVER_FOREIGN;
	/* It may have pages beyond its end. */
	if ((uint64_t)st.st_size > RECEIVER_BYTES_MAX ||
	    (uint64_t)st.st_blocks > RECEIVER_BYTES_MAX / 512 + 4096)
		return RECEIVER_LARGE;
	return RECEIVER_OK;
}

static enum receiver_status take(int from, struct received *m)
{
	ssize_t n = receive(from, m->bytes, sizeof(m->bytes), MSG_DONTWAIT, m);

	m->len = n > 0 ? (size_t)n : 0;
	if (n <= 0)
		return RECEIVER_NOTHING;
	if (m->flags & MSG_TRUNC)
		return RECEIVER_LONG;
	if (m->n_fds == 0 && !(m->flags & MSG_CTRUNC))
		return RECEIVER_NONE;
	if (m->n_fds != 1 || m->flags & MSG_CTRUNC)
		return RECEIVER_MANY;
	return examine(m->fds[0]);
}

static bool answer(const struct receiver_request *q, enum receiver_status status,
		   const struct received *m)
{
	struct receiver_answer a = {.number = q->number, .status = status};
	struct iovec iov[2] = {{.iov_base = &a, .iov_len = sizeof(a)},
			       {.iov_base = (void *)m->bytes, .iov_len = m->len}};
	union control control = {.buf = {0}};
	struct msghdr h = {.msg_iov = iov, .msg_iovlen = 1};
	struct cmsghdr *cm;
	ssize_t n;

	if (status == RECEIVER_OK) {
		h.msg_iovlen = 2;
		h.msg_control = control.buf;
		h.msg_controllen = CMSG_SPACE(sizeof(int));
		cm = CMSG_FIRSTHDR(&h);
		cm->cmsg_level = SOL_SOCKET;
		cm->cmsg_type = SCM_RIGHTS;
		cm->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(cm), m->fds, sizeof(int));
	}
	/* ETOOMANYREFS: other processes of this user have too many descriptors in flight, and this
	 * one has no capability to exceed that. No event says when it has passed. */
	do
		n = sendmsg(RECEIVER_FD, &h, MSG_NOSIGNAL);
	while (n < 0 && (errno == EINTR ||
			 (errno == ETOOMANYREFS && poll(NULL, 0, FULL_WAIT_MS) == 0)));
	return n > 0;
}

/* Until ckptd, which has closed its own copies, kills this process or closes its end. */
static void await_end(void)
{
	char c;

	while (recv(RECEIVER_FD, &c, 1, 0) < 0 && errno == EINTR)
		;
}

/* Its user's further messages wait for it: a socket must not linger (ENOTSOCK: it is none). */
static void close_foreign(int fd)
{
	const struct linger off = {0, 0};

	ignore_result(setsockopt(fd, SOL_SOCKET, SO_LINGER, &off, sizeof(off)));
	close(fd);
}

/* One request; false: ckptd is gone, or this process has to end. *held: see (2). */
static bool serve(struct received *m, int *held)
{
	struct receiver_request q;
	enum receiver_status status;
	ssize_t n = receive(RECEIVER_FD, &q, sizeof(q), 0, m);
	int from;
	bool ok;

	if (n != (ssize_t)sizeof(q) || m->n_fds < 1)
		return false;
	from = m->fds[0];
	if (*held >= 0)
		close(*held);
	*held = -1;
	if (q.op == RECEIVER_CLOSE) {
		await_end();
		return false; /* (4) */
	}
	status = take(from, m);
	ok = answer(&q, status, m);
	for (size_t i = status == RECEIVER_OK; i < m->n_fds; i++) /* (3) */
		close_foreign(m->fds[i]);
	if (status == RECEIVER_OK)
		*held = m->fds[0];
	close(from);
	return ok;
}

/* The receiver needs none of ckptd's capabilities. Where a filter of system calls forbids capset(),
 * it must have none already. */
static bool drop_capabilities(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	const struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0}};
	struct __user_cap_data_struct left[_LINUX_CAPABILITY_U32S_3];
	uint32_t any = 0;

	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) == 0 &&
	    syscall(SYS_capset, &head, none) == 0)
		return true;
	if (syscall(SYS_capget, &head, left) != 0)
		return false;
	for (size_t i = 0; i < _LINUX_CAPABILITY_U32S_3; i++)
		any |= left[i].effective | left[i].permitted;
	return any == 0;
}

int receiver_child_run(void)
{
	const struct rlimit none = {0, 0};
	static struct received m;
	struct rlimit files;
	int held = -1;

	/* It ends with ckptd, which has the only other end of its socket. (PR_SET_PDEATHSIG would
	 * end it with the thread that started it.) One that still hangs then holds nothing but the
	 * descriptor that hangs it. */
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || setrlimit(RLIMIT_CORE, &none) != 0 ||
	    !drop_capabilities())
		return 1;
	/* Few are open here at a time, but by this limit of the sender the kernel also bounds what
	 * all processes of ckptd's user have in flight, ckptd's own to its clients with it. */
	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		files.rlim_cur = files.rlim_max;
		ignore_result(setrlimit(RLIMIT_NOFILE, &files));
	}
	ignore_result(prctl(PR_SET_NAME, "ckpt-receiver")); /* for people only */
	while (serve(&m, &held))
		;
	return 0;
}
