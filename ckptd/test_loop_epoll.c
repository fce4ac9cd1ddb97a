/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "base/fair.h"
#include "ckptd/loop_epoll.h"
#include "tests/lib/clocks.h"
#include "tests/lib/test.h"

static int setup(void **state)
{
	struct loop *l;

	if (loop_epoll_new(&l, NULL) != 0)
		return -1;
	*state = l;
	return 0;
}

static int teardown(void **state)
{
	loop_epoll_free(*state);
	return 0;
}

/* ---- Timers ---- */

struct shot {
	struct timer timer;
	struct loop *loop;
	char name;
	char *log;
	struct shot *disarms;
};

static void shot_fire(struct timer *t)
{
	struct shot *s = container_of(t, struct shot, timer);

	*strchr(s->log, '\0') = s->name;
	if (s->disarms)
		timer_disarm(s->loop, &s->disarms->timer);
	if (s->name == 'z')
		loop_epoll_stop(s->loop);
}

/* Time does not go on while the machine is suspended, and not when somebody sets a clock; what is
 * for people is of the clock that they set. */
static void test_clock(void **state)
{
	uint64_t before = clocks_monotonic_ns(), now;
	struct loop *l;

	(void)state;
	assert_int_equal(loop_epoll_new(&l, NULL), 0);
	now = loop_now(l);
	assert_in_range(now, before, clocks_monotonic_ns());
	assert_true(loop_wall(l) > 1600000000ull * 1000000000 + now);
	loop_epoll_free(l);
}

static void test_timers_fire_in_order_and_not_early(void **state)
{
	struct loop *l = *state;
	char log[16] = "";
	struct shot s[5];
	uint64_t now = loop_now(l), last;

	for (int i = 0; i < 5; i++) {
		s[i] = (struct shot){ .loop = l, .name = "abcxz"[i], .log = log };
		timer_init(&s[i].timer, shot_fire);
	}
	timer_arm(l, &s[4].timer, last = now + 9000000);
	timer_arm(l, &s[2].timer, now + 3000000);
	timer_arm(l, &s[0].timer, now + 1000000);
	timer_arm(l, &s[1].timer, now + 60000000000u); /* moved below */
	timer_arm(l, &s[3].timer, now + 3000000);      /* equal to c, armed later: disarmed by c */
	timer_arm(l, &s[1].timer, now + 2000000);
	s[2].disarms = &s[3];
	loop_epoll_run(l);
	assert_string_equal(log, "abcz");
	assert_true(loop_now(l) >= last);
}

static void test_timers_over_the_bound_come_next_turn(void **state)
{
	enum { N = 200 };
	struct loop *l = *state;
	char log[N + 1] = "";
	struct shot s[N];
	int turns = 0;

	for (int i = 0; i < N; i++) {
		s[i] = (struct shot){ .loop = l, .name = 'a', .log = log };
		timer_init(&s[i].timer, shot_fire);
		timer_arm(l, &s[i].timer, 0);
	}
	for (; strlen(log) < N; turns++)
		loop_epoll_turn(l, 0);
	assert_int_equal(turns, 4); /* 64 + 64 + 64 + 8 */
}

/* ---- Posts ---- */

struct job {
	struct task task;
	struct loop *loop;
	int left; /* posts itself again that often */
	int ran;
	int nested; /* a run inside a post is a bug */
};

static void job_run(struct task *t)
{
	struct job *j = container_of(t, struct job, task);

	assert_int_equal(j->nested, 0);
	assert_true(loop_is_current(j->loop));
	j->ran++;
	j->nested = 1;
	if (j->left-- > 0)
		loop_post(j->loop, t);
	j->nested = 0;
}

static void test_post_runs_in_the_next_turn(void **state)
{
	struct loop *l = *state;
	struct job j = { .loop = l, .left = 2 };

	task_init(&j.task, FAIR_NODE, job_run);
	loop_post(l, &j.task);
	assert_int_equal(j.ran, 0);
	for (int i = 1; i <= 3; i++) {
		loop_epoll_turn(l, UINT64_MAX); /* never waits: something is posted */
		assert_int_equal(j.ran, i);
	}
	loop_epoll_turn(l, 0);
	assert_int_equal(j.ran, 3);
}

