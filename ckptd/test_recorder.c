/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the detector is told is recorded within its bounds: of memory, of the file, of the disk.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

#include "ckptd/log.h"
#include "ckptd/recorder.h"
#include "detect/trace.h"
#include "tests/lib/test.h"

/* One worker that works when the test lets it. */
struct fixture {
	struct workers workers;
	struct work *work;
	unsigned submitted;
	struct log log;
	char *dir;
	struct recorder *recorder;
};

static void hold(struct workers *w, enum work_class c, struct work *work)
{
	struct fixture *f = container_of(w, struct fixture, workers);

	assert_int_equal(c, WORK_META);
	assert_null(f->work); /* one at a time */
	f->work = work;
	f->submitted++;
}

static void let_work(struct fixture *f)
{
	struct work *w = f->work;

	assert_non_null(w);
	f->work = NULL;
	w->run(w);
	w->done(w);
}

static int setup(void **state)
{
	static const struct workers_ops ops = {.submit = hold};
	struct fixture *f = calloc(1, sizeof(*f));

	if (!f)
		return -1;
	f->workers.ops = &ops;
	f->dir = test_dir_make(NULL);
	f->log = (struct log){.level = LOG_DEBUG};
	f->log.fd = open(test_path(f->dir, "log"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	*state = f;
	return f->log.fd < 0 ? -1 : 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	recorder_free(f->recorder);
	close(f->log.fd);
	test_dir_remove(f->dir);
	free(f);
	return 0;
}

static void begin(struct fixture *f)
{
	struct err e = {0};

	assert_int_equal(
		recorder_new(&f->workers, &f->log, test_path(f->dir, "record"), &f->recorder, &e),
		0);
}

static void put(struct fixture *f, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		struct sample s = {.kind = SAMPLE_NAME, .time_ns = i};

		snprintf(s.name.text, sizeof(s.name.text), "n%llu", (unsigned long long)i);
		recorder_put(f->recorder, &s);
	}
}

static uint64_t recorded(struct fixture *f)
{
	struct stat st;

	assert_int_equal(stat(test_path(f->dir, "record"), &st), 0);
	return (uint64_t)st.st_size;
}

/* How often the log has these words. */
static unsigned said(struct fixture *f, const char *words)
{
	char text[4096] = "";
	unsigned n = 0;

	assert_true(pread(f->log.fd, text, sizeof(text) - 1, 0) >= 0);
	for (const char *at = text; (at = strstr(at, words)); at++)
		n++;
	return n;
}

/* Nothing is left out, in whatever pieces it goes to disk, and what waits at the end does too. */
static void test_all_of_it(void **state)
{
	struct fixture *f = *state;
	unsigned long long expected = 0, i;
	char line[4096];
	FILE *file;

	begin(f);
	for (unsigned round = 0; round < 50; round++) {
		put(f, 1000);
		if (f->work)
			let_work(f);
	}
	assert_true(f->submitted > 2);
	recorder_free(f->recorder);
	f->recorder = NULL;
	file = fopen(test_path(f->dir, "record"), "re");
	assert_non_null(file);
	assert_non_null(fgets(line, sizeof(line), file));
	assert_string_equal(line, TRACE_FIRST_LINE);
	while (fgets(line, sizeof(line), file)) {
		assert_int_equal(sscanf(strstr(line, "text="), "text=\"n%llu\"", &i), 1);
		assert_int_equal(i, expected++ % 1000);
	}
	fclose(file);
	assert_int_equal(expected, 50000);
	assert_int_equal(said(f, "nothing more is recorded"), 0);
}

/* Of a job that has little to tell there is something to see all the same. */
static void test_little_by_little(void **state)
{
	struct fixture *f = *state;
	struct sample s = {.kind = SAMPLE_NAME, .time_ns = 1, .name = {.text = "n"}};

	begin(f);
	recorder_put(f->recorder, &s);
	s.time_ns = 9000000000;
	recorder_put(f->recorder, &s);
	assert_int_equal(f->submitted, 0);
	s.time_ns = 10000000000;
	recorder_put(f->recorder, &s);
	assert_int_equal(f->submitted, 1);
	let_work(f);
	assert_true(recorded(f) > 3 * strlen("0 name node=0 text=\"n\"\n"));
	s.time_ns = 11000000000;
	recorder_put(f->recorder, &s);
	assert_int_equal(f->submitted, 1);
}

/* The worker does not come back: memory is bounded, and it is said once. */
static void test_disk_too_slow(void **state)
{
	struct fixture *f = *state;
	uint64_t size;

	begin(f);
	put(f, 300000);
	assert_int_equal(f->submitted, 1);
	assert_int_equal(said(f, "the disk does not keep up: nothing more is recorded"), 1);
	let_work(f);
	size = recorded(f);
	assert_true(size > 0 && size < RECORDER_WAITS_MAX);
	put(f, 5000);
	assert_null(f->work);
	recorder_free(f->recorder);
	f->recorder = NULL;
	assert_int_equal(recorded(f), size); /* no gap in the middle of it */
	assert_int_equal(said(f, "nothing more"), 1);
}

/* Less than a write of it is left: that goes there, and nothing behind it. */
static void test_file_full(void **state)
{
	static const char last[] = "\n0 name node=0 text=\"n\"\n";
	const size_t len = sizeof(last) - 1;
	struct fixture *f = *state;
	int fd = open(test_path(f->dir, "record"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	assert_int_equal(write(fd, TRACE_FIRST_LINE, strlen(TRACE_FIRST_LINE)),
			 strlen(TRACE_FIRST_LINE)); /* then holes, and: */
	assert_int_equal(pwrite(fd, last, len, (off_t)(RECORDER_FILE_MAX - 100 - len)), len);
	close(fd);
	begin(f);
	for (unsigned round = 0; round < 10; round++) {
		put(f, 1000);
		if (f->work)
			let_work(f);
	}
	assert_int_equal(f->submitted, 1);
	assert_int_equal(said(f, "the file is as long as it may be: nothing more"), 1);
	assert_in_range(recorded(f), RECORDER_FILE_MAX, RECORDER_FILE_MAX + (1u << 20));
}

static void test_write_fails(void **state)
{
	struct rlimit old, small;
	struct fixture *f = *state;

	begin(f);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
	small = old;
	small.rlim_cur = 1000;
	signal(SIGXFSZ, SIG_IGN);
	for (unsigned round = 0; round < 10; round++) {
		put(f, 1000);
		if (!f->work)
			continue;
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
		let_work(f);
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
	}
	signal(SIGXFSZ, SIG_DFL);
	assert_int_equal(f->submitted, 1);
	assert_int_equal(said(f, "detect.record: File too large: nothing more is recorded"), 1);
}

static void test_no_file(void **state)
{
	struct fixture *f = *state;
	struct err e = {0};

	assert_int_equal(mkfifo(test_path(f->dir, "fifo"), 0600), 0);
	assert_true(recorder_new(&f->workers, &f->log, test_path(f->dir, "fifo"), &f->recorder,
				 &e) < 0);
	assert_non_null(strstr(e.text, "detect.record"));
	assert_int_equal(symlink("record", test_path(f->dir, "link")), 0);
	assert_true(recorder_new(&f->workers, &f->log, test_path(f->dir, "link"), &f->recorder,
				 &e) < 0);
	f->recorder = NULL;
}

static void write_record(struct fixture *f, const char *text)
{
	int fd = open(test_path(f->dir, "record"), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

/* People write into it, a ckptd dies in the middle of a line: it is gone on with, after its last
 * record. What is something else is left as it is. */
static void test_file_that_was_there(void **state)
{
	static const char torn[] =
		"ckpt-trace 1\n0.5 name node=0 text=\"n\"\n\n# it hung here\n0.6 na",
			  whole[] = "ckpt-trace 1\n0.5 name node=0 text=\"n\"\n\n# it hung here\n";
	static const char *const other[] = {"other", "other\n", "ckpt-trace 1\nno record\n",
					    "ckpt-trace 1\n# only words\n"};
	struct fixture *f = *state;
	struct sample s = {.kind = SAMPLE_NAME, .time_ns = 500000000, .name = {.text = "again"}};
	char text[400] = "";
	struct err e = {0};
	int fd;

	write_record(f, torn);
	begin(f);
	recorder_put(f->recorder, &s);
	recorder_free(f->recorder);
	fd = open(test_path(f->dir, "record"), O_RDONLY | O_CLOEXEC);
	assert_true(read(fd, text, sizeof(text) - 1) > 0);
	close(fd);
	assert_memory_equal(text, whole, sizeof(whole) - 1);
	assert_non_null(strstr(text + sizeof(whole) - 1, "again"));
	assert_null(strstr(text, "0.6"));
	/* A machine that was started again: times would go back. */
	begin(f);
	s.time_ns--;
	recorder_put(f->recorder, &s);
	assert_int_equal(said(f, "times would go back"), 1);
	recorder_free(f->recorder);
	f->recorder = NULL;
	for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++) {
		write_record(f, other[i]);
		assert_true(recorder_new(&f->workers, &f->log, test_path(f->dir, "record"),
					 &f->recorder, &e) < 0);
		assert_non_null(strstr(e.text, "is there and is no trace"));
		assert_int_equal(recorded(f), strlen(other[i]));
	}
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_all_of_it),           T(test_little_by_little), T(test_disk_too_slow),
		T(test_file_full),           T(test_write_fails),      T(test_no_file),
		T(test_file_that_was_there),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
