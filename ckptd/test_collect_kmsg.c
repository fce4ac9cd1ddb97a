/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernel messages through a FIFO, a file and, where it may be used, the real device.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckptd/collect_kmsg.h"
#include "ckptd/log.h"
#include "ckptd/loop_epoll.h"
#include "tests/lib/test.h"

#define MS 1000000ull
/* Ten minutes of the machine's own messages, which other tests fill, are among them. */
enum { SEEN_MAX = 32768 };

struct world {
	struct loop *loop;
	struct log log;
	int log_pipe[2], fifo;
	char *dir;
	struct collect_config config;
	struct kmsg *kmsg;
	struct sample seen[SEEN_MAX];
	size_t n;
	char log_text[4096];
};

static int setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));
	struct err e = {0};

	w->dir = test_dir_make(NULL);
	w->fifo = -1;
	assert_int_equal(loop_epoll_new(&w->loop, &e), 0);
	assert_int_equal(pipe2(w->log_pipe, O_NONBLOCK), 0);
	w->log = (struct log){.fd = w->log_pipe[1], .level = LOG_DEBUG, .journal = true};
	snprintf(w->config.data, sizeof(w->config.data), "%s", w->dir);
	snprintf(w->config.kmsg, sizeof(w->config.kmsg), "%s/kmsg", w->dir);
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	kmsg_free(w->kmsg);
	loop_epoll_free(w->loop);
	close(w->log_pipe[0]);
	close(w->log_pipe[1]);
	if (w->fifo >= 0)
		close(w->fifo);
	test_dir_remove(w->dir);
	free(w);
	return 0;
}

static void on_sample(void *arg, const struct sample *s)
{
	struct world *w = arg;

	assert_int_equal(s->kind, SAMPLE_KERNEL);
	assert_int_equal(s->node, 0);
	assert_true(w->n < SEEN_MAX);
	w->seen[w->n++] = *s;
}

static void begin(struct world *w)
{
	assert_int_equal(kmsg_new(w->loop, &w->log, &w->config, on_sample, w, &w->kmsg), 0);
}

static void end(struct world *w)
{
	kmsg_free(w->kmsg);
	w->kmsg = NULL;
}

static void turn(struct world *w)
{
	loop_epoll_turn(w->loop, 5 * MS);
}

/* Waits until one was told that begins so; how many came before it. */
static size_t until(struct world *w, const char *words)
{
	for (size_t i = 0;; i++) {
		while (i >= w->n)
			turn(w);
		if (strncmp(w->seen[i].kernel.text, words, strlen(words)) == 0)
			return i;
	}
}

static bool was_told(const struct world *w, const char *words)
{
	for (size_t i = 0; i < w->n; i++)
		if (strcmp(w->seen[i].kernel.text, words) == 0)
			return true;
	return false;
}

static const char *said(struct world *w)
{
	size_t len = strlen(w->log_text);
	ssize_t n = read(w->log_pipe[0], w->log_text + len, sizeof(w->log_text) - 1 - len);

	if (n > 0)
		w->log_text[len + (size_t)n] = '\0';
	return w->log_text;
}

