/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of the usual models. The first row that matches holds: narrower patterns stand first.
 */
#include <config.h>

#include <stddef.h>

#include "model/layout_families.h"

#define COUNT(a) ((uint32_t)(sizeof(a) / sizeof((a)[0])))

/* ---- Megatron-LM: megatron/core, and the names of before it ---- */

static const struct family_row megatron_rows[] = {
	{ "*experts.local_experts.#.linear_fc1.weight", 0, FAMILY_SWIGLU, 1 },
	{ "*experts.local_experts.#.linear_fc1.bias", 0, FAMILY_SWIGLU, 1 },
	{ "*experts.local_experts.#.linear_fc2.weight", 1, FAMILY_EVEN, 1 },
	{ "*experts.local_experts.#.linear_fc2.bias", 0, FAMILY_WHOLE, 1 },
	{ "*mlp.experts.linear_fc1.weight#", 0, FAMILY_SWIGLU, 1 },
	{ "*mlp.experts.linear_fc1.bias#", 0, FAMILY_SWIGLU, 1 },
	{ "*mlp.experts.linear_fc2.weight#", 1, FAMILY_EVEN, 1 },
	{ "*mlp.experts.linear_fc2.bias#", 0, FAMILY_WHOLE, 1 },
	{ "*experts.experts.linear_fc1.weight", 1, FAMILY_SWIGLU, 2 },
	{ "*experts.experts.linear_fc1.bias", 1, FAMILY_SWIGLU, 2 },
	{ "*experts.experts.linear_fc2.weight", 2, FAMILY_EVEN, 2 },
	{ "*experts.experts.linear_fc2.bias", 0, FAMILY_WHOLE, 2 },
	{ "*embedding.word_embeddings.weight", 0, FAMILY_VOCAB, 0 },
	{ "*output_layer.weight", 0, FAMILY_VOCAB, 0 },
	{ "*linear_qkv.weight", 0, FAMILY_KV, 0 },
	{ "*linear_qkv.bias", 0, FAMILY_KV, 0 },
	{ "*query_key_value.weight", 0, FAMILY_KV, 0 },
	{ "*query_key_value.bias", 0, FAMILY_KV, 0 },
	{ "*linear_proj.weight", 1, FAMILY_EVEN, 0 },
	{ "*attention.dense.weight", 1, FAMILY_EVEN, 0 },
	{ "*linear_fc1.weight", 0, FAMILY_SWIGLU, 0 },
	{ "*linear_fc1.bias", 0, FAMILY_SWIGLU, 0 },
	{ "*dense_h_to_4h.weight", 0, FAMILY_SWIGLU, 0 },
	{ "*dense_h_to_4h.bias", 0, FAMILY_SWIGLU, 0 },
	{ "*linear_fc2.weight", 1, FAMILY_EVEN, 0 },
	{ "*dense_4h_to_h.weight", 1, FAMILY_EVEN, 0 },
	{ "*position_embeddings*", 0, FAMILY_WHOLE, 0 },
	{ "*linear_proj.bias", 0, FAMILY_WHOLE, 0 },
	{ "*linear_fc2.bias", 0, FAMILY_WHOLE, 0 },
	{ "*dense.bias", 0, FAMILY_WHOLE, 0 },
	{ "*dense_4h_to_h.bias", 0, FAMILY_WHOLE, 0 },
	{ "*router.*", 0, FAMILY_WHOLE, 0 },
	{ "*layernorm*", 0, FAMILY_WHOLE, 0 },
	{ "*layer_norm*", 0, FAMILY_WHOLE, 0 },
};
static const char *const layers_names[] = { "layers.#.*", "*.layers.#.*", NULL };
static const char *const megatron_experts[] = { "*experts.local_experts.#.*",
					       "*mlp.experts.linear_fc?.weight#",
					       "*mlp.experts.linear_fc?.bias#", NULL };
static const char *const megatron_first[] = { "*position_embeddings*", NULL };
static const char *const megatron_last[] = { "*output_layer.*", "*final_layernorm.*",
					    "*final_norm.*", NULL };

/* ---- Hugging Face: Llama, Mistral, Qwen, Phi-3, Mixtral and those named like them ---- */

static const struct family_row hf_rows[] = {
	{ "*block_sparse_moe.experts.#.w1.weight", 0, FAMILY_EVEN, 1 },
	{ "*block_sparse_moe.experts.#.w3.weight", 0, FAMILY_EVEN, 1 },
	{ "*block_sparse_moe.experts.#.w2.weight", 1, FAMILY_EVEN, 1 },
	{ "*mlp.experts.#.gate_proj.weight", 0, FAMILY_EVEN, 1 },
	{ "*mlp.experts.#.up_proj.weight", 0, FAMILY_EVEN, 1 },
	{ "*mlp.experts.#.down_proj.weight", 1, FAMILY_EVEN, 1 },
	{ "*experts.gate_up_proj", 2, FAMILY_GATED, 2 },
	{ "*experts.down_proj", 1, FAMILY_EVEN, 2 },
	{ "*embed_tokens.weight", 0, FAMILY_VOCAB, 0 },
	{ "*lm_head.weight", 0, FAMILY_VOCAB, 0 },
	{ "*qkv_proj.weight", 0, FAMILY_QKV, 0 },
	{ "*qkv_proj.bias", 0, FAMILY_QKV, 0 },
	{ "*q_proj.weight", 0, FAMILY_HEADS, 0 },
	{ "*q_proj.bias", 0, FAMILY_HEADS, 0 },
	{ "*k_proj.weight", 0, FAMILY_KV, 0 },
	{ "*k_proj.bias", 0, FAMILY_KV, 0 },
	{ "*v_proj.weight", 0, FAMILY_KV, 0 },
	{ "*v_proj.bias", 0, FAMILY_KV, 0 },
	{ "*o_proj.weight", 1, FAMILY_EVEN, 0 },
	{ "*gate_up_proj.weight", 0, FAMILY_GATED, 0 },
	{ "*gate_proj.weight", 0, FAMILY_EVEN, 0 },
	{ "*gate_proj.bias", 0, FAMILY_EVEN, 0 },
	{ "*up_proj.weight", 0, FAMILY_EVEN, 0 },
	{ "*up_proj.bias", 0, FAMILY_EVEN, 0 },
	{ "*down_proj.weight", 1, FAMILY_EVEN, 0 },
	{ "*o_proj.bias", 0, FAMILY_WHOLE, 0 },
	{ "*down_proj.bias", 0, FAMILY_WHOLE, 0 },
	{ "*gate.weight", 0, FAMILY_WHOLE, 0 },
	{ "*norm.weight", 0, FAMILY_WHOLE, 0 },
	{ "*layernorm.weight", 0, FAMILY_WHOLE, 0 },
	{ "*rotary_emb.inv_freq", 0, FAMILY_WHOLE, 0 },
};
static const char *const hf_experts[] = { "*experts.#.*", NULL };
static const char *const hf_first[] = { NULL };
static const char *const hf_last[] = { "*lm_head.*", "norm.weight", "*.norm.weight", NULL };

