/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_memory.c - memory errors that a GPU's driver has counted (NVML), where no Xid tells of them.
 *
 * Xids 48, 63, 64, 94, 95, 140, 171 and 172 are the driver's own word on such errors, and judged by
 * their table; the counters speak where its messages cannot be read, or before them. So all that is
 * said here is a note. Counters that fall back (a driver that was loaded anew) only begin again.
 */
#include <config.h>

#include <stdio.h>

#include "detect/rules.h"

#define CORRECTED_MANY 100 /* between two looks: lm-resiliency's threshold of a warning */
#define STANDS_NS      (86400 * NS_PER_SEC)

struct mine {
	struct list standing; /* in struct mine_all; empty: nothing stands */
	uint32_t node, number;
	uint64_t last_ns; /* 0: nothing is known */
	uint64_t news_ns;
	uint64_t corrected, uncorrected;
};

struct mine_all {
	struct list standing;
};

static int start(struct detector *d)
{
	list_init(&DETECTOR_OWN(d, gpu_memory, struct mine_all)->standing);
	return 0;
}

static bool told_by_xid(const struct detector *d, const struct subject *gpu)
{
	static const uint32_t codes[] = {48, 63, 64, 94, 95, 140, 171, 172};

	for (size_t i = 0; i < d->verdicts.n; i++) {
		const struct verdict *v = &d->verdicts.standing[i];

		if (v->cause != CAUSE_XID || !subject_same(&v->subject, gpu))
			continue;
		for (size_t k = 0; k < sizeof(codes) / sizeof(codes[0]); k++)
			if (v->code == codes[k])
				return true;
	}
	return false;
}

static void note(struct detector *d, struct mine *m, uint64_t corrected, uint64_t uncorrected)
{
	struct subject gpu = subject_gpu(m->node, m->number);
	struct verdict v =
		verdict_of(gpu, uncorrected ? CLASS_CORRUPTING : CLASS_FAILING, CAUSE_MEMORY_ERRORS,
			   LEVEL_NOTE, uncorrected ? ACTION_VALIDATE : ACTION_RECORD);

	if (uncorrected) {
		verdict_evidence(&v, "new uncorrected memory errors", (double)uncorrected, 1, "",
				 m->last_ns);
		verdict_say(d, &v,
			    "has counted %llu more memory errors that could not be corrected, and "
			    "no Xid tells of them: run the node check.",
			    (unsigned long long)uncorrected);
	} else {
		verdict_evidence(&v, "new corrected memory errors", (double)corrected,
				 CORRECTED_MANY, "", m->last_ns);
		verdict_say(
			d, &v,
			"has corrected %llu memory errors in %.0f s: nothing need be done now, it "
			"is kept on record.",
			(unsigned long long)corrected,
			(double)(d->now_ns - m->last_ns) / NS_PER_SEC);
	}
	m->news_ns = d->now_ns;
	if (list_empty(&m->standing))
		list_add_tail(&DETECTOR_OWN(d, gpu_memory, struct mine_all)->standing,
			      &m->standing);
	accuse(d, &v);
}

static uint64_t grown(uint64_t before, uint64_t now)
{
	return now > before ? now - before : 0;
}

static void on_sample(struct detector *d, const struct sample *s, const struct who *w)
{
	struct subject gpu;
	struct mine *m;

	if (!w->device)
		return;
	m = DEVICE_OWN(d, w->device, gpu_memory, struct mine);
	gpu = subject_gpu(w->device->node, w->device->number);
	if (!m->last_ns) {
		list_init(&m->standing);
		m->node = w->device->node;
		m->number = w->device->number;
	} else {
		uint64_t corrected = grown(m->corrected, s->nvml.corrected);
		uint64_t uncorrected = grown(m->uncorrected, s->nvml.uncorrected);

		if ((uncorrected || corrected >= CORRECTED_MANY) && !told_by_xid(d, &gpu))
			note(d, m, corrected, uncorrected);
	}
	m->last_ns = d->now_ns ? d->now_ns : 1;
	m->corrected = s->nvml.corrected;
	m->uncorrected = s->nvml.uncorrected;
}

static void on_tick(struct detector *d)
{
	struct mine_all *all = DETECTOR_OWN(d, gpu_memory, struct mine_all);
	struct mine *m, *next;

	list_each_safe(m, next, &all->standing, standing) {
		struct subject gpu = subject_gpu(m->node, m->number);

		if (d->now_ns - m->news_ns < STANDS_NS)
			continue;
		acquit(d, &gpu, CAUSE_MEMORY_ERRORS, "no more were counted for a day");
		list_del(&m->standing);
	}
}

const struct rule rule_gpu_memory = {
	.name = "gpu_memory",
	.kinds = 1u << SAMPLE_NVML,
	.device_bytes = sizeof(struct mine),
	.detector_bytes = sizeof(struct mine_all),
	.tick_ns = 60 * NS_PER_SEC,
	.start = start,
	.sample = on_sample,
	.tick = on_tick,
};
