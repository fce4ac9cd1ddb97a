/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon.c - ckptd gone, stopped, short of descriptors, without privileges: rows H3, I3 of
 * doc/features.md, and invariant I13.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt.h"
#include "tests/lib/rig.h"
#include "tests/lib/silent_fuse.h"

#define ELEMENTS 100000ul
#define SMALL 5u
#define NOBODY 65533 /* 65534 is what the kernel shows for a uid without a number */

static void join(struct trainer_process *t, struct rig *r, const char *run)
{
	trainers_join(t, 1, r, "job", run, ELEMENTS, SMALL);
	trainer_must(t, "prepare 65536");
}

static void reconnects(struct trainer_process *t, unsigned long long want)
{
	unsigned long long saves, skipped, failed, n;

	trainer_must(t, "stats");
	RIG_CHECK(sscanf(t->text, "%llu %llu %llu %llu", &saves, &skipped, &failed, &n) == 4 &&
		  n == want, "stats: %s", t->text);
}

/* Nobody listens: open fails at once, or within the time given, with path, reason and remedy. */
static void no_ckptd(struct rig *r)
{
	struct trainer_process t;
	uint64_t before = rig_now_ms();
	int code;

	trainer_start(&t, r, NULL);
	code = trainer_ask(&t, "open job 0 1 run1 0");
	RIG_CHECK(code == CKPT_EUNAVAILABLE, "open: %d %s", code, t.text);
	RIG_CHECK(strstr(t.text, r->socket) && strstr(t.text, "ckptd --user"), "open: %s", t.text);
	rig_note("%s", t.text);
	trainer_tell(&t, "open job 0 1 run1 20000");
	rig_pause(50);
	rig_start(r);
	code = trainer_answer(&t, RIG_PATIENCE_MS);
	RIG_CHECK(code == 0, "open while it starts: %d %s", code, t.text);
	RIG_CHECK(rig_now_ms() - before < RIG_PATIENCE_MS, "it took too long");
	trainer_exit(&t);
}

/* I13: without ckptd saves fail within their deadline and say so; later they work again. */
static void lost_and_back(struct rig *r)
{
	struct trainer_process t;
	uint64_t before;
	int code;

	rig_start(r);
	join(&t, r, "run1");
	trainer_must(&t, "save 10 1 5000");
	trainer_must(&t, "wait 10 %d 20000", CKPT_DURABLE);
	rig_kill_all(r);
	for (int step = 20; step <= 40; step += 20) {
		before = rig_now_ms();
		code = trainer_ask(&t, "save %d 1 2000", step);
		RIG_CHECK(code == CKPT_EUNAVAILABLE, "save without ckptd: %d %s", code, t.text);
		RIG_CHECK(rig_now_ms() - before < 10000, "it took %d ms",
			  (int)(rig_now_ms() - before));
	}
	code = trainer_ask(&t, "wait 10 %d 1000", CKPT_DURABLE);
	RIG_CHECK(code == CKPT_EUNAVAILABLE, "wait without ckptd: %d %s", code, t.text);
	rig_start(r);
	code = trainer_ask(&t, "save 50 1 5000");
	/* Its memory is lost with the supervisor: an epoch may have to be loaded first. */
	if (code == CKPT_EEPOCH) {
		trainer_must(&t, "load -1 0");
		code = trainer_must(&t, "save 50 1 5000");
	} else {
		RIG_CHECK(code >= 0 && code & CKPT_RECONNECTED, "save after it came back: %d %s",
			  code, t.text);
	}
	reconnects(&t, 1);
	trainer_must(&t, "wait 50 %d 20000", CKPT_DURABLE);
	trainer_must(&t, "load 50 0");
	trainer_must(&t, "load 10 0");
	trainer_exit(&t);
}

/* A call waits a second at most for a ckptd that starts, which may take longer: then it is made
 * again. Returns the code. */
