/* SPDX-License-Identifier: Apache-2.0 */
/*
 * case_detect.c - what the detector itself costs, in virtual time: samples of a healthy job go in,
 * and CPU time of this thread is held against the time that the samples are about.
 *
 *   detect.cpu            8 ranks on one node, 10 beats a second each, and what the node measures,
 *                         per cent of a core
 *   detect.memory         KiB that a rank takes, of 8: all that the detector has allocated, by 8
 *   detect.leader         10,000 ranks on 1,250 nodes, a beat a second each, that arrive as the
 *                         nodes' sketches: opened, checked, fed, judged; per cent of a core
 *   detect.leader.memory  MiB that this leader's detector has allocated, everything included
 *
 * Making the samples and sketches is not measured. What was measured must also have been right:
 * a verdict about this healthy job fails the case.
 */
#include <config.h>

#include <errno.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "bench/bench.h"
#include "detect/detector.h"
#include "detect/options.h"
#include "detect/sketch.h"

#define SEC UINT64_C(1000000000)
#define MS  UINT64_C(1000000)

#define RUNS              15
#define PER_NODE          8
#define NODE_BEATS        10 /* a second */
#define NODE_WINDOW_S     60
#define NODE_CPU_TARGET   1.0
#define NODE_KIB_TARGET   64
#define LEADER_NODES      1250
#define LEADER_WINDOW_S   10
#define LEADER_CPU_TARGET 50
#define LEADER_MIB_TARGET 1024
#define WARM_UP_S         60

/* What this thread holds of alloc.h's memory. */
struct counter {
	struct alloc_watch watch;
	size_t now;
};

struct cluster {
	struct counter counter;
	struct detector *d;
	struct sketch *sketch;
	struct rng_seeded rng;
	struct writer wire;
	uint32_t nodes;
	unsigned beats; /* a second */
	uint64_t now_ns, step, cpu_ns, sketches, wire_bytes;
	size_t empty; /* bytes of the detector before anybody was known */
	bool leads;   /* through sketches */
	unsigned alarms;
	int failed;
};

static void taken(struct alloc_watch *w, void *p)
{
	((struct counter *)w)->now += malloc_usable_size(p);
}

static void given(struct alloc_watch *w, void *p)
{
	((struct counter *)w)->now -= malloc_usable_size(p);
}

static void on_verdict(void *arg, const struct verdict *v)
{
	struct cluster *c = arg;

	c->alarms += v->level == LEVEL_ALARM && v->state != VERDICT_CLEARED;
}

static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * SEC + (uint64_t)t.tv_nsec;
}

static double noise(struct cluster *c, double sigma)
{
	double sum = -6;

	for (int i = 0; i < 12; i++)
		sum += (double)(rng_u64(&c->rng.rng) >> 11) / (double)(1ull << 53);
	return exp(sigma * sum);
}

/* ---- Samples ---- */

/* On their way: to the detector, or into the sketch of the node that is being made. */
static void tell(struct cluster *c, const struct sample *s)
{
	uint64_t begin;
	int r;

	if (c->leads) {
		r = sketch_add(c->sketch, s);
	} else {
		begin = cpu_ns();
		r = detector_feed(c->d, s);
		c->cpu_ns += cpu_ns() - begin;
	}
	if (r < 0)
		c->failed = r;
}

static struct sample about(const struct cluster *c, enum sample_kind kind, uint32_t node,
			   uint32_t device)
{
	return (struct sample){.kind = kind,
			       .time_ns = c->now_ns,
			       .node = node,
			       .job = SAMPLE_NONE,
			       .rank = SAMPLE_NONE,
			       .device = device};
}

static struct sample about_rank(const struct cluster *c, enum sample_kind kind, uint32_t node,
				uint32_t i)
{
	struct sample s = about(c, kind, node, SAMPLE_NONE);

	s.job = 0;
	s.rank = node * PER_NODE + i;
	return s;
}

static void tell_beats(struct cluster *c, uint32_t node)
{
	double step_ns = 1e9 / c->beats;

	for (uint32_t i = 0; i < PER_NODE; i++) {
		struct sample s = about_rank(c, SAMPLE_BEAT, node, i);

		s.beat = (struct sample_beat){.step = c->step,
					      .flags = BEAT_LOSS | BEAT_GRAD_NORM | BEAT_TOKENS |
						       BEAT_BUSY,
					      .busy_ns = (uint64_t)(0.8 * step_ns * noise(c, 0.02)),
					      .tokens = 4096,
					      .loss = 2.5 * noise(c, 0.01),
					      .grad_norm = 0.7 * noise(c, 0.05)};
		tell(c, &s);
	}
}

