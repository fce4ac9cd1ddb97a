/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reading.c - a durable checkpoint opened by a tool: its ranks and its tensors. What is fetched of
 * them is in reading_fetch.c.
 *
 * 1. The shared lock of a shard file is held from its first opening to reading_close(), also while
 *    its tables are dropped: the descriptor that stays keeps the lock, so that no file is recycled
 *    meanwhile (I12).
 * 2. Tables are loaded through storage/shard_reader.c, each time again: nothing of them is used
 *    that does not lead to the root (I2).
 *
 * One thread.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/alloc.h"
#include "codec/digest.h"
#include "tools/document.h"
#include "tools/job_name.h"
#include "tools/plural.h"
#include "tools/reading_ranks.h"

#define MEMORY_DEFAULT (64u << 20)

/* ---- Which checkpoint ---- */

static bool is_meant(const struct data_checkpoint *c, uint64_t step, const char *hex)
{
	char id[ID_TEXT_MAX];

	hex_format(id, c->id.attempt.b, sizeof(c->id.attempt.b));
	return c->id.step == step && strncmp(id, hex, strlen(hex)) == 0;
}

static bool is_usable(const struct data_checkpoint *c)
{
	return c->state == FILES_DURABLE || c->state == FILES_UNLOGGED;
}

static uint32_t trust_of(const struct data_checkpoint *c)
{
	return c->logged ? c->logged->trust : TRUST_LATEST;
}

static int no_checkpoint(const struct reading *r, const char *spec, enum trust_level least,
			 struct err *e)
{
	if (!spec && least > TRUST_LATEST && data_latest(r->job))
		return err_set(e, CKPT_ENOTFOUND,
			       "job '%s' has no durable checkpoint that is %s: 'ckptctl trust %s' "
			       "shows what it has",
			       r->job->name, trust_word(least), r->job->name);
	if (!spec)
		return err_set(e, CKPT_ENOTFOUND,
			       "job '%s' has no durable checkpoint in '%.150s': what is only in "
			       "memory is not read from here",
			       r->job->name, r->data.path);
	return err_set(e, CKPT_ENOTFOUND,
		       "job '%s' has no durable checkpoint %.60s in '%.150s': 'ckptctl list %s "
		       "--data %.100s' shows what it has there",
		       r->job->name, spec, r->data.path, r->job->name, r->data.path);
}

static int choose(struct reading *r, const struct reading_options *o, struct err *e)
{
	const struct data_checkpoint *found = NULL;
	struct data_job *job = NULL;
	const char *hex = "";
	uint64_t step = 0;
	int rc = job_name_only(&r->data, o->job, &job, e);

	r->job = job;
	if (rc == 0 && o->step)
		rc = spec_parse(o->step, &step, &hex, e);
	if (rc < 0)
		return rc;
	r->checkpoint = o->step ? NULL : data_trusted(r->job, o->least);
	for (size_t i = 0; o->step && i < r->job->n_checkpoints; i++) {
		const struct data_checkpoint *c = &r->job->checkpoints[i];

		if (!is_meant(c, step, hex))
			continue;
		if (is_usable(c) && r->checkpoint)
			return err_set(e, -EINVAL,
				       "job '%s' has several checkpoints %.60s: give more of the "
				       "attempt, STEP.ATTEMPT",
				       r->job->name, o->step);
		found = c;
		if (is_usable(c))
			r->checkpoint = c;
	}
	if (!r->checkpoint && found)
		return err_set(e, found->why.code, "checkpoint %.60s of job '%s': %s", o->step,
			       r->job->name, found->why.text);
	if (r->checkpoint && o->least > TRUST_LATEST &&
	    !trust_reaches(trust_of(r->checkpoint), o->least))
		return err_set(e, CKPT_ENOTFOUND, "checkpoint %.60s of job '%s' is %s, not %s",
			       o->step, r->job->name, trust_word(trust_of(r->checkpoint)),
			       trust_word(o->least));
	return r->checkpoint ? 0 : no_checkpoint(r, o->step, o->least, e);
}

/* ---- Ranks ---- */

static uint64_t tables_of(const struct reading *r, uint32_t rank)
{
	return r->checkpoint->commit.shards[rank].footer_len;
}

