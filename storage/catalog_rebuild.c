/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_rebuild.c - the catalog from the files alone (I8), and whether it still fits them.
 *
 *   (1) The schema's entry goes first and comes back last: a rebuild that was cut short is no good
 *       index and is repeated.
 *   (2) One declaration and one batch are in memory at a time.
 *   (3) It may be cancelled at any time: it is cut short then (1), as it is by a crash.
 *
 * A layout or declaration whose object is missing or damaged is taken from the rank tables of the
 * checkpoint's shard files, and the object is written again. Where they are damaged too, that costs
 * the tensors of the layout, not the checkpoint's entry: the layout gets the mark of one without
 * ranks, so that a check does not ask for another rebuild. Blocking; at start or in a tool,
 * with nobody else writing the index.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <limits.h>

#include "base/alloc.h"
#include "storage/catalog_format.h"
#include "storage/layout_file.h"
#include "storage/object_uses.h"
#include "storage/recover.h"
#include "storage/shard_reader.h"

/* ---- Empty it ---- */

static int clear(struct catalog_batch *b)
{
	static const uint8_t schema = CATALOG_SCHEMA;
	int r = batch_add(b, &schema, 1, NULL, 0);

	if (r == 0)
		r = batch_flush(b, true); /* (1) */
	return r == 0 ? batch_delete(b, "", 0) : r;
}

/* ---- Walk the files ---- */

struct walk {
	struct index *ix;
	struct store *store;
	struct catalog_batch *batch; /* of a rebuild */
	store_checkpoint_fn *fn;
	int count;
	bool good;  /* of a check */
	int result; /* what ended the walk, with e */
	struct err *e;
};

static int walk_job(void *arg, const struct job_id *job)
{
	struct walk *w = arg;
	int r = store_each_checkpoint(w->store, job, w->fn, w, w->e);

	if (r != 0 && w->result == 0)
		w->result = r;
	return w->result;
}

static int walk_files(struct walk *w)
{
	int r = store_each_job(w->store, walk_job, w, w->e);

	return w->result ? w->result : r;
}

static void entry_of(const struct commit_file *c, struct catalog_entry *ret)
{
	*ret = (struct catalog_entry){
		.id = c->id,
		.uid = c->uid,
		.root = c->root,
		.layout = c->layout,
		.incarnation = c->incarnation,
		.record_n = c->record_n,
		.epoch = c->epoch,
		.wall_ns = c->wall_ns,
		.bytes = c->bytes,
		.world = c->world,
	};
	memcpy(ret->job_name, c->job_name, sizeof(ret->job_name));
}

/* The object is not there or not good: others can still be read. */
static bool is_damage(int r)
{
	return r == CKPT_ENOTFOUND || r == CKPT_ECORRUPT || r == CKPT_EPROTO || r == CKPT_EVERSION;
}

/* No checkpoint, unless it is only that it could not be read now. */
static int without_commit(struct walk *w, const struct err *why)
{
	if (why->code == -ENOMEM || why->code == -EMFILE || why->code == -ENFILE)
		w->result = err_set(w->e, why->code, "%s", why->text);
	return w->result;
}

/* ---- Rebuild ---- */

#define DAMAGED 1 /* neither success nor an error that ends the rebuild */

/* An error of the files: whether it is one to go on after. */
static int files_error(struct walk *w, int r, const struct err *why)
{
	return is_damage(r) ? DAMAGED : err_set(w->e, r, "%s", why->text);
}

static int add_rank(struct walk *w, const struct digest *layout, uint32_t rank,
		    const struct declaration *d)
{
	int r = layout_add_rank(w->batch, layout, rank, d);

	return r < 0 ? err_code(w->e, r, "write the index") : 0;
}

static int rank_from_object(struct walk *w, const struct digest *layout, uint32_t rank,
			    const struct digest *declaration)
{
	CLEANUP_FREE void *bytes = NULL;
	struct declaration d;
	struct err why = { 0 };
	size_t len = 0;
	int r = store_get_object(w->store, "declarations", declaration, DECLARATION_BYTES_MAX,
				 &bytes, &len, &why);

	if (r == 0)
		r = declaration_open(bytes, len, &d, &why);
	return r < 0 ? files_error(w, r, &why) : add_rank(w, layout, rank, &d);
}

