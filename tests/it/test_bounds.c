/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bounds.c - what one session may take and how long it may make others wait: a node in this
 * process, ranks that speak to it by hand, workers that are kept busy.
 */
#include <config.h>

#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/work.h"
#include "proto/session.pb-c.h"
#include "tests/lib/hand.h"
#include "tests/lib/test.h"

#define GEOMETRY ((struct geometry){ 4096, 16384 })

struct world {
	char *dir, socket[160];
	struct node_options options;
	struct host host;
};

static const struct shard shards[] = {
	{ .name = "w", .name_len = 1, .dtype = CKPT_F32, .global = { 1, { 64 } },
	  .box = { 1, { 0 }, { 64 } } },
};

static void start(struct world *w)
{
	struct host_options o = { .backend = "threads", .node = &w->options };
	struct err e = { 0 };

	o.folder = w->dir;
	o.socket = w->socket;
	if (host_start(&w->host, &o, &e) < 0)
		fail_msg("%s", e.text);
}

static int setup(void **state)
{
	static struct world w;

	w.dir = test_dir_make(NULL);
	snprintf(w.socket, sizeof(w.socket), "%s/sock", w.dir);
	node_options_default(&w.options);
	w.options.geometry = GEOMETRY;
	w.options.transfer = 65536;
	w.options.disk_reserve = 0;
	*state = &w;
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	host_stop(&w->host);
	test_dir_remove(w->dir);
	return 0;
}

