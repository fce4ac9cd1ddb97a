/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor.h - what training state is made of: tensors, boxes, flat ranges, shards.
 *
 * Order is row-major. A shard is the part of a tensor that one rank holds: a box, or elements
 * [start, stop) of a box in row-major order (ZeRO, FSDP1). A zero extent is legal everywhere.
 * A shard's bytes lie packed (contiguous, row-major within the box, or the flat range's elements
 * in order) at image_offset of its rank's image (model/declaration.h).
 */
#ifndef MODEL_TENSOR_H
#define MODEL_TENSOR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct shape {
	uint32_t ndim; /* 0..CKPT_NDIM_MAX */
	uint64_t dim[CKPT_NDIM_MAX];
};

struct box {
	uint32_t ndim;
	uint64_t offset[CKPT_NDIM_MAX];
	uint64_t length[CKPT_NDIM_MAX];
};

struct shard {
	const char *name; /* not NUL-terminated */
	uint32_t name_len;
	uint32_t dtype;       /* enum ckpt_dtype */
	struct shape global;  /* of the whole tensor */
	struct box box;       /* inside global */
	bool flat;            /* start and stop are valid */
	bool trained;
	uint64_t start, stop; /* elements of the box, 0 <= start <= stop <= elements of box */
	uint64_t image_offset; /* bytes */
	uint64_t bytes;        /* of the shard */
};

/* Bytes of one element; 0 for an unknown dtype. */
uint32_t dtype_bytes(uint32_t dtype);
const char *dtype_name(uint32_t dtype); /* "f32"; NULL when unknown */

/* Product of extents; false on overflow. */
MUST_CHECK bool shape_elements(const struct shape *s, uint64_t *ret);
MUST_CHECK bool box_elements(const struct box *b, uint64_t *ret);
bool box_inside(const struct box *b, const struct shape *s);
/* false (and *ret untouched) when they share no element. Same ndim. */
bool box_intersect(const struct box *a, const struct box *b, struct box *ret);

/*
 * The flat range [start, stop) of box as disjoint boxes in row-major order, at most
 * FLAT_BOXES_MAX (2 * ndim - 1, 1 for a scalar). Returns how many. Boxes are in the
 * tensor's coordinates.
 */
#define FLAT_BOXES_MAX (2 * CKPT_NDIM_MAX - 1)
int flat_to_boxes(const struct box *box, uint64_t start, uint64_t stop,
		  struct box ret[FLAT_BOXES_MAX]);

/*
 * Everything about one shard that can be checked without others; sets bytes and, where the shard
 * is not flat, start and stop to 0 and the elements of its box: code need not tell the two apart.
 */
MUST_CHECK int shard_check(struct shard *s, struct err *e);
/* The elements of a checked shard as disjoint, non-empty boxes; returns how many. */
int shard_boxes(const struct shard *s, struct box ret[FLAT_BOXES_MAX]);
/* Where the element at coordinate `at` (inside box) lies in the row-major order of box. */
uint64_t box_index(const struct box *box, const uint64_t at[CKPT_NDIM_MAX]);

/*
 * Names are opaque bytes: for a sentence they are cut in the middle and made printable. Both fill
 * and return buf; a box reads "[0:4, 16:32]".
 */
#define NAME_TEXT_MAX 132
const char *name_text(char buf[NAME_TEXT_MAX], const char *name, uint32_t len);
#define BOX_TEXT_MAX 200
const char *box_text(char buf[BOX_TEXT_MAX], const struct box *b);
const char *shape_text(char buf[BOX_TEXT_MAX], const struct shape *s);
/* Order of names: bytes, the shorter of two that begin alike first. */
int name_compare(const char *a, uint32_t a_len, const char *b, uint32_t b_len);

#endif