static int layout_from_objects(struct walk *w, const struct commit_file *c)
{
	CLEANUP_FREE struct digest *ranks = NULL;
	struct err why = { 0 };
	uint32_t world = 0;
	int r = layout_file_get(w->store, &c->layout, &ranks, &world, &why);

	if (r < 0)
		return files_error(w, r, &why);
	if (world != c->world)
		return DAMAGED; /* a COMMIT that does not go with its layout */
	for (uint32_t rank = 0; rank < world && r == 0; rank++)
		r = rank_from_object(w, &c->layout, rank, &ranks[rank]);
	return r;
}

static int rank_from_shard(struct walk *w, const struct commit_file *c, uint32_t rank,
			   struct digest *ret)
{
	struct shard_reader shard;
	const struct declaration *d = &shard.table.declaration;
	struct err why = { 0 };
	int r = shard_open(w->store, &c->id, &c->shards[rank], &shard, &why);

	if (r < 0)
		return files_error(w, r, &why);
	*ret = declaration_digest(d->bytes, d->len);
	r = store_put_object(w->store, "declarations", ret, d->bytes, d->len, &why);
	r = r < 0 ? files_error(w, r, &why) : add_rank(w, &c->layout, rank, d);
	shard_close(&shard);
	return r;
}

static int layout_from_shards(struct walk *w, const struct commit_file *c)
{
	CLEANUP_FREE struct digest *ranks = alloc_array(c->world, sizeof(*ranks));
	struct digest found;
	struct err why = { 0 };
	int r = ranks ? 0 : err_code(w->e, -ENOMEM, "read a layout of %u ranks", c->world);

	for (uint32_t rank = 0; rank < c->world && r == 0; rank++)
		r = rank_from_shard(w, c, rank, &ranks[rank]);
	if (r != 0)
		return r;
	found = layout_digest(ranks, c->world);
	if (!digest_equal(&found, &c->layout))
		return DAMAGED;
	r = layout_file_put(w->store, ranks, c->world, &found, &why);
	return r < 0 ? files_error(w, r, &why) : 0;
}

static int put_layout(struct walk *w, const struct commit_file *c)
{
	struct layout_mark there = {0};
	int r = layout_find(w->ix, &c->layout, &there);

	if (r < 0 && r != CKPT_ENOTFOUND)
		return err_code(w->e, r, "read the index");
	if (there.world > 0)
		return 0;
	r = layout_from_objects(w, c);
	objects_begin(w->store->uses);
	if (r == DAMAGED)
		r = layout_from_shards(w, c);
	objects_end(w->store->uses);
	if (r < 0)
		return r;
	r = layout_end(w->batch, &c->layout, r == DAMAGED ? 0 : c->world);
	return r < 0 ? err_code(w->e, r, "write the index") : 0;
}

static int rebuild_checkpoint(void *arg, const struct checkpoint_id *id,
			      const struct commit_file *commit, const struct err *why)
{
	struct walk *w = arg;
	struct catalog_entry c;

	(void)id;
	if (!commit) /* others report what is damaged */
		return without_commit(w, why);
	assert(w->count < INT_MAX);
	entry_of(commit, &c);
	w->result = batch_cancelled(w->batch) ? err_code(w->e, -ECANCELED, "write the index")
					      : put_layout(w, commit);
	if (w->result == 0)
		w->result = catalog_put(w->ix, &c, w->e);
	w->count += w->result == 0;
	return w->result;
}

int catalog_rebuild(struct index *ix, struct store *s, const atomic_bool *cancel, struct err *e)
{
	CLEANUP_FREE struct catalog_batch *b = batch_new(ix, cancel);
	struct walk w = { .ix = ix, .store = s, .batch = b, .fn = rebuild_checkpoint, .e = e };
	static const uint8_t schema = CATALOG_SCHEMA;
	uint8_t version[4];
	int r = b ? clear(b) : -ENOMEM;

	if (r < 0)
		return err_code(e, r, "empty the index");
	r = walk_files(&w);
	if (r < 0)
		return err_wrap(e, r, "rebuild the index");
	put_le32(version, CATALOG_VERSION);
	r = batch_add(b, &schema, 1, version, sizeof(version));
	if (r == 0)
		r = batch_flush(b, true); /* (1) */
	return r < 0 ? err_code(e, r, "end the rebuild of the index") : w.count;
}

