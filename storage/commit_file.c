/* SPDX-License-Identifier: Apache-2.0 */
/*
 * commit_file.c - COMMIT to bytes and back, and its publication.
 *
 * 1. Before COMMIT gets its name, the shard files it names are synced (shard_finish()) and so are
 *    their names (fsync of the folder).
 * 2. publish returns 0 only after the last fsync did: the checkpoint is DURABLE (I7). After any
 *    error it is unknown whether COMMIT is there (I10): publishing again is allowed.
 * 3. What is decoded has the right digest, adds up, and its root is that of its lines (I2).
 *
 * Threads: any.
 */
#include <config.h>

#include "storage/commit_file.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/fault.h"
#include "model/table.h"
#include "storage/disk_format.h"
#include "storage/paths.h"
#include "storage/shard_file.h"

#define COMMIT_FIXED 256u
#define COMMIT_LINE 72u
#define JOB_RECORD_MAX (1u << 20)
#define NAME_AT 184u
#define NAME_BYTES 64u
_Static_assert(NAME_BYTES >= CKPT_JOB_MAX, "a job's name fits");
_Static_assert(NAME_AT + NAME_BYTES <= COMMIT_FIXED, "and stands in the fixed part");

void commit_file_fini(struct commit_file *c)
{
	alloc_free(c->shards);
	alloc_free(c->job_record);
	*c = (struct commit_file){ 0 };
}

uint64_t commit_disk_bytes(const struct commit_file *c)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < c->world; i++)
		bytes += c->shards[i].footer_offset + round_up(c->shards[i].footer_len, DISK_ALIGN);
	return bytes;
}

static bool size_of(uint32_t world, uint32_t record_len, uint64_t *ret)
{
	uint64_t lines, size;

	return record_len <= JOB_RECORD_MAX && size_mul(world, COMMIT_LINE, &lines) &&
	       size_add(lines, COMMIT_FIXED + DISK_FORMAT_DIGEST + round_up(record_len, 8),
			&size) &&
	       size <= COMMIT_FILE_MAX && (*ret = size, true);
}

static int root_of(const struct shard_footer *shards, uint32_t world, struct digest *ret)
{
	struct rank_line *lines = alloc_array(world, sizeof(*lines));

	if (!lines)
		return -ENOMEM;
	for (uint32_t i = 0; i < world; i++)
		lines[i] = (struct rank_line){ .rank = shards[i].rank,
					       .table_len = shards[i].table_len,
					       .table = shards[i].table };
	*ret = root_digest(lines, world);
	alloc_free(lines);
	return 0;
}

/* ---- Encode ---- */

static void put_fixed(const struct commit_file *c, uint64_t len, uint8_t *p)
{
	format_begin(p, FORMAT_COMMIT, COMMIT_FIXED, len);
	memcpy(p + 48, c->id.job.b, 16);
	put_le64(p + 64, c->id.step);
	memcpy(p + 72, c->id.attempt.b, 16);
	memcpy(p + 88, c->root.b, 16);
	memcpy(p + 104, c->layout.b, 16);
	put_le64(p + 120, c->incarnation);
	put_le64(p + 128, c->record_n);
	put_le64(p + 136, c->epoch);
	put_le64(p + 144, c->wall_ns);
	put_le64(p + 152, c->bytes);
	put_le32(p + 160, c->world);
	put_le32(p + 164, c->uid);
	put_le32(p + 168, c->job_record_len);
	memcpy(p + NAME_AT, c->job_name, strlen(c->job_name));
}

static void put_line(const struct shard_footer *f, uint8_t *p)
{
	put_le32(p, f->rank);
	put_le64(p + 8, f->footer_offset);
	put_le64(p + 16, f->footer_len);
	memcpy(p + 24, f->footer.b, 16);
	put_le64(p + 40, f->table_len);
	memcpy(p + 48, f->table.b, 16);
	put_le64(p + 64, f->stored);
}

