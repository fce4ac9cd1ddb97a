/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saves: bytes at the right places, credits, skips, blobs, and no page fault.
 *
 * The oracle computes the image from the declaration's rules by itself: shards in declared order,
 * each at a multiple of 64, of 4096 from a leaf's size on; blobs behind them at multiples of 64.
 */
#include <config.h>

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "client/client.h"
#include "client/test_fake.h"
#include "tests/lib/test.h"

#define TENSORS 6

struct world {
	struct fake *f;
	struct ckpt *c;
	uint8_t *data[TENSORS];
	struct ckpt_binding b[TENSORS];
	int64_t strides[3];
	struct ckpt_save_args a;
	uint64_t offset[TENSORS]; /* in the image, by the oracle */
	uint8_t *packed[TENSORS]; /* the shard's bytes as they should stand there */
	uint64_t image_bytes;
};

/* Bytes of each tensor: below and above a leaf (4096), a scalar, an empty one, a strided one. */
static const struct {
	const char *name;
	int dtype, ndim;
	uint64_t shape[3], bytes;
} kinds[TENSORS] = {
	{ "a", CKPT_F32, 1, { 25 }, 100 },
	{ "b", CKPT_BF16, 2, { 100, 30 }, 6000 },
	{ "scalar", CKPT_I64, 0, { 0 }, 8 },
	{ "empty", CKPT_F32, 2, { 0, 5 }, 0 },
	{ "strided", CKPT_F32, 3, { 4, 5, 6 }, 480 },
	{ "last", CKPT_U8, 1, { 9001 }, 9001 },
};

static void place(struct world *w)
{
	uint64_t end = 0;

	for (int i = 0; i < TENSORS; i++) {
		uint64_t to = kinds[i].bytes >= 4096 ? 4096 : 64;

		end = (end + to - 1) / to * to;
		w->offset[i] = end;
		end += kinds[i].bytes;
	}
	w->image_bytes = end;
}

static void new_values(struct world *w, uint64_t seed)
{
	for (int i = 0; i < TENSORS; i++) {
		test_fill(w->data[i], kinds[i].bytes * 4 + 64, seed * 100 + (uint64_t)i);
		memcpy(w->packed[i], w->data[i], kinds[i].bytes);
	}
	/* Element (i, j, k) lies at i * 160 + j * 4 + k * 24 bytes: transposed, with a gap. */
	for (int i = 0; i < 4; i++)
		for (int j = 0; j < 5; j++)
			for (int k = 0; k < 6; k++)
				memcpy(w->packed[4] + ((i * 5 + j) * 6 + k) * 4,
				       w->data[4] + i * 160 + j * 4 + k * 24, 4);
}

static void declare_all(struct world *w)
{
	for (int i = 0; i < TENSORS; i++) {
		struct ckpt_tensor t = { .size = sizeof(t), .name = kinds[i].name,
					 .dtype = kinds[i].dtype, .ndim = kinds[i].ndim,
					 .global_shape = kinds[i].shape };

		must(ckpt_declare(w->c, &t) == i);
	}
}

static int setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));

	w->f = fake_new();
	w->c = fake_open(w->f);
	place(w);
	declare_all(w);
	for (int i = 0; i < TENSORS; i++) {
		w->data[i] = calloc(1, kinds[i].bytes * 4 + 64);
		w->packed[i] = calloc(1, kinds[i].bytes + 1);
		w->b[i] = (struct ckpt_binding){ .ptr = w->data[i], .device = CKPT_HOST,
						 .dtype = kinds[i].dtype, .bytes = kinds[i].bytes };
	}
	w->b[3].ptr = NULL; /* no elements: no memory */
	w->strides[0] = 160;
	w->strides[1] = 4;
	w->strides[2] = 24;
	w->b[4].strides = w->strides;
	w->b[4].ndim = 3;
	w->a = (struct ckpt_save_args){ .size = sizeof(w->a), .tensors = w->b, .n_tensors = TENSORS,
					.timeout_ms = 10000 };
	new_values(w, 1);
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	ckpt_close(w->c);
	fake_free(w->f);
	for (int i = 0; i < TENSORS; i++) {
		free(w->data[i]);
		free(w->packed[i]);
	}
	free(w);
	return 0;
}

