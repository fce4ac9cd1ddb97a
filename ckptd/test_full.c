/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_full.c - one node whose disk has no room, whose log cannot be written, or that is told to
 * stop: training goes on, nothing is promised that is not so, and all of it is made good later.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "ckptd/loop_epoll.h"
#include "ckptd/node_priv.h"
#include "ckptd/test_node_rig.h"
#include "coord/record.h"
#include "proto/session.pb-c.h"
#include "proto/session_page.h"

#define RESERVE (64ull << 20)

/* Memory is lost. */
static void restart(struct node_test *t)
{
	end_node(t);
	begin_node(t);
	connect_rank(t, &t->a);
}

/* The base must be what was durable last. */
static void begin_again(struct node_test *t, uint64_t want)
{

	restart(t);
	assert_int_equal(open_rank(&t->a, 0, 1, "run2"), 0);
	assert_int_equal(t->a.base_step, want);
}

static void save_steps(struct node_test *t, uint64_t first, uint64_t last, uint32_t what)
{
	for (uint64_t step = first; step <= last; step += 10)
		save_until(&t->a, 0, step, what);
}

static void turn(struct node_test *t, int turns)
{
	for (int i = 0; i < turns; i++)
		loop_epoll_turn(t->host.loop, 10000000);
}

static void turn_until_file(struct node_test *t, const char *pattern)
{
	for (int i = 0; i < TURNS_MAX && count_files(t, pattern) == 0; i++)
		turn(t, 1);
}

/* ---- A full disk ---- */

static void test_reserve_is_kept(void **state)
{
	struct node_test *t = *state;

	t->o.disk_reserve = RESERVE;
	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_DURABLE);
	/* Who waits is told at once, and saves go on, more of them than there are slots. */
	pretended_room = RESERVE;
	for (uint64_t step = 20; step <= 80; step += 10) {
		save_until(&t->a, 0, step, CKPT_COMMITTED);
		assert_int_equal(hand_wait(&t->a, step, CKPT_DURABLE), CKPT_ENOSPACE);
	}
	/* Nobody need save or ask for the newest to be written once there is room. */
	pretended_room = UINT64_MAX;
	turn_until_file(t, "jobs/*/80.*/COMMIT");
	assert_int_equal(hand_wait(&t->a, 80, CKPT_DURABLE), 0);
}

/* keep_last checkpoints of all ranks, the base and the next one, beside the reserve. */
static void test_prepare_counts_the_job(void **state)
{
	struct node_test *t = *state;
	uint64_t one = ELEMENTS * 4ull + 32768;

	t->o.disk_reserve = RESERVE;
	t->o.retention.keep_last = 2;
	begin_node(t);
	join(t, &t->a, 0, 2, "run1");
	join(t, &t->b, 1, 2, "run1");
	pretended_room = RESERVE + 6 * one;
	declare_and_prepare(&t->a, 0, 2); /* of the other one nothing is known yet */
	declare_rank(&t->b, 1, 2);
	assert_int_equal(hand_prepare(&t->b), CKPT_ENOSPACE);
	pretended_room = RESERVE + 8 * one;
	prepare_rank(&t->b);
	pretended_room = UINT64_MAX;
	assert_int_equal(save_rank(&t->a, 0, 10), 0);
	save_until(&t->b, 1, 10, CKPT_DURABLE);
}

#define PAIR_ELEMENTS 1000000u
#define PAIR_BYTES    (PAIR_ELEMENTS * 4ull)
/* Of one checkpoint of two ranks: leaves with blobs, leaves that both write, what describes them.
 */
#define PAIR_MORE (PAIR_BYTES / 8)

/* Two ranks of a job, which declare the same or each its own. */
static void open_pair(struct node_test *t, const char *run, bool alike)
{
	begin_node(t);
	join(t, &t->a, 0, 2, run);
	join(t, &t->b, 1, 2, run);
	declare_elements(&t->a, 0, alike ? 1 : 2, PAIR_ELEMENTS);
	declare_elements(&t->b, alike ? 0 : 1, alike ? 1 : 2, PAIR_ELEMENTS);
}