static int wait_committed(struct trainer_process *t, int step)
{
	int code, calls = 0;

	do
		code = trainer_ask(t, "wait %d %d 20000", step, CKPT_COMMITTED);
	while (code == CKPT_EUNAVAILABLE && calls++ < 20);
	return code;
}

/* A crash under the supervisor: the next call joins again, says so once, nothing is lost. */
static void crashes(struct rig *r)
{
	struct trainer_process t;

	rig_arg(r, "--set");
	rig_arg(r, "checkpoint.persist_every=1000000");
	rig_start(r);
	join(&t, r, "run1");
	for (int i = 1; i <= 3; i++) {
		pid_t daemon = rig_daemon(r);
		int code = trainer_must(&t, "save %d 1 20000", 10 * i);

		RIG_CHECK(code == 0, "save: %d", code);
		kill(daemon, SIGKILL);
		code = wait_committed(&t, 10 * i);
		RIG_CHECK(code >= 0 && code & CKPT_RECONNECTED, "wait after a crash: %d %s", code,
			  t.text);
		RIG_CHECK(trainer_must(&t, "wait %d %d 20000", 10 * i, CKPT_COMMITTED) == 0,
			  "it says so twice");
		reconnects(&t, (unsigned)i);
	}
	trainer_exit(&t);
	join(&t, r, "run2");
	trainer_must(&t, "load -1 0");
	RIG_CHECK(strncmp(t.text, "30 1 1", 6) == 0, "loaded: %s", t.text);
	trainer_exit(&t);
}

/* The next ckptd takes longer to start than libckpt waits for it: a call says that it is away, and
 * the tests' own way to go on from there (rig.h) is to make it again. */
static void starts_slowly(struct rig *r)
{
	struct trainer_process t;
	struct listed l[4];
	pid_t daemon;
	int code;

	rig_start(r);
	join(&t, r, "run1");
	trainer_must(&t, "save 10 1 20000");
	trainer_must(&t, "wait 10 %d 20000", CKPT_DURABLE);
	daemon = rig_daemon(r);
	kill(r->pid, SIGSTOP); /* the supervisor */
	kill(daemon, SIGKILL);
	code = trainer_ask(&t, "list");
	RIG_CHECK(code == CKPT_EUNAVAILABLE, "list: %d %s", code, t.text);
	kill(r->pid, SIGCONT);
	RIG_CHECK(trainer_list(&t, l, 4) == 1 && l[0].step == 10, "step 10 is not listed");
	reconnects(&t, 1);
	trainer_exit(&t);
}

static unsigned long long bytes_of(struct rig *r, uint64_t step)
{
	char text[64];
	unsigned long long n = 0;

	RIG_CHECK(sscanf(rig_step_field(r, "job", step, "bytes", text), "%llu", &n) == 1 && n > 0,
		  "step %llu: '%s' bytes", (unsigned long long)step, text);
	return n;
}

/* What is told of a checkpoint's size is what was saved, however often ckptd took it up again. */
static void sizes_after_crashes(struct rig *r)
{
	struct trainer_process t;
	unsigned long long before, after;

	rig_arg(r, "--set");
	rig_arg(r, "checkpoint.persist_every=2");
	rig_start(r);
	join(&t, r, "run1");
	for (int step = 10; step <= 30; step += 10) { /* in memory alone, and on disk too */
		pid_t daemon = rig_daemon(r);

		trainer_must(&t, "save %d 1 20000", step);
		trainer_must(&t, "wait %d %d 20000", step,
			     step == 20 ? CKPT_DURABLE : CKPT_COMMITTED);
		before = bytes_of(r, (uint64_t)step);
		kill(daemon, SIGKILL);
		rig_wait_restart(r, daemon);
		trainer_must(&t, "wait %d %d 20000", step, CKPT_COMMITTED);
		after = bytes_of(r, (uint64_t)step);
		RIG_CHECK(before == after, "step %d: %llu bytes, %llu before", step, after, before);
	}
	trainer_exit(&t);
}

