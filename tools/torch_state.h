/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_state.h - a state dictionary of torch.save() as a flat list: tensors and plain values.
 *
 * Names are made as torch.distributed.checkpoint makes them: the keys on the way joined by dots,
 * list indices as numbers. Dictionaries are gone through, and so are lists and tuples that hold a
 * tensor or a dictionary; anything else is one value.
 */
#ifndef TOOLS_TORCH_STATE_H
#define TOOLS_TORCH_STATE_H

#include <jansson.h>

#include "tools/torch_tensor.h"

struct torch_item {
	char *name;                       /* NUL-terminated, 1..CKPT_NAME_MAX bytes of UTF-8 */
	const struct pickle_value *value; /* NULL: it is a tensor */
	struct torch_tensor tensor;
};

struct torch_state {
	struct torch_item *items; /* in the file's order; no name twice */
	size_t n, cap, n_tensors;
	json_t *paths; /* name -> [key or index, ...], of those that lay deeper */
};

/* CKPT_EPROTO, CKPT_EVERSION, CKPT_EMISMATCH (a name twice): the sentence begins with the name. The
 * items point into p. Free with torch_state_fini() in every case. */
MUST_CHECK int torch_state_read(const struct pickle *p, struct torch_state *ret, struct err *e);
void torch_state_fini(struct torch_state *s);

#endif
