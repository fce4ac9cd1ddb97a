/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_detect.c - the failure detector over the real thing: ckptd and ranks that train, die, are
 * stopped, wait for ever, compute NaN, work more than the others; and kernel messages through a
 * FIFO; and the checkpoint that is taken because of it: rows F1, F3, F4 and F6 of doc/features.md.
 *
 * How long it takes is printed. What is asserted is many times more: this machine may be busy.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/fake_libnvidia_ml.h"
#include "tests/lib/rig.h"
#include "tests/lib/stepper.h"

enum {
	RANKS = 4,
	STEP_MS = 60,
	LEARN_STEPS = 40,
	SLOW_STEP_MS = 50,
	WINDOW_STEPS = 128, /* detect/straggler.h: of such steps, in 6 to 12 s */
	BOUND_MS = 30000,
	SLOW_BOUND_MS = 120000
};

struct gang {
	struct rig *rig;
	unsigned step_ms;
	pid_t pids[RANKS];
	struct stepper_shared *shared;
};

static _Noreturn void exec_rank(const struct gang *g, int rank)
{
	const struct rig *r = g->rig;
	const char *top = getenv("top_builddir");
	char program[512], number[16], world[16], ms[16];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setenv("CKPT_SOCKET", r->socket, 1);
	snprintf(program, sizeof(program), "%s/tests/lib/stepper", top ? top : ".");
	snprintf(number, sizeof(number), "%d", rank);
	snprintf(world, sizeof(world), "%d", RANKS);
	snprintf(ms, sizeof(ms), "%u", g->step_ms);
	execl(program, program, "gang", number, world, "run1", r->dir, ms, (char *)NULL);
	_exit(127);
}

