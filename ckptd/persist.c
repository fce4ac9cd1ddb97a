/* SPDX-License-Identifier: Apache-2.0 */
/*
 * persist.c - from memory to files: one checkpoint of a job at a time.
 *
 *   picked (SEALED)   what ranks hold alike is found (replicas.c); if there is nothing, at once:
 *                     each rank: WRITE its image (DATA worker), beside the digests
 *   DIGESTED          if there is: it is compared; each rank: WRITE what its file has to hold
 *                     each rank whose image is written: FINISH with its table (DATA worker)
 *   all finished and COMMITTED: PUBLISH objects and COMMIT (META worker) -> DURABLE
 *   then, after the answers: the index (INDEX worker), retention
 *
 * The one being written is never overtaken; of those that wait only the newest is kept (I7, I9),
 * and what is pinned: that comes before newer ones, oldest first.
 * A failure of any part abandons all files of the try and the folder is discarded; the checkpoint
 * is tried again from memory, PERSIST_TRIES times, in new files: a file whose sync failed is never
 * synced again. An attempt that is ABORTED meanwhile is cancelled the same way.
 *
 * A disk without room (beside storage.disk_reserve) is no failure of the try: it is not counted.
 * What retention can let go gives way, and it is tried again; if that is nothing,
 * whoever waits for DURABLE is told, and it is tried again when files have gone or after a while,
 * for as long as the checkpoint is in memory. Saves to memory go on meanwhile. So it is with a data
 * folder that is away: a try writes nothing before the folder is back.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "ckptd/goodput.h"
#include "ckptd/indexing.h"
#include "ckptd/job.h"
#include "ckptd/node_priv.h"
#include "ckptd/replicas.h"
#include "model/table.h"
#include "storage/layout_file.h"
#include "storage/object_uses.h"
#include "storage/recover.h"
#include "storage/shard_writer.h"

#define PERSIST_TRIES 3
#define ROOM_RETRY_NS 5000000000u
#define ROOM_SOON_NS  100000000u
#define EXPIRED_LATELY_NS 1000000000u

enum part_state { PART_WRITING, PART_WRITTEN, PART_FINISHING, PART_FINISHED, PART_FAILED };

struct persist_part {
	struct work work;
	struct persist *of;
	uint32_t rank;
	enum part_state state;
	struct shard_writer *writer;
	const void *image;
	uint64_t image_len, table_max;
	uint32_t element;
	const uint64_t *present; /* leaves that its file has to hold; NULL: all */
	const void *table;
	size_t table_len;
	struct shard_footer footer;
	struct err err;
};

struct persist {
	struct checkpoint *checkpoint;
	struct store *store;
	struct workers *workers;
	struct checkpoint_id id;
	struct persist_part *parts;
	uint32_t n_parts, running;
	struct dividing *dividing; /* NULL: every file is whole */
	bool writing;              /* parts were given to workers */
	bool failed, cancelled, publishing, over;
	struct work publish;
	bool published; /* the worker's: not beside the loop's, which are read as one word */
	bool folder_away; /* the worker's: when the try was given up */
	struct commit_file *commit;
	const void **declarations; /* of the ranks, for objects */
	size_t *declaration_lens;
	struct digest *declaration_digests;
	bool layout_stored;
	struct err err;
};

/* ---- On workers ---- */

static void write_run(struct work *w)
{
	struct persist_part *p = container_of(w, struct persist_part, work);
	struct persist *t = p->of;
	struct disk_queue *q = t->workers->ops->queue(t->workers);

	/* One that is away takes all of it, where nothing finds it again. */
	w->status = node_check_folder(t->checkpoint->job->node, &p->err);
	if (w->status < 0)
		return;
	w->status = shard_begin_partial(t->store, &t->id, p->rank, p->image_len, p->table_max,
					p->present, &p->writer, &p->err);
	if (w->status < 0)
		return;
	w->status = shard_write_image(p->writer, q, p->image, p->element, &w->cancel, &p->err);
}

