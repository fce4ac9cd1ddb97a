/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cover.h - whether what a layout gives its ranks is all of a tensor.
 *
 * Layouts are made not to leave holes; before a checkpoint is written by one, what its ranks
 * declared is looked at all the same. Several ranks may hold an element, in equal shards or in
 * others: all of them get it from the same source, so none can disagree. An element that no rank
 * holds would be lost.
 */
#ifndef TOOLS_COVER_H
#define TOOLS_COVER_H

#include "model/declaration.h"
#include "model/layout.h"

/*
 * ranks: what was declared by the layout of this name, `world` of them. -EINVAL names tensor and
 * region that no rank holds. O(n log n) for n shards unless there is a hole, or shards overlap and
 * are not equal.
 */
MUST_CHECK int cover_check(const char *layout, const struct layout_tensor *t,
			   const struct declaration *ranks, uint32_t world, struct err *e);

#endif