/* The last sealed image is what the oracle says, with zeros in every gap. */
static void check_image(struct world *w, uint32_t n_seals)
{
	struct fake_seal *s;
	uint64_t end = 0;

	fake_lock(w->f);
	assert_int_equal(w->f->n_seals, n_seals);
	s = &w->f->seals[n_seals - 1];
	for (int i = 0; i < TENSORS; i++) {
		for (; end < w->offset[i]; end++)
			assert_int_equal(s->image[end], 0);
		assert_memory_equal(s->image + end, w->packed[i], kinds[i].bytes);
		end += kinds[i].bytes;
	}
	for (uint32_t i = 0; i < s->n_blobs; i++) {
		uint64_t to = i == 0 ? 4096 : 64, at = (end + to - 1) / to * to;

		assert_int_equal(s->blobs[i].offset, at);
		for (; end < at; end++)
			assert_int_equal(s->image[end], 0);
		end += s->blobs[i].bytes;
	}
	assert_int_equal(s->image_len, end);
	for (; end % 4096; end++)
		assert_int_equal(s->image[end], 0);
	fake_unlock(w->f);
}

static void test_bytes_land_where_they_belong(void **state)
{
	struct world *w = *state;
	struct ckpt_stats stats = { .size = sizeof(stats) };

	for (uint32_t step = 1; step <= 5; step++) { /* every slot is used again */
		new_values(w, step);
		w->a.step = step;
		assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
		check_image(w, step);
		assert_int_equal(w->f->seals[step - 1].step, step);
		assert_int_equal(w->f->seals[step - 1].epoch, 1);
		assert_int_equal(w->f->seals[step - 1].try, 0);
		assert_int_equal(w->f->seals[step - 1].credit, step);
	}
	assert_int_equal(ckpt_stats(w->c, &stats), 0);
	assert_int_equal(stats.saves, 5);
	assert_int_equal(stats.last_bytes, w->image_bytes);
	assert_true(stats.last_stall_ns > 0);
}

static void test_blobs(void **state)
{
	struct world *w = *state;
	uint8_t bytes[3000];
	struct ckpt_blob blobs[3] = { { "rng", bytes, 1000 }, { "none", NULL, 0 },
				      { "cursor", bytes + 1000, 1 } };
	struct fake_seal *s;

	assert_int_equal(ckpt_prepare(w->c, 3000), 0);
	test_fill(bytes, sizeof(bytes), 9);
	w->a.blobs = blobs;
	w->a.n_blobs = 3;
	/* Twice through all slots, the blobs shrinking: what stood there before is zeroed. */
	for (uint32_t step = 1; step <= 6; step++) {
		blobs[0].bytes = 1000 - step * 130;
		w->a.step = step;
		assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
		check_image(w, step);
		s = &w->f->seals[step - 1];
		assert_int_equal(s->n_blobs, 3);
		assert_string_equal(s->blobs[0].name, "rng");
		assert_string_equal(s->blobs[2].name, "cursor");
		assert_memory_equal(s->image + s->blobs[0].offset, bytes, blobs[0].bytes);
		assert_int_equal(s->image[s->blobs[2].offset], bytes[1000]);
	}
	w->a.step = 7;
	blobs[0].bytes = 5u << 20;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_ENOSPACE);
	assert_non_null(strstr(ckpt_last_error(NULL), "ckpt_prepare()"));
	assert_non_null(strstr(ckpt_last_error(NULL), "the blobs of step 7 need 52"));
	assert_non_null(strstr(ckpt_last_error(NULL), "prepare(blob_space=52"));
	blobs[0].bytes = 1;
	blobs[1].name = "rng";
	assert_int_equal(ckpt_save(w->c, &w->a), -EINVAL);
	assert_non_null(strstr(ckpt_last_error(NULL), "given twice"));
	blobs[1].name = "";
	assert_int_equal(ckpt_save(w->c, &w->a), -EINVAL);
	blobs[1].name = "rng\xc3";
	assert_int_equal(ckpt_save(w->c, &w->a), -EINVAL);
	assert_non_null(strstr(ckpt_last_error(NULL), "blob 1: its name of 4 bytes is not UTF-8"));
	blobs[1].name = "none";
	w->a.step = CKPT_LATEST;
	assert_int_equal(ckpt_save(w->c, &w->a), -EINVAL);
	assert_non_null(strstr(ckpt_last_error(NULL), "no step that can be saved"));
	assert_int_equal(ckpt_skip(w->c, CKPT_LATEST, "no"), -EINVAL);
	w->a.step = 7;
	blobs[2].data = NULL;
	assert_int_equal(ckpt_save(w->c, &w->a), -EINVAL);
	w->a.n_blobs = 5000;
	assert_int_equal(ckpt_save(w->c, &w->a), -E2BIG);
	assert_int_equal(w->f->n_seals, 6);
}

