/* SPDX-License-Identifier: Apache-2.0 */
/*
 * activity.c - what the process of a rank is doing at a moment, as a look into /proc and at its GPU
 * would show it.
 *
 * Looks cost nothing in the model and change nothing of it: they have random numbers of their own.
 */
#include <config.h>

#include <assert.h>

#include "detect/replay/world.h"

/* Its kernels run, and the thread that issues them waits for them. */
static void computing(struct world *w, struct sample_activity *a)
{
	bool sleeps = w->style.blocking_wait && rand_chance(&w->activity_rand, 0.8);

	a->state = sleeps ? 'S' : 'R';
	a->threads_running = sleeps ? 0 : 1;
	a->cpu_permille = (uint16_t)((sleeps ? 60 : 970) + rand_below(&w->activity_rand, 30));
	a->gpu_permille = (uint16_t)(960 + rand_below(&w->activity_rand, 40));
}

/* Waits for others: a collective's kernel spins on the GPU all the time. */
static void waiting(struct world *w, struct sample_activity *a, uint64_t since_ns)
{
	computing(w, a);
	a->gpu_permille = 1000;
	if (w->style.declares) {
		a->phase = PHASE_SYNC;
		a->since_ns = since_ns;
	}
}

static void stalling(struct world *w, struct sample_activity *a)
{
	uint16_t few = (uint16_t)rand_below(&w->activity_rand, 20);

	a->gpu_permille = few;
	switch (w->stall) {
	case STALL_HOST: /* garbage collection, another compilation, a lock of the interpreter */
		a->state = 'R';
		a->threads_running = 1;
		a->cpu_permille = (uint16_t)(980 + few);
		return;
	case STALL_IO:
		a->state = 'D';
		a->cpu_permille = few;
		return;
	case STALL_DATA_TIMED: /* asks its loader again every few seconds */
	case STALL_DATA:
		a->state = 'S';
		a->cpu_permille = few;
		a->timed = w->stall == STALL_DATA_TIMED ? TIMED_YES : TIMED_NO;
		a->phase = w->style.declares ? PHASE_DATA : PHASE_STEP;
		return;
	case STALL_NONE:
	case STALL_ALL:
		break;
	}
	waiting(w, a, w->begun_ns); /* all do: the network */
}

static void in_step(struct world *w, struct sample_activity *a, uint32_t rank)
{
	uint64_t work_ends = w->begun_ns + S((double)w->work[rank]);
	bool stalls = w->stall == STALL_ALL || (w->stall != STALL_NONE && w->stalled == rank);

	a->phase = PHASE_STEP;
	if (w->ends_ns == 0) { /* between two */
		computing(w, a);
	} else if (stalls && w->now > w->begun_ns + S(w->style.step_s * w->length * 0.5)) {
		stalling(w, a);
	} else if (w->now < work_ends) {
		computing(w, a);
	} else {
		waiting(w, a, work_ends);
	}
}

static void in_pause(struct world *w, struct sample_activity *a)
{
	a->phase = w->style.declares ? w->pause : PHASE_STEP;
	computing(w, a);
	if (w->pause != PHASE_CHECKPOINT)
		return;
	a->gpu_permille = (uint16_t)rand_below(&w->activity_rand, 60);
	a->state = rand_chance(&w->activity_rand, 0.5) ? 'D' : 'R';
	a->cpu_permille = (uint16_t)(300 + rand_below(&w->activity_rand, 600));
}

static void stuck(struct world *w, struct sample_activity *a)
{
	uint16_t few = (uint16_t)rand_below(&w->activity_rand, 10);

	a->phase = w->style.declares ? w->fault.phase : PHASE_STEP;
	a->since_ns = w->begun_ns;
	a->cpu_permille = few;
	a->gpu_permille = 0;
	switch ((unsigned)w->fault.kind) {
	case FAULT_STOPPED:
		a->state = 'T';
		break;
	case FAULT_SPINNING:
		a->state = 'R';
		a->threads_running = 1;
		a->cpu_permille = (uint16_t)(990 + few);
		break;
	case FAULT_XID:
	case FAULT_BUS: /* the driver does not answer */
		a->state = rand_chance(&w->activity_rand, 0.5) ? 'D' : 'R';
		a->gpu_permille = UINT16_MAX;
		break;
	default:
		a->state = 'S';
		break;
	}
}

/* Nobody is there while the job is down, nor on a node that is dead. */
static bool lives(const struct world *w, uint32_t rank)
{
	return w->state != JOB_DOWN && !w->gone[rank] &&
	       w->nodes[world_node(w, rank)].state != NODE_DEAD;
}

void activity_put(struct world *w, uint32_t rank)
{
	struct sample_activity *a;

	if (!lives(w, rank))
		return;
	a = &world_rank_sample(w, SAMPLE_ACTIVITY, rank)->activity;
	a->step = w->step;
	a->since_ns = w->begun_ns;
	switch (w->state) {
	case JOB_STEPPING:
		in_step(w, a, rank);
		break;
	case JOB_STUCK:
		if (w->fault.active && w->fault.blocks && w->fault.rank == rank)
			stuck(w, a);
		else if (w->pause == PHASE_SYNC)
			waiting(w, a, w->begun_ns + S((double)w->work[rank]));
		else
			in_pause(w, a);
		break;
	case JOB_PAUSED:
		in_pause(w, a);
		break;
	case JOB_LOADING:
	case JOB_DOWN:
		a->phase = w->style.declares ? PHASE_LOAD : PHASE_STEP;
		a->state = 'D';
		a->cpu_permille = 400;
		a->gpu_permille = 0;
		break;
	}
	if (!w->style.gpu_known)
		a->gpu_permille = UINT16_MAX;
}

/* What nodes tell of their own accord of ranks that take far longer than usual: every 10 s at
 * first, later every minute. */
void activity_late(struct world *w)
{
	if (w->state == JOB_DOWN || w->state == JOB_LOADING)
		return;
	for (uint32_t i = 0; i < w->world; i++)
		activity_put(w, i);
	w->looks++;
	if (w->looks < 100)
		world_at(w, w->now + S(w->looks < 12 ? 10 : 60), EVENT_LATE, w->lap);
}

void activity_probe(struct world *w, uint32_t rank, uint32_t token)
{
	struct probe *p = &w->probes[rank];
	uint64_t wait_s;

	if (!p->wanted || p->token != token)
		return;
	activity_put(w, rank);
	p->n++;
	wait_s = p->n < 30 ? 1 : p->n < 42 ? 10 : 60;
	world_at(w, w->now + S(wait_s), EVENT_PROBE, rank)->value = (int32_t)token;
}
