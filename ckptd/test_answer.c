/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Long answers: gathered in slices and made on a worker, so that no user's request holds up the
 * loop. With CKPT_TEST_FIGURES=1 the longest turn of the loop while one is under way is printed.
 */
#include <config.h>

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "ckptd/events.h"
#include "ckptd/events_priv.h"
#include "ckptd/node_priv.h"
#include "ckptd/session.h"
#include "ckptd/test_node_rig.h"
#include "ckptd/watching.h"
#include "detect/verdicts.h"
#include "proto/session.pb-c.h"
#include "tests/lib/test.h"

#define JOBS        4096u
#define RANKS       1024u
#define CHECKPOINTS 300u

static uint64_t longest_ns, turns;

static uint64_t thread_ns(void)
{
	struct timespec t;

	assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t), 0);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void turn(struct node_test *t)
{
	uint64_t from = thread_ns(), took;

	host_turn(&t->host);
	took = thread_ns() - from;
	longest_ns = took > longest_ns ? took : longest_ns;
	turns++;
}

static bool has_answer(struct hand *k)
{
	struct pollfd p = {.fd = k->fd, .events = POLLIN};

	return poll(&p, 1, 0) > 0;
}

static void send_admin(struct hand *k, Ckpt__Admin *m)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;

	q.body_case = CKPT__REQUEST__BODY_ADMIN;
	q.admin = m;
	assert_int_equal(hand_send(k, &q), 0);
}

/* The text is for the caller to free. */
static char *take_text(struct hand *k)
{
	struct hand_answer a = {0};
	char *text = NULL;

	assert_int_equal(hand_take(k, &a), 0);
	if (a.reply->code < 0)
		fail_msg("%s", a.reply->text);
	if (a.n_fds > 0) {
		off_t len = lseek(a.fds[0], 0, SEEK_END);

		text = calloc(1, (size_t)len + 1);
		assert_int_equal(pread(a.fds[0], text, (size_t)len, 0), len);
	} else {
		text = strndup((char *)a.reply->admin->json.data, a.reply->admin->json.len);
	}
	hand_answer_free(&a);
	return text;
}

static char *ask(struct node_test *t, struct hand *k, Ckpt__Admin *m, const char *what)
{
	longest_ns = turns = 0;
	send_admin(k, m);
	for (uint64_t i = 0; i < 1000000 && !has_answer(k); i++)
		turn(t);
	if (getenv("CKPT_TEST_FIGURES"))
		print_message("%s: longest turn %llu us, %llu turns\n", what,
			      (unsigned long long)longest_ns / 1000, (unsigned long long)turns);
	return take_text(k);
}

static void fill_ring(struct node_test *t)
{
	for (unsigned i = 0; i < EVENTS_KEPT; i++) {
		events_post(t->host.node->events, EVENT_MARKED, 6 | EVENT_UNLOGGED, EVENT_FOR_ALL,
			    json_pack("{s:s, s:s}", "kind", "job", "words", "job 'lm'"), NULL,
			    "%u %0300u", i, 0);
		if (i % 100 == 0)
			for (int k = 0; k < 100 && !events_written(t->host.node->events); k++)
				host_turn(&t->host);
	}
	for (int k = 0; k < 10000 && !events_written(t->host.node->events); k++)
		host_turn(&t->host);
}

static struct job *add_job(struct node_test *t, unsigned i, uint32_t uid)
{
	struct job *j;

	assert_int_equal(job_new(t->host.node, &j), 0);
	snprintf(j->history.job.name, sizeof(j->history.job.name), "job%u", i);
	memset(j->history.job.id.b, 0x5a, sizeof(j->history.job.id.b));
	memcpy(j->history.job.id.b, &i, sizeof(i));
	j->history.job.uid = uid;
	list_add_tail(&t->host.node->jobs, &j->link);
	return j;
}

static void add_member(struct job *j, uint32_t rank)
{
	assert_non_null(member_new(j, rank));
}

static struct checkpoint *add_checkpoint(struct job *j, uint64_t step)
{
	struct attempt_id attempt = {{(uint8_t)step, (uint8_t)(step >> 8)}};
	struct checkpoint *c;

