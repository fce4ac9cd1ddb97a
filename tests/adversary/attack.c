/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "tests/adversary/attack.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <ckpt.h>

#include "base/alloc.h"
#include "base/conn.h"
#include "model/declaration.h"
#include "proto/session.pb-c.h"
#include "proto/session_page.h"
#include "tests/lib/silent_fuse.h"

/* ---- By hand ---- */

static void begun(const struct attack_options *o, char what)
{
	if (write(o->tell, &what, 1) != 1)
		_exit(1);
}

static void rest(unsigned ms)
{
	const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

	nanosleep(&t, NULL);
}

/* -1: not let in. */
static int enter(const struct attack_options *o)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(a.sun_path, sizeof(a.sun_path), "%s", o->socket);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0)
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

static bool send_bytes(int to, const void *bytes, size_t len, int fd, int flags)
{
	struct iovec iov = {(void *)bytes, len};
	char control[CMSG_SPACE(sizeof(int))] = {0};
	struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1};
	struct cmsghdr *cm;

	if (fd >= 0) {
		h.msg_control = control;
		h.msg_controllen = sizeof(control);
		cm = CMSG_FIRSTHDR(&h);
		cm->cmsg_level = SOL_SOCKET;
		cm->cmsg_type = SCM_RIGHTS;
		cm->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(cm), &fd, sizeof(int));
	}
	return sendmsg(to, &h, MSG_NOSIGNAL | flags) == (ssize_t)len;
}

static bool send_request(int to, const Ckpt__Request *q, int fd, int flags)
{
	static uint8_t buf[CONN_MESSAGE_MAX];
	size_t len = ckpt__request__get_packed_size(q);

	if (len > sizeof(buf))
		return false;
	ckpt__request__pack(q, buf);
	return send_bytes(to, buf, len, fd, flags);
}

/* Whatever has come, without its descriptors; false: the connection is over. */
static bool drain(int fd, int wait_ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	static char buf[CONN_MESSAGE_MAX];

	while (poll(&p, 1, wait_ms) > 0) {
		if (recv(fd, buf, sizeof(buf), MSG_DONTWAIT) <= 0)
			return errno == EAGAIN;
		wait_ms = 0;
	}
	return true;
}

static bool hello(int fd)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Hello h = CKPT__HELLO__INIT;

	q.id = 1;
	q.body_case = CKPT__REQUEST__BODY_HELLO;
	q.hello = &h;
	h.version_min = h.version_max = SESSION_VERSION;
	h.program = (char *)"attack";
	return send_request(fd, &q, -1, 0) && drain(fd, 1000);
}

static bool open_job(int fd, const char *job)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Open m = CKPT__OPEN__INIT;

	q.id = 2;
	q.body_case = CKPT__REQUEST__BODY_OPEN;
	q.open = &m;
	m.job = (char *)job;
	m.run_id = (char *)"run";
	m.world = 1;
	return send_request(fd, &q, -1, 0) && drain(fd, 5000);
}

static bool ask_admin(int fd, int verb, int flags)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Admin m = CKPT__ADMIN__INIT;

	q.id = 3;
	q.body_case = CKPT__REQUEST__BODY_ADMIN;
	q.admin = &m;
	m.verb = (Ckpt__Admin__Verb)verb;
	return send_request(fd, &q, -1, flags);
}

/* A frozen memfd. */
static int memfd_of(const void *bytes, size_t len)
{
	int fd = memfd_create("attack", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0 || write(fd, bytes, len) != (ssize_t)len ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_WRITE) != 0)
		_exit(1);
	return fd;
}

/* ---- What it is compared with ---- */

static void burn(const struct attack_options *o)
{
	begun(o, 'b');
	for (volatile uint64_t n = 0;; n++)
		;
}

/* ---- Descriptors ---- */

static int silent_file = -1;

static int mount_silent(const struct attack_options *o)
{
	char path[300];
	pid_t server;
	int r = mkdir(o->folder, 0755) == 0 ? 0 : -errno;

	if (r == 0)
		r = silent_fuse_mount(o->folder, &server);
	if (r < 0)
		return r;
	snprintf(path, sizeof(path), "%s/f", o->folder);
	silent_file = open(path, O_RDONLY | O_CLOEXEC);
	return silent_file < 0 ? -errno : 0;
}

/* Files whose close never ends. */
static void silent_files(const struct attack_options *o)
{
	bool first = true;

	for (;;) {
		int fd = enter(o);

		for (int i = 0; fd >= 0 && i < 4; i++)
			send_bytes(fd, "x", 1, silent_file, MSG_DONTWAIT);
		if (first)
			begun(o, 'b');
		first = false;
		rest(20);
		if (fd >= 0)
			close(fd);
	}
}

