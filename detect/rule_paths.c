/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rule_paths.c - paths.h for nodes: a slow sender or receiver is the node's port where it has only
 * one, else the node; a slow pair is the path between two.
 */
#include <config.h>

#include "base/alloc.h"
#include "detect/paths.h"
#include "detect/rules.h"

struct mine_node {
	struct path_node path;
	bool found[2]; /* as a sender, as a receiver */
	struct subject who;
};
struct mine_device {
	bool is_port;
};
struct mine {
	struct paths paths;
	struct path_node **nodes;
	uint32_t cap_nodes;
	bool any;
};

static struct mine_node *own(const struct detector *d, struct node *n)
{
	return NODE_OWN(d, n, paths, struct mine_node);
}

static int start(struct detector *d)
{
	paths_init(&DETECTOR_OWN(d, paths, struct mine)->paths, d->options.nodes_max);
	return 0;
}

static void stop(struct detector *d)
{
	struct mine *m = DETECTOR_OWN(d, paths, struct mine);

	alloc_free(m->nodes);
	paths_fini(&m->paths);
}

static void memory(const struct detector *d, struct detector_size *size)
{
	const struct mine *m = DETECTOR_OWN(d, paths, struct mine);

	size->total += paths_bytes(&m->paths) + m->cap_nodes * sizeof(struct path_node *);
	size->pair = sizeof(struct path_cell) + 2 * sizeof(struct key_place);
}

static void sample(struct detector *d, const struct sample *s, const struct who *w)
{
	struct mine *m = DETECTOR_OWN(d, paths, struct mine);
	struct node *peer;

	if (s->kind == SAMPLE_LINK) {
		DEVICE_OWN(d, w->device, paths, struct mine_device)->is_port = true;
		return;
	}
	peer = known_node(d, s->pair.peer);
	m->any = true;
	/* A cell that does not fit is counted; rows and columns know of the sample all the same. */
	ignore_result(paths_add(&m->paths, &own(d, w->node)->path, &own(d, peer)->path, s->node,
				s->pair.peer, s->pair.bytes, s->pair.ns, d->now_ns));
}

/* Its only port; else the node itself. */
static struct subject port_of(const struct detector *d, uint32_t node)
{
	const struct device *found = NULL;

	for (struct device *x = known_node(d, node)->devices; x; x = x->next) {
		if (x->role != 'n' && !DEVICE_OWN(d, x, paths, struct mine_device)->is_port)
			continue;
		if (found)
			return subject_node(node);
		found = x;
	}
	return found ? subject_port(node, found->number) : subject_node(node);
}

static void accuse_path(struct detector *d, const struct path_finding *f, struct subject who,
			const char *how)
{
	struct verdict v =
		verdict_of(who, CLASS_SLOW, CAUSE_PATH_SLOW, LEVEL_ALARM, ACTION_VALIDATE);

	v.since_ns = f->since_ns;
	v.confidence = f->fault == PATH_PAIR ? 0.8 : 0.95;
	verdict_evidence(&v, "time of transfers over the usual", f->times, PATH_HOT, "x",
			 f->since_ns);
	verdict_evidence(&v, "peers that see it", f->n_peers, f->fault == PATH_PAIR ? 1 : 2, "",
			 f->since_ns);
	verdict_say(d, &v,
		    "is slow: transfers %s take %.1f times as long as is usual for their size, for "
		    "%.0f minutes: test the network between these nodes.",
		    how, f->times, (double)(d->now_ns - f->since_ns) / 60e9);
	accuse(d, &v);
}

static void on_side(struct detector *d, const struct path_finding *f)
{
	bool sends = f->fault == PATH_SENDER;
	uint32_t number = sends ? f->from : f->to;
	struct mine_node *m = own(d, known_node(d, number));
	bool both;

	m->found[!sends] = !f->over;
	if (f->over) {
		if (!m->found[0] && !m->found[1])
			acquit(d, &m->who, CAUSE_PATH_SLOW,
			       "transfers take their usual time again");
		return;
	}
	both = m->found[0] && m->found[1];
	if (!m->found[sends])
		m->who = port_of(d, number);
	accuse_path(d, f, m->who, both ? "from it and to it" : sends ? "from it" : "to it");
}

static void on_path(void *arg, const struct path_finding *f)
{
	struct detector *d = arg;
	struct subject path = subject_path(f->from, f->to);

	if (f->fault != PATH_PAIR)
		on_side(d, f);
	else if (f->over)
		acquit(d, &path, CAUSE_PATH_SLOW, "transfers take their usual time again");
	else
		accuse_path(d, f, path, "on it, and only on it,");
}

static void tick(struct detector *d)
{
	struct mine *m = DETECTOR_OWN(d, paths, struct mine);

	if (!m->any)
		return;
	m->nodes = scratch(m->nodes, &m->cap_nodes, d->nodes_end, sizeof(struct path_node *));
	if (!m->nodes)
		return; /* the next time */
	for (uint32_t i = 0; i < d->nodes_end; i++)
		m->nodes[i] = d->nodes[i] ? &own(d, d->nodes[i])->path : NULL;
	paths_judge(&m->paths, m->nodes, d->now_ns, on_path, d);
}

/* Rows and columns begin anew; cells do so with their next samples. */
static void well(struct detector *d, const struct subject *s)
{
	struct node *n = known_node(d, s->node);

	if (!n || (s->kind != SUBJECT_NODE && s->kind != SUBJECT_LINK) ||
	    (s->kind == SUBJECT_LINK && s->peer != SAMPLE_NONE))
		return;
	own(d, n)->path = (struct path_node){0};
	own(d, n)->found[0] = own(d, n)->found[1] = false;
}

const struct rule rule_paths = {
	.name = "paths",
	.kinds = 1u << SAMPLE_PAIR | 1u << SAMPLE_LINK,
	.node_bytes = sizeof(struct mine_node),
	.device_bytes = sizeof(struct mine_device),
	.detector_bytes = sizeof(struct mine),
	.tick_ns = 10 * NS_PER_SEC,
	.start = start,
	.stop = stop,
	.sample = sample,
	.tick = tick,
	.well = well,
	.memory = memory,
};
