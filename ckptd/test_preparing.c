/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots that are handed over before they have pages: filled one after another, the first of them
 * usable while the others are not, and none beyond what a rank may take beside the slots that its
 * earlier processes have left. What fails on the way is tried again with pauses.
 */
#include <config.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/fault.h"
#include "ckptd/job.h"
#include "ckptd/node_priv.h"
#include "ckptd/test_node_rig.h"
#include "proto/session.pb-c.h"
#include "proto/session_page.h"

#define LARGE 2000000u /* elements: slots of 8 MB, beside which a ledger is small */

/* ---- Memory that waits ---- */

static struct memory_ops ops; /* the node's, changed */
static const struct memory_ops *real;
static atomic_int fills_left; /* then the next one waits; -1: none does */
static atomic_int fill_error;
static atomic_uint fills; /* that were tried */
static atomic_bool destroy_waits, reserve_waits;
static atomic_int reserve_error;
static _Atomic uint64_t pretended_left; /* UINT64_MAX: what there is */

static int slow_fill(struct memory *m, struct region *r)
{
	while (atomic_load(&fills_left) == 0)
		usleep(1000);
	if (atomic_load(&fills_left) > 0)
		atomic_fetch_sub(&fills_left, 1);
	atomic_fetch_add(&fills, 1);
	return atomic_load(&fill_error) ? atomic_load(&fill_error) : real->fill(m, r);
}

static int slow_reserve(struct memory *m, const char *name, uint64_t size, struct region **ret)
{
	while (atomic_load(&reserve_waits))
		usleep(1000);
	return atomic_load(&reserve_error) ? atomic_load(&reserve_error)
					   : real->reserve(m, name, size, ret);
}

static void slow_destroy(struct memory *m, struct region *r)
{
	bool slot = strncmp(r->name, "slot.", 5) == 0;
	uint64_t bytes = r->size;

	while (slot && atomic_load(&destroy_waits))
		usleep(1000);
	real->destroy(m, r);
	if (slot && atomic_load(&pretended_left) != UINT64_MAX)
		atomic_fetch_add(&pretended_left, bytes);
}

static uint64_t less_available(struct memory *m, uint64_t *ret_budget)
{
	uint64_t left = real->available(m, ret_budget);

	return atomic_load(&pretended_left) != UINT64_MAX ? atomic_load(&pretended_left) : left;
}

static void change_memory(struct node_test *t)
{
	real = t->host.memory->ops;
	ops = *real;
	ops.fill = slow_fill;
	ops.reserve = slow_reserve;
	ops.destroy = slow_destroy;
	ops.available = less_available;
	t->host.memory->ops = &ops;
}

static void memory_is_good(void)
{
	atomic_store(&fills_left, -1);
	atomic_store(&fill_error, 0);
	atomic_store(&fills, 0);
	atomic_store(&destroy_waits, false);
	atomic_store(&reserve_waits, false);
	atomic_store(&reserve_error, 0);
	atomic_store(&pretended_left, UINT64_MAX);
}

static int setup(void **state)
{
	struct node_test *t;

	memory_is_good();
	if (node_test_setup(state) != 0)
		return -1;
	t = *state;
	t->before = change_memory;
	return 0;
}

static int teardown(void **state)
{
	memory_is_good();
	return node_test_teardown(state);
}

/* ---- A rank that asks early ---- */

static int slot_fds[HAND_SLOTS_MAX]; /* of the last take_early() */

/* Its answer: the slots are mapped, and their descriptors kept to look at. */
static void take_early(struct hand *k)
{
	struct hand_answer a = {0};
	const Ckpt__PrepareReply *p;

	assert_int_equal(hand_take(k, &a), 0);
	assert_int_equal(a.reply->code, 0);
	p = a.reply->prepare;
	assert_int_equal(a.n_fds, p->n_slots);
	k->slot_bytes = p->slot_bytes;
	k->n_slots = p->n_slots;
	for (size_t i = 0; i < a.n_fds; i++) {
		void *at =
			mmap(NULL, p->slot_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, a.fds[i], 0);

		assert_true(at != MAP_FAILED);
		k->slots[i] = at;
		k->numbers[i] = p->slots[i];
		slot_fds[i] = dup(a.fds[i]);
	}
	hand_answer_free(&a);
}

