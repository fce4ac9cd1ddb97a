/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_removal.c - a job that goes, as a person removes it or as it cannot be made: what looks at
 * it begins nothing that would point to freed memory, and each request has its answer.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ckptd/node_priv.h"
#include "ckptd/test_node_rig.h"
#include "proto/session.pb-c.h"
#include "proto/session_page.h"

/* ---- Requests ---- */

static void set_open(Ckpt__Request *q, Ckpt__Open *o, bool looks)
{
	*q = (Ckpt__Request)CKPT__REQUEST__INIT;
	*o = (Ckpt__Open)CKPT__OPEN__INIT;
	o->job = (char *)"job";
	o->world = 1;
	o->run_id = (char *)"run1";
	o->existing = looks;
	o->trains = !looks;
	q->body_case = CKPT__REQUEST__BODY_OPEN;
	q->open = o;
}

/* Connects, and opens the job without a rank of it. Returns the code. */
static int look_at_job(struct node_test *t, struct hand *k)
{
	Ckpt__Request q;
	Ckpt__Open o;

	assert_int_equal(
		hand_connect_as(k, &t->host, SESSION_FEATURE_BEATS | SESSION_FEATURE_LOOKS), 0);
	set_open(&q, &o, true);
	return hand_ask_code(k, &q);
}

static int ask_stored(struct hand *k, uint64_t step)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Stored m = CKPT__STORED__INIT;

	m.step = step;
	q.body_case = CKPT__REQUEST__BODY_STORED;
	q.stored = &m;
	return hand_ask_code(k, &q);
}

static int ask_read(struct hand *k, uint64_t step)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Read m = CKPT__READ__INIT;

	m.step = step;
	q.body_case = CKPT__REQUEST__BODY_READ;
	q.read = &m;
	return hand_ask_code(k, &q);
}

static int ask_load_end(struct hand *k)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__LoadEnd m = CKPT__LOAD_END__INIT;

	m.load = 77;
	q.body_case = CKPT__REQUEST__BODY_LOAD_END;
	q.load_end = &m;
	return hand_ask_code(k, &q);
}

static void set_admin(Ckpt__Request *q, Ckpt__Admin *m, int verb, uint64_t step)
{
	*q = (Ckpt__Request)CKPT__REQUEST__INIT;
	*m = (Ckpt__Admin)CKPT__ADMIN__INIT;
	m->verb = (Ckpt__Admin__Verb)verb;
	m->job = (char *)"job";
	m->step = step;
	q->body_case = CKPT__REQUEST__BODY_ADMIN;
	q->admin = m;
}

static void send_admin(struct hand *k, int verb, uint64_t step)
{
	Ckpt__Request q;
	Ckpt__Admin m;

	set_admin(&q, &m, verb, step);
	assert_int_equal(hand_send(k, &q), 0);
}

static int ask_admin(struct hand *k, int verb, uint64_t step)
{
	Ckpt__Request q;
	Ckpt__Admin m;

	set_admin(&q, &m, verb, step);
	return hand_ask_code(k, &q);
}

static void say_bye(struct hand *k)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Bye bye = CKPT__BYE__INIT;

	q.body_case = CKPT__REQUEST__BODY_BYE;
	q.bye = &bye;
	assert_int_equal(hand_ask_code(k, &q), 0);
	leave(k);
}

static void turns(struct node_test *t, int n)
{
	for (int i = 0; i < n; i++)
		host_turn(&t->host);
}

/* The worker that removes it is held. */
static void begin_removal(struct node_test *t, struct hand *k)
{
	uint64_t end = 0;

	block(t, WORK_META, (uint32_t)geteuid());
	send_admin(k, CKPT__ADMIN__VERB__REMOVE_JOB, 0);
	while (the_job(t)->removal == JOB_KEPT && turn_on(t, &end))
		;
	assert_int_equal(the_job(t)->removal, JOB_LEAVES);
}

static void end_removal(struct node_test *t, struct hand *k)
{
	uint64_t id;

	assert_true(still_blocked());
	unblock(t);
	assert_int_equal(hand_receive(k, &id), 0);
	assert_true(list_empty(&t->host.node->jobs));
	assert_int_equal(count_files(t, "jobs/*"), 0);
}

/* ---- Looks ---- */

