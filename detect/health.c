/* SPDX-License-Identifier: Apache-2.0 */
/*
 * health.c - what a node and its disks say of themselves: errors of disks and memory, pressure, the
 * kernel's bad news, a node check that failed.
 *
 * Counters count within a window; what is old is forgiven. What a process met (the kernel took its
 * memory, it hung in the kernel) is a note: that it ended or stands still is told by its own rule.
 * Bad news for which no counter could tell that it is over stands for a hold-down.
 *
 * Invariant: all that is raised here ends by itself, but for a failed check, which stands until the
 * same check passes or a person says that the node is well.
 */
#include <config.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "detect/kernel_line.h"
#include "detect/rules.h"
#include "detect/tally.h"

#define NEWS_MAX 12 /* of one node; the one that ends first makes room */

struct mine_disk {
	struct counter errors;
	struct tally recent;
	uint64_t said_ns; /* the last error that was told; 0: none stands */
};

/* Bad news of the kernel, by kind and subject: they stand until then. */
struct news {
	uint64_t until_ns; /* 0: free */
	enum kernel_line_kind kind;
	struct subject subject;
	uint32_t times;
	enum verdict_level level; /* the loudest, and what it advises */
	enum verdict_action advice;
};

struct mine_node {
	struct counter corrected, uncorrected;
	struct tally recent;
	uint64_t memory_until_ns; /* memory-errors stands; 0: it does not */
	bool memory_alarm;        /* ... as an alarm, */
	bool memory_uncorrected;  /* ... for what could not be corrected */
	uint64_t pressed_ns;      /* memory pressure is high since then; 0: it is not */
	bool said_pressure;
	uint64_t pressure_ns; /* was last measured */
	struct news news[NEWS_MAX];
};

static uint64_t after(const struct detector *d, double s)
{
	return d->now_ns + (uint64_t)(s * NS_PER_SEC);
}

static uint64_t window_of(const struct detector *d)
{
	return (uint64_t)(d->options.error_window_s * NS_PER_SEC);
}

/* ---- disks ---- */

static void disk_errors(struct detector *d, struct device *x, uint64_t more)
{
	struct mine_disk *m = DEVICE_OWN(d, x, health, struct mine_disk);
	uint64_t n = tally_add(&m->recent, more, d->now_ns, window_of(d));
	struct subject s = subject_disk(x->node, x->number);
	bool alarm = n >= d->options.disk_errors;
	struct verdict v;

	if (!n) {
		if (m->said_ns)
			acquit(d, &s, CAUSE_DISK_ERRORS, "it had no more errors for a long time");
		m->said_ns = 0;
	}
	if (!more)
		return;
	v = verdict_of(s, CLASS_FAILING, CAUSE_DISK_ERRORS, alarm ? LEVEL_ALARM : LEVEL_NOTE,
		       alarm ? ACTION_MIGRATE : ACTION_RECORD);
	v.since_ns = m->said_ns;
	v.confidence = 0.95;
	verdict_evidence(&v, "errors", (double)n, d->options.disk_errors, "", d->now_ns);
	verdict_say(d, &v, "has had %llu errors lately%s", (unsigned long long)n,
		    alarm ? ": move what it holds elsewhere and replace it." : ".");
	m->said_ns = m->said_ns ? m->said_ns : d->now_ns;
	accuse(d, &v);
}

/* ---- memory ---- */

static void memory_errors(struct detector *d, struct node *n, uint64_t corrected,
			  uint64_t uncorrected)
{
	struct mine_node *m = NODE_OWN(d, n, health, struct mine_node);
	uint64_t recent = tally_add(&m->recent, corrected, d->now_ns, window_of(d));
	bool alarm = uncorrected || recent >= d->options.memory_errors ||
		     (m->memory_until_ns && m->memory_alarm);
	struct verdict v;

	if (!uncorrected && (!corrected || recent * 10 < d->options.memory_errors))
		return;
	if (!uncorrected && m->memory_until_ns && m->memory_uncorrected)
		return; /* milder than what stands */
	v = verdict_of(subject_node(n->number), uncorrected ? CLASS_CORRUPTING : CLASS_FAILING,
		       CAUSE_MEMORY_ERRORS, alarm ? LEVEL_ALARM : LEVEL_NOTE,
		       alarm ? ACTION_DRAIN : ACTION_RECORD);
	verdict_evidence(&v, "uncorrected errors", (double)uncorrected, 0, "", d->now_ns);
	verdict_evidence(&v, "corrected errors lately", (double)recent, d->options.memory_errors,
			 "", d->now_ns);
	if (uncorrected)
		verdict_say(
			d, &v,
			"has met a memory error that could not be corrected: trust nothing that "
			"it held, let nothing new onto it, and replace the module.");
	else
		verdict_say(d, &v, "has corrected %llu memory errors lately%s",
			    (unsigned long long)recent,
			    alarm ? ": let nothing new onto it and replace the module." : ".");
	m->memory_alarm = alarm;
	m->memory_uncorrected = uncorrected > 0;
	m->memory_until_ns = after(d, d->options.news_stand_s);
	accuse(d, &v);
}

