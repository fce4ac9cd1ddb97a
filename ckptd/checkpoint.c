/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint.c - one attempt to checkpoint one step, from its first seal to COMMITTED or ABORTED.
 *
 *   OPEN ---- every rank sealed (fact SEALED), every shard digested (fact DIGESTED) ---->
 *   COMMITTING ---- commit record in the log ----> COMMITTED ---- newer one COMMITTED, nobody
 *   reads or persists ----> memory freed; the struct goes when files are gone as well
 *   OPEN ---- skipped, timed out, overtaken, process ended before it sealed ----> ABORTED
 *   ---- abort record in the log ----> memory freed, struct gone
 *   COMMITTING ---- the log cannot be written, slots are needed, its record is certainly not
 *   there, it is not the newest SEALED ----> OPEN ----> ABORTED ----> memory freed at once (I4,
 * I14); the struct goes when the abort record is in the log
 *
 * state        memory                        log              files
 * OPEN         slots SEALED or DIGESTED      nothing          perhaps shards, no COMMIT
 * COMMITTING   every slot DIGESTED           record queued    as above
 * COMMITTED    as long as I9 asks            commit record    see persist.c
 * ABORTED      until the record is there,    abort record     being discarded
 *              or the log cannot be written
 *
 * Steps of one epoch commit in rising order (I5): a checkpoint commits only when no older one of
 * its epoch can still commit, and a whole one aborts older ones that some rank passed over.
 * Failure of memory here aborts the attempt; training is never told to stop (I13).
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "base/text.h"
#include "ckptd/agreeing.h"
#include "ckptd/credits.h"
#include "ckptd/digesting.h"
#include "ckptd/goodput.h"
#include "ckptd/holding.h"
#include "ckptd/job.h"
#include "ckptd/node_priv.h"
#include "ckptd/session.h"
#include "ckptd/trust.h"
#include "ckptd/watching.h"
#include "model/attempt.h"
#include "model/table.h"

#define RELEASED_IN_A_CALL 64u

/* ---- Finding and making ---- */

struct checkpoint *checkpoint_find(struct job *j, uint64_t epoch, uint64_t step)
{
	struct checkpoint *c, *found = NULL;

	/* The last one: an aborted try may stand before it. */
	list_each(c, &j->checkpoints, link)
		if (c->epoch == epoch && c->step == step)
			found = c;
	return found;
}

struct checkpoint *checkpoint_find_attempt(struct job *j, uint64_t step,
					   const struct attempt_id *attempt)
{
	struct checkpoint *c;

	list_each(c, &j->checkpoints, link)
		if (c->step == step && attempt_equal(&c->attempt, attempt))
			return c;
	return NULL;
}

static void attempt_timed_out(struct timer *t)
{
	struct checkpoint *c = container_of(t, struct checkpoint, timeout);

	checkpoint_abort(c, "only %u of %u ranks sealed it in time", c->n_sealed, c->world);
}

int checkpoint_new(struct job *j, uint64_t step, uint64_t epoch, uint32_t world,
		   const struct attempt_id *attempt, struct checkpoint **ret)
{
	struct checkpoint *c = alloc_zero(sizeof(*c));

	if (!c)
		return -ENOMEM;
	c->shards = alloc_array(world, sizeof(*c->shards));
	if (!c->shards) {
		alloc_free(c);
		return -ENOMEM;
	}
	c->job = j;
	c->step = step;
	c->epoch = epoch;
	c->world = world;
	c->attempt = *attempt;
	list_init(&c->holders);
	timer_init(&c->timeout, attempt_timed_out);
	list_add_tail(&j->checkpoints, &c->link);
	*ret = c;
	return 0;
}

void shard_drop_blobs(struct shard_state *sh)
{
	if (sh->blobs_user)
		user_give(sh->blobs_user, USER_DECLARATION_BYTES, sh->blobs->bytes);
	user_put(sh->blobs_user);
	alloc_free(sh->blobs);
	sh->blobs_user = NULL;
	sh->blobs = NULL;
}

static void shard_clear(struct checkpoint *c, uint32_t rank)
{
	struct shard_state *s = &c->shards[rank];

	c->n_memory -= s->sealed;
	if (s->slot && !BUG(SLOT_KEEPS_HOLDER))
		s->slot->holds = NULL;
	shard_drop_blobs(s);
	if (!s->table_in_region)
		alloc_free(s->table);
	if (s->declared)
		declared_unref(c->job, s->declared);
	*s = (struct shard_state){ .bad_file = s->bad_file };
}

void checkpoint_has_files(struct checkpoint *c, struct commit_file *commit)
{
	if (c->commit) {
		commit_file_fini(c->commit);
		alloc_free(c->commit);
	}
	c->commit = commit;
	c->disk_bytes = commit_disk_bytes(commit);
}

