/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout_file.c - layouts as immutable objects. Blocking; any worker.
 */
#include <config.h>

#include "storage/layout_file.h"

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"
#include "base/bytes.h"

#define MAGIC "CKPTLAYO"
#define MAGIC_LEN 8
#define RANKS_MAX ((LAYOUT_FILE_MAX - MAGIC_LEN - 4) / (4 + sizeof(struct digest)))

int layout_file_put(struct store *s, const struct digest *declarations, uint32_t world,
		    struct digest *ret, struct err *e)
{
	struct digest name;
	struct writer w = { 0 };
	int r;

	assert(declarations && world > 0 && ret);
	if (world > RANKS_MAX)
		return err_set(e, -E2BIG, "a layout has at most %zu ranks", (size_t)RANKS_MAX);
	write_bytes(&w, MAGIC, MAGIC_LEN);
	write_u32(&w, world);
	for (uint32_t rank = 0; rank < world; rank++) {
		write_u32(&w, rank);
		write_bytes(&w, declarations[rank].b, sizeof(declarations[rank].b));
	}
	name = layout_digest(declarations, world);
	r = w.bad ? err_code(e, -ENOMEM, "write a layout of %u ranks", world)
		  : store_put_object(s, "layouts", &name, w.buf, w.len, e);
	writer_free(&w);
	if (r == 0)
		*ret = name;
	return r;
}

/* The bytes have matched their name, so only a writer of another kind can have got them wrong. */
static int parse(const void *bytes, size_t len, struct digest **ret, uint32_t *ret_world)
{
	struct reader r = reader_of(bytes, len);
	const void *magic = read_bytes(&r, MAGIC_LEN);
	uint32_t world = read_u32(&r);
	struct digest *d;

	if (r.bad || memcmp(magic, MAGIC, MAGIC_LEN) != 0 || world == 0 ||
	    reader_left(&r) != (uint64_t)world * (4 + sizeof(*d)))
		return CKPT_EPROTO;
	d = alloc_array(world, sizeof(*d));
	if (!d)
		return -ENOMEM;
	for (uint32_t rank = 0; rank < world; rank++) {
		bool in_order = read_u32(&r) == rank;

		memcpy(d[rank].b, read_bytes(&r, sizeof(d[rank].b)), sizeof(d[rank].b));
		if (!in_order) {
			alloc_free(d);
			return CKPT_EPROTO;
		}
	}
	assert(!r.bad && reader_left(&r) == 0);
	*ret = d;
	*ret_world = world;
	return 0;
}

int layout_file_get(struct store *s, const struct digest *layout, struct digest **ret,
		    uint32_t *ret_world, struct err *e)
{
	CLEANUP_FREE void *bytes = NULL;
	char hex[ID_TEXT_MAX];
	size_t len = 0;
	int r = store_get_object(s, "layouts", layout, LAYOUT_FILE_MAX, &bytes, &len, e);

	if (r < 0)
		return r;
	r = parse(bytes, len, ret, ret_world);
	hex_format(hex, layout->b, sizeof(layout->b));
	return r < 0 ? err_code(e, r, "read 'layouts/%s'", hex) : 0;
}
