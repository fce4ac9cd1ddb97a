/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_beats.c - ranks write beats into their pages, whatever becomes of ckptd, and ckptd hears
 * them:
 *
 *   - a page that the fd store held when ckptd started is read on, without a word of its process;
 *   - in peace the newest step of every rank has been told soon after it was done.
 */
#include <config.h>

#include <assert.h>

#include "base/bytes.h"
#include "ckptd/beats.h"
#include "ckptd/job.h"
#include "ckptd/node_priv.h"
#include "ckptd/watching_priv.h"
#include "tests/sim/sim.h"

#define EVERY_LONG 9 /* steps from one long phase to the next */
#define BEHIND_NS  (2 * SIM_S)
#define LAG_STEPS  3 /* a rank in peace takes longer for so many than ckptd looks away */

static struct beat_page *page_of(const struct rank *r)
{
	return (struct beat_page *)r->beats->base;
}

void rank_take_beats(struct rank *r, int fd)
{
	struct mapping *m = mapping_new(r->sim->w, NULL, fd);

	assert(m && m->writable && ((struct beat_page *)m->base)->magic == BEAT_PAGE_MAGIC);
	if (r->beats && r->beats->base == m->base) {
		mapping_free(m);
		return;
	}
	mapping_free(r->beats);
	r->beats = m;
	r->beats_written = 0;
}

void rank_lose_beats(struct rank *r)
{
	mapping_free(r->beats);
	r->beats = NULL;
	r->beats_kept = false;
}

static void put(struct rank *r, struct beat_record *b)
{
	b->time_ns = rank_now(r);
	beat_page_put(page_of(r), ++r->beats_written, b);
}

void trainer_beat(struct rank *r)
{
	bool begins = r->step % EVERY_LONG == 0;

	if (!r->beats)
		return;
	put(r, &(struct beat_record){.kind = BEAT_KIND_STEP, .step = r->step});
	atomic_store(&page_of(r)->next_step, r->step + 1);
	atomic_store(&page_of(r)->place, BEAT_PLACE(PHASE_STEP, rank_now(r)));
	if (!begins && r->step % EVERY_LONG != 1)
		return;
	put(r, &(struct beat_record){.kind = begins ? BEAT_KIND_PHASE_BEGIN : BEAT_KIND_PHASE_END,
				     .flags = PHASE_EVALUATE});
	atomic_store(&page_of(r)->long_place, begins ? BEAT_PLACE(PHASE_EVALUATE, rank_now(r)) : 0);
}

void trainer_begins_save(struct rank *r, uint64_t step, bool waits)
{
	if (r->beats)
		beat_page_put_saving(page_of(r), r->epoch, step, waits);
}

/* ---- What ckptd makes of it ---- */

static struct member *member_of(const struct rank *r)
{
	struct node *n = r->sim->daemon.node;
	struct job *j = job_find(n, r->job->name, r->job->uid);
	struct member *m = j ? member_of_rank(j, r->rank) : NULL;

	return m && m->alive && process_same(&m->process, &r->process->id) ? m : NULL;
}

struct stored {
	const void *page;
	bool found;
};

static void compare(void *arg, const char *name, uint8_t *base, uint64_t size)
{
	struct stored *s = arg;

	(void)name;
	(void)size;
	s->found = s->found || base == s->page;
}

static void note_kept(struct rank *r)
{
	struct stored s = {.page = r->beats->base};

	keeper_each(r->sim->keeper, compare, &s);
	r->beats_kept = s.found;
}

/* Its page was kept, and so was the ledger that says that this process is a member. */
static void check_adopted(struct rank *r)
{
	struct member *m = member_of(r);

	if (!m || !r->beats_kept)
		return;
	if (beats_page(m) != page_of(r))
		sim_accuse(r->sim, "rank %u of %s beats, its page was kept, and nobody looks at it",
			   r->rank, r->job->name);
	sim_count(r->sim, beats_adopted);
}

static void check_told(struct rank *r)
{
	uint64_t newest = atomic_load(&page_of(r)->next_step), told = 0;
	struct member *m = member_of(r);

	if (newest == 0 || !m)
		return;
	if (beats_page(m) != page_of(r) || !beats_told(m, &told) || told + 1 + LAG_STEPS < newest ||
	    told >= newest + LAG_STEPS)
		sim_accuse(r->sim, "rank %u of %s has done step %llu, ckptd has heard of step %llu",
			   r->rank, r->job->name, (unsigned long long)newest - 1,
			   (unsigned long long)told);
	sim_count(r->sim, beats_told);
}

static void each(struct sim *s, void (*check)(struct rank *r))
{
	for (unsigned i = 0; i < s->n_jobs; i++)
		for (unsigned k = 0; k < SIM_WORLD; k++)
			if (s->jobs[i].ranks[k] && rank_alive(s->jobs[i].ranks[k]) &&
			    s->jobs[i].ranks[k]->beats)
				check(s->jobs[i].ranks[k]);
}

void beats_note_kept(struct sim *s)
{
	each(s, note_kept);
}

void beats_check_adopted(struct sim *s)
{
	each(s, check_adopted);
}

/* Each beat is a sample, so the newest is never old, and none is of a time to come. */
void beats_check_time(struct sim *s)
{
	struct node *n = s->daemon.node;
	uint64_t now, last;

	if (!n || !s->daemon.ready || !n->watching)
		return;
	now = loop_now(n->env.loop);
	last = n->watching->last_ns;
	if (last > now)
		sim_accuse(s, "the detector is %llu ms ahead of time",
			   (unsigned long long)((last - now) / SIM_MS));
	else if (s->peace && now - last > BEHIND_NS)
		sim_accuse(s, "the detector is %llu ms behind",
			   (unsigned long long)((now - last) / SIM_MS));
}

void beats_check_told(struct sim *s)
{
	if (s->daemon.node && s->daemon.ready)
		each(s, check_told);
}
