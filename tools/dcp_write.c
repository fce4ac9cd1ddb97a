/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dcp_write.c - `ckptctl export --format dcp`: a folder that torch.distributed.checkpoint loads.
 *
 *   __N_0.distcp  for each rank N that was the first to store something: its blobs, then an archive
 *                 of torch.save() for each chunk
 *   .metadata     what is where
 *
 * (1) Every .distcp file is synced before the first is published, and .metadata, without which
 * torch sees no checkpoint, comes last; when it is replaced, the old one goes first. One thread.
 */
#include <config.h>

#include "tools/dcp_write.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "codec/floats.h"
#include "tools/torch_names.h"
#include "tools/torch_zip_write.h"

/* The file that is being written. */
struct out_file {
	struct newfile file;
	uint64_t base; /* where the archive that is open begins */
	uint64_t at;   /* its end so far, when none is open */
	size_t n_tensors;
	bool used;
};

struct writing {
	struct dcp_out d;
	struct out_file *files; /* by rank */
	uint32_t world;
	struct out_file *now;
	struct dcp_out_chunk **list; /* of the file now, in the order in which they are stored */
	struct slab_item *items;
	struct reading_want *wants;
	uint8_t *in, *out; /* out: where a cast puts its results */
	uint64_t done;     /* bytes read */
};

/* ---- Archives ---- */

static int put_file(void *arg, uint64_t offset, const void *bytes, uint64_t len, struct err *e)
{
	struct out_file *f = arg;

	return newfile_write(&f->file, f->base + offset, bytes, len, e);
}

static int begin_chunk(struct writing *w, struct torch_zip_writer *zip, struct dcp_out_chunk *c,
		       struct err *e)
{
	struct out_file *f = w->now;

	*zip = (struct torch_zip_writer){.put = put_file, .arg = f, .prefix = "archive"};
	f->base = c->offset = f->at;
	return torch_zip_begin_tensor(zip, export_dtype(w->d.x, c->tensor), c->box.ndim,
				      c->box.length, e);
}

static int end_chunk(struct writing *w, struct torch_zip_writer *zip, struct dcp_out_chunk *c,
		     struct err *e)
{
	int r = torch_zip_record_end(zip, e);

	if (r == 0)
		r = torch_zip_finish(zip, e);
	c->len = zip->at;
	w->now->at += zip->at;
	w->now->n_tensors++;
	return r;
}

/* A slab's bytes, as they were asked for. */
static int give(struct writing *w, struct torch_zip_writer *zip, const struct slab *slab,
		const struct reading_want *want, struct err *e)
{
	struct exporting *x = w->d.x;
	struct dcp_out_chunk *c = w->list[slab->which];
	struct cast cast = {.from = x->from->tensors[c->tensor].dtype,
			    .to = export_dtype(x, c->tensor)};
	uint64_t n = slab->stop - slab->start, len = n * dtype_bytes(cast.to);
	const void *bytes = want->to;
	int r = 0;

	if (cast.from != cast.to) {
		x->overflows += floats_cast(cast, want->to, n, w->out);
		bytes = w->out;
	}
	if (slab->start == 0)
		r = begin_chunk(w, zip, c, e);
	if (r == 0)
		r = torch_zip_bytes(zip, bytes, len, e);
	if (r == 0 && slab->stop == w->items[slab->which].elements)
		r = end_chunk(w, zip, c, e);
	x->bytes += len;
	return r;
}

static int fetch(struct writing *w, const struct slab *slabs, size_t n, struct err *e)
{
	struct source *from = w->d.x->from;
	uint8_t *to = w->in;

	for (size_t i = 0; i < n; i++) {
		const struct dcp_out_chunk *c = w->list[slabs[i].which];

		w->wants[i] = (struct reading_want){.tensor = c->tensor,
						    .box = c->box,
						    .start = slabs[i].start,
						    .stop = slabs[i].stop,
						    .to = to};
		to += (slabs[i].stop - slabs[i].start) *
		      dtype_bytes(from->tensors[c->tensor].dtype);
	}
	w->done += (uint64_t)(to - w->in);
	return source_pull(from, w->wants, n, e);
}

