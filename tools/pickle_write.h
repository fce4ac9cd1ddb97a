/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle_write.h - writes pickles of protocol 2, the one that torch itself writes.
 *
 * Opcodes go out as they are asked for; names and short texts that come again and again are
 * written once and then referred to. A failed allocation shows in out.bad, once, at the end.
 */
#ifndef TOOLS_PICKLE_WRITE_H
#define TOOLS_PICKLE_WRITE_H

#include "base/bytes.h"
#include "model/tensor.h"
#include "tools/pickle.h"

#define PICKLE_MEMO_MAX 200

struct pickle_writer {
	struct writer out;
	struct {
		const char *module, *name; /* module NULL: a text */
	} memo[PICKLE_MEMO_MAX];
	uint32_t n_memo;
};

enum pickle_op { /* those that stand alone */
		 PICKLE_OP_MARK = '(',
		 PICKLE_OP_TUPLE = 't',
		 PICKLE_OP_TUPLE1 = 0x85,
		 PICKLE_OP_TUPLE2 = 0x86,
		 PICKLE_OP_EMPTY_TUPLE = ')',
		 PICKLE_OP_EMPTY_DICT = '}',
		 PICKLE_OP_EMPTY_LIST = ']',
		 PICKLE_OP_SETITEMS = 'u',
		 PICKLE_OP_APPENDS = 'e',
		 PICKLE_OP_REDUCE = 'R',
		 PICKLE_OP_NEWOBJ = 0x81,
		 PICKLE_OP_BUILD = 'b',
		 PICKLE_OP_PERSID = 'Q',
		 PICKLE_OP_NONE = 'N',
		 PICKLE_OP_TRUE = 0x88,
		 PICKLE_OP_FALSE = 0x89,
		 PICKLE_OP_STOP = '.',
};

void pickle_begin(struct pickle_writer *w); /* of a zeroed struct */
void pickle_op(struct pickle_writer *w, enum pickle_op op);
void pickle_int(struct pickle_writer *w, int64_t i);
void pickle_text(struct pickle_writer *w, const char *text, size_t len);
void pickle_bytes(struct pickle_writer *w, const void *bytes, size_t len);
/* Both stay valid while it is written: they are remembered. */
void pickle_key(struct pickle_writer *w, const char *text);
void pickle_global(struct pickle_writer *w, const char *module, const char *name);
void pickle_size(struct pickle_writer *w, uint32_t n, const uint64_t *dims); /* torch.Size */
void pickle_tuple(struct pickle_writer *w, uint32_t n, const uint64_t *numbers);
/* An object of a dataclass is begun, its state to follow; what goes before BUILD. */
void pickle_object(struct pickle_writer *w, const char *module, const char *name);

/*
 * Writes a plain value of a tree again: numbers, texts, containers, sizes, dtypes, devices, sets.
 * CKPT_EVERSION: it holds something else (a tensor, an object).
 */
MUST_CHECK int pickle_copy(struct pickle_writer *w, const struct pickle *p,
			   const struct pickle_value *v, struct err *e);
void pickle_writer_free(struct pickle_writer *w);

#endif