static void make_shared(struct gang *g)
{
	char path[200];
	pthread_barrierattr_t attr;
	int fd;

	snprintf(path, sizeof(path), "%s/barrier", g->rig->dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	RIG_CHECK(fd >= 0 && ftruncate(fd, sizeof(*g->shared)) == 0, "make '%s'", path);
	g->shared = mmap(NULL, sizeof(*g->shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	RIG_CHECK(g->shared != MAP_FAILED, "map '%s'", path);
	close(fd);
	pthread_barrierattr_init(&attr);
	pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	RIG_CHECK(pthread_barrier_init(&g->shared->barrier, &attr, RANKS) == 0, "a barrier");
}

static bool has_learned(void *arg)
{
	struct gang *g = arg;

	for (int i = 0; i < RANKS; i++) {
		int status;

		RIG_CHECK(waitpid(g->pids[i], &status, WNOHANG) == 0, "rank %d ended by itself", i);
		if (g->shared->steps[i] < LEARN_STEPS)
			return false;
	}
	return true;
}

static unsigned alarms(const struct rig *r)
{
	return rig_log_count(r, " alarm, ");
}

/* Four ranks of a ckptd that runs; they have done some steps, and nothing is said of them. */
static void train(struct gang *g)
{
	struct rig *r = g->rig;

	for (int i = 0; i < RANKS; i++) {
		g->pids[i] = fork();
		if (g->pids[i] == 0)
			exec_rank(g, i);
		RIG_CHECK(g->pids[i] > 0, "fork");
	}
	rig_wait(has_learned, g, "the ranks have trained for a while");
	RIG_CHECK(alarms(r) == 0, "something is said of ranks that only train");
}

static void start_alone(struct gang *g, struct rig *r)
{
	*g = (struct gang){.rig = r, .step_ms = STEP_MS};
	rig_start(r);
	make_shared(g);
}

static void begin(struct gang *g, struct rig *r)
{
	rig_arg(r, "--set");
	rig_arg(r, "detect.interval=1s");
	start_alone(g, r);
	train(g);
}

/* Waits for a line with these words; the line, without its newline. */
static void await_for(const struct rig *r, uint64_t from_ms, uint64_t bound_ms, const char *words,
		      char line[RIG_LINE])
{
	for (;;) {
		FILE *f = fopen(r->log, "re");
		bool found = false;

		while (f && !found && fgets(line, RIG_LINE, f))
			found = strstr(line, words) != NULL;
		if (f)
			fclose(f);
		if (found)
			break;
		RIG_CHECK(rig_now_ms() - from_ms < bound_ms, "nothing says '%s'", words);
		rig_pause(5);
	}
	line[strcspn(line, "\n")] = '\0';
}

static void await(const struct rig *r, uint64_t from_ms, const char *words, char line[RIG_LINE])
{
	await_for(r, from_ms, BOUND_MS, words, line);
}

static uint64_t step_ms(const struct gang *g)
{
	uint64_t begin = g->shared->steps[0], from = rig_now_ms();

	while (g->shared->steps[0] < begin + 10)
		rig_pause(5);
	return (rig_now_ms() - from) / 10;
}

/* The parent takes its child away a little later, as launchers do. */
static void reap_later(struct gang *g, int rank)
{
	rig_pause(50);
	RIG_CHECK(waitpid(g->pids[rank], NULL, 0) == g->pids[rank], "wait for rank %d", rank);
	g->pids[rank] = 0;
}

static void killed(struct rig *r)
{
	char line[RIG_LINE];
	struct gang g;
	uint64_t from;

	begin(&g, r);
	from = rig_now_ms();
	kill(g.pids[2], SIGKILL);
	reap_later(&g, 2);
	await(r, from, "alarm, dead: rank 2 of job gang", line);
	rig_note("a rank that is killed: told after %d ms (at most 1000 are wanted)",
		 (int)(rig_now_ms() - from));
	RIG_CHECK(strstr(line, "signal 9"), "it does not say how: %s", line);
	rig_check_log(r);
}

/* Those that live of ranks first to last end while no ckptd runs, and are nobody's any more. */
static void kill_while_away(struct gang *g, int first, int last)
{
	struct rig *r = g->rig;
	pid_t ckptd = rig_daemon(r);

	RIG_CHECK(ckptd > 0 && ckptd != r->pid, "no ckptd that is supervised");
	kill(r->pid, SIGSTOP); /* it starts the next one when it goes on */
	kill(ckptd, SIGKILL);
	for (int i = first; i <= last; i++) {
		if (!g->pids[i])
			continue;
		kill(g->pids[i], SIGKILL);
		reap_later(g, i);
	}
	kill(r->pid, SIGCONT);
	rig_wait_restart(r, ckptd);
}

static void killed_while_ckptd_was_away(struct rig *r)
{
	char line[RIG_LINE], events[1 << 16];
	struct gang g;

	begin(&g, r);
	kill_while_away(&g, 2, 2);
	await(r, rig_now_ms(), "alarm, dead: rank 2 of job gang", line);
	RIG_CHECK(strstr(line, "ended while ckptd was away, nobody knows when or how"),
		  "it does not say how: %s", line);
	RIG_CHECK(alarms(r) == 1, "%u alarms", alarms(r));
	RIG_CHECK(rig_ctl(r, events, sizeof(events), "events") == 0, "events: %s", events);
	RIG_CHECK(strstr(events, "rank 2 of job gang") && strstr(events, "ckptd was away"),
		  "events do not say it: %s", events);
	/* All that are left: the job may have come to its end, and nobody is accused. */
	kill_while_away(&g, 0, RANKS - 1);
	await(r, rig_now_ms(), "all its processes here have ended while ckptd was away", line);
	RIG_CHECK(alarms(r) == 1, "%u alarms", alarms(r));
}

/* The subject is the one that was stopped, though the others stand still too. */
static void stopped(struct rig *r)
{
	char line[RIG_LINE];
	struct gang g;
	uint64_t from, usual, took;

	begin(&g, r);
	usual = step_ms(&g);
	from = rig_now_ms();
	kill(g.pids[1], SIGSTOP);
	await(r, from, " alarm, hung: ", line);
	took = rig_now_ms() - from;
	rig_note("SIGSTOP: told after %d ms; steps take %d ms, so at most %d are wanted", (int)took,
		 (int)usual, (int)(3 * usual + 2000));
	RIG_CHECK(strstr(line, "hung: rank 1 of job gang"), "another one is accused: %s", line);
	kill(g.pids[1], SIGCONT);
	await(r, rig_now_ms(), "rank 1 of job 'gang' is no longer hung", line);
	rig_check_log(r);
}

static void deadlocked(struct rig *r)
{
	char line[RIG_LINE];
	struct gang g;
	uint64_t from, usual, took;

	begin(&g, r);
	usual = step_ms(&g);
	from = rig_now_ms();
	kill(g.pids[3], SIGUSR1);
	await(r, from, " alarm, hung: ", line);
	took = rig_now_ms() - from;
	rig_note("deadlock: told after %d ms; steps take %d ms, so at most %d are wanted",
		 (int)took, (int)usual, (int)(3 * usual + 2000));
	RIG_CHECK(strstr(line, "hung: rank 3 of job gang"), "another one is accused: %s", line);
	rig_check_log(r);
}

static void not_a_number(struct rig *r)
{
	char line[RIG_LINE];
	struct gang g;
	uint64_t from;

	begin(&g, r);
	from = rig_now_ms();
	kill(g.pids[0], SIGUSR2);
	await(r, from, " alarm, diverging: ", line);
	rig_note("NaN: told after %d ms", (int)(rig_now_ms() - from));
	RIG_CHECK(strstr(line, "rank 0 of job gang"), "another one is accused: %s", line);
	RIG_CHECK(strstr(line, "a loss that is no finite number"), "it does not say what: %s",
		  line);
	rig_check_log(r);
}

/* ---- One that is slow ---- */

static bool at_window(void *arg)
{
	struct gang *g = arg;

	return g->shared->steps[0] % WINDOW_STEPS == 0;
}

/*
 * Works 30 % more per step than it did, and than the others: it is named, and nobody else is.
 * Windows of steps are judged, so it begins with one; the ranks hardly compute, since there may be
 * more of them than cores, and whoever waits for a core would look slow.
 */
static void slow(struct rig *r)
{
	char line[RIG_LINE];
	struct gang g;
	uint64_t from, took;

	start_alone(&g, r);
	g.step_ms = SLOW_STEP_MS;
	g.shared->computes_permille = 50;
	train(&g);
	rig_wait(at_window, &g, "a window of steps begins");
	from = rig_now_ms();
	g.shared->slower_permille[2] = 300;
	await_for(r, from, SLOW_BOUND_MS, " alarm, slow: ", line);
	took = rig_now_ms() - from;
	rig_note("a rank that works 30 %% more: told after %d ms (at most 60000 are wanted)",
		 (int)took);
	RIG_CHECK(strstr(line, "slow: rank 2 of job gang"), "another one is accused: %s", line);
	RIG_CHECK(alarms(r) == 1, "%u alarms", alarms(r));
	rig_check_log(r);
}

/* ---- Kernel messages ---- */

static int open_fifo(struct rig *r, char path[200])
{
	static char set[300];
	int fd;

	snprintf(path, 200, "%s/kmsg", r->dir);
	RIG_CHECK(mkfifo(path, 0600) == 0, "make '%s'", path);
	snprintf(set, sizeof(set), "detect.kmsg=%s", path);
	rig_arg(r, "--set");
	rig_arg(r, "detect.kernel=yes");
	rig_arg(r, "--set");
	rig_arg(r, set);
	rig_start(r);
	fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
	RIG_CHECK(fd >= 0, "ckptd does not read '%s'", path);
	return fd;
}

static void put(int fd, const char *text)
{
	RIG_CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text), "write to the FIFO");
}

/* A GPU that falls off the bus; before it somebody who only says so, by /dev/kmsg or syslog. */
static void xid(struct rig *r)
{
	char path[200], line[RIG_LINE];
	int fd = open_fifo(r, path);
	uint64_t from;

	put(fd, "12,1,100,-;NVRM: Xid (PCI:0000:9a:00): 79, pid='<unknown>', GPU has fallen off "
		"the bus.\n");
	put(fd, "4,2,101,-;python3[7]: NVRM: Xid (PCI:0000:9c:00): 79, GPU has fallen off\n");
	from = rig_now_ms();
	put(fd,
	    "4,3,102,-;NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has "
	    "fallen off the bus.\n");
	await(r, from, "GPU 0000:9b:00", line);
	rig_note("Xid: told after %d ms (at most 1000 are wanted)", (int)(rig_now_ms() - from));
	RIG_CHECK(strstr(line, "79"), "it does not say which: %s", line);
	RIG_CHECK(rig_log_count(r, "0000:9a:00") == 0, "a spoofed message is believed");
	RIG_CHECK(rig_log_count(r, "0000:9c:00") == 0, "a process is believed");
	close(fd);
	rig_check_log(r);
}

static void write_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "we");

	RIG_CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0, "write '%s'", path);
}

