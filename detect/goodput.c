/* SPDX-License-Identifier: Apache-2.0 */
/*
 * goodput.c - see goodput.h. Pure; on its owner's thread.
 */
#include <config.h>

#include "detect/goodput.h"

#include <assert.h>
#include <string.h>

#include "base/bytes.h"

const char *goodput_word(enum goodput_cause c)
{
	static const char *const words[] = {
#define X(name, word, text) word,
		GOODPUT_CAUSES(X)
#undef X
	};

	assert(c < GOODPUT_COUNT);
	return words[c];
}

static enum goodput_cause cause_of(const struct goodput *g)
{
	if (g->state != GOODPUT_TRAINING)
		return g->state;
	return g->hung     ? GOODPUT_HUNG
	       : g->saving ? GOODPUT_STALL
	       : g->slow   ? GOODPUT_SLOW
			   : GOODPUT_TRAINING;
}

void goodput_advance(struct goodput *g, uint64_t now_ns)
{
	if (g->begun && now_ns > g->last_ns)
		g->ns[cause_of(g)] += now_ns - g->last_ns;
	if (!g->begun || now_ns > g->last_ns)
		g->last_ns = now_ns;
}

static void move(struct goodput *g, enum goodput_cause to, uint64_t ns)
{
	ns = min_u64(ns, g->ns[GOODPUT_TRAINING]);
	g->ns[GOODPUT_TRAINING] -= ns;
	g->ns[to] += ns;
}

void goodput_epoch(struct goodput *g, uint64_t now_ns, bool has_base, uint64_t base, bool memory)
{
	/* Several epochs may be opened before it goes on: that is one failure. */
	bool failed = g->begun && (g->state == GOODPUT_TRAINING || g->down);
	uint64_t kept = 0, before;
	bool known = false;

	goodput_advance(g, now_ns);
	before = g->ns[GOODPUT_TRAINING];
	while (has_base && g->n_marks > 0 && g->marks[g->n_marks - 1].step > base)
		g->n_marks--;
	if (has_base && g->n_marks > 0 && g->marks[g->n_marks - 1].step == base) {
		kept = g->marks[g->n_marks - 1].trained_ns;
		known = true;
	}
	if (!has_base)
		g->n_marks = 0;
	/* Of a base of before the accounting began it is not known what was done since. */
	if (g->begun && (known || !has_base))
		move(g, GOODPUT_REWORK, before - min_u64(kept, before));
	if (!has_base)
		g->steps = 0;
	else if (g->newest_step > base)
		g->steps -= min_u64(g->newest_step - base, g->steps);
	if (failed)
		g->failures[memory ? 0 : 1]++;
	g->begun = true;
	g->down = false;
	g->state = GOODPUT_RESTART;
	g->saving = g->hung = g->slow = false;
	g->newest_step = has_base ? base : 0;
	g->zeroth = has_base;
}

void goodput_failed(struct goodput *g, uint64_t now_ns)
{
	goodput_advance(g, now_ns);
	g->down = g->begun;
	if (g->begun)
		g->state = GOODPUT_RESTART;
	g->saving = g->hung = g->slow = false;
}

void goodput_over(struct goodput *g, uint64_t now_ns)
{
	goodput_advance(g, now_ns);
	g->state = GOODPUT_AWAY;
	g->down = false;
	g->saving = g->hung = g->slow = false;
}

void goodput_back(struct goodput *g, uint64_t now_ns)
{
	goodput_advance(g, now_ns);
	if (g->begun && g->state == GOODPUT_AWAY)
		g->state = GOODPUT_RESTART;
}

void goodput_step(struct goodput *g, uint64_t now_ns, uint64_t step)
{
	bool first = step == 0 && g->newest_step == 0 && !g->zeroth;

	goodput_advance(g, now_ns);
	if (!g->begun || (step <= g->newest_step && !first))
		return;
	g->steps += first ? 1 : step - g->newest_step;
	g->newest_step = step;
	g->zeroth |= first;
	if (g->state == GOODPUT_AWAY || g->down)
		return; /* it was done before that, and is known only now */
	if (g->state != GOODPUT_TRAINING)
		g->training_since_ns = now_ns;
	g->state = GOODPUT_TRAINING;
}

void goodput_committed(struct goodput *g, uint64_t now_ns, uint64_t step, uint64_t latency_ns)
{
	goodput_step(g, now_ns, step);
	if (!g->begun)
		return;
	/* An epoch may begin behind its base: a run that did not load saves step 1 again. */
	while (g->n_marks > 0 && g->marks[g->n_marks - 1].step >= step)
		g->n_marks--;
	if (g->n_marks == GOODPUT_MARKS) {
		g->n_marks--;
		memmove(g->marks, g->marks + 1, g->n_marks * sizeof(g->marks[0]));
	}
	g->marks[g->n_marks++] = (struct goodput_mark){step, g->ns[GOODPUT_TRAINING]};
	g->latency[0].n++;
	g->latency[0].ns += latency_ns;
}

void goodput_durable(struct goodput *g, uint64_t latency_ns)
{
	g->latency[1].n++;
	g->latency[1].ns += latency_ns;
}

void goodput_save(struct goodput *g, uint64_t now_ns, bool begins)
{
	goodput_advance(g, now_ns);
	if (g->saving && !begins && now_ns >= g->saving_since_ns) {
		g->stall.n++;
		g->stall.ns += now_ns - g->saving_since_ns;
	}
	g->saving = begins;
	g->saving_since_ns = now_ns;
}

void goodput_alarm(struct goodput *g, uint64_t now_ns, enum goodput_cause cause, bool stands,
		   uint64_t since_ns)
{
	bool *flag = cause == GOODPUT_HUNG ? &g->hung : &g->slow;

	assert(cause == GOODPUT_HUNG || cause == GOODPUT_SLOW);
	goodput_advance(g, now_ns);
	since_ns = max_u64(since_ns, g->training_since_ns);
	/* What it took to find out was the same trouble. */
	if (stands && !*flag && g->state == GOODPUT_TRAINING && since_ns < now_ns)
		move(g, cause, now_ns - since_ns);
	*flag = stands;
}

void goodput_resume(struct goodput *g, uint64_t now_ns, uint64_t gap_ns, bool alive, bool trains)
{
	assert(g->begun);
	g->saving = g->hung = g->slow = false;
	g->last_ns = g->training_since_ns = now_ns;
	if (alive && g->state == GOODPUT_AWAY)
		g->state = GOODPUT_RESTART; /* launched since */
	if (trains && g->state == GOODPUT_RESTART && !g->down)
		g->state = GOODPUT_TRAINING;
	if (!alive && g->state == GOODPUT_TRAINING) {
		g->state = GOODPUT_RESTART;
		g->down = true;
	}
	g->ns[cause_of(g)] += gap_ns;
}

double goodput_share(const struct goodput *g)
{
	double all = 0;

	for (int i = 0; i < GOODPUT_COUNT; i++)
		all += i == GOODPUT_AWAY ? 0 : (double)g->ns[i];
	return all > 0 ? (double)g->ns[GOODPUT_TRAINING] / all : 1;
}