static void test_names_that_fill_the_message(void **state)
{
	struct world *w = *state;
	static char names[1000][CKPT_NAME_MAX + 1];
	static struct ckpt_blob blobs[1000];

	for (int i = 0; i < 1000; i++) {
		memset(names[i], 'n', CKPT_NAME_MAX);
		memcpy(names[i], (char[]){ (char)('0' + i / 100), (char)('0' + i / 10 % 10),
					   (char)('0' + i % 10) }, 3);
		blobs[i] = (struct ckpt_blob){ .name = names[i] };
	}
	w->a.blobs = blobs;
	w->a.step = 1;
	w->a.n_blobs = 1000;
	assert_int_equal(ckpt_save(w->c, &w->a), -E2BIG);
	w->a.n_blobs = 50;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	for (int i = 0; i < 1000; i++)
		names[i][10] = '\0';
	w->a.step = 2;
	w->a.n_blobs = 1000;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	assert_int_equal(w->f->seals[1].n_blobs, 1000);
}

static void test_bindings_that_do_not_fit(void **state)
{
	struct world *w = *state;
	struct ckpt_binding good = w->b[1];

	w->a.step = 1;
	w->b[1].dtype = CKPT_F32;
	assert_int_equal(ckpt_save(w->c, &w->a), -EINVAL);
	assert_non_null(strstr(ckpt_last_error(NULL), "'b' (binding 1): dtype"));
	w->b[1] = good;
	w->b[1].bytes--;
	assert_int_equal(ckpt_save(w->c, &w->a), -EINVAL);
	assert_non_null(strstr(ckpt_last_error(NULL), "bytes is 5999, declared is 6000"));
	w->b[1] = good;
	w->b[1].ptr = NULL;
	assert_int_equal(ckpt_save(w->c, &w->a), -EINVAL);
	w->b[1] = good;
	w->a.n_tensors--;
	assert_int_equal(ckpt_save(w->c, &w->a), -EINVAL);
	assert_non_null(strstr(ckpt_last_error(NULL), "5 tensors are bound, 6 are declared"));
	w->a.n_tensors++;
	w->a.flags = 64;
	assert_int_equal(ckpt_save(w->c, &w->a), -EINVAL);
	w->a.flags = 0;
	w->a.size = 3;
	assert_int_equal(ckpt_save(w->c, &w->a), -EINVAL);
	w->a.size = offsetof(struct ckpt_save_args, blobs); /* an older caller */
	w->a.n_blobs = 99;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	check_image(w, 1);
}

static void refused(struct world *w, const char *why)
{
	assert_int_equal(ckpt_save(w->c, &w->a), -EINVAL);
	if (!strstr(ckpt_last_error(NULL), why))
		fail_msg("'%s' does not say '%s'", ckpt_last_error(NULL), why);
	assert_int_equal(w->f->n_seals, 0);
}

/* Strides of another number of dimensions would be read beyond their end. */
static void test_strides_that_do_not_fit(void **state)
{
	struct world *w = *state;
	struct ckpt_binding good = w->b[4];
	int64_t strides[3] = {160, 4, 24};

	w->a.step = 1;
	w->b[4].ndim = 0; /* a program that was built before there was an ndim */
	refused(w, "(binding 4): ndim of strides is 0, declared is 3");
	w->b[4].ndim = 1;
	refused(w, "(binding 4): ndim of strides is 1, declared is 3");
	w->b[4] = good;
	w->b[4].strides = strides;
	for (int i = 0; i < 2; i++) { /* down beyond address 0, and up beyond the last one */
		strides[0] = i ? INT64_MAX / 2 : INT64_MIN / 2;
		refused(w, "are not in memory");
		strides[0] = i ? INT64_MAX : INT64_MIN;
		refused(w, "are not in memory");
	}
	strides[0] = -(int64_t)(uintptr_t)good.ptr;
	refused(w, "are not in memory");
	w->b[4] = good;
	w->b[1].ptr = (void *)(uintptr_t)-16;
	refused(w, "are not in memory");
	w->b[1].ptr = w->data[1];
	w->b[1].device = -2;
	refused(w, "there is no device -2");
	w->b[1].device = CKPT_HOST;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	check_image(w, 1);
}

static void test_nothing_to_save(void **state)
{
	struct fake *f = fake_new();
	struct ckpt *c = fake_open(f);
	struct ckpt_blob blob = {"rng", "abc", 3};
	struct ckpt_save_args a = {.size = sizeof(a), .step = 1, .timeout_ms = 10000};
	const uint64_t shape = 3;

	(void)state;
	assert_int_equal(ckpt_save(c, &a), -EINVAL);
	assert_non_null(strstr(ckpt_last_error(NULL), "declare each tensor"));
	assert_int_equal(ckpt_save_begin(c, &a), -EINVAL);
	fake_declare(c, "late", 1, &shape); /* the declaration has not ended by that */
	ckpt_close(c);
	c = fake_open(f);
	a.blobs = &blob;
	a.n_blobs = 1;
	assert_int_equal(ckpt_save(c, &a), CKPT_OK);
	ckpt_close(c);
	fake_free(f);
}