int commit_file_encode(const struct commit_file *c, void **ret, size_t *ret_len)
{
	uint64_t len = 0;
	uint8_t *p;

	assert(strlen(c->job_name) <= CKPT_JOB_MAX);
	if (!size_of(c->world, c->job_record_len, &len))
		return -EFBIG;
	p = alloc_zero(len);
	if (!p)
		return -ENOMEM;
	put_fixed(c, len, p);
	for (uint32_t i = 0; i < c->world; i++) {
		assert(c->shards[i].rank == i);
		put_line(&c->shards[i], p + COMMIT_FIXED + (size_t)i * COMMIT_LINE);
	}
	if (c->job_record_len)
		memcpy(p + COMMIT_FIXED + (size_t)c->world * COMMIT_LINE, c->job_record,
		       c->job_record_len);
	format_end(p, len);
	*ret = p;
	*ret_len = len;
	return 0;
}

/* ---- Decode ---- */

static bool get_fixed(const uint8_t *p, struct commit_file *c)
{
	memcpy(c->id.job.b, p + 48, 16);
	c->id.step = get_le64(p + 64);
	memcpy(c->id.attempt.b, p + 72, 16);
	memcpy(c->root.b, p + 88, 16);
	memcpy(c->layout.b, p + 104, 16);
	c->incarnation = get_le64(p + 120);
	c->record_n = get_le64(p + 128);
	c->epoch = get_le64(p + 136);
	c->wall_ns = get_le64(p + 144);
	c->bytes = get_le64(p + 152);
	c->world = get_le32(p + 160);
	c->uid = get_le32(p + 164);
	c->job_record_len = get_le32(p + 168);
	memcpy(c->job_name, p + NAME_AT, NAME_BYTES);
	return c->world > 0 && c->world <= WORLD_MAX &&
	       bytes_are_zero(p + 172, NAME_AT - 172) && name_is_safe(c->job_name) &&
	       bytes_are_zero(p + NAME_AT + strlen(c->job_name),
			      COMMIT_FIXED - NAME_AT - strlen(c->job_name));
}

static bool get_line(const uint8_t *p, uint32_t rank, struct shard_footer *f)
{
	f->rank = get_le32(p);
	f->footer_offset = get_le64(p + 8);
	f->footer_len = get_le64(p + 16);
	memcpy(f->footer.b, p + 24, 16);
	f->table_len = get_le64(p + 40);
	memcpy(f->table.b, p + 48, 16);
	f->stored = get_le64(p + 64);
	return f->rank == rank && get_le32(p + 4) == 0 && f->footer_offset % DISK_ALIGN == 0 &&
	       f->footer_offset >= SHARD_HEADER_BYTES && f->table_len <= f->footer_len;
}

static int get_lines(const uint8_t *p, struct commit_file *c)
{
	struct digest root;
	int r;

	c->shards = alloc_array(c->world, sizeof(*c->shards));
	if (!c->shards)
		return -ENOMEM;
	for (uint32_t i = 0; i < c->world; i++)
		if (!get_line(p + (size_t)i * COMMIT_LINE, i, &c->shards[i]))
			return CKPT_EPROTO;
	r = root_of(c->shards, c->world, &root);
	if (r == 0 && !digest_equal(&root, &c->root))
		r = CKPT_ECORRUPT;
	return r;
}

/* What follows the fixed part; digest and features were checked. */
static int get_rest(const uint8_t *p, size_t len, struct commit_file *c)
{
	uint64_t want = 0, at = COMMIT_FIXED;
	int r;

	if (!size_of(c->world, c->job_record_len, &want) || want != len)
		return CKPT_EPROTO;
	r = get_lines(p + at, c);
	if (r < 0)
		return r;
	at += (uint64_t)c->world * COMMIT_LINE;
	if (!bytes_are_zero(p + at + c->job_record_len, len - DISK_FORMAT_DIGEST - at -
			    c->job_record_len))
		return CKPT_EPROTO;
	c->job_record = alloc_copy(p + at, c->job_record_len);
	return c->job_record ? 0 : -ENOMEM;
}