static void say_ready(struct hand *k)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__SlotsReady ready = CKPT__SLOTS_READY__INIT;

	q.body_case = CKPT__REQUEST__BODY_SLOTS_READY;
	q.slots_ready = &ready;
	assert_int_equal(hand_send(k, &q), 0);
}

static bool has_pages(const struct hand *k, size_t i)
{
	struct stat st;

	assert_int_equal(fstat(slot_fds[i], &st), 0);
	return (uint64_t)st.st_blocks * 512 >= k->slot_bytes;
}

static bool is_hollow(size_t i)
{
	struct stat st;

	assert_int_equal(fstat(slot_fds[i], &st), 0);
	return st.st_blocks == 0;
}

static void close_fds(const struct hand *k)
{
	for (size_t i = 0; i < k->n_slots; i++)
		close(slot_fds[i]);
}

static void turns(struct node_test *t, int n)
{
	while (n--)
		host_turn(&t->host);
}

static void join_early(struct node_test *t, const char *run)
{
	join(t, &t->a, 0, 1, run);
	declare_rank(&t->a, 0, 1);
	assert_int_equal(hand_send_prepare_early(&t->a), 0);
	take_early(&t->a);
}

/* ---- Tests ---- */

static void test_first_slot_before_the_others(void **state)
{
	struct node_test *t = *state;
	uint64_t end = 0, id = 0, ready;

	t->o.persist_every = 1000;
	begin_node(t);
	join_early(t, "run1");
	assert_int_equal(t->a.n_slots, 3);
	for (size_t i = 0; i < 3; i++)
		assert_true(is_hollow(i));
	turns(t, 50); /* no credit for what has no pages */
	assert_int_equal(t->a.page->credit, 0);
	atomic_store(&fills_left, 1);
	say_ready(&t->a);
	ready = t->a.next_id;
	while (t->a.page->credit == 0 && turn_on(t, &end))
		;
	assert_int_equal(t->a.page->credit, 1);
	assert_int_equal(t->a.page->credit_slot, t->a.numbers[0]);
	assert_true(has_pages(&t->a, 0) && is_hollow(1) && is_hollow(2));
	/* It is used, and the others are no checkpoints that are still being written. */
	assert_int_equal(save_rank(&t->a, 0, 1), 0);
	turns(t, 50);
	assert_int_equal(t->a.page->blocked, BLOCK_FILLING);
	atomic_store(&fills_left, -1);
	assert_int_equal(hand_receive(&t->a, &id), 0);
	assert_int_equal(id, ready);
	assert_true(has_pages(&t->a, 1) && has_pages(&t->a, 2));
	for (uint64_t step = 2; step <= 4; step++)
		save_until(&t->a, 0, step, CKPT_COMMITTED);
	close_fds(&t->a);
}

/* The rank leaves while the second slot is being filled: nothing stays. */
static void test_leaves_while_slots_are_filled(void **state)
{
	struct node_test *t = *state;
	uint64_t end = 0, budget, left, slots;

	begin_node(t);
	join(t, &t->a, 0, 1, "run1");
	declare_elements(&t->a, 0, 1, LARGE);
	left = real->available(t->host.memory, &budget);
	assert_int_equal(hand_send_prepare_early(&t->a), 0);
	take_early(&t->a);
	slots = 3 * t->a.slot_bytes;
	assert_int_equal(left - real->available(t->host.memory, &budget), slots);
	atomic_store(&fills_left, 1);
	say_ready(&t->a);
	while (t->a.page->credit == 0 && turn_on(t, &end))
		;
	close_fds(&t->a);
	leave(&t->a);
	join(t, &t->b, 0, 1, "run2"); /* in its place */
	atomic_store(&fills_left, -1);
	while ((!list_empty(&the_job(t)->slots) || t->host.node->destroying) && turn_on(t, &end))
		;
	assert_true(list_empty(&the_job(t)->slots));
	assert_true(left - real->available(t->host.memory, &budget) < slots);
	declare_and_prepare(&t->b, 0, 1);
	save_until(&t->b, 0, 1, CKPT_COMMITTED);
}