static bool is_there(void *path)
{
	return access(path, F_OK) == 0;
}

static bool is_missed(void *r)
{
	return rig_log_count(r, "step 20 on disk cannot be used: rank 0: its file is gone") == 1;
}

/* Somebody removes a file: the next start finds it gone, and it is written again from memory; it is
 * whole once memory is lost too. */
static void file_gone_at_a_start(struct rig *r)
{
	struct trainer_process t;
	char pattern[256], text[4096];
	glob_t found;
	pid_t daemon;

	rig_start(r);
	join(&t, r, "run1");
	for (int step = 10; step <= 20; step += 10) {
		trainer_must(&t, "save %d 1 20000", step);
		trainer_must(&t, "wait %d %d 20000", step, CKPT_DURABLE);
	}
	snprintf(pattern, sizeof(pattern), "%s/jobs/*/20.*/rank-0.shard", r->data);
	RIG_CHECK(glob(pattern, 0, NULL, &found) == 0 && found.gl_pathc == 1, "no file of step 20");
	daemon = rig_daemon(r);
	RIG_CHECK(unlink(found.gl_pathv[0]) == 0, "unlink: %s", strerror(errno));
	kill(daemon, SIGKILL);
	rig_wait(is_missed, r, "the start names the file");
	rig_wait(is_there, found.gl_pathv[0], "the file is written again");
	globfree(&found);
	trainer_exit(&t);
	rig_kill_all(r);
	rig_start(r);
	RIG_CHECK(rig_ctl(r, text, sizeof(text), "verify job 20") == 0, "verify: %s", text);
	join(&t, r, "run2");
	trainer_must(&t, "load -1 0");
	RIG_CHECK(strncmp(t.text, "20 1 2", 6) == 0, "loaded: %s", t.text);
	trainer_exit(&t);
}

static bool is_begun_anew(void *r)
{
	return rig_log_count(r, "beginning it anew from 1 COMMIT") > 0;
}

/* ckptd does not look at it before its next start. */
static void damage_log(struct rig *r)
{
	char pattern[256], byte;
	glob_t found;
	int fd;

	snprintf(pattern, sizeof(pattern), "%s/jobs/*/log/*", r->data);
	RIG_CHECK(glob(pattern, 0, NULL, &found) == 0 && found.gl_pathc > 2, "no log");
	fd = open(found.gl_pathv[1], O_RDWR | O_CLOEXEC);
	RIG_CHECK(fd >= 0 && pread(fd, &byte, 1, 20) == 1, "read: %s", strerror(errno));
	globfree(&found);
	byte ^= 1;
	RIG_CHECK(pwrite(fd, &byte, 1, 20) == 1 && close(fd) == 0, "write: %s", strerror(errno));
}

/* What only memory has is committed by the next one, and training goes on. */
static void goes_on_without_the_log(struct rig *r, struct trainer_process *t)
{
	rig_wait(is_begun_anew, r, "the log is begun anew");
	RIG_CHECK(wait_committed(t, 20) >= 0, "step 20 is lost: %s", t->text);
	trainer_must(t, "save 30 1 20000");
	trainer_must(t, "wait 30 %d 20000", CKPT_COMMITTED);
	trainer_exit(t);
	join(t, r, "run2");
	trainer_must(t, "load -1 0");
	RIG_CHECK(strncmp(t->text, "30 1 1", 6) == 0, "loaded: %s", t->text);
	trainer_exit(t);
}

/* The log is damaged while ckptd is away (I8). */
static void log_damaged_at_a_start(struct rig *r)
{
	struct trainer_process t;

	rig_arg(r, "--set");
	rig_arg(r, "checkpoint.persist_every=1000000");
	rig_start(r);
	join(&t, r, "run1");
	trainer_must(&t, "save 10 1 20000");
	trainer_must(&t, "wait 10 %d 20000", CKPT_DURABLE);
	trainer_must(&t, "save 20 1 20000");
	trainer_must(&t, "wait 20 %d 20000", CKPT_COMMITTED);
	damage_log(r);
	kill(rig_daemon(r), SIGKILL);
	goes_on_without_the_log(r, &t);
}