static void on_memory(struct detector *d, const struct sample *s, struct node *n)
{
	struct mine_node *m = NODE_OWN(d, n, health, struct mine_node);
	bool first = !m->corrected.known;
	uint64_t corrected = counter_rise(&m->corrected, s->memory.corrected);
	uint64_t uncorrected = counter_rise(&m->uncorrected, s->memory.uncorrected);

	if (!first)
		memory_errors(d, n, corrected, uncorrected);
}

/* ---- pressure ---- */

static void tell_pressure(struct detector *d, struct node *n, double share)
{
	struct mine_node *m = NODE_OWN(d, n, health, struct mine_node);
	struct verdict v = verdict_of(subject_node(n->number), CLASS_FAILING, CAUSE_PRESSURE,
				      LEVEL_ALARM, ACTION_CHECKPOINT);

	v.since_ns = m->pressed_ns;
	v.confidence = 0.8;
	verdict_evidence(&v, "share of time waiting for memory", share, d->options.pressure, "",
			 m->pressed_ns);
	verdict_say(
		d, &v,
		"waits for memory %.0f %% of the time: processes may soon be killed for want of "
		"it; take a checkpoint and look who uses it.",
		share * 100);
	m->said_pressure = true;
	accuse(d, &v);
}

static void on_metrics(struct detector *d, const struct sample *s, struct node *n)
{
	struct mine_node *m = NODE_OWN(d, n, health, struct mine_node);
	double share = s->metrics[METRIC_PSI_MEMORY];
	struct subject node = subject_node(n->number);

	if (isnan(share))
		return;
	m->pressure_ns = d->now_ns;
	if (share < d->options.pressure / 2) {
		m->pressed_ns = 0;
		if (m->said_pressure)
			acquit(d, &node, CAUSE_PRESSURE, "it has enough memory again");
		m->said_pressure = false;
	} else if (share >= d->options.pressure) {
		if (!m->pressed_ns)
			m->pressed_ns = d->now_ns;
		if ((double)detector_age(d, m->pressed_ns) >= d->options.pressure_s * NS_PER_SEC)
			tell_pressure(d, n, share);
	}
}

/* ---- the kernel ---- */

static struct device *disk_named(const struct node *n, const char *name)
{
	struct device *x = n->devices;

	while (x && (x->role != 'd' || strcmp(x->name, name) != 0))
		x = x->next;
	return x;
}

/* One sentence per kind; NULL: it is not told. */
static const char *news_words(const struct kernel_line *l, enum verdict_level *ret_level,
			      enum verdict_action *ret_advice)
{
	*ret_level = LEVEL_NOTE;
	*ret_advice = ACTION_RECORD;
	switch ((unsigned)l->kind) {
	case KERNEL_OUT_OF_MEMORY:
		return "ran out of memory, and its kernel killed";
	case KERNEL_HUNG_TASK:
		return "has a task that hangs in the kernel:";
	case KERNEL_MACHINE_CHECK:
		if (l->corrected)
			return "has corrected a machine check";
		*ret_level = LEVEL_ALARM;
		*ret_advice = ACTION_DRAIN;
		return "has met a machine check that could not be corrected; let nothing new onto "
		       "it";
	case KERNEL_PCIE_ERROR:
		if (l->corrected)
			return NULL; /* counted */
		*ret_level = LEVEL_ALARM;
		*ret_advice = ACTION_VALIDATE;
		return "has a PCIe error that could not be corrected; check the node: device";
	case KERNEL_NVME:
	case KERNEL_FILE_SYSTEM:
		/* What lies in a file is not the node's; whoever mounted it will see. */
		if (l->severity == SEVERITY_FATAL && strncmp(l->device, "loop", 4) != 0) {
			*ret_level = LEVEL_ALARM;
			*ret_advice = ACTION_MIGRATE;
		}
		return l->kind == KERNEL_NVME ? "has trouble with an NVMe controller:"
					      : "has a file system with errors: on";
	default:
		return NULL;
	}
}

