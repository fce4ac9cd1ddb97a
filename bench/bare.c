/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bare.c - the limits of small saves: the system calls that must be, and nothing around them.
 *
 * bare_durable(), in one thread, what ckptd does to make one rank's save durable, in its order:
 *
 *   record   a new file in log/, written, fdatasync; linked to its name, the first name unlinked;
 *            fsync of log/
 *   shard    mkdir of the checkpoint; a file of spare/ opened by O_DIRECT, locked, renamed to it (a
 *            new one with its space allocated, the first time); image, footer and header written;
 *            fdatasync
 *   COMMIT   fsync of the checkpoint's folder; a new file in it, written, fdatasync, renamed; fsync
 *            of the folder and of the job's
 *
 * ckptd overlaps record and shard and changes threads in between. bare_retain() takes the one
 * before away as ckptd does, after DURABLE was reported: no part of the time.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "bench/trainer.h"

/* ---- A process that only answers; it ends with its asker ---- */

struct echo {
	int fd;
};

static void serve(int fd)
{
	char message[256];
	ssize_t n;

	while ((n = recv(fd, message, sizeof(message), 0)) > 0)
		if (send(fd, message, (size_t)n, MSG_NOSIGNAL) != n)
			break;
	_exit(0);
}

int echo_start(struct echo **ret, struct err *e)
{
	struct echo *x = alloc_zero(sizeof(*x));
	int pair[2];
	pid_t pid;

	if (!x)
		return err_code(e, -ENOMEM, "start a process that answers");
	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) != 0) {
		int r = -errno;

		alloc_free(x);
		return err_code(e, r, "start a process that answers");
	}
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(pair[0]);
		serve(pair[1]);
	}
	close(pair[1]);
	x->fd = pair[0];
	if (pid < 0) {
		int r = -errno;

		close(x->fd);
		alloc_free(x);
		return err_code(e, r, "start a process that answers");
	}
	*ret = x;
	return 0;
}

int echo_ping(struct echo *x)
{
	char message[128] = { 0 };

	if (send(x->fd, message, sizeof(message), MSG_NOSIGNAL) != (ssize_t)sizeof(message) ||
	    recv(x->fd, message, sizeof(message), 0) != (ssize_t)sizeof(message))
		return -EPIPE;
	return 0;
}

/* ---- Files ---- */

#define BLOCK 4096u
#define FOOTER (2 * BLOCK)

static int failed(const char *what, struct err *e)
{
	return err_code(e, -errno, "bare %s", what);
}

static int sync_folder(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), r;

	if (fd < 0)
		return -1;
	r = fsync(fd);
	close(fd);
	return r;
}

/* A new file with len bytes, synced. */
static int write_file(const char *path, const void *bytes, size_t len)
{
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600), r;

	if (fd < 0)
		return -1;
	r = pwrite(fd, bytes, len, 0) == (ssize_t)len ? fdatasync(fd) : -1;
	close(fd);
	return r;
}

static int record(const char *folder, const uint8_t *bytes, uint64_t step, struct err *e)
{
	char log[260], temp[280], path[280];

	snprintf(log, sizeof(log), "%s/log", folder);
	snprintf(temp, sizeof(temp), "%s/tmp", log);
	snprintf(path, sizeof(path), "%s/%llu", log, (unsigned long long)step);
	if (write_file(temp, bytes, 176) != 0 || link(temp, path) != 0 || unlink(temp) != 0 ||
	    sync_folder(log) != 0)
		return failed("log record", e);
	return 0;
}

static int open_shard(const char *spare, const char *path, uint64_t bytes)
{
	struct flock l = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	int fd = open(spare, O_RDWR | O_DIRECT | O_CLOEXEC);

	if (fd >= 0)
		return fcntl(fd, F_OFD_SETLK, &l) == 0 && rename(spare, path) == 0 ? fd : -1;
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600);
	return fd >= 0 && fallocate(fd, 0, 0, (off_t)(bytes + BLOCK + FOOTER)) == 0 ? fd : -1;
}

static int shard(const char *folder, const char *job, const uint8_t *image, uint64_t bytes,
		 struct err *e)
{
	char spare[260], path[280];
	int fd, r = -1;

	snprintf(spare, sizeof(spare), "%s/spare", folder);
	snprintf(path, sizeof(path), "%s/shard", job);
	if (mkdir(job, 0700) != 0)
		return failed("mkdir", e);
	fd = open_shard(spare, path, bytes);
	if (fd >= 0 && pwrite(fd, image, bytes, BLOCK) == (ssize_t)bytes &&
	    pwrite(fd, image, FOOTER, (off_t)(bytes + BLOCK)) == FOOTER &&
	    pwrite(fd, image, BLOCK, 0) == BLOCK)
		r = fdatasync(fd);
	if (r != 0)
		r = failed("shard file", e);
	if (fd >= 0)
		close(fd);
	return r;
}

static int commit(const char *folder, const char *job, const uint8_t *bytes, struct err *e)
{
	char temp[280], path[280];

	snprintf(temp, sizeof(temp), "%s/tmp", job);
	snprintf(path, sizeof(path), "%s/COMMIT", job);
	if (sync_folder(job) != 0 || write_file(temp, bytes, 496) != 0 || rename(temp, path) != 0 ||
	    sync_folder(job) != 0 || sync_folder(folder) != 0)
		return failed("COMMIT", e);
	return 0;
}

static void job_path(const char *folder, uint64_t step, char buf[260])
{
	snprintf(buf, 260, "%s/%llu", folder, (unsigned long long)step);
}

int bare_prepare(const char *folder, struct err *e)
{
	char log[260];

	snprintf(log, sizeof(log), "%s/log", folder);
	return mkdir(folder, 0700) == 0 && mkdir(log, 0700) == 0 ? 0 : failed("folders", e);
}

int bare_durable(const char *folder, const uint8_t *state, uint64_t bytes, uint64_t step,
		 struct err *e)
{
	char job[260];
	int r;

	job_path(folder, step, job);
	r = record(folder, state, step, e);
	if (r == 0)
		r = shard(folder, job, state, bytes, e);
	return r < 0 ? r : commit(folder, job, state, e);
}

int bare_retain(const char *folder, uint64_t step, struct err *e)
{
	char job[260], path[280], spare[260];

	job_path(folder, step, job);
	snprintf(path, sizeof(path), "%s/COMMIT", job);
	snprintf(spare, sizeof(spare), "%s/spare", folder);
	if (unlink(path) != 0 || sync_folder(job) != 0)
		return failed("unlink of COMMIT", e);
	snprintf(path, sizeof(path), "%s/shard", job);
	if (rename(path, spare) != 0 || rmdir(job) != 0 || sync_folder(folder) != 0)
		return failed("recycling", e);
	return 0;
}
