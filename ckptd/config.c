/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.c - one table of options; everything else walks it.
 *
 *   1. Every value is checked against its row where it is read, so the sentence can say where that
 *      was. Unknown sections and keys in files and on the command line are errors; unknown
 *      variables are warned of: others set them too, as Kubernetes does for a service of that name.
 *   2. On an error the configuration is unfinished and is not used; a reload keeps the old one.
 *
 * inih does not say which line it is at; the reader that hands it lines counts them, and takes
 * leading blanks away, which inih would take for the continuation of the line before.
 */
#include <config.h>

#include "ckptd/config.h"

#include <assert.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <ini.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/near.h"
#include "ckptd/xid_table.h"
#include "model/retention.h"

enum { CONF_D_MAX = 64, VALUE_MAX = 255 };

enum kind { SIZE, DURATION, COUNT, CHOICE, PATH, NAME };

struct option {
	const char *section, *key;
	enum kind kind;
	bool reload;  /* SIGHUP applies it */
	bool may_auto; /* "auto" is 0 */
	size_t offset, text_size; /* in struct config */
	uint64_t min, max;
	const char *choices; /* "a|b|c": 0, 1, 2 plus min */
	const char *def;
	const char *help;
};

#define K (1ull << 10)
#define M (1ull << 20)
#define G (1ull << 30)
#define T (1ull << 40)
#define S 1000000000ull
#define AT(field) .offset = offsetof(struct config, field)
#define TEXT_(x)       #x
#define TEXT(number)   TEXT_(number)
#define TEXT_AT(field) AT(field), .text_size = sizeof(((struct config *)0)->field)

