/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nodes.c - what nodes say of themselves every ten seconds, and what is in their kernel logs.
 *
 * What a node measures follows from what the job does (all nodes of a job rise and fall together),
 * from noise that all share, from what it is persistently, and from noise of its own.
 */
#include <config.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>

#include "base/alloc.h"
#include "detect/replay/world.h"

#define PERIOD_NS S(10)
#define LOST      0.001 /* share of samples */

static float unit_exponential(struct rand *r)
{
	return -logf(1 - (float)rand_unit(r));
}

int nodes_new(struct world *w)
{
	w->nodes = alloc_array(w->n_nodes, sizeof(*w->nodes));
	if (!w->nodes)
		return -ENOMEM;
	for (uint32_t i = 0; i < w->n_nodes; i++) {
		struct wnode *n = &w->nodes[i];

		n->state = i < w->c.nodes ? NODE_USED : NODE_SPARE;
		n->slot = i;
		n->speed = 1 + fabsf(0.012f * rand_normal(&w->node_rand));
		n->drift = 1;
		n->link_up = true;
		n->sent = rand_u64(&w->node_rand) >> 16;
		n->received = rand_u64(&w->node_rand) >> 16;
		n->errors = rand_below(&w->node_rand, 50);
		n->corrected = rand_below(&w->node_rand, 20);
		for (unsigned m = 0; m < METRIC_COUNT; m++)
			n->metric[m] = rand_normal(&w->node_rand);
	}
	for (uint32_t i = 0; i * RANKS_PER_NODE < w->world; i++)
		w->slot[i] = i;
	w->tick_ns = PERIOD_NS / w->n_nodes;
	return 0;
}

static void tell_name(struct world *w, uint32_t node, uint32_t device, char role, const char *text)
{
	struct sample *s = world_node_sample(w, SAMPLE_NAME, node);

	s->device = device;
	s->name.role = role;
	snprintf(s->name.text, sizeof(s->name.text), "%s", text);
}

void nodes_names(struct world *w)
{
	struct trace_record *r = world_put(w);
	struct sample *s;
	char text[SAMPLE_NAME_MAX];

	r->label.kind = LABEL_MODE;
	r->label.subject.job = w->c.job;
	r->label.declares = w->style.declares;
	s = world_sample(w, SAMPLE_NAME);
	s->job = w->c.job;
	snprintf(s->name.text, sizeof(s->name.text), "job%u", w->c.job);
	for (uint32_t i = 0; i < w->n_nodes; i++) {
		snprintf(text, sizeof(text), "n%u", w->c.node_base + i);
		tell_name(w, i, SAMPLE_NONE, 0, text);
		for (uint32_t gpu = 0; gpu < RANKS_PER_NODE; gpu++) {
			world_pci(gpu, text, sizeof(text));
			tell_name(w, i, gpu, 'g', text);
		}
		tell_name(w, i, RANKS_PER_NODE, 'n', "bond0");
		tell_name(w, i, RANKS_PER_NODE + 1, 'd', "nvme0n1");
	}
}

/* ---- measurements ---- */

struct level {
	float gpu, power, net, cpu, disk; /* 0: idle, 1: at full work */
};

/* s, mean of its ranks in the last step. */
static float work_of_slot(const struct world *w, uint32_t slot)
{
	uint32_t first = slot * RANKS_PER_NODE, n = 0;
	float sum = 0;

	for (; n < RANKS_PER_NODE && first + n < w->world; n++)
		sum += w->told_work[first + n];
	return n ? sum / (float)n : 0;
}

static struct level level_of(const struct world *w, const struct wnode *n)
{
	static const struct level idle = {0, 0, 0, 0.02f, 0.02f};
	static const struct level waiting = {1, 0.35f, 0, 0.6f, 0.02f};
	static const struct level evaluating = {0.9f, 0.8f, 0.6f, 1, 0.02f};
	static const struct level saving = {0.05f, 0.1f, 0.1f, 0.8f, 1};
	static const struct level loading = {0.02f, 0.05f, 0.3f, 1, 0.6f};
	struct level l = {1, 1, 1, 1, 0.03f};
	float share;

	if (n->state != NODE_USED || w->state == JOB_DOWN)
		return idle;
	if (w->state == JOB_LOADING)
		return loading;
	if (w->state == JOB_STUCK)
		return waiting;
	if (w->state == JOB_PAUSED)
		return w->pause == PHASE_CHECKPOINT ? saving : evaluating;
	if (w->steps_here == 0)
		return (struct level){0.3f, 0.2f, 0, 1, 0.05f};
	share = (float)(w->style.step_s * w->length / w->took_s);
	l.net = share > 1 ? 1 : share;
	share = work_of_slot(w, n->slot) / (float)w->took_s;
	l.power = 0.35f + 0.65f * (share > 1 ? 1 : share);
	return l;
}

