/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop_epoll.c - the loop of ckptd's control thread.
 *
 * epoll and not io_uring: this thread is low rate (a few messages a rank and save) and must work
 * where containers forbid io_uring; rings belong to the data threads, which have a fall-back.
 *
 * One turn: wait; read the clock; all descriptors that are ready, which only note that (at most
 * BATCHES_MAX * EVENTS_MAX); posted tasks, in fair order, until they have taken TURN_NS of the
 * processor; timers that are due, at most TIMERS_MAX. What is over a bound comes in the next turn,
 * which then does not wait, so that no kind of work starves another.
 *
 *   1. A callback never runs inside the call that arranged it: post, arm and watch only note.
 *   2. `inbox` is the only thing another thread touches, under `lock`; whoever makes it non-empty
 *      from another thread rings the bell, so a sleeping loop never misses a post.
 *   3. After watch_remove() the watch is not touched: its event in the current batch is dropped.
 *   4. Idle means asleep: with nothing armed the loop waits without a timeout.
 *   5. A user waits for a call that runs, and for its turn among users: never for calls that others
 *      posted before. The loop measures each call by the thread's CPU time, by a system call at
 *      its end, and charges the call's user. The first call of a turn begins where the last one of
 *      the turn before has ended: it is charged the time that has passed since the wait at most.
 *
 * Failure modes: epoll_wait failing for anything but EINTR is a programmer's error (a closed
 * descriptor of ours) and stops the process.
 */
#include <config.h>

#include "ckptd/loop_epoll.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"

enum { EVENTS_MAX = 64, BATCHES_MAX = 16, TIMERS_MAX = 64, TURN_NS = 2000000 };

struct loop_epoll {
	struct loop loop;
	pthread_t thread;
	int epoll;
	struct watch bell; /* eventfd: another thread posted */
	bool stop;
	uint64_t now_ns, turns;
	struct timers timers;
	struct fair_queue ready; /* tasks: of this turn, and what was left of the last */
	uint64_t cpu_ns;         /* of this thread, when the running call began */
	bool waited; /* the running call is the first behind a wait, which ended at now_ns */
	const char *label;       /* of the running call; NULL: it has none */
	struct loop_calls calls;
	struct epoll_event events[EVENTS_MAX]; /* the current batch */
	int n_events;
	pthread_mutex_t lock; /* guards inbox */
	struct list inbox;
};

static struct loop_epoll *of(struct loop *l)
{
	return container_of(l, struct loop_epoll, loop);
}

