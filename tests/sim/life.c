/* SPDX-License-Identifier: Apache-2.0 */
/*
 * life.c - lives: the loop and the workers in virtual time, and their end.
 *
 * All code of a life runs on its fibers, so that a kill can take it away at any park without
 * unwinding. Wake-ups are driver events; a killed life's events are forgotten.
 */
#include <config.h>

#include "tests/sim/life.h"

#include <assert.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "tests/sim/heap.h"
#include "tests/sim/life_int.h"

#define DISPATCH_NS_MAX (50 * SIM_US)

static void kill_now(struct life *l);

/* Runs fiber f of l until it parks. */
static void resume(struct life *l, struct fiber *f)
{
	struct world *w = l->world;
	struct alloc_watch *before;

	assert(l->alive && !w->current);
	w->current = l;
	l->running = f;
	before = alloc_set_watch(&l->blocks.watch);
	fiber_resume(f);
	alloc_set_watch(before);
	l->running = NULL;
	w->current = NULL;
	if (l->dying)
		kill_now(l);
}

/* ---- Sleeping: a wake-up is an event that carries its fiber ---- */

struct nap {
	struct life *life;
	struct fiber *fiber;
};

/* In the queue as an event of the life, so that it is forgotten with it; see life_deliver(). */
static void wake(void *arg)
{
	struct nap *nap = arg;

	resume(nap->life, nap->fiber);
}

void life_sleep(struct world *w, uint64_t ns)
{
	struct life *l = w->current;
	struct nap nap;

	assert(l && l->running);
	/* The loop must not block: everything else of the daemon would stand still. */
	assert(l->running != &l->control || l->starting);
	nap = (struct nap){ l, l->running };
	world_at(w, w->now_ns + ns, l, wake, &nap);
	fiber_park();
}

/* ---- The loop ---- */

static struct life *of_loop(struct loop *loop)
{
	return container_of(loop, struct life, loop);
}

static uint64_t sim_now(struct loop *loop)
{
	struct life *l = of_loop(loop);

	return l->world->now_ns - l->options.clock_zero_ns;
}

static uint64_t sim_wall(struct loop *loop)
{
	return of_loop(loop)->world->wall_zero_ns + of_loop(loop)->world->now_ns;
}

static void sim_timer_arm(struct loop *loop, struct timer *t, uint64_t deadline_ns)
{
	struct life *l = of_loop(loop);
	uint64_t at;

	assert(loop_is_current(loop));
	if (__builtin_add_overflow(deadline_ns, l->options.clock_zero_ns, &at))
		at = UINT64_MAX - 1;
	timers_insert(&l->timers, t, at);
}

static void sim_timer_disarm(struct loop *loop, struct timer *t)
{
	assert(loop_is_current(loop));
	timers_remove(&of_loop(loop)->timers, t);
}

#define TASK_COST 1000 /* each the same: virtual time does not pass on the loop */

static void run_task(void *arg)
{
	struct life *l = arg;
	uint32_t uid;
	struct list *item = fair_take(&l->posted, UINT32_MAX, &uid);

	if (!item)
		return; /* it was taken back */
	container_of(item, struct task, link)->run(container_of(item, struct task, link));
	fair_charge(&l->posted, uid, TASK_COST);
}

static void sim_post(struct loop *loop, struct task *t)
{
	struct life *l = of_loop(loop);

	assert(list_empty(&t->link));
	fair_push(&l->posted, t->uid, &t->link);
	world_at(l->world, l->world->now_ns, l, run_task, l);
}

static void sim_unpost(struct loop *loop, struct task *t)
{
	(void)loop;
	list_del(&t->link);
}

static bool sim_is_current(struct loop *loop)
{
	struct life *l = of_loop(loop);

	return l->world->current == l && l->running == &l->control;
}

static const struct loop_ops loop_ops = {
	.now_ns = sim_now,
	.wall_ns = sim_wall,
	.timer_arm = sim_timer_arm,
	.timer_disarm = sim_timer_disarm,
	.post = sim_post,
	.unpost = sim_unpost,
	.is_current = sim_is_current,
};