static float noisy(struct world *w, const struct wnode *n, enum sample_metric m, float value,
		   float sigma)
{
	return value * (1 + sigma * (0.6f * w->common[m] + n->metric[m] +
				     0.7f * rand_normal(&w->node_rand)));
}

static void sign_of_fault(struct world *w, uint32_t node, float *v)
{
	const struct fault *f = &w->fault;
	float slow, share;

	if (!f->active || f->node != node || f->kind < FAULT_SLOW_RANK ||
	    f->kind > FAULT_SLOW_NODE_LATE)
		return;
	slow = faults_slowness(w, node, f->rank);
	share = f->kind >= FAULT_SLOW_NODE ? 1 : 1.0f / RANKS_PER_NODE;
	if (f->signature == 1) {
		v[METRIC_GPU_CLOCK] *= 1 - share * (1 - 1 / slow);
		v[METRIC_GPU_TEMPERATURE] += 8;
	} else if (f->signature == 2) {
		v[METRIC_CPU] += 0.3f;
		v[METRIC_PSI_CPU] += 0.2f + 0.2f * (slow - 1);
	}
}

static void tell_metrics(struct world *w, uint32_t node)
{
	struct wnode *n = &w->nodes[node];
	struct rand *r = &w->node_rand;
	struct level l = level_of(w, n);
	float *v;

	if (rand_chance(r, LOST))
		return;
	v = world_node_sample(w, SAMPLE_METRICS, node)->metrics;
	v[METRIC_CPU] = noisy(w, n, METRIC_CPU, 0.01f + 0.14f * l.cpu, 0.06f);
	v[METRIC_MEMORY] = noisy(w, n, METRIC_MEMORY, 0.12f + 0.35f * (l.gpu > 0), 0.03f);
	v[METRIC_PSI_CPU] = 0.002f * unit_exponential(r);
	v[METRIC_PSI_MEMORY] = 0.0002f * unit_exponential(r);
	v[METRIC_PSI_IO] = (0.001f + 0.05f * l.disk) * unit_exponential(r);
	v[METRIC_GPU_BUSY] = noisy(w, n, METRIC_GPU_BUSY, 0.97f * l.gpu, 0.008f);
	v[METRIC_GPU_BUSY] = v[METRIC_GPU_BUSY] > 1 ? 1 : v[METRIC_GPU_BUSY];
	v[METRIC_GPU_POWER] = noisy(w, n, METRIC_GPU_POWER, 75 + 565 * l.power, 0.02f);
	v[METRIC_GPU_CLOCK] = l.gpu > 0 ? noisy(w, n, METRIC_GPU_CLOCK, 1740, 0.008f) : 345;
	v[METRIC_GPU_TEMPERATURE] =
		32 + 33 * l.power + 2.5f * n->metric[METRIC_GPU_TEMPERATURE] + rand_normal(r);
	v[METRIC_NET_SEND] = noisy(w, n, METRIC_NET_SEND, 1e4f + 9e9f * l.net, 0.04f);
	v[METRIC_NET_RECEIVE] = noisy(w, n, METRIC_NET_RECEIVE, 1e4f + 9e9f * l.net, 0.04f);
	v[METRIC_NET_PAUSE] = (0.2f + 20 * l.net) * unit_exponential(r);
	v[METRIC_NET_RETRY] = rand_chance(r, 0.02) ? (float)rand_below(r, 4) / 10 : 0;
	v[METRIC_DISK_WRITE] = (1e5f + 2.5e9f * l.disk * (l.disk > 0.5f)) * unit_exponential(r);
	v[METRIC_DISK_LATENCY] = 0.0004f * (1 + 3 * l.disk) * (0.6f + 0.4f * unit_exponential(r));
	v[METRIC_NVLINK] = noisy(w, n, METRIC_NVLINK, 1e3f + 1.1e11f * l.net, 0.04f);
	sign_of_fault(w, node, v);
	if (w->fault.active && w->fault.kind == FAULT_DISK && w->fault.node == node)
		v[METRIC_DISK_LATENCY] *= w->fault.factor;
}

