/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history.c - what a job's log adds up to.
 *
 * 1. A record is checked whole before anything changes: an error leaves the state as it was.
 * 2. (incarnation, term, epoch) only rise, the term by RECORD_LEAD alone, the epoch by RECORD_EPOCH
 *    alone; a record of an older one is CKPT_ESTALE and changes nothing (I4).
 * 3. Each record holds the digest of the one before, so that a replaced or skipped one shows.
 * 4. Committed steps rise strictly within an epoch (I5), also across a RECORD_SUM that leaves the
 *    last of them out: last_step outlives the commit.
 * 5. An epoch's base is a commit that is known and not freed (I15).
 * 6. OPEN -> COMMITTED or OPEN -> ABORTED: never both (aborts older than the newest
 *    HISTORY_ABORTS_MAX are forgotten).
 *
 * Failure modes: see history_apply(). Pure; one history by one thread at a time.
 */
#include <config.h>

#include "coord/record.h"

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "codec/digest.h"
#include "coord/sum.h"
#include "model/trust.h"

#define LL(x) ((unsigned long long)(x))

void history_init(struct history *h)
{
	*h = (struct history){ 0 };
}

void history_fini(struct history *h)
{
	assert(h->n_commits <= h->cap_commits && h->n_aborts <= HISTORY_ABORTS_MAX);
	alloc_free(h->commits);
	alloc_free(h->aborts);
	history_init(h);
}

static const struct history_commit *find(const struct history *h, uint64_t step,
					 const struct attempt_id *attempt)
{
	for (size_t i = h->n_commits; i-- > 0;) {
		const struct history_commit *c = &h->commits[i];

		if (c->commit.step == step && attempt_equal(&c->commit.attempt, attempt))
			return c;
	}
	return NULL;
}

struct history_commit *history_find(struct history *h, uint64_t step,
				    const struct attempt_id *attempt)
{
	return (struct history_commit *)find(h, step, attempt);
}

const struct history_commit *history_newest(const struct history *h)
{
	for (size_t i = h->n_commits; i-- > 0;)
		if (!h->commits[i].freed)
			return &h->commits[i];
	return NULL;
}

static size_t find_run(const struct history *h, const struct digest *run)
{
	size_t i = 0;

	while (i < h->n_runs && !digest_equal(&h->runs[i], run))
		i++;
	return i;
}

bool history_run_is_past(const struct history *h, const char *run_id)
{
	struct digest run = digest_of(run_id, strlen(run_id));

	return find_run(h, &run) < h->n_runs;
}

void history_next(const struct history *h, struct record *r)
{
	assert(r->type >= RECORD_JOB && r->type <= RECORD_SUM);
	assert(h->n_commits <= h->cap_commits);
	if (h->next_n > 0)
		r->incarnation = h->incarnation;
	r->n = h->next_n;
	r->term = h->term + (r->type == RECORD_LEAD);
	r->epoch = h->epoch.number;
	r->previous = h->last;
	if (r->type == RECORD_SUM)
		r->sum = h;
}

/* ---- Checks ---- */

static int refuse(struct err *e, const char *why)
{
	return err_set(e, CKPT_ECORRUPT, "%s", why);
}

static int check_first(const struct record *r, struct err *e)
{
	static const struct digest zero;

	if (r->type == RECORD_SUM && r->n > 0)
		return 0;
	if (r->type != RECORD_JOB || r->n != 0)
		return refuse(e, "a log begins with record 0, the job, or with a summing record");
	if (r->term != 0 || r->epoch != 0 || !digest_equal(&r->previous, &zero))
		return refuse(e, "record 0 follows nothing: its term, epoch and previous are 0");
	return 0;
}