static void test_a_look_begins_nothing_while_its_job_leaves(void **state)
{
	struct node_test *t = *state;

	begin_one(t);
	save_until(&t->a, 0, 1, CKPT_DURABLE);
	say_bye(&t->a);
	connect_rank(t, &t->a);
	assert_int_equal(look_at_job(t, &t->b), 0);
	assert_int_equal(ask_stored(&t->b, 1), 0);
	turns(t, 500); /* what is written of its end */
	begin_removal(t, &t->a);
	assert_int_equal(ask_stored(&t->b, 1), -EAGAIN);
	assert_non_null(strstr(t->b.text, "is being removed"));
	assert_int_equal(ask_read(&t->b, 1), -EAGAIN);
	assert_int_equal(hand_wait(&t->b, 2, CKPT_DURABLE), -EAGAIN);
	assert_int_equal(ask_load_end(&t->b), 0);
	end_removal(t, &t->a);
	assert_int_equal(ask_stored(&t->b, 1), CKPT_ENOTFOUND);
	say_bye(&t->b);
}

/* Also not those that would take files of it away. */
static void test_verbs_are_refused_while_a_job_leaves(void **state)
{
	struct node_test *t = *state;
	static const int verbs[] = {CKPT__ADMIN__VERB__GC, CKPT__ADMIN__VERB__PIN,
				    CKPT__ADMIN__VERB__REMOVE, CKPT__ADMIN__VERB__REMOVE_JOB};

	begin_one(t);
	save_until(&t->a, 0, 1, CKPT_DURABLE);
	say_bye(&t->a);
	connect_rank(t, &t->a);
	connect_rank(t, &t->b);
	turns(t, 500);
	begin_removal(t, &t->a);
	for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
		assert_int_equal(ask_admin(&t->b, verbs[i], 1), -EAGAIN);
		test_says(t->b.text, "until 'ckptctl list' does not show it");
	}
	assert_int_equal(hand_open(&t->b, "job", 0, 1, "run2"), -EAGAIN);
	test_says(t->b.text, "when 'ckptctl list' does not show it");
	end_removal(t, &t->a);
}

/* A disk that is full undoes the job that is being made: a look has nothing of it. */
static void test_a_look_at_a_job_that_is_being_made(void **state)
{
	struct node_test *t = *state;
	Ckpt__Request q;
	Ckpt__Open o;
	uint64_t id, end = 0;

	begin_node(t);
	connect_rank(t, &t->a);
	block(t, WORK_META, (uint32_t)geteuid());
	set_open(&q, &o, false);
	assert_int_equal(hand_send(&t->a, &q), 0);
	while (list_empty(&t->host.node->jobs) && turn_on(t, &end))
		;
	assert_true(the_job(t)->creating);
	assert_int_equal(look_at_job(t, &t->b), -EAGAIN);
	test_says(t->b.text, "just being made");
	assert_int_equal(ask_stored(&t->b, CKPT_LATEST), CKPT_EEPOCH); /* it has opened nothing */
	token_error = -ENOSPC;
	unblock(t);
	assert_int_equal(hand_receive(&t->a, &id), -ENOSPC);
	leave(&t->b);
	assert_int_equal(look_at_job(t, &t->b), CKPT_ENOTFOUND);
	token_error = 0;
	leave(&t->b);
	assert_int_equal(open_rank(&t->a, 0, 1, "run1"), 0);
	assert_int_equal(look_at_job(t, &t->b), 0);
}

/* ---- While the log cannot be written ---- */

/* Each second the log is tried again, which a removal waits for as for any write. */
static int remove_job(struct node_test *t, struct hand *k)
{
	int code = -EAGAIN;

	for (int i = 0; i < 300 && code == -EAGAIN; i++) {
		code = ask_admin(k, CKPT__ADMIN__VERB__REMOVE_JOB, 0);
		turns(t, 10);
	}
	if (code < 0)
		fprintf(stderr, "remove the job: %s\n", k->text);
	return code;
}

static void turn_until_log_is_down(struct node_test *t)
{
	uint64_t end = 0;

	while (!job_log_down(the_job(t)) && turn_on(t, &end))
		;
	assert_true(job_log_down(the_job(t)));
}

