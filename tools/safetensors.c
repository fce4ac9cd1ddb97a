/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors.c - see safetensors.h. Any thread.
 *
 * 1. Numbers of a header are taken for what they are only after they were seen to be integers that
 *    are not negative; products and sums of them are checked.
 * 2. Entries that pass cover [0, data_len) in their order: each begins where the one before ended,
 *    and has exactly the bytes of its shape and dtype.
 * 3. A name of a file in an index has no '/' and is not "." or "..": it stays in its folder.
 *
 * Failure modes: JSON takes about ten times its length as a tree, which memory must hold.
 */
#include <config.h>

#include "tools/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "tools/plural.h"

/* In the order of the format's own list, by which its writer sorts. dtype 0: known to the format,
 * not to us. */
static const struct {
	const char *name;
	uint32_t dtype;
} dtypes[] = {
	{"BOOL", CKPT_BOOL},
	{"F4", 0},
	{"F6_E2M3", 0},
	{"F6_E3M2", 0},
	{"U8", CKPT_U8},
	{"I8", CKPT_I8},
	{"F8_E5M2", CKPT_F8_E5M2},
	{"F8_E4M3", CKPT_F8_E4M3},
	{"F8_E8M0", CKPT_F8_E8M0},
	{"F8_E4M3FNUZ", CKPT_F8_E4M3FNUZ},
	{"F8_E5M2FNUZ", CKPT_F8_E5M2FNUZ},
	{"I16", CKPT_I16},
	{"U16", CKPT_U16},
	{"F16", CKPT_F16},
	{"BF16", CKPT_BF16},
	{"I32", CKPT_I32},
	{"U32", CKPT_U32},
	{"F32", CKPT_F32},
	{"C64", CKPT_C64},
	{"F64", CKPT_F64},
	{"I64", CKPT_I64},
	{"U64", CKPT_U64},
};
enum { N_DTYPES = sizeof(dtypes) / sizeof(dtypes[0]) };

int safetensors_rank(uint32_t dtype)
{
	for (int i = 0; i < N_DTYPES; i++)
		if (dtypes[i].dtype == dtype && dtype)
			return i;
	return -1;
}

const char *safetensors_dtype(uint32_t dtype)
{
	int i = safetensors_rank(dtype);

	return i < 0 ? NULL : dtypes[i].name;
}

/* ---- One entry of a header ---- */

static int bad(struct err *e, const struct safetensors_entry *t, const char *what)
{
	char name[NAME_TEXT_MAX];

	return err_set(e, CKPT_EPROTO, "tensor '%s': %s", name_text(name, t->name, t->name_len),
		       what);
}

static int take_dtype(struct safetensors_entry *t, const json_t *v, struct err *e)
{
	const char *text = json_string_value(v);
	char name[NAME_TEXT_MAX], said[NAME_TEXT_MAX];

	if (!text)
		return bad(e, t, "its dtype is no text");
	for (int i = 0; i < N_DTYPES; i++) {
		if (strcmp(dtypes[i].name, text) != 0)
			continue;
		t->dtype = dtypes[i].dtype;
		if (t->dtype)
			return 0;
	}
	return err_set(e, CKPT_EVERSION,
		       "tensor '%s' has the dtype %.40s, which checkpoints here do not have",
		       name_text(name, t->name, t->name_len),
		       name_text(said, text, (uint32_t)min_u64(strlen(text), 40)));
}

static bool take_count(const json_t *v, uint64_t *ret)
{
	if (!json_is_integer(v) || json_integer_value(v) < 0)
		return false;
	*ret = (uint64_t)json_integer_value(v);
	return true;
}

static int take_shape(struct safetensors_entry *t, const json_t *v, struct err *e)
{
	char text[80];

	if (!json_is_array(v))
		return bad(e, t, "its shape is no list");
	if (json_array_size(v) > CKPT_NDIM_MAX) {
		snprintf(text, sizeof(text), "it has %zu dimension%s, and at most %d are known",
			 json_array_size(v), plural(json_array_size(v)), CKPT_NDIM_MAX);
		return bad(e, t, text);
	}
	t->shape.ndim = (uint32_t)json_array_size(v);
	for (uint32_t i = 0; i < t->shape.ndim; i++)
		if (!take_count(json_array_get(v, i), &t->shape.dim[i]))
			return bad(e, t, "its shape has something that is no count");
	return 0;
}

