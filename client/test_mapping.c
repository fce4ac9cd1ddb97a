/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots behind a load: asked for when everything is placed, filled by ckptd and populated by the
 * library's thread while the trainer makes no call, and what saves do that come too early.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/clock.h"
#include "client/test_fake.h"
#include "tests/lib/test.h"

#define BYTES 20000u

struct world {
	struct fake *f;
	struct ckpt *c;
	uint8_t data[BYTES];
	struct ckpt_binding b;
	struct ckpt_save_args a;
	struct ckpt_load_args l;
	enum fake_action on_ready; /* what becomes of SlotsReady */
	bool refuse;               /* Prepare */
	bool fill_one;             /* at SlotsReady: the first slot is filled, the next cannot be */
	int order[64];             /* of requests, by body */
	uint32_t n_order;
};

/* With the lock. */
static void give_first_slot(struct fake *f)
{
	f->next_slot = 0;
	fake_give_credit(f);
}

static enum fake_action watch(struct fake *f, const Ckpt__Request *q, void *arg)
{
	struct world *w = arg;

	if (w->n_order < 64)
		w->order[w->n_order++] = (int)q->body_case;
	if (q->body_case == CKPT__REQUEST__BODY_PREPARE)
		must(q->prepare->early);
	if (q->body_case == CKPT__REQUEST__BODY_PREPARE && w->refuse)
		return FAKE_REFUSE;
	if (q->body_case == CKPT__REQUEST__BODY_SLOTS_READY && w->fill_one) {
		must(fallocate(f->slots[0].fd, 0, 0, (off_t)f->slots[0].bytes) == 0);
		f->ready = true;
		give_first_slot(f);
		return FAKE_REFUSE;
	}
	return q->body_case == CKPT__REQUEST__BODY_SLOTS_READY ? w->on_ready : FAKE_DO;
}

static int setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));
	struct fake_offer nothing = {.status = CKPT_NOTHING};

	w->f = fake_new();
	w->c = fake_open(w->f);
	fake_declare(w->c, "w", 1, (uint64_t[]){BYTES / 4});
	test_fill(w->data, BYTES, 1);
	w->b = (struct ckpt_binding){
		.ptr = w->data, .device = CKPT_HOST, .dtype = CKPT_F32, .bytes = BYTES};
	w->a = (struct ckpt_save_args){.size = sizeof(w->a),
				       .step = 1,
				       .tensors = &w->b,
				       .n_tensors = 1,
				       .timeout_ms = 10000};
	w->l = (struct ckpt_load_args){.size = sizeof(w->l),
				       .step = CKPT_LATEST,
				       .tensors = &w->b,
				       .n_tensors = 1,
				       .timeout_ms = 10000};
	fake_lock(w->f);
	w->f->offers[0] = nothing;
	w->f->n_offers = 1;
	w->f->hook_arg = w;
	w->f->hook = watch;
	fake_unlock(w->f);
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

static atomic_int populate_ms; /* longer than it would take */
static atomic_uint pieces;     /* that were populated of slots */

int madvise(void *base, size_t len, int advice)
{
	int r;

	if (advice == MADV_POPULATE_WRITE && len >= 4u << 20)
		poll(NULL, 0, atomic_load(&populate_ms));
	r = (int)syscall(SYS_madvise, base, len, advice);
	if (advice == MADV_POPULATE_WRITE && len >= 4u << 20)
		atomic_fetch_add(&pieces, 1);
	return r;
}

static void await_pieces(uint32_t n)
{
	for (int i = 0; atomic_load(&pieces) < n; i++) {
		must(i < 10000);
		poll(NULL, 0, 1);
	}
}

static void await_skip(struct world *w)
{
	bool there = false;

	while (!there) {
		poll(NULL, 0, 1);
		fake_lock(w->f);
		there = w->f->n_skips > 0;
		fake_unlock(w->f);
	}
}

static uint64_t ms_of_save(struct world *w, int *ret)
{
	uint64_t start = clock_ns();

	*ret = ckpt_save(w->c, &w->a);
	w->a.step++;
	return (clock_ns() - start) / NS_PER_MS;
}

/* Nothing is asked for before the load, and nothing is left to do for the first save but the copy:
 * slots come although the trainer makes no call. */