static void tell_link(struct world *w, uint32_t node)
{
	struct wnode *n = &w->nodes[node];
	struct rand *r = &w->node_rand;
	const struct fault *f = &w->fault;
	bool faulty =
		f->active && f->kind >= FAULT_PATH && f->kind <= FAULT_RECEIVER && f->node == node;
	double bytes = 9e10 * (double)level_of(w, n).net * (1 + 0.03 * (double)rand_normal(r));
	struct sample *s;

	n->sent += n->link_up ? (uint64_t)bytes + 100000 : 0;
	n->received += n->link_up ? (uint64_t)bytes + 100000 : 0;
	n->retries += rand_chance(r, 0.02) ? 1 + rand_below(r, 4) : 0;
	n->errors += rand_chance(r, 0.0002);
	if (faulty && f->signature == 2)
		n->retries += 20 + rand_below(r, 200);
	if (rand_chance(r, LOST))
		return;
	s = world_node_sample(w, SAMPLE_LINK, node);
	s->device = RANKS_PER_NODE;
	s->link.up = n->link_up;
	s->link.rate_gbps = faulty && f->signature == 1 ? 200 : 400;
	s->link.sent = n->sent;
	s->link.received = n->received;
	s->link.errors = n->errors;
	s->link.retries = n->retries;
	s->link.downs = n->downs;
}

/* In turn to the next one of the ring, and to anybody. */
static void tell_pair(struct world *w, uint32_t node)
{
	struct rand *r = &w->node_rand;
	uint32_t slot = w->nodes[node].slot, peer;
	struct sample *s;
	double bytes, took;

	if (w->state != JOB_STEPPING || w->steps_here < 3 || w->c.nodes < 2 || rand_chance(r, LOST))
		return;
	if ((w->round + slot) % 2 == 0)
		peer = w->slot[(slot + 1) % w->c.nodes];
	else
		peer = w->slot[(slot + 1 + rand_below(r, w->c.nodes - 1)) % w->c.nodes];
	bytes = (double)(UINT64_C(16777216) << rand_below(r, 4));
	took = 40e-6 + bytes / 44e9;
	took *= rand_lognormal(r, 1, 0.06);
	took *= 1 + 0.02 * (double)(w->nodes[node].metric[METRIC_NET_SEND] +
				    w->nodes[peer].metric[METRIC_NET_RECEIVE]);
	if (rand_chance(r, 0.04)) /* others send there at the same time */
		took *= rand_between(r, 1.3, 4);
	if (w->fault.active && faults_slow_path(w, node, peer))
		took *= (double)w->fault.factor;
	s = world_node_sample(w, SAMPLE_PAIR, node);
	s->pair.peer = w->c.node_base + peer;
	s->pair.bytes = (uint64_t)bytes;
	s->pair.ns = S(took);
}

static void tell_disk_and_memory(struct world *w, uint32_t node)
{
	struct wnode *n = &w->nodes[node];
	struct rand *r = &w->node_rand;
	const struct fault *f = &w->fault;
	float load = level_of(w, n).disk;
	double latency = 0.0003 * (1 + 2 * (double)load) * rand_lognormal(r, 1, 0.2);
	struct sample *s;

	if (f->active && f->kind == FAULT_DISK && f->node == node) {
		latency *= (double)f->factor;
		n->disk_errors += rand_chance(r, 0.05);
	}
	s = world_node_sample(w, SAMPLE_DISK, node);
	s->device = RANKS_PER_NODE + 1;
	s->disk.ops = 60 + rand_below(r, 200) + (uint64_t)(50000 * load * (load > 0.5f));
	s->disk.bytes = s->disk.ops * 65536;
	s->disk.busy_ns = (uint64_t)((double)s->disk.ops * latency * 1e9);
	s->disk.errors = n->disk_errors;
	n->corrected += rand_chance(r, 0.0005);
	if (f->active && f->kind == FAULT_MEMORY && f->node == node) {
		n->corrected += 200 + rand_below(r, 2000);
		n->uncorrected += f->stage && rand_chance(r, 0.1);
	}
	s = world_node_sample(w, SAMPLE_MEMORY, node);
	s->memory.corrected = n->corrected;
	s->memory.uncorrected = n->uncorrected;
}

static void tell_gpus(struct world *w, uint32_t node)
{
	struct wnode *n = &w->nodes[node];

	n->gpu_corrected += rand_chance(&w->node_rand, 0.01);
	for (uint32_t i = 0; i < RANKS_PER_NODE; i++) {
		struct sample *s = world_node_sample(w, SAMPLE_NVML, node);

		s->device = i;
		s->nvml.corrected = i == 0 ? n->gpu_corrected : 0;
	}
}

