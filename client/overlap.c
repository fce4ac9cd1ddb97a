/* SPDX-License-Identifier: Apache-2.0 */
/*
 * overlap.c - a save in two halves, with the copy between them in a thread of the library.
 *
 *   NONE --begin--> COPYING --fence--> NONE          the thread: IDLE -> BUSY -> IDLE
 *   NONE --begin without a credit--> SKIPPED --fence--> NONE
 *
 * The thread is made at prepare with every signal blocked (handlers are the trainer's business) and
 * does nothing but image_fill() and what mapping.c lets it do so that no save waits for pages to
 * come or go: it populates and unmaps slots. The first of these it does when nothing else is to be
 * done, in steps of some milliseconds (`step`). It never speaks to ckptd. Whether tensors changed
 * in between is found by samples taken at begin, or with CKPT_FULL_COMPARE by comparing the whole
 * snapshot with the tensors as they are at the fence.
 *
 * What the two threads share is handed over under the mutex: run and its argument before work is
 * signalled, results before idle is. A step may end after overlap_steps_end(): what it was given
 * stays until the thread has run something else, or has ended. While BUSY the
 * handle's devices and shards are only read.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "client/client.h"
#include "client/image.h"

#define STACK_BYTES (512u << 10)
#define PAGE_BYTES  (64u << 10) /* there are kernels with such pages */

enum half { HALF_NONE, HALF_COPYING, HALF_SKIPPED };

struct overlap {
	struct ckpt *c;
	enum half half;          /* the caller's thread alone */
	struct save save;
	uint64_t begin_took_ns;
	struct ckpt_binding *bindings; /* n_shards, copies of the caller's */
	int64_t *strides;        /* what they point to: ndim of all shards together */
	struct image_samples samples;
	uint8_t *scratch_block;
	uint8_t *scratch; /* SCRATCH_BYTES of whole pages in the block: nobody else's are pinned */
	bool pin_tried;
	void *pinned_for; /* a context; NULL: scratch is not pinned */

	pthread_t thread;
	bool started;
	pthread_mutex_t mutex; /* of busy and quit; of the rest while busy is false */
	pthread_cond_t work, idle;
	bool busy, quit, hurry;
	void (*run)(void *arg);
	void *arg;
	overlap_step_fn *step; /* NULL: none */
	void *step_arg;
	uint64_t steps; /* how often it was set */
	uint8_t *image;
	int result;
	struct err err;
};

/* ---- The thread ---- */

static void copy(void *arg)
{
	struct overlap *o = arg;

	err_clear(&o->err);
	o->result = image_fill(o->c, o->bindings, o->image, &o->err);
}

static struct timespec timespec_of(uint64_t ns)
{
	return (struct timespec){.tv_sec = (time_t)(ns / 1000000000ull),
				 .tv_nsec = (long)(ns % 1000000000ull)};
}

/* Holds the mutex, but not during the step. */
static void do_step(struct overlap *o)
{
	overlap_step_fn *step = o->step;
	void *arg = o->step_arg;
	uint64_t pause_ns, steps = o->steps;
	struct timespec until;

	pthread_mutex_unlock(&o->mutex);
	pause_ns = step(arg);
	pthread_mutex_lock(&o->mutex);
	if (o->steps == steps && pause_ns == OVERLAP_OVER)
		o->step = NULL;
	pthread_cond_signal(&o->idle);
	if (!o->step || pause_ns == 0 || pause_ns == OVERLAP_OVER)
		return;
	until = timespec_of(clock_ns() + pause_ns);
	if (!o->busy && !o->quit && !o->hurry)
		ignore_result(pthread_cond_clockwait(&o->work, &o->mutex, CLOCK_MONOTONIC,
						     &until) /* woken or not: it looks */);
	o->hurry = false;
}

static void *helper(void *arg)
{
	struct overlap *o = arg;

	fault_in_stack();
	pthread_mutex_lock(&o->mutex);
	o->busy = false; /* it was set before the thread was made: prepare waits for this */
	pthread_cond_signal(&o->idle);
	for (;;) {
		while (!o->busy && !o->quit && !o->step)
			pthread_cond_wait(&o->work, &o->mutex);
		if (!o->busy && o->quit)
			break; /* what it was given is done first: it may have to free things */
		if (!o->busy) {
			do_step(o);
			continue;
		}
		pthread_mutex_unlock(&o->mutex);
		o->run(o->arg);
		pthread_mutex_lock(&o->mutex);
		o->busy = false;
		pthread_cond_signal(&o->idle);
	}
	pthread_mutex_unlock(&o->mutex);
	return NULL;
}

