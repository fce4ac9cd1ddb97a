/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk_need.c - how much room the checkpoints of a job need on disk, and whether there is as much.
 *
 * 1. Counted is what its files reserve (storage/shard_writer.h), each with all the blobs that its
 *    rank may save. What several ranks declare alike is in the file of one of them, as replicas.c
 *    will write it where all holders agree. Where they do not, each writes its own, and where it
 *    cannot be compared every file is whole: more is written than was counted, and what finds no
 *    room then stays in memory until there is some (persist.c), as on any disk that fills up.
 *    Where replicas.c cannot look for it, files are counted whole.
 * 2. Ranks that have not declared yet are not counted. Until all have, the answer is a courtesy:
 *    the last one to prepare is told for all of them. So it may cost little: before that, large
 *    layouts are not looked through, and only the asking rank's own image is counted.
 * 3. Once all have declared, replicas.c looks for what is alike, once for all of them: it is
 *    waited for. So what a worker looks for itself is small (2), and needs no charge to its user.
 *    With what was found each Prepare counts the leaves of all ranks.
 * 4. Counted are as many as retention may keep that nothing makes give way: keep_last, the base of
 *    the epoch (in a job's first epoch, too: else a job that was let in could not be started
 *    again), the newest verified one and the next; and, where the job has gone back, the highest
 *    step. What is kept only while there is room goes before a Prepare is refused (preparing.c).
 *
 * Threads: what is asked of the job is put down on the loop, with references to declarations and to
 * what replicas.c has found, or will have; a worker only reads.
 */
#include <config.h>

#include "ckptd/disk_need.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "ckptd/node_priv.h"
#include "ckptd/replicas.h"
#include "model/dedup.h"
#include "model/leaves.h"
#include "storage/spare.h"

#define EARLY_SHARDS_MAX (1u << 16) /* of all ranks: 0.1 s and 10 MB (2) */

struct need_rank {
	uint32_t rank;
	struct declared *declared; /* a reference */
	uint64_t image_len;        /* at most */
};

struct disk_need {
	struct job *job;
	struct store *store;
	const char *data; /* its folder, for a sentence */
	uint32_t rank;    /* who asks */
	uint32_t keep_last, n_kept; /* checkpoints that stay, and all of them (4) */
	uint64_t reserve, have; /* bytes that stay free; that checkpoints hold which stay */
	uint64_t one;           /* out: that a checkpoint of these ranks takes */
	bool all;               /* every rank has declared */
	struct need_rank *ranks; /* by rank */
	uint32_t n_ranks;
	bool dedup;
	struct replicas *replicas; /* a reference; NULL: not all have declared (2) */
};

/* ---- On the loop ---- */

static int by_rank(const void *a, const void *b)
{
	const struct need_rank *x = a, *y = b;

	return (x->rank > y->rank) - (x->rank < y->rank);
}

static bool counts(const struct member *o, const struct member *m)
{
	return o == m || (o->alive && o->declared);
}

static void add_rank(struct disk_need *n, const struct member *o)
{
	n->ranks[n->n_ranks++] = (struct need_rank){
		.rank = o->rank, .declared = o->declared, .image_len = member_slot_bytes(o)};
	o->declared->refs++;
}

/* (3) */
static int take_replicas(struct disk_need *n)
{
	struct declared **declared CLEANUP_FREE = alloc_array(n->n_ranks, sizeof(*declared));

	if (!declared)
		return -ENOMEM;
	for (uint32_t i = 0; i < n->n_ranks; i++)
		declared[i] = n->ranks[i].declared;
	replicas_step(n->job); /* else it comes behind this */
	n->replicas = replicas_hold(n->job, declared, n->n_ranks);
	return n->replicas ? 0 : -ENOMEM;
}

/* Whether it is worth while to look through what the ranks have declared. */
static bool look(const struct member *m, bool all, uint64_t n_shards, uint64_t images)
{
	struct memory *memory = m->job->node->env.memory;
	uint64_t budget = 0;

	/* What memory cannot hold even once will be refused, or has been. */
	ignore_result(memory->ops->available(memory, &budget));
	return images <= budget && (all || n_shards <= EARLY_SHARDS_MAX);
}

