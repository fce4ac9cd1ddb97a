/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The collectors around their sources: numbers of devices, rounds, what hangs, what cannot be had.
 * The sources are made up; each real one has a test of its own.
 */
#include <config.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/loop.h"
#include "ckptd/collect_source.h"
#include "ckptd/log.h"
#include "ckptd/loop_epoll.h"
#include "ckptd/processes.h"
#include "ckptd/reader.h"
#include "tests/lib/test.h"

#define MS     1000000ull
#define SECOND 1000000000ull

enum { SEEN_MAX = 256 };

struct world {
	struct loop *loop;
	struct log log;
	int log_pipe[2];
	struct collectors *collectors;
	struct sample seen[SEEN_MAX];
	size_t n_seen, looks;
	char log_text[8192];
};

static int setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));
	struct err e = {0};

	assert_int_equal(loop_epoll_new(&w->loop, &e), 0);
	assert_int_equal(pipe(w->log_pipe), 0);
	w->log = (struct log){.fd = w->log_pipe[1], .level = LOG_DEBUG, .journal = true};
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	collectors_free(w->collectors);
	loop_epoll_free(w->loop);
	close(w->log_pipe[0]);
	close(w->log_pipe[1]);
	free(w);
	return 0;
}

static void on_sample(void *arg, const struct sample *s)
{
	struct world *w = arg;

	assert_true(w->n_seen < SEEN_MAX);
	w->seen[w->n_seen++] = *s;
}

static void on_activity(void *arg, const struct process_id *p, const struct sample_activity *a)
{
	struct world *w = arg;

	assert_int_equal(p->pid, getpid());
	assert_int_equal(a->threads_running > 0, true);
	w->looks++;
}

static void begin(struct world *w, const struct collect_source *const *sources, size_t n)
{
	struct collect_options o = {.root = "",
				    .kmsg = "",
				    .data = "/",
				    .interval_ns = 20 * MS,
				    .late_ns = 30 * MS,
				    .on = {false, true, true, true, true, true},
				    .log = &w->log};
	struct collect_sink sink = {.arg = w, .sample = on_sample, .activity = on_activity};
	struct err e = {0};

	assert_int_equal(collectors_new_from(w->loop, &o, sources, n, &w->collectors, &e), 0);
	w->collectors->ops->start(w->collectors, &sink);
}

static void turn(struct world *w)
{
	loop_epoll_turn(w->loop, 5 * MS);
}

/* Waits until the log has said it. */
static void until_said(struct world *w, const char *words)
{
	size_t len = strlen(w->log_text);
	ssize_t n;
	int fds = w->log_pipe[0];

	while (!strstr(w->log_text, words)) {
		fd_set set;
		struct timeval none = {0};

		turn(w);
		FD_ZERO(&set);
		FD_SET(fds, &set);
		if (select(fds + 1, &set, NULL, NULL, &none) != 1)
			continue;
		n = read(fds, w->log_text + len, sizeof(w->log_text) - 1 - len);
		assert_true(n > 0);
		len += (size_t)n;
	}
}

static size_t count(const struct world *w, enum sample_kind k)
{
	size_t n = 0;

	for (size_t i = 0; i < w->n_seen; i++)
		n += w->seen[i].kind == k;
	return n;
}

static const struct sample *first(const struct world *w, enum sample_kind k)
{
	for (size_t i = 0; i < w->n_seen; i++)
		if (w->seen[i].kind == k)
			return &w->seen[i];
	fail();
	return NULL;
}

/* ---- Made-up sources ---- */

static int open_any(const struct collect_config *c, struct collect_out *out, void **ret,
		    struct err *e)
{
	(void)out;
	(void)e;
	*ret = alloc_copy(c, sizeof(*c));
	return *ret ? 0 : -ENOMEM;
}

static int read_port(void *state, uint64_t now_ns, struct collect_out *out, struct err *e)
{
	(void)state;
	(void)e;
	assert_true(now_ns > 0);
	collect_name(out, 0, 'n', "eth0");
	collect_add(out, SAMPLE_LINK)->device = 0;
	out->metrics[METRIC_NET_SEND] = 7;
	collect_state(out, "1 port");
	return 0;
}

