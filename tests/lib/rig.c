/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "tests/lib/rig.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "tests/lib/test.h"

#define LOOK_MS 5

void rig_pause(unsigned ms)
{
	struct timespec t = { ms / 1000, (long)(ms % 1000) * 1000000 };

	nanosleep(&t, NULL);
}

uint64_t rig_now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* ---- ckptd ---- */

void rig_init(struct rig *r, const char *dir)
{
	char *made = test_dir_make(dir);

	memset(r, 0, sizeof(*r));
	snprintf(r->dir, sizeof(r->dir), "%s", made);
	free(made);
	snprintf(r->data, sizeof(r->data), "%s/data", r->dir);
	snprintf(r->socket, sizeof(r->socket), "%s/sock", r->dir);
	snprintf(r->log, sizeof(r->log), "%s/log", r->dir);
	rig_arg(r, "--set");
	rig_arg(r, "memory.budget=512M");
	rig_arg(r, "--set");
	rig_arg(r, "storage.disk_reserve=0");
	rig_arg(r, "--set"); /* other tests break file systems, and the kernel says so */
	rig_arg(r, "detect.kernel=no");
}

void rig_fini(struct rig *r)
{
	test_dir_remove(strdup(r->dir));
}

void rig_arg(struct rig *r, const char *arg)
{
	size_t n = 0;

	while (r->args[n])
		n++;
	assert(n + 1 < sizeof(r->args) / sizeof(r->args[0]));
	r->args[n] = arg;
}

void rig_env(struct rig *r, const char *assignment)
{
	size_t n = 0;

	while (r->env[n])
		n++;
	assert(n + 1 < sizeof(r->env) / sizeof(r->env[0]));
	r->env[n] = assignment;
}

static const char *built(const char *name, char *buf, size_t size)
{
	const char *top = getenv("top_builddir");

	snprintf(buf, size, "%s/%s", top ? top : ".", name);
	return buf;
}

static _Noreturn void exec_ckptd(struct rig *r)
{
	char program[512], *argv[48];
	size_t n = 0;
	int fd = open(r->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	argv[n++] = (char *)built("ckptd/ckptd", program, sizeof(program));
	if (!r->plain)
		argv[n++] = (char *)"--user";
	argv[n++] = (char *)"--socket";
	argv[n++] = r->socket;
	argv[n++] = (char *)"--data";
	argv[n++] = r->data;
	for (size_t i = 0; r->args[i]; i++)
		argv[n++] = (char *)r->args[i];
	argv[n] = NULL;
	for (size_t i = 0; r->env[i]; i++)
		putenv((char *)r->env[i]);
	dup2(fd, STDERR_FILENO);
	dup2(fd, STDOUT_FILENO);
	execv(program, argv);
	_exit(127);
}

bool rig_connects(const struct rig *r)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	bool ok;

	snprintf(a.sun_path, sizeof(a.sun_path), "%.107s", r->socket);
	ok = connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0;
	close(fd);
	return ok;
}

void rig_wait(bool (*is_true)(void *arg), void *arg, const char *what)
{
	uint64_t until = rig_now_ms() + RIG_PATIENCE_MS;

	while (!is_true(arg)) {
		if (rig_now_ms() > until)
			rig_fail("waited in vain until %s", what);
		rig_pause(LOOK_MS);
	}
}

static bool started(void *arg)
{
	struct rig *r = arg;

	if (waitpid(r->pid, NULL, WNOHANG) == r->pid)
		rig_fail("ckptd ended at its start");
	return rig_connects(r) && rig_log_count(r, " ready: ") >= (unsigned)r->starts;
}

void rig_start(struct rig *r)
{
	r->starts++;
	r->pid = fork();
	if (r->pid == 0)
		exec_ckptd(r);
	RIG_CHECK(r->pid > 0, "fork");
	rig_wait(started, r, "ckptd lets somebody in");
}

pid_t rig_daemon(const struct rig *r)
{
	char path[192], text[32] = "";
	int fd;
	pid_t pid = 0;

	snprintf(path, sizeof(path), "%s/LOCK", r->data);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0 && read(fd, text, sizeof(text) - 1) > 0)
		pid = (pid_t)atoi(text);
	if (fd >= 0)
		close(fd);
	return pid > 0 && kill(pid, 0) == 0 ? pid : 0;
}

struct restart {
	struct rig *rig;
	pid_t before;
};

static bool restarted(void *arg)
{
	struct restart *x = arg;
	pid_t now = rig_daemon(x->rig);

	return now != 0 && now != x->before && rig_connects(x->rig);
}

void rig_wait_restart(struct rig *r, pid_t before)
{
	struct restart x = { r, before };

	rig_wait(restarted, &x, "ckptd comes back");
}

static bool gone(void *arg)
{
	return kill(*(pid_t *)arg, 0) < 0;
}

