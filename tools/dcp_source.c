/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dcp_source.c - a folder of torch.distributed.checkpoint (.metadata and .distcp files) as a
 * source.
 *
 * Tensors come in the order in which their bytes lie in the files. Before the source is given away
 * every place is inside its file, and every tensor's chunks are disjoint and cover it. One thread.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "tools/dcp_metadata.h"
#include "tools/plural.h"
#include "tools/source_memory.h"
#include "tools/torch_source.h"
#include "tools/torch_values.h"

#define METADATA ".metadata"

static int read_whole(int folder, const char *name, uint64_t offset, uint64_t len, void **ret,
		      struct err *e)
{
	int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	uint8_t *bytes = fd < 0 ? NULL : alloc_zero(len + 1);
	uint64_t done = 0;
	ssize_t n = 1;
	int r = 0;

	if (fd < 0)
		return err_code(e, -errno, "open '%s'", name);
	if (!bytes)
		r = err_code(e, -ENOMEM, "read %" PRIu64 " byte%s of '%s'", len, plural(len), name);
	while (r == 0 && done < len && n > 0) {
		n = pread(fd, bytes + done, len - done, (off_t)(offset + done));
		if (n < 0)
			r = err_code(e, -errno, "read '%s'", name);
		else
			done += (uint64_t)n;
	}
	if (r == 0 && done < len)
		r = err_set(e, CKPT_ECORRUPT, "'%s' became shorter while it was read", name);
	close(fd); /* was only read */
	if (r < 0) {
		alloc_free(bytes);
		return r;
	}
	*ret = bytes;
	return 0;
}

static int read_metadata(struct torch_source *t, void **ret, size_t *ret_len, struct err *e)
{
	struct stat st;

	if (fstatat(t->folder, METADATA, &st, 0) != 0) {
		int why = errno;

		if (why == ENOENT && faccessat(t->folder, "__0" METADATA, F_OK, 0) == 0)
			return err_set(e, CKPT_EVERSION,
				       "%.200s was saved with use_collectives=False: each rank has "
				       "metadata of its own there, and nothing says what the whole "
				       "is; save it with collectives",
				       t->what);
		if (why == ENOENT)
			return err_set(e, CKPT_EPROTO,
				       "%.200s has no file .metadata: it is no folder of "
				       "torch.distributed.checkpoint, or was not saved to its end",
				       t->what);
		return err_code(e, -why, "%.200s/.metadata", t->what);
	}
	if (!S_ISREG(st.st_mode) || st.st_size > PICKLE_BYTES_MAX)
		return err_set(e, CKPT_EPROTO,
			       "%.200s: its .metadata is no file of at most %u bytes", t->what,
			       PICKLE_BYTES_MAX);
	*ret_len = (size_t)st.st_size;
	source_metadata(*ret_len);
	return read_whole(t->folder, METADATA, 0, *ret_len, ret, e);
}

/* ---- Places ---- */

static int check_place(const struct dcp_place *p, const uint64_t *sizes, char *const *files,
		       struct err *e)
{
	uint64_t end = 0;

	if (!size_add(p->offset, p->len, &end) || end > sizes[p->file])
		return err_set(e, CKPT_ECORRUPT,
			       "it is said to be at bytes %" PRIu64 " to %" PRIu64
			       " of '%.100s', which has %" PRIu64,
			       p->offset, end > p->offset ? end : UINT64_MAX, files[p->file],
			       sizes[p->file]);
	return 0;
}

static int stat_files(struct torch_source *t, const struct dcp_metadata *m, uint64_t *sizes,
		      struct err *e)
{
	t->files = alloc_array(m->n_files, sizeof(*t->files));
	if (!t->files)
		return err_code(e, -ENOMEM, "%zu file%s", m->n_files, plural(m->n_files));
	for (size_t i = 0; i < m->n_files; i++) {
		const struct dcp_file *f = &m->files[i];
		struct stat st;

		t->files[i] = alloc_zero(f->name_len + 1);
		if (!t->files[i])
			return err_code(e, -ENOMEM, "%zu file%s", m->n_files, plural(m->n_files));
		t->n_files++;
		memcpy(t->files[i], f->name, f->name_len);
		if (fstatat(t->folder, t->files[i], &st, 0) != 0)
			return err_set(e, errno == ENOENT ? CKPT_ECORRUPT : -errno,
				       "%.150s: its file '%.100s', which .metadata names: %s",
				       t->what, t->files[i], err_text(-errno));
		if (!S_ISREG(st.st_mode))
			return err_set(e, CKPT_EPROTO, "%.200s: '%.200s' is no regular file",
				       t->what, t->files[i]);
		sizes[i] = (uint64_t)st.st_size;
	}
	return 0;
}