void checkpoint_free(struct checkpoint *c)
{
	timer_disarm(c->job->node->env.loop, &c->timeout);
	recheck_forget(c);
	holding_forget(c);
	for (uint32_t r = 0; r < c->world; r++)
		shard_clear(c, r);
	if (c->commit) {
		commit_file_fini(c->commit);
		alloc_free(c->commit);
	}
	answers_unlink(c->job->node, &c->link);
	list_del(&c->link);
	alloc_free(c->shards);
	alloc_free(c);
}

/* ---- Sealing ---- */

/* The newest step of this epoch that is in the log, also of one that was given up since, or that is
 * on its way. */
static bool committed_step(struct job *j, uint64_t epoch, uint64_t *ret)
{
	bool any = j->history.stepped && epoch == j->history.epoch.number;
	struct checkpoint *c;

	*ret = any ? j->history.last_step : 0;
	list_each(c, &j->checkpoints, link) {
		if (c->epoch != epoch || c->agreed != CP_COMMITTING)
			continue;
		*ret = any ? max_u64(*ret, c->step) : c->step;
		any = true;
	}
	return any;
}

static const struct history_abort *aborted(struct job *j, uint64_t epoch, uint64_t step)
{
	for (size_t i = j->history.n_aborts; i-- > 0;)
		if (j->history.aborts[i].epoch == epoch &&
		    j->history.aborts[i].aborted.step == step)
			return &j->history.aborts[i];
	return NULL;
}

/* A rank that has sealed this attempt has its part in it, whatever it said of the step since: it
 * did not hear the answer to its Seal, or called save once more. */
static const struct skipped *skipped_by_other(const struct checkpoint *c, const struct member *but,
					      uint32_t try, uint32_t *ret_rank)
{
	struct member *m;

	list_each(m, &c->job->members, link) {
		if (m == but || (m->rank < c->world && c->shards[m->rank].sealed))
			continue;
		for (uint32_t i = 0; i < 8 && i < m->n_skipped; i++)
			if (m->skipped[i].step == c->step && m->skipped[i].try_number >= try &&
			    m->skipped[i].epoch == c->epoch) {
				*ret_rank = m->rank;
				return &m->skipped[i];
			}
	}
	return NULL;
}

static int seal_check(struct member *m, const struct seal_request *r, struct err *e)
{
	struct job *j = m->job;
	uint64_t newest = 0;

	if (j->opening || ((r->epoch != j->history.epoch.number || m->epoch != r->epoch) &&
			   !BUG(SEAL_AFTER_FALL_BACK)))
		return err_set(e, CKPT_EEPOCH,
			       "rank %u: step %llu belongs to epoch %llu and the job is in epoch "
			       "%llu (%s); load, then go on",
			       m->rank, (unsigned long long)r->step, (unsigned long long)r->epoch,
			       (unsigned long long)j->history.epoch.number,
			       j->history.epoch.reason);
	if (r->step == CKPT_LATEST)
		return err_set(e, -EINVAL, "rank %u: %llu is no step that can be saved", m->rank,
			       (unsigned long long)r->step);
	if (!committed_step(j, r->epoch, &newest) || r->step > newest)
		return 0;
	for (size_t i = 0; i < j->history.n_commits; i++)
		if (j->history.commits[i].epoch == r->epoch &&
		    j->history.commits[i].commit.step == r->step)
			return err_set(e, -EEXIST,
				       "rank %u: step %llu is committed already in this epoch: "
				       "it need not be saved again",
				       m->rank, (unsigned long long)r->step);
	return err_set(e, -EINVAL,
		       "rank %u: step %llu is not above step %llu, which this epoch has "
		       "committed; steps of an epoch rise",
		       m->rank, (unsigned long long)r->step, (unsigned long long)newest);
}

static int seal_slot_check(struct member *m, const struct slot *s, const struct seal_request *r,
			   struct err *e)
{
	uint64_t end = m->declared ? m->declared->view.image_bytes : 0;

	if (!s || s->member != m)
		return err_set(e, CKPT_ESTATE, "rank %u: slot %u is not its own", m->rank, r->slot);
	if (s->state != SLOT_WRITING || s->credit != r->credit)
		return err_set(e, CKPT_ESTATE, "rank %u: slot %u has no credit %llu", m->rank,
			       r->slot, (unsigned long long)r->credit);
	if (!m->declared || !digest_equal(&m->declared->digest, &r->declaration))
		return err_set(e, CKPT_ESTATE, "rank %u: sealed with another declaration", m->rank);
	for (uint32_t i = 0; i < r->blobs->n; i++) {
		const struct blob_entry *b = &r->blobs->at[i];
		uint64_t blob_end;

		if (b->image_offset < end || !size_add(b->image_offset, b->bytes, &blob_end))
			return err_set(e, CKPT_EPROTO,
				       "rank %u: blob '%.*s' lies outside its slot", m->rank,
				       (int)b->name_len, b->name);
		end = blob_end;
	}
	if (end != r->image_len || end > s->region->size)
		return err_set(e, CKPT_EPROTO, "rank %u: %llu bytes were sealed, %llu are declared",
			       m->rank, (unsigned long long)r->image_len, (unsigned long long)end);
	return 0;
}

