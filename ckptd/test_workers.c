/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>

#include "base/alloc.h"
#include "ckptd/loop_epoll.h"
#include "ckptd/workers.h"
#include "tests/lib/test.h"

/* A disk that knows only queues, and on which thread they are opened and closed. */
struct disk_queue {
	pthread_t owner;
};
struct queues {
	struct disk disk;
	atomic_int opened, closed;
	atomic_int refuse_from; /* the n-th open (from 1) and later fail; 0: none */
	unsigned depth;
};

static int q_open(struct disk *d, unsigned depth, struct disk_queue **ret)
{
	struct queues *q = container_of(d, struct queues, disk);
	int n = atomic_fetch_add(&q->opened, 1) + 1, refuse = atomic_load(&q->refuse_from);

	assert_int_equal(depth, 7);
	if (refuse && n >= refuse)
		return -EMFILE;
	*ret = alloc_zero(sizeof(**ret));
	assert_non_null(*ret);
	(*ret)->owner = pthread_self();
	return 0;
}

/* The disk of one test at a time; queue_close() is not told which. */
static struct queues disk;

static void q_close(struct disk_queue *q)
{
	assert_true(pthread_equal(q->owner, pthread_self()));
	atomic_fetch_add(&disk.closed, 1);
	alloc_free(q);
}

static const struct disk_ops queue_ops = { .queue_open = q_open, .queue_close = q_close };

struct fixture {
	struct loop *loop;
	struct workers *workers;
};

static const struct workers_options options = {
	.threads = { [WORK_DATA] = 3, [WORK_META] = 2, [WORK_PLAN] = 1, [WORK_CPU] = 2,
		     [WORK_INDEX] = 1, [WORK_LOG] = 1, [WORK_MEMORY] = 1,
		     [WORK_CHECK] = 1 },
	.disk = &disk.disk,
	.queue_depth = 7,
};

static int setup(void **state)
{
	static struct fixture f;

	disk = (struct queues){ .disk.ops = &queue_ops };
	if (loop_epoll_new(&f.loop, NULL) || workers_new(f.loop, &options, &f.workers, NULL))
		return -1;
	*state = &f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	workers_free(f->workers);
	loop_epoll_free(f->loop);
	assert_int_equal(atomic_load(&disk.opened), 4); /* one more than the width */
	assert_int_equal(atomic_load(&disk.closed), 4);
	return 0;
}

/* ---- Each exactly once ---- */

struct unit {
	struct work work;
	struct fixture *f;
	enum work_class class;
	atomic_int runs;
	int dones, *left;
	bool submitting;
};

static void unit_run(struct work *w)
{
	struct unit *u = container_of(w, struct unit, work);
	sigset_t mask;

	atomic_fetch_add(&u->runs, 1);
	assert_false(loop_is_current(u->f->loop));
	assert_int_equal(pthread_sigmask(SIG_SETMASK, NULL, &mask), 0);
	assert_true(sigismember(&mask, SIGTERM) && sigismember(&mask, SIGUSR1));
	if (u->class == WORK_DATA) {
		struct disk_queue *q = u->f->workers->ops->queue(u->f->workers);

		assert_true(pthread_equal(q->owner, pthread_self()));
	}
	w->status = 42;
}

static void unit_done(struct work *w)
{
	struct unit *u = container_of(w, struct unit, work);

	assert_true(loop_is_current(u->f->loop));
	assert_false(u->submitting);
	assert_int_equal(w->status, 42);
	u->dones++;
	if (u->left && --*u->left == 0)
		loop_epoll_stop(u->f->loop);
}

static void unit_submit(struct fixture *f, struct unit *u, enum work_class class, int *left)
{
	*u = (struct unit){ .f = f, .class = class, .left = left };
	u->work.run = unit_run;
	u->work.done = unit_done;
	u->submitting = true;
	work_submit(f->workers, class, FAIR_NODE, &u->work);
	u->submitting = false;
}

enum { UNITS = 1000 };

static void test_each_work_is_done_once(void **state)
{
	static struct unit units[UNITS];
	int left = UNITS;

	for (int i = 0; i < UNITS; i++)
		unit_submit(*state, &units[i], (enum work_class)(i % WORK_CLASSES), &left);
	loop_epoll_run(((struct fixture *)*state)->loop);
	for (int i = 0; i < UNITS; i++) {
		assert_int_equal(atomic_load(&units[i].runs), 1);
		assert_int_equal(units[i].dones, 1);
	}
	assert_int_equal(work_width(((struct fixture *)*state)->workers, WORK_DATA), 3);
}

/* ---- Order, cancel, drain ---- */

struct ordered {
	struct work work;
	int number, *next;
};

static void ordered_run(struct work *w)
{
	struct ordered *o = container_of(w, struct ordered, work);

	assert_int_equal((*o->next)++, o->number); /* one worker: no lock needed */
}

static void nothing(struct work *w)
{
	(void)w;
}

static void test_one_worker_keeps_the_order_and_free_drains(void **state)
{
	struct fixture *f = *state;
	static struct ordered works[300];
	int next = 0;

	for (int i = 0; i < 300; i++) {
		works[i] = (struct ordered){ .number = i, .next = &next };
		works[i].work.run = ordered_run;
		works[i].work.done = nothing;
		work_submit(f->workers, WORK_INDEX, FAIR_NODE, &works[i].work);
	}
	workers_free(f->workers); /* no turn of the loop was made */
	assert_int_equal(next, 300);
	f->workers = NULL;
	loop_epoll_turn(f->loop, 0); /* nothing of it is left in the loop */
}

