/* SPDX-License-Identifier: Apache-2.0 */
/*
 * probing.c - the node's collectors, and the ranks whose processes the detector asks about.
 *
 * Collectors know processes, the detector knows ranks. A rank that is asked about is kept here with
 * the process that it was when the question was passed on; what the collectors see of that becomes
 * a SAMPLE_ACTIVITY, with step and phase of the rank's beats. A question ends when the detector
 * says so, which it does when the rank ends.
 *
 * On the loop's thread. The detector may ask about all ranks of a node at once: a question only
 * waits at first, and some of those that wait are passed on in a call.
 */
#include <config.h>

#include "ckptd/probing.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fair.h"
#include "ckptd/beats.h"
#include "ckptd/collect.h"
#include "ckptd/node_priv.h"
#include "ckptd/watching.h"

#define RANK_BUCKETS     1024u /* consecutive ranks lie in different ones */
#define PASSED_IN_A_CALL 32u

struct asked {
	struct list of_rank;
	struct list waiting;    /* in probing->waiting until it is passed on */
	struct list of_process; /* from then on */
	uint32_t job, rank;
	struct process_id process;
};

struct probing {
	struct node *node;
	struct list by_rank[RANK_BUCKETS];
	struct by_process by_process;
	struct list waiting;
	struct task passing;
	bool posted; /* passing is; while any waits, and where they were all taken back meanwhile */
};

static struct list *by_rank(struct probing *p, uint32_t job, uint32_t rank)
{
	return &p->by_rank[(job * 131 + rank) % RANK_BUCKETS];
}

static struct member *member_asked(struct node *n, uint32_t job, uint32_t rank)
{
	struct job *j = watching_job(n, job);
	struct member *m = j ? member_of_rank(j, rank) : NULL;

	return m && m->alive ? m : NULL;
}

static struct asked *find(struct probing *p, uint32_t job, uint32_t rank)
{
	struct asked *a;

	list_each(a, by_rank(p, job, rank), of_rank) {
		if (a->job == job && a->rank == rank)
			return a;
	}
	return NULL;
}

static bool somebody_asks(struct probing *p, const struct process_id *process)
{
	struct asked *a;

	list_each(a, by_process(&p->by_process, process), of_process) {
		if (process_same(&a->process, process))
			return true;
	}
	return false;
}

static void forget(struct probing *p, struct asked *a)
{
	struct collectors *c = p->node->env.collectors;
	bool passed = list_empty(&a->waiting);

	list_del(&a->of_rank);
	list_del(&a->waiting);
	list_del(&a->of_process);
	if (passed && !somebody_asks(p, &a->process)) /* it may be a rank of several jobs */
		c->ops->probe(c, &a->process, false);
	alloc_free(a);
}

static void post(struct probing *p)
{
	if (p->posted || list_empty(&p->waiting))
		return;
	p->posted = true;
	loop_post(p->node->env.loop, &p->passing);
}

static void pass_on(struct task *t)
{
	struct probing *p = container_of(t, struct probing, passing);
	struct collectors *c = p->node->env.collectors;

	loop_label(p->node->env.loop, "questions about ranks");
	p->posted = false;
	for (unsigned n = 0; !list_empty(&p->waiting) && n < PASSED_IN_A_CALL; n++) {
		struct asked *a = list_first(&p->waiting, struct asked, waiting);
		struct member *m = member_asked(p->node, a->job, a->rank);

		if (!m) { /* it has left: it stays unknown what it did */
			forget(p, a);
			continue;
		}
		list_del(&a->waiting);
		a->process = m->process;
		list_add_tail(by_process(&p->by_process, &a->process), &a->of_process);
		c->ops->probe(c, &a->process, true);
	}
	post(p);
}

void probing_wanted(struct node *n, uint32_t job, uint32_t rank, bool wanted)
{
	struct probing *p = n->probing;
	struct asked *a = p ? find(p, job, rank) : NULL;

	if (a)
		forget(p, a);
	if (!p || !wanted)
		return;
	a = alloc_zero(sizeof(*a));
	if (!a)
		return; /* it stays unknown what the rank does */
	a->job = job;
	a->rank = rank;
	list_init(&a->of_process);
	list_add_tail(by_rank(p, job, rank), &a->of_rank);
	list_add_tail(&p->waiting, &a->waiting);
	post(p);
}

/* The member that was asked about, if it is that process still. */
static struct member *member_now(struct node *n, const struct asked *a)
{
	const struct job *j = watching_job(n, a->job);
	struct member *m;

	list_each(m, by_process(&n->members, &a->process), of_process) {
		if (m->job == j && m->rank == a->rank && m->alive &&
		    process_same(&m->process, &a->process))
			return m;
	}
	return NULL;
}

static void tell(struct node *n, const struct member *m, const struct sample_activity *seen)
{
	struct sample s = {.kind = SAMPLE_ACTIVITY,
			   .node = WATCHING_NODE,
			   .job = watching_number(m->job),
			   .rank = m->rank,
			   .device = SAMPLE_NONE};
	struct beat_now now;

	s.activity = *seen;
	if (beats_now(m, &now)) {
		s.activity.step = now.step;
		s.activity.phase = now.phase;
		s.activity.since_ns = now.since_ns;
	}
	node_sample(n, &s);
}

static void on_activity(void *arg, const struct process_id *process,
			const struct sample_activity *seen)
{
	struct probing *p = arg;
	struct node *n = p->node;
	struct list *all = by_process(&p->by_process, process);
	struct asked *a, *next;
	struct member *m;

	beats_scan(n); /* it may have gone on since; then nobody asks any more */
	list_each_safe(a, next, all, of_process) {
		if (!process_same(&a->process, process))
			continue;
		m = member_now(n, a);
		if (m) {
			/* The others of the process come before it then. */
			list_del(&a->of_process);
			list_add_tail(all, &a->of_process);
			tell(n, m, seen);
			return; /* the list may be another now */
		}
	}
}

static void on_sample(void *arg, const struct sample *s)
{
	node_sample(((struct probing *)arg)->node, s);
}

static void add_collector(void *arg, const char *name, bool works, const char *text)
{
	json_array_append_new(
		arg, json_pack("{s:s, s:b, s:s}", "name", name, "works", (int)works, "text", text));
}

json_t *probing_json(const struct node *n)
{
	json_t *array = json_array();

	if (array && n->probing)
		n->env.collectors->ops->describe(n->env.collectors, add_collector, array);
	return array;
}

int probing_new(struct node *n, struct probing **ret)
{
	struct collect_sink sink = {.sample = on_sample, .activity = on_activity};
	struct probing *p;

	*ret = NULL;
	if (!n->env.collectors || !n->watching)
		return 0;
	p = alloc_zero(sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->node = n;
	for (unsigned i = 0; i < RANK_BUCKETS; i++)
		list_init(&p->by_rank[i]);
	by_process_init(&p->by_process);
	list_init(&p->waiting);
	task_init(&p->passing, FAIR_NODE, pass_on);
	sink.arg = p;
	n->env.collectors->ops->start(n->env.collectors, &sink);
	*ret = p;
	return 0;
}

void probing_free(struct probing *p)
{
	struct asked *a, *next;

	if (!p)
		return;
	p->node->env.collectors->ops->stop(p->node->env.collectors);
	loop_unpost(p->node->env.loop, &p->passing);
	for (unsigned i = 0; i < RANK_BUCKETS; i++)
		list_each_safe(a, next, &p->by_rank[i], of_rank)
			alloc_free(a);
	alloc_free(p);
}