int commit_file_decode(const void *bytes, size_t len, struct commit_file *ret, struct err *e)
{
	struct commit_file c = { 0 };
	bool read_only;
	int r = format_check(bytes, len, FORMAT_COMMIT, COMMIT_FIXED, "COMMIT", &read_only, e);

	if (r < 0)
		return r;
	r = get_fixed(bytes, &c) ? get_rest(bytes, len, &c) : CKPT_EPROTO;
	if (r < 0) {
		commit_file_fini(&c);
		return err_code(e, r, "COMMIT has fields that cannot be");
	}
	*ret = c;
	return 0;
}

/* ---- Files ---- */

static int sync_names(struct store *s, const struct checkpoint_id *id)
{
	char folder[DISK_PATH_MAX + 1], job[DISK_PATH_MAX + 1];
	struct disk *d = s->disk;
	int r;

	path_checkpoint(folder, id);
	path_job(job, &id->job);
	r = d->ops->sync_dir(d, folder);
	if (r == 0 && FAULT(COMMIT_DIR))
		r = -EIO;
	if (r == 0)
		r = d->ops->sync_dir(d, job);
	return r == 0 && FAULT(COMMIT_PARENT) ? -EIO : r;
}

static int publish(struct store *s, const struct commit_file *c, const void *bytes, size_t len)
{
	char folder[DISK_PATH_MAX + 1];
	struct disk *d = s->disk;
	int r;

	path_checkpoint(folder, &c->id);
	r = d->ops->sync_dir(d, folder); /* (1) */
	if (r == 0 && FAULT(COMMIT_FOLDER))
		r = -EIO;
	if (r == 0)
		r = store_place_file(s, folder, "COMMIT", bytes, len);
	if (r == 0 && FAULT(COMMIT_NAMED))
		r = -EIO;
	return r < 0 || BUG(SKIP_COMMIT_DIR_SYNC) ? r : sync_names(s, &c->id);
}

int commit_make_durable(struct store *s, const struct checkpoint_id *id, struct err *e)
{
	int r = sync_names(s, id);

	return r < 0 ? err_code(e, r, "cannot make COMMIT of step %" PRIu64 " durable", id->step)
		     : 0;
}

int commit_publish(struct store *s, const struct commit_file *c, struct err *e)
{
	struct digest root;
	void *bytes = NULL;
	size_t len = 0;
	int r = root_of(c->shards, c->world, &root);

	if (r == 0 && !digest_equal(&root, &c->root))
		return err_set(e, -EINVAL, "the root of step %" PRIu64 " is not that of its shards",
			       c->id.step);
	if (r == 0)
		r = commit_file_encode(c, &bytes, &len);
	if (r == 0)
		r = publish(s, c, bytes, len);
	alloc_free(bytes);
	return r < 0 ? err_code(e, r, "cannot publish COMMIT of step %" PRIu64, c->id.step) : 0;
}

static bool same_checkpoint(const struct checkpoint_id *a, const struct checkpoint_id *b)
{
	return job_id_equal(&a->job, &b->job) && a->step == b->step &&
	       attempt_equal(&a->attempt, &b->attempt);
}

int commit_read(struct store *s, const struct checkpoint_id *id, struct commit_file *ret,
		struct err *e)
{
	char path[DISK_PATH_MAX + 1];
	struct commit_file c = { 0 };
	void *bytes = NULL;
	size_t len = 0;
	int r;

	path_commit(path, id);
	r = store_read_file(s, path, COMMIT_FILE_MAX, &bytes, &len);
	if (r == -ENOENT)
		return err_set(e, CKPT_ENOTFOUND, "there is no '%s'", path);
	if (r < 0)
		return err_code(e, r, "cannot read '%s'", path);
	r = commit_file_decode(bytes, len, &c, e);
	alloc_free(bytes);
	if (r < 0)
		return err_wrap(e, r, "'%s'", path);
	if (!same_checkpoint(&c.id, id)) {
		commit_file_fini(&c);
		return err_set(e, CKPT_ECORRUPT, "'%s' is of another checkpoint", path);
	}
	*ret = c;
	return 0;
}