/* The same, killed while it wrote the step: there is a folder that the new log does not know. */
static void log_damaged_while_writing(struct rig *r)
{
	struct trainer_process t;
	char once[256];

#ifndef CKPT_FAULTS
	rig_skip("no fault points in this build");
#endif
	snprintf(once, sizeof(once), "CKPT_FAULT_ONCE=%s/died", r->dir);
	rig_env(r, "CKPT_FAULT=COMMIT_FOLDER=kill@2");
	rig_env(r, once);
	rig_start(r);
	join(&t, r, "run1");
	trainer_must(&t, "save 10 1 20000");
	trainer_must(&t, "wait 10 %d 20000", CKPT_DURABLE);
	damage_log(r);
	trainer_must(&t, "save 20 1 20000");
	goes_on_without_the_log(r, &t);
}

/* SIGTERM: what is only in memory goes to disk before it ends. */
static void orderly_stop(struct rig *r)
{
	struct trainer_process t;

	rig_arg(r, "--set");
	rig_arg(r, "checkpoint.persist_every=1000000");
	rig_start(r);
	join(&t, r, "run1");
	for (int step = 10; step <= 30; step += 10)
		trainer_must(&t, "save %d 1 20000", step);
	trainer_exit(&t);
	RIG_CHECK(rig_stop(r) == 0, "ckptd stops with an error");
	rig_start(r);
	join(&t, r, "run2");
	trainer_must(&t, "load -1 0");
	RIG_CHECK(strncmp(t.text, "30 1 2", 6) == 0, "loaded: %s", t.text);
	trainer_exit(&t);
	RIG_CHECK(rig_stop(r) == 0, "ckptd stops with an error");
}

/* What it could not write before it ended is said, and seen by its exit status. */
static void stop_that_loses(struct rig *r)
{
	struct rlimit none = { 0 }, old;
	struct trainer_process t;
	int status;

	/* Without descriptors the search for leaks at exit fails, and takes the exit status. */
	setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
	rig_arg(r, "--set");
	rig_arg(r, "checkpoint.persist_every=1000000");
	rig_start(r);
	join(&t, r, "run1");
	for (int step = 10; step <= 30; step += 10)
		trainer_must(&t, "save %d 1 20000", step);
	trainer_must(&t, "wait 30 %d 20000", CKPT_COMMITTED);
	trainer_exit(&t);
	RIG_CHECK(prlimit(rig_daemon(r), RLIMIT_NOFILE, NULL, &old) == 0, "prlimit");
	none.rlim_max = old.rlim_max;
	RIG_CHECK(prlimit(rig_daemon(r), RLIMIT_NOFILE, &none, NULL) == 0, "prlimit: %s",
		  strerror(errno));
	status = rig_stop(r);
	RIG_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3, "status %d", status);
	RIG_CHECK(rig_log_count(r, "job 'job': step 30 is committed and is lost") == 1,
		  "the log does not say what is lost");
	RIG_CHECK(rig_log_count(r, "stopped: 1 checkpoint is saved and not on disk") == 1,
		  "the log does not say the end");
}

static unsigned long long alarms(struct rig *r)
{
	static char text[65536];
	unsigned long long n = 0;
	char *at;
	int code = rig_ctl(r, text, sizeof(text), "--json status job");

	at = strstr(text, "\"stale_alarms\": ");
	RIG_CHECK(at && sscanf(at, "\"stale_alarms\": %llu", &n) == 1, "status: %d %s", code, text);
	return n;
}