#define OK(call)                                                                                   \
	do {                                                                                       \
		if ((call) < 0)                                                                    \
			fail_msg("%s: %s", #call, k->text);                                        \
	} while (0)

static void join(struct world *w, struct hand *k, const char *job, uint32_t rank, uint32_t world)
{
	OK(hand_connect(k, &w->host));
	OK(hand_open(k, job, rank, world, "run1"));
	OK(hand_declare(k, GEOMETRY, shards, 1));
}

static void fill(void *arg, const struct shard *s, uint8_t *out)
{
	memset(out, *(int *)arg, s->bytes);
}

static int save(struct hand *k, uint64_t step)
{
	int byte = (int)step;

	return hand_save(k, step, fill, &byte, "blob", 4);
}

/* ---- Workers that are kept busy ---- */

struct busy {
	struct work work;
	sem_t go;
	bool over;
};

static void busy_run(struct work *w)
{
	struct busy *b = container_of(w, struct busy, work);

	while (sem_wait(&b->go) != 0)
		;
}

static void busy_done(struct work *w)
{
	container_of(w, struct busy, work)->over = true;
}

static void busy_start(struct world *w, struct busy *b, enum work_class class)
{
	memset(b, 0, sizeof(*b));
	assert_int_equal(work_width(w->host.workers, class), 1);
	assert_int_equal(sem_init(&b->go, 0, 0), 0);
	b->work.run = busy_run;
	b->work.done = busy_done;
	work_submit(w->host.workers, class, &b->work);
}

static void busy_end(struct world *w, struct busy *b)
{
	assert_int_equal(sem_post(&b->go), 0);
	while (!b->over)
		host_turn(&w->host);
	sem_destroy(&b->go);
}

/* Taking memory keeps META workers for seconds; records go into the log meanwhile. */
static void test_commit_beside_slow_memory(void **state)
{
	struct world *w = *state;
	struct hand hand, *k = &hand;
	struct busy b;

	start(w);
	join(w, k, "job", 0, 1);
	OK(hand_prepare(k));
	OK(save(k, 10));
	OK(hand_wait(k, 10, CKPT_DURABLE));
	busy_start(w, &b, WORK_META);
	OK(save(k, 20));
	OK(hand_wait(k, 20, CKPT_COMMITTED));
	busy_end(w, &b);
	hand_close(k);
}

/* ---- Quotas: a refusal names user, limit and key ---- */

static void refused(struct hand *k, int code, int want, const char *key)
{
	char user[32];

	snprintf(user, sizeof(user), "user %u has", (unsigned)getuid());
	if (code != want || !strstr(k->text, key) || !strstr(k->text, user))
		fail_msg("%d: %s", code, k->text);
}

static void test_ranks_of_a_user(void **state)
{
	struct world *w = *state;
	struct hand hands[3], *k = hands;

	w->options.sessions_per_uid = 2;
	start(w);
	join(w, &hands[0], "job", 0, 2);
	join(w, &hands[1], "job", 1, 2);
	k = &hands[2];
	OK(hand_connect(k, &w->host));
	refused(k, hand_open(k, "other", 0, 1, "run1"), -EAGAIN, "quota.sessions_per_uid");
	/* A new launch takes the place of the old one; what is above the limit then is refused. */
	OK(hand_open(k, "job", 0, 3, "run2"));
	hand_close(&hands[1]);
	k = &hands[1];
	OK(hand_connect(k, &w->host));
	OK(hand_open(k, "job", 1, 3, "run2"));
	hand_close(&hands[0]);
	k = &hands[0];
	OK(hand_connect(k, &w->host));
	refused(k, hand_open(k, "job", 2, 3, "run2"), -EAGAIN, "quota.sessions_per_uid");
	for (int i = 0; i < 3; i++)
		hand_close(&hands[i]);
}

static void test_jobs_of_a_user(void **state)
{
	struct world *w = *state;
	struct hand hand, *k = &hand;

	w->options.jobs_per_uid = 1;
	start(w);
	OK(hand_connect(k, &w->host));
	OK(hand_open(k, "one", 0, 1, "run1"));
	hand_close(k);
	OK(hand_connect(k, &w->host));
	refused(k, hand_open(k, "two", 0, 1, "run1"), -EMFILE, "quota.jobs_per_uid");
	OK(hand_open(k, "one", 0, 1, "run2"));
	hand_close(k);
}

static void test_waits_of_a_session(void **state)
{
	struct world *w = *state;
	struct hand hands[2], *k = hands;
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Wait wait = CKPT__WAIT__INIT;
	uint64_t id;
	int code;

	w->options.waits_per_session = 3;
	start(w);
	join(w, &hands[0], "job", 0, 2);
	join(w, &hands[1], "job", 1, 2);
	k = &hands[1];
	OK(hand_prepare(k));
	k = &hands[0];
	OK(hand_prepare(k));
	OK(save(k, 10));
	wait.step = 10;
	wait.what = CKPT_COMMITTED;
	q.body_case = CKPT__REQUEST__BODY_WAIT;
	q.wait = &wait;
	for (int i = 0; i < 4; i++)
		OK(hand_send(k, &q));
	code = hand_receive(k, &id);
	refused(k, code, -EMFILE, "quota.waits_per_session");
	assert_int_equal(id, k->next_id);
	OK(save(&hands[1], 10));
	for (int i = 0; i < 3; i++)
		OK(hand_receive(k, &id));
	OK(hand_wait(k, 10, CKPT_DURABLE)); /* those that were answered do not count */
	hand_close(&hands[0]);
	hand_close(&hands[1]);
}

static void test_loads_of_a_session(void **state)
{
	struct world *w = *state;
	struct hand hand, *k = &hand;
	struct hand_loaded loaded = { 0 };
	uint8_t bytes[256];
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Load load = CKPT__LOAD__INIT;
	uint64_t id;
	int code;

	w->options.loads_per_session = 2;
	start(w);
	join(w, k, "job", 0, 1);
	OK(hand_prepare(k));
	OK(save(k, 10));
	OK(hand_wait(k, 10, CKPT_DURABLE));
	loaded.shards[0] = bytes;
	for (int i = 0; i < 4; i++) /* one after the other: they end */
		OK(hand_load(k, 10, NULL, &loaded));
	load.step = 10;
	q.body_case = CKPT__REQUEST__BODY_LOAD;
	q.load = &load;
	for (int i = 0; i < 2; i++) {
		OK(hand_send(k, &q));
		OK(hand_receive(k, &id));
	}
	OK(hand_send(k, &q));
	code = hand_receive(k, &id);
	refused(k, code, -EMFILE, "quota.loads_per_session");
	hand_close(k);
}

static uint64_t memory_left(struct world *w)
{
	return w->host.memory->ops->available(w->host.memory, NULL);
}

/* A job without ranks and snapshots takes no memory. */
static void test_memory_of_idle_jobs(void **state)
{
	struct world *w = *state;
	struct hand hand, *k = &hand;
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Bye bye = CKPT__BYE__INIT;
	uint64_t id, before;
	char job[16];

	start(w);
	before = memory_left(w);
	for (int i = 0; i < 20; i++) {
		snprintf(job, sizeof(job), "job%d", i % 10); /* each of them twice */
		join(w, k, job, 0, 1);
		if (i % 3 == 0)
			OK(hand_prepare(k));
		assert_true(memory_left(w) < before);
		q.body_case = CKPT__REQUEST__BODY_BYE;
		q.bye = &bye;
		OK(hand_send(k, &q));
		OK(hand_receive(k, &id));
		hand_close(k);
	}
	for (int turns = 0; turns < 500 && memory_left(w) != before; turns++)
		host_turn(&w->host);
	assert_int_equal(memory_left(w), before);
}

/* ---- Epochs ---- */

/* A rank that waits for a credit when the next epoch opens is told so, and what to do. */
static void test_credit_of_an_old_epoch(void **state)
{
	struct world *w = *state;
	struct hand hands[3], *k = hands;
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Credit credit = CKPT__CREDIT__INIT;
	uint64_t id;

	start(w);
	join(w, &hands[0], "job", 0, 2);
	OK(hand_prepare(k));
	q.body_case = CKPT__REQUEST__BODY_CREDIT;
	q.credit = &credit;
	OK(hand_send(k, &q)); /* rank 1 is not there yet */
	for (int i = 0; i < 2; i++) {
		/* It comes, goes and is replaced; then another launch comes. */
		join(w, &hands[1], "job", 1, 2);
		hand_close(&hands[1]);
		k = &hands[2];
		OK(hand_connect(k, &w->host));
		OK(hand_open(k, "job", 1, 2, i == 0 ? "run1" : "run2"));
		hand_close(k);
		k = &hands[0];
		assert_int_equal(hand_receive(k, &id), CKPT_EEPOCH);
		assert_int_equal(id, k->next_id);
		if (!strstr(k->text, "load, then save again"))
			fail_msg("%s", k->text);
		OK(hand_send(k, &q));
		assert_int_equal(hand_receive(k, &id), CKPT_EEPOCH);
		if (!strstr(k->text, i == 0 ? "load, then save again" : "open first"))
			fail_msg("%s", k->text);
		if (i == 0) {
			struct hand_loaded none = { 0 };

			ignore_result(hand_load(k, CKPT_LATEST, NULL, &none) /* nothing */);
			OK(hand_send(k, &q));
		}
	}
	hand_close(k);
}

/* ---- Start ---- */

struct early {
	struct world *w;
	struct hand hand;
};

static void open_early(void *arg)
{
	struct early *a = arg;
	struct hand *k = &a->hand;
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Open o = CKPT__OPEN__INIT;

	OK(hand_connect(k, &a->w->host));
	o.job = (char *)"job";
	o.world = 1;
	o.run_id = (char *)"run1";
	q.body_case = CKPT__REQUEST__BODY_OPEN;
	q.open = &o;
	OK(hand_send(k, &q));
	for (int i = 0; i < 10; i++)
		host_turn(&a->w->host);
}

/* An open that comes while ckptd reads its data folder is answered when it has. */
static void test_open_while_it_starts(void **state)
{
	struct world *w = *state;
	struct early early = { .w = w };
	struct host_options o = { .backend = "threads", .node = &w->options, .folder = w->dir,
				  .socket = w->socket, .before = open_early,
				  .before_arg = &early };
	struct hand *k = &early.hand;
	struct err e = { 0 };
	uint64_t id;

	if (host_start(&w->host, &o, &e) < 0)
		fail_msg("%s", e.text);
	OK(hand_receive(k, &id));
	OK(hand_declare(k, GEOMETRY, shards, 1));
	hand_close(k);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_ranks_of_a_user, setup, teardown),
		cmocka_unit_test_setup_teardown(test_jobs_of_a_user, setup, teardown),
		cmocka_unit_test_setup_teardown(test_waits_of_a_session, setup, teardown),
		cmocka_unit_test_setup_teardown(test_loads_of_a_session, setup, teardown),
		cmocka_unit_test_setup_teardown(test_memory_of_idle_jobs, setup, teardown),
		cmocka_unit_test_setup_teardown(test_open_while_it_starts, setup, teardown),
		cmocka_unit_test_setup_teardown(test_credit_of_an_old_epoch, setup, teardown),
		cmocka_unit_test_setup_teardown(test_commit_beside_slow_memory, setup, teardown),
	};

	return cmocka_run_group_tests_name("bounds", tests, NULL, NULL);
}
