/* SPDX-License-Identifier: Apache-2.0 */
/*
 * targets.h - the memory that a load fills: no two elements of it in one place.
 */
#ifndef CLIENT_TARGETS_H
#define CLIENT_TARGETS_H

#include "client/client.h"

/*
 * Bindings that bindings_check() has accepted, and where blobs go, if that is the caller's memory.
 * -EINVAL names two that overlap, or one that overlaps itself. Those of the very same memory are
 * twins: twin[i], n_shards of them, is the first of the shard's, i where it has none before it.
 */
MUST_CHECK int targets_check(const struct wanted *w, const struct ckpt_binding *b,
			     const struct ckpt_stored_blob *blobs, uint32_t n_blobs, uint32_t *twin,
			     struct err *e);

#endif
