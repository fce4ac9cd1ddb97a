/* SPDX-License-Identifier: Apache-2.0 */
/*
 * diff_verb.c - `ckptctl diff`: what is compared, and how the differences are told. One thread.
 */
#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/bytes.h"
#include "tools/diff.h"
#include "tools/document.h"
#include "tools/plural.h"
#include "tools/print.h"
#include "tools/side.h"

#define MEMORY_DEFAULT ((uint64_t)256 << 20)

static const struct reading_tensor *of(const struct source *s, size_t i)
{
	return i == SIZE_MAX ? NULL : &s->tensors[i];
}

static const struct reading_tensor *either(const struct diff *d, const struct diff_tensor *t)
{
	return t->a != SIZE_MAX ? of(d->a, t->a) : of(d->b, t->b);
}

/* The coordinates of the element with this row-major index. */
static void coordinates(const struct shape *s, uint64_t index, uint64_t ret[CKPT_NDIM_MAX])
{
	for (uint32_t k = s->ndim; k-- > 0; index /= s->dim[k])
		ret[k] = index % s->dim[k];
}

/* ---- JSON ---- */

static json_t *name_of(const struct diff *d, const struct diff_tensor *t)
{
	const struct reading_tensor *x = either(d, t);

	return doc_name(x->name, x->name_len);
}

static json_t *list_of(const uint64_t *v, uint32_t n)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < n; i++)
		json_array_append_new(list, doc_count(v[i]));
	return list;
}

static json_t *max_abs_json(const struct diff_values *v)
{
	if (!v->exact)
		return json_real(v->max_abs);
	if (v->max_abs_int > INT64_MAX)
		return json_real((double)v->max_abs_int);
	return doc_count(v->max_abs_int);
}

static json_t *changed_json(const struct diff *d, const struct diff_tensor *t)
{
	const struct reading_tensor *a = of(d->a, t->a), *b = of(d->b, t->b);
	const struct diff_values *v = &t->values;
	uint64_t at[CKPT_NDIM_MAX];
	json_t *o = json_pack("{s:o, s:s, s:s, s:o, s:o, s:b}", "name", name_of(d, t), "dtype_a",
			      dtype_name(a->dtype), "dtype_b", dtype_name(b->dtype), "shape_a",
			      list_of(a->global.dim, a->global.ndim), "shape_b",
			      list_of(b->global.dim, b->global.ndim), "compared", (int)t->compared);

	if (!t->compared)
		return o;
	json_object_set_new(o, "elements", doc_count(v->elements));
	json_object_set_new(o, "changed", doc_count(v->changed));
	json_object_set_new(o, "fraction",
			    json_real(v->elements ? (double)v->changed / (double)v->elements : 0));
	json_object_set_new(o, "max_abs", max_abs_json(v));
	json_object_set_new(o, "max_rel", json_real(v->max_rel));
	json_object_set_new(o, "nans", doc_count(v->nans));
	json_object_set_new(o, "infinite", doc_count(v->infinite));
	if (v->changed)
		coordinates(&a->global, v->first, at);
	json_object_set_new(o, "first", v->changed ? list_of(at, a->global.ndim) : json_null());
	return o;
}

static void print_document(const struct diff *d, const struct ctl *c, bool equal)
{
	json_t *missing = json_array(), *added = json_array(), *changed = json_array();
	size_t n = 0;

	for (size_t i = 0; i < d->n; i++) {
		const struct diff_tensor *t = &d->tensors[i];

		if (t->b == SIZE_MAX)
			json_array_append_new(missing, name_of(d, t));
		else if (t->a == SIZE_MAX)
			json_array_append_new(added, name_of(d, t));
		else if (!diff_is_equal(d, t))
			json_array_append_new(changed, changed_json(d, t));
		else
			n++;
	}
	print_json(json_pack("{s:i, s:s, s:s, s:o, s:o, s:b, s:o, s:o, s:o, s:o, s:o, s:o}",
			     "schema", 2, "source", "files", "verb", "diff", "a",
			     side_json(d->a, c->args[0]), "b", side_json(d->b, c->args[1]), "equal",
			     (int)equal, "equal_tensors", doc_count(n), "missing", missing, "added",
			     added, "changed", changed, "bytes_read", doc_count(d->bytes_read),
			     "bytes_digest", doc_count(d->bytes_digest)));
}

/* ---- For people ---- */

static void cell_numbers(struct table *table, const struct diff_tensor *t,
			 const struct reading_tensor *a)
{
	const struct diff_values *v = &t->values;
	char text[BOX_TEXT_MAX];
	struct shape at = {.ndim = a->global.ndim};

	if (!t->compared || v->changed == 0) {
		for (int i = 0; i < 4; i++)
			table_cell(table, "%s", "");
		return;
	}
	table_cell(table, "%.4g%%", 100 * (double)v->changed / (double)v->elements);
	if (v->exact)
		table_cell(table, "%" PRIu64, v->max_abs_int);
	else
		table_cell(table, "%.6g", v->max_abs);
	table_cell(table, "%.6g", v->max_rel);
	coordinates(&a->global, v->first, at.dim);
	table_cell(table, "%s", shape_text(text, &at));
}

