/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recheck.c - every copy of a committed checkpoint is read again, once, and compared with what the
 * root fixes: files chunk by chunk, slots leaf by leaf. When all that there is has matched, the
 * checkpoint is complete.
 *
 * One slice of SLICE bytes at a time in the whole node, on a META worker (files) or a CPU worker
 * (memory), then a pause, so that the mean is recheck_rate; a tenth of it while anybody saves,
 * persists or loads, whose coming cancels the slice that is being read. Jobs take turns, and of a
 * job the newest checkpoint that was not read comes first; one that was begun is ended before,
 * unless it cannot be read AGAIN_MAX times in a row.
 *
 * Files that do not match are damaged, a slot that does not is quarantined: as if a load had found
 * it (I11). What cannot be read for another reason is tried again behind all others.
 *
 * A slice of a file pins nothing but the struct: its memory may go, and so may its files between
 * two slices. A slice of memory pins its slot.
 *
 * Thread: the loop, but slice_run() and close_run().
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "ckptd/indexing.h"
#include "ckptd/node_priv.h"
#include "ckptd/trust.h"
#include "codec/digest.h"
#include "storage/shard_reader.h"

#define SLICE    (8u << 20)
#define AGAIN_NS 1000000000u /* after want of memory, and while nothing may be read */
#define AGAIN_MAX 10u

enum copy { COPY_NONE, COPY_FILES, COPY_MEMORY };

struct recheck {
	struct node *node;
	struct timer timer;
	struct checkpoint *checkpoint; /* whose turn it is; NULL: nobody's */
	enum copy copy;                /* of it; COPY_NONE: to be chosen */
	uint32_t rank;                 /* of the copy: what is read next */
	uint64_t next;                 /* chunk or leaf of it */
	struct work work;
	unsigned again;          /* times in a row that it could not be read */
	bool busy;               /* the worker has what follows */
	struct checkpoint_id id; /* of the newest turn, also when that is over */
	const struct shard_footer *footer;
	struct shard_reader reader;
	bool open;         /* reader is: of `rank` */
	const void *table; /* COPY_MEMORY */
	size_t table_len;
	const uint8_t *image;
	uint64_t bad, read; /* in this slice: leaves that did not match, bytes */
	bool rank_done;
	char first_bad[ERR_TEXT_MAX];
	struct err err;
};

/* ---- On a worker ---- */

static void note_bad(void *arg, const char *sentence)
{
	struct recheck *r = arg;

	if (!r->first_bad[0])
		snprintf(r->first_bad, sizeof(r->first_bad), "%s", sentence);
}

static int note_progress(void *arg, uint64_t bytes)
{
	struct recheck *r = arg;

	r->read = bytes;
	return work_cancelled(&r->work);
}

static int read_file(struct recheck *r)
{
	const struct verify_hooks hooks = {note_progress, note_bad, r};
	uint64_t n;
	int err = 0;

	if (!r->open) {
		err = shard_open(&r->node->store, &r->id, r->footer, &r->reader, &r->err);
		r->open = err == 0;
		r->read = r->footer->footer_len;
	}
	if (err < 0)
		return err;
	n = max_u64(SLICE / r->reader.table.geometry.chunk, 1);
	err = shard_verify_some(&r->reader, r->next, n, &hooks, &r->bad, &r->err);
	if (err < 0)
		return err;
	r->next += n;
	r->rank_done = r->next >= r->reader.n_chunks || r->bad > 0;
	if (!r->rank_done)
		return 0;
	shard_close(&r->reader);
	r->open = false;
	return 0;
}

static int read_memory(struct recheck *r)
{
	struct rank_table t;
	int err = rank_table_open(r->table, r->table_len, &t, &r->err);

	while (err == 0 && r->next < t.n_leaves && r->bad == 0 && r->read < SLICE &&
	       !work_cancelled(&r->work)) {
		uint64_t at = r->next * t.geometry.leaf;
		uint64_t len = min_u64(t.geometry.leaf, t.image_len - at);
		struct digest want = rank_table_leaf(&t, r->next);
		struct digest have = digest_of(r->image + at, len);
		char what[256];

		r->read += len;
		if (digest_equal(&want, &have)) {
			r->next++;
			continue;
		}
		r->bad++;
		shard_describe(&t, at, what, sizeof(what));
		snprintf(r->first_bad, sizeof(r->first_bad), "leaf %llu (%s)",
			 (unsigned long long)r->next, what);
	}
	r->rank_done = err == 0 && (r->bad > 0 || r->next >= t.n_leaves);
	return err;
}

