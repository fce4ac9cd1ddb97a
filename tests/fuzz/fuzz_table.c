/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that claim to be a rank table: as they are, and with header and final digest made to
 * match. What is accepted is read in full.
 */
#include <config.h>

#include <assert.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "codec/digest.h"
#include "model/format.h"
#include "model/table.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use_piece(void *arg, uint32_t sample, uint64_t offset, uint64_t len)
{
	const struct rank_table *t = arg;

	assert(sample < TABLE_SAMPLES_MAX && offset + len <= t->image_len);
}

static void use(struct rank_table *t)
{
	uint64_t end = t->declaration.image_bytes;
	volatile uint8_t sink = 0;

	for (uint32_t i = 0; i < t->n_blobs; i++) {
		struct blob_entry b;

		if (rank_table_blob(t, i, &b) != 0)
			abort();
		assert(b.image_offset >= end && b.name_len > 0 && b.name_len <= CKPT_NAME_MAX);
		sink = (uint8_t)(sink + (uint8_t)b.name[b.name_len - 1]);
		end = b.image_offset + b.bytes;
	}
	assert(end == t->image_len);
	for (uint64_t i = 0; i < t->n_leaves; i++)
		sink = (uint8_t)(sink + rank_table_leaf(t, i).b[15]);
	for (uint32_t i = 0; i < t->n_samples; i++)
		sink = (uint8_t)(sink + t->samples[16 * i + 15]);
	rank_table_sample_pieces(&t->declaration, use_piece, t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct rank_table t;
	struct digest d;
	uint8_t *copy;

	if (rank_table_open(data, size, &t, NULL) == 0)
		use(&t);
	if (size < FORMAT_HEADER_BYTES + sizeof(d.b))
		return 0;
	copy = alloc_copy(data, size);
	if (!copy)
		return 0;
	memcpy(copy, "CKPTTABL", 8);
	format_head_seal(copy);
	d = digest_of(copy, size - sizeof(d.b));
	memcpy(copy + size - sizeof(d.b), d.b, sizeof(d.b));
	if (rank_table_open(copy, size, &t, NULL) == 0)
		use(&t);
	alloc_free(copy);
	return 0;
}
