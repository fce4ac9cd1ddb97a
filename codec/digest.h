/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digest.h - XXH3 of buffers, leaves, copies and for tables. The only file that includes xxhash.h.
 */
#ifndef CODEC_DIGEST_H
#define CODEC_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#include "base/ids.h"

struct digest digest_of(const void *p, size_t len);
/*
 * For hash tables of untrusted input: without the key an attacker cannot choose bytes that collide.
 * Bytes whose digest_of() agree in the low bits are found by trying.
 */
uint64_t digest_keyed(uint64_t key, const void *p, size_t len);

/* Digests of leaves [first, last] (by number) of an image of len bytes, into out[0..]. */
void digest_leaves(const void *image, uint64_t len, uint32_t leaf, uint64_t first, uint64_t last,
		   struct digest *out);

/* A digest over several pieces. */
struct digest_stream {
	_Alignas(64) unsigned char state[640];
};
void digest_begin(struct digest_stream *s);
void digest_update(struct digest_stream *s, const void *p, size_t len);
struct digest digest_end(struct digest_stream *s);

#endif
