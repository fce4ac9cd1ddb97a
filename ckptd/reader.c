/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader.c - a thread for reads that may never come back.
 *
 *   IDLE --ask--> ASKED --(thread)--> RUNNING --> RAN --(loop: done)--> IDLE
 *
 *   1. arg is the loop's in IDLE and RAN, the thread's in ASKED and RUNNING.
 *   2. One task is posted for each run, under the lock and only while nobody has left; so after
 *      reader_free() none comes.
 *   3. Whoever leaves last frees: the loop, which joins; or the thread, once it was left behind.
 *
 * A thread in an uninterruptible wait of the kernel cannot be ended by anybody: the process then
 * ends when the kernel comes back. All signals are blocked in it: they are the loop's.
 */
#include <config.h>

#include "ckptd/reader.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include "base/alloc.h"
#include "ckptd/loop_epoll.h"

enum state { IDLE, ASKED, RUNNING, RAN };

struct reader {
	const struct reader_ops *ops;
	void *arg;
	struct loop *loop;
	struct task task;
	pthread_t thread;
	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t news;
	enum state state;
	bool quit, left; /* the thread shall end; nobody waits for it any more */
};

uint64_t reader_clock_ns(void)
{
	struct timespec t;
	int r = clock_gettime(CLOCK_MONOTONIC, &t);

	assert(r == 0);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void reader_drop(struct reader *r)
{
	r->ops->free(r->arg);
	pthread_cond_destroy(&r->news);
	pthread_mutex_destroy(&r->lock);
	alloc_free(r);
}

/* Waits for work; false: there will be none. */
static bool next(struct reader *r)
{
	bool go;

	pthread_mutex_lock(&r->lock);
	while (r->state != ASKED && !r->quit)
		pthread_cond_wait(&r->news, &r->lock);
	go = r->state == ASKED; /* what was asked is done, also while it quits */
	if (go)
		r->state = RUNNING;
	pthread_mutex_unlock(&r->lock);
	return go;
}

static void *reader_main(void *arg)
{
	struct reader *r = arg;
	bool left = false;

	while (next(r)) {
		r->ops->run(r->arg);
		pthread_mutex_lock(&r->lock);
		assert(r->state == RUNNING);
		r->state = RAN;
		if (!r->quit)
			loop_post(r->loop, &r->task); /* (2) */
		left = r->left;
		pthread_cond_signal(&r->news);
		pthread_mutex_unlock(&r->lock);
		if (left)
			break;
	}
	if (left)
		reader_drop(r); /* (3) */
	return NULL;
}

static void ran(struct task *t)
{
	struct reader *r = container_of(t, struct reader, task);

	assert(loop_is_current(r->loop));
	pthread_mutex_lock(&r->lock);
	assert(r->state == RAN);
	r->state = IDLE;
	pthread_mutex_unlock(&r->lock);
	r->ops->done(r->arg);
}

static int start(struct reader *r, const char *name)
{
	sigset_t all, before;
	int ret;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	ret = -pthread_create(&r->thread, NULL, reader_main, r);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (ret == 0)
		ignore_result(pthread_setname_np(r->thread, name)); /* for people only */
	return ret;
}

int reader_new(struct loop *loop, const char *name, const struct reader_ops *ops, void *arg,
	       struct reader **ret)
{
	struct reader *r = alloc_zero(sizeof(*r));
	pthread_condattr_t attr;
	int ret_start;

	assert(loop_is_current(loop));
	assert(ops->run && ops->done && ops->free);
	if (!r) {
		ops->free(arg);
		return -ENOMEM;
	}
	r->ops = ops;
	r->arg = arg;
	r->loop = loop;
	task_init(&r->task, FAIR_NODE, ran);
	pthread_mutex_init(&r->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&r->news, &attr);
	pthread_condattr_destroy(&attr);
	ret_start = start(r, name);
	if (ret_start) {
		reader_drop(r);
		return ret_start;
	}
	*ret = r;
	return 0;
}

void reader_ask(struct reader *r)
{
	assert(loop_is_current(r->loop));
	pthread_mutex_lock(&r->lock);
	assert(r->state == IDLE && !r->quit);
	r->state = ASKED;
	pthread_cond_signal(&r->news);
	pthread_mutex_unlock(&r->lock);
}

bool reader_busy(const struct reader *r)
{
	struct reader *w = (struct reader *)r; /* only its lock is taken */
	bool busy;

	pthread_mutex_lock(&w->lock);
	busy = r->state != IDLE;
	pthread_mutex_unlock(&w->lock);
	return busy;
}

/* true: the thread is not in a run, and will not be. One that was asked for is waited for too. */
static bool wait_for_run(struct reader *r, uint64_t wait_ns)
{
	uint64_t at = reader_clock_ns() + wait_ns;
	struct timespec until = {(time_t)(at / 1000000000u), (long)(at % 1000000000u)};
	int ret = 0;

	while ((r->state == ASKED || r->state == RUNNING) && ret == 0)
		ret = pthread_cond_timedwait(&r->news, &r->lock, &until);
	return r->state == IDLE || r->state == RAN;
}

bool reader_free(struct reader *r, uint64_t wait_ns)
{
	bool ended;

	if (!r)
		return true;
	assert(loop_is_current(r->loop));
	pthread_mutex_lock(&r->lock);
	r->quit = true;
	pthread_cond_signal(&r->news);
	ended = wait_for_run(r, wait_ns);
	r->left = !ended;
	if (r->left)
		pthread_detach(r->thread);
	loop_unpost(r->loop, &r->task);
	pthread_mutex_unlock(&r->lock);
	if (!ended)
		return false;
	if (pthread_join(r->thread, NULL) != 0)
		assert(!"a thread that was made can be joined");
	reader_drop(r);
	return true;
}