static void test_unpost_takes_it_back(void **state)
{
	struct loop *l = *state;
	struct job j = { .loop = l };

	task_init(&j.task, FAIR_NODE, job_run);
	loop_unpost(l, &j.task);
	loop_post(l, &j.task);
	loop_unpost(l, &j.task);
	loop_unpost(l, &j.task);
	loop_epoll_turn(l, 0);
	assert_int_equal(j.ran, 0);
}

enum { THREADS = 4, POSTS = 2000 };

struct counter {
	struct task task;
	struct poster *poster;
	int number;
};
struct poster {
	struct loop *loop;
	struct counter posts[POSTS];
	int seen;
	int *all;
};

static void count(struct task *t)
{
	struct counter *c = container_of(t, struct counter, task);

	assert_int_equal(c->number, c->poster->seen); /* in order of each poster */
	c->poster->seen++;
	if (++*c->poster->all == THREADS * POSTS)
		loop_epoll_stop(c->poster->loop);
}

static void *post_all(void *arg)
{
	struct poster *p = arg;

	for (int i = 0; i < POSTS; i++)
		loop_post(p->loop, &p->posts[i].task);
	return NULL;
}

static void test_posts_of_threads_all_arrive_in_order(void **state)
{
	static struct poster p[THREADS];
	pthread_t thread[THREADS];
	int all = 0;

	for (int i = 0; i < THREADS; i++) {
		p[i] = (struct poster){ .loop = *state, .all = &all };
		for (int k = 0; k < POSTS; k++) {
			p[i].posts[k] = (struct counter){ .poster = &p[i], .number = k };
			task_init(&p[i].posts[k].task, FAIR_NODE, count);
		}
		assert_int_equal(pthread_create(&thread[i], NULL, post_all, &p[i]), 0);
	}
	loop_epoll_run(*state); /* hangs if a wake-up is lost */
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_join(thread[i], NULL), 0);
	assert_int_equal(all, THREADS * POSTS);
}

/* ---- Watches ---- */

struct end {
	struct watch watch;
	struct loop *loop;
	struct end *other;
	int calls;
};

static void end_ready(struct watch *w, uint32_t events)
{
	struct end *end = container_of(w, struct end, watch);

	assert_true(events & EPOLLIN);
	end->calls++;
	watch_remove(end->loop, &end->other->watch);
	close(end->other->watch.fd);
	end->other->watch.fd = -1;
}

/* Both are readable in one batch; whoever comes first removes and closes the other. */
static void test_removed_watch_is_not_called(void **state)
{
	int a[2], b[2];
	struct end end[2] = { { .loop = *state, .other = &end[1] },
			      { .loop = *state, .other = &end[0] } };

	assert_int_equal(pipe(a) | pipe(b), 0);
	assert_true(write(a[1], "x", 1) == 1 && write(b[1], "x", 1) == 1);
	watch_init(&end[0].watch, a[0], end_ready);
	watch_init(&end[1].watch, b[0], end_ready);
	for (int i = 0; i < 2; i++)
		assert_int_equal(watch_set(*state, &end[i].watch, EPOLLIN), 0);
	loop_epoll_turn(*state, UINT64_MAX);
	assert_int_equal(end[0].calls + end[1].calls, 1);
	for (int i = 0; i < 2; i++) {
		watch_remove(*state, &end[i].watch);
		if (end[i].watch.fd >= 0)
			close(end[i].watch.fd);
	}
	close(a[1]);
	close(b[1]);
}

static void test_watch_of_a_bad_descriptor_is_an_error(void **state)
{
	struct watch w;

	watch_init(&w, 1 << 20, end_ready);
	assert_int_equal(watch_set(*state, &w, EPOLLIN), -EBADF);
	watch_remove(*state, &w);
}

/* ---- Users ---- */

struct dear {
	struct task task;
	struct loop *loop;
	uint64_t cost_ns;
	int *all, at; /* at: how many had run when it ran */
};

