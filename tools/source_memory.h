/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_memory.h - what reading a file of another format may take of memory.
 *
 * Such a file is made by others: a few megabytes of it can claim to be very much. All that is made
 * of it, from its first byte to the last declaration of the import, has together at most
 * SOURCE_MEMORY_FREE and SOURCE_MEMORY_EACH bytes for each byte of its metadata: a safetensors
 * header or index, the pickle and the directory of a torch.save() archive, .metadata and the bytes
 * items of a DCP folder. The bound is the budget of the thread (base/alloc.h): it holds for every
 * allocation whoever makes it. What does not fit is refused with a sentence that says all three
 * numbers. Buffers for the bytes of tensors have bounds of their own and are not in it.
 */
#ifndef TOOLS_SOURCE_MEMORY_H
#define TOOLS_SOURCE_MEMORY_H

#include "base/alloc.h"
#include "base/err.h"

#define SOURCE_MEMORY_FREE ((uint64_t)64 << 20)
#define SOURCE_MEMORY_EACH 8u

struct source_memory {
	struct alloc_budget budget; /* first: what alloc_budget() of this thread is */
	uint64_t metadata;
	uint64_t buffers; /* that the limit has beside it */
};

/* So many bytes of metadata are read now. Without a source_memory nothing happens. */
void source_metadata(uint64_t bytes);
/* For sources that are opened on this thread, until source_memory_end(). */
void source_memory_begin(struct source_memory *m);
/* Buffers whose size the user chose, or that the bytes of tensors need. */
void source_memory_buffers(struct source_memory *m, uint64_t bytes);
/* r, or where something did not fit -E2BIG with the sentence. what: "'PATH'". */
int source_memory_end(struct source_memory *m, const char *what, int r, struct err *e);

#endif
