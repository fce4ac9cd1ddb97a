/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The named layouts: "[FAMILY:]ITEM[=VALUE],...". What they say together; the grammar
 * is in doc/layouts.md. Pure.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/near.h"
#include "model/layout_spec.h"

#define SPEC_MAX 4096u

/* ---- Reading the text ---- */

static int parse_count(const char *value, uint32_t *ret, struct err *e)
{
	uint64_t n = 0;
	const char *p = value;

	for (; *p >= '0' && *p <= '9' && n <= LAYOUT_WORLD_MAX; p++)
		n = n * 10 + (uint64_t)(*p - '0');
	if (*p || p == value || n > LAYOUT_WORLD_MAX)
		return err_set(e, -EINVAL, "'%.40s' is not a number up to %u", value,
			       LAYOUT_WORLD_MAX);
	*ret = (uint32_t)n;
	return 0;
}

enum value { VALUE_SIZE, VALUE_NUMBER, VALUE_FLAG, VALUE_RANKS };

static const struct item {
	const char *name;
	enum value value; /* a size is not 0; RANKS: a size, or nothing where dp or ep says it */
	size_t offset;
} items[] = {
	{ "tp", VALUE_SIZE, offsetof(struct layout_spec, tp) },
	{ "pp", VALUE_SIZE, offsetof(struct layout_spec, pp) },
	{ "dp", VALUE_SIZE, offsetof(struct layout_spec, dp) },
	{ "cp", VALUE_SIZE, offsetof(struct layout_spec, cp) },
	{ "ep", VALUE_SIZE, offsetof(struct layout_spec, ep) },
	{ "etp", VALUE_SIZE, offsetof(struct layout_spec, etp) },
	{ "replicate", VALUE_SIZE, offsetof(struct layout_spec, replicate) },
	{ "layers", VALUE_SIZE, offsetof(struct layout_spec, layers) },
	{ "experts", VALUE_SIZE, offsetof(struct layout_spec, experts) },
	{ "vpp", VALUE_SIZE, offsetof(struct layout_spec, vpp) },
	{ "heads", VALUE_SIZE, offsetof(struct layout_spec, heads) },
	{ "kv", VALUE_SIZE, offsetof(struct layout_spec, kv) },
	{ "vocab", VALUE_NUMBER, offsetof(struct layout_spec, vocab) },
	{ "zero", VALUE_NUMBER, offsetof(struct layout_spec, zero) },
	{ "ddp", VALUE_RANKS, offsetof(struct layout_spec, ddp) },
	{ "fsdp1", VALUE_RANKS, offsetof(struct layout_spec, fsdp1) },
	{ "fsdp2", VALUE_RANKS, offsetof(struct layout_spec, fsdp2) },
	{ "zero1", VALUE_RANKS, offsetof(struct layout_spec, zero1) },
	{ "zero2", VALUE_RANKS, offsetof(struct layout_spec, zero2) },
	{ "zero3", VALUE_RANKS, offsetof(struct layout_spec, zero3) },
	{ "tied", VALUE_FLAG, offsetof(struct layout_spec, tied) },
	{ "swiglu", VALUE_FLAG, offsetof(struct layout_spec, swiglu) },
	{ "strict", VALUE_FLAG, offsetof(struct layout_spec, strict) },
};

static int parse_stages(struct layout_spec *s, char *value, struct err *e)
{
	char *rest = value;

	for (s->n_stages = 0; rest; s->n_stages++) {
		char *one = strsep(&rest, ":");
		int r;

		if (s->n_stages == LAYOUT_STAGES_MAX)
			return err_set(e, -EINVAL, "more than %u stages", LAYOUT_STAGES_MAX);
		r = parse_count(one, &s->stages[s->n_stages], e);
		if (r)
			return r;
	}
	return 0;
}