static void begin_pair(struct node_test *t, bool dedup, bool alike)
{
	t->o.disk_reserve = RESERVE;
	t->o.retention.keep_last = 2;
	t->o.dedup = dedup;
	open_pair(t, "run1", alike);
}

/* With that much room besides the reserve. */
static void pair_is_refused(struct node_test *t, uint64_t room)
{
	pretended_room = RESERVE + room;
	assert_int_equal(hand_prepare(&t->a), CKPT_ENOSPACE);
}

static void pair_is_taken(struct node_test *t, uint64_t room)
{
	pretended_room = RESERVE + room;
	prepare_rank(&t->a);
	prepare_rank(&t->b);
}

/* What the ranks of a data-parallel job hold alike is written once, and counted once. */
static void test_prepare_counts_replicas_once(void **state)
{
	struct node_test *t = *state;

	begin_pair(t, true, true);
	pair_is_refused(t, 4 * PAIR_BYTES - 1);
	pair_is_taken(t, 4 * (PAIR_BYTES + PAIR_MORE));
	/* No more is written than was asked for. */
	pretended_room = UINT64_MAX;
	assert_int_equal(save_rank(&t->a, 0, 10), 0);
	save_until(&t->b, 0, 10, CKPT_DURABLE);
	assert_in_range(file_bytes(t, "jobs/*/10.*/rank-*"), PAIR_BYTES, PAIR_BYTES + PAIR_MORE);
	end_node(t);
	/* It holds one of the four, though its two images are two. */
	open_pair(t, "run2", true);
	pair_is_refused(t, 5 * PAIR_BYTES / 2);
	pair_is_taken(t, 3 * PAIR_BYTES + 4 * PAIR_MORE);
}

static void expect_all_copies(struct node_test *t, bool dedup, bool alike)
{
	begin_pair(t, dedup, alike);
	pair_is_refused(t, 8 * PAIR_BYTES - 1);
	test_says(t->a.text, "4 checkpoints of the ranks that have declared need 31 MiB more");
	test_says(t->a.text, "disk, 94 MiB are free (0 MiB of them spare files) and 64");
	test_says(t->a.text, ", or set retention.keep_last or storage.disk_reserve lower");
	pair_is_taken(t, 8 * (PAIR_BYTES + PAIR_MORE));
}

static void test_prepare_counts_all_copies(void **state)
{
	expect_all_copies(*state, false, true);
}

/* What is named as a remedy is one. */
static void test_refusal_names_what_helps(void **state)
{
	struct node_test *t = *state;

	t->o.retention.keep_last = 1;
	t->o.disk_reserve = RESERVE;
	open_pair(t, "run1", true);
	pretended_room = RESERVE / 2;
	assert_int_equal(hand_prepare(&t->a), CKPT_ENOSPACE);
	test_says(t->a.text, "is, or set storage.disk_reserve lower");
	assert_null(strstr(t->a.text, "keep_last lower"));
	pretended_room = PAIR_BYTES;
	assert_int_equal(hand_prepare(&t->a), CKPT_ENOSPACE);
	assert_null(strstr(t->a.text, ", or set"));
}

static void test_prepare_counts_what_differs(void **state)
{
	expect_all_copies(*state, true, false);
}

/* A job that cannot be made leaves nothing, nor in memory: who opens it tries again and again. */
static void test_open_on_a_full_disk(void **state)
{
	struct node_test *t = *state;

	begin_node(t);
	connect_rank(t, &t->a);
	token_error = -ENOSPC;
	for (int i = 0; i < 3; i++)
		assert_int_equal(open_rank(&t->a, 0, 1, "run1"), -ENOSPC);
	test_says(t->a.text, "/token' of job 'job': No space left on device; free space there");
	assert_true(was_told("3 job 'job': the job cannot be made: cannot write '"));
	assert_int_equal(count_files(t, "jobs/*"), 0);
	turn(t, 10);
	assert_true(list_empty(&t->host.node->failed_jobs));
	token_error = 0;
	assert_int_equal(open_rank(&t->a, 0, 1, "run1"), 0);
}