static void cell_notes(struct table *table, const struct diff_tensor *t,
		       const struct reading_tensor *a, const struct reading_tensor *b)
{
	char x[BOX_TEXT_MAX], y[BOX_TEXT_MAX], nans[64] = "", infinite[64] = "";

	if (!b || !a) {
		table_cell(table, "%s", b ? "added" : "missing");
		return;
	}
	if (strcmp(shape_text(x, &a->global), shape_text(y, &b->global)) != 0) {
		table_cell(table, "shape %s -> %s", x, y);
		return;
	}
	if (t->values.nans)
		snprintf(nans, sizeof(nans), ", %" PRIu64 " NaN on one side", t->values.nans);
	if (t->values.infinite)
		snprintf(infinite, sizeof(infinite), ", %" PRIu64 " infinite", t->values.infinite);
	if (a->dtype != b->dtype)
		table_cell(table, "%s -> %s%s%s%s", dtype_name(a->dtype), dtype_name(b->dtype),
			   t->compared && t->values.changed == 0 ? ", equal numbers" : "", nans,
			   infinite);
	else
		table_cell(table, "values%s%s", nans, infinite);
}

static int print_table(const struct diff *d)
{
	struct table *table = table_new("TENSOR CHANGE CHANGED> MAX-ABS> MAX-REL> FIRST");
	char name[NAME_TEXT_MAX];

	for (size_t i = 0; i < d->n; i++) {
		const struct diff_tensor *t = &d->tensors[i];
		const struct reading_tensor *x = either(d, t);

		if (diff_is_equal(d, t))
			continue;
		table_cell(table, "%s", name_text(name, x->name, x->name_len));
		cell_notes(table, t, of(d->a, t->a), of(d->b, t->b));
		cell_numbers(table, t, x);
	}
	return table_end(table);
}

static void print_names(const struct diff *d)
{
	for (size_t i = 0; i < d->n; i++) {
		const struct reading_tensor *x = either(d, &d->tensors[i]);

		if (!diff_is_equal(d, &d->tensors[i]))
			say("%.*s", (int)x->name_len, x->name);
	}
}

static int print_all(const struct diff *d)
{
	size_t missing = 0, added = 0, equal = 0;
	char read[TEXT_MAX], spared[TEXT_MAX];
	int r;

	for (size_t i = 0; i < d->n; i++) {
		missing += d->tensors[i].b == SIZE_MAX;
		added += d->tensors[i].a == SIZE_MAX;
		equal += diff_is_equal(d, &d->tensors[i]);
	}
	r = print_table(d);
	say("%s and %s: %zu tensor%s equal, %zu changed, %zu missing, %zu added; %s "
	    "read, %s equal by digest",
	    d->a->what, d->b->what, equal, plural(equal), d->n - equal - missing - added, missing,
	    added, text_bytes(read, d->bytes_read), text_bytes(spared, d->bytes_digest));
	return r;
}

static bool all_equal(const struct diff *d)
{
	for (size_t i = 0; i < d->n; i++)
		if (!diff_is_equal(d, &d->tensors[i]))
			return false;
	return true;
}

/* ---- The verb ---- */

static int check_globs(const struct diff *d, const struct words *globs, struct err *e)
{
	if (d->n > 0 || globs->n == 0)
		return 0;
	return err_set(e, CKPT_ENOTFOUND, "neither side has a tensor that is called so");
}

static int run(const struct ctl *c, struct diff *d, uint64_t memory, struct err *e)
{
	struct progress progress = {.shown = c->talk >= 0 && !c->json};
	bool equal;
	int r = diff_run(d, &c->tensors, memory, &progress, e);

	if (r == 0)
		r = check_globs(d, &c->tensors, e);
	if (r < 0)
		return r;
	equal = all_equal(d);
	if (c->json)
		print_document(d, c, equal);
	else if (c->talk < 0)
		print_names(d);
	else
		r = print_all(d);
	return r < 0 ? r : equal ? EXIT_FINE : EXIT_PROBLEM;
}

int verb_diff(const struct ctl *c, struct err *e)
{
	uint64_t memory = c->memory ? c->memory : MEMORY_DEFAULT, part = max_u64(memory / 4, 1);
	const struct reading_options o = {
		.data = c->data, .least = (enum trust_level)c->min_trust, .memory = part};
	struct diff d = {0};
	int r = side_open(c->args[0], &o, &d.a, e);

	if (r == 0)
		r = side_open(c->args[1], &o, &d.b, e);
	if (r == 0)
		r = run(c, &d, memory / 2, e);
	diff_fini(&d);
	source_close(d.a);
	source_close(d.b);
	return r;
}