static int check_fence(const struct history *h, const struct record *r, struct err *e)
{
	bool lead = r->type == RECORD_LEAD;

	if (r->incarnation < h->incarnation)
		return err_set(e, CKPT_ESTALE, "its log has incarnation %llu, this one %llu",
			       LL(r->incarnation), LL(h->incarnation));
	if (r->incarnation > h->incarnation)
		return refuse(e, "a new incarnation begins a log of its own");
	if (!BUG(ACCEPT_OLD_TERM) && r->term < h->term + lead)
		return err_set(e, CKPT_ESTALE, "its writer led in term %llu, this is term %llu",
			       LL(r->term), LL(h->term));
	if (r->term > h->term && !lead)
		return refuse(e, "its term was never begun by a lead record");
	if (r->epoch < h->epoch.number)
		return err_set(e, CKPT_ESTALE, "its writer was in epoch %llu, this is epoch %llu",
			       LL(r->epoch), LL(h->epoch.number));
	if (r->epoch > h->epoch.number)
		return refuse(e, "its epoch was never opened");
	return 0;
}

static int check_epoch(const struct history *h, const struct record_epoch *p, struct err *e)
{
	const struct history_commit *base;

	if (p->number <= h->epoch.number || p->parent != h->epoch.number)
		return refuse(e, "an epoch's number is above its parent's, the epoch before it");
	if (p->world == 0 || p->world > WORLD_MAX)
		return refuse(e, "an epoch has 1 to 65536 ranks");
	if (!p->has_base)
		return 0;
	base = find(h, p->base_step, &p->base_attempt);
	if (!base)
		return refuse(e, "the base of its epoch was never committed");
	if (base->freed)
		return refuse(e, "the base of its epoch is freed");
	return 0;
}

static const struct history_abort *find_abort(const struct history *h,
					      const struct attempt_id *attempt)
{
	for (size_t i = h->n_aborts; i-- > 0;)
		if (attempt_equal(&h->aborts[i].aborted.attempt, attempt))
			return &h->aborts[i];
	return NULL;
}

static int check_commit(const struct history *h, const struct record_commit *c, struct err *e)
{
	if (h->epoch.number == 0)
		return refuse(e, "a commit needs an epoch");
	if (c->world == 0 || c->world > WORLD_MAX)
		return refuse(e, "a checkpoint has 1 to 65536 ranks");
	if (h->stepped && c->step <= h->last_step)
		return err_set(e, CKPT_ECORRUPT,
			       "step %llu is not above step %llu, the last one of epoch %llu",
			       LL(c->step), LL(h->last_step), LL(h->epoch.number));
	if (find(h, c->step, &c->attempt))
		return refuse(e, "the attempt that it commits is committed already");
	if (find_abort(h, &c->attempt))
		return refuse(e, "the attempt that it commits was aborted");
	return 0;
}

static int check_abort(const struct history *h, const struct record_abort *a, struct err *e)
{
	if (h->epoch.number == 0)
		return refuse(e, "an abort needs an epoch");
	if (find(h, a->step, &a->attempt))
		return refuse(e, "the attempt that it aborts was committed");
	if (find_abort(h, &a->attempt))
		return refuse(e, "the attempt that it aborts was aborted before");
	if (a->next_try == 0)
		return refuse(e, "try 0 is the first, never the next");
	return 0;
}

static int check_mark(const struct history *h, const struct record *r, struct err *e)
{
	const struct record_mark *m = &r->mark;
	const struct history_commit *c = find(h, m->step, &m->attempt);

	if (!c)
		return refuse(e, "it marks a checkpoint that is not committed");
	if (r->type == RECORD_FREE) {
		if (m->value != 1 && m->value != 2)
			return refuse(e, "a checkpoint is freed from disk (1) or is lost (2)");
		if (m->value == 1 && c->pinned)
			return refuse(e, "a pinned checkpoint is not freed");
		return 0;
	}
	/* What is lost may have been pinned: a person takes that back before giving it up. */
	if (c->freed && !(c->lost && r->type == RECORD_PIN && m->value == 0))
		return refuse(e, "it marks a checkpoint that is freed");
	if (r->type == RECORD_PIN && m->value > 1)
		return refuse(e, "a checkpoint is pinned (1) or not (0)");
	return 0;
}

