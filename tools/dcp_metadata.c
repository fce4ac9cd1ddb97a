/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dcp_metadata.c - from the tree of a .metadata pickle to lists.
 *
 *   Metadata(state_dict_metadata, planner_data, storage_data, ...)
 *     state_dict_metadata  name -> TensorStorageMetadata(properties, size, chunks: offsets, sizes)
 *                                | BytesStorageMetadata()
 *     storage_data         MetadataIndex(fqn, offset) -> _StorageInfo(relative_path, offset,
 * length)
 *
 * storage_data is sorted by name and offset and each chunk looked up in it: O(n log n). One thread.
 */
#include <config.h>

#include "tools/dcp_metadata.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "tools/plural.h"
#include "tools/torch_names.h"
#include "tools/torch_tensor.h"

/* An entry of storage_data. */
struct entry {
	const char *name;
	uint32_t name_len;
	struct shape at; /* the chunk's offsets; of a blob and a scalar: no dimensions */
	const struct pickle_value *info;
};

struct reading_metadata {
	struct dcp_metadata *m;
	const struct pickle *p;
	struct entry *entries;
	size_t n_entries;
};

/* A field of a dataclass; NULL: v is no such object, or has none. */
static const struct pickle_value *field(const struct pickle *p, const struct pickle_value *v,
					enum torch_id id, const char *name)
{
	return pickle_is_call(p, v, (uint16_t)id) ? pickle_get(p, pickle_state(p, v), name) : NULL;
}

static int name_of(const struct pickle *p, const struct pickle_value *v, const char **ret,
		   uint32_t *ret_len, struct err *e)
{
	char text[NAME_TEXT_MAX];

	if (v->type != PICKLE_STR)
		return err_set(e, CKPT_EPROTO, "a name is a %s", pickle_type_text(p, v));
	if (v->n == 0 || v->n > CKPT_NAME_MAX)
		return err_set(e, CKPT_EVERSION,
			       "the name '%s' has %" PRIu32 " byte%s; 1 to %d can be kept",
			       name_text(text, (const char *)v->text, v->n), v->n, plural(v->n),
			       CKPT_NAME_MAX);
	*ret = (const char *)v->text;
	*ret_len = v->n;
	return 0;
}

/* ---- storage_data ---- */

static int shape_compare(const struct shape *a, const struct shape *b)
{
	if (a->ndim != b->ndim)
		return a->ndim < b->ndim ? -1 : 1;
	for (uint32_t i = 0; i < a->ndim; i++)
		if (a->dim[i] != b->dim[i])
			return a->dim[i] < b->dim[i] ? -1 : 1;
	return 0;
}

static int entry_compare(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;
	int order = name_compare(x->name, x->name_len, y->name, y->name_len);

	return order ? order : shape_compare(&x->at, &y->at);
}

static int read_entry(const struct pickle *p, const struct pickle_value *key,
		      const struct pickle_value *info, struct entry *ret, struct err *e)
{
	const struct pickle_value *fqn = field(p, key, TORCH_INDEX, "fqn");
	const struct pickle_value *offset = field(p, key, TORCH_INDEX, "offset");

	*ret = (struct entry){.info = info};
	if (!fqn || fqn->type != PICKLE_STR || !pickle_is_call(p, info, TORCH_STORAGE_INFO))
		return err_set(e, CKPT_EPROTO,
			       "its storage_data is not what FileSystemWriter writes (a %s for a "
			       "%s)",
			       pickle_type_text(p, info), pickle_type_text(p, key));
	ret->name = (const char *)fqn->text;
	ret->name_len = fqn->n;
	return !offset || offset->type == PICKLE_NONE ? 0 : torch_sizes_of(p, offset, &ret->at, e);
}

static int read_entries(struct reading_metadata *g, const struct pickle_value *data, struct err *e)
{
	int r = 0;

	if (!data || data->type != PICKLE_DICT)
		return err_set(e, CKPT_EPROTO,
			       "it does not say where anything is stored (storage_data)");
	g->n_entries = data->n / 2;
	g->entries = alloc_array(g->n_entries, sizeof(*g->entries));
	if (!g->entries)
		return err_code(e, -ENOMEM, "%zu place%s", g->n_entries, plural(g->n_entries));
	for (uint32_t i = 0; r == 0 && i < g->n_entries; i++)
		r = read_entry(g->p, pickle_item(g->p, data, 2 * i),
			       pickle_item(g->p, data, 2 * i + 1), &g->entries[i], e);
	if (r == 0 && g->n_entries > 0)
		qsort(g->entries, g->n_entries, sizeof(*g->entries), entry_compare);
	return r;
}

