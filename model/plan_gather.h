/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_gather.h - the planner's walk over what is stored: which shards of which sources have the
 * names that are wanted (model/plan.c).
 *
 * Names are found in batches, source by source: a source's declaration is then read from its
 * beginning to its end, once, instead of at as many places as there are sources for each name. Of
 * sources with one declaration (data-parallel replicas) only the most preferred is walked, and of
 * those with the same names, each once (tensor-parallel peers), one is searched.
 * A source without a name in the batch sleeps until a batch reaches its next name: so the sources
 * that are walked in vain are bounded by what is stored, not by sources times batches.
 * Memory: 40 bytes for each shard found in a batch that is no replica of another, 8 bytes for each
 * name of the batch and set of names, and a batch has GATHER_FINDS names times sources, or one
 * name.
 */
#ifndef MODEL_PLAN_GATHER_H
#define MODEL_PLAN_GATHER_H

#include "model/effort.h"
#include "model/plan.h"
#include "model/sleepers.h"

#define GATHER_FINDS (1u << 18)
#define GATHER_END   UINT32_MAX

/* Shards that are stored under a wanted name; those of one name in order of preference. */
struct found_shard {
	uint32_t source, index; /* sorted index in the source's declaration */
	uint32_t name;          /* in names */
	uint32_t next;          /* of the same name, or GATHER_END */
};

struct found_name {
	const char *text;
	uint32_t len;
	uint32_t first, end; /* wanted shards, sorted indices */
	uint32_t head, tail; /* in found; GATHER_END: stored by no source */
};

/* Where names lie in a source, and in all that have the same names. */
struct names_place {
	uint32_t index, name;
};
struct names_like {
	uint32_t like; /* the first one walked with the same names, each once; or itself */
	uint32_t area; /* cap_names places from area * cap_names; GATHER_END: none is like it */
	uint32_t n;    /* shards that were found in the batch; with an area its places */
	uint32_t next; /* of the first one: another that is like it, and so on; or GATHER_END */
	bool asleep;   /* of the first one: it and those like it are not walked */
};

struct gather {
	const struct plan_source *sources;
	uint32_t n_sources;
	const struct declaration *wanted;
	struct effort *effort;
	uint64_t key; /* of slots */
	uint32_t *by_cost; /* sources that are walked, most preferred first */
	uint32_t n_walked;
	uint32_t *cursors;        /* for each source: all before it is before the names to come */
	struct names_like *likes; /* for each that is walked */
	uint32_t *awake;          /* walked in this batch, in order of preference */
	uint32_t n_awake;
	struct sleepers asleep;   /* the others; of those that are alike only the first */
	struct names_place *places;
	size_t n_areas;
	uint32_t next;            /* first wanted shard that was in no batch */
	struct found_name *names; /* of the batch */
	uint32_t n_names, cap_names;
	struct found_shard *found;
	uint32_t n_found, cap_found;
	uint32_t *slots;  /* hash of found: index + 1, 0 free */
	uint32_t n_slots; /* a power of two, at least twice n_found */
};

/* The sources, wanted and effort must outlive it. gather_fini() in every case. key: as of struct
 * plan_limits. */
MUST_CHECK int gather_init(struct gather *g, const struct plan_source *sources, uint32_t n_sources,
			   const struct declaration *wanted, uint64_t key, struct effort *effort);
/* The next batch of wanted names, in order; returns how many there are, 0 at the end. */
MUST_CHECK int gather_batch(struct gather *g);
size_t gather_memory(const struct gather *g); /* bytes allocated */
void gather_fini(struct gather *g);

#endif
