/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_world.c - the world itself: order, replay, loops, workers, kills, memory of the killed.
 */
#include <config.h>

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fair.h"
#include "tests/lib/test.h"
#include "tests/sim/disk.h"
#include "tests/sim/life.h"

/* ---- Events ---- */

struct order {
	struct world *w;
	int seen[16];
	int n;
};
struct mark {
	struct order *o;
	int value;
};

static void see(void *arg)
{
	struct mark *m = arg;

	m->o->seen[m->o->n++] = m->value;
}

static void test_events_run_by_time_then_order(void **state)
{
	struct order o = { .w = world_new(1) };
	struct mark m[5];

	(void)state;
	for (int i = 0; i < 5; i++)
		m[i] = (struct mark){ &o, i };
	world_at(o.w, 30, NULL, see, &m[0]);
	world_at(o.w, 10, NULL, see, &m[1]);
	world_at(o.w, 20, NULL, see, &m[2]);
	world_at(o.w, 10, NULL, see, &m[3]);
	world_at(o.w, 15, NULL, see, &m[4]);
	world_forget(o.w, &m[4]);
	assert_false(world_run(o.w, 20, NULL, NULL));
	assert_int_equal(o.w->now_ns, 20);
	assert_int_equal(o.n, 3);
	assert_false(world_run(o.w, UINT64_MAX, NULL, NULL));
	assert_int_equal(o.n, 4);
	assert_int_equal(o.seen[0], 1);
	assert_int_equal(o.seen[1], 3);
	assert_int_equal(o.seen[2], 2);
	assert_int_equal(o.seen[3], 0);
	world_free(o.w);
}

/* ---- Loop ---- */

struct clockwork {
	struct life *life;
	struct timer slow, fast, never;
	struct task task;
	char log[64];
};

static void fast_fires(struct timer *t)
{
	struct clockwork *c = container_of(t, struct clockwork, fast);

	assert_true(loop_is_current(&c->life->loop));
	assert_int_equal(loop_now(&c->life->loop), 5 * SIM_MS);
	strcat(c->log, "fast ");
	timer_disarm(&c->life->loop, &c->never);
	timer_disarm(&c->life->loop, &c->never);
	loop_post(&c->life->loop, &c->task);
	strcat(c->log, "posted ");
}

static void slow_fires(struct timer *t)
{
	struct clockwork *c = container_of(t, struct clockwork, slow);

	assert_int_equal(loop_now(&c->life->loop), 9 * SIM_MS);
	strcat(c->log, "slow");
}

static void never_fires(struct timer *t)
{
	(void)t;
	fail_msg("a disarmed timer fired");
}

static void task_runs(struct task *t)
{
	strcat(container_of(t, struct clockwork, task)->log, "task ");
}

static void clock_main(void *arg)
{
	struct clockwork *c = arg;
	struct loop *loop = &c->life->loop;

	timer_init(&c->slow, slow_fires);
	timer_init(&c->fast, fast_fires);
	timer_init(&c->never, never_fires);
	task_init(&c->task, FAIR_NODE, task_runs);
	timer_arm(loop, &c->slow, 1 * SIM_MS);
	timer_arm(loop, &c->slow, 9 * SIM_MS); /* moves it */
	timer_arm(loop, &c->never, 6 * SIM_MS);
	timer_arm(loop, &c->fast, 2 * SIM_MS);
	/* Due at 2 ms, but the loop is not served before main() is done. */
	life_sleep(c->life->world, 5 * SIM_MS);
}

static void test_loop_in_virtual_time(void **state)
{
	struct world *w = world_new(2);
	struct life_options o = { .name = "clock", .clock_zero_ns = 0 };
	struct clockwork c = { 0 };

	(void)state;
	c.life = life_start(w, &o, clock_main, &c);
	assert_false(world_run(w, UINT64_MAX, NULL, NULL));
	assert_string_equal(c.log, "fast posted task slow");
	assert_int_equal(life_end(c.life), 0);
	life_free(c.life);
	world_free(w);
}

static void nothing(void *arg)
{
	(void)arg;
}

static void test_clock_starts_at_boot(void **state)
{
	struct world *w = world_new(3);
	struct life_options o = { .name = "late", .clock_zero_ns = 4 * SIM_S };
	struct life *l;

	(void)state;
	w->now_ns = 5 * SIM_S;
	l = life_start(w, &o, nothing, NULL);
	assert_int_equal(loop_now(&l->loop), SIM_S);
	assert_int_equal(loop_wall(&l->loop), w->wall_zero_ns + 5 * SIM_S);
	life_free(l);
	world_free(w);
}

/* ---- Workers ---- */

#define JOBS 12

