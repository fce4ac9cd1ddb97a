/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What processes do: on made-up trees, and real children that compute, sleep, wait and are stopped.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ckptd/collect_process.h"
#include "ckptd/loop_epoll.h"
#include "ckptd/processes.h"
#include "ckptd/test_collect_tree.h"
#include "tests/lib/silent_fuse.h"

#define SECOND 1000000000ull

static int setup(void **state)
{
	*state = tree_new(&collect_memory); /* only its folder is used */
	return 0;
}

static int teardown(void **state)
{
	tree_free(*state);
	return 0;
}

static void put_stat(struct tree *t, const char *path, const char *name, char state, unsigned user,
		     unsigned start)
{
	char text[300];

	snprintf(text, sizeof(text),
		 "7 (%s) %c 1 1 1 0 -1 4 0 0 0 0 %u 50 0 0 20 0 3 0 %u 100 5 1 0\n", name, state,
		 user, start);
	tree_put(t, path, text);
}

static const struct process_id seven = {.pid = 7, .uid = 1000, .start = 4000};

static int look(struct tree *t, struct process_look *l, struct sample_activity *a)
{
	t->now_ns += SECOND;
	return process_look_at(t->dir, &seven, 100, t->now_ns, l, a);
}

static void test_states_and_cpu(void **state)
{
	static const struct {
		char in, out;
	} states[] = {{'R', 'R'}, {'S', 'S'}, {'D', 'D'}, {'T', 'T'}, {'t', 'T'},
		      {'Z', 'Z'}, {'X', 'Z'}, {'I', '?'}, {'?', '?'}};
	struct process_look l = {0};
	struct sample_activity a;
	struct tree *t = *state;

	put_stat(t, "7/stat", "py) R 1 (x", 'S', 100, 4000); /* a name that lies */
	assert_int_equal(look(t, &l, &a), 0);
	assert_int_equal(a.state, 'S');
	assert_int_equal(a.cpu_permille, UINT16_MAX); /* nothing to compare with */
	assert_int_equal(a.gpu_permille, UINT16_MAX);
	assert_int_equal(a.timed, TIMED_NOT_KNOWN); /* neither file is there */
	put_stat(t, "7/stat", "x", 'S', 150, 4000);
	assert_int_equal(look(t, &l, &a), 0);
	assert_int_equal(a.cpu_permille, 500);
	put_stat(t, "7/stat", "x", 'S', 150, 4000);
	assert_int_equal(look(t, &l, &a), 0);
	assert_int_equal(a.cpu_permille, 0);
	put_stat(t, "7/stat", "x", 'S', 1000000, 4000);
	assert_int_equal(look(t, &l, &a), 0);
	assert_int_equal(a.cpu_permille, 65000);
	for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
		put_stat(t, "7/stat", "x", states[i].in, 100, 4000);
		assert_int_equal(look(t, &l, &a), 0);
		assert_int_equal(a.state, states[i].out);
	}
}

static void test_running_threads(void **state)
{
	struct process_look l = {0};
	struct sample_activity a;
	struct tree *t = *state;
	char path[64];

	put_stat(t, "7/stat", "x", 'S', 1, 4000);
	put_stat(t, "7/task/7/stat", "x", 'S', 1, 4000);
	put_stat(t, "7/task/8/stat", "x", 'R', 1, 4000);
	put_stat(t, "7/task/9/stat", "x) S (", 'R', 1, 4000);
	assert_int_equal(look(t, &l, &a), 0);
	assert_int_equal(a.threads_running, 2);
	for (int i = 100; i < 1000; i++) {
		snprintf(path, sizeof(path), "7/task/%d/stat", i);
		put_stat(t, path, "x", 'R', 1, 4000);
	}
	assert_int_equal(look(t, &l, &a), 0);
	assert_true(a.threads_running >= 250); /* bounded, and not taken for few */
	tree_remove(t, "7/task");
	put_stat(t, "7/stat", "x", 'R', 1, 4000);
	assert_int_equal(look(t, &l, &a), 0);
	assert_int_equal(a.threads_running, 1);
}

static void test_who_is_gone_or_another(void **state)
{
	struct process_look l = {0};
	struct sample_activity a;
	struct tree *t = *state;

	assert_int_equal(look(t, &l, &a), -ESRCH);
	put_stat(t, "7/stat", "x", 'R', 1, 4001); /* the pid was used again */
	assert_int_equal(look(t, &l, &a), -ESRCH);
}