static void unload(struct reading *r, uint32_t rank)
{
	struct reading_rank *k = &r->ranks[rank];

	if (!k->loaded)
		return;
	shard_close(&k->shard);
	k->loaded = false;
	r->tables -= tables_of(r, rank);
}

/* Of the ranks that no fetch uses, those used longest ago, until `more` bytes fit. */
static void make_room(struct reading *r, uint64_t more)
{
	while (r->tables && r->tables + more > r->tables_max) {
		uint32_t oldest = UINT32_MAX;

		for (uint32_t i = 0; i < r->checkpoint->commit.world; i++)
			if (r->ranks[i].loaded && r->ranks[i].used < r->now &&
			    (oldest == UINT32_MAX || r->ranks[i].used < r->ranks[oldest].used))
				oldest = i;
		if (oldest == UINT32_MAX)
			return;
		unload(r, oldest);
	}
}

/* (1): one descriptor stays, which shares the lock. */
static int keep_descriptor(struct reading_rank *k, uint32_t rank, struct err *e)
{
	const struct disk_ops *ops = k->shard.file->disk->ops;
	int fd = ops->export_fd(k->shard.file);

	if (fd < 0)
		return err_code(e, fd, "keep the file of rank %u open", rank);
	ops->close(k->shard.file);
	k->shard.file = NULL;
	if (k->fd >= 0)
		close(k->fd);
	k->fd = fd;
	return 0;
}

int reading_load(struct reading *r, uint32_t rank, struct err *e)
{
	const struct data_checkpoint *c = r->checkpoint;
	struct reading_rank *k = &r->ranks[rank];
	int rc;

	assert(rank < c->commit.world);
	k->used = r->now;
	if (k->loaded)
		return 0;
	make_room(r, tables_of(r, rank));
	rc = shard_open(&r->data.store, &c->id, &c->commit.shards[rank], &k->shard, e);
	if (rc < 0)
		return rc;
	k->loaded = true;
	r->tables += tables_of(r, rank);
	rc = keep_descriptor(k, rank, e);
	if (rc < 0)
		unload(r, rank);
	return rc;
}

const struct rank_table *reading_table(struct reading *r, uint32_t rank)
{
	r->now++;
	return reading_load(r, rank, NULL) < 0 ? NULL : &r->ranks[rank].shard.table;
}

/* One for each rank, of each checkpoint that is open, and what else there is: all that may be. */
static void allow_files(void)
{
	struct rlimit l;

	if (getrlimit(RLIMIT_NOFILE, &l) < 0)
		return;
	l.rlim_cur = l.rlim_max;
	ignore_result(setrlimit(RLIMIT_NOFILE, &l)); /* opening says so if it is not enough */
}

/* ---- Tensors ---- */

static size_t hash_slot(const struct reading *r, const char *name, uint32_t len)
{
	struct digest d = digest_of(name, len);

	return (size_t)get_le64(d.b) & (r->n_slots - 1);
}

/* The slot of this name, or the free one where it belongs. */
static uint32_t *find_slot(const struct reading *r, const char *name, uint32_t len)
{
	size_t i = hash_slot(r, name, len);

	for (; r->slots[i]; i = (i + 1) & (r->n_slots - 1)) {
		const struct reading_tensor *t = &r->entries[r->slots[i] - 1].tensor;

		if (name_compare(t->name, t->name_len, name, len) == 0)
			break;
	}
	return &r->slots[i];
}

static int grow(void **array, size_t n, size_t *cap, size_t size)
{
	size_t more = *cap ? 2 * *cap : 64;
	uint64_t bytes;
	void *p;

	if (n < *cap)
		return 0;
	p = size_mul(more, size, &bytes) ? alloc_resize(*array, bytes) : NULL;
	if (!p)
		return -ENOMEM;
	*array = p;
	*cap = more;
	return 0;
}

/* At most half of the slots are taken. */
static int grow_slots(struct reading *r)
{
	size_t n = r->n_slots ? 2 * r->n_slots : 256;

	if (r->n_entries * 2 < r->n_slots)
		return 0;
	alloc_free(r->slots);
	r->slots = alloc_array(n, sizeof(*r->slots));
	r->n_slots = r->slots ? n : 0;
	if (!r->slots)
		return -ENOMEM;
	for (size_t i = 0; i < r->n_entries; i++) {
		const struct reading_tensor *t = &r->entries[i].tensor;

		*find_slot(r, t->name, t->name_len) = (uint32_t)i + 1;
	}
	return 0;
}