static void finish_run(struct work *w)
{
	struct persist_part *p = container_of(w, struct persist_part, work);

	w->status = shard_finish(p->writer, p->table, p->table_len, &p->footer, &p->err);
	p->writer = NULL;
}

static void abandon_run(struct work *w)
{
	struct persist_part *p = container_of(w, struct persist_part, work);

	shard_abandon(p->writer);
	p->writer = NULL;
	w->status = 0;
}

static int publish_layout(struct persist *t)
{
	struct digest layout;
	int r = 0;

	for (uint32_t i = 0; i < t->n_parts && r == 0; i++)
		r = store_put_object(t->store, "declarations", &t->declaration_digests[i],
				     t->declarations[i], t->declaration_lens[i], &t->err);
	if (r == 0)
		r = layout_file_put(t->store, t->declaration_digests, t->n_parts, &layout, &t->err);
	/* The one that is committed came from the log. */
	if (r == 0 && !digest_equal(&layout, &t->commit->layout))
		r = err_set(&t->err, CKPT_ECORRUPT,
			    "its log names another layout than its ranks have declared");
	return r;
}

static void publish_run(struct work *w)
{
	struct persist *t = container_of(w, struct persist, publish);

	w->status = 0;
	t->published = true;
	objects_begin(t->store->uses);
	if (!t->layout_stored)
		w->status = publish_layout(t);
	if (w->status == 0)
		w->status = commit_publish(t->store, t->commit, &t->err);
	objects_end(t->store->uses);
	/* Behind the last fsync: it counts if the next start finds it (I7). */
	if (w->status == 0)
		w->status = node_check_folder(t->checkpoint->job->node, &t->err);
}

static void discard_run(struct work *w)
{
	struct persist *t = container_of(w, struct persist, publish);
	struct err e = {0};

	if (node_check_folder(t->checkpoint->job->node, &e) < 0) {
		t->folder_away = true;
		t->err = e;
	}
	/* What cannot be discarded now is discarded at the next start. */
	if (t->published) /* COMMIT may be there or not: it goes first (I10) */
		w->status = checkpoint_expire(t->store, &t->id, 0, NULL);
	else
		w->status = checkpoint_discard(t->store, &t->id, NULL);
}

/* ---- On the loop ---- */

static void persist_free(struct persist *t)
{
	dividing_free(t->dividing);
	if (t->commit) {
		commit_file_fini(t->commit);
		alloc_free(t->commit);
	}
	alloc_free(t->declarations);
	alloc_free(t->declaration_lens);
	alloc_free(t->declaration_digests);
	alloc_free(t->parts);
	alloc_free(t);
}

void persist_fini(struct job *j)
{
	struct persist *t = j->persist;

	for (uint32_t i = 0; t && i < t->n_parts; i++)
		if (t->parts[i].writer)
			shard_forget(t->parts[i].writer);
	if (t)
		persist_free(t);
	j->persist = NULL;
}

static void persist_over(struct persist *t)
{
	struct checkpoint *c = t->checkpoint;
	struct job *j = c->job;

	j->persist = NULL;
	c->persist = NULL;
	c->works--;
	persist_free(t);
	job_poke(j);
}

void persist_room(struct node *n)
{
	struct checkpoint *c;
	struct job *j;

	list_each(j, &n->jobs, link) {
		if (!j->lacks_room)
			continue;
		j->lacks_room = false;
		list_each(c, &j->checkpoints, link) {
			if (!c->no_room)
				continue;
			c->no_room = false;
			job_poke(j);
		}
	}
}

static void room_retry(struct timer *t)
{
	struct job *j = container_of(t, struct job, room_timer);

	j->sweep = true;
	j->say_later = false;
	job_poke(j);
	persist_room(j->node);
}

void persist_init(struct job *j)
{
	timer_init(&j->room_timer, room_retry);
}

bool persist_wants_room(int code)
{
	return code == CKPT_ENOSPACE || code == -ENOSPC || code == -EDQUOT;
}

