/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.c - starts `ckptd --user` in the run's folder and looks at it from outside.
 *
 * CPU time is the kernel's own count (clock_getcpuclockid), to the nanosecond, of all threads of
 * ckptd and of its supervisor. Resident memory is the sum of Rss of all their mappings but those of
 * slots, which are the users' state (/proc/PID/smaps); shared libraries count in full.
 */
#include <config.h>

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench/server.h"

#define START_MS 20000
#define SETS 4

static void become_ckptd(const struct server *s, const char *program, const char *const sets[SETS])
{
	const char *argv[6 + 2 * SETS + 1] = { "ckptd",  "--user", "--socket", s->socket,
					       "--data", s->data };
	int n = 6, log = open(s->log, O_WRONLY | O_CREAT | O_APPEND, 0600);

	if (log < 0 || dup2(log, STDERR_FILENO) < 0 || dup2(log, STDOUT_FILENO) < 0)
		_exit(126);
	for (int i = 0; i < SETS && sets[i]; i++) {
		argv[n++] = "--set";
		argv[n++] = sets[i];
	}
	argv[n] = NULL;
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	execv(program, (char *const *)argv);
	_exit(127);
}

static bool answers(const char *path)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	bool up;

	strcpy(a.sun_path, path);
	up = fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0;
	if (fd >= 0)
		close(fd);
	return up;
}

/* The one child of a process; 0: it has none. */
static pid_t child_of(pid_t parent)
{
	DIR *d = opendir("/proc");
	struct dirent *entry;
	pid_t found = 0;

	while (d && !found && (entry = readdir(d))) {
		char path[300], text[300] = "";
		int pid = atoi(entry->d_name), ppid = 0;
		FILE *f;

		if (pid <= 0)
			continue;
		snprintf(path, sizeof(path), "/proc/%s/stat", entry->d_name);
		f = fopen(path, "re");
		if (f && fgets(text, sizeof(text), f) && strrchr(text, ')') &&
		    sscanf(strrchr(text, ')') + 1, " %*c %d", &ppid) == 1 && ppid == parent)
			found = pid;
		if (f)
			fclose(f);
	}
	if (d)
		closedir(d);
	return found;
}

/* What it said last, to be shown with our own sentence. */
static int failed(const struct server *s, const char *what, struct err *e)
{
	char line[300] = "", last[300] = "it said nothing";
	FILE *f = fopen(s->log, "re");

	while (f && fgets(line, sizeof(line), f))
		snprintf(last, sizeof(last), "%.*s", (int)strcspn(line, "\n"), line);
	if (f)
		fclose(f);
	return err_set(e, CKPT_EUNAVAILABLE, "%s: %.250s", what, last);
}

static int wait_ready(struct server *s, struct err *e)
{
	uint64_t until = now_ns() + START_MS * 1000000ull;

	while (!answers(s->socket)) {
		if (waitpid(s->supervisor, NULL, WNOHANG) != 0) {
			s->supervisor = 0;
			return failed(s, "ckptd ended at its start", e);
		}
		if (now_ns() > until)
			return failed(s, "ckptd does not answer", e);
		pause_ms(10);
	}
	s->ckptd = child_of(s->supervisor);
	return s->ckptd ? 0 : err_set(e, -ESRCH, "the supervisor has no ckptd");
}

int server_start(struct server *s, const struct bench *b, bool fresh, const char *const sets[SETS],
		 struct err *e)
{
	static unsigned number;
	int r;

	if (fresh)
		snprintf(s->data, sizeof(s->data), "%s/data-%u", b->folder, ++number);
	snprintf(s->socket, sizeof(s->socket), "%s/socket", b->folder);
	snprintf(s->log, sizeof(s->log), "%s/log", b->folder);
	if (strlen(s->socket) >= sizeof(((struct sockaddr_un *)0)->sun_path))
		return err_set(e, -ENAMETOOLONG, "'%.120s' is too long for a socket: run this in "
			       "another folder", s->socket);
	unlink(s->socket);
	s->supervisor = fork();
	if (s->supervisor == 0)
		become_ckptd(s, b->ckptd, sets);
	if (s->supervisor < 0)
		return err_code(e, -errno, "start ckptd");
	r = wait_ready(s, e);
	if (r < 0)
		server_stop(s);
	return r;
}

void server_stop(struct server *s)
{
	if (s->supervisor <= 0)
		return;
	kill(s->supervisor, SIGTERM);
	while (waitpid(s->supervisor, NULL, 0) < 0 && errno == EINTR)
		;
	s->supervisor = 0;
}

int server_shard(const struct server *s, int rank, char ret[300], struct err *e)
{
	char pattern[300];
	glob_t g = {0};
	int r = 0;

	snprintf(pattern, sizeof(pattern), "%s/jobs/*/*/rank-%d.shard", s->data, rank);
	if (glob(pattern, GLOB_NOSORT, NULL, &g) != 0 || g.gl_pathc != 1)
		r = err_set(e, -ENOENT, "'%.200s' should be one file", pattern);
	else
		snprintf(ret, 300, "%s", g.gl_pathv[0]);
	globfree(&g);
	return r;
}

static int cpu_of(pid_t pid, uint64_t *sum, struct err *e)
{
	struct timespec t;
	clockid_t clock;
	int r = clock_getcpuclockid(pid, &clock);

	if (r != 0 || clock_gettime(clock, &t) != 0)
		return err_code(e, r ? -r : -errno, "read the CPU time of process %d", (int)pid);
	*sum += (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
	return 0;
}

int server_cpu(const struct server *s, uint64_t *ret_ns, struct err *e)
{
	uint64_t sum = 0;
	int r = cpu_of(s->supervisor, &sum, e);

	if (r == 0)
		r = cpu_of(s->ckptd, &sum, e);
	if (r == 0)
		*ret_ns = sum;
	return r;
}

static int rss_of(pid_t pid, uint64_t *sum, struct err *e)
{
	char path[64], line[512];
	bool slot = false;
	unsigned long kib;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/smaps", (int)pid);
	f = fopen(path, "re");
	if (!f)
		return err_code(e, -errno, "open '%s'", path);
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "Rss: %lu kB", &kib) == 1)
			*sum += slot ? 0 : kib << 10;
		else if (strchr(line, '-') && strspn(line, "0123456789abcdef") > 0)
			slot = strstr(line, "/memfd:slot.") != NULL; /* a mapping's first line */
	}
	fclose(f);
	return 0;
}

int server_rss(const struct server *s, uint64_t *ret, struct err *e)
{
	uint64_t sum = 0;
	int r = rss_of(s->supervisor, &sum, e);

	if (r == 0)
		r = rss_of(s->ckptd, &sum, e);
	if (r == 0)
		*ret = sum;
	return r;
}
