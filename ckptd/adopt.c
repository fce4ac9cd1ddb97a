/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adopt.c - after a crash of ckptd: the memory that the fd store kept becomes slots, members and
 * checkpoints again. Ledger plus log are the state (I6); nothing is believed of a slot that its
 * ledger does not say, and a committed checkpoint in memory must lead to its root (I2).
 *
 *   region that no ledger names        destroyed
 *   declaration in a region of its own that is missing, or whose bytes are not its digest's:
 *                                      what was saved of it is lost; the log says so
 *   SEALED, no table                   digested again
 *   tables, in the log as committed    COMMITTED if its root is the record's, else quarantined
 *   tables, not in the log             goes on to be committed
 *   WRITING, process alive             stays that process's
 *   process gone                       slots that hold nothing are destroyed; it is told
 *   beat page of a living member       is read on from where it is (beats.c)
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "ckptd/beats.h"
#include "ckptd/credits.h"
#include "ckptd/digesting.h"
#include "ckptd/events.h"
#include "ckptd/goodput.h"
#include "ckptd/problems.h"
#include "ckptd/refused.h"
#include "ckptd/start.h"
#include "ckptd/watching.h"
#include "ckptd/watching_json.h"
#include "codec/digest.h"
#include "detect/verdicts.h"
#include "model/attempt.h"
#include "model/table.h"

#define CREDIT_MAX (UINT64_MAX / 2) /* they are counted by one from 1 */

/* One job's replay. Slots are made at once; regions are found by name. */
struct adoption {
	struct node *node;
	struct job *job;
	struct list *regions;
};

static void collect_region(void *arg, struct region *r)
{
	list_add_tail(arg, &r->link);
}

void adopt_begin(struct node *n)
{
	assert(list_empty(&n->kept_regions));
	n->env.memory->ops->adopt(n->env.memory, collect_region, &n->kept_regions);
}

static struct region *take_region(struct list *regions, const char *name)
{
	struct region *r;

	list_each(r, regions, link) {
		if (strcmp(r->name, name) == 0) {
			list_del(&r->link);
			return r;
		}
	}
	return NULL;
}

/* ---- Replay ---- */

static bool is_declared(struct job *j, const struct digest *d)
{
	struct declared *out = declared_get(j, d);

	if (out)
		declared_unref(j, out);
	return out;
}

/*
 * An older ckptd wrote long payloads into records, which each rewrite would copy on the loop: move
 * such a payload into a region. It stays in the record if there is no memory, and in a job that is
 * adopted late, while ckptd serves others.
 */
static struct region *own_region(struct job *j, const char *name, uint64_t size, size_t len)
{
	struct memory *m = j->node->env.memory;
	struct region *r;

	if (len <= j->node->options.ledger_inline || len > size || j->node->ready ||
	    m->ops->create(m, name, size, &r) < 0)
		return NULL;
	j->ledger.annexes_wanted = true;
	return r;
}

static int on_declaration(void *arg, const struct digest *d, const void *bytes, size_t len)
{
	struct adoption *a = arg;
	char name[REGION_NAME_MAX + 1];
	struct region *region;
	int r;

	if (is_declared(a->job, d))
		return 0;
	declared_name(a->job, name, sizeof(name));
	region = own_region(a->job, name, round_up(len, 4096), len);
	if (region)
		memcpy(region->base, bytes, len);
	r = declared_adopt(a->job, d, bytes, len, region);
	if (r < 0 && region)
		a->node->env.memory->ops->destroy(a->node->env.memory, region);
	return r;
}

/* From here on only what members and shards hold stays. */
static void let_go_of_declarations(struct job *j)
{
	struct declared *d, *next;

	list_each_safe(d, next, &j->declared, link)
		declared_unref(j, d);
}

/* The name of a region says its kind and job, so that no ledger names another job's region or a
 * page. The rest of the name behind both; NULL: another kind or job. */
static const char *name_of(const struct job *j, const char *kind, const char *region)
{
	char prefix[ID_TEXT_MAX + 16], hex[ID_TEXT_MAX];

	hex_format(hex, j->history.job.id.b, sizeof(j->history.job.id.b));
	snprintf(prefix, sizeof(prefix), "%s%s.", kind, hex);
	return strncmp(region, prefix, strlen(prefix)) == 0 ? region + strlen(prefix) : NULL;
}

