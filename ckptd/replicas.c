/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replicas.c - finding replicated shards of a layout, comparing their bytes before they are left
 * out of files.
 *
 *   LOOKING    which shards of the layout are replicated (model/dedup.h): on a CHECK worker, once
 *              per layout, as a rule before its first save
 *   SEALED     no shard is: the writer of the checkpoint goes on at once, nothing was waited for
 *   DIGESTED   parts are compared across their holders on CHECK workers: by the digests of leaves
 *              in the rank tables where the part begins at the same place of a leaf, else by
 *              digests taken over its bytes
 *   compared   which leaves each file holds: a part on which its holders agree is written by its
 *              writer, of the others each holder writes its own
 *
 * 1. Bytes are left out of a file only after they were found equal to those of the file that has
 *    them. Where memory or anything else fails, every file is whole, and it is said why: more is
 *    written than need be. A layout that could not be looked at is looked at again for the next
 *    checkpoint, but one of more than DEDUP_SHARDS_MAX shards.
 * 2. Holders that differ are told of as what may be silent corruption: one alarm per checkpoint,
 *    naming tensor, region and ranks. Nothing is judged and nothing is lost.
 * 3. Nothing of it is in COMMIT or the log: the placement table of each file says what it holds.
 * 4. The job's user is charged before it is looked for, for all that this may take, and afterwards
 *    for what is kept (USER_PLAN_BYTES).
 * 5. An orderly stop cancels a search that no file will wait for, and when half of its time is
 *    over all of them: files are whole then. Not earlier, as there may be no room for whole ones.
 *
 * Threads: the loop's, and what is said to run on workers, which read images and tables: both stay
 * for as long as the checkpoint is being written.
 */
#include <config.h>

#include "ckptd/replicas.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "ckptd/node_priv.h"
#include "ckptd/user.h"
#include "ckptd/watching.h"
#include "codec/digest.h"
#include "model/dedup.h"
#include "model/load_plan.h"
#include "model/table.h"

#define COMPARERS_MAX 16u

/* What is known of one layout. */
struct replicas {
	struct work work;
	struct job *job;
	uint32_t world, refs;
	struct digest *digests;     /* of the declarations */
	struct declared **declared; /* references while the work is under way; then NULL */
	struct user *user;          /* has taken so much (4); NULL: no user */
	uint64_t bytes;
	struct list link;  /* in node->seeking, until it is done */
	struct list waits; /* of struct replicas_wait, likewise */
	uint32_t writers;  /* checkpoints whose files wait for it, or have it */
	bool done;
	bool failed;         /* once done: want of memory, or of what the user may have */
	struct dedup *dedup; /* once done; NULL: no shard is replicated, or it is not known */
};

/* ---- Layouts ---- */

static void drop_declared(struct replicas *r)
{
	for (uint32_t i = 0; r->declared && i < r->world; i++)
		if (r->declared[i])
			declared_unref(r->job, r->declared[i]);
	alloc_free(r->declared);
	r->declared = NULL;
}

/* (4): what is more is given back. */
static void keep_bytes(struct replicas *r, uint64_t bytes)
{
	if (!r->user)
		return;
	assert(bytes <= r->bytes);
	user_give(r->user, USER_PLAN_BYTES, r->bytes - bytes);
	r->bytes = bytes;
}

static void replicas_unref(struct replicas *r)
{
	if (!r || --r->refs > 0)
		return;
	assert(list_empty(&r->waits));
	drop_declared(r);
	keep_bytes(r, 0);
	user_put(r->user);
	dedup_free(r->dedup);
	alloc_free(r->digests);
	alloc_free(r);
}

static void find_run(struct work *w)
{
	struct replicas *r = container_of(w, struct replicas, work);
	struct dedup_rank *ranks CLEANUP_FREE = alloc_array(r->world, sizeof(*ranks));

	w->status = -ENOMEM;
	if (!ranks)
		return;
	for (uint32_t i = 0; i < r->world; i++)
		ranks[i] = (struct dedup_rank){.rank = i, .declaration = r->declared[i]->view};
	w->status = FAULT(REPLICAS_SOUGHT)
			    ? -ENOMEM
			    : dedup_make(ranks, r->world, &w->cancel, &r->dedup, NULL);
}

static void tell_not_sought(const struct replicas *r, const char *why)
{
	job_tell(r->job, 3,
		 "what its ranks hold alike could not be looked for (%s): until it can, every file "
		 "is written whole",
		 why);
}

