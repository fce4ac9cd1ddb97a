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

#include "base/bytes.h"
#include "ckptd/fd_table.h"
#include "ckptd/keeper.h"
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

/* The pid of the child, which it wrote into a file. */
static pid_t child_of(const char *dir)
{
	char text[512];

	read_file(dir, "pid", text);
	return (pid_t)atoi(text);
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

static void supervise_with_few_files(void **state, const char *part)
{
	struct rlimit was, low;

	getrlimit(RLIMIT_NOFILE, &was);
	low = was;
	low.rlim_cur = 160;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	assert_int_equal(supervise(*state, part, 0), 0);
	setrlimit(RLIMIT_NOFILE, &was);
	assert_file(*state, "error", "");
	assert_file(*state, "lives", "xx");
}

static void test_store_that_is_full_says_so(void **state)
{
	supervise_with_few_files(state, "refused");
}

/* The child gets the size of the supervisor's table, not that of the store above it. */
static void test_child_knows_the_limit(void **state)
{
	setenv(KEEPER_MAX_VAR, "3", 1);
	supervise_with_few_files(state, "full");
	assert_null(getenv(KEEPER_MAX_VAR));
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

/* One that has said so may stop for as long as it takes; one that has not gets SIGABRT, also when
 * it follows one that has. */
static void test_child_that_stops_is_watched_until_it_says_so(void **state)
{
	assert_int_equal(supervise(*state, "stops", 500000000), 0);
	assert_file(*state, "error", "");
	assert_file(*state, "stopped", "s");
	assert_file(*state, "lives", "xxx");
}

/* As the first process of a container it inherits what a child left behind. */
static void test_orphans_do_not_stay_zombies(void **state)
{
	pid_t pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
			_exit(99);
		_exit(supervise(*state, "orphans", 0));
	}
	assert_true(pid > 0);
	assert_int_equal(ended(pid), 0);
	assert_file(*state, "error", "");
	assert_file(*state, "lives", "xx");
}

/* As a shell's `trap '' CHLD` leaves it: the end of a child would not be seen. */
static void test_ignored_SIGCHLD_is_not_inherited(void **state)
{
	pid_t pid = fork();

	if (pid == 0) {
		alarm(60);
		signal(SIGCHLD, SIG_IGN);
		_exit(supervise(*state, "memory", 0));
	}
	assert_true(pid > 0);
	assert_int_equal(ended(pid), 0);
	assert_file(*state, "error", "");
	assert_file(*state, "lives", "xxxx");
}

/* ---- No other process can send to it ---- */

enum { NAMES_MAX = 16, NAME_SIZE = 128 };

/* What /proc/net/unix says of a socket by its inode: its name, "" if it has none. */
static void socket_name(unsigned long inode, char name[NAME_SIZE])
{
	FILE *f = fopen("/proc/net/unix", "r");
	char line[512], at[NAME_SIZE];
	unsigned long other;

	assert_non_null(f);
	name[0] = '\0';
	while (fgets(line, sizeof(line), f)) {
		at[0] = '\0';
		if (sscanf(line, "%*s %*s %*s %*s %*s %*s %lu %127s", &other, at) >= 1 &&
		    other == inode)
			snprintf(name, NAME_SIZE, "%s", at);
	}
	fclose(f);
}

/* The names of the sockets that a process has, and how many it has in all. */
static size_t socket_names(pid_t pid, char names[NAMES_MAX][NAME_SIZE], size_t *ret_sockets)
{
	char path[64], link[64];
	unsigned long inode;
	size_t n = 0;

	*ret_sockets = 0;
	for (int fd = 3; fd < 64 && n < NAMES_MAX; fd++) {
		snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, fd);
		ssize_t len = readlink(path, link, sizeof(link) - 1);

		link[len > 0 ? len : 0] = '\0';
		if (sscanf(link, "socket:[%lu]", &inode) != 1)
			continue;
		++*ret_sockets;
		socket_name(inode, names[n]);
		n += names[n][0] != '\0';
	}
	return n;
}

