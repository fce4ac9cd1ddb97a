/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_state.h - a state dictionary of torch.save() as a flat list: tensors and plain values.
 *
 * Names are made as torch.distributed.checkpoint makes them: the keys on the way joined by dots,
 * list indices as numbers. Dictionaries are gone through, and so are lists and tuples that hold a
 * tensor or a dictionary; anything else is one value. So is a dictionary of more than
 * TORCH_TABLE_VALUES values none of which holds others: a vocabulary. As values of their own they
 * would be an archive for each word.
 */
#ifndef TOOLS_TORCH_STATE_H
#define TOOLS_TORCH_STATE_H

#include "base/bytes.h"
#include "tools/texts.h"
#include "tools/torch_tensor.h"

#define TORCH_TABLE_VALUES 1024

struct torch_item {
	const char *name; /* NUL-terminated, 1..CKPT_NAME_MAX bytes of UTF-8; of names */
	const struct pickle_value *value;
	bool tensor; /* torch_tensor_of(value) was 1 */
};

struct torch_state {
	struct torch_item *items; /* in the file's order; no name twice */
	size_t n, cap, n_tensors;
	struct texts names;
	struct writer paths; /* JSON: name -> [key or index, ...], of those that lay deeper; empty:
				of none */
};

/* CKPT_EPROTO, CKPT_EVERSION, CKPT_EMISMATCH (a name twice): the sentence begins with the name. The
 * items point into p. Free with torch_state_fini() in every case. */
MUST_CHECK int torch_state_read(const struct pickle *p, struct torch_state *ret, struct err *e);
void torch_state_fini(struct torch_state *s);

#endif
