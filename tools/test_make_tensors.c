/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_make_tensors.c - makes a checkpoint with tensors of every dtype and of odd shapes, cut over
 * its ranks in every way, whose bytes follow from test_checkpoint.h's formula; test_exchange.py has
 * the same list and formula. Usage: test_make_tensors FOLDER
 *
 *   types  3 ranks, step 7: see below; rank 0 has a blob
 *   plain  1 rank, step 7: the same tensors, whole, without the complex ones of 128 bits
 */
#include <config.h>

#include <assert.h>
#include <stdio.h>
#include <unistd.h>

#include "base/err.h"
#include "tools/test_checkpoint.h"

enum { WORLD = 3, SHARDS_MAX = 40 };

struct rank {
	struct shard shards[SHARDS_MAX];
	uint32_t n;
};

static char names[CKPT_C128 + 1][32];

static void add(struct rank *r, struct shard s)
{
	assert(r->n < SHARDS_MAX);
	r->shards[r->n++] = s;
}

/* Rows or columns in uneven parts; a flat range; whole on each rank; whole on one of them. */
static void add_all(struct rank *r, uint32_t rank, uint32_t world)
{
	const uint64_t matrix[] = {7, 33}, big[] = {300, 1000}, five[] = {2, 3, 4, 5, 6},
		       flat[] = {10, 103}, empty[] = {0, 5}, few[] = {2, 9}, row[] = {64};
	struct shard t;

	for (uint32_t dtype = 1; dtype <= CKPT_C128; dtype++) {
		snprintf(names[dtype], sizeof(names[dtype]), "every.%s", dtype_name(dtype));
		if (dtype != CKPT_C128 || world > 1)
			add(r, test_cut(test_tensor(names[dtype], dtype, 2, matrix), dtype % 2,
					rank, world));
	}
	add(r, test_cut(test_tensor("big", CKPT_F32, 2, big), 1, rank, world));
	add(r, test_cut(test_tensor("five", CKPT_U8, 5, five), 2, rank, world));
	t = test_tensor("flat", CKPT_F64, 2, flat);
	add(r, test_range(t, 1030 * rank / world, 1030 * (rank + 1) / world));
	add(r, test_tensor("replicated", CKPT_BF16, 1, row));
	add(r, test_tensor("empty", CKPT_F16, 2, empty));
	add(r, test_cut(test_tensor("few", CKPT_I64, 2, few), 0, rank, world));
	if (rank == world - 1)
		add(r, test_tensor("scalar", CKPT_I64, 0, NULL));
	if (rank == 0)
		add(r, test_tensor("\u00e9t\u00e9 \"\\/", CKPT_U16, 1, row));
}

static void make(const char *folder, const char *job, uint32_t world)
{
	static struct rank ranks[WORLD];
	struct test_rank given[WORLD];
	struct test_checkpoint c = {.folder = folder,
				    .job = job,
				    .uid = getuid(),
				    .step = 7,
				    .ranks = given,
				    .world = world,
				    .geometry = {.leaf = 4096, .chunk = 16384}};

	for (uint32_t i = 0; i < world; i++) {
		ranks[i].n = 0;
		add_all(&ranks[i], i, world);
		given[i] = (struct test_rank){.shards = ranks[i].shards,
					      .n_shards = ranks[i].n,
					      .blob = i == 0 && world > 1};
	}
	test_checkpoint_write(&c);
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	make(argv[1], "types", WORLD);
	make(argv[1], "plain", 1);
	return 0;
}
