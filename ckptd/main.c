/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - ckptd's command line: which of its few lives this process is to lead.
 *
 *   ckptd                the daemon, for a service manager
 *   ckptd --supervise    a small parent that keeps the daemon's memory and starts it again
 *   ckptd --user         the same without root, service manager or configuration
 *
 * ckptd executes this program with --receiver for each user that sends it descriptors
 * (receiver_child.h). The parent executes this program again with --supervised, so that a daemon
 * that it starts after an upgrade is the new one. Exit status: 0 fine, 1 it failed, 2 usage or
 * configuration, 3 it was stopped and could not write all that is committed.
 */
#include <config.h>

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/near.h"
#include "base/fault.h"
#include "ckptd/receiver_child.h"
#include "ckptd/service.h"
#include "ckptd/supervise.h"

enum { STATUS_OK, STATUS_FAILED, STATUS_USAGE, STATUS_LOST };
enum { SETS_MAX = 128, WATCHDOG_S = 120 };

/* One setting of the command line; option NULL: value is "section.key=value". */
struct setting {
	const char *option, *value, *where;
};

struct arguments {
	bool user, supervise, supervised, check;
	const char *file; /* NULL: CONFIG_FILE if it is there */
	struct setting sets[SETS_MAX];
	size_t n_sets;
};

static const char usage[] =
	"usage: ckptd [options]\n"
	"  --user             as an ordinary user: no service manager, no configuration needed\n"
	"                     (socket $XDG_RUNTIME_DIR/ckptd.sock, data ~/.local/share/ckptd)\n"
	"  --supervise        keep memory and start again after a crash, where there is no "
	"systemd\n"
	"  --socket PATH      where trainers and tools connect (service.socket)\n"
	"  --data FOLDER      folder of everything durable (service.data)\n"
	"  --name NAME        of this node (service.name)\n"
	"  --set S.KEY=VALUE  any option of the configuration\n"
	"  --config FILE      instead of " CONFIG_FILE "; conf.d beside it is read too\n"
	"  --check-config     print the configuration as it would be used, and end\n"
	"  --list-faults      print the fault points and planted bugs of this build, and end\n"
	"  --version, --help\n"
	"\n"
	"Options of the configuration; CKPTD_SECTION_KEY in the environment overrides files:\n";

/* ---- Arguments ---- */

static void list_faults(void)
{
#ifdef CKPT_FAULTS
	for (int i = 0; i < FAULT_POINTS; i++)
		printf("fault  %-28s %s\n", fault_name((enum fault_point)i),
		       fault_text((enum fault_point)i));
	for (int i = 0; i < PLANTED_BUGS; i++)
		printf("bug    %-28s %s\n", bug_name((enum planted_bug)i),
		       bug_text((enum planted_bug)i));
#else
	printf("this build has none (configure --enable-fault-injection)\n");
#endif
}

static void print_help(void)
{
	fputs(usage, stdout);
	config_help(stdout);
}

static bool add_setting(struct arguments *a, const char *option, const char *where)
{
	if (a->n_sets == SETS_MAX) {
		fprintf(stderr, "ckptd: more than %d settings\n", SETS_MAX);
		return false;
	}
	a->sets[a->n_sets++] = (struct setting){ option, optarg, where };
	return true;
}

enum {
	ARG_USER = 1,
	ARG_SUPERVISE,
	ARG_SUPERVISED,
	ARG_SOCKET,
	ARG_DATA,
	ARG_NAME,
	ARG_SET,
	ARG_FILE,
	ARG_CHECK,
	ARG_FAULTS,
	ARG_VERSION,
	ARG_HELP
};

static const struct option longs[] = {
	{ "user", no_argument, NULL, ARG_USER },
	{ "supervise", no_argument, NULL, ARG_SUPERVISE },
	{ "supervised", no_argument, NULL, ARG_SUPERVISED }, /* ours: see the head */
	{ "socket", required_argument, NULL, ARG_SOCKET },
	{ "data", required_argument, NULL, ARG_DATA },
	{ "name", required_argument, NULL, ARG_NAME },
	{ "set", required_argument, NULL, ARG_SET },
	{ "config", required_argument, NULL, ARG_FILE },
	{ "check-config", no_argument, NULL, ARG_CHECK },
	{ "list-faults", no_argument, NULL, ARG_FAULTS },
	{ "version", no_argument, NULL, ARG_VERSION },
	{ "help", no_argument, NULL, ARG_HELP },
	{ NULL, 0, NULL, 0 },
};

