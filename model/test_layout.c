/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/layout.h"
#include "model/layout_rules.h"
#include "tests/lib/test.h"

static struct layout *parsed(const char *spec)
{
	struct layout *l = NULL;
	struct err e = { 0 };

	if (layout_parse(spec, &l, &e))
		fail_msg("%s", e.text);
	return l;
}

/* "name 4 8": a tensor of that shape. */
static struct layout_tensor tensor_of(const char *text)
{
	struct layout_tensor t = { .name = text, .dtype = CKPT_F32 };
	const char *p = strchr(text, ' ');

	t.name_len = p ? (uint32_t)(p - text) : (uint32_t)strlen(text);
	while (p && *p) {
		char *end;

		t.global.dim[t.global.ndim++] = strtoull(p, &end, 10);
		p = end;
	}
	return t;
}

/* What a rank holds: "[0:2, 0:4] [4:6, 0:4]/3-5 " (a flat range 3 to 5). */
static const char *held(struct layout *l, const char *tensor, uint32_t rank)
{
	struct shard shards[LAYOUT_SHARDS_MAX];
	struct layout_tensor t = tensor_of(tensor);
	static char text[4096];
	struct err e = { 0 };
	uint32_t n = 0;

	if (layout_shards(l, &t, rank, shards, &n, &e))
		fail_msg("%s", e.text);
	text[0] = '\0';
	for (uint32_t i = 0; i < n; i++) {
		char box[BOX_TEXT_MAX];
		size_t at = strlen(text);

		assert_ptr_equal(shards[i].name, t.name);
		snprintf(text + at, sizeof(text) - at, "%s%s", i ? " " : "",
			 box_text(box, &shards[i].box));
		at = strlen(text);
		if (shards[i].flat)
			snprintf(text + at, sizeof(text) - at, "/%llu-%llu",
				 (unsigned long long)shards[i].start,
				 (unsigned long long)shards[i].stop);
	}
	return text;
}

/* Of all ranks, with " | " between them. */
static void expect(struct layout *l, const char *tensor, const char *expected)
{
	char all[8192] = "";

	for (uint32_t rank = 0; rank < layout_world(l); rank++) {
		if (rank)
			strcat(all, " | ");
		strcat(all, held(l, tensor, rank));
	}
	assert_string_equal(all, expected);
}

static void expect_of(const char *spec, const char *tensor, const char *expected)
{
	struct layout *l = parsed(spec);

	expect(l, tensor, expected);
	layout_free(l);
}

/* They stay until eight more layouts have begun. */
static void begin(struct layout *l, const char *const *tensors)
{
	static struct layout_tensor of[8][32];
	static unsigned next;
	struct layout_tensor *t = of[next++ % 8];
	struct layout_tensors all;
	struct err e = { 0 };
	size_t n = 0;

	for (; tensors[n]; n++)
		t[n] = tensor_of(tensors[n]);
	all = layout_array(t, n);
	if (layout_begin(l, &all, &e))
		fail_msg("%s", e.text);
}

static void test_replicated(void **state)
{
	(void)state;
	expect_of("ddp=2", "w 4 6", "[0:4, 0:6] | [0:4, 0:6]");
	expect_of("ddp=2", "scalar", "[] | []");
	expect_of("ddp=2", "none 3 0", "[0:3, 0:0] | [0:3, 0:0]");
	expect_of("hf:tp=2", "nobody.knows.it 5 4", "[0:5, 0:4] | [0:5, 0:4]");
}

