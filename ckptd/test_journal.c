/* SPDX-License-Identifier: Apache-2.0 */
/* The log to systemd's journal: a socket of our own takes its place. */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/bytes.h"
#include "ckptd/journal.h"
#include "ckptd/log.h"
#include "tests/lib/test.h"

struct rig {
	char *folder;
	struct sockaddr_un addr;
	int socket;    /* the journal's */
	int stderr_fd; /* what the log has as standard error, to read from */
	struct log log;
};

static void listen_at(struct rig *r)
{
	r->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	assert_true(r->socket >= 0);
	assert_int_equal(bind(r->socket, (struct sockaddr *)&r->addr, sizeof(r->addr)), 0);
}

static int setup(void **state)
{
	struct rig *r = calloc(1, sizeof(*r));
	int p[2];

	assert_non_null(r);
	r->folder = test_dir_make(NULL);
	r->addr.sun_family = AF_UNIX;
	snprintf(r->addr.sun_path, sizeof(r->addr.sun_path), "%s/socket", r->folder);
	listen_at(r);
	assert_int_equal(pipe2(p, O_CLOEXEC | O_NONBLOCK), 0);
	r->stderr_fd = p[0];
	r->log = (struct log){.fd = p[1], .level = LOG_INFO, .journal = true};
	assert_int_equal(journal_open(r->addr.sun_path, &r->log.entries), 0);
	*state = r;
	return 0;
}

static int teardown(void **state)
{
	struct rig *r = *state;

	journal_free(r->log.entries);
	close(r->socket);
	close(r->stderr_fd);
	close(r->log.fd);
	test_dir_remove(r->folder);
	free(r);
	return 0;
}

/* The next entry as lines NAME=value, in the order of its fields. */
static void next_entry(struct rig *r, char text[4096])
{
	uint8_t bytes[8192], *at = bytes, *end;
	ssize_t n = recv(r->socket, bytes, sizeof(bytes), 0);

	assert_true(n > 0);
	text[0] = '\0';
	for (end = bytes + n; at < end;) {
		uint8_t *name_end = memchr(at, '\n', (size_t)(end - at));
		uint64_t len;

		assert_true(name_end && end - name_end > 9);
		len = get_le64(name_end + 1);
		assert_true(len < (uint64_t)(end - name_end - 9) && name_end[9 + len] == '\n');
		snprintf(text + strlen(text), 4096 - strlen(text), "%.*s=%.*s\n",
			 (int)(name_end - at), at, (int)len, name_end + 9);
		at = name_end + 9 + len + 1;
	}
}

static void on_stderr(struct rig *r, char text[4096])
{
	ssize_t n = read(r->stderr_fd, text, 4095);

	text[n > 0 ? n : 0] = '\0';
}

#define HEAD(priority) "PRIORITY=" priority "\nSYSLOG_FACILITY=3\nSYSLOG_IDENTIFIER=ckptd\n"

static void test_fields(void **state)
{
	const struct log_about job = {.job = "run7"};
	const struct log_about step = {.job = "run7", .has_step = true, .step = UINT64_MAX};
	const struct log_about step_0 = {.job = "a=b\nMESSAGE=c", .has_step = true};
	struct rig *r = *state;
	char text[4096];

	log_entry(&r->log, LOG_NOTICE, &job, "job 'run7': adopted");
	next_entry(r, text);
	assert_string_equal(text, HEAD("5") "MESSAGE=job 'run7': adopted\nCKPT_JOB=run7\n");
	log_entry(&r->log, LOG_ERR, &step, "lost");
	next_entry(r, text);
	assert_string_equal(
		text, HEAD("3") "MESSAGE=lost\nCKPT_JOB=run7\nCKPT_STEP=18446744073709551615\n");
	log_entry(&r->log, LOG_ERR, &step_0, "two\nlines");
	next_entry(r, text);
	assert_string_equal(text, HEAD("3") "MESSAGE=two?lines\nCKPT_JOB=a=b\nMESSAGE=c\n"
					    "CKPT_STEP=0\n");
	log_print(&r->log, LOG_WARNING, "of no job: %d", 1);
	next_entry(r, text);
	assert_string_equal(text, HEAD("4") "MESSAGE=of no job: 1\n");
	log_entry(&r->log, LOG_DEBUG, &job, "above the level");
	assert_int_equal(recv(r->socket, text, sizeof(text), 0), -1);
	on_stderr(r, text);
	assert_string_equal(text, "");
	r->log.json = true;
	log_entry(&r->log, LOG_NOTICE, &job, "words");
	next_entry(r, text);
	assert_non_null(strstr(text, "\"message\":\"words\"}\nCKPT_JOB=run7\n"));
}

/* What the journal does not take is on standard error, with systemd's level; nothing waits. */
static void test_journal_that_does_not_read(void **state)
{
	struct rig *r = *state;
	unsigned sent = 0, taken = 0;
	char text[4096];

	do {
		log_print(&r->log, LOG_WARNING, "line %u", ++sent);
		on_stderr(r, text);
	} while (!text[0] && sent < 100000);
	assert_true(sent > 1);
	assert_int_equal(strncmp(text, "<4>line ", 8), 0);
	while (recv(r->socket, text, sizeof(text), 0) > 0)
		taken++;
	assert_int_equal(taken, sent - 1);
}

static void test_journal_that_is_started_again(void **state)
{
	struct rig *r = *state;
	char text[4096];

	close(r->socket);
	log_print(&r->log, LOG_ERR, "closed");
	on_stderr(r, text);
	assert_string_equal(text, "<3>closed\n");
	assert_int_equal(unlink(r->addr.sun_path), 0);
	log_print(&r->log, LOG_ERR, "gone");
	on_stderr(r, text);
	assert_string_equal(text, "<3>gone\n");
	listen_at(r);
	log_print(&r->log, LOG_ERR, "back");
	next_entry(r, text);
	assert_string_equal(text, HEAD("3") "MESSAGE=back\n");
	on_stderr(r, text);
	assert_string_equal(text, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
		T(test_fields),
		T(test_journal_that_does_not_read),
		T(test_journal_that_is_started_again),
#undef T
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
