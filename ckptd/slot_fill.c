/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slot_fill.c - gives slots that their process has mapped their pages, and seals them.
 *
 *   SlotsReady -> slot after slot, in order of number: filled, sealed against other writers, EMPTY
 *
 * 1. A slot that is EMPTY can have a credit while those behind it are still being filled: the first
 *    save of a rank waits for one slot, not for all. None has a credit before it has its pages.
 * 2. With the slots that earlier processes of the rank have left, the filled ones are at most
 *    memory.slots and one more: those beyond wait until old ones are gone.
 *
 * A MEMORY worker makes pages, a second per GiB; the loop never waits for them. If the member ends
 * meanwhile its slots are let go. What fails is the answer to SlotsReady, and is tried again when
 * that is repeated.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "ckptd/job.h"
#include "ckptd/node_priv.h"
#include "ckptd/session.h"

struct sealing {
	struct work work;
	struct job *job;
	struct memory *memory;
	struct session *session; /* that is answered: the one that asked last; NULL: none */
	uint64_t request;
	uint32_t rank;
	struct slot *slot; /* busy: it stays */
	struct err err;
};

static void seal_run(struct work *w)
{
	struct sealing *x = container_of(w, struct sealing, work);
	const struct memory_ops *ops = x->memory->ops;
	struct region *r = x->slot->region;

	/* Before the seal, after which ckptd itself can fill in small pages alone. */
	w->status = BUG(SLOT_WITHOUT_PAGES) ? 0 : ops->fill(x->memory, r);
	if (w->status < 0) {
		err_set(&x->err, w->status, "rank %u: fill slot %u of %llu MiB: %s", x->rank,
			x->slot->number, (unsigned long long)(r->size >> 20),
			memory_error_text(w->status));
		return;
	}
	w->status = ops->seal(x->memory, r);
	if (w->status < 0)
		err_code(&x->err, w->status, "rank %u: seal slot %u against other writers", x->rank,
			 x->slot->number);
}

static struct slot *next_mapping(const struct member *m)
{
	struct slot *s;

	list_each(s, &m->slots, of_member)
		if (s->state == SLOT_MAPPING)
			return s;
	return NULL;
}

/* (2): slots that earlier processes have left stay while they hold what may have to be loaded. */
static bool may_fill(const struct member *m)
{
	uint32_t left = 0, filled = 0;
	struct slot *s;

	list_each(s, &m->job->slots, link) {
		if (s->rank != m->rank)
			continue;
		left += s->member != m;
		filled += s->member == m && s->state != SLOT_MAPPING;
	}
	return filled == 0 || left + filled < m->job->node->options.slots + 1;
}

static void seal_submit(struct sealing *x, struct slot *s)
{
	s->busy = true;
	x->slot = s;
	job_submit(x->job, WORK_MEMORY, &x->work);
}

static void seal_answer(struct sealing *x, int r)
{
	if (!x->session)
		return;
	if (r < 0)
		session_reply_error(x->session, x->request, r == -ENOSPC ? CKPT_ENOSPACE : r,
				    x->err.code ? x->err.text : err_text(r));
	else
		session_reply_ok(x->session, x->request);
	session_unref(x->session);
	x->session = NULL;
}

static void seal_done(struct work *w)
{
	struct sealing *x = container_of(w, struct sealing, work);
	struct slot *s = x->slot, *next = NULL;
	struct member *m = s->member;
	struct node *n = x->job->node;
	int r = w->status;

	s->busy = false;
	if (!m)
		slot_let_go(s);
	if (job_stopped(x->job))
		r = err_set(&x->err, CKPT_ESTOPPED, "%s", x->job->defect_text);
	else if (!m)
		r = err_set(&x->err, CKPT_EEPOCH, "rank %u: it was taken over; open first",
			    x->rank);
	if (r == 0)
		r = ledger_ready(&x->job->ledger, s->number);
	if (r == 0) {
		s->state = SLOT_EMPTY;
		m->prepared = true;
		problems_prepared(m);
		job_poke(x->job);
		next = next_mapping(m);
	}
	if (next && !n->stopping && may_fill(m)) {
		seal_submit(x, next);
		return;
	}
	if (m)
		m->sealing = NULL;
	/* The rank can save: it is not kept waiting for others. What failed unasked is tried again
	 * by some later step. */
	if (next || (m && r < 0 && !x->session))
		m->fills_later = true;
	if (next && n->stopping && x->session) { /* not answered: the next ckptd is asked */
		session_unref(x->session);
		x->session = NULL;
	}
	seal_answer(x, r);
	x->job->works--;
	if (r == 0 || !m) /* else that step would try again at once, for ever */
		job_poke(x->job);
	alloc_free(x);
}

static int seal_start(struct member *m, struct session *s, uint64_t request)
{
	struct sealing *x = alloc_zero(sizeof(*x));
	struct slot *slot = next_mapping(m);

	if (!x)
		return -ENOMEM;
	assert(slot && !slot->busy && !m->sealing);
	x->job = m->job;
	x->memory = m->job->node->env.memory;
	x->rank = m->rank;
	x->session = s ? session_ref(s) : NULL;
	x->request = request;
	x->work.run = seal_run;
	x->work.done = seal_done;
	m->sealing = x;
	m->fills_later = false;
	m->job->works++;
	seal_submit(x, slot);
	return 0;
}

int member_slots_ready(struct member *m, struct session *s, uint64_t request, struct err *e)
{
	int r;

	if (m->sealing) { /* asked again after a reconnect, or while the rest is filled */
		if (m->sealing->session)
			session_unref(m->sealing->session);
		m->sealing->session = session_ref(s);
		m->sealing->request = request;
		return 0;
	}
	if (!next_mapping(m) || (m->prepared && !may_fill(m))) {
		m->prepared = member_has_slots(m);
		m->fills_later = next_mapping(m) != NULL;
		session_reply_ok(s, request);
		job_poke(m->job);
		return 0;
	}
	r = seal_start(m, s, request);
	return r < 0 ? err_code(e, r, "rank %u: seal its slots", m->rank) : 0;
}

void slot_fill_step(struct job *j)
{
	struct member *m;

	list_each(m, &j->members, link)
		if (m->fills_later && m->prepared && !m->sealing && next_mapping(m) && may_fill(m))
			ignore_result(seal_start(m, NULL, 0) /* the next step tries again */);
}
