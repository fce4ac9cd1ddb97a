/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_writer.c - begin and finish of one shard file; its chunks are in shard_image.c.
 *
 *   begin   folder (its parents are synced by commit_publish()), a file of the final name from
 *           spare/ or new, all of its space
 *   finish  footer, then header, then one fdatasync: only then may COMMIT name the file
 *
 * 1. A file that a COMMIT names is never written: begin refuses where there is one.
 * 2. A failed write or sync ends the file: it is unlinked, never synced again; who still has the
 *    bytes begins anew, with another file (design 7).
 * 3. Every byte of the file is written: nothing that it held as a spare file can be read. What was
 *    reserved and is left over behind the footer is zeroed, or cut where it is much.
 * 4. Space is reserved before the first byte, and leaves store.reserve bytes free: they are for
 *    others, for job logs, and for the small files with which space is freed. Spare files give
 *    way first; a spare file that is taken over needs no space.
 *
 * Thread: one per writer.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>

#include "base/fault.h"
#include "base/text.h"
#include "codec/digest.h"
#include "model/load_plan.h"
#include "storage/paths.h"
#include "storage/shard_image.h"
#include "storage/spare.h"

#define LEFT_OVER_MAX 65536u /* bytes of a finished file that nothing needs */

/* ---- Begin ---- */

bool shard_file_max(const struct store *s, uint64_t image_len, uint64_t present_len,
		    uint64_t table_max, uint64_t *ret)
{
	uint64_t chunk = s->geometry.chunk, n_chunks = div_up(image_len, chunk);
	uint64_t data, footer, sum;
	bool partial = present_len < image_len;

	assert(present_len <= image_len);
	if (image_len > INT64_MAX || !footer_size(table_max, n_chunks, &footer))
		return false;
	data = round_up(present_len, DISK_ALIGN);
	if (s->compression && shard_block(s->geometry, partial) == 1) {
		/* Each chunk begins with a block of its own. */
		if (!size_mul(n_chunks, round_up(chunk, DISK_ALIGN), &sum))
			return false;
		data = partial ? min_u64(sum, data + n_chunks * DISK_ALIGN) : sum;
	}
	if (footer > INT64_MAX || !size_add(data, round_up(footer, DISK_ALIGN), &sum))
		return false;
	return size_add(sum, SHARD_HEADER_BYTES, ret);
}

/* The checkpoint's folder, and the job's where this is the first thing of it. */
static int make_folder(struct store *s, const struct checkpoint_id *id)
{
	struct disk *d = s->disk;
	char folder[DISK_PATH_MAX + 1], job[DISK_PATH_MAX + 1];
	int r;

	path_checkpoint(folder, id);
	r = d->ops->mkdir(d, folder);
	if (r == -ENOENT) {
		path_job(job, &id->job);
		s->jobs_unsynced = true;
		r = d->ops->mkdir(d, job);
		if (r == 0)
			r = d->ops->mkdir(d, folder);
	}
	/* Also after a try that failed here: publishing syncs only what is below. */
	if (r == 0 && s->jobs_unsynced) {
		r = d->ops->sync_dir(d, "jobs");
		if (r == 0)
			s->jobs_unsynced = false;
	}
	return r;
}

/* -EEXIST when the checkpoint has its COMMIT. */
static int refuse_committed(struct store *s, const struct checkpoint_id *id)
{
	char path[DISK_PATH_MAX + 1];
	struct disk_file *f = NULL;
	int r;

	path_commit(path, id);
	r = s->disk->ops->open(s->disk, path, DISK_READ, &f);
	if (r == 0) {
		s->disk->ops->close(f);
		return -EEXIST;
	}
	return r == -ENOENT ? 0 : r;
}

/* -ENOSPC: so many bytes more would leave less than the reserve. */
static int check_room(struct store *s, uint64_t more)
{
	uint64_t left = 0, total = 0;
	int r = s->reserve ? s->disk->ops->space(s->disk, &left, &total) : 0;

	if (r < 0 || s->reserve == 0 || BUG(TAKE_RESERVE))
		return r;
	return left >= more && left - more >= s->reserve ? 0 : -ENOSPC;
}

static int take_space(struct shard_writer *w)
{
	const struct disk_ops *ops = w->store->disk->ops;
	int r = check_room(w->store, w->reserved);

	if (r == 0)
		r = ops->allocate(w->file, w->reserved);
	if (r < 0)
		return r;
	/* Other writers looked at the same time. */
	r = check_room(w->store, 0);
	if (r < 0)
		ignore_result(ops->truncate(w->file, 0)); /* it goes with the file otherwise */
	return r;
}

static int new_file(struct shard_writer *w)
{
	struct store *s = w->store;
	int r = s->disk->ops->open(s->disk, w->path, DISK_CREATE | DISK_EXCL | DISK_DIRECT,
				   &w->file);

	if (r < 0)
		return r;
	r = FAULT(SHARD_NAMED) ? -EIO : take_space(w);
	if (r == -ENOSPC && spare_clear(s, NULL) == 0)
		r = take_space(w);
	return r;
}

