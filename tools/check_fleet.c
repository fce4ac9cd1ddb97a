/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_fleet.c - the history of node checks: judging a run by other runs, and keeping it.
 *
 * A history is a file with one run a line, {"node", "time", "passed", "results": [{"name", "value",
 * ...}]}. Other nodes' newest runs are the fleet; a node's own earlier runs stand in where there is
 * none. Only results that passed count: what is known to be sick is no standard. A line that cannot
 * be read is passed over (the file may have been cut by a full disk); reading is bounded.
 *
 * Failure modes: without the fleet that was asked for nothing is judged; a history that cannot be
 * read, or added to, is told, and the run is judged all the same. A pipe in its place is not waited
 * for.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "detect/fleet.h"
#include "tools/document.h"
#include "tools/node_check.h"
#include "tools/print.h"

enum { RUNS_MAX = 4096, LINE_MAX_BYTES = 64 << 10, HISTORY_MAX_BYTES = 4 << 20 };

/*
 * What values may differ by on healthy machines, as a share of the median: of nodes measured alike
 * (fleet), and of one node at other times (own), when it may not have been alone: only what falls
 * to less than half is told of then, and latencies, which a neighbour can multiply, not at all.
 */
static const struct {
	const char *name; /* as a result's ends */
	double fleet, own;
} floors[] = {
	{"memory-copy", 0.15, 0.5},      {"memory-copy-one", 0.15, 0.5},
	{"disk-write", 0.4, 0.6},        {"disk-read", 0.4, 0.6},
	{"disk-sync", 2, INFINITY},      {"network-pair", 0.3, 0.5},
	{"copy-in", 0.1, 0.5},           {"copy-out", 0.1, 0.5},
	{"memory", 0.05, 0.5},           {"arithmetic", 0.05, 0.5},
	{"clock-error", 10, INFINITY},   {"clock-rate", INFINITY, INFINITY},
	{"memory-pattern", 1, INFINITY},
};

static double floor_of(const char *name, bool own)
{
	size_t len = strlen(name);

	for (size_t i = 0; i < sizeof(floors) / sizeof(floors[0]); i++) {
		size_t n = strlen(floors[i].name);

		if (strcmp(name, floors[i].name) == 0 ||
		    (len > n && name[len - n - 1] == '-' &&
		     strcmp(name + len - n, floors[i].name) == 0))
			return own ? floors[i].own : floors[i].fleet;
	}
	return own ? 0.5 : 0.2;
}

/* ---- Reading ---- */

static int open_history(const struct check_history *h, const char *tail, int flags)
{
	char path[4096];
	int fd;

	if (snprintf(path, sizeof(path), "%s%s", h->path, tail) >= (int)sizeof(path))
		return -ENAMETOOLONG;
	if (h->in.folder >= 0)
		return beneath_file(&h->in, path, flags);
	fd = open(path, flags | O_CLOEXEC, 0600);
	return fd < 0 ? -errno : fd;
}

/* *ret NULL: there is nothing in it. Of the fleet any stream of lines, of a node's own only a file.
 */
static int open_runs(const struct check_history *h, bool fleet, FILE **ret)
{
	int fd = open_history(h, "", O_RDONLY | (fleet ? 0 : O_NONBLOCK));
	struct stat st;
	int r = fd >= 0 ? 0 : fd;

	*ret = NULL;
	if (r == -ENOENT && !fleet)
		return 0;
	if (r == 0 && fstat(fd, &st) < 0)
		r = -errno;
	if (r == 0 && (fleet || S_ISREG(st.st_mode))) {
		*ret = fdopen(fd, "r");
		r = *ret ? 0 : -errno;
	}
	if (fd >= 0 && !*ret)
		close(fd);
	return r;
}

