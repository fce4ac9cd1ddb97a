/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout_file.c - a layout from JSON: each key is known or refused, so that no typing error becomes
 * a tensor that is silently whole on every rank. One thread.
 */
#include <config.h>

#include "tools/layout_file.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "model/layout_rules.h"
#include "tools/plural.h"

#define FILE_MAX   ((size_t)16 << 20)
#define NUMBER_MAX ((json_int_t)1 << 40)

/* ---- Values; a key that is not there leaves the default ---- */

/* keys: words with a blank behind each. */
static int check_keys(json_t *o, const char *keys, struct err *e)
{
	const char *key;
	json_t *value;

	if (!json_is_object(o))
		return err_set(e, -EINVAL, "it is no object with some of: %.*s",
			       (int)strlen(keys) - 1, keys);
	json_object_foreach(o, key, value)
	{
		size_t len = strlen(key);
		const char *at = keys;

		while (*at && (strncmp(at, key, len) != 0 || at[len] != ' '))
			at += strcspn(at, " ") + 1;
		if (!*at)
			return err_set(e, -EINVAL, "there is no key '%.60s': it has some of: %.*s",
				       key, (int)strlen(keys) - 1, keys);
	}
	return 0;
}

static int get_number(json_t *o, const char *key, uint64_t min, uint64_t max, uint64_t *ret,
		      struct err *e)
{
	json_t *v = json_object_get(o, key);
	json_int_t n = json_integer_value(v);

	if (!v)
		return 0;
	if (!json_is_integer(v) || n < (json_int_t)min || n > (json_int_t)max)
		return err_set(e, -EINVAL, "\"%s\" is not a number from %llu to %llu", key,
			       (unsigned long long)min, (unsigned long long)max);
	*ret = (uint64_t)n;
	return 0;
}

static int get_flag(json_t *o, const char *key, bool *ret, struct err *e)
{
	json_t *v = json_object_get(o, key);

	if (v && !json_is_boolean(v))
		return err_set(e, -EINVAL, "\"%s\" is neither true nor false", key);
	if (v)
		*ret = json_is_true(v);
	return 0;
}

/* words: a list that ends with NULL; *ret: which of them. */
static int get_word(json_t *o, const char *key, const char *const *words, uint32_t *ret,
		    struct err *e)
{
	const char *text = json_string_value(json_object_get(o, key));
	char all[80] = "";

	if (!json_object_get(o, key))
		return 0;
	for (uint32_t i = 0; words[i]; i++) {
		if (text && !strcmp(text, words[i])) {
			*ret = i;
			return 0;
		}
		snprintf(all + strlen(all), sizeof(all) - strlen(all), "%s\"%s\"", i ? ", " : "",
			 words[i]);
	}
	return err_set(e, -EINVAL, "\"%s\" is none of %s", key, all);
}

/* A list, or what would be its only member. */
static size_t list_size(json_t *v)
{
	return json_is_array(v) ? json_array_size(v) : v != NULL;
}

static json_t *list_at(json_t *v, size_t i)
{
	return json_is_array(v) ? json_array_get(v, i) : v;
}

static int get_globs(json_t *o, const char *key, uint32_t numbers, struct layout_globs *g,
		     struct err *e)
{
	json_t *v = json_object_get(o, key);

	for (size_t i = 0; i < list_size(v); i++) {
		const char *glob = json_string_value(list_at(v, i));
		int r = glob ? layout_globs_add(g, glob, numbers, e)
			     : err_set(e, -EINVAL, "a pattern of names is text");

		if (r)
			return err_wrap(e, r, "\"%s\"", key);
	}
	return 0;
}

static int get_axis(const struct layout *l, json_t *v, uint8_t *ret, struct err *e)
{
	const char *name = json_string_value(v);
	int axis = name ? layout_find_axis(l, name) : -1;

	if (axis < 0)
		return err_set(e, -EINVAL, "'%.40s' is no axis of the mesh", name ? name : "");
	*ret = (uint8_t)axis;
	return 0;
}

