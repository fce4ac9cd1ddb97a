/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.h - a simulated index: a sorted map with the vices of a database.
 *
 *   - unsynced batches: a prefix of them survives power loss (they are in a log), all survive the
 *     death of the process;
 *   - a write may fail and have had no effect, or appear after a later write or a reopen;
 *   - reads may fail;
 *   - it may be lost as a whole at a start: then it is fresh.
 */
#ifndef TESTS_SIM_INDEX_H
#define TESTS_SIM_INDEX_H

#include "base/index.h"
#include "tests/sim/world.h"

struct index_options {
	uint64_t op_ns_max;
	/* One in n; 0: never. */
	uint32_t write_fails, read_fails, lost_at_open, open_fails;
};

struct index_store; /* what lies on disk: outlives the daemon */

struct index_store *index_store_new(struct world *w, const struct index_options *o);
void index_store_free(struct index_store *s);
struct index_options *index_store_options(struct index_store *s);
void index_store_power_loss(struct index_store *s);
void index_store_lose(struct index_store *s); /* everything in it */
size_t index_store_entries(const struct index_store *s);

/* As index_rocksdb_open(): on a fiber, one at a time; close() or the end of the life closes. */
int index_sim_open(struct index_store *s, struct index **ret, bool *ret_fresh, struct err *e);

#endif