/* Of each node the newest run (fleet), or all runs (a node's own). */
static int read_runs(const struct check_history *h, bool newest_per_node, json_t *runs,
		     struct err *e)
{
	CLEANUP_FREE char *line = alloc_zero(LINE_MAX_BYTES);
	FILE *f = NULL;
	int r = line ? open_runs(h, newest_per_node, &f) : -ENOMEM;

	if (r < 0)
		return err_code(e, r, "read the history '%s'", h->path);
	if (!f)
		return 0;
	while (fgets(line, LINE_MAX_BYTES, f) && json_array_size(runs) < RUNS_MAX) {
		json_t *run = json_loads(line, 0, NULL);
		size_t i = 0, n = json_array_size(runs);

		if (!json_is_object(run)) {
			json_decref(run);
			continue;
		}
		while (newest_per_node && i < n &&
		       !doc_is(json_array_get(runs, i), "node", doc_text(run, "node")))
			i++;
		if (newest_per_node && i < n)
			json_array_set_new(runs, i, run);
		else
			json_array_append_new(runs, run);
	}
	if (ferror(f))
		r = err_code(e, errno ? -errno : -EIO, "read the history '%s'", h->path);
	fclose(f);
	return r;
}

static size_t values_of(const json_t *runs, const char *name, double *values, size_t max)
{
	size_t i, k, n = 0;
	json_t *run, *result;

	json_array_foreach((json_t *)runs, i, run)
		json_array_foreach(json_object_get(run, "results"), k,
				   result) if (n < max && doc_is(result, "name", name) &&
					       doc_is(result, "state", "passed") &&
					       json_is_number(json_object_get(result, "value")))
			values[n++] = json_number_value(json_object_get(result, "value"));
	return n;
}

/* ---- Judging ---- */

static void judge(struct check_result *c, const json_t *runs, double *values, bool own)
{
	char value[CHECK_TEXT_MAX], median[CHECK_TEXT_MAX], limit[CHECK_TEXT_MAX];
	struct fleet_bounds b;
	size_t n = values_of(runs, c->name, values, RUNS_MAX);

	fleet_bounds(values, n, c->more_is_better, floor_of(c->name, own), &b);
	if (b.n < FLEET_MIN)
		return;
	c->compared = (uint32_t)b.n;
	c->own = own;
	c->median = b.median;
	c->low = b.low;
	c->high = b.high;
	if (fleet_within(&b, c->value))
		return;
	c->state = CHECK_FAILED;
	check_text(value, c->value);
	check_text(median, b.median);
	check_text(limit, c->more_is_better ? b.low : b.high);
	snprintf(c->words, sizeof(c->words),
		 "%s: %s %s, where %zu %s have %s (%s than %s is too %s)", c->name, value, c->unit,
		 b.n, own ? "earlier runs here" : "nodes", median,
		 c->more_is_better ? "less" : "more", limit, c->more_is_better ? "little" : "much");
}

int check_judge(struct check_result *results, size_t n, const char *fleet,
		const struct check_history *history, struct err *e)
{
	const struct check_history of_fleet = {.in.folder = -1, .path = fleet};
	CLEANUP_FREE double *values = alloc_array(RUNS_MAX, sizeof(*values));
	json_t *others = json_array(), *own = json_array();
	struct err unread = {0};
	int r = values ? 0 : err_code(e, -ENOMEM, "judge the results");

	if (r == 0 && fleet)
		r = read_runs(&of_fleet, true, others, e);
	if (r == 0 && history && read_runs(history, false, own, &unread) < 0)
		complain("%s: earlier runs of this node are not compared with", unread.text);
	for (size_t i = 0; i < n && r == 0; i++) {
		if (results[i].state != CHECK_PASSED || !results[i].unit[0])
			continue;
		judge(&results[i], others, values, false);
		if (!results[i].compared)
			judge(&results[i], own, values, true);
	}
	json_decref(others);
	json_decref(own);
	return r;
}

/* ---- Keeping ---- */

#define CUT_TAIL ".new"

