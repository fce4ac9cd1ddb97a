/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan.h - any stored layout to any wanted one: which bytes go where, with coverage proven.
 *
 * Input: stored declarations (each with a copy number: ranks whose snapshots can be read) and the
 * wanted declaration. Output: pieces, strided copies from one stored image into one wanted shard.
 * Every wanted element is covered exactly once; where several stored shards hold the same
 * elements, the source with the lowest cost given by the caller wins, then the lowest copy number.
 *
 * Time: a wanted name is looked for in every source: O(sources x wanted names), some 100 ns each,
 * where sources with one declaration count once; over what lies between two wanted names in a
 * source the walk gallops. Then O((n + m) log n) per tensor for n stored and m wanted boxes cut
 * along one dimension or on grids (model/boxtree.h), and no more than O(n log^2 n + m + pieces) for
 * shapes and preferences that are made to cost more: such a tensor is refused by its name. Stored
 * tensors that are not wanted are neither read nor remembered, but where they are to be named
 * (struct plan_peers): then all names of sources and peers are looked at once, those of
 * declarations with the same names once altogether (model/plan_extra.c).
 *
 * Memory: of what is stored nothing grows but the names of one batch and the boxes of one tensor
 * that meet what is wanted; pieces take sizeof(struct plan_piece) each, twice that while their
 * array doubles. All of it is counted (struct plan's memory) and stays under a limit; -E2BIG says
 * so. Pure.
 *
 * A source may have only some of the leaves of its image: a file of which others store the rest
 * (model/dedup.h). It counts for the elements in these.
 *
 * It never assumes that a load has the save's layout. Flat ranges on either side become at most
 * 2d - 1 boxes each.
 */
#ifndef MODEL_PLAN_H
#define MODEL_PLAN_H

#include <stdatomic.h>

#include "model/declaration.h"
#include "model/strided.h"
#include "model/table.h"

#define PLAN_PIECES_MAX (64u << 20)
#define PLAN_MEMORY_MAX ((size_t)4 << 30)

/*
 * count[0..ndim) rows of `run` bytes each: row (i0, i1, ...) is read from
 * src + i0 * src_stride[0] + ... and written to dst + i0 * dst_stride[0] + ... Strides and offsets
 * in bytes; src is an offset in the source's image, dst an offset in the wanted shard's packed
 * bytes. Outer dimensions first; dimensions of extent 1 are folded away and contiguous ones merged,
 * so that a shard that is stored as it is wanted is one piece with ndim 0. Both sides are
 * row-major: a stride is at least what the dimensions inside it span.
 */
struct plan_piece {
	uint32_t source; /* index into the sources given */
	uint32_t target; /* declared index of the wanted shard */
	uint64_t src, dst;
	uint64_t run;
	uint32_t ndim;
	uint64_t count[CKPT_NDIM_MAX];
	uint64_t src_stride[CKPT_NDIM_MAX], dst_stride[CKPT_NDIM_MAX];
};

struct plan_source {
	struct declaration declaration;
	uint32_t cost; /* 0: own memory ... larger: slower; ties go to the lower index */
	/* Leaves of its image that it has (model/leaves.h; places_present()); NULL: all. */
	const uint64_t *present;
};

/*
 * All others that load the same checkpoint with this one: a stored tensor is extra where neither it
 * nor any of them wants a shard of that name. That is known only when all have said what they want.
 */
struct plan_peers {
	const struct declaration *wanted;
	uint32_t n;
};
#define PLAN_ALONE (&(const struct plan_peers){NULL, 0}) /* there are no others */

enum plan_problem_kind { PLAN_MISSING, PLAN_MISMATCH, PLAN_HOLE, PLAN_EXTRA };
struct plan_problem {
	enum plan_problem_kind kind;
	char text[ERR_TEXT_MAX]; /* one sentence naming the tensor and, for a hole, the region */
};

struct plan {
	struct plan_piece *pieces; /* sorted by (source, src) */
	size_t n_pieces;
	struct plan_problem *problems;
	size_t n_problems;      /* of those found the first PLAN_PROBLEMS_MAX */
	uint64_t bytes;         /* placed when executed */
	size_t memory;          /* bytes that plan_make() had allocated at most, pieces included */
	uint64_t steps;         /* that it took (model/effort.h) */
};
#define PLAN_PROBLEMS_MAX 1000

/* Limits of a plan, and how to cancel it. */
struct plan_limits {
	size_t memory_max;
	const atomic_bool *cancel; /* NULL: not cancellable */
	/* Key of the hash tables of what users declared, which they must not be able to predict.
	 * The plan does not depend on it. */
	uint64_t key;
};
#define PLAN_LIMITS (&(const struct plan_limits){PLAN_MEMORY_MAX, NULL, 0})

/*
 * Fails with CKPT_EMISMATCH, problems filled, when a wanted element is stored nowhere, a dtype or a
 * global shape differs, and, unless peers is NULL, for stored tensors that nobody wants. With
 * lenient the problems are listed but the rest is planned. -E2BIG: it would take more than
 * PLAN_MEMORY_MAX. Free with plan_fini() in every case.
 */
MUST_CHECK int plan_make(const struct plan_source *sources, uint32_t n_sources,
			 const struct declaration *wanted, bool lenient,
			 const struct plan_peers *peers, struct plan *ret, struct err *e);
/* The same within other limits than PLAN_LIMITS. -ECANCELED soon after *cancel was set. */
MUST_CHECK int plan_make_within(const struct plan_limits *limits, const struct plan_source *sources,
				uint32_t n_sources, const struct declaration *wanted, bool lenient,
				const struct plan_peers *peers, struct plan *ret, struct err *e);
void plan_fini(struct plan *p);

/* Bytes for a message, and back (checked: bounds against sources' and targets' sizes). */
MUST_CHECK int plan_encode(const struct plan *p, struct writer *w);
MUST_CHECK int plan_decode(struct reader *r, const uint64_t *source_image_len, uint32_t n_sources,
			   const uint64_t *target_bytes, uint32_t n_targets, struct plan *ret,
			   struct err *e);

/*
 * Applies to dst the part of the piece whose source bytes lie in image window [lo, hi); window
 * points at image byte lo. A window may end anywhere, inside a row or an element too. dst is the
 * target's packed memory; for memory that is not packed (model/strided.h) there is the second.
 */
void plan_piece_copy(const struct plan_piece *p, const uint8_t *window, uint64_t lo, uint64_t hi,
		     uint8_t *dst);
void plan_piece_copy_strided(const struct plan_piece *p, const uint8_t *window, uint64_t lo,
			     uint64_t hi, const struct strided *layout, uint8_t *dst);
/* [lo, hi) of source bytes that the piece touches at all. */
void plan_piece_span(const struct plan_piece *p, uint64_t *ret_lo, uint64_t *ret_hi);
/*
 * Which units of `unit` bytes of a source's image the piece touches (leaves or chunks): calls fn
 * with ascending, disjoint ranges [first, last], none of which continues the one before.
 */
typedef void plan_units_fn(void *arg, uint64_t first, uint64_t last);
void plan_piece_units(const struct plan_piece *p, uint64_t unit, plan_units_fn *fn, void *arg);

#endif
