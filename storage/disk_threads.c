/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk_threads.c - queued transfers by a few threads with pread() and pwrite(), for containers that
 * forbid io_uring.
 *
 * The caller helps: a reap() that finds nothing finished takes a waiting transfer itself. So a
 * single small transfer wakes nobody, and a queue whose threads could not be made still works.
 *
 * Lock order: there is one lock, the queue's; it is never held across a transfer. Threads: submit,
 * reap and close by the one that opened the queue; serve() by the queue's own.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>

#include "base/alloc.h"
#include "storage/disk_backend.h"

#define HELPERS_MAX 4u
#define HELPER_STACK (128u << 10)

struct disk_queue {
	pthread_mutex_t lock;
	pthread_cond_t work, ended;
	struct list waiting, done; /* of struct disk_io by link */
	unsigned n_waiting;
	unsigned depth, in_flight; /* in_flight: submitted and not yet reaped */
	bool closing;
	unsigned n_helpers;
	pthread_t thread, helpers[HELPERS_MAX];
};

/* Takes the oldest waiting transfer, does it without the lock, and puts it to the done ones. */
static void serve_one(struct disk_queue *q)
{
	struct disk_io *io = list_first(&q->waiting, struct disk_io, link);

	assert(io && q->n_waiting > 0);
	list_del(&io->link);
	q->n_waiting--;
	pthread_mutex_unlock(&q->lock);
	io->result = transfer_blocking(posix_file_of(io->file), io->buf, io->length, io->offset,
				       io->write);
	pthread_mutex_lock(&q->lock);
	list_add_tail(&q->done, &io->link);
}

static void *serve(void *arg)
{
	struct disk_queue *q = arg;

	pthread_mutex_lock(&q->lock);
	while (!q->closing) {
		if (list_empty(&q->waiting)) {
			pthread_cond_wait(&q->work, &q->lock);
			continue;
		}
		serve_one(q);
		pthread_cond_signal(&q->ended);
	}
	pthread_mutex_unlock(&q->lock);
	return NULL;
}

/* As many as can be had; signals are for the threads that asked for them. */
static void start_helpers(struct disk_queue *q)
{
	unsigned want = q->depth - 1 < HELPERS_MAX ? q->depth - 1 : HELPERS_MAX;
	sigset_t all, before;
	pthread_attr_t attr;

	if (pthread_attr_init(&attr) != 0)
		return;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	if (pthread_attr_setstacksize(&attr, HELPER_STACK) == 0)
		while (q->n_helpers < want &&
		       pthread_create(&q->helpers[q->n_helpers], &attr, serve, q) == 0)
			q->n_helpers++;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
}

int threads_queue_open(struct disk *disk, unsigned depth, struct disk_queue **ret)
{
	struct disk_queue *q = alloc_zero(sizeof(*q));

	(void)disk;
	assert(depth >= 1 && depth <= 1024);
	if (!q)
		return -ENOMEM;
	pthread_mutex_init(&q->lock, NULL);
	pthread_cond_init(&q->work, NULL);
	pthread_cond_init(&q->ended, NULL);
	list_init(&q->waiting);
	list_init(&q->done);
	q->depth = depth;
	q->thread = pthread_self();
	start_helpers(q);
	*ret = q;
	return 0;
}

int threads_submit(struct disk_queue *q, struct disk_io *io)
{
	const struct posix_file *f = posix_file_of(io->file);

	assert(pthread_equal(q->thread, pthread_self()));
	assert(io->length <= DISK_TRANSFER_MAX && (f->writing || !io->write));
	if (!transfer_allowed(f, io->buf, io->length, io->offset))
		return -EINVAL;
	if (q->in_flight == q->depth)
		return -EAGAIN;
	q->in_flight++;
	pthread_mutex_lock(&q->lock);
	list_add_tail(&q->waiting, &io->link);
	/* The last one is left for the caller, who has nothing else to do in reap(). */
	if (++q->n_waiting > 1)
		pthread_cond_signal(&q->work);
	pthread_mutex_unlock(&q->lock);
	return 0;
}

int threads_reap(struct disk_queue *q, struct disk_io **ret)
{
	struct disk_io *io;

	assert(pthread_equal(q->thread, pthread_self()));
	if (q->in_flight == 0) {
		*ret = NULL;
		return 0;
	}
	pthread_mutex_lock(&q->lock);
	while (list_empty(&q->done)) {
		if (!list_empty(&q->waiting))
			serve_one(q);
		else
			pthread_cond_wait(&q->ended, &q->lock);
	}
	io = list_first(&q->done, struct disk_io, link);
	list_del(&io->link);
	pthread_mutex_unlock(&q->lock);
	q->in_flight--;
	*ret = io;
	return 0;
}

void threads_queue_close(struct disk_queue *q)
{
	struct disk_io *io;

	if (!q)
		return;
	while (q->in_flight > 0)
		ignore_result(threads_reap(q, &io)); /* it cannot fail */
	pthread_mutex_lock(&q->lock);
	q->closing = true;
	pthread_cond_broadcast(&q->work);
	pthread_mutex_unlock(&q->lock);
	for (unsigned i = 0; i < q->n_helpers; i++)
		pthread_join(q->helpers[i], NULL);
	pthread_cond_destroy(&q->ended);
	pthread_cond_destroy(&q->work);
	pthread_mutex_destroy(&q->lock);
	alloc_free(q);
}

int threads_queue_register(struct disk_queue *q, void *base, uint64_t length)
{
	(void)q;
	(void)base;
	(void)length;
	return 0; /* pwrite() has no use for it */
}

void threads_queue_unregister(struct disk_queue *q, void *base)
{
	(void)q;
	(void)base;
}
