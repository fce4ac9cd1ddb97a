/* SPDX-License-Identifier: Apache-2.0 */
/*
 * paths.h - names that only storage/ needs; the others stand in store.h. Buffers hold
 * DISK_PATH_MAX + 1.
 */
#ifndef STORAGE_PATHS_H
#define STORAGE_PATHS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#define TEMPORARY_PREFIX "tmp-" /* files that a crash may leave and anybody may remove */

/* spare/<serial>.<bytes>: the size is in the name, so that a fitting one is found by listing. */
void path_spare(char *buf, uint64_t serial, uint64_t bytes);
MUST_CHECK int spare_name_parse(const char *name, uint64_t *ret_serial, uint64_t *ret_bytes);
/* rank-<r>.shard while it is written again: a temporary beside it. */
struct checkpoint_id;
void path_shard_again(char *buf, const struct checkpoint_id *id, uint32_t rank);
/* Whether name is "rank-<r>.shard". */
bool shard_name_is(const char *name);

#endif
