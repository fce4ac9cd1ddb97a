/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - ckpt-bench: each figure of ckptd beside what the machine could do, from the same run.
 *
 *   this process   makes the run's folder in the current one, waits, takes everything away
 *    `- worker     measures; starts ckptd, trainers, fio
 *
 * Whatever happens to the worker, the folder and every process below it are gone at the end: they
 * are children of this process, or become so when their parents die (PR_SET_CHILD_SUBREAPER).
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench/meta_model.h"
#include "bench/trainer.h"

enum { STATUS_OK, STATUS_FAILED, STATUS_USAGE };

static const char usage[] =
	"usage: ckpt-bench save|load|meta|reshard|detect [--case NAME] [--shards N] [--mib N]\n"
	"                  [--json]\n"
	"  save         save.stall.1rank, save.stall.4rank, save.first, save.durable.uring,\n"
	"               save.durable.threads, save.durable.new, save.cpu, small.sealed.p50,\n"
	"               small.durable.p50, idle.cpu, idle.rss, python.save.200k,\n"
	"               python.save.200k.torch\n"
	"  load         load.memory, load.disk, load.strided, load.strided.memory,\n"
	"               resume.warm, resume.cold\n"
	"  meta         meta.plan.1m, meta.plan.memory, meta.lookup.1m, meta.lookup.file\n"
	"  reshard      reshard.rate\n"
	"  detect       detect.cpu, detect.memory, detect.leader, detect.leader.memory,\n"
	"               detect.beat.p99\n"
	"  --case NAME  this case alone\n"
	"  --shards N   meta: so many are stored instead of a million, at least 40000\n"
	"  --mib N      load.strided, resume.*, python.*: so many MiB instead of 1024;\n"
	"               reshard: instead of 8192\n"
	"  --json       one object per line\n"
	"  --version, --help\n"
	"\n"
	"Everything happens in a folder of its own in the current one, with a ckptd of its own.\n"
	"It needs 7 GiB of memory and 8 GiB of disk there; meta 1 GiB of either,\n"
	"reshard 0.5 GiB of memory and four times --mib of disk.\n";

static const char *const save_cases[] = {"save.stall.1rank",
					 "save.stall.4rank",
					 "save.first",
					 "save.durable.uring",
					 "save.durable.threads",
					 "save.durable.new",
					 "save.cpu",
					 "small.sealed.p50",
					 "small.durable.p50",
					 "idle.cpu",
					 "idle.rss",
					 "python.save.200k",
					 "python.save.200k.torch",
					 NULL};
static const char *const load_cases[] = {
	"load.memory", "load.disk", "load.strided", "load.strided.memory", "resume.warm",
	"resume.cold", NULL};
static const char *const meta_cases[] = {"meta.plan.1m", "meta.plan.memory", "meta.lookup.1m",
					 "meta.lookup.file", NULL};
static const char *const reshard_cases[] = {"reshard.rate", NULL};
static const char *const detect_cases[] = {"detect.cpu", "detect.memory", "detect.leader",
					   "detect.leader.memory", "detect.beat.p99", NULL};

struct verb {
	const char *name;
	const char *const *cases;
};
static const struct verb verbs[] = {{"save", save_cases},
				    {"load", load_cases},
				    {"meta", meta_cases},
				    {"reshard", reshard_cases},
				    {"detect", detect_cases},
				    {NULL, NULL}};

/* ---- For all cases ---- */

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void pause_ms(unsigned ms)
{
	struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000 };

	while (nanosleep(&t, &t) != 0 && errno == EINTR)
		;
}

bool wanted(const struct bench *b, const char *name)
{
	return !b->only || strcmp(b->only, name) == 0;
}

void say(const struct bench *b, const char *fmt, ...)
{
	va_list ap;

	if (b->json)
		return;
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	fflush(stdout);
}

void report(struct bench *b, struct figure *f)
{
	b->figures++;
	figure_print(f, b->json);
}

void cannot(struct bench *b, const char *name, const struct err *e)
{
	b->failures++;
	fflush(stdout);
	fprintf(stderr, "ckpt-bench: %s: %s\n", name, e->text);
}

/* ---- Arguments ---- */

static bool listed(const char *const *names, const char *name)
{
	for (; *names; names++)
		if (strcmp(*names, name) == 0)
			return true;
	return false;
}

static int complain(const char *what, const char *which)
{
	fprintf(stderr, "ckpt-bench: %s%s\nckpt-bench --help says more\n", what, which);
	return STATUS_USAGE;
}

/* The verb and whether it goes with the options; the status to exit with, or -1: go on. */
static int check_verb(const struct bench *b, const char *name)
{
	const struct verb *v = verbs;

	while (v->name && strcmp(v->name, name) != 0)
		v++;
	if (!v->name)
		return complain("there is no verb ", name);
	if (b->only && !listed(v->cases, b->only))
		return complain("this verb has no case ", b->only);
	if (b->shards < META_SHARDS_MIN || b->shards > META_SHARDS_MAX)
		return complain("--shards is a number from 40000 to 16000000", "");
	if (b->mib % 16 || b->mib > 65536)
		return complain("--mib is a multiple of 16, up to 65536", "");
	return -1;
}

/* -1: go on; else the status to exit with. */
static int parse_arguments(int argc, char **argv, struct bench *b, const char **ret_verb)
{
	static const struct option longs[] = {
		{"case", required_argument, NULL, 'c'},    {"json", no_argument, NULL, 'j'},
		{"version", no_argument, NULL, 'v'},       {"help", no_argument, NULL, 'h'},
		{"trainer", required_argument, NULL, 't'}, {"shards", required_argument, NULL, 's'},
		{"mib", required_argument, NULL, 'm'},     {NULL, 0, NULL, 0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 'c') {
			b->only = optarg;
		} else if (c == 'j') {
			b->json = true;
		} else if (c == 's') {
			b->shards = (uint32_t)strtoul(optarg, NULL, 10);
		} else if (c == 'm') {
			b->mib = strtoul(optarg, NULL, 10);
		} else if (c == 't') {
			return trainer_main(atoi(optarg)); /* ours: see crew.c */
		} else if (c == 'v') {
			return puts("ckpt-bench " PACKAGE_VERSION) < 0;
		} else if (c == 'h') {
			return fputs(usage, stdout) < 0;
		} else {
			return complain("unknown option", "");
		}
	}
	if (optind + 1 != argc)
		return complain("one of save, load, meta, reshard and detect is needed", "");
	*ret_verb = argv[optind];
	c = check_verb(b, *ret_verb);
	if (b->mib == 0)
		b->mib = strcmp(*ret_verb, "reshard") == 0 ? 8192 : 1024;
	return c;
}

/* ---- The place ---- */

/* Beside this program in a build tree. */
static int find_ckptd(struct bench *b)
{
	const char *given = getenv("CKPTD");
	char self[200], *slash;
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	self[n > 0 ? n : 0] = '\0';
	slash = strrchr(self, '/');
	if (slash)
		*slash = '\0';
	snprintf(b->build, sizeof(b->build), "%s/..", self);
	if (given)
		snprintf(b->ckptd, sizeof(b->ckptd), "%s", given);
	else
		snprintf(b->ckptd, sizeof(b->ckptd), "%s/../ckptd/ckptd", self);
	if (access(b->ckptd, X_OK) == 0)
		return 0;
	fprintf(stderr, "ckpt-bench: there is no ckptd at '%s': build it, or say where it is with "
		"CKPTD=PATH\n", b->ckptd);
	return -ENOENT;
}

static int make_folder(struct bench *b)
{
	char here[160];

	if (getcwd(here, sizeof(here)) && snprintf(b->folder, sizeof(b->folder),
						   "%s/ckpt-bench.XXXXXX", here) > 0 &&
	    mkdtemp(b->folder))
		return 0;
	perror("ckpt-bench: make a folder in the current one");
	return -1;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	if (remove(path) != 0)
		perror(path);
	return 0;
}

void remove_tree(const char *path)
{
	nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* What people would use instead, on the same kind of state and in the same folder; for reading. */
void rivals(const struct bench *b, const char *verb)
{
	static const char python[] = "/usr/bin/python3";
	static const char script[] = SOURCE_FOLDER "/bench/rivals.py";
	pid_t pid;

	if (b->json || access(python, X_OK) != 0 || access(script, R_OK) != 0)
		return;
	pid = fork();
	if (pid == 0) {
		execl(python, python, script, verb, b->folder, (char *)NULL);
		_exit(127);
	}
	if (pid > 0)
		waitpid(pid, NULL, 0);
}

/* Everything that the worker left behind: they are our children now. */
static void end_children(void)
{
	char path[64], text[4096] = "";
	ssize_t n = 1;

	snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
	while (n > 0) {
		int fd = open(path, O_RDONLY | O_CLOEXEC);

		n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
		if (fd >= 0)
			close(fd);
		text[n > 0 ? n : 0] = '\0';
		for (char *p = text; *p; p += strcspn(p, " "), p += strspn(p, " "))
			if (atoi(p) > 0)
				kill(atoi(p), SIGKILL);
		if (n > 0 && waitpid(-1, NULL, 0) < 0 && errno == ECHILD)
			break;
	}
}

/* ---- Life ---- */

static int work(struct bench *b, const char *verb)
{
	if (*verb == 's') {
		cases_stall(b);
		cases_durable(b);
		cases_small(b);
		cases_idle(b);
		cases_python(b);
	} else if (*verb == 'r') {
		cases_reshard(b);
	} else if (*verb == 'm') {
		cases_meta(b);
	} else if (*verb == 'd') {
		cases_detect(b);
		cases_detect_beat(b);
	} else {
		cases_load(b);
		cases_strided(b);
		cases_resume(b);
	}
	return b->failures ? STATUS_FAILED : STATUS_OK;
}

static volatile sig_atomic_t stopped;

static void on_signal(int number)
{
	stopped = number;
}

static int run(struct bench *b, const char *verb)
{
	struct sigaction act = { .sa_handler = on_signal };
	int status = 0;
	pid_t worker;

	prctl(PR_SET_CHILD_SUBREAPER, 1);
	sigaction(SIGINT, &act, NULL);
	sigaction(SIGTERM, &act, NULL);
	worker = fork();
	if (worker == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		signal(SIGINT, SIG_DFL);
		signal(SIGTERM, SIG_DFL);
		exit(work(b, verb));
	}
	while (worker > 0 && waitpid(worker, &status, 0) < 0 && errno == EINTR)
		if (stopped)
			kill(worker, SIGKILL);
	end_children();
	remove_tree(b->folder);
	if (worker < 0 || !WIFEXITED(status)) {
		fprintf(stderr, "ckpt-bench: it was ended before it had measured everything\n");
		return STATUS_FAILED;
	}
	return WEXITSTATUS(status);
}

int main(int argc, char **argv)
{
	static struct bench b = {.shards = 1000000};
	const char *verb = NULL;
	int status = parse_arguments(argc, argv, &b, &verb);

	if (status >= 0)
		return status;
	if (find_ckptd(&b) < 0 || make_folder(&b) < 0)
		return STATUS_FAILED;
	return run(&b, verb);
}
