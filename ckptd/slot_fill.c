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
 * 3. Members with slots that wait are in job->fills. A round visits them, some in each call of the
 *    loop, when something has changed for them: a slot is gone, another member waits, or the pause
 *    behind a failure is over. A step of the job in between costs nothing.
 *
 * A MEMORY worker makes pages, a second per GiB; the loop never waits for them. If the member ends
 * meanwhile its slots are let go.
 *
 * Failure modes: a fill that SlotsReady waits for fails with its answer, and is tried again when
 * SlotsReady is repeated; where another slot is filled, also without that. Such a fill, and one
 * that nothing waits for, pauses all waiting fills of the job, from PAUSE_MIN_NS up to
 * PAUSE_MAX_NS, until a fill succeeds. The trouble is a problem of the job (problems.c): a line at
 * its beginning and one at its end.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "ckptd/job.h"
#include "ckptd/node_priv.h"
#include "ckptd/session.h"

#define MEMBERS_IN_A_CALL 64u /* each may have some tens of slots to look at */
#define PAUSE_MIN_NS      1000000000ull
#define PAUSE_MAX_NS      (60 * PAUSE_MIN_NS)

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
	if (w->status == 0 && FAULT(SLOT_FILLED))
		w->status = -ENOMEM;
	if (w->status < 0) {
		err_set(&x->err, w->status, "rank %u: fill slot %u of %llu MiB: %s", x->rank,
			x->slot->number, (unsigned long long)div_up(r->size, 1u << 20),
			memory_error_text(w->status));
		return;
	}
	w->status = ops->seal(x->memory, r);
	if (w->status == 0 && FAULT(SLOT_READY))
		w->status = -EIO;
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

static uint32_t slots_for_later(const struct member *m)
{
	uint32_t n = 0;
	struct slot *s;

	list_each(s, &m->slots, of_member)
		n += s->state == SLOT_MAPPING;
	return n;
}

/* (2): slots that earlier processes have left stay while they hold what may have to be loaded. */
static bool may_fill(const struct member *m)
{
	uint32_t left = 0, filled = 0;
	struct slot *s;

	list_each(s, slots_left(m->job, m->rank), of_member) {
		assert(!s->member);
		left += s->rank == m->rank;
	}
	list_each(s, &m->slots, of_member)
		filled += s->state != SLOT_MAPPING;
	return filled == 0 || left + filled < m->job->node->options.slots + 1;
}

/* ---- Those that wait ---- */

static bool pauses(const struct job *j)
{
	return loop_now(j->node->env.loop) < j->fill_not_before_ns;
}

void slot_fill_later(struct member *m)
{
	list_del(&m->fill.link);
	rounds_add(&m->job->fills, &m->fill);
	m->job->fills_due = true;
}

void slot_fill_forget(struct member *m)
{
	list_del(&m->fill.link);
}

void slot_fill_gone(struct job *j)
{
	j->fills_due = j->fills_due || !list_empty(&j->fills.items);
}

/* All of them: they would miss the same memory. */
static void pause_fills(struct job *j)
{
	if (pauses(j))
		return;
	j->fill_pause_ns = max_u64(PAUSE_MIN_NS, min_u64(2 * j->fill_pause_ns, PAUSE_MAX_NS));
	j->fill_not_before_ns = loop_now(j->node->env.loop) + j->fill_pause_ns;
	timer_arm(j->node->env.loop, &j->fill_timer, j->fill_not_before_ns);
}

static void end_pause(struct job *j)
{
	j->fill_pause_ns = j->fill_not_before_ns = 0;
	timer_disarm(j->node->env.loop, &j->fill_timer);
	slot_fill_gone(j);
}

static void pause_is_over(struct timer *t)
{
	struct job *j = container_of(t, struct job, fill_timer);

	slot_fill_gone(j);
	job_poke(j);
}

/* ---- One after another ---- */

static void seal_submit(struct sealing *x, struct slot *s)
{
	s->busy = true;
	x->slot = s;
	job_submit(x->job, WORK_MEMORY, &x->work);
}

/* m: NULL: it has left. */
static void seal_answer(struct sealing *x, const struct member *m, int r)
{
	if (!x->session)
		return;
	session_slots_ready(x->session, x->request, m ? slots_for_later(m) : 0,
			    r == -ENOSPC ? CKPT_ENOSPACE : r,
			    x->err.code ? x->err.text : err_text(r));
	session_unref(x->session);
	x->session = NULL;
}