static void test_no_credit_is_a_skip(void **state)
{
	struct world *w = *state;
	struct ckpt_stats stats = { .size = sizeof(stats) };

	FAKE_SET(w->f, w->f->grant, false);
	w->a.step = 5;
	w->a.timeout_ms = 20;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_SKIPPED);
	w->a.timeout_ms = CKPT_DEFAULT_TIMEOUT;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_SKIPPED);
	fake_lock(w->f);
	assert_int_equal(w->f->n_skips, 2);
	assert_int_equal(w->f->skips[0].step, 5);
	assert_int_equal(w->f->skips[0].credit, 0);
	assert_int_equal(w->f->skips[0].try, 0);
	assert_int_equal(w->f->skips[1].try, 1);
	fake_give_credit(w->f);
	fake_unlock(w->f);
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	assert_int_equal(w->f->seals[0].try, 2);
	w->a.step = 6; /* the one credit is used */
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_SKIPPED);
	assert_int_equal(w->f->skips[2].try, 0);
	assert_int_equal(ckpt_stats(w->c, &stats), 0);
	assert_int_equal(stats.saves, 1);
	assert_int_equal(stats.skipped, 3);
}

static enum fake_action silent(struct fake *f, const Ckpt__Request *q, void *arg)
{
	(void)f;
	return (int)q->body_case == *(int *)arg ? FAKE_SILENCE : FAKE_DO;
}

static uint64_t ms_of_save(struct world *w, int *ret)
{
	uint64_t start = clock_ns();

	w->a.step++;
	*ret = ckpt_save(w->c, &w->a);
	return (clock_ns() - start) / NS_PER_MS;
}

/* A ckptd that says nothing stalls a save for the save's own timeout: not for the handle's, nor for
 * some second of its own. */
static void test_no_answer_and_no_slots(void **state)
{
	struct world *w = *state;
	static int kind; /* the other thread looks at it until the teardown */
	uint64_t took;
	int r;

	FAKE_SET(w->f, w->f->grant, false);
	w->c->who.timeout_ms = 5000;
	FAKE_SET(w->f, kind, CKPT__REQUEST__BODY_DECLARE);
	FAKE_SET(w->f, w->f->hook_arg, &kind);
	FAKE_SET(w->f, w->f->hook, silent);
	w->a.timeout_ms = 200;
	for (int i = 0; i < 3; i++) {
		w->a.flags = i % 2 ? CKPT_WAIT_CREDIT : 0;
		took = ms_of_save(w, &r);
		assert_int_equal(r, CKPT_ETIMEDOUT);
		assert_true(took < 2500);
	}
	/* There are slots and no credit, and nobody hears of the skip. */
	FAKE_SET(w->f, w->f->hook, NULL);
	assert_int_equal(ckpt_prepare(w->c, 0), 0);
	FAKE_SET(w->f, kind, CKPT__REQUEST__BODY_SKIP);
	FAKE_SET(w->f, w->f->hook, silent);
	w->a.flags = 0;
	took = ms_of_save(w, &r);
	assert_int_equal(r, CKPT_SKIPPED); /* it has waited for its first credit */
	assert_true(took < 900);
	took = ms_of_save(w, &r);
	assert_int_equal(r, CKPT_ETIMEDOUT);
	assert_true(took < 900);
	w->a.flags = CKPT_WAIT_CREDIT;
	took = ms_of_save(w, &r);
	assert_int_equal(r, CKPT_SKIPPED);
	assert_true(took < 900);
}

/* Nobody called ckpt_prepare(), or it failed: a save prepares in its own time, and what is not done
 * by then goes on. */
static void test_saves_prepare_within_their_time(void **state)
{
	struct world *w = *state;
	uint32_t prepares;
	uint64_t took;
	int r;

	for (int given = 0; given < 2; given++) {
		w->c->who.timeout_ms = given ? 300 : 5000;
		FAKE_SET(w->f, w->f->late_slots, true);
		prepares = fake_count(w->f, CKPT__REQUEST__BODY_PREPARE);
		if (given) {
			uint64_t bytes = 3u << 20;

			assert_int_equal(ckpt_prepare(w->c, bytes), CKPT_ETIMEDOUT);
			assert_non_null(strstr(ckpt_last_error(NULL), "slots"));
			fake_lock(w->f);
			assert_true(w->f->blob_bytes > bytes); /* what saves go on with */
			fake_unlock(w->f);
			w->c->who.timeout_ms = 5000;
		}
		w->a.timeout_ms = 300;
		for (int i = 0; i < 3; i++) {
			took = ms_of_save(w, &r);
			assert_int_equal(r, CKPT_SKIPPED);
			assert_true(took < 2500);
		}
		assert_int_equal(fake_count(w->f, CKPT__REQUEST__BODY_PREPARE), prepares + 1);
		assert_int_equal(fake_count(w->f, CKPT__REQUEST__BODY_DECLARE), given + 1);
		fake_lock(w->f);
		fake_answer_prepare(w->f);
		fake_unlock(w->f);
		w->a.timeout_ms = 10000;
		w->a.flags = CKPT_WAIT_CREDIT; /* the first save has waited */
		assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
		w->a.flags = 0;
		check_image(w, (uint32_t)given + 1);
		ckpt_close(w->c);
		w->c = fake_open(w->f);
		declare_all(w);
	}
}