/* Nothing says that it is back: it is looked for. */
void persist_wait_for_folder(struct checkpoint *c, const struct err *why)
{
	struct job *j = c->job;

	c->no_room = true;
	j->lacks_room = true;
	timer_arm(j->node->env.loop, &j->room_timer, loop_now(j->node->env.loop) + ROOM_RETRY_NS);
	problems_folder_away(j, c->step, why->text);
}

void persist_wait_for_room(struct checkpoint *c, const struct err *why)
{
	struct job *j = c->job;
	uint64_t now = loop_now(j->node->env.loop);
	/* Files that have gone may be open for a moment, by what was reading them again. Without
	 * the log nothing goes, and tries would keep the memory from newer saves (I14). */
	bool soon = !job_log_down(j) &&
		    (retain_make_room(j) ||
		     (j->expired_ns > 0 && now - j->expired_ns < EXPIRED_LATELY_NS));

	c->no_room = true;
	j->lacks_room = true;
	timer_arm(j->node->env.loop, &j->room_timer, now + (soon ? ROOM_SOON_NS : ROOM_RETRY_NS));
	if (soon)
		return;
	problems_disk_full(j, c->step, why->text);
}

static void persist_failed(struct checkpoint *c)
{
	c->persist_tries++;
	c->durable = c->persist_tries < PERSIST_TRIES ? DUR_NONE : DUR_FAILED;
	job_tell_step(c->job, c->step, 3, "write step %llu to disk, try %u of %d: %s",
		      (unsigned long long)c->step, c->persist_tries, PERSIST_TRIES, c->reason);
}

static void discard_done(struct work *w)
{
	struct persist *t = container_of(w, struct persist, publish);
	struct checkpoint *c = t->checkpoint;

	if (c->agreed != CP_ABORTED && t->cancelled) {
		c->durable = DUR_NONE;
	} else if (c->agreed != CP_ABORTED) {
		snprintf(c->reason, sizeof(c->reason), "%.*s", REASON_MAX, t->err.text);
		if (t->folder_away) {
			c->durable = DUR_NONE;
			persist_wait_for_folder(c, &t->err);
		} else if (persist_wants_room(t->err.code)) {
			c->durable = DUR_NONE;
			persist_wait_for_room(c, &t->err);
		} else {
			persist_failed(c);
		}
		if (c->durable == DUR_NONE)
			c->wait_durable = true; /* again, if nothing newer comes */
	}
	persist_over(t);
}

/* All parts have stopped: give up what was written. */
static void persist_discard(struct persist *t)
{
	struct err why = t->err;

	for (uint32_t i = 0; i < t->n_parts; i++) {
		struct persist_part *p = &t->parts[i];

		if (!p->writer)
			continue;
		p->state = PART_FAILED;
		p->work.run = abandon_run;
		t->running++;
		job_submit(t->checkpoint->job, WORK_DATA, &p->work);
	}
	if (t->running)
		return;
	t->over = true;
	t->err = why;
	t->publish.run = discard_run;
	t->publish.done = discard_done;
	job_submit(t->checkpoint->job, WORK_META, &t->publish);
}

static void publish_done(struct work *w)
{
	struct persist *t = container_of(w, struct persist, publish);
	struct checkpoint *c = t->checkpoint;
	struct job *j = c->job;

	t->publishing = false;
	if (w->status < 0) {
		t->failed = true;
		persist_discard(t);
		return;
	}
	c->durable = DUR_DONE;
	c->recyclable = true;
	goodput_was_durable(c);
	c->reason[0] = '\0';
	problems_disk_written(c);
	checkpoint_has_files(c, t->commit);
	t->commit = NULL;
	j->last_durable_step = c->step;
	if (!t->layout_stored && j->layouts_stored < 8)
		j->stored_layouts[j->layouts_stored++] = c->layout;
	indexing_put(c);
	persist_over(t);
}