static bool take_argument(struct arguments *a, int c)
{
	switch (c) {
	case ARG_USER:
		a->user = a->supervise = true;
		return true;
	case ARG_SUPERVISE:
		a->supervise = true;
		return true;
	case ARG_SUPERVISED:
		a->supervised = true;
		return true;
	case ARG_SOCKET:
		return add_setting(a, "service.socket", "--socket");
	case ARG_DATA:
		return add_setting(a, "service.data", "--data");
	case ARG_NAME:
		return add_setting(a, "service.name", "--name");
	case ARG_SET:
		return add_setting(a, NULL, "--set");
	case ARG_FILE:
		a->file = optarg;
		return true;
	case ARG_CHECK:
		a->check = true;
		return true;
	default:
		return false;
	}
}

/* getopt_long() has named the option. */
static void hint_option(const char *given)
{
	char hint[NEAR_TEXT_MAX], name[64];
	struct near near;

	near_begin(&near, given);
	for (const struct option *o = longs; o->name; o++) {
		snprintf(name, sizeof(name), "--%s", o->name);
		near_try(&near, name);
	}
	if (near.best[0])
		fprintf(stderr, "ckptd: %.80s%s\n", given, near_text(&near, hint));
}

/* -1: go on; else the status to exit with. */
static int parse_arguments(int argc, char **argv, struct arguments *a)
{
	bool ok = true;
	int c;

	while (ok && (c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == ARG_FAULTS)
			list_faults();
		else if (c == ARG_VERSION)
			puts("ckptd " PACKAGE_VERSION);
		else if (c == ARG_HELP)
			print_help();
		else
			ok = take_argument(a, c);
		if (c == '?')
			hint_option(argv[optind - 1]);
		if (c == ARG_FAULTS || c == ARG_VERSION || c == ARG_HELP)
			return STATUS_OK;
	}
	if (ok && optind == argc)
		return -1;
	if (ok)
		fprintf(stderr, "ckptd: there are no arguments without --: '%s'\n", argv[optind]);
	fprintf(stderr, "ckptd --help says more\n");
	return STATUS_USAGE;
}

/* ---- Configuration ---- */

static int set_user_paths(struct config *c, struct err *e)
{
	const char *run = getenv("XDG_RUNTIME_DIR"), *home = getenv("HOME");
	const char *share = getenv("XDG_DATA_HOME");
	char path[300];
	int r = 0;

	c->socket[0] = '\0'; /* there may be no folder for it: then --socket is needed */
	c->data[0] = '\0';
	if (run && run[0]) {
		snprintf(path, sizeof(path), "%s/ckptd.sock", run);
		r = config_set(c, "service.socket", path, "XDG_RUNTIME_DIR", e);
	}
	if (r == 0 && share && share[0]) {
		snprintf(path, sizeof(path), "%s/ckptd", share);
		r = config_set(c, "service.data", path, "XDG_DATA_HOME", e);
	} else if (r == 0 && home && home[0]) {
		snprintf(path, sizeof(path), "%s/.local/share/ckptd", home);
		r = config_set(c, "service.data", path, "HOME", e);
	}
	return r;
}

/* A relative path of the command line is meant from here. */
static int apply_setting(struct config *c, const struct setting *s, struct err *e)
{
	char here[200], path[500];

	if (!s->option)
		return config_assign(c, s->value, e);
	if (strcmp(s->where, "--name") == 0 || s->value[0] == '/' || !s->value[0])
		return config_set(c, s->option, s->value, s->where, e);
	if (!getcwd(here, sizeof(here)))
		return err_code(e, -errno, "%s: where is '%s'", s->where, s->value);
	snprintf(path, sizeof(path), "%s/%s", here, s->value);
	return config_set(c, s->option, path, s->where, e);
}

static int load_config(const struct arguments *a, struct config *ret, struct err *e)
{
	struct config c;
	int r = 0;

	config_default(&c);
	if (a->user)
		r = set_user_paths(&c, e);
	if (r == 0 && a->file)
		r = config_file(&c, a->file, true, e);
	else if (r == 0 && !a->user)
		r = config_file(&c, CONFIG_FILE, false, e);
	if (r == 0)
		r = config_environment(&c, e);
	for (size_t i = 0; i < a->n_sets && r == 0; i++)
		r = apply_setting(&c, &a->sets[i], e);
	if (r == 0 && !c.socket[0])
		r = err_set(e, -EINVAL,
			    "XDG_RUNTIME_DIR is not set: export "
			    "XDG_RUNTIME_DIR=$HOME here and in the trainers' shells, or say where "
			    "the socket is to be (--socket PATH)");
	if (r == 0 && !c.data[0])
		r = err_set(e, -EINVAL, "HOME is not set: say where data is to be (--data FOLDER)");
	if (r == 0)
		r = config_check(&c, e);
	if (r == 0)
		*ret = c;
	return r;
}