/* Spare files give way to records as well. */
static void test_log_gets_the_room_of_spare_files(void **state)
{
	struct node_test *t = *state;

	t->o.retention.keep_last = 1;
	t->o.persist_every = 100; /* nor is a spare file taken for a checkpoint */
	begin_one(t);
	save_steps(t, 10, 20, CKPT_DURABLE);
	turn_until_file(t, "spare/*");
	log_wants_spare = true;
	save_until(&t->a, 0, 30, CKPT_COMMITTED);
}

/* ---- A log that cannot be written ---- */

static void test_saves_go_on_without_the_log(void **state)
{
	struct node_test *t = *state;

	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_DURABLE);
	log_error = -ENOSPC;
	for (uint64_t step = 20; step <= 90; step += 10)
		assert_int_equal(save_rank(&t->a, 0, step), 0);
	/* What had to give way is said to be aborted; what is on its way is not said to be there.
	 */
	assert_int_equal(hand_wait(&t->a, 20, CKPT_COMMITTED), CKPT_EABORTED);
	assert_int_equal(count_files(t, "jobs/*/90.*/COMMIT"), 0);
	load_rank_at(&t->a, 0, 10, CKPT_TIER_MEMORY, 10);
	/* Nobody need do anything for the newest to be committed once the log can be written. */
	log_error = 0;
	assert_int_equal(hand_wait(&t->a, 90, CKPT_DURABLE), 0);
	assert_int_equal(hand_wait(&t->a, 60, CKPT_COMMITTED), CKPT_EABORTED);
	save_until(&t->a, 0, 100, CKPT_DURABLE);
	/* Each of the steps would have its line. */
	assert_int_equal(times_told(" aborted: the job's log cannot be written"), 1);
	assert_true(was_told("is in it; from step 20 on "));
	assert_true(was_told(" steps were given up meanwhile"));
	/* The log is whole, and says the same after a start. */
	begin_again(t, 100);
}

/* The epoch of an open that has given up: the ranks that are there are of it, and one that replaces
 * one of them begins the next (I15). */
static void test_an_epoch_that_no_open_waits_for(void **state)
{
	struct node_test *t = *state;
	uint64_t end = 0;
	struct job *j;

	t->o.settle_timeout_ns = 100000000;
	begin_two(t);
	j = the_job(t);
	member_left(member_of_rank(j, 1), MEMBER_ENDED);
	leave(&t->b);
	log_error = -ENOSPC;
	connect_rank(t, &t->b);
	assert_int_equal(open_rank(&t->b, 1, 2, "run1"), CKPT_ETIMEDOUT);
	log_error = 0;
	while (j->history.epoch.number < 2 && turn_on(t, &end))
		;
	leave(&t->b);
	join(t, &t->b, 1, 2, "run1");
	assert_int_equal(j->history.epoch.number, 2);
	member_left(member_of_rank(j, 0), MEMBER_ENDED);
	leave(&t->a);
	join(t, &t->a, 0, 2, "run1");
	assert_int_equal(j->history.epoch.number, 3);
}

/* Its record has its name and may be there after a loss of power, or not: its bytes stay. */
static void test_what_may_be_in_the_log_stays(void **state)
{
	struct node_test *t = *state;

	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_DURABLE);
	log_sync_error = -EIO;
	assert_int_equal(save_rank(&t->a, 0, 20), 0);
	assert_int_equal(save_rank(&t->a, 0, 30), 0);
	turn(t, 100);
	assert_int_equal(t->a.page->credit, t->a.used_credit); /* three slots are taken */
	log_sync_error = 0;
	assert_int_equal(hand_wait(&t->a, 20, CKPT_COMMITTED), 0);
	assert_int_equal(hand_wait(&t->a, 30, CKPT_DURABLE), 0);
	begin_again(t, 30);
}

