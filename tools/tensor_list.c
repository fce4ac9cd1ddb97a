/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor_list.c - see tensor_list.h. One thread.
 */
#include <config.h>

#include "tools/tensor_list.h"

#include <assert.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tools/document.h"
#include "tools/json_out.h"
#include "tools/plural.h"
#include "tools/print.h"

/* ---- JSON ---- */

struct json_list {
	struct json_out *out;
	bool in_tensor;
};

static json_t *numbers(const uint64_t *v, uint32_t n)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < n; i++)
		json_array_append_new(list, doc_count(v[i]));
	return list;
}

static void end_tensor(struct json_list *l)
{
	if (l->in_tensor) {
		json_out_end(l->out, ']');
		json_out_end(l->out, '}');
	}
	l->in_tensor = false;
}

static void json_tensor(void *arg, const struct tensor_head *h)
{
	const struct shard *s = h->whole;
	const char *dtype = dtype_name(s->dtype);
	struct json_list *l = arg;

	end_tensor(l);
	json_out_begin(l->out, NULL, '{');
	json_out_value(l->out, "name", doc_name(s->name, s->name_len));
	json_out_value(l->out, "dtype", json_string(dtype ? dtype : "?"));
	json_out_value(l->out, "shape", numbers(s->global.dim, s->global.ndim));
	json_out_value(l->out, "bytes", doc_count(h->bytes));
	json_out_value(l->out, "held", doc_count(h->held));
	if (h->says_trained)
		json_out_value(l->out, "trained", json_boolean(s->trained));
	json_out_begin(l->out, "pieces", '[');
	l->in_tensor = true;
}

static void json_piece(void *arg, const struct shard *s, uint32_t rank)
{
	const struct json_list *l = arg;
	json_t *o = json_pack("{s:i, s:o, s:o, s:o}", "rank", (int)rank, "offset",
			      numbers(s->box.offset, s->box.ndim), "shape",
			      numbers(s->box.length, s->box.ndim), "bytes", doc_count(s->bytes));

	if (s->flat) {
		json_object_set_new(o, "start", doc_count(s->start));
		json_object_set_new(o, "stop", doc_count(s->stop));
	}
	json_out_value(l->out, NULL, o);
}

static int json_tensors(tensor_walk_fn *walk, void *from, struct json_out *out, struct err *e)
{
	struct json_list l = {.out = out};
	const struct tensor_sink to = {json_tensor, json_piece, &l};
	int r;

	json_out_begin(out, "tensors", '[');
	r = walk(from, &to, e);
	end_tensor(&l);
	json_out_end(out, ']');
	return r;
}

int tensor_list_document(const json_t *doc, tensor_walk_fn *walk, void *from, struct err *e)
{
	struct json_out out = {0};
	const char *key;
	json_t *value;
	int r = 0;

	json_out_begin(&out, NULL, '{');
	json_object_foreach((json_t *)(uintptr_t)doc, key, value) {
		if (walk && strcmp(key, "tensors") == 0)
			r = json_tensors(walk, from, &out, e);
		else
			json_out_value(&out, key, json_incref(value));
	}
	json_out_end(&out, '}');
	return r;
}

/* ---- For people ---- */

struct table_list {
	struct table *table;
	bool pieces;
	struct tensor_head head; /* with pieces: each of their lines begins with it */
};

/* As it is shown, which for most is as it is. */
static void name_cell(struct table *t, const struct shard *s)
{
	json_t *name = doc_name(s->name, s->name_len);

	table_cell(t, "%s", json_string_value(name));
	json_decref(name);
}

static void shape_cell(struct table *t, const struct shape *shape)
{
	char text[BOX_TEXT_MAX] = "[";
	size_t used = 1;

	for (uint32_t i = 0; i < shape->ndim && used < sizeof(text); i++)
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%" PRIu64,
					 i ? ", " : "", shape->dim[i]);
	if (used < sizeof(text))
		snprintf(text + used, sizeof(text) - used, "]");
	table_cell(t, "%s", text);
}

static void head_cells(struct table *t, const struct tensor_head *h)
{
	const char *dtype = dtype_name(h->whole->dtype);
	char size[TEXT_MAX];

	name_cell(t, h->whole);
	table_cell(t, "%s", dtype ? dtype : "?");
	shape_cell(t, &h->whole->global);
	table_cell(t, "%s", text_bytes(size, h->bytes));
}

static void table_tensor(void *arg, const struct tensor_head *h)
{
	struct table_list *l = arg;

	l->head = *h;
	if (l->pieces)
		return;
	head_cells(l->table, h);
	table_cell(l->table, "%zu", h->pieces);
}

/* "[0:4, 16:32]" or "[100, 200) of [0:4, 0:64]" */
static void table_piece(void *arg, const struct shard *s, uint32_t rank)
{
	struct table_list *l = arg;
	char box[BOX_TEXT_MAX], size[TEXT_MAX];

	if (!l->pieces)
		return;
	head_cells(l->table, &l->head);
	table_cell(l->table, "%" PRIu32, rank);
	box_text(box, &s->box);
	if (s->flat)
		table_cell(l->table, "[%" PRIu64 ", %" PRIu64 ") of %s", s->start, s->stop, box);
	else
		table_cell(l->table, "%s", box);
	table_cell(l->table, "%s", text_bytes(size, s->bytes));
}

int tensor_list_print(tensor_walk_fn *walk, void *from, bool pieces, struct err *e)
{
	struct table_list l = {
		.table = table_new(pieces ? "TENSOR DTYPE SHAPE SIZE> RANK> PART HERE>"
					  : "TENSOR DTYPE SHAPE SIZE> PIECES>"),
		.pieces = pieces,
	};
	const struct tensor_sink to = {table_tensor, table_piece, &l};
	int r;

	table_measure(l.table);
	r = walk(from, &to, e);
	table_measured(l.table);
	if (r == 0)
		r = walk(from, &to, e);
	if (r < 0) {
		table_drop(l.table);
		return r;
	}
	r = table_end(l.table);
	return r < 0 ? err_code(e, r, "print the tensors") : 0;
}

static void name_line(void *arg, const struct tensor_head *h)
{
	json_t *name = doc_name(h->whole->name, h->whole->name_len);

	(void)arg;
	say("%s", json_string_value(name));
	json_decref(name);
}

static void no_line(void *arg, const struct shard *s, uint32_t rank)
{
	(void)arg;
	(void)s;
	(void)rank;
}

int tensor_list_names(tensor_walk_fn *walk, void *from, struct err *e)
{
	const struct tensor_sink to = {name_line, no_line, NULL};

	return walk(from, &to, e);
}

void say_passed_over(size_t n, size_t all)
{
	assert(n <= all);
	if (n > 0)
		say("note      %zu of %zu tensor%s matched no rule and %s whole on every rank", n,
		    all, plural(all), n == 1 ? "is" : "are");
}
