/* SPDX-License-Identifier: Apache-2.0 */
/*
 * world.c - time in a world: what comes next is the earliest of three: the beats of the step that
 * has just ended, the nodes' own samples, and the events of job and faults.
 *
 * Invariant: times of records never go back. Events that are pushed for the past happen now.
 */
#include <config.h>

#include "detect/replay/world.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

/* ---- what is to be told ---- */

struct trace_record *world_put(struct world *w)
{
	static __thread struct trace_record dropped;
	struct trace_record *r;

	if (w->n_out == w->cap_out) {
		size_t cap = w->cap_out ? 2 * w->cap_out : 64;
		void *p = alloc_resize(w->out, cap * sizeof(*w->out));

		if (!p) {
			w->failed = true;
			return &dropped;
		}
		w->out = p;
		w->cap_out = cap;
	}
	r = &w->out[w->n_out++];
	memset(r, 0, sizeof(*r));
	r->is_label = true;
	r->label.time_ns = w->now;
	r->label.factor = NAN;
	r->label.subject = (struct subject){.node = SAMPLE_NONE,
					    .job = SAMPLE_NONE,
					    .rank = SAMPLE_NONE,
					    .device = SAMPLE_NONE,
					    .peer = SAMPLE_NONE};
	return r;
}

struct sample *world_sample(struct world *w, enum sample_kind kind)
{
	struct trace_record *r = world_put(w);

	memset(r, 0, sizeof(*r));
	r->sample.kind = kind;
	r->sample.time_ns = w->now;
	r->sample.node = r->sample.job = r->sample.rank = r->sample.device = SAMPLE_NONE;
	return &r->sample;
}

struct sample *world_node_sample(struct world *w, enum sample_kind kind, uint32_t node)
{
	struct sample *s = world_sample(w, kind);

	s->node = w->c.node_base + node;
	return s;
}

struct sample *world_rank_sample(struct world *w, enum sample_kind kind, uint32_t rank)
{
	struct sample *s = world_node_sample(w, kind, world_node(w, rank));

	s->job = w->c.job;
	s->rank = rank;
	return s;
}

void world_kernel(struct world *w, uint32_t node, uint8_t facility, const char *fmt, ...)
{
	struct sample *s = world_node_sample(w, SAMPLE_KERNEL, node);
	va_list ap;

	s->kernel.facility = facility;
	s->kernel.level = 3;
	va_start(ap, fmt);
	vsnprintf(s->kernel.text, sizeof(s->kernel.text), fmt, ap);
	va_end(ap);
}

uint32_t world_node(const struct world *w, uint32_t rank)
{
	return w->slot[rank / RANKS_PER_NODE];
}

void world_pci(uint32_t gpu, char *buf, size_t size)
{
	static const uint8_t bus[RANKS_PER_NODE] = {0x1b, 0x43, 0x52, 0x61, 0x9d, 0xc3, 0xd1, 0xdf};

	snprintf(buf, size, "0000:%02x:00", bus[gpu % RANKS_PER_NODE]);
}

/* ---- what is to come: a heap ---- */

static bool sooner(const struct event *a, const struct event *b)
{
	return a->time_ns != b->time_ns ? a->time_ns < b->time_ns : a->order < b->order;
}

struct event *world_at(struct world *w, uint64_t time_ns, enum event_kind kind, uint32_t arg)
{
	static __thread struct event dropped;
	struct event e = {.time_ns = time_ns > w->now ? time_ns : w->now,
			  .order = ++w->n_pushed,
			  .kind = kind,
			  .arg = arg,
			  .token = w->token};
	size_t i = w->n_events;

	if (w->n_events == w->cap_events) {
		size_t cap = w->cap_events ? 2 * w->cap_events : 256;
		void *p = alloc_resize(w->events, cap * sizeof(*w->events));

		if (!p) {
			w->failed = true;
			return &dropped;
		}
		w->events = p;
		w->cap_events = cap;
	}
	w->n_events++;
	for (; i > 0 && sooner(&e, &w->events[(i - 1) / 2]); i = (i - 1) / 2)
		w->events[i] = w->events[(i - 1) / 2];
	w->events[i] = e;
	return &w->events[i];
}

static struct event pop(struct world *w)
{
	struct event top = w->events[0], last = w->events[--w->n_events];
	size_t i = 0;

	for (;;) {
		size_t child = 2 * i + 1;

		if (child >= w->n_events)
			break;
		if (child + 1 < w->n_events && sooner(&w->events[child + 1], &w->events[child]))
			child++;
		if (!sooner(&w->events[child], &last))
			break;
		w->events[i] = w->events[child];
		i = child;
	}
	w->events[i] = last;
	return top;
}

