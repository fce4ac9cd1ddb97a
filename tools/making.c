/* SPDX-License-Identifier: Apache-2.0 */
/*
 * making.c - a new checkpoint, written by a tool. See making.h, and storage/staging.h for where.
 *
 *   step                                        a kill or power loss after it leaves
 *   1 incoming/<job-id>.making, locked          a leftover that says what it was to be
 *   2 rank files by storage/shard_stream.c,     the same; with keep the next run goes on behind
 *     notes of what is durable                  the last note
 *   3 declarations/, layouts/                   the same, and objects that the next run finds
 *   4 COMMIT, synced (storage/commit_file.c)    the same: the next run goes on with 5
 *   5 rename into jobs/, synced                 the checkpoint, and a .making without a folder
 *   6 ckptd is told, .making goes               the checkpoint
 *
 * Nobody looks for checkpoints in incoming/: until (5) there is nothing, after it all (I7, I12).
 *
 * One thread.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "coord/record.h"
#include "storage/disk_posix.h"
#include "storage/layout_file.h"
#include "storage/shard_file.h"
#include "storage/shard_reader.h"
#include "tools/files.h"
#include "tools/making_parts.h"
#include "tools/plural.h"

#define MEMORY_DEFAULT     (64u << 20)
#define SYNC_EVERY_DEFAULT (256u << 20)

/* The commit's place in a log that is lost: job, lead, epoch come before it. */
enum { FIRST_INCARNATION = 1, FIRST_EPOCH = 1, COMMIT_RECORD = 3 };

/* ---- Sizes ---- */

static struct geometry geometry_of(void)
{
	return GEOMETRY_DEFAULT;
}

uint64_t making_memory_least(int compression)
{
	const struct store s = {.geometry = geometry_of(), .compression = compression};

	return stream_pool_least(&s);
}

uint64_t making_rank_bytes(uint64_t image_len)
{
	struct geometry g = geometry_of();

	/* Digests and places, and the same again in the table and the footer that are written. */
	return 3 * (div_up(image_len, g.leaf) * sizeof(struct digest) +
		    div_up(image_len, g.chunk) * CHUNK_PLACE_BYTES) +
	       (64u << 10);
}

/* ---- Ranks ---- */

static int copy_blobs(struct making_rank_state *k, const struct making_rank *from)
{
	k->blobs = alloc_array(from->n_blobs, sizeof(*k->blobs));
	k->blob_bytes = alloc_array(from->n_blobs, sizeof(*k->blob_bytes));
	if (!k->blobs || !k->blob_bytes)
		return -ENOMEM;
	for (uint32_t i = 0; i < from->n_blobs; i++) {
		char *name = alloc_str(from->blobs[i].name);

		if (!name)
			return -ENOMEM;
		k->blobs[i].name = name;
		k->blobs[i].name_len = (uint32_t)strlen(name);
		k->blobs[i].bytes = from->blobs[i].len;
		k->blob_bytes[i] = from->blobs[i].bytes;
		k->names_len += k->blobs[i].name_len;
		k->n_blobs = i + 1;
	}
	return 0;
}

static int copy_rank(struct making_rank_state *k, const struct making_rank *from, struct err *e)
{
	struct geometry g = geometry_of();
	int r;

	k->bytes = from->declaration;
	k->len = from->declaration_len;
	r = copy_blobs(k, from);
	if (r < 0)
		return err_code(e, r, "remember what a rank holds");
	r = declaration_open(k->bytes, k->len, &k->declaration, e);
	if (r < 0)
		return r;
	if (k->declaration.geometry.leaf != g.leaf || k->declaration.geometry.chunk != g.chunk)
		return err_set(e, -EINVAL,
			       "a declaration has leaves of %u and chunks of %u byte%s, "
			       "not %u and %u",
			       k->declaration.geometry.leaf, k->declaration.geometry.chunk,
			       plural(k->declaration.geometry.chunk), g.leaf, g.chunk);
	r = blobs_place(&k->declaration, k->blobs, k->n_blobs, &k->image_len);
	if (r < 0)
		return err_code(e, r, "place %u blob%s", k->n_blobs, plural(k->n_blobs));
	k->table_max = rank_table_bytes(k->len, k->image_len, g.leaf, k->n_blobs, k->names_len);
	return 0;
}