static int seal_user_check(struct member *m, const struct seal_request *r, struct err *e)
{
	char what[64];

	snprintf(what, sizeof(what), "rank %u: the blobs of step %llu", m->rank,
		 (unsigned long long)r->step);
	return m->job->user ? user_may(m->job->user, USER_DECLARATION_BYTES, r->blobs->bytes, what,
				       e)
			    : 0;
}

/* Before anything is said of its slot, which may be used for something else by now (I10). */
static int seal_try_check(struct member *m, const struct seal_request *r, struct err *e)
{
	const struct history_abort *a = aborted(m->job, r->epoch, r->step);
	const struct checkpoint *c = checkpoint_find(m->job, r->epoch, r->step);
	const char *reason = NULL;

	if (c && c->agreed == CP_ABORTED && r->try_number <= c->try_number)
		reason = c->reason;
	else if (!c && a && r->try_number < a->aborted.next_try)
		reason = a->aborted.reason;
	if (reason)
		return err_set(e, CKPT_EABORTED, "step %llu was aborted: %s",
			       (unsigned long long)r->step, reason);
	/* Bytes of an older try never count for this one (I1). */
	if (c && r->try_number < c->try_number && !BUG(MIX_TRIES))
		return err_set(e, CKPT_EABORTED,
			       "step %llu is being saved in its try %u, this is try %u",
			       (unsigned long long)r->step, c->try_number, r->try_number);
	return 0;
}

/* The attempt that this seal is for, made if it is the first. */
static int seal_attempt(struct member *m, const struct seal_request *r, struct checkpoint **ret,
			struct err *e)
{
	struct job *j = m->job;
	struct checkpoint *c = checkpoint_find(j, r->epoch, r->step);
	struct attempt_id id;
	int err;

	if (c && c->agreed == CP_OPEN && r->try_number > c->try_number)
		checkpoint_abort(c, "rank %u tried again", m->rank);
	if (c && c->agreed == CP_ABORTED)
		c = NULL; /* of an older try */
	if (c && c->shards[m->rank].sealed)
		return err_set(e, -EEXIST, "rank %u has sealed step %llu already", m->rank,
			       (unsigned long long)r->step);
	if (!c) {
		id = attempt_id_make(&j->history.job.id, j->history.incarnation, r->epoch, r->step,
				     r->try_number);
		err = checkpoint_new(j, r->step, r->epoch, j->history.epoch.world, &id, &c);
		if (err < 0)
			return err_code(e, err, "step %llu", (unsigned long long)r->step);
		c->try_number = r->try_number;
		c->begun_ns = loop_now(j->node->env.loop);
		timer_arm(j->node->env.loop, &c->timeout,
			  loop_now(j->node->env.loop) + j->node->options.attempt_timeout_ns);
	}
	*ret = c;
	return 0;
}

static int seal_write(struct checkpoint *c, struct member *m, struct slot *s,
		      const struct seal_request *r)
{
	struct ledger_seal ls = {
		.slot = s->number,
		.try_number = r->try_number,
		.world = c->world,
		.step = r->step,
		.epoch = r->epoch,
		.image_len = r->image_len,
		.attempt = c->attempt,
		.declaration = m->declared->digest,
		.blobs = r->blobs->at,
		.n_blobs = r->blobs->n,
		.origin = m->origin,
	};

	return ledger_sealed(&m->job->ledger, &ls);
}

static void count_origin(struct origins *o, uint32_t rank, const struct declared *d,
			 struct origin origin)
{
	if (origin.kind == ORIGIN_RESUMED) {
		o->resumed = true;
		o->resumed_rank = rank;
		o->step = origin.step;
	} else if (origin.kind == ORIGIN_FRESH && d->view.n_shards > 0) {
		o->fresh = true;
		o->fresh_rank = rank;
	}
}

/* The state that some ranks have loaded and others have not is no state of the job (I15). A window
 * is opened only for ranks that agree, but one may load in it. */
static int seal_origin_check(struct checkpoint *c, struct member *m, struct err *e)
{
	struct origins o = c->origins;
	struct member *fresh;

	count_origin(&o, m->rank, m->declared, m->origin);
	if (!o.resumed || !o.fresh || BUG(MIXED_ORIGINS))
		return 0;
	fresh = member_of_rank(m->job, o.fresh_rank);
	checkpoint_abort(c, NOT_LOADED, o.fresh_rank, (unsigned long long)o.step, o.resumed_rank);
	if (fresh)
		problems_not_loaded(fresh, c->step, c->reason);
	return err_set(e, CKPT_EABORTED, "step %llu was aborted: %s", (unsigned long long)c->step,
		       c->reason);
}