/* What earlier processes of a rank have left counts: 4 times its state at most. Here the newest
 * checkpoint and one that is being written to disk. The third slot waits until shard_waits ends. */
static void begin_with_older_slots(struct node_test *t)
{
	struct hand_answer a = {0};

	begin_one(t);
	shard_waits = true;
	save_until(&t->a, 0, 1, CKPT_COMMITTED);
	save_until(&t->a, 0, 2, CKPT_COMMITTED);
	leave(&t->a);
	join_early(t, "run2");
	say_ready(&t->a);
	/* It can save and is not kept waiting: it is told how many slots it need not wait for. */
	assert_int_equal(hand_take(&t->a, &a), 0);
	assert_int_equal(a.reply->code, 0);
	assert_int_equal(a.reply->body_case, CKPT__REPLY__BODY_SLOTS_READY);
	assert_int_equal(a.reply->slots_ready->later, 1);
	hand_answer_free(&a);
	turns(t, 200);
	assert_true(has_pages(&t->a, 0) && has_pages(&t->a, 1));
	assert_true(is_hollow(2));
}

static void steps(struct node_test *t, int n)
{
	while (n--) {
		job_poke(the_job(t));
		host_turn(&t->host);
		usleep(100); /* workers get on too */
	}
}

static void test_older_slots_make_new_ones_wait(void **state)
{
	struct node_test *t = *state;
	uint64_t end = 0, round;

	begin_with_older_slots(t);
	round = the_job(t)->fills.number;
	steps(t, 200); /* in which nothing changes for the slot that waits: it is not looked at */
	assert_int_equal(the_job(t)->fills.number, round);
	save_until(&t->a, 0, 3, CKPT_SEALED);
	shard_waits = false;
	while (!has_pages(&t->a, 2) && turn_on(t, &end))
		;
	assert_true(has_pages(&t->a, 2));
	for (uint64_t step = 4; step <= 6; step++)
		save_until(&t->a, 0, step, CKPT_DURABLE);
	close_fds(&t->a);
}

static uint64_t seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec;
}

/* There is no memory for the third slot when its turn comes: it is tried again with pauses, however
 * often the job takes a step, and the log has a line at the beginning and one at the end. */
static void test_fills_that_fail_are_tried_with_pauses(void **state)
{
	static const char *const begins = "no memory for the saves of rank 0: rank 0: fill slot";
	static const char *const ends = "that is over: rank 0 has it now";
	struct node_test *t = *state;
	uint64_t end = 0, from;
	unsigned before;

	begin_with_older_slots(t);
	before = atomic_load(&fills);
	atomic_store(&fill_error, -ENOMEM);
	from = seconds();
	save_until(&t->a, 0, 3, CKPT_SEALED);
	shard_waits = false;
	while (atomic_load(&fills) == before && turn_on(t, &end))
		;
	steps(t, 300);
	assert_in_range(atomic_load(&fills) - before, 1, 2 + seconds() - from);
	while (atomic_load(&fills) - before < 2 && turn_on(t, &end))
		;
	steps(t, 300);
	assert_true(is_hollow(2));
	assert_true(problems_stand(the_job(t), PROBLEM_PREPARE));
	assert_int_equal(times_told(begins), 1);
	assert_int_equal(times_told(ends), 0);
	atomic_store(&fill_error, 0);
	while (!has_pages(&t->a, 2) && turn_on(t, &end))
		;
	turn_until_told(t, ends);
	/* At once, after 1 s, after 2 s more, ... */
	assert_in_range(atomic_load(&fills) - before, 3, 3 + (seconds() - from) / 2);
	assert_int_equal(times_told(begins), 1);
	assert_int_equal(times_told(ends), 1);
	for (uint64_t step = 4; step <= 6; step++)
		save_until(&t->a, 0, step, CKPT_DURABLE);
	close_fds(&t->a);
}