static const struct option options[] = {
	{"service", "socket", PATH, TEXT_AT(socket), .def = "/run/ckptd/ckptd.sock",
	 .help = "where trainers and tools connect"},
	{"service", "data", PATH, TEXT_AT(data), .def = "/var/lib/ckptd",
	 .help = "folder of everything durable"},
	{"service", "name", NAME, TEXT_AT(name), .def = "",
	 .help = "of this node, in records; the host's name by default"},
	{"service", "stop_timeout", DURATION, AT(stop_timeout_ns), .min = S, .max = 86400 * S,
	 .def = "4min", .help = "how long a stop may persist what is only in memory"},
	{"log", "level", CHOICE, .reload = true, AT(log_level), .min = LOG_ERR,
	 .choices = "error|warning|notice|info|debug", .def = "info", .help = "what is said"},
	{"log", "format", CHOICE, AT(log_format), .choices = "text|json", .def = "text",
	 .help = "of the lines on standard error"},
	{"memory", "budget", SIZE, .may_auto = true, AT(memory_budget), .min = 16 * M,
	 .max = 1024 * T, .def = "auto",
	 .help = "for all snapshots; auto: half of what the machine and the cgroup have"},
	{"memory", "slots", COUNT, AT(slots), .min = 2, .max = 16, .def = "3",
	 .help = "snapshots in memory for each rank"},
	{"memory", "huge_pages", CHOICE, AT(huge_pages), .choices = "no|yes", .def = "yes",
	 .help = "ask for them where shared memory may have them"},
	{"memory", "descriptors", COUNT, AT(descriptors), .min = 16, .max = 65536, .def = "8192",
	 .help = "that the fd store takes: FileDescriptorStoreMax= of the unit; where the service "
		 "manager or --supervise says the number, that one holds"},
	{"checkpoint", "persist_every", COUNT, .reload = true, AT(persist_every), .min = 1,
	 .max = 1000000, .def = "1",
	 .help = "persist every N-th commit; 1: whenever the disk is free"},
	{"checkpoint", "compression", COUNT, AT(compression), .max = 19, .def = "0",
	 .help = "zstd level of durable files; 0: off"},
	{"checkpoint", "attempt_timeout", DURATION, AT(attempt_timeout_ns), .min = S,
	 .max = 86400 * S, .def = "10min",
	 .help = "a save that not every rank has finished by then is aborted"},
	{"checkpoint", "warn_after", DURATION, .reload = true, AT(warn_after_ns), .max = 86400 * S,
	 .def = "0", .help = "without a commit, which is a problem; 0: by what is usual"},
	{"checkpoint", "settle_timeout", DURATION, AT(settle_timeout_ns), .min = S, .max = 3600 * S,
	 .def = "30s", .help = "for settling the old epoch at an open"},
	{"checkpoint", "log_trim", COUNT, AT(log_trim), .min = 16, .max = 1000000, .def = "1000",
	 .help = "records of a job's log before one that sums them up replaces them"},
	{"retention", "keep_last", COUNT, .reload = true, AT(keep_last), .min = 1, .max = 1000000,
	 .def = TEXT(RETENTION_KEEP_LAST), .help = "newest durable checkpoints that stay"},
	{"retention", "keep_every", COUNT, .reload = true, AT(keep_every), .max = UINT64_MAX,
	 .def = "0", .help = "steps that are multiples of it stay too; 0: off"},
	{"retention", "keep_verified", CHOICE, .reload = true, AT(keep_verified),
	 .choices = "no|yes", .def = "yes",
	 .help = "the newest verified checkpoint stays, and the next to be verified"},
	{"storage", "backend", CHOICE, AT(backend), .choices = "auto|uring|threads", .def = "auto",
	 .help = "how bulk data is written; auto: io_uring where it is allowed"},
	{"storage", "queue_depth", COUNT, AT(queue_depth), .min = 1, .max = 128, .def = "4",
	 .help = "transfers in flight of one data thread"},
	{"storage", "transfer_size", SIZE, AT(transfer), .min = M, .max = 16 * M, .def = "2M",
	 .help = "bytes of one transfer, a multiple of 1M"},
	{"storage", "dedup", CHOICE, .reload = true, AT(dedup), .choices = "no|yes", .def = "yes",
	 .help = "write what several ranks hold alike once"},
	{"storage", "disk_reserve", SIZE, AT(disk_reserve), .max = 1024 * T, .def = "1G",
	 .help = "of the file system that stays free"},
	{"storage", "spare", SIZE, AT(spare), .max = 1024 * T, .def = "8G",
	 .help = "expired files kept to be written over, which is faster"},
	{"trust", "recheck_rate", SIZE, .reload = true, AT(recheck_rate), .max = T, .def = "64M",
	 .help = "bytes a second at which copies are read again in the background; 0: never"},
	{"trust", "hook", PATH, .reload = true, TEXT_AT(hook), .def = "/dev/null",
	 .help = "program that says what a complete checkpoint is worth; /dev/null: none"},
	{"trust", "hook_timeout", DURATION, .reload = true, AT(hook_timeout_ns), .min = S,
	 .max = 86400 * S, .def = "10min", .help = "of one run of it"},
	{"trust", "healthy_steps", COUNT, .reload = true, AT(healthy_steps), .max = 1000000000,
	 .def = "100", .help = "after a checkpoint that make it verified; 0: none do"},
	{"threads", "data", COUNT, AT(data_threads), .min = 1, .max = 64, .def = "2",
	 .help = "that move bulk data"},
	{"threads", "meta", COUNT, AT(meta_threads), .min = 1, .max = 16, .def = "2",
	 .help = "for durable steps"},
	{"threads", "plan", COUNT, AT(plan_threads), .min = 1, .max = 16, .def = "2",
	 .help = "that plan loads and take expired files away"},
	{"threads", "log", COUNT, AT(log_threads), .min = 1, .max = 16, .def = "2",
	 .help = "for appends to the logs of jobs"},
	{"threads", "memory", COUNT, AT(memory_threads), .min = 1, .max = 16, .def = "2",
	 .help = "that take and let go of the memory of snapshots"},
	{"threads", "cpu", COUNT, .may_auto = true, AT(cpu_threads), .min = 1, .max = 64,
	 .def = "auto", .help = "for digests and compression; auto: by the number of cores"},
	{"detect", "enabled", CHOICE, AT(detect), .choices = "no|yes", .def = "yes",
	 .help = "watch jobs and this node for what fails"},
	{"detect", "policy", PATH, .reload = true, TEXT_AT(policy), .def = POLICY_FILE,
	 .help = "table of what is done then; where there is no such file, the installed one"},
	{"detect", "dry_run", CHOICE, .reload = true, AT(dry_run), .choices = "no|yes", .def = "no",
	 .help = "only say what would be done"},
	{"detect", "actions_per_hour", COUNT, .reload = true, AT(actions_per_hour), .max = 256,
	 .def = "12", .help = "decisions that do more than mark; beyond that somebody must look"},
	{"detect", "check", PATH, TEXT_AT(check), .def = "/dev/null",
	 .help = "program that checks this node, called as ckptctl node-check is; "
		 "/dev/null: ckptctl"},
	{"detect", "admission", CHOICE, AT(admission), .choices = "no|yes", .def = "no",
	 .help = "check this node when ckptd starts, before it takes the first open"},
	{"detect", "check_time", DURATION, AT(check_time_ns), .min = S, .max = 3600 * S,
	 .def = "60s", .help = "that a check may take, about; killed after twice that and 30 s"},
	{"detect", "record", PATH, TEXT_AT(record), .def = "/dev/null",
	 .help = "file for all that the detector is told; /dev/null: off"},
	{"detect", "interval", DURATION, AT(detect_interval_ns), .min = S / 10, .max = 600 * S,
	 .def = "10s", .help = "between two looks at the node's hardware"},
	{"detect", "kernel", CHOICE, AT(detect_kernel), .choices = "no|yes", .def = "yes",
	 .help = "read kernel messages"},
	{"detect", "net", CHOICE, AT(detect_net), .choices = "no|yes", .def = "yes",
	 .help = "read network ports"},
	{"detect", "disk", CHOICE, AT(detect_disk), .choices = "no|yes", .def = "yes",
	 .help = "read disks"},
	{"detect", "memory", CHOICE, AT(detect_memory), .choices = "no|yes", .def = "yes",
	 .help = "read memory errors"},
	{"detect", "pressure", CHOICE, AT(detect_pressure), .choices = "no|yes", .def = "yes",
	 .help = "read how busy the machine is"},
	{"detect", "nvml", CHOICE, AT(detect_nvml), .choices = "no|yes", .def = "yes",
	 .help = "read GPUs through NVIDIA's library, where it is"},
	{"detect", "kmsg", PATH, TEXT_AT(detect_kmsg), .def = "/dev/kmsg",
	 .help = "where from: the device, or a FIFO or file of such records"},
	{"detect", "root", PATH, TEXT_AT(detect_root), .def = "/",
	 .help = "what the node's /proc and /sys are below; /host in some containers"},
	{"detect", "xid_table", PATH, TEXT_AT(xid_table), .def = XID_TABLE_FILE,
	 .help = "what overrides the table of Xids, ckpt-xid(5)"},
	{"quota", "connections", COUNT, AT(conns_max), .min = 1, .max = 100000, .def = "4096",
	 .help = "of all"},
	{"quota", "connections_per_uid", COUNT, AT(conns_per_uid), .min = 1, .max = 100000,
	 .def = "2048", .help = "of one user"},
	{"quota", "sessions_per_uid", COUNT, .reload = true, AT(sessions_per_uid), .min = 1,
	 .max = 100000, .def = "1024", .help = "ranks of one user"},
	{"quota", "jobs_per_uid", COUNT, .reload = true, AT(jobs_per_uid), .min = 1, .max = 1000000,
	 .def = "4096", .help = "jobs of one user, those on disk too"},
	{"quota", "waits_per_session", COUNT, .reload = true, AT(waits_per_session), .min = 1,
	 .max = 10000, .def = "64", .help = "waits under way of one rank"},
	{"quota", "loads_per_session", COUNT, .reload = true, AT(loads_per_session), .min = 1,
	 .max = 10000, .def = "16", .help = "loads under way of one rank"},
	{"quota", "waits_per_uid", COUNT, .reload = true, AT(waits_per_uid), .min = 1,
	 .max = 1000000, .def = "2048", .help = "waits under way of one user"},
	{"quota", "loads_per_uid", COUNT, .reload = true, AT(loads_per_uid), .min = 1,
	 .max = 1000000, .def = "1024", .help = "loads under way of one user"},
	{"quota", "load_files_per_uid", COUNT, .reload = true, AT(load_files_per_uid), .min = 1,
	 .max = 1000000, .def = "16384", .help = "files that these keep open"},
	{"quota", "declaration_bytes_per_uid", SIZE, .reload = true,
	 AT(declaration_bytes_per_uid), .min = 1, .max = T, .def = "4G",
	 .help = "of what the ranks of one user have declared"},
	{"quota", "plan_bytes_per_uid", SIZE, .reload = true, AT(plan_bytes_per_uid), .min = 1,
	 .max = T, .def = "16G", .help = "of memory for the loads under way of one user"},
	{"quota", "memory_per_uid", SIZE, .reload = true, AT(memory_per_uid), .max = T,
	 .def = "0", .help = "of memory.budget for the snapshots of one user; 0: all of it"},
	{"quota", "held_bytes_per_uid", SIZE, .reload = true, AT(held_bytes_per_uid), .min = 1,
	 .max = 1024 * T, .def = "2T",
	 .help = "of expired checkpoints whose files processes of one user still have open"},
};
enum { N_OPTIONS = sizeof(options) / sizeof(options[0]) };