static int count_field(const struct pickle *p, const struct pickle_value *info, const char *name,
		       uint64_t *ret, struct err *e)
{
	const struct pickle_value *v = field(p, info, TORCH_STORAGE_INFO, name);

	if (!v || v->type != PICKLE_INT || v->i < 0)
		return err_set(e, CKPT_EPROTO, "its %s in a file is no count", name);
	*ret = (uint64_t)v->i;
	return 0;
}

/* A path that stays in the folder; its index is found when all are known (name_files()). */
static int check_path(const struct pickle_value *path, struct err *e)
{
	char text[NAME_TEXT_MAX];

	if (!path || path->type != PICKLE_STR)
		return err_set(e, CKPT_EPROTO, "the name of its file is no string");
	if (path->n == 0 || path->n > 255 || memchr(path->text, '/', path->n) ||
	    memchr(path->text, '\0', path->n) || path->text[0] == '.')
		return err_set(e, CKPT_EPROTO,
			       "its file '%s' is not a plain name inside of the folder",
			       name_text(text, (const char *)path->text, path->n));
	return 0;
}

static int place_of(const struct reading_metadata *g, const struct entry *key,
		    struct dcp_place *ret, struct err *e)
{
	const struct entry *found = NULL;
	const struct pickle_value *changed;
	char text[BOX_TEXT_MAX];
	int r;

	if (g->n_entries > 0)
		found = bsearch(key, g->entries, g->n_entries, sizeof(*key), entry_compare);
	if (!found)
		return err_set(e, CKPT_EMISMATCH, "its part at %s is stored nowhere",
			       shape_text(text, &key->at));
	changed = field(g->p, found->info, TORCH_STORAGE_INFO, "transform_descriptors");
	if (changed && changed->type != PICKLE_NONE)
		return err_set(e, CKPT_EVERSION,
			       "it went through a stream extension (compression or the like), "
			       "which only torch can undo");
	ret->path = field(g->p, found->info, TORCH_STORAGE_INFO, "relative_path");
	r = check_path(ret->path, e);
	if (r == 0)
		r = count_field(g->p, found->info, "offset", &ret->offset, e);
	if (r == 0)
		r = count_field(g->p, found->info, "length", &ret->len, e);
	return r;
}

/* ---- The files ---- */

static int path_compare(const void *a, const void *b)
{
	const struct pickle_value *x = (*(struct dcp_place *const *)a)->path;
	const struct pickle_value *y = (*(struct dcp_place *const *)b)->path;

	return name_compare((const char *)x->text, x->n, (const char *)y->text, y->n);
}

static int name_files(struct dcp_metadata *m, struct err *e)
{
	size_t n = m->n_chunks + m->n_blobs, distinct = 0;
	CLEANUP_FREE struct dcp_place **places = alloc_array(n, sizeof(*places));

	if (!places)
		return err_code(e, -ENOMEM, "%zu place%s", n, plural(n));
	for (size_t i = 0; i < n; i++)
		places[i] =
			i < m->n_chunks ? &m->chunks[i].place : &m->blobs[i - m->n_chunks].place;
	if (n > 0)
		qsort(places, n, sizeof(struct dcp_place *), path_compare);
	for (size_t i = 0; i < n; i++) /* few files have many places */
		distinct += i == 0 || path_compare(&places[i - 1], &places[i]) != 0;
	m->files = alloc_array(distinct, sizeof(*m->files));
	if (!m->files)
		return err_code(e, -ENOMEM, "%zu file%s", distinct, plural(distinct));
	for (size_t i = 0; i < n; i++) {
		if (i == 0 || path_compare(&places[i - 1], &places[i]) != 0)
			m->files[m->n_files++] =
				(struct dcp_file){.name = (const char *)places[i]->path->text,
						  .name_len = places[i]->path->n};
		places[i]->file = (uint32_t)(m->n_files - 1);
	}
	return 0;
}

/* ---- state_dict_metadata ---- */

static int read_dtype(const struct pickle *p, const struct pickle_value *properties, uint32_t *ret,
		      struct err *e)
{
	const struct pickle_value *state, *dtype;

	if (!properties || !pickle_is_call(p, properties, TORCH_PROPERTIES))
		return err_set(e, CKPT_EPROTO, "its properties are no TensorProperties");
	state = pickle_state(p, properties);
	dtype = state->type == PICKLE_TUPLE && state->n > 0 ? pickle_item(p, state, 0) : NULL;
	if (!dtype || dtype->type != PICKLE_NAME || pickle_name_of(p, dtype)->id != TORCH_DTYPE)
		return err_set(e, CKPT_EPROTO, "its properties do not begin with a dtype");
	*ret = pickle_name_of(p, dtype)->dtype;
	return 0;
}

