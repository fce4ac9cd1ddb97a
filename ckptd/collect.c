/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collect.c - the collectors of a node: when each source looks, and what of it reaches the sink.
 *
 *   1. The loop never waits for a source: each has a thread (reader.h), is asked again only when it
 *      has answered, and what does not answer is told of once, and again when it does.
 *   2. A source numbers its devices from 0; the numbers that the sink sees are given here, so that
 *      no two devices have the same one.
 *   3. What a process's GPUs do is NVML's to tell, which may hang, the rest is /proc's: each has a
 *      thread, and here the newest of the one is put to each of the other, if it is of late.
 *   4. Measurements of the node (SAMPLE_METRICS) come from several sources: what each has found
 *      since the tick before is told as one sample, with NaN for who did not answer.
 *
 * Failure modes: a source that cannot be had is told of once and tried again; ckptd goes on without
 * it. Everything here is on the loop's thread, but run_*().
 */
#include <config.h>

#include "ckptd/collect.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "ckptd/collect_kmsg.h"
#include "ckptd/collect_process.h"
#include "ckptd/collect_source.h"
#include "ckptd/log.h"
#include "ckptd/reader.h"

#define SECOND   1000000000ull
#define LATE_NS  (30 * SECOND)
#define AGAIN_NS (600 * SECOND) /* until what was not there is looked for again */
#define LEAVE_NS (SECOND / 5)   /* what a stop waits for each source */

static const struct collect_source *const all_sources[] = {
	&collect_disk,
	&collect_memory,
	&collect_net,
	&collect_nvml,
	&collect_pressure,
};
enum { N_SOURCES = sizeof(all_sources) / sizeof(all_sources[0]) };

static const char *const names[COLLECTOR_COUNT] = {
#define X(name, field, text) [name] = #field,
	COLLECTORS_LIST(X)
#undef X
};
static const char *const subjects[COLLECTOR_COUNT] = {
#define X(name, field, text) [name] = text,
	COLLECTORS_LIST(X)
#undef X
};

struct slot;

/* What the thread of a source has; of the loop while that does not run. */
struct run {
	const struct collect_source *source;
	struct collect_config config;
	struct slot *slot; /* for the loop alone */
	void *state;       /* NULL: not open */
	int status;
	struct err err;
	struct collect_out out;
};

struct slot {
	struct real *all;
	const struct collect_source *source;
	struct reader *reader;                 /* NULL: not started, or it cannot be */
	struct run *run;                       /* valid while reader is */
	uint64_t asked_ns;                     /* while it is busy */
	uint64_t again_ns;                     /* not before; what was not there */
	bool late;                             /* which has been said */
	int status;                            /* of the last read */
	char text[ERR_TEXT_MAX];               /* one sentence for status */
	float metrics[METRIC_COUNT];           /* (4) */
	uint32_t numbers[COLLECT_DEVICES_MAX]; /* (2); SAMPLE_NONE: has no name yet */
};

struct real {
	struct collectors collectors;
	struct loop *loop;
	struct log *log;
	struct collect_config config;
	uint64_t late_ns;
	bool on[COLLECTOR_COUNT];
	struct collect_sink sink;
	bool running;
	struct timer tick;
	struct kmsg *kmsg;     /* NULL: off, or it does not run */
	struct prober *prober; /* NULL: it does not run */
	struct gpu_uses uses;  /* (3) */
	uint32_t devices; /* numbers given (2) */
	size_t n_slots;
	struct slot slots[];
};

static struct real *of(struct collectors *c)
{
	return container_of(c, struct real, collectors);
}

/* ---- On the thread of a source ---- */

static void run_read(void *arg)
{
	struct run *u = arg;

	collect_out_reset(&u->out);
	err_clear(&u->err);
	u->status = 0;
	if (!u->state)
		u->status = u->source->open(&u->config, &u->out, &u->state, &u->err);
	if (u->status == 0)
		u->status = u->source->read(u->state, reader_clock_ns(), &u->out, &u->err);
	assert(u->out.n <= COLLECT_SAMPLES_MAX);
}

static void run_free(void *arg)
{
	struct run *u = arg;

	if (u->state)
		u->source->close(u->state);
	collect_out_fini(&u->out);
	alloc_free(u);
}

/* ---- What it has found ---- */

static void take_sample(struct slot *l, struct sample *s)
{
	if (s->device != SAMPLE_NONE) {
		assert(s->device < COLLECT_DEVICES_MAX);
		if (s->kind == SAMPLE_NAME && l->numbers[s->device] == SAMPLE_NONE)
			l->numbers[s->device] = l->all->devices++;
		assert(l->numbers[s->device] != SAMPLE_NONE); /* named first */
		s->device = l->numbers[s->device];
	}
	s->time_ns = loop_now(l->all->loop);
	l->all->sink.sample(l->all->sink.arg, s);
}

