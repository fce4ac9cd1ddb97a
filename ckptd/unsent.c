/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unsent.c - descriptors that a process did not take, closed by a worker.
 *
 * The plan of a load and a long answer are memfds whose last descriptors these are: closing one
 * frees its pages, 0.13 ms for each MiB, and a call on the loop may take a millisecond.
 *
 * Failure modes: without memory they are closed where they are. Thread: the loop, but unsent_run().
 */
#include <config.h>

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/conn.h"
#include "ckptd/node_priv.h"

struct unsent {
	struct work work;
	struct node *node;
	size_t n;
	int fds[CONN_FDS_MAX];
};

static void unsent_run(struct work *w)
{
	struct unsent *u = container_of(w, struct unsent, work);
	struct memory *m = u->node->env.memory;

	for (size_t i = 0; i < u->n; i++)
		m->ops->close_fd(m, u->fds[i]);
	w->status = 0;
}

static void unsent_done(struct work *w)
{
	struct unsent *u = container_of(w, struct unsent, work);

	u->node->side_works--;
	alloc_free(u);
}

void node_close_unsent(void *arg, uint32_t uid, const int *fds, size_t n_fds)
{
	struct node *n = arg;
	struct memory *m = n->env.memory;
	struct unsent *u = alloc_zero(sizeof(*u));

	assert(n_fds <= CONN_FDS_MAX);
	for (size_t i = 0; !u && i < n_fds; i++)
		m->ops->close_fd(m, fds[i]);
	if (!u)
		return;
	u->node = n;
	u->n = n_fds;
	memcpy(u->fds, fds, n_fds * sizeof(int));
	u->work.run = unsent_run;
	u->work.done = unsent_done;
	n->side_works++;
	work_submit(n->env.workers, WORK_META, uid, &u->work);
}