static int get_over(const struct layout *l, json_t *o, struct layout_over *ret, struct err *e)
{
	json_t *v = json_object_get(o, "over");

	if (list_size(v) == 0 || list_size(v) > LAYOUT_OVER_MAX)
		return err_set(e, -EINVAL, "\"over\" is not the name of an axis, or of 1 to %u",
			       LAYOUT_OVER_MAX);
	for (size_t i = 0; i < list_size(v); i++) {
		int r = get_axis(l, list_at(v, i), &ret->axis[i], e);

		if (r)
			return err_wrap(e, r, "\"over\"");
		ret->n++;
	}
	return 0;
}

/* How to cut: "how", "pad". */
static int get_how(json_t *o, enum layout_how *ret, uint64_t *ret_pad, struct err *e)
{
	static const char *const words[] = {"even", "chunk", "floor", NULL};
	uint32_t how = *ret;
	int r = get_word(o, "how", words, &how, e);

	*ret = (enum layout_how)how;
	if (!r)
		r = get_number(o, "pad", 1, (uint64_t)NUMBER_MAX, ret_pad, e);
	if (!r && *ret_pad && *ret != LAYOUT_CHUNK)
		r = err_set(e, -EINVAL, "\"pad\" goes with \"how\": \"chunk\" only");
	return r;
}

static int get_of(json_t *o, bool *ret_params, bool *ret_moments, struct err *e)
{
	static const char *const words[] = {"all", "parameters", "moments", NULL};
	uint32_t of = 0;
	int r = get_word(o, "of", words, &of, e);

	*ret_params = of != 2;
	*ret_moments = of != 1;
	return r;
}

/* ---- Meshes ---- */

static int add_axis(struct layout *l, json_t *v, uint32_t *stride, struct err *e)
{
	const char *name = json_string_value(json_array_get(v, 0));
	json_int_t size = json_integer_value(json_array_get(v, 1));
	int known;

	if (!json_is_array(v) || json_array_size(v) != 2 || !name || size < 1 ||
	    size > (json_int_t)l->world)
		return err_set(e, -EINVAL, "an axis is [\"name\", size]");
	known = layout_find_axis(l, name);
	if (known < 0) {
		int r = layout_add_axis(l, name, (uint32_t)size, *stride, e);

		if (r)
			return r;
	} else if (l->axes[known].size != size || l->axes[known].stride != *stride) {
		return err_set(e, -EINVAL,
			       "axis '%s' is in two places of the meshes, with other ranks", name);
	}
	*stride *= (uint32_t)size; /* no overflow: it divides the world */
	return 0;
}

static uint64_t mesh_ranks(json_t *mesh)
{
	uint64_t n = 1;

	for (size_t i = 0; i < json_array_size(mesh) && n <= LAYOUT_WORLD_MAX; i++) {
		json_t *size = json_array_get(json_array_get(mesh, i), 1);
		json_int_t v = json_integer_value(size);

		n = v < 1 || v > (json_int_t)LAYOUT_WORLD_MAX ? UINT32_MAX : n * (uint64_t)v;
	}
	return n;
}

static int add_mesh(struct layout *l, json_t *mesh, struct err *e)
{
	uint32_t stride = 1;

	if (mesh_ranks(mesh) != l->world)
		return err_set(e, -EINVAL, "it is over other than the %u rank%s of the first",
			       l->world, plural(l->world));
	for (size_t i = json_array_size(mesh); i-- > 0;) {
		int r = add_axis(l, json_array_get(mesh, i), &stride, e);

		if (r)
			return r;
	}
	return 0;
}

static int add_meshes(json_t *o, struct layout **ret, struct err *e)
{
	json_t *mesh = json_object_get(o, "mesh"), *more = json_object_get(o, "more_meshes");
	int r;

	if (!json_is_array(mesh) || json_array_size(mesh) == 0)
		return err_set(e, -EINVAL,
			       "\"mesh\" is not a list of axes, [[\"dp\", 2], [\"tp\", 4]], the "
			       "slowest first");
	if (mesh_ranks(mesh) > LAYOUT_WORLD_MAX)
		return err_set(
			e, -EINVAL,
			"\"mesh\": each axis is [\"name\", size], all together 1 to %u ranks",
			LAYOUT_WORLD_MAX);
	r = layout_new((uint32_t)mesh_ranks(mesh), ret, e);
	if (!r) {
		r = add_mesh(*ret, mesh, e);
		if (r)
			return err_wrap(e, r, "\"mesh\"");
	}
	if (!r && more && !json_is_array(more))
		r = err_set(e, -EINVAL, "\"more_meshes\" is no list of meshes");
	for (size_t i = 0; i < json_array_size(more) && !r; i++) {
		r = add_mesh(*ret, json_array_get(more, i), e);
		if (r)
			err_wrap(e, r, "mesh %zu of \"more_meshes\"", i + 1);
	}
	return r;
}