static void save_twice(struct rig *r, const char *run, const char *word, int step)
{
	struct trainer_process t;

	trainer_start(&t, r, NULL);
	trainer_must(&t, "open job 0 1 %s 10000", run);
	trainer_must(&t, "declare %lu %u %s", ELEMENTS, SMALL, word);
	trainer_must(&t, "load -1 1");
	trainer_must(&t, "save %d 1 20000", step);
	trainer_must(&t, "wait %d %d 20000", step, CKPT_DURABLE);
	trainer_must(&t, "resave %d 20000", step + 1);
	trainer_must(&t, "wait %d %d 20000", step + 1, CKPT_DURABLE);
	trainer_exit(&t);
}

/* H3: two checkpoints of the same bytes in what should train; not where nothing is trained. */
static void stale_snapshot(struct rig *r)
{
	static char text[65536];
	int code;

	rig_start(r);
	save_twice(r, "run1", "frozen", 10);
	RIG_CHECK(alarms(r) == 0, "an alarm about tensors that are not trained");
	save_twice(r, "run2", "", 20);
	RIG_CHECK(alarms(r) == 1, "%llu alarms", alarms(r));
	RIG_CHECK(rig_log_count(r, "step 21 has the same bytes") == 1, "the log does not say so");
	code = rig_ctl(r, text, sizeof(text), "status job");
	RIG_CHECK(code == 1 && strstr(text, "21"), "status does not show it: %d %s", code, text);
}

static bool connect_one(const struct rig *r, int *ret_fd)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	*ret_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	snprintf(a.sun_path, sizeof(a.sun_path), "%.107s", r->socket);
	return *ret_fd >= 0 && connect(*ret_fd, (struct sockaddr *)&a, sizeof(a)) == 0;
}

/* Connects, and executes a program, which does not begin before its file is closed: never. Tells
 * the server's pid, or why there is none. */
static _Noreturn void connect_and_stall(struct rig *r, const char *folder, int tell)
{
	char path[256];
	pid_t server;
	int fd, said = silent_fuse_mount(folder, &server);

	snprintf(path, sizeof(path), "%s/f", folder);
	if (said == 0)
		said = open(path, O_RDONLY | O_CLOEXEC) < 0 ? -errno : server;
	for (int i = 0; i < 8 && said > 0; i++)
		if (!connect_one(r, &fd))
			said = -errno;
	if (write(tell, &said, sizeof(said)) == (ssize_t)sizeof(said) && said > 0)
		execl("/bin/true", "true", NULL);
	_exit(1);
}

/* Since Linux 6.9: ckptd/processes.h. */
static bool pidfds_have_inodes(void)
{
	int pidfd = pidfd_open(getpid(), 0);
	struct statfs fs;
	bool have = pidfd >= 0 && fstatfs(pidfd, &fs) == 0 && fs.f_type == 0x50494446;

	close(pidfd);
	return have;
}

/* Nothing that ckptd asks of a process waits for that process, or for its file server. */
static void stalls_in_execve(struct rig *r)
{
	struct trainer_process t;
	int tell[2], said = 0, durable;
	char folder[200];
	pid_t pid;

	if (geteuid() != 0)
		rig_skip("root is needed to mount");
	if (!pidfds_have_inodes())
		rig_skip("this kernel gives pidfds no inodes");
	rig_start(r);
	join(&t, r, "run1");
	snprintf(folder, sizeof(folder), "%s/mnt", r->dir);
	RIG_CHECK(mkdir(folder, 0755) == 0 && pipe(tell) == 0, "%s", strerror(errno));
	kill(rig_daemon(r), SIGSTOP); /* it accepts them later */
	pid = fork();
	if (pid == 0)
		connect_and_stall(r, folder, tell[1]);
	close(tell[1]);
	RIG_CHECK(read(tell[0], &said, sizeof(said)) == (ssize_t)sizeof(said), "no answer");
	if (said < 0)
		rig_skip("there is no FUSE here: %s", strerror(-said));
	rig_pause(300);
	RIG_CHECK(waitpid(pid, NULL, WNOHANG) == 0, "it executes the program");
	kill(rig_daemon(r), SIGCONT);
	trainer_ask(&t, "save 10 1 5000");
	durable = trainer_ask(&t, "wait 10 %d 5000", CKPT_DURABLE);
	kill(said, SIGKILL); /* before the test ends: who looks at all processes would wait */
	RIG_CHECK(waitpid(pid, NULL, 0) == pid, "waitpid: %s", strerror(errno));
	RIG_CHECK(durable == 0, "a process that stalls holds up ckptd: %d %s", durable, t.text);
	trainer_exit(&t);
}

