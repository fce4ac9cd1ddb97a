/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_stop.c - users cannot prolong an orderly stop: what they ask for meanwhile is refused or
 * left to the next ckptd, and it waits for nothing that is only theirs.
 *
 * The stop is held open by a log that cannot be written, where a test needs that.
 */
#include <config.h>

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/conn.h"
#include "base/fair.h"
#include "ckptd/loop_epoll.h"
#include "ckptd/node_priv.h"
#include "ckptd/replicas.h"
#include "ckptd/session.h"
#include "ckptd/test_node_rig.h"
#include "ckptd/user.h"
#include "proto/session.pb-c.h"

#define USER    65533u
#define LONG_NS 3600000000000u
#define SOME    50 /* turns, in which an answer would have come */

static int end_block(void **state)
{
	if (geteuid() != getuid())
		ignore_result(seteuid(getuid()) /* a failed test */);
	return node_test_teardown(state);
}

#define STOP_TEST(f) cmocka_unit_test_setup_teardown(f, node_test_setup, end_block)

/* ---- Stopping ---- */

static void on_stopped(void *arg)
{
	*(bool *)arg = true;
}

static void turn(struct node_test *t, int turns)
{
	for (int i = 0; i < turns; i++)
		loop_epoll_turn(t->host.loop, 10000000);
}

static bool turn_until(struct node_test *t, const bool *what)
{
	for (int i = 0; i < 1000 && !*what; i++)
		turn(t, 1);
	return *what;
}

/* The stop cannot end before log_error is 0. */
static void begin_stop(struct node_test *t, bool *stopped)
{
	*stopped = false;
	log_error = -EIO;
	assert_int_equal(save_rank(&t->a, 0, 20), 0);
	turn(t, SOME);
	node_stop(t->host.node, LONG_NS, on_stopped, stopped);
	turn(t, SOME);
	assert_false(*stopped);
}

static void end_stop(struct node_test *t, const bool *stopped)
{
	log_error = 0;
	assert_true(turn_until(t, stopped));
}

/* ---- Requests ---- */

static bool has_answer(struct hand *k)
{
	struct pollfd p = {.fd = k->fd, .events = POLLIN};

	return poll(&p, 1, 0) > 0;
}

static void send_admin(struct hand *k, Ckpt__Admin__Verb verb)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Admin m = CKPT__ADMIN__INIT;

	m.verb = verb;
	m.job = (char *)(verb == CKPT__ADMIN__VERB__STATUS ? "" : "job");
	m.step = 10;
	q.body_case = CKPT__REQUEST__BODY_ADMIN;
	q.admin = &m;
	assert_int_equal(hand_send(k, &q), 0);
}

/* Its code. */
static int admin(struct hand *k, Ckpt__Admin__Verb verb, const char *words)
{
	struct hand_answer a = {0};
	int code;

	send_admin(k, verb);
	assert_int_equal(hand_take(k, &a), 0);
	code = a.reply->code;
	if (words)
		assert_non_null(strstr(a.reply->text, words));
	hand_answer_free(&a);
	return code;
}

static void send_load(struct hand *k)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Load m = CKPT__LOAD__INIT;

	m.step = 10;
	q.body_case = CKPT__REQUEST__BODY_LOAD;
	q.load = &m;
	assert_int_equal(hand_send(k, &q), 0);
}

static void send_list(struct hand *k)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__List m = CKPT__LIST__INIT;

	q.body_case = CKPT__REQUEST__BODY_LIST;
	q.list = &m;
	assert_int_equal(hand_send(k, &q), 0);
}

/* Of a user who sees only their own jobs. */
static void connect_user(struct node_test *t, struct hand *k)
{
	assert_int_equal(chmod(t->dir, 0711), 0);
	assert_int_equal(chmod(t->socket, 0666), 0);
	assert_int_equal(seteuid(USER), 0);
	assert_int_equal(hand_connect(k, &t->host), 0);
	assert_int_equal(seteuid(0), 0);
}

/* ---- Tests ---- */

