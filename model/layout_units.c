/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All tensors of a layout: how many layers and experts their names count, and for flat units of
 * several tensors where in the unit each one begins.
 *
 * Where it begins depends on what the rank has of those before it: one table of beginnings for each
 * combination of a flat cut and a rank (with the flat cut's own coordinates taken as 0: ranks that
 * share a unit share its table), made when it is first asked for.
 *
 * Order within a unit is that of layout_begin(). A unit has tensors of one dtype, and of one
 * moment. Memory: 12 bytes for each tensor, and 8 for each tensor and table; the tensors themselves
 * are asked for again. One thread at a time.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "model/layout_rules.h"

struct entry {
	uint32_t unit; /* number, or UINT32_MAX: it is in none */
	int flat;
};

/* Of one flat cut on one group of ranks. */
struct table {
	int flat;
	uint32_t rank;     /* the group's first */
	uint64_t *offsets; /* of each entry */
	uint64_t *totals;  /* of each unit */
};

struct layout_units {
	struct layout_tensors tensors;
	struct entry *entries;
	uint32_t *sorted; /* numbers of entries by name */
	uint32_t n, n_units;
	uint32_t counts[LAYOUT_PLACES_MAX]; /* the greatest number and one */
	struct table *tables;
	uint32_t n_tables, latest;
};

void layout_units_free(struct layout_units *u)
{
	if (!u)
		return;
	for (uint32_t i = 0; i < u->n_tables; i++) {
		alloc_free(u->tables[i].offsets);
		alloc_free(u->tables[i].totals);
	}
	alloc_free(u->tables);
	alloc_free(u->entries);
	alloc_free(u->sorted);
	alloc_free(u);
}

static void get_of_array(const void *arg, size_t i, struct layout_tensor *ret)
{
	*ret = ((const struct layout_tensor *)arg)[i];
}

struct layout_tensors layout_array(const struct layout_tensor *t, size_t n)
{
	return (struct layout_tensors){get_of_array, t, n};
}

static struct layout_tensor tensor_of(const struct layout_units *u, uint32_t i)
{
	struct layout_tensor t;

	u->tensors.get(u->tensors.arg, i, &t);
	return t;
}

uint32_t layout_place_count(const struct layout *l, uint32_t place)
{
	if (l->places[place].count || !l->units)
		return l->places[place].count;
	return l->units->counts[place];
}

static int compare(const void *a, const void *b, void *arg)
{
	const struct layout_tensor x = tensor_of(arg, *(const uint32_t *)a);
	const struct layout_tensor y = tensor_of(arg, *(const uint32_t *)b);

	return name_compare(x.name, x.name_len, y.name, y.name_len);
}