static int write_chunks(struct writing *w, size_t n, struct err *e)
{
	struct slabs slabs = {.items = w->items, .n = n, .memory = w->d.x->memory};
	struct torch_zip_writer zip = {0};
	struct slab turn[SLABS_MAX];
	size_t n_turn;
	int r = 0;

	for (size_t i = 0; i < n; i++) {
		const struct dcp_out_chunk *c = w->list[i];
		uint32_t from = dtype_bytes(w->d.x->from->tensors[c->tensor].dtype);
		uint32_t to = dtype_bytes(export_dtype(w->d.x, c->tensor));

		w->items[i].cost = w->d.x->cast ? max_u64(from, to) : from;
		if (!box_elements(&c->box, &w->items[i].elements))
			return err_set(e, CKPT_EMISMATCH, "a chunk is too large");
	}
	while (r == 0 && (n_turn = slabs_next(&slabs, turn)) > 0) {
		r = fetch(w, turn, n_turn, e);
		for (size_t i = 0; r == 0 && i < n_turn; i++)
			r = give(w, &zip, &turn[i], &w->wants[i], e);
		progress_draw(&w->d.x->progress, w->done, 0);
	}
	torch_zip_writer_free(&zip);
	return r;
}

/* Chunks without an element, which no slab has. */
static int write_empty(struct writing *w, struct dcp_out_chunk *c, struct err *e)
{
	struct torch_zip_writer zip;
	int r = begin_chunk(w, &zip, c, e);

	if (r == 0)
		r = end_chunk(w, &zip, c, e);
	torch_zip_writer_free(&zip);
	return r;
}

/* ---- Files ---- */

static int write_blob(struct writing *w, struct dcp_out_blob *b, struct err *e)
{
	struct out_file *f = w->now;

	b->offset = f->at;
	b->len = b->bytes_len;
	f->at += b->len;
	return newfile_write(&f->file, b->offset, b->bytes, b->len, e);
}

static int list_compare(const void *a, const void *b)
{
	const struct dcp_out_chunk *x = *(struct dcp_out_chunk *const *)a;
	const struct dcp_out_chunk *y = *(struct dcp_out_chunk *const *)b;

	if (x->order != y->order)
		return x->order < y->order ? -1 : 1;
	return (x > y) - (x < y);
}

static int path_of(const struct writing *w, const char *name, char path[PATH_MAX], struct err *e)
{
	int n = snprintf(path, PATH_MAX - 32, "%s/%s", w->d.x->output, name);

	return n >= PATH_MAX - 32 ? err_code(e, -ENAMETOOLONG, "make '%.200s'", w->d.x->output) : 0;
}

static int write_file(struct writing *w, uint32_t rank, struct err *e)
{
	struct out_file *f = w->now = &w->files[rank];
	char path[PATH_MAX], name[32];
	size_t n = 0;
	int r;

	snprintf(name, sizeof(name), "__%" PRIu32 "_0.distcp", rank);
	r = path_of(w, name, path, e);
	if (r == 0)
		r = newfile_begin(&f->file, path, w->d.x->replace, 0, e);
	for (size_t i = 0; r == 0 && i < w->d.n_blobs; i++)
		if (w->d.blobs[i].file == rank)
			r = write_blob(w, &w->d.blobs[i], e);
	for (size_t i = 0; r == 0 && i < w->d.n_chunks; i++) {
		struct dcp_out_chunk *c = &w->d.chunks[i];

		if (c->file != rank)
			continue;
		if (w->d.x->from->tensors[c->tensor].bytes > 0)
			w->list[n++] = c;
		else
			r = write_empty(w, c, e);
	}
	if (n > 0)
		qsort(w->list, n, sizeof(struct dcp_out_chunk *), list_compare);
	if (r == 0)
		r = write_chunks(w, n, e);
	if (r == 0)
		r = newfile_sync(&f->file, e);
	if (r == 0)
		export_tell(w->d.x, path, f->at, f->n_tensors);
	return r;
}

static int write_metadata(struct writing *w, struct newfile *file, struct err *e)
{
	CLEANUP_FREE void *bytes = NULL;
	char path[PATH_MAX];
	size_t len = 0;
	int r = dcp_out_metadata(&w->d, &bytes, &len, e);

	if (r == 0)
		r = path_of(w, ".metadata", path, e);
	if (r == 0)
		r = newfile_begin(file, path, w->d.x->replace, len, e);
	if (r == 0)
		r = newfile_write(file, 0, bytes, len, e);
	if (r == 0)
		r = newfile_sync(file, e);
	if (r == 0)
		export_tell(w->d.x, path, len, 0);
	return r;
}

/* (1) */
static int publish(struct writing *w, struct newfile *metadata, struct err *e)
{
	int r = 0;

	if (metadata->replace && unlink(metadata->path) != 0 && errno != ENOENT)
		return err_code(e, -errno, "remove '%.250s'", metadata->path);
	if (metadata->replace)
		r = folder_sync(metadata->path, e);
	for (uint32_t i = 0; r == 0 && i < w->world; i++)
		if (w->files[i].used)
			r = newfile_publish(&w->files[i].file, e);
	if (r == 0)
		r = folder_sync(metadata->path, e);
	if (r == 0)
		r = newfile_publish(metadata, e);
	if (r == 0)
		r = folder_sync(metadata->path, e);
	return r < 0 ? r : folder_sync(w->d.x->output, e); /* its own name */
}