	assert_int_equal(checkpoint_new(j, step, 1, 1, &attempt, &c), 0);
	c->agreed = CP_COMMITTED;
	c->durable = DUR_DONE;
	c->record_n = step;
	c->commit = alloc_zero(sizeof(*c->commit));
	assert_non_null(c->commit);
	return c;
}

static void send_events(struct hand *k, uint64_t since, bool wait)
{
	Ckpt__Admin m = CKPT__ADMIN__INIT;

	m.verb = CKPT__ADMIN__VERB__EVENTS;
	m.since = since;
	m.wait = wait;
	send_admin(k, &m);
}

static void turn_until_answered(struct node_test *t, struct hand *k)
{
	for (uint64_t end = 0; !has_answer(k) && turn_on(t, &end);)
		;
	assert_true(has_answer(k));
}

/* The sentence must have the words. */
static void take_refusal(struct node_test *t, struct hand *k, int code, const char *words)
{
	uint64_t id;

	turn_until_answered(t, k);
	assert_int_equal(hand_receive(k, &id), code);
	if (!strstr(k->text, words))
		fail_msg("'%s' has no '%s'", k->text, words);
}

/* The answer as it was made before slices: each line parsed, and all dumped again. */
static void test_events_are_the_same(void **state)
{
	struct node_test *t = *state;
	struct events_question q = {.sees_all = true};
	struct answers *all;
	uint64_t slices;
	char *text, *expected;
	json_t *doc;

	begin_node(t);
	all = &t->host.node->answers;
	fill_ring(t);
	connect_rank(t, &t->a);
	for (unsigned i = 0; i < 3; i++) {
		Ckpt__Admin m = CKPT__ADMIN__INIT;

		slices = all->slices;
		q.since = m.since = i == 0 ? 0 : i == 1 ? EVENTS_KEPT : UINT64_MAX;
		m.verb = CKPT__ADMIN__VERB__EVENTS;
		text = ask(t, &t->a, &m, "events, full ring");
		doc = events_answer(t->host.node->events, &q);
		expected = json_dumps(doc, JSON_COMPACT);
		assert_string_equal(text, expected);
		assert_true(all->slices - slices <= EVENTS_KEPT / ANSWER_SLICE + 1);
		if (i == 0)
			assert_true(all->slices - slices >= EVENTS_KEPT / ANSWER_SLICE);
		json_decref(doc);
		free(expected);
		free(text);
	}
	assert_int_equal(all->n, 0);
	assert_true(list_empty(&all->all));
}

/* Events come between the slices, as many as the ring holds: what was gathered has no gap. */
static void test_events_come_meanwhile(void **state)
{
	struct node_test *t = *state;
	json_t *doc, *list, *o;
	struct answers *all;
	json_int_t seq;
	uint64_t slices;
	char *text;
	size_t i;

	begin_node(t);
	all = &t->host.node->answers;
	fill_ring(t);
	connect_rank(t, &t->a);
	slices = all->slices;
	send_events(&t->a, 0, false);
	for (uint64_t end = 0; all->slices < slices + 2 && turn_on(t, &end);)
		;
	assert_int_equal(all->slices, slices + 2);
	fill_ring(t);
	turn_until_answered(t, &t->a);
	text = take_text(&t->a);
	doc = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
	list = json_object_get(doc, "events");
	assert_true(json_array_size(list) >= 2 * ANSWER_SLICE);
	assert_true(json_array_size(list) < EVENTS_KEPT);
	seq = json_integer_value(json_object_get(doc, "next")) - (json_int_t)json_array_size(list);
	json_array_foreach(list, i, o) assert_int_equal(
		json_integer_value(json_object_get(o, "seq")), seq + (json_int_t)i);
	json_decref(doc);
	free(text);
}

static void test_one_for_a_session(void **state)
{
	struct node_test *t = *state;

	begin_node(t);
	fill_ring(t);
	connect_rank(t, &t->a);
	send_events(&t->a, 0, false);
	send_events(&t->a, 0, false);
	take_refusal(t, &t->a, -EAGAIN, "events: this connection of user");
	turn_until_answered(t, &t->a);
	free(take_text(&t->a));
	send_events(&t->a, 0, false);
	turn_until_answered(t, &t->a);
	free(take_text(&t->a));
}

#define MANY 6

