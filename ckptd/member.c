/* SPDX-License-Identifier: Apache-2.0 */
/*
 * member.c - the ranks of a job on this node: their processes, declarations, slots and credits.
 *
 * A member is one process as one rank. It ends when its process ends, says goodbye, or says that it
 * fails (leaving.c), never when its connection breaks. Its slots are its own: nobody else ever
 * writes to them; when it has ended, those that hold nothing are destroyed, those that do when
 * their checkpoint lets go.
 *
 *   slot   MAPPING -> EMPTY -> WRITING -> SEALED -> DIGESTED -> EMPTY ...
 *          WRITING -> EMPTY when the rank skips; each -> destroyed when its member has ended
 *
 * A credit allows one save: credits.c.
 */
#include <config.h>

#include "ckptd/goodput.h"
#include "ckptd/job.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "ckptd/beats.h"
#include "ckptd/credits.h"
#include "ckptd/leaving.h"
#include "ckptd/node_priv.h"
#include "ckptd/session.h"
#include "ckptd/watching.h"
#include "proto/session_page.h"

/* ---- Slots ---- */

struct slot *slot_find(struct job *j, uint32_t number)
{
	struct slot *s;

	list_each(s, &j->slots, link)
		if (s->number == number)
			return s;
	return NULL;
}

struct list *slots_left(struct job *j, uint32_t rank)
{
	return &j->slots_left[rank % SLOTS_LEFT_LISTS];
}

void slot_give(struct slot *s, struct member *m)
{
	list_del(&s->of_member);
	s->member = m;
	list_add_tail(m ? &m->slots : slots_left(s->job, s->rank), &s->of_member);
}

void slot_count(struct slot *s)
{
	if (!s->user && s->job->user)
		s->user = user_ref(s->job->user);
	if (!s->user)
		return;
	user_give(s->user, USER_REGIONS, s->places);
	user_give(s->user, USER_MEMORY_BYTES, s->bytes);
	s->places = s->table ? 2 : 1;
	s->bytes = s->region->size + (s->table ? s->table->size : 0);
	user_add(s->user, USER_REGIONS, s->places);
	user_add(s->user, USER_MEMORY_BYTES, s->bytes);
}

void slot_free(struct slot *s)
{
	if (s->user) {
		user_give(s->user, USER_REGIONS, s->places);
		user_give(s->user, USER_MEMORY_BYTES, s->bytes);
	}
	user_put(s->user);
	list_del(&s->of_member);
	alloc_free(s);
}

/* It stays charged until its place is free. */
static void destroy_region(struct slot *s, struct region *r)
{
	struct region_charge charge = {0};

	if (s->user && s->places > 0) {
		charge = (struct region_charge){user_ref(s->user), r->size};
		s->places--;
		s->bytes -= r->size;
	}
	region_destroy_charged(s->job->node, s->job->history.job.uid, r, charge);
}

static void slot_destroy(struct slot *s)
{
	if (job_stopped(s->job) || !JOB_ASSERT(s->job, !s->holds))
		return;
	/* The ledger first: a slot that it names and that is not there is only lost, while a
	 * region that nobody names is destroyed at adoption. Both orders are safe. */
	ignore_result(ledger_gone(&s->job->ledger, s->number) /* found missing at adoption */);
	answers_unlink(s->job->node, &s->link);
	list_del(&s->link);
	slot_fill_gone(s->job);
	destroy_region(s, s->region);
	if (s->table)
		destroy_region(s, s->table);
	slot_free(s);
}

void slot_let_go(struct slot *s)
{
	if (!s->holds && !s->busy)
		slot_destroy(s);
}

void slot_release(struct slot *s)
{
	if (!JOB_ASSERT(s->job, !s->holds))
		return;
	if (!s->member || !s->member->alive) {
		slot_destroy(s);
		return;
	}
	s->credit = 0; /* used: a ledger that is rewritten before it says so gives the slot none */
	/* If the ledger cannot say so, the slot stays as it is there: at adoption it would still
	 * hold its old checkpoint, whose bytes are about to be overwritten. Keep it out of use. */
	if (FAULT(SLOT_EMPTIED) || ledger_empty(&s->job->ledger, s->number) < 0)
		s->state = SLOT_QUARANTINED;
	else
		s->state = SLOT_EMPTY;
}

void member_empty_slots(struct job *j)
{
	struct slot *s, *next;

	list_each_safe(s, next, &j->slots, link)
		if (s->state == SLOT_QUARANTINED && !s->holds)
			slot_release(s);
}

uint64_t member_slot_bytes(const struct member *m)
{
	uint64_t bytes;

	if (!JOB_ASSERT(m->job, m->declared))
		return UINT64_MAX;
	/* Blobs begin at the next multiple of 4096 behind the last shard. */
	if (!size_add(m->declared->view.image_bytes, 4096 + m->blob_bytes, &bytes) ||
	    bytes > UINT64_MAX / 2)
		return UINT64_MAX;
	return round_up(bytes, 4096);
}

