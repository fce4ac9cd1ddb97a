/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_fake_ckptd.c - answers ckptctl as ckptd would, from a file, and prints what it was asked.
 * Usage: test_fake_ckptd SOCKET STATUS [MODE]. Ends when its stdin does. Answers, and modes:
 *
 *   STATUS, LIST  the file's contents; in a memfd when they are long
 *   GC            a plan of two steps
 *   TOKEN         a short one
 *   REMOVE        step 30 is refused with -EBUSY, step 25 once with -EAGAIN, the rest is done
 *   refuse        ends the connection at once
 *   refuse-once   only the first time
 *   starting      has read no jobs yet, three times; stuck: for good
 *   cut           ends the connection instead of answering Admin
 *   silent        sends garbage instead of an answer
 *
 * Before each answer comes one that nobody asked for, with id 0.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/conn.h"
#include "proto/session.pb-c.h"
#include "proto/session_page.h"
#include "tests/lib/send_fds.h"

#define INLINE_MAX (48u << 10)

struct fake {
	const char *status, *mode;
	int conn;
	bool again; /* it was said */
	int starting; /* so often it says that it is */
};

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void send_reply(struct fake *f, const Ckpt__Reply *reply, int fd)
{
	uint8_t buf[CONN_MESSAGE_MAX];
	size_t len = ckpt__reply__get_packed_size(reply);

	assert(len <= sizeof(buf));
	ckpt__reply__pack(reply, buf);
	if (send_fd_copies(f->conn, buf, len, fd, fd >= 0, 0) < 0)
		die("send");
}

static void send_unasked(struct fake *f)
{
	Ckpt__Reply reply = CKPT__REPLY__INIT;

	reply.code = -EIO;
	reply.text = (char *)"nobody asked";
	send_reply(f, &reply, -1);
}

static void send_text(struct fake *f, uint64_t id, char *text, size_t len)
{
	Ckpt__Reply reply = CKPT__REPLY__INIT;
	Ckpt__AdminReply body = CKPT__ADMIN_REPLY__INIT;
	int fd = -1;

	reply.id = id;
	reply.body_case = CKPT__REPLY__BODY_ADMIN;
	reply.admin = &body;
	if (len <= INLINE_MAX) {
		body.json = (ProtobufCBinaryData){ len, (uint8_t *)text };
	} else {
		fd = memfd_create("answer", MFD_CLOEXEC);
		if (fd < 0 || write(fd, text, len) != (ssize_t)len)
			die("memfd");
		body.in_fd = true;
	}
	send_reply(f, &reply, fd);
	if (fd >= 0)
		close(fd);
}

static void send_status(struct fake *f, uint64_t id)
{
	static char text[1 << 20], starts[] = "{\"schema\":2,\"ready\":false,\"jobs\":[]}";
	FILE *file = fopen(f->status, "r");
	size_t len;

	if (!file)
		die(f->status);
	len = fread(text, 1, sizeof(text), file);
	fclose(file);
	if (f->starting > 0 && f->starting-- > 0)
		send_text(f, id, starts, strlen(starts));
	else
		send_text(f, id, text, len);
}

static void answer_remove(struct fake *f, uint64_t id, uint64_t step)
{
	Ckpt__Reply reply = CKPT__REPLY__INIT;

	reply.id = id;
	if (step == 30) {
		reply.code = -EBUSY;
		reply.text = (char *)"step 30 is the base of the current epoch; it stays";
	} else if (step == 25 && !f->again) {
		reply.code = -EAGAIN;
		reply.text = (char *)"another checkpoint is just being removed";
		f->again = true;
	}
	send_reply(f, &reply, -1);
}

