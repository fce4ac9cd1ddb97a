/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workers.c - threads for blocking work, a pool for each class, first in first out.
 *
 *   1. A work is in one place at a time: a pool's queue, a worker's hands, the list of finished
 *      ones, or its owner's. Each move is under a lock, so run() happens before done().
 *   2. done() is called on the loop, once, never inside submit: finished works are collected in
 *      one list, and one task, posted when the list stops being empty, hands them out.
 *   3. A DATA worker opens its disk queue before its first work and closes it after its last, in
 *      its own thread; nobody else sees it.
 *   4. Workers block every signal: signals are the loop's (a signalfd), and a system call of
 *      run() is never interrupted.
 *
 * Locks: one for each pool, one for the finished list (`done_lock`); they are never held together.
 * Failure modes: a thread or a disk queue that cannot be had fails workers_new() alone.
 */
#include <config.h>

#include "ckptd/workers.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "ckptd/loop_epoll.h"

enum { DONES_MAX = 64 }; /* in one turn of the loop */

struct thread_workers;

struct worker {
	pthread_t thread;
	struct pool *pool;
	unsigned number;
	bool made;                /* there is a thread to join */
	struct disk_queue *queue; /* DATA only (3) */
};

struct pool {
	struct thread_workers *all;
	enum work_class class;
	pthread_mutex_t lock; /* guards what follows, but the workers */
	pthread_cond_t news;
	struct list queue;
	bool stop;
	unsigned started; /* threads that got over their start */
	int start_error;
	unsigned width;
	struct worker *workers;
};

struct thread_workers {
	struct workers workers;
	struct loop *loop;
	struct disk *disk;
	unsigned queue_depth;
	struct pool pools[WORK_CLASSES];
	struct task hand_out; /* (2) */
	pthread_mutex_t done_lock; /* guards finished and hand_out_posted */
	pthread_cond_t done_news;
	struct list finished;
	bool hand_out_posted;
	size_t open; /* submitted and not done; the loop's */
};

static const char *const class_names[WORK_CLASSES] = {
	[WORK_DATA] = "data",
	[WORK_META] = "meta",
	[WORK_CPU] = "cpu",
	[WORK_INDEX] = "index",
	[WORK_LOG] = "log",
	[WORK_MEMORY] = "memory",
};

/* The worker that this thread is; NULL on all other threads. */
static _Thread_local struct worker *self;

static struct thread_workers *of(struct workers *w)
{
	return container_of(w, struct thread_workers, workers);
}

static void finish(struct thread_workers *tw, struct work *work)
{
	bool post;

	pthread_mutex_lock(&tw->done_lock);
	list_add_tail(&tw->finished, &work->link);
	post = !tw->hand_out_posted;
	tw->hand_out_posted = true;
	pthread_cond_signal(&tw->done_news);
	pthread_mutex_unlock(&tw->done_lock);
	if (post)
		loop_post(tw->loop, &tw->hand_out);
}

static struct work *next_work(struct pool *p)
{
	struct work *work;

	pthread_mutex_lock(&p->lock);
	while (list_empty(&p->queue) && !p->stop)
		pthread_cond_wait(&p->news, &p->lock);
	work = list_first(&p->queue, struct work, link);
	if (work)
		list_del(&work->link);
	pthread_mutex_unlock(&p->lock);
	return work;
}

static int worker_start(struct worker *w)
{
	struct thread_workers *tw = w->pool->all;
	char name[16];

	snprintf(name, sizeof(name), "ckpt-%s%u", class_names[w->pool->class], w->number);
	ignore_result(pthread_setname_np(pthread_self(), name)); /* for people only */
	self = w;
	if (w->pool->class != WORK_DATA)
		return 0;
	return tw->disk->ops->queue_open(tw->disk, tw->queue_depth, &w->queue);
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;
	struct pool *p = w->pool;
	struct work *work;
	int r = worker_start(w);

	pthread_mutex_lock(&p->lock);
	p->started++;
	if (r)
		p->start_error = r;
	pthread_cond_broadcast(&p->news);
	pthread_mutex_unlock(&p->lock);
	if (r)
		return NULL;
	while ((work = next_work(p))) {
		work->run(work);
		finish(p->all, work);
	}
	if (w->queue)
		p->all->disk->ops->queue_close(w->queue);
	return NULL;
}

/* On the loop: calls one done; false when nothing is finished: then the next to finish posts. */
static bool hand_back_one(struct thread_workers *tw)
{
	struct work *work;

	pthread_mutex_lock(&tw->done_lock);
	work = list_first(&tw->finished, struct work, link);
	if (work)
		list_del(&work->link);
	else
		tw->hand_out_posted = false;
	pthread_mutex_unlock(&tw->done_lock);
	if (!work)
		return false;
	assert(tw->open > 0);
	tw->open--;
	work->done(work);
	return true;
}

static void hand_out_run(struct task *t)
{
	struct thread_workers *tw = container_of(t, struct thread_workers, hand_out);

	for (int n = 0; n < DONES_MAX; n++) {
		if (!hand_back_one(tw))
			return;
	}
	loop_post(tw->loop, &tw->hand_out); /* the rest in the next turn */
}

/* ---- The table ---- */