/* ---- Tensors, in the order of their bytes ---- */

struct ordered {
	const struct dcp_tensor *tensor;
	const struct dcp_place *first; /* NULL: it has no bytes */
};

static int ordered_compare(const void *a, const void *b)
{
	const struct ordered *x = a, *y = b;

	if (!x->first || !y->first)
		return !x->first && !y->first ? (x->tensor > y->tensor) - (x->tensor < y->tensor)
		       : !x->first            ? -1
					      : 1;
	if (x->first->file != y->first->file)
		return x->first->file < y->first->file ? -1 : 1;
	if (x->first->offset != y->first->offset)
		return x->first->offset < y->first->offset ? -1 : 1;
	return (x->tensor > y->tensor) - (x->tensor < y->tensor);
}

static int take_tensor(struct torch_source *t, const struct dcp_metadata *m, size_t i,
		       const struct dcp_tensor *from, const uint64_t *sizes, struct err *e)
{
	struct reading_tensor *to = &t->tensors[i];
	const char *name = texts_keep(&t->names, from->name, from->name_len);
	uint64_t elements;
	size_t part = t->first_part[i];
	int r = 0;

	if (!name)
		return err_code(e, -ENOMEM, "keep a name");
	*to = (struct reading_tensor){.name = name,
				      .name_len = from->name_len,
				      .dtype = from->dtype,
				      .global = from->shape};
	t->s.n = i + 1;
	if (!shape_elements(&from->shape, &elements) ||
	    !size_mul(elements, dtype_bytes(from->dtype), &to->bytes))
		return err_set(e, CKPT_EPROTO, "it has too many elements");
	for (size_t k = 0; r == 0 && k < from->n_chunks; k++, part++) {
		const struct dcp_chunk *c = &m->chunks[from->first_chunk + k];

		t->parts[part] = (struct torch_part){.box = c->box,
						     .file = c->place.file,
						     .offset = c->place.offset,
						     .len = c->place.len};
		r = check_place(&c->place, sizes, t->files, e);
	}
	t->first_part[i + 1] = part;
	return r;
}

static int take_tensors(struct torch_source *t, const struct dcp_metadata *m, const uint64_t *sizes,
			struct err *e)
{
	CLEANUP_FREE struct ordered *order = alloc_array(m->n_tensors, sizeof(*order));
	char text[NAME_TEXT_MAX];
	int r = 0;

	t->tensors = alloc_array(m->n_tensors, sizeof(*t->tensors));
	t->first_part = alloc_array(m->n_tensors + 1, sizeof(*t->first_part));
	t->parts = alloc_array(m->n_chunks, sizeof(*t->parts));
	if (!order || !t->tensors || !t->first_part || !t->parts)
		return err_code(e, -ENOMEM, "%zu tensor%s", m->n_tensors, plural(m->n_tensors));
	for (size_t i = 0; i < m->n_tensors; i++) {
		const struct dcp_tensor *from = &m->tensors[i];

		order[i].tensor = from;
		order[i].first = from->n_chunks ? &m->chunks[from->first_chunk].place : NULL;
	}
	if (m->n_tensors > 0)
		qsort(order, m->n_tensors, sizeof(*order), ordered_compare);
	for (size_t i = 0; r == 0 && i < m->n_tensors; i++) {
		r = take_tensor(t, m, i, order[i].tensor, sizes, e);
		if (r < 0)
			err_wrap(e, r, "%.150s: tensor '%s'", t->what,
				 name_text(text, order[i].tensor->name, order[i].tensor->name_len));
	}
	return r;
}

/* ---- Blobs ---- */

