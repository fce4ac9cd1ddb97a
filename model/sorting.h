/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sorting.h - a cancellable qsort(), for arrays that take seconds to sort.
 */
#ifndef MODEL_SORTING_H
#define MODEL_SORTING_H

#include <stddef.h>

#include "base/err.h"
#include "model/effort.h"

#define SORTING_ELEMENT_MAX 256u /* bytes */

typedef int sorting_compare_fn(const void *a, const void *b, void *arg);

/* Bytes that sorting_sort() allocates meanwhile, at most. */
size_t sorting_memory(size_t n);
/*
 * No two elements may be equal: their order would be undefined. -ENOMEM; -ECANCELED: the array
 * holds each element once, in any order.
 */
MUST_CHECK int sorting_sort(void *array, size_t n, size_t size, sorting_compare_fn *compare,
			    void *arg, struct effort *effort);

#endif
