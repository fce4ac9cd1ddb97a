/* SPDX-License-Identifier: Apache-2.0 */
/*
 * folder_id.c - reads and makes ID of the data folder: 16 lower-case hex digits and a newline.
 *
 * ID is published whole (store.c (2)). It is text, so that a person can compare it with the number
 * in a message, and write it again where it was damaged.
 */
#include <config.h>

#include "storage/folder_id.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "storage/store.h"

#define ID_FILE       FOLDER_ID_NAME
#define ID_FILE_BYTES FOLDER_ID_TEXT /* a newline instead of the NUL */

void folder_id_text(char buf[FOLDER_ID_TEXT], uint64_t id)
{
	int n = snprintf(buf, FOLDER_ID_TEXT, "%016" PRIx64, id);

	assert(n == FOLDER_ID_TEXT - 1);
}

static int parse(const char *text, size_t len, uint64_t *ret)
{
	static const char digits[] = "0123456789abcdef";
	uint64_t id = 0;

	if (len != ID_FILE_BYTES || text[len - 1] != '\n')
		return CKPT_ECORRUPT;
	for (size_t i = 0; i < len - 1; i++) {
		const char *at = memchr(digits, text[i], sizeof(digits) - 1);

		if (!at)
			return CKPT_ECORRUPT;
		id = id << 4 | (uint64_t)(at - digits);
	}
	if (id == FOLDER_ID_NONE)
		return CKPT_ECORRUPT;
	*ret = id;
	return 0;
}

int folder_id_read(struct disk *d, uint64_t *ret)
{
	struct store s = {.disk = d};
	void *bytes = NULL;
	size_t len = 0;
	int r = store_read_file(&s, ID_FILE, ID_FILE_BYTES, &bytes, &len);

	if (r == 0)
		r = parse(bytes, len, ret);
	alloc_free(bytes);
	return r == -EFBIG ? CKPT_ECORRUPT : r;
}

int folder_id_ensure(struct store *s, uint64_t id, struct rng *rng, uint64_t *ret, struct err *e)
{
	char text[FOLDER_ID_TEXT];
	int r = folder_id_read(s->disk, &id);

	assert(s->lock);
	if (r < 0 && r != -ENOENT && r != CKPT_ECORRUPT)
		return err_code(e, r, "cannot read ID of the data folder");
	if (r < 0) {
		while (id == FOLDER_ID_NONE)
			id = rng_u64(rng);
		folder_id_text(text, id);
		text[ID_FILE_BYTES - 1] = '\n';
		r = store_publish_file(s, "", ID_FILE, text, ID_FILE_BYTES);
		if (r < 0)
			return err_code(e, r, "cannot write ID of the data folder");
	}
	*ret = id;
	return 0;
}
