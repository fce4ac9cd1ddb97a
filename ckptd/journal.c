/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal.c - the native protocol of systemd's journal, written by hand: one datagram an entry,
 * each field as its name, a newline, the length of the value as 64 bits little-endian, the value
 * and a newline. That form takes any value; "NAME=value" would take none that holds a newline.
 *
 *   1. The socket is not connected: each datagram is sent to the path, so that a journal that was
 *      restarted gets the next one.
 *   2. Nothing waits for the journal. What it does not take the caller writes elsewhere.
 */
#include <config.h>

#include "ckptd/journal.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <syslog.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "ckptd/log.h"

enum { FIELDS_MAX = 6, HEAD_MAX = 32 };

struct journal {
	int fd;
	struct sockaddr_un addr;
};

int journal_open(const char *path, struct journal **ret)
{
	struct journal *j;

	assert(path[0] == '/' && strlen(path) < sizeof(j->addr.sun_path));
	j = alloc_zero(sizeof(*j));
	if (!j)
		return -ENOMEM;
	j->addr.sun_family = AF_UNIX;
	memcpy(j->addr.sun_path, path, strlen(path) + 1);
	j->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (j->fd < 0) {
		int r = -errno;

		alloc_free(j);
		return r;
	}
	*ret = j;
	return 0;
}

void journal_free(struct journal *j)
{
	if (!j)
		return;
	close(j->fd);
	alloc_free(j);
}

/* One entry as the parts of a datagram: three for each field. */
struct entry {
	struct iovec parts[3 * FIELDS_MAX];
	char heads[FIELDS_MAX][HEAD_MAX];
	size_t n;
};

static void add(struct entry *e, const char *name, const char *value, size_t len)
{
	char *head = e->heads[e->n];
	size_t name_len = strlen(name);

	assert(e->n < FIELDS_MAX && name_len + 1 + 8 <= HEAD_MAX);
	memcpy(head, name, name_len);
	head[name_len] = '\n';
	put_le64((uint8_t *)head + name_len + 1, len);
	e->parts[3 * e->n] = (struct iovec){head, name_len + 1 + 8};
	e->parts[3 * e->n + 1] = (struct iovec){(void *)value, len};
	e->parts[3 * e->n + 2] = (struct iovec){(void *)"\n", 1};
	e->n++;
}

static void add_text(struct entry *e, const char *name, const char *value)
{
	add(e, name, value, strlen(value));
}

int journal_send(const struct journal *j, int level, const struct log_about *about,
		 const char *text, size_t len)
{
	char priority[8], step[24];
	struct entry e = {.n = 0};
	struct msghdr h = {
		.msg_name = (void *)&j->addr, .msg_namelen = sizeof(j->addr), .msg_iov = e.parts};
	ssize_t sent;

	assert(level >= LOG_EMERG && level <= LOG_DEBUG && len > 0);
	snprintf(priority, sizeof(priority), "%d", level);
	add_text(&e, "PRIORITY", priority);
	add_text(&e, "SYSLOG_FACILITY", "3"); /* daemon, as systemd has it for standard error */
	add_text(&e, "SYSLOG_IDENTIFIER", "ckptd");
	add(&e, "MESSAGE", text, len);
	if (about && about->job)
		add_text(&e, "CKPT_JOB", about->job);
	if (about && about->has_step) {
		snprintf(step, sizeof(step), "%" PRIu64, about->step);
		add_text(&e, "CKPT_STEP", step);
	}
	h.msg_iovlen = 3 * e.n;
	do
		sent = sendmsg(j->fd, &h, MSG_DONTWAIT | MSG_NOSIGNAL); /* (2) */
	while (sent < 0 && errno == EINTR);
	return sent < 0 ? -errno : 0;
}