struct chain {
	struct work work;
	struct fixture *f;
	int left;
};

static void chain_done(struct work *w)
{
	struct chain *c = container_of(w, struct chain, work);

	if (--c->left > 0)
		work_submit(c->f->workers, WORK_META, FAIR_NODE, w);
}

static void test_free_drains_what_dones_submit(void **state)
{
	struct fixture *f = *state;
	struct chain c = { .f = f, .left = 50, .work = { .run = nothing, .done = chain_done } };

	work_submit(f->workers, WORK_META, FAIR_NODE, &c.work);
	workers_free(f->workers);
	f->workers = NULL;
	assert_int_equal(c.left, 0);
}

/* Runs until it is cancelled: a test that hangs when cancel does not arrive. */
static void until_cancelled(struct work *w)
{
	while (!work_cancelled(w))
		sched_yield();
	w->status = -ECANCELED;
}

struct cancelled {
	struct work work;
	int *dones;
};

static void cancelled_done(struct work *w)
{
	assert_int_equal(w->status, -ECANCELED);
	++*container_of(w, struct cancelled, work)->dones;
}

static void test_cancel_reaches_run_and_done_still_comes(void **state)
{
	struct fixture *f = *state;
	struct cancelled works[4];
	int dones = 0;

	for (int i = 0; i < 4; i++) { /* 2 workers: two of them are still queued */
		works[i] = (struct cancelled){ .dones = &dones };
		works[i].work.run = until_cancelled;
		works[i].work.done = cancelled_done;
		work_submit(f->workers, WORK_CPU, FAIR_NODE, &works[i].work);
	}
	for (int i = 0; i < 4; i++)
		atomic_store(&works[i].work.cancel, true);
	while (dones < 4)
		loop_epoll_turn(f->loop, UINT64_MAX);
}

/* ---- Users ---- */

struct stuck {
	struct work work;
	struct fixture *f;
	sem_t *go;
	int *dones;
};

static void stuck_run(struct work *w)
{
	struct stuck *s = container_of(w, struct stuck, work);

	while (s->go && sem_wait(s->go) != 0)
		;
}

static void stuck_done(struct work *w)
{
	++*container_of(w, struct stuck, work)->dones;
}

static void stuck_submit(struct fixture *f, struct stuck *s, uint32_t uid, sem_t *go, int *dones)
{
	*s = (struct stuck){.f = f, .go = go, .dones = dones};
	s->work.run = stuck_run;
	s->work.done = stuck_done;
	work_submit(f->workers, WORK_META, uid, &s->work);
}

static void test_one_user_does_not_hold_all_workers(void **state)
{
	struct fixture *f = *state;
	struct stuck held[8], other[3];
	int held_dones = 0, other_dones = 0;
	sem_t go;

	assert_int_equal(sem_init(&go, 0, 0), 0);
	for (int i = 0; i < 8; i++)
		stuck_submit(f, &held[i], 1000, &go, &held_dones);
	for (int i = 0; i < 3; i++)
		stuck_submit(f, &other[i], 1001, NULL, &other_dones);
	while (other_dones < 3)
		loop_epoll_turn(f->loop, UINT64_MAX);
	assert_int_equal(held_dones, 0);
	for (int i = 0; i < 8; i++)
		assert_int_equal(sem_post(&go), 0);
	while (held_dones < 8)
		loop_epoll_turn(f->loop, UINT64_MAX);
	sem_destroy(&go);
}

/* ---- Start that fails ---- */

static void test_a_queue_that_does_not_open_fails_the_start(void **state)
{
	struct loop *l;
	struct workers *w = NULL;
	struct err e = { 0 };

	(void)state;
	disk = (struct queues){ .disk.ops = &queue_ops, .refuse_from = 2 };
	assert_int_equal(loop_epoll_new(&l, NULL), 0);
	assert_int_equal(workers_new(l, &options, &w, &e), -EMFILE);
	assert_null(w);
	assert_non_null(strstr(e.text, "disk queue of a data worker"));
	assert_int_equal(atomic_load(&disk.closed), 1);
	loop_epoll_free(l);
}

static void test_allocations_that_fail(void **state)
{
	struct loop *l;
	struct workers *w = NULL;
	int r;

	(void)state;
	assert_int_equal(loop_epoll_new(&l, NULL), 0);
	for (uint64_t n = 1;; n++) {
		disk = (struct queues){ .disk.ops = &queue_ops };
		alloc_fail_at(n, false);
		r = workers_new(l, &options, &w, NULL);
		alloc_fail_at(0, false);
		if (r == 0)
			break;
		assert_int_equal(r, -ENOMEM);
		assert_int_equal(atomic_load(&disk.closed), atomic_load(&disk.opened));
	}
	workers_free(w);
	loop_epoll_free(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
		T(test_each_work_is_done_once),
		T(test_one_worker_keeps_the_order_and_free_drains),
		T(test_free_drains_what_dones_submit),
		T(test_cancel_reaches_run_and_done_still_comes),
		T(test_one_user_does_not_hold_all_workers),
#undef T
		cmocka_unit_test(test_a_queue_that_does_not_open_fails_the_start),
		cmocka_unit_test(test_allocations_that_fail),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
