/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout.h - how training frameworks cut state over ranks: which shards of a tensor a rank holds.
 *
 * A layout is a mesh of named axes (tp, pp, dp, ep, ...: an axis is a stride and a size over the
 * rank numbers, so that experts may have a mesh of their own over the same ranks) and rules, of
 * which the first that matches a tensor's name holds. A rule says by which axis each dimension is
 * cut and how:
 *
 *   even      n parts, the first (length mod n) one longer; of whole units where it says units
 *   chunk     parts of ceil(length / n), the last shorter or empty; or, for vocabularies and flat
 *             ranges, of a length rounded up to a multiple: the padding belongs to no tensor
 *   floor     part i is [length * i / n, length * (i + 1) / n)
 *   parts     the dimension is made of parts one behind the other (q, k, v; gate, up), each of
 *             which is cut by itself: a rank holds one box of each part
 *
 * Beside the rules: places put a tensor whole on some ranks by a number in its name (pipeline
 * stages, experts), and a flat cut takes what a rank holds after all that as elements in row-major
 * order, alone or behind one another with other tensors (a unit), and cuts them in n ranges.
 *
 * Axes that nothing of a tensor names replicate it. Optimizer moments follow their parameter: their
 * names are matched without what is around them (adam.m.NAME, NAME.exp_avg). Tensors without
 * dimensions are never cut.
 *
 * Pure; a layout is used by one thread at a time. Formulas and their sources: doc/layouts.md.
 */
#ifndef MODEL_LAYOUT_H
#define MODEL_LAYOUT_H

#include "model/tensor.h"

struct layout;

#define LAYOUT_WORLD_MAX  65536u
#define LAYOUT_SHARDS_MAX 64u /* of one tensor on one rank */

struct layout_tensor {
	const char *name; /* not NUL-terminated */
	uint32_t name_len;
	uint32_t dtype;
	struct shape global;
};

/*
 * "megatron:tp=4,pp=2,dp=2,zero=1", "fsdp2=4", ...: the named layouts and their options, listed in
 * doc/layouts.md. -EINVAL says what was expected where.
 */
MUST_CHECK int layout_parse(const char *spec, struct layout **ret, struct err *e);
void layout_free(struct layout *l); /* NULL is allowed */

uint32_t layout_world(const struct layout *l);
/* All tensors, asked for one by one, as often as it takes: a million of them need not stand in an
 * array. get() is called by the thread that calls the layout; names stay valid with arg. */
struct layout_tensors {
	void (*get)(const void *arg, size_t i, struct layout_tensor *ret);
	const void *arg;
	size_t n;
};
struct layout_tensors layout_array(const struct layout_tensor *t, size_t n);
/*
 * Tells it all tensors, in the order in which a flat unit has them: needed by layouts with units of
 * several tensors, and by those that were not told how many layers or experts there are. Others
 * take it as well. At most once; they stay valid and as they are as long as the layout.
 */
MUST_CHECK int layout_begin(struct layout *l, const struct layout_tensors *t, struct err *e);
/*
 * The shards of a tensor that rank holds, in row-major order, none twice: *ret_n of them, 0 when it
 * holds none. They are checked (shard_check()); name points to t's. An empty part is no shard, but
 * each rank that would hold part of a tensor without elements has one empty shard of it. -EINVAL:
 * the tensor cannot be cut so; CKPT_EPROTO: it is none (both name it and say why).
 */
MUST_CHECK int layout_shards(struct layout *l, const struct layout_tensor *t, uint32_t rank,
			     struct shard ret[LAYOUT_SHARDS_MAX], uint32_t *ret_n, struct err *e);

/* Whether the layout cuts tensors and no rule, place or flat cut of it is about this one: each rank
 * then holds all of it, which is often a name that the layout does not know. */
bool layout_passes_over(const struct layout *l, const struct layout_tensor *t);

#endif