static void test_tensor_parallel(void **state)
{
	(void)state;
	expect_of("hf:tp=2", "model.layers.0.mlp.up_proj.weight 8 3", "[0:4, 0:3] | [4:8, 0:3]");
	expect_of("hf:tp=3", "model.layers.0.mlp.up_proj.weight 8 3",
		  "[0:3, 0:3] | [3:6, 0:3] | [6:8, 0:3]");
	expect_of("hf:tp=2", "model.layers.0.mlp.down_proj.weight 3 8", "[0:3, 0:4] | [0:3, 4:8]");
	expect_of("hf:tp=4", "model.layers.0.mlp.up_proj.bias 2", "[0:1] | [1:2] |  | ");
	expect_of("hf:tp=2", "model.norm.weight 6", "[0:6] | [0:6]");
	expect_of("gpt2:tp=2", "h.0.mlp.c_fc.weight 3 8", "[0:3, 0:4] | [0:3, 4:8]");
	expect_of("nanogpt:tp=2", "h.0.mlp.c_fc.weight 8 3", "[0:4, 0:3] | [4:8, 0:3]");
}

static void test_vocabulary(void **state)
{
	const char *name = "embedding.word_embeddings.weight 10 2";

	(void)state;
	/* 10 rows padded to a multiple of 4 x 2: 8 each, the last 6 of rank 1 are no tensor's. */
	expect_of("megatron:tp=2,vocab=4", name, "[0:8, 0:2] | [8:10, 0:2]");
	/* to a multiple of 128 x 2: all of it in rank 0's half */
	expect_of("megatron:tp=2", name, "[0:10, 0:2] | ");
	expect_of("megatron:tp=2,vocab=0", name, "[0:5, 0:2] | [5:10, 0:2]");
	expect_of("hf:tp=4,vocab=1", "model.embed_tokens.weight 10 1",
		  "[0:3, 0:1] | [3:6, 0:1] | [6:9, 0:1] | [9:10, 0:1]");
}

static void test_fused(void **state)
{
	(void)state;
	expect_of("hf:tp=2", "layers.0.self_attn.qkv_proj.weight 12 2",
		  "[0:2, 0:2] [4:6, 0:2] [8:10, 0:2] | [2:4, 0:2] [6:8, 0:2] [10:12, 0:2]");
	/* 4 heads, 2 key-value heads of 2 rows each: q has 8 rows, k and v 4 */
	expect_of("hf:tp=2,heads=4,kv=2", "layers.0.self_attn.qkv_proj.weight 16 1",
		  "[0:4, 0:1] [8:10, 0:1] [12:14, 0:1] | [4:8, 0:1] [10:12, 0:1] [14:16, 0:1]");
	/* fewer key-value heads than ranks: two ranks have the same */
	expect_of("hf:tp=4,heads=4,kv=2", "layers.0.self_attn.qkv_proj.weight 8 1",
		  "[0:1, 0:1] [4:5, 0:1] [6:7, 0:1] | [1:2, 0:1] [4:5, 0:1] [6:7, 0:1] | "
		  "[2:3, 0:1] [5:6, 0:1] [7:8, 0:1] | [3:4, 0:1] [5:6, 0:1] [7:8, 0:1]");
	expect_of("hf:tp=4,kv=2", "layers.0.self_attn.k_proj.weight 6 1",
		  "[0:3, 0:1] | [0:3, 0:1] | [3:6, 0:1] | [3:6, 0:1]");
	expect_of("hf:tp=2", "layers.0.mlp.gate_up_proj.weight 8 1",
		  "[0:2, 0:1] [4:6, 0:1] | [2:4, 0:1] [6:8, 0:1]");
	expect_of("megatron:tp=2,swiglu", "decoder.layers.0.mlp.linear_fc1.weight 8 1",
		  "[0:2, 0:1] [4:6, 0:1] | [2:4, 0:1] [6:8, 0:1]");
	expect_of("megatron:tp=2", "decoder.layers.0.mlp.linear_fc1.weight 8 1",
		  "[0:4, 0:1] | [4:8, 0:1]");
	expect_of("megatron:tp=2,kv=2", "decoder.layers.0.self_attention.linear_qkv.weight 8 1",
		  "[0:4, 0:1] | [4:8, 0:1]");
	expect_of("gpt2:tp=2", "h.0.attn.c_attn.weight 1 12",
		  "[0:1, 0:2] [0:1, 4:6] [0:1, 8:10] | [0:1, 2:4] [0:1, 6:8] [0:1, 10:12]");
	/* what touches is one box */
	expect_of("hf:tp=1", "layers.0.mlp.gate_up_proj.weight 8 1", "[0:8, 0:1]");
}