static uint64_t *number_of(struct config *c, const struct option *o)
{
	assert(o->text_size == 0);
	return (uint64_t *)((char *)c + o->offset);
}

static char *text_of(struct config *c, const struct option *o)
{
	assert(o->text_size > 0);
	return (char *)c + o->offset;
}

/* ---- Values ---- */

struct unit {
	const char *name;
	uint64_t factor;
};
static const struct unit sizes[] = { { "T", T }, { "G", G }, { "M", M }, { "K", K }, { "", 1 } };
static const struct unit times[] = { { "h", 3600 * S }, { "min", 60 * S },   { "s", S },
				     { "", S },		{ "ms", S / 1000 }, { "us", S / 1000000 } };

static bool parse_number(const char *text, const struct unit *units, size_t n, uint64_t *ret)
{
	unsigned long long v;
	char *end;

	if (!isdigit((unsigned char)text[0]))
		return false;
	errno = 0;
	v = strtoull(text, &end, 10);
	if (errno)
		return false;
	while (*end == ' ')
		end++;
	for (size_t i = 0; i < n; i++) {
		if (strcmp(end, units[i].name) == 0)
			return size_mul(v, units[i].factor, ret);
	}
	return false;
}

/* In the largest unit that divides it. */
static void format_number(char buf[32], uint64_t v, const struct unit *units, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (v % units[i].factor == 0 && (v || units[i].factor == 1 || i == n - 1)) {
			snprintf(buf, 32, "%llu%s", (unsigned long long)(v / units[i].factor),
				 units[i].name);
			return;
		}
	}
	snprintf(buf, 32, "%lluns", (unsigned long long)v);
}