int catalog_add(struct index *ix, struct store *s, const struct checkpoint_id *id,
		const atomic_bool *cancel, struct err *e)
{
	CLEANUP_FREE struct catalog_batch *b = batch_new(ix, cancel);
	struct walk w = {.ix = ix, .store = s, .batch = b, .e = e};
	struct commit_file c;
	int r = b ? commit_read(s, id, &c, e) : err_code(e, -ENOMEM, "write the index");

	if (r < 0)
		return r;
	r = rebuild_checkpoint(&w, id, &c, NULL);
	commit_file_fini(&c);
	return r;
}

/* ---- Check ---- */

static bool entry_fits(const struct catalog_entry *a, const struct catalog_entry *b)
{
	return digest_equal(&a->root, &b->root) && digest_equal(&a->layout, &b->layout) &&
	       a->uid == b->uid && a->incarnation == b->incarnation &&
	       a->record_n == b->record_n && a->epoch == b->epoch && a->wall_ns == b->wall_ns &&
	       a->bytes == b->bytes && a->world == b->world &&
	       strncmp(a->job_name, b->job_name, sizeof(a->job_name)) == 0;
}

static int check_checkpoint(void *arg, const struct checkpoint_id *id,
			    const struct commit_file *commit, const struct err *why)
{
	struct walk *w = arg;
	struct catalog_entry want, have;
	struct layout_mark layout;
	int r;

	if (!commit)
		return without_commit(w, why);
	w->count++;
	entry_of(commit, &want);
	r = catalog_get(w->ix, id, &have, NULL);
	if (r == 0 && !entry_fits(&want, &have))
		r = CKPT_ENOTFOUND;
	if (r == 0)
		r = layout_find(w->ix, &commit->layout, &layout);
	w->good = r == 0;
	if (r == CKPT_ENOTFOUND)
		w->result = 1; /* seen enough */
	else if (r < 0)
		w->result = err_code(w->e, r, "read the index");
	return w->result;
}

/* The memory of one whose COMMIT is known to be gone is no reason to rebuild: only the index has
 * it. */
static int count_entry(void *arg, const struct catalog_entry *c)
{
	struct walk *w = arg;
	struct commit_file f;
	int r = c->suspect ? commit_read(w->store, &c->id, &f, NULL) : 0;

	if (c->suspect && r == 0)
		commit_file_fini(&f);
	w->count -= r == 0;
	return 0;
}

bool catalog_is_whole(struct index *ix)
{
	struct catalog_key k = {.bytes = {CATALOG_SCHEMA}, .len = 1};
	uint32_t version = 0;

	return index_get_u32(ix, &k, &version) == 0 && version == CATALOG_VERSION;
}

int catalog_check(struct index *ix, struct store *s, bool *ret_good, struct err *e)
{
	struct walk w = { .ix = ix, .store = s, .fn = check_checkpoint, .good = true };
	struct catalog_key k = { .bytes = { CATALOG_SCHEMA }, .len = 1 };
	struct err why = { 0 };
	uint32_t version = 0;
	int r = index_get_u32(ix, &k, &version);

	w.e = &why;
	if (r < 0 && r != CKPT_ENOTFOUND)
		err_code(&why, r, "read the index");
	if (r == CKPT_ENOTFOUND || (r == 0 && version != CATALOG_VERSION))
		w.good = false;
	else if (r == 0)
		r = walk_files(&w);
	/* Each file has its entry; as many entries as files: no other ones. */
	if (r == 0 && w.good)
		r = catalog_each(ix, NULL, count_entry, &w, &why);
	if (r < 0 && r != CKPT_ENOTFOUND && r != CKPT_ECORRUPT)
		return err_set(e, r, "check the index: %s", why.text);
	*ret_good = r == 0 && w.good && w.count == 0;
	return 0;
}
