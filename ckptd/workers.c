/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workers.c - threads for blocking work, a pool for each class, in which users take turns.
 *
 *   1. A work is in one place at a time: a pool's queue, a worker's hands, the list of finished
 *      ones, or its owner's. Each move is under a lock, so run() happens before done().
 *   2. done() is called on the loop, once, never inside submit, by a task of the work's uid;
 *      until then it is in one list, from which workers_free() takes what no task has come to.
 *   3. A DATA worker opens its disk queue before its first work and closes it after its last, in
 *      its own thread; nobody else sees it.
 *   4. A pool has one thread more than one uid's works may use at a time: so another uid's work
 *      begins at once, even if those are long. INDEX has one thread, which keeps the order, and its
 *      works are the node's. If works of two uids take all threads, a third uid waits for the first
 *      that ends; so works that may take seconds (plans, checks, memory, bulk data) are in classes
 *      of their own, and neither LOG, META nor CPU has any: digests come in parts.
 *   5. A uid is charged for the time that its works occupy a worker.
 *   6. Workers block every signal: signals are the loop's (a signalfd), and a system call of
 *      run() is never interrupted.
 *
 * Locks: one for each pool, one for the finished list (`done_lock`); they are never held together;
 * the loop's lock is taken inside the latter.
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
#include <time.h>

#include "base/alloc.h"
#include "ckptd/loop_epoll.h"

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
	struct fair_queue queue;
	bool stop;
	unsigned started; /* threads that got over their start */
	int start_error;
	unsigned width;     /* works of one uid at a time (4) */
	unsigned n_workers;
	struct worker *workers;
};

struct thread_workers {
	struct workers workers;
	struct loop *loop;
	struct disk *disk;
	unsigned queue_depth;
	struct pool pools[WORK_CLASSES];
	pthread_mutex_t done_lock; /* guards finished */
	pthread_cond_t done_news;
	struct list finished; /* (2) */
	size_t open; /* submitted and not done; the loop's */
};

static const char *const class_names[WORK_CLASSES] = {
	[WORK_DATA] = "data",
	[WORK_META] = "meta",
	[WORK_PLAN] = "plan",
	[WORK_CPU] = "cpu",
	[WORK_INDEX] = "index",
	[WORK_LOG] = "log",
	[WORK_MEMORY] = "memory",
	[WORK_CHECK] = "check",
};

/* The worker that this thread is; NULL on all other threads. */
static _Thread_local struct worker *self;

static struct thread_workers *of(struct workers *w)
{
	return container_of(w, struct thread_workers, workers);
}

/* On the loop. */
static void hand_back(struct thread_workers *tw, struct work *work)
{
	pthread_mutex_lock(&tw->done_lock);
	list_del(&work->link);
	pthread_mutex_unlock(&tw->done_lock);
	assert(tw->open > 0);
	tw->open--;
	work->done(work);
}

static void task_run(struct task *t)
{
	struct work *work = container_of(t, struct work, task);

	loop_label(((struct thread_workers *)work->workers)->loop, "the end of a work");
	hand_back(work->workers, work);
}

static void finish(struct thread_workers *tw, struct work *work)
{
	pthread_mutex_lock(&tw->done_lock);
	list_add_tail(&tw->finished, &work->link);
	loop_post(tw->loop, &work->task); /* in the lock: until then drain() must not see it */
	pthread_cond_signal(&tw->done_news);
	pthread_mutex_unlock(&tw->done_lock);
}

/*
 * Charges for the work before (cost 0: there was none), and waits for the next. That its uid is
 * no more at its width wakes no other worker: this one looks at the queue itself, and each work
 * that another could take has woken one when it came.
 */
static struct work *next_work(struct pool *p, uint64_t cost, uint32_t *uid)
{
	struct list *item;

	pthread_mutex_lock(&p->lock);
	if (cost > 0)
		fair_charge(&p->queue, *uid, cost);
	while (!(item = fair_take(&p->queue, p->width, uid)) && !p->stop)
		pthread_cond_wait(&p->news, &p->lock);
	pthread_mutex_unlock(&p->lock);
	return item ? container_of(item, struct work, link) : NULL;
}

static uint64_t now_ns(void)
{
	struct timespec t;
	int r = clock_gettime(CLOCK_MONOTONIC, &t);

	assert(r == 0);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
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
	uint64_t cost = 0, from;
	struct work *work;
	uint32_t uid = 0;
	int r = worker_start(w);

	pthread_mutex_lock(&p->lock);
	p->started++;
	if (r)
		p->start_error = r;
	pthread_cond_broadcast(&p->news);
	pthread_mutex_unlock(&p->lock);
	if (r)
		return NULL;
	while ((work = next_work(p, cost, &uid))) {
		from = now_ns();
		work->run(work);
		finish(p->all, work);
		cost = 1 + now_ns() - from; /* (5) */
	}
	if (w->queue)
		p->all->disk->ops->queue_close(w->queue);
	return NULL;
}

/* ---- The table ---- */

static void submit(struct workers *w, enum work_class class, struct work *work)
{
	struct thread_workers *tw = of(w);
	struct pool *p = &tw->pools[class];

	assert(loop_is_current(tw->loop));
	assert(work->run && work->done);
	assert(p->width > 0);
	task_init(&work->task, work->uid, task_run);
	work->workers = tw;
	tw->open++;
	pthread_mutex_lock(&p->lock);
	assert(!p->stop);
	fair_push(&p->queue, work->uid, &work->link);
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

	unsigned threads = n + (p->class != WORK_INDEX); /* (4) */

	p->workers = alloc_array(threads, sizeof(*p->workers));
	if (!p->workers)
		return -ENOMEM;
	p->width = n;
	p->n_workers = threads;
	for (unsigned i = 0; i < threads && r == 0; i++) {
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
	while (p->started < p->n_workers)
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
	for (unsigned i = 0; i < p->n_workers; i++) {
		if (p->workers[i].made) {
			int r = pthread_join(p->workers[i].thread, NULL);

			assert(r == 0);
		}
	}
	assert(fair_empty(&p->queue));
	fair_fini(&p->queue);
	pthread_cond_destroy(&p->news);
	pthread_mutex_destroy(&p->lock);
	alloc_free(p->workers);
}

/* The loop runs no more: what its tasks have not come to is handed back here (2). */
static void drain(struct thread_workers *tw)
{
	while (tw->open > 0) {
		struct work *work;

		pthread_mutex_lock(&tw->done_lock);
		while (list_empty(&tw->finished))
			pthread_cond_wait(&tw->done_news, &tw->done_lock);
		work = list_first(&tw->finished, struct work, link);
		pthread_mutex_unlock(&tw->done_lock);
		loop_unpost(tw->loop, &work->task);
		hand_back(tw, work);
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
	list_init(&tw->finished);
	pthread_mutex_init(&tw->done_lock, NULL);
	pthread_cond_init(&tw->done_news, NULL);
	for (int c = 0; c < WORK_CLASSES; c++) {
		struct pool *p = &tw->pools[c];

		p->all = tw;
		p->class = (enum work_class)c;
		fair_init(&p->queue);
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
	pthread_sigmask(SIG_SETMASK, &all, &before); /* (6): threads inherit it */
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
