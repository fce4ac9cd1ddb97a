/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How an attack by one user affects another user that trains and saves.
 *
 *   test_adversary [NAME]...    all of them, or those named
 *
 * Each attack is a test: two processes of the attacker's uid go on with it while a rank of another
 * user saves, waits until it is committed, and saves again. The baseline is the same beside two
 * processes that burn the attacker's processor time and do not call ckptd. Attack and baseline take
 * turns, so that other load on the machine affects both. The bounds:
 *
 *   saves     all are committed; the slowest of a hundred (p99) takes at most twice as long as
 *             beside the burners, plus 10 ms. If it does not, as many again are measured, and all
 *             of them count: this averages out chance
 *   loop      no call takes more than 1 ms of its thread's processor time, as ckptd measures it.
 *             That time includes work of the kernel and a hypervisor (interrupts, memory that
 *             others have freed), a few milliseconds now and then, with any load. So as above: if
 *             each turn of the attack had such a call, more turns follow. A call that is long by
 *             its own work is long in each of them. Either one turn is without, or long calls are
 *             no more frequent than machine.c found, at the same time, that work which is always
 *             short is made long: by processor time at most AS_OFTEN times as frequent, one more
 *             than it found counted, over TURNS_ENOUGH turns at least. In any case no more than
 *             one call in a thousand is long
 *   launch    another job of the user opens, declares, prepares and has its first step committed
 *             within 5 s
 *   memory    MEMORY_KIB more than before at most, descriptors DESCRIPTORS
 *   stop      an orderly stop ends within 5 s, while the attack goes on
 *   SIGKILL   ends ckptd within 1 s, while the attack goes on, and another one can be started; its
 *             receivers end within 1 s after it or, if they hang in a file of the attacker's,
 *             within 1 s after the attacker's end
 *
 * and beside these share.c: many users that all only save.
 */
#include <config.h>

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ckpt.h>

#include "base/err.h"
#include "tests/adversary/attack.h"
#include "tests/adversary/machine.h"
#include "tests/adversary/share.h"
#include "tests/lib/rig.h"

enum {
	ATTACKER = 12345, /* its uid */
	SAVES = 60,       /* in one turn of the burners or the attack */
	TURNS = 2,
	TURNS_ENOUGH = 2 * TURNS, /* to say that the machine does it */
	TURNS_MAX = 3 * TURNS,
	TURN_MS = 10000, /* then a turn ends, however few its saves */
	AS_OFTEN = 3,
	MORE_MS = 45000,  /* then no further turn begins */
	BEGIN_MS = 10000, /* an attack that is held up itself is under way */
	ELEMENTS = 1 << 18,
	SETTLE_MS = 200,
	SETUP_MS = 60000,
	LAUNCH_MS = 5000,
	STOP_MS = 5000,
	KILL_MS = 1000,
	ALLOWED_US = 10000,
	STATUS_S = 20,
	/* What ckptd may hold for one uid (doc/operations.md, "Several users"): answers that wait,
	 * declarations, answers being made. */
	MEMORY_KIB = 512 << 10,
	/* 2,048 connections, a pidfd for the process of each, 1,024 descriptors that wait, and
	 * ckptd's own. */
	DESCRIPTORS = 6144,
};

/* ---- Broken bounds ---- */

/* Prints each broken bound, not only the first. */
static char broken[500];

__attribute__((format(printf, 2, 3))) static void must_hold(bool holds, const char *fmt, ...)
{
	size_t n = strlen(broken);
	va_list ap;

	if (holds)
		return;
	if (n > 0 && n + 2 < sizeof(broken))
		n += (size_t)snprintf(broken + n, sizeof(broken) - n, "; ");
	va_start(ap, fmt);
	if (n < sizeof(broken))
		vsnprintf(broken + n, sizeof(broken) - n, fmt, ap);
	va_end(ap);
}

/* ---- The attacker ---- */

struct attackers {
	pid_t pids[ATTACKERS];
};