/* A fill that SlotsReady waits for fails with its answer: no credit for a slot without pages. */
static void test_no_credit_without_pages(void **state)
{
	struct node_test *t = *state;
	uint64_t id = 0;

	begin_node(t);
	join_early(t, "run1");
	atomic_store(&fill_error, -ENOMEM);
	for (int i = 0; i < 3; i++) {
		say_ready(&t->a);
		assert_int_equal(hand_receive(&t->a, &id), -ENOMEM);
		steps(t, 100);
		assert_int_equal(t->a.page->credit, 0);
		assert_true(is_hollow(0) && is_hollow(1) && is_hollow(2));
	}
	assert_int_equal(atomic_load(&fills), 3);
	atomic_store(&fill_error, 0);
	say_ready(&t->a);
	assert_int_equal(hand_receive(&t->a, &id), 0);
	assert_true(has_pages(&t->a, 0) && has_pages(&t->a, 1) && has_pages(&t->a, 2));
	save_until(&t->a, 0, 1, CKPT_COMMITTED);
	close_fds(&t->a);
}

/* There is no memory for the second slot while SlotsReady waits: that fails, but the rank has one,
 * and the others are filled when there is memory, also if it does not ask again. */
static void test_slots_behind_a_refusal(void **state)
{
	struct node_test *t = *state;
	uint64_t id = 0, end = 0;
	unsigned before;

	begin_node(t);
	join_early(t, "run1");
	atomic_store(&fills_left, 1);
	say_ready(&t->a);
	while (t->a.page->credit == 0 && turn_on(t, &end))
		;
	atomic_store(&fill_error, -ENOMEM);
	atomic_store(&fills_left, -1);
	assert_int_equal(hand_receive(&t->a, &id), -ENOMEM);
	before = atomic_load(&fills);
	steps(t, 100);
	assert_in_range(atomic_load(&fills) - before, 0, 1); /* a pause is between them */
	assert_true(problems_stand(the_job(t), PROBLEM_PREPARE));
	assert_true(has_pages(&t->a, 0) && is_hollow(1) && is_hollow(2));
	save_until(&t->a, 0, 1, CKPT_SEALED);
	atomic_store(&fill_error, 0);
	end = 0;
	while (!(has_pages(&t->a, 1) && has_pages(&t->a, 2)) && turn_on(t, &end))
		;
	assert_true(has_pages(&t->a, 1) && has_pages(&t->a, 2));
	turns(t, 50);
	assert_false(problems_stand(the_job(t), PROBLEM_PREPARE));
	for (uint64_t step = 2; step <= 4; step++)
		save_until(&t->a, 0, step, CKPT_COMMITTED);
	close_fds(&t->a);
}

#ifdef CKPT_FAULTS
/* The same at each point of a fill: nothing has a credit, the next try is a whole one. */
static void fails_at(struct node_test *t, enum fault_point point, int error)
{
	uint64_t id = 0;

	for (unsigned slot = 1; slot <= t->o.slots; slot++) {
		char run[16];

		snprintf(run, sizeof(run), "run%d.%u", point, slot);
		join_early(t, run);
		fault_arm(point, FAULT_ERROR, fault_hits(point) + slot, false);
		say_ready(&t->a);
		assert_int_equal(hand_receive(&t->a, &id), error);
		steps(t, 50);
		assert_int_equal(t->a.page->credit, slot > 1);
		say_ready(&t->a);
		assert_int_equal(hand_receive(&t->a, &id), 0);
		for (size_t i = 0; i < 3; i++)
			assert_true(has_pages(&t->a, i));
		for (uint64_t step = 1; step <= 4; step++)
			save_until(&t->a, 0, 100 * slot + step, CKPT_DURABLE);
		close_fds(&t->a);
		leave(&t->a);
	}
}