/* Fills the queues of these names, as another user if this one is root; until it is killed. */
static pid_t flood(char names[NAMES_MAX][NAME_SIZE], size_t n)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	pid_t pid = fork();
	int fd;

	assert_true(pid >= 0);
	if (pid > 0)
		return pid;
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || (geteuid() == 0 && setuid(65533) != 0) ||
	    prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) /* setuid() clears it */
		_exit(1);
	for (size_t i = 0;; i++) {
		const char *name = n ? names[i % n] : "@ckptd";
		socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name));

		memcpy(a.sun_path, name, strlen(name));
		a.sun_path[0] = name[0] == '@' ? '\0' : name[0];
		ignore_result((int)sendto(fd, "x", 1, MSG_DONTWAIT, (struct sockaddr *)&a, len));
		if (!n)
			usleep(1000);
	}
}

/*
 * It is stopped for a while: what others sent would fill its queue, and the child, which has
 * something to store, would wait.
 */
static void test_no_other_process_can_reach_the_supervisor(void **state)
{
	char names[NAMES_MAX][NAME_SIZE];
	pid_t pid = supervise_apart(*state, "stores"), flooder;
	size_t n, sockets;

	await_file(*state, "ready", "r");
	n = socket_names(pid, names, &sockets);
	assert_true(sockets > 0); /* they are seen, or having no name would say nothing */
	assert_int_equal(kill(pid, SIGSTOP), 0);
	flooder = flood(names, n);
	usleep(100000);
	kill(child_of(*state), SIGUSR1); /* it sends WATCHDOG=1 to the supervisor */
	await_file(*state, "told", "t");
	assert_int_equal(kill(pid, SIGCONT), 0);
	await_file(*state, "stored", "s"); /* under the flood */
	kill(flooder, SIGKILL);
	assert_int_equal(ended(flooder), 128 + SIGKILL);
	kill(pid, SIGTERM);
	assert_int_equal(ended(pid), 0);
	assert_file(*state, "error", "");
	assert_file(*state, "lives", "x");
	assert_int_equal(n, 0);
}

/* A process that an earlier child forked has that child's end alone: it cannot send in the name of
 * the next child. */
static void test_each_child_has_its_own_socket(void **state)
{
	assert_int_equal(supervise(*state, "orphan", 0), 0);
	assert_file(*state, "error", "");
	assert_file(*state, "lives", "xxx");
	assert_file(*state, "refused", "r");
}

static void test_what_was_sent_before_death_is_kept(void **state)
{
	assert_int_equal(supervise(*state, "last", 0), 0);
	assert_file(*state, "error", "");
	assert_file(*state, "lives", "xx");
}

