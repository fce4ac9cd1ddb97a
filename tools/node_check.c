/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node_check.c - the verb `node-check`: runs the checks, judges them, remembers and says it.
 *
 * Exit status 0: fit; 1: not fit, do not give it work; 2: it could not be found out, or not of the
 * disk, as the ckptd whose folder lies on it gives no answer. So it serves
 * as a prolog of Slurm and as a custom plugin of node-problem-detector, whose last line of output
 * it is meant to be read by: one sentence.
 */
#include <config.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "tools/document.h"
#include "tools/files.h"
#include "tools/node_check.h"
#include "tools/print.h"

#define DATA_FOLDER    "/var/lib/ckptd"
#define MEMORY_DEFAULT (256ull << 20)
enum { RESULTS_MAX = 512, TIME_DEFAULT = 60 };

static const struct {
	const char *name;
	check_fn *run;
	double share; /* of the time */
} checks[] = {
	{"memory", check_memory, 0.2}, {"clock", check_clock, 0.05},    {"disk", check_disk, 0.25},
	{"gpu", check_gpu, 0.2},       {"network", check_network, 0.3},
};

const char *check_text(char buf[CHECK_TEXT_MAX], double value)
{
	snprintf(buf, CHECK_TEXT_MAX, fabs(value) >= 100 ? "%.0f" : "%.3g", value);
	return buf;
}

/* ---- In the child ---- */

void check_put(struct check_report *r, const struct check_result *result)
{
	/* Shorter than PIPE_BUF: whole or not at all. A parent that is gone wants nothing. */
	_Static_assert(sizeof(*result) <= 4096, "one write of a pipe");
	if (write(r->fd, result, sizeof(*result)) != (ssize_t)sizeof(*result))
		_exit(EXIT_UNKNOWN);
}

void check_value(struct check_report *r, const char *name, double value, const char *unit,
		 bool more_is_better)
{
	struct check_result c = {.value = value,
				 .more_is_better = more_is_better,
				 .state = CHECK_PASSED,
				 .low = -INFINITY,
				 .high = INFINITY};

	snprintf(c.name, sizeof(c.name), "%s", name);
	snprintf(c.unit, sizeof(c.unit), "%s", unit);
	check_put(r, &c);
}

void check_say(struct check_report *r, const char *name, enum check_state state, const char *fmt,
	       ...)
{
	struct check_result c = {.state = state, .low = -INFINITY, .high = INFINITY};
	va_list ap;

	snprintf(c.name, sizeof(c.name), "%s", name);
	va_start(ap, fmt);
	vsnprintf(c.words, sizeof(c.words), fmt, ap);
	va_end(ap);
	check_put(r, &c);
}

/* ---- In the parent ---- */

struct run {
	struct check_options options;
	struct check_result *results; /* RESULTS_MAX */
	size_t n;
	bool idle; /* we run when nobody else does (ckptd starts us so): slowness says nothing */
};

/* A later word on a name replaces the earlier one; a failure stays. */
static void take(struct run *run, const struct check_result *c)
{
	for (size_t i = 0; i < run->n; i++) {
		struct check_result *old = &run->results[i];

		if (strncmp(old->name, c->name, sizeof(c->name)) != 0)
			continue;
		if (c->state == CHECK_FAILED && old->unit[0] && !c->unit[0]) {
			old->state = CHECK_FAILED;
			memcpy(old->words, c->words, sizeof(old->words));
		} else if (old->state != CHECK_FAILED) {
			*old = *c;
		}
		return;
	}
	if (run->n < RESULTS_MAX)
		run->results[run->n++] = *c;
}

static void take_verdict(struct run *run, const char *name, enum check_state state, const char *fmt,
			 ...) __attribute__((format(printf, 4, 5)));
static void take_verdict(struct run *run, const char *name, enum check_state state, const char *fmt,
			 ...)
{
	struct check_result c = {.state = state, .low = -INFINITY, .high = INFINITY};
	va_list ap;

	snprintf(c.name, sizeof(c.name), "%s", name);
	va_start(ap, fmt);
	vsnprintf(c.words, sizeof(c.words), fmt, ap);
	va_end(ap);
	take(run, &c);
}

