/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One user trains and saves, another attacks: what the first one notices.
 *
 * Each attack is a test: two processes of the attacker's uid go on with it while a rank of another
 * user saves, waits until it is committed, and saves again. The same beside two processes that burn
 * the attacker's processor time and leave ckptd alone is the measure: the slowest saves (p99) may
 * take twice as long, and 10 ms. All saves are committed, ckptd's memory and descriptors stay
 * bounded, it stops in an orderly way within 5 seconds while the attack goes on, and beside a file
 * that hangs whoever closes it SIGKILL ends it within one.
 */
#include <config.h>

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <ckpt.h>

#include "tests/adversary/attack.h"
#include "tests/lib/rig.h"

enum {
	ATTACKER = 12345, /* its uid */
	ATTACKERS = 2,    /* processes of it */
	SAVES = 150,
	ELEMENTS = 1 << 18,
	STOP_MS = 5000,
	KILL_MS = 1000,
	ALLOWED_MS = 10,
	MEMORY_KIB = 512 << 10, /* more than without: answers and messages that wait */
	DESCRIPTORS = 4096,
};

struct attackers {
	pid_t pids[ATTACKERS];
};

static void attack(struct rig *r, const struct attack *a, struct attackers *all)
{
	for (int i = 0; i < ATTACKERS; i++) {
		char folder[200], said;
		struct attack_options o = {
			.socket = r->socket, .folder = folder, .number = (unsigned)i};
		int tell[2];

		snprintf(folder, sizeof(folder), "%s/attack%d", r->dir, i);
		mkdir(folder, 0711);
		snprintf(folder, sizeof(folder), "%s/attack%d/mnt", r->dir, i);
		RIG_CHECK(pipe(tell) == 0, "pipe");
		o.tell = tell[1];
		all->pids[i] = fork();
		if (all->pids[i] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			setpgid(0, 0); /* with what it begins */
			said = a->prepare && a->prepare(&o) < 0 ? 's' : 0;
			if (said && write(tell[1], &said, 1) == 1)
				_exit(0);
			if (setgid(ATTACKER) != 0 || setuid(ATTACKER) != 0)
				_exit(1);
			prctl(PR_SET_PDEATHSIG, SIGKILL); /* another uid has lost it */
			a->run(&o);
		}
		close(tell[1]);
		RIG_CHECK(read(tell[0], &said, 1) == 1, "the attack could not be begun");
		close(tell[0]);
		if (said == 's')
			rig_skip("this machine has not got what '%s' needs", a->name);
	}
}

static void attack_end(struct attackers *all)
{
	for (int i = 0; i < ATTACKERS; i++) {
		kill(-all->pids[i], SIGKILL); /* file servers too: whoever hangs goes on */
		kill(all->pids[i], SIGKILL);
	}
	for (int i = 0; i < ATTACKERS; i++)
		while (waitpid(all->pids[i], NULL, 0) < 0 && errno == EINTR)
			;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Milliseconds of the slowest of a hundred; *ret_median. */
static double train(struct trainer_process *t, int from, double *ret_median)
{
	double took[SAVES];

	for (int i = 0; i < SAVES; i++) {
		double begun = now();

		trainer_must(t, "save %d 1 50000", from + i);
		took[i] = now() - begun;
		trainer_must(t, "wait %d %d 50000", from + i, CKPT_COMMITTED);
	}
	qsort(took, SAVES, sizeof(took[0]), by_size);
	*ret_median = took[SAVES / 2];
	return took[SAVES * 99 / 100];
}

static unsigned long status_of(pid_t pid, const char *key)
{
	char path[64], line[256];
	unsigned long n = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		if (strncmp(line, key, strlen(key)) == 0)
			n = strtoul(line + strlen(key), NULL, 10);
	if (f)
		fclose(f);
	return n;
}

static unsigned descriptors(pid_t pid)
{
	char path[64];
	unsigned n = 0;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	d = opendir(path);
	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

/* The line that ckptd says of its loop when it stops. */
static void note_calls(const struct rig *r)
{
	char line[1024], *at;
	FILE *f = fopen(r->log, "re");

	while (f && fgets(line, sizeof(line), f)) {
		at = strstr(line, "loop: ");
		line[strcspn(line, "\n")] = '\0';
		if (at)
			rig_note("%s", at);
	}
	if (f)
		fclose(f);
}

/* A second launch, which is killed beside the attack. */
static void killed(struct rig *r)
{
	pid_t daemon;
	double from;

	rig_start(r);
	daemon = rig_daemon(r);
	kill(r->pid, SIGKILL); /* the supervisor would begin another */
	from = now();
	kill(daemon, SIGKILL);
	while (waitpid(daemon, NULL, WNOHANG) == 0 && now() - from < 10 * KILL_MS)
		rig_pause(1);
	rig_note("SIGKILL ended ckptd after %.0f ms", now() - from);
	RIG_CHECK(now() - from < KILL_MS, "SIGKILL does not end ckptd");
	waitpid(r->pid, NULL, 0);
	r->pid = 0;
}

static void beside(struct rig *r)
{
	const struct attack *a = r->arg;
	double quiet, alone, median, p99, from;
	struct trainer_process t;
	struct attackers all;
	unsigned long memory, then;
	unsigned files;
	pid_t daemon;
	int status;

	if (geteuid() != 0)
		rig_skip("root is needed to be two users");
	RIG_CHECK(chmod(r->dir, 0711) == 0, "chmod");
	rig_arg(r, "--set");
	rig_arg(r, "log.level=info");
	rig_start(r);
	RIG_CHECK(chmod(r->socket, 0666) == 0, "chmod");
	trainers_join(&t, 1, r, "job", "run", ELEMENTS, 8);
	trainer_must(&t, "prepare 65536");
	daemon = rig_daemon(r);
	alone = train(&t, 1000, &median);
	attack(r, &attacks[0], &all);
	quiet = train(&t, 2000, &median);
	attack_end(&all);
	memory = status_of(daemon, "RssAnon:");
	rig_note("alone p99 %.1f ms; beside a burner %.1f (median %.1f)", alone, quiet, median);
	attack(r, a, &all);
	p99 = train(&t, 3000, &median);
	then = status_of(daemon, "RssAnon:");
	files = descriptors(daemon);
	rig_note("beside %s p99 %.1f ms (median %.1f); %lu KiB, %u descriptors", a->name, p99,
		 median, then, files);
	RIG_CHECK(rig_daemon(r) == daemon, "ckptd was replaced");
	RIG_CHECK(then < memory + MEMORY_KIB, "ckptd takes %lu KiB, %lu before", then, memory);
	RIG_CHECK(files < DESCRIPTORS, "ckptd has %u descriptors", files);
	trainer_exit(&t);
	from = now();
	status = rig_stop(r);
	rig_note("stopped after %.0f ms", now() - from);
	RIG_CHECK(status == 0, "ckptd stops with status %d", status);
	RIG_CHECK(now() - from < STOP_MS, "an orderly stop takes %.0f ms", now() - from);
	note_calls(r);
	killed(r);
	attack_end(&all);
	RIG_CHECK(p99 <= 2 * quiet + ALLOWED_MS,
		  "p99 of save() %.1f ms, %.1f beside a burner", p99, quiet);
}

int main(int argc, char **argv)
{
	struct rig_test tests[16];

	for (unsigned i = 1; i < n_attacks; i++)
		tests[i - 1] = (struct rig_test){attacks[i].name, beside, &attacks[i]};
	return rig_run(tests, n_attacks - 1, 1, argc, argv);
}