static int take_offsets(struct safetensors_entry *t, const json_t *v, struct err *e)
{
	if (!json_is_array(v) || json_array_size(v) != 2 ||
	    !take_count(json_array_get(v, 0), &t->begin) ||
	    !take_count(json_array_get(v, 1), &t->end))
		return bad(e, t, "its data_offsets are not two counts");
	if (t->begin > t->end)
		return bad(e, t, "its data_offsets end before they begin");
	return 0;
}

static int take_entry(struct safetensors_entry *t, const char *name, const json_t *v, struct err *e)
{
	char shape[BOX_TEXT_MAX], text[BOX_TEXT_MAX + 100];
	uint64_t elements, bytes;
	int r;

	*t = (struct safetensors_entry){.name = name, .name_len = (uint32_t)strlen(name)};
	if (t->name_len == 0 || t->name_len > CKPT_NAME_MAX)
		return bad(e, t, "names have 1 to 1023 bytes");
	if (!json_is_object(v) || json_object_size(v) != 3)
		return bad(e, t,
			   "it is not described by dtype, shape and data_offsets, and nothing "
			   "else");
	r = take_dtype(t, json_object_get(v, "dtype"), e);
	if (r == 0)
		r = take_shape(t, json_object_get(v, "shape"), e);
	if (r == 0)
		r = take_offsets(t, json_object_get(v, "data_offsets"), e);
	if (r < 0)
		return r;
	if (!shape_elements(&t->shape, &elements) ||
	    !size_mul(elements, dtype_bytes(t->dtype), &bytes))
		return bad(e, t, "its shape has more than 2^64 bytes");
	if (bytes == t->end - t->begin)
		return 0;
	snprintf(text, sizeof(text), "shape %s of %s has %llu byte%s, its data_offsets have %llu",
		 shape_text(shape, &t->shape), dtype_name(t->dtype), (unsigned long long)bytes,
		 plural(bytes), (unsigned long long)(t->end - t->begin));
	return bad(e, t, text);
}

/* ---- A header ---- */

static int by_place(const void *a, const void *b)
{
	const struct safetensors_entry *x = a, *y = b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	if (x->end != y->end)
		return x->end < y->end ? -1 : 1;
	return name_compare(x->name, x->name_len, y->name, y->name_len);
}

/* (2) */
static int check_cover(const struct safetensors_header *h, uint64_t data_len, struct err *e)
{
	char text[100];
	uint64_t at = 0;

	for (size_t i = 0; i < h->n; i++) {
		const struct safetensors_entry *t = &h->entries[i];

		if (t->begin != at) {
			snprintf(text, sizeof(text), "its data begins at %llu, %s at %llu",
				 (unsigned long long)t->begin,
				 t->begin < at ? "inside another's, which ends"
					       : "behind a hole that begins",
				 (unsigned long long)at);
			return bad(e, t, text);
		}
		at = t->end;
	}
	if (at != data_len)
		return err_set(e, CKPT_EPROTO,
			       "its tensors have %llu byte%s, and %llu follow the "
			       "header: it was cut, or something was put behind it",
			       (unsigned long long)at, plural(at), (unsigned long long)data_len);
	return 0;
}

static int check_metadata(const json_t *m, struct err *e)
{
	char text[NAME_TEXT_MAX];
	const char *key;
	json_t *v;

	if (!m)
		return 0;
	if (!json_is_object(m))
		return err_set(e, CKPT_EPROTO, SAFETENSORS_METADATA " is no object");
	json_object_foreach((json_t *)(uintptr_t)m, key, v)
	{
		if (!json_is_string(v))
			return err_set(e, CKPT_EPROTO,
				       SAFETENSORS_METADATA " has '%s', which is no text",
				       name_text(text, key, (uint32_t)strlen(key)));
	}
	return 0;
}