static void slice_run(struct work *w)
{
	struct recheck *r = container_of(w, struct recheck, work);

	w->status = r->copy == COPY_FILES ? read_file(r) : read_memory(r);
}

static void close_run(struct work *w)
{
	struct recheck *r = container_of(w, struct recheck, work);

	shard_close(&r->reader);
	r->open = false;
	w->status = 0;
}

/* ---- Which ---- */

static bool is_read_again(const struct job *j)
{
	return !job_stopped(j) && j->removal == JOB_KEPT;
}

static bool wants_files(const struct checkpoint *c)
{
	return is_read_again(c->job) && c->durable == DUR_DONE && c->commit && !c->reread_disk &&
	       !c->disk_suspect;
}

/* Not what is about to be written to disk: then the memory is read after the files. */
static bool wants_memory(const struct checkpoint *c)
{
	return is_read_again(c->job) && c->memory && !c->reread_memory &&
	       trust_level(c->trust) < TRUST_COMPLETE && c->durable != DUR_WANTED &&
	       c->durable != DUR_WRITING && c->durable != DUR_GONE;
}

static enum copy wanted_copy(const struct checkpoint *c)
{
	if (c->agreed != CP_COMMITTED || c->disk_suspect || ((c->trust | c->said) & TRUST_BAD))
		return COPY_NONE;
	return wants_files(c) ? COPY_FILES : wants_memory(c) ? COPY_MEMORY : COPY_NONE;
}

/* All that there is of it was read again and matched; what went before its turn needs no look. */
static bool has_matched(const struct checkpoint *c)
{
	bool files = c->durable == DUR_DONE && c->reread_disk;
	bool memory = c->memory && c->reread_memory;

	if (BUG(REREAD_FORGOTTEN) && files && !c->reread_memory)
		return false;
	return c->agreed == CP_COMMITTED && !job_stopped(c->job) && !c->disk_suspect &&
	       !((c->trust | c->said) & TRUST_BAD) && (files || memory) &&
	       wanted_copy(c) == COPY_NONE;
}

/* Of those that were given up least often the newest: what cannot be read comes last, and again. */
static struct checkpoint *newest_wanted(struct job *j)
{
	struct checkpoint *c, *best = NULL;

	list_each(c, &j->checkpoints, link) {
		if (wanted_copy(c) == COPY_NONE)
			continue;
		if (!best || c->reread_given_up < best->reread_given_up ||
		    (c->reread_given_up == best->reread_given_up && c->wall_ns > best->wall_ns))
			best = c;
	}
	return best;
}

/* Of the job behind the one whose turn it was; if that is gone, of the first one. */
static struct checkpoint *next_wanted(const struct recheck *r)
{
	struct checkpoint *c, *first = NULL;
	bool behind = false;
	struct job *j;

	list_each(j, &r->node->jobs, link) {
		/* Skips jobs without copies to read: a node may have many. */
		c = j->unread && (behind || !first) ? newest_wanted(j) : NULL;
		if (c && behind)
			return c;
		if (!first)
			first = c;
		behind = behind || job_id_equal(&j->history.job.id, &r->id.job);
	}
	return first;
}

bool recheck_is_reading(const struct checkpoint *c)
{
	const struct recheck *r = c->job->node->recheck;

	return r && r->checkpoint == c && r->copy == COPY_FILES;
}

bool recheck_is_busy(const struct checkpoint *c)
{
	const struct recheck *r = c->job->node->recheck;

	return r && r->busy && r->checkpoint == c;
}

static bool others_work(struct node *n)
{
	struct job *j;

	list_each(j, &n->jobs, link)
		if (j->persist || j->opening || !list_empty(&j->loads.items) || j->at_work)
			return true;
	return false;
}

/* ---- Slices ---- */

static void arm(struct recheck *r, uint64_t in_ns)
{
	if (!r->node->stopping)
		timer_arm(r->node->env.loop, &r->timer, loop_now(r->node->env.loop) + in_ns);
}