static void *credit_later(void *arg)
{
	struct fake *f = arg;

	while (fake_count(f, CKPT__REQUEST__BODY_CREDIT) == 0)
		poll(NULL, 0, 1);
	fake_lock(f);
	fake_give_credit(f);
	fake_unlock(f);
	return NULL;
}

static void test_waiting_for_a_credit(void **state)
{
	struct world *w = *state;
	pthread_t t;

	FAKE_SET(w->f, w->f->grant, false);
	assert_int_equal(ckpt_prepare(w->c, 0), CKPT_OK);
	w->a.flags = CKPT_WAIT_CREDIT;
	w->a.step = 1;
	w->a.timeout_ms = 20;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_SKIPPED);
	w->a.timeout_ms = 0; /* asks only */
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_SKIPPED);
	fake_lock(w->f);
	assert_int_equal(w->f->n_skips, 2);
	w->f->n_requests[CKPT__REQUEST__BODY_CREDIT] = 0;
	fake_unlock(w->f);
	must(pthread_create(&t, NULL, credit_later, w->f) == 0);
	w->a.timeout_ms = 20000;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	pthread_join(t, NULL);
	check_image(w, 1);
}

/* Nothing was saved yet that could be had instead: the first save waits, without being asked to. */
static void test_the_first_save_waits(void **state)
{
	struct world *w = *state;
	pthread_t t;

	FAKE_SET(w->f, w->f->grant, false);
	must(pthread_create(&t, NULL, credit_later, w->f) == 0);
	w->a.step = 1;
	w->a.timeout_ms = 20000;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	pthread_join(t, NULL);
	check_image(w, 1);
	w->a.step = 2;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_SKIPPED); /* at once */
}

/* It does so once, also where it waited in vain. */
static void test_the_first_save_waits_once(void **state)
{
	struct world *w = *state;
	uint64_t took;
	int r;

	FAKE_SET(w->f, w->f->grant, false);
	assert_int_equal(ckpt_prepare(w->c, 0), CKPT_OK);
	w->a.timeout_ms = 200;
	took = ms_of_save(w, &r);
	assert_int_equal(r, CKPT_SKIPPED);
	assert_true(took >= 200);
	w->a.timeout_ms = 20000;
	took = ms_of_save(w, &r);
	assert_int_equal(r, CKPT_SKIPPED);
	assert_true(took < 10000);
}

static void set_block(struct world *w, enum credit_block why, uint32_t rank)
{
	fake_lock(w->f);
	atomic_store(&w->f->page->blocked, why);
	atomic_store(&w->f->page->blocked_rank, rank);
	fake_unlock(w->f);
}

static void test_why_a_save_is_skipped(void **state)
{
	struct ckpt_stats s = {.size = sizeof(s)};
	struct world *w = *state;
	int code;

	FAKE_SET(w->f, w->f->grant, false);
	assert_int_equal(ckpt_prepare(w->c, 0), CKPT_OK);
	w->a.timeout_ms = -3;
	assert_int_equal(ckpt_save(w->c, &w->a), -EINVAL);
	assert_non_null(strstr(ckpt_last_error(NULL), "a timeout of -3 ms"));
	assert_int_equal(ckpt_skip(w->c, 1, "no time"), CKPT_OK);
	set_block(w, BLOCK_SLOTS, 7);
	w->a.step = 2;
	w->a.timeout_ms = 20;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_SKIPPED);
	assert_non_null(strstr(ckpt_last_error(&code), "rank 7 has no free slot"));
	assert_int_equal(code, CKPT_SKIPPED);
	assert_int_equal(ckpt_stats(w->c, &s), 0);
	assert_int_equal(s.skipped, 2);
	assert_int_equal(s.skipped_by[CKPT_SKIP_CALLER], 1);
	assert_int_equal(s.skipped_by[CKPT_SKIP_FULL], 1);
	assert_int_equal(s.skip_reason, CKPT_SKIP_FULL);
	assert_int_equal(s.skip_rank, 7);
	assert_int_equal(s.skip_step, 2);
	while (fake_count(w->f, CKPT__REQUEST__BODY_SKIP) < 2)
		poll(NULL, 0, 1); /* its time was over: the save did not wait for the answer */
	assert_int_equal(w->f->skips[1].kind, CKPT_SKIP_FULL);
	assert_non_null(strstr(w->f->skips[1].reason, "rank 7 has no free slot"));
	set_block(w, BLOCK_FILLING, 7);
	w->a.step = 3;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_SKIPPED);
	assert_non_null(strstr(ckpt_last_error(NULL), "rank 7 has memory for its saves that is"));
	/* Nothing is in its way: that is a reason of its own, not none. */
	set_block(w, BLOCK_NONE, 0);
	w->a.step = 4;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_SKIPPED);
	assert_int_equal(ckpt_stats(w->c, &s), 0);
	assert_int_equal(s.skip_reason, CKPT_SKIP_PENDING);
	assert_int_equal(s.skipped_by[CKPT_SKIP_NONE], 0);
	assert_int_equal(s.skipped_by[CKPT_SKIP_SLOTS], 1);
}