/* ---- Places ---- */

static int get_sizes(const struct layout *l, json_t *o, struct layout_place *p, struct err *e)
{
	json_t *v = json_object_get(o, "sizes");
	size_t n = (size_t)l->axes[p->axis].size * p->rounds;
	uint64_t all = 0;

	if (!v)
		return 0;
	if (!json_is_array(v) || json_array_size(v) != n)
		return err_set(e, -EINVAL, "\"sizes\" is no list of %zu number%s", n, plural(n));
	p->sizes = alloc_array(n, sizeof(*p->sizes));
	if (!p->sizes)
		return err_code(e, -ENOMEM, "keep \"sizes\"");
	for (size_t i = 0; i < n; i++) {
		json_int_t size = json_integer_value(json_array_get(v, i));

		if (!json_is_integer(json_array_get(v, i)) || size < 0 || size > UINT16_MAX)
			return err_set(e, -EINVAL, "\"sizes\" has other than numbers below 65536");
		p->sizes[i] = (uint32_t)size;
		all += (uint64_t)size;
	}
	if (json_object_get(o, "count") && p->count != all)
		return err_set(e, -EINVAL, "\"sizes\" are %llu together, \"count\" says %u",
			       (unsigned long long)all, p->count);
	p->count = (uint32_t)all;
	return 0;
}

static int add_place(struct layout *l, json_t *o, struct err *e)
{
	struct layout_place *p = &l->places[l->n_places];
	uint64_t count = 0, rounds = 1;
	int r = check_keys(o, "axis number count rounds sizes first last both ", e);

	if (!r && l->n_places == LAYOUT_PLACES_MAX)
		r = err_set(e, -EINVAL, "there are more than %u places", LAYOUT_PLACES_MAX);
	if (!r)
		r = get_axis(l, json_object_get(o, "axis"), &p->axis, e);
	if (r)
		return r;
	l->n_places++;
	r = get_number(o, "count", 1, UINT32_MAX - 1, &count, e);
	if (!r)
		r = get_number(o, "rounds", 1, LAYOUT_WORLD_MAX / l->axes[p->axis].size, &rounds,
			       e);
	p->count = (uint32_t)count;
	p->rounds = (uint32_t)rounds;
	if (!r)
		r = get_sizes(l, o, p, e);
	if (!r)
		r = get_globs(o, "number", 1, &p->numbers, e);
	if (!r)
		r = get_globs(o, "first", 0, &p->first, e);
	if (!r)
		r = get_globs(o, "last", 0, &p->last, e);
	if (!r)
		r = get_globs(o, "both", 0, &p->both, e);
	return r;
}

/* ---- Flat cuts ---- */

static int add_flat(struct layout *l, json_t *o, int *ret, struct err *e)
{
	static const char *const units[] = {"tensor", "all", "number", NULL};
	struct layout_flat *f = &l->flats[l->n_flats];
	uint32_t unit = LAYOUT_UNIT_TENSOR;
	int r = check_keys(o, "over of how pad align unit number reverse ", e);

	if (!r && l->n_flats == LAYOUT_FLATS_MAX)
		r = err_set(e, -EINVAL, "there are more than %u flat cuts", LAYOUT_FLATS_MAX);
	if (r)
		return r;
	*ret = (int)l->n_flats++;
	f->how = LAYOUT_CHUNK;
	r = get_over(l, o, &f->over, e);
	if (!r)
		r = get_of(o, &f->params, &f->moments, e);
	if (!r)
		r = get_how(o, &f->how, &f->pad, e);
	if (!r)
		r = get_number(o, "align", 1, (uint64_t)NUMBER_MAX, &f->align, e);
	if (!r)
		r = get_word(o, "unit", units, &unit, e);
	f->unit = (enum layout_unit)unit;
	if (!r)
		r = get_globs(o, "number", 1, &f->numbers, e);
	if (!r && (f->unit == LAYOUT_UNIT_NUMBER) != (f->numbers.n > 0))
		r = err_set(e, -EINVAL, "\"unit\": \"number\" goes with \"number\", patterns");
	if (!r)
		r = get_flag(o, "reverse", &f->reverse, e);
	return r;
}