int persist_describe(const struct checkpoint *c, struct commit_file **ret)
{
	struct job *j = c->job;
	struct commit_file *f = alloc_zero(sizeof(*f));
	struct record job_record = { .type = RECORD_JOB, .job = j->history.job };
	size_t len = 0;

	if (!f)
		return -ENOMEM;
	job_id_of(j, c->step, &c->attempt, &f->id);
	memcpy(f->job_name, j->history.job.name, sizeof(f->job_name));
	f->uid = j->history.job.uid;
	f->incarnation = j->history.incarnation;
	f->record_n = c->record_n;
	f->epoch = c->epoch;
	f->wall_ns = c->wall_ns;
	f->root = c->root;
	f->layout = c->layout;
	f->world = c->world;
	f->bytes = c->bytes;
	f->shards = alloc_array(c->world, sizeof(*f->shards));
	if (!f->shards || record_encode(&job_record, &f->job_record, &len) < 0) {
		commit_file_fini(f);
		alloc_free(f);
		return -ENOMEM;
	}
	f->job_record_len = (uint32_t)len;
	*ret = f;
	return 0;
}

static int fill_commit(struct persist *t)
{
	int r = persist_describe(t->checkpoint, &t->commit);

	for (uint32_t i = 0; r == 0 && i < t->n_parts; i++)
		t->commit->shards[i] = t->parts[i].footer;
	return r;
}

static void persist_publish(struct persist *t)
{
	struct checkpoint *c = t->checkpoint;

	for (uint64_t i = 0; i < c->job->layouts_stored; i++)
		if (digest_equal(&c->job->stored_layouts[i], &c->layout))
			t->layout_stored = true;
	if (fill_commit(t) < 0) {
		t->failed = true;
		err_code(&t->err, -ENOMEM, "publish step %llu", (unsigned long long)c->step);
		persist_discard(t);
		return;
	}
	t->publishing = true;
	t->publish.run = publish_run;
	t->publish.done = publish_done;
	job_submit(t->checkpoint->job, WORK_META, &t->publish);
}

static void part_done(struct work *w)
{
	struct persist_part *p = container_of(w, struct persist_part, work);
	struct persist *t = p->of;

	t->running--;
	if (w->status < 0) {
		p->state = PART_FAILED;
		if (!t->failed)
			t->err = p->err;
		t->failed = true;
	} else if (p->state == PART_WRITING) {
		p->state = PART_WRITTEN;
	} else if (p->state == PART_FINISHING) {
		p->state = PART_FINISHED;
	}
	job_poke(t->checkpoint->job);
}

static void part_finish(struct persist_part *p)
{
	struct shard_state *sh = &p->of->checkpoint->shards[p->rank];

	if (!JOB_ASSERT(p->of->checkpoint->job, sh->table))
		return;
	p->table = sh->table;
	p->table_len = sh->table_len;
	p->state = PART_FINISHING;
	p->work.run = finish_run;
	p->of->running++;
	job_submit(p->of->checkpoint->job, WORK_DATA, &p->work);
}

bool persist_can(const struct checkpoint *c)
{
	if (c->releasing)
		return false;
	for (uint32_t i = 0; i < c->world; i++)
		if (!c->shards[i].slot || c->shards[i].slot->state == SLOT_QUARANTINED)
			return false;
	return true;
}

static void write_parts(struct persist *t)
{
	t->writing = true;
	t->running = t->n_parts;
	for (uint32_t i = 0; i < t->n_parts; i++) {
		if (t->dividing)
			t->parts[i].present = dividing_present(t->dividing, i);
		job_submit(t->checkpoint->job, WORK_DATA, &t->parts[i].work);
	}
}

static void persist_stop(struct persist *t)
{
	for (uint32_t i = 0; i < t->n_parts; i++)
		atomic_store(&t->parts[i].work.cancel, true);
	if (t->dividing)
		dividing_cancel(t->dividing);
	if (t->running == 0 && !(t->dividing && dividing_busy(t->dividing)))
		persist_discard(t);
}

void persist_hurry(struct job *j)
{
	if (j->persist && j->persist->dividing)
		dividing_cancel(j->persist->dividing);
}

