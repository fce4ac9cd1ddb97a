/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layout as a thing: made, checked as a whole, freed. Pure; one thread at a time.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "model/layout_rules.h"

int layout_new(uint32_t world, struct layout **ret, struct err *e)
{
	struct layout *l;

	if (world == 0 || world > LAYOUT_WORLD_MAX)
		return err_set(e, -EINVAL, "a layout has 1 to %u ranks, not %u", LAYOUT_WORLD_MAX,
			       world);
	l = alloc_zero(sizeof(*l));
	if (!l)
		return err_code(e, -ENOMEM, "make a layout");
	l->world = world;
	l->flat = LAYOUT_FLAT_OFF;
	*ret = l;
	return 0;
}

void layout_free(struct layout *l)
{
	if (!l)
		return;
	for (uint32_t i = 0; i < l->n_places; i++) {
		layout_globs_free(&l->places[i].numbers);
		layout_globs_free(&l->places[i].first);
		layout_globs_free(&l->places[i].last);
		layout_globs_free(&l->places[i].both);
		alloc_free(l->places[i].sizes);
	}
	for (uint32_t i = 0; i < l->n_flats; i++)
		layout_globs_free(&l->flats[i].numbers);
	for (uint32_t i = 0; i < l->n_rules; i++)
		layout_globs_free(&l->rules[i].globs);
	layout_globs_free(&l->moments);
	layout_units_free(l->units);
	alloc_free(l->rules);
	alloc_free(l);
}

uint32_t layout_world(const struct layout *l)
{
	return l->world;
}

int layout_find_axis(const struct layout *l, const char *name)
{
	for (uint32_t i = 0; i < l->n_axes; i++)
		if (!strcmp(l->axes[i].name, name))
			return (int)i;
	return -1;
}

int layout_add_axis(struct layout *l, const char *name, uint32_t size, uint32_t stride,
		    struct err *e)
{
	struct layout_axis *a = &l->axes[l->n_axes];

	if (!*name || strlen(name) >= LAYOUT_AXIS_NAME)
		return err_set(e, -EINVAL, "axis '%.40s': a name has 1 to %u bytes", name,
			       LAYOUT_AXIS_NAME - 1);
	if (layout_find_axis(l, name) >= 0)
		return err_set(e, -EINVAL, "axis '%s' is there twice", name);
	if (l->n_axes == LAYOUT_AXES_MAX)
		return err_set(e, -EINVAL, "more than %u axes", LAYOUT_AXES_MAX);
	/* The division first: a product might not fit. */
	if (!size || !stride || l->world % stride || l->world / stride % size)
		return err_set(e, -EINVAL,
			       "axis '%s' of size %u and stride %u does not fit %u ranks", name,
			       size, stride, l->world);
	strcpy(a->name, name);
	a->size = size;
	a->stride = stride;
	l->n_axes++;
	return 0;
}

struct layout_rule *layout_add_rule(struct layout *l)
{
	struct layout_rule *more, *rule;

	if (l->n_rules == LAYOUT_RULES_MAX)
		return NULL;
	more = alloc_resize(l->rules, (l->n_rules + 1) * sizeof(*more));
	if (!more)
		return NULL;
	l->rules = more;
	rule = &more[l->n_rules++];
	memset(rule, 0, sizeof(*rule));
	rule->params = rule->moments = true;
	rule->flat = LAYOUT_FLAT_DEFAULT;
	return rule;
}

/* Adam's and others' state, as trainers and frameworks name it; doc/layouts.md lists them. */
int layout_add_moments(struct layout *l, struct err *e)
{
	static const char *const states[] = {
		"exp_avg",      "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "fp32_param",
		"master_param", "step" };
	static const char *const forms[] = { "optimizer.state.%s.*",
					    "optimizer.state.*.%s",
					    "optim.state.*.%s",
					    "optimizer.%s.*",
					    "optim.%s.*",
					    "state.*.%s",
					    "%s.*",
					    "*.%s" };
	char glob[64];
	int r;

	r = layout_globs_add(&l->moments, "adam.m.*", 0, e);
	if (!r)
		r = layout_globs_add(&l->moments, "adam.v.*", 0, e);
	for (size_t f = 0; f < sizeof(forms) / sizeof(*forms) && !r; f++)
		for (size_t s = 0; s < sizeof(states) / sizeof(*states) && !r; s++) {
			const char *mark = strstr(forms[f], "%s");

			strcpy(glob, forms[f]);
			strcpy(glob + (mark - forms[f]), states[s]);
			strcat(glob, mark + 2);
			r = layout_globs_add(&l->moments, glob, 0, e);
		}
	return r;
}

