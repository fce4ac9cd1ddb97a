/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meta_model.c - tensors of the model, who stores which part, and what is wanted of them.
 *
 * Tensor t of a layer: parameter t / 3, its moments follow it. Dense parameters come first. All
 * extents can be divided by what they are cut by.
 */
#include <config.h>

#include "bench/meta_model.h"

#include <stdio.h>
#include <string.h>

#define TP               8u
#define PP               4u
#define DP               8u
#define EXPERTS          64u
#define HIDDEN           1536u
#define GRID             16u
#define VOCABULARY       128000u
#define TENSORS_OF_DENSE (3u * 12u)
#define TENSORS_OF_LAYER (TENSORS_OF_DENSE + 3u * 3u * EXPERTS)
#define SHARDS_OF_LAYER  (TENSORS_OF_DENSE + 3u * 3u * (EXPERTS / DP))

enum cut { CUT_NONE, CUT_ROWS, CUT_COLUMNS, CUT_GRID };

struct parameter {
	const char *name;
	uint32_t ndim;
	uint64_t dim[2];
	enum cut cut;
};

static const struct parameter dense[TENSORS_OF_DENSE / 3] = {
	{"self_attn.q_proj.weight", 2, {2 * HIDDEN, HIDDEN}, CUT_ROWS},
	{"self_attn.k_proj.weight", 2, {384, HIDDEN}, CUT_ROWS},
	{"self_attn.v_proj.weight", 2, {384, HIDDEN}, CUT_ROWS},
	{"self_attn.o_proj.weight", 2, {HIDDEN, 2 * HIDDEN}, CUT_COLUMNS},
	{"self_attn.q_norm.weight", 1, {96}, CUT_NONE},
	{"self_attn.k_norm.weight", 1, {96}, CUT_NONE},
	{"input_layernorm.weight", 1, {HIDDEN}, CUT_NONE},
	{"post_attention_layernorm.weight", 1, {HIDDEN}, CUT_NONE},
	{"mlp.gate.weight", 2, {EXPERTS, HIDDEN}, CUT_NONE},
	{"mlp.shared_expert.gate_proj.weight", 2, {4 * HIDDEN, HIDDEN}, CUT_GRID},
	{"mlp.shared_expert.up_proj.weight", 2, {4 * HIDDEN, HIDDEN}, CUT_GRID},
	{"mlp.shared_expert.down_proj.weight", 2, {HIDDEN, 4 * HIDDEN}, CUT_GRID},
};
static const struct parameter of_expert[3] = {
	{"gate_proj.weight", 2, {768, HIDDEN}, CUT_ROWS},
	{"up_proj.weight", 2, {768, HIDDEN}, CUT_ROWS},
	{"down_proj.weight", 2, {HIDDEN, 768}, CUT_COLUMNS},
};
static const char *const prefixes[3] = {"", "optimizer.state.exp_avg.",
					"optimizer.state.exp_avg_sq."};

struct named {
	char name[128];
	struct shard shard; /* the whole tensor */
	enum cut cut;
};

static void of_parameter(struct named *n, const struct parameter *p, uint32_t kind, uint32_t len)
{
	n->cut = p->cut;
	n->shard = (struct shard){.name = n->name,
				  .name_len = len,
				  .trained = kind == 0,
				  .dtype = kind ? CKPT_F32 : CKPT_BF16};
	n->shard.global.ndim = n->shard.box.ndim = p->ndim;
	memcpy(n->shard.global.dim, p->dim, sizeof(p->dim));
	memcpy(n->shard.box.length, p->dim, sizeof(p->dim));
}

/* kind: 0 the parameter, 1 and 2 its moments. */
static void dense_tensor(struct named *n, uint32_t layer, uint32_t i, uint32_t kind)
{
	int len = snprintf(n->name, sizeof(n->name), "%smodel.layers.%u.%s", prefixes[kind], layer,
			   dense[i].name);

	of_parameter(n, &dense[i], kind, (uint32_t)len);
}

static void expert_tensor(struct named *n, uint32_t layer, uint32_t expert, uint32_t i,
			  uint32_t kind)
{
	int len = snprintf(n->name, sizeof(n->name), "%smodel.layers.%u.mlp.experts.%u.%s",
			   prefixes[kind], layer, expert, of_expert[i].name);

	of_parameter(n, &of_expert[i], kind, (uint32_t)len);
}