/* No name is used twice while a ledger may have it. */
static void note_declaration(struct job *j, const char *region)
{
	const char *number = name_of(j, DECLARED_PREFIX, region);
	uint64_t n = number ? strtoull(number, NULL, 10) : 0;

	if (n < UINT64_MAX / 2)
		j->next_declaration = max_u64(j->next_declaration, n + 1);
}

/* A region that is missing, or holds something else, is no error here: it was destroyed with the
 * last object that used it. If a member or slot still uses it, that becomes `undeclared`. */
static int on_declaration_in(void *arg, const struct digest *d, uint64_t len, const char *name)
{
	struct adoption *a = arg;
	struct region *r;
	int err;

	note_declaration(a->job, name);
	if (is_declared(a->job, d) || !name_of(a->job, DECLARED_PREFIX, name) ||
	    BUG(DECLARATION_NOT_TAKEN))
		return 0;
	r = take_region(a->regions, name);
	if (!r)
		return 0;
	err = len <= r->size ? declared_adopt(a->job, d, NULL, len, r) : CKPT_ECORRUPT;
	if (err < 0) /* destroyed with the regions that no record names */
		list_add_tail(a->regions, &r->link);
	return err == -ENOMEM ? err : 0;
}

/* A process has at most as many slots as one message hands over. */
static bool has_room_for(struct job *j, uint32_t rank, const struct process_id *p)
{
	struct slot *s;
	uint32_t n = 0;

	if (p->pid == 0) /* no process owns it: it is kept for what it holds */
		return true;
	list_each(s, &j->slots, link)
		n += s->rank == rank && process_same(&s->process, p);
	return n < CONN_FDS_MAX;
}

/*
 * In each of these: a record that contradicts the ones before it changes nothing. A ledger with a
 * right digest may still be one of a ckptd with a defect, and what it says must not end this one.
 */
static int on_slot(void *arg, uint32_t number, uint32_t rank, const char *region,
		   const struct process_id *p)
{
	struct adoption *a = arg;
	char table[REGION_NAME_MAX + 1];
	struct slot *s;
	struct region *r;

	if (number == UINT32_MAX || rank >= WORLD_MAX || !name_of(a->job, "slot.", region) ||
	    slot_find(a->job, number) || !has_room_for(a->job, rank, p))
		return 0;
	r = take_region(a->regions, region);
	a->job->next_slot = number >= a->job->next_slot ? number + 1 : a->job->next_slot;
	if (!r)
		return 0; /* created after this record was written, or destroyed since */
	s = alloc_zero(sizeof(*s));
	if (!s)
		return -ENOMEM;
	list_init(&s->of_member);
	s->job = a->job;
	s->number = number;
	s->rank = rank;
	slot_give(s, NULL);
	s->region = r;
	ledgering_table_name(a->job, number, table, sizeof(table));
	s->table = take_region(a->regions, table);
	s->process = *p;
	s->state = SLOT_MAPPING;
	list_add_tail(&a->job->slots, &s->link);
	slot_count(s);
	return 0;
}

static int on_ready(void *arg, uint32_t number)
{
	struct slot *s = slot_find(((struct adoption *)arg)->job, number);

	if (s && s->state == SLOT_MAPPING)
		s->state = SLOT_EMPTY;
	return 0;
}

static int on_assign(void *arg, uint32_t number, uint64_t credit)
{
	struct job *j = ((struct adoption *)arg)->job;
	struct slot *s = slot_find(j, number);
	struct member *m = s ? member_of_rank(j, s->rank) : NULL;

	if (!s || (s->state != SLOT_EMPTY && s->state != SLOT_WRITING) || credit == 0 ||
	    credit > CREDIT_MAX)
		return 0;
	s->state = SLOT_WRITING;
	s->credit = credit;
	s->undeclared = false;
	/* Credits of a process rise for ever, also when their slots have been emptied since. */
	if (m && m->process.pid == s->process.pid)
		m->credit = max_u64(m->credit, credit);
	return 0;
}

static void slot_detach(struct slot *s)
{
	struct checkpoint *c = s->holds;
	struct shard_state *sh;

	if (!c)
		return;
	sh = &c->shards[s->rank];
	if (c->agreed == CP_OPEN)
		c->bytes -= sh->image_len;
	c->n_sealed--;
	c->n_memory--;
	c->sealed = false;
	if (sh->table)
		c->n_digested--;
	c->digested = false;
	c->memory = false;
	shard_drop_blobs(sh);
	if (!sh->table_in_region)
		alloc_free(sh->table);
	if (sh->declared)
		declared_unref(s->job, sh->declared);
	*sh = (struct shard_state){ .bad_file = sh->bad_file };
	s->holds = NULL;
}