static uint64_t pause_after(const struct recheck *r)
{
	uint64_t rate = r->node->options.recheck_rate, slowness = others_work(r->node) ? 10 : 1;

	assert(rate > 0);
	return (uint64_t)((double)max_u64(r->read, 4096) * 1e9 * (double)slowness / (double)rate);
}

static void close_done(struct work *w)
{
	struct recheck *r = container_of(w, struct recheck, work);

	r->busy = false;
	r->node->works--;
	arm(r, 0);
	node_stop_step(r->node);
}

/* For whatever reason; what is open is closed on a worker. */
static void turn_over(struct recheck *r)
{
	assert(!r->busy);
	r->checkpoint = NULL;
	r->copy = COPY_NONE;
	if (!r->open)
		return;
	r->busy = true;
	r->node->works++;
	r->work.run = close_run;
	r->work.done = close_done;
	work_submit(r->node->env.workers, WORK_META, FAIR_NODE, &r->work);
}

static void files_are_bad(struct recheck *r, const char *why)
{
	struct checkpoint *c = r->checkpoint;

	job_tell_step(c->job, c->step, 3,
		      "step %llu, rank %u: its file was read again: %s; it is not used any "
		      "more",
		      (unsigned long long)c->step, r->rank, why);
	checkpoint_suspect(c, r->rank, "rank %u: %.180s", r->rank, why);
	indexing_put(c);
	turn_over(r);
}

static void memory_is_bad(struct recheck *r)
{
	struct checkpoint *c = r->checkpoint;

	job_tell_step(
		c->job, c->step, 3,
		"step %llu, rank %u: its memory was read again: %s does not match its digest; the "
		"copy is not used any more",
		(unsigned long long)c->step, r->rank, r->first_bad);
	c->shards[r->rank].slot->state = SLOT_QUARANTINED;
	c->memory = false;
	turn_over(r);
}

/* All ranks of a copy matched. */
static void copy_is_good(struct recheck *r)
{
	struct checkpoint *c = r->checkpoint;

	if (r->copy == COPY_FILES)
		c->reread_disk = true;
	else
		c->reread_memory = true;
	r->copy = COPY_NONE;
	if (wanted_copy(c) == COPY_NONE)
		turn_over(r); /* else it goes on with the other one */
}

/* False: it is to be tried again after a while. */
static bool slice_was_read(struct recheck *r, int status)
{
	struct checkpoint *c = r->checkpoint;
	bool files = r->copy == COPY_FILES;

	if (!(files ? wants_files(c) : wants_memory(c))) {
		turn_over(r); /* it went, or somebody else found it bad */
	} else if (status == -ECANCELED) {
		return true;
	} else if (status < 0 && !(files && shard_is_bad(status))) {
		return false;
	} else if (status < 0) {
		files_are_bad(r, r->err.text);
	} else if (r->bad > 0 && files) {
		files_are_bad(r, r->first_bad);
	} else if (r->bad > 0) {
		memory_is_bad(r);
	} else if (r->rank_done) {
		r->next = 0;
		if (++r->rank == c->world)
			copy_is_good(r);
	}
	return true;
}

static void slice_done(struct work *w)
{
	struct recheck *r = container_of(w, struct recheck, work);
	struct checkpoint *c = r->checkpoint;
	bool again;

	r->busy = false;
	r->node->works--;
	c->works--;
	c->rereading = false;
	again = !slice_was_read(r, w->status);
	r->again = again ? r->again + 1 : 0;
	if (r->again == AGAIN_MAX) {
		r->again = 0;
		c->reread_given_up++;
		turn_over(r); /* others first */
	}
	if (!r->busy && r->node->options.recheck_rate == 0)
		turn_over(r); /* it was switched off meanwhile */
	else if (!r->busy)
		arm(r, again ? AGAIN_NS : pause_after(r));
	preparing_has_room(c->job);
	job_poke(c->job);
	node_stop_step(r->node);
}