static int start_thread(struct overlap *o)
{
	sigset_t all, old;
	pthread_attr_t attr;
	int r = pthread_attr_init(&attr);

	if (r != 0)
		return -r;
	sigfillset(&all);
	r = pthread_attr_setstacksize(&attr, STACK_BYTES);
	if (r == 0)
		r = pthread_sigmask(SIG_SETMASK, &all, &old);
	if (r == 0) {
		o->busy = true;
		r = pthread_create(&o->thread, &attr, helper, o);
		o->started = r == 0;
		if (r != 0)
			o->busy = false;
		/* It cannot fail: the set is valid. */
		ignore_result(pthread_sigmask(SIG_SETMASK, &old, NULL));
	}
	pthread_attr_destroy(&attr);
	return -r;
}

/*
 * Until what the thread does may have changed. With the mutex, but for the look at the hook; not 0:
 * the deadline passed or the hook ended the call. i may be NULL: none.
 */
static int wait_news(struct overlap *o, uint64_t deadline, struct interrupt *i)
{
	uint64_t look = interrupt_until(i, deadline);
	struct timespec until = timespec_of(look);
	bool came;
	int r;

	assert(look <= deadline);
	if (look == NEVER)
		return pthread_cond_wait(&o->idle, &o->mutex);
	r = pthread_cond_clockwait(&o->idle, &o->mutex, CLOCK_MONOTONIC, &until);
	if (r == 0 || look == deadline)
		return r;
	pthread_mutex_unlock(&o->mutex);
	came = interrupt_look(i, false);
	pthread_mutex_lock(&o->mutex);
	return came ? r : 0;
}

/* False: it is still busy at the deadline. */
static bool wait_idle(struct overlap *o, uint64_t deadline, struct interrupt *i)
{
	bool idle;
	int r = 0;

	pthread_mutex_lock(&o->mutex);
	while (o->busy && r == 0)
		r = wait_news(o, deadline, i);
	idle = !o->busy;
	pthread_mutex_unlock(&o->mutex);
	return idle;
}

static void set_to_work(struct overlap *o, void (*run)(void *arg), void *arg)
{
	pthread_mutex_lock(&o->mutex);
	assert(!o->busy);
	o->run = run;
	o->arg = arg;
	o->busy = true;
	pthread_cond_signal(&o->work);
	pthread_mutex_unlock(&o->mutex);
}

/* ---- For the handle ---- */

static void overlap_free(struct overlap *o)
{
	if (o->started) {
		pthread_mutex_lock(&o->mutex);
		o->quit = true;
		pthread_cond_signal(&o->work);
		pthread_mutex_unlock(&o->mutex);
		pthread_join(o->thread, NULL);
	}
	pthread_mutex_destroy(&o->mutex);
	pthread_cond_destroy(&o->work);
	pthread_cond_destroy(&o->idle);
	if (o->pinned_for)
		devices_unpin(o->c->devices, o->pinned_for, o->scratch);
	alloc_free(o->bindings);
	alloc_free(o->strides);
	alloc_free(o->scratch_block);
	alloc_free(o);
}