static int on_empty(void *arg, uint32_t number)
{
	struct slot *s = slot_find(((struct adoption *)arg)->job, number);

	if (s) {
		slot_detach(s);
		s->state = SLOT_EMPTY;
		s->credit = 0;
		s->undeclared = false;
	}
	return 0;
}

static int on_gone(void *arg, uint32_t number)
{
	struct adoption *a = arg;
	struct slot *s = slot_find(a->job, number);

	if (s) {
		slot_detach(s);
		/* The region outlived its record: ckptd was killed in between. */
		a->node->env.memory->ops->destroy(a->node->env.memory, s->region);
		if (s->table)
			a->node->env.memory->ops->destroy(a->node->env.memory, s->table);
		list_del(&s->link);
		slot_free(s);
	}
	return 0;
}

/* As checkpoint_seal() has asked: the shards, then the blobs, each inside the slot. */
static bool image_is_good(const struct ledger_seal *in, const struct declared *d,
			  const struct slot *s)
{
	uint64_t end = d->view.image_bytes;

	for (uint32_t i = 0; i < in->n_blobs; i++)
		if (in->blobs[i].image_offset < end ||
		    !size_add(in->blobs[i].image_offset, in->blobs[i].bytes, &end))
			return false;
	return end == in->image_len && end <= s->region->size;
}

static bool seal_is_good(const struct ledger_seal *in, const struct slot *s,
			 const struct checkpoint *c, const struct declared *d)
{
	if (!s || !d || (s->state != SLOT_EMPTY && s->state != SLOT_WRITING))
		return false;
	if (in->world > WORLD_MAX || s->rank >= in->world || !image_is_good(in, d, s))
		return false;
	return !c || (c->world == in->world && c->epoch == in->epoch &&
		      !c->shards[s->rank].sealed);
}

/* The log does not know this folder, which has no COMMIT, but memory has its attempt and the epoch
 * continues: ckptd was killed while it wrote the files and before it appended the commit record, or
 * the log was lost since. ckptd writes the files again from memory. */
static bool is_only_begun(const struct checkpoint *c, const struct ledger_seal *in)
{
	const struct record_epoch *ep = &c->job->history.epoch;

	return c->record_n == 0 && c->commit_gone && c->n_sealed == 0 &&
	       c->agreed == CP_COMMITTED && in->epoch == ep->number && in->world == ep->world;
}

static int on_sealed(void *arg, const struct ledger_seal *in)
{
	struct adoption *a = arg;
	struct job *j = a->job;
	struct slot *s = slot_find(j, in->slot);
	struct checkpoint *c = checkpoint_find_attempt(j, in->step, &in->attempt);
	struct declared *d = declared_get(j, &in->declaration);
	struct blobs *blobs;
	int r;

	if (c && is_only_begun(c, in)) {
		checkpoint_free(c);
		c = NULL;
	}
	if (!seal_is_good(in, s, c, d)) {
		if (s && s->state == SLOT_WRITING) { /* its credit was used */
			s->state = SLOT_EMPTY;
			s->credit = 0;
		}
		if (s)
			s->undeclared = !d;
		if (d)
			declared_unref(j, d);
		return 0;
	}
	if (!c) {
		r = checkpoint_new(j, in->step, in->epoch, in->world, &in->attempt, &c);
		if (r < 0) {
			declared_unref(j, d);
			return r;
		}
		c->try_number = in->try_number;
	}
	blobs = blobs_copy(in->blobs, in->n_blobs);
	if (!blobs) {
		declared_unref(j, d);
		return -ENOMEM;
	}
	checkpoint_attach(c, s->rank, s, d, in->image_len, blobs, in->origin);
	return 0;
}

static bool wants_table(const struct slot *s)
{
	return s && s->holds && !s->holds->shards[s->rank].table;
}

/* Takes bytes if it is the slot's. */
static bool take_table(struct slot *s, void *bytes, size_t len, bool in_region)
{
	struct made_table made;
	struct rank_table t;

	if (made_table_open(bytes, len, NULL, &made, &t) < 0 || t.rank != s->rank ||
	    t.world != s->holds->world ||
	    t.image_len != s->holds->shards[s->rank].image_len)
		return false;
	made.in_region = in_region;
	checkpoint_table(s->holds, s->rank, &made);
	return true;
}