static void news_over(struct detector *d, struct news *news, const char *why)
{
	verdicts_clear_code(&d->verdicts, &news->subject, CAUSE_KERNEL, news->kind, 0, why,
			    d->now_ns);
	news->until_ns = 0;
}

static struct news *news_of(struct detector *d, struct mine_node *m, enum kernel_line_kind kind,
			    const struct subject *s)
{
	struct news *first = &m->news[0];

	for (uint32_t i = 0; i < NEWS_MAX; i++) {
		struct news *news = &m->news[i];

		if (news->until_ns && news->kind == kind && subject_same(&news->subject, s))
			return news;
		if (news->until_ns < first->until_ns)
			first = news;
	}
	if (first->until_ns)
		news_over(d, first, "newer ones of its node took its place");
	*first = (struct news){.kind = kind, .subject = *s};
	return first;
}

static void tell_news(struct detector *d, struct node *n, const struct kernel_line *l)
{
	struct mine_node *m = NODE_OWN(d, n, health, struct mine_node);
	struct news *news;
	enum verdict_level level;
	enum verdict_action advice;
	const char *words = news_words(l, &level, &advice);
	struct device *disk = disk_named(n, l->device);
	struct subject s = disk ? subject_disk(n->number, disk->number) : subject_node(n->number);
	struct verdict v;

	if (!words)
		return;
	news = news_of(d, m, l->kind, &s);
	if (news->until_ns && level < news->level)
		return; /* milder than what stands: it is told when that is over */
	news->level = level;
	news->advice = advice;
	v = verdict_of(s, CLASS_FAILING, CAUSE_KERNEL, news->level, news->advice);
	v.code = l->kind;
	v.confidence = 0.9;
	news->times = news->until_ns ? news->times + 1 : 1;
	news->until_ns = after(d, d->options.news_stand_s);
	verdict_evidence(&v, kernel_line_word(l->kind), news->times, 0, "", d->now_ns);
	verdict_say(d, &v, "%s %s%s.", words,
		    l->process[0]  ? l->process
		    : l->device[0] ? l->device
				   : "",
		    l->process[0] && l->pid ? " (see the kernel's log)" : "");
	accuse(d, &v);
}

static void on_kernel(struct detector *d, const struct sample *s, struct node *n)
{
	struct kernel_line l;
	struct device *disk;

	kernel_line_parse(s->kernel.facility, s->kernel.level, s->kernel.text,
			  sizeof(s->kernel.text), &l);
	switch ((unsigned)l.kind) {
	case KERNEL_DISK_ERROR:
		disk = disk_named(n, l.device);
		if (disk)
			disk_errors(d, disk, 1);
		break;
	case KERNEL_MEMORY_ERROR: /* corrected ones are counted by SAMPLE_MEMORY */
		if (!l.corrected)
			memory_errors(d, n, 0, l.count ? l.count : 1);
		break;
	default:
		tell_news(d, n, &l);
		break;
	}
}

/* ---- node checks ---- */

/* Which check: it tells verdicts of different ones apart. */
static uint32_t code_of(const char *what)
{
	uint32_t hash = 2166136261u;

	for (; *what; what++)
		hash = (hash ^ (unsigned char)*what) * 16777619u;
	return hash;
}

/* Of what the fleet has only the end that counts is known: too little of a rate, too much of a
 * time. */
static void say_check(const struct detector *d, const struct sample *s, struct verdict *v)
{
	bool low = isfinite(s->check.low), high = isfinite(s->check.high);
	char others[80] = "";

	if (low && high)
		snprintf(others, sizeof(others), ": %.4g, others have %.4g to %.4g", s->check.value,
			 s->check.low, s->check.high);
	else if (low || high)
		snprintf(others, sizeof(others), ": %.4g, others have at %s %.4g", s->check.value,
			 low ? "least" : "most", low ? s->check.low : s->check.high);
	if (low || high)
		verdict_evidence(v, s->check.what, s->check.value,
				 low && !(s->check.value >= s->check.low) ? s->check.low
									  : s->check.high,
				 "", d->now_ns);
	verdict_say(d, v,
		    "fails the check %s%s; let nothing new onto it; 'ckptctl node-check' says "
		    "what is wrong.",
		    s->check.what, others);
}