/* Answers beyond the user's share wait, and all are answered; a turn runs one slice of each. */
static void test_many_of_a_user(void **state)
{
	struct node_test *t = *state;
	struct hand many[MANY];
	struct answers *all;
	unsigned most = 0;

	begin_node(t);
	all = &t->host.node->answers;
	fill_ring(t);
	for (unsigned i = 0; i < MANY; i++)
		connect_rank(t, &many[i]);
	for (unsigned i = 0; i < MANY; i++)
		send_events(&many[i], 0, false);
	for (unsigned i = 0; i < MANY; i++) {
		for (uint64_t end = 0; !has_answer(&many[i]);) {
			uint64_t slices = all->slices;

			assert_true(turn_on(t, &end));
			assert_true(all->slices <= slices + ANSWERS_PER_UID);
			assert_true(all->n <= ANSWERS_PER_UID);
			most = all->n > most ? all->n : most;
		}
		free(take_text(&many[i]));
	}
	assert_int_equal(most, ANSWERS_PER_UID);
	for (unsigned i = 0; i < MANY; i++)
		hand_close(&many[i]);
}

#define FLOOD      1000
#define FLOOD_UID  4243
#define FLOOD_NS   50000

struct flood {
	struct task tasks[FLOOD];
	struct loop *loop;
	unsigned runs;
};
static struct flood flood;

static void flood_run(struct task *task)
{
	for (uint64_t until = thread_ns() + FLOOD_NS; thread_ns() < until;)
		;
	flood.runs++;
	loop_post(flood.loop, task);
}

/* Another user has many calls on the loop, and an answer under way that waits behind them: an
 * answer of this user waits for neither. */
static void test_not_behind_another_user(void **state)
{
	struct node_test *t = *state;
	const struct answer *a;
	struct hand other, own;

	begin_node(t);
	fill_ring(t);
	flood = (struct flood){.loop = t->host.node->env.loop};
	connect_rank(t, &other);
	((struct process_id *)session_process((struct session *)t->host.node->sessions.prev))->uid =
		FLOOD_UID; /* its link comes first in it */
	connect_rank(t, &own);
	for (unsigned i = 0; i < FLOOD; i++) {
		task_init(&flood.tasks[i], FLOOD_UID, flood_run);
		loop_post(flood.loop, &flood.tasks[i]);
	}
	send_events(&other, 0, false);
	for (uint64_t end = 0; list_empty(&t->host.node->answers.all) && turn_on(t, &end);)
		;
	send_events(&own, 0, false);
	flood.runs = 0;
	do {
		host_turn(&t->host);
		a = container_of(t->host.node->answers.all.prev, struct answer, in_all);
	} while (session_process(a->session)->uid == FLOOD_UID || a->state == ANSWER_GATHERING);
	assert_true(flood.runs < FLOOD);
	for (unsigned i = 0; i < FLOOD; i++)
		loop_unpost(flood.loop, &flood.tasks[i]);
	turn_until_answered(t, &own);
	turn_until_answered(t, &other);
	free(take_text(&own));
	free(take_text(&other));
	hand_close(&own);
	hand_close(&other);
}

/* Connections end while their answers wait and are gathered; and ckptd ends with some. */
static void test_sessions_end(void **state)
{
	struct node_test *t = *state;
	struct hand many[MANY];
	struct answers *all;

	begin_node(t);
	all = &t->host.node->answers;
	fill_ring(t);
	for (unsigned round = 0; round < 2; round++) {
		for (unsigned i = 0; i < MANY; i++)
			connect_rank(t, &many[i]);
		for (unsigned i = 0; i < MANY; i++)
			send_events(&many[i], 0, false);
		for (uint64_t end = 0; all->n < ANSWERS_PER_UID && turn_on(t, &end);)
			;
		assert_int_equal(all->n, ANSWERS_PER_UID);
		if (round == 1)
			break;
		for (unsigned i = 0; i < MANY; i++)
			hand_close(&many[i]);
		for (uint64_t end = 0; !list_empty(&all->all) && turn_on(t, &end);)
			;
		assert_true(list_empty(&all->all));
		assert_int_equal(all->n, 0);
	}
	end_node(t);
	for (unsigned i = 0; i < MANY; i++)
		hand_close(&many[i]);
}

static struct memory_ops no_memfd;

static int fails_to_make(struct memory *m, const void *bytes, uint64_t len)
{
	(void)m;
	(void)bytes;
	(void)len;
	return -EMFILE;
}

