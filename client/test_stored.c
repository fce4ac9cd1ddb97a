/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a checkpoint holds, and reads of parts of it: by a handle that has declared nothing, and by
 * one whose own declaration must not matter.
 */
#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "client/test_fake.h"
#include "codec/digest.h"
#include "model/load_plan.h"
#include "model/stored.h"
#include "tests/lib/test.h"

#define ROWS  64
#define COLS  96
#define LEAF  4096u
#define CHUNK 16384u

struct world {
	struct fake *f;
	struct ckpt *c;
	void *declaration;
	size_t declaration_len;
	struct declaration d;
	void *table;
	struct rank_table t;
	uint8_t *image;
	struct digest leaves[64];
	int fd; /* of the image */
	struct writer stored, plan;
	float part[8 * 10];
	char blob[40];
	struct ckpt_tensor want;
	struct ckpt_binding to;
	struct ckpt_stored_blob blobs[2];
	struct ckpt_read_args a;
};

static void store(struct world *w)
{
	struct declaration_builder *b;
	struct blob_entry blob = {.name = "rng", .name_len = 3, .bytes = 40};
	struct shard s = {.name = "w",
			  .name_len = 1,
			  .dtype = CKPT_F32,
			  .trained = true,
			  .global = {2, {ROWS, COLS}},
			  .box = {2, {0}, {ROWS, COLS}}};
	struct shard flat = {.name = "v",
			     .name_len = 1,
			     .dtype = CKPT_I64,
			     .flat = true,
			     .global = {1, {100}},
			     .box = {1, {0}, {100}},
			     .start = 10,
			     .stop = 30};
	struct rank_table_parts p = {.world = 1,
				     .geometry = {LEAF, CHUNK},
				     .blobs = &blob,
				     .n_blobs = 1,
				     .leaves = w->leaves};
	const struct rank_table *tables[1] = {&w->t};
	struct err e = {0};
	size_t len;
	float *to;

	must(declaration_builder_new((struct geometry){LEAF, CHUNK}, &b) == 0);
	must(declaration_add(b, &s, &e) == 0 && declaration_add(b, &flat, &e) == 1);
	must(declaration_finish(b, &w->declaration, &w->declaration_len, &e) == 0);
	declaration_builder_free(b);
	must(declaration_open(w->declaration, w->declaration_len, &w->d, &e) == 0);
	must(blobs_place(&w->d, &blob, 1, &p.image_len) == 0);
	w->image = calloc(1, p.image_len);
	declaration_get(&w->d, 1, &s); /* w, after v */
	to = (float *)(w->image + s.image_offset);
	for (int i = 0; i < ROWS * COLS; i++)
		to[i] = (float)i;
	memset(w->image + blob.image_offset, 'r', 40);
	for (uint64_t at = 0; at < p.image_len; at += LEAF)
		w->leaves[at / LEAF] = digest_of(w->image + at, min_u64(LEAF, p.image_len - at));
	p.declaration = w->declaration;
	p.declaration_len = w->declaration_len;
	must(rank_table_build(&p, &w->table, &len, &e) == 0);
	must(rank_table_open(w->table, len, &w->t, &e) == 0);
	w->fd = memfd_create("stored", MFD_CLOEXEC);
	must(pwrite(w->fd, w->image, p.image_len, 0) == (ssize_t)p.image_len);
	must(stored_encode(tables, 1, &w->stored) == 0);
}

/* What ckptd would answer to w->a: of w rows 3..10, columns 5..14, and the blob. */
static void plan(struct world *w)
{
	struct plan_source in = {.declaration = w->d};
	struct load_source source = {.kind = LOAD_MEMORY,
				     .image_len = w->t.image_len,
				     .geometry = {LEAF, CHUNK},
				     .leaves = w->t.leaves};
	struct blob_entry entry;
	struct load_blob blob = {.name = (char *)"rng", .bytes = 40};
	struct load_plan p = {.sources = &source, .n_sources = 1, .blobs = &blob, .n_blobs = 1};
	struct declaration_builder *b;
	struct declaration wanted;
	struct shard s = {.name = "w",
			  .name_len = 1,
			  .dtype = CKPT_F32,
			  .global = {2, {ROWS, COLS}},
			  .box = {2, {3, 5}, {8, 10}}};
	struct err e = {0};
	void *bytes;
	size_t len;

	must(rank_table_blob(&w->t, 0, &entry) == 0);
	blob.image_offset = entry.image_offset;
	must(declaration_builder_new((struct geometry){LEAF, CHUNK}, &b) == 0);
	must(declaration_add(b, &s, &e) == 0);
	must(declaration_finish(b, &bytes, &len, &e) == 0);
	must(declaration_open(bytes, len, &wanted, &e) == 0);
	must(plan_make(&in, 1, &wanted, false, NULL, &p.plan, &e) == 0);
	must(load_plan_encode(&p, &w->plan) == 0);
	plan_fini(&p.plan);
	declaration_builder_free(b);
	alloc_free(bytes);
}