static void filled(struct member *m, struct slot *s)
{
	s->state = SLOT_EMPTY;
	m->prepared = true;
	problems_prepared(m);
	if (m->job->fill_pause_ns)
		end_pause(m->job);
}

/* m: NULL: it has left. Returns the result. */
static int take_result(struct sealing *x, struct member *m)
{
	struct slot *s = x->slot;
	int r = x->work.status;

	if (job_stopped(x->job))
		return err_set(&x->err, CKPT_ESTOPPED, "%s", x->job->defect_text);
	if (!m)
		return err_set(&x->err, CKPT_EEPOCH, "rank %u: it was taken over; open first",
			       x->rank);
	if (r == 0)
		r = ledger_ready(&x->job->ledger, s->number);
	if (r == 0)
		filled(m, s);
	else
		problems_prepare_refused(m, PREPARE_MEMORY,
					 x->err.code ? x->err.text : err_text(r));
	return r;
}

static void seal_done(struct work *w)
{
	struct sealing *x = container_of(w, struct sealing, work);
	struct slot *s = x->slot, *next = NULL;
	struct member *m = s->member;
	struct job *j = x->job;
	bool again;
	int r;

	s->busy = false;
	if (!m)
		slot_let_go(s);
	r = take_result(x, m);
	if (r == 0) {
		job_poke(j);
		next = next_mapping(m);
	}
	if (next && !j->node->stopping && may_fill(m)) {
		seal_submit(x, next);
		return;
	}
	if (m)
		m->sealing = NULL;
	/* The rank can save: it is not kept waiting for others. */
	again = m && r < 0 && m->prepared;
	if (again && !job_stopped(j))
		pause_fills(j);
	if (m && (next || again))
		slot_fill_later(m);
	if (next && j->node->stopping && x->session) { /* not answered: the next ckptd is asked */
		session_unref(x->session);
		x->session = NULL;
	}
	seal_answer(x, m, r);
	j->works--;
	job_poke(j);
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
	slot_fill_forget(m);
	m->job->works++;
	seal_submit(x, slot);
	return 0;
}

int member_slots_ready(struct member *m, struct session *s, uint64_t request, struct err *e)
{
	int r;

	/* A Prepare that fails takes back all slots, so none of them may have a credit by then. */
	if (m->preparing)
		return err_set(e, CKPT_ESTATE,
			       "rank %u: its slots are still being made; wait for the answer to "
			       "Prepare, then map them",
			       m->rank);
	if (m->sealing) { /* asked again after a reconnect, or while the rest is filled */
		if (m->sealing->session)
			session_unref(m->sealing->session);
		m->sealing->session = session_ref(s);
		m->sealing->request = request;
		return 0;
	}
	if (!next_mapping(m) || (m->prepared && !may_fill(m))) {
		m->prepared = member_has_slots(m);
		if (next_mapping(m))
			slot_fill_later(m);
		session_slots_ready(s, request, slots_for_later(m), 0, NULL);
		job_poke(m->job);
		return 0;
	}
	r = seal_start(m, s, request);
	return r < 0 ? err_code(e, r, "rank %u: seal its slots", m->rank) : 0;
}

/* ---- The round ---- */

static uint64_t fills_budget(struct rounds *r)
{
	struct job *j = container_of(r, struct job, fills);

	return job_stopped(j) || j->node->stopping || pauses(j) ? 0 : MEMBERS_IN_A_CALL;
}

static uint64_t fill_visit(struct rounds *r, struct round_item *item)
{
	struct member *m = container_of(item, struct member, fill);

	(void)r;
	assert(!m->sealing);
	if (!next_mapping(m))
		slot_fill_forget(m);
	else if (m->prepared && may_fill(m) && seal_start(m, NULL, 0) < 0)
		pause_fills(m->job);
	return 1;
}

void slot_fill_init(struct job *j)
{
	j->fills = (struct rounds){.loop = j->node->env.loop,
				   .label = "slots that are filled later",
				   .budget = fills_budget,
				   .visit = fill_visit};
	rounds_init(&j->fills);
	timer_init(&j->fill_timer, pause_is_over);
	for (uint32_t i = 0; i < SLOTS_LEFT_LISTS; i++)
		list_init(&j->slots_left[i]);
}

void slot_fill_stop(struct job *j)
{
	rounds_stop(&j->fills);
	timer_disarm(j->node->env.loop, &j->fill_timer);
}

void slot_fill_step(struct job *j)
{
	if (!j->fills_due || pauses(j))
		return;
	j->fills_due = false;
	rounds_begin(&j->fills, j->history.job.uid);
}
