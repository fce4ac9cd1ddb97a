/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout.c - `ckptctl layout`: what each rank of a layout holds of the tensors of a checkpoint, or
 * of a list in a file. Nothing is changed and no chunk is read. One thread.
 */
#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "model/layout_rules.h"
#include "tools/document.h"
#include "tools/layout_file.h"
#include "tools/plural.h"
#include "tools/print.h"
#include "tools/reading.h"
#include "tools/source.h"
#include "tools/tensor_list.h"
#include "tools/tensors.h"

/* ---- Tensors ---- */

/* Of a file, or of a checkpoint, whose tensors are asked for one by one: there may be a million. */
struct known {
	size_t n;
	struct layout_tensor *t;
	json_t *document; /* whose names t's are */
	struct tensors *stored; /* or else */
	uint32_t *order;
};

static void known_free(struct known *l)
{
	alloc_free(l->t);
	json_decref(l->document);
	alloc_free(l->order);
	tensors_free(l->stored);
}

static void get_tensor(const void *arg, size_t i, struct layout_tensor *ret)
{
	const struct known *l = arg;
	struct tensor of = {.n = 1};
	struct shard s;
	uint32_t rank;

	if (l->t) {
		*ret = l->t[i];
		return;
	}
	of.first = l->order[i];
	tensors_piece(l->stored, &of, 0, &s, &rank);
	*ret = (struct layout_tensor){s.name, s.name_len, s.dtype, s.global};
}

static int read_tensors(const struct reading_options *o, struct known *ret, json_t *problems,
			struct err *e)
{
	struct checkpoint_id id;
	json_t *files = NULL;
	struct data d;
	int r = reading_choose(o, &d, &id, e);

	if (r < 0)
		return r;
	r = tensors_read(&d, &id, NULL, &ret->stored, &files, problems, e);
	json_decref(files);
	data_close(&d);
	if (r == 0 && json_array_size(problems))
		r = err_set(e, CKPT_ECORRUPT, "%s",
			    json_string_value(json_array_get(problems, 0)));
	if (r == 0)
		r = tensors_declared(ret->stored, &ret->order, &ret->n, e);
	return r < 0 ? err_wrap(e, r, "step %" PRIu64 " of job '%.100s'", id.step, o->job) : 0;
}

static int of_checkpoint(const struct ctl *c, struct known *ret, struct err *e)
{
	struct reading_options o = {
		.data = c->data,
		.job = c->args[1],
		.step = c->n_args > 2 ? c->args[2] : NULL,
	};
	json_t *problems = json_array();
	int r = problems ? read_tensors(&o, ret, problems, e)
			 : err_code(e, -ENOMEM, "read the tensors of job '%.100s'", o.job);

	json_decref(problems);
	return r;
}

static uint32_t dtype_of(const char *name)
{
	uint32_t dtype = 1;

	while (dtype_bytes(dtype) && strcmp(dtype_name(dtype), name) != 0)
		dtype++;
	return dtype_bytes(dtype) ? dtype : 0;
}

static int parse_tensor(json_t *o, struct layout_tensor *ret, struct err *e)
{
	json_t *shape = json_object_get(o, "shape"), *name = json_object_get(o, "name");

	if (!json_is_string(name) || !json_is_array(shape) ||
	    json_array_size(shape) > CKPT_NDIM_MAX || json_string_length(name) > CKPT_NAME_MAX)
		return err_set(e, -EINVAL, "it needs \"name\", \"dtype\" and \"shape\", a list");
	ret->name = json_string_value(name);
	ret->name_len = (uint32_t)json_string_length(name);
	ret->dtype = dtype_of(doc_text(o, "dtype"));
	if (!ret->dtype)
		return err_set(e, -EINVAL, "'%.40s' is no dtype", doc_text(o, "dtype"));
	for (size_t i = 0; i < json_array_size(shape); i++) {
		json_t *v = json_array_get(shape, i);

		if (!json_is_integer(v) || json_integer_value(v) < 0)
			return err_set(e, -EINVAL, "its shape is no list of extents");
		ret->global.dim[ret->global.ndim++] = (uint64_t)json_integer_value(v);
	}
	return 0;
}