void rig_kill_all(struct rig *r)
{
	pid_t daemon = rig_daemon(r);

	/* The supervisor first: it would start another. */
	kill(r->pid, SIGKILL);
	if (daemon)
		kill(daemon, SIGKILL);
	waitpid(r->pid, NULL, 0);
	if (daemon)
		waitpid(daemon, NULL, 0); /* ours to reap now: PR_SET_CHILD_SUBREAPER */
	if (daemon)
		rig_wait(gone, &daemon, "the daemon is dead");
	r->pid = 0;
}

int rig_stop(struct rig *r)
{
	uint64_t until = rig_now_ms() + RIG_PATIENCE_MS;
	int status;

	kill(r->pid, SIGTERM);
	while (waitpid(r->pid, &status, WNOHANG) == 0) {
		RIG_CHECK(rig_now_ms() < until, "ckptd does not stop");
		rig_pause(LOOK_MS);
	}
	r->pid = 0;
	return status;
}

int rig_ctl(const struct rig *r, char *ret_text, size_t size, const char *fmt, ...)
{
	char program[512], words[256], line[1200];
	size_t n = 0;
	va_list ap;
	FILE *f;
	int status;

	va_start(ap, fmt);
	vsnprintf(words, sizeof(words), fmt, ap);
	va_end(ap);
	built("ckptctl", program, sizeof(program));
	if (strncmp(words, "verify", 6) == 0) /* reads files, asks nobody */
		snprintf(line, sizeof(line), "%s --data %s %s 2>&1", program, r->data, words);
	else
		snprintf(line, sizeof(line), "%s --socket %s %s 2>&1", program, r->socket, words);
	f = popen(line, "re");
	RIG_CHECK(f, "cannot start ckptctl");
	n = fread(ret_text, 1, size - 1, f);
	ret_text[n] = '\0';
	status = pclose(f);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

const char *rig_step_field(const struct rig *r, const char *job, uint64_t step, const char *field,
			   char ret[64])
{
	static char text[65536];
	char key[64];
	const char *at;

	ret[0] = '\0';
	/* With an error it has printed nothing that we look for. */
	ignore_result(rig_ctl(r, text, sizeof(text), "--json list %s", job));
	snprintf(key, sizeof(key), "\"step\": %llu,", (unsigned long long)step);
	at = strstr(text, key);
	snprintf(key, sizeof(key), "\"%s\": ", field);
	at = at ? strstr(at, key) : NULL;
	if (at)
		sscanf(at + strlen(key), "%*[\"]%63[^\",\n]", ret);
	if (at && !ret[0])
		sscanf(at + strlen(key), "%63[^\",\n]", ret);
	return ret;
}

unsigned rig_log_count(const struct rig *r, const char *words)
{
	char line[4096];
	unsigned n = 0;
	FILE *f = fopen(r->log, "re");

	while (f && fgets(line, sizeof(line), f))
		n += strstr(line, words) != NULL;
	if (f)
		fclose(f);
	return n;
}

void rig_check_log(const struct rig *r)
{
	unsigned all = rig_log_count(r, "was killed by signal ");
	unsigned kills = rig_log_count(r, "was killed by signal 9:");

	RIG_CHECK(all == kills, "ckptd crashed %u times", all - kills);
	RIG_CHECK(rig_log_count(r, "ssertion") == 0, "an assertion of ckptd failed");
}

/* ---- Trainers ---- */

static _Noreturn void exec_trainer(const struct rig *r, const char *const *env, int in, int out)
{
	char program[512];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(in, STDIN_FILENO);
	dup2(out, STDOUT_FILENO);
	setenv("CKPT_SOCKET", r->socket, 1);
	setenv("CKPT_TIMEOUT", "30", 1);
	unsetenv("CKPT_RUN_ID");
	for (size_t i = 0; env && env[i]; i++)
		putenv((char *)env[i]);
	built("tests/lib/trainer", program, sizeof(program));
	execl(program, program, (char *)NULL);
	_exit(127);
}

void trainer_start(struct trainer_process *t, struct rig *r, const char *const *env)
{
	int in[2], out[2];

	memset(t, 0, sizeof(*t));
	RIG_CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0, "pipe");
	t->rig = r;
	t->pid = fork();
	if (t->pid == 0)
		exec_trainer(r, env, in[0], out[1]);
	RIG_CHECK(t->pid > 0, "fork");
	close(in[0]);
	close(out[1]);
	t->in = in[1];
	t->out = out[0];
}

static void tell(struct trainer_process *t, const char *fmt, va_list ap)
{
	char line[512];
	int n = vsnprintf(line, sizeof(line) - 1, fmt, ap);

	line[n++] = '\n';
	ignore_result((int)write(t->in, line, (size_t)n) /* its end is seen at the answer */);
}

void trainer_tell(struct trainer_process *t, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	tell(t, fmt, ap);
	va_end(ap);
}

