/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensors.h - what a checkpoint's files hold: tensors, blobs, sizes.
 */
#ifndef TOOLS_TENSORS_H
#define TOOLS_TENSORS_H

#include <jansson.h>

#include "model/tensor.h"
#include "tools/files.h"

/* The tensors of a checkpoint by name, and which rank has which part of them. */
struct tensors;

/*
 * From the rank tables of the shard files; no chunk is read. glob: of names, NULL for all.
 * *ret_files: what doc/json.md calls "files". A rank that cannot be read is said in problems, an
 * array, and left out. Both are freed by the caller: tensors_free(), json_decref().
 */
MUST_CHECK int tensors_read(struct data *d, const struct checkpoint_id *id, const char *glob,
			    struct tensors **ret, json_t **ret_files, json_t *problems,
			    struct err *e);
void tensors_free(struct tensors *t); /* NULL is allowed */
size_t tensors_pieces(const struct tensors *t); /* how many there are, of all of them */

/* One of them. Its names, as those of its pieces, point into the tensors. */
struct tensor {
	struct shard piece; /* the first one: what it says of the whole is said by all */
	size_t first, n;    /* pieces */
	uint64_t bytes;     /* of the whole */
	uint64_t held;      /* of all pieces */
};

/* The one behind *at, in the order of names, which is 0 for the first; false: there is none. */
bool tensors_next(const struct tensors *t, size_t *at, struct tensor *ret);
/*
 * The *at of each tensor, in the order in which the first rank that has it declares it, which is
 * that of reading_tensor(). alloc_free() it. CKPT_EMISMATCH: ranks disagree on a dtype or a shape.
 */
MUST_CHECK int tensors_declared(const struct tensors *t, uint32_t **ret, size_t *ret_n,
				struct err *e);
/* Piece k < of->n, in the order of ranks, then of places in the tensor. */
void tensors_piece(const struct tensors *t, const struct tensor *of, size_t k, struct shard *ret,
		   uint32_t *ret_rank);

#endif