static void find_done(struct work *w)
{
	struct replicas *r = container_of(w, struct replicas, work);
	struct node *n = r->job->node;

	n->side_works--;
	list_del(&r->link);
	drop_declared(r);
	r->done = true;
	r->failed = w->status < 0;
	if (r->failed && w->status != -ECANCELED)
		tell_not_sought(r, err_text(w->status));
	if (r->dedup && r->dedup->n_parts == 0) {
		dedup_free(r->dedup);
		r->dedup = NULL;
	}
	keep_bytes(r, r->dedup ? min_u64(dedup_bytes(r->dedup), r->bytes) : 0);
	while (!list_empty(&r->waits)) {
		struct replicas_wait *x = list_first(&r->waits, struct replicas_wait, link);

		list_del(&x->link);
		x->known(x);
	}
	r->job->works--;
	job_poke(r->job);
	replicas_unref(r);
}

/* Nothing is known of it, and it is said why. */
static int refuse(struct replicas *r, int code, const char *why)
{
	r->done = true;
	r->failed = code != -E2BIG;
	if (code != -ECANCELED)
		tell_not_sought(r, why);
	return code;
}

/* (4) */
static int take_bytes(struct replicas *r, struct declared *const *declared)
{
	uint64_t n_shards = 0, bytes;
	struct err e = {0};
	char why[96];
	int code = 0;

	for (uint32_t i = 0; i < r->world; i++) /* no overflow: 2^32 ranks of 2^32 shards */
		n_shards += declared[i]->view.n_shards;
	if (!dedup_memory(n_shards, r->world, &bytes)) {
		snprintf(why, sizeof(why), "they are %llu shards, and it is among at most %u",
			 (unsigned long long)n_shards, DEDUP_SHARDS_MAX);
		return refuse(r, -E2BIG, why);
	}
	if (r->job->node->whole_files)
		code = -ECANCELED;
	else if (r->job->user)
		code = user_take(r->job->user, USER_PLAN_BYTES, bytes, "look for it", &e);
	if (code < 0)
		return refuse(r, code, e.text);
	r->user = r->job->user ? user_ref(r->job->user) : NULL;
	r->bytes = bytes;
	return 0;
}

static void find_start(struct replicas *r, struct declared *const *declared)
{
	for (uint32_t i = 0; i < r->world; i++) {
		r->declared[i] = declared[i];
		declared[i]->refs++;
	}
	r->refs++; /* the work's */
	r->job->works++;
	r->job->node->side_works++;
	list_add_tail(&r->job->node->seeking, &r->link);
	r->work.run = find_run;
	r->work.done = find_done;
	job_submit(r->job, WORK_CHECK, &r->work);
}

static struct replicas *replicas_new(struct job *j, struct declared *const *declared,
				     uint32_t world)
{
	struct replicas *r = alloc_zero(sizeof(*r));

	if (!r)
		return NULL;
	list_init(&r->waits);
	list_init(&r->link);
	r->job = j;
	r->world = world;
	r->refs = 1;
	r->digests = alloc_array(world, sizeof(*r->digests));
	r->declared = alloc_array(world, sizeof(*r->declared));
	if (!r->digests || !r->declared) {
		replicas_unref(r);
		return NULL;
	}
	for (uint32_t i = 0; i < world; i++)
		r->digests[i] = declared[i]->digest;
	if (take_bytes(r, declared) == 0)
		find_start(r, declared);
	return r;
}

static bool replicas_match(const struct replicas *r, struct declared *const *declared,
			   uint32_t world)
{
	if (!r || r->world != world)
		return false;
	for (uint32_t i = 0; i < world; i++)
		if (!digest_equal(&r->digests[i], &declared[i]->digest))
			return false;
	return true;
}

bool replicas_wanted(const struct node *n, uint32_t world)
{
	struct geometry g = n->options.geometry;

	return n->options.dedup && world > 1 && g.chunk / g.leaf <= CHUNK_LEAVES_MAX;
}

