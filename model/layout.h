/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout.h - how training frameworks cut state over ranks: which shards of a tensor a rank holds.
 *
 * A layout is a mesh of named axes (tp, pp, dp, ep, ...; rank = row-major over the axes in the order
 * given, the last one fastest) and rules, the first that matches a tensor's name holding. A rule
 * says by which axis each dimension is cut and how:
 *
 *   even      dimension k in n parts, the first (length mod n) one longer       TP, FSDP2's Shard(0)
 *   chunk     parts of ceil(length / n), the last shorter or empty              torch.chunk, DTensor
 *   fused     dimension k is made of named parts one behind the other (q, k, v; gate, up), each of
 *             which is cut by itself: a rank holds one box of each part
 *   vocabulary  as even, of a length rounded up to a multiple: the padding belongs to no tensor
 *   stage     whole, on the ranks of one pipeline stage: by the layer's number in the name
 *   expert    whole, on the ranks of one expert group: by the expert's number in the name, or by
 *             dimension 0 of a tensor that stacks them
 *   flat      what the rank holds after all that, as one flat range of its elements, in n parts
 *             (ZeRO-1, 2, 3, FSDP1, Megatron's distributed optimizer)
 *
 * Axes that no rule of a tensor names replicate it. Optimizer moments follow their parameter: their
 * names are matched after a prefix or suffix is taken off (and may be cut flat in addition).
 *
 * Pure. Sources of the formulas stand in doc/layouts.md.
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
 * "tp=4,pp=2,dp=2", "fsdp1=4", "zero1,dp=4", ...: the named layouts and their options, listed in
 * doc/layouts.md and layout_names(). -EINVAL says what was expected where.
 */
MUST_CHECK int layout_parse(const char *spec, struct layout **ret, struct err *e);
void layout_free(struct layout *l); /* NULL is allowed */

uint32_t layout_world(const struct layout *l);
/*
 * The shards of a tensor that rank holds, in row-major order, none twice: *ret_n of them, 0 when it
 * holds none. name points to t's. -EINVAL: the tensor cannot be cut so (names it and says why).
 */
MUST_CHECK int layout_shards(const struct layout *l, const struct layout_tensor *t, uint32_t rank,
			     struct shard ret[LAYOUT_SHARDS_MAX], uint32_t *ret_n, struct err *e);

#endif
