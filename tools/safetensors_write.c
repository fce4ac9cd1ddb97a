/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors_write.c - a checkpoint's tensors as one safetensors file, or as several and an index.
 * One thread.
 *
 * 1. Tensors go into files in the checkpoint's order, which reads it from its beginning to its end;
 *    within a file they are sorted as the format's own writer does: larger dtypes first, then
 * names.
 * 2. All files are on disk before the first gets its name; an index that is replaced goes before
 *    that, and the new one comes last: who finds an index finds the files that it was made for.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "tools/document.h"
#include "tools/exchange.h"
#include "tools/plural.h"
#include "tools/safetensors.h"

#define SINGLE_NAME "model.safetensors"
#define INDEX_NAME  "model.safetensors.index.json"

struct out_file {
	struct newfile file;
	size_t first, n; /* of x->chosen */
	uint64_t bytes;  /* of the file */
};

struct writing {
	struct exporting *x;
	struct out_file *files;
	size_t n_files;
	bool in_folder; /* output is one */
	/* The file that is being written: */
	struct out_file *now;
	struct safetensors_entry *entries;
	uint64_t *places; /* in the file, of its tensors in the checkpoint's order */
	uint64_t data_at;
};

/* ---- Which tensors go into which file ---- */

/* Counts the files; with files filled in. A tensor that is larger than a file may be has its own.
 */
static size_t divide(const struct exporting *x, struct out_file *files)
{
	uint64_t size = 0;
	size_t n = 0;

	for (size_t i = 0; i < x->n; i++) {
		uint64_t bytes = export_bytes(x, x->chosen[i]);

		if (i == 0 || (x->shard_size && size &&
			       bytes > x->shard_size - min_u64(size, x->shard_size))) {
			n++;
			size = 0;
			if (files)
				files[n - 1].first = i;
		}
		size += bytes;
		if (files)
			files[n - 1].n = i + 1 - files[n - 1].first;
	}
	return n ? n : 1; /* no tensors: a file that says so */
}

static int name_file(const struct writing *w, size_t i, char ret[PATH_MAX], struct err *e)
{
	int len;

	if (!w->in_folder)
		len = snprintf(ret, PATH_MAX, "%s", w->x->output);
	else if (w->n_files == 1)
		len = snprintf(ret, PATH_MAX, "%s/" SINGLE_NAME, w->x->output);
	else
		len = snprintf(ret, PATH_MAX, "%s/model-%05zu-of-%05zu.safetensors", w->x->output,
			       i + 1, w->n_files);
	return len < PATH_MAX ? 0 : err_code(e, -ENAMETOOLONG, "make '%.200s'", w->x->output);
}

/* ---- One file ---- */

static int by_rank(const void *a, const void *b)
{
	const struct safetensors_entry *x = a, *y = b;
	int rx = safetensors_rank(x->dtype), ry = safetensors_rank(y->dtype);

	if (rx != ry)
		return ry - rx;
	return name_compare(x->name, x->name_len, y->name, y->name_len);
}

/* Fills entries in the file's order. `begin` holds each one's index until it is sorted. */
static void place(struct writing *w)
{
	const struct exporting *x = w->x;
	uint64_t at = 0;

	for (size_t i = 0; i < w->now->n; i++) {
		size_t tensor = x->chosen[w->now->first + i];
		const struct reading_tensor *t = &x->from->tensors[tensor];

		w->entries[i] = (struct safetensors_entry){.name = t->name,
							   .name_len = t->name_len,
							   .dtype = export_dtype(x, tensor),
							   .shape = t->global,
							   .begin = i};
	}
	if (w->now->n)
		qsort(w->entries, w->now->n, sizeof(*w->entries), by_rank);
	for (size_t i = 0; i < w->now->n; i++) {
		struct safetensors_entry *t = &w->entries[i];
		size_t index = t->begin;

		t->begin = w->places[index] = at;
		at += export_bytes(x, x->chosen[w->now->first + index]);
		t->end = at;
	}
}

static int put(void *arg, const struct export_piece *p, struct err *e)
{
	struct writing *w = arg;

	return newfile_write(&w->now->file, w->data_at + w->places[p->at] + p->offset, p->bytes,
			     p->len, e);
}

static int write_file(struct writing *w, size_t i, struct err *e)
{
	struct out_file *f = w->now = &w->files[i];
	char path[PATH_MAX];
	void *header = NULL;
	size_t len = 0;
	int r = name_file(w, i, path, e);

	place(w);
	if (r == 0)
		r = safetensors_build(w->entries, f->n, w->x->metadata, &header, &len, e);
	if (r < 0)
		return r;
	w->data_at = len;
	f->bytes = len + (f->n ? w->entries[f->n - 1].end : 0);
	r = newfile_begin(&f->file, path, w->x->replace, f->bytes, e);
	if (r == 0)
		r = newfile_write(&f->file, 0, header, len, e);
	alloc_free(header);
	if (r == 0)
		r = export_stream(w->x, w->x->chosen + f->first, f->n, put, w, e);
	if (r == 0)
		r = newfile_sync(&f->file, e);
	return r;
}

/* ---- The index ---- */