static void slice_start(struct recheck *r)
{
	struct checkpoint *c = r->checkpoint;
	struct shard_state *sh = &c->shards[r->rank];

	r->bad = 0;
	r->read = 0;
	r->rank_done = false;
	r->first_bad[0] = '\0';
	r->err = (struct err){0};
	if (r->copy == COPY_FILES) {
		r->footer = &c->commit->shards[r->rank];
		c->rereading = true;
	} else {
		if (!JOB_ASSERT(c->job, sh->table && sh->slot) ||
		    !JOB_ASSERT(c->job, sh->slot->state == SLOT_DIGESTED)) {
			turn_over(r);
			arm(r, AGAIN_NS);
			return;
		}
		r->table = sh->table;
		r->table_len = sh->table_len;
		r->image = sh->slot->region->base;
	}
	c->works++;
	r->busy = true;
	r->node->works++;
	atomic_store(&r->work.cancel, false);
	r->work.run = slice_run;
	r->work.done = slice_done;
	work_submit(r->node->env.workers, r->copy == COPY_FILES ? WORK_META : WORK_CPU, FAIR_NODE,
		    &r->work);
}

static void next_slice(struct timer *t)
{
	struct recheck *r = container_of(t, struct recheck, timer);
	struct checkpoint *c;

	loop_label(r->node->env.loop, "what is read again");
	if (r->busy || r->node->stopping || r->node->options.recheck_rate == 0)
		return;
	c = r->checkpoint;
	/* What it is reading went, or was found bad by somebody else. */
	if (c && r->copy != COPY_NONE &&
	    !(r->copy == COPY_FILES ? wants_files(c) : wants_memory(c)))
		turn_over(r);
	if (r->busy)
		return;
	if (!r->checkpoint)
		r->checkpoint = next_wanted(r);
	if (!r->checkpoint)
		return;
	if (r->copy == COPY_NONE) {
		r->copy = wanted_copy(r->checkpoint);
		r->rank = 0;
		r->next = 0;
		job_id_of(r->checkpoint->job, r->checkpoint->step, &r->checkpoint->attempt, &r->id);
	}
	if (r->copy != COPY_NONE) {
		slice_start(r);
		return;
	}
	job_poke(r->checkpoint->job); /* its memory went: perhaps nothing is left to be read */
	turn_over(r);
	if (!r->busy)
		arm(r, 0);
}

void recheck_step(struct job *j)
{
	struct recheck *r = j->node->recheck;
	struct checkpoint *c;

	j->unread = j->at_work = false;
	list_each(c, &j->checkpoints, link) {
		j->unread = j->unread || wanted_copy(c) != COPY_NONE;
		j->at_work = j->at_work || c->agreed == CP_OPEN || c->agreed == CP_COMMITTING ||
			     c->readers > 0;
		if (c->reread_said || !has_matched(c))
			continue;
		c->reread_said = true;
		if (trust_level(c->trust) < TRUST_COMPLETE)
			trust_say(c, TRUST_COMPLETE);
	}
	if (j->unread && !r->busy && !r->timer.armed && j->node->options.recheck_rate > 0)
		arm(r, 0);
}

void recheck_give_way(struct node *n)
{
	if (n->recheck && n->recheck->busy)
		atomic_store(&n->recheck->work.cancel, true);
}

bool recheck_reads_files_of(const struct job *j)
{
	const struct recheck *r = j->node->recheck;

	return r && r->busy && r->checkpoint && r->checkpoint->job == j && r->copy == COPY_FILES;
}

void recheck_let_go(struct checkpoint *c)
{
	struct recheck *r = c->job->node->recheck;

	if (r && r->checkpoint == c && !r->busy && r->copy == COPY_FILES)
		turn_over(r);
}

void recheck_forget(struct checkpoint *c)
{
	struct recheck *r = c->job->node->recheck;

	if (!r || r->checkpoint != c)
		return;
	assert(!c->rereading);
	turn_over(r);
}

/* ---- Life ---- */

int recheck_new(struct node *n, struct recheck **ret)
{
	struct recheck *r = alloc_zero(sizeof(*r));

	if (!r)
		return -ENOMEM;
	r->node = n;
	timer_init(&r->timer, next_slice);
	*ret = r;
	return 0;
}

void recheck_free(struct recheck *r)
{
	if (!r)
		return;
	timer_disarm(r->node->env.loop, &r->timer);
	if (r->open)
		shard_close(&r->reader);
	r->node->recheck = NULL;
	alloc_free(r);
}
