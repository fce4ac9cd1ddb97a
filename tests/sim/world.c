/* SPDX-License-Identifier: Apache-2.0 */
/*
 * world.c - the event queue, the hash, descriptors. Invariants in world.h.
 */
#include <config.h>

#include "tests/sim/world.h"

#include <assert.h>
#include <inttypes.h>

#include "tests/sim/heap.h"
#include "tests/sim/life.h"
#include "tests/sim/life_int.h"

struct sim_event {
	uint64_t at_ns, order;
	struct life *life; /* whose loop runs it; NULL: the driver */
	void (*fn)(void *arg);
	void *arg;
};

struct sim_fd {
	int fd;
	struct life *owner;
	const struct sim_fd_ops *ops;
	void *object;
};

struct world *world_new(uint64_t seed)
{
	struct world *w = sim_zero(sizeof(*w));

	w->seed = seed;
	w->hash = 14695981039346656037u;
	w->next_fd = 1000;
	w->wall_zero_ns = 1700000000ull * SIM_S;
	w->trace = getenv("CKPT_SIM_TRACE") != NULL;
	rng_seed(&w->rng, seed);
	list_init(&w->lives);
	return w;
}

void world_free(struct world *w)
{
	if (!w)
		return;
	assert(list_empty(&w->lives));
	sim_fd_close_all(w, NULL);
	assert(w->n_fds == 0);
	free(w->fds);
	free(w->queue);
	free(w);
}

uint64_t world_hash(const struct world *w)
{
	return w->hash;
}

uint64_t world_random(struct world *w, uint64_t bound)
{
	return rng_below(&w->rng.rng, bound);
}

bool world_one_in(struct world *w, uint64_t n)
{
	return n && world_random(w, n) == 0;
}

static void fold(struct world *w, uint64_t v)
{
	w->hash = (w->hash ^ v) * 0x9e3779b97f4a7c15u;
	w->hash ^= w->hash >> 29;
}

void world_note(struct world *w, const char *what, uint64_t a, uint64_t b, uint64_t c)
{
	if (w->trace)
		fprintf(stderr, "%12" PRIu64 " us %s %-16s %" PRIu64 " %" PRIu64 " %" PRIx64 "\n",
			w->now_ns / SIM_US, w->current ? w->current->options.name : "-", what, a, b,
			c);
	fold(w, w->now_ns);
	fold(w, world_digest(what, strlen(what)));
	fold(w, a);
	fold(w, b);
	fold(w, c);
}

uint64_t world_digest(const void *bytes, size_t len)
{
	const uint8_t *p = bytes;
	uint64_t h = len, v;

	for (; len >= 8; len -= 8, p += 8) {
		memcpy(&v, p, 8);
		h = (h ^ v) * 0xff51afd7ed558ccdu;
		h ^= h >> 32;
	}
	for (; len; len--, p++)
		h = (h ^ *p) * 0xff51afd7ed558ccdu;
	return h ^ (h >> 29);
}

/* ---- The queue: a binary heap of (time, order) ---- */

static bool earlier(const struct sim_event *a, const struct sim_event *b)
{
	return a->at_ns < b->at_ns || (a->at_ns == b->at_ns && a->order < b->order);
}

static void sift_up(struct sim_event *q, size_t i)
{
	struct sim_event e = q[i];

	for (; i && earlier(&e, &q[(i - 1) / 2]); i = (i - 1) / 2)
		q[i] = q[(i - 1) / 2];
	q[i] = e;
}

static void sift_down(struct sim_event *q, size_t n, size_t i)
{
	struct sim_event e = q[i];
	size_t child;

	for (; (child = 2 * i + 1) < n; i = child) {
		if (child + 1 < n && earlier(&q[child + 1], &q[child]))
			child++;
		if (!earlier(&q[child], &e))
			break;
		q[i] = q[child];
	}
	q[i] = e;
}

void world_at(struct world *w, uint64_t at_ns, struct life *life, void (*fn)(void *arg), void *arg)
{
	assert(at_ns >= w->now_ns);
	assert(!life || life->alive);
	sim_grow(w->queue, w->n_queue, w->cap_queue);
	w->queue[w->n_queue] = (struct sim_event){ at_ns, w->next_order++, life, fn, arg };
	sift_up(w->queue, w->n_queue++);
}

/* Keeps the events that are not of this life and not for this arg. */
static void keep_others(struct world *w, const struct life *life, const void *arg)
{
	size_t kept = 0;

	for (size_t i = 0; i < w->n_queue; i++) {
		const struct sim_event *e = &w->queue[i];

		if ((life && e->life == life) || (arg && !e->life && e->arg == arg))
			continue;
		w->queue[kept++] = *e;
	}
	w->n_queue = kept;
	for (size_t i = kept / 2; i-- > 0;)
		sift_down(w->queue, kept, i);
}

