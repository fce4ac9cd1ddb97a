/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handle.c - a rank's handle: open, close, and what every call begins and ends with.
 *
 * A forked child shares nothing with ckptd: its calls are refused by comparing process ids, and
 * ckpt_close() there does nothing at all, since the descriptors and mappings that it knows are the
 * parent's (slots are not even mapped in the child).
 *
 * A second thread is found by `use`, which a call takes and gives back, without waiting: there is
 * no lock on which a trainer could stand. Closing a handle that is in a call is left to that call.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "client/client.h"
#include "client/loaded.h"

int call_look(const struct ckpt *c, struct err *e)
{
	if (!c)
		return err_set(e, -EINVAL, "no handle");
	if (c->pid != getpid())
		return err_set(e, -EPERM, "this process was forked from the one that opened job "
			       "'%s'; open a handle of its own here", c->who.job);
	return 0;
}

int call_refuse(const struct ckpt *c, struct err *e)
{
	return err_set(e, CKPT_ESTATE,
		       "another thread is in a call with this handle of job '%s'; one thread at a "
		       "time uses a handle: take turns, or open a handle for each job and rank",
		       c->who.job);
}

int call_as_rank(const struct ckpt *c, struct err *e)
{
	if (!c->looks)
		return 0;
	return err_set(e, CKPT_ESTATE,
		       "this handle of job '%s' was opened to look (CKPT_EXISTING, in Python "
		       "existing=True), has no rank, and lists, waits and reads what is stored; "
		       "to load or save as a rank open with CKPT_EXISTING and CKPT_TRAINS "
		       "(trains=True), or with neither",
		       c->who.job);
}

static void handle_free(struct ckpt *c, bool failed);

void call_release_ended(struct ckpt *c, uint32_t was)
{
	assert(was == USE_CALL_CLOSE || was == USE_CALL_ABANDON);
	handle_free(c, was == USE_CALL_ABANDON && c->who.trains);
}

int call_enter(struct ckpt *c, struct err *e)
{
	int r = call_look(c, e);

	if (r == 0 && !call_take(c))
		r = call_refuse(c, e);
	if (r == 0)
		interrupt_begin(&c->interrupt);
	return r;
}

int call_leave_plain(struct ckpt *c, const char *call, int r, const struct err *e)
{
	c->patient = false;
	call_release(c);
	return r < 0 ? error_keep(call, r, e) : r;
}

int call_leave(struct ckpt *c, const char *call, int r, const struct err *e)
{
	if (r >= 0 && c->rejoined) {
		c->rejoined = false;
		r |= CKPT_RECONNECTED;
	}
	if (r >= 0 && c->noted) {
		c->noted = false;
		r |= CKPT_NOTED;
	}
	return call_leave_plain(c, call, r, e);
}

int timeout_check(int64_t timeout_ms, struct err *e)
{
	if (timeout_ms >= CKPT_DEFAULT_TIMEOUT)
		return 0;
	return err_set(e, -EINVAL,
		       "a timeout of %lld ms: give milliseconds from 0 on, CKPT_FOREVER or "
		       "CKPT_DEFAULT_TIMEOUT",
		       (long long)timeout_ms);
}

uint64_t call_deadline(const struct ckpt *c, int64_t timeout_ms)
{
	return deadline_in(timeout_ms == CKPT_DEFAULT_TIMEOUT ? c->who.timeout_ms : timeout_ms);
}

static void handle_free(struct ckpt *c, bool failed)
{
	interrupt_begin(&c->interrupt); /* what has ended the last call does not end the goodbye */
	prepare_stop(c);
	overlap_fini(c);
	session_close(c, failed);
	prepare_fini(c);
	requests_fini(&c->rq);
	wanted_fini(&c->own);
	loaded_free(c->loaded);
	beating_free(c->beat);
	alloc_free(c);
}

static int handle_open(struct ckpt *c, struct err *e)
{
	int r = session_open(c, e);

	if (r < 0)
		return r;
	r = declaration_builder_new(c->geometry, &c->own.builder);
	return r < 0 ? err_code(e, r, "open job '%s'", c->who.job) : 0;
}

int ckpt_open(const char *job, int rank, int world, const struct ckpt_options *opt,
	      struct ckpt **ret)
{
	struct err e = { 0 };
	struct ckpt *c = alloc_zero(sizeof(*c));
	int r;

