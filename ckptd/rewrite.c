/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rewrite.c - files of a durable checkpoint that were found damaged are written again from memory,
 * while that has the same bytes (I11).
 *
 *   COMMIT   retried if the start found that the files suffice for it, but could not write it (I8)
 *   CHECK    every leaf in memory is compared with the rank table: what does not match is
 *            quarantined, and nothing is written from it
 *   WRITE    each damaged file anew, beside the damaged one
 *   REPLACE  read back from the disk and compared, then renamed over the damaged one
 *   PUBLISH  COMMIT with the new footers, unless it has them -> its files count as good again, and
 *            are re-read in turn. Where there was none it is made from the new files, with the
 *            layout if that is gone
 *
 * One checkpoint of a job at a time, begun only while nobody reads it and nothing else works on it:
 * a reader may be about to open the file. A load that begins meanwhile does not open it, and copies
 * what it needs of COMMIT. Its memory stays meanwhile (checkpoint->works). Before REPLACE a failure
 * changes nothing: what is on disk may suffice, and may be all that is left (I7). As a rule the new
 * file has the footer of the old one, and COMMIT fits it at once; where it does not (the damaged
 * one could not tell which leaves it had, or was compressed otherwise), a crash before PUBLISH
 * leaves a file that COMMIT does not know, which is as bad as the damage was. A failure is tried
 * again REWRITE_TRIES times, want of room and a data folder that is away for as long as memory has
 * the bytes.
 *
 * Thread: the loop, but rewrite_run(): a DATA worker.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "ckptd/indexing.h"
#include "ckptd/job.h"
#include "ckptd/node_priv.h"
#include "codec/digest.h"
#include "model/table.h"
#include "storage/commit_rebuild.h"
#include "storage/shard_reader.h"

#define REWRITE_TRIES 3

struct rewrite_part {
	uint32_t rank, element;
	const uint8_t *image;
	uint64_t image_len, table_max;
	const void *table;
	size_t table_len;
	const struct shard_footer *old; /* of the damaged file; NULL: its COMMIT is unreadable */
};

struct rewrite {
	struct work work;
	struct checkpoint *checkpoint;
	struct store *store;
	struct workers *workers;
	struct checkpoint_id id;
	struct rewrite_part *parts;
	uint32_t n_parts;
	struct commit_file *commit;
	bool no_commit;     /* there is none that can be read */
	bool files_suffice; /* to make it */
	bool sufficed;      /* they did */
	bool folder_away;   /* when it failed */
	const struct rewrite_part *bad_memory; /* NULL: it matches */
	struct err err;
};

/* ---- On a worker ---- */

static int check_part(struct rewrite *x, const struct rewrite_part *p)
{
	struct rank_table t;
	int r = rank_table_open(p->table, p->table_len, &t, &x->err);

	for (uint64_t i = 0; r == 0 && i < t.n_leaves && !BUG(REWRITE_UNCHECKED); i++) {
		uint64_t at = i * t.geometry.leaf;
		struct digest want = rank_table_leaf(&t, i);
		struct digest have =
			digest_of(p->image + at, min_u64(t.geometry.leaf, t.image_len - at));

		if (digest_equal(&want, &have))
			continue;
		x->bad_memory = p;
		r = err_set(&x->err, CKPT_ECORRUPT,
			    "leaf %llu of rank %u does not match its digest in memory either",
			    (unsigned long long)i, p->rank);
	}
	return r;
}

/* Which leaves the damaged file has, where that can still be read: the same ones make the same
 * footer, so that COMMIT fits the new file as it did the old one. */
static void open_damaged(struct rewrite *x, const struct rewrite_part *p, struct shard_reader *ret)
{
	*ret = (struct shard_reader){0};
	if (p->old)
		ignore_result(shard_open(x->store, &x->id, p->old, ret, NULL));
}

static int write_part(struct rewrite *x, const struct rewrite_part *p)
{
	struct disk_queue *q = x->workers->ops->queue(x->workers);
	struct shard_writer *w = NULL;
	struct shard_reader damaged;
	int r;

	open_damaged(x, p, &damaged);
	r = shard_begin_again(x->store, &x->id, p->rank, p->image_len, p->table_max,
			      damaged.present, &w, &x->err);
	if (r == 0) {
		r = shard_write_image(w, q, p->image, p->element, &x->work.cancel, &x->err);
		if (r < 0)
			shard_abandon(w);
		else
			r = shard_finish(w, p->table, p->table_len, &x->commit->shards[p->rank],
					 &x->err);
	}
	shard_close(&damaged);
	return r;
}