static uint64_t clock_ns(clockid_t id)
{
	struct timespec t;
	int r = clock_gettime(id, &t);

	assert(r == 0);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t epoll_now(struct loop *l)
{
	return of(l)->now_ns;
}

static uint64_t epoll_wall(struct loop *l)
{
	(void)l;
	return clock_ns(CLOCK_REALTIME);
}

static bool epoll_is_current(struct loop *l)
{
	return pthread_equal(of(l)->thread, pthread_self());
}

static void epoll_timer_arm(struct loop *l, struct timer *t, uint64_t deadline_ns)
{
	assert(epoll_is_current(l));
	timers_insert(&of(l)->timers, t, deadline_ns);
}

static void epoll_timer_disarm(struct loop *l, struct timer *t)
{
	assert(epoll_is_current(l));
	timers_remove(&of(l)->timers, t);
}

static void epoll_label(struct loop *l, const char *what)
{
	assert(epoll_is_current(l));
	of(l)->label = what;
}

static const struct loop_calls *epoll_calls(struct loop *l)
{
	return &of(l)->calls;
}

/* A call is over, the next one begins; what the one that is over took (5). */
static uint64_t call_over(struct loop_epoll *ep, const char *kind)
{
	uint64_t now = clock_ns(CLOCK_THREAD_CPUTIME_ID), took = now - ep->cpu_ns;

	if (ep->waited)
		took = min_u64(took, clock_ns(CLOCK_MONOTONIC) - ep->now_ns);
	ep->waited = false;
	ep->cpu_ns = now;
	ep->calls.n++;
	ep->calls.over += took > LOOP_CALL_NS;
	ep->calls.total_ns += took;
	if (took > ep->calls.longest_ns) {
		ep->calls.longest_ns = took;
		ep->calls.longest = ep->label ? ep->label : kind;
	}
	ep->label = NULL;
	return took;
}

static void ring(struct loop_epoll *ep)
{
	uint64_t one = 1;
	ssize_t n;

	do
		n = write(ep->bell.fd, &one, sizeof(one));
	while (n < 0 && errno == EINTR);
	/* EAGAIN: the counter is full, so it is readable, which is all that is wanted. */
	assert(n == (ssize_t)sizeof(one) || errno == EAGAIN);
}

static void bell_rang(struct watch *w, uint32_t events)
{
	uint64_t count;

	(void)events;
	/* Only silences it: what is to be done stands in the inbox. */
	ignore_result((int)read(w->fd, &count, sizeof(count)));
}

static void epoll_post(struct loop *l, struct task *t)
{
	struct loop_epoll *ep = of(l);
	bool first;

	assert(t->run);
	pthread_mutex_lock(&ep->lock);
	assert(list_empty(&t->link)); /* posted twice it would be its own neighbour: run_tasks() */
	first = list_empty(&ep->inbox);
	list_add_tail(&ep->inbox, &t->link);
	pthread_mutex_unlock(&ep->lock);
	if (first && !epoll_is_current(l)) /* (2) */
		ring(ep);
}

static void epoll_unpost(struct loop *l, struct task *t)
{
	struct loop_epoll *ep = of(l);

	assert(epoll_is_current(l));
	pthread_mutex_lock(&ep->lock);
	list_del(&t->link);
	pthread_mutex_unlock(&ep->lock);
}

static const struct loop_ops epoll_ops = {
	.now_ns = epoll_now,
	.wall_ns = epoll_wall,
	.timer_arm = epoll_timer_arm,
	.timer_disarm = epoll_timer_disarm,
	.post = epoll_post,
	.unpost = epoll_unpost,
	.is_current = epoll_is_current,
	.label = epoll_label,
	.calls = epoll_calls,
};

int watch_set(struct loop *l, struct watch *w, uint32_t events)
{
	struct epoll_event ev = { .events = events, .data.ptr = w };
	int op = w->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;

	assert(epoll_is_current(l));
	assert(events != 0 && w->fd >= 0 && w->ready);
	if (w->events == events)
		return 0;
	if (epoll_ctl(of(l)->epoll, op, w->fd, &ev) != 0)
		return -errno;
	w->events = events;
	return 0;
}

void watch_remove(struct loop *l, struct watch *w)
{
	struct loop_epoll *ep = of(l);
	int r;

	assert(epoll_is_current(l));
	if (!w->events)
		return;
	r = epoll_ctl(ep->epoll, EPOLL_CTL_DEL, w->fd, NULL);
	assert(r == 0); /* else it was closed while it was watched */
	w->events = 0;
	for (int i = 0; i < ep->n_events; i++) { /* (3) */
		if (ep->events[i].data.ptr == w)
			ep->events[i].data.ptr = NULL;
	}
}

static bool any_posted(struct loop_epoll *ep)
{
	bool any;

	pthread_mutex_lock(&ep->lock);
	any = !list_empty(&ep->inbox);
	pthread_mutex_unlock(&ep->lock);
	return any;
}

/* epoll_wait's milliseconds until the next timer, rounded up: a timer never fires early. */
static int timeout_ms(struct loop_epoll *ep, uint64_t wait_ns)
{
	uint64_t next = timers_next(&ep->timers), now, ms;

	if (!fair_empty(&ep->ready) || any_posted(ep))
		return 0;
	if (next != UINT64_MAX) {
		now = clock_ns(CLOCK_MONOTONIC);
		wait_ns = min_u64(wait_ns, next > now ? next - now : 0);
	}
	if (wait_ns == UINT64_MAX)
		return -1; /* (4) */
	ms = div_up(wait_ns, 1000000);
	return ms > INT_MAX ? INT_MAX : (int)ms;
}

static void run_watches(struct loop_epoll *ep)
{
	for (int i = 0; i < ep->n_events; i++) {
		struct watch *w = ep->events[i].data.ptr;

		if (!w) /* (3) */
			continue;
		w->ready(w, ep->events[i].events);
		call_over(ep, "a descriptor");
	}
	ep->n_events = 0;
}

/* Waits for the first batch only. */
static int next_events(struct loop_epoll *ep, int timeout)
{
	int n = epoll_wait(ep->epoll, ep->events, EVENTS_MAX, timeout);

	assert(n >= 0 || errno == EINTR);
	ep->n_events = n > 0 ? n : 0;
	return ep->n_events;
}

static void run_tasks(struct loop_epoll *ep)
{
	uint64_t took = 0, used;
	struct list *item;
	uint32_t uid;

	pthread_mutex_lock(&ep->lock);
	while (!list_empty(&ep->inbox)) {
		struct task *t = list_first(&ep->inbox, struct task, link);

		list_del(&t->link);
		fair_push(&ep->ready, t->uid, &t->link);
	}
	pthread_mutex_unlock(&ep->lock);
	while (took < TURN_NS && (item = fair_take(&ep->ready, UINT32_MAX, &uid))) {
		struct task *t = container_of(item, struct task, link);

		t->run(t);
		used = call_over(ep, "a task");
		fair_charge(&ep->ready, uid, used);
		took += used + 1;
	}
}

static bool fire_one(struct loop_epoll *ep)
{
	if (timers_fire(&ep->timers, ep->now_ns, 1) == 0)
		return false;
	call_over(ep, "a timer");
	return true;
}

void loop_epoll_turn(struct loop *l, uint64_t wait_ns)
{
	struct loop_epoll *ep = of(l);
	int n;

	assert(epoll_is_current(l));
	assert(ep->n_events == 0); /* a turn is not started inside a turn */
	n = next_events(ep, timeout_ms(ep, wait_ns));
	ep->now_ns = clock_ns(CLOCK_MONOTONIC);
	ep->waited = true;
	ep->turns++;
	run_watches(ep);
	for (int i = 1; n == EVENTS_MAX && i < BATCHES_MAX; i++) { /* all: (5) */
		n = next_events(ep, 0);
		run_watches(ep);
	}
	run_tasks(ep);
	for (int i = 0; i < TIMERS_MAX && fire_one(ep); i++)
		;
}

void loop_epoll_run(struct loop *l)
{
	struct loop_epoll *ep = of(l);

	for (ep->stop = false; !ep->stop;)
		loop_epoll_turn(l, UINT64_MAX);
}

void loop_epoll_stop(struct loop *l)
{
	assert(epoll_is_current(l));
	of(l)->stop = true;
}

uint64_t loop_epoll_turns(const struct loop *l)
{
	return container_of(l, const struct loop_epoll, loop)->turns;
}

void loop_epoll_forget_calls(struct loop *l)
{
	of(l)->calls = (struct loop_calls){0};
	of(l)->cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID); /* nor the call that runs */
}

