/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "detect/course.h"

#include <assert.h>
#include <math.h>

static double z_in(const struct window *w, double x)
{
	double median = window_median(w);

	return robust_z(x, median, window_mad(w), fmax(1e-9, COURSE_FLOOR * fabs(median)));
}

double course_level(const struct course *c)
{
	return c->values.n ? window_median(&c->values) : 0;
}

double course_drift_from(const struct course *c)
{
	return c->blocks.n ? window_median(&c->blocks) : 0;
}

bool course_is_odd(const struct course *c)
{
	return c->odd & 1;
}

/* By how much of the median it is above it; 0: not odd. */
static double above(struct course *c, double x, const struct course_options *o)
{
	double median, times;

	c->z = 0;
	if (c->values.n < COURSE_LEAST)
		return 0;
	median = window_median(&c->values);
	c->z = z_in(&c->values, x);
	times = (x - median) / fmax(fabs(median), 1e-9);
	return c->z > COURSE_JUMP_Z && times >= o->odd_x - 1 ? times : 0;
}

static void block_done(struct course *c, uint64_t now_ns, const struct course_options *o)
{
	double before = c->cusum;

	c->block = c->block_sum / c->block_n;
	c->block_sum = 0;
	c->block_n = 0;
	if (c->blocks.n >= COURSE_BLOCKS)
		c->cusum = fmax(0, c->cusum + fmin(z_in(&c->blocks, c->block), COURSE_DRIFT_Z) -
					   o->cusum_k);
	if (!(c->cusum > 0)) {
		c->drifts = false;
		c->drift_row = 0;
	} else if (before <= 0) {
		c->drift_ns = now_ns;
	}
	if (c->cusum > o->cusum_h)
		c->drifts = true;
	/* It only has to come down as far as it could have come up. */
	c->cusum = fmin(c->cusum, 2 * o->cusum_h);
	if (c->cusum <= o->cusum_h / 2) {
		window_add(&c->blocks, (float)c->block);
	} else if (++c->drift_row >= COURSE_ANEW) {
		window_init(&c->blocks, WINDOW_MAX);
		c->cusum = 0;
		c->drift_row = 0;
		c->drifts = false;
	}
}

void course_add(struct course *c, double x, uint64_t now_ns, const struct course_options *o)
{
	double times;
	bool is_odd;

	assert(isfinite(x));
	if (!c->values.size) {
		window_init(&c->values, WINDOW_MAX);
		window_init(&c->blocks, WINDOW_MAX);
	}
	c->value = x;
	if (++c->seen <= COURSE_WARM_UP)
		return;
	times = above(c, x, o);
	is_odd = times > 0;
	if (is_odd && !c->odd)
		c->odd_ns = now_ns;
	c->odd = c->odd << 1 | is_odd;
	c->wild = c->wild << 1 | (is_odd && times >= o->jump_x - 1);
	if (__builtin_popcount(c->wild & 0xff) >= COURSE_WILD_LASTS ||
	    __builtin_popcount(c->odd) >= COURSE_ODD_LASTS)
		c->jumped = true;
	else if (!c->odd)
		c->jumped = false;
	c->odd_row = is_odd ? c->odd_row + 1 : 0;
	if (c->odd_row >= COURSE_ANEW * 4) {
		window_init(&c->values, WINDOW_MAX); /* this is what it is now */
		window_init(&c->blocks, WINDOW_MAX);
		c->cusum = 0;
		c->drifts = false;
		c->odd = c->wild = 0;
		c->odd_row = 0;
		c->jumped = false;
	} else if (!is_odd) {
		window_add(&c->values, (float)x);
	}
	if (is_odd)
		return;
	c->block_sum += x;
	if (++c->block_n == COURSE_BLOCK)
		block_done(c, now_ns, o);
}
