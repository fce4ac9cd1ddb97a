/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blobs.h - where the blobs of one rank's snapshot lie in its image: names and places in one block.
 *
 * One alloc_free() frees it: a checkpoint of a thousand ranks is let go in one call of the loop.
 */
#ifndef CKPTD_BLOBS_H
#define CKPTD_BLOBS_H

#include <stdint.h>

#include "model/table.h"

/* In one seal. libckpt sends fewer: each takes 40 bytes beside its name in a message of 64 KiB. */
#define SEAL_BLOBS_MAX 2048u

struct blobs {
	uint32_t n, room;
	uint64_t names_len, names_room;
	uint64_t bytes; /* of this block */
	struct blob_entry at[];
};

/* For n of them whose names have so many bytes together; NULL: out of memory. */
struct blobs *blobs_new(uint32_t n, uint64_t names_len);
struct blobs *blobs_copy(const struct blob_entry *from, uint32_t n);
void blobs_add(struct blobs *b, const struct blob_entry *e); /* copies the name */

#endif