void nodes_tick(struct world *w)
{
	uint32_t node = w->tick++;
	struct wnode *n = &w->nodes[node];

	n->drift += 0.0002f * rand_normal(&w->node_rand) - 0.01f * (n->drift - 1);
	if (n->state != NODE_DEAD) {
		world_node_sample(w, SAMPLE_ALIVE, node);
		tell_metrics(w, node);
		tell_link(w, node);
		if (n->state == NODE_USED)
			tell_pair(w, node);
		if ((w->round + node) % 6 == 0)
			tell_disk_and_memory(w, node);
		if ((w->round + node) % 60 == 0)
			tell_gpus(w, node);
	}
	if (w->tick == w->n_nodes) {
		w->tick = 0;
		w->round++;
		for (unsigned m = 0; m < METRIC_COUNT; m++)
			w->common[m] = 0.9f * w->common[m] + 0.436f * rand_normal(&w->node_rand);
	}
	w->tick_ns = w->round * PERIOD_NS + (w->tick + 1) * (PERIOD_NS / w->n_nodes);
}

/* ---- kernel messages that mean nothing, or nothing bad ---- */

static void harmless_xid(struct world *w, uint32_t node, uint32_t code)
{
	uint32_t pid = 2000 + rand_below(&w->node_rand, 90000);
	char pci[16];

	world_pci(rand_below(&w->node_rand, RANKS_PER_NODE), pci, sizeof(pci));
	switch (code) {
	case 13:
		world_kernel(w, node, 0,
			     "NVRM: Xid (PCI:%s): 13, pid=%u, name=python3, Graphics SM Warp "
			     "Exception on (GPC 3, TPC 1, SM 0): Out Of Range Address",
			     pci, pid);
		break;
	case 31:
		world_kernel(w, node, 0,
			     "NVRM: Xid (PCI:%s): 31, pid=%u, name=python3, Ch 0000000b, intr "
			     "00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_3 faulted @ "
			     "0x7f3b_60000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
			     pci, pid);
		break;
	case 43:
		world_kernel(w, node, 0,
			     "NVRM: Xid (PCI:%s): 43, pid=%u, name=python3, Ch 00000008", pci, pid);
		break;
	default:
		world_kernel(w, node, 0,
			     "NVRM: Xid (PCI:%s): 45, pid=%u, name=python3, Ch 0000000c", pci, pid);
		break;
	}
}

/* About one an hour on each node. */
void nodes_benign(struct world *w)
{
	struct rand *r = &w->node_rand;
	uint32_t node = rand_below(r, w->n_nodes), k = rand_below(r, 400);

	world_at(w, w->now + S(rand_exponential(r, 3600.0 / w->n_nodes)), EVENT_BENIGN, 0);
	if (w->nodes[node].state == NODE_DEAD)
		return;
	if (k == 0 && w->nodes[node].state == NODE_SPARE) /* somebody tries something */
		harmless_xid(w, node, rand_chance(r, 0.5) ? 13 : 31);
	else if (k == 1) /* not the kernel */
		world_kernel(w, node, 1,
			     "NVRM: Xid (PCI:0000:9d:00): 79, pid='<unknown>', name=<unknown>, GPU "
			     "has fallen off the bus.");
	else if (k < 40)
		world_kernel(w, node, 0, "mce: CPU%u: Core temperature/speed normal", k);
	else if (k < 200)
		world_kernel(w, node, 3, "systemd[1]: Finished logrotate.service.");
	else
		world_kernel(w, node, 0, "audit: type=1400 audit(1763550000.123:%u): apparmor", k);
}

/* When ranks were killed in the middle of their kernels. */
void nodes_after_crash(struct world *w)
{
	uint32_t n = rand_chance(&w->node_rand, 0.5) ? 1 + rand_below(&w->node_rand, 4) : 0;

	while (n--) {
		uint32_t node = w->slot[rand_below(&w->node_rand, w->c.nodes)];

		if (w->nodes[node].state == NODE_USED)
			harmless_xid(w, node, rand_chance(&w->node_rand, 0.5) ? 43 : 45);
	}
}

/* ---- another node in its place ---- */

void nodes_replace(struct world *w, uint32_t slot)
{
	uint32_t old = w->slot[slot], spare = 0;

	while (spare < w->n_nodes && w->nodes[spare].state != NODE_SPARE)
		spare++;
	if (spare == w->n_nodes) { /* none: it is reset, and takes part again */
		w->nodes[old].state = NODE_USED;
		return;
	}
	for (uint32_t i = 0; i < RANKS_PER_NODE && slot * RANKS_PER_NODE + i < w->world; i++) {
		struct sample *s = world_rank_sample(w, SAMPLE_MEMBER, slot * RANKS_PER_NODE + i);

		s->member.leaves = true;
	}
	if (w->nodes[old].state == NODE_USED)
		w->nodes[old].state = NODE_REPAIR;
	world_at(w, w->now + S(rand_between(&w->node_rand, 12, 24) * 3600), EVENT_NODE_BACK, old);
	w->slot[slot] = spare;
	w->nodes[spare].state = NODE_USED;
	w->nodes[spare].slot = slot;
}