void replicas_step(struct job *j)
{
	uint32_t world = j->history.epoch.world, n = 0;
	struct declared **declared CLEANUP_FREE = NULL;
	struct member *m;

	if (j->node->stopping || (j->replicas && !j->replicas->done))
		return;
	if (!replicas_wanted(j->node, world) ||
	    (list_empty(&j->members) && !epoch_opens(j) && !j->persist && !j->lacks_room)) {
		replicas_fini(j); /* its user pays for it (4) */
		return;
	}
	list_each(m, &j->members, link)
		n += m->declared && m->rank < world;
	if (n < world)
		return;
	declared = alloc_array(world, sizeof(struct declared *));
	if (!declared)
		return; /* it is looked at when it is needed */
	list_each(m, &j->members, link)
		if (m->declared && m->rank < world)
			declared[m->rank] = m->declared;
	for (uint32_t i = 0; i < world; i++)
		if (!declared[i])
			return;
	if (replicas_match(j->replicas, declared, world))
		return;
	replicas_unref(j->replicas);
	j->replicas = replicas_new(j, declared, world);
}

struct replicas *replicas_hold(struct job *j, struct declared *const *declared, uint32_t world)
{
	if (!replicas_match(j->replicas, declared, world))
		return replicas_new(j, declared, world);
	j->replicas->refs++;
	return j->replicas;
}

/* The same, and once more what failed. */
static struct replicas *replicas_try(struct job *j, struct declared *const *declared,
				     uint32_t world)
{
	if (replicas_match(j->replicas, declared, world) && j->replicas->failed) {
		replicas_unref(j->replicas);
		j->replicas = replicas_new(j, declared, world);
		if (!j->replicas)
			return NULL;
	}
	return replicas_hold(j, declared, world);
}

void replicas_cancel(struct node *n, bool (*spare)(struct job *j))
{
	struct replicas *r;

	list_each(r, &n->seeking, link)
		if (!spare || (r->writers == 0 && !spare(r->job)))
			atomic_store_explicit(&r->work.cancel, true, memory_order_relaxed);
}

bool replicas_wait(struct replicas *r, struct replicas_wait *w)
{
	if (!r->done)
		list_add_tail(&r->waits, &w->link);
	return !r->done;
}

void replicas_give_back(struct replicas *r)
{
	replicas_unref(r);
}

const struct dedup *replicas_dedup(const struct replicas *r)
{
	assert(r->done);
	return r->dedup;
}

void replicas_fini(struct job *j)
{
	assert(!j->replicas || j->replicas->done);
	replicas_unref(j->replicas);
	j->replicas = NULL;
}

/* ---- One checkpoint ---- */

enum dividing_state { LOOKING, OPENING, COMPARING, SORTING, READY };

#define SAID_MAX 4u

/* Some of the ranks that hold a part, for a sentence. */
struct some_ranks {
	uint32_t n, rank[SAID_MAX]; /* n may be more */
};

/* Where holders of a part differ; the first part of those that a comparer had. */
struct difference {
	bool any;
	size_t part;
	uint64_t lo, hi; /* bytes of the shard, from the first to the last that differs */
	uint64_t parts;  /* that differ */
	struct some_ranks alike, others; /* as the first holder, or not */
};

struct comparer {
	struct work work;
	struct dividing *of;
	uint32_t number;
	struct difference found;
};

struct dividing {
	struct checkpoint *checkpoint;
	struct replicas *replicas;
	enum dividing_state state;
	struct rank_table *tables;
	const uint8_t **images;
	bool *apart; /* for each part: its holders differ */
	uint64_t **present;
	struct comparer comparers[COMPARERS_MAX];
	uint32_t n_comparers, running;
	struct work open, sort;
};

/* ---- On workers ---- */

/* To open a table is to digest it, and to compare its declaration: too much for the loop. */
static void open_run(struct work *w)
{
	struct dividing *s = container_of(w, struct dividing, open);
	const struct checkpoint *c = s->checkpoint;

	s->tables = alloc_array(c->world, sizeof(*s->tables));
	s->present = alloc_array(c->world, sizeof(*s->present));
	s->apart = alloc_array(s->replicas->dedup->n_parts, sizeof(*s->apart));
	w->status = s->tables && s->present && s->apart ? 0 : -ENOMEM;
	for (uint32_t i = 0; i < c->world && w->status == 0; i++)
		w->status = work_cancelled(w)
				    ? -ECANCELED
				    : rank_table_open_known(c->shards[i].table,
							    c->shards[i].table_len,
							    &c->shards[i].declared->view,
							    &s->tables[i], NULL);
}

struct range {
	const uint8_t *image;
	const struct rank_table *table;
	uint64_t at, bytes;
};