static int setup(void **state)
{
	static const uint64_t global[2] = {ROWS, COLS}, offset[2] = {3, 5}, shape[2] = {8, 10};
	struct world *w = calloc(1, sizeof(*w));

	w->f = fake_new();
	store(w);
	plan(w);
	w->f->stored = w->stored.buf;
	w->f->stored_len = w->stored.len;
	w->f->offers[0] = (struct fake_offer){.plan = w->plan.buf,
					      .plan_len = w->plan.len,
					      .fds = &w->fd,
					      .n_fds = 1,
					      .step = 12,
					      .attempt = 5,
					      .tier = CKPT_TIER_MEMORY};
	w->f->n_offers = 1;
	w->c = fake_open(w->f);
	w->want = (struct ckpt_tensor){.size = sizeof(w->want),
				       .name = "w",
				       .dtype = CKPT_F32,
				       .ndim = 2,
				       .global_shape = global,
				       .offset = offset,
				       .shape = shape};
	w->to = (struct ckpt_binding){
		.ptr = w->part, .device = CKPT_HOST, .dtype = CKPT_F32, .bytes = sizeof(w->part)};
	w->blobs[0] = (struct ckpt_stored_blob){.name = "rng", .data = w->blob, .bytes = 40};
	w->a = (struct ckpt_read_args){.size = sizeof(w->a),
				       .wants = &w->want,
				       .tensors = &w->to,
				       .n_tensors = 1,
				       .blobs = w->blobs,
				       .n_blobs = 1,
				       .timeout_ms = 20000};
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	ckpt_close(w->c);
	fake_free(w->f);
	alloc_free(w->declaration);
	alloc_free(w->table);
	free(w->image);
	close(w->fd);
	writer_free(&w->stored);
	writer_free(&w->plan);
	free(w);
	return 0;
}

static struct ckpt_stored *open_stored(struct world *w)
{
	struct ckpt_stored *s = NULL;

	assert_int_equal(ckpt_stored_open(w->c, CKPT_LATEST, 20000, &s), CKPT_OK);
	return s;
}

static void test_what_is_there(void **state)
{
	struct world *w = *state;
	struct ckpt_stored *s = open_stored(w);
	struct ckpt_stored_shard h = {.size = sizeof(h)};
	struct ckpt_stored_blob b;
	struct ckpt_info info;

	assert_int_equal(ckpt_stored_info(s, &info), CKPT_OK);
	assert_int_equal(info.step, 12);
	assert_int_equal(info.attempt[0], 5);
	assert_int_equal(ckpt_stored_shard_at(s, 0, &h), CKPT_OK);
	assert_string_equal(h.name, "v");
	assert_int_equal(h.dtype, CKPT_I64);
	assert_int_equal(h.flags, CKPT_FLAT);
	assert_int_equal(h.start, 10);
	assert_int_equal(h.stop, 30);
	assert_int_equal(h.bytes, 160);
	assert_int_equal(ckpt_stored_shard_at(s, 1, &h), CKPT_OK);
	assert_string_equal(h.name, "w");
	assert_int_equal(h.rank, 0);
	assert_int_equal(h.ndim, 2);
	assert_int_equal(h.shape[1], COLS);
	assert_int_equal(h.flags, CKPT_TRAINED);
	assert_int_equal(ckpt_stored_shard_at(s, 2, &h), CKPT_ENOTFOUND);
	h.size = 0;
	assert_int_equal(ckpt_stored_shard_at(s, 0, &h), -EINVAL);
	assert_int_equal(ckpt_stored_blob_at(s, 0, &b), CKPT_OK);
	assert_string_equal(b.name, "rng");
	assert_int_equal(b.bytes, 40);
	assert_null(b.data);
	assert_int_equal(ckpt_stored_blob_at(s, 1, &b), CKPT_ENOTFOUND);
	ckpt_stored_close(s);
	ckpt_stored_close(NULL);
	assert_int_equal(fake_count(w->f, CKPT__REQUEST__BODY_DECLARE), 0);
}

static void check_part(struct world *w)
{
	for (int i = 0; i < 8; i++)
		for (int k = 0; k < 10; k++)
			assert_true(w->part[i * 10 + k] == (float)((3 + i) * COLS + 5 + k));
	for (int i = 0; i < 40; i++)
		assert_int_equal(w->blob[i], 'r');
	memset(w->part, 0, sizeof(w->part));
	memset(w->blob, 0, sizeof(w->blob));
}

