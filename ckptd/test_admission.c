/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The check before the first open: who waits for it, who is refused after it, and who overrules it.
 */
#include <config.h>

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/loop.h"
#include "ckptd/acting.h"
#include "ckptd/admission.h"
#include "ckptd/node_priv.h"
#include "ckptd/test_node_rig.h"
#include "proto/session.pb-c.h"

#define FIT  "{\"results\":[{\"name\":\"memory\",\"state\":\"passed\",\"value\":1}]}"
#define SICK "{\"results\":[{\"name\":\"memory\",\"state\":\"failed\",\"words\":\"forgets\"}]}"

/* A check that ends when the test says so. */
static void (*answer)(void *arg, int status, const char *json, size_t len);
static void *answer_arg;
static unsigned started, cancelled;

static int fake_start(struct checks *c, bool idle,
		      void (*done)(void *arg, int status, const char *json, size_t len), void *arg)
{
	(void)c;
	assert_false(idle); /* how fast it is counts here */
	if (answer)
		return -EBUSY;
	answer = done;
	answer_arg = arg;
	started++;
	return 0;
}

static void fake_cancel(struct checks *c)
{
	(void)c;
	cancelled += answer != NULL;
}

static void end_check(int status, const char *json)
{
	void (*done)(void *arg, int status, const char *json, size_t len) = answer;

	assert_non_null(done);
	answer = NULL;
	done(answer_arg, status, json, strlen(json));
}

static void begin_checked(struct node_test *t)
{
	static const struct checks_ops ops = {.start = fake_start, .cancel = fake_cancel};
	static struct checks fake = {.ops = &ops};

	answer = NULL;
	started = cancelled = 0;
	t->o.admission = true;
	t->checks = &fake;
	begin_node(t);
	assert_int_equal(started, 1);
}

static size_t waiting(struct node_test *t)
{
	const struct list *l;
	size_t n = 0;

	for (l = t->host.node->early.next; l != &t->host.node->early; l = l->next)
		n++;
	return n;
}

/* The open of a job by its only rank is sent, and what it is answered is seen later. */
static void send_open(struct node_test *t, struct hand *k, const char *job, bool reconnect)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Open o = CKPT__OPEN__INIT;
	struct pollfd reply;
	size_t before;

	if (k->fd < 0)
		connect_rank(t, k);
	o.job = (char *)job;
	o.world = 1;
	o.run_id = (char *)"run1";
	o.reconnect = reconnect;
	q.body_case = CKPT__REQUEST__BODY_OPEN;
	q.open = &o;
	assert_int_equal(hand_send(k, &q), 0);
	before = waiting(t);
	reply = (struct pollfd){.fd = k->fd, .events = POLLIN};
	/* It waits, or it has an answer. */
	for (int i = 0; i < 200 && waiting(t) == before && poll(&reply, 1, 0) == 0; i++)
		host_turn(&t->host);
}

static int answer_to(struct hand *k)
{
	uint64_t id;

	return hand_receive(k, &id);
}

static enum admission_state state_of(struct node_test *t)
{
	return t->host.node->admission.state;
}

static void test_opens_wait_for_a_fit_node(void **state)
{
	struct node_test *t = *state;

	begin_checked(t);
	assert_int_equal(state_of(t), ADMISSION_CHECKING);
	send_open(t, &t->a, "one", false);
	send_open(t, &t->b, "two", false);
	assert_int_equal(waiting(t), 2);
	assert_true(list_empty(&t->host.node->jobs));
	end_check(0, FIT);
	assert_int_equal(state_of(t), ADMISSION_ADMITTED);
	assert_int_equal(waiting(t), 0);
	assert_int_equal(answer_to(&t->a), 0);
	assert_int_equal(answer_to(&t->b), 0);
	assert_true(was_told("found nothing wrong"));
}

/* A rank that was here before this ckptd does not wait, and nothing is checked beside it. */
static void test_who_was_here_ends_the_check(void **state)
{
	struct node_test *t = *state;

	begin_checked(t);
	send_open(t, &t->b, "two", false);
	assert_int_equal(waiting(t), 1);
	send_open(t, &t->a, "one", true);
	assert_int_equal(answer_to(&t->a), 0);
	assert_int_equal(cancelled, 1);
	end_check(-ECANCELED, "");
	assert_int_equal(state_of(t), ADMISSION_ADMITTED);
	assert_true(was_told("is ended: ranks train here"));
	assert_int_equal(answer_to(&t->b), 0);
	assert_int_equal(waiting(t), 0);
}

/* The process of a rank is begun anew: its run stands, in the log if in nobody's memory. */
static void test_ranks_of_a_run_that_stands(void **state)
{
	struct node_test *t = *state;

	t->o.admission = false;
	begin_node(t);
	assert_int_equal(join(t, &t->a, 0, 1, "run1"), HAND_BASE_NONE);
	end_node(t);
	begin_checked(t);
	end_check(1, SICK);
	assert_int_equal(state_of(t), ADMISSION_REFUSED);
	connect_rank(t, &t->a);
	assert_int_equal(open_rank(&t->a, 0, 1, "run2"), CKPT_ESTATE);
	connect_rank(t, &t->a);
	assert_int_equal(open_rank(&t->a, 0, 1, "run1"), 0);
}

/* Who waits longer than clients do is told why, and to come again. */
static void test_who_waits_too_long(void **state)
{
	struct node_test *t = *state;

	t->o.admission_hold_ns = 50000000;
	begin_checked(t);
	send_open(t, &t->a, "one", false);
	assert_int_equal(answer_to(&t->a), -EAGAIN);
	assert_non_null(strstr(t->a.text, "is being checked before its first open"));
	send_open(t, &t->b, "two", false); /* and again */
	assert_int_equal(answer_to(&t->b), -EAGAIN);
	assert_int_equal(state_of(t), ADMISSION_CHECKING);
	end_check(0, FIT);
	send_open(t, &t->b, "two", false);
	assert_int_equal(answer_to(&t->b), 0);
}

