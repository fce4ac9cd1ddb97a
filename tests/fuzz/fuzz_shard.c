/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first 144 bytes claim to be the used part of a shard file's header, the rest its footer: as
 * they are, and with heads and digests made to match. A header that is accepted then is canonical;
 * places that are accepted lie in order between header and footer.
 */
#include <config.h>

#include <assert.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "model/load_plan.h"
#include "storage/disk_format.h"
#include "storage/shard_file.h"

#define HEADER_USED 144u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use_header(uint8_t *bytes, bool canonical, struct shard_header *ret)
{
	static uint8_t again[SHARD_HEADER_BYTES];
	struct shard_header h;

	if (shard_header_decode(bytes, "header", &h, NULL) < 0)
		return;
	assert(geometry_valid(h.geometry) && h.footer_offset >= SHARD_HEADER_BYTES);
	shard_header_encode(&h, again);
	if (canonical && memcmp(again, bytes, sizeof(again)) != 0)
		abort();
	*ret = h;
}

static void use_footer(const uint8_t *bytes, size_t len, const struct shard_header *h)
{
	struct shard_footer_view f;
	volatile uint8_t sink = 0;
	uint64_t end = SHARD_HEADER_BYTES;

	if (footer_decode(bytes, len, "footer", &f, NULL) < 0)
		return;
	for (uint64_t i = 0; i < f.table_len; i++)
		sink = (uint8_t)(sink + f.table[i]);
	if (footer_check_places(&f, h, "footer", NULL) < 0)
		return;
	for (uint64_t i = 0; i < f.n_chunks; i++) {
		struct chunk_place p = chunk_place_get(f.places, i);

		assert(p.offset >= end && p.offset + p.stored <= h->footer_offset);
		end = p.offset + p.stored;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t header[SHARD_HEADER_BYTES];
	struct shard_header h = { .geometry = GEOMETRY_DEFAULT,
				  .footer_offset = SHARD_HEADER_BYTES };
	uint8_t *copy;

	if (size < HEADER_USED)
		return 0;
	memset(header, 0, sizeof(header));
	memcpy(header, data, HEADER_USED);
	use_header(header, false, &h);
	format_begin(header, FORMAT_SHARD, SHARD_HEADER_BYTES - DISK_FORMAT_DIGEST,
		     SHARD_HEADER_BYTES);
	format_set_incompat(header, get_le64(data + 16) & SHARD_LEAVES_MISSING);
	format_end(header, sizeof(header));
	use_header(header, true, &h);
	data += HEADER_USED;
	size -= HEADER_USED;
	use_footer(data, size, &h);
	if (size < FOOTER_FIXED_BYTES + DISK_FORMAT_DIGEST)
		return 0;
	copy = alloc_copy(data, size);
	if (!copy)
		return 0;
	format_begin(copy, FORMAT_FOOTER, FOOTER_FIXED_BYTES, size);
	format_end(copy, size);
	use_footer(copy, size, &h);
	alloc_free(copy);
	return 0;
}