static int parse_unit(struct layout_spec *s, const char *value, struct err *e)
{
	static const char *const names[] = { [LAYOUT_UNIT_TENSOR] = "tensor",
					    [LAYOUT_UNIT_ALL] = "all",
					    [LAYOUT_UNIT_NUMBER] = "layer" };

	for (s->unit = 0; s->unit < 3; s->unit++)
		if (!strcmp(value, names[s->unit]))
			return 0;
	return err_set(e, -EINVAL, "'%.40s' is none of tensor, layer, all", value);
}

static int parse_value(struct layout_spec *s, const struct item *item, const char *value,
		       struct err *e)
{
	uint32_t *field = (uint32_t *)((char *)s + item->offset);
	int r;

	if (!value && (item->value == VALUE_FLAG || item->value == VALUE_RANKS)) {
		*field = item->value == VALUE_FLAG ? 1 : LAYOUT_NOT_SAID;
		return 0;
	}
	if (!value)
		return err_set(e, -EINVAL, "it needs a number, as in %s=2", item->name);
	if (item->value == VALUE_FLAG)
		return err_set(e, -EINVAL, "it takes no value");
	r = parse_count(value, field, e);
	if (!r && item->value != VALUE_NUMBER && *field == 0)
		return err_set(e, -EINVAL, "it is at least 1");
	return r;
}

static int no_item(const char *item, struct err *e)
{
	char hint[NEAR_TEXT_MAX];
	struct near near;

	near_begin(&near, item);
	/* From the end: of two that are as near the newer one. */
	for (size_t i = sizeof(items) / sizeof(*items); i-- > 0;)
		near_try(&near, items[i].name);
	return err_set(e, -EINVAL,
		       "there is no such item%s: tp, pp, dp, cp, ep, etp, zero, fsdp1, fsdp2, ... "
		       "are listed in layouts.md of ckptd's documentation",
		       near_text(&near, hint));
}

static int parse_item(struct layout_spec *s, char *item, struct err *e)
{
	char *value = strchr(item, '=');
	int r = 0;

	if (value)
		*value++ = '\0';
	if (!strcmp(item, "stages") && value)
		r = parse_stages(s, value, e);
	else if (!strcmp(item, "unit") && value)
		r = parse_unit(s, value, e);
	else if (!strcmp(item, "order") && value && strlen(value) < sizeof(s->order))
		strcpy(s->order, value);
	else {
		size_t i = 0, n = sizeof(items) / sizeof(*items);

		while (i < n && strcmp(item, items[i].name) != 0)
			i++;
		r = i < n ? parse_value(s, &items[i], value, e) : no_item(item, e);
	}
	return r ? err_wrap(e, r, "'%.40s'", item) : 0;
}

static int parse_family(struct layout_spec *s, char **text, struct err *e)
{
	char *colon = strchr(*text, ':'), *equals = strchr(*text, '='), all[160] = "";

	/* "stages=4:4" has a colon of its own. */
	if (!colon || (equals && equals < colon))
		return 0;
	*colon = '\0';
	for (uint32_t i = 0; i < layout_n_families; i++) {
		if (!strcmp(*text, layout_families[i].name)) {
			s->family = &layout_families[i];
			*text = colon + 1;
			return 0;
		}
		strcat(all, i ? ", " : "");
		strcat(all, layout_families[i].name);
	}
	return err_set(e, -EINVAL, "'%.40s' is no family of models: %s", *text, all);
}

/* ---- What the items mean together ---- */