static int add_holder(struct reading *r, struct reading_entry *t, uint32_t rank)
{
	uint32_t at = (uint32_t)r->n_holders;
	void *list = r->holders;
	int rc;

	if (t->last != NO_HOLDER && r->holders[t->last].rank == rank)
		return 0;
	rc = at == NO_HOLDER ? -E2BIG
			     : grow(&list, r->n_holders, &r->cap_holders, sizeof(*r->holders));
	r->holders = list;
	if (rc < 0)
		return rc;
	r->holders[r->n_holders++] = (struct reading_holder){.rank = rank, .next = NO_HOLDER};
	if (t->last == NO_HOLDER)
		t->first = at;
	else
		r->holders[t->last].next = at;
	t->last = at;
	return 0;
}

static int add_entry(struct reading *r, const struct shard *s)
{
	struct reading_entry *t;
	void *list = r->entries;
	uint64_t elements = 0;
	int rc = r->n_entries == UINT32_MAX - 1 ? -E2BIG : grow_slots(r);

	if (rc == 0)
		rc = grow(&list, r->n_entries, &r->cap_entries, sizeof(*r->entries));
	r->entries = list;
	if (rc < 0)
		return rc;
	t = &r->entries[r->n_entries];
	*t = (struct reading_entry){.first = NO_HOLDER, .last = NO_HOLDER};
	t->tensor.name = alloc_copy(s->name, s->name_len);
	if (!t->tensor.name)
		return -ENOMEM;
	t->tensor.name_len = s->name_len;
	t->tensor.dtype = s->dtype;
	t->tensor.global = s->global;
	t->tensor.trained = s->trained;
	/* Declarations are checked: a shard's tensor has bytes that can be counted. */
	if (!shape_elements(&s->global, &elements) ||
	    !size_mul(elements, dtype_bytes(s->dtype), &t->tensor.bytes))
		t->tensor.bytes = UINT64_MAX;
	*find_slot(r, s->name, s->name_len) = (uint32_t)++r->n_entries;
	return 0;
}

static int say_disagree(const struct reading *r, const struct reading_entry *t,
			const struct shard *s, uint32_t rank, struct err *e)
{
	char name[NAME_TEXT_MAX], a[BOX_TEXT_MAX], b[BOX_TEXT_MAX];

	return err_set(e, CKPT_EMISMATCH,
		       "rank %u stores tensor '%s' as %s %s and rank %u as %s %s",
		       r->holders[t->first].rank, name_text(name, s->name, s->name_len),
		       dtype_name(t->tensor.dtype), shape_text(a, &t->tensor.global), rank,
		       dtype_name(s->dtype), shape_text(b, &s->global));
}

static int add_shard(struct reading *r, const struct shard *s, uint32_t rank, struct err *e)
{
	size_t i = reading_find(r, s->name, s->name_len);
	struct reading_entry *t;
	int rc = 0;

	if (i == SIZE_MAX) {
		rc = add_entry(r, s);
		i = r->n_entries - 1;
	}
	if (rc == 0) {
		t = &r->entries[i];
		if (t->first != NO_HOLDER &&
		    (t->tensor.dtype != s->dtype || t->tensor.global.ndim != s->global.ndim ||
		     memcmp(t->tensor.global.dim, s->global.dim,
			    s->global.ndim * sizeof(s->global.dim[0])) != 0))
			return say_disagree(r, t, s, rank, e);
		rc = add_holder(r, t, rank);
	}
	return rc < 0 ? err_code(e, rc, "list the tensors of rank %u", rank) : 0;
}