static void format_value(char buf[32], const struct option *o, uint64_t v)
{
	if (o->kind == SIZE)
		format_number(buf, v, sizes, 5);
	else if (o->kind == DURATION)
		format_number(buf, v, times, 6);
	else
		snprintf(buf, 32, "%llu", (unsigned long long)v);
}

/* The i-th word of "a|b|c"; its length, 0 when there is none. */
static size_t choice(const char *choices, uint64_t i, const char **ret)
{
	for (; i > 0; i--) {
		choices = strchr(choices, '|');
		if (!choices)
			return 0;
		choices++;
	}
	*ret = choices;
	return strcspn(choices, "|");
}

static bool parse_choice(const struct option *o, const char *text, uint64_t *ret)
{
	const char *word = NULL;
	size_t len;

	for (uint64_t i = 0; (len = choice(o->choices, i, &word)) > 0; i++) {
		if (strlen(text) == len && memcmp(text, word, len) == 0) {
			*ret = o->min + i;
			return true;
		}
	}
	return false;
}

/* In words, for people: "one of auto, uring, threads". */
static void describe(const struct option *o, char *buf, size_t size)
{
	char min[32], max[32];

	format_value(min, o, o->min);
	format_value(max, o, o->max);
	switch (o->kind) {
	case SIZE:
	case DURATION:
	case COUNT:
		snprintf(buf, size, "%s%s from %s to %s",
			 o->kind == SIZE       ? "a size such as 512K, 64M or 2G"
			 : o->kind == DURATION ? "a time such as 500ms, 30s or 10min"
					       : "a number",
			 o->may_auto ? " or 'auto'," : "", min, max);
		break;
	case CHOICE:
		snprintf(buf, size, "one of %s", o->choices);
		break;
	case PATH:
		snprintf(buf, size, "an absolute path of at most %zu printable bytes",
			 o->text_size - 1);
		break;
	case NAME:
		snprintf(buf, size,
			 "letters, digits, '.', '_' and '-', at most %zu, no leading dot",
			 o->text_size - 1);
		break;
	}
}