int overlap_init(struct ckpt *c, struct err *e)
{
	struct overlap *o;
	size_t dims = 0;
	int r = -ENOMEM;

	if (c->overlap)
		return 0;
	for (uint32_t i = 0; i < c->own.n_shards; i++)
		dims += c->own.shards[i].ndim;
	o = alloc_zero(sizeof(*o));
	if (!o)
		return err_code(e, -ENOMEM, "prepare for %u tensors", c->own.n_shards);
	pthread_mutex_init(&o->mutex, NULL);
	pthread_cond_init(&o->work, NULL);
	pthread_cond_init(&o->idle, NULL);
	o->c = c;
	o->bindings = alloc_array(c->own.n_shards, sizeof(*o->bindings));
	o->strides = alloc_array(dims, sizeof(*o->strides));
	o->scratch_block = alloc_zero(SCRATCH_BYTES + PAGE_BYTES);
	o->scratch = (uint8_t *)round_up((uintptr_t)o->scratch_block, PAGE_BYTES);
	if (o->bindings && o->strides && o->scratch_block) {
		memset(o->bindings, 0xa5, c->own.n_shards * sizeof(*o->bindings));
		memset(o->strides, 0xa5, dims * sizeof(*o->strides));
		memset(o->scratch, 0xa5, SCRATCH_BYTES);
		r = start_thread(o);
	}
	if (r < 0) {
		overlap_free(o);
		return err_code(e, r, "make the thread that copies between begin and fence");
	}
	ignore_result(wait_idle(o, NEVER, NULL) /* it is */);
	c->overlap = o;
	return 0;
}

void overlap_fini(struct ckpt *c)
{
	if (c->overlap)
		overlap_free(c->overlap);
	c->overlap = NULL;
}

bool overlap_busy(const struct ckpt *c)
{
	return c->overlap && c->overlap->half == HALF_COPYING;
}

int overlap_ended(const struct ckpt *c, struct err *e)
{
	if (!overlap_busy(c))
		return 0;
	return err_set(e, CKPT_ESTATE,
		       "a save was begun and has not ended: call ckpt_save_fence(), or in Python "
		       "leave the block of saving(), first");
}

bool overlap_quiesce(struct ckpt *c, uint64_t deadline)
{
	return !c->overlap || wait_idle(c->overlap, deadline, &c->interrupt);
}

void overlap_finish(struct ckpt *c)
{
	if (c->overlap)
		ignore_result(wait_idle(c->overlap, NEVER, NULL) /* it is */);
}

void overlap_run(struct ckpt *c, void (*run)(void *arg), void *arg)
{
	set_to_work(c->overlap, run, arg);
}

void overlap_steps(struct ckpt *c, overlap_step_fn *step, void *arg)
{
	struct overlap *o = c->overlap;

	pthread_mutex_lock(&o->mutex);
	o->step = step;
	o->step_arg = arg;
	o->steps++;
	pthread_cond_signal(&o->work);
	pthread_mutex_unlock(&o->mutex);
}

void overlap_steps_end(struct ckpt *c)
{
	if (c->overlap)
		overlap_steps(c, NULL, NULL);
}

bool overlap_await(struct ckpt *c, bool (*there)(const void *arg), const void *arg,
		   uint64_t deadline)
{
	struct overlap *o = c->overlap;
	bool found;
	int r = 0;

	pthread_mutex_lock(&o->mutex);
	o->hurry = true;
	pthread_cond_signal(&o->work);
	while (!(found = there(arg)) && r == 0)
		r = wait_news(o, deadline, &c->interrupt);
	pthread_mutex_unlock(&o->mutex);
	return found;
}

/* ---- Begin ---- */

static void keep_bindings(struct overlap *o, const struct ckpt_binding *b)
{
	const struct ckpt *c = o->c;
	int64_t *next = o->strides;

	for (uint32_t i = 0; i < c->own.n_shards; i++) {
		o->bindings[i] = b[i];
		if (!b[i].strides)
			continue;
		memcpy(next, b[i].strides, c->own.shards[i].ndim * sizeof(*next));
		o->bindings[i].strides = next;
		next += c->own.shards[i].ndim;
	}
}

/* To memory that is not pinned each copy is waited for by itself. One to memory of which a part is
 * pinned is refused, so the pages that are pinned hold nothing else. */
static void pin_scratch(struct overlap *o)
{
	struct devices *d = o->c->devices;
	void *context;

	if (!d || o->pin_tried)
		return;
	o->pin_tried = true;
	context = devices_context(d);
	if (context && devices_pin(d, context, o->scratch, SCRATCH_BYTES))
		o->pinned_for = context;
}

