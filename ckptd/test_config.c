/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

#include "ckptd/config.h"
#include "ckptd/log.h"
#include "tests/lib/test.h"

struct fixture {
	char *dir, file[200];
	struct config c;
	struct err e;
};

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	f->dir = test_dir_make(NULL);
	snprintf(f->file, sizeof(f->file), "%s/ckptd.conf", f->dir);
	config_default(&f->c);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	test_dir_remove(f->dir);
	free(f);
	return 0;
}

static void put(struct fixture *f, const char *name, const char *text)
{
	char path[300];
	FILE *file;

	snprintf(path, sizeof(path), "%s/conf.d", f->dir);
	mkdir(path, 0700);
	snprintf(path, sizeof(path), "%s/%s", f->dir, name);
	file = fopen(path, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static void test_defaults(void **state)
{
	struct fixture *f = *state;

	assert_string_equal(f->c.socket, "/run/ckptd/ckptd.sock");
	assert_string_equal(f->c.data, "/var/lib/ckptd");
	assert_true(f->c.name[0]);
	assert_int_equal(f->c.slots, 3);
	assert_int_equal(f->c.log_level, LOG_INFO);
	assert_int_equal(f->c.memory_budget, 0);
	assert_int_equal(f->c.attempt_timeout_ns, 600000000000ull);
	assert_string_equal(config_backend(&f->c), "auto");
	assert_int_equal(config_check(&f->c, &f->e), 0);
}

static void test_file_and_folder_in_order(void **state)
{
	struct fixture *f = *state;

	put(f, "ckptd.conf",
	    "# a comment\n; another\n[memory]\nbudget = 64G ; inline\n  slots=4\n\n"
	    "[retention]\nkeep_last : 7\nkeep_every = 18446744073709551615\n");
	put(f, "conf.d/20-b.conf", "[memory]\nslots = 6\n");
	put(f, "conf.d/10-a.conf", "[memory]\nslots = 5\nhuge_pages = no\n");
	put(f, "conf.d/30-c.conf.bak", "[nonsense]\n");
	put(f, "conf.d/.hidden.conf", "[nonsense]\nx = y\n");
	assert_int_equal(config_file(&f->c, f->file, true, &f->e), 0);
	assert_int_equal(f->c.memory_budget, 64ull << 30);
	assert_int_equal(f->c.slots, 6);
	assert_int_equal(f->c.huge_pages, 0);
	assert_int_equal(f->c.keep_last, 7);
	assert_int_equal(f->c.keep_every, UINT64_MAX);
}

static void test_units(void **state)
{
	struct fixture *f = *state;
	const struct {
		const char *option, *value;
		uint64_t want; /* 0: refused */
	} cases[] = {
		{ "storage.spare", "5", 5 },
		{ "storage.spare", "5K", 5120 },
		{ "storage.spare", "5 M", 5242880 },
		{ "storage.spare", "5T", 5497558138880ull },
		{ "storage.spare", "5k", 0 },
		{ "storage.spare", "5Q", 0 },
		{ "storage.spare", "-5", 0 },
		{ "storage.spare", "+5", 0 },
		{ "storage.spare", "", 0 },
		{ "storage.spare", "0x10", 0 },
		{ "storage.spare", "99999999999999999999", 0 },
		{ "storage.spare", "18446744073709551615T", 0 },
		{ "storage.spare", "auto", 0 },
		{ "storage.transfer_size", "32M", 0 },
		{ "storage.transfer_size", "16M", 16 << 20 },
		{ "storage.transfer_size", "1023K", 0 },
		{ "checkpoint.attempt_timeout", "2min", 120000000000ull },
		{ "checkpoint.attempt_timeout", "90", 90000000000ull },
		{ "checkpoint.attempt_timeout", "1500ms", 1500000000 },
		{ "checkpoint.attempt_timeout", "999ms", 0 },
		{ "checkpoint.attempt_timeout", "1h", 3600000000000ull },
		{ "checkpoint.attempt_timeout", "25h", 0 },
		{ "memory.slots", "3K", 0 },
		{ "memory.slots", "1", 0 },
		{ "memory.slots", "16", 16 },
		{ "memory.slots", "17", 0 },
		{ "log.level", "debug", LOG_DEBUG },
		{ "log.level", "loud", 0 },
		{ "log.level", "inf", 0 },
		{ "log.level", "error|warning", 0 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct config before = f->c;
		int r = config_set(&f->c, cases[i].option, cases[i].value, "here", &f->e);
		const uint64_t *v = &f->c.spare;

		if (strstr(cases[i].option, "transfer"))
			v = &f->c.transfer;
		else if (strstr(cases[i].option, "attempt"))
			v = &f->c.attempt_timeout_ns;
		else if (strstr(cases[i].option, "slots"))
			v = &f->c.slots;
		else if (strstr(cases[i].option, "level"))
			v = &f->c.log_level;
		assert_int_equal(r, cases[i].want ? 0 : -EINVAL);
		if (cases[i].want)
			assert_int_equal(*v, cases[i].want);
		else
			assert_memory_equal(&before, &f->c, sizeof(before));
	}
}

static void assert_refused(struct fixture *f, const char *text, const char *line, const char *what)
{
	char where[300];

	put(f, "ckptd.conf", text);
	config_default(&f->c);
	err_clear(&f->e);
	assert_int_equal(config_file(&f->c, f->file, true, &f->e), -EINVAL);
	snprintf(where, sizeof(where), "%s:%s: ", f->file, line);
	if (!strstr(f->e.text, where) || !strstr(f->e.text, what))
		fail_msg("'%s' names neither '%s' nor '%s'", f->e.text, where, what);
}

static void test_errors_say_where_and_what_is_allowed(void **state)
{
	struct fixture *f = *state;
	char text[1000];

	assert_refused(f, "[memory]\n\nbudget = lots\n", "3", "memory.budget = 'lots' is not");
	assert_refused(f, "[memory]\n\nbudget = 1M\n", "3", "from 16M to 1024T");
	assert_refused(f, "[memory]\nbugdet = 1G\n", "2", "known are budget, slots, huge_pages");
	assert_refused(f, "\n[momery]\nbudget = 1G\n", "3", "known are service, log, memory");
	assert_refused(f, "budget = 1G\n", "1", "before any [section]");
	assert_refused(f, "[memory]\nslots = 3\nnonsense\n", "3", "neither 'key = value' nor");
	assert_refused(f, "[storage]\nbackend = spdk\n", "2", "one of auto|uring|threads");
	assert_refused(f, "[service]\nsocket = run/x\n", "2", "an absolute path of at most 107");
	assert_refused(f, "[service]\nname = .hid/den\n", "2", "no leading dot");
	/* The first error is the one that is told. */
	assert_refused(f, "[memory]\nslots = 99\nslots = 98\n", "2", "'99'");
	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	memcpy(text, "[service]\ndata = /", 18);
	assert_refused(f, text, "2", "longer than");
}

/* What a file cannot say is refused on the command line too, for --check-config prints a file. */
static void test_paths(void **state)
{
	struct fixture *f = *state;
	static const char *const bad[] = {"data", "", "/a ;b", "/a ", "/a\tb", "/a\nb", "/a\x7f"};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(config_set(&f->c, "service.data", bad[i], "here", &f->e), -EINVAL);
	assert_int_equal(config_set(&f->c, "service.data", "/a b;c\xc3\xa4", "here", &f->e), 0);
	assert_string_equal(f->c.data, "/a b;c\xc3\xa4");
}

static void test_errors_in_conf_d_and_missing_files(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(config_file(&f->c, f->file, true, &f->e), -ENOENT);
	assert_non_null(strstr(f->e.text, f->file));
	assert_non_null(strstr(f->e.text, "leave --config out"));
	/* Where nobody named the file, the folder beside it alone will do, or nothing. */
	assert_int_equal(config_file(&f->c, f->file, false, &f->e), 0);
	put(f, "conf.d/w.conf", "[memory]\nslots = 7\n");
	assert_int_equal(config_file(&f->c, f->file, false, &f->e), 0);
	assert_int_equal(f->c.slots, 7);
	put(f, "ckptd.conf", "");
	put(f, "conf.d/x.conf", "[quota]\nconnections = 0\n");
	assert_int_equal(config_file(&f->c, f->file, true, &f->e), -EINVAL);
	assert_non_null(strstr(f->e.text, "conf.d/x.conf:2: quota.connections = '0'"));
}

static void keep_stray(void *arg, const char *text)
{
	char *all = arg;

	strcat(strcat(all, text), "\n");
}

/* A misspelt option is named; what Kubernetes and other programs set is not. */
static void test_unknown_variables(void **state)
{
	char *environment[] = {"CKPTD_MEMORY_BUDGT=1G",        "CKPTD_MEMORY_SLOTS=3",
			       "CKPTD_TRUST_ZZZZZZ=1",         "CKPTD_SERVICE_HOST=10.0.0.1",
			       "CKPTD_SERVICE_PORT_HTTP=80",   "CKPTD_MEMORY_SERVICE_HOST=10.0.0.2",
			       "CKPTD_MEMORY_PORT_80_TCP=tcp", "CKPTD_INJECT=x",
			       "CKPTDX_MEMORY_BUDGT=1G",       NULL};
	char all[1000] = "";

	(void)state;
	config_strays(environment, keep_stray, all);
	assert_string_equal(all,
			    "environment variable CKPTD_MEMORY_BUDGT sets no option and is ignored "
			    "(did you mean 'CKPTD_MEMORY_BUDGET'?)\n"
			    "environment variable CKPTD_TRUST_ZZZZZZ sets no option and is "
			    "ignored\n");
}

static void test_environment_and_command_line_override(void **state)
{
	struct fixture *f = *state;

	setenv("CKPTD_MEMORY_SLOTS", "9", 1);
	setenv("CKPTD_SERVICE_HOST", "10.0.0.1", 1); /* Kubernetes */
	assert_int_equal(config_environment(&f->c, &f->e), 0);
	assert_int_equal(f->c.slots, 9);
	assert_int_equal(config_assign(&f->c, "memory.slots=10", &f->e), 0);
	assert_int_equal(f->c.slots, 10);
	assert_int_equal(config_assign(&f->c, "memory.slots", &f->e), -EINVAL);
	assert_int_equal(config_assign(&f->c, "=", &f->e), -EINVAL);
	assert_int_equal(config_assign(&f->c, "slots=3", &f->e), -EINVAL);
	setenv("CKPTD_MEMORY_SLOTS", "many", 1);
	assert_int_equal(config_environment(&f->c, &f->e), -EINVAL);
	assert_non_null(strstr(f->e.text, "CKPTD_MEMORY_SLOTS: memory.slots = 'many'"));
	unsetenv("CKPTD_MEMORY_SLOTS");
	unsetenv("CKPTD_SERVICE_HOST");
}

static void test_checks_between_options(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(config_assign(&f->c, "storage.transfer_size=1025K", &f->e), 0);
	assert_int_equal(config_check(&f->c, &f->e), -EINVAL);
	config_default(&f->c);
	assert_int_equal(config_assign(&f->c, "quota.connections=10", &f->e), 0);
	assert_int_equal(config_check(&f->c, &f->e), -EINVAL);
}

static void test_what_is_printed_can_be_read_back(void **state)
{
	struct fixture *f = *state;
	struct config again;
	FILE *file;

	assert_int_equal(config_assign(&f->c, "checkpoint.attempt_timeout=1500ms", &f->e), 0);
	assert_int_equal(config_assign(&f->c, "storage.spare=0", &f->e), 0);
	assert_int_equal(config_assign(&f->c, "storage.backend=threads", &f->e), 0);
	assert_int_equal(config_assign(&f->c, "log.level=error", &f->e), 0);
	file = fopen(f->file, "w");
	config_print(&f->c, file);
	fclose(file);
	config_default(&again);
	assert_int_equal(config_file(&again, f->file, true, &f->e), 0);
	assert_memory_equal(&again, &f->c, sizeof(again));
}

static void test_what_needs_a_restart(void **state)
{
	struct fixture *f = *state;
	struct config wanted = f->c;
	char text[200];

	wanted.keep_last = 99;
	wanted.log_level = LOG_DEBUG;
	config_needs_restart(&f->c, &wanted, text, sizeof(text));
	assert_string_equal(text, "");
	wanted.slots = 8;
	wanted.transfer = 1 << 20;
	config_needs_restart(&f->c, &wanted, text, sizeof(text));
	assert_string_equal(text, "memory.slots, storage.transfer_size");
}

/* ---- The log ---- */

static void logged(struct log *log, int p, int level, const char *line, char buf[4096])
{
	ssize_t n;

	(void)log;
	log_line(log, level, line);
	n = read(p, buf, 4095);
	buf[n > 0 ? n : 0] = '\0';
}

static void test_log_lines(void **state)
{
	char buf[4096], big[5000];
	int p[2];

	(void)state;
	assert_int_equal(pipe(p), 0);
	struct log log = { .fd = p[1], .level = LOG_INFO, .journal = true };

	logged(&log, p[0], LOG_WARNING, "job 'x\n\033[1m' came", buf);
	assert_string_equal(buf, "<4>job 'x??[1m' came\n");
	log_line(&log, LOG_DEBUG, "unheard"); /* or the next line would not be the next */
	log_line(NULL, LOG_ERR, "nobody");
	log.journal = false;
	logged(&log, p[0], LOG_ERR, "text", buf);
	assert_non_null(strstr(buf, "Z error text\n"));
	log.json = true;
	logged(&log, p[0], LOG_INFO, "a \"b\" \\ \n\x01", buf);
	assert_non_null(strstr(buf, "\"level\":\"info\",\"message\":\"a \\\"b\\\" \\\\ "
				    "\\u000a\\u0001\"}\n"));
	memset(big, '"', sizeof(big) - 1);
	big[sizeof(big) - 1] = '\0';
	logged(&log, p[0], LOG_INFO, big, buf);
	assert_true(strlen(buf) <= LOG_LINE_MAX);
	assert_string_equal(buf + strlen(buf) - 5, "\\\"\"}\n"); /* cut, and still JSON */
	log.json = false;
	logged(&log, p[0], LOG_INFO, big, buf);
	assert_true(strlen(buf) <= LOG_LINE_MAX && strchr(buf, '\n'));
	close(p[0]);
	close(p[1]);
}

static void test_log_limit(void **state)
{
	struct log_limit limit = { 0 };
	char buf[4096];
	ssize_t n;
	int p[2];

	(void)state;
	assert_int_equal(pipe(p), 0);
	struct log log = { .fd = p[1], .level = LOG_INFO, .journal = true };

	for (int i = 0; i < 5; i++)
		log_limited(&log, &limit, 1000 + (uint64_t)i, LOG_ERR, "number %d", i);
	log_limited(&log, &limit, 1000000000u + 1000u, LOG_ERR, "number %d", 5);
	n = read(p[0], buf, sizeof(buf) - 1);
	buf[n] = '\0';
	assert_string_equal(buf, "<3>number 0\n<3>number 5 (and 4 more like it)\n");
	close(p[0]);
	close(p[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
		T(test_defaults),
		T(test_file_and_folder_in_order),
		T(test_units),
		T(test_errors_say_where_and_what_is_allowed),
		T(test_paths),
		T(test_errors_in_conf_d_and_missing_files),
		T(test_unknown_variables),
		T(test_environment_and_command_line_override),
		T(test_checks_between_options),
		T(test_what_is_printed_can_be_read_back),
		T(test_what_needs_a_restart),
#undef T
		cmocka_unit_test(test_log_lines),
		cmocka_unit_test(test_log_limit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
