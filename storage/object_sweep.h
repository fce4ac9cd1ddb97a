/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object_sweep.h - removes declarations and layouts that nothing refers to.
 *
 * A COMMIT refers to its layout, and a layout to the declarations of its ranks. The caller adds
 * what else is in use: checkpoints in memory, logs, ledgers.
 *
 * begin and end on any thread; slices block and run on one worker at a time.
 */
#ifndef STORAGE_OBJECT_SWEEP_H
#define STORAGE_OBJECT_SWEEP_H

#include <stdatomic.h>

#include "storage/store.h"

struct object_sweep;

/* -EBUSY: a writer is between writing objects and publishing what refers to them, or another sweep
 * runs: try again later. */
MUST_CHECK int object_sweep_begin(struct store *s, struct object_sweep **ret);
/* NULL is allowed. What was set aside and not yet removed is put back by the next sweep. */
void object_sweep_end(struct object_sweep *w);

/* In use, whatever the files say. Before the first slice. -ENOMEM: end it. */
MUST_CHECK int object_sweep_keep_layout(struct object_sweep *w, const struct digest *layout);
MUST_CHECK int object_sweep_keep_declaration(struct object_sweep *w, const struct digest *d);

/*
 * A bounded part of the sweep. 1: there is more; 0: it has finished. CKPT_ESTATE: what is in use
 * cannot be known now (a COMMIT that cannot be read, something in incoming/): the slice removed
 * nothing.
 */
MUST_CHECK int object_sweep_slice(struct object_sweep *w, atomic_bool *cancel, struct err *e);
uint64_t object_sweep_removed(const struct object_sweep *w);

#endif