static void test_stages(void **state)
{
	static const char *const names[] = { "model.embed_tokens.weight 4 1",
					    "model.layers.0.x 1",
					    "model.layers.1.x 1",
					    "model.layers.2.x 1",
					    "model.norm.weight 1",
					    NULL };
	struct layout *l = parsed("hf:pp=2,layers=3");

	(void)state;
	expect(l, "model.embed_tokens.weight 4 1", "[0:4, 0:1] | ");
	expect(l, "model.layers.0.x 1", "[0:1] | ");
	expect(l, "model.layers.1.x 1", "[0:1] | ");
	expect(l, "model.layers.2.x 1", " | [0:1]");
	expect(l, "model.layers.2.none 0", " | [0:0]");
	expect(l, "model.norm.weight 1", " | [0:1]");
	expect(l, "lm_head.weight 4 1", " | [0:4, 0:1]");
	expect(l, "exp_avg.model.layers.2.x 1", " | [0:1]");
	layout_free(l);
	expect_of("hf:pp=2,stages=1:2", "model.layers.1.x 1", " | [0:1]");
	expect_of("hf:pp=2,layers=3,tied", "model.embed_tokens.weight 1 1",
		  "[0:1, 0:1] | [0:1, 0:1]");
	/* two rounds: layers 0, 2 on stage 0, layers 1, 3 on stage 1 */
	expect_of("hf:pp=2,layers=4,vpp=2", "model.layers.2.x 1", "[0:1] | ");
	expect_of("hf:pp=2,layers=4,vpp=2", "model.layers.3.x 1", " | [0:1]");
	l = parsed("hf:pp=3");
	begin(l, names);
	expect(l, "model.layers.1.x 1", " | [0:1] | ");
	layout_free(l);
}

static void test_ranks(void **state)
{
	const char *name = "model.layers.0.mlp.up_proj.weight 4 1";

	(void)state;
	/* tp is the fastest, then dp, then pp */
	expect_of("hf:tp=2,dp=2,pp=2,layers=2", name,
		  "[0:2, 0:1] | [2:4, 0:1] | [0:2, 0:1] | [2:4, 0:1] |  |  |  | ");
	expect_of("hf:tp=2,dp=2,pp=2,layers=2,order=tp-pp-dp", name,
		  "[0:2, 0:1] | [2:4, 0:1] |  |  | [0:2, 0:1] | [2:4, 0:1] |  | ");
	expect_of("hf:tp=2,dp=2,order=dp-tp", name,
		  "[0:2, 0:1] | [0:2, 0:1] | [2:4, 0:1] | [2:4, 0:1]");
}

static void test_experts(void **state)
{
	(void)state;
	expect_of("hf:ep=2,experts=4", "layers.0.mlp.experts.1.up_proj.weight 4 1",
		  "[0:4, 0:1] | ");
	expect_of("hf:ep=2,experts=4", "layers.0.mlp.experts.2.up_proj.weight 4 1",
		  " | [0:4, 0:1]");
	/* 4 ranks as tp2 x dp2, and as etp2 x ep2 for experts */
	expect_of("hf:tp=2,dp=2,ep=2,experts=2", "layers.0.mlp.experts.1.up_proj.weight 4 1",
		  " |  | [0:2, 0:1] | [2:4, 0:1]");
	expect_of("hf:tp=2,dp=2,ep=2,etp=1,experts=2", "layers.0.mlp.experts.1.up_proj.weight 4 1",
		  " | [0:4, 0:1] |  | [0:4, 0:1]");
	expect_of("hf:ep=2,etp=2,tp=1", "layers.0.mlp.experts.down_proj 2 4 1",
		  "[0:1, 0:2, 0:1] | [0:1, 2:4, 0:1] | [1:2, 0:2, 0:1] | [1:2, 2:4, 0:1]");
	expect_of("megatron:ep=2,experts=2,swiglu",
		  "decoder.layers.0.mlp.experts.linear_fc1.weight1 4 1", " | [0:4, 0:1]");
}