static void become(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (setgid(ATTACKER) != 0 || setuid(ATTACKER) != 0)
		_exit(1);
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* another uid has lost it */
}

static void attack_begin(struct rig *r, const struct attack *a, struct attackers *all)
{
	for (int i = 0; i < ATTACKERS; i++) {
		char folder[200], said;
		struct attack_options o = {
			.socket = r->socket, .folder = folder, .number = (unsigned)i};
		struct pollfd p = {.events = POLLIN};
		int tell[2];

		snprintf(folder, sizeof(folder), "%s/attack%d", r->dir, i);
		mkdir(folder, 0711);
		snprintf(folder, sizeof(folder), "%s/attack%d/mnt", r->dir, i);
		RIG_CHECK(pipe(tell) == 0, "pipe");
		o.tell = tell[1];
		all->pids[i] = fork();
		if (all->pids[i] == 0) {
			setpgid(0, 0); /* with what it begins */
			said = a->prepare && a->prepare(&o) < 0 ? 's' : 0;
			if (said && write(tell[1], &said, 1) == 1)
				_exit(0);
			become();
			a->run(&o);
		}
		close(tell[1]);
		said = 'b';
		p.fd = tell[0];
		RIG_CHECK(poll(&p, 1, BEGIN_MS) == 0 || read(tell[0], &said, 1) == 1,
			  "the attack could not be begun");
		close(tell[0]);
		if (said == 's')
			rig_skip("this machine has not got what '%s' needs", a->name);
	}
}

static void attack_end(struct attackers *all)
{
	for (int i = 0; i < ATTACKERS; i++) {
		kill(-all->pids[i], SIGKILL); /* file servers too: hanging processes go on */
		kill(all->pids[i], SIGKILL);
	}
	for (int i = 0; i < ATTACKERS; i++)
		while (waitpid(all->pids[i], NULL, 0) < 0 && errno == EINTR)
			;
}

/* Makes what the attack needs. */
static void set_up(struct rig *r, const struct attack *a)
{
	struct attack_options o = {.socket = r->socket, .folder = r->dir};
	uint64_t until = rig_now_ms() + SETUP_MS;
	int status = 0;
	pid_t pid;

	if (a->make)
		a->make();
	if (!a->setup)
		return;
	pid = fork();
	if (pid == 0) {
		become();
		a->setup(&o);
		_exit(0);
	}
	while (waitpid(pid, &status, WNOHANG) == 0) {
		RIG_CHECK(rig_now_ms() < until, "what '%s' needs is not there in time", a->name);
		rig_pause(5);
	}
	RIG_CHECK(status == 0, "what '%s' needs could not be made: %#x", a->name, (unsigned)status);
}

/* ---- The user that trains ---- */

struct times {
	double us[SAVES * TURNS_MAX];
	size_t n;
};

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double share_below(struct times *t, double share)
{
	qsort(t->us, t->n, sizeof(t->us[0]), by_size);
	return t->us[(size_t)(share * (double)(t->n - 1) + 0.5)];
}

static void train(struct trainer_process *t, struct times *ret)
{
	uint64_t until = rig_now_ms() + TURN_MS;
	static int step;

	for (int i = 0; i < SAVES && rig_now_ms() < until; i++) {
		double faults;

		step++;
		trainer_must(t, "save %d 1 50000", step);
		if (sscanf(t->text, "%lf %lf", &faults, &ret->us[ret->n]) != 2)
			rig_fail("save: '%s'", t->text);
		ret->n++;
		trainer_must(t, "wait %d %d 50000", step, CKPT_COMMITTED);
	}
}