static int replace_history(const struct check_history *h, bool good)
{
	char cut[4096];
	int r = 0;

	if (snprintf(cut, sizeof(cut), "%s" CUT_TAIL, h->path) >= (int)sizeof(cut))
		return -ENAMETOOLONG;
	if (h->in.folder >= 0)
		return good ? beneath_rename(&h->in, cut, h->path)
			    : beneath_remove(&h->in, cut, false);
	r = good ? rename(cut, h->path) : unlink(cut);
	return r < 0 ? -errno : 0;
}

static int copy_half(FILE *from, off_t size, FILE *to)
{
	int ch;

	fseek(from, size / 2, SEEK_SET);
	while ((ch = getc(from)) != EOF && ch != '\n')
		;
	while ((ch = getc(from)) != EOF)
		putc(ch, to);
	return ferror(from) || ferror(to) ? -EIO : 0;
}

/* The older half goes when the file has grown large: history is for comparing, not for ever. */
static int cut(const struct check_history *h, struct err *e)
{
	FILE *from = NULL, *to;
	struct stat st;
	int fd, r;

	if (open_runs(h, false, &from) < 0 || !from)
		return 0; /* adding to it says what is wrong */
	if (fstat(fileno(from), &st) < 0 || st.st_size < HISTORY_MAX_BYTES) {
		fclose(from);
		return 0;
	}
	fd = open_history(h, CUT_TAIL, O_WRONLY | O_CREAT | O_TRUNC);
	to = fd < 0 ? NULL : fdopen(fd, "w");
	if (to)
		r = copy_half(from, st.st_size, to);
	else
		r = fd < 0 ? fd : -errno;
	if (to && fclose(to) != 0 && r == 0)
		r = -errno;
	fclose(from);
	if (r == 0)
		r = replace_history(h, true);
	if (r == 0)
		return 0;
	ignore_result(replace_history(h, false) /* the old one stays, this one is overwritten */);
	return err_code(e, r, "cut the history '%s'", h->path);
}

/* Behind a line that a full disk has cut short a new one begins; one write, one line. */
static int append_line(int fd, char *text, size_t len)
{
	struct stat st;
	char last = '\n';
	ssize_t n;

	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode) && !S_ISCHR(st.st_mode))
		return -ENXIO; /* a pipe that nobody reads */
	if (st.st_size > 0 && pread(fd, &last, 1, st.st_size - 1) == 1 && last != '\n' &&
	    write(fd, "\n", 1) < 0)
		return -errno;
	n = write(fd, text, len);
	return n < 0 ? -errno : (size_t)n < len ? -ENOSPC : 0;
}

/* What is wrong with it the open that follows says. */
static void make_folder(const struct check_history *h)
{
	char folder[4096];
	char *slash;

	snprintf(folder, sizeof(folder), "%s", h->path);
	slash = strrchr(folder, '/');
	if (!slash || slash == folder)
		return;
	*slash = '\0';
	if (h->in.folder >= 0)
		ignore_result(beneath_mkdir(&h->in, folder));
	else
		ignore_result(mkdir(folder, 0700));
}

int check_remember(const struct check_history *history, const json_t *run, struct err *e)
{
	char *text = json_dumps(run, JSON_COMPACT);
	size_t len = text ? strlen(text) : 0;
	int fd, r = cut(history, e);

	if (r < 0 || !text) {
		alloc_free(text);
		return r < 0 ? r : err_code(e, -ENOMEM, "keep the history");
	}
	make_folder(history);
	text[len] = '\n'; /* in the terminator's place */
	fd = open_history(history, "", O_RDWR | O_APPEND | O_CREAT | O_NONBLOCK);
	r = fd < 0 ? fd : append_line(fd, text, len + 1);
	if (r < 0)
		r = err_code(e, r, "add to the history '%s'", history->path);
	if (fd >= 0)
		close(fd);
	alloc_free(text);
	return r;
}