static void test_refused_until_overruled(void **state)
{
	struct node_test *t = *state;
	json_t *doc;

	begin_checked(t);
	send_open(t, &t->a, "one", false);
	end_check(1, SICK);
	assert_int_equal(state_of(t), ADMISSION_REFUSED);
	assert_int_equal(answer_to(&t->a), CKPT_ESTATE);
	assert_non_null(strstr(t->a.text, "is not admitted (memory: forgets)"));
	send_open(t, &t->b, "two", false);
	assert_int_equal(answer_to(&t->b), CKPT_ESTATE);
	assert_false(t->host.node->marks.drained); /* it is not kept */
	doc = admission_json(t->host.node);
	assert_string_equal(json_string_value(json_object_get(doc, "state")), "refused");
	assert_string_equal(json_string_value(json_object_get(doc, "reason")), "memory: forgets");
	json_decref(doc);
	assert_int_equal(hand_admin(&t->a, "", CKPT__ADMIN__VERB__UNDRAIN, 0), 0);
	assert_int_equal(state_of(t), ADMISSION_OVERRULED);
	send_open(t, &t->b, "two", false);
	assert_int_equal(answer_to(&t->b), 0);
	/* The next start asks again. */
	end_node(t);
	begin_checked(t);
	end_check(0, FIT);
	assert_int_equal(join(t, &t->a, 0, 1, "run1"), HAND_BASE_NONE);
}

/* What a check says that nobody waits for any more is told, and nothing else. */
static void test_overruled_while_it_runs(void **state)
{
	struct node_test *t = *state;

	begin_checked(t);
	send_open(t, &t->a, "one", false);
	connect_rank(t, &t->b);
	assert_int_equal(hand_admin(&t->b, "", CKPT__ADMIN__VERB__UNDRAIN, 0), 0);
	assert_int_equal(answer_to(&t->a), 0);
	assert_true(was_told("is admitted, whatever the check will find"));
	end_check(1, SICK);
	assert_int_equal(state_of(t), ADMISSION_OVERRULED);
	assert_true(was_told("failed: memory: forgets"));
	assert_false(was_told("is not admitted"));
	send_open(t, &t->b, "two", false);
	assert_int_equal(answer_to(&t->b), 0);
}

#define AE10 "\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4"
#define AE40 "x" AE10 AE10 AE10 AE10

/* One that hangs says that the node is sick; one that does not know says nothing. */
static void test_without_an_answer(void **state)
{
	struct node_test *t = *state;
	json_t *doc;

	begin_checked(t);
	end_check(-ETIMEDOUT, "");
	assert_int_equal(state_of(t), ADMISSION_REFUSED);
	end_node(t);
	begin_checked(t);
	end_check(-ENODATA, "");
	assert_int_equal(state_of(t), ADMISSION_ADMITTED);
	assert_true(was_told("could not be done"));
	end_node(t);
	/* What cannot be told as it is does not hide that it is refused. */
	begin_checked(t);
	end_check(1, "{\"results\":[{\"name\":\"\u00e4\",\"state\":\"failed\",\"words\":"
		     "\"a\\nb" AE40 AE40 AE40 "\"}]}");
	doc = admission_json(t->host.node);
	assert_non_null(doc);
	assert_string_equal(json_string_value(json_object_get(doc, "state")), "refused");
	json_decref(doc);
	end_node(t);
	t->checks = NULL;
	begin_node(t);
	assert_int_equal(state_of(t), ADMISSION_ADMITTED);
	assert_true(was_told("could not be checked before its first open"));
	join(t, &t->a, 0, 1, "run1");
	end_node(t);
	t->o.admission = false;
	begin_node(t);
	assert_int_equal(state_of(t), ADMISSION_NONE);
	join(t, &t->a, 0, 1, "run2");
}

/* Whose connection ends meanwhile is forgotten: nobody fills the memory by opening and leaving. */
static void test_leave_while_they_wait(void **state)
{
	struct node_test *t = *state;

	begin_checked(t);
	send_open(t, &t->a, "one", false);
	send_open(t, &t->b, "two", false);
	assert_int_equal(waiting(t), 2);
	leave(&t->a);
	for (int i = 0; i < 200; i++)
		host_turn(&t->host);
	assert_int_equal(waiting(t), 1);
	end_check(0, FIT);
	assert_int_equal(answer_to(&t->b), 0);
}

static void has_stopped(void *arg)
{
	*(bool *)arg = true;
}

/* Those that wait are answered when it stops, not when the check ends, and begin nothing. */
static void test_stop_while_they_wait(void **state)
{
	struct node_test *t = *state;
	bool stopped = false;

	begin_checked(t);
	send_open(t, &t->a, "one", false);
	node_stop(t->host.node, 1000000000, has_stopped, &stopped);
	assert_true(stopped);
	assert_int_equal(answer_to(&t->a), -EAGAIN);
	end_check(0, FIT);
	assert_true(list_empty(&t->host.node->jobs));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		NODE_TEST(test_opens_wait_for_a_fit_node),
		NODE_TEST(test_who_was_here_ends_the_check),
		NODE_TEST(test_ranks_of_a_run_that_stands),
		NODE_TEST(test_who_waits_too_long),
		NODE_TEST(test_refused_until_overruled),
		NODE_TEST(test_overruled_while_it_runs),
		NODE_TEST(test_without_an_answer),
		NODE_TEST(test_leave_while_they_wait),
		NODE_TEST(test_stop_while_they_wait),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