static int set_kind(struct layout_spec *s, struct err *e)
{
	const struct {
		const char *name;
		uint32_t ranks, zero;
	} kinds[] = {{"ddp", s->ddp, 0},     {"zero1", s->zero1, 1}, {"zero2", s->zero2, 2},
		     {"zero3", s->zero3, 3}, {"fsdp1", s->fsdp1, 0}, {"fsdp2", s->fsdp2, 0}};
	int said = s->zero != LAYOUT_NOT_SAID;

	if (s->zero != LAYOUT_NOT_SAID && s->zero > 3)
		return err_set(e, -EINVAL, "zero=%u: the stages are 0 to 3", s->zero);
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
		if (!kinds[i].ranks)
			continue;
		said++;
		s->zero = kinds[i].zero;
		if (kinds[i].ranks == LAYOUT_NOT_SAID) {
			if (!s->dp && !s->ep)
				return err_set(e, -EINVAL,
					       "'%s': it needs a number, as in %s=2, where "
					       "neither dp nor ep has one",
					       kinds[i].name, kinds[i].name);
			continue;
		}
		if (s->dp && s->dp != kinds[i].ranks)
			return err_set(e, -EINVAL, "%u and dp=%u: the same ranks said twice",
				       kinds[i].ranks, s->dp);
		s->dp = kinds[i].ranks;
	}
	if (said > 1)
		return err_set(e, -EINVAL, "only one of zero, zero1 to zero3, ddp, fsdp1, fsdp2");
	if (s->zero == LAYOUT_NOT_SAID)
		s->zero = 0;
	return 0;
}

static int set_sizes(struct layout_spec *s, struct err *e)
{
	uint64_t dense = (uint64_t)s->tp * s->cp, experts, world;

	if (!s->ep)
		s->ep = 1;
	if (!s->etp)
		s->etp = s->tp;
	experts = (uint64_t)s->ep * s->etp;
	if (!s->dp && experts % dense == 0 && experts / dense <= LAYOUT_WORLD_MAX)
		s->dp = (uint32_t)(experts / dense);
	if (!s->dp)
		s->dp = 1;
	if (!size_mul(dense, s->dp, &world) || !size_mul(world, s->pp, &world) ||
	    !size_mul(world, s->replicate, &world) || world > LAYOUT_WORLD_MAX)
		return err_set(e, -EINVAL, "a layout has at most %u ranks", LAYOUT_WORLD_MAX);
	if (dense * s->dp % experts)
		return err_set(e, -EINVAL,
			       "tp=%u x cp=%u x dp=%u ranks of a stage cannot be cut in ep=%u x "
			       "etp=%u for experts",
			       s->tp, s->cp, s->dp, s->ep, s->etp);
	if (s->n_stages && s->n_stages != (uint64_t)s->pp * s->vpp)
		return err_set(e, -EINVAL, "stages= has %u numbers for pp=%u x vpp=%u", s->n_stages,
			       s->pp, s->vpp);
	if (!s->kv)
		s->kv = s->heads;
	return 0;
}

int layout_parse(const char *spec, struct layout **ret, struct err *e)
{
	struct layout_spec s = {
		.tp = 1,
		.pp = 1,
		.cp = 1,
		.replicate = 1,
		.vpp = 1,
		.vocab = LAYOUT_NOT_SAID,
		.zero = LAYOUT_NOT_SAID,
		.unit = LAYOUT_NOT_SAID,
		.order = "tp-cp-ep-dp-pp",
	};
	CLEANUP_FREE char *copy = NULL;
	char *rest;
	int r;

	if (strlen(spec) > SPEC_MAX)
		return err_set(e, -EINVAL, "a layout of more than %u bytes: use a file", SPEC_MAX);
	rest = copy = alloc_str(spec);
	if (!copy)
		return err_code(e, -ENOMEM, "read layout '%.100s'", spec);
	r = parse_family(&s, &rest, e);
	if (!r && !*rest)
		r = err_set(e, -EINVAL, "it says nothing: try ddp=1, fsdp2=4 or megatron:tp=2");
	while (!r && rest)
		r = parse_item(&s, strsep(&rest, ","), e);
	if (!r)
		r = set_kind(&s, e);
	if (!r)
		r = set_sizes(&s, e);
	if (!r)
		r = layout_named(&s, ret, e);
	return r ? err_wrap(e, r, "layout '%.100s'", spec) : 0;
}