static int take_ranks(struct disk_need *n, struct member *m)
{
	struct job *j = m->job;
	uint64_t n_ranks = 0, n_shards = 0, images = 0;
	struct member *o;
	bool all;

	list_each(o, &j->members, link) {
		if (!counts(o, m))
			continue;
		n_ranks++;
		n_shards += o->declared->view.n_shards;
		if (!size_add(images, member_slot_bytes(o), &images))
			images = UINT64_MAX;
	}
	n->ranks = alloc_array(n_ranks, sizeof(*n->ranks));
	if (!n->ranks)
		return -ENOMEM;
	all = n->all = n_ranks == j->history.epoch.world;
	n->dedup = replicas_wanted(j->node, j->history.epoch.world);
	if (n->dedup && !look(m, all, n_shards, images)) {
		n->dedup = false;
		if (!all) { /* (2) */
			add_rank(n, m);
			return 0;
		}
	}
	list_each(o, &j->members, link)
		if (counts(o, m))
			add_rank(n, o);
	qsort(n->ranks, n->n_ranks, sizeof(*n->ranks), by_rank);
	return n->dedup && all ? take_replicas(n) : 0;
}

uint32_t disk_need_kept(const struct node *n, bool went_back)
{
	uint32_t base = 1;

	return n->options.retention.keep_last + base + n->options.keep_verified + went_back;
}

struct disk_need *disk_need_new(struct member *m)
{
	struct disk_need *n = alloc_zero(sizeof(*n));
	struct job *j = m->job;
	struct retain_sum sum;

	assert(m->declared);
	if (!n)
		return NULL;
	n->job = j;
	n->store = &j->node->store;
	n->data = j->node->options.data;
	n->rank = m->rank;
	n->keep_last = j->node->options.retention.keep_last;
	n->reserve = j->node->options.disk_reserve;
	if (retain_count(j, &sum) < 0 || take_ranks(n, m) < 0) {
		disk_need_free(n);
		return NULL;
	}
	n->have = sum.kept;
	n->n_kept = disk_need_kept(j->node, sum.went_back);
	return n;
}

bool disk_need_wait(struct disk_need *n, struct replicas_wait *w)
{
	return n->replicas && replicas_wait(n->replicas, w);
}

void disk_need_free(struct disk_need *n)
{
	if (!n)
		return;
	for (uint32_t i = 0; i < n->n_ranks; i++)
		declared_unref(n->job, n->ranks[i].declared);
	if (n->replicas)
		replicas_give_back(n->replicas);
	alloc_free(n->ranks);
	alloc_free(n);
}

/* ---- On a worker ---- */

/* Which leaves each rank's file has to hold; the ranks stand for 0 to n_ranks - 1. */
static int divide(const struct disk_need *n, const atomic_bool *cancel, uint64_t **present)
{
	const struct dedup *d = n->replicas ? replicas_dedup(n->replicas) : NULL;
	struct dedup_image *images CLEANUP_FREE = alloc_array(n->n_ranks, sizeof(*images));
	struct dedup_rank *ranks CLEANUP_FREE = alloc_array(n->n_ranks, sizeof(*ranks));
	struct dedup *made = NULL;
	int r = images && ranks ? 0 : -ENOMEM;

	for (uint32_t i = 0; i < n->n_ranks && r == 0; i++) {
		const struct declared *declared = n->ranks[i].declared;

		ranks[i] = (struct dedup_rank){.rank = i, .declaration = declared->view};
		images[i] = (struct dedup_image){.declaration = &declared->view,
						 .image_len = n->ranks[i].image_len};
	}
	if (r == 0 && !n->replicas) {
		r = dedup_make(ranks, n->n_ranks, cancel, &made, NULL);
		d = made;
	}
	if (r == 0 && cancel && atomic_load_explicit(cancel, memory_order_relaxed))
		r = -ECANCELED;
	if (r == 0 && d && d->n_parts > 0)
		r = dedup_present(d, images, NULL, present);
	dedup_free(made);
	return r;
}