static void test_no_descriptor(void **state)
{
	struct node_test *t = *state;
	const struct memory_ops *real;
	struct memory *m;

	begin_node(t);
	fill_ring(t);
	connect_rank(t, &t->a);
	m = t->host.node->env.memory;
	real = m->ops;
	no_memfd = *m->ops;
	no_memfd.bytes_to_fd = fails_to_make;
	m->ops = &no_memfd;
	send_events(&t->a, 0, false);
	take_refusal(t, &t->a, -EMFILE, "could not be handed over");
	m->ops = real;
	send_events(&t->a, 0, false);
	turn_until_answered(t, &t->a);
	free(take_text(&t->a));
}

static uint64_t last_seq(const char *text)
{
	json_t *doc = json_loads(text, 0, NULL);
	uint64_t seq = (uint64_t)json_integer_value(json_object_get(doc, "next")) - 1;

	json_decref(doc);
	return seq;
}

/* Sessions that wait are few for one user, are answered with what they wait for, and a turn looks
 * at few of them. */
static void test_waiters(void **state)
{
	static struct hand many[EVENTS_WAITERS_PER_UID + 1];
	struct node_test *t = *state;
	struct events *ev;
	unsigned answered = 0;
	uint64_t since;
	char *text;

	begin_node(t);
	ev = t->host.node->events;
	connect_rank(t, &t->a);
	send_events(&t->a, 0, false);
	turn_until_answered(t, &t->a);
	text = take_text(&t->a);
	since = last_seq(text);
	free(text);
	for (unsigned i = 0; i < EVENTS_WAITERS_PER_UID + 1; i++) {
		connect_rank(t, &many[i]);
		send_events(&many[i], since, true);
	}
	take_refusal(t, &many[EVENTS_WAITERS_PER_UID], -EAGAIN, "32 connections of user");
	for (uint64_t end = 0;
	     (ev->n_waiters < EVENTS_WAITERS_PER_UID || ev->to_look > 0) && turn_on(t, &end);)
		;
	assert_int_equal(ev->n_waiters, EVENTS_WAITERS_PER_UID);
	/* Another wait of the same session takes the place of its first. */
	send_events(&many[0], since, true);
	for (unsigned i = 0; i < 20; i++)
		host_turn(&t->host);
	assert_int_equal(ev->n_waiters, EVENTS_WAITERS_PER_UID);
	events_post(ev, EVENT_MARKED, 6 | EVENT_UNLOGGED, 1 + (uint32_t)getuid(), NULL, NULL,
		    "another user's");
	events_post(ev, EVENT_MARKED, 6 | EVENT_UNLOGGED, EVENT_FOR_ALL, NULL, NULL, "news");
	for (uint64_t end = 0; ev->n_waiters > 0;) {
		unsigned was = ev->n_waiters;

		assert_true(turn_on(t, &end));
		assert_true(was - ev->n_waiters <= 16);
	}
	for (unsigned i = 0; i < EVENTS_WAITERS_PER_UID; i++) {
		turn_until_answered(t, &many[i]);
		text = take_text(&many[i]);
		answered += strstr(text, "news") != NULL;
		free(text);
	}
	assert_int_equal(answered, EVENTS_WAITERS_PER_UID);
	for (unsigned i = 0; i < EVENTS_WAITERS_PER_UID + 1; i++)
		hand_close(&many[i]);
}

static void send_status(struct hand *k, const char *job)
{
	Ckpt__Admin m = CKPT__ADMIN__INIT;

	m.verb = CKPT__ADMIN__VERB__STATUS;
	m.job = (char *)job;
	send_admin(k, &m);
}

static json_t *ask_status(struct node_test *t, const char *job, const char *what)
{
	Ckpt__Admin m = CKPT__ADMIN__INIT;
	char *text;
	json_t *doc;

	m.verb = CKPT__ADMIN__VERB__STATUS;
	m.job = (char *)job;
	text = ask(t, &t->a, &m, what);
	doc = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
	assert_non_null(doc);
	free(text);
	return doc;
}

static json_t *take_status(struct node_test *t)
{
	json_t *doc;
	char *text;

	turn_until_answered(t, &t->a);
	text = take_text(&t->a);
	doc = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
	assert_non_null(doc);
	free(text);
	return doc;
}

