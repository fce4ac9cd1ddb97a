/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_extra.h - stored tensors that nobody wants, to be said by name (model/plan.c).
 */
#ifndef MODEL_PLAN_EXTRA_H
#define MODEL_PLAN_EXTRA_H

#include "model/effort.h"
#include "model/plan.h"

struct extra_name {
	const char *text; /* in a declaration */
	uint32_t len;
};

/* Sorted, none twice: the first PLAN_PROBLEMS_MAX of all sources. */
struct extra {
	size_t n;
	struct extra_name names[PLAN_PROBLEMS_MAX];
};

/*
 * The caller frees *ret with alloc_free(). *memory: in, how many bytes may be allocated; out, how
 * many were at most, *ret included. -E2BIG: it would take more. key: as of struct plan_limits.
 */
MUST_CHECK int extra_list(const struct plan_source *sources, uint32_t n_sources,
			  const struct declaration *wanted, const struct plan_peers *peers,
			  uint64_t key, struct effort *effort, size_t *memory, struct extra **ret);

#endif