/* ---- A checkpoint because of it ---- */

static bool all_saved(void *arg)
{
	struct gang *g = arg;

	for (int i = 0; i < RANKS; i++)
		if (!g->shared->saves_done[i])
			return false;
	return true;
}

static bool is_durable(void *arg)
{
	struct gang *g = arg;
	char disk[64];

	rig_step_field(g->rig, "gang", g->shared->saved[0], "disk", disk);
	return strcmp(disk, "durable") == 0;
}

/* A GPU of the node fails: all ranks of its job save the same step, once, and it is kept. */
static void saves_when_told(struct rig *r)
{
	char path[200], line[RIG_LINE];
	struct gang g = {.rig = r, .step_ms = STEP_MS};
	uint64_t from;
	int fd;

	fd = open_fifo(r, path);
	make_shared(&g);
	g.shared->saves = true;
	train(&g);
	RIG_CHECK(!g.shared->saves_done[0], "it saved, and nobody had asked for it");
	from = rig_now_ms();
	put(fd, "4,3,102,-;NVRM: Xid (PCI:0000:9b:00): 62, pid=7, name=python3, 00000a2a\n");
	await(r, from, "job 'gang': its ranks are asked to save at step ", line);
	rig_wait(all_saved, &g, "all ranks have saved");
	rig_note("Xid 62: every rank has saved after %d ms", (int)(rig_now_ms() - from));
	for (int i = 0; i < RANKS; i++)
		RIG_CHECK(g.shared->saved[i] == strtoull(strstr(line, "step ") + 5, NULL, 10) &&
				  g.shared->saves_done[i] == 1,
			  "rank %d saved step %llu, %u times; %s", i,
			  (unsigned long long)g.shared->saved[i], g.shared->saves_done[i], line);
	rig_wait(is_durable, &g, "the checkpoint is durable");
	RIG_CHECK(rig_log_count(r, "GPU 0000:9b:00 is suspect from now on") == 1,
		  "it is not marked by its address");
	close(fd);
	rig_check_log(r);
}

