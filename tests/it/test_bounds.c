/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bounds.c - what one session may take and how long it may make others wait: a node in this
 * process, ranks that speak to it by hand, workers that are kept busy.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/work.h"
#include "ckptd/keeper.h"
#include "ckptd/node_priv.h"
#include "model/declaration.h"
#include "proto/session.pb-c.h"
#include "tests/lib/hand.h"
#include "tests/lib/silent_store.h"
#include "tests/lib/small_node.h"
#include "tests/lib/test.h"

#define OK(call)                                                                                   \
	do {                                                                                       \
		if ((call) < 0)                                                                    \
			fail_msg("%s: %s", #call, k->text);                                        \
	} while (0)

static void join(struct small_node *w, struct hand *k, const char *job, uint32_t rank,
		 uint32_t world)
{
	OK(hand_connect(k, &w->host));
	OK(hand_open(k, job, rank, world, "run1"));
	OK(hand_declare(k, SMALL_GEOMETRY, &small_shard, 1));
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

static void busy_start(struct small_node *w, struct busy *b, enum work_class class)
{
	memset(b, 0, sizeof(*b));
	assert_int_equal(work_width(w->host.workers, class), 1);
	assert_int_equal(sem_init(&b->go, 0, 0), 0);
	b->work.run = busy_run;
	b->work.done = busy_done;
	/* As works of this user: another user's would leave a worker for the ranks' own. */
	work_submit(w->host.workers, class, (uint32_t)getuid(), &b->work);
}

static void busy_end(struct small_node *w, struct busy *b)
{
	assert_int_equal(sem_post(&b->go), 0);
	while (!b->over)
		host_turn(&w->host);
	sem_destroy(&b->go);
}

/* A node with a rank whose first step is durable. */
static void start_with_step(struct small_node *w, struct hand *k, uint64_t step)
{
	small_node_start(w);
	join(w, k, "job", 0, 1);
	OK(hand_prepare(k));
	OK(save(k, step));
	OK(hand_wait(k, step, CKPT_DURABLE));
}

/* Records go into the log beside slow durable steps, and those beside memory that is taken. */
static void test_commit_beside_slow_memory(void **state)
{
	struct small_node *w = *state;
	struct hand hand, *k = &hand;
	struct busy b;

	start_with_step(w, k, 10);
	busy_start(w, &b, WORK_META);
	OK(save(k, 20));
	OK(hand_wait(k, 20, CKPT_COMMITTED));
	busy_end(w, &b);
	busy_start(w, &b, WORK_MEMORY);
	OK(save(k, 30));
	OK(hand_wait(k, 30, CKPT_DURABLE));
	busy_end(w, &b);
	OK(hand_wait(k, 20, CKPT_DURABLE));
	hand_close(k);
}

/* A memfd with the declaration of n tensors; its digest. */
static int large_declaration(uint32_t n, struct digest *ret)
{
	struct declaration_builder *b;
	char name[32];
	struct shard s = { .name = name, .dtype = CKPT_F32, .global = { 1, { 1 } },
			   .box = { 1, { 0 }, { 1 } } };
	void *bytes;
	size_t len;
	int fd = memfd_create("declaration", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_int_equal(declaration_builder_new(SMALL_GEOMETRY, &b), 0);
	for (uint32_t i = 0; i < n; i++) {
		s.name_len = (uint16_t)snprintf(name, sizeof(name), "layers.%u.weight", i);
		assert_true(declaration_add(b, &s, NULL) >= 0);
	}
	assert_int_equal(declaration_finish(b, &bytes, &len, NULL), 0);
	declaration_builder_free(b);
	*ret = declaration_digest(bytes, len);
	assert_true(fd >= 0 && write(fd, bytes, len) == (ssize_t)len);
	assert_int_equal(
		fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_WRITE), 0);
	alloc_free(bytes);
	return fd;
}

static void send_declaration(struct hand *k, int fd, struct digest *d)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Declare m = CKPT__DECLARE__INIT;

	m.digest = (ProtobufCBinaryData){ 16, d->b };
	m.in_fd = true;
	q.body_case = CKPT__REQUEST__BODY_DECLARE;
	q.declare = &m;
	OK(hand_send_fd(k, &q, fd));
}

static bool has_answer(struct hand *k)
{
	struct pollfd p = { .fd = k->fd, .events = POLLIN };

	return poll(&p, 1, 0) > 0;
}

/* A large declaration is read and parsed elsewhere: others are served meanwhile. */
static void test_declaration_beside_others(void **state)
{
	struct small_node *w = *state;
	struct hand a, b, *k = &a;
	struct digest d;
	struct busy busy;
	uint64_t id;
	int fd = large_declaration(100000, &d), code;

	small_node_start(w);
	OK(hand_connect(k, &w->host));
	OK(hand_open(k, "job", 0, 2, "run1"));
	busy_start(w, &busy, WORK_CHECK);
	send_declaration(k, fd, &d);
	send_declaration(k, fd, &d); /* a second one is refused while the first is under way */
	code = hand_receive(k, &id);
	assert_int_equal(code, CKPT_ESTATE);
	assert_int_equal(id, k->next_id);
	join(w, &b, "job", 1, 2);
	assert_false(has_answer(k));
	busy_end(w, &busy);
	OK(hand_receive(k, &id));
	send_declaration(k, fd, &d); /* again, as after a lost answer */
	OK(hand_receive(k, &id));
	close(fd);
	fd = large_declaration(10, &d);
	d.b[0] ^= 1;
	send_declaration(k, fd, &d);
	assert_int_equal(hand_receive(k, &id), CKPT_EPROTO);
	close(fd);
	hand_close(&a);
	hand_close(&b);
}

/* A load is planned beside durable steps that take long, and these beside plans that do. */
static void test_plans_beside_others(void **state)
{
	struct small_node *w = *state;
	struct hand hand, *k = &hand;
	static uint8_t bytes[1 << 20];
	struct hand_loaded loaded = {.shards = {bytes}};
	struct busy busy;

	start_with_step(w, k, 1);
	busy_start(w, &busy, WORK_META);
	OK(hand_load(k, 1, NULL, &loaded));
	busy_end(w, &busy);
	busy_start(w, &busy, WORK_PLAN);
	OK(save(k, 2));
	OK(hand_wait(k, 2, CKPT_DURABLE));
	busy_end(w, &busy);
	hand_close(k);
}

enum { WAITING = 24 };

static unsigned answered(struct hand *hands)
{
	unsigned n = 0;

	for (unsigned i = 0; i < WAITING; i++)
		n += has_answer(&hands[i]);
	return n;
}

/* Many that wait for the ledger's next region are not all written in one call of the loop. */
static void test_declarations_that_waited(void **state)
{
	struct small_node *w = *state;
	static struct hand hands[WAITING], *k;
	unsigned before, now, most = 0;
	struct digest d;
	struct busy busy;
	uint64_t id;
	int fd;

	small_node_start(w);
	for (k = hands; k < hands + WAITING; k++) {
		OK(hand_connect(k, &w->host));
		OK(hand_open(k, "job", (uint32_t)(k - hands), WAITING, "run1"));
	}
	busy_start(w, &busy, WORK_META);
	for (k = hands; k < hands + WAITING; k++) {
		fd = large_declaration(1500 + (uint32_t)(k - hands), &d);
		send_declaration(k, fd, &d);
		close(fd);
	}
	for (int i = 0; i < 300; i++)
		host_turn(&w->host);
	before = answered(hands);
	assert_true(before < WAITING / 2);
	assert_int_equal(sem_post(&busy.go), 0);
	for (int i = 0; i < 10000 && before < WAITING; i++, before = now) {
		host_turn(&w->host);
		now = answered(hands);
		most = now - before > most ? now - before : most;
	}
	assert_int_equal(before, WAITING);
	assert_true(busy.over);
	sem_destroy(&busy.go);
	for (k = hands; k < hands + WAITING; k++) {
		OK(hand_receive(k, &id));
		hand_close(k);
	}
	assert_true(most <= 4); /* in a turn, which may have some calls */
}

/* Its session goes while a worker reads it. */
static void test_declaration_of_who_left(void **state)
{
	struct small_node *w = *state;
	struct hand hand, *k = &hand;
	struct digest d;
	struct busy busy;
	int fd = large_declaration(1000, &d);
	uint32_t works;

	small_node_start(w);
	for (int i = 0; i < 2; i++) {
		OK(hand_connect(k, &w->host));
		OK(hand_open(k, "job", 0, 1, "run1"));
		busy_start(w, &busy, WORK_CHECK);
		works = w->host.node->works;
		send_declaration(k, fd, &d);
		while (w->host.node->works == works)
			host_turn(&w->host);
		hand_close(k);
		while (!list_empty(&w->host.node->sessions))
			host_turn(&w->host);
		busy_end(w, &busy);
	}
	close(fd);
}

/* Slots are sealed elsewhere, and stay while they are; whoever asked may be gone by then. */
static void test_slots_ready_beside_others(void **state)
{
	struct small_node *w = *state;
	struct hand a, b, *k = &a;
	struct busy busy;
	uint64_t id;
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Prepare p = CKPT__PREPARE__INIT;
	Ckpt__SlotsReady ready = CKPT__SLOTS_READY__INIT;
	Ckpt__List list = CKPT__LIST__INIT;

	small_node_start(w);
	for (int i = 0; i < 2; i++) {
		join(w, &a, "job", 0, 2);
		join(w, &b, "job", 1, 2);
		k = &a;
		q.body_case = CKPT__REQUEST__BODY_PREPARE;
		q.prepare = &p;
		OK(hand_send(k, &q));
		OK(hand_receive(k, &id));
		busy_start(w, &busy, WORK_MEMORY);
		q.body_case = CKPT__REQUEST__BODY_SLOTS_READY;
		q.slots_ready = &ready;
		OK(hand_send(k, &q));
		k = &b;
		q.body_case = CKPT__REQUEST__BODY_LIST;
		q.list = &list;
		OK(hand_send(k, &q));
		OK(hand_receive(k, &id));
		assert_false(has_answer(&a));
		k = &a;
		if (i == 0) {
			busy_end(w, &busy);
			OK(hand_receive(k, &id));
		} else {
			Ckpt__Bye bye = CKPT__BYE__INIT;

			q.body_case = CKPT__REQUEST__BODY_BYE;
			q.bye = &bye;
			OK(hand_send(k, &q));
			OK(hand_receive(k, &id));
			busy_end(w, &busy);
			assert_int_equal(hand_receive(k, &id), CKPT_EEPOCH);
		}
		hand_close(&a);
		hand_close(&b);
	}
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
	struct small_node *w = *state;
	struct hand hands[3], *k = hands;

	w->options.sessions_per_uid = 2;
	small_node_start(w);
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
	struct small_node *w = *state;
	struct hand hand, *k = &hand;

	w->options.jobs_per_uid = 1;
	small_node_start(w);
	OK(hand_connect(k, &w->host));
	OK(hand_open(k, "one", 0, 1, "run1"));
	hand_close(k);
	OK(hand_connect(k, &w->host));
	refused(k, hand_open(k, "two", 0, 1, "run1"), -EMFILE, "quota.jobs_per_uid");
	OK(hand_open(k, "one", 0, 1, "run2"));
	hand_close(k);
}

/* A process that asks nothing is closed, unless it is a rank or waits for an answer. */
static void test_idle_sessions_are_closed(void **state)
{
	struct small_node *s = *state;
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Admin m = CKPT__ADMIN__INIT;
	struct hand idle, rank, waits;
	uint64_t id;

	s->options.session_idle_ns = 300000000;
	small_node_start(s);
	assert_int_equal(hand_connect(&idle, &s->host), 0);
	assert_int_equal(hand_connect(&rank, &s->host), 0);
	assert_int_equal(hand_open(&rank, "job", 0, 1, "run"), 0);
	assert_int_equal(hand_connect(&waits, &s->host), 0);
	q.body_case = CKPT__REQUEST__BODY_ADMIN;
	q.admin = &m;
	m.verb = CKPT__ADMIN__VERB__EVENTS;
	m.wait = true;
	m.since = UINT64_MAX / 2; /* never */
	assert_int_equal(hand_send(&waits, &q), 0);
	assert_true(hand_receive(&idle, &id) < 0); /* its connection ended */
	for (int i = 0; i < 20; i++) { /* longer than that is idle */
		host_turn(&s->host);
		usleep(30000);
	}
	assert_int_equal(hand_admin(&rank, "job", CKPT__ADMIN__VERB__GC, 0), 0);
	/* Its wait goes on, and another request of it is answered. */
	m.wait = false;
	m.since = 0;
	assert_int_equal(hand_ask_code(&waits, &q), 0);
	hand_close(&idle);
	hand_close(&rank);
	hand_close(&waits);
}

static void test_waits_of_a_session(void **state)
{
	struct small_node *w = *state;
	struct hand hands[2], *k = hands;
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Wait wait = CKPT__WAIT__INIT;
	uint64_t id;
	int code;

	w->options.waits_per_session = 3;
	small_node_start(w);
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
	struct small_node *w = *state;
	struct hand hand, *k = &hand;
	struct hand_loaded loaded = { 0 };
	uint8_t bytes[256];
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Load load = CKPT__LOAD__INIT;
	uint64_t id;
	int code;

	w->options.loads_per_session = 2;
	start_with_step(w, k, 10);
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

static uint64_t memory_left(struct small_node *w)
{
	return w->host.memory->ops->available(w->host.memory, NULL);
}

/* A job without ranks and snapshots takes no memory. */
static void test_memory_of_idle_jobs(void **state)
{
	struct small_node *w = *state;
	struct hand hand, *k = &hand;
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Bye bye = CKPT__BYE__INIT;
	uint64_t id, before;
	char job[16];

	small_node_start(w);
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

/* Slots that would leave nothing for the ledger are refused before training starts. */
static void test_budget_has_the_ledger(void **state)
{
	struct small_node *w = *state;
	struct host_options o = {0};
	struct hand hand, *k = &hand;
	uint64_t slots;

	small_node_start(w);
	join(w, k, "job", 0, 1);
	OK(hand_prepare(k));
	slots = w->options.slots * k->slot_bytes;
	hand_close(k);
	host_stop(&w->host);
	for (uint64_t more = 0; more <= 1 << 20; more += 1 << 20) {
		o.memory_budget = slots + (64 << 10) + 8192 + more;
		small_node_start_with(w, o);
		join(w, k, "job", 0, 1);
		if (more == 0) {
			assert_int_equal(hand_prepare(k), CKPT_ENOSPACE);
			assert_non_null(strstr(k->text, "memory.budget"));
		} else {
			OK(hand_prepare(k));
			for (uint64_t step = 1; step <= 200; step++)
				OK(save(k, step));
			OK(hand_wait(k, 200, CKPT_DURABLE));
		}
		hand_close(k);
		if (more == 0)
			host_stop(&w->host);
	}
}

/* ---- Places in the fd store ---- */

enum {
	PLACES_OF_RANK = 5,   /* of a job with one rank: ledger, page of beats, three slots */
	/* Three slots and two that stay free (STORE_SPARE); half of what the user then has is free,
	 * too (user_may_store()). */
	PLACES_TO_PREPARE = 5
};

/* Turns until all requests to the store are done. */
static uint64_t places_used(struct small_node *w, uint64_t wanted)
{
	struct memory_room room;

	for (int turns = 0; turns < 500; turns++) {
		w->host.memory->ops->room(w->host.memory, &room);
		if (room.used == wanted)
			break;
		host_turn(&w->host);
	}
	return room.used;
}

static void refused_by_store(struct hand *k, int code, const char *used)
{
	if (code != CKPT_ENOSPACE || !strstr(k->text, "FileDescriptorStoreMax=") ||
	    !strstr(k->text, "memory.descriptors") || !strstr(k->text, used))
		fail_msg("%d: %s", code, k->text);
}

/*
 * systemd silently drops what it has no room for. With one place too few the rank is refused before
 * anything is made, and the other rank saves on.
 */
static void test_rank_that_does_not_fit_into_the_store(void **state)
{
	struct small_node *w = *state;
	struct hand hands[2], *k = hands;
	struct silent_store store;
	uint64_t used = PLACES_OF_RANK + 2; /* the other job's ledger and beats */

	for (int fits = 0; fits < 2; fits++) {
		silent_store_start(&store, used + PLACES_TO_PREPARE + (used + 3) / 2 - 1 + fits,
				   true);
		small_node_start(w);
		k = &hands[0];
		join(w, k, "job", 0, 1);
		OK(hand_prepare(k));
		k = &hands[1];
		join(w, k, "other", 0, 1);
		assert_int_equal(places_used(w, used), used);
		if (fits) {
			OK(hand_prepare(k));
			assert_int_equal(places_used(w, used + 3), used + 3);
			OK(save(k, 1));
		} else {
			refused_by_store(k, hand_prepare(k), "has 7, and 7 of 16 are free");
			assert_int_equal(places_used(w, used), used);
		}
		k = &hands[0];
		for (uint64_t step = 1; step <= 200; step++)
			OK(save(k, step));
		OK(hand_wait(k, 200, CKPT_DURABLE));
		assert_int_equal(store.dropped, 0);
		hand_close(&hands[0]);
		hand_close(&hands[1]);
		host_stop(&w->host);
		silent_store_stop(&store);
	}
}

/* A ledger has no place: the open says so. */
static void test_store_without_a_place(void **state)
{
	struct small_node *w = *state;
	struct hand hand, *k = &hand;
	struct silent_store store;

	silent_store_start(&store, 0, true);
	small_node_start(w);
	OK(hand_connect(k, &w->host));
	assert_int_equal(hand_open(k, "job", 0, 1, "run1"), CKPT_ENOSPACE);
	assert_non_null(strstr(k->text, "FileDescriptorStoreMax="));
	assert_int_equal(store.dropped, 0);
	hand_close(k);
	host_stop(&w->host);
	silent_store_stop(&store);
}

/* There are places, but a ckptd that is started again could not be passed the names of all. */
static void test_names_that_a_start_cannot_pass(void **state)
{
	struct small_node *w = *state;
	struct hand hand, *k = &hand;
	struct silent_store store;
	unsigned n = 0;
	char name[200];

	silent_store_start(&store, 65536, true);
	small_node_start(w);
	join(w, k, "job", 0, 1);
	assert_int_equal(places_used(w, 2), 2);
	do /* any descriptor will do: this store keeps none */
		snprintf(name, sizeof(name), "%0199u", n++);
	while (keeper_store(w->host.keeper, name, 0) == 0);
	assert_int_equal(hand_prepare(k), CKPT_ENOSPACE);
	assert_null(strstr(k->text, "FileDescriptorStoreMax="));
	assert_non_null(strstr(k->text, "lower memory.slots"));
	for (n = 0; n < 80; n++) {
		snprintf(name, sizeof(name), "%0199u", n);
		assert_int_equal(keeper_remove(w->host.keeper, name), 0);
	}
	OK(hand_prepare(k));
	OK(save(k, 1));
	hand_close(k);
	host_stop(&w->host);
	silent_store_stop(&store);
}

/* Two ranks that are admitted together, before either has its slots: one gets them. */
static void test_ranks_that_race_for_the_store(void **state)
{
	struct small_node *w = *state;
	struct hand hands[2], *k = hands;
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Prepare p = CKPT__PREPARE__INIT;
	struct silent_store store;
	struct busy busy;
	int codes[2], loser;
	uint64_t id;

	silent_store_start(&store, 3 + PLACES_TO_PREPARE + 3, true);
	small_node_start(w);
	for (uint32_t i = 0; i < 2; i++) {
		k = &hands[i];
		join(w, k, "job", i, 2);
	}
	assert_int_equal(places_used(w, 3), 3); /* one ledger, two pages of beats */
	busy_start(w, &busy, WORK_MEMORY);
	q.body_case = CKPT__REQUEST__BODY_PREPARE;
	q.prepare = &p;
	OK(hand_send(&hands[0], &q));
	OK(hand_send(&hands[1], &q));
	for (int i = 0; i < 20; i++)
		host_turn(&w->host);
	busy_end(w, &busy);
	for (int i = 0; i < 2; i++)
		codes[i] = hand_receive(&hands[i], &id);
	loser = codes[0] < 0 ? 0 : 1; /* the rank that came second */
	refused_by_store(&hands[loser], codes[loser], "has 6, and 3 of 11 are free");
	assert_int_equal(codes[1 - loser], 0);
	assert_int_equal(places_used(w, 6), 6);
	assert_int_equal(store.dropped, 0);
	hand_close(&hands[0]);
	hand_close(&hands[1]);
	host_stop(&w->host);
	silent_store_stop(&store);
}

/* ---- Epochs ---- */

/* A rank that waits for a credit when the next epoch opens is told so, and what to do. */
static void test_credit_of_an_old_epoch(void **state)
{
	struct small_node *w = *state;
	struct hand hands[3], *k = hands;
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Credit credit = CKPT__CREDIT__INIT;
	uint64_t id;

	small_node_start(w);
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
		if (!strstr(k->text, i == 0 ? "load, then save again"
					    : "took job 'job' over (it is in epoch 3, run 'run2')"))
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
	struct small_node *w;
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
	struct small_node *w = *state;
	struct early early = {.w = w};
	struct hand *k = &early.hand;
	uint64_t id;

	small_node_start_with(w, (struct host_options){.before = open_early, .before_arg = &early});
	OK(hand_receive(k, &id));
	OK(hand_declare(k, SMALL_GEOMETRY, &small_shard, 1));
	hand_close(k);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, small_node_setup, small_node_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_ranks_of_a_user),           TEST(test_jobs_of_a_user),
		TEST(test_idle_sessions_are_closed),
		TEST(test_waits_of_a_session),        TEST(test_loads_of_a_session),
		TEST(test_declaration_beside_others), TEST(test_declaration_of_who_left),
		TEST(test_plans_beside_others), TEST(test_declarations_that_waited),
		TEST(test_slots_ready_beside_others), TEST(test_budget_has_the_ledger),
		TEST(test_memory_of_idle_jobs),       TEST(test_open_while_it_starts),
		TEST(test_credit_of_an_old_epoch),    TEST(test_commit_beside_slow_memory),
		TEST(test_rank_that_does_not_fit_into_the_store),
		TEST(test_store_without_a_place),
		TEST(test_names_that_a_start_cannot_pass),
		TEST(test_ranks_that_race_for_the_store),
	};

	return cmocka_run_group_tests_name("bounds", tests, NULL, NULL);
}
