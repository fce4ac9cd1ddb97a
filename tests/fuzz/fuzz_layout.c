/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layout as text: JSON where it begins with a brace, else the name of one. What is accepted then
 * cuts some tensors: all shards are inside them, and errors have a sentence.
 */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "tools/layout_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct layout_tensor tensors[] = {
#define TENSOR(text, dims, ...)                                                                    \
	{                                                                                          \
		text, sizeof(text) - 1, CKPT_BF16,                                                 \
		{                                                                                  \
			dims,                                                                      \
			{                                                                          \
				__VA_ARGS__                                                        \
			}                                                                          \
		}                                                                                  \
	}
	TENSOR("model.embed_tokens.weight", 2, 50, 8),
	TENSOR("model.layers.0.self_attn.qkv_proj.weight", 2, 24, 8),
	TENSOR("model.layers.1.mlp.down_proj.weight", 2, 8, 12),
	TENSOR("exp_avg.model.layers.1.mlp.down_proj.weight", 2, 8, 12),
	TENSOR("decoder.layers.3.mlp.experts.experts.linear_fc1.weight", 3, 4, 6, 2),
	TENSOR("scalar", 0, 0),
	TENSOR("empty", 3, 4, 0, 2),
	TENSOR("vast", 2, (uint64_t)1 << 40, (uint64_t)1 << 20),
};
enum { TENSORS = sizeof(tensors) / sizeof(tensors[0]) };

static void cut(struct layout *l, const struct layout_tensor *t)
{
	struct shard shards[LAYOUT_SHARDS_MAX];
	uint32_t world = layout_world(l);

	for (uint32_t rank = 0; rank < world && rank < 64; rank++) {
		struct err e = {0};
		uint32_t n;

		if (layout_shards(l, t, world - 1 - rank, shards, &n, &e) != 0) {
			if (!e.text[0])
				abort();
			return;
		}
		for (uint32_t i = 0; i < n; i++)
			if (!box_inside(&shards[i].box, &t->global) ||
			    shards[i].stop < shards[i].start)
				abort();
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct layout_tensors all = layout_array(tensors, TENSORS);
	struct layout *l = NULL;
	struct err e = {0};
	char *text = alloc_zero(size + 1);
	int r;

	if (!text)
		return 0;
	memcpy(text, data, size);
	r = size && text[0] == '{' ? layout_from_json(text, size, &l, &e)
				   : layout_parse(text, &l, &e);
	if (r && !e.text[0])
		abort();
	/* With all tensors named first, and without. */
	if (!r && (size % 2 == 0 || layout_begin(l, &all, &e) == 0))
		for (size_t i = 0; i < TENSORS; i++)
			cut(l, &tensors[i]);
	layout_free(l);
	alloc_free(text);
	return 0;
}