static void put(int fd, const char *text)
{
	assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

static void begin_fifo(struct world *w)
{
	assert_int_equal(mkfifo(w->config.kmsg, 0600), 0);
	begin(w);
	w->fifo = open(w->config.kmsg, O_WRONLY | O_CLOEXEC);
	assert_true(w->fifo >= 0);
}

static void test_fifo(void **state)
{
	struct world *w = *state;
	const struct sample *s;
	char text[ERR_TEXT_MAX];

	begin_fifo(w);
	put(w->fifo, "4,1,100,-;NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n"
		     " SUBSYSTEM=pci\n DEVICE=+pci:0000:9b:00.0\n12,2,101,-;NVRM: Xid: spoofed\n");
	until(w, "NVRM: Xid: spoofed");
	assert_int_equal(w->n, 2);
	s = &w->seen[0];
	assert_int_equal(s->kernel.facility, 0);
	assert_int_equal(s->kernel.level, 4);
	assert_string_equal(s->kernel.text,
			    "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.");
	assert_int_equal(w->seen[1].kernel.facility, 1); /* somebody else than the kernel */
	assert_true(kmsg_state(w->kmsg, text));
	test_says(text, "FIFO");
	close(w->fifo); /* writers may go and come */
	for (int i = 0; i < 5; i++)
		turn(w);
	w->fifo = open(w->config.kmsg, O_WRONLY | O_CLOEXEC);
	put(w->fifo, "6,3,102,-;again\n");
	until(w, "again");
	assert_string_equal(said(w), "");
}

/* Records in pieces, records that are none, and lines longer than any: the next one is whole. */
static void test_hostile_stream(void **state)
{
	struct world *w = *state;
	char *longest = malloc(20000);

	begin_fifo(w);
	put(w->fifo, "4,1,10");
	turn(w);
	put(w->fifo, "0,-;in piec");
	turn(w);
	put(w->fifo, "es\n\n\n;\n,,,;\nno record\n4,18446744073709551616,1,-;too big\n");
	until(w, "in pieces");
	memset(longest, 'x', 20000);
	assert_int_equal(write(w->fifo, longest, 20000), 20000);
	put(w->fifo, "\n5,2,1,-;after\n");
	until(w, "after");
	assert_int_equal(w->n, 2);
	memset(longest, 0, 20000);
	assert_int_equal(write(w->fifo, longest, 20000), 20000);
	put(w->fifo, "4,3,1,-;hidden in zeros\n5,4,1,-;\x1b[2J\x80 controls\n");
	until(w, "");
	while (w->n < 3)
		turn(w);
	for (size_t i = 0; i < w->n; i++)
		for (const char *p = w->seen[i].kernel.text; *p; p++)
			assert_true(*p == '\n' || ((unsigned char)*p >= ' ' && *p != 0x7f));
	free(longest);
}

/* Many at once are told over some turns, and all of them. */
static void test_burst(void **state)
{
	struct world *w = *state;
	char line[64];

	begin_fifo(w);
	for (int i = 0; i < 300; i++) {
		snprintf(line, sizeof(line), "6,%d,%d,-;message %d\n", i, i, i);
		put(w->fifo, line);
	}
	until(w, "message 299");
	assert_int_equal(w->n, 300);
}

static void append(struct world *w, const char *text)
{
	int fd = open(w->config.kmsg, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	put(fd, text);
	close(fd);
}

static void test_file(void **state)
{
	struct world *w = *state;

	append(w, "6,1,1,-;before\n");
	begin(w);
	append(w, "6,2,2,-;one\n6,3,3,-;tw");
	until(w, "one");
	append(w, "o\n");
	until(w, "two");
	assert_int_equal(w->n, 2);
	assert_int_equal(truncate(w->config.kmsg, 0), 0); /* it was rotated */
	append(w, "6,9,9,-;x\n");
	until(w, "x");
}

static void test_what_cannot_be_opened_is_said_once(void **state)
{
	struct world *w = *state;
	char text[ERR_TEXT_MAX];
	const char *first;

	begin(w);
	assert_false(kmsg_state(w->kmsg, text));
	test_says(text, "No such file or directory");
	kmsg_try_again(w->kmsg);
	kmsg_try_again(w->kmsg);
	first = strstr(said(w), "going on without kernel messages");
	assert_non_null(first);
	assert_null(strstr(first + 1, "going on"));
	append(w, "");
	kmsg_try_again(w->kmsg);
	test_says(said(w), "kernel messages can be read again");
	append(w, "6,1,1,-;hello\n");
	until(w, "hello");
}

static void test_a_folder_is_no_file(void **state)
{
	struct world *w = *state;
	char text[ERR_TEXT_MAX];

	assert_int_equal(mkdir(w->config.kmsg, 0700), 0);
	begin(w);
	assert_false(kmsg_state(w->kmsg, text));
	test_says(text, "Invalid argument");
}

/* ---- The device ---- */

/* Whether one of the records from here to the newest has these words. */
static bool stands_in(int fd, const char *words)
{
	char buf[8193];
	ssize_t n;

	while ((n = read(fd, buf, sizeof(buf) - 1)) > 0 || (n < 0 && errno == EPIPE)) {
		buf[n > 0 ? n : 0] = '\0';
		if (strstr(buf, words))
			return true;
	}
	return false;
}

/* The kernel drops what programs write too fast, and says nothing: it is written until it stands.
 */
static void put_kernel(const char *words, char *unique, size_t size)
{
	int out = open("/dev/kmsg", O_WRONLY | O_CLOEXEC);
	int in = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	static int number;
	char line[200];

	snprintf(unique, size, "ckptd test %d.%d: %s", (int)getpid(), ++number, words);
	snprintf(line, sizeof(line), "<15>%s\n", unique);
	assert_true(out >= 0 && in >= 0);
	assert_true(lseek(in, 0, SEEK_END) >= 0);
	for (int i = 0;; i++) {
		assert_true(i < 120);
		assert_int_equal(write(out, line, strlen(line)), (ssize_t)strlen(line));
		if (stands_in(in, unique))
			break;
		poll(NULL, 0, 500);
	}
	close(in);
	close(out);
}

static bool has_device(struct world *w)
{
	int fd = open("/dev/kmsg", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	char buf[8192];
	bool good = fd >= 0 && (read(fd, buf, sizeof(buf)) > 0 || errno == EPIPE);

	if (fd >= 0)
		close(fd);
	if (!good)
		print_message("skipped: /dev/kmsg cannot be read and written here\n");
	snprintf(w->config.kmsg, sizeof(w->config.kmsg), "/dev/kmsg");
	return good;
}

/* What was told is not told again, what came while nobody listened is told. */
static void test_device_goes_on_where_it_was(void **state)
{
	struct world *w = *state;
	char young[128], first[128], between[128], last[128];

	if (!has_device(w))
		return;
	put_kernel("a little before the start", young, sizeof(young));
	begin(w);
	until(w, young); /* it may be why ckptd was started */
	put_kernel("first", first, sizeof(first));
	until(w, first);
	assert_int_equal(w->seen[w->n - 1].kernel.facility, 1);
	end(w);
	put_kernel("between", between, sizeof(between));
	w->n = 0;
	begin(w);
	until(w, between);
	assert_false(was_told(w, young));
	assert_false(was_told(w, first));
	put_kernel("last", last, sizeof(last));
	until(w, last);
}

static void test_another_boot_is_another_count(void **state)
{
	struct world *w = *state;
	char young[128], path[300];
	FILE *f;

	if (!has_device(w))
		return;
	put_kernel("of this boot", young, sizeof(young));
	snprintf(path, sizeof(path), "%s/" KMSG_SEEN, w->dir);
	f = fopen(path, "w");
	assert_non_null(f);
	fputs("00000000-aaaa-bbbb-cccc-000000000000 18446744073709551615\n", f);
	fclose(f);
	begin(w);
	until(w, young);
}

/* A crash of ckptd: what stands in the data folder is at most a second old. */
static void test_place_is_noted_while_it_runs(void **state)
{
	struct world *w = *state;
	char words[128], path[300];

	if (!has_device(w))
		return;
	begin(w);
	put_kernel("noted", words, sizeof(words));
	until(w, words);
	snprintf(path, sizeof(path), "%s/" KMSG_SEEN, w->dir);
	while (access(path, F_OK) != 0)
		turn(w);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_fifo),
		T(test_hostile_stream),
		T(test_burst),
		T(test_file),
		T(test_what_cannot_be_opened_is_said_once),
		T(test_a_folder_is_no_file),
		T(test_device_goes_on_where_it_was),
		T(test_another_boot_is_another_count),
		T(test_place_is_noted_while_it_runs),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
