/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_values.c - see torch_values.h. One thread.
 */
#include <config.h>

#include "tools/torch_values.h"

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"
#include "tools/plural.h"
#include "tools/torch_names.h"
#include "tools/torch_zip.h"
#include "tools/torch_zip_write.h"

/* ---- Archives ---- */

/* The bytes of encode(text, "latin1"): code points below 256. */
static int decode_latin1(const struct pickle_value *text, void **ret, size_t *ret_len)
{
	uint8_t *out = alloc_zero(text->n + 1u);
	size_t n = 0;

	if (!out)
		return -ENOMEM;
	for (uint32_t i = 0; i < text->n; i++) {
		uint8_t c = text->text[i];

		if (c >= 0x80) {
			if ((c & 0xfc) != 0xc0 || i + 1 == text->n ||
			    (text->text[i + 1] & 0xc0) != 0x80) {
				alloc_free(out);
				return 0;
			}
			c = (uint8_t)(c << 6 | (text->text[++i] & 0x3f));
		}
		out[n++] = c;
	}
	*ret = out;
	*ret_len = n;
	return 1;
}

static int bytes_of_pickle(const void *pickle, size_t len, void **ret, size_t *ret_len)
{
	const struct pickle_value *root, *args;
	struct pickle p;
	int r = pickle_parse(pickle, len, torch_find_name, &p, NULL);

	if (r == 0) {
		root = pickle_at(&p, p.root);
		args = pickle_is_call(&p, root, TORCH_ENCODE) ? pickle_args(&p, root) : NULL;
		if (args && args->n == 2 && pickle_item(&p, args, 0)->type == PICKLE_STR &&
		    pickle_is_text(pickle_item(&p, args, 1), "latin1"))
			r = decode_latin1(pickle_item(&p, args, 0), ret, ret_len);
	}
	pickle_free(&p);
	return r;
}

static struct torch_slice slice_of(const void *bytes, size_t len)
{
	return (struct torch_slice){.fd = -1, .memory = bytes, .len = len};
}

int value_unwrap(const void *bytes, size_t len, void **ret, size_t *ret_len, struct err *e)
{
	struct torch_slice slice = slice_of(bytes, len);
	CLEANUP_FREE void *pickle = NULL;
	struct torch_zip *zip;
	size_t pickle_len;
	int r = torch_zip_open(&slice, &zip, NULL);

	if (r == 0) {
		if (strcmp(torch_zip_prefix(zip), VALUE_PREFIX) == 0)
			r = torch_zip_pickle(zip, &pickle, &pickle_len, NULL);
		torch_zip_close(zip);
	}
	if (r == 0 && pickle)
		r = bytes_of_pickle(pickle, pickle_len, ret, ret_len);
	if (r == -ENOMEM)
		return err_code(e, r, "read a value");
	return r > 0; /* whatever else it is stays as it is */
}

int value_wrap(const void *bytes, size_t len, void **ret, size_t *ret_len, struct err *e)
{
	struct torch_slice slice = slice_of(bytes, len);
	CLEANUP_FREE void *pickle = NULL;
	struct pickle_writer w = {0};
	struct torch_zip *zip;
	size_t pickle_len;
	int r = torch_zip_open(&slice, &zip, NULL);

	if (r == 0) {
		r = torch_zip_pickle(zip, &pickle, &pickle_len, NULL);
		torch_zip_close(zip);
	}
	if (r == 0)
		return 0;
	if (len > UINT32_MAX / 2)
		return err_set(e, -E2BIG, "a blob of %zu byte%s is too large for a pickle", len,
			       plural(len));
	pickle_begin(&w);
	pickle_bytes(&w, bytes, len);
	pickle_op(&w, PICKLE_OP_STOP);
	r = w.out.bad ? err_code(e, -ENOMEM, "keep a blob")
		      : torch_zip_of_pickle(VALUE_PREFIX, w.out.buf, w.out.len, ret, ret_len, e);
	pickle_writer_free(&w);
	return r < 0 ? r : 1;
}

int value_save(const struct pickle *p, const struct pickle_value *v, void **ret, size_t *ret_len,
	       struct err *e)
{
	struct pickle_writer w = {0};
	int r;