/* Runs so many slices and no more. */
static void turn_slices(struct node_test *t, uint64_t n)
{
	uint64_t until = t->host.node->answers.slices + n;

	for (uint64_t end = 0; t->host.node->answers.slices < until && turn_on(t, &end);)
		;
	assert_int_equal(t->host.node->answers.slices, until);
}

static json_int_t number(const json_t *o, const char *key)
{
	assert_true(json_is_integer(json_object_get(o, key)));
	return json_integer_value(json_object_get(o, key));
}

static void has_keys(const json_t *o, const char *const *keys)
{
	const char *key;
	json_t *value;
	size_t i = 0;

	json_object_foreach((json_t *)o, key, value)
	{
		assert_non_null(keys[i]);
		assert_string_equal(key, keys[i]);
		i++;
	}
	assert_null(keys[i]);
}

/* In the order that they have had before it was gathered in slices. */
static const char *const status_keys[] = {
	"schema",       "version",       "node",        "data",      "ready",        "index",
	"disk_backend", "memory_budget", "memory_left", "disk_free", "disk_total",   "index_errors",
	"jobs",         "disk_reserve",  "spare_bytes", "data_id",   "config_error", "fd_store",
	"loop",         "collectors",    "suspects",    "drained",   "admission",    "unwatched",
	"not_kept",     "users",         "alarms",      "data_error", NULL};
static const char *const job_keys[] = {"job",         "id",
				       "uid",         "epoch",
				       "log_records", "term",
				       "lost",        "stale_alarms",
				       "ranks",       "slots",
				       "checkpoints", "aborted",
				       "stopped",     "log_error",
				       "log_anew",    "log_trim_error",
				       "disk_error",  "replica_alarms",
				       "goodput",     "saves",
				       "problems",    NULL};

/* All jobs of many, in their order; each slice has few of them. */
static void test_status_of_many_jobs(void **state)
{
	struct node_test *t = *state;
	json_t *doc, *jobs, *job;
	uint64_t slices;
	char name[32];
	size_t i;

	begin_node(t);
	for (unsigned k = 0; k < JOBS; k++)
		add_job(t, k, k % 2);
	connect_rank(t, &t->a);
	doc = ask_status(t, "job77", "status of one of 4096 jobs");
	assert_int_equal(json_array_size(json_object_get(doc, "jobs")), getuid() == 0 ? 1 : 0);
	json_decref(doc);
	slices = t->host.node->answers.slices;
	doc = ask_status(t, "", "status, 4096 jobs");
	assert_true(t->host.node->answers.slices - slices >= JOBS / 16);
	has_keys(doc, status_keys);
	assert_true(number(doc, "disk_total") > 0);
	jobs = json_object_get(doc, "jobs");
	assert_int_equal(json_array_size(jobs), getuid() == 0 ? JOBS : 0);
	json_array_foreach(jobs, i, job)
	{
		snprintf(name, sizeof(name), "job%zu", i);
		assert_string_equal(json_string_value(json_object_get(job, "job")), name);
		has_keys(job, job_keys);
	}
	json_decref(doc);
}

static struct job *add_large(struct node_test *t)
{
	struct job *j = add_job(t, 0, getuid());

	for (unsigned i = 0; i < RANKS; i++)
		add_member(j, i * 13 % RANKS);
	for (unsigned i = 0; i < CHECKPOINTS; i++)
		add_checkpoint(j, i + 1);
	return j;
}

static json_t *only_job(const json_t *doc)
{
	assert_int_equal(json_array_size(json_object_get(doc, "jobs")), 1);
	return json_array_get(json_object_get(doc, "jobs"), 0);
}