void member_drop_slots(struct member *m)
{
	struct slot *s, *next;

	list_each_safe(s, next, &m->slots, of_member) {
		slot_give(s, NULL);
		slot_let_go(s);
	}
}

/* ---- Joining and leaving ---- */

struct member *member_of_rank(struct job *j, uint32_t rank)
{
	struct member *m;

	list_each(m, &j->members, link)
		if (m->rank == rank)
			return m;
	return NULL;
}

void member_index(struct member *m)
{
	struct node *n = m->job->node;

	list_add_tail(by_process(&n->members, &m->process), &m->of_process);
	m->user = user_get(n, m->process.uid);
	if (m->user)
		user_add(m->user, USER_SESSIONS, 1);
}

void member_unindex(struct member *m)
{
	if (m->of_process.next)
		list_del(&m->of_process);
	if (m->user)
		user_give(m->user, USER_SESSIONS, 1);
	user_put(m->user);
	m->user = NULL;
}

struct member *member_new(struct job *j, uint32_t rank)
{
	struct member *m = alloc_zero(sizeof(*m));

	if (!m)
		return NULL;
	list_init(&m->ending);
	list_init(&m->slots);
	list_init(&m->fill.link);
	m->job = j;
	m->rank = rank;
	list_add_tail(&j->members, &m->link);
	rounds_add(&j->telling, &m->told);
	return m;
}

void member_delete(struct member *m)
{
	credits_forget(m);
	slot_fill_forget(m);
	list_del(&m->ending);
	list_del(&m->told.link);
	list_del(&m->link);
	alloc_free(m);
}

static void member_free(struct member *m)
{
	struct memory *mem = m->job->node->env.memory;

	assert(!m->session);
	member_unindex(m);
	if (m->page)
		mem->ops->destroy(mem, m->page);
	beats_leave(m);
	if (m->declared)
		declared_unref(m->job, m->declared);
	answers_unlink(m->job->node, &m->link);
	member_delete(m);
}

static int member_write(struct member *m)
{
	return ledger_member(&m->job->ledger, m->rank, &m->process, m->epoch, m->credit,
			     m->credit_unused, m->blob_bytes,
			     m->declared ? &m->declared->digest : NULL);
}

static int member_make_page(struct member *m)
{
	struct memory *mem = m->job->node->env.memory;
	char hex[ID_TEXT_MAX], name[REGION_NAME_MAX + 1];
	struct session_page *page;
	struct region *region;
	int r;

	hex_format(hex, m->job->history.job.id.b, 16);
	snprintf(name, sizeof(name), "page.%s.%u.%llx", hex, m->rank,
		 (unsigned long long)rng_u64(m->job->node->env.rng));
	r = mem->ops->create_small(mem, name, SESSION_PAGE_BYTES, &region);
	if (r < 0)
		return r;
	assert(region->size == SESSION_PAGE_BYTES);
	if (m->page)
		mem->ops->destroy(mem, m->page);
	m->page = region;
	page = region->base;
	page->magic = SESSION_PAGE_MAGIC;
	page->version = SESSION_VERSION;
	page->epoch = m->job->history.epoch.number;
	credits_fill_page(m, page);
	problems_fill_page(m, page);
	return 0;
}

int member_join(struct job *j, const struct open_request *r, struct member **ret)
{
	struct member *m = member_of_rank(j, r->rank);
	const struct process_id *p = session_process(r->session);
	bool same = m && m->alive && process_same(&m->process, p) &&
		    (r->reconnect || (!m->session && !m->declared));
	int err;

	leaving_goes_on(j, p, r->rank);
	if (m && !same) {
		member_left(m, MEMBER_REPLACED);
		m = NULL;
	}
	if (!m) {
		m = member_new(j, r->rank);
		if (!m)
			return -ENOMEM;
		m->process = *p;
		m->alive = true;
		m->epoch = j->history.epoch.number;
		m->entered_ns = loop_now(j->node->env.loop);
		err = member_write(m);
		if (err < 0) {
			member_delete(m);
			return err;
		}
		member_index(m);
	}
	err = member_make_page(m);
	if (err < 0 && !same) {
		/* Nobody was told of it, and nobody watches its process. */
		ignore_result(ledger_left(&j->ledger, m->rank) /* found gone at adoption */);
		member_free(m);
	}
	if (err < 0)
		return err;
	if (session_beats(r->session))
		beats_join(m, r->reconnect);
	if (r->reconnect && r->loaded_epoch == j->history.epoch.number)
		member_enter_epoch(m);
	if (!r->reconnect || r->loaded_epoch == j->history.epoch.number)
		member_set_origin(m, r->origin);
	if (m->session)
		session_forget_member(m->session);
	m->session = r->session;
	problems_joined(m);
	if (!same)
		watching_joined(m);
	*ret = m;
	return 0;
}