static void test_slots_come_behind_the_load(void **state)
{
	struct world *w = *state;
	static const int want[] = {
		CKPT__REQUEST__BODY_DECLARE,
		CKPT__REQUEST__BODY_LOAD,
		CKPT__REQUEST__BODY_PREPARE,
		CKPT__REQUEST__BODY_SLOTS_READY,
	};
	struct rusage before, after;

	atomic_store(&pieces, 0);
	assert_int_equal(ckpt_load(w->c, &w->l, NULL), CKPT_NOTHING);
	await_pieces(FAKE_SLOTS);
	fake_lock(w->f);
	assert_int_equal(w->n_order, 4);
	assert_memory_equal(w->order, want, sizeof(want));
	fake_unlock(w->f);
	poll(NULL, 0, 20); /* the step of the last piece ends */
	getrusage(RUSAGE_THREAD, &after);
	getrusage(RUSAGE_THREAD, &before);
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	getrusage(RUSAGE_THREAD, &after);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	assert_in_range(after.ru_minflt - before.ru_minflt, 0, 8); /* none in slots: 5 pages */
#endif
	assert_memory_equal(w->f->seals[0].image, w->data, BYTES);
	/* ckpt_prepare() finds it done. */
	assert_int_equal(ckpt_prepare(w->c, 0), CKPT_OK);
	assert_int_equal(fake_count(w->f, CKPT__REQUEST__BODY_PREPARE), 1);
}

static uint64_t pages_of(struct fake *f, uint32_t i)
{
	struct stat st;

	must(fstat(f->slots[i].fd, &st) == 0);
	return (uint64_t)st.st_blocks;
}

/* Pages are ckptd's to make: before it has made them the thread touches none. */
static void test_no_page_before_ckptd_has_made_it(void **state)
{
	struct world *w = *state;

	atomic_store(&pieces, 0);
	FAKE_SET(w->f, w->on_ready, FAKE_REFUSE);
	FAKE_SET(w->f, w->f->refuse_code, -ENOMEM);
	FAKE_SET(w->f, w->f->refuse_text, "rank 0: fill slot 0 of 4 MiB: no memory");
	assert_int_equal(ckpt_load(w->c, &w->l, NULL), CKPT_NOTHING);
	poll(NULL, 0, 150);
	assert_int_equal(atomic_load(&pieces), 0);
	fake_lock(w->f);
	for (uint32_t i = 0; i < FAKE_SLOTS; i++)
		assert_int_equal(pages_of(w->f, i), 0);
	fake_unlock(w->f);
	/* What failed behind the load the save says. It is asked for again. */
	assert_int_equal(ckpt_save(w->c, &w->a), -ENOMEM);
	assert_non_null(strstr(ckpt_last_error(NULL), "fill slot 0"));
	FAKE_SET(w->f, w->on_ready, FAKE_DO);
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	assert_int_equal(fake_count(w->f, CKPT__REQUEST__BODY_PREPARE), 1);
}

/* One slot is enough for a save, and the first save waits for it within its deadline. One for which
 * there is a credit and whose slot is not populated is skipped, and says why. */
static void test_save_before_its_slot_is_there(void **state)
{
	struct world *w = *state;
	uint64_t took;
	int r;

	atomic_store(&pieces, 0);
	atomic_store(&populate_ms, 1000); /* of each slot */
	assert_int_equal(ckpt_load(w->c, &w->l, NULL), CKPT_NOTHING);
	w->a.timeout_ms = 100;
	took = ms_of_save(w, &r);
	assert_int_equal(r, CKPT_SKIPPED);
	assert_in_range(took, 90, 900);
	await_skip(w); /* told of without waiting */
	assert_non_null(strstr(w->f->skips[0].reason, "is still being prepared"));
	w->a.timeout_ms = 20000;
	w->a.flags = CKPT_WAIT_CREDIT;
	took = ms_of_save(w, &r);
	assert_int_equal(r, CKPT_OK);
	assert_in_range(atomic_load(&pieces), 1, 2); /* not all of them */
	/* The second slot, for a save that was not asked to wait. */
	w->a.flags = 0;
	took = ms_of_save(w, &r);
	assert_int_equal(r, CKPT_SKIPPED);
	assert_true(took < 900);
	w->a.flags = CKPT_WAIT_CREDIT;
	took = ms_of_save(w, &r);
	assert_int_equal(r, CKPT_OK);
	assert_int_equal(w->f->n_seals, 2);
	assert_memory_equal(w->f->seals[1].image, w->data, BYTES);
	/* The thread copies between begin and fence while slots are left to populate. */
	assert_int_equal(ckpt_save_begin(w->c, &w->a), CKPT_OK);
	assert_int_equal(ckpt_save_fence(w->c, CKPT_FULL_COMPARE), CKPT_OK);
	atomic_store(&populate_ms, 0);
}

/* ckptd fills one slot and lacks memory for the others: ckpt_prepare() says so, and no save that
 * has a credit fails for it. */