/* A GPU is lost where a site's table says this; what is advised. */
static void lose_gpu_with(struct rig *r, const char *row, const char *advice)
{
	char path[200], table[200], line[RIG_LINE];
	static char set[300];
	int fd;

	snprintf(table, sizeof(table), "%s/xid.tsv", r->dir);
	write_file(table, row);
	snprintf(set, sizeof(set), "detect.xid_table=%s", table);
	rig_arg(r, "--set");
	rig_arg(r, set);
	fd = open_fifo(r, path);
	put(fd, "4,3,102,-;NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.\n");
	await(r, rig_now_ms(), "GPU 0000:9b:00", line);
	RIG_CHECK(strstr(line, advice), "it advises something else: %s", line);
	close(fd);
}

/* What a site says of an Xid holds; what is misspelt there costs the overrides alone. */
static void xid_table(struct rig *r)
{
	lose_gpu_with(r, "79\t*\tvalidate\n", "run the node check");
	rig_check_log(r);
}

static void xid_table_misspelt(struct rig *r)
{
	lose_gpu_with(r, "79\t*\tvalidat\n", "drain the node and start it again");
	RIG_CHECK(rig_log_count(r, "line 1: action is 'validat'") == 1, "the mistake is not told");
}

/* GPUs that rest, of a stand-in for the driver's library; each rank holds one. */
static void put_gpus(const struct rig *r, const struct gang *g)
{
	char path[200], text[200] = "";
	size_t n = 0;

	for (int i = 0; i < RANKS; i++)
		n += (size_t)snprintf(text + n, sizeof(text) - n, "%d %d 0\n", i, (int)g->pids[i]);
	snprintf(path, sizeof(path), "%s/gpus", r->dir);
	write_file(path, text);
}

/* It waits for ever, and its GPU is seen to rest: told before the two minutes that who sleeps on a
 * node with GPUs has where nobody sees them. */
static void deadlocked_beside_its_gpu(struct rig *r)
{
	char top[PATH_MAX], library[PATH_MAX + 100], file[200], line[RIG_LINE];
	const char *build = getenv("top_builddir");
	struct gang g;
	uint64_t from;

	RIG_CHECK(realpath(build ? build : ".", top), "no build folder");
	snprintf(library, sizeof(library), "CKPT_LIBNVIDIA_ML=%s/.libs/libfakenvml.so", top);
	rig_env(r, library);
	snprintf(file, sizeof(file), FAKE_NVML_FILE "=%s/gpus", r->dir);
	rig_env(r, file);
	begin(&g, r);
	put_gpus(r, &g);
	from = rig_now_ms();
	kill(g.pids[3], SIGUSR1);
	await(r, from, " alarm, hung: ", line);
	rig_note("deadlock beside a GPU that rests: told after %d ms", (int)(rig_now_ms() - from));
	RIG_CHECK(strstr(line, "hung: rank 3 of job gang"), "another one is accused: %s", line);
	rig_check_log(r);
}

int main(int argc, char **argv)
{
	static const struct rig_test tests[] = {
		RIG_TEST(killed),
		RIG_TEST(killed_while_ckptd_was_away),
		RIG_TEST(stopped),
		RIG_TEST(deadlocked),
		RIG_TEST(not_a_number),
		RIG_TEST(slow),
		RIG_TEST(xid),
		RIG_TEST(saves_when_told),
		RIG_TEST(xid_table),
		RIG_TEST(xid_table_misspelt),
		RIG_TEST(deadlocked_beside_its_gpu),
	};

	return rig_run(tests, sizeof(tests) / sizeof(tests[0]), 1, argc, argv);
}