static int copy_ranks(struct making *m, const struct making_rank *ranks, struct err *e)
{
	CLEANUP_FREE struct digest *digests = alloc_array(m->world, sizeof(*digests));
	int r = 0;

	m->ranks = alloc_array(m->world, sizeof(*m->ranks));
	if (!m->ranks || !digests)
		return err_code(e, -ENOMEM, "make a checkpoint of %u rank%s", m->world,
				plural(m->world));
	for (uint32_t i = 0; i < m->world && r == 0; i++) {
		r = copy_rank(&m->ranks[i], &ranks[i], e);
		if (r < 0)
			err_wrap(e, r, "rank %u of job '%s'", i, m->job);
		else
			digests[i] =
				declaration_digest(ranks[i].declaration, ranks[i].declaration_len);
	}
	if (r == 0)
		m->layout = layout_digest(digests, m->world);
	return r;
}

static void rank_fini(struct making_rank_state *k, bool keep)
{
	shard_stream_close(k->stream, keep);
	for (uint32_t i = 0; i < k->n_blobs; i++)
		alloc_free((void *)(uintptr_t)k->blobs[i].name);
	alloc_free(k->blobs);
	alloc_free(k->blob_bytes);
	alloc_free(k->made.places);
	alloc_free(k->made.leaves);
}

/* ---- The folder ---- */

/* Where path itself would be made, up to its last '/', and its last part. */
static void split_path(const char *path, char *ret_parent, char *ret_name, size_t size)
{
	size_t n = strlen(path), end;

	while (n > 1 && path[n - 1] == '/')
		n--;
	end = n;
	while (n > 0 && path[n - 1] != '/')
		n--;
	snprintf(ret_parent, size, "%.*s.", (int)n, path);
	snprintf(ret_name, size, "%.*s", (int)(end - n), path + n);
}

static int stranger(void *arg, const char *name, bool is_dir)
{
	(void)arg;
	(void)is_dir;
	return strcmp(name, "lost+found") == 0 ? 0 : 1;
}

int making_open_place(const char *path, bool make, struct beneath *ret, struct err *e)
{
	char parent[PATH_MAX + 2], name[PATH_MAX + 2];
	struct beneath above;
	struct err why = {0};
	int r = beneath_open(path, ret, &why);

	if (r == 0) {
		if (beneath_access(ret, "LOCK", F_OK) == 0)
			return 0; /* it was begun, or has lost its FORMAT */
		r = beneath_list(ret, "", stranger, NULL);
		if (r <= 0)
			return r < 0 ? err_code(e, r, "look into folder '%.150s'", path) : 0;
		beneath_close(ret);
		return err_set(e, -EEXIST,
			       "folder '%.150s' has other files and no FORMAT: it is no data "
			       "folder; name a new or an empty one with --data",
			       path);
	}
	if (r != -ENOENT)
		return err_set(e, r, "%s", why.text);
	split_path(path, parent, name, sizeof(parent));
	r = beneath_open(parent, &above, e);
	if (r < 0)
		return err_code(e, r, "make data folder '%.150s'", path);
	if (!make) {
		*ret = above;
		return 0;
	}
	r = beneath_mkdir(&above, name); /* as the owner of the folder that it is in */
	if (r == 0)
		r = beneath_enter(&above, name, ret);
	beneath_close(&above);
	return r < 0 ? err_code(e, r, "make data folder '%.150s'", path) : 0;
}

