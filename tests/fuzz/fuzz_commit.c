/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that claim to be COMMIT: as they are, and with head, root and final digest made to match.
 * What is accepted then is canonical: encoding it gives the same bytes.
 */
#include <config.h>

#include <assert.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "model/table.h"
#include "storage/commit_file.h"
#include "storage/disk_format.h"

#define FIXED 256u
#define LINE 72u
#define AT_ROOT 88u
#define AT_WORLD 160u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct commit_file *c)
{
	assert(name_is_safe(c->job_name) && c->world <= COMMIT_FILE_MAX / LINE);
	for (uint32_t i = 0; i < c->world; i++)
		assert(c->shards[i].rank == i && c->shards[i].footer_offset >= DISK_ALIGN);
}

static void put_root(uint8_t *p, size_t size)
{
	uint64_t world = get_le32(p + AT_WORLD);
	struct rank_line *lines;
	struct digest root;

	if (world > (size - FIXED) / LINE)
		return;
	lines = alloc_array(world, sizeof(*lines));
	if (!lines)
		return;
	for (uint64_t i = 0; i < world; i++) {
		const uint8_t *line = p + FIXED + i * LINE;

		lines[i].rank = (uint32_t)i;
		lines[i].table_len = get_le64(line + 40);
		memcpy(lines[i].table.b, line + 48, sizeof(lines[i].table.b));
	}
	root = root_digest(lines, (uint32_t)world);
	memcpy(p + AT_ROOT, root.b, sizeof(root.b));
	alloc_free(lines);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct commit_file c = { 0 };
	void *again = NULL;
	size_t again_len = 0;
	uint8_t *copy;

	if (commit_file_decode(data, size, &c, NULL) == 0) {
		use(&c);
		commit_file_fini(&c);
	}
	if (size < FIXED + DISK_FORMAT_DIGEST)
		return 0;
	copy = alloc_copy(data, size);
	if (!copy)
		return 0;
	format_begin(copy, FORMAT_COMMIT, FIXED, size);
	put_root(copy, size);
	format_end(copy, size);
	if (commit_file_decode(copy, size, &c, NULL) == 0) {
		use(&c);
		if (commit_file_encode(&c, &again, &again_len) == 0 &&
		    (again_len != size || memcmp(again, copy, size) != 0))
			abort();
		alloc_free(again);
		commit_file_fini(&c);
	}
	alloc_free(copy);
	return 0;
}
