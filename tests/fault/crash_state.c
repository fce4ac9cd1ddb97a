/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "tests/fault/crash_state.h"

#include <assert.h>

#include "base/alloc.h"
#include "tests/lib/test.h"

#define W_ELEMENTS 40000u
#define M_ROWS 512u
#define M_COLUMNS 64u

void crash_node_options(struct node_options *o)
{
	node_options_default(o);
	o->geometry = (struct geometry){ .leaf = 4096, .chunk = 16384 };
	o->transfer = 65536;
	o->retention.keep_last = 2;
	o->spare_bytes = 400u << 10; /* not all that expires fits: some is unlinked */
	o->disk_reserve = 0;
	o->log_trim = 12;
}

/* Where rank r's part begins, in parts of `all`. */
static uint64_t cut(uint64_t epoch, uint32_t rank, uint32_t world, uint64_t all)
{
	if (rank == 0 || rank == world)
		return rank ? all : 0;
	return epoch % 2 ? all * 2 / 5 : all / 4;
}

void crash_shards(uint64_t epoch, uint32_t rank, uint32_t world, struct shard ret[CRASH_SHARDS])
{
	uint64_t from = cut(epoch, rank, world, W_ELEMENTS);
	uint64_t to = cut(epoch, rank + 1, world, W_ELEMENTS);
	uint64_t elements = (uint64_t)M_ROWS * M_COLUMNS;

	assert(rank < world && world <= 2);
	ret[0] = (struct shard){ .name = "w", .name_len = 1, .dtype = CKPT_F32, .trained = true,
				 .global = { 1, { W_ELEMENTS } },
				 .box = { 1, { from }, { to - from } } };
	ret[1] = (struct shard){ .name = "m", .name_len = 1, .dtype = CKPT_BF16, .flat = true,
				 .global = { 2, { M_ROWS, M_COLUMNS } },
				 .box = { 2, { 0, 0 }, { M_ROWS, M_COLUMNS } },
				 .start = cut(epoch, rank, world, elements),
				 .stop = cut(epoch, rank + 1, world, elements) };
}

uint64_t crash_shard_bytes(const struct shard *s)
{
	return s->flat ? 2 * (s->stop - s->start) : 4 * s->box.length[0];
}

void crash_fill(void *arg, const struct shard *s, uint8_t *out)
{
	const struct crash_step *c = arg;
	uint64_t all = s->flat ? 2ull * M_ROWS * M_COLUMNS : 4ull * W_ELEMENTS;
	uint64_t from = s->flat ? 2 * s->start : 4 * s->box.offset[0];
	uint8_t *whole = alloc_zero(all);

	assert(whole);
	test_fill(whole, all, c->step * 1000 + c->epoch * 10 + s->flat);
	memcpy(out, whole + from, crash_shard_bytes(s));
	alloc_free(whole);
}

void crash_blob(const struct crash_step *s, uint8_t out[CRASH_BLOB_BYTES])
{
	test_fill(out, CRASH_BLOB_BYTES, s->step * 1000 + s->epoch * 10 + 7);
}
