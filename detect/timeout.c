/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "detect/timeout.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define PER_OCTAVE 8

static uint32_t bucket_of(double s)
{
	double at = log2(s * 1000) * PER_OCTAVE;

	if (!(at > 0))
		return 0;
	return at < TIMEOUT_BUCKETS - 1 ? (uint32_t)at : TIMEOUT_BUCKETS - 1;
}

/* The middle of bucket i. */
static double bucket_s(uint32_t i)
{
	return exp2((i + 0.5) / PER_OCTAVE) / 1000;
}

static void find_median(struct learned *l)
{
	uint32_t below = 0, i = 0;

	while (i < TIMEOUT_BUCKETS - 1 && (below + l->buckets[i]) * 2 <= l->weight)
		below += l->buckets[i++];
	l->median = (float)bucket_s(i);
	l->since = 0;
}

static void forget(struct learned *l, uint32_t weight)
{
	while (l->weight > weight) {
		l->weight = 0;
		for (uint32_t i = 0; i < TIMEOUT_BUCKETS; i++)
			l->weight += l->buckets[i] /= 2;
	}
}

void learned_add(struct learned *l, double s, uint64_t now_ns, uint32_t window)
{
	assert(s >= 0);
	if (!l->turned_ns)
		l->turned_ns = now_ns;
	if (now_ns - l->turned_ns >= TIMEOUT_PERIOD_NS) {
		l->longest[1] = l->longest[0];
		l->longest[0] = 0;
		l->turned_ns = now_ns;
	}
	if (s > l->longest[0])
		l->longest[0] = (float)s;
	l->n++;
	if (window > UINT16_MAX / 2)
		window = UINT16_MAX / 2;
	if (l->weight >= 2 * window)
		forget(l, window);
	l->buckets[bucket_of(s)]++;
	l->weight++;
	if (l->weight < 64 || ++l->since >= 64)
		find_median(l);
}

static double longest_now(const struct learned *l)
{
	return l->longest[0] > l->longest[1] ? l->longest[0] : l->longest[1];
}

void learned_new_run(struct learned *l)
{
	double longest = longest_now(l);

	if (longest > 0)
		l->kept = (float)(l->kept > 0 ? (l->kept + longest) / 2 : longest);
	l->longest[0] = l->longest[1] = 0;
	l->turned_ns = 0;
	forget(l, 8); /* enough for a median to begin with, little against what comes */
	if (!l->weight && l->median > 0) {
		l->buckets[bucket_of(l->median)] = 1;
		l->weight = 1;
	}
}

double learned_longest(const struct learned *l)
{
	double longest = longest_now(l);

	return longest > l->kept ? longest : l->kept;
}

double learned_timeout(const struct learned *l, const struct timeout_options *o)
{
	double s = o->floor_s;

	s = fmax(s, o->longest_x * learned_longest(l));
	s = fmax(s, o->median_x * l->median);
	return l->n < o->few ? fmax(s, o->first_s) : s;
}

const struct learned_phase *timeouts_find(const struct timeouts *t, uint32_t phase,
					  const char *what)
{
	for (int i = 0; i < TIMEOUT_PHASES; i++)
		if (t->phases[i].used_ns && t->phases[i].phase == phase &&
		    !strcmp(t->phases[i].what, what))
			return &t->phases[i];
	return NULL;
}

struct learned_phase *timeouts_phase(struct timeouts *t, uint32_t phase, const char *what,
				     uint64_t now_ns)
{
	struct learned_phase *oldest = &t->phases[0];

	for (int i = 0; i < TIMEOUT_PHASES; i++) {
		struct learned_phase *p = &t->phases[i];

		if (p->used_ns && p->phase == phase && !strcmp(p->what, what)) {
			p->used_ns = now_ns;
			return p;
		}
		if (p->used_ns < oldest->used_ns)
			oldest = p;
	}
	*oldest = (struct learned_phase){.phase = phase, .used_ns = now_ns};
	snprintf(oldest->what, sizeof(oldest->what), "%s", what);
	return oldest;
}

void timeouts_new_run(struct timeouts *t)
{
	learned_new_run(&t->steps);
	learned_new_run(&t->starts);
	for (int i = 0; i < TIMEOUT_PHASES; i++)
		learned_new_run(&t->phases[i].times);
}