static void test_dimension_0(void **state)
{
	(void)state;
	expect_of("fsdp2=4", "w 5 2", "[0:2, 0:2] | [2:4, 0:2] | [4:5, 0:2] | ");
	expect_of("fsdp2=2", "adam.m.w 3", "[0:2] | [2:3]");
	expect_of("fsdp2=2", "scalar", "[] | []");
	expect_of("fsdp2=2,replicate=2", "w 3", "[0:2] | [2:3] | [0:2] | [2:3]");
	/* tensor parallel first, then what is left by dimension 0 */
	expect_of("hf:tp=2,fsdp2=2", "layers.0.mlp.up_proj.weight 8 1",
		  "[0:2, 0:1] | [4:6, 0:1] | [2:4, 0:1] | [6:8, 0:1]");
	expect_of("hf:tp=2,fsdp2=2", "layers.0.self_attn.qkv_proj.weight 12 1",
		  "[0:2, 0:1] [4:5, 0:1] | [2:4, 0:1] [6:7, 0:1] | [5:6, 0:1] [8:10, 0:1] | "
		  "[7:8, 0:1] [10:12, 0:1]");
}

static void test_flat(void **state)
{
	(void)state;
	expect_of("train_lm:zero1=3", "w 2 4", "[0:2, 0:4] | [0:2, 0:4] | [0:2, 0:4]");
	expect_of("train_lm:zero1=3", "adam.m.w 2 4",
		  "[0:2, 0:4]/0-2 | [0:2, 0:4]/2-5 | [0:2, 0:4]/5-8");
	expect_of("zero3=3", "w 2 4", "[0:2, 0:4]/0-3 | [0:2, 0:4]/3-6 | [0:2, 0:4]/6-8");
	expect_of("zero3=3", "w 2", "[0:2]/0-1 | [0:2]/1-2 | ");
	expect_of("zero1=2,unit=tensor", "w.exp_avg 3", "[0:3]/0-2 | [0:3]/2-3");
	expect_of("zero1=2,unit=tensor", "w.step", "[] | []");
	/* of two boxes: the local tensor's order, 6 elements, cut in 4 and 2 */
	expect_of("hf:tp=2,dp=2,zero=3", "layers.0.mlp.gate_up_proj.weight 4 3",
		  "[0:1, 0:3] | [1:2, 0:3] | [2:3, 0:3] | [3:4, 0:3]");
	/* by columns: rows of 2 + 2, the first 4 of 8 are row 0 of both */
	expect_of("gpt2:tp=3,dp=2,zero=3", "h.0.attn.c_attn.weight 2 9",
		  "[0:2, 0:1]/0-1 [0:2, 3:4]/0-1 [0:2, 6:7]/0-1 | "
		  "[0:2, 1:2]/0-1 [0:2, 4:5]/0-1 [0:2, 7:8]/0-1 | "
		  "[0:2, 2:3]/0-1 [0:2, 5:6]/0-1 [0:2, 8:9]/0-1 | "
		  "[0:2, 0:1]/1-2 [0:2, 3:4]/1-2 [0:2, 6:7]/1-2 | "
		  "[0:2, 1:2]/1-2 [0:2, 4:5]/1-2 [0:2, 7:8]/1-2 | "
		  "[0:2, 2:3]/1-2 [0:2, 5:6]/1-2 [0:2, 8:9]/1-2");
}

