/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dcp_chunks.c - which chunks and bytes items a checkpoint becomes. One thread.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "tools/dcp_write.h"
#include "tools/plural.h"
#include "tools/torch_source.h"
#include "tools/torch_values.h"

/* ---- Chunks ---- */

static int add_chunk(struct dcp_out *d, const struct dcp_out_chunk *c, struct err *e)
{
	if (d->n_chunks == d->cap_chunks) {
		size_t cap = d->cap_chunks ? 2 * d->cap_chunks : 256;
		struct dcp_out_chunk *chunks = alloc_resize(d->chunks, cap * sizeof(*chunks));

		if (!chunks)
			return err_code(e, -ENOMEM, "%zu chunk%s", cap, plural(cap));
		d->chunks = chunks;
		d->cap_chunks = cap;
	}
	d->chunks[d->n_chunks++] = *c;
	return 0;
}

static int add_shard(struct dcp_out *d, const bool *chosen, const struct shard *s, uint32_t rank,
		     struct err *e)
{
	size_t tensor = reading_find(d->x->from->reading, s->name, s->name_len);
	struct box boxes[FLAT_BOXES_MAX];
	int n, r = 0;

	if (tensor == SIZE_MAX || !chosen[tensor])
		return 0;
	n = shard_boxes(s, boxes);
	for (int i = 0; r == 0 && i < n; i++)
		r = add_chunk(d,
			      &(struct dcp_out_chunk){.tensor = tensor,
						      .box = boxes[i],
						      .file = rank,
						      .order = s->image_offset + (uint64_t)i},
			      e);
	return r;
}

static int box_compare(const struct box *a, const struct box *b)
{
	assert(a->ndim == b->ndim);
	for (uint32_t i = 0; i < a->ndim; i++)
		if (a->offset[i] != b->offset[i])
			return a->offset[i] < b->offset[i] ? -1 : 1;
	for (uint32_t i = 0; i < a->ndim; i++)
		if (a->length[i] != b->length[i])
			return a->length[i] < b->length[i] ? -1 : 1;
	return 0;
}

static int chunk_compare(const void *a, const void *b)
{
	const struct dcp_out_chunk *x = a, *y = b;
	int order;

	if (x->tensor != y->tensor)
		return x->tensor < y->tensor ? -1 : 1;
	order = box_compare(&x->box, &y->box);
	if (order)
		return order;
	return x->file != y->file ? (x->file < y->file ? -1 : 1)
				  : (x->order > y->order) - (x->order < y->order);
}

/* Whether no two of them share an element; they cover the tensor, since it can be read. */
static int are_disjoint(const struct reading_tensor *t, const struct dcp_out_chunk *chunks,
			size_t n, struct err *e)
{
	struct shard s = {
		.name = t->name, .name_len = t->name_len, .dtype = t->dtype, .global = t->global};
	CLEANUP_FREE void *bytes = NULL;
	struct declaration_builder *b;
	size_t len;
	int r = declaration_builder_new(GEOMETRY_DEFAULT, &b);

	if (r < 0)
		return err_code(e, r, "divide a tensor");
	for (size_t i = 0; r >= 0 && i < n; i++) {
		s.box = chunks[i].box;
		r = declaration_add(b, &s, NULL);
	}
	if (r >= 0)
		r = declaration_finish(b, &bytes, &len, NULL);
	declaration_builder_free(b);
	if (r == -ENOMEM)
		return err_code(e, r, "divide a tensor");
	return r >= 0;
}

/* Those of one tensor: each once, or one for all. Returns how many stay at the front. */
static int settle(struct dcp_out *d, struct dcp_out_chunk *chunks, size_t n, struct err *e)
{
	const struct reading_tensor *t = &d->x->from->tensors[chunks[0].tensor];
	struct dcp_out_chunk whole = chunks[0];
	size_t kept = 1;
	int r;

	for (size_t i = 1; i < n; i++)
		if (box_compare(&chunks[kept - 1].box, &chunks[i].box) != 0)
			chunks[kept++] = chunks[i];
	r = kept == 1 ? 1 : are_disjoint(t, chunks, kept, e);
	if (r < 0)
		return r;
	if (r == 0) {
		whole.box = (struct box){.ndim = t->global.ndim};
		memcpy(whole.box.length, t->global.dim, sizeof(whole.box.length));
		chunks[0] = whole;
		kept = 1;
	}
	return (int)kept;
}

