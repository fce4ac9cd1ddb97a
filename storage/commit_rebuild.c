/* SPDX-License-Identifier: Apache-2.0 */
/*
 * commit_rebuild.c - COMMIT made again from shard files and from what the log says (I8).
 *
 * 1. The root in the log decides: what does not lead to it is never published (I2).
 * 2. Files may be those of a write that did not end: a header may have reached the disk and a chunk
 *    not, and what the page cache has may not be on the disk. So each file is synced, and then
 *    every byte of it is read again, before COMMIT is begun (I7).
 * 3. A file that cannot be synced is damaged from then on: it is not synced again.
 * 4. Files of two writes of the same attempt, which left different leaves to other ranks, can each
 *    be good and an element be in none: that is looked for too.
 *
 * Threads: any, one per checkpoint; nobody else writes to its folder.
 */
#include <config.h>

#include "storage/commit_rebuild.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "model/table.h"
#include "storage/holes.h"
#include "storage/layout_file.h"
#include "storage/object_uses.h"
#include "storage/paths.h"
#include "storage/shard_reader.h"

/* It says something of this process and nothing of the files. */
static bool is_ours(int r)
{
	return err_is_shortage(r) || r == -ECANCELED;
}

/* ---- Headers, footers, tables ---- */

struct counted {
	uint32_t good, missing, blank, bad;
	struct err missing_why, bad_why; /* of the first */
};

static int count_rank(struct store *s, struct commit_file *c, uint32_t rank, struct counted *n)
{
	struct err e = {0};
	int r = shard_find(s, &c->id, rank, &c->shards[rank], &e);

	if (is_ours(r))
		return err_set(&n->bad_why, r, "%s", e.text);
	if (r == 0) {
		n->good++;
	} else if (r == CKPT_ENOTFOUND || r == CKPT_ESTATE) {
		if (n->missing + n->blank == 0)
			n->missing_why = e;
		n->missing += r == CKPT_ENOTFOUND;
		n->blank += r == CKPT_ESTATE;
	} else if (n->bad++ == 0) {
		n->bad_why = e;
	}
	return 0;
}

static int check_root(const struct commit_file *c, enum shards_state *ret, struct err *why)
{
	CLEANUP_FREE struct rank_line *lines = alloc_array(c->world, sizeof(*lines));
	struct digest root;

	if (!lines)
		return err_code(why, -ENOMEM, "look at the files of step %" PRIu64, c->id.step);
	for (uint32_t i = 0; i < c->world; i++)
		lines[i] = (struct rank_line){.rank = i,
					      .table_len = c->shards[i].table_len,
					      .table = c->shards[i].table};
	root = root_digest(lines, c->world);
	*ret = digest_equal(&root, &c->root) ? SHARDS_WHOLE : SHARDS_DAMAGED;
	if (*ret == SHARDS_DAMAGED)
		err_set(why, CKPT_ECORRUPT, "its files do not lead to the root in the log");
	return 0;
}

int commit_shards(struct store *s, struct commit_file *c, enum shards_state *ret, struct err *why)
{
	struct counted n = {0};
	int r = 0;

	assert(c->world > 0);
	alloc_free(c->shards);
	c->shards = alloc_array(c->world, sizeof(*c->shards));
	if (!c->shards)
		return err_code(why, -ENOMEM, "look at the files of step %" PRIu64, c->id.step);
	for (uint32_t i = 0; i < c->world && r == 0; i++)
		r = count_rank(s, c, i, &n);
	if (r < 0) {
		*why = n.bad_why;
		return r;
	}
	if (n.good == c->world)
		return check_root(c, ret, why);
	*ret = n.bad > 0 ? SHARDS_DAMAGED
	       : n.missing == c->world ? SHARDS_NONE
				       : SHARDS_UNFINISHED;
	*why = n.bad > 0 ? n.bad_why : n.missing_why;
	return 0;
}

/* ---- Every byte ---- */

static int sync_file(struct store *s, const struct checkpoint_id *id, uint32_t rank, struct err *e)
{
	char path[DISK_PATH_MAX + 1];
	struct disk_file *f = NULL;
	int r;

	path_shard(path, id, rank);
	r = s->disk->ops->open(s->disk, path, 0, &f);
	if (r == 0) {
		r = s->disk->ops->sync(f);
		s->disk->ops->close(f);
	}
	return r < 0 ? err_code(e, r, "cannot sync '%s'", path) : 0;
}

static void first_sentence(void *arg, const char *sentence)
{
	struct err *e = arg;

	if (e->code == 0)
		err_set(e, CKPT_ECORRUPT, "%s", sentence);
}

struct rebuild {
	struct store *store;
	struct commit_file *commit;
	struct digest *declarations; /* of the ranks */
	uint64_t bytes;              /* of the images so far */
	bool writing;                /* what failed was to write objects or COMMIT */
	struct err *err;
};

/* Its declaration becomes an object: a layout that was to be written may not be there yet. */
static int keep_declaration(struct rebuild *x, const struct shard_reader *r, struct digest *ret)
{
	const struct declaration *d = &r->table.declaration;
	int rc;

	*ret = declaration_digest(d->bytes, d->len);
	rc = store_put_object(x->store, "declarations", ret, d->bytes, d->len, x->err);
	x->writing = rc < 0;
	return rc;
}