/* A list, or the document of `ckptctl show --json`. */
static int of_file(const char *path, struct known *ret, struct err *e)
{
	json_error_t why;
	json_t *all;

	ret->document = json_load_file(path, 0, &why);
	if (!ret->document && access(path, R_OK) != 0)
		return err_code(e, -errno, "open the list of tensors '%.200s'", path);
	if (!ret->document)
		return err_set(e, -EINVAL, "tensors in '%.120s': line %d: %.160s", path, why.line,
			       why.text);
	all = json_is_array(ret->document) ? ret->document
					   : json_object_get(ret->document, "tensors");
	if (!json_is_array(all))
		return err_set(e, -EINVAL, "'%.120s' has no list of tensors", path);
	ret->t = alloc_array(json_array_size(all), sizeof(*ret->t));
	if (!ret->t)
		return err_code(e, -ENOMEM, "list %zu tensor%s", json_array_size(all),
				plural(json_array_size(all)));
	for (; ret->n < json_array_size(all); ret->n++) {
		int r = parse_tensor(json_array_get(all, ret->n), &ret->t[ret->n], e);

		if (r < 0)
			return err_wrap(e, r, "tensor %zu in '%.120s'", ret->n + 1, path);
	}
	return 0;
}

static bool is_file(const char *arg)
{
	size_t len = strlen(arg);

	return len > 5 && strcmp(arg + len - 5, ".json") == 0;
}

static int list_tensors(const struct ctl *c, struct known *ret, struct err *e)
{
	if (c->n_args < 2)
		return 0;
	if (!is_file(c->args[1]))
		return of_checkpoint(c, ret, e);
	if (c->n_args > 2)
		return err_set(e, -EINVAL, "a file of tensors has no steps: '%.40s'", c->args[2]);
	return of_file(c->args[1], ret, e);
}

/* ---- Shards ---- */

struct load { /* of one rank */
	uint64_t bytes;
	uint32_t tensors, shards;
};

struct piece {
	struct shard shard;
	uint32_t rank;
};

struct laying {
	struct layout *layout;
	struct known list;
	struct load *ranks;
	const struct words *wanted; /* --tensor */
	size_t n;                   /* tensors that are wanted */
	size_t passed_over;         /* of those: layout_passes_over() */
	uint64_t bytes, held;       /* of those */
	struct piece *pieces;       /* of one of them, at a time */
	size_t n_pieces, cap_pieces;
};

static uint64_t bytes_of(const struct layout_tensor *t)
{
	uint64_t elements = 0;

	if (!shape_elements(&t->global, &elements))
		elements = 0; /* layout_shards() refuses it */
	return elements * dtype_bytes(t->dtype);
}

static uint64_t held_of(const struct laying *y)
{
	uint64_t held = 0;

	for (size_t i = 0; i < y->n_pieces; i++)
		held += y->pieces[i].shard.bytes;
	return held;
}

static int add_piece(struct laying *y, const struct shard *s, uint32_t rank, struct err *e)
{
	size_t cap = y->cap_pieces ? 2 * y->cap_pieces : 64;
	struct piece *more;

	if (y->n_pieces == y->cap_pieces) {
		more = alloc_resize(y->pieces, cap * sizeof(*more));
		if (!more)
			return err_code(e, -ENOMEM, "lay out %zu pieces", y->n_pieces + 1);
		y->pieces = more;
		y->cap_pieces = cap;
	}
	y->pieces[y->n_pieces++] = (struct piece){*s, rank};
	return 0;
}

/* What the ranks hold of a tensor, into y->pieces. */
static int lay_tensor(struct laying *y, const struct layout_tensor *t, struct err *e)
{
	int r = 0;

	y->n_pieces = 0;
	for (uint32_t rank = 0; r == 0 && rank < layout_world(y->layout); rank++) {
		struct shard shards[LAYOUT_SHARDS_MAX];
		uint32_t n;

		r = layout_shards(y->layout, t, rank, shards, &n, e);
		for (uint32_t i = 0; r == 0 && i < n; i++)
			r = add_piece(y, &shards[i], rank, e);
	}
	return r;
}

