/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collect_probe.c - the processes that somebody wants to know more of, looked at once a second.
 *
 * The first look begins a measurement of CPU time, the second, half a second later, ends it. One
 * thread looks at all that are due; while it does nobody waits: who was taken off meanwhile is not
 * told of. A process that is gone is not told of either, its pidfd does that. On the loop's thread,
 * but look_run().
 *
 * A read may block without limit (collect_process.c). After STUCK_NS the prober abandons the
 * thread, reports the process as unknown, and starts another thread. It reads that process again
 * after one minute, then two, four, ... At most LEFT_MAX threads are abandoned at a time; then all
 * wait.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/fair.h"
#include "base/list.h"
#include "ckptd/by_process.h"
#include "ckptd/collect_process.h"
#include "ckptd/processes.h"
#include "ckptd/reader.h"

enum {
	LOOKS_MAX = 256, /* at once; the others are due in the next turn */
	TOLD_IN_A_CALL = 32,
	LEFT_MAX = 16,
};
#define STUCK_NS       2000000000u
#define STUCK_AGAIN_NS 60000000000u

/* Threads that were left behind. Held by the prober and by all that its threads look at. */
struct left {
	atomic_uint held, n;
};

struct one {
	struct process_id id;
	struct process_look look;
	struct sample_activity activity;
	int status;
};

/* The thread's while it is busy, else the loop's. */
struct looks {
	struct prober *prober; /* for the loop alone */
	struct left *left;
	atomic_bool behind;
	atomic_size_t at; /* which one is looked at; n: all were */
	char proc[COLLECT_PATH_MAX];
	long ticks_per_s;
	size_t n;
	struct one one[LOOKS_MAX];
};

struct target {
	struct list link, of_process;
	struct process_id id;
	struct process_look look;
	uint64_t due_ns;
	uint64_t stuck_ns; /* how long its newest stuck look put it off; 0: none was stuck */
};

struct prober {
	struct loop *loop;
	prober_tell_fn *tell;
	void *arg;
	struct reader *reader;
	struct looks *looks;
	struct left *left;
	struct timer timer, stuck;
	struct list targets;
	struct by_process by_process; /* the same */
	uint64_t next_ns;             /* the earliest is not due before */
	struct task telling;
	bool tells; /* of what was looked at: from looks->one[told] on */
	size_t told;
	char proc[COLLECT_PATH_MAX];
};

static void left_put(struct left *x)
{
	if (atomic_fetch_sub(&x->held, 1) == 1)
		alloc_free(x);
}

static void look_run(void *arg)
{
	struct looks *l = arg;

	for (size_t i = 0; i < l->n; i++) {
		struct one *o = &l->one[i];

		atomic_store(&l->at, i);
		o->status = process_look_at(l->proc, &o->id, l->ticks_per_s, reader_clock_ns(),
					    &o->look, &o->activity);
		/* While it lives the pid is its own: what was read is of it. */
		if (o->status == 0 && (o->id.start & PROCESS_BY_INODE) && !process_lives(&o->id))
			o->status = -ESRCH;
	}
	atomic_store(&l->at, l->n);
}

static struct target *find(struct prober *p, const struct process_id *id)
{
	struct target *t;

	list_each(t, by_process(&p->by_process, id), of_process) {
		if (process_same(&t->id, id))
			return t;
	}
	return NULL;
}

static void set_due(struct prober *p, struct target *t, uint64_t due_ns)
{
	t->due_ns = due_ns;
	p->next_ns = min_u64(p->next_ns, due_ns);
}

static void set_timer(struct prober *p)
{
	if (list_empty(&p->targets))
		p->next_ns = UINT64_MAX;
	if (p->next_ns == UINT64_MAX || reader_busy(p->reader) || p->tells)
		timer_disarm(p->loop, &p->timer); /* what is looked at sets it when it is done */
	else
		timer_arm(p->loop, &p->timer, p->next_ns);
}

static void tell_some(struct task *task)
{
	struct prober *p = container_of(task, struct prober, telling);
	struct looks *l = p->looks;

	loop_label(p->loop, "what was seen of processes");
	for (unsigned n = 0; p->told < l->n && n < TOLD_IN_A_CALL; n++) {
		struct one *o = &l->one[p->told++];
		struct target *t = find(p, &o->id);

		if (!t)
			continue;
		set_due(p, t, loop_now(p->loop) + (t->look.at_ns ? PROBE_NS : PROBE_SOON_NS));
		t->look = o->look;
		if (o->status == 0)
			p->tell(p->arg, &o->id, &o->activity);
	}
	p->tells = p->told < l->n;
	if (p->tells)
		loop_post(p->loop, task);
	set_timer(p);
}

