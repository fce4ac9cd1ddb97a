/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blobs.c - blobs.h.
 *
 * Failure modes: no memory for the block.
 */
#include <config.h>

#include "ckptd/blobs.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"

struct blobs *blobs_new(uint32_t n, uint64_t names_len)
{
	uint64_t bytes = sizeof(struct blobs) + n * (uint64_t)sizeof(struct blob_entry);
	struct blobs *b;

	if (!size_add(bytes, names_len, &bytes) || bytes > SIZE_MAX)
		return NULL;
	b = alloc_zero((size_t)bytes);
	if (!b)
		return NULL;
	b->room = n;
	b->names_room = names_len;
	b->bytes = bytes;
	return b;
}

void blobs_add(struct blobs *b, const struct blob_entry *e)
{
	char *names = (char *)&b->at[b->room];
	struct blob_entry *to = &b->at[b->n];

	assert(b->n < b->room && e->name_len <= b->names_room - b->names_len);
	*to = *e;
	to->name = memcpy(names + b->names_len, e->name, e->name_len);
	b->names_len += e->name_len;
	b->n++;
}

struct blobs *blobs_copy(const struct blob_entry *from, uint32_t n)
{
	uint64_t names = 0;
	struct blobs *b;

	for (uint32_t i = 0; i < n; i++)
		names += from[i].name_len;
	b = blobs_new(n, names);
	for (uint32_t i = 0; b && i < n; i++)
		blobs_add(b, &from[i]);
	return b;
}