/* An answer that is being made, a close, a region that is freed: none is waited for. */
static void test_waits_for_no_user(void **state)
{
	struct node_test *t = *state;
	struct node *n;
	bool stopped = false;
	int fds[2];

	begin_one(t);
	n = t->host.node;
	save_until(&t->a, 0, 10, CKPT_DURABLE);
	turn(t, SOME);
	assert_int_equal(pipe(fds), 0);
	block(t, WORK_META, USER);
	node_close_unsent(n, USER, &fds[0], 1);
	node_close_unsent(n, USER, &fds[1], 1);
	node_stop(n, LONG_NS, on_stopped, &stopped);
	assert_true(turn_until(t, &stopped));
	assert_true(still_blocked());
}

static void test_waits_for_no_answer(void **state)
{
	struct node_test *t = *state;
	bool stopped = false;
	struct hand k;

	if (geteuid() != 0)
		skip();
	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_DURABLE);
	connect_user(t, &k);
	turn(t, SOME);
	block(t, WORK_META, USER);
	send_admin(&k, CKPT__ADMIN__VERB__STATUS);
	turn(t, SOME);
	assert_int_equal(t->host.node->answers.n, 1); /* its text is to be made */
	node_stop(t->host.node, LONG_NS, on_stopped, &stopped);
	assert_true(turn_until(t, &stopped));
	assert_true(still_blocked());
	unblock(t);
	turn(t, SOME);
	assert_false(has_answer(&k)); /* it was cancelled */
	hand_close(&k);
}

/* A plan under way is cancelled at once, and its process asks the next ckptd. So does one whose
 * load comes later. */
static void test_loads_wait(void **state)
{
	struct node_test *t = *state;
	bool stopped = false;

	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_DURABLE);
	log_error = -EIO;
	assert_int_equal(save_rank(&t->a, 0, 20), 0);
	block(t, WORK_PLAN, (uint32_t)geteuid());
	send_load(&t->a);
	turn(t, SOME);
	node_stop(t->host.node, LONG_NS, on_stopped, &stopped);
	unblock(t);
	turn(t, SOME);
	assert_false(stopped);
	assert_false(has_answer(&t->a));
	send_load(&t->a);
	turn(t, SOME);
	assert_false(has_answer(&t->a));
	end_stop(t, &stopped);
}

/* Deeds are refused, and so are looks of a user; those of an operator are answered. Requests of
 * ranks get no answer: so libckpt asks the next ckptd. Waits get theirs. */
static void test_requests_meanwhile(void **state)
{
	struct node_test *t = *state;
	struct hand k, op;
	bool stopped;

	if (geteuid() != 0)
		skip();
	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_DURABLE);
	connect_user(t, &k);
	assert_int_equal(hand_connect(&op, &t->host), 0);
	begin_stop(t, &stopped);
	assert_int_equal(hand_send_wait(&t->a, 20, CKPT_DURABLE), 0);
	assert_int_equal(admin(&k, CKPT__ADMIN__VERB__STATUS, "status: ckptd is stopping"),
			 -EAGAIN);
	assert_int_equal(admin(&k, CKPT__ADMIN__VERB__EVENTS, "events: ckptd is stopping"),
			 -EAGAIN);
	assert_int_equal(admin(&op, CKPT__ADMIN__VERB__STATUS, NULL), 0);
	assert_int_equal(admin(&op, CKPT__ADMIN__VERB__PIN, "ckptd is stopping"), -EAGAIN);
	assert_int_equal(admin(&op, CKPT__ADMIN__VERB__CLEAR, "ckptd is stopping"), -EAGAIN);
	send_list(&t->a);
	turn(t, SOME);
	assert_false(has_answer(&t->a));
	log_error = 0;
	assert_int_equal(hand_receive(&t->a, &(uint64_t){0}), 0); /* the wait */
	assert_true(turn_until(t, &stopped));
	assert_int_equal(admin(&op, CKPT__ADMIN__VERB__STATUS, "ckptd is stopping"), -EAGAIN);
	assert_false(has_answer(&t->a));
	hand_close(&k);
	hand_close(&op);
}

