/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unchanged.h - whether torch's objects behind a tensor are byte for byte as they were.
 */
#ifndef PYTHON_UNCHANGED_H
#define PYTHON_UNCHANGED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UNCHANGED_NDIM_MAX 5 /* tensors of more have their extents in memory of their own */

/* A class of torch's objects. */
struct object_class {
	uintptr_t vtable;
	size_t bytes;
};

/* What was found in samples; trusted is set when each change of them was seen. */
struct unchanged {
	struct object_class impl, storage;
	size_t impl_at;    /* where an object of Python has the address of its TensorImpl */
	size_t storage_at; /* where that has the address of its StorageImpl */
	bool known, trusted;
};

/*
 * One sample: an object of Python, of so many bytes, and torch's addresses of its TensorImpl and
 * StorageImpl. False: they are not where those of the samples before are; u is not known then.
 */
bool unchanged_learn(struct unchanged *u, const void *o, size_t object_bytes, const void *impl,
		     const void *storage);

/* The StorageImpl of a tensor; NULL: its objects are not of the classes of the samples. */
const void *unchanged_storage(const struct unchanged *u, const void *o);

/* Of the two objects, whose classes are those of the samples. Not 0. */
uint64_t unchanged_storage_digest(const struct unchanged *u, const void *storage);
uint64_t unchanged_digest(const struct unchanged *u, const void *o, uint64_t storage_digest);

#endif
