/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rule_degrade.c - degrade.h for disks and for the network of a node.
 *
 * A disk that takes twice as long as its load explains is an alarm, one a third slower a note. Of
 * the network it is always a note: the transfers of one node alone do not tell whose fault they
 * are, the delay matrix (rule_paths.c) does.
 */
#include <config.h>

#include "detect/degrade.h"
#include "detect/rules.h"

#define OPS_MIN 8 /* a mean of fewer says nothing */

struct mine_device {
	struct degrade disk;
	uint64_t sample_ns;
	uint64_t moved; /* bytes of a port, as last told */
	uint64_t moved_ns;
	float rate; /* of a port, bytes/s */
	bool accused;
};
struct mine_node {
	struct degrade network;
	uint64_t pair_ns; /* the last one of it */
	bool accused;
};

static struct mine_device *own(const struct detector *d, struct device *x)
{
	return DEVICE_OWN(d, x, degrade, struct mine_device);
}

static void accuse_slower(struct detector *d, const struct degrade *g, struct subject who,
			  bool alarm, const char *what)
{
	struct verdict v =
		verdict_of(who, CLASS_SLOW, CAUSE_DEGRADED, alarm ? LEVEL_ALARM : LEVEL_NOTE,
			   alarm ? ACTION_SUSPECT : ACTION_RECORD);

	v.since_ns = g->since_ns;
	v.confidence = g->share;
	verdict_evidence(&v, "latency over what its load explains", degrade_times(g), DEGRADE_NOTE,
			 "x", g->since_ns);
	verdict_evidence(&v, "share of samples above the bound", g->share, DEGRADE_SHARE, "",
			 g->since_ns);
	verdict_say(d, &v,
		    "has become slower: its %s take %.1f times as long as their load and size "
		    "explain, for %.0f minutes%s.",
		    what, degrade_times(g), (double)(d->now_ns - g->since_ns) / 60e9,
		    alarm ? ": keep nothing new on it and have it checked" : "");
	accuse(d, &v);
}

static void on_disk(struct detector *d, const struct sample *s, struct device *x)
{
	struct mine_device *m = own(d, x);
	struct subject who = subject_disk(x->node, x->number);
	uint64_t since_ns = m->sample_ns;
	double ops = (double)s->disk.ops, bytes = (double)s->disk.bytes, dt;

	m->sample_ns = d->now_ns;
	dt = (double)(d->now_ns - since_ns) / NS_PER_SEC;
	if (!since_ns || dt <= 0 || s->disk.ops < OPS_MIN || !s->disk.busy_ns)
		return;
	if (bytes <= 0)
		bytes = ops;
	degrade_add(&m->disk, bytes / dt, bytes / ops, (double)s->disk.busy_ns / ops / NS_PER_SEC,
		    d->now_ns);
	if (degrade_is_slow(&m->disk, DEGRADE_NOTE, d->now_ns)) {
		m->accused = true;
		accuse_slower(d, &m->disk, who, degrade_times(&m->disk) >= DEGRADE_ALARM,
			      "operations");
	} else if (m->accused && degrade_is_well(&m->disk)) {
		m->accused = false;
		acquit(d, &who, CAUSE_DEGRADED, "its latency is what its load explains again");
	}
}

static void on_link(struct detector *d, const struct sample *s, struct device *x)
{
	struct mine_device *m = own(d, x);
	uint64_t moved = s->link.sent + s->link.received;
	double dt = (double)(d->now_ns - m->moved_ns) / NS_PER_SEC;

	if (m->moved_ns && dt > 0)
		m->rate = moved >= m->moved ? (float)((double)(moved - m->moved) / dt) : 0;
	m->moved = moved;
	m->moved_ns = d->now_ns;
}

static void on_pair(struct detector *d, const struct sample *s, struct node *n)
{
	struct mine_node *m = NODE_OWN(d, n, degrade, struct mine_node);
	struct subject who = subject_node(n->number);
	double load = 1;

	if (!s->pair.bytes || !s->pair.ns)
		return;
	m->pair_ns = d->now_ns;
	for (struct device *x = n->devices; x; x = x->next)
		load += (double)own(d, x)->rate;
	degrade_add(&m->network, load, (double)s->pair.bytes, (double)s->pair.ns / NS_PER_SEC,
		    d->now_ns);
	if (degrade_is_slow(&m->network, DEGRADE_NOTE, d->now_ns)) {
		m->accused = true;
		accuse_slower(d, &m->network, who, false, "transfers");
	} else if (m->accused && degrade_is_well(&m->network)) {
		m->accused = false;
		acquit(d, &who, CAUSE_DEGRADED, "its transfers take their usual time again");
	}
}

static void sample(struct detector *d, const struct sample *s, const struct who *w)
{
	if (s->kind == SAMPLE_DISK)
		on_disk(d, s, w->device);
	else if (s->kind == SAMPLE_LINK)
		on_link(d, s, w->device);
	else
		on_pair(d, s, w->node);
}

/* Of a disk that was taken out, or of the network where nobody measures any more. */
static void tick(struct detector *d)
{
	uint64_t long_ago = (uint64_t)(d->options.news_stand_s * NS_PER_SEC);

	for (size_t i = d->verdicts.n; i-- > 0;) {
		struct subject s = d->verdicts.standing[i].subject;
		struct node *n = known_node(d, s.node);
		struct device *x = known_device(d, s.node, s.device);
		uint64_t last_ns;

		if (d->verdicts.standing[i].cause != CAUSE_DEGRADED || !n)
			continue;
		last_ns = x ? own(d, x)->sample_ns
			    : NODE_OWN(d, n, degrade, struct mine_node)->pair_ns;
		if (detector_age(d, last_ns) < long_ago)
			continue;
		if (x)
			own(d, x)->accused = false;
		else
			NODE_OWN(d, n, degrade, struct mine_node)->accused = false;
		acquit(d, &s, CAUSE_DEGRADED, "nobody has measured it for a long time");
	}
}

static void well(struct detector *d, const struct subject *s)
{
	struct node *n = known_node(d, s->node);

	if (!n)
		return;
	if (s->kind == SUBJECT_NODE)
		*NODE_OWN(d, n, degrade, struct mine_node) = (struct mine_node){0};
	for (struct device *x = n->devices; x; x = x->next)
		if (s->kind == SUBJECT_NODE || (s->kind == SUBJECT_DISK && s->device == x->number))
			*own(d, x) = (struct mine_device){0};
}

static void explain(const struct detector *d, const struct subject *s, struct explain *e)
{
	struct device *x = s->kind == SUBJECT_DISK ? known_device(d, s->node, s->device) : NULL;
	const struct degrade *g = x ? &own(d, x)->disk : NULL;

	if (g && g->n >= DEGRADE_LEARN)
		explain_line(e,
			     "latency of late: %.2f times what its load explains; %.0f %% of "
			     "samples are above the bound, it counts from %.0f %% on",
			     degrade_times(g), 100 * (double)g->share, 100 * DEGRADE_SHARE);
}

const struct rule rule_degrade = {
	.name = "degrade",
	.kinds = 1u << SAMPLE_DISK | 1u << SAMPLE_LINK | 1u << SAMPLE_PAIR,
	.node_bytes = sizeof(struct mine_node),
	.device_bytes = sizeof(struct mine_device),
	.tick_ns = 60 * NS_PER_SEC,
	.sample = sample,
	.tick = tick,
	.well = well,
	.explain = explain,
};