/* Both begin at the same place of a leaf: whole leaves by their digests, the ends byte by byte. */
static bool leaves_equal(const struct range *a, const struct range *b)
{
	uint64_t leaf = a->table->geometry.leaf, end = a->at + a->bytes;
	uint64_t first = div_up(a->at, leaf), last = end / leaf, head, n;

	if (first >= last)
		return memcmp(a->image + a->at, b->image + b->at, a->bytes) == 0;
	head = first * leaf - a->at;
	n = last - first;
	return memcmp(a->table->leaves + first * sizeof(struct digest),
		      b->table->leaves + div_up(b->at, leaf) * sizeof(struct digest),
		      n * sizeof(struct digest)) == 0 &&
	       memcmp(a->image + a->at, b->image + b->at, head) == 0 &&
	       memcmp(a->image + last * leaf, b->image + b->at + (last * leaf - a->at),
		      end - last * leaf) == 0;
}

static struct range range_of(const struct dividing *s, const struct dedup_part *p, uint32_t holder)
{
	const struct dedup_holder *h = &s->replicas->dedup->holders[p->first_holder + holder];

	return (struct range){.image = s->images[h->rank],
			      .table = &s->tables[h->rank],
			      .at = h->at + p->from,
			      .bytes = p->bytes};
}

/* Which bytes differ; all, where only digests do: somebody wrote to its slot meanwhile. */
static void find_bytes(const struct range *a, const struct range *b, struct difference *d,
		       uint64_t from)
{
	uint64_t lo = 0, hi = a->bytes;

	while (lo < hi && a->image[a->at + lo] == b->image[b->at + lo])
		lo++;
	while (hi > lo && a->image[a->at + hi - 1] == b->image[b->at + hi - 1])
		hi--;
	if (lo == hi) {
		lo = 0;
		hi = a->bytes;
	}
	d->lo = d->any ? min_u64(d->lo, from + lo) : from + lo;
	d->hi = d->any ? max_u64(d->hi, from + hi) : from + hi;
	d->any = true;
}

static void add_rank(struct some_ranks *s, uint32_t rank)
{
	if (s->n < SAID_MAX)
		s->rank[s->n] = rank;
	s->n++;
}

static void compare_part(struct dividing *s, size_t part, struct difference *d)
{
	const struct dedup_part *p = &s->replicas->dedup->parts[part];
	const struct dedup_holder *h = &s->replicas->dedup->holders[p->first_holder];
	struct range first = range_of(s, p, 0);
	uint64_t leaf = first.table->geometry.leaf;
	struct difference here = {.part = part};
	struct digest own;
	bool have_own = false;

	add_rank(&here.alike, h->rank);
	for (uint32_t i = 1; i < p->n_holders; i++) {
		struct range other = range_of(s, p, i);
		struct digest its;
		bool equal;

		if (first.at % leaf == other.at % leaf) {
			equal = leaves_equal(&first, &other);
		} else {
			if (!have_own)
				own = digest_of(first.image + first.at, first.bytes);
			have_own = true;
			its = digest_of(other.image + other.at, other.bytes);
			equal = digest_equal(&own, &its);
		}
		add_rank(equal ? &here.alike : &here.others, h[i].rank);
		if (!equal)
			find_bytes(&first, &other, &here, p->from);
	}
	if (!here.any || BUG(REPLICAS_NOT_COMPARED))
		return;
	s->apart[part] = true;
	here.parts = d->parts + 1;
	if (d->any)
		d->parts++;
	else
		*d = here;
}

static void compare_run(struct work *w)
{
	struct comparer *c = container_of(w, struct comparer, work);
	const struct dedup *d = c->of->replicas->dedup;

	for (size_t u = c->number; u < d->n_units && !work_cancelled(w); u += c->of->n_comparers)
		for (size_t i = 0; i < d->units[u].n_parts; i++)
			compare_part(c->of, d->units[u].first_part + i, &c->found);
	w->status = FAULT(REPLICAS_COMPARED) ? -EIO : 0;
	if (work_cancelled(w)) /* what it has not looked at is not alike for that */
		w->status = -ECANCELED;
}

static void sort_run(struct work *w)
{
	struct dividing *s = container_of(w, struct dividing, sort);
	const struct checkpoint *c = s->checkpoint;
	struct dedup_image *images CLEANUP_FREE = alloc_array(c->world, sizeof(*images));

	w->status = -ENOMEM;
	if (!images)
		return;
	for (uint32_t i = 0; i < c->world; i++)
		images[i] = (struct dedup_image){.declaration = &s->tables[i].declaration,
						 .image_len = s->tables[i].image_len};
	w->status = work_cancelled(w) ? -ECANCELED
				      : dedup_present(s->replicas->dedup, images, s->apart,
						      s->present);
}