/* The credit that is there is for a later step: all ranks save that one. */
static void test_a_credit_for_a_later_step(void **state)
{
	struct world *w = *state;
	uint64_t took;
	int r;

	assert_int_equal(ckpt_prepare(w->c, 0), CKPT_OK);
	fake_lock(w->f);
	atomic_store(&w->f->page->credit_from, 10);
	fake_unlock(w->f);
	w->a.flags = CKPT_WAIT_CREDIT; /* in vain: it does not wait for what never comes */
	w->a.step = 8;
	w->a.timeout_ms = 20000;
	took = ms_of_save(w, &r);
	assert_int_equal(r, CKPT_SKIPPED);
	assert_true(took < 10000);
	test_says(ckpt_last_error(NULL), "another rank is ahead and has skipped this step; all "
					 "ranks skip it then, and the next step that all save "
					 "counts");
	w->a.step = 7; /* this rank has begun step 9 itself */
	assert_int_equal(ms_of_save(w, &r) < 10000 ? r : -1, CKPT_SKIPPED);
	test_says(ckpt_last_error(NULL), "this rank has passed this step already; the steps of a "
					 "run must rise");
	assert_int_equal(ckpt_skip(w->c, 10, NULL), CKPT_OK);
	w->a.step = 11;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	check_image(w, 1);
}

/* The epoch has lost a rank: no step is saved by all any more. */
static void test_a_rank_has_left(void **state)
{
	struct world *w = *state;
	uint64_t took;
	int r;

	FAKE_SET(w->f, w->f->grant, false);
	assert_int_equal(ckpt_prepare(w->c, 0), CKPT_OK);
	set_block(w, BLOCK_LEFT, 3);
	w->a.flags = CKPT_WAIT_CREDIT; /* in vain */
	w->a.timeout_ms = 20000;
	took = ms_of_save(w, &r);
	assert_int_equal(r, CKPT_SKIPPED);
	assert_true(took < 10000);
	assert_non_null(strstr(ckpt_last_error(NULL), "rank 3 has ended, and no step can be saved "
						      "without it; start the job again"));
}

/* Not the rank that ckptd waits for is at fault, but the step. */
static void test_a_step_that_falls(void **state)
{
	struct world *w = *state;
	uint64_t took;
	int r;

	assert_int_equal(ckpt_prepare(w->c, 0), CKPT_OK);
	w->a.step = 5;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	FAKE_SET(w->f, w->f->grant, false);
	fake_lock(w->f);
	atomic_store(&w->f->page->credit, w->f->page->credit - 1);
	fake_unlock(w->f);
	set_block(w, BLOCK_BEHIND, 0);
	w->a.step = 3; /* ms_of_save() takes the next one */
	w->a.flags = CKPT_WAIT_CREDIT; /* in vain */
	w->a.timeout_ms = 20000;
	took = ms_of_save(w, &r);
	assert_int_equal(r, CKPT_SKIPPED);
	assert_true(took < 10000);
	test_says(ckpt_last_error(NULL), "this rank has passed this step already; the steps of a "
					 "run must rise");
	w->a.step = 6;
	w->a.timeout_ms = 20;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_SKIPPED);
	test_says(ckpt_last_error(NULL), "rank 0 has not saved the step before yet");
}

/* A sentence that a person is to act on comes to ckptd whole. */
static void test_a_long_reason(void **state)
{
	struct world *w = *state;
	char reason[301];

	assert_int_equal(ckpt_prepare(w->c, 0), CKPT_OK);
	memset(reason, 'x', 300);
	reason[300] = '\0';
	assert_int_equal(ckpt_skip(w->c, 1, reason), CKPT_OK);
	assert_string_equal(w->f->skips[0].reason, reason);
}