void checkpoint_attach(struct checkpoint *c, uint32_t rank, struct slot *s, struct declared *d,
		       uint64_t image_len, struct blobs *blobs, struct origin origin)
{
	struct shard_state *sh = &c->shards[rank];

	if (!JOB_ASSERT(c->job, rank < c->world && !sh->sealed && !s->holds))
		return;
	sh->slot = s;
	sh->sealed = true;
	sh->image_len = image_len;
	sh->declared = d;
	sh->blobs = blobs;
	sh->origin = origin;
	count_origin(&c->origins, rank, d, origin);
	if (c->job->user) {
		sh->blobs_user = user_ref(c->job->user);
		user_add(sh->blobs_user, USER_DECLARATION_BYTES, blobs->bytes);
	}
	s->holds = c;
	s->state = SLOT_SEALED;
	if (c->agreed == CP_OPEN) /* of a committed one the record has said it */
		c->bytes += image_len;
	c->n_sealed++;
	c->n_memory++;
	c->sealed = c->n_sealed == c->world;
}

/* A whole one shows that older ones which are not will never be: some rank went past them. */
static void abort_overtaken(struct checkpoint *by)
{
	struct checkpoint *c;

	list_each(c, &by->job->checkpoints, link)
		if (c->epoch == by->epoch && c->step < by->step && c->agreed == CP_OPEN &&
		    !c->sealed)
			checkpoint_abort(c, "%u of %u ranks sealed it, all sealed step %llu",
					 c->n_sealed, c->world, (unsigned long long)by->step);
}

int checkpoint_seal(struct member *m, const struct seal_request *r, struct attempt_id *ret_attempt,
		    struct err *e)
{
	struct job *j = m->job;
	struct slot *s = slot_find(j, r->slot);
	struct checkpoint *c = NULL;
	int err;

	/* The answer to an earlier one was lost (I10). */
	if (s && s->member == m && s->holds && s->holds->step == r->step &&
	    s->credit == r->credit && s->holds->epoch == r->epoch && !BUG(REPEAT_REFUSED)) {
		*ret_attempt = s->holds->attempt;
		alloc_free(r->blobs);
		return s->holds->agreed == CP_ABORTED
			       ? err_set(e, CKPT_EABORTED, "step %llu was aborted: %s",
					 (unsigned long long)r->step, s->holds->reason)
			       : 1;
	}
	err = seal_check(m, r, e);
	if (err == 0)
		err = seal_try_check(m, r, e);
	if (err == 0)
		err = seal_slot_check(m, s, r, e);
	if (err == 0)
		err = seal_user_check(m, r, e);
	if (err == 0)
		err = seal_attempt(m, r, &c, e);
	if (err == 0)
		err = seal_origin_check(c, m, e);
	if (err == 0 && !JOB_ASSERT(j, m->rank < c->world && !s->holds))
		err = err_set(e, CKPT_ESTOPPED, "%s", j->defect_text);
	if (err == 0 && FAULT(SEAL_LEDGER))
		err = err_code(e, -ENOMEM, "seal step %llu", (unsigned long long)r->step);
	if (err == 0) {
		err = seal_write(c, m, s, r);
		if (err < 0)
			err_code(e, err, "write step %llu to the ledger",
				 (unsigned long long)r->step);
	}
	if (err < 0) {
		alloc_free(r->blobs);
		return err;
	}
	recheck_give_way(j->node);
	m->credit_unused = false;
	credits_sealed(m, r->step);
	m->declared->refs++;
	checkpoint_attach(c, m->rank, s, m->declared, r->image_len, r->blobs, m->origin);
	problems_sealed(m, c);
	*ret_attempt = c->attempt;
	return 0;
}

/* It had a credit for a step that another rank never comes to. */
static bool lacks_one_that_left(const struct checkpoint *c)
{
	const struct job *j = c->job;

	return j->rank_left && j->left_rank < c->world && !c->shards[j->left_rank].sealed;
}

void checkpoint_sealed(struct member *m, const struct seal_request *r)
{
	struct job *j = m->job;
	struct checkpoint *c = slot_find(j, r->slot)->holds;
	const struct skipped *skip;
	uint32_t who = 0;

	digesting_start(c, m->rank);
	skip = skipped_by_other(c, m, r->try_number, &who);
	if (c->agreed == CP_OPEN && skip)
		checkpoint_abort(c, "rank %u skipped it: %s", who, skip->reason);
	if (c->sealed) {
		timer_disarm(j->node->env.loop, &c->timeout);
		abort_overtaken(c);
	} else if (c->agreed == CP_OPEN && lacks_one_that_left(c)) {
		checkpoint_member_gone(j, j->left_rank);
	}
	job_poke(j);
}

