/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The supervisor with real children (test_supervise_child, beside this program) that store memfds,
 * are killed, and find them again. The supervisor runs in a process of its own where the test has
 * to send it signals.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckptd/keeper.h"
#include "ckptd/store_socket.h"
#include "ckptd/supervise.h"
#include "tests/lib/test.h"

static char child_program[PATH_MAX];

static int setup(void **state)
{
	unsetenv("NOTIFY_SOCKET");
	*state = test_dir_make(NULL);
	return 0;
}

static int teardown(void **state)
{
	test_dir_remove(*state);
	return 0;
}

static void read_file(const char *dir, const char *name, char buf[512])
{
	char path[300];
	FILE *f;
	size_t n;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "r");
	n = f ? fread(buf, 1, 511, f) : 0;
	buf[n] = '\0';
	if (f)
		fclose(f);
}

static void assert_file(const char *dir, const char *name, const char *want)
{
	char text[512];

	read_file(dir, name, text);
	assert_string_equal(text, want);
}

static int supervise(const char *dir, const char *part, uint64_t watchdog_ns)
{
	char *argv[] = { child_program, (char *)dir, (char *)part, NULL };
	struct supervise_options o = { .program = child_program, .argv = argv,
				       .end_status = 33, .watchdog_ns = watchdog_ns,
				       .backoff_min_ns = 1000000,
				       .backoff_max_ns = 20000000 };
	int status = -1;

	assert_int_equal(supervise_run(&o, &status, NULL), 0);
	return status;
}

static pid_t supervise_apart(const char *dir, const char *part)
{
	pid_t pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
		_exit(supervise(dir, part, 0));
	}
	assert_true(pid > 0);
	return pid;
}

static int ended(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Waits for the child to have written to a file: as long as it takes. */
static void await_file(const char *dir, const char *name, const char *want)
{
	char text[512] = "";

	for (;;) {
		read_file(dir, name, text);
		if (strcmp(text, want) == 0)
			return;
		assert_true(strlen(text) <= strlen(want));
		assert_file(dir, "error", "");
		usleep(1000);
	}
}

static void test_memory_is_found_again_after_each_death(void **state)
{
	assert_int_equal(supervise(*state, "memory", 0), 0);
	assert_file(*state, "error", "");
	assert_file(*state, "lives", "xxxx");
}

static void test_store_that_is_full_says_so(void **state)
{
	struct rlimit was, low;

	getrlimit(RLIMIT_NOFILE, &was);
	low = was;
	low.rlim_cur = 160;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	assert_int_equal(supervise(*state, "full", 0), 0);
	setrlimit(RLIMIT_NOFILE, &was);
	assert_file(*state, "error", "");
	assert_file(*state, "lives", "xx");
}

static void test_error_before_ready_is_not_repeated(void **state)
{
	assert_int_equal(supervise(*state, "config", 0), 2);
	assert_file(*state, "lives", "x");
}

/* It was told to stop, and says by its status how that went: as final as status 0. */
static void test_stopped_child_is_not_started_again(void **state)
{
	assert_int_equal(supervise(*state, "stopped", 0), 33);
	assert_file(*state, "lives", "x");
}

static void test_program_that_is_not_there(void **state)
{
	char *argv[] = { (char *)"nothing", NULL };
	struct supervise_options o = { .program = "/nonexistent", .argv = argv,
				       .backoff_min_ns = 1, .backoff_max_ns = 1 };
	int status = -1;

	(void)state;
	assert_int_equal(supervise_run(&o, &status, NULL), 0);
	assert_int_equal(status, 127);
}

static void test_signals_are_passed_on(void **state)
{
	pid_t pid = supervise_apart(*state, "signals");

	await_file(*state, "ready", "r");
	kill(pid, SIGHUP);
	await_file(*state, "signals", "H");
	kill(pid, SIGHUP);
	await_file(*state, "signals", "HH");
	kill(pid, SIGINT);
	assert_int_equal(ended(pid), 0);
	assert_file(*state, "signals", "HHI");
	assert_file(*state, "lives", "x");
}

static void test_child_stops_when_the_supervisor_dies(void **state)
{
	pid_t pid = supervise_apart(*state, "signals");

	await_file(*state, "ready", "r");
	kill(pid, SIGKILL);
	assert_int_equal(ended(pid), 128 + SIGKILL);
	await_file(*state, "signals", "T");
}

static void test_silent_child_is_killed(void **state)
{
	assert_int_equal(supervise(*state, "hang", 50000000), 0);
	assert_file(*state, "error", "");
	assert_file(*state, "lives", "xx");
}

/* As one that waits in the kernel, where only SIGKILL ends it. */
static void test_child_that_SIGABRT_does_not_end(void **state)
{
	assert_int_equal(supervise(*state, "deaf", 50000000), 0);
	assert_file(*state, "error", "");
	assert_file(*state, "lives", "xx");
}

static void send_to(const char *address, const char *text, int fd)
{
	struct notify *n;

	assert_int_equal(setenv("NOTIFY_SOCKET", address, 1), 0);
	assert_int_equal(notify_open(&n, NULL), 0);
	assert_int_equal(notify_send(n, text, &fd, fd >= 0), 0);
	notify_free(n);
	unsetenv("NOTIFY_SOCKET");
}

static void test_only_the_child_is_listened_to(void **state)
{
	pid_t pid = supervise_apart(*state, "impostor");
	char address[512], path[64], link[64];
	int fd = memfd_create("trojan", 0);

	await_file(*state, "ready", "r");
	read_file(*state, "address", address);
	send_to(address, "FDSTORE=1\nFDNAME=slot.sealed", fd);
	send_to(address, "FDSTORE=1", fd);
	/* One that the supervisor must have taken in before it sees the child's end. */
	kill(pid, SIGHUP);
	await_file(*state, "signals", "H");
	for (int i = 3; i < 64; i++) { /* it holds no copy of it */
		snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, i);
		ssize_t n = readlink(path, link, sizeof(link) - 1);

		link[n > 0 ? n : 0] = '\0';
		assert_null(strstr(link, "trojan"));
	}
	close(fd);
	kill(pid, SIGTERM);
	assert_true(ended(pid) == 128 + SIGKILL);
	assert_file(*state, "error", "");
}