/* Until the pipe ends; false: the time is over and it has not. */
static bool listen_to(struct run *run, int fd, double deadline)
{
	for (;;) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		double left = deadline - check_now();
		struct check_result c;
		ssize_t n;

		if (left <= 0)
			return false;
		if (poll(&p, 1, (int)(left * 1e3) + 1) <= 0)
			continue;
		n = read(fd, &c, sizeof(c));
		if (n <= 0)
			return true;
		if (n != (ssize_t)sizeof(c) || !memchr(c.name, 0, sizeof(c.name)) ||
		    !memchr(c.words, 0, sizeof(c.words)) || !memchr(c.unit, 0, sizeof(c.unit)))
			continue;
		take(run, &c);
	}
}

static void child(const struct run *run, size_t which, int fd)
{
	struct check_report report = {.fd = fd};
	struct check_options o = run->options;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	o.seconds *= checks[which].share;
	checks[which].run(&o, &report);
	_exit(0);
}

static bool read_line(const char *path, char *line, size_t size)
{
	FILE *f = fopen(path, "re");
	bool any = f && fgets(line, (int)size, f);

	if (f)
		fclose(f);
	return any;
}

struct thread_time {
	double ran, waited; /* for a core, seconds */
	bool ready;         /* it runs, or waits for a core, */
	bool ended;         /* or was too late by less than it took to look */
};

/* /proc/PID/task/TID/schedstat; false: the kernel does not say. */
static bool thread_time(pid_t pid, const char *tid, struct thread_time *ret)
{
	char path[64], line[512];
	unsigned long long ran, waited;
	const char *state;

	snprintf(path, sizeof(path), "/proc/%d/task/%.16s/schedstat", (int)pid, tid);
	if (!read_line(path, line, sizeof(line)) || sscanf(line, "%llu %llu", &ran, &waited) != 2)
		return false;
	snprintf(path, sizeof(path), "/proc/%d/task/%.16s/stat", (int)pid, tid);
	state = read_line(path, line, sizeof(line)) ? strrchr(line, ')') : NULL;
	*ret = (struct thread_time){.ran = (double)ran / 1e9, .waited = (double)waited / 1e9};
	ret->ready = state && strncmp(state, ") R", 3) == 0;
	ret->ended = state && strncmp(state, ") Z", 3) == 0;
	return true;
}

/* Of one that has been there for so many seconds. The wait that still goes on is not in the
 * kernel's sum: one that is ready and has not run has waited. */
static double thread_waited(pid_t pid, const char *tid, double seconds)
{
	struct thread_time t;

	if (!thread_time(pid, tid, &t))
		return 0;
	return t.ready ? fmax(t.waited, seconds - t.ran) : t.waited;
}

/* The longest that a thread of that process has waited for a core; 0 where the kernel does not say.
 */
static double waited_for_core(pid_t pid, double seconds)
{
	char path[64];
	double longest = 0;
	struct dirent *d;
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	tasks = opendir(path);
	while (tasks && (d = readdir(tasks)))
		if (d->d_name[0] != '.')
			longest = fmax(longest, thread_waited(pid, d->d_name, seconds));
	if (tasks)
		closedir(tasks);
	return longest;
}

/* What all threads of that process have run and waited so far. ret_ready: one of them would run on,
 * or has ended. */
static double activity(pid_t pid, bool *ret_ready)
{
	char path[64];
	double sum = 0;
	struct dirent *d;
	DIR *tasks;

	*ret_ready = false;
	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	tasks = opendir(path);
	while (tasks && (d = readdir(tasks))) {
		struct thread_time t;

		if (d->d_name[0] == '.' || !thread_time(pid, d->d_name, &t))
			continue;
		sum += t.ran + t.waited;
		*ret_ready = *ret_ready || t.ready || t.ended;
	}
	if (tasks)
		closedir(tasks);
	return sum;
}

/* Whether it sleeps, for so long, and for nothing: then no core would have helped. */
static bool is_stuck(pid_t pid, double seconds)
{
	struct timespec t = {(time_t)seconds, (long)(fmod(seconds, 1) * 1e9)};
	bool ready, still;
	double before = activity(pid, &ready);

	nanosleep(&t, NULL);
	return !ready && activity(pid, &still) == before && !still;
}

/* Its time is over. What had to wait for cores for a quarter of it says nothing about the node,
 * unless it is stuck; at idle priority nothing does. */