static int load_object(const char *json, size_t len, json_t **ret, struct err *e)
{
	json_error_t why;
	json_t *root;

	root = json_loadb(json, len, JSON_REJECT_DUPLICATES, &why);
	if (!root)
		return err_set(e, CKPT_EPROTO, "not JSON that can be used: %.150s (byte %d)",
			       why.text, why.position);
	if (!json_is_object(root)) {
		json_decref(root);
		return err_set(e, CKPT_EPROTO, "not a JSON object");
	}
	*ret = root;
	return 0;
}

int safetensors_parse(const void *json, size_t len, uint64_t data_len,
		      struct safetensors_header *ret, struct err *e)
{
	struct safetensors_header h = {0};
	const char *text = json, *name;
	size_t blanks = 0;
	json_t *v;
	int r;

	while (blanks < len && text[blanks] == ' ')
		blanks++;
	if (len > SAFETENSORS_HEADER_MAX || blanks == len || text[blanks] != '{')
		return err_set(e, CKPT_EPROTO, "the header does not begin with '{'");
	r = load_object(text + blanks, len - blanks, &h.root, e);
	if (r < 0)
		return r;
	r = check_metadata(json_object_get(h.root, SAFETENSORS_METADATA), e);
	h.entries = alloc_array(json_object_size(h.root), sizeof(*h.entries));
	if (r == 0 && !h.entries)
		r = err_code(e, -ENOMEM, "read the header");
	if (r == 0)
		json_object_foreach(h.root, name, v)
		{
			if (strcmp(name, SAFETENSORS_METADATA) == 0)
				continue;
			r = take_entry(&h.entries[h.n], name, v, e);
			if (r < 0)
				break;
			h.n++;
		}
	if (r == 0 && h.n)
		qsort(h.entries, h.n, sizeof(*h.entries), by_place);
	if (r == 0)
		r = check_cover(&h, data_len, e);
	if (r < 0) {
		safetensors_header_fini(&h);
		return r;
	}
	*ret = h;
	return 0;
}

void safetensors_header_fini(struct safetensors_header *h)
{
	alloc_free(h->entries);
	json_decref(h->root);
	*h = (struct safetensors_header){0};
}

const json_t *safetensors_metadata(const struct safetensors_header *h)
{
	return json_object_get(h->root, SAFETENSORS_METADATA);
}

/* ---- Writing ---- */

static void write_text(struct writer *w, const char *text)
{
	write_bytes(w, text, strlen(text));
}

static void write_number(struct writer *w, const char *before, uint64_t v)
{
	char text[40];

	snprintf(text, sizeof(text), "%s%llu", before, (unsigned long long)v);
	write_text(w, text);
}

static int write_piece(const char *text, size_t len, void *arg)
{
	write_bytes(arg, text, len);
	return 0;
}

/* Memory that is missing is told by the writer, at the end. */
static void write_json(struct writer *w, const json_t *v)
{
	w->bad |= json_dump_callback(v, write_piece, w, JSON_COMPACT | JSON_ENCODE_ANY) != 0;
}

static int write_name(struct writer *w, const struct safetensors_entry *t, struct err *e)
{
	json_t *name = json_stringn(t->name, t->name_len);
	char text[NAME_TEXT_MAX];

	if (!name || memchr(t->name, '\0', t->name_len)) {
		json_decref(name);
		return err_set(e, -EINVAL,
			       "the name of tensor '%s' is not UTF-8, and safetensors "
			       "has no other names: leave it out with --tensor",
			       name_text(text, t->name, t->name_len));
	}
	if (strcmp(json_string_value(name), SAFETENSORS_METADATA) == 0) {
		json_decref(name);
		return err_set(e, -EINVAL,
			       "a tensor is called " SAFETENSORS_METADATA ", which "
			       "means something else in safetensors: leave it out with --tensor");
	}
	write_json(w, name);
	json_decref(name);
	return 0;
}

