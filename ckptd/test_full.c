/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_full.c - one node whose disk has no room, whose log cannot be written, or that is told to
 * stop: training goes on, nothing is promised that is not so, and all of it is made good later.
 */
#include <config.h>

#include <glob.h>

#include "ckptd/test_node_rig.h"

#define RESERVE (64ull << 20)

struct job_rig {
	struct world w;
	struct node_options o;
	struct rank a;
};

static void begin(struct job_rig *j)
{
	uint64_t base;

	j->w = (struct world){.dir = test_dir_make(NULL)};
	snprintf(j->w.socket, sizeof(j->w.socket), "%s/sock", j->w.dir);
	start(&j->w, "threads", &j->o);
	connect_rank(&j->w, &j->a);
	assert_int_equal(open_rank(&j->a, 0, 1, "run1", &base), 0);
	declare_rank(&j->a, 0, 1);
	prepare_rank(&j->a);
}

static void end(struct job_rig *j)
{
	close(j->a.fd);
	stop(&j->w);
	test_dir_remove(j->w.dir);
}

/* How many files of that pattern the data folder has. */
static size_t count_files(const struct job_rig *j, const char *pattern)
{
	char path[512];
	glob_t g;
	size_t n;

	snprintf(path, sizeof(path), "%s/%s", j->w.dir, pattern);
	n = glob(path, 0, NULL, &g) == 0 ? g.gl_pathc : 0;
	globfree(&g);
	return n;
}

/* ---- A full disk ---- */

static void test_reserve_is_kept(void **state)
{
	struct job_rig j = {0};

	(void)state;
	node_options_default(&j.o);
	j.o.disk_reserve = RESERVE;
	begin(&j);
	assert_int_equal(save_rank(&j.a, 0, 10), 0);
	assert_int_equal(wait_rank(&j.a, 10, CKPT_DURABLE), 0);
	/* Who waits is told at once, and saves go on, more of them than there are slots. */
	pretended_room = RESERVE;
	for (uint64_t step = 20; step <= 80; step += 10) {
		assert_int_equal(save_rank(&j.a, 0, step), 0);
		assert_int_equal(wait_rank(&j.a, step, CKPT_COMMITTED), 0);
		assert_int_equal(wait_rank(&j.a, step, CKPT_DURABLE), CKPT_ENOSPACE);
	}
	/* Nobody need save or ask for the newest to be written once there is room. */
	pretended_room = UINT64_MAX;
	for (int i = 0; i < TURNS_MAX && count_files(&j, "jobs/*/80.*/COMMIT") == 0; i++)
		loop_epoll_turn(j.w.loop, 10000000);
	assert_int_equal(wait_rank(&j.a, 80, CKPT_DURABLE), 0);
	end(&j);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_reserve_is_kept),
	};

	return cmocka_run_group_tests_name("full", tests, NULL, NULL);
}