/* The region for a table that is too long for a record; NULL: it is not too long, or has no region.
 * Does not return a region that a later record may name, so that it is not overwritten. */
static struct region *place_of_table(struct slot *s, size_t len)
{
	const struct shard_state *sh = &s->holds->shards[s->rank];
	char name[REGION_NAME_MAX + 1];

	if (s->table && s->job->ledger.annexes)
		return NULL;
	ledgering_table_name(s->job, s->number, name, sizeof(name));
	if (!s->table)
		s->table = own_region(s->job, name,
				      ledgering_table_region(s->job, sh->declared->len,
							     s->region->size),
				      len);
	slot_count(s);
	return s->table && len > s->job->node->options.ledger_inline && len <= s->table->size
		       ? s->table
		       : NULL;
}

static int on_table(void *arg, uint32_t number, const void *table, size_t len)
{
	struct slot *s = slot_find(((struct adoption *)arg)->job, number);
	struct region *region;
	void *copy;

	if (!wants_table(s))
		return 0;
	region = place_of_table(s, len);
	if (region) {
		memcpy(region->base, table, len);
		ignore_result(take_table(s, region->base, len, true) /* else digested again */);
		return 0;
	}
	copy = alloc_copy(table, len);
	if (!copy)
		return -ENOMEM;
	if (!take_table(s, copy, len, false))
		alloc_free(copy); /* it will be digested again */
	return 0;
}

/* The region has the slot's newest table, which may be of a later seal than this record is. */
static int on_table_in(void *arg, uint32_t number, const struct digest *d, uint64_t len,
		       const char *name)
{
	struct slot *s = slot_find(((struct adoption *)arg)->job, number);
	struct digest real;

	if (!wants_table(s) || !s->table || strcmp(s->table->name, name) != 0 ||
	    len > s->table->size)
		return 0;
	real = digest_of(s->table->base, len);
	if (digest_equal(&real, d))
		ignore_result(take_table(s, s->table->base, len, true) /* else digested again */);
	return 0;
}

static int on_member(void *arg, uint32_t rank, const struct process_id *p, uint64_t epoch,
		     uint64_t credit, bool credit_unused, uint64_t blob_bytes,
		     const struct digest *declaration)
{
	struct adoption *a = arg;
	struct member *m = member_of_rank(a->job, rank);

	(void)credit_unused; /* the slots say it */
	if (rank >= WORLD_MAX || credit > CREDIT_MAX)
		return 0;
	if (!m) {
		m = member_new(a->job, rank);
		if (!m)
			return -ENOMEM;
	}
	/* Credits are counted for each process anew. */
	if (memcmp(&m->process, p, sizeof(*p)) != 0 || !m->alive)
		m->credit = 0;
	m->process = *p;
	m->alive = true;
	m->epoch = epoch;
	m->credit = max_u64(m->credit, credit);
	m->blob_bytes = blob_bytes;
	if (m->declared)
		declared_unref(a->job, m->declared);
	m->declared = declaration ? declared_get(a->job, declaration) : NULL;
	m->undeclared = declaration && !m->declared;
	return 0;
}

static int on_left(void *arg, uint32_t rank)
{
	struct job *j = ((struct adoption *)arg)->job;
	struct member *m = member_of_rank(j, rank);
	struct slot *s;

	if (m)
		m->alive = false;
	/* The process may open this rank again with another declaration. It has unmapped these
	 * slots, so they must not be joined to the new member. */
	list_each(s, &j->slots, link)
		if (s->rank == rank)
			s->process = (struct process_id){0};
	return 0;
}

static const struct ledger_reader reader = {
	.declaration = on_declaration,
	.slot = on_slot,
	.ready = on_ready,
	.assign = on_assign,
	.sealed = on_sealed,
	.table = on_table,
	.empty = on_empty,
	.gone = on_gone,
	.member = on_member,
	.left = on_left,
	.declaration_in = on_declaration_in,
	.table_in = on_table_in,
};

/* ---- After the replay ---- */

/* A made run is closed once one of its processes has ended. Those of older runs are in the ledger
 * too; where the epoch is not its run's first one they cannot be told apart. */
static bool was_of_this_run(const struct member *m)
{
	const struct record_epoch *ep = &m->job->history.epoch;

	return m->epoch == ep->number || strncmp(ep->reason, "new run", 7) != 0;
}