static void test_fault_points_of_a_fill(void **state)
{
	struct node_test *t = *state;

	begin_node(t);
	fails_at(t, FAULT_SLOT_FILLED, -ENOMEM);
	fails_at(t, FAULT_SLOT_READY, -EIO);
	fault_disarm_all();
}
#endif

/* As a ckptd leaves a rank that was killed while it wrote the rank's slots into the ledger: it has
 * the first. It says SlotsReady while its next Prepare makes the others, and that fails: the slot
 * has no credit that would be lost with it, and the rank can try again. */
static void test_ready_before_the_slots_are_made(void **state)
{
	struct node_test *t = *state;
	uint64_t id = 0, end = 0;
	struct slot *s, *next;
	unsigned errors = 0;

	begin_node(t);
	join_early(t, "run1");
	list_each_safe(s, next, &the_job(t)->slots, link) {
		if (s == list_first(&the_job(t)->slots, struct slot, link))
			continue;
		slot_give(s, NULL);
		slot_let_go(s);
	}
	atomic_store(&reserve_waits, true);
	assert_int_equal(hand_send_prepare_early(&t->a), 0);
	say_ready(&t->a);
	steps(t, 100);
	assert_int_equal(t->a.page->credit, 0);
	atomic_store(&reserve_error, -ENOMEM);
	atomic_store(&reserve_waits, false);
	for (int i = 0; i < 2; i++)
		errors += hand_receive(&t->a, &id) < 0;
	assert_int_equal(errors, 2);
	while (!list_empty(&the_job(t)->slots) && turn_on(t, &end))
		;
	assert_true(list_empty(&t->host.node->stopped_jobs));
	atomic_store(&reserve_error, 0);
	close_fds(&t->a);
	assert_int_equal(hand_send_prepare_early(&t->a), 0);
	take_early(&t->a);
	assert_int_equal(t->a.n_slots, t->o.slots);
	say_ready(&t->a);
	assert_int_equal(hand_receive(&t->a, &id), 0);
	for (uint64_t step = 1; step <= 4; step++)
		save_until(&t->a, 0, step, CKPT_DURABLE);
	close_fds(&t->a);
}

/* Memory that a process leaves which has just ended is waited for: it is no reason to refuse. */
static void test_waits_for_what_is_destroyed(void **state)
{
	struct node_test *t = *state;
	uint64_t slot;

	begin_node(t);
	join(t, &t->a, 0, 1, "run1");
	declare_elements(&t->a, 0, 1, LARGE);
	prepare_rank(&t->a);
	slot = t->a.slot_bytes;
	atomic_store(&destroy_waits, true);
	leave(&t->a);
	join(t, &t->a, 0, 1, "run2");
	assert_true(t->host.node->destroying > 2 * slot);
	declare_elements(&t->a, 0, 1, LARGE);
	atomic_store(&pretended_left, slot);
	assert_int_equal(hand_send_prepare_early(&t->a), 0);
	turns(t, 200);
	assert_false(list_empty(&t->host.node->memory_waits));
	atomic_store(&destroy_waits, false);
	take_early(&t->a);
	assert_int_equal(t->a.n_slots, 3);
	close_fds(&t->a);
	/* Where nothing more will be free it is refused at once, with numbers. */
	leave(&t->a);
	join(t, &t->a, 0, 1, "run3");
	declare_elements(&t->a, 0, 1, LARGE);
	while (t->host.node->destroying)
		host_turn(&t->host);
	atomic_store(&pretended_left, slot);
	assert_int_equal(hand_prepare(&t->a), CKPT_ENOSPACE);
	assert_non_null(strstr(t->a.text, "MiB of the budget of"));
	assert_null(strstr(t->a.text, "memory.slots")); /* two do not fit either */
	assert_int_equal(the_job(t)->saves.problems[PROBLEM_PREPARE].lacks, PREPARE_BUDGET);
	atomic_store(&pretended_left, slot * 5 / 2);
	assert_int_equal(hand_prepare(&t->a), CKPT_ENOSPACE);
	test_says(t->a.text, "or lower memory.slots to 2 (");
}