/* A sentence that is not the one of the last time is said. */
static void take_status(struct slot *l, const struct run *u)
{
	const char *what = subjects[l->source->id];

	if (u->status == 0 || u->status == -ENOENT) {
		if (u->status == 0 && l->status < 0 && l->status != -ENOENT)
			log_print(l->all->log, LOG_NOTICE, "%s can be read again", what);
		snprintf(l->text, sizeof(l->text), "%s",
			 u->out.state[0] ? u->out.state : "it works");
	} else if (strcmp(l->text, u->err.text) != 0) {
		log_print(l->all->log, LOG_WARNING, "going on without %s: %s", what, u->err.text);
		memcpy(l->text, u->err.text, sizeof(l->text));
	}
	l->status = u->status;
	if (u->status == -ENOENT)
		l->again_ns = loop_now(l->all->loop) + AGAIN_NS;
}

static void ask(struct slot *l)
{
	l->asked_ns = loop_now(l->all->loop);
	l->run->config.probes = l->all->prober && prober_any(l->all->prober);
	if (!l->run->config.probes) /* it says nothing of when somebody asks again */
		l->all->uses.at_ns = 0;
	reader_ask(l->reader);
}

static void came_back(void *arg)
{
	struct run *u = arg;
	struct slot *l = u->slot;

	if (l->late)
		log_print(l->all->log, LOG_NOTICE, "%s: the read that hung is back after %llu s",
			  subjects[l->source->id],
			  (unsigned long long)((loop_now(l->all->loop) - l->asked_ns) / SECOND));
	l->late = false;
	for (size_t i = 0; i < u->out.n_lines; i++)
		log_line(l->all->log, u->out.lines[i].level, u->out.lines[i].text);
	take_status(l, u);
	for (int i = 0; i < METRIC_COUNT; i++)
		if (!isnan(u->out.metrics[i]))
			l->metrics[i] = u->out.metrics[i];
	if (u->out.uses.at_ns)
		l->all->uses = u->out.uses;
	for (size_t i = 0; i < u->out.n; i++)
		take_sample(l, &u->out.samples[i]);
	if (l->source->waits && u->status == 0)
		ask(l);
}

static const struct reader_ops source_ops = {
	.run = run_read,
	.done = came_back,
	.free = run_free,
};

/* ---- Rounds ---- */

static void tell_metrics(struct real *c)
{
	struct sample s = {.kind = SAMPLE_METRICS,
			   .time_ns = loop_now(c->loop),
			   .job = SAMPLE_NONE,
			   .rank = SAMPLE_NONE,
			   .device = SAMPLE_NONE};
	bool any = false;

	for (int m = 0; m < METRIC_COUNT; m++)
		s.metrics[m] = NAN;
	for (size_t i = 0; i < c->n_slots; i++) {
		for (int m = 0; m < METRIC_COUNT; m++) {
			if (isnan(c->slots[i].metrics[m]))
				continue;
			any = true;
			s.metrics[m] = c->slots[i].metrics[m];
			c->slots[i].metrics[m] = NAN;
		}
	}
	if (any)
		c->sink.sample(c->sink.arg, &s);
}

static void look_whether_late(struct slot *l)
{
	uint64_t ns = loop_now(l->all->loop) - l->asked_ns;

	if (l->late || ns < l->all->late_ns)
		return;
	l->late = true;
	snprintf(l->text, sizeof(l->text), "its read hangs: driver or hardware do not answer");
	log_print(l->all->log, LOG_WARNING,
		  "%s: a read has not come back for %llu s; driver or hardware may hang (dmesg); "
		  "nothing else waits for it",
		  subjects[l->source->id], (unsigned long long)(ns / SECOND));
}

static void tick_fire(struct timer *t)
{
	struct real *c = container_of(t, struct real, tick);
	uint64_t now = loop_now(c->loop);

	loop_label(c->loop, "the collectors' time");
	tell_metrics(c);
	if (c->kmsg)
		kmsg_try_again(c->kmsg);
	for (size_t i = 0; i < c->n_slots; i++) {
		struct slot *l = &c->slots[i];

		if (!l->reader)
			continue;
		if (reader_busy(l->reader))
			look_whether_late(l); /* (1) */
		else if (now >= l->again_ns)
			ask(l);
	}
	timer_arm(c->loop, t, now + c->config.interval_ns);
}

/* ---- The table ---- */

static struct run *run_new(struct slot *l)
{
	struct run *u = alloc_zero(sizeof(*u));

	if (!u)
		return NULL;
	u->source = l->source;
	u->config = l->all->config;
	u->slot = l;
	if (collect_out_init(&u->out) == 0)
		return u;
	alloc_free(u);
	return NULL;
}

static void slot_start(struct slot *l)
{
	char name[16];
	int r = -ENOMEM;

	for (int m = 0; m < METRIC_COUNT; m++)
		l->metrics[m] = NAN;
	memset(l->numbers, 0xff, sizeof(l->numbers));
	l->again_ns = 0;
	l->late = false;
	l->status = 0;
	snprintf(name, sizeof(name), "ckpt-%s", names[l->source->id]);
	l->run = run_new(l);
	if (l->run)
		r = reader_new(l->all->loop, name, &source_ops, l->run, &l->reader);
	if (r == 0) {
		ask(l);
		return;
	}
	l->reader = NULL;
	l->status = r;
	snprintf(l->text, sizeof(l->text), "could not start its thread: %s", err_text(r));
	log_print(l->all->log, LOG_WARNING, "going on without %s: %s", subjects[l->source->id],
		  l->text);
}