static void test_read(void **state)
{
	struct world *w = *state;
	struct ckpt_stored *s = open_stored(w);
	struct ckpt_loaded got = {.size = sizeof(got)};
	struct read_wants wants;
	struct shard h;
	struct err e = {0};

	assert_int_equal(ckpt_stored_read(s, &w->a, &got), CKPT_OK);
	check_part(w);
	assert_int_equal(got.step, 12);
	assert_int_equal(got.tier, CKPT_TIER_MEMORY);
	assert_int_equal(got.bytes, sizeof(w->part));
	assert_int_equal(w->f->read_step, 12);
	assert_int_equal(w->f->read_attempt, 5);
	assert_false(w->f->ends[0].complete); /* the epoch is not entered by looking */
	assert_int_equal(read_wants_decode(w->f->wants, w->f->wants_len, &wants, &e), 0);
	declaration_get(&wants.declaration, 0, &h);
	assert_int_equal(h.box.offset[1], 5);
	assert_int_equal(wants.n_blobs, 1);
	assert_memory_equal(wants.blobs[0].name, "rng", 3);
	read_wants_fini(&wants);
	w->a.flags = CKPT_RESUME;
	assert_int_equal(ckpt_stored_read(s, &w->a, NULL), CKPT_OK);
	assert_true(w->f->ends[1].complete);
	ckpt_stored_close(s);
}

/* Tensors and blobs go to memory of their own. */
static void test_targets_that_overlap(void **state)
{
	struct world *w = *state;
	struct ckpt_stored *s = open_stored(w);
	int64_t strides[2] = {0, 4};

	w->blobs[0].data = (char *)w->part + sizeof(w->part) - 1;
	assert_int_equal(ckpt_stored_read(s, &w->a, NULL), -EINVAL);
	assert_non_null(strstr(ckpt_last_error(NULL), "'w' and 'rng' are to be loaded into "));
	w->blobs[0].data = (void *)(uintptr_t)-8;
	assert_int_equal(ckpt_stored_read(s, &w->a, NULL), -EINVAL);
	assert_non_null(strstr(ckpt_last_error(NULL), "are not in memory"));
	w->blobs[0].data = w->blob;
	w->to.strides = strides;
	assert_int_equal(ckpt_stored_read(s, &w->a, NULL), -EINVAL);
	assert_non_null(strstr(ckpt_last_error(NULL), "ndim of strides is 0, declared is 2"));
	w->to.ndim = 2;
	assert_int_equal(ckpt_stored_read(s, &w->a, NULL), -EINVAL);
	assert_non_null(strstr(ckpt_last_error(NULL), "several of its elements are in one place"));
	assert_int_equal(w->f->next_offer, 0); /* nothing was asked for */
	w->to.strides = NULL;
	assert_int_equal(ckpt_stored_read(s, &w->a, NULL), CKPT_OK);
	check_part(w);
	ckpt_stored_close(s);
}

/* The handle's own declaration stays what it is, and saves go on. */
static void test_beside_a_declaration(void **state)
{
	struct world *w = *state;
	float own[6] = {0};
	struct ckpt_binding b = {
		.ptr = own, .device = CKPT_HOST, .dtype = CKPT_F32, .bytes = sizeof(own)};
	struct ckpt_save_args save = {.size = sizeof(save),
				      .step = 1,
				      .tensors = &b,
				      .n_tensors = 1,
				      .timeout_ms = 20000,
				      .flags = CKPT_WAIT_CREDIT};
	struct ckpt_stored *s;

	fake_declare(w->c, "own", 1, (uint64_t[]){6});
	assert_int_equal(ckpt_save(w->c, &save), CKPT_OK);
	s = open_stored(w);
	assert_int_equal(ckpt_stored_read(s, &w->a, NULL), CKPT_OK);
	check_part(w);
	ckpt_stored_close(s);
	save.step = 2;
	assert_int_equal(ckpt_save(w->c, &save), CKPT_OK);
	assert_int_equal(w->f->n_seals, 2);
}

static void test_damage_is_not_placed(void **state)
{
	struct world *w = *state;
	struct ckpt_stored *s = open_stored(w);
	uint8_t bad = 0xee;

	/* Every try is offered the same bad copy. */
	must(pwrite(w->fd, &bad, 1, (off_t)w->t.image_len - 1) == 1);
	assert_int_equal(ckpt_stored_read(s, &w->a, NULL), CKPT_ECORRUPT);
	assert_true(w->f->ends[0].failed);
	ckpt_stored_close(s);
}

