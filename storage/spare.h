/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spare.h - the giving half of spare/; taking and sweeping stand in recover.h.
 */
#ifndef STORAGE_SPARE_H
#define STORAGE_SPARE_H

#include "storage/store.h"

/* Moves a shard file to spare/ and zeroes its header: 0, and path is gone. A negative error: it is
 * not for recycling (a reader, a second link, no room, a failure): the caller unlinks path. */
MUST_CHECK int spare_give(struct store *s, const char *path, uint64_t keep_spare);
/* What the files in spare/ hold. */
MUST_CHECK int spare_bytes(struct store *s, uint64_t *ret);

#endif
