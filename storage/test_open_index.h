/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_open_index.h - the index by its path alone, as tests have it.
 */
#ifndef STORAGE_TEST_OPEN_INDEX_H
#define STORAGE_TEST_OPEN_INDEX_H

#include <stdio.h>
#include <string.h>

#include "storage/index_rocksdb.h"

static inline int test_index_open(const char *path, struct index **ret, bool *ret_fresh,
				  struct err *e)
{
	const char *slash = strrchr(path, '/');
	struct beneath in;
	char folder[512];
	int r;

	snprintf(folder, sizeof(folder), "%.*s", (int)(slash - path), path);
	r = beneath_open(folder, &in, e);
	if (r == 0) {
		r = index_rocksdb_open(&in, path, ret, ret_fresh, e);
		beneath_close(&in);
	}
	return r;
}

#endif