#ifdef CKPT_FAULTS
/* Not even the record that ckptd leads the log can be made: what waits for it is refused. */
static void test_records_that_cannot_be_made(void **state)
{
	struct node_test *t = *state;

	begin_one(t);
	restart(t);
	fault_arm(FAULT_LOG_ENCODE, FAULT_ERROR, 1, true);
	assert_int_equal(open_rank(&t->a, 0, 1, "run2"), -ENOMEM);
	fault_disarm_all();
	assert_int_equal(open_rank(&t->a, 0, 1, "run2"), 0);
}

/* The data folder is gone when a record has its turn: nothing is committed, and a problem stands,
 * until it is back. */
static void test_records_without_a_data_folder(void **state)
{
	struct node_test *t = *state;
	uint64_t end = 0;

	begin_one(t);
	fault_arm(FAULT_FOLDER_CHECK, FAULT_ERROR, 1, true);
	save_until(&t->a, 0, 10, CKPT_SEALED);
	while (!problems_stand(the_job(t), PROBLEM_LOG) && turn_on(t, &end))
		;
	assert_true(was_told("of the log: the data folder is gone"));
	for (int i = 0; i < 200; i++)
		loop_epoll_turn(t->host.loop, 1000000);
	assert_int_equal(the_job(t)->history.n_commits, 0);
	fault_disarm_all();
	while (problems_stand(the_job(t), PROBLEM_LOG) && turn_on(t, &end))
		;
	assert_false(problems_stand(the_job(t), PROBLEM_LOG));
	assert_int_equal(hand_wait(&t->a, 10, CKPT_DURABLE), 0);
}

static bool has_credit(struct node_test *t, int turns)
{
	for (int i = 0; i < turns && t->a.page->credit == t->a.used_credit; i++)
		loop_epoll_turn(t->host.loop, 1000000);
	return t->a.page->credit != t->a.used_credit;
}

/* A slot of which the ledger could not say that it is empty is used again once it can. */
static void test_slots_that_could_not_be_emptied(void **state)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Credit credit = CKPT__CREDIT__INIT;
	struct node_test *t = *state;
	uint64_t step = 0;

	begin_one(t);
	fault_arm(FAULT_SLOT_EMPTIED, FAULT_ERROR, 1, true);
	while (has_credit(t, 200)) {
		assert_in_range(step += 10, 10, 50);
		save_until(&t->a, 0, step, CKPT_DURABLE);
	}
	fault_disarm_all();
	q.body_case = CKPT__REQUEST__BODY_CREDIT;
	q.credit = &credit;
	assert_int_equal(hand_send(&t->a, &q), 0);
	assert_true(has_credit(t, 1000));
}
#endif

/* ---- A log that grows ---- */

/* A word of ckptctl about one step, which is not refused. */
static void admin(struct hand *k, int verb, uint64_t step, struct hand_answer *ret)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Admin m = CKPT__ADMIN__INIT;

	m.verb = verb;
	m.job = (char *)"job";
	m.step = step;
	q.body_case = CKPT__REQUEST__BODY_ADMIN;
	q.admin = &m;
	if (hand_ask(k, &q, ret))
		fail_msg("%s", k->text);
}

/* Pins a step; what is said of it is for the caller to free. */
static char *pin(struct hand *k, uint64_t step)
{
	struct hand_answer a;
	char *text;

	admin(k, CKPT__ADMIN__VERB__PIN, step, &a);
	text = strdup(a.reply->text);
	hand_answer_free(&a);
	return text;
}

/* The JSON is for the caller to free. */
static char *job_status(struct hand *k)
{
	struct hand_answer a;
	char *json = NULL;

	admin(k, CKPT__ADMIN__VERB__STATUS, 0, &a);
	if (a.n_fds > 0) { /* it is long */
		off_t len = lseek(a.fds[0], 0, SEEK_END);

		json = calloc(1, (size_t)len + 1);
		assert_int_equal(pread(a.fds[0], json, (size_t)len, 0), len);
	} else if (a.reply->admin) {
		json = strndup((char *)a.reply->admin->json.data, a.reply->admin->json.len);
	}
	hand_answer_free(&a);
	return json;
}