static int read_rank(struct rebuild *x, uint32_t rank)
{
	const struct verify_hooks hooks = {.report = first_sentence, .arg = x->err};
	const struct commit_file *c = x->commit;
	struct shard_reader reader;
	uint64_t bad = 0;
	int r = BUG(REBUILD_WITHOUT_READING) ? 0 : sync_file(x->store, &c->id, rank, x->err);

	if (r == 0)
		r = shard_open(x->store, &c->id, &c->shards[rank], &reader, x->err);
	if (r < 0)
		return r;
	if (!BUG(REBUILD_WITHOUT_READING))
		r = shard_verify(&reader, &hooks, &bad, x->err);
	if (r == 0 && bad > 0)
		r = CKPT_ECORRUPT;
	if (r == 0 && (reader.table.rank != rank || reader.table.world != c->world))
		r = err_set(x->err, CKPT_ECORRUPT, "rank %u: its table is of another rank", rank);
	x->bytes += reader.table.image_len;
	if (r == 0)
		r = keep_declaration(x, &reader, &x->declarations[rank]);
	shard_close(&reader);
	return r;
}

static int read_all(struct rebuild *x)
{
	const struct commit_file *c = x->commit;
	struct digest layout;
	int r = 0;

	for (uint32_t i = 0; i < c->world && r == 0; i++)
		r = read_rank(x, i);
	if (r < 0)
		return r;
	layout = layout_digest(x->declarations, c->world);
	if (!digest_equal(&layout, &c->layout) || x->bytes != c->bytes)
		return err_set(x->err, CKPT_ECORRUPT,
			       "its files have another layout or size than the log says");
	r = holes_find(x->store, &c->id, c, first_sentence, x->err, x->err);
	if (r < 0 || x->err->code < 0)
		return r < 0 ? r : x->err->code;
	x->writing = true;
	r = layout_file_put(x->store, x->declarations, c->world, &layout, x->err);
	return r < 0 ? r : commit_publish(x->store, c, x->err);
}

int commit_rebuild(struct store *s, struct commit_file *c, enum shards_state *ret, struct err *why)
{
	struct rebuild x = {.store = s, .commit = c, .err = why};
	int r = commit_shards(s, c, ret, why);

	if (r < 0 || *ret != SHARDS_WHOLE)
		return r;
	err_clear(why);
	x.declarations = alloc_array(c->world, sizeof(*x.declarations));
	if (!x.declarations)
		return err_code(why, -ENOMEM, "read step %" PRIu64 " again", c->id.step);
	objects_begin(s->uses);
	r = read_all(&x);
	objects_end(s->uses);
	alloc_free(x.declarations);
	if (r == 0 || x.writing || is_ours(r))
		return r;
	*ret = SHARDS_DAMAGED;
	return 0;
}

/* ---- Names ---- */

struct names {
	uint8_t *gone; /* one byte per rank */
	uint32_t world;
};

static int note_name(void *arg, const char *name, bool is_dir)
{
	struct names *x = arg;
	uint32_t rank;

	if (!is_dir && shard_name_is(name) && sscanf(name, "rank-%" SCNu32, &rank) == 1 &&
	    rank < x->world)
		x->gone[rank] = 0;
	return 0;
}

/* One by one: where the folder cannot be listed. */
static int look_for_names(struct store *s, const struct checkpoint_id *id, struct names *x)
{
	char path[DISK_PATH_MAX + 1];
	struct disk_file *f;
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < x->world; i++) {
		path_shard(path, id, i);
		r = s->disk->ops->open(s->disk, path, DISK_READ, &f);
		if (r == 0)
			s->disk->ops->close(f);
		x->gone[i] = r == -ENOENT;
		r = r == -ENOENT ? 0 : r;
	}
	return r;
}

int commit_missing_files(struct store *s, const struct commit_file *c, uint8_t **ret)
{
	CLEANUP_FREE uint8_t *gone = alloc_zero(c->world);
	struct names x = {gone, c->world};
	char path[DISK_PATH_MAX + 1];
	uint32_t n = 0;
	int r;

	*ret = NULL;
	if (!gone)
		return -ENOMEM;
	memset(gone, 1, c->world);
	path_checkpoint(path, &c->id);
	r = s->disk->ops->list(s->disk, path, note_name, &x);
	if (r < 0 && !err_is_shortage(r))
		r = look_for_names(s, &c->id, &x);
	for (uint32_t i = 0; i < c->world; i++)
		n += gone[i];
	if (r == 0 && n > 0) {
		*ret = gone;
		gone = NULL;
	}
	return r;
}

/* ---- What the log says ---- */

static bool same_position(const struct commit_file *a, const struct commit_file *b)
{
	return a->record_n == b->record_n && a->epoch == b->epoch && a->wall_ns == b->wall_ns;
}

const char *commit_differs(const struct commit_file *c, const struct commit_file *want)
{
	if (!digest_equal(&c->root, &want->root) || !digest_equal(&c->layout, &want->layout) ||
	    c->world != want->world)
		return "its COMMIT has another root, layout or number of ranks than the log";
	if (c->bytes != want->bytes)
		return "its COMMIT has another number of bytes than the log";
	if (c->uid != want->uid || strcmp(c->job_name, want->job_name) != 0)
		return "its COMMIT names another job or owner than the log";
	if (c->incarnation > want->incarnation ||
	    (c->incarnation == want->incarnation && !same_position(c, want)))
		return "its COMMIT has another place, epoch or time in the log than its record";
	return NULL;
}