/* Without memory for it nobody is told. */
static void note_away(struct member *m)
{
	struct job *j = m->job;

	if (!j->away)
		j->away = alloc_zero(j->history.epoch.world);
	if (j->away)
		j->away[m->rank] = 1;
}

/* A slot's record may be of an older ckptd than its member's, or the other way round. */
static bool is_slot_of_member(struct processes *p, const struct slot *s, const struct member *m)
{
	struct process_id id = s->process;

	/* A member that must declare again gets new slots then. */
	if (!m->alive || m->undeclared || s->rank != m->rank || s->process.pid != m->process.pid)
		return false;
	return process_same(&id, &m->process) ||
	       (p->ops->watch(p, &id) == 0 && process_same(&id, &m->process));
}

static void adopt_members(struct job *j)
{
	struct processes *p = j->node->env.processes;
	uint32_t world = j->history.epoch.world;
	struct member *m, *next;
	struct slot *s, *s_next;
	int r;

	j->seen = alloc_zero(world ? world : 1);
	list_each_safe(m, next, &j->members, link) {
		if (j->seen && m->rank < world && was_of_this_run(m))
			j->seen[m->rank] = 1;
		/* Killed between a new run's epoch record and letting the old one's go. */
		if (!was_of_this_run(m))
			m->alive = false;
		r = m->alive ? p->ops->watch(p, &m->process) : 0;
		if (r == -ESRCH && m->rank < world)
			note_away(m);
		if (r < 0)
			m->alive = false;
		list_each(s, &j->slots, link) {
			if (!is_slot_of_member(p, s, m))
				continue;
			slot_give(s, m);
			s->process = m->process;
			m->prepared = m->prepared || (m->declared && s->state != SLOT_MAPPING);
			if (s->state == SLOT_MAPPING) /* SlotsReady was for all of them */
				slot_fill_later(m);
			m->credit = max_u64(m->credit, s->credit);
			m->credit_unused = m->credit_unused || s->state == SLOT_WRITING;
		}
		if (m->alive) {
			member_index(m);
			continue;
		}
		if (was_of_this_run(m)) {
			j->run_closed = true;
			credits_rank_left(j, m->rank);
		}
		if (m->declared)
			declared_unref(j, m->declared);
		member_delete(m);
	}
	list_each_safe(s, s_next, &j->slots, link)
		if (!s->member && !s->holds)
			slot_release(s);
}

static const struct history_abort *log_aborted(const struct job *j, const struct attempt_id *a)
{
	for (size_t i = 0; i < j->history.n_aborts; i++)
		if (attempt_equal(&j->history.aborts[i].aborted.attempt, a))
			return &j->history.aborts[i];
	return NULL;
}

/* The log is through with its step: nothing of it can be committed any more, and what is to be said
 * of it is said there (a commit that is only in a sum may be left out of it). */
static bool is_over(const struct checkpoint *c, const struct history_commit *h)
{
	const struct history *log = &c->job->history;

	return h || c->epoch != log->epoch.number || log_aborted(c->job, &c->attempt) ||
	       (log->stepped && c->step <= log->last_step);
}

static bool is_of_incarnation(const struct checkpoint *c, uint64_t incarnation)
{
	struct attempt_id id = attempt_id_make(&c->job->history.job.id, incarnation, c->epoch,
					       c->step, c->try_number);

	return attempt_equal(&id, &c->attempt);
}

/* It is an attempt of this job, in its newest epoch (I1). After a log was rebuilt the ranks of that
 * epoch still train, so attempts of the previous incarnation count too. */
static bool is_attempt(const struct checkpoint *c)
{
	const struct history *log = &c->job->history;

	if (c->world != log->epoch.world || c->step == CKPT_LATEST)
		return false;
	return is_of_incarnation(c, log->incarnation) ||
	       (log->incarnation > 0 && is_of_incarnation(c, log->incarnation - 1));
}

/* A sealed shard is lost with its declaration. Waiters are answered as for lost slots; only this
 * function knows the reason and logs it. */
static void tell_undeclared(struct job *j)
{
	struct member *m;
	struct slot *s;

	list_each(m, &j->members, link)
		if (m->alive && m->undeclared)
			job_tell(j, 3,
				 "rank %u: what it has declared is missing in memory, or damaged: "
				 "it declares anew when it comes back",
				 m->rank);
	list_each(s, &j->slots, link)
		if (s->undeclared && !s->holds)
			job_tell(j, 3,
				 "rank %u: the declaration of what slot %u holds is missing in "
				 "memory, or damaged: it is not used",
				 s->rank, s->number);
}