static void test_refusals(void **state)
{
	struct world *w = *state;
	struct ckpt_stored *s = open_stored(w), *none = NULL;
	struct ckpt_read_args a = w->a;

	a.size = 4;
	assert_int_equal(ckpt_stored_read(s, &a, NULL), -EINVAL);
	a = w->a;
	a.flags = 64;
	assert_int_equal(ckpt_stored_read(s, &a, NULL), -EINVAL);
	a = w->a;
	w->to.bytes--;
	assert_int_equal(ckpt_stored_read(s, &a, NULL), -EINVAL);
	w->to.bytes++;
	w->blobs[0].bytes = 39; /* not what ckptd says it has */
	assert_int_equal(ckpt_stored_read(s, &a, NULL), CKPT_EPROTO);
	w->blobs[0].bytes = 40;
	w->blobs[0].name = "";
	assert_int_equal(ckpt_stored_read(s, &a, NULL), -EINVAL);
	ckpt_stored_close(s);
	FAKE_SET(w->f, w->f->stored, NULL);
	assert_int_equal(ckpt_stored_open(w->c, 3, 20000, &none), CKPT_NOTHING);
	assert_null(none);
	FAKE_SET(w->f, w->f->stored, "CKPTHELD and then nothing that is one");
	FAKE_SET(w->f, w->f->stored_len, 30);
	assert_int_equal(ckpt_stored_open(w->c, 3, 20000, &none), CKPT_EPROTO);
	assert_null(none);
}

static enum fake_action too_old(struct fake *f, const Ckpt__Request *q, void *arg)
{
	(void)f;
	(void)arg;
	return q->body_case == CKPT__REQUEST__BODY_STORED ? FAKE_REFUSE : FAKE_DO;
}

static void test_older_ckptd(void **state)
{
	struct world *w = *state;
	struct ckpt_stored *none = NULL;

	fake_lock(w->f);
	w->f->hook = too_old;
	w->f->refuse_code = CKPT_EVERSION;
	fake_unlock(w->f);
	assert_int_equal(ckpt_stored_open(w->c, 3, 20000, &none), CKPT_EVERSION);
}

static enum fake_action drop_once(struct fake *f, const Ckpt__Request *q, void *arg)
{
	int *left = arg;

	(void)f;
	if (q->body_case != CKPT__REQUEST__BODY_READ && q->body_case != CKPT__REQUEST__BODY_STORED)
		return FAKE_DO;
	return (*left)-- > 0 ? FAKE_DO_AND_DROP : FAKE_DO;
}

static void test_answers_are_lost(void **state)
{
	struct world *w = *state;
	struct ckpt_stored *s = NULL;
	int left = 1;

	fake_lock(w->f);
	w->f->hook = drop_once;
	w->f->hook_arg = &left;
	fake_unlock(w->f);
	assert_true(ckpt_stored_open(w->c, CKPT_LATEST, 20000, &s) >= 0);
	FAKE_SET(w->f, left, 1);
	assert_true(ckpt_stored_read(s, &w->a, NULL) >= 0);
	check_part(w);
	ckpt_stored_close(s);
}

/* More than fits a message goes beside it. */
static void test_many(void **state)
{
	enum { MANY = 3000 };
	struct world *w = *state;
	struct ckpt_stored *s = open_stored(w);
	struct ckpt_stored_blob *many = calloc(MANY, sizeof(*many));
	struct read_wants wants;
	struct err e = {0};

	for (int i = 0; i < MANY; i++)
		many[i] = (struct ckpt_stored_blob){.name = "a name of some length", .rank = i};
	w->a.blobs = many;
	w->a.n_blobs = MANY;
	assert_int_equal(ckpt_stored_read(s, &w->a, NULL), CKPT_EPROTO); /* the plan has one */
	assert_int_equal(read_wants_decode(w->f->wants, w->f->wants_len, &wants, &e), 0);
	assert_int_equal(wants.n_blobs, MANY);
	assert_int_equal(wants.blobs[MANY - 1].rank, MANY - 1);
	read_wants_fini(&wants);
	ckpt_stored_close(s);
	free(many);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_what_is_there),
		TEST(test_read),
		TEST(test_targets_that_overlap),
		TEST(test_beside_a_declaration),
		TEST(test_damage_is_not_placed),
		TEST(test_refusals),
		TEST(test_older_ckptd),
		TEST(test_answers_are_lost),
		TEST(test_many),
	};

	return cmocka_run_group_tests_name("stored", tests, NULL, NULL);
}