int loop_epoll_new(struct loop **ret, struct err *e)
{
	struct loop_epoll *ep = alloc_zero(sizeof(*ep));
	int r;

	if (!ep)
		return err_code(e, -ENOMEM, "make the loop");
	ep->loop.ops = &epoll_ops;
	ep->thread = pthread_self();
	ep->now_ns = clock_ns(CLOCK_MONOTONIC);
	fair_init(&ep->ready);
	list_init(&ep->inbox);
	r = pthread_mutex_init(&ep->lock, NULL);
	assert(r == 0); /* cannot fail for a plain mutex */
	ep->epoll = epoll_create1(EPOLL_CLOEXEC);
	r = ep->epoll < 0 ? -errno : 0;
	watch_init(&ep->bell, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), bell_rang);
	if (r == 0)
		r = ep->bell.fd < 0 ? -errno : watch_set(&ep->loop, &ep->bell, EPOLLIN);
	if (r) {
		loop_epoll_free(&ep->loop);
		return err_code(e, r, "make the loop: epoll or eventfd");
	}
	*ret = &ep->loop;
	return 0;
}

void loop_epoll_free(struct loop *l)
{
	struct loop_epoll *ep;

	if (!l)
		return;
	ep = of(l);
	fair_forget(&ep->ready);
	pthread_mutex_destroy(&ep->lock);
	if (ep->bell.fd >= 0)
		close(ep->bell.fd);
	if (ep->epoll >= 0)
		close(ep->epoll);
	alloc_free(ep);
}
