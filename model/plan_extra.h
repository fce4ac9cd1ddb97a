/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_extra.h - stored tensors that are not wanted, to be said by name (model/plan.c).
 *
 * Memory: three lists of PLAN_PROBLEMS_MAX names, whatever the number of sources.
 */
#ifndef MODEL_PLAN_EXTRA_H
#define MODEL_PLAN_EXTRA_H

#include "model/plan.h"

struct extra_name {
	const char *text; /* in a source's declaration */
	uint32_t len;
};

/* Sorted, none twice: the first PLAN_PROBLEMS_MAX of all sources that are not for others too. */
struct extra {
	size_t n;
	struct extra_name names[PLAN_PROBLEMS_MAX];
};

/* The caller frees *ret with alloc_free(). */
MUST_CHECK int extra_list(const struct plan_source *sources, uint32_t n_sources,
			  const struct declaration *wanted, struct extra **ret);

#endif