static int read_disk(void *state, uint64_t now_ns, struct collect_out *out, struct err *e)
{
	(void)state;
	(void)now_ns;
	(void)e;
	collect_name(out, 3, 'd', "sda");
	collect_name(out, 0, 'd', "sdb");
	collect_add(out, SAMPLE_DISK)->device = 3;
	out->metrics[METRIC_DISK_WRITE] = 9;
	return 0;
}

static const struct collect_source port = {
	.id = COLLECT_NET, .open = open_any, .read = read_port, .close = alloc_free};
static const struct collect_source disk = {
	.id = COLLECT_DISK, .open = open_any, .read = read_disk, .close = alloc_free};

static int hold = -1;  /* an eventfd: who hangs waits for it */
static int freed = -1; /* one that is written to when it is closed */

static int read_hanging(void *state, uint64_t now_ns, struct collect_out *out, struct err *e)
{
	uint64_t n;

	(void)state;
	(void)now_ns;
	(void)e;
	collect_add(out, SAMPLE_MEMORY)->memory.corrected = 1;
	return read(hold, &n, sizeof(n)) == (ssize_t)sizeof(n) ? 0 : -EIO;
}

static void close_hanging(void *state)
{
	uint64_t one = 1;

	alloc_free(state);
	assert_int_equal(write(freed, &one, 8), 8);
}

static const struct collect_source hanging = {
	.id = COLLECT_MEMORY, .open = open_any, .read = read_hanging, .close = close_hanging};

static int failures; /* how often read_failing fails */

static int read_failing(void *state, uint64_t now_ns, struct collect_out *out, struct err *e)
{
	(void)state;
	(void)now_ns;
	(void)out;
	if (failures-- > 0)
		return err_set(e, -EACCES, "read 'x': nobody may");
	collect_add(out, SAMPLE_MEMORY);
	return 0;
}

static const struct collect_source failing = {
	.id = COLLECT_MEMORY, .open = open_any, .read = read_failing, .close = alloc_free};

static int opens;

static int open_absent(const struct collect_config *c, struct collect_out *out, void **ret,
		       struct err *e)
{
	(void)c;
	(void)ret;
	opens++;
	collect_state(out, "there is no GPU");
	return err_set(e, -ENOENT, "no such library");
}

static const struct collect_source absent = {
	.id = COLLECT_NVML, .open = open_absent, .read = read_failing, .close = alloc_free};

static int waits;

static int read_waiting(void *state, uint64_t now_ns, struct collect_out *out, struct err *e)
{
	(void)state;
	(void)now_ns;
	(void)e;
	waits++;
	collect_add(out, SAMPLE_MEMORY);
	return 0;
}

static const struct collect_source waiting = {.id = COLLECT_NVML,
					      .waits = true,
					      .open = open_any,
					      .read = read_waiting,
					      .close = alloc_free};

/* ---- Tests ---- */

static void test_devices_are_numbered_once(void **state)
{
	static const struct collect_source *const two[] = {&port, &disk};
	struct world *w = *state;
	uint32_t numbers[3] = {0}, d;

	begin(w, two, 2);
	while (count(w, SAMPLE_LINK) < 2 || count(w, SAMPLE_DISK) < 2)
		turn(w);
	for (size_t i = 0; i < w->n_seen; i++) {
		const struct sample *s = &w->seen[i];

		assert_int_equal(s->node, 0);
		assert_true(s->time_ns > 0 && (!i || s->time_ns >= w->seen[i - 1].time_ns));
		if (s->kind != SAMPLE_NAME)
			continue;
		assert_true(s->device < 3);
		numbers[s->device] |= 1u << (s->name.text[2] - '0' < 9 ? 0 : s->name.text[2] - 'a');
	}
	d = first(w, SAMPLE_DISK)->device;
	assert_true(first(w, SAMPLE_LINK)->device < 3 && d < 3);
	for (int i = 0; i < 3; i++) /* one name for each number */
		assert_true(numbers[i] && (numbers[i] & (numbers[i] - 1)) == 0);
	for (size_t i = 0; i < w->n_seen; i++)
		if (w->seen[i].kind == SAMPLE_NAME && w->seen[i].device == d)
			assert_string_equal(w->seen[i].name.text, "sda");
}

