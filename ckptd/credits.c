/* SPDX-License-Identifier: Apache-2.0 */
/*
 * credits.c - which step the ranks of a job save next, and who may.
 *
 * A credit allows one save, and a save counts only if every rank makes it. So credits come in
 * windows: a window has a first step, and each rank uses its credit for its first save of that step
 * or a later one. The first step lies beyond every save that any rank has begun, so all ranks save
 * the same step, however far they drift apart.
 *
 *   closed -> open: all ranks are in the epoch, prepared and done with the last window, and each
 *                   has an unused credit or an empty slot
 *   turn of a rank in an open window   DUE -> GIVEN -> DONE      DONE: it sealed, or skipped a step
 *                                      of the window
 *
 * A rank says which save it has begun in its beat page before it looks for a credit (beat_page.h);
 * one that cannot beat says it with the Seal or Skip of that save. A rank that waits for a credit
 * has not begun its save in this sense: the window may begin with that step.
 *
 * All ranks may come back to a step that was not saved: the window begins with the newest step that
 * was begun, not beyond it, where a rank of the last window failed to save that step, or where
 * there was no window in this epoch yet, so that no rank had a credit for it. Where they go on
 * instead, one attempt is lost. After any other window it would be lost all the time: ranks that
 * skip a step for want of a credit are ahead of the one that they lack it for.
 *
 * A window that lies far beyond most ranks is a step counter that is off, or a wrong step in one
 * call. While that rank stays there no step is saved by all, so it is a problem that names it
 * (problems.h); when it goes back, the window does.
 *
 * A step of the window that a rank has not sealed in its turn it never will: the next window lies
 * beyond every begun save. Nor will it one before its newest begun save and the window. Such an
 * attempt is aborted before the next window, so that no rank lacks a slot for it. A Seal that is on
 * its way keeps the turn open, also over a restart: the rank that sent it repeats it, or gives its
 * credit back, before it says anything of a later step.
 *
 * After a restart the window goes on: its first step is in the beat pages, which show each rank's
 * until its turn ends without a save. A rank that has none, and has not begun a step of the window,
 * is still due.
 *
 * Invariants: (1) no rank is given a credit while another rank lacks a slot for it; (2) a credit
 * that was given is used once, or given back; (3) a credit whose rank missed its window is shown to
 * it again only with the first step of the next one.
 *
 * Failure modes: a rank that begins a save in the moment between the choice of the first step and
 * the write of its page, misses the window; so may ranks behind the first 64, which get their
 * credits in a later call. Their attempt is aborted, nothing is lost.
 */
#include <config.h>

#include "ckptd/credits.h"

#include <assert.h>

#include "base/fault.h"
#include "ckptd/beats.h"
#include "ckptd/node_priv.h"
#include "ckptd/problems.h"
#include "ckptd/session.h"
#include "proto/beat_page.h"
#include "proto/session_page.h"

#define GRANTS_IN_A_CALL 64u /* each may write an answer to a socket: some microseconds */
#define PASSED_STEPS     3u  /* of one rank in one window: drift alone makes one or two */

static bool is_open(const struct job *j)
{
	return j->window.epoch != 0 && j->window.epoch == j->history.epoch.number;
}

static struct session_page *page_of(const struct member *m)
{
	return m->page ? m->page->base : NULL;
}

static struct slot *slot_in(struct member *m, enum slot_state state)
{
	struct slot *s;

	list_each(s, &m->slots, of_member)
		if (s->state == state)
			return s;
	return NULL;
}

static struct slot *empty_slot(struct member *m)
{
	return slot_in(m, SLOT_EMPTY);
}

bool member_lacks_slot(struct job *j)
{
	struct member *m;

	list_each(m, &j->members, link)
		if (m->alive && m->prepared && !m->sealing && !m->credit_unused && !empty_slot(m))
			return true;
	return false;
}

/* ---- Why there is none ---- */