struct job {
	struct work work;
	struct shop *shop;
	int number;
	uint64_t began, ended;
};
struct shop {
	struct life *life;
	struct disk *disk;
	enum work_class class;
	struct job jobs[JOBS];
	int begun[JOBS], n_begun, done[JOBS], n_done;
	int running, most_running;
};

static void job_run(struct work *work)
{
	struct job *j = container_of(work, struct job, work);
	struct shop *s = j->shop;

	assert_false(loop_is_current(&s->life->loop));
	s->begun[s->n_begun++] = j->number;
	s->running++;
	if (s->running > s->most_running)
		s->most_running = s->running;
	for (int i = 0; i < 3; i++)
		life_sleep(s->life->world, world_random(s->life->world, SIM_MS));
	s->running--;
	j->work.status = 100 + j->number;
}

static void job_done(struct work *work)
{
	struct job *j = container_of(work, struct job, work);
	struct shop *s = j->shop;

	assert_true(loop_is_current(&s->life->loop));
	assert_int_equal(work->status, 100 + j->number);
	s->done[s->n_done++] = j->number;
}

static void shop_main(void *arg)
{
	struct shop *s = arg;

	for (int i = 0; i < JOBS; i++) {
		s->jobs[i] = (struct job){ .shop = s, .number = i,
					   .work = { .run = job_run, .done = job_done } };
		list_init(&s->jobs[i].work.link);
		work_submit(&s->life->workers, s->class, FAIR_NODE, &s->jobs[i].work);
	}
}

static void test_workers_keep_order_and_width(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 50; seed++) {
		struct world *w = world_new(seed);
		struct life_options o = { .name = "shop", .width = { 2, 1, 2, 3, 1, 2, 1, 2 } };
		struct shop s = { .class = (enum work_class)(seed % WORK_CLASSES) };

		s.life = life_start(w, &o, shop_main, &s);
		assert_int_equal(work_width(&s.life->workers, WORK_CPU), 3);
		world_run(w, UINT64_MAX, NULL, NULL);
		assert_true(life_idle(s.life));
		assert_int_equal(s.n_done, JOBS);
		assert_int_equal(s.most_running, o.width[s.class]);
		for (int i = 0; i < JOBS; i++) {
			assert_int_equal(s.begun[i], i); /* first in, first begun */
			if (o.width[s.class] == 1)
				assert_int_equal(s.done[i], i);
		}
		assert_int_equal(life_end(s.life), 0);
		life_free(s.life);
		world_free(w);
	}
}

/* ---- Memory of a life ---- */

static void leak_two(void *arg)
{
	void **kept = arg;
	void *p = alloc_zero(10), *q;

	kept[0] = alloc_resize(p, 5000);
	q = alloc_str("x");
	kept[1] = alloc_copy("abc", 3);
	alloc_free(q);
	alloc_free(alloc_resize(NULL, 7));
}

static void free_both(void *arg)
{
	void **kept = arg;

	alloc_free(kept[0]);
	alloc_free(kept[1]);
}

static void test_blocks_of_a_life_are_counted_and_dropped(void **state)
{
	struct world *w = world_new(4);
	struct life_options o = { .name = "leaky" };
	void *kept[2];
	struct life *l;

	(void)state;
	l = life_start(w, &o, leak_two, kept);
	world_run(w, UINT64_MAX, NULL, NULL);
	assert_int_equal(blocks_live(&l->blocks), 2);
	assert_int_equal(life_end(l), 2);
	life_free(l);

	l = life_start(w, &o, leak_two, kept);
	world_run(w, UINT64_MAX, NULL, NULL);
	life_run(l, free_both, kept);
	assert_int_equal(life_end(l), 0);
	life_free(l);

	l = life_start(w, &o, leak_two, kept);
	world_run(w, UINT64_MAX, NULL, NULL);
	life_kill(l); /* the sanitizer's leak check would tell if they stayed */
	life_kill(l);
	life_free(l);
	world_free(w);
}

/* ---- Descriptors ---- */

static void count_unref(void *object)
{
	++*(int *)object;
}

static void test_descriptors_have_owners(void **state)
{
	static const struct sim_fd_ops ops = { "test", count_unref };
	static const struct sim_fd_ops other = { "other", count_unref };
	struct world *w = world_new(5);
	struct life_options o = { .name = "holder" };
	struct life *l = life_start(w, &o, nothing, NULL);
	int gone = 0, a, b;

	(void)state;
	a = sim_fd_new(w, l, &ops, &gone);
	b = sim_fd_new(w, l, &ops, &gone);
	assert_int_not_equal(a, b);
	assert_ptr_equal(sim_fd_object(w, a, &ops), &gone);
	assert_null(sim_fd_object(w, a, &other));
	assert_null(sim_fd_object(w, 1, &ops));
	sim_fd_move(w, b, NULL);
	assert_int_equal(sim_fd_count(w, l), 1);
	life_kill(l);
	assert_int_equal(gone, 1);
	sim_fd_close(w, b);
	assert_int_equal(gone, 2);
	life_free(l);
	world_free(w);
}

