/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share.c - many users beside each other: each gets its share, nothing is lost, and when they rest
 * so does ckptd.
 *
 * Each user is a process of a uid of its own with 16 jobs open, which saves in all of them, waits
 * until all are committed, and begins again. A user's share is the number of commits that ckptd
 * acknowledged to it within WINDOW_MS; it may differ by 20 per cent from the mean of all. If shares
 * differ by more the window is made longer, WINDOWS times at most, which averages out chance. Every
 * step that was acknowledged is there afterwards, and after ckptd was stopped and started again.
 *
 * No supervisor: it could not pass the names of so many regions on (doc/operations.md, "The fd
 * store's limit").
 */
#include <config.h>

#include "tests/adversary/share.h"

#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <ckpt.h>

#include "base/err.h"
#include "tests/lib/test.h"

enum {
	USERS_MAX = 64,
	JOBS = 16,
	FIRST_UID = 20000,
	BYTES = 4096,
	CALL_MS = 60000,
	OPEN_MS = 100000,
	WARM_MS = 1000,
	WINDOW_MS = 8000,
	WINDOWS = 3,
	APART_PERCENT = 20,
	QUIET_MS = 500,
	SETTLE_MS = 6000, /* as bench/case_idle.c */
	IDLE_MS = 5000,
};
/* Per cent of a core: with one job less than what bench/case_idle.c allows; ckptd reads each rank's
 * page of beats once a second (254df30 took 0.54 for 1,024 ranks). */
#define IDLE_PERCENT 0.4
#define IDLE_PERCENT_OF_A_RANK 0.0006

enum phase { OPENING, SAVING, LISTING, RESTING, OVER };

struct user {
	atomic_int reached;     /* an enum phase */
	_Atomic uint64_t commits;
	uint64_t step[JOBS];    /* the newest that was acknowledged */
	char why[200];          /* it could not go on */
};

static struct {
	atomic_int phase;
	unsigned n;
	struct user users[USERS_MAX];
} * all; /* shared by all processes */

/* ---- A user ---- */

static _Noreturn void give_up(struct user *u, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(u->why, sizeof(u->why), fmt, ap);
	va_end(ap);
	atomic_store(&u->reached, OVER);
	_exit(1);
}

static struct ckpt *join(const struct rig *r, struct user *u, int job, const char *run)
{
	struct ckpt_options how = {.size = sizeof(how),
				   .socket = r->socket,
				   .run_id = run,
				   .connect_timeout_ms = CALL_MS,
				   .timeout_ms = CALL_MS};
	struct ckpt *c;
	char name[32];
	int code;

	snprintf(name, sizeof(name), "user-%d-%d", (int)(u - all->users), job);
	code = ckpt_open(name, 0, 1, &how, &c);
	if (code < 0)
		give_up(u, "open '%s': %.150s", name, ckpt_last_error(NULL));
	return c;
}

static void declare(struct user *u, struct ckpt *c)
{
	const uint64_t bytes = BYTES;
	struct ckpt_tensor t = {.size = sizeof(t),
				.name = "t",
				.dtype = CKPT_U8,
				.ndim = 1,
				.global_shape = &bytes};

	if (ckpt_declare(c, &t) < 0 || ckpt_prepare(c, BYTES) < 0)
		give_up(u, "prepare: %.180s", ckpt_last_error(NULL));
}

static void save_all(struct user *u, struct ckpt *const *c, uint64_t step)
{
	static uint8_t bytes[BYTES];
	struct ckpt_binding b = {
		.ptr = bytes, .device = CKPT_HOST, .dtype = CKPT_U8, .bytes = BYTES};
	struct ckpt_save_args a = {.size = sizeof(a),
				   .step = step,
				   .tensors = &b,
				   .n_tensors = 1,
				   .timeout_ms = CALL_MS,
				   .flags = CKPT_WAIT_CREDIT};

	memset(bytes, (int)step, sizeof(bytes));
	for (int i = 0; i < JOBS; i++)
		if (ckpt_save(c[i], &a) != 0)
			give_up(u, "save: %.180s", ckpt_last_error(NULL));
	for (int i = 0; i < JOBS; i++) {
		if (ckpt_wait(c[i], step, CKPT_COMMITTED, CALL_MS, NULL) != 0)
			give_up(u, "wait: %.180s", ckpt_last_error(NULL));
		u->step[i] = step;
		atomic_fetch_add(&u->commits, 1);
	}
}

static void look_for_step(struct user *u, struct ckpt *c, int job)
{
	struct ckpt_info newest = {0};
	int n = ckpt_list(c, &newest, 1);

	if (n < 1 || newest.step != u->step[job] || !(newest.memory || newest.disk))
		give_up(u, "job %d: step %llu was acknowledged, %d are there, the newest is %llu",
			job, (unsigned long long)u->step[job], n,
			(unsigned long long)newest.step);
}

static void await(enum phase phase)
{
	while (atomic_load(&all->phase) < (int)phase)
		rig_pause(20);
}

static _Noreturn void be_user(const struct rig *r, struct user *u)
{
	struct ckpt *c[JOBS];

	for (int i = 0; i < JOBS; i++) {
		c[i] = join(r, u, i, "run");
		declare(u, c[i]);
	}
	atomic_store(&u->reached, OPENING + 1);
	await(SAVING);
	for (uint64_t step = 1; atomic_load(&all->phase) == SAVING; step++)
		save_all(u, c, step);
	for (int i = 0; i < JOBS; i++)
		look_for_step(u, c[i], i);
	atomic_store(&u->reached, LISTING + 1);
	await(OVER);
	_exit(0);
}

/* A later launch of all jobs of a user, which looks what is there. */
static _Noreturn void be_user_again(const struct rig *r, struct user *u)
{
	for (int i = 0; i < JOBS; i++) {
		struct ckpt *c = join(r, u, i, "again");

		look_for_step(u, c, i);
		ckpt_close(c);
	}
	atomic_store(&u->reached, OVER);
	_exit(0);
}

/* ---- All of them ---- */

static void begin_users(const struct rig *r, void (*be)(const struct rig *, struct user *))
{
	for (unsigned i = 0; i < all->n; i++) {
		if (fork() != 0)
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (setgid(FIRST_UID + i) != 0 || setuid(FIRST_UID + i) != 0)
			_exit(1);
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* another uid has lost it */
		be(r, &all->users[i]);
	}
}

static void await_users(enum phase phase)
{
	uint64_t until = rig_now_ms() + OPEN_MS;

	for (unsigned i = 0; i < all->n;) {
		const struct user *u = &all->users[i];

		if (u->why[0])
			rig_fail("user %u: %s", i, u->why);
		if (atomic_load(&u->reached) >= (int)phase) {
			i++;
			continue;
		}
		RIG_CHECK(rig_now_ms() < until, "user %u has not come as far as phase %d", i,
			  (int)phase);
		rig_pause(20);
	}
}

static void count(uint64_t ret[USERS_MAX])
{
	for (unsigned i = 0; i < all->n; i++)
		ret[i] = atomic_load(&all->users[i].commits);
}

/* The smallest and largest share, as per cent of the mean, and the sum of all. */
struct shares {
	double least, most;
	uint64_t sum;
};

static struct shares shares_since(const uint64_t before[USERS_MAX])
{
	uint64_t now[USERS_MAX], least = UINT64_MAX, most = 0;
	struct shares s = {0};

	count(now);
	for (unsigned i = 0; i < all->n; i++) {
		uint64_t n = now[i] - before[i];

		s.sum += n;
		least = n < least ? n : least;
		most = n > most ? n : most;
	}
	RIG_CHECK(s.sum > 0, "nobody's save was committed");
	s.least = 100.0 * (double)least * all->n / (double)s.sum;
	s.most = 100.0 * (double)most * all->n / (double)s.sum;
	return s;
}

static bool are_alike(const struct shares *s)
{
	return s->least >= 100 - APART_PERCENT && s->most <= 100 + APART_PERCENT;
}

static struct shares measure_shares(double *ret_rate)
{
	uint64_t before[USERS_MAX], from;
	struct shares s = {0};

	atomic_store(&all->phase, SAVING);
	rig_pause(WARM_MS);
	from = rig_now_ms();
	count(before);
	for (int i = 0; i < WINDOWS && !are_alike(&s); i++) {
		rig_pause(WINDOW_MS);
		s = shares_since(before);
	}
	*ret_rate = 1e3 * (double)s.sum / (double)(rig_now_ms() - from);
	return s;
}

static double processor_s(pid_t pid)
{
	struct timespec t = {0};
	clockid_t clock;

	RIG_CHECK(clock_getcpuclockid(pid, &clock) == 0 && clock_gettime(clock, &t) == 0,
		  "the processor time of ckptd");
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Per cent of a core, once all is written. */
static double idle_cost(pid_t daemon)
{
	uint64_t until = rig_now_ms() + OPEN_MS;
	double from;

	do {
		from = processor_s(daemon);
		rig_pause(QUIET_MS);
		RIG_CHECK(rig_now_ms() < until, "ckptd does not come to rest");
	} while (processor_s(daemon) - from > 0.05 * QUIET_MS / 1e3);
	rig_pause(SETTLE_MS);
	from = processor_s(daemon);
	rig_pause(IDLE_MS);
	return 100 * (processor_s(daemon) - from) / (IDLE_MS / 1e3);
}

static void check_shares(double *ret_idle, pid_t daemon)
{
	struct shares s;
	double rate;

	await_users(OPENING + 1);
	s = measure_shares(&rate);
	atomic_store(&all->phase, LISTING);
	await_users(LISTING + 1);
	rig_note("share: %u users with %d jobs each, %.0f commits a second, %.0f to %.0f %% of the "
		 "mean",
		 all->n, (int)JOBS, rate, s.least, s.most);
	*ret_idle = idle_cost(daemon);
	rig_note("share: %.2f %% of a core while all rest", *ret_idle);
	RIG_CHECK(are_alike(&s), "users got %.0f to %.0f %% of the mean", s.least, s.most);
}

void share(struct rig *r)
{
	double idle;

	if (geteuid() != 0)
		rig_skip("root is needed to be many users");
	all = mmap(NULL, sizeof(*all), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	RIG_CHECK(all != MAP_FAILED, "mmap");
	all->n = (unsigned)test_cap("CKPT_SHARE_USERS", 12);
	RIG_CHECK(all->n <= USERS_MAX && chmod(r->dir, 0711) == 0, "chmod");
	r->plain = true;
	rig_arg(r, "--set");
	rig_arg(r, "memory.slots=2");
	rig_arg(r, "--set");
	rig_arg(r, "memory.budget=4G"); /* what is not used is not taken */
	rig_arg(r, "--set");
	rig_arg(r, "trust.recheck_rate=1T");
	rig_start(r);
	RIG_CHECK(chmod(r->socket, 0666) == 0, "chmod");
	begin_users(r, be_user);
	check_shares(&idle, rig_daemon(r));
	atomic_store(&all->phase, OVER);
	RIG_CHECK(rig_stop(r) == 0, "an orderly stop");
	for (unsigned i = 0; i < all->n; i++)
		ignore_result((int)waitpid(-1, NULL, 0));
	rig_start(r);
	RIG_CHECK(chmod(r->socket, 0666) == 0, "chmod");
	for (unsigned i = 0; i < all->n; i++)
		atomic_store(&all->users[i].reached, OPENING);
	begin_users(r, be_user_again);
	await_users(OVER);
	RIG_CHECK(rig_stop(r) == 0, "an orderly stop");
	RIG_CHECK(idle <= IDLE_PERCENT + IDLE_PERCENT_OF_A_RANK * all->n * JOBS,
		  "ckptd at rest takes %.2f %% of a core", idle);
}
