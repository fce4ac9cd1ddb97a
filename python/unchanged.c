/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unchanged.c - whether torch's objects behind a tensor are byte for byte as they were.
 *
 * What look.c reads of a tensor by nine calls of torch, torch reads from two objects of C++: the
 * TensorImpl and its StorageImpl. While not one byte of them has changed, no answer has. So a
 * digest of their bytes stands for the answers, and takes a tenth of the time of the calls.
 *
 *   1. No byte has a meaning here but two addresses, which lead from the object of Python to the
 *      TensorImpl and on to the StorageImpl. They are looked for in samples, whose addresses torch
 *      names; where they are elsewhere in one of them nothing is known.
 *   2. A digest has all bytes of both objects but the count of references: an object is as large as
 *      the memory that it lies in. Objects of other classes, which may be larger, have none.
 *   3. Extents and strides are in the TensorImpl while they are few (UNCHANGED_NDIM_MAX).
 *   4. ckpt/_many.py makes each change that look.c would see to samples, and trusts digests only
 *      where each changes the digest. Else tensors are looked at by calls.
 *
 * A byte that changes without a reason costs a look by calls, and nothing else.
 *
 * Runs with the interpreter's lock held, which changes of a tensor need.
 */
#include <config.h>

#include "python/unchanged.h"

#include <assert.h>
#include <malloc.h>
#include <string.h>

#define WORD      sizeof(uint64_t)
#define FIRST     2 /* word behind the table of virtual functions and the count of references */
#define WORDS_MAX 128

static uint64_t word_at(const void *object, size_t at)
{
	uint64_t word;

	memcpy(&word, (const char *)object + at, sizeof(word));
	return word;
}

static const void *pointer_at(const void *object, size_t at)
{
	const void *p;

	memcpy(&p, (const char *)object + at, sizeof(p));
	return p;
}

/* Where an object has this address; bytes: it is not there. */
static size_t find(const void *object, size_t bytes, const void *address)
{
	size_t at = 0;

	while (at + sizeof(address) <= bytes && pointer_at(object, at) != address)
		at += sizeof(address);
	return at + sizeof(address) <= bytes ? at : bytes;
}

/* malloc() may give more than was asked for, the least of all is what the class has at least. */
static bool learn_class(struct object_class *c, const void *object, bool first)
{
	size_t bytes = malloc_usable_size((void *)(uintptr_t)object) / WORD * WORD;

	if (bytes <= FIRST * WORD || bytes > WORDS_MAX * WORD)
		return false;
	if (first)
		*c = (struct object_class){.vtable = (uintptr_t)pointer_at(object, 0),
					   .bytes = bytes};
	if (bytes < c->bytes)
		c->bytes = bytes;
	return c->vtable == (uintptr_t)pointer_at(object, 0);
}

bool unchanged_learn(struct unchanged *u, const void *o, size_t object_bytes, const void *impl,
		     const void *storage)
{
	bool first = !u->known;
	size_t impl_at, storage_at;

	assert(!u->trusted);
	u->known = false;
	if (sizeof(void *) != WORD || !impl || !storage)
		return false;
	impl_at = find(o, object_bytes, impl);
	if (impl_at == object_bytes || !learn_class(&u->impl, impl, first) ||
	    !learn_class(&u->storage, storage, first))
		return false;
	storage_at = find(impl, u->impl.bytes, storage);
	if (storage_at == u->impl.bytes)
		return false;
	if (!first && (impl_at != u->impl_at || storage_at != u->storage_at))
		return false;
	u->impl_at = impl_at;
	u->storage_at = storage_at;
	u->known = true;
	return true;
}

const void *unchanged_storage(const struct unchanged *u, const void *o)
{
	const void *impl = pointer_at(o, u->impl_at), *storage;

	assert(u->known);
	if (!impl || (uintptr_t)pointer_at(impl, 0) != u->impl.vtable)
		return NULL;
	storage = pointer_at(impl, u->storage_at);
	if (!storage || (uintptr_t)pointer_at(storage, 0) != u->storage.vtable)
		return NULL;
	return storage;
}

/* Each bit of a word changes bits all over what comes out. */
static uint64_t mix(uint64_t h, uint64_t word)
{
	h = (h ^ word) * 0x9e3779b97f4a7c15u;
	return h ^ (h >> 32);
}

static uint64_t digest(const void *object, size_t bytes, uint64_t h)
{
	uint64_t other = ~h; /* two at a time */
	size_t n = bytes / WORD, i = FIRST;

	assert(n > FIRST && n <= WORDS_MAX);
	for (; i + 2 <= n; i += 2) {
		h = mix(h, word_at(object, i * WORD));
		other = mix(other, word_at(object, (i + 1) * WORD));
	}
	if (i < n)
		h = mix(h, word_at(object, i * WORD));
	return mix(mix(h, other), 1);
}

uint64_t unchanged_storage_digest(const struct unchanged *u, const void *storage)
{
	assert(u->known && storage);
	return digest(storage, u->storage.bytes, 0) | 1;
}

uint64_t unchanged_digest(const struct unchanged *u, const void *o, uint64_t storage_digest)
{
	assert(u->known && storage_digest);
	return digest(pointer_at(o, u->impl_at), u->impl.bytes, storage_digest) | 1;
}
