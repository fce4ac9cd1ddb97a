/* SPDX-License-Identifier: Apache-2.0 */
/*
 * case_python.c - what Python adds to a save of very many tensors.
 *
 *   python.save.200k         save() of 1 GiB in 200,000 numpy arrays   beside ckpt_save() of the
 *   python.save.200k.torch   the same of torch's tensors               same by a trainer in C
 *
 * A save in C, one in Python, again and again, each begun when the one before it is COMMITTED, with
 * no disk in use meanwhile. Once each, in the note: what declaring and preparing took, and then
 * what a load took in a process of its own. The processes in Python come one after the other, so
 * that there are never more than two states.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/server.h"
#include "bench/trainer.h"
#include "ckpt.h"

#define TENSORS 200000
#define PAIRS   9

struct both {
	struct bench *bench;
	struct server server;
	struct trainer c; /* the rank in C */
	pid_t pid;        /* of that in Python; 0: there is none */
	FILE *python;     /* what it says; its socket, to which steps are sent */
	uint64_t step;
};

/* Of a rank in Python, in seconds; second: of its prepare, or of a load that prepares. */
struct beginning {
	double declare, second;
};

/* ---- The rank in Python ---- */

static void set_if_unset(const char *name, const char *build, const char *file)
{
	char path[400];

	snprintf(path, sizeof(path), "%s/%s", build, file);
	setenv(name, access(path, R_OK) == 0 ? path : "no", 0);
}

static const char python[] = "/usr/bin/python3";

static void become_python(const struct both *x, const char *kind, const char *what, int fd)
{
	static const char script[] = SOURCE_FOLDER "/bench/python_save.py";
	char job[32], count[16], bytes[24];

	snprintf(job, sizeof(job), "many-%s", kind);
	snprintf(count, sizeof(count), "%d", TENSORS);
	snprintf(bytes, sizeof(bytes), "%llu", (unsigned long long)(x->bench->mib * MIB));
	setenv("CKPT_SOCKET", x->server.socket, 1);
	set_if_unset("CKPT_LIBRARY", x->bench->build, ".libs/libckpt.so.0");
	set_if_unset("CKPT_EXTENSION", x->bench->build, "python/ckpt/_bindings.abi3.so");
	if (dup2(fd, STDIN_FILENO) >= 0 && dup2(fd, STDOUT_FILENO) >= 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execl(python, python, script, job, kind, what, count, bytes, (char *)NULL);
	}
	_exit(127);
}

static int python_line(struct both *x, char line[80], struct err *e)
{
	if (!fgets(line, 80, x->python))
		return err_set(e, -EPIPE, "the rank in Python has ended");
	line[strcspn(line, "\n")] = '\0';
	return 0;
}

static void python_stop(struct both *x)
{
	if (x->python)
		fclose(x->python);
	while (x->pid > 0 && waitpid(x->pid, NULL, 0) < 0 && errno == EINTR)
		;
	x->python = NULL;
	x->pid = 0;
}

/* what: "save" or "load". 1: it is ready, 0: there is no such library here, or no Python, or an
 * error. */
static int python_start(struct both *x, const char *kind, const char *what, struct beginning *ret,
			struct err *e)
{
	unsigned long long declare, second;
	char line[80];
	int pair[2], r;

	assert(!x->python && x->pid == 0);
	if (access(python, X_OK) != 0)
		return 0;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
		return err_code(e, -errno, "start Python");
	x->pid = fork();
	if (x->pid == 0)
		become_python(x, kind, what, pair[1]);
	close(pair[1]);
	x->python = fdopen(pair[0], "r");
	if (x->pid < 0 || !x->python)
		return err_code(e, -errno, "start Python");
	r = python_line(x, line, e);
	if (r < 0 || sscanf(line, "ready %llu %llu", &declare, &second) != 2)
		return r;
	*ret = (struct beginning){seconds(declare), seconds(second)};
	return 1;
}

