/* SPDX-License-Identifier: Apache-2.0 */
/* test_fixture.h - what tests of the detector share: verdicts that are kept, samples, and noise. */
#ifndef DETECT_TEST_FIXTURE_H
#define DETECT_TEST_FIXTURE_H

#include "base/rng.h"
#include "detect/detector.h"
#include "detect/options.h"
#include "detect/test_advice.h"
#include "tests/lib/test.h"

/* What was said, so far. */
struct told {
	unsigned n, raised, alarms, notes, cleared; /* alarms and notes: raised or changed */
	unsigned dropped;                           /* for want of room */
	struct verdict last, alarm;                 /* alarm: the last one */
};

static inline void told_verdict(void *arg, const struct verdict *v)
{
	struct told *t = arg;

	advises_as_usual(v);
	t->n++;
	t->last = *v;
	t->raised += v->state == VERDICT_RAISED;
	if (v->state == VERDICT_CLEARED) {
		t->cleared++;
	} else if (v->level == LEVEL_ALARM) {
		t->alarms++;
		t->alarm = *v;
	} else {
		t->notes++;
	}
}

/* One that tells t. options, xid: NULL: the default, and none. */
static inline struct detector *told_detector(struct told *t, const struct detector_options *options,
					     const struct xid_policy *xid)
{
	struct detector_events events = {.verdict = told_verdict, .arg = t};
	struct detector_options o;
	struct detector *d;

	detector_options_default(&o);
	assert_int_equal(detector_new(options ? options : &o, xid, &events, &d), 0);
	return d;
}

static inline void feed(struct detector *d, const struct sample *s)
{
	assert_int_equal(detector_feed(d, s), 0);
}

/* device is nobody's yet. */
static inline struct sample sample_of(enum sample_kind kind, uint64_t time_ns, uint32_t node,
				      uint32_t job, uint32_t rank)
{
	return (struct sample){.kind = kind,
			       .time_ns = time_ns,
			       .node = node,
			       .job = job,
			       .rank = rank,
			       .device = SAMPLE_NONE};
}

/* In [0, 1). */
static inline double uniform(struct rng_seeded *g)
{
	return (double)(rng_u64(&g->rng) >> 11) / (double)(1ull << 53);
}

/* Of the normal law, by the sum of twelve. */
static inline double normal(struct rng_seeded *g)
{
	double sum = -6;

	for (int i = 0; i < 12; i++)
		sum += uniform(g);
	return sum;
}

#endif