/* 1: a line is in buf; 0: not yet; -1: never. */
static int read_line(struct trainer_process *t, int timeout_ms)
{
	struct pollfd p = { .fd = t->out, .events = POLLIN };
	ssize_t n;

	if (memchr(t->buf, '\n', t->held))
		return 1;
	if (poll(&p, 1, timeout_ms) <= 0)
		return 0;
	n = read(t->out, t->buf + t->held, sizeof(t->buf) - 1 - t->held);
	if (n <= 0)
		return -1;
	t->held += (size_t)n;
	return memchr(t->buf, '\n', t->held) ? 1 : 0;
}

int trainer_answer(struct trainer_process *t, int timeout_ms)
{
	uint64_t now = rig_now_ms(), until = now + (uint64_t)timeout_ms;
	char *end, *words;
	int r;

	while ((r = read_line(t, now < until ? (int)(until - now) : 0)) == 0 && now < until)
		now = rig_now_ms();
	if (r <= 0) {
		snprintf(t->text, sizeof(t->text), "%s",
			 r < 0 ? "the trainer ended" : "no answer in time");
		return INT_MIN;
	}
	end = memchr(t->buf, '\n', t->held);
	*end = '\0';
	r = (int)strtol(t->buf, &words, 10);
	snprintf(t->text, sizeof(t->text), "%s", words + (*words == ' '));
	t->held -= (size_t)(end + 1 - t->buf);
	memmove(t->buf, end + 1, t->held);
	return r;
}

int trainer_ask(struct trainer_process *t, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	tell(t, fmt, ap);
	va_end(ap);
	return trainer_answer(t, RIG_PATIENCE_MS);
}

int trainer_must(struct trainer_process *t, const char *fmt, ...)
{
	char what[128];
	va_list ap;
	int r;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	va_start(ap, fmt);
	tell(t, fmt, ap);
	va_end(ap);
	r = trainer_answer(t, RIG_PATIENCE_MS);
	if (r < 0)
		rig_fail("%s: %d %s", what, r, t->text);
	return r;
}

int trainer_must_again(struct trainer_process *t, const char *fmt, ...)
{
	uint64_t until = rig_now_ms() + RIG_PATIENCE_MS;
	char line[256];
	va_list ap;
	int r;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	while ((r = trainer_ask(t, "%s", line)) == CKPT_EUNAVAILABLE && rig_now_ms() < until)
		rig_pause(LOOK_MS);
	if (r < 0)
		rig_fail("%s: %d %s", line, r, t->text);
	return r;
}

static void trainer_end(struct trainer_process *t)
{
	waitpid(t->pid, NULL, 0);
	close(t->in);
	close(t->out);
	t->pid = 0;
}

void trainer_kill(struct trainer_process *t)
{
	kill(t->pid, SIGKILL);
	trainer_end(t);
}

void trainer_exit(struct trainer_process *t)
{
	trainer_tell(t, "exit");
	trainer_end(t);
}

void trainers_join(struct trainer_process *t, unsigned n, struct rig *r, const char *job,
		   const char *run, unsigned long elements, unsigned small)
{
	for (unsigned i = 0; i < n; i++) {
		trainer_start(&t[i], r, NULL);
		trainer_tell(&t[i], "open %s %u %u %s 10000", job, i, n, run);
		trainer_tell(&t[i], "declare %lu %u", elements, small);
	}
	for (unsigned i = 0; i < n; i++)
		for (int k = 0; k < 2; k++)
			if (trainer_answer(&t[i], RIG_PATIENCE_MS) < 0)
				rig_fail("rank %u joins: %s", i, t[i].text);
}

int trainers_save(struct trainer_process *t, unsigned n, uint64_t step, uint64_t tag)
{
	int r = 0;

	for (unsigned i = 0; i < n; i++)
		trainer_tell(&t[i], "save %llu %llu 20000", (unsigned long long)step,
			     (unsigned long long)tag);
	for (unsigned i = 0; i < n; i++) {
		int one = trainer_answer(&t[i], RIG_PATIENCE_MS);

		r = one < 0 ? one : r;
	}
	return r;
}

size_t trainer_list(struct trainer_process *t, struct listed *ret, size_t n)
{
	size_t k = 0;
	char *save = NULL;
	int all = trainer_must_again(t, "list");

	for (char *w = strtok_r(t->text, " ", &save); w && k < n; w = strtok_r(NULL, " ", &save)) {
		struct listed *l = &ret[k++];
		unsigned long long step, epoch;

		if (sscanf(w, "%llu/%llu/%d/%d/%d/%d", &step, &epoch, &l->memory, &l->disk,
			   &l->pinned, &l->latest) != 6)
			rig_fail("list: '%s'", w);
		l->step = step;
		l->epoch = epoch;
	}
	RIG_CHECK((size_t)all == k, "list: %d said, %zu given", all, k);
	return k;
}

const struct listed *listed_find(const struct listed *l, size_t n, uint64_t step)
{
	for (size_t i = 0; i < n; i++)
		if (l[i].step == step)
			return &l[i];
	return NULL;
}
