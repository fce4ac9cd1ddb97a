/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor_list.h - tensors and their pieces for people and as JSON, one at a time: a list of a
 * million is never held.
 */
#ifndef TOOLS_TENSOR_LIST_H
#define TOOLS_TENSOR_LIST_H

#include <jansson.h>

#include "base/err.h"
#include "model/tensor.h"

/* Of one tensor, before its pieces. */
struct tensor_head {
	const struct shard *whole; /* name, dtype, global, trained */
	uint64_t bytes, held;      /* of the whole; of all pieces */
	size_t pieces;
	bool says_trained;
};

struct tensor_sink {
	void (*tensor)(void *arg, const struct tensor_head *head);
	void (*piece)(void *arg, const struct shard *s, uint32_t rank);
	void *arg;
};

/* Says each tensor and, behind it, its pieces. The same each time: a table is walked twice. */
typedef int tensor_walk_fn(void *from, const struct tensor_sink *to, struct err *e);

/* As a table, with a line for each piece or for each tensor. */
MUST_CHECK int tensor_list_print(tensor_walk_fn *walk, void *from, bool pieces, struct err *e);
/* Their names, one a line. */
MUST_CHECK int tensor_list_names(tensor_walk_fn *walk, void *from, struct err *e);
/* A document, with these as its member "tensors", which is an empty list in doc. walk NULL: as doc
 * has it. */
MUST_CHECK int tensor_list_document(const json_t *doc, tensor_walk_fn *walk, void *from,
				    struct err *e);

/* That n of all tensors are whole on every rank, if any are: layout_passes_over(). */
void say_passed_over(size_t n, size_t all);

#endif