static void test_status_of_a_large_job(void **state)
{
	struct node_test *t = *state;
	json_t *doc, *list, *o;
	uint64_t slices;
	struct job *j;
	size_t i;

	begin_node(t);
	j = add_large(t);
	j->history.epoch.has_base = true;
	j->history.epoch.base_step = 7;
	j->history.epoch.base_attempt = (struct attempt_id){{7}};
	connect_rank(t, &t->a);
	slices = t->host.node->answers.slices;
	doc = ask_status(t, j->history.job.name, "status, 1024 ranks and 300 checkpoints");
	assert_true(t->host.node->answers.slices - slices >=
		    (RANKS + 2 * CHECKPOINTS) * 6 / ANSWER_SLICE);
	list = json_object_get(only_job(doc), "ranks");
	assert_int_equal(json_array_size(list), RANKS);
	json_array_foreach(list, i, o) assert_int_equal(number(o, "rank"), i);
	list = json_object_get(only_job(doc), "checkpoints");
	assert_int_equal(json_array_size(list), CHECKPOINTS);
	json_array_foreach(list, i, o)
	{
		assert_int_equal(number(o, "step"), i + 1);
		assert_int_equal(json_is_true(json_object_get(o, "base")), i + 1 == 7);
		assert_int_equal(json_is_true(json_object_get(o, "latest")), i + 1 == CHECKPOINTS);
	}
	json_decref(doc);
}

/* Jobs are removed, among them the next one: all others are listed, once. */
static void test_jobs_go_meanwhile(void **state)
{
	struct node_test *t = *state;
	struct job *j, *next;
	unsigned i = 0;
	json_t *doc;

	begin_node(t);
	for (unsigned k = 0; k < 600; k++)
		add_job(t, k, getuid());
	connect_rank(t, &t->a);
	send_status(&t->a, "");
	turn_slices(t, 5);
	list_each_safe(j, next, &t->host.node->jobs, link) {
		if (i >= 1 && i < 500)
			job_free(j);
		i++;
	}
	doc = take_status(t);
	i = (unsigned)json_array_size(json_object_get(doc, "jobs"));
	assert_true(i > 101 && i < 101 + 5 * ANSWER_SLICE / 40 + 5);
	assert_string_equal(json_string_value(json_object_get(
				    json_array_get(json_object_get(doc, "jobs"), i - 100), "job")),
			    "job500");
	json_decref(doc);
}

/* The job that is gathered is removed, or only its checkpoints are. */
static void test_parts_go_meanwhile(void **state)
{
	struct node_test *t = *state;
	struct checkpoint *c, *next;
	unsigned i = 0;
	struct job *j;
	json_t *doc;

	begin_node(t);
	j = add_large(t);
	add_job(t, 1, getuid());
	connect_rank(t, &t->a);
	send_status(&t->a, "");
	turn_slices(t, 3 + RANKS * 6 / ANSWER_SLICE);
	list_each_safe(c, next, &j->checkpoints, link) {
		if (i++ < CHECKPOINTS - 10)
			checkpoint_free(c);
	}
	doc = take_status(t);
	i = (unsigned)json_array_size(
		json_object_get(json_array_get(json_object_get(doc, "jobs"), 0), "checkpoints"));
	assert_true(i > 10 && i < 100);
	json_decref(doc);
	send_status(&t->a, "");
	turn_slices(t, 4);
	job_free(j);
	doc = take_status(t);
	assert_string_equal(json_string_value(json_object_get(only_job(doc), "job")), "job1");
	json_decref(doc);
}

/* A job that stops after it was gathered, and one that stops before: each is listed once, as
 * stopped. */
static void test_jobs_stop_meanwhile(void **state)
{
	struct node_test *t = *state;
	struct job *first, *last = NULL;
	unsigned stopped = 0;
	json_t *doc, *o;
	size_t i;

	begin_node(t);
	first = add_job(t, 0, getuid());
	for (unsigned k = 1; k < 100; k++)
		last = add_job(t, k, getuid());
	connect_rank(t, &t->a);
	send_status(&t->a, "");
	turn_slices(t, 4);
	first->defect = last->defect = JOB_DEFECT_SLOT;
	snprintf(first->defect_text, sizeof(first->defect_text), "the first");
	snprintf(last->defect_text, sizeof(last->defect_text), "the last");
	job_stop(first);
	job_stop(last);
	doc = take_status(t);
	assert_int_equal(json_array_size(json_object_get(doc, "jobs")), 100);
	json_array_foreach(json_object_get(doc, "jobs"), i, o)
	{
		const char *text = json_string_value(json_object_get(o, "stopped"));

		stopped += strcmp(text, "the first") == 0 || strcmp(text, "the last") == 0;
	}
	assert_int_equal(stopped, 2);
	json_decref(doc);
}