/* ---- Rules ---- */

static int get_part(json_t *v, struct layout_part *ret, struct err *e)
{
	int r;

	if (json_is_integer(v)) {
		if (json_integer_value(v) < 1 || json_integer_value(v) > NUMBER_MAX)
			return err_set(e, -EINVAL, "a weight is a number from 1 to 2^40");
		ret->weight = (uint64_t)json_integer_value(v);
		return 0;
	}
	r = check_keys(v, "weight units ", e);
	if (!r && !json_object_get(v, "weight"))
		r = err_set(e, -EINVAL, "it has no \"weight\"");
	if (!r)
		r = get_number(v, "weight", 1, (uint64_t)NUMBER_MAX, &ret->weight, e);
	if (!r)
		r = get_number(v, "units", 1, LAYOUT_WORLD_MAX, &ret->units, e);
	return r;
}

static int get_parts(json_t *o, struct layout_cut *c, struct err *e)
{
	json_t *v = json_object_get(o, "parts");

	if (!v)
		return 0;
	if (!json_is_array(v) || json_array_size(v) < 1 || json_array_size(v) > LAYOUT_PARTS_MAX)
		return err_set(e, -EINVAL, "\"parts\" is no list of 1 to %u", LAYOUT_PARTS_MAX);
	if (c->units)
		return err_set(e, -EINVAL, "\"units\" goes into each of the \"parts\"");
	for (size_t i = 0; i < json_array_size(v); i++) {
		int r = get_part(json_array_get(v, i), &c->parts[c->n_parts++], e);

		if (r)
			return err_wrap(e, r, "part %zu", i + 1);
	}
	return 0;
}

static int get_cut(const struct layout *l, json_t *o, struct layout_cut *c, struct err *e)
{
	uint64_t dim = 0;
	int r = check_keys(o, "dim over how units pad parts ", e);

	if (!r)
		r = get_number(o, "dim", 0, CKPT_NDIM_MAX - 1, &dim, e);
	c->dim = (uint32_t)dim;
	if (!r)
		r = get_over(l, o, &c->over, e);
	if (!r)
		r = get_how(o, &c->how, &c->pad, e);
	if (!r)
		r = get_number(o, "units", 1, LAYOUT_WORLD_MAX, &c->units, e);
	if (!r && c->units && c->how != LAYOUT_EVEN)
		r = err_set(e, -EINVAL, "\"units\" goes with \"how\": \"even\" only");
	if (!r)
		r = get_parts(o, c, e);
	return r;
}

static int get_cuts(const struct layout *l, json_t *o, struct layout_rule *rule, struct err *e)
{
	json_t *v = json_object_get(o, "cut");

	if (list_size(v) > LAYOUT_CUTS_MAX)
		return err_set(e, -EINVAL, "\"cut\" has more than %u cuts", LAYOUT_CUTS_MAX);
	for (size_t i = 0; i < list_size(v); i++) {
		int r = get_cut(l, list_at(v, i), &rule->cuts[rule->n_cuts++], e);

		if (r)
			return err_wrap(e, r, "cut %zu", i + 1);
	}
	return 0;
}

static int add_rule(struct layout *l, json_t *o, struct err *e)
{
	struct layout_rule *rule = layout_add_rule(l);
	json_t *flat;
	int r;

	if (!rule)
		return err_code(e, -ENOMEM, "keep a rule (at most %u)", LAYOUT_RULES_MAX);
	r = check_keys(o, "match of cut flat ", e);
	if (!r)
		r = get_globs(o, "match", 0, &rule->globs, e);
	if (!r && !rule->globs.n)
		r = err_set(e, -EINVAL, "it has no \"match\", a pattern of names or several");
	if (!r)
		r = get_of(o, &rule->params, &rule->moments, e);
	if (!r)
		r = get_cuts(l, o, rule, e);
	flat = json_object_get(o, "flat");
	if (r || !flat)
		return r;
	rule->flat = LAYOUT_FLAT_OFF;
	if (json_is_false(flat))
		return 0;
	r = add_flat(l, flat, &rule->flat, e);
	return r ? err_wrap(e, r, "\"flat\"") : 0;
}