/* Also as a line of a file it is what it is: inih takes blanks away at the end, and comments. */
static bool is_path(const char *text)
{
	size_t len = strlen(text);

	for (size_t i = 0; i < len; i++)
		if ((unsigned char)text[i] < ' ' || text[i] == 0x7f ||
		    (text[i] == ' ' && (i + 1 == len || text[i + 1] == ';')))
			return false;
	return text[0] == '/';
}

static bool parse_text(const struct option *o, const char *text, char *to)
{
	size_t len = strlen(text);

	if (len >= o->text_size)
		return false;
	if (o->kind == PATH ? !is_path(text) : !name_is_safe(text))
		return false;
	memcpy(to, text, len + 1);
	return true;
}

static bool parse_value(struct config *c, const struct option *o, const char *text)
{
	static const struct unit plain[] = { { "", 1 } };
	uint64_t v = 0;
	bool ok;

	if (o->text_size)
		return parse_text(o, text, text_of(c, o));
	if (o->may_auto && strcmp(text, "auto") == 0) {
		*number_of(c, o) = 0;
		return true;
	}
	if (o->kind == CHOICE)
		ok = parse_choice(o, text, &v);
	else if (o->kind == SIZE)
		ok = parse_number(text, sizes, 5, &v);
	else if (o->kind == DURATION)
		ok = parse_number(text, times, 6, &v);
	else
		ok = parse_number(text, plain, 1, &v);
	if (ok && o->kind != CHOICE)
		ok = v >= o->min && v <= o->max;
	if (ok)
		*number_of(c, o) = v;
	return ok;
}

/* ---- Setting ---- */

static const struct option *find(const char *section, size_t section_len, const char *key)
{
	for (size_t i = 0; i < N_OPTIONS; i++) {
		if (strlen(options[i].section) == section_len &&
		    memcmp(options[i].section, section, section_len) == 0 &&
		    strcmp(options[i].key, key) == 0)
			return &options[i];
	}
	return NULL;
}