static char *index_text(const struct writing *w, uint64_t total)
{
	json_t *map = json_object(), *doc;
	char path[PATH_MAX], *text = NULL;

	for (size_t i = 0; i < w->n_files; i++) {
		if (name_file(w, i, path, NULL) < 0)
			continue; /* it was made: cannot be */
		for (size_t k = 0; k < w->files[i].n; k++) {
			const struct reading_tensor *t =
				&w->x->from->tensors[w->x->chosen[w->files[i].first + k]];

			json_object_setn_new(map, t->name, t->name_len,
					     json_string(strrchr(path, '/') + 1));
		}
	}
	doc = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total, "weight_map",
			map);
	text = json_dumps(doc, JSON_INDENT(2) | JSON_SORT_KEYS);
	json_decref(doc);
	return text;
}

static int write_index(struct writing *w, struct newfile *f, struct err *e)
{
	CLEANUP_FREE char *text = index_text(w, w->x->bytes);
	char path[PATH_MAX];
	int r;

	if (!text)
		return err_code(e, -ENOMEM, "make the index");
	snprintf(path, sizeof(path), "%.4000s/" INDEX_NAME, w->x->output);
	r = newfile_begin(f, path, w->x->replace, 0, e);
	if (r == 0)
		r = newfile_write(f, 0, text, strlen(text), e);
	if (r == 0)
		r = newfile_sync(f, e);
	if (r == 0)
		export_tell(w->x, path, strlen(text), 0);
	return r;
}

/* ---- All of them ---- */

static int publish(struct writing *w, struct newfile *index, struct err *e)
{
	bool has_index = index->temporary[0];
	int r = 0;

	if (has_index && index->replace && unlink(index->path) != 0 && errno != ENOENT) /* (2) */
		return err_code(e, -errno, "remove '%.250s'", index->path);
	if (has_index && index->replace) /* before other files have the names that are in it */
		r = folder_sync(index->path, e);
	for (size_t i = 0; r == 0 && i < w->n_files; i++)
		r = newfile_publish(&w->files[i].file, e);
	if (r == 0)
		r = folder_sync(w->files[0].file.path, e);
	if (r == 0 && has_index) {
		r = newfile_publish(index, e);
		if (r == 0)
			r = folder_sync(index->path, e);
	}
	if (r == 0 && w->in_folder)
		r = folder_sync(w->x->output, e); /* its own name */
	return r;
}

static int write_all(struct writing *w, struct err *e)
{
	struct newfile index = NEWFILE_NONE;
	size_t largest = 0;
	int r = 0;

	divide(w->x, w->files);
	for (size_t i = 0; i < w->n_files; i++)
		largest = max_u64(largest, w->files[i].n);
	w->entries = alloc_array(largest, sizeof(*w->entries));
	w->places = alloc_array(largest, sizeof(*w->places));
	if (!w->entries || !w->places)
		r = err_code(e, -ENOMEM, "place the tensors");
	for (size_t i = 0; r == 0 && i < w->n_files; i++) {
		r = write_file(w, i, e);
		if (r == 0)
			export_tell(w->x, w->files[i].file.path, w->files[i].bytes, w->files[i].n);
	}
	if (r == 0 && w->n_files > 1)
		r = write_index(w, &index, e);
	if (r == 0)
		r = publish(w, &index, e);
	newfile_drop(&index);
	return r;
}

/* Every tensor that the format cannot hold, before anything is written. */
static int check_dtypes(const struct exporting *x, struct err *e)
{
	const struct reading_tensor *first = NULL;
	char name[NAME_TEXT_MAX];
	size_t n = 0;

	for (size_t i = 0; i < x->n; i++) {
		const struct reading_tensor *t = &x->from->tensors[x->chosen[i]];

		if (safetensors_dtype(t->dtype))
			continue;
		first = first ? first : t;
		n++;
	}
	if (!first)
		return 0;
	return err_set(e, -EINVAL,
		       "%zu tensor%s of dtypes that safetensors does not have, first '%s' "
		       "(%s): leave them out with --tensor '!GLOB'",
		       n, plural(n), name_text(name, first->name, first->name_len),
		       dtype_name(first->dtype));
}

int safetensors_write(struct exporting *x, struct err *e)
{
	struct writing w = {.x = x};
	struct stat st;
	int r = check_dtypes(x, e);

	if (r < 0)
		return r;
	if (x->shard_size && mkdir(x->output, 0777) != 0 && errno != EEXIST)
		return newfile_cannot_make(x->output, -errno, e);
	w.in_folder = x->shard_size || (stat(x->output, &st) == 0 && S_ISDIR(st.st_mode));
	w.n_files = divide(x, NULL);
	w.files = alloc_array(w.n_files, sizeof(*w.files));
	if (!w.files)
		return err_code(e, -ENOMEM, "make %zu file%s", w.n_files, plural(w.n_files));
	for (size_t i = 0; i < w.n_files; i++)
		w.files[i].file = (struct newfile)NEWFILE_NONE;
	r = write_all(&w, e);
	for (size_t i = 0; i < w.n_files; i++)
		newfile_drop(&w.files[i].file);
	alloc_free(w.files);
	alloc_free(w.entries);
	alloc_free(w.places);
	return r;
}
