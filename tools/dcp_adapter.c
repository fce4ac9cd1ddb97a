/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dcp_adapter.c - what ckpt.torch (python/ckpt/torch.py) stored beside the items of a state
 * dictionary, on the way out to a DCP folder.
 *
 * The adapter keeps JSON in the blob ADAPTER_BLOB of the coordinator (of every rank where it saved
 * without collectives): the planner's data, and for each item that is no tensor the blob, offset
 * and length where it is. Most are blobs of their own names; those beyond what libckpt takes share
 * ADAPTER_PACKED. Neither of the two is an item. A blob of that name that is no such JSON is
 * another program's, and goes out as any other.
 *
 * Failure: places outside of their blob, a newer format. One thread.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "tools/dcp_write.h"

#define ADAPTER_BLOB   "ckpt.torch"
#define ADAPTER_PACKED "ckpt.torch.packed"
#define ADAPTER_FORMAT 1

/* The planner's data: names of items and their keys in the state dictionary, as tagged JSON. */
static void add_paths(struct dcp_out *d, const json_t *planner)
{
	const json_t *pairs = json_object_get(planner, "d");

	if (!d->paths && json_array_size(pairs) > 0)
		d->paths = json_object();
	for (size_t i = 0; i < json_array_size(pairs); i++) {
		json_t *pair = json_array_get(pairs, i), *name = json_array_get(pair, 0);
		json_t *path = json_object_get(json_array_get(pair, 1), "t");

		if (json_is_string(name) && json_is_array(path))
			ignore_result(json_object_setn(d->paths, json_string_value(name),
						       json_string_length(name), path));
	}
}

static int read_one(struct dcp_out *d, uint32_t rank, struct err *e)
{
	CLEANUP_FREE void *bytes = NULL;
	json_t *said, *items, *format;
	uint64_t len;
	int r = reading_blob(d->x->from->reading, rank, ADAPTER_BLOB, strlen(ADAPTER_BLOB), &bytes,
			     &len, e);

	if (r < 0)
		return r;
	said = json_loadb(bytes, len, 0, NULL);
	items = json_object_get(said, "items");
	format = json_object_get(said, "format");
	if (json_is_object(items) && json_is_integer(format)) {
		if (json_integer_value(format) != ADAPTER_FORMAT)
			r = err_set(e, CKPT_EVERSION,
				    "what ckpt.torch said of its items has format "
				    "%" JSON_INTEGER_FORMAT ", and this ckptctl reads %d",
				    json_integer_value(format), ADAPTER_FORMAT);
		if (!d->adapter)
			d->adapter = json_array();
		json_array_append(d->adapter, items);
		add_paths(d, json_object_get(said, "planner_data"));
	}
	json_decref(said);
	return r;
}

/* Whether the rank has a blob of that name: 1, 0, or an error. */
static int has_blob(struct dcp_out *d, uint32_t rank, const char *name, struct err *e)
{
	const struct rank_table *t = reading_table(d->x->from->reading, rank);
	struct blob_entry b;

	for (uint32_t i = 0; t && i < t->n_blobs; i++) {
		int r = rank_table_blob(t, i, &b);

		if (r < 0)
			return err_code(e, r, "a blob of rank %" PRIu32, rank);
		if (b.name_len == strlen(name) && memcmp(b.name, name, b.name_len) == 0)
			return 1;
	}
	return 0;
}

int dcp_adapter_read(struct dcp_out *d, struct err *e)
{
	uint32_t world = reading_commit(d->x->from->reading)->world;
	int r = 0;

	for (uint32_t rank = 0; r >= 0 && rank < world; rank++) {
		r = has_blob(d, rank, ADAPTER_BLOB, e);
		if (r > 0)
			r = read_one(d, rank, e);
	}
	return r;
}

bool dcp_adapter_has(const struct dcp_out *d, const char *name)
{
	return d->adapter && (strcmp(name, ADAPTER_BLOB) == 0 || strcmp(name, ADAPTER_PACKED) == 0);
}

/* The item's place if it is packed; which rank's blob has it is the first of its numbers. */
static const json_t *packed_at(const json_t *item)
{
	const json_t *at = json_object_get(item, "at");
	const char *blob = json_string_value(json_array_get(at, 1));

	return blob && strcmp(blob, ADAPTER_PACKED) == 0 ? at : NULL;
}

size_t dcp_adapter_packed(const struct dcp_out *d)
{
	size_t n = 0;

	for (size_t i = 0; i < json_array_size(d->adapter); i++) {
		json_t *item;
		const char *name;

		json_object_foreach(json_array_get(d->adapter, i), name, item) n +=
			packed_at(item) ? 1 : 0;
	}
	return n;
}

struct packed {
	uint32_t rank;
	const uint8_t *bytes;
	uint64_t len;
};

static int unpack_one(struct dcp_out *d, const struct packed *p, const char *name, const json_t *at,
		      struct err *e)
{
	json_int_t offset = json_integer_value(json_array_get(at, 2));
	json_int_t len = json_integer_value(json_array_get(at, 3));

	if (offset < 0 || len < 0 || (uint64_t)offset > p->len ||
	    (uint64_t)len > p->len - (uint64_t)offset)
		return err_set(e, CKPT_EPROTO,
			       "item '%.150s' is said to lie outside of the blob '%s' of rank "
			       "%" PRIu32,
			       name, ADAPTER_PACKED, p->rank);
	return dcp_out_add_blob(d, p->rank, name, strlen(name), p->bytes + offset, (size_t)len, e);
}

static int unpack_rank(struct dcp_out *d, uint32_t rank, struct err *e)
{
	CLEANUP_FREE void *bytes = NULL;
	struct packed p = {.rank = rank};
	int r = reading_blob(d->x->from->reading, rank, ADAPTER_PACKED, strlen(ADAPTER_PACKED),
			     &bytes, &p.len, e);

	p.bytes = bytes;
	for (size_t i = 0; r >= 0 && i < json_array_size(d->adapter); i++) {
		json_t *item;
		const char *name;

		json_object_foreach(json_array_get(d->adapter, i), name, item)
		{
			const json_t *at = packed_at(item);

			if (r >= 0 && at && json_integer_value(json_array_get(at, 0)) == rank)
				r = unpack_one(d, &p, name, at, e);
		}
	}
	return r < 0 ? r : 0;
}

int dcp_adapter_unpack(struct dcp_out *d, struct err *e)
{
	uint32_t world = reading_commit(d->x->from->reading)->world;
	int r = 0;

	for (uint32_t rank = 0; d->adapter && r >= 0 && rank < world; rank++) {
		r = has_blob(d, rank, ADAPTER_PACKED, e);
		if (r > 0)
			r = unpack_rank(d, rank, e);
	}
	return r < 0 ? r : 0;
}