static void test_declares_wait(void **state)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Declare m = CKPT__DECLARE__INIT;
	struct node_test *t = *state;
	uint8_t digest[16] = {1}, bytes[64] = {0};
	bool stopped;

	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_DURABLE);
	begin_stop(t, &stopped);
	m.digest = (ProtobufCBinaryData){sizeof(digest), digest};
	m.bytes = (ProtobufCBinaryData){sizeof(bytes), bytes};
	q.body_case = CKPT__REQUEST__BODY_DECLARE;
	q.declare = &m;
	assert_int_equal(hand_send(&t->a, &q), 0);
	turn(t, SOME);
	assert_false(has_answer(&t->a));
	end_stop(t, &stopped);
}

/* ---- Works of a user that take long ---- */

static void send_prepare(struct hand *k)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Prepare m = CKPT__PREPARE__INIT;

	q.body_case = CKPT__REQUEST__BODY_PREPARE;
	q.prepare = &m;
	assert_int_equal(hand_send(k, &q), 0);
}

/* Two ranks hold the same: what is alike is looked for, and a Prepare waits for that. No file does:
 * the stop does not either, and the search ends as soon as it can. */
static void test_waits_for_no_search(void **state)
{
	struct node_test *t = *state;
	bool stopped = false;
	struct user *u;

	begin_node(t);
	join(t, &t->a, 0, 2, "run1");
	join(t, &t->b, 1, 2, "run1");
	block(t, WORK_CHECK, (uint32_t)geteuid());
	declare_elements(&t->a, 0, 1, ELEMENTS);
	declare_elements(&t->b, 0, 1, ELEMENTS);
	send_prepare(&t->a);
	turn(t, SOME);
	u = the_job(t)->user;
	assert_true(u->has[USER_PLAN_BYTES] > 0); /* it is on its way */
	node_stop(t->host.node, LONG_NS, on_stopped, &stopped);
	assert_true(turn_until(t, &stopped));
	assert_true(still_blocked());
	unblock(t);
	turn(t, SOME);
	assert_int_equal(u->has[USER_PLAN_BYTES], 0); /* it found nothing */
	assert_false(was_told("hold alike could not be looked for"));
	assert_false(has_answer(&t->a));
}

static bool spare_all(struct job *j)
{
	(void)j;
	return true;
}

/* Where files will wait for it the search goes on: there may be no room for whole ones. */
static void test_spares_a_search_that_files_need(void **state)
{
	struct node_test *t = *state;

	begin_node(t);
	join(t, &t->a, 0, 2, "run1");
	join(t, &t->b, 1, 2, "run1");
	block(t, WORK_CHECK, (uint32_t)geteuid());
	declare_elements(&t->a, 0, 1, ELEMENTS);
	declare_elements(&t->b, 0, 1, ELEMENTS);
	send_prepare(&t->a);
	turn(t, SOME);
	replicas_cancel(t->host.node, spare_all);
	unblock(t);
	for (uint64_t end = 0; !has_answer(&t->a);)
		assert_true(turn_on(t, &end));
	assert_true(the_job(t)->user->has[USER_PLAN_BYTES] > 0);
}

/* A Prepare that has not begun asks for nothing any more. */
static void test_prepares_end(void **state)
{
	struct node_test *t = *state;
	bool stopped = false;

	begin_node(t);
	join(t, &t->a, 0, 1, "run1");
	declare_rank(&t->a, 0, 1);
	block(t, WORK_MEMORY, (uint32_t)geteuid());
	pretended_room = 0;
	send_prepare(&t->a);
	turn(t, SOME);
	node_stop(t->host.node, LONG_NS, on_stopped, &stopped);
	assert_true(turn_until(t, &stopped));
	unblock(t);
	turn(t, SOME);
	assert_false(has_answer(&t->a)); /* the disk has no room: that would be an answer */
}

static void declare_half(struct hand *k, uint64_t from)
{
	struct shard s = {.name = "w",
			  .name_len = 1,
			  .dtype = CKPT_F32,
			  .global = {1, {1000}},
			  .box = {1, {from}, {600}}};

	assert_int_equal(hand_declare(k, GEOMETRY_DEFAULT, &s, 1), 0);
}