static int read_chunk(const struct pickle *p, const struct pickle_value *v,
		      const struct shape *whole, struct box *ret, struct err *e)
{
	const struct pickle_value *offsets = field(p, v, TORCH_CHUNK_METADATA, "offsets");
	const struct pickle_value *sizes = field(p, v, TORCH_CHUNK_METADATA, "sizes");
	struct shape at = {0}, size = {0};
	char a[BOX_TEXT_MAX], b[BOX_TEXT_MAX];
	int r;

	if (!offsets || !sizes)
		return err_set(e, CKPT_EPROTO, "one of its chunks is a %s", pickle_type_text(p, v));
	r = torch_sizes_of(p, offsets, &at, e);
	if (r == 0)
		r = torch_sizes_of(p, sizes, &size, e);
	if (r < 0)
		return r;
	*ret = (struct box){.ndim = size.ndim};
	memcpy(ret->offset, at.dim, sizeof(at.dim));
	memcpy(ret->length, size.dim, sizeof(size.dim));
	if (at.ndim != size.ndim || !box_inside(ret, whole))
		return err_set(e, CKPT_EMISMATCH, "its chunk at %s of shape %s is not inside of it",
			       shape_text(a, &at), shape_text(b, &size));
	return 0;
}

static int add_chunk(const struct reading_metadata *g, const struct dcp_tensor *t,
		     const struct box *box, struct err *e)
{
	struct dcp_chunk *c = &g->m->chunks[g->m->n_chunks];
	struct entry key = {.name = t->name, .name_len = t->name_len};
	uint64_t elements;
	int r;

	if (!box_elements(box, &elements))
		return err_set(e, CKPT_EPROTO, "one of its chunks is too large");
	if (elements == 0) /* torch writes them, and nobody needs them */
		return 0;
	key.at.ndim = box->ndim;
	memcpy(key.at.dim, box->offset, sizeof(box->offset));
	c->box = *box;
	r = place_of(g, &key, &c->place, e);
	if (r == 0)
		g->m->n_chunks++;
	return r;
}

static int add_tensor(const struct reading_metadata *g, const struct pickle_value *v,
		      struct dcp_tensor *t, struct err *e)
{
	const struct pickle_value *size = field(g->p, v, TORCH_TENSOR_METADATA, "size");
	const struct pickle_value *chunks = field(g->p, v, TORCH_TENSOR_METADATA, "chunks");
	uint64_t elements;
	struct box box;
	int r;

	if (!size || !chunks || chunks->type != PICKLE_LIST)
		return err_set(e, CKPT_EPROTO, "it has no size or no list of chunks");
	r = read_dtype(g->p, field(g->p, v, TORCH_TENSOR_METADATA, "properties"), &t->dtype, e);
	if (r == 0)
		r = torch_sizes_of(g->p, size, &t->shape, e);
	if (r == 0 && !shape_elements(&t->shape, &elements))
		r = err_set(e, CKPT_EPROTO, "it has too many elements");
	t->first_chunk = g->m->n_chunks;
	for (uint32_t i = 0; r == 0 && i < chunks->n; i++) {
		r = read_chunk(g->p, pickle_item(g->p, chunks, i), &t->shape, &box, e);
		if (r == 0)
			r = add_chunk(g, t, &box, e);
	}
	t->n_chunks = g->m->n_chunks - t->first_chunk;
	return r;
}

static int add_blob(const struct reading_metadata *g, struct dcp_blob *b, struct err *e)
{
	struct entry key = {.name = b->name, .name_len = b->name_len};

	return place_of(g, &key, &b->place, e);
}

static int add_item(const struct reading_metadata *g, const struct pickle_value *name,
		    const struct pickle_value *v, struct err *e)
{
	struct dcp_tensor *t = &g->m->tensors[g->m->n_tensors];
	struct dcp_blob *b = &g->m->blobs[g->m->n_blobs];
	char text[NAME_TEXT_MAX];
	int r = name_of(g->p, name, &t->name, &t->name_len, e);

	if (r < 0)
		return r;
	if (pickle_is_call(g->p, v, TORCH_BYTES_METADATA)) {
		b->name = t->name;
		b->name_len = t->name_len;
		r = add_blob(g, b, e);
		g->m->n_blobs += r == 0;
	} else if (pickle_is_call(g->p, v, TORCH_TENSOR_METADATA)) {
		r = add_tensor(g, v, t, e);
		g->m->n_tensors += r == 0;
	} else {
		r = err_set(e, CKPT_EPROTO, "it is a %s", pickle_type_text(g->p, v));
	}
	return r < 0 ? err_wrap(e, r, "'%s'", name_text(text, (const char *)name->text, name->n))
		     : 0;
}