static int settle_all(struct dcp_out *d, struct err *e)
{
	size_t to = 0;

	if (d->n_chunks > 0)
		qsort(d->chunks, d->n_chunks, sizeof(*d->chunks), chunk_compare);
	for (size_t i = 0, next; i < d->n_chunks; i = next) {
		int kept;

		next = i + 1;
		while (next < d->n_chunks && d->chunks[next].tensor == d->chunks[i].tensor)
			next++;
		kept = settle(d, d->chunks + i, next - i, e);
		if (kept < 0)
			return kept;
		memmove(d->chunks + to, d->chunks + i, (size_t)kept * sizeof(*d->chunks));
		to += (size_t)kept;
	}
	d->n_chunks = to;
	return 0;
}

/* Tensors without an element are stored by nobody; torch wants a chunk of them all the same. */
static int add_empty(struct dcp_out *d, struct err *e)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < d->x->n; i++) {
		size_t tensor = d->x->chosen[i];
		const struct reading_tensor *t = &d->x->from->tensors[tensor];
		struct dcp_out_chunk c = {.tensor = tensor, .box = {.ndim = t->global.ndim}};

		if (t->bytes > 0)
			continue;
		memcpy(c.box.length, t->global.dim, sizeof(c.box.length));
		r = add_chunk(d, &c, e);
	}
	return r;
}

int dcp_out_chunks(struct dcp_out *d, struct err *e)
{
	struct reading *from = d->x->from->reading;
	CLEANUP_FREE bool *chosen = alloc_array(d->x->from->n, sizeof(*chosen));
	int r = 0;

	if (!chosen)
		return err_code(e, -ENOMEM, "choose tensors");
	for (size_t i = 0; i < d->x->n; i++)
		chosen[d->x->chosen[i]] = true;
	for (uint32_t rank = 0; r == 0 && rank < reading_commit(from)->world; rank++) {
		const struct rank_table *t = reading_table(from, rank);

		if (!t)
			return err_set(e, CKPT_ESTATE, "the table of rank %" PRIu32 " is gone",
				       rank);
		for (uint32_t i = 0; r == 0 && i < t->declaration.n_shards; i++) {
			struct shard s;

			declaration_get(&t->declaration, i, &s);
			r = add_shard(d, chosen, &s, rank, e);
		}
	}
	if (r == 0)
		r = settle_all(d, e);
	return r < 0 ? r : add_empty(d, e);
}

/* ---- Blobs ---- */

bool dcp_name_fits(const char *name, size_t len)
{
	json_t *text = json_stringn(name, len); /* checks it */
	bool fits = text != NULL;

	json_decref(text);
	return fits;
}

int dcp_out_add_blob(struct dcp_out *d, uint32_t rank, const char *name, size_t name_len,
		     const void *bytes, size_t len, struct err *e)
{
	struct dcp_out_blob *to = &d->blobs[d->n_blobs];
	int r;

	assert(d->n_blobs < d->cap_blobs);
	*to = (struct dcp_out_blob){.file = rank, .name = alloc_zero(name_len + 1)};
	if (!to->name)
		return err_code(e, -ENOMEM, "keep a name");
	d->n_blobs++;
	memcpy(to->name, name, name_len);
	to->bytes_len = len;
	r = value_wrap(bytes, len, &to->bytes, &to->bytes_len, e);
	if (r != 0)
		return r < 0 ? r : 0;
	to->bytes = alloc_zero(max_u64(len, 1));
	if (!to->bytes)
		return err_code(e, -ENOMEM, "keep a blob of %zu byte%s", len, plural(len));
	memcpy(to->bytes, bytes, len);
	return 0;
}

static int take_blob(struct dcp_out *d, uint32_t rank, const struct blob_entry *b, struct err *e)
{
	CLEANUP_FREE char *name = alloc_zero(b->name_len + 1); /* reading may move the table */
	CLEANUP_FREE void *bytes = NULL;
	uint64_t len;
	int r;

	if (!name)
		return err_code(e, -ENOMEM, "keep a name");
	memcpy(name, b->name, b->name_len);
	if (dcp_adapter_has(d, name))
		return 0;
	r = reading_blob(d->x->from->reading, rank, name, b->name_len, &bytes, &len, e);
	if (r < 0)
		return r;
	if (rank == 0 && !d->paths && strcmp(name, TORCH_PATHS_BLOB) == 0) {
		d->paths = json_loadb(bytes, len, 0, NULL);
		if (d->paths) /* goes out as planner_data */
			return 0;
	}
	return dcp_out_add_blob(d, rank, name, b->name_len, bytes, len, e);
}

static int blob_compare(const void *a, const void *b)
{
	const struct dcp_out_blob *x = a, *y = b;
	int order = strcmp(x->name, y->name);

	return order ? order : (x->file > y->file) - (x->file < y->file);
}

static void drop_blob(struct dcp_out_blob *b)
{
	alloc_free(b->name);
	alloc_free(b->bytes);
	*b = (struct dcp_out_blob){0};
}