/* What two ranks hold both, in shards that are not the same, is compared no more. */
static void test_compares_no_more(void **state)
{
	struct node_test *t = *state;
	bool stopped = false;

	begin_node(t);
	join(t, &t->a, 0, 2, "run1");
	join(t, &t->b, 1, 2, "run1");
	declare_half(&t->a, 0);
	declare_half(&t->b, 400);
	prepare_rank(&t->a);
	prepare_rank(&t->b);
	block(t, WORK_CHECK, (uint32_t)geteuid());
	assert_int_equal(save_rank(&t->a, 0, 10), 0);
	assert_int_equal(save_rank(&t->b, 1, 10), 0);
	assert_int_equal(hand_wait(&t->a, 10, CKPT_DURABLE), 0);
	node_stop(t->host.node, LONG_NS, on_stopped, &stopped);
	assert_true(turn_until(t, &stopped));
	unblock(t);
	turn(t, SOME);
	assert_false(was_told("and are not the same"));
}

/* ---- An index that is slow ---- */

static const struct index_ops *index_ops;
static atomic_bool index_waits;
static _Atomic int writes_begun, writes;

static int slow_write(struct index *ix, const struct index_entry *entries, size_t n, bool sync)
{
	writes_begun++;
	while (index_waits)
		usleep(1000);
	writes++;
	return index_ops->write(ix, entries, n, sync);
}

/* A stop that begins while the layout of a step is being put into the index. */
static struct index *begin_slow_stop(struct node_test *t, bool *stopped)
{
	static struct index_ops slow;
	uint64_t end = 0;
	struct index *ix;

	*stopped = false;
	t->index = true;
	begin_one(t);
	ix = t->host.node->index;
	assert_non_null(ix);
	index_ops = ix->ops;
	slow = *index_ops;
	slow.write = slow_write;
	ix->ops = &slow;
	writes_begun = writes = 0;
	index_waits = true;
	save_until(&t->a, 0, 10, CKPT_DURABLE);
	while (writes_begun == 0)
		assert_true(turn_on(t, &end));
	node_stop(t->host.node, LONG_NS, on_stopped, stopped);
	return ix;
}

/* Nothing more is written, not even the checkpoint, which the next start finds not to be there. */
static void end_slow_stop(struct node_test *t, struct index *ix, const bool *stopped)
{
	assert_false(*stopped); /* one write that is under way is waited for */
	index_waits = false;
	assert_true(turn_until(t, stopped));
	assert_int_equal(writes, 1);
	assert_int_equal(t->host.node->index_errors, 0);
	ix->ops = index_ops;
}

static void test_index_is_cut_short(void **state)
{
	struct node_test *t = *state;
	bool stopped;
	struct index *ix = begin_slow_stop(t, &stopped);

	for (uint64_t end = 0; !t->host.node->hurry;)
		assert_true(turn_on(t, &end));
	assert_false(t->host.node->whole_files); /* that comes later */
	end_slow_stop(t, ix, &stopped);
}

/* As a second signal does it, for which none of the times has to come. */
static void test_cut_short_at_once(void **state)
{
	struct node_test *t = *state;
	bool stopped;
	struct index *ix = begin_slow_stop(t, &stopped);

	node_stop_now(t->host.node);
	assert_true(t->host.node->whole_files);
	end_slow_stop(t, ix, &stopped);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		STOP_TEST(test_waits_for_no_user),     STOP_TEST(test_waits_for_no_answer),
		STOP_TEST(test_loads_wait),            STOP_TEST(test_requests_meanwhile),
		STOP_TEST(test_declares_wait),         STOP_TEST(test_waits_for_no_search),
		STOP_TEST(test_prepares_end),          STOP_TEST(test_compares_no_more),
		STOP_TEST(test_index_is_cut_short),    STOP_TEST(test_cut_short_at_once),
		STOP_TEST(test_spares_a_search_that_files_need),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
