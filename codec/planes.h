/* SPDX-License-Identifier: Apache-2.0 */
/*
 * planes.h - the bytes of 2- and 4-byte elements, sorted by their place in the element.
 *
 * Plane p holds byte p of each element; the planes follow one another and bytes that do not fill an
 * element stay as they are at the end. The planes with a float's sign and exponent then compress,
 * and those with its low mantissa do not get in their way.
 */
#ifndef CODEC_PLANES_H
#define CODEC_PLANES_H

#include <stddef.h>
#include <stdint.h>

/* len bytes each; the two buffers do not overlap. element: 2 or 4. */
void planes_split(void *planes, const void *elements, size_t len, uint32_t element);
void planes_join(void *elements, const void *planes, size_t len, uint32_t element);

#endif
