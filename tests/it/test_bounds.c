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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_commit_beside_slow_memory, setup, teardown),
	};

	return cmocka_run_group_tests_name("bounds", tests, NULL, NULL);
}