static void test_log_is_trimmed_without_commits(void **state)
{
	struct node_test *t = *state;
	char run[16];

	t->o.log_trim = 8;
	begin_one(t);
	for (int i = 2; i < 40; i++) {
		leave(&t->a);
		snprintf(run, sizeof(run), "run%d", i);
		join(t, &t->a, 0, 1, run);
	}
	turn(t, 100); /* the last trim may be under way */
	assert_true(count_files(t, "jobs/*/log/0*") <= 12);
	restart(t);
	assert_int_equal(open_rank(&t->a, 0, 1, "run38"), CKPT_EEPOCH);
	assert_int_equal(open_rank(&t->a, 0, 1, "run40"), 0);
}

static void assert_status_has(struct node_test *t, const char *words)
{
	char *text = job_status(&t->a);

	assert_non_null(strstr(text, words));
	free(text);
}

/* More steps than a summing record once held, some of them lost with the memory. */
static void test_log_of_many_pinned_steps_is_trimmed(void **state)
{
	struct node_test *t = *state;
	uint64_t step = 1;

	t->o.persist_every = 1000;
	t->o.log_trim = 50;
	begin_one(t);
	for (; step <= 288; step++) {
		save_until(&t->a, 0, step, CKPT_COMMITTED);
		free(pin(&t->a, step));
	}
	assert_true(count_files(t, "jobs/*/log/0*") <= 100);
	restart(t); /* what only memory had is lost when the next run opens */
	assert_int_equal(open_rank(&t->a, 0, 1, "run2"), 0);
	declare_and_prepare(&t->a, 0, 1);
	load_rank(&t->a, 0, t->a.base_step, CKPT_TIER_DISK);
	for (; step <= 660; step++) {
		save_until(&t->a, 0, step, CKPT_COMMITTED);
		free(pin(&t->a, step));
	}
	assert_status_has(t, "\"log_trim_error\":\"\"");
	assert_true(count_files(t, "jobs/*/log/0*") <= 100);
	restart(t);
	assert_status_has(t, "\"log_error\":\"\"");
	assert_int_equal(open_rank(&t->a, 0, 1, "run3"), 0);
}

/* ---- Memory that goes bad before it is on disk ---- */

/* Loads a step and says that the first leaf of its first source does not match. */
static void report_leaf(struct hand *k, uint64_t step)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Load l = CKPT__LOAD__INIT;
	Ckpt__LoadEnd end = CKPT__LOAD_END__INIT;
	struct hand_answer a;

	l.step = step;
	q.body_case = CKPT__REQUEST__BODY_LOAD;
	q.load = &l;
	assert_int_equal(hand_ask(k, &q, &a), 0);
	end.load = a.reply->load->load;
	end.failed = true;
	hand_answer_free(&a);
	q.body_case = CKPT__REQUEST__BODY_LOAD_END;
	q.load_end = &end;
	assert_int_equal(hand_ask_code(k, &q), 0);
}

static void test_damaged_before_durable(void **state)
{
	struct node_test *t = *state;

	t->o.persist_every = 100;
	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_COMMITTED);
	for (size_t i = 0; i < t->a.n_slots; i++)
		t->a.slots[i][0] ^= 1;
	report_leaf(&t->a, 10);
	assert_int_equal(hand_wait(&t->a, 10, CKPT_DURABLE), CKPT_ELOST);
	/* The next one has nothing to do with it. */
	save_until(&t->a, 0, 20, CKPT_DURABLE);
	assert_int_equal(hand_wait(&t->a, 10, CKPT_DURABLE), CKPT_ESUPERSEDED);
}

/* ---- Pins ---- */