/* Named, and not there: as ckptd makes it at its first start. */
static int make_data(const char *path, struct err *e)
{
	const struct store_options o = {.who = "ckptctl, which makes it"};
	struct disk *d = NULL;
	struct beneath b;
	struct store s;
	int r = making_open_place(path, true, &b, e);

	if (r == 0)
		r = disk_posix_take(&b, "threads", &d, e);
	if (r < 0)
		return r;
	r = store_open(d, &o, &s, e);
	if (r == 0)
		store_close(&s);
	disk_posix_close(d);
	return r < 0 ? err_wrap(e, r, "make data folder '%.150s'", path) : 0;
}

/* Temporaries have names that no other process gives (store.serial). */
static int open_store(struct making *m, struct disk *d, struct store *ret, struct err *e)
{
	const struct store_options o = {
		.geometry = geometry_of(), .read_only = true, .compression = m->o.compression};
	struct rng rng;
	int r = store_open(d, &o, ret, e);

	if (r < 0)
		return err_wrap(e, r, "data folder '%.150s'", m->path);
	rng_system(&rng);
	ret->serial = rng_u64(&rng) >> 2 | 1ull << 61;
	return 0;
}

int making_open_folder(struct making *m, struct err *e)
{
	struct data d;
	int r = 0;

	if (m->o.data && !data_is_there(m->o.data))
		r = make_data(m->o.data, e);
	if (r == 0)
		r = data_open(m->o.data, &d, e);
	if (r < 0)
		return r;
	snprintf(m->path, sizeof(m->path), "%s", d.path);
	r = disk_posix_again(d.disk, "auto", &m->disk, e);
	data_close(&d);
	if (r == 0)
		r = making_check_ckptd(m, e);
	if (r < 0)
		return r;
	staging_disk_init(&m->staging, m->disk);
	r = open_store(m, m->disk, &m->real, e);
	if (r == 0)
		r = open_store(m, &m->staging.base, &m->store, e);
	return r;
}

/* What is still to be written, before a byte of it is. */
int making_check_space(const struct making *m, struct err *e)
{
	uint64_t needed = 0, left = 0, total = 0;
	int r = m->disk->ops->space(m->disk, &left, &total);

	if (r < 0)
		return err_code(e, r, "ask how much space '%.150s' has", m->path);
	for (uint32_t i = 0; i < m->world; i++) {
		const struct making_rank_state *k = &m->ranks[i];

		/* A file that was begun has its space. */
		if (!k->done && k->made.n_chunks == 0)
			needed += k->image_len + k->table_max + DISK_ALIGN;
	}
	if (needed > left && needed - left > m->freed)
		return err_set(
			e, CKPT_ENOSPACE,
			"job '%s' needs %" PRIu64 " byte%s and the disk of '%.150s' has "
			"%" PRIu64 ": nothing was written; free some, or name another folder",
			m->o.job ? m->job : "(no name)", needed, plural(needed), m->path, left);
	return 0;
}

static int open_all(struct making *m, const struct making_rank *ranks, struct err *e)
{
	int r = copy_ranks(m, ranks, e);

	if (r == 0 && m->o.dry_run)
		return making_open_dry(m, e);
	if (r == 0)
		r = making_open_folder(m, e);
	if (r == 0)
		r = making_begin(m, e);
	if (r == 0)
		r = making_check_space(m, e);
	if (r == 0)
		r = stream_pool_new(&m->store, m->o.memory, &m->pool, e);
	return r;
}

int making_open(const struct making_options *o, const struct making_rank *ranks, uint32_t world,
		struct making **ret, struct err *e)
{
	struct making *m;
	int r;