static int take_blob(struct torch_source *t, const struct dcp_blob *b, const uint64_t *sizes,
		     struct err *e)
{
	CLEANUP_FREE void *bytes = NULL, *inner = NULL;
	size_t inner_len;
	int r = check_place(&b->place, sizes, t->files, e);

	if (r == 0 && b->place.len > TORCH_BLOBS_MAX)
		r = err_set(e, -E2BIG, "it has more than %" PRIu64 " bytes", TORCH_BLOBS_MAX);
	if (r == 0)
		source_metadata(b->place.len);
	if (r == 0)
		r = read_whole(t->folder, t->files[b->place.file], b->place.offset, b->place.len,
			       &bytes, e);
	if (r == 0)
		r = value_unwrap(bytes, b->place.len, &inner, &inner_len, e);
	if (r < 0)
		return r;
	return r == 1 ? torch_source_add_blob(t, b->name, b->name_len, inner, inner_len, e)
		      : torch_source_add_blob(t, b->name, b->name_len, bytes, b->place.len, e);
}

static int take_blobs(struct torch_source *t, const struct dcp_metadata *m, const uint64_t *sizes,
		      struct err *e)
{
	struct writer paths = {0};
	char text[NAME_TEXT_MAX];
	int r = 0;

	for (size_t i = 0; r == 0 && i < m->n_blobs; i++) {
		const struct dcp_blob *b = &m->blobs[i];

		r = take_blob(t, b, sizes, e);
		if (r < 0)
			err_wrap(e, r, "%.150s: '%s'", t->what,
				 name_text(text, b->name, b->name_len));
	}
	if (r == 0 && m->planner_data)
		r = paths_of_planner(&m->pickle, m->planner_data, &paths, e);
	if (r == 0 && paths.len > 0)
		r = torch_source_add_blob(t, TORCH_PATHS_BLOB, strlen(TORCH_PATHS_BLOB), paths.buf,
					  paths.len, e);
	writer_free(&paths);
	return r;
}

/* ---- Open ---- */

bool dcp_detect(const char *path)
{
	char name[PATH_MAX];
	int n = snprintf(name, sizeof(name), "%s/" METADATA, path);

	if (n < 0 || (size_t)n >= sizeof(name))
		return false;
	if (access(name, F_OK) == 0)
		return true;
	n = snprintf(name, sizeof(name), "%s/__0" METADATA, path);
	return n > 0 && (size_t)n < sizeof(name) && access(name, F_OK) == 0;
}

/* Each part of the metadata goes as soon as it is not needed any more. */
static int take_all(struct torch_source *t, struct dcp_metadata *m, struct err *e)
{
	CLEANUP_FREE uint64_t *sizes = alloc_array(m->n_files, sizeof(*sizes));
	int r = sizes ? stat_files(t, m, sizes, e)
		      : err_code(e, -ENOMEM, "%zu file%s", m->n_files, plural(m->n_files));

	if (r == 0)
		r = take_blobs(t, m, sizes, e);
	dcp_metadata_forget_pickle(m);
	if (r == 0)
		r = take_tensors(t, m, sizes, e);
	dcp_metadata_fini(m);
	if (r < 0)
		return r;
	r = torch_source_ready(t, e);
	return r < 0 ? err_wrap(e, r, "%.150s", t->what) : 0;
}

int dcp_open(const char *path, struct source **ret, struct err *e)
{
	CLEANUP_FREE void *bytes = NULL;
	struct dcp_metadata m = {0};
	struct torch_source *t;
	size_t len = 0;
	int r = torch_source_new(path, &t, e);

	if (r < 0)
		return r;
	t->folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (t->folder < 0)
		r = err_code(e, -errno, "open the folder '%.250s'", path);
	if (r == 0)
		r = read_metadata(t, &bytes, &len, e);
	if (r == 0) {
		r = dcp_metadata_read(bytes, len, &m, e);
		if (r < 0)
			err_wrap(e, r, "%.200s: its .metadata", t->what);
	}
	if (r == 0)
		r = take_all(t, &m, e);
	dcp_metadata_fini(&m);
	if (r < 0) {
		torch_source_close(&t->s);
		return r;
	}
	*ret = &t->s;
	return 0;
}