/* What cannot be read, or is not what it should be, is unknown and nothing else. */
static void test_what_is_not_known(void **state)
{
	static const char *const texts[] = {"",       "7",       "7 (x",
					    "7 (x) ", "7 (x) R", "7 (x) R 1 1 1 0 -1 4 0 0 0 0 zz",
					    ")))))",  "% n %s"};
	struct sample_activity a;
	struct tree *t = *state;

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		struct process_look l = {0};

		tree_put(t, "7/stat", texts[i]);
		assert_int_equal(look(t, &l, &a), 0);
		assert_int_equal(a.state, '?');
		assert_int_equal(a.cpu_permille, UINT16_MAX);
		assert_int_equal(a.timed, TIMED_NOT_KNOWN);
	}
}

static void test_timed_calls(void **state)
{
	static const struct {
		const char *line;
		bool timed;
	} lines[] = {
		{"running", false},
		{"", false},
		{"-1 0x7ffc 0x7f", false},
		{"hello", false},
		{"99999 0x0 0x0 0x0 0x0 0x0 0x0 0x0 0x0", false},
#ifdef __x86_64__
		{"35 0x7ffd 0x0 0x0 0x0 0x0 0x0 0x7ffd 0x7f", true},      /* nanosleep */
		{"230 0x0 0x0 0x7ffd 0x0 0x0 0x0 0x7ffd 0x7f", true},     /* clock_nanosleep */
		{"7 0x7ffd 0x1 0xffffffff 0x0 0x0 0x0 0x7f 0x7f", false}, /* poll, for ever */
		{"7 0x7ffd 0x1 0x1388 0x0 0x0 0x0 0x7f 0x7f", true},      /* poll, 5 s */
		{"232 0x3 0x7f 0x40 0xffffffffffffffff 0x0 0x8 0x7f 0x7f", false},
		{"232 0x3 0x7f 0x40 0x64 0x0 0x8 0x7f 0x7f", true},
		{"202 0x7f 0x80 0x0 0x0 0x0 0x0 0x7f 0x7f", false},           /* FUTEX_WAIT */
		{"202 0x7f 0x189 0x0 0x7ffd 0x0 0xffffffff 0x7f 0x7f", true}, /* ..._BITSET */
		{"202 0x7f 0x81 0x1 0x5 0x0 0x0 0x7f 0x7f", false},           /* FUTEX_WAKE */
		{"0 0x3 0x7f 0x1000 0x7 0x7 0x7 0x7f 0x7f", false},           /* read */
#endif
	};

	(void)state;
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
		if (process_syscall_is_timed(lines[i].line) != lines[i].timed)
			fail_msg("'%s' is not seen for what it is", lines[i].line);
}

static void test_wchan_where_syscall_is_denied(void **state)
{
	static const struct {
		const char *wchan;
		enum timed timed;
	} places[] = {
		{"hrtimer_nanosleep", TIMED_YES},
		{"futex_wait_queue", TIMED_NOT_KNOWN}, /* with a time or without */
		{"do_sys_poll", TIMED_NOT_KNOWN},
		{"pipe_read", TIMED_NO},
		{"do_wait", TIMED_NO},
		{"0", TIMED_NOT_KNOWN}, /* of another user's process */
		{"", TIMED_NOT_KNOWN},
	};
	struct process_look l = {0};
	struct sample_activity a;
	struct tree *t = *state;

	put_stat(t, "7/stat", "x", 'S', 1, 4000);
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		tree_put(t, "7/wchan", places[i].wchan);
		assert_int_equal(look(t, &l, &a), 0);
		assert_int_equal(a.timed, places[i].timed);
	}
	put_stat(t, "7/stat", "x", 'R', 1, 4000);
	tree_put(t, "7/wchan", "hrtimer_nanosleep"); /* read before it woke */
	assert_int_equal(look(t, &l, &a), 0);
	assert_int_equal(a.timed, TIMED_NO);
	put_stat(t, "7/stat", "x", 'S', 1, 4000);
	tree_put(t, "7/syscall", "0 0x3 0x7f 0x1000 0x7 0x7 0x7 0x7f 0x7f"); /* says more */
	assert_int_equal(look(t, &l, &a), 0);
#ifdef __x86_64__
	assert_int_equal(a.timed, TIMED_NO);
#endif
}

/* ---- Real processes ---- */

struct watched {
	struct sample_activity last;
	unsigned told;
	struct process_id id;
};

static void on_activity(void *arg, const struct process_id *p, const struct sample_activity *a)
{
	struct watched *w = arg;

	assert_true(process_same(p, &w->id));
	w->last = *a;
	w->told++;
}