	if (o->job ? !name_is_safe(o->job) : !o->dry_run)
		return err_set(e, -EINVAL,
			       "a job's name is 1 to 64 of A-Z a-z 0-9 . _ - and no "
			       "leading dot, not '%.80s'",
			       o->job ? o->job : "");
	if (world == 0 || !ranks)
		return err_set(e, -EINVAL, "a checkpoint has a rank at least");
	m = alloc_zero(sizeof(*m));
	if (!m)
		return err_code(e, -ENOMEM, "make a new job");
	m->o = *o;
	m->o.memory = o->memory ? o->memory : MEMORY_DEFAULT;
	m->o.sync_every =
		o->sync_every ? min_u64(o->sync_every, SYNC_EVERY_MAX) : SYNC_EVERY_DEFAULT;
	snprintf(m->job, sizeof(m->job), "%s", o->job ? o->job : "");
	m->world = world;
	m->id.step = o->step;
	m->socket = o->socket ? alloc_str(o->socket) : NULL;
	r = o->socket && !m->socket ? err_code(e, -ENOMEM, "make job '%s'", m->job)
				    : open_all(m, ranks, e);
	if (r < 0) {
		making_close(m);
		return r;
	}
	*ret = m;
	return 0;
}

/* With keep, what was noted is for the next run; a checkpoint that is not even begun is not. */
void making_close(struct making *m)
{
	bool keep;

	if (!m)
		return;
	keep = m->o.keep || m->placed;
	for (uint32_t i = 0; m->ranks && i < m->world; i++)
		rank_fini(&m->ranks[i], keep);
	stream_pool_free(m->pool);
	if (m->making) {
		if (!keep)
			ignore_result(staging_remove(&m->store, &m->id.job, NULL)); /* gc does */
		m->making->disk->ops->close(m->making);
	}
	alloc_free(m->ranks);
	alloc_free(m->socket);
	disk_posix_close(m->disk);
	alloc_free(m);
}

/* ---- What there is ---- */

bool making_resumed(const struct making *m)
{
	return m->resumed;
}

bool making_has(const struct making *m, uint32_t rank)
{
	assert(rank < m->world);
	return m->ranks[rank].done;
}

uint64_t making_position(const struct making *m, uint32_t rank)
{
	const struct making_rank_state *k = &m->ranks[rank];

	assert(rank < m->world);
	if (k->done)
		return k->image_len;
	if (k->stream)
		return shard_stream_position(k->stream);
	return min_u64(k->made.n_chunks * m->store.geometry.chunk, k->image_len);
}

const char *making_path(const struct making *m)
{
	return m->path;
}

/* ---- Bytes ---- */

static int resume_stream(struct making *m, struct making_rank_state *k, const struct stream_file *f,
			 struct err *e)
{
	struct made *d = &k->made;
	const struct stream_state state = {.n_chunks = d->n_chunks,
					   .data_end = d->data_end,
					   .stored = d->stored,
					   .places = d->places,
					   .leaves = d->leaves};
	int r = shard_stream_resume(m->pool, f, &state, &k->stream, e);

	if (r < 0)
		return err_wrap(
			e, r,
			"go on with job '%s' ('ckptctl gc --incoming' takes away what is left "
			"of it)",
			m->job);
	alloc_free(d->places);
	alloc_free(d->leaves);
	*d = (struct made){0};
	return 0;
}

static int need_stream(struct making *m, uint32_t rank, struct err *e)
{
	struct making_rank_state *k = &m->ranks[rank];
	struct stream_file f = {.id = m->id,
				.rank = rank,
				.image_len = k->image_len,
				.table_max = k->table_max};

	if (k->stream)
		return 0;
	f.element = declaration_element(&k->declaration); /* looks at every shard: once */
	if (k->made.n_chunks)
		return resume_stream(m, k, &f, e);
	m->names_unsynced = true;
	return shard_stream_begin(m->pool, &f, &k->stream, e);
}

static int put(struct making *m, uint32_t rank, uint64_t offset, const uint8_t *bytes, uint64_t len,
	       struct err *e)
{
	uint64_t position = making_position(m, rank), end = 0;
	int r;