static int begin(struct ckpt *c, const struct ckpt_save_args *given, struct err *e)
{
	struct ckpt_save_args a;
	struct overlap *o;
	struct save s = { 0 };
	uint64_t deadline;
	int r = save_args_known(given, &a, e);

	if (r == 0)
		r = overlap_ended(c, e);
	if (r == 0)
		r = call_as_rank(c, e);
	if (r < 0)
		return r;
	if (c->overlap)
		c->overlap->half = HALF_NONE;
	deadline = call_deadline(c, a.timeout_ms);
	r = save_start(c, &a, &s, deadline, e);
	if (r < 0 || r == CKPT_SKIPPED) {
		if (c->overlap && r == CKPT_SKIPPED)
			c->overlap->half = HALF_SKIPPED;
		save_end(c, "ckpt_save_begin", &s, r, 0, e);
		return r;
	}
	o = c->overlap;
	assert(o); /* save_start() has prepared */
	keep_bindings(o, a.tensors);
	pin_scratch(o);
	r = image_sample(c, o->bindings, o->scratch, &o->samples, e);
	if (r < 0) {
		save_give_up(c, &s, "its copy failed", deadline);
		save_end(c, "ckpt_save_begin", &s, r, 0, e);
		return r;
	}
	o->save = s;
	o->half = HALF_COPYING;
	o->image = c->slots[s.slot].base;
	set_to_work(o, copy, o);
	/* What begin took of the caller's time is stall, what it leaves to the thread is not. */
	o->begin_took_ns = clock_ns() - s.started_ns;
	return CKPT_OK;
}

int ckpt_save_begin(struct ckpt *c, const struct ckpt_save_args *args)
{
	struct err e = { 0 };
	int r = call_enter(c, &e);

	if (r < 0)
		return error_keep("ckpt_save_begin", r, &e);
	beating_begin(c->beat, CKPT_PHASE_CHECKPOINT, "save");
	r = begin(c, args, &e);
	beating_end(c->beat);
	return call_leave(c, "ckpt_save_begin", r, &e);
}

/* ---- Fence ---- */

/* The copy is there and is what the tensors were and are. */
static int check_copy(struct overlap *o, unsigned flags, struct err *e)
{
	struct ckpt *c = o->c;
	int r;

	/* Before the wait: the thread may be at new slots already. */
	if (o->save.generation != c->generation)
		return err_set(e, CKPT_EUNAVAILABLE,
			       "ckptd at '%s' was restarted without its "
			       "memory: what was being saved is gone, later saves work again",
			       c->socket);
	ignore_result(wait_idle(o, NEVER, NULL) /* it is */);
	r = o->result;
	if (r < 0 && e)
		*e = o->err;
	if (r == 0)
		r = image_samples_check(c, o->bindings, o->image, o->scratch, &o->samples, e);
	if (r == 0 && flags & CKPT_FULL_COMPARE)
		r = image_compare(c, o->bindings, o->image, o->scratch, e);
	return r;
}

static int fence(struct ckpt *c, unsigned flags, struct err *e)
{
	struct overlap *o = c->overlap;
	uint64_t deadline, entered = clock_ns();
	enum half half = o ? o->half : HALF_NONE;
	int r;

	if (half == HALF_NONE)
		return err_set(e, CKPT_ESTATE, "no save was begun");
	if (flags & ~CKPT_FULL_COMPARE)
		return err_set(e, -EINVAL, "unknown flags %#x", flags);
	o->half = HALF_NONE;
	if (half == HALF_SKIPPED)
		return CKPT_SKIPPED;
	deadline = call_deadline(c, o->save.timeout_ms);
	r = check_copy(o, flags, e);
	if (r == 0)
		r = save_seal(c, &o->save, deadline, e);
	else
		save_give_up(c, &o->save, r == CKPT_ETORN ? "tensors changed while it was copied"
							  : "its copy failed", deadline);
	o->save.started_ns = entered - o->begin_took_ns;
	save_end(c, "ckpt_save_fence", &o->save, r, o->save.image_len, e);
	return r;
}

int ckpt_save_fence(struct ckpt *c, unsigned flags)
{
	struct err e = { 0 };
	int r = call_enter(c, &e);

	if (r < 0)
		return error_keep("ckpt_save_fence", r, &e);
	beating_begin(c->beat, CKPT_PHASE_CHECKPOINT, "save");
	r = fence(c, flags, &e);
	beating_end(c->beat);
	return call_leave(c, "ckpt_save_fence", r, &e);
}