/* Gigabytes that are freed where their last descriptor is closed. */
static void large_memfds(const struct attack_options *o)
{
	bool first = true;

	for (;;) {
		int fd = enter(o), m = memfd_create("large", MFD_CLOEXEC);

		if (fd >= 0 && m >= 0 && fallocate(m, 0, 0, 1ll << 30) == 0)
			send_bytes(fd, "x", 1, m, 0);
		if (m >= 0)
			close(m);
		if (first)
			begun(o, 'b');
		first = false;
		drain(fd, 1000);
		if (fd >= 0)
			close(fd);
	}
}

/* ---- Questions ---- */

/* Jobs that the answers speak of, and events that they have made. */
static void make_jobs(const struct attack_options *o)
{
	enum { JOBS = 200 };
	char job[32];

	for (int i = 0; i < JOBS; i++) {
		int fd = enter(o);

		snprintf(job, sizeof(job), "many-%u-%d", o->number, i);
		if (fd < 0 || !hello(fd) || !open_job(fd, job))
			_exit(1);
		close(fd);
	}
}

/* Many questions at once, whose answers are dear to make. */
static void dear(const struct attack_options *o, int verb)
{
	enum { CONNS = 16 };
	int fds[CONNS];

	make_jobs(o);
	for (int i = 0; i < CONNS; i++)
		fds[i] = -1;
	for (bool first = true;; first = false) {
		for (int i = 0; i < CONNS; i++) {
			if (fds[i] < 0)
				fds[i] = enter(o);
			if (fds[i] >= 0 && first)
				hello(fds[i]);
			for (int k = 0; fds[i] >= 0 && k < 4; k++)
				ask_admin(fds[i], verb, MSG_DONTWAIT);
			if (fds[i] >= 0 && !drain(fds[i], 0)) {
				close(fds[i]);
				fds[i] = enter(o);
				if (fds[i] >= 0)
					hello(fds[i]);
			}
		}
		if (first)
			begun(o, 'b');
		rest(1);
	}
}

static void events_asked(const struct attack_options *o)
{
	dear(o, CKPT__ADMIN__VERB__EVENTS);
}

static void status_asked(const struct attack_options *o)
{
	dear(o, CKPT__ADMIN__VERB__STATUS);
}

/* The cheapest message, as often as it can be sent. */
static void messages(const struct attack_options *o)
{
	int fd = -1;
	bool first = true;

	for (;;) {
		if (fd < 0) {
			fd = enter(o);
			if (fd >= 0)
				hello(fd);
		}
		if (first)
			begun(o, 'b');
		first = false;
		if (fd < 0) {
			rest(1);
			continue;
		}
		for (int i = 0; i < 100; i++) {
			Ckpt__Request q = CKPT__REQUEST__INIT;
			Ckpt__Hello h = CKPT__HELLO__INIT;

			q.id = 9;
			q.body_case = CKPT__REQUEST__BODY_HELLO;
			q.hello = &h;
			h.version_min = h.version_max = SESSION_VERSION;
			h.program = (char *)"attack";
			send_request(fd, &q, -1, MSG_DONTWAIT);
		}
		if (!drain(fd, 0)) {
			close(fd);
			fd = -1;
		}
	}
}

/* Connections that say what they must and then nothing. */
static void idle_connections(const struct attack_options *o)
{
	for (int i = 0; i < 1000; i++) {
		int fd = enter(o);

		if (fd >= 0)
			hello(fd);
		else
			break;
	}
	begun(o, 'b');
	for (;;) { /* beyond the quota, again and again */
		int fd = enter(o);

		if (fd >= 0)
			close(fd);
		rest(1);
	}
}

/* ---- Declarations ---- */

/* Boxes that are disjoint in the last dimension alone, long and shifted in the others: in the order
 * in which they are sorted each lies beside all. */
static void *hostile(size_t *ret_len, struct digest *ret)
{
	enum { SHARDS = 60000 };
	struct declaration_builder *b;
	struct err e = {0};
	uint8_t *bytes;
	void *made;
	size_t len;

	if (declaration_builder_new((struct geometry)GEOMETRY_DEFAULT, &b) < 0)
		_exit(1);
	for (uint32_t i = 0; i < SHARDS; i++) {
		struct shard s = {.name = "t", .name_len = 1, .dtype = CKPT_U8};

		s.global.ndim = s.box.ndim = 3;
		s.global.dim[0] = s.global.dim[1] = 4 * SHARDS;
		s.global.dim[2] = SHARDS;
		s.box.offset[0] = i;
		s.box.length[0] = 2 * SHARDS;
		s.box.offset[1] = (i * 7919u) % SHARDS;
		s.box.length[1] = 2 * SHARDS;
		s.box.offset[2] = (i * 104729u) % SHARDS;
		s.box.length[2] = 1;
		if (declaration_add(b, &s, &e) < 0)
			_exit(1);
	}
	/* The builder would check it for as long as ckptd: the bytes are made once, before. */
	if (declaration_finish(b, &made, &len, &e) < 0)
		_exit(1);
	declaration_builder_free(b);
	bytes = made;
	*ret = declaration_digest(bytes, len);
	*ret_len = len;
	return bytes;
}

