/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leaving.c - ranks that left without a goodbye (ckpt_abandon()): their trainers failed.
 *
 * Such a rank is no member any more: its slots are given back, and its rank may be opened anew. Of
 * its process the end is waited for, and told like that of a member:
 *
 *   ends with another status than 0, or by a signal   as it ended
 *   ends with status 0                                a goodbye: what failed was caught
 *   opens this job again, or the rank is taken        a goodbye: it goes on
 *   lives on for options.leaving_ns                   its trainer failed, and it does not end
 *
 * Until then the detector takes the rank to be in a phase of its own: who waits for it is not to
 * blame, and neither is an interpreter that takes its time to end. A ckptd that ends meanwhile
 * forgets it. On the loop's thread.
 */
#include <config.h>

#include "ckptd/leaving.h"

#include "base/alloc.h"
#include "ckptd/goodput.h"
#include "ckptd/node_priv.h"
#include "ckptd/watching.h"

struct leaving {
	struct list link;       /* in job->leaving */
	struct list of_process; /* in node->leaving */
	struct job *job;
	uint32_t rank;
	struct process_id process;
	struct timer timer;
};

static void drop(struct leaving *x)
{
	timer_disarm(x->job->node->env.loop, &x->timer);
	list_del(&x->link);
	list_del(&x->of_process);
	alloc_free(x);
}

static void say_goodbye(struct leaving *x)
{
	struct job *j = x->job;

	watching_exit(j, x->rank, EXIT_SAID_BYE, 0);
	drop(x);
	member_all_left(j);
}

static void lives_on(struct timer *t)
{
	struct leaving *x = container_of(t, struct leaving, timer);

	watching_exit(x->job, x->rank, EXIT_LEFT, 0);
	drop(x);
}

void leaving_add(const struct member *m)
{
	struct leaving *x = alloc_zero(sizeof(*x));
	struct loop *loop = m->job->node->env.loop;

	if (!x) { /* too early rather than not at all */
		watching_exit(m->job, m->rank, EXIT_LEFT, 0);
		return;
	}
	x->job = m->job;
	x->rank = m->rank;
	x->process = m->process;
	timer_init(&x->timer, lives_on);
	timer_arm(loop, &x->timer, loop_now(loop) + m->job->node->options.leaving_ns);
	list_add_tail(&m->job->leaving, &x->link);
	list_add_tail(by_process(&m->job->node->leaving, &x->process), &x->of_process);
	watching_leaves(m);
}

void leaving_goes_on(struct job *j, const struct process_id *p, uint32_t rank)
{
	struct leaving *x, *next;

	list_each_safe(x, next, &j->leaving, link) {
		if (x->rank != rank && !process_same(&x->process, p))
			continue;
		watching_exit(j, x->rank, EXIT_SAID_BYE, 0);
		drop(x);
	}
}

bool leaving_process_exit(struct node *n, const struct process_id *p,
			  const struct process_exit *exit)
{
	struct leaving *x;

	list_each(x, by_process(&n->leaving, p), of_process) {
		if (!process_same(&x->process, p))
			continue;
		if (exit->how == PROCESS_END_STATUS && exit->value == 0) {
			say_goodbye(x);
			return true;
		}
		watching_exit(x->job, x->rank, watching_how(exit), exit->value);
		drop(x);
		return true;
	}
	return false;
}

void leaving_forget(struct job *j)
{
	struct leaving *x, *next;

	list_each_safe(x, next, &j->leaving, link)
		drop(x);
}