/* The maximum of standing alarms: all are listed, newest first, few in a slice. */
static void test_status_with_alarms(void **state)
{
	struct node_test *t = *state;
	struct sample s = {.kind = SAMPLE_CHECK,
			   .node = WATCHING_NODE,
			   .job = SAMPLE_NONE,
			   .rank = SAMPLE_NONE,
			   .device = SAMPLE_NONE};
	json_t *doc, *list, *o;
	uint64_t slices;
	char words[64];
	size_t i;

	t->o.dry_run = true;
	begin_node(t);
	for (unsigned k = 0; k < VERDICTS_MAX; k++) {
		snprintf(s.check.what, sizeof(s.check.what), "check-%u", k);
		node_sample(t->host.node, &s);
	}
	connect_rank(t, &t->a);
	slices = t->host.node->answers.slices;
	doc = ask_status(t, "", "status, 1024 alarms");
	assert_true(t->host.node->answers.slices - slices >= VERDICTS_MAX / 16);
	list = json_object_get(doc, "alarms");
	assert_int_equal(json_array_size(list), VERDICTS_MAX);
	json_array_foreach(list, i, o)
	{
		snprintf(words, sizeof(words), "the check check-%zu:", VERDICTS_MAX - 1 - i);
		assert_non_null(strstr(json_string_value(json_object_get(o, "why")), words));
	}
	json_decref(doc);
}

static const char *const why_keys[] = {
	"schema",        "node",        "subject", "verdicts",  "known",    "suspect", "events",
	"verdicts_more", "events_more", "drained", "admission", "not_kept", NULL};
static const char *const plan_keys[] = {"schema", "job", "plan", NULL};

/* With as many alarms as can stand and a full ring: the newest of both, few in a slice. */
static void test_why(void **state)
{
	struct node_test *t = *state;
	Ckpt__Admin m = CKPT__ADMIN__INIT;
	struct sample s = {.kind = SAMPLE_CHECK,
			   .node = WATCHING_NODE,
			   .job = SAMPLE_NONE,
			   .rank = SAMPLE_NONE,
			   .device = SAMPLE_NONE};
	uint64_t slices;
	size_t n;
	json_t *doc;
	char *text;

	t->o.dry_run = true;
	begin_node(t);
	for (unsigned k = 0; k < VERDICTS_MAX; k++) {
		snprintf(s.check.what, sizeof(s.check.what), "check-%u", k);
		node_sample(t->host.node, &s);
	}
	fill_ring(t);
	connect_rank(t, &t->a);
	m.verb = CKPT__ADMIN__VERB__WHY;
	m.text = (char *)"";
	slices = t->host.node->answers.slices;
	text = ask(t, &t->a, &m, "why, 1024 alarms, full ring");
	assert_true(t->host.node->answers.slices - slices >=
		    (EVENTS_KEPT + VERDICTS_MAX + 64 * 30) / ANSWER_SLICE);
	doc = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
	has_keys(doc, why_keys);
	assert_int_equal(json_array_size(json_object_get(doc, "verdicts")), 64);
	assert_int_equal(number(doc, "verdicts_more"), VERDICTS_MAX - 64);
	n = json_array_size(json_object_get(doc, "events"));
	assert_true(n >= 20 && n <= 40); /* an event about one that stands accused comes besides */
	assert_int_equal(number(doc, "events_more") + (json_int_t)n, EVENTS_KEPT);
	json_decref(doc);
	free(text);
}

/* A rank beyond its job's world is refused once its events and alarms are known; the job is removed
 * meanwhile. */
static void test_why_of_nobody(void **state)
{
	struct node_test *t = *state;
	Ckpt__Admin m = CKPT__ADMIN__INIT;
	struct job *j;

	begin_node(t);
	fill_ring(t);
	j = add_job(t, 0, getuid());
	connect_rank(t, &t->a);
	m.verb = CKPT__ADMIN__VERB__WHY;
	m.text = (char *)"job0:5";
	send_admin(&t->a, &m);
	turn_slices(t, 2);
	job_free(j);
	take_refusal(t, &t->a, CKPT_ENOTFOUND, "job 'job0' has 0 ranks: there is no rank 5");
}

