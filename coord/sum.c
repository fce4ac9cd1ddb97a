/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sum.c - what a summing record carries, and whether it agrees with what was folded before it.
 *
 * A sum leaves out what is freed, and may leave out commits that are gone without a record of
 * their own: held by memory alone, overtaken before anybody wrote them to disk. It never leaves out
 * a pinned commit, the newest, or the base of the epoch: those are what loads are answered with
 * (I15). Of freed ones it has the newest that were lost: who loads where nothing else is left must
 * be told of them (I11). Pure; any thread.
 */
#include <config.h>

#include "coord/sum.h"

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "coord/fields.h"

enum { COMMIT_PINNED = 1, COMMIT_LOST = 2 }; /* flags of a commit in a sum */

/* Bytes of the parts of a sum, at most; an id has 16, a text 2 more than its characters. */
enum {
	FRAME_BYTES = 88 + 16, /* what every record has: record.c */
	JOB_BYTES = 16 + 4 + 16 + 2 + CKPT_JOB_MAX,
	EPOCH_BYTES = 8 + 8 + 1 + 8 + 16 + 4 + 2 + RUN_ID_MAX + 2 + REASON_MAX,
	STEPPED_BYTES = 1 + 8,
	COUNT_BYTES = 4, /* before runs, commits and aborts */
	RUN_BYTES = 16,
	COMMIT_BYTES = 8 + 3 * 16 + 4 + 4 + 8 + 8 + 8 + 8 + 1 + 4, /* each one, exactly */
	ABORT_BYTES_MIN = 8 + 16 + 4 + 2 + 8 + 8,
	SUM_BYTES_MAX = FRAME_BYTES + JOB_BYTES + EPOCH_BYTES + STEPPED_BYTES + 3 * COUNT_BYTES +
			HISTORY_RUNS_MAX * RUN_BYTES + HISTORY_SUM_MAX * COMMIT_BYTES +
			HISTORY_ABORTS_MAX * (ABORT_BYTES_MIN + REASON_MAX),
};
static_assert(SUM_BYTES_MAX <= JOBLOG_RECORD_MAX, "the largest sum is a record");

bool sum_keeps(const struct history *h, const struct history_commit *c)
{
	assert(c >= h->commits && c < h->commits + h->n_commits);
	if (c->freed)
		return false;
	return c->pinned || c == history_newest(h) ||
	       (h->epoch.has_base && c->commit.step == h->epoch.base_step &&
		attempt_equal(&c->commit.attempt, &h->epoch.base_attempt));
}

static bool carries(const struct history *h, const struct history_commit *c)
{
	return !c->freed && (!c->gone || sum_keeps(h, c));
}

/* One of the newest HISTORY_LOST_MAX that were lost. */
static bool carries_lost(const struct history *h, const struct history_commit *c)
{
	size_t n = 0;

	if (!c->lost || BUG(SUM_FORGETS_LOST))
		return false;
	for (const struct history_commit *d = c; d < h->commits + h->n_commits; d++)
		n += d->lost;
	return n <= HISTORY_LOST_MAX;
}

size_t sum_count(const struct history *h)
{
	size_t n = 0;

	for (size_t i = 0; i < h->n_commits; i++)
		n += carries(h, &h->commits[i]);
	assert(n <= h->n_commits);
	return n;
}

/* ---- Its body: job, epoch, last step, past runs, commits, aborts ---- */