static int write_all(struct writing *w, struct err *e)
{
	struct newfile metadata = NEWFILE_NONE;
	int r = 0;

	for (size_t i = 0; i < w->d.n_chunks; i++)
		w->files[w->d.chunks[i].file].used = true;
	for (size_t i = 0; i < w->d.n_blobs; i++)
		w->files[w->d.blobs[i].file].used = true;
	for (uint32_t i = 0; r == 0 && i < w->world; i++)
		if (w->files[i].used)
			r = write_file(w, i, e);
	if (r == 0)
		r = write_metadata(w, &metadata, e);
	if (r == 0)
		r = publish(w, &metadata, e);
	newfile_drop(&metadata);
	return r;
}

/* ---- What can be said before anything is written ---- */

static int check_tensors(const struct exporting *x, struct err *e)
{
	char name[NAME_TEXT_MAX];

	for (size_t i = 0; i < x->n; i++) {
		const struct reading_tensor *t = &x->from->tensors[x->chosen[i]];
		uint32_t dtype = export_dtype(x, x->chosen[i]);
		bool since_2;

		if (!dcp_name_fits(t->name, t->name_len))
			return err_set(
				e, -EINVAL,
				"the name of tensor '%s' is not UTF-8, as torch's names are: "
				"leave it out with --tensor '!GLOB'",
				name_text(name, t->name, t->name_len));
		if (!torch_dtype_name(dtype, &since_2) || (since_2 && x->torch_1))
			return err_set(e, -EINVAL,
				       "tensor '%s' is of %s, which torch%s does not have: leave "
				       "it out with --tensor '!GLOB'",
				       name_text(name, t->name, t->name_len), dtype_name(dtype),
				       x->torch_1 ? " 1.13" : "");
	}
	return 0;
}

static int make_output(const struct exporting *x, bool *ret_made, struct err *e)
{
	char path[PATH_MAX];

	if (x->shard_size)
		return err_set(e, -EINVAL,
			       "--shard-size is for safetensors: a DCP folder has a file for each "
			       "rank that stored something");
	snprintf(path, sizeof(path), "%.4000s/.metadata", x->output);
	if (!x->replace && access(path, F_OK) == 0)
		return err_set(e, -EEXIST,
			       "'%.250s' holds a checkpoint already: name another folder with "
			       "--output, or replace it with --yes",
			       x->output);
	*ret_made = mkdir(x->output, 0777) == 0;
	if (!*ret_made && errno != EEXIST)
		return newfile_cannot_make(x->output, -errno, e);
	return 0;
}

static int take_memory(struct writing *w, struct err *e)
{
	uint64_t memory = max_u64(w->d.x->memory, 16); /* the largest element */

	w->files = alloc_array(w->world, sizeof(*w->files));
	for (uint32_t i = 0; w->files && i < w->world; i++)
		w->files[i].file = (struct newfile)NEWFILE_NONE;
	w->list = alloc_array(w->d.n_chunks, sizeof(struct dcp_out_chunk *));
	w->items = alloc_array(w->d.n_chunks, sizeof(*w->items));
	w->wants = alloc_array(SLABS_MAX, sizeof(*w->wants));
	w->in = alloc_zero(memory);
	w->out = w->d.x->cast ? alloc_zero(memory) : NULL;
	if (!w->files || !w->list || !w->items || !w->wants || !w->in || (w->d.x->cast && !w->out))
		return err_set(e, -ENOMEM,
			       "there is no memory for buffers: give less with "
			       "--memory");
	return 0;
}

int dcp_write(struct exporting *x, struct err *e)
{
	struct writing w = {.d = {.x = x}};
	bool made = false;
	int r = check_tensors(x, e);

	if (r == 0)
		r = make_output(x, &made, e);
	if (r == 0)
		r = dcp_out_chunks(&w.d, e);
	if (r == 0)
		r = dcp_out_blobs(&w.d, e);
	w.world = reading_commit(x->from->reading)->world;
	if (r == 0)
		r = take_memory(&w, e);
	if (r == 0)
		r = write_all(&w, e);
	for (uint32_t i = 0; w.files && i < w.world; i++)
		newfile_drop(&w.files[i].file);
	if (r < 0 && made)
		rmdir(x->output); /* stays if something was published in it */
	dcp_out_fini(&w.d);
	alloc_free(w.files);
	alloc_free(w.list);
	alloc_free(w.items);
	alloc_free(w.wants);
	alloc_free(w.in);
	alloc_free(w.out);
	return r;
}