/* Whatever else policy would write, and however many newer ones there are. */
/* A Wait that only asks is not why a step is written. */
static void test_a_question_writes_nothing(void **state)
{
	struct node_test *t = *state;
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Wait wait = CKPT__WAIT__INIT;
	uint64_t id;

	t->o.persist_every = 1000;
	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_DURABLE);
	save_until(&t->a, 0, 20, CKPT_COMMITTED);
	wait.step = 20;
	wait.what = CKPT_DURABLE;
	wait.asks = true;
	q.body_case = CKPT__REQUEST__BODY_WAIT;
	q.wait = &wait;
	assert_int_equal(hand_send(&t->a, &q), 0);
	turn(t, 100);
	assert_int_equal(hand_wait(&t->a, 20, CKPT_COMMITTED), 0); /* it has been seen */
	assert_false(checkpoint_find(the_job(t), t->a.epoch, 20)->wait_durable);
	assert_int_equal(count_files(t, "jobs/*/20.*/*"), 0);
	assert_int_equal(hand_send_wait(&t->a, 20, CKPT_DURABLE), 0); /* now both are answered */
	for (int i = 0; i < 2; i++)
		assert_int_equal(hand_receive(&t->a, &id), 0);
}

static void test_pin_is_written(void **state)
{
	struct node_test *t = *state;
	char *text;

	t->o.persist_every = 1000;
	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_COMMITTED);
	text = pin(&t->a, 10);
	assert_non_null(strstr(text, "is being written"));
	free(text);
	save_steps(t, 20, 90, CKPT_COMMITTED);
	assert_int_equal(hand_wait(&t->a, 10, CKPT_DURABLE), 0);
	load_rank_at(&t->a, 0, 10, CKPT_TIER_DISK, 10);
	text = pin(&t->a, 10);
	assert_string_equal(text, "");
	free(text);
}

/* It waits its turn behind the one being written, and newer ones that are wanted wait for it. */
static void test_pin_keeps_its_place(void **state)
{
	struct node_test *t = *state;

	begin_one(t);
	pretended_room = 0;
	assert_int_equal(save_rank(&t->a, 0, 10), 0);
	assert_int_equal(hand_wait(&t->a, 10, CKPT_DURABLE), CKPT_ENOSPACE);
	assert_int_equal(hand_wait(&t->a, 10, CKPT_COMMITTED), 0);
	free(pin(&t->a, 10));
	/* There is a slot for it as long as it is not the last one. */
	assert_int_equal(save_rank(&t->a, 0, 20), 0);
	assert_int_equal(hand_wait(&t->a, 20, CKPT_DURABLE), CKPT_ENOSPACE);
	load_rank_at(&t->a, 0, 10, CKPT_TIER_MEMORY, 10);
	pretended_room = UINT64_MAX;
	turn_until_file(t, "jobs/*/20.*/COMMIT");
	assert_int_equal(count_files(t, "jobs/*/10.*/COMMIT"), 1);
}

/* Training goes on where it cannot be written: it gives way, and that is said. */
static void test_pin_gives_way(void **state)
{
	struct node_test *t = *state;

	begin_one(t);
	shard_error = -EIO;
	assert_int_equal(save_rank(&t->a, 0, 10), 0);
	assert_int_equal(hand_wait(&t->a, 10, CKPT_DURABLE), CKPT_EIO);
	assert_int_equal(hand_wait(&t->a, 10, CKPT_COMMITTED), 0);
	free(pin(&t->a, 10));
	save_steps(t, 20, 90, CKPT_COMMITTED);
	assert_true(hand_wait(&t->a, 10, CKPT_DURABLE) < 0);
	assert_true(was_told("step 10 was pinned and is lost"));
}

/* ---- An orderly stop ---- */

static void on_stopped(void *arg)
{
	*(bool *)arg = true;
}

static bool turn_until(struct node_test *t, const bool *what, int turns)
{
	for (int i = 0; i < turns && !*what; i++)
		loop_epoll_turn(t->host.loop, 10000000);
	return *what;
}