void sum_put(struct writer *w, const struct history *h)
{
	size_t n = sum_count(h);

	assert(n <= HISTORY_COMMITS_MAX); /* record_encode() has refused more */
	for (size_t i = 0; i < h->n_commits; i++)
		n += carries_lost(h, &h->commits[i]);
	field_put_job(w, &h->job);
	field_put_epoch(w, &h->epoch);
	write_u8(w, h->stepped);
	write_u64(w, h->stepped ? h->last_step : 0);
	write_u32(w, h->n_runs);
	write_bytes(w, h->runs, h->n_runs * sizeof(h->runs[0]));
	write_u32(w, (uint32_t)n);
	for (size_t i = 0; i < h->n_commits; i++) {
		const struct history_commit *c = &h->commits[i];

		if (!carries(h, c) && !carries_lost(h, c))
			continue;
		field_put_commit(w, &c->commit);
		write_u64(w, c->n);
		write_u64(w, c->epoch);
		write_u64(w, c->wall_ns);
		write_u8(w, (c->pinned ? COMMIT_PINNED : 0) | (c->lost ? COMMIT_LOST : 0));
		write_u32(w, c->trust);
	}
	write_u32(w, (uint32_t)h->n_aborts);
	for (size_t i = 0; i < h->n_aborts; i++) {
		field_put_abort(w, &h->aborts[i].aborted);
		write_u64(w, h->aborts[i].n);
		write_u64(w, h->aborts[i].epoch);
	}
}

static void get_runs(struct reader *rd, struct history *h)
{
	uint32_t n = read_u32(rd);

	if (n > HISTORY_RUNS_MAX)
		rd->bad = true;
	for (uint32_t i = 0; i < n && !rd->bad; i++)
		field_get_id(rd, h->runs[i].b);
	h->n_runs = rd->bad ? 0 : n;
}

static int get_commits(struct reader *rd, struct history *h)
{
	uint32_t n = read_u32(rd), lost = 0;
	uint8_t flags;

	if (n > HISTORY_SUM_MAX || n > reader_left(rd) / COMMIT_BYTES)
		rd->bad = true;
	if (rd->bad || n == 0)
		return 0;
	h->commits = alloc_array(n, sizeof(*h->commits));
	if (!h->commits)
		return -ENOMEM;
	h->n_commits = h->cap_commits = n;
	for (uint32_t i = 0; i < n; i++) {
		struct history_commit *c = &h->commits[i];

		field_get_commit(rd, &c->commit);
		c->n = read_u64(rd);
		c->epoch = read_u64(rd);
		c->wall_ns = read_u64(rd);
		flags = read_u8(rd);
		if (flags & ~(COMMIT_PINNED | COMMIT_LOST))
			rd->bad = true;
		c->pinned = flags & COMMIT_PINNED;
		c->freed = c->lost = flags & COMMIT_LOST;
		c->trust = read_u32(rd);
		lost += c->lost;
	}
	if (lost > HISTORY_LOST_MAX || n - lost > HISTORY_COMMITS_MAX)
		rd->bad = true;
	return 0;
}

static int get_aborts(struct reader *rd, struct history *h)
{
	uint32_t n = read_u32(rd);

	if (n > HISTORY_ABORTS_MAX)
		rd->bad = true;
	if (rd->bad || n == 0)
		return 0;
	h->aborts = alloc_array(HISTORY_ABORTS_MAX, sizeof(*h->aborts));
	if (!h->aborts)
		return -ENOMEM;
	h->n_aborts = n;
	for (uint32_t i = 0; i < n; i++) {
		field_get_abort(rd, &h->aborts[i].aborted);
		h->aborts[i].n = read_u64(rd);
		h->aborts[i].epoch = read_u64(rd);
	}
	return 0;
}

/* What the fold would have refused one by one must not come in through a sum. */
static bool in_order(const struct history *h)
{
	if (h->epoch.world > WORLD_MAX)
		return false;
	for (size_t i = 0; i < h->n_commits; i++) {
		const struct history_commit *c = &h->commits[i];
		const struct history_commit *before = i > 0 ? c - 1 : NULL;

		if (c->commit.world == 0 || c->commit.world > WORLD_MAX)
			return false;
		if (c->n >= h->first_n || c->epoch == 0 || c->epoch > h->epoch.number)
			return false;
		if (c->epoch == h->epoch.number && (!h->stepped || c->commit.step > h->last_step))
			return false;
		if (!before)
			continue;
		if (c->n <= before->n || c->epoch < before->epoch ||
		    (c->epoch == before->epoch && c->commit.step <= before->commit.step))
			return false;
	}
	for (size_t i = 0; i < h->n_aborts; i++) {
		const struct history_abort *a = &h->aborts[i];

		if (a->n >= h->first_n || a->epoch == 0 || a->epoch > h->epoch.number ||
		    (i > 0 && (a->n <= a[-1].n || a->epoch < a[-1].epoch)))
			return false;
	}
	return true;
}