static void tell_metrics(struct cluster *c, uint32_t node)
{
	struct sample s = about(c, SAMPLE_METRICS, node, SAMPLE_NONE);

	for (int m = 0; m < METRIC_COUNT; m++)
		s.metrics[m] = (float)(0.3 * noise(c, 0.02));
	s.metrics[METRIC_GPU_POWER] = (float)(600 * noise(c, 0.02));
	s.metrics[METRIC_GPU_CLOCK] = (float)(1740 * noise(c, 0.005));
	s.metrics[METRIC_NET_SEND] = (float)(9e9 * noise(c, 0.04));
	tell(c, &s);
}

/* Every 10 s. */
static void tell_node(struct cluster *c, uint32_t node)
{
	struct sample s;

	tell_metrics(c, node);
	s = about(c, SAMPLE_LINK, node, PER_NODE);
	s.link.up = true;
	s.link.rate_gbps = 400;
	s.link.sent = s.link.received = c->now_ns * 9;
	tell(c, &s);
	s = about(c, SAMPLE_DISK, node, PER_NODE + 1);
	s.disk.ops = 1000 + rng_below(&c->rng.rng, 1000);
	s.disk.bytes = s.disk.ops << 16;
	s.disk.busy_ns = (uint64_t)(3e5 * (double)s.disk.ops * noise(c, 0.1));
	tell(c, &s);
	if (c->nodes == 1)
		return;
	s = about(c, SAMPLE_PAIR, node, SAMPLE_NONE);
	s.pair.peer = (node + 1 + (uint32_t)rng_below(&c->rng.rng, c->nodes - 1)) % c->nodes;
	s.pair.bytes = 16 * MIB;
	s.pair.ns = (uint64_t)(4e5 * noise(c, 0.06));
	tell(c, &s);
}

/* What a node has noted arrives at the leader. */
static int arrive(struct cluster *c, uint32_t node)
{
	struct sketch_head head = {.node = node, .epoch = 1, .sequence = ++c->sketches};
	struct sketch_reader reader;
	struct sample s;
	struct verdict v;
	enum sketch_got got;
	uint64_t begin;
	int r;

	c->wire.len = 0;
	sketch_write(c->sketch, &head, c->now_ns, &c->wire);
	if (c->wire.bad)
		return -ENOMEM;
	c->wire_bytes += c->wire.len;
	begin = cpu_ns();
	r = sketch_open(c->wire.buf, c->wire.len, 0, c->now_ns, c->now_ns, &reader, NULL);
	while (r == 0 && (got = sketch_next(&reader, &s, &v)) != SKETCH_END)
		if (got == SKETCH_SAMPLE)
			r = detector_feed(c->d, &s);
	c->cpu_ns += cpu_ns() - begin;
	return r;
}

static void join(struct cluster *c)
{
	struct sample s = about(c, SAMPLE_JOB, SAMPLE_NONE, SAMPLE_NONE);

	s.job = 0;
	s.run.begins = true;
	s.run.world = c->nodes * PER_NODE;
	s.run.epoch = 1;
	if (detector_feed(c->d, &s) < 0)
		c->failed = -EINVAL;
	for (uint32_t node = 0; node < c->nodes; node++) {
		for (uint32_t i = 0; i < PER_NODE; i++) {
			s = about_rank(c, SAMPLE_MEMBER, node, i);
			snprintf(s.member.role, sizeof(s.member.role), "stage%u",
				 node * 4 / c->nodes);
			tell(c, &s);
		}
		if (c->leads && c->failed == 0)
			c->failed = arrive(c, node);
	}
}

/* So many seconds pass; the detector is called at least every 100 ms, as ckptd's timer does. */
static void pass(struct cluster *c, unsigned n)
{
	uint64_t begin;

	for (unsigned t = 0; t < n * c->beats && c->failed == 0; t++) {
		c->now_ns += SEC / c->beats;
		c->step++;
		begin = cpu_ns();
		detector_advance(c->d, c->now_ns);
		c->cpu_ns += cpu_ns() - begin;
		for (uint32_t node = 0; node < c->nodes && c->failed == 0; node++) {
			tell_beats(c, node);
			if ((c->step + node) % (10 * c->beats) == 0)
				tell_node(c, node);
			if (c->leads)
				c->failed = arrive(c, node);
		}
	}
}

/* ---- Measuring ---- */

