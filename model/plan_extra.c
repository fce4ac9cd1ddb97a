/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is stored and not wanted. Cold; one thread per call.
 *
 * Sources are merged one by one. Once the list is full, a source is read only as far as the last
 * name in it: names behind that one would not be listed.
 */
#include <config.h>

#include "model/plan_extra.h"

#include <errno.h>

#include "base/alloc.h"

static int compare_names(const struct extra_name *a, const struct extra_name *b)
{
	return name_compare(a->text, a->len, b->text, b->len);
}

/* Of one source. */
static void extra_of_source(const struct declaration *d, const struct declaration *wanted,
			    const struct extra *others, struct extra *ret)
{
	const struct extra_name *last =
		others->n == PLAN_PROBLEMS_MAX ? &others->names[others->n - 1] : NULL;
	struct extra_name previous = {0}, want;
	uint32_t cursor = 0;

	ret->n = 0;
	for (uint32_t i = 0; i < d->n_shards && ret->n < PLAN_PROBLEMS_MAX; i++) {
		struct extra_name own = {.text = declaration_name(d, i, &own.len)};

		if (i && compare_names(&previous, &own) == 0)
			continue;
		if (last && compare_names(last, &own) < 0)
			return;
		previous = own;
		cursor = declaration_seek(wanted, cursor, own.text, own.len);
		if (cursor < wanted->n_shards) {
			want.text = declaration_name(wanted, cursor, &want.len);
			if (compare_names(&want, &own) == 0)
				continue;
		}
		ret->names[ret->n++] = own;
	}
}

/* As many as there is room for; ret is neither of them. */
static void merge(const struct extra *a, const struct extra *b, struct extra *ret)
{
	size_t i = 0, k = 0;

	ret->n = 0;
	while (ret->n < PLAN_PROBLEMS_MAX && (i < a->n || k < b->n)) {
		int c = i == a->n ? 1 : k == b->n ? -1 : compare_names(&a->names[i], &b->names[k]);

		ret->names[ret->n++] = c <= 0 ? a->names[i] : b->names[k];
		i += c <= 0;
		k += c >= 0;
	}
}

int extra_list(const struct plan_source *sources, uint32_t n_sources,
	       const struct declaration *wanted, struct extra **ret)
{
	struct extra *all = alloc_zero(sizeof(*all)), *own = alloc_zero(sizeof(*own));
	struct extra *merged = alloc_zero(sizeof(*merged));
	bool good = all && own && merged;

	for (uint32_t i = 0; good && i < n_sources; i++) {
		struct extra *before = all;

		if (sources[i].others)
			continue;
		extra_of_source(&sources[i].declaration, wanted, all, own);
		if (own->n == 0)
			continue;
		merge(all, own, merged);
		all = merged;
		merged = before;
	}
	alloc_free(own);
	alloc_free(merged);
	if (!good) {
		alloc_free(all);
		return -ENOMEM;
	}
	*ret = all;
	return 0;
}
