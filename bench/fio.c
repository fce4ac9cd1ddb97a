/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fio.c - runs fio for one cell: O_DIRECT, sequential, one file, fsync at the end inside the time.
 *
 * By io_uring, by libaio where a container forbids it. The file of writes over an existing file is
 * made by the first of them, that of reads too, before any time is taken.
 */
#include <config.h>

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "bench/fio.h"
#include "storage/disk_posix.h"

#define OUTPUT_MAX (1u << 20)
#define CELL_RUNS 3

void fio_name(const struct fio_cell *c, char *buf, size_t size)
{
	snprintf(buf, size, "fio %s %d MiB x %d%s", c->read ? "O_DIRECT read" : "O_DIRECT write",
		 c->mib, c->depth, c->read ? "" : c->fresh ? ", new file" : ", over a file");
}

static void become_fio(const struct fio_cell *c, const char *file, uint64_t bytes, int out)
{
	char name[260], bs[32], depth[32], size[40], rw[16], engine[32];
	const char *argv[] = { "fio", "--name=limit", name, rw, bs, depth, size, engine,
			       "--direct=1", "--end_fsync=1", "--overwrite=0", "--thread",
			       "--output-format=json", NULL };

	snprintf(name, sizeof(name), "--filename=%s", file);
	snprintf(rw, sizeof(rw), "--rw=%s", c->read ? "read" : "write");
	snprintf(bs, sizeof(bs), "--bs=%dM", c->mib);
	snprintf(depth, sizeof(depth), "--iodepth=%d", c->depth);
	snprintf(size, sizeof(size), "--size=%llu", (unsigned long long)bytes);
	snprintf(engine, sizeof(engine), "--ioengine=%s",
		 disk_uring_usable(NULL) ? "io_uring" : "libaio");
	if (dup2(out, STDOUT_FILENO) < 0)
		_exit(126);
	execvp("fio", (char *const *)argv);
	_exit(127);
}

static size_t read_all(int fd, char *buf, size_t size)
{
	size_t len = 0;
	ssize_t n;

	while (len + 1 < size && ((n = read(fd, buf + len, size - 1 - len)) > 0 ||
				  (n < 0 && errno == EINTR)))
		len += n > 0 ? (size_t)n : 0;
	buf[len] = '\0';
	return len;
}

static int parse(const char *text, bool read, struct fio_result *ret, struct err *e)
{
	const char *start = strchr(text, '{');
	json_t *root = start ? json_loads(start, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
	json_t *job = json_array_get(json_object_get(root, "jobs"), 0);
	json_t *io = json_object_get(job, read ? "read" : "write");
	double bw = json_number_value(json_object_get(io, "bw_bytes"));
	double run = json_number_value(json_object_get(io, "runtime")) / 1e3;

	ret->gib_s = bw / GIB;
	ret->cpu_s = run / 100 * (json_number_value(json_object_get(job, "usr_cpu")) +
				  json_number_value(json_object_get(job, "sys_cpu")));
	json_decref(root);
	return bw > 0 ? 0 : err_set(e, -EPROTO, "fio gave no result: %.200s", text);
}

static int run(const struct fio_cell *c, const char *file, uint64_t bytes, struct fio_result *ret,
	       struct err *e)
{
	char *text CLEANUP_FREE = alloc_zero(OUTPUT_MAX);
	int out[2], status = 0;
	pid_t pid;

	if (!text)
		return err_code(e, -ENOMEM, "run fio");
	if (pipe(out) != 0)
		return err_code(e, -errno, "run fio");
	pid = fork();
	if (pid == 0)
		become_fio(c, file, bytes, out[1]);
	close(out[1]);
	if (pid > 0) {
		read_all(out[0], text, OUTPUT_MAX);
		while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
			;
	}
	close(out[0]);
	if (pid < 0)
		return err_code(e, -EAGAIN, "run fio");
	if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
		return err_set(e, -ENOENT, "fio is the limit of this case and is not installed "
			       "(apt-get install fio)");
	if (status != 0)
		return err_set(e, -EIO, "fio failed: %.250s", text);
	return parse(text, c->read, ret, e);
}

int fio_run(const struct bench *b, const struct fio_cell *c, uint64_t bytes,
	    struct fio_result *ret, struct err *e)
{
	struct fio_cell make = { .mib = 4, .depth = 4 };
	char file[240];
	struct stat st;
	int r = 0;

	snprintf(file, sizeof(file), "%s/fio.%s", b->folder, c->fresh ? "new" : "old");
	if (c->fresh)
		unlink(file);
	else if (stat(file, &st) != 0 || (uint64_t)st.st_size < bytes)
		r = run(&make, file, bytes, ret, e);
	if (r == 0)
		r = run(c, file, bytes, ret, e);
	if (c->fresh)
		unlink(file);
	return r;
}

static int measure_cell(const struct bench *b, const struct fio_cell *c, uint64_t bytes,
			double *ret, struct err *e)
{
	double gib_s[CELL_RUNS];
	struct fio_result x;
	int r = 0;

	for (int i = 0; i < CELL_RUNS && r == 0; i++) {
		r = fio_run(b, c, bytes, &x, e);
		gib_s[i] = x.gib_s;
	}
	if (r == 0)
		*ret = median(gib_s, CELL_RUNS);
	return r;
}

int fio_best(const struct bench *b, enum fio_kind kind, uint64_t bytes, struct fio_cell *ret,
	     double *ret_gib_s, struct err *e)
{
	double best = 0, here = 0;
	char name[64];
	int n = 0;

	for (int fresh = kind == FIO_WRITE_NEW; fresh <= (kind != FIO_READ); fresh++) {
		for (int mib = 1; mib <= 4; mib *= 2) {
			for (int depth = 2; depth <= 8; depth *= 2, n++) {
				struct fio_cell c = {kind == FIO_READ, fresh, mib, depth};
				int r = measure_cell(b, &c, bytes, &here, e);

				if (r < 0)
					return r;
				if (here > best) {
					best = here;
					*ret = c;
				}
			}
		}
	}
	fio_name(ret, name, sizeof(name));
	say(b, "%20s calibration: the best of %d cells is %s, %.2f GiB/s", "", n, name, best);
	if (ret_gib_s)
		*ret_gib_s = best;
	return 0;
}