/* ---- GPT-2: Hugging Face's Conv1D has weights as [in, out], nanoGPT's Linear as [out, in] ---- */

#define GPT2_ROWS(in, out)                                                                         \
	{ "*wte.weight", 0, FAMILY_VOCAB, 0 },                                                     \
	{ "*lm_head.weight", 0, FAMILY_VOCAB, 0 },                                                 \
	{ "*attn.c_attn.weight", out, FAMILY_QKV, 0 },                                             \
	{ "*attn.c_attn.bias", 0, FAMILY_QKV, 0 },                                                 \
	{ "*attn.c_proj.weight", in, FAMILY_EVEN, 0 },                                             \
	{ "*mlp.c_fc.weight", out, FAMILY_EVEN, 0 },                                               \
	{ "*mlp.c_fc.bias", 0, FAMILY_EVEN, 0 },                                                   \
	{ "*mlp.c_proj.weight", in, FAMILY_EVEN, 0 },                                              \
	{ "*c_proj.bias", 0, FAMILY_WHOLE, 0 },                                                    \
	{ "*wpe.weight", 0, FAMILY_WHOLE, 0 },                                                     \
	{ "*ln_?.weight", 0, FAMILY_WHOLE, 0 },                                                    \
	{ "*ln_?.bias", 0, FAMILY_WHOLE, 0 },                                                      \
	{ "*attn.bias", 0, FAMILY_WHOLE, 0 },                                                      \
	{ "*attn.masked_bias", 0, FAMILY_WHOLE, 0 }
static const struct family_row gpt2_rows[] = { GPT2_ROWS(0, 1) };
static const struct family_row nanogpt_rows[] = { GPT2_ROWS(1, 0) };
static const char *const gpt2_layers[] = { "h.#.*", "*.h.#.*", NULL };
static const char *const gpt2_first[] = { "*wpe.weight", NULL };
static const char *const gpt2_last[] = { "*lm_head.*", "*ln_f.*", NULL };

/* ---- examples/train_lm.py ---- */

static const struct family_row train_lm_rows[] = {
	{ "bytes.weight", 0, FAMILY_VOCAB, 0 },
	{ "head.weight", 0, FAMILY_VOCAB, 0 },
	{ "head.bias", 0, FAMILY_VOCAB, 0 },
	{ "blocks.#.qkv.*", 0, FAMILY_QKV, 0 },
	{ "blocks.#.out.weight", 1, FAMILY_EVEN, 0 },
	{ "blocks.#.up.*", 0, FAMILY_EVEN, 0 },
	{ "blocks.#.down.weight", 1, FAMILY_EVEN, 0 },
	{ "blocks.#.out.bias", 0, FAMILY_WHOLE, 0 },
	{ "blocks.#.down.bias", 0, FAMILY_WHOLE, 0 },
	{ "blocks.#.norm?.*", 0, FAMILY_WHOLE, 0 },
	{ "norm.*", 0, FAMILY_WHOLE, 0 },
	{ "places.weight", 0, FAMILY_WHOLE, 0 },
};
static const char *const train_lm_layers[] = { "blocks.#.*", NULL };
static const char *const train_lm_first[] = { "places.weight", NULL };
static const char *const train_lm_last[] = { "head.*", "norm.*", NULL };

static const char *const nothing[] = { NULL };

const struct family layout_families[] = {
	{ "megatron", megatron_rows, COUNT(megatron_rows), layers_names, megatron_experts,
	 megatron_first, megatron_last, "*embedding.word_embeddings.weight", 128 },
	{ "hf", hf_rows, COUNT(hf_rows), layers_names, hf_experts, hf_first, hf_last,
	 "*embed_tokens.weight", 0 },
	{ "gpt2", gpt2_rows, COUNT(gpt2_rows), gpt2_layers, nothing, gpt2_first, gpt2_last,
	 "*wte.weight", 0 },
	{ "nanogpt", nanogpt_rows, COUNT(nanogpt_rows), gpt2_layers, nothing, gpt2_first, gpt2_last,
	 "*wte.weight", 0 },
	{ "train_lm", train_lm_rows, COUNT(train_lm_rows), train_lm_layers, nothing, train_lm_first,
	 train_lm_last, "bytes.weight", 0 },
};
const uint32_t layout_n_families = COUNT(layout_families);
