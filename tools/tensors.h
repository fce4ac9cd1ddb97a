/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensors.h - what a checkpoint's files hold: tensors, blobs, sizes.
 */
#ifndef TOOLS_TENSORS_H
#define TOOLS_TENSORS_H

#include <jansson.h>

#include "model/tensor.h"
#include "tools/files.h"

/*
 * Adds "files" and "tensors" to o (doc/json.md), read from the rank tables of the shard files; no
 * chunk is read. glob: of names, NULL for all. A rank that cannot be read is said in problems, an
 * array, and left out.
 */
MUST_CHECK int tensors_add(struct data *d, const struct checkpoint_id *id, const char *glob,
			   json_t *o, json_t *problems, struct err *e);

/* One of a tensor's "pieces", and a list of extents or offsets. */
json_t *tensor_piece(const struct shard *s, uint32_t rank);
json_t *tensor_numbers(const uint64_t *v, uint32_t n);
/* show.c: "tensors" as a table, with a line for each piece or for each tensor. */
MUST_CHECK int print_tensors(const json_t *tensors, bool pieces);

#endif