/* A stopped run's events come too late for the next one. */
static bool is_stale(const struct world *w, const struct event *e)
{
	switch ((unsigned)e->kind) {
	case EVENT_READY:
	case EVENT_STEP:
	case EVENT_STEP_END:
	case EVENT_PAUSE_END:
		return e->token != w->token;
	case EVENT_LATE:
		return e->token != w->token || e->arg != w->lap;
	default:
		return false;
	}
}

static void happen_job(struct world *w, const struct event *e)
{
	switch ((unsigned)e->kind) {
	case EVENT_BEGIN:
		job_begin(w);
		break;
	case EVENT_READY:
		job_ready(w);
		break;
	case EVENT_STEP:
		job_step(w);
		break;
	case EVENT_STEP_END:
		job_step_end(w);
		break;
	case EVENT_PAUSE_END:
		job_pause_end(w);
		break;
	case EVENT_PHASE_ENDS:
		job_phase_ends(w, e->arg);
		break;
	case EVENT_ALL_EXIT:
		job_all_exit(w, (enum exit_how)e->how, e->value, 3);
		break;
	case EVENT_EXIT:
		job_exit(w, e->arg, (enum exit_how)e->how, e->value);
		break;
	case EVENT_JOB_END:
		job_end(w);
		break;
	case EVENT_LONGER:
		job_longer(w, rand_between(&w->rand, 0.6, 2));
		break;
	default:
		assert(false);
	}
}

static void happen(struct world *w, const struct event *e)
{
	if (is_stale(w, e))
		return;
	switch ((unsigned)e->kind) {
	case EVENT_LATE:
		activity_late(w);
		break;
	case EVENT_PROBE:
		activity_probe(w, e->arg, (uint32_t)e->value);
		break;
	case EVENT_FAULT:
		faults_strike(w);
		break;
	case EVENT_FAULT_NEXT:
		faults_next(w);
		break;
	case EVENT_FAULT_END:
		faults_end(w);
		break;
	case EVENT_NODE_BACK:
		w->nodes[e->arg].state = NODE_SPARE;
		break;
	case EVENT_BENIGN:
		nodes_benign(w);
		break;
	case EVENT_CASE:
		cases_event(w, e->arg);
		break;
	default:
		happen_job(w, e);
		break;
	}
}

/* ---- the whole ---- */

static void draw_style(struct world *w)
{
	struct rand *r = &w->rand;
	struct job_style *s = &w->style;

	*s = (struct job_style){
		.declares = w->c.declares,
		.step_s = exp(rand_between(r, log(5), log(30))),
		.jitter = rand_between(r, 0.005, 0.03),
		.comm_share = rand_between(r, 0.08, 0.25),
		.checkpoint_every_s = rand_between(r, 600, 3600),
		.checkpoint_s = rand_between(r, 3, 40),
		.checkpoint_slow = 0.02,
		.evaluate_every_s = rand_between(r, 2, 8) * 3600,
		.evaluate_s = rand_between(r, 120, 900),
		.compile_s = rand_between(r, 60, 400),
		.restart_every_s = 36 * 3600,
		.longer_every_s = 60 * 3600,
		.tenfold_share = 0.001,
		.data_stall_share = 0.0025,
		.stages = 1u << rand_below(r, 4),
		.local_loss = rand_chance(r, 0.4),
		.gives_loss = true,
		.gives_grad_norm = rand_chance(r, 0.8),
		.blocking_wait = rand_chance(r, 0.2),
		.gpu_known = rand_chance(r, 0.85),
	};
}

static void draw_ranks(struct world *w)
{
	float stage[64];

	for (uint32_t i = 0; i < w->style.stages; i++)
		stage[i] = 1 + 0.05f * rand_normal(&w->rand);
	for (uint32_t i = 0; i < w->world; i++) {
		uint32_t of = (uint32_t)((uint64_t)i * w->style.stages / w->world);

		w->factor[i] = stage[of] * (1 + 0.004f * rand_normal(&w->rand));
	}
}

static int take_memory(struct world *w)
{
	uint32_t slots = (w->world + RANKS_PER_NODE - 1) / RANKS_PER_NODE;

	w->slot = alloc_array(slots, sizeof(*w->slot));
	w->factor = alloc_array(w->world, sizeof(*w->factor));
	w->work = alloc_array(w->world, sizeof(*w->work));
	w->told_work = alloc_array(w->world, sizeof(*w->told_work));
	w->missed = alloc_array(w->world, sizeof(*w->missed));
	w->gone = alloc_array(w->world, sizeof(*w->gone));
	w->probes = alloc_array(w->world, sizeof(*w->probes));
	if (!w->slot || !w->factor || !w->work || !w->told_work || !w->missed || !w->gone ||
	    !w->probes)
		return -ENOMEM;
	return nodes_new(w);
}