static void persist_tick(struct persist *t)
{
	struct checkpoint *c = t->checkpoint;
	uint32_t finished = 0;

	if (t->over || t->publishing)
		return;
	if (t->failed || t->cancelled) {
		persist_stop(t);
		return;
	}
	if (!t->writing) {
		if (!dividing_step(t->dividing))
			return;
		write_parts(t);
	}
	for (uint32_t i = 0; i < t->n_parts; i++) {
		if (t->parts[i].state == PART_WRITTEN && c->shards[i].table)
			part_finish(&t->parts[i]);
		finished += t->parts[i].state == PART_FINISHED;
	}
	/* A leaf of its memory was found wrong meanwhile: what was written is not trusted. */
	if (finished == t->n_parts && !persist_can(c)) {
		t->failed = true;
		err_set(&t->err, CKPT_ECORRUPT, "its copy in memory was found damaged");
		persist_discard(t);
		return;
	}
	if (finished == t->n_parts &&
	    (c->agreed == CP_COMMITTED || (BUG(PUBLISH_BEFORE_COMMIT) && c->digested)))
		persist_publish(t);
}

bool persist_is_publishing(const struct checkpoint *c)
{
	return c->persist && c->persist->publishing;
}

void persist_cancel(struct checkpoint *c)
{
	if (c->persist)
		c->persist->cancelled = true;
}

/* ---- Starting ---- */

uint64_t persist_table_max(uint64_t declaration_len, uint64_t image_len, uint32_t leaf)
{
	return 4096 + declaration_len + 16 * div_up(image_len, leaf) + 16 * TABLE_SAMPLES_MAX;
}

uint64_t persist_table_bound(const struct shard_state *sh, uint32_t leaf)
{
	return persist_table_max(sh->declared->len, sh->image_len, leaf) +
	       64 * (uint64_t)sh->blobs->n + sh->blobs->names_len;
}

static int persist_fill(struct persist *t)
{
	struct checkpoint *c = t->checkpoint;

	t->parts = alloc_array(c->world, sizeof(*t->parts));
	t->declarations = alloc_array(c->world, sizeof(*t->declarations));
	t->declaration_lens = alloc_array(c->world, sizeof(*t->declaration_lens));
	t->declaration_digests = alloc_array(c->world, sizeof(*t->declaration_digests));
	if (!t->parts || !t->declarations || !t->declaration_lens || !t->declaration_digests)
		return -ENOMEM;
	t->n_parts = c->world;
	for (uint32_t i = 0; i < c->world; i++) {
		struct shard_state *sh = &c->shards[i];
		struct persist_part *p = &t->parts[i];

		p->of = t;
		p->rank = i;
		p->image = sh->slot->region->base;
		p->image_len = sh->image_len;
		p->table_max = persist_table_bound(sh, c->job->node->options.geometry.leaf);
		if (t->store->compression)
			p->element = sh->declared->element;
		p->work.run = write_run;
		p->work.done = part_done;
		t->declarations[i] = sh->declared->bytes;
		t->declaration_lens[i] = sh->declared->len;
		t->declaration_digests[i] = sh->declared->digest;
	}
	return 0;
}

static int persist_start(struct checkpoint *c)
{
	struct persist *t;

	if (!JOB_ASSERT(c->job, c->sealed && !c->persist && !c->job->persist))
		return -ECANCELED;
	t = alloc_zero(sizeof(*t));
	if (!t)
		return -ENOMEM;
	t->checkpoint = c;
	t->store = &c->job->node->store;
	t->workers = c->job->node->env.workers;
	job_id_of(c->job, c->step, &c->attempt, &t->id);
	if (persist_fill(t) < 0) {
		persist_free(t);
		return -ENOMEM;
	}
	c->persist = t;
	c->works++;
	c->job->persist = t;
	c->durable = DUR_WRITING;
	t->dividing = dividing_start(c);
	if (t->dividing)
		persist_tick(t);
	else
		write_parts(t);
	return 0;
}