/* Its shards in declared order, which is the image's. */
static int add_rank(struct reading *r, uint32_t rank, struct err *e)
{
	CLEANUP_FREE uint32_t *sorted = NULL;
	const struct declaration *d;
	struct shard s;
	int rc;

	r->now++;
	rc = reading_load(r, rank, e);
	if (rc < 0)
		return rc;
	d = &r->ranks[rank].shard.table.declaration;
	sorted = alloc_array(d->n_shards, sizeof(*sorted));
	if (!sorted)
		return err_code(e, -ENOMEM, "list %u tensor%s of rank %u", d->n_shards,
				plural(d->n_shards), rank);
	for (uint32_t i = 0; i < d->n_shards; i++)
		sorted[declaration_order(d, i)] = i;
	for (uint32_t i = 0; i < d->n_shards && rc == 0; i++) {
		declaration_get(d, sorted[i], &s);
		rc = add_shard(r, &s, rank, e);
	}
	return rc;
}

size_t reading_find(const struct reading *r, const char *name, uint32_t name_len)
{
	uint32_t slot = r->n_slots ? *find_slot(r, name, name_len) : 0;

	return slot ? slot - 1 : SIZE_MAX;
}

/* ---- All of it ---- */

static int open_ranks(struct reading *r, struct err *e)
{
	uint32_t world = r->checkpoint->commit.world;
	int rc = 0;

	r->ranks = alloc_array(world, sizeof(*r->ranks));
	if (!r->ranks)
		return err_code(e, -ENOMEM, "open %u rank%s", world, plural(world));
	for (uint32_t i = 0; i < world; i++)
		r->ranks[i].fd = -1;
	allow_files();
	for (uint32_t i = 0; i < world && rc == 0; i++)
		rc = add_rank(r, i, e);
	return rc;
}

void reading_limit(struct reading *r, uint64_t memory, uint64_t tables)
{
	r->tables_max = tables ? tables : UINT64_MAX;
	r->memory = memory ? memory : MEMORY_DEFAULT;
}

static int find(struct reading *r, const struct reading_options *o, struct err *e)
{
	int rc = data_open(o->data, &r->data, e);

	if (rc == 0)
		rc = data_read_jobs(&r->data, o->job, e);
	return rc < 0 ? rc : choose(r, o, e);
}

int reading_choose(const struct reading_options *o, struct data *ret_data,
		   struct checkpoint_id *ret, struct err *e)
{
	struct reading r = {0};
	int rc = find(&r, o, e);

	if (rc < 0) {
		data_close(&r.data);
		return rc;
	}
	*ret = r.checkpoint->id;
	*ret_data = r.data;
	return 0;
}

int reading_open(const struct reading_options *o, struct reading **ret, struct err *e)
{
	struct reading *r = alloc_zero(sizeof(*r));
	int rc;

	if (!r)
		return err_code(e, -ENOMEM, "open a checkpoint of job '%.80s'", o->job);
	reading_limit(r, o->memory, o->tables);
	r->threads = o->threads;
	rc = find(r, o, e);
	if (rc == 0) {
		rc = open_ranks(r, e);
		if (rc < 0)
			err_wrap(e, rc, "step %" PRIu64 " of job '%s'", r->checkpoint->id.step,
				 r->job->name);
	}
	if (rc < 0) {
		reading_close(r);
		return rc;
	}
	*ret = r;
	return 0;
}

void reading_close(struct reading *r)
{
	if (!r)
		return;
	for (uint32_t i = 0; r->ranks && i < r->checkpoint->commit.world; i++) {
		unload(r, i);
		if (r->ranks[i].fd >= 0)
			close(r->ranks[i].fd);
	}
	for (size_t i = 0; i < r->n_entries; i++)
		alloc_free((void *)(uintptr_t)r->entries[i].tensor.name);
	alloc_free(r->ranks);
	alloc_free(r->entries);
	alloc_free(r->holders);
	alloc_free(r->slots);
	data_close(&r->data);
	alloc_free(r);
}

const struct commit_file *reading_commit(const struct reading *r)
{
	return &r->checkpoint->commit;
}

const char *reading_path(const struct reading *r)
{
	return r->data.path;
}

const char *reading_job(const struct reading *r)
{
	return r->job->name;
}

uint32_t reading_uid(const struct reading *r)
{
	return r->job->uid;
}

size_t reading_n_tensors(const struct reading *r)
{
	return r->n_entries;
}

const struct reading_tensor *reading_tensor(const struct reading *r, size_t i)
{
	assert(i < r->n_entries);
	return &r->entries[i].tensor;
}