static void test_units(void **state)
{
	static const char *const names[] = {
		"first 3", "model.layers.0.a 2 2", "model.layers.0.b 3", "scalar", "last 2", NULL };
	struct layout *l = parsed("fsdp1=2");

	(void)state;
	begin(l, names);
	/* layer 0: 4 and 3 behind one another, parts of 4; the rest: 3 and 2, parts of 3 */
	expect(l, "model.layers.0.a 2 2", "[0:2, 0:2] | ");
	expect(l, "model.layers.0.b 3", " | [0:3]");
	expect(l, "first 3", "[0:3] | ");
	expect(l, "last 2", " | [0:2]");
	expect(l, "scalar", "[] | []");
	layout_free(l);
	l = parsed("fsdp1=2,unit=all");
	begin(l, names);
	/* 12 elements in order: first 0-3, a 3-7, b 7-10, last 10-12 */
	expect(l, "model.layers.0.a 2 2", "[0:2, 0:2]/0-3 | [0:2, 0:2]/3-4");
	layout_free(l);
}

static void test_distributed_optimizer(void **state)
{
	static const char *const names[] = { "exp_avg.decoder.layers.0.mlp.linear_fc2.weight 4 20",
					    "exp_avg.decoder.layers.0.mlp.linear_fc2.bias 100",
					    NULL };
	struct layout *l = parsed("megatron:dp=2,zero=1");

	(void)state;
	begin(l, names);
	/* the last one first, each at a multiple of 64: bias 0-100, weight 128-208; padded to 256
	 */
	expect(l, names[1], "[0:100] | ");
	expect(l, names[0], " | [0:4, 0:20]");
	layout_free(l);
}

static void test_moments(void **state)
{
	static const char *const names[] = {
		"adam.v.layers.0.mlp.up_proj.weight 4 1",
		"exp_avg_sq.layers.0.mlp.up_proj.weight 4 1",
		"layers.0.mlp.up_proj.weight.exp_avg 4 1",
		"optimizer.state.exp_avg.layers.0.mlp.up_proj.weight 4 1",
		"optimizer.state.layers.0.mlp.up_proj.weight.exp_avg_sq 4 1",
		"optim.state.layers.0.mlp.up_proj.weight.momentum_buffer 4 1",
	};

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		expect_of("hf:tp=2,strict", names[i], "[0:2, 0:1] | [2:4, 0:1]");
	expect_of("hf:tp=2,strict", "layers.0.mlp.up_proj.weight.step", "[] | []");
}

static void refuse(const char *spec, const char *sentence)
{
	struct layout *l = NULL;
	struct err e = { 0 };

	assert_int_equal(layout_parse(spec, &l, &e), -EINVAL);
	assert_null(l);
	test_says(e.text, sentence);
}

static void test_wrong_specs(void **state)
{
	(void)state;
	refuse("", "says nothing");
	refuse("hf:", "says nothing");
	refuse("tp", "needs a number");
	refuse("fsdp2", "'fsdp2': it needs a number, as in fsdp2=2, where neither dp nor ep");
	refuse("hf:tp=2,ddp", "'ddp': it needs a number");
	refuse("zero1=1,dp=4", "said twice");
	refuse("tp=0", "at least 1");
	refuse("tp=x", "'x' is not a number");
	refuse("tp=65537", "'65537' is not a number up to 65536");
	refuse("tp=256,dp=256,pp=2", "at most 65536 ranks");
	refuse("llama:tp=2", "no family");
	refuse("tp=2,,dp=2", "no such item");
	refuse("strict=1", "no value");
	refuse("zero=4", "0 to 3");
	refuse("zero1=2,fsdp2=2", "only one of");
	refuse("zero1=2,dp=4", "said twice");
	refuse("tp=3,dp=2,ep=4", "cannot be cut in ep=4");
	refuse("pp=2,stages=1:2:3", "stages= has 3 numbers");
	refuse("pp=2,stages=1:2,layers=4", "stages= has 3 layers");
	refuse("tp=2,order=dp-pp", "once, the fastest first");
	refuse("tp=2,order=tp-xp", "'xp' is none of");
	refuse("tp=2,order=tp-tp-dp", "there twice");
	refuse("unit=half", "none of tensor");
	refuse("dp=2,tp=2,ep=2,etp=1,pp=2,order=tp-pp-dp-ep", "other layers'");
}

