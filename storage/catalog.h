/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog.h - what the index says about the files: checkpoints, layouts, where each tensor's boxes
 * are. A rebuildable view (I8): written after the answer, in one batch per state change.
 *
 * Keys (doc/index-format.md): 'C' job step attempt -> summary; 'T' layout name 0 rank order ->
 * shard; 'D', 'G', 'L': what of a layout is there; 'V' -> version of this schema. All shards of a
 * tensor lie together, whatever the number of ranks; ranks of a layout whose declarations are equal
 * share them. Layouts are immutable and written once.
 *
 * CKPT_ECORRUPT from any of these: see base/index.h. A callback's result other than 0 ends the
 * walk and is returned; e is not set then.
 */
#ifndef STORAGE_CATALOG_H
#define STORAGE_CATALOG_H

#include <stdatomic.h>

#include "base/index.h"
#include "model/declaration.h"
#include "storage/commit_file.h"

struct catalog_entry {
	struct checkpoint_id id;
	char job_name[CKPT_JOB_MAX + 1];
	uint32_t uid;
	struct digest root, layout;
	uint64_t incarnation, record_n, epoch, wall_ns, bytes;
	uint32_t world;
	bool pinned;
	bool suspect; /* a copy failed its digest */
};

MUST_CHECK int catalog_put(struct index *ix, const struct catalog_entry *c, struct err *e);
/* Also its layout, where no other checkpoint has it. Does nothing when it is not there. */
MUST_CHECK int catalog_remove(struct index *ix, const struct checkpoint_id *id, struct err *e);
/* CKPT_ENOTFOUND */
MUST_CHECK int catalog_get(struct index *ix, const struct checkpoint_id *id,
			   struct catalog_entry *ret, struct err *e);
typedef int catalog_fn(void *arg, const struct catalog_entry *c);
/* Of one job, or of all (job NULL), by job and step. */
MUST_CHECK int catalog_each(struct index *ix, const struct job_id *job, catalog_fn *fn, void *arg,
			    struct err *e);

/* Declarations of a layout; batches of bounded size, so that a million shards are possible. Does
 * nothing when the layout is there. -ECANCELED soon after *cancel was set (NULL: it cannot be):
 * then nobody sees it, and it may be put again. */
MUST_CHECK int catalog_put_layout(struct index *ix, const struct digest *layout,
				  const struct declaration *ranks, uint32_t world,
				  const atomic_bool *cancel, struct err *e);
typedef int catalog_shard_fn(void *arg, uint32_t rank, const struct shard *s);
/* Every rank's shards of one tensor, ranks in order. CKPT_ENOTFOUND: the index does not know the
 * layout, or no rank has such a tensor. */
MUST_CHECK int catalog_tensor(struct index *ix, const struct digest *layout, const char *name,
			      size_t name_len, catalog_shard_fn *fn, void *arg, struct err *e);

/*
 * Makes the index anew from the files; returns the number of checkpoints. Pins are in the log, and
 * suspicions are found by reading: whoever knows them puts them in afterwards. -ECANCELED: as
 * above; the index is not whole.
 */
MUST_CHECK int catalog_rebuild(struct index *ix, struct store *s, const atomic_bool *cancel,
			       struct err *e);
/* One checkpoint with its layout, as catalog_rebuild() does it. */
MUST_CHECK int catalog_add(struct index *ix, struct store *s, const struct checkpoint_id *id,
			   const atomic_bool *cancel, struct err *e);
/* Whether it is of this schema, and no rebuild of it was cut short. */
bool catalog_is_whole(struct index *ix);
/* True when the index is of this schema and lists exactly the COMMIT files that are there, and
 * beside them only suspects without one. */
MUST_CHECK int catalog_check(struct index *ix, struct store *s, bool *ret_good, struct err *e);

#endif