int sum_get(struct reader *rd, const struct record *r, struct history *h)
{
	int rc;

	h->incarnation = r->incarnation;
	h->term = r->term;
	h->first_n = r->n;
	h->next_n = r->n + 1;
	h->read_only = r->read_only;
	field_get_job(rd, &h->job);
	field_get_epoch(rd, &h->epoch);
	h->stepped = field_get_flag(rd);
	h->last_step = read_u64(rd);
	if (h->epoch.number != r->epoch || (!h->stepped && h->last_step) || r->n == UINT64_MAX)
		rd->bad = true;
	get_runs(rd, h);
	rc = get_commits(rd, h);
	if (rc == 0)
		rc = get_aborts(rd, h);
	if (rc == 0 && !rd->bad && !in_order(h))
		rd->bad = true;
	return rc;
}

/* ---- Does it agree? ---- */

static bool job_agrees(const struct record_job *a, const struct record_job *b)
{
	return job_id_equal(&a->id, &b->id) && strcmp(a->name, b->name) == 0 && a->uid == b->uid &&
	       digest_equal(&a->token, &b->token);
}

static bool epoch_agrees(const struct record_epoch *a, const struct record_epoch *b)
{
	if (a->number != b->number || a->parent != b->parent || a->has_base != b->has_base ||
	    a->world != b->world || strcmp(a->run_id, b->run_id) != 0 ||
	    strcmp(a->reason, b->reason) != 0)
		return false;
	return !a->has_base || (a->base_step == b->base_step &&
				attempt_equal(&a->base_attempt, &b->base_attempt));
}

static bool commit_agrees(const struct history_commit *a, const struct history_commit *b)
{
	const struct record_commit *x = &a->commit, *y = &b->commit;

	return x->step == y->step && attempt_equal(&x->attempt, &y->attempt) &&
	       digest_equal(&x->root, &y->root) && digest_equal(&x->layout, &y->layout) &&
	       x->world == y->world && x->f == y->f && x->bytes == y->bytes && a->n == b->n &&
	       a->epoch == b->epoch && a->wall_ns == b->wall_ns && a->pinned == b->pinned &&
	       a->freed == b->freed && a->lost == b->lost && a->trust == b->trust;
}

static bool abort_agrees(const struct history_abort *a, const struct history_abort *b)
{
	const struct record_abort *x = &a->aborted, *y = &b->aborted;

	return x->step == y->step && attempt_equal(&x->attempt, &y->attempt) &&
	       x->next_try == y->next_try && strcmp(x->reason, y->reason) == 0 && a->n == b->n &&
	       a->epoch == b->epoch;
}

/* Both are in order of n: walk h, and meet every commit of sum on the way. */
static bool commits_agree(const struct history *h, const struct history *sum)
{
	size_t next = 0;

	for (size_t i = 0; i < h->n_commits; i++) {
		const struct history_commit *c = &h->commits[i];

		if (next < sum->n_commits && sum->commits[next].n == c->n) {
			if (!commit_agrees(c, &sum->commits[next]))
				return false;
			next++;
		} else if (sum_keeps(h, c)) {
			return false;
		}
	}
	return next == sum->n_commits;
}

bool sum_agrees(const struct history *h, const struct history *sum)
{
	if (!job_agrees(&h->job, &sum->job) || !epoch_agrees(&h->epoch, &sum->epoch) ||
	    h->stepped != sum->stepped || h->last_step != sum->last_step ||
	    h->n_runs != sum->n_runs || h->n_aborts != sum->n_aborts ||
	    memcmp(h->runs, sum->runs, h->n_runs * sizeof(h->runs[0])) != 0)
		return false;
	for (size_t i = 0; i < h->n_aborts; i++)
		if (!abort_agrees(&h->aborts[i], &sum->aborts[i]))
			return false;
	return commits_agree(h, sum);
}