static void count(struct laying *y)
{
	uint32_t last = UINT32_MAX;

	for (size_t i = 0; i < y->n_pieces; i++) {
		struct load *of = &y->ranks[y->pieces[i].rank];

		of->bytes += y->pieces[i].shard.bytes;
		of->shards++;
		of->tensors += y->pieces[i].rank != last;
		last = y->pieces[i].rank;
	}
	y->held += held_of(y);
}

/* Laid out anew: what fails has failed when it was counted. */
static int walk(void *from, const struct tensor_sink *to, struct err *e)
{
	struct laying *y = from;

	for (size_t i = 0; i < y->list.n; i++) {
		struct shard whole = {0};
		struct layout_tensor t;
		int r;

		get_tensor(&y->list, i, &t);
		if (!name_is_chosen(y->wanted, t.name, t.name_len))
			continue;
		r = lay_tensor(y, &t, e);
		if (r < 0)
			return r;
		whole.name = t.name;
		whole.name_len = t.name_len;
		whole.dtype = t.dtype;
		whole.global = t.global;
		to->tensor(to->arg, &(struct tensor_head){&whole, bytes_of(&t), held_of(y),
							  y->n_pieces, false});
		for (size_t k = 0; k < y->n_pieces; k++)
			to->piece(to->arg, &y->pieces[k].shard, y->pieces[k].rank);
	}
	return 0;
}

/* The greatest rank's bytes over the mean; 1 when there are none. */
static double balance(const struct laying *y, uint64_t *ret_least, uint64_t *ret_most)
{
	uint32_t world = layout_world(y->layout);

	*ret_least = *ret_most = y->ranks[0].bytes;
	for (uint32_t rank = 1; rank < world; rank++) {
		*ret_least = min_u64(*ret_least, y->ranks[rank].bytes);
		*ret_most = max_u64(*ret_most, y->ranks[rank].bytes);
	}
	return y->held ? (double)*ret_most * world / (double)y->held : 1;
}

/* An expert's axis that is another one by another name says nothing. */
static bool is_shown(const struct layout *l, uint32_t axis)
{
	const struct layout_axis *a = &l->axes[axis];

	for (uint32_t i = 0; i < axis; i++)
		if (l->axes[i].size == a->size && l->axes[i].stride == a->stride)
			return false;
	return a->size > 1;
}

static json_t *place_json(const struct layout *l, uint32_t rank)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < l->n_axes; i++)
		if (is_shown(l, i))
			json_array_append_new(
				list, doc_count(rank / l->axes[i].stride % l->axes[i].size));
	return list;
}

static json_t *document(const struct ctl *c, struct laying *y)
{
	json_t *axes = json_array(), *ranks = json_array();
	uint64_t least, most;
	double over = balance(y, &least, &most);

	for (uint32_t i = 0; i < y->layout->n_axes; i++)
		if (is_shown(y->layout, i))
			json_array_append_new(
				axes, json_pack("{s:s, s:i, s:i}", "name", y->layout->axes[i].name,
						"size", (int)y->layout->axes[i].size, "stride",
						(int)y->layout->axes[i].stride));
	for (uint32_t rank = 0; rank < layout_world(y->layout); rank++)
		json_array_append_new(ranks, json_pack("{s:i, s:o, s:o, s:i, s:i}", "rank",
						       (int)rank, "at", place_json(y->layout, rank),
						       "bytes", doc_count(y->ranks[rank].bytes),
						       "tensors", (int)y->ranks[rank].tensors,
						       "shards", (int)y->ranks[rank].shards));
	return json_pack("{s:i, s:s, s:s, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:f, s:o, s:[]}",
			 "schema", 2, "source", "files", "layout", c->args[0], "world",
			 (int)layout_world(y->layout), "axes", axes, "ranks", ranks, "bytes",
			 doc_count(y->bytes), "held", doc_count(y->held), "least", doc_count(least),
			 "most", doc_count(most), "balance", over, "passed_over",
			 doc_count(y->passed_over), "tensors");
}

/* ---- For people ---- */