/* Bytes that the file of one rank may have; false: no such number. */
static bool file_bytes(const struct disk_need *n, uint32_t i, const uint64_t *present,
		       uint64_t *ret)
{
	const struct need_rank *k = &n->ranks[i];
	uint32_t leaf = n->store->geometry.leaf;

	return shard_file_max(n->store, k->image_len, leaves_bytes(present, k->image_len, leaf),
			      persist_table_max(k->declared->len, k->image_len, leaf), ret);
}

/* UINT64_MAX: more than there can be. */
static int checkpoint_bytes(const struct disk_need *n, const atomic_bool *cancel, uint64_t *ret)
{
	uint64_t **present CLEANUP_FREE = alloc_array(n->n_ranks, sizeof(*present));
	uint64_t sum = 0, bytes;
	int r = present ? 0 : -ENOMEM;

	if (r == 0 && n->dedup && n->n_ranks > 1)
		r = divide(n, cancel, present);
	for (uint32_t i = 0; i < n->n_ranks && r == 0; i++)
		if (!file_bytes(n, i, present[i], &bytes) || !size_add(sum, bytes, &sum))
			sum = UINT64_MAX;
	for (uint32_t i = 0; present && i < n->n_ranks; i++)
		alloc_free(present[i]);
	*ret = sum;
	return r;
}

uint64_t disk_need_more(uint64_t one, uint32_t n_kept, uint64_t have)
{
	uint64_t kept;

	if (!size_mul(one, n_kept, &kept))
		return UINT64_MAX;
	kept -= min_u64(kept, have);
	return size_add(one, kept, &one) ? one : UINT64_MAX;
}

/* Room that is there but is to stay free is the option's to give; fewer kept ones help only a job
 * that keeps several, and where one of them would fit. */
static const char *remedy(const struct disk_need *n, uint64_t one, uint64_t left, uint64_t needed)
{
	uint64_t least; /* with keep_last 1: what else stays, and the next one */
	bool fits = size_mul(one, n->n_kept - n->keep_last + 2, &least) && left > n->reserve &&
		    least - min_u64(least, n->have) <= left - n->reserve;
	bool keeps = n->keep_last > 1 && fits;
	bool reserves = needed <= left;

	if (keeps && reserves)
		return ", or set retention.keep_last or storage.disk_reserve lower";
	if (reserves)
		return ", or set storage.disk_reserve lower";
	return keeps ? ", or set retention.keep_last lower" : "";
}

int disk_need_admit(struct disk_need *n, const atomic_bool *cancel, struct err *e)
{
	struct disk *d = n->store->disk;
	uint64_t left = 0, total = 0, spare = spare_bytes(n->store), needed, want;
	int r = checkpoint_bytes(n, cancel, &n->one);

	if (r < 0)
		return err_code(e, r, "rank %u: look for what its job's ranks hold alike", n->rank);
	r = d->ops->space(d, &left, &total);
	if (r < 0)
		return err_code(e, r, "rank %u: ask for free space of the data folder", n->rank);
	if (!size_add(left, spare, &left)) /* these files give way */
		left = UINT64_MAX;
	needed = disk_need_more(n->one, n->n_kept, n->have);
	if (size_add(needed, n->reserve, &want) && want <= left)
		return 0;
	return err_set(
		e, CKPT_ENOSPACE,
		"rank %u: %u checkpoints of the ranks that have declared need %llu MiB "
		"more on disk, %llu MiB are free (%llu MiB of them spare files) and %llu MiB stay "
		"free (storage.disk_reserve); free space where '%.120s' is%s",
		n->rank, n->n_kept + 1, (unsigned long long)div_up(needed, 1u << 20),
		(unsigned long long)(left >> 20), (unsigned long long)(spare >> 20),
		(unsigned long long)(n->reserve >> 20), n->data, remedy(n, n->one, left, needed));
}

uint64_t disk_need_one(const struct disk_need *n)
{
	return n->all && n->one != UINT64_MAX ? n->one : 0;
}