static void must_answer(struct hand *k, uint64_t want_id, int want, const char *words)
{
	uint64_t id = 0;

	assert_int_equal(hand_receive(k, &id), want);
	assert_int_equal(id, want_id);
	test_says(k->text, words);
}

/* A commit, a pin and an expiry wait for it, whoever asked for them has an answer. */
static void test_records_that_wait_keep_no_job(void **state)
{
	struct node_test *t = *state;
	struct hand other;
	uint64_t pin, rm;

	t->o.retention.keep_last = 10;
	begin_one(t);
	for (uint64_t step = 1; step <= 3; step++)
		save_until(&t->a, 0, step, CKPT_DURABLE);
	connect_rank(t, &t->b);
	connect_rank(t, &other);
	log_error = -ENOSPC;
	assert_int_equal(save_rank(&t->a, 0, 4), 0);
	turn_until_log_is_down(t);
	send_admin(&t->b, CKPT__ADMIN__VERB__PIN, 2);
	pin = t->b.next_id;
	send_admin(&t->b, CKPT__ADMIN__VERB__REMOVE, 1);
	rm = t->b.next_id;
	turns(t, 10);
	assert_true(the_job(t)->retaining);
	assert_int_equal(remove_job(t, &other), -EBUSY); /* a rank lives */
	say_bye(&t->a);
	turns(t, 500);
	assert_int_equal(remove_job(t, &other), 0);
	must_answer(&t->b, pin, -ECANCELED, "the job was removed");
	must_answer(&t->b, rm, -ECANCELED, "the job was removed");
	assert_true(list_empty(&t->host.node->jobs));
	assert_int_equal(count_files(t, "jobs/*"), 0);
	leave(&other);
	log_error = 0;
	assert_int_equal(join(t, &t->a, 0, 1, "run2"), HAND_BASE_NONE);
	declare_and_prepare(&t->a, 0, 1);
	save_until(&t->a, 0, 1, CKPT_DURABLE);
}

/* What only looks is no rank: it keeps no job, and is not left without an answer. */
static void test_a_wait_ends_with_its_job(void **state)
{
	struct node_test *t = *state;
	struct hand other;

	begin_one(t);
	save_until(&t->a, 0, 1, CKPT_DURABLE);
	assert_int_equal(look_at_job(t, &t->b), 0);
	connect_rank(t, &other);
	log_error = -ENOSPC;
	assert_int_equal(save_rank(&t->a, 0, 2), 0);
	turn_until_log_is_down(t);
	assert_int_equal(hand_send_wait(&t->b, 2, CKPT_COMMITTED), 0);
	say_bye(&t->a);
	turns(t, 500);
	assert_false(list_empty(&the_job(t)->waits.items));
	assert_int_equal(remove_job(t, &other), 0);
	must_answer(&t->b, t->b.next_id, CKPT_ENOTFOUND, "job 'job' was removed");
	leave(&other);
}

/* Its launch was ended, as the job could not be opened. */
static void test_an_epoch_that_waits_keeps_no_job(void **state)
{
	struct node_test *t = *state;
	Ckpt__Request q;
	Ckpt__Open o;

	begin_one(t);
	save_until(&t->a, 0, 1, CKPT_DURABLE);
	say_bye(&t->a);
	connect_rank(t, &t->a);
	turns(t, 500);
	log_error = -ENOSPC;
	connect_rank(t, &t->b);
	set_open(&q, &o, false);
	o.run_id = (char *)"run2";
	assert_int_equal(hand_send(&t->b, &q), 0);
	turn_until_log_is_down(t);
	assert_int_equal(remove_job(t, &t->a), -EBUSY);
	test_says(t->a.text, "a rank is opening");
	leave(&t->b);
	turns(t, 100);
	assert_true(epoch_opens(the_job(t)));
	assert_int_equal(remove_job(t, &t->a), 0);
	assert_true(list_empty(&t->host.node->jobs));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		NODE_TEST(test_a_look_begins_nothing_while_its_job_leaves),
		NODE_TEST(test_verbs_are_refused_while_a_job_leaves),
		NODE_TEST(test_a_look_at_a_job_that_is_being_made),
		NODE_TEST(test_records_that_wait_keep_no_job),
		NODE_TEST(test_a_wait_ends_with_its_job),
		NODE_TEST(test_an_epoch_that_waits_keeps_no_job),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
