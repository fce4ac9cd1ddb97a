/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digest.c - XXH3 at the speed of memory.
 *
 * A digest says "these are the bytes that were sealed" (I2); it finds accidents, it is no MAC. Its
 * value does not depend on the instruction set. Where libxxhash was built with its dispatcher, as
 * Debian's is, it picks AVX-512, AVX2 or SSE2 at run time; where not (HAVE_XXH3_DISPATCH is not
 * defined) x86 gets SSE2: the same digests at half the speed.
 *
 * Failure modes: none; nothing is allocated. Any thread. The library makes its choice at the first
 * call of each thread that finds none: all write the same pointers.
 */
#include <config.h>

#include "codec/digest.h"

#include <assert.h>

#define XXH_STATIC_LINKING_ONLY /* the layout of XXH3_state_t: a stream needs no allocation */
#include <xxhash.h>

#ifdef HAVE_XXH3_DISPATCH
#include <xxh_x86dispatch.h> /* replaces XXH3_128bits and XXH3_128bits_update */
#endif

_Static_assert(sizeof(XXH3_state_t) <= sizeof(((struct digest_stream *)0)->state),
	       "digest_stream has room for the library's state");
_Static_assert(_Alignof(struct digest_stream) >= _Alignof(XXH3_state_t), "and is aligned for it");
_Static_assert(sizeof(XXH128_canonical_t) == sizeof(struct digest), "128 bits");

static struct digest canonical(XXH128_hash_t h)
{
	XXH128_canonical_t c;
	struct digest d;

	XXH128_canonicalFromHash(&c, h);
	memcpy(d.b, c.digest, sizeof(d.b));
	return d;
}

static XXH3_state_t *state_of(struct digest_stream *s)
{
	assert(s && (uintptr_t)s % _Alignof(XXH3_state_t) == 0);
	return (XXH3_state_t *)(void *)s->state;
}

struct digest digest_of(const void *p, size_t len)
{
	assert(p || len == 0);
	return canonical(XXH3_128bits(p, len));
}

uint64_t digest_keyed(uint64_t key, const void *p, size_t len)
{
	assert(p || len == 0);
	return XXH3_64bits_withSeed(p, len, key);
}

void digest_leaves(const void *image, uint64_t len, uint32_t leaf, uint64_t first, uint64_t last,
		   struct digest *out)
{
	const uint8_t *p = image;
	uint64_t i, offset, size;

	assert(leaf > 0 && first <= last);
	assert(len > 0 && last <= (len - 1) / leaf);
	for (i = first; i <= last; i++) {
		offset = i * leaf;
		size = len - offset < leaf ? len - offset : leaf;
		*out++ = digest_of(p + offset, size);
	}
}

void digest_begin(struct digest_stream *s)
{
	XXH_errorcode failed = XXH3_128bits_reset(state_of(s));

	assert(failed == XXH_OK); /* only a null pointer fails */
}

void digest_update(struct digest_stream *s, const void *p, size_t len)
{
	XXH_errorcode failed;

	if (len == 0)
		return;
	assert(p);
	failed = XXH3_128bits_update(state_of(s), p, len);
	assert(failed == XXH_OK);
}

struct digest digest_end(struct digest_stream *s)
{
	return canonical(XXH3_128bits_digest(state_of(s)));
}