static void embedding(struct named *n)
{
	static const struct parameter p = {"", 2, {VOCABULARY, HIDDEN}, CUT_GRID};
	int len = snprintf(n->name, sizeof(n->name), "model.embed_tokens.weight");

	of_parameter(n, &p, 0, (uint32_t)len);
}

/* ---- Parts ---- */

static void part(struct shard *s, uint32_t k, uint32_t i, uint32_t n)
{
	s->box.length[k] = s->global.dim[k] / n;
	s->box.offset[k] = i * s->box.length[k];
}

static void cut_tp(struct named *n, uint32_t i, uint32_t tp)
{
	if (n->cut == CUT_ROWS)
		part(&n->shard, 0, i, tp);
	if (n->cut == CUT_COLUMNS)
		part(&n->shard, 1, i, tp);
	if (n->cut == CUT_GRID) {
		part(&n->shard, 0, i / (tp / 2), 2);
		part(&n->shard, 1, i % (tp / 2), tp / 2);
	}
}

/* Tensor i of all layers, whole: dense ones first. */
static void whole_tensor(struct named *n, uint32_t i)
{
	uint32_t layer = i / TENSORS_OF_LAYER, t = i % TENSORS_OF_LAYER;

	if (t < TENSORS_OF_DENSE) {
		dense_tensor(n, layer, t / 3, t % 3);
		return;
	}
	t -= TENSORS_OF_DENSE;
	expert_tensor(n, layer, t / 9, t / 3 % 3, t % 3);
}

/* The i-th of n nearly equal flat ranges of the box. */
static void cut_flat(struct shard *s, uint32_t i, uint32_t n)
{
	uint64_t all = s->box.length[0];

	for (uint32_t k = 1; k < s->box.ndim; k++)
		all *= s->box.length[k];
	s->flat = true;
	s->start = all * i / n;
	s->stop = all * (i + 1) / n;
}

/* ---- What is stored ---- */

struct taking {
	struct declaration_builder *b;
	uint32_t left;
};

static int take(struct taking *t, struct named *n, struct err *e)
{
	int r;

	if (t->left == 0)
		return 0;
	t->left--;
	n->shard.name = n->name;
	r = declaration_add(t->b, &n->shard, e);
	return r < 0 ? r : 0;
}

static int take_layer(struct taking *t, uint32_t layer, uint32_t rank, struct err *e)
{
	uint32_t tp = rank % TP, dp = rank / TP / PP;
	struct named n;
	int r = 0;

	for (uint32_t i = 0; i < TENSORS_OF_DENSE && r == 0; i++) {
		dense_tensor(&n, layer, i / 3, i % 3);
		cut_tp(&n, tp, TP);
		if (i % 3)
			cut_flat(&n.shard, dp, DP);
		r = take(t, &n, e);
	}
	for (uint32_t i = 0; i < SHARDS_OF_LAYER - TENSORS_OF_DENSE && r == 0; i++) {
		expert_tensor(&n, layer, dp * (EXPERTS / DP) + i / 9, i / 3 % 3, i % 3);
		cut_tp(&n, tp, TP);
		r = take(t, &n, e);
	}
	return r;
}

static uint32_t quota(uint32_t shards, uint32_t rank)
{
	return (uint32_t)((uint64_t)shards * (rank + 1) / META_RANKS -
			  (uint64_t)shards * rank / META_RANKS);
}

/* Whole layers of a stage, on each of its ranks. */
static uint32_t layers_of_stage(uint32_t shards)
{
	return (shards / META_RANKS - 1) / SHARDS_OF_LAYER;
}

/* Layers are numbered as if each stage ended with its whole ones; what is over comes behind. */
static uint32_t layer_number(uint32_t shards, uint32_t stage, uint32_t i)
{
	uint32_t n = layers_of_stage(shards);

	return i < n ? stage * n + i : PP * n + (i - n) * PP + stage;
}

static int take_all(struct taking *t, uint32_t shards, uint32_t rank, bool dealt, struct err *e)
{
	uint32_t stage = rank / TP % PP;
	struct named n;
	int r;

	embedding(&n);
	part(&n.shard, 0, rank / GRID, GRID);
	part(&n.shard, 1, rank % GRID, GRID);
	r = take(t, &n, e);
	for (uint32_t i = 0; t->left && r == 0; i++)
		r = take_layer(t, dealt ? i * PP + stage : layer_number(shards, stage, i), rank, e);
	return r;
}

