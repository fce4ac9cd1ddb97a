/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_giving.c - a load from more sources than one message, and one connection, may have
 * descriptors of: a node in this process, ranks that speak to it by hand, real sockets.
 */
#include <config.h>

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/alloc.h"
#include "ckpt.h"
#include "ckptd/conn_socket.h"
#include "ckptd/node_priv.h"
#include "model/load_plan.h"
#include "proto/session.pb-c.h"
#include "tests/lib/hand.h"
#include "tests/lib/small_node.h"
#include "tests/lib/test.h"

#define OK(call)                                                                                   \
	do {                                                                                       \
		if ((call) < 0)                                                                    \
			fail_msg("%s: %s", #call, k->text);                                        \
	} while (0)

enum { RANKS = CONN_FDS_SENT + 44, ELEMENTS = 16 };
#define BYTES (ELEMENTS * sizeof(uint32_t))

/* Elements of one tensor that is split among all ranks. */
static struct shard part(uint64_t first, uint64_t n)
{
	return (struct shard){.name = "w",
			      .name_len = 1,
			      .dtype = CKPT_F32,
			      .global = {1, {(uint64_t)RANKS * ELEMENTS}},
			      .box = {1, {first}, {n}}};
}

static void fill(void *arg, const struct shard *s, uint8_t *out)
{
	uint32_t rank = *(uint32_t *)arg;

	assert_int_equal(s->bytes, BYTES);
	for (uint32_t i = 0; i < ELEMENTS; i++)
		memcpy(out + i * sizeof(uint32_t), &(uint32_t){rank * ELEMENTS + i},
		       sizeof(uint32_t));
}

static void save_all(struct small_node *w)
{
	struct hand *hands = calloc(RANKS, sizeof(*hands)), *k;

	assert_non_null(hands);
	for (uint32_t i = 0; i < RANKS; i++) {
		const struct shard s = part((uint64_t)i * ELEMENTS, ELEMENTS);

		k = &hands[i];
		OK(hand_connect(k, &w->host));
		OK(hand_open(k, "job", i, RANKS, "run1"));
		OK(hand_declare(k, SMALL_GEOMETRY, &s, 1));
		OK(hand_prepare(k));
	}
	for (uint32_t i = 0; i < RANKS; i++) {
		k = &hands[i];
		OK(hand_save(k, 1, fill, &i, "blob", 4));
	}
	for (uint32_t i = 0; i < RANKS; i++) {
		k = &hands[i];
		OK(hand_wait(k, 1, CKPT_COMMITTED));
		hand_close(k);
	}
	free(hands);
}

/* What a reader has received of the load so far. */
struct given {
	int fds[RANKS + 1];
	size_t n_fds, messages;
	uint64_t load;
	bool more;
};

static void take(struct hand *k, struct given *g)
{
	struct hand_answer a = {0};

	OK(hand_take(k, &a));
	OK(a.reply->code);
	assert_non_null(a.reply->load);
	assert_true(a.n_fds > 0 && g->n_fds + a.n_fds <= RANKS + 1);
	for (size_t i = 0; i < a.n_fds; i++) {
		g->fds[g->n_fds++] = a.fds[i];
		a.fds[i] = -1;
	}
	a.n_fds = 0;
	g->load = a.reply->load->load;
	g->more = a.reply->load->more;
	g->messages++;
	hand_answer_free(&a);
}

static void ask_load(struct hand *k)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Load l = CKPT__LOAD__INIT;

	l.step = CKPT_LATEST;
	q.body_case = CKPT__REQUEST__BODY_LOAD;
	q.load = &l;
	OK(hand_send(k, &q));
}

/* Each source has what its rank saved, and the plan all of them. */
static void check_bytes(const struct given *g)
{
	uint32_t *got = calloc(RANKS, BYTES);
	uint64_t target = RANKS * BYTES;
	off_t len = lseek(g->fds[0], 0, SEEK_END);
	void *bytes = mmap(NULL, (size_t)len, PROT_READ, MAP_PRIVATE, g->fds[0], 0);
	struct load_plan p;
	struct err e = {0};

	assert_non_null(got);
	assert_ptr_not_equal(bytes, MAP_FAILED);
	if (load_plan_decode(bytes, (size_t)len, &target, 1, &p, &e) < 0)
		fail_msg("%s", e.text);
	assert_int_equal(p.n_sources, RANKS);
	assert_int_equal(g->n_fds, RANKS + 1);
	for (uint32_t s = 0; s < RANKS; s++) {
		size_t size = (size_t)p.sources[s].image_len;
		uint8_t *image = mmap(NULL, size, PROT_READ, MAP_SHARED, g->fds[1 + s], 0);

		assert_int_equal(p.sources[s].kind, LOAD_MEMORY);
		assert_ptr_not_equal(image, MAP_FAILED);
		for (size_t i = 0; i < p.plan.n_pieces; i++)
			if (p.plan.pieces[i].source == s)
				plan_piece_copy(&p.plan.pieces[i], image, 0, size, (uint8_t *)got);
		munmap(image, size);
	}
	for (uint32_t i = 0; i < RANKS * ELEMENTS; i++)
		assert_int_equal(got[i], i);
	load_plan_fini(&p);
	munmap(bytes, (size_t)len);
	free(got);
}