static void compute(void)
{
	for (volatile uint64_t i = 0;; i++)
		;
}
static void sleep_long(void)
{
	struct timespec t = {1000, 0};

	nanosleep(&t, NULL);
}
static void wait_for_ever(void)
{
	static uint32_t word;

	syscall(SYS_futex, &word, FUTEX_WAIT, 0, NULL, NULL, 0);
}
static void *thread_main(void *arg)
{
	(void)arg;
	compute();
	return NULL;
}
static void compute_in_a_thread(void)
{
	pthread_t t;

	pthread_create(&t, NULL, thread_main, NULL);
	pause();
}

static struct watched start_child(void (*what)(void))
{
	struct watched w = {.id = {.pid = fork()}};

	if (w.id.pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		what();
		_exit(0);
	}
	assert_true(w.id.pid > 0);
	assert_int_equal(process_start_time(w.id.pid, &w.id.start), 0);
	return w;
}

/* Looks until it is as wanted: a child needs a moment to get there. */
static void until(struct loop *l, struct prober *p, struct watched *w,
		  bool (*wanted)(const struct sample_activity *))
{
	prober_set(p, &w->id, true);
	prober_set(p, &w->id, true);
	while (!w->told || !wanted(&w->last))
		loop_epoll_turn(l, UINT64_MAX);
	assert_true(w->last.cpu_permille != UINT16_MAX || w->last.state == 'T');
	prober_set(p, &w->id, false);
	prober_set(p, &w->id, false);
	kill(w->id.pid, SIGKILL);
	assert_int_equal(waitpid(w->id.pid, NULL, 0), w->id.pid);
}

static bool is_busy(const struct sample_activity *a)
{
	return a->state == 'R' && a->threads_running == 1 && a->cpu_permille > 0 &&
	       a->cpu_permille <= 1100 && a->timed == TIMED_NO;
}
static bool is_busy_elsewhere(const struct sample_activity *a)
{
	return a->state == 'S' && a->threads_running == 1 && a->cpu_permille > 0 &&
	       a->cpu_permille <= 1100 && a->timed != TIMED_YES;
}
static bool is_asleep(const struct sample_activity *a)
{
	return a->state == 'S' && a->threads_running == 0 && a->cpu_permille == 0 &&
	       a->timed == TIMED_YES;
}
static bool is_waiting(const struct sample_activity *a)
{
	return a->state == 'S' && a->threads_running == 0 && a->cpu_permille == 0 &&
	       a->timed != TIMED_YES;
}
static bool is_stopped(const struct sample_activity *a)
{
	return a->state == 'T' && a->threads_running == 0;
}

static void test_children(void **state)
{
	static const struct {
		void (*what)(void);
		bool (*wanted)(const struct sample_activity *);
	} children[] = {{compute, is_busy},
			{compute_in_a_thread, is_busy_elsewhere},
			{sleep_long, is_asleep},
			{wait_for_ever, is_waiting},
			{compute, is_stopped}};
	enum { N = sizeof(children) / sizeof(children[0]) };
	struct watched all[N], w;
	struct prober *p = NULL;
	struct loop *l = NULL;
	struct err e = {0};

	(void)state;
	for (int i = 0; i < N; i++) /* while we have one thread: who forks has no others then */
		all[i] = start_child(children[i].what);
	kill(all[N - 1].id.pid, SIGSTOP);
	assert_int_equal(loop_epoll_new(&l, &e), 0);
	assert_int_equal(prober_new(l, "/proc", on_activity, &w, &p), 0);
	for (int i = 0; i < N; i++) {
		w = all[i];
		until(l, p, &w, children[i].wanted);
	}
	prober_free(p);
	loop_epoll_free(l);
}

static void test_prober_of_many(void **state)
{
	struct process_id nobody = {.pid = 1, .start = 77777777};
	struct watched w = {0};
	struct prober *p = NULL;
	struct loop *l = NULL;
	struct err e = {0};

	(void)state;
	w = start_child(sleep_long);
	assert_int_equal(loop_epoll_new(&l, &e), 0);
	assert_int_equal(prober_new(l, "/proc", on_activity, &w, &p), 0);
	for (int i = 0; i < 600; i++) { /* more than one round takes; none of them is there */
		nobody.start++;
		prober_set(p, &nobody, true);
	}
	prober_set(p, &w.id, true);
	while (w.told < 2)
		loop_epoll_turn(l, UINT64_MAX);
	prober_free(p); /* with all of them */
	kill(w.id.pid, SIGKILL);
	assert_int_equal(waitpid(w.id.pid, NULL, 0), w.id.pid);
	loop_epoll_free(l);
}

struct many {
	struct loop *loop;
	uint64_t call; /* in which the last was told of */
	unsigned told, in_call, most;
};

