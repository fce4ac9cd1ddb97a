/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rig_run.c - each test in a child, some at a time. The child is the subreaper of all that it
 * starts, and kills what is left of it, by pid, before it ends.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "tests/lib/rig.h"

#define WHY_MAX 600
#define NOTES_MAX 2000
#define TEST_SECONDS 170
#define JOBS_MAX 16
#define LOG_LINES 25

enum result { PASSED, FAILED, SKIPPED };

struct verdict {
	enum result result;
	char why[WHY_MAX], notes[NOTES_MAX];
	char log[16384];
};

/* Of the child that runs one test; fixed before it begins. */
static struct verdict *current;
static struct rig *current_rig;

static void keep_log(struct verdict *v)
{
	FILE *f = current_rig ? fopen(current_rig->log, "re") : NULL;
	size_t n = f ? fread(v->log, 1, sizeof(v->log) - 1, f) : 0;

	/* The end of a log that is longer. */
	while (f && n == sizeof(v->log) - 1) {
		memmove(v->log, v->log + n / 2, n - n / 2);
		n = n - n / 2 + fread(v->log + n - n / 2, 1, n / 2, f);
	}
	v->log[n] = '\0';
	if (f)
		fclose(f);
}

static void kill_children(void)
{
	char path[64], text[512] = "";
	int fd;

	snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
	for (int i = 0; i < 50; i++) {
		ssize_t n = 0;
		char *save = NULL;

		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd >= 0) {
			n = read(fd, text, sizeof(text) - 1);
			close(fd);
		}
		if (n <= 0)
			return;
		text[n] = '\0';
		for (char *p = strtok_r(text, " ", &save); p; p = strtok_r(NULL, " ", &save))
			kill((pid_t)atoi(p), SIGKILL);
		while (waitpid(-1, NULL, 0) > 0)
			;
	}
}

static _Noreturn void end(enum result result)
{
	current->result = result;
	if (result == FAILED)
		keep_log(current);
	kill_children();
	if (current_rig && current_rig->dir[0] && !getenv("CKPT_TEST_KEEP"))
		rig_fini(current_rig);
	_exit(0);
}

void rig_fail(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(current->why, sizeof(current->why), fmt, ap);
	va_end(ap);
	end(FAILED);
}

void rig_skip(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(current->why, sizeof(current->why), fmt, ap);
	va_end(ap);
	end(SKIPPED);
}

void rig_note(const char *fmt, ...)
{
	size_t n = strlen(current->notes);
	va_list ap;

	va_start(ap, fmt);
	if (n + 4 < NOTES_MAX) {
		n += (size_t)snprintf(current->notes + n, NOTES_MAX - n, "#   ");
		vsnprintf(current->notes + n, NOTES_MAX - n - 1, fmt, ap);
		strcat(current->notes, "\n");
	}
	va_end(ap);
}

static pid_t begin(const struct rig_test *test, struct verdict *v)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid != 0)
		return pid;
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGPIPE, SIG_IGN);
	alarm(TEST_SECONDS);
	v->result = FAILED;
	snprintf(v->why, sizeof(v->why), "it was killed, or took longer than %d s", TEST_SECONDS);
	current = v;
	current_rig = alloc_zero(sizeof(*current_rig));
	if (!current_rig)
		_exit(1);
	rig_init(current_rig, NULL);
	current_rig->arg = test->arg;
	test->fn(current_rig);
	rig_check_log(current_rig);
	end(PASSED);
}

static bool chosen(const struct rig_test *test, int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], test->name) == 0)
			return true;
	return argc < 2;
}

static int report(const struct rig_test *test, const struct verdict *v)
{
	printf("%s", v->notes);
	switch (v->result) {
	case PASSED:
		printf("ok %s\n", test->name);
		break;
	case SKIPPED:
		printf("skip %s %s\n", test->name, v->why);
		break;
	case FAILED:
		printf("not ok %s: %s\n", test->name, v->why);
		printf("%s", v->log[0] ? "--- the log of ckptd\n" : "");
		printf("%s", v->log);
		break;
	}
	fflush(stdout);
	return v->result == FAILED;
}

int rig_run(const struct rig_test *tests, size_t n, unsigned jobs, int argc, char **argv)
{
	size_t bytes = n * sizeof(struct verdict), next = 0, running = 0;
	struct verdict *v = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
				 -1, 0);
	pid_t *pids = alloc_array(n, sizeof(*pids));
	int bad = 0, status;

	if (v == MAP_FAILED || !pids)
		return 1;
	while (next < n || running > 0) {
		pid_t pid;

		if (next < n && !chosen(&tests[next], argc, argv)) {
			next++;
			continue;
		}
		if (next < n && running < jobs) {
			pids[next] = begin(&tests[next], &v[next]);
			running += pids[next] > 0;
			next++;
			continue;
		}
		pid = waitpid(-1, &status, 0);
		for (size_t i = 0; i < next; i++)
			if (pids[i] == pid && pid > 0) {
				running--;
				bad += report(&tests[i], &v[i]);
			}
	}
	alloc_free(pids);
	munmap(v, bytes);
	return bad > 0;
}