/* ---- What differs, in words ---- */

/* "rank 1", "ranks 0, 1, 3, 7 and 4 more" */
static void say_ranks(const struct some_ranks *s, char *buf, size_t size)
{
	uint32_t said = (uint32_t)min_u64(s->n, SAID_MAX);
	int at = snprintf(buf, size, "rank%s", s->n == 1 ? "" : "s");

	for (uint32_t i = 0; i < said; i++)
		at += snprintf(buf + at, size - (size_t)at, "%s%u", i ? ", " : " ", s->rank[i]);
	if (s->n > said)
		snprintf(buf + at, size - (size_t)at, " and %u more", s->n - said);
}

static void say_region(const struct shard *shard, const struct difference *d, char *buf)
{
	uint64_t element = dtype_bytes(shard->dtype);
	struct box boxes[FLAT_BOXES_MAX];

	/* The first of the boxes that make it up. */
	if (flat_to_boxes(&shard->box, shard->start + d->lo / element,
			  shard->start + div_up(d->hi, element), boxes) > 0)
		box_text(buf, &boxes[0]);
}

/* Who is right of two is not known; of more the few are the odd ones, so all pairs are told. */
static void tell_detector(const struct checkpoint *c, const struct difference *d, const char *name)
{
	uint64_t others = min_u64(d->others.n, SAID_MAX), alike = min_u64(d->alike.n, SAID_MAX);

	for (uint64_t i = 0; i < others; i++)
		for (uint64_t k = 0; k < alike; k++)
			watching_differ(c, d->others.rank[i], d->alike.rank[k], name);
}

/* (2) */
static void tell(struct dividing *s, const struct difference *d)
{
	struct checkpoint *c = s->checkpoint;
	struct job *j = c->job;
	const struct dedup_part *p = &s->replicas->dedup->parts[d->part];
	uint32_t rank = s->replicas->dedup->holders[p->first_holder].rank;
	char name[NAME_TEXT_MAX], box[BOX_TEXT_MAX] = "[]", alike[80], others[80];
	struct shard shard;

	declaration_get(&s->tables[rank].declaration, p->shard, &shard);
	say_region(&shard, d, box);
	say_ranks(&d->alike, alike, sizeof(alike));
	say_ranks(&d->others, others, sizeof(others));
	j->replica_alarms++;
	j->replica_step = c->step;
	snprintf(j->replica_text, sizeof(j->replica_text),
		 "elements %.60s of tensor '%.80s' are not the same on %s as on %s", box,
		 name_text(name, shard.name, shard.name_len), others, alike);
	tell_detector(c, d, name);
	job_tell_step(
		j, c->step, 2,
		"step %llu: %s%s: silent corruption, or ranks give one name to tensors that are "
		"not the same; each rank's bytes are kept",
		(unsigned long long)c->step, j->replica_text,
		d->parts > 1 ? ", and it is not the only one" : "");
}

static void tell_differences(struct dividing *s)
{
	struct difference all = {0};

	for (uint32_t i = 0; i < s->n_comparers; i++) {
		const struct difference *d = &s->comparers[i].found;
		uint64_t parts = all.parts + d->parts;

		if (d->any && (!all.any || d->part < all.part))
			all = *d;
		all.parts = parts;
	}
	if (all.any && !s->checkpoint->replicas_told)
		tell(s, &all);
	s->checkpoint->replicas_told = s->checkpoint->replicas_told || all.any;
}

/* ---- On the loop ---- */

/* Every file is whole. */
static void give_up(struct dividing *s)
{
	for (uint32_t i = 0; s->present && i < s->checkpoint->world; i++)
		alloc_free(s->present[i]);
	alloc_free(s->present);
	s->present = NULL;
	s->state = READY;
}

static void tell_whole(const struct checkpoint *c, int why)
{
	job_tell_step(
		c->job, c->step, 3,
		"step %llu: what its ranks hold alike could not be compared (%s): every file is "
		"written whole",
		(unsigned long long)c->step, err_text(why));
}

static void fail(struct dividing *s, int status)
{
	if (status != -ECANCELED)
		tell_whole(s->checkpoint, status);
	give_up(s);
}

static void sort_done(struct work *w)
{
	struct dividing *s = container_of(w, struct dividing, sort);

	s->running--;
	if (w->status < 0)
		fail(s, w->status);
	s->state = READY;
	job_poke(s->checkpoint->job);
}

