/* SPDX-License-Identifier: Apache-2.0 */
/*
 * holes.h - elements of a checkpoint that none of its files stores.
 */
#ifndef STORAGE_HOLES_H
#define STORAGE_HOLES_H

#include "model/plan.h"
#include "storage/commit_file.h"

/* Calls fn with a sentence for each region of a tensor that no file of the checkpoint stores. */
typedef void hole_fn(void *arg, const char *sentence);
MUST_CHECK int holes_find(struct store *s, const struct checkpoint_id *id,
			  const struct commit_file *c, hole_fn *fn, void *arg, struct err *e);
/* The same of files whose tables are open: one source for each rank. */
MUST_CHECK int holes_in(const struct plan_limits *limits, const struct plan_source *ranks,
			uint32_t world, hole_fn *fn, void *arg, struct err *e);

#endif