static void look_done(void *arg)
{
	struct looks *l = arg;
	struct prober *p = l->prober;

	timer_disarm(p->loop, &p->stuck);
	p->tells = true;
	p->told = 0;
	tell_some(&p->telling);
}

static void looks_free(void *arg)
{
	struct looks *l = arg;

	if (atomic_load(&l->behind))
		atomic_fetch_sub(&l->left->n, 1);
	left_put(l->left);
	alloc_free(l);
}

static const struct reader_ops look_ops = {
	.run = look_run,
	.done = look_done,
	.free = looks_free,
};

/* Another one in the place of p->reader, which is the caller's to free. */
static int start_reader(struct prober *p)
{
	struct looks *l = alloc_zero(sizeof(*l));
	struct reader *reader;
	int r;

	if (!l)
		return -ENOMEM;
	l->prober = p;
	l->left = p->left;
	atomic_fetch_add(&p->left->held, 1);
	l->ticks_per_s = sysconf(_SC_CLK_TCK);
	memcpy(l->proc, p->proc, sizeof(l->proc));
	r = reader_new(p->loop, "ckpt-probe", &look_ops, l, &reader);
	if (r < 0)
		return r;
	p->looks = l;
	p->reader = reader;
	return 0;
}

static void is_stuck(struct timer *timer)
{
	struct sample_activity unknown = {.state = '?',
					  .cpu_permille = UINT16_MAX,
					  .gpu_permille = UINT16_MAX,
					  .timed = TIMED_NOT_KNOWN};
	struct prober *p = container_of(timer, struct prober, stuck);
	struct reader *reader = p->reader;
	struct looks *l = p->looks;
	size_t at = atomic_load(&l->at);
	struct process_id id;
	struct target *t;

	assert(reader_busy(reader));
	if (at >= l->n) /* it has come back, which is told next */
		return;
	if (atomic_load(&p->left->n) >= LEFT_MAX || start_reader(p) < 0) {
		timer_arm(p->loop, &p->stuck, loop_now(p->loop) + STUCK_NS);
		return;
	}
	id = l->one[at].id; /* l may be gone behind this */
	t = find(p, &id);
	atomic_fetch_add(&p->left->n, 1);
	atomic_store(&l->behind, true);
	ignore_result(reader_free(reader, 0)); /* it may have come back just now */
	if (t) {
		t->stuck_ns = t->stuck_ns ? 2 * t->stuck_ns : STUCK_AGAIN_NS;
		t->due_ns = loop_now(p->loop) + t->stuck_ns;
		p->tell(p->arg, &id, &unknown);
	}
	list_each(t, &p->targets, link) /* those behind it are due as before */
		set_due(p, t, t->due_ns);
	set_timer(p);
}

static void time_came(struct timer *timer)
{
	struct prober *p = container_of(timer, struct prober, timer);
	uint64_t now = loop_now(p->loop);
	struct looks *l = p->looks;
	struct target *t;

	loop_label(p->loop, "looks at processes");
	assert(!reader_busy(p->reader) && !p->tells);
	l->n = 0;
	p->next_ns = UINT64_MAX;
	list_each(t, &p->targets, link) {
		if (t->due_ns > now || l->n == LOOKS_MAX) {
			set_due(p, t, t->due_ns);
			continue;
		}
		l->one[l->n].id = t->id;
		l->one[l->n++].look = t->look;
	}
	if (l->n) {
		reader_ask(p->reader);
		timer_arm(p->loop, &p->stuck, now + STUCK_NS);
	}
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
		set_due(p, t, loop_now(p->loop));
		list_add_tail(&p->targets, &t->link);
		list_add_tail(by_process(&p->by_process, id), &t->of_process);
	} else if (!on && t) {
		list_del(&t->link);
		list_del(&t->of_process);
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
	by_process_init(&p->by_process);
	p->next_ns = UINT64_MAX;
	task_init(&p->telling, FAIR_NODE, tell_some);
	timer_init(&p->timer, time_came);
	timer_init(&p->stuck, is_stuck);
	snprintf(p->proc, sizeof(p->proc), "%s", proc);
	p->left = alloc_zero(sizeof(*p->left));
	if (p->left) {
		atomic_store(&p->left->held, 1);
		r = start_reader(p);
	}
	if (r) {
		if (p->left)
			left_put(p->left);
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
	timer_disarm(p->loop, &p->stuck);
	loop_unpost(p->loop, &p->telling);
	list_each_safe(t, next, &p->targets, link)
		alloc_free(t);
	ignore_result(reader_free(p->reader, PROBE_SOON_NS)); /* it leaves what it holds */
	left_put(p->left);
	alloc_free(p);
}
