/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout_file.h - layouts/<digest>: which declaration each rank of a layout has.
 *
 * The bytes are those that layout_digest() (model/declaration.h) digests: "CKPTLAYO", world, then
 * per rank its number and the digest of its declaration. So the name proves the contents.
 */
#ifndef STORAGE_LAYOUT_FILE_H
#define STORAGE_LAYOUT_FILE_H

#include "model/declaration.h"
#include "storage/store.h"

#define LAYOUT_FILE_MAX (64u << 20)

/* Writes it if it is not there; *ret is its digest. */
MUST_CHECK int layout_file_put(struct store *s, const struct digest *declarations, uint32_t world,
			       struct digest *ret, struct err *e);
/* *ret: world digests by rank, freed with alloc_free(). CKPT_ENOTFOUND, CKPT_ECORRUPT,
 * CKPT_EPROTO. */
MUST_CHECK int layout_file_get(struct store *s, const struct digest *layout, struct digest **ret,
			       uint32_t *ret_world, struct err *e);

#endif