static void control_run(void *arg)
{
	struct life *l = arg;

	l->main(l->main_arg);
	l->starting = false;
	for (;;) {
		while (l->inbox_first < l->n_inbox) {
			struct inbox_entry e = l->inbox[l->inbox_first++];

			e.fn(e.arg);
		}
		l->inbox_first = l->n_inbox = 0;
		l->control_idle = true;
		fiber_park();
		l->control_idle = false;
	}
}

void life_deliver(struct life *l, void (*fn)(void *arg), void *arg)
{
	assert(l->alive);
	if (fn == wake) {
		wake(arg);
		return;
	}
	sim_grow(l->inbox, l->n_inbox, l->cap_inbox);
	l->inbox[l->n_inbox++] = (struct inbox_entry){ fn, arg };
	if (l->control_idle)
		resume(l, &l->control);
}

static void fire_timers(void *arg)
{
	struct life *l = arg;

	l->timers_queued = false;
	timers_fire(&l->timers, l->world->now_ns, 64);
}

void life_deliver_timers(struct life *l)
{
	l->timers_queued = true;
	life_deliver(l, fire_timers, l);
}

/* ---- Workers ---- */

static void run_done(void *arg)
{
	struct work *work = arg;

	work->done(work);
}

/* Answers come in the order in which they were given, as from a queue between threads. */
static void answer(struct life *l, struct work *work)
{
	struct world *w = l->world;
	uint64_t at = w->now_ns + world_random(w, DISPATCH_NS_MAX);

	if (at < l->last_done_ns)
		at = l->last_done_ns;
	l->last_done_ns = at;
	world_at(w, at, l, run_done, work);
}

static void worker_run(void *arg)
{
	struct worker *k = arg;
	struct work_queue *q = &k->life->classes[k->class];

	for (;;) {
		uint32_t uid;
		struct list *item = fair_take(&q->waiting, (uint32_t)q->width, &uid);
		struct work *work = item ? container_of(item, struct work, link) : NULL;
		uint64_t from = k->life->world->now_ns;

		k->idle = !work;
		if (!work) {
			fiber_park();
			continue;
		}
		world_note(k->life->world, "work", k->class, 0, 0);
		work->run(work);
		answer(k->life, work);
		fair_charge(&q->waiting, uid, k->life->world->now_ns - from);
		life_sleep(k->life->world, world_random(k->life->world, DISPATCH_NS_MAX));
	}
}

/* Driver event: a worker looks at its queue. */
static void worker_kick(void *arg)
{
	struct worker *k = arg;

	if (k->idle)
		resume(k->life, &k->fiber);
}

static void sim_submit(struct workers *workers, enum work_class c, struct work *work)
{
	struct life *l = container_of(workers, struct life, workers);
	struct work_queue *q = &l->classes[c];
	struct world *w = l->world;

	assert(loop_is_current(&l->loop) && q->width > 0);
	fair_push(&q->waiting, work->uid, &work->link);
	/* Whoever is idle may be the one; a kick that finds nothing does nothing. */
	for (int i = 0; i < q->width; i++) {
		if (q->workers[i].idle)
			world_after(w, world_random(w, DISPATCH_NS_MAX), NULL, worker_kick,
				    &q->workers[i]);
	}
}

static int sim_width(struct workers *workers, enum work_class c)
{
	return container_of(workers, struct life, workers)->classes[c].width;
}

static struct disk_queue *sim_queue(struct workers *workers)
{
	struct life *l = container_of(workers, struct life, workers);
	struct worker *k = container_of(l->running, struct worker, fiber);

	assert(l->running != &l->control && k->class == WORK_DATA);
	if (!k->queue) {
		int r = l->options.disk->ops->queue_open(l->options.disk, l->options.queue_depth,
							 &k->queue);

		assert(r == 0);
	}
	return k->queue;
}

static const struct workers_ops workers_ops = {
	.submit = sim_submit,
	.width = sim_width,
	.queue = sim_queue,
};

static void workers_start(struct life *l)
{
	for (int c = 0; c < WORK_CLASSES; c++) {
		struct work_queue *q = &l->classes[c];

		fair_init(&q->waiting);
		q->width = l->options.width[c];
		q->workers = sim_zero((size_t)q->width * sizeof(*q->workers));
		for (int i = 0; i < q->width; i++) {
			struct worker *k = &q->workers[i];

			k->life = l;
			k->class = (enum work_class)c;
			k->idle = true;
			fiber_init(&k->fiber, worker_run, k);
		}
	}
}