/* A save that fails before it looks for a credit: ckptd hears of it, and no attempt ends by it. */
static void test_ckptd_hears_of_a_failed_save(void **state)
{
	struct world *w = *state;

	assert_int_equal(ckpt_prepare(w->c, 0), CKPT_OK);
	w->a.step = 1;
	w->a.n_tensors--;
	assert_int_equal(ckpt_save(w->c, &w->a), -EINVAL);
	w->a.n_tensors++;
	assert_int_equal(fake_count(w->f, CKPT__REQUEST__BODY_SKIP), 1);
	assert_int_equal(w->f->skips[0].kind, CKPT_SKIP_REFUSED);
	assert_int_equal(w->f->skips[0].epoch, w->f->epoch); /* of this run */
	assert_int_equal(w->f->skips[0].credit, 0);
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	assert_int_equal(w->f->seals[0].try, 0);
}

static void test_newer_epoch_refuses_saves(void **state)
{
	struct world *w = *state;

	w->a.step = 1;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	fake_lock(w->f);
	fake_next_epoch(w->f);
	fake_unlock(w->f);
	w->a.step = 2;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_EEPOCH);
	assert_non_null(strstr(ckpt_last_error(NULL), "load, then go on"));
	w->a.flags = CKPT_WAIT_CREDIT;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_EEPOCH);
	assert_int_equal(w->f->n_seals, 1);
}

static enum fake_action refuse_seals(struct fake *f, const Ckpt__Request *q, void *arg)
{
	(void)f;
	(void)arg;
	return q->body_case == CKPT__REQUEST__BODY_SEAL ? FAKE_REFUSE : FAKE_DO;
}

/* What ckptd says with a save, of a job that begins again say, is the handle's note. */
static void test_what_ckptd_says_of_a_save(void **state)
{
	struct world *w = *state;
	int r;

	w->a.step = 1;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	assert_string_equal(ckpt_note(w->c), "");
	FAKE_SET(w->f, w->f->seal_note, "job 'j': step 119 is there");
	w->a.step = 2;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_NOTED);
	assert_string_equal(ckpt_note(w->c), "job 'j': step 119 is there");
	w->a.step = 3;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK); /* once */
	assert_string_equal(ckpt_note(w->c), "job 'j': step 119 is there");
	FAKE_SET(w->f, w->f->seal_note, "another");
	w->a.step = 4;
	assert_int_equal(ckpt_save_begin(w->c, &w->a), CKPT_OK);
	r = ckpt_save_fence(w->c, 0);
	assert_int_equal(r, CKPT_NOTED);
	assert_string_equal(ckpt_note(w->c), "another");
}

static void test_refused_seal_gives_the_credit_back(void **state)
{
	struct world *w = *state;
	struct ckpt_stats stats = { .size = sizeof(stats) };

	FAKE_SET(w->f, w->f->hook, refuse_seals);
	FAKE_SET(w->f, w->f->refuse_code, CKPT_EABORTED);
	FAKE_SET(w->f, w->f->refuse_text, "step 1 was aborted: rank 3 skipped it");
	w->a.step = 1;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_EABORTED);
	assert_string_equal(ckpt_last_error(NULL),
			    "ckpt_save: step 1 was aborted: rank 3 skipped it");
	assert_int_equal(w->f->n_skips, 1);
	assert_int_equal(w->f->skips[0].credit, 1);
	fake_lock(w->f);
	w->f->hook = NULL;
	fake_unlock(w->f);
	w->a.step = 2;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK); /* with the next credit */
	assert_int_equal(w->f->seals[0].credit, 2);
	assert_int_equal(ckpt_stats(w->c, &stats), 0);
	assert_int_equal(stats.failed, 1);
}

static enum fake_action silent_seals(struct fake *f, const Ckpt__Request *q, void *arg)
{
	(void)f;
	return q->body_case == CKPT__REQUEST__BODY_SEAL && *(bool *)arg ? FAKE_SILENCE : FAKE_DO;
}

/* No answer: unknown. The slot may be sealed, so it is settled before another one is written. */
static void test_seal_without_an_answer(void **state)
{
	struct world *w = *state;
	static bool silent = true; /* the other thread looks at it until the teardown */

	FAKE_SET(w->f, w->f->hook_arg, &silent);
	FAKE_SET(w->f, w->f->hook, silent_seals);
	w->a.step = 1;
	w->a.timeout_ms = 1000; /* with less a busy machine has no time to begin, and skips it */
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_ETIMEDOUT);
	assert_int_equal(w->f->n_skips, 0);
	FAKE_SET(w->f, silent, false);
	w->a.timeout_ms = 10000;
	w->a.step = 2;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	fake_lock(w->f);
	assert_int_equal(w->f->n_skips, 1);
	assert_int_equal(w->f->skips[0].step, 1);
	assert_int_equal(w->f->skips[0].credit, 1);
	assert_int_equal(w->f->n_seals, 2); /* it had been sealed */
	assert_true(w->f->seals[0].slot != w->f->seals[1].slot);
	fake_unlock(w->f);
}