/* The entry's number, UINT32_MAX: none. */
static uint32_t find(const struct layout_units *u, const char *name, uint32_t len)
{
	uint32_t lo = 0, hi = u->n;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;
		const struct layout_tensor t = tensor_of(u, u->sorted[mid]);
		int c = name_compare(t.name, t.name_len, name, len);

		if (c == 0)
			return u->sorted[mid];
		if (c < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return UINT32_MAX;
}

static int check_names(struct layout_units *u, struct err *e)
{
	char name[NAME_TEXT_MAX];

	for (uint32_t i = 1; i < u->n; i++) {
		const struct layout_tensor t = tensor_of(u, u->sorted[i]);

		if (!compare(&u->sorted[i - 1], &u->sorted[i], u))
			return err_set(e, -EINVAL, "tensor '%s' is listed twice",
				       name_text(name, t.name, t.name_len));
	}
	return 0;
}

static void count_numbers(const struct layout *l, struct layout_units *u,
			  const struct layout_local *at)
{
	struct layout_number number;

	for (uint32_t i = 0; i < l->n_places; i++)
		if (layout_globs_match(&l->places[i].numbers, at->base, at->base_len, &number) &&
		    number.value < UINT32_MAX && number.value >= u->counts[i])
			u->counts[i] = number.value + 1;
}

/* ---- Units ---- */

/* What tells units apart. */
struct key {
	int flat, moment;
	uint32_t dtype, prefix;
	const char *name; /* its first `prefix` bytes */
};

static struct key key_of(const struct layout *l, const struct layout_tensor *t,
			 const struct layout_local *at)
{
	const struct layout_flat *f = &l->flats[at->flat];
	struct key k = { at->flat, at->moment, t->dtype, 0, at->base };
	struct layout_number number;

	if (f->unit == LAYOUT_UNIT_NUMBER &&
	    layout_globs_match(&f->numbers, at->base, at->base_len, &number))
		k.prefix = number.end;
	return k;
}

struct keyed {
	struct key key;
	uint32_t entry;
};

static int compare_keys(const void *a, const void *b)
{
	const struct key *x = &((const struct keyed *)a)->key;
	const struct key *y = &((const struct keyed *)b)->key;

	if (x->flat != y->flat)
		return x->flat < y->flat ? -1 : 1;
	if (x->moment != y->moment)
		return x->moment < y->moment ? -1 : 1;
	if (x->dtype != y->dtype)
		return x->dtype < y->dtype ? -1 : 1;
	return name_compare(x->name, x->prefix, y->name, y->prefix);
}

static int make_units(const struct layout *l, struct layout_units *u, struct err *e)
{
	CLEANUP_FREE struct keyed *keyed = alloc_array(u->n, sizeof(*keyed));
	struct layout_local at;
	uint32_t n = 0;

	if (!keyed)
		return err_code(e, -ENOMEM, "make flat units of %u tensors", u->n);
	for (uint32_t i = 0; i < u->n; i++) {
		const struct layout_tensor t = tensor_of(u, i);
		int r = layout_local(l, &t, 0, &at, e);
		char name[NAME_TEXT_MAX];

		if (r)
			return err_wrap(e, r, "tensor '%s'", name_text(name, t.name, t.name_len));
		u->entries[i].flat = at.flat;
		if (at.flat >= 0 && l->flats[at.flat].unit != LAYOUT_UNIT_TENSOR)
			keyed[n++] = (struct keyed){ key_of(l, &t, &at), i };
	}
	qsort(keyed, n, sizeof(*keyed), compare_keys);
	for (uint32_t i = 0; i < n; i++) {
		u->n_units += i == 0 || compare_keys(&keyed[i - 1], &keyed[i]);
		u->entries[keyed[i].entry].unit = u->n_units - 1;
	}
	return 0;
}

static int begin(struct layout *l, struct layout_units *u, struct err *e)
{
	struct layout_local at;
	int r;

	u->entries = alloc_array(u->n, sizeof(*u->entries));
	u->sorted = alloc_array(u->n, sizeof(*u->sorted));
	if (!u->entries || !u->sorted)
		return err_code(e, -ENOMEM, "look up %u tensors by name", u->n);
	for (uint32_t i = 0; i < u->n; i++) {
		u->entries[i] = (struct entry){.unit = UINT32_MAX};
		u->sorted[i] = i;
	}
	qsort_r(u->sorted, u->n, sizeof(*u->sorted), compare, u);
	r = check_names(u, e);
	if (r)
		return r;
	for (uint32_t i = 0; i < u->n; i++) {
		const struct layout_tensor t = tensor_of(u, i);

		layout_strip(l, &t, &at);
		count_numbers(l, u, &at);
	}
	return make_units(l, u, e);
}

struct shard layout_whole(const struct layout_tensor *t)
{
	struct shard s = {
		.name = t->name,
		.name_len = t->name_len,
		.dtype = t->dtype,
		.global = t->global,
		.box.ndim = t->global.ndim,
	};

	memcpy(s.box.length, t->global.dim, sizeof(s.box.length));
	return s;
}

static int check_tensor(const struct layout_tensor *t, struct err *e)
{
	struct shard s = layout_whole(t);

	return shard_check(&s, e);
}

int layout_begin(struct layout *l, const struct layout_tensors *t, struct err *e)
{
	struct layout_units *u;
	int r;

	assert(!l->units);
	if (t->n >= UINT32_MAX)
		return err_set(e, -EINVAL, "%zu tensors are too many", t->n);
	for (size_t i = 0; i < t->n; i++) {
		struct layout_tensor one;

		t->get(t->arg, i, &one);
		r = check_tensor(&one, e);
		if (r)
			return r;
	}
	u = alloc_zero(sizeof(*u));
	if (!u)
		return err_code(e, -ENOMEM, "look up %zu tensors by name", t->n);
	u->tensors = *t;
	u->n = (uint32_t)t->n;
	l->units = u; /* names are counted and looked up through it */
	r = begin(l, u, e);
	if (r) {
		layout_units_free(u);
		l->units = NULL;
	}
	return r;
}

/* ---- Tables ---- */

static int fill_table(const struct layout *l, const struct layout_units *u, struct table *t,
		      struct err *e)
{
	const struct layout_flat *f = &l->flats[t->flat];
	struct layout_local at;

	for (uint32_t i = 0; i < u->n; i++) {
		uint32_t k = f->reverse ? u->n - 1 - i : i;
		const struct entry *entry = &u->entries[k];
		struct layout_tensor tensor;
		uint64_t *total, end;
		int r;

		if (entry->flat != t->flat)
			continue;
		tensor = tensor_of(u, k);
		r = layout_local(l, &tensor, t->rank, &at, e);
		if (r)
			return r;
		if (!at.elements)
			continue;
		total = &t->totals[entry->unit];
		if ((f->align && !size_mul(div_up(*total, f->align), f->align, total)) ||
		    !size_add(*total, at.elements, &end))
			return err_set(e, -EINVAL, "its flat unit has more than 2^64 elements");
		t->offsets[k] = *total;
		*total = end;
	}
	return 0;
}

static int add_table(const struct layout *l, struct layout_units *u, int flat, uint32_t rank,
		     struct err *e)
{
	struct table *more = alloc_resize(u->tables, (u->n_tables + 1) * sizeof(*more)), *t;
	int r;

	if (!more)
		return err_code(e, -ENOMEM, "lay out flat units");
	u->tables = more;
	t = &more[u->n_tables];
	*t = (struct table){
		.flat = flat,
		.rank = rank,
		.offsets = alloc_array(u->n, sizeof(*t->offsets)),
		.totals = alloc_array(u->n_units, sizeof(*t->totals)),
	};
	r = t->offsets && t->totals ? fill_table(l, u, t, e)
				    : err_code(e, -ENOMEM, "lay out flat units");
	if (r) {
		alloc_free(t->offsets);
		alloc_free(t->totals);
		return r;
	}
	u->latest = u->n_tables++;
	return 0;
}

static bool same_tensor(const struct layout_tensor *a, const struct layout_tensor *b)
{
	return a->dtype == b->dtype && a->global.ndim == b->global.ndim &&
	       !memcmp(a->global.dim, b->global.dim, a->global.ndim * sizeof(*a->global.dim));
}

int layout_unit_at(struct layout *l, const struct layout_tensor *t, const struct layout_local *at,
		   uint32_t rank, uint64_t *ret_offset, uint64_t *ret_total, struct err *e)
{
	const struct layout_over *over = &l->flats[at->flat].over;
	struct layout_units *u = l->units;
	struct layout_tensor known;
	uint32_t i, k;
	int r;

	if (!u)
		return err_set(e, -EINVAL,
			       "its flat unit has several tensors: name them all first");
	k = find(u, t->name, t->name_len);
	if (k != UINT32_MAX)
		known = tensor_of(u, k);
	if (k == UINT32_MAX || !same_tensor(&known, t))
		return err_set(e, -EINVAL, "it is not among the tensors that were named first");
	assert(u->entries[k].unit < u->n_units && u->entries[k].flat == at->flat);
	for (i = 0; i < over->n; i++) {
		const struct layout_axis *a = &l->axes[over->axis[i]];

		rank -= rank / a->stride % a->size * a->stride;
	}
	if (u->latest >= u->n_tables || u->tables[u->latest].rank != rank ||
	    u->tables[u->latest].flat != at->flat) {
		for (i = 0; i < u->n_tables; i++)
			if (u->tables[i].rank == rank && u->tables[i].flat == at->flat)
				break;
		u->latest = i;
		r = i == u->n_tables ? add_table(l, u, at->flat, rank, e) : 0;
		if (r)
			return r;
	}
	*ret_offset = u->tables[u->latest].offsets[k];
	*ret_total = u->tables[u->latest].totals[u->entries[k].unit];
	return 0;
}
