/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_job.c - the launcher of a job: starts its ranks, notices after a while that one has ended,
 * and either starts it again in the same run or kills all and starts the job anew, perhaps with
 * another world. Sometimes an old run is not killed at once: ckptd must keep it out.
 */
#include <config.h>

#include <assert.h>
#include <stdio.h>

#include "tests/sim/heap.h"
#include "tests/sim/sim.h"

#define NOTICE_NS  (60 * SIM_MS)
#define STAGGER_NS (10 * SIM_MS)

static void bury(void *arg)
{
	struct sim *s = arg;

	while (!list_empty(&s->graves))
		rank_kill(list_first(&s->graves, struct rank, link));
}

static void grave(struct sim *s, struct rank *r)
{
	list_del(&r->link);
	list_add_tail(&s->graves, &r->link);
	world_at(s->w, s->w->now_ns, NULL, bury, s);
}

void job_kill_all(struct sim_job *j)
{
	for (unsigned i = 0; i < SIM_WORLD; i++) {
		if (j->ranks[i])
			rank_kill(j->ranks[i]);
		j->ranks[i] = NULL;
	}
}

/* The old run goes on for a while, as an orphan does on a node that its launcher lost. */
static void leave_behind(struct sim_job *j)
{
	for (unsigned i = 0; i < SIM_WORLD; i++) {
		if (!j->ranks[i])
			continue;
		list_add_tail(&j->sim->zombies, &j->ranks[i]->link);
		j->ranks[i] = NULL;
		sim_count(j->sim, zombies);
	}
}

void job_launch(struct sim_job *j)
{
	struct sim *s = j->sim;
	struct world *w = s->w;

	if (!s->peace && !j->made && world_one_in(w, 6))
		leave_behind(j);
	job_kill_all(j);
	j->agent_busy = false;
	j->decisions++;
	j->launches++;
	j->world = 1 + (uint32_t)world_random(w, s->profile->world);
	j->layout = (unsigned)world_random(w, 4);
	snprintf(j->run_id, sizeof(j->run_id), "run-%u", j->launches);
	sim_count(s, launches);
	world_note(w, "launch", j->index, j->launches, j->world);
	for (uint32_t i = 0; i < j->world; i++)
		j->ranks[i] =
			rank_start(j, i, j->made ? "" : j->run_id, world_random(w, STAGGER_NS));
}

/* None of its ranks is left meanwhile. Then it is launched again, and begins anew if it is gone. */
void job_remove(struct sim_job *j)
{
	job_kill_all(j);
	j->agent_busy = false;
	j->world = 1;
	j->ranks[0] = rank_start(j, 0, "", world_random(j->sim->w, STAGGER_NS));
	j->ranks[0]->removes = true;
}

/* ---- When a rank has ended ---- */

struct decision {
	struct sim_job *job;
	uint64_t number;
};

static void decide(void *arg)
{
	struct sim_job *j = arg;
	struct sim *s = j->sim;
	unsigned gone = 0;

	if (!j->agent_busy || !s->powered)
		return;
	j->agent_busy = false;
	for (uint32_t i = 0; i < j->world; i++)
		gone += !rank_alive(j->ranks[i]);
	if (gone == 0)
		return;
	if (j->made || gone == j->world || world_one_in(s->w, 3)) {
		job_launch(j);
		return;
	}
	for (uint32_t i = 0; i < j->world; i++) {
		if (rank_alive(j->ranks[i]))
			continue;
		if (j->ranks[i])
			rank_kill(j->ranks[i]);
		j->ranks[i] = rank_start(j, i, j->run_id, world_random(s->w, STAGGER_NS));
		sim_count(s, replaced);
	}
}

void job_rank_gone(struct sim_job *j, struct rank *r)
{
	struct sim *s = j->sim;

	for (uint32_t i = 0; i < SIM_WORLD; i++) {
		if (j->ranks[i] != r)
			continue;
		j->ranks[i] = NULL;
		if (!j->agent_busy) {
			j->agent_busy = true;
			world_after(s->w, 1 + world_random(s->w, NOTICE_NS), NULL, decide, j);
		}
	}
	grave(s, r);
}