static void test_metrics_of_all_come_together(void **state)
{
	static const struct collect_source *const two[] = {&port, &disk};
	struct world *w = *state;
	const struct sample *s;

	begin(w, two, 2);
	while (!count(w, SAMPLE_METRICS))
		turn(w);
	s = first(w, SAMPLE_METRICS);
	assert_true(s->metrics[METRIC_NET_SEND] == 7 || isnan(s->metrics[METRIC_NET_SEND]));
	for (size_t i = w->n_seen; w->n_seen < SEEN_MAX - 32; i = w->n_seen) {
		turn(w);
		for (; i < w->n_seen; i++) {
			s = &w->seen[i];
			if (s->kind != SAMPLE_METRICS || s->metrics[METRIC_NET_SEND] != 7 ||
			    s->metrics[METRIC_DISK_WRITE] != 9)
				continue;
			assert_true(isnan(s->metrics[METRIC_CPU]));
			return;
		}
	}
	fail();
}

static void describe_one(void *arg, const char *name, bool works, const char *text)
{
	snprintf(arg, 200, "%s %d %s", name, works, text);
}

static void test_what_hangs_is_told_of_and_nobody_waits(void **state)
{
	static const struct collect_source *const two[] = {&hanging, &port};
	struct world *w = *state;
	char text[200] = "";
	size_t ports;
	uint64_t one = 1;

	hold = eventfd(0, EFD_CLOEXEC);
	freed = eventfd(0, EFD_CLOEXEC);
	begin(w, two, 2);
	until_said(w, "memory errors: a read has not come back");
	ports = count(w, SAMPLE_LINK);
	while (count(w, SAMPLE_LINK) < ports + 3) /* the other goes on */
		turn(w);
	assert_int_equal(count(w, SAMPLE_MEMORY), 0);
	w->collectors->ops->describe(w->collectors, describe_one, text);
	test_says(text, "net 1 1 port"); /* the last of the two */
	assert_int_equal(write(hold, &one, 8), 8);
	until_said(w, "memory errors: the read that hung is back");
	while (!count(w, SAMPLE_MEMORY))
		turn(w);
	assert_int_equal(write(hold, &one, 8), 8);
	w->collectors->ops->stop(w->collectors);
	close(freed);
	close(hold);
}

/* A thread that never comes back does not hold up the stop; what it has is freed by it. */
static void test_stop_while_one_hangs(void **state)
{
	static const struct collect_source *const one[] = {&hanging};
	struct world *w = *state;
	uint64_t go = 1;

	hold = eventfd(0, EFD_CLOEXEC);
	freed = eventfd(0, EFD_CLOEXEC);
	begin(w, one, 1);
	until_said(w, "has not come back");
	w->collectors->ops->stop(w->collectors);
	until_said(w, "stopped while a read of it hangs");
	collectors_free(w->collectors);
	w->collectors = NULL;
	assert_int_equal(write(hold, &go, 8), 8);
	assert_int_equal(read(freed, &go, 8), 8); /* by the thread that was left behind */
	assert_int_equal(count(w, SAMPLE_MEMORY), 0);
	close(freed);
	close(hold);
}

static void test_what_cannot_be_read_is_said_once(void **state)
{
	static const struct collect_source *const one[] = {&failing};
	struct world *w = *state;
	char *at;

	failures = 3;
	begin(w, one, 1);
	until_said(w, "memory errors can be read again");
	at = strstr(w->log_text, "going on without memory errors: read 'x': nobody may");
	assert_non_null(at);
	assert_null(strstr(at + 1, "going on without"));
	while (!count(w, SAMPLE_MEMORY))
		turn(w);
}