/* Whether the credit was this rank's, and is its no more. */
static bool credit_comes_back(struct member *m, uint64_t credit)
{
	struct slot *s;

	list_each(s, &m->slots, of_member) {
		if (credit == 0 || s->state != SLOT_WRITING || s->credit != credit)
			continue;
		m->credit_unused = false;
		slot_release(s);
		credits_returned(m);
		return true;
	}
	return false;
}

void checkpoint_return_credit(struct member *m, uint64_t credit)
{
	if (credit_comes_back(m, credit))
		job_poke(m->job);
}

static void note_skipped(struct member *m, const struct skip_request *r)
{
	struct skipped *k = &m->skipped[m->n_skipped++ % 8];

	k->step = r->step;
	k->epoch = r->epoch;
	k->try_number = r->try_number;
	snprintf(k->reason, sizeof(k->reason), "%s", r->reason);
}

/* Only the answer to its seal was lost, with the ckptd that gave it. */
static bool is_committed(const struct job *j, const struct skip_request *r)
{
	for (size_t i = j->history.n_commits; i-- > 0;) {
		const struct history_commit *h = &j->history.commits[i];

		if (h->epoch != j->history.epoch.number)
			break;
		if (h->commit.step == r->step)
			return true;
	}
	return false;
}

void checkpoint_skip(struct member *m, const struct skip_request *r)
{
	struct job *j = m->job;
	bool gave_back = credit_comes_back(m, r->credit);
	struct checkpoint *c;

	/* An older library gives no epoch with what it has refused. */
	if ((r->epoch == j->history.epoch.number || r->epoch == 0) &&
	    (r->kind != CKPT_SKIP_FAILED || !is_committed(j, r)))
		problems_skipped(m, r);
	if (r->epoch == j->history.epoch.number && r->kind != CKPT_SKIP_REFUSED) {
		note_skipped(m, r);
		credits_skipped(m, r->step, gave_back);
		c = checkpoint_find(j, r->epoch, r->step);
		if (c && c->agreed == CP_OPEN && !c->shards[m->rank].sealed &&
		    c->try_number <= r->try_number)
			checkpoint_abort(c, "rank %u skipped it: %s", m->rank, r->reason);
	}
	job_poke(j);
}

void checkpoint_member_gone(struct job *j, uint32_t rank)
{
	struct checkpoint *c;

	list_each(c, &j->checkpoints, link)
		if (c->agreed == CP_OPEN && rank < c->world && !c->shards[rank].sealed)
			checkpoint_abort(c, "the process of rank %u ended before it sealed", rank);
	job_poke(j);
}

/* ---- Aborting ---- */

static void abort_done(void *arg, int status)
{
	struct checkpoint *c = arg;

	/* A log that another writes now makes no difference to slots nobody committed. */
	(void)status;
	c->abort_logged = true;
	job_poke(c->job);
}

__attribute__((format(printf, 2, 0))) static void put_reason(struct checkpoint *c, const char *fmt,
							     va_list ap)
{
	int n = vsnprintf(c->reason, sizeof(c->reason), fmt, ap);

	if (n < 0)
		c->reason[0] = '\0';
	else if ((size_t)n >= sizeof(c->reason))
		text_shorten(c->reason, sizeof(c->reason));
}

/* c->reason says why. */
static void abort_now(struct checkpoint *c)
{
	struct job *j = c->job;
	struct record r = {.type = RECORD_ABORT};

	c->agreed = CP_ABORTED;
	timer_disarm(j->node->env.loop, &c->timeout);
	persist_cancel(c);
	problems_aborted(c);
	r.aborted.step = c->step;
	r.aborted.attempt = c->attempt;
	r.aborted.next_try = c->try_number + 1;
	memcpy(r.aborted.reason, c->reason, sizeof(r.aborted.reason));
	/* The struct stays until abort_done(), its memory need not. */
	if (job_append(j, &r, abort_done, c) < 0)
		c->abort_logged = true;
	job_poke(j);
}

/* more: what is said behind the reason; NULL: nothing is said. */
__attribute__((format(printf, 3, 0))) static void abort_for(struct checkpoint *c, const char *more,
							    const char *fmt, va_list ap)
{
	put_reason(c, fmt, ap);
	abort_now(c);
	if (more)
		job_tell_step(c->job, c->step, 5, "step %llu aborted: %s%s",
			      (unsigned long long)c->step, c->reason, more);
}

void checkpoint_abort(struct checkpoint *c, const char *fmt, ...)
{
	va_list ap;

	if (!JOB_ASSERT(c->job, c->agreed == CP_OPEN))
		return;
	va_start(ap, fmt);
	abort_for(c, "", fmt, ap);
	va_end(ap);
}