/* The keys of a section, or all sections: what somebody who mistyped wants to see. */
static void list_known(const char *section, size_t len, char *buf, size_t size)
{
	size_t used = 0;
	const char *last = "";

	buf[0] = '\0';
	for (size_t i = 0; i < N_OPTIONS && used < size; i++) {
		const struct option *o = &options[i];

		if (strlen(o->section) == len && memcmp(o->section, section, len) == 0)
			used += (size_t)snprintf(buf + used, size - used, "%s%s", used ? ", " : "",
						 o->key);
	}
	if (used)
		return;
	for (size_t i = 0; i < N_OPTIONS && used < size; i++) {
		if (strcmp(options[i].section, last) == 0)
			continue;
		last = options[i].section;
		used += (size_t)snprintf(buf + used, size - used, "%s%s", used ? ", " : "", last);
	}
}

static int set_option(struct config *c, const struct option *o, const char *value,
		      const char *where, struct err *e)
{
	char words[160];

	if (parse_value(c, o, value))
		return 0;
	describe(o, words, sizeof(words));
	return err_set(e, -EINVAL, "%s: %s.%s = '%s' is not allowed: %s", where, o->section,
		       o->key, value, words);
}

int config_set(struct config *c, const char *name, const char *value, const char *where,
	       struct err *e)
{
	const char *dot = strchr(name, '.');
	size_t len = dot ? (size_t)(dot - name) : strlen(name);
	const struct option *o = dot ? find(name, len, dot + 1) : NULL;
	char known[200];

	if (o)
		return set_option(c, o, value, where, e);
	list_known(name, len, known, sizeof(known));
	return err_set(e, -EINVAL, "%s: there is no option '%s'; known are %s", where, name, known);
}

int config_assign(struct config *c, const char *assignment, struct err *e)
{
	const char *equals = strchr(assignment, '=');
	char name[64];

	if (!equals || (size_t)(equals - assignment) >= sizeof(name))
		return err_set(e, -EINVAL, "--set '%s': give section.key=value", assignment);
	memcpy(name, assignment, (size_t)(equals - assignment));
	name[equals - assignment] = '\0';
	return config_set(c, name, equals + 1, "--set", e);
}

void config_default(struct config *c)
{
	memset(c, 0, sizeof(*c));
	for (size_t i = 0; i < N_OPTIONS; i++) {
		if (options[i].def[0]) {
			bool ok = parse_value(c, &options[i], options[i].def);

			assert(ok);
		}
	}
	if (gethostname(c->name, sizeof(c->name) - 1) != 0 || !name_is_safe(c->name))
		snprintf(c->name, sizeof(c->name), "node");
}

enum { VAR_MAX = 80 };

/* "CKPTD_SECTION_KEY"; key "": what the variables of a section begin with. */
static const char *name_variable(const char *section, const char *key, char var[VAR_MAX])
{
	snprintf(var, VAR_MAX, "CKPTD_%s_%s", section, key);
	for (char *p = var; *p; p++)
		*p = (char)toupper((unsigned char)*p);
	return var;
}

/* What Kubernetes sets for services called ckptd, ckptd-memory, ... */
static bool is_of_kubernetes(const char *key)
{
	return strncmp(key, "SERVICE_", 8) == 0 || strcmp(key, "HOST") == 0 ||
	       strcmp(key, "PORT") == 0 || strncmp(key, "PORT_", 5) == 0;
}

/* Whether a variable names a section and none of its keys. */
static bool is_stray(const char *var, struct near *near)
{
	char name[VAR_MAX];
	bool of_section = false;

	near_begin(near, var);
	for (size_t i = 0; i < N_OPTIONS; i++) {
		size_t len = strlen(name_variable(options[i].section, "", name));

		of_section = of_section ||
			     (strncmp(var, name, len) == 0 && !is_of_kubernetes(var + len));
		name_variable(options[i].section, options[i].key, name);
		if (strcmp(var, name) == 0)
			return false;
		near_try(near, name);
	}
	return of_section;
}