/* A job for which ckptd has yet to make memory and put it into the fd store. */
static void launch_beside(struct rig *r)
{
	static const char *const lines[] = {"open second 0 1 run 50000", "declare 65536 8",
					    "prepare 4096", "save 1 1 50000",
					    "wait 1 2 50000" /* COMMITTED */};
	uint64_t from = rig_now_ms(), until = from + LAUNCH_MS, now;
	struct trainer_process t;
	int code = 0;

	trainer_start(&t, r, NULL);
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]) && code >= 0; i++) {
		now = rig_now_ms();
		trainer_tell(&t, "%s", lines[i]);
		code = trainer_answer(&t, now < until ? until - now : 1);
		must_hold(code >= 0, "a launch beside it: %s: %.100s", lines[i],
			  code == INT_MIN ? "no answer in time" : t.text);
	}
	rig_note("a launch beside it took %llu ms", (unsigned long long)(rig_now_ms() - from));
	if (code >= 0)
		trainer_exit(&t);
	else
		trainer_kill(&t);
}

/* ---- ckptd ---- */

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

/* Of the loop: since it began, as it says. */
struct loop_counts {
	unsigned long long calls, above, cpu_us, longest_us;
	char longest[100];
};

static bool count_of(const char *at, const char *key, unsigned long long *ret)
{
	const char *value = at ? strstr(at, key) : NULL;

	return value && sscanf(value + strlen(key), " %llu", ret) == 1;
}

/* What ckptd measured of its loop, asked for while the attack goes on. False: it does not say. */
static bool look_at_loop(const struct rig *r, struct loop_counts *ret)
{
	static char text[4 << 20];
	const char *top = getenv("top_builddir"), *at, *quoted;
	char line[600];
	FILE *f;

	snprintf(line, sizeof(line), "timeout %d %s/ckptctl --socket %s --json status 2>&1",
		 STATUS_S, top ? top : ".", r->socket);
	f = popen(line, "re");
	RIG_CHECK(f, "cannot start ckptctl");
	text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
	pclose(f); /* it says with its status whether there are alarms */
	if (!strstr(text, "\"schema\"")) {
		must_hold(false, "status is not answered within %d s: %.60s", STATUS_S, text);
		return false;
	}
	*ret = (struct loop_counts){0};
	at = strstr(text, "\"loop\": {");
	quoted = at ? strstr(at, "\"longest\": \"") : NULL;
	if (!count_of(at, "\"calls\":", &ret->calls) ||
	    !count_of(at, "\"cpu_us\":", &ret->cpu_us) ||
	    !count_of(at, "\"long_calls\":", &ret->above) ||
	    !count_of(at, "\"longest_us\":", &ret->longest_us)) {
		must_hold(false, "the loop does not measure its calls");
		return false;
	}
	if (quoted)
		sscanf(quoted, "\"longest\": \"%99[^\"]", ret->longest);
	return true;
}

/* How many receivers there are that ckptd or this test is parent of. As the subreaper it takes
 * those that have ended; of what it began itself it waits for each elsewhere. */
static unsigned receivers(const struct rig *r)
{
	char path[300], comm[32];
	unsigned n = 0;
	struct dirent *e;
	DIR *d = opendir("/proc");

	while (d && (e = readdir(d))) {
		pid_t parent = 0;
		bool is_one;
		FILE *f;

		snprintf(path, sizeof(path), "/proc/%.20s/stat", e->d_name);
		f = e->d_name[0] >= '0' && e->d_name[0] <= '9' ? fopen(path, "re") : NULL;
		is_one = f && fscanf(f, "%*d (%31[^)]) %*c %d", comm, &parent) == 2 &&
			 strcmp(comm, "ckpt-receiver") == 0;
		if (f)
			fclose(f);
		if (is_one && parent == getpid())
			n += waitpid((pid_t)strtol(e->d_name, NULL, 10), NULL, WNOHANG) == 0;
		else if (is_one)
			n += parent == rig_daemon(r);
	}
	if (d)
		closedir(d);
	return n;
}