/* ---- Committing ---- */

static void drop_table(struct made_table *t)
{
	if (!t->in_region)
		alloc_free(t->bytes);
}

static int table_write(struct ledger *l, const struct slot *s, const struct made_table *t)
{
	return t->in_region ? ledger_table_in(l, s->number, &t->digest, t->len, s->table->name)
			    : ledger_table(l, s->number, t->bytes, t->len);
}

void checkpoint_digested(struct checkpoint *c, uint32_t rank, int status, struct made_table *t,
			 struct region *fresh)
{
	struct shard_state *sh = &c->shards[rank];
	struct job *j = c->job;
	int r = status;

	if (job_stopped(j) || !JOB_ASSERT(j, sh->sealed && !sh->table && sh->slot)) {
		drop_table(t);
		if (fresh)
			region_destroy(j->node, j->history.job.uid, fresh);
		return;
	}
	if (fresh) {
		sh->slot->table = fresh;
		slot_count(sh->slot);
	}
	if (r == 0 && FAULT(DIGESTED))
		r = -ENOMEM;
	if (r == 0)
		r = table_write(&j->ledger, sh->slot, t);
	if (r < 0) {
		drop_table(t);
		if (c->agreed == CP_OPEN)
			checkpoint_abort(c, "digest rank %u: %s", rank, err_text(r));
	} else {
		checkpoint_table(c, rank, t);
		if (c->digested)
			agreeing_start(c);
	}
	job_poke(j);
}

void checkpoint_table(struct checkpoint *c, uint32_t rank, const struct made_table *t)
{
	struct shard_state *sh = &c->shards[rank];

	sh->table = t->bytes;
	sh->table_in_region = t->in_region;
	sh->table_len = t->len;
	sh->table_digest = t->digest;
	sh->samples = t->samples;
	sh->n_samples = t->n_samples;
	sh->slot->state = SLOT_DIGESTED;
	c->n_digested++;
	c->digested = c->n_digested == c->world;
	c->memory = c->digested;
}

struct digest checkpoint_layout(const struct checkpoint *c)
{
	CLEANUP_FREE struct digest *decls = alloc_array(c->world, sizeof(*decls));

	if (!decls)
		return (struct digest){0};
	for (uint32_t r = 0; r < c->world; r++)
		decls[r] = c->shards[r].declared->digest;
	return layout_digest(decls, c->world);
}

int checkpoint_fix_root(struct checkpoint *c)
{
	CLEANUP_FREE struct rank_line *lines = alloc_array(c->world, sizeof(*lines));
	CLEANUP_FREE struct digest *decls = alloc_array(c->world, sizeof(*decls));

	if (!lines || !decls)
		return -ENOMEM;
	for (uint32_t r = 0; r < c->world; r++) {
		lines[r].rank = r;
		lines[r].table_len = c->shards[r].table_len;
		lines[r].table = c->shards[r].table_digest;
		decls[r] = c->shards[r].declared->digest;
	}
	c->root = root_digest(lines, c->world);
	c->layout = layout_digest(decls, c->world);
	return 0;
}

/* H3: two commits whose sampled trained tensors are all equal. */
static void stale_check(struct checkpoint *c)
{
	struct job *j = c->job;
	struct writer w = { 0 };
	uint32_t n;

	for (uint32_t r = 0; r < c->world; r++)
		if (c->shards[r].table)
			write_bytes(&w, c->shards[r].samples, (size_t)c->shards[r].n_samples * 16);
	n = (uint32_t)(w.len / 16);
	if (!w.bad && n > 0 && n == j->n_samples && digest_equal(&c->layout, &j->samples_layout) &&
	    memcmp(w.buf, j->samples, w.len) == 0) {
		trust_say(c, TRUST_DOUBTED);
		j->stale_alarms++;
		j->stale_step = c->step;
		watching_stale(c);
		job_tell_step(
			j, c->step, 2,
			"step %llu has the same bytes in all %u sampled trained tensors as the "
			"checkpoint before it: is the optimizer stepping, are the live tensors "
			"bound?",
			(unsigned long long)c->step, n);
	}
	alloc_free(j->samples);
	j->samples = w.bad ? NULL : (struct digest *)w.buf;
	j->n_samples = w.bad ? 0 : n;
	j->samples_layout = c->layout;
	if (w.bad)
		writer_free(&w);
}

static void commit_done(void *arg, int status)
{
	struct checkpoint *c = arg;
	struct job *j = c->job;

	job_poke(j);
	if (status < 0) {
		/* Another leads, or ckptd stops: the bytes stay for the next ckptd to settle. */
		snprintf(c->reason, sizeof(c->reason), "its commit record: %s", err_text(status));
		c->agreed = CP_OPEN;
		if (!j->log_error && status != -ECANCELED)
			checkpoint_abort(c, "its commit record: %s", err_text(status));
		return;
	}
	c->agreed = CP_COMMITTED;
	c->record_n = j->history.next_n - 1;
	c->wall_ns = j->history.commits[j->history.n_commits - 1].wall_ns;
	goodput_was_committed(c);
	problems_committed(c);
	trust_committed(c);
	stale_check(c);
}