/* A message whose sender has ended may have the pid of the next child. */
static void test_a_pid_is_not_enough(void **state)
{
	char text[NOTIFY_MESSAGE_MAX + 1];
	struct store_socket s = {.fd = -1};
	struct log log = {.fd = -1};
	struct fd_table fds;
	pid_t pid;

	(void)state;
	fd_table_init(&fds);
	assert_int_equal(fd_table_add(&fds, "a:b", memfd_create("two names", 0)), -EINVAL);
	assert_int_equal(store_socket_open(&s, &fds, &log, NULL), 0);
	for (int other = 0; other < 2 - (geteuid() != 0); other++) { /* only root can be another */
		pid = fork();
		if (pid == 0) {
			if (other && setuid(65533) != 0)
				_exit(1);
			send_to(s.address, "FDSTORE=1\nFDNAME=x", memfd_create("trojan", 0));
			_exit(0);
		}
		assert_int_equal(ended(pid), 0);
		while (store_socket_receive(&s, pid, text))
			;
		assert_int_equal(fds.n, 1); /* our own, and no more */
	}
	store_socket_close(&s);
	fd_table_fini(&fds);
}

static int listen_at(char address[108], const char *dir)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	snprintf(address, 108, "%s/manager", dir);
	strcpy(a.sun_path, address);
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	return fd;
}

static void test_ready_goes_up_and_the_store_stays_here(void **state)
{
	char address[108], text[512];
	int fd = listen_at(address, *state);
	ssize_t n;

	assert_int_equal(setenv("NOTIFY_SOCKET", address, 1), 0);
	assert_int_equal(supervise(*state, "memory", 0), 0);
	unsetenv("NOTIFY_SOCKET");
	n = recv(fd, text, sizeof(text) - 1, MSG_DONTWAIT);
	assert_true(n > 0);
	text[n] = '\0';
	assert_string_equal(text, "READY=1\nSTATUS=fine");
	assert_int_equal(recv(fd, text, sizeof(text), MSG_DONTWAIT), -1); /* and nothing else */
	close(fd);
}

/* What the supervisor was passed itself (socket activation) goes to each child. */
static void test_passed_descriptors_go_to_each_child(void **state)
{
	char number[32], got[8] = "";
	int p[2];
	pid_t pid;

	assert_int_equal(pipe2(p, O_CLOEXEC), 0);
	pid = fork();
	if (pid == 0) {
		close(p[0]);
		dup2(p[1], 200);
		dup2(200, 3);
		close(200);
		snprintf(number, sizeof(number), "%d", (int)getpid());
		setenv("LISTEN_PID", number, 1);
		setenv("LISTEN_FDS", "1", 1);
		setenv("LISTEN_FDNAMES", "socket", 1);
		_exit(supervise(*state, "passed", 0));
	}
	close(p[1]);
	assert_int_equal(ended(pid), 0);
	assert_int_equal(read(p[0], got, sizeof(got) - 1), 4);
	assert_string_equal(got, "1234");
	close(p[0]);
	assert_file(*state, "error", "");
}