static void show_block(const struct job *j, struct session_page *page)
{
	atomic_store_explicit(&page->blocked_rank, j->window.blocked_rank, memory_order_relaxed);
	atomic_store_explicit(&page->blocked, j->window.block, memory_order_relaxed);
}

static void set_block(struct job *j, enum credit_block why, uint32_t rank)
{
	struct member *m;

	if (j->window.block == why && j->window.blocked_rank == rank)
		return;
	j->window.block = why;
	j->window.blocked_rank = rank;
	list_each(m, &j->members, link)
		if (page_of(m))
			show_block(j, page_of(m));
}

static enum credit_block rank_blocks(const struct job *j, struct member *m)
{
	if (!m->prepared)
		return BLOCK_UNPREPARED;
	if (m->epoch != j->history.epoch.number || member_must_load(m))
		return BLOCK_NOT_LOADED;
	if (is_open(j) && m->turn != TURN_DONE && !j->window.deserted && !BUG(CREDIT_AT_ANY_STEP))
		return BLOCK_BEHIND;
	if (m->credit_unused || empty_slot(m))
		return BLOCK_NONE;
	return slot_in(m, SLOT_MAPPING) ? BLOCK_FILLING : BLOCK_SLOTS;
}

/* What keeps the next window from being opened; BLOCK_NONE: nothing does. */
static enum credit_block find_block(struct job *j, uint32_t *ret_rank)
{
	enum credit_block found = BLOCK_NONE, why;
	struct member *m;
	uint32_t n = 0;

	*ret_rank = 0;
	if (j->opening || j->history.epoch.number == 0 || j->node->stopping)
		return BLOCK_OPENING;
	if (j->rank_left) {
		*ret_rank = j->left_rank;
		return BLOCK_LEFT;
	}
	if (ledgering_short(j))
		return BLOCK_MEMORY;
	/* The usual answer, without a walk. The last of those behind is shown: most often ranks
	 * seal in the order in which they came, and each change is written to all pages. */
	m = j->window.behind;
	if (m && rank_blocks(j, m) == BLOCK_BEHIND) {
		*ret_rank = m->rank;
		return BLOCK_BEHIND;
	}
	j->window.behind = NULL;
	list_each(m, &j->members, link) {
		n += m->alive;
		why = rank_blocks(j, m);
		if (why == BLOCK_NONE || (found != BLOCK_NONE && found != BLOCK_BEHIND))
			continue;
		found = why;
		*ret_rank = m->rank;
		j->window.behind = why == BLOCK_BEHIND ? m : NULL;
	}
	return n == j->history.epoch.world ? found : BLOCK_ABSENT;
}

/* ---- A window ---- */

/* The first step that this rank saves from now on; again: it may come back to the newest one that
 * it has begun. What it says in its page is never older than its messages. */
static uint64_t next_of(const struct member *m, bool again)
{
	const struct beat_page *p = beats_page(m);
	uint64_t next;

	if (p && beat_page_next_save(p, m->epoch, again, &next))
		return next;
	return m->next_save - (again && m->next_save > 0);
}

static uint64_t furthest(const struct job *j, bool again, uint32_t *ret_rank)
{
	uint64_t first = 0, next;
	const struct member *m;

	*ret_rank = 0;
	list_each(m, &j->members, link) {
		next = next_of(m, again);
		if (next > first)
			*ret_rank = m->rank;
		first = max_u64(first, next);
	}
	return first;
}

/* Whether a Seal of that step can come no more: it has used its turn in which it might, or it has
 * gone on. */
static bool has_passed(const struct member *m, uint64_t step)
{
	const struct job *j = m->job;

	if (is_open(j) && step >= j->window.from)
		return m->turn == TURN_DONE;
	return next_of(m, true) > step;
}

static void abort_passed(struct job *j)
{
	struct checkpoint *c;
	struct member *m;

	list_each(c, &j->checkpoints, link) {
		if (c->agreed != CP_OPEN || c->sealed || c->epoch != j->history.epoch.number)
			continue;
		list_each(m, &j->members, link) {
			if (m->rank >= c->world || c->shards[m->rank].sealed ||
			    !has_passed(m, c->step))
				continue;
			checkpoint_abort(c, "rank %u saves another step instead",
					 m->rank);
			break;
		}
	}
}