/* The sentence names a budget that is enough. */
static void test_a_refusal_says_which_budget(void **state)
{
	struct node_test *t = *state;
	uint64_t budget, least;
	const char *at;

	begin_node(t);
	join(t, &t->a, 0, 1, "run1");
	declare_elements(&t->a, 0, 1, LARGE);
	real->available(t->host.memory, &budget);
	atomic_store(&pretended_left, 10u << 20);
	assert_int_equal(hand_prepare(&t->a), CKPT_ENOSPACE);
	at = strstr(t->a.text, "set memory.budget to at least ");
	assert_non_null(at);
	least = strtoull(at + strlen("set memory.budget to at least "), NULL, 10) << 20;
	assert_in_range(least, budget + 3ull * LARGE * 4 - (10u << 20), budget + (64u << 20));
	atomic_store(&pretended_left, (10u << 20) + least - budget);
	prepare_rank(&t->a);
}

static void refused_with(struct node_test *t, int code, enum prepare_lacks lacks, const char *word)
{
	struct problem *p = &the_job(t)->saves.problems[PROBLEM_PREPARE];
	uint64_t id = 0;
	json_t *list;

	atomic_store(&reserve_error, code);
	assert_int_equal(hand_send_prepare_early(&t->a), 0);
	assert_true(hand_receive(&t->a, &id) < 0);
	atomic_store(&reserve_error, 0);
	assert_true(p->stands);
	assert_int_equal(p->lacks, lacks);
	list = problems_json(the_job(t));
	assert_string_equal(json_string_value(json_object_get(json_array_get(list, 0), "lacks")),
			    word);
	json_decref(list);
}

/* The operator mends another thing for each of them. */
static void test_what_a_refusal_lacks(void **state)
{
	struct node_test *t = *state;

	begin_node(t);
	join(t, &t->a, 0, 1, "run1");
	declare_rank(&t->a, 0, 1);
	refused_with(t, -ENOMEM, PREPARE_MEMORY, "memory");
	test_says(t->a.text, "of memory.budget are left: the cgroup of ckptd or the machine has");
	refused_with(t, -ENOSPC, PREPARE_BUDGET, "budget");
	refused_with(t, CKPT_ENOSPACE, PREPARE_OTHER, "other");
}

/* The fd store is full, which has the code of a disk without room: no checkpoint gives way to it,
 * and it is said at once. */
static void test_a_full_store_is_no_full_disk(void **state)
{
	struct node_test *t = *state;
	uint64_t id = 0;

	begin_node(t);
	join(t, &t->a, 0, 1, "run1");
	declare_rank(&t->a, 0, 1);
	atomic_store(&reserve_error, CKPT_ENOSPACE);
	assert_int_equal(hand_send_prepare_early(&t->a), 0);
	assert_int_equal(hand_receive(&t->a, &id), CKPT_ENOSPACE);
	assert_false(the_job(t)->tight);
	atomic_store(&reserve_error, 0);
	assert_int_equal(hand_send_prepare_early(&t->a), 0);
	take_early(&t->a);
	assert_int_equal(t->a.n_slots, t->o.slots);
	close_fds(&t->a);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_first_slot_before_the_others),
		T(test_leaves_while_slots_are_filled),
		T(test_older_slots_make_new_ones_wait),
		T(test_fills_that_fail_are_tried_with_pauses),
		T(test_no_credit_without_pages),
		T(test_slots_behind_a_refusal),
#ifdef CKPT_FAULTS
		T(test_fault_points_of_a_fill),
#endif
		T(test_ready_before_the_slots_are_made),
		T(test_waits_for_what_is_destroyed),
		T(test_a_refusal_says_which_budget),
		T(test_what_a_refusal_lacks),
		T(test_a_full_store_is_no_full_disk),
	};

	return cmocka_run_group_tests_name("preparing", tests, NULL, NULL);
}