/* The state of each checkpoint in memory, as the log has it. */
static void adopt_checkpoint(struct checkpoint *c)
{
	struct job *j = c->job;
	struct history_commit *h = history_find(&j->history, c->step, &c->attempt);
	struct digest root = c->root, layout = c->layout;

	if (c->n_sealed == 0)
		return; /* only on disk */
	if (h && !h->freed) {
		c->agreed = CP_COMMITTED;
		c->record_n = h->n;
		c->wall_ns = h->wall_ns;
		c->pinned = h->pinned;
		c->trust = h->trust;
		c->bytes = h->commit.bytes;
		if (c->digested && checkpoint_fix_root(c) == 0) {
			root = c->root;
			layout = c->layout;
		}
		c->root = h->commit.root;
		c->layout = h->commit.layout;
		if (c->digested && digest_equal(&root, &h->commit.root) &&
		    digest_equal(&layout, &h->commit.layout))
			return;
		c->memory = false;
		for (uint32_t r = 0; r < c->world; r++)
			if (c->shards[r].slot)
				c->shards[r].slot->state = SLOT_QUARANTINED;
		job_tell_step(j, c->step, 4,
			      "step %llu: its copy in memory is not whole, it is not used",
			      (unsigned long long)c->step);
	} else if (is_over(c, h) || !is_attempt(c)) {
		const struct history_abort *a = log_aborted(j, &c->attempt);

		c->agreed = CP_ABORTED;
		c->abort_logged = true;
		snprintf(c->reason, sizeof(c->reason), "%s",
			 a ? a->aborted.reason : "left over from an older epoch");
	}
}

static void adopt_finish(struct job *j, struct list *regions)
{
	struct checkpoint *c, *next;
	struct member *m;

	list_each_safe(c, next, &j->checkpoints, link) {
		if (c->n_sealed == 0 && c->durable == DUR_NONE)
			checkpoint_free(c); /* its slots were all let go again */
		else
			adopt_checkpoint(c);
	}
	tell_undeclared(j);
	adopt_members(j);
	beats_adopt(j, regions);
	let_go_of_declarations(j);
	list_each(c, &j->checkpoints, link) {
		checkpoint_resume(c);
		for (uint32_t r = 0; c->agreed == CP_OPEN && !c->sealed && r < c->world; r++) {
			m = member_of_rank(j, r);
			if (!c->shards[r].sealed && !m)
				checkpoint_abort(c, "the process of rank %u ended before it sealed",
						 r);
		}
	}
	job_poke(j);
}

static struct region *best_ledger(const struct job_id *job, struct list *regions,
				  enum ledger_kind *ret_kind)
{
	struct region *r, *best = NULL;
	uint64_t generation, best_generation = 0;
	enum ledger_kind kind;
	struct job_id id;

	*ret_kind = LEDGER_NONE;
	list_each(r, regions, link) {
		if (strncmp(r->name, "ledger.", 7) != 0)
			continue;
		kind = ledger_probe(r, &id, &generation);
		if (kind == LEDGER_NONE || !job_id_equal(&id, job) || generation < best_generation)
			continue;
		best = r;
		best_generation = generation;
		*ret_kind = kind;
	}
	return best;
}

/* Whether another version of ckptd wrote the job's ledger; e describes it. */
static bool is_foreign(const struct job_id *job, struct list *regions, struct err *e)
{
	enum ledger_kind kind;
	struct region *r = best_ledger(job, regions, &kind);

	if (kind != LEDGER_FOREIGN)
		return false;
	ledger_describe_foreign(r, e);
	return true;
}

bool adopt_is_foreign(const struct node *n, const struct job_id *job, struct err *e)
{
	return is_foreign(job, (struct list *)&n->kept_regions, e);
}

static void adopt_job(struct job *j, struct list *regions)
{
	struct adoption a = { .node = j->node, .job = j, .regions = regions };
	enum ledger_kind kind;
	struct region *r = best_ledger(&j->history.job.id, regions, &kind);
	struct err e = { 0 };
	struct region *other;

	list_each(other, regions, link)
		note_declaration(j, other->name);
	if (kind == LEDGER_WHOLE) {
		list_del(&r->link);
		j->ledger.folder_id = j->node->store.folder_id;
		if (ledger_adopt(&j->ledger, j->node->env.memory, r, &reader, &a, &e) < 0)
			job_tell(j, 3, "%s; what it describes behind that is lost", e.text);
		adopt_finish(j, regions);
		credits_adopt(j);
		problems_adopted(j);
		return;
	}
	/* No memory of this job: the next open begins an epoch on what is durable. */
	j->epoch_over = true;
	job_poke(j);
}