static void take_late(struct run *run, const char *name, pid_t pid, double seconds)
{
	double waited = waited_for_core(pid, seconds);

	if (waited > seconds / 4 && is_stuck(pid, seconds / 4))
		waited = 0;
	if (run->idle)
		take_verdict(run, name, CHECK_SKIPPED,
			     "the check of %s did not end in time, at idle priority", name);
	else if (waited > seconds / 4)
		take_verdict(run, name, CHECK_SKIPPED,
			     "the check of %s did not end in %.1f s, and waited %.1f s of them for "
			     "a core: the node is too busy to tell",
			     name, seconds, waited);
	else
		take_verdict(run, name, CHECK_FAILED,
			     "the check of %s did not end in time: it hangs", name);
}

static int run_one(struct run *run, size_t which, struct err *e)
{
	const char *name = checks[which].name;
	double seconds = run->options.seconds * checks[which].share * 2;
	int ends[2], status = 0;
	bool ended;
	pid_t pid;

	if (pipe2(ends, O_CLOEXEC) < 0)
		return err_code(e, -errno, "start the check of %s", name);
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		close(ends[0]);
		child(run, which, ends[1]);
	}
	close(ends[1]);
	if (pid < 0) {
		close(ends[0]);
		return err_code(e, -errno, "start the check of %s", name);
	}
	ended = listen_to(run, ends[0], check_now() + seconds);
	close(ends[0]);
	if (!ended) {
		take_late(run, name, pid, seconds);
		/* Whoever waits for a device may not even be killed: nobody waits for it here. */
		kill(pid, SIGKILL);
		waitpid(pid, &status, WNOHANG);
	} else if (waitpid(pid, &status, 0) == pid && WIFSIGNALED(status)) {
		take_verdict(run, name, CHECK_FAILED,
			     "the check of %s was killed by signal %d (%s)", name, WTERMSIG(status),
			     strsignal(WTERMSIG(status)));
	}
	return 0;
}

/* ---- Telling ---- */

static const char *word_of(enum check_state s)
{
	return s == CHECK_PASSED ? "passed" : s == CHECK_FAILED ? "failed" : "skipped";
}

static json_t *bound(double v)
{
	return isfinite(v) ? json_real(v) : json_null();
}

static json_t *result_json(const struct check_result *c)
{
	json_t *o = json_pack("{s:s, s:s, s:o}", "name", c->name, "state", word_of(c->state),
			      "words", doc_name(c->words, strlen(c->words)));

	if (c->unit[0]) {
		json_object_set_new(o, "value", bound(c->value));
		json_object_set_new(o, "unit", json_string(c->unit));
	}
	if (c->compared) {
		json_object_set_new(o, "compared", json_integer(c->compared));
		json_object_set_new(o, "with", json_string(c->own ? "itself" : "fleet"));
		json_object_set_new(o, "median", bound(c->median));
		json_object_set_new(o, "low", bound(c->low));
		json_object_set_new(o, "high", bound(c->high));
	}
	return o;
}

static time_t wall_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec;
}

static json_t *run_json(const struct run *run, const char *node, bool passed)
{
	json_t *list = json_array();

	for (size_t i = 0; i < run->n; i++)
		json_array_append_new(list, result_json(&run->results[i]));
	return json_pack("{s:s, s:I, s:b, s:o}", "node", node, "time", (json_int_t)wall_seconds(),
			 "passed", passed, "results", list);
}

static int print_run(const struct run *run, const struct ctl *c)
{
	struct table *t = table_new("CHECK VALUE> OTHERS> RESULT");

	for (size_t i = 0; i < run->n; i++) {
		const struct check_result *r = &run->results[i];
		char text[CHECK_TEXT_MAX];

		if (c->talk < 0 && r->state != CHECK_FAILED)
			continue;
		table_cell(t, "%s", r->name);
		if (r->unit[0])
			table_cell(t, "%s %s", check_text(text, r->value), r->unit);
		else
			table_cell(t, "%s", "-");
		if (r->compared)
			table_cell(t, "%s", check_text(text, r->median));
		else
			table_cell(t, "%s", "-");
		table_cell(t, "%s%s%s", word_of(r->state), r->words[0] ? ": " : "", r->words);
	}
	return table_end(t);
}