static int name_by_rank(struct dcp_out_blob *b, struct err *e)
{
	size_t size = strlen(b->name) + 20;
	char *name = alloc_zero(size);

	if (!name)
		return err_code(e, -ENOMEM, "keep a name");
	snprintf(name, size, "%s.rank%" PRIu32, b->name, b->file);
	alloc_free(b->name);
	b->name = name;
	return 0;
}

/* n blobs of one name: the first alone when all are equal; the others lose their name. */
static int settle_blobs(struct dcp_out_blob *b, size_t n, struct err *e)
{
	bool equal = true;
	int r = 0;

	for (size_t i = 1; i < n; i++)
		equal = equal && b[i].bytes_len == b[0].bytes_len &&
			(b[0].bytes_len == 0 ||
			 memcmp(b[i].bytes, b[0].bytes, b[0].bytes_len) == 0);
	for (size_t i = equal ? 1 : 0; r == 0 && i < n; i++) {
		if (equal)
			drop_blob(&b[i]);
		else
			r = name_by_rank(&b[i], e);
	}
	return r;
}

/* Names of items, among themselves and against the tensors'. */
static int check_names(struct dcp_out *d, struct err *e)
{
	if (d->n_blobs > 0)
		qsort(d->blobs, d->n_blobs, sizeof(*d->blobs), blob_compare);
	for (size_t i = 0; i < d->n_blobs; i++) {
		const char *name = d->blobs[i].name;
		char text[NAME_TEXT_MAX];

		if (!dcp_name_fits(name, strlen(name)))
			return err_set(e, -EINVAL,
				       "the name of blob '%s' is not UTF-8, as torch's names are",
				       name_text(text, name, (uint32_t)strlen(name)));
		if ((i > 0 && strcmp(d->blobs[i - 1].name, name) == 0) ||
		    reading_find(d->x->from->reading, name, (uint32_t)strlen(name)) != SIZE_MAX)
			return err_set(e, CKPT_EMISMATCH,
				       "the blob '%.150s' has the name of another item: a state "
				       "dictionary cannot hold both",
				       name);
	}
	return 0;
}

static int settle_all_blobs(struct dcp_out *d, struct err *e)
{
	size_t n = d->n_blobs, to = 0;
	int r = 0;

	if (n > 0)
		qsort(d->blobs, n, sizeof(*d->blobs), blob_compare);
	for (size_t i = 0, next; r == 0 && i < n; i = next) {
		next = i + 1;
		while (next < n && strcmp(d->blobs[next].name, d->blobs[i].name) == 0)
			next++;
		r = settle_blobs(d->blobs + i, next - i, e);
	}
	if (r < 0)
		return r;
	for (size_t i = 0; i < n; i++)
		if (d->blobs[i].name)
			d->blobs[to++] = d->blobs[i];
	d->n_blobs = to;
	return check_names(d, e);
}

static int take_blobs(struct dcp_out *d, struct err *e)
{
	struct reading *from = d->x->from->reading;
	int r = 0;

	for (uint32_t rank = 0; r == 0 && rank < reading_commit(from)->world; rank++) {
		const struct rank_table *t = reading_table(from, rank);

		/* reading_blob() may move the table. */
		for (uint32_t i = 0; r == 0 && t && i < t->n_blobs;
		     i++, t = reading_table(from, rank)) {
			struct blob_entry b;

			r = rank_table_blob(t, i, &b);
			r = r < 0 ? err_code(e, r, "a blob of rank %" PRIu32, rank)
				  : take_blob(d, rank, &b, e);
		}
	}
	return r;
}

int dcp_out_blobs(struct dcp_out *d, struct err *e)
{
	struct reading *from = d->x->from->reading;
	uint64_t n = 0;
	int r = dcp_adapter_read(d, e);

	if (r < 0)
		return r;
	for (uint32_t rank = 0; rank < reading_commit(from)->world; rank++)
		n += reading_table(from, rank) ? reading_table(from, rank)->n_blobs : 0;
	d->cap_blobs = n + dcp_adapter_packed(d);
	d->blobs = alloc_array(d->cap_blobs, sizeof(*d->blobs));
	if (!d->blobs)
		return err_code(e, -ENOMEM, "%zu blob%s", d->cap_blobs, plural(d->cap_blobs));
	r = take_blobs(d, e);
	if (r == 0)
		r = dcp_adapter_unpack(d, e);
	d->x->blobs = n;
	return r < 0 ? r : settle_all_blobs(d, e);
}

void dcp_out_fini(struct dcp_out *d)
{
	for (size_t i = 0; i < d->n_blobs; i++)
		drop_blob(&d->blobs[i]);
	alloc_free(d->blobs);
	alloc_free(d->chunks);
	json_decref(d->paths);
	json_decref(d->adapter);
	*d = (struct dcp_out){0};
}