/*
 * Commits of which neither memory nor files are left, and which a newer one that is there, or was
 * until somebody took it away, has overtaken: the next sum leaves them out. Newer ones are not
 * forgotten but reported as lost, when the next epoch is opened.
 */
static void log_forget(struct job *j)
{
	struct checkpoint *newest = epoch_newest_restorable(j);
	uint64_t overtaken = newest ? newest->record_n : 0;

	for (size_t i = 0; i < j->history.n_commits; i++) {
		const struct history_commit *h = &j->history.commits[i];

		if (h->freed && !h->lost)
			overtaken = max_u64(overtaken, h->n);
	}
	for (size_t i = 0; i < j->history.n_commits; i++) {
		struct history_commit *h = &j->history.commits[i];

		if (h->n < overtaken && !h->freed &&
		    !checkpoint_find_attempt(j, h->commit.step, &h->commit.attempt))
			h->gone = true;
	}
}

/* A job's folder was taken away while the job had snapshots in memory. */
static void tell_dropped(struct node *n, const struct region *r)
{
	char hex[ID_TEXT_MAX], text[ERR_TEXT_MAX];
	struct job_id id;
	uint64_t generation;

	if (strncmp(r->name, "ledger.", 7) != 0 ||
	    ledger_probe(r, &id, &generation) == LEDGER_NONE)
		return;
	if (job_find_id(n, &id))
		return; /* an older ledger of it */
	hex_format(hex, id.b, sizeof(id.b));
	snprintf(text, sizeof(text),
		 "memory of a job is dropped, as the data folder has no folder jobs/%s any more: "
		 "what was only in memory is lost; take no job's folder away while it runs "
		 "(ckptctl rm-job removes a job)",
		 hex);
	n->env.log(n->env.log_arg, 3, NULL, text);
}

int adopt_memory(struct node *n)
{
	struct list regions;
	struct region *r, *next;
	struct memory *m = n->env.memory;
	struct job *j, *j_next;
	struct err e;
	int ret = 0;

	list_init(&regions);
	list_each_safe(r, next, &n->kept_regions, link) {
		list_del(&r->link);
		list_add_tail(&regions, &r->link);
	}
	list_each_safe(j, j_next, &n->jobs, link) {
		if (!is_foreign(&j->history.job.id, &regions, &e)) {
			adopt_job(j, &regions);
			log_forget(j);
			continue;
		}
		ret = refused_for_memory(n, &j->history.job, e.text);
		if (ret < 0)
			return ret; /* nothing was destroyed: the fd store has it all */
		job_free(j);
	}
	list_each_safe(r, next, &regions, link) {
		list_del(&r->link);
		if (refused_has_region(n, r->name)) {
			list_add_tail(&n->kept_regions, &r->link);
			continue;
		}
		tell_dropped(n, r);
		m->ops->destroy(m, r);
	}
	return 0;
}

void adopt_late(struct job *j)
{
	struct memory *m = j->node->env.memory;
	struct region *r, *next;
	char hex[ID_TEXT_MAX];

	hex_format(hex, j->history.job.id.b, sizeof(j->history.job.id.b));
	adopt_job(j, &j->node->kept_regions);
	log_forget(j);
	list_each_safe(r, next, &j->node->kept_regions, link) {
		if (!strstr(r->name, hex))
			continue;
		list_del(&r->link);
		m->ops->destroy(m, r);
	}
}

/* ---- What is told of it ---- */

static void tell_rank(struct job *j, uint32_t rank)
{
	struct sample s = {.kind = SAMPLE_MEMBER,
			   .node = WATCHING_NODE,
			   .job = watching_number(j),
			   .rank = rank,
			   .device = SAMPLE_NONE};

	job_tell(j, 5, "rank %u: its process ended while ckptd was away", rank);
	node_sample(j->node, &s);
	s = (struct sample){.kind = SAMPLE_EXIT,
			    .node = WATCHING_NODE,
			    .job = watching_number(j),
			    .rank = rank,
			    .device = SAMPLE_NONE,
			    .exit = {.how = EXIT_AWAY}};
	node_sample(j->node, &s);
}