	if (len == 0 || (m->resumed && size_add(offset, len, &end) && end <= position))
		return 0;
	if (m->ranks[rank].done)
		return err_set(e, -EINVAL, "rank %u of job '%s' is finished", rank, m->job);
	r = need_stream(m, rank, e);
	if (r < 0)
		return r;
	if (offset < position && m->resumed) {
		bytes += position - offset;
		len -= position - offset;
		offset = position;
	}
	return shard_stream_put(m->ranks[rank].stream, offset, bytes, len, e);
}

int making_put(struct making *m, uint32_t rank, uint64_t image_offset, const void *bytes,
	       uint64_t len, struct err *e)
{
	assert(rank < m->world);
	if (m->error < 0)
		return err_code(e, m->error, "job '%s' could not be written", m->job);
	m->error = put(m, rank, image_offset, bytes, len, e);
	if (m->error < 0)
		return m->error;
	m->since += len;
	if (m->o.keep && m->since >= m->o.sync_every)
		m->error = making_note_open(m, e);
	return m->error;
}

/* ---- Finish ---- */

static int build_table(struct making *m, uint32_t rank, const struct digest *leaves, void **ret,
		       size_t *ret_len, struct err *e)
{
	struct making_rank_state *k = &m->ranks[rank];
	const struct rank_table_parts parts = {
		.rank = rank,
		.world = m->world,
		.geometry = m->store.geometry,
		.image_len = k->image_len,
		.declaration = k->bytes,
		.declaration_len = k->len,
		.blobs = k->blobs,
		.n_blobs = k->n_blobs,
		.leaves = leaves,
	};

	return rank_table_build(&parts, ret, ret_len, e);
}

static int finish(struct making *m, uint32_t rank, struct err *e)
{
	struct making_rank_state *k = &m->ranks[rank];
	const struct digest *leaves = NULL;
	CLEANUP_FREE void *table = NULL;
	struct shard_stream *s;
	size_t len = 0;
	int r = 0;

	for (uint32_t i = 0; i < k->n_blobs && r == 0; i++)
		r = put(m, rank, k->blobs[i].image_offset, k->blob_bytes[i], k->blobs[i].bytes, e);
	if (r == 0)
		r = need_stream(m, rank, e);
	if (r == 0)
		r = shard_stream_flush(k->stream, &leaves, e);
	if (r == 0)
		r = build_table(m, rank, leaves, &table, &len, e);
	if (r < 0)
		return r;
	s = k->stream;
	k->stream = NULL;
	r = shard_stream_finish(s, table, len, &k->footer, e);
	if (r == 0 && m->o.keep)
		r = making_note_done(m, rank, e);
	if (r == 0)
		k->done = true;
	return r;
}

int making_finish(struct making *m, uint32_t rank, struct err *e)
{
	assert(rank < m->world);
	if (m->error < 0)
		return err_code(e, m->error, "job '%s' could not be written", m->job);
	if (!m->ranks[rank].done)
		m->error = finish(m, rank, e);
	return m->error;
}

/* ---- Commit ---- */

static int put_objects(struct making *m, struct err *e)
{
	CLEANUP_FREE struct digest *digests = alloc_array(m->world, sizeof(*digests));
	struct digest layout;
	int r = 0;

	if (!digests)
		return err_code(e, -ENOMEM, "write the layout of %u rank%s", m->world,
				plural(m->world));
	for (uint32_t i = 0; i < m->world && r == 0; i++) {
		const struct making_rank_state *k = &m->ranks[i];

		digests[i] = declaration_digest(k->bytes, k->len);
		if (i == 0 || !digest_equal(&digests[i], &digests[i - 1]))
			r = store_put_object(&m->store, "declarations", &digests[i], k->bytes,
					     k->len, e);
	}
	if (r == 0)
		r = layout_file_put(&m->store, digests, m->world, &layout, e);
	assert(r < 0 || digest_equal(&layout, &m->layout));
	return r;
}