static void *hostile_bytes;
static size_t hostile_len;
static struct digest hostile_digest;

static int make_hostile(const struct attack_options *o)
{
	(void)o;
	if (!hostile_bytes)
		hostile_bytes = hostile(&hostile_len, &hostile_digest);
	return 0;
}

/* Each is checked, for a user that has ended before. */
static void declarations(const struct attack_options *o)
{
	char job[32];
	bool first = true;

	for (unsigned n = 0;; n++) {
		Ckpt__Request q = CKPT__REQUEST__INIT;
		Ckpt__Declare m = CKPT__DECLARE__INIT;
		int fd = enter(o), mfd = memfd_of(hostile_bytes, hostile_len);

		snprintf(job, sizeof(job), "hostile-%u-%u", o->number, n % 8);
		if (fd >= 0 && hello(fd) && open_job(fd, job)) {
			q.id = 5;
			q.body_case = CKPT__REQUEST__BODY_DECLARE;
			q.declare = &m;
			m.digest.len = sizeof(hostile_digest.b);
			m.digest.data = hostile_digest.b;
			m.in_fd = true;
			send_request(fd, &q, mfd, 0);
			drain(fd, 200);
		}
		if (first)
			begun(o, 'b');
		first = false;
		close(mfd);
		if (fd >= 0)
			close(fd);
	}
}

/* ---- Answers ---- */

/* Answers with a descriptor each, which nobody reads. */
static void unread_answers(const struct attack_options *o)
{
	bool first = true;
	char job[32];

	for (;;) {
		int fds[64];

		for (int i = 0; i < 64; i++) {
			Ckpt__Request q = CKPT__REQUEST__INIT;

			fds[i] = enter(o);
			snprintf(job, sizeof(job), "unread-%u-%d", o->number, i);
			if (fds[i] < 0 || !hello(fds[i]) || !open_job(fds[i], job))
				continue;
			q.id = 6;
			/* Its answer is an error or a page, a plan, a list: it is not read. */
			q.body_case = CKPT__REQUEST__BODY_LIST;
			q.list = &(Ckpt__List)CKPT__LIST__INIT;
			for (int k = 0; k < 2000; k++) {
				if (!send_request(fds[i], &q, -1, MSG_DONTWAIT) ||
				    !ask_admin(fds[i], CKPT__ADMIN__VERB__EVENTS, MSG_DONTWAIT))
					break;
			}
		}
		if (first)
			begun(o, 'b');
		first = false;
		rest(100);
		for (int i = 0; i < 64; i++)
			if (fds[i] >= 0)
				close(fds[i]);
	}
}

/* ---- The supervisor ---- */

/* Each datagram socket with an abstract name gets as much as its queue holds. */
static void supervisor_flood(const struct attack_options *o)
{
	static char line[512], names[64][128];
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	bool first = true;

	for (;;) {
		FILE *f = fopen("/proc/net/unix", "re");
		unsigned n = 0;

		while (f && n < 64 && fgets(line, sizeof(line), f)) {
			char *at = strchr(line, '@');

			if (at && sscanf(at + 1, "%127[^\n]", names[n]) == 1)
				n++;
		}
		if (f)
			fclose(f);
		if (first)
			begun(o, 'b');
		first = false;
		for (int round = 0; round < 10000; round++) {
			for (unsigned i = 0; i < n; i++) {
				struct sockaddr_un a = {.sun_family = AF_UNIX};
				size_t len = strlen(names[i]);

				if (len >= sizeof(a.sun_path) - 1)
					continue;
				memcpy(a.sun_path + 1, names[i], len);
				ignore_result((int)sendto(
					fd, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL,
					(struct sockaddr *)&a,
					(socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
						    len)));
			}
		}
	}
}

const struct attack attacks[] = {
	{"burn", burn, NULL},
	{"silent_files", silent_files, mount_silent},
	{"large_memfds", large_memfds, NULL},
	{"events", events_asked, NULL},
	{"status", status_asked, NULL},
	{"messages", messages, NULL},
	{"idle_connections", idle_connections, NULL},
	{"declarations", declarations, make_hostile},
	{"unread_answers", unread_answers, NULL},
	{"supervisor_flood", supervisor_flood, NULL},
};
const unsigned n_attacks = sizeof(attacks) / sizeof(attacks[0]);