static int open_file(struct shard_writer *w)
{
	struct disk *d = w->store->disk;
	int r = d->ops->unlink(d, w->path); /* of a try that failed or crashed */

	if (r < 0 && r != -ENOENT)
		return r;
	/* A spare file that cannot be had, for whatever reason, is none. */
	if (spare_take(w->store, &w->id.job, w->path, w->reserved, &w->file) < 0)
		r = new_file(w);
	else
		r = 0;
	return r == 0 && FAULT(SHARD_ALLOCATED) ? -EIO : r;
}

static int say_why(const struct shard_writer *w, int r, struct err *e)
{
	char size[TEXT_SIZE_MAX], reserve[TEXT_SIZE_MAX];

	if (r != -ENOSPC && r != -EDQUOT)
		return err_code(e, r, "cannot begin '%s'", w->path);
	text_size(size, w->reserved);
	if (w->store->reserve == 0)
		return err_set(e, CKPT_ENOSPACE,
			       "the disk has no room for %s of '%s': free some or keep fewer "
			       "checkpoints (retention.keep_last, 'ckptctl rm')",
			       size, w->path);
	return err_set(e, CKPT_ENOSPACE,
		       "the disk has no room for %s of '%s' beside the %s that stay free "
		       "(storage.disk_reserve): free some, or keep fewer checkpoints "
		       "(retention.keep_last, 'ckptctl rm')",
		       size, w->path, text_size(reserve, w->store->reserve));
}

/* Hands over the writer, or says why it could not be begun and gives it back. */
static int hand_over(struct shard_writer *w, int r, struct shard_writer **ret, struct err *e)
{
	if (r < 0) {
		r = say_why(w, r, e);
		shard_abandon(w);
		return r;
	}
	*ret = w;
	return 0;
}

static int writer_new(struct store *s, const struct checkpoint_id *id, uint32_t rank,
		      uint64_t image_len, uint64_t table_max, const uint64_t *present,
		      struct shard_writer **ret, struct err *e)
{
	struct shard_writer *w = alloc_zero(sizeof(*w));
	int r = 0;

	if (!w)
		return err_code(e, -ENOMEM, "cannot begin a shard of rank %u", rank);
	w->store = s;
	w->id = *id;
	w->rank = rank;
	w->image_len = image_len;
	w->table_max = table_max;
	w->n_chunks = div_up(image_len, s->geometry.chunk);
	w->raw_bytes = image_len;
	if (present && image_len <= INT64_MAX) {
		w->present = present;
		w->raw_bytes = leaves_bytes(present, image_len, s->geometry.leaf);
	}
	if (w->raw_bytes == image_len)
		w->present = NULL; /* none is missing */
	path_shard(w->path, id, rank);
	if (w->present && s->geometry.chunk / s->geometry.leaf > CHUNK_LEAVES_MAX)
		r = -EINVAL;
	else if (!shard_file_max(s, image_len, w->raw_bytes, table_max, &w->reserved))
		r = -EFBIG;
	else if (!(w->places = alloc_array(w->n_chunks, CHUNK_PLACE_BYTES)))
		r = -ENOMEM;
	return hand_over(w, r, ret, e);
}

int shard_begin(struct store *s, const struct checkpoint_id *id, uint32_t rank, uint64_t image_len,
		uint64_t table_max, struct shard_writer **ret, struct err *e)
{
	return shard_begin_partial(s, id, rank, image_len, table_max, NULL, ret, e);
}

int shard_begin_partial(struct store *s, const struct checkpoint_id *id, uint32_t rank,
			uint64_t image_len, uint64_t table_max, const uint64_t *present,
			struct shard_writer **ret, struct err *e)
{
	struct shard_writer *w = NULL;
	int r = writer_new(s, id, rank, image_len, table_max, present, &w, e);

	if (r < 0)
		return r;
	r = make_folder(s, id);
	if (r == 0)
		r = refuse_committed(s, id);
	if (r == 0)
		r = open_file(w);
	return hand_over(w, r, ret, e);
}

int shard_begin_again(struct store *s, const struct checkpoint_id *id, uint32_t rank,
		      uint64_t image_len, uint64_t table_max, const uint64_t *present,
		      struct shard_writer **ret, struct err *e)
{
	struct shard_writer *w = NULL;
	int r = writer_new(s, id, rank, image_len, table_max, present, &w, e);

	if (r < 0)
		return r;
	path_shard_again(w->path, id, rank);
	r = make_folder(s, id);
	if (r == 0)
		r = open_file(w);
	return hand_over(w, r, ret, e);
}

int shard_resume(struct store *s, const struct checkpoint_id *id, uint32_t rank, uint64_t image_len,
		 uint64_t table_max, struct shard_writer **ret, struct err *e)
{
	struct shard_writer *w = NULL;
	int r = writer_new(s, id, rank, image_len, table_max, NULL, &w, e);

	if (r < 0)
		return r;
	r = s->disk->ops->open(s->disk, w->path, DISK_DIRECT, &w->file);
	if (r == 0)
		r = take_space(w);
	if (r == -ENOENT)
		r = err_set(e, CKPT_ENOTFOUND, "'%s' is gone", w->path);
	else if (r < 0)
		r = say_why(w, r, e);
	if (r < 0) {
		shard_forget(w); /* what it has may serve the next try */
		return r;
	}
	*ret = w;
	return 0;
}