/* How many commits, c the last of them, are newer than the newest durable one; 0: c is older. */
static uint32_t commits_behind(const struct checkpoint *c)
{
	const struct history *h = &c->job->history;
	uint32_t n = c->agreed != CP_COMMITTED; /* it would be the next */
	uint64_t durable = 0;
	struct checkpoint *o;

	list_each(o, &c->job->checkpoints, link)
		if (o->durable == DUR_DONE && !o->disk_suspect)
			durable = max_u64(durable, o->record_n);
	for (size_t i = 0; i < h->n_commits; i++)
		n += h->commits[i].n > durable &&
		     (c->agreed != CP_COMMITTED || h->commits[i].n <= c->record_n);
	return n;
}

/* Whether the policy, or somebody who waits, wants it on disk. */
static bool wanted(const struct checkpoint *c)
{
	const struct job *j = c->job;
	uint32_t every = j->node->options.persist_every;

	if (!c->sealed || c->durable == DUR_DONE || c->durable == DUR_FAILED ||
	    c->durable == DUR_GONE || c->no_room || !persist_can(c))
		return false;
	if (c->agreed == CP_ABORTED ||
	    (c->agreed == CP_OPEN && c->epoch != j->history.epoch.number))
		return false;
	/* It could not be published: those that could come first. */
	if (c->agreed != CP_COMMITTED && job_log_down(j))
		return false;
	if (c->wait_durable || c->pinned || j->node->stopping)
		return true;
	if (checkpoint_is_base(c))
		return true; /* every load of "latest" in this epoch is answered with it (I15) */
	return commits_behind(c) >= every;
}

/* Later in the log, or on its way there. */
static bool newer(const struct checkpoint *a, const struct checkpoint *b)
{
	if (a->agreed == CP_COMMITTED && b->agreed == CP_COMMITTED)
		return a->record_n > b->record_n;
	if (a->agreed == CP_COMMITTED || b->agreed == CP_COMMITTED)
		return b->agreed == CP_COMMITTED;
	return a->step > b->step;
}

/* Whoever pins asks for that one. An orderly stop is bounded: there the newest comes first. */
static bool comes_before(const struct checkpoint *a, const struct checkpoint *b)
{
	if (a->job->node->stopping || (!a->pinned && !b->pinned))
		return newer(a, b);
	return a->pinned && (!b->pinned || newer(b, a));
}

struct checkpoint *persist_now(struct job *j)
{
	struct checkpoint *c, *pick = NULL;

	list_each(c, &j->checkpoints, link)
		if (c->agreed == CP_COMMITTED && (!pick || newer(c, pick)))
			pick = c;
	if (!pick || pick->durable == DUR_DONE || pick->durable == DUR_GONE || !persist_can(pick))
		return NULL;
	if (pick->durable == DUR_FAILED) {
		pick->durable = DUR_NONE;
		pick->persist_tries = 0;
	}
	pick->wait_durable = true;
	job_poke(j);
	return pick;
}

void persist_step(struct job *j)
{
	struct checkpoint *c, *pick = NULL;

	if (j->persist)
		persist_tick(j->persist);
	list_each(c, &j->checkpoints, link) {
		if (c->durable == DUR_WANTED)
			c->durable = DUR_NONE; /* chosen anew each time: only the newest waits */
		if (wanted(c) && !c->persist && (!pick || comes_before(c, pick)))
			pick = c;
	}
	if (!pick)
		return;
	pick->durable = DUR_WANTED;
	/* One that waits for its record is in the way of one that could be published. */
	if (j->persist && job_log_down(j) && pick->agreed == CP_COMMITTED &&
	    j->persist->checkpoint->agreed != CP_COMMITTED && !j->persist->cancelled) {
		j->persist->cancelled = true;
		job_poke(j);
	}
	if (!j->persist && persist_start(pick) < 0) {
		pick->durable = DUR_FAILED;
		snprintf(pick->reason, sizeof(pick->reason), "out of memory");
	}
}
