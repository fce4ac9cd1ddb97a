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

/* ---- full: the store says no, and is believed; what fits is kept ---- */

static void part_full(int life)
{
	char name[32];
	int stored = 0, r = 0, n = 0;

	if (life == 1) {
		while (r == 0 && stored < 1000) {
			int p[2];

			CHECK(pipe2(p, O_CLOEXEC) == 0);
			snprintf(name, sizeof(name), "pipe-%d", stored);
			r = keeper_store(keeper, name, p[0]);
			close(p[0]);
			close(p[1]);
			stored += r == 0;
		}
		CHECK(r == -EIO && stored > 10);
		CHECK(keeper_remove(keeper, "pipe-0") == 0); /* and the next answer is clean */
		say("stored", "%*s", stored - 1, "");
		die();
	}
	while (keeper_take(keeper, NULL, NULL) >= 0)
		n++;
	CHECK(n == count("stored"));
}

/* ---- other: an impostor knows the socket's name; what is passed comes every time ---- */

static void part_impostor(int life)
{
	if (life == 1) {
		say("address", "%s", getenv("NOTIFY_SOCKET"));
		wait_signals(); /* the test sends, then SIGTERM to this process alone */
		die();
	}
	CHECK(keeper_take(keeper, NULL, NULL) == -ENOENT);
}

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

static void run(const char *part, int life)
{
	if (strcmp(part, "memory") == 0)
		part_memory(life);
	else if (strcmp(part, "signals") == 0)
		wait_signals();
	else if (strcmp(part, "full") == 0)
		part_full(life);
	else if (strcmp(part, "impostor") == 0)
		part_impostor(life);
	else if (strcmp(part, "passed") == 0)
		part_passed(life);
	else if (strcmp(part, "hang") == 0)
		part_hang(life, SIG_DFL);
	else if (strcmp(part, "deaf") == 0)
		part_hang(life, SIG_IGN);
	else if (strcmp(part, "config") == 0)
		exit(2);
	else if (strcmp(part, "stopped") == 0)
		exit(notify_send(notify, "READY=1", NULL, 0) == 0 ? 33 : 97);
	else
		exit(98);
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
	CHECK(keeper_open(notify, &keeper, NULL) == 0);
	CHECK(memory_memfd_new(keeper, &o, &memory, NULL) == 0);
	run(argv[2], life);
	memory_memfd_free(memory);
	keeper_free(keeper);
	notify_free(notify);
	return 0;
}
