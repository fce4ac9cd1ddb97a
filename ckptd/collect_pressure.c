/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collect_pressure.c - how busy the machine is, and who waits: CPU and memory of /proc, and
 * pressure stall information of the machine, else of our cgroup.
 *
 * Shares are over the time since the read before, so the first read only begins. What this kernel
 * does not tell stays unknown. On the source's thread.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "ckptd/collect_file.h"
#include "ckptd/collect_source.h"

enum { N_PRESSURES = 3 };
static const char *const pressures[N_PRESSURES] = {"cpu", "memory", "io"};
static const enum sample_metric pressure_metrics[N_PRESSURES] = {METRIC_PSI_CPU, METRIC_PSI_MEMORY,
								 METRIC_PSI_IO};

struct pressure {
	const struct collect_config *config;
	char cgroup[COLLECT_PATH_MAX]; /* our path in /sys/fs/cgroup; "" is the root or unknown */
	uint64_t before_ns;            /* 0: nothing was read yet */
	struct collect_counter waited[N_PRESSURES]; /* us */
	struct collect_counter busy, all;           /* ticks */
};

/* The path of the line "0::/path" of /proc/self/cgroup. */
static void find_cgroup(struct pressure *p)
{
	char text[4096], *line;

	if (collect_text(text, sizeof(text), "%s/proc/self/cgroup", p->config->root) < 0)
		return;
	line = strncmp(text, "0::/", 4) == 0 ? text : strstr(text, "\n0::/");
	if (!line)
		return;
	line += *line == '\n' ? 4 : 3;
	line[strcspn(line, "\n")] = '\0';
	if (strlen(line) < sizeof(p->cgroup) && !strstr(line, "/.."))
		memcpy(p->cgroup, line, strlen(line) + 1);
}

static int open_pressure(const struct collect_config *c, struct collect_out *out, void **ret,
			 struct err *e)
{
	struct pressure *p = alloc_zero(sizeof(*p));

	(void)out;
	if (!p)
		return err_code(e, -ENOMEM, "watch pressure");
	p->config = c;
	find_cgroup(p);
	*ret = p;
	return 0;
}

/* "some avg10=0.00 avg60=0.00 avg300=0.00 total=123": microseconds in which somebody waited. */
static bool parse_pressure(const char *text, uint64_t *ret)
{
	const char *total = strncmp(text, "some ", 5) == 0 ? strstr(text, "total=") : NULL;
	unsigned long long v;

	if (!total || sscanf(total, "total=%20llu", &v) != 1)
		return false;
	*ret = v;
	return true;
}

static bool read_pressure(const struct pressure *p, const char *what, uint64_t *ret)
{
	const char *root = p->config->root;
	char text[512];

	if (collect_text(text, sizeof(text), "%s/proc/pressure/%s", root, what) > 0 &&
	    parse_pressure(text, ret))
		return true;
	return collect_text(text, sizeof(text), "%s/sys/fs/cgroup%s/%s.pressure", root, p->cgroup,
			    what) > 0 &&
	       parse_pressure(text, ret);
}

/* user, nice, system, idle, iowait, irq, softirq, steal; what guests had is in user already. */
static bool read_cpu(const struct pressure *p, uint64_t *ret_busy, uint64_t *ret_all)
{
	unsigned long long t[8] = {0};
	char text[512];
	int n;

	if (collect_text(text, sizeof(text), "%s/proc/stat", p->config->root) <= 0)
		return false;
	n = sscanf(text, "cpu %20llu %20llu %20llu %20llu %20llu %20llu %20llu %20llu", &t[0],
		   &t[1], &t[2], &t[3], &t[4], &t[5], &t[6], &t[7]);
	if (n < 4)
		return false;
	*ret_busy = t[0] + t[1] + t[2] + t[5] + t[6] + t[7];
	*ret_all = *ret_busy + t[3] + t[4];
	return true;
}

static bool read_memory(const struct pressure *p, float *ret)
{
	unsigned long long total = 0, available = 0;
	const char *at;
	char text[2048];

	if (collect_text(text, sizeof(text), "%s/proc/meminfo", p->config->root) <= 0)
		return false;
	at = strstr(text, "MemTotal:");
	if (!at || sscanf(at, "MemTotal: %20llu", &total) != 1 || total == 0)
		return false;
	at = strstr(text, "MemAvailable:");
	if (!at || sscanf(at, "MemAvailable: %20llu", &available) != 1 || available > total)
		return false;
	*ret = (float)(1 - (double)available / (double)total);
	return true;
}

static float share(uint64_t part, uint64_t whole)
{
	return part >= whole ? 1 : (float)((double)part / (double)whole);
}

static int read_source(void *state, uint64_t now_ns, struct collect_out *out, struct err *e)
{
	struct pressure *p = state;
	uint64_t us = p->before_ns ? (now_ns - p->before_ns) / 1000 : 0;
	uint64_t total, busy, all, more;
	int found = 0;

	for (int i = 0; i < N_PRESSURES; i++) {
		if (!read_pressure(p, pressures[i], &total))
			continue;
		found++;
		more = collect_count(&p->waited[i], total);
		if (us)
			out->metrics[pressure_metrics[i]] = share(more, us);
	}
	if (read_cpu(p, &busy, &all)) {
		more = collect_count(&p->busy, busy);
		all = collect_count(&p->all, all);
		if (all)
			out->metrics[METRIC_CPU] = share(more, all);
	}
	if (!read_memory(p, &out->metrics[METRIC_MEMORY]))
		return err_set(e, -EPROTO, "'%s/proc/meminfo' does not tell what is available",
			       p->config->root);
	p->before_ns = now_ns;
	collect_state(out, "CPU, memory%s",
		      found ? " and pressure" : "; this kernel tells no pressure (psi=1)");
	return 0;
}

const struct collect_source collect_pressure = {
	.id = COLLECT_PRESSURE, .open = open_pressure, .read = read_source, .close = alloc_free};