static void given_free(struct given *g)
{
	for (size_t i = 0; i < g->n_fds; i++)
		close(g->fds[i]);
	*g = (struct given){0};
}

static void begin_reader(struct small_node *w, struct hand *k, const char *run)
{
	const struct shard whole = part(0, (uint64_t)RANKS * ELEMENTS);

	OK(hand_connect(k, &w->host));
	OK(hand_open(k, "job", 0, 1, run));
	OK(hand_declare(k, SMALL_GEOMETRY, &whole, 1));
}

/* Turns for a tenth of a second: what can be sent is sent. */
static void let_it_send(struct small_node *w)
{
	uint64_t until = loop_now(w->host.loop) + 100000000u;

	while (loop_now(w->host.loop) < until)
		host_turn(&w->host);
}

static bool has_answer(struct hand *k)
{
	struct pollfd p = {.fd = k->fd, .events = POLLIN};

	return poll(&p, 1, 0) > 0;
}

static void test_all_come_to_who_reads(void **state)
{
	struct small_node *w = *state;
	struct hand hand, *k = &hand;
	struct given g = {.more = true};

	begin_reader(w, k, "run2");
	ask_load(k);
	while (g.more)
		take(k, &g);
	assert_true(g.messages > 5);
	check_bytes(&g);
	given_free(&g);
	hand_close(k);
}

/* A reader that does not read has at most its bound in flight, and loses nothing of the rest. */
static void test_who_does_not_read_gets_no_more(void **state)
{
	struct small_node *w = *state;
	struct hand hand, *k = &hand;
	struct given g = {.more = true};

	begin_reader(w, k, "run3");
	ask_load(k);
	let_it_send(w);
	while (has_answer(k))
		take(k, &g);
	assert_true(g.more && g.n_fds <= CONN_FDS_SENT);
	while (g.more)
		take(k, &g);
	check_bytes(&g);
	given_free(&g);
	hand_close(k);
}

/* Asks for a load and takes the first of its messages; returns the checkpoint, whose only reader
 * that is. */
static struct checkpoint *begin_and_take_one(struct small_node *w, struct hand *k, const char *run,
					     struct given *g)
{
	struct checkpoint *c;

	begin_reader(w, k, run);
	c = list_first(&list_first(&w->host.node->jobs, struct job, link)->checkpoints,
		       struct checkpoint, link);
	while (c->readers > 0) /* until the loads of earlier tests are over */
		host_turn(&w->host);
	ask_load(k);
	let_it_send(w);
	take(k, g);
	assert_true(g->more);
	assert_int_equal(c->readers, 1);
	return c;
}

/* A reader that ends with half of them unread no longer holds the checkpoint. */
static void test_who_ends_between_messages(void **state)
{
	struct small_node *w = *state;
	struct hand hand, *k = &hand;
	struct given g = {.more = true};
	struct checkpoint *c;

	c = begin_and_take_one(w, k, "run4", &g);
	given_free(&g);
	hand_close(k);
	while (c->readers > 0)
		host_turn(&w->host);
	g.more = true;
	begin_reader(w, k, "run5");
	ask_load(k);
	while (g.more)
		take(k, &g);
	check_bytes(&g);
	given_free(&g);
	hand_close(k);
}

/* A reader that sends LoadEnd and stays: the rest is not sent, and the load is over. */
static void test_who_says_the_end_between_messages(void **state)
{
	struct small_node *w = *state;
	struct hand hand, *k = &hand;
	struct given g = {.more = true};
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__LoadEnd m = CKPT__LOAD_END__INIT;
	struct checkpoint *c;

	c = begin_and_take_one(w, k, "run6", &g);
	m.load = g.load;
	q.body_case = CKPT__REQUEST__BODY_LOAD_END;
	q.load_end = &m;
	OK(hand_send(k, &q));
	let_it_send(w);
	assert_int_equal(c->readers, 0);
	given_free(&g);
	hand_close(k);
}

/* One save serves all. */
static int setup(void **state)
{
	int r = small_node_setup_started(state);

	save_all(*state);
	return r;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_come_to_who_reads),
		cmocka_unit_test(test_who_does_not_read_gets_no_more),
		cmocka_unit_test(test_who_ends_between_messages),
		cmocka_unit_test(test_who_says_the_end_between_messages),
	};
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) != 0)
		return 1;
	files.rlim_cur = files.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &files) != 0)
		return 1;
	return cmocka_run_group_tests(tests, setup, small_node_teardown);
}
