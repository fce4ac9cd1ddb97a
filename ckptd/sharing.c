/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sharing.c - shard files that several ranks of the node read.
 *
 * A load under another layout wants parts of the same leaves in several ranks. They read such files
 * through the page cache: it is memory that all processes share, that the kernel takes back when it
 * is needed elsewhere, and whoever comes second finds there what the first has read. A file that
 * only the rank of its number wants is read by O_DIRECT. Who wants what is known of the ranks that
 * have declared; of the others it is supposed that they want what the rank of their number saved.
 * If that proves wrong bytes are read twice, and that is all.
 *
 * The pages go when every rank of the epoch has read its part, or when no rank is there any more.
 * Until then a rank that is late finds them. Nothing depends on it: pages are reclaimed anyway.
 *
 * Thread: the loop, but wanted_as_stored() and the work.
 */
#include <config.h>

#include "ckptd/sharing.h"

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"
#include "ckptd/node_priv.h"
#include "storage/shard_reader.h"

/* ---- Who wants what ---- */

/*
 * A process that was in an epoch before may be about to open anew with another declaration: only
 * when it has loaded in this one, or is the one that loads, it is for sure what it declared then.
 */
int wanted_by_make(struct job *j, uint32_t rank, struct wanted_by *ret)
{
	uint32_t world = j->history.epoch.world, n = 0;
	struct wanted_by w = {.world = world};
	struct member *m;

	w.declared = alloc_array(world, sizeof(*w.declared));
	if (!w.declared)
		return -ENOMEM;
	list_each(m, &j->members, link) {
		if (!m->declared || !m->alive || m->rank >= world || w.declared[m->rank])
			continue;
		w.declared[m->rank] = m->declared;
		m->declared->refs++;
		n += m->epoch == j->history.epoch.number || m->rank == rank;
	}
	w.all = n == world;
	*ret = w;
	return 0;
}

void wanted_by_fini(struct job *j, struct wanted_by *w)
{
	for (uint32_t r = 0; w->declared && r < w->world; r++)
		if (w->declared[r])
			declared_unref(j, w->declared[r]);
	alloc_free(w->declared);
	*w = (struct wanted_by){0};
}

bool wanted_as_stored(const struct wanted_by *w, const struct plan_source *stored, uint32_t n)
{
	if (w->world != n)
		return false;
	for (uint32_t r = 0; r < n; r++) {
		const struct declaration *have = &stored[r].declaration;
		struct digest d;

		if (!w->declared[r])
			continue;
		d = declaration_digest(have->bytes, have->len);
		if (!digest_equal(&d, &w->declared[r]->digest))
			return false;
	}
	return true;
}

/* ---- The pages ---- */

void sharing_begin(struct checkpoint *c)
{
	/* A number of its own: what was read before the pages went the last time does not count. */
	if (c->cached == 0)
		c->cached = ++c->job->node->next_cached;
}

void sharing_end(struct checkpoint *c, struct member *m)
{
	if (JOB_ASSERT(c->job, c->cached) && m)
		m->read_cached = c->cached;
}

static bool all_have_read(const struct checkpoint *c)
{
	const struct job *j = c->job;
	uint32_t n = 0;
	bool any = false;
	struct member *m;

	list_each(m, &j->members, link) {
		any = any || m->alive;
		n += m->read_cached == c->cached;
	}
	return (!any && !epoch_opens(j)) || n >= j->history.epoch.world;
}

struct forgetting {
	struct work work;
	struct checkpoint *checkpoint;
	struct checkpoint_id id;
};

static void forget_run(struct work *w)
{
	struct forgetting *f = container_of(w, struct forgetting, work);

	for (uint32_t r = 0; r < f->checkpoint->world; r++)
		shard_uncache(&f->checkpoint->job->node->store, &f->id, r);
	w->status = 0;
}

static void forget_done(struct work *w)
{
	struct forgetting *f = container_of(w, struct forgetting, work);
	struct job *j = f->checkpoint->job;

	f->checkpoint->works--;
	alloc_free(f);
	job_poke(j);
}

void sharing_step(struct job *j)
{
	struct checkpoint *c;

	list_each(c, &j->checkpoints, link) {
		struct forgetting *f;

		if (c->cached == 0 || c->readers > 0 || !all_have_read(c))
			continue;
		c->cached = 0;
		f = c->durable == DUR_DONE ? alloc_zero(sizeof(*f)) : NULL;
		if (!f)
			continue; /* the kernel reclaims them one day */
		f->checkpoint = c;
		job_id_of(j, c->step, &c->attempt, &f->id);
		f->work.run = forget_run;
		f->work.done = forget_done;
		c->works++;
		job_submit(j, WORK_META, &f->work);
	}
}