int world_new(const struct world_config *c, struct world **ret)
{
	struct world *w = alloc_zero(sizeof(*w));
	int r;

	assert(c->nodes > 0);
	if (!w)
		return -ENOMEM;
	w->c = *c;
	w->end_ns = S(c->days * 86400);
	w->rand = rand_stream(c->seed, 4 * (uint64_t)c->job);
	w->node_rand = rand_stream(c->seed, 4 * (uint64_t)c->job + 1);
	w->fault_rand = rand_stream(c->seed, 4 * (uint64_t)c->job + 2);
	w->activity_rand = rand_stream(c->seed, 4 * (uint64_t)c->job + 3);
	if (c->style)
		w->style = *c->style;
	else
		draw_style(w);
	w->c.style = NULL;
	w->world = c->ranks ? c->ranks : c->nodes * RANKS_PER_NODE;
	w->length = 1;
	w->beat_at = w->world;
	w->replace = SAMPLE_NONE;
	w->n_nodes = c->nodes + c->spares;
	r = take_memory(w);
	if (r < 0) {
		world_free(w);
		return r;
	}
	draw_ranks(w);
	nodes_names(w);
	world_at(w, S(rand_between(&w->rand, 0, 60)), EVENT_BEGIN, 0);
	world_at(w, S(rand_exponential(&w->node_rand, 3600)), EVENT_BENIGN, 0);
	if (w->style.longer_every_s > 0)
		world_at(w, S(rand_exponential(&w->rand, w->style.longer_every_s)), EVENT_LONGER,
			 0);
	faults_begin(w);
	cases_begin(w);
	*ret = w;
	return 0;
}

void world_free(struct world *w)
{
	if (!w)
		return;
	alloc_free(w->events);
	alloc_free(w->out);
	alloc_free(w->nodes);
	alloc_free(w->slot);
	alloc_free(w->factor);
	alloc_free(w->work);
	alloc_free(w->told_work);
	alloc_free(w->missed);
	alloc_free(w->gone);
	alloc_free(w->probes);
	alloc_free(w);
}

bool world_next(struct world *w, const struct trace_record **ret)
{
	for (;;) {
		uint64_t next;

		if (w->out_at < w->n_out) {
			*ret = &w->out[w->out_at++];
			return !w->failed;
		}
		w->out_at = w->n_out = 0;
		next = w->n_events ? w->events[0].time_ns : UINT64_MAX;
		next = w->tick_ns < next ? w->tick_ns : next;
		if (w->beat_at < w->world && w->beat_ns <= next) {
			if (job_next_beat(w)) {
				*ret = &w->beat;
				return !w->failed;
			}
			continue;
		}
		if (next > w->end_ns || w->failed)
			return false;
		assert(next >= w->now);
		w->now = next;
		if (w->tick_ns == next) {
			nodes_tick(w);
		} else {
			struct event e = pop(w);

			happen(w, &e);
		}
	}
}

void world_probe(struct world *w, uint32_t rank, bool wanted)
{
	struct probe *p;

	if (rank >= w->world)
		return;
	p = &w->probes[rank];
	if (p->wanted == wanted)
		return;
	*p = (struct probe){.wanted = wanted, .token = p->token + 1};
	if (wanted)
		world_at(w, w->now + 20000000, EVENT_PROBE, rank)->value = (int32_t)p->token;
}

unsigned cluster_worlds(uint64_t seed, uint32_t nodes, double days, uint32_t job_nodes,
			struct world_config *ret)
{
	uint32_t n = job_nodes ? nodes / job_nodes : 12;
	uint32_t base = 0;

	n = n < 1 ? 1 : n > JOBS_MAX ? JOBS_MAX : n;
	if (nodes / n < 4)
		n = nodes / 4 ? nodes / 4 : 1;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t all = nodes / n + (i < nodes % n);
		uint32_t spares = all < 3 ? 0 : all / 25 + 2;

		ret[i] = (struct world_config){.seed = seed,
					       .job = i,
					       .node_base = base,
					       .nodes = all - spares,
					       .spares = spares,
					       .days = days,
					       .fault_every_s = 3.1 * 3600,
					       .declares = i % 6 != 5};
		base += all;
	}
	return n;
}