static int print_ranks(const json_t *ranks, const json_t *axes, bool has_tensors)
{
	struct table *t = table_new(has_tensors ? "RANK> AT BYTES> TENSORS> SHARDS>" : "RANK> AT");
	char size[TEXT_MAX], at[256];
	json_t *o, *v;
	size_t i, k;

	json_array_foreach(ranks, i, o)
	{
		at[0] = '\0';
		json_array_foreach(json_object_get(o, "at"), k, v) snprintf(
			at + strlen(at), sizeof(at) - strlen(at), "%s%s%" PRIu64, at[0] ? " " : "",
			doc_text(json_array_get(axes, k), "name"), (uint64_t)json_integer_value(v));
		table_cell(t, "%" PRIu64, doc_number(o, "rank"));
		table_cell(t, "%s", at);
		if (!has_tensors)
			continue;
		table_cell(t, "%s", text_bytes(size, doc_number(o, "bytes")));
		table_cell(t, "%" PRIu64, doc_number(o, "tensors"));
		table_cell(t, "%" PRIu64, doc_number(o, "shards"));
	}
	return table_end(t);
}

static int print_layout(const struct ctl *c, const json_t *o, struct laying *y, struct err *e)
{
	char whole[TEXT_MAX], held[TEXT_MAX], least[TEXT_MAX], most[TEXT_MAX];
	int r;

	say("layout    %s", doc_text(o, "layout"));
	say("ranks     %" PRIu64, doc_number(o, "world"));
	if (y->list.n) {
		say("tensors   %zu, %s", y->n, text_bytes(whole, y->bytes));
		say("held      %s by all ranks, %s to %s by one: at most %.2f of the mean",
		    text_bytes(held, y->held), text_bytes(least, doc_number(o, "least")),
		    text_bytes(most, doc_number(o, "most")),
		    json_real_value(json_object_get(o, "balance")));
	}
	say_passed_over(y->passed_over, y->n);
	putchar('\n');
	r = print_ranks(json_object_get(o, "ranks"), json_object_get(o, "axes"), y->list.n > 0);
	if (r < 0)
		return err_code(e, r, "print the layout");
	if (y->n == 0)
		return 0;
	putchar('\n');
	return tensor_list_print(walk, y, c->talk > 0 || c->tensor, e);
}

static int lay_all(const struct ctl *c, struct laying *y, struct err *e)
{
	struct known *l = &y->list;
	const struct layout_tensors all = {get_tensor, l, l->n};
	int r = l->n ? layout_begin(y->layout, &all, e) : 0;

	if (r < 0)
		return err_wrap(e, r, "layout '%.100s'", c->args[0]);
	y->ranks = alloc_array(layout_world(y->layout), sizeof(*y->ranks));
	y->wanted = &c->tensors;
	if (!y->ranks)
		r = err_code(e, -ENOMEM, "lay out %zu tensor%s", l->n, plural(l->n));
	for (size_t i = 0; i < l->n && r == 0; i++) {
		struct layout_tensor t;

		get_tensor(l, i, &t);
		if (!name_is_chosen(&c->tensors, t.name, t.name_len))
			continue;
		y->n++;
		y->passed_over += layout_passes_over(y->layout, &t);
		r = lay_tensor(y, &t, e);
		if (r < 0)
			err_wrap(e, r, "layout '%.100s'", c->args[0]);
		else
			count(y);
		y->bytes += bytes_of(&t);
	}
	if (r == 0 && l->n && !y->n)
		r = err_set(e, CKPT_ENOTFOUND, "no tensor is called like '%.80s'", c->tensor);
	return r;
}

int verb_layout(const struct ctl *c, struct err *e)
{
	struct laying y = {0};
	json_t *o = NULL;
	int r = layout_get(c->args[0], &y.layout, e);

	if (r == 0)
		r = list_tensors(c, &y.list, e);
	if (r == 0)
		r = lay_all(c, &y, e);
	if (r == 0) {
		o = document(c, &y);
		if (!o)
			r = err_code(e, -ENOMEM, "say what the ranks hold");
	}
	if (r == 0 && c->json)
		r = tensor_list_document(o, walk, &y, e);
	else if (r == 0 && c->talk >= 0)
		r = print_layout(c, o, &y, e);
	json_decref(o);
	known_free(&y.list);
	alloc_free(y.ranks);
	alloc_free(y.pieces);
	layout_free(y.layout);
	return r < 0 ? r : EXIT_FINE;
}
