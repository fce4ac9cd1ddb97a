/* SPDX-License-Identifier: Apache-2.0 */
/*
 * byte_table.h - for tests: the rank table of a rank whose whole image is one tensor "w" of bytes.
 */
#ifndef TESTS_SIM_BYTE_TABLE_H
#define TESTS_SIM_BYTE_TABLE_H

#include "model/table.h"

/* parts: all but the declaration. *ret is for alloc_free(). */
MUST_CHECK int byte_table(struct rank_table_parts parts, void **ret, size_t *ret_len);

#endif