void config_strays(char *const *environment, void (*say)(void *arg, const char *text), void *arg)
{
	char var[VAR_MAX], hint[NEAR_TEXT_MAX], text[2 * VAR_MAX + NEAR_TEXT_MAX];
	struct near near;

	assert(environment && say);
	for (; *environment; environment++) {
		size_t len = strcspn(*environment, "=");

		if (strncmp(*environment, "CKPTD_", 6) != 0 || len >= sizeof(var))
			continue;
		memcpy(var, *environment, len);
		var[len] = '\0';
		if (!is_stray(var, &near))
			continue;
		snprintf(text, sizeof(text),
			 "environment variable %s sets no option and is ignored%s", var,
			 near_text(&near, hint));
		say(arg, text);
	}
}

int config_environment(struct config *c, struct err *e)
{
	char var[VAR_MAX];
	int r;

	for (size_t i = 0; i < N_OPTIONS; i++) {
		const char *value;

		name_variable(options[i].section, options[i].key, var);
		value = getenv(var);
		if (!value)
			continue;
		r = set_option(c, &options[i], value, var, e);
		if (r)
			return r;
	}
	return 0;
}

int config_check(const struct config *c, struct err *e)
{
	if (c->transfer % GEOMETRY_DEFAULT.chunk)
		return err_set(e, -EINVAL, "storage.transfer_size must be a multiple of 1M");
	if (c->conns_per_uid > c->conns_max)
		return err_set(e, -EINVAL, "quota.connections_per_uid is above quota.connections");
	return 0;
}

/* ---- Files ---- */

struct parser {
	struct config *config;
	struct err *e;
	const char *path;
	FILE *file;
	int line;
	int error; /* the first */
};

static char *next_line(char *buf, int size, void *arg)
{
	struct parser *p = arg;
	size_t len, blanks;

	if (p->error || !fgets(buf, size, p->file))
		return NULL;
	p->line++;
	len = strlen(buf);
	if (len + 1 == (size_t)size && buf[len - 1] != '\n') {
		p->error = err_set(p->e, -EINVAL, "%s:%d: the line is longer than %d bytes",
				   p->path, p->line, size - 3);
		return NULL;
	}
	blanks = strspn(buf, " \t");
	memmove(buf, buf + blanks, len - blanks + 1);
	return buf;
}

static int handle_line(void *arg, const char *section, const char *key, const char *value)
{
	struct parser *p = arg;
	char where[300], name[128];

	if (p->error)
		return 0;
	snprintf(where, sizeof(where), "%s:%d", p->path, p->line);
	snprintf(name, sizeof(name), "%s.%s", section, key);
	if (!section[0])
		p->error = err_set(p->e, -EINVAL, "%s: '%s' stands before any [section]", where,
				   key);
	else
		p->error = config_set(p->config, name, value, where, p->e);
	return p->error == 0;
}

static int read_file(struct config *c, const char *path, struct err *e)
{
	struct parser p = { .config = c, .e = e, .path = path };
	int line;

	p.file = fopen(path, "re");
	if (!p.file)
		return err_set(e, -errno,
			       "open configuration '%.200s': %s: name a file that can be read, or "
			       "leave --config out",
			       path, err_text(-errno));
	line = ini_parse_stream(next_line, &p, handle_line, &p);
	if (p.error == 0 && ferror(p.file))
		p.error = err_set(e, -EIO, "read configuration '%s'", path);
	fclose(p.file);
	if (p.error == 0 && line < 0)
		p.error = err_code(e, -ENOMEM, "read configuration '%s'", path);
	if (p.error == 0 && line > 0)
		p.error = err_set(e, -EINVAL, "%s:%d: this is neither 'key = value' nor [section]",
				  path, line);
	return p.error;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(a, b);
}