static void commit_start(struct checkpoint *c)
{
	struct record r = { .type = RECORD_COMMIT };

	if (!JOB_ASSERT(c->job, c->sealed && (c->digested || BUG(COMMIT_BEFORE_DIGESTS))))
		return; /* I3 */
	if (checkpoint_fix_root(c) < 0) {
		checkpoint_abort(c, "out of memory");
		return;
	}
	r.commit.step = c->step;
	r.commit.attempt = c->attempt;
	r.commit.root = c->root;
	r.commit.layout = c->layout;
	r.commit.world = c->world;
	r.commit.bytes = c->bytes;
	c->agreed = CP_COMMITTING;
	if (job_append_for(c, &r, commit_done, c) < 0) {
		c->agreed = CP_OPEN;
		checkpoint_abort(c, "its commit record could not be queued");
	}
}

/* Starts the commit of what is whole, in order of steps (I5). */
void checkpoint_step(struct job *j)
{
	struct checkpoint *c, *lowest;
	bool whole;

	while (!j->log_error && !job_stopped(j)) {
		lowest = NULL;
		list_each(c, &j->checkpoints, link)
			if (c->agreed == CP_OPEN && c->epoch == j->history.epoch.number &&
			    c->sealed && (!lowest || c->step < lowest->step))
				lowest = c;
		whole = lowest && (lowest->digested || BUG(COMMIT_BEFORE_DIGESTS));
		if (!whole)
			return;
		commit_start(lowest);
	}
}

void checkpoint_resume(struct checkpoint *c)
{
	if (c->agreed != CP_OPEN)
		return;
	for (uint32_t r = 0; r < c->world; r++)
		if (c->shards[r].sealed && !c->shards[r].table)
			digesting_start(c, r);
	if (!c->sealed)
		timer_arm(c->job->node->env.loop, &c->timeout,
			  loop_now(c->job->node->env.loop) +
				  c->job->node->options.attempt_timeout_ns);
	job_poke(c->job);
}

/* ---- Letting go ---- */

static bool newer_committed(const struct checkpoint *c)
{
	struct checkpoint *o;

	list_each(o, &c->job->checkpoints, link) {
		if (o != c && o->agreed == CP_COMMITTED && o->record_n > c->record_n &&
		    !(o->trust & TRUST_PASSED) && checkpoint_restorable(o))
			return true;
		if (BUG(FREE_BEFORE_COMMIT) && o != c && o->sealed && o->step > c->step)
			return true;
	}
	return false;
}

/* The epoch's base, of which there are no good files yet: "latest" is answered with it (I15). */
static bool is_only_base(const struct checkpoint *c)
{
	const struct record_epoch *ep = &c->job->history.epoch;
	bool files = c->durable == DUR_DONE && !c->disk_suspect;
	bool refused = c->no_room || rewrite_gave_up(c);

	return ep->has_base && ep->base_step == c->step &&
	       attempt_equal(&ep->base_attempt, &c->attempt) && checkpoint_restorable(c) &&
	       !files && c->durable != DUR_FAILED &&
	       !(refused && /* else nobody could save */
		 (c->job->node->options.slots < 3 || job_log_down(c->job)));
}

/* Pinned, and there are no files yet. Where it cannot be written it gives way to saves (I13). */
static bool is_only_pinned(const struct checkpoint *c)
{
	bool refused = c->no_room || c->durable == DUR_FAILED;

	return c->pinned && c->durable != DUR_DONE && c->durable != DUR_GONE && persist_can(c) &&
	       !(refused && member_lacks_slot(c->job));
}

/* I9: memory goes only when a newer checkpoint is COMMITTED and nobody reads or persists it. */
static bool memory_may_go(const struct checkpoint *c)
{
	if (c->works > (uint32_t)c->expiring + c->saying + c->rereading || c->readers > 0 ||
	    c->persist)
		return false;
	if (c->agreed == CP_ABORTED)
		return c->abort_logged || job_log_down(c->job);
	if (c->agreed != CP_COMMITTED)
		return false;
	if (c->durable == DUR_GONE && !BUG(REMOVED_IS_OFFERED))
		return true; /* its free record is in the log */
	return c->durable != DUR_WANTED && !is_only_base(c) && !is_only_pinned(c) &&
	       newer_committed(c);
}