/* ---- The client alone ---- */

static void test_nobody_listens(void **state)
{
	struct notify *n;
	struct keeper *k;

	(void)state;
	assert_int_equal(notify_open(&n, NULL), 0);
	assert_false(notify_listened(n));
	assert_int_equal(notify_send(n, "READY=1", NULL, 0), 0);
	assert_int_equal(notify_barrier(n, -1), 0);
	setenv("LISTEN_PID", "1", 1); /* meant for another process */
	setenv("LISTEN_FDS", "3", 1);
	assert_int_equal(keeper_open(n, &k, NULL), 0);
	assert_int_equal(keeper_take(k, NULL, NULL), -ENOENT);
	assert_false(keeper_keeps(k));
	keeper_free(k);
	notify_free(n);
}

static void test_addresses_and_counts_that_make_no_sense(void **state)
{
	struct err e = { 0 };
	struct notify *n;
	struct keeper *k;
	char number[32], longer[300];

	(void)state;
	memset(longer, '/', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = '\0';
	setenv("NOTIFY_SOCKET", "vsock:2:1", 1);
	assert_int_equal(notify_open(&n, &e), -EPROTO);
	setenv("NOTIFY_SOCKET", longer, 1);
	assert_int_equal(notify_open(&n, &e), -ENAMETOOLONG);
	setenv("NOTIFY_SOCKET", "/nonexistent/socket", 1);
	assert_int_equal(notify_open(&n, &e), 0);
	assert_int_equal(notify_send(n, "READY=1", NULL, 0), -ENOENT);
	assert_int_equal(notify_barrier(n, 1000), -ENOENT);
	snprintf(number, sizeof(number), "%d", (int)getpid());
	for (int i = 0; i < 3; i++) {
		setenv("LISTEN_PID", number, 1);
		setenv("LISTEN_FDS", ((const char *[]){ "x", "-1", "99999999" })[i], 1);
		assert_int_equal(keeper_open(n, &k, &e), -EPROTO);
		assert_null(getenv("LISTEN_FDS"));
	}
	notify_free(n);
	unsetenv("NOTIFY_SOCKET");
}

/* A keeper that is there and never answers, as a service manager that hangs would. */
static void test_store_without_an_answer_times_out(void **state)
{
	char address[108];
	int fd = listen_at(address, *state);
	struct notify *n;

	setenv("NOTIFY_SOCKET", address, 1);
	assert_int_equal(notify_open(&n, NULL), 0);
	assert_int_equal(notify_barrier(n, 5), -ETIMEDOUT);
	notify_free(n);
	unsetenv("NOTIFY_SOCKET");
	close(fd);
}

static void test_watchdog_interval(void **state)
{
	char number[32];

	(void)state;
	unsetenv("WATCHDOG_PID");
	unsetenv("WATCHDOG_USEC");
	assert_int_equal(notify_watchdog_ns(), 0);
	setenv("WATCHDOG_USEC", "2000000", 1);
	assert_int_equal(notify_watchdog_ns(), 2000000000u);
	setenv("WATCHDOG_PID", "1", 1);
	assert_int_equal(notify_watchdog_ns(), 0);
	snprintf(number, sizeof(number), "%d", (int)getpid());
	setenv("WATCHDOG_PID", number, 1);
	assert_int_equal(notify_watchdog_ns(), 2000000000u);
	setenv("WATCHDOG_USEC", "2s", 1);
	assert_int_equal(notify_watchdog_ns(), 0);
	unsetenv("WATCHDOG_PID");
	unsetenv("WATCHDOG_USEC");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
		T(test_memory_is_found_again_after_each_death),
		T(test_store_that_is_full_says_so),
		T(test_error_before_ready_is_not_repeated),
		T(test_stopped_child_is_not_started_again),
		T(test_program_that_is_not_there),
		T(test_signals_are_passed_on),
		T(test_child_stops_when_the_supervisor_dies),
		T(test_silent_child_is_killed),
		T(test_child_that_SIGABRT_does_not_end),
		T(test_only_the_child_is_listened_to),
		T(test_a_pid_is_not_enough),
		T(test_ready_goes_up_and_the_store_stays_here),
		T(test_passed_descriptors_go_to_each_child),
		T(test_nobody_listens),
		T(test_addresses_and_counts_that_make_no_sense),
		T(test_store_without_an_answer_times_out),
		T(test_watchdog_interval),
#undef T
	};
	char self[PATH_MAX] = "";

	if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0)
		return 99;
	snprintf(child_program, sizeof(child_program), "%s/test_supervise_child", dirname(self));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