static uint64_t cpu_ns(void)
{
	struct timespec t;

	assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t), 0);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void burn(struct task *t)
{
	struct dear *d = container_of(t, struct dear, task);
	uint64_t until = cpu_ns() + d->cost_ns;

	loop_label(d->loop, "a dear one");
	while (cpu_ns() < until)
		;
	d->at = ++*d->all;
}

/* One user has posted many long tasks before: another's tasks run after one of them, not after
 * all. */
static void test_tasks_run_in_fair_order(void **state)
{
	enum { MANY = 50, FEW = 5 };
	struct dear many[MANY], few[FEW];
	int all = 0;

	for (int i = 0; i < MANY; i++) {
		many[i] = (struct dear){.loop = *state, .cost_ns = 500000, .all = &all};
		task_init(&many[i].task, 1000, burn);
		loop_post(*state, &many[i].task);
	}
	loop_epoll_turn(*state, 0); /* in a bounded time: not all of them */
	assert_in_range(all, 1, 8);
	for (int i = 0; i < FEW; i++) {
		few[i] = (struct dear){.loop = *state, .cost_ns = 1000, .all = &all};
		task_init(&few[i].task, 1001, burn);
		loop_post(*state, &few[i].task);
	}
	while (all < MANY + FEW)
		loop_epoll_turn(*state, 0);
	assert_in_range(few[FEW - 1].at, FEW, FEW + 8 + 1);
	for (int i = 1; i < FEW; i++)
		assert_true(few[i].at > few[i - 1].at);
	for (int i = 1; i < MANY; i++)
		assert_true(many[i].at > many[i - 1].at);
}

static void test_calls_are_measured(void **state)
{
	const struct loop_calls *calls = loop_calls(*state);
	struct dear d[3];
	int all = 0;

	loop_epoll_forget_calls(*state);
	for (int i = 0; i < 3; i++) {
		d[i] = (struct dear){
			.loop = *state, .cost_ns = i == 1 ? 3 * LOOP_CALL_NS : 1000, .all = &all};
		task_init(&d[i].task, 1000, burn);
		loop_post(*state, &d[i].task);
	}
	while (all < 3)
		loop_epoll_turn(*state, 0);
	assert_int_equal(calls->n, 3);
	assert_in_range(calls->over, 1, 2); /* a slow machine has others */
	assert_true(calls->longest_ns >= 3 * LOOP_CALL_NS);
	assert_true(calls->total_ns > calls->longest_ns);
	assert_string_equal(calls->longest, "a dear one");
}

/* ---- Idle ---- */

static void stop_it(struct task *t)
{
	loop_epoll_stop(container_of(t, struct job, task)->loop);
}

static void *sleep_then_stop(void *arg)
{
	struct job *j = arg;

	usleep(50000);
	loop_post(j->loop, &j->task);
	return NULL;
}

static void test_idle_loop_makes_no_turns(void **state)
{
	struct loop *l = *state;
	struct job j = { .loop = l };

	task_init(&j.task, FAIR_NODE, stop_it);
	struct shot far = { .loop = l, .log = (char[2]){ 0 } };
	pthread_t thread;
	uint64_t before = loop_epoll_turns(l);

	timer_init(&far.timer, shot_fire);
	timer_arm(l, &far.timer, loop_now(l) + 3600ull * 1000000000u);
	assert_int_equal(pthread_create(&thread, NULL, sleep_then_stop, &j), 0);
	loop_epoll_run(l);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(loop_epoll_turns(l) - before, 1);
	timer_disarm(l, &far.timer);
	timer_disarm(l, &far.timer);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
		T(test_clock),
		T(test_timers_fire_in_order_and_not_early),
		T(test_timers_over_the_bound_come_next_turn),
		T(test_post_runs_in_the_next_turn),
		T(test_unpost_takes_it_back),
		T(test_posts_of_threads_all_arrive_in_order),
		T(test_removed_watch_is_not_called),
		T(test_watch_of_a_bad_descriptor_is_an_error),
		T(test_tasks_run_in_fair_order),
		T(test_calls_are_measured),
		T(test_idle_loop_makes_no_turns),
#undef T
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
