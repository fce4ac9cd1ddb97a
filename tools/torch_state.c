/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_state.c - flattens a state dictionary. One thread.
 */
#include <config.h>

#include "tools/torch_state.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "tools/plural.h"
#include "tools/torch_names.h"
#include "tools/torch_values.h"

/*
 * What one value of the pickle can become: parts that are shared are flattened once for each name,
 * and nested sharing makes 2^n names of n values. 40 names of a whole model are allowed.
 */
#define ITEMS_PER_VALUE 4u
#define ITEMS_ANYWAY    10000u

struct flatten {
	struct torch_state *s;
	const struct pickle *p;
	struct pickle_walk walk, look;
	char name[CKPT_NAME_MAX + 1];
	size_t len;
	json_t *path; /* an array */
	struct err *e;
};

static bool is_mapping(const struct pickle *p, const struct pickle_value *v)
{
	return v->type == PICKLE_DICT ||
	       (v->type == PICKLE_CALL && pickle_name_of(p, v)->id == TORCH_ORDERED_DICT &&
		(v->dict || v->n == 0));
}

static bool is_sequence(const struct pickle_value *v)
{
	return v->type == PICKLE_LIST || v->type == PICKLE_TUPLE;
}

static bool is_tensor(const struct pickle *p, const struct pickle_value *v)
{
	return v->type == PICKLE_CALL && pickle_name_of(p, v)->id >= TORCH_REBUILD_V1 &&
	       pickle_name_of(p, v)->id <= TORCH_REBUILD_OTHER;
}

/* Whether a list or tuple is gone through: 1, 0, or an error of the walk. */
static int holds_more(struct flatten *f, const struct pickle_value *v)
{
	int r = pickle_enter(&f->look, v, f->e);

	for (uint32_t i = 0; r == 0 && i < v->n; i++) {
		const struct pickle_value *item = pickle_item(f->p, v, i);

		if (is_tensor(f->p, item) || is_mapping(f->p, item))
			r = 1;
		else if (is_sequence(item))
			r = holds_more(f, item);
	}
	if (r >= 0)
		pickle_leave(&f->look);
	return r;
}

/* ---- Items ---- */

static int make_room(struct flatten *f)
{
	struct torch_state *s = f->s;
	size_t cap = s->cap ? s->cap + s->cap / 2 : 64;
	struct torch_item *items;

	if (s->n < s->cap)
		return 0;
	items = alloc_resize(s->items, cap * sizeof(*items));
	if (!items)
		return err_code(f->e, -ENOMEM, "keep %zu item%s", cap, plural(cap));
	s->items = items;
	s->cap = cap;
	return 0;
}

static int append(struct flatten *f, const struct pickle_value *value, bool tensor)
{
	struct torch_state *s = f->s;
	const char *name;
	int r;

	if (f->len == 0)
		return err_set(f->e, CKPT_EVERSION, "its name is empty");
	if (s->n >= ITEMS_ANYWAY + (size_t)ITEMS_PER_VALUE * f->p->n)
		return err_set(f->e, -E2BIG,
			       "it refers to its own parts so often that they have more than %zu "
			       "name%s",
			       s->n, plural(s->n));
	r = make_room(f);
	if (r < 0)
		return r;
	name = texts_keep(&s->names, f->name, f->len);
	if (!name)
		return err_code(f->e, -ENOMEM, "keep a name");
	s->items[s->n++] = (struct torch_item){.name = name, .value = value, .tensor = tensor};
	s->n_tensors += tensor;
	if (json_array_size(f->path) != 1 || !json_is_string(json_array_get(f->path, 0)))
		paths_add(&s->paths, f->name, f->len, f->path);
	return 0;
}

static int flatten(struct flatten *f, const struct pickle_value *v);

/* Before anything is made of a key: it may have the bytes of the whole pickle. */
static int check_key(struct flatten *f, const char *key, size_t len)
{
	size_t dot = f->len > 0;

	if (len > sizeof(f->name) - 1 - dot - f->len)
		return err_set(f->e, CKPT_EVERSION, "a name below it has more than %d bytes",
			       CKPT_NAME_MAX);
	if (memchr(key, '\0', len))
		return err_set(f->e, CKPT_EVERSION, "a key below it is not UTF-8, or has a NUL");
	return 0;
}

/* json: what the path says of the key, given away; NULL: it is not UTF-8. */
static int flatten_below(struct flatten *f, const char *key, size_t len, json_t *json,
			 const struct pickle_value *v)
{
	size_t before = f->len;
	int r;

	if (!json)
		return err_set(f->e, CKPT_EVERSION, "a key below it is not UTF-8, or has a NUL");
	json_array_append_new(f->path, json);
	if (before > 0)
		f->name[f->len++] = '.';
	memcpy(f->name + f->len, key, len);
	f->len += len;
	f->name[f->len] = '\0';
	r = flatten(f, v);
	if (r < 0)
		return r; /* the name stays for the sentence */
	f->len = before;
	f->name[before] = '\0';
	json_array_remove(f->path, json_array_size(f->path) - 1);
	return 0;
}

static int flatten_key(struct flatten *f, const char *key, size_t len,
		       const struct pickle_value *v)
{
	int r = check_key(f, key, len);

	return r < 0 ? r : flatten_below(f, key, len, json_stringn(key, len), v);
}