void member_enter_epoch(struct member *m)
{
	uint64_t was = m->epoch;

	m->entered_ns = loop_now(m->job->node->env.loop);
	if (was == m->job->history.epoch.number)
		return;
	m->epoch = m->job->history.epoch.number;
	if (m->origin.kind == ORIGIN_RESUMED) /* in the epoch before */
		m->origin = (struct origin){ORIGIN_FRESH, 0};
	credits_entered(m);
	/* Without the ledger's word a crash would put it back into the old epoch unawares. */
	if (member_write(m) < 0)
		m->epoch = was;
	job_poke(m->job);
}

void member_set_origin(struct member *m, struct origin o)
{
	struct job *j = m->job;

	m->origin = o;
	if (o.kind == ORIGIN_RESUMED)
		j->origins =
			(struct origins){.resumed = true, .resumed_rank = m->rank, .step = o.step};
	if (!member_must_load(m))
		problems_loaded(m);
	job_poke(j); /* a window may wait for it */
}

bool member_must_load(const struct member *m)
{
	return m->origin.kind == ORIGIN_FRESH && m->job->origins.resumed && m->declared &&
	       m->declared->view.n_shards > 0 && !BUG(MIXED_ORIGINS);
}

void member_refuse_credit(struct member *m, uint64_t request)
{
	struct record_epoch *ep = &m->job->history.epoch;
	char text[ERR_TEXT_MAX];

	snprintf(text, sizeof(text),
		 "rank %u: the job is in epoch %llu (%s), this rank is not; load, then save again",
		 m->rank, (unsigned long long)ep->number, ep->reason);
	session_reply_error(m->session, request, CKPT_EEPOCH, text);
}

/* What waits for a credit of an epoch that is over waits for nothing. */
static void end_credit_request(struct member *m)
{
	if (m->session && m->credit_request)
		member_refuse_credit(m, m->credit_request);
	m->credit_request = 0;
}

/* The member is gone when this returns. */
void member_left(struct member *m, enum member_end how)
{
	struct job *j = m->job;
	uint32_t rank = m->rank;

	m->alive = false;
	j->run_closed = true;
	credits_rank_left(j, rank);
	beats_leave(m); /* the detector takes a beat after the end for one of a new process */
	if (how == MEMBER_REPLACED)
		watching_left(m);
	else if (how == MEMBER_BYE)
		watching_exit(j, rank, EXIT_SAID_BYE, 0);
	else if (how == MEMBER_FAILED)
		leaving_add(m);
	else
		watching_ended(m);
	if (how == MEMBER_ENDED || how == MEMBER_FAILED)
		goodput_died(j);
	problems_left(m, how == MEMBER_BYE);
	end_credit_request(m);
	preparing_cancel(m);
	if (m->session)
		session_forget_member(m->session);
	m->session = NULL;
	member_drop_slots(m);
	ignore_result(ledger_left(&j->ledger, rank) /* its process is found gone at adoption */);
	member_free(m);
	if (how == MEMBER_ENDED)
		job_tell(j, 6, "process of rank %u ended", rank);
	if (how == MEMBER_FAILED)
		job_tell(j, 6, "rank %u left without a goodbye: its trainer fails", rank);
	if (list_empty(&j->members))
		problems_no_rank(j);
	if (how == MEMBER_BYE)
		member_all_left(j);
	checkpoint_member_gone(j, rank);
}

void member_all_left(struct job *j)
{
	if (!list_empty(&j->members) || !list_empty(&j->leaving))
		return;
	goodput_ended(j);
	problems_all_left(j);
	watching_over(j);
}

void member_publish_epoch(struct job *j)
{
	struct member *m;

	beats_forget_save(j);
	j->origins = (struct origins){0};
	list_each(m, &j->members, link) {
		if (m->page)
			((struct session_page *)m->page->base)->epoch = j->history.epoch.number;
		if (m->epoch != j->history.epoch.number)
			end_credit_request(m);
	}
}

/* ---- What it declares ---- */

int member_may_declare(const struct member *m, struct err *e)
{
	if (m->prepared || m->preparing || member_has_slots(m))
		return err_set(e, CKPT_ESTATE, "rank %u: slots are prepared for another "
			       "declaration; open anew to change it", m->rank);
	return 0;
}

/* Takes the reference if it succeeds. */
int member_declare(struct member *m, struct declared *d, struct err *e)
{
	struct declared *was = m->declared;
	int r = declared_write(&m->job->ledger, d);

	if (r < 0)
		return err_code(e, r, "rank %u: write declaration to the ledger", m->rank);
	m->declared = d;
	r = member_write(m);
	if (r < 0) {
		m->declared = was;
		return err_code(e, r, "rank %u: write to the ledger", m->rank);
	}
	if (was)
		declared_unref(m->job, was);
	return 0;
}

bool member_has_slots(const struct member *m)
{
	return !list_empty(&m->slots);
}