/* COMMIT from the files as they are. CKPT_ECORRUPT: they do not suffice. */
static int make_commit(struct rewrite *x)
{
	enum shards_state state = SHARDS_DAMAGED;
	int r = commit_rebuild(x->store, x->commit, &state, &x->err);

	return r == 0 && state != SHARDS_WHOLE ? CKPT_ECORRUPT : r;
}

static bool same_footer(const struct shard_footer *a, const struct shard_footer *b)
{
	return a->rank == b->rank && a->footer_offset == b->footer_offset &&
	       a->footer_len == b->footer_len && digest_equal(&a->footer, &b->footer) &&
	       a->table_len == b->table_len && digest_equal(&a->table, &b->table) &&
	       a->stored == b->stored;
}

/* The COMMIT that is there. */
static bool commit_fits(struct rewrite *x)
{
	struct commit_file there;
	bool fits;

	if (commit_read(x->store, &x->id, &there, NULL) < 0)
		return false;
	fits = there.world == x->commit->world;
	for (uint32_t r = 0; fits && r < there.world; r++)
		fits = same_footer(&there.shards[r], &x->commit->shards[r]);
	commit_file_fini(&there);
	return fits;
}

static int publish(struct rewrite *x)
{
	if (x->no_commit)
		return make_commit(x);
	return commit_fits(x) ? 0 : commit_publish(x->store, x->commit, &x->err);
}

static int rewrite_files(struct rewrite *x)
{
	int r = 0;

	for (uint32_t i = 0; i < x->n_parts && r == 0; i++)
		r = check_part(x, &x->parts[i]);
	for (uint32_t i = 0; i < x->n_parts && r == 0; i++)
		r = work_cancelled(&x->work) ? -ECANCELED : write_part(x, &x->parts[i]);
	for (uint32_t i = 0; i < x->n_parts && r == 0; i++)
		r = shard_replace(x->store, &x->id, &x->commit->shards[x->parts[i].rank], &x->err);
	return r < 0 ? r : publish(x);
}

static void rewrite_run(struct work *w)
{
	struct rewrite *x = container_of(w, struct rewrite, work);
	int r = x->files_suffice ? make_commit(x) : CKPT_ECORRUPT;

	x->sufficed = r == 0;
	if (r == CKPT_ECORRUPT) {
		err_clear(&x->err);
		r = rewrite_files(x);
	}
	if (r == 0) /* it is told DURABLE again */
		r = node_check_folder(x->checkpoint->job->node, &x->err);
	x->folder_away = r < 0 && node_check_folder(x->checkpoint->job->node, &x->err) < 0;
	/* They would hold the room that may be what was missing. */
	for (uint32_t i = 0; i < x->n_parts && r < 0; i++)
		shard_forget_again(x->store, &x->id, x->parts[i].rank);
	w->status = r;
}

/* ---- On the loop ---- */

static void rewrite_free(struct rewrite *x)
{
	if (x->commit) {
		commit_file_fini(x->commit);
		alloc_free(x->commit);
	}
	alloc_free(x->parts);
	alloc_free(x);
}

static void files_are_good(struct rewrite *x)
{
	struct checkpoint *c = x->checkpoint;

	checkpoint_has_files(c, x->commit);
	x->commit = NULL;
	for (uint32_t i = 0; i < x->n_parts; i++)
		c->shards[x->parts[i].rank].bad_file = false;
	c->commit_gone = c->files_suffice = false;
	c->reread_disk = false;
	c->rewrite_tries = 0;
	/* A load that began meanwhile may have found another rank's damaged. */
	c->disk_suspect = false;
	for (uint32_t r = 0; r < c->world; r++)
		c->disk_suspect = c->disk_suspect || c->shards[r].bad_file;
	if (!c->disk_suspect)
		c->reason[0] = '\0';
	indexing_put(c);
	if (x->sufficed) {
		job_tell_step(c->job, c->step, 4,
			      "step %llu has its COMMIT again, made from its files and the log",
			      (unsigned long long)c->step);
		return;
	}
	c->job->rewritten += x->n_parts;
	job_tell_step(c->job, c->step, 4,
		      "step %llu: %u of its files were damaged and are written again from memory",
		      (unsigned long long)c->step, x->n_parts);
}