static int fill_job(const struct making *m, struct commit_file *c)
{
	struct record r = {.type = RECORD_JOB, .incarnation = FIRST_INCARNATION};
	size_t len = 0;
	int rc;

	memcpy(c->job_name, m->job, sizeof(c->job_name));
	c->uid = m->o.uid;
	r.job.id = m->id.job;
	memcpy(r.job.name, m->job, sizeof(r.job.name));
	r.job.uid = m->o.uid;
	rc = record_encode(&r, &c->job_record, &len);
	c->job_record_len = (uint32_t)len;
	return rc;
}

static int fill_commit(const struct making *m, struct commit_file *c)
{
	CLEANUP_FREE struct rank_line *lines = alloc_array(m->world, sizeof(*lines));
	struct timespec now;

	*c = (struct commit_file){.id = m->id,
				  .incarnation = FIRST_INCARNATION,
				  .epoch = FIRST_EPOCH,
				  .record_n = COMMIT_RECORD,
				  .layout = m->layout,
				  .world = m->world};
	c->shards = alloc_array(m->world, sizeof(*c->shards));
	if (!lines || !c->shards)
		return -ENOMEM;
	for (uint32_t i = 0; i < m->world; i++) {
		const struct shard_footer *f = &m->ranks[i].footer;

		c->shards[i] = *f;
		c->bytes += m->ranks[i].image_len;
		lines[i] =
			(struct rank_line){.rank = i, .table_len = f->table_len, .table = f->table};
	}
	c->root = root_digest(lines, m->world);
	clock_gettime(CLOCK_REALTIME, &now);
	c->wall_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	return fill_job(m, c);
}

/* An earlier run's files are there, and what its journal says. */
static int check_files(struct making *m, struct err *e)
{
	int r = 0;

	for (uint32_t i = 0; i < m->world && m->resumed && r == 0; i++) {
		struct shard_reader reader;

		r = shard_open(&m->store, &m->id, &m->ranks[i].footer, &reader, e);
		if (r == 0)
			shard_close(&reader);
	}
	return r < 0 ? err_wrap(e, r,
				"go on with job '%s' ('ckptctl gc --incoming' takes away what is "
				"left "
				"of it)",
				m->job)
		     : 0;
}

static bool has_commit(struct store *s, const struct checkpoint_id *id)
{
	struct commit_file c = {0};
	int r = commit_read(s, id, &c, NULL);

	commit_file_fini(&c);
	return r == 0;
}

static int publish(struct making *m, struct err *e)
{
	struct commit_file c = {0};
	int r;

	/* That it can be seen does not say that the run that named it came to its syncs (I7). */
	if (m->resumed && has_commit(&m->store, &m->id)) {
		r = check_files(m, e);
		return r < 0 ? r : commit_make_durable(&m->store, &m->id, e);
	}
	if (m->resumed && has_commit(&m->real, &m->id)) /* it may even have its place already */
		return commit_make_durable(&m->real, &m->id, e);
	r = check_files(m, e);
	if (r == 0)
		r = put_objects(m, e);
	if (r < 0)
		return r;
	r = fill_commit(m, &c);
	if (r < 0)
		err_code(e, r, "publish job '%s'", m->job);
	else
		r = commit_publish(&m->store, &c, e);
	commit_file_fini(&c);
	return r;
}

/* Failing at it leaves a name that the next run, or gc, takes away. */
static void end_journal(struct making *m)
{
	struct disk *d = m->store.disk;
	char path[DISK_PATH_MAX + 1];

	path_making(path, &m->id.job);
	ignore_result(d->ops->unlink(d, path));
}

int making_commit(struct making *m, struct err *e)
{
	int r = m->error < 0 ? err_code(e, m->error, "job '%s' could not be written", m->job) : 0;

	for (uint32_t i = 0; i < m->world && r == 0; i++)
		r = making_finish(m, i, e);
	if (r == 0)
		r = m->error = publish(m, e);
	if (r < 0)
		return r;
	r = making_place(m, e);
	if (r < 0)
		return r;
	m->placed = true;
	end_journal(m);
	return 0;
}