static void on_many(void *arg, const struct process_id *p, const struct sample_activity *a)
{
	struct many *m = arg;
	uint64_t call = loop_calls(m->loop)->n;

	(void)p;
	(void)a;
	m->in_call = call == m->call ? m->in_call + 1 : 1;
	m->call = call;
	m->most = m->in_call > m->most ? m->in_call : m->most;
	m->told++;
}

/* What was seen of many is told some in a call of the loop; and it may end meanwhile. */
static void test_many_are_told_in_slices(void **state)
{
	enum { N = 100 };
	struct many m = {.call = UINT64_MAX};
	struct watched all[N];
	struct prober *p = NULL;
	struct err e = {0};

	(void)state;
	for (int i = 0; i < N; i++)
		all[i] = start_child(sleep_long);
	assert_int_equal(loop_epoll_new(&m.loop, &e), 0);
	assert_int_equal(prober_new(m.loop, "/proc", on_many, &m, &p), 0);
	for (int i = 0; i < N; i++)
		prober_set(p, &all[i].id, true);
	while (m.told < 2 * N + 1)
		loop_epoll_turn(m.loop, UINT64_MAX);
	assert_in_range(m.most, 1, 32);
	prober_free(p);
	for (int i = 0; i < N; i++) {
		kill(all[i].id.pid, SIGKILL);
		assert_int_equal(waitpid(all[i].id.pid, NULL, 0), all[i].id.pid);
	}
	loop_epoll_free(m.loop);
}

/* One that executes a program as long as a file server likes, which its stat waits for. */
static pid_t start_stalled(const char folder[512], pid_t *ret_server)
{
	char path[520];
	int tell[2];
	pid_t pid;

	assert_int_equal(pipe(tell), 0);
	pid = fork();
	if (pid == 0) {
		int said = silent_fuse_mount(folder, ret_server);

		snprintf(path, sizeof(path), "%s/f", folder);
		if (said == 0)
			said = open(path, O_RDONLY | O_CLOEXEC) < 0 ? -errno : *ret_server;
		if (write(tell[1], &said, sizeof(said)) == sizeof(said) && said > 0)
			execl("/bin/true", "true", NULL);
		_exit(1);
	}
	assert_int_equal(read(tell[0], ret_server, sizeof(*ret_server)), sizeof(*ret_server));
	close(tell[0]);
	close(tell[1]);
	usleep(300000);
	return pid;
}

struct two {
	struct process_id stalled, asleep;
	unsigned unknown, known;
};

static void on_two(void *arg, const struct process_id *p, const struct sample_activity *a)
{
	struct two *x = arg;

	x->unknown += process_same(p, &x->stalled) && a->state == '?';
	x->known += process_same(p, &x->asleep) && a->state == 'S';
}

/* The others are looked at all the same. */
static void test_a_look_that_does_not_end(void **state)
{
	struct tree *t = *state;
	struct two x = {.stalled.start = PROCESS_BY_INODE};
	struct prober *p = NULL;
	struct loop *l = NULL;
	struct err e = {0};
	char folder[512];
	pid_t server;

	if (geteuid() != 0)
		return; /* who may not mount has no such file server */
	snprintf(folder, sizeof(folder), "%s/mnt", t->dir);
	assert_int_equal(mkdir(folder, 0755), 0);
	x.asleep = start_child(sleep_long).id;
	x.stalled.pid = start_stalled(folder, &server);
	if (server < 0) {
		print_message("there is no FUSE here: %s\n", strerror(-server));
		return;
	}
	assert_int_equal(loop_epoll_new(&l, &e), 0);
	assert_int_equal(prober_new(l, "/proc", on_two, &x, &p), 0);
	prober_set(p, &x.stalled, true);
	prober_set(p, &x.asleep, true);
	for (int i = 0; i < 200 && (x.unknown == 0 || x.known < 3); i++)
		loop_epoll_turn(l, 100000000);
	kill(server, SIGKILL);
	assert_true(x.unknown > 0 && x.known >= 3);
	prober_free(p);
	loop_epoll_free(l);
	kill(x.asleep.pid, SIGKILL);
	assert_int_equal(waitpid(x.asleep.pid, NULL, 0), x.asleep.pid);
	assert_int_equal(waitpid(x.stalled.pid, NULL, 0), x.stalled.pid);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_states_and_cpu),
		T(test_running_threads),
		T(test_who_is_gone_or_another),
		T(test_what_is_not_known),
		T(test_timed_calls),
		T(test_wchan_where_syscall_is_denied),
		cmocka_unit_test(test_children),
		cmocka_unit_test(test_prober_of_many),
		cmocka_unit_test(test_many_are_told_in_slices),
		T(test_a_look_that_does_not_end),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