/* In LISTEN_FDNAMES it would be two names, and all that follow would belong to the next one. */
static void test_name_with_a_colon(void **state)
{
	struct fd_table fds;

	(void)state;
	fd_table_init(&fds);
	assert_int_equal(fd_table_add(&fds, "a:b", memfd_create("two names", 0)), -EINVAL);
	assert_int_equal(fds.n, 0);
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

static void assert_heard(int fd, const char *want)
{
	char text[512];
	ssize_t n = recv(fd, text, sizeof(text) - 1, MSG_DONTWAIT);

	assert_true(n > 0);
	text[n] = '\0';
	assert_string_equal(text, want);
}

/* That a child is not watched any longer goes up, and not beyond its end. */
static void test_the_manager_watches_the_next_child_again(void **state)
{
	char address[108], text[512];
	int fd = listen_at(address, *state);

	assert_int_equal(setenv("NOTIFY_SOCKET", address, 1), 0);
	assert_int_equal(setenv("WATCHDOG_USEC", "500000", 1), 0);
	assert_int_equal(supervise(*state, "stops", 0), 0);
	unsetenv("NOTIFY_SOCKET");
	unsetenv("WATCHDOG_USEC");
	assert_file(*state, "error", "");
	assert_file(*state, "lives", "xxx");
	assert_heard(fd, "READY=1\nSTATUS=fine");
	assert_heard(fd, "STOPPING=1");
	assert_heard(fd, "STATUS=stopped\nWATCHDOG_USEC=0");
	assert_heard(fd, "WATCHDOG_USEC=500000");
	for (int i = 0; i < 2; i++) {
		assert_heard(fd, "READY=1\nSTATUS=fine");
		assert_heard(fd, "STOPPING=1");
	}
	assert_int_equal(recv(fd, text, sizeof(text), MSG_DONTWAIT), -1);
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
	static const char *const max[] = { "", "-1", "8K", "99999999999999999999" };
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
	for (int i = 0; i < 4; i++) {
		setenv(KEEPER_MAX_VAR, max[i], 1);
		assert_int_equal(keeper_open(n, &k, &e), -EPROTO);
		assert_null(getenv(KEEPER_MAX_VAR));
	}
	notify_free(n);
	unsetenv("NOTIFY_SOCKET");
}

static void pass(int fd, pid_t pid)
{
	char text[32];

	snprintf(text, sizeof(text), "%d", fd);
	assert_int_equal(setenv(NOTIFY_FD_VAR, text, 1), 0);
	snprintf(text, sizeof(text), "%d", (int)pid);
	assert_int_equal(setenv(NOTIFY_PID_VAR, text, 1), 0);
}

static void test_passed_socket_of_notify(void **state)
{
	int pair[2], p[2];
	struct err e = { 0 };
	struct notify *n;
	char text[16];

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair), 0);
	assert_int_equal(pipe(p), 0);
	pass(pair[1], getppid()); /* meant for another process */
	assert_int_equal(notify_open(&n, &e), 0);
	assert_false(notify_listened(n));
	notify_free(n);
	pass(p[0], getpid()); /* no socket */
	assert_int_equal(notify_open(&n, &e), -EPROTO);
	pass(1 << 20, getpid()); /* no descriptor */
	assert_int_equal(notify_open(&n, &e), -EPROTO);
	pass(0, getpid());
	assert_int_equal(notify_open(&n, &e), -EPROTO);
	assert_null(getenv(NOTIFY_FD_VAR)); /* also after an error */
	assert_null(getenv(NOTIFY_PID_VAR));

	pass(pair[1], getpid());
	setenv("NOTIFY_SOCKET", "/nonexistent/socket", 1); /* it is not asked */
	assert_int_equal(notify_open(&n, &e), 0);
	unsetenv("NOTIFY_SOCKET");
	assert_true(notify_listened(n));
	assert_null(getenv(NOTIFY_FD_VAR));
	assert_null(getenv(NOTIFY_PID_VAR));
	assert_int_equal(fcntl(pair[1], F_GETFD), FD_CLOEXEC);
	assert_int_equal(notify_send(n, "WATCHDOG=1", NULL, 0), 0);
	assert_int_equal(recv(pair[0], text, sizeof(text), MSG_DONTWAIT), 10);
	assert_memory_equal(text, "WATCHDOG=1", 10);
	close(pair[0]); /* the supervisor is gone: each send says the same */
	assert_int_equal(notify_send(n, "WATCHDOG=1", NULL, 0), -ECONNREFUSED);
	assert_int_equal(notify_send(n, "WATCHDOG=1", NULL, 0), -ECONNREFUSED);
	notify_free(n); /* closes pair[1] */
	close(p[0]);
	close(p[1]);
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
		T(test_child_knows_the_limit),
		T(test_error_before_ready_is_not_repeated),
		T(test_stopped_child_is_not_started_again),
		T(test_program_that_is_not_there),
		T(test_signals_are_passed_on),
		T(test_child_stops_when_the_supervisor_dies),
		T(test_silent_child_is_killed),
		T(test_child_that_SIGABRT_does_not_end),
		T(test_child_that_stops_is_watched_until_it_says_so),
		T(test_orphans_do_not_stay_zombies),
		T(test_ignored_SIGCHLD_is_not_inherited),
		T(test_no_other_process_can_reach_the_supervisor),
		T(test_each_child_has_its_own_socket),
		T(test_what_was_sent_before_death_is_kept),
		T(test_name_with_a_colon),
		T(test_passed_socket_of_notify),
		T(test_ready_goes_up_and_the_store_stays_here),
		T(test_the_manager_watches_the_next_child_again),
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