static void test_slots_that_cannot_be_filled(void **state)
{
	struct world *w = *state;

	FAKE_SET(w->f, w->fill_one, true);
	FAKE_SET(w->f, w->f->grant, false);
	FAKE_SET(w->f, w->f->refuse_code, -ENOMEM);
	FAKE_SET(w->f, w->f->refuse_text, "rank 0: fill slot 1 of 4 MiB: no memory");
	assert_int_equal(ckpt_prepare(w->c, 0), -ENOMEM);
	assert_string_equal(ckpt_last_error(NULL),
			    "ckpt_prepare: rank 0: fill slot 1 of 4 MiB: no memory");
	w->a.flags = CKPT_WAIT_CREDIT;
	for (uint32_t n = 1; n <= 6; n++) {
		assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
		w->a.step++;
		fake_lock(w->f);
		give_first_slot(w->f);
		fake_unlock(w->f);
		poll(NULL, 0, 5); /* an answer that has come is found by the next save */
	}
	assert_int_equal(w->f->n_seals, 6);
	assert_true(fake_count(w->f, CKPT__REQUEST__BODY_SLOTS_READY) > 1);
}

/* ckptd puts off the last slot, as it does while older ones are in use: ckpt_prepare() waits for
 * the others, and that slot is used when it has its pages. */
static void test_a_slot_that_is_filled_later(void **state)
{
	struct world *w = *state;

	FAKE_SET(w->f, w->f->later, 1);
	atomic_store(&pieces, 0);
	assert_int_equal(ckpt_prepare(w->c, 0), CKPT_OK);
	assert_int_equal(atomic_load(&pieces), FAKE_SLOTS - 1);
	for (int n = 0; n < FAKE_SLOTS - 1; n++, w->a.step++)
		assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_SKIPPED);
	FAKE_SET(w->f, w->f->later, 0);
	assert_int_equal(ckpt_prepare(w->c, 0), CKPT_OK); /* which asks again, and waits for all */
	assert_int_equal(atomic_load(&pieces), FAKE_SLOTS);
	w->a.step++;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
}

static void test_load_without_room_for_slots(void **state)
{
	struct world *w = *state;

	FAKE_SET(w->f, w->refuse, true);
	FAKE_SET(w->f, w->f->refuse_code, CKPT_ENOSPACE);
	FAKE_SET(w->f, w->f->refuse_text, "rank 0: 1 MiB are left");
	assert_int_equal(ckpt_load(w->c, &w->l, NULL), CKPT_NOTHING);
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_ENOSPACE);
	assert_string_equal(ckpt_last_error(NULL), "ckpt_save: rank 0: 1 MiB are left");
	assert_int_equal(ckpt_load(w->c, &w->l, NULL), CKPT_NOTHING);
	FAKE_SET(w->f, w->refuse, false);
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
}

/* A load waits some milliseconds for slots; what comes later a later call takes. */
static void test_late_answer(void **state)
{
	struct world *w = *state;
	uint64_t start = clock_ns();

	FAKE_SET(w->f, w->f->late_slots, true);
	assert_int_equal(ckpt_load(w->c, &w->l, NULL), CKPT_NOTHING);
	assert_true(clock_ns() - start < 1000 * NS_PER_MS);
	assert_int_equal(fake_count(w->f, CKPT__REQUEST__BODY_SLOTS_READY), 0);
	fake_lock(w->f);
	fake_answer_prepare(w->f);
	fake_unlock(w->f);
	atomic_store(&pieces, 0);
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	assert_int_equal(fake_count(w->f, CKPT__REQUEST__BODY_PREPARE), 1);
	assert_int_equal(ckpt_prepare(w->c, 0), CKPT_OK); /* which waits for all */
	assert_int_equal(atomic_load(&pieces), FAKE_SLOTS);
}

/* ckptd is lost behind the load, with its memory or without, while slots are being populated. */
static void test_ckptd_is_lost_meanwhile(void **state)
{
	struct world *w = *state;

	for (int with = 0; with < 2; with++) {
		atomic_store(&populate_ms, 100);
		if (with == 0)
			assert_int_equal(ckpt_load(w->c, &w->l, NULL), CKPT_NOTHING);
		fake_stop(w->f);
		if (with == 0)
			fake_forget(w->f);
		fake_start(w->f);
		w->a.flags = CKPT_WAIT_CREDIT;
		assert_int_equal(ckpt_save(w->c, &w->a), CKPT_RECONNECTED);
		w->a.step++;
		assert_int_equal(w->f->n_seals, with + 1);
		assert_memory_equal(w->f->seals[with].image, w->data, BYTES);
	}
	/* A handle that is closed meanwhile does not wait for all of them. */
	ckpt_close(w->c);
	w->c = fake_open(w->f);
	fake_declare(w->c, "w", 1, (uint64_t[]){BYTES / 4});
	atomic_store(&populate_ms, 0);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_slots_come_behind_the_load),
		T(test_no_page_before_ckptd_has_made_it),
		T(test_save_before_its_slot_is_there),
		T(test_slots_that_cannot_be_filled),
		T(test_a_slot_that_is_filled_later),
		T(test_load_without_room_for_slots),
		T(test_late_answer),
		T(test_ckptd_is_lost_meanwhile),
	};

	return cmocka_run_group_tests_name("mapping", tests, NULL, NULL);
}
