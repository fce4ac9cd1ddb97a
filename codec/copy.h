/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.h - copies of large memory at the speed of DRAM, chosen at run time by what the CPU has.
 *
 * copy_large(): the fastest plain copy for the size. copy_digest(): one pass that copies and
 * digests a leaf (the source is read from DRAM once). Variants are selected once; each can be
 * forced for tests. No alignment is required of any argument.
 */
#ifndef CODEC_COPY_H
#define CODEC_COPY_H

#include <stddef.h>

#include "base/ids.h"

enum copy_variant { COPY_AUTO, COPY_LIBC, COPY_AVX2, COPY_AVX512, COPY_VARIANTS };

const char *copy_variant_name(enum copy_variant v);
int copy_variant_usable(enum copy_variant v);

void copy_large(void *dst, const void *src, size_t len);
void copy_large_with(enum copy_variant v, void *dst, const void *src, size_t len);
/* One of many rows that go to memory which nobody reads soon. */
void copy_row(void *dst, const void *src, size_t len);
/* Copies and returns the digest of what was read. */
struct digest copy_digest(void *dst, const void *src, size_t len);
struct digest copy_digest_with(enum copy_variant v, void *dst, const void *src, size_t len);

#endif
