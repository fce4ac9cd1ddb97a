/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_options.interrupted ends a call that would wait for ever, as its timeout would, and later
 * calls work.
 */
#include <config.h>

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

#include "client/test_fake.h"
#include "tests/lib/test.h"

struct world {
	struct fake *f;
	struct ckpt *c;
	float data[64];
	struct ckpt_binding b;
	struct ckpt_save_args a;
	pthread_t thread; /* that calls */
	int looks;
	bool ends; /* the hook ends the call */
};

static int hook(void *arg)
{
	struct world *w = arg;

	must(pthread_equal(w->thread, pthread_self()));
	w->looks++;
	return w->ends;
}

static int open_with(struct world *w, size_t size)
{
	struct ckpt_options o = {.size = size,
				 .run_id = "r",
				 .socket = w->f->path,
				 .connect_timeout_ms = CKPT_FOREVER,
				 .timeout_ms = CKPT_FOREVER,
				 .interrupted = hook,
				 .interrupted_arg = w};

	return ckpt_open("j", 0, 1, &o, &w->c);
}

static void declare_one(struct world *w)
{
	const uint64_t shape[1] = {64};

	fake_declare(w->c, "w", 1, shape);
}

static int setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));

	w->f = fake_new();
	w->thread = pthread_self();
	w->ends = true;
	w->b = (struct ckpt_binding){
		.ptr = w->data, .device = CKPT_HOST, .dtype = CKPT_F32, .bytes = sizeof(w->data)};
	w->a = (struct ckpt_save_args){.size = sizeof(w->a),
				       .step = 1,
				       .tensors = &w->b,
				       .n_tensors = 1,
				       .timeout_ms = CKPT_FOREVER,
				       .flags = CKPT_WAIT_CREDIT};
	must(open_with(w, sizeof(struct ckpt_options)) == 0);
	declare_one(w);
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	ckpt_close(w->c);
	fake_free(w->f);
	free(w);
	return 0;
}

/* The request of this kind is never answered. */
static enum fake_action silence(struct fake *f, const Ckpt__Request *q, void *arg)
{
	(void)f;
	return (int)q->body_case == *(int *)arg ? FAKE_SILENCE : FAKE_DO;
}

static void answer_not(struct world *w, int *body)
{
	fake_lock(w->f);
	w->f->hook = body ? silence : NULL;
	w->f->hook_arg = body;
	fake_unlock(w->f);
}

static void save_works(struct world *w, uint64_t step)
{
	int before = w->looks, r;

	w->a.step = step;
	r = ckpt_save(w->c, &w->a);
	assert_true(r == CKPT_OK || r == CKPT_RECONNECTED);
	assert_int_equal(w->looks, before); /* what does not wait does not ask */
	fake_lock(w->f);
	assert_int_equal(w->f->seals[w->f->n_seals - 1].step, step);
	fake_unlock(w->f);
}

static void test_save_without_a_credit(void **state)
{
	struct world *w = *state;

	FAKE_SET(w->f, w->f->grant, false);
	assert_int_equal(ckpt_prepare(w->c, 0), CKPT_OK);
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_SKIPPED);
	assert_int_equal(w->looks, 1);
	FAKE_SET(w->f, w->f->grant, true);
	fake_lock(w->f);
	fake_give_credit(w->f);
	assert_int_equal(w->f->n_seals, 0);
	fake_unlock(w->f);
	save_works(w, 2);
}

static void test_first_save_without_slots(void **state)
{
	struct world *w = *state;

	FAKE_SET(w->f, w->f->late_slots, true);
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_SKIPPED);
	assert_int_equal(ckpt_prepare(w->c, 1 << 20), CKPT_ETIMEDOUT);
	assert_int_equal(w->looks, 2);
	fake_lock(w->f);
	fake_answer_prepare(w->f);
	fake_unlock(w->f);
	assert_int_equal(ckpt_prepare(w->c, 1 << 20), CKPT_OK);
	save_works(w, 2);
}

/* The seal was not heard of: its credit is given back before the next save. */
static void test_seal_without_an_answer(void **state)
{
	static int seal = CKPT__REQUEST__BODY_SEAL;
	struct world *w = *state;

	assert_int_equal(ckpt_prepare(w->c, 0), CKPT_OK);
	answer_not(w, &seal);
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_ETIMEDOUT);
	assert_int_equal(w->looks, 1);
	answer_not(w, NULL);
	save_works(w, 2);
	fake_lock(w->f);
	assert_int_equal(w->f->n_skips, 1);
	assert_int_equal(w->f->skips[0].step, 1);
	fake_unlock(w->f);
}

static void test_wait(void **state)
{
	struct world *w = *state;

	FAKE_SET(w->f, w->f->wait_answer, CKPT_COMMITTED);
	assert_int_equal(ckpt_wait(w->c, 1, CKPT_DURABLE, CKPT_FOREVER, NULL), CKPT_ETIMEDOUT);
	assert_int_equal(w->looks, 1);
	FAKE_SET(w->f, w->f->wait_answer, CKPT_DURABLE);
	assert_int_equal(ckpt_wait(w->c, 1, CKPT_DURABLE, CKPT_FOREVER, NULL), CKPT_OK);
	assert_int_equal(w->looks, 1);
}

static void test_load_without_an_answer(void **state)
{
	static int load = CKPT__REQUEST__BODY_LOAD;
	struct world *w = *state;
	struct ckpt_load_args a = {.size = sizeof(a),
				   .step = CKPT_LATEST,
				   .tensors = &w->b,
				   .n_tensors = 1,
				   .timeout_ms = CKPT_FOREVER};

	answer_not(w, &load);
	assert_int_equal(ckpt_load(w->c, &a, NULL), CKPT_ETIMEDOUT);
	assert_int_equal(w->looks, 1);
	answer_not(w, NULL);
	save_works(w, 2);
}

static void test_open_without_ckptd(void **state)
{
	struct world *w = *state;

	ckpt_close(w->c);
	fake_stop(w->f);
	w->looks = 0;
	assert_int_equal(open_with(w, sizeof(struct ckpt_options)), CKPT_EUNAVAILABLE);
	assert_int_equal(w->looks, 1);
	fake_start(w->f);
	assert_int_equal(open_with(w, sizeof(struct ckpt_options)), CKPT_OK);
}

/* Where it says no the call goes on to its timeout; a program that was built before it has none. */
static void test_goes_on(void **state)
{
	struct world *w = *state;

	FAKE_SET(w->f, w->f->grant, false);
	w->ends = false;
	w->a.timeout_ms = 500;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_SKIPPED);
	assert_true(w->looks > 0 && w->looks <= 2);
	ckpt_close(w->c);
	assert_int_equal(open_with(w, offsetof(struct ckpt_options, interrupted)), CKPT_OK);
	declare_one(w);
	w->ends = true;
	w->looks = 0;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_SKIPPED);
	assert_int_equal(w->looks, 0);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_save_without_a_credit),
		T(test_first_save_without_slots),
		T(test_seal_without_an_answer),
		T(test_wait),
		T(test_load_without_an_answer),
		T(test_open_without_ckptd),
		T(test_goes_on),
	};

	return cmocka_run_group_tests_name("interrupt", tests, NULL, NULL);
}