/* With that much time, which is not all needed. */
static void stop_in_order(struct node_test *t, uint64_t ns)
{
	bool stopped = false;

	node_stop(t->host.node, ns, on_stopped, &stopped);
	assert_true(turn_until(t, &stopped, TURNS_MAX));
}

static void test_stop_writes_what_was_sealed(void **state)
{
	struct node_test *t = *state;
	bool stopped = false;

	t->o.persist_every = 100;
	begin_one(t);
	log_error = -EIO;
	assert_int_equal(save_rank(&t->a, 0, 10), 0); /* cannot be COMMITTED yet */
	turn(t, 50);
	node_stop(t->host.node, 60000000000u, on_stopped, &stopped);
	assert_false(turn_until(t, &stopped, 50));
	log_error = 0;
	assert_true(turn_until(t, &stopped, TURNS_MAX));
	begin_again(t, 10);
}

/* What was given up is tried once more: it would be lost. */
static void test_stop_tries_again(void **state)
{
	struct node_test *t = *state;

	begin_one(t);
	shard_error = -EIO;
	assert_int_equal(save_rank(&t->a, 0, 10), 0);
	assert_int_equal(hand_wait(&t->a, 10, CKPT_DURABLE), CKPT_EIO);
	shard_error = 0;
	stop_in_order(t, 60000000000u);
	begin_again(t, 10);
	/* It waits for nothing that cannot be had: not for what has failed again, nor for longer
	 * than it was told. */
	declare_and_prepare(&t->a, 0, 1);
	load_rank(&t->a, 0, 10, CKPT_TIER_DISK);
	shard_error = -EIO;
	save_until(&t->a, 0, 20, CKPT_COMMITTED);
	stop_in_order(t, 3600000000000u);
}

/* Also where its files failed before its record was in the log. */
static void test_stop_tries_uncommitted_again(void **state)
{
	struct node_test *t = *state;
	bool stopped = false;

	begin_one(t);
	shard_error = -EIO;
	log_sync_waits = true;
	assert_int_equal(save_rank(&t->a, 0, 10), 0);
	turn_until_told(t, "write step 10 to disk, try 3 of 3");
	assert_int_equal(list_first(&the_job(t)->checkpoints, struct checkpoint, link)->agreed,
			 CP_COMMITTING);
	node_stop(t->host.node, 60000000000u, on_stopped, &stopped);
	shard_error = 0;
	log_sync_waits = false;
	assert_true(turn_until(t, &stopped, TURNS_MAX));
	begin_again(t, 10);
}

/* It is unmounted behind the commit's record, before the last fsync of COMMIT (I7). */
static void test_folder_goes_before_the_last_fsync(void **state)
{
	struct node_test *t = *state;

	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_DURABLE);
	folder_gone_with = "jobs/*/20.*/COMMIT";
	save_until(&t->a, 0, 20, CKPT_COMMITTED);
	assert_int_equal(hand_wait(&t->a, 20, CKPT_DURABLE), CKPT_EIO);
	test_says(t->a.text, "it is in memory, and is written when the folder is back: the data");
	turn_until_told(t,
			"step 20 stays in memory until its data folder is back: the data folder");
	assert_int_equal(count_files(t, "jobs/*/20.*/COMMIT"), 0);
	/* No try counts, and nobody need ask for it when the folder is back. */
	assert_int_equal(checkpoint_find(the_job(t), t->a.epoch, 20)->persist_tries, 0);
	folder_gone_with = NULL;
	turn_until_file(t, "jobs/*/20.*/COMMIT");
	assert_int_equal(hand_wait(&t->a, 20, CKPT_DURABLE), 0);
	assert_false(problems_stand(the_job(t), PROBLEM_FOLDER));
	begin_again(t, 20);
}