/* (3) */
static void on_activity(void *arg, const struct process_id *p, const struct sample_activity *a)
{
	struct real *c = arg;
	struct sample_activity all = *a;

	all.gpu_permille = gpu_uses_of(&c->uses, p->pid, loop_now(c->loop));
	c->sink.activity(c->sink.arg, p, &all);
}

static void start(struct collectors *cs, const struct collect_sink *sink)
{
	struct real *c = of(cs);

	assert(loop_is_current(c->loop) && !c->running);
	assert(sink->sample && sink->activity);
	c->sink = *sink;
	c->running = true;
	c->uses = (struct gpu_uses){.at_ns = 0};
	/* Pids are of our own namespace, so it is our own /proc, whatever detect.root is. */
	if (prober_new(c->loop, "/proc", on_activity, c, &c->prober) != 0) {
		log_print(c->log, LOG_WARNING, "going on without a look at processes: %s",
			  err_text(-ENOMEM));
		c->prober = NULL;
	}
	if (c->on[COLLECT_KERNEL] &&
	    kmsg_new(c->loop, c->log, &c->config, sink->sample, sink->arg, &c->kmsg) != 0)
		log_print(c->log, LOG_WARNING, "going on without kernel messages: %s",
			  err_text(-ENOMEM));
	for (size_t i = 0; i < c->n_slots; i++)
		slot_start(&c->slots[i]);
	timer_arm(c->loop, &c->tick, loop_now(c->loop) + c->config.interval_ns);
}

static void stop(struct collectors *cs)
{
	struct real *c = of(cs);

	assert(loop_is_current(c->loop));
	if (!c->running)
		return;
	c->running = false;
	timer_disarm(c->loop, &c->tick);
	kmsg_free(c->kmsg);
	c->kmsg = NULL;
	prober_free(c->prober);
	c->prober = NULL;
	for (size_t i = 0; i < c->n_slots; i++) {
		struct slot *l = &c->slots[i];

		if (!reader_free(l->reader, LEAVE_NS))
			log_print(c->log, LOG_WARNING, "%s: stopped while a read of it hangs",
				  subjects[l->source->id]);
		l->reader = NULL;
	}
}

static void probe(struct collectors *cs, const struct process_id *id, bool on)
{
	if (of(cs)->prober)
		prober_set(of(cs)->prober, id, on);
}

static void describe(struct collectors *cs, collector_line_fn *line, void *arg)
{
	struct real *c = of(cs);
	char text[ERR_TEXT_MAX];

	if (c->kmsg)
		line(arg, names[COLLECT_KERNEL], kmsg_state(c->kmsg, text), text);
	for (size_t i = 0; i < c->n_slots; i++) {
		struct slot *l = &c->slots[i];

		line(arg, names[l->source->id], l->reader && l->status == 0 && !l->late, l->text);
	}
}

static const struct collectors_ops real_ops = {
	.start = start,
	.stop = stop,
	.probe = probe,
	.describe = describe,
};

int collectors_new_from(struct loop *loop, const struct collect_options *o,
			const struct collect_source *const *sources, size_t n,
			struct collectors **ret, struct err *e)
{
	struct real *c = alloc_zero(sizeof(*c) + n * sizeof(c->slots[0]));

	assert(o->interval_ns > 0 && n <= COLLECTOR_COUNT);
	if (!c)
		return err_code(e, -ENOMEM, "make the collectors");
	c->collectors.ops = &real_ops;
	c->loop = loop;
	c->log = o->log;
	c->late_ns = o->late_ns ? o->late_ns : max_u64(LATE_NS, 2 * o->interval_ns);
	c->config.interval_ns = o->interval_ns;
	snprintf(c->config.root, sizeof(c->config.root), "%s", o->root);
	snprintf(c->config.kmsg, sizeof(c->config.kmsg), "%s", o->kmsg);
	snprintf(c->config.data, sizeof(c->config.data), "%s", o->data);
	memcpy(c->on, o->on, sizeof(c->on));
	timer_init(&c->tick, tick_fire);
	for (size_t i = 0; i < n; i++) {
		if (!o->on[sources[i]->id])
			continue;
		c->slots[c->n_slots].all = c;
		c->slots[c->n_slots++].source = sources[i];
	}
	*ret = &c->collectors;
	return 0;
}

int collectors_new(struct loop *loop, const struct collect_options *o, struct collectors **ret,
		   struct err *e)
{
	return collectors_new_from(loop, o, all_sources, N_SOURCES, ret, e);
}

void collectors_free(struct collectors *c)
{
	if (!c)
		return;
	stop(c);
	alloc_free(of(c));
}
