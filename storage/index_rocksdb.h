/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_rocksdb.h - the index in RocksDB: WAL on, tolerate-corrupted-tail recovery, paranoid
 * checks. A database that does not open is set aside and made anew: nothing in it is the only copy.
 */
#ifndef STORAGE_INDEX_ROCKSDB_H
#define STORAGE_INDEX_ROCKSDB_H

#include "base/index.h"
#include "storage/beneath.h"

/*
 * in: the folder that the index is in, which is this process's own (beneath_become_owner());
 * path: of the index, as people know it; its last part is the name in in. *ret_fresh: it was made,
 * or made anew: rebuild it; e then says why an old one was set aside as <path>.bad (e->code 0:
 * there was none). -EBUSY: in use.
 */
MUST_CHECK int index_rocksdb_open(const struct beneath *in, const char *path,
				  struct index **ret, bool *ret_fresh, struct err *e);

#endif