static void failed(struct rewrite *x, int status)
{
	struct checkpoint *c = x->checkpoint;

	job_tell_step(c->job, c->step, 3,
		      "step %llu: its damaged files cannot be written again: %s",
		      (unsigned long long)c->step, x->err.text);
	if (x->bad_memory) {
		c->shards[x->bad_memory->rank].slot->state = SLOT_QUARANTINED;
		c->memory = false;
	} else if (x->folder_away) {
		persist_wait_for_folder(c, &x->err);
	} else if (persist_wants_room(status)) {
		persist_wait_for_room(c, &x->err);
	} else {
		c->rewrite_tries++;
	}
}

static void rewrite_done(struct work *w)
{
	struct rewrite *x = container_of(w, struct rewrite, work);
	struct checkpoint *c = x->checkpoint;
	struct job *j = c->job;

	j->rewrite = NULL;
	j->node->works--;
	c->works--;
	if (w->status == 0)
		files_are_good(x);
	else
		failed(x, w->status);
	rewrite_free(x);
	job_poke(j);
	node_stop_step(j->node);
}

void rewrite_cancel(struct job *j)
{
	if (j->rewrite)
		atomic_store(&j->rewrite->work.cancel, true);
}

bool rewrite_gave_up(const struct checkpoint *c)
{
	return c->rewrite_tries >= REWRITE_TRIES;
}

bool rewrite_may_help(const struct checkpoint *c)
{
	if (c->agreed != CP_COMMITTED || c->durable != DUR_DONE || !c->disk_suspect ||
	    rewrite_gave_up(c) || (c->trust & TRUST_BAD))
		return false;
	for (uint32_t r = 0; r < c->world; r++)
		if (!checkpoint_file_is_good(c, r) && !checkpoint_memory_is_good(c, r))
			return false;
	return true;
}

static void fill_part(struct rewrite *x, uint32_t rank)
{
	struct checkpoint *c = x->checkpoint;
	struct shard_state *sh = &c->shards[rank];

	x->parts[x->n_parts++] = (struct rewrite_part){
		.rank = rank,
		.element = x->store->compression ? sh->declared->element : 0,
		.image = sh->slot->region->base,
		.image_len = sh->image_len,
		.table_max = persist_table_bound(sh, c->job->node->options.geometry.leaf),
		.table = sh->table,
		.table_len = sh->table_len,
		.old = c->commit ? &c->commit->shards[rank] : NULL,
	};
}

static void rewrite_start(struct checkpoint *c)
{
	struct rewrite *x = alloc_zero(sizeof(*x));
	struct job *j = c->job;

	if (x)
		x->parts = alloc_array(c->world, sizeof(*x->parts));
	if (!x || !x->parts || persist_describe(c, &x->commit) < 0) {
		if (x)
			rewrite_free(x);
		c->rewrite_tries++;
		job_poke(j);
		return;
	}
	x->checkpoint = c;
	x->store = &j->node->store;
	x->workers = j->node->env.workers;
	x->id = x->commit->id;
	x->no_commit = !c->commit;
	x->files_suffice = c->files_suffice;
	for (uint32_t r = 0; r < c->world; r++) {
		if (checkpoint_file_is_good(c, r))
			x->commit->shards[r] = c->commit->shards[r];
		else
			fill_part(x, r);
	}
	assert(x->n_parts > 0);
	j->rewrite = x;
	j->node->works++;
	c->works++;
	x->work.run = rewrite_run;
	x->work.done = rewrite_done;
	job_submit(j, WORK_DATA, &x->work);
}

/* Records that wait for the log touch neither files nor memory: a disk that refuses them for
 * seconds is the one whose files want to be written again. */
static bool in_use(const struct checkpoint *c)
{
	return c->readers > 0 || c->works > c->saying + epoch_is_opening_from(c);
}

/* The newest first: it is what the next launch begins with. */
void rewrite_step(struct job *j)
{
	struct checkpoint *c, *pick = NULL;

	if (j->rewrite)
		return;
	list_each(c, &j->checkpoints, link)
		if (rewrite_may_help(c) && !c->no_room && !in_use(c) &&
		    (!pick || c->record_n > pick->record_n))
			pick = c;
	if (pick)
		rewrite_start(pick);
}