/* Chunks that are named, each once: shared lists are counted as often as they are used. */
static int count_chunks(const struct pickle *p, const struct pickle_value *items, size_t *ret,
			struct err *e)
{
	uint64_t n = 0;

	for (uint32_t i = 1; i < items->n; i += 2) {
		const struct pickle_value *chunks =
			field(p, pickle_item(p, items, i), TORCH_TENSOR_METADATA, "chunks");

		n += chunks && chunks->type == PICKLE_LIST ? chunks->n : 0;
	}
	if (n > PICKLE_VALUES_MAX / 8)
		return err_set(e, -E2BIG, "it has %" PRIu64 " chunk%s", n, plural(n));
	*ret = n;
	return 0;
}

static int read_items(const struct reading_metadata *g, const struct pickle_value *items,
		      struct err *e)
{
	struct dcp_metadata *m = g->m;
	size_t chunks = 0;
	int r;

	if (!items || items->type != PICKLE_DICT)
		return err_set(e, CKPT_EPROTO, "it does not list what is stored");
	r = count_chunks(g->p, items, &chunks, e);
	if (r < 0)
		return r;
	/* One more of each: an item is begun where it would go. */
	m->tensors = alloc_array(items->n / 2 + 1, sizeof(*m->tensors));
	m->blobs = alloc_array(items->n / 2 + 1, sizeof(*m->blobs));
	m->chunks = alloc_array(chunks + 1, sizeof(*m->chunks));
	if (!m->tensors || !m->blobs || !m->chunks)
		return err_code(e, -ENOMEM, "%" PRIu32 " item%s", items->n / 2,
				plural(items->n / 2));
	for (uint32_t i = 0; r == 0 && i < items->n; i += 2)
		r = add_item(g, pickle_item(g->p, items, i), pickle_item(g->p, items, i + 1), e);
	return r;
}

/* ---- Names ---- */

struct named {
	const char *name;
	uint32_t len;
};

static int named_compare(const void *a, const void *b)
{
	const struct named *x = a, *y = b;

	return name_compare(x->name, x->len, y->name, y->len);
}

static int check_names(const struct dcp_metadata *m, struct err *e)
{
	size_t n = m->n_tensors + m->n_blobs;
	CLEANUP_FREE struct named *all = alloc_array(n, sizeof(*all));
	char text[NAME_TEXT_MAX];

	if (!all)
		return err_code(e, -ENOMEM, "%zu name%s", n, plural(n));
	for (size_t i = 0; i < m->n_tensors; i++)
		all[i] = (struct named){m->tensors[i].name, m->tensors[i].name_len};
	for (size_t i = 0; i < m->n_blobs; i++)
		all[m->n_tensors + i] = (struct named){m->blobs[i].name, m->blobs[i].name_len};
	if (n > 0)
		qsort(all, n, sizeof(*all), named_compare);
	for (size_t i = 1; i < n; i++)
		if (named_compare(&all[i - 1], &all[i]) == 0)
			return err_set(e, CKPT_EMISMATCH, "'%s' is in it twice",
				       name_text(text, all[i].name, all[i].len));
	return 0;
}

int dcp_metadata_read(const void *bytes, size_t len, struct dcp_metadata *ret, struct err *e)
{
	struct reading_metadata g = {.m = ret, .p = &ret->pickle};
	const struct pickle_value *root, *planner;
	int r;

	*ret = (struct dcp_metadata){0};
	r = pickle_parse(bytes, len, torch_find_name, &ret->pickle, e);
	if (r < 0)
		return r;
	root = pickle_at(g.p, g.p->root);
	if (!pickle_is_call(g.p, root, TORCH_METADATA))
		return err_set(e, CKPT_EPROTO,
			       "it is a %s, not the Metadata of "
			       "torch.distributed.checkpoint",
			       pickle_type_text(g.p, root));
	r = read_entries(&g, field(g.p, root, TORCH_METADATA, "storage_data"), e);
	if (r == 0)
		r = read_items(&g, field(g.p, root, TORCH_METADATA, "state_dict_metadata"), e);
	alloc_free(g.entries);
	if (r == 0)
		r = check_names(ret, e);
	if (r == 0)
		r = name_files(ret, e);
	planner = field(g.p, root, TORCH_METADATA, "planner_data");
	ret->planner_data = planner && planner->type == PICKLE_DICT ? planner : NULL;
	return r;
}

void dcp_metadata_forget_pickle(struct dcp_metadata *m)
{
	pickle_free(&m->pickle);
	m->planner_data = NULL;
}

void dcp_metadata_fini(struct dcp_metadata *m)
{
	alloc_free(m->tensors);
	alloc_free(m->chunks);
	alloc_free(m->blobs);
	alloc_free(m->files);
	pickle_free(&m->pickle);
	*m = (struct dcp_metadata){0};
}