/* The receivers of a ckptd that has ended. */
static void await_receivers(const struct rig *r, const char *whose)
{
	uint64_t from = rig_now_ms();
	unsigned left;

	while ((left = receivers(r)) > 0 && rig_now_ms() - from < 3 * KILL_MS)
		rig_pause(1);
	from = rig_now_ms() - from;
	rig_note("its receivers ended %llu ms after %s", (unsigned long long)from, whose);
	must_hold(left == 0 && from <= KILL_MS, "%u receivers are there %llu ms after %s", left,
		  (unsigned long long)from, whose);
}

/* Beside the attack. */
static void kill_ckptd(struct rig *r)
{
	pid_t daemon = rig_daemon(r);
	uint64_t from;

	kill(r->pid, SIGKILL); /* the supervisor would begin another */
	waitpid(r->pid, NULL, 0);
	r->pid = 0;
	from = rig_now_ms();
	kill(daemon, SIGKILL);
	while (waitpid(daemon, NULL, WNOHANG) == 0 && rig_now_ms() - from < 10 * KILL_MS)
		rig_pause(1);
	from = rig_now_ms() - from;
	rig_note("SIGKILL ended ckptd after %llu ms", (unsigned long long)from);
	must_hold(from <= KILL_MS, "SIGKILL ends ckptd after %llu ms", (unsigned long long)from);
}

/* A second launch, which is killed beside the attack, and a third one, which comes up beside it. */
static void killed(struct rig *r, struct attackers *attackers)
{
	const struct attack *a = r->arg;

	rig_start(r);
	RIG_CHECK(chmod(r->socket, 0666) == 0, "chmod");
	rig_pause(500); /* the attack goes on there */
	kill_ckptd(r);
	if (!a->prepare)
		await_receivers(r, "ckptd");
	rig_start(r);
	kill_ckptd(r);
	attack_end(attackers);
	await_receivers(r, "the attacker");
}

/* ---- The test ---- */

struct measured {
	struct times quiet, beside;
	int turns;
	unsigned long long least_above; /* long calls, in the turn with the fewest */
	struct loop_counts first, loop; /* at the begin and the end */
	unsigned long memory_kib;       /* most */
	unsigned files;
};

static bool is_slow(struct measured *m)
{
	return share_below(&m->beside, 0.99) > 2 * share_below(&m->quiet, 0.99) + ALLOWED_US;
}

/* Ends while the attack goes on. */
static void measure(struct rig *r, struct trainer_process *t, struct measured *m,
		    struct attackers *all)
{
	uint64_t until = rig_now_ms() + MORE_MS;
	pid_t daemon = rig_daemon(r);

	m->least_above = UINT64_MAX;
	ignore_result(look_at_loop(r, &m->first));
	machine_begin();
	for (int turn = 0; turn < TURNS || (turn < TURNS_MAX && rig_now_ms() < until &&
					    (is_slow(m) || (m->least_above > 0 && !broken[0])));
	     turn++) {
		struct loop_counts before;
		unsigned long memory;
		unsigned files;

		if (turn > 0)
			attack_end(all);
		attack_begin(r, &attacks[0], all);
		rig_pause(SETTLE_MS);
		train(t, &m->quiet);
		attack_end(all);
		if (!look_at_loop(r, &before))
			before = m->loop;
		attack_begin(r, r->arg, all);
		rig_pause(SETTLE_MS);
		train(t, &m->beside);
		m->turns++;
		if (look_at_loop(r, &m->loop) && m->loop.above - before.above < m->least_above)
			m->least_above = m->loop.above - before.above;
		memory = status_of(daemon, "RssAnon:");
		files = descriptors(daemon);
		m->memory_kib = memory > m->memory_kib ? memory : m->memory_kib;
		m->files = files > m->files ? files : m->files;
	}
	RIG_CHECK(rig_daemon(r) == daemon, "ckptd was replaced");
}