static void on_check(struct detector *d, const struct sample *s, struct node *n)
{
	struct subject node = subject_node(n->number);
	struct verdict v =
		verdict_of(node, CLASS_FAILING, CAUSE_CHECK_FAILED, LEVEL_ALARM, ACTION_DRAIN);

	v.code = code_of(s->check.what);
	if (s->check.passed) {
		verdicts_clear_code(&d->verdicts, &node, CAUSE_CHECK_FAILED, v.code, 0,
				    "the same check passes now", d->now_ns);
		return;
	}
	v.confidence = 0.95;
	say_check(d, s, &v);
	accuse(d, &v);
}

/* ---- all of it ---- */

static void on_sample(struct detector *d, const struct sample *s, const struct who *w)
{
	switch ((unsigned)s->kind) {
	case SAMPLE_DISK:
		disk_errors(
			d, w->device,
			counter_rise(&DEVICE_OWN(d, w->device, health, struct mine_disk)->errors,
				     s->disk.errors));
		break;
	case SAMPLE_MEMORY:
		on_memory(d, s, w->node);
		break;
	case SAMPLE_METRICS:
		on_metrics(d, s, w->node);
		break;
	case SAMPLE_KERNEL:
		on_kernel(d, s, w->node);
		break;
	default:
		on_check(d, s, w->node);
		break;
	}
}

static void expire(struct detector *d, struct node *n, struct mine_node *m)
{
	struct subject node = subject_node(n->number);

	if (m->memory_until_ns && d->now_ns >= m->memory_until_ns) {
		m->memory_until_ns = 0;
		acquit(d, &node, CAUSE_MEMORY_ERRORS, "it had no more of them for a long time");
	}
	for (uint32_t k = 0; k < NEWS_MAX; k++)
		if (m->news[k].until_ns && d->now_ns >= m->news[k].until_ns)
			news_over(d, &m->news[k], "it did not happen again for a long time");
	if (m->said_pressure &&
	    detector_age(d, m->pressure_ns) >= d->options.news_stand_s * NS_PER_SEC) {
		m->said_pressure = false;
		m->pressed_ns = 0;
		acquit(d, &node, CAUSE_PRESSURE, "nobody has measured it for a long time");
	}
	/* A disk whose errors only the kernel tells of, or that is gone. */
	for (struct device *x = n->devices; x; x = x->next)
		if (DEVICE_OWN(d, x, health, struct mine_disk)->said_ns)
			disk_errors(d, x, 0);
}

static void on_tick(struct detector *d)
{
	for (uint32_t i = 0; i < d->nodes_end; i++)
		if (d->nodes[i])
			expire(d, d->nodes[i],
			       NODE_OWN(d, d->nodes[i], health, struct mine_node));
}

static void on_well(struct detector *d, const struct subject *s)
{
	struct node *n = known_node(d, s->node);
	struct mine_node *m = n ? NODE_OWN(d, n, health, struct mine_node) : NULL;

	if (!m || s->kind == SUBJECT_RANK)
		return;
	for (struct device *x = n->devices; x; x = x->next) {
		struct mine_disk *disk = DEVICE_OWN(d, x, health, struct mine_disk);

		if (s->kind == SUBJECT_NODE || (s->kind == SUBJECT_DISK && x->number == s->device))
			*disk = (struct mine_disk){.errors = disk->errors};
	}
	for (uint32_t k = 0; k < NEWS_MAX; k++)
		if (m->news[k].until_ns && subject_contains(s, &m->news[k].subject))
			m->news[k].until_ns = 0;
	if (s->kind == SUBJECT_NODE) /* what was counted before is no news */
		*m = (struct mine_node){.corrected = m->corrected, .uncorrected = m->uncorrected};
}

const struct rule rule_health = {
	.name = "health",
	.kinds = 1u << SAMPLE_DISK | 1u << SAMPLE_MEMORY | 1u << SAMPLE_METRICS |
		 1u << SAMPLE_KERNEL | 1u << SAMPLE_CHECK,
	.node_bytes = sizeof(struct mine_node),
	.device_bytes = sizeof(struct mine_disk),
	.tick_ns = 60 * NS_PER_SEC,
	.sample = on_sample,
	.tick = on_tick,
	.well = on_well,
};