static uint64_t choose_first(struct job *j)
{
	uint64_t first = furthest(j, !is_open(j), &j->window.ahead);

	if (j->history.epoch.world == 1 || BUG(CREDIT_AT_ANY_STEP))
		return 0; /* a rank alone agrees with itself, and may try a step again */
	/* All ranks are done with that step, and none of them is beyond it: they may try it again.
	 */
	return is_open(j) && first > 0 && first == j->window.failed ? first - 1 : first;
}

static void open_window(struct job *j)
{
	uint64_t from = min_u64(choose_first(j), CREDIT_NOT_YET - 1);
	struct member *m;

	list_each(m, &j->members, link) {
		assert(m->prepared && m->epoch == j->history.epoch.number);
		m->turn = TURN_DUE;
		m->passed = 0;
	}
	j->window.epoch = j->history.epoch.number;
	j->window.from = from;
	j->window.failed = 0;
	j->window.deserted = false;
	j->window.opened_ns = loop_now(j->node->env.loop);
	j->window.due = true;
	problems_together(j);
}

uint64_t credits_first(const struct member *m)
{
	return is_open(m->job) && m->turn == TURN_GIVEN ? m->job->window.from : CREDIT_NOT_YET;
}

static void show_credit(const struct member *m, struct session_page *page)
{
	struct slot *s;

	if (m->credit_unused)
		list_each(s, &m->slots, of_member)
			if (s->state == SLOT_WRITING)
				atomic_store(&page->credit_slot, s->number);
	atomic_store(&page->credit_from, credits_first(m));
	atomic_store(&page->credit, m->credit);
}

/* Its turn in this window is over, with or without its credit (3). */
static void end_turn(struct member *m)
{
	m->turn = TURN_DONE;
	beats_note_credit(m);
	if (page_of(m))
		atomic_store(&page_of(m)->credit_from, CREDIT_NOT_YET);
}

static bool assign_slot(struct member *m)
{
	struct slot *s = empty_slot(m);

	/* Without the ledger's word the slot would be taken for an empty one after a crash. */
	if (!JOB_ASSERT(m->job, s != NULL) ||
	    ledger_assign(&m->job->ledger, s->number, m->credit + 1) < 0)
		return false; /* the next event tries again */
	m->credit++;
	m->credit_unused = true;
	s->state = SLOT_WRITING;
	s->credit = m->credit;
	return true;
}

static bool give_one(struct member *m)
{
	if (!m->credit_unused && !assign_slot(m))
		return false;
	m->turn = TURN_GIVEN;
	beats_note_credit(m); /* first: the rank may use what its own page shows at once */
	/* One that was adopted and is not back gets a page that says so when it comes. */
	if (page_of(m))
		show_credit(m, page_of(m));
	if (m->credit_request && m->session) {
		session_reply_ok(m->session, m->credit_request);
		m->credit_request = 0;
	}
	return true;
}

static void give_due(struct job *j)
{
	struct member *m;
	unsigned n = 0;

	list_each(m, &j->members, link) {
		if (m->turn != TURN_DUE)
			continue;
		if (!m->prepared || !(m->credit_unused || empty_slot(m))) {
			end_turn(m); /* it prepares again, and misses the window */
			continue;
		}
		if (n++ == GRANTS_IN_A_CALL) {
			job_poke(j);
			return;
		}
		if (!give_one(m))
			return;
	}
	j->window.due = false;
}

void credits_give(struct job *j)
{
	enum credit_block why;
	uint32_t rank;

	if (!is_open(j) || !j->window.due) {
		why = find_block(j, &rank);
		set_block(j, why, rank);
		if ((why == BLOCK_NONE || why == BLOCK_SLOTS) && !BUG(PASSED_KEEPS_SLOTS))
			abort_passed(j);
		if (why != BLOCK_NONE)
			return;
		open_window(j);
	}
	if (!j->opening && !j->node->stopping)
		give_due(j);
}