/* Nobody is left: it may have come to its end. */
static void tell_job(struct job *j)
{
	const struct record_epoch *ep = &j->history.epoch;
	struct subject s = subject_job(watching_number(j));

	events_post(j->node->events, EVENT_JOB_ENDED, 5, j->history.job.uid,
		    watching_subject_json(j->node, &s),
		    json_pack("{s:I, s:s, s:s, s:I}", "epoch", (json_int_t)ep->number, "run_id",
			      ep->run_id, "reason", ep->reason, "world", (json_int_t)ep->world),
		    "job '%s': all its processes here have ended while ckptd was away, nobody "
		    "knows when or how",
		    j->history.job.name);
}

void adopt_tell_ended(struct node *n)
{
	struct job *j;

	list_each(j, &n->jobs, link) {
		uint8_t *away = j->away;

		if (!away)
			continue;
		j->away = NULL;
		if (list_empty(&j->members)) {
			tell_job(j);
		} else {
			for (uint32_t r = 0; r < j->history.epoch.world; r++)
				if (away[r])
					tell_rank(j, r);
			goodput_died(j);
		}
		alloc_free(away);
	}
}

/* ---- The other direction ---- */

static int rewrite_slot(struct ledger *l, struct slot *s)
{
	static const struct process_id nobody;
	int r = ledger_slot(l, s->number, s->rank, s->region->name,
			    s->member ? &s->process : &nobody);

	if (r == 0 && s->state != SLOT_MAPPING)
		r = ledger_ready(l, s->number);
	if (r == 0 && s->credit && s->state != SLOT_EMPTY)
		r = ledger_assign(l, s->number, s->credit);
	if (r == 0 && s->holds) {
		struct checkpoint *c = s->holds;
		struct shard_state *sh = &c->shards[s->rank];
		struct ledger_seal seal = {
			.slot = s->number,
			.try_number = c->try_number,
			.world = c->world,
			.step = c->step,
			.epoch = c->epoch,
			.image_len = sh->image_len,
			.attempt = c->attempt,
			.declaration = sh->declared->digest,
			.blobs = sh->blobs->at,
			.n_blobs = sh->blobs->n,
			.origin = sh->origin,
		};

		r = ledger_sealed(l, &seal);
		if (r == 0 && sh->table_in_region)
			r = ledger_table_in(l, s->number, &sh->table_digest, sh->table_len,
					    s->table->name);
		else if (r == 0 && sh->table)
			r = ledger_table(l, s->number, sh->table, sh->table_len);
	}
	return r;
}

static int rewrite_member(struct ledger *l, struct member *m)
{
	return ledger_member(l, m->rank, &m->process, m->epoch, m->credit, m->credit_unused,
			     m->blob_bytes, m->declared ? &m->declared->digest : NULL);
}

/* Ranks of the epoch that have left: a process that replaces one begins the next epoch (I15). */
static int rewrite_left(struct job *j, struct ledger *into)
{
	static const struct process_id none;
	uint32_t rank = 0;
	int r = 0;

	if (!into->measuring && j->left_generation == into->generation)
		rank = j->left_next;
	for (; j->seen && rank < j->history.epoch.world && r == 0; rank++) {
		if (!j->seen[rank] || member_of_rank(j, rank))
			continue;
		if (ledger_slice_over(into)) {
			r = 1;
			break;
		}
		r = ledger_member(into, rank, &none, j->history.epoch.number, 0, false, 0, NULL);
		if (r == 0)
			r = ledger_left(into, rank);
	}
	if (!into->measuring) {
		j->left_generation = into->generation;
		j->left_next = rank;
	}
	return r;
}

/* An object that is added after the move has passed its place writes its own record (ledger.h). */
int adopt_rewrite(void *job, struct ledger *into)
{
	struct job *j = job;
	struct declared *d;
	struct member *m;
	struct slot *s;
	int r = 0;

#define EACH(x, list, write)                                                                       \
	list_each(x, list, link) {                                                                 \
		if (r == 0 && ledger_slice_over(into))                                             \
			r = 1;                                                                     \
		if (r == 0 && ledger_due(into, &(x)->in_ledger))                                   \
			r = write(into, x);                                                        \
	}
	EACH(d, &j->declared, declared_write)
	EACH(m, &j->members, rewrite_member)
	EACH(s, &j->slots, rewrite_slot)
#undef EACH
	return r ? r : rewrite_left(j, into);
}
