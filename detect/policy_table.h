/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy_table.h - the text of a policy into rows.
 */
#ifndef DETECT_POLICY_TABLE_H
#define DETECT_POLICY_TABLE_H

#include "detect/policy.h"

/* *ret is the caller's to free; e names name and line. */
MUST_CHECK int policy_table_parse(const char *name, const char *text, size_t len,
				  struct policy_row **ret, size_t *ret_n, struct err *e);

#endif