static int begin(struct cluster *c, uint32_t nodes, unsigned beats, struct err *e)
{
	struct detector_events events = {.verdict = on_verdict, .arg = c};
	struct detector_options options;

	*c = (struct cluster){.counter = {.watch = {taken, given}},
			      .nodes = nodes,
			      .beats = beats,
			      .leads = nodes > 1,
			      .now_ns = 1000 * SEC};
	rng_seed(&c->rng, 1);
	detector_options_default(&options);
	if (sketch_new(&c->sketch) < 0)
		return err_code(e, -ENOMEM, "make a sketch");
	alloc_set_watch(&c->counter.watch);
	if (detector_new(&options, NULL, &events, &c->d) < 0) {
		alloc_set_watch(NULL);
		return err_code(e, -ENOMEM, "make a detector");
	}
	c->empty = c->counter.now;
	join(c);
	pass(c, WARM_UP_S);
	return 0;
}

static void end(struct cluster *c)
{
	detector_free(c->d);
	alloc_set_watch(NULL);
	sketch_free(c->sketch);
	writer_free(&c->wire);
}

/* Per cent of a core, in RUNS windows of so many seconds. */
static int windows(struct cluster *c, unsigned window_s, double target, struct series *ret,
		   struct err *e)
{
	for (int i = 0; i < RUNS && c->failed == 0; i++) {
		c->cpu_ns = 0;
		pass(c, window_s);
		series_add(ret, 100 * seconds(c->cpu_ns) / window_s, target);
	}
	if (c->failed)
		return err_code(e, c->failed, "feed the detector with %u nodes", c->nodes);
	if (c->alarms)
		return err_set(e, -EINVAL, "the detector told %u alarms of a healthy job",
			       c->alarms);
	return 0;
}

static void report_as(struct bench *b, const char *name, const char *unit, struct series *s,
		      double target, const char *note)
{
	struct figure f = {.name = name,
			   .unit = unit,
			   .faults = -1,
			   .limit_name = "target",
			   .target_of = TARGET_VALUE,
			   .target = target};

	if (!wanted(b, name))
		return;
	figure_of(&f, s);
	snprintf(f.note, sizeof(f.note), "%s", note);
	report(b, &f);
}

static void one_node(struct bench *b)
{
	static struct cluster c;
	static struct series cpu, memory;
	struct err e = {0};
	char note[NOTE_MAX];
	int r = begin(&c, 1, NODE_BEATS, &e);

	if (r == 0)
		r = windows(&c, NODE_WINDOW_S, NODE_CPU_TARGET, &cpu, &e);
	if (r < 0) {
		cannot(b, "detect.cpu", &e);
	} else {
		snprintf(note, sizeof(note), "%u ranks, %u beats a second each", PER_NODE,
			 NODE_BEATS);
		report_as(b, "detect.cpu", "% of a core", &cpu, NODE_CPU_TARGET, note);
		for (int i = 0; i < RUNS; i++)
			series_add(&memory, (double)c.counter.now / PER_NODE / 1024,
				   NODE_KIB_TARGET);
		snprintf(note, sizeof(note), "an empty detector with ckptd's bounds: %.0f KiB",
			 (double)c.empty / 1024);
		report_as(b, "detect.memory", "KiB", &memory, NODE_KIB_TARGET, note);
	}
	end(&c);
}

static void leader(struct bench *b)
{
	static struct cluster c;
	static struct series cpu, memory;
	struct err e = {0};
	char note[NOTE_MAX];
	int r = begin(&c, LEADER_NODES, 1, &e);

	if (r == 0)
		r = windows(&c, LEADER_WINDOW_S, LEADER_CPU_TARGET, &cpu, &e);
	if (r < 0) {
		cannot(b, "detect.leader", &e);
	} else {
		snprintf(note, sizeof(note), "%u ranks; %.1f bytes a rank and second in sketches",
			 LEADER_NODES * PER_NODE,
			 (double)c.wire_bytes / (double)c.sketches / PER_NODE);
		report_as(b, "detect.leader", "% of a core", &cpu, LEADER_CPU_TARGET, note);
		for (int i = 0; i < RUNS; i++)
			series_add(&memory, (double)c.counter.now / MIB, LEADER_MIB_TARGET);
		snprintf(note, sizeof(note), "%.1f KiB a rank",
			 (double)(c.counter.now - c.empty) / 1024 / PER_NODE / LEADER_NODES);
		report_as(b, "detect.leader.memory", "MiB", &memory, LEADER_MIB_TARGET, note);
	}
	end(&c);
}

void cases_detect(struct bench *b)
{
	if (wanted(b, "detect.cpu") || wanted(b, "detect.memory"))
		one_node(b);
	if (wanted(b, "detect.leader") || wanted(b, "detect.leader.memory"))
		leader(b);
}