/* ---- End ---- */

static void writer_free_all(struct shard_writer *w)
{
	if (w->file)
		w->file->disk->ops->close(w->file);
	alloc_free(w->places);
	/* A queue that could not be reaped may still use w->ios: then w stays. */
	if (w->in_flight == 0)
		alloc_free(w);
}

void shard_forget(struct shard_writer *w)
{
	writer_free_all(w);
}

void shard_abandon(struct shard_writer *w)
{
	struct disk *d;

	if (!w)
		return;
	d = w->store->disk;
	if (w->file)
		ignore_result(d->ops->unlink(d, w->path)); /* without COMMIT it is worth nothing */
	writer_free_all(w);
}

/*
 * How long the file is to be, with its footer. One that keeps all that was reserved fits the next
 * checkpoint; what compression saved goes back to the disk.
 */
static uint64_t final_length(const struct shard_writer *w, const struct shard_footer *f)
{
	uint64_t end = f->footer_offset + round_up(f->footer_len, DISK_ALIGN);

	assert(end <= w->reserved);
	if (w->store->compression || w->reserved - end > LEFT_OVER_MAX)
		return end;
	return w->reserved;
}

/* The image's last piece, the footer and zeros to the file's end, in one write. Sets all of *ret
 * but the file's name. */
static int write_footer(struct shard_writer *w, const void *table, size_t table_len,
			struct shard_footer *ret)
{
	uint64_t lead = w->tail_len ? DISK_ALIGN : 0, total;
	struct shard_footer_view view = {
		.rank = w->rank, .image_len = w->image_len, .stored = w->stored,
		.table = table, .table_len = table_len,
		.places = w->places, .n_chunks = w->n_chunks,
	};
	void *block = NULL;
	uint8_t *buf;
	int r;

	ret->rank = w->rank;
	ret->stored = w->stored;
	ret->footer_offset = round_up(w->data_end, DISK_ALIGN);
	if (!footer_size(table_len, w->n_chunks, &ret->footer_len))
		return -EFBIG;
	total = lead + final_length(w, ret) - ret->footer_offset;
	buf = alloc_aligned(total, &block);
	if (!buf)
		return -ENOMEM;
	memcpy(buf, w->tail, w->tail_len);
	footer_encode(&view, buf + lead);
	ret->footer = digest_of(buf + lead, ret->footer_len);
	ret->table_len = table_len;
	ret->table = digest_of(table, table_len);
	r = w->file->disk->ops->write(w->file, buf, total, ret->footer_offset - lead);
	alloc_free(block);
	return r;
}

static int write_header(struct shard_writer *w, const struct shard_footer *f)
{
	struct shard_header h = {
		.id = w->id,
		.rank = w->rank,
		.geometry = w->store->geometry,
		.image_len = w->image_len,
		.footer_offset = f->footer_offset,
		.footer_len = f->footer_len,
		.footer = f->footer,
		.partial = w->present != NULL,
	};
	void *block = NULL;
	uint8_t *buf = alloc_aligned(SHARD_HEADER_BYTES, &block);
	int r;

	if (!buf)
		return -ENOMEM;
	shard_header_encode(&h, buf);
	r = w->file->disk->ops->write(w->file, buf, SHARD_HEADER_BYTES, 0);
	alloc_free(block);
	return r;
}

static int finish(struct shard_writer *w, const void *table, size_t table_len,
		  struct shard_footer *ret)
{
	const struct disk_ops *ops = w->file->disk->ops;
	int r = write_footer(w, table, table_len, ret);

	if (r == 0 && FAULT(SHARD_FOOTER))
		r = -EIO;
	if (r == 0)
		r = write_header(w, ret);
	if (r == 0 && FAULT(SHARD_HEADER))
		r = -EIO;
	if (r == 0 && final_length(w, ret) < w->reserved)
		r = ops->truncate(w->file, final_length(w, ret));
	if (r == 0 && !BUG(SKIP_SHARD_SYNC))
		r = ops->sync(w->file);
	return r == 0 && FAULT(SHARD_SYNC) ? -EIO : r;
}

int shard_finish(struct shard_writer *w, const void *table, size_t table_len,
		 struct shard_footer *ret, struct err *e)
{
	struct shard_footer f = { 0 };
	int r;

	assert(w->written && w->in_flight == 0);
	if (table_len > w->table_max) {
		r = err_set(e, -EINVAL,
			    "the rank table has %zu bytes, room was made for %" PRIu64 " in '%s'",
			    table_len, w->table_max, w->path);
		shard_abandon(w);
		return r;
	}
	r = finish(w, table, table_len, &f);
	if (r < 0) {
		err_code(e, r, "cannot make '%s' durable: it is given up", w->path);
		shard_abandon(w);
		return r;
	}
	writer_free_all(w);
	*ret = f;
	return 0;
}
