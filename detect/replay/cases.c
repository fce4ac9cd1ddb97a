/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cases.c - worlds in which nothing is wrong, each full of one thing that looks as if it were.
 */
#include <config.h>

#include <assert.h>
#include <stdio.h>

#include "detect/replay/world.h"

enum { CASE_LONGER, CASE_GAP, CASE_SUSPEND, CASE_CLOCK, CASE_RESTART };

static const struct job_style calm = {
	.step_s = 8,
	.jitter = 0.015,
	.comm_share = 0.15,
	.checkpoint_every_s = 1800,
	.checkpoint_s = 10,
	.compile_s = 90,
	.stages = 2,
	.gives_loss = true,
	.gives_grad_norm = true,
	.gpu_known = true,
};

static const struct {
	const char *name, *text;
	struct job_style change; /* fields that are not 0 replace those above */
	uint32_t nodes, ranks;
} cases[] = {
	{"evaluation",
	 "an evaluation of 30 minutes, every 2 hours",
	 {.evaluate_every_s = 7200, .evaluate_s = 1790},
	 8,
	 0},
	{"compile",
	 "first steps that take 10 minutes to compile, and restarts",
	 {.compile_s = 600, .restart_every_s = 3600},
	 8,
	 0},
	{"first-step",
	 "first steps that take 35 minutes to compile, and restarts",
	 {.compile_s = 2100, .compile_most_s = 2100, .restart_every_s = 7200},
	 8,
	 0},
	{"no-beats",
	 "nobody tells of steps, and saves are an hour and more apart",
	 {.mute = true, .checkpoint_every_s = 4500, .restart_every_s = 4 * 3600},
	 8,
	 0},
	{"resuming",
	 "ckptd starts anew in the middle of an evaluation of half an hour",
	 {.resuming = true, .evaluate_every_s = 7200, .evaluate_s = 1790},
	 8,
	 0},
	{"checkpoint",
	 "every third checkpoint takes up to 20 times as long as others",
	 {.checkpoint_slow = 0.33, .checkpoint_every_s = 900},
	 8,
	 0},
	{"sequence",
	 "the sequences are twice as long from one step to the next",
	 {.longer_at_s = 3 * 3600},
	 8,
	 0},
	{"restart",
	 "the job is told to end and starts again, every 40 minutes",
	 {.restart_every_s = 2400},
	 8,
	 0},
	{"clock",
	 "the clock of the day is set, an hour forward and back",
	 {.clock_at_s = 3 * 3600},
	 8,
	 0},
	{"gap",
	 "nobody looks for an hour: the virtual machine was stopped, or ckptd was",
	 {.gap_at_s = 3 * 3600, .gap_s = 3600},
	 8,
	 0},
	{"laptop",
	 "one process on a laptop that is suspended and comes back with its link down",
	 {.suspend_at_s = 3 * 3600, .step_s = 3, .stages = 1},
	 1,
	 1},
	{"tenfold",
	 "one step in a thousand takes ten times as long",
	 {.tenfold_share = 0.001, .step_s = 2},
	 8,
	 0},
	{"stalls",
	 "one step in a hundred has a rank that waits for data",
	 {.data_stall_share = 0.01},
	 8,
	 0},
};
#define N_CASES (sizeof(cases) / sizeof(cases[0]))
_Static_assert(2 * N_CASES <= QUIET_CASES_MAX, "each may be declared and not");

static void apply(struct job_style *s, const struct job_style *change)
{
#define APPLY(f) s->f = change->f > 0 ? change->f : s->f
	APPLY(step_s);
	APPLY(checkpoint_every_s);
	APPLY(checkpoint_slow);
	APPLY(evaluate_every_s);
	APPLY(evaluate_s);
	APPLY(compile_s);
	APPLY(compile_most_s);
	APPLY(mute);
	APPLY(resuming);
	APPLY(restart_every_s);
	APPLY(tenfold_share);
	APPLY(data_stall_share);
	APPLY(longer_at_s);
	APPLY(gap_at_s);
	APPLY(gap_s);
	APPLY(suspend_at_s);
	APPLY(clock_at_s);
	APPLY(stages);
#undef APPLY
}

unsigned quiet_cases(struct quiet_case *ret)
{
	for (unsigned i = 0; i < 2 * N_CASES; i++) {
		struct quiet_case *c = &ret[i];

		*c = (struct quiet_case){
			.name = cases[i / 2].name, .text = cases[i / 2].text, .style = calm};
		apply(&c->style, &cases[i / 2].change);
		c->style.declares = i % 2 == 0;
		c->config = (struct world_config){.seed = 1,
						  .nodes = cases[i / 2].nodes,
						  .spares = cases[i / 2].nodes > 1,
						  .ranks = cases[i / 2].ranks,
						  .days = 0.5,
						  .declares = c->style.declares};
	}
	return 2 * N_CASES;
}

void cases_begin(struct world *w)
{
	const struct job_style *s = &w->style;

	if (s->longer_at_s > 0)
		world_at(w, S(s->longer_at_s), EVENT_CASE, CASE_LONGER);
	if (s->gap_at_s > 0)
		world_at(w, S(s->gap_at_s), EVENT_CASE, CASE_GAP);
	if (s->suspend_at_s > 0)
		world_at(w, S(s->suspend_at_s), EVENT_CASE, CASE_SUSPEND);
	if (s->clock_at_s > 0)
		world_at(w, S(s->clock_at_s), EVENT_CASE, CASE_CLOCK);
}

/* All that is to come comes later by this much. */
static void time_passes(struct world *w, uint64_t ns)
{
	for (size_t i = 0; i < w->n_events; i++)
		w->events[i].time_ns += ns;
	w->begun_ns += ns;
	w->ends_ns += w->ends_ns ? ns : 0;
	w->checkpoint_ns += ns;
	w->evaluate_ns += w->evaluate_ns < UINT64_MAX - ns ? ns : 0;
	w->beat_ns += ns;
	while (w->tick_ns < w->now + ns) {
		w->round++;
		w->tick_ns += S(10);
	}
}

static void gap(struct world *w)
{
	uint64_t ns = S(w->style.gap_s);

	time_passes(w, ns);
	w->now += ns;
	world_put(w)->label.kind = LABEL_GAP;
}

/* The clock of samples stands still meanwhile; devices do not come back at once. */
static void suspended(struct world *w)
{
	for (uint32_t i = 0; i < w->n_nodes; i++) {
		struct sample *s;

		world_kernel(w, i, 0, "PM: suspend entry (s2idle)");
		world_kernel(w, i, 0, "PM: suspend exit");
		w->nodes[i].downs++;
		s = world_node_sample(w, SAMPLE_LINK, i);
		s->device = RANKS_PER_NODE;
		s->link.up = false;
		s->link.rate_gbps = 1;
		s->link.sent = w->nodes[i].sent;
		s->link.received = w->nodes[i].received;
		s->link.downs = w->nodes[i].downs;
	}
}

void cases_event(struct world *w, uint32_t which)
{
	switch (which) {
	case CASE_LONGER:
		job_longer(w, 2);
		break;
	case CASE_GAP:
		gap(w);
		break;
	case CASE_SUSPEND:
		suspended(w);
		world_at(w, w->now + S(3600), EVENT_CASE, CASE_SUSPEND);
		break;
	case CASE_CLOCK:
		for (uint32_t i = 0; i < w->n_nodes; i++)
			world_kernel(
				w, i, 3,
				"systemd[1]: Time has been changed by 3600 s; restarting timers");
		world_at(w, w->now + S(1800), EVENT_CASE, CASE_CLOCK);
		break;
	default:
		assert(false);
	}
}
