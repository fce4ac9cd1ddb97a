/* SPDX-License-Identifier: Apache-2.0 */
/*
 * detector.c - where samples meet the rules, and who is known.
 */
#include <config.h>

#include "detect/detector.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "detect/options.h"
#include "detect/verdicts.h"

struct detector {
	struct detector_options options;
	const struct xid_policy *xid;
	struct verdicts verdicts;
	uint64_t now_ns;
};

void detector_options_default(struct detector_options *o)
{
	*o = (struct detector_options){.ranks_max = 16384, .nodes_max = 4096};
}

int detector_new(const struct detector_options *options, const struct xid_policy *xid,
		 const struct detector_events *events, struct detector **ret)
{
	struct detector *d = alloc_zero(sizeof(*d));

	if (!d)
		return -ENOMEM;
	d->options = *options;
	d->xid = xid;
	if (verdicts_init(&d->verdicts, events) < 0) {
		alloc_free(d);
		return -ENOMEM;
	}
	*ret = d;
	return 0;
}

void detector_free(struct detector *d)
{
	if (!d)
		return;
	verdicts_fini(&d->verdicts);
	alloc_free(d);
}

int detector_feed(struct detector *d, const struct sample *s)
{
	if (s->time_ns < d->now_ns || (unsigned)s->kind >= SAMPLE_KIND_COUNT)
		return -EINVAL;
	d->now_ns = s->time_ns;
	return 0;
}

void detector_advance(struct detector *d, uint64_t now_ns)
{
	assert(now_ns >= d->now_ns);
	d->now_ns = now_ns;
}

uint64_t detector_next(const struct detector *d)
{
	(void)d;
	return UINT64_MAX;
}

size_t detector_standing(const struct detector *d, const struct subject *s, struct verdict *ret,
			 size_t n)
{
	size_t found = 0;

	for (size_t i = d->verdicts.n; i-- > 0;) {
		if (s && !subject_contains(s, &d->verdicts.standing[i].subject))
			continue;
		if (found < n)
			ret[found] = d->verdicts.standing[i];
		found++;
	}
	return found;
}

size_t detector_clear(struct detector *d, const struct subject *s, uint64_t now_ns)
{
	return verdicts_clear_all(&d->verdicts, s, "somebody said that it is well again", now_ns);
}