static void say_fit(const struct run *run)
{
	char text[1200] = "";
	size_t used = 0;

	for (size_t i = 0; i < run->n && used < sizeof(text); i++)
		if (run->results[i].state == CHECK_SKIPPED)
			used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s",
						 used ? ", " : "", run->results[i].name);
	if (used)
		say("node-check: fit; not checked: %s", text);
	else
		say("node-check: fit");
}

static void conclude(const struct run *run, size_t failed)
{
	if (failed == 0 && run->options.lost_data) {
		say("node-check: not known: the disk was not checked: %s", run->options.no_data);
		return;
	}
	if (failed == 0) {
		say_fit(run);
		return;
	}
	for (size_t i = 0; i < run->n; i++)
		if (run->results[i].state == CHECK_FAILED) {
			say("node-check: not fit: %s%s", run->results[i].words,
			    failed > 1 ? " (and more)" : "");
			return;
		}
}

/* The folder that the environment names, as for all that writes files; it need not be there. Where
 * the ckptd that it names gives no answer the rest is checked, and the disk is not known. */
static void take_folder(const struct ctl *c, struct check_options *o)
{
	/* Of the options, which live as long as the program. */
	static char path[PATH_MAX];
	static struct err why;
	const char *data = getenv("CKPT_DATA"), *socket = getenv("CKPT_SOCKET");

	o->no_data = "no folder was named with --data";
	if (c->data) {
		o->data = c->data;
	} else if ((data && data[0]) || (socket && socket[0])) {
		o->lost_data = data_find(NULL, path, &why) < 0;
		if (o->lost_data)
			o->no_data = why.text;
		else
			o->data = path;
	} else if (access(DATA_FOLDER, W_OK | X_OK) == 0) {
		o->data = DATA_FOLDER;
	}
}

static int take_options(const struct ctl *c, struct check_options *o, struct err *e)
{
	*o = (struct check_options){.memory = c->memory ? c->memory : MEMORY_DEFAULT,
				    .seconds = c->time ? c->time : TIME_DEFAULT,
				    .peers = c->peers,
				    .self = c->self};
	take_folder(c, o);
	if (o->memory % 4096 != 0)
		return err_set(e, -EINVAL, "--memory must be a multiple of 4096");
	return 0;
}

static int finish(const struct ctl *c, struct run *run, const struct check_history *history,
		  struct err *e)
{
	size_t failed = 0, measured = 0;
	char node[256] = "";
	json_t *doc;
	/* What a busy node has left over is not compared with what an idle one has. */
	int r = run->idle ? 0 : check_judge(run->results, run->n, c->fleet, history, e);

	if (r < 0)
		return r;
	for (size_t i = 0; i < run->n; i++) {
		failed += run->results[i].state == CHECK_FAILED;
		measured += run->results[i].state == CHECK_PASSED;
	}
	if (gethostname(node, sizeof(node) - 1) < 0)
		node[0] = '\0';
	doc = run_json(run, node, failed == 0);
	if (history && !run->idle)
		r = check_remember(history, doc, e);
	if (r < 0) {
		complain("%s", e->text); /* the result is known all the same */
		r = 0;
	}
	if (c->json) {
		print_json(doc);
	} else {
		json_decref(doc);
		r = print_run(run, c);
		conclude(run, failed);
	}
	if (r < 0 || failed)
		return r < 0 ? r : EXIT_PROBLEM;
	return measured && !run->options.lost_data ? EXIT_FINE : EXIT_UNKNOWN;
}

int verb_node_check(const struct ctl *c, struct err *e)
{
	struct check_history history = {.in.folder = -1, .path = c->history};
	struct run run = {0};
	int r = 0;

	r = take_options(c, &run.options, e);
	if (r < 0)
		return r;
	if (!c->history && run.options.data &&
	    beneath_open(run.options.data, &history.in, NULL) == 0)
		history.path = "checks/history";
	run.idle = sched_getscheduler(0) == SCHED_IDLE;
	run.results = alloc_array(RESULTS_MAX, sizeof(*run.results));
	if (!run.results)
		return err_code(e, -ENOMEM, "node-check");
	for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]) && r == 0; i++)
		r = run_one(&run, i, e);
	if (r == 0)
		r = finish(c, &run, history.path ? &history : NULL, e);
	beneath_close(&history.in);
	alloc_free(run.results);
	return r;
}
