/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predecessor.c - waits for a ckptd that was killed to give back its socket and LOCK.
 *
 * The kernel closes the descriptors of a killed process after it has freed its memory: a quarter of
 * a second per GiB, in which the socket still takes connections and LOCK is still held. Who starts
 * the next ckptd right after the kill should not have to know that.
 *
 *   1. A holder that is ending is waited for up to ENDING_NS. What counts is the kernel's word in
 *      /proc: it is gone, a zombie, or has PF_EXITING.
 *   2. Any other holder is given GRACE_NS: a signal may be on its way to it, or its child between
 *      fork and exec has a copy of the descriptor. A ckptd that lives is not waited for any longer.
 *   3. Nothing is taken and nothing decided here.
 *
 * The control thread, before its loop runs. Failure modes: what cannot be looked at is not waited
 * for.
 */
#include <config.h>

#include "ckptd/predecessor.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "ckptd/processes.h"
#include "storage/beneath.h"

#define GRACE_NS  2000000000u
#define ENDING_NS 60000000000u
#define LOOK_MS   20

enum { FREE = -1 }; /* a holder, beside a pid and 0, one that is not known */

typedef int holder_fn(const void *arg);

static uint64_t now_ns(void)
{
	struct timespec t;
	int r = clock_gettime(CLOCK_MONOTONIC, &t);

	assert(r == 0);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static bool is_told_to_stop(void)
{
	sigset_t set;

	return sigpending(&set) == 0 &&
	       (sigismember(&set, SIGTERM) == 1 || sigismember(&set, SIGINT) == 1);
}

/* FREE, or the holder as far as it is known. One that lives is not asked again (2). */
static int look_again(holder_fn *look, const void *arg, int known)
{
	int pid;

	if (known > 0 && !process_is_ending(known))
		return known;
	pid = look(arg);
	return pid == 0 && known > 0 ? known : pid;
}

static void wait_for(holder_fn *look, const void *arg, const char *what, struct log *log)
{
	uint64_t started = now_ns();
	bool ending = false, said = false;
	int pid = 0;

	for (;;) {
		pid = look_again(look, arg, pid);
		ending = pid > 0 && process_is_ending(pid);
		if (pid == FREE || is_told_to_stop() ||
		    now_ns() - started >= (ending ? ENDING_NS : GRACE_NS))
			return;
		if (ending && !said)
			log_print(log, LOG_NOTICE,
				  "%s is still held by process %d, which is ending: waiting for it",
				  what, pid);
		said = said || ending;
		ignore_result(poll(NULL, 0, LOOK_MS)); /* a signal only makes it look sooner */
	}
}

/* ---- The socket ---- */

int predecessor_of_socket(int fd)
{
	struct ucred cred = {0};
	socklen_t len = sizeof(cred);

	/* Of whoever called listen(), and not of a child that has a copy. */
	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) == 0 ? cred.pid : 0;
}

static int socket_holder(const void *arg)
{
	const struct sockaddr_un *addr = arg;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int pid = FREE;

	if (fd < 0)
		return FREE;
	if (connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) == 0)
		pid = predecessor_of_socket(fd);
	else if (errno == EAGAIN)
		pid = 0; /* its queue is full */
	close(fd);
	return pid;
}

void predecessor_wait_socket(const struct sockaddr_un *addr, struct log *log)
{
	char what[sizeof(addr->sun_path) + 16];

	snprintf(what, sizeof(what), "socket '%s'", addr->sun_path);
	wait_for(socket_holder, addr, what, log);
}

/* ---- LOCK ---- */

static int lock_holder(const void *arg)
{
	struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	char text[32] = "";
	struct beneath folder;
	int fd, pid = FREE;
	long said;

	if (beneath_open(arg, &folder, NULL) < 0)
		return FREE;
	fd = beneath_file(&folder, "LOCK", O_RDWR | O_CLOEXEC);
	beneath_close(&folder);
	if (fd < 0)
		return FREE;
	if (fcntl(fd, F_OFD_GETLK, &l) == 0 && l.l_type != F_UNLCK) {
		/* A lock of an open file has no owner; its holder has written its pid into it. */
		said = read(fd, text, sizeof(text) - 1) > 0 ? strtol(text, NULL, 10) : 0;
		pid = said > 0 && said <= INT_MAX ? (int)said : 0;
	}
	close(fd);
	return pid;
}

void predecessor_wait_lock(const char *data, struct log *log)
{
	char what[220];

	snprintf(what, sizeof(what), "data folder '%.150s'", data);
	wait_for(lock_holder, data, what, log);
}
