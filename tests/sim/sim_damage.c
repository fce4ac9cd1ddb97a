/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_damage.c - bytes that change by themselves: one bit of a file, or of a copy in memory whose
 * digests are fixed. Before that they are what the rank has saved, whatever they are. The oracle is
 * told what was hit. What ckptd has found damaged on disk and still has in memory it must write
 * again, soon.
 */
#include <config.h>

#include "ckptd/node_priv.h"
#include "tests/sim/sim.h"

void damage_file(struct sim *s)
{
	struct oracle_job *j =
		s->oracle.n_jobs ? &s->oracle.jobs[world_random(s->w, s->oracle.n_jobs)] : NULL;

	if (j && !s->profile->good_disk)
		oracle_flip(&s->oracle, j);
}

/* Of all with the same chance; mostly those of the newest checkpoint, of which most is wanted. */
static struct slot *some_copy(struct sim *s)
{
	struct slot *each, *newest = NULL, *any = NULL;
	unsigned seen = 0, same = 0;
	struct job *j;

	list_each(j, &s->daemon.node->jobs, link) {
		list_each(each, &j->slots, link) {
			if (each->state != SLOT_DIGESTED)
				continue;
			if (world_one_in(s->w, ++seen))
				any = each;
			if (newest && each->holds->record_n < newest->holds->record_n)
				continue;
			if (!newest || each->holds->record_n > newest->holds->record_n)
				same = 0;
			if (world_one_in(s->w, ++same))
				newest = each;
		}
	}
	return world_one_in(s->w, 2) ? newest : any;
}

void damage_memory(struct sim *s)
{
	struct slot *slot = s->daemon.ready ? some_copy(s) : NULL;
	struct checkpoint *c;
	uint8_t *base;
	uint64_t at;

	if (!slot)
		return;
	c = slot->holds;
	base = slot->region->base;
	at = world_random(s->w, c->shards[slot->rank].image_len);
	base[at] ^= (uint8_t)(1u << world_random(s->w, 8));
	world_note(s->w, "memory hit", c->step, slot->rank, at);
	sim_count(s, memory_hits);
	oracle_memory_hit(&s->oracle, &c->job->history.job.id, c->step, &c->attempt, slot->rank);
}

bool damage_has_memory(struct sim *s, const struct job_id *id, uint64_t step,
		       const struct attempt_id *a, uint32_t rank)
{
	struct job *j = s->daemon.ready ? job_find_id(s->daemon.node, id) : NULL;
	struct checkpoint *c = j ? checkpoint_find_attempt(j, step, a) : NULL;

	return c && c->shards[rank].slot && c->shards[rank].slot->state == SLOT_DIGESTED;
}

/* ---- Damage that is repaired ---- */

#define WATCH_NS   (20 * SIM_MS)
#define REWRITE_NS (400 * SIM_MS)

/* It has failed before: the disk, memory, or room. */
static bool must_be_rewritten(const struct checkpoint *c)
{
	return rewrite_may_help(c) && c->rewrite_tries == 0 && !c->no_room && !c->readers;
}

static struct checkpoint *one_that_waits(struct sim *s)
{
	struct checkpoint *c, *newest = NULL;
	struct job *j;

	list_each(j, &s->daemon.node->jobs, link) {
		newest = NULL;
		list_each(c, &j->checkpoints, link)
			if (must_be_rewritten(c) && (!newest || c->record_n > newest->record_n))
				newest = c;
		if (newest)
			return newest;
	}
	return NULL;
}

static void count_rewritten(struct sim *s)
{
	uint64_t n = 0;
	struct job *j;

	list_each(j, &s->daemon.node->jobs, link)
		n += j->rewritten;
	if (n > s->rewritten)
		s->counts[COUNT_rewritten] += n - s->rewritten;
	s->rewritten = n;
}

static void look(struct sim *s)
{
	struct checkpoint *c = one_that_waits(s);
	uint64_t life = s->counts[COUNT_starts];

	count_rewritten(s);
	if (!c || life != s->waits_life || !attempt_equal(&c->attempt, &s->waits)) {
		s->waits_ns = s->w->now_ns;
		s->waits_life = life;
		s->waits = c ? c->attempt : (struct attempt_id){{0}};
		return;
	}
	if (s->w->now_ns - s->waits_ns > REWRITE_NS)
		sim_accuse(s,
			   "I11: files of step %llu of %s were found damaged, memory has the same "
			   "bytes, and nothing was written again",
			   (unsigned long long)c->step, c->job->history.job.name);
}

void damage_watch(void *arg)
{
	struct sim *s = arg;

	if (s->daemon.ready && !s->daemon.stopping)
		look(s);
	else
		s->rewritten = 0;
	world_after(s->w, WATCH_NS, NULL, damage_watch, s);
}