static void compare_done(struct work *w)
{
	struct dividing *s = container_of(w, struct comparer, work)->of;
	int status = 0;

	if (--s->running > 0)
		return;
	for (uint32_t i = 0; i < s->n_comparers && status == 0; i++)
		status = s->comparers[i].work.status;
	if (status < 0) {
		fail(s, status);
		job_poke(s->checkpoint->job);
		return;
	}
	tell_differences(s);
	s->state = SORTING;
	s->sort.run = sort_run;
	s->sort.done = sort_done;
	s->running++;
	job_submit(s->checkpoint->job, WORK_CHECK, &s->sort);
}

static void compare(struct dividing *s)
{
	struct workers *w = s->checkpoint->job->node->env.workers;
	uint64_t n = min_u64((uint64_t)work_width(w, WORK_CHECK), COMPARERS_MAX);

	s->state = COMPARING;
	s->n_comparers = (uint32_t)min_u64(n, s->replicas->dedup->n_units);
	s->running = s->n_comparers;
	for (uint32_t i = 0; i < s->n_comparers; i++) {
		struct comparer *c = &s->comparers[i];

		c->of = s;
		c->number = i;
		c->work.run = compare_run;
		c->work.done = compare_done;
		job_submit(s->checkpoint->job, WORK_CHECK, &c->work);
	}
}

static void open_done(struct work *w)
{
	struct dividing *s = container_of(w, struct dividing, open);

	s->running--;
	if (w->status == 0) {
		compare(s);
		return;
	}
	fail(s, w->status);
	job_poke(s->checkpoint->job);
}

static void open_tables(struct dividing *s)
{
	const struct checkpoint *c = s->checkpoint;

	s->images = alloc_array(c->world, sizeof(*s->images));
	if (!s->images) {
		fail(s, -ENOMEM);
		return;
	}
	for (uint32_t i = 0; i < c->world; i++)
		s->images[i] = c->shards[i].slot->region->base;
	s->state = OPENING;
	s->open.run = open_run;
	s->open.done = open_done;
	s->running++;
	job_submit(c->job, WORK_CHECK, &s->open);
}

struct dividing *dividing_start(struct checkpoint *c)
{
	struct declared **declared CLEANUP_FREE = NULL;
	struct dividing *s;

	if (!JOB_ASSERT(c->job, c->sealed))
		return NULL;
	if (!replicas_wanted(c->job->node, c->world))
		return NULL;
	declared = alloc_array(c->world, sizeof(struct declared *));
	s = alloc_zero(sizeof(*s));
	if (!declared || !s) {
		tell_whole(c, -ENOMEM);
		alloc_free(s);
		return NULL;
	}
	for (uint32_t i = 0; i < c->world; i++)
		declared[i] = c->shards[i].declared;
	s->checkpoint = c;
	s->replicas = replicas_try(c->job, declared, c->world);
	if (s->replicas)
		s->replicas->writers++;
	else
		tell_whole(c, -ENOMEM);
	if (!s->replicas || (s->replicas->done && !s->replicas->dedup)) {
		dividing_free(s);
		return NULL;
	}
	return s;
}

bool dividing_step(struct dividing *s)
{
	if (s->state == LOOKING && s->replicas->done && !s->replicas->dedup)
		s->state = READY;
	if (s->state == LOOKING && s->replicas->done && s->checkpoint->digested)
		open_tables(s);
	return s->state == READY;
}

void dividing_cancel(struct dividing *s)
{
	for (uint32_t i = 0; i < COMPARERS_MAX; i++)
		atomic_store_explicit(&s->comparers[i].work.cancel, true, memory_order_relaxed);
	atomic_store_explicit(&s->open.cancel, true, memory_order_relaxed);
	atomic_store_explicit(&s->sort.cancel, true, memory_order_relaxed);
}

bool dividing_busy(const struct dividing *s)
{
	return s->running > 0;
}

const uint64_t *dividing_present(const struct dividing *s, uint32_t rank)
{
	assert(s->state == READY);
	return s->present ? s->present[rank] : NULL;
}

void dividing_free(struct dividing *s)
{
	if (!s)
		return;
	give_up(s);
	if (s->replicas)
		s->replicas->writers--;
	replicas_unref(s->replicas);
	alloc_free(s->tables);
	alloc_free(s->images);
	alloc_free(s->apart);
	alloc_free(s);
}
