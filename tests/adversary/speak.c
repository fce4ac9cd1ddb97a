/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "tests/adversary/speak.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/conn.h"
#include "proto/session_page.h"
#include "tests/lib/send_fds.h"

enum { ID_HELLO = 1, ID_OPEN, ID_ADMIN, ID_DECLARE, ID_LIST, ID_CANCEL, ID_LOAD_END };

/* ---- Sending ---- */

bool speak_bytes(int to, const void *bytes, size_t len, int fd, int flags)
{
	return send_fd_copies(to, bytes, len, fd, fd >= 0, flags) == (ssize_t)len;
}

bool speak(int to, const Ckpt__Request *q, int fd, int flags)
{
	static uint8_t buf[CONN_MESSAGE_MAX];
	size_t len = ckpt__request__get_packed_size(q);

	if (len > sizeof(buf))
		return false;
	ckpt__request__pack(q, buf);
	return speak_bytes(to, buf, len, fd, flags);
}

/* ---- Receiving ---- */

static uint8_t received[CONN_MESSAGE_MAX];

/* One message, without waiting: what recvmsg() says. Its descriptors are closed. */
static ssize_t take(int fd)
{
	struct iovec iov = {received, sizeof(received)};
	union {
		char buf[CMSG_SPACE(CONN_FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct msghdr h = {.msg_iov = &iov,
			   .msg_iovlen = 1,
			   .msg_control = control.buf,
			   .msg_controllen = sizeof(control.buf)};
	ssize_t n = recvmsg(fd, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	for (struct cmsghdr *cm = n < 0 ? NULL : CMSG_FIRSTHDR(&h); cm; cm = CMSG_NXTHDR(&h, cm)) {
		for (size_t off = 0; CMSG_LEN(off) < cm->cmsg_len; off += sizeof(int)) {
			int one;

			memcpy(&one, CMSG_DATA(cm) + off, sizeof(one));
			close(one);
		}
	}
	return n;
}

bool speak_drain(int fd, int wait_ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	while (poll(&p, 1, wait_ms) > 0) {
		ssize_t n = take(fd);

		if (n <= 0)
			return n < 0 && errno == EAGAIN;
		wait_ms = 0;
	}
	return true;
}

int32_t speak_answer(int fd, uint64_t request, int wait_ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	int32_t code = INT32_MIN;
	bool found = false;

	while (!found && poll(&p, 1, wait_ms) > 0) {
		ssize_t n = take(fd);
		Ckpt__Reply *reply = n > 0 ? ckpt__reply__unpack(NULL, (size_t)n, received) : NULL;

		if (!reply)
			return INT32_MIN;
		found = reply->id == request;
		code = found ? reply->code : code;
		ckpt__reply__free_unpacked(reply, NULL);
	}
	return code;
}

/* ---- Words ---- */

int speak_enter(const char *path)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0)
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

bool speak_hello(int fd)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Hello h = CKPT__HELLO__INIT;

	q.id = ID_HELLO;
	q.body_case = CKPT__REQUEST__BODY_HELLO;
	q.hello = &h;
	h.version_min = h.version_max = SESSION_VERSION;
	h.program = (char *)"attack";
	return speak(fd, &q, -1, MSG_DONTWAIT);
}

int speak_enter_hello(const char *path)
{
	int fd = speak_enter(path);

	if (fd >= 0 && speak_hello(fd) && speak_answer(fd, ID_HELLO, SPEAK_WAIT_MS) == 0)
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

static int32_t open_rank(int fd, const char *job, const char *run, uint32_t rank, uint32_t world,
			 bool again)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Open m = CKPT__OPEN__INIT;

	q.id = ID_OPEN;
	q.body_case = CKPT__REQUEST__BODY_OPEN;
	q.open = &m;
	m.job = (char *)job;
	m.run_id = (char *)run;
	m.rank = rank;
	m.world = world;
	m.reconnect = again;
	return speak(fd, &q, -1, 0) ? speak_answer(fd, ID_OPEN, SPEAK_WAIT_MS) : INT32_MIN;
}

int32_t speak_open(int fd, const char *job, const char *run, uint32_t rank, uint32_t world)
{
	return open_rank(fd, job, run, rank, world, false);
}

int32_t speak_open_again(int fd, const char *job, const char *run, uint32_t rank, uint32_t world)
{
	return open_rank(fd, job, run, rank, world, true);
}

int32_t speak_declare(int fd, const struct digest *digest, const void *bytes, size_t len, int mfd,
		      int wait_ms)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Declare m = CKPT__DECLARE__INIT;

	q.id = ID_DECLARE;
	q.body_case = CKPT__REQUEST__BODY_DECLARE;
	q.declare = &m;
	m.digest = (ProtobufCBinaryData){sizeof(digest->b), (uint8_t *)digest->b};
	m.in_fd = mfd >= 0;
	if (mfd < 0)
		m.bytes = (ProtobufCBinaryData){len, (uint8_t *)bytes};
	return speak(fd, &q, mfd, 0) ? speak_answer(fd, ID_DECLARE, wait_ms) : INT32_MIN;
}

bool speak_load(int fd, uint64_t request, uint64_t step, int flags)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Load m = CKPT__LOAD__INIT;

	q.id = request;
	q.body_case = CKPT__REQUEST__BODY_LOAD;
	q.load = &m;
	m.step = step;
	return speak(fd, &q, -1, flags);
}

bool speak_load_end(int fd, uint64_t load, int flags)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__LoadEnd m = CKPT__LOAD_END__INIT;

	q.id = ID_LOAD_END;
	q.body_case = CKPT__REQUEST__BODY_LOAD_END;
	q.load_end = &m;
	m.load = load;
	return speak(fd, &q, -1, flags);
}

bool speak_wait(int fd, uint64_t request, uint64_t step, int what, int flags)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Wait m = CKPT__WAIT__INIT;

	q.id = request;
	q.body_case = CKPT__REQUEST__BODY_WAIT;
	q.wait = &m;
	m.step = step;
	m.what = (uint32_t)what;
	return speak(fd, &q, -1, flags);
}

bool speak_cancel(int fd, uint64_t request, int flags)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Cancel m = CKPT__CANCEL__INIT;

	q.id = ID_CANCEL;
	q.body_case = CKPT__REQUEST__BODY_CANCEL;
	q.cancel = &m;
	m.request = request;
	return speak(fd, &q, -1, flags);
}

bool speak_list(int fd, int flags)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__List m = CKPT__LIST__INIT;

	q.id = ID_LIST;
	q.body_case = CKPT__REQUEST__BODY_LIST;
	q.list = &m;
	return speak(fd, &q, -1, flags);
}

bool speak_admin(int fd, int verb, int flags)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Admin m = CKPT__ADMIN__INIT;

	q.id = ID_ADMIN;
	q.body_case = CKPT__REQUEST__BODY_ADMIN;
	q.admin = &m;
	m.verb = (Ckpt__Admin__Verb)verb;
	return speak(fd, &q, -1, flags);
}

/* ---- Around it ---- */

int speak_memfd(const void *bytes, size_t len)
{
	int fd = memfd_create("attack", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0 || write(fd, bytes, len) != (ssize_t)len ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_WRITE) != 0)
		_exit(1);
	return fd;
}

void speak_rest(unsigned ms)
{
	const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

	nanosleep(&t, NULL);
}