/* ---- Kills and replay: a small daemon that writes files on two workers ---- */

struct daemon {
	struct shop shop;
	int answers;
};

static void save_run(struct work *work)
{
	struct job *j = container_of(work, struct job, work);
	struct disk *d = j->shop->disk;
	struct disk_file *f;
	char path[16], *text = alloc_str("some bytes that the daemon owns");

	assert_non_null(text);
	snprintf(path, sizeof(path), "f%d", j->number);
	j->work.status = d->ops->open(d, path, DISK_CREATE, &f);
	if (j->work.status == 0) {
		j->work.status = d->ops->write(f, text, 32, 100);
		if (j->work.status == 0)
			j->work.status = d->ops->sync(f);
		d->ops->close(f);
	}
	if (j->work.status == 0)
		j->work.status = d->ops->sync_dir(d, "");
	alloc_free(text);
}

static void save_done(struct work *work)
{
	struct job *j = container_of(work, struct job, work);

	assert_int_equal(work->status, 0);
	j->shop->n_done++;
}

static void daemon_main(void *arg)
{
	struct shop *s = arg;

	for (int i = 0; i < 4; i++) {
		s->jobs[i] = (struct job){ .shop = s, .number = i,
					   .work = { .run = save_run, .done = save_done } };
		list_init(&s->jobs[i].work.link);
		work_submit(&s->life->workers, WORK_META, FAIR_NODE, &s->jobs[i].work);
	}
}

/* Runs the daemon, crashing at that step (0: never); the world's hash, and its answers. */
static uint64_t run_daemon(uint64_t seed, uint64_t crash_at_op, int *ret_done, uint64_t *ret_ops)
{
	struct world *w = world_new(seed);
	struct disk_options disk;
	struct life_options o = { .name = "daemon", .width = { 1, 2, 1, 1, 1, 1, 1 } };
	struct shop s = { .class = WORK_META };
	uint64_t hash;

	disk_options_default(&disk);
	s.disk = disk_sim_new(w, &disk);
	w->crash_at_op = crash_at_op;
	s.life = life_start(w, &o, daemon_main, &s);
	world_run(w, UINT64_MAX, NULL, NULL);
	assert_int_equal(s.life->alive, crash_at_op == 0);
	if (s.life->alive)
		assert_int_equal(life_end(s.life), 0);
	assert_int_equal(disk_open_files(s.disk), 0);
	*ret_done = s.n_done;
	*ret_ops = w->ops;
	life_free(s.life);
	disk_power_loss(s.disk);
	world_note(w, "disk", disk_digest(s.disk), 0, 0);
	hash = world_hash(w);
	disk_sim_free(s.disk);
	world_free(w);
	return hash;
}

static void test_same_seed_same_hash(void **state)
{
	uint64_t before = 0, ops;
	int done;

	(void)state;
	for (uint64_t seed = 1; seed <= 100; seed++) {
		uint64_t hash = run_daemon(seed, 0, &done, &ops);

		/* What lies elsewhere in the heap must not matter. */
		void *shift = alloc_zero(1000 * seed);

		assert_int_equal(done, 4);
		assert_int_not_equal(hash, before);
		assert_int_equal(run_daemon(seed, 0, &done, &ops), hash);
		alloc_free(shift);
		before = hash;
	}
}

static void test_killed_at_every_step(void **state)
{
	uint64_t ops, n, hash;
	int done, most = 0;

	(void)state;
	run_daemon(7, 0, &done, &ops);
	assert_true(ops >= 16);
	for (n = 1; n <= ops; n++) {
		uint64_t at;

		hash = run_daemon(7, n, &done, &at);
		assert_int_equal(at, n);
		assert_int_equal(run_daemon(7, n, &done, &at), hash);
		assert_true(done < 4);
		most = done > most ? done : most;
	}
	assert_true(most > 0); /* some answers came before the kill */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_events_run_by_time_then_order),
		cmocka_unit_test(test_loop_in_virtual_time),
		cmocka_unit_test(test_clock_starts_at_boot),
		cmocka_unit_test(test_workers_keep_order_and_width),
		cmocka_unit_test(test_blocks_of_a_life_are_counted_and_dropped),
		cmocka_unit_test(test_descriptors_have_owners),
		cmocka_unit_test(test_same_seed_same_hash),
		cmocka_unit_test(test_killed_at_every_step),
	};
	int r = cmocka_run_group_tests_name("sim world", tests, NULL, NULL);

	fiber_pool_free();
	return r;
}
