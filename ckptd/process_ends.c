/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process_ends.c - processes that have ended and whose ranks' ends are not all handled yet.
 *
 * One process may be a thousand ranks. Handling the end of one takes some 50 us: it frees slots and
 * pages and updates the ledger and the detector. So each call handles one rank, and other users
 * have their turns between two calls:
 *
 *   LEAVING    its members leave their jobs, one by one; then it waits for the process's exit
 *              status if that is not known yet
 *   TELLING    the detector gets the status, rank by rank, for members and for ranks that left
 *              before
 *   over
 *
 * A member whose process has ended stays a member until its turn: an open that takes its rank finds
 * it (and may free it: it leaves the list here as well). Failure mode: out of memory: one call
 * handles all ranks.
 */
#include <config.h>

#include "ckptd/process_ends.h"

#include "base/alloc.h"
#include "ckptd/leaving.h"
#include "ckptd/node_priv.h"
#include "ckptd/watching.h"

struct ended_process {
	struct list link; /* in node->process_ends */
	struct node *node;
	struct process_id process;
	struct list members; /* member->ending */
	bool known;          /* exit is valid */
	struct process_exit exit;
	struct task task;
};

static void end_free(struct ended_process *e)
{
	loop_unpost(e->node->env.loop, &e->task);
	list_del(&e->members);
	list_del(&e->link);
	alloc_free(e);
}

/* False: there is none left. */
static bool tell_one(struct node *n, const struct process_id *p, const struct process_exit *x)
{
	return watching_process_exit(n, p, x) || leaving_process_exit(n, p, x);
}

static void go_on(struct task *t)
{
	struct ended_process *e = container_of(t, struct ended_process, task);
	struct member *m = list_first(&e->members, struct member, ending);
	struct node *n = e->node;

	loop_label(n->env.loop, "a rank whose process has ended");
	if (m) {
		list_del(&m->ending);
		member_left(m, MEMBER_ENDED);
	} else if (!e->known) {
		return; /* process_ends_exit() goes on */
	} else if (!tell_one(n, &e->process, &e->exit)) {
		end_free(e);
		return;
	}
	loop_post(n->env.loop, &e->task);
}

static struct ended_process *end_new(struct node *n, const struct process_id *p)
{
	struct ended_process *e = alloc_zero(sizeof(*e));

	if (!e)
		return NULL;
	e->node = n;
	e->process = *p;
	list_init(&e->members);
	task_init(&e->task, p->uid, go_on);
	list_add_tail(&n->process_ends, &e->link);
	loop_post(n->env.loop, &e->task);
	return e;
}

void process_ends_ended(struct node *n, const struct process_id *p)
{
	struct ended_process *e = NULL;
	struct member *m, *next;
	bool none = false;

	list_each_safe(m, next, by_process(&n->members, p), of_process) {
		if (!process_same(&m->process, p))
			continue;
		if (!e && !none)
			e = end_new(n, p);
		none = !e;
		if (e)
			list_add_tail(&e->members, &m->ending);
		else
			member_left(m, MEMBER_ENDED);
	}
}

void process_ends_exit(struct node *n, const struct process_id *p, const struct process_exit *x)
{
	struct ended_process *e;

	list_each(e, &n->process_ends, link) {
		if (!process_same(&e->process, p) || e->known)
			continue;
		e->known = true;
		e->exit = *x;
		loop_unpost(n->env.loop, &e->task);
		loop_post(n->env.loop, &e->task);
		return;
	}
	e = end_new(n, p); /* of ranks that have left before */
	if (e) {
		e->known = true;
		e->exit = *x;
		return;
	}
	while (tell_one(n, p, x))
		;
}

void process_ends_init(struct node *n)
{
	list_init(&n->process_ends);
}

void process_ends_fini(struct node *n)
{
	while (!list_empty(&n->process_ends)) {
		struct ended_process *e =
			list_first(&n->process_ends, struct ended_process, link);

		while (!list_empty(&e->members))
			list_del(&list_first(&e->members, struct member, ending)->ending);
		end_free(e);
	}
}
