/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sharing.h - shard files that several ranks of the node read: through the page cache, once.
 */
#ifndef CKPTD_SHARING_H
#define CKPTD_SHARING_H

#include "ckptd/job.h"
#include "model/plan.h"

/* What each rank of the epoch wants to load, as far as it has declared: references. */
struct wanted_by {
	struct declared **declared; /* by rank; NULL: not known */
	uint32_t world;
	bool all; /* each is known, and is for this epoch */
};

/* For a load of that rank's. Both on the loop; what lies between may be on a worker. */
MUST_CHECK int wanted_by_make(struct job *j, uint32_t rank, struct wanted_by *ret);
void wanted_by_fini(struct job *j, struct wanted_by *w);
/* Whether, for all that is known, each rank wants what the rank of its number has stored. */
bool wanted_as_stored(const struct wanted_by *w, const struct plan_source *stored, uint32_t n);

/* A process is given files of the checkpoint to read through the page cache. */
void sharing_begin(struct checkpoint *c);
/* The load of that rank's has ended; m may be NULL: it has left. */
void sharing_end(struct checkpoint *c, struct member *m);
/* Gives back the pages that nobody is going to read. */
void sharing_step(struct job *j);

#endif
