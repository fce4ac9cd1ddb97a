/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collect_memory.c - memory errors that the machine has counted: EDAC of /sys.
 *
 * The sample has the sums of all memory controllers; which module they are of is said to people,
 * in a line for each that has more. Without a driver for the memory controller there is nothing,
 * which is common in virtual machines. On the source's thread.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <syslog.h>

#include "base/alloc.h"
#include "ckptd/collect_file.h"
#include "ckptd/collect_source.h"

#define FOLDER "/sys/devices/system/edac/mc"
enum { MODULES_MAX = 512 };

struct counted {
	char name[64]; /* of its folder: "mc0/dimm3" */
	struct collect_counter corrected, uncorrected;
};

struct memory {
	const struct collect_config *config;
	struct collect_sum corrected, uncorrected; /* of controllers */
	size_t n_modules;
	struct counted modules[MODULES_MAX];
	/* for one read */
	struct collect_out *out;
	const char *controller;
	size_t n_controllers;
	bool any;
};

static int open_memory(const struct collect_config *c, struct collect_out *out, void **ret,
		       struct err *e)
{
	struct memory *m = alloc_zero(sizeof(*m));

	(void)out;
	if (!m)
		return err_code(e, -ENOMEM, "watch memory errors");
	m->config = c;
	*ret = m;
	return 0;
}

static struct counted *find_module(struct memory *m, const char *name)
{
	struct counted *c;

	for (size_t i = 0; i < m->n_modules; i++)
		if (strcmp(m->modules[i].name, name) == 0)
			return &m->modules[i];
	if (m->n_modules == MODULES_MAX || strlen(name) >= sizeof(c->name))
		return NULL;
	c = &m->modules[m->n_modules++];
	snprintf(c->name, sizeof(c->name), "%s", name);
	return c;
}

static void say_module(struct memory *m, const struct counted *c, uint64_t ce, uint64_t ue)
{
	char label[80] = "";

	if (collect_text(label, sizeof(label), "%s" FOLDER "/%s/dimm_label", m->config->root,
			 c->name) < 0)
		label[0] = '\0';
	for (char *p = label; *p; p++)
		if (*p < ' ' || *p > '~')
			*p = '?';
	collect_say(m->out, ue ? LOG_ERR : LOG_NOTICE,
		    "memory module %s (%s): %llu more corrected and %llu uncorrected errors",
		    c->name, label[0] ? label : "no label", (unsigned long long)ce,
		    (unsigned long long)ue);
}

static void each_module(void *arg, const char *name)
{
	struct memory *m = arg;
	uint64_t ce, ue, more_ce = 0, more_ue = 0;
	const char *root = m->config->root;
	struct counted *c;
	char path[128];

	if (strncmp(name, "dimm", 4) != 0 && strncmp(name, "rank", 4) != 0)
		return;
	snprintf(path, sizeof(path), "%.40s/%.40s", m->controller, name);
	c = find_module(m, path);
	if (!c)
		return;
	if (collect_number(&ce, "%s" FOLDER "/%s/dimm_ce_count", root, path))
		more_ce = collect_count(&c->corrected, ce);
	if (collect_number(&ue, "%s" FOLDER "/%s/dimm_ue_count", root, path))
		more_ue = collect_count(&c->uncorrected, ue);
	if (more_ce || more_ue)
		say_module(m, c, more_ce, more_ue);
}

static void each_controller(void *arg, const char *name)
{
	struct memory *m = arg;
	const char *root = m->config->root;
	uint64_t v;

	if (name[0] != 'm' || name[1] != 'c' || name[2] < '0' || name[2] > '9')
		return;
	m->n_controllers++;
	/* Both include what no module could be named for. */
	if (collect_number(&v, "%s" FOLDER "/%s/ce_count", root, name)) {
		collect_sum_file(&m->corrected, name, v);
		m->any = true;
	}
	if (collect_number(&v, "%s" FOLDER "/%s/ue_count", root, name)) {
		collect_sum_file(&m->uncorrected, name, v);
		m->any = true;
	}
	m->controller = name;
	if (collect_each(each_module, m, "%s" FOLDER "/%s", root, name) < 0)
		return; /* then the controller's own counts are all there is */
}

static int read_source(void *state, uint64_t now_ns, struct collect_out *out, struct err *e)
{
	struct memory *m = state;
	struct sample *s;
	int n;

	(void)now_ns;
	m->out = out;
	m->any = false;
	m->n_controllers = 0;
	collect_sum_begin(&m->corrected);
	collect_sum_begin(&m->uncorrected);
	n = collect_each(each_controller, m, "%s" FOLDER, m->config->root);
	if (n < 0 && n != -ENOENT)
		return err_code(e, n, "read '%s" FOLDER "'", m->config->root);
	if (!m->any) {
		collect_state(out, "no driver tells of memory errors (EDAC)");
		return 0;
	}
	s = collect_add(out, SAMPLE_MEMORY);
	s->memory.corrected = m->corrected.sum;
	s->memory.uncorrected = m->uncorrected.sum;
	collect_state(out, "%zu memory controller%s, %llu corrected errors, %llu uncorrected",
		      m->n_controllers, m->n_controllers == 1 ? "" : "s",
		      (unsigned long long)m->corrected.sum, (unsigned long long)m->uncorrected.sum);
	return 0;
}

const struct collect_source collect_memory = {
	.id = COLLECT_MEMORY, .open = open_memory, .read = read_source, .close = alloc_free};
