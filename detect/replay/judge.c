/* SPDX-License-Identifier: Apache-2.0 */
/*
 * judge.c - figures held against what is asked for.
 *
 * (1) What was not measured is not good: a class without faults fails, and so does one of whose
 * faults none could be judged by its delay although a bound is asked.
 */
#include <config.h>

#include "detect/replay/judge.h"

#define RIGHT_SUBJECT_TARGET 0.95
#define IN_TIME_TARGET       0.9 /* of those that were told */
#define FALSE_TARGET         0.01

struct judge {
	uint64_t seed;
	bool fixed;
	FILE *out;
	unsigned bad;
};

static void figure(struct judge *j, const char *what, const char *class, double value,
		   double target, bool at_least)
{
	bool good = at_least ? value >= target : value <= target;

	fprintf(j->out, "%s seed-%llu-%s%s %s%.4f, wanted %s %.4f\n", good ? "ok" : "not ok",
		(unsigned long long)j->seed, what, class, j->fixed ? "" : "at best ", value,
		at_least ? "at least" : "at most", target);
	j->bad += !good;
}

static void none(struct judge *j, const char *what, const char *class, const char *words)
{
	fprintf(j->out, "not ok seed-%llu-%s%s (%s)\n", (unsigned long long)j->seed, what, class,
		words);
	j->bad++;
}

static void share(struct judge *j, const char *what, const char *class, uint32_t k, uint32_t n,
		  double target)
{
	double low, high;

	interval_share(k, n, &low, &high);
	figure(j, what, class, j->fixed ? (double)k / n : high, target, true);
}

static void judge_delays(struct judge *j, const struct tally *g)
{
	char words[80];

	if (g->judged)
		share(j, "in-time-", g->name, g->in_time, g->judged, IN_TIME_TARGET);
	if (g->judged || !g->asked)
		return;
	snprintf(words, sizeof(words), "of none of %u faults can the delay be judged", g->asked);
	none(j, "in-time-", g->name, words); /* (1) */
}

unsigned judge(const struct tallies *t, uint64_t seed, bool fixed, FILE *out)
{
	struct judge j = {.seed = seed, .fixed = fixed, .out = out};
	uint32_t found = 0, right = 0, bad = t->wrong + t->spurious;
	double low, high, target;
	const char *name;

	for (unsigned i = 0; (name = score_target(i, &target)); i++) {
		const struct tally *g = score_group(t, name);

		if (!g || !g->faults) { /* (1) */
			none(&j, "recall-", name, "no such fault in the trace");
			continue;
		}
		found += g->found;
		right += g->right;
		share(&j, "recall-", name, g->found, g->faults, target);
		judge_delays(&j, g);
	}
	if (found)
		share(&j, "right-subject", "", right, found, RIGHT_SUBJECT_TARGET);
	else
		none(&j, "right-subject", "", "nothing was found");
	interval_rate(bad, t->node_days, &low, &high);
	figure(&j, "false-per-node-day", "", fixed ? bad / t->node_days : low, FALSE_TARGET,
	       false);
	return j.bad;
}
