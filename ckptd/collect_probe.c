/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collect_probe.c - the processes that somebody wants to know more of, looked at once a second.
 *
 * The first look begins a measurement of CPU time, the second, half a second later, ends it. One
 * thread looks at all that are due; while it does nobody waits: who was taken off meanwhile is not
 * told of. A process that is gone is not told of either, its pidfd does that. On the loop's thread,
 * but look_run().
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/list.h"
#include "ckptd/collect_process.h"
#include "ckptd/processes.h"
#include "ckptd/reader.h"

enum { LOOKS_MAX = 256 }; /* at once; the others are due in the next turn */

struct one {
	struct process_id id;
	struct process_look look;
	struct sample_activity activity;
	int status;
};

/* The thread's while it is busy, else the loop's. */
struct looks {
	struct prober *prober; /* for the loop alone */
	char proc[COLLECT_PATH_MAX];
	long ticks_per_s;
	size_t n;
	struct one one[LOOKS_MAX];
};

struct target {
	struct list link;
	struct process_id id;
	struct process_look look;
	uint64_t due_ns;
};

struct prober {
	struct loop *loop;
	prober_tell_fn *tell;
	void *arg;
	struct reader *reader;
	struct looks *looks;
	struct timer timer;
	struct list targets;
};

static void look_run(void *arg)
{
	struct looks *l = arg;

	for (size_t i = 0; i < l->n; i++) {
		struct one *o = &l->one[i];

		o->status = process_look_at(l->proc, &o->id, l->ticks_per_s, reader_clock_ns(),
					    &o->look, &o->activity);
		/* While it lives the pid is its own: what was read is of it. */
		if (o->status == 0 && (o->id.start & PROCESS_BY_INODE) && !process_lives(&o->id))
			o->status = -ESRCH;
	}
}

static struct target *find(struct prober *p, const struct process_id *id)
{
	struct target *t;

	list_each(t, &p->targets, link) {
		if (process_same(&t->id, id))
			return t;
	}
	return NULL;
}

static void set_timer(struct prober *p)
{
	uint64_t due = UINT64_MAX;
	struct target *t;

	list_each(t, &p->targets, link)
		due = min_u64(due, t->due_ns);
	if (due == UINT64_MAX || reader_busy(p->reader))
		timer_disarm(p->loop, &p->timer); /* what is looked at sets it when it is done */
	else
		timer_arm(p->loop, &p->timer, due);
}

static void look_done(void *arg)
{
	struct looks *l = arg;
	struct prober *p = l->prober;

	for (size_t i = 0; i < l->n; i++) {
		struct one *o = &l->one[i];
		struct target *t = find(p, &o->id);

		if (!t)
			continue;
		t->due_ns = loop_now(p->loop) + (t->look.at_ns ? PROBE_NS : PROBE_SOON_NS);
		t->look = o->look;
		if (o->status == 0)
			p->tell(p->arg, &o->id, &o->activity);
	}
	set_timer(p);
}

static const struct reader_ops look_ops = {
	.run = look_run,
	.done = look_done,
	.free = alloc_free,
};

static void time_came(struct timer *timer)
{
	struct prober *p = container_of(timer, struct prober, timer);
	uint64_t now = loop_now(p->loop);
	struct looks *l = p->looks;
	struct target *t;

	assert(!reader_busy(p->reader));
	l->n = 0;
	list_each(t, &p->targets, link) {
		if (t->due_ns > now || l->n == LOOKS_MAX)
			continue;
		l->one[l->n].id = t->id;
		l->one[l->n++].look = t->look;
	}
	if (l->n)
		reader_ask(p->reader);
	set_timer(p);
}

void prober_set(struct prober *p, const struct process_id *id, bool on)
{
	struct target *t = find(p, id);

	assert(loop_is_current(p->loop));
	if (on && !t) {
		t = alloc_zero(sizeof(*t));
		if (!t)
			return; /* it stays unknown */
		t->id = *id;
		t->due_ns = loop_now(p->loop);
		list_add_tail(&p->targets, &t->link);
	} else if (!on && t) {
		list_del(&t->link);
		alloc_free(t);
	}
	set_timer(p);
}

bool prober_any(const struct prober *p)
{
	return !list_empty(&p->targets);
}

int prober_new(struct loop *loop, const char *proc, prober_tell_fn *tell, void *arg,
	       struct prober **ret)
{
	struct prober *p = alloc_zero(sizeof(*p));
	int r = -ENOMEM;

	if (!p)
		return r;
	p->loop = loop;
	p->tell = tell;
	p->arg = arg;
	list_init(&p->targets);
	timer_init(&p->timer, time_came);
	p->looks = alloc_zero(sizeof(*p->looks));
	if (p->looks) {
		p->looks->prober = p;
		p->looks->ticks_per_s = sysconf(_SC_CLK_TCK);
		snprintf(p->looks->proc, sizeof(p->looks->proc), "%s", proc);
		r = reader_new(loop, "ckpt-probe", &look_ops, p->looks, &p->reader);
	}
	if (r) {
		alloc_free(p);
		return r;
	}
	*ret = p;
	return 0;
}

void prober_free(struct prober *p)
{
	struct target *t, *next;

	if (!p)
		return;
	timer_disarm(p->loop, &p->timer);
	list_each_safe(t, next, &p->targets, link)
		alloc_free(t);
	ignore_result(reader_free(p->reader, PROBE_SOON_NS)); /* it leaves what it holds */
	alloc_free(p);
}