static int reload_config(void *arg, struct config *ret, struct err *e)
{
	return load_config(arg, ret, e);
}

/* ---- The lives ---- */

/* As far as the hard limit: every slot is a descriptor, every ring locks memory. */
static void raise_limit(int resource)
{
	struct rlimit limit;

	if (getrlimit(resource, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		ignore_result(setrlimit(resource, &limit)); /* less works too, for a while */
	}
}

static int live_as_daemon(const struct arguments *a, const struct config *c, struct log *log)
{
	struct service_options o = { .config = *c, .socket_mode = a->user ? 0600 : 0660,
				     .socket_group = a->user || geteuid() ? NULL : "ckptd",
				     .user = a->user, .log = log,
				     .reload = reload_config, .reload_arg = (void *)a };
	struct err e = { 0 };
	unsigned lost = 0;
	int r;

	alloc_join_at_once(); /* answers to people are a hundred thousand small blocks */
	raise_limit(RLIMIT_NOFILE);
	raise_limit(RLIMIT_MEMLOCK);
	r = fault_from_env(&e);
	if (r == 0)
		r = service_run(&o, &lost, &e);
	if (r)
		log_print(log, LOG_ERR, "%s", e.text);
	if (r)
		return STATUS_FAILED;
	return lost ? STATUS_LOST : STATUS_OK;
}

/* Where this program is, so that the next daemon after an upgrade is the new one. */
static void find_program(char *path, size_t size)
{
	ssize_t n = readlink("/proc/self/exe", path, size - 1);

	path[n > 0 ? n : 0] = '\0';
	if (access(path, X_OK) != 0)
		snprintf(path, size, "/proc/self/exe"); /* it was removed: the one we are */
}

static int live_as_supervisor(int argc, char **argv, struct log *log)
{
	char program[4096], **child = alloc_array((size_t)argc + 2, sizeof(*child));
	struct supervise_options o = { .program = program,
				       .argv = child,
				       .end_status = STATUS_LOST,
				       .watchdog_ns = WATCHDOG_S * 1000000000ull,
				       .backoff_min_ns = SUPERVISE_BACKOFF_MIN_NS,
				       .backoff_max_ns = SUPERVISE_BACKOFF_MAX_NS,
				       .log = log };
	int status = STATUS_FAILED, r;
	struct err e = { 0 };

	if (!child) {
		log_print(log, LOG_ERR, "%s", err_text(-ENOMEM));
		return STATUS_FAILED;
	}
	child[0] = argv[0];
	child[1] = (char *)"--supervised";
	for (int i = 1; i < argc; i++)
		child[i + 1] = argv[i];
	find_program(program, sizeof(program));
	raise_limit(RLIMIT_NOFILE);
	r = supervise_run(&o, &status, &e);
	if (r)
		log_print(log, LOG_ERR, "supervisor: %s", e.text);
	alloc_free(child);
	return r ? STATUS_FAILED : status;
}

static void warn(void *log, const char *text)
{
	log_print(log, LOG_WARNING, "%s", text);
}

int main(int argc, char **argv)
{
	static struct arguments a;
	struct err e = { 0 };
	struct config c;
	static struct log log;
	int status;

	if (argc == 2 && strcmp(argv[1], "--receiver") == 0)
		return receiver_child_run();
	status = parse_arguments(argc, argv, &a);
	if (status >= 0)
		return status;
	umask(077);
	log_init(&log);
	if (load_config(&a, &c, &e) != 0) {
		log_print(&log, LOG_ERR, "%s", e.text);
		return STATUS_USAGE;
	}
	log.level = (int)c.log_level;
	log.json = c.log_format == 1;
	if (a.check || a.supervised || !a.supervise) /* the supervisor's daemon says it */
		config_strays(environ, warn, &log);
	if (a.check) {
		config_print(&c, stdout);
		return STATUS_OK;
	}
	if (a.supervise && !a.supervised)
		return live_as_supervisor(argc, argv, &log);
	return live_as_daemon(&a, &c, &log);
}