void world_forget(struct world *w, const void *arg)
{
	assert(arg);
	keep_others(w, NULL, arg);
}

void world_forget_life(struct world *w, const struct life *life)
{
	assert(life);
	keep_others(w, life, NULL);
}

/* The life whose timer is due first; events of the queue go before timers of the same time. */
static struct life *next_timer(struct world *w, uint64_t *ret_at)
{
	struct life *l, *best = NULL;
	uint64_t at = UINT64_MAX;

	list_each(l, &w->lives, link) {
		uint64_t t = l->timers_queued ? UINT64_MAX : timers_next(&l->timers);

		if (t < at) {
			at = t;
			best = l;
		}
	}
	*ret_at = at;
	return best;
}

static uint64_t next_at(struct world *w, struct life **ret_timer)
{
	uint64_t at;
	struct life *l = next_timer(w, &at);

	if (w->n_queue && w->queue[0].at_ns <= at) {
		at = w->queue[0].at_ns;
		l = NULL;
	}
	*ret_timer = l;
	return at;
}

bool world_step(struct world *w)
{
	struct life *timer;
	uint64_t at = next_at(w, &timer);
	struct sim_event e;

	assert(!w->current);
	if (at == UINT64_MAX)
		return false;
	w->now_ns = at > w->now_ns ? at : w->now_ns;
	w->events++;
	if (timer) {
		world_note(w, "timer", timer->number, 0, 0);
		life_deliver_timers(timer);
		return true;
	}
	e = w->queue[0];
	w->queue[0] = w->queue[--w->n_queue];
	if (w->n_queue)
		sift_down(w->queue, w->n_queue, 0);
	fold(w, w->now_ns);
	fold(w, e.order);
	if (e.life)
		life_deliver(e.life, e.fn, e.arg);
	else
		e.fn(e.arg);
	return true;
}

bool world_run(struct world *w, uint64_t until_ns, bool (*cond)(void *arg), void *arg)
{
	struct life *timer;

	for (;;) {
		uint64_t at = next_at(w, &timer);

		if (cond && cond(arg))
			return true;
		if (at == UINT64_MAX)
			return false;
		if (at > until_ns) {
			w->now_ns = until_ns > w->now_ns ? until_ns : w->now_ns;
			return false;
		}
		world_step(w);
	}
}

void world_op(struct world *w, const char *what, uint64_t max_ns)
{
	struct life *l = w->current;

	if (l) {
		/* Some steps follow each other at once: that order must be seen too. */
		if (max_ns && !world_one_in(w, 4))
			life_sleep(w, world_random(w, max_ns));
		assert(l == w->current);
	}
	w->ops++;
	world_note(w, what, w->ops, l ? l->number : 0, 0);
	if (l && w->ops == w->crash_at_op)
		life_die(l);
}

/* ---- Descriptors ---- */

int sim_fd_new(struct world *w, struct life *owner, const struct sim_fd_ops *ops, void *object)
{
	sim_grow(w->fds, w->n_fds, w->cap_fds);
	w->fds[w->n_fds++] = (struct sim_fd){ w->next_fd, owner, ops, object };
	return w->next_fd++;
}

static struct sim_fd *find_fd(struct world *w, int fd)
{
	for (size_t i = 0; i < w->n_fds; i++) {
		if (w->fds[i].fd == fd)
			return &w->fds[i];
	}
	return NULL;
}

void *sim_fd_object(struct world *w, int fd, const struct sim_fd_ops *ops)
{
	struct sim_fd *f = find_fd(w, fd);

	return f && f->ops == ops ? f->object : NULL;
}

void sim_fd_move(struct world *w, int fd, struct life *owner)
{
	struct sim_fd *f = find_fd(w, fd);

	assert(f);
	f->owner = owner;
}

void sim_fd_close(struct world *w, int fd)
{
	struct sim_fd *f = find_fd(w, fd), gone;

	assert(f); /* closed twice, or never opened */
	gone = *f;
	*f = w->fds[--w->n_fds];
	gone.ops->unref(gone.object);
}

void sim_fd_close_all(struct world *w, struct life *owner)
{
	for (size_t i = 0; i < w->n_fds;) {
		if (w->fds[i].owner == owner)
			sim_fd_close(w, w->fds[i].fd);
		else
			i++;
	}
}

size_t sim_fd_count(const struct world *w, const struct life *owner)
{
	size_t n = 0;

	for (size_t i = 0; i < w->n_fds; i++)
		n += w->fds[i].owner == owner;
	return n;
}