static void refuse_tensor(const char *spec, const char *tensor, const char *sentence)
{
	struct shard shards[LAYOUT_SHARDS_MAX];
	struct layout_tensor t = tensor_of(tensor);
	struct layout *l = parsed(spec);
	struct err e = { 0 };
	uint32_t n = 77;

	assert_true(layout_shards(l, &t, 0, shards, &n, &e) < 0);
	assert_int_equal(n, 77);
	test_says(e.text, sentence);
	layout_free(l);
}

static void test_wrong_tensors(void **state)
{
	(void)state;
	refuse_tensor("hf:tp=2,strict", "x 4", "tensor 'x' of shape [4]: no rule");
	refuse_tensor("hf:tp=2", "layers.0.mlp.gate_up_proj.weight 3 2",
		      "dimension 0, cut in 2 over axis 'tp': 3 elements cannot be 2 parts");
	refuse_tensor("hf:tp=2,kv=3", "layers.0.self_attn.k_proj.weight 4 1", "no multiple of 3");
	refuse_tensor("hf:tp=4,kv=3", "layers.0.self_attn.k_proj.weight 6 1",
		      "can be neither cut in 4 parts");
	refuse_tensor("hf:tp=2", "layers.0.mlp.down_proj.weight 4", "no dimension 1");
	refuse_tensor("hf:pp=2", "layers.0.x 4", "is not known");
	refuse_tensor("hf:pp=2,layers=4", "layers.4.x 4", "4 over axis 'pp' is not below 4");
	refuse_tensor("hf:pp=2,layers=4", "layers.99999999999.x 4", "is not below 4");
	refuse_tensor("fsdp1=2", "x 4", "name them all first");
	refuse_tensor("fsdp2=2", "x 18446744073709551615 8", "more than 2^64 bytes");
}

static bool matches(const char *glob, const char *name)
{
	struct layout_number n;

	return layout_glob(glob, name, (uint32_t)strlen(name), &n);
}

static void test_globs(void **state)
{
	struct layout_number n;

	(void)state;
	assert_true(matches("*", ""));
	assert_true(matches("a*b*c", "aXbXbXc"));
	assert_false(matches("a*b*c", "aXcXb"));
	assert_true(matches("?b", "ab"));
	assert_false(matches("?b", "b"));
	assert_false(matches("ab", "abc"));
	assert_false(matches("abc", "ab"));
	assert_true(layout_glob("*layers.#.*", "m.layers.12.x", 13, &n));
	assert_true(n.found && n.value == 12 && n.end == 11);
	assert_false(matches("*layers.#", "layers.1x"));
	assert_false(matches("*1#*", "layers.12"));
	assert_true(matches("*#*#", "a1b2"));
	assert_true(layout_glob("#", "99999999999", 11, &n) && n.value == UINT32_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_replicated),
		cmocka_unit_test(test_tensor_parallel),
		cmocka_unit_test(test_vocabulary),
		cmocka_unit_test(test_fused),
		cmocka_unit_test(test_stages),
		cmocka_unit_test(test_ranks),
		cmocka_unit_test(test_experts),
		cmocka_unit_test(test_dimension_0),
		cmocka_unit_test(test_flat),
		cmocka_unit_test(test_units),
		cmocka_unit_test(test_distributed_optimizer),
		cmocka_unit_test(test_moments),
		cmocka_unit_test(test_wrong_specs),
		cmocka_unit_test(test_wrong_tensors),
		cmocka_unit_test(test_globs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
