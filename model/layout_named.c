/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A named layout from its numbers: axes, places, flat cuts and rules. Where the formulas come from:
 * doc/layouts.md. Pure.
 *
 * Two meshes lie over the same ranks: tp, cp, dp, pp for what every token goes through, etp, ep,
 * edp, pp for experts (as Megatron-LM's two rank generators).
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "model/layout_spec.h"

/* ---- Axes ---- */

/* One mesh, the fastest axis first, as the order says. The pipeline's is added once: *pp_stride is
 * 0 before. */
static int add_mesh(const struct layout_spec *s, bool experts, struct layout *l,
		    uint32_t *pp_stride, struct err *e)
{
	uint32_t edp = s->tp * s->cp * s->dp / (s->ep * s->etp), stride = 1;
	char order[sizeof(s->order)], *rest = strcpy(order, s->order);
	int r = 0;

	while (rest && !r) {
		const char *name = strsep(&rest, "-");
		uint32_t size = 1;

		if (!strcmp(name, "pp")) {
			size = s->pp;
			if (*pp_stride && *pp_stride != stride)
				return err_set(e, -EINVAL,
					       "order=%s: with these sizes an expert's stages are "
					       "not the other layers'",
					       s->order);
			r = *pp_stride ? 0 : layout_add_axis(l, "pp", size, stride, e);
			*pp_stride = stride;
		} else if (!strcmp(name, "dp")) {
			size = experts ? edp : s->dp;
			r = layout_add_axis(l, experts ? "edp" : "dp", size, stride, e);
			size *= s->replicate;
		} else if (!strcmp(name, "tp")) {
			size = experts ? s->etp : s->tp;
			r = layout_add_axis(l, experts ? "etp" : "tp", size, stride, e);
		} else if (!strcmp(name, "ep") && experts) {
			size = s->ep;
			r = layout_add_axis(l, "ep", size, stride, e);
		} else if (!strcmp(name, "cp") && !experts) {
			size = s->cp;
			r = layout_add_axis(l, "cp", size, stride, e);
		} else if (strcmp(name, "ep") != 0 && strcmp(name, "cp") != 0) {
			return err_set(e, -EINVAL, "order=%s: '%s' is none of tp, cp, ep, dp, pp",
				       s->order, name);
		}
		stride *= size;
	}
	if (!r && stride != l->world)
		r = err_set(e, -EINVAL,
			    "order=%s: each of tp, cp, ep, dp, pp that is more than 1 is in it "
			    "once, the fastest first",
			    s->order);
	return r;
}

/* Those of size 1 that the order left out. */
static int add_rest(struct layout *l, struct err *e)
{
	static const char *const names[] = { "tp", "cp", "dp", "pp", "etp", "ep", "edp" };
	int r = 0;

	for (size_t i = 0; i < sizeof(names) / sizeof(*names) && !r; i++)
		if (layout_find_axis(l, names[i]) < 0)
			r = layout_add_axis(l, names[i], 1, 1, e);
	return r;
}

static struct layout_over over_of(const struct layout *l, const char *a, const char *b)
{
	struct layout_over o = { .n = 1, .axis[0] = (uint8_t)layout_find_axis(l, a) };

	assert(layout_find_axis(l, a) >= 0);
	if (b)
		o.axis[o.n++] = (uint8_t)layout_find_axis(l, b);
	return o;
}

/* ---- Places ---- */

/* family NULL: those of all. */
static bool in_family(const struct layout_spec *s, uint32_t i)
{
	if (s->family)
		return s->family == &layout_families[i];
	return strcmp(layout_families[i].name, "nanogpt") != 0;
}

static int add_globs(struct layout_globs *g, const char *const *list, uint32_t numbers,
		     struct err *e)
{
	int r = 0;

	for (; *list && !r; list++)
		r = layout_globs_add(g, *list, numbers, e);
	return r;
}

static int add_stages(const struct layout_spec *s, struct layout *l, struct err *e)
{
	struct layout_place *p = &l->places[l->n_places++];
	int r = 0;

	*p = (struct layout_place){
		.axis = (uint8_t)layout_find_axis(l, "pp"),
		.count = s->layers,
		.rounds = s->vpp,
	};
	for (uint32_t i = 0; i < layout_n_families && !r; i++) {
		const struct family *f = &layout_families[i];

		if (!in_family(s, i))
			continue;
		r = add_globs(&p->numbers, f->layers, 1, e);
		if (!r)
			r = add_globs(&p->first, f->first, 0, e);
		if (!r)
			r = add_globs(&p->last, f->last, 0, e);
		if (!r)
			r = layout_globs_add(s->tied ? &p->both : &p->first, f->tied, 0, e);
	}
	if (r || !s->n_stages)
		return r;
	p->sizes = alloc_copy(s->stages, s->n_stages * sizeof(*s->stages));
	if (!p->sizes)
		return err_code(e, -ENOMEM, "keep stages");
	p->count = 0;
	for (uint32_t i = 0; i < s->n_stages; i++)
		p->count += s->stages[i];
	if (s->layers && s->layers != p->count)
		return err_set(e, -EINVAL, "stages= has %u layers, layers= says %u", p->count,
			       s->layers);
	return 0;
}

static int add_experts(const struct layout_spec *s, struct layout *l, struct err *e)
{
	struct layout_place *p = &l->places[l->n_places++];
	int r = 0;

	*p = (struct layout_place){
		.axis = (uint8_t)layout_find_axis(l, "ep"),
		.count = s->experts,
		.rounds = 1,
	};
	for (uint32_t i = 0; i < layout_n_families && !r; i++)
		if (in_family(s, i))
			r = add_globs(&p->numbers, layout_families[i].experts, 1, e);
	return r;
}

/* ---- Flat cuts ---- */

static uint64_t lcm(uint64_t a, uint64_t b)
{
	uint64_t x = a, y = b;

	while (y) {
		uint64_t rest = x % y;

		x = y;
		y = rest;
	}
	return a / x * b;
}

static bool is_family(const struct layout_spec *s, const char *name)
{
	return s->family && !strcmp(s->family->name, name);
}

/* The formula of the framework: doc/layouts.md. */
static void set_formula(const struct layout_spec *s, struct layout_flat *f, uint32_t n)
{
	f->params = s->zero == 3 || s->fsdp1;
	f->moments = true;
	f->how = LAYOUT_CHUNK;
	f->unit = s->zero == 3 ? LAYOUT_UNIT_TENSOR : LAYOUT_UNIT_ALL;
	if (s->fsdp1)
		f->unit = LAYOUT_UNIT_NUMBER;
	if (is_family(s, "train_lm")) {
		f->how = LAYOUT_FLOOR;
		f->unit = LAYOUT_UNIT_TENSOR;
	}
	if (s->unit != LAYOUT_NOT_SAID)
		f->unit = (enum layout_unit)s->unit;
	if (f->unit == LAYOUT_UNIT_TENSOR || s->fsdp1 || s->zero == 3)
		return;
	f->pad = 2 * (uint64_t)n;
	if (is_family(s, "megatron") && s->zero == 1) {
		f->pad = lcm(n, 128);
		f->align = 64;
		f->reverse = true;
	}
}

static int add_flats(const struct layout_spec *s, struct layout *l, struct err *e)
{
	int r = 0;

	if (!s->zero && !s->fsdp1)
		return 0;
	for (int experts = 0; experts < 2; experts++) {
		struct layout_flat *f = &l->flats[l->n_flats++];

		f->over = experts ? over_of(l, "edp", NULL) : over_of(l, "dp", "cp");
		set_formula(s, f, layout_over_size(l, &f->over));
		for (uint32_t i = 0; i < layout_n_families && !r; i++)
			if (f->unit == LAYOUT_UNIT_NUMBER && in_family(s, i))
				r = add_globs(&f->numbers, layout_families[i].layers, 1, e);
	}
	l->flat = 0;
	return r;
}

/* ---- Rules ---- */

static void set_parts(struct layout_cut *c, const uint32_t *weights, const uint32_t *units,
		      uint32_t n)
{
	c->n_parts = n;
	for (uint32_t i = 0; i < n; i++)
		c->parts[i] = (struct layout_part){ .weight = weights[i], .units = units[i] };
}

static void set_cut(const struct layout_spec *s, const struct family *f,
		    const struct family_row *row, struct layout_cut *c, uint32_t n)
{
	const uint32_t qkv[] = { s->heads, s->kv, s->kv }, ones[] = { 1, 1, 1 }, none[2] = { 0, 0 };
	uint64_t multiple = s->vocab == LAYOUT_NOT_SAID ? f->vocab_multiple : s->vocab;

	c->dim = row->dim;
	switch (row->how) {
	case FAMILY_HEADS:
		c->units = s->heads;
		break;
	case FAMILY_KV:
		c->units = s->kv;
		break;
	case FAMILY_QKV:
		set_parts(c, s->heads ? qkv : ones, qkv, 3);
		break;
	case FAMILY_SWIGLU:
		if (s->swiglu)
			set_parts(c, ones, none, 2);
		break;
	case FAMILY_GATED:
		set_parts(c, ones, none, 2);
		break;
	case FAMILY_VOCAB:
		c->how = multiple ? LAYOUT_CHUNK : LAYOUT_EVEN;
		c->pad = multiple * n;
		break;
	default:
		break;
	}
}

static int add_rule(const struct layout_spec *s, struct layout *l, const struct family *f,
		    const struct family_row *row, struct err *e)
{
	struct layout_rule *rule = layout_add_rule(l);
	struct layout_cut *c;
	int r;

	if (!rule)
		return err_code(e, -ENOMEM, "make a rule");
	r = layout_globs_add(&rule->globs, row ? row->glob : "*", 0, e);
	if (r)
		return r;
	rule->fallback = !row;
	if (row && row->experts && l->flat >= 0)
		rule->flat = 1;
	if (row && row->experts == 2) {
		c = &rule->cuts[rule->n_cuts++];
		c->over = over_of(l, "ep", NULL);
	}
	if (row && row->how != FAMILY_WHOLE) {
		c = &rule->cuts[rule->n_cuts++];
		c->over = over_of(l, row->experts ? "etp" : "tp", NULL);
		set_cut(s, f, row, c, layout_over_size(l, &c->over));
	}
	if (s->fsdp2) {
		c = &rule->cuts[rule->n_cuts++];
		c->over = row && row->experts ? over_of(l, "edp", NULL) : over_of(l, "dp", "cp");
		c->how = LAYOUT_CHUNK;
	}
	return 0;
}

static int add_rules(const struct layout_spec *s, struct layout *l, struct err *e)
{
	int r = 0;

	for (uint32_t i = 0; i < layout_n_families; i++) {
		const struct family *f = &layout_families[i];

		for (uint32_t k = 0; in_family(s, i) && k < f->n_rows && !r; k++)
			r = add_rule(s, l, f, &f->rows[k], e);
	}
	if (!r && s->fsdp2)
		r = add_rule(s, l, NULL, NULL, e);
	return r;
}

int layout_named(const struct layout_spec *s, struct layout **ret, struct err *e)
{
	uint32_t pp_stride = 0;
	struct layout *l = NULL;
	int r = layout_new(s->tp * s->cp * s->dp * s->pp * s->replicate, &l, e);

	if (!r)
		r = add_mesh(s, false, l, &pp_stride, e);
	if (!r)
		r = add_mesh(s, true, l, &pp_stride, e);
	if (!r)
		r = add_rest(l, e);
	if (!r && s->pp > 1)
		r = add_stages(s, l, e);
	if (!r && s->ep > 1)
		r = add_experts(s, l, e);
	if (!r)
		r = add_flats(s, l, e);
	if (!r)
		r = add_rules(s, l, e);
	if (!r)
		r = layout_add_moments(l, e);
	if (!r)
		r = layout_check(l, e);
	if (r) {
		layout_free(l);
		return r;
	}
	l->strict = s->strict;
	*ret = l;
	return 0;
}