	if (!c)
		return error_keep("ckpt_open", -ENOMEM, NULL);
	r = requests_init(&c->rq);
	if (r < 0) {
		alloc_free(c);
		return error_keep("ckpt_open", r, NULL);
	}
	c->pid = getpid();
	r = beating_new(&c->beat);
	if (r < 0) {
		handle_free(c, false);
		return error_keep("ckpt_open", r, NULL);
	}
	r = ret ? identity_find(job, rank, world, opt, &c->who, &e) : -EINVAL;
	c->socket = c->who.sockets[0];
	c->interrupt.hook = c->who.interrupted;
	c->interrupt.arg = c->who.interrupted_arg;
	c->rq.channel.interrupt = &c->interrupt;
	if (r == 0)
		r = handle_open(c, &e);
	if (r < 0) {
		handle_free(c, false);
		return error_keep("ckpt_open", r, &e);
	}
	*ret = c;
	return CKPT_OK;
}

/* Now, or at the end of the call that another thread is in. */
static void end(struct ckpt *c, enum use how)
{
	uint32_t was = USE_NONE;

	if (!c || c->pid != getpid())
		return;
	while (!atomic_compare_exchange_weak_explicit(&c->use, &was, (uint32_t)how,
						      memory_order_acq_rel, memory_order_acquire))
		assert(was == USE_NONE || was == USE_CALL); /* else it is closed twice */
	/* A handle that only looks trains nothing. */
	if (was == USE_NONE)
		handle_free(c, how == USE_CALL_ABANDON && c->who.trains);
}

void ckpt_close(struct ckpt *c)
{
	end(c, USE_CALL_CLOSE);
}

void ckpt_abandon(struct ckpt *c)
{
	end(c, USE_CALL_ABANDON);
}

int ckpt_rank(const struct ckpt *c)
{
	struct err e = { 0 };
	int r = call_look(c, &e);

	return r < 0 ? error_keep("ckpt_rank", r, &e) : (int)c->who.rank;
}

int ckpt_world(const struct ckpt *c)
{
	struct err e = { 0 };
	int r = call_look(c, &e);

	return r < 0 ? error_keep("ckpt_world", r, &e) : (int)c->who.world;
}

int ckpt_fd(struct ckpt *c)
{
	struct err e = { 0 };
	int r = call_enter(c, &e);

	if (r < 0)
		return error_keep("ckpt_fd", r, &e);
	return call_leave_plain(c, "ckpt_fd", c->rq.channel.fd, &e);
}

int ckpt_pump(struct ckpt *c)
{
	struct err e = { 0 };
	int r = call_enter(c, &e);

	if (r < 0)
		return error_keep("ckpt_pump", r, &e);
	while (r == 0)
		r = requests_pump(&c->rq, 0);
	if (r == CKPT_ETIMEDOUT)
		return call_leave(c, "ckpt_pump", CKPT_OK, &e);
	r = err_set(&e, CKPT_EUNAVAILABLE, "the connection to ckptd at '%s' was lost; the next "
		    "call that needs it connects again", c->socket);
	return call_leave(c, "ckpt_pump", r, &e);
}

int ckpt_stats(const struct ckpt *c, struct ckpt_stats *ret)
{
	struct err e = { 0 };
	struct ckpt *mine = (struct ckpt *)c; /* `use` is no part of what is asked for */
	int r = call_enter(mine, &e);
	struct ckpt_stats s;

	if (r < 0)
		return error_keep("ckpt_stats", r, &e);
	if (!ret || ret->size < sizeof(ret->size)) {
		r = err_set(&e, -EINVAL, "stats: size must be set to sizeof(struct ckpt_stats)");
	} else {
		s = c->stats;
		s.size = ret->size;
		if (c->page) {
			s.uncommitted = atomic_load_explicit(&c->page->uncommitted,
							     memory_order_acquire);
			s.uncommitted_from = atomic_load_explicit(&c->page->uncommitted_from,
								  memory_order_relaxed);
		}
		memcpy(ret, &s, min_u64(ret->size, sizeof(s)));
	}
	return call_leave_plain(mine, "ckpt_stats", r, &e);
}

const char *ckpt_note(const struct ckpt *c)
{
	if (c && c->note[0])
		return c->note;
	if (!c || !c->who.assumed)
		return "";
	return "rank 0 of 1 is assumed, for nothing says otherwise: where the job has more "
	       "processes, pass rank and world, or set RANK and WORLD_SIZE (torchrun, srun and "
	       "mpirun do)";
}