/* A process that closes its job and opens it again has none of the slots that it had. */
static void opens_again(struct rig *r)
{
	struct trainer_process t;
	pid_t daemon;

	rig_start(r);
	join(&t, r, "run1");
	trainer_must(&t, "save 10 1 20000");
	trainer_must(&t, "wait 10 %d 20000", CKPT_COMMITTED);
	trainer_must(&t, "close");
	trainer_must(&t, "open job 0 1 run2 10000");
	trainer_must(&t, "declare %lu %u", ELEMENTS, SMALL);
	daemon = rig_daemon(r);
	kill(daemon, SIGKILL);
	rig_wait_restart(r, daemon);
	trainer_must(&t, "prepare 65536");
	trainer_must(&t, "load -1 0");
	RIG_CHECK(strncmp(t.text, "10 1 ", 5) == 0, "loaded: %s", t.text);
	trainer_must(&t, "save 20 1 20000");
	trainer_must(&t, "wait 20 %d 20000", CKPT_DURABLE);
	trainer_exit(&t);
}

/* ckptd has no descriptor left: newcomers wait or are turned away, who is in goes on. */
static void ckptd_out_of_files(struct rig *r)
{
	struct rlimit low = { .rlim_cur = 64 }, old;
	struct trainer_process t, late;
	int fds[200], n = 0, code;

	rig_start(r);
	join(&t, r, "run1");
	RIG_CHECK(prlimit(rig_daemon(r), RLIMIT_NOFILE, NULL, &old) == 0, "prlimit");
	low.rlim_max = old.rlim_max;
	RIG_CHECK(prlimit(rig_daemon(r), RLIMIT_NOFILE, &low, NULL) == 0, "prlimit: %s",
		  strerror(errno));
	while (n < 200 && connect_one(r, &fds[n]))
		n++;
	rig_note("%d more connections were made", n);
	for (int step = 10; step <= 30; step += 10)
		code = trainer_ask(&t, "save %d 1 20000", step);
	RIG_CHECK(code == 0, "save: %d %s", code, t.text);
	while (n > 0)
		close(fds[--n]);
	RIG_CHECK(prlimit(rig_daemon(r), RLIMIT_NOFILE, &old, NULL) == 0, "prlimit");
	trainer_must(&t, "save 40 1 20000");
	trainer_must(&t, "wait 40 %d 20000", CKPT_DURABLE);
	trainer_exit(&t);
	trainers_join(&late, 1, r, "job", "run2", ELEMENTS, SMALL);
	trainer_must(&late, "load -1 0");
	RIG_CHECK(strncmp(late.text, "40 1 ", 5) == 0, "loaded: %s", late.text);
	trainer_exit(&late);
}

/* The trainer has none: a clean error, and what was saved before is there when it has again. */
static void trainer_out_of_files(struct rig *r)
{
	struct trainer_process t, other;
	int code;

	rig_start(r);
	join(&t, r, "run1");
	trainer_must(&t, "save 10 1 20000");
	trainer_must(&t, "files 0");
	/* A save needs none. */
	trainer_must(&t, "save 20 1 20000");
	trainer_must(&t, "wait 20 %d 20000", CKPT_DURABLE);
	code = trainer_ask(&t, "load 20 0");
	RIG_CHECK(code < 0 && code != -9998, "a load without descriptors: %d", code);
	rig_note("load: %s", t.text);
	trainer_must(&t, "files -1");
	trainer_must(&t, "load 20 0");
	trainer_must(&t, "save 30 1 20000");
	trainer_exit(&t);
	trainer_start(&other, r, NULL);
	trainer_must(&other, "files 0");
	code = trainer_ask(&other, "open job 0 1 run2 0");
	RIG_CHECK(code < 0, "open without descriptors: %d", code);
	rig_note("open: %s", other.text);
	trainer_must(&other, "files -1");
	trainer_must(&other, "open job 0 1 run2 10000");
	trainer_exit(&other);
}