static void answer_admin(struct fake *f, uint64_t id, const Ckpt__Admin *a)
{
	static char plan[] = "{\"schema\":2,\"job\":\"alpha\",\"plan\":["
			     "{\"step\":20,\"attempt\":\"\",\"expire\":true,\"because\":\"\","
			     "\"bytes\":2048},{\"step\":30,\"attempt\":\"\",\"expire\":false,"
			     "\"because\":\"pinned\",\"bytes\":1024}]}";
	static char token[] = "{\"schema\":2,\"job\":\"alpha\",\"id\":\"\","
			      "\"token\":\"00ff\"}";
	char hex[65] = "";

	hex_format(hex, a->attempt.data, min_u64(a->attempt.len, 32));
	printf("admin %s job '%s' step %" PRIu64 " attempt '%s'%s\n",
	       protobuf_c_enum_descriptor_get_value(&ckpt__admin__verb__descriptor,
						    (int)a->verb)->name,
	       a->job, a->step, hex, a->dry_run ? " dry" : "");
	fflush(stdout);
	send_unasked(f);
	switch ((int)a->verb) {
	case CKPT__ADMIN__VERB__STATUS:
	case CKPT__ADMIN__VERB__LIST:
		send_status(f, id);
		break;
	case CKPT__ADMIN__VERB__GC:
		send_text(f, id, plan, strlen(plan));
		break;
	case CKPT__ADMIN__VERB__TOKEN:
		send_text(f, id, token, strlen(token));
		break;
	default:
		answer_remove(f, id, a->verb == CKPT__ADMIN__VERB__REMOVE ? a->step : 0);
	}
}

static void answer_hello(struct fake *f, uint64_t id, const Ckpt__Hello *h)
{
	Ckpt__Reply reply = CKPT__REPLY__INIT;
	Ckpt__HelloReply body = CKPT__HELLO_REPLY__INIT;

	assert(h->version_min <= SESSION_VERSION && h->version_max >= SESSION_VERSION);
	body.version = SESSION_VERSION;
	reply.id = id;
	reply.body_case = CKPT__REPLY__BODY_HELLO;
	reply.hello = &body;
	send_reply(f, &reply, -1);
}

/* False: the connection is to be ended. */
static bool answer(struct fake *f, const Ckpt__Request *q)
{
	if (q->body_case == CKPT__REQUEST__BODY_HELLO) {
		answer_hello(f, q->id, q->hello);
		return true;
	}
	assert(q->body_case == CKPT__REQUEST__BODY_ADMIN);
	if (strcmp(f->mode, "cut") == 0)
		return false;
	if (strcmp(f->mode, "silent") == 0)
		return send(f->conn, "\xff\xff\xff", 3, MSG_NOSIGNAL) == 3;
	answer_admin(f, q->id, q->admin);
	return true;
}

static void serve(struct fake *f)
{
	uint8_t buf[CONN_MESSAGE_MAX];
	bool on = true;

	while (on) {
		ssize_t n = recv(f->conn, buf, sizeof(buf), 0);
		Ckpt__Request *q = n > 0 ? ckpt__request__unpack(NULL, (size_t)n, buf) : NULL;

		on = q && answer(f, q);
		if (q)
			ckpt__request__free_unpacked(q, NULL);
	}
	close(f->conn);
}

int main(int argc, char **argv)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct pollfd p[2] = { { .fd = STDIN_FILENO, .events = POLLIN } };
	struct fake f = { 0 };

	if (argc < 3 || strlen(argv[1]) >= sizeof(addr.sun_path))
		return 2;
	f.status = argv[2];
	f.mode = argc > 3 ? argv[3] : "";
	f.starting = strcmp(f.mode, "starting") == 0 ? 3
		     : strcmp(f.mode, "stuck") == 0  ? INT_MAX
						     : 0;
	strcpy(addr.sun_path, argv[1]);
	p[1] = (struct pollfd){ .fd = socket(AF_UNIX, SOCK_SEQPACKET, 0), .events = POLLIN };
	if (p[1].fd < 0 || bind(p[1].fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ||
	    listen(p[1].fd, 4) < 0)
		die(argv[1]);
	while (poll(p, 2, -1) > 0 && !p[0].revents) {
		f.conn = accept(p[1].fd, NULL, NULL);
		if (f.conn < 0)
			die("accept");
		if (strncmp(f.mode, "refuse", 6) != 0)
			serve(&f);
		else
			close(f.conn);
		if (strcmp(f.mode, "refuse-once") == 0)
			f.mode = "";
	}
	return 0;
}