	pickle_begin(&w);
	r = pickle_copy(&w, p, v, e);
	pickle_op(&w, PICKLE_OP_STOP);
	if (r == 0)
		r = torch_zip_of_pickle("archive", w.out.buf, w.out.len, ret, ret_len, e);
	pickle_writer_free(&w);
	return r;
}

/* ---- Paths ---- */

static int write_piece(const char *text, size_t len, void *arg)
{
	write_bytes(arg, text, len);
	return 0;
}

static void write_json(struct writer *w, const json_t *v)
{
	w->bad |= json_dump_callback(v, write_piece, w, JSON_COMPACT | JSON_ENCODE_ANY) != 0;
}

void paths_add(struct writer *w, const char *name, size_t name_len, const json_t *path)
{
	json_t *text = json_stringn(name, name_len);

	if (text) { /* what is not UTF-8 is as if it were not there */
		write_bytes(w, w->len ? "," : "{", 1);
		write_json(w, text);
		write_bytes(w, ":", 1);
		write_json(w, path);
	}
	json_decref(text);
}

int paths_end(struct writer *w, struct err *e)
{
	if (w->len > 0)
		write_bytes(w, "}", 1);
	return w->bad ? err_code(e, -ENOMEM, "keep the paths") : 0;
}

/* NULL: it is not what DCP writes; then the name alone has to do. */
static json_t *path_of(const struct pickle *p, const struct pickle_value *v)
{
	json_t *path;

	if ((v->type != PICKLE_TUPLE && v->type != PICKLE_LIST) || v->n > PICKLE_FIELDS_MAX)
		return NULL;
	path = json_array();
	for (uint32_t i = 0; i < v->n; i++) {
		const struct pickle_value *key = pickle_item(p, v, i);
		json_t *item = NULL;

		if (key->type == PICKLE_STR && key->n <= CKPT_NAME_MAX)
			item = json_stringn((const char *)key->text, key->n);
		else if (key->type == PICKLE_INT)
			item = json_integer(key->i);
		if (!item || json_array_append_new(path, item) != 0) {
			json_decref(path);
			return NULL;
		}
	}
	return path;
}

/* Whether the path is what a reader would take without being told. */
static bool says_nothing(const json_t *path, const char *name, size_t name_len)
{
	const json_t *only = json_array_get(path, 0);

	return json_array_size(path) == 1 && json_is_string(only) &&
	       json_string_length(only) == name_len &&
	       memcmp(json_string_value(only), name, name_len) == 0;
}

int paths_of_planner(const struct pickle *p, const struct pickle_value *planner, struct writer *ret,
		     struct err *e)
{
	struct pickle_walk walk = {0};
	int r = pickle_enter(&walk, planner, e);

	for (uint32_t i = 0; r == 0 && i < planner->n; i += 2) {
		const struct pickle_value *name = pickle_item(p, planner, i);
		const struct pickle_value *keys = pickle_item(p, planner, i + 1);
		json_t *path;

		r = pickle_enter(&walk, keys, e);
		if (r < 0)
			break;
		pickle_leave(&walk);
		path = name->type == PICKLE_STR ? path_of(p, keys) : NULL;
		if (path && !says_nothing(path, (const char *)name->text, name->n))
			paths_add(ret, (const char *)name->text, name->n, path);
		json_decref(path);
	}
	return r == 0 ? paths_end(ret, e) : r;
}

void paths_write(struct pickle_writer *w, const json_t *paths, const char *name, size_t name_len)
{
	const json_t *path = json_object_getn(paths, name, name_len);
	const json_t *item;
	size_t i;

	pickle_op(w, PICKLE_OP_MARK);
	json_array_foreach(path, i, item)
	{
		if (json_is_integer(item))
			pickle_int(w, json_integer_value(item));
		else
			pickle_text(w, json_string_value(item) ? json_string_value(item) : "",
				    json_string_length(item));
	}
	if (json_array_size(path) == 0)
		pickle_text(w, name, name_len);
	pickle_op(w, PICKLE_OP_TUPLE);
}