/* A sanitizer's own memory is faulted in by every access. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTS_FAULTS 0
#else
#define COUNTS_FAULTS 1
#endif

/* The slots are populated, so is everything else a save runs through: not even the first one takes
 * a page fault. Counted for this thread: the fake's thread belongs to this process too. */
static void test_no_page_fault_in_any_save(void **state)
{
	struct world *w = *state;
	struct ckpt_blob blob = { "rng", w->data[5], 3000 };
	struct rusage before, after;

	if (!COUNTS_FAULTS)
		skip();
	w->a.blobs = &blob;
	w->a.n_blobs = 1;
	assert_int_equal(ckpt_prepare(w->c, 3000), 0);
	getrusage(RUSAGE_THREAD, &after);
	for (w->a.step = 1; w->a.step <= 10; w->a.step++) {
		int r;

		getrusage(RUSAGE_THREAD, &before);
		r = ckpt_save(w->c, &w->a);
		getrusage(RUSAGE_THREAD, &after);
		assert_int_equal(r, CKPT_OK);
		assert_int_equal(after.ru_minflt - before.ru_minflt, 0);
	}
}

static void test_slots_populated_by_hand(void **state)
{
	uint64_t bytes = 300 * 4096;
	unsigned char in[300];
	struct slot_map m;
	struct err e = { 0 };
	uint8_t *base;
	int fd;

	(void)state;
	for (int by_hand = 0; by_hand < 2; by_hand++) {
		fd = memfd_create("slot", MFD_CLOEXEC);
		assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
		assert_int_equal(pwrite(fd, "abc", 3, 4096), 3);
		assert_int_equal(slot_map(fd, 1, bytes + 1, &m, &e), CKPT_EPROTO);
		assert_int_equal(slot_map(fd, 1, bytes, &m, &e), 0);
		assert_false(slot_has_pages(fd, bytes));
		assert_int_equal(slot_populate(&m, 0, 4096, by_hand, &e), 0);
		assert_int_equal(slot_populate(&m, 4096, bytes - 4096, by_hand, &e), 0);
		assert_true(slot_has_pages(fd, bytes));
		base = m.base;
		assert_int_equal(mincore(base, bytes, in), 0);
		for (int i = 0; i < 300; i++)
			assert_true(in[i] & 1);
		assert_memory_equal(base + 4096, "abc", 3); /* touching changes nothing */
		assert_int_equal(base[0], 0);
		slot_unmap(&m);
		slot_unmap(&m);
		close(fd);
	}
}

/* In place of a save: no credit is used, and the next try of the step is the second. */
static void test_skip(void **state)
{
	struct world *w = *state;

	w->a.step = 5;
	assert_int_equal(ckpt_skip(w->c, 5, "its state is not finite"), CKPT_OK);
	assert_int_equal(w->f->n_skips, 1);
	assert_int_equal(w->f->skips[0].step, 5);
	assert_int_equal(w->f->skips[0].credit, 0);
	assert_int_equal(w->f->skips[0].try, 0);
	assert_string_equal(w->f->skips[0].reason, "its state is not finite");
	w->a.flags = CKPT_WAIT_CREDIT;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	assert_int_equal(w->f->seals[0].try, 1);
	fake_lock(w->f);
	fake_next_epoch(w->f);
	fake_unlock(w->f);
	assert_int_equal(ckpt_skip(w->c, 6, NULL), CKPT_EEPOCH);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_bytes_land_where_they_belong),
		T(test_blobs),
		T(test_names_that_fill_the_message),
		T(test_bindings_that_do_not_fit),
		T(test_strides_that_do_not_fit),
		cmocka_unit_test(test_nothing_to_save),
		T(test_no_credit_is_a_skip),
		T(test_skip),
		T(test_no_answer_and_no_slots),
		T(test_saves_prepare_within_their_time),
		T(test_waiting_for_a_credit),
		T(test_the_first_save_waits),
		T(test_the_first_save_waits_once),
		T(test_why_a_save_is_skipped),
		T(test_a_credit_for_a_later_step),
		T(test_a_rank_has_left),
		T(test_a_step_that_falls),
		T(test_a_long_reason),
		T(test_ckptd_hears_of_a_failed_save),
		T(test_newer_epoch_refuses_saves),
		T(test_what_ckptd_says_of_a_save),
		T(test_refused_seal_gives_the_credit_back),
		T(test_seal_without_an_answer),
		T(test_no_page_fault_in_any_save),
		cmocka_unit_test(test_slots_populated_by_hand),
	};

	return cmocka_run_group_tests_name("save", tests, NULL, NULL);
}