static int check_content(const struct history *h, const struct record *r,
			 const struct history *sum, struct err *e)
{
	switch (r->type) {
	case RECORD_JOB:
		return refuse(e, "only record 0 is the job");
	case RECORD_LEAD:
		return 0;
	case RECORD_EPOCH:
		return check_epoch(h, &r->opened, e);
	case RECORD_COMMIT:
		return check_commit(h, &r->commit, e);
	case RECORD_ABORT:
		return check_abort(h, &r->aborted, e);
	case RECORD_FREE:
	case RECORD_PIN:
	case RECORD_TRUST:
		return check_mark(h, r, e);
	case RECORD_SUM:
		return sum_agrees(h, sum) ?
			       0 :
			       refuse(e, "it does not sum up the records before it");
	}
	return refuse(e, "unknown type");
}

static int check(const struct history *h, uint64_t n, const struct record *r,
		 const struct history *sum, struct err *e)
{
	int rc;

	if (r->n != n)
		return err_set(e, CKPT_ECORRUPT, "it says that it is record %llu", LL(r->n));
	if (h->next_n == 0)
		return check_first(r, e);
	if (n < h->next_n)
		return err_set(e, CKPT_ESTALE, "records below %llu are applied already",
			       LL(h->next_n));
	if (n > h->next_n)
		return err_set(e, CKPT_ECORRUPT, "record %llu is missing", LL(h->next_n));
	rc = check_fence(h, r, e);
	if (rc < 0)
		return rc;
	if (!digest_equal(&r->previous, &h->last)) /* (3) */
		return err_set(e, CKPT_ECORRUPT, "it does not follow the record %llu that is here",
			       LL(n - 1));
	return check_content(h, r, sum, e);
}

/* Decodes and checks; sum is empty before, and the caller frees it. */
static int examine(const struct history *h, uint64_t n, const void *bytes, size_t len,
		   struct record *ret, struct history *sum, struct err *e)
{
	int rc;

	history_init(sum);
	rc = record_decode(bytes, len, ret, sum, e);
	if (rc == 0)
		rc = check(h, n, ret, sum, e);
	return rc < 0 ? err_wrap(e, rc, "log record %llu", LL(n)) : 0;
}

int history_check(const struct history *h, uint64_t n, const void *bytes, size_t len,
		  struct err *e)
{
	struct history sum;
	struct record r;
	int rc = examine(h, n, bytes, len, &r, &sum, e);

	history_fini(&sum);
	return rc;
}

/* ---- Folding; what can fail was done by reserve() ---- */

static int reserve(struct history *h, enum record_type type, struct err *e)
{
	if (type == RECORD_COMMIT && h->n_commits == h->cap_commits) {
		size_t cap = h->cap_commits ? 2 * h->cap_commits : 16;
		void *p = alloc_resize(h->commits, cap * sizeof(*h->commits));

		if (!p)
			return err_code(e, -ENOMEM, "keep %zu commits", cap);
		h->commits = p;
		h->cap_commits = cap;
	}
	if (type == RECORD_ABORT && !h->aborts) {
		h->aborts = alloc_array(HISTORY_ABORTS_MAX, sizeof(*h->aborts));
		if (!h->aborts)
			return err_code(e, -ENOMEM, "keep %d aborts", HISTORY_ABORTS_MAX);
	}
	return 0;
}

static void forget_run(struct history *h, size_t i)
{
	assert(i < h->n_runs);
	h->n_runs--;
	memmove(h->runs + i, h->runs + i + 1, (h->n_runs - i) * sizeof(h->runs[0]));
}

/* An epoch of another run makes the run before it a past one, and its own not. */
static void fold_run(struct history *h, const char *run_id)
{
	struct digest run = digest_of(run_id, strlen(run_id));
	size_t i = find_run(h, &run);

	if (i < h->n_runs)
		forget_run(h, i);
	if (h->epoch.number == 0 || strcmp(h->epoch.run_id, run_id) == 0)
		return;
	if (h->n_runs == HISTORY_RUNS_MAX)
		forget_run(h, 0);
	h->runs[h->n_runs++] = digest_of(h->epoch.run_id, strlen(h->epoch.run_id));
}

/* What came after the base: with the epoch's record, or not at all. */
static void pass_over(struct history *h, const struct record_epoch *p)
{
	const struct history_commit *base = history_find(h, p->base_step, &p->base_attempt);

	assert(p->has_base && base);
	for (size_t i = 0; i < h->n_commits; i++)
		if (h->commits[i].n > base->n)
			h->commits[i].trust = trust_add(h->commits[i].trust, TRUST_PASSED);
}