static void test_what_is_not_there_is_left_alone(void **state)
{
	static const struct collect_source *const two[] = {&absent, &port};
	struct world *w = *state;
	char text[200] = "";

	opens = 0;
	begin(w, two, 2);
	while (count(w, SAMPLE_LINK) < 4)
		turn(w);
	assert_int_equal(opens, 1);
	w->collectors->ops->stop(w->collectors);
	w->collectors->ops->describe(w->collectors, describe_one, text);
	assert_string_equal(text, "net 0 1 port");
	close(w->log_pipe[1]);
	assert_int_equal(read(w->log_pipe[0], text, sizeof(text)), 0); /* nothing was said */
	w->log_pipe[1] = -1;
}

static void test_a_source_that_waits_is_asked_again_at_once(void **state)
{
	static const struct collect_source *const one[] = {&waiting};
	struct world *w = *state;

	waits = 0;
	begin(w, one, 1);
	while (count(w, SAMPLE_MEMORY) < 100)
		turn(w);
	w->collectors->ops->stop(w->collectors);
	assert_true(waits >= 100);
}

static void test_what_is_off_does_not_start(void **state)
{
	static const struct collect_source *const two[] = {&disk, &port};
	struct world *w = *state;
	struct collect_options o = {
		.root = "", .kmsg = "", .data = "/", .interval_ns = MS, .log = &w->log};
	struct collect_sink sink = {.arg = w, .sample = on_sample, .activity = on_activity};
	struct err e = {0};

	o.on[COLLECT_DISK] = true;
	assert_int_equal(collectors_new_from(w->loop, &o, two, 2, &w->collectors, &e), 0);
	w->collectors->ops->start(w->collectors, &sink);
	while (count(w, SAMPLE_DISK) < 3)
		turn(w);
	assert_int_equal(count(w, SAMPLE_LINK), 0);
}

static void test_processes_are_looked_at_until_stop(void **state)
{
	static const struct collect_source *const one[] = {&port};
	struct process_id self = {.pid = getpid()};
	struct world *w = *state;
	size_t looks;

	assert_int_equal(process_start_time(self.pid, &self.start), 0);
	begin(w, one, 1);
	w->collectors->ops->probe(w->collectors, &self, true);
	while (w->looks < 2)
		loop_epoll_turn(w->loop, 0); /* running: we are looked at by a thread */
	w->collectors->ops->stop(w->collectors);
	looks = w->looks;
	w->collectors->ops->probe(w->collectors, &self, true);
	for (int i = 0; i < 20; i++)
		turn(w);
	assert_int_equal(w->looks, looks);
}

/* More than there is room for is lost, and nothing else. */
static void test_out_is_bounded(void **state)
{
	struct collect_out out;

	(void)state;
	assert_int_equal(collect_out_init(&out), 0);
	for (int i = 0; i < 3 * COLLECT_SAMPLES_MAX; i++)
		collect_add(&out, SAMPLE_DISK)->disk.ops = (uint64_t)i;
	assert_int_equal(out.n, COLLECT_SAMPLES_MAX);
	assert_int_equal(out.samples[out.n - 1].disk.ops, COLLECT_SAMPLES_MAX - 1);
	for (int i = 0; i < 3 * COLLECT_LINES_MAX; i++)
		collect_say(&out, LOG_INFO, "line %d", i);
	assert_int_equal(out.n_lines, COLLECT_LINES_MAX);
	assert_string_equal(out.lines[out.n_lines - 1].text, "line 7");
	collect_out_reset(&out);
	assert_int_equal(out.n + out.n_lines, 0);
	assert_true(isnan(out.metrics[METRIC_CPU]));
	collect_out_fini(&out);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_devices_are_numbered_once),
		T(test_metrics_of_all_come_together),
		T(test_what_hangs_is_told_of_and_nobody_waits),
		T(test_stop_while_one_hangs),
		T(test_what_cannot_be_read_is_said_once),
		T(test_what_is_not_there_is_left_alone),
		T(test_a_source_that_waits_is_asked_again_at_once),
		T(test_what_is_off_does_not_start),
		T(test_processes_are_looked_at_until_stop),
		T(test_out_is_bounded),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