/* ---- Beginning and end ---- */

static void begin(void *arg)
{
	struct life *l = arg;

	resume(l, &l->control);
}

struct life *life_start(struct world *w, const struct life_options *o, void (*main)(void *arg),
			void *arg)
{
	struct life *l = sim_zero(sizeof(*l));

	assert(!w->current);
	l->world = w;
	l->options = *o;
	l->number = ++w->n_lives;
	l->alive = l->starting = true;
	l->main = main;
	l->main_arg = arg;
	l->loop.ops = &loop_ops;
	l->workers.ops = &workers_ops;
	fair_init(&l->posted);
	list_init(&l->ends);
	list_add_tail(&w->lives, &l->link);
	blocks_init(&l->blocks);
	rng_seed(&l->rng, rng_u64(&w->rng.rng));
	fiber_init(&l->control, control_run, l);
	workers_start(l);
	world_note(w, "start", l->number, 0, 0);
	world_at(w, w->now_ns, NULL, begin, l);
	return l;
}

void life_on_end(struct life *l, struct life_hook *h)
{
	list_add_tail(&l->ends, &h->link);
}

/* Takes everything away that belongs to the process; memory last, nobody looks at it any more. */
static void end(struct life *l)
{
	struct world *w = l->world;

	l->alive = false;
	list_del(&l->link);
	world_forget_life(w, l);
	world_forget(w, l);
	for (int c = 0; c < WORK_CLASSES; c++) {
		for (int i = 0; i < l->classes[c].width; i++) {
			world_forget(w, &l->classes[c].workers[i]);
			fiber_drop(&l->classes[c].workers[i].fiber);
		}
	}
	fiber_drop(&l->control);
	while (!list_empty(&l->ends)) {
		struct life_hook *h = list_first(&l->ends, struct life_hook, link);

		list_del(&h->link);
		h->ended(h);
	}
	sim_fd_close_all(w, l);
	blocks_drop(&l->blocks);
	free(l->blocks.slots);
}

static void kill_now(struct life *l)
{
	world_note(l->world, "killed", l->number, 0, 0);
	end(l);
}

void life_kill(struct life *l)
{
	assert(!l->world->current);
	if (l->alive)
		kill_now(l);
}

void life_die(struct life *l)
{
	assert(l->world->current == l && l->running);
	l->dying = true;
	fiber_park();
	abort(); /* a dead life was resumed */
}

static void die_by_fault(void *arg)
{
	struct world *w = arg;

	assert(w->current); /* a fault point on the driver's own calls */
	life_die(w->current);
}

void life_catch_faults(struct world *w)
{
	fault_set_kill(w ? die_by_fault : NULL, w);
}

bool life_idle(const struct life *l)
{
	if (!l->alive || l->starting || l->inbox_first < l->n_inbox)
		return false;
	for (int c = 0; c < WORK_CLASSES; c++) {
		if (!fair_empty(&l->classes[c].waiting))
			return false;
		for (int i = 0; i < l->classes[c].width; i++) {
			if (!l->classes[c].workers[i].idle)
				return false;
		}
	}
	return true;
}

static void workers_end(void *arg)
{
	struct life *l = arg;

	for (int c = 0; c < WORK_CLASSES; c++)
		fair_fini(&l->classes[c].waiting);
	fair_fini(&l->posted);
	for (int i = 0; i < l->classes[WORK_DATA].width; i++) {
		struct worker *k = &l->classes[WORK_DATA].workers[i];

		if (k->queue)
			l->options.disk->ops->queue_close(k->queue);
		k->queue = NULL;
	}
}

size_t life_end(struct life *l)
{
	size_t held;

	assert(life_idle(l) && !l->world->current);
	life_run(l, workers_end, l);
	held = blocks_live(&l->blocks) + sim_fd_count(l->world, l);
	world_note(l->world, "ended", l->number, held, 0);
	end(l);
	return held;
}

void life_free(struct life *l)
{
	if (!l)
		return;
	life_kill(l);
	for (int c = 0; c < WORK_CLASSES; c++)
		free(l->classes[c].workers);
	free(l->inbox);
	free(l);
}

void life_run(struct life *l, void (*fn)(void *arg), void *arg)
{
	assert(l->control_idle);
	life_deliver(l, fn, arg);
}