static void tell_pinned_lost(const struct checkpoint *c)
{
	if (c->pinned && c->agreed == CP_COMMITTED && c->durable != DUR_DONE &&
	    c->durable != DUR_GONE)
		job_tell_step(c->job, c->step, 3,
			      "step %llu was pinned and is lost: it was only in memory, %s",
			      (unsigned long long)c->step,
			      c->reason[0] ? c->reason : "its copy there was found damaged");
}

/* Of *left ranks at most, which it counts down: a job has a thousand on a node. */
static void release_memory(struct checkpoint *c, uint32_t *left)
{
	if (!c->releasing)
		tell_pinned_lost(c);
	c->releasing = true;
	c->memory = false;
	for (uint32_t r = 0; r < c->world && *left > 0; r++) {
		struct slot *s = c->shards[r].slot;

		if (!c->shards[r].sealed)
			continue;
		shard_clear(c, r);
		if (s)
			slot_release(s);
		--*left;
	}
}

/* ---- While nothing can be committed ---- */

/* Its slot is needed. Every save gives one up then: the first is said, and how many they were when
 * the log can be written. */
__attribute__((format(printf, 2, 3))) static void give_up(struct checkpoint *c, const char *fmt,
							  ...)
{
	bool first;
	va_list ap;

	if (!JOB_ASSERT(c->job, c->agreed == CP_OPEN))
		return;
	first = problems_given_up(c);
	va_start(ap, fmt);
	abort_for(c,
		  first ? "; others that are given up for it are counted until the log can be "
			  "written"
			: NULL,
		  fmt, ap);
	va_end(ap);
}

bool checkpoint_waits_for_commit(const struct checkpoint *c)
{
	return c->sealed && c->epoch == c->job->history.epoch.number &&
	       (c->agreed == CP_OPEN || c->agreed == CP_COMMITTING);
}

/* Whether it is OPEN now. Where its record may be in the log it stays as it is: else there would
 * be a commit whose bytes were reused. */
static bool take_back(struct checkpoint *c)
{
	if (c->agreed == CP_COMMITTING) {
		if (!job_withdraw(c->job, commit_done, c))
			return false;
		c->agreed = CP_OPEN;
	}
	return true;
}

static bool being_let_go(struct job *j)
{
	struct checkpoint *c;

	list_each(c, &j->checkpoints, link)
		if ((c->agreed == CP_ABORTED || c->releasing) && c->n_memory > 0)
			return true;
	return false;
}

/* Each save would keep its slot. Where a rank has none left, the oldest gives way; the newest
 * COMMITTED and the newest SEALED stay (I4, I9, I14). */
void checkpoint_give_way(struct job *j)
{
	struct checkpoint *c, *newest = NULL, *best;

	if (!job_log_down(j) || j->opening || !member_lacks_slot(j) || being_let_go(j) ||
	    BUG(OUTAGE_KEEPS_SLOTS))
		return;
	list_each(c, &j->checkpoints, link)
		if (checkpoint_waits_for_commit(c) && (!newest || c->step > newest->step))
			newest = c;
	for (uint64_t from = 0;; from = best->step + 1) {
		best = NULL;
		list_each(c, &j->checkpoints, link)
			if (checkpoint_waits_for_commit(c) && c != newest && c->step >= from &&
			    (!best || c->step < best->step))
				best = c;
		if (!best)
			return;
		if (take_back(best))
			break;
	}
	give_up(best, "the job's log cannot be written (%.120s), and step %llu is newer",
		j->log_text, (unsigned long long)newest->step);
}

/* Overtaken before it was picked for disk: it needs no record, and the next sum leaves it out. What
 * was lost has its record, and whoever begins anew is told of it (I11). */
static void log_knows_gone(const struct checkpoint *c)
{
	struct history_commit *h = history_find(&c->job->history, c->step, &c->attempt);

	if (h && (!h->freed || BUG(LOST_IS_GONE)))
		h->gone = true;
}

void checkpoint_collect(struct job *j)
{
	struct checkpoint *c, *next;
	bool released = false;
	uint32_t left = j->node->options.release_slice;

	if (left == 0)
		left = RELEASED_IN_A_CALL;
	list_each_safe(c, next, &j->checkpoints, link) {
		/* The decision and the first rank that goes are one call: from then on its memory
		 * is not read (I9). */
		if (left > 0 && c->n_memory > 0 && (c->releasing || memory_may_go(c))) {
			release_memory(c, &left);
			released = true;
		}
		if (c->n_memory > 0 || c->works || c->readers || c->persist)
			continue;
		if ((c->agreed == CP_ABORTED && c->abort_logged) ||
		    (c->agreed == CP_COMMITTED &&
		     (c->durable == DUR_NONE || c->durable == DUR_FAILED ||
		      (c->durable == DUR_GONE && !c->files_left)))) {
			log_knows_gone(c);
			checkpoint_free(c);
		}
	}
	if (released)
		job_poke(j); /* there may be slots for credits now, and more to release */
}