static int flatten_index(struct flatten *f, int64_t i, bool key, const struct pickle_value *v)
{
	char text[24];
	int n = snprintf(text, sizeof(text), "%" PRId64, i), r = check_key(f, text, (size_t)n);

	return r < 0 ? r
		     : flatten_below(f, text, (size_t)n,
				     key ? json_string(text) : json_integer(i), v);
}

/* Whether a mapping is one value: 1, 0, or an error of the walk. */
static int is_table(struct flatten *f, const struct pickle_value *v)
{
	int r;

	if (v->n / 2 <= TORCH_TABLE_VALUES)
		return 0;
	r = pickle_enter(&f->look, v, f->e);
	if (r < 0)
		return r;
	pickle_leave(&f->look);
	for (uint32_t i = 1; i < v->n; i += 2) {
		const struct pickle_value *item = pickle_item(f->p, v, i);

		if (is_tensor(f->p, item) || is_mapping(f->p, item) || is_sequence(item))
			return 0;
	}
	return 1;
}

static int flatten_mapping(struct flatten *f, const struct pickle_value *v)
{
	int r = pickle_enter(&f->walk, v, f->e);

	for (uint32_t i = 0; r == 0 && i < v->n; i += 2) {
		const struct pickle_value *key = pickle_item(f->p, v, i);
		const struct pickle_value *item = pickle_item(f->p, v, i + 1);

		if (key->type == PICKLE_STR)
			r = flatten_key(f, (const char *)key->text, key->n, item);
		else if (key->type == PICKLE_INT) /* str(key), as torch has it */
			r = flatten_index(f, key->i, true, item);
		else
			r = err_set(f->e, CKPT_EVERSION,
				    "a key of it is a %s, neither a text nor a number",
				    pickle_type_text(f->p, key));
	}
	if (r == 0)
		pickle_leave(&f->walk);
	return r;
}

static int flatten_sequence(struct flatten *f, const struct pickle_value *v)
{
	int r = pickle_enter(&f->walk, v, f->e);

	for (uint32_t i = 0; r == 0 && i < v->n; i++)
		r = flatten_index(f, i, false, pickle_item(f->p, v, i));
	if (r == 0)
		pickle_leave(&f->walk);
	return r;
}

static int flatten(struct flatten *f, const struct pickle_value *v)
{
	struct torch_tensor t;
	int r = torch_tensor_of(f->p, v, &t, f->e);

	if (r < 0)
		return r;
	if (r == 1)
		return append(f, v, true);
	if (is_mapping(f->p, v) && v->n > 0) {
		r = is_table(f, v);
		if (r != 0)
			return r < 0 ? r : append(f, v, false);
		return flatten_mapping(f, v);
	}
	if (is_sequence(v)) {
		r = holds_more(f, v);
		if (r != 0)
			return r < 0 ? r : flatten_sequence(f, v);
	}
	return append(f, v, false);
}

/* ---- All of it ---- */

static int item_compare(const void *a, const void *b)
{
	return strcmp((*(struct torch_item *const *)a)->name,
		      (*(struct torch_item *const *)b)->name);
}

static int check_names(const struct torch_state *s, struct err *e)
{
	CLEANUP_FREE const struct torch_item **order = alloc_array(s->n, sizeof(*order));

	if (!order)
		return err_code(e, -ENOMEM, "%zu name%s", s->n, plural(s->n));
	for (size_t i = 0; i < s->n; i++)
		order[i] = &s->items[i];
	if (s->n > 0)
		qsort(order, s->n, sizeof(*order), item_compare);
	for (size_t i = 1; i < s->n; i++)
		if (item_compare(&order[i - 1], &order[i]) == 0)
			return err_set(e, CKPT_EMISMATCH,
				       "'%.200s': two items get this name when keys are joined by "
				       "dots",
				       order[i]->name);
	return 0;
}

/* A file may hold one tensor and no dictionary. */
static int flatten_root(struct flatten *f)
{
	const struct pickle_value *root = pickle_at(f->p, f->p->root);
	int r;

	if (is_tensor(f->p, root))
		return flatten_key(f, "tensor", strlen("tensor"), root);
	if (!is_mapping(f->p, root) && !is_sequence(root))
		return err_set(f->e, CKPT_EPROTO, "it is a %s, not a dictionary of tensors",
			       pickle_type_text(f->p, root));
	r = is_mapping(f->p, root) ? flatten_mapping(f, root) : flatten_sequence(f, root);
	if (r == 0 && f->s->n_tensors == 0)
		r = err_set(f->e, CKPT_EPROTO, "there is no tensor in it");
	return r;
}

int torch_state_read(const struct pickle *p, struct torch_state *ret, struct err *e)
{
	struct flatten *f = alloc_zero(sizeof(*f));
	int r;

	*ret = (struct torch_state){0};
	if (!f)
		return err_code(e, -ENOMEM, "read a state dictionary");
	f->s = ret;
	f->p = p;
	f->path = json_array();
	f->e = e;
	r = f->path ? flatten_root(f) : err_code(e, -ENOMEM, "read a state dictionary");
	if (r < 0 && f->len > 0)
		err_wrap(e, r, "'%.200s'", f->name);
	if (r == 0)
		r = check_names(ret, e);
	if (r == 0)
		r = paths_end(&ret->paths, e);
	json_decref(f->path);
	alloc_free(f);
	return r;
}

void torch_state_fini(struct torch_state *s)
{
	alloc_free(s->items);
	texts_fini(&s->names);
	writer_free(&s->paths);
	*s = (struct torch_state){0};
}