static int take_replica(struct taking *t, struct err *e)
{
	struct named n;
	int r = 0;

	for (uint32_t i = 0; t->left && r == 0; i++) {
		whole_tensor(&n, i);
		r = take(t, &n, e);
	}
	return r;
}

enum taken { TAKE_STAGES, TAKE_DEALT, TAKE_REPLICA };

static int declare(uint32_t shards, enum taken what, uint32_t rank, void **ret, size_t *ret_len,
		   struct err *e)
{
	struct taking t = {.left = quota(shards, rank)};
	int r = declaration_builder_new(GEOMETRY_DEFAULT, &t.b);

	if (r < 0)
		return err_code(e, r, "declare the shards of rank %u", rank);
	r = what == TAKE_REPLICA ? take_replica(&t, e)
				 : take_all(&t, shards, rank, what == TAKE_DEALT, e);
	if (r == 0)
		r = declaration_finish(t.b, ret, ret_len, e);
	declaration_builder_free(t.b);
	return r;
}

int meta_stored(uint32_t shards, bool replicated, uint32_t rank, void **ret, size_t *ret_len,
		struct err *e)
{
	return declare(shards, replicated ? TAKE_REPLICA : TAKE_STAGES, rank, ret, ret_len, e);
}

int meta_dealt(uint32_t shards, uint32_t rank, void **ret, size_t *ret_len, struct err *e)
{
	return declare(shards, TAKE_DEALT, rank, ret, ret_len, e);
}

/* ---- What is wanted ---- */

#define MOMENTS_OF_LAYER (TENSORS_OF_DENSE / 3 * 2)
#define SLABS            250u /* of one tensor */

static uint32_t layers_of(uint32_t shards)
{
	return PP * layers_of_stage(shards);
}

/* One of n, spread over all of them. */
static uint32_t spread(uint32_t all, uint32_t i, uint32_t n)
{
	return (uint32_t)((uint64_t)all * i / n);
}

static void pick(struct named *n, uint32_t shards, uint32_t i)
{
	whole_tensor(n, spread(layers_of(shards) * TENSORS_OF_LAYER, i, META_BOXES));
}

static void pick_moment(struct named *n, uint32_t shards, uint32_t i, uint32_t of)
{
	uint32_t at = spread(layers_of(shards) * MOMENTS_OF_LAYER, i, of), t;

	t = at % MOMENTS_OF_LAYER;
	dense_tensor(n, at / MOMENTS_OF_LAYER, t / 2, 1 + t % 2);
}

static uint32_t boxes_of(uint32_t shards, enum meta_wanted kind)
{
	uint32_t moments = layers_of(shards) * MOMENTS_OF_LAYER;

	uint32_t most = kind == META_FLAT      ? moments
			: kind == META_REPLICA ? shards / META_RANKS
					       : META_BOXES;

	return most < META_BOXES ? most : META_BOXES;
}

static void want(struct named *n, uint32_t shards, enum meta_wanted kind, uint32_t i)
{
	switch (kind) {
	case META_TENSORS:
		pick(n, shards, i);
		cut_tp(n, i % 4, 4);
		break;
	case META_ONE:
		embedding(n);
		part(&n->shard, 0, i, META_BOXES);
		break;
	case META_ACROSS:
		dense_tensor(n, i / SLABS, 0, 1);
		part(&n->shard, 1, i % SLABS, HIDDEN / 6);
		break;
	case META_FLAT:
		pick_moment(n, shards, i, boxes_of(shards, kind));
		cut_tp(n, i % 4, 4);
		cut_flat(&n->shard, i % 6, 6);
		break;
	case META_WHOLE:
		pick(n, shards, i);
		break;
	case META_REPLICA:
		whole_tensor(n, spread(shards / META_RANKS, i, boxes_of(shards, kind)));
		break;
	}
}

int meta_wanted(uint32_t shards, enum meta_wanted kind, void **ret, size_t *ret_len, struct err *e)
{
	uint32_t boxes = boxes_of(shards, kind);
	struct declaration_builder *b;
	int r = declaration_builder_new(GEOMETRY_DEFAULT, &b);

	if (r < 0)
		return err_code(e, r, "declare what is wanted");
	for (uint32_t i = 0; i < boxes && r >= 0; i++) {
		struct named n;

		want(&n, shards, kind, i);
		n.shard.name = n.name;
		r = declaration_add(b, &n.shard, e);
	}
	if (r >= 0)
		r = declaration_finish(b, ret, ret_len, e);
	declaration_builder_free(b);
	return r;
}