static void look_at_calls(const struct attack *a, const struct measured *m)
{
	struct machine_counts c = machine_look();
	double cpu_us = (double)(m->loop.cpu_us - m->first.cpu_us);
	double machines = (double)(c.above + 1) * cpu_us / c.cpu_us;
	bool often = (double)(m->loop.above - m->first.above) > AS_OFTEN * machines;
	bool is_ours = m->least_above > 0 && (often || m->turns < TURNS_ENOUGH);

	rig_note("%s: %llu calls on the loop, %.0f ms, %llu above 1 ms, the longest %llu us (%s)",
		 a->name, m->loop.calls, (double)m->loop.cpu_us / 1e3, m->loop.above,
		 m->loop.longest_us, m->loop.longest);
	rig_note("the machine: %llu pieces of work of %.0f us, %llu above 1 ms, the longest %.0f "
		 "us",
		 c.pieces, c.cpu_us / (double)c.pieces, c.above, c.longest_us);
	must_hold(!is_ours && m->loop.above <= m->loop.calls / 1000,
		  "%llu of %llu calls on the loop above 1 ms, some in each turn; by the machine "
		  "about %.1f; the longest %llu us (%s)",
		  m->loop.above, m->loop.calls, machines, m->loop.longest_us, m->loop.longest);
}

static void stop_beside(struct rig *r)
{
	uint64_t from = rig_now_ms();
	int status = rig_stop(r);

	from = rig_now_ms() - from;
	rig_note("stopped after %llu ms", (unsigned long long)from);
	must_hold(status == 0, "ckptd stops with status %#x", (unsigned)status);
	must_hold(from <= STOP_MS, "an orderly stop takes %llu ms", (unsigned long long)from);
}

static void arm(const struct attack *a)
{
	if (!a->fault)
		return;
#ifdef CKPT_FAULTS
	setenv("CKPT_FAULT", a->fault, 1); /* of this test, a process of its own */
#else
	rig_skip("this build has no fault points");
#endif
}

static void beside(struct rig *r)
{
	static struct measured m;
	const struct attack *a = r->arg;
	struct trainer_process t;
	struct attackers all;
	unsigned long memory;

	if (geteuid() != 0)
		rig_skip("root is needed to be two users");
	arm(a);
	RIG_CHECK(chmod(r->dir, 0711) == 0, "chmod");
	rig_start(r);
	RIG_CHECK(chmod(r->socket, 0666) == 0, "chmod");
	trainers_join(&t, 1, r, "job", "run", ELEMENTS, 8);
	trainer_must(&t, "prepare 65536");
	memory = status_of(rig_daemon(r), "RssAnon:");
	set_up(r, a);
	measure(r, &t, &m, &all);
	rig_note("%s: p99 %.1f ms (median %.1f), beside a burner %.1f (%.1f), of %zu and %zu saves",
		 a->name, share_below(&m.beside, 0.99) / 1e3, share_below(&m.beside, 0.5) / 1e3,
		 share_below(&m.quiet, 0.99) / 1e3, share_below(&m.quiet, 0.5) / 1e3, m.beside.n,
		 m.quiet.n);
	rig_note("%s: %lu KiB, %lu before; %u descriptors", a->name, m.memory_kib, memory, m.files);
	must_hold(!is_slow(&m), "p99 of save() %.1f ms, %.1f beside a burner",
		  share_below(&m.beside, 0.99) / 1e3, share_below(&m.quiet, 0.99) / 1e3);
	must_hold(m.memory_kib < memory + MEMORY_KIB, "ckptd takes %lu KiB, %lu before",
		  m.memory_kib, memory);
	must_hold(m.files < DESCRIPTORS, "ckptd has %u descriptors", m.files);
	look_at_calls(a, &m);
	launch_beside(r);
	trainer_exit(&t);
	stop_beside(r);
	killed(r, &all);
	if (broken[0])
		rig_fail("%s", broken);
}

int main(int argc, char **argv)
{
	struct rig_test tests[32];
	size_t n = 0;

	for (size_t i = 1; i < n_attacks; i++)
		tests[n++] = (struct rig_test){attacks[i].name, beside, &attacks[i]};
	tests[n++] = (struct rig_test){"share", share, NULL};
	return rig_run(tests, n, 1, argc, argv);
}
