/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stored.h - what a checkpoint holds, for who wants to know, and what one read of it wants.
 *
 * Both travel as bytes (doc/protocol.md); the receiver parses a private copy and trusts no length.
 */
#ifndef MODEL_STORED_H
#define MODEL_STORED_H

#include "base/bytes.h"
#include "model/declaration.h"
#include "model/table.h"

struct stored_blob {
	uint32_t rank;
	uint32_t name_len;
	const char *name; /* not NUL-terminated */
	uint64_t bytes;
};

/* Equal declarations are there once. */
struct stored {
	uint32_t world;
	uint32_t *declaration_of; /* by rank */
	struct declaration *declarations;
	uint32_t n_declarations;
	struct stored_blob *blobs; /* of all ranks, ranks in order */
	uint32_t n_blobs;
};

/* tables[i] is rank i's. */
MUST_CHECK int stored_encode(const struct rank_table *const *tables, uint32_t world,
			     struct writer *w);
/* bytes must outlive *ret. CKPT_EPROTO and what declaration_open() says. Free with stored_fini().
 */
MUST_CHECK int stored_decode(const void *bytes, size_t len, struct stored *ret, struct err *e);
void stored_fini(struct stored *s);

#define READ_BLOBS_MAX (1u << 20)

/* Tensors, and blobs by rank and name. */
struct read_wants {
	bool tensors; /* the declaration is there */
	struct declaration declaration;
	struct stored_blob *blobs; /* bytes is 0 */
	uint32_t n_blobs;
};

MUST_CHECK int read_wants_encode(const void *declaration, size_t len,
				 const struct stored_blob *blobs, uint32_t n, struct writer *w);
MUST_CHECK int read_wants_decode(const void *bytes, size_t len, struct read_wants *ret,
				 struct err *e);
void read_wants_fini(struct read_wants *w);

#endif