static int read_folder(struct config *c, const char *folder, struct err *e)
{
	char names[CONF_D_MAX][128], path[512];
	struct dirent *d;
	size_t n = 0;
	int r = 0;
	DIR *dir = opendir(folder);

	if (!dir)
		return errno == ENOENT ? 0 : err_code(e, -errno, "open folder '%s'", folder);
	while (r == 0 && (d = readdir(dir))) {
		size_t len = strlen(d->d_name);

		if (len < 6 || d->d_name[0] == '.' || strcmp(d->d_name + len - 5, ".conf") != 0)
			continue;
		if (n == CONF_D_MAX || len >= sizeof(names[0]))
			r = err_set(e, -E2BIG, "folder '%s': more than %d files, or a name too "
				    "long", folder, CONF_D_MAX);
		else
			memcpy(names[n++], d->d_name, len + 1);
	}
	closedir(dir);
	qsort(names, n, sizeof(names[0]), by_name);
	for (size_t i = 0; i < n && r == 0; i++) {
		snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
		r = read_file(c, path, e);
	}
	return r;
}

int config_file(struct config *c, const char *file, bool required, struct err *e)
{
	const char *slash = strrchr(file, '/');
	char folder[300];
	int r = read_file(c, file, e);

	if (r == -ENOENT && !required) {
		err_clear(e);
		r = 0;
	}
	if (r)
		return r;
	snprintf(folder, sizeof(folder), "%.*sconf.d", slash ? (int)(slash - file + 1) : 0, file);
	return read_folder(c, folder, e);
}

/* ---- Looking ---- */

const char *config_backend(const struct config *c)
{
	static const char *const names[] = { "auto", "uring", "threads" };

	assert(c->backend < 3);
	return names[c->backend];
}

static void value_text(const struct config *c, const struct option *o, char *buf, size_t size)
{
	struct config *unconst = (struct config *)c; /* only to share number_of() */
	const char *word = NULL;
	char number[32];
	size_t len;

	if (o->text_size) {
		snprintf(buf, size, "%s", text_of(unconst, o));
	} else if (o->kind == CHOICE) {
		len = choice(o->choices, *number_of(unconst, o) - o->min, &word);
		snprintf(buf, size, "%.*s", (int)len, word);
	} else if (o->may_auto && *number_of(unconst, o) == 0) {
		snprintf(buf, size, "auto");
	} else {
		format_value(number, o, *number_of(unconst, o));
		snprintf(buf, size, "%s", number);
	}
}

void config_print(const struct config *c, FILE *to)
{
	const char *section = "";
	char value[VALUE_MAX + 1];

	for (size_t i = 0; i < N_OPTIONS; i++) {
		if (strcmp(section, options[i].section) != 0) {
			fprintf(to, "%s[%s]\n", section[0] ? "\n" : "", options[i].section);
			section = options[i].section;
		}
		value_text(c, &options[i], value, sizeof(value));
		fprintf(to, "%s = %s\n", options[i].key, value);
	}
}

void config_help(FILE *to)
{
	char words[160];

	for (size_t i = 0; i < N_OPTIONS; i++) {
		describe(&options[i], words, sizeof(words));
		fprintf(to, "  %s.%s (%s; default %s)\n      %s%s\n", options[i].section,
			options[i].key, words, options[i].def[0] ? options[i].def : "the host's",
			options[i].help, options[i].reload ? "; SIGHUP applies it" : "");
	}
}

void config_needs_restart(const struct config *now, const struct config *wanted, char *buf,
			  size_t size)
{
	char a[VALUE_MAX + 1], b[VALUE_MAX + 1];
	size_t used = 0;

	buf[0] = '\0';
	for (size_t i = 0; i < N_OPTIONS && used < size; i++) {
		const struct option *o = &options[i];

		value_text(now, o, a, sizeof(a));
		value_text(wanted, o, b, sizeof(b));
		if (!o->reload && strcmp(a, b) != 0)
			used += (size_t)snprintf(buf + used, size - used, "%s%s.%s",
						 used ? ", " : "", o->section, o->key);
	}
}
