/* SPDX-License-Identifier: Apache-2.0 */
/*
 * problems_restart.c - since when a job waits for a commit, as the log and the pages of its ranks
 * say it to a ckptd that has just started. Else a ckptd that ends again and again would hide that
 * nothing is committed.
 *
 * Failure modes: a clock of the day that was set makes the wait too long or too short until the
 * next commit. Where the log does not say when the epoch began, the wait begins with this start.
 *
 * Thread: the loop.
 */
#include <config.h>

#include "base/bytes.h"
#include "ckptd/beats.h"
#include "ckptd/node_priv.h"
#include "ckptd/problems.h"
#include "proto/beat_page.h"

/* When its epoch has committed last, or began; 0: not known. */
static uint64_t waits_since(const struct job *j)
{
	const struct history *h = &j->history;

	for (size_t i = h->n_commits; i-- > 0;)
		if (h->commits[i].epoch == h->epoch.number)
			return h->commits[i].wall_ns;
	return h->epoch_wall_ns;
}

static bool wants_to_save(const struct job *j)
{
	const struct checkpoint *c;
	const struct member *m;
	uint64_t step;

	list_each(c, &j->checkpoints, link)
		if (c->epoch == j->history.epoch.number && c->n_memory > 0)
			return true;
	list_each(m, &j->members, link) {
		const struct beat_page *p = beats_page(m);

		if (p && beat_page_next_save(p, j->history.epoch.number, true, &step))
			return true;
	}
	return false;
}

void problems_adopted(struct job *j)
{
	struct loop *l = j->node->env.loop;
	uint64_t now = loop_now(l), wall = loop_wall(l), then = waits_since(j);
	uint64_t waited = then && wall > then ? wall - then : 0;

	if (list_empty(&j->members))
		return;
	j->saves.tried = wants_to_save(j);
	j->saves.commit_ns = now > waited ? now - waited : 1;
	/* At once: the life of this ckptd may be short. */
	j->node->problems_watched = true;
	timer_arm(l, &j->node->problems_timer, now);
}