static void fold_epoch(struct history *h, const struct record_epoch *p)
{
	assert(p->number > h->epoch.number);
	fold_run(h, p->run_id);
	if (p->passes)
		pass_over(h, p);
	h->epoch = *p;
	h->epoch.passes = false;
	h->stepped = false;
	h->last_step = 0;
}

static void fold_commit(struct history *h, const struct record *r)
{
	assert(h->n_commits < h->cap_commits);
	assert(!h->stepped || r->commit.step > h->last_step); /* (4) */
	h->commits[h->n_commits++] = (struct history_commit){
		.commit = r->commit, .n = r->n, .epoch = r->epoch, .wall_ns = r->wall_ns,
	};
	h->stepped = true;
	h->last_step = r->commit.step;
}

static void fold_abort(struct history *h, const struct record *r)
{
	assert(h->aborts);
	if (h->n_aborts == HISTORY_ABORTS_MAX) {
		h->n_aborts--;
		memmove(h->aborts, h->aborts + 1, h->n_aborts * sizeof(*h->aborts));
	}
	h->aborts[h->n_aborts++] = (struct history_abort){
		.aborted = r->aborted, .n = r->n, .epoch = r->epoch,
	};
}

static void fold_mark(struct history *h, const struct record *r)
{
	struct history_commit *c = history_find(h, r->mark.step, &r->mark.attempt);

	assert(c);
	if (r->type == RECORD_FREE) {
		c->freed = true;
		c->lost = r->mark.value == 2;
	} else if (r->type == RECORD_PIN) {
		c->pinned = r->mark.value == 1;
	} else {
		c->trust = trust_add(c->trust, r->mark.value);
	}
}

/* Takes sum's arrays; the caller's flags of commits that stay are not the log's to drop. */
static void fold_sum(struct history *h, struct history *sum)
{
	for (size_t i = 0, k = 0; i < h->n_commits && k < sum->n_commits; i++)
		if (h->commits[i].n == sum->commits[k].n)
			sum->commits[k++].gone = h->commits[i].gone;
	history_fini(h);
	*h = *sum;
	history_init(sum);
}

static void fold(struct history *h, const struct record *r, struct history *sum)
{
	switch (r->type) {
	case RECORD_JOB:
		h->job = r->job;
		h->incarnation = r->incarnation;
		break;
	case RECORD_LEAD:
		h->term = r->term;
		break;
	case RECORD_EPOCH:
		fold_epoch(h, &r->opened);
		h->epoch_wall_ns = r->wall_ns;
		break;
	case RECORD_COMMIT:
		fold_commit(h, r);
		break;
	case RECORD_ABORT:
		fold_abort(h, r);
		break;
	case RECORD_FREE:
	case RECORD_PIN:
	case RECORD_TRUST:
		fold_mark(h, r);
		break;
	case RECORD_SUM:
		fold_sum(h, sum);
		break;
	}
}

int history_apply(struct history *h, uint64_t n, const void *bytes, size_t len, struct err *e)
{
	struct history sum;
	struct record r;
	int rc = examine(h, n, bytes, len, &r, &sum, e);

	if (rc == 0)
		rc = reserve(h, r.type, e);
	if (rc == 0) { /* (1) */
		fold(h, &r, &sum);
		h->read_only = h->read_only || r.read_only;
		h->next_n = n + 1;
		h->last = digest_of(bytes, len);
	}
	history_fini(&sum);
	return rc;
}

struct loading {
	struct history *h;
	struct err *e;
};

static int load_one(void *arg, uint64_t n, const void *bytes, size_t len)
{
	struct loading *l = arg;

	return history_apply(l->h, n, bytes, len, l->e);
}

int history_load(struct history *h, struct joblog *log, struct err *e)
{
	struct loading l = { .h = h, .e = e };

	assert(h->next_n == 0 && h->n_commits == 0);
	return log->ops->scan(log, load_one, &l, e);
}