static int write_entry(struct writer *w, const struct safetensors_entry *t, struct err *e)
{
	const char *dtype = safetensors_dtype(t->dtype);
	char name[NAME_TEXT_MAX];
	int r;

	if (!dtype)
		return err_set(e, -EINVAL, "tensor '%s' is %s, which safetensors does not have",
			       name_text(name, t->name, t->name_len), dtype_name(t->dtype));
	r = write_name(w, t, e);
	if (r < 0)
		return r;
	write_text(w, ":{\"dtype\":\"");
	write_text(w, dtype);
	write_text(w, "\",\"shape\":[");
	for (uint32_t i = 0; i < t->shape.ndim; i++)
		write_number(w, i ? "," : "", t->shape.dim[i]);
	write_number(w, "],\"data_offsets\":[", t->begin);
	write_number(w, ",", t->end);
	write_text(w, "]}");
	return 0;
}

/* Blanks at the end, which every reader takes, so that the data can be mapped and read directly. */
static int pad(struct writer *w, struct err *e)
{
	if (w->bad)
		return err_code(e, -ENOMEM, "make a header");
	while (!w->bad && w->len % SAFETENSORS_ALIGN)
		write_u8(w, ' ');
	if (w->bad)
		return err_code(e, -ENOMEM, "make a header");
	if (w->len - 8 > SAFETENSORS_HEADER_MAX)
		return err_set(e, -E2BIG,
			       "the header has %zu byte%s, and readers take %u: choose "
			       "smaller files with --shard-size",
			       w->len - 8, plural(w->len - 8), SAFETENSORS_HEADER_MAX);
	put_le64(w->buf, w->len - 8);
	return 0;
}

int safetensors_build(const struct safetensors_entry *entries, size_t n, const json_t *metadata,
		      void **ret, size_t *ret_len, struct err *e)
{
	struct writer w = {0};
	int r = 0;

	write_u64(&w, 0);
	write_text(&w, "{");
	if (metadata) {
		write_text(&w, "\"" SAFETENSORS_METADATA "\":");
		write_json(&w, metadata);
	}
	for (size_t i = 0; r == 0 && i < n; i++) {
		if (i || metadata)
			write_text(&w, ",");
		r = write_entry(&w, &entries[i], e);
	}
	write_text(&w, "}");
	if (r == 0)
		r = pad(&w, e);
	if (r < 0) {
		writer_free(&w);
		return r;
	}
	assert(w.len % SAFETENSORS_ALIGN == 0);
	*ret = w.buf;
	*ret_len = w.len;
	return 0;
}

/* ---- Indices ---- */

static bool stays_in_folder(const char *file) /* (3) */
{
	return file[0] && !strchr(file, '/') && strcmp(file, ".") != 0 && strcmp(file, "..") != 0;
}

int safetensors_index_parse(const void *json, size_t len, json_t **ret_map, struct err *e)
{
	json_t *root = NULL, *map, *v;
	char a[NAME_TEXT_MAX], b[NAME_TEXT_MAX];
	const char *name, *file;
	int r;

	if (len > SAFETENSORS_HEADER_MAX)
		return err_set(e, CKPT_EPROTO, "more than %u bytes", SAFETENSORS_HEADER_MAX);
	r = load_object(json, len, &root, e);
	if (r < 0)
		return r;
	map = json_object_get(root, "weight_map");
	if (!json_is_object(map))
		r = err_set(e, CKPT_EPROTO, "there is no object 'weight_map'");
	else
		json_object_foreach(map, name, v)
		{
			file = json_string_value(v);
			if (file && stays_in_folder(file))
				continue;
			r = err_set(e, CKPT_EPROTO,
				    "tensor '%s' is in '%s', which is not the name of a file "
				    "beside the index",
				    name_text(a, name, (uint32_t)strlen(name)),
				    file ? name_text(b, file, (uint32_t)strlen(file)) : "?");
			break;
		}
	if (r == 0)
		*ret_map = json_incref(map);
	json_decref(root);
	return r;
}