static int python_save(struct both *x, double *ret_s, double *ret_library_s, struct err *e)
{
	unsigned long long took, library;
	char line[80];
	int n, r;

	assert(x->python && x->pid > 0);
	n = snprintf(line, sizeof(line), "%llu\n", (unsigned long long)++x->step);
	if (send(fileno(x->python), line, (size_t)n, MSG_NOSIGNAL) != n)
		return err_set(e, -EPIPE, "the rank in Python has ended");
	r = python_line(x, line, e);
	if (r < 0)
		return r;
	if (sscanf(line, "%llu %llu", &took, &library) != 2)
		return err_set(e, -EPROTO, "the rank in Python said '%s'", line);
	*ret_s = seconds(took);
	*ret_library_s = seconds(library);
	return 0;
}

/* ---- The rank in C ---- */

static int c_start(struct both *x, struct err *e)
{
	struct order state = {
		.kind = ORDER_TENSORS, .bytes = x->bench->mib * MIB, .tensors = TENSORS};
	struct order open = {.kind = ORDER_OPEN, .job = "many-c", .run = "1", .world = 1};
	struct answer a;
	int r = trainer_start(&x->c, e);

	if (r == 0)
		r = trainer_ask(&x->c, &state, &a, e);
	snprintf(open.socket, sizeof(open.socket), "%.119s", x->server.socket);
	return r < 0 ? r : trainer_ask(&x->c, &open, &a, e);
}

static int c_save(struct both *x, double *ret_s, struct err *e)
{
	struct order save = {.kind = ORDER_SAVE, .step = ++x->step};
	struct order wait = {.kind = ORDER_WAIT, .step = x->step, .what = CKPT_COMMITTED};
	struct answer a;
	int r = trainer_ask(&x->c, &save, &a, e);

	*ret_s = seconds(a.end - a.begin);
	return r < 0 ? r : trainer_ask(&x->c, &wait, &a, e);
}

/* ---- Both ---- */

/* library: what libckpt took of the saves in Python. 1: measured, 0: there is no such library. */
static int pairs(struct both *x, const char *kind, struct series *s, struct series *library,
		 struct beginning *ret, struct err *e)
{
	int r = python_start(x, kind, "save", ret, e);

	for (int i = -1; i < PAIRS && r == 1; i++) { /* the first pair does not count */
		double took = 0, in_library = 0, c = 0;

		if (c_save(x, &c, e) < 0 || python_save(x, &took, &in_library, e) < 0)
			r = -1;
		if (r == 1 && i >= 0) {
			series_add(s, took, c);
			series_add(library, in_library, c);
		}
	}
	python_stop(x);
	return r;
}

/* As pairs(); fills the figure. */
static int measure(struct both *x, const char *kind, struct figure *f, struct err *e)
{
	struct series s = {.n = 0}, library = {.n = 0};
	struct beginning saving = {0}, loading = {0};
	int r = pairs(x, kind, &s, &library, &saving, e);

	if (r == 1)
		r = python_start(x, kind, "load", &loading, e);
	python_stop(x);
	if (r != 1)
		return r;
	figure_of(f, &s);
	snprintf(f->note, sizeof(f->note),
		 "in libckpt %.3f s of it; once: declare %.3f s, prepare %.3f s, load in a new "
		 "process %.3f s",
		 median(library.value, library.n), saving.declare, saving.second, loading.second);
	return 1;
}

void cases_python(struct bench *b)
{
	static const char *const sets[4] = {"checkpoint.persist_every=1000000", "memory.slots=2"};
	static const char *const kinds[] = {"numpy", "torch"};
	static const char *const names[] = {"python.save.200k", "python.save.200k.torch"};
	static struct both x;
	struct err e = {0};
	int r;

	if (!wanted(b, names[0]) && !wanted(b, names[1]))
		return;
	x.bench = b;
	r = server_start(&x.server, b, true, sets, &e);
	if (r == 0)
		r = c_start(&x, &e);
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		struct figure f = {.name = names[i],
				   .unit = "s",
				   .limit_name = "ckpt_save() of as many tensors by a trainer in C",
				   .target = 1.5,
				   .faults = -1};

		if (!wanted(b, names[i]))
			continue;
		if (r >= 0)
			r = measure(&x, kinds[i], &f, &e);
		if (r == 1)
			report(b, &f);
		else if (r == 0)
			say(b, "%s is not measured: there is no %s with %s", f.name, python,
			    kinds[i]);
		else
			cannot(b, f.name, &e);
	}
	trainer_stop(&x.c);
	server_stop(&x.server);
}