static void test_plan(void **state)
{
	struct node_test *t = *state;
	Ckpt__Admin m = CKPT__ADMIN__INIT;
	json_t *doc, *list, *o;
	struct job *j;
	char *text;
	size_t i;

	begin_node(t);
	j = add_large(t);
	connect_rank(t, &t->a);
	m.verb = CKPT__ADMIN__VERB__GC;
	m.job = j->history.job.name;
	m.dry_run = true;
	text = ask(t, &t->a, &m, "gc, 300 checkpoints");
	doc = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
	has_keys(doc, plan_keys);
	list = json_object_get(doc, "plan");
	assert_int_equal(json_array_size(list), CHECKPOINTS);
	json_array_foreach(list, i, o)
	{
		assert_int_equal(number(o, "step"), i + 1);
		assert_int_equal(json_is_true(json_object_get(o, "expire")),
				 i + RETENTION_KEEP_LAST < CHECKPOINTS);
		assert_int_equal(json_string_value(json_object_get(o, "because"))[0] == '\0',
				 json_is_true(json_object_get(o, "expire")));
	}
	json_decref(doc);
	free(text);
}

/* The steps, newest first; in_fd: they came in a memfd. */
static void check_list(struct hand *k, size_t want, bool in_fd)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__List body = CKPT__LIST__INIT;
	Ckpt__ListReply *unpacked = NULL;
	const Ckpt__ListReply *list;
	struct hand_answer a;

	q.body_case = CKPT__REQUEST__BODY_LIST;
	q.list = &body;
	assert_int_equal(hand_ask(k, &q, &a), 0);
	list = a.reply->list;
	assert_int_equal(list->in_fd, in_fd);
	assert_int_equal(a.n_fds, in_fd);
	if (in_fd) {
		size_t len = (size_t)lseek(a.fds[0], 0, SEEK_END);
		uint8_t *packed = malloc(len);

		assert_int_equal(pread(a.fds[0], packed, len, 0), len);
		list = unpacked = ckpt__list_reply__unpack(NULL, len, packed);
		assert_non_null(list);
		free(packed);
	}
	assert_int_equal(list->n_checkpoints, want);
	for (size_t i = 0; i < want; i++) {
		assert_int_equal(list->checkpoints[i]->step, want - i);
		assert_int_equal(list->checkpoints[i]->attempt.data[0], (want - i) & 0xff);
		assert_int_equal(list->checkpoints[i]->attempt.data[1], (want - i) >> 8);
		assert_true(list->checkpoints[i]->disk && !list->checkpoints[i]->memory);
	}
	if (unpacked)
		ckpt__list_reply__free_unpacked(unpacked, NULL);
	hand_answer_free(&a);
}

/* As many checkpoints as a job may have, in any order; one that cannot be loaded is left out. */
static void test_list(void **state)
{
	struct node_test *t = *state;
	struct checkpoint *c;
	uint64_t slices;
	struct job *j;

	begin_node(t);
	join(t, &t->a, 0, 1, "run");
	j = the_job(t);
	check_list(&t->a, 0, false);
	for (unsigned i = 0; i < 50; i++)
		add_checkpoint(j, i * 13 % 50 + 1);
	check_list(&t->a, 50, false);
	for (unsigned i = 50; i < HISTORY_COMMITS_MAX; i++)
		add_checkpoint(j, i + 1);
	c = add_checkpoint(j, HISTORY_COMMITS_MAX + 1);
	c->agreed = CP_COMMITTING;
	slices = t->host.node->answers.slices;
	check_list(&t->a, HISTORY_COMMITS_MAX, true);
	assert_int_equal(t->host.node->answers.slices - slices, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		NODE_TEST(test_events_are_the_same),
		NODE_TEST(test_events_come_meanwhile),
		NODE_TEST(test_one_for_a_session),
		NODE_TEST(test_many_of_a_user),
		NODE_TEST(test_not_behind_another_user),
		NODE_TEST(test_sessions_end),
		NODE_TEST(test_no_descriptor),
		NODE_TEST(test_waiters),
		NODE_TEST(test_status_of_many_jobs),
		NODE_TEST(test_status_of_a_large_job),
		NODE_TEST(test_jobs_go_meanwhile),
		NODE_TEST(test_parts_go_meanwhile),
		NODE_TEST(test_jobs_stop_meanwhile),
		NODE_TEST(test_status_with_alarms),
		NODE_TEST(test_why),
		NODE_TEST(test_why_of_nobody),
		NODE_TEST(test_plan),
		NODE_TEST(test_list),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