void credits_forget(struct member *m)
{
	if (m->job->window.behind == m)
		m->job->window.behind = NULL;
}

void credits_rank_left(struct job *j, uint32_t rank)
{
	/* A ledger may still have ranks of a launch that had more. */
	if (j->rank_left || rank >= j->history.epoch.world)
		return;
	j->rank_left = true;
	j->left_rank = rank;
}

/* ---- What ranks do with it ---- */

static void said_step(struct member *m, uint64_t step)
{
	if (step < UINT64_MAX)
		m->next_save = step + 1;
}

void credits_sealed(struct member *m, uint64_t step)
{
	assert(!m->credit_unused);
	said_step(m, step);
	m->turn = TURN_DONE;
}

void credits_returned(struct member *m)
{
	assert(!m->credit_unused);
	end_turn(m);
}

void credits_entered(struct member *m)
{
	m->next_save = 0;
	/* A rank alone agrees with itself: what it has it may use. */
	if (m->job->history.epoch.world > 1 || !m->credit_unused)
		end_turn(m);
}

/* It skipped a step before the window. */
static void passed(struct member *m, uint64_t step)
{
	struct job *j = m->job;
	uint64_t age = loop_now(j->node->env.loop) - j->window.opened_ns;
	uint32_t rank;

	if (m->rank == j->window.ahead)
		j->window.deserted = !j->window.due && furthest(j, false, &rank) < j->window.from;
	else if (m->turn == TURN_GIVEN && ++m->passed >= PASSED_STEPS &&
		 age >= j->node->options.skips_ns)
		problems_ahead(m, step);
}

void credits_skipped(struct member *m, uint64_t step, bool gave_back)
{
	struct job *j = m->job;

	said_step(m, step);
	if (is_open(j) && step < j->window.from)
		passed(m, step);
	if (!is_open(j) || step < j->window.from || step == UINT64_MAX)
		return;
	if (!gave_back && (m->turn != TURN_GIVEN || j->history.epoch.world == 1))
		return; /* alone it agrees with itself about any step */
	j->window.failed = step + 1;
	end_turn(m);
}

bool credits_has(const struct member *m)
{
	return m->credit_unused && m->turn == TURN_GIVEN && is_open(m->job);
}

void credits_fill_page(const struct member *m, struct session_page *page)
{
	show_credit(m, page);
	show_block(m->job, page);
}

/* What it has sealed it has said. */
static void adopt_sealed(struct job *j)
{
	const struct checkpoint *c;
	struct member *m;

	list_each(c, &j->checkpoints, link)
		if (c->epoch == j->history.epoch.number)
			list_each(m, &j->members, link)
				if (m->rank < c->world && c->shards[m->rank].sealed)
					m->next_save = max_u64(m->next_save, c->step + 1);
}

void credits_adopt(struct job *j)
{
	uint64_t epoch = j->history.epoch.number, from = 0;
	struct member *m;

	adopt_sealed(j);
	list_each(m, &j->members, link)
		if (m->epoch == epoch)
			from = max_u64(from, beats_credit(m));
	if (from == 0)
		return; /* no rank was given one, or can say so: the next window is the first */
	j->window.epoch = epoch;
	j->window.from = from - 1;
	j->window.opened_ns = loop_now(j->node->env.loop);
	ignore_result(furthest(j, false, &j->window.ahead));
	list_each(m, &j->members, link) {
		if (m->epoch != epoch || next_of(m, false) > j->window.from)
			m->turn = TURN_DONE;
		else
			m->turn = TURN_DUE;
		if (m->credit_unused && m->epoch == epoch && beats_credit(m) == from)
			m->turn = TURN_GIVEN;
		j->window.due = j->window.due || m->turn == TURN_DUE;
	}
}
