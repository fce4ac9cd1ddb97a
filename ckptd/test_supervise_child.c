/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_supervise_child.c - what test_supervise runs under the supervisor.
 *
 *   test_supervise_child <folder> <part>
 *
 * Each life adds a byte to <folder>/lives. What is wrong is written to <folder>/error, and then it
 * ends with 0, so that the test stops. Parts are described where they stand.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckptd/memory_memfd.h"

static const char *folder;
static struct notify *notify;
static struct keeper *keeper;
static struct memory *memory;

static void say(const char *file, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(const char *file, const char *fmt, ...)
{
	char path[300];
	va_list ap;
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", folder, file);
	f = fopen(path, "a");
	if (!f)
		_exit(99);
	va_start(ap, fmt);
	vfprintf(f, fmt, ap);
	va_end(ap);
	fclose(f);
}

static int count(const char *file)
{
	char path[300];
	struct stat st;

	snprintf(path, sizeof(path), "%s/%s", folder, file);
	return stat(path, &st) == 0 ? (int)st.st_size : 0;
}

#define CHECK(x)                                                                                   \
	do {                                                                                       \
		if (!(x)) {                                                                        \
			say("error", "%d: %s (errno %d)\n", __LINE__, #x, errno);                  \
			_exit(0);                                                                  \
		}                                                                                  \
	} while (0)

static void die(void)
{
	kill(getpid(), SIGKILL);
}

static void ready(void)
{
	CHECK(notify_send(notify, "READY=1\nSTATUS=fine", NULL, 0) == 0);
	CHECK(notify_barrier(notify, 10000) == 0);
}

/* ---- memory: regions are found again, with their bytes, after every kind of death ---- */

enum { SIZE = 300000 };

static void fill(struct region *r, unsigned seed)
{
	for (unsigned i = 0; i < r->size; i++)
		((unsigned char *)r->base)[i] = (unsigned char)(seed + i * 7 + (i >> 8));
}

static bool filled(const struct region *r, unsigned seed)
{
	for (unsigned i = 0; i < r->size; i++) {
		if (((unsigned char *)r->base)[i] != (unsigned char)(seed + i * 7 + (i >> 8)))
			return false;
	}
	return r->size == SIZE;
}

static struct region *make(const char *name, unsigned seed)
{
	struct region *r;

	CHECK(memory->ops->create(memory, name, SIZE, &r) == 0);
	fill(r, seed);
	return r;
}

struct found {
	struct region *sealed, *open, *third;
	int n;
};

static void find(void *arg, struct region *r)
{
	struct found *f = arg;

	f->n++;
	if (strcmp(r->name, "slot.sealed") == 0)
		f->sealed = r;
	if (strcmp(r->name, "ledger.open") == 0)
		f->open = r;
	if (strcmp(r->name, "third") == 0)
		f->third = r;
}

static void part_memory(int life)
{
	struct found f = { 0 };
	struct region *gone;
	uint64_t budget = 0, left;

	memory->ops->adopt(memory, find, &f);
	if (life == 1) { /* a second copy of each would be found if destroy did not reach it */
		CHECK(f.n == 0 && keeper_keeps(keeper));
		CHECK(memory->ops->seal(memory, make("slot.sealed", 1)) == 0);
		gone = make("gone", 9);
		make("ledger.open", 2);
		memory->ops->destroy(memory, gone);
		ready();
		die();
	}
	if (life == 2) {
		CHECK(f.n == 2 && f.sealed && f.open);
		CHECK(filled(f.sealed, 1) && filled(f.open, 2));
		left = memory->ops->available(memory, &budget);
		CHECK(budget - left == 2 * (SIZE / 4096 + 1) * 4096ull);
		CHECK(memory->ops->seal(memory, f.sealed) == 0);
		fill(f.open, 4);  /* still writable: not sealed */
		make("third", 3); /* nothing is said after create() returned */
		die();
	}
	CHECK(f.n == (life == 3 ? 3 : 0));
	if (life == 3) {
		CHECK(filled(f.sealed, 1) && filled(f.open, 4) && filled(f.third, 3));
		memory->ops->destroy(memory, f.sealed);
		memory->ops->destroy(memory, f.open);
		memory->ops->destroy(memory, f.third);
		exit(3); /* an error, not a signal */
	}
}

/* ---- signals: each that comes is noted; SIGTERM ends ---- */

static void wait_signals(void)
{
	sigset_t set;
	int sig;

	sigemptyset(&set);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigprocmask(SIG_BLOCK, &set, NULL);
	ready();
	say("ready", "r");
	do {
		CHECK(sigwait(&set, &sig) == 0);
		say("signals", "%s", sig == SIGHUP ? "H" : sig == SIGTERM ? "T" : "I");
	} while (sig == SIGHUP);
}

enum { STORES = 50 };

static int store_pipe(const char *name)
{
	int p[2], r;

	CHECK(pipe2(p, O_CLOEXEC) == 0);
	r = keeper_store(keeper, name, p[0]);
	close(p[0]);
	close(p[1]);
	return r;
}

/*
 * ---- full: the store has said what it takes, and so much is stored and not more ----
 * ---- refused: it has not, says no, and is believed; what fits is kept ----
 */

static void part_full(int life, bool told)
{
	struct memory_room room;
	char name[32];
	int stored = 0, r = 0, n = 0;

	keeper_room(keeper, &room);
	CHECK(told == (room.max < UINT64_MAX));
	if (life == 1) {
		while (r == 0 && stored < 1000) {
			snprintf(name, sizeof(name), "pipe-%d", stored);
			r = store_pipe(name);
			stored += r == 0;
		}
		CHECK(r == (told ? CKPT_ENOSPACE : -EIO) && stored > 10);
		CHECK(!told || (uint64_t)stored == room.max);
		keeper_room(keeper, &room);
		CHECK(room.used == (uint64_t)stored);
		CHECK(keeper_remove(keeper, "pipe-0") == 0); /* and the next answer is clean */
		say("stored", "%*s", stored - 1, "");
		die();
	}
	CHECK(room.used == (uint64_t)count("stored"));
	CHECK(!told || room.left == 1);
	while (keeper_take(keeper, NULL, NULL) >= 0)
		n++;
	CHECK(n == count("stored"));
}

/* ---- stores: says that it lives at SIGUSR1, and then stores ---- */

static void part_stores(void)
{
	char name[32];
	sigset_t begin, end, both;
	int sig;

	sigemptyset(&begin);
	sigaddset(&begin, SIGUSR1);
	sigemptyset(&end);
	sigaddset(&end, SIGTERM);
	sigorset(&both, &begin, &end); /* either may come as soon as the test reads what is said */
	CHECK(sigprocmask(SIG_BLOCK, &both, NULL) == 0);
	ready();
	say("pid", "%d", (int)getpid());
	say("ready", "r");
	CHECK(sigwait(&begin, &sig) == 0);
	CHECK(notify_send(notify, "WATCHDOG=1", NULL, 0) == 0);
	say("told", "t");
	for (int i = 0; i < STORES; i++) {
		snprintf(name, sizeof(name), "pipe-%d", i);
		CHECK(store_pipe(name) == 0);
	}
	say("stored", "s");
	CHECK(sigwait(&end, &sig) == 0);
}

/* ---- orphan: a process of the first life sends in the second ---- */

static void await(const char *file, int size)
{
	while (count(file) < size)
		usleep(1000);
}

static void part_orphan(int life)
{
	pid_t pid = life == 1 ? fork() : -1;

	if (pid == 0) {
		await("lives", 2);
		int r = notify_send(notify, "FDSTORE=1\nFDNAME=trojan", (int[]){ 0 }, 1);

		CHECK(r == -ECONNREFUSED);
		say("refused", "r");
		_exit(0);
	}
	if (life == 1)
		die();
	CHECK(keeper_take(keeper, NULL, NULL) == -ENOENT);
	if (life == 2) {
		await("refused", 1);
		ready(); /* what came before it has been taken in */
		die();
	}
}

/* ---- last: much is sent, and then it is dead ---- */

static void part_last(int life)
{
	char text[64];
	int n = 0;

	if (life == 1) {
		for (int i = 0; i < STORES; i++) {
			int p[2];

			CHECK(pipe2(p, O_CLOEXEC) == 0);
			snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=pipe-%d", i);
			CHECK(notify_send(notify, text, &p[0], 1) == 0);
		}
		die();
	}
	while (keeper_take(keeper, NULL, NULL) >= 0)
		n++;
	CHECK(n == STORES);
}

/* ---- other: what is passed comes every time ---- */

static void part_passed(int life)
{
	char name[KEEPER_NAME_MAX + 1];
	int fd = keeper_take(keeper, "socket", name);

	CHECK(fd >= 0 && strcmp(name, "socket") == 0);
	CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
	CHECK(write(fd, "0123456789" + life, 1) == 1);
	CHECK(keeper_take(keeper, "socket", name) == -ENOENT);
	CHECK(!getenv("LISTEN_FDS") && !getenv("LISTEN_PID") && !getenv("LISTEN_FDNAMES"));
	if (life < 4) /* dies of a signal before it was ever ready: started again all the same */
		die();
}

/* Hangs once it was ready; the second life is fine. */
static void part_hang(int life, void (*on_abort)(int))
{
	ready();
	if (life == 1) {
		CHECK(notify_watchdog_ns() > 0);
		CHECK(sigaction(SIGABRT, &(struct sigaction){ .sa_handler = on_abort }, NULL) == 0);
		for (;;)
			pause();
	}
}

/* ---- stops: for longer than its watchdog allows; it says so first (1), or hangs (2) ---- */

static void part_stops(int life)
{
	ready();
	CHECK(notify_watchdog_ns() > 0);
	CHECK(notify_send(notify, "STOPPING=1", NULL, 0) == 0);
	if (life == 2) {
		for (;;)
			pause();
	}
	if (life == 3)
		return;
	CHECK(notify_send(notify, "STATUS=stopped\nWATCHDOG_USEC=0", NULL, 0) == 0);
	usleep((useconds_t)(3 * notify_watchdog_ns() / 1000));
	say("stopped", "s");
	die(); /* the next one is watched again */
}

/* ---- orphans: the first life leaves processes behind, and all end together ---- */

enum { ORPHANS = 100 }; /* more than are reaped at once */

static void leave_orphans(void)
{
	int p[2];
	char byte;

	CHECK(pipe(p) == 0);
	for (int i = 0; i < ORPHANS; i++) {
		pid_t pid = fork();

		CHECK(pid >= 0);
		if (pid == 0) {
			close(p[1]);
			_exit(read(p[0], &byte, 1) == 0 ? 0 : 1); /* until this process ends */
		}
		say("orphans", "%d\n", (int)pid);
	}
	die();
}

static void part_orphans(int life)
{
	char path[300];
	FILE *f;
	int pid, n = 0;

	if (life == 1)
		leave_orphans();
	snprintf(path, sizeof(path), "%s/orphans", folder);
	f = fopen(path, "r");
	CHECK(f);
	for (; fscanf(f, "%d", &pid) == 1; n++) {
		for (int i = 0; i < 20000 && kill(pid, 0) == 0; i++)
			usleep(1000);
		CHECK(kill(pid, 0) == -1 && errno == ESRCH); /* a zombie would be there */
	}
	fclose(f);
	CHECK(n == ORPHANS);
}

static void run(const char *part, int life)
{
	if (strcmp(part, "memory") == 0)
		part_memory(life);
	else if (strcmp(part, "signals") == 0)
		wait_signals();
	else if (strcmp(part, "full") == 0 || strcmp(part, "refused") == 0)
		part_full(life, part[0] == 'f');
	else if (strcmp(part, "stores") == 0)
		part_stores();
	else if (strcmp(part, "orphan") == 0)
		part_orphan(life);
	else if (strcmp(part, "last") == 0)
		part_last(life);
	else if (strcmp(part, "passed") == 0)
		part_passed(life);
	else if (strcmp(part, "hang") == 0)
		part_hang(life, SIG_DFL);
	else if (strcmp(part, "deaf") == 0)
		part_hang(life, SIG_IGN);
	else if (strcmp(part, "stops") == 0)
		part_stops(life);
	else if (strcmp(part, "orphans") == 0)
		part_orphans(life);
	else if (strcmp(part, "config") == 0)
		exit(2);
	else if (strcmp(part, "stopped") == 0)
		exit(notify_send(notify, "READY=1", NULL, 0) == 0 ? 33 : 97);
	else
		exit(98);
}

/* A program that it starts would not have the supervisor's socket, under any number. */
static bool no_datagram_socket_is_inherited(void)
{
	for (int fd = 3; fd < 256; fd++) {
		int flags = fcntl(fd, F_GETFD), type = 0;
		socklen_t len = sizeof(type);

		if (flags >= 0 && !(flags & FD_CLOEXEC) &&
		    getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) == 0 && type == SOCK_DGRAM)
			return false;
	}
	return true;
}

int main(int argc, char **argv)
{
	struct memory_options o = { .budget = 64 << 20, .root = "" };
	sigset_t blocked;
	int life;

	if (argc != 3)
		return 99;
	folder = argv[1];
	say("lives", "x");
	life = count("lives");
	CHECK(life < 10);
	CHECK(sigprocmask(SIG_SETMASK, NULL, &blocked) == 0 && !sigismember(&blocked, SIGTERM));
	CHECK(notify_open(&notify, NULL) == 0 && notify_listened(notify));
	CHECK(!getenv(NOTIFY_FD_VAR) && !getenv(NOTIFY_PID_VAR) && !getenv("NOTIFY_SOCKET"));
	if (strcmp(argv[2], "refused") == 0)
		CHECK(unsetenv(KEEPER_MAX_VAR) == 0);
	CHECK(keeper_open(notify, &keeper, NULL) == 0);
	CHECK(!getenv(KEEPER_MAX_VAR));
	CHECK(no_datagram_socket_is_inherited());
	CHECK(memory_memfd_new(keeper, &o, &memory, NULL) == 0);
	run(argv[2], life);
	memory_memfd_free(memory);
	keeper_free(keeper);
	notify_free(notify);
	return 0;
}