static void submit(struct workers *w, enum work_class class, struct work *work)
{
	struct thread_workers *tw = of(w);
	struct pool *p = &tw->pools[class];

	assert(loop_is_current(tw->loop));
	assert(work->run && work->done);
	assert(p->width > 0);
	tw->open++;
	pthread_mutex_lock(&p->lock);
	assert(!p->stop);
	list_add_tail(&p->queue, &work->link);
	pthread_cond_signal(&p->news);
	pthread_mutex_unlock(&p->lock);
}

static int width(struct workers *w, enum work_class class)
{
	return (int)of(w)->pools[class].width;
}

static struct disk_queue *queue(struct workers *w)
{
	assert(self && self->pool->all == of(w)); /* on one of our workers */
	assert(self->pool->class == WORK_DATA);
	return self->queue;
}

static const struct workers_ops thread_ops = {
	.submit = submit,
	.width = width,
	.queue = queue,
};

/* ---- Start and stop ---- */

static int pool_start(struct pool *p, unsigned n)
{
	int r = 0;

	p->workers = alloc_array(n, sizeof(*p->workers));
	if (!p->workers)
		return -ENOMEM;
	p->width = n;
	for (unsigned i = 0; i < n && r == 0; i++) {
		struct worker *w = &p->workers[i];

		w->pool = p;
		w->number = i;
		r = -pthread_create(&w->thread, NULL, worker_main, w);
		w->made = r == 0;
	}
	return r;
}

/* Waits until every thread of the pool has started; the error of one that could not. */
static int pool_wait(struct pool *p)
{
	int r;

	pthread_mutex_lock(&p->lock);
	while (p->started < p->width)
		pthread_cond_wait(&p->news, &p->lock);
	r = p->start_error;
	pthread_mutex_unlock(&p->lock);
	return r;
}

static void pool_stop(struct pool *p)
{
	pthread_mutex_lock(&p->lock);
	p->stop = true;
	pthread_cond_broadcast(&p->news);
	pthread_mutex_unlock(&p->lock);
	for (unsigned i = 0; i < p->width; i++) {
		if (p->workers[i].made) {
			int r = pthread_join(p->workers[i].thread, NULL);

			assert(r == 0);
		}
	}
	assert(list_empty(&p->queue));
	pthread_cond_destroy(&p->news);
	pthread_mutex_destroy(&p->lock);
	alloc_free(p->workers);
}

static void drain(struct thread_workers *tw)
{
	while (tw->open > 0) {
		pthread_mutex_lock(&tw->done_lock);
		while (list_empty(&tw->finished))
			pthread_cond_wait(&tw->done_news, &tw->done_lock);
		pthread_mutex_unlock(&tw->done_lock);
		hand_back_one(tw);
	}
}

void workers_free(struct workers *w)
{
	struct thread_workers *tw;

	if (!w)
		return;
	tw = of(w);
	assert(loop_is_current(tw->loop));
	drain(tw);
	for (int c = 0; c < WORK_CLASSES; c++)
		pool_stop(&tw->pools[c]);
	loop_epoll_unpost(tw->loop, &tw->hand_out);
	assert(list_empty(&tw->finished));
	pthread_cond_destroy(&tw->done_news);
	pthread_mutex_destroy(&tw->done_lock);
	alloc_free(tw);
}

static struct thread_workers *workers_make(struct loop *loop, const struct workers_options *o)
{
	struct thread_workers *tw = alloc_zero(sizeof(*tw));

	if (!tw)
		return NULL;
	tw->workers.ops = &thread_ops;
	tw->loop = loop;
	tw->disk = o->disk;
	tw->queue_depth = o->queue_depth;
	list_init(&tw->hand_out.link);
	tw->hand_out.run = hand_out_run;
	list_init(&tw->finished);
	pthread_mutex_init(&tw->done_lock, NULL);
	pthread_cond_init(&tw->done_news, NULL);
	for (int c = 0; c < WORK_CLASSES; c++) {
		struct pool *p = &tw->pools[c];

		p->all = tw;
		p->class = (enum work_class)c;
		list_init(&p->queue);
		pthread_mutex_init(&p->lock, NULL);
		pthread_cond_init(&p->news, NULL);
	}
	return tw;
}

int workers_new(struct loop *loop, const struct workers_options *o, struct workers **ret,
		struct err *e)
{
	struct thread_workers *tw = workers_make(loop, o);
	sigset_t all, before;
	int r = 0, c;

	if (!tw)
		return err_code(e, -ENOMEM, "start the workers");
	assert(loop_is_current(loop));
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before); /* (4): threads inherit it */
	for (c = 0; c < WORK_CLASSES && r == 0; c++) {
		assert(o->threads[c] >= 1 && o->threads[c] <= WORKERS_MAX);
		r = pool_start(&tw->pools[c], o->threads[c]);
		if (r)
			err_code(e, r, "start %u %s workers", o->threads[c], class_names[c]);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	for (c = 0; c < WORK_CLASSES && r == 0; c++) {
		r = pool_wait(&tw->pools[c]);
		if (r)
			err_code(e, r, "open the disk queue of a %s worker", class_names[c]);
	}
	if (r) {
		workers_free(&tw->workers);
		return r;
	}
	*ret = &tw->workers;
	return 0;
}