static int check_over(const struct layout *l, const struct layout_over *o, const char *what,
		      struct err *e)
{
	if (!o->n || o->n > LAYOUT_OVER_MAX)
		return err_set(e, -EINVAL, "%s is over 1 to %u axes, not %u", what, LAYOUT_OVER_MAX,
			       o->n);
	for (uint32_t i = 0; i < o->n; i++) {
		assert(o->axis[i] < l->n_axes);
		for (uint32_t k = 0; k < i; k++)
			if (o->axis[i] == o->axis[k])
				return err_set(e, -EINVAL, "%s is over axis '%s' twice", what,
					       l->axes[o->axis[i]].name);
	}
	return 0;
}

static int check_cut(const struct layout *l, const struct layout_cut *c, struct err *e)
{
	int r = check_over(l, &c->over, "a cut", e);

	if (r)
		return r;
	if (c->dim >= CKPT_NDIM_MAX)
		return err_set(e, -EINVAL, "dimension %u: a tensor has at most %d", c->dim,
			       CKPT_NDIM_MAX);
	if (c->n_parts > LAYOUT_PARTS_MAX)
		return err_set(e, -EINVAL, "%u parts: a dimension has at most %u", c->n_parts,
			       LAYOUT_PARTS_MAX);
	for (uint32_t i = 0; i < c->n_parts; i++)
		if (!c->parts[i].weight || c->parts[i].weight > (uint64_t)1 << 40)
			return err_set(e, -EINVAL, "part %u has a weight of 0 or more than 2^40",
				       i);
	return 0;
}

static int check_place(const struct layout *l, const struct layout_place *p, struct err *e)
{
	uint64_t pieces, all = 0;

	assert(p->axis < l->n_axes);
	pieces = (uint64_t)l->axes[p->axis].size * p->rounds;
	if (!p->rounds || pieces > LAYOUT_WORLD_MAX)
		return err_set(e, -EINVAL, "%u rounds over axis '%s' are 0 or too many", p->rounds,
			       l->axes[p->axis].name);
	for (uint64_t i = 0; p->sizes && i < pieces; i++)
		all += p->sizes[i];
	if (p->sizes && !all) /* a count of 0 is one that names tell */
		return err_set(e, -EINVAL, "the pieces over axis '%s' have no number",
			       l->axes[p->axis].name);
	if (p->sizes && all != p->count)
		return err_set(e, -EINVAL, "the pieces over axis '%s' have %llu numbers of %u",
			       l->axes[p->axis].name, (unsigned long long)all, p->count);
	return 0;
}

int layout_check(const struct layout *l, struct err *e)
{
	int r = 0;

	for (uint32_t i = 0; i < l->n_flats && !r; i++)
		r = check_over(l, &l->flats[i].over, "a flat cut", e);
	for (uint32_t i = 0; i < l->n_places && !r; i++)
		r = check_place(l, &l->places[i], e);
	for (uint32_t i = 0; i < l->n_rules && !r; i++) {
		const struct layout_rule *rule = &l->rules[i];

		assert(rule->flat < (int)l->n_flats && rule->n_cuts <= LAYOUT_CUTS_MAX);
		for (uint32_t k = 0; k < rule->n_cuts && !r; k++)
			r = check_cut(l, &rule->cuts[k], e);
		if (r)
			err_wrap(e, r, "rule %u ('%.80s')", i,
				 rule->globs.n ? rule->globs.glob[0] : "");
	}
	for (uint32_t i = 0; i < l->moments.n && !r; i++) {
		const char *star = strchr(l->moments.glob[i], '*');

		if (!star || strpbrk(star + 1, "*?#") ||
		    strcspn(l->moments.glob[i], "*?#") != (size_t)(star - l->moments.glob[i]))
			r = err_set(e, -EINVAL,
				    "pattern '%.100s' of moments: needs exactly one '*', where the "
				    "parameter's name is, and neither '?' nor '#'",
				    l->moments.glob[i]);
	}
	assert(l->flat < (int)l->n_flats);
	return r;
}