/* I3: nothing but a folder and a socket: no root, no systemd, no configuration, no home. */
static void as_nobody(struct rig *r)
{
	const char *const gone[] = { "NOTIFY_SOCKET", "LISTEN_FDS", "XDG_RUNTIME_DIR", "HOME",
				     "KUBERNETES_SERVICE_HOST", "JOURNAL_STREAM" };
	const char *top = getenv("top_builddir");
	struct trainer_process t;

	/* From within: the way to it may be closed to nobody, as that below /root is. */
	RIG_CHECK(!top || chdir(top) == 0, "chdir");
	setenv("top_builddir", ".", 1);
	setenv("LD_LIBRARY_PATH", ".libs", 1); /* libckpt, of the trainer */
	if (geteuid() != 0 && getenv("XDG_RUNTIME_DIR"))
		rig_note("as uid %d", (int)geteuid());
	for (size_t i = 0; i < sizeof(gone) / sizeof(gone[0]); i++)
		unsetenv(gone[i]);
	if (geteuid() == 0) {
		RIG_CHECK(chown(r->dir, NOBODY, NOBODY) == 0, "chown");
		if (setgid(NOBODY) < 0 || setuid(NOBODY) < 0 || access("/proc/self/exe", X_OK) < 0)
			rig_skip("this process cannot become nobody");
		prctl(PR_SET_DUMPABLE, 1); /* /proc/self is its own again */
	}
	rig_start(r);
	join(&t, r, "run1");
	trainer_must(&t, "save 10 1 20000");
	trainer_must(&t, "wait 10 %d 20000", CKPT_DURABLE);
	trainer_must(&t, "load 10 0");
	trainer_exit(&t);
	RIG_CHECK(rig_stop(r) == 0, "ckptd stops with an error");
}

/* A process that executes another program keeps its pid and start time; its rank is its own. */
static void executes_anew(struct rig *r)
{
	struct trainer_process t;

	rig_start(r);
	join(&t, r, "run1");
	for (int i = 1; i <= 20; i++) {
		trainer_must(&t, "save %d 1 20000", i);
		trainer_must(&t, "wait %d %d 20000", i, CKPT_COMMITTED);
		trainer_must(&t, "again");
		trainer_must(&t, "open job 0 1 run1 0");
		trainer_must(&t, "declare %lu %u", ELEMENTS, SMALL);
		trainer_must(&t, "load -1 0");
		RIG_CHECK(atoi(t.text) == i, "loaded: %s", t.text);
		trainer_must(&t, "prepare 65536");
	}
	trainer_exit(&t);
}

int main(int argc, char **argv)
{
	static const struct rig_test tests[] = {
		RIG_TEST(no_ckptd),
		RIG_TEST(lost_and_back),
		RIG_TEST(crashes),
		RIG_TEST(starts_slowly),
		RIG_TEST(orderly_stop),
		RIG_TEST(sizes_after_crashes),
		RIG_TEST(file_gone_at_a_start),
		RIG_TEST(log_damaged_at_a_start),
		RIG_TEST(log_damaged_while_writing),
		RIG_TEST(stalls_in_execve),
		RIG_TEST(opens_again),
		RIG_TEST(stop_that_loses),
		RIG_TEST(executes_anew),
		RIG_TEST(stale_snapshot),
		RIG_TEST(ckptd_out_of_files),
		RIG_TEST(trainer_out_of_files),
		RIG_TEST(as_nobody),
	};

	return rig_run(tests, sizeof(tests) / sizeof(tests[0]), 3, argc, argv);
}