static int add_rules(struct layout *l, json_t *v, struct err *e)
{
	if (v && !json_is_array(v))
		return err_set(e, -EINVAL, "\"rules\" is no list");
	for (size_t i = 0; i < json_array_size(v); i++) {
		json_t *o = json_array_get(v, i), *match = list_at(json_object_get(o, "match"), 0);
		const char *glob = json_string_value(match);
		int r = add_rule(l, o, e);

		if (r)
			return err_wrap(e, r, "rule %zu ('%.80s')", i + 1, glob ? glob : "");
	}
	return 0;
}

/* ---- The whole ---- */

static int build(json_t *o, struct layout **ret, struct err *e)
{
	json_t *places = json_object_get(o, "places"), *flat = json_object_get(o, "flat");
	uint64_t version = 0;
	struct layout *l;
	int r = check_keys(o, "layout mesh more_meshes moments strict flat places rules ", e);

	if (!r)
		r = get_number(o, "layout", 0, INT64_MAX, &version, e);
	if (!r && !version)
		r = err_set(e, -EINVAL, "it has no \"layout\": 1, which says what it is");
	if (!r && version != 1)
		r = err_set(e, -EINVAL, "it is of version %llu, and this ckptctl knows 1",
			    (unsigned long long)version);
	if (!r)
		r = add_meshes(o, ret, e);
	if (r)
		return r;
	l = *ret;
	r = get_flag(o, "strict", &l->strict, e);
	if (!r)
		r = json_object_get(o, "moments") ? get_globs(o, "moments", 0, &l->moments, e)
						  : layout_add_moments(l, e);
	if (!r && flat) {
		r = add_flat(l, flat, &l->flat, e);
		if (r)
			err_wrap(e, r, "\"flat\"");
	}
	for (size_t i = 0; i < list_size(places) && !r; i++) {
		r = add_place(l, list_at(places, i), e);
		if (r)
			err_wrap(e, r, "place %zu", i + 1);
	}
	if (!r)
		r = add_rules(l, json_object_get(o, "rules"), e);
	return r ? r : layout_check(l, e);
}

int layout_from_json(const char *text, size_t len, struct layout **ret, struct err *e)
{
	struct layout *l = NULL;
	json_error_t why;
	json_t *o;
	int r;

	if (len > FILE_MAX)
		return err_set(e, -EINVAL, "a layout has at most %zu MiB of JSON", FILE_MAX >> 20);
	o = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
	if (!o)
		return err_set(e, -EINVAL, "line %d, column %d: %.160s", why.line, why.column,
			       why.text);
	r = build(o, &l, e);
	json_decref(o);
	if (r)
		layout_free(l);
	else
		*ret = l;
	return r;
}

static int read_file(const char *path, char **ret, size_t *ret_len, struct err *e)
{
	FILE *f = fopen(path, "re");
	size_t len = 0, room = (size_t)64 << 10;
	char *text = NULL, *more;
	int r = 0;

	if (!f)
		return err_code(e, -errno, "open it");
	do {
		more = alloc_resize(text, room *= 2);
		if (more)
			text = more;
		else
			r = err_code(e, -ENOMEM, "read it");
		if (!r)
			len += fread(text + len, 1, room - len, f);
	} while (!r && len == room && len <= FILE_MAX);
	if (!r && ferror(f))
		r = err_code(e, -EIO, "read it");
	fclose(f);
	if (r) {
		alloc_free(text);
		return r;
	}
	*ret = text;
	*ret_len = len;
	return 0;
}

int layout_get(const char *spec_or_path, struct layout **ret, struct err *e)
{
	size_t len = strlen(spec_or_path);
	CLEANUP_FREE char *text = NULL;
	int r;

	if (len < 5 || strcmp(spec_or_path + len - 5, ".json") != 0)
		return layout_parse(spec_or_path, ret, e);
	r = read_file(spec_or_path, &text, &len, e);
	if (!r)
		r = layout_from_json(text, len, ret, e);
	return r ? err_wrap(e, r, "layout file '%.160s'", spec_or_path) : 0;
}