/* What it could not write is said, of each job once, with why. */
static void test_stop_says_what_is_lost(void **state)
{
	struct node_test *t = *state;

	begin_one(t);
	assert_int_equal(node_stop_lost(t->host.node, "at all"), 0);
	shard_error = -EIO;
	save_until(&t->a, 0, 7, CKPT_COMMITTED);
	stop_in_order(t, 3600000000000u);
	assert_int_equal(node_stop_lost(t->host.node, "at all"), 1);
	assert_true(was_told("3 job 'job': step 7 is committed and is lost with this stop"));
	assert_true(was_told("could not be written: cannot begin "));
}

/* A durable step whose file is damaged: memory has the only good copy. */
static void save_and_damage(struct node_test *t, uint64_t step)
{
	struct checkpoint *c;

	save_until(&t->a, 0, step, CKPT_DURABLE);
	list_each(c, &the_job(t)->checkpoints, link)
		if (c->step == step)
			checkpoint_suspect(c, 0, "rank 0: for a test");
}

static void test_stop_writes_damaged_files_again(void **state)
{
	struct node_test *t = *state;

	begin_one(t);
	save_and_damage(t, 10);
	stop_in_order(t, 60000000000u);
	assert_true(was_told("step 10: 1 of its files were damaged and are written again"));
	assert_int_equal(node_stop_lost(t->host.node, "at all"), 0);
	begin_again(t, 10);
}

static void test_stop_says_that_damage_stays(void **state)
{
	struct node_test *t = *state;

	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_DURABLE);
	save_and_damage(t, 20);
	shard_error = -EIO;
	stop_in_order(t, 3600000000000u);
	assert_int_equal(node_stop_lost(t->host.node, "at all"), 1);
	assert_true(was_told("3 job 'job': step 20 is committed and is lost with this stop"));
	assert_true(was_told("could not be written at all: rank 0: for a test"));
}

static void test_stop_is_bounded(void **state)
{
	struct node_test *t = *state;

	begin_one(t);
	log_error = -EIO;
	assert_int_equal(save_rank(&t->a, 0, 10), 0);
	stop_in_order(t, 100000000u);
	assert_int_equal(node_stop_lost(t->host.node, "within a moment"), 1);
	assert_true(was_told("3 job 'job': step 10 was saved by every rank and could not be "
			     "committed within a moment: "));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		NODE_TEST(test_reserve_is_kept),
		NODE_TEST(test_prepare_counts_the_job),
		NODE_TEST(test_prepare_counts_replicas_once),
		NODE_TEST(test_prepare_counts_all_copies),
		NODE_TEST(test_prepare_counts_what_differs),
		NODE_TEST(test_refusal_names_what_helps),
		NODE_TEST(test_open_on_a_full_disk),
		NODE_TEST(test_log_gets_the_room_of_spare_files),
		NODE_TEST(test_saves_go_on_without_the_log),
		NODE_TEST(test_an_epoch_that_no_open_waits_for),
		NODE_TEST(test_what_may_be_in_the_log_stays),
#ifdef CKPT_FAULTS
		NODE_TEST(test_records_that_cannot_be_made),
		NODE_TEST(test_records_without_a_data_folder),
		NODE_TEST(test_slots_that_could_not_be_emptied),
#endif
		NODE_TEST(test_log_is_trimmed_without_commits),
		NODE_TEST(test_log_of_many_pinned_steps_is_trimmed),
		NODE_TEST(test_damaged_before_durable),
		NODE_TEST(test_a_question_writes_nothing),
		NODE_TEST(test_pin_is_written),
		NODE_TEST(test_pin_keeps_its_place),
		NODE_TEST(test_pin_gives_way),
		NODE_TEST(test_stop_writes_what_was_sealed),
		NODE_TEST(test_stop_tries_again),
		NODE_TEST(test_stop_tries_uncommitted_again),
		NODE_TEST(test_folder_goes_before_the_last_fsync),
		NODE_TEST(test_stop_says_what_is_lost),
		NODE_TEST(test_stop_writes_damaged_files_again),
		NODE_TEST(test_stop_says_that_damage_stays),
		NODE_TEST(test_stop_is_bounded),
	};

	return cmocka_run_group_tests_name("full", tests, NULL, NULL);
}
